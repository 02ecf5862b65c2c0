/*
 * Attention by blocks: attributes, extents and workspace, shared by the op (attention.c) and its kernels. C11 and
 * C++17.
 */
#ifndef RW_OPS_ATTENTION_H
#define RW_OPS_ATTENTION_H

#include "base/host_device.h"

#include <rewind/op.h>

extern const rw_op_def rw_op_attention;

/*
 * Optional inputs besides q, k and v: inputs 3, 4 ... of the forward and 6, 7 ... of backward. Those that are present
 * follow in this order. The first and the last belong to backward only; the first is its input 6 if present.
 */
enum att_extra {
    ATT_SUM,       /* addend of the column sums */
    ATT_MASK,      /* added to the scores, of q's type or the sums' type; or RW_BOOL, true where a key is seen */
    ATT_SLOPES,    /* [heads], of the sums' type */
    ATT_SINKS,     /* [heads], of q's type */
    ATT_DOCUMENTS, /* [n + 1] or [batch, n + 1] */
    ATT_DLSE,      /* the gradient of the log-sum-exps */
    ATT_EXTRAS
};

struct rw_attention_attrs {
    double scale;
    double dropout;
    double soft_cap; /* 0: none */
    int64_t causal;
    int64_t window; /* 0: none */
    int64_t extras; /* bit i: the extra with number i is present */
};

/*
 * Attributes of backward. packed: one output [batch, seq, heads + 2 kv_heads, d], with dq, dk and dv next to each
 * other, instead of three [batch, heads, seq, d]. columns, with packed: one more output, the sums of its columns over
 * batch and seq [(heads + 2 kv_heads) d]; it has the type of its addend, or q's type without one. Sinks add one more
 * output: their gradient by row [batch, heads, seq], of the sums' type.
 */
struct rw_attention_backward_attrs {
    struct rw_attention_attrs forward;
    int64_t packed, columns;
};

/*
 * attention_bias: the sum that slopes, mask and spans of unseen keys add to the scores, as a matrix [batch, heads, seq,
 * kv_seq]. It has one batch or head if all are equal. A finite number replaces minus infinity, so that every row has a
 * softmax. attention_seen: 1 where a key is seen, 0 elsewhere. Both are used only for gradients of gradients.
 */
extern const rw_op_def rw_op_attention_bias, rw_op_attention_seen;

#define ATT_LOWEST (-1e30)
#define ATT_LOWEST_F16 (-3e4)

struct rw_attention_bias_attrs {
    struct rw_attention_attrs forward; /* extras: without sinks, from input 0 on */
    int64_t heads, seq, kv_seq;
    int64_t dtype; /* of the result */
    int64_t seen;  /* for attention_seen */
};

/* The type of sums. */
rw_dtype rw_att_sum_type(rw_dtype dtype);

/* The gradient rule whose result can be differentiated again. */
rw_status rw_att_grad_again(rw_grad_call *g);

/* Are scale, causality and dropout the only options between the products and the softmax? */
static inline bool rw_att_is_plain(const struct rw_attention_attrs *a)
{
    return a->soft_cap == 0 && !a->window && !(a->extras & ~(1 << ATT_DLSE | 1 << ATT_SUM));
}

/* The input index of an extra, for an op with `first` inputs before the extras; -1: absent. */
static inline int rw_att_extra(const struct rw_attention_attrs *a, int what, int first)
{
    int at = first;
    if (!(a->extras >> what & 1)) return -1;
    for (int i = 0; i < what; i++) at += a->extras >> i & 1;
    return at;
}

/* Queries and keys per tile of the score matrix. */
#define ATT_BLOCK 64
/* With fewer (batch, kv head) pairs than this there are too few to distribute over threads: backward then runs two
   passes over smaller units. */
#define ATT_PAIRS_ENOUGH 8

struct att_extents {
    int64_t batch, heads, kv_heads, group; /* group: query heads per kv head */
    int64_t seq, kv_seq;
    int64_t d, width;     /* of q and k; width: d rounded up to whole vectors */
    int64_t dv, v_width;  /* of v and the output */
    int64_t widest;       /* the larger of the two widths, for buffers that hold rows of either */
    int64_t q_blocks, kv_blocks;
    bool two_pass;
};

