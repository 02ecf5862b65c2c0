/* See dashboard.h. */
#include "dashboard.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 560, HEIGHT = 240, LEFT = 62, RIGHT = 14, TOP = 34, BOTTOM = 34, MOST_POINTS = 500, EVERY_S = 2 };

/* ---- what is shown ---- */

static bool grow(void *array, size_t *cap, size_t n, size_t size)
{
    void *p;
    memcpy(&p, array, sizeof p);
    if (n < *cap) return true;
    const size_t more = *cap ? 2 * *cap : 256;
    p = realloc(p, more * size);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = more;
    return true;
}

bool dashboard_add(struct dashboard_points *to, struct dashboard_point p)
{
    if (!grow(&to->p, &to->cap, to->n, sizeof *to->p)) return false;
    to->p[to->n++] = p;
    return true;
}

bool dashboard_note(struct dashboard *d, double step, const char *text)
{
    if (!grow(&d->event, &d->cap_events, d->n_events, sizeof *d->event)) return false;
    struct dashboard_event *const e = &d->event[d->n_events++];
    e->step = step;
    snprintf(e->text, sizeof e->text, "%s", text);
    return true;
}

static void cut(struct dashboard_points *p, double step)
{
    while (p->n && p->p[p->n - 1].step >= step) p->n--;
}

void dashboard_cut(struct dashboard *d, double step)
{
    cut(&d->run, step);
    cut(&d->validation, step + 1);
}

/* The number behind "name": in a line of JSON; NaN where there is none. */
static double field(const char *line, const char *name)
{
    char key[64], *end;
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *const at = strstr(line, key);
    if (!at) return NAN;
    const double x = strtod(at + strlen(key), &end);
    return end > at + strlen(key) ? x : NAN;
}

/* What stands between the quotes or brackets behind "name": in a line of JSON. */
static void text_of(const char *line, const char *name, char end, char *text, size_t size)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *const at = strstr(line, key);
    size_t n = 0;
    for (const char *c = at ? at + strlen(key) + 1 : ""; *c && *c != end && n + 1 < size; c++)
        if (*c != '"' && *c != '\\') text[n++] = *c;
    text[n] = '\0';
}

static void read_events(struct dashboard *d, const char *line)
{
    char alerts[80], recovery[20], note[80], all[200];
    const char *const behind = strstr(line, "\"memory\":"); /* groups, which may have alerts of their own */
    text_of(behind ? behind : line, "alerts", ']', alerts, sizeof alerts);
    text_of(line, "recovery", '"', recovery, sizeof recovery);
    text_of(line, "note", '"', note, sizeof note);
    if (!*alerts && !*recovery) return;
    snprintf(all, sizeof all, "%s%s%s%s%s", alerts, *recovery ? " → " : "", recovery, *note ? ": " : "", note);
    dashboard_note(d, field(line, "step"), all);
}

bool dashboard_read(struct dashboard *d, struct dashboard_points *to, const char *log)
{
    char line[4096];
    FILE *const f = fopen(log, "r");
    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        const double step = field(line, "step");
        if (!(step >= 0)) continue;
        if (to == &d->run) read_events(d, line);
        if (strstr(line, "\"recovery\":")) continue;
        cut(to, step); /* a run that went on from an earlier step */
        dashboard_add(to, (struct dashboard_point){ step, field(line, "loss"), field(line, "grad_norm"),
                                                    field(line, "lr"), field(line, "tokens_per_s"),
                                                    field(line, "param_norm"), field(line, "update_ratio"),
                                                    field(line, "loss_scale") });
    }
    fclose(f);
    return true;
}

/* ---- charts ---- */

struct chart {
    FILE *f;
    const char *name;
    size_t offset; /* of the number in a point */
    double low, high, steps;
};

static double number_of(const struct dashboard_point *p, size_t offset)
{
    double x;
    memcpy(&x, (const char *)p + offset, sizeof x);
    return x;
}

static void widen(struct chart *c, const struct dashboard_points *points)
{
    for (size_t i = 0; i < points->n; i++) {
        const double x = number_of(&points->p[i], c->offset);
        if (!isfinite(x)) continue;
        if (!(c->low <= x)) c->low = x;
        if (!(c->high >= x)) c->high = x;
        if (points->p[i].step > c->steps) c->steps = points->p[i].step;
    }
}

