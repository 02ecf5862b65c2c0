/* rw_monitor: assembles the line of a step, its events and its text for Prometheus, and implements the public calls.
   monitor_judge.h has the rules of alerts. */
#include <rewind/monitor.h>

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/clock.h"
#include "base/folder.h"
#include "base/fork_handlers.h"
#include "base/sigpipe_safe_output.h"
#include "base/utf8.h"
#include "io/monitor_tensorboard_prometheus.h"
#include "io/monitor_judge.h"
#include "io/monitor_line.h"
#include "io/monitor_fp8_stats.h"
#include "io/monitor_optimizer_stats.h"
#include "record/quantization_counts.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 10240 /* without sites */
#define TEXT 500 /* bytes of a file name or note; the rest is left out */
#define SITE_LINE (RW_SITE_NAME + 3 * (TEXT + 3) + 600) /* a byte that is not UTF-8 becomes three */
#define BETWEEN_TEXTS 1.0 /* seconds: replacing a file makes file systems write it to the disk */

static const char *const alert_names[] = { "loss_nonfinite", "loss_spike", "grad_nonfinite", "grad_spike",
                                           "slow_step", "scale_drop", "scale_rise", "skips", "plateau", "updates",
                                           "zeros", "site_scale_drop", "site_scale_rise", "saturated", "flushed",
                                           "amax_nonfinite" };
#define ALERTS (sizeof alert_names / sizeof *alert_names)
_Static_assert(ALERTS == RW_ALERTS, "a name for each alert");

static const char *const recovery_names[] = { "note", "skip", "lower", "roll_back", "stop" };
#define RECOVERIES (sizeof recovery_names / sizeof *recovery_names)

/* A step with its alerts and statistics. */
struct shown {
    const rw_monitor_values *v;
    unsigned alerts;
    double norm, seconds;
    bool has_norm;
    double model_flops, hardware_flops; /* in a second; 0: not known */
    struct rw_health all, group[RW_WATCHED_GROUPS];
    unsigned group_alerts[RW_WATCHED_GROUPS];
    double group_usual[RW_WATCHED_GROUPS]; /* median norm before this step */
    bool norm_is_judged, group_is_judged[RW_WATCHED_GROUPS];
};

struct rw_monitor {
    rw_context *ctx;
    char *path;
    struct rw_records lines;
    struct rw_forked forked;
    struct rw_judge judge;
    struct rw_window group_norm[RW_WATCHED_GROUPS];
    struct rw_watched watched;
    struct rw_watched_sites sites; /* ctx NULL: none */
    double peak_flops; /* 0: not known */
    rw_cost work;      /* the context's totals at the last call */
    uint64_t n_alerts[ALERTS];
    rw_recovery policy[ALERTS];
    char *text;                  /* of a line */
    size_t room;
    struct rw_readings readings; /* of a step */
    struct rw_event_file events; /* no path: none */
    char *prometheus;            /* from the root on; NULL: none */
    struct shown now;            /* the step that was evaluated last */
    bool is_checked;             /* rw_monitor_check() has evaluated it, and its line is not written yet */
    uint64_t checked_step;
    bool is_parents; /* a child of fork() does not write to the files */
    double replaced;             /* when; 0: it was not yet */
    struct shown held;           /* the last step for that file; v: NULL before the first one */
    rw_monitor_values held_values;
    bool waits;                  /* a step that the file does not have yet */
    double validation;           /* loss; NaN: not known */
    double last; /* time of the last call; 0: there was none */
    rw_monitor_numbers numbers; /* of the last step */
    rw_monitor_group_numbers group[RW_WATCHED_GROUPS];
    size_t n_groups; /* of them; 0 before the first step */
};

const char *rw_alert_name(unsigned alert)
{
    RW_LOOKS_ONLY;
    for (size_t i = 0; i < ALERTS; i++)
        if (alert == 1u << i) return alert_names[i];
    return "?";
}

const char *rw_recovery_name(rw_recovery recovery)
{
    RW_LOOKS_ONLY;
    return (unsigned)recovery < RECOVERIES ? recovery_names[recovery] : "?";
}

