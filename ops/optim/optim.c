/* The optimizer's kernels by instruction set, and the sum of squares. */
#include "ops/optim/optim.h"

#include "device/cpu/isa.h"
#include "ops/util.h"
#include "ops/vec.h"

RW_CPU_KERNEL(rw_adamw_cpu)
RW_CPU_KERNEL(rw_scale_buffer_kernel)

void rw_adamw_update_cpu(const struct rw_adamw_update *u)
{
    rw_adamw_cpu(&(rw_kernel){ .attrs = u, .threads = u->threads });
}

void rw_scale_buffer_cpu(void *data, rw_dtype dtype, int64_t n, double factor, int threads)
{
    const struct rw_scale_buffer s = { .data = data, .dtype = dtype, .n = n, .factor = factor };
    rw_scale_buffer_kernel(&(rw_kernel){ .attrs = &s, .threads = threads });
}

#define BLOCK 4096
#define GROUP 1024 /* blocks whose sums are kept at a time */
#define LANES 8

/* Element i goes to sum i % 8; the eight are added as a tree. */
VEC_INLINE double block_squares(const void *grad, rw_dtype dtype, int64_t from, int64_t n)
{
    double sum[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l] : (double)f_get(grad, dtype, from + i + l);
            sum[l] += g * g;
        }
    for (int l = 0; i + l < n; l++) {
        const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l] : (double)f_get(grad, dtype, from + i + l);
        sum[l] += g * g;
    }
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

static double block_sum(const void *grad, rw_dtype dtype, int64_t n, int64_t from)
{
    const int64_t some = n - from < BLOCK ? n - from : BLOCK;
    if (dtype == RW_F64) return block_squares(grad, RW_F64, from, some);
    if (dtype == RW_BF16) return block_squares(grad, RW_BF16, from, some);
    return block_squares(grad, RW_F32, from, some);
}

double rw_sum_squares_cpu(const void *grad, rw_dtype dtype, int64_t n, int threads)
{
    double total = 0;
    for (int64_t first = 0; first < n; first += (int64_t)BLOCK * GROUP) {
        double part[GROUP];
        const int64_t rest = n - first, blocks = rest >= (int64_t)BLOCK * GROUP ? GROUP : (rest + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static) if (rest >= RW_PARALLEL_FROM)
        for (int64_t b = 0; b < blocks; b++) part[b] = block_sum(grad, dtype, n, first + b * BLOCK);
        for (int64_t b = 0; b < blocks; b++) total += part[b];
    }
    return total;
}
