/* rw_monitor: see rewind/monitor.h. What is judged, then what is written. */
#include <rewind/monitor.h>

#include "base/alloc.h"
#include "record/context.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WINDOW 100
#define ENOUGH 20 /* numbers, before a median says anything */
#define LINE 2048

/* The last numbers of a kind. */
struct window {
    double x[WINDOW];
    size_t n; /* taken in so far */
};

struct rw_monitor {
    rw_context *ctx;
    char *path;
    int fd; /* -1: none */
    struct window loss, norm, seconds;
    double last; /* when the last call came; 0: there was none */
};

static const char *const alert_names[] = { "loss_nonfinite", "loss_spike", "grad_nonfinite", "grad_spike",
                                           "slow_step" };
#define ALERTS (sizeof alert_names / sizeof *alert_names)

const char *rw_alert_name(unsigned alert)
{
    for (size_t i = 0; i < ALERTS; i++)
        if (alert == 1u << i) return alert_names[i];
    return "?";
}

/* ---- medians ---- */

static size_t size_of(const struct window *w)
{
    return w->n < WINDOW ? w->n : WINDOW;
}

static void add(struct window *w, double x)
{
    w->x[w->n++ % WINDOW] = x;
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *x, size_t n)
{
    qsort(x, n, sizeof *x, rising);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static double median(const struct window *w)
{
    double x[WINDOW];
    memcpy(x, w->x, sizeof x);
    return median_of(x, size_of(w));
}

/* Of the distances from the median. */
static double deviation(const struct window *w, double middle)
{
    double x[WINDOW];
    for (size_t i = 0; i < size_of(w); i++) x[i] = fabs(w->x[i] - middle);
    return median_of(x, size_of(w));
}

/* ---- alerts ---- */

static unsigned judge_loss(struct window *w, double loss)
{
    if (!isfinite(loss)) return RW_ALERT_LOSS_NONFINITE;
    const double middle = w->n < ENOUGH ? 0 : median(w);
    const bool spike = w->n >= ENOUGH && loss > 2 * middle && loss > middle + 10 * deviation(w, middle);
    add(w, loss);
    return spike ? RW_ALERT_LOSS_SPIKE : 0;
}

static unsigned judge_norm(struct window *w, double norm)
{
    if (!isfinite(norm)) return RW_ALERT_GRAD_NONFINITE;
    const bool spike = w->n >= ENOUGH && norm > 10 * median(w);
    add(w, norm);
    return spike ? RW_ALERT_GRAD_SPIKE : 0;
}

static unsigned judge_time(struct window *w, double seconds)
{
    const bool slow = w->n >= ENOUGH && seconds > 1.2 * median(w);
    add(w, seconds);
    return slow ? RW_ALERT_SLOW_STEP : 0;
}

/* ---- a line ---- */

struct line {
    char text[LINE];
    size_t n;
    bool nonfinite;
};

/* A line has room for all that is ever put there. */
static void put(struct line *l, const char *fmt, ...) RW_PRINTF(2, 3);

static void put(struct line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(l->text + l->n, sizeof l->text - l->n, fmt, args);
    va_end(args);
    assert(n >= 0 && l->n + (size_t)n < sizeof l->text);
    l->n += (size_t)n;
}

/* With a point, whatever the locale says. */
static void put_number(struct line *l, const char *name, double x)
{
    char text[40] = "null";
    l->nonfinite |= !isfinite(x);
    if (isfinite(x)) snprintf(text, sizeof text, "%.9g", x);
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.';
    put(l, ",\"%s\":%s", name, text);
}

static void put_memory(struct line *l, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    put(l, ",\"memory\":{\"parameters\":%zu,\"gradients\":%zu,\"optimizer\":%zu,\"inputs\":%zu,\"results\":%zu",
        m.parameters, m.gradients, m.optimizer, m.inputs, m.results);
    put(l, ",\"kept\":%zu,\"replayed\":%zu,\"workspace\":%zu,\"predicted_peak\":%zu,\"peak\":%zu,\"arenas\":%zu",
        m.kept, m.replayed, m.workspace, m.predicted_peak, m.measured_peak, m.arenas);
    put(l, ",\"host\":%zu,\"files\":%zu,\"device\":%zu}", m.host, m.files, m.device);
}

static void put_alerts(struct line *l, unsigned alerts)
{
    const char *comma = "";
    put(l, ",\"alerts\":[");
    for (size_t i = 0; i < ALERTS; i++) {
        if (!(alerts >> i & 1)) continue;
        put(l, "%s\"%s\"", comma, alert_names[i]);
        comma = ",";
    }
    put(l, "]}\n");
}

static void make_line(struct line *l, const rw_monitor *m, const rw_monitor_values *v, double norm, double seconds,
                      unsigned alerts)
{
    *l = (struct line){ .n = 0 };
    put(l, "{\"step\":%" PRIu64, v->step);
    put_number(l, "loss", v->loss);
    if (v->grad_norm != 0) put_number(l, "grad_norm", norm);
    if (v->lr != 0) put_number(l, "lr", v->lr);
    if (v->tokens > 0 && seconds > 0) put_number(l, "tokens_per_s", v->tokens / seconds);
    if (seconds > 0) put_number(l, "step_ms", 1e3 * seconds);
    if (l->nonfinite) put(l, ",\"nonfinite\":true");
    put_memory(l, m->ctx);
    put_alerts(l, alerts);
}

/* One write(), so that who reads meanwhile, or a process that ends, sees whole lines. */
static rw_status write_line(rw_monitor *m, const struct line *l)
{
    const ssize_t n = m->fd < 0 ? (ssize_t)l->n : write(m->fd, l->text, l->n);
    if (n == (ssize_t)l->n) return RW_OK;
    return rw_fail(m->ctx, RW_ERR_IO, "rw_monitor_step: %s: %s", m->path, n < 0 ? strerror(errno) : "the disk is full");
}

/* ---- the calls ---- */

rw_status rw_monitor_create(rw_monitor **ret, rw_context *ctx, const char *path)
{
    if (!ret || !ctx) return rw_fail_null(ctx, "rw_monitor_create", ctx ? "ret_monitor" : "ctx");
    if (ctx->status) return ctx->status;
    rw_monitor *m = rw_calloc(1, sizeof *m);
    if (!m || (path && !(m->path = rw_strdup(path)))) {
        rw_free(m);
        return rw_fail(ctx, RW_ERR_MEMORY, "rw_monitor_create: out of memory");
    }
    m->ctx = ctx;
    m->fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    ctx->n_users++;
    if (path && m->fd < 0) {
        rw_fail(ctx, RW_ERR_IO, "rw_monitor_create: %s: %s", path, strerror(errno));
        rw_monitor_destroy(&m);
        return RW_ERR_IO;
    }
    *ret = m;
    return RW_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

rw_status rw_monitor_step(rw_monitor *m, const rw_monitor_values *v, unsigned *ret_alerts)
{
    if (!m) return RW_ERR_ARGUMENT;
    if (!v) return rw_fail_null(m->ctx, "rw_monitor_step", "values");
    const double time = now(), since = m->last > 0 ? time - m->last : 0;
    const double seconds = v->seconds > 0 ? v->seconds : since, norm = v->grad_norm < 0 ? 0 : v->grad_norm;
    unsigned alerts = judge_loss(&m->loss, v->loss);
    if (v->grad_norm != 0) alerts |= judge_norm(&m->norm, norm);
    if (seconds > 0) alerts |= judge_time(&m->seconds, seconds);
    m->last = time;
    struct line line;
    make_line(&line, m, v, norm, seconds, alerts);
    if (ret_alerts) *ret_alerts = alerts;
    return write_line(m, &line);
}

void rw_monitor_destroy(rw_monitor **pm)
{
    if (!pm || !*pm) return;
    rw_monitor *const m = *pm;
    rw_context *const ctx = m->ctx;
    *pm = NULL;
    if (m->fd >= 0) close(m->fd);
    rw_free(m->path);
    rw_free(m);
    rw_context_release(ctx);
}
