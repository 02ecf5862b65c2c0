/*
 * Runs every op, shape class and element type of op_cases.c on the device of REWIND_TEST_DEVICE. Results and gradients
 * must be within the derived bound (compare.h, op_cases.c, op_magnitudes.c) of the CPU's in float64, and a second run
 * must give the same bytes. On the CPU the second run has three threads instead of one. The CPU's float32 and bfloat16
 * have the same bounds, so two devices differ by at most twice the bound.
 *
 * REWIND_TEST_OPS=text runs the cases whose name contains the text (op_cases.h); REWIND_TEST_LARGE=1 the large ones
 * too; REWIND_TEST_SHOW=1 prints the share of its bound that each case uses (without --tap, which hides it).
 */
#include "support/op_builds.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *part(int i)
{
    static const char *const names[] = { "result", "gradient of input 0", "gradient of input 1", "gradient of input 2",
                                         "gradient of input 3" };
    return names[i];
}

/* Both results of a typed case were rounded to the type. */
static double bound(const struct op_case *c, rw_dtype dtype, int i, rw_dtype stored, double want, double size)
{
    const struct roundings r = op_allowed(c, i);
    if (!c->typed) return tolerance(dtype, stored, r, want, size);
    return r.n ? 2 * (roundings(r.n, 0x1p-53) + unit_roundoff(stored)) * size : 0;
}

/*
 * The bound of an element assumes the worst case of every rounding. Roundings with independent signs add up like the
 * root of their number: n of the arithmetic, s and the last one of the stored type. This check finds errors in some
 * elements that are each within their bounds; the worst case uses four fifths. In attention, size sums the magnitudes
 * of both terms of p (dp - sum), and of a softmax whose weights sum to 1, so the actual roundings are of much smaller
 * numbers: the worst case uses half of a thirty-second.
 */
static void close_on_average(const struct op_case *c, rw_dtype dtype, int i, const struct outcome *got,
                             const struct outcome *want, const struct outcome *size)
{
    const struct roundings r = op_allowed(c, i);
    const double v = fmax(unit_roundoff(dtype), unit_roundoff(got->dtype[i])); /* a cast stores another type */
    const double one = sqrt(r.n) * arithmetic_roundoff(dtype) + sqrt(r.s + 1) * v;
    const double share = c->build == op_build_attention ? 1. / 32 : 1;
    double errors = 0, sizes = 0;
    for (int64_t k = 0; k < got->numel[i]; k++) {
        const double a = number_get(got->raw[i], got->dtype[i], k), b = number_get(want->raw[i], want->dtype[i], k);
        const double s = number_get(size->raw[i], size->dtype[i], k);
        if (!isfinite(b)) continue;
        errors += (a - b) * (a - b);
        sizes += s * s;
    }
    const double tiny = underflow(dtype, got->dtype[i], r) * sqrt((double)got->numel[i]);
    cr_expect(sqrt(errors) <= share * one * sqrt(sizes) + tiny, "%s, %s, %s: off by %.3g on the average, %.3g allowed",
              c->name, rw_dtype_name(dtype), part(i), sqrt(errors / sizes), share * one);
}

/* Every element must be within its bound. */
static void within(const struct op_case *c, rw_dtype dtype, const struct outcome *got, const struct outcome *want,
                   const struct outcome *size)
{
    double worst = 0;
    for (int i = 0; i < got->n; i++) {
        cr_assert(got->numel[i] == want->numel[i] && got->numel[i] == size->numel[i], "%s: %s: shapes", c->name,
                  part(i));
        for (int64_t k = 0; k < got->numel[i]; k++) {
            const double a = number_get(got->raw[i], got->dtype[i], k), b = number_get(want->raw[i], want->dtype[i], k);
            if (a == b) continue;
            double most = bound(c, dtype, i, got->dtype[i], b, fabs(number_get(size->raw[i], size->dtype[i], k)));
            if (want->dtype[i] != RW_F64)
                most += unit_roundoff(want->dtype[i]) * fabs(b); /* a cast: it was rounded, too */
            cr_expect(fabs(a - b) <= most, "%s, %s, %s, element %lld: %.17g, not %.17g: off by %.3g, %.3g allowed",
                      c->name, rw_dtype_name(dtype), part(i), (long long)k, a, b, fabs(a - b), most);
            if (!(fabs(a - b) <= most)) return; /* one element suffices */
            worst = fmax(worst, fabs(a - b) / most);
        }
        if (!c->typed) close_on_average(c, dtype, i, got, want, size);
    }
    if (getenv("REWIND_TEST_SHOW"))
        fprintf(stderr, "# %-4s %-60s %.3f of the bound\n", rw_dtype_name(dtype), c->name, worst);
}

