/* See run.h. */
#include "whole/fuzz/run.h"
#include "whole/fuzz/custom_ops.h"
#include "support/support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const fz_failure_names[FZ_FAILURES] = {
    "nothing fails",
    "a call fails",
    "statuses differ",
    "losses differ",
    "values read differ",
    "gradients differ",
    "parameters differ",
    "generators differ",
    "effects differ",
    "predicted and measured peak differ",
    "ckpt_verify() finds a difference",
    "the process ends",
};

/* One record of the log: a header, then bytes. */
struct entry {
    uint32_t kind;   /* enum fz_failure that a difference means */
    int32_t step, tape, what; /* `what` is an action, or a statement */
    rw_status status;
    uint32_t reserved;
    uint64_t bytes;
};

/* A run in progress. */
struct stage {
    struct fz_run *r;
    const struct fz_program *p;
    struct fixture b;
    rw_tape *tape[2];
    rw_tensor *value[2][FZ_STATEMENTS * FZ_OUTS];
    rw_optimizer *opt;
    int step, n_tapes;
    bool plain;
};

static void fail(struct stage *g, enum fz_failure failure, const char *fmt, ...) RW_PRINTF(3, 4);

static void fail(struct stage *g, enum fz_failure failure, const char *fmt, ...)
{
    if (g->r->failure) return;
    g->r->failure = failure;
    const int n = snprintf(g->r->text, sizeof g->r->text, "step %d, policy %s: ", g->step,
                           g->plain ? "none" : g->p->policy[g->step]);
    va_list args;
    va_start(args, fmt);
    vsnprintf(g->r->text + n, sizeof g->r->text - (size_t)n, fmt, args);
    va_end(args);
}

/* The log */

static void *append(struct fz_log *log, size_t bytes)
{
    if (log->bytes + bytes > log->room) {
        log->room = 2 * (log->bytes + bytes) + 4096;
        log->data = realloc(log->data, log->room);
        if (!log->data) abort();
    }
    log->bytes += bytes;
    return log->data + log->bytes - bytes;
}

/* Appends an entry. The caller writes `bytes` bytes to the returned address. */
static void *note(struct stage *g, enum fz_failure kind, int tape, int what, rw_status status, size_t bytes)
{
    const size_t padded = (bytes + 7) / 8 * 8;
    const struct entry e = { kind, g->step, tape, what, status, 0, bytes };
    unsigned char *const at = append(&g->r->log, sizeof e + padded);
    memcpy(at, &e, sizeof e);
    memset(at + sizeof e, 0, padded);
    return at + sizeof e;
}

/* For ops and calls that may fail because a buffer has changed meanwhile: the same under every policy. */
static bool settle(struct stage *g, int tape, int what, const char *call, rw_status status)
{
    if (status && status != RW_ERR_MODIFIED) {
        g->r->status = status;
        fail(g, status == RW_ERR_MISMATCH ? FZ_REPORT : FZ_REFUSED, "%s: %s: %s", call, rw_status_name(status),
             rw_error_message(g->b.ctx));
    }
    note(g, FZ_STATUS, tape, what, status, 0);
    rw_error_clear(g->b.ctx);
    return !status;
}

static bool tensor(struct stage *g, enum fz_failure kind, int tape, int what, const char *call, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    void *const data = malloc(bytes + 1);
    if (!data) abort();
    const rw_status status = rw_read(tape < 0 ? NULL : g->tape[tape], x, data, bytes);
    if (!status) memcpy(note(g, kind, tape, what, status, bytes), data, bytes);
    free(data);
    return settle(g, tape, what, call, status);
}

/* Recording */

