/*
 * Convolutions on CUDA: the three products of conv.h, by cuDNN if it is enabled and supports them
 * (device/cuda/cudnn/conv.h), else by a tiled kernel of this library. The tiled kernel gathers its operands from the
 * image (implicit GEMM), so nothing is unfolded in memory. Each element of a result is one sum in a fixed order.
 *
 * Law 1 (docs/laws.md) is ensured here: the implementation depends on the device, types, shapes and attributes, so it
 * is the same for forward and replay. It does not depend on operand addresses: operands that the library cannot load
 * are copied first.
 */
/* machine_code.py: tile_kernel<.*>: limited by arithmetic; what is multiplied is gathered element by element */
/* machine_code.py: depthwise(_weight)?_kernel<.*>: taps of a pixel, each read from the cache by its neighbours */
/* machine_code.py: pack_kernel<.*>: rows of any width, beside the product that reads them */
/* machine_code.py: plus_kernel<.*>: of a weight, beside the product whose result it reads */
#include "device/cuda/cudnn/conv.h"
#include "device/cuda/kernel.cuh"
#include "ops/common/wide_copies.cuh"

extern "C" {
#include "ops/conv/conv.h"
}

namespace {

constexpr int TILE = 32, TILE_ROWS = 8;     /* a block of 32 x 8 threads computes 32 x 32 elements */
constexpr int64_t BLOCKS_MAX = 0x7fffffff; /* maximum of a grid's first axis */

/* Rows, columns and the length of the sums of one group's product. */
struct extents {
    int64_t m, n, k, across, down, all;
};

__device__ int64_t under(const rw_conv &c, int i, int64_t out, int64_t tap)
{
    const int64_t at = out * c.stride[i] - c.padding[i] + tap * c.dilation[i];
    return at < (i ? c.w : c.h) ? at : -1;
}

__device__ int64_t over(const rw_conv &c, int i, int64_t in, int64_t tap)
{
    const int64_t at = in + c.padding[i] - tap * c.dilation[i];
    return at < 0 || at % c.stride[i] || at / c.stride[i] >= (i ? c.ow : c.oh) ? -1 : at / c.stride[i];
}

/* The element of x that output pixel p reads at a tap and channel of a group; 0 outside of the image. */
template <typename T>
__device__ wide<T> x_under(const rw_conv &c, const T *x, int64_t group, int64_t p, int64_t tap, int64_t channel)
{
    const int64_t y = under(c, 0, p / c.ow % c.oh, tap / c.kw), z = under(c, 1, p % c.ow, tap % c.kw);
    if (y < 0 || z < 0) return 0;
    return widen(x[((p / c.ow / c.oh * c.h + y) * c.w + z) * c.c + group * c.cg + channel]);
}

/* The element of dy that reads input pixel p at a tap and filter of a group; 0 if there is none. */
template <typename T>
__device__ wide<T> dy_over(const rw_conv &c, const T *dy, int64_t group, int64_t p, int64_t tap, int64_t filter)
{
    const int64_t y = over(c, 0, p / c.w % c.h, tap / c.kw), z = over(c, 1, p % c.w, tap % c.kw);
    if (y < 0 || z < 0) return 0;
    return widen(dy[((p / c.w / c.h * c.oh + y) * c.ow + z) * c.oc + group * c.ocg + filter]);
}

template <typename T>
__device__ wide<T> weight_of(const rw_conv &c, const T *weight, int64_t group, int64_t filter, int64_t channel,
                             int64_t tap)
{
    return widen(weight[((group * c.ocg + filter) * c.cg + channel) * c.kh * c.kw + tap]);
}

/* Element (row, l) of the left factor and (l, col) of the right one. For a weight's gradient these are dy and x. */
template <typename T, int KIND>
__device__ wide<T> left(const rw_conv &c, const T *a, int64_t group, int64_t row, int64_t l)
{
    if (KIND == RW_CONV_FORWARD) return x_under(c, a, group, row, l / c.cg, l % c.cg);
    if (KIND == RW_CONV_DATA) return dy_over(c, a, group, row, l / c.ocg, l % c.ocg);
    return widen(a[l * c.oc + group * c.ocg + row]);
}

template <typename T, int KIND>
__device__ wide<T> right(const rw_conv &c, const T *b, int64_t group, int64_t l, int64_t col)
{
    if (KIND == RW_CONV_FORWARD) return weight_of(c, b, group, col, l % c.cg, l / c.cg);
    if (KIND == RW_CONV_DATA) return weight_of(c, b, group, l % c.ocg, col, l / c.ocg);
    return x_under(c, b, group, l, col / c.cg, col % c.cg);
}

template <int KIND> __device__ int64_t place(const rw_conv &c, int64_t group, int64_t row, int64_t col)
{
    if (KIND == RW_CONV_FORWARD) return row * c.oc + group * c.ocg + col;
    if (KIND == RW_CONV_DATA) return row * c.c + group * c.cg + col;
    return ((group * c.ocg + row) * c.cg + col % c.cg) * c.kh * c.kw + col / c.cg;
}

/* add: a bias by column, or for a weight's gradient the addend. */
template <typename T, int KIND>
__global__ void __launch_bounds__(TILE *TILE_ROWS)
    tile_kernel(const T *a, const T *b, const T *add, T *to, rw_conv c, extents e)
{
    using W = wide<T>;
    __shared__ W as[TILE][TILE + 1];
    __shared__ W bs[TILE][TILE + 1];
    for (int64_t tile = blockIdx.x; tile < e.all; tile += gridDim.x) {
        const int64_t group = tile / (e.across * e.down), row = tile / e.across % e.down * TILE;
        const int64_t first = tile % e.across * TILE, col = first + threadIdx.x;
        W acc[TILE / TILE_ROWS] = {};
        for (int64_t from = 0; from < e.k; from += TILE) {
            for (int r = threadIdx.y; r < TILE; r += TILE_ROWS) {
                /* Adjacent threads read adjacent channels of either operand. */
                const int64_t i = KIND == RW_CONV_WEIGHT ? row + threadIdx.x : row + r;
                const int64_t l = KIND == RW_CONV_WEIGHT ? from + r : from + threadIdx.x;
                const W x = i < e.m && l < e.k ? left<T, KIND>(c, a, group, i, l) : W(0);
                (KIND == RW_CONV_WEIGHT ? as[threadIdx.x][r] : as[r][threadIdx.x]) = x;
                bs[r][threadIdx.x] = from + r < e.k && col < e.n ? right<T, KIND>(c, b, group, from + r, col) : W(0);
            }
            __syncthreads();
            for (int l = 0; l < TILE; l++)
                for (int r = 0; r < TILE / TILE_ROWS; r++)
                    acc[r] += as[threadIdx.y + r * TILE_ROWS][l] * bs[l][threadIdx.x];
            __syncthreads();
        }
        for (int r = 0; r < TILE / TILE_ROWS; r++) {
            const int64_t i = row + threadIdx.y + r * TILE_ROWS;
            if (i >= e.m || col >= e.n) continue;
            const int64_t at = place<KIND>(c, group, i, col);
            const W y = add ? acc[r] + widen(add[KIND == RW_CONV_WEIGHT ? at : group * c.ocg + col]) : acc[r];
            to[at] = narrow<T>(y);
        }
    }
}

/* ---- depthwise: adjacent threads process adjacent channels ---- */

template <typename T, bool DATA>
__global__ void depthwise_kernel(const T *x, const T *weight, const T *bias, T *to, rw_conv c, int64_t n)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t channel = i % c.c, p = i / c.c;
    W sum = 0;
    for (int64_t tap = 0; tap < c.kh * c.kw; tap++) {
        const W value = DATA ? dy_over(c, x, channel, p, tap, 0) : x_under(c, x, channel, p, tap, 0);
        sum += value * widen(weight[channel * c.kh * c.kw + tap]);
    }
    to[i] = narrow<T>(bias ? sum + widen(bias[channel]) : sum);
}

