/*
 * CPU kernels of attention. Forward: one unit of work per block of queries. Backward: one per (batch, kv head), which
 * sums dk and dv in a fixed order. If there are few of these, backward makes two passes over blocks, one for dk and dv
 * and one for dq. Units depend on the shape alone, so results do not depend on the number of threads.
 */
#include "base/float_mode.h"
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/attention/attention.h"
#include "ops/common/vec_transpose.h"
#include "ops/random/philox_vec.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"

struct att {
    const rw_kernel *k;
    struct att_extents e;
    double scale, keep_factor; /* keep_factor: 1 / (1 - dropout) */
    bool causal;
    bool careful; /* see attention_tile_tmpl.h */
    uint32_t threshold; /* dropout keeps a score by comparing its random word with this; 0: no dropout */
    int64_t per_thread; /* elements of workspace */
    struct att_result gradient[3]; /* outputs of backward */
    void *part; /* column sums of each block of rows [batch, blocks, columns]; NULL: not requested */
    /* Options. plain: there are none, and of the following only dlse may be set. */
    bool plain;
    const struct att_span *span; /* by row, and by batch with this stride */
    int64_t span_batch;
    double cap;
    const rw_view *extra[ATT_EXTRAS]; /* NULL: absent */
};

struct att_rows {
    const void *p;
    int64_t row, col, d;
};

/* The number of elements in block i of `extent` elements. */
static int64_t att_extent(int64_t extent, int64_t i)
{
    const int64_t rest = extent - i * ATT_BLOCK;
    return rest < ATT_BLOCK ? rest : ATT_BLOCK;
}

/* The keys that at least one query of a block sees: [from, to). */
struct att_keys {
    int64_t from, to;
};

static struct att_keys att_seen(const struct att *a, int64_t b, int64_t i, int64_t queries)
{
    const struct att_span *const span = a->span + b * a->span_batch + i * ATT_BLOCK;
    if (!a->plain) return (struct att_keys){ span[0].lo, span[queries - 1].hi };
    const int64_t reach = i * ATT_BLOCK + queries + (a->e.kv_seq - a->e.seq);
    return (struct att_keys){ 0, a->causal && reach < a->e.kv_seq ? reach : a->e.kv_seq };
}

/* The end of these keys within block j, counted from the block's start. */
static int64_t att_keys_in(struct att_keys seen, int64_t j)
{
    const int64_t rest = seen.to - j * ATT_BLOCK;
    return rest < ATT_BLOCK ? rest : ATT_BLOCK;
}

/* Block `block` of rows of input `input`, for one head. */
static struct att_rows att_operand(const struct att *a, int input, int64_t b, int64_t head, int64_t block)
{
    const rw_view *const x = &a->k->in[input];
    const int64_t *const s = x->layout->stride;
    const int64_t at = b * s[0] + head * s[1] + block * ATT_BLOCK * s[2];
    return (struct att_rows){ (const char *)x->data + at * (int64_t)rw_dtype_size(x->dtype), s[2], s[3],
                              x->layout->dim[3] };
}

/* Start of row `row` of a head in a result, in elements. */
static int64_t att_begin(const struct att_result *r, int64_t b, int64_t head, int64_t row)
{
    return b * r->batch + head * r->head + row * r->row;
}

#define ATT_QUADS (ATT_BLOCK / 4)

typedef uint32_t att_words __attribute__((vector_size(NATIVE_BYTES / 2), aligned(4), may_alias));

/* Draws words[key][query] of a tile whose rows start at whole Philox blocks, for PHILOX_LANES queries at a time. */
static void att_draw_whole(const struct att *a, uint32_t *words, uint64_t element, int64_t queries, int64_t keys)
{
    const uint64_t row = (uint64_t)a->e.kv_seq / 4, first = a->k->ticket.offset + element / 4;
    for (int64_t q = 0; q < queries; q += PHILOX_LANES) {
        philox_lanes block;
        for (int l = 0; l < PHILOX_LANES; l++) block[l] = first + (uint64_t)(q + l) * row;
        for (int64_t key = 0; key < keys; key += 4) {
            philox_lanes word[4];
            philox_blocks(a->k->ticket.seed, block, word);
            for (int w = 0; w < 4; w++)
                *(att_words *)(words + (key + w) * ATT_BLOCK + q) = __builtin_convertvector(word[w], att_words);
            block += 1;
        }
    }
}

