/* See run.h. */
#include "whole/metamorphic/run.h"
#include "whole/metamorphic/session_state.h"
#include "whole/fuzz/input_values.h"
#include "whole/fuzz/custom_ops.h"
#include "support/support.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the log ---- */

static void *note(struct mm_stage *g, const struct mm_event *e, int what, rw_status status, size_t bytes)
{
    struct mm_log *const log = g->log;
    const struct mm_entry entry = { e->kind, e->tape, e->id, (int16_t)g->step, (int16_t)what, (int32_t)status,
                                    g->excused[e->tape], bytes };
    if (log->bytes + mm_entry_size(&entry) > MM_LOG) abort();
    unsigned char *const at = log->data + log->bytes;
    log->bytes += mm_entry_size(&entry);
    memcpy(at, &entry, sizeof entry);
    memset(at + sizeof entry, 0, mm_entry_size(&entry) - sizeof entry);
    return at + sizeof entry;
}

const struct mm_entry *mm_entry_at(const struct mm_log *log, uint64_t at)
{
    return at < log->bytes ? (const struct mm_entry *)(const void *)(log->data + at) : NULL;
}

/* Logs the status of a plain call, and clears its error. */
static bool settle(struct mm_stage *g, const struct mm_event *e, rw_status status)
{
    if (status) snprintf(g->log->text, sizeof g->log->text, "%s", rw_error_message(g->ctx));
    note(g, e, -1, status, 0);
    rw_error_clear(g->ctx);
    return !status;
}

/* Reads a tensor into the log. */
static bool note_tensor(struct mm_stage *g, const struct mm_event *e, int what, rw_tape *t, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    void *const data = malloc(bytes + 1);
    if (!data) abort();
    const rw_status status = rw_read(t, x, data, bytes);
    if (status) snprintf(g->log->text, sizeof g->log->text, "%s", rw_error_message(g->ctx));
    void *const at = note(g, e, what, status, status ? 0 : bytes);
    if (!status) memcpy(at, data, bytes);
    free(data);
    rw_error_clear(g->ctx);
    return !status;
}

/* ---- recording ---- */

static bool operands(const struct mm_stage *g, int tape, const struct fz_statement *s, struct fz_call *c)
{
    for (int k = 0; k < s->n_in; k++)
        if (!(c->in[k] = g->value[tape][s->in[k]])) return false;
    return true;
}

/* rw_assign(b, x) becomes rw_assign(b, 1 x): the results must be identical. */
static void copy_assigned(struct mm_stage *g, struct fz_call *c)
{
    if (!g->copies || strcmp(fz_op(c->s->op)->name, "rw_assign")) return;
    c->in[1] = rw_scale(c->t, c->in[1], 1);
    g->copies = false;
}

bool mm_record(struct mm_stage *g, int tape, int i, rw_tape *t)
{
    const struct fz_program *const p = g->s->body[tape];
    const struct fz_statement *const s = &p->s[i];
    struct fz_call c = { .ctx = g->ctx, .t = t, .at = { "statement", i }, .p = p, .s = s, .step = g->step };
    if (s->dropped || (fz_op(s->op)->flags & FZ_CONTEXT) || !operands(g, tape, s, &c)) return true;
    copy_assigned(g, &c);
    fz_op(s->op)->record(&c);
    for (int k = 0; k < s->n_out; k++) g->value[tape][i * FZ_OUTS + k] = c.out[k];
    return !rw_error_status(g->ctx);
}

static void write_input(struct mm_stage *g, int tape, int i)
{
    const struct fz_program *const p = g->s->body[tape];
    const struct fz_statement *const s = &p->s[i];
    rw_tensor *const x = g->value[tape][i * FZ_OUTS];
    static const char *const inputs[] = { "input", "index", "targets", "offsets", "mask" };
    double data[4000];
    for (int k = 0; k < 5; k++) {
        if (strcmp(fz_op(s->op)->name, inputs[k]) || !x || rw_tensor_bytes(x) > sizeof data) continue;
        fz_elements(p, s, g->step, data);
        rw_input_write(x, data, rw_tensor_bytes(x));
    }
}

static void statement(struct mm_stage *g, const struct mm_event *e)
{
    bool ok = true;
    if (g->graph[0] && e->tape == 0) write_input(g, 0, e->a);
    else ok = mm_record(g, e->tape, e->a, g->tape[e->tape]);
    if (rw_error_status(g->ctx)) ok = false;
    if (!ok) note(g, e, -1, rw_error_status(g->ctx), 0);
    if (!ok) snprintf(g->log->text, sizeof g->log->text, "%s", rw_error_message(g->ctx)), g->over = true;
}

