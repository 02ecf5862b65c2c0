/* The plan cache: a few dozen entries, searched in order. The least recently used make room, by number and by bytes. */
#include "plan/cache.h"

#include "autodiff/costs.h"

#include <assert.h>
#include <string.h>

rw_plan *rw_plan_cache_find(struct rw_plan_cache *cache, struct rw_plan_key key)
{
    for (size_t i = 0; i < cache->n; i++) {
        struct rw_plan_entry *const e = &cache->entries[i];
        if (e->key.a != key.a || e->key.b != key.b) continue;
        e->used = ++cache->clock;
        cache->hits++;
        return e->plan;
    }
    cache->misses++;
    return NULL;
}

static struct rw_plan_entry *oldest(struct rw_plan_cache *cache)
{
    struct rw_plan_entry *e = &cache->entries[0];
    for (size_t i = 1; i < cache->n; i++)
        if (cache->entries[i].used < e->used) e = &cache->entries[i];
    return e;
}

static void drop(struct rw_plan_cache *cache, struct rw_plan_entry *e)
{
    cache->bytes -= rw_plan_bytes(e->plan);
    rw_plan_release(e->plan);
    *e = cache->entries[--cache->n];
}

void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key key, rw_plan *plan)
{
    const size_t bytes = rw_plan_bytes(plan), most = cache->most_bytes ? cache->most_bytes : RW_PLAN_CACHE_BYTES;
    while (cache->n && (cache->n == RW_PLAN_CACHE_SIZE || cache->bytes + bytes > most)) drop(cache, oldest(cache));
    cache->entries[cache->n++] = (struct rw_plan_entry){ .key = key, .plan = plan, .used = ++cache->clock };
    cache->bytes += bytes;
}

void rw_plan_cache_finish(struct rw_plan_cache *cache)
{
    while (cache->n) drop(cache, &cache->entries[cache->n - 1]);
}

/* What it leaves to the arena. A gradient without memory counts where a step writes it. */
static void mix_total(struct rw_hash *h, const rw_context *ctx)
{
    rw_hash_mix(h, rw_context_holds(ctx));
    for (size_t i = 0; i < ctx->n_params; i++)
        if (!ctx->params[i]->gradient.data) rw_hash_mix(h, ctx->params[i]->tensor.id);
}

struct rw_plan_key rw_request_key(const rw_tape *t, const struct rw_request *request)
{
    struct rw_hash h = t->hash;
    rw_hash_mix(&h, (uint64_t)request->kind << 2 | (uint64_t)request->effects << 1 | request->seeded);
    rw_hash_mix(&h, request->n_values);
    rw_hash_mix(&h, t->n_nodes);
    rw_hash_mix(&h, (uint64_t)t->ctx->threads); /* workspaces are per thread */
    rw_hash_mix(&h, t->ctx->store.serial); /* where copies begin and end goes by how fast they are */
    rw_hash_mix(&h, t->ctx->layouts.generation); /* the tape's hash has layouts by their indexes */
    for (size_t i = 0; i < request->n_values; i++) rw_hash_mix(&h, request->values[i]);
    if (request->kind == RW_PLAN_STEP) rw_hash_mix_bytes(&h, request->policy->spec, strlen(request->policy->spec));
    if (t->ctx->costs) rw_hash_mix(&h, t->ctx->costs->hash);
    if (request->policy->total) mix_total(&h, t->ctx);
    if (t->n_parts) rw_hash_mix(&h, request->policy->whole); /* their own policies are in the tape's hash */
    for (size_t i = 0; i < t->n_held; i++) rw_hash_mix(&h, (uint64_t)t->held[i].value << 8 | 1);
    for (size_t i = 0; i < t->n_effects; i++) rw_hash_mix(&h, t->effects[i].done);
    return (struct rw_plan_key){ h.a, h.b };
}

rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    assert(!request->recorders);
    const rw_status missed = rw_tape_misses_nothing(t, "planning a step");
    if (missed) return missed;
    const struct rw_plan_key key = rw_request_key(t, request);
    rw_plan *plan = rw_plan_cache_find(t->ctx->plans, key);
    if (!plan) {
        const rw_status status = rw_plan_build(t, request, &plan);
        if (status) return status;
        rw_plan_cache_add(t->ctx->plans, key, plan);
    }
    *ret_plan = plan;
    return RW_OK;
}
