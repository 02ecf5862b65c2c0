/* Plans: reference counting, size, and validation. */
#include "plan/plan.h"

#include "base/alloc.h"
#include "record/tape.h"

void rw_plan_release(rw_plan *plan)
{
    if (!plan || --plan->references) return;
    void *const arrays[] = { plan->nodes, plan->operands, plan->attrs,   plan->values,    plan->actions,
                             plan->words, plan->sources,  plan->results, plan->gradients, plan->workspaces,
                             plan->waits, plan->slots,    plan->aside, plan->roots,     plan->used_up,
                             plan->fused, plan->outside };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) rw_free(arrays[i]);
    rw_library_ref_release(plan->holding);
    rw_free(plan);
}

size_t rw_plan_bytes(const rw_plan *p)
{
    return sizeof *p + p->n_nodes * sizeof *p->nodes + p->n_operands * sizeof *p->operands + p->n_attrs +
           p->n_values * sizeof *p->values + p->n_actions * sizeof *p->actions + p->n_words * sizeof *p->words +
           p->n_sources * sizeof *p->sources + p->n_outside * sizeof *p->outside +
           p->n_results * sizeof *p->results +
           p->n_gradients * sizeof *p->gradients + p->n_workspaces * sizeof *p->workspaces +
           p->n_waits * sizeof *p->waits + p->n_slots * sizeof *p->slots +
           p->n_aside * sizeof *p->aside + p->n_roots * sizeof *p->roots + p->n_used_up * sizeof *p->used_up +
           p->n_fused * sizeof *p->fused;
}

static bool word_is_valid(const rw_plan *p, uint32_t word)
{
    if (!rw_word_is_source(word)) return rw_word_offset(p, word) <= p->arena_bytes;
    if (rw_word_source(word) >= p->n_sources) return false;
    const struct rw_source *const s = &p->sources[rw_word_source(word)];
    return s->kind != RW_SOURCE_RESULT || s->index < p->n_results;
}

bool rw_plan_is_valid(const rw_tape *t, const rw_plan *p)
{
    for (size_t i = 0; i < p->n_actions; i++) {
        const struct rw_action *const step = &p->actions[i];
        if (step->node >= p->mark_nodes + p->n_nodes || step->word + step->n_words > p->n_words) return false;
        if (step->node < p->mark_nodes && step->node >= t->n_nodes) return false;
    }
    for (size_t i = 0; i < p->n_words; i++)
        if (!word_is_valid(p, p->words[i])) return false;
    for (size_t i = 0; i < p->n_workspaces; i++)
        if (p->workspaces[i].action >= p->n_actions || (i && p->workspaces[i].action <= p->workspaces[i - 1].action))
            return false;
    for (size_t i = 0; i < p->n_fused; i++)
        if (p->fused[i].last >= p->n_actions || p->fused[i].first >= p->fused[i].last ||
            (i && p->fused[i].first <= p->fused[i - 1].first))
            return false;
    for (size_t i = 0; i < p->n_results; i++)
        if (p->results[i].offset + p->results[i].bytes > p->results_bytes) return false;
    return p->n_forward <= p->n_actions;
}
