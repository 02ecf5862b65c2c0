/*
 * Attention on tiles of ATT_BLOCK queries by ATT_BLOCK keys, for one type of arithmetic. Included by attention_cpu.c
 * with T = float and again with T = double. V is the fixed vector (vec.h); N is the native one (vec_native.h), for
 * loops with independent lanes. F and G build the names of their functions.
 *
 * A tile of scores is stored transposed, keys by queries. Each lane of a vector is one query, so softmax needs no sums
 * across lanes, the rows of k and v are read in place, and only the queries are transposed, once per block.
 */

#include "ops/common/tile_gemm_tmpl.h"

VEC_INLINE T F(element)(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)p)[i] : (T)f_get(p, dtype, i);
}

/* Rows of an operand as T: in place if possible, else converted into `room` and padded with zeros up to width. */
struct F(matrix) {
    const T *p;
    int64_t row;
};

VEC_INLINE struct F(matrix) F(rows)(rw_dtype dtype, struct att_rows x, int64_t rows, T *room)
{
    const int64_t d = x.d, width = (d + 15) / 16 * 16;
    if (!is_half(dtype) && x.col == 1 && d == width) return (struct F(matrix)){ x.p, x.row };
    for (int64_t r = 0; r < rows; r++) {
        T *const to = room + r * width;
        int64_t i = 0;
        if (is_half(dtype) && x.col == 1)
            for (; i + VF_LANES <= d; i += VF_LANES)
                vf_store((float *)(void *)to + i, vf_load_half((const uint16_t *)x.p + r * x.row + i, dtype));
        for (; i < d; i++) to[i] = F(element)(x.p, dtype, r * x.row + i * x.col);
        for (; i < width; i++) to[i] = 0;
    }
    return (struct F(matrix)){ room, width };
}

/* to[i][q] = scale * x[q][i], with a row stride of ATT_BLOCK; lanes without a query are 0. */
static void F(transpose_rows)(T *to, struct F(matrix) x, int64_t queries, int64_t width, T scale)
{
    const int64_t lanes = F(lanes)(queries);
    for (int64_t q = 0; q < lanes; q += LANES)
        for (int64_t i = 0; i < width; i += LANES) {
            V r[LANES];
            if (q + LANES <= queries) {
                for (int l = 0; l < LANES; l++) r[l] = F(load)(x.p + (q + l) * x.row + i) * scale;
            } else {
                for (int l = 0; l < LANES; l++) r[l] = F(all)(0);
                for (int l = 0; q + l < queries; l++) r[l] = F(load)(x.p + (q + l) * x.row + i) * scale;
            }
            F(transpose)(r);
            for (int l = 0; l < LANES; l++) F(store)(to + (i + l) * ATT_BLOCK + q, r[l]);
        }
}

/* Writes n elements of a row as dtype, times factor. */
VEC_INLINE void F(write_row)(void *p, rw_dtype dtype, int64_t at, const T *from, int64_t n, T factor)
{
    int64_t i = 0;
    if (is_half(dtype))
        for (; i + VF_LANES <= n; i += VF_LANES)
            vf_store_half((uint16_t *)p + at + i, dtype,
                          vf_load((const float *)(const void *)from + i) * (float)factor);
    for (; i < n; i++) {
        if (dtype == RW_F64) ((double *)p)[at + i] = (double)(from[i] * factor);
        else f_put(p, dtype, at + i, (float)(from[i] * factor));
    }
}

/*
 * ---- infinity and NaN in rows that a query does not see ----
 *
 * A query and a key that it does not see have probability 0, but 0 times infinity is NaN. So an element of one row of
 * k, v, q or dy could reach the results of all other rows in its tile. This is rare, and has no cost unless it happens:
 * a unit of work uses plain products, and if its result is not finite, it is computed a second time, carefully
 * (att.careful). The careful products skip a factor of 0. Finite terms are added by the same products in the same
 * order, so an excluded row never changes another result.
 */

static bool F(is_finite)(const T *p, int64_t row, int64_t rows, int64_t width)
{
    bool finite = true;
    for (int64_t r = 0; r < rows; r++) {
        N none = G(all)(0);
        for (int64_t i = 0; i < width; i += N_LANES) none += *(const N *)(p + r * row + i) * G(all)(0);
        for (int l = 0; l < N_LANES; l++) finite &= none[l] == 0;
    }
    return finite;
}

#define CAREFUL_COLUMNS 64

