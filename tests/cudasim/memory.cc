/*
 * Memory: the device's in one reserved range of addresses, with guard zones, and pinned host memory.
 *
 * Fresh memory is filled with 0xcb. Freed memory is not reused at once, so that a use after free is visible. Under
 * AddressSanitizer unallocated memory is poisoned; otherwise guard zones are checked when memory is freed.
 */
#include "runtime.h"
#include "fiber.h"

#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>

#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace cudasim {

static const size_t region_size = size_t(64) << 30, alignment = 512, guard = 512, quarantine_limit = size_t(256) << 20;
static const unsigned char fresh_byte = 0xcb, guard_byte = 0xfd;

static char *region;
static size_t opened;                           /* bytes of the region that were ever used */
static std::map<size_t, allocation> live_at;    /* by offset */
static std::map<size_t, size_t> holes;          /* offset to size, below `opened` */
static std::deque<std::pair<size_t, size_t>> quarantine;
static size_t quarantined, device_bytes, peak_bytes;
static uint64_t serial;
static int accesses;

struct host_range {
    size_t size;
    bool registered;
};
static std::map<uintptr_t, host_range> host_ranges;

static void protect(int mode)
{
    if (opened) mprotect(region, (opened + 4095) & ~size_t(4095), mode);
}

device_access::device_access()
{
    if (accesses++ == 0 && config.strict) protect(PROT_READ | PROT_WRITE);
}

device_access::~device_access()
{
    if (--accesses == 0 && config.strict) protect(PROT_NONE);
}

host_turn::host_turn() : held(accesses)
{
    accesses = 0;
    if (held && config.strict) protect(PROT_NONE);
}

host_turn::~host_turn()
{
    accesses = held;
    if (held && config.strict) protect(PROT_READ | PROT_WRITE);
}

static struct sigaction previous;

/* Reports the fault and its location, then lets it be raised again for the previous handler. */
static void on_fault(int, siginfo_t *info, void *)
{
    static const char text[] = "cudasim: the host touched device memory:\n";
    void *frames[32];
    sigaction(SIGSEGV, &previous, nullptr);
    if (!is_in_device_region(info->si_addr)) return;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) return;
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
}

void watch_faults()
{
    static bool watching;
    struct sigaction action = {};
    if (watching) return;
    watching = true;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &previous);
}

static void poison(size_t offset, size_t size)
{
#ifdef CUDASIM_ASAN
    __asan_poison_memory_region(region + offset, size);
#else
    (void)offset, (void)size;
#endif
}

static void unpoison(size_t offset, size_t size)
{
#ifdef CUDASIM_ASAN
    __asan_unpoison_memory_region(region + offset, size);
#else
    (void)offset, (void)size;
#endif
}

/* An allocation's whole extent, including the guard after it; the guard before it belongs to its predecessor. */
static size_t extent_of(size_t size)
{
    return (size + alignment - 1) / alignment * alignment + guard;
}

/* Adds a freed range, and joins it with the free ranges beside it. */
static void add_hole(size_t offset, size_t size)
{
    auto next = holes.lower_bound(offset);
    if (next != holes.end() && offset + size == next->first) {
        size += next->second;
        next = holes.erase(next);
    }
    if (next != holes.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == offset) {
            previous->second += size;
            return;
        }
    }
    holes[offset] = size;
}

static bool take_hole(size_t size, size_t *offset)
{
    for (auto h = holes.begin(); h != holes.end(); ++h) {
        if (h->second < size) continue;
        *offset = h->first;
        const size_t rest = h->second - size;
        holes.erase(h);
        if (rest) holes[*offset + size] = rest;
        return true;
    }
    return false;
}

static bool open_more(size_t size, size_t *offset)
{
    if (!region) {
        void *map = mmap(nullptr, region_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) return false;
        region = static_cast<char *>(map);
    }
    const size_t first = opened ? opened : guard, end = first + size;
    if (end > region_size || mprotect(region, (end + 4095) & ~size_t(4095), PROT_READ | PROT_WRITE) != 0) return false;
    if (!opened) poison(0, guard);
    *offset = first;
    opened = end;
    return true;
}

/* Takes a hole that fits, or new memory, and fills it. */
static cudaError_t allocate(void **ptr, size_t size)
{
    size_t offset = 0;
    if (size > config.memory || device_bytes + extent_of(size) - guard > config.memory)
        return cudaErrorMemoryAllocation;
    if (!take_hole(extent_of(size), &offset) && !open_more(extent_of(size), &offset)) return cudaErrorMemoryAllocation;
    unpoison(offset, extent_of(size));
    memset(region + offset, fresh_byte, size);
    memset(region + offset + size, guard_byte, extent_of(size) - size);
    poison(offset + size, extent_of(size) - size);
    use_device();
    live_at[offset] = { size, ++serial, device_of_thread() };
    device_bytes += extent_of(size) - guard;
    if (device_bytes > peak_bytes) peak_bytes = device_bytes;
    *ptr = region + offset;
    return cudaSuccess;
}

