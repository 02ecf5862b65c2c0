/*
 * embedding on CUDA. The gradient sorts the tokens by row with a stable radix sort, least significant digit first. Then
 * it adds runs of RW_SUM_RUN sorted tokens in order, and combines rows that extend over several runs, also in order.
 * The indices alone determine where a sum is cut.
 */
/* machine_code.py: stream gather_kernel<unit16> */
/* machine_code.py: stream sum_kernel<(float, 4|__half, 8|__nv_bfloat16, 8|double, 2)>: share=1 */
/* machine_code.py: (count|scan|scatter)_kernel: the sort: four bytes per token */
/* machine_code.py: stitch_kernel<.*>: rows that extend over several runs: few */
/* machine_code.py: (gather|sum)_kernel<.*>: rows that do not divide into packs */
#include "ops/common/wide_copies.cuh"

#include "ops/embedding/embedding.h"

namespace {

constexpr int THREADS = 256;
constexpr int UNROLL = 4;

/* ---- forward: rows in units as wide as alignment allows ---- */

struct gather_args {
    int64_t n; /* units of the result */
    map_divider width;
    int64_t rows;
};

/* Copies the rows of the table, several units per thread. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(const T *table, const int32_t *index, T *y, const __grid_constant__ gather_args a, index_guard guard)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    const int64_t width = static_cast<int64_t>(a.width.d);
    int64_t column[UNROLL];
    const int32_t *token[UNROLL];
    int32_t row[UNROLL];
    T v[UNROLL] = {};
    /* All indices are loaded before the first row, and no load is conditional: otherwise loads would wait for one
       another. Beyond the end the last element is repeated; an index out of range reads the first row. */
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int64_t i = first + u * THREADS < a.n ? first + u * THREADS : a.n - 1;
        const int64_t t = static_cast<int64_t>(a.width.quotient(static_cast<uint64_t>(i)));
        token[u] = index + t;
        column[u] = i - t * width;
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) row[u] = *token[u];
    bool outside[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) outside[u] = row[u] < 0 || row[u] >= a.rows;
    if (a.rows) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = table[(outside[u] ? 0 : row[u]) * width + column[u]];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (outside[u]) guard.report();
        if (first + u * THREADS < a.n) y[first + u * THREADS] = outside[u] ? T{} : v[u];
    }
}

template <typename T> rw_status gather(const rw_kernel *k, int64_t width)
{
    gather_args a = {};
    a.n = k->in[1].layout->numel * width;
    a.width.set(width);
    a.rows = k->in[0].layout->dim[0];
    RW_LAUNCH(gather_kernel<T>, blocks_for(a.n, THREADS * UNROLL), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<const int32_t *>(k->in[1].data), static_cast<T *>(k->out[0].data), a, guard_of(k));
    return rw_cuda_launched(k);
}

/* ---- the sort: keys are rows; an index out of range becomes the row after the last, and is not summed ---- */

constexpr int SORT_WARPS = THREADS / 32;
constexpr int SORT_ITEMS = RW_SORT_TILE / THREADS;
static_assert(THREADS == RW_SORT_DIGITS, "a thread looks after one digit");

struct sort_pass {
    const int32_t *index; /* for the first pass, which has no keys yet; else NULL */
    const int32_t *keys, *tokens;
    int32_t *to_keys, *to_tokens;
    int32_t *counts; /* [digit][tile] */
    int64_t n, rows, tiles;
    int shift;
};

__device__ __forceinline__ int32_t key_of(const sort_pass &p, int64_t i)
{
    const int32_t key = (p.index ? p.index : p.keys)[i];
    return !p.index || (key >= 0 && key < p.rows) ? key : static_cast<int32_t>(p.rows);
}

__device__ __forceinline__ int digit_of(const sort_pass &p, int32_t key)
{
    return static_cast<int>(static_cast<uint32_t>(key) >> p.shift) & (RW_SORT_DIGITS - 1);
}

