/*
 * CPU kernel of where: moves elements as words of their size. Rows with a single number on one side get a loop without
 * strides.
 */
#include "device/cpu/isa.h"
#include "ops/select/elementwise_map_mixed_dtype.h"

#define WHERE_ROW(size, type)                                                                                        \
    static void where_##size(const rw_kernel *k, const int64_t *at, const int64_t *stride, int64_t to, int64_t n)    \
    {                                                                                                                \
        const uint8_t *const c = (const uint8_t *)k->in[0].data + at[0];                                             \
        const type *const a = (const type *)k->in[1].data + at[1], *const b = (const type *)k->in[2].data + at[2];   \
        type *const y = (type *)k->out[0].data + to;                                                                 \
        const int64_t r = stride[0], s = stride[1], u = stride[2];                                                   \
        const type first = a[0], second = b[0];                                                                      \
        if (r == 1 && s == 1 && u == 1) for (int64_t i = 0; i < n; i++) y[i] = c[i] ? a[i] : b[i];                   \
        else if (r == 1 && !s && u == 1) for (int64_t i = 0; i < n; i++) y[i] = c[i] ? first : b[i];                 \
        else if (r == 1 && s == 1 && !u) for (int64_t i = 0; i < n; i++) y[i] = c[i] ? a[i] : second;                \
        else for (int64_t i = 0; i < n; i++) y[i] = c[i * r] ? a[i * s] : b[i * u];                                  \
    }

WHERE_ROW(1, uint8_t)
WHERE_ROW(2, uint16_t)
WHERE_ROW(4, uint32_t)
WHERE_ROW(8, uint64_t)

rw_status RW_ISA_NAME(rw_where_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_where_cpu)(const rw_kernel *k)
{
    static const select_row rows[] = { [1] = where_1, [2] = where_2, [4] = where_4, [8] = where_8 };
    return select_rows(k, 3, rows[rw_dtype_size(k->out[0].dtype)]);
}
