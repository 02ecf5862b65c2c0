/* The plan cache: a few dozen entries, searched linearly. Least recently used entries are evicted, by number and by
   bytes. */
#include "plan/cache.h"

#include "autodiff/costs.h"
#include "base/alloc.h"
#include "record/tape_key_words.h"

#include <assert.h>
#include <string.h>

static void destroy(rw_context *ctx, void *state)
{
    rw_plan_cache_finish(state);
}

static void report(const rw_context *ctx, const void *state, rw_memory *memory)
{
    memory->plans += ((const struct rw_plan_cache *)state)->bytes;
}

struct rw_extension rw_plan_cache_extension = { .name = "plans", .size = sizeof(struct rw_plan_cache),
                                                .destroy = destroy, .report = report };

rw_status rw_plan_cache_open(rw_context *ctx)
{
    return rw_extension_make(&ctx->extensions, &rw_plan_cache_extension) ? RW_OK : RW_ERR_MEMORY;
}

/* ---- keys ---- */

static size_t words_of_request(const rw_tape *t, const struct rw_request *request)
{
    return 11 + rw_key_policy_words(request->policy) + request->n_values + request->n_reads + request->n_later +
           t->n_held + t->n_effects +
           (request->policy->total ? t->ctx->n_params : 0);
}

/* Adds the bytes that a total leaves to the arena. A gradient without memory counts if the step writes it. */
static void add_total(struct rw_key *k, const rw_context *ctx, const struct rw_ahead *ahead)
{
    rw_key_add(k, ahead ? ahead->holds : rw_context_holds(ctx));
    for (size_t i = 0; i < ctx->n_params; i++)
        if (!ctx->params[i]->gradient.data) rw_key_add(k, ctx->params[i]->serial);
}

/* Adds which values are held and which effects have happened; none for a tape ahead. */
static void add_state(struct rw_key *k, const rw_tape *t, const struct rw_ahead *ahead)
{
    const size_t n_held = ahead ? 0 : t->n_held, n_effects = ahead ? ahead->n_effects : t->n_effects;
    rw_key_add(k, n_held);
    for (size_t i = 0; i < n_held; i++) rw_key_add(k, t->held[i].value);
    rw_key_add(k, n_effects);
    for (size_t i = 0; i < n_effects; i++) rw_key_add(k, !ahead && t->effects[i].done);
}

/* Adds everything on which the plan depends in addition to the recording. */
static void add_request(struct rw_key *k, const rw_tape *t, const struct rw_request *request,
                        const struct rw_ahead *ahead)
{
    const rw_context *const ctx = t->ctx;
    const struct rw_costs *const costs = rw_costs_of(ctx);
    const bool whole = t->n_parts && request->policy->whole; /* otherwise parts have policies of their own */
    rw_key_add(k, RW_KEY_REQUEST | (uint64_t)request->kind << 16 | (uint64_t)request->effects << 24 |
                      (uint64_t)request->seeded << 25 | (uint64_t)whole << 26 | (uint64_t)(costs != NULL) << 27);
    rw_key_add(k, (uint64_t)ctx->threads); /* workspaces are per thread */
    rw_key_add(k, ctx->store.serial); /* the schedule of copies depends on its rates */
    rw_key_add(k, ctx->layouts.generation); /* keys contain indexes of layouts */
    rw_key_add(k, costs ? costs->hash : 0);
    rw_key_add_policy(k, request->policy);
    rw_key_add(k, request->n_values);
    for (size_t i = 0; i < request->n_values; i++) rw_key_add(k, request->values[i]);
    rw_key_add(k, request->n_reads);
    for (size_t i = 0; i < request->n_reads; i++) rw_key_add(k, request->reads[i]);
    rw_key_add(k, request->n_later);
    for (size_t i = 0; i < request->n_later; i++) rw_key_add(k, request->later[i]);
    add_state(k, t, ahead);
    if (request->policy->total) add_total(k, ctx, ahead);
}

/* Builds the words of the request and the hash of them and the tape's; NULL without memory, recorded. */
static struct rw_key *take_request(const rw_tape *t, const struct rw_request *request, const struct rw_ahead *ahead)
{
    struct rw_key *const k = &rw_plan_cache_of(t->ctx)->request;
    k->n = 0;
    k->hash = ahead ? ahead->at.hash : t->key.hash;
    if (!rw_key_reserve(k, words_of_request(t, request) + (ahead ? ahead->n_effects : 0))) {
        rw_fail(t->ctx, RW_ERR_MEMORY, "planning: out of memory");
        return NULL;
    }
    add_request(k, t, request, ahead);
    return k;
}

rw_status rw_request_key(const rw_tape *t, const struct rw_request *request, struct rw_plan_key *ret_key)
{
    const struct rw_key *const k = take_request(t, request, NULL);
    if (!k) return RW_ERR_MEMORY;
    const size_t n = t->key.n;
    struct rw_plan_key key = { .hash = k->hash, .n = n + k->n };
    if (RW_KEY_KEEPS_WORDS) {
        key.words = rw_malloc(key.n * sizeof *key.words);
        if (!key.words) return rw_fail(t->ctx, RW_ERR_MEMORY, "planning: out of memory");
        if (n) memcpy(key.words, t->key.words, n * sizeof *key.words);
        memcpy(key.words + n, k->words, k->n * sizeof *key.words);
    }
    *ret_key = key;
    return RW_OK;
}