/* Counts the digits of each tile. */
__global__ void __launch_bounds__(THREADS) count_kernel(const sort_pass p, index_guard guard)
{
    __shared__ int32_t count[RW_SORT_DIGITS];
    const int64_t base = static_cast<int64_t>(blockIdx.x) * RW_SORT_TILE + threadIdx.x;
    int32_t key[SORT_ITEMS];
    count[threadIdx.x] = 0;
#pragma unroll
    for (int j = 0; j < SORT_ITEMS; j++) key[j] = base + j * THREADS < p.n ? key_of(p, base + j * THREADS) : 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < SORT_ITEMS; j++) {
        if (base + j * THREADS >= p.n) break;
        if (p.index && key[j] == p.rows) guard.report();
        atomicAdd(&count[digit_of(p, key[j])], 1);
    }
    __syncthreads();
    p.counts[threadIdx.x * p.tiles + blockIdx.x] = count[threadIdx.x];
}

constexpr int SCAN_THREADS = 1024;

/* Replaces each count by the sum of the counts before it. One block: each thread has a range of them. */
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(int32_t *counts, int64_t n)
{
    __shared__ int32_t warp_sum_of[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t each = (n + SCAN_THREADS - 1) / SCAN_THREADS, from = threadIdx.x * each;
    const int64_t to = from + each < n ? from + each : n;
    int32_t sum = 0;
    for (int64_t i = from; i < to; i++) sum += counts[i];
    int32_t before = sum; /* includes this thread's own, which is subtracted below */
    for (int d = 1; d < 32; d <<= 1) {
        const int32_t other = __shfl_up_sync(0xffffffffu, before, d);
        if (lane >= d) before += other;
    }
    if (lane == 31) warp_sum_of[warp] = before;
    __syncthreads();
    int32_t warps = warp_sum_of[lane];
    for (int d = 1; d < 32; d <<= 1) {
        const int32_t other = __shfl_up_sync(0xffffffffu, warps, d);
        if (lane >= d) warps += other;
    }
    const int32_t warps_before = __shfl_sync(0xffffffffu, warps, warp ? warp - 1 : 0);
    before += (warp ? warps_before : 0) - sum;
    for (int64_t i = from; i < to; i++) {
        const int32_t count = counts[i];
        counts[i] = before;
        before += count;
    }
}

/* A warp ranks its part of the tile 32 tokens at a time, in order, so the sort is stable. */
__global__ void __launch_bounds__(THREADS) scatter_kernel(const sort_pass p)
{
    __shared__ int32_t place[SORT_WARPS][RW_SORT_DIGITS + 1]; /* the last one is for threads without a token */
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t base = static_cast<int64_t>(blockIdx.x) * RW_SORT_TILE + warp * (32 * SORT_ITEMS) + lane;
    int32_t key[SORT_ITEMS], token[SORT_ITEMS], rank[SORT_ITEMS];
#pragma unroll
    for (int j = 0; j < SORT_ITEMS; j++) {
        const int64_t i = base + j * 32;
        key[j] = i < p.n ? key_of(p, i) : 0;
        token[j] = i < p.n && !p.index ? p.tokens[i] : static_cast<int32_t>(i);
    }
    for (int d = lane; d <= RW_SORT_DIGITS; d += 32) place[warp][d] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < SORT_ITEMS; j++) {
        const int64_t i = base + j * 32;
        const int digit = i < p.n ? digit_of(p, key[j]) : RW_SORT_DIGITS;
        const uint32_t equal = __match_any_sync(0xffffffffu, digit), below = equal & ((1u << lane) - 1);
        const int32_t counted = place[warp][digit];
        __syncwarp();
        if (!below) place[warp][digit] = counted + __popc(equal);
        __syncwarp();
        rank[j] = counted + __popc(below);
    }
    __syncthreads();
    int32_t at = p.counts[threadIdx.x * p.tiles + blockIdx.x];
    for (int w = 0; w < SORT_WARPS; w++) {
        const int32_t count = place[w][threadIdx.x];
        place[w][threadIdx.x] = at;
        at += count;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < SORT_ITEMS; j++) {
        const int64_t i = base + j * 32;
        if (i >= p.n) continue;
        const int32_t to = place[warp][digit_of(p, key[j])] + rank[j];
        p.to_keys[to] = key[j];
        p.to_tokens[to] = token[j];
    }
}

