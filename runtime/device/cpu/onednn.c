/* Matrix products and convolutions by oneDNN. See onednn.h. What oneDNN itself allocates, when a primitive is made, is
 * outside our count. */
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
enum { FIRST, SECOND, BIAS, RESULT, SCRATCH, PLAIN, OPERANDS };

struct slot {
    dnnl_memory_t of[OPERANDS];
};

/* What a primitive is found by. Its bytes count: all of them are set. */
enum kind { MATMUL, CONVOLUTION };
struct signature {
    int64_t kind;
    union {
        struct rw_matmul_signature matmul;
        struct rw_conv_signature conv;
    } of;
};

struct rw_onednn_primitive {
    struct signature signature;
    struct rw_onednn *owner;
    int holders;                /* holdings that it is in */
    uint64_t used;              /* by the clock of the table */
    uint64_t held_in;           /* the last holding that it was put in, by its number */
    bool fast;                  /* else there is no primitive */
    dnnl_primitive_t primitive;
    dnnl_primitive_t turn; /* of a convolution: its weight from or to a dense one */
    dnnl_primitive_t spread; /* the same by several threads, or NULL */
    int spread_by;
    /* Operands: a, b, bias, c of a product; image, weight in the primitive's layout, bias, result of a convolution;
       scratch memory; the dense weight. */
    dnnl_memory_desc_t operand[OPERANDS];
    struct slot *slots;
    size_t n_slots, cap_slots;
};

struct rw_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per thread */
    size_t n_streams, cap_streams;
    struct rw_onednn_primitive **table; /* by signature, open addressing */
    size_t size, n, n_idle;          /* size is 0 or a power of two; idle: without a holder */
    uint64_t clock;
    struct held *holding; /* under way, or NULL */
};

/* What a plan holds. */
struct held {
    struct rw_holding base; /* first */
    struct rw_onednn *owner;
    uint64_t number;
    struct rw_onednn_primitive **primitives;
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
    for (int i = 0; i < OPERANDS; i++)
        if (s->of[i]) dnnl_memory_destroy(s->of[i]);
}

static void primitive_free(struct rw_onednn_primitive *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_slots; i++) slot_finish(&p->slots[i]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->turn) dnnl_primitive_destroy(p->turn);
    if (p->spread) dnnl_primitive_destroy(p->spread);
    rw_free(p->slots);
    rw_free(p);
}

void rw_onednn_destroy(struct rw_onednn **o)
{
    if (!o || !*o) return;
    struct rw_onednn *const x = *o;
    for (size_t i = 0; i < x->size; i++) primitive_free(x->table[i]);
    for (size_t i = 0; i < x->n_streams; i++) dnnl_stream_destroy(x->streams[i]);
    dnnl_engine_destroy(x->engine);
    rw_free(x->table);
    rw_free(x->streams);
    rw_free(x);
    *o = NULL;
}

static uint64_t hash(const struct signature *s)
{
    uint64_t words[sizeof *s / sizeof(uint64_t)], h = 0;
    memcpy(words, s, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* Where the signature is, or the free place where it belongs. The table is never full. */
static struct rw_onednn_primitive **find(struct rw_onednn_primitive **table, size_t size, const struct signature *s)
{
    size_t i = (size_t)hash(s) & (size - 1);
    while (table[i] && memcmp(&table[i]->signature, s, sizeof *s)) i = (i + 1) & (size - 1);
    return &table[i];
}

static rw_status make_room(struct rw_onednn *o)
{
    if (2 * (o->n + 1) <= o->size) return RW_OK;
    const size_t size = o->size ? 2 * o->size : 64;
    struct rw_onednn_primitive **const table = rw_calloc(size, sizeof *table);
    if (!table) return RW_ERR_MEMORY;
    for (size_t i = 0; i < o->size; i++)
        if (o->table[i]) *find(table, size, &o->table[i]->signature) = o->table[i];
    rw_free(o->table);
    o->table = table;
    o->size = size;
    return RW_OK;
}

static dnnl_data_type_t type_of(int32_t dtype)
{
    return dtype == RW_BF16 ? dnnl_bf16 : dtype == RW_F16 ? dnnl_f16 : dnnl_f32;
}

/* oneDNN's reference code is there for checking, not for use. */
static bool is_fast(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name)) return false;
    return name && !strstr(name, "ref");
}

