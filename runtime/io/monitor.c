/* rw_monitor: see rewind/monitor.h. What is written, and the calls. */
#include <rewind/monitor.h>

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/clock.h"
#include "base/output.h"
#include "io/monitor_files.h"
#include "io/monitor_judge.h"
#include "io/monitor_sites.h"
#include "io/monitor_watched.h"
#include "record/counts.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 8192 /* without sites */
#define SITE_LINE (RW_SITE_NAME + 1600) /* a file's name is cut off at 500 bytes, of which each may be escaped */
#define BETWEEN_TEXTS 1.0 /* seconds: replacing a file makes file systems write it out */

static const char *const alert_names[] = { "loss_nonfinite", "loss_spike", "grad_nonfinite", "grad_spike",
                                           "slow_step", "scale_drop", "scale_rise", "skips", "plateau", "updates",
                                           "zeros", "site_scale_drop", "site_scale_rise", "saturated", "flushed",
                                           "amax_nonfinite" };
#define ALERTS (sizeof alert_names / sizeof *alert_names)

static const char *const recovery_names[] = { "note", "skip", "lower", "roll_back", "stop" };
#define RECOVERIES (sizeof recovery_names / sizeof *recovery_names)

/* A step as it is judged and written. */
struct shown {
    const rw_monitor_values *v;
    double norm, seconds;
    bool has_norm;
    double model_flops, hardware_flops; /* in a second; 0: not known */
    struct rw_health all, group[RW_WATCHED_GROUPS];
    unsigned group_alerts[RW_WATCHED_GROUPS];
};

struct rw_monitor {
    rw_context *ctx;
    char *path;
    int fd; /* -1: none */
    struct rw_judge judge;
    struct rw_window group_norm[RW_WATCHED_GROUPS];
    struct rw_watched watched;
    struct rw_watched_sites sites; /* ctx NULL: none */
    double peak_flops; /* 0: not known */
    rw_cost work;      /* of the context, at the last call */
    uint64_t n_alerts[ALERTS];
    rw_recovery policy[ALERTS];
    char *text;                  /* of a line */
    size_t room;
    struct rw_reading *readings; /* of a step */
    struct rw_event_file events; /* no path: none */
    char *prometheus;            /* NULL: none */
    double replaced;             /* when; 0: it was not yet */
    struct shown held;           /* a step that it does not have yet; v: NULL for none */
    rw_monitor_values held_values;
    double last; /* when the last call came; 0: there was none */
    rw_monitor_numbers numbers; /* of the last step */
};

const char *rw_alert_name(unsigned alert)
{
    for (size_t i = 0; i < ALERTS; i++)
        if (alert == 1u << i) return alert_names[i];
    return "?";
}

const char *rw_recovery_name(rw_recovery recovery)
{
    return (unsigned)recovery < RECOVERIES ? recovery_names[recovery] : "?";
}

/* NULL: nothing is known. */
static rw_monitor_numbers numbers_of(const struct shown *s)
{
    const double no = (double)NAN;
    const bool updated = s && s->all.elements > 0, worked = s && s->model_flops > 0;
    return (rw_monitor_numbers){ .grad_norm = s && s->has_norm ? s->norm : no,
                                 .param_norm = updated ? s->all.param_norm : no,
                                 .update_ratio = updated ? s->all.update_ratio : no,
                                 .zeros = updated ? s->all.zeros : no,
                                 .model_flops = worked ? s->model_flops : no,
                                 .hardware_flops = worked ? s->hardware_flops : no };
}

/* ---- alerts ---- */

static bool is_known(const struct rw_health *h)
{
    return h->elements > 0 || h->clipped;
}

/* A spike of one part is small beside the norm of all. */
static unsigned judge_groups(rw_monitor *m, struct shown *s)
{
    unsigned alerts = 0;
    for (size_t g = 0; g < m->watched.n_groups; g++) {
        const struct rw_health *const h = &s->group[g];
        const double norm = h->clipped ? h->unclipped_norm : h->grad_norm;
        if (is_known(h) && rw_judge_spikes(&m->group_norm[g], norm)) s->group_alerts[g] = RW_ALERT_GRAD_SPIKE;
        alerts |= s->group_alerts[g];
    }
    return alerts;
}