/* Returns which of the two halves of the workspace holds the sorted tokens. */
int sort(const rw_kernel *k, const rw_embedding_space &s, int64_t n, int64_t rows)
{
    char *const space = static_cast<char *>(k->workspace);
    sort_pass p = {};
    p.n = n, p.rows = rows, p.tiles = blocks_for(n, RW_SORT_TILE);
    p.index = static_cast<const int32_t *>(k->in[1].data);
    p.counts = reinterpret_cast<int32_t *>(space + s.counts);
    int half = 1;
    for (p.shift = 0; p.shift == 0 || rows >> p.shift; p.shift += 8) {
        p.keys = reinterpret_cast<int32_t *>(space + s.keys[half]);
        p.tokens = reinterpret_cast<int32_t *>(space + s.tokens[half]);
        half = 1 - half;
        p.to_keys = reinterpret_cast<int32_t *>(space + s.keys[half]);
        p.to_tokens = reinterpret_cast<int32_t *>(space + s.tokens[half]);
        RW_LAUNCH(count_kernel, static_cast<unsigned>(p.tiles), THREADS, 0, k, p, guard_of(k));
        RW_LAUNCH(scan_kernel, 1, SCAN_THREADS, 0, k, p.counts, p.tiles * RW_SORT_DIGITS);
        RW_LAUNCH(scatter_kernel, static_cast<unsigned>(p.tiles), THREADS, 0, k, p);
        p.index = nullptr;
    }
    return half;
}

/* ---- the sums ---- */

constexpr int SUM_THREADS = 128, SUM_AHEAD = 4;

template <typename T> struct sum_args {
    const T *dy;
    const int32_t *keys, *tokens; /* sorted */
    T *table;
    wide<T> *wide_table; /* used instead if the table is float32 and dy has 16 bits; else NULL */
    wide<T> *sums; /* [run][start, end][width] */
    bool adds;     /* adds to the values of the table */
    int64_t n, rows, width, blocks; /* blocks: per row of columns */
};

template <typename T, int P> struct alignas(sizeof(T) * P) columns {
    T x[P];
};

/* Stores a row's sum, added to the addend if there is one. */
template <typename T, int P>
__device__ __forceinline__ void put_row(const sum_args<T> &a, int64_t row, int64_t col, const wide<T> *sum)
{
    if (a.wide_table) {
        constexpr int N = P < 4 ? P : 4; /* 16 bytes of them */
#pragma unroll
        for (int h = 0; h < P; h += N) {
            wide<T> *const to = a.wide_table + row * a.width + col + h;
            columns<wide<T>, N> w = {};
            if (a.adds) w = *reinterpret_cast<const columns<wide<T>, N> *>(to);
#pragma unroll
            for (int l = 0; l < N; l++) w.x[l] = a.adds ? sum[h + l] + w.x[l] : sum[h + l];
            store_global(to, w);
        }
        return;
    }
    columns<T, P> v = {};
    if (a.adds) v = *reinterpret_cast<const columns<T, P> *>(a.table + row * a.width + col);
#pragma unroll
    for (int l = 0; l < P; l++) v.x[l] = narrow<T>(a.adds ? sum[l] + widen(v.x[l]) : sum[l]);
    store_global(a.table + row * a.width + col, v);
}

/* Sums RW_SUM_RUN sorted tokens, P columns per thread. Rows that extend into the previous or next run are left to
   stitch_kernel. */
