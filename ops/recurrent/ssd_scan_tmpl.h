/*
 * ssd_scan's tiles for one type of arithmetic T, and its forward. Included by ssd_scan_cpu.c with T = float and again
 * with T = double. V is the fixed vector (vec.h); N is the native one (vec_native.h), for loops with independent lanes.
 * F and G build the names of their functions.
 *
 * A tile has a->q places and a->p elements of a head or a->n of a state as its rows and columns, padded with zeros. A
 * state is stored transposed, [n][p]: the products that update it and read it then use rows in place.
 */
#include "ops/common/tile_gemm_tmpl.h"

/* For one head in a chunk, place by place. After the last place dt and both decay factors are 0, and the sum is minus
   infinity. */
struct F(places) {
    T *dt, *sum, *low; /* sum: of dt a up to this place; low: its rounding error */
    T *share, *rest;   /* exp of the sum, and of the remaining steps of the chunk */
    T whole;           /* exp of the sum of all steps */
};

/* A group's part of a chunk: c and b as rows, b also transposed, and their scores. */
struct F(chunk) {
    int64_t at, places, lanes; /* the first place, their number, and that padded to whole tiles */
    T *b, *c, *transposed, *scores;
};

VEC_INLINE T *F(cut)(T **room, int64_t elements)
{
    T *const at = *room;
    *room += elements;
    return at;
}

VEC_INLINE T F(element)(const rw_view *v, int64_t at)
{
    T x;
    F(take)(&x, v->data, v->dtype, at, 1, 1);
    return x;
}

/* Rows of v as a tile of `width` columns and `lanes` rows. */
static void F(rows)(T *to, int64_t width, const rw_view *v, int64_t at, int64_t row, int64_t col, int64_t rows,
                    int64_t cols, int64_t lanes)
{
    for (int64_t i = 0; i < lanes; i++) {
        const int64_t n = i < rows ? cols : 0;
        if (n) F(take)(to + i * width, v->data, v->dtype, at + i * row, col, n);
        for (int64_t c = n; c < width; c++) to[i * width + c] = 0;
    }
}

/* to[c][r] = from[r][c], in squares of whole vectors. */
static void F(transpose_block)(T *to, int64_t to_row, const T *from, int64_t from_row, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < cols; c += LANES) {
            V x[LANES];
            for (int l = 0; l < LANES; l++) x[l] = *(const V *)(from + (r + l) * from_row + c);
            F(transpose)(x);
            for (int l = 0; l < LANES; l++) *(V *)(to + (c + l) * to_row + r) = x[l];
        }
}

/* Multiplies a row, or n adjacent elements, by a factor. */
VEC_INLINE void F(scale)(T *x, T factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += N_LANES) *(N *)(x + i) *= G(all)(factor);
}

/* Multiplies each column by its own factor. */
VEC_INLINE void F(scale_columns)(T *x, int64_t row, const T *factor, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += N_LANES) *(N *)(x + r * row + c) *= *(const N *)(factor + c);
}

/* ---- operands ---- */

/* b or c. */
static void F(group_rows)(const struct ssd *a, int input, T *to, const struct ssd_unit *u, const struct F(chunk) *c)
{
    const rw_view *const v = &a->k->in[input];
    const int64_t *const s = v->layout->stride;
    F(rows)(to, a->n, v, u->b * s[0] + c->at * s[1] + u->g * s[2], s[1], s[3], c->places, a->s.n, c->lanes);
}

/* x or dy of a head. */
static void F(head_rows)(const struct ssd *a, int input, T *to, int64_t b, int64_t h, const struct F(chunk) *c)
{
    const rw_view *const v = &a->k->in[input];
    const int64_t *const s = v->layout->stride;
    F(rows)(to, a->p, v, b * s[0] + c->at * s[1] + h * s[2], s[1], s[3], c->places, a->s.p, c->lanes);
}

static void F(open_chunk)(const struct ssd *a, struct F(chunk) *c, const struct ssd_unit *u, int64_t i)
{
    c->at = i * a->s.q, c->places = rw_ssd_places(&a->s, i), c->lanes = rw_ssd_side(c->places);
    F(group_rows)(a, SSD_B, c->b, u, c);
}

