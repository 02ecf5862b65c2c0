/*
 * Products on the CPU: cut into tiles, tiles over threads, each tile by oneDNN in one thread (device/cpu/onednn.h).
 * K is never cut, so an element is always one sum in oneDNN's order.
 */
#include "ops/matmul/matmul.h"
#include "ops/util.h"

#include <omp.h>
#include <string.h>

/* Tiles along the longer side: enough for many cores when the product is large, one when it is small. */
struct cut {
    int64_t parts, step;
    bool rows;
};

static struct cut cut_of(const struct rw_gemm *g)
{
    struct cut c = { 1, 0, g->m >= g->n };
    const int64_t side = c.rows ? g->m : g->n;
    const double work = (double)g->m * (double)g->n * (double)g->k;
    int64_t parts = work < 4e6 ? 1 : work < 64e6 ? 4 : 16;
    if (parts > side / 64) parts = side / 64 > 0 ? side / 64 : 1;
    c.step = ((side + parts - 1) / parts + 63) / 64 * 64;
    c.parts = c.step ? (side + c.step - 1) / c.step : 1;
    return c;
}

/* Where matrix i of a batch begins in an operand whose leading axes may broadcast against the output's. */
static int64_t begin_of(const rw_layout *l, const rw_layout *out, int64_t i)
{
    int64_t at = 0;
    for (int axis = out->rank - 3; axis >= 0; axis--) {
        const int mine = axis - (out->rank - l->rank);
        if (mine >= 0 && l->dim[mine] > 1) at += i % out->dim[axis] * l->stride[mine];
        i /= out->dim[axis];
    }
    return at;
}

static const void *moved(const void *p, int64_t elements, rw_dtype dtype)
{
    return (const char *)p + elements * (int64_t)rw_dtype_size(dtype);
}

/* float32 and float64 begin from the bias and add to it. */
static void put_bias(const struct rw_gemm *g, const void *bias, rw_dtype dtype)
{
    for (int64_t i = 0; i < g->m; i++) memcpy((char *)g->c + (size_t)(i * g->ldc) * rw_dtype_size(dtype), bias, (size_t)g->n * rw_dtype_size(dtype));
}

static rw_status run_tile(const struct rw_product *p, const struct cut *cut, int64_t task, struct rw_onednn *onednn)
{
    struct rw_gemm g = p->one;
    const int64_t pair = task / cut->parts, from = task % cut->parts * cut->step;
    const void *bias = p->bias;
    if (p->batch > 1) {
        g.a = moved(g.a, begin_of(p->a, p->c, pair), p->dtype);
        g.b = moved(g.b, begin_of(p->b, p->c, pair), p->dtype);
        g.c = (void *)(uintptr_t)moved(g.c, pair * g.m * g.n, p->dtype);
    }
    if (cut->parts > 1) {
        const int64_t side = cut->rows ? g.m : g.n, some = side - from < cut->step ? side - from : cut->step;
        if (cut->rows) {
            g.a = moved(g.a, g.ta ? from : from * g.lda, p->dtype);
            g.c = (void *)(uintptr_t)moved(g.c, from * g.ldc, p->dtype);
            g.m = some;
        } else {
            g.b = moved(g.b, g.tb ? from * g.ldb : from, p->dtype);
            g.c = (void *)(uintptr_t)moved(g.c, from, p->dtype);
            if (bias) bias = moved(bias, from, p->dtype);
            g.n = some;
        }
    }
    if (p->dtype == RW_BF16) {
        g.bias = bias;
        return rw_gemm_bf16(onednn, &g);
    }
    if (bias) {
        put_bias(&g, bias, p->dtype);
        g.add = true;
    }
    if (p->dtype == RW_F32) return rw_gemm_f32(&g);
    rw_gemm_f64(&g);
    return RW_OK;
}

static rw_status run_empty(const struct rw_product *p)
{
    const int64_t rows = p->batch * p->one.m;
    const size_t row = (size_t)p->one.n * rw_dtype_size(p->dtype);
    for (int64_t i = 0; i < rows; i++) {
        if (p->bias) memcpy((char *)p->one.c + (size_t)i * row, p->bias, row);
        else memset((char *)p->one.c + (size_t)i * row, 0, row);
    }
    return RW_OK;
}

rw_status rw_product_run(const struct rw_product *p, const rw_kernel *k)
{
    if (!p->batch || !p->one.m || !p->one.n) return RW_OK;
    if (!p->one.k) return run_empty(p);
    const struct cut cut = cut_of(&p->one);
    const int64_t tasks = p->batch * cut.parts;
    struct rw_onednn *const onednn = ((struct rw_cpu *)k->device)->onednn;
    const double work = (double)p->batch * (double)p->one.m * (double)p->one.n * (double)p->one.k;
    rw_status failed = RW_OK;
#pragma omp parallel num_threads(k->threads) if (tasks > 1 && work > 1e6)
    {
        const int saved = rw_onednn_enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tasks; i++) {
            const rw_status status = run_tile(p, &cut, i, onednn);
            if (status) {
#pragma omp atomic write
                failed = status;
            }
        }
        rw_onednn_leave(saved);
    }
    return failed;
}

/* A layout's last two axes as a matrix or its transpose. */
static void take_matrix(const rw_layout *l, bool *transposed, int64_t *ld)
{
    const int r = l->rank;
    const int64_t rows = l->dim[r - 2], cols = l->dim[r - 1];
    *transposed = l->stride[r - 1] != 1 && cols > 1;
    *ld = *transposed ? l->stride[r - 1] : l->stride[r - 2];
    const int64_t least = *transposed ? rows : cols;
    if (*ld < least) *ld = least; /* an axis of extent 1: any stride will do */
}

rw_status rw_matmul_cpu(const rw_kernel *k);
rw_status rw_matmul_cpu(const rw_kernel *k)
{
    const rw_layout *const a = k->in[0].layout, *const b = k->in[1].layout, *const c = k->out[0].layout;
    const int64_t m = c->dim[c->rank - 2], n = c->dim[c->rank - 1];
    struct rw_product p = { .dtype = k->out[0].dtype, .a = a, .b = b, .c = c };
    p.one = (struct rw_gemm){ .m = m, .n = n, .k = a->dim[a->rank - 1], .a = k->in[0].data, .b = k->in[1].data, .c = k->out[0].data, .ldc = n };
    p.batch = m && n ? c->numel / (m * n) : 0;
    take_matrix(a, &p.one.ta, &p.one.lda);
    take_matrix(b, &p.one.tb, &p.one.ldb);
    return rw_product_run(&p, k);
}

rw_status rw_linear_cpu(const rw_kernel *k);
rw_status rw_linear_cpu(const rw_kernel *k)
{
    const rw_layout *const w = k->in[1].layout;
    const int64_t out = w->dim[0], in = w->dim[1];
    struct rw_product p = { .dtype = k->out[0].dtype, .batch = 1, .bias = k->n_inputs == 3 ? k->in[2].data : NULL };
    p.one = (struct rw_gemm){ .m = out ? k->out[0].layout->numel / out : 0, .n = out, .k = in, .a = k->in[0].data, .lda = in,
                              .b = k->in[1].data, .ldb = in, .tb = true, .c = k->out[0].data, .ldc = out };
    return rw_product_run(&p, k);
}
