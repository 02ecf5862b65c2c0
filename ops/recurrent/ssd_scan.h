/*
 * Shared by the checks and kernels of ssd_scan. C11 and C++17.
 *
 *     ssd_scan       (x, dt, a, b, c [, state]) -> y, state after the last place
 *     ssd_scan_grad  (x, dt, a, b, c [, state] [, dy] [, dstate]) -> dx, ddt, da, db, dc [, dstate before the first]
 *
 * The sequence is processed in chunks of q places (Dao and Gu, arXiv 2405.21060, section 6). Within a chunk s[i] is the
 * sum of dt a from its first place to place i, so a term added at j has decayed by exp(s[i] - s[j]) at i. For one head:
 *
 *              places of b, x                              [p, n]
 *             +----------+              state before H ---------------+
 *      places | \        |                    |                       |
 *      of c   |   \  0   |              y[i] += exp(s[i]) H c[i]      |  H' = exp(s[last]) H
 *             | m   \    |                                            |       + sum over j of exp(s[last] - s[j])
 *             |       \  |              y[i] += sum over j of m x'[j] |         x'[j] b[j]^T
 *             +----------+                                            v
 *             m[i][j] = (c[i] b[j]) exp(s[i] - s[j]),  x'[j] = dt[j] x[j]      to the next chunk
 *
 * Backward processes the chunks from the last to the first with dH', the gradient of the state after a chunk:
 *
 *     dx'[j] = sum over i of m[i][j] dy[i] + exp(s[last] - s[j]) dH' b[j]
 *     dm = dy x'^T,   dscores = dm exp(s[i] - s[j]), added up over the heads of a group
 *     dc = dscores b + exp(s[i]) H^T dy[i],   db = dscores^T c + exp(s[last] - s[j]) dH'^T x'[j]
 *     dH = exp(s[last]) dH' + sum over i of exp(s[i]) dy[i] c[i]^T
 *     ds[i] = row i of dm m minus its column i, and the gradients of the exponentials outside of m;
 *     the gradient of dt[t] a is the sum of ds from t to the chunk's end.
 *
 * After a step dt a that is large compared with the others, the decay is a difference of two sums of its magnitude. To
 * preserve precision, a sum is two numbers, the second of which is the rounding error of the first, and differences
 * subtract both: see rw_ssd_add().
 *
 * Only operands are kept: backward recomputes the states before the chunks, in its workspace. Only the part of m that
 * belongs to one chunk ever exists.
 */
#ifndef RW_OPS_RECURRENT_SSD_SCAN_H
#define RW_OPS_RECURRENT_SSD_SCAN_H

#include "base/host_device.h"

#include <rewind/op.h>
#include <rewind/recurrent.h>

struct rw_ssd_attrs {
    int64_t chunk;             /* places of a chunk, at least 1 */
    int64_t state, dy, dstate; /* which optional inputs are present; the last two are those of ssd_scan_grad */
};

enum { SSD_X, SSD_DT, SSD_A, SSD_B, SSD_C, SSD_OPERANDS };

struct rw_ssd {
    int64_t b, l, h, p, g, n; /* batch, length, heads, width of a head, groups, width of a state */
    int64_t q, chunks, r;     /* places of a chunk, chunks, heads of a group */
    int state, dy, dstate;    /* input indices; -1: absent */
};

static inline struct rw_ssd rw_ssd_of(const rw_layout *x, const rw_layout *b, const struct rw_ssd_attrs *a)
{
    struct rw_ssd s;
    int next = SSD_OPERANDS;
    s.b = x->dim[0], s.l = x->dim[1], s.h = x->dim[2], s.p = x->dim[3], s.g = b->dim[2], s.n = b->dim[3];
    s.q = a->chunk < s.l ? a->chunk : s.l ? s.l : 1;
    s.chunks = s.l / s.q + (s.l % s.q != 0);
    s.r = s.g ? s.h / s.g : 0;
    s.state = a->state ? next++ : -1;
    s.dy = a->dy ? next++ : -1;
    s.dstate = a->dstate ? next++ : -1;
    return s;
}

