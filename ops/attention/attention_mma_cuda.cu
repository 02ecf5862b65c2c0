/*
 * attention on tensor cores: bfloat16 or float16, heads of 64 or 128 columns, after FlashAttention-2 (arXiv
 * 2307.08691).
 *
 * A warp owns 16 or 32 rows of its block's results, in registers, and loops over tiles of the other operand, which all
 * warps share. Shared memory holds two tiles: one is multiplied while the other is loaded. Scores stay in registers:
 * rounded to 16 bits, their fragments are the left operand of the next product. Backward has two kernels, one that owns
 * keys and one that owns queries. They compute the scores twice, but no sum is shared between blocks, so results do not
 * depend on the order of blocks.
 */
/* Loads are groups of copies to shared memory, which are not counted: only stores are checked. */
/* machine_code.py: stream (forward|queries)_kernel<.*>: load=0, share=0 */
/* machine_code.py: stream keys_kernel<.*>: load=0, share=0, stores=2 */
#include "ops/attention/attention_mma.cuh"

namespace {

/* ---- forward ---- */

/* A unit of work. The blocks of a head are consecutive, those with most work first. */
struct unit {
    int tile, pair;
};

__device__ __forceinline__ unit unit_of(int tiles, bool last_first)
{
    const int tile = static_cast<int>(blockIdx.x % tiles);
    return { last_first ? tiles - 1 - tile : tile, static_cast<int>(blockIdx.x / tiles) };
}

/* Number of rows in the heads before this block's. Recomputed at each use, because there are not enough registers to
   keep it. */
__device__ __forceinline__ int64_t rows_before(const args &a)
{
    return static_cast<int64_t>(blockIdx.x / a.q_tiles) * a.seq;
}

/* Number of tiles of ROWS keys that any query before `end` sees. */
template <int ROWS> __device__ __forceinline__ int tiles_seen(const args &a, int end)
{
    const int keys = min(a.kv_seq, end + a.reach);
    return keys > 0 ? (keys + ROWS - 1) / ROWS : 0;
}

/* Sets a score to minus infinity where a query of the warp, from `row` on, does not see a key of the tile, from `key`
   on. */
template <int M, int N> __device__ __forceinline__ void mask(float (&s)[M][N][4], const args &a, int row, int key)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (key + 8 * N <= min(a.kv_seq, row + a.reach)) return;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int end = min(a.kv_seq, row + i * 16 + half * 8 + g + a.reach) - key;
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * j + 2 * t + c >= end) s[i][j][2 * half + c] = -INFINITY;
        }
}

template <int M, int N> __device__ __forceinline__ void clear(float (&sum)[M][N][4])
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0;
}

/* Scratch words in shared memory, at a time when it is not otherwise used. */
__device__ __forceinline__ uint32_t *room_of(unsigned char *memory)
{
    return reinterpret_cast<uint32_t *>(memory);
}

template <int M> struct running {
    float high[M][2], total[M][2]; /* of the scores before scaling; the sum over this lane's keys alone */
};

/* Converts scores to probabilities relative to the running maximum, and rescales the output so far. */
template <typename T, int D, int M, int N>
__device__ __forceinline__ void softmax(float (&s)[M][N][4], float (&o)[M][D / 8][4], running<M> &run, float scale_2)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = run.high[i][half];
            float high = before;
#pragma unroll
            for (int j = 0; j < N; j++) high = fmaxf(high, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 1));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, 2));
            run.high[i][half] = high;
            const float shift = high == -INFINITY ? 0 : high * scale_2, shrink = power_of_two(before * scale_2 - shift);
            const float lift = LIFT<T> - shift;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float p = power_of_two(fmaf(s[i][j][2 * half + c], scale_2, lift));
                    sum += p;
                    s[i][j][2 * half + c] = p;
                }
            run.total[i][half] = fmaf(run.total[i][half], shrink, sum);
#pragma unroll
            for (int j = 0; j < D / 8; j++) o[i][j][2 * half] *= shrink, o[i][j][2 * half + 1] *= shrink;
        }
}

template <int M, int N> __device__ __forceinline__ void drop(float (&s)[M][N][4], const uint32_t (&keep)[M][N / 4])
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[i][j][c] = is_kept(keep[i], j, c) ? s[i][j][c] : 0;
}

