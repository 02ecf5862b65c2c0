/* The two charts of sweep.html as SVG: memory against time, and the loss curves. */
#include "sweep/sweep_structs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOP 20.0
#define BOTTOM 50.0
#define LINE 15.0 /* height of a line of text */
#define GLYPH 6.8 /* estimated width of a glyph, an upper bound */

struct scale {
    double lo, hi, from, to;
};

/* A chart: its size, its axes, and the unit of bytes. */
struct frame {
    double w, h, left, right;
    bool is_narrow; /* for a phone: texts without a free place are left out, because the table has them */
    struct scale x, y;
    struct sweep_unit unit;
};

static const struct frame wide_frame = { .w = 860, .h = 420, .left = 70, .right = 30 };
static const struct frame narrow_frame = { .w = 400, .h = 360, .left = 54, .right = 12, .is_narrow = true };

struct box {
    double left, right, top, bottom;
};

/* Occupied areas, where no text is placed: points, measured and predicted, texts, and the segments of the predicted
   lines. */
struct places {
    struct box taken[3 * SWEEP_MAX + 5 * SWEEP_POINTS];
    int n;
};

static double at(const struct scale *s, double x)
{
    return s->from + (x - s->lo) / (s->hi - s->lo) * (s->to - s->from);
}

static double x_of(const struct frame *fr, size_t bytes)
{
    return at(&fr->x, (double)bytes / fr->unit.of);
}

static double y_of(const struct frame *fr, double ratio)
{
    return at(&fr->y, ratio);
}

struct sweep_unit sweep_byte_unit(size_t most)
{
    return most < 1 << 20 ? (struct sweep_unit){ 1024, "KiB" }
         : most < (size_t)10 << 30 ? (struct sweep_unit){ 1048576, "MiB" } : (struct sweep_unit){ 1073741824, "GiB" };
}

struct sweep_unit sweep_rate_unit(double tflops)
{
    return tflops < 1 ? (struct sweep_unit){ 1e-3, "GFLOP/s" }
         : tflops < 1000 ? (struct sweep_unit){ 1, "TFLOP/s" } : (struct sweep_unit){ 1000, "PFLOP/s" };
}

struct sweep_unit sweep_time_unit(double ms)
{
    return ms < 1 ? (struct sweep_unit){ 1e-3, "\xc2\xb5s" }
         : ms < 10000 ? (struct sweep_unit){ 1, "ms" } : (struct sweep_unit){ 1000, "s" };
}

/* A step of 1, 2 or 5 times a power of ten that divides the range into about n parts. */
static double tick(double range, int n)
{
    const double raw = range / n, power = pow(10, floor(log10(raw))), m = raw / power;
    return (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10) * power;
}

/* Digits after the point that distinguish adjacent ticks. */
static int digits(double step)
{
    return step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
}

void sweep_escape(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') fputs("&lt;", f);
        else if (*s == '>') fputs("&gt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else fputc(*s, f);
    }
}

static void x_axis(FILE *f, const struct frame *fr, const char *name, const char *unit, double least_step)
{
    const struct scale *const x = &fr->x;
    const double step = fmax(tick(x->hi - x->lo, fr->is_narrow ? 4 : 8), least_step), bottom = fr->h - BOTTOM;
    for (double k = ceil(x->lo / step - 1e-9); k * step <= x->hi + 1e-9 * step; k++) {
        const double px = at(x, k * step);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" />", px, px, TOP, bottom);
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.*f</text>\n", px, bottom + 18,
                digits(step), k * step + 0.0); /* -0 becomes 0 */
    }
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s%s%s</text>\n",
            (fr->left + fr->w - fr->right) / 2, fr->h - 8, name, *unit ? ", " : "", unit);
}

static void y_axis(FILE *f, const struct frame *fr, const char *name)
{
    const struct scale *const y = &fr->y;
    const double step = tick(y->hi - y->lo, 6), right = fr->w - fr->right;
    for (double k = ceil(y->lo / step - 1e-9); k * step <= y->hi + 1e-9 * step; k++) {
        const double py = at(y, k * step);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" />", fr->left, right, py, py);
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n", fr->left - 8, py + 4,
                digits(step), k * step + 0.0);
    }
    fprintf(f, "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (TOP + fr->h - BOTTOM) / 2, name);
}

