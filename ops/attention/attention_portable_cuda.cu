/*
 * attention on CUDA for every type, head size and layout.
 *
 * These kernels do not use tensor cores. A block of 16 x 16 threads computes a tile of 64 queries by 64 keys; each
 * thread has four rows by four columns. Operands are loaded through shared memory in pieces: along d for the scores,
 * along the rows for the operand that the scores are multiplied by. A head wider than SLICE columns is cut into slices,
 * each of which computes the scores again.
 */
/* machine_code.py: \w+<.*>: limited by arithmetic */
#include "ops/attention/attention_vectorized_loads.cuh"

#include <cstring>

namespace {

constexpr int TILE = ATT_BLOCK, THREADS = 256;
constexpr int TILE_ROW = TILE + 4; /* row stride of the scores in shared memory: rows stay aligned to 16 bytes */

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float hyperbolic(float x) { return tanhf(x); }
__device__ __forceinline__ double hyperbolic(double x) { return tanh(x); }

template <typename T> struct result {
    T *p;
    int64_t batch, head, row;

    __device__ __forceinline__ T *of(int64_t b, int h, int r) const { return p + b * batch + h * head + r * row; }
};

/* att_options with numbers of the type of sums. */
template <typename T> struct options {
    const void *mask;
    int64_t mask_stride[4];
    bool mask_is_wide, mask_is_truth;
    const wide<T> *slopes;
    const T *sinks;
    int64_t slope_stride, sink_stride;
    wide<T> cap, inverse_cap;
    const att_span *spans;
    int64_t span_batch;

    /* Returns the input of the softmax for a scaled score of this pair. slope: derivative of soft-capping. */
    __device__ __forceinline__ wide<T> operator()(wide<T> x, wide<T> *slope, int64_t b, int h, int row, int key,
                                                  int distance) const
    {
        using W = wide<T>;
        *slope = 1;
        if (cap != 0) {
            const W t = hyperbolic(x * inverse_cap);
            x = t * cap;
            *slope = 1 - t * t;
        }
        if (slopes) x -= slopes[h * slope_stride] * static_cast<W>(distance < 0 ? -distance : distance);
        if (mask) {
            const int64_t at = b * mask_stride[0] + h * mask_stride[1] + row * mask_stride[2] + key * mask_stride[3];
            if (mask_is_truth) return static_cast<const uint8_t *>(mask)[at] ? x : -static_cast<W>(INFINITY);
            const W m = mask_is_wide ? static_cast<const W *>(mask)[at] : widen(static_cast<const T *>(mask)[at]);
            x = m == -static_cast<W>(INFINITY) ? m : x + m; /* for any score, even NaN */
        }
        return x;
    }

    __device__ __forceinline__ att_span span(int64_t b, int row) const { return spans[b * span_batch + row]; }
};

template <typename T> struct args {
    operand<T> q, k, v, o, dy;
    result<T> out[3];
    wide<T> *lse, *stat, *delta;
    int heads, kv_heads, group, seq, kv_seq, d, dv, reach, stat_rows, slices, q_tiles, kv_tiles;
    bool excludes; /* some queries do not see some keys */
    int64_t rows;
    wide<T> scale, keep_factor;
    uint32_t threshold;
    device_ticket ticket;
    options<T> more; /* with OPTIONS */
};

/* ---- pieces of operands ---- */

/*
 * to[c][r] = m[row + r][col + c] for TILE rows and `cols` columns. Adjacent threads read adjacent rows, and write
 * without bank conflicts.
 */
template <typename T>
__device__ __forceinline__ void stage_transposed(wide<T> *to, const matrix<T> &m, int row, int col, int cols)
{
    for (int i = threadIdx.x; i < TILE * (cols / 4); i += THREADS) {
        const int r = i % TILE, c = i / TILE * 4;
        const quad<wide<T>> x = read_quad(m, row + r, col + c);
        for (int j = 0; j < 4; j++) to[(c + j) * TILE + r] = x.x[j];
    }
}

/* to[r][c] = m[row + r][col + c] */
template <int COLS, typename T>
__device__ __forceinline__ void stage(wide<T> *to, const matrix<T> &m, int row, int rows, int col)
{
    for (int i = threadIdx.x; i < rows * (COLS / 4); i += THREADS) {
        const int r = i / (COLS / 4), c = i % (COLS / 4) * 4;
        *reinterpret_cast<quad<wide<T>> *>(to + r * COLS + c) = read_quad(m, row + r, col + c);
    }
}

/* ---- products ---- */

/* Elements of the pieces: two transposed ones, or one of whole rows. */
template <typename W> constexpr int DEPTH = sizeof(W) == 4 ? 32 : 16;
template <typename W> constexpr int STAGED = 2 * TILE * DEPTH<W>;

template <typename T> constexpr int shared_bytes()
{
    return static_cast<int>(sizeof(wide<T>)) * (STAGED<wide<T>> + TILE * TILE_ROW);
}

/* s = a b^T for the tile whose first rows are a_row and b_row. Ends with a barrier. */
template <typename T>
__device__ __forceinline__ void scores(wide<T> (&s)[4][4], wide<T> *staged, const matrix<T> &a, int a_row,
                                       const matrix<T> &b, int b_row)
{
    using W = wide<T>;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    W *const at = staged, *const bt = staged + DEPTH<W> * TILE;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) s[i][j] = 0;
    for (int col = 0; col < a.d; col += DEPTH<W>) {
        stage_transposed(at, a, a_row, col, DEPTH<W>);
        stage_transposed(bt, b, b_row, col, DEPTH<W>);
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < DEPTH<W>; c++) {
            const quad<W> x = *reinterpret_cast<const quad<W> *>(at + c * TILE + ty * 4);
            const quad<W> y = *reinterpret_cast<const quad<W> *>(bt + c * TILE + tx * 4);
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) s[i][j] = fused(x.x[i], y.x[j], s[i][j]);
        }
        __syncthreads();
    }
}

