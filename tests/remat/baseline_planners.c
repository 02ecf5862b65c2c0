/* Implements the planners of peers as choices: sqrt(n), Revolve, and the knapsack of PyTorch's compiler. */
#include "remat/baseline_planners.h"

#include "base/alloc.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/planner/max_flow.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *memory)
{
    if (!memory) abort();
    return memory;
}

static void must(rw_status status)
{
    if (status) abort();
}

/* ---- stages ---- */

static bool is_outermost(const rw_tape *t, uint32_t region)
{
    return t->regions[region].parent == RW_NONE_ID;
}

size_t rival_stages(const struct rw_problem *p)
{
    size_t n = 0;
    for (uint32_t r = 0; r < p->t->n_regions; r++) n += is_outermost(p->t, r);
    return n;
}

/* segment: by stage. */
static void place_nodes(struct rw_choice *c, const struct rw_problem *p, const uint32_t *segment)
{
    const rw_tape *const t = p->t;
    uint32_t *const of_region = need(rw_calloc(t->n_regions + 1, sizeof *of_region));
    for (uint32_t r = 0, stage = 0; r < t->n_regions; r++)
        of_region[r] = is_outermost(t, r) ? segment[stage++] : of_region[t->regions[r].parent];
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const uint32_t region = rw_node_region(t, &t->nodes[n]);
        c->segment_of[n] = region == RW_NONE_ID ? 0 : of_region[region];
    }
    rw_free(of_region);
    rw_choice_close(c);
}

static bool may_drop(const struct rw_problem *p, uint32_t v)
{
    const struct rw_node *const node = &p->t->nodes[rw_tape_value(p->t, v)->producer];
    const bool once = p->t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
    return !once && !node->adjoint && !p->wanted[v];
}

/* The home of a value is the innermost segment that contains its node and all its late readers: nodes of backward, and
   nodes of segments, which are replayed. It is recomputed there; if its home is the step, it is kept. */
static void drop_at_home(struct rw_choice *c, const struct rw_problem *p)
{
    const rw_tape *const t = p->t;
    uint32_t *const home = need(rw_calloc(t->n_values, sizeof *home));
    for (uint32_t v = 0; v < t->n_values; v++)
        if (rw_problem_makes(p, v)) home[v] = c->segment_of[rw_tape_value(t, v)->producer];
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        if (!p->needed[n] || (!node->adjoint && !c->segment_of[n])) continue;
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            const uint32_t v = rw_tape_base(t, t->operands[node->first_input + i]);
            home[v] = rw_segment_common(c, home[v], c->segment_of[n]);
        }
    }
    for (uint32_t v = 0; v < t->n_values; v++)
        if (rw_problem_makes(p, v) && may_drop(p, v)) c->fate[v].level = c->segment[home[v]].depth;
    rw_free(home);
    assert(rw_choice_is_valid(c, p));
}

static uint32_t add_segment(struct rw_choice *c, uint32_t parent)
{
    const uint32_t s = rw_choice_add_segment(c, parent);
    if (s == RW_NONE_ID) abort();
    return s;
}

/* ---- sqrt(n) ---- */

struct rw_choice rival_sqrt(const struct rw_problem *p)
{
    struct rw_choice c;
    const size_t n = rival_stages(p), length = (size_t)ceil(sqrt((double)n));
    uint32_t *const segment = need(rw_calloc(n + 1, sizeof *segment));
    must(rw_choice_init(&c, p));
    for (size_t i = 0; i < n; i++) {
        const bool is_last = i / length == (n - 1) / length;
        segment[i] = is_last ? 0 : i % length ? segment[i - 1] : add_segment(&c, 0);
    }
    place_nodes(&c, p, segment);
    drop_at_home(&c, p);
    rw_free(segment);
    return c;
}

/* ---- Revolve ---- */

struct revolve {
    struct rw_choice *c;
    uint32_t *segment;   /* by stage */
    size_t *steps, most; /* [l][s]: fewest advances to reverse l stages with memory for s inputs; s below most */
};

/* The best next input to keep: so many stages after the first of l. */
static size_t split_of(const struct revolve *r, size_t l, size_t s, size_t *ret_steps)
{
    size_t best = l - 1;
    *ret_steps = l * (l - 1) / 2;
    for (size_t j = 1; s > 1 && j < l; j++) {
        const size_t steps = j + r->steps[(l - j) * r->most + s - 1] + r->steps[j * r->most + s];
        if (steps >= *ret_steps) continue;
        *ret_steps = steps;
        best = j;
    }
    return best;
}

