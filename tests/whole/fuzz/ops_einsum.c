/*
 * Statements of einsum: a row for each equation, so that each is counted. Shapes are computed here from the equation,
 * independently of the library.
 */
#include "whole/fuzz/generate.h"

#include <rewind/einsum.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct axes {
    int64_t letter['z' + 1]; /* extents; -1: not seen */
    int times['z' + 1];      /* number of occurrences in operands */
    rw_shape dots;
};

static bool is_letter(char c)
{
    return c >= 'a' && c <= 'z';
}

static const char *equation_of(int op)
{
    return fz_op(op)->function;
}

/* The letters of the next operand; *at is set after them. */
static int letters_of(const char **at, char *ret, bool *dots)
{
    int n = 0;
    *dots = false;
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        if (is_letter(**at)) ret[n++] = **at;
        else *dots = true;
    }
    if (**at == ',') ++*at;
    return n;
}

/* An axis of extent 1 broadcasts. Axes of an ellipsis are the first: no equation here has letters before one. */
static bool read_operand(const char **at, rw_shape s, struct axes *a)
{
    char letter[8];
    bool dots;
    const int n = letters_of(at, letter, &dots), more = s.rank - n;
    if (more < 0 || (more && !dots)) return false;
    rw_shape front = { .rank = more };
    for (int i = 0; i < more; i++) front.dim[i] = s.dim[i];
    if (dots && !fz_broadcast(a->dots, front, &a->dots)) return false;
    for (int i = 0; i < n; i++) {
        const int64_t extent = s.dim[more + i];
        int64_t *const known = &a->letter[(int)letter[i]];
        for (int k = 0; k < i; k++)
            if (letter[k] == letter[i] && s.dim[more + k] != extent) return false;
        if (*known > 1 && extent > 1 && *known != extent) return false;
        if ((*known == 0) != (extent == 0) && *known != -1) return false;
        if (*known < extent) *known = extent;
        a->times[(int)letter[i]]++;
    }
    return true;
}

/* The shape after the arrow; without an arrow that of the letters that occur once, in alphabetical order. */
static rw_shape result_of(const char *arrow, const struct axes *a, double *ret_summed)
{
    rw_shape out = a->dots;
    double kept = 1, all = 1;
    if (*arrow == '-') {
        arrow += 2;
        if (!strchr(arrow, '.')) out.rank = 0;
        for (const char *c = arrow; *c; c++)
            if (is_letter(*c)) out.dim[out.rank++] = a->letter[(int)*c], kept *= (double)a->letter[(int)*c];
    } else {
        for (int c = 'a'; c <= 'z'; c++)
            if (a->times[c] == 1) out.dim[out.rank++] = a->letter[c], kept *= (double)a->letter[c];
    }
    for (int c = 'a'; c <= 'z'; c++)
        if (a->times[c]) all *= (double)a->letter[c];
    *ret_summed = kept > 0 ? all / kept : 1;
    return out;
}

/* Computes the result's shape, bound and slope from the equation. */
static bool resolve_einsum(const struct fz_program *p, struct fz_statement *s)
{
    struct axes a = { .dots = { 0 } };
    for (int c = 0; c <= 'z'; c++) a.letter[c] = -1;
    const char *at = equation_of(s->op);
    double bound = 1, slope = 0, summed;
    for (int i = 0; i < s->n_in; i++) {
        const struct fz_type *const x = fz_in(p, s, i);
        if (!*at || *at == '-' || !rw_dtype_is_float(x->dtype) || x->dtype != fz_in(p, s, 0)->dtype) return false;
        if (!read_operand(&at, x->shape, &a)) return false;
        slope = slope * x->bound + x->slope * bound;
        bound *= x->bound;
    }
    if (*at && *at != '-') return false;
    const rw_shape out = result_of(at, &a, &summed);
    const double n = s->n_in > 1 ? 2 * sqrt(summed + 1) : summed + 1; /* as of any product */
    return fz_out(s, 0, fz_in(p, s, 0)->dtype, out, bound * n, slope * n);
}

/* Extents of the letters: those of an existing value, if one operand's letters all differ, or of the program. */
static int first_operand(struct fz_generator *g, const char *letter, int n, bool dots, int64_t *extent)
{
    bool twice = false;
    for (int i = 1; i < n; i++) twice |= strchr(letter, letter[i]) != letter + i;
    const int x = twice ? -1 : fz_any(g, n, dots ? n + 2 : n);
    if (x < 0) return -1;
    const rw_shape s = fz_type_of(g->p, x)->shape;
    for (int i = 0; i < n; i++) extent[(int)letter[i]] = s.dim[s.rank - n + i];
    return x;
}

/* Chooses operands whose extents agree for each letter. */
static int choose_einsum(struct fz_generator *g, int op)
{
    int64_t extent['z' + 1];
    int in[FZ_INS], count = 0;
    rw_shape front = { .rank = (int32_t)fz_below(g, 3) };
    rw_dtype dtype = g->dtype;
    for (int i = 0; i < front.rank; i++) front.dim[i] = 1 + fz_below(g, 4);
    for (int c = 'a'; c <= 'z'; c++) extent[c] = fz_extent(g);
    for (const char *at = equation_of(op); *at && *at != '-' && count < FZ_INS; count++) {
        char letter[8] = { 0 };
        bool dots;
        const int n = letters_of(&at, letter, &dots);
        in[count] = count ? -1 : first_operand(g, letter, n, dots, extent);
        if (in[count] >= 0) {
            front = fz_type_of(g->p, in[count])->shape;
            front.rank -= n;
            dtype = fz_type_of(g->p, in[count])->dtype;
            continue;
        }
        rw_shape s = { .rank = dots ? front.rank : 0 };
        for (int i = 0; i < s.rank; i++) s.dim[i] = count && fz_chance(g, 20) ? 1 : front.dim[i];
        for (int i = 0; i < n; i++) s.dim[s.rank++] = extent[(int)letter[i]];
        in[count] = fz_like(g, dtype, s);
    }
    return fz_emit_list(g, op, count, in);
}

static void record_einsum(struct fz_call *c)
{
    c->out[0] = rw_einsum_at(c->at, c->t, equation_of(c->s->op), c->in, c->s->n_in);
}

#define EINSUM(name, flows, equation, list, n) \
    { name, 4, 0, flows, choose_einsum, resolve_einsum, record_einsum, \
      "rw_einsum(t, \"" equation "\", (rw_tensor *[]){ " list " }, " #n ")", equation }

const struct fz_op fz_einsum_ops[] = {
    EINSUM("einsum_product", 3, "...ij,...jk->...ik", "$0, $1", 2),
    EINSUM("einsum_inner", 3, "...i,...i", "$0, $1", 2),
    EINSUM("einsum_diagonal", 1, "...ii->...i", "$0", 1),
    EINSUM("einsum_trace", 3, "bii,bi->b", "$0, $1", 2),
    EINSUM("einsum_heads", 3, "bqhd,bkhd->bhqk", "$0, $1", 2),
    EINSUM("einsum_chain", 7, "ij,jk,kl", "$0, $1, $2", 3),
    { NULL },
};
