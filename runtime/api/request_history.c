/* Logs of current steps, and entries of past ones. */
#include "api/request_history.h"

#include "base/alloc.h"

#include <string.h>

/* ---- memory ---- */

static void finish_entry(struct rw_expected *e)
{
    rw_free(e->roots);
    rw_free(e->reads);
    rw_free(e->points);
    *e = (struct rw_expected){ 0 };
}

static void destroy_history(rw_context *ctx, void *state)
{
    struct rw_history *const h = state;
    for (size_t i = 0; i < h->n; i++) finish_entry(&h->entries[i]);
}

static void destroy_log(rw_context *ctx, void *state)
{
    struct rw_log *const log = state;
    rw_free(log->reads);
    rw_free(log->is_read);
    rw_free(log->points);
    rw_free(log->roots);
}

static struct rw_extension history_extension = { .name = "history", .size = sizeof(struct rw_history),
                                                 .destroy = destroy_history };
static struct rw_extension log_extension = { .name = "log", .size = sizeof(struct rw_log), .destroy = destroy_log };

struct rw_history *rw_history_of(const rw_context *ctx)
{
    return rw_extension_find(&ctx->extensions, &history_extension);
}

static struct rw_log *log_of(const rw_tape *t)
{
    return rw_extension_find(&t->extensions, &log_extension);
}

bool rw_log_has_backward(const rw_tape *t)
{
    const struct rw_log *const log = log_of(t);
    return log && log->n_roots;
}

static struct rw_log *make_log(rw_tape *t)
{
    return rw_extension_make(&t->extensions, &log_extension);
}

/* ---- the log of a step ---- */

/* Adds a value; values above RW_HISTORY_MAX are left out. False without memory. */
static bool add(uint32_t **values, size_t *cap, size_t *n, uint32_t value)
{
    if (*n == RW_HISTORY_MAX) return true;
    if (!rw_grow(values, cap, *n, 1, sizeof **values)) return false;
    (*values)[(*n)++] = value;
    return true;
}

static rw_status no_memory(const rw_tape *t)
{
    return rw_fail(t->ctx, RW_ERR_MEMORY, "reading values: out of memory");
}

static bool add_read(struct rw_log *log, uint32_t base)
{
    const size_t had = log->cap_is_read;
    if (!rw_grow(&log->is_read, &log->cap_is_read, base, 1, sizeof *log->is_read)) return false;
    for (size_t v = had; v < log->cap_is_read; v++) log->is_read[v] = false;
    if (log->is_read[base]) return true;
    const size_t n = log->n_reads;
    if (!add(&log->reads, &log->cap_reads, &log->n_reads, base)) return false;
    log->is_read[base] = log->n_reads > n;
    return true;
}

static bool add_point(struct rw_log *log)
{
    if (log->n_roots || log->n_points == RW_HISTORY_MAX) return true;
    if (log->n_points && rw_point_is_same(&log->points[log->n_points - 1], &log->last)) return true;
    if (!rw_grow(&log->points, &log->cap_points, log->n_points, 1, sizeof *log->points)) return false;
    log->points[log->n_points++] = log->last;
    return true;
}

rw_status rw_log_read(rw_tape *t, uint32_t base, bool at_point)
{
    struct rw_log *const log = make_log(t);
    if (!log) return no_memory(t);
    log->last = rw_tape_point(t);
    if (base != RW_NONE_ID && !add_read(log, base)) return no_memory(t);
    return !at_point || add_point(log) ? RW_OK : no_memory(t);
}

rw_status rw_log_backward(rw_tape *t, uint32_t root, bool seeded)
{
    struct rw_log *const log = make_log(t);
    if (!log) return no_memory(t);
    if (log->n_roots && (root >= log->n_values || seeded != log->seeded)) return RW_OK;
    if (!add(&log->roots, &log->cap_roots, &log->n_roots, root)) return no_memory(t);
    if (log->n_roots > 1) return RW_OK;
    log->ahead = (struct rw_ahead){ rw_tape_point(t), t->n_effects, rw_context_holds(t->ctx) };
    log->n_values = (uint32_t)t->n_values;
    log->seeded = seeded;
    return RW_OK;
}

/* ---- entries ---- */

static struct rw_expected *find_at(struct rw_history *h, const struct rw_tape_point *at)
{
    for (size_t i = 0; i < h->n; i++)
        if (rw_point_is_same(&h->entries[i].ahead.at, at)) return &h->entries[i];
    return NULL;
}

static bool passes(const struct rw_expected *e, const struct rw_tape_point *at)
{
    bool is_same = rw_point_is_same(&e->ahead.at, at);
    for (size_t i = 0; !is_same && i < e->n_points; i++) is_same = rw_point_is_same(&e->points[i], at);
    return is_same;
}

