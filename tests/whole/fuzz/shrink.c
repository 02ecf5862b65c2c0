/*
 * Shrinks a failing program by delta debugging (Zeller and Hildebrandt). A pass is a list of reductions, each of which
 * makes a candidate from the best program so far. A candidate is repaired if the reduction has left something invalid.
 * If it is then smaller, and still fails in the same way, it replaces the best one. Passes that remove most come first,
 * and all are repeated until none helps. This terminates, because there is one measure of size.
 */
#include "whole/fuzz/shrink.h"

#include <stdlib.h>
#include <string.h>

/* Makes candidate number k of *p; false after the last one. A candidate that is not smaller than *p is skipped. */
typedef bool (*pass_fn)(struct fz_program *p, int k);

/* Settings */

static const char *const simple[] = { "full", "selective:a", "uniform:1", "block:1", "none" };
#define SIMPLE (int)(sizeof simple / sizeof *simple)

/* Applies the k-th simplification of the program's settings; false after the last. */
static bool settings(struct fz_program *p, int k)
{
    switch (k) {
    case 0: p->steps = 1; break;
    case 1: p->two_tapes = false; break;
    case 2: p->accumulates = false; break;
    case 3: p->clips = false; break;
    case 4: p->mode = FZ_PLAIN; break;
    case 5: p->threads[0] = p->threads[1] = 1; break;
    case 6: p->threads[1] = p->threads[0]; break;
    case 7: memcpy(p->policy[1], p->policy[0], FZ_POLICY); break;
    case 8: memcpy(p->policy[0], p->policy[1], FZ_POLICY); break;
    default: return false;
    }
    return true;
}

/* The first of these with which it still fails. */
static bool policies(struct fz_program *p, int k)
{
    if (k >= SIMPLE * FZ_STEPS) return false;
    strcpy(p->policy[k / SIMPLE], simple[k % SIMPLE]);
    return true;
}

static bool actions(struct fz_program *p, int k)
{
    if (k >= p->n_actions) return false;
    p->action[k].dropped = true;
    return true;
}

static bool losses(struct fz_program *p, int l)
{
    if (p->n_losses < 2 || l >= p->n_losses) return false;
    for (int i = l; i < p->n_losses - 1; i++) p->loss[i] = p->loss[i + 1];
    p->n_losses--;
    for (int i = 0; i < p->n_actions; i++) {
        if (p->action[i].loss == l) p->action[i].dropped = true;
        else p->action[i].loss -= p->action[i].loss > l;
    }
    return true;
}

/* Statements */

static bool is_named(const struct fz_program *p, int i, const char *name)
{
    return !strcmp(fz_op(p->s[i].op)->name, name);
}

/* The end of a region, or of a part with a policy. */
static int end_of(const struct fz_program *p, int begin)
{
    const bool region = is_named(p, begin, "ckpt_begin");
    const char *const opens = region ? "ckpt_begin" : "part_begin", *const closes = region ? "ckpt_end" : "part_end";
    int depth = 0;
    for (int i = begin; i < p->n; i++) {
        if (p->s[i].dropped) continue;
        depth += is_named(p, i, opens) - is_named(p, i, closes);
        if (!depth) return i;
    }
    return begin;
}

static void redirect(struct fz_program *p, int from, int to)
{
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->s[i].n_in; k++)
            if (p->s[i].in[k] == from) p->s[i].in[k] = (int16_t)to;
    for (int i = 0; i < p->n_losses; i++)
        if (p->loss[i] == from) p->loss[i] = (int16_t)to;
    for (int i = 0; i < p->n_actions; i++)
        if (p->action[i].value == from) p->action[i].value = (int16_t)to;
}

static void drop_unused(struct fz_program *p)
{
    for (int i = p->n; i-- > 0;)
        if (!p->s[i].dropped && !(fz_op(p->s[i].op)->flags & FZ_MARK) && !fz_is_used(p, i)) p->s[i].dropped = true;
}

