/* Instructions of a warp and of a block: barriers, shuffles, matrices. */
#include "run.h"

namespace ptx {

static const char where[] = "PTX";

static unsigned thread_number()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static unsigned lane()
{
    return thread_number() % 32;
}

/* Barriers are identified by their number, not by their place in the code: PTX may reach one from several places. */
void barrier(uint32_t number)
{
    cudasim::block_barrier(cudasim::barrier::plain, 0, where, static_cast<int>(number));
}

void warp_barrier(uint32_t mask)
{
    cudasim::warp(cudasim::warp_op::sync, mask, 0, 0, 32, where, 0);
}

/* ISA 9.7.9.6: the source lane is j if p says that it is in range, and the lane itself otherwise. */
static uint32_t shuffled(uint32_t a, unsigned j, bool p, uint32_t mask, bool *in_range)
{
    *in_range = p;
    const unsigned from = p ? j : lane();
    return static_cast<uint32_t>(cudasim::warp(cudasim::warp_op::shfl, mask, a, from, 32, where, 0).value);
}

struct segment {
    explicit segment(uint32_t c)
    {
        const unsigned clamp = c & 31, bits = c >> 8 & 31;
        first = lane() & bits;
        last = first | (clamp & ~bits);
        free = ~bits & 31;
    }
    unsigned first, last, free;
};

uint32_t shuffle_up(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range)
{
    const segment s(c);
    const int j = static_cast<int>(lane()) - static_cast<int>(b & 31);
    return shuffled(a, static_cast<unsigned>(j), j >= static_cast<int>(s.last), mask, in_range);
}

uint32_t shuffle_down(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range)
{
    const unsigned j = lane() + (b & 31);
    return shuffled(a, j, j <= segment(c).last, mask, in_range);
}

uint32_t shuffle_bfly(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range)
{
    const unsigned j = lane() ^ (b & 31);
    return shuffled(a, j, j <= segment(c).last, mask, in_range);
}

uint32_t shuffle_idx(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, bool *in_range)
{
    const segment s(c);
    const unsigned j = s.first | (b & s.free);
    return shuffled(a, j, j <= s.last, mask, in_range);
}

uint32_t reduce_max(uint32_t a, uint32_t mask)
{
    return static_cast<uint32_t>(cudasim::warp(cudasim::warp_op::umax, mask, a, 0, 32, where, 0).value);
}

uint32_t match_any(uint32_t a, uint32_t mask)
{
    return static_cast<uint32_t>(cudasim::warp(cudasim::warp_op::match_any, mask, a, 0, 32, where, 0).value);
}

/* ---- matrices ---- */

constexpr uint32_t ALL = 0xffffffffu;

struct warp_room {
    const char *row[32];
    float a[16][16], b[16][8];
};

static warp_room &room()
{
    static warp_room rooms[32];
    return rooms[thread_number() / 32];
}

static uint16_t number_at(const char *row, unsigned column)
{
    uint16_t x;
    memcpy(&x, row + 2 * column, sizeof x);
    return x;
}

/*
 * ISA 9.7.14.5.15: lanes 8 m to 8 m + 7 give the rows of matrix m. Lane i gets from each matrix the numbers 2 (i % 4)
 * and the next of row i / 4; transposed, of column i / 4. A row has 16 bytes, and is aligned to 16.
 */
void load_matrices(uint32_t (&d)[4], uint64_t row, bool transposed)
{
    warp_room &w = room();
    const unsigned i = lane();
    w.row[i] = shared_at(row, 16);
    warp_barrier(ALL);
    for (unsigned m = 0; m < 4; m++) {
        uint32_t pair = 0;
        for (unsigned e = 0; e < 2; e++) {
            const unsigned r = i / 4, c = 2 * (i % 4) + e;
            const uint16_t x = transposed ? number_at(w.row[8 * m + c], r) : number_at(w.row[8 * m + r], c);
            pair |= static_cast<uint32_t>(x) << 16 * e;
        }
        d[m] = pair;
    }
    warp_barrier(ALL);
}

static float element(uint32_t pair, unsigned i, bool brain)
{
    const uint16_t bits = static_cast<uint16_t>(pair >> 16 * i);
    return brain ? of_brain(bits) : of_half(bits);
}

/*
 * The layouts are those of CuTe's SM80_16x8x16_F32F16F16F32_TN, thread (t, g) = (lane % 4, lane / 4), values counted
 * from the lowest half of the first register:
 *     a: ((4, 8), (2, 2, 2)) : ((32, 1), (16, 8, 128)) over row + 16 column
 *     b: ((4, 8), (2, 2)) : ((16, 1), (8, 64)) over column + 8 row
 *     c: ((4, 8), (2, 2)) : ((32, 1), (16, 8)) over row + 16 column
 */
void multiply(uint32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const uint32_t (&c)[4], bool brain)
{
    warp_room &w = room();
    const unsigned t = lane() % 4, g = lane() / 4;
    for (unsigned v = 0; v < 8; v++) {
        const unsigned at = 32 * t + g + 16 * (v & 1) + 8 * (v >> 1 & 1) + 128 * (v >> 2);
        w.a[at % 16][at / 16] = element(a[v / 2], v % 2, brain);
    }
    for (unsigned v = 0; v < 4; v++) {
        const unsigned at = 16 * t + g + 8 * (v & 1) + 64 * (v >> 1);
        w.b[at / 8][at % 8] = element(b[v / 2], v % 2, brain);
    }
    warp_barrier(ALL);
    for (unsigned v = 0; v < 4; v++) {
        const unsigned at = 32 * t + g + 16 * (v & 1) + 8 * (v >> 1);
        double products[16];
        for (unsigned k = 0; k < 16; k++)
            products[k] = static_cast<double>(w.a[at % 16][k]) * static_cast<double>(w.b[k][at / 16]);
        d[v] = give<f32>(cudasim::tensor_sum(value_of<f32>(c[v]), products));
    }
    warp_barrier(ALL);
}

} // namespace ptx
