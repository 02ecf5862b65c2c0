/*
 * Building blocks of attention's tensor-core kernels: tiles in shared memory, products of a warp, dropout's random bits
 * by fragment.
 *
 * Rows in shared memory are divided into 16-byte chunks. Chunk c of row r is stored at position c ^ (r & 7), so eight
 * rows of a matrix are in different banks, and so are eight chunks of a row.
 */
#ifndef RW_OPS_ATTENTION_MMA_CUH
#define RW_OPS_ATTENTION_MMA_CUH

#include "ops/attention/attention_cuda.cuh"
#include "ops/common/mma.cuh"

#include <cstring>
#include <type_traits>

namespace {

constexpr unsigned ALL_LANES = 0xffffffffu;

/* Elements are 16 bits wide; only the products depend on their type. */
struct operand {
    const uint16_t *p;
    int64_t batch, head, row;
};

struct result {
    uint16_t *p;
    int64_t batch, head, row;
};

struct args {
    operand q, k, v, dy;
    result out[3];
    float *lse;
    const float *stat, *delta; /* for backward; stat is the log-sum-exp in base 2 */
    float *part; /* for a packed backward: column sums of each batch and tile; NULL: not requested */
    int heads, kv_heads, group, seq, kv_seq, reach, stat_rows, q_tiles, kv_tiles;
    bool excludes; /* some queries do not see some keys */
    float scale, scale_2, keep_factor; /* scale_2: scale * log2(e) */
    uint32_t threshold;
    uint32_t keys[2 * RW_PHILOX_ROUNDS]; /* keys of the Philox rounds, for dropout */
    device_ticket ticket;
};

/* The rows of one head. */
struct rows {
    const uint16_t *p;
    int64_t row;
    int n;
};

__device__ __forceinline__ rows rows_of(const operand &x, int b, int h, int n)
{
    return { x.p + b * x.batch + h * x.head, x.row, n };
}

/* The rows of the result for one (batch, head) pair. */
struct result_rows {
    uint16_t *p;
    int64_t row;
};

__device__ __forceinline__ result_rows rows_of(const result &x, int b, int h)
{
    return { x.p + b * x.batch + h * x.head, x.row };
}

/* ---- shared memory ---- */

template <int D> __device__ __forceinline__ int place(int row, int chunk)
{
    return row * D * 2 + ((chunk ^ (row & 7)) << 4);
}

/* Starts copying rows [row, row + ROWS) to shared memory; zeros after the last one. */
template <int D, int ROWS, int THREADS> __device__ __forceinline__ void fetch(shared_address to, const rows &x, int row)
{
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const uint16_t *from = x.p + (row + first) * x.row + chunk * 8;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP, from += STEP * x.row) {
        const bool valid = row + first + r < x.n;
        copy_async(to + place<D>(first + r, chunk), valid ? from : x.p, valid);
    }
}

/*
 * The row and chunk whose address a lane supplies for four matrices of 16 rows by 16 columns. left: for a left operand,
 * which transposed is also a right one. right: for a right operand whose rows are the columns of the result.
 */
struct lanes {
    int left, right;
};

template <int D> __device__ __forceinline__ lanes lanes_of_warp()
{
    const int lane = threadIdx.x % 32;
    return { place<D>(lane % 16, lane / 16), place<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2) };
}

/* Addresses of the matrices of rows [row, row + 16) and columns [16 step, 16 step + 16); row is a multiple of 16. */
template <int D> __device__ __forceinline__ shared_address at(shared_address tile, int row, int lane, int step)
{
    return tile + row * D * 2 + (lane ^ (step << 5));
}

/* ---- products ---- */

/*
 * c [16 M, 8 N] = x y^T, with the rows of y from y_row on. left(a, step) loads columns [16 step, 16 step + 16) of x.
 * UNROLL: number of steps whose operands may be in registers at once.
 */
