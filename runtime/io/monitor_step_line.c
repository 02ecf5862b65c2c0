/* Composes the JSON line of a step: its numbers, groups, memory, alerts and FP8 sites. */
#include "io/monitor_step_line.h"

#include "base/explicit_zero_param.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>

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

void rw_line_alerts(struct rw_line *l, unsigned alerts)
{
    const char *comma = "";
    rw_line_put(l, ",\"alerts\":[");
    for (size_t i = 0; i < RW_ALERTS; i++) {
        if (!(alerts >> i & 1)) continue;
        rw_line_put(l, "%s\"%s\"", comma, rw_alert_names[i]);
        comma = ",";
    }
    rw_line_put(l, "]");
}

/* After the name of an alert, so that each number follows a comma. */
static void put_alert_numbers(struct rw_line *l, const rw_monitor *m, unsigned alerts)
{
    bool any = false;
    for (size_t i = 0; i < RW_ALERTS; i++) {
        const struct rw_compared *const c = &m->judge.compared[i];
        if (!(alerts >> i & 1) || isnan(c->value)) continue;
        rw_line_put(l, "%s{\"alert\":\"%s\"", any ? "," : ",\"alert_numbers\":[", rw_alert_names[i]);
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

static void put_groups(struct rw_line *l, const struct rw_watched *w, const struct rw_shown_step *s)
{
    const struct rw_health *const group = s->group;
    const char *comma = "";
    if (!w->n_groups) return;
    rw_line_put(l, ",\"groups\":{");
    for (size_t g = 0; g < w->n_groups; g++) {
        if (!rw_health_is_known(&group[g])) continue;
        rw_line_put(l, "%s\"%s\":{\"elements\":%.0f", comma, w->name[g], group[g].elements);
        if (group[g].clipped) rw_line_number(l, "unclipped_norm", group[g].unclipped_norm);
        if (group[g].elements > 0) {
            rw_line_number(l, "grad_norm", group[g].grad_norm);
            put_health(l, &group[g]);
        }
        if (s->group_alerts[g]) {
            rw_line_alerts(l, s->group_alerts[g]);
            rw_line_number(l, "usual_norm", s->group_usual[g]);
        }
        rw_line_put(l, "}");
        comma = ",";
    }
    rw_line_put(l, "}");
}

void rw_line_text(struct rw_line *l, const char *text)
{
    for (size_t i = 0; text[i] && i < RW_LINE_TEXT;) {
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
    rw_line_text(l, rw_file_of(s->at));
    rw_line_put(l, ":%d\"", (int)s->at.line);
    rw_line_number(l, "elements", s->elements);
    rw_line_number(l, "amax", s->amax);
    if (s->scale > 0) rw_line_number(l, "scale", s->scale);
    if (s->scale_most > s->scale) rw_line_number(l, "scale_most", s->scale_most);
    rw_line_number(l, "saturated", s->saturated);
    rw_line_number(l, "flushed", s->flushed);
    if (s->alerts) rw_line_alerts(l, s->alerts);
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

static void put_work(struct rw_line *l, const rw_monitor *m, const struct rw_shown_step *s)
{
    if (!(s->hardware_flops > 0)) return;
    rw_line_number(l, "model_flops_per_s", s->model_flops);
    rw_line_number(l, "hardware_flops_per_s", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    rw_line_number(l, "mfu", s->model_flops / m->peak_flops);
    rw_line_number(l, "hfu", s->hardware_flops / m->peak_flops);
}

void rw_line_of_step(struct rw_line *l, const rw_monitor *m, const struct rw_shown_step *s)
{
    const rw_monitor_values *const v = s->v;
    *l = (struct rw_line){ .text = m->text, .room = m->room };
    rw_line_put(l, "{\"step\":%" PRIu64, v->step);
    rw_line_number(l, "loss", v->loss);
    if (s->has_norm) rw_line_number(l, "grad_norm", s->norm);
    if (v->lr != 0) rw_line_number(l, "lr", rw_or_default(v->lr, 0));
    if (v->tokens > 0 && s->seconds > 0)
        rw_line_number(l, "tokens_per_s", rw_or_default(v->tokens, 0) / s->seconds);
    if (s->seconds > 0) rw_line_number(l, "step_ms", 1e3 * s->seconds);
    if (v->loss_scale > 0) rw_line_number(l, "loss_scale", v->loss_scale);
    if (v->skipped) rw_line_put(l, ",\"skipped\":true");
    put_work(l, m, s);
    if (s->all.elements > 0) put_health(l, &s->all);
    if (rw_health_is_known(&s->all)) put_groups(l, &m->watched, s);
    put_memory(l, m->ctx);
    rw_line_alerts(l, s->alerts);
    put_alert_numbers(l, m, s->alerts);
    put_sites(l, &m->sites);
    if (l->nonfinite) rw_line_put(l, ",\"nonfinite\":true");
    rw_line_put(l, "}\n");
}
