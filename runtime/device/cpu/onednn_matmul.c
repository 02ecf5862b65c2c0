/* Matrix products by oneDNN: makes, finds and runs their primitives. */
#include "device/cpu/onednn_primitive.h"

#include <string.h>

/* ---- making a primitive ---- */

static dnnl_status_t describe(rw_onednn_desc *d, int32_t dtype, int64_t rows, int64_t cols, int64_t row,
                              int64_t col)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { row, col };
    return rw_onednn_desc_by_strides(d, 2, dims, rw_onednn_type_of(dtype), strides);
}

static dnnl_status_t add_to_c(dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t ops;
    dnnl_status_t status = dnnl_post_ops_create(&ops);
    if (status) return status;
    status = rw_onednn_append_sum(ops);
    if (!status) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

/* Describes the operands by their strides and makes the primitive. */
static dnnl_status_t make_matmul(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    const struct rw_matmul_signature *const s = &p->signature.of.matmul;
    rw_onednn_desc *const d = p->operand;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe(&d[FIRST], s->dtype, s->m, s->k, s->a_row, s->a_col);
    if (!status) status = describe(&d[SECOND], s->dtype, s->k, s->n, s->b_row, s->b_col);
    if (!status) status = describe(&d[BIAS], s->dtype, 1, s->n, s->n, 1);
    if (!status) status = describe(&d[RESULT], s->to, s->m, s->n, s->c_row, 1);
    if (!status && s->adds) status = add_to_c(attr);
    if (status) return status;
    status = rw_onednn_describe_matmul(p->engine, d[FIRST], d[SECOND], s->bias ? d[BIAS] : NULL, d[RESULT], attr, &pd);
    status = rw_onednn_make_fast(p, status, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    return status;
}

/* Elements from the first to the last of a matrix. */
static int64_t span(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    return (rows - 1) * row + (cols - 1) * col;
}

static bool matmul_fits(const struct rw_onednn_signature *signature)
{
    const struct rw_matmul_signature *const s = &signature->of.matmul;
    if (s->dtype == RW_F16) return false; /* version 2 has no code; that of 3 may sum a row by the number of rows */
    const int64_t each[] = { s->m, s->n, s->k, s->a_row, s->a_col, s->b_row, s->b_col, s->c_row };
    if (!rw_onednn_counts(each, sizeof each / sizeof *each)) return false;
    const int64_t spans[] = { span(s->m, s->k, s->a_row, s->a_col), span(s->k, s->n, s->b_row, s->b_col),
                              span(s->m, s->n, s->c_row, 1) };
    return rw_onednn_counts(spans, sizeof spans / sizeof *spans);
}

/*
 * Upper bounds of measurements with versions 2.6.3 and 3.7.2, of 1,000 random shapes each. Code for AVX-512 has kernels
 * for whole blocks and for remainders of rows, columns and depth, up to 16; most of them where columns have a
 * remainder. The mean is half of the bound.
 */
#define COLUMNS_OF_BLOCK 64

static size_t matmul_bytes(const struct rw_onednn_signature *s)
{
    const bool remainder = s->of.matmul.n % COLUMNS_OF_BLOCK;
    if (!rw_onednn_takes_avx512()) return RW_ONEDNN_PRIMITIVE_BYTES;
    if (DNNL_VERSION_MAJOR < 3) return (size_t)(remainder ? 592 : 224) << 10;
    return (size_t)(remainder ? 800 : 352) << 10;
}

static const struct rw_onednn_kind kind = { .operands = PLAIN,
                                            .fits = matmul_fits,
                                            .bytes = matmul_bytes,
                                            .make = make_matmul };

static struct rw_onednn_signature key_of(const struct rw_matmul_signature *s)
{
    struct rw_onednn_signature r;
    memset(&r, 0, sizeof r);
    r.which = RW_ONEDNN_MATMUL;
    r.of.matmul = *s;
    return r;
}

rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch)
{
    const struct rw_onednn_signature key = key_of(s);
    struct rw_onednn_primitive *p;
    RW_ONEDNN_TRY(rw_onednn_prepare(o, &key, &kind, threads, &p));
    *ret_fast = p->fast;
    *ret_scratch = rw_onednn_size_of(p, SCRATCH);
    rw_onednn_forget_idle(o);
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                                  bool *ret_fast, size_t *ret_scratch)
{
    const struct rw_onednn_signature key = key_of(s);
    struct rw_onednn_primitive *const p = rw_onednn_find(o, &key);
    if (!p) return NULL;
    *ret_fast = p->fast;
    *ret_scratch = rw_onednn_size_of(p, SCRATCH);
    return p;
}

/* ---- execution ---- */

/* Sets the addresses of this thread's memory objects and executes. */
rw_status rw_onednn_matmul_run(struct rw_onednn_primitive *p, int thread, const void *a, const void *b,
                               const void *bias, void *c, void *scratch)
{
    dnnl_memory_t *const of = p->slots[thread].of;
    const int has_bias = p->signature.of.matmul.bias;
    dnnl_status_t status = rw_onednn_point(of[FIRST], a);
    if (!status) status = rw_onednn_point(of[SECOND], b);
    if (!status && has_bias) status = rw_onednn_point(of[BIAS], bias);
    if (!status) status = rw_onednn_point(of[RESULT], c);
    if (!status) status = rw_onednn_point(of[SCRATCH], scratch);
    if (status) return rw_onednn_status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, of[FIRST] }, { DNNL_ARG_WEIGHTS, of[SECOND] },
                                     { DNNL_ARG_DST, of[RESULT] }, { DNNL_ARG_SCRATCHPAD, of[SCRATCH] },
                                     { DNNL_ARG_BIAS, of[BIAS] } };
    return rw_onednn_execute(p, p->primitive, thread, args, has_bias ? 5 : 4);
}
