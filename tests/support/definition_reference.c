/* Operands of a trial, and its expected results and gradients. See definition_runner.h. */
#include "support/compare.h"
#include "support/definition_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Central differences of fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h. Their error is h^4 / 30 times the
   fifth derivative, assumed to be at most 1000 times the magnitude, and 1.5 / h roundings of the reference. */
#define STEP 0x1p-12L
#define TRUNCATION (STEP * STEP * STEP * STEP / 30 * 1000)
#define FAR_STEP 0x1p-11L /* for mixed differences */
#define MAX_ALL 320       /* inputs up to so many elements have differences for each */
#define MAX_SAMPLE 24
#define UNUSED 77 /* fill value of input elements outside the operand: mostly out of range as an index */

/* ---- shapes ---- */

bool def_next(rw_shape s, int64_t *index)
{
    for (int d = s.rank - 1; d >= 0; d--) {
        if (++index[d] < s.dim[d]) return true;
        index[d] = 0;
    }
    return false;
}

int64_t def_at(rw_shape s, const int64_t *index, int rank)
{
    int64_t place = 0;
    for (int d = 0; d < s.rank; d++) place = place * s.dim[d] + (s.dim[d] == 1 ? 0 : index[rank - s.rank + d]);
    return place;
}

rw_shape def_shape(int rank)
{
    static const int64_t extents[] = { 3, 4, 2, 5 };
    rw_shape s = { .rank = rank };
    for (int d = 0; d < rank; d++) s.dim[d] = extents[d];
    return s;
}

rw_shape def_without(rw_shape s, int axis, bool keep)
{
    rw_shape r = { .rank = 0 };
    for (int d = 0; d < s.rank; d++)
        if (d != axis || keep) r.dim[r.rank++] = d == axis ? 1 : s.dim[d];
    return r;
}

rw_shape def_with(rw_shape s, int axis, int64_t extent)
{
    s.dim[axis] = extent;
    return s;
}

const rw_shape *def_broadcastable(int which)
{
    static const rw_shape shapes[] = {
        { 3, { 3, 4, 5 } }, { 0, { 0 } },       { 1, { 5 } },       { 2, { 4, 1 } },
        { 3, { 3, 1, 5 } }, { 3, { 3, 1, 1 } }, { 3, { 1, 4, 5 } }, { 4, { 2, 1, 4, 1 } },
    };
    return &shapes[which];
}

rw_shape def_broadcast(rw_shape a, rw_shape b)
{
    rw_shape r = a.rank >= b.rank ? a : b;
    const rw_shape other = a.rank >= b.rank ? b : a;
    for (int d = 0; d < other.rank; d++) {
        int64_t *const extent = &r.dim[r.rank - other.rank + d];
        if (*extent == 1) *extent = other.dim[d];
    }
    return r;
}

void def_split(rw_shape s, int axis, int64_t *outer, int64_t *extent, int64_t *inner)
{
    *outer = *inner = 1;
    for (int d = 0; d < axis; d++) *outer *= s.dim[d];
    *extent = s.dim[axis];
    for (int d = axis + 1; d < s.rank; d++) *inner *= s.dim[d];
}

struct def_operand *def_operand(struct def_trial *c, int i, rw_shape s, enum def_range range, int layout)
{
    struct def_operand *const o = &c->in[i];
    *o = (struct def_operand){ .shape = s, .range = range, .layout = (enum def_layout)layout, .dtype = c->dtype };
    if (i >= c->n) c->n = i + 1;
    if (range == DEF_INDEX) o->dtype = RW_I32;
    if (range == DEF_TRUTH) o->dtype = RW_BOOL;
    return o;
}

/* ---- operands ---- */

static uint32_t mix(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 33);
}

/* Element i of input `which`, by the operand's function or in its range. */
static double value_of(const struct def_trial *c, int which, int64_t i)
{
    const struct def_operand *const o = &c->in[which];
    const uint32_t k = mix((uint64_t)i * 16 + (uint64_t)which);
    double x = 0;
    if (o->value) return o->value(c, i);
    switch (o->range) {
    case DEF_SIGNED: x = (k & 1 ? -1. : 1.) * (1 + k / 2 % 64) / 32; break;
    case DEF_POSITIVE: x = (8 + k % 89) / 32.; break;
    case DEF_UNIT: x = (k & 1 ? -1. : 1.) * (1 + k / 2 % 64) / 64; break;
    case DEF_DISTINCT: x = ((double)((i * 89 + 31 + which * 7) % 257) - 128) / 16; break;
    case DEF_TIES: x = (double)(k % 3) - 1; break;
    case DEF_INDEX: return (double)(k % (uint32_t)o->limit);
    default: return (double)(k & 1);
    }
    if (o->dtype == RW_I32) return trunc(x * 32);
    if (o->dtype == RW_BOOL) return x > 0;
    return x;
}

