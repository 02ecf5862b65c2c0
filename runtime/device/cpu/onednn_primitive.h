/*
 * oneDNN's primitives of one device: a table by signature, and who holds them. onednn_matmul.c and onednn_conv.c make
 * and run them; the table knows of neither: it is handed the functions of a primitive's kind.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_PRIMITIVE_H
#define RW_DEVICE_CPU_ONEDNN_PRIMITIVE_H

#include "device/cpu/onednn.h"

#include <oneapi/dnnl/dnnl.h>

#define RW_ONEDNN_TRY(expr)               \
    do {                                  \
        const rw_status status_ = (expr); \
        if (status_) return status_;      \
    } while (0)

/* Memory objects carry the address of their data, so every thread has its own. */
enum { FIRST, SECOND, BIAS, RESULT, SCRATCH, PLAIN, TURNED, OPERANDS };

struct rw_onednn_slot {
    dnnl_memory_t of[OPERANDS];
};

/* What a primitive is found by. Its bytes count: all of them are set. */
enum rw_onednn_which { RW_ONEDNN_MATMUL, RW_ONEDNN_CONVOLUTION };
struct rw_onednn_signature {
    int64_t which;
    union {
        struct rw_matmul_signature matmul;
        struct rw_conv_signature conv;
    } of;
};

/* What the table has to know of a kind of primitives. */
struct rw_onednn_kind {
    int operands; /* the first so many of a slot are in use */
    dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr);
    rw_status (*for_threads)(struct rw_onednn_primitive *p, int threads); /* what else several ask for, or NULL */
};

struct rw_onednn_primitive {
    struct rw_onednn_signature signature;
    const struct rw_onednn_kind *kind;
    struct rw_onednn *owner;
    dnnl_engine_t engine;
    int holders;      /* holdings that it is in */
    uint64_t used;    /* by the clock of the table */
    uint64_t held_in; /* the last holding that it was put in, by its number */
    bool fast;        /* else there is no primitive */
    dnnl_primitive_t primitive;
    bool of_pairs;           /* of a convolution: rw_onednn_copy_pairs() turns its weight; else */
    dnnl_primitive_t turn;   /* its weight from or to a dense one */
    dnnl_primitive_t spread; /* the same by several threads, or NULL */
    int spread_by;
    int64_t filters; /* of a weight's gradient that are turned at a time, all or a few, */
    int64_t step;    /* and elements from the first ones to the next */
    /* Operands: a, b, bias, c of a product; image, weight in the primitive's layout, bias, result of a convolution;
       scratch memory; the dense weight and the other, or what is turned of them at a time. */
    dnnl_memory_desc_t operand[OPERANDS];
    struct rw_onednn_slot *slots;
    size_t n_slots, cap_slots;
};

/* ---- the table ---- */

/* Finds or makes the primitive, ready for threads 0 .. threads - 1, and holds it. */
rw_status rw_onednn_prepare(struct rw_onednn *o, const struct rw_onednn_signature *s, const struct rw_onednn_kind *kind,
                            int threads, struct rw_onednn_primitive **ret);

/* NULL where it was not prepared. */
struct rw_onednn_primitive *rw_onednn_find(const struct rw_onednn *o, const struct rw_onednn_signature *s);

/* Of those that nobody holds the oldest go, but for RW_ONEDNN_IDLE. */
void rw_onednn_forget_idle(struct rw_onednn *o);

/* ---- one primitive ---- */

/* Bytes of an operand; 0 where there is no fast code. */
size_t rw_onednn_size_of(const struct rw_onednn_primitive *p, int operand);

dnnl_data_type_t rw_onednn_type_of(int32_t dtype);

/* The primitive of a description, where there is fast code for it. */
dnnl_status_t rw_onednn_make_fast(struct rw_onednn_primitive *p, const void *desc, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *ret);

/* The number of threads is fixed when a primitive is made. */
rw_status rw_onednn_make_for_threads(struct rw_onednn_primitive *p, int threads,
                                     dnnl_status_t (*make)(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr));

rw_status rw_onednn_status_of(dnnl_status_t s);

/* Says where an operand's data are. */
dnnl_status_t rw_onednn_point(dnnl_memory_t m, const void *data);

/* Is this a layout that rw_onednn_copy_pairs() copies a dense weight to, faster than the library? onednn_pairs.c. */
bool rw_onednn_is_of_pairs(const dnnl_memory_desc_t *d);
void rw_onednn_copy_pairs(const dnnl_memory_desc_t *d, const void *from, int threads, void *to);

/* Runs a primitive of p, or one of its copies. */
rw_status rw_onednn_execute(struct rw_onednn_primitive *p, dnnl_primitive_t primitive, int thread,
                            const dnnl_exec_arg_t *args, int n);

#endif
