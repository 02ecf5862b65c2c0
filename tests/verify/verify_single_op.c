/*
 * Verification of one op: each mistake is named, the execution whose results count is the verified one, and a program
 * that was verified ends with the bytes of one that was not, or with an error.
 */
#include "support/support.h"

#include "run/run_state.h"
#include "verify/fill_patterns.h"

#include <rewind/ops.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* y = x * factor, with the planted behavior. */
static struct {
    void (*plant)(const rw_kernel *k);
    int runs, wrong_run;
    float factor;
} own;

static rw_status own_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status own_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    own.runs++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * own.factor;
    if (own.plant) own.plant(k);
    return RW_OK;
}

static size_t own_workspace(const rw_op_call *call)
{
    return 100;
}

static rw_status own_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_output(g, 0)));
}

HOST_KERNEL_OF(own_kernel)
static const rw_op_def own_op = { .name = "own", .n_inputs = 1, .n_outputs = 1, .check = own_check,
                                  .kernel = HOST_KERNEL(own_kernel), .grad = own_grad,
                                  .workspace = { own_workspace, own_workspace } };

#define N 24

struct world {
    struct fixture b;
    rw_tensor *p, *loss;
};

static void record(struct world *x)
{
    ckpt_begin(x->b.t, "r");
    rw_tensor *const y = rw_apply(x->b.t, &own_op, &x->p, 1, NULL, 0, NULL);
    rw_tensor *const z = rw_tanh(x->b.t, rw_mul(x->b.t, y, x->p));
    ckpt_end(x->b.t);
    x->loss = rw_sum(x->b.t, rw_mul(x->b.t, z, z), RW_ALL_AXES, false);
}