/* sites: the alerts of those. */
static unsigned judge(rw_monitor *m, struct shown *s, unsigned sites)
{
    const struct rw_judged step = { .loss = s->v->loss, .has_norm = s->has_norm, .norm = s->norm,
                                    .seconds = s->seconds, .loss_scale = s->v->loss_scale,
                                    .skipped = s->v->skipped, .health = s->all };
    const unsigned alerts = sites | judge_groups(m, s) | rw_judge(&m->judge, &step);
    for (size_t i = 0; i < ALERTS; i++) m->n_alerts[i] += alerts >> i & 1;
    return alerts;
}

/* ---- policies ---- */

rw_status rw_monitor_set_policy(rw_monitor *m, unsigned alerts, rw_recovery recovery)
{
    if (!m) return RW_ERR_ARGUMENT;
    if (alerts >> ALERTS || (unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_set_policy: alerts %#x, recovery %d", alerts,
                       (int)recovery);
    for (size_t i = 0; i < ALERTS; i++)
        if (alerts >> i & 1) m->policy[i] = recovery;
    return RW_OK;
}

rw_recovery rw_monitor_policy(const rw_monitor *m, unsigned alerts)
{
    rw_recovery strongest = RW_RECOVERY_NOTE;
    for (size_t i = 0; m && i < ALERTS; i++)
        if ((alerts >> i & 1) && m->policy[i] > strongest) strongest = m->policy[i];
    return strongest;
}

/* ---- a line ---- */

struct line {
    char *text;
    size_t room, n;
    bool nonfinite;
};

/* A line has room for all that is ever put there. */
static void put(struct line *l, const char *fmt, ...) RW_PRINTF(2, 3);

static void put(struct line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->n, l->room - l->n, fmt, args);
    va_end(args);
    assert(n >= 0 && l->n + (size_t)n < l->room);
    l->n += (size_t)n;
}

static void put_number(struct line *l, const char *name, double x)
{
    char text[40] = "null";
    l->nonfinite |= !isfinite(x);
    const locale_t before = rw_c_locale_begin();
    if (isfinite(x)) snprintf(text, sizeof text, "%.9g", x);
    rw_c_locale_end(before);
    put(l, ",\"%s\":%s", name, text);
}

static void put_memory(struct line *l, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    put(l, ",\"memory\":{\"parameters\":%zu,\"gradients\":%zu,\"optimizer\":%zu,\"inputs\":%zu,\"results\":%zu",
        m.parameters, m.gradients, m.optimizer, m.inputs, m.results);
    put(l, ",\"kept\":%zu,\"replayed\":%zu,\"workspace\":%zu,\"predicted_peak\":%zu,\"peak\":%zu,\"arenas\":%zu",
        m.kept, m.replayed, m.workspace, m.predicted_peak, m.measured_peak, m.arenas);
    put(l, ",\"host\":%zu,\"files\":%zu,\"device\":%zu}", m.host, m.files, m.device);
}

static void put_alerts(struct line *l, unsigned alerts)
{
    const char *comma = "";
    put(l, ",\"alerts\":[");
    for (size_t i = 0; i < ALERTS; i++) {
        if (!(alerts >> i & 1)) continue;
        put(l, "%s\"%s\"", comma, alert_names[i]);
        comma = ",";
    }
    put(l, "]");
}

static void put_health(struct line *l, const struct rw_health *h)
{
    put_number(l, "param_norm", h->param_norm);
    put_number(l, "update_ratio", h->update_ratio);
    put_number(l, "zeros", h->zeros);
}

static void put_groups(struct line *l, const struct rw_watched *w, const struct shown *s)
{
    const struct rw_health *const group = s->group;
    const char *comma = "";
    if (!w->n_groups) return;
    put(l, ",\"groups\":{");
    for (size_t g = 0; g < w->n_groups; g++) {
        if (!is_known(&group[g])) continue;
        put(l, "%s\"%s\":{\"elements\":%.0f", comma, w->name[g], group[g].elements);
        if (group[g].clipped) put_number(l, "unclipped_norm", group[g].unclipped_norm);
        if (group[g].elements > 0) {
            put_number(l, "grad_norm", group[g].grad_norm);
            put_health(l, &group[g]);
        }
        if (s->group_alerts[g]) put_alerts(l, s->group_alerts[g]);
        put(l, "}");
        comma = ",";
    }
    put(l, "}");
}