/* ---- calls that execute ops ---- */

static bool reads_gradients(const struct mm_stage *g, int tape)
{
    return mm_has(g->s->body[tape], "gradient");
}

/* Something that recorded steps may read has changed: they may return RW_ERR_MODIFIED from now on. */
static void changed(struct mm_stage *g, bool gradients_alone)
{
    for (int k = 0; k < g->s->tapes; k++)
        if (rw_tape_nodes(g->tape[k]) && (!gradients_alone || reads_gradients(g, k))) g->excused[k] = true;
}

/* The first launch draws as the step did when it was recorded. A launch that fails draws nothing: the next one draws
   the same numbers, and until then values of the tape are those of the launch before. */
static rw_status launch(struct mm_stage *g, rw_graph *graph)
{
    const int before = fuzz_ledger.epoch[0];
    if (g->launches) fuzz_ledger.epoch[0] = FUZZ_LAUNCH + g->launches;
    const rw_status status = rw_graph_launch(graph);
    if (status) fuzz_ledger.epoch[0] = before;
    else g->launches++;
    return status;
}

static rw_status backward(struct mm_stage *g, const struct mm_event *e, rw_tensor *loss)
{
    const int which = e->a != 0;
    if (g->s->launches && e->tape == 0 && g->graph[which]) return launch(g, g->graph[which]);
    if (g->s->scales) return rw_scaler_backward(g->scaler, g->tape[e->tape], loss);
    return rw_backward(g->tape[e->tape], loss);
}

/* One attempt; its value is written to *item. */
static rw_status attempt(struct mm_stage *g, const struct mm_event *e, rw_tensor *x, void *out)
{
    rw_tape *const t = g->tape[e->tape];
    switch ((enum mm_kind)e->kind) {
    case MM_BACKWARD: return backward(g, e, x);
    case MM_FORWARD: return rw_forward(t, &x, 1);
    case MM_EVAL: return rw_eval(t, &x, 1);
    case MM_ITEM: *(double *)out = rw_item(t, x); return rw_error_status(g->ctx);
    default: return rw_read(t, x, out, rw_tensor_bytes(x));
    }
}

static void arm(struct mm_stage *g, const struct mm_event *e)
{
    const uint32_t word = g->armed[e->tape];
    const struct fz_program *const p = g->s->body[e->tape];
    /* A kernel that fails in a replay may find parameters that are updated already (rewind/recorders.h). */
    const bool inside = g->s->launches && g->s->graph == MM_INSIDE;
    const int most = inside ? 1 : 3;
    g->armed[e->tape] = 0;
    if (!word || !g->clear) return;
    if (word % 3 && (mm_has(p, "fuzz_breaks") || mm_has(p, "fuzz_store"))) fuzz_fail_in = 1 + (int)(word >> 8) % most;
    else rw_alloc_fail_at(1 + (word >> 8) % 60);
}

/* If a failure is planted, the call fails, changes nothing, and is repeated. */
static rw_status run(struct mm_stage *g, const struct mm_event *e, rw_tensor *x, void *out)
{
    const bool armed = g->armed[e->tape] && g->clear;
    arm(g, e);
    rw_status status = attempt(g, e, x, out);
    fuzz_fail_in = 0;
    rw_alloc_fail_at(0);
    if (!armed) return status;
    g->log->refused[MM_X_FAIL] += status != RW_OK;
    if (!status) return status;
    rw_error_clear(g->ctx);
    if (g->graph[0] && e->kind == MM_BACKWARD) rw_zero_grad(g->ctx);
    return attempt(g, e, x, out);
}

static void create_graphs(struct mm_stage *g)
{
    const struct mm_session *const s = g->s;
    const struct fz_program *const p = s->body[0];
    rw_graph_params params = { { rw_record_nothing() } };
    if (s->graph > MM_BARE) {
        const bool inside = s->graph == MM_INSIDE && !mm_has(p, "fuzz_store"); /* refused next to a caller's commit */
        params.recorders[0] = recorded_scaler(g->scaler);
        params.recorders[2] = recorded_update(g->opt, inside);
        for (int i = 0; i < s->n; i++)
            if (s->event[i].kind == MM_CLIP && !s->event[i].dropped) params.recorders[1] = rw_record_clip(0.5);
    }
    for (int l = 0; l < (p->n_losses > 1 && s->graph == MM_BARE ? 2 : 1); l++)
        if (rw_graph_create(&g->graph[l], g->tape[0], g->value[0][p->loss[l]], &params)) return;
}

