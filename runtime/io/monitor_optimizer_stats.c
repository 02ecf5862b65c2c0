/* Reads the sums that updates and clipping compute per parameter, and adds them by group. */
#include "io/monitor_optimizer_stats.h"

#include "api/clip_grad_norm.h"
#include "base/alloc.h"
#include "base/utf8.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

static rw_status check_group(rw_context *ctx, const rw_monitor_group *g)
{
    const char *fault = NULL;
    if (!g->name || !*g->name || !g->pattern)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(groups): expected a group's name or pattern, got none");
    if (strlen(g->name) >= RW_WATCHED_NAME) fault = "at most 60 bytes, got more";
    if (!rw_utf8_is_text(g->name)) fault = "UTF-8, got other bytes";
    for (const char *c = g->name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\')
            fault = "text without control characters, quotes and backslashes, got one";
    if (!fault) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(groups): name \"%.60s\": expected %s", g->name, fault);
}

/* Each group is a series of its own in the files, which readers tell apart by its name. */
static rw_status check_groups(rw_context *ctx, const rw_monitor_sources *s)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < s->n_groups; i++) {
        status = check_group(ctx, &s->groups[i]);
        for (size_t k = 0; !status && k < i; k++)
            if (!strcmp(s->groups[k].name, s->groups[i].name))
                status = rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(groups): expected a name for each group, got "
                                 "\"%s\" for groups %zu and %zu", s->groups[i].name, k, i);
    }
    return status;
}

static rw_status check(rw_context *ctx, const rw_monitor_sources *s)
{
    if (!(s->peak_flops >= 0) || isinf(s->peak_flops))
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(peak_flops): expected a finite number of 0 or "
                       "more, got %g", s->peak_flops);
    if (s->optimizer && rw_optimizer_context(s->optimizer) != ctx)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(optimizer): expected one of the monitor's "
                       "context, got an optimizer of another context");
    if (s->n_groups > RW_WATCHED_GROUPS)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_monitor_watch(n_groups): expected at most %d, got %zu",
                       RW_WATCHED_GROUPS, s->n_groups);
    if (s->n_groups && (!s->groups || !s->optimizer))
        return rw_fail_null(ctx, "rw_monitor_watch", s->groups ? "optimizer" : "groups");
    return check_groups(ctx, s);
}

/* The first group whose pattern matches. */
static uint8_t find_group(const rw_monitor_sources *s, const char *name)
{
    size_t g = 0;
    while (g < s->n_groups && fnmatch(s->groups[g].pattern, name, 0)) g++;
    return (uint8_t)g;
}

static void sort_into_groups(struct rw_watched *w, const rw_monitor_sources *s)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct rw_param *const p = rw_optimizer_kept(s->optimizer, i).param;
        w->serials[i] = p->serial;
        w->group_of[i] = find_group(s, p->name);
    }
}

rw_status rw_watched_open(struct rw_watched *ret, rw_context *ctx, const rw_monitor_sources *s)
{
    struct rw_watched w = { .n_groups = s->n_groups, .ctx = ctx, .seen_clip = rw_clip_number(ctx) };
    rw_status status = check(ctx, s);
    if (status) return status;
    if (s->optimizer) {
        w.n = rw_optimizer_members(s->optimizer);
        w.group_of = rw_calloc(w.n + 1, sizeof *w.group_of);
        w.sums = rw_calloc(w.n + 1, sizeof *w.sums);
        w.serials = rw_calloc(w.n + 1, sizeof *w.serials);
        if (!w.group_of || !w.sums || !w.serials)
            status = rw_fail(ctx, RW_ERR_MEMORY, "rw_monitor_watch: out of memory");
        if (!status) status = rw_optimizer_watch(s->optimizer);
        if (!status) sort_into_groups(&w, s);
        w.seen = rw_optimizer_updates(s->optimizer); /* from the next one on */
    }
    if (status) {
        rw_watched_close(&w);
        return status;
    }
    for (size_t g = 0; g < s->n_groups; g++) memcpy(w.name[g], s->groups[g].name, strlen(s->groups[g].name) + 1);
    w.opt = s->optimizer;
    *ret = w;
    return RW_OK;
}

static void optimizer_gone(struct rw_dependent *d)
{
    ((struct rw_watched *)(void *)((char *)d - offsetof(struct rw_watched, on_optimizer)))->opt = NULL;
}

void rw_watched_begin(struct rw_watched *w)
{
    if (w->opt) rw_optimizer_depend(w->opt, &w->on_optimizer, optimizer_gone);
}

void rw_watched_close(struct rw_watched *w)
{
    rw_depend_end(&w->on_optimizer);
    if (w->opt) rw_optimizer_unwatch(w->opt);
    rw_free(w->group_of);
    rw_free(w->sums);
    rw_free(w->serials);
    *w = (struct rw_watched){ 0 };
}

static void add(double *to, const double *x)
{
    for (int j = 0; j < RW_UPDATE_SUMS; j++) to[j] += x[j];
}

static void set_health(struct rw_health *h, const double *x)
{
    if (!(x[RW_SUM_ELEMENTS] > 0)) return;
    h->elements = x[RW_SUM_ELEMENTS];
    h->grad_norm = sqrt(x[RW_SUM_GRADIENT]);
    h->param_norm = sqrt(x[RW_SUM_WEIGHT]);
    h->update_ratio = x[RW_SUM_WEIGHT] == 0 ? 0 : sqrt(x[RW_SUM_CHANGE] / x[RW_SUM_WEIGHT]);
    h->zeros = x[RW_SUM_ZEROS] / x[RW_SUM_ELEMENTS];
}

/* From the clipping's own sums. */
rw_status rw_watched_read_clipping(struct rw_watched *w, struct rw_health *all, struct rw_health *groups)
{
    double sum[RW_WATCHED_GROUPS + 1] = { 0 };
    const struct rw_clip *c = NULL;
    if (!w->opt) return RW_OK;
    const rw_status status = rw_clip_read(w->ctx, &w->seen_clip, &c, &all->unclipped_norm);
    if (!c) return status;
    for (size_t k = 0; k < c->sums.n; k++) {
        const uint32_t i = rw_serial_find(w->serials, w->n, c->sums.of[k]);
        sum[i == RW_NONE_ID ? w->n_groups : w->group_of[i]] += c->sums.read[k];
    }
    all->clipped = true;
    for (size_t g = 0; g < w->n_groups; g++) {
        groups[g].clipped = true;
        groups[g].unclipped_norm = sqrt(sum[g]);
    }
    return status;
}

rw_status rw_watched_read_update(struct rw_watched *w, struct rw_health *all, struct rw_health *groups)
{
    double sum[RW_WATCHED_GROUPS + 1][RW_UPDATE_SUMS] = { 0 }, total[RW_UPDATE_SUMS] = { 0 };
    bool known = false;
    const rw_status status = w->opt ? rw_optimizer_read_sums(w->opt, w->sums, &w->seen, &known) : RW_OK;
    for (size_t i = 0; !status && known && i < rw_optimizer_members(w->opt); i++) {
        add(total, w->sums[i]);
        add(sum[w->group_of[i]], w->sums[i]);
    }
    set_health(all, total);
    for (size_t g = 0; g < w->n_groups; g++) set_health(&groups[g], sum[g]);
    return status;
}