/* A text of JSON: what it has no letters for is left out. A letter of several bytes is not cut. */
static void put_text(struct line *l, const char *text)
{
    for (size_t i = 0; text[i] && (i < 500 || ((text[i] & 0xc0) == 0x80 && i < 503)); i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20) put(l, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
}

static void put_site(struct line *l, const rw_monitor_site *s)
{
    put(l, "\"%s\":{\"op\":\"linear\",\"at\":\"", s->name);
    put_text(l, s->at.file);
    put(l, ":%d\"", (int)s->at.line);
    put_number(l, "elements", s->elements);
    put_number(l, "amax", s->amax);
    if (s->scale > 0) put_number(l, "scale", s->scale);
    if (s->scale_most > s->scale) put_number(l, "scale_most", s->scale_most);
    put_number(l, "saturated", s->saturated);
    put_number(l, "flushed", s->flushed);
    if (s->alerts) put_alerts(l, s->alerts);
    put(l, "}");
}

/* What there may be many of stands at the end of a line. */
static void put_sites(struct line *l, const struct rw_watched_sites *s)
{
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        if (!(s->site[i].last.elements > 0)) continue;
        put(l, any ? "," : ",\"sites\":{");
        put_site(l, &s->site[i].last);
        any = true;
    }
    if (any) put(l, "}");
}

