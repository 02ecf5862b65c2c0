/*
 * oneDNN for the CPU kernels: matrix products and convolutions, pinned.
 *
 * A primitive is made once per signature (extents, strides, type, bias, sum), when a plan is made, so a run finds what
 * it needs and forward and replay run the same code (law 6): which code that is depends on the signature and the
 * processor alone. It is made for one thread: who wants more cuts the work into units by its shape alone and runs one
 * primitive per unit, so no bit can depend on the number of threads. Only copies of weights are made by several.
 *
 * A plan holds the primitives that it was made with. Of those that no plan holds, the table keeps the RW_ONEDNN_IDLE
 * most recently used ones. oneDNN has a cache of its own beside it, of 1024 entries for the whole process.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_H
#define RW_DEVICE_CPU_ONEDNN_H

#include "device/holding.h"

#include <rewind/status.h>

#define RW_ONEDNN_IDLE 256

struct rw_onednn;
struct rw_onednn_primitive;

/* c [m, n] = a [m, k] b [k, n] + bias [n] (+ c). One stride of a and of b is 1; c's columns are next to each other. */
struct rw_matmul_signature {
    int64_t m, n, k;
    int64_t a_row, a_col;
    int64_t b_row, b_col;
    int64_t c_row;
    int32_t dtype; /* RW_F32, RW_BF16 or RW_F16, of a, b and bias */
    int32_t bias;  /* 0 or 1 */
    int32_t adds;  /* 0 or 1: to what c holds */
    int32_t to;    /* of c: dtype, or RW_F32 */
};

/*
 * One of the three products of a convolution: y from x and a weight, dx from dy and it, or dweight from x and dy.
 * Images are dense and lie channels last. The primitive takes a weight, or gives its gradient, in a layout of its own.
 */
enum rw_onednn_conv { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA, RW_ONEDNN_BACKWARD_WEIGHT };
struct rw_conv_signature {
    int64_t n, h, w, c, oh, ow, oc, kh, kw, groups;
    int64_t stride[2], padding[2], end[2], dilation[2]; /* padding before and behind */
    int32_t kind;  /* rw_onednn_conv */
    int32_t dtype; /* RW_F32 or RW_BF16; a weight's gradient is float32 */
    int32_t bias;  /* 0 or 1, of forward */
    int32_t unused;
};

/* Does the library run its code for AVX-512? DNNL_MAX_CPU_ISA may hold it to less than the processor has. */
bool rw_onednn_takes_avx512(void);

/*
 * The order in which that code sums a row of a float32 product, whose second factor is turned or not, depends on how
 * many rows there are: one, fewer than MANY, more, and MOST or more where the depth is beyond DEPTH. These are the
 * bounds of version 2.6, found by trying all numbers of rows up to 512; tests/ops/companions.c holds them.
 */
#define RW_ONEDNN_MANY_ROWS 16
#define RW_ONEDNN_MOST_ROWS 200
#define RW_ONEDNN_DEPTH 768

rw_status rw_onednn_create(struct rw_onednn **ret);
void rw_onednn_destroy(struct rw_onednn **o);

/* What is prepared from begin to end is held until the holding is released. NULL without memory. */
struct rw_holding *rw_onednn_hold_begin(struct rw_onednn *o);
void rw_onednn_hold_end(struct rw_onednn *o);

/*
 * For planning: makes the primitive of a signature, unless it is there, ready for use by threads 0 .. threads - 1, and
 * holds it. Says whether there is fast code, and how many bytes of scratch memory, aligned to 64, one run takes.
 */
rw_status rw_onednn_matmul_prepare(struct rw_onednn *o, const struct rw_matmul_signature *s, int threads,
                                   bool *ret_fast, size_t *ret_scratch);

/* For a run: what was prepared, NULL for what was not. */
struct rw_onednn_primitive *rw_onednn_matmul_find(const struct rw_onednn *o, const struct rw_matmul_signature *s,
                                               bool *ret_fast, size_t *ret_scratch);

/* The same of a convolution; besides, how many bytes the weight takes in the primitive's own layout, and how many
   filters of its gradient are brought out of that at a time. */
struct rw_conv_needs {
    bool fast;
    size_t scratch, weight;
    int64_t filters;
};
rw_status rw_onednn_conv_prepare(struct rw_onednn *o, const struct rw_conv_signature *s, int threads,
                                 struct rw_conv_needs *ret);
struct rw_onednn_primitive *rw_onednn_conv_find(const struct rw_onednn *o, const struct rw_conv_signature *s,
                                                struct rw_conv_needs *ret);

/* Do both take their weight in the same layout? */
bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q);

/* Runs in the calling thread, which says that it is number `thread`; no two threads may say the same at once. */
rw_status rw_onednn_matmul_run(struct rw_onednn_primitive *p, int thread, const void *a, const void *b,
                               const void *bias, void *c, void *scratch);

/* A convolution: image is x, or dx; result is y or dy; the weight lies in the primitive's own layout. */
rw_status rw_onednn_conv_run(struct rw_onednn_primitive *p, int thread, const void *image, const void *weight,
                             const void *bias, const void *result, void *scratch);

/* Between a dense weight [oc, c / groups, kh, kw] and the primitive's own layout: into it, of forward and backward of
   data, or out of it, of a weight's gradient in float32. */
rw_status rw_onednn_conv_turn_weight(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                     void *scratch);

/* The second of these, of needs.filters alone: the i-th so many. */
rw_status rw_onednn_conv_turn_filters(struct rw_onednn_primitive *p, int thread, int64_t i, const void *from, void *to,
                                      void *scratch);

/* The first of them, by all threads that the primitive was last prepared for. Nobody else may be at work with it. */
rw_status rw_onednn_conv_spread_weight(struct rw_onednn_primitive *p, const void *from, void *to, void *scratch);

/* How many signatures the table knows, and about how many bytes they take: oneDNN does not say what a primitive's code
 * takes, and a fixed number stands for it. */
size_t rw_onednn_count(const struct rw_onednn *o);
size_t rw_onednn_bytes(const struct rw_onednn *o);

#endif
