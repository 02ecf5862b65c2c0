/* Collects the data of the dashboard and writes its page. */
#include "dashboard.h"

#include "chart.h"
#include "paths.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { EVERY_S = 2, TRIES = 100, NAME_SIZE = PATH_SIZE + 64 };

/* ---- data ---- */

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

static struct dashboard_event *add_event(struct dashboard *d, double step, const char *alert)
{
    if (!grow(&d->event, &d->cap_events, d->n_events, sizeof *d->event)) return NULL;
    struct dashboard_event *const e = &d->event[d->n_events++];
    e->step = step;
    snprintf(e->alert, sizeof e->alert, "%s", alert);
    return e;
}

bool dashboard_note(struct dashboard *d, double step, const char *text)
{
    struct dashboard_event *const e = add_event(d, step, "");
    if (e) snprintf(e->text, sizeof e->text, "%s", text);
    return e;
}

bool dashboard_alert(struct dashboard *d, double step, const char *name, const char *groups, const char *site,
                     const char *numbers)
{
    struct dashboard_event *const e = add_event(d, step, name);
    const char *const colon = *site || *numbers ? ": " : "", *const comma = *site && *numbers ? ", " : "";
    if (e) snprintf(e->text, sizeof e->text, "%s%s%s%.100s%s%s", name, groups, colon, site, comma, numbers);
    return e;
}

void dashboard_describe(char *text, size_t size, const char *alert, double value, double usual)
{
    static const struct {
        unsigned alerts;
        double times;
        const char *before, *after, *usual;
    } words[] = {
        { RW_ALERT_LOSS_SPIKE, 1, "loss ", "", ", usual " },
        { RW_ALERT_GRAD_SPIKE, 1, "norm ", "", ", median " },
        { RW_ALERT_SLOW_STEP, 1, "", " ms", ", median " },
        { RW_ALERT_SCALE_DROP | RW_ALERT_SCALE_RISE, 1, "scale ", "", ", median " },
        { RW_ALERT_SKIPS, 1, "", " of the last 200 updates", "" },
        { RW_ALERT_PLATEAU, 1, "median loss ", "", ", before " },
        { RW_ALERT_UPDATES, 1, "update over weights ", "", "" },
        { RW_ALERT_ZEROS, 100, "", " % zeros", ", median " },
        { RW_ALERT_SITE_SCALE_DROP | RW_ALERT_SITE_SCALE_RISE, 1, "scale ", "", ", median " },
        { RW_ALERT_SATURATED, 100, "", " % saturated", "" },
        { RW_ALERT_FLUSHED, 100, "", " % flushed to zero", "" },
    };
    *text = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words && isfinite(value); i++)
        for (unsigned a = 1; a; a <<= 1) {
            if (!(words[i].alerts & a) || strcmp(alert, rw_alert_name(a))) continue;
            const int n = snprintf(text, size, "%s%.4g%s", words[i].before, words[i].times * value, words[i].after);
            if (*words[i].usual && isfinite(usual) && n > 0 && (size_t)n < size)
                snprintf(text + n, size - (size_t)n, "%s%.4g", words[i].usual, words[i].times * usual);
        }
}

void dashboard_command(char *text, size_t size, int argc, char **argv)
{
    const char *const slash = strrchr(argv[0], '/');
    size_t n = (size_t)snprintf(text, size, "%s", slash ? slash + 1 : argv[0]);
    for (int i = 1; i < argc && n < size; i++) {
        const char *const quote = strpbrk(argv[i], " \t\n\"$&|;<>()*?[]#~\\") || !*argv[i] ? "'" : "";
        n += (size_t)snprintf(text + n, size - n, " %s%s%s", quote, argv[i], quote);
    }
}

static void cut(struct dashboard_points *p, double step)
{
    while (p->n && p->p[p->n - 1].step >= step) p->n--;
}

void dashboard_cut(struct dashboard *d, double step)
{
    cut(&d->run, step);
    cut(&d->validation, step);
}

