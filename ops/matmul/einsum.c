/*
 * einsum, decomposed into permutes, reshapes, products and sums. First each operand is simplified alone. A repeated
 * letter becomes a diagonal. An axis of extent 1 is dropped if the letter has another extent elsewhere. Letters that
 * only this operand has and the result does not name are summed. Then operands are contracted two at a time. Letters of
 * both that the result or a later operand needs become batch axes; letters of both that are not needed are summed by
 * the product.
 *
 * The axes of an ellipsis are letters, too, with codes that no equation can contain: FIRST_OF_ELLIPSIS is the last
 * axis.
 */
#include "base/null_argument_text.h"
#include "base/public_entry.h"
#include "ops/common/util.h"

#include <rewind/composite.h>
#include <rewind/einsum.h>
#include <rewind/select.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NO_ELLIPSIS -1
#define FIRST_OF_ELLIPSIS 1 /* the letter of an ellipsis's last axis; the axis before it has the next code */

/* The letters of an operand's axes, in order. */
struct letters {
    int n;
    char at[RW_MAX_RANK];
    int column[RW_MAX_RANK]; /* position in the equation, from 1 */
    int ellipsis, dots;      /* index of the letter that follows the ellipsis, or NO_ELLIPSIS; column of its dots */
};

struct plan {
    rw_site at;
    rw_tape *t;
    const char *equation;
    int n;
    struct letters in[RW_EINSUM_OPERANDS], out;
    int begins[RW_EINSUM_OPERANDS]; /* column of each operand's first letter; stays valid when its axes change */
    int64_t extent[128];  /* the largest extent other than 1 */
    int used[128];        /* number of operands that have the letter, not counting dropped axes */
    int occurrences[128]; /* number of occurrences in all operands */
    int wide;             /* number of axes of the longest ellipsis */
};