/* c [rows, width] += a b as multiply() does it: first with the finite elements of b, then with the others where a is
   not 0. */
static void F(add_careful)(T *c, int64_t c_row, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t b_row,
                           int64_t rows, int64_t width, int64_t depth)
{
    T finite[ATT_BLOCK * CAREFUL_COLUMNS] __attribute__((aligned(64)));
    for (int64_t from = 0; from < width; from += CAREFUL_COLUMNS) {
        const int64_t columns = width - from < CAREFUL_COLUMNS ? width - from : CAREFUL_COLUMNS;
        for (int64_t p = 0; p < depth; p++)
            for (int64_t i = 0; i < columns; i++) {
                const T x = b[p * b_row + from + i];
                finite[p * CAREFUL_COLUMNS + i] = x - x == 0 ? x : 0;
            }
        F(multiply)(c + from, c_row, a, a_row, a_col, finite, CAREFUL_COLUMNS, rows, columns, depth, true);
        for (int64_t p = 0; p < depth; p++)
            for (int64_t i = from; i < from + columns; i++) {
                const T x = b[p * b_row + i];
                for (int64_t r = 0; x - x != 0 && r < rows; r++)
                    if (a[r * a_row + p * a_col] != 0) c[r * c_row + i] += a[r * a_row + p * a_col] * x;
            }
    }
}

#undef CAREFUL_COLUMNS

/* c [rows, width] += a b, with b as rows. */
static void F(add)(const struct att *att, T *c, int64_t c_row, const T *a, int64_t a_row, int64_t a_col,
                   struct F(matrix) b, int64_t rows, int64_t width, int64_t depth)
{
    if (att->careful) F(add_careful)(c, c_row, a, a_row, a_col, b.p, b.row, rows, width, depth);
    else F(multiply)(c, c_row, a, a_row, a_col, b.p, b.row, rows, width, depth, true);
}

/* ---- scores ---- */

/* Sets the scores of keys after those that a query sees to minus infinity, under causality. */
static void F(mask)(T *s, const struct att *a, int64_t i, int64_t j, int64_t keys, int64_t lanes)
{
    if (!a->causal) return;
    for (int64_t key = 0; key < keys; key++) {
        int64_t first = j * ATT_BLOCK + key - (a->e.kv_seq - a->e.seq) - i * ATT_BLOCK;
        if (first > lanes) first = lanes;
        for (int64_t q = 0; q < first; q++) s[key * ATT_BLOCK + q] = -(T)INFINITY;
    }
}

/* ---- options ---- */

/* Soft-caps scores: cap tanh(score / cap). slope, if not NULL: its derivative. */
static void F(soft_cap)(T *s, T *slope, const struct att *a, int64_t keys, int64_t lanes)
{
    const N cap = G(all)((T)a->cap), inverse = G(all)((T)(1 / a->cap)), one = G(all)(1);
    for (int64_t key = 0; key < keys; key++)
        for (int64_t q = 0; q < lanes; q += N_LANES) {
            N *const p = (N *)(s + key * ATT_BLOCK + q);
            const N x = G(tanh)(*p * inverse);
            *p = x * cap;
            if (slope) *(N *)(slope + key * ATT_BLOCK + q) = one - x * x;
        }
}

/* A tile of scores, and its position. */
struct F(tile) {
    T *s;
    int64_t b, h, i, j, queries, keys, lanes;
};

static void F(add_slopes)(const struct F(tile) *x, const struct att *a)
{
    const rw_view *const slopes = a->extra[ATT_SLOPES];
    const T slope = ((const T *)slopes->data)[x->h * slopes->layout->stride[0]];
    const int64_t first = x->i * ATT_BLOCK + (a->e.kv_seq - a->e.seq) - x->j * ATT_BLOCK;
    for (int64_t key = 0; key < x->keys; key++)
        for (int64_t q = 0; q < x->lanes; q++) {
            const int64_t distance = first + q - key;
            x->s[key * ATT_BLOCK + q] -= slope * (T)(distance < 0 ? -distance : distance);
        }
}