static bool is_read(const struct fz_program *p, int value)
{
    for (int i = value / FZ_OUTS + 1; i < p->n; i++)
        for (int k = 0; !p->s[i].dropped && k < p->s[i].n_in; k++)
            if (p->s[i].in[k] == value) return true;
    for (int l = 0; l < p->n_losses; l++)
        if (p->loss[l] == value) return true;
    return false;
}

/* A leaf replaces the statement, if only outputs of one type are read. */
static bool cut(struct fz_program *p, int i)
{
    struct fz_statement *const s = &p->s[i];
    int used = -1;
    if (s->dropped || (fz_op(s->op)->flags & (FZ_LEAF | FZ_MARK))) return false;
    for (int k = 0; k < s->n_out; k++) {
        if (!is_read(p, i * FZ_OUTS + k)) continue;
        if (used >= 0 && !fz_same(&s->out[used], &s->out[k])) return false;
        used = k;
    }
    if (used < 0) return false;
    const struct fz_type type = s->out[used];
    const bool index = type.dtype == RW_I32, mask = type.dtype == RW_BOOL;
    for (int k = 1; k < s->n_out; k++) redirect(p, i * FZ_OUTS + k, i * FZ_OUTS);
    *s = (struct fz_statement){ .op = (uint8_t)fz_op_named(index ? "index" : mask ? "mask" : "param"), .n_out = 1,
                                .word = { s->word[0], s->word[1], s->word[2] } };
    s->out[0] = (struct fz_type){
        .dtype = type.dtype, .shape = type.shape, .bound = index ? type.bound : 2, .slope = !index && !mask
    };
    return true;
}

/* Halves, quarters, ... of the statements, from the end; at last one by one. */
static bool cuts(struct fz_program *p, int k)
{
    int size = (p->n + 1) / 2;
    while (size > 0 && k >= (p->n + size - 1) / size) {
        k -= (p->n + size - 1) / size;
        size = size == 1 ? 0 : (size + 1) / 2;
    }
    if (!size) return false;
    for (int i = p->n - (k + 1) * size; i < p->n - k * size; i++)
        if (i >= 0) cut(p, i);
    drop_unused(p);
    return true;
}

/* Uses of a statement's results become uses of an operand: of the same type, then of any. */
static bool bypasses(struct fz_program *p, int k)
{
    const int i = p->n - 1 - k / 2 / FZ_INS, operand = k / 2 % FZ_INS;
    const bool any_type = k % 2;
    if (i < 0) return false;
    if (p->s[i].dropped || operand >= p->s[i].n_in) return true;
    for (int m = 0; m < p->s[i].n_out; m++)
        if (any_type || fz_same(&p->s[i].out[m], fz_in(p, &p->s[i], operand)))
            redirect(p, i * FZ_OUTS + m, p->s[i].in[operand]);
    drop_unused(p);
    return true;
}

/* Uses of a leaf become uses of an earlier value of its type: the nearest one, then the first one. */
static bool merges(struct fz_program *p, int k)
{
    const int i = p->n - 1 - k / 2;
    const bool first = k % 2;
    int found = -1;
    if (i < 0) return false;
    if (p->s[i].dropped || !(fz_op(p->s[i].op)->flags & FZ_LEAF)) return true;
    for (int j = 0; j < i && (found < 0 || !first); j++)
        for (int m = 0; !p->s[j].dropped && m < p->s[j].n_out; m++)
            if (fz_same(&p->s[j].out[m], &p->s[i].out[0])) found = j * FZ_OUTS + m;
    if (found >= 0) redirect(p, i * FZ_OUTS, found);
    drop_unused(p);
    return true;
}

