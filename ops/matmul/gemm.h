/*
 * Batches of matrix products, c[i] = a[i] b[i] + bias (+ c[i]): what the kernels of this family share.
 *
 * Five ways. The matrix unit of processors that have one, for large products of bfloat16 (gemm_amx.h). oneDNN for
 * others of bfloat16, and for float32. oneDNN's float32 for large products of a 16-bit type that the processor does not
 * multiply, or no faster than float32: parts of the operands are widened when a tile comes to them (gemm_wide.c). Where
 * the library has no code for AVX-512, packed loops of our own for the largest of float32 and of 16-bit types, in a
 * quarter less time than its code for AVX2 takes (gemm_packed_cpu.c): smaller ones would feel the memory of the parts.
 * Of float32 threads share these, where there are rows for all (gemm_shared.c). A b may be made in
 * strips as these loops have them: out of an image, for the gradient of a convolution's weight (conv_product.c).
 * The library's own loops (gemm_own_tmpl.h) for float64, for very small matrices, where a library call costs more than
 * the product, for few rows of a beside a large b, and for processors that oneDNN has no fast code for. Each way c is
 * cut into tiles by its shape alone, each tile is computed by one thread, and its sums over k are cut by the shape if
 * at all; of the packed loops an element is one chain of sums, whatever tile it is in: the bits do not depend on the
 * number of threads.
 */
#ifndef RW_OPS_MATMUL_GEMM_H
#define RW_OPS_MATMUL_GEMM_H

#include "device/cpu/onednn.h"

#include <rewind/op.h>

#define GEMM_SCRATCH_ALIGN 256

static inline int64_t gemm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t gemm_align(int64_t x, int64_t to)
{
    return gemm_ceil_div(x, to) * to;
}

/* One operand: rows by columns at these strides, and where it starts for each element of the batch. */
struct gemm_operand {
    const void *data;
    const int32_t *picks; /* for gemm_amx.h alone: see there */
    int64_t row, col;
    int64_t batch[RW_MAX_RANK]; /* strides, 0 where it is broadcast */
    int64_t pack_bytes;         /* of a dense copy, when oneDNN cannot take the strides; else 0 */
};

/*
 * An operand that does not lie in memory as a matrix, but is made of something that does, a panel at a time: all the
 * depth of some rows of a, or columns of b. make writes numbers [col, col + n) of a row of what lies there.
 */
struct gemm_source {
    bool turned; /* what lies there is the operand's transpose */
    void (*make)(const void *of, int64_t row, int64_t col, int64_t n, void *to);
    const void *of;
    /* Instead, of b in float32, which goes by the packed loops then: numbers [from, from + depth) along the depth of
       some columns, in strips as these loops have them. */
    void (*strips)(const void *of, int64_t from, int64_t depth, int64_t col, int64_t cols, float *to);
    /* Some of these stand where there is no number, and are 0. Makes what meets them in rows of a, which are packed, 0
       as well: for column col, and as many from it on as are returned. */
    int64_t (*clear)(const void *of, int64_t from, int64_t depth, int64_t col, int64_t rows, float *a);
};

struct gemm {
    rw_dtype dtype; /* of a, b and bias */
    rw_dtype to;    /* of c and the sum: dtype, or float32 over 16 bits */
    int64_t m, n, k;
    struct gemm_operand a, b;
    const void *bias; /* [n], or NULL */
    bool has_bias;
    bool adds;       /* to the sum, before the one rounding */
    const void *sum; /* like c, and may be c */
    void *c;         /* [batch..., m, n], dense but for its rows */
    int64_t c_row;   /* between rows of c and of the sum: n, or more where c is a part of the columns of one matrix */
    bool streams;    /* for gemm_amx.h alone: c, in float32, is written past the caches, of which it is larger */
    bool panels;     /* a and b are made by these, in a batch of one; strides are then those of a panel */
    bool a_lies;     /* but a lies in memory, [m, k], dense */
    struct gemm_source from_a, from_b;
    bool gelu;        /* on CUDA: gelu's tanh form of c is made too */
    void *activation; /* like c */
    int batch_rank;
    int64_t batch[RW_MAX_RANK], n_batch;
};

/* The product of a node: matmul or matmul_add (a, b) or linear... (x, weight[, bias]). data pointers are left NULL. */
void rw_gemm_of_matmul(struct gemm *g, const rw_layout *a, const rw_layout *b, rw_dtype dtype);
void rw_gemm_of_linear(struct gemm *g, const rw_layout *x, const rw_layout *weight, bool bias, rw_dtype dtype);

/* The same of a [m, k] and b [k, n], dense in float32 or 16 bits, which are made panel by panel. */
void rw_gemm_of_panels(struct gemm *g, int64_t m, int64_t n, int64_t k, rw_dtype dtype);

/* An axis of extent 1 may have any stride: give it one that a library takes. */
void rw_gemm_tidy(struct gemm_operand *x, int64_t rows, int64_t cols);

/* The operand is a dense copy from now on: its strides. */
void rw_gemm_describe_dense(const struct gemm *g, struct gemm_operand *x, int64_t rows, int64_t cols);

/* Bytes of workspace that a call's product takes on the CPU. Makes the library's primitives; SIZE_MAX when it can't. */
size_t rw_gemm_workspace_cpu(const rw_op_call *call, const struct gemm *g);