/* The primitive of a description, where there is fast code for it. */
static dnnl_status_t make_fast(struct rw_onednn_primitive *p, const void *desc, dnnl_primitive_attr_t attr,
                               dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *ret)
{
    dnnl_status_t status = dnnl_primitive_desc_create(ret, desc, attr, p->owner->engine, hint);
    if (status == dnnl_unimplemented) return dnnl_success;
    if (status) return status;
    p->fast = is_fast(*ret);
    if (!p->fast) return dnnl_success;
    p->operand[SCRATCH] = *dnnl_primitive_desc_query_md(*ret, dnnl_query_scratchpad_md, 0);
    return dnnl_primitive_create(&p->primitive, *ret);
}

/* ---- products ---- */

static dnnl_status_t describe(dnnl_memory_desc_t *d, int32_t dtype, int64_t rows, int64_t cols, int64_t row,
                              int64_t col)
{
    const dnnl_dims_t dims = { rows, cols }, strides = { row, col };
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type_of(dtype), strides);
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

static dnnl_status_t make_matmul(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    const struct rw_matmul_signature *const s = &p->signature.of.matmul;
    dnnl_memory_desc_t *const d = p->operand;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe(&d[FIRST], s->dtype, s->m, s->k, s->a_row, s->a_col);
    if (!status) status = describe(&d[SECOND], s->dtype, s->k, s->n, s->b_row, s->b_col);
    if (!status) status = describe(&d[BIAS], s->dtype, 1, s->n, s->n, 1);
    if (!status) status = describe(&d[RESULT], s->to, s->m, s->n, s->c_row, 1);
    if (!status && s->adds) status = add_to_c(attr);
    if (!status) status = dnnl_matmul_desc_init(&desc, &d[FIRST], &d[SECOND], s->bias ? &d[BIAS] : NULL, &d[RESULT]);
    if (!status) status = make_fast(p, &desc, attr, NULL, &pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    return status;
}

/* ---- convolutions ---- */

static dnnl_status_t describe_images(struct rw_onednn_primitive *p)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const dnnl_dims_t x = { s->n, s->c, s->h, s->w }, y = { s->n, s->oc, s->oh, s->ow }, bias = { s->oc };
    const dnnl_data_type_t type = type_of(s->dtype);
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&p->operand[FIRST], 4, x, type, dnnl_nhwc);
    if (!status) status = dnnl_memory_desc_init_by_tag(&p->operand[RESULT], 4, y, type, dnnl_nhwc);
    if (!status) status = dnnl_memory_desc_init_by_tag(&p->operand[BIAS], 1, bias, type, dnnl_a);
    return status;
}

/* A weight, dense or in whatever layout the primitive likes best. */
static dnnl_status_t describe_weight(const struct rw_conv_signature *s, bool dense, dnnl_memory_desc_t *d)
{
    const bool grouped = s->groups > 1;
    const dnnl_dims_t one = { s->oc, s->c, s->kh, s->kw };
    const dnnl_dims_t many = { s->groups, s->oc / s->groups, s->c / s->groups, s->kh, s->kw };
    const dnnl_data_type_t type = s->kind == RW_ONEDNN_BACKWARD_WEIGHT ? dnnl_f32 : type_of(s->dtype);
    const dnnl_format_tag_t tag = !dense ? dnnl_format_tag_any : grouped ? dnnl_goihw : dnnl_oihw;
    return dnnl_memory_desc_init_by_tag(d, grouped ? 5 : 4, grouped ? many : one, type, tag);
}

static dnnl_status_t describe_conv(const struct rw_conv_signature *s, int kind, const struct rw_onednn_primitive *p,
                                   const dnnl_memory_desc_t *weight, dnnl_convolution_desc_t *ret)
{
    const dnnl_memory_desc_t *const x = &p->operand[FIRST], *const y = &p->operand[RESULT];
    const dnnl_dims_t stride = { s->stride[0], s->stride[1] }, padding = { s->padding[0], s->padding[1] };
    const dnnl_dims_t end = { s->end[0], s->end[1] };
    const dnnl_dims_t dilates = { s->dilation[0] - 1, s->dilation[1] - 1 };
    if (kind == RW_ONEDNN_FORWARD)
        return dnnl_dilated_convolution_forward_desc_init(ret, dnnl_forward_training, dnnl_convolution_direct, x,
                                                          weight, s->bias ? &p->operand[BIAS] : NULL, y, stride,
                                                          dilates, padding, end);
    if (kind == RW_ONEDNN_BACKWARD_DATA)
        return dnnl_dilated_convolution_backward_data_desc_init(ret, dnnl_convolution_direct, x, weight, y, stride,
                                                                dilates, padding, end);
    return dnnl_dilated_convolution_backward_weights_desc_init(ret, dnnl_convolution_direct, x, weight, NULL, y,
                                                               stride, dilates, padding, end);
}

