/* Runs the trials of definition_runner.h and compares them with their references. */
#include "support/compare.h"
#include "support/definition_internal.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPORTS 4

/* ---- the library ---- */

struct outcome {
    unsigned char *y[DEF_RESULTS], *g[DEF_OPERANDS];
    rw_dtype y_type[DEF_RESULTS], g_type[DEF_OPERANDS];
};

static void outcome_close(struct outcome *o)
{
    for (int k = 0; k < DEF_RESULTS; k++) free(o->y[k]);
    for (int i = 0; i < DEF_OPERANDS; i++) free(o->g[i]);
}

static rw_tensor *input_of(rw_tape *t, rw_dtype dtype, rw_shape s, const real *x)
{
    const int64_t n = rw_shape_numel(s);
    unsigned char *const data = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++) def_put(data, dtype, i, x[i]);
    rw_tensor *const y = rw_input(t, dtype, s, data, (size_t)n * rw_dtype_size(dtype));
    free(data);
    return y;
}

static unsigned char *bytes_of(rw_tape *t, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    unsigned char *const data = calloc(bytes + 1, 1);
    if (!rw_read(t, x, data, bytes)) return data;
    free(data);
    return NULL;
}

/* Inputs and operands. */
static void record_operands(const struct def_trial *c, rw_tape *t, rw_tensor **base, rw_tensor **x)
{
    rw_tape_reset(t);
    for (int i = 0; i < c->n; i++) {
        const struct def_operand *const in = &c->in[i];
        x[i] = RW_NONE;
        if (in->is_absent) continue;
        base[i] = input_of(t, in->dtype, in->base, in->base_x);
        if (def_wants_gradient(c, i)) rw_require_grad(t, base[i]);
        x[i] = def_operand_view(t, in, base[i]);
    }
}

/* Which of a definition's ops its trials recorded. */
struct seen {
    bool has[32];
};

static void see(struct seen *seen, const char *ops, const rw_tape *t)
{
    int i = 0;
    for (const char *at = ops; *at; i++) {
        const size_t length = strcspn(at, " ");
        for (uint32_t n = 0; n < t->n_nodes; n++) {
            const char *const name = t->ctx->ops[t->nodes[n].op]->name;
            if (strlen(name) == length && !strncmp(name, at, length)) seen->has[i] = true;
        }
        at += length;
        at += *at == ' ';
    }
}

/* Runs forward and backward. An error's message is in the context. */
static bool run(const struct def_trial *c, const struct expected *e, struct fixture *b, struct outcome *o,
                struct seen *seen, char *why, size_t size)
{
    rw_tape *const t = b->t;
    rw_tensor *base[DEF_OPERANDS] = { NULL }, *x[DEF_OPERANDS] = { NULL }, *y[DEF_RESULTS] = { NULL };
    rw_tensor *with[DEF_RESULTS], *dy[DEF_RESULTS];
    size_t n = 0;
    record_operands(c, t, base, x);
    snprintf(why, size, "is refused");
    if (!c->def->record(t, x, c, y)) return false;
    see(seen, c->def->ops, t);
    for (int k = 0; k < c->n_out; k++) {
        snprintf(why, size, "result %d", k);
        if (!y[k] || !rw_shape_equal(rw_tensor_shape(y[k]), c->out[k])) return false;
        o->y_type[k] = rw_tensor_dtype(y[k]);
        if (!rw_tensor_requires_grad(y[k])) continue;
        with[n] = y[k];
        dy[n++] = input_of(t, o->y_type[k], c->out[k], e->w.all + e->w.first[k]);
    }
    snprintf(why, size, "backward fails");
    if (n && rw_backward_from(t, with, dy, n)) return false;
    for (int k = 0; k < c->n_out; k++) {
        snprintf(why, size, "cannot be read");
        if (!(o->y[k] = bytes_of(t, y[k]))) return false;
    }
    for (int i = 0; i < c->n; i++) {
        if (!def_wants_gradient(c, i)) continue;
        snprintf(why, size, "no gradient of operand %d", i);
        rw_tensor *const g = rw_gradient(base[i]);
        if (!g && n) return false;
        o->g_type[i] = c->in[i].dtype;
        if (!g) o->g[i] = calloc((size_t)c->in[i].base_numel + 1, 8); /* no result has a gradient */
        if (!g) continue;
        o->g_type[i] = rw_tensor_dtype(g);
        if (!(o->g[i] = bytes_of(t, g))) return false;
    }
    return true;
}

