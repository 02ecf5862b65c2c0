/* Greedy fills of random choices, compared with the same trials on a plain list of live bytes. */
#include "base/round_up.h"
#include "remat/planner/greedy_fill.h"
#include "remat/planner_fixture.h"
#include "remat/random_tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TAPES = 60, NODES_MAX = 60, LIMITS = 12 };

struct list {
    const struct rw_greedy_fill *f;
    int64_t *live; /* by action */
    size_t n;
};

static struct list list_live(const struct rw_greedy_fill *f, const struct rw_schedule *s)
{
    struct list l = { f, calloc(s->n_actions + 1, sizeof *l.live), s->n_actions };
    cr_assert_not_null(l.live);
    for (uint32_t i = 0; i < s->n_buffers; i++) {
        const struct rw_buffer *const b = &s->buffers[i];
        const uint64_t bytes = rw_round_up(b->bytes, f->g->p->t->ctx->device->alignment);
        for (uint32_t a = b->first; rw_buffer_is_placed(s, i) && a <= b->last; a++) l.live[a] += (int64_t)bytes;
    }
    return l;
}

static bool fits(const struct list *l, const struct rw_gap *gap, int64_t bytes, int64_t most)
{
    for (uint32_t a = gap->from; a <= gap->to; a++)
        if (l->live[a] + bytes > most) return false;
    return true;
}

static void add(const struct list *l, const struct rw_gap *gap, int64_t bytes)
{
    for (uint32_t a = gap->from; a <= gap->to; a++) l->live[a] += bytes;
}

/* Tries the values in the order of the fill. */
static void fill_list(const struct list *l, int64_t most, uint8_t *drop)
{
    const struct rw_greedy_fill *const f = l->f;
    for (size_t i = 0; i < f->n_candidates; i++) {
        const uint32_t v = f->candidate[i].value, first = f->gap_at[v], end = f->gap_at[v + 1];
        const int64_t bytes = (int64_t)f->g->bytes[v];
        bool fit = true;
        for (uint32_t k = first; k < end; k++) fit &= fits(l, &f->gap[k], bytes, most);
        for (uint32_t k = first; fit && k < end; k++) add(l, &f->gap[k], bytes);
        if (fit) {
            drop[v] = RW_DROP_NOT;
        } else if (rw_drop_rank(drop[v]) >= 3 && f->gap[first].from < f->n_forward && end - first > 1 &&
                   fits(l, &f->gap[first], bytes, most)) {
            add(l, &f->gap[first], bytes);
            drop[v] = rw_drop_after_first(drop[v]);
        }
    }
}

/* Drops some values, once or in visits of segments of one node. */
static void choose(struct dice *d, const struct rw_replayable *g, struct rw_compact_choice *r)
{
    const bool visits = below(d, 2);
    cr_assert_eq(rw_compact_choice_init(r, g), RW_OK);
    for (uint32_t i = 0; visits && i < g->n_nodes; i++)
        cr_assert_neq(rw_compact_choice_add_stretch(r, (struct rw_stretch){ i, i + 1, RW_NONE_ID }), RW_NONE_ID);
    for (uint32_t v = 0; v < g->n_values; v++)
        if (rw_value_may_drop(g, v) && below(d, 4)) r->drop[v] = visits && below(d, 4) ? RW_DROP_AT : RW_DROP_ONCE;
}

/* Compares the fills up to a series of limits. Returns the number of values that were kept. */
static size_t compare(const struct rw_replayable *g, const struct rw_compact_choice *base, bool dearest_first)
{
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    struct rw_greedy_fill fill;
    size_t n_kept = 0;
    cr_assert_eq(rw_compact_choice_expand(base, g, &sim.choice), RW_OK);
    cr_assert_eq(rw_simulate_briefly(g->p, &sim.choice, &sim, &cost), RW_OK);
    cr_assert_eq(rw_greedy_fill_init(&fill, g, &sim.schedule), RW_OK);
    if (dearest_first) rw_greedy_fill_rank_by_seconds(&fill, base);
    else rw_greedy_fill_rank(&fill, base, NULL);
    for (uint64_t i = 0; i < LIMITS; i++) {
        const uint64_t most = cost.peak * (i + 1) / (LIMITS - 3);
        struct rw_compact_choice r, wanted;
        struct list list = list_live(&fill, &sim.schedule);
        cr_assert_eq(rw_compact_choice_copy(&r, base, g), RW_OK);
        cr_assert_eq(rw_compact_choice_copy(&wanted, base, g), RW_OK);
        rw_greedy_fill_to(&fill, most, &r);
        fill_list(&list, (int64_t)most, wanted.drop);
        for (uint32_t v = 0; v < g->n_values; v++) {
            cr_expect_eq(r.drop[v], wanted.drop[v], "value %u: %d, expected %d", v, r.drop[v], wanted.drop[v]);
            n_kept += r.drop[v] != base->drop[v];
        }
        free(list.live);
        rw_compact_choice_finish(&r);
        rw_compact_choice_finish(&wanted);
    }
    rw_greedy_fill_finish(&fill);
    rw_simulation_finish(&sim);
    return n_kept;
}

Test(greedy_fill, keeps_the_values_of_a_plain_list, .timeout = 120)
{
    size_t n_kept = 0;
    for (uint64_t seed = 0; seed < TAPES; seed++) {
        struct step s = { .b = fixture_open(1, 1) };
        struct dice d = { seed };
        struct rw_replayable g;
        rw_tensor *const p = rw_param(s.b.ctx, "p", RW_F32, RW_SHAPE(8 * SYNTH_UNIT));
        open_problem(&s, random_tape(s.b.t, p, 7 + (int)below(&d, NODES_MAX - 7), seed));
        cr_assert_eq(rw_replayable_init(&g, &s.problem), RW_OK);
        for (int i = 0; i < 4; i++) {
            struct rw_compact_choice base;
            choose(&d, &g, &base);
            n_kept += compare(&g, &base, i % 2);
            rw_compact_choice_finish(&base);
        }
        rw_replayable_finish(&g);
        close_step(&s);
    }
    cr_expect_gt(n_kept, (size_t)1000, "%zu values", n_kept);
}
