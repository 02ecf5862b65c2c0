/*
 * Lengths of arrays in public calls: 0, one too many, and numbers that are valid only in their lowest 32 bits or that
 * were negative before they became size_t. Each is refused with a message that says what was expected and what was
 * given, and nothing is recorded or written. The arrays have two elements: a call that trusts its length reads past
 * them.
 */
#include "support/support.h"

#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static rw_status no_gradient(rw_grad_call *g, const void *data)
{
    return RW_OK;
}

static rw_status two_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status never_run(const rw_kernel *k)
{
    return RW_ERR_DEVICE;
}

#define NEVER_RUN { [RW_DEVICE_CPU] = never_run, [RW_DEVICE_CUDA] = never_run }
static const rw_op_def two_op = { .name = "two", .n_inputs = 2, .n_outputs = 1, .check = two_check,
                                  .kernel = NEVER_RUN };
static const rw_op_def some_op = { .name = "some", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1, .check = two_check,
                                   .kernel = NEVER_RUN };

/* Values that the calls use, and arrays of two. */
struct world {
    struct fixture b;
    rw_tensor *x, *pair[2], *out[2];
};

static rw_status of_tensor(const struct world *w, const rw_tensor *y)
{
    return y ? RW_OK : rw_error_status(w->b.ctx);
}

static rw_status call_custom_grad(struct world *w, size_t n)
{
    return of_tensor(w, rw_custom_grad(w->b.t, w->x, w->pair, n, no_gradient, NULL, 0));
}

static rw_status call_einsum(struct world *w, size_t n)
{
    return of_tensor(w, rw_einsum(w->b.t, "ij,ij->ij", w->pair, n));
}

static rw_status call_apply(struct world *w, size_t n)
{
    return of_tensor(w, rw_apply(w->b.t, &two_op, w->pair, n, NULL, 0, w->out));
}

static rw_status call_apply_variadic(struct world *w, size_t n)
{
    return of_tensor(w, rw_apply(w->b.t, &some_op, w->pair, n, NULL, 0, w->out));
}

static rw_status call_concat(struct world *w, size_t n)
{
    return of_tensor(w, rw_concat(w->b.t, w->pair, n, 0));
}

static rw_status call_split(struct world *w, size_t n)
{
    return rw_split(w->b.t, w->x, 0, (const int64_t[]){ 1, 1 }, n, w->out);
}

static rw_status call_unbind(struct world *w, size_t n)
{
    return rw_unbind(w->b.t, w->x, 0, w->out, n);
}

static rw_status call_stack(struct world *w, size_t n)
{
    return of_tensor(w, rw_stack(w->b.t, w->pair, n, 0));
}

static rw_status call_pad(struct world *w, size_t n)
{
    return of_tensor(w, rw_pad(w->b.t, w->x, (const int64_t[]){ 1, 1 }, n, RW_PAD_CONSTANT, 0));
}

static rw_status call_eval(struct world *w, size_t n)
{
    return rw_eval(w->b.t, w->pair, n);
}

static rw_status call_forward(struct world *w, size_t n)
{
    return rw_forward(w->b.t, w->pair, n);
}

static rw_status call_backward_from(struct world *w, size_t n)
{
    return rw_backward_from(w->b.t, w->pair, NULL, n);
}

static rw_status call_grad(struct world *w, size_t n)
{
    return rw_grad(w->b.t, w->x, w->pair, n, w->out);
}

static rw_status call_load_parts(struct world *w, size_t n)
{
    return rw_load_parts(w->b.ctx, "/no/such/file", (const rw_load_part[2]){ { "a", "a" }, { "b", "b" } }, n);
}