static bool overlap(const struct box *a, const struct box *b)
{
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

static bool is_free(const struct frame *fr, const struct box *b, const struct places *p)
{
    if (b->left < fr->left || b->right > fr->w - fr->right) return false;
    if (b->top < TOP - LINE || b->bottom > fr->h - BOTTOM) return false;
    for (int i = 0; i < p->n; i++)
        if (overlap(b, &p->taken[i])) return false;
    return true;
}

static void take_stretch(struct places *p, double x0, double y0, double x1, double y1)
{
    p->taken[p->n++] = (struct box){ fmin(x0, x1) - 1, fmax(x0, x1) + 1, fmin(y0, y1) - 1, fmax(y0, y1) + 1 };
}

static void take_ring(struct places *p, double px, double py)
{
    p->taken[p->n++] = (struct box){ px - 3, px + 3, py - 3, py + 3 };
}

static void take_stairs(struct places *p, const struct frame *fr, const rw_frontier_point *point, size_t n,
                        double none_ms)
{
    for (size_t i = 1; i < n; i++) {
        const double x0 = x_of(fr, point[i - 1].peak_bytes), y0 = y_of(fr, point[i - 1].ms / none_ms);
        const double x1 = x_of(fr, point[i].peak_bytes), y1 = y_of(fr, point[i].ms / none_ms);
        take_stretch(p, x0, y0, x1, y0);
        take_stretch(p, x1, y0, x1, y1);
    }
}

/* The lower bound for budgets up to point i: a bound for a larger budget is one for a smaller budget as well, so the
   largest of these holds. 0: none is known. */
static double bound_at(const struct sweep_curve *c, size_t i)
{
    double most = 0;
    for (; i < c->n; i++) most = fmax(most, c->point[i].bound_ms);
    return most / c->none_ms;
}

static void take_bound(struct places *p, const struct frame *fr, const struct sweep_curve *c)
{
    for (size_t i = 1; c->has_bound && i < c->n; i++)
        take_stretch(p, x_of(fr, c->point[i - 1].peak_bytes), y_of(fr, bound_at(c, i)),
                     x_of(fr, c->point[i].peak_bytes), y_of(fr, bound_at(c, i)));
}

/* A position for the text of the point (px, py) in a free area: next to it, above or below it, or further away. If
   there is none: next to it, and false. */
static bool place_label(const struct frame *fr, double px, double py, size_t length, const struct places *p,
                        struct box *ret)
{
    const double w = GLYPH * (double)length;
    for (int far = 0; far < 12; far++) {
        const double shift = LINE * ((far + 1) / 2) * (far % 2 ? -1 : 1);
        const double lefts[] = { px + 9, px - 9 - w, px - w / 2 }, tops[] = { 0, 0, far % 2 ? -LINE : LINE };
        for (int i = 0; i < 3; i++) {
            const double top = py - LINE / 2 + shift + tops[i];
            *ret = (struct box){ lefts[i], lefts[i] + w, top, top + LINE };
            if (is_free(fr, ret, p)) return true;
        }
    }
    const double left = fmax(fr->left, fmin(px + 9, fr->w - fr->right - w));
    *ret = (struct box){ left, left + w, py - LINE / 2, py + LINE / 2 };
    return false;
}

/* Where the text is anchored (start, end or middle), by its position relative to its point. */
static double anchor(double px, const struct box *b)
{
    return b->left > px ? b->left : b->right < px ? b->right : (b->left + b->right) / 2;
}

/* Draws a line from a point to a text that is further away. */
static void leader(FILE *f, double px, double py, const struct box *b)
{
    const double middle = (b->top + b->bottom) / 2;
    if (fabs(middle - py) > LINE)
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" />\n", px, anchor(px, b), py,
                middle);
}

static void label(FILE *f, const struct sweep_row *r, double px, const struct box *b)
{
    fprintf(f, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", anchor(px, b),
            (b->top + b->bottom) / 2 + 4, b->left > px ? "start" : b->right < px ? "end" : "middle");
    sweep_escape(f, r->policy);
    fprintf(f, "</text>\n");
}

static bool is_budget(const struct sweep_row *r)
{
    return !strncmp(r->policy, "budget:", 7) || !strncmp(r->policy, "total:", 6);
}

/* A square for a budget, a circle for another policy. */
static void put_mark(FILE *f, double px, double py, bool budget, bool identical)
{
    const char *const colour = identical ? "--a" : "--b";
    if (budget)
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"9\" fill=\"var(%s)\" />", px - 4.5, py - 4.5,
                colour);
    else fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(%s)\" />", px, py, colour);
}

