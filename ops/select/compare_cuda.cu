/* CUDA kernels of comparisons and logical ops: the loop of elementwise_map.cuh, from elements to bytes. */
/* From elements to booleans of one byte each. */
/* machine_code.py: stream map_packs<(eq|ne|lt|le|gt|ge|isfinite)_of<.*>: store=0, share=2/3 */
#include "ops/common/elementwise_map.cuh"

namespace {

/* The compared values: 16-bit types as float, a truth value as whether it is not 0. */
__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ double number(double x) { return x; }
__device__ __forceinline__ float number(bf16 x) { return widen(x); }
__device__ __forceinline__ float number(f16 x) { return widen(x); }
__device__ __forceinline__ int32_t number(int32_t x) { return x; }
__device__ __forceinline__ bool number(uint8_t x) { return x != 0; }

template <typename F> rw_status with_any_type(rw_dtype dtype, F f)
{
    return dtype == RW_I32 ? f(int32_t()) : dtype == RW_BOOL ? f(uint8_t()) : with_float_type(dtype, f);
}

template <typename T> struct isfinite_of {
    using In = T;
    using Out = uint8_t;
    static constexpr int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const T *x, uint8_t *y) const
    {
        const wide<T> v = widen(x[0]);
        y[0] = v - v == 0;
    }
};

struct logical_not_of {
    using In = uint8_t;
    using Out = uint8_t;
    static constexpr int inputs = 1, outputs = 1;
    __device__ __forceinline__ void operator()(const uint8_t *x, uint8_t *y) const { y[0] = x[0] == 0; }
};

} // namespace

#define PAIR(NAME, SYMBOL)                                                             \
    namespace {                                                                        \
    template <typename T> struct NAME##_of {                                           \
        using In = T;                                                                  \
        using Out = uint8_t;                                                           \
        static constexpr int inputs = 2, outputs = 1;                                  \
        __device__ __forceinline__ void operator()(const T *x, uint8_t *y) const       \
        {                                                                              \
            y[0] = number(x[0]) SYMBOL number(x[1]);                                   \
        }                                                                              \
    };                                                                                 \
    }                                                                                  \
    extern "C" rw_status rw_##NAME##_cuda(const rw_kernel *k)                          \
    {                                                                                  \
        return with_any_type(k->in[0].dtype, [=](auto type) {                          \
            return map_run(k, NAME##_of<decltype(type)>());                            \
        });                                                                            \
    }

PAIR(eq, ==)
PAIR(ne, !=)
PAIR(lt, <)
PAIR(le, <=)
PAIR(gt, >)
PAIR(ge, >=)

#define LOGIC(NAME, SYMBOL)                                                              \
    namespace {                                                                          \
    struct NAME##_of {                                                                   \
        using In = uint8_t;                                                              \
        using Out = uint8_t;                                                             \
        static constexpr int inputs = 2, outputs = 1;                                    \
        __device__ __forceinline__ void operator()(const uint8_t *x, uint8_t *y) const   \
        {                                                                                \
            y[0] = (x[0] != 0) SYMBOL (x[1] != 0);                                       \
        }                                                                                \
    };                                                                                   \
    }                                                                                    \
    extern "C" rw_status rw_##NAME##_cuda(const rw_kernel *k)                            \
    {                                                                                    \
        return map_run(k, NAME##_of());                                                  \
    }

LOGIC(logical_and, &)
LOGIC(logical_or, |)

extern "C" rw_status rw_logical_not_cuda(const rw_kernel *k)
{
    return map_run(k, logical_not_of());
}

extern "C" rw_status rw_isfinite_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [=](auto type) { return map_run(k, isfinite_of<decltype(type)>()); });
}