static void put_work(struct line *l, const rw_monitor *m, const struct shown *s)
{
    if (!(s->model_flops > 0)) return;
    put_number(l, "model_flops_per_s", s->model_flops);
    put_number(l, "hardware_flops_per_s", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    put_number(l, "mfu", s->model_flops / m->peak_flops);
    put_number(l, "hfu", s->hardware_flops / m->peak_flops);
}

static void make_line(struct line *l, const rw_monitor *m, const struct shown *s, unsigned alerts)
{
    const rw_monitor_values *const v = s->v;
    *l = (struct line){ .text = m->text, .room = m->room };
    put(l, "{\"step\":%" PRIu64, v->step);
    put_number(l, "loss", v->loss);
    if (s->has_norm) put_number(l, "grad_norm", s->norm);
    if (v->lr != 0) put_number(l, "lr", v->lr);
    if (v->tokens > 0 && s->seconds > 0) put_number(l, "tokens_per_s", v->tokens / s->seconds);
    if (s->seconds > 0) put_number(l, "step_ms", 1e3 * s->seconds);
    if (v->loss_scale > 0) put_number(l, "loss_scale", v->loss_scale);
    if (v->skipped) put(l, ",\"skipped\":true");
    put_work(l, m, s);
    if (s->all.elements > 0) put_health(l, &s->all);
    if (is_known(&s->all)) put_groups(l, &m->watched, s);
    put_memory(l, m->ctx);
    put_alerts(l, alerts);
    put_sites(l, &m->sites);
    if (l->nonfinite) put(l, ",\"nonfinite\":true");
    put(l, "}\n");
}

/* One write(), so that who reads meanwhile, or a process that ends, sees whole lines. */
static rw_status write_line(rw_monitor *m, const struct line *l, const char *call)
{
    const struct rw_quiet q = rw_quiet_begin();
    const ssize_t n = m->fd < 0 ? (ssize_t)l->n : write(m->fd, l->text, l->n);
    rw_quiet_end(&q);
    if (n == (ssize_t)l->n) return RW_OK;
    return rw_fail(m->ctx, RW_ERR_IO, "%s: %s: %s", call, m->path, n < 0 ? strerror(errno) : "the disk is full");
}

rw_status rw_monitor_recovered(rw_monitor *m, uint64_t step, unsigned alerts, rw_recovery recovery, const char *note)
{
    if (!m) return RW_ERR_ARGUMENT;
    if ((unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_recovered: recovery %d", (int)recovery);
    struct line line = { .text = m->text, .room = m->room };
    put(&line, "{\"step\":%" PRIu64 ",\"recovery\":\"%s\"", step, recovery_names[recovery]);
    put_alerts(&line, alerts);
    if (note) {
        put(&line, ",\"note\":\"");
        put_text(&line, note);
        put(&line, "\"");
    }
    put(&line, "}\n");
    return write_line(m, &line, "rw_monitor_recovered");
}

/* ---- other files ---- */

#define READINGS (60 + 5 * RW_WATCHED_GROUPS)

static void read_out(struct rw_reading *r, size_t *n, const char *name, const char *help, double value)
{
    r[(*n)++] = (struct rw_reading){ .name = name, .help = help, .value = value };
}

static void read_memory(struct rw_reading *r, size_t *n, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    const struct {
        const char *name;
        size_t bytes;
    } kinds[] = { { "parameters", m.parameters }, { "gradients", m.gradients }, { "optimizer", m.optimizer },
                  { "kept", m.kept },             { "replayed", m.replayed },   { "peak", m.measured_peak },
                  { "host", m.host },             { "files", m.files },         { "device", m.device } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        r[(*n)++] = (struct rw_reading){ .name = "memory_bytes", .label = "kind", .value_of_label = kinds[i].name,
                                         .help = "Memory by category", .value = (double)kinds[i].bytes };
}

static void read_work(const rw_monitor *m, const struct shown *s, struct rw_reading *r, size_t *n)
{
    if (!(s->model_flops > 0)) return;
    read_out(r, n, "model_flops_per_second", "FLOP/s of forward and backward", s->model_flops);
    read_out(r, n, "hardware_flops_per_second", "FLOP/s of forward, replays and backward", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    read_out(r, n, "mfu", "Model FLOP/s over the stated peak", s->model_flops / m->peak_flops);
    read_out(r, n, "hfu", "Hardware FLOP/s over the stated peak", s->hardware_flops / m->peak_flops);
}

static double health_number(const struct rw_health *h, int i)
{
    const double numbers[] = { h->grad_norm, h->param_norm, h->update_ratio, h->zeros, h->unclipped_norm };
    return numbers[i];
}

static void read_health(const rw_monitor *m, const struct shown *s, struct rw_reading *r, size_t *n)
{
    static const char *const names[][2] = { { "group_grad_norm", "Norm of a group's gradients in its update" },
                                            { "group_param_norm", "Norm of a group's weights" },
                                            { "group_update_ratio", "A group's update over its weights" },
                                            { "group_zeros", "Share of a group's gradients that are zero" },
                                            { "group_unclipped_norm", "Norm of a group's gradients before clipping" } };
    if (s->all.elements > 0) {
        read_out(r, n, "param_norm", "Norm of the weights", s->all.param_norm);
        read_out(r, n, "update_ratio", "Norm of the update over that of the weights", s->all.update_ratio);
        read_out(r, n, "zeros", "Share of the gradients that are zero", s->all.zeros);
    }
    for (int i = 0; i < 5; i++)
        for (size_t g = 0; g < m->watched.n_groups; g++)
            if (i < 4 ? s->group[g].elements > 0 : s->group[g].clipped)
                r[(*n)++] = (struct rw_reading){ .name = names[i][0], .help = names[i][1], .label = "group",
                                                 .value_of_label = m->watched.name[g],
                                                 .value = health_number(&s->group[g], i) };
}

static size_t read_all(const rw_monitor *m, const struct shown *s, struct rw_reading *r)
{
    const rw_monitor_values *const v = s->v;
    const double seconds = s->seconds;
    size_t n = 0;
    read_out(r, &n, "step", "Step", (double)v->step);
    read_out(r, &n, "loss", "Loss", v->loss);
    if (s->has_norm) read_out(r, &n, "grad_norm", "Norm of the gradients before clipping", s->norm);
    if (v->lr != 0) read_out(r, &n, "learning_rate", "Learning rate", v->lr);
    if (v->tokens > 0 && seconds > 0) read_out(r, &n, "tokens_per_second", "Tokens per second", v->tokens / seconds);
    if (seconds > 0) read_out(r, &n, "step_seconds", "Time of the step", seconds);
    if (v->loss_scale > 0) read_out(r, &n, "loss_scale", "Loss scale", v->loss_scale);
    read_out(r, &n, "skipped_total", "Updates that were left out", (double)m->judge.n_skipped);
    r[n - 1].counts = true;
    read_work(m, s, r, &n);
    read_health(m, s, r, &n);
    rw_sites_readings(&m->sites, r, &n);
    read_memory(r, &n, m->ctx);
    for (size_t i = 0; i < ALERTS; i++)
        r[n++] = (struct rw_reading){ .name = "alerts_total", .label = "alert", .value_of_label = alert_names[i],
                                      .help = "Alerts", .value = (double)m->n_alerts[i], .counts = true };
    assert(n <= READINGS + RW_SITE_READINGS * m->sites.n);
    return n;
}

static rw_status write_events(rw_monitor *m, const struct shown *s)
{
    const size_t n = m->events.path ? read_all(m, s, m->readings) : 0;
    const rw_status status = n ? rw_event_file_put(&m->events, s->v->step, m->readings, n) : RW_OK;
    return status ? rw_fail(m->ctx, status, "rw_monitor_step: %s: %s", m->events.path, strerror(errno)) : RW_OK;
}

static rw_status replace_text(rw_monitor *m, const struct shown *s, const char **ret_why)
{
    const size_t n = read_all(m, s, m->readings);
    m->replaced = m->last;
    m->held.v = NULL;
    return rw_prometheus_put(m->prometheus, m->readings, n, ret_why);
}

static rw_status replace_text_for(rw_monitor *m, const struct shown *s, const char *call)
{
    const char *why = NULL;
    const rw_status status = replace_text(m, s, &why);
    if (!status) return RW_OK;
    return rw_fail(m->ctx, status, "%s: %s: %s", call, m->prometheus, why ? why : strerror(errno));
}

/* Now, or when a second has passed: by the step that comes then, by rw_monitor_watch(), which replaces the names that
   its numbers belong to, or at the end. */
static rw_status write_text(rw_monitor *m, const struct shown *s, bool at_once)
{
    if (!m->prometheus) return RW_OK;
    if (!at_once && m->replaced > 0 && m->last - m->replaced < BETWEEN_TEXTS) {
        m->held_values = *s->v;
        m->held = *s;
        m->held.v = &m->held_values;
        return RW_OK;
    }
    return replace_text_for(m, s, "rw_monitor_step");
}

static rw_status add_file(rw_monitor *m, rw_monitor_format format, const char *path)
{
    if (format == RW_MONITOR_TENSORBOARD) return rw_event_file_open(&m->events, path);
    m->prometheus = rw_strdup(path);
    return m->prometheus ? RW_OK : RW_ERR_MEMORY;
}

rw_status rw_monitor_add(rw_monitor *m, rw_monitor_format format, const char *path)
{
    if (!m) return RW_ERR_ARGUMENT;
    if (!path || !*path) return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add: no path");
    if (format != RW_MONITOR_TENSORBOARD && format != RW_MONITOR_PROMETHEUS)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add: format %d", (int)format);
    if (format == RW_MONITOR_TENSORBOARD ? m->events.path : m->prometheus)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add: %s: there is a file of that format already", path);
    const rw_status status = add_file(m, format, path);
    return status ? rw_fail(m->ctx, status, "rw_monitor_add: %s: %s", path,
                            status == RW_ERR_IO ? strerror(errno) : rw_status_name(status))
                  : RW_OK;
}

/* ---- the calls ---- */

/* For a line and the readings of so many sites, in place of what there is. */
static rw_status make_room(rw_monitor *m, size_t sites)
{
    const size_t room = LINE + sites * SITE_LINE;
    char *const text = rw_malloc(room);
    struct rw_reading *const readings = rw_malloc((READINGS + RW_SITE_READINGS * sites) * sizeof *readings);
    if (!text || !readings) {
        rw_free(text);
        rw_free(readings);
        return rw_fail(m->ctx, RW_ERR_MEMORY, "rw_monitor: out of memory");
    }
    rw_free(m->text);
    rw_free(m->readings);
    m->text = text;
    m->room = room;
    m->readings = readings;
    return RW_OK;
}

rw_status rw_monitor_create(rw_monitor **ret, rw_context *ctx, const char *path)
{
    if (!ret || !ctx) return rw_fail_null(ctx, "rw_monitor_create", ctx ? "ret_monitor" : "ctx");
    if (ctx->status) return ctx->status;
    rw_monitor *m = rw_calloc(1, sizeof *m);
    if (!m || (path && !(m->path = rw_strdup(path)))) {
        rw_free(m);
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_monitor_create: out of memory");
    }
    m->ctx = ctx;
    m->work = ctx->work;
    m->numbers = numbers_of(NULL);
    const char *why = NULL;
    m->fd = path ? rw_open_output(path, O_APPEND, &why) : -1;
    ctx->n_users++;
    const rw_status status = path && m->fd < 0
                                 ? rw_fail(ctx, RW_ERR_IO, "rw_monitor_create: %s: %s", path, why)
                                 : make_room(m, 0);
    if (status) {
        rw_monitor_destroy(&m);
        return status;
    }
    *ret = m;
    return RW_OK;
}

rw_status rw_monitor_watch(rw_monitor *m, const rw_monitor_sources *sources)
{
    if (!m) return RW_ERR_ARGUMENT;
    if (m->ctx->status) return m->ctx->status;
    const rw_monitor_sources s = sources ? *sources : (rw_monitor_sources){ 0 };
    struct rw_watched made;
    struct rw_watched_sites sites = { 0 };
    rw_status status = rw_check_runs(m->ctx, "rw_monitor_watch");
    if (!status) status = rw_watched_open(&made, m->ctx, &s);
    if (status) return status;
    if (s.sites) status = rw_sites_open(&sites, m->ctx, m);
    if (!status && m->held.v) status = replace_text_for(m, &m->held, "rw_monitor_watch");
    if (!status) status = make_room(m, sites.n);
    if (status) {
        rw_sites_free(&sites);
        rw_watched_close(&made);
        return status;
    }
    rw_watched_close(&m->watched);
    rw_counts_close(m->ctx, m);
    rw_sites_free(&m->sites);
    m->watched = made;
    rw_watched_begin(&m->watched);
    memset(m->group_norm, 0, sizeof m->group_norm);
    m->sites = sites;
    if (s.sites) rw_sites_begin(&m->sites);
    m->peak_flops = s.peak_flops;
    return m->ctx->status;
}

/* Times, and what was worked in them. */
static void take_in(rw_monitor *m, struct shown *s)
{
    const rw_cost *const work = &m->ctx->work, *const before = &m->work;
    const double model = work->forward_flops - before->forward_flops + work->backward_flops - before->backward_flops;
    const double replayed = work->replayed_flops - before->replayed_flops;
    const double time = rw_now_s(), since = m->last > 0 ? time - m->last : 0;
    s->seconds = s->v->seconds > 0 ? s->v->seconds : since;
    const double known = s->all.clipped ? s->all.unclipped_norm : s->all.grad_norm;
    s->has_norm = s->v->grad_norm != 0 || s->all.elements > 0 || s->all.clipped;
    s->norm = s->v->grad_norm == 0 ? known : s->v->grad_norm < 0 ? 0 : s->v->grad_norm;
    if (s->seconds > 0) {
        s->model_flops = model / s->seconds;
        s->hardware_flops = (model + replayed) / s->seconds;
    }
    m->work = *work;
    m->last = time;
    m->numbers = numbers_of(s);
}

rw_status rw_monitor_step(rw_monitor *m, const rw_monitor_values *v, unsigned *ret_alerts)
{
    if (!m) return RW_ERR_ARGUMENT;
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_step", "values");
    const rw_status runs = rw_check_runs(m->ctx, "rw_monitor_step");
    if (runs) return runs;
    struct shown s = { .v = v };
    unsigned sites = 0;
    rw_status looked = m->ctx->status ? RW_OK : rw_watched_read(&m->watched, &s.all, s.group);
    if (!m->ctx->status && m->sites.n) looked = rw_sites_read(&m->sites, &sites);
    take_in(m, &s);
    const unsigned alerts = judge(m, &s, sites);
    struct line line;
    make_line(&line, m, &s, alerts);
    if (ret_alerts) *ret_alerts = alerts;
    const rw_status written = write_line(m, &line, "rw_monitor_step"), events = write_events(m, &s);
    const rw_status text = write_text(m, &s, alerts);
    return looked ? looked : written ? written : events ? events : text;
}

rw_monitor_numbers rw_monitor_get_numbers(const rw_monitor *m)
{
    return m ? m->numbers : numbers_of(NULL);
}

bool rw_monitor_get_site(const rw_monitor *m, size_t i, rw_monitor_site *ret)
{
    if (!m || !ret || i >= m->sites.n) return false;
    *ret = m->sites.site[i].last;
    ret->name = m->sites.site[i].name;
    return true;
}

void rw_monitor_destroy(rw_monitor **pm)
{
    if (!pm || !*pm) return;
    rw_monitor *const m = *pm;
    rw_context *const ctx = m->ctx;
    const char *why;
    *pm = NULL;
    if (m->held.v) replace_text(m, &m->held, &why);
    if (m->fd >= 0) close(m->fd);
    rw_event_file_close(&m->events);
    rw_watched_close(&m->watched);
    rw_counts_close(ctx, m);
    rw_sites_free(&m->sites);
    rw_free(m->text);
    rw_free(m->readings);
    rw_free(m->prometheus);
    rw_free(m->path);
    rw_free(m);
    rw_context_release(ctx);
}