static void put_point(FILE *f, const struct frame *fr, const struct sweep_row *r, const struct box *place)
{
    const double px = x_of(fr, r->peak);
    fprintf(f, "<g><title>");
    sweep_escape(f, r->policy);
    fprintf(f, ": %.4g ms, %.3f times none; peak %.1f %s, kept %.1f %s; %s</title>", r->step_ms, r->ratio,
            (double)r->peak / fr->unit.of, fr->unit.name, (double)r->kept / fr->unit.of, fr->unit.name,
            r->identical ? "identical" : "NOT identical");
    put_mark(f, px, y_of(fr, r->ratio), is_budget(r), r->identical);
    if (place->right > place->left) label(f, r, px, place);
    fprintf(f, "</g>\n");
}

static void take_lines(struct places *p, const struct frame *fr, const struct sweep_curve *c)
{
    if (!(c->none_ms > 0)) return;
    take_stairs(p, fr, c->point, c->n, c->none_ms);
    take_stairs(p, fr, c->moved, c->n_moved, c->none_ms);
    take_bound(p, fr, c);
}

/* Draws the measured rows with their labels. */
static void points(FILE *f, const struct frame *fr, const struct sweep_row *rows, int n, const struct sweep_curve *c)
{
    struct places places = { .n = 0 };
    struct box place[SWEEP_MAX] = { { 0 } };
    take_lines(&places, fr, c);
    for (int i = 0; i < n; i++) {
        const double px = x_of(fr, rows[i].peak), py = y_of(fr, rows[i].ratio);
        places.taken[places.n++] = (struct box){ px - 6, px + 6, py - 6, py + 6 };
        if (c->none_ms > 0 && rows[i].predicted_ms > 0)
            take_ring(&places, x_of(fr, rows[i].predicted), y_of(fr, rows[i].predicted_ms / c->none_ms));
    }
    for (int i = 0; i < n; i++) { /* lines first: texts cover them */
        const double px = x_of(fr, rows[i].peak), py = y_of(fr, rows[i].ratio);
        struct box b;
        if (!place_label(fr, px, py, strlen(rows[i].policy), &places, &b) && fr->is_narrow) continue;
        leader(f, px, py, &b);
        places.taken[places.n++] = place[i] = b;
    }
    for (int i = 0; i < n; i++) put_point(f, fr, &rows[i], &place[i]);
}

static int by_peak(const void *a, const void *b)
{
    const struct sweep_row *const x = *(const struct sweep_row *const *)a;
    const struct sweep_row *const y = *(const struct sweep_row *const *)b;
    if (x->peak != y->peak) return x->peak < y->peak ? -1 : 1;
    return x->ratio < y->ratio ? -1 : x->ratio > y->ratio;
}

/* Connects the rows that no other beats in both memory and time. */
static void frontier(FILE *f, const struct frame *fr, const struct sweep_row *rows, int n)
{
    const struct sweep_row *sorted[SWEEP_MAX];
    for (int i = 0; i < n; i++) sorted[i] = &rows[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_peak);
    fprintf(f, "<polyline class=\"frontier\" points=\"");
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        if (sorted[i]->ratio >= best) continue;
        best = sorted[i]->ratio;
        fprintf(f, "%.1f,%.1f ", x_of(fr, sorted[i]->peak), y_of(fr, best));
    }
    fprintf(f, "\" />\n");
}

/* A staircase, because a smaller budget uses the next plan; clipped at the top of the chart. */
static void stairs(FILE *f, const struct frame *fr, const rw_frontier_point *point, size_t n, double none_ms)
{
    for (size_t i = 0; i < n; i++) {
        const double px = x_of(fr, point[i].peak_bytes), py = y_of(fr, point[i].ms / none_ms);
        if (py < TOP) continue;
        if (i) fprintf(f, "%.1f,%.1f ", px, fmax(TOP, y_of(fr, point[i - 1].ms / none_ms)));
        fprintf(f, "%.1f,%.1f ", px, py);
    }
}

/* Also a staircase: between two points the bound of the larger one holds, and a line from one to the other would be
   above it. Ends where no bound is known. */
static void bound(FILE *f, const struct frame *fr, const struct sweep_curve *c)
{
    fprintf(f, "<polyline class=\"bound\" points=\"");
    for (size_t i = 0; i < c->n && bound_at(c, i) > 0; i++) {
        const double px = x_of(fr, c->point[i].peak_bytes);
        if (i) fprintf(f, "%.1f,%.1f ", x_of(fr, c->point[i - 1].peak_bytes), y_of(fr, bound_at(c, i)));
        fprintf(f, "%.1f,%.1f ", px, y_of(fr, bound_at(c, i)));
    }
    fprintf(f, "\"><title>lower bound</title></polyline>\n");
}

