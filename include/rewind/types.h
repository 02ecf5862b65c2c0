/**
 * rewind/types.h - small value types that all other headers use.
 *
 * Element types, shapes, call sites and the export macro. Nothing here allocates or fails.
 * @param dtype, shape, device the value
 * @param a, b the shapes
 * Thread-safety: all functions are pure and may be called from any thread.
 */
#ifndef REWIND_TYPES_H
#define REWIND_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RW_API __attribute__((visibility("default")))
#define RW_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define RW_DEPRECATED(instead) __attribute__((deprecated(instead)))
#else
#define RW_API
#define RW_PRINTF(fmt, args)
#define RW_DEPRECATED(instead)
#endif

#ifdef __cplusplus
#define RW_LITERAL(type) type
extern "C" {
#else
#define RW_LITERAL(type) (type)
#endif

/** Opaque objects of the library. Each header documents their ownership. */
typedef struct rw_context rw_context; ///< a device, its memory, parameters and random generator
typedef struct rw_tape rw_tape;       ///< one recorded step
typedef struct rw_tensor rw_tensor;   ///< a value: a parameter, a buffer, an input, or the result of an op

/** Element types. Arithmetic on RW_BF16 and RW_F16 is done in float32; the result is rounded once, to nearest even. */
typedef enum rw_dtype {
    RW_F32,  ///< IEEE-754 binary32
    RW_F64,  ///< IEEE-754 binary64
    RW_BF16, ///< bfloat16: the upper half of binary32
    RW_I32,  ///< signed 32-bit integer, for indexes; has no gradient
    RW_F16,  ///< IEEE-754 binary16
    RW_BOOL, ///< a truth value in one byte: 0 is false, anything else is true, ops write 1; has no gradient
    /** OCP E4M3: 4 bits of exponent, 3 of mantissa, at most 448, no infinity. This and the next two are storage types:
        only the ops of rewind/float8.h, views and copies accept them. */
    RW_F8_E4M3,
    RW_F8_E5M2, ///< OCP E5M2: 5 bits of exponent, 2 of mantissa, the upper half of RW_F16; at most 57344
    RW_F8_E8M0, ///< OCP E8M0: 2^-127 to 2^127, and 0xff for NaN; scales of blocks
    RW_DTYPE_COUNT
} rw_dtype;

/** Returns the bytes per element; 0 for a value that is not an rw_dtype. */
RW_API size_t rw_dtype_size(rw_dtype dtype);

/** Returns "f32", "f64", "bf16", "i32", "f16", "bool", "f8_e4m3", "f8_e5m2" or "f8_e8m0"; "?" for a value that is not
    an rw_dtype. */
RW_API const char *rw_dtype_name(rw_dtype dtype);

/** True for types that can have gradients: f32, f64, bf16 and f16. */
RW_API bool rw_dtype_is_float(rw_dtype dtype);

/** True for storage types: the three FP8 types. */
RW_API bool rw_dtype_is_code(rw_dtype dtype);

/** The maximum number of axes of a tensor. */
#define RW_MAX_RANK 8

/** The extents of a tensor, outermost axis first. Rank 0 is a scalar with one element. */
typedef struct rw_shape {
    int32_t rank;             ///< number of axes
    int64_t dim[RW_MAX_RANK]; ///< the first `rank` are used
} rw_shape;

/** Returns the number of elements: the product of the extents; 1 for a scalar; 0 if an extent is 0; INT64_MAX if the
    product does not fit in 64 bits. */
RW_API int64_t rw_shape_numel(rw_shape shape);

/** True if rank and all extents are equal. */
RW_API bool rw_shape_equal(rw_shape a, rw_shape b);

/** RW_SHAPE(batch, seq, width) is an rw_shape of rank 3. It takes one to eight extents, of any integer type. */
#ifdef __cplusplus
#define RW_SHAPE(...) (rw_shape_of_(__VA_ARGS__))
#else
#define RW_SHAPE(...) ((rw_shape){ RW_COUNT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0), { __VA_ARGS__ } })
#endif
#define RW_COUNT_(a, b, c, d, e, f, g, h, n, ...) n

/** The shape of a scalar. */
#define RW_SCALAR (RW_LITERAL(rw_shape){ 0, { 0 } })

/** A call site: where in the caller's program an op was recorded. Error messages and ckpt_explain() show it. */
typedef struct rw_site {
    const char *file; ///< copied; the text at this address must not change while the tape exists. NULL: unknown
    int32_t line;     ///< number of the line in the file
} rw_site;

/** The call site of this line. The macros without _at (rw_add, ckpt_begin, ...) pass it. */
#define RW_HERE (RW_LITERAL(rw_site){ __FILE__, __LINE__ })

/**
 * Means zero in members of parameter structs in which 0 means the default: `.weight_decay = 0` is the default, like an
 * omitted member, and `.weight_decay = RW_ZERO` is no weight decay. Each such struct says "Zero means the default in
 * brackets". Where the default is zero, or 0 means that a number is unknown, RW_ZERO is the same as 0, unless the
 * member says more. The value is the smallest normal double.
 */
#define RW_ZERO 2.2250738585072014e-308

/** Devices. RW_DEVICE_AUTO selects the fastest available one. */
typedef enum rw_device {
    RW_DEVICE_AUTO,
    RW_DEVICE_CPU,
    RW_DEVICE_CUDA,
    RW_DEVICE_COUNT
} rw_device;

/** Returns "auto", "cpu" or "cuda"; "?" for any other value. */
RW_API const char *rw_device_name(rw_device device);

#ifdef __cplusplus
}

/* In a braced list C++ refuses extents of other types, such as v.size(). */
template <typename... Extents> constexpr rw_shape rw_shape_of_(Extents... extents)
{
    static_assert(sizeof...(extents) > 0 && sizeof...(extents) <= RW_MAX_RANK, "RW_SHAPE takes one to eight extents");
    return rw_shape{ static_cast<int32_t>(sizeof...(extents)), { static_cast<int64_t>(extents)... } };
}
#endif

#endif