static double x_of(const struct chart *c, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * step / c->steps;
}

static double y_of(const struct chart *c, double x)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (c->high - x) / (c->high - c->low);
}

/* 1, 2 or 5 times a power of ten, for some four lines. */
static double stride_of(double range)
{
    const double rough = range / 4, power = pow(10, floor(log10(rough))), lead = rough / power;
    return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

static void draw_axes(const struct chart *c)
{
    const double up = stride_of(c->high - c->low), along = stride_of(c->steps);
    fprintf(c->f, "<text class='name' x='%d' y='20'>%s</text>\n", LEFT, c->name);
    for (double y = ceil(c->low / up) * up; y <= c->high + up * 1e-9; y += up)
        fprintf(c->f, "<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' class='up'>%.4g</text>\n", LEFT,
                y_of(c, y), WIDTH - RIGHT, LEFT - 7, y_of(c, y) + 4, fabs(y) < up * 1e-9 ? 0 : y);
    for (double x = 0; x <= c->steps + along * 1e-9; x += along)
        fprintf(c->f, "<text x='%.1f' y='%d' class='along'>%.6g</text>\n", x_of(c, x), HEIGHT - BOTTOM + 18, x);
}

/* Of many points one of each few is drawn: the largest, so that a spike stays one. What is no number leaves a gap. */
static void draw_line(const struct chart *c, const struct dashboard_points *points, const char *class)
{
    const size_t each = points->n / MOST_POINTS + 1;
    bool open = false;
    fprintf(c->f, "<path class='%s' d='", class);
    for (size_t i = 0; i < points->n; i += each) {
        size_t most = i;
        for (size_t k = i; k < points->n && k < i + each; k++)
            if (number_of(&points->p[k], c->offset) > number_of(&points->p[most], c->offset)) most = k;
        const double y = number_of(&points->p[most], c->offset);
        if (isfinite(y)) fprintf(c->f, "%c%.1f %.1f", open ? 'L' : 'M', x_of(c, points->p[most].step), y_of(c, y));
        open = isfinite(y);
    }
    fprintf(c->f, "'/>\n");
}

static void draw_validation(const struct chart *c, const struct dashboard_points *points)
{
    for (size_t i = 0; i < points->n; i++)
        if (isfinite(points->p[i].loss))
            fprintf(c->f, "<circle class='validation' cx='%.1f' cy='%.1f' r='4'/>\n", x_of(c, points->p[i].step),
                    y_of(c, points->p[i].loss));
}

static bool begins(const char *text, unsigned alert)
{
    const char *const name = rw_alert_name(alert);
    return !strncmp(text, name, strlen(name));
}

/* A slow step is seen where the speed is; of 8-bit codes there is a table, and more alerts than a chart can bear. */
static void draw_events(const struct chart *c, const struct dashboard *d)
{
    const bool speed = c->offset == offsetof(struct dashboard_point, tokens_per_s);
    for (size_t i = 0; i < d->n_events; i++) {
        bool codes = false;
        for (unsigned a = RW_ALERT_SITE_SCALE_DROP; a <= RW_ALERT_FLUSHED; a <<= 1)
            codes |= begins(d->event[i].text, a);
        codes &= !strstr(d->event[i].text, "→"); /* what was done about it */
        if (!codes && speed == begins(d->event[i].text, RW_ALERT_SLOW_STEP))
            fprintf(c->f, "<path class='event' d='M%.1f %dV%d'/>\n", x_of(c, d->event[i].step), TOP,
                    HEIGHT - BOTTOM);
    }
}

static void draw_chart(FILE *f, const struct dashboard *d, const char *name, size_t offset)
{
    struct chart c = { .f = f, .name = name, .offset = offset, .low = NAN, .high = NAN, .steps = d->steps };
    const bool loss = offset == offsetof(struct dashboard_point, loss);
    widen(&c, &d->run);
    widen(&c, &d->good);
    if (loss) widen(&c, &d->validation);
    if (!(c.high >= c.low)) return; /* nothing is known */
    const double margin = c.high > c.low ? 0.05 * (c.high - c.low) : fabs(c.high) > 0 ? 0.1 * fabs(c.high) : 1;
    c.low -= margin;
    c.high += margin;
    if (!(c.steps > 0)) c.steps = 1;
    fprintf(f, "<svg viewBox='0 0 %d %d' role='img' aria-label='%s'>\n", WIDTH, HEIGHT, name);
    draw_axes(&c);
    draw_events(&c, d);
    draw_line(&c, &d->good, "good");
    draw_line(&c, &d->run, "run");
    if (loss) draw_validation(&c, &d->validation);
    fprintf(f, "</svg>\n");
}

/* ---- the page ---- */

static const char head[] =
    "<style>\n"
    ":root{--ink:#1c2026;--soft:#667;--grid:#e3e6ea;--run:#1f6feb;--good:#b58900;--bad:#d1242f;--back:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#98a;--grid:#2d333b;--run:#58a6ff;--good:#d4a72c;"
    "--bad:#ff7b72;--back:#14181d}}\n"
    "body{font:15px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1180px;padding:0 16px;color:var(--ink);"
    "background:var(--back)}\n"
    "h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:26px 0 6px}p{margin:4px 0}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:8px 20px}\n"
    "svg{width:100%;height:auto}text{fill:var(--soft);font-size:12px}.name{fill:var(--ink);font-size:14px}\n"
    ".up{text-anchor:end}.along{text-anchor:middle}path{fill:none}.grid{stroke:var(--grid)}\n"
    ".run{stroke:var(--run);stroke-width:1.8}.good{stroke:var(--good);stroke-width:1.8;stroke-dasharray:5 3}\n"
    ".event{stroke:var(--bad);opacity:.6}.validation{fill:none;stroke:var(--ink);stroke-width:1.6}\n"
    "table{border-collapse:collapse}td,th{padding:2px 16px 2px 0;text-align:left;font-weight:400}\n"
    "td:last-child,th{color:var(--soft)}.bar{height:6px;background:var(--grid);border-radius:3px;margin:10px 0}\n"
    ".bar div{height:6px;background:var(--run);border-radius:3px}.key span{margin-right:18px}\n"
    "</style>\n";

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", f);
        else if (*text == '&') fputs("&amp;", f);
        else fputc(*text, f);
    }
}

