/* Updates of parameters: one pass over a parameter, its gradient and its states, each element by itself. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/optim/noise.h"
#include "ops/optim/update.h"
#include "ops/optim/update_doubles.h"
#include "ops/random/philox_vec.h"

#include <string.h>

#define BLOCK 4096

/* -1, 0, 1; a NaN stays one. */
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

static void update_f64(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                       int64_t n)
{
    double *const p = t->param, *const a = t->state[0], *const b = t->state[1];
    for (int64_t i = from; i < from + n; i++)
        p[i] = rw_update_doubles(rule, s, p[i], ((const double *)t->grad)[i], a ? &a[i] : NULL, b ? &b[i] : NULL);
}

/* As a bfloat16 beside x, by the noise of these elements. */
VEC_INLINE nf rounded_by_chance(nf x, const uint32_t *noise)
{
    const nu up = (nu)x + (*(const nu *)noise >> 16);
    const ni nearest = (ni)((up & RW_NOISE_EXPONENT) == RW_NOISE_EXPONENT) | (ni)(x != x);
    return nf_select(nearest, x, (nf)(up & RW_NOISE_KEPT));
}

/* n <= NF_LANES elements of a float32 or 16-bit parameter; the arithmetic is float32's. noise: that of a parameter
   without a master copy, else NULL. */
VEC_INLINE void update_lanes(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, rw_dtype dtype,
                             rw_dtype of_grad, bool with_a, const uint32_t *noise, int64_t i, int64_t n, bool whole)
{
    const bool narrow = dtype != RW_F32 && !noise, with_b = rule == RW_UPDATE_ADAM;
    void *const to = narrow ? t->master : t->param;
    const rw_dtype of_to = noise ? dtype : RW_F32;
#define GET(p, type) (whole ? nf_get(p, type, i) : nf_get_some(p, type, i, n))
#define PUT(p, type, x) (whole ? nf_put(p, type, i, x) : nf_put_some(p, type, i, n, x))
    const nf g = GET(t->grad, of_grad);
    nf a = { 0 }, b = { 0 };
    if (with_a) a = GET(t->state[0], RW_F32);
    if (with_b) b = GET(t->state[1], RW_F32);
    const nf before = narrow && s->fresh ? GET(t->param, dtype) : GET(to, of_to);
    nf x = rw_update_floats(rule, s, before, g, &a, &b, with_a);
    if (with_a) PUT(t->state[0], RW_F32, a);
    if (with_b) PUT(t->state[1], RW_F32, b);
    if (noise) x = rounded_by_chance(x, noise);
    PUT(to, of_to, x);
    if (narrow) PUT(t->param, dtype, x);
#undef GET
#undef PUT
}

VEC_INLINE void update_f32(int rule, const struct rw_update_tensor *t, const struct rw_update_row *row, rw_dtype dtype,
                           rw_dtype of_grad, bool with_a, int64_t from, int64_t n)
{
    const struct rw_update_row s = *row;
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES)
        update_lanes(rule, t, &s, dtype, of_grad, with_a, NULL, from + i, NF_LANES, true);
    if (i < n) update_lanes(rule, t, &s, dtype, of_grad, with_a, NULL, from + i, n - i, false);
}

/* Of bfloat16, rounded by chance. from is a multiple of 4. */
VEC_INLINE void update_noisy(int rule, const struct rw_update_tensor *t, const struct rw_update_row *row,
                             rw_dtype of_grad, bool with_a, int64_t from, int64_t n)
{
    const struct rw_update_row s = *row;
    uint32_t noise[4 * PHILOX_LANES]; /* what rw_noise_of() gives, of several blocks */
    for (int64_t i = from; i < from + n; i += NF_LANES) {
        const int64_t rest = from + n - i, at = (i - from) % (4 * PHILOX_LANES);
        if (!at) philox_group_of(s.seed, (uint64_t)i / 4, s.stream, s.step, noise);
        if (rest < NF_LANES) update_lanes(rule, t, &s, RW_BF16, of_grad, with_a, noise + at, i, rest, false);
        else update_lanes(rule, t, &s, RW_BF16, of_grad, with_a, noise + at, i, NF_LANES, true);
    }
}

