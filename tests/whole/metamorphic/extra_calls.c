/* Extra calls: none of them may change a byte of the session's results. */
#include "whole/metamorphic/session_state.h"
#include "whole/fuzz/custom_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the tape may still get a graph: nothing of it may have run before, and the generator may not have been
   set. */
static bool waits_for_graph(const struct mm_stage *g, int tape)
{
    return g->s->launches && !g->graph[0] && tape == 0;
}

static bool is_recording(const struct mm_stage *g)
{
    return g->s->launches && !g->graph[0] && rw_tape_nodes(g->tape[0]) > 0;
}

/* Whether the program may load a checkpoint: no tape without a graph has a recorded step. */
static bool tapes_are_empty(const struct mm_stage *g)
{
    for (int k = g->graph[0] ? 1 : 0; k < g->s->tapes; k++)
        if (rw_tape_nodes(g->tape[k])) return false;
    return true;
}

/* ---- calls on a tape ---- */

static rw_status read_value(struct mm_stage *g, rw_tape *t, rw_tensor *x)
{
    void *const data = malloc(rw_tensor_bytes(x) + 1);
    if (!data) abort();
    const rw_status status = rw_read(t, x, data, rw_tensor_bytes(x));
    free(data);
    (void)g;
    return status;
}

static rw_status explain(rw_tape *t)
{
    FILE *const out = fopen("/dev/null", "w");
    if (!out) return RW_OK;
    const rw_status status = ckpt_explain(t, out);
    fclose(out);
    return status;
}

static rw_status graph_not_launched(rw_tape *t, rw_tensor *loss)
{
    rw_graph *graph = NULL;
    const rw_status status = rw_graph_create(&graph, t, loss, NULL);
    rw_graph_destroy(&graph);
    return status;
}

/* Runs an extra call on the loss that must not change any result. */
static rw_status of_loss(struct mm_stage *g, const struct mm_event *e, rw_tensor *loss)
{
    rw_tape *const t = g->tape[e->tape];
    rw_prediction prediction;
    rw_nonfinite where;
    rw_cost cost;
    switch ((enum mm_kind)e->kind) {
    case MM_X_ITEM: rw_item(t, loss); return rw_error_status(g->ctx);
    case MM_X_FORWARD: return rw_forward(t, &loss, 1);
    case MM_X_VERIFY: return ckpt_verify(t, loss, NULL);
    case MM_X_PLAN: return rw_tape_plan(t, loss, e->word % 2 ? "full" : NULL, &prediction);
    case MM_X_COST: return rw_tape_cost(t, loss, &cost);
    case MM_X_NONFINITE: return rw_find_nonfinite(t, loss, 0, &where);
    default: return graph_not_launched(t, loss);
    }
}

static rw_status set_policy(struct mm_stage *g, const struct mm_event *e)
{
    static const char *const policies[] = { "none", "full", "selective:a", "selective:b,c", "uniform:2", "block:1",
                                            "ops:linear,add", "discard:a", "budget:100%" };
    return ckpt_set_policy(g->tape[e->tape], policies[e->word % (sizeof policies / sizeof *policies)]);
}

/* ---- other tapes ---- */

static rw_status other_tape(struct mm_stage *g)
{
    const rw_generator_state before = rw_generator_get(g->ctx);
    rw_tape *t = NULL;
    float data[6];
    rw_status status = rw_tape_create(&t, g->ctx);
    if (!status) status = rw_read(t, rw_exp(t, rw_rand(t, RW_F32, RW_SHAPE(6))), data, sizeof data);
    rw_tape_destroy(&t);
    rw_generator_set(g->ctx, before);
    return status;
}

/* Records the statements of a tape once more, on a separate tape. The values of the session's tape are unchanged. */
static rw_tensor *record_again(struct mm_stage *g, int tape, rw_tape *t)
{
    const struct fz_program *const p = g->s->body[tape];
    rw_tensor **const kept = malloc(sizeof g->value[tape]);
    if (!kept) abort();
    memcpy(kept, g->value[tape], sizeof g->value[tape]);
    bool ok = true;
    for (int i = 0; ok && i < p->n; i++) ok = mm_record(g, tape, i, t);
    rw_tensor *const loss = ok && p->n_losses ? g->value[tape][p->loss[0]] : NULL;
    memcpy(g->value[tape], kept, sizeof g->value[tape]);
    free(kept);
    return loss;
}