/* zero: refused, too. most: the largest valid length. expected: words of the message. */
static const struct {
    const char *name;
    rw_status (*call)(struct world *w, size_t n);
    bool zero;
    size_t most;
    rw_status status;
    const char *expected;
} all[] = {
    { "custom_grad", call_custom_grad, true, 1024, RW_ERR_ARGUMENT, "custom_grad(n): expected 1 to 1024 tensors" },
    { "einsum", call_einsum, true, RW_EINSUM_OPERANDS, RW_ERR_ARGUMENT, "einsum(n): expected 1 to 16 operands" },
    { "apply", call_apply, true, 2, RW_ERR_ARGUMENT, "n: expected 2 inputs" },
    { "apply, variadic", call_apply_variadic, false, RW_OP_MAX_OPERANDS, RW_ERR_ARGUMENT,
      "n: expected 0 to 65534 inputs" },
    { "concat", call_concat, true, RW_OP_MAX_OPERANDS - 1, RW_ERR_ARGUMENT, "concat(n): expected 1 to 65533 tensors" },
    { "split", call_split, true, 8189, RW_ERR_ARGUMENT, "split(n): expected 1 to 8189 parts" },
    { "unbind", call_unbind, true, 8189, RW_ERR_ARGUMENT, "unbind: split(n): expected 1 to 8189 parts" },
    { "stack", call_stack, true, RW_OP_MAX_OPERANDS - 1, RW_ERR_ARGUMENT,
      "stack: concat(n): expected 1 to 65533 tensors" },
    { "pad", call_pad, false, 4, RW_ERR_SHAPE, "pad(pad, n): expected two numbers per axis, 0 to 4" },
    { "eval", call_eval, false, UINT32_MAX, RW_ERR_ARGUMENT, "rw_eval(n): expected at most 4294967295 elements" },
    { "forward", call_forward, false, UINT32_MAX, RW_ERR_ARGUMENT,
      "rw_forward(n): expected at most 4294967295 elements" },
    { "backward_from", call_backward_from, false, UINT32_MAX, RW_ERR_ARGUMENT,
      "rw_backward_from(n): expected at most 4294967295 elements" },
    { "grad", call_grad, false, UINT32_MAX, RW_ERR_ARGUMENT, "rw_grad(n): expected at most 4294967295 elements" },
    { "load_parts", call_load_parts, false, UINT32_MAX, RW_ERR_ARGUMENT,
      "rw_load_parts(n): expected at most 4294967295 elements" },
};
enum { CALLS = sizeof all / sizeof *all };

static void is_refused(struct world *w, size_t i, size_t n)
{
    char got[32];
    const size_t nodes = w->b.t->n_nodes;
    snprintf(got, sizeof got, "got %zu", n);
    rw_tensor *const mark = w->x;
    w->out[0] = w->out[1] = mark;
    const rw_status status = all[i].call(w, n);
    const char *const text = rw_error_message(w->b.ctx);
    cr_expect_eq(status, all[i].status, "%s, %zu: %s", all[i].name, n, text);
    cr_expect(message_has(text, all[i].expected) && strstr(text, got), "%s, %zu: \"%s\" and \"%s\" are not in: %s",
              all[i].name, n, all[i].expected, got, text);
    cr_expect_eq(w->b.t->n_nodes, nodes, "%s, %zu leaves nodes", all[i].name, n);
    cr_expect(w->out[0] == mark && w->out[1] == mark, "%s, %zu writes its results", all[i].name, n);
    rw_error_clear(w->b.ctx);
}

static struct world open_world(void)
{
    struct world w = { .b = fixture_open(1, 1) };
    rw_tensor *const p = rw_param(w.b.ctx, "p", RW_F32, RW_SHAPE(2, 3));
    w.pair[0] = rw_scale(w.b.t, p, 2);
    w.pair[1] = rw_scale(w.b.t, p, 3);
    w.x = rw_mul(w.b.t, w.pair[0], w.pair[1]);
    return w;
}

Test(counts, beyond_what_a_call_takes)
{
    struct world w = open_world();
    for (size_t i = 0; i < CALLS; i++) {
        const size_t two = (size_t)1 << 32 | 2, far[] = { all[i].most + 1, two, SIZE_MAX, (size_t)-2, SIZE_MAX / 2,
                                                          SIZE_MAX / 2 + 2, SIZE_MAX / 4 + 2, SIZE_MAX / 8 + 2 };
        for (size_t k = 0; k < sizeof far / sizeof *far; k++) is_refused(&w, i, far[k]);
        if (all[i].zero) is_refused(&w, i, 0);
    }
    fixture_close(&w.b);
}

/* Without a tape, an op looks for the context of its inputs. */
Test(counts, no_input_of_a_wrong_length_is_read_without_a_tape)
{
    rw_tensor *const in[] = { NULL, NULL, (rw_tensor *)(uintptr_t)64 }; /* the third is not part of the array */
    const size_t far[] = { RW_OP_MAX_OPERANDS + 1, SIZE_MAX, (size_t)1 << 32 | 2 };
    for (size_t k = 0; k < sizeof far / sizeof *far; k++) {
        cr_expect_null(rw_apply(NULL, &some_op, in, far[k], NULL, 0, NULL));
        cr_expect_null(rw_concat(NULL, in, far[k], 0));
        cr_expect_null(rw_stack(NULL, in, far[k], 0));
        cr_expect(strstr(rw_error_message(NULL), "t is NULL; expected a tape"), "%s", rw_error_message(NULL));
    }
}

/* The same calls with two elements, and two of them with none. */
Test(counts, that_a_call_takes)
{
    for (size_t i = 0; i < CALLS; i++) {
        struct world w = open_world();
        if (all[i].call != call_load_parts)
            cr_expect_eq(all[i].call(&w, 2), RW_OK, "%s: %s", all[i].name, rw_error_message(w.b.ctx));
        if (all[i].call == call_pad || all[i].call == call_eval)
            cr_expect_eq(all[i].call(&w, 0), RW_OK, "%s, 0: %s", all[i].name, rw_error_message(w.b.ctx));
        fixture_close(&w.b);
    }
}