/* Runs an event that executes ops, and logs its result. */
static void run_event(struct mm_stage *g, const struct mm_event *e)
{
    const struct fz_program *const p = g->s->body[e->tape];
    const bool of_loss = e->kind == MM_BACKWARD || e->kind == MM_FORWARD || e->kind == MM_ITEM;
    if (e->a < 0 || (of_loss && e->a >= p->n_losses)) return;
    rw_tensor *const x = g->value[e->tape][of_loss ? p->loss[e->a] : e->a];
    if (!x) return;
    if (g->s->launches && e->tape == 0 && e->kind == MM_BACKWARD && !g->graph[0]) create_graphs(g);
    const size_t bytes = e->kind == MM_ITEM ? 8 : e->kind == MM_READ ? rw_tensor_bytes(x) : 0;
    void *const out = calloc(1, bytes + 8);
    rw_status status = rw_error_status(g->ctx);
    if (!status) status = run(g, e, x, out);
    if (settle(g, e, status) && bytes) memcpy(note(g, e, 0, RW_OK, bytes), out, bytes);
    free(out);
    if (e->kind == MM_BACKWARD && !status) g->clear = false;
    if (e->kind == MM_BACKWARD) changed(g, true);
    if ((e->kind == MM_BACKWARD || !g->s->trains[e->tape]) && mm_has_effects(p)) g->excused[e->tape] = true;
}

/* ---- other plain events ---- */

static rw_tensor *parameter(struct mm_stage *g, int n)
{
    rw_tensor *p = NULL;
    for (size_t i = 0; (p = rw_param_get(g->ctx, i)); i++)
        if (rw_tensor_kind_of(p) == RW_TENSOR_PARAM && n-- == 0) return p;
    return NULL;
}

/* Writes to a parameter or its gradient. */
static void write_parameter(struct mm_stage *g, const struct mm_event *e)
{
    rw_tensor *x = parameter(g, e->a);
    if (x && e->word % 2) x = rw_gradient(x);
    if (!x) return;
    const size_t bytes = rw_tensor_bytes(x);
    unsigned char *const data = calloc(1, bytes + 8);
    for (size_t i = 0; i < bytes / rw_dtype_size(rw_tensor_dtype(x)); i++) {
        const float f = (float)(i % 7) / 4 - 0.5f + (float)g->step;
        const double d = (double)f;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        const uint16_t half = (uint16_t)(bits >> 16);
        const size_t size = rw_dtype_size(rw_tensor_dtype(x));
        const void *const number = size == 8 ? (const void *)&d : size == 4 ? (const void *)&f : (const void *)&half;
        memcpy(data + i * size, number, size);
    }
    settle(g, e, rw_write(x, data, bytes));
    free(data);
    if (e->word % 2) g->clear = false;
    changed(g, e->word % 2);
}

/* Logs the gradients of parameters and of marked values. */
static void note_gradients(struct mm_stage *g, const struct mm_event *e)
{
    const struct fz_program *const p = g->s->body[e->tape];
    rw_tensor *x;
    const bool views = g->views && !rw_tape_pending_effects(g->tape[0], NULL); /* they would happen now */
    for (size_t i = 0; e->tape == 0 && (x = rw_param_get(g->ctx, i)); i++) {
        rw_tensor *dx = rw_gradient(x);
        rw_tape *t = NULL;
        if (dx && views) dx = rw_reshape(t = g->tape[0], dx, RW_SHAPE(rw_shape_numel(rw_tensor_shape(dx))));
        if (dx) note_tensor(g, e, (int)i, t, dx);
    }
    g->views = g->views && e->tape;
    if (g->s->graph && p->n_losses > 1) return; /* a graph's tape keeps the results of another loss's launch */
    for (int i = 0; i < p->n; i++) {
        const struct fz_statement *const s = &p->s[i];
        if (s->dropped || strcmp(fz_op(s->op)->name, "rw_require_grad") || g->s->scales) continue;
        if (!g->value[e->tape][s->in[0]]) continue;
        rw_tensor *const dx = rw_gradient(g->value[e->tape][s->in[0]]);
        if (dx) note_tensor(g, e, 1000 + i, g->tape[e->tape], dx);
        else note(g, e, 1000 + i, RW_OK, 0);
    }
}

