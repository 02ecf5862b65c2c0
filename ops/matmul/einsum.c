/*
 * einsum, planned into permutes, reshapes, products and sums. An operand's own letters that the result does not name
 * are summed first; then two operands at a time: letters of both that somebody still needs are the batch, those that
 * nobody needs are summed by the product.
 */
#include "ops/common/util.h"
#include "record/own_ops.h"

#include <rewind/einsum.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The letters of an operand's axes, in order. */
struct letters {
    int n;
    char at[RW_MAX_RANK];
    int column[RW_MAX_RANK]; /* in the equation, from 1 */
};

struct plan {
    rw_site at;
    rw_tape *t;
    const char *equation;
    int n;
    struct letters in[RW_EINSUM_OPERANDS], out;
    int64_t extent[128];
    int used[128]; /* in how many operands */
};

static bool RW_PRINTF(4, 5) fault(const struct plan *p, rw_status status, int column, const char *fmt, ...)
{
    char text[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    rw_refuse_at(p->at, p->t, status, "einsum: \"%.160s\", column %d: %s", p->equation, column, text);
    return false;
}

static bool has(const struct letters *l, char c)
{
    return memchr(l->at, c, (size_t)l->n) != NULL;
}

/* ---- reading ---- */

/* Letters up to a comma, an arrow or the end. */
static bool read_letters(const struct plan *p, const char **from, struct letters *l)
{
    const char *s = *from;
    for (; *s && *s != ',' && *s != '-'; s++) {
        const int column = (int)(s - p->equation) + 1;
        if (*s == ' ') continue;
        if (*s == '.') return fault(p, RW_ERR_ARGUMENT, column, "an ellipsis is not taken; name the axes");
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z')))
            return fault(p, RW_ERR_ARGUMENT, column, "'%c' is no letter", isprint((unsigned char)*s) ? *s : '?');
        if (has(l, *s)) return fault(p, RW_ERR_ARGUMENT, column, "'%c' stands twice in one tensor", *s);
        if (l->n == RW_MAX_RANK) return fault(p, RW_ERR_SHAPE, column, "more than %d axes", RW_MAX_RANK);
        l->column[l->n] = column;
        l->at[l->n++] = *s;
    }
    *from = s;
    return true;
}

static bool read_operands(struct plan *p, const char **from)
{
    int n = 0;
    for (;; (*from)++) {
        const int column = (int)(*from - p->equation) + 1;
        if (n == p->n) return fault(p, RW_ERR_ARGUMENT, column, "more operands than the %d given", p->n);
        if (!read_letters(p, from, &p->in[n++])) return false;
        if (**from != ',') break;
    }
    if (n == p->n) return true;
    return fault(p, RW_ERR_ARGUMENT, (int)(*from - p->equation) + 1, "%d operands, but %d are given", n, p->n);
}

/* Letters that stand once. */
static bool default_result(struct plan *p)
{
    for (int c = 'A'; c <= 'z'; c++) {
        if (p->used[c] != 1) continue;
        if (p->out.n == RW_MAX_RANK)
            return fault(p, RW_ERR_SHAPE, (int)strlen(p->equation) + 1, "a result of more than %d axes", RW_MAX_RANK);
        p->out.at[p->out.n++] = (char)c;
    }
    return true;
}

static bool read_result(struct plan *p, const char *s)
{
    if (!*s) return default_result(p);
    const int column = (int)(s - p->equation) + 1;
    if (s[1] != '>') return fault(p, RW_ERR_ARGUMENT, column, "'-' without '>'");
    s += 2;
    if (!read_letters(p, &s, &p->out)) return false;
    if (*s)
        return fault(p, RW_ERR_ARGUMENT, (int)(s - p->equation) + 1, "a result is one tensor's letters, and the last");
    for (int i = 0; i < p->out.n; i++)
        if (!p->used[(int)p->out.at[i]])
            return fault(p, RW_ERR_ARGUMENT, p->out.column[i], "no operand has '%c'", p->out.at[i]);
    return true;
}

/* Operands' ranks and extents against their letters. */
static bool measure(struct plan *p, rw_tensor *const *x)
{
    for (int i = 0; i < p->n; i++) {
        const rw_shape s = rw_tensor_shape(x[i]);
        const struct letters *const l = &p->in[i];
        const int column = l->n ? l->column[0] : 1;
        if (s.rank != l->n)
            return fault(p, RW_ERR_SHAPE, column, "%d letters for operand %d, of rank %d", l->n, i, s.rank);
        for (int k = 0; k < l->n; k++) {
            int64_t *const extent = &p->extent[(int)l->at[k]];
            if (p->used[(int)l->at[k]]++ && *extent != s.dim[k])
                return fault(p, RW_ERR_SHAPE, l->column[k], "'%c' is %lld here and %lld before", l->at[k],
                             (long long)s.dim[k], (long long)*extent);
            *extent = s.dim[k];
        }
    }
    return true;
}

/* ---- recording ---- */

static int place_of(const struct letters *l, char c)
{
    return (int)((const char *)memchr(l->at, c, (size_t)l->n) - l->at);
}

static void append(struct letters *to, char c)
{
    to->at[to->n++] = c;
}

/* x, whose axes are `from`, with its axes in the order of `to`: the same letters. */
static rw_tensor *ordered(const struct plan *p, rw_tensor *x, const struct letters *from, const struct letters *to)
{
    int axes[RW_MAX_RANK];
    bool same = true;
    for (int i = 0; i < to->n; i++) {
        axes[i] = place_of(from, to->at[i]);
        same &= axes[i] == i;
    }
    return same ? x : rw_permute_at(p->at, p->t, x, axes);
}

static rw_tensor *shaped(const struct plan *p, rw_tensor *x, rw_shape shape)
{
    if (!x || rw_shape_equal(rw_tensor_shape(x), shape)) return x;
    return rw_reshape_at(p->at, p->t, x, shape);
}

/* Does the result, or an operand from number `next` on, name it? */
static bool is_needed(const struct plan *p, char c, int next)
{
    bool needed = has(&p->out, c);
    for (int i = next; i < p->n && !needed; i++) needed = has(&p->in[i], c);
    return needed;
}

/* Sums what only this operand has and the result does not name. */
static rw_tensor *sum_own(const struct plan *p, rw_tensor *x, struct letters *l)
{
    struct letters left = { 0 };
    uint32_t axes = 0;
    for (int i = 0; i < l->n; i++) {
        if (p->used[(int)l->at[i]] == 1 && !has(&p->out, l->at[i])) axes |= 1u << i;
        else append(&left, l->at[i]);
    }
    *l = left;
    return axes ? rw_sum_at(p->at, p->t, x, axes, false) : x;
}

/* The letters of two operands by what becomes of them. */
struct roles {
    struct letters batch, rows, columns, summed;
};

static struct roles roles_of(const struct plan *p, const struct letters *a, const struct letters *b, int next)
{
    struct roles r = { 0 };
    for (int i = 0; i < a->n; i++) {
        if (!has(b, a->at[i])) append(&r.rows, a->at[i]);
        else append(is_needed(p, a->at[i], next) ? &r.batch : &r.summed, a->at[i]);
    }
    for (int i = 0; i < b->n; i++)
        if (!has(a, b->at[i])) append(&r.columns, b->at[i]);
    return r;
}

static struct letters joined(const struct letters *a, const struct letters *b, const struct letters *c)
{
    const struct letters *const parts[] = { a, b, c };
    struct letters all = { 0 };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < parts[k]->n; i++) append(&all, parts[k]->at[i]);
    return all;
}