VEC_INLINE void F(add_mask_of)(const struct F(tile) *x, const rw_view *mask, rw_dtype dtype)
{
    const rw_layout *const l = mask->layout;
    const int64_t row = l->dim[2] == 1 ? 0 : l->stride[2], col = l->dim[3] == 1 ? 0 : l->stride[3];
    const int64_t at = (l->dim[0] == 1 ? 0 : x->b * l->stride[0]) + (l->dim[1] == 1 ? 0 : x->h * l->stride[1]) +
                       x->i * ATT_BLOCK * row + x->j * ATT_BLOCK * col;
    for (int64_t q = 0; q < x->queries; q++)
        for (int64_t key = 0; key < x->keys; key++) {
            const T m = F(element)(mask->data, dtype, at + q * row + key * col);
            T *const s = x->s + key * ATT_BLOCK + q;
            *s = m == -(T)INFINITY ? m : *s + m; /* for any score, even NaN */
        }
}

/* Applies a mask of truth values: minus infinity where a key is not seen. */
static void F(cut_by_mask)(const struct F(tile) *x, const rw_view *mask)
{
    const rw_layout *const l = mask->layout;
    const int64_t at[] = { x->b, x->h, x->i * ATT_BLOCK, x->j * ATT_BLOCK };
    const uint8_t *p = mask->data;
    for (int axis = 0; axis < 4; axis++) p += l->dim[axis] == 1 ? 0 : at[axis] * l->stride[axis];
    for (int64_t q = 0; q < x->queries; q++)
        for (int64_t key = 0; key < x->keys; key++)
            if (!p[(l->dim[2] == 1 ? 0 : q * l->stride[2]) + (l->dim[3] == 1 ? 0 : key * l->stride[3])])
                x->s[key * ATT_BLOCK + q] = -(T)INFINITY;
}

static void F(add_mask)(const struct F(tile) *x, const rw_view *mask)
{
    switch (mask->dtype) {
    case RW_BOOL: F(cut_by_mask)(x, mask); return;
    case RW_F64: F(add_mask_of)(x, mask, RW_F64); return;
    case RW_BF16: F(add_mask_of)(x, mask, RW_BF16); return;
    case RW_F16: F(add_mask_of)(x, mask, RW_F16); return;
    default: F(add_mask_of)(x, mask, RW_F32); return;
    }
}

/* Sets the scores of keys outside a query's span to minus infinity. */
static void F(cut_out)(const struct F(tile) *x, const struct att *a)
{
    const struct att_span *const span = a->span + x->b * a->span_batch + x->i * ATT_BLOCK;
    for (int64_t q = 0; q < x->queries; q++) {
        const int64_t lo = rw_att_between(span[q].lo - x->j * ATT_BLOCK, 0, x->keys);
        const int64_t hi = rw_att_between(span[q].hi - x->j * ATT_BLOCK, lo, x->keys);
        for (int64_t key = 0; key < lo; key++) x->s[key * ATT_BLOCK + q] = -(T)INFINITY;
        for (int64_t key = hi; key < x->keys; key++) x->s[key * ATT_BLOCK + q] = -(T)INFINITY;
    }
}

/* Applies the options to scaled scores. slope: see soft_cap. */
static void F(finish_scores)(const struct F(tile) *x, const struct att *a, T *slope)
{
    if (a->plain) {
        F(mask)(x->s, a, x->i, x->j, x->keys, x->lanes);
        return;
    }
    if (a->cap != 0) F(soft_cap)(x->s, slope, a, x->keys, x->lanes);
    if (a->extra[ATT_SLOPES]) F(add_slopes)(x, a);
    if (a->extra[ATT_MASK]) F(add_mask)(x, a->extra[ATT_MASK]);
    F(cut_out)(x, a);
}

/* ---- forward ---- */

struct F(running) {
    T *max, *sum, *shrink; /* per query */
};

/* Converts scores to probabilities relative to the running maximum. */
static void F(softmax_tile)(T *s, const struct F(running) *run, int64_t keys, int64_t lanes)
{
    for (int64_t q = 0; q < lanes; q += N_LANES) {
        const N before = *(const N *)(run->max + q);
        N max = before, sum = G(all)(0);
        for (int64_t key = 0; key < keys; key++) max = G(larger)(max, *(const N *)(s + key * ATT_BLOCK + q));
        const N shift = G(finite)(max), shrink = G(exp_fast)(before - shift);
        for (int64_t key = 0; key < keys; key++) {
            N *const p = (N *)(s + key * ATT_BLOCK + q);
            *p = G(exp_fast)(*p - shift);
            sum += *p;
        }
        *(N *)(run->sum + q) = *(const N *)(run->sum + q) * shrink + sum;
        *(N *)(run->max + q) = max;
        *(N *)(run->shrink + q) = shrink;
    }
}

