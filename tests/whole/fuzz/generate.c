/* Generates a random program from a seed. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/region_and_value_names.h"

#include <stdio.h>
#include <string.h>

uint64_t fz_random(struct fz_generator *g) /* splitmix64 */
{
    uint64_t x = g->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int64_t fz_extent(struct fz_generator *g)
{
    return g->extent[fz_below(g, 5)];
}

/* Statements */

int fz_emit_list(struct fz_generator *g, int op, int n, const int *in)
{
    struct fz_program *const p = g->p;
    if (p->n >= FZ_STATEMENTS - 40) return -1; /* leaves space for closing regions and for losses */
    struct fz_statement *const s = &p->s[p->n];
    *s = (struct fz_statement){ .op = (uint8_t)op, .n_in = (uint8_t)n };
    for (int i = 0; i < n; i++) {
        if (in[i] < 0) return -1;
        s->in[i] = (int16_t)in[i];
    }
    for (int i = 0; i < 3; i++) s->word[i] = (uint32_t)fz_random(g);
    if (!fz_resolve_statement(p, p->n)) return -1;
    for (int i = 0; i < n && !(fz_op(op)->flags & FZ_MARK); i++) g->read[in[i]] = true;
    return p->n++ * FZ_OUTS;
}

int fz_emit(struct fz_generator *g, int op, int n, ...)
{
    int in[FZ_INS];
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n; i++) in[i] = va_arg(args, int);
    va_end(args);
    return fz_emit_list(g, op, n, in);
}

int fz_new_leaf(struct fz_generator *g, const char *op, rw_dtype dtype, rw_shape shape, double bound)
{
    struct fz_program *const p = g->p;
    if (p->n >= FZ_STATEMENTS - 40) return -1;
    if (g->evaluates && !strcmp(op, "param")) op = "buffer";
    struct fz_statement *const s = &p->s[p->n];
    *s = (struct fz_statement){ .op = (uint8_t)fz_op_named(op), .n_out = 1 };
    s->out[0] = (struct fz_type){ .dtype = dtype, .shape = shape, .bound = bound, .slope = !strcmp(op, "param") };
    for (int i = 0; i < 3; i++) s->word[i] = (uint32_t)fz_random(g);
    if (!fz_resolve_statement(p, p->n)) return -1;
    return p->n++ * FZ_OUTS;
}

/* Operands */

static int pick(struct fz_generator *g, bool (*fits)(const struct fz_type *, const void *), const void *what,
                bool newer)
{
    int found[FZ_STATEMENTS * FZ_OUTS], n = 0;
    const bool unread = newer && fz_chance(g, 40); /* so that statements depend on each other */
    for (int i = 0; i < g->p->n; i++)
        for (int k = 0; k < g->p->s[i].n_out; k++)
            if (fits(&g->p->s[i].out[k], what) && !(unread && g->read[i * FZ_OUTS + k]) &&
                !(g->evaluates && g->p->s[i].out[k].trains) && !g->hidden[i])
                found[n++] = i * FZ_OUTS + k;
    if (!n) return -1;
    const int last = n < 6 ? n : 6;
    return newer && fz_chance(g, 65) ? found[n - 1 - fz_below(g, last)] : found[fz_below(g, n)];
}

struct ranks {
    int least, most;
};

static bool has_rank(const struct fz_type *x, const void *what)
{
    const struct ranks *const r = what;
    return rw_dtype_is_float(x->dtype) && x->shape.rank >= r->least && x->shape.rank <= r->most;
}

int fz_any(struct fz_generator *g, int least_rank, int most_rank)
{
    return pick(g, has_rank, &(struct ranks){ least_rank, most_rank }, true);
}

static bool is_same(const struct fz_type *x, const void *what)
{
    return fz_same(x, what);
}

int fz_like(struct fz_generator *g, rw_dtype dtype, rw_shape shape)
{
    static const char *const leaves[] = { "param", "param", "param", "param", "param",
                                          "input", "randn", "randn", "rand",  "buffer" };
    const struct fz_type type = { .dtype = dtype, .shape = shape };
    const int found = fz_chance(g, 60) ? pick(g, is_same, &type, true) : -1;
    return found >= 0 ? found : fz_new_leaf(g, leaves[fz_below(g, 10)], dtype, shape, 2);
}

