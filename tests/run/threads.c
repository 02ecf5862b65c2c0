/* How many threads a node is given: one where waking the others costs more than they gain. */
#include "support/support.h"

#include <criterion/criterion.h>

enum { THREADS = 3 };

static int given;

static rw_status check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = x[i];
    given = k->threads;
    return RW_OK;
}

static rw_op_cost little(const rw_op_call *call)
{
    return (rw_op_cost){ 1000, 1000 };
}

static rw_op_cost much_arithmetic(const rw_op_call *call)
{
    return (rw_op_cost){ 1e12, 1000 };
}

static rw_op_cost much_traffic(const rw_op_call *call)
{
    return (rw_op_cost){ 1000, 1e12 };
}

/* What a node of that op is given in a context of so many. */
static int threads_of(const rw_op_def *op, int threads)
{
    struct fixture b = fixture_open(1, threads);
    rw_tensor *x = rw_rand(b.t, RW_F32, RW_SHAPE(10));
    float y[10];
    given = 0;
    x = rw_apply(b.t, op, &x, 1, NULL, 0, NULL);
    cr_assert_eq(rw_read(b.t, x, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
    return given;
}

Test(threads, nodes_of_little_work_run_in_one)
{
    static const struct {
        const char *name;
        rw_op_cost (*cost)(const rw_op_call *call);
        int threads;
    } ops[] = { { "little", little, 1 },
                { "much_arithmetic", much_arithmetic, THREADS },
                { "much_traffic", much_traffic, THREADS },
                { "unknown", NULL, THREADS } }; /* an op that does not say may do anything */
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const rw_op_def op = { .name = ops[i].name, .n_inputs = 1, .n_outputs = 1, .check = check,
                               .kernel[RW_DEVICE_CPU] = kernel, .cost = ops[i].cost };
        cr_expect_eq(threads_of(&op, THREADS), ops[i].threads, "%s: %d", ops[i].name, given);
        cr_expect_eq(threads_of(&op, 1), 1, "%s", ops[i].name);
    }
}
