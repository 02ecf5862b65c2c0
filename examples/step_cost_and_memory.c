/*
 * Measuring: the cost of a step before it runs (rw_tape_cost), and its memory afterwards (rw_memory_stats), under three
 * policies.
 *
 *   measure [--quick]
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <string.h>

enum { LAYERS = 6, WIDTH = 128 };

static rw_tensor *record(rw_tape *t, rw_tensor *up, rw_tensor *down, int rows)
{
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(rows, WIDTH));
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "block");
        rw_tensor *const h = rw_linear_gelu(t, x, up, RW_NONE);
        x = rw_dropout_add(t, rw_linear(t, h, down, RW_NONE), x, 0.1f);
        ckpt_end(t);
    }
    return rw_mean_all(t, rw_mul(t, x, x));
}

static void print_cost(const rw_cost *c)
{
    const double all = c->forward_flops + c->replayed_flops + c->backward_flops;
    printf("  work    forward  %7.1f Mflop %7.1f MB %4zu nodes\n", c->forward_flops / 1e6, c->forward_bytes / 1e6,
           c->forward_nodes);
    printf("          replayed %7.1f Mflop %7.1f MB %4zu nodes, %.0f %% of all\n", c->replayed_flops / 1e6,
           c->replayed_bytes / 1e6, c->replayed_nodes, 100 * c->replayed_flops / all);
    printf("          backward %7.1f Mflop %7.1f MB %4zu nodes\n", c->backward_flops / 1e6, c->backward_bytes / 1e6,
           c->backward_nodes);
}

/* Prints the memory breakdown of the last step. */
static void print_memory(const rw_memory *m)
{
    const struct {
        const char *name;
        size_t bytes;
    } lines[] = {
        { "parameters", m->parameters },
        { "gradients", m->gradients },
        { "optimizer", m->optimizer },
        { "inputs", m->inputs },
        { "results held", m->results },
        { "activations kept", m->kept },
        { "activations replayed", m->replayed },
        { "workspace", m->workspace },
        { "peak of activations", m->measured_peak },
        { "  as predicted", m->predicted_peak },
        { "tape and plans", m->tape + m->plans },
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        printf("  %-6s  %-22s %10.1f kB\n", i ? "" : "bytes", lines[i].name, (double)lines[i].bytes / 1e3);
}

/* Predicts the cost of a step under one policy, runs it, and prints both. */
static rw_status measure(rw_context *ctx, rw_tape *t, rw_tensor *up, rw_tensor *down, int rows, const char *policy)
{
    rw_cost cost;
    rw_memory memory;
    rw_status status = ckpt_set_policy(t, policy);
    rw_tensor *const loss = record(t, up, down, rows);
    if (!status) status = rw_tape_cost(t, loss, &cost); /* plans; runs nothing */
    if (!status) status = rw_backward(t, loss);         /* the plan exists already */
    if (!status) status = rw_memory_stats(ctx, &memory);
    if (!status) {
        printf("%s\n", ckpt_policy(t));
        print_cost(&cost);
        print_memory(&memory);
        if (memory.predicted_peak != memory.measured_peak) status = RW_ERR_MISMATCH;
    }
    rw_tape_reset(t);
    rw_zero_grad(ctx);
    return status;
}

int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    if (argc > 1 + quick) return fprintf(stderr, "usage: measure [--quick]\n"), 2;
    const int rows = quick ? 32 : 512;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .seed = 1 });
    if (!status) status = rw_tape_create(&t, ctx);
    rw_tensor *const up = status ? NULL : rw_param(ctx, "up", RW_F32, RW_SHAPE(4 * WIDTH, WIDTH));
    rw_tensor *const down = status ? NULL : rw_param(ctx, "down", RW_F32, RW_SHAPE(WIDTH, 4 * WIDTH));
    if (!status) status = rw_init_normal(up, 0, 0.05);
    if (!status) status = rw_init_normal(down, 0, 0.05);
    if (!status) status = rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 1e-3 });
    static const char *const policies[] = { "none", "full", "ops:linear" };
    for (int i = 0; !status && i < 3; i++) status = measure(ctx, t, up, down, rows, policies[i]);
    if (status) fprintf(stderr, "%s: %s\n", rw_status_name(status), rw_error_message(ctx));
    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return status != RW_OK || fflush(stdout) || ferror(stdout);
}