template <typename T, int P> __global__ void __launch_bounds__(SUM_THREADS) sum_kernel(const sum_args<T> a)
{
    /* Keys, with the previous and the next one; -1 if there is none. */
    __shared__ int32_t keys[RW_SUM_RUN + 2], tokens[RW_SUM_RUN];
    const int64_t run = blockIdx.x / a.blocks, first = run * RW_SUM_RUN;
    const int64_t col = (blockIdx.x % a.blocks * SUM_THREADS + threadIdx.x) * P;
    const int n = static_cast<int>(a.n - first < RW_SUM_RUN ? a.n - first : RW_SUM_RUN);
    for (int i = threadIdx.x; i < n + 2; i += SUM_THREADS) {
        const int64_t at = first + i - 1;
        keys[i] = at >= 0 && at < a.n ? a.keys[at] : -1;
        if (i < n) tokens[i] = a.tokens[first + i];
    }
    __syncthreads();
    if (col >= a.width) return;
    wide<T> sum[P] = {};
    bool begins = keys[0] != keys[1]; /* whether the current row begins in this run */
    for (int from = 0; from < n; from += SUM_AHEAD) {
        columns<T, P> v[SUM_AHEAD] = {};
#pragma unroll
        for (int u = 0; u < SUM_AHEAD; u++)
            if (from + u < n)
                v[u] = *reinterpret_cast<const columns<T, P> *>(a.dy + tokens[from + u] * a.width + col);
#pragma unroll
        for (int u = 0; u < SUM_AHEAD; u++) {
            const int i = from + u;
            if (i >= n) break;
#pragma unroll
            for (int l = 0; l < P; l++) sum[l] += widen(v[u].x[l]);
            const int32_t row = keys[1 + i];
            if (i + 1 < n && keys[2 + i] == row) continue;
            if (row >= a.rows) return; /* all others are out of range */
            if (begins && keys[2 + i] != row) {
                put_row<T, P>(a, row, col, sum);
            } else {
                wide<T> *const to = a.sums + (2 * run + begins) * a.width + col;
#pragma unroll
                for (int l = 0; l < P; l++) to[l] = sum[l];
            }
            begins = true;
#pragma unroll
            for (int l = 0; l < P; l++) sum[l] = 0;
        }
    }
}

/* A row that begins in this run and extends beyond it: adds its sums of all runs, in order. */
template <typename T, int P> __global__ void __launch_bounds__(SUM_THREADS) stitch_kernel(const sum_args<T> a)
{
    const int64_t run = blockIdx.x / a.blocks, first = run * RW_SUM_RUN, end = first + RW_SUM_RUN;
    const int64_t col = (blockIdx.x % a.blocks * SUM_THREADS + threadIdx.x) * P;
    if (end >= a.n || col >= a.width) return;
    const int32_t row = a.keys[end - 1];
    if (row >= a.rows || a.keys[end] != row || (first > 0 && a.keys[first - 1] == row)) return;
    int64_t low = end, high = a.n; /* the end of the row is in (low, high] */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (a.keys[middle] == row) low = middle;
        else high = middle;
    }
    const int64_t last = low / RW_SUM_RUN;
    wide<T> sum[P];
#pragma unroll
    for (int l = 0; l < P; l++) sum[l] = a.sums[(2 * run + 1) * a.width + col + l];
#pragma unroll 4
    for (int64_t r = run + 1; r <= last; r++)
#pragma unroll
        for (int l = 0; l < P; l++) sum[l] += a.sums[2 * r * a.width + col + l];
    put_row<T, P>(a, row, col, sum);
}

