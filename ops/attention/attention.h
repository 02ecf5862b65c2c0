/* Attention by blocks: attributes, extents and workspace, shared by the op (attention.c) and its kernels. C11 and
   C++17. */
#ifndef RW_OPS_ATTENTION_H
#define RW_OPS_ATTENTION_H

#include <rewind/op.h>

extern const rw_op_def rw_op_attention;

struct rw_attention_attrs {
    double scale;
    double dropout;
    int64_t causal;
};

/*
 * Backward's. packed: one output [batch, seq, heads + 2 kv_heads, d], in which dq, dk and dv lie side by side, instead
 * of three [batch, heads, seq, d]. Kernels tell by the number of outputs.
 */
struct rw_attention_backward_attrs {
    struct rw_attention_attrs forward;
    int64_t packed;
};

/* Queries and keys per tile of the score matrix. */
#define ATT_BLOCK 64
/* Fewer (batch, kv head) pairs than this are too few to share out: backward then runs two passes over smaller units. */
#define ATT_PAIRS_ENOUGH 8

struct att_extents {
    int64_t batch, heads, kv_heads, group; /* group: query heads per kv head */
    int64_t seq, kv_seq;
    int64_t d, width;     /* of q and k; width: d rounded up to whole vectors */
    int64_t dv, v_width;  /* of v and the output */
    int64_t widest;       /* of the two widths: what a room for rows of either has */
    int64_t q_blocks, kv_blocks;
    bool two_pass;
};

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

/* A result [batch, heads, rows, d] where a kernel writes it: strides in elements, that of d is 1. */
struct att_result {
    void *p;
    int64_t batch, head, row;
};

/* [batch, heads, seq, dv] of the forward, which lies in memory as [batch, seq, heads, d]. */
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
    if (k->n_outputs == 1) { /* packed */
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

/* Types of 16 bits and ragged rows are summed in rows of their own; the others straight in the output. */
static inline bool rw_att_sums_in_output(const struct att_extents *e, rw_dtype dtype)
{
    return rw_dtype_size(dtype) != 2 && e->d == e->width && e->dv == e->v_width;
}

/* Elements of workspace per thread, of the type that sums are taken in. Every part is a multiple of 64 bytes. */
static inline int64_t rw_att_forward_elements(const struct att_extents *e)
{
    return ATT_BLOCK * (2 * e->widest + e->width + e->v_width) + 2 * ATT_BLOCK * ATT_BLOCK + 4 * ATT_BLOCK;
}

/* Of those, what a block of queries takes in backward: panels of rows, three tiles, two numbers a row. */
static inline int64_t rw_att_block_elements(const struct att_extents *e)
{
    return ATT_BLOCK * (3 * e->width + 3 * e->v_width + e->widest) + 3 * ATT_BLOCK * ATT_BLOCK + 4 * ATT_BLOCK;
}

static inline int64_t rw_att_backward_elements(const struct att_extents *e, rw_dtype dtype)
{
    const int64_t blocks = e->two_pass ? 1 : e->kv_blocks;
    const int64_t sums = rw_att_sums_in_output(e, dtype) ? 0 : (e->width + e->v_width) * ATT_BLOCK * blocks;
    return rw_att_block_elements(e) + sums;
}

/* CUDA's backward keeps two numbers per row; the rows of a head are filled up to whole blocks. */
static inline int64_t rw_att_stat_rows(const struct att_extents *e)
{
    return (e->seq + 127) / 128 * 128;
}

static inline size_t rw_att_stat_bytes(const struct att_extents *e, rw_dtype dtype)
{
    return (size_t)(2 * e->batch * e->heads * rw_att_stat_rows(e)) * (dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

#endif