template <typename T, int D, int UNROLL, typename Left, int M, int N>
__device__ __forceinline__ void product_of(float (&c)[M][N][4], const Left &left, shared_address y, int y_row, lanes l)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
#pragma unroll UNROLL
    for (int step = 0; step < D / 16; step++) {
        uint32_t a[M][4];
        left(a, step);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t b[4];
            load_matrices(b, at<D>(y, y_row + j * 8, l.right, step));
#pragma unroll
            for (int i = 0; i < M; i++) {
                multiply<T>(c[i][j], a[i], b[0], b[1]);
                multiply<T>(c[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* The same with x in shared memory, its rows from x_row on. */
template <typename T, int D, int UNROLL, int M, int N>
__device__ __forceinline__ void product(float (&c)[M][N][4], shared_address x, int x_row, shared_address y, int y_row,
                                        lanes l)
{
    const auto left = [&](uint32_t(&a)[M][4], int step) {
#pragma unroll
        for (int i = 0; i < M; i++) load_matrices(a[i], at<D>(x, x_row + i * 16, l.left, step));
    };
    product_of<T, D, UNROLL>(c, left, y, y_row, l);
}

/* Loads a left operand into registers for use in many products: rows of x from x_row on. */
template <int D, int M>
__device__ __forceinline__ void hold(uint32_t (&held)[D / 16][M][4], shared_address x, int x_row, lanes l)
{
#pragma unroll
    for (int step = 0; step < D / 16; step++)
#pragma unroll
        for (int i = 0; i < M; i++) load_matrices(held[step][i], at<D>(x, x_row + i * 16, l.left, step));
}

template <typename T, int D, int M, int N>
__device__ __forceinline__ void product_of_held(float (&c)[M][N][4], const uint32_t (&held)[D / 16][M][4],
                                                shared_address y, int y_row, lanes l)
{
    const auto left = [&](uint32_t(&a)[M][4], int step) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) a[i][c] = held[step][i][c];
    };
    product_of<T, D, D / 16>(c, left, y, y_row, l);
}

/*
 * float16 has a small range, so values are scaled before they are rounded to it for a product. Probabilities are kept
 * times 2^LIFT: one of 2^-24 then keeps full precision, and an overflow would require the rounding of the scores to
 * double a probability six times. bfloat16 has the range of float.
 */
template <typename T> constexpr float LIFT = 0;
template <> constexpr float LIFT<f16> = ATT_LIFT_F16;
template <typename T> constexpr float LIFTED = 1;
template <> constexpr float LIFTED<f16> = static_cast<float>(1 << ATT_LIFT_F16);

constexpr float UNIT_FIRST = 0x1p100f;

/*
 * The gradients of scores have no bounded range, so a warp keeps them, and their sums, times a power of two: the
 * largest for which no gradient so far exceeds 2^15. When a larger gradient arrives, the power is reduced and the sums
 * are rescaled, which is exact. Terms below 2^-38 of the largest gradient are lost. Infinities and NaNs stay as they
 * are, in their places.
 */
template <int D, int M, int N>
__device__ __forceinline__ void fit(float (&ds)[M][N][4], float (&sum)[M][D / 8][4], float &unit)
{
    constexpr uint32_t INFINITE = 0x7f800000u;
    uint32_t most = 0, finite = 0;
#pragma unroll
    for (int i = 0; i < M * N * 4; i++)
        most = max(most, __float_as_uint(ds[i / (N * 4)][i / 4 % N][i % 4]) & ~(1u << 31));
    most = __reduce_max_sync(ALL_LANES, most);
    if (most >= INFINITE) {
#pragma unroll
        for (int i = 0; i < M * N * 4; i++) {
            const uint32_t x = __float_as_uint(ds[i / (N * 4)][i / 4 % N][i % 4]) & ~(1u << 31);
            if (x < INFINITE) finite = max(finite, x);
        }
        most = __reduce_max_sync(ALL_LANES, finite);
    }
    if (__uint_as_float(most) * unit > 0x1p15f) {
        const float next = __uint_as_float((2 * 127 + 14 - (most >> 23)) << 23), shrink = next / unit;
        unit = next;
#pragma unroll
        for (int i = 0; i < M * (D / 8) * 4; i++) sum[i / (D / 2)][i / 4 % (D / 8)][i % 4] *= shrink;
    }
#pragma unroll
    for (int i = 0; i < M * N * 4; i++) ds[i / (N * 4)][i / 4 % N][i % 4] *= unit;
}

/* ---- infinity and NaN in rows that are not seen: att_any_of_block() ---- */

/* A bit for each half of a pair that is infinite or NaN. */
template <typename T> __device__ __forceinline__ uint32_t infinite_halves(uint32_t x)
{
    constexpr uint32_t EXPONENT = std::is_same<T, f16>::value ? 0x7c00 : 0x7f80;
    return static_cast<uint32_t>((x & EXPONENT) == EXPONENT) |
           static_cast<uint32_t>((x >> 16 & EXPONENT) == EXPONENT) << 1;
}

__device__ __forceinline__ uint32_t without_halves(uint32_t x, uint32_t halves)
{
    return x & ~((halves & 1 ? 0xffffu : 0) | (halves & 2 ? 0xffff0000u : 0));
}

/* Half `i` of a pair, converted to float. */
template <typename T> __device__ __forceinline__ float half_of_pair(uint32_t x, int i)
{
    const uint16_t bits = static_cast<uint16_t>(i ? x >> 16 : x);
    T half;
    memcpy(static_cast<void *>(&half), &bits, sizeof half);
    return widen(half);
}

/*
 * c [16, 8] += a b, in the order of multiply(): first with the finite elements of b, then with the others where a is
 * not 0. Element (k, g) of b is in lane 4 g + k % 8 / 2, (row, k) of a in lane 4 (row % 8) + k % 8 / 2.
 */
template <typename T>
__device__ __forceinline__ void multiply_careful(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t halves[2] = { infinite_halves<T>(b[0]), infinite_halves<T>(b[1]) };
    multiply<T>(c, a, without_halves(b[0], halves[0]), without_halves(b[1], halves[1]));
#pragma unroll 1
    for (int k = 0; k < 16; k++) {
        const int from = k % 8 / 2, upper = k / 8;
        const uint32_t low = __shfl_sync(ALL_LANES, upper ? a[2] : a[0], 4 * g + from);
        const uint32_t high = __shfl_sync(ALL_LANES, upper ? a[3] : a[1], 4 * g + from);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t y = __shfl_sync(ALL_LANES, upper ? b[1] : b[0], 4 * (2 * t + i) + from);
            if (!(infinite_halves<T>(y) >> k % 2 & 1)) continue;
            const float x0 = half_of_pair<T>(low, k % 2), x1 = half_of_pair<T>(high, k % 2);
            if (x0 != 0) c[i] += x0 * half_of_pair<T>(y, k % 2);
            if (x1 != 0) c[2 + i] += x1 * half_of_pair<T>(y, k % 2);
        }
    }
}

/* Is an element of the first n rows of a warp not finite? */
template <int D, int M> __device__ __forceinline__ bool has_infinite(const float (&c)[M][D / 8][4], int n)
{
    const int g = threadIdx.x % 32 / 4;
    float none = 0;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = 0; /* 0 or NaN */
#pragma unroll
            for (int j = 0; j < D / 8; j++) sum += c[i][j][2 * half] * 0 + c[i][j][2 * half + 1] * 0;
            if (i * 16 + half * 8 + g < n) none += sum;
        }
    return none != 0;
}