/* Records the program's statements on a tape. */
static void record(struct stage *g, int tape)
{
    for (int i = 0; i < g->p->n && !g->r->failure; i++) {
        const struct fz_statement *const s = &g->p->s[i];
        const struct fz_op *const op = fz_op(s->op);
        rw_tensor **const out = g->value[tape] + i * FZ_OUTS;
        if (s->dropped || (op->flags & FZ_CONTEXT)) continue;
        struct fz_call c = {
            .ctx = g->b.ctx, .t = g->tape[tape], .at = { "statement", i }, .p = g->p, .s = s, .step = g->step
        };
        for (int k = 0; k < s->n_in; k++) c.in[k] = g->value[tape][s->in[k]];
        op->record(&c);
        for (int k = 0; k < s->n_out; k++) out[k] = c.out[k];
        if (rw_error_status(g->b.ctx)) {
            g->r->status = rw_error_status(g->b.ctx);
            fail(g, FZ_REFUSED, "v%d: %s", i, rw_error_message(g->b.ctx));
        }
        for (int k = 0; k < s->n_out && !g->r->failure; k++)
            if (!out[k] || !rw_shape_equal(rw_tensor_shape(out[k]), s->out[k].shape) ||
                rw_tensor_dtype(out[k]) != s->out[k].dtype)
                fail(g, FZ_REFUSED, "v%d: %s gives another type or shape than expected", i, op->name);
    }
}

/* Opens the context and creates its leaves. */
static void make_context(struct stage *g)
{
    g->b = fixture_open(g->p->numbers, g->plain ? 1 : g->p->threads[0]);
    g->tape[0] = g->b.t;
    g->n_tapes = g->p->two_tapes ? 2 : 1;
    if (g->n_tapes > 1 && rw_tape_create(&g->tape[1], g->b.ctx)) abort();
    for (int i = 0; i < g->p->n; i++) {
        const struct fz_statement *const s = &g->p->s[i];
        if (s->dropped || !(fz_op(s->op)->flags & FZ_CONTEXT)) continue;
        struct fz_call c = { .ctx = g->b.ctx, .at = { "statement", i }, .p = g->p, .s = s };
        fz_op(s->op)->record(&c);
        g->value[0][i * FZ_OUTS] = g->value[1][i * FZ_OUTS] = c.out[0];
    }
    rw_generator_set(g->b.ctx, (rw_generator_state){ .seed = g->p->numbers });
    if (rw_adamw_create(&g->opt, g->b.ctx, &(rw_adamw_params){ .lr = 0.01 })) abort();
    if (rw_error_status(g->b.ctx)) fail(g, FZ_REFUSED, "%s", rw_error_message(g->b.ctx));
}

/* Actions */

static void check_peak(struct stage *g, const char *call)
{
    rw_memory m;
    rw_memory_stats(g->b.ctx, &m);
    if (m.predicted_peak != m.measured_peak)
        fail(g, FZ_PEAK, "%s: predicted peak %zu, measured %zu", call, m.predicted_peak, m.measured_peak);
}

static void note_gradients(struct stage *g, int tape, int what)
{
    for (int i = 0; i < g->p->n; i++) {
        const struct fz_statement *const s = &g->p->s[i];
        const bool param = !strcmp(fz_op(s->op)->name, "param"), asked = !strcmp(fz_op(s->op)->name, "rw_require_grad");
        if (s->dropped || (!param && !asked)) continue;
        rw_tensor *const dx = rw_gradient(g->value[tape][asked ? s->in[0] : i * FZ_OUTS]);
        if (dx) tensor(g, FZ_GRADIENT, param ? -1 : tape, i, "rw_read of a gradient", dx);
        else note(g, FZ_GRADIENT, tape, i, RW_OK, 0);
    }
}

static void backward(struct stage *g, int tape, int what, rw_tensor *loss)
{
    rw_cost cost;
    if (!g->plain && !rw_tape_cost(g->tape[tape], loss, &cost)) g->r->replayed += cost.replayed_nodes;
    rw_error_clear(g->b.ctx);
    const bool asks = !g->plain && g->p->mode == FZ_ASKED;
    if (asks && !settle(g, tape, what, "ckpt_verify", ckpt_verify(g->tape[tape], loss, NULL))) return;
    if (settle(g, tape, what, "rw_backward", rw_backward(g->tape[tape], loss))) check_peak(g, "rw_backward");
    note_gradients(g, tape, what);
}

