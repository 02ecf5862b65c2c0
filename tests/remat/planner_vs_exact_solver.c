/*
 * The planner compared with the best of all plans that execute the nodes in the tape's order: every value may be
 * dropped and recomputed at any time, in forward too. Tapes of up to twelve values, unchanged and with 24 tiny nodes in
 * front, which must not make a planner search less thoroughly.
 *
 * The solver is written from the definition and shares no code with the planner: states are (position in the order, set
 * of live values); a step executes the next node, recomputes a value whose inputs are live, or drops one. It leaves out
 * a node that only backward reads: that one is computed like a dropped value, when backward reads it. The bytes of
 * gradients and workspaces at each node are read from the schedule that drops nothing, because no plan drops a
 * gradient.
 *
 *   REWIND_OPTIMUM  number of tapes of each family, times ten (1000; under AddressSanitizer 40)
 */
#include "figure.h"
#include "remat/planner_fixture.h"
#include "remat/random_tape.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 12, SETS = 1 << VALUES, NODES = 128, BUDGETS = 8, FRONT = 24, TIMES = 256 };

/* ---- tapes ---- */

static rw_tensor *node(rw_tape *t, struct dice *d, rw_tensor *a, rw_tensor *b, int reads)
{
    rw_tensor *const in[] = { a, b };
    return synth_apply(t, in, b ? 2 : 1, (struct synth){ .units = TIMES * (1 + below(d, 8)),
                                                        .us = (double)(1 + below(d, 50)), .reads = reads });
}

static rw_tensor *unet(rw_tape *t, struct dice *d, rw_tensor *x)
{
    rw_tensor *v[8] = { x };
    const int h = 4 + (int)below(d, 2);
    for (int i = 1; i <= h; i++) v[i] = node(t, d, v[i - 1], NULL, 5);
    x = v[h];
    for (int i = h - 1; i > 0; i--) x = node(t, d, x, v[i], 3);
    return x;
}

static rw_tensor *random_graph(rw_tape *t, struct dice *d, rw_tensor *x)
{
    rw_tensor *v[16] = { x };
    const int n = 5 + (int)below(d, 4);
    for (int i = 1; i <= n; i++) {
        rw_tensor *const other = i > 1 && below(d, 2) ? v[i - 2 - below(d, i < 4 ? i - 1 : 3)] : NULL;
        const int reads = (int)(other ? below(d, 4) : below(d, 2)) | (int)below(d, 2) * 4;
        v[i] = node(t, d, v[i - 1], other, reads);
    }
    return v[n];
}

static rw_tensor *pyramid(rw_tape *t, struct dice *d, rw_tensor *x)
{
    for (int i = 0, n = 8 + (int)below(d, 3); i < n; i++) {
        rw_tensor *const in[] = { x };
        const int64_t units = TIMES * (i < n / 2 ? 1 + i : n - i);
        x = synth_apply(t, in, 1, (struct synth){ .units = units, .us = (double)(1 + below(d, 50)), .reads = 5 });
    }
    return x;
}

static rw_tensor *residual(rw_tape *t, struct dice *d, rw_tensor *x)
{
    for (int i = 0; i < 4; i++) {
        rw_tensor *const y = node(t, d, x, NULL, 5);
        x = node(t, d, node(t, d, y, NULL, 1), i ? x : NULL, 0);
    }
    return x;
}

static rw_tensor *dense(rw_tape *t, struct dice *d, rw_tensor *x)
{
    rw_tensor *v[16] = { x };
    for (int i = 1; i <= 8; i++) v[i] = node(t, d, v[i - 1], i > 2 ? v[1 + below(d, i - 2)] : NULL, 3);
    return v[8];
}

static rw_tensor *cross_attention(rw_tape *t, struct dice *d, rw_tensor *x)
{
    rw_tensor *const read = node(t, d, node(t, d, x, NULL, 5), NULL, 5);
    for (int i = 0; i < 6; i++) x = node(t, d, i ? x : read, i ? read : NULL, 3);
    return x;
}

static rw_tensor *block(rw_tape *t, struct dice *d, rw_tensor *x)
{
    for (int i = 0; i < 2; i++) {
        rw_tensor *const a = node(t, d, x, NULL, 1), *const b = node(t, d, a, NULL, 5);
        x = node(t, d, node(t, d, node(t, d, b, NULL, 4), a, 3), NULL, 1);
    }
    return x;
}

