/* ckpt_explain_growth(): what of a step grows with which size, and how a larger one could fit where this one does. */
#include "autodiff/roots.h"
#include "base/output.h"
#include "plan/build.h"
#include "record/tape.h"

#include <rewind/checkpoint.h>
#include <rewind/plan.h>

#include <math.h>
#include <stdio.h>

enum { MOST = CKPT_GROWN_MOST, NAME = 24 };

/* ---- what was asked ---- */

static rw_status check_grown(rw_context *ctx, const rw_tape *t, const rw_grown *g, size_t i)
{
    const char *const fault = !g->tape                  ? "its tape is NULL"
                              : !g->loss                ? "its loss is NULL"
                              : g->tape == t            ? "its tape is the one that it is compared with"
                              : g->tape->ctx != ctx     ? "its tape belongs to another context"
                              : !g->what || !*g->what   ? "what has grown has no name"
                              : !(g->times > 1)         ? "times is not above 1"
                              : !(g->times < INFINITY)  ? "times is not finite"
                                                        : NULL;
    return fault ? rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain_growth: grown[%zu]: %s", i, fault) : RW_OK;
}

/* i is -1 of the step that the others are compared with. */
static void name_step(int i, char *text, size_t size)
{
    if (i < 0) snprintf(text, size, "ckpt_explain_growth");
    else snprintf(text, size, "ckpt_explain_growth: grown[%d]", i);
}

static rw_status check_loss(rw_tape *t, rw_tensor *loss, int i)
{
    char who[64];
    name_step(i, who, sizeof who);
    return rw_loss_check(t, loss, who) == RW_NONE_ID ? t->ctx->status : RW_OK;
}