/* Extents of a call, from the layouts of its operands. */
static inline struct att_extents rw_att_extents(const rw_layout *q, const rw_layout *k, const rw_layout *v)
{
    struct att_extents e;
    e.batch = q->dim[0];
    e.heads = q->dim[1];
    e.kv_heads = k->dim[1];
    e.seq = q->dim[2];
    e.kv_seq = k->dim[2];
    e.d = q->dim[3];
    e.group = e.kv_heads ? e.heads / e.kv_heads : 0;
    e.width = (e.d + 15) / 16 * 16;
    e.dv = v->dim[3];
    e.v_width = (e.dv + 15) / 16 * 16;
    e.widest = e.width > e.v_width ? e.width : e.v_width;
    e.q_blocks = (e.seq + ATT_BLOCK - 1) / ATT_BLOCK;
    e.kv_blocks = (e.kv_seq + ATT_BLOCK - 1) / ATT_BLOCK;
    e.two_pass = e.batch * e.kv_heads < ATT_PAIRS_ENOUGH;
    return e;
}

/* ---- which keys a query sees, with options ---- */

/* A query sees the keys from lo up to hi. Neither ever decreases from one query to the next. All options are reduced to
   these spans. */
struct att_span {
    int32_t lo, hi;
};
#define ATT_SPAN_MAX (INT64_C(1) << 30) /* maximum number of queries, and of keys */

/* The limits from which spans are computed. documents: the boundaries for one row of the batch, `entries` of them,
   `step` elements apart; NULL: none. */
struct att_reach {
    int64_t seq, kv_seq, window;
    bool causal;
    const int32_t *documents;
    int64_t entries, step;
};

