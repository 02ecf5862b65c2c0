/* The two charts of sweep.html as SVG: memory against time, and the loss curve. */
#include "sweep/sweep_structs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define W 860.0
#define H 420.0
#define LEFT 70.0
#define RIGHT 30.0
#define TOP 20.0
#define BOTTOM 50.0
#define LINE 15.0 /* height of a line of text */
#define GLYPH 6.8 /* estimated width of a glyph, an upper bound */

struct scale {
    double lo, hi, from, to;
};

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

static double mib(size_t bytes)
{
    return (double)bytes / 1048576;
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

static void x_axis(FILE *f, const struct scale *x, const char *name, double least_step)
{
    const double step = fmax(tick(x->hi - x->lo, 8), least_step);
    for (double k = ceil(x->lo / step - 1e-9); k * step <= x->hi + 1e-9 * step; k++) {
        const double px = at(x, k * step);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" />", px, px, TOP, H - BOTTOM);
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.*f</text>\n", px,
                H - BOTTOM + 18, digits(step), k * step + 0.0); /* -0 becomes 0 */
    }
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", (LEFT + W - RIGHT) / 2, H - 8, name);
}

static void y_axis(FILE *f, const struct scale *y, const char *name)
{
    const double step = tick(y->hi - y->lo, 6);
    for (double k = ceil(y->lo / step - 1e-9); k * step <= y->hi + 1e-9 * step; k++) {
        const double py = at(y, k * step);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" />", LEFT, W - RIGHT, py, py);
        fprintf(f, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n", LEFT - 8, py + 4,
                digits(step), k * step + 0.0);
    }
    fprintf(f, "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (TOP + H - BOTTOM) / 2, name);
}

static bool overlap(const struct box *a, const struct box *b)
{
    return a->left < b->right && b->left < a->right && a->top < b->bottom && b->top < a->bottom;
}

static bool is_free(const struct box *b, const struct places *p)
{
    if (b->left < LEFT || b->right > W - RIGHT || b->top < TOP - LINE || b->bottom > H - BOTTOM) return false;
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

static void take_stairs(struct places *p, const rw_frontier_point *point, size_t n, double none_ms,
                        const struct scale *x, const struct scale *y)
{
    for (size_t i = 1; i < n; i++) {
        const double x0 = at(x, mib(point[i - 1].peak_bytes)), y0 = at(y, point[i - 1].ms / none_ms);
        const double x1 = at(x, mib(point[i].peak_bytes)), y1 = at(y, point[i].ms / none_ms);
        take_stretch(p, x0, y0, x1, y0);
        take_stretch(p, x1, y0, x1, y1);
    }
}

static void take_bound(struct places *p, const struct sweep_curve *c, const struct scale *x, const struct scale *y)
{
    for (size_t i = 1; c->has_bound && i < c->n; i++)
        take_stretch(p, at(x, mib(c->point[i - 1].peak_bytes)), at(y, c->point[i - 1].bound_ms / c->none_ms),
                     at(x, mib(c->point[i].peak_bytes)), at(y, c->point[i].bound_ms / c->none_ms));
}

/* A position for the text of the point (px, py) in a free area: next to it, above or below it, or further away. */
static struct box place_label(double px, double py, size_t length, const struct places *p)
{
    const double w = GLYPH * (double)length;
    for (int far = 0; far < 12; far++) {
        const double shift = LINE * ((far + 1) / 2) * (far % 2 ? -1 : 1);
        const double lefts[] = { px + 9, px - 9 - w, px - w / 2 }, tops[] = { 0, 0, far % 2 ? -LINE : LINE };
        for (int i = 0; i < 3; i++) {
            const double top = py - LINE / 2 + shift + tops[i];
            const struct box b = { lefts[i], lefts[i] + w, top, top + LINE };
            if (is_free(&b, p)) return b;
        }
    }
    const double left = fmax(LEFT, fmin(px + 9, W - RIGHT - w));
    return (struct box){ left, left + w, py - LINE / 2, py + LINE / 2 };
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

/* Draws the measured rows with their labels. */
static void points(FILE *f, const struct sweep_row *rows, int n, const struct sweep_curve *c, const struct scale *x,
                   const struct scale *y)
{
    struct places places = { .n = 0 };
    if (c->none_ms > 0) {
        take_stairs(&places, c->point, c->n, c->none_ms, x, y);
        take_stairs(&places, c->moved, c->n_moved, c->none_ms, x, y);
        take_bound(&places, c, x, y);
    }
    for (int i = 0; i < n; i++) {
        const double px = at(x, mib(rows[i].peak)), py = at(y, rows[i].ratio);
        places.taken[places.n++] = (struct box){ px - 6, px + 6, py - 6, py + 6 };
        if (c->none_ms > 0 && rows[i].predicted_ms > 0)
            take_ring(&places, at(x, mib(rows[i].predicted)), at(y, rows[i].predicted_ms / c->none_ms));
    }
    const struct box *const place = &places.taken[places.n];
    for (int i = 0; i < n; i++) { /* lines first: texts cover them */
        const double px = at(x, mib(rows[i].peak)), py = at(y, rows[i].ratio);
        places.taken[places.n] = place_label(px, py, strlen(rows[i].policy), &places);
        leader(f, px, py, &places.taken[places.n++]);
    }
    for (int i = 0; i < n; i++) {
        const struct sweep_row *const r = &rows[i];
        const double px = at(x, mib(r->peak)), py = at(y, r->ratio);
        fprintf(f, "<g><title>");
        sweep_escape(f, r->policy);
        fprintf(f, ": %.1f ms, %.3f times none; peak %.1f MiB, kept %.1f MiB; %s</title>", r->step_ms, r->ratio,
                mib(r->peak), mib(r->kept), r->identical ? "identical" : "NOT identical");
        const char *const colour = r->identical ? "--a" : "--b";
        if (strncmp(r->policy, "budget:", 7) && strncmp(r->policy, "total:", 6))
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(%s)\" />", px, py, colour);
        else fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"9\" fill=\"var(%s)\" />", px - 4.5, py - 4.5,
                     colour);
        label(f, r, px, &place[i]);
        fprintf(f, "</g>\n");
    }
}