/* The gradient of x[0] from that of y and x[1], which only this reads. */
static rw_status gradient_by_side(rw_grad_call *g, const void *data)
{
    rw_tensor *const read[] = { rw_grad_upstream(g, 0), rw_grad_input(g, 2) };
    const int64_t units = rw_tensor_layout(rw_grad_input(g, 1))->numel / (SYNTH_UNIT / 4);
    rw_grad_set(g, 1, synth_apply(rw_grad_tape(g), read, 2, (struct synth){ .units = units, .us = 20 }));
    return RW_OK;
}

/* Each node has one or two others that only its gradient reads. */
static rw_tensor *side(rw_tape *t, struct dice *d, rw_tensor *x)
{
    for (int i = 0; i < 4; i++) {
        rw_tensor *const y = node(t, d, x, NULL, 0);
        rw_tensor *const first = node(t, d, rw_detach(t, x), NULL, 0);
        rw_tensor *const in[] = { x, i % 2 ? node(t, d, first, NULL, 0) : first };
        x = rw_custom_grad(t, y, in, 2, gradient_by_side, NULL, 0);
    }
    return x;
}

static const struct family {
    const char *name;
    rw_tensor *(*record)(rw_tape *t, struct dice *d, rw_tensor *x);
} families[] = {
    { "random", random_graph }, { "U-Net", unet },   { "pyramid", pyramid }, { "residual", residual },
    { "dense", dense },         { "cross", cross_attention }, { "block", block },
};
enum { FAMILIES = sizeof families / sizeof *families };
static const struct family with_sides = { "side", side };

/* ---- the solver ---- */

struct solver {
    size_t n_order, n_values;
    double seconds[NODES];     /* of one execution, by position in the order */
    uint32_t reads[NODES];     /* by position: a set of values */
    int makes[NODES];          /* by position: a value, -1 for none that counts */
    bool waits[NODES];         /* by position: it may be executed in backward for the first time */
    uint32_t inputs[VALUES];   /* by value: the inputs of a recomputation */
    double again[VALUES];      /* by value: seconds of one recomputation */
    size_t computed_at[VALUES];       /* by value: position of its node */
    uint64_t bytes[VALUES];
    uint64_t during[NODES], between[NODES]; /* by position: bytes of gradients and workspaces during it, before it */
    uint64_t live[SETS];
    double best[SETS], next[SETS];
    uint32_t queue[SETS];
    bool queued[SETS];
};

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

/* Values that are neither tiny nor results. */
static void read_tape(struct solver *s, const struct step *step, const struct rw_schedule *none)
{
    const struct rw_problem *const p = &step->problem;
    const struct rw_tape *const t = p->t;
    int id[1024];
    memset(s, 0, sizeof *s);
    cr_assert(p->n_order < NODES && t->n_values < 1024 && t->ctx->device->alignment <= 512);
    memset(id, 0xff, sizeof id);
    s->n_order = p->n_order;
    for (size_t i = 0; i < p->n_order; i++) {
        const struct rw_node *const node = &t->nodes[p->order[i]];
        s->seconds[i] = rw_problem_seconds(p, p->order[i]);
        s->makes[i] = -1;
        for (uint32_t k = 0; k < node->n_inputs; k++) {
            const int v = id[rw_tape_base(t, t->operands[node->first_input + k])];
            if (v >= 0) s->reads[i] |= 1u << v;
        }
        const uint32_t out = node->first_output;
        if (node->adjoint || p->wanted[out] || p->bytes[out] < TIMES * SYNTH_UNIT) continue;
        cr_assert(s->n_values < VALUES && node->n_outputs == 1);
        const size_t v = s->n_values++;
        id[out] = s->makes[i] = (int)v;
        s->inputs[v] = s->reads[i];
        s->again[v] = s->seconds[i];
        s->computed_at[v] = i;
        s->bytes[v] = rounded(p->bytes[out]);
    }
    uint32_t read = 0;
    for (size_t i = p->n_order; i-- > 0;) {
        if (t->nodes[p->order[i]].adjoint) continue;
        s->waits[i] = s->makes[i] >= 0 && !(read >> s->makes[i] & 1);
        if (!s->waits[i]) read |= s->reads[i];
    }
    for (size_t b = 0; b < none->n_buffers; b++) {
        const struct rw_buffer *const x = &none->buffers[b];
        const uint32_t made_by = x->value == RW_NONE_ID ? RW_NONE_ID : rw_tape_value(t, x->value)->producer;
        if (!rw_buffer_is_placed(none, (uint32_t)b) || (made_by != RW_NONE_ID && !t->nodes[made_by].adjoint)) continue;
        for (uint32_t i = x->first; i <= x->last && i < p->n_order; i++) {
            s->during[i] += rounded(x->bytes);
            if (i > x->first) s->between[i] += rounded(x->bytes);
        }
    }
    for (uint32_t set = 0; set < SETS; set++)
        for (size_t v = 0; v < s->n_values; v++)
            if (set >> v & 1) s->live[set] += s->bytes[v];
}