/*
 * c [16 M, D] += p y: p [16 M, 8 N] is rounded to 16 bits, y is the 8 N rows of a tile from y_row on. CAREFUL: a p of 0
 * adds nothing.
 */
template <typename T, int D, bool CAREFUL, int M, int N>
__device__ __forceinline__ void add_product(float (&c)[M][D / 8][4], const float (&p)[M][N][4], shared_address y,
                                            int y_row, lanes l)
{
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) {
            a[i][0] = pair_of<T>(p[i][k][0], p[i][k][1]), a[i][1] = pair_of<T>(p[i][k][2], p[i][k][3]);
            a[i][2] = pair_of<T>(p[i][k + 1][0], p[i][k + 1][1]), a[i][3] = pair_of<T>(p[i][k + 1][2], p[i][k + 1][3]);
        }
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, at<D>(y, y_row + k * 8, l.left, j / 2));
#pragma unroll
            for (int i = 0; i < M; i++) {
                if constexpr (CAREFUL) {
                    multiply_careful<T>(c[i][j], a[i], { b[0], b[1] });
                    multiply_careful<T>(c[i][j + 1], a[i], { b[2], b[3] });
                } else {
                    multiply<T>(c[i][j], a[i], b[0], b[1]);
                    multiply<T>(c[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
}

/*
 * Writes a warp's rows of a head, from `row` on up to the last one: row 16 i + 8 half + g times factor[i][half]. They
 * are exchanged through rows of shared memory that no other warp reads, so each lane writes 16 bytes; stored(x)
 * receives these. A lane has the same eight columns in all rows: chunk lane % (D / 8).
 */
template <typename T, int D, int M, typename F>
__device__ __forceinline__ void write_rows(const result_rows &y, int row, int rows,
                                           const float (&c)[M][D / 8][4], const float (&factor)[M][2],
                                           shared_address room, const F &stored)
{
    uint16_t *const to = y.p + row * y.row;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            store_shared(room + place<D>(i * 16 + g, j) + t * 4,
                         pair_of<T>(c[i][j][0] * factor[i][0], c[i][j][1] * factor[i][0]));
            store_shared(room + place<D>(i * 16 + g + 8, j) + t * 4,
                         pair_of<T>(c[i][j][2] * factor[i][1], c[i][j][3] * factor[i][1]));
        }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < M * 16 * (D / 8); i += 32) {
        const int r = i / (D / 8), chunk = i % (D / 8);
        const pack<uint32_t> x = load_shared_16(room + place<D>(r, chunk));
        if (row + r >= rows) continue;
        store_global(to + r * y.row + chunk * 8, x);
        stored(x);
    }
}

/* Writes a warp's rows of a gradient. With `sums`, it then stores the sums of their columns, as rounded, to the warp's
   rows of shared memory. */
template <typename T, int D, int M>
__device__ __forceinline__ void write_gradient(const result_rows &y, int row, int rows, const float (&c)[M][D / 8][4],
                                               const float (&factor)[M][2], shared_address room, bool sums)
{
    const int lane = threadIdx.x % 32;
    float sum[8] = {};
    write_rows<T, D, M>(y, row, rows, c, factor, room, [&](const pack<uint32_t> &x) {
        if (!sums) return;
        pack<T> v;
        memcpy(&v, &x, sizeof v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += widen(v.x[i]);
    });
    if (!sums) return;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int d = D / 8; d < 32; d *= 2) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], d);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (lane < D / 8) store_shared(room + (lane * 8 + i) * 4, __float_as_uint(sum[i]));
}