static void F(drop_tile)(T *s, const struct att *a, const uint32_t *words, int64_t keys, int64_t lanes)
{
    for (int64_t key = 0; key < keys; key++)
        for (int64_t q = 0; q < lanes; q++)
            s[key * ATT_BLOCK + q] = words[key * ATT_BLOCK + q] >= a->threshold ? s[key * ATT_BLOCK + q] : 0;
}

VEC_INLINE void F(write_output)(const struct att *a, rw_dtype dtype, int64_t head, int64_t i, int64_t queries,
                                const T *o, const struct F(running) *run)
{
    for (int64_t q = 0; q < queries; q++) {
        const int64_t row = head * a->e.seq + i * ATT_BLOCK + q;
        const T sum = run->sum[q], factor = sum == 0 ? 0 : (T)a->keep_factor / sum;
        /* [batch, seq, heads, dv] */
        const int64_t to = (head / a->e.heads * a->e.seq + i * ATT_BLOCK + q) * a->e.heads + head % a->e.heads;
        F(write_row)(a->k->out[0].data, dtype, to * a->e.dv, o + q * a->e.v_width, a->e.dv, factor);
        ((T *)a->k->out[1].data)[row] = sum == 0 ? -(T)INFINITY : run->max[q] + F(log_one)(sum);
    }
}

/* Initial state before the first key: empty; or the sink, which counts in the sum and has no value. */
static void F(begin_rows)(const struct att *a, int64_t h, const struct F(running) *run)
{
    const rw_view *const sinks = a->extra[ATT_SINKS];
    const T sink = sinks ? F(element)(sinks->data, sinks->dtype, h * sinks->layout->stride[0]) : -(T)INFINITY;
    for (int q = 0; q < ATT_BLOCK; q++) run->max[q] = sink, run->sum[q] = sink == -(T)INFINITY ? 0 : 1;
}

/* One block of queries of one head against all keys that they see. Are the results finite? */
VEC_INLINE bool F(forward)(const struct att *a, rw_dtype dtype, T *room, int64_t b, int64_t h, int64_t i)
{
    const int64_t width = a->e.v_width, queries = att_extent(a->e.seq, i), lanes = F(lanes)(queries);
    T *const transposed = room, *const o = transposed + ATT_BLOCK * a->e.width, *const k_room = o + ATT_BLOCK * width;
    T *const v_room = k_room + ATT_BLOCK * a->e.widest, *const s = v_room + ATT_BLOCK * a->e.widest;
    uint32_t *const words = (uint32_t *)(void *)(s + ATT_BLOCK * ATT_BLOCK);
    T *const stats = s + 2 * ATT_BLOCK * ATT_BLOCK;
    const struct F(running) run = { stats, stats + ATT_BLOCK, stats + 2 * ATT_BLOCK };
    F(transpose_rows)(transposed, F(rows)(dtype, att_operand(a, 0, b, h, i), queries, k_room), queries, a->e.width,
                      (T)a->scale);
    memset(o, 0, (size_t)(queries * width) * sizeof *o);
    F(begin_rows)(a, h, &run);
    const struct att_keys seen = att_seen(a, b, i, queries);
    for (int64_t j = seen.from / ATT_BLOCK; j * ATT_BLOCK < seen.to; j++) {
        const int64_t keys = att_keys_in(seen, j);
        const struct F(matrix) k = F(rows)(dtype, att_operand(a, 1, b, h / a->e.group, j), keys, k_room);
        const struct F(matrix) v = F(rows)(dtype, att_operand(a, 2, b, h / a->e.group, j), keys, v_room);
        F(multiply)(s, ATT_BLOCK, k.p, k.row, 1, transposed, ATT_BLOCK, keys, lanes, a->e.d, false);
        F(finish_scores)(&(struct F(tile)){ s, b, h, i, j, queries, keys, lanes }, a, NULL);
        F(softmax_tile)(s, &run, keys, lanes);
        if (a->threshold) {
            att_draw(a, words, b, h, i, j, queries, keys);
            F(drop_tile)(s, a, words, keys, lanes);
        }
        for (int64_t q = 0; q < queries && j; q++)
            for (int64_t c = 0; c < width; c += LANES)
                F(store)(o + q * width + c, F(load)(o + q * width + c) * run.shrink[q]);
        F(add)(a, o, width, s, 1, ATT_BLOCK, v, queries, width, keys);
    }
    F(write_output)(a, dtype, b * a->e.heads + h, i, queries, o, &run);
    return F(is_finite)(o, width, queries, width);
}