/* Cost of an action that needs so many bytes: its seconds within a budget; or, to find the minimum budget, the
   bytes. */
static double after(double before, double seconds, uint64_t bytes, uint64_t budget)
{
    if (!budget) return fmax(before, (double)bytes);
    return bytes <= budget ? before + seconds : INFINITY;
}

static void relax(struct solver *s, uint32_t set, double cost, size_t *end)
{
    if (!(cost < s->best[set])) return;
    s->best[set] = cost;
    if (s->queued[set]) return;
    s->queued[set] = true;
    s->queue[(*end)++ % SETS] = set;
}

/* Values are dropped and recomputed before the node at that position. */
static void change_sets(struct solver *s, size_t place, uint64_t budget)
{
    size_t begin = 0, end = 0;
    for (uint32_t set = SETS; set-- > 0;) {
        s->queued[set] = s->best[set] < INFINITY;
        if (s->queued[set]) s->queue[end++] = set;
    }
    while (begin < end) {
        const uint32_t set = s->queue[begin++ % SETS];
        const double cost = s->best[set];
        s->queued[set] = false;
        for (size_t v = 0; v < s->n_values; v++) {
            const uint32_t bit = 1u << v;
            if (set & bit) {
                relax(s, set & ~bit, cost, &end);
            } else if (s->computed_at[v] < place && (s->inputs[v] & ~set) == 0) {
                const uint64_t bytes = s->live[set] + s->bytes[v] + s->between[place];
                relax(s, set | bit, after(cost, s->again[v], bytes, budget), &end);
            }
        }
    }
}

/* Minimum seconds of a step within so many bytes, INFINITY for none; for 0 bytes the minimum budget. */
static double solve(struct solver *s, uint64_t budget)
{
    for (uint32_t set = 0; set < SETS; set++) s->best[set] = set ? INFINITY : 0;
    for (size_t i = 0; i < s->n_order; i++) {
        change_sets(s, i, budget);
        for (uint32_t set = 0; set < SETS; set++) s->next[set] = INFINITY;
        for (uint32_t set = 0; set < SETS; set++) {
            if (s->waits[i] && s->best[set] < s->next[set]) s->next[set] = s->best[set];
            if (s->best[set] == INFINITY || (s->reads[i] & ~set)) continue;
            const uint32_t to = s->makes[i] < 0 ? set : set | 1u << s->makes[i];
            const double cost = after(s->best[set], s->seconds[i], s->live[to] + s->during[i], budget);
            if (cost < s->next[to]) s->next[to] = cost;
        }
        memcpy(s->best, s->next, sizeof s->best);
    }
    double best = INFINITY;
    for (uint32_t set = 0; set < SETS; set++) best = fmin(best, s->best[set]);
    return best;
}

/* ---- comparison ---- */

struct figures {
    double over, most, least_over, least_most;
    size_t n, tapes, refused, slow; /* slow: budgets whose answer is more than a tenth above the optimum */
    uint64_t seed; /* of most */
};

/* The frontier's answers for some budgets between the minimum and the bytes of `none`. front: bytes that the nodes in
   front may keep in addition. */
static void compare(struct figures *f, struct rw_frontier *frontier, struct solver *s, uint64_t front, uint64_t seed)
{
    const double least = solve(s, 0), none = (double)rw_frontier_none_peak(frontier);
    uint64_t planned_least = UINT64_MAX;
    for (size_t i = 0; i < frontier->n_points; i++)
        if (frontier->point[i].peak < planned_least) planned_least = frontier->point[i].peak;
    const double least_over = fmax(1, ((double)planned_least - (double)front) / least);
    f->least_over += least_over;
    f->least_most = fmax(f->least_most, least_over);
    f->tapes++;
    for (int k = 0; k < BUDGETS; k++) {
        const uint64_t bytes = (uint64_t)(least + (none - least) * k / BUDGETS) / 512 * 512;
        const double best = solve(s, bytes), planned = planned_within(frontier, bytes + front);
        double bound;
        cr_assert_eq(rw_frontier_bound(frontier, bytes + front, &bound), RW_OK);
        if (!front)
            cr_expect_leq(bound, best * (1 + 1e-9), "seed %llu, %llu bytes: bound %g, best %g",
                          (unsigned long long)seed, (unsigned long long)bytes, bound, best);
        f->refused += planned == INFINITY;
        if (planned == INFINITY) continue;
        f->over += planned / best;
        f->slow += planned > 1.1 * best;
        if (planned / best > f->most) f->most = planned / best, f->seed = seed;
        f->n++;
    }
}

