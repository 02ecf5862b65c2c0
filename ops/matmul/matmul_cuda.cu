/*
 * Matrix products on CUDA: cuBLASLt if it has an algorithm, else a tiled kernel of this library. gemm_descriptor.h
 * defines a product.
 *
 * The choice, and the alignments passed to cuBLASLt, depend on shapes and strides alone.
 */
/* machine_code.py: tile_kernel<.*>: limited by arithmetic; for what cuBLASLt has no algorithm for */
/* machine_code.py: pack_kernel<.*>: operands that begin off an aligned address */
/* machine_code.py: close_kernel<.*>: rows that are no multiple of 16 bytes */
#include "device/cuda/blaslt.h"
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/matmul/gemm_descriptor.h"
#include "ops/matmul/matmul.h"
#include "ops/pointwise/pointwise.h"

rw_status rw_gelu_tanh_cuda(const rw_kernel *k);
}

#include <cstring>

namespace {

constexpr int64_t WORKSPACE_ALIGN = 256;
constexpr int TILE = 32, TILE_ROWS = 8;     /* a block of 32 x 8 threads computes 32 x 32 elements */
constexpr int64_t BLOCKS_MAX = 0x7fffffff; /* maximum of a grid's first axis */

int64_t aligned(int64_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* ---- cuBLASLt: one product covers the innermost batch axis ---- */

struct batch {
    int rank;
    int64_t dim[RW_MAX_RANK], a[RW_MAX_RANK], b[RW_MAX_RANK];
};

/* Joins batch axes that are contiguous in both operands. */
batch merged(const gemm &g)
{
    batch r = {};
    for (int i = 0; i < g.batch_rank; i++) {
        if (g.batch[i] == 1) continue;
        const int last = r.rank - 1;
        const bool follows = r.rank && r.a[last] == g.a.batch[i] * g.batch[i] && r.b[last] == g.b.batch[i] * g.batch[i];
        if (!follows) r.dim[r.rank++] = 1;
        r.dim[r.rank - 1] *= g.batch[i];
        r.a[r.rank - 1] = g.a.batch[i];
        r.b[r.rank - 1] = g.b.batch[i];
    }
    return r;
}

/* The power of two, up to 16, of which all addresses of a batch are multiples if the first one is, in bytes. */
int32_t alignment_of(rw_dtype dtype, const int64_t *strides, int n)
{
    uint64_t bits = 16;
    for (int i = 0; i < n; i++) bits |= static_cast<uint64_t>(strides[i]);
    const uint64_t bytes = (bits & (~bits + 1)) * rw_dtype_size(dtype);
    return static_cast<int32_t>(bytes < 16 ? bytes : 16);
}

/*
 * The form of an operand that the library reads. An operand at an unaligned address is copied with its layout.
 * Otherwise the library might select another algorithm by its alignment, and the results would depend on the address
 * (law 1).
 */
enum reading { IN_PLACE, AS_STORED, COPIED_DENSE };

struct plan {
    bool own;
    bool apart; /* the library computes a b in float32; a kernel after it adds bias and sum */
    bool gelu;  /* computed by the library; else by a kernel after it */
    reading a, b, bias, sum;
    gemm g; /* as the library reads it */
    batch outer;
    rw_blaslt_product product;
    /* An unaligned sum is copied to c itself. */
    size_t a_bytes, b_bytes, bias_bytes, apart_bytes, library_bytes;

    size_t workspace() const { return a_bytes + b_bytes + bias_bytes + apart_bytes + library_bytes; }
};

bool begins_aligned(rw_dtype dtype, const rw_layout *l)
{
    return static_cast<uint64_t>(l->offset) * rw_dtype_size(dtype) % 16 == 0;
}

size_t span_bytes(rw_dtype dtype, const rw_layout *l)
{
    return static_cast<size_t>(aligned(l->span * static_cast<int64_t>(rw_dtype_size(dtype))));
}

reading reading_of(const gemm &g, const gemm_operand &x, const rw_layout *l)
{
    return x.pack_bytes ? COPIED_DENSE : begins_aligned(g.dtype, l) ? IN_PLACE : AS_STORED;
}

size_t copy_bytes(const gemm &g, const gemm_operand &x, const rw_layout *l, reading r)
{
    return r == COPIED_DENSE ? static_cast<size_t>(aligned(x.pack_bytes)) : r == AS_STORED ? span_bytes(g.dtype, l) : 0;
}

bool has_16_bits(const rw_blaslt_product &q)
{
    return rw_dtype_size(static_cast<rw_dtype>(q.dtype)) == 2;
}

/*
 * The library does not specify the accuracy of its gelu. That does not matter if the result is rounded to 16 bits, or
 * if the caller has allowed TF32. Otherwise our kernel computes it, with a known error.
 */
bool may_fuse(const rw_blaslt_product &q)
{
    return (has_16_bits(q) || q.tf32) && q.n % 8 == 0;
}

/* Are rows, or columns, multiples of 16 bytes? The library's tensor-core kernels load and store in these units. */
bool has_wide_rows(const rw_blaslt_product &q)
{
    const int64_t elements = 16 / static_cast<int64_t>(rw_dtype_size(static_cast<rw_dtype>(q.dtype)));
    const int64_t a = q.a_col == 1 ? q.a_row : q.a_col, b = q.b_col == 1 ? q.b_row : q.b_col;
    return a % elements == 0 && b % elements == 0 && q.c_row % elements == 0;
}

/* Layouts; NULL for absent operands. Buffer addresses are multiples of 256. */
struct layouts {
    const rw_layout *a, *b, *bias, *sum;
};

/* Decides how a product is computed: operand copies, epilogue, algorithms and workspace. */
rw_status make_plan(const rw_cuda *cuda, const gemm &g, const layouts &of, plan *p)
{
    *p = {};
    p->g = g;
    p->own = !g.k || !g.m || !g.n || !g.n_batch;
    if (p->own) return RW_OK;
    p->a = reading_of(g, g.a, of.a);
    p->b = reading_of(g, g.b, of.b);
    p->bias = of.bias && !begins_aligned(g.dtype, of.bias) ? AS_STORED : IN_PLACE;
    p->sum = of.sum && !begins_aligned(g.to, of.sum) ? AS_STORED : IN_PLACE;
    if (p->a == COPIED_DENSE) rw_gemm_describe_dense(&p->g, &p->g.a, g.m, g.k);
    if (p->b == COPIED_DENSE) rw_gemm_describe_dense(&p->g, &p->g.b, g.k, g.n);
    p->outer = merged(p->g);
    const int inner = p->outer.rank - 1;
    rw_blaslt_product *const q = &p->product;
    q->m = g.m, q->n = g.n, q->k = g.k;
    q->a_row = p->g.a.row, q->a_col = p->g.a.col, q->b_row = p->g.b.row, q->b_col = p->g.b.col;
    q->c_row = g.c_row;
    q->batch = inner < 0 ? 1 : p->outer.dim[inner];
    q->a_batch = inner < 0 ? 0 : p->outer.a[inner];
    q->b_batch = inner < 0 ? 0 : p->outer.b[inner];
    q->a_align = alignment_of(g.dtype, p->g.a.batch, g.batch_rank);
    q->b_align = alignment_of(g.dtype, p->g.b.batch, g.batch_rank);
    const int64_t each = g.n_batch > 1 ? g.m * g.n : 0;
    q->c_align = alignment_of(g.to, &each, 1);
    q->bias_align = g.has_bias ? 16 : 0;
    q->dtype = g.dtype;
    q->to = g.to;
    q->bias = g.has_bias;
    q->adds = g.adds;
    bool has = false;
    q->tf32 = g.dtype == RW_F32 && cuda->tf32;
    q->gelu = g.gelu && may_fuse(*q) && has_wide_rows(*q);
    p->apart = q->adds && q->bias && has_16_bits(*q) && !has_wide_rows(*q);
    if (p->apart) {
        q->adds = q->bias = q->bias_align = 0;
        q->to = RW_F32;
        q->c_row = g.n;
        q->c_align = alignment_of(RW_F32, &each, 1);
    }
    rw_status status = rw_blaslt_query(cuda->blaslt, q, &has, &p->library_bytes);
    if (!status && !has && q->gelu) {
        q->gelu = 0;
        status = rw_blaslt_query(cuda->blaslt, q, &has, &p->library_bytes);
    }
    if (status) return status;
    p->own = !has;
    p->gelu = q->gelu;
    if (!has) {
        p->g = g;
        p->apart = false;
        p->library_bytes = 0;
        return RW_OK;
    }
    if (p->apart) p->apart_bytes = static_cast<size_t>(aligned(g.n_batch * g.m * g.n * int64_t{ sizeof(float) }));
    p->a_bytes = copy_bytes(g, g.a, of.a, p->a);
    p->b_bytes = copy_bytes(g, g.b, of.b, p->b);
    p->bias_bytes = p->bias == AS_STORED ? span_bytes(g.dtype, of.bias) : 0;
    return RW_OK;
}

/* ---- dense copies of operands whose strides the library does not support ---- */

struct strided {
    int64_t row, col;
    int rank;
    int64_t dim[RW_MAX_RANK], batch[RW_MAX_RANK];
};

strided strided_of(const gemm &g, const gemm_operand &x)
{
    strided s = { x.row, x.col, g.batch_rank, {}, {} };
    for (int i = 0; i < g.batch_rank; i++) s.dim[i] = g.batch[i], s.batch[i] = x.batch[i];
    return s;
}

__device__ int64_t start_of(const strided &s, int64_t item)
{
    int64_t at = 0;
    for (int axis = s.rank - 1; axis >= 0; axis--) {
        at += item % s.dim[axis] * s.batch[axis];
        item /= s.dim[axis];
    }
    return at;
}

template <typename T>
__global__ void pack_kernel(const T *from, T *to, strided s, int64_t rows, int64_t cols, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t item = i / (rows * cols), row = i / cols % rows, col = i % cols;
    to[i] = from[start_of(s, item) + row * s.row + col * s.col];
}

template <typename T>
void pack_operand(const rw_kernel *k, const gemm &g, const gemm_operand &x, void *to, int64_t rows, int64_t cols)
{
    const int64_t n = g.n_batch * rows * cols;
    RW_LAUNCH(pack_kernel<T>, blocks_for(n, 256), 256, 0, k, static_cast<const T *>(x.data), static_cast<T *>(to),
              strided_of(g, x), rows, cols, n);
}

/* ---- tiled kernel: any strides, k in one sequence ---- */

struct tiles {
    int64_t m, n, k, c_row, across, down, all; /* all: elements of the batch */
};

/* c and the sum have type S: T, or float32. */
template <typename T, typename S>
__global__ void tile_kernel(const T *a, const T *b, const T *bias, const S *sum, S *c, strided sa, strided sb, tiles x)
{
    using W = wide<T>;
    __shared__ W as[TILE][TILE + 1];
    __shared__ W bs[TILE][TILE + 1];
    for (int64_t tile = blockIdx.x; tile < x.all; tile += gridDim.x) {
        const int64_t item = tile / (x.across * x.down), row = tile / x.across % x.down * TILE;
        const int64_t col = tile % x.across * TILE + threadIdx.x;
        const T *const pa = a + start_of(sa, item), *const pb = b + start_of(sb, item);
        W acc[TILE / TILE_ROWS] = {};
        for (int64_t from = 0; from < x.k; from += TILE) {
            for (int r = threadIdx.y; r < TILE; r += TILE_ROWS) {
                const int64_t i = row + r, l = from + r, ka = from + threadIdx.x;
                as[r][threadIdx.x] = i < x.m && ka < x.k ? widen(pa[i * sa.row + ka * sa.col]) : W(0);
                bs[r][threadIdx.x] = l < x.k && col < x.n ? widen(pb[l * sb.row + col * sb.col]) : W(0);
            }
            __syncthreads();
            for (int l = 0; l < TILE; l++)
                for (int r = 0; r < TILE / TILE_ROWS; r++)
                    acc[r] += as[threadIdx.y + r * TILE_ROWS][l] * bs[l][threadIdx.x];
            __syncthreads();
        }
        for (int r = 0; r < TILE / TILE_ROWS; r++) {
            const int64_t i = row + threadIdx.y + r * TILE_ROWS, at = (item * x.m + i) * x.c_row + col;
            if (i >= x.m || col >= x.n) continue;
            W y = bias ? acc[r] + widen(bias[col]) : acc[r];
            if (sum) y += widen(sum[at]);
            c[at] = narrow<S>(y);
        }
    }
}

template <typename T, typename S> rw_status run_own(const rw_kernel *k, const gemm &g)
{
    tiles x = { g.m, g.n, g.k, g.c_row, (g.n + TILE - 1) / TILE, (g.m + TILE - 1) / TILE, 0 };
    x.all = x.across * x.down * g.n_batch;
    if (!x.all) return RW_OK;
    const unsigned blocks = static_cast<unsigned>(x.all < BLOCKS_MAX ? x.all : BLOCKS_MAX);
    RW_LAUNCH((tile_kernel<T, S>), blocks, dim3(TILE, TILE_ROWS), 0, k, static_cast<const T *>(g.a.data),
              static_cast<const T *>(g.b.data), static_cast<const T *>(g.bias), static_cast<const S *>(g.sum),
              static_cast<S *>(g.c), strided_of(g, g.a), strided_of(g, g.b), x);
    return rw_cuda_launched(k);
}

/* ---- epilogue: rounds a float32 product ---- */

template <typename T>
__global__ void close_kernel(const float *product, const T *bias, const T *sum, T *c, int64_t n, int64_t all)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < all) c[i] = narrow<T>(product[i] + widen(bias[i % n]) + widen(sum[i]));
}