/* Removes all values that are not read, then statement by statement; a region's begin and end together. */
static bool drops(struct fz_program *p, int k)
{
    const int i = p->n - k;
    if (k == 0) drop_unused(p);
    if (i < 0) return false;
    if (k == 0 || p->s[i].dropped || is_named(p, i, "ckpt_end") || is_named(p, i, "part_end")) return true;
    if (!(fz_op(p->s[i].op)->flags & FZ_MARK) && fz_is_used(p, i)) return true;
    if (is_named(p, i, "ckpt_begin") || is_named(p, i, "part_begin")) p->s[end_of(p, i)].dropped = true;
    p->s[i].dropped = true;
    return true;
}

/* Merges a region with the next one in the same region. */
static bool joins(struct fz_program *p, int i)
{
    int depth = 0;
    if (i >= p->n) return false;
    if (p->s[i].dropped || !is_named(p, i, "ckpt_end")) return true;
    for (int j = i + 1; j < p->n && depth >= 0; j++) {
        if (p->s[j].dropped) continue;
        if (is_named(p, j, "ckpt_begin") && depth++ == 0) {
            p->s[i].dropped = p->s[j].dropped = true;
            return true;
        }
        depth -= is_named(p, j, "ckpt_end");
    }
    return true;
}

/* Fewer operands: a bias, a third input. Resolving shows which operands an op can omit. */
static bool operands(struct fz_program *p, int i)
{
    static const char *const names[] = { "linear", "linear_gelu", "linear_add", "layernorm", "concat", "rope",
                                         "rw_grad" };
    static const int least[] = { 2, 2, 3, 2, 1, 1, 2 };
    if (i >= p->n) return false;
    for (int k = 0; k < 7; k++)
        if (!p->s[i].dropped && is_named(p, i, names[k]) && p->s[i].n_in > least[k]) p->s[i].n_in--;
    return true;
}

/* Replaces an op by a simpler one, which does not take that operand. */
static bool simpler(struct fz_program *p, int i)
{
    static const struct {
        const char *op, *by;
        int without;
    } ways[] = { { "linear_add", "linear", 2 }, { "dropout_add", "dropout", 1 } };
    if (i >= p->n) return false;
    struct fz_statement *const s = &p->s[i];
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        if (s->dropped || !is_named(p, i, ways[k].op)) continue;
        s->op = (uint8_t)fz_op_named(ways[k].by);
        s->n_in--;
        for (int in = ways[k].without; in < s->n_in; in++) s->in[in] = s->in[in + 1];
        return true;
    }
    return true;
}

/* Shapes, types, choices */

/* The largest extent of a leaf below that one. */
static int64_t extent_below(const struct fz_program *p, int64_t most)
{
    int64_t found = 0;
    for (int i = 0; i < p->n; i++)
        for (int d = 0; !p->s[i].dropped && (fz_op(p->s[i].op)->flags & FZ_LEAF) && d < p->s[i].out[0].shape.rank; d++)
            if (p->s[i].out[0].shape.dim[d] < most && p->s[i].out[0].shape.dim[d] > found)
                found = p->s[i].out[0].shape.dim[d];
    return found;
}

static void lower(struct fz_program *p, int64_t from, int64_t to)
{
    for (int i = 0; i < p->n; i++) {
        struct fz_statement *const s = &p->s[i];
        if (s->dropped || !(fz_op(s->op)->flags & FZ_LEAF)) continue;
        for (int d = 0; d < s->out[0].shape.rank; d++)
            if (s->out[0].shape.dim[d] == from) s->out[0].shape.dim[d] = to;
        if (s->out[0].dtype == RW_I32 && s->out[0].bound == (double)from) s->out[0].bound = (double)to;
    }
}

/* All large extents at once: small programs run fast. */
static bool sizes(struct fz_program *p, int k)
{
    const int64_t to[] = { 1, 2, 3, 5 };
    if (k >= 4) return false;
    for (int64_t from; (from = extent_below(p, INT64_MAX)) > to[k];) lower(p, from, to[k]);
    return true;
}

static bool extents(struct fz_program *p, int k)
{
    int64_t from = extent_below(p, INT64_MAX);
    for (int i = 0; i < k / 4; i++) from = extent_below(p, from);
    const int64_t to[] = { 1, 2, from / 2, from - 1 };
    if (from < 2) return false;
    lower(p, from, to[k % 4]);
    return true;
}