/* ---- backward ---- */

/* A block of queries, prepared for its tiles. */
struct F(block) {
    int64_t b, h, i, queries, lanes;
    T *q_transposed, *do_transposed; /* [width][ATT_BLOCK], q times the scale */
    struct F(matrix) q, dy;
    T *lse, *dot, *dq;
    T *s, *ds, *slope, *k_room, *v_room; /* slope: derivative of soft-capping, NULL without */
    uint32_t *words;
    struct att_keys seen;
};

/* delta: the sum over d of o * do, minus the gradient of the log-sum-exp; softmax's gradient subtracts it. */
VEC_INLINE void F(dots)(const struct att *a, rw_dtype dtype, const struct F(block) *x)
{
    const struct att_rows o = att_operand(a, 3, x->b, x->h, x->i);
    const T *const lse = (const T *)a->k->in[4].data + (x->b * a->e.heads + x->h) * a->e.seq + x->i * ATT_BLOCK;
    const struct F(matrix) rows = F(rows)(dtype, o, x->queries, x->v_room);
    const rw_view *const dlse = a->extra[ATT_DLSE];
    for (int64_t q = 0; q < ATT_BLOCK; q++) {
        V sum = F(all)(0);
        for (int64_t c = 0; c < a->e.v_width && q < x->queries; c += LANES)
            sum = F(mul_add)(F(load)(rows.p + q * rows.row + c), F(load)(x->dy.p + q * x->dy.row + c), sum);
        x->dot[q] = F(sum)(sum);
        if (dlse && q < x->queries) {
            const int64_t *const s = dlse->layout->stride;
            x->dot[q] -= ((const T *)dlse->data)[x->b * s[0] + x->h * s[1] + (x->i * ATT_BLOCK + q) * s[2]];
        }
        /* probability 0 for queries that see no key */
        x->lse[q] = q < x->queries && lse[q] != -(T)INFINITY ? lse[q] : (T)INFINITY;
    }
}

/* Prepares a block of queries: transposes q and dy, and loads log-sum-exps and deltas. */
VEC_INLINE struct F(block) F(block)(const struct att *a, rw_dtype dtype, T *room, int64_t b, int64_t h, int64_t i)
{
    const int64_t panel = ATT_BLOCK * a->e.width, v_panel = ATT_BLOCK * a->e.v_width, tile = ATT_BLOCK * ATT_BLOCK;
    struct F(block) x = { .b = b, .h = h, .i = i, .queries = att_extent(a->e.seq, i) };
    x.lanes = F(lanes)(x.queries);
    x.seen = att_seen(a, b, i, x.queries);
    x.q_transposed = room;
    x.do_transposed = x.q_transposed + panel;
    x.dq = x.do_transposed + v_panel;
    x.k_room = x.dq + panel;
    x.v_room = x.k_room + ATT_BLOCK * a->e.widest;
    T *const q_room = x.v_room + v_panel, *const dy_room = q_room + panel;
    x.s = dy_room + v_panel;
    x.ds = x.s + tile;
    x.words = (uint32_t *)(void *)(x.ds + tile);
    x.lse = x.ds + 2 * tile;
    x.dot = x.lse + ATT_BLOCK;
    x.slope = a->cap != 0 ? x.lse + 4 * ATT_BLOCK : NULL;
    x.q = F(rows)(dtype, att_operand(a, 0, b, h, i), x.queries, q_room);
    x.dy = F(rows)(dtype, att_operand(a, 5, b, h, i), x.queries, dy_room);
    F(transpose_rows)(x.q_transposed, x.q, x.queries, a->e.width, (T)a->scale);
    F(transpose_rows)(x.do_transposed, x.dy, x.queries, a->e.v_width, 1);
    F(dots)(a, dtype, &x);
    return x;
}

/*
 * s: converts scores to the probabilities that dv uses. ds: converts the gradient of the probabilities to that of q k^T
 * if `through`, else to that of the softmax's input.
 */