/* The gradients that rw_grad() records (`first`), and their gradient along the direction by rw_backward() (`second`).
   NULL for an input on which no result depends. */
static bool run_twice(const struct def_trial *c, const struct expected *e, struct fixture *b, unsigned char **first,
                      unsigned char **second, char *why, size_t size)
{
    rw_tape *const t = b->t;
    rw_tensor *base[DEF_OPERANDS] = { NULL }, *x[DEF_OPERANDS], *y[DEF_RESULTS] = { NULL }, *sum = NULL, *along = NULL;
    rw_tensor *of[DEF_OPERANDS], *grads[DEF_OPERANDS] = { NULL };
    int which[DEF_OPERANDS];
    size_t n = 0;
    record_operands(c, t, base, x);
    snprintf(why, size, "rw_grad()");
    if (!c->def->record(t, x, c, y)) return false;
    for (int k = 0; k < c->n_out; k++) {
        if (!rw_tensor_requires_grad(y[k])) continue;
        rw_tensor *const w = input_of(t, rw_tensor_dtype(y[k]), c->out[k], e->w.all + e->w.first[k]);
        rw_tensor *const term = rw_cast(t, rw_sum(t, rw_mul(t, y[k], w), RW_ALL_AXES, false), c->dtype);
        sum = sum ? rw_add(t, sum, term) : term;
    }
    for (int i = 0; i < c->n; i++)
        if (def_wants_gradient(c, i)) which[n] = i, of[n++] = base[i];
    if (!sum || !n) return true;
    if (rw_grad(t, sum, of, n, grads)) return false;
    for (size_t k = 0; k < n; k++) {
        struct values v = { .all = calloc((size_t)c->in[which[k]].base_numel + 1, sizeof(real)) };
        for (int64_t m = 0; m < c->in[which[k]].base_numel; m++) v.all[m] = def_direction(which[k], m);
        if (grads[k] && rw_tensor_requires_grad(grads[k])) {
            rw_tensor *const w = input_of(t, rw_tensor_dtype(grads[k]), c->in[which[k]].base, v.all);
            rw_tensor *const term = rw_cast(t, rw_sum(t, rw_mul(t, grads[k], w), RW_ALL_AXES, false), c->dtype);
            along = along ? rw_add(t, along, term) : term;
        }
        free(v.all);
    }
    snprintf(why, size, "the second backward");
    if (along && rw_backward(t, along)) return false;
    for (size_t k = 0; k < n; k++) {
        rw_tensor *const g = along ? rw_gradient(base[which[k]]) : NULL;
        if (grads[k] && !(first[which[k]] = bytes_of(t, grads[k]))) return false;
        if (g && !(second[which[k]] = bytes_of(t, g))) return false;
    }
    return true;
}

/* ---- comparison ---- */

struct share {
    real forward, backward;
};

static real bound_of(const struct def_trial *c, rw_dtype stored, int n, real want, real size)
{
    const real u = (real)arithmetic_roundoff(c->dtype), v = (real)unit_roundoff(stored);
    const real narrow = (real)unit_roundoff(c->dtype);
    real e = (real)n * u * size;
    if (n && narrow > u) e += c->def->stored * narrow * size;
    if (n && v > u) e += v * (fabsl(want) + e);
    if (n && (stored == RW_F16 || c->dtype == RW_F16)) e += 0x1p-25L * (1 + 8 * c->def->stored);
    return e;
}

/* Infinities and NaN equal themselves. */
static bool is_near(real got, real want, real bound, real *share)
{
    if (got == want || (isnan(got) && isnan(want))) return true;
    const real off = fabsl(got - want);
    if (bound > 0 && off / bound > *share) *share = off / bound;
    return off <= bound;
}

