/* Tests of the simulator itself: threads, blocks, barriers, warps, shared memory. Its runtime calls: other test_*.cc
   here. */
#undef NDEBUG /* a test fails assertions */
#include "test.h"

TestSuite(cudasim, .fini = cudasim_restart); /* frees what a test leaves allocated */

/* Barriers. */

__global__ static void reverse_kernel(const int *x, int *y)
{
    __shared__ int tile[256];
    const int i = threadIdx.x, first = blockIdx.x * blockDim.x;
    tile[i] = x[first + i];
    __syncthreads();
    y[first + i] = tile[blockDim.x - 1 - i];
}

__global__ static void reverse_without_barrier_kernel(const int *x, int *y)
{
    __shared__ int tile[256];
    const int i = threadIdx.x, first = blockIdx.x * blockDim.x;
    tile[i] = x[first + i];
    y[first + i] = tile[blockDim.x - 1 - i];
}

static std::vector<int> run_reverse(void (*kernel)(const int *, int *), uint64_t seed)
{
    std::vector<int> x(4 * 256);
    for (size_t i = 0; i < x.size(); i++) x[i] = (int)i + 1000;
    int *in = device_array(x), *out = device_array(x);
    cudasim_set_seed(seed);
    LAUNCH(kernel, 4, 256, 0, 0, in, out);
    OK(cudaGetLastError());
    const std::vector<int> y = from_device(out, x.size());
    OK(cudaFree(in));
    OK(cudaFree(out));
    return y;
}

Test(cudasim, barriers_let_every_thread_see_every_write)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        const std::vector<int> y = run_reverse(reverse_kernel, seed);
        for (int i = 0; i < (int)y.size(); i++) cr_assert_eq(y[i], 1000 + i / 256 * 256 + 255 - i % 256);
    }
    cr_assert_eq(cudasim_live_allocations(), 0);
}

Test(cudasim, a_missing_barrier_shows_under_every_seed)
{
    const std::vector<int> right = run_reverse(reverse_kernel, 1);
    for (uint64_t seed = 0; seed < 20; seed++) cr_assert(run_reverse(reverse_without_barrier_kernel, seed) != right);
}

__global__ static void exits_kernel(int *y)
{
    __shared__ int count;
    if (threadIdx.x == 5) count = 0;
    if (threadIdx.x % 3 == 1) return;
    __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = count;
}

Test(cudasim, exited_threads_do_not_count_at_barriers)
{
    int *y = device_array(std::vector<int>(7));
    LAUNCH(exits_kernel, 7, 100, 0, 0, y);
    OK(cudaGetLastError());
    for (int n : from_device(y, 7)) cr_assert_eq(n, 67);
}

__global__ static void votes_kernel(int *y)
{
    const int i = threadIdx.x;
    y[4 * i] = __syncthreads_count(i % 3 == 0);
    y[4 * i + 1] = __syncthreads_and(i < 64);
    y[4 * i + 2] = __syncthreads_and(i < 63);
    y[4 * i + 3] = 2 * __syncthreads_or(i == 17) + __syncthreads_or(i == 64);
}

Test(cudasim, barriers_that_vote)
{
    int *y = device_array(std::vector<int>(256));
    LAUNCH(votes_kernel, 1, 64, 0, 0, y);
    const std::vector<int> h = from_device(y, 256);
    for (int i = 0; i < 64; i++) {
        cr_assert_eq(h[4 * i], 22);
        cr_assert_eq(h[4 * i + 1], 1);
        cr_assert_eq(h[4 * i + 2], 0);
        cr_assert_eq(h[4 * i + 3], 2);
    }
}

__global__ static void many_rounds_kernel(int *y, int rounds)
{
    __shared__ int v[1024];
    const int i = threadIdx.x, n = blockDim.x;
    v[i] = i;
    for (int r = 0; r < rounds; r++) {
        __syncthreads();
        const int next = v[(i + 1) % n];
        __syncthreads();
        v[i] = next;
    }
    y[i] = v[i];
}

Test(cudasim, a_full_block_goes_through_many_barriers)
{
    int *y = device_array(std::vector<int>(1024));
    LAUNCH(many_rounds_kernel, 1, 1024, 0, 0, y, 100);
    const std::vector<int> h = from_device(y, 1024);
    for (int i = 0; i < 1024; i++) cr_assert_eq(h[i], (i + 100) % 1024);
}

/* Indexes and orders. */

__global__ static void indexes_kernel(int *hits)
{
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    hits[block * blockDim.x * blockDim.y * blockDim.z + thread]++;
}

Test(cudasim, every_thread_of_every_block_runs_once)
{
    const dim3 grids[] = { dim3(5, 3, 2), dim3(1), dim3(1, 7), dim3(1, 1, 4) },
               blocks[] = { dim3(3, 5, 4), dim3(1), dim3(33), dim3(2, 2, 64) };
    for (const dim3 &g : grids)
        for (const dim3 &b : blocks) {
            const size_t n = (size_t)g.x * g.y * g.z * b.x * b.y * b.z;
            int *hits = device_array(std::vector<int>(n));
            LAUNCH(indexes_kernel, g, b, 0, 0, hits);
            OK(cudaGetLastError());
            for (int h : from_device(hits, n)) cr_assert_eq(h, 1);
        }
}