/* A block has 32 channels and one tap: its warps take pixels in turn, and their sums are added in order. */
constexpr int WARPS = 8;
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    depthwise_weight_kernel(const T *x, const T *dy, const T *sum, T *to, rw_conv c, int64_t across)
{
    using W = wide<T>;
    __shared__ W shared[WARPS][32];
    const int64_t channel = blockIdx.x % across * 32 + threadIdx.x, tap = blockIdx.x / across;
    W part = 0;
    for (int64_t p = threadIdx.y; p < c.n * c.oh * c.ow && channel < c.c; p += WARPS)
        part += x_under(c, x, channel, p, tap, 0) * widen(dy[p * c.c + channel]);
    shared[threadIdx.y][threadIdx.x] = part;
    __syncthreads();
    if (threadIdx.y || channel >= c.c) return;
    for (int w = 1; w < WARPS; w++) part += shared[w][threadIdx.x];
    const int64_t at = channel * c.kh * c.kw + tap;
    to[at] = narrow<T>(sum ? part + widen(sum[at]) : part);
}

/* ---- virtual concatenation ---- */

/* Copies a concatenation input, `own` units per pixel, to units [first, first + own) of `all` units per pixel. */
template <typename U>
__global__ void __launch_bounds__(256)
    pack_kernel(const U *piece, U *to, int64_t n, int64_t own, int64_t all, int64_t first)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) to[i / own * all + first + i % own] = piece[i];
}

