/* sweep.html: one self-contained page with the memory-time curve, the loss curve and the table. */
#include "sweep.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

static const char head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Rewind: what memory costs in time</title>\n"
    "<style>:root{color-scheme:light dark;--ink:#1b1f24;--soft:#667;--line:#d5d9e0;--bg:#fff;--a:#0b6bcb;--b:#c2410c}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#9aa3af;--line:#363b45;--bg:#15181d;--a:#5aa9ff;--b:#ff9d66}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:60rem;margin:2rem auto;padding:0 1rem}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13px}td,th{padding:.3rem .6rem;border-bottom:1px "
    "solid var(--line);text-align:right}td:nth-child(2),th:nth-child(2){text-align:left}svg{width:100%;height:auto}text{fill:var(--ink);"
    "font-size:12px}.soft{color:var(--soft);fill:var(--soft)}.axis{stroke:var(--soft)}.grid{stroke:var(--line)}code{font-size:13px}</style>\n";

#define W 860.0
#define H 420.0
#define LEFT 70.0
#define RIGHT 30.0
#define TOP 20.0
#define BOTTOM 50.0

struct scale {
    double lo, hi, from, to;
};

static double at(const struct scale *s, double x)
{
    return s->from + (x - s->lo) / (s->hi - s->lo) * (s->to - s->from);
}

/* A step of 1, 2 or 5 times a power of ten that cuts the range into about n parts. */
static double tick(double range, int n)
{
    const double raw = range / n, power = pow(10, floor(log10(raw))), m = raw / power;
    return (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10) * power;
}

static void escape(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') fputs("&lt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else fputc(*s, f);
    }
}

static void axes(FILE *f, const struct scale *x, const struct scale *y, const char *x_name, const char *y_name)
{
    const double dx = tick(x->hi - x->lo, 8), dy = tick(y->hi - y->lo, 6);
    for (double v = ceil(x->lo / dx) * dx; v <= x->hi; v += dx)
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" /><text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g</text>\n",
                at(x, v), at(x, v), TOP, H - BOTTOM, at(x, v), H - BOTTOM + 18, v);
    for (double v = ceil(y->lo / dy) * dy; v <= y->hi; v += dy)
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" /><text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", LEFT,
                W - RIGHT, at(y, v), at(y, v), LEFT - 8, at(y, v) + 4, v);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text><text transform=\"translate(16 %.1f) rotate(-90)\" "
               "text-anchor=\"middle\">%s</text>\n", (LEFT + W - RIGHT) / 2, H - 8, x_name, (TOP + H - BOTTOM) / 2, y_name);
}

static void curve(FILE *f, const struct sweep_row *rows, int n, int seq, const char *style)
{
    double most = 0, slow = 1, fast = 1;
    for (int i = 0; i < n; i++) {
        if (rows[i].seq != seq) continue;
        most = fmax(most, (double)rows[i].peak / 1048576);
        slow = fmax(slow, rows[i].ratio);
        fast = fmin(fast, rows[i].ratio);
    }
    const struct scale x = { 0, most * 1.25, LEFT, W - RIGHT }, y = { fast - 0.05, slow + 0.08, H - BOTTOM, TOP };
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">%s\n", W, H, style);
    axes(f, &x, &y, "peak of activations, MiB", "step time over policy none");
    double above[SWEEP_MOST * 2][2];
    int labels = 0;
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        if (r->seq != seq) continue;
        const double px = at(&x, (double)r->peak / 1048576), py = at(&y, r->ratio);
        double ly = py + 4; /* labels step aside for each other */
        for (int k = 0; k < labels; k++)
            if (fabs(above[k][0] - px) < 150 && fabs(above[k][1] - ly) < 14) ly = above[k][1] + 14, k = -1;
        if (labels < SWEEP_MOST * 2) above[labels][0] = px, above[labels++][1] = ly;
        fprintf(f, "<g><title>");
        escape(f, r->policy);
        fprintf(f, ": %.1f ms, %.3f x, peak %.1f MiB, kept %.1f MiB</title><circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(%s)\" />", r->step_ms,
                r->ratio, (double)r->peak / 1048576, (double)r->kept / 1048576, px, py, r->identical ? "--a" : "--b");
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", px + 9, ly);
        escape(f, r->policy);
        fprintf(f, "</text></g>\n");
    }
    fprintf(f, "</svg>\n");
}

