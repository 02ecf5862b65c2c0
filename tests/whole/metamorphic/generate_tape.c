/* Generates the statements of one tape: ops of fz_generate(), shorter and smaller, and those of FZ_SESSION. */
#include "whole/metamorphic/random_session.h"
#include "whole/fuzz/generate.h"

#include <string.h>

#define SHARED 3 /* leading leaves: two parameters and a buffer */

bool mm_has(const struct fz_program *p, const char *op)
{
    const int wanted = fz_op_named(op);
    for (int i = 0; i < p->n; i++)
        if (!p->s[i].dropped && p->s[i].op == wanted) return true;
    return false;
}

bool mm_has_effects(const struct fz_program *p)
{
    static const char *const ops[] = { "rw_assign", "statistics", "fuzz_store", "fuzz_tally", "fuzz_noise" };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (mm_has(p, ops[i])) return true;
    return false;
}

static int emit(struct fz_generator *g, const char *op, int x)
{
    return fz_emit(g, fz_op_named(op), 1, x);
}

/* ---- effects ---- */

/* count = count + 1 */
static void count(struct fz_generator *g)
{
    const int b = fz_new_leaf(g, "buffer", RW_F32, RW_SHAPE(3), 2);
    const int sum = b < 0 ? -1 : emit(g, "add_scalar", b);
    if (sum >= 0) fz_emit(g, fz_op_named("rw_assign"), 2, b, sum);
}

/* A view of a buffer is assigned to the buffer itself. */
static void turn(struct fz_generator *g)
{
    const int64_t n = 2 + fz_below(g, 2);
    const int b = fz_new_leaf(g, "buffer", g->dtype, RW_SHAPE(n, n), 2);
    if (b < 0) return;
    const int view = fz_emit(g, fz_op_named("transpose"), 1, b);
    if (view >= 0) fz_emit(g, fz_op_named("rw_assign"), 2, b, view);
}

static void assign_gradient(struct fz_generator *g)
{
    const int x = fz_op(fz_op_named("gradient"))->choose(g, fz_op_named("gradient"));
    if (x < 0) return;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int b = fz_new_leaf(g, "buffer", t.dtype, t.shape, 2);
    if (b >= 0) fz_emit(g, fz_op_named("rw_assign"), 2, b, x);
}

static void choose(struct fz_generator *g, const char *op)
{
    const int number = fz_op_named(op);
    if (!mm_without(op)) fz_op(number)->choose(g, number);
}

static void effect(struct fz_generator *g, bool reads_gradients)
{
    const int64_t which = fz_below(g, reads_gradients ? 10 : 8);
    const int before = g->p->n;
    if (which < 2) choose(g, "rw_assign");
    else if (which == 2) choose(g, "statistics");
    else if (which < 6) choose(g, "fuzz_store");
    else if (which == 6) count(g);
    else if (which == 7 && !mm_without("own view")) turn(g);
    else if (which > 7 && !mm_without("assigned gradient")) assign_gradient(g);
    /* If nothing is trained, an effect happens with the next evaluation: its buffer is not read afterwards. */
    for (int i = before; i < g->p->n && g->evaluates; i++) g->hidden[i] = true;
}

/* ---- regions and parts, which nest ---- */

struct nesting {
    int depth, begun[4];
    bool part[4];
};

static void begin(struct fz_generator *g, struct nesting *n)
{
    if (n->depth >= 3) return;
    const bool part = fz_chance(g, 25);
    n->begun[n->depth] = g->p->n;
    n->part[n->depth] = part;
    if (fz_emit(g, fz_op_named(part ? "part_begin" : "ckpt_begin"), 0) >= 0) n->depth++;
}

static void end(struct fz_generator *g, struct nesting *n)
{
    if (!n->depth || g->p->n >= FZ_STATEMENTS) return;
    const bool part = n->part[--n->depth];
    g->p->s[g->p->n++] = (struct fz_statement){ .op = (uint8_t)fz_op_named(part ? "part_end" : "ckpt_end") };
}