/* Concatenates the inputs at the beginning of the workspace. */
void pack(const rw_kernel *k, const rw_conv &c, int from, int64_t pieces)
{
    const int64_t size = static_cast<int64_t>(rw_dtype_size(c.dtype)), pixels = c.n * c.h * c.w, all = c.c * size;
    int64_t first = 0;
    for (const rw_view *v = k->in + from; v < k->in + from + pieces; v++) {
        const int64_t own = v->layout->dim[3] * size, unit = own ? widest_unit(first | own | all, v->data) : 1;
        const int64_t n = pixels * own / unit;
        if (n)
            with_unit(static_cast<size_t>(unit), [&](auto u) {
                using U = decltype(u);
                RW_LAUNCH(pack_kernel<U>, blocks_for(n, 256), 256, 0, k, static_cast<const U *>(v->data),
                          static_cast<U *>(k->workspace), n, own / unit, all / unit, first / unit);
                return RW_OK;
            });
        first += own;
    }
}

/* ---- execution ---- */

/* Addresses of the operands: x or dy, the other factor, a bias or addend. */
struct operands {
    const void *at[3];
};

extents extents_of(const rw_conv &c, rw_conv_kind kind)
{
    extents e = {};
    e.m = kind == RW_CONV_WEIGHT ? c.ocg : kind == RW_CONV_DATA ? c.n * c.h * c.w : c.n * c.oh * c.ow;
    e.n = kind == RW_CONV_WEIGHT ? c.cg * c.kh * c.kw : kind == RW_CONV_DATA ? c.cg : c.ocg;
    e.k = kind == RW_CONV_WEIGHT ? c.n * c.oh * c.ow : c.kh * c.kw * (kind == RW_CONV_DATA ? c.ocg : c.cg);
    e.across = (e.n + TILE - 1) / TILE;
    e.down = (e.m + TILE - 1) / TILE;
    e.all = e.across * e.down * c.groups;
    return e;
}

/* Launches the tiled or depthwise kernel of a product. */
template <typename T, int KIND> void launch(const rw_kernel *k, const rw_conv &c, const operands &o)
{
    const T *const a = static_cast<const T *>(o.at[0]), *const b = static_cast<const T *>(o.at[1]);
    const T *const add = static_cast<const T *>(o.at[2]);
    T *const to = static_cast<T *>(k->out[0].data);
    if (rw_conv_is_depthwise(&c)) {
        const int64_t n = k->out[0].layout->numel, across = (c.c + 31) / 32;
        if (KIND == RW_CONV_WEIGHT)
            RW_LAUNCH(depthwise_weight_kernel<T>, static_cast<unsigned>(across * c.kh * c.kw), dim3(32, WARPS), 0, k, a,
                      b, add, to, c, across);
        else
            RW_LAUNCH((depthwise_kernel<T, KIND == RW_CONV_DATA>), blocks_for(n, 256), 256, 0, k, a, b, add, to, c, n);
        return;
    }
    const extents e = extents_of(c, static_cast<rw_conv_kind>(KIND));
    const unsigned blocks = static_cast<unsigned>(e.all < BLOCKS_MAX ? e.all : BLOCKS_MAX);
    const bool swaps = KIND == RW_CONV_WEIGHT;
    RW_LAUNCH((tile_kernel<T, KIND>), blocks, dim3(TILE, TILE_ROWS), 0, k, swaps ? b : a, swaps ? a : b, add, to, c, e);
}

/* ---- cuDNN ---- */

static_assert(static_cast<int>(RW_DNN_CONV_FORWARD) == RW_CONV_FORWARD &&
                  static_cast<int>(RW_DNN_CONV_DATA) == RW_CONV_DATA &&
                  static_cast<int>(RW_DNN_CONV_WEIGHT) == RW_CONV_WEIGHT,
              "one order of kinds");

constexpr size_t LOADED = 16, WORKSPACE_ALIGN = 256;

size_t aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

