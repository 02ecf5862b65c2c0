/*
 * Checks the contents of a plan's key: pairs of steps that differ in one property each. Both run alternately in one
 * context, where the second would get the first one's plan if that property were not part of the key; and each alone,
 * in a context of its own. Their results must be the same: gradients, their shapes, kept values, how often ops are
 * executed.
 */
#include "record/node.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { N = 6, OPS = 3 };

/* The observable results of a step. */
struct seen {
    float gradient[2][N];
    rw_shape shape;
    bool has[2];
    size_t kept;
    int runs[OPS];
};

struct step {
    struct fixture b;
    rw_tensor *w[2], *x; /* parameters; an input that is marked */
    rw_tensor *marked;   /* another value that may have a gradient */
};

static rw_tensor *half(rw_tape *t, rw_tensor *x)
{
    return rw_scale(t, x, 0.5);
}

static rw_tensor *attribute(struct step *s, int which)
{
    return rw_scale(s->b.t, rw_mul(s->b.t, s->w[0], s->x), which ? 2 : 3);
}

static rw_tensor *op(struct step *s, int which)
{
    return which ? rw_exp(s->b.t, s->w[0]) : rw_tanh(s->b.t, s->w[0]);
}

static rw_tensor *operands(struct step *s, int which)
{
    rw_tensor *const a = half(s->b.t, s->w[0]), *const b = half(s->b.t, s->w[1]);
    return which ? rw_sub(s->b.t, a, b) : rw_sub(s->b.t, b, a);
}

static rw_tensor *parameter(struct step *s, int which)
{
    return rw_mul(s->b.t, s->w[which], s->x);
}

static rw_tensor *shape_of_an_input(struct step *s, int which)
{
    const float ones[N] = { 1, 1, 1, 1, 1, 1 };
    s->x = rw_require_grad(
        s->b.t, rw_input(s->b.t, RW_F32, which ? RW_SHAPE(2, 3) : RW_SHAPE(3, 2), ones, 2 * 3 * sizeof *ones));
    return s->x;
}

static rw_tensor *mark(struct step *s, int which)
{
    rw_tensor *const y = rw_exp(s->b.t, s->w[0]);
    s->marked = which ? rw_require_grad(s->b.t, y) : y;
    return rw_mul(s->b.t, y, y);
}

/* The input is marked after an op has read it: a scope without gradients excludes that op from backward. */
static rw_tensor *scope(struct step *s, int which)
{
    if (which) rw_no_grad_begin(s->b.t);
    rw_tensor *const y = rw_exp(s->b.t, s->x);
    if (which) rw_no_grad_end(s->b.t);
    return rw_mul(s->b.t, y, rw_require_grad(s->b.t, s->x));
}

/* Three consecutive ops, the first in a region. */
static rw_tensor *region(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, "selective:a");
    ckpt_begin(s->b.t, which ? "a" : "b");
    rw_tensor *y = counted_square(s->b.t, counted_square(s->b.t, s->w[0], 0), 1);
    ckpt_end(s->b.t);
    return counted_square(s->b.t, y, 2);
}

static rw_tensor *end_of_a_region(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, "full");
    ckpt_begin(s->b.t, "a");
    rw_tensor *y = counted_square(s->b.t, s->w[0], 0);
    if (!which) ckpt_end(s->b.t);
    y = counted_square(s->b.t, y, 1);
    if (which) ckpt_end(s->b.t);
    return counted_square(s->b.t, y, 2);
}

/* Two regions of the same name, or one. */
static rw_tensor *one_region_or_two(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, "full");
    ckpt_begin(s->b.t, "a");
    rw_tensor *y = counted_square(s->b.t, counted_square(s->b.t, s->w[0], 0), 1);
    if (which) {
        ckpt_end(s->b.t);
        ckpt_begin(s->b.t, "a");
    }
    y = counted_square(s->b.t, y, 2);
    ckpt_end(s->b.t);
    return y;
}

