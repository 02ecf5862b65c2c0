/* Definitions of matrix products and sums of products (rewind/ops.h and einsum.h). */
#include "support/definition_runner.h"

#include <math.h>
#include <string.h>

/* ---- matmul ---- */

enum { MM_A, MM_B, MM_SIZE, MM_A_LAYOUT, MM_B_LAYOUT };

static const struct {
    int rank;
    int64_t dim[3];
} leading[] = { { 0, { 0 } },    { 1, { 3 } },    { 1, { 1 } },      { 2, { 2, 3 } },
                { 2, { 2, 1 } }, { 2, { 1, 3 } }, { 3, { 2, 1, 3 } } };
#define LEADING 7

static rw_shape leading_of(int which)
{
    rw_shape s = { .rank = leading[which].rank };
    memcpy(s.dim, leading[which].dim, sizeof leading[which].dim);
    return s;
}

/* Operands of a matrix product; the largest size is not batched. */
static bool matmul_make(struct def_trial *c)
{
    static const int64_t sizes[][3] = {
        { 2, 3, 4 }, { 1, 5, 1 }, { 4, 1, 3 }, { 5, 9, 2 }, { 1, 3, 6 }, { 37, 67, 35 },
    };
    const int64_t *const z = sizes[c->v[MM_SIZE]];
    rw_shape a = leading_of(c->v[MM_A]), b = leading_of(c->v[MM_B]), y = def_broadcast(a, b);
    if (z[0] == 37 && rw_shape_numel(y) > 1) return false;
    a.dim[a.rank++] = y.dim[y.rank] = z[0];
    a.dim[a.rank++] = b.dim[b.rank++] = z[1];
    b.dim[b.rank++] = y.dim[y.rank + 1] = z[2];
    y.rank += 2;
    def_operand(c, 0, a, DEF_SIGNED, c->v[MM_A_LAYOUT]);
    def_operand(c, 1, b, DEF_SIGNED, c->v[MM_B_LAYOUT]);
    c->out[0] = y;
    return true;
}

static bool matmul_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    return (y[0] = rw_matmul(t, x[0], x[1]));
}

static int64_t matrix_at(rw_shape s, const int64_t *at, int rank, int64_t row, int64_t column)
{
    int64_t index[RW_MAX_RANK];
    memcpy(index, at, sizeof index);
    index[rank - 2] = row, index[rank - 1] = column;
    return def_at(s, index, rank);
}

static void matmul_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    const int rank = c->out[0].rank;
    const int64_t n = c->in[0].shape.dim[c->in[0].shape.rank - 1];
    do {
        real sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += x[0][matrix_at(c->in[0].shape, at, rank, at[rank - 2], k)] *
                   x[1][matrix_at(c->in[1].shape, at, rank, k, at[rank - 1])];
        y[0][i++] = sum;
    } while (def_next(c->out[0], at));
}

/* ---- linear and its fused variants ---- */

enum { LIN_KIND, LIN_RANK, LIN_SIZE, LIN_BIAS, LIN_X, LIN_WEIGHT, LIN_FROZEN };
enum { PLAIN, GELU, ADD, KINDS };

/* Operands of a linear layer; the largest size has few rows and no GELU. */
static bool linear_make(struct def_trial *c)
{
    static const int64_t sizes[][2] = { { 3, 4 }, { 9, 2 }, { 1, 5 }, { 6, 1 }, { 67, 70 } };
    const int64_t in = sizes[c->v[LIN_SIZE]][0], out = sizes[c->v[LIN_SIZE]][1];
    rw_shape s = def_shape(c->v[LIN_RANK]);
    if (in == 67 && (s.rank > 2 || c->v[LIN_KIND] == GELU)) return false;
    if (!s.rank && c->v[LIN_X] == DEF_EXPANDED) return false; /* sums of weights, which may cancel */
    s.dim[s.rank++] = in;
    def_operand(c, 0, s, DEF_UNIT, c->v[LIN_X]);
    def_operand(c, 1, RW_SHAPE(out, in), DEF_UNIT, c->v[LIN_WEIGHT]);
    def_operand(c, 2, RW_SHAPE(out), DEF_UNIT, DEF_DENSE)->is_absent = !c->v[LIN_BIAS];
    s.dim[s.rank - 1] = out;
    def_operand(c, 3, s, DEF_UNIT, DEF_DENSE)->is_absent = c->v[LIN_KIND] != ADD;
    if (c->v[LIN_FROZEN]) c->in[c->v[LIN_FROZEN] - 1].is_frozen = true;
    c->out[0] = s;
    return true;
}

