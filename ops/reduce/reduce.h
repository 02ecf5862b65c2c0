/* Reductions: what checks and kernels share. */
#ifndef RW_OPS_REDUCE_H
#define RW_OPS_REDUCE_H

#include <rewind/op.h>

enum rw_reduce_kind { RW_REDUCE_SUM, RW_REDUCE_MEAN, RW_REDUCE_MAX, RW_REDUCE_LOGSUMEXP };

struct rw_reduce_attrs {
    uint32_t axes; /* a set made by RW_AXES(), checked */
    int32_t keep, kind, unused;
};

/* Some of the input's axes, and how far a step along each goes. */
struct rw_reduce_axes {
    int rank;
    int64_t numel;
    int64_t dim[RW_MAX_RANK];
    int64_t stride[RW_MAX_RANK];
};

/*
 * A dense input as groups x rows x run. The run is the innermost axis after joining neighbours of one kind: reduced
 * with the rows to one element of a group (run_reduced), or kept, so that the rows are added column by column. Rows
 * (of a lone run: elements) are cut into parts when groups and columns alone would not occupy the machine. A function
 * of the shape alone: it fixes the order of every sum.
 */
struct rw_reduce_plan {
    struct rw_reduce_axes groups, rows;
    int64_t run;
    bool run_reduced;
    int64_t chunks; /* pieces of RW_REDUCE_COLUMNS of a kept run; 1 of a reduced one */
    int64_t parts;
    int64_t count; /* elements behind one output */
};

#define RW_REDUCE_BLOCK 16384 /* elements of a part of a lone run */
#define RW_REDUCE_COLUMNS 512
#define RW_REDUCE_PARTS 64 /* most parts of columns */

/*
 * How CUDA cuts the same plan. Kept runs: blocks of `lanes` threads along the run, each with `pack` columns, times as
 * many rows as fill the block. Reduced ones: parts of `part` elements of a group, counted through its rows.
 */
struct rw_reduce_cut {
    int32_t pack; /* elements of a load: 16 bytes of them where a row divides into them, else 1 */
    int32_t lanes;
    int64_t chunks; /* blocks along a kept run */
    int64_t parts;
    int64_t part;
};

#define RW_REDUCE_CUDA_THREADS 256
#define RW_REDUCE_CUDA_BLOCKS 396 /* occupies a large device once: three for each of 132 multiprocessors */
#define RW_REDUCE_CUDA_WARP 1024  /* groups of this many elements at most are one warp's */

struct rw_reduce_cut rw_reduce_cut(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype);
/* Bytes of workspace on CUDA. */
size_t rw_reduce_cuda_workspace(const struct rw_reduce_plan *p, const rw_layout *in, rw_dtype dtype, int kind);

uint32_t rw_reduce_mask(uint32_t axes, int rank);
struct rw_reduce_plan rw_reduce_plan(const rw_layout *in, uint32_t mask);

/* All axes but the last of a value, as a mask: what the gradient of a bias sums over. */
static inline uint32_t rw_reduce_rows(int rank)
{
    return (1u << (rank - 1)) - 1;
}

/* For rules: hands over dx summed to input i's shape, in one pass with what others have contributed. */
rw_status rw_grad_set_sum_to(rw_grad_call *g, int i, rw_tensor *dx);

/* The same of a dx that may have the input's shape already: of an operand that broadcasts. */
rw_status rw_grad_set_broadcast(rw_grad_call *g, int i, rw_tensor *dx);

/* Bytes of workspace of sums over a mask on the CPU. */
size_t rw_reduce_sum_workspace_cpu(const rw_layout *in, uint32_t mask);

/*
 * Makes elements [at, at + n) of a kernel's output 0, which somebody is about to add up. On the CPU sums of columns are
 * taken of elements that are made as they are needed: in the order, and with the bits, of sum_to of what was stored.
 */
typedef void (*rw_reduce_make)(const rw_kernel *k, int64_t at, int64_t n);

#endif
