/* CPU kernels of comparisons and logical ops. */
#include "device/cpu/isa.h"
#include "ops/select/elementwise_map_mixed_dtype.h"

#define SAME(x) (x)
#define OF_BF16(x) bf16_to_f32(x)
#define OF_F16(x) f16_to_f32(x)
#define TRUTH(x) ((x) != 0)

/* Rows of dense operands, or of one dense operand and one number, get a loop without strides. */
#define PAIR_ROW(name, dtype, type, GET, EXPR)                                                                       \
    static void name##_##dtype(const rw_kernel *k, const int64_t *at, const int64_t *stride, int64_t to, int64_t n)  \
    {                                                                                                                \
        const type *const a = (const type *)k->in[0].data + at[0], *const b = (const type *)k->in[1].data + at[1];   \
        uint8_t *const y = (uint8_t *)k->out[0].data + to;                                                           \
        const int64_t s = stride[0], r = stride[1];                                                                  \
        if (s == 1 && r == 1) for (int64_t i = 0; i < n; i++) y[i] = EXPR(GET(a[i]), GET(b[i]));                     \
        else if (s == 1 && r == 0) for (int64_t i = 0; i < n; i++) y[i] = EXPR(GET(a[i]), GET(b[0]));                \
        else for (int64_t i = 0; i < n; i++) y[i] = EXPR(GET(a[i * s]), GET(b[i * r]));                              \
    }

#define PAIR(NAME, EXPR)                                                                                             \
    PAIR_ROW(NAME, f32, float, SAME, EXPR)                                                                           \
    PAIR_ROW(NAME, f64, double, SAME, EXPR)                                                                          \
    PAIR_ROW(NAME, bf16, uint16_t, OF_BF16, EXPR)                                                                    \
    PAIR_ROW(NAME, f16, uint16_t, OF_F16, EXPR)                                                                      \
    PAIR_ROW(NAME, i32, int32_t, SAME, EXPR)                                                                         \
    PAIR_ROW(NAME, truth, uint8_t, TRUTH, EXPR)                                                                      \
    rw_status RW_ISA_NAME(rw_##NAME##_cpu)(const rw_kernel *k);                                                      \
    rw_status RW_ISA_NAME(rw_##NAME##_cpu)(const rw_kernel *k)                                                       \
    {                                                                                                                \
        static const select_row rows[RW_DTYPE_COUNT] = { [RW_F32] = NAME##_f32, [RW_F64] = NAME##_f64,               \
                                                         [RW_BF16] = NAME##_bf16, [RW_F16] = NAME##_f16,             \
                                                         [RW_I32] = NAME##_i32, [RW_BOOL] = NAME##_truth };          \
        return select_rows(k, 2, rows[k->in[0].dtype]);                                                              \
    }

#define EQ(x, z) ((x) == (z))
#define NE(x, z) ((x) != (z))
#define LT(x, z) ((x) < (z))
#define LE(x, z) ((x) <= (z))
#define GT(x, z) ((x) > (z))
#define GE(x, z) ((x) >= (z))
PAIR(eq, EQ)
PAIR(ne, NE)
PAIR(lt, LT)
PAIR(le, LE)
PAIR(gt, GT)
PAIR(ge, GE)

#define LOGIC(NAME, EXPR)                                                                                            \
    PAIR_ROW(NAME, truth, uint8_t, TRUTH, EXPR)                                                                      \
    rw_status RW_ISA_NAME(rw_##NAME##_cpu)(const rw_kernel *k);                                                      \
    rw_status RW_ISA_NAME(rw_##NAME##_cpu)(const rw_kernel *k)                                                       \
    {                                                                                                                \
        return select_rows(k, 2, NAME##_truth);                                                                      \
    }

#define AND(x, z) ((x) & (z))
#define OR(x, z) ((x) | (z))
LOGIC(logical_and, AND)
LOGIC(logical_or, OR)

static void not_row(const rw_kernel *k, const int64_t *at, const int64_t *stride, int64_t to, int64_t n)
{
    const uint8_t *const x = (const uint8_t *)k->in[0].data + at[0];
    uint8_t *const y = (uint8_t *)k->out[0].data + to;
    for (int64_t i = 0; i < n; i++) y[i] = x[i * stride[0]] == 0;
}

rw_status RW_ISA_NAME(rw_logical_not_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_logical_not_cpu)(const rw_kernel *k)
{
    return select_rows(k, 1, not_row);
}

/* All bits of the exponent are set if a number is not finite. */
#define FINITE_ROW(dtype, type, EXPONENT)                                                                            \
    static void finite_##dtype(const rw_kernel *k, const int64_t *at, const int64_t *stride, int64_t to, int64_t n)  \
    {                                                                                                                \
        const type *const x = (const type *)k->in[0].data + at[0];                                                   \
        uint8_t *const y = (uint8_t *)k->out[0].data + to;                                                           \
        const int64_t s = stride[0];                                                                                 \
        if (s == 1) for (int64_t i = 0; i < n; i++) y[i] = (x[i] & EXPONENT) != EXPONENT;                            \
        else for (int64_t i = 0; i < n; i++) y[i] = (x[i * s] & EXPONENT) != EXPONENT;                               \
    }

FINITE_ROW(f32, uint32_t, UINT32_C(0x7f800000))
FINITE_ROW(f64, uint64_t, UINT64_C(0x7ff0000000000000))
FINITE_ROW(bf16, uint16_t, 0x7f80)
FINITE_ROW(f16, uint16_t, 0x7c00)

rw_status RW_ISA_NAME(rw_isfinite_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_isfinite_cpu)(const rw_kernel *k)
{
    static const select_row rows[RW_DTYPE_COUNT] = { [RW_F32] = finite_f32, [RW_F64] = finite_f64,
                                                     [RW_BF16] = finite_bf16, [RW_F16] = finite_f16 };
    return select_rows(k, 1, rows[k->in[0].dtype]);
}
