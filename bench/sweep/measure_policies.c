/*
 * The rows: steps of all policies at one sequence length.
 *
 * First costs are measured in steps under `none`, if no file gives them. Then each policy has a short run in a context
 * of its own, from the seed on: it measures the memory of its first step, and the results of its own updates. Then all
 * are timed alternately, one step each per round from the same parameters, buffers and random state, so that noise
 * affects all equally; one update ends the round.
 */
#include "sweep/measure_policies.h"

#include "figure.h"
#include "sweep/model_session.h"

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

/* Forward and backward under the current policy; their time by the device's clock. */
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

/* The store's rates are saved with the costs: with rates measured anew, a plan would not be the same again. A store
   that is unusable has none. */
static rw_status measure_store(struct sweep_run *r, const struct sweep_options *o, int seq)
{
    rw_prediction p;
    rw_status status = ckpt_set_policy(r->t, "budget:100%+offload");
    if (!status) status = sweep_predict(r, o->batch, seq, NULL, &p);
    if (status != RW_ERR_IO) return status;
    rw_error_clear(r->m.ctx);
    return RW_OK;
}

rw_status sweep_measure_costs(struct sweep_options *o, const struct sweep_text *text, int seq)
{
    struct sweep_run r;
    struct batch b;
    rw_tensor *loss;
    double ms;
    rw_status status = sweep_run_open(&r, o, seq);
    if (!batch_open(&b, o, seq)) status = RW_ERR_MEMORY;
    for (int s = -1; !status && s < COST_STEPS; s++) {
        progress("measuring costs, step", s + 1, COST_STEPS);
        sweep_fill_batch(text, b.size, seq, s + 1, b.tokens, b.targets);
        if (!s) status = rw_profile_begin(r.m.ctx); /* the one before made plans and touched pages */
        if (!status) status = step(&r, &b, &loss, &ms);
        rw_tape_reset(r.t);
    }
    if (!status) status = rw_profile_end(r.m.ctx);
    if (!status && sweep_has_store(o)) status = measure_store(&r, o, seq);
    if (!status) status = rw_costs_save(r.m.ctx, o->costs);
    o->has_costs = !status;
    batch_close(&b);
    return sweep_run_close(&r, status);
}

/* ---- a run of its own ---- */

/* Steps with their own updates, which are compared: the third one depends on all effects of the first update. */
enum { OWN_STEPS = 3 };

static rw_status note_memory(const struct sweep_run *r, const struct sweep_resident *resident, struct sweep_row *row)
{
    rw_memory m;
    const rw_status status = rw_memory_stats(r->m.ctx, &m);
    if (status) return status;
    row->kept = m.kept;
    row->peak = m.measured_peak;
    row->predicted = m.predicted_peak;
    row->device = m.device;
    row->resident = rw_context_device(r->m.ctx) == RW_DEVICE_CPU ? sweep_resident_end(resident) : 0;
    return RW_OK;
}

/* resident: counts from before the model was created; NULL: it is not the first step. */
static rw_status own_step(struct sweep_run *r, const struct sweep_text *text, struct sweep_row *row, struct batch *b,
                          int s, const struct sweep_resident *resident)
{
    rw_tensor *loss;
    double ms;
    progress(row->policy, s, OWN_STEPS);
    sweep_fill_batch(text, b->size, b->seq, s, b->tokens, b->targets);
    rw_status status = step(r, b, &loss, &ms);
    if (!status && resident) status = note_memory(r, resident, row);
    if (!status) outcome_loss(&row->own, s, rw_item(r->t, loss));
    return status ? status : outcome_gradients(&row->own, r->m.ctx, s);
}

static rw_status own_update(struct sweep_run *r, struct sweep_row *row, int s)
{
    rw_tape_reset(r->t);
    rw_status status = rw_optimizer_step(r->opt);
    if (!status) status = model_end_step(&r->m, r->t);
    return status ? status : outcome_state(&row->own, r->m.ctx, s);
}

/* Runs in a context of its own, from the seed on: the memory of a step, and the results of the updates. */
static rw_status run_alone(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row *row)
{
    struct sweep_resident resident;
    struct sweep_run r;
    struct batch b;
    sweep_resident_begin(&resident);
    rw_status status = sweep_run_open(&r, o, row->seq);
    if (!batch_open(&b, o, row->seq)) status = RW_ERR_MEMORY;
    if (!status) status = ckpt_set_policy(r.t, row->policy);
    for (int s = 0; !status && s < row->own.steps; s++) {
        status = own_step(&r, text, row, &b, s, s ? NULL : &resident);
        if (!status) status = own_update(&r, row, s);
    }
    if (!status) status = outcome_end(&row->own, r.m.ctx);
    batch_close(&b);
    return sweep_run_close(&r, status);
}

