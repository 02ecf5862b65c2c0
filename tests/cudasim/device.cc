/* The device: its properties, the errors of calls, planted faults, and the state that tests control. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace cudasim {

settings config;
cudaError_t broken;

static pthread_mutex_t lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static thread_local std::vector<cudaError_t> last_errors; /* by runtime */
static thread_local size_t runtime_of_calls;
static std::atomic<size_t> runtimes(1);
static thread_local int current_device;
static thread_local std::vector<int> pushed; /* devices of the driver's stack of contexts */
static std::set<int> contexts; /* devices that have a context */
static bool configured;

struct counter {
    long calls = 0, fail_at = 0;
    int code = 0;
};
static std::map<std::string, counter> counters;
static long kernels_left; /* until the kernel that fails, 0: none does */
static cudaError_t kernel_code;

static void make_lock()
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attr);
    pthread_mutexattr_destroy(&attr);
}

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : nullptr;
}

static void plant(const char *function, long n, int code)
{
    counter *c = &counters[function];
    c->fail_at = n > 0 ? c->calls + n : 0;
    c->code = code;
}

/* FUNCTION:N:CODE[,...] */
static void plant_list(const char *list)
{
    std::string text = list;
    for (char *save = nullptr, *item = strtok_r(&text[0], ",", &save); item; item = strtok_r(nullptr, ",", &save)) {
        char function[128];
        long n;
        int code;
        if (sscanf(item, "%127[^:]:%ld:%d", function, &n, &code) == 3) plant(function, n, code);
        else report("CUDASIM_FAIL: cannot read \"%s\"", item);
    }
}

/* Reads the environment. */
static void configure()
{
    configured = true;
    config = settings();
    if (const char *v = setting("CUDASIM_SEED")) config.seed = strtoull(v, nullptr, 0);
    if (const char *v = setting("CUDASIM_LAZY")) config.lazy = *v == '1';
    if (const char *v = setting("CUDASIM_STRICT")) config.strict = *v == '1';
    if (const char *v = setting("CUDASIM_DRIVER")) config.driver = strcmp(v, "none") != 0;
    if (const char *v = setting("CUDASIM_DEVICES")) config.devices = atoi(v);
    if (const char *v = setting("CUDASIM_MEMORY")) config.memory = strtoull(v, nullptr, 0);
    if (const char *v = setting("CUDASIM_SMS")) config.multiprocessors = atoi(v);
    if (const char *v = setting("CUDASIM_CAPABILITY")) config.major = atoi(v) / 10, config.minor = atoi(v) % 10;
    if (const char *v = setting("CUDASIM_FAIL")) plant_list(v);
    if (const char *v = setting("CUDASIM_CUDNN")) config.cudnn = atoi(v);
    if (config.strict) watch_faults();
    random_seed(config.seed);
}

struct lock_scope {
    lock_scope()
    {
        pthread_once(&lock_once, make_lock);
        pthread_mutex_lock(&lock);
        if (!configured) configure();
    }
    ~lock_scope() { pthread_mutex_unlock(&lock); }
};

cudaError_t call_fault(const char *function)
{
    counter *c = &counters[function];
    c->calls++;
    if (!c->fail_at || c->calls != c->fail_at) return cudaSuccess;
    c->fail_at = 0;
    return static_cast<cudaError_t>(c->code);
}

int device_of_thread()
{
    return pushed.empty() ? current_device : pushed.back();
}

cudaError_t kernel_fault()
{
    if (!kernels_left || --kernels_left) return cudaSuccess;
    return kernel_code;
}

void use_device()
{
    contexts.insert(device_of_thread());
}

/* The reason that no call works, or cudaSuccess. */
static cudaError_t unusable()
{
    if (!config.driver) return cudaErrorInsufficientDriver;
    if (config.devices < 1) return cudaErrorNoDevice;
    return broken;
}

entry::entry(const char *function)
{
    pthread_once(&lock_once, make_lock);
    pthread_mutex_lock(&lock);
    if (!configured) configure();
    if (in_kernel()) report("%s called by a kernel", function);
    refusal = call_fault(function);
    from_test = refusal != cudaSuccess;
    if (!refusal) refusal = unusable();
}

entry::~entry()
{
    pthread_mutex_unlock(&lock);
}