void dashboard_cut_events(struct dashboard *d, double step)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n_events; i++)
        if (d->event[i].step < step) d->event[n++] = d->event[i];
    d->n_events = n;
}

/* The number after "name": in a line of JSON; infinite for null, which represents any number that is not finite; NaN if
   there is none. */
static double field(const char *line, const char *name)
{
    char key[64], *end;
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *const at = strstr(line, key);
    if (!at) return NAN;
    if (!strncmp(at + strlen(key), "null", 4)) return INFINITY;
    const double x = strtod(at + strlen(key), &end);
    return end > at + strlen(key) ? x : NAN;
}

/* The text between the quotes or brackets after "name": in a line of JSON. */
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

/* An alert of a line, with its numbers if the line has them. */
static void read_alert(struct dashboard *d, const char *line, const char *name)
{
    char key[64], numbers[160] = "", words[120];
    snprintf(key, sizeof key, "{\"alert\":\"%s\"", name);
    const char *const at = strstr(line, key);
    if (at) snprintf(numbers, sizeof numbers, "%.*s", (int)strcspn(at, "}"), at);
    dashboard_describe(words, sizeof words, name, field(numbers, "value"), field(numbers, "usual"));
    dashboard_alert(d, field(line, "step"), name, "", "", words);
}

static void read_events(struct dashboard *d, const char *line)
{
    char alerts[200], recovery[20], note[80], all[320], *rest = NULL;
    const char *const behind = strstr(line, "\"memory\":"); /* groups, which may have their own alerts */
    text_of(behind ? behind : line, "alerts", ']', alerts, sizeof alerts);
    text_of(line, "recovery", '"', recovery, sizeof recovery);
    text_of(line, "note", '"', note, sizeof note);
    if (*recovery) {
        snprintf(all, sizeof all, "%s → %s%s%s", alerts, recovery, *note ? ": " : "", note);
        dashboard_note(d, field(line, "step"), all);
        return;
    }
    for (const char *name = strtok_r(alerts, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        read_alert(d, line, name);
}

static void add_validation(struct dashboard *d, double step, double loss)
{
    cut(&d->validation, step);
    dashboard_add(&d->validation, (struct dashboard_point){ .step = step, .loss = loss });
}

/* A log goes back where a run was rolled back, whose alerts remain, or where another run begins: it resumed from an
   earlier step, or shares the log. */
static void begin_step(struct dashboard *d, struct dashboard_points *to, double step, bool rolled_back)
{
    const bool goes_back = to->n && to->p[to->n - 1].step >= step;
    cut(to, step);
    if (to != &d->run) return;
    cut(&d->validation, step);
    if (goes_back && !rolled_back) dashboard_cut_events(d, step);
}

bool dashboard_read(struct dashboard *d, struct dashboard_points *to, const char *log)
{
    char line[8192];
    bool rolled_back = false;
    FILE *const f = fopen(log, "r");
    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        const double step = field(line, "step");
        if (!(step >= 0)) continue;
        const bool recovers = strstr(line, "\"recovery\":");
        const double validation = field(line, "validation_loss");
        const bool is_step = !recovers && isnan(validation);
        if (is_step) begin_step(d, to, step, rolled_back);
        rolled_back = is_step ? false : rolled_back || strstr(line, "\"recovery\":\"roll_back\"");
        if (to == &d->run) read_events(d, line);
        if (!recovers && !is_step && to == &d->run) add_validation(d, step, validation);
        if (!is_step) continue;
        dashboard_add(to, (struct dashboard_point){ step, field(line, "loss"), field(line, "grad_norm"),
                                                    field(line, "lr"), field(line, "tokens_per_s"),
                                                    field(line, "param_norm"), field(line, "update_ratio"),
                                                    field(line, "loss_scale") });
    }
    fclose(f);
    return true;
}

/* ---- the page ---- */

static const char head[] =
    "<meta name='viewport' content='width=device-width,initial-scale=1'>\n<style>\n"
    ":root{color-scheme:light dark;--ink:#1c2026;--soft:#59616e;--grid:#e3e6ea;--run:#1a62d6;--good:#8a5f00;"
    "--bad:#c01f2e;--back:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa4b2;--grid:#2d333b;--run:#58a6ff;--good:#d4a72c;"
    "--bad:#ff7b72;--back:#14181d}}\n"
    "body{font:15px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1248px;padding:0 16px;color:var(--ink);"
    "background:var(--back);box-sizing:border-box}\n"
    "h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:26px 0 6px}p{margin:4px 0}\n"
    "code{font-size:13px;color:var(--soft);overflow-wrap:anywhere}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:12px 20px}\n"
    "svg{width:100%;height:auto}text{fill:var(--soft);font-size:12.5px}.name,.value{fill:var(--ink);font-size:13.5px}\n"
    ".unit{fill:var(--soft);font-size:12.5px}.up,.value{text-anchor:end}.along,.middle{text-anchor:middle}"
    "path{fill:none}.grid{stroke:var(--grid)}.cursor{stroke:var(--soft)}.value{stroke:var(--back);stroke-width:5;"
    "paint-order:stroke}\n"
    ".run,.of-run{stroke:var(--run);stroke-width:1.8}.good,.of-good{stroke:var(--good);stroke-width:1.8;"
    "stroke-dasharray:5 3}.faint path{stroke-width:1;opacity:.45}.average{stroke-width:2.2}\n"
    ".event,.tick{stroke:var(--bad)}.tick{stroke-width:1.2}.event{stroke-dasharray:3 3}"
    ".validation{fill:none;stroke:var(--ink);stroke-width:1.6}\n"
    ".run,.good,.average{stroke-linejoin:round;stroke-linecap:round}.band{stroke:none;opacity:.25}"
    ".band.of-run{fill:var(--run)}.band.of-good{fill:var(--good)}.mark{stroke:var(--bad);stroke-width:1.8}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse}td,th{padding:2px 16px 2px 0;text-align:left;font-weight:400;"
    "vertical-align:top}td.number{text-align:right;white-space:nowrap}.events td:first-child{white-space:nowrap}"
    ".events td:last-child{overflow-wrap:anywhere}\n"
    "td:last-child,th{color:var(--soft)}.bar{height:6px;background:var(--grid);border-radius:3px;margin:10px 0}\n"
    ".bar div{height:6px;background:var(--run);border-radius:3px}.key span{margin-right:18px}.bad{color:var(--bad)}\n"
    ".key svg{width:34px;height:8px}</style>\n";

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", f);
        else if (*text == '&') fputs("&amp;", f);
        else fputc(*text, f);
    }
}

