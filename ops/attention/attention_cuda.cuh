/*
 * What attention's CUDA kernels share: a call's operands, who sees whom, dropout's bits, and what backward knows of
 * each row.
 *
 * Every sum has one owner and one order: a block of queries goes through the blocks of keys in order, a block of keys
 * through the query heads of its group and their blocks in order. Nothing is added up across thread blocks.
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

/* What options bring in: see att_extra. */
struct att_options {
    const void *mask; /* of sums' type where mask_is_wide, else of q's */
    int64_t mask_stride[4]; /* 0 where it broadcasts */
    bool mask_is_wide, mask_is_truth; /* mask_is_truth: of RW_BOOL, true where a key is seen */
    const void *slopes, *sinks, *dlse;
    int64_t slope_stride, sink_stride, dlse_stride[3];
    double soft_cap;
    const att_span *spans; /* by row, and by batch: so many elements apart; NULL where the call is plain */
    int64_t span_batch;
    void *sink_rows; /* backward's: the sinks' gradient by row */
};

/* Everything but the operands' bytes. Rows and keys are counted in int: ATT_ROWS_MOST at most. */
struct att_call {
    int heads, kv_heads, group, seq, kv_seq;
    int d, dv; /* of q and k; of v, o and dy */
    int reach;     /* query i sees the keys below i + reach */
    int stat_rows; /* rows of a head in the workspace */
    int64_t pairs, kv_pairs;
    double scale, keep_factor;
    uint32_t threshold; /* of dropout's words; 0: no dropout */
    device_ticket ticket;
    att_operand q, k, v, o, dy;
    const void *lse;
    att_result out[3]; /* o; or dq, dk and dv */
    float *part; /* of a packed backward on tensor cores; see rw_attention_mma_backward(). NULL: not asked for */
    void *stat; /* backward's: for each row log-sum-exp, then for each row delta */
    bool plain; /* no options but, perhaps, a gradient of the log-sum-exp */
    att_options options;
};

constexpr int ATT_LIFT_F16 = 10;
constexpr int64_t ATT_ROWS_MOST = INT64_C(1) << 30;

/*
 * Kernels on tensor cores: bfloat16 or float16, d and dv equal, 64 or 128, a positive scale, rows that begin at
 * multiples of 16 bytes.
 */
rw_status rw_attention_mma_forward(const rw_kernel *k, const att_call &c);

/*
 * c.part: where the sums of the columns of what is stored go, [batch, tiles of ATT_PART_ROWS rows, columns]; the order
 * within a tile is that of its warps' rows.
 */
constexpr int ATT_PART_ROWS = 128;
rw_status rw_attention_mma_backward(const rw_kernel *k, const att_call &c);

/* Kernels for everything else. */
rw_status rw_attention_portable_forward(const rw_kernel *k, const att_call &c);
rw_status rw_attention_portable_backward(const rw_kernel *k, const att_call &c);

/* The gradient of a mask, with seq and kv_seq in full, into output 0. */
rw_status rw_attention_portable_mask(const rw_kernel *k, const att_call &c);

/*
 * Fills c.stat, before either backward. The log-sum-exp is kept times `factor`, less `lift`: kernels that compute
 * powers of two want log2(e), those that round probabilities to float16 want them times 2^ATT_LIFT_F16.
 */
rw_status rw_attention_prepare_rows(const rw_kernel *k, const att_call &c, double factor, double lift);

/*
 * Whether any thread of a block says so, the same in all of them; room: a word of shared memory for each warp. For
 * results that are not finite: 0 times infinity is NaN, so that infinity or NaN in a row that a query does not see
 * would reach it by the products of a tile. Where that happens a block computes its results once more, carefully: a
 * factor of 0 then adds nothing. See attention_tile_tmpl.h.
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

/* Which of four keys of a row dropout keeps, as bits. element: of the first one among [batch, heads, seq, kv_seq]. */
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
