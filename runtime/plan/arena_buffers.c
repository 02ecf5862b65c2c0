/*
 * Buffer lifetimes by one walk over the actions: an output at an address of its own begins a buffer, and each operand
 * at that address extends it, until another output begins the next buffer there.
 */
#include "plan/arena_buffers.h"

#include "base/alloc.h"
#include "record/tape.h"

#include <stdlib.h>
#include <string.h>

/* The state of the walk. */
struct walk {
    const rw_tape *t;
    const rw_plan *plan;
    uint32_t *word; /* words in the arena, each once, rising */
    size_t n_words;
    uint32_t *now; /* by word: its current buffer, RW_NONE_ID for none */
    struct rw_arena_buffers *to;
};

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void list_words(struct walk *w)
{
    for (size_t i = 0; i < w->plan->n_words; i++)
        if (!rw_word_is_source(w->plan->words[i])) w->word[w->n_words++] = w->plan->words[i];
    if (w->n_words) qsort(w->word, w->n_words, sizeof *w->word, by_value);
    size_t n = 0;
    for (size_t i = 0; i < w->n_words; i++)
        if (!n || w->word[i] != w->word[n - 1]) w->word[n++] = w->word[i];
    w->n_words = n;
}

static uint32_t *now_at(const struct walk *w, uint32_t word)
{
    const uint32_t *const found = bsearch(&word, w->word, w->n_words, sizeof word, by_value);
    return &w->now[found - w->word];
}

/* i: of the plan's words. */
static void begin(struct walk *w, size_t i, uint32_t value, uint64_t bytes, uint32_t action)
{
    const uint32_t word = w->plan->words[i];
    if (rw_word_is_source(word)) return;
    w->to->of_word[i] = *now_at(w, word) = (uint32_t)w->to->n;
    w->to->buffer[w->to->n++] = (struct rw_arena_buffer){ .offset = rw_word_offset(w->plan, word), .bytes = bytes,
                                                          .value = value, .first = action, .last = action };
}

static void use(struct walk *w, size_t i, uint32_t action)
{
    const uint32_t word = w->plan->words[i];
    if (rw_word_is_source(word)) return;
    const uint32_t b = w->to->of_word[i] = *now_at(w, word);
    if (b != RW_NONE_ID && w->to->buffer[b].last < action) w->to->buffer[b].last = action;
}

static uint64_t bytes_of(const struct walk *w, uint32_t v)
{
    const rw_plan *const p = w->plan;
    const bool recorded = v < p->mark_values;
    const uint32_t layout = recorded ? rw_tape_value(w->t, v)->layout : p->values[v - p->mark_values].layout;
    const uint8_t dtype = recorded ? rw_tape_value(w->t, v)->dtype : p->values[v - p->mark_values].dtype;
    return (uint64_t)rw_layout_get(&w->t->ctx->layouts, layout)->numel * rw_dtype_size((rw_dtype)dtype);
}

/* An output at the place of an input is written over it: the buffer goes on. */
static bool is_among(const uint32_t *words, uint32_t n, uint32_t word)
{
    for (uint32_t i = 0; i < n; i++)
        if (words[i] == word) return true;
    return false;
}

static void visit_node(struct walk *w, uint32_t index, const struct rw_action *a, size_t *workspace)
{
    const struct rw_node *const node = rw_plan_node(w->t, w->plan, a->node);
    const uint32_t *const words = w->plan->words + a->word, n_in = node->n_inputs, n_out = node->n_outputs;
    for (uint32_t i = 0; i < n_in; i++) use(w, a->word + i, index);
    for (uint32_t i = 0; i < n_out; i++) {
        const uint32_t v = node->first_output + i;
        if (is_among(words, n_in, words[n_in + i])) use(w, a->word + n_in + i, index);
        else begin(w, a->word + n_in + i, v, bytes_of(w, v), index);
    }
    if (a->n_words > n_in + n_out)
        begin(w, a->word + n_in + n_out, RW_NONE_ID, w->plan->workspaces[(*workspace)++].bytes, index);
}

/* The compute action that waits for a copy. A copy in may wait for its copy out as well: on a lane of its own, which
   says nothing of when the host or the compute lane may write the memory. The plan's last action where none waits. */
static uint32_t compute_wait_on(const rw_plan *p, uint32_t copy)
{
    uint32_t until = (uint32_t)p->n_actions - 1;
    for (size_t i = 0; i < p->n_waits; i++) {
        const struct rw_wait *const wait = &p->waits[i];
        if (wait->on == copy && p->actions[wait->action].lane == RW_LANE_COMPUTE && wait->action < until)
            until = wait->action;
    }
    return until;
}