static rw_shape extents(const struct plan *p, const struct letters *l)
{
    rw_shape s = { .rank = l->n };
    for (int i = 0; i < l->n; i++) s.dim[i] = p->extent[(int)l->at[i]];
    return s;
}

static int64_t volume(const struct plan *p, const struct letters *l)
{
    return rw_shape_numel(extents(p, l));
}

/* [batch..., rows, columns], each of them one axis. */
static rw_shape matrix(const struct plan *p, const struct letters *batch, const struct letters *rows,
                       const struct letters *columns)
{
    rw_shape s = extents(p, batch);
    s.dim[s.rank++] = volume(p, rows);
    s.dim[s.rank++] = volume(p, columns);
    return s;
}

static rw_tensor *multiply(const struct plan *p, rw_tensor *a, rw_tensor *b, const struct roles *r)
{
    a = shaped(p, a, matrix(p, &r->batch, &r->rows, &r->summed));
    b = shaped(p, b, matrix(p, &r->batch, &r->summed, &r->columns));
    return a && b ? rw_matmul_at(p->at, p->t, a, b) : NULL;
}

/* Nothing is summed: the rows' axes in front of as many of extent 1 as there are columns. */
static rw_tensor *spread(const struct plan *p, rw_tensor *a, rw_tensor *b, const struct roles *r)
{
    const struct letters none = { 0 };
    const struct letters of_a = joined(&r->batch, &r->rows, &none), of_b = joined(&r->batch, &r->columns, &none);
    rw_shape s = extents(p, &of_a), u = extents(p, &r->batch);
    const rw_shape columns = extents(p, &of_b);
    for (int i = 0; i < r->columns.n; i++) s.dim[s.rank++] = 1;
    for (int i = 0; i < r->rows.n; i++) u.dim[u.rank++] = 1;
    for (int i = r->batch.n; i < columns.rank; i++) u.dim[u.rank++] = columns.dim[i];
    a = shaped(p, a, s);
    b = shaped(p, b, u);
    return a && b ? rw_mul_at(p->at, p->t, a, b) : NULL;
}