static void count_steps(struct revolve *r, size_t n)
{
    for (size_t l = 2; l <= n; l++)
        for (size_t s = 1; s < r->most; s++) split_of(r, l, s, &r->steps[l * r->most + s]);
}

/*
 * Stages [first, end) in a visit of segment `parent`, or in the step; the input of the first one is live. The stages
 * before a kept input are a segment of their own, which is reversed after the stages that follow have freed their
 * memory. The last stage is executed once, just before it is differentiated, and keeps its inner values.
 */
static void reverse(struct revolve *r, uint32_t parent, size_t first, size_t end, size_t s)
{
    for (; end - first > 1; s -= s > 1) {
        size_t steps;
        const size_t split = first + split_of(r, end - first, s, &steps);
        reverse(r, add_segment(r->c, parent), first, split, s);
        first = split;
    }
    r->segment[first] = parent;
}

struct rw_choice rival_revolve(const struct rw_problem *p, size_t snapshots)
{
    struct rw_choice c;
    const size_t n = rival_stages(p), most = snapshots + 1;
    struct revolve r = { &c, need(rw_calloc(n + 1, sizeof *r.segment)),
                         need(rw_calloc((n + 1) * most, sizeof *r.steps)), most };
    must(rw_choice_init(&c, p));
    count_steps(&r, n);
    if (n) reverse(&r, 0, 0, n, snapshots);
    place_nodes(&c, p, r.segment);
    drop_at_home(&c, p);
    rw_free(r.segment);
    rw_free(r.steps);
    return c;
}

/* ---- the knapsack: which values are expensive ---- */

enum {
    IS_DEAR = 1 << 0,         /* a product or similar */
    IS_RANDOM = 1 << 1,       /* or may not be dropped for another reason */
    IS_SMALL = 1 << 2,        /* at most a fourth of the size of its inputs */
    IS_READ_BY_DEAR = 1 << 3, /* by a product of backward: it has to be in memory anyway */
    IS_IN_MEMORY = 1 << 4     /* some reader could not be fused into one kernel with its node */
};

#define NEVER 1000000000u

struct items {
    struct rw_replayable g;
    uint8_t *is;        /* by value */
    uint32_t *distance; /* by value: nodes from it to backward, NEVER if backward does not depend on it */
    bool *banned, *saved;
};

static bool is_dear(const rw_tape *t, const struct rw_node *node)
{
    static const char *const begins[] = { "linear", "matmul", "conv2d", "attention", "moe_linear", "made" };
    const char *const name = t->ctx->ops[node->op]->name;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strncmp(name, begins[i], strlen(begins[i]))) return true;
    return false;
}

/* Whether the node is random. Attention without dropout is not. */
static bool is_random(const rw_tape *t, const struct rw_node *node)
{
    const rw_op_call call = rw_call_of(t, node);
    if (!(call.op->flags & RW_OP_RANDOM)) return false;
    return !call.op->draws || call.op->draws(&call) > 0;
}

/* The node whose op determines how expensive the value is. */
static const struct rw_node *producer_of(const struct items *x, uint32_t v)
{
    const struct rw_problem *const p = x->g.p;
    const uint32_t recompute_node = p->recompute_node[x->g.value[v]];
    return &p->t->nodes[recompute_node == RW_NONE_ID ? x->g.node[x->g.producer[v]] : recompute_node];
}

static bool is_small(const struct items *x, uint32_t v)
{
    const rw_tape *const t = x->g.p->t;
    const struct rw_node *const node = producer_of(x, v);
    size_t read = 0;
    for (uint32_t i = 0; i < node->n_inputs; i++)
        read += rw_tensor_bytes(rw_tape_value(t, t->operands[node->first_input + i]));
    return x->g.bytes[v] * 4 < read;
}

static void note_readers(struct items *x)
{
    const struct rw_problem *const p = x->g.p;
    const rw_tape *const t = p->t;
    for (size_t k = 0; k < p->n_order; k++) {
        const struct rw_node *const node = &t->nodes[p->order[k]];
        const bool late = node->adjoint;
        const bool dear = is_dear(t, late && node->of != RW_NONE_ID ? &t->nodes[node->of] : node);
        for (uint32_t i = 0; dear && i < node->n_inputs; i++) {
            const uint32_t v = x->g.value_of[rw_tape_base(t, t->operands[node->first_input + i])];
            if (v != RW_NONE_ID) x->is[v] |= (uint8_t)(IS_IN_MEMORY | (late ? IS_READ_BY_DEAR : 0));
        }
    }
}

