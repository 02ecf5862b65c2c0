/* rw_lr_schedule_rate(): learning-rate schedules. */
#include <rewind/lr_schedule.h>

#include "base/explicit_zero_param.h"
#include "record/api_entry.h"

#include <math.h>

static bool is_rate(double x)
{
    return x >= 0 && isfinite(x);
}

static bool makes_sense(const rw_lr_schedule *s)
{
    if (!is_rate(s->lr) || !is_rate(s->min_lr)) return false;
    switch (s->kind) {
    case RW_LR_CONSTANT: return true;
    case RW_LR_LINEAR:
    case RW_LR_COSINE: return s->total > s->warmup;
    case RW_LR_STEPS: return s->every > 0 && is_rate(s->factor);
    }
    return false;
}

/* The progress of the decay before `total`, 0 to 1. */
static double progress(const rw_lr_schedule *s, uint64_t step)
{
    return (double)(step - s->warmup) / (double)(s->total - s->warmup);
}

/* A rate of a decay, without the roundings that take it beyond its ends. */
static double between(const rw_lr_schedule *s, double rate)
{
    return fmax(fmin(rate, fmax(s->lr, s->min_lr)), fmin(s->lr, s->min_lr));
}

/* A rate after the warm-up and before `total`. */
static double decayed(const rw_lr_schedule *s, double done)
{
    if (done == 0) return s->lr;
    return between(s, s->kind == RW_LR_LINEAR ? s->lr + (s->min_lr - s->lr) * done
                                              : s->min_lr + (s->lr - s->min_lr) * (0.5 * (1 + cos(M_PI * done))));
}

static double rate_of_steps(const rw_lr_schedule *s, uint64_t step)
{
    const double rate = fmax(s->min_lr, s->lr * pow(s->factor, (double)((step - s->warmup) / s->every)));
    return isfinite(rate) ? rate : NAN; /* a factor above 1 */
}

static rw_lr_schedule with_defaults(const rw_lr_schedule *given)
{
    rw_lr_schedule s = *given;
    s.lr = rw_or_default(s.lr, 0);
    s.min_lr = rw_or_default(s.min_lr, 0);
    s.factor = rw_or_default(s.factor, 0.1);
    return s;
}

static double rate(const rw_lr_schedule *s, uint64_t step)
{
    if (!makes_sense(s)) return NAN;
    if (step < s->warmup) return s->lr * ((double)(step + 1) / (double)s->warmup);
    switch (s->kind) {
    case RW_LR_LINEAR:
    case RW_LR_COSINE: return step >= s->total ? s->min_lr : decayed(s, progress(s, step));
    case RW_LR_STEPS: return rate_of_steps(s, step);
    default: return s->lr;
    }
}

double rw_lr_schedule_rate(const rw_lr_schedule *schedule, uint64_t step)
{
    RW_ENTER_ANYWHERE;
    if (!schedule) return NAN;
    const rw_lr_schedule s = with_defaults(schedule);
    return rate(&s, step);
}