/* NULL: nothing is known. */
static rw_monitor_numbers numbers_of(const struct shown *s)
{
    const double no = (double)NAN;
    const bool updated = s && s->all.elements > 0, worked = s && s->hardware_flops > 0;
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

/* Judges each group by itself, because a spike of one is small within the norm of all; as soon as its norm is known. */
static unsigned judge_groups(rw_monitor *m, struct shown *s)
{
    unsigned alerts = 0;
    for (size_t g = 0; g < m->watched.n_groups; g++) {
        const struct rw_health *const h = &s->group[g];
        const double norm = h->clipped ? h->unclipped_norm : h->grad_norm;
        if (s->group_is_judged[g] || !is_known(h)) continue;
        s->group_is_judged[g] = true;
        if (!rw_judge_spikes(&m->group_norm[g], norm, &s->group_usual[g])) continue;
        s->group_alerts[g] = RW_ALERT_GRAD_SPIKE;
        if (!(alerts | (s->alerts & RW_ALERT_GRAD_SPIKE)))
            rw_judge_compare(&m->judge, RW_ALERT_GRAD_SPIKE, norm, s->group_usual[g]);
        alerts |= s->group_alerts[g];
    }
    return alerts;
}

/* The numbers of a spike are those of the first group, unless the norm of all has one. */
static unsigned judge_norms(rw_monitor *m, struct shown *s)
{
    const unsigned alerts = judge_groups(m, s);
    if (!s->has_norm || s->norm_is_judged) return alerts;
    s->norm_is_judged = true;
    return alerts | rw_judge_norm(&m->judge, s->norm);
}

/* Adds the alerts to those that the step already has. */
static void raise_alerts(rw_monitor *m, struct shown *s, unsigned alerts)
{
    for (size_t i = 0; i < ALERTS; i++) m->n_alerts[i] += (alerts & ~s->alerts) >> i & 1;
    s->alerts |= alerts;
}

/* Raises the alerts of what is known before the update. sites: alerts of sites. */
static void judge_step(rw_monitor *m, struct shown *s, unsigned sites)
{
    const struct rw_judged step = { .loss = s->v->loss, .loss_scale = s->v->loss_scale, .skipped = s->v->skipped };
    const unsigned alerts = sites | judge_norms(m, s) | rw_judge_step(&m->judge, &step);
    for (size_t i = 0; i < ALERTS; i++) {
        double value, usual;
        if ((sites >> i & 1) && rw_sites_compared(&m->sites, 1u << i, &value, &usual))
            rw_judge_compare(&m->judge, 1u << i, value, usual);
    }
    raise_alerts(m, s, alerts);
}

static void judge_update(rw_monitor *m, struct shown *s)
{
    const struct rw_judged step = { .seconds = s->seconds, .health = s->all };
    raise_alerts(m, s, judge_norms(m, s) | rw_judge_update(&m->judge, &step));
}

/* ---- policies ---- */

rw_status rw_monitor_set_policy(rw_monitor *m, unsigned alerts, rw_recovery recovery)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_set_policy", "m");
    if (alerts >> ALERTS || (unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_set_policy(alerts, recovery): expected alerts below "
                       "%#x and a recovery of 0 to %d, got %#x and %d", 1u << ALERTS, (int)RECOVERIES - 1, alerts,
                       (int)recovery);
    for (size_t i = 0; i < ALERTS; i++)
        if (alerts >> i & 1) m->policy[i] = recovery;
    return RW_OK;
}

rw_recovery rw_monitor_policy(const rw_monitor *m, unsigned alerts)
{
    RW_LOOKS_ONLY;
    rw_recovery strongest = RW_RECOVERY_NOTE;
    for (size_t i = 0; m && i < ALERTS; i++)
        if ((alerts >> i & 1) && m->policy[i] > strongest) strongest = m->policy[i];
    return strongest;
}

/* ---- a line ---- */

static void put_memory(struct rw_line *l, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    rw_line_put(l, ",\"memory\":{\"parameters\":%zu,\"gradients\":%zu,\"optimizer\":%zu,\"inputs\":%zu,\"results\":%zu",
                m.parameters, m.gradients, m.optimizer, m.inputs, m.results);
    rw_line_put(l, ",\"kept\":%zu,\"replayed\":%zu,\"workspace\":%zu", m.kept, m.replayed, m.workspace);
    rw_line_put(l, ",\"predicted_peak\":%zu,\"peak\":%zu,\"arenas\":%zu", m.predicted_peak, m.measured_peak, m.arenas);
    rw_line_put(l, ",\"host\":%zu,\"files\":%zu,\"device\":%zu}", m.host, m.files, m.device);
}

static void put_alerts(struct rw_line *l, unsigned alerts)
{
    const char *comma = "";
    rw_line_put(l, ",\"alerts\":[");
    for (size_t i = 0; i < ALERTS; i++) {
        if (!(alerts >> i & 1)) continue;
        rw_line_put(l, "%s\"%s\"", comma, alert_names[i]);
        comma = ",";
    }
    rw_line_put(l, "]");
}

/* After the name of an alert, so that each number follows a comma. */
static void put_alert_numbers(struct rw_line *l, const rw_monitor *m, unsigned alerts)
{
    bool any = false;
    for (size_t i = 0; i < ALERTS; i++) {
        const struct rw_compared *const c = &m->judge.compared[i];
        if (!(alerts >> i & 1) || isnan(c->value)) continue;
        rw_line_put(l, "%s{\"alert\":\"%s\"", any ? "," : ",\"alert_numbers\":[", alert_names[i]);
        rw_line_number(l, "value", c->value);
        if (!isnan(c->usual)) rw_line_number(l, "usual", c->usual);
        rw_line_put(l, "}");
        any = true;
    }
    if (any) rw_line_put(l, "]");
}

static void put_health(struct rw_line *l, const struct rw_health *h)
{
    rw_line_number(l, "param_norm", h->param_norm);
    rw_line_number(l, "update_ratio", h->update_ratio);
    rw_line_number(l, "zeros", h->zeros);
}

static void put_groups(struct rw_line *l, const struct rw_watched *w, const struct shown *s)
{
    const struct rw_health *const group = s->group;
    const char *comma = "";
    if (!w->n_groups) return;
    rw_line_put(l, ",\"groups\":{");
    for (size_t g = 0; g < w->n_groups; g++) {
        if (!is_known(&group[g])) continue;
        rw_line_put(l, "%s\"%s\":{\"elements\":%.0f", comma, w->name[g], group[g].elements);
        if (group[g].clipped) rw_line_number(l, "unclipped_norm", group[g].unclipped_norm);
        if (group[g].elements > 0) {
            rw_line_number(l, "grad_norm", group[g].grad_norm);
            put_health(l, &group[g]);
        }
        if (s->group_alerts[g]) {
            put_alerts(l, s->group_alerts[g]);
            rw_line_number(l, "usual_norm", s->group_usual[g]);
        }
        rw_line_put(l, "}");
        comma = ",";
    }
    rw_line_put(l, "}");
}

/* Writes a JSON string: control characters are omitted, invalid UTF-8 becomes U+FFFD, and multi-byte characters are
   not split. */
static void put_text(struct rw_line *l, const char *text)
{
    for (size_t i = 0; text[i] && i < TEXT;) {
        const int n = rw_utf8_letter(text + i);
        if (!n) rw_line_put(l, "\xef\xbf\xbd");
        else if (n > 1) rw_line_put(l, "%.*s", n, text + i);
        else if (text[i] >= 0x20) rw_line_put(l, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
        i += n ? (size_t)n : 1;
    }
}

static void put_site(struct rw_line *l, const rw_monitor_site *s)
{
    rw_line_put(l, "\"%s\":{\"op\":\"linear\",\"at\":\"", s->name);
    put_text(l, rw_file_of(s->at));
    rw_line_put(l, ":%d\"", (int)s->at.line);
    rw_line_number(l, "elements", s->elements);
    rw_line_number(l, "amax", s->amax);
    if (s->scale > 0) rw_line_number(l, "scale", s->scale);
    if (s->scale_most > s->scale) rw_line_number(l, "scale_most", s->scale_most);
    rw_line_number(l, "saturated", s->saturated);
    rw_line_number(l, "flushed", s->flushed);
    if (s->alerts) put_alerts(l, s->alerts);
    rw_line_put(l, "}");
}

/* Sites are last in a line, because there may be many. */
static void put_sites(struct rw_line *l, const struct rw_watched_sites *s)
{
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        if (!(s->site[i].last.elements > 0)) continue;
        rw_line_put(l, any ? "," : ",\"sites\":{");
        put_site(l, &s->site[i].last);
        any = true;
    }
    if (any) rw_line_put(l, "}");
}

static void put_work(struct rw_line *l, const rw_monitor *m, const struct shown *s)
{
    if (!(s->hardware_flops > 0)) return;
    rw_line_number(l, "model_flops_per_s", s->model_flops);
    rw_line_number(l, "hardware_flops_per_s", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    rw_line_number(l, "mfu", s->model_flops / m->peak_flops);
    rw_line_number(l, "hfu", s->hardware_flops / m->peak_flops);
}

static void make_line(struct rw_line *l, const rw_monitor *m, const struct shown *s)
{
    const rw_monitor_values *const v = s->v;
    *l = (struct rw_line){ .text = m->text, .room = m->room };
    rw_line_put(l, "{\"step\":%" PRIu64, v->step);
    rw_line_number(l, "loss", v->loss);
    if (s->has_norm) rw_line_number(l, "grad_norm", s->norm);
    if (v->lr != 0) rw_line_number(l, "lr", v->lr);
    if (v->tokens > 0 && s->seconds > 0) rw_line_number(l, "tokens_per_s", v->tokens / s->seconds);
    if (s->seconds > 0) rw_line_number(l, "step_ms", 1e3 * s->seconds);
    if (v->loss_scale > 0) rw_line_number(l, "loss_scale", v->loss_scale);
    if (v->skipped) rw_line_put(l, ",\"skipped\":true");
    put_work(l, m, s);
    if (s->all.elements > 0) put_health(l, &s->all);
    if (is_known(&s->all)) put_groups(l, &m->watched, s);
    put_memory(l, m->ctx);
    put_alerts(l, s->alerts);
    put_alert_numbers(l, m, s->alerts);
    put_sites(l, &m->sites);
    if (l->nonfinite) rw_line_put(l, ",\"nonfinite\":true");
    rw_line_put(l, "}\n");
}

static rw_status write_line(rw_monitor *m, const struct rw_line *l, const char *call)
{
    if (l->is_cut)
        return rw_fail(m->ctx, RW_ERR_IO, "%s: %s: a line of more than %zu bytes was not written", call, m->path,
                       l->room);
    if (rw_records_append(&m->lines, l->text, l->n)) return RW_OK;
    return rw_fail(m->ctx, RW_ERR_IO, "%s: %s: %s", call, m->path, strerror(errno));
}

rw_status rw_monitor_recovered(rw_monitor *m, uint64_t step, unsigned alerts, rw_recovery recovery, const char *note)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_recovered", "m");
    if ((unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_recovered(recovery): expected 0 to %d, got %d",
                       (int)RECOVERIES - 1, (int)recovery);
    if (recovery == RW_RECOVERY_SKIP) {
        rw_judge_skip(&m->judge);
        m->waits |= m->held.v != NULL; /* Prometheus gets the count with the next step, or at the end */
    }
    struct rw_line line = { .text = m->text, .room = m->room };
    rw_line_put(&line, "{\"step\":%" PRIu64 ",\"recovery\":\"%s\"", step, recovery_names[recovery]);
    put_alerts(&line, alerts);
    if (note) {
        rw_line_put(&line, ",\"note\":\"");
        put_text(&line, note);
        rw_line_put(&line, "\"");
    }
    rw_line_put(&line, "}\n");
    return write_line(m, &line, "rw_monitor_recovered");
}

/* ---- other files ---- */

#define VALIDATION_HELP "Loss on text that is not trained on"

#define READINGS (60 + 5 * RW_WATCHED_GROUPS)

static void read_out(struct rw_readings *r, const char *name, const char *help, double value)
{
    rw_readings_add(r, (struct rw_reading){ .name = name, .help = help, .value = value });
}

static void read_memory(struct rw_readings *r, const rw_context *ctx)
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
        rw_readings_add(r, (struct rw_reading){ .name = "memory_bytes", .label = "kind", .help = "Memory by category",
                                                .value_of_label = kinds[i].name, .value = (double)kinds[i].bytes });
}

static void read_work(const rw_monitor *m, const struct shown *s, struct rw_readings *r)
{
    if (!(s->hardware_flops > 0)) return;
    read_out(r, "model_flops_per_second", "FLOP/s of the products of forward and backward", s->model_flops);
    read_out(r, "hardware_flops_per_second", "FLOP/s of forward, replays and backward", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    read_out(r, "mfu", "Model FLOP/s over the stated peak", s->model_flops / m->peak_flops);
    read_out(r, "hfu", "Hardware FLOP/s over the stated peak", s->hardware_flops / m->peak_flops);
}

static double health_number(const struct rw_health *h, int i)
{
    const double numbers[] = { h->grad_norm, h->param_norm, h->update_ratio, h->zeros, h->unclipped_norm };
    return numbers[i];
}

static void read_health(const rw_monitor *m, const struct shown *s, struct rw_readings *r)
{
    static const char *const names[][2] = { { "group_grad_norm", "Norm of a group's gradients in its update" },
                                            { "group_param_norm", "Norm of a group's weights" },
                                            { "group_update_ratio", "A group's update over its weights" },
                                            { "group_zeros", "Share of a group's gradients that are zero" },
                                            { "group_unclipped_norm", "Norm of a group's gradients before clipping" } };
    if (s->all.elements > 0) {
        read_out(r, "param_norm", "Norm of the weights", s->all.param_norm);
        read_out(r, "update_ratio", "Norm of the update over that of the weights", s->all.update_ratio);
        read_out(r, "zeros", "Share of the gradients that are zero", s->all.zeros);
    }
    for (int i = 0; i < 5; i++)
        for (size_t g = 0; g < m->watched.n_groups; g++)
            if (i < 4 ? s->group[g].elements > 0 : s->group[g].clipped)
                rw_readings_add(r, (struct rw_reading){ .name = names[i][0], .help = names[i][1], .label = "group",
                                                 .value_of_label = m->watched.name[g],
                                                 .value = health_number(&s->group[g], i) });
}

static rw_status read_all(rw_monitor *m, const struct shown *s)
{
    const rw_monitor_values *const v = s->v;
    const double seconds = s->seconds;
    struct rw_readings *const r = &m->readings;
    r->n = 0;
    r->is_cut = false;
    read_out(r, "step", "Step", (double)v->step);
    read_out(r, "loss", "Loss", v->loss);
    if (s->has_norm) read_out(r, "grad_norm", "Norm of the gradients before clipping", s->norm);
    if (v->lr != 0) read_out(r, "learning_rate", "Learning rate", v->lr);
    if (v->tokens > 0 && seconds > 0) read_out(r, "tokens_per_second", "Tokens per second", v->tokens / seconds);
    if (seconds > 0) read_out(r, "step_seconds", "Time of the step", seconds);
    if (v->loss_scale > 0) read_out(r, "loss_scale", "Loss scale", v->loss_scale);
    rw_readings_add(r, (struct rw_reading){ .name = "skipped_total", .help = "Updates that were left out",
                                            .value = (double)m->judge.n_skipped, .counts = true });
    read_work(m, s, r);
    read_health(m, s, r);
    rw_sites_readings(&m->sites, r);
    read_memory(r, m->ctx);
    for (size_t i = 0; i < ALERTS; i++)
        rw_readings_add(r, (struct rw_reading){ .name = "alerts_total", .label = "alert", .help = "Alerts",
                                                .value_of_label = alert_names[i], .value = (double)m->n_alerts[i],
                                                .counts = true });
    errno = EOVERFLOW;
    return r->is_cut ? RW_ERR_IO : RW_OK;
}

static rw_status write_events(rw_monitor *m, const struct shown *s)
{
    if (!m->events.path) return RW_OK;
    rw_status status = read_all(m, s);
    if (!status) status = rw_event_file_put(&m->events, s->v->step, m->readings.reading, m->readings.n);
    return status ? rw_fail(m->ctx, status, "rw_monitor_step: %s: %s", m->events.path, strerror(errno)) : RW_OK;
}

static rw_status replace_text(rw_monitor *m, const char **ret_why)
{
    rw_status status = read_all(m, &m->held);
    if (!status && !isnan(m->validation)) read_out(&m->readings, "validation_loss", VALIDATION_HELP, m->validation);
    m->replaced = m->last;
    m->waits = false;
    if (status || m->is_parents) return status;
    return rw_prometheus_put(m->prometheus, m->readings.reading, m->readings.n, ret_why);
}

static rw_status replace_text_for(rw_monitor *m, const char *call)
{
    const char *why = NULL;
    const rw_status status = replace_text(m, &why);
    if (!status) return RW_OK;
    return rw_fail(m->ctx, status, "%s: %s: %s", call, m->prometheus, why ? why : strerror(errno));
}

/* Writes the text now, or after a second has passed: with the step that comes then, in rw_monitor_watch(), which
   replaces the names of its numbers, or at the end. */
static rw_status write_text(rw_monitor *m, const struct shown *s, bool at_once)
{
    if (!m->prometheus) return RW_OK;
    m->held_values = *s->v;
    m->held = *s;
    m->held.v = &m->held_values;
    m->waits = true;
    if (!at_once && m->replaced > 0 && m->last - m->replaced < BETWEEN_TEXTS) return RW_OK;
    return replace_text_for(m, "rw_monitor_step");
}

static rw_status add_file(rw_monitor *m, rw_monitor_format format, const char *path)
{
    if (format == RW_MONITOR_TENSORBOARD) return rw_event_file_open(&m->events, path);
    m->prometheus = rw_path_whole(path);
    return m->prometheus ? RW_OK : errno == ENOMEM ? RW_ERR_MEMORY : RW_ERR_IO;
}

rw_status rw_monitor_add(rw_monitor *m, rw_monitor_format format, const char *path)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_add", "m");
    if (!path || !*path)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add(path): expected the name of a file, got none");
    if (format != RW_MONITOR_TENSORBOARD && format != RW_MONITOR_PROMETHEUS)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add(format): expected RW_MONITOR_TENSORBOARD (%d) or "
                       "RW_MONITOR_PROMETHEUS (%d), got %d", RW_MONITOR_TENSORBOARD, RW_MONITOR_PROMETHEUS,
                       (int)format);
    if (format == RW_MONITOR_TENSORBOARD ? m->events.path : m->prometheus)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add(format): %s: expected a format that the monitor "
                       "does not write yet, got one that it writes", path);
    if (m->is_parents)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_add: %s: expected a monitor of this process, got one that "
                       "belongs to the parent process; create one here", path);
    const rw_status status = add_file(m, format, path);
    return status ? rw_fail(m->ctx, status, "rw_monitor_add: %s: %s", path,
                            status == RW_ERR_IO ? strerror(errno) : rw_status_name(status))
                  : RW_OK;
}