static int by_peak(const void *a, const void *b)
{
    const struct sweep_row *const x = *(const struct sweep_row *const *)a;
    const struct sweep_row *const y = *(const struct sweep_row *const *)b;
    if (x->peak != y->peak) return x->peak < y->peak ? -1 : 1;
    return x->ratio < y->ratio ? -1 : x->ratio > y->ratio;
}

/* Connects the rows that no other beats in both memory and time. */
static void frontier(FILE *f, const struct sweep_row *rows, int n, const struct scale *x, const struct scale *y)
{
    const struct sweep_row *sorted[SWEEP_MAX];
    for (int i = 0; i < n; i++) sorted[i] = &rows[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_peak);
    fprintf(f, "<polyline class=\"frontier\" points=\"");
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        if (sorted[i]->ratio >= best) continue;
        best = sorted[i]->ratio;
        fprintf(f, "%.1f,%.1f ", at(x, mib(sorted[i]->peak)), at(y, best));
    }
    fprintf(f, "\" />\n");
}

/* A staircase, because a smaller budget uses the next plan; clipped at the top of the chart. */
static void stairs(FILE *f, const rw_frontier_point *point, size_t n, double none_ms, const struct scale *x,
                   const struct scale *y)
{
    for (size_t i = 0; i < n; i++) {
        const double px = at(x, mib(point[i].peak_bytes)), py = at(y, point[i].ms / none_ms);
        if (py < TOP) continue;
        if (i) fprintf(f, "%.1f,%.1f ", px, fmax(TOP, at(y, point[i - 1].ms / none_ms)));
        fprintf(f, "%.1f,%.1f ", px, py);
    }
}

/* The predicted frontier from the minimum memory to none, also with offload; and the lower bound without offload. */
static void curve(FILE *f, const struct sweep_curve *c, const struct scale *x, const struct scale *y)
{
    if (!c->n || c->none_ms <= 0) return;
    fprintf(f, "<polyline class=\"predicted\" points=\"");
    stairs(f, c->point, c->n, c->none_ms, x, y);
    fprintf(f, "\"><title>predicted</title></polyline>\n");
    if (c->n_moved) {
        fprintf(f, "<polyline class=\"moved\" points=\"");
        stairs(f, c->moved, c->n_moved, c->none_ms, x, y);
        fprintf(f, "\"><title>predicted with +offload</title></polyline>\n");
    }
    if (!c->has_bound) return;
    fprintf(f, "<polyline class=\"bound\" points=\"");
    for (size_t i = 0; i < c->n; i++)
        fprintf(f, "%.1f,%.1f ", at(x, mib(c->point[i].peak_bytes)), at(y, c->point[i].bound_ms / c->none_ms));
    fprintf(f, "\"><title>lower bound</title></polyline>\n");
}

