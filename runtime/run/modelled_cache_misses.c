/* Replays a plan's actions on the LRU cache model (remat/schedule/cache_model.h) and sums the misses of each action. */
#include "run/modelled_cache_misses.h"

#include "autodiff/cache_coherence_traffic.h"
#include "base/alloc.h"
#include "run/rebuild_op_call.h"

#include <string.h>

static uint64_t bytes_of(const rw_operand_desc *d)
{
    return (uint64_t)d->layout->numel * rw_dtype_size(d->dtype);
}

static bool call_of(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan, size_t action, rw_op_call *ret)
{
    const struct rw_node *const node = rw_plan_node(t, plan, plan->actions[action].node);
    if (!rw_grow(&x->desc, &x->cap_desc, 0, (size_t)node->n_inputs + node->n_outputs, sizeof *x->desc)) return false;
    *ret = rw_plan_call(t, plan, node, x->desc);
    return true;
}

static bool reserve(struct rw_cache_misses *x, const rw_plan *plan)
{
    const size_t units = (size_t)(plan->arena_bytes / plan->unit) + 1;
    return rw_grow(&x->fetched, &x->cap, 0, plan->n_actions, sizeof *x->fetched) &&
           rw_grow(&x->buffer_at, &x->cap_buffer_at, 0, units, sizeof *x->buffer_at) &&
           rw_grow(&x->word, &x->cap_word, 0, plan->n_words, sizeof *x->word) &&
           rw_grow(&x->memory, &x->cap_memory, 0, plan->n_words + plan->n_sources, sizeof *x->memory);
}

/* ---- the memory of a word ---- */

/* If several nodes read different parts of a source, the largest counts. */
static void name(struct rw_cache_misses *x, const rw_plan *plan, size_t action, uint32_t w, uint64_t bytes, bool begins)
{
    const uint32_t at = plan->actions[action].word + w, word = plan->words[at];
    if (rw_word_is_source(word)) {
        struct rw_cache_misses_memory *const m = &x->memory[rw_word_source(word)];
        x->word[at] = rw_word_source(word);
        if (bytes > m->bytes) m->bytes = bytes;
        return;
    }
    if (begins) {
        x->buffer_at[word] = (uint32_t)x->n_memory++;
        x->memory[x->buffer_at[word]].bytes = bytes;
    }
    x->word[at] = x->buffer_at[word];
    x->memory[x->word[at]].last = action;
}

/* True if the output has the address of an input of the action, so that it overwrites the input in place. */
static bool is_written_over(const uint32_t *words, int n_inputs, uint32_t output)
{
    for (int i = 0; i < n_inputs; i++)
        if (words[i] == words[output]) return true;
    return false;
}

static bool name_words(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan, size_t action,
                       uint64_t workspace)
{
    const uint32_t *const words = plan->words + plan->actions[action].word;
    rw_op_call call;
    if (!call_of(x, t, plan, action, &call)) return false;
    for (int i = 0; i < call.n_inputs; i++) name(x, plan, action, (uint32_t)i, bytes_of(&call.in[i]), false);
    for (int i = 0; i < call.n_outputs; i++) {
        const uint32_t output = (uint32_t)(call.n_inputs + i);
        name(x, plan, action, output, bytes_of(&call.out[i]), !is_written_over(words, call.n_inputs, output));
    }
    if (workspace) name(x, plan, action, plan->actions[action].n_words - 1u, workspace, true);
    return true;
}

static bool name_all(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan)
{
    memset(x->memory, 0, plan->n_sources * sizeof *x->memory);
    x->n_memory = plan->n_sources;
    for (size_t i = 0, w = 0; i < plan->n_actions; i++) {
        const bool works = w < plan->n_workspaces && plan->workspaces[w].action == i;
        if (!name_words(x, t, plan, i, works ? plan->workspaces[w].bytes : 0)) return false;
        w += works;
    }
    return true;
}

/* ---- misses ---- */

static struct rw_fetched use(struct rw_cache_misses *x, const rw_plan *plan, uint32_t at, enum rw_use how,
                             double traffic)
{
    const uint32_t m = x->word[at];
    const uint64_t bytes = x->memory[m].bytes;
    if (m >= plan->n_sources) return rw_cache_model_use(&x->caches, m, bytes, how);
    if (!rw_source_is_used(plan->sources[m].kind)) return (struct rw_fetched){ 0 };
    return rw_cache_model_use(&x->caches, m, rw_bytes_in_traffic(bytes, traffic), RW_USE_BESIDE);
}

/* All operands are counted before any of them ends: memory may be named twice, and must not be used once it is dead. */
static bool count_action(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan, size_t action)
{
    const struct rw_action *const a = &plan->actions[action];
    rw_op_call call;
    if (!call_of(x, t, plan, action, &call)) return false;
    const double traffic = rw_call_cost(&call).bytes;
    const uint64_t across = rw_cache_transfers(&call);
    x->fetched[action] = (struct rw_fetched){ 0 };
    for (uint32_t w = 0; w < a->n_words; w++) {
        const enum rw_use how = rw_use_of(w, (uint32_t)call.n_inputs, across);
        rw_fetched_add(&x->fetched[action], use(x, plan, a->word + w, how, traffic));
    }
    for (uint32_t w = 0; w < a->n_words; w++) {
        const uint32_t m = x->word[a->word + w];
        if (m >= plan->n_sources && x->memory[m].last == action) rw_cache_model_die(&x->caches, m);
    }
    return true;
}

rw_status rw_cache_misses_count(struct rw_cache_misses *x, const rw_tape *t, const rw_plan *plan, uint64_t near_bytes)
{
    if (x->of == plan->serial && x->near_bytes == near_bytes) return RW_OK;
    x->of = 0;
    if (!reserve(x, plan) || !name_all(x, t, plan) || rw_cache_model_begin(&x->caches, x->n_memory, near_bytes))
        return RW_ERR_MEMORY;
    for (size_t i = 0; i < plan->n_actions; i++)
        if (!count_action(x, t, plan, i)) return RW_ERR_MEMORY;
    x->of = plan->serial;
    x->near_bytes = near_bytes;
    return RW_OK;
}

void rw_cache_misses_finish(struct rw_cache_misses *x)
{
    rw_free(x->fetched);
    rw_free(x->memory);
    rw_free(x->buffer_at);
    rw_free(x->word);
    rw_free(x->desc);
    rw_cache_model_finish(&x->caches);
    *x = (struct rw_cache_misses){ 0 };
}