template <typename T>
void close_product(const rw_kernel *k, const gemm &g, const float *product, const void *bias, const T *sum)
{
    const int64_t all = g.n_batch * g.m * g.n;
    RW_LAUNCH(close_kernel<T>, blocks_for(all, 256), 256, 0, k, product, static_cast<const T *>(bias), sum,
              static_cast<T *>(g.c), g.n, all);
}

/* ---- execution ---- */

const void *copied_as_stored(const rw_kernel *k, int input, void *to)
{
    const rw_view &x = k->in[input];
    const size_t bytes = static_cast<size_t>(x.layout->span) * rw_dtype_size(x.dtype);
    cudaMemcpyAsync(to, x.data, bytes, cudaMemcpyDeviceToDevice, rw_stream(k));
    return to; /* rw_cuda_launched() reports a failure */
}

/* Input indices of the operands; -1 for absent ones. */
struct inputs {
    int a, b, bias, sum;
};

/* Element offsets of a call from the start of a, b and c. */
struct place {
    int64_t a, b, c;
};

/* The call at element `outer` of all batch axes but the innermost. */
place place_of(const plan &p, int64_t outer)
{
    place at = { 0, 0, outer * p.product.batch * p.product.m * p.product.c_row };
    for (int i = p.outer.rank - 2; i >= 0; i--) {
        at.a += outer % p.outer.dim[i] * p.outer.a[i];
        at.b += outer % p.outer.dim[i] * p.outer.b[i];
        outer /= p.outer.dim[i];
    }
    return at;
}