static void F(gradient_tile)(const struct att *a, const struct F(block) *x, int64_t keys, bool through)
{
    const N scale = G(all)(through ? (T)a->scale : 1), factor = G(all)((T)a->keep_factor);
    for (int64_t q = 0; q < x->lanes; q += N_LANES) {
        const N lse = *(const N *)(x->lse + q), dot = *(const N *)(x->dot + q);
        for (int64_t key = 0; key < keys; key++) {
            N *const s = (N *)(x->s + key * ATT_BLOCK + q), *const ds = (N *)(x->ds + key * ATT_BLOCK + q);
            N p = G(exp_fast)(*s - lse);
            if (a->careful) p = G(unless)(*s, G(all)(-(T)INFINITY), p); /* lse may be NaN */
            N kept = p, dp = *ds;
            if (a->threshold) {
                const N keep = G(keep)(x->words + key * ATT_BLOCK + q, a->threshold, factor);
                kept *= keep;
                dp *= keep;
            }
            *s = kept;
            *ds = p * (dp - dot) * scale;
            if (x->slope && through) *ds *= *(const N *)(x->slope + key * ATT_BLOCK + q);
            if (a->careful) *ds = G(unless)(p, G(all)(0), *ds);
        }
    }
}

/* The requested sums: row buffers with this stride, from the first key of block j on. */
struct F(sums) {
    T *dk, *dv;
    int64_t k_row, v_row;
};

/* The tile with block j of the keys: computes it and returns the block's keys and values as rows, and their number. */
struct F(pair) {
    struct F(matrix) k, v;
    int64_t keys;
};

VEC_INLINE struct F(pair) F(probabilities)(const struct att *a, rw_dtype dtype, const struct F(block) *x, int64_t j,
                                           bool through)
{
    const int64_t kv_head = x->h / a->e.group, keys = att_keys_in(x->seen, j);
    const struct F(pair) p = { F(rows)(dtype, att_operand(a, 1, x->b, kv_head, j), keys, x->k_room),
                               F(rows)(dtype, att_operand(a, 2, x->b, kv_head, j), keys, x->v_room), keys };
    F(multiply)(x->s, ATT_BLOCK, p.k.p, p.k.row, 1, x->q_transposed, ATT_BLOCK, keys, x->lanes, a->e.d, false);
    F(multiply)(x->ds, ATT_BLOCK, p.v.p, p.v.row, 1, x->do_transposed, ATT_BLOCK, keys, x->lanes, a->e.dv, false);
    F(finish_scores)(&(struct F(tile)){ x->s, x->b, x->h, x->i, j, x->queries, keys, x->lanes }, a, x->slope);
    if (a->threshold) att_draw(a, x->words, x->b, x->h, x->i, j, x->queries, keys);
    F(gradient_tile)(a, x, keys, through);
    return p;
}

VEC_INLINE void F(backward_tile)(const struct att *a, rw_dtype dtype, const struct F(block) *x, int64_t j,
                                 const struct F(sums) *to, bool dq)
{
    const int64_t width = a->e.width;
    const struct F(pair) p = F(probabilities)(a, dtype, x, j, true);
    if (to) {
        F(add)(a, to->dv, to->v_row, x->s, ATT_BLOCK, 1, x->dy, p.keys, a->e.v_width, x->queries);
        F(add)(a, to->dk, to->k_row, x->ds, ATT_BLOCK, 1, x->q, p.keys, width, x->queries);
    }
    if (dq) F(add)(a, x->dq, width, x->ds, 1, ATT_BLOCK, p.k, x->queries, width, p.keys);
}

/* Writes rows to a result, the first of them at element `at`. */
VEC_INLINE void F(write_rows)(rw_dtype dtype, const struct att_result *to, int64_t at, int64_t rows, const T *from,
                              int64_t width, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) F(write_row)(to->p, dtype, at + r * to->row, from + r * width, d, 1);
}

/* LANES columns of a row of a result, of which n exist. */
VEC_INLINE V F(stored)(const void *p, rw_dtype dtype, int64_t at, int64_t n)
{
    if (n >= LANES && is_half(dtype)) {
        T x[LANES];
        vf_store((float *)(void *)x, vf_load_half((const uint16_t *)p + at, dtype));
        return F(load)(x);
    }
    if (n >= LANES) return F(load)((const T *)p + at);
    T x[LANES] = { 0 };
    for (int64_t i = 0; i < n; i++) x[i] = F(element)(p, dtype, at + i);
    return F(load)(x);
}

#define AT_ONCE (4 * LANES) /* in columns */