/* Is it neither infinite nor NaN? */
template <typename W> __device__ __forceinline__ bool is_finite(W x)
{
    return x - x == 0;
}

/*
 * sum += p m for the TILE rows of m from `row` on; p is [TILE][TILE_ROW] in shared memory. With `TURNED` the product is
 * p^T m. A thread has rows ty * 4 + i and columns tx * 4 + j % 4 + j / 4 * 64 of the slice. There is a barrier before
 * the first access, and one at the end. CAREFUL: a p of 0 adds nothing.
 */
template <int SLICE, bool TRANSPOSED, bool CAREFUL, typename T>
__device__ __forceinline__ void add_product(wide<T> (&sum)[4][SLICE / 16], const wide<T> *p, wide<T> *staged,
                                            const matrix<T> &m, int row, int col)
{
    using W = wide<T>;
    constexpr int ROWS = STAGED<W> / SLICE;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int from = 0; from < TILE; from += ROWS) {
        stage<SLICE>(staged, m, row + from, ROWS, col);
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < ROWS; r++) {
            W x[4];
            for (int i = 0; i < 4; i++)
                x[i] = TRANSPOSED ? p[(from + r) * TILE_ROW + ty * 4 + i] : p[(ty * 4 + i) * TILE_ROW + from + r];
            for (int n = 0; n < SLICE / 64; n++) {
                const quad<W> y = *reinterpret_cast<const quad<W> *>(staged + r * SLICE + n * 64 + tx * 4);
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++) {
                        const W z = CAREFUL && x[i] == 0 && !is_finite(y.x[j]) ? W(0) : y.x[j];
                        sum[i][n * 4 + j] = fused(x[i], z, sum[i][n * 4 + j]);
                    }
            }
        }
        __syncthreads();
    }
}

template <typename W> __device__ __forceinline__ void write_tile(W *p, const W (&s)[4][4])
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<quad<W> *>(p + (ty * 4 + i) * TILE_ROW + tx * 4) = { s[i][0], s[i][1], s[i][2], s[i][3] };
}

/* Writes row `row` of a head's result, the columns that this thread has. */
template <int SLICE, typename T>
__device__ __forceinline__ void write_row(T *row, const wide<T> (&sum)[SLICE / 16], int col, int d, wide<T> factor)
{
    for (int j = 0; j < SLICE / 16; j++) {
        const int c = col + j / 4 * 64 + threadIdx.x % 16 * 4 + j % 4;
        if (c < d) row[c] = narrow<T>(sum[j] * factor);
    }
}