/* ---- the calls ---- */

/* Reserves memory for a line and the readings of so many sites. */
static rw_status make_room(rw_monitor *m, size_t sites)
{
    const size_t room = LINE + sites * SITE_LINE;
    struct rw_readings readings = { .room = READINGS + RW_SITE_READINGS * sites };
    char *const text = rw_malloc(room);
    readings.reading = rw_malloc(readings.room * sizeof *readings.reading);
    if (!text || !readings.reading) {
        rw_free(text);
        rw_free(readings.reading);
        return rw_fail(m->ctx, RW_ERR_MEMORY, "rw_monitor: out of memory");
    }
    rw_free(m->text);
    rw_free(m->readings.reading);
    m->text = text;
    m->room = room;
    m->readings = readings;
    return RW_OK;
}

static void leave_to_parent(struct rw_forked *f)
{
    rw_monitor *const m = (rw_monitor *)(void *)((char *)f - offsetof(rw_monitor, forked));
    rw_records_close(&m->lines);
    rw_records_close(&m->events.records);
    m->is_parents = true;
}

rw_status rw_monitor_create(rw_monitor **ret, rw_context *ctx, const char *path)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
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
    m->validation = (double)NAN;
    const char *why = NULL;
    const int fd = path ? rw_open_output(path, O_APPEND, &why) : -1;
    rw_records_of_lines(&m->lines, fd, path);
    m->events.records.fd = -1;
    rw_forked_add(&m->forked, leave_to_parent);
    ctx->n_users++;
    const rw_status status = path && fd < 0
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
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_watch", "m");
    if (m->ctx->status) return m->ctx->status;
    const rw_monitor_sources s = sources ? *sources : (rw_monitor_sources){ 0 };
    struct rw_watched created;
    struct rw_watched_sites sites = { 0 };
    rw_status status = rw_check_runs(m->ctx, "rw_monitor_watch");
    if (!status) status = rw_watched_open(&created, m->ctx, &s);
    if (status) return status;
    if (s.sites) status = rw_sites_open(&sites, m->ctx, m);
    if (!status && m->waits) status = replace_text_for(m, "rw_monitor_watch");
    if (!status) status = make_room(m, sites.n);
    if (status) {
        rw_sites_free(&sites);
        rw_watched_close(&created);
        return status;
    }
    rw_watched_close(&m->watched);
    rw_counts_close(m->ctx, m);
    rw_sites_free(&m->sites);
    m->watched = created;
    m->n_groups = 0;
    m->is_checked = false;
    m->held.v = NULL; /* its groups have the earlier names */
    rw_watched_begin(&m->watched);
    memset(m->group_norm, 0, sizeof m->group_norm);
    m->sites = sites;
    if (s.sites) rw_sites_begin(&m->sites);
    m->peak_flops = s.peak_flops;
    return m->ctx->status;
}