static bool is_index(const struct fz_type *x, const void *what)
{
    const struct fz_type *const want = what;
    return x->dtype == RW_I32 && rw_shape_equal(x->shape, want->shape) && x->bound <= want->bound;
}

int fz_index(struct fz_generator *g, rw_shape shape, int64_t bound)
{
    if (bound < 1) return -1;
    const struct fz_type want = { .shape = shape, .bound = (double)bound };
    int found = pick(g, is_index, &want, true);
    while (found >= 0 && !strcmp(fz_op(g->p->s[found / FZ_OUTS].op)->name, "targets"))
        found = -1; /* it may hold -100 */
    return found >= 0 && fz_chance(g, 80) ? found : fz_new_leaf(g, "index", RW_I32, shape, (double)bound);
}

static bool is_mask(const struct fz_type *x, const void *what)
{
    const rw_shape *const shape = what;
    return x->dtype == RW_BOOL && (!shape || rw_shape_equal(x->shape, *shape));
}

int fz_mask(struct fz_generator *g, rw_shape shape)
{
    const int found = fz_chance(g, 80) ? pick(g, is_mask, &shape, true) : -1;
    return found >= 0 ? found : fz_new_leaf(g, "mask", RW_BOOL, shape, 1);
}

int fz_any_mask(struct fz_generator *g)
{
    const int found = fz_chance(g, 80) ? pick(g, is_mask, NULL, true) : -1, like = found < 0 ? fz_any(g, 0, 6) : -1;
    return like < 0 ? found : fz_new_leaf(g, "mask", RW_BOOL, fz_type_of(g->p, like)->shape, 1);
}

/* Regions */

static void begin(struct fz_generator *g)
{
    if (g->depth >= 3) return;
    g->begun[g->depth] = g->p->n;
    if (fz_emit(g, fz_op_named("ckpt_begin"), 0) >= 0) g->depth++;
}

static void end(struct fz_generator *g)
{
    struct fz_program *const p = g->p;
    if (!g->depth || p->n >= FZ_STATEMENTS) return;
    p->s[p->n++] = (struct fz_statement){ .op = (uint8_t)fz_op_named("ckpt_end") };
    g->depth--;
}

/* Adds every value that is not read to one of the losses. */

static int scalar_sum(struct fz_generator *g, int a, int b)
{
    struct fz_program *const p = g->p;
    if (a < 0) return b;
    struct fz_statement *const s = &p->s[p->n];
    *s = (struct fz_statement){ .op = (uint8_t)fz_op_named("add"), .n_in = 2, .in = { (int16_t)a, (int16_t)b } };
    return fz_resolve_statement(p, p->n) ? p->n++ * FZ_OUTS : a;
}

static int term(struct fz_generator *g, int value)
{
    struct fz_program *const p = g->p;
    struct fz_statement *const s = &p->s[p->n];
    *s = (struct fz_statement){ .op = (uint8_t)fz_op_named("loss_term"), .n_in = 1, .in = { (int16_t)value } };
    s->word[0] = (uint32_t)fz_random(g);
    return fz_resolve_statement(p, p->n) ? p->n++ * FZ_OUTS : -1;
}

void fz_make_losses(struct fz_generator *g)
{
    struct fz_program *const p = g->p;
    int sinks[FZ_STATEMENTS * FZ_OUTS], n = 0, loss[FZ_LOSSES] = { -1, -1, -1 };
    const int wanted = fz_chance(g, 70) ? 1 : 2 + (int)fz_below(g, 2);
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->s[i].n_out; k++) {
            bool read = !rw_dtype_is_float(p->s[i].out[k].dtype) || (fz_op(p->s[i].op)->flags & FZ_LEAF);
            for (int j = i + 1; !read && j < p->n; j++)
                for (int m = 0; m < p->s[j].n_in && !(fz_op(p->s[j].op)->flags & FZ_MARK); m++)
                    read |= p->s[j].in[m] == i * FZ_OUTS + k;
            if (!read) sinks[n++] = i * FZ_OUTS + k;
        }
    if (!n) sinks[n++] = 0;
    while (n > 16) sinks[fz_below(g, n)] = sinks[n - 1], n--;
    for (int i = 0; i < n && p->n < FZ_STATEMENTS - 4; i++) {
        const int x = term(g, sinks[i]);
        const int l = i % wanted;
        if (x >= 0) loss[l] = scalar_sum(g, loss[l], x);
    }
    const int first = term(g, 0); /* the first leaf is a parameter: a loss trains it */
    for (int i = 0; i < wanted; i++) {
        if (loss[i] >= 0 && fz_type_of(p, loss[i])->trains) p->loss[p->n_losses++] = (int16_t)loss[i];
        else if (i == 0) p->loss[p->n_losses++] = (int16_t)scalar_sum(g, loss[i], first);
    }
}