static bool linear_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    y[0] = c->v[LIN_KIND] == PLAIN  ? rw_linear(t, x[0], x[1], x[2])
           : c->v[LIN_KIND] == GELU ? rw_linear_gelu(t, x[0], x[1], x[2])
                                    : rw_linear_add(t, x[0], x[1], x[2], x[3]);
    return y[0];
}

/* The sums of products of each row, plus the bias, then the residual or GELU. */
static void linear_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const int64_t in = c->in[1].shape.dim[1], out = c->in[1].shape.dim[0];
    const real pi = 3.14159265358979323846264338327950288L;
    for (int64_t row = 0; row < c->in[0].numel / in; row++)
        for (int64_t o = 0; o < out; o++) {
            real sum = x[2] ? x[2][o] : 0;
            for (int64_t k = 0; k < in; k++) sum += x[0][row * in + k] * x[1][o * in + k];
            if (c->v[LIN_KIND] == ADD) sum += x[3][row * out + o];
            if (c->v[LIN_KIND] == GELU) {
                const real inner = sqrtl(2 / pi) * (sum + 0.044715L * sum * sum * sum);
                sum = sum / 2 * (1 + tanhl(inner));
            }
            y[0][row * out + o] = sum;
        }
}

/* ---- einsum ---- */

static const char *const equations[] = {
    "ib,jb,kb->ijk", "ij,jk->ik",      "bij,bjk->bik",  "ij->ji",          "ij->i",
    "ii->i",         "ii->",           "ij,ij->",       "i,j->ij",         "ij,j",
    "bij,bkj->bik",  "ab,bc,cd->ad",   "ab,cd->abcd",   "abc,cb->a",       "iji->j",
    "...ij,...jk",   "i...,i...->...", "ab,ac,ad->bcd", "abc,abd,ae->ecd", "ba",
    "ij,ik,il->jkl", "ab,b,b->a",      "aab,b->a",      "ijk,jil,kl->il",
};
#define EQUATIONS (int)(sizeof equations / sizeof *equations)

enum { EIN_EQUATION, EIN_LAYOUT_0, EIN_LAYOUT_1, EIN_LAYOUT_2, EIN_ONE };

/* Every letter's extent; an ellipsis represents 'Y' and 'Z'. */
static int64_t extent_of(char letter)
{
    return letter == 'Y' ? 2 : letter == 'Z' ? 3 : 2 + (letter - 'a') % 3;
}

/* The letters of operand i, or of the result (-1), including those of ellipses. */
static int letters_of(const struct def_trial *c, int i, char *to)
{
    const char *at = equations[c->v[EIN_EQUATION]], *const arrow = strstr(at, "->");
    int n = 0;
    if (i < 0 && arrow) at = arrow + 2;
    else if (i < 0) { /* ellipses, then letters that occur once, in alphabetical order */
        if (strchr(at, '.')) to[n++] = 'Y', to[n++] = 'Z';
        for (char l = 'a'; l <= 'z'; l++)
            if (strchr(at, l) && strchr(at, l) == strrchr(at, l)) to[n++] = l;
        return n;
    }
    for (; i > 0; i--) {
        at = strchr(at, ',');
        if (!at || (arrow && at > arrow)) return -1;
        at++;
    }
    for (; *at && *at != ',' && *at != '-'; at++) {
        if (*at != '.') to[n++] = *at;
        else to[n++] = 'Y', to[n++] = 'Z', at += 2;
    }
    return n;
}

