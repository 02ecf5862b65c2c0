/* Thresholds and medians of windows. */
#include "io/monitor_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const rw_alert_names[RW_ALERTS] = { "loss_nonfinite", "loss_spike", "grad_nonfinite", "grad_spike",
                                                "slow_step", "scale_drop", "scale_rise", "skips", "plateau", "updates",
                                                "zeros", "site_scale_drop", "site_scale_rise", "saturated", "flushed",
                                                "amax_nonfinite" };

#define ENOUGH 20 /* minimum number of values for a median */

/* ---- medians ---- */

static size_t size_of(const struct rw_window *w)
{
    return w->n < RW_WINDOW ? w->n : RW_WINDOW;
}

static void add(struct rw_window *w, double x)
{
    w->x[w->n++ % RW_WINDOW] = x;
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *x, size_t n)
{
    qsort(x, n, sizeof *x, rising);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static double median(const struct rw_window *w)
{
    double x[RW_WINDOW];
    memcpy(x, w->x, sizeof x);
    return median_of(x, size_of(w));
}

/* Median of the distances from the median. */
static double deviation(const struct rw_window *w, double middle)
{
    double x[RW_WINDOW];
    for (size_t i = 0; i < size_of(w); i++) x[i] = fabs(w->x[i] - middle);
    return median_of(x, size_of(w));
}

/* ---- alerts ---- */

unsigned rw_judge_compare(struct rw_judge *j, unsigned alert, double value, double usual)
{
    for (size_t i = 0; i < RW_ALERTS; i++)
        if (alert == 1u << i) j->compared[i] = (struct rw_compared){ value, usual };
    return alert;
}

/* Megatron's rule (rerun_state_machine.py): ten times the largest of the first losses. Medians follow a slowly
   rising loss, this does not. True when it begins. */
static bool begins_to_be_far(struct rw_judge *j, double loss)
{
    const bool was = j->far;
    if (j->loss.n < RW_WINDOW) j->most = fmax(j->most, fabs(loss));
    else j->far = j->most > 0 && fabs(loss) >= 10 * j->most;
    return j->far && !was;
}

static unsigned judge_loss(struct rw_judge *j, double loss)
{
    struct rw_window *const w = &j->loss;
    if (!isfinite(loss)) return rw_judge_compare(j, RW_ALERT_LOSS_NONFINITE, (double)NAN, (double)NAN);
    const double middle = w->n < ENOUGH ? 0 : median(w);
    const bool spike = w->n >= ENOUGH && loss > 2 * middle && loss > middle + 10 * deviation(w, middle);
    const bool far = begins_to_be_far(j, loss);
    add(w, loss);
    if (spike) return rw_judge_compare(j, RW_ALERT_LOSS_SPIKE, loss, middle);
    return far ? rw_judge_compare(j, RW_ALERT_LOSS_SPIKE, loss, j->most) : 0;
}

bool rw_judge_spikes(struct rw_window *w, double norm, double *ret_usual)
{
    if (!isfinite(norm)) return false;
    const double usual = w->n >= ENOUGH ? median(w) : 0;
    add(w, norm);
    *ret_usual = usual;
    return usual > 0 && norm > 10 * usual; /* a part without gradients at first may begin to have some */
}

unsigned rw_judge_norm(struct rw_judge *j, double norm)
{
    double usual;
    if (!isfinite(norm)) return rw_judge_compare(j, RW_ALERT_GRAD_NONFINITE, (double)NAN, (double)NAN);
    return rw_judge_spikes(&j->norm, norm, &usual) ? rw_judge_compare(j, RW_ALERT_GRAD_SPIKE, norm, usual) : 0;
}

static unsigned judge_time(struct rw_judge *j, double seconds)
{
    struct rw_window *const w = &j->seconds;
    const double usual = w->n >= ENOUGH ? median(w) : INFINITY;
    if (isfinite(seconds)) add(w, seconds);
    return seconds > 1.2 * usual ? rw_judge_compare(j, RW_ALERT_SLOW_STEP, 1e3 * seconds, 1e3 * usual) : 0;
}

/* A scale below 1 divides; reported when that begins. */
static unsigned judge_scale(struct rw_judge *j, double scale)
{
    struct rw_window *const w = &j->scale;
    const bool known = w->n >= ENOUGH;
    const bool sinks = scale < 1 && !j->low;
    const double middle = known ? median(w) : scale;
    j->low = scale < 1;
    if (isfinite(scale)) add(w, scale);
    if (sinks || (known && scale <= middle / 2)) return rw_judge_compare(j, RW_ALERT_SCALE_DROP, scale, middle);
    return known && scale >= 2 * middle ? rw_judge_compare(j, RW_ALERT_SCALE_RISE, scale, middle) : 0;
}

/* Once per step, as soon as it is known. */
static unsigned judge_known_scale(struct rw_judge *j, double scale)
{
    if (!(scale > 0) || j->scale_is_judged) return 0;
    j->scale_is_judged = true;
    return judge_scale(j, scale);
}

void rw_judge_skip(struct rw_judge *j)
{
    j->n_skipped += !j->is_counted;
    j->is_counted = true;
}

static unsigned judge_skips(struct rw_judge *j, bool skipped)
{
    int sum = 0;
    j->skipped.x[j->skipped.n++ % RW_SKIPS_WINDOW] = skipped;
    j->in_a_row = skipped ? j->in_a_row + 1 : 0;
    if (skipped) rw_judge_skip(j);
    for (int i = 0; i < RW_SKIPS_WINDOW; i++) sum += j->skipped.x[i];
    const bool often = j->skipped.n >= RW_SKIPS_WINDOW && sum > RW_SKIPS_WINDOW / 20;
    const bool told = skipped && (j->in_a_row >= 3 || often);
    return told ? rw_judge_compare(j, RW_ALERT_SKIPS, sum, (double)NAN) : 0;
}

/* Evaluated once per hundred steps, if there was a loss in the hundred before. An unknown norm does not count as
   falling. */
static unsigned judge_progress(struct rw_judge *j)
{
    if (++j->steps % RW_WINDOW || !j->loss.n) return 0;
    const double loss = median(&j->loss), norm = j->norm.n ? median(&j->norm) : 0;
    const bool known = j->before.known;
    const bool is_flat = loss > j->before.loss - 0.001 * fabs(j->before.loss), is_steady = norm >= 0.9 * j->before.norm;
    const unsigned alert = known && is_flat && is_steady
                               ? rw_judge_compare(j, RW_ALERT_PLATEAU, loss, j->before.loss) : 0;
    j->before.loss = loss;
    j->before.norm = norm;
    j->before.known = true;
    return alert;
}

static unsigned judge_update(struct rw_judge *j, const struct rw_health *h)
{
    const double ratio = h->update_ratio, usual = j->zeros.n < ENOUGH ? 1 : median(&j->zeros);
    if (!(h->elements > 0)) return 0;
    j->beside = ratio >= 1e-5 && ratio <= 1e-1 ? 0 : j->beside + 1;
    add(&j->zeros, h->zeros);
    unsigned alerts = 0;
    if (j->beside && j->beside % RW_WINDOW == 0)
        alerts |= rw_judge_compare(j, RW_ALERT_UPDATES, ratio, (double)NAN);
    if (h->zeros > 0.5 && h->zeros > 2 * usual) alerts |= rw_judge_compare(j, RW_ALERT_ZEROS, h->zeros, usual);
    return alerts;
}

unsigned rw_judge_step(struct rw_judge *j, const struct rw_judged *s)
{
    j->is_counted = j->scale_is_judged = false;
    const unsigned alerts = judge_loss(j, s->loss) | judge_known_scale(j, s->loss_scale);
    return alerts | judge_progress(j);
}

unsigned rw_judge_update(struct rw_judge *j, const struct rw_judged *s)
{
    const unsigned slow = s->seconds > 0 ? judge_time(j, s->seconds) : 0;
    return slow | judge_known_scale(j, s->loss_scale) | judge_skips(j, s->skipped) | judge_update(j, &s->health);
}