VEC_INLINE void update_typed(int rule, bool with_a, const struct rw_update_tensor *t, const struct rw_update_row *s,
                             int64_t from, int64_t n)
{
    const rw_dtype g = t->grad_dtype;
    if (t->dtype == RW_F64) update_f64(rule, t, s, from, n);
    else if (t->dtype == RW_BF16 && !t->master && g == RW_F32) update_noisy(rule, t, s, RW_F32, with_a, from, n);
    else if (t->dtype == RW_BF16 && !t->master) update_noisy(rule, t, s, RW_BF16, with_a, from, n);
    else if (t->dtype == RW_BF16 && g == RW_F32) update_f32(rule, t, s, RW_BF16, RW_F32, with_a, from, n);
    else if (t->dtype == RW_BF16) update_f32(rule, t, s, RW_BF16, RW_BF16, with_a, from, n);
    else if (t->dtype == RW_F16 && g == RW_F32) update_f32(rule, t, s, RW_F16, RW_F32, with_a, from, n);
    else if (t->dtype == RW_F16) update_f32(rule, t, s, RW_F16, RW_F16, with_a, from, n);
    else if (rule == RW_UPDATE_AVERAGE && g == RW_BF16) update_f32(rule, t, s, RW_F32, RW_BF16, with_a, from, n);
    else if (rule == RW_UPDATE_AVERAGE && g == RW_F16) update_f32(rule, t, s, RW_F32, RW_F16, with_a, from, n);
    else update_f32(rule, t, s, RW_F32, RW_F32, with_a, from, n);
}

/* n <= BLOCK elements; from is a multiple of 4. */
static void update_some(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                        int64_t n)
{
    switch (rule) {
    case RW_UPDATE_ADAM: update_typed(RW_UPDATE_ADAM, true, t, s, from, n); break;
    case RW_UPDATE_LION: update_typed(RW_UPDATE_LION, true, t, s, from, n); break;
    case RW_UPDATE_SGD:
        if (t->state[0]) update_typed(RW_UPDATE_SGD, true, t, s, from, n);
        else update_typed(RW_UPDATE_SGD, false, t, s, from, n);
        break;
    default: update_typed(RW_UPDATE_AVERAGE, false, t, s, from, n);
    }
}

static void update_block(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from)
{
    update_some(rule, t, s, from, t->n - from < BLOCK ? t->n - from : BLOCK);
}

static void update(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int threads)
{
    if (t->n < RW_PARALLEL_FROM || threads < 2) {
        for (int64_t from = 0; from < t->n; from += BLOCK) update_block(rule, t, s, from);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t from = 0; from < t->n; from += BLOCK) update_block(rule, t, s, from);
}

/* ---- sums of what it has met ---- */

typedef double wide __attribute__((vector_size(NF_LANES * 8))); /* the lanes of an nf */

VEC_INLINE double add_lanes(const wide *x)
{
    double y[NF_LANES];
    memcpy(y, x, sizeof y);
    for (int half = NF_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) y[l] += y[l + half];
    return y[0];
}

/* Of float32 and 16 bits: lane by lane in double. */
VEC_INLINE void gradient_sums(const void *grad, rw_dtype dtype, int64_t from, int64_t n, double *ret)
{
    const int64_t whole = n / NF_LANES * NF_LANES;
    wide squares = { 0 };
    ni others = { 0 };
    for (int64_t i = 0; i < whole; i += NF_LANES) {
        const nf x = nf_get(grad, dtype, from + i);
        const wide g = __builtin_convertvector(x, wide);
        squares += g * g;
        others += x == nf_all(0);
    }
    double sum = add_lanes(&squares), zeros = 0;
    for (int l = 0; l < NF_LANES; l++) zeros -= others[l];
    for (int64_t i = whole; i < n; i++) {
        const double g = (double)f_get(grad, dtype, from + i);
        sum += g * g;
        zeros += g == 0;
    }
    ret[RW_SUM_GRADIENT] += sum;
    ret[RW_SUM_ZEROS] += zeros;
}

VEC_INLINE void weight_sums(const void *weight, rw_dtype dtype, const float *before, int64_t from, int64_t n,
                            double *ret)
{
    const int64_t whole = n / NF_LANES * NF_LANES;
    wide squares = { 0 }, changes = { 0 };
    for (int64_t i = 0; i < whole; i += NF_LANES) {
        const wide w = __builtin_convertvector(nf_get(weight, dtype, from + i), wide);
        const wide d = w - __builtin_convertvector(nf_get(before, RW_F32, i), wide);
        squares += w * w;
        changes += d * d;
    }
    ret[RW_SUM_WEIGHT] += add_lanes(&squares);
    ret[RW_SUM_CHANGE] += add_lanes(&changes);
    for (int64_t i = whole; i < n; i++) {
        const double w = (double)f_get(weight, dtype, from + i), d = w - (double)before[i];
        ret[RW_SUM_WEIGHT] += w * w;
        ret[RW_SUM_CHANGE] += d * d;
    }
}

#define PIECE 512 /* elements */

