/*
 * oneDNN for the CPU kernels: pinned matrix products and convolutions.
 *
 * A primitive is made once per signature (extents, strides, type, bias, sum), when a plan is made. So a run finds what
 * it needs, and forward and replay run the same code (law 6): the code depends only on the signature and the processor.
 * A primitive is made for one thread. For more threads the caller divides the work by its shape only, and runs one
 * primitive per unit, so no bit depends on the number of threads. Only copies of weights use several threads.
 *
 * A plan holds the primitives that it needs. Of those that no plan holds, the table keeps the RW_ONEDNN_IDLE most
 * recently used ones. oneDNN also has its own cache, of 1024 entries per process.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_H
#define RW_DEVICE_CPU_ONEDNN_H

#include "device/library_object_refs.h"

#include <rewind/status.h>

#define RW_ONEDNN_IDLE 256

struct rw_onednn;
struct rw_onednn_primitive;

/* c [m, n] = a [m, k] b [k, n] + bias [n] (+ c). One stride of a and one of b is 1; the columns of c are contiguous. */
struct rw_matmul_signature {
    int64_t m, n, k;
    int64_t a_row, a_col;
    int64_t b_row, b_col;
    int64_t c_row;
    int32_t dtype; /* RW_F32, RW_BF16 or RW_F16, of a, b and bias */
    int32_t bias;  /* 0 or 1 */
    int32_t adds;  /* 0 or 1: adds to the contents of c */
    int32_t to;    /* of c: dtype, or RW_F32 */
};

/*
 * One of the three products of a convolution: y from x and a weight, dx from dy and the weight, or dweight from x and
 * dy. Images are dense, with channels last. The primitive has its own layout for the weight, or for its gradient.
 */
enum rw_onednn_conv { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA, RW_ONEDNN_BACKWARD_WEIGHT };
struct rw_conv_signature {
    int64_t n, h, w, c, oh, ow, oc, kh, kw, groups;
    int64_t stride[2], padding[2], end[2], dilation[2]; /* padding before and after */
    int32_t kind;  /* rw_onednn_conv */
    int32_t dtype; /* RW_F32 or RW_BF16; a weight's gradient is float32 */
    int32_t bias;  /* 0 or 1, of forward */
    int32_t unused;
};

/* Is the library in this build? Otherwise (-Donednn=disabled) these functions are those of onednn_absent.c: there is no
   fast code for any signature, and no primitive to run. */
bool rw_onednn_is_present(void);

/* Does the library use its AVX-512 or AMX code? DNNL_MAX_CPU_ISA may limit it to less than the processor has. */
bool rw_onednn_takes_avx512(void);
bool rw_onednn_takes_amx(void);

/*
 * The order in which that code sums a row of a float32 product depends on the number of rows: one, fewer than MANY,
 * more, and MAX or more if the depth is above DEPTH. This holds whether the second factor is transposed or not. These
 * are the limits of version 2.6, found by trying all numbers of rows up to 512; tests/ops/row_independence.c checks
 * them.
 */
#define RW_ONEDNN_MANY_ROWS 16
#define RW_ONEDNN_ROWS_MAX 200
#define RW_ONEDNN_DEPTH 768

/* plans_only: primitives are described and counted, but not made, and none can run. */
rw_status rw_onednn_create(bool plans_only, struct rw_onednn **ret);
void rw_onednn_destroy(struct rw_onednn **o);

/* Primitives that are prepared between begin and end are held until the reference is released. NULL without memory. */
struct rw_library_ref *rw_onednn_hold_begin(struct rw_onednn *o);
void rw_onednn_hold_end(struct rw_onednn *o);

/*
 * For planning: makes the primitive of a signature, unless it exists, for use by threads 0 .. threads - 1, and holds
 * it. Returns whether there is fast code, and the bytes of scratch memory for one run, aligned to 64. There is none for
 * a signature with a number outside of the library's types (rw_onednn_counts()).
 */
rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch);

/* For a run: the prepared primitive, NULL if there is none. */
struct rw_onednn_primitive *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                               bool *ret_fast, size_t *ret_scratch);

/* The same for a convolution. Also returns the bytes of the weight in the primitive's own layout, and the number of
   filters of its gradient that are converted at a time. */
struct rw_conv_needs {
    bool fast;
    size_t scratch, weight;
    int64_t filters;
};
rw_status rw_onednn_conv_prepare(struct rw_onednn *o, const struct rw_conv_signature *s, int threads,
                                 struct rw_conv_needs *ret);
struct rw_onednn_primitive *rw_onednn_conv_find(const struct rw_onednn *o, const struct rw_conv_signature *s,
                                                struct rw_conv_needs *ret);

/*
 * An upper bound of the memory that the library uses for a convolution but does not report: code and tables, which in
 * some of its kernels grow with the length of a row. There is no fast code above RW_ONEDNN_BYTES_MAX.
 */
#define RW_ONEDNN_BYTES_MAX ((size_t)6 << 20)
size_t rw_onednn_conv_bytes(const struct rw_conv_signature *s);

/* Do both use one layout for the weight? */
bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q);

/* Runs in the calling thread, as number `thread`; no two threads may use one number at a time. */
rw_status rw_onednn_matmul_run(struct rw_onednn_primitive *p, int thread, const void *a, const void *b,
                               const void *bias, void *c, void *scratch);

/* Runs a convolution. image is x or dx; result is y or dy; the weight is in the primitive's own layout. */
rw_status rw_onednn_conv_run(struct rw_onednn_primitive *p, int thread, const void *image, const void *weight,
                             const void *bias, const void *result, void *scratch);

/* Converts a dense weight [oc, c / groups, kh, kw] to the primitive's own layout, for forward and backward of data.
   Uses that many threads of the team, at most as many as it was prepared for; each has `each` bytes of the scratch
   memory. No other thread may use the primitive meanwhile. */
rw_status rw_onednn_conv_reorder_weight(struct rw_onednn_primitive *p, int threads, const void *from, void *to,
                                        char *scratch, size_t each);

/* Converts a weight's gradient, float32, from that layout: all of it, or the i-th group of needs.filters filters. */
rw_status rw_onednn_conv_reorder_gradient(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                          void *scratch);
rw_status rw_onednn_conv_reorder_filters(struct rw_onednn_primitive *p, int thread, int64_t i, const void *from,
                                         void *to, void *scratch);

/* The number of signatures in the table, and the bytes of their primitives, or what they would take if none is made. An
   upper bound, because oneDNN does not report it. */
size_t rw_onednn_count(const struct rw_onednn *o);
size_t rw_onednn_bytes(const struct rw_onednn *o);

#endif