static void measure_distances(struct items *x)
{
    const struct rw_replayable *const g = &x->g;
    for (uint32_t v = 0; v < g->n_values; v++) x->distance[v] = g->late[v] ? 1 : NEVER;
    for (uint32_t i = (uint32_t)g->n_nodes; i-- > 0;)
        for (uint32_t v = g->output_at[i]; v < g->output_at[i + 1]; v++)
            for (uint32_t k = g->input_at[i]; k < g->input_at[i + 1]; k++) {
                uint32_t *const d = &x->distance[g->input[k]];
                if (*d > x->distance[v] + 1) *d = x->distance[v] + 1;
            }
}

/* Classifies all values for the knapsack. */
static void open_items(struct items *x, const struct rw_problem *p)
{
    must(rw_replayable_init(&x->g, p));
    const size_t n = x->g.n_values + 1;
    x->is = need(rw_calloc(n, sizeof *x->is));
    x->distance = need(rw_calloc(n, sizeof *x->distance));
    x->banned = need(rw_calloc(n, sizeof *x->banned));
    x->saved = need(rw_calloc(n, sizeof *x->saved));
    for (uint32_t v = 0; v < x->g.n_values; v++) {
        const struct rw_node *const node = producer_of(x, v);
        const bool stays = is_random(p->t, node) || !rw_value_may_drop(&x->g, v);
        x->is[v] = (uint8_t)((is_dear(p->t, node) ? IS_DEAR | IS_IN_MEMORY : 0) | (stays ? IS_RANDOM : 0) |
                             (is_small(x, v) ? IS_SMALL : 0));
    }
    note_readers(x);
    measure_distances(x);
}

static void close_items(struct items *x)
{
    rw_replayable_finish(&x->g);
    rw_free(x->is);
    rw_free(x->distance);
    rw_free(x->banned);
    rw_free(x->saved);
}

/* ---- the knapsack: the cut ---- */

static void connect(struct rw_max_flow *f, uint32_t from, uint32_t to, int64_t room)
{
    uint32_t edge;
    must(rw_max_flow_add(f, from, to, &edge));
    rw_max_flow_set(f, edge, room);
}

static uint32_t in_of(uint32_t v)
{
    return 2 + 2 * v;
}

/* Values far from backward have a higher weight, so that late values are saved; so have values that could be fused with
   their readers. */
static int64_t weight_of(const struct items *x, uint32_t v)
{
    if (x->g.flags[v] & RW_IS_FREE) return 0;
    const double d = fmin(fmax(x->distance[v], 1), 100);
    return (int64_t)((double)x->g.bytes[v] * pow(1.1, d)) * (x->is[v] & IS_IN_MEMORY ? 1 : 2);
}

/* Saves the values on the minimum cut: everything on the sink's side is recomputed from them. */
static void cut(struct items *x)
{
    const struct rw_replayable *const g = &x->g;
    struct rw_max_flow f;
    must(rw_max_flow_init(&f, 2 + 2 * g->n_values));
    for (uint32_t v = 0; v < g->n_values; v++) {
        connect(&f, in_of(v), in_of(v) + 1, weight_of(x, v));
        if (x->banned[v]) connect(&f, 0, in_of(v), RW_FLOW_UNLIMITED);
        if (g->late[v]) connect(&f, in_of(v) + 1, 1, RW_FLOW_UNLIMITED);
        for (uint32_t k = g->input_at[g->producer[v]]; k < g->input_at[g->producer[v] + 1]; k++)
            connect(&f, in_of(g->input[k]) + 1, in_of(v), RW_FLOW_UNLIMITED);
    }
    rw_max_flow_run(&f);
    for (uint32_t v = 0; v < g->n_values; v++)
        x->saved[v] = f.level[in_of(v)] != UINT32_MAX && f.level[in_of(v) + 1] == UINT32_MAX;
    rw_max_flow_finish(&f);
}

static double cut_with_bans(struct items *x, uint8_t bans)
{
    double bytes = 0;
    for (uint32_t v = 0; v < x->g.n_values; v++) x->banned[v] = x->is[v] & bans;
    cut(x);
    for (uint32_t v = 0; v < x->g.n_values; v++)
        if (x->saved[v] && !(x->g.flags[v] & RW_IS_FREE)) bytes += (double)x->g.bytes[v];
    return bytes;
}

/* ---- the knapsack: its solution ---- */

#define SLOTS 10000 /* for a budget of 1 */

struct item {
    uint32_t value;
    size_t slots;
    double bytes;
    float seconds;
};

