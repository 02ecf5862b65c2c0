/* dropout, rand, randn, and the fills behind rw_init_normal() and rw_init_uniform(). */
#include "ops/random/random.h"

#include "device/cpu/isa.h"
#include "ops/random/philox.h"
#include "ops/util.h"
#include "ops/vec.h"
#include "record/tape.h"

struct dropout_attrs {
    double p;
};

static rw_status check_dropout(rw_op_call *call)
{
    const struct dropout_attrs *const a = call->attrs;
    RW_CHECK(rw_want_float(call, 0));
    if (!(a->p >= 0 && a->p < 1)) return rw_op_error(call, RW_ERR_ARGUMENT, "probability %g is not in [0, 1)", a->p);
    return rw_op_output_like(call, 0, 0);
}

/* The same op on the gradient, with the same ticket: the mask is drawn again instead of being kept. */
static rw_status grad_dropout(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_grad_apply(g, &rw_op_dropout, &dy, 1, rw_grad_attrs(g), sizeof(struct dropout_attrs), NULL));
}

static rw_op_cost cost_dropout(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 20);
}

RW_CPU_KERNEL(rw_dropout_cpu)
const rw_op_def rw_op_dropout = { .name = "dropout", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                                  .inplace = RW_OP_INPUT(0), .check = check_dropout,
                                  .kernel = { [RW_DEVICE_CPU] = rw_dropout_cpu }, .grad = grad_dropout, .cost = cost_dropout };

rw_tensor *rw_dropout_at(rw_site at, rw_tape *t, rw_tensor *x, float p)
{
    if (p == 0) return x;
    const struct dropout_attrs a = { p };
    return rw_apply_at(at, t, &rw_op_dropout, &x, 1, &a, sizeof a, NULL);
}

/* rand and randn */

struct shape_attrs {
    int64_t dtype, rank;
    int64_t dim[RW_MAX_RANK];
};

static rw_status check_rand(rw_op_call *call)
{
    const struct shape_attrs *const a = call->attrs;
    rw_shape shape = { .rank = (int32_t)a->rank };
    memcpy(shape.dim, a->dim, sizeof shape.dim);
    if (!rw_dtype_is_float((rw_dtype)a->dtype)) return rw_op_error(call, RW_ERR_DTYPE, "a floating-point type is needed");
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape);
}

static rw_status randn_cpu(const rw_kernel *k)
{
    rw_random_fill_normal(k->out[0].data, k->out[0].dtype, k->out[0].layout->numel, k->ticket, 0, 1, k->threads);
    return RW_OK;
}

static rw_status rand_cpu(const rw_kernel *k)
{
    rw_random_fill_uniform(k->out[0].data, k->out[0].dtype, k->out[0].layout->numel, k->ticket, 0, 1, k->threads);
    return RW_OK;
}

static const rw_op_def rw_op_randn = { .name = "randn", .n_outputs = 1, .flags = RW_OP_RANDOM | RW_OP_NO_GRADIENT,
                                       .check = check_rand, .kernel = { [RW_DEVICE_CPU] = randn_cpu } };
static const rw_op_def rw_op_rand = { .name = "rand", .n_outputs = 1, .flags = RW_OP_RANDOM | RW_OP_NO_GRADIENT,
                                      .check = check_rand, .kernel = { [RW_DEVICE_CPU] = rand_cpu } };

static rw_tensor *apply_rand(rw_site at, rw_tape *t, const rw_op_def *op, rw_dtype dtype, rw_shape shape)
{
    if (!t || !rw_shape_check(t->ctx, op->name, at, dtype, shape)) return NULL;
    struct shape_attrs a = { .dtype = dtype, .rank = shape.rank };
    memcpy(a.dim, shape.dim, sizeof a.dim);
    return rw_apply_at(at, t, op, NULL, 0, &a, sizeof a, NULL);
}

rw_tensor *rw_randn_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    return apply_rand(at, t, &rw_op_randn, dtype, shape);
}

rw_tensor *rw_rand_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape)
{
    return apply_rand(at, t, &rw_op_rand, dtype, shape);
}

/* Fills */

static void put(void *data, rw_dtype dtype, int64_t i, double x)
{
    if (dtype == RW_F64) ((double *)data)[i] = x;
    else f_put(data, dtype, i, (float)x);
}

void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < (n + 3) / 4; b++) {
        uint32_t w[4];
        rw_philox(ticket.seed, ticket.offset + (uint64_t)b, w);
        for (int j = 0; j < 4; j += 2) {
            const double u = ((double)w[j] + 1) * 0x1p-32, v = (double)w[j + 1] * 0x1p-32;
            const double r = std * sqrt(-2 * log(u)), angle = 6.28318530717958647693 * v;
            if (4 * b + j < n) put(data, dtype, 4 * b + j, mean + r * cos(angle));
            if (4 * b + j + 1 < n) put(data, dtype, 4 * b + j + 1, mean + r * sin(angle));
        }
    }
}

/* The largest value of the type below hi, so that rounding never reaches it. */
static double below(double x, double lo, double hi, rw_dtype dtype)
{
    const double widest = dtype == RW_F64 ? x : dtype == RW_BF16 ? (double)bf16_to_f32(f32_to_bf16((float)x)) : (double)(float)x;
    if (widest < hi || lo == hi) return x;
    return dtype == RW_BF16 ? lo + (hi - lo) * (1 - 0x1p-8) : lo + (hi - lo) * (1 - 0x1p-24);
}

void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < (n + 3) / 4; b++) {
        uint32_t w[4];
        rw_philox(ticket.seed, ticket.offset + (uint64_t)b, w);
        for (int j = 0; j < 4 && 4 * b + j < n; j++)
            put(data, dtype, 4 * b + j, below(lo + (hi - lo) * ((double)w[j] * 0x1p-32), lo, hi, dtype));
    }
}
