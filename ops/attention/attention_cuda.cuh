/*
 * Shared by attention's CUDA kernels: a call's operands, the keys that each query sees, dropout's random bits, and the
 * row statistics of backward.
 *
 * Every sum is computed by one thread block in one order: a block of queries loops over the blocks of keys in order; a
 * block of keys loops over the query heads of its group and their blocks in order. Nothing is summed across thread
 * blocks.
 */
#ifndef RW_OPS_ATTENTION_CUDA_CUH
#define RW_OPS_ATTENTION_CUDA_CUH

#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/attention/attention.h"
}

/* One operand [batch, heads, rows, d]; strides in elements. */
struct att_operand {
    const void *p;
    int64_t batch, head, row, col;
};

/* The operands of options: see att_extra. */
struct att_options {
    const void *mask; /* of the sums' type if mask_is_wide, else of q's */
    int64_t mask_stride[4]; /* 0 along broadcast axes */
    bool mask_is_wide, mask_is_truth; /* mask_is_truth: RW_BOOL, true where a key is seen */
    const void *slopes, *sinks, *dlse;
    int64_t slope_stride, sink_stride, dlse_stride[3];
    double soft_cap;
    const att_span *spans; /* by row, and by batch with this stride; NULL if the call is plain */
    int64_t span_batch;
    void *sink_rows; /* backward: the sinks' gradient by row */
};

/* A call without its input operands. Rows and keys are counted in int: at most ATT_ROWS_MAX. */
struct att_call {
    int heads, kv_heads, group, seq, kv_seq;
    int d, dv; /* of q and k; of v, o and dy */
    int reach;     /* query i sees the keys below i + reach */
    int stat_rows; /* rows per head in the workspace */
    int64_t pairs, kv_pairs;
    double scale, keep_factor;
    uint32_t threshold; /* threshold for dropout's random words; 0: no dropout */
    device_ticket ticket;
    att_operand q, k, v, o, dy;
    const void *lse;
    att_result out[3]; /* o; or dq, dk and dv */
    float *part; /* column sums, see rw_attention_mma_backward(); NULL: not requested */
    void *stat; /* backward: the log-sum-exps of all rows, then the deltas of all rows */
    bool plain; /* no options except, perhaps, a gradient of the log-sum-exp */
    att_options options;
};

constexpr int ATT_LIFT_F16 = 10;
constexpr int64_t ATT_ROWS_MAX = INT64_C(1) << 30;

/*
 * Tensor-core kernels: bfloat16 or float16, d and dv equal, 64 or 128, a positive scale, rows that begin at multiples
 * of 16 bytes.
 */
rw_status rw_attention_mma_forward(const rw_kernel *k, const att_call &c);

/*
 * c.part: receives the column sums of the stored gradients, [batch, tiles of ATT_PART_ROWS rows, columns]. Within a
 * tile they are added in the order of its warps' rows.
 */
constexpr int ATT_PART_ROWS = 128;
rw_status rw_attention_mma_backward(const rw_kernel *k, const att_call &c);

/* Portable kernels for all other calls. */
rw_status rw_attention_portable_forward(const rw_kernel *k, const att_call &c);
rw_status rw_attention_portable_backward(const rw_kernel *k, const att_call &c);

/* The gradient of a mask, with full seq and kv_seq axes, into output 0. */
rw_status rw_attention_portable_mask(const rw_kernel *k, const att_call &c);

/*
 * Fills c.stat; must run before either backward. Stores the log-sum-exp times `factor`, minus `lift`. Kernels that
 * compute powers of two pass log2(e) as factor. Kernels that round probabilities to float16 keep them times
 * 2^ATT_LIFT_F16.
 */
rw_status rw_attention_prepare_rows(const rw_kernel *k, const att_call &c, double factor, double lift);

/*
 * Is the condition true in any thread of the block? The result is the same in all threads. room: one word of shared
 * memory per warp.
 *
 * Used to detect results that are not finite: 0 times infinity is NaN, so an infinity or NaN in a row that a query does
 * not see would reach the query through the products of a tile. In this case a block computes its results a second
 * time, with products that skip a factor of 0. See attention_tile_tmpl.h.
 */
__device__ __forceinline__ bool att_any_of_block(bool mine, uint32_t *room)
{
    int any = mine;
    for (int d = 16; d > 0; d >>= 1) any |= __shfl_xor_sync(0xffffffffu, any, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = any;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; w++) any |= room[w];
    __syncthreads();
    return any;
}

/* Bits for four keys of a row that dropout keeps. element: index of the first one in [batch, heads, seq, kv_seq]. */
__device__ __forceinline__ uint32_t att_keep(uint64_t seed, uint64_t first_block, uint32_t threshold, uint64_t element)
{
    uint32_t word[4], bits = 0;
    rw_philox(seed, first_block + element / 4, word);
    for (int i = 0; i < 4; i++) bits |= static_cast<uint32_t>(word[i] >= threshold) << i;
    const int shift = static_cast<int>(element % 4);
    if (shift) {
        rw_philox(seed, first_block + element / 4 + 1, word);
        for (int i = 0; i < 4; i++) bits |= static_cast<uint32_t>(word[i] >= threshold) << (4 + i);
        bits >>= shift;
    }
    return bits & 15;
}

#endif