/* The sum at place i, in all lanes. */
struct F(place) {
    N sum, low;
};

VEC_INLINE struct F(place) F(place)(const struct F(places) *x, int64_t i)
{
    return (struct F(place)){ G(all)(x->sum[i]), G(all)(x->low[i]) };
}

/* The sums of the steps after each of these places and up to one place. */
VEC_INLINE N F(between)(const T *sum, const T *low, const struct F(place) *up)
{
    return up->sum - *(const N *)sum + (up->low - *(const N *)low);
}

/* The steps, sums and decay factors of one head in a chunk. */
static void F(head_places)(const struct ssd *a, struct F(places) *x, int64_t b, int64_t h, const struct F(chunk) *c)
{
    const rw_view *const dt = &a->k->in[SSD_DT], *const rates = &a->k->in[SSD_A];
    const int64_t *const s = dt->layout->stride, last = c->places - 1;
    const double rate = (double)F(element)(rates, h * rates->layout->stride[0]);
    const double most = rw_ssd_most(a->s.q);
    struct rw_ssd_sum sum = { 0, 0 };
    F(take)(x->dt, dt->data, dt->dtype, b * s[0] + c->at * s[1] + h * s[2], s[1], c->places);
    for (int64_t i = 0; i < c->places; i++) {
        sum = rw_ssd_add(sum, (double)x->dt[i] * rate, most);
        x->sum[i] = (T)sum.all;
        x->low[i] = (T)(sum.all - (double)x->sum[i] + sum.rest);
    }
    for (int64_t i = c->places; i < c->lanes; i++) x->dt[i] = x->low[i] = 0, x->sum[i] = -(T)INFINITY;
    const struct F(place) end = F(place)(x, last);
    for (int64_t i = 0; i < c->lanes; i += N_LANES) {
        *(N *)(x->share + i) = G(exp)(*(const N *)(x->sum + i));
        *(N *)(x->rest + i) = G(exp)(F(between)(x->sum + i, x->low + i, &end));
    }
    for (int64_t i = c->places; i < c->lanes; i++) x->rest[i] = 0;
    x->whole = x->share[last];
}

/* A state of a head, transposed; zeros if it is absent. */
static void F(read_state)(const struct ssd *a, int input, T *to, int64_t b, int64_t h)
{
    memset(to, 0, (size_t)(a->n * a->p) * sizeof *to);
    if (input < 0) return;
    const rw_view *const v = &a->k->in[input];
    const int64_t *const s = v->layout->stride;
    for (int64_t n = 0; n < a->s.n; n++)
        F(take)(to + n * a->p, v->data, v->dtype, b * s[0] + h * s[1] + n * s[3], s[2], a->s.p);
}

/* Writes LANES rows of it at a time; room: that number of rows of a->n. */
static void F(write_state)(const struct ssd *a, const rw_view *to, const T *state, int64_t b, int64_t h, T *room)
{
    for (int64_t p = 0; p < a->s.p; p += LANES) {
        F(transpose_block)(room, a->n, state + p, a->p, a->n, LANES);
        for (int64_t i = 0; i < LANES && p + i < a->s.p; i++)
            F(give)(to->data, to->dtype, ((b * a->s.h + h) * a->s.p + p + i) * a->s.n, room + i * a->n, 1, a->s.n);
    }
}

/* ---- forward ---- */

/* state = whole * state + the chunk's term: dt x, in x, times the remaining decay. */
static void F(advance)(const struct ssd *a, T *state, const struct F(chunk) *c, const struct F(places) *x, T *rows)
{
    for (int64_t i = 0; i < c->places; i++) F(scale)(rows + i * a->p, x->rest[i], a->p);
    F(scale)(state, x->whole, a->n * a->p);
    F(multiply)(state, a->p, c->b, 1, a->n, rows, a->p, a->s.n, a->p, c->places, true);
}

