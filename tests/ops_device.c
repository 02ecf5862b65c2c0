/*
 * Every op, shape class and element type of op_cases.c on the device of REWIND_TEST_DEVICE: results and gradients
 * within the derived bound (compare.h, op_cases.c, op_sizes.c) of the CPU's in float64, and the same bytes in a second
 * run. On the CPU the second run has three threads instead of one. The CPU's float32 and bfloat16 are held to the same
 * bounds, so two devices differ by at most twice the bound.
 *
 * REWIND_TEST_OPS=text runs the cases whose name holds the text; REWIND_TEST_LARGE=1 the large ones too;
 * REWIND_TEST_SHOW=1 prints how much of its bound each case uses (without --tap, which swallows it).
 */
#include "op_cases.h"
#include "support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS (1 + OP_INPUTS)

enum mode {
    PLAIN,
    UPWARD,  /* at |w| */
    ABSOLUTE /* at |x| and |w| */
};

/* A result and its gradients: 0 the result, 1 + i the gradient of the input that operand i is made from. */
struct outcome {
    int n;
    rw_dtype dtype[TENSORS];
    int64_t numel[TENSORS];
    size_t bytes[TENSORS];
    unsigned char *raw[TENSORS];
};

struct recording {
    rw_tensor *base[OP_INPUTS], *x[OP_INPUTS], *w, *y;
};

static rw_tensor *numbers(rw_tape *t, const struct op_case *c, rw_dtype dtype, rw_shape shape, enum op_range range,
                          int salt, bool absolute)
{
    const int64_t n = rw_shape_numel(shape);
    char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) {
        const double x = op_number(range, i, salt);
        cr_assert(number_put(data, dtype, i, absolute ? fabs(x) : x), "%s: %s does not hold %g", c->name,
                  rw_dtype_name(dtype), x);
    }
    rw_tensor *const x = rw_input(t, dtype, shape, data);
    free(data);
    return x;
}

static rw_tensor *record(rw_tape *t, const struct op_case *c, rw_dtype dtype, enum mode mode, struct recording *r)
{
    rw_generator_set(rw_tape_context(t), (rw_generator_state){ 5, 11 }); /* the same words on every device */
    for (int i = 0; i < c->n; i++) {
        r->base[i] = numbers(t, c, dtype, op_base_shape(&c->in[i]), c->in[i].range, i, mode == ABSOLUTE);
        rw_require_grad(t, r->base[i]);
        r->x[i] = op_operand_of(t, &c->in[i], r->base[i]);
    }
    rw_tensor *x[OP_INPUTS];
    memcpy(x, r->x, sizeof x);
    r->y = c->build(t, x, c);
    if (!r->y || c->no_sum) return r->y;
    r->w = numbers(t, c, rw_tensor_dtype(r->y), rw_tensor_shape(r->y), OP_SIGNED, 9, mode != PLAIN);
    return rw_sum(t, rw_mul(t, r->y, r->w), RW_ALL_AXES, false);
}

static rw_status keep(struct outcome *o, rw_tape *t, rw_tensor *x, int i)
{
    o->dtype[i] = rw_tensor_dtype(x);
    o->numel[i] = rw_shape_numel(rw_tensor_shape(x));
    o->bytes[i] = rw_tensor_bytes(x);
    o->raw[i] = malloc(o->bytes[i] + 8);
    return rw_read(t, x, o->raw[i], o->bytes[i]);
}

static rw_status run(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype, enum mode mode)
{
    struct recording r;
    memset(o, 0, sizeof *o);
    rw_tensor *const loss = record(t, c, dtype, mode, &r);
    if (!loss) return rw_error_status(rw_tape_context(t));
    rw_require_grad(t, r.y); /* keeps y to be read */
    rw_status status = c->n ? rw_backward(t, loss) : RW_OK;
    if (!status) status = keep(o, t, r.y, 0);
    for (int i = 0; i < c->n && !status; i++) status = keep(o, t, rw_gradient(r.base[i]), 1 + i);
    o->n = 1 + c->n;
    return status;
}

static void forget(struct outcome *o)
{
    for (int i = 0; i < TENSORS; i++) free(o->raw[i]);
    memset(o, 0, sizeof *o);
}

/* ---- magnitudes ---- */

/* |m| as an input of that shape, which does not depend on anything. */
static rw_tensor *detached(rw_tape *t, rw_tensor *m, rw_shape shape)
{
    rw_tensor *const all = rw_contiguous(t, rw_broadcast_to(t, rw_abs(t, m), shape));
    void *const data = malloc(rw_tensor_bytes(all) + 8);
    rw_tensor *const x = rw_read(t, all, data, rw_tensor_bytes(all)) ? NULL : rw_input(t, RW_F64, shape, data);
    free(data);
    return x;
}

