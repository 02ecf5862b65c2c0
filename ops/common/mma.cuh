/*
 * Tensor-core products of bfloat16 or float16, and asynchronous copies into shared memory. On a GPU they are PTX of
 * compute capability 8.0; for the simulator of the tests the same operations are written in C++.
 *
 * Fragments of a product c [16, 8] += a [16, 16] b [16, 8], with lane = 4 g + t (PTX ISA, mma.m16n8k16):
 *
 *     c: (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
 *     a: pairs of columns from (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8)
 *     b: pairs of rows from (2t, g) (2t + 8, g)
 *
 * So two adjacent tiles of c, rounded to 16 bits, form a fragment of a.
 */
#ifndef RW_OPS_MMA_CUH
#define RW_OPS_MMA_CUH

#include "device/cuda/kernel.cuh"

/* The test ptx_attention runs these instructions as PTX. */
#ifdef RW_CUDASIM

#include <vector>

using shared_address = char *;

namespace mma_sim {

struct warp_room {
    uint32_t a[32][4], b[32][2];
    const char *row[32];
};

struct copies {
    struct one {
        char *to;
        const void *from; /* NULL: zeros */
    };
    uint64_t serial;
    unsigned made;
    std::vector<std::vector<one>> groups;
    std::vector<one> open;
};

inline int thread() { return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }

inline warp_room &room()
{
    static warp_room rooms[32];
    return rooms[thread() / 32];
}

/* The simulator performs every second copy of a thread immediately and the others when the thread waits for them. A
   device may do either. */
inline copies &copies_of_thread()
{
    static copies all[1024];
    copies &c = all[thread()];
    if (c.serial != cudasim::block_serial) {
        c.serial = cudasim::block_serial;
        c.made = static_cast<unsigned>(thread());
        c.groups.clear();
        c.open.clear();
    }
    return c;
}

template <typename T> inline double half_of(uint32_t pair, int i)
{
    const uint16_t bits = static_cast<uint16_t>(i ? pair >> 16 : pair);
    T x;
    memcpy(static_cast<void *>(&x), &bits, sizeof x);
    return static_cast<double>(widen(x));
}

/* Elements a(row, depth) and b(depth, col), gathered from the fragments of all lanes. */
template <typename T> inline double a_at(const warp_room &w, int row, int depth)
{
    return half_of<T>(w.a[row % 8 * 4 + depth % 8 / 2][depth / 8 * 2 + row / 8], depth % 2);
}

template <typename T> inline double b_at(const warp_room &w, int depth, int col)
{
    return half_of<T>(w.b[col * 4 + depth % 8 / 2][depth / 8], depth % 2);
}

inline uint32_t matrix_pair(const char *first, const char *second, int at_first, int at_second)
{
    uint16_t x[2];
    memcpy(&x[0], first + 2 * at_first, 2);
    memcpy(&x[1], second + 2 * at_second, 2);
    return x[0] | static_cast<uint32_t>(x[1]) << 16;
}

inline void make(const copies::one &x)
{
    if (x.from) memcpy(x.to, x.from, 16);
    else memset(x.to, 0, 16);
}

} // namespace mma_sim

inline shared_address shared_of(void *p) { return static_cast<char *>(p); }

inline void copy_async(shared_address to, const void *from, bool valid)
{
    mma_sim::copies &c = mma_sim::copies_of_thread();
    const mma_sim::copies::one x = { to, valid ? from : nullptr };
    if (c.made++ % 2) mma_sim::make(x);
    else c.open.push_back(x);
}

inline void copy_commit()
{
    mma_sim::copies &c = mma_sim::copies_of_thread();
    c.groups.push_back(c.open);
    c.open.clear();
}

template <int N> inline void copy_wait()
{
    mma_sim::copies &c = mma_sim::copies_of_thread();
    while (c.groups.size() > N) {
        for (const auto &one : c.groups.front()) mma_sim::make(one);
        c.groups.erase(c.groups.begin());
    }
}

inline void load_matrices(uint32_t (&r)[4], shared_address row)
{
    mma_sim::warp_room &w = mma_sim::room();
    const int lane = mma_sim::thread() % 32;
    w.row[lane] = row;
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        const char *const from = w.row[m * 8 + lane / 4];
        r[m] = mma_sim::matrix_pair(from, from, lane % 4 * 2, lane % 4 * 2 + 1);
    }
    __syncwarp();
}