/* The number of places of chunk c. */
static inline int64_t rw_ssd_places(const struct rw_ssd *s, int64_t c)
{
    const int64_t rest = s->l - c * s->q;
    return rest < s->q ? rest : s->q;
}

/*
 * The maximum magnitude of a step dt a; larger ones are clipped. The recurrence is finite only while no exponential of
 * a step overflows, so its steps are below 710. Whatever has passed a step below minus this maximum is then at most
 * exp(-1024), which is 0 in every type. With clipped steps no sum is infinite, and no difference of sums is NaN.
 */
RW_HOST_DEVICE double rw_ssd_most(int64_t q)
{
    return 1024 * ((double)q + 1);
}

/* A sum of steps, and its rounding error. */
struct rw_ssd_sum {
    double all, rest;
};

/* Adds a step, clipped to `most` (Knuth's TwoSum). */
RW_HOST_DEVICE struct rw_ssd_sum rw_ssd_add(struct rw_ssd_sum s, double step, double most)
{
    const double x = step < -most ? -most : step > most ? most : step;
    const double all = s.all + x, part = all - s.all;
    const struct rw_ssd_sum sum = { all, s.rest + ((s.all - (all - part)) + (x - part)) };
    return sum;
}

/* Does the state decay to 0 in such a step? Then the step has no gradient; computed as a sum of terms that cancel, it
   would be only approximately 0. */
RW_HOST_DEVICE bool rw_ssd_forgets(double step, double most)
{
    return step < -most;
}

/* On the CPU this number of heads of a group is one part: they share the scores of a chunk. Each part has its own sums
   of db and dc in the workspace, which are added in order. */
#define RW_SSD_HEADS 4

static inline int64_t rw_ssd_parts(const struct rw_ssd *s)
{
    return (s->r + RW_SSD_HEADS - 1) / RW_SSD_HEADS;
}

/* The number of threads that have a part to process: each needs its own workspace. */
static inline int rw_ssd_threads(const struct rw_ssd *s, int threads)
{
    const int64_t units = s->b * s->g * rw_ssd_parts(s);
    return units < 1 ? 1 : units < threads ? (int)units : threads;
}

/* Sides of the tiles on the CPU: whole vectors of every type. */
#define RW_SSD_SIDE 16

static inline int64_t rw_ssd_side(int64_t n)
{
    return (n + RW_SSD_SIDE - 1) / RW_SSD_SIDE * RW_SSD_SIDE;
}

/* Elements of a thread's workspace on the CPU, in the type of sums: see ssd_scan_tmpl.h. */
static inline int64_t rw_ssd_forward_elements(const struct rw_ssd *s)
{
    const int64_t q = rw_ssd_side(s->q), p = rw_ssd_side(s->p), n = rw_ssd_side(s->n);
    return 3 * q * n + 2 * q * q + 2 * q * p + RW_SSD_HEADS * n * p + 5 * q;
}

static inline int64_t rw_ssd_backward_elements(const struct rw_ssd *s)
{
    const int64_t q = rw_ssd_side(s->q), p = rw_ssd_side(s->p), n = rw_ssd_side(s->n);
    return 7 * q * n + 3 * q * q + 5 * q * p + RW_SSD_HEADS * (s->chunks + 1) * n * p + 7 * q + q * n;
}

/* Elements of the sums that threads share: da for each batch and head, db and dc for each part. */
static inline int64_t rw_ssd_shared_elements(const struct rw_ssd *s)
{
    return s->b * s->h + 2 * s->b * s->g * rw_ssd_parts(s) * s->l * s->n;
}

/* The gradient of ssd_scan, composed of ops that have gradients themselves. */
rw_status rw_ssd_grad_again(rw_grad_call *g);

#endif
