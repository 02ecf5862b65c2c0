/*
 * The offset at which an operand begins changes no bit: every op, shape and type of op_cases.c on inputs that are views
 * of a longer buffer. They begin at its start and at offsets of 2, 4, 8 and 16 bytes, which break the alignment that
 * kernels prefer. Results and gradients are compared as bytes, on the device of REWIND_TEST_DEVICE; REWIND_TEST_LARGE=1
 * includes the large cases.
 */
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define PAST 8 /* a buffer has so many elements more than its input */

/* The input of operand i: a view of *ret_whole from element `offset` on. */
static rw_tensor *input_at(rw_tape *t, const struct op_case *c, rw_dtype dtype, int i, int64_t offset,
                           rw_tensor **ret_whole)
{
    const rw_shape shape = op_base_shape(&c->in[i]);
    const int64_t n = rw_shape_numel(shape);
    char *const data = calloc((size_t)(n + PAST), 8);
    bool held = true;
    for (int64_t k = 0; k < n; k++) held &= number_put(data, dtype, offset + k, op_number(c->in[i].range, k, i));
    *ret_whole = held ? rw_input(t, dtype, RW_SHAPE(n + PAST), data, (size_t)(n + PAST) * rw_dtype_size(dtype)) : NULL;
    free(data);
    rw_require_grad(t, *ret_whole);
    return rw_reshape(t, rw_slice(t, *ret_whole, 0, offset, offset + n), shape);
}

/* Copies n elements of a tensor from element `first` on; all of them with n < 0. */
static rw_status keep(struct outcome *o, rw_tape *t, rw_tensor *x, int i, int64_t first, int64_t n)
{
    const size_t bytes = rw_tensor_bytes(x), each = rw_dtype_size(rw_tensor_dtype(x));
    o->bytes[i] = n < 0 ? bytes : (size_t)n * each;
    o->raw[i] = malloc(bytes + 8);
    const rw_status status = rw_read(t, x, o->raw[i], bytes);
    if (n >= 0) memmove(o->raw[i], o->raw[i] + (size_t)first * each, o->bytes[i]);
    return status;
}

/* Runs a case on inputs at an offset of elements. */
static rw_status run_at(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype, int64_t offset)
{
    const struct op_data numbers = { .w = NULL };
    struct recording r = { .y = NULL };
    rw_tensor *whole[OP_INPUTS], *x[OP_INPUTS];
    memset(o, 0, sizeof *o);
    o->n = 1 + c->n;
    rw_generator_set(rw_tape_context(t), (rw_generator_state){ 5, 11 });
    for (int i = 0; i < c->n; i++)
        x[i] = op_operand_of(t, &c->in[i], input_at(t, c, dtype, i, offset, &whole[i]));
    r.y = c->build(t, x, c);
    rw_tensor *const loss = op_record_loss(&r, t, c, &numbers, OP_PLAIN);
    if (!loss) return rw_error_status(rw_tape_context(t)) ? rw_error_status(rw_tape_context(t)) : RW_ERR_ARGUMENT;
    rw_require_grad(t, r.y); /* keeps y readable */
    rw_status status = c->n ? rw_backward(t, loss) : RW_OK;
    if (!status) status = keep(o, t, r.y, 0, 0, -1);
    for (int i = 0; i < c->n && !status; i++) {
        rw_tensor *const g = rw_gradient(whole[i]);
        status = keep(o, t, g, 1 + i, offset, rw_shape_numel(op_base_shape(&c->in[i])));
    }
    return status;
}

/* Compares the results at each offset with those at the start of a buffer. */
static void check(struct fixture *b, const struct op_case *c, rw_dtype dtype)
{
    static const int64_t offsets[] = { 1, 2, 4, 8 };
    struct outcome want, got;
    const rw_status first = run_at(&want, b->t, c, dtype, 0);
    cr_expect_eq(first, RW_OK, "%s, %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_tape_reset(b->t);
    for (size_t k = 0; k < sizeof offsets / sizeof *offsets && !first; k++) {
        const rw_status status = run_at(&got, b->t, c, dtype, offsets[k]);
        cr_expect_eq(status, RW_OK, "%s, %s: %s", c->name, rw_dtype_name(dtype), rw_error_message(b->ctx));
        for (int i = 0; i < want.n && !status; i++)
            cr_expect(got.bytes[i] == want.bytes[i] && first_difference(got.raw[i], want.raw[i], got.bytes[i]) < 0,
                      "%s, %s: tensor %d has other bytes where the inputs begin at element %lld", c->name,
                      rw_dtype_name(dtype), i, (long long)offsets[k]);
        rw_error_clear(b->ctx);
        rw_tape_reset(b->t);
        op_forget(&got);
    }
    op_forget(&want);
}

/* Checks all cases of one group in each floating type that they take. */
static void check_group(enum op_group group)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    const char *const large = getenv("REWIND_TEST_LARGE");
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || (c->large && !(large && *large == '1'))) continue;
        for (rw_dtype dtype = RW_F32; dtype <= RW_F16; dtype++) {
            if (dtype != RW_F32 && dtype != RW_F64 && dtype != RW_BF16 && dtype != RW_F16) continue;
            if (!c->typed || c->dtype == dtype) check(&b, c, dtype);
        }
    }
    fixture_close(&b);
}

Test(offsets, pointwise) { check_group(OP_POINTWISE); }
Test(offsets, products) { check_group(OP_PRODUCTS); }
Test(offsets, norms) { check_group(OP_NORMS); }
Test(offsets, reductions) { check_group(OP_REDUCTIONS); }
Test(offsets, attention) { check_group(OP_ATTENTION); }
Test(offsets, tables) { check_group(OP_TABLES); }
Test(offsets, shapes) { check_group(OP_SHAPES); }
Test(offsets, random) { check_group(OP_RANDOM); }