/* What planning says of a failure does not say of which step. */
static rw_status name_failure(rw_context *ctx, rw_status status, int i)
{
    char who[64], why[RW_MESSAGE_MAX / 2];
    name_step(i, who, sizeof who);
    snprintf(why, sizeof why, "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
    return rw_fail(ctx, status, "%s: %s", who, why);
}

/* ---- what each takes ---- */

/* A step as it is planned: under its tape's policy, or where that is a budget that it does not fit into, under the
   least that would do. */
struct step {
    rw_prediction p;
    bool by_least;
};

/* Inputs of a step are its own tape's: the others are there for this question alone. */
static rw_status predict(rw_tape *t, rw_tensor *loss, const char *policy, rw_prediction *ret)
{
    const rw_status status = rw_tape_plan(t, loss, policy, ret);
    if (status) return status;
    ret->total_bytes -= ret->at_peak.inputs - t->input_bytes;
    ret->at_peak.inputs = t->input_bytes;
    return RW_OK;
}

static const char *behind_of(const struct rw_policy *policy)
{
    return policy->moves ? "+offload" : "";
}

static rw_status predict_own(rw_tape *t, rw_tensor *loss, int i, struct step *ret)
{
    const struct rw_policy *const own = &t->policy;
    const size_t others = t->ctx->memory.inputs - t->input_bytes;
    char policy[64];
    snprintf(policy, sizeof policy, "total:%zuB%s", (size_t)own->bytes + others, behind_of(own));
    rw_status status = predict(t, loss, own->total ? policy : NULL, &ret->p);
    if (status == RW_ERR_BUDGET && own->kind == RW_POLICY_BUDGET) {
        rw_error_clear(t->ctx);
        snprintf(policy, sizeof policy, "%s:%zuB%s", own->total ? "total" : "budget", ret->p.least_bytes,
                 behind_of(own));
        ret->by_least = true;
        status = predict(t, loss, policy, &ret->p);
    }
    return status ? name_failure(t->ctx, status, i) : RW_OK;
}

/* ---- how it grows ---- */

/*
 * By the power of the size that the bytes follow: 0 not at all, 1 with it, 2 with its square. The larger step's peak
 * may be at another node, so what is there then follows no power to the digit.
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
                          : "more still";
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
    { "passing through forward", AT_PEAK(passing) },
    { "gradients on their way", AT_PEAK(adjoint) },
    { "workspace", AT_PEAK(workspace) },
    { "arena", offsetof(rw_prediction, peak_bytes) },
    { "all", offsetof(rw_prediction, total_bytes) },
};

static size_t bytes_of(const rw_prediction *p, const struct row *row)
{
    return *(const size_t *)(const void *)((const char *)p + row->offset);
}

static void print_row(const struct step *step, const rw_grown *grown, size_t n, const struct row *row, FILE *out)
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
        fprintf(out, "%s does not fit under %s: its column is of the least that would do, total:%zuB%s\n", what,
                t->policy.spec, step->p.total_bytes, behind_of(&t->policy));
}

static void print_misses(const rw_tape *t, const struct step *step, const rw_grown *grown, size_t n, FILE *out)
{
    print_miss(t, "this step", &step[0], out);
    for (size_t i = 0; i < n; i++) {
        char what[64];
        snprintf(what, sizeof what, "%.*s x %g", NAME, grown[i].what, grown[i].times);
        print_miss(grown[i].tape, what, &step[i + 1], out);
    }
}

static void print_table(const struct step *step, const rw_grown *grown, size_t n, FILE *out)
{
    fprintf(out, "at the peak, in bytes, and what grows with what:\n  %-24s %14s", "", "this step");
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

/* ---- what to do ---- */

struct remedy {
    rw_status status; /* RW_OK; RW_ERR_BUDGET: nothing would; RW_ERR_UNSUPPORTED: parts have budgets of their own */
    size_t total;     /* that this step takes, or the least that the larger one can */
    double ms;
    const char *behind; /* of its policy */
};

/* The larger step within what this one takes in all. behind: what stands behind the budget. */
static rw_status try_budget(const rw_grown *g, const rw_prediction *now, const rw_prediction *then, const char *behind,
                            struct remedy *ret)
{
    rw_context *const ctx = g->tape->ctx;
    const size_t beside = then->total_bytes - then->peak_bytes;
    const size_t room = now->total_bytes > beside ? now->total_bytes - beside : 1;
    char policy[48];
    rw_prediction p = { 0 };
    snprintf(policy, sizeof policy, "budget:%zuB%s", room, behind);
    ret->behind = behind;
    ret->status = predict(g->tape, g->loss, policy, &p);
    ret->total = ret->status == RW_ERR_BUDGET ? p.least_bytes + beside : now->total_bytes;
    ret->ms = p.ms;
    if (ret->status != RW_ERR_BUDGET && ret->status != RW_ERR_UNSUPPORTED) return ret->status;
    rw_error_clear(ctx);
    return RW_OK;
}

/* Where values can wait outside, that is tried as well: it takes less, or less time, or it is nothing new. A store that
   cannot be measured is no offer. */
static rw_status find_remedy(const rw_grown *g, const rw_prediction *now, const rw_prediction *then, struct remedy *ret)
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

static void print_remedy(const rw_grown *g, const rw_prediction *now, const struct step *larger,
                         const struct remedy *r, FILE *out)
{
    const rw_prediction *const then = &larger->p;
    fprintf(out, "%.*s x %g: ", NAME, g->what, g->times);
    if (!larger->by_least && then->total_bytes <= now->total_bytes) fprintf(out, "takes no more than this step\n");
    else if (r->status == RW_ERR_UNSUPPORTED) fprintf(out, "parts of it have budgets of their own\n");
    else if (r->status)
        fprintf(out, "no plan takes what this step does, %zu bytes in all; the least is total:%zuB%s\n",
                now->total_bytes, r->total, r->behind);
    else
        fprintf(out, "fits into what this step takes under total:%zuB%s, %+.1f %% time over %s\n", r->total,
                r->behind, 100 * (r->ms / then->ms - 1), larger->by_least ? "its least" : "its own policy");
}

rw_status ckpt_explain_growth(rw_tape *t, rw_tensor *loss, const rw_grown *grown, size_t n, FILE *out)
{
    if (!t) return RW_ERR_ARGUMENT;
    rw_context *const ctx = t->ctx;
    struct step step[MOST + 1] = { { .by_least = false } };
    struct remedy remedy[MOST] = { { 0 } };
    if (ctx->status) return ctx->status;
    if (!grown || !out) return rw_fail_null(ctx, "ckpt_explain_growth", grown ? "out" : "grown");
    if (!n || n > MOST)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "ckpt_explain_growth: %zu steps to compare with, 1 to %d can be", n, MOST);
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; i++) status = check_grown(ctx, t, &grown[i], i);
    if (!status) status = check_loss(t, loss, -1);
    for (size_t i = 0; !status && i < n; i++) status = check_loss(grown[i].tape, grown[i].loss, (int)i);
    if (!status) status = predict_own(t, loss, -1, &step[0]);
    for (size_t i = 0; !status && i < n; i++)
        status = predict_own(grown[i].tape, grown[i].loss, (int)i, &step[i + 1]);
    for (size_t i = 0; !status && i < n; i++) {
        status = find_remedy(&grown[i], &step[0].p, &step[i + 1].p, &remedy[i]);
        if (status) name_failure(ctx, status, (int)i);
    }
    if (status) return status;
    struct rw_printing printing = rw_printing_begin(out);
    print_misses(t, step, grown, n, out);
    print_table(step, grown, n, out);
    for (size_t i = 0; i < n; i++) print_remedy(&grown[i], &step[0].p, &step[i + 1], &remedy[i], out);
    const char *const why = rw_printing_end(&printing);
    return why ? rw_fail(ctx, RW_ERR_IO, "ckpt_explain_growth: out cannot be written to: %s", why) : RW_OK;
}