/* Actions */

static void act(struct fz_generator *g, enum fz_action_kind kind, int loss)
{
    struct fz_program *const p = g->p;
    if (p->n_actions >= FZ_ACTIONS) return;
    const int value = kind == FZ_READ || kind == FZ_EVAL ? pick(g, has_rank, &(struct ranks){ 0, 8 }, false) : 0;
    if (value < 0) return;
    p->action[p->n_actions++] = (struct fz_action){ .kind = (uint8_t)kind,
                                                    .loss = (uint8_t)loss,
                                                    .value = (int16_t)value };
}

/* A program with an effect on a buffer ends with its backward: from then on the buffer has other contents than
   recorded. */
static void make_actions(struct fz_generator *g, bool assigns)
{
    const int n = g->p->n_losses;
    for (int l = 0; l < (assigns ? 1 : n); l++) {
        if (fz_chance(g, 15)) act(g, FZ_READ, 0);
        if (fz_chance(g, 10)) act(g, FZ_EVAL, 0);
        if (fz_chance(g, 10)) act(g, FZ_COST, l);
        if (fz_chance(g, 15)) act(g, FZ_VERIFY, l);
        if (fz_chance(g, 35)) act(g, FZ_ITEM, l);
        if (n > 1 && fz_chance(g, 20)) act(g, FZ_ITEM, (l + 1) % n);
        if (fz_chance(g, 5)) act(g, FZ_READ, 0);
        act(g, FZ_BACKWARD, l);
        if (assigns) return;
        if (fz_chance(g, 12)) act(g, FZ_BACKWARD, l);
        if (fz_chance(g, 50)) act(g, FZ_READ, 0);
        if (fz_chance(g, 25)) act(g, FZ_READ, 0);
        if (fz_chance(g, 8)) act(g, FZ_EXPLAIN, l);
        if (fz_chance(g, 60)) act(g, FZ_ITEM, l);
    }
}

/* Policies */

void fz_make_policy(struct fz_generator *g, char *out)
{
    static const char *const ops[] = { "linear",    "matmul", "tanh", "dropout",   "softmax", "linear_gelu",
                                       "attention", "add",    "gelu", "layernorm", "exp",     "linear_add",
                                       "dropout_add", "where", "gather", "pad", "select" };
    const char *const *const r = fz_region_names, *const *const t = fz_tag_names;
    const int a = (int)fz_below(g, FZ_NAMES), b = (int)fz_below(g, FZ_NAMES);
    const int x = (int)fz_below(g, 17), y = (int)fz_below(g, 17);
    switch (fz_below(g, 16)) {
    case 0: snprintf(out, FZ_POLICY, "selective:%s", r[a]); break;
    case 1: snprintf(out, FZ_POLICY, "selective:%s,%s", r[a], r[b]); break;
    case 2: snprintf(out, FZ_POLICY, "uniform:%d", 1 + (int)fz_below(g, 4)); break;
    case 3: snprintf(out, FZ_POLICY, "block:%d", 1 + (int)fz_below(g, 3)); break;
    case 4: snprintf(out, FZ_POLICY, "ops:%s", ops[x]); break;
    case 5: snprintf(out, FZ_POLICY, "ops:%s,%s", ops[x], ops[y]); break;
    case 6: snprintf(out, FZ_POLICY, "names:keep=%s", t[a]); break;
    case 7: snprintf(out, FZ_POLICY, "names:keep=%s,%s", t[a], t[b]); break;
    case 8: snprintf(out, FZ_POLICY, "none"); break; /* decisions for single values still cause replays */
    case 9: snprintf(out, FZ_POLICY, "names:offload=%s", t[a]); break;
    case 10: snprintf(out, FZ_POLICY, "names:keep=%s;offload=%s", t[a], t[b]); break;
    default: snprintf(out, FZ_POLICY, "full");
    }
    const size_t length = strlen(out);
    if (fz_chance(g, 15)) snprintf(out + length, FZ_POLICY - length, "+offload:%s", r[b]);
}

