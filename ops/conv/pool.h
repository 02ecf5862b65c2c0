/*
 * Shared by the checks and kernels of pooling. C11 and C++17. Images are [n, h, w, c] and dense, as in conv.h.
 *
 * Each op is linear except for the choice of a maximum. A maximum is kept as its position within the window, one byte
 * for each element, in words of RW_I32:
 *
 *     max_pool2d           x -> y, place
 *     max_pool2d_backward  (place, dy) -> dx      an input element sums the contributions of the windows over it
 *     max_pool2d_pick      (u, place) -> y        the gradient of that
 *     avg_pool2d           x -> y
 *     avg_pool2d_backward  dy -> dx
 */
#ifndef RW_OPS_CONV_POOL_H
#define RW_OPS_CONV_POOL_H

#include "base/host_device.h"

#include <rewind/op.h>

#define RW_POOL_PLACES 256 /* maximum number of elements of a window: positions are bytes */

struct rw_pool_attrs {
    int64_t result_extent[2]; /* h, w of a dx */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t exclude;     /* padding does not count in an average */
    int64_t up;          /* a last window that begins within the image counts, even if it is incomplete */
    int64_t divisor;     /* of an average; 0: the number of elements that count in the window */
    int64_t adaptive[2]; /* h, w of a result with even windows, the largest of which is `kernel`. 0: not adaptive */
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

/* Words for the positions of this number of elements. */
static inline int64_t rw_pool_words(int64_t elements)
{
    return (elements + 3) / 4;
}

/* Along axis i: the input elements in a window, and the windows over an input element. */
struct rw_pool_range {
    int64_t from, to;
};

/* Start of a window; may be before the image. */
RW_HOST_DEVICE int64_t rw_pool_begin(const struct rw_pool *p, int i, int64_t out)
{
    if (p->a.adaptive[i]) return out * (i ? p->w : p->h) / p->a.adaptive[i];
    return out * p->a.stride[i] - p->a.padding[i];
}

/* End of a window; may be after the image. */
RW_HOST_DEVICE int64_t rw_pool_end(const struct rw_pool *p, int i, int64_t out)
{
    const int64_t windows = p->a.adaptive[i];
    if (windows) return ((out + 1) * (i ? p->w : p->h) + windows - 1) / windows;
    return rw_pool_begin(p, i, out) + (p->a.kernel[i] - 1) * p->a.dilation[i] + 1;
}

/* Elements from `from` on, one dilation apart. */
RW_HOST_DEVICE struct rw_pool_range rw_pool_inside(const struct rw_pool *p, int i, int64_t out)
{
    const int64_t begin = rw_pool_begin(p, i, out), end = rw_pool_end(p, i, out), most = i ? p->w : p->h;
    const int64_t apart = p->a.dilation[i], before = begin < 0 ? (apart - 1 - begin) / apart * apart : 0;
    const struct rw_pool_range r = { begin + before, end < most ? end : most };
    return r;
}

/* If windows have gaps, the element may be in a gap of some of these: see rw_pool_place(). */
RW_HOST_DEVICE struct rw_pool_range rw_pool_over(const struct rw_pool *p, int i, int64_t in)
{
    const int64_t most = i ? p->ow : p->oh, windows = p->a.adaptive[i], extent = i ? p->w : p->h;
    if (windows) {
        const struct rw_pool_range even = { in * windows / extent, ((in + 1) * windows + extent - 1) / extent };
        return even;
    }
    const int64_t at = in + p->a.padding[i], first = at - (p->a.kernel[i] - 1) * p->a.dilation[i];
    const int64_t last = at / p->a.stride[i] + 1;
    const struct rw_pool_range r = { first <= 0 ? 0 : (first + p->a.stride[i] - 1) / p->a.stride[i],
                                     last < most ? last : most };
    return r;
}

/* Position of an input element in a window over it, both along one axis; -1: the element is in a gap. */
RW_HOST_DEVICE int64_t rw_pool_place(const struct rw_pool *p, int i, int64_t out, int64_t in)
{
    const int64_t from = in - rw_pool_begin(p, i, out), apart = p->a.dilation[i];
    if (apart == 1) return from;
    return from % apart ? -1 : from / apart;
}

/* The input element at a position of a window; outside of the image if the whole window is in the padding. */
RW_HOST_DEVICE int64_t rw_pool_at(const struct rw_pool *p, int i, int64_t out, int64_t place)
{
    return rw_pool_begin(p, i, out) + place * p->a.dilation[i];
}

/* Elements of an average's window along an axis: padding counts, the part of a last window beyond the padding does
   not. */
RW_HOST_DEVICE int64_t rw_pool_counted(const struct rw_pool *p, int i, int64_t out)
{
    const struct rw_pool_range inside = rw_pool_inside(p, i, out);
    if (p->a.exclude || p->a.adaptive[i]) return inside.to - inside.from;
    const int64_t begin = rw_pool_begin(p, i, out), most = (i ? p->w : p->h) + p->a.padding[i];
    return (begin + p->a.kernel[i] < most ? begin + p->a.kernel[i] : most) - begin;
}

/* The divisor of a window's sum. */
RW_HOST_DEVICE int64_t rw_pool_count(const struct rw_pool *p, int64_t oy, int64_t ox)
{
    if (p->a.divisor) return p->a.divisor;
    if (!p->a.exclude && !p->a.up && !p->a.adaptive[0]) return p->a.kernel[0] * p->a.kernel[1];
    return rw_pool_counted(p, 0, oy) * rw_pool_counted(p, 1, ox);
}

#endif