static void take_norm(struct shown *s)
{
    const double known = s->all.clipped ? s->all.unclipped_norm : s->all.grad_norm;
    s->has_norm = s->v->grad_norm != 0 || s->all.elements > 0 || s->all.clipped;
    s->norm = s->v->grad_norm == 0 ? known : s->v->grad_norm < 0 ? 0 : s->v->grad_norm;
}

/* Takes times, and the work done in them. */
static void take_work(rw_monitor *m, struct shown *s)
{
    const rw_cost *const work = &m->ctx->work, *const before = &m->work;
    const double model = work->model_flops - before->model_flops;
    const double once = work->forward_flops - before->forward_flops + work->backward_flops - before->backward_flops;
    const double replayed = work->replayed_flops - before->replayed_flops;
    const double time = rw_now_s(), since = m->last > 0 ? time - m->last : 0;
    s->seconds = s->v->seconds > 0 ? s->v->seconds : since;
    if (s->seconds > 0) {
        s->model_flops = model / s->seconds;
        s->hardware_flops = (once + replayed) / s->seconds;
    }
    m->work = *work;
    m->last = time;
}

/* Stores what the calls return that get numbers of the last step. */
static void note_numbers(rw_monitor *m, const struct shown *s)
{
    const double no = (double)NAN;
    m->numbers = numbers_of(s);
    m->n_groups = m->watched.n_groups;
    for (size_t g = 0; g < m->n_groups; g++) {
        const struct rw_health *const h = &s->group[g];
        const bool updated = h->elements > 0;
        m->group[g] = (rw_monitor_group_numbers){ .name = m->watched.name[g],
                                                  .unclipped_norm = h->clipped ? h->unclipped_norm : no,
                                                  .grad_norm = updated ? h->grad_norm : no,
                                                  .param_norm = updated ? h->param_norm : no,
                                                  .update_ratio = updated ? h->update_ratio : no,
                                                  .zeros = updated ? h->zeros : no, .alerts = s->group_alerts[g],
                                                  .usual_norm = s->group_alerts[g] ? s->group_usual[g] : no };
    }
}

