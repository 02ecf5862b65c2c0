/*
 * ckpt_explain_scaling(): which bytes of a step grow with which size, and how a larger step could fit where this one
 * does.
 */
#include "autodiff/roots.h"
#include "base/sigpipe_safe_output.h"
#include "plan/build.h"
#include "record/tape.h"

#include <rewind/recompute.h>
#include <rewind/plan.h>

#include <math.h>
#include <stdio.h>

enum { MAX = CKPT_SCALED_STEPS_MAX, NAME = 24 };

/* ---- arguments ---- */

/*
 * Checks a scaled step. A tape of another context has its own parameters, which may grow with a size, as learned
 * positions do.
 */
static rw_status check_grown(rw_context *ctx, const rw_tape *t, const rw_scaled_step *g, size_t i)
{
    const char *const fault = !g->tape                  ? "tape): expected a tape, got NULL"
                              : !g->loss                ? "loss): expected a tensor, got NULL"
                              : g->tape == t            ? "tape): expected another tape than t, got t"
                              : g->tape->ctx->status    ? "tape): expected a context without an error, got an error"
                              : !g->what || !*g->what   ? "what): expected a name, got none"
                                                        : NULL;
    if (fault) return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain_scaling(grown[%zu].%s", i, fault);
    if (g->times > 1 && g->times < INFINITY) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "ckpt_explain_scaling(grown[%zu].times): expected a finite number above 1, got "
                   "%g", i, g->times);
}

/* i is -1 for the step that the others are compared with. */
static void name_step(int i, char *text, size_t size)
{
    if (i < 0) snprintf(text, size, "ckpt_explain_scaling");
    else snprintf(text, size, "ckpt_explain_scaling: grown[%d]", i);
}

static rw_status check_loss(rw_context *ctx, rw_tape *t, rw_tensor *loss, int i)
{
    char name[64];
    name_step(i, name, sizeof name);
    if (rw_loss_check(t, loss, name) != RW_NONE_ID) return RW_OK;
    const rw_status status = t->ctx->status;
    if (t->ctx == ctx) return status;
    rw_fail(ctx, status, "%s", rw_error_message(t->ctx));
    rw_error_clear(t->ctx);
    return status;
}

/* Adds the name of the step to a failure of planning. The error is recorded in the context of the step that the others
   are compared with, whichever context met it. */
static rw_status name_failure(rw_context *ctx, rw_context *met, rw_status status, int i)
{
    char name[64], why[RW_MESSAGE_MAX / 2];
    name_step(i, name, sizeof name);
    snprintf(why, sizeof why, "%s", rw_error_message(met));
    rw_error_clear(met);
    return rw_fail(ctx, status, "%s: %s", name, why);
}

/* ---- predictions ---- */

/* The prediction of a step under its tape's policy, or if that is a budget that it does not fit, under the minimum
   budget. */
struct step {
    rw_prediction p;
    bool by_least;
};

/* Predicts a step. Only the inputs of its own tape count: the other tapes exist only for this report. */
static rw_status predict(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret)
{
    const rw_status status = rw_tape_plan(t, loss, policy, ret);
    if (status) return status;
    ret->total_bytes -= ret->at_peak.inputs - t->input_bytes;
    ret->at_peak.inputs = t->input_bytes;
    return RW_OK;
}

static const char *suffix_of(const struct rw_policy *policy)
{
    return policy->moves ? "+offload" : "";
}

/* Predicts a step under its own policy, or under the minimum budget. */
static rw_status predict_own(rw_context *ctx, rw_tape *t, rw_tensor *loss, int i, struct step *ret)
{
    const struct rw_policy *const own = &t->policy;
    const size_t others = t->ctx->memory.inputs - t->input_bytes;
    char policy[64];
    snprintf(policy, sizeof policy, "total:%zuB%s", (size_t)own->bytes + others, suffix_of(own));
    rw_status status = predict(t, loss, own->total ? policy : NULL, &ret->p);
    if (status == RW_ERR_BUDGET && own->kind == RW_POLICY_BUDGET) {
        rw_error_clear(t->ctx);
        snprintf(policy, sizeof policy, "%s:%zuB%s", own->total ? "total" : "budget", ret->p.least_bytes,
                 suffix_of(own));
        ret->by_least = true;
        status = predict(t, loss, policy, &ret->p);
    }
    return status ? name_failure(ctx, t->ctx, status, i) : RW_OK;
}

/* ---- growth ---- */

/*
 * The growth of bytes by the power of the size: 0 not at all, 1 proportional, 2 quadratic. The peak of the larger step
 * may be at another node, so the bytes there follow no exact power.
 */
