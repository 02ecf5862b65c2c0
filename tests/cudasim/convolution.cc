/*
 * Convolutions by cuDNN's engines: the engines, the order in which they are offered, and the arithmetic. Engines differ
 * in their order of summation. Engines that are not deterministic, or that do not use exact products of the operands,
 * behave as their notes say, so that a wrong choice is visible.
 */
#include "blas.h"
#include "dnn.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string.h>

#include <string>

namespace cudasim {

/* ---- the choice ---- */

static const size_t too_much = size_t(257) << 20; /* the maximum that the library gives an engine */

static const dnn_engine engines[] = {
    { 0, { CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP }, sums::one, false, false, 0 },
    { 1, { CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC }, sums::any, false, false, 0 },
    { 2, {}, sums::lanes, false, false, too_much },
    { 3, {}, sums::lanes, false, true, 0 },
    { 4, { CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 }, sums::rough, false, false, 0 },
    { 5, { CUDNN_NUMERICAL_NOTE_TENSOR_CORE }, sums::blocks, true, false, 0 },
    { 6, { CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION },
      sums::rough, true, false, 0 },
    { 7, {}, sums::lanes, false, false, 1003 },
    { 8, {}, sums::blocks, false, false, 0 },
    { 9, { CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS }, sums::lanes, true, false, 0 },
    { 10, { CUDNN_NUMERICAL_NOTE_FFT }, sums::rough, false, false, 0 },
};

static const dnn_engine *engine_of(int id)
{
    for (const dnn_engine &e : engines)
        if (e.id == id) return &e;
    return nullptr;
}

static uint64_t mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t signature(const dnn_convolution &c)
{
    uint64_t h = static_cast<uint64_t>(c.kind) * 31 + static_cast<uint64_t>(c.x.type);
    for (int i = 0; i < 4; i++)
        for (const dnn_tensor *t : { &c.x, &c.w, &c.y }) h = mixed(h, static_cast<uint64_t>(t->dim[i]));
    for (int i = 0; i < 2; i++) h = mixed(h, static_cast<uint64_t>(c.stride[i] + 64 * c.padding[i]));
    return h;
}

/* The engines that a test selects, in its order: comma-separated ids. */
static std::vector<const dnn_engine *> listed()
{
    std::vector<const dnn_engine *> found;
    for (size_t at = 0; at < config.dnn_engines.size();) {
        const size_t end = config.dnn_engines.find(',', at);
        const std::string id = config.dnn_engines.substr(at, end == std::string::npos ? end : end - at);
        if (const dnn_engine *e = engine_of(atoi(id.c_str()))) found.push_back(e);
        at = end == std::string::npos ? config.dnn_engines.size() : end + 1;
    }
    return found;
}

/* The fast ones come first, each with several settings, followed by the plain ones, as in the library. */
std::vector<const dnn_engine *> dnn_choices(const dnn_convolution &c, cudnnBackendHeurMode_t mode)
{
    static uint64_t questions;
    std::vector<const dnn_engine *> found;
    if (!config.dnn_engines.empty()) return mode == CUDNN_HEUR_MODE_FALLBACK ? found : listed();
    if (mode == CUDNN_HEUR_MODE_FALLBACK) return { engine_of(1), engine_of(0) };
    for (int settings = 0; settings < 3; settings++)
        for (const int id : { 1, 2, 3, 4, 6, 9, 10 }) found.push_back(engine_of(id));
    uint64_t first = signature(c);
    if (blas_rotates()) first += questions;
    questions++;
    for (uint64_t i = 0; i < 3; i++) {
        static const int plain[] = { 5, 7, 8 };
        found.push_back(engine_of(plain[(first + i) % 3]));
    }
    return found;
}

size_t dnn_size(cudnnDataType_t type)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: return 8;
    case CUDNN_DATA_FLOAT: return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    default: return 0;
    }
}

size_t dnn_bytes(const dnn_tensor &t)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++) last += (t.dim[i] - 1) * t.stride[i];
    return static_cast<size_t>(last + 1) * dnn_size(t.type);
}

size_t dnn_workspace(const dnn_engine &engine, const dnn_convolution &c)
{
    return engine.workspace ? engine.workspace + dnn_bytes(c.w) : 0;
}

const dnn_tensor &dnn_convolution::result() const
{
    if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) return biased ? to : y;
    return kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? x : w;
}

/* ---- numbers ---- */