/* ret_sites: alerts of sites. Both functions read a context without an error only. */
static rw_status read_step(rw_monitor *m, struct shown *s, unsigned *ret_sites)
{
    if (m->ctx->status) return RW_OK;
    const rw_status status = rw_watched_read_clipping(&m->watched, &s->all, s->group);
    const rw_status sites = m->sites.n ? rw_sites_read(&m->sites, ret_sites) : RW_OK;
    return status ? status : sites;
}

static rw_status read_update(rw_monitor *m, struct shown *s)
{
    return m->ctx->status ? RW_OK : rw_watched_read_update(&m->watched, &s->all, s->group);
}

rw_status rw_monitor_check(rw_monitor *m, const rw_monitor_values *v, unsigned *ret_alerts)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_check", "m");
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_check", "values");
    const rw_status runs = rw_check_runs(m->ctx, "rw_monitor_check");
    if (runs) return runs;
    struct shown *const s = &m->now;
    unsigned sites = 0;
    *s = (struct shown){ .v = v };
    const rw_status looked = read_step(m, s, &sites);
    take_norm(s);
    judge_step(m, s, sites);
    note_numbers(m, s);
    m->is_checked = true;
    m->checked_step = v->step;
    if (ret_alerts) *ret_alerts = s->alerts;
    return looked;
}