static rw_status derived_sizes(struct outcome *o, rw_tape *t, const struct op_case *c)
{
    struct recording r = { .w = NULL };
    rw_tensor *m[TENSORS] = { NULL }, *base;
    if (!record(t, c, RW_F64, PLAIN, &r)) return rw_error_status(rw_tape_context(t));
    c->sizes(t, c, r.x, r.w, r.y, m);
    rw_status status = keep(o, t, detached(t, m[0], rw_tensor_shape(r.y)), 0);
    for (int i = 0; i < c->n && !status; i++) {
        /* the sizes of a view's gradient are summed to those of what it looks at */
        rw_tensor *const looked = rw_mul(t, r.x[i], detached(t, m[1 + i], c->in[i].shape));
        status = rw_grad(t, looked, &r.base[i], 1, &base);
        if (!status) status = keep(o, t, base, 1 + i);
    }
    o->n = 1 + c->n;
    return status;
}

static rw_status sizes(struct outcome *o, rw_tape *t, const struct op_case *c)
{
    memset(o, 0, sizeof *o);
    if (c->sizes == OP_TERMS) return run(o, t, c, RW_F64, ABSOLUTE);
    if (c->sizes != op_values) return derived_sizes(o, t, c);
    struct outcome plain;
    rw_status status = run(&plain, t, c, RW_F64, PLAIN);
    rw_tape_reset(t);
    if (!status) status = run(o, t, c, RW_F64, UPWARD);
    unsigned char *const y = o->raw[0];
    o->raw[0] = plain.raw[0];
    plain.raw[0] = y;
    forget(&plain);
    return status;
}

/* ---- comparison ---- */

static const char *part(int i)
{
    static const char *const names[] = { "result", "gradient of input 0", "gradient of input 1", "gradient of input 2",
                                         "gradient of input 3" };
    return names[i];
}

static struct roundings allowed(const struct op_case *c, int i)
{
    struct roundings r = c->r[i];
    const int64_t times = i ? op_expansion(&c->in[i - 1]) : 1;
    if (times > 1) r.n += (int)times, r.s++;
    return r;
}

/* Both sides of a typed case were rounded to the type. */
static double bound(const struct op_case *c, rw_dtype dtype, int i, rw_dtype stored, double want, double size)
{
    const struct roundings r = allowed(c, i);
    if (!c->typed) return tolerance(dtype, stored, r, want, size);
    return r.n ? 2 * (roundings(r.n, 0x1p-53) + unit_roundoff(stored)) * size : 0;
}

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
            const double most = bound(c, dtype, i, got->dtype[i], b, fabs(number_get(size->raw[i], size->dtype[i], k)));
            cr_expect(fabs(a - b) <= most, "%s, %s, %s, element %lld: %.17g, not %.17g: off by %.3g, %.3g allowed",
                      c->name, rw_dtype_name(dtype), part(i), (long long)k, a, b, fabs(a - b), most);
            if (!(fabs(a - b) <= most)) return; /* one element tells enough */
            worst = fmax(worst, fabs(a - b) / most);
        }
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

struct pair {
    struct bench subject, reference;
};

static void check(struct pair *p, const struct op_case *c, rw_dtype dtype)
{
    const bool cpu = test_device() == RW_DEVICE_CPU;
    const rw_dtype wide = c->typed ? dtype : RW_F64;
    struct outcome got, again, want = { 0 }, size = { 0 };
    const bool ran = worked(run(&got, p->subject.t, c, dtype, PLAIN), p->subject.t, c, dtype, "first run");
    if (cpu) rw_context_set_threads(p->subject.ctx, 3);
    if (worked(run(&again, p->subject.t, c, dtype, PLAIN), p->subject.t, c, dtype, "second run") && ran)
        same_bytes(c, dtype, &got, &again);
    if (cpu) rw_context_set_threads(p->subject.ctx, 1);
    if (worked(run(&want, p->reference.t, c, wide, PLAIN), p->reference.t, c, dtype, "reference") &&
        worked(sizes(&size, p->reference.t, c), p->reference.t, c, dtype, "magnitudes") && ran)
        within(c, dtype, &got, &want, &size);
    forget(&got), forget(&again), forget(&want), forget(&size);
}

static void check_group(enum op_group group, rw_dtype dtype)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    const char *const only = getenv("REWIND_TEST_OPS"), *const large = getenv("REWIND_TEST_LARGE");
    struct pair p = { .subject = bench_open(1, 1) };
    const rw_context_params params = { .device = RW_DEVICE_CPU, .seed = 1, .threads = 2 };
    cr_assert_eq(rw_context_create(&p.reference.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&p.reference.t, p.reference.ctx), RW_OK);
    size_t ran = 0;
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || (c->typed && c->dtype != dtype)) continue;
        if ((c->large && !(large && *large == '1')) || (only && !strstr(c->name, only))) continue;
        check(&p, c, dtype);
        ran++;
    }
    cr_expect(ran || only, "a group without cases");
    bench_close(&p.subject);
    bench_close(&p.reference);
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
    }

GROUP(pointwise, OP_POINTWISE)
GROUP(products, OP_PRODUCTS)
GROUP(norms, OP_NORMS)
GROUP(reductions, OP_REDUCTIONS)
GROUP(attention, OP_ATTENTION)
GROUP(tables, OP_TABLES)
GROUP(shapes, OP_SHAPES)
GROUP(random, OP_RANDOM)
