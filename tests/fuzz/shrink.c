/*
 * Delta debugging over a program. Each reduction makes a candidate; a candidate that is still a program and still fails
 * in the same way takes the program's place. Reductions that leave most out come first, and all are tried again until
 * none helps.
 */
#include "fuzz/shrink.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TRIES 4000

struct shrinker {
    struct fz_program *best, *next; /* the candidate is made in *next */
    struct fz_verdict wanted, found;
    const struct fz_sabotage *sabotage;
    int tries;
};

static struct fz_program *candidate(struct shrinker *s)
{
    *s->next = *s->best;
    return s->next;
}

static bool take_if_it_fails(struct shrinker *s)
{
    if (s->tries >= MOST_TRIES || !memcmp(s->best, s->next, sizeof *s->best) || !fz_resolve(s->next, NULL)) return false;
    s->tries++;
    const struct fz_verdict v = fz_judge(s->next, s->sabotage);
    if (!fz_same_failure(&v, &s->wanted)) return false;
    s->found = v;
    struct fz_program *const p = s->best;
    s->best = s->next;
    s->next = p;
    return true;
}

/* A mask that differs in an element that is dropped anyway shows nothing: other random numbers may show more. */
static bool take_with_luck(struct shrinker *s)
{
    if (take_if_it_fails(s)) return true;
    if (fz_size(s->next) > 12) return false;
    for (int i = 0; i < 3; i++) {
        s->next->numbers++;
        if (take_if_it_fails(s)) return true;
    }
    return false;
}

/* Settings */

static bool simplify_settings(struct shrinker *s)
{
    static const char *const policies[] = { "full", "selective:a", "uniform:1", "block:1", "none" };
    bool any = false;
    candidate(s)->steps = 1, any |= take_if_it_fails(s);
    candidate(s)->two_tapes = false, any |= take_if_it_fails(s);
    candidate(s)->accumulates = false, any |= take_if_it_fails(s);
    candidate(s)->clips = false, any |= take_if_it_fails(s);
    candidate(s)->mode = FZ_PLAIN, any |= take_if_it_fails(s);
    for (int i = 0; i < FZ_STEPS; i++) candidate(s)->threads[i] = 1, any |= take_if_it_fails(s);
    strcpy(candidate(s)->policy[1], s->best->policy[0]), any |= take_if_it_fails(s);
    for (int i = 0; i < FZ_STEPS; i++) {
        bool simple = false;
        for (int k = 0; k < 5; k++) simple |= !strcmp(s->best->policy[i], policies[k]);
        for (int k = 0; k < 5 && !simple; k++) {
            strcpy(candidate(s)->policy[i], policies[k]);
            if ((simple = take_if_it_fails(s))) any = true;
        }
    }
    return any;
}

static bool drop_actions(struct shrinker *s)
{
    bool any = false;
    for (int i = s->best->n_actions; i-- > 0;) {
        if (s->best->action[i].dropped) continue;
        candidate(s)->action[i].dropped = true;
        any |= take_if_it_fails(s);
    }
    return any;
}

static bool drop_losses(struct shrinker *s)
{
    bool any = false;
    for (int l = s->best->n_losses; l-- > 0;) {
        struct fz_program *const p = candidate(s);
        if (p->n_losses < 2) break;
        for (int i = l; i < p->n_losses - 1; i++) p->loss[i] = p->loss[i + 1];
        p->n_losses--;
        for (int i = 0; i < p->n_actions; i++) {
            if (p->action[i].loss == l) p->action[i].dropped = true;
            else p->action[i].loss -= p->action[i].loss > l;
        }
        any |= take_if_it_fails(s);
    }
    return any;
}

/* Statements */

static bool is_named(const struct fz_program *p, int i, const char *name)
{
    return !strcmp(fz_op(p->s[i].op)->name, name);
}

