/* CPU kernels of convolutions: the plain loops of this instruction set, and the entry to oneDNN (conv_onednn.c). */
#include "device/cpu/isa.h"
#include "ops/conv/conv_run.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/matmul/gemm_descriptor.h"

#define OWN_LOOPS "ops/conv/conv_plain_loops_tmpl.h"
#include "ops/matmul/instantiate_float_double_tmpl.h"

/* Calls the loops of each type, with the type as a constant. */
#define TYPED(call_f, call_d)                     \
    switch (c->dtype) {                           \
    case RW_F32: call_f(RW_F32); return;          \
    case RW_BF16: call_f(RW_BF16); return;        \
    case RW_F16: call_f(RW_F16); return;          \
    default: call_d(RW_F64); return;              \
    }

static void depthwise_unit(const struct rw_conv *c, enum rw_conv_kind kind, const struct conv_operands *o, int64_t unit)
{
    const int64_t lanes = c->dtype == RW_F64 ? VD_LANES : VF_LANES, sides = (c->c + lanes - 1) / lanes;
    const int64_t first = unit % sides * lanes, image = unit / sides, n = c->c - first < lanes ? c->c - first : lanes;
#define F32(type) vf_depthwise_weights(c, type, o, first, n)
#define F64(type) vd_depthwise_weights(c, type, o, first, n)
    if (kind == RW_CONV_WEIGHT) TYPED(F32, F64)
#undef F32
#undef F64
#define F32(type) vf_depthwise(c, type, kind == RW_CONV_DATA, o, image, first, n)
#define F64(type) vd_depthwise(c, type, kind == RW_CONV_DATA, o, image, first, n)
    TYPED(F32, F64)
#undef F32
#undef F64
}

/* Rows and columns of a group's product: pixels and channels, or filters and (tap, channel). */
static void extents(const struct rw_conv *c, enum rw_conv_kind kind, int64_t *rows, int64_t *cols)
{
    *rows = kind == RW_CONV_WEIGHT ? c->ocg : kind == RW_CONV_DATA ? c->n * c->h * c->w : c->n * c->oh * c->ow;
    *cols = kind == RW_CONV_WEIGHT ? c->cg * c->kh * c->kw : kind == RW_CONV_DATA ? c->cg : c->ocg;
}

/* Computes one block of one group's product with the plain loops. */
static void block_unit(const struct rw_conv *c, enum rw_conv_kind kind, const struct conv_operands *o, int64_t unit)
{
    int64_t rows, cols;
    extents(c, kind, &rows, &cols);
    const int64_t down = gemm_ceil_div(rows, GEMM_OWN_M), across = gemm_ceil_div(cols, GEMM_OWN_N);
    const int64_t row = unit / across % down * GEMM_OWN_M, col = unit % across * GEMM_OWN_N;
    const int64_t n_rows = rows - row < GEMM_OWN_M ? rows - row : GEMM_OWN_M;
    const int64_t n_cols = cols - col < GEMM_OWN_N ? cols - col : GEMM_OWN_N;
    const struct vf_part f = { unit / across / down, row, n_rows, col, n_cols };
    const struct vd_part d = { unit / across / down, row, n_rows, col, n_cols };
#define F32(type) vf_weights(c, type, o, &f)
#define F64(type) vd_weights(c, type, o, &d)
    if (kind == RW_CONV_WEIGHT) TYPED(F32, F64)
#undef F32
#undef F64
#define F32(type) vf_pixels(c, type, kind == RW_CONV_DATA, o, &f)
#define F64(type) vd_pixels(c, type, kind == RW_CONV_DATA, o, &d)
    TYPED(F32, F64)
#undef F32
#undef F64
}

struct units {
    enum rw_conv_kind kind;
    const struct rw_conv *c;
    const struct conv_operands *o;
    bool depthwise;
};

static rw_status run_unit(const void *of, int64_t i, int thread)
{
    const struct units *const u = of;
    if (u->depthwise) depthwise_unit(u->c, u->kind, u->o, i);
    else block_unit(u->c, u->kind, u->o, i);
    return RW_OK;
}