/*
 * 4 warps of 32 queries, tiles of 64 or 32 keys. With 48 or 64 KiB of shared memory and 255 registers in each of 128
 * threads, a multiprocessor runs two blocks, 8 warps.
 */
template <int D> struct forward_tiles {
    static constexpr int WARPS = 4, THREADS = 32 * WARPS, M = 2, ROWS = WARPS * M * 16, KEYS = D == 64 ? 64 : 32,
                         N = KEYS / 8;
    static constexpr int Q = 0, KV = ROWS * D * 2, TILE = KEYS * D * 2, SHARED = KV + 4 * TILE;
};

/* Forward for one block of queries of one head. Repeated carefully if the results are not finite. */
template <typename T, int D, bool DROP>
__global__ void __launch_bounds__(forward_tiles<D>::THREADS, 2) forward_kernel(const args a)
{
    using S = forward_tiles<D>;
    constexpr int M = S::M, N = S::N;
    RW_SHARED_DYNAMIC(unsigned char, memory);
    const shared_address shared = shared_of(memory);
    const unit u = unit_of(a.q_tiles, true);
    const int b = u.pair / a.heads, h = u.pair % a.heads, first = u.tile * S::ROWS, own = threadIdx.x / 32 * M * 16,
              row = first + own;
    const rows q = rows_of(a.q, b, h, a.seq), k = rows_of(a.k, b, h / a.group, a.kv_seq),
               v = rows_of(a.v, b, h / a.group, a.kv_seq);
    const lanes l = lanes_of_warp<D>();
    const uint64_t first_block = DROP ? a.ticket.first_block() : 0;
    const int tiles = tiles_seen<S::KEYS>(a, min(first + S::ROWS, a.seq) - 1);
    float o[M][D / 8][4];
    running<M> run;
    fetch<D, S::ROWS, S::THREADS>(shared + S::Q, q, first);
    const auto attend = [&](auto careful) {
        clear(o);
        for (int i = 0; i < M; i++)
            for (int half = 0; half < 2; half++) run.high[i][half] = -INFINITY, run.total[i][half] = 0;
        fetch<D, S::KEYS, S::THREADS>(shared + S::KV, k, 0);
        fetch<D, S::KEYS, S::THREADS>(shared + S::KV + S::TILE, v, 0);
        copy_commit();
        for (int tile = 0; tile < tiles; tile++) {
            const shared_address here = shared + S::KV + tile % 2 * 2 * S::TILE,
                                 next = shared + S::KV + (tile + 1) % 2 * 2 * S::TILE;
            const int key = tile * S::KEYS;
            if (tile + 1 < tiles) {
                fetch<D, S::KEYS, S::THREADS>(next, k, key + S::KEYS);
                fetch<D, S::KEYS, S::THREADS>(next + S::TILE, v, key + S::KEYS);
            }
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            if (row < a.seq && key < row + M * 16 - 1 + a.reach) {
                float s[M][N][4];
                uint32_t keep[M][N / 4];
#pragma unroll
                for (int i = 0; DROP && i < M; i++)
                    draw<N>(keep[i], a, first_block, rows_before(a) + row + i * 16, key);
                product<T, D, D / 16>(s, shared + S::Q, own, here, 0, l);
                mask(s, a, row, key);
                softmax<T, D>(s, o, run, a.scale_2);
                if (DROP) drop(s, keep);
                add_product<T, D, careful.value>(o, s, here + S::TILE, 0, l);
            }
            __syncthreads();
        }
        copy_wait<0>();
        __syncthreads();
    };
    attend(std::false_type());
    if (a.excludes && att_any_of_block(has_infinite<D>(o, a.seq - row), room_of(memory + S::KV)))
        attend(std::true_type());
    const int lane = threadIdx.x % 32;
    float factor[M][2];
    for (int i = 0; i < M; i++)
        for (int half = 0; half < 2; half++) {
            float total = run.total[i][half];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            factor[i][half] = total == 0 ? 0 : a.keep_factor / total;
            if (lane % 4 == 0 && row + i * 16 + half * 8 + lane / 4 < a.seq)
                a.lse[rows_before(a) + row + i * 16 + half * 8 + lane / 4] =
                    total == 0 ? -INFINITY : fmaf(run.high[i][half], a.scale, logf(total * (1 / LIFTED<T>)));
        }
    write_rows<T, D, M>(rows_of(a.out[0], b, h), row, a.seq, o, factor, shared + S::Q + own * D * 2,
                        [](const pack<uint32_t> &) {});
}

