/* Reads the counts of quantization, resets them, and evaluates the alerts of each site. */
#include "io/monitor_fp8_stats.h"

#include "base/alloc.h"
#include "base/utf8.h"
#include "ops/float8/fp8_scaling_ops.h"
#include "record/quantization_counts.h"
#include "record/recipe_slots.h"
#include "run/run_advance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENOUGH 20 /* minimum number of scales for a median */
#define SATURATED 0.001
#define FLUSHED 0.01

static void name_it(struct rw_site_state *s, const char *weight, size_t operand)
{
    static const char *const operands[] = { "x", "w", "dy" };
    snprintf(s->name, sizeof s->name, "%s/%s", weight, operands[operand]);
    for (char *c = s->name; *c;) {
        const int n = rw_utf8_letter(c);
        if (!n || (unsigned char)*c < 0x20 || *c == '"' || *c == '\\') *c = '_';
        c += n ? n : 1;
    }
}

/* Reads the counts and sets them to zero. */
static rw_status take(struct rw_watched_sites *s)
{
    rw_context *const ctx = s->ctx;
    rw_status status = s->n ? rw_runs_wait(ctx) : RW_OK;
    if (!s->n || status) return status;
    status = ctx->device->download(ctx->device_state, s->words, s->noted->data, s->noted->bytes);
    if (!status) status = ctx->device->clear(ctx->device_state, s->noted->data, s->noted->bytes);
    return status ? rw_fail(ctx, status, "rw_monitor: the counts of FP8 values could not be read") : RW_OK;
}

rw_status rw_sites_open(struct rw_watched_sites *ret, rw_context *ctx, const void *watcher)
{
    struct rw_watched_sites s = { .ctx = ctx };
    const rw_status status = rw_counts_make(&s.pending, ctx, watcher);
    if (status) return status;
    s.n = s.pending->n;
    s.noted = s.pending->noted;
    s.words = rw_calloc(s.n + 1, RW_CODES_NUMBERS * sizeof *s.words);
    s.site = rw_calloc(s.n + 1, sizeof *s.site);
    if (!s.words || !s.site) {
        rw_sites_free(&s);
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_monitor_watch: out of memory");
    }
    for (size_t i = 0; i < ctx->n_params; i++) {
        const uint32_t k = rw_serial_find(s.pending->weights, s.pending->n_weights, ctx->params[i]->serial);
        for (size_t j = 0; k != RW_NONE_ID && j < RW_DELAYED_OPERANDS; j++)
            name_it(&s.site[k * RW_DELAYED_OPERANDS + j], ctx->params[i]->name, j);
    }
    *ret = s;
    return RW_OK;
}

void rw_sites_begin(struct rw_watched_sites *s)
{
    rw_counts_set(s->ctx, s->pending);
    s->pending = NULL;
    take(s); /* drops what a graph has counted before */
}

void rw_sites_free(struct rw_watched_sites *s)
{
    if (s->ctx) rw_counts_drop(s->ctx, s->pending);
    rw_free(s->words);
    rw_free(s->site);
    *s = (struct rw_watched_sites){ 0 };
}

/* ---- alerts ---- */