static void make_settings(struct fz_generator *g, bool assigns)
{
    struct fz_program *const p = g->p;
    p->steps = FZ_STEPS;
    fz_make_policy(g, p->policy[0]);
    if (fz_chance(g, 25)) fz_make_policy(g, p->policy[1]);
    else strcpy(p->policy[1], p->policy[0]);
    p->threads[0] = 1 + (int)fz_below(g, 4);
    p->threads[1] = fz_chance(g, 25) ? 1 + (int)fz_below(g, 4) : p->threads[0];
    const int mode = (int)fz_below(g, 100);
    p->mode = mode < 4 ? FZ_VERIFIED : mode < 10 ? FZ_DIGESTED : mode < 15 ? FZ_EAGER : FZ_PLAIN;
    p->two_tapes = !assigns && fz_chance(g, 15);
    p->accumulates = fz_chance(g, 15);
    p->clips = fz_chance(g, 20);
}

void fz_make_shapes(struct fz_generator *g)
{
    static const int64_t extents[] = { 1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 11, 13, 16, 17 };
    static const rw_dtype types[] = { RW_F32, RW_F32, RW_F32, RW_BF16, RW_BF16, RW_F64 };
    for (int i = 0; i < 5; i++) {
        int64_t n = extents[fz_below(g, 15)];
        if (fz_chance(g, 3)) n = 0;
        if (i == 0 && fz_chance(g, 15))
            n = g->most / 2 + fz_below(g, g->most / 2 + 1); /* larger than the blocks of a kernel */
        g->extent[i] = n < g->most ? n : g->most;
    }
    g->dtype = types[fz_below(g, 6)];
    g->rank = fz_chance(g, 50) ? 2 : fz_chance(g, 50) ? 3 : fz_chance(g, 70) ? 4 : 1;
}

int fz_choose_op(struct fz_generator *g)
{
    int sum = 0;
    for (int i = 0; i < fz_ops(); i++) sum += fz_op(i)->weight;
    int64_t at = fz_below(g, sum);
    for (int i = 0; i < fz_ops(); i++)
        if ((at -= fz_op(i)->weight) < 0) return i;
    return 0;
}

void fz_generate(struct fz_program *p, uint64_t seed, int64_t most, bool host)
{
    struct fz_generator g = { .p = p, .state = seed * 0xd1342543de82ef95u + 1, .most = most, .host = host };
    *p = (struct fz_program){ .seed = seed, .numbers = seed + 7 };
    fz_make_shapes(&g);
    const bool assigns = fz_chance(&g, 15);
    const int regions = 6 + (int)fz_below(&g, 14), length = 6 + (int)fz_below(&g, fz_chance(&g, 30) ? 110 : 45);
    fz_op(0)->choose(&g, 0);
    for (int64_t n = fz_below(&g, 3); n > 0; n--) fz_like(&g, g.dtype, fz_type_of(p, 0)->shape);
    for (int made = 0, tries = 0; made < length && tries < 4 * length; tries++) {
        if (fz_chance(&g, regions)) begin(&g);
        if (g.depth && p->n > g.begun[g.depth - 1] + 2 && fz_chance(&g, regions / 2 + 2)) end(&g);
        const int op = assigns && fz_chance(&g, 10) ? fz_op_named("rw_assign") : fz_choose_op(&g);
        if ((fz_op(op)->flags & FZ_HOST) && !host) continue;
        if (fz_op(op)->choose(&g, op) >= 0) made++;
    }
    const bool inside = fz_chance(&g, 20);
    while (!inside && g.depth) end(&g);
    fz_make_losses(&g);
    while (g.depth) end(&g);
    make_actions(&g, assigns);
    make_settings(&g, assigns);
}

rw_shape fz_without(rw_shape s, int axis)
{
    for (int i = axis; i < s.rank - 1; i++) s.dim[i] = s.dim[i + 1];
    s.rank--;
    return s;
}

rw_shape fz_with(rw_shape s, int axis, int64_t extent)
{
    for (int i = s.rank; i > axis; i--) s.dim[i] = s.dim[i - 1];
    s.dim[axis] = extent;
    s.rank++;
    return s;
}