template <typename T, int P> rw_status launch_sums(const rw_kernel *k, sum_args<T> *a)
{
    const int64_t runs = blocks_for(a->n, RW_SUM_RUN);
    a->blocks = blocks_for(a->width, SUM_THREADS * P);
    RW_LAUNCH((sum_kernel<T, P>), static_cast<unsigned>(runs * a->blocks), SUM_THREADS, 0, k, *a);
    RW_LAUNCH((stitch_kernel<T, P>), static_cast<unsigned>(runs * a->blocks), SUM_THREADS, 0, k, *a);
    return rw_cuda_launched(k);
}

/* Launches the sums for sorted tokens. */
template <typename T> rw_status sum_rows(const rw_kernel *k, const rw_embedding_space &s, int half)
{
    constexpr int P = pack<T>::size;
    char *const space = static_cast<char *>(k->workspace);
    sum_args<T> a = {};
    a.dy = static_cast<const T *>(k->in[0].data);
    a.keys = reinterpret_cast<int32_t *>(space + s.keys[half]);
    a.tokens = reinterpret_cast<int32_t *>(space + s.tokens[half]);
    a.table = static_cast<T *>(k->out[0].data);
    if (k->out[0].dtype != k->in[0].dtype) a.wide_table = static_cast<wide<T> *>(k->out[0].data);
    a.sums = reinterpret_cast<wide<T> *>(space + s.sums);
    a.adds = rw_kernel_has(k, 2);
    a.n = k->in[1].layout->numel;
    a.rows = k->out[0].layout->dim[0], a.width = k->out[0].layout->dim[1];
    /* Columns are independent: the number of columns per thread does not affect the result. */
    if (a.width % P == 0 && is_aligned_16(a.dy) && is_aligned_16(a.table)) return launch_sums<T, P>(k, &a);
    return launch_sums<T, 1>(k, &a);
}

} // namespace

extern "C" rw_status rw_embedding_cuda(const rw_kernel *k)
{
    const int64_t row = k->in[0].layout->dim[1] * static_cast<int64_t>(rw_dtype_size(k->in[0].dtype));
    if (!k->out[0].layout->numel) return RW_OK;
    const int64_t unit = widest_unit(row, k->in[0].data);
    switch (unit) {
    case 2: return gather<uint16_t>(k, row / unit);
    case 4: return gather<uint32_t>(k, row / unit);
    case 8: return gather<uint64_t>(k, row / unit);
    default: return gather<unit16>(k, row / unit);
    }
}

extern "C" size_t rw_embedding_backward_workspace_cuda(const rw_op_call *call)
{
    const rw_table_attrs *const a = static_cast<const rw_table_attrs *>(call->attrs);
    return rw_embedding_space_of(call->in[1].layout->numel, a->width, call->in[0].dtype).bytes;
}

/* Sorts the tokens and sums the rows. */
extern "C" rw_status rw_embedding_backward_cuda(const rw_kernel *k)
{
    const rw_layout *const table = k->out[0].layout;
    const int64_t n = k->in[1].layout->numel;
    if (!table->numel) return RW_OK;
    /* Initializes rows without tokens, and the addends of the others. */
    const size_t bytes = static_cast<size_t>(table->numel) * rw_dtype_size(k->out[0].dtype);
    cudaError_t error = cudaSuccess;
    if (!rw_kernel_has(k, 2)) error = cudaMemsetAsync(k->out[0].data, 0, bytes, rw_stream(k));
    else if (k->in[2].data != k->out[0].data)
        error = cudaMemcpyAsync(k->out[0].data, k->in[2].data, bytes, cudaMemcpyDeviceToDevice, rw_stream(k));
    if (error) return rw_cuda_status(static_cast<rw_cuda *>(k->device), error, "the table's gradient");
    if (!n) return RW_OK;
    const rw_embedding_space s = rw_embedding_space_of(n, table->dim[1], k->in[0].dtype);
    if (k->workspace_bytes < s.bytes) return RW_ERR_MEMORY;
    const int half = sort(k, s, n, table->dim[0]);
    return with_float_type(k->in[0].dtype, [&](auto type) { return sum_rows<decltype(type)>(k, s, half); });
}
