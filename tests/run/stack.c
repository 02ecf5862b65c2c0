/*
 * A caller's thread with a small stack: 128 KiB, what musl gives one. Everything that a step does with one thread runs
 * there, planning as well, the own loops of products with it, whose blocks lie on the stack.
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

static const char *failed; /* what a thread says, as an assertion ends the thread it is in */
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

static void expect_to_run(const struct model_config *config)
{
    pthread_t thread;
    pthread_attr_t attributes;
    failed = NULL;
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstacksize(&attributes, STACK), 0);
    cr_assert_eq(pthread_create(&thread, &attributes, run, (void *)config), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
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