/* Sums rows over n columns from element `at` on, at most AT_ONCE; a constant n keeps the sums in registers. */
VEC_INLINE void F(sum_rows)(T *to, const struct att_result *y, rw_dtype dtype, int64_t at, int64_t rows, int64_t n)
{
    V sum[AT_ONCE / LANES];
    for (int64_t v = 0; v < AT_ONCE / LANES; v++) sum[v] = F(all)(0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t v = 0; v < AT_ONCE / LANES && v * LANES < n; v++)
            sum[v] += F(stored)(y->p, dtype, at + r * y->row + v * LANES, n - v * LANES);
    T all[AT_ONCE];
    for (int64_t v = 0; v < AT_ONCE / LANES; v++) F(store)(all + v * LANES, sum[v]);
    memcpy(to, all, (size_t)n * sizeof *all);
}

/*
 * If column sums of gradient i (0 for q, 1 for k, 2 for v) are requested: those of block `block` of a head's rows,
 * which were just stored, from element `at` on.
 */
VEC_INLINE void F(sum_columns)(const struct att *a, rw_dtype dtype, int i, int64_t b, int64_t head, int64_t block,
                               int64_t at)
{
    const struct att_result *const y = &a->gradient[i];
    const int64_t rows = att_extent(a->e.seq, block), d = a->e.d;
    if (!a->part) return;
    T *const to = (T *)a->part + (b * a->e.q_blocks + block) * rw_att_columns(&a->e) + rw_att_column(&a->e, i, head);
    for (int64_t c = 0; c < d; c += AT_ONCE) {
        if (c + AT_ONCE <= d) F(sum_rows)(to + c, y, dtype, at + c, rows, AT_ONCE);
        else F(sum_rows)(to + c, y, dtype, at + c, rows, d - c);
    }
}

/* The sinks' gradient by row: a sink has a probability and no value. */
static void F(sink_rows)(const struct att *a, const struct F(block) *x)
{
    const rw_view *const sinks = a->extra[ATT_SINKS], *const out = &a->k->out[a->k->n_outputs - 1];
    const N sink = G(all)(F(element)(sinks->data, sinks->dtype, x->h * sinks->layout->stride[0]));
    T *const to = (T *)out->data + (x->b * a->e.heads + x->h) * a->e.seq + x->i * ATT_BLOCK, row[ATT_BLOCK];
    for (int64_t q = 0; q < x->lanes; q += N_LANES) {
        const N p = G(exp_fast)(sink - *(const N *)(x->lse + q)), g = G(all)(0) - p * *(const N *)(x->dot + q);
        memcpy(row + q, &g, sizeof g);
    }
    memcpy(to, row, (size_t)x->queries * sizeof *to);
}

/* dq of one block of queries, and if requested the contributions to dk and dv for key blocks [from, to). Is dq
   finite? */
VEC_INLINE bool F(backward_queries)(const struct att *a, rw_dtype dtype, T *room, int64_t b, int64_t h, int64_t i,
                                    int64_t from, int64_t to, const struct F(sums) *sums, bool dq)
{
    const struct att_keys seen = att_seen(a, b, i, att_extent(a->e.seq, i));
    if (!dq && (from * ATT_BLOCK >= seen.to || to * ATT_BLOCK <= seen.from)) return true;
    const struct F(block) x = F(block)(a, dtype, room, b, h, i);
    if (dq) memset(x.dq, 0, (size_t)(x.queries * a->e.width) * sizeof *x.dq);
    const int64_t first = seen.from / ATT_BLOCK;
    for (int64_t j = first > from ? first : from; j < to && j * ATT_BLOCK < seen.to; j++) {
        if (!sums) {
            F(backward_tile)(a, dtype, &x, j, NULL, dq);
            continue;
        }
        const int64_t row = (j - from) * ATT_BLOCK;
        const struct F(sums) here = { sums->dk + row * sums->k_row, sums->dv + row * sums->v_row, sums->k_row,
                                      sums->v_row };
        F(backward_tile)(a, dtype, &x, j, &here, dq);
    }
    const struct att_result *const result = &a->gradient[0];
    if (dq && a->extra[ATT_SINKS]) F(sink_rows)(a, &x);
    if (!dq) return true;
    const int64_t at = att_begin(result, b, h, i * ATT_BLOCK);
    F(write_rows)(dtype, result, at, x.queries, x.dq, a->e.width, a->e.d);
    F(sum_columns)(a, dtype, 0, b, h, i, at);
    return F(is_finite)(x.dq, a->e.width, x.queries, a->e.width);
}

/* dk and dv of key blocks [from, to) of one kv head, summed over its query heads and their blocks in order. Are they
   and dq finite? */
