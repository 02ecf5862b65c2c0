/*
 * A caller's thread with a small stack: 128 KiB, the default of musl. Everything that a step does with one thread runs
 * there: planning, and the library's own product loops, whose blocks are on the stack. Also calls with thousands of
 * operands, parts or steps.
 */
#include "support/support.h"

#include "models/model.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK (1024 << 10) /* their frames are larger */
#else
#define STACK (128 << 10)
#endif

enum { BATCH = 2, SEQ = 32 };

static const char *failed; /* message of a thread, because a failed assertion ends its own thread */
static char message[512];

static void say(const char *what, rw_context *ctx)
{
    if (failed) return;
    snprintf(message, sizeof message, "%s: %s", what, rw_error_message(ctx));
    failed = message;
}

static rw_tensor *loss_of(struct model *m, rw_tape *t)
{
    static int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) tokens[i] = i % 7, targets[i] = i % 5;
    rw_tape_reset(t);
    return model_loss(m, t, BATCH, SEQ, tokens, targets);
}

static void train(struct model *m, rw_context *ctx, rw_tape *t)
{
    static const char *const policies[] = { "full", "budget:100%" };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        if (ckpt_set_policy(t, policies[i])) say(policies[i], ctx);
        rw_tensor *const loss = loss_of(m, t);
        if (!loss || rw_backward(t, loss)) say(policies[i], ctx);
    }
    ckpt_report report;
    rw_tensor *const loss = loss_of(m, t);
    if (!loss || ckpt_verify(t, loss, &report)) say("ckpt_verify", ctx);
}

static void *run(void *argument)
{
    const struct model_config *const config = argument;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    static struct model m; /* large */
    if (rw_context_create(&ctx, &(rw_context_params){ .device = test_device(), .seed = 3, .threads = 1 }))
        say("rw_context_create", NULL);
    else if (model_create(&m, ctx, config) || rw_tape_create(&t, ctx)) say("model_create", ctx);
    else train(&m, ctx, t);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return NULL;
}

static void run_small(void *(*f)(void *), const void *argument)
{
    pthread_t thread;
    pthread_attr_t attributes;
    failed = NULL;
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstacksize(&attributes, STACK), 0);
    cr_assert_eq(pthread_create(&thread, &attributes, f, (void *)argument), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

static void expect_to_run(const struct model_config *config)
{
    run_small(run, config);
    cr_assert_null(failed, "%s, %s: %s", model_name(config->kind), rw_dtype_name(config->dtype), failed);
}

static void each_model(rw_dtype dtype)
{
    for (int kind = 0; kind < MODEL_KINDS; kind++) {
        struct model_config config = { .kind = (enum model_kind)kind };
        cr_assert(model_preset(&config, "tiny"));
        config.dtype = dtype;
        config.max_seq = SEQ;
        expect_to_run(&config);
    }
}

Test(stack, is_small)
{
    each_model(RW_F64);
    each_model(RW_BF16);
}

Test(stack, is_small_on_another_processor)
{
    setenv("REWIND_ISA", "v3", 1);
    each_model(RW_F32);
}

/* ---- calls with the maximum number of parts ---- */

enum { PIECES_MAX = 8189, MANY = 20000 }; /* rw_split()'s maximum; more pointers than fit on the stack */

static rw_tensor *part[MANY];
static int64_t ones[PIECES_MAX];

static rw_tensor *filled(rw_tape *t, rw_shape shape)
{
    return rw_require_grad(t, rw_full(t, RW_F32, shape, 0.5));
}

static rw_tensor *same(rw_tensor *x, int n)
{
    for (int i = 0; i < n; i++) part[i] = x;
    return x;
}

/* Each records a value whose gradient has as many parts, from x [n, 1]; NULL if a call failed. */
static rw_tensor *pieces(rw_tape *t, rw_tensor *x, int n)
{
    for (int i = 0; i < n; i++) ones[i] = 1;
    return rw_split(t, x, 0, ones, n, part) ? NULL : rw_mul(t, part[0], part[n - 1]);
}

static rw_tensor *elements(rw_tape *t, rw_tensor *x, int n)
{
    return rw_unbind(t, x, 0, part, n) ? NULL : rw_mul(t, part[0], part[n - 1]);
}

static rw_tensor *layers(rw_tape *t, rw_tensor *x, int n)
{
    rw_tensor *const row = same(rw_slice(t, x, 0, 0, 1), n);
    return row ? rw_stack(t, part, n, 0) : NULL;
}

/* Their memory is channels last: they are transposed before they are concatenated. */
static rw_tensor *images(rw_tape *t, rw_tensor *x, int n)
{
    rw_tensor *const image = rw_reshape(t, rw_slice(t, x, 0, 0, 8), RW_SHAPE(1, 2, 2, 2));
    rw_tensor *const transposed = same(rw_permute(t, image, (const int[]){ 0, 3, 1, 2 }), n);
    return transposed ? rw_concat(t, part, n, 0) : NULL;
}

static rw_tensor *steps(rw_tape *t, rw_tensor *x, int n)
{
    rw_tensor *const w = filled(t, RW_SHAPE(4, 1)), *const in = rw_reshape(t, x, RW_SHAPE(n, 1, 1));
    return rw_lstm(t, in, RW_NONE, RW_NONE, &(rw_recurrent_weights){ w, w, RW_NONE, RW_NONE }, NULL, NULL);
}

static rw_tensor *chunks(rw_tape *t, rw_tensor *x, int n)
{
    rw_tensor *const rows = rw_reshape(t, x, RW_SHAPE(1, n, 1, 1)), *const dt = rw_reshape(t, x, RW_SHAPE(1, n, 1));
    rw_tensor *const a = rw_full(t, RW_F32, RW_SHAPE(1), -1);
    return rw_ssd_scan(t, &(rw_ssd_operands){ rows, dt, a, rows, rows, RW_NONE }, 1, NULL);
}

static const struct call {
    const char *name;
    rw_tensor *(*record)(rw_tape *t, rw_tensor *x, int n);
    int n;
} calls[] = { { "split", pieces, PIECES_MAX }, { "unbind", elements, PIECES_MAX },
              { "stack", layers, MANY },        { "images", images, MANY },
              { "lstm", steps, PIECES_MAX },   { "ssd_scan", chunks, PIECES_MAX } };

/* Records the call on a thread with a small stack, and takes its gradient. */
static void *record(void *argument)
{
    const struct call *const call = argument;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_tensor *dx = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = test_device(), .threads = 1 })) say("context", NULL);
    else if (rw_tape_create(&t, ctx)) say("tape", ctx);
    else {
        rw_tensor *const x = filled(t, RW_SHAPE(call->n, 1)), *const y = call->record(t, x, call->n);
        if (!y || rw_grad(t, rw_sum(t, y, RW_ALL_AXES, false), &x, 1, &dx)) say(call->name, ctx);
    }
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return NULL;
}

Test(stack, is_small_for_calls_of_thousands_of_parts)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        run_small(record, &calls[i]);
        cr_assert_null(failed, "%s", failed);
    }
}