/* ---- backward ---- */

/* The rows of this block's head. Batch and head are recomputed at the end, for the same reason as in rows_before(). */
__device__ __forceinline__ result_rows result_of_pair(const result &x, int tiles, int heads)
{
    const int pair = static_cast<int>(blockIdx.x / tiles);
    return rows_of(x, pair / heads, pair % heads);
}

/* Destination of this block's column sums. before: heads of the packed result before those of this kind. */
template <int D>
__device__ __forceinline__ float *part_of(const args &a, int tiles, int heads, int before, bool last_first)
{
    const unit u = unit_of(tiles, last_first);
    const int64_t columns = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * D;
    return a.part + (static_cast<int64_t>(u.pair / heads) * tiles + u.tile) * columns + (before + u.pair % heads) * D;
}

/*
 * Starts copying the statistics of ROWS rows: the log-sum-exps, then the deltas. The rows are padded, so they are all
 * within the workspace.
 */
template <int ROWS> __device__ __forceinline__ void fetch_stats(shared_address to, const args &a, int pair, int row)
{
    const int i = threadIdx.x * 4;
    const int64_t from = static_cast<int64_t>(pair) * a.stat_rows + row;
    if (i < ROWS) copy_async(to + i * 4, a.stat + from + i, true);
    else if (i < 2 * ROWS) copy_async(to + i * 4, a.delta + from + i - ROWS, true);
}

/*
 * 4 warps of 32 queries; a tile of 64 keys is processed in parts of 32. With 65 or 97 KiB of shared memory and 255
 * registers in each of 128 threads, a multiprocessor of compute capability 9.0 (228 KiB) runs two blocks, 8 warps. One
 * of 8.0 (164 KiB) runs two with d = 64 and one with d = 128, at about half the speed. One of 8.6 or 8.9 (100 KiB) runs
 * one.
 */
template <int D> struct query_tiles {
    static constexpr int WARPS = 4, THREADS = 32 * WARPS, M = 2, ROWS = WARPS * M * 16, KEYS = D == 64 ? 64 : 32, N = 4;
    template <bool DROP> static constexpr int UNROLL = DROP && D == 128 ? 2 : 4;
    static constexpr int Q = 0, DY = ROWS * D * 2, KV = 2 * DY, TILE = KEYS * D * 2, STAT = KV + 4 * TILE,
                         SHARED = STAT + ROWS * 8;
};

/* A probability from a score and the log-sum-exp of its row, which may be NaN for a key that is not seen. */
template <bool CAREFUL> __device__ __forceinline__ float probability(float score, float scale_2, float stat)
{
    return CAREFUL && score == -INFINITY ? 0 : power_of_two(fmaf(score, scale_2, -stat));
}

/* From scores and the gradients of their probabilities after dropout: the gradients of the scores, without the
   scale. */
template <bool DROP, int ROWS, bool CAREFUL, int M, int N>
__device__ __forceinline__ void gradient(float (&ds)[M][N][4], const float (&s)[M][N][4],
                                         const uint32_t (&keep)[M][N / 4], const args &a, const float *stats)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float stat = stats[i * 16 + half * 8], delta = stats[ROWS + i * 16 + half * 8];
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int c = 2 * half; c < 2 * half + 2; c++) {
                    const float p = probability<CAREFUL>(s[i][j][c], a.scale_2, stat);
                    const float dp = !DROP                    ? ds[i][j][c]
                                     : is_kept(keep[i], j, c) ? ds[i][j][c] * a.keep_factor
                                                              : 0;
                    ds[i][j][c] = CAREFUL && p == 0 ? 0 : p * (dp - delta);
                }
        }
}

