/* See recover.h. */
#include "recover.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROLL_BACKS = 10 };

static rw_status note(struct run *r, int step, unsigned alerts, rw_recovery what, const char *text)
{
    fprintf(stderr, "step %6d  %s: %s\n", step, rw_recovery_name(what), text);
    dashboard_note(&r->page, step, text);
    return rw_monitor_recovered(r->monitor, (uint64_t)step, alerts, what, text);
}

/* The schedule is part of a checkpoint: a run that goes on goes on at this rate. */
static void lower(struct run *r, int step)
{
    r->schedule.lr /= 2;
    r->schedule.min_lr /= 2;
    rw_optimizer_set_lr(r->opt, rate_of(r, (uint64_t)step));
}

/* The same steps again would be the same bytes: a rate that was halved before stays halved, once more. */
static rw_status roll_back(struct run *r, int *step, unsigned alerts)
{
    char text[200];
    rw_checkpoint_found found = { 0 };
    const int from = *step;
    const double lr = r->schedule.lr, min_lr = r->schedule.min_lr;
    rw_graph_destroy(&r->graph);
    rw_tape_reset(r->t);
    rw_status status = leave_out(r);
    if (!status) status = rw_checkpoint_wait(r->ck);
    if (!status) status = rw_checkpoint_load(r->ck, &found);
    if (status) return status;
    r->schedule.lr = lr;
    r->schedule.min_lr = min_lr;
    *step = found.found ? (int)found.step : from;
    lower(r, *step);
    if (found.found) dashboard_cut(&r->page, *step);
    snprintf(text, sizeof text, "%s step %d, rate halved to %.3g", found.found ? "back to" : "no checkpoint yet: at",
             *step, r->schedule.lr);
    if (!found.found) ++*step; /* its update is left out */
    return note(r, from, alerts, RW_RECOVERY_ROLL_BACK, text);
}

static void stop(struct run *r, int step, unsigned alerts, double loss)
{
    note(r, step, alerts, RW_RECOVERY_STOP, "stopped");
    fprintf(stderr, "train_gpt: step %d: the loss is %g\n", step, loss);
    show(r, true);
    rw_checkpoint_destroy(&r->ck); /* what was saved before is whole */
    exit(3);
}

rw_status recover(struct run *r, int *step, unsigned alerts, double loss)
{
    const int at = *step;
    rw_recovery what = rw_monitor_policy(r->monitor, alerts);
    if (what == RW_RECOVERY_ROLL_BACK && r->roll_backs++ == ROLL_BACKS) what = RW_RECOVERY_STOP;
    if (what == RW_RECOVERY_STOP) stop(r, at, alerts, loss);
    if (what == RW_RECOVERY_ROLL_BACK) return roll_back(r, step, alerts);
    ++*step;
    if (what == RW_RECOVERY_SKIP) {
        const rw_status status = note(r, at, alerts, what, "update left out");
        return status ? status : leave_out(r);
    }
    if (what == RW_RECOVERY_LOWER) {
        char text[80];
        lower(r, at);
        snprintf(text, sizeof text, "rate halved to %.3g", r->schedule.lr);
        const rw_status status = note(r, at, alerts, what, text);
        if (status) return status;
    }
    return update(r);
}