/* REWIND_VERIFY in that mode, NULL for none. */
static struct world open_world(const char *mode, void (*plant)(const rw_kernel *k))
{
    if (mode) setenv("REWIND_VERIFY", mode, 1);
    struct world x = { .b = fixture_open(5, 2) };
    unsetenv("REWIND_VERIFY");
    memset(&own, 0, sizeof own);
    own.plant = plant;
    own.factor = 1.5f;
    ckpt_set_policy(x.b.t, "full");
    x.p = rw_param(x.b.ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_normal(x.p, 0, 1);
    record(&x);
    return x;
}

/* ---- each mistake is named ---- */

static float *result(const rw_kernel *k)
{
    return k->out[0].data;
}

static void writes_after(const rw_kernel *k) { result(k)[N] = 1; }
static void writes_far_after(const rw_kernel *k) { result(k)[N + 900] = 1; }
static void writes_before(const rw_kernel *k) { result(k)[-1] = 1; }
static void adds_after(const rw_kernel *k) { result(k)[N] += 0.25f; }
static void adds_before(const rw_kernel *k) { result(k)[-1] += 0.25f; }
static void adds_after_its_workspace(const rw_kernel *k) { ((float *)k->workspace)[25] += 0.25f; }
static void takes_the_larger_one_after(const rw_kernel *k)
{
    if (result(k)[N] < result(k)[0]) result(k)[N] = result(k)[0];
}
static void adds_after_its_input(const rw_kernel *k) { ((float *)k->in[0].data)[N] += 0.25f; }
static void adds_little_after(const rw_kernel *k) { result(k)[N] += 1e-12f; }
static void takes_the_largest_one(const rw_kernel *k)
{
    const float after = ((const float *)k->in[0].data)[N];
    if (result(k)[7] < after) result(k)[7] = after;
}
static void writes_after_its_workspace(const rw_kernel *k) { ((char *)k->workspace)[100] = 1; }
static void reads_its_workspace(const rw_kernel *k) { result(k)[7] += ((const float *)k->workspace)[3]; }
static void reads_zeros_in_its_workspace(const rw_kernel *k) { result(k)[7] += 0 * ((const float *)k->workspace)[3]; }
static void asks_its_workspace(const rw_kernel *k) { result(k)[7] += ((const float *)k->workspace)[3] < 2; }
static void counts_in_its_workspace(const rw_kernel *k) { result(k)[7] += (float)(++*(int *)k->workspace & 3); }
static void every_second_time(const rw_kernel *k) { result(k)[7] += (float)(own.runs & 1); }
static void reads_after(const rw_kernel *k) { result(k)[7] += ((const float *)k->in[0].data)[N]; }
static void reads_before(const rw_kernel *k) { result(k)[7] += ((const float *)k->in[0].data)[-1]; }
static void writes_to_its_input(const rw_kernel *k) { ((float *)k->in[0].data)[2] = 1; }
static void counts(const rw_kernel *k) { result(k)[7] += (float)own.runs; }
static void depends_on_threads(const rw_kernel *k) { result(k)[7] += (float)k->threads; }
static void depends_on_its_serial(const rw_kernel *k) { result(k)[7] += (float)(k->serial % 2); }
static void depends_on_its_address(const rw_kernel *k) { result(k)[7] += (float)((uintptr_t)k->out[0].data >> 12 & 1); }

static const struct {
    void (*plant)(const rw_kernel *k);
    ckpt_cause cause;
    const char *detail;
    int64_t element; /* -1: none */
} mistakes[] = {
    { writes_after, CKPT_CAUSE_OUTSIDE, "after its output 0, from byte 96", -1 },
    { writes_far_after, CKPT_CAUSE_OUTSIDE, "after its output 0, from byte 3696", -1 },
    { writes_before, CKPT_CAUSE_OUTSIDE, "before its output 0, from byte -4", -1 },
    { adds_after, CKPT_CAUSE_OUTSIDE, "after its output 0, from byte 9", -1 },
    { adds_little_after, CKPT_CAUSE_OUTSIDE, "after its output 0, from byte 9", -1 },
    { adds_after_its_input, CKPT_CAUSE_OUTSIDE, "after its input 0, from byte 9", -1 },
    { takes_the_largest_one, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { adds_before, CKPT_CAUSE_OUTSIDE, "before its output 0, from byte -", -1 },
    { adds_after_its_workspace, CKPT_CAUSE_OUTSIDE, "after its workspace 0, from byte 10", -1 },
    { takes_the_larger_one_after, CKPT_CAUSE_OUTSIDE, "after its output 0, from byte 9", -1 },
    { writes_after_its_workspace, CKPT_CAUSE_OUTSIDE, "after its workspace 0, from byte 100", -1 },
    { reads_its_workspace, CKPT_CAUSE_UNDEFINED_READ, "the workspace is undefined", 7 },
    { reads_zeros_in_its_workspace, CKPT_CAUSE_UNDEFINED_READ, "the workspace is undefined", 7 },
    { asks_its_workspace, CKPT_CAUSE_UNDEFINED_READ, "the workspace is undefined", 7 },
    { counts_in_its_workspace, CKPT_CAUSE_UNDEFINED_READ, "the workspace is undefined", 7 },
    { every_second_time, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { reads_after, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { reads_before, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { writes_to_its_input, CKPT_CAUSE_INPUT_WRITTEN, "over its input 0", -1 },
    { counts, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { depends_on_threads, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { depends_on_its_serial, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
    { depends_on_its_address, CKPT_CAUSE_NONDETERMINISTIC, "output 0", 7 },
};

/* On another device the host's kernel works on the test's own copies, which have no margins. */
#define ON_THE_CPU()                                                                     \
    do {                                                                                 \
        if (test_device() != RW_DEVICE_CPU) cr_skip_test("the op's memory is a copy there"); \
    } while (0)

Test(verify_single_op, each_mistake_of_an_op_is_named)
{
    ON_THE_CPU();
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct world x = open_world(NULL, mistakes[i].plant);
        ckpt_report r = { 0 };
        cr_assert_eq(ckpt_verify(x.b.t, x.loss, &r), RW_ERR_MISMATCH, "mistake %zu", i);
        cr_assert_eq(rw_error_status(x.b.ctx), RW_OK);
        cr_assert_not(r.identical);
        cr_assert_geq(r.mismatches, 1);
        cr_assert_str_eq(r.op, "own", "mistake %zu: %s", i, r.op);
        cr_assert_str_eq(r.region, "r");
        cr_assert(strstr(r.site, "verify_single_op.c:"), "%s", r.site);
        cr_assert_eq(r.cause, mistakes[i].cause, "mistake %zu: %s", i, ckpt_cause_name(r.cause));
        cr_assert(strstr(r.detail, mistakes[i].detail), "mistake %zu: %s", i, r.detail);
        if (mistakes[i].element >= 0) cr_assert_eq(r.element, mistakes[i].element);
        fixture_close(&x.b);
    }
}

static rw_status forgetful_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++)
        if (i != 11) y[i] = 2 * x[i];
    return RW_OK;
}

HOST_KERNEL_OF(forgetful_kernel)
static const rw_op_def forgetful = { .name = "forgetful", .n_inputs = 1, .n_outputs = 1, .check = own_check,
                                     .kernel = HOST_KERNEL(forgetful_kernel), .grad = own_grad };

Test(verify_single_op, an_element_that_is_left_out_is_named)
{
    ON_THE_CPU();
    struct world x = open_world(NULL, NULL);
    rw_tensor *const y = rw_apply(x.b.t, &forgetful, &x.p, 1, NULL, 0, NULL);
    ckpt_report r = { 0 };
    cr_assert_eq(ckpt_verify(x.b.t, rw_sum(x.b.t, rw_mul(x.b.t, y, y), RW_ALL_AXES, false), &r), RW_ERR_MISMATCH);
    cr_assert_eq(r.cause, CKPT_CAUSE_UNWRITTEN, "%s", ckpt_cause_name(r.cause));
    cr_assert_eq(r.element, 11);
    cr_assert(strstr(r.detail, "element 11 of output 0"), "%s", r.detail);
    fixture_close(&x.b);
}

static rw_status mismatched_kernel(const rw_kernel *k)
{
    return RW_ERR_MISMATCH;
}

HOST_KERNEL_OF(mismatched_kernel)
static const rw_op_def mismatched = { .name = "mismatched", .n_inputs = 1, .n_outputs = 1, .check = own_check,
                                      .kernel = HOST_KERNEL(mismatched_kernel), .grad = own_grad };

/* Only the verifier may return RW_ERR_MISMATCH, which the report explains. */
Test(verify_single_op, a_kernel_does_not_say_that_bytes_differ)
{
    struct world x = open_world(NULL, NULL);
    rw_tensor *const y = rw_apply(x.b.t, &mismatched, &x.p, 1, NULL, 0, NULL);
    cr_assert_eq(ckpt_verify(x.b.t, rw_sum(x.b.t, y, RW_ALL_AXES, false), NULL), RW_ERR_ARGUMENT);
    const char *const m = rw_error_message(x.b.ctx);
    cr_assert(strstr(m, "mismatched recorded at") && strstr(m, "or RW_ERR_UNSUPPORTED, got 8"), "%s", m);
    fixture_close(&x.b);
}

/* ---- outputs that are read before they are written ---- */

/* y = x, and a second output z[3] of its own type, which is set to the result of a test of its old contents. */
static struct {
    rw_dtype dtype;
    bool (*question)(double was);
} asked;

static double narrow(uint16_t bits, int fraction)
{
    const int exponents = (1 << (15 - fraction)) - 1, e = bits >> fraction & exponents;
    const double f = ldexp(bits & ((1 << fraction) - 1), -fraction);
    if (e == exponents) return f != 0 ? NAN : INFINITY;
    return (bits >> 15 ? -1 : 1) * ldexp(1 + f, e - exponents / 2); /* no pattern is subnormal */
}

static double number(const void *x, rw_dtype dtype)
{
    union { double f64; float f32; uint16_t b16; int32_t i32; uint8_t b8; } u = { 0 };
    memcpy(&u, x, rw_dtype_size(dtype));
    switch (dtype) {
    case RW_F64: return u.f64;
    case RW_F32: return u.f32;
    case RW_BF16: return narrow(u.b16, 7);
    case RW_F16: return narrow(u.b16, 10);
    case RW_I32: return u.i32;
    default: return u.b8;
    }
}

static rw_status asked_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output(call, 1, asked.dtype, RW_SHAPE(N));
}

static rw_status asked_kernel(const rw_kernel *k)
{
    const size_t size = rw_dtype_size(asked.dtype);
    char *const z = k->out[1].data;
    const bool answer = asked.question(number(z + 3 * size, asked.dtype));
    memcpy(k->out[0].data, k->in[0].data, N * sizeof(float));
    memset(z, 0, N * size);
    z[3 * size] = answer;
    return RW_OK;
}

HOST_KERNEL_OF(asked_kernel)
static const rw_op_def asked_op = { .name = "asked", .n_inputs = 1, .n_outputs = 2, .check = asked_check,
                                    .kernel = HOST_KERNEL(asked_kernel), .grad = own_grad };

static bool is_nan(double was) { return isnan(was); }
static bool is_nan_times_0(double was) { return isnan(0 * was); }
static bool is_small(double was) { return fabs(was) < 10; }
static bool is_large(double was) { return was > 1000; }
static bool is_below(double was) { return was < -1000; }
static bool is_true(double was) { return was != 0; }

static void ask(rw_dtype dtype, bool (*question)(double was), const char *name)
{
    struct world x = open_world(NULL, NULL);
    asked.dtype = dtype;
    asked.question = question;
    rw_tensor *const y = rw_apply(x.b.t, &asked_op, &x.p, 1, NULL, 0, NULL);
    ckpt_report r = { 0 };
    cr_expect_eq(ckpt_verify(x.b.t, rw_sum(x.b.t, rw_mul(x.b.t, y, y), RW_ALL_AXES, false), &r), RW_ERR_MISMATCH,
                 "%s: %s", rw_dtype_name(dtype), name);
    cr_expect_str_eq(r.op, "asked", "%s: %s", rw_dtype_name(dtype), name);
    fixture_close(&x.b);
}

Test(verify_single_op, whatever_is_read_of_an_unwritten_output_is_found)
{
    ON_THE_CPU();
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16, RW_I32 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (rw_dtype_is_float(types[i])) {
            ask(types[i], is_nan, "is_nan");
            ask(types[i], is_nan_times_0, "is_nan_times_0");
        }
        ask(types[i], is_small, "is_small");
        ask(types[i], is_large, "is_large");
        ask(types[i], is_below, "is_below");
    }
    ask(RW_BOOL, is_true, "is_true");
}

/* ---- the execution that counts ---- */

static void is_wrong_in_one_run(const rw_kernel *k)
{
    if (own.runs == own.wrong_run) result(k)[3] += 0.5f;
}

static void read_gradient(const struct world *x, float *to)
{
    cr_assert_eq(rw_read(NULL, rw_gradient(x->p), to, N * sizeof *to), RW_OK, "%s", rw_error_message(x->b.ctx));
}

/* In whichever of its executions it is wrong: the returned gradients are right, or the call fails and they are
   unchanged. */
Test(verify_single_op, an_op_that_is_wrong_once_hands_out_no_wrong_gradient)
{
    ON_THE_CPU();
    float once[N], twice[N], got[N];
    struct world x = open_world(NULL, NULL);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    read_gradient(&x, once);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    read_gradient(&x, twice);
    fixture_close(&x.b);
    int failures = 0;
    for (int run = 1; run < 20; run++) {
        for (int reads = 0; reads < 2; reads++) {
            x = open_world("1", is_wrong_in_one_run);
            cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
            own.wrong_run = own.runs + run;
            if (reads) rw_item(x.b.t, x.loss);
            const rw_status status = rw_backward(x.b.t, x.loss);
            const char *const m = rw_error_message(x.b.ctx);
            cr_assert(!status || status == RW_ERR_MISMATCH, "%s", m);
            if (status) cr_assert(strstr(m, "own at ") || strstr(m, "of own"), "%s", m);
            failures += status != RW_OK;
            rw_error_clear(x.b.ctx);
            read_gradient(&x, got);
            cr_assert_eq(memcmp(got, status ? once : twice, sizeof got), 0, "wrong in run %d: %s", run,
                         status ? "gradients changed" : "they are wrong");
            own.wrong_run = 0;
            if (status) { /* and the step can be repeated */
                cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
                read_gradient(&x, got);
                cr_assert_eq(memcmp(got, twice, sizeof got), 0);
            }
            fixture_close(&x.b);
        }
    }
    cr_assert_geq(failures, 8);
}

/* Wrong in its very first execution, or in any other of a context's first step. */
Test(verify_single_op, an_op_that_is_wrong_the_first_time_hands_out_no_wrong_gradient)
{
    ON_THE_CPU();
    float right[N], got[N];
    struct world x = open_world(NULL, NULL);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    read_gradient(&x, right);
    fixture_close(&x.b);
    x = open_world("1", NULL);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    const int runs = own.runs;
    cr_assert_geq(runs, 5, "two rooms, a rehearsal, the run and its replay: %d", runs);
    fixture_close(&x.b);
    for (int run = 1; run <= runs; run++) {
        x = open_world("1", is_wrong_in_one_run);
        own.wrong_run = run;
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_ERR_MISMATCH, "wrong in run %d of %d", run, runs);
        cr_assert(strstr(rw_error_message(x.b.ctx), "own at ") || strstr(rw_error_message(x.b.ctx), "of own"), "%d: %s",
                  run, rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        read_gradient(&x, got); /* once, not twice */
        cr_assert_eq(memcmp(got, right, sizeof got), 0, "wrong in run %d", run);
        fixture_close(&x.b);
    }
}

/* A rehearsal names it whichever of its executions is wrong, and leaves the program's own step unchanged. */
Test(verify_single_op, an_op_that_is_wrong_in_one_run_of_a_rehearsal_is_named)
{
    ON_THE_CPU();
    float right[N], got[N];
    struct world x = open_world(NULL, NULL);
    cr_assert_eq(ckpt_verify(x.b.t, x.loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    const int runs = own.runs;
    cr_assert_geq(runs, 5, "two rooms, one run without recompute, one with it and a replay: %d", runs);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    read_gradient(&x, right);
    fixture_close(&x.b);
    for (int run = 1; run <= runs; run++) {
        ckpt_report r = { 0 };
        x = open_world(NULL, is_wrong_in_one_run);
        own.wrong_run = run;
        cr_assert_eq(ckpt_verify(x.b.t, x.loss, &r), RW_ERR_MISMATCH, "wrong in run %d of %d", run, runs);
        cr_assert_str_eq(r.op, "own", "wrong in run %d: %s", run, r.op);
        cr_assert_eq(r.element, 3);
        own.wrong_run = 0;
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        read_gradient(&x, got);
        cr_assert_eq(memcmp(got, right, sizeof got), 0, "wrong in run %d", run);
        fixture_close(&x.b);
    }
}

/* REWIND_VERIFY=digest detects a replay that differs: either the first computation is wrong, or the replay. */
Test(verify_single_op, an_op_that_is_wrong_once_differs_from_its_replay)
{
    ON_THE_CPU();
    for (int run = 1; run <= 2; run++) {
        struct world x = open_world("digest", is_wrong_in_one_run);
        own.wrong_run = run;
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_ERR_MISMATCH, "wrong in run %d", run);
        cr_assert(strstr(rw_error_message(x.b.ctx), "own"), "%s", rw_error_message(x.b.ctx));
        fixture_close(&x.b);
    }
}

/* Each digest of a value that two nodes read is computed once: an op that overwrites its input, which was read before,
   is the one that is named. */
Test(verify_single_op, an_op_that_overwrites_a_value_read_before_is_named)
{
    ON_THE_CPU();
    struct world x = open_world(NULL, NULL);
    rw_tensor *const y = rw_exp(x.b.t, x.p), *const z = rw_tanh(x.b.t, y);
    own.plant = writes_to_its_input;
    rw_tensor *const u = rw_mul(x.b.t, rw_apply(x.b.t, &own_op, (rw_tensor *[]){ y }, 1, NULL, 0, NULL), z);
    ckpt_report r = { 0 };
    cr_assert_eq(ckpt_verify(x.b.t, rw_sum(x.b.t, u, RW_ALL_AXES, false), &r), RW_ERR_MISMATCH);
    cr_assert_str_eq(r.op, "own");
    cr_assert_eq(r.cause, CKPT_CAUSE_INPUT_WRITTEN, "%s", ckpt_cause_name(r.cause));
    fixture_close(&x.b);
}

/* Memory that the loss was computed from changes without the library's knowledge before backward: an error, and no
   gradient. */
static void changes_between(bool global)
{
    float before[N], after[N];
    struct world x = open_world("1", NULL);
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK);
    read_gradient(&x, before);
    rw_tape_reset(x.b.t);
    record(&x);
    rw_item(x.b.t, x.loss);
    cr_assert_eq(rw_error_status(x.b.ctx), RW_OK, "%s", rw_error_message(x.b.ctx));
    if (global) own.factor = 2;
    else ((float *)rw_tensor_data(x.p))[4] += 1;
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_ERR_MISMATCH);
    const char *const m = rw_error_message(x.b.ctx);
    cr_assert(strstr(m, "when the loss was read it gave different bytes than now"), "%s", m);
    cr_assert(global || strstr(m, "\"p\" has changed since"), "%s", m);
    rw_error_clear(x.b.ctx);
    read_gradient(&x, after);
    cr_assert_eq(memcmp(before, after, sizeof before), 0, "the gradients are what they were");
    cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    fixture_close(&x.b);
}

Test(verify_single_op, a_change_between_the_loss_and_backward_is_an_error)
{
    ON_THE_CPU();
    changes_between(true);
    changes_between(false);
}

/* Values that are read, and effects, are verified under REWIND_VERIFY=1: a faulty op is detected without a backward. */
Test(verify_single_op, a_value_that_is_read_is_verified)
{
    ON_THE_CPU();
    struct world x = open_world("1", writes_after);
    float got[N];
    rw_tensor *const y = rw_apply(x.b.t, &own_op, &x.p, 1, NULL, 0, NULL);
    cr_assert_eq(rw_read(x.b.t, y, got, sizeof got), RW_ERR_MISMATCH);
    cr_assert(strstr(rw_error_message(x.b.ctx), "after its output 0"), "%s", rw_error_message(x.b.ctx));
    fixture_close(&x.b);
}

/* ---- sums ---- */

/* A product whose sum with the existing gradient counts its executions. */
static rw_status adds_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data, *const sum = rw_kernel_has(k, 1) ? k->in[1].data : NULL;
    float *const y = k->out[0].data;
    own.runs++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] + (sum ? sum[i] : 0);
    if (sum) y[5] += (float)own.runs;
    return RW_OK;
}