/* Runs the calls of a cuBLASLt product, with the copies before them and the epilogue kernels after them. */
template <typename T, typename S> rw_status run_library(const rw_kernel *k, const inputs &of, const gemm &g, plan *p)
{
    rw_blaslt *const lt = static_cast<const rw_cuda *>(k->device)->blaslt;
    char *const for_a = static_cast<char *>(k->workspace), *const for_b = for_a + p->a_bytes;
    char *const for_bias = for_b + p->b_bytes, *const for_c = for_bias + p->bias_bytes;
    char *const scratch = for_c + p->apart_bytes;
    if (k->workspace_bytes < p->workspace()) return RW_ERR_MEMORY;
    if (p->a == COPIED_DENSE) pack_operand<T>(k, g, g.a, for_a, g.m, g.k);
    if (p->b == COPIED_DENSE) pack_operand<T>(k, g, g.b, for_b, g.k, g.n);
    if (p->a == AS_STORED) copied_as_stored(k, of.a, for_a);
    if (p->b == AS_STORED) copied_as_stored(k, of.b, for_b);
    const T *const a = static_cast<const T *>(p->a == IN_PLACE ? g.a.data : for_a);
    const T *const b = static_cast<const T *>(p->b == IN_PLACE ? g.b.data : for_b);
    const S *const sum = static_cast<const S *>(p->sum == IN_PLACE ? g.sum : copied_as_stored(k, of.sum, g.c));
    rw_blaslt_operands x = {};
    const void *const bias = p->bias == IN_PLACE ? g.bias : copied_as_stored(k, of.bias, for_bias);
    x.bias = p->apart ? nullptr : bias;
    const int64_t calls = g.n_batch / p->product.batch;
    for (int64_t call = 0; call < calls; call++) {
        const place at = place_of(*p, call);
        x.a = a + at.a;
        x.b = b + at.b;
        x.sum = sum && !p->apart ? sum + at.c : nullptr;
        if (p->apart) x.c = reinterpret_cast<float *>(for_c) + at.c;
        else x.c = static_cast<S *>(p->gelu ? g.activation : g.c) + at.c;
        x.aux = p->gelu ? static_cast<T *>(g.c) + at.c : nullptr;
        const rw_status status = rw_blaslt_run(lt, &p->product, &x, scratch, p->library_bytes);
        if (status) return status;
    }
    if constexpr (sizeof(S) == 2)
        if (p->apart) close_product<S>(k, g, reinterpret_cast<const float *>(for_c), bias, sum);
    return rw_cuda_launched(k);
}