__global__ static void order_kernel(int *next, int *order)
{
    order[atomicAdd(next, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
}

static std::vector<int> order_of(uint64_t seed)
{
    int *next = device_array(std::vector<int>(1)), *order = device_array(std::vector<int>(16 * 64));
    cudasim_set_seed(seed);
    LAUNCH(order_kernel, 16, 64, 0, 0, next, order);
    return from_device(order, 16 * 64);
}

Test(cudasim, orders_follow_from_the_seed)
{
    std::vector<int> plain(16 * 64);
    for (size_t i = 0; i < plain.size(); i++) plain[i] = (int)i;
    cr_assert(order_of(1) == order_of(1));
    cr_assert(order_of(1) != order_of(2));
    cr_assert(order_of(3) != plain);
    std::vector<int> sorted = order_of(4);
    std::sort(sorted.begin(), sorted.end());
    cr_assert(sorted == plain);
}

__global__ static void last_block_kernel(unsigned *done, int *parts, int *sum)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = blockIdx.x * blockIdx.x;
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    int s = 0;
    for (unsigned i = 0; i < gridDim.x; i++) s += parts[i];
    *sum = s;
}

Test(cudasim, the_last_block_sees_all_others)
{
    unsigned *done = device_array(std::vector<unsigned>(1));
    int *parts = device_array(std::vector<int>(50)), *sum = device_array(std::vector<int>(1));
    LAUNCH(last_block_kernel, 50, 32, 0, 0, done, parts, sum);
    cr_assert_eq(from_device(sum, 1)[0], 40425);
    cr_assert_eq(from_device(done, 1)[0], 0);
}

__global__ static void stack_kernel(int *y)
{
    volatile char local[24 << 10];
    for (size_t i = 0; i < sizeof local; i += 512) local[i] = (char)threadIdx.x;
    __syncthreads();
    int sum = 0;
    for (size_t i = 0; i < sizeof local; i += 512) sum += local[i];
    y[threadIdx.x] = sum;
}

Test(cudasim, threads_have_stacks_of_their_own)
{
    int *y = device_array(std::vector<int>(96));
    LAUNCH(stack_kernel, 1, 96, 0, 0, y);
    const std::vector<int> h = from_device(y, 96);
    for (int i = 0; i < 96; i++) cr_assert_eq(h[i], 48 * i);
}

/* Shared memory. */

template <typename T> __global__ static void unwritten_kernel(T *y, bool write)
{
    __shared__ T a[8];
    __shared__ T b;
    if (write) a[threadIdx.x] = b = T(3);
    else y[threadIdx.x] = threadIdx.x == 7 ? b : a[threadIdx.x];
}

template <typename T> static void check_unwritten()
{
    T *y = device_array(std::vector<T>(8, T(3)));
    for (int round = 0; round < 10; round++) {
        LAUNCH(unwritten_kernel<T>, 1, 8, 0, 0, y, true);
        LAUNCH(unwritten_kernel<T>, 1, 8, 0, 0, y, false);
        for (T v : from_device(y, 8)) {
            unsigned char bytes[sizeof(T)];
            memcpy(bytes, &v, sizeof v);
            for (unsigned char c : bytes)
                cr_assert(c == 0xff || c == 0xcb || c == 0x7e, "byte %02x of the block before", c);
        }
    }
}

Test(cudasim, static_shared_memory_starts_as_a_pattern_in_every_block)
{
    check_unwritten<int>();
    check_unwritten<double>();
}

__global__ static void dynamic_kernel(unsigned char *y, int n, int at, unsigned char v)
{
    unsigned char *s = static_cast<unsigned char *>(cudasim::dynamic_shared());
    cr_assert_eq(reinterpret_cast<uintptr_t>(s) % 16, 0);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = v;
    if (at) s[at] = v;
}

Test(cudasim, dynamic_shared_memory_starts_as_a_pattern_in_every_block)
{
    unsigned char *y = device_array(std::vector<unsigned char>(1000));
    for (int round = 0; round < 5; round++) {
        LAUNCH(dynamic_kernel, 3, 64, 1000, 0, y, 1000, 0, 0x11);
        OK(cudaGetLastError());
        for (unsigned char c : from_device(y, 1000)) cr_assert(c == 0xff || c == 0xcb || c == 0x7e);
    }
}

Test(cudasim, writes_beside_dynamic_shared_memory_are_reported)
{
    if (UNDER_ASAN) return; /* it reports them itself, by ending the process */
    cudasim_set_fatal(false);
    unsigned char *y = device_array(std::vector<unsigned char>(1000));
    LAUNCH(dynamic_kernel, 1, 64, 1000, 0, y, 1000, 1000, 0x11);
    GIVES(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    cr_assert(reported("behind dynamic shared memory"), "%s", cudasim_last_report());
    OK(cudaDeviceReset());
    y = device_array(std::vector<unsigned char>(1000));
    LAUNCH(dynamic_kernel, 1, 64, 1000, 0, y, 1000, -1, 0x11);
    cr_assert(reported("in front of dynamic shared memory"), "%s", cudasim_last_report());
}

/* Program errors. Each is reported once, and the simulator works again after a reset. */

static void expect_report(const char *a, const char *b, const char *c)
{
    GIVES(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    for (const char *part : { a, b, c }) cr_assert(reported(part), "no \"%s\" in: %s", part, cudasim_last_report());
    OK(cudaDeviceReset());
    cudasim_clear_report();
    const std::vector<int> y = run_reverse(reverse_kernel, 3);
    cr_assert_eq(y[0], 1255);
    cr_assert_eq(cudasim_last_report()[0], 0);
}

__global__ static void diverged_kernel(int limit)
{
    if ((int)threadIdx.x < limit) __syncthreads();
    else __syncthreads();
}

__global__ static void half_waits_kernel(int limit)
{
    if ((int)threadIdx.x < limit) __syncthreads();
    else __syncwarp(0xffffffffu);
}

Test(cudasim, diverged_barriers_are_reported)
{
    cudasim_set_fatal(false);
    LAUNCH(diverged_kernel, 2, 64, 0, 0, 20);
    expect_report("kernel diverged_kernel", "__syncthreads diverged; threads 0 to 19 wait in __syncthreads at ",
                  "threads 20 to 63 wait");
    LAUNCH(diverged_kernel, 2, 64, 0, 0, 64);
    OK(cudaDeviceSynchronize());
}

Test(cudasim, deadlocks_are_reported_with_each_waiting_thread)
{
    cudasim_set_fatal(false);
    LAUNCH(half_waits_kernel, 2, 64, 0, 0, 40);
    expect_report("deadlock", "threads 0 to 39 wait in __syncthreads at ",
                  "threads 40 to 63 wait in __syncwarp with mask ffffffff at ");
}

/* Warp calls with wrong masks: of exited lanes, of another call, or not of the lanes that call. */
__global__ static void mask_kernel(unsigned mask, int op)
{
    const int lane = threadIdx.x & 31;
    switch (op) {
    case 0: __syncwarp(mask); break;
    case 1:
        if (lane == 3) return;
        __shfl_sync(mask, lane, 0);
        break;
    case 2:
        if (lane == 3) __ballot_sync(mask, 1);
        else __any_sync(mask, 1);
        break;
    case 3: __shfl_sync(mask, lane, 0, 12); break;
    case 4:
        if (lane == 3) return;
        __syncthreads(); /* lane 3 has exited by now */
        __shfl_sync(mask, lane, 0);
        break;
    }
}

Test(cudasim, wrong_masks_are_reported)
{
    cudasim_set_fatal(false);
    LAUNCH(mask_kernel, 1, 32, 0, 0, 0x0000ffffu, 0);
    expect_report("kernel mask_kernel, block (0, 0, 0), thread (", "does not name the caller's lane",
                  "test_threads.cc");
    LAUNCH(mask_kernel, 1, 40, 0, 0, 0xffffffffu, 0);
    expect_report("names lanes ffffff00 that the block does not have", "block (0, 0, 0)", "thread (");
    LAUNCH(mask_kernel, 1, 32, 0, 0, 0xffffffffu, 4);
    expect_report("__shfl_sync", "mask ffffffff names lanes 00000008 that have exited", "thread (");
    for (uint64_t seed = 0; seed < 8; seed++) {
        cudasim_set_seed(seed);
        LAUNCH(mask_kernel, 1, 32, 0, 0, 0xffffffffu, 1);
        expect_report("__shfl_sync", "name", "thread ("); /* lane 3 arrived before the others, or it did not */
    }
    LAUNCH(mask_kernel, 1, 32, 0, 0, 0xffffffffu, 2);
    expect_report("lanes of one mask came to different operations", "__ballot_sync", "__any_sync");
    LAUNCH(mask_kernel, 1, 32, 0, 0, 0xffffffffu, 3);
    expect_report("width 12 is not a power of two", "__shfl_sync", "thread (");
}

__global__ static void ends_kernel(int how)
{
    __syncthreads();
    if (threadIdx.x == 40) {
        if (how == 0) __trap();
        assert(how == 0);
    }
    __syncthreads();
}

Test(cudasim, traps_and_assertions_end_the_context)
{
    const cudaError_t codes[] = { cudaErrorLaunchFailure, cudaErrorAssert };
    for (int how = 0; how < 2; how++) {
        LAUNCH(ends_kernel, 3, 64, 0, 0, how);
        GIVES(cudaDeviceSynchronize(), codes[how]);
        GIVES(cudaGetLastError(), codes[how]);
        GIVES(cudaGetLastError(), codes[how]);
        void *p = nullptr;
        GIVES(cudaMalloc(&p, 16), codes[how]);
        cr_assert_null(p);
        OK(cudaDeviceReset());
        OK(cudaGetLastError());
        run_reverse(reverse_kernel, 1);
    }
}