static void losses(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n, int seq)
{
    double lo = INFINITY, hi = -INFINITY;
    int same = 0, other = 0;
    for (int i = 0; i < n; i++) {
        if (rows[i].seq != seq) continue;
        rows[i].identical ? same++ : other++;
        for (int s = 0; s <= o->steps; s++) lo = fmin(lo, rows[i].losses[s]), hi = fmax(hi, rows[i].losses[s]);
    }
    const struct scale x = { 0, o->steps, LEFT, W - RIGHT }, y = { lo - (hi - lo) * 0.08 - 1e-6, hi + (hi - lo) * 0.08 + 1e-6, H - BOTTOM, TOP };
    fprintf(f, "<p>%d of %d policies have the same losses to the last bit, drawn as one line.</p>", same, same + other);
    fprintf(f, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", W, H);
    axes(f, &x, &y, "step", "loss, nats per byte");
    bool drawn = false;
    for (int i = 0; i < n; i++) {
        if (rows[i].seq != seq || (rows[i].identical && drawn)) continue;
        drawn |= rows[i].identical;
        fprintf(f, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"var(%s)\" points=\"", rows[i].identical ? "--a" : "--b");
        for (int s = 0; s <= o->steps; s++) fprintf(f, "%.1f,%.1f ", at(&x, s), at(&y, rows[i].losses[s]));
        fprintf(f, "\" />\n");
    }
    fprintf(f, "</svg>\n");
}

static void table(FILE *f, const struct sweep_row *rows, int n)
{
    fprintf(f, "<h2>Rows</h2><table><tr><th>seq<th>policy<th>step, ms<th>ratio<th>kept, MiB<th>peak, MiB<th>predicted, MiB<th>nodes replayed<th>loss"
               "<th>identical</tr>\n");
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        fprintf(f, "<tr><td>%d<td><code>", r->seq);
        escape(f, r->policy);
        fprintf(f, "</code><td>%.1f<td>%.3f<td>%.2f<td>%.2f<td>%.2f<td>%zu<td>%.6f<td>%s</tr>\n", r->step_ms, r->ratio,
                (double)r->kept / 1048576, (double)r->peak / 1048576, (double)r->predicted / 1048576, r->replayed, r->loss,
                r->identical ? "yes" : "<b>NO</b>");
    }
    fprintf(f, "</table>\n");
}

/* "model name" of the first processor, for the reader of the page. */
static void machine(FILE *f, const struct sweep_options *o)
{
    struct utsname u;
    char line[256], cpu[256] = "";
    FILE *const info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(cpu, sizeof cpu, "%s", strchr(line, ':') + 2);
            cpu[strcspn(cpu, "\n")] = '\0';
            break;
        }
    if (info) fclose(info);
    fprintf(f, "<p class=soft>%s, %d layers of width %d, %s, batch %d; %d threads on ", model_name(o->model.kind), o->model.layers,
            o->model.width, rw_dtype_name(o->model.dtype), o->batch, o->threads);
    escape(f, cpu[0] ? cpu : o->device);
    if (!uname(&u)) fprintf(f, ", %s %s", u.sysname, u.machine);
    fprintf(f, ". Step time is forward and backward, the median of %d steps.<br><code>", o->steps);
    escape(f, o->command);
    fprintf(f, "</code></p>\n");
}

bool sweep_write_html(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/sweep.html", o->out);
    FILE *const f = fopen(path, "w");
    if (!f) return false;
    fputs(head, f);
    fprintf(f, "<h1>What memory costs in time</h1>\n");
    machine(f, o);
    for (int i = 0; i < o->n_seqs; i++) {
        fprintf(f, "<h2>Sequence length %d</h2>\n", o->seqs[i]);
        curve(f, rows, n, o->seqs[i], "");
        losses(f, o, rows, n, o->seqs[i]);
    }
    table(f, rows, n);
    return fclose(f) == 0;
}

/* The curve of the first sequence length as a file of its own, for a page that cannot hold HTML. */
bool sweep_write_svg(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    static const char style[] =
        "<style>:root{--ink:#1b1f24;--soft:#667;--line:#d5d9e0;--a:#0b6bcb;--b:#c2410c}@media(prefers-color-scheme:dark){:root{"
        "--ink:#e6e8ec;--soft:#9aa3af;--line:#363b45;--a:#5aa9ff;--b:#ff9d66}}text{fill:var(--ink);font:12px system-ui,sans-serif}"
        ".soft{fill:var(--soft)}.grid{stroke:var(--line)}</style>";
    char path[4096];
    snprintf(path, sizeof path, "%s/sweep.svg", o->out);
    FILE *const f = fopen(path, "w");
    if (!f) return false;
    curve(f, rows, n, o->seqs[0], style);
    return fclose(f) == 0;
}