/* Writes the heading and the progress. */
static void put_title(FILE *f, const struct dashboard *d, bool last)
{
    const struct dashboard_point *const p = d->run.n ? &d->run.p[d->run.n - 1] : NULL;
    const double done = p ? p->step + 1 : 0, share = d->steps > 0 ? done / d->steps : 0;
    char when[64] = "an unknown time";
    const time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    fprintf(f, "<!doctype html>\n<html lang='en'><meta charset='utf-8'>\n%s<title>",
            last ? "" : "<meta http-equiv='refresh' content='5'>\n");
    put_text(f, d->title);
    fputs(" on ", f);
    put_text(f, d->device);
    fprintf(f, "</title>\n%s<h1>", head);
    put_text(f, d->title);
    fputs("</h1>\n<p>", f);
    put_text(f, d->model);
    fputs("; on ", f);
    put_text(f, d->device);
    fputs("</p>\n<p><code>", f);
    put_text(f, d->command);
    fprintf(f, "</code></p>\n<p>step %.0f of %.0f", done, d->steps);
    if (p && isfinite(p->loss)) fprintf(f, ", loss %.4f", p->loss);
    if (p && p->tokens_per_s > 0) fprintf(f, ", %.0f tokens/s", p->tokens_per_s);
    fprintf(f, "; %s %s</p>\n<div class='bar'><div style='width:%.1f%%'></div></div>\n", last ? "ended" : "as of", when,
            100 * (share < 1 ? share : 1));
}