/* Operands of the trial's notation; false where an axis cannot broadcast. */
static bool einsum_make(struct def_trial *c)
{
    char letters[3][RW_MAX_RANK * 2], out[16];
    int n[3];
    for (int i = 0; i < 3; i++) {
        rw_shape s = { 0 };
        n[i] = letters_of(c, i, letters[i]);
        if (n[i] < 0) {
            if (c->v[EIN_LAYOUT_0 + i]) return false;
            continue;
        }
        for (; s.rank < n[i]; s.rank++) s.dim[s.rank] = extent_of(letters[i][s.rank]);
        /* One axis of one of several operands has extent 1, and broadcasts */
        if (c->v[EIN_ONE] == i + 1) {
            for (int k = 1; k < n[i]; k++)
                if (letters[i][k] == letters[i][0]) return false;
            if (memchr(letters[i] + 1, letters[i][0], (size_t)n[i] - 1)) return false;
            bool is_elsewhere = false;
            char other[16];
            for (int j = 0; j < 3; j++)
                if (j != i && letters_of(c, j, other) > 0)
                    is_elsewhere |= memchr(other, letters[i][0], (size_t)letters_of(c, j, other)) != NULL;
            if (!is_elsewhere) return false;
            s.dim[0] = 1;
        }
        def_operand(c, i, s, DEF_SIGNED, c->v[EIN_LAYOUT_0 + i]);
    }
    if (c->v[EIN_ONE] > c->n) return false;
    const int rank = letters_of(c, -1, out);
    for (c->out[0].rank = 0; c->out[0].rank < rank; c->out[0].rank++)
        c->out[0].dim[c->out[0].rank] = extent_of(out[c->out[0].rank]);
    return true;
}

static bool einsum_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = rw_einsum(t, equations[c->v[EIN_EQUATION]], x, c->n));
}

/* Sums over all values of all letters. */
static void einsum_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    char letters[4][16], all[16];
    int n[4], total = 0;
    for (int i = 0; i < c->n; i++) n[i] = letters_of(c, i, letters[i]);
    n[3] = letters_of(c, -1, letters[3]);
    rw_shape space = { 0 };
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < n[i]; k++) {
            if (memchr(all, letters[i][k], (size_t)total)) continue;
            all[total++] = letters[i][k];
            space.dim[space.rank++] = extent_of(letters[i][k]);
        }
    int64_t at[RW_MAX_RANK] = { 0 };
    do {
        real product = 1;
        int64_t index[4][16] = { { 0 } };
        for (int i = 0; i < 4; i++)
            for (int k = 0; (i == 3 || i < c->n) && k < n[i]; k++)
                index[i][k] = at[(const char *)memchr(all, letters[i][k], (size_t)total) - all];
        for (int i = 0; i < c->n; i++) product *= x[i][def_at(c->in[i].shape, index[i], n[i])];
        y[0][def_at(c->out[0], index[3], n[3])] += product;
    } while (def_next(space, at));
}

const struct definition def_products[] = { { .name = "matmul",
                                             .ops = "matmul",
                                             .factor = { { "a", LEADING },
                                                         { "b", LEADING },
                                                         { "size", 6 },
                                                         { "a layout", DEF_LAYOUTS },
                                                         { "b layout", DEF_LAYOUTS } },
                                             .make = matmul_make,
                                             .record = matmul_record,
                                             .reference = matmul_reference,
                                             .roundings = 40,
                                             .back_roundings = 60,
                                             .stored = 1 },
                                           { .name = "linear",
                                             .ops = "linear linear_gelu linear_add",
                                             .factor = { { "kind", KINDS },
                                                         { "rank", 4 },
                                                         { "size", 5 },
                                                         { "bias", 2 },
                                                         { "x", DEF_LAYOUTS },
                                                         { "weight", DEF_LAYOUTS },
                                                         { "frozen", 4 } },
                                             .make = linear_make,
                                             .record = linear_record,
                                             .reference = linear_reference,
                                             .roundings = 16,
                                             .back_roundings = 60,
                                             .stored = 2 },
                                           { .name = "einsum",
                                             .ops = "matmul mul sum",
                                             .factor = { { "equation", EQUATIONS },
                                                         { "first", DEF_LAYOUTS },
                                                         { "second", DEF_LAYOUTS },
                                                         { "third", DEF_LAYOUTS },
                                                         { "one", 4 } },
                                             .make = einsum_make,
                                             .record = einsum_record,
                                             .reference = einsum_reference,
                                             .roundings = 10,
                                             .back_roundings = 80,
                                             .stored = 8 },
                                           { 0 } };
