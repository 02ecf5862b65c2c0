/* CPU kernels of optimizer updates: one pass over a parameter, its gradient and its states, element by element. */
#include "base/float_mode.h"
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/optim/stochastic_rounding.h"
#include "ops/optim/update.h"
#include "ops/optim/update_doubles.h"
#include "ops/random/philox_vec.h"

#include <string.h>

#define BLOCK 4096

/* -1, 0 or 1; NaN stays NaN. */
VEC_INLINE nf sign_of(nf x)
{
    const nf no = { 0 };
    return nf_select(x > no, nf_all(1), nf_select(x < no, nf_all(-1), x));
}

#define V nf
#define INLINE VEC_INLINE
#define SQRT(x) nf_sqrt(x)
#define SIGN(x) sign_of(x)
#include "ops/optim/update_tmpl.h"

/* ---- sums over the elements of an update: enum rw_update_sum ---- */

/* Sums over some elements, lane by lane. */
struct seen {
    nd gradient, weight, change;
    ni zeros; /* counted downwards */
};

/* The lower half of the lanes, and the upper one. */
VEC_INLINE nd lower(nf x)
{
#if defined(RW_ISA_IS_V4)
    return (nd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
#elif defined(RW_ISA_IS_V3)
    return (nd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
#else
    return (nd){ (double)x[0], (double)x[1] };
#endif
}

VEC_INLINE nd upper(nf x)
{
#if defined(RW_ISA_IS_V4)
    return (nd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(RW_ISA_IS_V3)
    return (nd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#else
    return (nd){ (double)x[2], (double)x[3] };
#endif
}

VEC_INLINE void see_half(struct seen *s, nd g, nd before, nd after)
{
    const nd change = after - before;
    s->gradient = nd_fma(g, g, s->gradient);
    s->weight = nd_fma(after, after, s->weight);
    s->change = nd_fma(change, change, s->change);
}

/* Adds gradients and weights before and after the update: of n lanes, or of all. Lanes from n on are 0 before the
   update. */
VEC_INLINE void see(struct seen *s, nf g, nf before, nf after, int64_t n, bool whole)
{
    ni zeros = g == nf_all(0);
    for (int l = 0; !whole && l < NF_LANES; l++)
        if (l >= n) after[l] = 0, zeros[l] = 0;
    see_half(s, lower(g), lower(before), lower(after));
    see_half(s, upper(g), upper(before), upper(after));
    s->zeros += zeros;
}

VEC_INLINE double add_lanes(nd x)
{
    double sum = 0;
    for (int l = 0; l < ND_LANES; l++) sum += x[l];
    return sum;
}

VEC_INLINE void add_seen(const struct seen *s, double *ret)
{
    ret[RW_SUM_GRADIENT] = add_lanes(s->gradient);
    ret[RW_SUM_WEIGHT] = add_lanes(s->weight);
    ret[RW_SUM_CHANGE] = add_lanes(s->change);
    ret[RW_SUM_ZEROS] = 0;
    for (int l = 0; l < NF_LANES; l++) ret[RW_SUM_ZEROS] -= s->zeros[l];
}

/* ---- updates of some elements of a parameter. sums: NULL, or the destination of their sums ---- */

static void update_f64(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                       int64_t n, double *sums)
{
    double *const p = t->param, *const a = t->state[0], *const b = t->state[1];
    const double *const g = t->grad;
    for (int j = 0; sums && j < RW_SUM_ELEMENTS; j++) sums[j] = 0;
    for (int64_t i = from; i < from + n; i++) {
        const double before = p[i];
        p[i] = rw_update_doubles(rule, s, before, g[i], a ? &a[i] : NULL, b ? &b[i] : NULL);
        if (!sums) continue;
        sums[RW_SUM_GRADIENT] += g[i] * g[i];
        sums[RW_SUM_WEIGHT] += p[i] * p[i];
        sums[RW_SUM_CHANGE] += (p[i] - before) * (p[i] - before);
        sums[RW_SUM_ZEROS] += g[i] == 0;
    }
}

/* The constants for which a loop over floats is compiled. */
struct how {
    int rule;
    bool with_a;
    rw_dtype moments;     /* the type of all states except the master copy */
    rw_dtype dtype, grad; /* of the parameter, of its gradient */
    bool by_chance;       /* stochastic rounding: a bfloat16 parameter without a master copy */
};

VEC_INLINE bool is_noisy(struct how h)
{
    return h.by_chance || h.moments == RW_BF16;
}

/* Rounds x to bfloat16 stochastically, with 16 bits of noise; stored as float. */
VEC_INLINE nf rounded_by_chance(nf x, nu noise)
{
    const nu up = (nu)x + noise;
    const ni nearest = (ni)((up & RW_NOISE_EXPONENT) == RW_NOISE_EXPONENT) | (ni)(x != x);
    return nf_select(nearest, x, (nf)(up & RW_NOISE_KEPT));
}

/* Updates n <= NF_LANES elements of a float32 or 16-bit parameter, in float32. noise: one word per element, if rounding
   is stochastic. seen: NULL, or the sums to add to. Called in one place, for whole vectors and for the last elements,
   because it is compiled a hundred times. */
VEC_INLINE void update_lanes(struct how h, const struct rw_update_tensor *t, const struct rw_update_row *s,
                             const uint32_t *noise, int64_t i, int64_t n, struct seen *seen)
{
    const bool whole = n == NF_LANES, narrow = h.dtype != RW_F32 && !h.by_chance, with_b = h.rule == RW_UPDATE_ADAM;
    void *const to = narrow ? t->master : t->param;
    const rw_dtype of_to = narrow ? RW_F32 : h.dtype;
    nu words = { 0 };
    if (is_noisy(h)) words = *(const nu *)noise;
#define GET(p, type) (whole ? nf_get(p, type, i) : nf_get_rest(p, type, i, n))
#define PUT(p, type, x) (whole ? nf_put(p, type, i, x) : nf_put_rest(p, type, i, n, x))
    const nf g = GET(t->grad, h.grad);
    nf a = { 0 }, b = { 0 };
    if (h.with_a) a = GET(t->state[0], h.moments);
    if (with_b) b = GET(t->state[1], h.moments);
    const nf before = narrow && s->fresh ? GET(t->param, h.dtype) : GET(to, of_to);
    nf x = rw_update_floats(h.rule, s, before, g, &a, &b, h.with_a);
    if (with_b && h.moments == RW_BF16) b = rounded_by_chance(b, words & RW_NOISE_OF_MOMENT);
    if (h.with_a) PUT(t->state[0], h.moments, a);
    if (with_b) PUT(t->state[1], h.moments, b);
    if (h.by_chance) x = rounded_by_chance(x, words >> 16);
    PUT(to, of_to, x);
    if (narrow) PUT(t->param, h.dtype, x);
    if (seen) see(seen, g, before, h.by_chance ? nf_of_bf16(nf_to_bf16(x)) : x, n, whole);
#undef GET
#undef PUT
}

#define NOISE 512 /* words; a multiple of the number in a group of Philox blocks */

/* The words of rw_noise_of() for n elements; writes words for some elements beyond them, too. */
static void make_noise(const struct rw_update_row *s, int64_t from, int64_t n, uint32_t *noise)
{
    for (int64_t i = 0; i < n; i += 4 * PHILOX_LANES)
        philox_group_of(s->seed, (s->from + (uint64_t)(from + i)) / 4, s->stream, s->step, noise + i);
}

/* from is a multiple of 4. */
VEC_INLINE void update_f32(struct how h, const struct rw_update_tensor *t, const struct rw_update_row *row,
                           int64_t from, int64_t n, double *sums)
{
    const struct rw_update_row s = *row;
    const int64_t at_once = is_noisy(h) ? NOISE : n;
    struct seen seen = { 0 };
    uint32_t noise[NOISE];
    for (int64_t i = 0; i < n; i += at_once) {
        const int64_t some = n - i < at_once ? n - i : at_once;
        if (is_noisy(h)) make_noise(&s, from + i, some, noise);
        for (int64_t l = 0; l < some; l += NF_LANES) {
            const int64_t lanes = some - l < NF_LANES ? some - l : NF_LANES;
            update_lanes(h, t, &s, noise + l, from + i + l, lanes, sums ? &seen : NULL);
        }
    }
    if (sums) add_seen(&seen, sums);
}

/* Selects the loop by the types of a parameter and its gradient. */
VEC_INLINE void update_typed(int rule, bool with_a, rw_dtype moments, const struct rw_update_tensor *t,
                             const struct rw_update_row *s, int64_t from, int64_t n, double *sums)
{
    const rw_dtype g = t->grad_dtype;
    const bool by_chance = t->dtype == RW_BF16 && !t->master;
#define FLOATS(is, of, by) update_f32((struct how){ rule, with_a, moments, is, of, by }, t, s, from, n, sums)
    if (t->dtype == RW_F64) update_f64(rule, t, s, from, n, sums);
    else if (by_chance && g == RW_F32) FLOATS(RW_BF16, RW_F32, true);
    else if (by_chance) FLOATS(RW_BF16, RW_BF16, true);
    else if (t->dtype == RW_BF16 && g == RW_F32) FLOATS(RW_BF16, RW_F32, false);
    else if (t->dtype == RW_BF16) FLOATS(RW_BF16, RW_BF16, false);
    else if (t->dtype == RW_F16 && g == RW_F32) FLOATS(RW_F16, RW_F32, false);
    else if (t->dtype == RW_F16) FLOATS(RW_F16, RW_F16, false);
    else if (rule == RW_UPDATE_AVERAGE && g == RW_BF16) FLOATS(RW_F32, RW_BF16, false);
    else if (rule == RW_UPDATE_AVERAGE && g == RW_F16) FLOATS(RW_F32, RW_F16, false);
    else FLOATS(RW_F32, RW_F32, false);
#undef FLOATS
}

/* Separate loops with and without sums. */
VEC_INLINE void update_ruled(int rule, bool with_a, rw_dtype moments, const struct rw_update_tensor *t,
                             const struct rw_update_row *s, int64_t from, int64_t n, double *sums)
{
    if (sums) update_typed(rule, with_a, moments, t, s, from, n, sums);
    else update_typed(rule, with_a, moments, t, s, from, n, NULL);
}

/* Updates elements from `from` on, a multiple of 4, at most BLOCK. */
static void update_elements(struct rw_update_attrs attrs, const struct rw_update_tensor *t,
                            const struct rw_update_row *s, int64_t from, double *sums)
{
    const int64_t n = t->n - from < BLOCK ? t->n - from : BLOCK;
    switch (attrs.rule) {
    case RW_UPDATE_ADAM:
        if (attrs.moments == RW_BF16) update_ruled(RW_UPDATE_ADAM, true, RW_BF16, t, s, from, n, sums);
        else update_ruled(RW_UPDATE_ADAM, true, RW_F32, t, s, from, n, sums);
        break;
    case RW_UPDATE_LION: update_ruled(RW_UPDATE_LION, true, RW_F32, t, s, from, n, sums); break;
    case RW_UPDATE_SGD:
        if (t->state[0]) update_ruled(RW_UPDATE_SGD, true, RW_F32, t, s, from, n, sums);
        else update_ruled(RW_UPDATE_SGD, false, RW_F32, t, s, from, n, sums);
        break;
    default: update_typed(RW_UPDATE_AVERAGE, false, RW_F32, t, s, from, n, NULL);
    }
}

/*
 * Flushes subnormal numbers to zero. The moments of a weight without gradients decay by a tenth in each step and would
 * end at the smallest subnormal numbers, where rounding keeps them. Updates of such weights would take ten times as
 * long.
 */
static void update_block(struct rw_update_attrs attrs, const struct rw_update_tensor *t, const struct rw_update_row *s,
                         int64_t from, double *sums)
{
    const unsigned before = rw_flush_enter();
    update_elements(attrs, t, s, from, sums);
    rw_flush_leave(before);
}

/* Blocks of one tensor from element `from` on; part: the destination of each block's sums, or NULL. */
struct update {
    struct rw_update_attrs attrs;
    const struct rw_update_tensor *t;
    const struct rw_update_row *s;
    int64_t from;
    double (*part)[RW_SUM_ELEMENTS];
};

static void update_blocks(void *of, int64_t first, int64_t end)
{
    const struct update *const u = of;
    for (int64_t b = first; b < end; b++)
        update_block(u->attrs, u->t, u->s, u->from + b * BLOCK, u->part ? u->part[b] : NULL);
}

static int threads_for(const struct rw_update_tensor *t, int threads)
{
    return t->n >= RW_PARALLEL_FROM ? threads : 1;
}

static void update(struct rw_update_attrs attrs, const struct rw_update_tensor *t, const struct rw_update_row *s,
                   int threads)
{
    struct update u = { .attrs = attrs, .t = t, .s = s };
    rw_team_for(threads_for(t, threads), (t->n + BLOCK - 1) / BLOCK, update_blocks, &u);
}

/* The parameter's elements from the row's first one on. */
static struct rw_update_tensor part_of(struct rw_update_tensor t, const struct rw_update_row *s)
{
    t.param = (char *)t.param + s->from * rw_dtype_size(t.dtype);
    if (t.grad) t.grad = (const char *)t.grad + s->from * rw_dtype_size(t.grad_dtype);
    return t;
}

#define PARTS 1024 /* blocks whose sums are kept at a time */

/* The same result for any number of threads, like update() itself. */
static void update_and_sum(struct rw_update_attrs attrs, const struct rw_update_tensor *t,
                           const struct rw_update_row *s, int threads, double *ret)
{
    double part[PARTS][RW_SUM_ELEMENTS];
    struct update u = { .attrs = attrs, .t = t, .s = s, .part = part };
    for (; u.from < t->n; u.from += (int64_t)BLOCK * PARTS) {
        const int64_t rest = (t->n - u.from + BLOCK - 1) / BLOCK, blocks = rest < PARTS ? rest : PARTS;
        rw_team_for(threads_for(t, threads), blocks, update_blocks, &u);
        for (int64_t b = 0; b < blocks; b++)
            for (int j = 0; j < RW_SUM_ELEMENTS; j++) ret[j] += part[b][j];
    }
    ret[RW_SUM_ELEMENTS] = (double)t->n;
}

/* Updates all parameters of a node, in order. */
rw_status RW_ISA_NAME(rw_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_update_cpu)(const rw_kernel *k)
{
    const struct rw_update_row *const rows = k->in[0].data;
    const struct rw_update_attrs attrs = rw_update_attrs_of(k);
    const int n = rw_update_n(k);
    const bool all = rw_update_all_have_masters(k, n);
    double *const sums = rw_update_sums_of(k);
    int masters = 0;
    if (sums) memset(sums, 0, (size_t)n * RW_UPDATE_SUMS * sizeof *sums);
    for (int i = 0; i < n; i++) {
        const struct rw_update_tensor t = part_of(rw_update_tensor_of(k, n, i, all, &masters), &rows[i]);
        if (!t.grad || rows[i].skips) continue;
        if (sums) update_and_sum(attrs, &t, &rows[i], k->threads, sums + (size_t)i * RW_UPDATE_SUMS);
        else update(attrs, &t, &rows[i], k->threads);
    }
    return RW_OK;
}