/* Computes gelu of output 1 into output 0. */
rw_status take_gelu(const rw_kernel *k)
{
    static const rw_pointwise_attrs none = {};
    rw_kernel gelu = *k;
    gelu.attrs = &none;
    gelu.in = &k->out[1];
    gelu.n_inputs = gelu.n_outputs = 1;
    return rw_gelu_tanh_cuda(&gelu);
}

/* Plans a product and runs it by cuBLASLt or by the tiled kernel. */
rw_status run(const rw_kernel *k, gemm *g, const inputs &of)
{
    plan p;
    const auto data = [k](int i) -> const void * { return i < 0 ? nullptr : k->in[i].data; };
    const auto layout = [k](int i) -> const rw_layout * { return i < 0 ? nullptr : k->in[i].layout; };
    g->a.data = data(of.a);
    g->b.data = data(of.b);
    g->bias = data(of.bias);
    g->sum = data(of.sum);
    g->c = k->out[g->gelu ? 1 : 0].data;
    g->activation = g->gelu ? k->out[0].data : nullptr;
    const layouts placed = { layout(of.a), layout(of.b), layout(of.bias), layout(of.sum) };
    rw_status status = make_plan(static_cast<const rw_cuda *>(k->device), *g, placed, &p);
    if (status) return status;
    status = with_float_type(g->dtype, [&](auto type) {
        using T = decltype(type);
        if (g->to == g->dtype) return p.own ? run_own<T, T>(k, *g) : run_library<T, T>(k, of, *g, &p);
        return p.own ? run_own<T, wide<T>>(k, *g) : run_library<T, wide<T>>(k, of, *g, &p);
    });
    return status || !g->gelu || p.gelu ? status : take_gelu(k);
}

} // namespace