static void same_bytes(const struct op_case *c, rw_dtype dtype, const struct outcome *a, const struct outcome *b)
{
    for (int i = 0; i < a->n; i++)
        cr_expect(a->bytes[i] == b->bytes[i] && first_difference(a->raw[i], b->raw[i], a->bytes[i]) < 0,
                  "%s, %s: the %s has other bytes the second time", c->name, rw_dtype_name(dtype), part(i));
}

static bool worked(rw_status status, rw_tape *t, const struct op_case *c, rw_dtype dtype, const char *what)
{
    cr_expect(status == RW_OK, "%s, %s: %s: %s: %s", c->name, rw_dtype_name(dtype), what, rw_status_name(status),
              rw_error_message(rw_tape_context(t)));
    rw_error_clear(rw_tape_context(t));
    rw_tape_reset(t);
    return status == RW_OK;
}

/* op_number()s */
static const struct op_data numbers = { .w = NULL };

struct pair {
    struct fixture subject, reference;
};

/* Runs a case twice, compares the bytes, and compares the values with the reference's within their bounds. */
static void check(struct pair *p, const struct op_case *c, rw_dtype dtype)
{
    const bool cpu = test_device() == RW_DEVICE_CPU;
    const rw_dtype wide = c->typed ? dtype : RW_F64;
    struct outcome got, again, want = { 0 }, size = { 0 };
    const bool ran = worked(op_run(&got, p->subject.t, c, dtype, &numbers, OP_PLAIN), p->subject.t, c, dtype,
                            "first run");
    if (cpu) rw_context_set_threads(p->subject.ctx, 3);
    if (worked(op_run(&again, p->subject.t, c, dtype, &numbers, OP_PLAIN), p->subject.t, c, dtype, "second run") && ran)
        same_bytes(c, dtype, &got, &again);
    if (cpu) rw_context_set_threads(p->subject.ctx, 1);
    if (worked(op_run(&want, p->reference.t, c, wide, &numbers, OP_PLAIN), p->reference.t, c, dtype, "reference") &&
        worked(op_run_sizes(&size, p->reference.t, c, &numbers), p->reference.t, c, dtype, "magnitudes") && ran)
        within(c, dtype, &got, &want, &size);
    op_forget(&got), op_forget(&again), op_forget(&want), op_forget(&size);
}

/* Runs all cases of a group in one type. */
static void check_group(enum op_group group, rw_dtype dtype)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    const char *const large = getenv("REWIND_TEST_LARGE");
    struct pair p = { .subject = fixture_open(1, 1) };
    const rw_context_params params = { .device = RW_DEVICE_CPU, .seed = 1, .threads = 2 };
    cr_assert_eq(rw_context_create(&p.reference.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&p.reference.t, p.reference.ctx), RW_OK);
    size_t ran = 0;
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || (c->typed && c->dtype != dtype)) continue;
        if (c->large && !(large && *large == '1')) continue;
        check(&p, c, dtype);
        ran++;
    }
    cr_expect(ran || getenv("REWIND_TEST_OPS"), "a group without cases");
    fixture_close(&p.subject);
    fixture_close(&p.reference);
}