/* dq for one block of queries of one head: loops over the tiles of keys. */
template <typename T, int D, bool DROP>
__global__ void __launch_bounds__(query_tiles<D>::THREADS, 2) queries_kernel(const args a)
{
    using S = query_tiles<D>;
    constexpr int M = S::M, N = S::N;
    RW_SHARED_DYNAMIC(unsigned char, memory);
    const shared_address shared = shared_of(memory);
    const unit u = unit_of(a.q_tiles, true);
    const int b = u.pair / a.heads, h = u.pair % a.heads, first = u.tile * S::ROWS, own = threadIdx.x / 32 * M * 16,
              row = first + own;
    const rows q = rows_of(a.q, b, h, a.seq), dy = rows_of(a.dy, b, h, a.seq);
    const rows k = rows_of(a.k, b, h / a.group, a.kv_seq), v = rows_of(a.v, b, h / a.group, a.kv_seq);
    const lanes l = lanes_of_warp<D>();
    const uint64_t first_block = DROP ? a.ticket.first_block() : 0;
    const int tiles = tiles_seen<S::KEYS>(a, min(first + S::ROWS, a.seq) - 1);
    const float *const stats = reinterpret_cast<const float *>(memory + S::STAT) + own + threadIdx.x % 32 / 4;
    float dq[M][D / 8][4], unit;
    fetch<D, S::ROWS, S::THREADS>(shared + S::Q, q, first);
    fetch<D, S::ROWS, S::THREADS>(shared + S::DY, dy, first);
    fetch_stats<S::ROWS>(shared + S::STAT, a, u.pair, first);
    const auto add_all = [&](auto careful) {
        clear(dq);
        unit = UNIT_FIRST;
        fetch<D, S::KEYS, S::THREADS>(shared + S::KV, k, 0);
        fetch<D, S::KEYS, S::THREADS>(shared + S::KV + S::TILE, v, 0);
        copy_commit();
        for (int tile = 0; tile < tiles; tile++) {
            const shared_address here = shared + S::KV + tile % 2 * 2 * S::TILE,
                                 next = shared + S::KV + (tile + 1) % 2 * 2 * S::TILE;
            if (tile + 1 < tiles) {
                fetch<D, S::KEYS, S::THREADS>(next, k, (tile + 1) * S::KEYS);
                fetch<D, S::KEYS, S::THREADS>(next + S::TILE, v, (tile + 1) * S::KEYS);
            }
            copy_commit();
            copy_wait<1>();
            __syncthreads();
#pragma unroll 1
            for (int part = 0; part < S::KEYS; part += 8 * N) {
                const int key = tile * S::KEYS + part;
                if (row >= a.seq || key >= min(a.kv_seq, row + M * 16 - 1 + a.reach)) break;
                float s[M][N][4], ds[M][N][4];
                uint32_t keep[M][N / 4];
#pragma unroll
                for (int i = 0; DROP && i < M; i++)
                    draw<N>(keep[i], a, first_block, rows_before(a) + row + i * 16, key);
                product<T, D, S::template UNROLL<DROP>>(s, shared + S::Q, own, here, part, l);
                product<T, D, S::template UNROLL<DROP>>(ds, shared + S::DY, own, here + S::TILE, part, l);
                mask(s, a, row, key);
                gradient<DROP, S::ROWS, careful.value>(ds, s, keep, a, stats);
                if (LIFT<T> > 0) fit<D>(ds, dq, unit);
                add_product<T, D, careful.value>(dq, ds, here, part, l);
            }
            __syncthreads();
        }
        copy_wait<0>();
        __syncthreads();
    };
    add_all(std::false_type());
    if (a.excludes && att_any_of_block(has_infinite<D>(dq, a.seq - row), room_of(memory + S::KV)))
        add_all(std::true_type());
    float factor[M][2];
    for (int i = 0; i < M; i++) factor[i][0] = factor[i][1] = LIFT<T> > 0 ? a.scale / (LIFTED<T> * unit) : a.scale;
    write_gradient<T, D, M>(result_of_pair(a.out[0], a.q_tiles, a.heads), row, a.seq, dq, factor,
                            shared + S::Q + own * D * 2, a.part);
    if (!a.part) return;
    __syncthreads();
    write_part<D, M, S::WARPS>(part_of<D>(a, a.q_tiles, a.heads, 0, true), shared + S::Q);
}

/*
 * 128 keys: 4 warps of 32 (d = 64: 65 KiB of shared memory, 255 registers, two blocks per multiprocessor) or 8 warps of
 * 16 (d = 128: 97 KiB, 255 registers, one block). Tiles of queries are loaded together with their log-sum-exps and
 * deltas.
 */
