/* CUDA kernels of the element-wise ops: the arithmetic of arith.h in the loop of map.cuh, once per type. */
#include "ops/map.cuh"

#include <cstring>
#include <type_traits>

#define VEC_INLINE static __device__ __forceinline__

namespace {

#define SCALAR_FUNCTIONS(prefix, type, suffix)                                            \
    VEC_INLINE type prefix##_all(type x) { return x; }                                    \
    VEC_INLINE type prefix##_select(bool first, type a, type b) { return first ? a : b; } \
    VEC_INLINE type prefix##_exp(type x) { return exp##suffix(x); }                       \
    VEC_INLINE type prefix##_log(type x) { return log##suffix(x); }                       \
    VEC_INLINE type prefix##_sqrt(type x) { return sqrt##suffix(x); }                     \
    VEC_INLINE type prefix##_tanh(type x) { return tanh##suffix(x); }                     \
    VEC_INLINE type prefix##_erf(type x) { return erf##suffix(x); }                       \
    VEC_INLINE type prefix##_pow(type x, type y) { return pow##suffix(x, y); }

SCALAR_FUNCTIONS(f, float, f)
SCALAR_FUNCTIONS(d, double, )

#define VM bool
#define V float
#define VS float
#define F(name) f_##name
#include "ops/pointwise/arith.h"
#undef V
#undef VS
#undef F
#define V double
#define VS double
#define F(name) d_##name
#include "ops/pointwise/arith.h"

/* Ops on one input have one attribute, a double: the constant of those that have one. */
double attribute(const rw_kernel *k)
{
    double a = 0;
    if (k->n_inputs == 1) memcpy(&a, k->attrs, sizeof a);
    return a;
}

} // namespace

#define POINTWISE(name, n_in, n_out)                                                  \
    namespace {                                                                       \
    template <typename T> struct name##_of {                                          \
        using In = T;                                                                 \
        using Out = T;                                                                \
        static constexpr int inputs = n_in, outputs = n_out;                          \
        double a;                                                                     \
        __device__ __forceinline__ void operator()(const T *from, T *to) const        \
        {                                                                             \
            wide<T> x[n_in], y[n_out];                                                \
            for (int i = 0; i < n_in; i++) x[i] = widen(from[i]);                     \
            if constexpr (std::is_same<wide<T>, double>::value) d_op_##name(x, y, a); \
            else f_op_##name(x, y, a);                                                \
            for (int i = 0; i < n_out; i++) to[i] = narrow<T>(y[i]);                  \
        }                                                                             \
    };                                                                                \
    }                                                                                 \
    extern "C" rw_status rw_##name##_cuda(const rw_kernel *k)                         \
    {                                                                                 \
        return with_float_type(k->out[0].dtype, [=](auto type) {                      \
            return map_run(k, name##_of<decltype(type)>{ attribute(k) });             \
        });                                                                           \
    }
#include "ops/pointwise/list.h"