#define GROUP(name, group)                                                                                             \
    Test(ops_device, name##_f64)                                                                                       \
    {                                                                                                                  \
        check_group(group, RW_F64);                                                                                    \
    }                                                                                                                  \
    Test(ops_device, name##_f32)                                                                                       \
    {                                                                                                                  \
        check_group(group, RW_F32);                                                                                    \
    }                                                                                                                  \
    Test(ops_device, name##_bf16)                                                                                      \
    {                                                                                                                  \
        check_group(group, RW_BF16);                                                                                   \
    }                                                                                                                  \
    Test(ops_device, name##_f16)                                                                                       \
    {                                                                                                                  \
        check_group(group, RW_F16);                                                                                    \
    }

GROUP(pointwise, OP_POINTWISE)
GROUP(products, OP_PRODUCTS)
GROUP(norms, OP_NORMS)
GROUP(reductions, OP_REDUCTIONS)
GROUP(attention, OP_ATTENTION)
GROUP(tables, OP_TABLES)
GROUP(shapes, OP_SHAPES)
GROUP(random, OP_RANDOM)

/* ---- attention in float16: intermediates between its products exceed the range of the type ---- */

/* Results and gradients of a case whose upstream gradient is 2^shift times the usual one. */
static rw_status run_times(struct outcome *o, struct fixture *b, const struct op_case *c, int shift)
{
    const rw_shape q = c->in[0].shape;
    const int64_t n = q.dim[0] * q.dim[1] * q.dim[2] * c->in[2].shape.dim[3];
    double *const w = malloc((size_t)n * sizeof *w);
    for (int64_t i = 0; i < n; i++) w[i] = ldexp(op_number(OP_SIGNED, i, 9), shift);
    const struct op_data data = { .w = w };
    const rw_status status = op_run(o, b->t, c, RW_F16, &data, OP_PLAIN);
    worked(status, b->t, c, RW_F16, "upstream times a power of two");
    free(w);
    return status;
}

/*
 * A power of two in the upstream gradient scales the gradients by the same power. Rounding preserves it if both are
 * normal numbers. Below 2^-14 a stored value is off by 2^-25, and the usual one by that times the power; a normal
 * number there is off by 2^-11 of itself, which is not more.
 */
static void follows(const struct op_case *c, const struct outcome *got, const struct outcome *usual, int shift)
{
    for (int i = 1; i < got->n; i++)
        for (int64_t k = 0; k < got->numel[i]; k++) {
            const double a = number_get(got->raw[i], RW_F16, k), x = number_get(usual->raw[i], RW_F16, k);
            const double b = ldexp(x, shift);
            const bool normal = fmin(fmin(fabs(a), fabs(b)), fabs(x)) > 0x1p-14;
            const double allowed = normal ? 0 : ldexp(0x1p-24, shift > 0 ? shift : 0);
            cr_expect(fabs(b) >= 65504 || fabs(a - b) <= allowed, "%s, times 2^%d: %s, element %lld: %.9g, not %.9g",
                      c->name, shift, part(i), (long long)k, a, b);
            if (fabs(b) < 65504 && !(fabs(a - b) <= allowed)) return;
        }
}

Test(ops_device, attention_f16_follows_powers_of_two)
{
    static const int shifts[] = { -10, 4, 12 };
    size_t n;
    const struct op_case *const all = op_cases(&n);
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        struct outcome usual, got;
        if (c->group != OP_ATTENTION || c->n != 3 || c->large || !rw_shape_numel(c->in[0].shape)) continue;
        if (c->in[0].layout == OP_EXPANDED) continue; /* sums of stored values */
        const rw_status status = run_times(&usual, &b, c, 0);
        for (size_t k = 0; k < sizeof shifts / sizeof *shifts && !status; k++) {
            if (!run_times(&got, &b, c, shifts[k])) follows(c, &got, &usual, shifts[k]);
            op_forget(&got);
        }
        op_forget(&usual);
    }
    fixture_close(&b);
}
