/* See tenants.h. */
#include "run/tenants.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* While they are found. Of each offset in use: who lies there now. */
struct finding {
    const rw_tape *t;
    const rw_plan *plan;
    uint32_t *word; /* words in the arena, each once, rising */
    size_t n_words;
    uint32_t *now; /* by word: its tenant, UINT32_MAX for none */
    struct rw_tenant *tenant;
    size_t n;
};

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void list_words(struct finding *f)
{
    for (size_t i = 0; i < f->plan->n_words; i++)
        if (!rw_word_is_source(f->plan->words[i])) f->word[f->n_words++] = f->plan->words[i];
    if (f->n_words) qsort(f->word, f->n_words, sizeof *f->word, by_value);
    size_t n = 0;
    for (size_t i = 0; i < f->n_words; i++)
        if (!n || f->word[i] != f->word[n - 1]) f->word[n++] = f->word[i];
    f->n_words = n;
}

static uint32_t *now_at(const struct finding *f, uint32_t word)
{
    const uint32_t *const found = bsearch(&word, f->word, f->n_words, sizeof word, by_value);
    return &f->now[found - f->word];
}

static void move_in(struct finding *f, uint32_t word, uint64_t bytes, uint32_t action)
{
    if (rw_word_is_source(word)) return;
    *now_at(f, word) = (uint32_t)f->n;
    f->tenant[f->n++] = (struct rw_tenant){ rw_word_offset(f->plan, word), bytes, action, action };
}

static void use(struct finding *f, uint32_t word, uint32_t action)
{
    if (rw_word_is_source(word)) return;
    const uint32_t who = *now_at(f, word);
    if (who != UINT32_MAX && f->tenant[who].last < action) f->tenant[who].last = action;
}

static uint64_t bytes_of(const struct finding *f, uint32_t v)
{
    const rw_plan *const p = f->plan;
    const bool recorded = v < p->mark_values;
    const uint32_t layout = recorded ? rw_tape_value(f->t, v)->layout : p->values[v - p->mark_values].layout;
    const uint8_t dtype = recorded ? rw_tape_value(f->t, v)->dtype : p->values[v - p->mark_values].dtype;
    return (uint64_t)rw_layout_get(&f->t->ctx->layouts, layout)->numel * rw_dtype_size((rw_dtype)dtype);
}

/* An output at the place of an input is written over it: the tenant stays. */
static bool is_among(const uint32_t *words, uint32_t n, uint32_t word)
{
    for (uint32_t i = 0; i < n; i++)
        if (words[i] == word) return true;
    return false;
}

static void visit_node(struct finding *f, uint32_t index, const struct rw_action *a, size_t *workspace)
{
    const struct rw_node *const node = rw_plan_node(f->t, f->plan, a->node);
    const uint32_t *const words = f->plan->words + a->word, n_in = node->n_inputs, n_out = node->n_outputs;
    for (uint32_t i = 0; i < n_in; i++) use(f, words[i], index);
    for (uint32_t i = 0; i < n_out; i++) {
        if (is_among(words, n_in, words[n_in + i])) use(f, words[n_in + i], index);
        else move_in(f, words[n_in + i], bytes_of(f, node->first_output + i), index);
    }
    if (a->n_words > n_in + n_out)
        move_in(f, words[n_in + n_out], f->plan->workspaces[(*workspace)++].bytes, index);
}

/* A way back may wait for a way out: then its lane does, not compute. */
static bool is_waited_for(const rw_plan *p, const struct rw_wait *wait, uint32_t move)
{
    return wait->on == move && p->actions[wait->action].lane == RW_LANE_COMPUTE;
}

/* What a move brings or takes away is in use until the compute lane has waited for it. */
static void visit_move(struct finding *f, uint32_t index, const struct rw_action *a)
{
    const rw_plan *const p = f->plan;
    const uint32_t *const words = p->words + a->word;
    const uint32_t near = words[a->kind == RW_ACTION_IN], far = words[a->kind == RW_ACTION_OUT];
    uint32_t until = (uint32_t)p->n_actions - 1;
    for (size_t i = 0; i < p->n_waits; i++)
        if (is_waited_for(p, &p->waits[i], index) && p->waits[i].action < until) until = p->waits[i].action;
    if (a->kind == RW_ACTION_IN) move_in(f, near, p->slots[p->sources[rw_word_source(far)].index].bytes, index);
    use(f, near, p->n_waits ? until : index);
}

static void visit_all(struct finding *f)
{
    size_t workspace = 0;
    for (uint32_t i = 0; i < f->plan->n_actions; i++) {
        const struct rw_action *const a = &f->plan->actions[i];
        if (rw_action_is_move(a->kind)) visit_move(f, i, a);
        else visit_node(f, i, a, &workspace);
    }
}

/* A counting sort by last action. */
static void sort(struct rw_tenants *x, size_t n_actions)
{
    for (size_t i = 0; i < x->n; i++) x->leaves[x->tenant[i].last + 1]++;
    for (size_t i = 0; i < n_actions; i++) x->leaves[i + 1] += x->leaves[i];
    /* leaves[last + 1] is the end of that group, and comes to be its beginning */
    for (size_t i = x->n; i-- > 0;) x->leaving[--x->leaves[x->tenant[i].last + 1]] = (uint32_t)i;
    memmove(x->leaves, x->leaves + 1, n_actions * sizeof *x->leaves);
    x->leaves[n_actions] = (uint32_t)x->n;
}

bool rw_tenants_make(struct rw_tenants *ret, const rw_tape *t, const rw_plan *plan)
{
    struct finding f = { .t = t, .plan = plan, .word = rw_malloc(plan->n_words * sizeof *f.word),
                         .now = rw_malloc(plan->n_words * sizeof *f.now),
                         .tenant = rw_malloc(plan->n_words * sizeof *f.tenant) };
    *ret = (struct rw_tenants){ .leaving = rw_malloc(plan->n_words * sizeof *ret->leaving),
                                .leaves = rw_calloc(plan->n_actions + 2, sizeof *ret->leaves), .tenant = f.tenant };
    const bool ok = f.word && f.now && f.tenant && ret->leaving && ret->leaves;
    if (ok) {
        memset(f.now, 0xff, plan->n_words * sizeof *f.now);
        list_words(&f);
        visit_all(&f);
        ret->n = f.n;
        sort(ret, plan->n_actions);
    } else {
        rw_tenants_free(ret);
    }
    rw_free(f.word);
    rw_free(f.now);
    return ok;
}

void rw_tenants_free(struct rw_tenants *tenants)
{
    rw_free(tenants->tenant);
    rw_free(tenants->leaving);
    rw_free(tenants->leaves);
    *tenants = (struct rw_tenants){ 0 };
}