void rw_plan_key_finish(struct rw_plan_key *key)
{
    rw_free(key->words);
    *key = (struct rw_plan_key){ 0 };
}

/* A 128-bit hash over all words decides; two different keys with one hash would be a defect of the hash. */
static bool is_key_of(const struct rw_plan_key *key, const struct rw_key *tape, const struct rw_key *request)
{
    const bool is_same = key->hash.a == request->hash.a && key->hash.b == request->hash.b &&
                         key->n == tape->n + request->n;
    if (!is_same || !RW_KEY_KEEPS_WORDS) return is_same;
    return !memcmp(key->words + tape->n, request->words, request->n * sizeof *key->words) &&
           (!tape->n || !memcmp(key->words, tape->words, tape->n * sizeof *key->words));
}

/* ---- entries ---- */

/* The cache keeps its reference; *ret_plan is NULL if there is no entry. RW_ERR_MEMORY, recorded. */
static rw_status find(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    struct rw_plan_cache *const cache = rw_plan_cache_of(t->ctx);
    const struct rw_key *const k = take_request(t, request, NULL);
    if (!k) return RW_ERR_MEMORY;
    *ret_plan = NULL;
    for (size_t i = 0; i < cache->n && !*ret_plan; i++) {
        struct rw_plan_entry *const e = &cache->entries[i];
        if (!is_key_of(&e->key, &t->key, k)) continue;
        e->used = ++cache->clock;
        *ret_plan = e->plan;
    }
    cache->hits += *ret_plan != NULL;
    cache->misses += !*ret_plan;
    return RW_OK;
}

/* True if the key starts with the tape's words and ends with those of the request. */
static bool is_key_ahead(const struct rw_plan_key *key, const struct rw_key *tape, const struct rw_key *request,
                         size_t n)
{
    const bool is_same = key->hash.a == request->hash.a && key->hash.b == request->hash.b && key->n == n + request->n;
    if (!is_same || !RW_KEY_KEEPS_WORDS) return is_same;
    return !memcmp(key->words + n, request->words, request->n * sizeof *key->words) && tape->n <= n &&
           (!tape->n || !memcmp(key->words, tape->words, tape->n * sizeof *key->words));
}

rw_plan *rw_plan_find_ahead(rw_tape *t, const struct rw_request *request, const struct rw_ahead *ahead)
{
    struct rw_plan_cache *const cache = rw_plan_cache_of(t->ctx);
    const struct rw_key *const k = take_request(t, request, ahead);
    for (size_t i = 0; k && i < cache->n; i++) {
        struct rw_plan_entry *const e = &cache->entries[i];
        if (!is_key_ahead(&e->key, &t->key, k, ahead->at.n)) continue;
        e->used = ++cache->clock;
        cache->hits++;
        return e->plan;
    }
    return NULL;
}

static size_t bytes_of(const struct rw_plan_key *key, const rw_plan *plan)
{
    return rw_plan_bytes(plan) + (RW_KEY_KEEPS_WORDS ? key->n * sizeof *key->words : 0);
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
    cache->bytes -= bytes_of(&e->key, e->plan);
    rw_plan_release(e->plan);
    rw_plan_key_finish(&e->key);
    *e = cache->entries[--cache->n];
}

void rw_plan_cache_add(struct rw_plan_cache *cache, struct rw_plan_key *key, rw_plan *plan)
{
    const size_t bytes = bytes_of(key, plan), most = cache->most_bytes ? cache->most_bytes : RW_PLAN_CACHE_BYTES;
    while (cache->n && (cache->n == RW_PLAN_CACHE_SIZE || cache->bytes + bytes > most)) drop(cache, oldest(cache));
    cache->entries[cache->n++] = (struct rw_plan_entry){ .key = *key, .plan = plan, .used = ++cache->clock };
    cache->bytes += bytes;
    *key = (struct rw_plan_key){ 0 };
}

void rw_plan_cache_finish(struct rw_plan_cache *cache)
{
    while (cache->n) drop(cache, &cache->entries[cache->n - 1]);
    rw_free(cache->request.words);
    cache->request = (struct rw_key){ 0 };
}

static rw_status make(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    struct rw_plan_key key;
    rw_status status = rw_request_key(t, request, &key);
    if (status) return status;
    status = rw_plan_build(t, request, ret_plan);
    if (!status) rw_plan_cache_add(rw_plan_cache_of(t->ctx), &key, *ret_plan);
    rw_plan_key_finish(&key);
    return status;
}

rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan)
{
    assert(!request->n_recorders);
    const rw_status missed = rw_tape_misses_nothing(t, "planning a step");
    if (missed) return missed;
    const rw_status status = find(t, request, ret_plan);
    return status || *ret_plan ? status : make(t, request, ret_plan);
}