/* Compares results and gradients with the reference, each element within its bound. */
static bool compare(const struct def_trial *c, const struct expected *e, const struct outcome *o, struct share *share,
                    char *why, size_t size)
{
    const struct definition *const d = c->def;
    for (int k = 0; k < c->n_out; k++)
        for (int64_t m = e->y.first[k]; m < e->y.first[k + 1]; m++) {
            const real got = def_get(o->y[k], o->y_type[k], m - e->y.first[k]), want = e->y.all[m];
            const real bound = bound_of(c, o->y_type[k], rw_dtype_is_float(o->y_type[k]) ? d->roundings : 0, want,
                                        e->size.all[m]);
            if (is_near(got, want, bound, &share->forward)) continue;
            snprintf(why, size, "result %d, element %d: %.17Lg, not %.17Lg, %.2Lg off", k, (int)(m - e->y.first[k]),
                     got, want, fabsl(got - want));
            return false;
        }
    for (int i = 0; i < c->n; i++)
        for (int64_t m = 0; def_wants_gradient(c, i) && m < c->in[i].base_numel; m++) {
            const real got = def_get(o->g[i], o->g_type[i], m), want = e->g[i][m];
            if (m % def_sample_step(c, i)) continue;
            real bound = bound_of(c, o->g_type[i], d->back_roundings, want, e->scale[i]);
            bound += def_difference_bound(c, e, i);
            if (is_near(got, want, bound, &share->backward)) continue;
            snprintf(why, size, "gradient of operand %d, element %d: %.17Lg, not %.17Lg, %.2Lg off", i, (int)m, got,
                     want, fabsl(got - want));
            return false;
        }
    return true;
}

/* Mixed differences with steps of 2^-11 have errors of some 1e-9; wrong formulas differ by more. */
#define SECOND_BOUND 1e-7L

static bool is_sampled(const struct def_trial *c)
{
    bool is_any = false;
    for (int i = 0; i < c->n; i++) is_any |= !c->in[i].is_absent && def_sample_step(c, i) > 1;
    return is_any;
}

/* Compares the second gradient along the direction with mixed differences. */
static bool compare_twice(struct def_trial *c, const struct expected *e, unsigned char *const *first,
                          unsigned char *const *second, char *why, size_t size)
{
    for (int i = 0; i < c->n; i++) {
        if (!def_wants_gradient(c, i)) continue;
        const struct def_operand *const in = &c->in[i];
        const int64_t apart = def_sample_step(c, i);
        const bool has_second = !c->def->gradient && !is_sampled(c);
        real magnitude = 0, unused = 0, *const want = has_second ? def_second(c, e, i, &magnitude) : NULL;
        bool is_right = true;
        for (int64_t m = 0; is_right && m < in->base_numel; m += apart) {
            const real got = first[i] ? def_get(first[i], in->dtype, m) : 0;
            const real bound = 4 * bound_of(c, in->dtype, c->def->back_roundings + 4, e->g[i][m], e->scale[i]) +
                               def_difference_bound(c, e, i);
            is_right = is_near(got, e->g[i][m], bound, &unused);
            if (!is_right)
                snprintf(why, size, "rw_grad() of operand %d, element %d: %.17Lg, not %.17Lg", i, (int)m, got,
                         e->g[i][m]);
        }
        for (int64_t m = 0; is_right && want && m < in->base_numel; m++) {
            const real got = second[i] ? def_get(second[i], in->dtype, m) : 0;
            is_right = is_near(got, want[m], SECOND_BOUND * (magnitude + e->scale[i] + 1), &unused);
            if (!is_right)
                snprintf(why, size, "second gradient of operand %d, element %d: %.12Lg, not %.12Lg", i, (int)m, got,
                         want[m]);
        }
        free(want);
        if (!is_right) return false;
    }
    return true;
}

static bool is_same(const struct def_trial *c, const struct outcome *a, const struct outcome *b)
{
    for (int k = 0; k < c->n_out; k++)
        if (memcmp(a->y[k], b->y[k], (size_t)rw_shape_numel(c->out[k]) * rw_dtype_size(a->y_type[k]))) return false;
    for (int i = 0; i < c->n; i++)
        if (a->g[i] && memcmp(a->g[i], b->g[i], (size_t)c->in[i].base_numel * rw_dtype_size(a->g_type[i])))
            return false;
    return true;
}

/* ---- trials ---- */

static void describe(const struct def_trial *c, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s %s", c->def->name, rw_dtype_name(c->dtype));
    for (int f = 0; f < DEF_FACTORS && c->def->factor[f].name && n < size; f++)
        n += (size_t)snprintf(text + n, size - n, " %s=%d", c->def->factor[f].name, c->v[f]);
}

struct world {
    struct fixture one, three;
    struct share share;
    struct seen seen;
    int reports, runs;
};

