/*
 * What the checks and kernels of batchnorm, group_norm and instance_norm share. C11 and C++17.
 *
 * x, of any rank from 2 on, lies channels last and dense: segments x rows x channels, and neighbouring channels form
 * groups. Statistics are those of a group within a segment: of batchnorm the whole batch is one segment and each
 * channel a group; of the others each image is a segment. Mean and variance are float32, of float64 float64:
 * [segments * groups]. They are kept, x is read again.
 *
 * Rows of a segment are cut into blocks by the shape. A block has a mean and a sum of squares around it for each
 * channel, in double, and these are merged in order: what a sum of so many numbers loses is less than what its last
 * rounding takes, and a variance far from 0 keeps its digits.
 *
 * x may come in pieces, each of some of the channels and dense: those of a concatenation, which then nobody has to make
 * or to keep (ops/shape/joined.h). A group may reach over several. No byte depends on where x is cut.
 *
 *     forward   (pieces of x, weight, bias[, mean, variance][, what is added]) -> y[, mean, variance]
 *     backward  (dy, weight, mean, variance[, bias], pieces of x)              -> dx, dweight, dbias
 *
 * Backward has a bias where relu stood behind the result, with nothing added: it makes each result again, as forward
 * did, to see which were above 0. So nobody has to keep them for that.
 */
#ifndef RW_OPS_NORM_GROUPS_H
#define RW_OPS_NORM_GROUPS_H

#include <rewind/op.h>

struct rw_groups_attrs {
    double eps;
    int64_t groups; /* of an image's channels; 0: batchnorm */
    int64_t given;  /* mean and variance are inputs, and constants */
    int64_t relu;   /* of the result, behind what is added to it; backward: dy is that of relu's result */
    int64_t more;   /* pieces of x behind the first */
    int64_t whole;  /* which value of the tape they make up, where there are more */
};

struct rw_groups {
    int64_t segments, rows, c, groups, width; /* groups of `width` channels */
    int64_t block, blocks;                    /* rows of a block, blocks of a segment */
    double eps;
    bool given, relu;
    int64_t more;
};

#define RW_GROUPS_BLOCK 32768 /* elements of a block, about */
#define RW_GROUPS_ROWS_LEAST 8
#define RW_GROUPS_RUN 16 /* rows whose sum is taken in the type of arithmetic */
#define RW_GROUPS_ROWS_MOST 2048

/* Of x, or of a piece of it, and of c channels in all. */
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
    if (g.block < RW_GROUPS_ROWS_LEAST) g.block = RW_GROUPS_ROWS_LEAST;
    if (g.block > RW_GROUPS_ROWS_MOST) g.block = RW_GROUPS_ROWS_MOST;
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

/* Which input of forward is the weight, in front of the bias, the mean and the variance. */
static inline int rw_groups_weight(const struct rw_groups *g)
{
    return (int)g->more + 1;
}

/* Which one is added to the result, where there is one more. */
static inline int rw_groups_added(const struct rw_groups *g)
{
    return rw_groups_weight(g) + (g->given ? 4 : 2);
}

/* A piece of x: channels [first, first + c) of all. begin() is the first of `left`, next() goes on until none is. */
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

/* Of statistics and of what is computed in. */
static inline rw_dtype rw_groups_wide(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

/* Where backward's pieces of x begin, behind a bias or without one. */
static inline int rw_groups_backward_x(bool relu)
{
    return relu ? 5 : 4;
}

/* Numbers in the workspace for each segment and channel, beside five per block, two of them in double, where anything
   is summed up. */
#define RW_GROUPS_LINES 4
#define RW_GROUPS_LINES_OF_RELU 6 /* in backward; even, so that what follows them is aligned */

/* Bytes, of numbers of `size` bytes. */
static inline int64_t rw_groups_workspace(const struct rw_groups *g, int64_t lines, bool sums, int64_t size)
{
    return (lines * size + (sums ? g->blocks * (2 * (int64_t)sizeof(double) + 3 * size) : 0)) * g->segments * g->c;
}

/* What rounds to 0 in a type whose results are rounded from float32: the largest such number. */
static inline float rw_groups_rounds_to_zero(rw_dtype dtype)
{
    return dtype == RW_BF16 ? 0x1p-134f : dtype == RW_F16 ? 0x1p-25f : 0;
}

struct rw_running_attrs {
    double momentum; /* 0: a share of all batches, whose number is counted up */
    double unbiased; /* n / (n - 1) */
};

#endif