VEC_INLINE bool F(backward_keys)(const struct att *a, rw_dtype dtype, T *room, int64_t b, int64_t kv_head, int64_t from,
                                 int64_t to, bool dq)
{
    const struct att_result *const dk = &a->gradient[1], *const dv = &a->gradient[2];
    const int64_t k_at = att_begin(dk, b, kv_head, from * ATT_BLOCK), width = a->e.width;
    const int64_t v_at = att_begin(dv, b, kv_head, from * ATT_BLOCK), v_width = a->e.v_width;
    const int64_t rows = (to * ATT_BLOCK < a->e.kv_seq ? to * ATT_BLOCK : a->e.kv_seq) - from * ATT_BLOCK;
    const bool in_output = rw_att_sums_in_output(&a->e, dtype);
    bool finite = true;
    T *const own = room + rw_att_block_elements(&a->e, a->k->attrs);
    struct F(sums) sums = { own, own + (to - from) * ATT_BLOCK * width, width, v_width };
    if (in_output) sums = (struct F(sums)){ (T *)dk->p + k_at, (T *)dv->p + v_at, dk->row, dv->row };
    for (int64_t r = 0; r < rows; r++) {
        memset(sums.dk + r * sums.k_row, 0, (size_t)width * sizeof(T));
        memset(sums.dv + r * sums.v_row, 0, (size_t)v_width * sizeof(T));
    }
    for (int64_t h = kv_head * a->e.group; h < (kv_head + 1) * a->e.group; h++)
        for (int64_t i = 0; i < a->e.q_blocks; i++)
            finite &= F(backward_queries)(a, dtype, room, b, h, i, from, to, &sums, dq);
    finite &= F(is_finite)(sums.dk, sums.k_row, rows, width) && F(is_finite)(sums.dv, sums.v_row, rows, v_width);
    if (!in_output) F(write_rows)(dtype, dk, k_at, rows, sums.dk, width, a->e.d);
    if (!in_output) F(write_rows)(dtype, dv, v_at, rows, sums.dv, v_width, a->e.dv);
    for (int64_t j = from; j < to; j++) {
        const int64_t below = (j - from) * ATT_BLOCK;
        F(sum_columns)(a, dtype, 1, b, kv_head, j, k_at + below * dk->row);
        F(sum_columns)(a, dtype, 2, b, kv_head, j, v_at + below * dv->row);
    }
    return finite;
}

/* One tile of the mask's gradient, summed in order over the batches and heads that share it. Is it finite? */
VEC_INLINE bool F(mask_backward)(const struct att *a, rw_dtype dtype, T *room, int64_t pair, int64_t i, int64_t j)
{
    const rw_view *const out = &a->k->out[0];
    const rw_layout *const l = out->layout;
    const int64_t mb = pair / l->dim[1], mh = pair % l->dim[1], queries = att_extent(a->e.seq, i);
    const int64_t keys = att_extent(a->e.kv_seq, j), lanes = F(lanes)(queries);
    T *const sum = room + rw_att_block_elements(&a->e, a->k->attrs);
    memset(sum, 0, ATT_BLOCK * ATT_BLOCK * sizeof *sum);
    for (int64_t b = 0; b < a->e.batch; b++)
        for (int64_t h = 0; h < a->e.heads; h++) {
            const struct att_keys seen = att_seen(a, b, i, queries);
            if ((l->dim[0] > 1 && b != mb) || (l->dim[1] > 1 && h != mh)) continue;
            if (j * ATT_BLOCK >= seen.to || (j + 1) * ATT_BLOCK <= seen.from) continue;
            const struct F(block) x = F(block)(a, dtype, room, b, h, i);
            const struct F(pair) p = F(probabilities)(a, dtype, &x, j, false);
            for (int64_t key = 0; key < p.keys; key++)
                for (int64_t q = 0; q < lanes; q++) sum[key * ATT_BLOCK + q] += x.ds[key * ATT_BLOCK + q];
        }
    for (int64_t q = 0; q < queries; q++) {
        T row[ATT_BLOCK];
        for (int64_t key = 0; key < keys; key++) row[key] = sum[key * ATT_BLOCK + q];
        const int64_t at = (pair * a->e.seq + i * ATT_BLOCK + q) * a->e.kv_seq + j * ATT_BLOCK;
        F(write_row)(out->data, out->dtype, at, row, keys, 1);
    }
    return F(is_finite)(sum, ATT_BLOCK, keys, ATT_BLOCK);
}

#undef AT_ONCE
#undef N_LANES
#undef N_MAX
