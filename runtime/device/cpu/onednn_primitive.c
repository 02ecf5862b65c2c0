/* See onednn_primitive.h. What oneDNN itself allocates, when a primitive is made, is outside our count. */
#include "device/cpu/onednn_primitive.h"

#include "base/alloc.h"
#include "device/cpu/signals.h"

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

rw_status rw_onednn_status_of(dnnl_status_t s)
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

bool rw_onednn_takes_avx512(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

rw_status rw_onednn_create(struct rw_onednn **ret)
{
    struct rw_onednn *const o = rw_calloc(1, sizeof *o);
    if (!o) return RW_ERR_MEMORY;
    const rw_status status = library_has_room() ? rw_onednn_status_of(dnnl_engine_create(&o->engine, dnnl_cpu, 0))
                                                : RW_ERR_MEMORY;
    if (status) {
        rw_free(o);
        return status;
    }
    *ret = o;
    return RW_OK;
}

static void slot_finish(struct rw_onednn_slot *s)
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

static uint64_t hash(const struct rw_onednn_signature *s)
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
static struct rw_onednn_primitive **find(struct rw_onednn_primitive **table, size_t size,
                                         const struct rw_onednn_signature *s)
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

dnnl_data_type_t rw_onednn_type_of(int32_t dtype)
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

dnnl_status_t rw_onednn_make_fast(struct rw_onednn_primitive *p, const void *desc, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *ret)
{
    dnnl_status_t status = dnnl_primitive_desc_create(ret, desc, attr, p->engine, hint);
    if (status == dnnl_unimplemented) return dnnl_success;
    if (status) return status;
    p->fast = is_fast(*ret);
    if (!p->fast) return dnnl_success;
    p->operand[SCRATCH] = *dnnl_primitive_desc_query_md(*ret, dnnl_query_scratchpad_md, 0);
    return dnnl_primitive_create(&p->primitive, *ret);
}

rw_status rw_onednn_make_for_threads(struct rw_onednn_primitive *p, int threads,
                                     dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr))
{
    dnnl_primitive_attr_t attr;
    if (!library_has_room()) return RW_ERR_MEMORY;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status) return rw_onednn_status_of(status);
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(threads);
    status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!status) status = make(p, attr);
    omp_set_num_threads(allowed);
    dnnl_primitive_attr_destroy(attr);
    return rw_onednn_status_of(status);
}

static rw_status add_streams(struct rw_onednn *o, size_t threads)
{
    while (o->n_streams < threads) {
        if (!rw_grow(&o->streams, &o->cap_streams, o->n_streams, 1, sizeof *o->streams)) return RW_ERR_MEMORY;
        const rw_status status = rw_onednn_status_of(
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
        struct rw_onednn_slot *const s = &p->slots[p->n_slots];
        *s = (struct rw_onednn_slot){ 0 };
        dnnl_status_t status = dnnl_success;
        for (int i = 0; i < p->kind->operands && !status; i++)
            status = dnnl_memory_create(&s->of[i], &p->operand[i], p->engine, DNNL_MEMORY_NONE);
        if (status) {
            slot_finish(s);
            return rw_onednn_status_of(status);
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
    if (p->kind->for_threads) RW_ONEDNN_TRY(p->kind->for_threads(p, (int)threads));
    if (o->n_streams >= threads && p->n_slots >= threads) return RW_OK;
    if (!library_has_room()) return RW_ERR_MEMORY;
    RW_ONEDNN_TRY(add_streams(o, threads));
    return add_slots(p, threads);
}

struct rw_onednn_primitive *rw_onednn_find(const struct rw_onednn *o, const struct rw_onednn_signature *s)
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

void rw_onednn_forget_idle(struct rw_onednn *o)
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

static rw_status add(struct rw_onednn *o, const struct rw_onednn_signature *s, const struct rw_onednn_kind *kind,
                     struct rw_onednn_primitive **ret)
{
    RW_ONEDNN_TRY(make_room(o));
    struct rw_onednn_primitive *const p = rw_calloc(1, sizeof *p);
    if (!p) return RW_ERR_MEMORY;
    p->signature = *s;
    p->kind = kind;
    p->owner = o;
    p->engine = o->engine;
    const rw_status status = rw_onednn_make_for_threads(p, 1, kind->make);
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
    rw_onednn_forget_idle(o);
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

size_t rw_onednn_size_of(const struct rw_onednn_primitive *p, int operand)
{
    return p->fast ? dnnl_memory_desc_get_size(&p->operand[operand]) : 0;
}

rw_status rw_onednn_prepare(struct rw_onednn *o, const struct rw_onednn_signature *s, const struct rw_onednn_kind *kind,
                            int threads, struct rw_onednn_primitive **ret)
{
    struct rw_onednn_primitive *p = rw_onednn_find(o, s);
    if (!p) RW_ONEDNN_TRY(add(o, s, kind, &p));
    p->used = ++o->clock;
    RW_ONEDNN_TRY(add_threads(p, (size_t)threads));
    RW_ONEDNN_TRY(hold(p));
    *ret = p;
    return RW_OK;
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

dnnl_status_t rw_onednn_point(dnnl_memory_t m, const void *data)
{
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)data);
}

rw_status rw_onednn_execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive, int thread,
                            const dnnl_exec_arg_t *args, int n)
{
    sigset_t signals;
    rw_signals_hold(&signals);
    const dnnl_status_t status = dnnl_primitive_execute(primitive, p->owner->streams[thread], n, args);
    rw_signals_let(&signals);
    return rw_onednn_status_of(status);
}