/* The predicted frontier from the minimum memory to none, also with offload; and the lower bound without offload. */
static void curve(FILE *f, const struct frame *fr, const struct sweep_curve *c)
{
    if (!c->n || c->none_ms <= 0) return;
    fprintf(f, "<polyline class=\"predicted\" points=\"");
    stairs(f, fr, c->point, c->n, c->none_ms);
    fprintf(f, "\"><title>predicted</title></polyline>\n");
    if (c->n_moved) {
        fprintf(f, "<polyline class=\"moved\" points=\"");
        stairs(f, fr, c->moved, c->n_moved, c->none_ms);
        fprintf(f, "\"><title>predicted with +offload</title></polyline>\n");
    }
    if (c->has_bound) bound(f, fr, c);
}

/* The prediction for each row. */
static void rings(FILE *f, const struct frame *fr, const struct sweep_row *rows, int n, const struct sweep_curve *c)
{
    for (int i = 0; i < n && c->none_ms > 0; i++)
        if (rows[i].predicted_ms > 0)
            fprintf(f, "<circle class=\"ring\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" />\n", x_of(fr, rows[i].predicted),
                    y_of(fr, rows[i].predicted_ms / c->none_ms));
}

/* ---- legend ---- */

#define SYMBOL 30.0 /* width of a symbol */

struct entry {
    const char *text, *line; /* line: the class of a line; NULL: another mark */
    char mark;               /* 'c'ircle, 's'quare, 'r'ing, 'n'ot identical */
};

/* The marks and lines that the chart has. Returns their number. */
static int legend_of(const struct sweep_row *rows, int n, const struct sweep_curve *c, struct entry e[8])
{
    bool policy = false, budget = false, differs = false, ring = false;
    int k = 0;
    for (int i = 0; i < n; i++) {
        *(is_budget(&rows[i]) ? &budget : &policy) = true;
        differs |= !rows[i].identical;
        ring |= c->none_ms > 0 && rows[i].predicted_ms > 0;
    }
    if (policy) e[k++] = (struct entry){ .text = "measured: a policy", .mark = 'c' };
    if (budget) e[k++] = (struct entry){ .text = "measured: a budget", .mark = 's' };
    if (differs) e[k++] = (struct entry){ .text = "measured: NOT identical", .mark = 'n' };
    e[k++] = (struct entry){ .text = "the best that was measured", .line = "frontier" };
    if (ring) e[k++] = (struct entry){ .text = "predicted for a row", .mark = 'r' };
    if (c->n && c->none_ms > 0) {
        e[k++] = (struct entry){ .text = "predicted for every budget", .line = "predicted" };
        if (c->n_moved) e[k++] = (struct entry){ .text = "the same with +offload", .line = "moved" };
        if (c->has_bound)
            e[k++] = (struct entry){ .text = c->n_moved ? "lower bound without offload" : "lower bound",
                                     .line = "bound" };
    }
    return k;
}

static void put_entry(FILE *f, const struct entry *e, double x, double y)
{
    const double middle = x + SYMBOL / 2 - 4;
    if (e->line)
        fprintf(f, "<path class=\"%s key\" d=\"M%.1f %.1fh%.0f\" />", e->line, x, y, SYMBOL - 8);
    else if (e->mark == 'r')
        fprintf(f, "<circle class=\"ring key\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" />", middle, y);
    else put_mark(f, middle, y, e->mark == 's', e->mark != 'n');
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + SYMBOL, y + 4, e->text);
}

/* Places the entries in lines below the chart, and returns where they end; f NULL: only that. */
static double legend(FILE *f, const struct frame *fr, const struct entry *e, int n)
{
    double x = fr->left, y = fr->h + 10;
    for (int i = 0; i < n; i++) {
        const double w = SYMBOL + GLYPH * (double)strlen(e[i].text);
        if (x > fr->left && x + w > fr->w) {
            x = fr->left;
            y += LINE + 4;
        }
        if (f) put_entry(f, &e[i], x, y);
        x += w + 14;
    }
    return y + LINE;
}

/* ---- charts ---- */