/* A training step of a tape's program, up to its gradients. */
static rw_status gradients_of(struct mm_stage *g, int tape, double factor)
{
    rw_tape *t = NULL;
    rw_status status = rw_tape_create(&t, g->ctx);
    if (status) return status;
    rw_tensor *loss = record_again(g, tape, t);
    if (loss && factor != 1) loss = rw_scale(t, loss, factor);
    status = rw_error_status(g->ctx);
    if (!status && loss) status = g->s->scales ? rw_scaler_backward(g->scaler, t, loss) : rw_backward(t, loss);
    rw_tape_destroy(&t);
    return status;
}

static rw_status update(struct mm_stage *g)
{
    rw_status status = RW_OK;
    if (g->s->scales) status = rw_scaler_step(g->scaler, g->opt);
    else if (g->opt) status = rw_optimizer_step(g->opt);
    if (!status && g->average) status = rw_weight_average_step(g->average);
    return status;
}

/* Unscaled, checked and discarded: rw_scaler_update() is never called. */
static rw_status left_out(struct mm_stage *g, const struct mm_event *e)
{
    rw_status status = gradients_of(g, e->tape, 1);
    const bool unscales = g->s->scales && e->word % 2, clips = e->word / 2 % 2 && (unscales || !g->s->scales);
    if (!status && unscales) status = rw_scaler_unscale(g->scaler);
    if (!status && clips) status = rw_clip_grad_norm(g->ctx, 0.25, NULL);
    return status;
}

static rw_status skipped(struct mm_stage *g, const struct mm_event *e)
{
    rw_status status = gradients_of(g, e->tape, (double)INFINITY);
    if (!status) status = rw_scaler_step(g->scaler, g->opt);
    if (!status) status = rw_scaler_update(g->scaler);
    return status;
}

/* ---- checkpoints ---- */

static rw_status save(struct mm_stage *g)
{
    const rw_checkpoint_params params = { .folder = g->folder, .optimizer = g->opt, .average = g->average, .keep = 1 };
    rw_status status = g->checkpoint ? RW_OK : rw_checkpoint_create(&g->checkpoint, g->ctx, &params);
    if (!status) status = rw_checkpoint_save(g->checkpoint, (uint64_t)g->step, NULL, 0);
    return status ? status : rw_checkpoint_wait(g->checkpoint);
}

static rw_status load(struct mm_stage *g)
{
    rw_checkpoint_found found;
    return rw_checkpoint_load(g->checkpoint, &found);
}

static rw_status roll_back(struct mm_stage *g, const struct mm_event *e)
{
    rw_status status = save(g);
    if (status) return status;
    status = gradients_of(g, e->tape, 1);
    if (!status && g->s->scales && e->word % 2) status = rw_scaler_unscale(g->scaler);
    if (!status && e->word / 2 % 3) status = update(g);
    if (!status && g->s->scales && e->word / 2 % 3 == 2) status = rw_scaler_update(g->scaler);
    rw_error_clear(g->ctx);
    const rw_status loaded = load(g);
    return loaded ? loaded : status;
}

/* A step without lasting effect: the generator and the counts of effects are restored. */
static rw_status whole_step(struct mm_stage *g, const struct mm_event *e)
{
    const rw_generator_state before = rw_generator_get(g->ctx);
    int tally[FUZZ_COUNTERS];
    memcpy(tally, fuzz_tally_runs, sizeof tally);
    fuzz_ledger.closed = true;
    const rw_status status = e->kind == MM_X_ROLLBACK ? roll_back(g, e)
                             : e->kind == MM_X_SKIPPED ? skipped(g, e)
                                                       : left_out(g, e);
    fuzz_ledger.closed = false;
    memcpy(fuzz_tally_runs, tally, sizeof tally);
    rw_zero_grad(g->ctx);
    rw_generator_set(g->ctx, before);
    return status;
}

static rw_status averages(struct mm_stage *g)
{
    rw_weight_average *a = NULL;
    rw_status status = rw_weight_average_create(&a, g->ctx, 0.5);
    if (!status) status = rw_weight_average_step(a);
    rw_weight_average_destroy(&a);
    return status;
}

/* ---- whether a call is allowed at this point ---- */

static bool reads_a_gradient(const struct mm_stage *g)
{
    for (int k = 0; k < g->s->tapes; k++)
        if (mm_has(g->s->body[k], "gradient")) return true;
    return false;
}

/* Whether effects of the tape, on which nothing is trained so far, would happen now instead of with its backward. On a
   tape without backward its reset would drop them, or a later change refuse them. */
static bool would_settle(const struct mm_stage *g, int tape)
{
    const struct fz_program *const p = g->s->body[tape];
    if (!mm_has_effects(p)) return false;
    if (!g->s->trains[tape]) return rw_tape_pending_effects(g->tape[tape], NULL) > 0;
    for (int v = 0; v < p->n * FZ_OUTS; v++) {
        const rw_tensor *const x = g->value[tape][v];
        if (x && rw_tensor_kind_of(x) == RW_TENSOR_VALUE && rw_tensor_requires_grad(x)) return false;
    }
    return true;
}

