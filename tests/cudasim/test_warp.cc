/* Warp operations compared with a slow model of PTX's specification. */
#include "test.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

TestSuite(cudasim_warp, .fini = cudasim_restart); /* frees what a test leaves allocated */

enum { MODES = 4 };

template <typename T> __global__ static void shuffle_kernel(T *y, int mode, unsigned operand, int width)
{
    const int lane = threadIdx.x & 31;
    const T mine = static_cast<T>(100 + lane);
    T got = T(0);
    switch (mode) {
    case 0: got = __shfl_sync(0xffffffffu, mine, static_cast<int>(operand), width); break;
    case 1: got = __shfl_up_sync(0xffffffffu, mine, operand, width); break;
    case 2: got = __shfl_down_sync(0xffffffffu, mine, operand, width); break;
    case 3: got = __shfl_xor_sync(0xffffffffu, mine, static_cast<int>(operand), width); break;
    }
    y[threadIdx.x] = got;
}

/* The source lane, by the PTX manual's description of shfl: segment mask and clamp, not the code's formulas. */
static int source_lane(int mode, int lane, unsigned operand, int width)
{
    const int segment = 32 - width, clamp = mode == 1 ? 0 : 31, b = (int)(operand & 31);
    const int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
    int j = lane;
    bool in = false;
    switch (mode) {
    case 0: j = lowest | (b & ~segment), in = j <= highest; break;
    case 1: j = lane - b, in = j >= highest; break;
    case 2: j = lane + b, in = j <= highest; break;
    case 3: j = lane ^ b, in = j <= highest; break;
    }
    return in ? j : lane;
}

template <typename T> static void check_shuffles()
{
    T *y = device_array(std::vector<T>(64));
    for (int mode = 0; mode < MODES; mode++)
        for (int width = 1; width <= 32; width *= 2)
            for (unsigned operand = 0; operand < 40; operand++) {
                LAUNCH(shuffle_kernel<T>, 1, 64, 0, 0, y, mode, operand, width);
                const std::vector<T> h = from_device(y, 64);
                for (int i = 0; i < 64; i++) {
                    const int from = source_lane(mode, i & 31, operand, width);
                    cr_assert_eq((int)static_cast<float>(h[i]), 100 + from, "mode %d width %d operand %u lane %d", mode,
                                 width, operand, i);
                }
            }
}

Test(cudasim_warp, shuffles)
{
    check_shuffles<int>();
    check_shuffles<float>();
}

Test(cudasim_warp, shuffles_of_other_sizes)
{
    check_shuffles<double>();
    check_shuffles<unsigned long long>();
    check_shuffles<__half>();
    check_shuffles<__nv_bfloat16>();
}

__global__ static void votes_kernel(unsigned *y)
{
    const int lane = threadIdx.x & 31, i = threadIdx.x;
    y[8 * i] = __ballot_sync(0xffffffffu, lane % 5 == 0);
    y[8 * i + 1] = __any_sync(0xffffffffu, lane == 9) * 2 + __any_sync(0xffffffffu, 0);
    y[8 * i + 2] = __all_sync(0xffffffffu, lane < 32) * 2 + __all_sync(0xffffffffu, lane < 31);
    y[8 * i + 3] = __match_any_sync(0xffffffffu, lane / 4);
    int all = -1;
    y[8 * i + 4] = __match_all_sync(0xffffffffu, lane / 31, &all) + static_cast<unsigned>(all);
    y[8 * i + 5] = __match_all_sync(0xffffffffu, 7.5f, &all) - static_cast<unsigned>(all);
    y[8 * i + 6] = static_cast<unsigned>(__reduce_min_sync(0xffffffffu, 3 - lane) +
                                         __reduce_max_sync(0xffffffffu, lane - 40));
    y[8 * i + 7] = __reduce_add_sync(0xffffffffu, 0x10000000u + lane) ^ __reduce_or_sync(0xffffffffu, 1u << lane) ^
                   __reduce_max_sync(0xffffffffu, 0u - lane);
}

