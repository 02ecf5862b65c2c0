/* Takes the actions that --on sets for alerts. */
#include "alert_actions.h"

#include "saves.h"

#include <stdio.h>

enum { ROLL_BACKS = 10 };

static rw_status note(struct run *r, int step, unsigned alerts, rw_recovery what, const char *text)
{
    fprintf(stderr, "step %6d  %s: %s\n", step, rw_recovery_name(what), text);
    dashboard_note(&r->page, step, text);
    return logged(r, rw_monitor_recovered(r->monitor, (uint64_t)step, alerts, what, text));
}

/* From the next step on. The schedule is part of a checkpoint: a resumed run continues at this rate. */
static void lower(struct run *r)
{
    r->schedule.lr /= 2;
    r->schedule.min_lr /= 2;
}

/* Alerts among these for which --on sets this action. */
static unsigned alerts_with(unsigned alerts, rw_recovery what)
{
    unsigned found = 0;
    for (int i = 0; i < ALERTS; i++)
        if (o.on[i] == what) found |= alerts & 1u << i;
    return found;
}

/* Only NaN and infinity make the weights of a run worthless. */
static const unsigned nonfinite = RW_ALERT_LOSS_NONFINITE | RW_ALERT_GRAD_NONFINITE | RW_ALERT_AMAX_NONFINITE;

/* cause: the alerts that stop the run. */
static rw_status stop(struct run *r, int step, unsigned alerts, unsigned cause, double loss, const char *why)
{
    r->ended = cause & nonfinite ? ENDED_WRONG : ENDED_EARLY; /* earlier saves are complete */
    const rw_status status = note(r, step, alerts, RW_RECOVERY_STOP, why);
    fprintf(stderr, "train_gpt: step %d: the loss is %g\n", step, loss);
    return status;
}

/* Repeating the same steps would give the same bytes: a rate that was halved before is halved once more. */
static rw_status roll_back(struct run *r, int *step, unsigned alerts, double loss)
{
    char text[200];
    int back;
    const int from = *step;
    const double lr = r->schedule.lr, min_lr = r->schedule.min_lr;
    rw_graph_destroy(&r->graph);
    rw_tape_reset(r->t);
    const rw_status status = saves_go_back(r, from, &back);
    if (status) return status;
    if (back < 0)
        return stop(r, from, alerts, alerts_with(alerts, RW_RECOVERY_ROLL_BACK), loss,
                    "stopped: no checkpoint is left to return to");
    r->schedule.lr = lr;
    r->schedule.min_lr = min_lr;
    lower(r);
    dashboard_cut(&r->page, *step = back);
    snprintf(text, sizeof text, "back to step %d, rate halved to %.3g", back, r->schedule.lr);
    return note(r, from, alerts, RW_RECOVERY_ROLL_BACK, text);
}

/* A run that has rolled back too often stops instead. *ret_cause: the alerts with the strongest action. */
static rw_recovery action_for(const struct run *r, unsigned alerts, unsigned *ret_cause)
{
    const rw_recovery what = rw_monitor_policy(r->monitor, alerts);
    *ret_cause = alerts_with(alerts, what);
    return what == RW_RECOVERY_ROLL_BACK && r->roll_backs >= ROLL_BACKS ? RW_RECOVERY_STOP : what;
}

rw_status update_or_skip(struct run *r, unsigned alerts, bool *ret_skipped)
{
    unsigned cause;
    const rw_recovery what = action_for(r, alerts, &cause);
    if (what == RW_RECOVERY_ROLL_BACK) return leave_out(r);
    if (what == RW_RECOVERY_STOP && (cause & nonfinite)) return RW_OK; /* nothing of this step is used */
    *ret_skipped = what == RW_RECOVERY_SKIP;
    if (what == RW_RECOVERY_STOP) /* the step is finished, and counts */
        *ret_skipped = cause == alerts_with(alerts, RW_RECOVERY_ROLL_BACK) || alerts_with(alerts, RW_RECOVERY_SKIP);
    return *ret_skipped ? leave_out(r) : update(r);
}

rw_status recover(struct run *r, int *step, unsigned alerts, bool skipped, double loss)
{
    unsigned cause;
    const int at = *step;
    const rw_recovery what = action_for(r, alerts, &cause);
    rw_status status = RW_OK;
    if (rw_monitor_policy(r->monitor, alerts) == RW_RECOVERY_ROLL_BACK) r->roll_backs++;
    if (what == RW_RECOVERY_STOP) {
        status = stop(r, at, alerts, cause, loss, "stopped");
        if (status || r->ended == ENDED_WRONG) return status;
    }
    if (what == RW_RECOVERY_ROLL_BACK) return roll_back(r, step, alerts, loss);
    ++*step;
    if (skipped) status = note(r, at, alerts, RW_RECOVERY_SKIP, "update skipped");
    if (!status && what == RW_RECOVERY_LOWER) { /* this step has its rate already */
        char text[80];
        lower(r);
        snprintf(text, sizeof text, "rate halved to %.3g", r->schedule.lr);
        status = note(r, at, alerts, what, text);
    }
    return status;
}
