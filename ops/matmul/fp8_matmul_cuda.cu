/*
 * Products of 8-bit quantized operands on CUDA: by cuBLASLt's FP8 kernels if there is one for the product. Otherwise
 * both factors are decoded to bfloat16 in the workspace and multiplied there. The choice depends on the device, types
 * and shapes alone.
 */
/* FP8 data, 16 per thread on either side, through shared memory. */
/* machine_code.py: stream transpose_kernel */
#include "device/cuda/blaslt.h"
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/float8/quantize.h"
#include "ops/matmul/fp8_matmul.h"

rw_status rw_dequantize_cuda(const rw_kernel *k);
rw_status rw_linear_cuda(const rw_kernel *k);
rw_status rw_matmul_cuda(const rw_kernel *k);
rw_status rw_matmul_add_cuda(const rw_kernel *k);
size_t rw_linear_workspace_cuda(const rw_op_call *call);
size_t rw_matmul_workspace_cuda(const rw_op_call *call);
}

namespace {

constexpr int FIRST_CAPABILITY = 89; /* 8.9, the first with FP8 tensor cores */
constexpr int64_t UNIT = 16;         /* extents, row lengths and addresses must be multiples of this number of bytes */
constexpr int TILE = 64, THREADS = 256;

size_t aligned(int64_t bytes)
{
    return static_cast<size_t>((bytes + 255) / 256 * 256);
}

/* ---- FP8 kernels of the library ---- */

/* The library requires k to be contiguous in both factors: other factors are transposed into the workspace. Factors at
   an unaligned address are copied there. Otherwise the library might select another algorithm by their alignment, and
   the results would depend on the address (law 1). */
enum reading { IN_PLACE, AS_STORED, TRANSPOSED };

struct by_codes {
    bool has;
    reading a, b;
    bool copies_bias;
    rw_blaslt_product product;
    size_t a_bytes, b_bytes, bias_bytes, library_bytes;