/* An extra read may have executed the effects of a tape without gradients already; this executes them in any case. */
static void settle_effects(struct mm_stage *g)
{
    for (int k = 0; k < g->s->tapes; k++) {
        if (g->s->trains[k] || !rw_tape_pending_effects(g->tape[k], NULL)) continue;
        if (rw_eval(g->tape[k], NULL, 0)) rw_error_clear(g->ctx);
        g->excused[k] = true;
    }
}

static void note_state(struct mm_stage *g, const struct mm_event *e)
{
    rw_tensor *x;
    settle_effects(g);
    for (size_t i = 0; (x = rw_param_get(g->ctx, i)); i++) {
        if (!strcmp(rw_tensor_name(x), "scaler")) continue; /* a skipped step changes it */
        note_tensor(g, e, (int)i, NULL, x);
        rw_tensor *const mean = g->average ? rw_weight_average_of(g->average, x) : NULL;
        if (mean) note_tensor(g, e, 1000 + (int)i, NULL, mean);
    }
    const rw_generator_state state = rw_generator_get(g->ctx);
    memcpy(note(g, e, 2000, RW_OK, sizeof state), &state, sizeof state);
    memcpy(note(g, e, MM_RUNS, RW_OK, sizeof fuzz_tally_runs), fuzz_tally_runs, sizeof fuzz_tally_runs);
}

static void draw(struct mm_stage *g, const struct mm_event *e)
{
    rw_tensor *const x = rw_rand(g->tape[e->tape], RW_F32, RW_SHAPE(5));
    if (x) note_tensor(g, e, 0, g->tape[e->tape], x);
    else settle(g, e, rw_error_status(g->ctx));
}

static void reset(struct mm_stage *g, int k)
{
    if (g->graph[0] && k == 0) return;
    rw_tape_reset(g->tape[k]);
    for (int v = 0; v < FZ_STATEMENTS * FZ_OUTS; v++)
        if (!(fz_op(g->s->body[k]->s[v / FZ_OUTS].op)->flags & FZ_CONTEXT)) g->value[k][v] = NULL;
    g->excused[k] = false;
    g->armed[k] = 0;
}

/* Whether the graph does this itself. */
static bool is_in_graph(const struct mm_stage *g, const struct mm_event *e)
{
    return g->graph[0] && g->s->graph > MM_BARE &&
           (e->kind == MM_UNSCALE || e->kind == MM_CLIP || e->kind == MM_OPTIMIZE || e->kind == MM_UPDATE);
}

/* Performs one plain event. */
static void plain_event(struct mm_stage *g, const struct mm_event *e)
{
    if (is_in_graph(g, e)) {
        if (e->kind == MM_OPTIMIZE) changed(g, false);
        note(g, e, -1, RW_OK, 0);
        return;
    }
    switch ((enum mm_kind)e->kind) {
    case MM_STATEMENT: statement(g, e); break;
    case MM_ZERO:
        rw_zero_grad(g->ctx);
        changed(g, true);
        g->clear = true;
        break;
    case MM_WRITE: write_parameter(g, e); break;
    case MM_GRADIENTS: note_gradients(g, e); break;
    case MM_STATE: note_state(g, e); break;
    case MM_DRAW: draw(g, e); break;
    case MM_UNSCALE: settle(g, e, rw_scaler_unscale(g->scaler)); break;
    case MM_CLIP:
        settle(g, e, rw_clip_grad_norm(g->ctx, 0.5, NULL));
        changed(g, true);
        break;
    case MM_OPTIMIZE:
        settle(g, e, g->s->scales ? rw_scaler_step(g->scaler, g->opt) : rw_optimizer_step(g->opt));
        changed(g, false);
        break;
    case MM_UPDATE: settle(g, e, rw_scaler_update(g->scaler)); break;
    case MM_AVERAGE: settle(g, e, rw_weight_average_step(g->average)); break;
    case MM_RESET: reset(g, e->tape); break;
    default: run_event(g, e);
    }
}

/* ---- a run ---- */