/* Element i of the [batch, heads, seq, kv_seq] matrix of scores uses word i % 4 of Philox block i / 4. */
static void att_draw(const struct att *a, uint32_t *words, int64_t b, int64_t h, int64_t i, int64_t j, int64_t queries,
                     int64_t keys)
{
    const int64_t row = (b * a->e.heads + h) * a->e.seq + i * ATT_BLOCK;
    const uint64_t element = (uint64_t)(row * a->e.kv_seq + j * ATT_BLOCK);
    if (a->e.kv_seq % 4 == 0) {
        att_draw_whole(a, words, element, queries, keys);
        return;
    }
    uint32_t drawn[2 * PHILOX_WORDS];
    for (int64_t q = 0; q < queries; q++) {
        const uint64_t first = element + (uint64_t)(q * a->e.kv_seq);
        philox_fill(a->k->ticket.seed, a->k->ticket.offset + first / 4, drawn);
        philox_fill(a->k->ticket.seed, a->k->ticket.offset + first / 4 + PHILOX_WORDS / 4, drawn + PHILOX_WORDS);
        for (int64_t key = 0; key < keys; key++) words[key * ATT_BLOCK + q] = drawn[first % 4 + (uint64_t)key];
    }
}

/* ---- float ---- */

VEC_INLINE int64_t vf_lanes(int64_t queries)
{
    return (queries + VF_LANES - 1) / VF_LANES * VF_LANES;
}

/* Replaces minus infinity by 0: the maximum of a row that sees no key. */
VEC_INLINE nf nf_finite(nf x)
{
    return nf_select((ni)(x == nf_all(-INFINITY)), nf_all(0), x);
}

/* x, but 0 where `test` equals `at`. */
VEC_INLINE nf nf_unless(nf test, nf at, nf x)
{
    return nf_select((ni)(test == at), nf_all(0), x);
}

/* a * b + c, the same operation in all rows and sums of the tiles. */
VEC_INLINE nf nf_mul_add(nf a, nf b, nf c)
{
    return nf_fma(a, b, c);
}

VEC_INLINE vf vf_mul_add(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}

/* e^x for x up to 88; 0 below 2^-126.5, consistent with the flushing of subnormal numbers that run_unit() sets. */
VEC_INLINE nf nf_exp_fast(nf x)
{
    nf n;
    const nf y = nf_exp_fraction(nf_larger(nf_all(-88.0f), x), &n);
    return y * (nf)(((nu)n << 23) + 0x3f800000u);
}

VEC_INLINE float vf_log_one(float x)
{
    return Sleef_logf_u10(x);
}

/* `factor` where the random word is kept, else 0. */
VEC_INLINE nf nf_keep(const uint32_t *words, uint32_t threshold, nf factor)
{
    return (nf)((ni)factor & (ni)(*(const nu *)words >= threshold));
}

#define T float
#define V vf
#define N nf
#define LANES VF_LANES
#define F(name) vf_##name
#define G(name) nf_##name
#include "ops/attention/attention_tile_tmpl.h"
#undef T
#undef V
#undef N
#undef LANES
#undef F
#undef G

/* ---- double ---- */

VEC_INLINE int64_t vd_lanes(int64_t queries)
{
    return (queries + VD_LANES - 1) / VD_LANES * VD_LANES;
}

VEC_INLINE nd nd_larger(nd a, nd b)
{
    return nd_select((nl)(a > b), a, b);
}

VEC_INLINE nd nd_finite(nd x)
{
    return nd_select((nl)(x == nd_all(-(double)INFINITY)), nd_all(0), x);
}

VEC_INLINE nd nd_unless(nd test, nd at, nd x)
{
    return nd_select((nl)(test == at), nd_all(0), x);
}

VEC_INLINE nd nd_exp_fast(nd x)
{
    return nd_exp(x);
}

