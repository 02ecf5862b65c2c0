/* Draws the charts of the dashboard as SVG. */
#include "chart.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* As wide as on a phone, so that text is not scaled down much there. */
enum { WIDTH = 420, HEIGHT = 236, LEFT = 68, RIGHT = 16, TOP = 34, BOTTOM = 42, BUCKETS_MAX = 500 };
enum { AVERAGES = 50, REACH_MIN = 3 }; /* a moving average reaches over a 50th of all buckets to each side, or over 3 */

struct chart {
    FILE *f;
    const struct chart_kind *kind;
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
        const double x = number_of(&points->p[i], c->kind->offset);
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
    fprintf(c->f, "<text class='name' x='8' y='20'>%s<tspan class='unit'>%s%s</tspan></text>\n", c->kind->name,
            *c->kind->unit ? ", " : "", c->kind->unit);
    for (double k = ceil(c->low / up - 1e-9); k * up <= c->high + up * 1e-9; k++) {
        fprintf(c->f, "<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' class='up'>", LEFT, y_of(c, k * up),
                WIDTH - RIGHT, LEFT - 7, y_of(c, k * up) + 4);
        put_label(c->f, k * up, up, largest);
        fprintf(c->f, "</text>\n");
    }
    for (double x = 0; x <= c->steps + along * 1e-9; x += along)
        fprintf(c->f, "<text x='%.1f' y='%d' class='along'>%.0f</text>\n", x_of(c, x), HEIGHT - BOTTOM + 17, x);
    fprintf(c->f, "<text class='unit middle' x='%d' y='%d'>step</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6);
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
        if (isinf(number_of(&points->p[i], c->kind->offset))) return true;
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
        const double x = number_of(&points->p[i], c->kind->offset);
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

/* ---- moving average ---- */

/* Buckets on each side of a moving average; 0: too few points to need one. */
static size_t reach_of(const struct dashboard_points *points)
{
    const size_t n = (points->n + chart_bucket(points) - 1) / chart_bucket(points);
    return n < AVERAGES ? 0 : n / AVERAGES > REACH_MIN ? n / AVERAGES : REACH_MIN;
}

size_t chart_average(const struct dashboard_points *points)
{
    return reach_of(points) ? (2 * reach_of(points) + 1) * chart_bucket(points) : 0;
}

/* The mean of the buckets on both sides, or those that exist: an average of earlier ones alone would lag. */
static void draw_average(const struct chart *c, const struct dashboard_points *points, const char *class)
{
    struct bucket all[BUCKETS_MAX];
    const size_t each = chart_bucket(points), reach = reach_of(points);
    size_t n = 0;
    bool open = false;
    if (!reach || !c->kind->is_noisy) return;
    for (size_t i = 0; i < points->n; i += each) all[n++] = take_bucket(c, points, i);
    fprintf(c->f, "<path class='average %s' d='", class);
    for (size_t i = 0; i < n; i++) {
        double sum = 0, count = 0;
        for (size_t k = i > reach ? i - reach : 0; k <= i + reach && k < n; k++)
            if (is_drawn(&all[k])) sum += all[k].mean, count++;
        const bool drawn = is_drawn(&all[i]);
        if (drawn) fprintf(c->f, "%c%.1f %.1f", open ? 'L' : 'M', x_of(c, all[i].step), y_of(c, sum / count));
        open = drawn;
    }
    fprintf(c->f, "'/>\n");
}

/* ---- marks ---- */

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

/* Whether the alert is about the numbers of this chart. Those of FP8 data have a table. */
static bool is_about(const struct chart *c, const char *alert)
{
    static const struct {
        unsigned alerts;
        size_t offset;
    } about[] = {
        { RW_ALERT_LOSS_NONFINITE | RW_ALERT_LOSS_SPIKE | RW_ALERT_PLATEAU, offsetof(struct dashboard_point, loss) },
        { RW_ALERT_GRAD_NONFINITE | RW_ALERT_GRAD_SPIKE | RW_ALERT_ZEROS, offsetof(struct dashboard_point, norm) },
        { RW_ALERT_SLOW_STEP, offsetof(struct dashboard_point, tokens_per_s) },
        { RW_ALERT_UPDATES, offsetof(struct dashboard_point, change) },
        { RW_ALERT_SCALE_DROP | RW_ALERT_SCALE_RISE | RW_ALERT_SKIPS, offsetof(struct dashboard_point, scale) },
    };
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        for (unsigned a = 1; a && about[i].offset == c->kind->offset; a <<= 1)
            if ((about[i].alerts & a) && !strcmp(alert, rw_alert_name(a))) return true;
    return false;
}

/* Alerts that would be drawn onto each other are drawn once. */
static void draw_events(const struct chart *c, const struct dashboard *d)
{
    double last = -1;
    for (size_t i = 0; i < d->n_events; i++) {
        const struct dashboard_event *const e = &d->event[i];
        const double x = x_of(c, e->step);
        if (!*e->alert) {
            fprintf(c->f, "<path class='event' d='M%.1f %dV%d'/>\n", x, TOP, HEIGHT - BOTTOM);
        } else if (is_about(c, e->alert) && !(fabs(x - last) < 1)) {
            fprintf(c->f, "<path class='tick' d='M%.1f %dv-7'/>\n", x, HEIGHT - BOTTOM);
            last = x;
        }
    }
}

/* ---- numbers under the pointer ---- */

static void put_numbers(const struct chart *c, const struct dashboard_points *points, const char *name)
{
    fprintf(c->f, " data-%s='", name);
    for (size_t i = 0; i < points->n; i += chart_bucket(points)) {
        const struct bucket b = take_bucket(c, points, i);
        if (b.broken) fprintf(c->f, "%.0f:- ", b.step);
        else if (isfinite(b.mean)) fprintf(c->f, "%.0f:%.6g ", b.step, b.mean);
    }
    fprintf(c->f, "'");
}

void chart_script(FILE *f)
{
    fprintf(f, "<script>\nconst left=%d,right=%d,top_=%d,bottom=%d\n", LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
    fputs("const read=t=>(t||'').trim().split(' ').filter(Boolean).map(p=>p.split(':'))\n"
          "const nearest=(points,step)=>points.reduce((a,b)=>Math.abs(b[0]-step)<Math.abs(a[0]-step)?b:a,points[0])\n"
          "const said=p=>p[1]==='-'?'not finite':+(+p[1]).toPrecision(5)\n"
          "const charts=[...document.querySelectorAll('svg[data-steps]')].map(svg=>{\n"
          " const add=(tag,attributes)=>{const e=document.createElementNS(svg.namespaceURI,tag)\n"
          "  for(const k in attributes)e.setAttribute(k,attributes[k]);svg.append(e);return e}\n"
          " return{svg,steps:+svg.dataset.steps,run:read(svg.dataset.run),good:read(svg.dataset.good),\n"
          "  line:add('path',{class:'cursor'}),text:add('text',{class:'value',x:right,y:20})}})\n"
          "function show(step){for(const c of charts){const p=c.run.length?nearest(c.run,step):null\n"
          " const at=p&&left+(right-left)*p[0]/c.steps\n"
          " c.line.setAttribute('d',p?`M${at} ${top_}V${bottom}`:'')\n"
          " const good=p&&c.good.length?nearest(c.good,+p[0]):null\n"
          " c.text.textContent=p?`step ${p[0]}: ${said(p)}${good?', good '+said(good):''}`:''}}\n"
          "function hide(){for(const c of charts){c.line.setAttribute('d','');c.text.textContent=''}}\n"
          "for(const c of charts){const move=e=>{const b=c.svg.getBoundingClientRect()\n"
          "  const x=(e.clientX-b.left)/b.width*c.svg.viewBox.baseVal.width\n"
          "  show((x-left)/(right-left)*c.steps)}\n"
          " c.svg.addEventListener('pointermove',move);c.svg.addEventListener('pointerdown',move)\n"
          " c.svg.addEventListener('pointerleave',hide)}\n</script>\n", f);
}

void chart_draw(FILE *f, const struct dashboard *d, const struct chart_kind *kind)
{
    struct chart c = { .f = f, .kind = kind, .low = NAN, .high = NAN, .steps = d->steps };
    const bool loss = kind->offset == offsetof(struct dashboard_point, loss);
    widen(&c, &d->run);
    widen(&c, &d->good);
    if (loss) widen(&c, &d->validation);
    if (!(c.high >= c.low) && is_broken(&c, &d->run)) c.low = c.high = 0; /* crosses only */
    if (!(c.high >= c.low)) return; /* no number is known */
    const double margin = c.high > c.low ? 0.05 * (c.high - c.low) : fabs(c.high) > 0 ? 0.1 * fabs(c.high) : 1;
    c.low -= margin;
    c.high += margin;
    if (!(c.steps > 0)) c.steps = 1;
    fprintf(f, "<svg viewBox='0 0 %d %d' role='img' data-steps='%.0f'", WIDTH, HEIGHT, c.steps);
    put_numbers(&c, &d->run, "run");
    put_numbers(&c, &d->good, "good");
    fprintf(f, " aria-label='%s'>\n", kind->name);
    draw_axes(&c);
    draw_events(&c, d);
    draw_band(&c, &d->good, "good");
    draw_band(&c, &d->run, "run");
    fprintf(f, "<g%s>\n", kind->is_noisy && reach_of(&d->run) ? " class='faint'" : "");
    draw_line(&c, &d->good, "good");
    draw_line(&c, &d->run, "run");
    fprintf(f, "</g>\n");
    draw_average(&c, &d->good, "of-good");
    draw_average(&c, &d->run, "of-run");
    draw_marks(&c, &d->run);
    if (loss) draw_validation(&c, &d->validation);
    fprintf(f, "</svg>\n");
}