/* A copy reads or writes its buffer until the compute lane has waited for it. */
static void visit_move(struct walk *w, uint32_t index, const struct rw_action *a)
{
    const rw_plan *const p = w->plan;
    const size_t near = a->word + (a->kind == RW_ACTION_IN), far = a->word + (a->kind == RW_ACTION_OUT);
    const struct rw_plan_slot *const slot = &p->slots[p->sources[rw_word_source(p->words[far])].index];
    if (a->kind == RW_ACTION_IN) begin(w, near, slot->value, slot->bytes, index);
    use(w, near, p->n_waits ? compute_wait_on(p, index) : index);
    const uint32_t b = w->to->of_word[near];
    if (b != RW_NONE_ID) w->to->buffer[b].is_copied = true;
}

static void visit_all(struct walk *w)
{
    size_t workspace = 0;
    for (uint32_t i = 0; i < w->plan->n_actions; i++) {
        const struct rw_action *const a = &w->plan->actions[i];
        if (rw_action_is_move(a->kind)) visit_move(w, i, a);
        else visit_node(w, i, a, &workspace);
    }
}

static bool do_overlap(const struct rw_arena_buffer *a, const struct rw_arena_buffer *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/*
 * A copy in that waits for a copy out may write the memory that the copy out read, before the compute lane has waited
 * for either. Such memory has its next buffer already when the old one ends, so the old one never leaves it free.
 */
static void keep_what_is_taken(struct rw_arena_buffers *x, size_t n_actions)
{
    for (size_t i = 0; i < x->n; i++) {
        struct rw_arena_buffer *const copied = &x->buffer[i];
        const uint32_t last = copied->last;
        for (size_t k = i + 1; copied->is_copied && k < x->n && x->buffer[k].first <= last; k++)
            if (do_overlap(copied, &x->buffer[k])) copied->last = (uint32_t)n_actions;
    }
}

/* A counting sort by last action; those that never leave memory free follow all others. */
static void sort(struct rw_arena_buffers *x, size_t n_actions)
{
    for (size_t i = 0; i < x->n; i++) x->ends[x->buffer[i].last + 1]++;
    for (size_t i = 0; i <= n_actions; i++) x->ends[i + 1] += x->ends[i];
    /* ends[last + 1] is the end of that group, and becomes its beginning */
    for (size_t i = x->n; i-- > 0;) x->ending[--x->ends[x->buffer[i].last + 1]] = (uint32_t)i;
    memmove(x->ends, x->ends + 1, (n_actions + 1) * sizeof *x->ends);
    x->ends[n_actions + 1] = (uint32_t)x->n;
}

bool rw_arena_buffers_find(struct rw_arena_buffers *ret, const rw_tape *t, const rw_plan *plan)
{
    struct walk w = { .t = t, .plan = plan, .to = ret, .word = rw_malloc(plan->n_words * sizeof *w.word),
                      .now = rw_malloc(plan->n_words * sizeof *w.now) };
    *ret = (struct rw_arena_buffers){ .buffer = rw_malloc(plan->n_words * sizeof *ret->buffer),
                                      .of_word = rw_malloc(plan->n_words * sizeof *ret->of_word),
                                      .ending = rw_malloc(plan->n_words * sizeof *ret->ending),
                                      .ends = rw_calloc(plan->n_actions + 2, sizeof *ret->ends) };
    const bool ok = w.word && w.now && ret->buffer && ret->of_word && ret->ending && ret->ends;
    if (ok) {
        memset(w.now, 0xff, plan->n_words * sizeof *w.now);
        memset(ret->of_word, 0xff, plan->n_words * sizeof *ret->of_word);
        list_words(&w);
        visit_all(&w);
        if (plan->n_waits) keep_what_is_taken(ret, plan->n_actions);
        sort(ret, plan->n_actions);
    } else {
        rw_arena_buffers_free(ret);
    }
    rw_free(w.word);
    rw_free(w.now);
    return ok;
}

void rw_arena_buffers_free(struct rw_arena_buffers *buffers)
{
    rw_free(buffers->buffer);
    rw_free(buffers->of_word);
    rw_free(buffers->ending);
    rw_free(buffers->ends);
    *buffers = (struct rw_arena_buffers){ 0 };
}