static void make_leaves(struct mm_stage *g)
{
    for (int k = 0; k < g->s->tapes; k++) {
        const struct fz_program *const p = g->s->body[k];
        for (int i = 0; i < p->n; i++) {
            const struct fz_statement *const s = &p->s[i];
            if (s->dropped || !(fz_op(s->op)->flags & FZ_CONTEXT)) continue;
            struct fz_call c = { .ctx = g->ctx, .at = { "statement", i }, .p = p, .s = s };
            if (k && i < g->s->shared) c.out[0] = g->value[0][i * FZ_OUTS];
            else fz_op(s->op)->record(&c);
            g->value[k][i * FZ_OUTS] = c.out[0];
        }
    }
    rw_generator_set(g->ctx, (rw_generator_state){ .seed = g->s->seed });
}

static rw_status make_optimizer(struct mm_stage *g)
{
    switch (g->s->optimizer) {
    case 1: return rw_sgd_create(&g->opt, g->ctx, &(rw_sgd_params){ .lr = 0.0625 });
    case 2: return rw_sgd_create(&g->opt, g->ctx, &(rw_sgd_params){ .lr = 0.0625, .momentum = 0.5 });
    case 3: return rw_adamw_create(&g->opt, g->ctx, &(rw_adamw_params){ .lr = 0.03125 });
    case 4: return rw_adam_create(&g->opt, g->ctx, &(rw_adam_params){ .lr = 0.03125 });
    case 5: return rw_lion_create(&g->opt, g->ctx, &(rw_lion_params){ .lr = 0.03125 });
    default: return RW_OK;
    }
}

/* Creates the context, the tapes and all objects that the session uses. */
static void open_stage(struct mm_stage *g)
{
    const rw_context_params params = { .device = test_device(), .seed = g->s->seed, .threads = g->s->threads };
    if (rw_context_create(&g->ctx, &params)) abort();
    for (int k = 0; k < g->s->tapes; k++) {
        if (rw_tape_create(&g->tape[k], g->ctx)) abort();
        ckpt_set_policy(g->tape[k], g->s->policy);
        rw_error_clear(g->ctx);
    }
    make_leaves(g);
    make_optimizer(g);
    if (g->s->scales) rw_scaler_create(&g->scaler, g->ctx, &(rw_scaler_params){ .init_scale = 1024 });
    if (g->s->averages) rw_weight_average_create(&g->average, g->ctx, 0.75);
    if (rw_error_status(g->ctx)) g->over = true;
    g->clear = true;
}

static void close_stage(struct mm_stage *g)
{
    for (int l = 0; l < 2; l++) rw_graph_destroy(&g->graph[l]);
    rw_checkpoint_destroy(&g->checkpoint);
    rw_weight_average_destroy(&g->average);
    rw_scaler_destroy(&g->scaler);
    rw_optimizer_destroy(&g->opt);
    for (int k = 0; k < g->s->tapes; k++) rw_tape_destroy(&g->tape[k]);
    rw_context_destroy(&g->ctx);
}

static void set_mode(enum mm_mode mode)
{
    unsetenv("REWIND_VERIFY");
    unsetenv("REWIND_EAGER");
    unsetenv("REWIND_POLICY");
    if (mode == MM_EAGER) setenv("REWIND_EAGER", "1", 1);
    if (mode == MM_VERIFY) setenv("REWIND_VERIFY", "1", 1);
    if (mode == MM_DIGEST) setenv("REWIND_VERIFY", "digest", 1);
    if (mode == MM_FULL) setenv("REWIND_POLICY", "full", 1);
}

void mm_run(struct mm_log *log, const struct mm_session *s, const char *folder)
{
    struct mm_stage *const g = calloc(1, sizeof *g);
    if (!g) abort();
    *g = (struct mm_stage){ .s = s, .log = log, .folder = folder };
    set_mode(s->mode);
    open_stage(g);
    for (g->step = 0; g->step < s->steps && !g->over; g->step++) {
        for (int k = 0; k < MM_TAPES; k++)
            if (k || !g->graph[0]) fuzz_ledger.epoch[k] = g->step;
        for (int i = 0; i < s->n && !g->over; i++) {
            const struct mm_event *const e = &s->event[i];
            if (e->dropped || !(e->steps >> g->step & 1)) continue;
            snprintf(log->last, sizeof log->last, "step %d, event %d: %s", g->step, i, mm_names[e->kind]);
            if (mm_is_extra(e->kind)) mm_extra(g, e);
            else plain_event(g, e);
        }
    }
    log->clashes = fuzz_ledger.clashes;
    snprintf(log->last, sizeof log->last, "the end");
    close_stage(g);
    free(g);
    log->complete = true;
}