/* Adds the warps' column sums, in order, for the rows of the block. Call it after a barrier. rooms: memory of the first
   warp. */
template <int D, int M, int WARPS> __device__ __forceinline__ void write_part(float *to, shared_address rooms)
{
    const int column = threadIdx.x * 4;
    pack<float> sum = {};
    if (column >= D) return;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const pack<uint32_t> x = load_shared_16(rooms + w * M * 16 * D * 2 + column * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.x[i] += __uint_as_float(x.x[i]);
    }
    store_pack(to + column, sum);
}

/* ---- dropout ---- */

/*
 * A bit for each of the four elements of a Philox block that is kept: rw_philox() in 20 products and 20 exclusive ors,
 * which is the whole cost of dropout. The keys of the rounds are kernel arguments, and three numbers are combined in
 * one instruction; the compiler by itself generates 60 instructions.
 */
__device__ __forceinline__ uint32_t keep_of_block(const args &a, uint64_t block)
{
    uint32_t c[4] = { static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0 }, bits = 0;
#pragma unroll
    for (int round = 0; round < RW_PHILOX_ROUNDS; round++) {
        const uint64_t p0 = static_cast<uint64_t>(RW_PHILOX_FACTOR_0) * c[0],
                       p1 = static_cast<uint64_t>(RW_PHILOX_FACTOR_1) * c[2];
        c[0] = exclusive_or(static_cast<uint32_t>(p1 >> 32), c[1], a.keys[2 * round]);
        c[1] = static_cast<uint32_t>(p1);
        c[2] = exclusive_or(static_cast<uint32_t>(p0 >> 32), c[3], a.keys[2 * round + 1]);
        c[3] = static_cast<uint32_t>(p0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) bits |= static_cast<uint32_t>(c[i] >= a.threshold) << i;
    return bits;
}

/* Four bits for the elements from `element` on, then for those `step` elements later, N times. */
template <int N>
__device__ __forceinline__ uint32_t keep_of_each(const args &a, uint64_t first_block, uint64_t element, uint64_t step)
{
    uint32_t bits = 0;
    if ((element | step) % 4 == 0) { /* one Philox block each */
        const uint64_t block = first_block + element / 4;
#pragma unroll 4
        for (int j = 0; j < N; j++) bits |= keep_of_block(a, block + j * (step / 4)) << 4 * j;
    } else {
#pragma unroll 1
        for (int j = 0; j < N; j++, element += step) {
            const uint64_t block = first_block + element / 4;
            const uint32_t both = keep_of_block(a, block) | keep_of_block(a, block + 1) << 4;
            bits |= (both >> element % 4 & 15) << 4 * j;
        }
    }
    return bits;
}

/*
 * Keep bits for scores of queries by keys. Four keys share a Philox block. Of two adjacent lanes the even one draws for
 * row g, the odd one for row g + 8, four bits per tile of 8 keys, and they exchange halves. Bit 16 half + 4 (j % 4) + i
 * of keep[j / 4]: row g + 8 half, key 8 j + 2 t + i.
 */
template <int N>
__device__ __forceinline__ void draw(uint32_t (&keep)[N / 4], const args &a, uint64_t first_block, int64_t row, int key)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, odd = t & 1;
    const uint64_t element = static_cast<uint64_t>((row + g + 8 * odd) * a.kv_seq + key + t / 2 * 4);
    const uint32_t mine = keep_of_each<N>(a, first_block, element, 8);
    const uint32_t other = __shfl_xor_sync(ALL_LANES, mine, 1);
    const uint32_t low = (odd ? other : mine) >> 2 * odd, high = (odd ? mine : other) >> 2 * odd;
#pragma unroll
    for (int i = 0; i < N / 4; i++) keep[i] = (low >> 16 * i & 0xffff) | high >> 16 * i << 16;
}