static void explain(struct stage *g, int tape, int what)
{
    FILE *const out = fopen("/dev/null", "w");
    if (!out) return;
    settle(g, tape, what, "ckpt_explain", ckpt_explain(g->tape[tape], out));
    fclose(out);
}

/* Performs one action and logs its results. */
static void act(struct stage *g, int tape, int what)
{
    const struct fz_action *const a = &g->p->action[what];
    rw_tape *const t = g->tape[tape];
    rw_tensor *const loss = g->value[tape][g->p->loss[a->loss]], *const x = g->value[tape][a->value];
    rw_cost cost;
    double item;
    switch ((enum fz_action_kind)a->kind) {
    case FZ_ITEM:
        item = rw_item(t, loss);
        memcpy(note(g, FZ_LOSS, tape, what, RW_OK, sizeof item), &item, sizeof item);
        if (settle(g, tape, what, "rw_item", rw_error_status(g->b.ctx)) && !isfinite(item)) g->r->finite = false;
        break;
    case FZ_BACKWARD: backward(g, tape, what, loss); break;
    case FZ_READ: tensor(g, FZ_VALUE, tape, what, "rw_read", x); break;
    case FZ_EVAL:
        settle(g, tape, what, "rw_eval", rw_eval(t, (rw_tensor *[]){ x, loss }, 2));
        break;
    case FZ_VERIFY:
        if (settle(g, tape, what, "ckpt_verify", ckpt_verify(t, loss, NULL))) check_peak(g, "ckpt_verify");
        break;
    case FZ_COST: settle(g, tape, what, "rw_tape_cost", rw_tape_cost(t, loss, &cost)); break;
    default: explain(g, tape, what);
    }
}

static bool goes_backward(const struct fz_program *p)
{
    for (int i = 0; i < p->n_actions; i++)
        if (!p->action[i].dropped && p->action[i].kind == FZ_BACKWARD) return true;
    return false;
}

/* Clips, steps the optimizer, and logs gradients and parameters. */
static void end_step(struct stage *g)
{
    double norm = 0;
    if (g->p->clips) {
        settle(g, -1, -1, "rw_clip_grad_norm", rw_clip_grad_norm(g->b.ctx, 1.0, &norm));
        memcpy(note(g, FZ_GRADIENT, -1, -1, RW_OK, sizeof norm), &norm, sizeof norm);
    }
    settle(g, -1, -1, "rw_optimizer_step", rw_optimizer_step(g->opt));
    for (int i = 0; i < g->p->n; i++) {
        if (g->p->s[i].dropped || !(fz_op(g->p->s[i].op)->flags & FZ_CONTEXT)) continue;
        tensor(g, FZ_PARAMETER, -1, i, "rw_read of a parameter", g->value[0][i * FZ_OUTS]);
    }
    const rw_generator_state state = rw_generator_get(g->b.ctx);
    memcpy(note(g, FZ_GENERATOR, -1, -1, RW_OK, sizeof state), &state, sizeof state);
    if (goes_backward(g->p)) /* without a backward, effects need not have happened, and under REWIND_EAGER they have */
        memcpy(note(g, FZ_EFFECT, -1, -1, RW_OK, sizeof fuzz_tally_runs), fuzz_tally_runs, sizeof fuzz_tally_runs);
    if (!g->p->accumulates) rw_zero_grad(g->b.ctx);
    for (int tape = 0; tape < g->n_tapes; tape++) rw_tape_reset(g->tape[tape]);
}

static void step(struct stage *g)
{
    fuzz_clear_runs();
    if (!g->plain) rw_context_set_threads(g->b.ctx, g->p->threads[g->step]);
    for (int tape = 0; tape < g->n_tapes; tape++) {
        const char *const policy = g->plain ? "none" : g->p->policy[g->step];
        if (ckpt_set_policy(g->tape[tape], policy)) fail(g, FZ_REFUSED, "%s", rw_error_message(g->b.ctx));
        record(g, tape);
        g->r->nodes += rw_tape_nodes(g->tape[tape]);
    }
    for (int i = 0; i < g->p->n_actions; i++)
        for (int tape = 0; tape < g->n_tapes && !g->r->failure; tape++)
            if (!g->p->action[i].dropped) act(g, tape, i);
    if (!g->r->failure) end_step(g);
}