/* Runs one trial with one and with three threads, and compares. */
static void trial_run(struct world *w, const struct definition *d, const int *v, rw_dtype dtype)
{
    static struct def_trial c;
    struct outcome one = { 0 }, three = { 0 };
    struct share share = { 0, 0 };
    char label[400], why[200] = "";
    if (!def_trial_make(&c, d, v, dtype)) return;
    def_trial_open(&c);
    struct expected e = def_expected_open(&c);
    describe(&c, label, sizeof label);
    w->runs++;
    rw_error_clear(w->one.ctx), rw_error_clear(w->three.ctx);
    if (!run(&c, &e, &w->one, &one, &w->seen, why, sizeof why) ||
        !run(&c, &e, &w->three, &three, &w->seen, why, sizeof why)) {
        if (w->reports++ < MAX_REPORTS)
            cr_expect_fail("%s: %s: %s%s", label, why, rw_error_message(w->one.ctx), rw_error_message(w->three.ctx));
    } else if (!compare(&c, &e, &one, &share, why, sizeof why)) {
        if (w->reports++ < MAX_REPORTS) cr_expect_fail("%s: %s", label, why);
    } else if (!is_same(&c, &one, &three)) {
        if (w->reports++ < MAX_REPORTS) cr_expect_fail("%s: other bytes with three threads", label);
    }
    if (dtype == RW_F64 && !d->no_gradient && !d->no_second) {
        unsigned char *first[DEF_OPERANDS] = { NULL }, *second[DEF_OPERANDS] = { NULL };
        rw_error_clear(w->one.ctx);
        if (!run_twice(&c, &e, &w->one, first, second, why, sizeof why)) {
            if (w->reports++ < MAX_REPORTS) cr_expect_fail("%s: %s: %s", label, why, rw_error_message(w->one.ctx));
        } else if (!compare_twice(&c, &e, first, second, why, sizeof why)) {
            if (w->reports++ < MAX_REPORTS) cr_expect_fail("%s: %s", label, why);
        }
        for (int i = 0; i < DEF_OPERANDS; i++) free(first[i]), free(second[i]);
    }
    if (share.forward > w->share.forward) w->share.forward = share.forward;
    if (share.backward > w->share.backward) w->share.backward = share.backward;
    outcome_close(&one), outcome_close(&three);
    def_expected_close(&e);
    def_trial_close(&c);
}

static void check_seen(const struct definition *d, const struct seen *seen)
{
    int i = 0;
    for (const char *at = d->ops; *at; i++) {
        const size_t length = strcspn(at, " ");
        cr_expect(seen->has[i], "%s: no trial records %.*s", d->name, (int)length, at);
        at += length;
        at += *at == ' ';
    }
}

void definition_run(const struct definition *d)
{
    enum { MAX_TRIALS = 2000 };
    static int trials[MAX_TRIALS][DEF_FACTORS];
    const char *const more = getenv("REWIND_DEFINITIONS_MORE");
    struct world w = { .one = fixture_open(1, 1), .three = fixture_open(1, 3) };
    int covered, possible;
    const int n = def_pairs(d, trials, MAX_TRIALS, more ? atoi(more) : 0, &covered, &possible);
    /* On the simulated device a sample of the trials */
    const int step = test_steps(1, n > 8 ? n / 8 : 1);
    for (int k = 0; k < n; k += step) {
        if (!d->no_double) trial_run(&w, d, trials[k], RW_F64);
        trial_run(&w, d, trials[k], RW_F32);
        if (!d->only_wide && k % 8 == 0) trial_run(&w, d, trials[k], k % 16 ? RW_F16 : RW_BF16);
        if (!d->only_wide && k == 0) trial_run(&w, d, trials[k], RW_F16);
        if (d->any_type) trial_run(&w, d, trials[k], k % 2 ? RW_I32 : RW_BOOL);
    }
    if (step == 1) check_seen(d, &w.seen);
    cr_log_info("%s: %d trials, %d of %d pairs (the others are no combination), %d runs", d->name, n, covered, possible,
                w.runs);
    if (getenv("REWIND_TEST_SHOW"))
        fprintf(stderr, "%-24s %3d trials, %4d of %4d pairs, %4d runs, %.3Lf of the bound forward, %.3Lf backward%s\n",
                d->name, n, covered, possible, w.runs, w.share.forward, w.share.backward, w.reports ? "  FAILED" : "");
    fixture_close(&w.one);
    fixture_close(&w.three);
}