template <int D> struct key_tiles {
    static constexpr int M = D == 64 ? 2 : 1, WARPS = 8 / M, THREADS = 32 * WARPS, ROWS = 128,
                         QUERIES = D == 64 ? 64 : 32, N = 4;
    template <bool DROP> static constexpr int UNROLL = D == 64 ? 2 : 4;
    static constexpr bool HOLDS = D == 128; /* keeps its keys in registers */
    static constexpr int K = 0, V = ROWS * D * 2, QDY = 2 * V, TILE = QUERIES * D * 2, STAT = 2 * TILE,
                         STEP = STAT + QUERIES * 8;
    static constexpr int SHARED = QDY + 2 * STEP;
};

/* Sets a score to minus infinity where a key of the warp, from `key` on, is not seen by a query of the tile, from `row`
   on. */
template <int M, int N>
__device__ __forceinline__ void mask_transposed(float (&s)[M][N][4], const args &a, int key, int row)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (key + 16 * M <= min(a.kv_seq, row + a.reach)) return;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = key + i * 16 + half * 8 + g;
            /* queries from this one on see the key. A key beyond the last one is seen by none: its score of 0 may be by
               far the largest, and fit() would scale the other gradients by it */
            const int end = own < a.kv_seq ? own - a.reach - row : INT32_MAX;
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * j + 2 * t + c <= end) s[i][j][2 * half + c] = -INFINITY;
        }
}

/* Starts copying the data of one step of keys_kernel: a tile of queries of one head, and its row statistics. */
template <int D> __device__ __forceinline__ void fetch_queries(shared_address to, const args &a, int b, int h, int row)
{
    using S = key_tiles<D>;
    fetch<D, S::QUERIES, S::THREADS>(to, rows_of(a.q, b, h, a.seq), row);
    fetch<D, S::QUERIES, S::THREADS>(to + S::TILE, rows_of(a.dy, b, h, a.seq), row);
    fetch_stats<S::QUERIES>(to + S::STAT, a, b * a.heads + h, row);
}

/* The same for keys by queries; the scores become the probabilities after dropout. */
template <bool DROP, int QUERIES, bool CAREFUL, int M, int N>
__device__ __forceinline__ void gradient_transposed(float (&ds)[M][N][4], float (&s)[M][N][4],
                                                    const uint32_t (&keep)[M][2], const args &a, const float *stats)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float *const stat = stats + 8 * j, *const delta = stat + QUERIES;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float p = probability<CAREFUL>(s[i][j][c], a.scale_2, stat[c % 2]);
                const bool kept = !DROP || keep[i][c / 2] >> (c % 2 * 16 + 4 * j) & 1;
                const float dp = !DROP ? ds[i][j][c] : kept ? ds[i][j][c] * a.keep_factor : 0;
                ds[i][j][c] = CAREFUL && p == 0 ? 0 : p * (dp - delta[c % 2]);
                s[i][j][c] = kept ? p : 0;
            }
    }
}