/* What oneDNN asks of a gradient: the primitive whose gradient it is. NULL where there is none. */
static dnnl_status_t hint_of(struct rw_onednn_primitive *p, dnnl_primitive_desc_t *ret)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    dnnl_memory_desc_t weight;
    dnnl_convolution_desc_t desc;
    struct rw_conv_signature forward = *s;
    forward.kind = RW_ONEDNN_FORWARD;
    dnnl_status_t status = describe_weight(&forward, false, &weight);
    if (!status) status = describe_conv(s, RW_ONEDNN_FORWARD, p, &weight, &desc);
    if (!status) status = dnnl_primitive_desc_create(ret, &desc, NULL, p->owner->engine, NULL);
    return status == dnnl_unimplemented ? dnnl_success : status;
}

/* The copy between the dense weight and the primitive's own. */
static dnnl_status_t describe_turn(const struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr,
                                   dnnl_primitive_desc_t *ret)
{
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    const dnnl_memory_desc_t *const from = &p->operand[out ? SECOND : PLAIN], *const to = &p->operand[out ? PLAIN
                                                                                                         : SECOND];
    return dnnl_reorder_primitive_desc_create(ret, from, p->owner->engine, to, p->owner->engine, attr);
}

/* Its scratch memory is that of the primitive. */
static dnnl_status_t make_turn(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe_turn(p, attr, &pd);
    if (!status) {
        const dnnl_memory_desc_t *const scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (dnnl_memory_desc_get_size(scratch) > dnnl_memory_desc_get_size(&p->operand[SCRATCH]))
            p->operand[SCRATCH] = *scratch;
        status = dnnl_primitive_create(&p->turn, pd);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    return status;
}

static dnnl_status_t make_conv(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    dnnl_memory_desc_t weight;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    dnnl_status_t status = describe_images(p);
    if (!status) status = describe_weight(s, true, &p->operand[PLAIN]);
    if (!status) status = describe_weight(s, false, &weight);
    if (!status) status = describe_conv(s, s->kind, p, &weight, &desc);
    if (!status && s->kind != RW_ONEDNN_FORWARD) status = hint_of(p, &hint);
    if (!status && (hint || s->kind == RW_ONEDNN_FORWARD)) status = make_fast(p, &desc, attr, hint, &pd);
    if (!status && p->fast) {
        const bool out = s->kind == RW_ONEDNN_BACKWARD_WEIGHT;
        p->operand[SECOND] = *dnnl_primitive_desc_query_md(pd, out ? dnnl_query_diff_weights_md : dnnl_query_weights_md,
                                                           0);
        status = make_turn(p, attr);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (hint) dnnl_primitive_desc_destroy(hint);
    return status;
}

/* The number of threads is fixed when a primitive is made. */
static rw_status make_for_threads(struct rw_onednn_primitive *p, int threads,
                                  dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr))
{
    dnnl_primitive_attr_t attr;
    if (!library_has_room()) return RW_ERR_MEMORY;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status) return status_of(status);
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(threads);
    status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!status) status = make(p, attr);
    omp_set_num_threads(allowed);
    dnnl_primitive_attr_destroy(attr);
    return status_of(status);
}