constexpr int INPUTS = 3; /* the third: forward's bias or a weight gradient's addend, which cuDNN does not handle */

struct choice {
    bool by_library; /* workspace: concatenated x, the library's part, copies of inputs, a gradient before its addend */
    rw_dnn_conv_signature signature;
    size_t packed, own;
    bool copied[INPUTS];
    size_t at[INPUTS], gradient_at;
    size_t workspace;
};

rw_dnn_conv_signature signature_of(const rw_conv &c, rw_conv_kind kind, bool third)
{
    rw_dnn_conv_signature s = {};
    s.n = c.n, s.h = c.h, s.w = c.w, s.c = c.c;
    s.oh = c.oh, s.ow = c.ow, s.oc = c.oc, s.kh = c.kh, s.kw = c.kw;
    for (int i = 0; i < 2; i++) s.stride[i] = c.stride[i], s.padding[i] = c.padding[i], s.dilation[i] = c.dilation[i];
    s.groups = c.groups;
    s.dtype = static_cast<int32_t>(c.dtype);
    s.kind = static_cast<int32_t>(kind);
    s.bias = kind == RW_CONV_FORWARD && third;
    return s;
}

/* The copies follow the library's part. A concatenated x is already at an address that the library can load. */
void lay_out(choice *c, const rw_layout *const *in, size_t size)
{
    const bool sums = in[2] && c->signature.kind == RW_DNN_CONV_WEIGHT;
    c->workspace = c->packed + c->own;
    for (int i = 0; i < INPUTS; i++) {
        const bool is_given = in[i] && !(i == 2 && sums) && !(i == 0 && c->packed);
        c->copied[i] = is_given && static_cast<size_t>(in[i]->offset) * size % LOADED != 0;
        c->at[i] = c->workspace;
        if (c->copied[i]) c->workspace += aligned(static_cast<size_t>(in[i]->numel) * size);
    }
    c->gradient_at = c->workspace;
    if (sums) c->workspace += aligned(static_cast<size_t>(in[2]->numel) * size);
}

/* in[2] is NULL if absent. pieces: x is virtually concatenated. pins: planning, which computes the workspace and pins
   an algorithm; otherwise the pinned one is looked up for a run. */
rw_status choose(choice *ret, const void *device, const rw_conv &c, rw_conv_kind kind, const rw_layout *const *in,
                 bool pieces, bool pins)
{
    rw_dnn_conv *const library = static_cast<const rw_cuda *>(device)->conv;
    *ret = {};
    if (pieces) ret->packed = aligned(static_cast<size_t>(c.n * c.h * c.w * c.c) * rw_dtype_size(c.dtype));
    ret->workspace = ret->packed;
    ret->signature = signature_of(c, kind, in[2] != nullptr);
    if (!(c.n && c.h && c.w && c.c && c.oh && c.ow && c.oc)) return RW_OK; /* an empty sum */
    if (pins) {
        const rw_status status = rw_dnn_conv_query(library, &ret->signature, &ret->by_library, &ret->own);
        if (status) return status;
    } else {
        ret->by_library = rw_dnn_conv_has(library, &ret->signature, &ret->own);
    }
    if (ret->by_library) lay_out(ret, in, rw_dtype_size(c.dtype));
    return RW_OK;
}

/* Operand i, which is input `input` if it was not moved, at an address that the library can load. rw_cuda_launched()
   reports a failure. */
const void *loaded(const rw_kernel *k, const choice &c, const operands &o, int i, int input)
{
    if (!c.copied[i]) return o.at[i];
    void *const to = static_cast<char *>(k->workspace) + c.at[i];
    const rw_view &in = k->in[input];
    cudaMemcpyAsync(to, in.data, static_cast<size_t>(in.layout->numel) * rw_dtype_size(in.dtype),
                    cudaMemcpyDeviceToDevice, rw_stream(k));
    return to;
}

/* to = a + b; `to` may be one of them. */
template <typename T> __global__ void __launch_bounds__(256) plus_kernel(const T *a, const T *b, T *to, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) to[i] = narrow<T>(widen(a[i]) + widen(b[i]));
}