static void put_title(FILE *f, const struct dashboard *d, bool last)
{
    const struct dashboard_point *const p = d->run.n ? &d->run.p[d->run.n - 1] : NULL;
    const double done = p ? p->step + 1 : 0, share = d->steps > 0 ? done / d->steps : 0;
    char when[64];
    const time_t now = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime(&now));
    fprintf(f, "<!doctype html>\n<html lang='en'><meta charset='utf-8'>\n%s<title>",
            last ? "" : "<meta http-equiv='refresh' content='5'>\n");
    put_text(f, d->title);
    fprintf(f, "</title>\n%s<h1>", head);
    put_text(f, d->title);
    fprintf(f, "</h1>\n<p>step %.0f of %.0f", done, d->steps);
    if (p && isfinite(p->loss)) fprintf(f, ", loss %.4f", p->loss);
    if (p && p->tokens_per_s > 0) fprintf(f, ", %.0f tokens/s", p->tokens_per_s);
    fprintf(f, "; %s %s</p>\n<div class='bar'><div style='width:%.1f%%'></div></div>\n", last ? "ended" : "as of", when,
            100 * (share < 1 ? share : 1));
    fprintf(f, "<p class='key'><span><svg style='width:34px;height:8px'><path class='run' d='M0 4H34'/></svg> this "
               "run</span>");
    if (d->good.n)
        fprintf(f, "<span><svg style='width:34px;height:8px'><path class='good' d='M0 4H34'/></svg> the run that is "
                   "known to be good</span>");
    fprintf(f, "<span>○ validation</span>%s</p>\n",
            d->n_events ? "<span style='color:var(--bad)'>| alerts and recoveries</span>" : "");
}

/* Where both runs have a loss, the last such step. */
static void put_comparison(FILE *f, const struct dashboard *d)
{
    for (size_t i = d->run.n; d->good.n && i-- > 0;)
        for (size_t k = d->good.n; k-- > 0;) {
            if (d->good.p[k].step != d->run.p[i].step) continue;
            const double here = d->run.p[i].loss, there = d->good.p[k].loss;
            fprintf(f, "<p>Loss at step %.0f: %.6f here, %.6f in the good run, %+.3g %%.</p>\n", d->run.p[i].step, here,
                    there, 100 * (here - there) / there);
            return;
        }
}