/* Where it takes no more scratch memory than the copy by one thread. */
static dnnl_status_t make_spread(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t made = NULL;
    dnnl_status_t status = describe_turn(p, attr, &pd);
    const dnnl_memory_desc_t *const scratch = status ? NULL
                                                     : dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (!status && dnnl_memory_desc_get_size(scratch) <= dnnl_memory_desc_get_size(&p->operand[SCRATCH]))
        status = dnnl_primitive_create(&made, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (status) return status;
    if (p->spread) dnnl_primitive_destroy(p->spread);
    p->spread = made;
    return status;
}

/* A weight's gradient is brought back by the thread that made it. */
static rw_status spread_by(struct rw_onednn_primitive *p, int threads)
{
    if (p->signature.kind != CONVOLUTION || p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT) return RW_OK;
    if (threads == 1 || p->spread_by == threads) return RW_OK;
    FORWARD(make_for_threads(p, threads, make_spread));
    p->spread_by = threads;
    return RW_OK;
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

static rw_status add_slots(struct rw_onednn_primitive *p, size_t threads)
{
    while (p->n_slots < threads) {
        if (!rw_grow(&p->slots, &p->cap_slots, p->n_slots, 1, sizeof *p->slots)) return RW_ERR_MEMORY;
        struct slot *const s = &p->slots[p->n_slots];
        *s = (struct slot){ 0 };
        const int n = p->signature.kind == MATMUL ? PLAIN : OPERANDS;
        dnnl_status_t status = dnnl_success;
        for (int i = 0; i < n && !status; i++)
            status = dnnl_memory_create(&s->of[i], &p->operand[i], p->owner->engine, DNNL_MEMORY_NONE);
        if (status) {
            slot_finish(s);
            return status_of(status);
        }
        p->n_slots++;
    }
    return RW_OK;
}

/* Streams, and memory objects of a primitive, for so many threads. */
static rw_status add_threads(struct rw_onednn_primitive *p, size_t threads)
{
    struct rw_onednn *const o = p->owner;
    if (!p->fast) return RW_OK;
    FORWARD(spread_by(p, (int)threads));
    if (o->n_streams >= threads && p->n_slots >= threads) return RW_OK;
    if (!library_has_room()) return RW_ERR_MEMORY;
    FORWARD(add_streams(o, threads));
    return add_slots(p, threads);
}

static struct rw_onednn_primitive *known(const struct rw_onednn *o, const struct signature *s)
{
    return o->size ? *find(o->table, o->size, s) : NULL;
}

/* What follows it in the table moves up to where looking for it begins. */
static void forget(struct rw_onednn *o, struct rw_onednn_primitive *p)
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
    primitive_free(p);
}

static void forget_idle(struct rw_onednn *o)
{
    while (o->n_idle > RW_ONEDNN_IDLE) {
        struct rw_onednn_primitive *oldest = NULL;
        for (size_t i = 0; i < o->size; i++) {
            struct rw_onednn_primitive *const p = o->table[i];
            if (p && !p->holders && (!oldest || p->used < oldest->used)) oldest = p;
        }
        forget(o, oldest);
    }
}

static rw_status add(struct rw_onednn *o, const struct signature *s, struct rw_onednn_primitive **ret)
{
    FORWARD(make_room(o));
    struct rw_onednn_primitive *const p = rw_calloc(1, sizeof *p);
    if (!p) return RW_ERR_MEMORY;
    p->signature = *s;
    p->owner = o;
    const rw_status status = make_for_threads(p, 1, s->kind == MATMUL ? make_matmul : make_conv);
    if (status) {
        primitive_free(p);
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
        struct rw_onednn_primitive *const p = h->primitives[i];
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

static rw_status hold(struct rw_onednn_primitive *p)
{
    struct held *const h = p->owner->holding;
    if (!h || p->held_in == h->number) return RW_OK;
    if (!rw_grow(&h->primitives, &h->cap, h->n, 1, sizeof *h->primitives)) return RW_ERR_MEMORY;
    h->primitives[h->n++] = p;
    p->owner->n_idle -= !p->holders++;
    p->held_in = h->number;
    return RW_OK;
}

static struct signature signature_of_matmul(const struct rw_matmul_signature *s)
{
    struct signature r;
    memset(&r, 0, sizeof r);
    r.kind = MATMUL;
    r.of.matmul = *s;
    return r;
}

static struct signature signature_of_conv(const struct rw_conv_signature *s)
{
    struct signature r;
    memset(&r, 0, sizeof r);
    r.kind = CONVOLUTION;
    r.of.conv = *s;
    return r;
}

static size_t size_of(const struct rw_onednn_primitive *p, int operand)
{
    return p->fast ? dnnl_memory_desc_get_size(&p->operand[operand]) : 0;
}

static rw_status prepare(struct rw_onednn *o, const struct signature *s, int threads, struct rw_onednn_primitive **ret)
{
    struct rw_onednn_primitive *p = known(o, s);
    if (!p) FORWARD(add(o, s, &p));
    p->used = ++o->clock;
    FORWARD(add_threads(p, (size_t)threads));
    FORWARD(hold(p));
    *ret = p;
    return RW_OK;
}

rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch)
{
    const struct signature key = signature_of_matmul(s);
    struct rw_onednn_primitive *p;
    FORWARD(prepare(o, &key, threads, &p));
    *ret_fast = p->fast;
    *ret_scratch = size_of(p, SCRATCH);
    forget_idle(o);
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                                  bool *ret_fast, size_t *ret_scratch)
{
    const struct signature key = signature_of_matmul(s);
    struct rw_onednn_primitive *const p = known(o, &key);
    if (!p) return NULL;
    *ret_fast = p->fast;
    *ret_scratch = size_of(p, SCRATCH);
    return p;
}

static struct rw_conv_needs needs_of(const struct rw_onednn_primitive *p)
{
    return (struct rw_conv_needs){ p->fast, size_of(p, SCRATCH), size_of(p, SECOND) };
}

rw_status rw_onednn_conv_prepare(struct rw_onednn *o, const struct rw_conv_signature *s, int threads,
                                 struct rw_conv_needs *ret)
{
    const struct signature key = signature_of_conv(s);
    struct rw_onednn_primitive *p;
    FORWARD(prepare(o, &key, threads, &p));
    *ret = needs_of(p);
    forget_idle(o);
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_conv_find(const struct rw_onednn *o, const struct rw_conv_signature *s,
                                                struct rw_conv_needs *ret)
{
    const struct signature key = signature_of_conv(s);
    struct rw_onednn_primitive *const p = known(o, &key);
    if (p) *ret = needs_of(p);
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
        const struct rw_onednn_primitive *const p = o->table[i];
        if (p) bytes += sizeof *p + p->n_slots * sizeof *p->slots + (p->primitive ? PRIMITIVE_BYTES : 0);
    }
    return bytes;
}

/* ---- the run ---- */

static dnnl_status_t point(dnnl_memory_t m, const void *data)
{
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)data);
}