static bool guard_is_whole(size_t offset, const allocation &a)
{
#ifndef CUDASIM_ASAN
    for (size_t i = a.size; i < extent_of(a.size); i++) {
        if (static_cast<unsigned char>(region[offset + i]) == guard_byte) continue;
        report("byte %zu behind device allocation %llu of %zu bytes was overwritten", i - a.size,
               static_cast<unsigned long long>(a.serial), a.size);
        return false;
    }
#else
    (void)offset, (void)a;
#endif
    return true;
}

/* Checks an allocation's guard and puts it in quarantine; the oldest blocks there become holes. */
static void release(size_t offset)
{
    const allocation a = live_at[offset];
    const size_t extent = extent_of(a.size);
    guard_is_whole(offset, a);
    memset(region + offset, guard_byte, a.size);
    live_at.erase(offset);
    poison(offset, extent);
    device_bytes -= extent - guard;
    quarantine.push_back({ offset, extent });
    quarantined += extent;
    while (quarantined > quarantine_limit) {
        const auto old = quarantine.front();
        quarantine.pop_front();
        quarantined -= old.second;
        add_hole(old.first, old.second);
    }
}

bool is_in_device_region(const void *ptr)
{
    const char *p = static_cast<const char *>(ptr);
    return region && p >= region && p < region + region_size;
}

static const allocation *find(const void *ptr, size_t *offset)
{
    if (!is_in_device_region(ptr)) return nullptr;
    const size_t at = static_cast<size_t>(static_cast<const char *>(ptr) - region);
    auto a = live_at.upper_bound(at);
    if (a == live_at.begin()) return nullptr;
    --a;
    if (at > a->first + a->second.size) return nullptr;
    *offset = at - a->first;
    return &a->second;
}

bool is_device(const void *ptr, size_t size)
{
    size_t offset;
    const allocation *a = find(ptr, &offset);
    return a && size <= a->size - offset;
}

void *allocation_of(const void *ptr, size_t size, size_t *ret_size)
{
    size_t offset;
    const allocation *a = find(ptr, &offset);
    if (!a || size > a->size - offset) return nullptr;
    *ret_size = a->size;
    return const_cast<char *>(static_cast<const char *>(ptr)) - offset;
}

std::vector<std::pair<void *, size_t>> live_allocations()
{
    std::vector<std::pair<void *, size_t>> all;
    for (const auto &a : live_at) all.push_back({ region + a.first, a.second.size });
    return all;
}

static bool host_range_of(const void *ptr, uintptr_t *start, host_range *range)
{
    const uintptr_t p = reinterpret_cast<uintptr_t>(ptr);
    auto r = host_ranges.upper_bound(p);
    if (r == host_ranges.begin()) return false;
    --r;
    *start = r->first;
    *range = r->second;
    return p < r->first + r->second.size;
}

bool is_pinned(const void *ptr, size_t size)
{
    uintptr_t start;
    host_range r;
    return host_range_of(ptr, &start, &r) && reinterpret_cast<uintptr_t>(ptr) + size <= start + r.size;
}

void free_all_memory()
{
    device_access access;
    while (!live_at.empty()) release(live_at.begin()->first);
    for (auto &r : host_ranges)
        if (!r.second.registered) free(reinterpret_cast<void *>(r.first));
    host_ranges.clear();
    peak_bytes = 0;
}

void count_memory(struct cudasim_live *live)
{
    live->device_allocations = live_at.size();
    live->device_bytes = device_bytes;
    for (const auto &r : host_ranges) {
        live->registrations += r.second.registered;
        live->host_allocations += !r.second.registered;
        live->host_bytes += r.second.registered ? 0 : r.second.size;
    }
}

void print_allocations(FILE *file)
{
    for (const auto &a : live_at)
        fprintf(file, "device allocation %llu: %zu bytes\n", static_cast<unsigned long long>(a.second.serial),
                a.second.size);
}

static cudaError_t free_device(void *ptr)
{
    size_t offset;
    if (!find(ptr, &offset) || offset) return cudaErrorInvalidValue;
    finish_all();
    if (broken) return broken;
    device_access access;
    release(static_cast<size_t>(static_cast<char *>(ptr) - region));
    return cudaSuccess;
}