HOST_KERNEL_OF(adds_kernel)
static const rw_op_def adds = { .name = "adds", .n_inputs = 2, .n_outputs = 1, .check = own_check,
                                .optional = RW_OP_INPUT(1), .inplace = RW_INPLACE({ 0, 1 }),
                                .kernel = HOST_KERNEL(adds_kernel) };

static rw_status summed_grad(rw_grad_call *g)
{
    rw_tensor *const sum = rw_grad_accumulator(g, 0), *const dy = rw_grad_upstream(g, 0);
    rw_tensor *const in[] = { dy, sum };
    return rw_grad_set_sum(g, 0, sum ? rw_apply(rw_grad_tape(g), &adds, in, 2, NULL, 0, NULL) : dy);
}

static const rw_op_def summed = { .name = "summed", .n_inputs = 1, .n_outputs = 1, .check = own_check,
                                  .kernel = HOST_KERNEL(own_kernel), .grad = summed_grad };

/* It adds to an existing gradient: while that is clear there is nothing to detect. */
Test(verify_single_op, an_impure_sum_is_seen_as_soon_as_there_is_something_to_add_to)
{
    ON_THE_CPU();
    struct world x = open_world(NULL, NULL);
    rw_tensor *const y = rw_apply(x.b.t, &summed, &x.p, 1, NULL, 0, NULL);
    rw_tensor *const loss = rw_sum(x.b.t, y, RW_ALL_AXES, false);
    ckpt_report r = { 0 };
    cr_assert_eq(ckpt_verify(x.b.t, loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    cr_assert_eq(rw_backward(x.b.t, loss), RW_OK);
    cr_assert_eq(ckpt_verify(x.b.t, loss, &r), RW_ERR_MISMATCH);
    cr_assert_str_eq(r.op, "adds");
    cr_assert_eq(r.element, 5);
    fixture_close(&x.b);
}

/* ---- around the arena ---- */

static const rw_context *beside;

static void write_to_lent(bool after)
{
    for (const struct rw_arena *a = rw_pool_of(beside)->arenas.first; a; a = a->next)
        if (a->lent) ((char *)a->data)[after ? a->bytes - RW_MARGIN : RW_MARGIN - 1] = 1;
}

static void writes_after_the_arena(const rw_kernel *k) { write_to_lent(true); }
static void writes_before_the_arena(const rw_kernel *k) { write_to_lent(false); }

/* The program does not end at a protected page: the report names the op, and gradients are unchanged. */
Test(verify_single_op, a_write_beside_the_arena_is_named)
{
    ON_THE_CPU();
    static void (*const plants[])(const rw_kernel *k) = { writes_before_the_arena, writes_after_the_arena };
    static const char *const said[] = { "it wrote before the arena", "it wrote after the arena" };
    for (int i = 0; i < 2; i++) {
        struct world x = open_world(NULL, plants[i]);
        ckpt_report r = { 0 };
        beside = x.b.ctx;
        cr_assert_eq(ckpt_verify(x.b.t, x.loss, &r), RW_ERR_MISMATCH);
        cr_expect(r.cause == CKPT_CAUSE_OUTSIDE && !strcmp(r.op, "own") && !strcmp(r.detail, said[i]), "%s: %s", r.op,
                  r.detail);
        fixture_close(&x.b);
        x = open_world("1", NULL);
        beside = x.b.ctx;
        size_t bytes;
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        unsigned char *const before = all_gradients(x.b.ctx, &bytes);
        rw_tape_reset(x.b.t);
        record(&x);
        own.plant = plants[i];
        cr_assert_eq(rw_backward(x.b.t, x.loss), RW_ERR_MISMATCH);
        cr_expect(strstr(rw_error_message(x.b.ctx), said[i]), "%s", rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        unsigned char *const after = all_gradients(x.b.ctx, &bytes);
        cr_expect_eq(first_difference(before, after, bytes), -1);
        free(before);
        free(after);
        fixture_close(&x.b);
    }
}

/* ---- rules ---- */

static int rule_calls, rule_is_fickle;

static rw_status fickle_rule(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *dx = rw_grad_upstream(g, 0);
    for (int i = 0; rule_is_fickle && i < 3 * rule_calls; i++) dx = rw_scale(t, dx, 1);
    rule_calls++;
    return rw_grad_set(g, 0, dx);
}

static const rw_op_def fickle_ruled = { .name = "fickle_ruled", .n_inputs = 1, .n_outputs = 1, .check = own_check,
                                        .kernel = HOST_KERNEL(own_kernel), .grad = fickle_rule };

Test(verify_single_op, a_rule_that_records_more_the_second_time_is_named)
{
    for (rule_is_fickle = 0; rule_is_fickle < 2; rule_is_fickle++) {
        rule_calls = 0;
        struct world x = open_world(NULL, NULL);
        rw_tensor *const y = rw_apply(x.b.t, &fickle_ruled, &x.p, 1, NULL, 0, NULL);
        rw_tensor *const loss = rw_sum(x.b.t, rw_mul(x.b.t, y, y), RW_ALL_AXES, false);
        ckpt_report r = { 0 };
        cr_assert_eq(ckpt_verify(x.b.t, loss, &r), rule_is_fickle ? RW_ERR_MISMATCH : RW_OK);
        if (rule_is_fickle) {
            cr_assert_eq(r.cause, CKPT_CAUSE_RULE, "%s", ckpt_cause_name(r.cause));
            cr_assert_str_eq(r.op, "fickle_ruled");
            cr_assert(strstr(r.site, "verify_single_op.c:"), "%s", r.site);
        }
        fixture_close(&x.b);
    }
}