RW_HOST_DEVICE int64_t rw_att_between(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* The span of query `row`: the intersection of causality, window and its document. */
RW_HOST_DEVICE struct att_span rw_att_span(const struct att_reach *r, int64_t row)
{
    const int64_t at = row + r->kv_seq - r->seq;
    int64_t from = 0, to = r->kv_seq, lo, hi, below = 0, end = r->documents ? r->entries : 0;
    struct att_span s;
    while (below < end) { /* number of entries at or before `row` */
        const int64_t middle = (below + end) / 2;
        if (r->documents[middle * r->step] <= row) below = middle + 1;
        else end = middle;
    }
    if (r->documents) { /* padding: an empty span at the start or end of the documents */
        from = rw_att_between(r->documents[(below ? below - 1 : 0) * r->step], 0, r->kv_seq);
        to = below && below < r->entries ? rw_att_between(r->documents[below * r->step], from, r->kv_seq) : from;
    }
    lo = rw_att_between(r->window ? at - r->window + 1 : 0, from, to);
    hi = rw_att_between(r->causal ? at + 1 : r->window ? at + r->window : to, lo, to);
    s.lo = (int32_t)lo;
    s.hi = (int32_t)hi;
    return s;
}

/* Is entry i in range, and not less than the previous one? */
RW_HOST_DEVICE bool rw_att_entry_holds(const struct att_reach *r, int64_t i)
{
    const int32_t x = r->documents[i * r->step];
    return x >= (i ? r->documents[(i - 1) * r->step] : 0) && x <= r->kv_seq;
}

/* The number of sets of spans: one for the whole batch, or one for each row of it. */
static inline int64_t rw_att_span_sets(const rw_layout *documents)
{
    return documents && documents->rank == 2 ? documents->dim[0] : 1;
}

/* Bytes of the table of spans in the workspace, in whole cache lines. */
static inline size_t rw_att_span_bytes(const rw_layout *documents, int64_t seq)
{
    const size_t bytes = (size_t)(rw_att_span_sets(documents) * seq) * sizeof(struct att_span);
    return (bytes + 255) / 256 * 256;
}

/* The limits for set i. documents: NULL if there are none. */
static inline struct att_reach rw_att_reach(const struct rw_attention_attrs *a, const struct att_extents *e,
                                            const rw_view *documents, int64_t i)
{
    struct att_reach r;
    r.seq = e->seq;
    r.kv_seq = e->kv_seq;
    r.window = rw_att_between(a->window, 0, 2 * ATT_SPAN_MAX); /* larger windows have the same effect */
    r.causal = a->causal != 0;
    r.documents = NULL;
    r.entries = r.step = 0;
    if (documents) {
        const rw_layout *const l = documents->layout;
        const int last = l->rank - 1;
        r.documents = (const int32_t *)documents->data + (last ? i * l->stride[0] : 0);
        r.entries = l->dim[last];
        r.step = l->stride[last];
    }
    return r;
}

/* A result [batch, heads, rows, d] as a kernel writes it: strides in elements; the stride of d is 1. */
struct att_result {
    void *p;
    int64_t batch, head, row;
};

/* The forward's output [batch, heads, seq, dv], which is stored as [batch, seq, heads, dv]. */
static inline struct att_result rw_att_output(const rw_kernel *k)
{
    const rw_layout *const q = k->in[0].layout;
    const int64_t dv = k->in[2].layout->dim[3];
    struct att_result r;
    r.p = k->out[0].data;
    r.batch = q->dim[2] * q->dim[1] * dv;
    r.head = dv;
    r.row = q->dim[1] * dv;
    return r;
}

/* The gradient of input i: 0 for q, 1 for k, 2 for v. */
static inline struct att_result rw_att_gradient(const rw_kernel *k, int i)
{
    const rw_layout *const x = k->in[i].layout;
    const int64_t heads = k->in[0].layout->dim[1], kv_heads = k->in[1].layout->dim[1], d = x->dim[3];
    struct att_result r;
    if (((const struct rw_attention_backward_attrs *)k->attrs)->packed) {
        const int64_t first = i ? heads + (i - 1) * kv_heads : 0;
        r.p = (char *)k->out[0].data + first * d * (int64_t)rw_dtype_size(k->out[0].dtype);
        r.head = d;
        r.row = (heads + 2 * kv_heads) * d;
        r.batch = x->dim[2] * r.row;
    } else {
        r.p = k->out[i].data;
        r.row = d;
        r.head = x->dim[2] * d;
        r.batch = x->dim[1] * r.head;
    }
    return r;
}

/* Number of columns of a packed backward's output: those of each query head, then of keys and values. */
static inline int64_t rw_att_columns(const struct att_extents *e)
{
    return (e->heads + 2 * e->kv_heads) * e->d;
}

/* The first column of head `head` of gradient i: 0 for q, 1 for k, 2 for v. */
static inline int64_t rw_att_column(const struct att_extents *e, int i, int64_t head)
{
    return ((i ? e->heads + (i - 1) * e->kv_heads : 0) + head) * e->d;
}

/* 16-bit types and rows that are not whole vectors are summed in separate rows; others directly in the output. */
static inline bool rw_att_sums_in_output(const struct att_extents *e, rw_dtype dtype)
{
    return rw_dtype_size(dtype) != 2 && e->d == e->width && e->dv == e->v_width;
}

/* Elements of workspace per thread, of the type of sums. Every part is a multiple of 64 bytes. */
static inline int64_t rw_att_forward_elements(const struct att_extents *e)
{
    return ATT_BLOCK * (2 * e->widest + e->width + e->v_width) + 2 * ATT_BLOCK * ATT_BLOCK + 4 * ATT_BLOCK;
}

/* The part of these for a block of queries in backward: panels of rows, tiles, one number per row. */
static inline int64_t rw_att_block_elements(const struct att_extents *e, const struct rw_attention_attrs *a)
{
    const int64_t tiles = a->soft_cap != 0 ? 4 : 3;
    return ATT_BLOCK * (3 * e->width + 3 * e->v_width + e->widest) + tiles * ATT_BLOCK * ATT_BLOCK + 4 * ATT_BLOCK;
}

static inline int64_t rw_att_backward_elements(const struct att_extents *e, const struct rw_attention_attrs *a,
                                               rw_dtype dtype)
{
    const int64_t blocks = e->two_pass ? 1 : e->kv_blocks;
    const int64_t sums = rw_att_sums_in_output(e, dtype) ? 0 : (e->width + e->v_width) * ATT_BLOCK * blocks;
    return rw_att_block_elements(e, a) + sums;
}

/* For the gradient of a mask: a block, and the tile that accumulates it. */
static inline int64_t rw_att_mask_elements(const struct att_extents *e, const struct rw_attention_attrs *a)
{
    return rw_att_block_elements(e, a) + ATT_BLOCK * ATT_BLOCK;
}

/* CUDA's backward keeps two numbers per row; the rows of a head are padded to whole blocks. */
static inline int64_t rw_att_stat_rows(const struct att_extents *e)
{
    return (e->seq + 127) / 128 * 128;
}

static inline size_t rw_att_stat_bytes(const struct att_extents *e, rw_dtype dtype)
{
    return (size_t)(2 * e->batch * e->heads * rw_att_stat_rows(e)) * (dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

#endif