static cudaError_t allocate_host(void **ptr, size_t size)
{
    if (!ptr) return cudaErrorInvalidValue;
    if (size == 0) return *ptr = nullptr, cudaSuccess;
    void *p = aligned_alloc(512, (size + 511) & ~size_t(511));
    if (!p) return cudaErrorMemoryAllocation;
    memset(p, fresh_byte, size);
#ifdef CUDASIM_ASAN
    __asan_poison_memory_region(static_cast<char *>(p) + size, ((size + 511) & ~size_t(511)) - size);
#endif
    host_ranges[reinterpret_cast<uintptr_t>(p)] = { size, false };
    *ptr = p;
    return cudaSuccess;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMalloc(void **ptr, size_t size)
{
    CUDASIM_ENTER;
    if (!ptr) return here.give(cudaErrorInvalidValue);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    if (size == 0) return *ptr = nullptr, cudaSuccess;
    device_access access;
    return here.give(allocate(ptr, size));
}

cudaError_t cudaFree(void *ptr)
{
    CUDASIM_ENTER;
    if (!ptr) return cudaSuccess;
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(free_device(ptr));
}

/* Allocation nodes of graphs are not simulated. */
cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
    CUDASIM_ENTER;
    if (!ptr || !is_stream(stream)) return here.give(cudaErrorInvalidValue);
    if (is_capturing(stream)) return here.give(cudaErrorNotSupported);
    if (size == 0) return *ptr = nullptr, cudaSuccess;
    device_access access;
    return here.give(allocate(ptr, size));
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    CUDASIM_ENTER;
    size_t offset;
    if (!ptr || !is_stream(stream) || !find(ptr, &offset) || offset) return here.give(cudaErrorInvalidValue);
    if (is_capturing(stream)) return here.give(cudaErrorNotSupported);
    return here.give(enqueue(stream, cudaGraphNodeTypeEmpty, [ptr] {
        device_access access;
        release(static_cast<size_t>(static_cast<char *>(ptr) - region));
        return cudaSuccess;
    }));
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    CUDASIM_ENTER;
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(allocate_host(ptr, size));
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned)
{
    CUDASIM_ENTER;
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    return here.give(allocate_host(ptr, size));
}

cudaError_t cudaFreeHost(void *ptr)
{
    CUDASIM_ENTER;
    if (!ptr) return cudaSuccess;
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    const auto r = host_ranges.find(reinterpret_cast<uintptr_t>(ptr));
    if (r == host_ranges.end() || r->second.registered) return here.give(cudaErrorInvalidValue);
    finish_all();
#ifdef CUDASIM_ASAN
    __asan_unpoison_memory_region(ptr, (r->second.size + 511) & ~size_t(511));
#endif
    host_ranges.erase(r);
    free(ptr);
    return here.give(broken);
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned)
{
    CUDASIM_ENTER;
    if (!ptr || !size || is_in_device_region(ptr)) return here.give(cudaErrorInvalidValue);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    if (is_pinned(ptr, 1)) return here.give(cudaErrorHostMemoryAlreadyRegistered);
    host_ranges[reinterpret_cast<uintptr_t>(ptr)] = { size, true };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr)
{
    CUDASIM_ENTER;
    const auto r = host_ranges.find(reinterpret_cast<uintptr_t>(ptr));
    if (r == host_ranges.end() || !r->second.registered) return here.give(cudaErrorHostMemoryNotRegistered);
    if (const cudaError_t e = refuse_unsafe()) return here.give(e);
    finish_all();
    host_ranges.erase(r);
    return here.give(broken);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    CUDASIM_ENTER;
    if (!device || !is_pinned(host, 1)) return here.give(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    CUDASIM_ENTER;
    if (!attributes) return here.give(cudaErrorInvalidValue);
    size_t offset;
    void *const p = const_cast<void *>(ptr);
    if (const allocation *const a = find(ptr, &offset)) *attributes = { cudaMemoryTypeDevice, a->device, p, nullptr };
    else if (is_pinned(ptr, 1)) *attributes = { cudaMemoryTypeHost, 0, p, p };
    else *attributes = { cudaMemoryTypeUnregistered, -1, nullptr, p };
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    CUDASIM_ENTER;
    if (!available || !total) return here.give(cudaErrorInvalidValue);
    *available = config.memory > device_bytes ? config.memory - device_bytes : 0;
    *total = config.memory;
    return cudaSuccess;
}

size_t cudasim_bytes_on(int device)
{
    entry here(__func__);
    size_t bytes = 0;
    for (const auto &a : live_at) bytes += a.second.device == device ? a.second.size : 0;
    return bytes;
}

size_t cudasim_peak_bytes(void)
{
    return peak_bytes;
}

bool cudasim_check_guards(void)
{
    entry here(__func__);
    device_access access;
    for (const auto &a : live_at)
        if (!guard_is_whole(a.first, a.second)) return false;
    return true;
}

} // extern "C"