/* ---- ops ---- */

/* Ops that generate code for their shapes take a millisecond in each process. */
static bool is_slow(const char *name)
{
    return !strcmp(name, "conv2d") || !strcmp(name, "ssd_scan");
}

/* Appends a random op: one of FZ_SESSION, or one of the fuzzer's. */
static void add_op(struct fz_generator *g, const struct mm_body *how)
{
    static const char *const own[] = { "detach", "straight_through", "straight_through", "custom_grad", "custom_grad",
                                       "fuzz_breaks", "fuzz_draw", "layer", "layer", "rw_require_grad", "linear",
                                       "gradient", "gradient", "gradient" };
    if (fz_chance(g, 35)) {
        const int64_t which = fz_below(g, how->reads_gradients ? 14 : 11);
        if (!g->evaluates || strcmp(own[which], "rw_require_grad")) choose(g, own[which]);
        return;
    }
    const int op = fz_choose_op(g);
    const char *const name = fz_op(op)->name;
    if (!strcmp(name, "fuzz_noise") || (is_slow(name) && !fz_chance(g, 10))) return;
    if ((!how->effects && !strcmp(name, "fuzz_tally")) || mm_without(name)) return;
    /* A marked value is trained: effects then wait for a backward. */
    if (g->evaluates && (!strcmp(name, "rw_grad") || !strcmp(name, "rw_require_grad"))) return;
    fz_op(op)->choose(g, op);
}

/* The first statements: a copy of the first body's shared leaves, or new ones. */
static void lead(struct fz_generator *g, const struct mm_body *how)
{
    struct fz_program *const p = g->p;
    if (how->first) {
        memcpy(p->s, how->first->s, SHARED * sizeof *p->s);
        p->n = SHARED;
        return;
    }
    const bool evaluates = g->evaluates;
    g->evaluates = false;
    fz_op(0)->choose(g, 0);
    if (fz_chance(g, 50)) fz_new_leaf(g, "param", g->dtype, fz_type_of(p, 0)->shape, 2);
    else fz_op(0)->choose(g, 0);
    fz_new_leaf(g, "buffer", g->dtype, fz_type_of(p, 0)->shape, 2);
    g->evaluates = evaluates;
}

void mm_make_body(struct fz_program *p, const struct mm_body *how)
{
    struct fz_generator g = { .p = p, .state = how->shapes, .most = 6, .host = true, .evaluates = !how->trains };
    struct nesting nesting = { 0 };
    *p = (struct fz_program){ .seed = how->seed, .numbers = how->seed + 7, .part = how->part,
                              .evaluates = !how->trains };
    fz_make_shapes(&g);
    for (int i = 0; i < 5; i++)
        if (g.extent[i] < 2 && fz_chance(&g, 70)) g.extent[i] = 2 + fz_below(&g, 4);
    if (g.rank > 3) g.rank = 2;
    g.state = how->seed;
    lead(&g, how);
    if (g.evaluates) fz_emit(&g, fz_op_named("detach"), 1, 0);
    if (g.evaluates && !fz_chance(&g, 30)) p->n--; /* no parameter among the leaves */
    const int regions = 8 + (int)fz_below(&g, 20), most = p->n + how->length;
    for (int tries = 0; p->n < most && tries < 4 * how->length; tries++) {
        if (fz_chance(&g, regions)) begin(&g, &nesting);
        if (nesting.depth && p->n > nesting.begun[nesting.depth - 1] + 1 && fz_chance(&g, 20)) end(&g, &nesting);
        if (how->effects && fz_chance(&g, 12)) effect(&g, how->reads_gradients);
        else add_op(&g, how);
    }
    while (nesting.depth) end(&g, &nesting);
    if (how->effects) effect(&g, how->reads_gradients);
    if (how->trains) fz_make_losses(&g);
}
