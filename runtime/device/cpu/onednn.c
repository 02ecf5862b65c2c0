/* Matrix products by oneDNN. See onednn.h. What oneDNN itself allocates, when a primitive is made, is outside our
 * count. */
#include "device/cpu/onednn.h"
#include "base/alloc.h"

#include <oneapi/dnnl/dnnl.h>
#include <omp.h>
#include <string.h>
#include <sys/mman.h>

/*
 * oneDNN crashes where an allocation of its own fails: code is written to where there is no memory, and what C++ throws
 * has nobody to catch it. So it is asked for something only while there is so much address space left. A primitive
 * takes below a quarter of it: some twenty kernels of up to 256 KiB of address space each.
 */
#define LIBRARY_ROOM ((size_t)16 << 20)

/* Resident memory that a primitive of fast code was seen to take: tests/device/machine.c. */
#define PRIMITIVE_BYTES ((size_t)64 << 10)

#define FORWARD(expr)                   \
    do {                                \
        const rw_status status_ = (expr); \
        if (status_) return status_;    \
    } while (0)

/* Memory objects carry the address of their data, so every thread has its own. */
struct slot {
    dnnl_memory_t a, b, bias, c, scratch;
};

struct rw_onednn_matmul {
    struct rw_matmul_signature signature;
    struct rw_onednn *owner;
    int holders;                /* holdings that it is in */
    uint64_t used;              /* by the clock of the table */
    uint64_t held_in;           /* the last holding that it was put in, by its number */
    bool fast;                  /* else there is no primitive */
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, bias, c, scratch;
    struct slot *slots;
    size_t n_slots, cap_slots;
};

struct rw_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per thread */
    size_t n_streams, cap_streams;
    struct rw_onednn_matmul **table; /* by signature, open addressing */
    size_t size, n, n_idle;          /* size is 0 or a power of two; idle: without a holder */
    uint64_t clock;
    struct held *holding; /* under way, or NULL */
};

/* What a plan holds. */
struct held {
    struct rw_holding base; /* first */
    struct rw_onednn *owner;
    uint64_t number;
    struct rw_onednn_matmul **primitives;
    size_t n, cap;
};

static rw_status status_of(dnnl_status_t s)
{
    if (s == dnnl_success) return RW_OK;
    return s == dnnl_out_of_memory ? RW_ERR_MEMORY : RW_ERR_DEVICE;
}

/* Counted like memory that is written to, so that every limit which a process can have is seen; never written. */
static bool library_has_room(void)
{
    void *const p = mmap(NULL, LIBRARY_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, LIBRARY_ROOM);
    return true;
}

rw_status rw_onednn_create(struct rw_onednn **ret)
{
    struct rw_onednn *const o = rw_calloc(1, sizeof *o);
    if (!o) return RW_ERR_MEMORY;
    const rw_status status = library_has_room() ? status_of(dnnl_engine_create(&o->engine, dnnl_cpu, 0))
                                                : RW_ERR_MEMORY;
    if (status) {
        rw_free(o);
        return status;
    }
    *ret = o;
    return RW_OK;
}

static void slot_finish(struct slot *s)
{
    dnnl_memory_t const all[] = { s->a, s->b, s->bias, s->c, s->scratch };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) dnnl_memory_destroy(all[i]);
}

static void matmul_destroy(struct rw_onednn_matmul *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_slots; i++) slot_finish(&p->slots[i]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    rw_free(p->slots);
    rw_free(p);
}

void rw_onednn_destroy(struct rw_onednn **o)
{
    if (!o || !*o) return;
    struct rw_onednn *const x = *o;
    for (size_t i = 0; i < x->size; i++) matmul_destroy(x->table[i]);
    for (size_t i = 0; i < x->n_streams; i++) dnnl_stream_destroy(x->streams[i]);
    dnnl_engine_destroy(x->engine);
    rw_free(x->table);
    rw_free(x->streams);
    rw_free(x);
    *o = NULL;
}