/* m of a head, row by row up to the diagonal. */
static void F(pairs)(const struct ssd *a, T *m, const struct F(chunk) *c, const struct F(places) *x)
{
    for (int64_t i = 0; i < c->places; i++) {
        T *const row = m + i * a->q;
        const T *const sum = x->sum, *const low = x->low, *const scores = c->scores + i * a->q;
        const struct F(place) up = F(place)(x, i);
        const int64_t lanes = rw_ssd_side(i + 1);
        for (int64_t j = 0; j < lanes; j += N_LANES) {
            const N share = G(exp)(F(between)(sum + j, low + j, &up));
            *(N *)(row + j) = *(const N *)(scores + j) * share;
        }
        for (int64_t j = i + 1; j < lanes; j++) row[j] = 0;
    }
}

/* A chunk of one head; room: tiles of pairs, of x and of y. */
static void F(forward_head)(const struct ssd *a, T *state, const struct F(chunk) *c, const struct F(places) *x,
                            int64_t b, int64_t h, T *room)
{
    T *const m = F(cut)(&room, a->q * a->q), *const rows = F(cut)(&room, a->q * a->p), *const y = room;
    const rw_view *const out = &a->k->out[0];
    F(head_rows)(a, SSD_X, rows, b, h, c);
    for (int64_t i = 0; i < c->places; i++) F(scale)(rows + i * a->p, x->dt[i], a->p);
    F(pairs)(a, m, c, x);
    F(multiply)(y, a->p, c->c, a->n, 1, state, a->p, c->places, a->p, a->s.n, false);
    for (int64_t i = 0; i < c->places; i += RW_SSD_SIDE) {
        const int64_t end = i + RW_SSD_SIDE < c->places ? i + RW_SSD_SIDE : c->places;
        for (int64_t k = i; k < end; k++) F(scale)(y + k * a->p, x->share[k], a->p);
        F(multiply)(y + i * a->p, a->p, m + i * a->q, a->q, 1, rows, a->p, end - i, a->p, end, true);
    }
    for (int64_t i = 0; i < c->places; i++)
        F(give)(out->data, out->dtype, ((b * a->s.l + c->at + i) * a->s.h + h) * a->s.p, y + i * a->p, 1, a->s.p);
    F(advance)(a, state, c, x, rows);
}

/* Forward of one unit: chunk by chunk, for all heads of a part. */
static void F(forward)(const struct ssd *a, T *room, struct ssd_unit u)
{
    struct F(chunk) c = { .b = F(cut)(&room, a->q * a->n), .c = F(cut)(&room, a->q * a->n),
                          .transposed = F(cut)(&room, a->q * a->n), .scores = F(cut)(&room, a->q * a->q) };
    struct F(places) x = { .dt = F(cut)(&room, a->q), .sum = F(cut)(&room, a->q), .low = F(cut)(&room, a->q),
                           .share = F(cut)(&room, a->q), .rest = F(cut)(&room, a->q) };
    T *const state = F(cut)(&room, RW_SSD_HEADS * a->n * a->p);
    for (int64_t h = u.first; h < u.end; h++)
        F(read_state)(a, a->s.state, state + (h - u.first) * a->n * a->p, u.b, h);
    for (int64_t i = 0; i < a->s.chunks; i++) {
        F(open_chunk)(a, &c, &u, i);
        F(group_rows)(a, SSD_C, c.c, &u, &c);
        F(transpose_block)(c.transposed, a->q, c.b, a->n, c.lanes, a->n);
        for (int64_t k = 0; k < c.lanes; k += RW_SSD_SIDE)
            F(multiply)(c.scores + k * a->q, a->q, c.c + k * a->n, a->n, 1, c.transposed, a->q, RW_SSD_SIDE,
                        k + RW_SSD_SIDE, a->s.n, false);
        for (int64_t h = u.first; h < u.end; h++) {
            F(head_places)(a, &x, u.b, h, &c);
            F(forward_head)(a, state + (h - u.first) * a->n * a->p, &c, &x, u.b, h, room);
        }
    }
    for (int64_t h = u.first; h < u.end; h++)
        F(write_state)(a, &a->k->out[1], state + (h - u.first) * a->n * a->p, u.b, h, c.b);
}