inline void load_matrices_transposed(uint32_t (&r)[4], shared_address row)
{
    mma_sim::warp_room &w = mma_sim::room();
    const int lane = mma_sim::thread() % 32;
    w.row[lane] = row;
    __syncwarp();
    for (int m = 0; m < 4; m++)
        r[m] = mma_sim::matrix_pair(w.row[m * 8 + lane % 4 * 2], w.row[m * 8 + lane % 4 * 2 + 1], lane / 4, lane / 4);
    __syncwarp();
}

template <typename T> inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_sim::warp_room &w = mma_sim::room();
    const int lane = mma_sim::thread() % 32;
    memcpy(w.a[lane], a, sizeof a);
    w.b[lane][0] = b0, w.b[lane][1] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        double products[16];
        for (int k = 0; k < 16; k++)
            products[k] = mma_sim::a_at<T>(w, lane / 4 + i / 2 * 8, k) * mma_sim::b_at<T>(w, k, lane % 4 * 2 + i % 2);
        c[i] = cudasim::tensor_sum(c[i], products);
    }
    __syncwarp();
}

template <typename T> inline uint32_t pair_of(float low, float high)
{
    const T x[2] = { narrow<T>(low), narrow<T>(high) };
    uint32_t r;
    memcpy(&r, x, sizeof r);
    return r;
}

inline uint32_t exclusive_or(uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; }

inline void store_shared(shared_address to, uint32_t x) { memcpy(to, &x, sizeof x); }

inline pack<uint32_t> load_shared_16(shared_address from)
{
    pack<uint32_t> x;
    memcpy(&x, from, sizeof x);
    return x;
}

#else

using shared_address = uint32_t;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define RW_MMA_ASM(...) __trap()
#else
#define RW_MMA_ASM(...) asm volatile(__VA_ARGS__)
#endif

__device__ __forceinline__ shared_address shared_of(void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Copies 16 bytes, or writes 16 zero bytes without reading `from`. */
__device__ __forceinline__ void copy_async(shared_address to, const void *from, bool valid)
{
    const int bytes = valid ? 16 : 0;
    RW_MMA_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* copy_commit() closes a group of the copies issued since the last call. copy_wait<N> waits for all but the last N
   groups of this thread. */
__device__ __forceinline__ void copy_commit() { RW_MMA_ASM("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait()
{
    RW_MMA_ASM("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Loads four 8 x 8 matrices. Lane 8 m + i supplies the address of row i of matrix m, and receives two adjacent elements
   of row lane / 4 of each matrix. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], shared_address row)
{
    RW_MMA_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], shared_address row)
{
    RW_MMA_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

/* T: bf16 or f16. */
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#define RW_MMA_MULTIPLY(T, type)                                                                                      \
    template <>                                                                                                       \
    __device__ __forceinline__ void multiply<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)      \
    {                                                                                                                 \
        RW_MMA_ASM("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                                     \
                   "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
                   : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                   \
    }
RW_MMA_MULTIPLY(bf16, "bf16")
RW_MMA_MULTIPLY(f16, "f16")

/* Packs two numbers, rounded to nearest even, with `low` in the lower half. */
template <typename T> __device__ __forceinline__ uint32_t pair_of(float low, float high);

#define RW_MMA_PAIR(T, type)                                                                                          \
    template <> __device__ __forceinline__ uint32_t pair_of<T>(float low, float high)                                 \
    {                                                                                                                 \
        uint32_t r;                                                                                                   \
        RW_MMA_ASM("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));                              \
        return r;                                                                                                     \
    }
RW_MMA_PAIR(bf16, "bf16")
RW_MMA_PAIR(f16, "f16")

/* Compiles to one instruction. */
__device__ __forceinline__ uint32_t exclusive_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

__device__ __forceinline__ void store_shared(shared_address to, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

__device__ __forceinline__ pack<uint32_t> load_shared_16(shared_address from)
{
    pack<uint32_t> x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x[0]), "=r"(x.x[1]), "=r"(x.x[2]), "=r"(x.x[3])
                 : "r"(from)
                 : "memory");
    return x;
}

#endif

#endif