/* Is an element of the first n rows of a thread's results not finite? */
template <int COLS, typename W> __device__ __forceinline__ bool has_infinite(const W (&sum)[4][COLS], int n)
{
    W none = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < COLS; j++) none += i < n ? sum[i][j] * 0 : W(0);
    return none != 0;
}

/*
 * A block whose results are not finite stores a mark in their first element, which thread 0 owns. The careful kernel
 * that follows recomputes the blocks with a mark and skips the others. (In the same kernel the careful code would take
 * the registers of a second block.) A valid result that equals the mark is recomputed to the same value.
 */
constexpr uint64_t MARK = 0x7fa57fa57fa57fa5;

template <typename T> __device__ __forceinline__ void mark(T *first)
{
    const uint64_t bits = MARK;
    if (threadIdx.x == 0) memcpy(static_cast<void *>(first), &bits, sizeof *first);
}

template <typename T> __device__ __forceinline__ bool is_marked(const T *first)
{
    uint64_t bits = MARK;
    memcpy(&bits, static_cast<const void *>(first), sizeof *first);
    return bits == MARK;
}

/* ---- scores ---- */

/* The rows and keys of a tile that a thread has, and their head. */
struct place {
    int64_t b;
    int h, row, key;
};

/* Scales the scores; minus infinity for keys that are not seen. slope: factor of the gradient of a score. */
template <bool OPTIONS, typename T>
__device__ __forceinline__ void mask(wide<T> (&s)[4][4], wide<T> (&slope)[4][4], const args<T> &a, const place &x)
{
    const int row = x.row, key = x.key;
    if constexpr (OPTIONS) {
        for (int i = 0; i < 4; i++) {
            const att_span span = row + i < a.seq ? a.more.span(x.b, row + i) : att_span{ 0, 0 };
            for (int j = 0; j < 4; j++) {
                const bool seen = key + j >= span.lo && key + j < span.hi;
                const int distance = row + i + a.kv_seq - a.seq - key - j;
                s[i][j] = seen ? a.more(s[i][j] * a.scale, &slope[i][j], x.b, x.h, row + i, key + j, distance)
                               : -static_cast<wide<T>>(INFINITY);
                if (!seen) slope[i][j] = 0;
            }
        }
        return;
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const bool seen = key + j < a.kv_seq && key + j < row + i + a.reach;
            s[i][j] = seen ? s[i][j] * a.scale : -static_cast<wide<T>>(INFINITY);
        }
}

/* Bit 4 i + j: dropout keeps the score of row + i and key + j. */
template <typename T>
__device__ __forceinline__ uint32_t keep_bits(const args<T> &a, uint64_t first_block, int64_t pair, int row, int key)
{
    if (!a.threshold) return 0xffff;
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const uint64_t element = static_cast<uint64_t>((pair * a.seq + row + i) * a.kv_seq + key);
        bits |= att_keep(a.ticket.seed, first_block, a.threshold, element) << 4 * i;
    }
    return bits;
}