/* *l: the letters of a, and then of the product with operand i, whose letters are b's. */
static rw_tensor *contract(const struct plan *p, rw_tensor *a, struct letters *l, rw_tensor *x,
                           const struct letters *b, int i)
{
    const struct roles r = roles_of(p, l, b, i + 1);
    const int rank = r.batch.n + r.rows.n + r.columns.n;
    if (rank > RW_MAX_RANK || (r.summed.n && r.batch.n + 2 > RW_MAX_RANK)) {
        fault(p, RW_ERR_SHAPE, p->in[i].n ? p->in[i].column[0] : 1, "a product of %d axes; %d are possible", rank,
              RW_MAX_RANK);
        return NULL;
    }
    const struct letters of_a = joined(&r.batch, &r.rows, &r.summed);
    const struct letters of_b = r.summed.n ? joined(&r.batch, &r.summed, &r.columns)
                                           : joined(&r.batch, &r.columns, &r.summed);
    rw_tensor *const left = ordered(p, a, l, &of_a), *const right = left ? ordered(p, x, b, &of_b) : NULL;
    *l = joined(&r.batch, &r.rows, &r.columns);
    if (!right) return NULL;
    return shaped(p, r.summed.n ? multiply(p, left, right, &r) : spread(p, left, right, &r), extents(p, l));
}

static rw_tensor *record(const struct plan *p, rw_tensor *const *x)
{
    struct letters l = p->in[0];
    rw_tensor *y = sum_own(p, x[0], &l);
    for (int i = 1; i < p->n && y; i++) {
        struct letters b = p->in[i];
        rw_tensor *const next = sum_own(p, x[i], &b);
        y = next ? contract(p, y, &l, next, &b, i) : NULL;
    }
    return y ? ordered(p, y, &l, &p->out) : NULL;
}

rw_tensor *rw_einsum_at(rw_site at, rw_tape *t, const char *equation, rw_tensor *const *x, int n)
{
    struct plan p = { .at = at, .t = t, .equation = equation, .n = n };
    if (!t || !equation || !x || n < 1 || n > RW_EINSUM_OPERANDS) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "einsum: %s", !equation ? "the equation is NULL" : !x ? "the array of "
                     "operands is NULL" : "it takes 1 to 16 operands");
        return NULL;
    }
    for (int i = 0; i < n; i++)
        if (!rw_operand_check(at, t, x[i], "einsum", "an operand")) return NULL;
    const char *from = equation;
    if (!read_operands(&p, &from) || !measure(&p, x) || !read_result(&p, from)) return NULL;
    const struct rw_composite c = rw_composite_begin(t, "einsum");
    return rw_composite_end(&c, record(&p, x));
}