static bool layout_is_possible(const struct def_operand *o)
{
    if (o->layout == DEF_DENSE) return true;
    return o->shape.rank > 0;
}

static rw_shape base_shape(const struct def_operand *o)
{
    rw_shape s = o->shape;
    const int last = s.rank - 1;
    if (o->layout == DEF_SLICED) s.dim[last] += 3;
    if (o->layout == DEF_EXPANDED) s.dim[0] = 1;
    if (o->layout == DEF_TRANSPOSED && s.rank == 1) s.dim[0] *= 2;
    else if (o->layout == DEF_TRANSPOSED) {
        s.dim[last] = o->shape.dim[last - 1];
        s.dim[last - 1] = o->shape.dim[last];
    }
    return s;
}

static int64_t base_place(const struct def_operand *o, const int64_t *index)
{
    int64_t at[RW_MAX_RANK] = { 0 };
    const int last = o->shape.rank - 1;
    memcpy(at, index, (size_t)o->shape.rank * sizeof *at);
    if (o->layout == DEF_SLICED) at[last] += 2;
    if (o->layout == DEF_TRANSPOSED && last == 0) at[0] *= 2;
    else if (o->layout == DEF_TRANSPOSED) {
        at[last] = index[last - 1];
        at[last - 1] = index[last];
    }
    return def_at(o->base, at, o->shape.rank);
}

rw_tensor *def_operand_view(rw_tape *t, const struct def_operand *o, rw_tensor *base)
{
    const int last = o->shape.rank - 1;
    switch (o->layout) {
    case DEF_TRANSPOSED:
        if (last == 0) return rw_select(t, rw_reshape(t, base, RW_SHAPE(o->shape.dim[0], 2)), 1, 0);
        return rw_transpose(t, base, -1, -2);
    case DEF_SLICED: return rw_slice(t, base, -1, 2, 2 + o->shape.dim[last]);
    case DEF_EXPANDED: return rw_broadcast_to(t, base, o->shape);
    default: return base;
    }
}

void def_put(unsigned char *p, rw_dtype dtype, int64_t i, real x)
{
    const int32_t whole = (int32_t)x;
    if (dtype == RW_I32) memcpy(p + 4 * i, &whole, 4);
    else if (dtype == RW_BOOL) p[i] = x != 0;
    else number_put(p, dtype, i, (double)x);
}

real def_get(const unsigned char *p, rw_dtype dtype, int64_t i)
{
    int32_t whole;
    if (dtype == RW_BOOL) return p[i];
    if (dtype != RW_I32) return (real)number_get(p, dtype, i);
    memcpy(&whole, p + 4 * i, 4);
    return whole;
}

/* Rounds x to the type. */
static real stored(rw_dtype dtype, real x)
{
    unsigned char data[8];
    def_put(data, dtype, 0, x);
    return def_get(data, dtype, 0);
}

/* Fills the input of an operand and maps the operand's elements to it. */
static void operand_open(struct def_trial *c, int i)
{
    struct def_operand *const o = &c->in[i];
    if (o->is_absent) return;
    if (o->is_wide && (o->dtype == RW_BF16 || o->dtype == RW_F16)) o->dtype = RW_F32;
    o->base = base_shape(o);
    o->numel = rw_shape_numel(o->shape);
    o->base_numel = rw_shape_numel(o->base);
    o->map = calloc((size_t)o->numel + 1, sizeof *o->map);
    o->x = calloc((size_t)o->numel + 1, sizeof *o->x);
    o->base_x = calloc((size_t)o->base_numel + 1, sizeof *o->base_x);
    for (int64_t k = 0; k < o->base_numel; k++) o->base_x[k] = stored(o->dtype, (real)value_of(c, i, k));
    int64_t index[RW_MAX_RANK] = { 0 }, k = 0;
    if (o->numel) do
            o->map[k++] = base_place(o, index);
        while (def_next(o->shape, index));
    if (o->is_exact) {
        for (k = 0; k < o->base_numel; k++) o->base_x[k] = UNUSED;
        for (k = 0; k < o->numel; k++) o->base_x[o->map[k]] = stored(o->dtype, (real)o->value(c, k));
    }
    for (k = 0; k < o->numel; k++) o->x[k] = o->base_x[o->map[k]];
}

void def_trial_open(struct def_trial *c)
{
    for (int i = 0; i < c->n; i++) operand_open(c, i);
}

void def_trial_close(struct def_trial *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->in[i].map);
        free(c->in[i].x);
        free(c->in[i].base_x);
        c->in[i].map = NULL, c->in[i].x = c->in[i].base_x = NULL;
    }
}

bool def_wants_gradient(const struct def_trial *c, int i)
{
    const struct def_operand *const o = &c->in[i];
    return !c->def->no_gradient && !o->is_absent && !o->is_frozen && rw_dtype_is_float(o->dtype);
}