static void run_own(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c, const struct conv_operands *o)
{
    const bool depthwise = rw_conv_is_depthwise(c);
    const int64_t lanes = c->dtype == RW_F64 ? VD_LANES : VF_LANES;
    int64_t rows, cols;
    extents(c, kind, &rows, &cols);
    const int64_t units = depthwise ? gemm_ceil_div(c->c, lanes) * (kind == RW_CONV_WEIGHT ? 1 : c->n)
                                    : gemm_ceil_div(rows, GEMM_OWN_M) * gemm_ceil_div(cols, GEMM_OWN_N) * c->groups;
    const int threads = rw_conv_products(c) >= RW_CONV_PARALLEL_FROM ? k->threads : 1;
    rw_shares_run(threads, units, run_unit, &(struct units){ kind, c, o, depthwise });
}

static struct conv_operands operands_of(const rw_kernel *k, enum rw_conv_kind kind)
{
    const struct rw_conv_attrs *const a = k->attrs;
    const struct rw_conv_inputs at = rw_conv_inputs_of(a);
    const void *const third = rw_kernel_has(k, at.third) ? k->in[at.third].data : NULL;
    return (struct conv_operands){ .x = a->more ? NULL : k->in[at.first].data,
                                   .y = k->in[at.other].data,
                                   .piece = &k->in[at.first],
                                   .pieces = a->more ? a->more + 1 : 0,
                                   .bias = kind == RW_CONV_FORWARD ? third : NULL,
                                   .sum = kind == RW_CONV_WEIGHT ? third : NULL,
                                   .to = k->out[0].data };
}

/* Concatenates a virtually concatenated x at the start of the workspace, and removes that memory from the workspace of
   k. */
static rw_status make_whole(rw_kernel *k, const struct rw_conv *c, struct conv_operands *o)
{
    if (!o->pieces) return RW_OK;
    const size_t bytes = rw_conv_packed_bytes(c, c->n * c->h * c->w);
    if (k->workspace_bytes < bytes) return RW_ERR_MEMORY;
    rw_conv_pack_all(c, o, rw_conv_products(c) < RW_CONV_PARALLEL_FROM ? 1 : k->threads, k->workspace);
    o->x = k->workspace;
    o->pieces = 0;
    k->workspace = (char *)k->workspace + bytes;
    k->workspace_bytes -= bytes;
    return RW_OK;
}

/* Rotates the weight into memory at the start of the workspace, in the same way. */
static rw_status rotate(rw_kernel *k, struct rw_conv *c, struct conv_operands *o)
{
    const size_t bytes = rw_conv_rotated_bytes(c);
    if (k->workspace_bytes < bytes) return RW_ERR_MEMORY;
    rw_conv_rotate(c, o->y, k->threads, k->workspace);
    *c = rw_conv_rotated(c);
    o->y = k->workspace;
    k->workspace = (char *)k->workspace + bytes;
    k->workspace_bytes -= bytes;
    return RW_OK;
}

/* Runs a convolution: in strips, as a product, with oneDNN, or with the plain loops. A rotated dx runs as a forward. */
static rw_status run(const rw_kernel *kernel, enum rw_conv_kind kind)
{
    rw_kernel k = *kernel;
    struct rw_conv c = rw_conv_of_kernel(&k, kind);
    struct conv_operands o = operands_of(&k, kind);
    if (!k.out[0].layout->numel) return RW_OK;
    if (rw_conv_rotates(&c, kind)) {
        RW_CHECK(rotate(&k, &c, &o));
        kind = RW_CONV_FORWARD;
    }
    if (rw_conv_is_in_strips(&c, kind)) return rw_conv_run_strips(&k, &c, &o, &RW_ISA_NAME(rw_gemm_loops));
    if (rw_conv_is_product(&c, kind)) {
        RW_CHECK(make_whole(&k, &c, &o));
        return rw_conv_run_product(&k, kind, &c, &o, &RW_ISA_NAME(rw_gemm_loops));
    }
    bool done = false;
    RW_CHECK(rw_conv_run_library(&k, kind, &c, &o, &RW_ISA_NAME(rw_gemm_loops), &done));
    if (done) return RW_OK;
    RW_CHECK(make_whole(&k, &c, &o));
    run_own(&k, kind, &c, &o);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_conv2d_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_conv2d_cpu)(const rw_kernel *k)
{
    return run(k, RW_CONV_FORWARD);
}

rw_status RW_ISA_NAME(rw_conv2d_data_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_conv2d_data_cpu)(const rw_kernel *k)
{
    return run(k, RW_CONV_DATA);
}

rw_status RW_ISA_NAME(rw_conv2d_weight_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_conv2d_weight_cpu)(const rw_kernel *k)
{
    return run(k, RW_CONV_WEIGHT);
}
