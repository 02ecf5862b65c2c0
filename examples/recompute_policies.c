/*
 * Policies: the same step under several of them. Shows which values each one keeps, that all give the same bytes,
 * decisions for single values, and the plan as ckpt_explain() prints it.
 *
 *   policies [POLICY] [--quick]        explains POLICY; default names:keep=up
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, ROWS = 64, WIDTH = 64 };

static rw_tensor *make_weights(rw_context *ctx)
{
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    if (w) rw_init_normal(w, 0, 0.12);
    return w;
}

/* decide: decides two values individually, which overrides the policy. */
static rw_tensor *record(rw_tape *t, rw_tensor *w, bool decide)
{
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(ROWS, WIDTH));
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "block");
        rw_tensor *h = ckpt_name(t, rw_linear(t, x, w, RW_NONE), "up"); /* kept by names:keep=up */
        h = rw_gelu(t, h);
        if (decide && l == 0) ckpt_keep(t, h); /* kept, although its region is replayed */
        h = rw_linear(t, h, w, RW_NONE);
        x = rw_dropout_add(t, h, x, 0.1f);
        ckpt_end(t);
    }
    rw_tensor *const y = rw_tanh(t, x);
    if (decide) ckpt_recompute(t, y); /* replayed, although it is in no region */
    return rw_mean_all(t, rw_mul(t, y, y));
}

/* One step under a policy, from the same random numbers as every other. */
static rw_status step(rw_context *ctx, rw_tape *t, rw_tensor *w, const char *policy, bool decide, float *ret_gradient)
{
    rw_generator_set(ctx, (rw_generator_state){ .seed = 7 });
    rw_zero_grad(ctx);
    rw_status status = ckpt_set_policy(t, policy);
    rw_tensor *const loss = record(t, w, decide);
    if (!status) status = rw_backward(t, loss);
    if (!status) status = rw_read(t, rw_gradient(w), ret_gradient, WIDTH * WIDTH * sizeof(float));
    rw_memory m = { 0 };
    if (!status) status = rw_memory_stats(ctx, &m);
    if (!status) printf("%-24s%-12s loss %.6f  kept %8zu bytes  peak %8zu bytes\n", policy, decide ? " by hand" : "",
                        rw_item(t, loss), m.kept, m.measured_peak);
    rw_tape_reset(t);
    return status;
}

static rw_status compare(rw_context *ctx, rw_tape *t, rw_tensor *w)
{
    static const char *const policies[] = { "full", "selective:block", "uniform:2", "block:2", "ops:linear",
                                            "names:keep=up" };
    static float none[WIDTH * WIDTH], other[WIDTH * WIDTH];
    rw_status status = step(ctx, t, w, "none", false, none);
    for (size_t i = 0; !status && i < 2 * (sizeof policies / sizeof *policies); i++) {
        status = step(ctx, t, w, policies[i / 2], i % 2, other);
        if (!status && memcmp(none, other, sizeof none)) status = RW_ERR_MISMATCH;
    }
    return status;
}

int main(int argc, char **argv)
{
    const char *const policy = argc > 1 && strcmp(argv[1], "--quick") ? argv[1] : "names:keep=up";
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_status status = rw_context_create(&ctx, NULL);
    if (!status) status = rw_tape_create(&t, ctx);
    rw_tensor *const w = status ? NULL : make_weights(ctx);
    if (!status) status = compare(ctx, t, w);
    if (!status) puts("every gradient has the bytes of none\n");

    /* A mistake is refused with its position, and the current policy stays. */
    if (!status && ckpt_set_policy(t, "uniform:two") == RW_ERR_POLICY) printf("refused: %s\n", rw_error_message(ctx));
    if (!status) rw_error_clear(ctx);

    /* Explains the plan for one policy, without running it. */
    if (!status) status = ckpt_set_policy(t, policy);
    if (!status) printf("now %s:\n", ckpt_policy(t));
    if (!status && record(t, w, true)) status = ckpt_explain(t, stdout);
    if (status) fprintf(stderr, "%s: %s\n", rw_status_name(status), rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return status != RW_OK || fflush(stdout) || ferror(stdout);
}
