/* oneDNN's engine, its pinned bfloat16 primitives, and the three element types of a product. See onednn.h. */
#include "device/cpu/onednn.h"

#include "memory/alloc.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>

struct signature {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t ta, tb, bias, thread; /* a primitive owns its scratchpad, so each thread has its own */
};

struct pinned {
    struct signature key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias;
};

struct rw_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* per thread */
    size_t n_streams, cap_streams;
    struct pinned **pinned;
    size_t n_pinned, cap_pinned;
    pthread_mutex_t lock;
};

int rw_onednn_enter(void)
{
    const int saved = omp_get_max_threads();
    omp_set_num_threads(1);
    return saved;
}

void rw_onednn_leave(int saved)
{
    omp_set_num_threads(saved);
}

rw_status rw_onednn_create(struct rw_onednn **ret)
{
    struct rw_onednn *const o = rw_calloc(1, sizeof *o);
    if (!o) return RW_ERR_MEMORY;
    if (dnnl_engine_create(&o->engine, dnnl_cpu, 0) != dnnl_success) {
        rw_free(o);
        return RW_ERR_DEVICE;
    }
    pthread_mutex_init(&o->lock, NULL);
    *ret = o;
    return RW_OK;
}

static void destroy_pinned(struct pinned *p)
{
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->a) dnnl_memory_destroy(p->a);
    if (p->b) dnnl_memory_destroy(p->b);
    if (p->c) dnnl_memory_destroy(p->c);
    if (p->bias) dnnl_memory_destroy(p->bias);
    rw_free(p);
}

void rw_onednn_destroy(struct rw_onednn **po)
{
    struct rw_onednn *const o = *po;
    if (!o) return;
    for (size_t i = 0; i < o->n_pinned; i++) destroy_pinned(o->pinned[i]);
    for (size_t i = 0; i < o->n_streams; i++)
        if (o->streams[i]) dnnl_stream_destroy(o->streams[i]);
    rw_free(o->pinned);
    rw_free(o->streams);
    dnnl_engine_destroy(o->engine);
    pthread_mutex_destroy(&o->lock);
    rw_free(o);
    *po = NULL;
}

rw_status rw_gemm_f32(const struct rw_gemm *g)
{
    const dnnl_status_t status = dnnl_sgemm(g->ta ? 'T' : 'N', g->tb ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb,
                                            g->add ? 1.0f : 0.0f, g->c, g->ldc);
    return status == dnnl_success ? RW_OK : status == dnnl_out_of_memory ? RW_ERR_MEMORY : RW_ERR_DEVICE;
}

/* float64 is for checking gradients: plain loops, rows of B in the inner one when they are contiguous. */
void rw_gemm_f64(const struct rw_gemm *g)
{
    const double *const a = g->a, *const b = g->b;
    for (int64_t i = 0; i < g->m; i++) {
        double *const c = (double *)g->c + i * g->ldc;
        if (!g->add)
            for (int64_t j = 0; j < g->n; j++) c[j] = 0;
        for (int64_t l = 0; l < g->k && !g->tb; l++) {
            const double x = g->ta ? a[l * g->lda + i] : a[i * g->lda + l];
            for (int64_t j = 0; j < g->n; j++) c[j] += x * b[l * g->ldb + j];
        }
        for (int64_t j = 0; j < g->n && g->tb; j++) {
            double sum = 0;
            for (int64_t l = 0; l < g->k; l++) sum += (g->ta ? a[l * g->lda + i] : a[i * g->lda + l]) * b[j * g->ldb + l];
            c[j] += sum;
        }
    }
}

/* bfloat16 */

static bool describe(dnnl_memory_desc_t *md, int64_t rows, int64_t cols, int64_t ld, bool transposed)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { transposed ? 1 : ld, transposed ? ld : 1 };
    return dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_bf16, strides) == dnnl_success;
}

static bool make_primitive(struct rw_onednn *o, struct pinned *p, const struct rw_gemm *g)
{
    dnnl_memory_desc_t a, b, c, bias = { 0 };
    if (!describe(&a, g->m, g->k, g->lda, g->ta) || !describe(&b, g->k, g->n, g->ldb, g->tb) || !describe(&c, g->m, g->n, g->ldc, false))
        return false;
    if (g->bias && !describe(&bias, 1, g->n, g->n, false)) return false;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_matmul_desc_init(&desc, &a, &b, g->bias ? &bias : NULL, &c) != dnnl_success) return false;
    if (dnnl_primitive_desc_create(&pd, &desc, NULL, o->engine, NULL) != dnnl_success) return false;
    bool ok = dnnl_primitive_create(&p->primitive, pd) == dnnl_success;
    dnnl_primitive_desc_destroy(pd);
    ok = ok && dnnl_memory_create(&p->a, &a, o->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&p->b, &b, o->engine, DNNL_MEMORY_NONE) == dnnl_success;
    ok = ok && dnnl_memory_create(&p->c, &c, o->engine, DNNL_MEMORY_NONE) == dnnl_success;
    return ok && (!g->bias || dnnl_memory_create(&p->bias, &bias, o->engine, DNNL_MEMORY_NONE) == dnnl_success);
}

static struct pinned *find(const struct rw_onednn *o, const struct signature *key)
{
    for (size_t i = o->n_pinned; i-- > 0;)
        if (!memcmp(&o->pinned[i]->key, key, sizeof *key)) return o->pinned[i];
    return NULL;
}

static struct pinned *add(struct rw_onednn *o, const struct signature *key, const struct rw_gemm *g)
{
    if (!rw_grow(&o->pinned, &o->cap_pinned, o->n_pinned, 1, sizeof *o->pinned)) return NULL;
    struct pinned *const p = rw_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->key = *key;
    if (!make_primitive(o, p, g)) {
        destroy_pinned(p);
        return NULL;
    }
    return o->pinned[o->n_pinned++] = p;
}

static dnnl_stream_t stream_of(struct rw_onednn *o, int thread)
{
    if (!rw_grow(&o->streams, &o->cap_streams, (size_t)thread, 1, sizeof *o->streams)) return NULL;
    while (o->n_streams <= (size_t)thread) o->streams[o->n_streams++] = NULL;
    if (!o->streams[thread] && dnnl_stream_create(&o->streams[thread], o->engine, dnnl_stream_default_flags) != dnnl_success) return NULL;
    return o->streams[thread];
}

rw_status rw_gemm_bf16(struct rw_onednn *o, const struct rw_gemm *g)
{
    const struct signature key = { g->m, g->n, g->k, g->lda, g->ldb, g->ldc, g->ta, g->tb, g->bias != NULL, omp_get_thread_num() };
    pthread_mutex_lock(&o->lock);
    struct pinned *p = find(o, &key);
    if (!p) p = add(o, &key, g);
    const dnnl_stream_t stream = p ? stream_of(o, key.thread) : NULL;
    pthread_mutex_unlock(&o->lock);
    if (!p || !stream) return RW_ERR_DEVICE;
    dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)g->a);
    dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)g->b);
    dnnl_memory_set_data_handle(p->c, g->c);
    if (g->bias) dnnl_memory_set_data_handle(p->bias, (void *)(uintptr_t)g->bias);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, p->a }, { DNNL_ARG_WEIGHTS, p->b }, { DNNL_ARG_DST, p->c }, { DNNL_ARG_BIAS, p->bias } };
    return dnnl_primitive_execute(p->primitive, stream, g->bias ? 4 : 3, args) == dnnl_success ? RW_OK : RW_ERR_DEVICE;
}