/* Memory that a process touches once - a library's tables, its threads - must not be counted for the first row. */
static rw_status touch_once(const struct sweep_options *o, const struct sweep_text *text, int seq)
{
    struct sweep_row thrown_away = { .policy = "none", .seq = seq };
    rw_status status = outcome_open(&thrown_away.own, 0) ? RW_OK : RW_ERR_MEMORY;
    if (!status) status = run_alone(o, text, &thrown_away);
    outcome_close(&thrown_away.own);
    return status;
}

/* ---- buffers ---- */

/* State that forward writes and updates do not, such as running statistics: copies in host memory, from which each row
   starts. */
struct buffers {
    unsigned char *bytes;
};

static bool is_buffer(rw_tensor *p)
{
    return p && !rw_gradient(p);
}

static bool buffers_open(struct buffers *b, rw_context *ctx)
{
    size_t all = 1;
    for (size_t i = 0; rw_param_get(ctx, i); i++)
        if (is_buffer(rw_param_get(ctx, i))) all += rw_tensor_bytes(rw_param_get(ctx, i));
    b->bytes = malloc(all);
    return b->bytes;
}

/* back: into the context; else out of it. */
static rw_status buffers_move(struct buffers *b, rw_context *ctx, bool back)
{
    unsigned char *at = b->bytes;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && rw_param_get(ctx, i); i++) {
        rw_tensor *const p = rw_param_get(ctx, i);
        if (!is_buffer(p)) continue;
        const size_t n = rw_tensor_bytes(p);
        status = back ? rw_write(p, at, n) : rw_read(NULL, p, at, n);
        at += n;
    }
    return status;
}

/* ---- times ---- */

/* Rows that are timed together, and their times: [row][step]. */
struct rounds {
    const struct sweep_options *o;
    struct sweep_run run;
    struct batch batch;
    struct buffers buffers; /* as they were before the round */
    struct sweep_row **row;
    int n;
    double *ms;
};

/* Times step s of row i from the state `drawn`, and records its results. */
static rw_status one_row(struct rounds *x, int i, int s, rw_generator_state drawn)
{
    struct sweep_row *const row = x->row[i];
    rw_context *const ctx = x->run.m.ctx;
    rw_tensor *loss;
    rw_cost cost;
    rw_generator_set(ctx, drawn);
    rw_status status = buffers_move(&x->buffers, ctx, true);
    if (!status) status = ckpt_set_policy(x->run.t, row->policy);
    if (!status) status = step(&x->run, &x->batch, &loss, &x->ms[i * (x->o->steps + 1) + s]);
    if (!status) status = rw_tape_cost(x->run.t, loss, &cost);
    if (status) return status;
    row->replayed = cost.replayed_nodes;
    row->tflops = cost.model_flops * 1e-9; /* of one step; divided by its time later */
    outcome_loss(&row->outcome, s, rw_item(x->run.t, loss));
    status = outcome_gradients(&row->outcome, ctx, s);
    if (!status) status = outcome_state(&row->outcome, ctx, s);
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
        status = buffers_move(&x->buffers, ctx, false);
        for (int i = 0; !status && i < x->n; i++) status = one_row(x, i, s, drawn);
        if (!status) status = rw_optimizer_step(x->run.opt);
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
    rw_status status = touch_once(o, text, row[0]->seq);
    for (int i = 0; !status && i < n; i++) {
        const bool opened = outcome_open(&row[i]->outcome, o->steps);
        if (!opened || !outcome_open(&row[i]->own, OWN_STEPS - 1)) status = RW_ERR_MEMORY;
        if (!status) status = run_alone(o, text, row[i]);
    }
    if (status) return status;
    x.ms = malloc(sizeof *x.ms * (size_t)n * (size_t)(o->steps + 1));
    status = sweep_run_open(&x.run, o, row[0]->seq);
    if (!batch_open(&x.batch, o, row[0]->seq) || !x.ms) status = RW_ERR_MEMORY;
    if (!status && !buffers_open(&x.buffers, x.run.m.ctx)) status = RW_ERR_MEMORY;
    if (!status) status = run_rounds(&x, text);
    if (!status) status = predict(&x);
    batch_close(&x.batch);
    free(x.buffers.bytes);
    free(x.ms);
    return sweep_run_close(&x.run, status);
}