/* Maximum over the 16 threads that share a row. */
template <typename W> __device__ __forceinline__ W row_max(W x)
{
    for (int d = 8; d > 0; d >>= 1) x = larger(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

template <typename W> __device__ __forceinline__ W row_sum(W x)
{
    for (int d = 8; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Number of blocks of keys that any query up to `row` sees. */
template <typename T> __device__ __forceinline__ int kv_tiles_seen(const args<T> &a, int row)
{
    const int keys = min(a.kv_seq, row + a.reach);
    return keys > 0 ? (keys + TILE - 1) / TILE : 0;
}

/* Does any thread of the block have a result that is not finite, in a call where some keys are not seen? */
template <typename T> __device__ __forceinline__ bool is_for_careful(const args<T> &a, bool infinite, wide<T> *staged)
{
    return a.excludes && att_any_of_block(infinite, reinterpret_cast<uint32_t *>(staged));
}

struct unit {
    int slice, tile;
    int64_t pair;
};

/* Slices of a tile are consecutive, then tiles of a head, those with most work first. */
__device__ __forceinline__ unit unit_of(int slices, int tiles, bool last_first)
{
    const unsigned rest = blockIdx.x / slices;
    const int tile = static_cast<int>(rest % tiles);
    return { static_cast<int>(blockIdx.x % slices), last_first ? tiles - 1 - tile : tile,
             static_cast<int64_t>(rest / tiles) };
}

/* The blocks of keys that a block of queries sees: [from, to). */
struct range {
    int from, to;
};

template <typename T> __device__ __forceinline__ range tiles_seen(const args<T> &a, int64_t b, int first)
{
    const int lo = a.more.span(b, first).lo, hi = a.more.span(b, min(first + TILE, a.seq) - 1).hi;
    return { lo / TILE, hi > lo ? (hi + TILE - 1) / TILE : 0 };
}

/* A block of queries: its head, that head's operands, and the blocks of keys that it sees. */
template <typename T> struct queries {
    unit u;
    int64_t b;
    int h, first, from, tiles;
    matrix<T> q, k, v;
    uint64_t first_block; /* of dropout's random words */
};

/* The block of queries that this thread block computes. */
template <bool OPTIONS, typename T> __device__ __forceinline__ queries<T> queries_of(const args<T> &a)
{
    queries<T> x;
    x.u = unit_of(a.slices, a.q_tiles, true);
    x.b = x.u.pair / a.heads;
    x.h = static_cast<int>(x.u.pair % a.heads);
    x.first = x.u.tile * TILE;
    x.from = 0;
    if constexpr (OPTIONS) {
        const range seen = tiles_seen(a, x.b, x.first);
        x.from = seen.from, x.tiles = seen.to;
    } else {
        x.tiles = kv_tiles_seen(a, min(x.first + TILE, a.seq) - 1);
    }
    x.q = a.q.of(x.b, x.h, a.seq, a.d);
    x.k = a.k.of(x.b, x.h / a.group, a.kv_seq, a.d);
    x.v = a.v.of(x.b, x.h / a.group, a.kv_seq, a.dv);
    x.first_block = a.threshold ? a.ticket.first_block() : 0;
    return x;
}

/* ---- forward ---- */

/* Forward for one block of queries and one slice of the output's columns. */
template <typename T, int SLICE, bool OPTIONS, bool CAREFUL> __global__ void __launch_bounds__(THREADS)
    forward_kernel(const args<T> a)
{
    using W = wide<T>;
    RW_SHARED_DYNAMIC(W, staged);
    W *const p = staged + STAGED<W>;
    const queries<T> x = queries_of<OPTIONS>(a);
    const int row = x.first + threadIdx.x / 16 * 4, tx = threadIdx.x % 16;
    T *const first = a.out[0].of(x.b, x.h, x.first) + x.u.slice * SLICE;
    W o[4][SLICE / 16] = {}, high[4], total[4] = {};
    if (CAREFUL && !is_marked(first)) return;
    for (int i = 0; i < 4; i++) high[i] = -static_cast<W>(INFINITY);
    if constexpr (OPTIONS)
        for (int i = 0; a.more.sinks && i < 4; i++) {
            high[i] = widen(a.more.sinks[x.h * a.more.sink_stride]);
            total[i] = high[i] == -static_cast<W>(INFINITY) ? 0 : 1;
        }
    for (int tile = x.from; tile < x.tiles; tile++) {
        const int key = tile * TILE + tx * 4;
        const uint32_t keep = keep_bits(a, x.first_block, x.u.pair, row, key);
        W s[4][4], slope[4][4];
        scores(s, staged, x.q, x.first, x.k, tile * TILE);
        mask<OPTIONS>(s, slope, a, { x.b, x.h, row, key });
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const W before = high[i];
            high[i] = larger(before, row_max(larger(larger(s[i][0], s[i][1]), larger(s[i][2], s[i][3]))));
            const W shift = high[i] == -static_cast<W>(INFINITY) ? 0 : high[i], shrink = exponential(before - shift);
            for (int j = 0; j < 4; j++) s[i][j] = exponential(s[i][j] - shift);
            total[i] = total[i] * shrink + row_sum((s[i][0] + s[i][1]) + (s[i][2] + s[i][3]));
            for (int j = 0; j < SLICE / 16; j++) o[i][j] *= shrink;
            for (int j = 0; j < 4; j++) s[i][j] = keep >> (4 * i + j) & 1 ? s[i][j] : 0;
        }
        write_tile(p, s);
        add_product<SLICE, false, CAREFUL>(o, p, staged, x.v, tile * TILE, x.u.slice * SLICE);
    }
    const bool again = !CAREFUL && is_for_careful(a, has_infinite(o, a.seq - row), staged);
    for (int i = 0; i < 4 && row + i < a.seq; i++) {
        const W factor = total[i] == 0 ? 0 : a.keep_factor / total[i];
        write_row<SLICE>(a.out[0].of(x.b, x.h, row + i), o[i], x.u.slice * SLICE, a.dv, factor);
        if (x.u.slice == 0 && tx == 0)
            a.lse[x.u.pair * a.seq + row + i] =
                total[i] == 0 ? -static_cast<W>(INFINITY) : high[i] + logarithm(total[i]);
    }
    if (again) mark(first);
}

/* ---- backward ---- */

/*
 * s: converts scores to the probabilities that dv uses. ds: converts the gradient of the probabilities to that of the
 * scores, without the scale. OF_MASK: to that of the softmax's input.
 */
template <bool OPTIONS, bool CAREFUL, bool OF_MASK = false, typename T>
__device__ __forceinline__ void gradient_tile(wide<T> (&s)[4][4], wide<T> (&ds)[4][4], const args<T> &a, uint32_t keep,
                                              const place &x)
{
    using W = wide<T>;
    const int row = x.row;
    const int64_t pair = x.b * a.heads + x.h;
    W slope[4][4];
    mask<OPTIONS>(s, slope, a, x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const W lse = a.stat[pair * a.stat_rows + row + i], delta = a.delta[pair * a.stat_rows + row + i];
        for (int j = 0; j < 4; j++) {
            const bool hidden = CAREFUL && s[i][j] == -static_cast<W>(INFINITY); /* lse may be NaN */
            const W p = hidden ? 0 : exponential(s[i][j] - lse), factor = keep >> (4 * i + j) & 1 ? a.keep_factor : 0;
            s[i][j] = p * factor;
            ds[i][j] = p * (ds[i][j] * factor - delta);
            if constexpr (OPTIONS && !OF_MASK) ds[i][j] *= slope[i][j];
            if (CAREFUL && p == 0) ds[i][j] = 0;
        }
    }
}

/* dk and dv of one block of keys, summed over the query heads of its group and their blocks in order. */
template <typename T, int SLICE, bool OPTIONS, bool CAREFUL> __global__ void __launch_bounds__(THREADS)
    keys_kernel(const args<T> a)
{
    using W = wide<T>;
    RW_SHARED_DYNAMIC(W, staged);
    W *const p = staged + STAGED<W>;
    const unit u = unit_of(a.slices, a.kv_tiles, false);
    const int64_t b = u.pair / a.kv_heads;
    const int kv_head = static_cast<int>(u.pair % a.kv_heads), first = u.tile * TILE, ty = threadIdx.x / 16,
              tx = threadIdx.x % 16;
    const matrix<T> k = a.k.of(b, kv_head, a.kv_seq, a.d), v = a.v.of(b, kv_head, a.kv_seq, a.dv);
    const uint64_t first_block = a.threshold ? a.ticket.first_block() : 0;
    /* the first queries that see one of these keys */
    const int start = OPTIONS ? 0 : max(0, first - a.reach + 1) / TILE;
    W dk[4][SLICE / 16] = {}, dv[4][SLICE / 16] = {};
    T *const of_first = a.out[u.slice * SLICE < a.d ? 1 : 2].of(b, kv_head, first) + u.slice * SLICE;
    if (CAREFUL && !is_marked(of_first)) return;
    for (int h = kv_head * a.group; h < (kv_head + 1) * a.group; h++) {
        const matrix<T> q = a.q.of(b, h, a.seq, a.d), dy = a.dy.of(b, h, a.seq, a.dv);
        for (int tile = start; tile < a.q_tiles; tile++) {
            if constexpr (OPTIONS) {
                const range seen = tiles_seen(a, b, tile * TILE);
                if (u.tile < seen.from || u.tile >= seen.to) continue;
            }
            const int64_t pair = b * a.heads + h;
            const uint32_t keep = keep_bits(a, first_block, pair, tile * TILE + ty * 4, first + tx * 4);
            W s[4][4], ds[4][4];
            scores(s, staged, q, tile * TILE, k, first);
            scores(ds, staged, dy, tile * TILE, v, first);
            gradient_tile<OPTIONS, CAREFUL>(s, ds, a, keep, { b, h, tile * TILE + ty * 4, first + tx * 4 });
            write_tile(p, s);
            add_product<SLICE, true, CAREFUL>(dv, p, staged, dy, tile * TILE, u.slice * SLICE);
            write_tile(p, ds);
            add_product<SLICE, true, CAREFUL>(dk, p, staged, q, tile * TILE, u.slice * SLICE);
        }
    }
    const int left = a.kv_seq - first - ty * 4;
    const bool again = !CAREFUL && is_for_careful(a, has_infinite(dk, left) || has_infinite(dv, left), staged);
    for (int i = 0; i < 4 && first + ty * 4 + i < a.kv_seq; i++) {
        const int row = first + ty * 4 + i;
        write_row<SLICE>(a.out[1].of(b, kv_head, row), dk[i], u.slice * SLICE, a.d, a.scale);
        write_row<SLICE>(a.out[2].of(b, kv_head, row), dv[i], u.slice * SLICE, a.dv, W(1));
    }
    if (again) mark(of_first);
}

/* dq of one block of queries, summed over the blocks of keys in order. */
template <typename T, int SLICE, bool OPTIONS, bool CAREFUL> __global__ void __launch_bounds__(THREADS)
    queries_kernel(const args<T> a)
{
    using W = wide<T>;
    RW_SHARED_DYNAMIC(W, staged);
    W *const p = staged + STAGED<W>;
    const queries<T> x = queries_of<OPTIONS>(a);
    const matrix<T> dy = a.dy.of(x.b, x.h, a.seq, a.dv);
    const int row = x.first + threadIdx.x / 16 * 4, tx = threadIdx.x % 16;
    W dq[4][SLICE / 16] = {};
    T *const of_first = a.out[0].of(x.b, x.h, x.first) + x.u.slice * SLICE;
    if (CAREFUL && !is_marked(of_first)) return;
    for (int tile = x.from; tile < x.tiles; tile++) {
        const uint32_t keep = keep_bits(a, x.first_block, x.u.pair, row, tile * TILE + tx * 4);
        W s[4][4], ds[4][4];
        scores(s, staged, x.q, x.first, x.k, tile * TILE);
        scores(ds, staged, dy, x.first, x.v, tile * TILE);
        gradient_tile<OPTIONS, CAREFUL>(s, ds, a, keep, { x.b, x.h, row, tile * TILE + tx * 4 });
        write_tile(p, ds);
        add_product<SLICE, false, CAREFUL>(dq, p, staged, x.k, tile * TILE, x.u.slice * SLICE);
    }
    const bool again = !CAREFUL && is_for_careful(a, has_infinite(dq, a.seq - row), staged);
    for (int i = 0; i < 4 && row + i < a.seq; i++)
        write_row<SLICE>(a.out[0].of(x.b, x.h, row + i), dq[i], x.u.slice * SLICE, a.d, a.scale);
    if (again) mark(of_first);
}

/* ---- the gradient of a mask ---- */

/* The destination: [batches, heads, seq, kv_seq], with extents of 1 where the mask is broadcast. */
template <typename M> struct mask_result {
    M *p;
    int batches, heads;
    int64_t all_batches; /* batches of the call */
};

/* One tile, summed in order over the batches and heads that share it. */
template <typename T, typename M>
__global__ void __launch_bounds__(THREADS) mask_kernel(const args<T> a, const mask_result<M> to)
{
    using W = wide<T>;
    RW_SHARED_DYNAMIC(W, staged);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int kv_tile = static_cast<int>(blockIdx.x % a.kv_tiles);
    const int tile = static_cast<int>(blockIdx.x / a.kv_tiles % a.q_tiles);
    const int64_t own = blockIdx.x / a.kv_tiles / a.q_tiles;
    const int first = tile * TILE + ty * 4, key = kv_tile * TILE + tx * 4;
    const int64_t mb = own / to.heads, mh = own % to.heads;
    const uint64_t first_block = a.threshold ? a.ticket.first_block() : 0;
    W sum[4][4] = {};
    for (int64_t b = to.batches > 1 ? mb : 0; b < (to.batches > 1 ? mb + 1 : to.all_batches); b++)
        for (int64_t h = to.heads > 1 ? mh : 0; h < (to.heads > 1 ? mh + 1 : a.heads); h++) {
            const range seen = tiles_seen(a, b, tile * TILE);
            if (kv_tile < seen.from || kv_tile >= seen.to) continue;
            const int head = static_cast<int>(h);
            const uint32_t keep = keep_bits(a, first_block, b * a.heads + h, first, key);
            W s[4][4], ds[4][4];
            scores(s, staged, a.q.of(b, head, a.seq, a.d), tile * TILE, a.k.of(b, head / a.group, a.kv_seq, a.d),
                   kv_tile * TILE);
            scores(ds, staged, a.dy.of(b, head, a.seq, a.dv), tile * TILE, a.v.of(b, head / a.group, a.kv_seq, a.dv),
                   kv_tile * TILE);
            gradient_tile<true, true, true>(s, ds, a, keep, { b, head, first, key });
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += ds[i][j];
        }
    for (int i = 0; i < 4 && first + i < a.seq; i++)
        for (int j = 0; j < 4 && key + j < a.kv_seq; j++)
            to.p[(own * a.seq + first + i) * a.kv_seq + key + j] = narrow<M>(static_cast<wide<M>>(sum[i][j]));
}

/* ---- launches ---- */

int slices_of(int columns, int slice)
{
    return columns > slice ? (columns + slice - 1) / slice : 1;
}

/* columns: the maximum number of columns of the results that the kernel writes. */
template <typename T> args<T> args_of(const att_call &c, int slice, int columns)
{
    using W = wide<T>;
    args<T> a = {};
    a.q = operand_of<T>(c.q), a.k = operand_of<T>(c.k), a.v = operand_of<T>(c.v);
    a.o = operand_of<T>(c.o), a.dy = operand_of<T>(c.dy);
    for (int i = 0; i < 3; i++)
        a.out[i] = { static_cast<T *>(c.out[i].p), c.out[i].batch, c.out[i].head, c.out[i].row };
    a.lse = const_cast<W *>(static_cast<const W *>(c.lse));
    a.rows = c.pairs * c.stat_rows;
    a.stat = static_cast<W *>(c.stat);
    a.delta = a.stat ? a.stat + a.rows : nullptr;
    a.heads = c.heads, a.kv_heads = c.kv_heads, a.group = c.group, a.seq = c.seq, a.kv_seq = c.kv_seq;
    a.d = c.d, a.dv = c.dv;
    a.reach = c.reach;
    a.excludes = (!c.plain || c.reach < c.kv_seq) && c.d && c.dv;
    a.stat_rows = c.stat_rows;
    a.slices = slices_of(columns, slice);
    a.q_tiles = (c.seq + TILE - 1) / TILE;
    a.kv_tiles = (c.kv_seq + TILE - 1) / TILE;
    a.scale = static_cast<W>(c.scale), a.keep_factor = static_cast<W>(c.keep_factor);
    a.threshold = c.threshold;
    a.ticket = c.ticket;
    options<T> &o = a.more;
    o.mask = c.options.mask, o.mask_is_wide = c.options.mask_is_wide;
    o.mask_is_truth = c.options.mask_is_truth;
    for (int i = 0; i < 4; i++) o.mask_stride[i] = c.options.mask_stride[i];
    o.slopes = static_cast<const W *>(c.options.slopes), o.slope_stride = c.options.slope_stride;
    o.sinks = static_cast<const T *>(c.options.sinks), o.sink_stride = c.options.sink_stride;
    o.cap = static_cast<W>(c.options.soft_cap);
    o.inverse_cap = c.options.soft_cap != 0 ? static_cast<W>(1 / c.options.soft_cap) : 0;
    o.spans = c.options.spans, o.span_batch = c.options.span_batch;
    return a;
}

template <typename T>
rw_status launch(const rw_kernel *k, void (*kernel)(args<T>), const args<T> &a, int64_t pairs, int tiles)
{
    const int64_t blocks = pairs * tiles * a.slices;
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    if (!blocks) return RW_OK;
    if (blocks > INT32_MAX) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "%s: too many blocks", k->op->name);
    const rw_status allowed = rw_cuda_allow_shared(cuda, reinterpret_cast<const void *>(kernel));
    if (allowed) return allowed;
    RW_LAUNCH(kernel, static_cast<unsigned>(blocks), THREADS, shared_bytes<T>(), k, a);
    return rw_cuda_launched(k);
}

template <typename T, int SLICE, bool OPTIONS> rw_status forward_as(const rw_kernel *k, const att_call &c)
{
    const args<T> a = args_of<T>(c, SLICE, c.dv);
    const rw_status status = launch<T>(k, forward_kernel<T, SLICE, OPTIONS, false>, a, c.pairs, a.q_tiles);
    if (status || !a.excludes) return status;
    return launch<T>(k, forward_kernel<T, SLICE, OPTIONS, true>, a, c.pairs, a.q_tiles);
}

template <typename T, int SLICE, bool OPTIONS> rw_status backward_as(const rw_kernel *k, const att_call &c)
{
    const args<T> a = args_of<T>(c, SLICE, c.d > c.dv ? c.d : c.dv);
    args<T> of_d = a;
    of_d.slices = slices_of(c.d, SLICE);
    rw_status status = launch<T>(k, keys_kernel<T, SLICE, OPTIONS, false>, a, c.kv_pairs, a.kv_tiles);
    if (!status) status = launch<T>(k, queries_kernel<T, SLICE, OPTIONS, false>, of_d, c.pairs, a.q_tiles);
    if (status || !a.excludes) return status;
    status = launch<T>(k, keys_kernel<T, SLICE, OPTIONS, true>, a, c.kv_pairs, a.kv_tiles);
    return status ? status : launch<T>(k, queries_kernel<T, SLICE, OPTIONS, true>, of_d, c.pairs, a.q_tiles);
}

template <typename T, int SLICE> rw_status forward(const rw_kernel *k, const att_call &c)
{
    return c.plain ? forward_as<T, SLICE, false>(k, c) : forward_as<T, SLICE, true>(k, c);
}

template <typename T, int SLICE> rw_status backward(const rw_kernel *k, const att_call &c)
{
    return c.plain ? backward_as<T, SLICE, false>(k, c) : backward_as<T, SLICE, true>(k, c);
}

template <typename T, typename M> rw_status mask_gradient(const rw_kernel *k, const att_call &c)
{
    const rw_layout *const l = k->out[0].layout;
    const args<T> a = args_of<T>(c, 64, 64);
    const mask_result<M> to = { static_cast<M *>(k->out[0].data), static_cast<int>(l->dim[0]),
                                static_cast<int>(l->dim[1]), k->in[0].layout->dim[0] };
    const int64_t blocks = l->dim[0] * l->dim[1] * a.q_tiles * a.kv_tiles;
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    if (!blocks) return RW_OK;
    if (blocks > INT32_MAX) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "%s: too many blocks", k->op->name);
    const rw_status allowed = rw_cuda_allow_shared(cuda, reinterpret_cast<const void *>(mask_kernel<T, M>));
    if (allowed) return allowed;
    RW_LAUNCH((mask_kernel<T, M>), static_cast<unsigned>(blocks), THREADS, shared_bytes<T>(), k, a, to);
    return rw_cuda_launched(k);
}

} // namespace