VEC_INLINE double vd_log_one(double x)
{
    return Sleef_log_u10(x);
}

VEC_INLINE nd nd_keep(const uint32_t *words, uint32_t threshold, nd factor)
{
    for (int l = 0; l < ND_LANES; l++) factor[l] = words[l] >= threshold ? factor[l] : 0;
    return factor;
}

/* Two roundings with AVX2: an FMA here would change the results of attention in double. */
VEC_INLINE vd vd_mul_add(vd a, vd b, vd c)
{
#if defined(RW_ISA_IS_V4)
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
    return a * b + c;
#endif
}

VEC_INLINE nd nd_mul_add(nd a, nd b, nd c)
{
#if defined(RW_ISA_IS_V4)
    return (nd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
    return a * b + c;
#endif
}

#define T double
#define V vd
#define N nd
#define LANES VD_LANES
#define F(name) vd_##name
#define G(name) nd_##name
#include "ops/attention/attention_tile_tmpl.h"

/* ---- units of work ---- */

static void *room_of(const struct att *a, int thread)
{
    const size_t size = a->k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return (char *)a->k->workspace + (size_t)thread * (size_t)a->per_thread * size;
}

static bool forward(const struct att *a, int64_t unit, int thread)
{
    const int64_t pairs = a->e.batch * a->e.heads, pair = unit % pairs, b = pair / a->e.heads, h = pair % a->e.heads;
    /* The last blocks have the most work: they come first, so that all threads end at about the same time. */
    const int64_t i = a->e.q_blocks - 1 - unit / pairs;
    void *const room = room_of(a, thread);
    switch (a->k->out[0].dtype) {
    case RW_F32: return vf_forward(a, RW_F32, room, b, h, i);
    case RW_BF16: return vf_forward(a, RW_BF16, room, b, h, i);
    case RW_F16: return vf_forward(a, RW_F16, room, b, h, i);
    default: return vd_forward(a, RW_F64, room, b, h, i);
    }
}

static bool backward_keys(const struct att *a, int64_t b, int64_t kv_head, int64_t from, int64_t to, bool dq,
                          int thread)
{
    void *const room = room_of(a, thread);
    switch (a->k->out[0].dtype) {
    case RW_F32: return vf_backward_keys(a, RW_F32, room, b, kv_head, from, to, dq);
    case RW_BF16: return vf_backward_keys(a, RW_BF16, room, b, kv_head, from, to, dq);
    case RW_F16: return vf_backward_keys(a, RW_F16, room, b, kv_head, from, to, dq);
    default: return vd_backward_keys(a, RW_F64, room, b, kv_head, from, to, dq);
    }
}

static bool backward_queries(const struct att *a, int64_t b, int64_t h, int64_t i, int thread)
{
    void *const room = room_of(a, thread);
    const int64_t to = a->e.kv_blocks;
    switch (a->k->out[0].dtype) {
    case RW_F32: return vf_backward_queries(a, RW_F32, room, b, h, i, 0, to, NULL, true);
    case RW_BF16: return vf_backward_queries(a, RW_BF16, room, b, h, i, 0, to, NULL, true);
    case RW_F16: return vf_backward_queries(a, RW_F16, room, b, h, i, 0, to, NULL, true);
    default: return vd_backward_queries(a, RW_F64, room, b, h, i, 0, to, NULL, true);
    }
}

/* One unit of backward. One pass: unit = (batch, kv head). Two passes: units (batch, kv head, key block), then (batch,
   head, query block). */
static bool backward(const struct att *a, int64_t unit, int thread)
{
    const int64_t pairs = a->e.batch * a->e.kv_heads;
    if (!a->e.two_pass)
        return backward_keys(a, unit / a->e.kv_heads, unit % a->e.kv_heads, 0, a->e.kv_blocks, true, thread);
    if (unit < pairs * a->e.kv_blocks) {
        const int64_t pair = unit % pairs, j = unit / pairs;
        return backward_keys(a, pair / a->e.kv_heads, pair % a->e.kv_heads, j, j + 1, false, thread);
    }
    const int64_t heads = a->e.batch * a->e.heads, rest = unit - pairs * a->e.kv_blocks, pair = rest % heads;
    return backward_queries(a, pair / a->e.heads, pair % a->e.heads, a->e.q_blocks - 1 - rest / heads, thread);
}

/* Fills the table of spans, which follows the threads' workspace. RW_ERR_ARGUMENT for invalid documents. */
static rw_status fill_spans(struct att *a, size_t at)
{
    const rw_view *const documents = a->extra[ATT_DOCUMENTS];
    const int64_t sets = rw_att_span_sets(documents ? documents->layout : NULL);
    struct att_span *const table = (void *)((char *)a->k->workspace + at);
    for (int64_t i = 0; i < sets; i++) {
        const struct att_reach r = rw_att_reach(a->k->attrs, &a->e, documents, i);
        for (int64_t n = 0; n < r.entries; n++)
            if (!rw_att_entry_holds(&r, n)) return RW_ERR_ARGUMENT;
        for (int64_t row = 0; row < a->e.seq; row++) table[i * a->e.seq + row] = rw_att_span(&r, row);
    }
    a->span = table;
    a->span_batch = sets > 1 ? a->e.seq : 0;
    return RW_OK;
}

/* Sets up the options; `first` inputs come before the extras. */
static rw_status begin_options(struct att *a, int first)
{
    const struct rw_attention_attrs *const p = a->k->attrs;
    const size_t size = a->k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    a->plain = rw_att_is_plain(p);
    a->cap = p->soft_cap;
    for (int i = 0; i < ATT_EXTRAS; i++) {
        const int at = rw_att_extra(p, i, first);
        if (at >= 0) a->extra[i] = &a->k->in[at];
    }
    return a->plain ? RW_OK : fill_spans(a, (size_t)a->per_thread * size * (size_t)a->k->threads);
}

/* Offset of the column sums: after the threads' workspace and the table of spans. */
static size_t parts_at(const struct att *a)
{
    const size_t size = a->k->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    const rw_view *const documents = a->extra[ATT_DOCUMENTS];
    const size_t own = (size_t)a->per_thread * size * (size_t)a->k->threads;
    return own + (a->plain ? 0 : rw_att_span_bytes(documents ? documents->layout : NULL, a->e.seq));
}

static struct att begin(const rw_kernel *k)
{
    const struct rw_attention_attrs *const p = k->attrs;
    struct att a = { .k = k, .e = rw_att_extents(k->in[0].layout, k->in[1].layout, k->in[2].layout),
                     .scale = p->scale, .causal = p->causal, .threshold = philox_threshold(p->dropout) };
    a.keep_factor = a.threshold ? 1 / (1 - p->dropout) : 1;
    return a;
}

/* All units of a pass. A unit whose results are not finite is computed a second time, carefully. */
struct units {
    const struct att *a;
    struct att careful;
    bool (*run)(const struct att *a, int64_t unit, int thread);
    bool excludes; /* some queries do not see some keys */
};

/*
 * Subnormal numbers are flushed to zero. Probabilities of distant keys underflow, and backward's products with them are
 * subnormal. With slopes, computing with subnormals takes three to seven times as long.
 */
static rw_status run_unit(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    const unsigned before = rw_flush_enter();
    if (!u->run(u->a, i, thread) && u->excludes) u->run(&u->careful, i, thread);
    rw_flush_leave(before);
    return RW_OK;
}

static void run(const struct att *a, int64_t units, bool (*unit)(const struct att *a, int64_t unit, int thread))
{
    struct units u = { a, *a, unit, a->causal || !a->plain };
    u.careful.careful = true;
    const double work = (double)a->e.batch * (double)a->e.heads * (double)a->e.seq * (double)a->e.kv_seq *
                        (double)a->e.d;
    rw_shares_run(work < 65536 ? 1 : a->k->threads, units, run_unit, &u);
}

rw_status RW_ISA_NAME(rw_attention_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_cpu)(const rw_kernel *k)
{
    struct att a = begin(k);
    a.per_thread = rw_att_forward_elements(&a.e);
    const rw_status status = begin_options(&a, 3);
    if (status) return status;
    run(&a, a.e.batch * a.e.heads * a.e.q_blocks, forward);
    return RW_OK;
}

#define COLUMNS 64

/* Adds the blocks' sums of columns [c, c + n), in order. */
static void add_blocks(const struct att *a, int64_t c, int64_t n)
{
    const rw_view *const out = &a->k->out[1];
    const int at = rw_att_extra(a->k->attrs, ATT_SUM, 6);
    const void *const before = at >= 0 && rw_kernel_has(a->k, at) ? a->k->in[at].data : NULL;
    double sum[COLUMNS] = { 0 };
    for (int64_t b = 0; b < a->e.batch * a->e.q_blocks; b++) {
        const int64_t from = b * rw_att_columns(&a->e) + c;
        if (a->k->in[0].dtype == RW_F64) for (int64_t i = 0; i < n; i++) sum[i] += ((const double *)a->part)[from + i];
        else for (int64_t i = 0; i < n; i++) sum[i] += (double)((const float *)a->part)[from + i];
    }
    for (int64_t i = 0; i < n; i++) put_added(out->data, out->dtype, c + i, sum[i], before);
}

static void add_chunks(void *of, int64_t first, int64_t end)
{
    const struct att *const a = of;
    const int64_t columns = rw_att_columns(&a->e);
    for (int64_t c = first * COLUMNS; c < end * COLUMNS && c < columns; c += COLUMNS)
        add_blocks(a, c, columns - c < COLUMNS ? columns - c : COLUMNS);
}

static void add_all_blocks(const struct att *a)
{
    const int64_t columns = rw_att_columns(&a->e), work = a->e.batch * a->e.q_blocks * columns;
    rw_team_for(rw_threads_for(a->k, work), (columns + COLUMNS - 1) / COLUMNS, add_chunks, a);
}

rw_status RW_ISA_NAME(rw_attention_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_backward_cpu)(const rw_kernel *k)
{
    struct att a = begin(k);
    a.per_thread = rw_att_backward_elements(&a.e, k->attrs, k->out[0].dtype);
    const rw_status status = begin_options(&a, 6);
    if (status || (!a.e.d && !a.e.dv && !a.extra[ATT_SINKS])) return status;
    for (int i = 0; i < 3; i++) a.gradient[i] = rw_att_gradient(k, i);
    const int64_t pairs = a.e.batch * a.e.kv_heads;
    const int64_t two = pairs * a.e.kv_blocks + a.e.batch * a.e.heads * a.e.q_blocks;
    const struct rw_attention_backward_attrs *const attrs = k->attrs;
    if (attrs->columns) a.part = (char *)k->workspace + parts_at(&a);
    run(&a, a.e.two_pass ? two : pairs, backward);
    if (a.part) add_all_blocks(&a);
    return RW_OK;
}

/* One unit: a tile of the mask's gradient, summed over all heads and batches that share it. */
static bool mask_backward(const struct att *a, int64_t unit, int thread)
{
    void *const room = room_of(a, thread);
    const int64_t j = unit % a->e.kv_blocks, rest = unit / a->e.kv_blocks, i = rest % a->e.q_blocks;
    const int64_t pair = rest / a->e.q_blocks;
    switch (a->k->in[0].dtype) {
    case RW_F32: return vf_mask_backward(a, RW_F32, room, pair, i, j);
    case RW_BF16: return vf_mask_backward(a, RW_BF16, room, pair, i, j);
    case RW_F16: return vf_mask_backward(a, RW_F16, room, pair, i, j);
    default: return vd_mask_backward(a, RW_F64, room, pair, i, j);
    }
}

rw_status RW_ISA_NAME(rw_attention_mask_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_mask_backward_cpu)(const rw_kernel *k)
{
    struct att a = begin(k);
    a.per_thread = rw_att_mask_elements(&a.e, k->attrs);
    const rw_status status = begin_options(&a, 6);
    if (status) return status;
    const rw_layout *const l = k->out[0].layout;
    run(&a, l->dim[0] * l->dim[1] * a.e.q_blocks * a.e.kv_blocks, mask_backward);
    return RW_OK;
}