static rw_status execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive, int thread,
                         const dnnl_exec_arg_t *args, int n)
{
    return status_of(dnnl_primitive_execute(primitive, p->owner->streams[thread], n, args));
}

rw_status rw_onednn_matmul_run(struct rw_onednn_primitive *p, int thread, const void *a, const void *b,
                               const void *bias, void *c, void *scratch)
{
    dnnl_memory_t *const of = p->slots[thread].of;
    const int has_bias = p->signature.of.matmul.bias;
    dnnl_status_t status = point(of[FIRST], a);
    if (!status) status = point(of[SECOND], b);
    if (!status && has_bias) status = point(of[BIAS], bias);
    if (!status) status = point(of[RESULT], c);
    if (!status) status = point(of[SCRATCH], scratch);
    if (status) return status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, of[FIRST] }, { DNNL_ARG_WEIGHTS, of[SECOND] },
                                     { DNNL_ARG_DST, of[RESULT] }, { DNNL_ARG_SCRATCHPAD, of[SCRATCH] },
                                     { DNNL_ARG_BIAS, of[BIAS] } };
    return execute(p, p->primitive, thread, args, has_bias ? 5 : 4);
}

bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q)
{
    return dnnl_memory_desc_equal(&p->operand[SECOND], &q->operand[SECOND]);
}

rw_status rw_onednn_conv_run(struct rw_onednn_primitive *p, int thread, const void *image, const void *weight,
                             const void *bias, const void *result, void *scratch)
{
    static const int names[][3] = { { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
                                    { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
                                    { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST } };
    dnnl_memory_t *const of = p->slots[thread].of;
    const int *const name = names[p->signature.of.conv.kind], has_bias = p->signature.of.conv.bias;
    dnnl_status_t status = point(of[FIRST], image);
    if (!status) status = point(of[SECOND], weight);
    if (!status && has_bias) status = point(of[BIAS], bias);
    if (!status) status = point(of[RESULT], result);
    if (!status) status = point(of[SCRATCH], scratch);
    if (status) return status_of(status);
    const dnnl_exec_arg_t args[] = { { name[0], of[FIRST] }, { name[1], of[SECOND] }, { name[2], of[RESULT] },
                                     { DNNL_ARG_SCRATCHPAD, of[SCRATCH] }, { DNNL_ARG_BIAS, of[BIAS] } };
    return execute(p, p->primitive, thread, args, has_bias ? 5 : 4);
}

static rw_status turn_by(struct rw_onednn_primitive *p, dnnl_primitive_t turn, int thread, const void *from, void *to,
                         void *scratch)
{
    dnnl_memory_t *const of = p->slots[thread].of;
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    dnnl_memory_t const source = of[out ? SECOND : PLAIN], target = of[out ? PLAIN : SECOND];
    dnnl_status_t status = point(source, from);
    if (!status) status = point(target, to);
    if (!status) status = point(of[SCRATCH], scratch);
    if (status) return status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, source }, { DNNL_ARG_TO, target },
                                     { DNNL_ARG_SCRATCHPAD, of[SCRATCH] } };
    return execute(p, turn, thread, args, 3);
}

rw_status rw_onednn_conv_turn_weight(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                     void *scratch)
{
    return turn_by(p, p->turn, thread, from, to, scratch);
}

rw_status rw_onednn_conv_spread_weight(struct rw_onednn_primitive *p, const void *from, void *to, void *scratch)
{
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(p->spread ? p->spread_by : 1);
    const rw_status status = turn_by(p, p->spread ? p->spread : p->turn, 0, from, to, scratch);
    omp_set_num_threads(allowed);
    return status;
}