/* The prediction for each row. */
static void rings(FILE *f, const struct sweep_row *rows, int n, const struct sweep_curve *c, const struct scale *x,
                  const struct scale *y)
{
    for (int i = 0; i < n && c->none_ms > 0; i++)
        if (rows[i].predicted_ms > 0)
            fprintf(f, "<circle class=\"ring\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" />\n", at(x, mib(rows[i].predicted)),
                    at(y, rows[i].predicted_ms / c->none_ms));
}

void sweep_chart_memory(FILE *f, const struct sweep_row *rows, int n, const struct sweep_curve *c, const char *style)
{
    double most = 0, slow = 1, fast = 1;
    for (size_t i = 0; i < c->n; i++)
        if (c->none_ms > 0) slow = fmax(slow, fmin(2, c->point[i].ms / c->none_ms)); /* slower ones are clipped */
    for (size_t i = 0; i < c->n_moved; i++)
        if (c->none_ms > 0) slow = fmax(slow, fmin(2, c->moved[i].ms / c->none_ms));
    if (c->none_ms > 0 && c->n) most = mib(c->point[c->n - 1].peak_bytes);
    if (c->none_ms > 0 && c->n_moved) most = fmax(most, mib(c->moved[c->n_moved - 1].peak_bytes));
    for (int i = 0; i < n; i++) {
        most = fmax(most, mib(rows[i].peak));
        slow = fmax(slow, rows[i].ratio);
        if (c->none_ms > 0) slow = fmax(slow, rows[i].predicted_ms / c->none_ms);
        fast = fmin(fast, rows[i].ratio);
    }
    const struct scale x = { 0, most * 1.25 + 1e-3, LEFT, W - RIGHT },
                       y = { fast - 0.05, slow + 0.08, H - BOTTOM, TOP };
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
               "aria-label=\"Step time against peak memory\">%s\n", W, H, style);
    x_axis(f, &x, "peak of activations, MiB", 0);
    y_axis(f, &y, "step time, times that of none");
    curve(f, c, &x, &y);
    rings(f, rows, n, c, &x, &y);
    frontier(f, rows, n, &x, &y);
    points(f, rows, n, c, &x, &y);
    fprintf(f, "</svg>\n");
}

static void loss_line(FILE *f, const struct sweep_row *r, const struct scale *x, const struct scale *y)
{
    fprintf(f, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"var(%s)\" points=\"", r->identical ? "--a" : "--b");
    for (int s = 0; s < r->outcome.steps; s++)
        if (isfinite(r->outcome.losses[s])) fprintf(f, "%.1f,%.1f ", at(x, s), at(y, r->outcome.losses[s]));
    fprintf(f, "\"><title>");
    sweep_escape(f, r->identical ? "every identical row" : r->policy);
    fprintf(f, "</title></polyline>\n");
}

void sweep_chart_loss(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < rows[i].outcome.steps; s++) {
            if (!isfinite(rows[i].outcome.losses[s])) continue;
            lo = fmin(lo, rows[i].outcome.losses[s]);
            hi = fmax(hi, rows[i].outcome.losses[s]);
        }
    if (lo > hi) lo = hi = 0; /* no finite loss at all */
    const double air = (hi - lo) * 0.08 + 1e-6;
    const struct scale x = { 0, rows[0].outcome.steps - 1, LEFT, W - RIGHT },
                       y = { lo - air, hi + air, H - BOTTOM, TOP };
    fprintf(f, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"Loss against step\">\n", W, H);
    x_axis(f, &x, "step", 1);
    y_axis(f, &y, model_is_of_images(o->model.kind) ? "loss" : "loss, nats per byte");
    bool drawn = false;
    for (int i = 0; i < n; i++) {
        if (rows[i].identical && drawn) continue;
        drawn |= rows[i].identical;
        loss_line(f, &rows[i], &x, &y);
    }
    fprintf(f, "</svg>\n");
}