/* Ranges that contain all rows, the predicted lines up to twice the time of none, and the bound. */
static struct frame fit_axes(const struct frame *frame, const struct sweep_row *rows, int n,
                             const struct sweep_curve *c)
{
    const bool drawn = c->none_ms > 0;
    struct frame fr = *frame;
    size_t most = 0;
    double slow = 1, fast = 1;
    for (size_t i = 0; drawn && i < c->n; i++) slow = fmax(slow, fmin(2, c->point[i].ms / c->none_ms));
    for (size_t i = 0; drawn && i < c->n_moved; i++) slow = fmax(slow, fmin(2, c->moved[i].ms / c->none_ms));
    for (size_t i = 0; drawn && i < c->n; i++)
        if (bound_at(c, i) > 0) fast = fmin(fast, bound_at(c, i));
    if (drawn && c->n) most = c->point[c->n - 1].peak_bytes;
    if (drawn && c->n_moved && c->moved[c->n_moved - 1].peak_bytes > most) most = c->moved[c->n_moved - 1].peak_bytes;
    for (int i = 0; i < n; i++) {
        if (rows[i].peak > most) most = rows[i].peak;
        slow = fmax(slow, rows[i].ratio);
        if (drawn) slow = fmax(slow, rows[i].predicted_ms / c->none_ms);
        fast = fmin(fast, rows[i].ratio);
    }
    fr.unit = sweep_byte_unit(most);
    fr.x = (struct scale){ 0, (double)most / fr.unit.of * 1.25 + 1e-3, fr.left, fr.w - fr.right };
    fr.y = (struct scale){ fast - 0.05, slow + 0.08, fr.h - BOTTOM, TOP };
    return fr;
}

void sweep_chart_memory(FILE *f, const struct sweep_row *rows, int n, const struct sweep_curve *c, bool narrow,
                        const char *class, const char *style)
{
    const struct frame fr = fit_axes(narrow ? &narrow_frame : &wide_frame, rows, n, c);
    struct entry e[8];
    const int entries = legend_of(rows, n, c, e);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
               "aria-label=\"Step time against peak memory\">%s\n", class, fr.w, legend(NULL, &fr, e, entries), style);
    x_axis(f, &fr, "peak of activations", fr.unit.name, 0);
    y_axis(f, &fr, "step time, times that of none");
    curve(f, &fr, c);
    rings(f, &fr, rows, n, c);
    frontier(f, &fr, rows, n);
    points(f, &fr, rows, n, c);
    legend(f, &fr, e, entries);
    fprintf(f, "</svg>\n");
}

/* Whether the losses of two rows are the same numbers. */
static bool same_losses(const struct sweep_row *a, const struct sweep_row *b)
{
    const size_t bytes = (size_t)a->outcome.steps * sizeof *a->outcome.losses;
    return a->outcome.steps == b->outcome.steps && !memcmp(a->outcome.losses, b->outcome.losses, bytes);
}

bool sweep_losses_differ(const struct sweep_row *rows, int n)
{
    bool differ = false;
    for (int i = 1; i < n; i++) differ |= !same_losses(&rows[0], &rows[i]);
    return differ;
}

static void loss_line(FILE *f, const struct frame *fr, const struct sweep_row *r)
{
    fprintf(f, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"var(%s)\" points=\"", r->identical ? "--a" : "--b");
    for (int s = 0; s < r->outcome.steps; s++)
        if (isfinite(r->outcome.losses[s])) fprintf(f, "%.1f,%.1f ", at(&fr->x, s), at(&fr->y, r->outcome.losses[s]));
    fprintf(f, "\"><title>");
    sweep_escape(f, r->identical ? "every identical row" : r->policy);
    fprintf(f, "</title></polyline>\n");
}

void sweep_chart_loss(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n, bool narrow,
                      const char *class)
{
    struct frame fr = narrow ? narrow_frame : wide_frame;
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < rows[i].outcome.steps; s++) {
            if (!isfinite(rows[i].outcome.losses[s])) continue;
            lo = fmin(lo, rows[i].outcome.losses[s]);
            hi = fmax(hi, rows[i].outcome.losses[s]);
        }
    if (lo > hi) lo = hi = 0; /* no finite loss at all */
    const double air = (hi - lo) * 0.08 + 1e-6;
    fr.x = (struct scale){ 0, rows[0].outcome.steps - 1, fr.left, fr.w - fr.right };
    fr.y = (struct scale){ lo - air, hi + air, fr.h - BOTTOM, TOP };
    fprintf(f, "<svg class=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"Loss against step\">\n", class,
            fr.w, fr.h);
    x_axis(f, &fr, "step", "", 1);
    y_axis(f, &fr, model_is_of_images(o->model.kind) ? "loss" : "loss, nats per byte");
    bool drawn = false;
    for (int i = 0; i < n; i++) {
        if (rows[i].identical && drawn) continue;
        drawn |= rows[i].identical;
        loss_line(f, &fr, &rows[i]);
    }
    fprintf(f, "</svg>\n");
}