/* One tape of a family. The solver does not know the tiny nodes in front, and may keep their bytes in addition. */
static void check_tape(const struct family *family, uint64_t seed, int front, struct figures *f)
{
    static struct solver s;
    struct step step = { .b = fixture_open(1, 1) };
    struct rw_frontier frontier;
    struct dice d = { seed };
    rw_tensor *x = rw_param(step.b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT / 4));
    for (int i = 0; i < front; i++) x = synth_apply(step.b.t, &x, 1, (struct synth){ .units = 1, .us = 1, .reads = 5 });
    open_problem(&step, rw_sum(step.b.t, family->record(step.b.t, &d, x), RW_ALL_AXES, false));
    cr_assert_eq(rw_frontier_init(&frontier, &step.problem), RW_OK);
    cr_assert_eq(rw_candidate_simulate(&frontier.candidates, 0, frontier.candidates.sims.room), RW_OK);
    read_tape(&s, &step, &frontier.candidates.sims.room->schedule);
    compare(f, &frontier, &s, (uint64_t)front * 2 * SYNTH_UNIT, seed);
    rw_frontier_finish(&frontier);
    close_step(&step);
}

/* Compares planner and solver on the tapes of one family, and prints the gaps. */
static void check_family(const struct family *family, int front, struct figures *all)
{
    struct figures f = { 0 };
    const size_t n = tapes() / 50 + 1;
    for (uint64_t seed = 1; seed <= n; seed++) check_tape(family, seed, front, &f);
    fprintf(stderr, "%-9s%s: %zu budgets, planned over best %.4f, most %.4f (seed %llu), %zu over 1.1; least over "
            "least possible %.4f, most %.4f; %zu refused\n",
            family->name, front ? ", long" : "", f.n, f.over / (double)f.n, f.most,
            (unsigned long long)f.seed, f.slow, f.least_over / (double)f.tapes, f.least_most, f.refused);
    all->over += f.over;
    all->n += f.n;
    all->most = fmax(all->most, f.most);
    all->least_over += f.least_over;
    all->least_most = fmax(all->least_most, f.least_most);
    all->tapes += f.tapes;
    all->refused += f.refused;
    all->slow += f.slow;
}

static void check_families(int front)
{
    struct figures f = { 0 };
    for (size_t i = 0; i < FAMILIES; i++) check_family(&families[i], front, &f);
    cr_expect_leq(f.over, 1.003 * (double)f.n, "mean %g", f.over / (double)f.n);
    cr_expect_leq(f.slow * 100, f.n, "%zu of %zu are over the best by more than a tenth", f.slow, f.n);
    cr_expect_leq(f.least_over, 1.01 * (double)f.tapes, "mean %g", f.least_over / (double)f.tapes);
    cr_expect_leq(f.least_most, 1.05);
    cr_expect_leq(f.refused * 50, f.n);
}

Test(planner_vs_exact_solver, small_tapes, .timeout = 3600)
{
    check_families(0);
}

Test(planner_vs_exact_solver, small_tapes_after_many_tiny_nodes, .timeout = 3600)
{
    check_families(FRONT);
}

/* Below some minima there are plans that recompute a value before the gradient read together with it is computed: ours
   recompute as late as possible. */
Test(planner_vs_exact_solver, small_tapes_with_nodes_that_only_backward_reads, .timeout = 3600)
{
    for (int front = 0; front <= FRONT; front += FRONT) {
        struct figures f = { 0 };
        check_family(&with_sides, front, &f);
        cr_expect_leq(f.over, 1.03 * (double)f.n, "mean %g", f.over / (double)f.n);
        cr_expect_leq(f.most, 1.3);
        cr_expect_leq(f.least_over, 1.15 * (double)f.tapes, "mean %g", f.least_over / (double)f.tapes);
        cr_expect_leq(f.refused * 4, f.n);
    }
}