static const char *growth(double now, double then, double times)
{
    if (!(now > 0)) return then > 0 ? "is new" : "no";
    const double power = log(then / now) / log(times);
    return power < -0.15  ? "shrinks"
           : power < 0.15 ? "no"
           : power < 0.8  ? "partly"
           : power < 1.25 ? "yes"
           : power < 1.75 ? "more"
           : power < 2.25 ? "squared"
                          : "faster";
}

struct row {
    const char *name;
    size_t offset; /* of the bytes in rw_prediction */
};

#define AT_PEAK(field) offsetof(rw_prediction, at_peak.field)

static const struct row rows[] = {
    { "parameters", AT_PEAK(parameters) },
    { "gradients", AT_PEAK(gradients) },
    { "optimizer", AT_PEAK(optimizer) },
    { "inputs", AT_PEAK(inputs) },
    { "results", AT_PEAK(results) },
    { "kept for backward", AT_PEAK(kept) },
    { "replayed", AT_PEAK(replayed) },
    { "transient in forward", AT_PEAK(transient) },
    { "intermediate gradients", AT_PEAK(adjoint) },
    { "workspace", AT_PEAK(workspace) },
    { "arena", offsetof(rw_prediction, peak_bytes) },
    { "all", offsetof(rw_prediction, total_bytes) },
};

static size_t bytes_of(const rw_prediction *p, const struct row *row)
{
    return *(const size_t *)(const void *)((const char *)p + row->offset);
}

static void print_row(const struct step *step, const rw_scaled_step *grown, size_t n, const struct row *row, FILE *out)
{
    size_t most = 0;
    for (size_t i = 0; i <= n; i++)
        if (bytes_of(&step[i].p, row) > most) most = bytes_of(&step[i].p, row);
    if (!most) return;
    const size_t now = bytes_of(&step[0].p, row);
    fprintf(out, "  %-24s %14zu", row->name, now);
    for (size_t i = 0; i < n; i++) {
        const size_t then = bytes_of(&step[i + 1].p, row);
        fprintf(out, " %14zu  %-10s", then, growth((double)now, (double)then, grown[i].times));
    }
    fprintf(out, "\n");
}

static void print_miss(const rw_tape *t, const char *what, const struct step *step, FILE *out)
{
    if (step->by_least)
        fprintf(out, "%s does not fit under %s: its column is for the minimum, total:%zuB%s\n", what,
                t->policy.spec, step->p.total_bytes, suffix_of(&t->policy));
}

static void print_misses(const rw_tape *t, const struct step *step, const rw_scaled_step *grown, size_t n, FILE *out)
{
    print_miss(t, "this step", &step[0], out);
    for (size_t i = 0; i < n; i++) {
        char what[64];
        snprintf(what, sizeof what, "%.*s x %g", NAME, grown[i].what, grown[i].times);
        print_miss(grown[i].tape, what, &step[i + 1], out);
    }
}