static double load(const void *base, cudnnDataType_t type, int64_t i)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: return static_cast<const double *>(base)[i];
    case CUDNN_DATA_FLOAT: return static_cast<double>(static_cast<const float *>(base)[i]);
    case CUDNN_DATA_HALF: return static_cast<double>(__half2float(static_cast<const __half *>(base)[i]));
    default: return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16 *>(base)[i]));
    }
}

static void store(void *base, cudnnDataType_t type, int64_t i, double x)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE: static_cast<double *>(base)[i] = x; break;
    case CUDNN_DATA_FLOAT: static_cast<float *>(base)[i] = static_cast<float>(x); break;
    case CUDNN_DATA_HALF: static_cast<__half *>(base)[i] = __float2half_rn(static_cast<float>(x)); break;
    default: static_cast<__nv_bfloat16 *>(base)[i] = __float2bfloat16_rn(static_cast<float>(x)); break;
    }
}

static double to_tf32(double x)
{
    const float f = static_cast<float>(x);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7f800000u) == 0x7f800000u) return x;
    u = (u + 0x1000u) & ~0x1fffu;
    float to;
    memcpy(&to, &u, sizeof to);
    return static_cast<double>(to);
}

static float to_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
static double to_bf16(double x) { return static_cast<double>(to_bf16(static_cast<float>(x))); }

/* A dense copy of a tensor in the order of its axes. */
template <typename W> static std::vector<W> gather(const void *from, const dnn_tensor &t, bool rounds)
{
    std::vector<W> to;
    to.reserve(static_cast<size_t>(t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]));
    for (int64_t a = 0; a < t.dim[0]; a++)
        for (int64_t b = 0; b < t.dim[1]; b++)
            for (int64_t c = 0; c < t.dim[2]; c++)
                for (int64_t d = 0; d < t.dim[3]; d++) {
                    const double x =
                        load(from, t.type, a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3]);
                    to.push_back(static_cast<W>(rounds && t.type == CUDNN_DATA_FLOAT ? to_tf32(x) : x));
                }
    return to;
}

template <typename W> static W in_blocks(const std::vector<W> &p, size_t block, bool rough)
{
    W all = 0;
    for (size_t from = 0; from < p.size(); from += block) {
        W part = 0;
        for (size_t i = from; i < p.size() && i < from + block; i++) part += p[i];
        all += rough ? to_bf16(part) : part;
    }
    return all;
}