/* dk and dv for one block of keys of one kv head: loops over its query heads and their tiles. */
template <typename T, int D, bool DROP>
__global__ void __launch_bounds__(key_tiles<D>::THREADS) keys_kernel(const args a)
{
    using S = key_tiles<D>;
    constexpr int M = S::M, N = S::N;
    RW_SHARED_DYNAMIC(unsigned char, memory);
    const shared_address shared = shared_of(memory);
    const unit u = unit_of(a.kv_tiles, false);
    const int b = u.pair / a.kv_heads, kv_head = u.pair % a.kv_heads, first = u.tile * S::ROWS,
              own = threadIdx.x / 32 * M * 16, key = first + own;
    const lanes l = lanes_of_warp<D>();
    const uint64_t first_block = DROP ? a.ticket.first_block() : 0;
    const int start = max(0, first - a.reach + 1) / S::QUERIES; /* the first queries that see one of these keys */
    const int end = (a.seq + S::QUERIES - 1) / S::QUERIES, steps = max(0, end - start) * a.group, t = threadIdx.x % 4;
    float dk[M][D / 8][4], dv[M][D / 8][4], unit;
    fetch<D, S::ROWS, S::THREADS>(shared + S::K, rows_of(a.k, b, kv_head, a.kv_seq), first);
    fetch<D, S::ROWS, S::THREADS>(shared + S::V, rows_of(a.v, b, kv_head, a.kv_seq), first);
    copy_commit();
    uint32_t held[D / 16][M][4]; /* only for d = 128 */
    const auto add_all = [&](auto careful) {
        int next_h = kv_head * a.group, next_tile = start;
        clear(dk), clear(dv);
        unit = UNIT_FIRST;
        if (steps) fetch_queries<D>(shared + S::QDY, a, b, next_h, start * S::QUERIES);
        copy_commit();
        if (S::HOLDS && !careful.value) {
            copy_wait<1>();
            __syncthreads();
            hold<D, M>(held, shared + S::K, own, l);
        }
        for (int step = 0; step < steps; step++) {
            const int here = S::QDY + step % 2 * S::STEP, h = next_h, tile = next_tile;
            if (++next_tile == end) next_tile = start, next_h++;
            if (step + 1 < steps)
                fetch_queries<D>(shared + S::QDY + (step + 1) % 2 * S::STEP, a, b, next_h, next_tile * S::QUERIES);
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            const float *const stats = reinterpret_cast<const float *>(memory + here + S::STAT);
#pragma unroll 1
            for (int part = 0; part < S::QUERIES; part += 8 * N) {
                const int row = tile * S::QUERIES + part;
                if (row >= a.seq || key >= a.kv_seq) break;
                if (row + 8 * N - 1 + a.reach <= key) continue;
                float s[M][N][4], ds[M][N][4];
                uint32_t keep[M][2];
                const int64_t query = static_cast<int64_t>(b * a.heads + h) * a.seq + row;
#pragma unroll
                for (int i = 0; DROP && i < M; i++) draw_transposed(keep[i], a, first_block, query, key + i * 16);
                if (S::HOLDS) product_of_held<T, D>(s, held, shared + here, part, l);
                else product<T, D, S::template UNROLL<DROP>>(s, shared + S::K, own, shared + here, part, l);
                product<T, D, S::template UNROLL<DROP>>(ds, shared + S::V, own, shared + here + S::TILE, part, l);
                mask_transposed(s, a, key, row);
                gradient_transposed<DROP, S::QUERIES, careful.value>(ds, s, keep, a, stats + part + 2 * t);
                add_product<T, D, careful.value>(dv, s, shared + here + S::TILE, part, l);
                if (LIFT<T> > 0) fit<D>(ds, dk, unit);
                add_product<T, D, careful.value>(dk, ds, shared + here, part, l);
            }
            __syncthreads();
        }
        copy_wait<0>();
        __syncthreads();
    };
    add_all(std::false_type());
    const bool infinite = has_infinite<D>(dk, a.kv_seq - key) || has_infinite<D>(dv, a.kv_seq - key);
    if (a.excludes && att_any_of_block(infinite, room_of(memory + S::QDY))) add_all(std::true_type());
    float of_dk[M][2], of_dv[M][2];
    for (int i = 0; i < M; i++) {
        of_dk[i][0] = of_dk[i][1] = LIFT<T> > 0 ? a.scale / (LIFTED<T> * unit) : a.scale;
        of_dv[i][0] = of_dv[i][1] = a.keep_factor / LIFTED<T>;
    }
    write_gradient<T, D, M>(result_of_pair(a.out[1], a.kv_tiles, a.kv_heads), key, a.kv_seq, dk, of_dk,
                            shared + S::K + own * D * 2, a.part);
    write_gradient<T, D, M>(result_of_pair(a.out[2], a.kv_tiles, a.kv_heads), key, a.kv_seq, dv, of_dv,
                            shared + S::V + own * D * 2, a.part);
    if (!a.part) return;
    __syncthreads();
    write_part<D, M, S::WARPS>(part_of<D>(a, a.kv_tiles, a.kv_heads, a.heads, false), shared + S::K);
    write_part<D, M, S::WARPS>(part_of<D>(a, a.kv_tiles, a.kv_heads, a.heads + a.kv_heads, false), shared + S::V);
}

/* ---- launches ---- */

