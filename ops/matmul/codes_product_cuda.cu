/* Products of 8-bit codes on CUDA: both factors are decoded to bfloat16 in the workspace, and multiplied there. */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/float8/quantize.h"
#include "ops/matmul/codes_product.h"

rw_status rw_dequantize_cuda(const rw_kernel *k);
rw_status rw_linear_cuda(const rw_kernel *k);
rw_status rw_matmul_cuda(const rw_kernel *k);
rw_status rw_matmul_add_cuda(const rw_kernel *k);
size_t rw_linear_workspace_cuda(const rw_op_call *call);
size_t rw_matmul_workspace_cuda(const rw_op_call *call);
}

namespace {

size_t decoded_bytes(const rw_layout *codes)
{
    return (static_cast<size_t>(codes->numel) * sizeof(uint16_t) + 255) / 256 * 256;
}

/* The factors as rw_linear() or rw_matmul() takes them: that of rw_linear() turns the second one itself. */
struct factors {
    rw_layout a, b;
    size_t a_bytes, b_bytes;
};

factors factors_of(const rw_codes_product_attrs *p, const rw_layout *a, const rw_layout *b, bool linear)
{
    return { rw_codes_factor(a, p->a_turned != 0), rw_codes_factor(b, p->b_turned != 0 && !linear), decoded_bytes(a),
             decoded_bytes(b) };
}

size_t workspace_of(const rw_op_call *call, bool linear)
{
    const factors f = factors_of(static_cast<const rw_codes_product_attrs *>(call->attrs),
                                 call->in[RW_CODES_A].layout, call->in[RW_CODES_B].layout, linear);
    const bool more = call->n_inputs > RW_CODES_MORE;
    rw_desc in[3] = { { RW_BF16, &f.a }, { RW_BF16, &f.b } };
    if (more && linear) in[2] = call->in[RW_CODES_MORE];
    if (more && !linear) in[2] = in[1], in[1] = in[0], in[0] = call->in[RW_CODES_MORE];
    rw_op_call product = *call;
    product.in = in;
    product.n_inputs = more ? 3 : 2;
    const size_t bytes = linear ? rw_linear_workspace_cuda(&product) : rw_matmul_workspace_cuda(&product);
    return bytes == SIZE_MAX ? bytes : f.a_bytes + f.b_bytes + bytes;
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

rw_status run(const rw_kernel *k, bool linear)
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