static void set_mode(enum fz_mode mode)
{
    unsetenv("REWIND_VERIFY");
    unsetenv("REWIND_EAGER");
    if (mode == FZ_VERIFIED) setenv("REWIND_VERIFY", "1", 1);
    if (mode == FZ_DIGESTED) setenv("REWIND_VERIFY", "digest", 1);
    if (mode == FZ_EAGER) setenv("REWIND_EAGER", "1", 1);
}

void fz_run(struct fz_run *r, const struct fz_program *p, bool plain)
{
    *r = (struct fz_run){ .p = p, .finite = true };
    struct stage *const g = calloc(1, sizeof *g);
    if (!g) abort();
    g->r = r;
    g->p = p;
    g->plain = plain;
    set_mode(plain ? FZ_PLAIN : p->mode);
    make_context(g);
    for (g->step = 0; g->step < p->steps && !r->failure; g->step++) step(g);
    rw_optimizer_destroy(&g->opt);
    if (g->n_tapes > 1) rw_tape_destroy(&g->tape[1]);
    fixture_close(&g->b);
    set_mode(FZ_PLAIN);
    free(g);
}

void fz_run_finish(struct fz_run *r)
{
    free(r->log.data);
    r->log = (struct fz_log){ 0 };
}

static const struct entry *entry_at(const struct fz_run *r, size_t at)
{
    return at < r->log.bytes ? (const struct entry *)(const void *)(r->log.data + at) : NULL;
}

static enum fz_failure describe(const struct entry *a, const struct entry *b, size_t at, char *text, size_t size)
{
    if (a->kind != b->kind || a->status != b->status || a->bytes != b->bytes) {
        snprintf(text, size, "step %d, tape %d, action or statement %d: %s and %s, %llu and %llu bytes", a->step,
                 a->tape, a->what, rw_status_name(a->status), rw_status_name(b->status), (unsigned long long)a->bytes,
                 (unsigned long long)b->bytes);
        return FZ_STATUS;
    }
    const char *const what = a->kind == FZ_GRADIENT || a->kind == FZ_PARAMETER ? "v" : "action ";
    snprintf(text, size, "step %d, tape %d, %s%d: %s from byte %zu of %llu on", a->step, a->tape, what, a->what,
             fz_failure_names[a->kind], at, (unsigned long long)a->bytes);
    return (enum fz_failure)a->kind;
}

enum fz_failure fz_compare(const struct fz_run *plain, const struct fz_run *other, char *text, size_t size)
{
    size_t at = 0;
    for (;;) {
        const struct entry *const a = entry_at(plain, at), *const b = entry_at(other, at);
        if (!a || !b) break;
        const unsigned char *const x = (const unsigned char *)(a + 1), *const y = (const unsigned char *)(b + 1);
        const bool same_header = a->kind == b->kind && a->status == b->status && a->bytes == b->bytes;
        size_t i = 0;
        while (same_header && i < a->bytes && x[i] == y[i]) i++;
        if (!same_header || i < a->bytes) return describe(a, b, i, text, size);
        at += sizeof *a + (size_t)(a->bytes + 7) / 8 * 8;
    }
    const struct fz_run *const failed = plain->failure ? plain : other;
    snprintf(text, size, "%s", failed->text);
    return failed->failure;
}

bool fz_gradients_differ(const struct fz_run *plain, const struct fz_run *other)
{
    for (size_t at = 0;;) {
        const struct entry *const a = entry_at(plain, at), *const b = entry_at(other, at);
        if (!a || !b || a->step || a->kind != b->kind || a->bytes != b->bytes) return false;
        if (a->kind == FZ_GRADIENT && memcmp(a + 1, b + 1, a->bytes)) return true;
        at += sizeof *a + (size_t)(a->bytes + 7) / 8 * 8;
    }
}
