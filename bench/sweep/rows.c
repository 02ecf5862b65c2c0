/*
 * The rows: steps of all policies at one sequence length.
 *
 * First costs are measured in steps under `none`, if no file gives them. Then each policy has one step in a context of
 * its own, for what that takes of the machine's memory. Then all are timed in turn, a step each per round on the same
 * parameters and numbers, so that noise hits all alike; one update ends the round.
 */
#include "sweep/rows.h"

#include "figure.h"
#include "sweep/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct batch {
    int size, seq;
    int32_t *tokens, *targets;
};

static bool batch_open(struct batch *b, const struct sweep_options *o, int seq)
{
    const size_t n = (size_t)o->batch * (size_t)seq;
    *b = (struct batch){ o->batch, seq, malloc(n * sizeof *b->tokens), malloc(n * sizeof *b->targets) };
    return b->tokens && b->targets;
}

static void batch_close(struct batch *b)
{
    free(b->tokens);
    free(b->targets);
}

static void progress(const char *what, int step, int steps)
{
    if (isatty(2)) fprintf(stderr, "\r%-40.40s %d of %d \033[K", what, step, steps);
}

/* Forward and backward under the policy in force; their time by the device's clock. */
static rw_status step(struct sweep_run *r, const struct batch *b, rw_tensor **ret_loss, double *ret_ms)
{
    rw_zero_grad(r->m.ctx);
    rw_status status = rw_timer_begin(r->m.ctx);
    if (status) return status;
    *ret_loss = model_loss(&r->m, r->t, b->size, b->seq, b->tokens, b->targets);
    status = rw_backward(r->t, *ret_loss);
    return status ? status : rw_timer_end(r->m.ctx, ret_ms);
}

/* ---- costs ---- */

enum { COST_STEPS = 4 };

rw_status sweep_measure_costs(struct sweep_options *o, const struct sweep_text *text, int seq)
{
    struct sweep_run r;
    struct batch b;
    rw_tensor *loss;
    double ms;
    rw_status status = sweep_run_open(&r, o, 0);
    if (!batch_open(&b, o, seq)) status = RW_ERR_MEMORY;
    for (int s = -1; !status && s < COST_STEPS; s++) {
        progress("measuring costs, step", s + 1, COST_STEPS);
        sweep_fill_batch(text, b.size, seq, s + 1, b.tokens, b.targets);
        if (!s) status = rw_costs_begin(r.m.ctx); /* the one before made plans and touched pages */
        if (!status) status = step(&r, &b, &loss, &ms);
        rw_tape_reset(r.t);
    }
    if (!status) status = rw_costs_end(r.m.ctx);
    if (!status) status = rw_costs_save(r.m.ctx, o->costs);
    o->has_costs = !status;
    batch_close(&b);
    return sweep_run_close(&r, status);
}

/* ---- what a step takes of the machine ---- */

static rw_status take_memory(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row *row)
{
    struct sweep_resident resident;
    struct sweep_run r;
    struct batch b;
    rw_memory memory;
    rw_tensor *loss;
    double ms;
    sweep_resident_begin(&resident);
    rw_status status = sweep_run_open(&r, o, 0);
    if (!batch_open(&b, o, row->seq)) status = RW_ERR_MEMORY;
    if (!status) status = ckpt_set_policy(r.t, row->policy);
    if (!status) {
        progress(row->policy, 0, 1);
        sweep_fill_batch(text, b.size, row->seq, 0, b.tokens, b.targets);
        status = step(&r, &b, &loss, &ms);
    }
    if (!status) status = rw_memory_stats(r.m.ctx, &memory);
    if (!status) {
        row->kept = memory.kept;
        row->peak = memory.measured_peak;
        row->predicted = memory.predicted_peak;
        row->device = memory.device;
        row->resident = r.m.ctx && rw_context_device(r.m.ctx) == RW_DEVICE_CPU ? sweep_resident_end(&resident) : 0;
    }
    batch_close(&b);
    return sweep_run_close(&r, status);
}

/* ---- times ---- */

/* Rows that are timed together, and their times: [row][step]. */
struct rounds {
    const struct sweep_options *o;
    struct sweep_run run;
    struct batch batch;
    struct sweep_row **row;
    int n;
    double *ms;
};

static rw_status one_row(struct rounds *x, int i, int s, rw_generator_state drawn)
{
    struct sweep_row *const row = x->row[i];
    rw_context *const ctx = x->run.m.ctx;
    rw_tensor *loss;
    rw_cost cost;
    rw_generator_set(ctx, drawn);
    rw_status status = ckpt_set_policy(x->run.t, row->policy);
    if (!status) status = step(&x->run, &x->batch, &loss, &x->ms[i * (x->o->steps + 1) + s]);
    if (!status) status = rw_tape_cost(x->run.t, loss, &cost);
    if (status) return status;
    row->replayed = cost.replayed_nodes;
    row->tflops = (cost.forward_flops + cost.backward_flops) * 1e-9; /* of one step; divided by its time later */
    outcome_loss(&row->outcome, s, rw_item(x->run.t, loss));
    status = outcome_gradients(&row->outcome, ctx, s);
    rw_tape_reset(x->run.t);
    return status;
}

/* One round to warm up and o->steps that count; all are compared. */
static rw_status run_rounds(struct rounds *x, const struct sweep_text *text)
{
    rw_context *const ctx = x->run.m.ctx;
    rw_status status = RW_OK;
    for (int s = 0; !status && s <= x->o->steps; s++) {
        const rw_generator_state drawn = rw_generator_get(ctx);
        progress("round", s, x->o->steps);
        sweep_fill_batch(text, x->batch.size, x->batch.seq, s, x->batch.tokens, x->batch.targets);
        for (int i = 0; !status && i < x->n; i++) status = one_row(x, i, s, drawn);
        if (!status) status = rw_adamw_step(x->run.opt);
        if (!status) status = model_end_step(&x->run.m, x->run.t);
    }
    for (int i = 0; !status && i < x->n; i++) {
        struct sweep_row *const row = x->row[i];
        row->step_ms = median_of(x->ms + i * (x->o->steps + 1) + 1, x->o->steps);
        row->tflops /= row->step_ms;
        row->loss = row->outcome.losses[x->o->steps];
        status = outcome_end(&row->outcome, ctx);
    }
    return status;
}

static rw_status predict(struct rounds *x)
{
    rw_status status = RW_OK;
    for (int i = 0; !status && i < x->n; i++) {
        rw_prediction p;
        status = sweep_predict(&x->run, x->batch.size, x->batch.seq, x->row[i]->policy, &p);
        if (!status) x->row[i]->predicted_ms = p.ms;
    }
    return status;
}

rw_status sweep_run_rows(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row **row, int n)
{
    struct rounds x = { .o = o, .row = row, .n = n };
    rw_status status = RW_OK;
    for (int i = 0; !status && i < n; i++) {
        if (!outcome_open(&row[i]->outcome, o->steps)) status = RW_ERR_MEMORY;
        if (!status) status = take_memory(o, text, row[i]);
    }
    if (status) return status;
    x.ms = malloc(sizeof *x.ms * (size_t)n * (size_t)(o->steps + 1));
    status = sweep_run_open(&x.run, o, 0);
    if (!batch_open(&x.batch, o, row[0]->seq) || !x.ms) status = RW_ERR_MEMORY;
    if (!status) status = run_rounds(&x, text);
    if (!status) status = predict(&x);
    batch_close(&x.batch);
    free(x.ms);
    return sweep_run_close(&x.run, status);
}
