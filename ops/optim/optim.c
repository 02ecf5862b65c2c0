/* The optimizer on the CPU: its kernels by instruction set, the sum of squares; and the table of devices. */
#include "ops/optim/optim.h"

#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

RW_CPU_KERNEL(rw_adamw_cpu)
RW_CPU_KERNEL(rw_scale_buffer_kernel)

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
            const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l]
                                             : (double)f_get(grad, dtype, from + i + l);
            sum[l] += g * g;
        }
    for (int l = 0; i + l < n; l++) {
        const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l]
                                         : (double)f_get(grad, dtype, from + i + l);
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
    if (dtype == RW_F16) return block_squares(grad, RW_F16, from, some);
    return block_squares(grad, RW_F32, from, some);
}

/* In double, in blocks of fixed size, added in order: the same bits for any number of threads. */
static double sum_squares(const void *grad, rw_dtype dtype, int64_t n, int threads)
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

static rw_status update(void *state, const struct rw_optim_tensor *tensors, const struct rw_optim_step *steps, size_t n,
                        int threads)
{
    for (size_t i = 0; i < n; i++) {
        const struct rw_adamw_update u = { &tensors[i], &steps[i] };
        if (steps[i].due) rw_adamw_cpu(&(rw_kernel){ .attrs = &u, .threads = threads });
    }
    return RW_OK;
}

static rw_status widen(void *device, float *to, const void *from, rw_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = half_to_f32(((const uint16_t *)from)[i], dtype);
    return RW_OK;
}

static rw_status clip(void *device, const struct rw_clip_tensor *gradients, size_t n, double max_norm, double *ret_norm,
                      int threads)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += sum_squares(gradients[i].data, gradients[i].dtype, gradients[i].n, threads);
    const double norm = sqrt(sum);
    for (size_t i = 0; norm > max_norm && i < n; i++) {
        const struct rw_scale_buffer s = { gradients[i].data, gradients[i].dtype, gradients[i].n, max_norm / norm };
        rw_scale_buffer_kernel(&(rw_kernel){ .attrs = &s, .threads = threads });
    }
    if (ret_norm) *ret_norm = norm;
    return RW_OK;
}

static const struct rw_optim_fns optim_cpu = { .update = update, .widen = widen, .clip = clip };

#ifdef RW_HAVE_CUDA
extern const struct rw_optim_fns rw_optim_cuda;
#endif

const struct rw_optim_fns *rw_optim_of(rw_device kind)
{
#ifdef RW_HAVE_CUDA
    if (kind == RW_DEVICE_CUDA) return &rw_optim_cuda;
#endif
    return &optim_cpu;
}