static bool RW_PRINTF(4, 5) fault(const struct plan *p, rw_status status, int column, const char *fmt, ...)
{
    char text[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    rw_refuse_at(p->at, p->t, status, "einsum: equation \"%.160s\", column %d: %s", p->equation, column, text);
    return false;
}

static bool has(const struct letters *l, char c)
{
    return memchr(l->at, c, (size_t)l->n) != NULL;
}

/* ---- parsing ---- */

/* Reads the three dots at *from; a tensor may have one ellipsis. */
static bool read_ellipsis(const struct plan *p, const char **from, struct letters *l)
{
    const int column = (int)(*from - p->equation) + 1;
    if ((*from)[1] != '.' || (*from)[2] != '.')
        return fault(p, RW_ERR_ARGUMENT, column, "expected \"...\", got another number of dots");
    if (l->ellipsis != NO_ELLIPSIS)
        return fault(p, RW_ERR_ARGUMENT, column, "expected one ellipsis at most per tensor, got a second");
    l->ellipsis = l->n;
    l->dots = column;
    *from += 2;
    return true;
}

/* Reads letters up to a comma, an arrow or the end. */
static bool read_letters(const struct plan *p, const char **from, struct letters *l)
{
    const char *s = *from;
    l->ellipsis = NO_ELLIPSIS;
    for (; *s && *s != ',' && *s != '-'; s++) {
        const int column = (int)(s - p->equation) + 1;
        if (*s == ' ') continue;
        if (*s == '.') {
            if (!read_ellipsis(p, &s, l)) return false;
            continue;
        }
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z')))
            return fault(p, RW_ERR_ARGUMENT, column, "expected a letter, got '%c'",
                         isprint((unsigned char)*s) ? *s : '?');
        if (l == &p->out && has(l, *s))
            return fault(p, RW_ERR_ARGUMENT, column, "expected each letter once in the result, got '%c' twice", *s);
        if (l->n == RW_MAX_RANK)
            return fault(p, RW_ERR_SHAPE, column, "expected at most %d axes, got more", RW_MAX_RANK);
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
        if (n == p->n) return fault(p, RW_ERR_ARGUMENT, column, "expected %d operands, those of x, got more", p->n);
        if (!read_letters(p, from, &p->in[n++])) return false;
        if (**from != ',') break;
    }
    if (n == p->n) return true;
    return fault(p, RW_ERR_ARGUMENT, (int)(*from - p->equation) + 1, "expected %d operands, those of x, got %d", p->n,
                 n);
}

/* Replaces the ellipsis of l by n axes. */
static bool spell_ellipsis(const struct plan *p, struct letters *l, int n)
{
    if (l->ellipsis == NO_ELLIPSIS) return true;
    if (l->n + n > RW_MAX_RANK)
        return fault(p, RW_ERR_SHAPE, l->dots, "expected at most %d axes, got %d", RW_MAX_RANK, l->n + n);
    const size_t n_after = (size_t)(l->n - l->ellipsis);
    memmove(l->at + l->ellipsis + n, l->at + l->ellipsis, n_after);
    memmove(l->column + l->ellipsis + n, l->column + l->ellipsis, n_after * sizeof *l->column);
    for (int i = 0; i < n; i++) {
        l->at[l->ellipsis + i] = (char)(FIRST_OF_ELLIPSIS + n - 1 - i);
        l->column[l->ellipsis + i] = l->dots;
    }
    l->n += n;
    return true;
}

/* The implicit result: the axes of the ellipsis, then letters that occur once. */
static bool default_result(struct plan *p)
{
    const int end = (int)strlen(p->equation) + 1;
    p->out.ellipsis = 0;
    p->out.dots = end;
    if (!spell_ellipsis(p, &p->out, p->wide)) return false;
    for (int c = 'A'; c <= 'z'; c++) {
        if (p->occurrences[c] != 1) continue;
        if (p->out.n == RW_MAX_RANK)
            return fault(p, RW_ERR_SHAPE, end, "expected a result of at most %d axes, got more", RW_MAX_RANK);
        p->out.at[p->out.n++] = (char)c;
    }
    return true;
}

static bool read_result(struct plan *p, const char *s)
{
    if (!*s) return default_result(p);
    const int column = (int)(s - p->equation) + 1;
    if (s[1] != '>') return fault(p, RW_ERR_ARGUMENT, column, "expected '->', got '-' alone");
    s += 2;
    if (!read_letters(p, &s, &p->out)) return false;
    if (*s)
        return fault(p, RW_ERR_ARGUMENT, (int)(s - p->equation) + 1, "expected the letters of one result, got more");
    for (int i = 0; i < p->out.n; i++)
        if (!p->occurrences[(int)p->out.at[i]])
            return fault(p, RW_ERR_ARGUMENT, p->out.column[i], "expected letters that operands have, got '%c'",
                         p->out.at[i]);
    return spell_ellipsis(p, &p->out, p->wide);
}

/* Text for an error message: a letter, or an axis of an ellipsis. */
static const char *name_of(char c, char *text, size_t size)
{
    if (c < 'A') snprintf(text, size, "axis %d of an ellipsis", -(c - FIRST_OF_ELLIPSIS + 1));
    else snprintf(text, size, "'%c'", c);
    return text;
}

/* Records a letter's extent from axis k of an operand. It must equal earlier extents; between operands either may be
   1. */
static bool measure_axis(struct plan *p, const struct letters *l, int k, rw_shape s)
{
    char text[32];
    const int c = l->at[k];
    const char *const own = memchr(l->at, c, (size_t)k);
    const int64_t extent = s.dim[k], before = own ? s.dim[own - l->at] : p->extent[c];
    const bool met = p->occurrences[c]++ > 0;
    if (met && extent != before && (own || (extent != 1 && before != 1)))
        return fault(p, RW_ERR_SHAPE, l->column[k], "expected extent %lld for %s, as before, got %lld",
                     (long long)before, name_of(l->at[k], text, sizeof text), (long long)extent);
    if (!met || p->extent[c] == 1) p->extent[c] = extent;
    return true;
}

/* Checks the operands' ranks and extents against their letters. */
static bool measure(struct plan *p, rw_tensor *const *x)
{
    for (int i = 0; i < p->n; i++) {
        const rw_shape s = rw_tensor_shape(x[i]);
        struct letters *const l = &p->in[i];
        const int column = l->n ? l->column[0] : 1, more = s.rank - l->n;
        if (more < 0 || (more && l->ellipsis == NO_ELLIPSIS))
            return fault(p, RW_ERR_SHAPE, column, "expected %d letters, the rank of x[%d], got %d", s.rank, i,
                         l->n);
        if (!spell_ellipsis(p, l, more)) return false;
        if (more > p->wide) p->wide = more;
        for (int k = 0; k < l->n; k++)
            if (!measure_axis(p, l, k, s)) return false;
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

/* Permutes x, whose axes are `from`, to the axis order `to`, which has the same letters. */
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

/* Is the letter in the result or in an operand from index `next` on? */
static bool is_needed(const struct plan *p, char c, int next)
{
    bool needed = has(&p->out, c);
    for (int i = next; i < p->n && !needed; i++) needed = has(&p->in[i], c);
    return needed;
}

/*
 * The diagonal of axes a < b, of n elements each, as the last axis. Both are joined into one axis, of which every (n +
 * 1)-th element is taken. Removes the second letter from *l.
 */
static rw_tensor *diagonal(const struct plan *p, rw_tensor *x, struct letters *l, int a, int b)
{
    const char both = l->at[a];
    const int64_t n = rw_tensor_shape(x).dim[a];
    struct letters left = { 0 };
    int axes[RW_MAX_RANK], rank = 0;
    rw_shape s = { 0 };
    for (int i = 0; i < l->n; i++) {
        if (i == a || i == b) continue;
        s.dim[rank] = rw_tensor_shape(x).dim[i];
        axes[rank++] = i;
        append(&left, l->at[i]);
    }
    axes[rank] = a, axes[rank + 1] = b;
    s.rank = rank + 1;
    s.dim[rank] = n * n;
    append(&left, both);
    *l = left;
    x = rw_permute_at(p->at, p->t, x, axes);
    if (x) x = rw_reshape_at(p->at, p->t, x, s);
    if (x && n) x = rw_unfold_at(p->at, p->t, x, -1, 1, n + 1);
    return x && n ? rw_select_at(p->at, p->t, x, -1, 0) : x;
}

/* Takes diagonals of repeated letters, and drops axes of extent 1 of letters that have another extent elsewhere. */
static rw_tensor *plain(struct plan *p, rw_tensor *x, struct letters *l)
{
    for (int b = 1; x && b < l->n; b++) {
        const char *const first = memchr(l->at, l->at[b], (size_t)b);
        if (!first) continue;
        x = diagonal(p, x, l, (int)(first - l->at), b);
        b = 0;
    }
    for (int i = 0; x && i < l->n; i++) {
        if (rw_tensor_shape(x).dim[i] == p->extent[(int)l->at[i]]) continue;
        x = rw_select_at(p->at, p->t, x, i, 0);
        memmove(l->at + i, l->at + i + 1, (size_t)(l->n - i - 1));
        l->n--, i--;
    }
    for (int i = 0; x && i < l->n; i++) p->used[(int)l->at[i]]++;
    return x;
}

/* Sums over letters that only this operand has and the result does not name. */
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

/* The letters of two operands by their role in the product. */
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

static struct letters merged(const struct letters *a, const struct letters *b, const struct letters *c)
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

/* [batch..., rows, columns], each of rows and columns joined into one axis. */
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

/* An outer product: nothing is summed. The rows' axes are followed by one axis of extent 1 for each column axis. */
static rw_tensor *spread(const struct plan *p, rw_tensor *a, rw_tensor *b, const struct roles *r)
{
    const struct letters none = { 0 };
    const struct letters of_a = merged(&r->batch, &r->rows, &none), of_b = merged(&r->batch, &r->columns, &none);
    rw_shape s = extents(p, &of_a), u = extents(p, &r->batch);
    const rw_shape columns = extents(p, &of_b);
    for (int i = 0; i < r->columns.n; i++) s.dim[s.rank++] = 1;
    for (int i = 0; i < r->rows.n; i++) u.dim[u.rank++] = 1;
    for (int i = r->batch.n; i < columns.rank; i++) u.dim[u.rank++] = columns.dim[i];
    a = shaped(p, a, s);
    b = shaped(p, b, u);
    return a && b ? rw_mul_at(p->at, p->t, a, b) : NULL;
}

/* Contracts a with operand i, whose letters are b. *l: the letters of a on entry, those of the product on return. */
static rw_tensor *contract(const struct plan *p, rw_tensor *a, struct letters *l, rw_tensor *x,
                           const struct letters *b, int i)
{
    const struct roles r = roles_of(p, l, b, i + 1);
    const int rank = r.batch.n + r.rows.n + r.columns.n;
    if (rank > RW_MAX_RANK || (r.summed.n && r.batch.n + 2 > RW_MAX_RANK)) {
        fault(p, RW_ERR_SHAPE, p->begins[i], "expected a product of at most %d axes, got %d", RW_MAX_RANK,
              rank);
        return NULL;
    }
    const struct letters of_a = merged(&r.batch, &r.rows, &r.summed);
    const struct letters of_b = r.summed.n ? merged(&r.batch, &r.summed, &r.columns)
                                           : merged(&r.batch, &r.columns, &r.summed);
    rw_tensor *const left = ordered(p, a, l, &of_a), *const right = left ? ordered(p, x, b, &of_b) : NULL;
    *l = merged(&r.batch, &r.rows, &r.columns);
    if (!right) return NULL;
    return shaped(p, r.summed.n ? multiply(p, left, right, &r) : spread(p, left, right, &r), extents(p, l));
}

/* Simplifies each operand, contracts them in order, and permutes the result. */
static rw_tensor *record(struct plan *p, rw_tensor *const *x)
{
    rw_tensor *of[RW_EINSUM_OPERANDS];
    for (int i = 0; i < p->n; i++) {
        p->begins[i] = p->in[i].n ? p->in[i].column[0] : 1;
        if (!(of[i] = plain(p, x[i], &p->in[i]))) return NULL;
    }
    struct letters l = p->in[0];
    rw_tensor *y = sum_own(p, of[0], &l);
    for (int i = 1; i < p->n && y; i++) {
        struct letters b = p->in[i];
        rw_tensor *const next = sum_own(p, of[i], &b);
        y = next ? contract(p, y, &l, next, &b, i) : NULL;
    }
    if (y) y = ordered(p, y, &l, &p->out);
    return y == x[0] ? rw_reshape_at(p->at, p->t, y, rw_tensor_shape(y)) : y; /* the caller's, as x need not be */
}

/* Parses the equation, checks the operands, and records the ops. See the public header for the contract. */
rw_tensor *rw_einsum_at(rw_site at, rw_tape *t, const char *equation, rw_tensor *const *x, size_t n)
{
    RW_ENTER_OP(t);
    if (!t) return rw_refuse_no_tape(at, "einsum", x, n);
    if (!equation || !x || n < 1 || n > RW_EINSUM_OPERANDS) {
        if (!equation) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "einsum: equation is NULL; expected text as \"ij,jk->ik\"");
        else if (x)
            rw_refuse_at(at, t, RW_ERR_ARGUMENT, "einsum(n): expected 1 to %d operands, got %zu", RW_EINSUM_OPERANDS,
                         n);
        else rw_refuse_at(at, t, RW_ERR_ARGUMENT, "einsum: x is NULL; expected %s", rw_expected_of_null("x"));
        return NULL;
    }
    struct plan p = { .at = at, .t = t, .equation = equation, .n = (int)n };
    for (int i = 0; i < p.n; i++) {
        char name[16];
        snprintf(name, sizeof name, "x[%d]", i);
        if (!rw_operand_check(at, t, x[i], "einsum", name)) return NULL;
        if (!rw_dtype_is_float(rw_tensor_dtype(x[i]))) {
            rw_refuse_operand_at(at, t, RW_ERR_DTYPE, "einsum", name, x[i], "a floating-point type");
            return NULL;
        }
    }
    const char *from = equation;
    if (!read_operands(&p, &from) || !measure(&p, x) || !read_result(&p, from)) return NULL;
    const rw_composite c = rw_composite_begin(t, "einsum");
    return rw_composite_end(&c, record(&p, x));
}