/* Are products of this type of 16 bits done in float32: the processor multiplies it no faster, or not at all? */
bool rw_gemm_widens(rw_dtype dtype);

/* Do products of so many multiplications go by the packed loops here? */
bool rw_gemm_is_packed(const struct gemm *g);

/* What a product takes of the instruction set that runs. */
struct gemm_loops {
    /* The own loops: a tile of c. */
    void (*tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col, int64_t cols);
    /* The same of packed operands, in float32: with room for parts of either and perhaps the sums. */
    void (*packed)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col, int64_t cols,
                   float *room);
    /* Of float32 in parts of b from a number along the depth on: some columns are packed; and sums, some rows by these
       columns, `across` apart, grow by a part of theirs: those of c, or beside it, which become c with the last part.
       With room for a part of a. */
    void (*pack)(const struct gemm *g, int64_t item, int64_t from, int64_t col, int64_t cols, float *to);
    void (*multiply)(const struct gemm *g, int64_t item, int64_t from, int64_t row, int64_t rows, int64_t col,
                     int64_t cols, const float *b, float *sums, int64_t across, float *room);
    /* n numbers of 16 bits, `step` apart, as float32. They may be the second half of what `to` has room for. */
    void (*widen)(rw_dtype dtype, const void *from, int64_t step, int64_t n, float *to);
    /* Sums of a tile, whose rows are `across` apart, become c from element `at` on: bias, addend, one rounding. Not of
       float64. */
    void (*round)(const struct gemm *g, const float *sums, int64_t across, int64_t at, int64_t rows, int64_t col,
                  int64_t cols);
};
extern const struct gemm_loops rw_gemm_loops_base, rw_gemm_loops_v3, rw_gemm_loops_v4;

/* Carries it out. */
rw_status rw_gemm_run(const rw_kernel *k, struct gemm *g, const struct gemm_loops *loops);

/* Where batch element `item` of an operand starts, in elements. */
static inline int64_t rw_gemm_start(const struct gemm *g, const struct gemm_operand *x, int64_t item)
{
    int64_t at = 0;
    for (int axis = g->batch_rank - 1; axis >= 0; axis--) {
        at += item % g->batch[axis] * x->batch[axis];
        item /= g->batch[axis];
    }
    return at;
}

/*
 * Few rows, and a matrix that lies row by row and is too large for a cache: what is left to do is to read it, in parts
 * as long as can be (thin_cpu.c). By shape and strides alone.
 */
#define GEMM_THIN_ROWS 8
#define GEMM_THIN_COLS 1024
bool rw_gemm_is_thin(const struct gemm *g);

/* Few numbers along the depth, and a c that is too large for a cache. */
#define GEMM_THIN_DEPTH 8
bool rw_gemm_is_shallow(const struct gemm *g);

/* What the packed loops hold in registers, and the most of a part of a that is packed at a time. */
#define GEMM_PACKED_STRIP 6
#define GEMM_PACKED_LANES 16
#define GEMM_PACKED_ROWS 48
#define GEMM_PACKED_DEPTH 384

static inline int64_t rw_gemm_packed_depth(const struct gemm *g)
{
    return g->k < GEMM_PACKED_DEPTH ? g->k : GEMM_PACKED_DEPTH;
}

/* The same where threads share parts of b, which then lie in the last cache anyway: the most. Parts are alike, as with
   every one of them all sums come into registers and go back. */
#define GEMM_SHARED_DEPTH 800
#define GEMM_SHARED_EVEN 8 /* numbers along the depth are packed so many at a time */

static inline int64_t rw_gemm_shared_depth(const struct gemm *g)
{
    const int64_t parts = gemm_ceil_div(g->k, GEMM_SHARED_DEPTH);
    return parts > 1 ? gemm_align(gemm_ceil_div(g->k, parts), GEMM_SHARED_EVEN) : g->k;
}

/* Of the part from a number along the depth on. */
static inline int64_t rw_gemm_shared_part(const struct gemm *g, int64_t from)
{
    const int64_t depth = rw_gemm_shared_depth(g);
    return g->k - from < depth ? g->k - from : depth;
}

/* Floats of a part of a in a tile of so many rows, behind which a vector may be written; of a part of b. */
static inline int64_t rw_gemm_packed_a(const struct gemm *g, int64_t rows)
{
    const int64_t some = rows < GEMM_PACKED_ROWS ? gemm_align(rows, GEMM_PACKED_STRIP) : GEMM_PACKED_ROWS;
    return some * rw_gemm_packed_depth(g) + GEMM_PACKED_LANES;
}

static inline int64_t rw_gemm_packed_b(const struct gemm *g, int64_t cols)
{
    return gemm_align(cols, GEMM_PACKED_LANES) * rw_gemm_packed_depth(g);
}

/* Do the sums lie beside them until they become c? Of float32 they grow where c lies, unless something is added. */
static inline bool rw_gemm_packs_sums(const struct gemm *g)
{
    return g->dtype != RW_F32 || g->adds;
}

/* Extents of the own loops' tiles. */
#define GEMM_OWN_M 48
#define GEMM_OWN_N 64
#define GEMM_OWN_DEPTH_BYTES 256

#endif