template <int N> __device__ __forceinline__ bool is_kept(const uint32_t (&keep)[N], int j, int c)
{
    return keep[j / 4] >> (c / 2 * 16 + j % 4 * 4 + c % 2) & 1;
}

/*
 * Keep bits for scores of keys by queries. The lanes with g = 4 u + e, e = 0 ... 3, need bit e of four Philox blocks:
 * keys 4 u and 8 + 4 u of queries 2 t and 2 t + 1. Each lane draws one block. Bit 16 i + 4 j of keep[half]: key g + 8
 * half, query 8 j + 2 t + i.
 */
__device__ __forceinline__ void draw_transposed(uint32_t (&keep)[2], const args &a, uint64_t first_block, int64_t row,
                                                int key)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, e = g % 4;
    const uint64_t element = static_cast<uint64_t>((row + 2 * t + e % 2) * a.kv_seq + key + e / 2 * 8 + g / 4 * 4);
    const uint32_t mine = keep_of_each<4>(a, first_block, element, static_cast<uint64_t>(8) * a.kv_seq);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t first = __shfl_sync(ALL_LANES, mine, (lane & ~12) | half << 3);
        const uint32_t second = __shfl_sync(ALL_LANES, mine, (lane & ~12) | half << 3 | 4);
        keep[half] = first >> e | second >> e << 16;
    }
}

} // namespace

#endif