/* The last error of the runtime that the thread calls. */
static cudaError_t &last_error()
{
    if (last_errors.size() <= runtime_of_calls) last_errors.resize(runtime_of_calls + 1);
    return last_errors[runtime_of_calls];
}

void set_last_error(cudaError_t error)
{
    if (error && error != cudaErrorNotReady) last_error() = error;
}

cudaError_t entry::give(cudaError_t error)
{
    set_last_error(error);
    return error;
}

struct attribute {
    cudaDeviceAttr attr;
    int value;
};

/* The value of a device attribute; *known: whether it is simulated. */
static int attribute_value(cudaDeviceAttr attr, bool *known)
{
    static const attribute table[] = {
        { cudaDevAttrMaxThreadsPerBlock, 1024 },
        { cudaDevAttrMaxBlockDimX, 1024 },
        { cudaDevAttrMaxBlockDimY, 1024 },
        { cudaDevAttrMaxBlockDimZ, 64 },
        { cudaDevAttrMaxGridDimX, 2147483647 },
        { cudaDevAttrMaxGridDimY, 65535 },
        { cudaDevAttrMaxGridDimZ, 65535 },
        { cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10 },
        { cudaDevAttrTotalConstantMemory, 64 << 10 },
        { cudaDevAttrWarpSize, 32 },
        { cudaDevAttrMaxRegistersPerBlock, 65536 },
        { cudaDevAttrClockRate, 1980000 },
        { cudaDevAttrIntegrated, 0 },
        { cudaDevAttrCanMapHostMemory, 1 },
        { cudaDevAttrConcurrentKernels, 1 },
        { cudaDevAttrEccEnabled, 1 },
        { cudaDevAttrPciBusId, 0 },
        { cudaDevAttrPciDeviceId, 0 },
        { cudaDevAttrMemoryClockRate, 3201000 },
        { cudaDevAttrGlobalMemoryBusWidth, 6144 },
        { cudaDevAttrL2CacheSize, 60 << 20 },
        { cudaDevAttrMaxThreadsPerMultiProcessor, 2048 },
        { cudaDevAttrAsyncEngineCount, 3 },
        { cudaDevAttrUnifiedAddressing, 1 },
        { cudaDevAttrPciDomainId, 0 },
        { cudaDevAttrStreamPrioritiesSupported, 1 },
        { cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10 },
        { cudaDevAttrMaxRegistersPerMultiprocessor, 65536 },
        { cudaDevAttrManagedMemory, 0 },
        { cudaDevAttrCooperativeLaunch, 0 },
        { cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10 },
        { cudaDevAttrHostRegisterSupported, 1 },
        { cudaDevAttrMaxBlocksPerMultiprocessor, 32 },
        { cudaDevAttrReservedSharedMemoryPerBlock, 1 << 10 },
        { cudaDevAttrMemoryPoolsSupported, 0 },
        { cudaDevAttrClusterLaunch, 0 },
    };
    *known = true;
    if (attr == cudaDevAttrMultiProcessorCount) return config.multiprocessors;
    if (attr == cudaDevAttrComputeCapabilityMajor) return config.major;
    if (attr == cudaDevAttrComputeCapabilityMinor) return config.minor;
    for (const attribute &a : table)
        if (a.attr == attr) return a.value;
    *known = false;
    return 0;
}

static int attr(cudaDeviceAttr a)
{
    bool known;
    return attribute_value(a, &known);
}