/* Evaluates a step all at once, or what rw_monitor_check() has not evaluated. */
static rw_status evaluate(rw_monitor *m, const rw_monitor_values *v)
{
    struct shown *const s = &m->now;
    const bool is_new = !m->is_checked || m->checked_step != v->step;
    unsigned sites = 0;
    if (is_new) *s = (struct shown){ 0 };
    s->v = v;
    m->is_checked = false;
    const rw_status update = read_update(m, s), looked = is_new ? read_step(m, s, &sites) : RW_OK;
    take_norm(s);
    take_work(m, s);
    if (is_new) judge_step(m, s, sites);
    judge_update(m, s);
    note_numbers(m, s);
    return update ? update : looked;
}

rw_status rw_monitor_step(rw_monitor *m, const rw_monitor_values *v, unsigned *ret_alerts)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_step", "m");
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_step", "values");
    const rw_status runs = rw_check_runs(m->ctx, "rw_monitor_step");
    if (runs) return runs;
    const rw_status looked = evaluate(m, v);
    const struct shown *const s = &m->now;
    struct rw_line line;
    make_line(&line, m, s);
    if (ret_alerts) *ret_alerts = s->alerts;
    const rw_status written = write_line(m, &line, "rw_monitor_step"), events = write_events(m, s);
    const rw_status text = write_text(m, s, s->alerts);
    return looked ? looked : written ? written : events ? events : text;
}