/* Explains the lines and marks of the charts. */
static void put_key(FILE *f, const struct dashboard *d)
{
    fprintf(f, "<p class='key'><span><svg viewBox='0 0 34 8'><path class='run' d='M0 4H34'/></svg> this run</span>");
    if (d->good.n)
        fprintf(f, "<span><svg viewBox='0 0 34 8'><path class='good' d='M0 4H34'/></svg> the run that is known to be "
                   "good</span>");
    if (d->validation.n) fprintf(f, "<span>○ validation</span>");
    if (chart_bucket(&d->run) > 1)
        fprintf(f, "<span>line: mean of each %zu steps, band: their least to largest</span>", chart_bucket(&d->run));
    if (chart_average(&d->run))
        fprintf(f, "<span>thick: moving average over about %zu steps</span>", chart_average(&d->run));
    if (chart_has_gaps(&d->run)) fprintf(f, "<span class='bad'>× not finite</span>");
    bool alerts = false, actions = false;
    for (size_t i = 0; i < d->n_events; i++) *(*d->event[i].alert ? &alerts : &actions) = true;
    if (alerts) fprintf(f, "<span class='bad'>ı alert, on the axis</span>");
    if (actions) fprintf(f, "<span class='bad'>┊ recovery</span>");
    fprintf(f, "</p>\n");
}

/* The last step for which both runs have a finite loss. */
static void put_comparison(FILE *f, const struct dashboard *d)
{
    for (size_t i = d->run.n; d->good.n && i-- > 0;)
        for (size_t k = d->good.n; k-- > 0;) {
            if (d->good.p[k].step != d->run.p[i].step) continue;
            const double here = d->run.p[i].loss, there = d->good.p[k].loss;
            if (!isfinite(here) || !isfinite(there)) continue;
            fprintf(f, "<p>Loss at step %.0f: %.6f here, %.6f in the good run", d->run.p[i].step, here, there);
            if (fabs(there) > 0) fprintf(f, ", %+.3g %%", 100 * (here - there) / there);
            fprintf(f, ".</p>\n");
            return;
        }
}

/* Writes the table of the last step's memory. */
static void put_memory(FILE *f, const rw_memory *m)
{
    const struct {
        const char *name, *what;
        size_t bytes;
    } rows[] = {
        { "parameters", "with buffers", m->parameters },
        { "gradients", "of parameters, beside a step", m->gradients },
        { "optimizer", "its states and master copies", m->optimizer },
        { "kept", "activations between forward and backward", m->kept },
        { "replayed", "most at one time", m->replayed },
        { "peak", "of a step's activations", m->measured_peak },
        { "outside", "host memory and files for what is moved out", m->host + m->files },
    };
    fprintf(f, "<h2>Memory</h2>\n<table>\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fprintf(f, "<tr><td>%s</td><td class='number'>%.1f MiB</td><td>%s</td></tr>\n", rows[i].name,
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
        if (!any) fprintf(f, "<h2>8-bit codes</h2>\n<div class='wide'><table>\n"
                             "<tr><th>of</th><th>largest</th><th>scale</th><th>saturated</th>"
                             "<th>flushed to zero</th></tr>\n");
        any = true;
        fprintf(f, "<tr><td>");
        put_text(f, s.name);
        fprintf(f, "</td><td>%.4g</td><td>%g", s.amax, s.scale);
        if (s.scale_most > s.scale) fprintf(f, " to %g", s.scale_most);
        fprintf(f, "</td><td>%.4f %%</td><td>%.4f %%</td></tr>\n", 100 * s.saturated, 100 * s.flushed);
    }
    if (any) fprintf(f, "</table></div>\n");
}

/* ---- alerts and actions ---- */

enum { ROWS_MAX = 50 };