/* The device's properties, consistent with its attributes. */
static void fill_properties(cudaDeviceProp *p)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "simulated device %d.%d", config.major, config.minor);
    p->totalGlobalMem = config.memory;
    p->sharedMemPerBlock = static_cast<size_t>(attr(cudaDevAttrMaxSharedMemoryPerBlock));
    p->sharedMemPerBlockOptin = static_cast<size_t>(attr(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    p->sharedMemPerMultiprocessor = static_cast<size_t>(attr(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    p->reservedSharedMemPerBlock = static_cast<size_t>(attr(cudaDevAttrReservedSharedMemoryPerBlock));
    p->regsPerBlock = p->regsPerMultiprocessor = attr(cudaDevAttrMaxRegistersPerBlock);
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 64 << 10;
    p->major = config.major;
    p->minor = config.minor;
    p->multiProcessorCount = config.multiprocessors;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->asyncEngineCount = attr(cudaDevAttrAsyncEngineCount);
    p->memoryBusWidth = attr(cudaDevAttrGlobalMemoryBusWidth);
    p->l2CacheSize = attr(cudaDevAttrL2CacheSize);
    p->maxThreadsPerMultiProcessor = attr(cudaDevAttrMaxThreadsPerMultiProcessor);
    p->maxBlocksPerMultiProcessor = attr(cudaDevAttrMaxBlocksPerMultiprocessor);
    p->streamPrioritiesSupported = p->hostRegisterSupported = 1;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaGetLastError(void)
{
    lock_scope scope;
    if (const cudaError_t e = unusable()) return e;
    const cudaError_t e = last_error();
    last_error() = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    lock_scope scope;
    if (const cudaError_t e = unusable()) return e;
    return last_error();
}

const char *cudaGetErrorName(cudaError_t error)
{
#define CUDASIM_NAME(name, code, text) if (error == code) return #name;
    CUDASIM_ERRORS(CUDASIM_NAME)
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
#define CUDASIM_TEXT(name, code, text) if (error == code) return text;
    CUDASIM_ERRORS(CUDASIM_TEXT)
    return "unrecognized error code";
}

/* These two work without a driver. */
cudaError_t cudaDriverGetVersion(int *version)
{
    lock_scope scope;
    if (const cudaError_t e = call_fault(__func__)) return e;
    if (!version) return cudaErrorInvalidValue;
    *version = config.driver ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    lock_scope scope;
    if (const cudaError_t e = call_fault(__func__)) return e;
    if (!version) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    entry here(__func__);
    if (here.refused() == cudaErrorNoDevice && count) *count = 0;
    if (here.refused()) return here.give(here.refused());
    if (!count) return here.give(cudaErrorInvalidValue);
    *count = config.devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    CUDASIM_ENTER;
    if (device < 0 || device >= config.devices) return here.give(cudaErrorInvalidDevice);
    contexts.insert(device);
    if (pushed.empty()) current_device = device;
    else pushed.back() = device;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    CUDASIM_ENTER;
    return here.give(device < 0 || device >= config.devices ? cudaErrorInvalidDevice : cudaSuccess);
}

/* The driver's contexts: a context is the address of its device's number. */
static char device_numbers[64];

int cuCtxGetCurrent(void **context)
{
    lock_scope scope;
    if (call_fault(__func__)) return 1;
    *context = contexts.count(device_of_thread()) ? &device_numbers[device_of_thread()] : nullptr;
    return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
    lock_scope scope;
    if (call_fault(__func__)) return 1;
    pushed.push_back(static_cast<int>(static_cast<char *>(context) - device_numbers));
    return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
    lock_scope scope;
    if (call_fault(__func__) || pushed.empty()) return 1;
    *context = &device_numbers[pushed.back()];
    pushed.pop_back();
    return 0;
}

bool cudasim_has_context(int device)
{
    lock_scope scope;
    return contexts.count(device);
}

cudaError_t cudaGetDevice(int *device)
{
    CUDASIM_ENTER;
    if (!device) return here.give(cudaErrorInvalidValue);
    *device = device_of_thread();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    CUDASIM_ENTER;
    if (!prop) return here.give(cudaErrorInvalidValue);
    if (device < 0 || device >= config.devices) return here.give(cudaErrorInvalidDevice);
    fill_properties(prop);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    CUDASIM_ENTER;
    if (!value) return here.give(cudaErrorInvalidValue);
    if (device < 0 || device >= config.devices) return here.give(cudaErrorInvalidDevice);
    bool known;
    const int v = attribute_value(attribute, &known);
    if (!known) return here.give(cudaErrorInvalidValue);
    *value = v;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit, size_t)
{
    CUDASIM_ENTER;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    CUDASIM_ENTER;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart(void)
{
    CUDASIM_ENTER;
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
    CUDASIM_ENTER;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    lock_scope scope;
    if (const cudaError_t e = call_fault(__func__)) return e;
    if (!config.driver) return cudaErrorInsufficientDriver;
    free_all_streams();
    free_all_memory();
    broken = last_error() = cudaSuccess;
    return cudaSuccess;
}

void cudasim_restart(void)
{
    lock_scope scope;
    free_all_streams();
    free_all_blas();
    free_all_dnn();
    free_all_memory();
    counters.clear();
    kernels_left = 0;
    broken = cudaSuccess;
    last_errors.clear();
    contexts.clear();
    cudasim_clear_report();
    configure();
}

int cudasim_new_runtime(void)
{
    return static_cast<int>(runtimes++);
}

int cudasim_call_runtime(int runtime)
{
    const size_t before = runtime_of_calls;
    runtime_of_calls = static_cast<size_t>(runtime);
    return static_cast<int>(before);
}

#define CUDASIM_SETTER(name, parameter, statement) \
    void name(parameter)                           \
    {                                              \
        lock_scope scope;                          \
        statement;                                 \
    }
CUDASIM_SETTER(cudasim_set_seed, uint64_t seed, random_seed(config.seed = seed))
CUDASIM_SETTER(cudasim_set_lazy, bool lazy, config.lazy = lazy)
CUDASIM_SETTER(cudasim_set_driver, bool present, config.driver = present)
CUDASIM_SETTER(cudasim_set_devices, int count, config.devices = count)
CUDASIM_SETTER(cudasim_set_memory, size_t bytes, config.memory = bytes)
CUDASIM_SETTER(cudasim_set_multiprocessors, int count, config.multiprocessors = count)
CUDASIM_SETTER(cudasim_set_cudnn, int version, config.cudnn = version)
CUDASIM_SETTER(cudasim_set_max_count, int64_t max, config.max_count = static_cast<uint64_t>(max))
CUDASIM_SETTER(cudasim_set_dnn_engines, const char *ids, config.dnn_engines = ids ? ids : "")
CUDASIM_SETTER(cudasim_break, cudaError_t code, broken = code)

void cudasim_set_strict(bool strict)
{
    lock_scope scope;
    {
        if (strict) watch_faults();
        device_access all; /* opens device memory for this scope */
        config.strict = strict;
    }
}

void cudasim_set_capability(int major, int minor)
{
    lock_scope scope;
    config.major = major;
    config.minor = minor;
}

void cudasim_fail_call(const char *function, long n, int code)
{
    lock_scope scope;
    plant(function, n, code);
}

void cudasim_fail_kernel(long n, cudaError_t code)
{
    lock_scope scope;
    kernels_left = n;
    kernel_code = code;
}

void cudasim_clear_faults(void)
{
    lock_scope scope;
    for (auto &c : counters) c.second.fail_at = 0;
    kernels_left = 0;
}

long cudasim_calls(const char *function)
{
    lock_scope scope;
    const auto c = counters.find(function);
    return c == counters.end() ? 0 : c->second.calls;
}

struct cudasim_live cudasim_live(void)
{
    lock_scope scope;
    struct cudasim_live live = {};
    count_memory(&live);
    count_streams(&live);
    count_blas(&live);
    count_dnn(&live);
    return live;
}

size_t cudasim_live_allocations(void)
{
    const struct cudasim_live l = cudasim_live();
    return l.device_allocations + l.host_allocations + l.registrations + l.streams + l.events + l.graphs +
           l.graph_execs + l.blas_objects + l.dnn_objects;
}

void cudasim_print_live(FILE *file)
{
    const struct cudasim_live l = cudasim_live();
    fprintf(file,
            "alive: %zu device allocations (%zu bytes), %zu pinned (%zu bytes), %zu registrations, %zu streams, %zu "
            "events, "
            "%zu graphs, %zu executable graphs, %zu cuBLASLt objects, %zu of cuDNN; %zu pieces of work wait\n",
            l.device_allocations, l.device_bytes, l.host_allocations, l.host_bytes, l.registrations, l.streams,
            l.events, l.graphs, l.graph_execs, l.blas_objects, l.dnn_objects, l.queued);
    lock_scope scope;
    print_allocations(file);
}

/*
 * A failed assertion in a kernel ends the kernel, as on the device; elsewhere the process, as in the C library. It is
 * defined here because kernels are compiled with the C library's assert().
 */
void __assert_fail(const char *expression, const char *file, unsigned line, const char *function) noexcept
{
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, expression);
    if (in_kernel()) kernel_fail(cudaErrorAssert);
    fflush(stderr);
    abort();
}

} // extern "C"