static int rising(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median(const struct rw_site_state *s)
{
    float x[RW_SITE_WINDOW];
    const size_t n = s->n < RW_SITE_WINDOW ? (size_t)s->n : RW_SITE_WINDOW;
    memcpy(x, s->scale, sizeof x);
    qsort(x, n, sizeof *x, rising);
    return n % 2 ? (double)x[n / 2] : ((double)x[n / 2 - 1] + (double)x[n / 2]) / 2;
}

/* Scales are powers of two: one that is half of another may come from nearly the same amax. */
static unsigned judge(struct rw_site_state *s)
{
    const rw_monitor_site *const last = &s->last;
    const double usual = s->n >= ENOUGH ? median(s) : last->scale;
    unsigned now = 0;
    if (last->scale > 0 && last->scale < usual / 2) now |= RW_ALERT_SITE_SCALE_DROP;
    if (last->scale > 0 && last->scale > usual * 2) now |= RW_ALERT_SITE_SCALE_RISE;
    if (last->saturated > SATURATED) now |= RW_ALERT_SATURATED;
    if (last->flushed > FLUSHED) now |= RW_ALERT_FLUSHED;
    if (!isfinite(last->amax)) now |= RW_ALERT_AMAX_NONFINITE;
    if (last->scale > 0) s->scale[s->n++ % RW_SITE_WINDOW] = (float)last->scale;
    s->usual = usual;
    const unsigned began = now & ~s->told;
    s->told = now;
    return began;
}

/* ---- reading ---- */

static double float_of(uint64_t bits)
{
    const uint32_t word = (uint32_t)bits;
    float x;
    memcpy(&x, &word, sizeof x);
    return (double)x;
}

static void fill(rw_monitor_site *s, const uint64_t *x)
{
    const double n = (double)x[RW_CODES_ELEMENTS];
    s->elements = n;
    s->amax = float_of(x[RW_CODES_AMAX]);
    s->scale = x[RW_CODES_MIN] ? float_of(UINT32_MAX - x[RW_CODES_MIN]) : 0;
    s->scale_most = float_of(x[RW_CODES_MAX]);
    s->saturated = (double)x[RW_CODES_SATURATED] / n;
    s->flushed = (double)x[RW_CODES_FLUSHED] / n;
}

rw_status rw_sites_read(struct rw_watched_sites *s, unsigned *ret_alerts)
{
    const rw_status status = take(s);
    *ret_alerts = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct rw_site_state *const site = &s->site[i];
        const uint64_t *const x = s->words + i * RW_CODES_NUMBERS;
        site->last = (rw_monitor_site){ .name = site->name, .at = rw_counts_of(s->ctx)->at[i] };
        if (status || !x[RW_CODES_ELEMENTS]) continue;
        fill(&site->last, x);
        site->last.alerts = judge(site);
        *ret_alerts |= site->last.alerts;
    }
    return status;
}

bool rw_sites_compared(const struct rw_watched_sites *s, unsigned alert, double *ret_value, double *ret_usual)
{
    size_t i = 0;
    while (i < s->n && !(s->site[i].last.alerts & alert)) i++;
    if (i == s->n) return false;
    const rw_monitor_site *const last = &s->site[i].last;
    const bool scales = alert & (RW_ALERT_SITE_SCALE_DROP | RW_ALERT_SITE_SCALE_RISE);
    *ret_usual = scales ? s->site[i].usual : (double)NAN;
    *ret_value = scales                        ? last->scale
                 : alert & RW_ALERT_SATURATED  ? last->saturated
                 : alert & RW_ALERT_FLUSHED    ? last->flushed
                                               : (double)NAN; /* an element that is not finite */
    return true;
}

static double number_of(const rw_monitor_site *s, int i)
{
    return i == 0 ? s->amax : i == 1 ? s->scale : i == 2 ? s->scale_most : i == 3 ? s->saturated : s->flushed;
}

void rw_sites_readings(const struct rw_watched_sites *s, struct rw_readings *r)
{
    static const char *const names[RW_SITE_READINGS][2] = {
        { "site_amax", "Largest magnitude that was quantised" },
        { "site_scale", "Least scale of its blocks" },
        { "site_scale_most", "Largest scale of its blocks" },
        { "site_saturated", "Share above the largest code" },
        { "site_flushed", "Share that became zero" }
    };
    for (int k = 0; k < RW_SITE_READINGS; k++)
        for (size_t i = 0; i < s->n; i++) {
            const rw_monitor_site *const last = &s->site[i].last;
            const bool known = k == 1 || k == 2 ? last->scale > 0 : last->elements > 0;
            if (known)
                rw_readings_add(r, (struct rw_reading){ .name = names[k][0], .help = names[k][1], .label = "site",
                                                        .value_of_label = last->name,
                                                        .value = number_of(last, k) });
        }
}
