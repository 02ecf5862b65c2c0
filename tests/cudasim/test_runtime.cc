/* Tests of runtime calls: errors, memory, copies, streams and events. */
#include "test.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <signal.h>

TestSuite(cudasim_runtime, .fini = cudasim_restart); /* frees what a test leaves allocated */

__global__ static void add_kernel(int *x, int n, int v)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += v;
}

__global__ static void write_kernel(char *at, char v) { *at = v; }

/* Errors. */

Test(cudasim_runtime, errors_have_names_and_are_told_once)
{
    OK(cudaGetLastError());
    GIVES(cudaSetDevice(3), cudaErrorInvalidDevice);
    GIVES(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    GIVES(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaGetLastError());
    cr_assert_str_eq(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    cr_assert_str_eq(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    cr_assert_str_eq(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

Test(cudasim_runtime, another_runtime_has_last_errors_of_its_own)
{
    const int other = cudasim_new_runtime();
    GIVES(cudaSetDevice(3), cudaErrorInvalidDevice);
    cr_assert_eq(cudasim_call_runtime(other), 0);
    OK(cudaPeekAtLastError());
    GIVES(cudaMemset(nullptr, 0, 16), cudaErrorInvalidValue);
    cr_assert_eq(cudasim_call_runtime(0), other);
    GIVES(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaGetLastError());
    cudasim_call_runtime(other);
    GIVES(cudaGetLastError(), cudaErrorInvalidValue);
    cudasim_break(cudaErrorIllegalAddress); /* the context is common to all runtimes */
    for (const int runtime : { 0, other }) {
        cudasim_call_runtime(runtime);
        GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
    }
    cudasim_call_runtime(0);
}

Test(cudasim_runtime, without_a_driver_every_call_says_so)
{
    int count = 77, version = -1;
    void *p = &count;
    cudasim_set_driver(false);
    GIVES(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    cr_assert_eq(count, 77);
    GIVES(cudaMalloc(&p, 16), cudaErrorInsufficientDriver);
    cr_assert_eq(p, (void *)&count);
    GIVES(cudaGetLastError(), cudaErrorInsufficientDriver);
    GIVES(cudaPeekAtLastError(), cudaErrorInsufficientDriver);
    GIVES(cudaDeviceSynchronize(), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&version));
    cr_assert_eq(version, 0);
    OK(cudaRuntimeGetVersion(&version));
    cr_assert_eq(version, CUDART_VERSION);
    LAUNCH(add_kernel, 1, 1, 0, 0, (int *)nullptr, 0, 0);
    GIVES(cudaGetLastError(), cudaErrorInsufficientDriver);
}

Test(cudasim_runtime, without_a_device)
{
    int count = 77;
    cudasim_set_devices(0);
    GIVES(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    cr_assert_eq(count, 0);
    cudaStream_t s;
    GIVES(cudaStreamCreate(&s), cudaErrorNoDevice);
}

Test(cudasim_runtime, properties_follow_from_the_settings)
{
    cudaDeviceProp prop;
    int v = 0;
    cudasim_set_capability(8, 6);
    cudasim_set_multiprocessors(17);
    cudasim_set_memory(12345678);
    OK(cudaGetDeviceProperties(&prop, 0));
    cr_assert(prop.major == 8 && prop.minor == 6 && prop.multiProcessorCount == 17 && prop.totalGlobalMem == 12345678);
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 0));
    cr_assert_eq(v, 17);
    GIVES(cudaDeviceGetAttribute(&v, (cudaDeviceAttr)9999, 0), cudaErrorInvalidValue);
    GIVES(cudaGetDeviceProperties(&prop, 1), cudaErrorInvalidDevice);
}

Test(cudasim_runtime, planted_errors_come_at_their_call)
{
    void *p[4];
    const long before = cudasim_calls("cudaMalloc");
    cudasim_fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p[0], 16));
    GIVES(cudaMalloc(&p[1], 16), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p[2], 16));
    cr_assert_eq(cudasim_calls("cudaMalloc"), before + 3);
    GIVES(cudaGetLastError(), cudaErrorMemoryAllocation);
    cudasim_fail_call("launch", 1, cudaErrorLaunchOutOfResources);
    LAUNCH(add_kernel, 1, 1, 0, 0, (int *)p[0], 0, 0);
    GIVES(cudaGetLastError(), cudaErrorLaunchOutOfResources);
    cudasim_fail_kernel(2, cudaErrorIllegalAddress);
    LAUNCH(add_kernel, 1, 1, 0, 0, (int *)p[0], 0, 0);
    OK(cudaDeviceSynchronize());
    LAUNCH(add_kernel, 1, 1, 0, 0, (int *)p[0], 0, 0);
    GIVES(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
    GIVES(cudaFree(p[0]), cudaErrorIllegalAddress);
}

Test(cudasim_runtime, launches_are_checked)
{
    int *x = device_array(std::vector<int>(4));
    const dim3 bad_grids[] = { dim3(0), dim3(1, 65536), dim3(1, 1, 65536) },
               bad_blocks[] = { dim3(0), dim3(1025), dim3(32, 33), dim3(1, 1, 65) };
    for (const dim3 &g : bad_grids) {
        LAUNCH(add_kernel, g, 1, 0, 0, x, 4, 1);
        GIVES(cudaGetLastError(), cudaErrorInvalidConfiguration);
    }
    for (const dim3 &b : bad_blocks) {
        LAUNCH(add_kernel, 1, b, 0, 0, x, 4, 1);
        GIVES(cudaGetLastError(), cudaErrorInvalidConfiguration);
    }
    LAUNCH(add_kernel, 1, 4, 48 << 10, 0, x, 4, 1);
    OK(cudaGetLastError());
    LAUNCH(add_kernel, 1, 4, (48 << 10) + 1, 0, x, 4, 1);
    GIVES(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    GIVES(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
          cudaErrorInvalidValue);
    GIVES(cudaGetLastError(), cudaErrorInvalidValue);
    LAUNCH(add_kernel, 1, 4, 100 << 10, 0, x, 4, 1);
    OK(cudaGetLastError());
    LAUNCH(add_kernel, 1, 4, 0, (cudaStream_t)x, x, 4, 1);
    GIVES(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    for (int v : from_device(x, 4)) cr_assert_eq(v, 2);
}

/* Memory. */

Test(cudasim_runtime, fresh_memory_is_filled_and_counted)
{
    unsigned char *p, h[100];
    size_t available, total;
    OK(cudaMalloc(&p, 100));
    OK(cudaMemcpy(h, p, 100, cudaMemcpyDeviceToHost));
    for (unsigned char c : h) cr_assert_eq(c, 0xcb);
    cr_assert_eq(reinterpret_cast<uintptr_t>(p) % 512, 0);
    cr_assert_eq(cudasim_live().device_allocations, 1);
    OK(cudaMemGetInfo(&available, &total));
    cr_assert_eq(total - available, cudasim_live().device_bytes);
    OK(cudaFree(p));
    OK(cudaFree(nullptr));
    cr_assert_eq(cudasim_live_allocations(), 0);
    cr_assert_eq(cudasim_peak_bytes(), 512);
}

Test(cudasim_runtime, memory_is_limited)
{
    void *p, *q = nullptr;
    cudasim_set_memory(1 << 20);
    OK(cudaMalloc(&p, 600 << 10));
    GIVES(cudaMalloc(&q, 600 << 10), cudaErrorMemoryAllocation);
    cr_assert_null(q);
    OK(cudaFree(p));
    OK(cudaMalloc(&q, 600 << 10));
    for (int i = 0; i < 2000; i++) { /* freed memory is reused eventually */
        OK(cudaFree(q));
        OK(cudaMalloc(&q, 1 << 20));
    }
}

Test(cudasim_runtime, wrong_frees_are_refused)
{
    char *p;
    int host;
    OK(cudaMalloc(&p, 100));
    GIVES(cudaFree(p + 16), cudaErrorInvalidValue);
    GIVES(cudaFree(&host), cudaErrorInvalidValue);
    OK(cudaFree(p));
    GIVES(cudaFree(p), cudaErrorInvalidValue);
    GIVES(cudaFreeHost(&host), cudaErrorInvalidValue);
}

Test(cudasim_runtime, writes_after_an_allocation_are_reported)
{
    if (UNDER_ASAN) return; /* it reports them itself, by ending the process */
    char *p;
    cudasim_set_fatal(false);
    OK(cudaMalloc(&p, 100));
    LAUNCH(write_kernel, 1, 1, 0, 0, p + 100, 'x');
    OK(cudaDeviceSynchronize());
    cr_assert_not(cudasim_check_guards());
    cr_assert(reported("byte 0 behind device allocation 1 of 100 bytes was overwritten"));
}

#if !UNDER_ASAN /* it would report the access itself */
Test(cudasim_runtime, the_host_may_not_touch_device_memory, .signal = SIGSEGV)
{
    cudasim_set_strict(true);
    int *x = device_array(std::vector<int>(64, 5));
    LAUNCH(add_kernel, 1, 64, 0, 0, x, 64, 1);
    cr_assert_eq(from_device(x, 64)[63], 6);
    *(volatile int *)x = 1;
}

static void touch(void *x)
{
    *(volatile int *)x = 1;
}

Test(cudasim_runtime, a_host_function_may_not_touch_device_memory, .signal = SIGSEGV)
{
    cudasim_set_strict(true);
    cudasim_set_lazy(true);
    int *x = device_array(std::vector<int>(64, 5));
    LAUNCH(add_kernel, 1, 64, 0, 0, x, 64, 1);
    OK(cudaLaunchHostFunc(0, touch, x));
    LAUNCH(add_kernel, 1, 64, 0, 0, x, 64, 1);
    OK(cudaDeviceSynchronize());
}
#endif

Test(cudasim_runtime, copies_check_their_kind_and_range)
{
    std::vector<char> h(200);
    char *p, *pinned;
    OK(cudaMalloc(&p, 100));
    OK(cudaMallocHost(&pinned, 100));
    GIVES(cudaMemcpy(p, h.data(), 101, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(p + 50, h.data(), 51, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(p, h.data(), 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(h.data(), h.data() + 100, 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(p, h.data(), 10, (cudaMemcpyKind)7), cudaErrorInvalidMemcpyDirection);
    GIVES(cudaMemset(h.data(), 0, 10), cudaErrorInvalidValue);
    OK(cudaMemcpy(p, pinned, 100, cudaMemcpyDefault));
    OK(cudaMemset(p, 7, 100));
    OK(cudaMemcpy(h.data(), p, 100, cudaMemcpyDefault));
    cr_assert_eq(h[99], 7);
    cudaPointerAttributes a;
    OK(cudaPointerGetAttributes(&a, p + 5));
    cr_assert_eq(a.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&a, pinned));
    cr_assert_eq(a.type, cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&a, h.data()));
    cr_assert_eq(a.type, cudaMemoryTypeUnregistered);
    OK(cudaHostRegister(h.data(), 200, 0));
    GIVES(cudaHostRegister(h.data(), 200, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(h.data()));
    GIVES(cudaHostUnregister(h.data()), cudaErrorHostMemoryNotRegistered);
    OK(cudaFree(p));
    GIVES(cudaMemcpy(h.data(), p, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

/* Streams. */

Test(cudasim_runtime, lazy_work_waits_for_synchronisation)
{
    cudaStream_t s;
    int *x, *pinned;
    cudasim_set_lazy(true);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&x, 4));
    OK(cudaMallocHost(&pinned, 4));
    *pinned = -1;
    OK(cudaMemsetAsync(x, 0, 4, s));
    LAUNCH(add_kernel, 1, 1, 0, s, x, 1, 41);
    OK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, s));
    cr_assert_eq(*pinned, -1);
    cr_assert_eq(cudasim_live().queued, 3);
    GIVES(cudaStreamQuery(s), cudaErrorNotReady);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(s));
    cr_assert_eq(*pinned, 41);
    cr_assert_eq(cudasim_live().queued, 0);
    /* A copy reads pinned memory when it runs; pageable memory is read at the call. */
    int pageable = 5;
    *pinned = 5;
    OK(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, s));
    *pinned = 6;
    OK(cudaStreamSynchronize(s));
    cr_assert_eq(from_device(x, 1)[0], 6);
    OK(cudaMemcpyAsync(x, &pageable, 4, cudaMemcpyHostToDevice, s));
    pageable = 7;
    OK(cudaStreamSynchronize(s));
    cr_assert_eq(from_device(x, 1)[0], 5);
    LAUNCH(add_kernel, 1, 1, 0, s, x, 1, 3);
    OK(cudaMemcpyAsync(&pageable, x, 4, cudaMemcpyDeviceToHost, s));
    cr_assert_eq(pageable, 8);
}

Test(cudasim_runtime, polls_let_time_pass)
{
    cudaEvent_t e, f;
    int *x = device_array(std::vector<int>(1)), polls = 0;
    float ms = -1;
    cudasim_set_lazy(true);
    OK(cudaEventCreate(&e));
    OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
    OK(cudaEventQuery(e));
    for (int i = 0; i < 5; i++) LAUNCH(add_kernel, 1, 1, 0, 0, x, 1, 1);
    OK(cudaEventRecord(e, 0));
    GIVES(cudaEventElapsedTime(&ms, e, e), cudaErrorNotReady);
    while (cudaEventQuery(e) == cudaErrorNotReady) polls++;
    cr_assert_eq(polls, 6);
    OK(cudaEventElapsedTime(&ms, e, e));
    cr_assert_eq(ms, 0);
    GIVES(cudaEventElapsedTime(&ms, e, f), cudaErrorInvalidResourceHandle);
    OK(cudaGetLastError() == cudaErrorInvalidResourceHandle ? 0 : 1);
}

/* Stream 2 reads what stream 1 writes; only an event orders them. Returns the number of runs in which it read the new
   value. */
static int ordered_runs(bool with_event)
{
    int good = 0;
    cudaStream_t s1, s2;
    cudaEvent_t e;
    OK(cudaStreamCreateWithFlags(&s1, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&s2, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    int *x = device_array(std::vector<int>(1)), *y = device_array(std::vector<int>(1));
    for (uint64_t seed = 0; seed < 40; seed++) {
        cudasim_set_seed(seed);
        OK(cudaMemset(x, 0, 4));
        OK(cudaDeviceSynchronize());
        LAUNCH(add_kernel, 1, 1, 0, s1, x, 1, 1);
        OK(cudaEventRecord(e, s1));
        if (with_event) OK(cudaStreamWaitEvent(s2, e, 0));
        OK(cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice, s2));
        OK(cudaDeviceSynchronize());
        good += from_device(y, 1)[0] == 1;
    }
    OK(cudaStreamDestroy(s1));
    OK(cudaStreamDestroy(s2));
    OK(cudaEventDestroy(e));
    return good;
}

Test(cudasim_runtime, only_events_order_streams)
{
    cudasim_set_lazy(true);
    cr_assert_eq(ordered_runs(true), 40);
    const int by_chance = ordered_runs(false);
    cr_assert(by_chance > 0 && by_chance < 40, "%d", by_chance);
}

Test(cudasim_runtime, the_legacy_stream_waits_for_blocking_streams)
{
    cudaStream_t blocking, other;
    int *x = device_array(std::vector<int>(1));
    cudasim_set_lazy(true);
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    LAUNCH(add_kernel, 1, 1, 0, blocking, x, 1, 1);
    cr_assert_eq(from_device(x, 1)[0], 1); /* a copy in the legacy stream */
    LAUNCH(add_kernel, 1, 1, 0, other, x, 1, 1);
    cr_assert_eq(from_device(x, 1)[0], 1);
    OK(cudaStreamSynchronize(other));
    cr_assert_eq(from_device(x, 1)[0], 2);
    LAUNCH(add_kernel, 1, 1, 0, 0, x, 1, 5);
    OK(cudaMemsetAsync(x, 0, 4, blocking)); /* after the legacy stream's kernel */
    OK(cudaStreamSynchronize(blocking));
    OK(cudaDeviceSynchronize());
    cr_assert_eq(from_device(x, 1)[0], 0);
}

Test(cudasim_runtime, freeing_waits_for_the_device)
{
    cudaStream_t s;
    char *x, *y;
    cudasim_set_lazy(true);
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&x, 4));
    LAUNCH(write_kernel, 1, 1, 0, s, x, 'x');
    OK(cudaFree(x));
    cr_assert_eq(cudasim_live().queued, 0);
    OK(cudaMallocAsync(&y, 4, s));
    LAUNCH(write_kernel, 1, 1, 0, s, y, 'x');
    OK(cudaFreeAsync(y, s));
    cr_assert_eq(cudasim_live().device_allocations, 1);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    GIVES(cudaStreamDestroy(s), cudaErrorInvalidResourceHandle);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

static void append(void *data) { ((std::vector<int> *)data)->push_back(1); }

Test(cudasim_runtime, host_functions_run_in_stream_order)
{
    std::vector<int> calls;
    cudasim_set_lazy(true);
    OK(cudaLaunchHostFunc(0, append, &calls));
    cr_assert_eq(calls.size(), 0);
    OK(cudaStreamSynchronize(0));
    cr_assert_eq(calls.size(), 1);
}

__constant__ static float constants[4];

__global__ static void constants_kernel(float *y) { y[threadIdx.x] = 2 * constants[threadIdx.x]; }

Test(cudasim_runtime, symbols_can_be_copied)
{
    const float h[4] = { 1, 2, 3, 4 };
    float back[2], *y = device_array(std::vector<float>(4));
    OK(cudaMemcpyToSymbol(constants, h, sizeof h));
    LAUNCH(constants_kernel, 1, 4, 0, 0, y);
    cr_assert_eq(from_device(y, 4)[3], 8);
    OK(cudaMemcpyFromSymbol(back, constants, 8, 8));
    cr_assert_eq(back[1], 4);
    GIVES(cudaMemcpyToSymbol(constants, h, sizeof h, 4), cudaErrorInvalidValue);
}

/* Host threads. */

static void *launch_many(void *)
{
    int *x = device_array(std::vector<int>(256));
    for (int i = 0; i < 50; i++) LAUNCH(add_kernel, 4, 64, 0, 0, x, 256, 1);
    for (int v : from_device(x, 256)) cr_assert_eq(v, 50);
    GIVES(cudaSetDevice(5), cudaErrorInvalidDevice);
    GIVES(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaFree(x));
    return nullptr;
}

Test(cudasim_runtime, host_threads_launch_at_the_same_time)
{
    pthread_t t[4];
    for (pthread_t &p : t) pthread_create(&p, nullptr, launch_many, nullptr);
    for (pthread_t &p : t) pthread_join(p, nullptr);
    OK(cudaGetLastError());
    cr_assert_eq(cudasim_live_allocations(), 0);
}

Test(cudasim_runtime, ranges_are_counted)
{
    nvtxRangePushA("a");
    nvtxRangePushA("b");
    nvtxRangePop();
    cr_assert_eq(cudasim_nvtx_depth(), 1);
    nvtxRangePop();
    cr_assert_eq(cudasim_nvtx_depth(), 0);
    cr_assert_eq(cudasim_nvtx_ranges(), 2);
}

Test(cudasim_runtime, a_restart_forgets_everything)
{
    cudaStream_t s;
    void *p;
    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&p, 16));
    OK(cudaMallocHost(&p, 16));
    cudasim_set_lazy(true);
    cudasim_fail_call("cudaMalloc", 1, 2);
    cudasim_break(cudaErrorIllegalAddress);
    GIVES(cudaGetDevice((int *)&s), cudaErrorIllegalAddress);
    cudasim_restart();
    cr_assert_eq(cudasim_live_allocations(), 0);
    OK(cudaGetLastError());
    OK(cudaMalloc(&p, 16));
    OK(cudaFree(p));
}