static int end_of(const struct fz_program *p, int begin)
{
    int depth = 0;
    for (int i = begin; i < p->n; i++) {
        if (p->s[i].dropped) continue;
        depth += is_named(p, i, "ckpt_begin") - is_named(p, i, "ckpt_end");
        if (!depth) return i;
    }
    return -1;
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

/* A leaf takes the statement's place; it gives the one output that is read. */
static bool cut(struct fz_program *p, int i)
{
    struct fz_statement *const s = &p->s[i];
    if (s->dropped || (fz_op(s->op)->flags & (FZ_LEAF | FZ_MARK)) || !s->n_out) return false;
    int used = -1;
    for (int k = 0; k < s->n_out; k++) {
        struct fz_program *const q = p;
        bool read = false;
        for (int j = i + 1; j < q->n; j++)
            for (int m = 0; !q->s[j].dropped && m < q->s[j].n_in; m++) read |= q->s[j].in[m] == i * FZ_OUTS + k;
        for (int l = 0; l < p->n_losses; l++) read |= p->loss[l] == i * FZ_OUTS + k;
        if (read && used >= 0) return false;
        if (read) used = k;
    }
    if (used < 0) return false;
    const struct fz_type type = s->out[used];
    redirect(p, i * FZ_OUTS + used, i * FZ_OUTS);
    *s = (struct fz_statement){ .op = (uint8_t)fz_op_named(type.dtype == RW_I32 ? "index" : "param"), .n_out = 1,
                                .word = { s->word[0], s->word[1], s->word[2] } };
    s->out[0] = (struct fz_type){ .dtype = type.dtype, .shape = type.shape, .bound = type.dtype == RW_I32 ? type.bound : 2,
                                  .slope = type.dtype != RW_I32 };
    return true;
}

static bool cut_chunks(struct shrinker *s)
{
    bool any = false;
    for (int size = s->best->n / 2; size > 0; size /= 2)
        for (int from = s->best->n - size; from > -size; from -= size) {
            struct fz_program *const p = candidate(s);
            bool changed = false;
            for (int i = from < 0 ? 0 : from; i < from + size && i < p->n; i++) changed |= cut(p, i);
            if (!changed) continue;
            drop_unused(p);
            any |= take_if_it_fails(s);
        }
    return any;
}

/* Uses of a statement's result become uses of an operand of the same type. */
static bool bypass(struct shrinker *s)
{
    bool any = false;
    for (int i = s->best->n; i-- > 0;) {
        for (int k = 0; k < s->best->s[i].n_in && !s->best->s[i].dropped; k++) {
            struct fz_program *const p = candidate(s);
            bool changed = false;
            for (int m = 0; m < p->s[i].n_out; m++) {
                if (!fz_same(&p->s[i].out[m], fz_in(p, &p->s[i], k))) continue;
                redirect(p, i * FZ_OUTS + m, p->s[i].in[k]);
                changed = true;
            }
            if (!changed) continue;
            drop_unused(p);
            any |= take_with_luck(s);
        }
    }
    return any;
}

static bool drop_statements(struct shrinker *s)
{
    bool any = false;
    drop_unused(candidate(s));
    any |= take_with_luck(s);
    for (int i = s->best->n; i-- > 0;) {
        const unsigned flags = fz_op(s->best->s[i].op)->flags;
        if (s->best->s[i].dropped || is_named(s->best, i, "ckpt_end") || (!(flags & FZ_MARK) && fz_is_used(s->best, i))) continue;
        struct fz_program *const p = candidate(s);
        if (is_named(p, i, "ckpt_begin")) p->s[end_of(p, i)].dropped = true;
        p->s[i].dropped = true;
        any |= take_with_luck(s);
    }
    return any;
}

/* Fewer operands: a bias, a third piece. */
static bool drop_operands(struct shrinker *s)
{
    bool any = false;
    for (int i = s->best->n; i-- > 0;) {
        if (s->best->s[i].dropped || s->best->s[i].n_in < 2) continue;
        struct fz_program *const p = candidate(s);
        const char *const name = fz_op(p->s[i].op)->name;
        if (strcmp(name, "linear") && strcmp(name, "layernorm") && strcmp(name, "concat") && strcmp(name, "rope") && strcmp(name, "rw_grad"))
            continue;
        if (p->s[i].n_in == 2 && (!strcmp(name, "linear") || !strcmp(name, "layernorm") || !strcmp(name, "rw_grad"))) continue;
        p->s[i].n_in--;
        any |= take_if_it_fails(s);
    }
    return any;
}

/* Shapes, types, choices */

static void rename_extent(struct fz_program *p, int64_t from, int64_t to)
{
    for (int i = 0; i < p->n; i++) {
        struct fz_statement *const s = &p->s[i];
        if (s->dropped || !(fz_op(s->op)->flags & FZ_LEAF)) continue;
        for (int k = 0; k < s->out[0].shape.rank; k++)
            if (s->out[0].shape.dim[k] == from) s->out[0].shape.dim[k] = to;
        if (s->out[0].dtype == RW_I32 && s->out[0].bound == (double)from) s->out[0].bound = (double)to;
    }
}

static bool lower_extents(struct shrinker *s)
{
    bool any = false;
    for (int64_t from = 200; from > 1; from--) {
        const int64_t ways[] = { 1, 2, from / 2, from - 1 };
        bool there = false;
        for (int i = 0; i < s->best->n && !there; i++)
            for (int k = 0; k < s->best->s[i].out[0].shape.rank && !s->best->s[i].dropped; k++)
                there |= s->best->s[i].out[0].shape.dim[k] == from;
        for (int w = 0; there && w < 4; w++) {
            if (ways[w] >= from) continue;
            rename_extent(candidate(s), from, ways[w]);
            if (!take_if_it_fails(s)) continue;
            any = true;
            break;
        }
    }
    return any;
}

static bool simplify_types(struct shrinker *s)
{
    bool any = false;
    for (int d = 0; d < RW_DTYPE_COUNT; d++) {
        struct fz_program *const p = candidate(s);
        if (d == RW_F32 || d == RW_I32) continue;
        for (int i = 0; i < p->n; i++)
            if ((fz_op(p->s[i].op)->flags & FZ_LEAF) && p->s[i].out[0].dtype == (rw_dtype)d) p->s[i].out[0].dtype = RW_F32;
        any |= take_if_it_fails(s);
    }
    return any;
}

static bool simplify_choices(struct shrinker *s)
{
    bool any = false;
    for (int i = 0; i < s->best->n; i++) {
        const uint32_t *const w = s->best->s[i].word;
        if (s->best->s[i].dropped || !(w[0] | w[1] | w[2])) continue;
        memset(candidate(s)->s[i].word, 0, sizeof s->best->s[i].word);
        any |= take_if_it_fails(s);
    }
    return any;
}

/* Leaves out what is dropped, so that the statements are numbered without gaps. */
static void compact(struct fz_program *p)
{
    int n = 0, actions = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->s[i].dropped) continue;
        for (int k = 0; k < FZ_OUTS && n != i; k++) redirect(p, i * FZ_OUTS + k, n * FZ_OUTS + k);
        p->s[n++] = p->s[i];
    }
    p->n = n;
    for (int i = 0; i < p->n_actions; i++)
        if (!p->action[i].dropped) p->action[actions++] = p->action[i];
    p->n_actions = actions;
}

int fz_size(const struct fz_program *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++) n += !p->s[i].dropped;
    return n;
}

struct fz_verdict fz_shrink(struct fz_program *p, const struct fz_sabotage *sabotage)
{
    struct shrinker s = { .best = malloc(sizeof *p), .next = malloc(sizeof *p), .sabotage = sabotage };
    if (!s.best || !s.next) abort();
    *s.best = *p;
    s.found = s.wanted = fz_judge(p, sabotage);
    for (bool smaller = s.wanted.failure != FZ_FINE; smaller;) {
        smaller = simplify_settings(&s);
        smaller |= drop_losses(&s);
        smaller |= drop_actions(&s);
        smaller |= cut_chunks(&s);
        smaller |= bypass(&s);
        smaller |= drop_statements(&s);
        smaller |= drop_operands(&s);
        smaller |= lower_extents(&s);
        smaller |= simplify_types(&s);
    }
    simplify_choices(&s);
    compact(candidate(&s));
    take_if_it_fails(&s);
    *p = *s.best;
    free(s.best);
    free(s.next);
    return s.found;
}
