/*
 * Before running: memory and time of a recorded step under a policy (rw_tape_plan), the frontier of all budgets
 * (rw_tape_frontier), and the step under one of them. Costs are measured first, in ordinary training steps, so that
 * predicted milliseconds are meaningful.
 *
 *   plan [POLICY]      e.g. plan budget:1MiB
 */
#include <rewind/rewind.h>

#include <stdio.h>
#include <string.h>

enum { LAYERS = 8, WIDTH = 128, ROWS = 256 };

static rw_tensor *record(rw_tape *t, rw_tensor *up, rw_tensor *down)
{
    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(ROWS, WIDTH));
    for (int l = 0; l < LAYERS; l++) {
        ckpt_begin(t, "block");
        x = rw_dropout_add(t, rw_linear(t, rw_linear_gelu(t, x, up, RW_NONE), down, RW_NONE), x, 0.1f);
        ckpt_end(t);
    }
    return rw_mean_all(t, rw_mul(t, x, x));
}

static rw_status measure_costs(rw_context *ctx, rw_tape *t, rw_tensor *up, rw_tensor *down)
{
    rw_status status = rw_profile_begin(ctx);
    for (int step = 0; !status && step < 5; step++) {
        status = rw_backward(t, record(t, up, down));
        rw_zero_grad(ctx);
        rw_tape_reset(t);
    }
    return status ? status : rw_profile_end(ctx);
}

static void print_prediction(const char *policy, const rw_prediction *p)
{
    printf("%-12s peak %9zu bytes, %.2f ms", policy, p->peak_bytes, p->ms);
    if (p->bound_ms > 0) printf(", at most %.1f %% above the best possible", 100 * p->gap);
    printf("\n%12s at its peak, %s of %s in \"%s\": kept %zu, replayed %zu, gradients %zu, workspace %zu\n", "",
           p->where.kind, p->where.op, p->where.region, p->at_peak.kept, p->at_peak.replayed, p->at_peak.adjoint,
           p->at_peak.workspace);
}

/* A budget that is too small is also a valid answer. */
static rw_status ask(rw_context *ctx, rw_tape *t, rw_tensor *loss, const char *policy)
{
    rw_prediction p;
    const rw_status status = rw_tape_plan(t, loss, policy, &p);
    if (status == RW_OK) print_prediction(policy, &p);
    if (status != RW_ERR_BUDGET) return status;
    printf("%-12s does not fit: %zu bytes are the least\n", policy, p.least_bytes);
    rw_error_clear(ctx);
    return RW_OK;
}

static rw_status print_frontier(rw_tape *t, rw_tensor *loss)
{
    rw_frontier_point points[8];
    size_t n = sizeof points / sizeof *points;
    const rw_status status = rw_tape_frontier(t, loss, points, &n);
    for (size_t i = 0; !status && i < n; i++)
        printf("  budget:%zuB gives %.2f ms, and nothing below %.2f\n", points[i].peak_bytes, points[i].ms,
               points[i].bound_ms);
    return status;
}

/* Measures costs, prints predictions and the frontier, then runs the step. */
static rw_status run(rw_context *ctx, rw_tape *t, const char *policy)
{
    rw_tensor *const up = rw_param(ctx, "up", RW_F32, RW_SHAPE(4 * WIDTH, WIDTH));
    rw_tensor *const down = rw_param(ctx, "down", RW_F32, RW_SHAPE(WIDTH, 4 * WIDTH));
    rw_memory m;
    rw_status status = rw_init_normal(up, 0, 0.05);
    if (!status) status = rw_init_normal(down, 0, 0.05);
    if (!status) status = measure_costs(ctx, t, up, down);
    rw_tensor *const loss = status ? NULL : record(t, up, down);
    if (!status) status = ask(ctx, t, loss, "none");
    if (!status) status = ask(ctx, t, loss, "full");
    if (!status) status = ask(ctx, t, loss, policy);
    if (!status) status = ask(ctx, t, loss, "budget:1KiB");
    if (!status) status = print_frontier(t, loss);
    if (!status) status = ckpt_set_policy(t, policy);
    if (!status) status = rw_backward(t, loss);
    if (!status) status = rw_memory_stats(ctx, &m);
    if (!status) printf("ran under %s: peak %zu bytes\n", policy, m.measured_peak);
    return status;
}

int main(int argc, char **argv)
{
    const char *const policy = argc > 1 && strcmp(argv[1], "--quick") ? argv[1] : "budget:60%";
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_status status = rw_context_create(&ctx, NULL);
    if (!status) status = rw_tape_create(&t, ctx);
    if (!status) status = run(ctx, t, policy);
    if (status) fprintf(stderr, "%s: %s\n", rw_status_name(status), rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return status != RW_OK || fflush(stdout) || ferror(stdout);
}