/* ---- the reference ---- */

static struct values values_open(const struct def_trial *c)
{
    struct values v = { 0 };
    for (int k = 0; k < c->n_out; k++) {
        v.first[k] = v.n;
        v.n += rw_shape_numel(c->out[k]);
    }
    v.first[c->n_out] = v.n;
    v.all = calloc((size_t)v.n + 1, sizeof *v.all);
    return v;
}

static void evaluate(const struct def_trial *c, struct values *v)
{
    real *x[DEF_OPERANDS] = { NULL }, *y[DEF_RESULTS] = { NULL };
    for (int i = 0; i < c->n; i++) x[i] = c->in[i].is_absent ? NULL : c->in[i].x;
    for (int k = 0; k < c->n_out; k++) y[k] = v->all + v->first[k];
    memset(v->all, 0, (size_t)v->n * sizeof *v->all);
    c->def->reference(c, x, y);
}

static void moved(struct def_trial *c, int i, int64_t k, real by, struct values *v)
{
    struct def_operand *const o = &c->in[i];
    for (int64_t m = 0; m < o->numel; m++)
        if (o->map[m] == k) o->x[m] = o->base_x[k] + by;
    evaluate(c, v);
    for (int64_t m = 0; m < o->numel; m++)
        if (o->map[m] == k) o->x[m] = o->base_x[k];
}

static real upstream(int64_t i)
{
    const uint32_t k = mix((uint64_t)i * 16 + 15);
    return (real)((k & 1 ? -1. : 1.) * (1 + k / 2 % 64) / 32);
}

int64_t def_sample_step(const struct def_trial *c, int i)
{
    const int64_t n = c->in[i].base_numel;
    return c->def->gradient || n <= MAX_ALL ? 1 : n / MAX_SAMPLE + 1;
}

/* Gradients of the reference by central differences of its loops. */
static void by_differences(struct def_trial *c, struct expected *e)
{
    struct values f[4];
    for (int k = 0; k < 4; k++) f[k] = values_open(c);
    for (int i = 0; i < c->n; i++) {
        if (c->def->no_gradient || c->in[i].is_absent || !rw_dtype_is_float(c->in[i].dtype)) continue;
        /* A long input is sampled: a sampled element represents those up to the next */
        const int64_t apart = def_sample_step(c, i);
        for (int64_t k = 0; k < c->in[i].base_numel; k++) {
            real g = 0, size = 0;
            if (k % apart) {
                e->g[i][k] = NAN;
                continue;
            }
            moved(c, i, k, STEP, &f[0]), moved(c, i, k, -STEP, &f[1]);
            moved(c, i, k, 2 * STEP, &f[2]), moved(c, i, k, -2 * STEP, &f[3]);
            for (int64_t m = 0; m < e->y.n; m++) {
                const real slope = (8 * (f[0].all[m] - f[1].all[m]) - (f[2].all[m] - f[3].all[m])) / (12 * STEP);
                /* Skipped where a result or an operand is infinite */
                if (!(fabsl(slope) < INFINITY) || isinf(c->in[i].base_x[k])) continue;
                g += e->w.all[m] * slope;
                size += fabsl(e->w.all[m] * slope);
                e->size.all[m] += (real)apart * fabsl(slope * c->in[i].base_x[k]);
            }
            e->g[i][k] = g;
            e->scale[i] = fmaxl(e->scale[i], size);
        }
        e->scale[i] += e->largest; /* terms that cancel in every slope are not larger than a result's */
    }
    for (int k = 0; k < 4; k++) free(f[k].all);
}

/* Gradients of the reference by the definition's own formula. */
static void by_formula(struct def_trial *c, struct expected *e)
{
    real *x[DEF_OPERANDS] = { NULL }, *dx[DEF_OPERANDS] = { NULL }, *dy[DEF_RESULTS], largest = 0;
    for (int k = 0; k < c->n_out; k++) dy[k] = e->w.all + e->w.first[k];
    for (int i = 0; i < c->n; i++) {
        x[i] = c->in[i].is_absent ? NULL : c->in[i].x;
        if (x[i]) dx[i] = calloc((size_t)c->in[i].numel + 1, sizeof **dx);
    }
    c->def->gradient(c, x, dy, dx);
    for (int64_t m = 0; m < e->w.n; m++) largest = fmaxl(largest, fabsl(e->w.all[m]));
    for (int i = 0; i < c->n; i++) {
        real *const size = calloc((size_t)c->in[i].base_numel + 1, sizeof *size);
        for (int64_t m = 0; dx[i] && m < c->in[i].numel; m++) {
            e->g[i][c->in[i].map[m]] += dx[i][m];
            size[c->in[i].map[m]] += fabsl(dx[i][m]) + largest;
            e->scale[i] = fmaxl(e->scale[i], size[c->in[i].map[m]]);
        }
        free(size);
        free(dx[i]);
    }
}

