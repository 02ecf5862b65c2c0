/* Reductions: attributes, and how an input is cut into parts; shared by checks and kernels. */
#ifndef RW_OPS_REDUCE_H
#define RW_OPS_REDUCE_H

#include <rewind/op.h>

enum rw_reduce_kind { RW_REDUCE_SUM, RW_REDUCE_MEAN, RW_REDUCE_MAX, RW_REDUCE_LOGSUMEXP };

struct rw_reduce_attrs {
    uint32_t axes; /* a set made by RW_AXES(), checked */
    int32_t keep, kind, unused;
};

/* Some of the input's axes, and the stride of each. */
struct rw_reduce_axes {
    int rank;
    int64_t numel;
    int64_t dim[RW_MAX_RANK];
    int64_t stride[RW_MAX_RANK];
};

/*
 * A dense input as groups x rows x run. The run is the innermost axis after joining adjacent axes of one kind. It is
 * reduced, together with the rows, to one element of a group (run_reduced); or it is kept, and the rows are added
 * column by column. Rows (for a single run: elements) are cut into parts if groups and columns alone would not give
 * work to all threads. A function of the shape alone, which determines the order of every sum.
 */
struct rw_reduce_plan {
    struct rw_reduce_axes groups, rows;
    int64_t run;
    bool run_reduced;
    int64_t chunks; /* sections of RW_REDUCE_COLUMNS of a kept run; 1 for a reduced one */
    int64_t parts;
    int64_t count; /* elements per output */
};

#define RW_REDUCE_BLOCK 16384 /* elements of a part of a single run */
#define RW_REDUCE_COLUMNS 512
#define RW_REDUCE_PARTS 64 /* maximum number of parts of columns */

/*
 * How CUDA cuts the same plan. Kept runs: blocks of `lanes` threads along the run, each with `pack` columns, times as
 * many rows as fill the block. Reduced runs: parts of `part` elements of a group, counted through its rows.
 */
struct rw_reduce_cut {
    int32_t pack; /* elements of a load: 16 bytes if rows are a multiple of that, else 1 element */
    int32_t lanes;
    int64_t chunks; /* blocks along a kept run */
    int64_t parts;
    int64_t part;
};

#define RW_REDUCE_CUDA_THREADS 256
#define RW_REDUCE_CUDA_BLOCKS 396 /* fills a large device once: three for each of 132 multiprocessors */
#define RW_REDUCE_CUDA_WARP 1024  /* a group of at most this number of elements is reduced by one warp */

struct rw_reduce_cut rw_reduce_cut(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype);
/* Bytes of workspace on CUDA. */
size_t rw_reduce_cuda_workspace(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype, int kind);

uint32_t rw_reduce_mask(uint32_t axes, int rank);
struct rw_reduce_plan rw_reduce_plan(const rw_layout *in, uint32_t mask);

/* All axes of a value but the last, as a mask: the axes over which the gradient of a bias is summed. */
static inline uint32_t rw_reduce_rows(int rank)
{
    return (1u << (rank - 1)) - 1;
}

/* For rules: sets dx, summed to input i's shape, as its gradient, and adds the sum so far in the same pass. */
rw_status rw_grad_set_sum_to(rw_grad_call *g, int i, rw_tensor *dx);

/* The same for a dx that may already have the input's shape: for an operand that broadcasts. */
rw_status rw_grad_set_broadcast(rw_grad_call *g, int i, rw_tensor *dx);

/* Bytes of workspace of sums over a mask on the CPU. */
size_t rw_reduce_sum_workspace_cpu(const rw_layout *in, uint32_t mask);

/*
 * Computes elements [at, at + n) of a kernel's output 0, which the reduction is about to add. On the CPU, sums of
 * columns can be computed of elements that are generated when they are needed: in the order, and with the result, of
 * sum_to on the stored elements.
 */
typedef void (*rw_reduce_make)(const rw_kernel *k, int64_t at, int64_t n);

#endif
