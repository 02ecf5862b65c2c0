/* The public calls of rw_monitor: evaluate a step, write its line, its events and its text for Prometheus. A line is
   composed in monitor_step_line.h, the numbers of the other files in monitor_readings.h; monitor_judge.h has the rules
   of alerts. */
#include <rewind/monitor.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/explicit_zero_param.h"
#include "base/folder.h"
#include "base/sigpipe_safe_output.h"
#include "io/monitor_readings.h"
#include "io/monitor_step_line.h"
#include "record/quantization_counts.h"
#include "run/run_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BETWEEN_TEXTS 1.0 /* seconds: replacing a file makes file systems write it to the disk */

static const char *const recovery_names[] = { "note", "skip", "lower", "roll_back", "stop" };
#define RECOVERIES (sizeof recovery_names / sizeof *recovery_names)

const char *rw_alert_name(unsigned alert)
{
    RW_LOOKS_ONLY;
    for (size_t i = 0; i < RW_ALERTS; i++)
        if (alert == 1u << i) return rw_alert_names[i];
    return "?";
}

const char *rw_recovery_name(rw_recovery recovery)
{
    RW_LOOKS_ONLY;
    return (unsigned)recovery < RECOVERIES ? recovery_names[recovery] : "?";
}

/* NULL: nothing is known. */
static rw_monitor_numbers numbers_of(const struct rw_shown_step *s)
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

