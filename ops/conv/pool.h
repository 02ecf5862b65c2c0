/*
 * What the checks and kernels of pooling share. C11 and C++17. Images are [n, h, w, c] and dense, as in conv.h.
 *
 * Each op is linear but for the choice of a maximum, and a maximum is kept as its place within the window, a byte for
 * each element, in words of RW_I32:
 *
 *     max_pool2d           x -> y, place
 *     max_pool2d_backward  (place, dy) -> dx      an input element adds up what the windows over it have for it
 *     max_pool2d_pick      (u, place) -> y        the gradient of that
 *     avg_pool2d           x -> y
 *     avg_pool2d_backward  dy -> dx
 */
#ifndef RW_OPS_CONV_POOL_H
#define RW_OPS_CONV_POOL_H

#include <rewind/op.h>

#define RW_POOL_PLACES 256 /* most elements of a window: a place is a byte */

struct rw_pool_attrs {
    int64_t made[2]; /* h, w of a dx */
    int64_t kernel[2], stride[2], padding[2];
    int64_t exclude; /* what lies outside of the image does not count in an average */
};

enum rw_pool_kind { RW_POOL_MAX, RW_POOL_MAX_BACKWARD, RW_POOL_PICK, RW_POOL_AVG, RW_POOL_AVG_BACKWARD };

struct rw_pool {
    int64_t n, h, w, c, oh, ow;
    struct rw_pool_attrs a;
};

static inline struct rw_pool rw_pool_of(const rw_kernel *k, enum rw_pool_kind kind)
{
    const bool backward = kind == RW_POOL_MAX_BACKWARD || kind == RW_POOL_AVG_BACKWARD;
    const rw_layout *const dy = k->in[kind == RW_POOL_MAX_BACKWARD].layout;
    const rw_layout *const x = backward ? k->out[0].layout : k->in[0].layout, *const y = backward ? dy
                                                                                                 : k->out[0].layout;
    struct rw_pool p;
    p.n = x->dim[0], p.h = x->dim[1], p.w = x->dim[2], p.c = x->dim[3];
    p.oh = y->dim[1], p.ow = y->dim[2];
    p.a = *(const struct rw_pool_attrs *)k->attrs;
    return p;
}

/* Words of the places of so many elements. */
static inline int64_t rw_pool_words(int64_t elements)
{
    return (elements + 3) / 4;
}

/* Along axis i: the input elements that lie in a window, and the windows that lie over an input element. */
struct rw_pool_range {
    int64_t from, to;
};

static inline struct rw_pool_range rw_pool_inside(const struct rw_pool *p, int i, int64_t out)
{
    const int64_t begin = out * p->a.stride[i] - p->a.padding[i], end = begin + p->a.kernel[i], most = i ? p->w : p->h;
    const struct rw_pool_range r = { begin < 0 ? 0 : begin, end < most ? end : most };
    return r;
}

static inline struct rw_pool_range rw_pool_over(const struct rw_pool *p, int i, int64_t in)
{
    const int64_t at = in + p->a.padding[i], first = at - p->a.kernel[i] + 1, most = i ? p->ow : p->oh;
    const int64_t last = at / p->a.stride[i] + 1;
    const struct rw_pool_range r = { first <= 0 ? 0 : (first + p->a.stride[i] - 1) / p->a.stride[i],
                                     last < most ? last : most };
    return r;
}

/* The place of an input element in a window, both along an axis. */
static inline int64_t rw_pool_place(const struct rw_pool *p, int i, int64_t out, int64_t in)
{
    return in + p->a.padding[i] - out * p->a.stride[i];
}

/* What a window's sum is divided by. */
static inline double rw_pool_count(const struct rw_pool *p, int64_t oy, int64_t ox)
{
    if (!p->a.exclude) return (double)(p->a.kernel[0] * p->a.kernel[1]);
    const struct rw_pool_range y = rw_pool_inside(p, 0, oy), x = rw_pool_inside(p, 1, ox);
    return (double)((y.to - y.from) * (x.to - x.from));
}

#endif