struct rw_expected *rw_history_find(rw_tape *t)
{
    struct rw_history *const h = rw_history_of(t->ctx);
    const struct rw_tape_point at = rw_tape_point(t);
    struct rw_expected *found = NULL;
    for (size_t i = 0; h && i < h->n; i++) {
        struct rw_expected *const e = &h->entries[i];
        if ((!found || e->used > found->used) && passes(e, &at)) found = e;
    }
    return found;
}

/* Finds the entry of a structure, or takes a free one or the least recently used one. */
static struct rw_expected *take_entry(rw_context *ctx, const struct rw_ahead *ahead)
{
    struct rw_history *const h = rw_extension_make(&ctx->extensions, &history_extension);
    if (!h) return NULL;
    struct rw_expected *e = find_at(h, &ahead->at);
    if (!e && h->n < RW_HISTORY_STEPS) e = &h->entries[h->n++];
    for (size_t i = 0; !e && i < h->n; i++) {
        struct rw_expected *const other = &h->entries[i];
        bool is_oldest = true;
        for (size_t k = 0; k < h->n; k++) is_oldest &= h->entries[k].used >= other->used;
        if (is_oldest) finish_entry(e = other);
    }
    e->ahead = *ahead;
    e->used = ++h->clock;
    e->steps++;
    return e;
}

/* place: its usual place among the reads of the last step. */
static void note_read(struct rw_expected *e, uint32_t value, size_t place)
{
    size_t i = place < e->n_reads && e->reads[place].value == value ? place : 0;
    while (i < e->n_reads && e->reads[i].value != value) i++;
    if (i < e->n_reads) e->reads[i].step = e->steps;
    else if (e->n_reads < RW_HISTORY_MAX && rw_grow(&e->reads, &e->cap_reads, e->n_reads, 1, sizeof *e->reads))
        e->reads[e->n_reads++] = (struct rw_expected_read){ value, e->steps };
}

static bool has_point(const struct rw_expected *e, const struct rw_tape_point *at)
{
    for (size_t i = 0; i < e->n_points; i++)
        if (rw_point_is_same(&e->points[i], at)) return true;
    return false;
}

/* Points of earlier steps stay: a program may read at another place only every few steps. */
static void note_points(struct rw_expected *e, const struct rw_log *log)
{
    for (size_t i = 0; i < log->n_points && e->n_points < RW_HISTORY_MAX; i++) {
        const bool is_where_it_was = i < e->n_points && rw_point_is_same(&e->points[i], &log->points[i]);
        if (is_where_it_was || has_point(e, &log->points[i])) continue;
        if (rw_grow(&e->points, &e->cap_points, e->n_points, 1, sizeof *e->points))
            e->points[e->n_points++] = log->points[i];
    }
}

static void copy_roots(struct rw_expected *e, const struct rw_log *log)
{
    e->n_roots = 0;
    if (!log->n_roots || !rw_grow(&e->roots, &e->cap_roots, 0, log->n_roots, sizeof *e->roots)) return;
    memcpy(e->roots, log->roots, log->n_roots * sizeof *e->roots);
    e->n_roots = log->n_roots;
}

/* Moves the log into the entry of its structure. */
void rw_history_end_step(rw_tape *t, struct rw_expected **ret_entry)
{
    struct rw_log *const log = log_of(t);
    *ret_entry = NULL;
    if (!log || (!log->n_reads && !log->n_points && !log->n_roots)) return;
    const struct rw_ahead ahead = log->n_roots ? log->ahead : (struct rw_ahead){ .at = log->last };
    const uint32_t n_values = log->n_roots ? log->n_values : (uint32_t)t->n_values;
    struct rw_expected *const e = take_entry(t->ctx, &ahead);
    for (size_t i = 0; e && i < log->n_reads; i++)
        if (log->reads[i] < n_values) note_read(e, log->reads[i], i); /* others are recorded after the step's plan */
    if (e) {
        note_points(e, log);
        copy_roots(e, log);
        e->seeded = log->seeded;
    }
    for (size_t i = 0; i < log->n_reads; i++) log->is_read[log->reads[i]] = false;
    log->n_reads = log->n_points = log->n_roots = 0;
    *ret_entry = e;
}

static bool is_expected(const struct rw_expected *e, const struct rw_expected_read *read, bool all)
{
    return all || e->steps - read->step < RW_HISTORY_AGE;
}

size_t rw_expected_values(const struct rw_expected *e, bool all, uint32_t *values)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_reads; i++)
        if (is_expected(e, &e->reads[i], all)) values[n++] = e->reads[i].value;
    return n;
}

bool rw_expected_has(const struct rw_expected *e, uint32_t base, bool all)
{
    for (size_t i = 0; i < e->n_reads; i++)
        if (e->reads[i].value == base) return is_expected(e, &e->reads[i], all);
    return false;
}