/* Judges each group by itself, because a spike of one is small within the norm of all; as soon as its norm is known. */
static unsigned judge_groups(rw_monitor *m, struct rw_shown_step *s)
{
    unsigned alerts = 0;
    for (size_t g = 0; g < m->watched.n_groups; g++) {
        const struct rw_health *const h = &s->group[g];
        const double norm = h->clipped ? h->unclipped_norm : h->grad_norm;
        if (s->group_is_judged[g] || !rw_health_is_known(h)) continue;
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
static unsigned judge_norms(rw_monitor *m, struct rw_shown_step *s)
{
    const unsigned alerts = judge_groups(m, s);
    if (!s->has_norm || s->norm_is_judged) return alerts;
    s->norm_is_judged = true;
    return alerts | rw_judge_norm(&m->judge, s->norm);
}

/* Adds the alerts to those that the step already has. */
static void raise_alerts(rw_monitor *m, struct rw_shown_step *s, unsigned alerts)
{
    for (size_t i = 0; i < RW_ALERTS; i++) m->n_alerts[i] += (alerts & ~s->alerts) >> i & 1;
    s->alerts |= alerts;
}

/* Raises the alerts of what is known before the update. sites: alerts of sites. */
static void judge_step(rw_monitor *m, struct rw_shown_step *s, unsigned sites)
{
    const struct rw_judged step = { .loss = s->v->loss, .loss_scale = s->v->loss_scale };
    const unsigned alerts = sites | judge_norms(m, s) | rw_judge_step(&m->judge, &step);
    for (size_t i = 0; i < RW_ALERTS; i++) {
        double value, usual;
        if ((sites >> i & 1) && rw_sites_compared(&m->sites, 1u << i, &value, &usual))
            rw_judge_compare(&m->judge, 1u << i, value, usual);
    }
    raise_alerts(m, s, alerts);
}

static void judge_update(rw_monitor *m, struct rw_shown_step *s)
{
    const struct rw_judged step = { .seconds = s->seconds, .loss_scale = s->v->loss_scale, .skipped = s->v->skipped,
                                    .health = s->all };
    raise_alerts(m, s, judge_norms(m, s) | rw_judge_update(&m->judge, &step));
}

/* ---- policies ---- */

rw_status rw_monitor_set_policy(rw_monitor *m, unsigned alerts, rw_recovery recovery)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_set_policy", "monitor");
    if (alerts >> RW_ALERTS || (unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_set_policy(alerts, recovery): expected alerts below "
                       "%#x and a recovery of 0 to %d, got %#x and %d", 1u << RW_ALERTS, (int)RECOVERIES - 1, alerts,
                       (int)recovery);
    for (size_t i = 0; i < RW_ALERTS; i++)
        if (alerts >> i & 1) m->policy[i] = recovery;
    return RW_OK;
}

rw_recovery rw_monitor_policy(const rw_monitor *m, unsigned alerts)
{
    RW_LOOKS_ONLY;
    rw_recovery strongest = RW_RECOVERY_NOTE;
    for (size_t i = 0; m && i < RW_ALERTS; i++)
        if ((alerts >> i & 1) && m->policy[i] > strongest) strongest = m->policy[i];
    return strongest;
}

/* ---- a line ---- */

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
    if (!m) return rw_fail_null(NULL, "rw_monitor_recovered", "monitor");
    if ((unsigned)recovery >= RECOVERIES)
        return rw_fail(m->ctx, RW_ERR_ARGUMENT, "rw_monitor_recovered(recovery): expected 0 to %d, got %d",
                       (int)RECOVERIES - 1, (int)recovery);
    if (recovery == RW_RECOVERY_SKIP) {
        rw_judge_skip(&m->judge);
        m->waits |= m->held.v != NULL; /* Prometheus gets the count with the next step, or at the end */
    }
    struct rw_line line = { .text = m->text, .room = m->room };
    rw_line_put(&line, "{\"step\":%" PRIu64 ",\"recovery\":\"%s\"", step, recovery_names[recovery]);
    rw_line_alerts(&line, alerts);
    if (note) {
        rw_line_put(&line, ",\"note\":\"");
        rw_line_text(&line, note);
        rw_line_put(&line, "\"");
    }
    rw_line_put(&line, "}\n");
    return write_line(m, &line, "rw_monitor_recovered");
}

/* ---- other files ---- */

static rw_status write_events(rw_monitor *m, const struct rw_shown_step *s)
{
    if (!m->events.path) return RW_OK;
    rw_status status = rw_monitor_readings(m, s);
    if (!status) status = rw_event_file_put(&m->events, s->v->step, m->readings.reading, m->readings.n);
    return status ? rw_fail(m->ctx, status, "rw_monitor_step: %s: %s", m->events.path, strerror(errno)) : RW_OK;
}

static rw_status replace_text(rw_monitor *m, const char **ret_why)
{
    rw_status status = rw_monitor_readings(m, &m->held);
    if (!status && !isnan(m->validation))
        rw_readings_put(&m->readings, "validation_loss", RW_VALIDATION_HELP, m->validation);
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
static rw_status write_text(rw_monitor *m, const struct rw_shown_step *s, bool at_once)
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
    if (!m) return rw_fail_null(NULL, "rw_monitor_add", "monitor");
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
    const size_t room = RW_STEP_LINE + sites * RW_SITE_LINE;
    struct rw_readings readings = { .room = RW_STEP_READINGS + RW_SITE_READINGS * sites };
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
    m->work = rw_pool_of(ctx)->work;
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
    if (!m) return rw_fail_null(NULL, "rw_monitor_watch", "monitor");
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
    m->peak_flops = rw_or_default(s.peak_flops, 0);
    return m->ctx->status;
}

static void take_norm(struct rw_shown_step *s)
{
    const double known = s->all.clipped ? s->all.unclipped_norm : s->all.grad_norm;
    s->has_norm = s->v->grad_norm != 0 || s->all.elements > 0 || s->all.clipped;
    s->norm = s->v->grad_norm == 0 ? known : s->v->grad_norm < 0 ? 0 : s->v->grad_norm;
}

/* Takes times, and the work done in them. */
static void take_work(rw_monitor *m, struct rw_shown_step *s)
{
    const rw_cost *const work = &rw_pool_of(m->ctx)->work, *const before = &m->work;
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

/* Stores the values of the caller. A time or a loss scale cannot be zero, so RW_ZERO is unknown there. */
static const rw_monitor_values *take_values(rw_monitor *m, const rw_monitor_values *v)
{
    m->given = *v;
    m->given.loss = rw_or_default(v->loss, 0);
    m->given.grad_norm = v->grad_norm == RW_ZERO ? -1 : v->grad_norm;
    m->given.seconds = rw_or_default(v->seconds, 0);
    m->given.loss_scale = rw_or_default(v->loss_scale, 0);
    return &m->given;
}

/* Stores what the calls return that get numbers of the last step. */
static void note_numbers(rw_monitor *m, const struct rw_shown_step *s)
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
static rw_status read_step(rw_monitor *m, struct rw_shown_step *s, unsigned *ret_sites)
{
    if (m->ctx->status) return RW_OK;
    const rw_status status = rw_watched_read_clipping(&m->watched, &s->all, s->group);
    const rw_status sites = m->sites.n ? rw_sites_read(&m->sites, ret_sites) : RW_OK;
    return status ? status : sites;
}

static rw_status read_update(rw_monitor *m, struct rw_shown_step *s)
{
    return m->ctx->status ? RW_OK : rw_watched_read_update(&m->watched, &s->all, s->group);
}

rw_status rw_monitor_check(rw_monitor *m, const rw_monitor_values *v, unsigned *ret_alerts)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_check", "monitor");
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_check", "values");
    const rw_status runs = rw_check_runs(m->ctx, "rw_monitor_check");
    if (runs) return runs;
    struct rw_shown_step *const s = &m->now;
    unsigned sites = 0;
    *s = (struct rw_shown_step){ .v = take_values(m, v) };
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
    struct rw_shown_step *const s = &m->now;
    const bool is_new = !m->is_checked || m->checked_step != v->step;
    unsigned sites = 0;
    if (is_new) *s = (struct rw_shown_step){ 0 };
    s->v = take_values(m, v);
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
    if (!m) return rw_fail_null(NULL, "rw_monitor_step", "monitor");
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_step", "values");
    const rw_status runs = rw_check_runs(m->ctx, "rw_monitor_step");
    if (runs) return runs;
    const rw_status looked = evaluate(m, v);
    const struct rw_shown_step *const s = &m->now;
    struct rw_line line;
    rw_line_of_step(&line, m, s);
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
    rw_readings_put(&m->readings, "validation_loss", RW_VALIDATION_HELP, m->validation);
    const rw_status status = rw_event_file_put(&m->events, step, m->readings.reading, m->readings.n);
    return status ? rw_fail(m->ctx, status, "rw_monitor_validation: %s: %s", m->events.path, strerror(errno)) : RW_OK;
}

rw_status rw_monitor_validation(rw_monitor *m, uint64_t step, double loss)
{
    RW_ENTER(RW_CONTEXT_OF(m), RW_ERR_ARGUMENT);
    if (!m) return rw_fail_null(NULL, "rw_monitor_validation", "monitor");
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
    for (size_t i = 0; m && ret && i < RW_ALERTS; i++) {
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