/* The workspace of a call's product, whose operands a, b[, bias] are inputs from `first` on. An addend needs none. */
static size_t workspace_of(const rw_op_call *call, const gemm &g, int first)
{
    const rw_operand_desc *const in = call->in + first;
    plan p;
    const layouts placed = { in[0].layout, in[1].layout, g.has_bias ? in[2].layout : nullptr, nullptr };
    return make_plan(static_cast<const rw_cuda *>(call->device), g, placed, &p) ? SIZE_MAX : p.workspace();
}

extern "C" size_t rw_matmul_workspace_cuda(const rw_op_call *call)
{
    const int first = call->n_inputs - 2;
    gemm g;
    rw_gemm_of_matmul(&g, call->in[first].layout, call->in[first + 1].layout, call->in[first].dtype);
    g.to = call->out[0].dtype;
    const size_t plain = workspace_of(call, g, first);
    if (!first) return plain;
    g.adds = true; /* the addend may be absent at run time: workspace for either case */
    const size_t added = workspace_of(call, g, first);
    return added > plain ? added : plain;
}

static size_t linear_workspace(const rw_op_call *call, int x)
{
    gemm g;
    rw_gemm_of_linear(&g, call->in[x].layout, call->in[x + 1].layout, call->n_inputs > x + 2, call->in[0].dtype);
    g.gelu = call->n_outputs > 1;
    g.adds = x > 0;
    return workspace_of(call, g, x);
}