static void drop_axis(struct fz_statement *s, int axis)
{
    rw_shape *const shape = &s->out[0].shape;
    if (s->dropped || !(fz_op(s->op)->flags & FZ_LEAF) || axis >= shape->rank) return;
    memmove(shape->dim + axis, shape->dim + axis + 1, sizeof *shape->dim * (size_t)(shape->rank - axis - 1));
    shape->rank--;
}

/* Leaves of fewer dimensions: all at once, then one axis. */
static bool ranks(struct fz_program *p, int k)
{
    const int i = k / RW_MAX_RANK - 1;
    if (i >= p->n) return false;
    if (i >= 0) drop_axis(&p->s[i], k % RW_MAX_RANK);
    for (int j = 0; i < 0 && j < p->n; j++)
        while (p->s[j].out[0].shape.rank > k && (fz_op(p->s[j].op)->flags & FZ_LEAF) && !p->s[j].dropped)
            drop_axis(&p->s[j], 0);
    return true;
}

static bool types(struct fz_program *p, int k)
{
    static const rw_dtype other[] = { RW_F64, RW_BF16 };
    if (k >= 2) return false;
    for (int i = 0; i < p->n; i++)
        if ((fz_op(p->s[i].op)->flags & FZ_LEAF) && p->s[i].out[0].dtype == other[k]) p->s[i].out[0].dtype = RW_F32;
    return true;
}

static bool choices(struct fz_program *p, int i)
{
    if (i >= p->n) return false;
    memset(p->s[i].word, 0, sizeof p->s[i].word);
    return true;
}

/* Numbers the statements consecutively. */
static bool compaction(struct fz_program *p, int k)
{
    int n = 0, kept = 0;
    if (k) return false;
    for (int i = 0; i < p->n; i++) {
        if (p->s[i].dropped) continue;
        for (int out = 0; out < FZ_OUTS && n != i; out++) redirect(p, i * FZ_OUTS + out, n * FZ_OUTS + out);
        p->s[n++] = p->s[i];
    }
    p->n = n;
    for (int i = 0; i < p->n_actions; i++)
        if (!p->action[i].dropped) p->action[kept++] = p->action[i];
    p->n_actions = kept;
    return true;
}

/* ---- order of sizes ---- */

static int rank_of(const char *policy)
{
    int i = 0;
    while (i < SIMPLE && strcmp(policy, simple[i])) i++;
    return i;
}

static int64_t weight_of_settings(const struct fz_program *p)
{
    int64_t sum = p->n_losses + p->two_tapes + p->accumulates + p->clips + (p->mode != FZ_PLAIN);
    for (int i = 0; i < p->n_actions; i++) sum += !p->action[i].dropped;
    for (int i = 0; i < FZ_STEPS; i++) sum += p->threads[i] + rank_of(p->policy[i]);
    return sum + p->steps;
}

/* The components of the size, the most important first. */
enum { STATEMENTS, OPS, OPERANDS, SETTINGS, RANKS, EXTENTS, TYPES, WORDS, GAPS, WEIGHTS };

/* Computes the components of a program's size. */
static void weigh(const struct fz_program *p, int64_t w[WEIGHTS])
{
    memset(w, 0, sizeof *w * WEIGHTS);
    w[SETTINGS] = weight_of_settings(p);
    w[GAPS] = p->n;
    for (int i = 0; i < p->n; i++) {
        const struct fz_statement *const s = &p->s[i];
        const bool leaf = fz_op(s->op)->flags & FZ_LEAF;
        if (s->dropped) continue;
        w[STATEMENTS]++;
        w[OPS] += !leaf;
        w[OPERANDS] += s->n_in;
        for (int k = 0; k < 3; k++) w[WORDS] += s->word[k] != 0;
        if (!leaf) continue;
        w[RANKS] += s->out[0].shape.rank;
        w[TYPES] += s->out[0].dtype == RW_F64 || s->out[0].dtype == RW_BF16;
        for (int d = 0; d < s->out[0].shape.rank; d++) w[EXTENTS] += s->out[0].shape.dim[d];
    }
}