static rw_tensor *decision(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, "full");
    ckpt_begin(s->b.t, "a");
    rw_tensor *const y = counted_square(s->b.t, s->w[0], 0);
    if (which) ckpt_keep(s->b.t, y);
    rw_tensor *const z = counted_square(s->b.t, y, 1);
    ckpt_end(s->b.t);
    return counted_square(s->b.t, z, 2);
}

static rw_tensor *name(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, "names:keep=kept");
    ckpt_begin(s->b.t, "a");
    rw_tensor *const y = counted_square(s->b.t, s->w[0], 0);
    ckpt_name(s->b.t, y, which ? "kept" : "left");
    rw_tensor *const z = counted_square(s->b.t, y, 1);
    ckpt_end(s->b.t);
    return counted_square(s->b.t, z, 2);
}

static rw_tensor *policy(struct step *s, int which)
{
    ckpt_set_policy(s->b.t, which ? "full" : "none");
    ckpt_begin(s->b.t, "a");
    rw_tensor *const y = counted_square(s->b.t, counted_square(s->b.t, s->w[0], 0), 1);
    ckpt_end(s->b.t);
    return counted_square(s->b.t, y, 2);
}

static const struct pair {
    const char *name;
    rw_tensor *(*build)(struct step *s, int which);
} pairs[] = { { "an attribute", attribute },
              { "an op", op },
              { "the order of operands", operands },
              { "a parameter", parameter },
              { "the shape of an input", shape_of_an_input },
              { "a mark", mark },
              { "a scope without gradients", scope },
              { "a region's name", region },
              { "where a region ends", end_of_a_region },
              { "one region or two", one_region_or_two },
              { "a decision", decision },
              { "a value's name", name },
              { "the policy", policy } };

static struct step open_step(void)
{
    struct step s = { .b = fixture_open(1, 1) };
    for (int i = 0; i < 2; i++) {
        s.w[i] = rw_param(s.b.ctx, i ? "w1" : "w0", RW_F32, RW_SHAPE(N));
        rw_init_constant(s.w[i], i ? 1.25 : 0.75);
    }
    return s;
}

static void look(struct step *s, rw_tensor *x, int i, struct seen *ret)
{
    rw_tensor *const g = x ? rw_gradient(x) : NULL;
    ret->has[i] = g != NULL;
    if (!g) return;
    ret->shape = rw_tensor_shape(g);
    cr_assert_eq(rw_read(s->b.t, g, ret->gradient[i], sizeof ret->gradient[i]), RW_OK, "%s",
                 rw_error_message(s->b.ctx));
}

/* Runs one of the two steps of a pair and records its results. */
static struct seen run(struct step *s, const struct pair *p, int which)
{
    const float ones[N] = { 1, 2, 3, 4, 5, 6 };
    struct seen seen;
    rw_memory memory;
    memset(&seen, 0, sizeof seen);
    counted_clear();
    rw_zero_grad(s->b.ctx);
    rw_tape_reset(s->b.t);
    s->marked = NULL;
    s->x = rw_input(s->b.t, RW_F32, RW_SHAPE(N), ones, sizeof ones);
    rw_tensor *const y = p->build(s, which);
    cr_assert_eq(rw_backward(s->b.t, rw_sum(s->b.t, y, RW_ALL_AXES, false)), RW_OK, "%s: %s", p->name,
                 rw_error_message(s->b.ctx));
    look(s, s->w[0], 0, &seen);
    const bool of_input = p->build == shape_of_an_input || p->build == scope;
    look(s, of_input ? s->x : p->build == mark ? s->marked : s->w[1], 1, &seen);
    cr_assert_eq(rw_memory_stats(s->b.ctx, &memory), RW_OK);
    seen.kept = memory.kept;
    memcpy(seen.runs, counted_runs, sizeof seen.runs);
    return seen;
}