/* The kernel arguments of a call. */
args args_of(const att_call &c, int q_rows, int kv_rows)
{
    const auto of = [](const att_operand &x) {
        return operand{ static_cast<const uint16_t *>(x.p), x.batch, x.head, x.row };
    };
    args a = {};
    a.q = of(c.q), a.k = of(c.k), a.v = of(c.v), a.dy = of(c.dy);
    for (int i = 0; i < 3; i++)
        a.out[i] = { static_cast<uint16_t *>(c.out[i].p), c.out[i].batch, c.out[i].head, c.out[i].row };
    a.lse = const_cast<float *>(static_cast<const float *>(c.lse));
    a.stat = static_cast<const float *>(c.stat);
    a.delta = a.stat ? a.stat + c.pairs * c.stat_rows : nullptr;
    a.part = c.part;
    a.heads = c.heads, a.kv_heads = c.kv_heads, a.group = c.group;
    a.seq = c.seq, a.kv_seq = c.kv_seq, a.reach = c.reach;
    a.excludes = c.reach < c.kv_seq;
    a.stat_rows = c.stat_rows;
    a.q_tiles = (c.seq + q_rows - 1) / q_rows, a.kv_tiles = (c.kv_seq + kv_rows - 1) / kv_rows;
    a.scale = static_cast<float>(c.scale);
    a.scale_2 = static_cast<float>(c.scale * 1.4426950408889634);
    a.keep_factor = static_cast<float>(c.keep_factor);
    a.threshold = c.threshold;
    a.ticket = c.ticket;
    for (uint32_t i = 0; i < RW_PHILOX_ROUNDS; i++) {
        a.keys[2 * i] = static_cast<uint32_t>(c.ticket.seed) + i * RW_PHILOX_KEY_0;
        a.keys[2 * i + 1] = static_cast<uint32_t>(c.ticket.seed >> 32) + i * RW_PHILOX_KEY_1;
    }
    return a;
}

rw_status launch(const rw_kernel *k, void (*kernel)(args), const args &a, int64_t blocks, int threads, int shared)
{
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    if (!blocks) return RW_OK;
    if (blocks > INT32_MAX) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "%s: too many blocks", k->op->name);
    const rw_status allowed = rw_cuda_allow_shared(cuda, reinterpret_cast<const void *>(kernel));
    if (allowed) return allowed;
    RW_LAUNCH(kernel, static_cast<unsigned>(blocks), threads, shared, k, a);
    return rw_cuda_launched(k);
}

template <typename T, int D, bool DROP> rw_status forward(const rw_kernel *k, const att_call &c)
{
    using S = forward_tiles<D>;
    const args a = args_of(c, S::ROWS, S::KEYS);
    return launch(k, forward_kernel<T, D, DROP>, a, c.pairs * a.q_tiles, S::THREADS, S::SHARED);
}

template <typename T, int D, bool DROP> rw_status backward(const rw_kernel *k, const att_call &c)
{
    using K = key_tiles<D>;
    using Q = query_tiles<D>;
    static_assert(K::ROWS == ATT_PART_ROWS && Q::ROWS == ATT_PART_ROWS);
    const args a = args_of(c, Q::ROWS, K::ROWS);
    const rw_status status = launch(k, keys_kernel<T, D, DROP>, a, c.kv_pairs * a.kv_tiles, K::THREADS, K::SHARED);
    return status ? status : launch(k, queries_kernel<T, D, DROP>, a, c.pairs * a.q_tiles, Q::THREADS, Q::SHARED);
}

template <typename T, int D> rw_status run(const rw_kernel *k, const att_call &c, bool back)
{
    if (back) return c.threshold ? backward<T, D, true>(k, c) : backward<T, D, false>(k, c);
    return c.threshold ? forward<T, D, true>(k, c) : forward<T, D, false>(k, c);
}

rw_status run(const rw_kernel *k, const att_call &c, bool back)
{
    if (k->out[0].dtype == RW_F16) return c.d == 64 ? run<f16, 64>(k, c, back) : run<f16, 128>(k, c, back);
    return c.d == 64 ? run<bf16, 64>(k, c, back) : run<bf16, 128>(k, c, back);
}

} // namespace

rw_status rw_attention_mma_forward(const rw_kernel *k, const att_call &c)
{
    return run(k, c, false);
}

rw_status rw_attention_mma_backward(const rw_kernel *k, const att_call &c)
{
    return run(k, c, true);
}