static bool is_smaller(const struct fz_program *a, const struct fz_program *b)
{
    int64_t x[WEIGHTS], y[WEIGHTS];
    int i = 0;
    weigh(a, x);
    weigh(b, y);
    while (i < WEIGHTS - 1 && x[i] == y[i]) i++;
    return x[i] < y[i];
}

/* Repairs the program: removes invalid marks and replaces invalid ops by leaves. Returns whether it is then valid. */
static bool mend(struct fz_program *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct fz_statement before = p->s[i];
        if (fz_resolve_statement(p, i)) continue;
        p->s[i] = before;
        if (fz_op(before.op)->flags & FZ_MARK) p->s[i].dropped = true;
        else if (!cut(p, i) || !fz_resolve_statement(p, i)) return false;
    }
    drop_unused(p);
    return fz_resolve(p, NULL);
}

/* Only statements */

enum fz_candidate fz_reduce(const struct fz_program *from, struct fz_program *to, int pass, int k)
{
    static const pass_fn passes[FZ_REDUCTIONS] = { cuts,   sizes,   losses, bypasses, drops, joins,  operands,
                                                   simpler, merges, extents, ranks,   types, choices };
    *to = *from;
    if (!passes[pass](to, k)) return FZ_NO_MORE;
    return mend(to) && is_smaller(to, from) ? FZ_CANDIDATE : FZ_SKIP;
}

/* The driver */

struct shrinker {
    struct fz_program *best, *next;
    struct fz_verdict wanted, found;
    const struct fz_sabotage *sabotage;
    pass_fn pass;
    int luck; /* number of other random seeds with which each candidate is tried as well */
};

/*
 * Candidate k of the current pass, for fz_judge_first(). If the program is small, it is also tried with other random
 * numbers: a mask that differs in an element that is dropped anyway has no visible effect.
 */
static enum fz_candidate make(void *context, struct fz_program *p, int k)
{
    const struct shrinker *const s = context;
    const int tries = 1 + s->luck;
    *p = *s->best;
    if (!s->pass(p, k / tries)) return FZ_NO_MORE;
    if (!mend(p) || !is_smaller(p, s->best)) return FZ_SKIP;
    p->numbers += (uint64_t)(k % tries);
    return FZ_CANDIDATE;
}

static bool run_pass(struct shrinker *s, pass_fn pass)
{
    bool any = false;
    s->pass = pass;
    s->luck = fz_size(s->best) <= 20 ? 3 : 0;
    for (int k = 0; (k = fz_judge_first(make, s, k, &s->wanted, s->sabotage, &s->found)) >= 0;) {
        make(s, s->next, k);
        struct fz_program *const p = s->best;
        s->best = s->next;
        s->next = p;
        any = true;
    }
    return any;
}

int fz_size(const struct fz_program *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++) n += !p->s[i].dropped;
    return n;
}

struct fz_verdict fz_shrink(struct fz_program *p, const struct fz_sabotage *sabotage)
{
    static const pass_fn passes[] = { settings, cuts,     sizes,   policies, losses,  actions, bypasses, drops,
                                      joins,    operands, simpler, merges,   extents, ranks,   types,    choices };
    struct shrinker s = { .best = malloc(sizeof *p), .next = malloc(sizeof *p), .sabotage = sabotage };
    if (!s.best || !s.next) abort();
    *s.best = *p;
    s.found = s.wanted = fz_judge(p, sabotage);
    for (bool smaller = s.wanted.failure != FZ_FINE; smaller;) {
        smaller = false;
        for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) smaller |= run_pass(&s, passes[i]);
    }
    if (s.wanted.failure) run_pass(&s, compaction);
    *p = *s.best;
    free(s.best);
    free(s.next);
    return s.found;
}
