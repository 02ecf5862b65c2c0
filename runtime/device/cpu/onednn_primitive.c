/*
 * The table of oneDNN primitives. oneDNN does not report what it allocates, so measured upper bounds are counted
 * instead.
 */
#include "device/cpu/onednn_primitive.h"

#include "base/alloc.h"
#include "base/block_signals.h"
#include "device/cpu/onednn_single_thread.h"

#include <string.h>
#include <sys/mman.h>

/*
 * oneDNN crashes if one of its own allocations fails: it writes code where there is no memory, or throws a C++
 * exception that is not caught. So it is called only while this much address space is available, plus ROOM_TIMES the
 * memory of the primitive: each of its kernels takes 256 KiB of address space, and more while it is made. An ordinary
 * primitive takes less than a quarter of LIBRARY_ROOM. Other threads of the program can still take the rest in between.
 * A first execution may make code, too (may_execute()).
 */
#define LIBRARY_ROOM ((size_t)16 << 20)
#define ROOM_TIMES 8

struct rw_onednn {
    dnnl_engine_t engine;
    bool plans_only;
    dnnl_stream_t *streams; /* one per thread */
    size_t n_streams, cap_streams;
    struct rw_onednn_primitive **table; /* by signature, open addressing */
    size_t size, n, n_idle;          /* size is 0 or a power of two; idle: without a holder */
    uint64_t clock;
    struct held *holding; /* the one between begin and end, or NULL */
};

/* The primitives that a plan holds. */
struct held {
    struct rw_library_ref base; /* must be first */
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

/* Is there room for an object of that many bytes? Maps writable memory, so that every limit of the process applies, but
   never writes to it. */
static bool library_has_room(size_t bytes)
{
    const size_t room = LIBRARY_ROOM + ROOM_TIMES * bytes;
    void *const p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, room);
    return true;
}

bool rw_onednn_counts(const int64_t *numbers, int n)
{
    for (int i = 0; i < n; i++)
        if (numbers[i] > INT32_MAX || numbers[i] < -INT32_MAX) return false;
    return true;
}

bool rw_onednn_counts_bytes(const int64_t *extents, int n)
{
    int64_t product = 8;
    for (int i = 0; i < n; i++)
        if (extents[i] < 0 || __builtin_mul_overflow(product, extents[i], &product) || product > INT32_MAX)
            return false;
    return true;
}

bool rw_onednn_is_present(void)
{
    return true;
}

/* Does the library use all code of this set? On processors other than x86-64 it names a set that contains every other
   one. */
static bool takes(dnnl_cpu_isa_t isa)
{
#if defined(__x86_64__)
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
#else
    (void)isa;
    return false;
#endif
}

bool rw_onednn_takes_avx512(void)
{
    return takes(dnnl_cpu_isa_avx512_core);
}

bool rw_onednn_takes_amx(void)
{
    return takes(dnnl_cpu_isa_avx512_core_amx);
}

/* Creates the engine, if there is room for it. */
rw_status rw_onednn_create(bool plans_only, struct rw_onednn **ret)
{
    struct rw_onednn *const o = rw_calloc(1, sizeof *o);
    if (!o) return RW_ERR_MEMORY;
    o->plans_only = plans_only;
    const rw_status status = library_has_room(0) ? rw_onednn_status_of(dnnl_engine_create(&o->engine, dnnl_cpu, 0))
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
    if (p->reorder) dnnl_primitive_destroy(p->reorder);
    for (int i = 0; i < OPERANDS; i++) rw_onednn_desc_destroy(&p->operand[i]);
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

/* The entry of a signature, or the free entry for it. The table is never full. */
static struct rw_onednn_primitive **find(struct rw_onednn_primitive **table, size_t size,
                                         const struct rw_onednn_signature *s)
{
    size_t i = (size_t)hash(s) & (size - 1);
    while (table[i] && memcmp(&table[i]->signature, s, sizeof *s)) i = (i + 1) & (size - 1);
    return &table[i];
}

/* Doubles the table when it would be more than half full. */
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

dnnl_status_t rw_onednn_make(const struct rw_onednn_primitive *p, dnnl_primitive_desc_t pd, dnnl_primitive_t *ret)
{
    return p->plans_only ? dnnl_success : dnnl_primitive_create(ret, pd);
}

dnnl_status_t rw_onednn_make_fast(struct rw_onednn_primitive *p, dnnl_status_t described, dnnl_primitive_desc_t pd)
{
    if (described == dnnl_unimplemented) return dnnl_success;
    if (described) return described;
    if (rw_onednn_is_named(pd, "ref")) return dnnl_success; /* for verification, not for use */
    const dnnl_status_t status = rw_onednn_desc_copy(&p->operand[SCRATCH],
                                                     dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (status) return status;
    p->fast = true;
    p->bytes = p->kind->bytes(&p->signature);
    return rw_onednn_make(p, pd, &p->primitive);
}

/* Makes a primitive for one thread. oneDNN fixes the number when a primitive is made. */
static rw_status make_for_one_thread(struct rw_onednn_primitive *p,
                                     dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr))
{
    dnnl_primitive_attr_t attr;
    if (!library_has_room(p->kind->bytes(&p->signature))) return RW_ERR_MEMORY;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status) return rw_onednn_status_of(status);
    const int allowed = rw_onednn_threads_enter();
    status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!status) status = make(p, attr);
    rw_onednn_threads_leave(allowed);
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

