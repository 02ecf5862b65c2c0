/* Which inputs of a node are read by other threads than wrote them, for invented row assignments. */
#include "autodiff/cache_coherence_traffic.h"

#include <criterion/criterion.h>

static rw_layout layout(int rank, const int64_t *dim, const int64_t *stride)
{
    rw_layout l = { .rank = rank, .numel = 1 };
    for (int i = 0; i < rank; i++) {
        l.dim[i] = dim[i];
        l.stride[i] = stride[i];
        l.numel *= dim[i];
    }
    return l;
}

#define LAYOUT(rank, dims, strides) layout(rank, (const int64_t[])dims, (const int64_t[])strides)
#define L(...) { __VA_ARGS__ }

static uint64_t across_of(rw_layout in, rw_layout out)
{
    const rw_operand_desc x = { RW_F32, &in };
    rw_operand_desc y = { RW_F32, &out };
    return rw_cache_transfers(&(rw_op_call){ .n_inputs = 1, .n_outputs = 1, .in = &x, .out = &y });
}

Test(cross_thread_reads, is_where_rows_are_others)
{
    const rw_layout rows = LAYOUT(2, L(6, 4), L(4, 1)), wide = LAYOUT(2, L(6, 9), L(9, 1));
    const rw_layout transposed = LAYOUT(2, L(4, 6), L(1, 4)), square = LAYOUT(2, L(6, 6), L(6, 1));
    const rw_layout square_transposed = LAYOUT(2, L(6, 6), L(1, 6)), fewer = LAYOUT(2, L(5, 4), L(4, 1));
    const rw_layout one = LAYOUT(1, L(1), L(1)), none = LAYOUT(0, L(0), L(0)), row = LAYOUT(2, L(1, 6), L(6, 1));
    const rw_layout one_batch = LAYOUT(3, L(1, 6, 4), L(24, 4, 1)), batch = LAYOUT(3, L(2, 6, 4), L(24, 4, 1)),
                    other_batch = LAYOUT(3, L(1, 5, 4), L(20, 4, 1));
    cr_expect_eq(across_of(rows, rows), 0);
    cr_expect_eq(across_of(rows, wide), 0, "as many rows");
    cr_expect_eq(across_of(rows, fewer), 1, "others");
    cr_expect_eq(across_of(square_transposed, square), 1, "as many, that are columns");
    cr_expect_eq(across_of(transposed, square), 1);
    cr_expect_eq(across_of(square_transposed, transposed), 0, "columns of columns");
    cr_expect_eq(across_of(rows, one), 0, "each adds up its own");
    cr_expect_eq(across_of(rows, none), 0);
    cr_expect_eq(across_of(none, rows), 1);
    cr_expect_eq(across_of(none, none), 0);
    cr_expect_eq(across_of(one_batch, batch), 1);
    cr_expect_eq(across_of(one_batch, one_batch), 0, "rows of the only one");
    cr_expect_eq(across_of(one_batch, other_batch), 1, "as many batches, other rows");
    cr_expect_eq(across_of(row, square), 1);
}

/* One bit each; one output with its rows suffices; of more than 64 inputs the first 64. */
Test(cross_thread_reads, of_each_input_alone)
{
    const rw_layout six = LAYOUT(2, L(6, 4), L(4, 1)), five = LAYOUT(2, L(5, 4), L(4, 1)), four = LAYOUT(1, L(4), L(1));
    rw_operand_desc in[70], out[2] = { { RW_F32, &six }, { RW_F32, &five } };
    for (int i = 0; i < 70; i++) in[i] = (rw_operand_desc){ RW_F32, i % 3 == 0 ? &six : i % 3 == 1 ? &five : &four };
    const uint64_t across = rw_cache_transfers(&(rw_op_call){ .n_inputs = 70, .n_outputs = 2, .in = in,
                                                                 .out = out });
    for (uint32_t i = 0; i < 70; i++) cr_expect_eq(rw_is_cache_transfer(across, i), i < 64 && i % 3 == 2, "%u", i);
    cr_expect_eq(rw_cache_transfers(&(rw_op_call){ .n_inputs = 3, .in = in }), 7, "it writes nothing");
}
