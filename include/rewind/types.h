/**
 * rewind/types.h - the small value types that every other header uses.
 *
 * Element types, shapes, call sites and the export macro. Nothing here allocates or fails.
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
#else
#define RW_API
#define RW_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
#define RW_LITERAL(type) type
extern "C" {
#else
#define RW_LITERAL(type) (type)
#endif

/** Objects of the library. All are opaque; each header says who owns what. */
typedef struct rw_context rw_context; ///< a device, its memory, parameters and random generator
typedef struct rw_tape rw_tape;       ///< one recorded step
typedef struct rw_tensor rw_tensor;   ///< a value: a parameter, an input, or the result of an op

/** Element types. Arithmetic on RW_BF16 and RW_F16 is carried out in float32 and rounded once, to nearest even. */
typedef enum rw_dtype {
    RW_F32,  ///< IEEE-754 binary32
    RW_F64,  ///< IEEE-754 binary64
    RW_BF16, ///< the upper half of binary32
    RW_I32,  ///< signed 32-bit integer; indexes only, carries no gradient
    RW_F16,  ///< IEEE-754 binary16
    RW_BOOL, ///< a truth value in one byte: 0 is false, all else true, ops write 1; carries no gradient
    /** For storage alone, as the next two: no op takes them but those of rewind/float8.h, views and copies. Four bits
        of exponent, three of mantissa; the largest is 448, there is no infinity (OCP's E4M3). */
    RW_F8_E4M3,
    RW_F8_E5M2, ///< five bits of exponent and two of mantissa, as the upper half of RW_F16; the largest is 57344
    RW_F8_E8M0, ///< 2^-127 to 2^127, and 0xff for no number: scales of blocks
    RW_DTYPE_COUNT
} rw_dtype;

/** Bytes per element; 0 for a value that is not an rw_dtype. */
RW_API size_t rw_dtype_size(rw_dtype dtype);

/** "f32", "f64", "bf16", "i32", "f16", "bool", "f8_e4m3", "f8_e5m2" or "f8_e8m0"; "?" for a value that is not an
    rw_dtype. */
RW_API const char *rw_dtype_name(rw_dtype dtype);

/** True for the types that carry gradients. */
RW_API bool rw_dtype_is_float(rw_dtype dtype);

/** True for the types that are for storage alone. */
RW_API bool rw_dtype_is_code(rw_dtype dtype);

/** The largest number of axes a tensor may have. */
#define RW_MAX_RANK 8

/** The extents of a tensor, outermost axis first. Rank 0 is a scalar with one element. */
typedef struct rw_shape {
    int32_t rank;
    int64_t dim[RW_MAX_RANK];
} rw_shape;

/** Number of elements: the product of the extents, 1 for a scalar, 0 where one of them is 0; INT64_MAX where the
    product does not fit in 64 bits. */
RW_API int64_t rw_shape_numel(rw_shape shape);

/** True when rank and all extents are equal. */
RW_API bool rw_shape_equal(rw_shape a, rw_shape b);

/** RW_SHAPE(batch, seq, width) builds an rw_shape of rank 3. One to eight extents. */
#define RW_SHAPE(...) (RW_LITERAL(rw_shape){ RW_COUNT_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0), { __VA_ARGS__ } })
#define RW_COUNT_(a, b, c, d, e, f, g, h, n, ...) n

/** The shape of a scalar. */
#define RW_SCALAR (RW_LITERAL(rw_shape){ 0, { 0 } })

/** Where in the caller's program an op was recorded. Error messages and ckpt_explain() show it. */
typedef struct rw_site {
    const char *file; ///< not copied: a string that outlives the tape, as __FILE__ does
    int32_t line;
} rw_site;

/** The place of this very line. The macros below (rw_add, ckpt_begin, ...) pass it for you. */
#define RW_HERE (RW_LITERAL(rw_site){ __FILE__, __LINE__ })

/**
 * The number zero, for members of parameter structs in which 0 means a default: `.weight_decay = 0` is the default,
 * like a member that is left out; `.weight_decay = RW_ZERO` is no weight decay. Each such struct says "Zero means the
 * default in brackets". The value is the smallest normal double.
 */
#define RW_ZERO 2.2250738585072014e-308

/** Devices. RW_DEVICE_AUTO takes the fastest one that answers. */
typedef enum rw_device {
    RW_DEVICE_AUTO,
    RW_DEVICE_CPU,
    RW_DEVICE_CUDA,
    RW_DEVICE_COUNT
} rw_device;

/** "auto", "cpu" or "cuda"; "?" for any other value. */
RW_API const char *rw_device_name(rw_device device);

#ifdef __cplusplus
}
#endif

#endif
