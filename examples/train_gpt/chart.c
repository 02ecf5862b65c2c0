/* Draws the charts of the dashboard as SVG. */
#include "chart.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 240, LEFT = 66, RIGHT = 26, TOP = 34, BOTTOM = 34, BUCKETS_MAX = 500 };

struct chart {
    FILE *f;
    const char *name;
    size_t offset; /* offset of the number in a point */
    double low, high, steps;
};

/* Points that are drawn as one. */
struct bucket {
    double step, mean, least, largest; /* NaN: unknown */
    bool broken;                       /* a number is not finite */
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
        if (points->p[i].step > c->steps) c->steps = points->p[i].step;
        if (!isfinite(x)) continue;
        if (!(c->low <= x)) c->low = x;
        if (!(c->high >= x)) c->high = x;
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

/* ---- axes ---- */

/* A step of 1, 2 or 5 times a power of ten, for about four lines. */
static double stride_of(double range)
{
    const double rough = range / 4, power = pow(10, floor(log10(rough))), lead = rough / power;
    return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

/* As many digits as needed to distinguish two adjacent lines; long numbers have an exponent. */
static void put_label(FILE *f, double x, double stride, double largest)
{
    const double tail = floor(log10(stride) + 1e-9), lead = floor(log10(largest) + 1e-9);
    if (fabs(x) < stride * 1e-6) fprintf(f, "0");
    else if (lead > 5 || (tail < -4 && lead < -1)) fprintf(f, "%.*e", lead > tail ? (int)(lead - tail) : 0, x);
    else fprintf(f, "%.*f", tail < 0 ? (int)-tail : 0, x);
}

static void draw_axes(const struct chart *c)
{
    const double up = stride_of(c->high - c->low), along = fmax(1, stride_of(c->steps));
    const double largest = fmax(fabs(c->low), fabs(c->high));
    fprintf(c->f, "<text class='name' x='%d' y='20'>%s</text>\n", LEFT, c->name);
    for (double k = ceil(c->low / up - 1e-9); k * up <= c->high + up * 1e-9; k++) {
        fprintf(c->f, "<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' class='up'>", LEFT, y_of(c, k * up),
                WIDTH - RIGHT, LEFT - 7, y_of(c, k * up) + 4);
        put_label(c->f, k * up, up, largest);
        fprintf(c->f, "</text>\n");
    }
    for (double x = 0; x <= c->steps + along * 1e-9; x += along)
        fprintf(c->f, "<text x='%.1f' y='%d' class='along'>%.0f</text>\n", x_of(c, x), HEIGHT - BOTTOM + 18, x);
}

/* ---- lines ---- */

size_t chart_bucket(const struct dashboard_points *points)
{
    return points->n ? (points->n + BUCKETS_MAX - 1) / BUCKETS_MAX : 1;
}

bool chart_has_gaps(const struct dashboard_points *points)
{
    for (size_t i = 0; i < points->n; i++)
        if (isinf(points->p[i].loss) || isinf(points->p[i].norm)) return true;
    return false;
}

static bool is_broken(const struct chart *c, const struct dashboard_points *points)
{
    for (size_t i = 0; i < points->n; i++)
        if (isinf(number_of(&points->p[i], c->offset))) return true;
    return false;
}

/* Combines the points from `first` on into one bucket. */
static struct bucket take_bucket(const struct chart *c, const struct dashboard_points *points, size_t first)
{
    const size_t end = first + chart_bucket(points) < points->n ? first + chart_bucket(points) : points->n;
    struct bucket b = { .mean = NAN, .least = NAN, .largest = NAN };
    double sum = 0;
    int n = 0;
    for (size_t i = first; i < end; i++) {
        const double x = number_of(&points->p[i], c->offset);
        b.step += points->p[i].step / (double)(end - first);
        b.broken |= isinf(x);
        if (!isfinite(x)) continue;
        if (!(b.least <= x)) b.least = x;
        if (!(b.largest >= x)) b.largest = x;
        sum += x;
        n++;
    }
    if (n) b.mean = sum / n;
    return b;
}

static bool is_drawn(const struct bucket *b)
{
    return !b->broken && isfinite(b->mean);
}

/* One closed shape for each run of buckets without a gap: along the maxima, and back along the minima. */
static void draw_band(const struct chart *c, const struct dashboard_points *points, const char *class)
{
    const size_t each = chart_bucket(points);
    if (each == 1) return;
    fprintf(c->f, "<path class='band of-%s' d='", class);
    for (size_t i = 0; i < points->n;) {
        size_t end = i;
        for (struct bucket b; end < points->n; end += each) {
            b = take_bucket(c, points, end);
            if (!is_drawn(&b)) break;
            fprintf(c->f, "%c%.1f %.1f", end == i ? 'M' : 'L', x_of(c, b.step), y_of(c, b.largest));
        }
        for (size_t k = end; k > i; k -= each) {
            const struct bucket b = take_bucket(c, points, k - each);
            fprintf(c->f, "L%.1f %.1f", x_of(c, b.step), y_of(c, b.least));
        }
        if (end > i) fprintf(c->f, "Z");
        i = end > i ? end : end + each;
    }
    fprintf(c->f, "'/>\n");
}

/* A bucket between two gaps is a dot: a line of length zero with round ends. */
static void draw_line(const struct chart *c, const struct dashboard_points *points, const char *class)
{
    const size_t each = chart_bucket(points);
    bool open = false;
    fprintf(c->f, "<path class='%s' d='", class);
    for (size_t i = 0; i < points->n; i += each) {
        const struct bucket b = take_bucket(c, points, i);
        const bool drawn = is_drawn(&b);
        if (drawn)
            fprintf(c->f, "%c%.1f %.1f%s", open ? 'L' : 'M', x_of(c, b.step), y_of(c, b.mean), open ? "" : "h0");
        open = drawn;
    }
    fprintf(c->f, "'/>\n");
}

static void draw_marks(const struct chart *c, const struct dashboard_points *points)
{
    for (size_t i = 0; i < points->n; i += chart_bucket(points)) {
        const struct bucket b = take_bucket(c, points, i);
        if (b.broken)
            fprintf(c->f, "<path class='mark' d='M%.1f %dl6 6m0 -6l-6 6'/>\n", x_of(c, b.step) - 3, TOP);
    }
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

/* A slow step is visible in the chart of speed; FP8 data have a table, and would have too many alerts for a chart. */
static void draw_events(const struct chart *c, const struct dashboard *d)
{
    const bool speed = c->offset == offsetof(struct dashboard_point, tokens_per_s);
    for (size_t i = 0; i < d->n_events; i++) {
        bool codes = false;
        for (unsigned a = RW_ALERT_SITE_SCALE_DROP; a <= RW_ALERT_FLUSHED; a <<= 1)
            codes |= begins(d->event[i].text, a);
        codes &= !strstr(d->event[i].text, "→"); /* the action that was taken */
        if (!codes && speed == begins(d->event[i].text, RW_ALERT_SLOW_STEP))
            fprintf(c->f, "<path class='event' d='M%.1f %dV%d'/>\n", x_of(c, d->event[i].step), TOP,
                    HEIGHT - BOTTOM);
    }
}

void chart_draw(FILE *f, const struct dashboard *d, const char *name, size_t offset)
{
    struct chart c = { .f = f, .name = name, .offset = offset, .low = NAN, .high = NAN, .steps = d->steps };
    const bool loss = offset == offsetof(struct dashboard_point, loss);
    widen(&c, &d->run);
    widen(&c, &d->good);
    if (loss) widen(&c, &d->validation);
    if (!(c.high >= c.low) && is_broken(&c, &d->run)) c.low = c.high = 0; /* crosses only */
    if (!(c.high >= c.low)) return; /* no number is known */
    const double margin = c.high > c.low ? 0.05 * (c.high - c.low) : fabs(c.high) > 0 ? 0.1 * fabs(c.high) : 1;
    c.low -= margin;
    c.high += margin;
    if (!(c.steps > 0)) c.steps = 1;
    fprintf(f, "<svg viewBox='0 0 %d %d' role='img' aria-label='%s'>\n", WIDTH, HEIGHT, name);
    draw_axes(&c);
    draw_events(&c, d);
    draw_band(&c, &d->good, "good");
    draw_band(&c, &d->run, "run");
    draw_line(&c, &d->good, "good");
    draw_line(&c, &d->run, "run");
    draw_marks(&c, &d->run);
    if (loss) draw_validation(&c, &d->validation);
    fprintf(f, "</svg>\n");
}
