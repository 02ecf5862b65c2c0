/* Computes the cost of a plan by simulating its words on an arena of units. */
#include "remat/plan_cost_oracle.h"

#include "record/tape.h"

#include <stdlib.h>

#define NEVER UINT32_MAX
#define ANY (UINT32_MAX - 1) /* by a commit: the copy of a buffer's earlier contents */

/* One unit of the arena, the granularity of words. */
struct unit {
    uint32_t value;         /* base value of which it holds a part, RW_NONE_ID for a workspace */
    uint32_t written, read; /* action that wrote the contents, and the last that reads them; NEVER: holds nothing */
};

struct watch {
    const rw_tape *t;
    const rw_plan *plan;
    struct unit *unit;
    uint32_t *slot;  /* slot of the store -> value that it holds */
    int64_t *change; /* action -> units that begin to be live, minus those that end */
    struct oracle o;
};

static uint64_t bytes_of(const rw_tape *t, uint32_t value)
{
    return rw_tensor_bytes(rw_tape_value(t, rw_tape_base(t, value)));
}

static uint64_t units_of(const rw_plan *plan, uint64_t bytes)
{
    return (bytes + plan->unit - 1) / plan->unit;
}

static void fault(struct watch *w, const char *what, uint32_t action)
{
    if (!w->o.fault) w->o.fault = what, w->o.action = action;
}

static void end(struct watch *w, const struct unit *u)
{
    if (u->written == NEVER) return;
    w->change[u->written]++;
    w->change[u->read + 1]--;
    if (u->written < w->plan->n_before && u->read >= w->plan->n_before) w->o.kept += w->plan->unit;
}

static void read(struct watch *w, uint32_t word, uint64_t bytes, uint32_t value, uint32_t action, uint32_t until)
{
    if (rw_word_is_source(word)) return;
    for (uint64_t i = word; i < word + units_of(w->plan, bytes); i++) {
        if (w->unit[i].written == NEVER || w->unit[i].written >= action)
            fault(w, "reads what was never written", action);
        else if (w->unit[i].value != value && value != ANY) fault(w, "reads the memory of another value", action);
        else if (w->unit[i].read < until) w->unit[i].read = until;
    }
}

/* Contents that are read by the same action that writes them continue: the op works in place. */
static void write(struct watch *w, uint32_t word, uint64_t bytes, uint32_t value, uint32_t action)
{
    if (rw_word_is_source(word)) return;
    for (uint64_t i = word; i < word + units_of(w->plan, bytes); i++) {
        struct unit *const u = &w->unit[i];
        const bool in_place = u->written != NEVER && u->read == action && u->written < action;
        if (!in_place && u->written != NEVER && u->read >= action) fault(w, "writes what is still needed", action);
        if (!in_place) end(w, u), *u = (struct unit){ .written = action, .read = action };
        u->value = value;
    }
}

/* The last action at which the source of a copy is in use: the first that waits for it, if that is compute's, else the
   one before, because a copy in writes memory itself. Waits are in the order of their actions. */
static uint32_t wait_for(const rw_plan *plan, uint32_t move)
{
    for (size_t i = 0; i < plan->n_waits; i++)
        if (plan->waits[i].on == move)
            return plan->waits[i].action - (plan->actions[plan->waits[i].action].lane != RW_LANE_COMPUTE);
    return move;
}

static void move(struct watch *w, uint32_t i)
{
    const struct rw_action *const a = &w->plan->actions[i];
    const uint32_t *const words = w->plan->words + a->word;
    const uint32_t slot = words[a->kind == RW_ACTION_OUT];
    if (!rw_word_is(w->plan, slot, RW_SOURCE_STORE)) return fault(w, "moves to no slot", i);
    const uint32_t index = w->plan->sources[rw_word_source(slot)].index;
    const uint64_t bytes = w->plan->slots[index].bytes;
    if (a->kind == RW_ACTION_IN) return write(w, words[1], bytes, w->slot[index], i);
    w->slot[index] = w->unit[words[0]].value;
    read(w, words[0], bytes, w->slot[index], i, wait_for(w->plan, i));
}

/* Executes one compute action on the units: reads, workspace, then writes. */
static void compute(struct watch *w, uint32_t i, size_t *workspace)
{
    const rw_plan *const plan = w->plan;
    const struct rw_action *const a = &plan->actions[i];
    const struct rw_node *const node = &w->t->nodes[a->node];
    const uint32_t *const words = plan->words + a->word;
    const uint32_t n_in = node->n_inputs, n = n_in + node->n_outputs;
    for (uint32_t k = 0; k < n_in; k++) {
        const uint32_t value = rw_tape_base(w->t, w->t->operands[node->first_input + k]);
        const bool copied = a->kind == RW_ACTION_COMMIT && rw_tape_value(w->t, value)->leaf != RW_NONE_ID;
        read(w, words[k], bytes_of(w->t, value), copied ? ANY : value, i, i);
    }
    for (uint32_t k = n_in; k < n; k++) {
        const uint32_t value = node->first_output + k - n_in;
        write(w, words[k], bytes_of(w->t, value), value, i);
    }
    if (a->n_words == n) return;
    if (a->n_words != n + 1 || *workspace == plan->n_workspaces || plan->workspaces[*workspace].action != i)
        return fault(w, "has a word too many", i);
    write(w, words[n], plan->workspaces[(*workspace)++].bytes, RW_NONE_ID, i);
}

static void count(struct watch *w, size_t n_units)
{
    int64_t live = 0;
    for (size_t i = 0; i < n_units; i++) end(w, &w->unit[i]);
    for (size_t i = 0; i < w->plan->n_actions; i++) {
        live += w->change[i];
        if ((uint64_t)live * w->plan->unit > w->o.peak) w->o.peak = (uint64_t)live * w->plan->unit;
    }
}

/* One more than the last unit that a word can name, plus the size of the largest operand. */
static size_t arena_units(const rw_tape *t, const rw_plan *plan)
{
    uint64_t highest = 0, largest = 0;
    for (size_t i = 0; i < plan->n_words; i++)
        if (!rw_word_is_source(plan->words[i]) && plan->words[i] > highest) highest = plan->words[i];
    for (uint32_t v = 0; v < t->n_values; v++)
        if (units_of(plan, bytes_of(t, v)) > largest) largest = units_of(plan, bytes_of(t, v));
    for (size_t i = 0; i < plan->n_workspaces; i++)
        if (units_of(plan, plan->workspaces[i].bytes) > largest) largest = units_of(plan, plan->workspaces[i].bytes);
    return highest + largest + 1;
}

struct oracle oracle_of(const rw_tape *t, const rw_plan *plan)
{
    const size_t n = arena_units(t, plan);
    struct watch w = { .t = t, .plan = plan, .unit = malloc(n * sizeof *w.unit),
                       .slot = calloc(plan->n_slots + 1, sizeof *w.slot),
                       .change = calloc(plan->n_actions + 1, sizeof *w.change) };
    if (!w.unit || !w.slot || !w.change) abort();
    for (size_t i = 0; i < n; i++) w.unit[i] = (struct unit){ .written = NEVER };
    size_t workspace = 0;
    for (uint32_t i = 0; i < plan->n_actions; i++) {
        if (rw_action_is_move(plan->actions[i].kind)) move(&w, i);
        else compute(&w, i, &workspace);
        w.o.n_replays += plan->actions[i].kind == RW_ACTION_REPLAY;
    }
    count(&w, n);
    free(w.unit);
    free(w.slot);
    free(w.change);
    return w.o;
}