/* Adds memory objects of the primitive's operands up to that number of threads. */
static rw_status add_slots(struct rw_onednn_primitive *p, size_t threads)
{
    while (p->n_slots < threads) {
        if (!rw_grow(&p->slots, &p->cap_slots, p->n_slots, 1, sizeof *p->slots)) return RW_ERR_MEMORY;
        struct rw_onednn_slot *const s = &p->slots[p->n_slots];
        *s = (struct rw_onednn_slot){ 0 };
        dnnl_status_t status = dnnl_success;
        for (int i = 0; i < p->kind->operands && !status; i++)
            status = dnnl_memory_create(&s->of[i], p->operand[i], p->engine, DNNL_MEMORY_NONE);
        if (status) {
            slot_finish(s);
            return rw_onednn_status_of(status);
        }
        p->n_slots++;
    }
    return RW_OK;
}

/* Adds streams, and memory objects of a primitive, for that many threads. */
static rw_status add_threads(struct rw_onednn_primitive *p, size_t threads)
{
    struct rw_onednn *const o = p->owner;
    if (!p->fast) return RW_OK;
    if (threads > p->threads) p->threads = threads;
    if (p->plans_only) return RW_OK;
    if (o->n_streams >= threads && p->n_slots >= threads) return RW_OK;
    if (!library_has_room(0)) return RW_ERR_MEMORY;
    RW_ONEDNN_TRY(add_streams(o, threads));
    return add_slots(p, threads);
}

struct rw_onednn_primitive *rw_onednn_find(const struct rw_onednn *o, const struct rw_onednn_signature *s)
{
    return o->size ? *find(o->table, o->size, s) : NULL;
}

/* Removes an entry, and moves later entries of the probe sequence up, so that searches still find them. */
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

/* Makes a primitive without a holder and adds it to the table. */
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
    p->plans_only = o->plans_only;
    const rw_status status = kind->fits(s) ? make_for_one_thread(p, kind->make) : RW_OK;
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

/* ---- holders ---- */

/* Releases the primitives of a reference; the idle ones that are now too many are freed. */
static void let_go(struct rw_library_ref *base)
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

struct rw_library_ref *rw_onednn_hold_begin(struct rw_onednn *o)
{
    struct held *const h = rw_calloc(1, sizeof *h);
    if (!h) return NULL;
    *h = (struct held){ .base = { .references = 1, .let_go = let_go }, .owner = o, .number = ++o->clock };
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
    h->base.bytes += p->bytes;
    p->owner->n_idle -= !p->holders++;
    p->held_in = h->number;
    return RW_OK;
}

size_t rw_onednn_size_of(const struct rw_onednn_primitive *p, int operand)
{
    return p->fast ? dnnl_memory_desc_get_size(p->operand[operand]) : 0;
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
        if (!p) continue;
        bytes += sizeof *p + (size_t)p->kind->operands * RW_ONEDNN_DESC_BYTES;
        bytes += p->threads * sizeof *p->slots + p->bytes;
    }
    return bytes;
}

/* ---- execution ---- */

dnnl_status_t rw_onednn_point(dnnl_memory_t m, const void *data)
{
    return dnnl_memory_set_data_handle(m, (void *)(uintptr_t)data);
}

/* The library makes some code at an execution, once per process, whatever primitive is the first to need it. */
static bool may_execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive)
{
    _Atomic bool *const had_room = primitive == p->reorder ? &p->has_reordered : &p->has_run;
    if (atomic_load_explicit(had_room, memory_order_relaxed)) return true;
    const bool has_room = library_has_room(p->bytes);
    if (has_room) atomic_store_explicit(had_room, true, memory_order_relaxed);
    return has_room;
}

/* Runs with one OpenMP thread and with signals blocked. */
rw_status rw_onednn_execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive, int thread,
                            const dnnl_exec_arg_t *args, int n)
{
    if (!may_execute(p, primitive)) return RW_ERR_MEMORY;
    sigset_t signals;
    const int allowed = rw_onednn_threads_enter();
    rw_signals_hold(&signals);
    const dnnl_status_t status = dnnl_primitive_execute(primitive, p->owner->streams[thread], n, args);
    rw_signals_let(&signals);
    rw_onednn_threads_leave(allowed);
    return rw_onednn_status_of(status);
}