static rw_status write_validation_event(rw_monitor *m, uint64_t step)
{
    if (!m->events.path) return RW_OK;
    m->readings.n = 0;
    m->readings.is_cut = false;
    read_out(&m->readings, "validation_loss", VALIDATION_HELP, m->validation);
    const rw_status status = rw_event_file_put(&m->events, step, m->readings.reading, m->readings.n);
    return status ? rw_fail(m->ctx, status, "rw_monitor_validation: %s: %s", m->events.path, strerror(errno)) : RW_OK;
}

rw_status rw_monitor_validation(rw_monitor *m, uint64_t step, double loss)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_validation", "m");
    struct rw_line line = { .text = m->text, .room = m->room };
    rw_line_put(&line, "{\"step\":%" PRIu64, step);
    rw_line_number(&line, "validation_loss", loss);
    if (line.nonfinite) rw_line_put(&line, ",\"nonfinite\":true");
    rw_line_put(&line, "}\n");
    m->validation = loss;
    m->waits = m->held.v != NULL;
    const rw_status written = write_line(m, &line, "rw_monitor_validation"), events = write_validation_event(m, step);
    return written ? written : events;
}

rw_monitor_numbers rw_monitor_get_numbers(const rw_monitor *m)
{
    RW_LOOKS_ONLY;
    return m ? m->numbers : numbers_of(NULL);
}