/* Runs the library's product, then adds the addend of a weight's gradient. */
template <typename T>
rw_status run_library(const rw_kernel *k, const choice &c, rw_conv_kind kind, const rw_conv_inputs &from,
                      const operands &o)
{
    const bool sums = kind == RW_CONV_WEIGHT && o.at[2];
    char *const workspace = static_cast<char *>(k->workspace);
    T *const to = static_cast<T *>(k->out[0].data);
    T *const result = sums ? reinterpret_cast<T *>(workspace + c.gradient_at) : to;
    const void *const a = loaded(k, c, o, 0, from.first), *const b = loaded(k, c, o, 1, from.other);
    const void *const bias = c.signature.bias ? loaded(k, c, o, 2, from.third) : nullptr;
    const void *const x = kind == RW_CONV_DATA ? result : a, *const w = kind == RW_CONV_WEIGHT ? result : b;
    const void *const y = kind == RW_CONV_FORWARD ? result : kind == RW_CONV_DATA ? a : b;
    const rw_cuda *const cuda = static_cast<const rw_cuda *>(k->device);
    const rw_status status = rw_dnn_conv_run(cuda->conv, &c.signature, x, w, y, bias, workspace + c.packed, c.own);
    const int64_t n = k->out[0].layout->numel;
    if (!status && sums)
        RW_LAUNCH(plus_kernel<T>, blocks_for(n, 256), 256, 0, k, result, static_cast<const T *>(o.at[2]), to, n);
    return status;
}

template <int KIND> size_t workspace_of(const rw_op_call *call)
{
    const rw_conv_kind kind = static_cast<rw_conv_kind>(KIND);
    const rw_conv_attrs *const a = static_cast<const rw_conv_attrs *>(call->attrs);
    const rw_conv_inputs at = rw_conv_inputs_of(a);
    const rw_layout *const third = call->n_inputs > at.third ? call->in[at.third].layout : nullptr;
    const rw_layout *const in[] = { call->in[at.first].layout, call->in[at.other].layout, third };
    const rw_conv c = rw_conv_of_call(call, kind);
    choice by;
    return choose(&by, call->device, c, kind, in, a->more > 0, true) ? SIZE_MAX : by.workspace;
}

template <typename T, int KIND>
rw_status run_of(const rw_kernel *k, const rw_conv &c, const choice &by, const rw_conv_inputs &from)
{
    const int64_t more = static_cast<const rw_conv_attrs *>(k->attrs)->more;
    const bool has_third = rw_kernel_has(k, from.third);
    const operands o = { { more ? k->workspace : k->in[from.first].data, k->in[from.other].data,
                           has_third ? k->in[from.third].data : nullptr } };
    if (more) pack(k, c, from.first, more + 1);
    if (!by.by_library) {
        launch<T, KIND>(k, c, o);
        return rw_cuda_launched(k);
    }
    const rw_status status = run_library<T>(k, by, static_cast<rw_conv_kind>(KIND), from, o);
    return status ? status : rw_cuda_launched(k);
}

template <int KIND> rw_status run(const rw_kernel *k)
{
    const rw_conv_kind kind = static_cast<rw_conv_kind>(KIND);
    const rw_conv_attrs *const a = static_cast<const rw_conv_attrs *>(k->attrs);
    const rw_conv_inputs at = rw_conv_inputs_of(a);
    const rw_conv c = rw_conv_of_kernel(k, kind);
    if (!k->out[0].layout->numel) return RW_OK;
    const rw_layout *const third = rw_kernel_has(k, at.third) ? k->in[at.third].layout : nullptr;
    const rw_layout *const in[] = { k->in[at.first].layout, k->in[at.other].layout, third };
    choice by;
    choose(&by, k->device, c, kind, in, a->more > 0, false);
    if (k->workspace_bytes < by.workspace) return RW_ERR_MEMORY;
    return with_float_type(c.dtype, [&](auto type) { return run_of<decltype(type), KIND>(k, c, by, at); });
}

} // namespace

extern "C" rw_status rw_conv2d_cuda(const rw_kernel *k)
{
    return run<RW_CONV_FORWARD>(k);
}

extern "C" rw_status rw_conv2d_data_cuda(const rw_kernel *k)
{
    return run<RW_CONV_DATA>(k);
}

extern "C" rw_status rw_conv2d_weight_cuda(const rw_kernel *k)
{
    return run<RW_CONV_WEIGHT>(k);
}

extern "C" size_t rw_conv2d_workspace_cuda(const rw_op_call *call)
{
    return workspace_of<RW_CONV_FORWARD>(call);
}

extern "C" size_t rw_conv2d_data_workspace_cuda(const rw_op_call *call)
{
    return workspace_of<RW_CONV_DATA>(call);
}

extern "C" size_t rw_conv2d_weight_workspace_cuda(const rw_op_call *call)
{
    return workspace_of<RW_CONV_WEIGHT>(call);
}