static void print_table(const struct step *step, const rw_scaled_step *grown, size_t n, FILE *out)
{
    fprintf(out, "bytes at the peak, and how each row grows with each size:\n  %-24s %14s", "", "this step");
    for (size_t i = 0; i < n; i++) {
        char head[64];
        snprintf(head, sizeof head, "%.*s x %g", NAME, grown[i].what, grown[i].times);
        fprintf(out, " %26s", head);
    }
    fprintf(out, "\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) print_row(step, grown, n, &rows[i], out);
    fprintf(out, "  %-24s %14.3f", "milliseconds, predicted", step[0].p.ms);
    for (size_t i = 0; i < n; i++)
        fprintf(out, " %14.3f  %-10s", step[i + 1].p.ms, growth(step[0].p.ms, step[i + 1].p.ms, grown[i].times));
    fprintf(out, "\n");
}

/* ---- remedies ---- */

struct remedy {
    rw_status status; /* RW_OK; RW_ERR_BUDGET: there is none; RW_ERR_UNSUPPORTED: parts have their own budgets */
    size_t total;     /* that this step takes, or the minimum of the larger one */
    double ms;
    const char *suffix; /* end of its policy */
};

/* Plans the larger step within the total bytes of this one. `suffix`: text after the budget. */
static rw_status try_budget(const rw_scaled_step *g, const rw_prediction *now, const rw_prediction *then,
                            const char *suffix, struct remedy *ret)
{
    rw_context *const ctx = g->tape->ctx;
    const size_t beside = then->total_bytes - then->peak_bytes;
    const size_t room = now->total_bytes > beside ? now->total_bytes - beside : 1;
    char policy[48];
    rw_prediction p = { 0 };
    snprintf(policy, sizeof policy, "budget:%zuB%s", room, suffix);
    ret->suffix = suffix;
    ret->status = predict(g->tape, g->loss, policy, &p);
    ret->total = ret->status == RW_ERR_BUDGET ? p.least_bytes + beside : now->total_bytes;
    ret->ms = p.ms;
    if (ret->status != RW_ERR_BUDGET && ret->status != RW_ERR_UNSUPPORTED) return ret->status;
    rw_error_clear(ctx);
    return RW_OK;
}

/* Also tries offload if there is a store. It is used if it needs fewer bytes or less time; otherwise the first result
   stays. A store that cannot be measured is not used. */
static rw_status find_remedy(const rw_scaled_step *g, const rw_prediction *now, const rw_prediction *then,
                             struct remedy *ret)
{
    rw_context *const ctx = g->tape->ctx;
    struct remedy moves = { 0 };
    rw_status status = try_budget(g, now, then, "", ret);
    if (status || ret->status == RW_ERR_UNSUPPORTED || !rw_store_is_of_use(ctx)) return status;
    status = rw_try_to_measure_store(ctx);
    if (status) return status == RW_ERR_MEMORY ? rw_fail(ctx, status, "out of memory") : RW_OK;
    status = try_budget(g, now, then, "+offload", &moves);
    if (status) return status;
    if (ret->status != moves.status ? !moves.status : moves.status ? moves.total < ret->total : moves.ms < ret->ms)
        *ret = moves;
    return RW_OK;
}

static void print_remedy(const rw_scaled_step *g, const rw_prediction *now, const struct step *larger,
                         const struct remedy *r, FILE *out)
{
    const rw_prediction *const then = &larger->p;
    fprintf(out, "%.*s x %g: ", NAME, g->what, g->times);
    if (!larger->by_least && then->total_bytes <= now->total_bytes) fprintf(out, "takes no more than this step\n");
    else if (r->status == RW_ERR_UNSUPPORTED) fprintf(out, "its parts have budgets of their own\n");
    else if (r->status)
        fprintf(out, "no plan fits into the %zu bytes of this step; the minimum is total:%zuB%s\n",
                now->total_bytes, r->total, r->suffix);
    else
        fprintf(out, "fits into the bytes of this step under total:%zuB%s, %+.1f %% time over %s\n", r->total,
                r->suffix, 100 * (r->ms / then->ms - 1), larger->by_least ? "its minimum" : "its own policy");
}

/* Plans all steps and remedies first, so that nothing is printed on failure. */
rw_status ckpt_explain_scaling(rw_tape *t, rw_tensor *loss, const rw_scaled_step *grown, size_t n, FILE *out)
{
    RW_ENTER(rw_edge_context(t), RW_ERR_ARGUMENT);
    if (!t) return rw_fail_null(NULL, "ckpt_explain_scaling", "t");
    rw_context *const ctx = t->ctx;
    struct step step[MAX + 1] = { { .by_least = false } };
    struct remedy remedy[MAX] = { { 0 } };
    if (ctx->status) return ctx->status;
    if (!grown || !out) return rw_fail_null(ctx, "ckpt_explain_scaling", grown ? "out" : "grown");
    if (!n || n > MAX)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain_scaling(n): expected 1 to %d, got %zu", MAX, n);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) status = check_grown(ctx, t, &grown[i], i);
    if (!status) status = check_loss(ctx, t, loss, -1);
    for (size_t i = 0; !status && i < n; i++) status = check_loss(ctx, grown[i].tape, grown[i].loss, (int)i);
    if (!status) status = predict_own(ctx, t, loss, -1, &step[0]);
    for (size_t i = 0; !status && i < n; i++)
        status = predict_own(ctx, grown[i].tape, grown[i].loss, (int)i, &step[i + 1]);
    for (size_t i = 0; !status && i < n; i++) {
        status = find_remedy(&grown[i], &step[0].p, &step[i + 1].p, &remedy[i]);
        if (status) name_failure(ctx, grown[i].tape->ctx, status, (int)i);
    }
    if (status) return status;
    struct rw_printing printing = rw_printing_begin(out);
    print_misses(t, step, grown, n, out);
    print_table(step, grown, n, out);
    for (size_t i = 0; i < n; i++) print_remedy(&grown[i], &step[0].p, &step[i + 1], &remedy[i], out);
    const char *const why = rw_printing_end(&printing);
    return why ? rw_fail(ctx, RW_ERR_IO, "ckpt_explain_scaling: out cannot be written to: %s", why) : RW_OK;
}