/* Equal alerts between two actions. */
struct row {
    const struct dashboard_event *newest;
    double first; /* step */
    size_t n;
};

/* Folds the events into rows, the newest first; returns their number. */
static size_t fold_events(const struct dashboard *d, struct row *row)
{
    size_t n = 0, since = 0; /* rows after the last action */
    for (size_t i = d->n_events; i-- > 0;) {
        const struct dashboard_event *const e = &d->event[i];
        size_t k = *e->alert ? since : n;
        while (k < n && strcmp(row[k].newest->alert, e->alert)) k++;
        if (k == ROWS_MAX) break;
        if (k == n) row[n++] = (struct row){ .newest = e };
        row[k].first = e->step;
        row[k].n++;
        if (!*e->alert) since = n;
    }
    return n;
}

static void put_events(FILE *f, const struct dashboard *d)
{
    struct row row[ROWS_MAX];
    const size_t n = fold_events(d, row);
    fprintf(f, "<h2>Alerts and recoveries</h2>\n");
    if (!n) fprintf(f, "<p>None.</p>\n");
    if (n) fprintf(f, "<table class='events'>\n");
    for (size_t i = 0; i < n; i++) {
        const double last = row[i].newest->step;
        if (row[i].n > 1)
            fprintf(f, "<tr><td>steps %.0f to %.0f</td><td class='number'>%zu ×</td><td>", row[i].first, last,
                    row[i].n);
        else fprintf(f, "<tr><td>step %.0f</td><td></td><td>", last);
        put_text(f, row[i].newest->text);
        fprintf(f, "</td></tr>\n");
    }
    if (n) fprintf(f, "</table>\n");
}

/* Writes the whole page. */
static void put_page(FILE *f, const struct dashboard *d, const rw_monitor *monitor, bool last)
{
    const struct chart_kind charts[] = {
        { "loss", d->loss_unit, offsetof(struct dashboard_point, loss), true },
        { "norm of the gradients", "L2", offsetof(struct dashboard_point, norm), true },
        { "learning rate", "", offsetof(struct dashboard_point, lr), false },
        { "tokens per second", "1/s", offsetof(struct dashboard_point, tokens_per_s), true },
        { "norm of the weights", "L2", offsetof(struct dashboard_point, weights), false },
        { "update over the weights", "ratio of norms", offsetof(struct dashboard_point, change), false },
        { "loss scale", "factor", offsetof(struct dashboard_point, scale), false },
    };
    put_title(f, d, last);
    put_key(f, d);
    put_comparison(f, d);
    fprintf(f, "<div class='charts'>\n");
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++) chart_draw(f, d, &charts[i]);
    fprintf(f, "</div>\n");
    put_memory(f, &d->memory);
    put_sites(f, monitor);
    put_events(f, d);
    chart_script(f);
    fprintf(f, "</html>\n");
}

/* Creates a new file beside `path`, under a name that no file has: an existing one, whatever it is, is not touched. A
   run that is killed leaves at most one such file. */
static FILE *open_beside(const char *path, char ret_name[NAME_SIZE])
{
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; fd < 0 && errno == EEXIST && i < TRIES; i++) {
        snprintf(ret_name, NAME_SIZE, "%s.%ld.%d.part", path, (long)getpid(), i);
        fd = open(ret_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    FILE *const f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f && fd >= 0) close(fd);
    return f;
}

bool dashboard_write(struct dashboard *d, const rw_monitor *monitor, bool last)
{
    char path[PATH_SIZE], aside[NAME_SIZE];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (!last && d->tried > 0 && now - d->tried < EVERY_S) return true;
    d->tried = now; /* also if it fails: a folder that is gone is not reported after each step */
    if (!path_resolve(d->path, path)) return false; /* replaces the file to which a link refers, not the link */
    FILE *const f = open_beside(path, aside);
    if (!f) return false;
    put_page(f, d, monitor, last);
    const bool whole = !fflush(f) && !ferror(f);
    if (!fclose(f) && whole && !rename(aside, path)) return true;
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