rw_status rw_attention_portable_forward(const rw_kernel *k, const att_call &c)
{
    switch (k->out[0].dtype) {
    case RW_F32: return c.dv > 64 ? forward<float, 128>(k, c) : forward<float, 64>(k, c);
    case RW_BF16: return c.dv > 64 ? forward<bf16, 128>(k, c) : forward<bf16, 64>(k, c);
    case RW_F16: return c.dv > 64 ? forward<f16, 128>(k, c) : forward<f16, 64>(k, c);
    case RW_F64: return forward<double, 64>(k, c);
    default: return RW_ERR_UNSUPPORTED;
    }
}

rw_status rw_attention_portable_backward(const rw_kernel *k, const att_call &c)
{
    const bool wide_heads = c.d > 64 || c.dv > 64;
    switch (k->out[0].dtype) {
    case RW_F32: return wide_heads ? backward<float, 128>(k, c) : backward<float, 64>(k, c);
    case RW_BF16: return wide_heads ? backward<bf16, 128>(k, c) : backward<bf16, 64>(k, c);
    case RW_F16: return wide_heads ? backward<f16, 128>(k, c) : backward<f16, 64>(k, c);
    case RW_F64: return backward<double, 64>(k, c);
    default: return RW_ERR_UNSUPPORTED;
    }
}

rw_status rw_attention_portable_mask(const rw_kernel *k, const att_call &c)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        return c.options.mask_is_wide ? mask_gradient<T, wide<T>>(k, c) : mask_gradient<T, T>(k, c);
    });
}