static uint64_t hash(const struct rw_matmul_signature *s)
{
    const int64_t words[] = { s->m,     s->n,     s->k,
                              s->a_row, s->a_col, s->b_row,
                              s->b_col, s->c_row, s->dtype * 4 + s->adds * 2 + s->bias };
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        h = (h ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* Where the signature is, or the free place where it belongs. The table is never full. */
static struct rw_onednn_matmul **find(struct rw_onednn_matmul **table, size_t size, const struct rw_matmul_signature *s)
{
    size_t i = (size_t)hash(s) & (size - 1);
    while (table[i] && memcmp(&table[i]->signature, s, sizeof *s)) i = (i + 1) & (size - 1);
    return &table[i];
}

static rw_status make_room(struct rw_onednn *o)
{
    if (2 * (o->n + 1) <= o->size) return RW_OK;
    const size_t size = o->size ? 2 * o->size : 64;
    struct rw_onednn_matmul **const table = rw_calloc(size, sizeof *table);
    if (!table) return RW_ERR_MEMORY;
    for (size_t i = 0; i < o->size; i++)
        if (o->table[i]) *find(table, size, &o->table[i]->signature) = o->table[i];
    rw_free(o->table);
    o->table = table;
    o->size = size;
    return RW_OK;
}

static dnnl_status_t describe(dnnl_memory_desc_t *d, int32_t dtype, int64_t rows, int64_t cols, int64_t row,
                              int64_t col)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { row, col };
    return dnnl_memory_desc_init_by_strides(d, 2, dims,
                                            dtype == RW_BF16  ? dnnl_bf16
                                            : dtype == RW_F16 ? dnnl_f16
                                                              : dnnl_f32,
                                            strides);
}

static dnnl_status_t describe_all(struct rw_onednn_matmul *p)
{
    const struct rw_matmul_signature *const s = &p->signature;
    dnnl_status_t status = describe(&p->a, s->dtype, s->m, s->k, s->a_row, s->a_col);
    if (!status) status = describe(&p->b, s->dtype, s->k, s->n, s->b_row, s->b_col);
    if (!status) status = describe(&p->bias, s->dtype, 1, s->n, s->n, 1);
    if (!status) status = describe(&p->c, s->dtype, s->m, s->n, s->c_row, 1);
    return status;
}

/* oneDNN's reference code is there for checking, not for use. */
static bool is_fast(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name)) return false;
    return name && !strstr(name, "ref");
}

static dnnl_status_t add_to_c(dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t ops;
    dnnl_status_t status = dnnl_post_ops_create(&ops);
    if (status) return status;
    status = dnnl_post_ops_append_sum(ops, 1);
    if (!status) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make_primitive(struct rw_onednn_matmul *p, dnnl_engine_t engine, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = p->signature.adds ? add_to_c(attr) : dnnl_success;
    if (!status) status = dnnl_matmul_desc_init(&desc, &p->a, &p->b, p->signature.bias ? &p->bias : NULL, &p->c);
    if (!status) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!status) status = dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL);
    if (status == dnnl_unimplemented) return dnnl_success;
    if (status) return status;
    p->fast = is_fast(pd);
    if (p->fast) p->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (p->fast) status = dnnl_primitive_create(&p->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

/* The number of threads is fixed when a primitive is made: here, one. */
static rw_status make_for_one_thread(struct rw_onednn_matmul *p, dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attr;
    if (!library_has_room()) return RW_ERR_MEMORY;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status) return status_of(status);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    status = describe_all(p);
    if (!status) status = make_primitive(p, engine, attr);
    omp_set_num_threads(threads);
    dnnl_primitive_attr_destroy(attr);
    return status_of(status);
}

static rw_status add_streams(struct rw_onednn *o, size_t threads)
{
    while (o->n_streams < threads) {
        if (!rw_grow(&o->streams, &o->cap_streams, o->n_streams, 1, sizeof *o->streams)) return RW_ERR_MEMORY;
        const rw_status status = status_of(
            dnnl_stream_create(&o->streams[o->n_streams], o->engine, dnnl_stream_default_flags));
        if (status) return status;
        o->n_streams++;
    }
    return RW_OK;
}

static rw_status add_slots(struct rw_onednn_matmul *p, size_t threads)
{
    while (p->n_slots < threads) {
        if (!rw_grow(&p->slots, &p->cap_slots, p->n_slots, 1, sizeof *p->slots)) return RW_ERR_MEMORY;
        struct slot *const s = &p->slots[p->n_slots];
        *s = (struct slot){ 0 };
        const dnnl_engine_t engine = p->owner->engine;
        dnnl_status_t status = dnnl_memory_create(&s->a, &p->a, engine, DNNL_MEMORY_NONE);
        if (!status) status = dnnl_memory_create(&s->b, &p->b, engine, DNNL_MEMORY_NONE);
        if (!status) status = dnnl_memory_create(&s->bias, &p->bias, engine, DNNL_MEMORY_NONE);
        if (!status) status = dnnl_memory_create(&s->c, &p->c, engine, DNNL_MEMORY_NONE);
        if (!status) status = dnnl_memory_create(&s->scratch, &p->scratch, engine, DNNL_MEMORY_NONE);
        if (status) {
            slot_finish(s);
            return status_of(status);
        }
        p->n_slots++;
    }
    return RW_OK;
}

/* Streams, and memory objects of a primitive, for so many threads. */
static rw_status add_threads(struct rw_onednn_matmul *p, size_t threads)
{
    struct rw_onednn *const o = p->owner;
    if (!p->fast || (o->n_streams >= threads && p->n_slots >= threads)) return RW_OK;
    if (!library_has_room()) return RW_ERR_MEMORY;
    FORWARD(add_streams(o, threads));
    return add_slots(p, threads);
}

static struct rw_onednn_matmul *known(const struct rw_onednn *o, const struct rw_matmul_signature *s)
{
    return o->size ? *find(o->table, o->size, s) : NULL;
}

/* What follows it in the table moves up to where looking for it begins. */
static void forget(struct rw_onednn *o, struct rw_onednn_matmul *p)
{
    const size_t mask = o->size - 1;
    size_t hole = (size_t)(find(o->table, o->size, &p->signature) - o->table);
    for (size_t i = (hole + 1) & mask; o->table[i]; i = (i + 1) & mask) {
        const size_t home = (size_t)hash(&o->table[i]->signature) & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        o->table[hole] = o->table[i];
        hole = i;
    }
    o->table[hole] = NULL;
    o->n--;
    o->n_idle--;
    matmul_destroy(p);
}