/* What a weight is before its update. */
static void keep_piece(const struct rw_update_tensor *t, bool fresh, int64_t from, int64_t n, float *ret)
{
    const void *const p = t->master && !fresh ? t->master : t->param;
    const rw_dtype dtype = t->master && !fresh ? RW_F32 : t->dtype;
    if (dtype == RW_BF16) for (int64_t i = 0; i < n; i++) ret[i] = f_get(p, RW_BF16, from + i);
    else if (dtype == RW_F16) for (int64_t i = 0; i < n; i++) ret[i] = f_get(p, RW_F16, from + i);
    else memcpy(ret, (const float *)p + from, (size_t)n * sizeof *ret);
}

/* Some elements of a parameter that is not float64, while they are in the innermost cache; their sums are added. */
static void update_piece(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                         int64_t n, double *ret)
{
    const void *const weight = t->master ? t->master : t->param;
    const rw_dtype dtype = t->master ? RW_F32 : t->dtype;
    float before[PIECE];
    keep_piece(t, s->fresh, from, n, before);
    update_some(rule, t, s, from, n);
    if (t->grad_dtype == RW_BF16) gradient_sums(t->grad, RW_BF16, from, n, ret);
    else if (t->grad_dtype == RW_F16) gradient_sums(t->grad, RW_F16, from, n, ret);
    else gradient_sums(t->grad, RW_F32, from, n, ret);
    if (dtype == RW_BF16) weight_sums(weight, RW_BF16, before, from, n, ret);
    else weight_sums(weight, RW_F32, before, from, n, ret);
}

static void update_piece_f64(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                             int64_t n, double *ret)
{
    const double *const w = (const double *)t->param + from, *const g = (const double *)t->grad + from;
    double before[PIECE];
    memcpy(before, w, (size_t)n * sizeof *w);
    update_some(rule, t, s, from, n);
    for (int64_t i = 0; i < n; i++) {
        ret[RW_SUM_GRADIENT] += g[i] * g[i];
        ret[RW_SUM_WEIGHT] += w[i] * w[i];
        ret[RW_SUM_CHANGE] += (w[i] - before[i]) * (w[i] - before[i]);
        ret[RW_SUM_ZEROS] += g[i] == 0;
    }
}

static void update_summed(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int64_t from,
                          double *ret)
{
    const int64_t end = t->n - from < BLOCK ? t->n : from + BLOCK;
    for (int j = 0; j < RW_UPDATE_SUMS; j++) ret[j] = 0;
    for (int64_t i = from; i < end; i += PIECE) {
        const int64_t n = end - i < PIECE ? end - i : PIECE;
        if (t->dtype == RW_F64) update_piece_f64(rule, t, s, i, n, ret);
        else update_piece(rule, t, s, i, n, ret);
    }
}

#define PARTS 1024 /* blocks whose sums are kept at a time */

/* The same bits for any number of threads, as update() itself. */
static void update_and_sum(int rule, const struct rw_update_tensor *t, const struct rw_update_row *s, int threads,
                           double *ret)
{
    const bool alone = t->n < RW_PARALLEL_FROM || threads < 2;
    double part[PARTS][RW_UPDATE_SUMS];
    for (int64_t first = 0; first < t->n; first += (int64_t)BLOCK * PARTS) {
        const int64_t rest = (t->n - first + BLOCK - 1) / BLOCK, blocks = rest < PARTS ? rest : PARTS;
#pragma omp parallel for num_threads(threads) schedule(static) if (!alone)
        for (int64_t b = 0; b < blocks; b++) update_summed(rule, t, s, first + b * BLOCK, part[b]);
        for (int64_t b = 0; b < blocks; b++)
            for (int j = 0; j < RW_SUM_ELEMENTS; j++) ret[j] += part[b][j];
    }
    ret[RW_SUM_ELEMENTS] = (double)t->n;
}

rw_status RW_ISA_NAME(rw_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_update_cpu)(const rw_kernel *k)
{
    const struct rw_update_row *const rows = k->in[0].data;
    const int n = rw_update_n(k), rule = rw_update_attrs_of(k).rule;
    const bool all = rw_update_all_have_masters(k, n);
    double *const sums = rw_update_sums_of(k);
    int masters = 0;
    if (sums) memset(sums, 0, (size_t)n * RW_UPDATE_SUMS * sizeof *sums);
    for (int i = 0; i < n; i++) {
        const struct rw_update_tensor t = rw_update_tensor_of(k, n, i, all, &masters);
        if (!t.grad || rows[i].skips) continue;
        if (sums) update_and_sum(rule, &t, &rows[i], k->threads, sums + (size_t)i * RW_UPDATE_SUMS);
        else update(rule, &t, &rows[i], k->threads);
    }
    return RW_OK;
}
