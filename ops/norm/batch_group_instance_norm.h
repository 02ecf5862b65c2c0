/*
 * Shared by the checks and kernels of batchnorm, group_norm and instance_norm. C11 and C++17.
 *
 * x, of any rank from 2 on, is dense and channels-last: segments x rows x channels. Adjacent channels form groups, and
 * statistics are those of a group within a segment. For batchnorm the whole batch is one segment and each channel is a
 * group; for the others each image is a segment. Mean and variance [segments * groups] are float32, or float64 for
 * float64. They are kept for backward, which reads x again.
 *
 * The rows of a segment are cut into blocks by the shape. A block computes for each channel a mean and a sum of squares
 * around it, in double, and blocks are merged in order. The rounding error of the sum is then below that of its final
 * rounding, and the variance of numbers far from 0 keeps its precision.
 *
 * x may be a virtual concatenation (ops/shape/virtual_concat.h). The op then has the concatenation's inputs, each dense
 * with some of the channels, and the concatenation is neither computed nor kept. A group may extend over several of
 * them. The result does not depend on where x is cut. The code calls these inputs pieces.
 *
 *     forward   (pieces of x, weight, bias[, mean, variance][, addend]) -> y[, mean, variance]
 *     backward  (dy, weight, mean, variance[, bias], pieces of x)       -> dx, dweight, dbias
 *
 * Backward has the bias as an input if a relu followed the result directly: it recomputes each result as forward did,
 * to see which were above 0. So the results need not be kept for that.
 */
#ifndef RW_OPS_NORM_BATCH_GROUP_INSTANCE_NORM_H
#define RW_OPS_NORM_BATCH_GROUP_INSTANCE_NORM_H

#include <rewind/op.h>

struct rw_groups_attrs {
    double eps;
    int64_t groups; /* groups of an image's channels; 0: batchnorm */
    int64_t given;  /* mean and variance are inputs, and constants */
    int64_t relu;   /* relu of the result, after the addend; backward: dy is the gradient of relu's result */
    int64_t more;   /* number of concatenation inputs after the first; 0: x is whole */
    int64_t whole;  /* the value of the tape that is virtually concatenated, if `more` is not 0 */
};

struct rw_groups {
    int64_t segments, rows, c, groups, width; /* groups of `width` channels */
    int64_t block, blocks;                    /* rows of a block, blocks of a segment */
    double eps;
    bool given, relu;
    int64_t more;
};

#define RW_GROUPS_BLOCK 32768 /* approximate number of elements of a block */
#define RW_GROUPS_ROWS_MIN 8
#define RW_GROUPS_RUN 16 /* rows that are summed in the type of arithmetic */
#define RW_GROUPS_ROWS_MAX 2048

/* The extents from the layout of x, or of one of its concatenation inputs, with c channels in total. */
static inline struct rw_groups rw_groups_of(const struct rw_groups_attrs *a, const rw_layout *x, int64_t c)
{
    struct rw_groups g;
    int64_t pixels = 1;
    for (int i = 1; i < x->rank - 1; i++) pixels *= x->dim[i];
    g.c = c;
    g.segments = a->groups ? x->dim[0] : 1;
    g.rows = a->groups ? pixels : pixels * x->dim[0];
    g.groups = a->groups ? a->groups : g.c;
    g.width = a->groups ? g.c / a->groups : 1;
    g.block = RW_GROUPS_BLOCK / (g.c ? g.c : 1);
    if (g.block < RW_GROUPS_ROWS_MIN) g.block = RW_GROUPS_ROWS_MIN;
    if (g.block > RW_GROUPS_ROWS_MAX) g.block = RW_GROUPS_ROWS_MAX;
    g.blocks = (g.rows + g.block - 1) / g.block;
    g.eps = a->eps;
    g.given = a->given != 0;
    g.relu = a->relu != 0;
    g.more = a->more;
    return g;
}

static inline int64_t rw_groups_channels(const rw_layout *x)
{
    return x->dim[x->rank - 1];
}

/* The input index of forward's weight; bias, mean and variance follow it. */
static inline int rw_groups_weight(const struct rw_groups *g)
{
    return (int)g->more + 1;
}

/* The input index of the addend, if there is one. */
static inline int rw_groups_added(const struct rw_groups *g)
{
    return rw_groups_weight(g) + (g->given ? 4 : 2);
}

/* A concatenation input of x: channels [first, first + c) of all. begin() returns the first of `left` inputs; next()
   advances until none is left. */
struct rw_groups_piece {
    const rw_view *x;
    int64_t left, first, c;
};

static inline struct rw_groups_piece rw_groups_begin(const struct rw_groups *g, const rw_view *x)
{
    struct rw_groups_piece p;
    p.x = x;
    p.left = g->more + 1;
    p.first = 0;
    p.c = rw_groups_channels(x->layout);
    return p;
}

static inline void rw_groups_next(struct rw_groups_piece *p)
{
    p->first += p->c;
    p->left--;
    p->x++;
    if (p->left) p->c = rw_groups_channels(p->x->layout);
}

/* The type of the statistics and of the arithmetic. */
static inline rw_dtype rw_groups_wide(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

/* The input index of x in backward, or of its first concatenation input, with or without a bias before it. */
static inline int rw_groups_backward_x(bool relu)
{
    return relu ? 5 : 4;
}

/* Numbers in the workspace for each segment and channel. In addition there are five per block if anything is summed,
   two of them in double. */
#define RW_GROUPS_LINES 4
#define RW_GROUPS_LINES_OF_RELU 6 /* in backward; an even number, so that what follows is aligned */

/* Size of the workspace in bytes; numbers have `size` bytes. */
static inline int64_t rw_groups_workspace(const struct rw_groups *g, int64_t lines, bool sums, int64_t size)
{
    return (lines * size + (sums ? g->blocks * (2 * (int64_t)sizeof(double) + 3 * size) : 0)) * g->segments * g->c;
}

/* The largest float32 number that rounds to 0 in the result's type. */
static inline float rw_groups_rounds_to_zero(rw_dtype dtype)
{
    return dtype == RW_BF16 ? 0x1p-134f : dtype == RW_F16 ? 0x1p-25f : 0;
}

struct rw_running_attrs {
    double momentum; /* 0: the average over all batches, which are counted */
    double unbiased; /* n / (n - 1) */
};

#endif