static void forget_idle(struct rw_onednn *o)
{
    while (o->n_idle > RW_ONEDNN_IDLE) {
        struct rw_onednn_matmul *oldest = NULL;
        for (size_t i = 0; i < o->size; i++) {
            struct rw_onednn_matmul *const p = o->table[i];
            if (p && !p->holders && (!oldest || p->used < oldest->used)) oldest = p;
        }
        forget(o, oldest);
    }
}

static rw_status add(struct rw_onednn *o, const struct rw_matmul_signature *s, struct rw_onednn_matmul **ret)
{
    FORWARD(make_room(o));
    struct rw_onednn_matmul *const p = rw_calloc(1, sizeof *p);
    if (!p) return RW_ERR_MEMORY;
    p->signature = *s;
    p->owner = o;
    const rw_status status = make_for_one_thread(p, o->engine);
    if (status) {
        matmul_destroy(p);
        return status;
    }
    *find(o->table, o->size, s) = p;
    o->n++;
    o->n_idle++;
    *ret = p;
    return RW_OK;
}

/* ---- holdings ---- */

static void let_go(struct rw_holding *base)
{
    struct held *const h = (struct held *)base;
    struct rw_onednn *const o = h->owner;
    if (o->holding == h) o->holding = NULL;
    for (size_t i = 0; i < h->n; i++) {
        struct rw_onednn_matmul *const p = h->primitives[i];
        p->used = ++o->clock;
        o->n_idle += !--p->holders;
    }
    rw_free(h->primitives);
    rw_free(h);
    forget_idle(o);
}

struct rw_holding *rw_onednn_hold_begin(struct rw_onednn *o)
{
    struct held *const h = rw_calloc(1, sizeof *h);
    if (!h) return NULL;
    *h = (struct held){ .base = { 1, let_go }, .owner = o, .number = ++o->clock };
    o->holding = h;
    return &h->base;
}

void rw_onednn_hold_end(struct rw_onednn *o)
{
    o->holding = NULL;
}

static rw_status hold(struct rw_onednn_matmul *p)
{
    struct held *const h = p->owner->holding;
    if (!h || p->held_in == h->number) return RW_OK;
    if (!rw_grow(&h->primitives, &h->cap, h->n, 1, sizeof *h->primitives)) return RW_ERR_MEMORY;
    h->primitives[h->n++] = p;
    p->owner->n_idle -= !p->holders++;
    p->held_in = h->number;
    return RW_OK;
}

static void describe_to(const struct rw_onednn_matmul *p, bool *ret_fast, size_t *ret_scratch)
{
    *ret_fast = p->fast;
    *ret_scratch = p->fast ? dnnl_memory_desc_get_size(&p->scratch) : 0;
}

rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch)
{
    struct rw_onednn_matmul *p = known(o, s);
    if (!p) FORWARD(add(o, s, &p));
    p->used = ++o->clock;
    FORWARD(add_threads(p, (size_t)threads));
    FORWARD(hold(p));
    describe_to(p, ret_fast, ret_scratch);
    forget_idle(o);
    return RW_OK;
}

struct rw_onednn_matmul *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                               bool *ret_fast, size_t *ret_scratch)
{
    struct rw_onednn_matmul *const p = known(o, s);
    if (p) describe_to(p, ret_fast, ret_scratch);
    return p;
}

size_t rw_onednn_count(const struct rw_onednn *o)
{
    return o->n;
}

size_t rw_onednn_bytes(const struct rw_onednn *o)
{
    size_t bytes = sizeof *o + o->size * sizeof *o->table;
    for (size_t i = 0; i < o->size; i++) {
        const struct rw_onednn_matmul *const p = o->table[i];
        if (p) bytes += sizeof *p + p->n_slots * sizeof *p->slots + (p->primitive ? PRIMITIVE_BYTES : 0);
    }
    return bytes;
}

/* ---- the run ---- */

static dnnl_status_t point(dnnl_memory_t m, const void *data)
{
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)data);
}

rw_status rw_onednn_matmul_run(struct rw_onednn_matmul *p, int thread, const void *a, const void *b, const void *bias,
                               void *c, void *scratch)
{
    struct slot *const s = &p->slots[thread];
    dnnl_status_t status = point(s->a, a);
    if (!status) status = point(s->b, b);
    if (!status && p->signature.bias) status = point(s->bias, bias);
    if (!status) status = point(s->c, c);
    if (!status) status = point(s->scratch, scratch);
    if (status) return status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, s->a }, { DNNL_ARG_WEIGHTS, s->b }, { DNNL_ARG_DST, s->c },
                                     { DNNL_ARG_SCRATCHPAD, s->scratch }, { DNNL_ARG_BIAS, s->bias } };
    return status_of(dnnl_primitive_execute(p->primitive, p->owner->streams[thread], p->signature.bias ? 5 : 4, args));
}