template <typename W> static W in_lanes(const std::vector<W> &p)
{
    W lanes[4] = {};
    for (size_t i = 0; i < p.size(); i++) lanes[i % 4] += p[i];
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

template <typename W> static W total(const std::vector<W> &p, enum sums order, uint64_t first)
{
    W all = 0;
    switch (order) {
    case sums::blocks: return in_blocks(p, 16, false);
    case sums::rough: return in_blocks(p, 3, true);
    case sums::lanes: return in_lanes(p);
    case sums::any:
        for (size_t i = 0; i < p.size(); i++) all += p[(first + i * (first % 2 ? 1 : p.size() - 1)) % p.size()];
        return all;
    default:
        for (const W &x : p) all += x;
        return all;
    }
}

/* ---- the three products ---- */

template <typename W> struct factors {
    const dnn_convolution &c;
    std::vector<W> x, w, y;

    W x_at(int64_t n, int64_t channel, int64_t h, int64_t v) const { return x[place(c.x, n, channel, h, v)]; }
    W w_at(int64_t n, int64_t channel, int64_t h, int64_t v) const { return w[place(c.w, n, channel, h, v)]; }
    W y_at(int64_t n, int64_t channel, int64_t h, int64_t v) const { return y[place(c.y, n, channel, h, v)]; }

    static size_t place(const dnn_tensor &t, int64_t a, int64_t b, int64_t h, int64_t v)
    {
        return static_cast<size_t>(((a * t.dim[1] + b) * t.dim[2] + h) * t.dim[3] + v);
    }

    /* Index of x along axis i under output `out` and a tap, or -1. */
    int64_t under(int i, int64_t out, int64_t tap) const
    {
        const int64_t at = out * c.stride[i] - c.padding[i] + tap * c.dilation[i];
        return at < c.x.dim[2 + i] ? at : -1;
    }

    int64_t over(int i, int64_t in, int64_t tap) const
    {
        const int64_t at = in + c.padding[i] - tap * c.dilation[i];
        return at < 0 || at % c.stride[i] || at / c.stride[i] >= c.y.dim[2 + i] ? -1 : at / c.stride[i];
    }

    void of_y(std::vector<W> *p, int64_t n, int64_t filter, int64_t h, int64_t v) const
    {
        const int64_t group = filter / (c.y.dim[1] / c.groups());
        for (int64_t i = 0; i < c.w.dim[2]; i++)
            for (int64_t j = 0; j < c.w.dim[3]; j++) {
                const int64_t row = under(0, h, i), col = under(1, v, j);
                for (int64_t k = 0; k < c.w.dim[1] && row >= 0 && col >= 0; k++)
                    p->push_back(x_at(n, group * c.w.dim[1] + k, row, col) * w_at(filter, k, i, j));
            }
    }

    void of_x(std::vector<W> *p, int64_t n, int64_t channel, int64_t h, int64_t v) const
    {
        const int64_t each = c.y.dim[1] / c.groups(), group = channel / c.w.dim[1];
        for (int64_t i = 0; i < c.w.dim[2]; i++)
            for (int64_t j = 0; j < c.w.dim[3]; j++) {
                const int64_t row = over(0, h, i), col = over(1, v, j);
                for (int64_t k = 0; k < each && row >= 0 && col >= 0; k++)
                    p->push_back(y_at(n, group * each + k, row, col) *
                                 w_at(group * each + k, channel % c.w.dim[1], i, j));
            }
    }

    void of_w(std::vector<W> *p, int64_t filter, int64_t channel, int64_t i, int64_t j) const
    {
        const int64_t group = filter / (c.y.dim[1] / c.groups());
        for (int64_t n = 0; n < c.y.dim[0]; n++)
            for (int64_t h = 0; h < c.y.dim[2]; h++)
                for (int64_t v = 0; v < c.y.dim[3]; v++) {
                    const int64_t row = under(0, h, i), col = under(1, v, j);
                    if (row >= 0 && col >= 0)
                        p->push_back(x_at(n, group * c.w.dim[1] + channel, row, col) * y_at(n, filter, h, v));
                }
    }
};

/* Computes the result element by element: gathers its products, sums them in the engine's order and stores the sum. */
template <typename W> static void run_sums(const dnn_run &r)
{
    const dnn_convolution &c = r.c;
    const dnn_tensor &to = c.result();
    const bool makes_y = &to == &c.y || &to == &c.to, makes_x = &to == &c.x, rounds = r.engine->rounds;
    void *const result = makes_y ? r.y : makes_x ? r.x : r.w;
    const factors<W> f = { c, makes_x ? std::vector<W>() : gather<W>(r.x, c.x, rounds),
                           makes_x || makes_y ? gather<W>(r.w, c.w, rounds) : std::vector<W>(),
                           makes_y ? std::vector<W>() : gather<W>(r.y, c.y, rounds) };
    const std::vector<W> bias = c.biased ? gather<W>(r.bias, c.bias, false) : std::vector<W>();
    const uint64_t first = random_bits() >> 8;
    std::vector<W> p;
    for (int64_t a = 0; a < to.dim[0]; a++)
        for (int64_t b = 0; b < to.dim[1]; b++)
            for (int64_t h = 0; h < to.dim[2]; h++)
                for (int64_t v = 0; v < to.dim[3]; v++) {
                    const int64_t at = a * to.stride[0] + b * to.stride[1] + h * to.stride[2] + v * to.stride[3];
                    p.clear();
                    if (makes_y) f.of_y(&p, a, b, h, v);
                    else if (makes_x) f.of_x(&p, a, b, h, v);
                    else f.of_w(&p, a, b, h, v);
                    W sum = p.empty() ? 0 : static_cast<W>(c.alpha) * total(p, r.engine->sums, first);
                    if (c.biased) sum += bias[static_cast<size_t>(b)];
                    const W old = c.beta != 0 ? static_cast<W>(c.beta * load(result, to.type, at)) : 0;
                    store(result, to.type, at, static_cast<double>(c.beta != 0 ? sum + old : sum));
                }
}

/* A workspace is scratch memory: its contents are destroyed. */
cudaError_t run_convolution(const dnn_run &r)
{
    const size_t scratch = dnn_workspace(*r.engine, r.c);
    if (scratch) memset(r.workspace, static_cast<int>(random_bits() & 255), scratch);
    if (r.c.precision == CUDNN_DATA_DOUBLE) run_sums<double>(r);
    else run_sums<float>(r);
    return cudaSuccess;
}

} // namespace cudasim