/* If only some elements of an input were moved, a result's terms are assumed to be as large as the largest. */
static void level_samples(const struct def_trial *c, struct expected *e)
{
    real most = 0;
    bool is_sampled = false;
    for (int i = 0; i < c->n; i++) is_sampled |= !c->in[i].is_absent && def_sample_step(c, i) > 1;
    for (int64_t m = 0; m < e->size.n; m++)
        if (e->size.all[m] < INFINITY) most = fmaxl(most, e->size.all[m]);
    for (int64_t m = 0; is_sampled && m < e->size.n; m++) e->size.all[m] = most;
}

struct expected def_expected_open(struct def_trial *c)
{
    struct expected e = { .y = values_open(c), .size = values_open(c), .w = values_open(c) };
    evaluate(c, &e.y);
    for (int64_t m = 0; m < e.y.n; m++) {
        e.w.all[m] = upstream(m);
        e.size.all[m] = fabsl(e.y.all[m]);
        if (!(fabsl(e.y.all[m]) < INFINITY)) continue;
        e.total += fabsl(e.w.all[m] * e.y.all[m]);
        e.largest = fmaxl(e.largest, fabsl(e.w.all[m] * e.y.all[m]));
    }
    for (int i = 0; i < c->n; i++)
        if (!c->in[i].is_absent) e.g[i] = calloc((size_t)c->in[i].base_numel + 1, sizeof **e.g);
    if (c->def->gradient) by_formula(c, &e);
    else by_differences(c, &e);
    level_samples(c, &e);
    return e;
}

void def_expected_close(struct expected *e)
{
    free(e->y.all), free(e->size.all), free(e->w.all);
    for (int i = 0; i < DEF_OPERANDS; i++) free(e->g[i]);
}

bool def_trial_make(struct def_trial *c, const struct definition *d, const int *v, rw_dtype dtype)
{
    memset(c, 0, sizeof *c);
    c->def = d;
    c->dtype = dtype;
    c->n_out = 1;
    memcpy(c->v, v, sizeof c->v);
    if (!d->make(c)) return false;
    for (int i = 0; i < c->n; i++)
        if (!c->in[i].is_absent && !layout_is_possible(&c->in[i])) return false;
    return true;
}

real def_difference_bound(const struct def_trial *c, const struct expected *e, int i)
{
    if (c->def->gradient) return 0;
    return TRUNCATION * e->scale[i] + (c->def->back_roundings + 4) * 1.5L / STEP * 0x1p-64L * (e->total + e->scale[i]);
}

/* ---- the second gradient ---- */

real def_direction(int i, int64_t k)
{
    const uint32_t x = mix((uint64_t)k * 16 + 11 + (uint64_t)i);
    return (real)((x & 1 ? -1. : 1.) * (1 + x / 2 % 16) / 16);
}

/* Moves all operands by `far` times the direction, and element k of operand i by `by`. Returns the weighted sum of
   results. */
static real weighted_at(struct def_trial *c, const struct expected *e, real far, int i, int64_t k, real by,
                        struct values *v)
{
    real sum = 0;
    for (int j = 0; j < c->n; j++) {
        struct def_operand *const o = &c->in[j];
        for (int64_t m = 0; def_wants_gradient(c, j) && m < o->numel; m++) {
            o->x[m] = o->base_x[o->map[m]] + far * def_direction(j, o->map[m]);
            if (j == i && o->map[m] == k) o->x[m] += by;
        }
    }
    evaluate(c, v);
    for (int64_t m = 0; m < v->n; m++)
        if (fabsl(v->all[m]) < INFINITY) sum += e->w.all[m] * v->all[m];
    return sum;
}

real *def_second(struct def_trial *c, const struct expected *e, int i, real *ret_size)
{
    static const real at[] = { -2, -1, 1, 2 }, factor[] = { 1, -8, 8, -1 };
    struct values v = values_open(c);
    real *const second = calloc((size_t)c->in[i].base_numel + 1, sizeof *second);
    *ret_size = 0;
    for (int64_t k = 0; k < c->in[i].base_numel; k++) {
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                second[k] += factor[a] * factor[b] * weighted_at(c, e, at[a] * FAR_STEP, i, k, at[b] * FAR_STEP, &v) /
                             (144 * FAR_STEP * FAR_STEP);
        *ret_size = fmaxl(*ret_size, fabsl(second[k]));
    }
    for (int j = 0; j < c->n; j++)
        for (int64_t m = 0; def_wants_gradient(c, j) && m < c->in[j].numel; m++)
            c->in[j].x[m] = c->in[j].base_x[c->in[j].map[m]];
    free(v.all);
    return second;
}