static int larger_first(const void *a, const void *b)
{
    const struct item *const x = a, *const y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

/* Expensive values that may be recomputed. */
static size_t list_items(const struct items *x, double all_bytes, struct item *item)
{
    size_t n = 0;
    for (uint32_t v = 0; v < x->g.n_values; v++) {
        if (!x->banned[v] || (x->is[v] & IS_RANDOM) || x->distance[v] == NEVER) continue;
        const double bytes = (double)x->g.bytes[v];
        item[n++] = (struct item){ v, (size_t)lrint(bytes / all_bytes * SLOTS), bytes,
                                   (float)x->g.seconds[x->g.producer[v]] };
    }
    if (n) qsort(item, n, sizeof *item, larger_first);
    return n;
}

/* Lifts the bans of items outside the subset with the most seconds that fits into so many slots. */
static void fill_knapsack(struct items *x, const struct item *item, size_t n, size_t slots)
{
    const size_t width = slots + 1;
    float *const best = need(rw_calloc((n + 1) * width, sizeof *best));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < width; j++) {
            const float *const before = best + i * width;
            const float with = j < item[i].slots ? 0 : before[j - item[i].slots] + item[i].seconds;
            best[(i + 1) * width + j] = fmaxf(before[j], with);
        }
    for (size_t i = n, j = slots; i-- > 0;) {
        const bool is_in = best[(i + 1) * width + j] != best[i * width + j];
        x->banned[item[i].value] = is_in;
        if (is_in) j -= item[i].slots;
    }
    rw_free(best);
}

static void save_within(struct items *x, double budget)
{
    const double all = cut_with_bans(x, IS_DEAR | IS_RANDOM | IS_SMALL | IS_READ_BY_DEAR);
    if (budget >= 1 || all == 0) return;
    const double fewer = cut_with_bans(x, IS_DEAR | IS_RANDOM | IS_SMALL);
    if (fewer < budget * all) return;
    struct item *const item = need(rw_malloc((x->g.n_values + 1) * sizeof *item));
    fill_knapsack(x, item, list_items(x, all, item), (size_t)lrint(budget * SLOTS));
    cut(x);
    rw_free(item);
}

struct rw_choice rival_knapsack(const struct rw_problem *p, double budget)
{
    struct items x;
    struct rw_compact_choice r;
    struct rw_choice c;
    open_items(&x, p);
    save_within(&x, budget);
    must(rw_compact_choice_init(&r, &x.g));
    for (uint32_t v = 0; v < x.g.n_values; v++)
        r.drop[v] = (x.saved[v] && budget > 0) || (x.is[v] & IS_RANDOM) ? RW_DROP_NOT : RW_DROP_ONCE;
    must(rw_compact_choice_choose(&r, &x.g, &c));
    rw_compact_choice_finish(&r);
    close_items(&x);
    return c;
}

/* ---- all of them ---- */

struct rw_choice rival_named(const struct rw_problem *p, struct rw_policy policy)
{
    struct rw_choice c;
    policy.whole = true;
    must(rw_policy_choose(p, &policy, &c));
    return c;
}

bool rival_next(const struct rw_problem *p, size_t i, char *name, struct rw_choice *ret_choice)
{
    static const struct rw_policy policies[] = { { .kind = RW_POLICY_FULL },
                                                 { .kind = RW_POLICY_UNIFORM, .n = 2 },
                                                 { .kind = RW_POLICY_UNIFORM, .n = 4 },
                                                 { .kind = RW_POLICY_BLOCK, .n = 6 } };
    static const char *const names[] = { "full", "uniform:2", "uniform:4", "block:6" };
    static const size_t snapshots[] = { 1, 2, 3, 4, 6, 8 };
    enum { NAMED = sizeof names / sizeof *names, SNAPSHOTS = 6, BUDGETS = 21 };
    if (i < NAMED) {
        snprintf(name, RIVAL_NAME, "%s", names[i]);
        *ret_choice = rival_named(p, policies[i]);
        return true;
    }
    i -= NAMED;
    if (i < SNAPSHOTS) {
        snprintf(name, RIVAL_NAME, "Revolve, %zu inputs", snapshots[i]);
        *ret_choice = rival_revolve(p, snapshots[i]);
        return true;
    }
    i -= SNAPSHOTS;
    if (i < BUDGETS) {
        snprintf(name, RIVAL_NAME, "knapsack, %.2f", (double)i / (BUDGETS - 1));
        *ret_choice = rival_knapsack(p, (double)i / (BUDGETS - 1));
        return true;
    }
    snprintf(name, RIVAL_NAME, "sqrt(n)");
    if (i == BUDGETS) *ret_choice = rival_sqrt(p);
    return i == BUDGETS;
}

const struct rw_frontier_entry *rival_ours(const struct rw_frontier *f, uint64_t bytes)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->point[i].peak <= bytes) return &f->point[i];
    return NULL;
}