    size_t workspace() const { return a_bytes + b_bytes + bias_bytes + library_bytes; }
};

bool begins_aligned(const rw_operand_desc &x)
{
    return x.layout->offset * static_cast<int64_t>(rw_dtype_size(x.dtype)) % UNIT == 0;
}

reading reading_of(const rw_operand_desc &x, bool transposed)
{
    return transposed ? TRANSPOSED : begins_aligned(x) ? IN_PLACE : AS_STORED;
}

/* Block scales are excluded. The library's 1x128 scales run along the other axis, and it supports neither two factors
   with 128x128 scales nor the transposed data of a gradient. */
bool may_be(const rw_cuda *cuda, const rw_codes_product_attrs *p, const rw_operand_desc *in, const rw_codes_extents &e)
{
    if (cuda->capability < FIRST_CAPABILITY) return false;
    if (p->a_scaling != RW_SCALING_TENSOR || p->b_scaling != RW_SCALING_TENSOR) return false;
    if (in[RW_CODES_A].dtype == RW_F8_E5M2 && in[RW_CODES_B].dtype == RW_F8_E5M2) return false;
    return e.m && e.n && e.k && e.m % UNIT == 0 && e.n % UNIT == 0 && e.k % UNIT == 0;
}

/* bias: NULL if there is none. */
rw_status plan_codes(const rw_cuda *cuda, const rw_codes_product_attrs *p, const rw_operand_desc *in,
                     const rw_operand_desc *bias, bool adds, rw_dtype to, by_codes *c)
{
    const rw_codes_extents e = rw_codes_extents_of(p, in[RW_CODES_A].layout, in[RW_CODES_B].layout);
    *c = {};
    if (!may_be(cuda, p, in, e)) return RW_OK;
    rw_blaslt_product *const q = &c->product;
    q->m = e.m, q->n = e.n, q->k = e.k;
    q->a_row = e.k, q->a_col = 1;
    q->b_row = 1, q->b_col = e.k;
    q->c_row = e.n;
    q->batch = 1;
    q->a_align = q->b_align = q->c_align = UNIT;
    q->dtype = in[RW_CODES_A].dtype;
    q->b_codes = in[RW_CODES_B].dtype;
    q->to = to;
    q->adds = adds;
    q->bias = bias != nullptr;
    q->bias_align = bias ? static_cast<int32_t>(UNIT) : 0;
    c->a = reading_of(in[RW_CODES_A], p->a_transposed != 0);
    c->b = reading_of(in[RW_CODES_B], p->b_transposed == 0);
    c->copies_bias = bias && !begins_aligned(*bias);
    c->a_bytes = c->a == IN_PLACE ? 0 : aligned(e.m * e.k);
    c->b_bytes = c->b == IN_PLACE ? 0 : aligned(e.n * e.k);
    c->bias_bytes = c->copies_bias ? aligned(e.n * static_cast<int64_t>(sizeof(uint16_t))) : 0;
    return rw_blaslt_query(cuda->blaslt, q, &c->has, &c->library_bytes);
}

/*
 * Uses FP8 kernels only if the library has an algorithm both with and without the addend. The addend of a weight's
 * gradient is absent in the first micro-batch, which must be computed the same way as the others.
 */
rw_status plan_with_and_without(const rw_cuda *cuda, const rw_codes_product_attrs *p, const rw_operand_desc *in,
                                bool adds, rw_dtype to, by_codes *c)
{
    by_codes other;
    rw_status status = plan_codes(cuda, p, in, nullptr, adds, to, c);
    if (!status && c->has) {
        status = plan_codes(cuda, p, in, nullptr, !adds, to, &other);
        c->has = other.has;
    }
    return status;
}

struct alignas(16) chunk {
    uint32_t word[4];
};

/* Transposes a matrix of bytes whose extents are multiples of 16; a block of threads transposes TILE by TILE. */
__global__ void __launch_bounds__(THREADS) transpose_kernel(const uint8_t *from, uint8_t *to, int64_t rows,
                                                            int64_t cols)
{
    constexpr int WORDS = TILE / 4, CHUNKS = TILE / 16;
    __shared__ uint32_t tile[TILE][WORDS + 1];
    const int64_t across = (cols + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, col = blockIdx.x % across * TILE;
    const int line = static_cast<int>(threadIdx.x) / CHUNKS, part = static_cast<int>(threadIdx.x) % CHUNKS;
    if (row + line < rows && col + part * 16 < cols) {
        const chunk x = *reinterpret_cast<const chunk *>(from + (row + line) * cols + col + part * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) tile[line][part * 4 + i] = x.word[i];
    }
    __syncthreads();
    if (col + line >= cols || row + part * 16 >= rows) return;
    chunk y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y.word[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            y.word[i] |= (tile[part * 16 + i * 4 + j][line / 4] >> (line % 4 * 8) & 255u) << (j * 8);
    }
    *reinterpret_cast<chunk *>(to + (col + line) * rows + row + part * 16) = y;
}

const void *copied(const rw_kernel *k, const rw_view &x, void *to)
{
    const size_t bytes = static_cast<size_t>(x.layout->numel) * rw_dtype_size(x.dtype);
    cudaMemcpyAsync(to, x.data, bytes, cudaMemcpyDeviceToDevice, rw_stream(k));
    return to; /* rw_cuda_launched() reports a failure */
}

/* The factor in the form that the library reads. */
const void *factor(const rw_kernel *k, const rw_view &x, reading how, void *to)
{
    if (how == IN_PLACE) return x.data;
    if (how == AS_STORED) return copied(k, x, to);
    const rw_layout l = rw_codes_rows(x.layout);
    const int64_t blocks = (l.dim[0] + TILE - 1) / TILE * ((l.dim[1] + TILE - 1) / TILE);
    const uint8_t *const from = static_cast<const uint8_t *>(x.data);
    uint8_t *const into = static_cast<uint8_t *>(to);
    RW_LAUNCH(transpose_kernel, static_cast<unsigned>(blocks), THREADS, 0, k, from, into, l.dim[0], l.dim[1]);
    return to;
}

/* Prepares both factors and runs the library's FP8 product. */
rw_status run_codes(const rw_kernel *k, const by_codes &c)
{
    char *const for_a = static_cast<char *>(k->workspace), *const for_b = for_a + c.a_bytes;
    char *const for_bias = for_b + c.b_bytes, *const scratch = for_bias + c.bias_bytes;
    rw_blaslt_operands x = {};
    if (k->workspace_bytes < c.workspace()) return RW_ERR_MEMORY;
    x.a = factor(k, k->in[RW_CODES_A], c.a, for_a);
    x.b = factor(k, k->in[RW_CODES_B], c.b, for_b);
    x.a_scale = static_cast<const float *>(k->in[RW_CODES_A_SCALE].data);
    x.b_scale = static_cast<const float *>(k->in[RW_CODES_B_SCALE].data);
    x.c = k->out[0].data;
    const rw_view *const more = &k->in[RW_CODES_MORE];
    if (c.product.bias) x.bias = c.copies_bias ? copied(k, *more, for_bias) : more->data;
    const bool here = c.product.adds && begins_aligned({ more->dtype, more->layout });
    if (c.product.adds) x.sum = here ? more->data : copied(k, *more, x.c);
    const rw_status status = rw_blaslt_run(static_cast<const rw_cuda *>(k->device)->blaslt, &c.product, &x, scratch,
                                           c.library_bytes);
    return status ? status : rw_cuda_launched(k);
}

/* ---- decoded to bfloat16 ---- */

size_t decoded_bytes(const rw_layout *codes)
{
    return aligned(codes->numel * static_cast<int64_t>(sizeof(uint16_t)));
}

/* The layouts of the decoded factors as rw_linear() or rw_matmul() expects them. rw_linear() transposes the second
   factor itself. */
struct factors {
    rw_layout a, b;
    size_t a_bytes, b_bytes;
};

factors factors_of(const rw_codes_product_attrs *p, const rw_layout *a, const rw_layout *b, bool linear)
{
    return { rw_codes_factor(a, p->a_transposed != 0), rw_codes_factor(b, p->b_transposed != 0 && !linear),
             decoded_bytes(a), decoded_bytes(b) };
}

size_t workspace_of_decoded(const rw_op_call *call, bool linear)
{
    const factors f = factors_of(static_cast<const rw_codes_product_attrs *>(call->attrs),
                                 call->in[RW_CODES_A].layout, call->in[RW_CODES_B].layout, linear);
    const bool more = call->n_inputs > RW_CODES_MORE;
    rw_operand_desc in[3] = { { RW_BF16, &f.a }, { RW_BF16, &f.b } };
    if (more && linear) in[2] = call->in[RW_CODES_MORE];
    if (more && !linear) in[2] = in[1], in[1] = in[0], in[0] = call->in[RW_CODES_MORE];
    rw_op_call product = *call;
    product.in = in;
    product.n_inputs = more ? 3 : 2;
    const size_t bytes = linear ? rw_linear_workspace_cuda(&product) : rw_matmul_workspace_cuda(&product);
    return bytes == SIZE_MAX ? bytes : f.a_bytes + f.b_bytes + bytes;
}

/* The addend may be absent at run time: reserves workspace for either case. */
size_t workspace_of(const rw_op_call *call, bool linear)
{
    const rw_codes_product_attrs *const p = static_cast<const rw_codes_product_attrs *>(call->attrs);
    const rw_cuda *const cuda = static_cast<const rw_cuda *>(call->device);
    const rw_dtype to = call->out[0].dtype;
    const bool more = call->n_inputs > RW_CODES_MORE;
    by_codes c, sum = {};
    rw_status status;
    if (linear || !more) {
        status = plan_codes(cuda, p, call->in, more ? &call->in[RW_CODES_MORE] : nullptr, false, to, &c);
    } else {
        status = plan_with_and_without(cuda, p, call->in, false, to, &c);
        if (!status && c.has) status = plan_codes(cuda, p, call->in, nullptr, true, to, &sum);
    }
    if (status) return SIZE_MAX;
    if (!c.has) return workspace_of_decoded(call, linear);
    return sum.workspace() > c.workspace() ? sum.workspace() : c.workspace();
}

rw_status decode(const rw_kernel *k, int of, int64_t scaling, void *to)
{
    const rw_quantize_attrs attrs = { RW_BF16, scaling, 0 };
    const rw_view y = { to, k->in[of].layout, RW_BF16 };
    rw_kernel own = *k;
    own.attrs = &attrs;
    own.in = &k->in[of];
    own.out = &y;
    own.n_inputs = 2;
    return rw_dequantize_cuda(&own);
}

/* Decodes both factors to bfloat16 and multiplies them. */
rw_status run_decoded(const rw_kernel *k, bool linear)
{
    const rw_codes_product_attrs *const p = static_cast<const rw_codes_product_attrs *>(k->attrs);
    const factors f = factors_of(p, k->in[RW_CODES_A].layout, k->in[RW_CODES_B].layout, linear);
    char *const a = static_cast<char *>(k->workspace), *const b = a + f.a_bytes;
    if (k->workspace_bytes < f.a_bytes + f.b_bytes) return RW_ERR_MEMORY;
    rw_status status = decode(k, RW_CODES_A, p->a_scaling, a);
    if (!status) status = decode(k, RW_CODES_B, p->b_scaling, b);
    if (status) return status;
    const bool more = k->n_inputs > RW_CODES_MORE;
    rw_view in[3] = { { a, &f.a, RW_BF16 }, { b, &f.b, RW_BF16 }, {} };
    if (more && linear) in[2] = k->in[RW_CODES_MORE];
    if (more && !linear) in[2] = in[1], in[1] = in[0], in[0] = k->in[RW_CODES_MORE];
    rw_kernel product = *k;
    product.in = in;
    product.n_inputs = more ? 3 : 2;
    product.workspace = b + f.b_bytes;
    product.workspace_bytes = k->workspace_bytes - f.a_bytes - f.b_bytes;
    return linear ? rw_linear_cuda(&product) : more ? rw_matmul_add_cuda(&product) : rw_matmul_cuda(&product);
}

/* Selects FP8 kernels or decoding, and runs the product. */
rw_status run(const rw_kernel *k, bool linear)
{
    const rw_codes_product_attrs *const p = static_cast<const rw_codes_product_attrs *>(k->attrs);
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    const bool has_more = rw_kernel_has(k, RW_CODES_MORE);
    rw_operand_desc in[RW_CODES_MORE + 1] = {};
    by_codes c;
    for (int i = 0; i < k->n_inputs; i++) in[i] = { k->in[i].dtype, k->in[i].layout };
    const rw_dtype to = k->out[0].dtype;
    const rw_status status =
        !linear && k->n_inputs > RW_CODES_MORE
            ? plan_with_and_without(cuda, p, in, has_more, to, &c)
            : plan_codes(cuda, p, in, has_more ? &in[RW_CODES_MORE] : nullptr, false, to, &c);
    if (status) return status;
    const rw_status ran = c.has ? run_codes(k, c) : run_decoded(k, linear);
    if (!ran) (c.has ? cuda->fp8_products : cuda->decoded_products)++;
    return ran;
}

} // namespace

extern "C" size_t rw_linear_of_codes_workspace_cuda(const rw_op_call *call)
{
    return workspace_of(call, true);
}

extern "C" size_t rw_matmul_of_codes_workspace_cuda(const rw_op_call *call)
{
    return workspace_of(call, false);
}

extern "C" rw_status rw_linear_of_codes_cuda(const rw_kernel *k)
{
    return run(k, true);
}

extern "C" rw_status rw_matmul_of_codes_cuda(const rw_kernel *k)
{
    return run(k, false);
}