extern "C" bool rw_linear_gelu_may_fuse_cuda(const rw_op_call *call)
{
    rw_blaslt_product q = {};
    q.dtype = call->in[0].dtype;
    q.n = call->in[1].layout->dim[0];
    q.tf32 = q.dtype == RW_F32 && static_cast<const rw_cuda *>(call->device)->tf32;
    return may_fuse(q);
}

extern "C" size_t rw_linear_workspace_cuda(const rw_op_call *call)
{
    return linear_workspace(call, 0);
}

extern "C" size_t rw_linear_add_workspace_cuda(const rw_op_call *call)
{
    return linear_workspace(call, 1);
}

extern "C" size_t rw_linear_panel_workspace_cuda(const rw_op_call *call, int64_t c_row)
{
    gemm g;
    rw_gemm_of_linear(&g, call->in[0].layout, call->in[1].layout, call->n_inputs > 2, call->in[0].dtype);
    g.c_row = c_row;
    return workspace_of(call, g, 0);
}

extern "C" rw_status rw_linear_panel_cuda(const rw_kernel *k, int64_t c_row)
{
    const bool bias = k->n_inputs > 2;
    gemm g;
    rw_gemm_of_linear(&g, k->in[0].layout, k->in[1].layout, bias, k->in[0].dtype);
    g.c_row = c_row;
    return run(k, &g, { 0, 1, bias ? 2 : -1, -1 });
}

extern "C" rw_status rw_matmul_cuda(const rw_kernel *k)
{
    gemm g;
    rw_gemm_of_matmul(&g, k->in[0].layout, k->in[1].layout, k->in[0].dtype);
    return run(k, &g, { 0, 1, -1, -1 });
}

extern "C" rw_status rw_matmul_add_cuda(const rw_kernel *k)
{
    gemm g;
    rw_gemm_of_matmul(&g, k->in[1].layout, k->in[2].layout, k->in[1].dtype);
    g.to = k->out[0].dtype;
    g.adds = rw_kernel_has(k, 0); /* without the addend it is rw_matmul */
    return run(k, &g, { 1, 2, -1, g.adds ? 0 : -1 });
}

/* The linear layer of x, weight and an optional bias, inputs from `x` on; an addend comes before them. */
static rw_status linear(const rw_kernel *k, int x)
{
    const bool bias = k->n_inputs > x + 2;
    gemm g;
    rw_gemm_of_linear(&g, k->in[x].layout, k->in[x + 1].layout, bias, k->in[0].dtype);
    g.gelu = k->n_outputs > 1;
    g.adds = x > 0;
    return run(k, &g, { x, x + 1, bias ? x + 2 : -1, x - 1 });
}

extern "C" rw_status rw_linear_cuda(const rw_kernel *k)
{
    return linear(k, 0);
}

extern "C" rw_status rw_linear_gelu_cuda(const rw_kernel *k)
{
    return linear(k, 0);
}

extern "C" rw_status rw_linear_add_cuda(const rw_kernel *k)
{
    return linear(k, 1);
}
