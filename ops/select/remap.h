/*
 * Elements along one axis moved to other places by a rule, or by a list of places: flips, rolls, pads that copy from
 * within, rows by index. The way back adds up what an element was copied to, in the order of the places. What the
 * definitions and the kernels share. C11 and C++17.
 */
#ifndef RW_OPS_REMAP_H
#define RW_OPS_REMAP_H

#include "base/host_device.h"

#include <rewind/op.h>

enum rw_remap_mode {
    RW_REMAP_FLIP,
    RW_REMAP_ROLL,
    RW_REMAP_REFLECT,
    RW_REMAP_REPLICATE,
    RW_REMAP_CIRCULAR,
    RW_REMAP_WINDOWS /* back alone: from [outer, to, inner, size] */
};

/* An axis of `from` elements becomes one of `to`: element `before` of it is element 0. */
struct rw_remap_attrs {
    int64_t mode, axis, from, to, before;
    int64_t size, step; /* of windows */
};

/* Where place j of the result comes from. */
RW_HOST_DEVICE int64_t rw_remap_source(const struct rw_remap_attrs *a, int64_t j)
{
    const int64_t n = a->from, i = j - a->before;
    switch (a->mode) {
    case RW_REMAP_FLIP: return n - 1 - j;
    case RW_REMAP_REFLECT: return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
    case RW_REMAP_REPLICATE: return i < 0 ? 0 : i >= n ? n - 1 : i;
    default: return i < 0 ? i + n : i >= n ? i - n : i;
    }
}

/* The smaller of two places behind `last`; -1 stands for none. */
RW_HOST_DEVICE int64_t rw_remap_nearer(int64_t place, int64_t last, int64_t end, int64_t best)
{
    return place > last && place < end && (best < 0 || place < best) ? place : best;
}

/* The next place behind `last` that element i was copied to; -1 when there is none. Begins with last = -1. */
RW_HOST_DEVICE int64_t rw_remap_next(const struct rw_remap_attrs *a, int64_t i, int64_t last)
{
    const int64_t n = a->from, own = i + a->before;
    int64_t first, end, best = -1;
    switch (a->mode) {
    case RW_REMAP_REFLECT:
        best = rw_remap_nearer(own, last, a->to, best);
        if (i > 0) best = rw_remap_nearer(a->before - i, last, a->before, best);
        if (i < n - 1) best = rw_remap_nearer(a->before + 2 * (n - 1) - i, last, a->to, best);
        return best;
    case RW_REMAP_CIRCULAR:
        for (int turn = -1; turn < 2; turn++) best = rw_remap_nearer(own + turn * n, last, a->to, best);
        return best;
    case RW_REMAP_REPLICATE:
        first = i == 0 ? 0 : own;
        end = i == n - 1 ? a->to : own + 1;
        break;
    default: /* windows: of number w, whose first element is w step */
        first = i < a->size ? 0 : (i - a->size) / a->step + 1;
        end = i / a->step + 1 < a->to ? i / a->step + 1 : a->to;
    }
    if (last >= first) first = last + 1;
    return first < end ? first : -1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Records the sums of what each element was copied to. */
rw_tensor *rw_remap_back(rw_tape *t, rw_tensor *dy, const struct rw_remap_attrs *a);

#ifdef __cplusplus
}
#endif

#endif