Test(cudasim_warp, votes_matches_and_reductions)
{
    unsigned *y = device_array(std::vector<unsigned>(64 * 8));
    LAUNCH(votes_kernel, 1, 64, 0, 0, y);
    const std::vector<unsigned> h = from_device(y, 64 * 8);
    for (int i = 0; i < 64; i++) {
        const unsigned *r = &h[8 * i];
        cr_assert_eq(r[0], 0x42108421u);
        cr_assert_eq(r[1], 2);
        cr_assert_eq(r[2], 2);
        cr_assert_eq(r[3], 0xfu << (i % 32 / 4 * 4));
        cr_assert_eq(r[4], 0);
        cr_assert_eq(r[5], 0xfffffffeu);
        cr_assert_eq((int)r[6], 3 - 31 + 31 - 40);
        cr_assert_eq(r[7], 496u ^ 0xffffffffu ^ 0xffffffffu);
    }
}

/* The two halves are in different operations at the same time, and in loops of different lengths. */
__global__ static void halves_kernel(int *y)
{
    const int lane = threadIdx.x & 31;
    int v = lane;
    if (lane < 16) {
        for (int d = 8; d; d >>= 1) v += __shfl_xor_sync(0x0000ffffu, v, d);
    } else {
        for (int r = 0; r < 16; r++) v = __shfl_sync(0xffff0000u, v, 16 + ((lane + 1) & 15));
        v += static_cast<int>(__ballot_sync(0xffff0000u, 1));
    }
    __syncwarp();
    y[threadIdx.x] = v;
}

Test(cudasim_warp, disjoint_masks_continue_independently)
{
    int *y = device_array(std::vector<int>(96));
    for (uint64_t seed = 0; seed < 10; seed++) {
        cudasim_set_seed(seed);
        LAUNCH(halves_kernel, 1, 96, 0, 0, y);
        const std::vector<int> h = from_device(y, 96);
        for (int i = 0; i < 96; i++) cr_assert_eq(h[i], i % 32 < 16 ? 120 : (int)0xffff0000u + i % 32);
    }
}

__global__ static void outsider_kernel(unsigned *y)
{
    const int lane = threadIdx.x & 31;
    if (lane >= 8) return;
    y[lane] = static_cast<unsigned>(__shfl_sync(0x000000ffu, lane, 20));
}

Test(cudasim_warp, values_of_lanes_outside_the_mask_cannot_be_read)
{
    unsigned *y = device_array(std::vector<unsigned>(8));
    LAUNCH(outsider_kernel, 1, 32, 0, 0, y);
    for (unsigned v : from_device(y, 8)) cr_assert_eq(v, 0xcbcbcbcbu);
}

/* Writes of other lanes are visible after __syncwarp(), and a missing one is detected. */
__global__ static void exchange_kernel(int *y, bool barrier)
{
    __shared__ int v[64];
    const int i = threadIdx.x;
    v[i] = i;
    if (barrier) __syncwarp();
    y[i] = v[i ^ 31];
}

Test(cudasim_warp, syncwarp_orders_shared_memory)
{
    int *y = device_array(std::vector<int>(64));
    for (uint64_t seed = 0; seed < 10; seed++) {
        for (bool barrier : { true, false }) {
            cudasim_set_seed(seed);
            LAUNCH(exchange_kernel, 1, 64, 0, 0, y, barrier);
            const std::vector<int> h = from_device(y, 64);
            bool right = true;
            for (int i = 0; i < 64; i++) right = right && h[i] == (i ^ 31);
            cr_assert_eq(right, barrier);
        }
    }
}

__global__ static void active_kernel(unsigned *y)
{
    y[threadIdx.x] = __activemask();
}

Test(cudasim_warp, activemask_names_the_caller)
{
    unsigned *y = device_array(std::vector<unsigned>(32));
    LAUNCH(active_kernel, 1, 32, 0, 0, y);
    const std::vector<unsigned> h = from_device(y, 32);
    for (int i = 0; i < 32; i++) cr_assert(h[i] >> i & 1);
}
