/*
 * The planner compared with those of peers (tests/remat/baseline_planners.h): each peer's peak and predicted step time,
 * our time at exactly that peak, and their ratio; the worst of all ratios last. All are evaluated by rw_simulate();
 * nothing is executed.
 *
 *   peer_planners [KIND]...
 *     gpt, llama   12 layers, without dropout, as required by compilers whose replays draw other numbers
 *     chain        24 steps of unequal bytes and seconds, whose backward reads the input
 */
#include "figure.h"
#include "models/synthetic_op.h"
#include "models/model.h"
#include "remat/baseline_planners.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 2
#define SEQ 256
#define STEPS 24
#define UNITS_PER_MIB (1048576 / SYNTH_UNIT)

static void fail(const rw_context *ctx)
{
    fprintf(stderr, "peer_planners: %s\n", rw_error_message(ctx));
    exit(1);
}

static rw_tensor *record_chain(rw_tape *t, rw_context *ctx)
{
    rw_tensor *x = rw_param(ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < STEPS; i++) {
        ckpt_begin(t, "step");
        x = synth_apply(
            t, &x, 1,
            (struct synth){ .units = (1 + i * 5 % 7) * UNITS_PER_MIB, .us = 1000 + i * 1100 % 4000, .reads = 1 });
        ckpt_end(t);
    }
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static rw_tensor *record_model(rw_tape *t, rw_context *ctx, enum model_kind kind)
{
    static struct model m;
    static int32_t tokens[BATCH * SEQ];
    struct model_config config = { 0 };
    model_preset(&config, "tiny");
    config.kind = kind;
    config.layers = 12;
    config.width = 256;
    config.hidden = 0;
    config.dropout = 0;
    config.max_seq = SEQ;
    return model_declare(&m, ctx, &config) ? NULL : model_loss(&m, t, BATCH, SEQ, tokens, tokens);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* The worst ratio of our time to a peer's so far. */
static double worst;

static void print_rival(const struct rw_problem *p, const struct rw_frontier *f, const char *name,
                        struct rw_choice *choice)
{
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    if (rw_simulate(p, choice, &sim, &cost)) fail(p->t->ctx);
    const struct rw_frontier_entry *const ours = rival_ours(f, cost.peak);
    printf("  %-20s %8.2f  %9.3f", name, mib(cost.peak), 1e3 * cost.seconds);
    const double ratio = ours ? ours->seconds / cost.seconds : INFINITY;
    if (ours) printf("  %9.3f  %.4f\n", 1e3 * ours->seconds, ratio);
    else printf("       none\n");
    worst = figure_worst(worst, ratio);
    rw_simulation_finish(&sim);
    rw_choice_finish(choice);
}

static void print_table(rw_tape *t, const char *kind, const rw_tensor *loss)
{
    const struct rw_request request = rw_step_request(t, &loss->id, 1);
    struct rw_problem p;
    struct rw_frontier f;
    struct rw_choice choice;
    char name[RIVAL_NAME];
    if (rw_problem_open(&p, t, &request) || rw_frontier_init(&f, &p)) fail(t->ctx);
    printf("%s: none takes %.2f MiB and %.3f ms\n", kind, mib(rw_frontier_none_peak(&f)),
           1e3 * rw_frontier_none_seconds(&f));
    printf("  rival                peak MiB         ms       ours   ratio\n");
    for (size_t i = 0; rival_next(&p, i, name, &choice); i++) print_rival(&p, &f, name, &choice);
    rw_frontier_finish(&f);
    rw_problem_close(&p);
}

static void print_kind(const char *kind)
{
    rw_context *ctx = NULL;
    rw_tape *t;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 }) ||
        rw_tape_create(&t, ctx))
        fail(ctx);
    rw_tensor *const loss = !strcmp(kind, "chain")
                                ? record_chain(t, ctx)
                                : record_model(t, ctx, strcmp(kind, "llama") ? MODEL_GPT : MODEL_LLAMA);
    if (!loss) fail(ctx);
    print_table(t, kind, loss);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = { "gpt", "llama", "chain" };
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "gpt") || !strcmp(argv[i], "llama") || !strcmp(argv[i], "chain")) continue;
        fprintf(stderr, "peer_planners: expected gpt, llama or chain, got \"%s\"\n", argv[i]);
        return 2;
    }
    for (size_t i = 0; argc == 1 && i < sizeof kinds / sizeof *kinds; i++) print_kind(kinds[i]);
    for (int i = 1; i < argc; i++) print_kind(argv[i]);
    figure("predicted step over what others would keep, each at its own peak, worst of all", worst, "times", 1.001);
    return answer_end("peer_planners", 0);
}