bool rw_monitor_get_group(const rw_monitor *m, size_t i, rw_monitor_group_numbers *ret)
{
    RW_LOOKS_ONLY;
    if (!m || !ret || i >= m->n_groups) return false;
    *ret = m->group[i];
    return true;
}

bool rw_monitor_get_alert(const rw_monitor *m, unsigned alert, rw_monitor_alert *ret)
{
    RW_LOOKS_ONLY;
    for (size_t i = 0; m && ret && i < ALERTS; i++) {
        const struct rw_compared *const c = &m->judge.compared[i];
        if (alert != 1u << i || !(m->now.alerts & alert)) continue;
        *ret = (rw_monitor_alert){ .value = c->value, .usual = c->usual };
        return true;
    }
    return false;
}

bool rw_monitor_get_site(const rw_monitor *m, size_t i, rw_monitor_site *ret)
{
    RW_LOOKS_ONLY;
    if (!m || !ret || i >= m->sites.n) return false;
    *ret = m->sites.site[i].last;
    ret->name = m->sites.site[i].name;
    return true;
}

void rw_monitor_destroy(rw_monitor **pm)
{
    RW_ENTER(pm && *pm ? (*pm)->ctx : NULL, );
    if (!pm || !*pm) return;
    rw_monitor *const m = *pm;
    rw_context *const ctx = m->ctx;
    const char *why;
    *pm = NULL;
    if (m->waits) replace_text(m, &why);
    rw_forked_remove(&m->forked);
    rw_records_close(&m->lines);
    rw_event_file_close(&m->events);
    rw_watched_close(&m->watched);
    rw_counts_close(ctx, m);
    rw_sites_free(&m->sites);
    rw_free(m->text);
    rw_free(m->readings.reading);
    rw_free(m->prometheus);
    rw_free(m->path);
    rw_free(m);
    rw_context_release(ctx);
}