static void put_memory(FILE *f, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    const struct {
        const char *name, *what;
        size_t bytes;
    } rows[] = {
        { "parameters", "with buffers", m.parameters },
        { "gradients", "of parameters, beside a step", m.gradients },
        { "optimizer", "its states and master copies", m.optimizer },
        { "kept", "activations between forward and backward", m.kept },
        { "replayed", "most at one time", m.replayed },
        { "peak", "of a step's activations", m.measured_peak },
        { "outside", "host memory and files for what is moved out", m.host + m.files },
    };
    fprintf(f, "<h2>Memory</h2>\n<table>\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fprintf(f, "<tr><td>%s</td><td style='text-align:right'>%.1f MiB</td><td>%s</td></tr>\n", rows[i].name,
                (double)rows[i].bytes / 1048576, rows[i].what);
    fprintf(f, "</table>\n");
}

/* Sites of the last step. */
static void put_sites(FILE *f, const rw_monitor *monitor)
{
    rw_monitor_site s;
    bool any = false;
    for (size_t i = 0; rw_monitor_get_site(monitor, i, &s); i++) {
        if (!(s.elements > 0)) continue;
        if (!any) fprintf(f, "<h2>8-bit codes</h2>\n<table>\n<tr><th>of</th><th>largest</th><th>scale</th>"
                             "<th>saturated</th><th>flushed to zero</th></tr>\n");
        any = true;
        fprintf(f, "<tr><td>");
        put_text(f, s.name);
        fprintf(f, "</td><td>%.4g</td><td>%g", s.amax, s.scale);
        if (s.scale_most > s.scale) fprintf(f, " to %g", s.scale_most);
        fprintf(f, "</td><td>%.4f %%</td><td>%.4f %%</td></tr>\n", 100 * s.saturated, 100 * s.flushed);
    }
    if (any) fprintf(f, "</table>\n");
}

/* The newest first. */
static void put_events(FILE *f, const struct dashboard *d)
{
    fprintf(f, "<h2>Alerts and recoveries</h2>\n");
    if (!d->n_events) fprintf(f, "<p>None.</p>\n");
    if (d->n_events) fprintf(f, "<table>\n");
    for (size_t i = d->n_events; i-- > 0 && i + 50 > d->n_events;) {
        fprintf(f, "<tr><td>step %.0f</td><td>", d->event[i].step);
        put_text(f, d->event[i].text);
        fprintf(f, "</td></tr>\n");
    }
    if (d->n_events) fprintf(f, "</table>\n");
}

static void put_page(FILE *f, const struct dashboard *d, const rw_context *ctx, const rw_monitor *monitor, bool last)
{
    put_title(f, d, last);
    put_comparison(f, d);
    fprintf(f, "<div class='charts'>\n");
    draw_chart(f, d, "loss", offsetof(struct dashboard_point, loss));
    draw_chart(f, d, "norm of the gradients", offsetof(struct dashboard_point, norm));
    draw_chart(f, d, "learning rate", offsetof(struct dashboard_point, lr));
    draw_chart(f, d, "tokens per second", offsetof(struct dashboard_point, tokens_per_s));
    draw_chart(f, d, "norm of the weights", offsetof(struct dashboard_point, weights));
    draw_chart(f, d, "update over the weights", offsetof(struct dashboard_point, change));
    draw_chart(f, d, "loss scale", offsetof(struct dashboard_point, scale));
    fprintf(f, "</div>\n");
    put_memory(f, ctx);
    put_sites(f, monitor);
    put_events(f, d);
    fprintf(f, "</html>\n");
}

bool dashboard_write(struct dashboard *d, const rw_context *ctx, const rw_monitor *monitor, bool last)
{
    char aside[4096];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (!last && d->written > 0 && now - d->written < EVERY_S) return true;
    snprintf(aside, sizeof aside, "%s.part", d->path);
    FILE *const f = fopen(aside, "w");
    if (!f) return false;
    put_page(f, d, ctx, monitor, last);
    const bool whole = !fflush(f) && !ferror(f);
    d->written = now;
    if (!fclose(f) && whole && !rename(aside, d->path)) return true;
    remove(aside);
    return false;
}

void dashboard_finish(struct dashboard *d)
{
    free(d->run.p);
    free(d->good.p);
    free(d->validation.p);
    free(d->event);
}
