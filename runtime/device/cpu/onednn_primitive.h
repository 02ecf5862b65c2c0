/*
 * The table of oneDNN primitives of one device, by signature, with their holders. onednn_matmul.c and onednn_conv.c
 * make and run the primitives; the table calls them through the functions of a kind.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_PRIMITIVE_H
#define RW_DEVICE_CPU_ONEDNN_PRIMITIVE_H

#include "device/cpu/onednn.h"
#include "device/cpu/onednn_api.h"

#include <stdatomic.h>

#define RW_ONEDNN_TRY(expr)               \
    do {                                  \
        const rw_status status_ = (expr); \
        if (status_) return status_;      \
    } while (0)

/* Operands of a primitive. Memory objects contain the address of their data, so every thread has its own. */
enum { FIRST, SECOND, BIAS, RESULT, SCRATCH, PLAIN, REORDERED, OPERANDS };

struct rw_onednn_slot {
    dnnl_memory_t of[OPERANDS];
};

/* The key of a primitive. Keys are compared by bytes, so all of them are set. */
enum rw_onednn_which { RW_ONEDNN_MATMUL, RW_ONEDNN_CONVOLUTION };
struct rw_onednn_signature {
    int64_t which;
    union {
        struct rw_matmul_signature matmul;
        struct rw_conv_signature conv;
    } of;
};

/* What the table needs to know about a kind of primitive. */
struct rw_onednn_kind {
    int operands; /* number of slot entries in use */
    bool (*fits)(const struct rw_onednn_signature *s);    /* within the library's types and RW_ONEDNN_BYTES_MAX? */
    size_t (*bytes)(const struct rw_onednn_signature *s); /* maximum that the library uses for it */
    dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr);
};

/* A dense weight [filters, channels, taps] that is converted to a layout of pairs of channels in blocks of filters
   (onednn_bf16_weight_reorder.c). block: 0 if it is not. */
struct rw_onednn_pairs {
    int64_t filters, channels, taps, block;
};

struct rw_onednn_primitive {
    struct rw_onednn_signature signature;
    const struct rw_onednn_kind *kind;
    struct rw_onednn *owner;
    dnnl_engine_t engine;
    int holders;      /* number of library references that hold it */
    uint64_t used;    /* time of last use, by the clock of the table */
    uint64_t held_in; /* number of the last reference that it was added to */
    bool plans_only;  /* its owner's: there is no primitive, only its needs */
    bool fast;        /* otherwise there is no primitive */
    size_t bytes;     /* that the library uses for it */
    size_t threads;   /* that it was prepared for */
    dnnl_primitive_t primitive;
    struct rw_onednn_pairs pairs; /* of a convolution: rw_onednn_copy_pairs() converts its weight; otherwise */
    dnnl_primitive_t reorder; /* converts some filters of it from or to dense ones */
    int64_t filters;          /* that are converted at a time, all or a few, */
    int64_t step;             /* and the elements of the layout from one group to the next */
    _Atomic bool has_run, has_reordered; /* its first executions, of the primitive and of the conversion, had room */
    /* Operands: a, b, bias, c of a product; image, weight in the primitive's layout, bias, result of a convolution.
       Then scratch memory, the dense weight and the converted one, or the parts of them that are converted at a
       time. */
    rw_onednn_desc operand[OPERANDS];
    struct rw_onednn_slot *slots;
    size_t n_slots, cap_slots;
};

/* ---- the table ---- */

/* Finds or makes the primitive for threads 0 .. threads - 1, and holds it. */
rw_status rw_onednn_prepare(struct rw_onednn *o, const struct rw_onednn_signature *s, const struct rw_onednn_kind *kind,
                            int threads, struct rw_onednn_primitive **ret);

/* NULL if it was not prepared. */
struct rw_onednn_primitive *rw_onednn_find(const struct rw_onednn *o, const struct rw_onednn_signature *s);

/* Frees the least recently used primitives without a holder, except for RW_ONEDNN_IDLE. */
void rw_onednn_forget_idle(struct rw_onednn *o);

/* ---- one primitive ---- */

/* Maximum resident memory of a primitive with fast code whose size does not depend on its shape. */
#define RW_ONEDNN_PRIMITIVE_BYTES ((size_t)64 << 10)

/*
 * Do the numbers fit? The library takes 64 bits but counts in 32, so every extent, stride and product that it gets is
 * checked here. Some of its kernels count bytes, up to 8 per number.
 */
bool rw_onednn_counts(const int64_t *numbers, int n);
bool rw_onednn_counts_bytes(const int64_t *extents, int n);

/* Bytes of an operand; 0 if there is no fast code. */
size_t rw_onednn_size_of(const struct rw_onednn_primitive *p, int operand);

dnnl_data_type_t rw_onednn_type_of(int32_t dtype);

/* Makes *ret from its description, unless the owner only plans. */
dnnl_status_t rw_onednn_make(const struct rw_onednn_primitive *p, dnnl_primitive_desc_t pd, dnnl_primitive_t *ret);

/* Makes the primitive of a description if there is fast code for it; `described` is the status of describing it. */
dnnl_status_t rw_onednn_make_fast(struct rw_onednn_primitive *p, dnnl_status_t described, dnnl_primitive_desc_t pd);

rw_status rw_onednn_status_of(dnnl_status_t s);

/* Sets the address of an operand's data. */
dnnl_status_t rw_onednn_point(dnnl_memory_t m, const void *data);

/* How rw_onednn_copy_pairs() converts a dense weight to this layout, if it is faster than the library. */
struct rw_onednn_pairs rw_onednn_pairs_of(rw_onednn_const_desc d);
void rw_onednn_copy_pairs(const struct rw_onednn_pairs *p, const void *from, int threads, void *to);

/* Runs a primitive of p, or one of its conversions. */
rw_status rw_onednn_execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive, int thread,
                            const dnnl_exec_arg_t *args, int n);

#endif