/* Whether gradients are proportional to the loss's, so that another scale, a power of two, changes none of their
   bits. */
static bool is_scaled(const struct mm_stage *g)
{
    for (int k = 0; k < g->s->tapes; k++)
        if (mm_has(g->s->body[k], "layer") || mm_has(g->s->body[k], "custom_grad")) return false;
    return true;
}

/* Whether the extra call may be made at this point. */
static bool may(const struct mm_stage *g, const struct mm_event *e)
{
    const struct fz_program *const p = g->s->body[e->tape];
    switch ((enum mm_kind)e->kind) {
    case MM_X_READ:
    case MM_X_EVAL:
        if (e->a < 0 || !g->value[e->tape][e->a]) return false;
        /* fallthrough */
    case MM_X_EVAL_NOTHING: return !waits_for_graph(g, e->tape) && !would_settle(g, e->tape);
    case MM_X_ITEM:
    case MM_X_FORWARD:
    case MM_X_VERIFY:
    case MM_X_NONFINITE:
        if (waits_for_graph(g, e->tape) || would_settle(g, e->tape)) return false;
        /* fallthrough */
    case MM_X_PLAN:
    case MM_X_COST:
    case MM_X_GRAPH: return e->a >= 0 && e->a < p->n_losses && g->value[e->tape][p->loss[e->a]];
    case MM_X_ZERO: return g->clear;
    case MM_X_OTHER: return !is_recording(g);
    case MM_X_LOAD: return g->clear && tapes_are_empty(g);
    case MM_X_ROLLBACK:
        return g->clear && tapes_are_empty(g) && p->n_losses && !is_recording(g);
    case MM_X_SKIPPED:
        if (!g->s->scales || !tapes_are_empty(g)) return false; /* it counts as a change of them */
        /* fallthrough */
    case MM_X_LEFT_OUT:
        return g->clear && p->n_losses && !mm_has_effects(p) && !is_recording(g) && !reads_a_gradient(g) &&
               (e->kind != MM_X_SKIPPED || is_scaled(g));
    case MM_X_FAIL: return !g->s->launches || !mm_without("failed launch");
    default: return true;
    }
}

/* Makes the extra call. */
static rw_status extra(struct mm_stage *g, const struct mm_event *e)
{
    rw_tape *const t = g->tape[e->tape];
    rw_tensor *const x = e->a >= 0 ? g->value[e->tape][e->a] : NULL;
    rw_memory memory;
    switch ((enum mm_kind)e->kind) {
    case MM_X_READ: return read_value(g, t, x);
    case MM_X_EVAL: return rw_eval(t, (rw_tensor *[]){ x }, 1);
    case MM_X_EVAL_NOTHING: return rw_eval(t, NULL, 0);
    case MM_X_EXPLAIN: return explain(t);
    case MM_X_STATS: return rw_memory_stats(g->ctx, &memory);
    case MM_X_THREADS: return rw_context_set_threads(g->ctx, 1 + (int)(e->word % 3));
    case MM_X_ZERO: rw_zero_grad(g->ctx); return RW_OK;
    case MM_X_SAVE: return save(g);
    case MM_X_LOAD: {
        const rw_status status = save(g);
        return status ? status : load(g);
    }
    case MM_X_FAIL: g->armed[e->tape] = e->word | 1; return RW_OK;
    case MM_X_POLICY: return set_policy(g, e);
    case MM_X_OTHER: return other_tape(g);
    case MM_X_COPY: g->copies = true; return RW_OK;
    case MM_X_VIEW: g->views = true; return RW_OK;
    case MM_X_ROLLBACK:
    case MM_X_LEFT_OUT:
    case MM_X_SKIPPED: return whole_step(g, e);
    case MM_X_AVERAGE: return averages(g);
    default: return of_loss(g, e, g->value[e->tape][g->s->body[e->tape]->loss[e->a]]);
    }
}

void mm_extra(struct mm_stage *g, const struct mm_event *e)
{
    if (!may(g, e)) return;
    const rw_status status = extra(g, e);
    if (!g->s->trains[e->tape] && mm_has_effects(g->s->body[e->tape])) g->excused[e->tape] = true;
    g->log->extras[e->kind]++;
    if (!status && !rw_error_status(g->ctx)) return;
    g->log->refused[e->kind] += e->kind != MM_X_FAIL;
    snprintf(g->log->extra_text, sizeof g->log->extra_text, "%s", rw_error_message(g->ctx));
    rw_error_clear(g->ctx);
}