static struct seen run_alone(const struct pair *p, int which)
{
    struct step s = open_step();
    const struct seen seen = run(&s, p, which);
    fixture_close(&s.b);
    return seen;
}

Test(keys, steps_that_differ_in_one_thing_have_plans_of_their_own)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct pair *const p = &pairs[i];
        const struct seen alone[2] = { run_alone(p, 0), run_alone(p, 1) };
        cr_assert(memcmp(&alone[0], &alone[1], sizeof *alone), "%s: nothing tells the two apart", p->name);
        struct step s = open_step();
        for (int turn = 0; turn < 4; turn++) {
            const struct seen seen = run(&s, p, turn % 2);
            cr_assert(!memcmp(&seen, &alone[turn % 2], sizeof seen), "%s: step %d is not what it is alone", p->name,
                      turn);
        }
        fixture_close(&s.b);
    }
}

/* The same recording with other requested values, and other roots and seeds of backward. */
Test(keys, requested_outputs)
{
    struct fixture b = fixture_open(1, 1);
    const float x[2] = { 1, 2 }, two = 2;
    float got[2];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    rw_init_constant(w, 3);
    for (int turn = 0; turn < 8; turn++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const y = rw_mul(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(2), x, sizeof x));
        rw_tensor *const seed = rw_input(b.t, RW_F32, RW_SCALAR, &two, sizeof two);
        rw_tensor *const all[] = { rw_neg(b.t, y), rw_exp(b.t, rw_scale(b.t, y, 0)) };
        rw_tensor *const loss[] = { rw_sum(b.t, y, RW_ALL_AXES, false), rw_mean(b.t, y, RW_ALL_AXES, false) };
        const int which = turn % 2;
        if (turn < 4) {
            cr_assert_eq(rw_read(b.t, all[which], got, sizeof got), RW_OK);
            cr_assert(got[0] == (which ? 1 : -3) && got[1] == (which ? 1 : -6), "turn %d: %g %g", turn,
                      (double)got[0], (double)got[1]);
        } else {
            const rw_status status = turn < 6 ? rw_backward(b.t, loss[which])
                                              : rw_backward_from(b.t, &loss[which], &seed, 1);
            const float factor = (which ? 0.5f : 1) * (turn < 6 ? 1 : 2);
            cr_assert_eq(status, RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_read(NULL, rw_gradient(w), got, sizeof got), RW_OK);
            cr_assert(got[0] == factor && got[1] == 2 * factor, "turn %d: %g %g", turn, (double)got[0],
                      (double)got[1]);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A parameter that reuses the id of a destroyed average has a gradient; the plan of the step before has none for it. */
Test(keys, an_id_that_is_given_again)
{
    const float ones[N] = { 1, 1, 1, 1, 1, 1 }, numbers[N] = { 1, 2, 3, 4, 5, 6 };
    for (int buffer = 0; buffer < 2; buffer++) {
        struct fixture b = fixture_open(1, 1);
        rw_weight_average *average = NULL;
        float got[N];
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
        cr_assert_eq(rw_write(w, numbers, sizeof numbers), RW_OK);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
        rw_tensor *const a = rw_weight_average_of(average, w);
        const uint32_t id = a->id;
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, w, a), RW_ALL_AXES, false)), RW_OK);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
        rw_weight_average_destroy(&average);
        if (buffer) cr_assert_eq(rw_buffer(b.ctx, "b", RW_F32, RW_SHAPE(N))->id, id);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N));
        cr_assert_eq(p->id == id, !buffer);
        cr_assert_eq(rw_write(p, ones, sizeof ones), RW_OK);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, w, p), RW_ALL_AXES, false)), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(p), got, sizeof got), RW_OK);
        cr_expect(!memcmp(got, numbers, sizeof got), "%g %g", (double)got[0], (double)got[1]);
        fixture_close(&b);
    }
}
