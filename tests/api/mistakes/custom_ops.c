/* Invalid calls of rewind/op.h: custom ops, and the helpers that record them. */
#include "api/mistakes/table.h"

#include <rewind/op.h>
#include <rewind/ops.h>
#include <rewind/precision.h>

#include <stdio.h>
#include <string.h>

static rw_status fine(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status says_nothing(rw_op_call *call)
{
    return RW_OK;
}

static rw_status of_rank_100(rw_op_call *call)
{
    return rw_op_output(call, 0, RW_F32, (rw_shape){ .rank = 100 });
}

static rw_status of_no_type(rw_op_call *call)
{
    return rw_op_output(call, 0, (rw_dtype)50, RW_SHAPE(2));
}

static rw_status names_output(rw_op_call *call, int i)
{
    return rw_op_output(call, i, RW_F32, RW_SHAPE(2));
}

static rw_status names_output_5(rw_op_call *call)
{
    const rw_status status = names_output(call, 0);
    return status ? status : names_output(call, 5);
}

static rw_status names_output_minus_1(rw_op_call *call)
{
    return names_output(call, -1);
}

static rw_status like_input_7(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 7);
}

static rw_status names_second_of_two(rw_op_call *call)
{
    return rw_op_output_like(call, 1, 0);
}

static rw_status has_minus_5_outputs(rw_op_call *call)
{
    call->n_outputs = -5;
    return RW_OK;
}

static rw_status has_300_outputs(rw_op_call *call)
{
    call->n_outputs = 300;
    return rw_op_output_like(call, 0, 0);
}

static rw_status has_100000_outputs(rw_op_call *call)
{
    call->n_outputs = 100000;
    return rw_op_output_like(call, 0, 0);
}

static rw_status looks(rw_op_call *call, rw_shape shape, int64_t stride, int64_t offset)
{
    const int64_t strides[RW_MAX_RANK] = { stride, 1, 1, 1, 1, 1, 1, 1 };
    return rw_op_output_view(call, 0, shape, strides, offset);
}

static rw_status looks_after(rw_op_call *call)
{
    return looks(call, RW_SHAPE(7), 1, 0);
}

static rw_status looks_before(rw_op_call *call)
{
    return looks(call, RW_SHAPE(2), 1, -1);
}

static rw_status looks_far(rw_op_call *call)
{
    return looks(call, RW_SHAPE(HUGE_EXTENT), HUGE_EXTENT, 0);
}

static rw_status looks_backwards(rw_op_call *call)
{
    return looks(call, RW_SHAPE(3), -1, 2);
}

static rw_status looks_at_rank_100(rw_op_call *call)
{
    return looks(call, (rw_shape){ .rank = 100 }, 1, 0);
}

static rw_status refuses_without_a_word(rw_op_call *call)
{
    return RW_ERR_UNSUPPORTED;
}

static rw_status nothing(const rw_kernel *k)
{
    return RW_OK;
}

static rw_status sets_nothing(rw_grad_call *g)
{
    return RW_OK;
}

static rw_status sets_null(rw_grad_call *g)
{
    return rw_grad_set(g, 0, NULL);
}

static rw_status sets_another_shape(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_sum(rw_grad_tape(g), rw_grad_upstream(g, 0), RW_ALL_AXES, false));
}

static rw_status sets_input_9(rw_grad_call *g)
{
    return rw_grad_set(g, 9, rw_grad_upstream(g, 0));
}

static rw_status sets_twice_input_minus_1(rw_grad_call *g)
{
    return rw_grad_set(g, -1, rw_grad_upstream(g, 0));
}

#define KERNEL .kernel = { [RW_DEVICE_CPU] = nothing, [RW_DEVICE_CUDA] = nothing }
/* A rule that records its nodes but does not close the region that it opened. */
static rw_status begins_a_region(rw_grad_call *g)
{
    ckpt_begin(rw_grad_tape(g), "of a rule");
    return rw_grad_set(g, 0, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), 2));
}

static rw_status begins_a_policy(rw_grad_call *g)
{
    ckpt_policy_begin(rw_grad_tape(g), "full");
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static rw_status begins_a_recipe(rw_grad_call *g)
{
    rw_recipe_begin(rw_grad_tape(g), &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

/* Invalid return values of a caller's kernel, rule or check. */
static int returned;

static rw_status returns_from_kernel(const rw_kernel *k)
{
    return (rw_status)returned;
}

static rw_status returns_from_rule(rw_grad_call *g)
{
    return (rw_status)returned;
}

static rw_status returns_from_check(rw_op_call *call)
{
    return (rw_status)returned;
}

#define OP(...) static const rw_op_def __VA_ARGS__
OP(unnamed = { .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL });
OP(blank = { .name = "", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL });
OP(shouting = { .name = "Not A Name", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL });
OP(imposter = { .name = "linear", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL });
OP(unchecked = { .name = "unchecked", .n_inputs = 1, .n_outputs = 1, KERNEL });
OP(kernelless = { .name = "kernelless", .n_inputs = 1, .n_outputs = 1, .check = fine });
OP(inputs_minus_7 = { .name = "inputs_minus_7", .n_inputs = -7, .n_outputs = 1, .check = fine, KERNEL });
OP(outputs_minus_7 = { .name = "outputs_minus_7", .n_inputs = 1, .n_outputs = -7, .check = fine, KERNEL });
OP(outputs_none = { .name = "outputs_none", .n_inputs = 1, .n_outputs = 0, .check = says_nothing, KERNEL });
OP(outputs_300 = { .name = "outputs_300", .n_inputs = 1, .n_outputs = 300, .check = fine, KERNEL });
OP(outputs_70000 = { .name = "outputs_70000", .n_inputs = 1, .n_outputs = 70000, .check = fine, KERNEL });
OP(overwriter = { .name = "overwriter",
                  .n_inputs = 1,
                  .n_outputs = 1,
                  .check = fine,
                  KERNEL,
                  .inplace = (const rw_inplace[]){ { 3, 0 }, RW_INPLACE_END } });
OP(committer = { .name = "committer", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .flags = RW_OP_COMMIT });
OP(flag_20 = { .name = "flag_20", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .flags = 1 << 20 });
OP(flag_16 = { .name = "flag_16", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .flags = 1 << 16 });
OP(biased = { .name = "biased", .n_inputs = 2, .n_outputs = 1, .check = fine, KERNEL, .bias = 2 });
OP(biased_minus = { .name = "biased_minus", .n_inputs = 2, .n_outputs = 1, .check = fine, KERNEL, .bias = -1 });
OP(says_none = { .name = "says_none", .n_inputs = 1, .n_outputs = 1, .check = says_nothing, KERNEL });
OP(says_second = { .name = "says_second", .n_inputs = 1, .n_outputs = 2, .check = names_second_of_two, KERNEL });
OP(rank_100 = { .name = "rank_100", .n_inputs = 1, .n_outputs = 1, .check = of_rank_100, KERNEL });
OP(no_type = { .name = "no_type", .n_inputs = 1, .n_outputs = 1, .check = of_no_type, KERNEL });
OP(output_5 = { .name = "output_5", .n_inputs = 1, .n_outputs = 1, .check = names_output_5, KERNEL });
OP(output_minus = { .name = "output_minus", .n_inputs = 1, .n_outputs = 1, .check = names_output_minus_1, KERNEL });
OP(input_7 = { .name = "input_7", .n_inputs = 1, .n_outputs = 1, .check = like_input_7, KERNEL });
OP(variadic_minus = {
       .name = "variadic_minus", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = has_minus_5_outputs, KERNEL });
OP(variadic_none = {
       .name = "variadic_none", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = says_nothing, KERNEL });
OP(variadic_300 = {
       .name = "variadic_300", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = has_300_outputs, KERNEL });
OP(variadic_many = {
       .name = "variadic_many", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = has_100000_outputs, KERNEL });
OP(after = { .name = "behind", .n_inputs = 1, .n_outputs = 1, .check = looks_after, .flags = RW_OP_VIEW });
OP(in_front = { .name = "in_front", .n_inputs = 1, .n_outputs = 1, .check = looks_before, .flags = RW_OP_VIEW });
OP(far_away = { .name = "far_away", .n_inputs = 1, .n_outputs = 1, .check = looks_far, .flags = RW_OP_VIEW });
OP(backwards = { .name = "backwards", .n_inputs = 1, .n_outputs = 1, .check = looks_backwards, .flags = RW_OP_VIEW });
OP(view_100 = { .name = "view_100", .n_inputs = 1, .n_outputs = 1, .check = looks_at_rank_100, .flags = RW_OP_VIEW });
OP(view_of_none = {
       .name = "view_of_none", .n_inputs = 0, .n_outputs = 1, .check = looks_before, .flags = RW_OP_VIEW });
OP(no_view = { .name = "no_view", .n_inputs = 1, .n_outputs = 1, .check = looks_after, KERNEL });
OP(silent_one = { .name = "silent_one", .n_inputs = 1, .n_outputs = 1, .check = refuses_without_a_word, KERNEL });
OP(sound = { .name = "sound", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL });
OP(rule_none = { .name = "rule_none", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = sets_nothing });
OP(rule_null = { .name = "rule_null", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = sets_null });
OP(rule_shape = {
       .name = "rule_shape", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = sets_another_shape });
OP(rule_9 = { .name = "rule_9", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = sets_input_9 });
OP(rule_minus = {
       .name = "rule_minus", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = sets_twice_input_minus_1 });
OP(rule_region = {
       .name = "rule_region", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = begins_a_region });
OP(rule_policy = {
       .name = "rule_policy", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = begins_a_policy });
OP(rule_recipe = {
       .name = "rule_recipe", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = begins_a_recipe });
OP(odd_kernel = { .name = "odd_kernel",
                  .n_inputs = 1,
                  .n_outputs = 1,
                  .check = fine,
                  .kernel = { [RW_DEVICE_CPU] = returns_from_kernel, [RW_DEVICE_CUDA] = returns_from_kernel } });
OP(odd_rule = { .name = "odd_rule", .n_inputs = 1, .n_outputs = 1, .check = fine, KERNEL, .grad = returns_from_rule });
OP(odd_check = { .name = "odd_check", .n_inputs = 1, .n_outputs = 1, .check = returns_from_check, KERNEL });

/* Kernels that make calls that are not allowed there: each makes one call on the trial's tape and returns RW_OK. */
static struct world *disturbed;

static rw_status records(const rw_kernel *k)
{
    (void)k;
    return rw_input(disturbed->t, RW_F32, RW_SHAPE(2, 3), NULL, 0) ? RW_ERR_DEVICE : RW_OK;
}

static rw_status records_an_op(const rw_kernel *k)
{
    (void)k;
    return rw_tanh(disturbed->t, disturbed->x) ? RW_ERR_DEVICE : RW_OK;
}

static rw_status begins(const rw_kernel *k)
{
    (void)k;
    return ckpt_begin(disturbed->t, "region") ? RW_OK : RW_ERR_DEVICE;
}

static rw_status resets(const rw_kernel *k)
{
    (void)k;
    rw_tape_reset(disturbed->t);
    return RW_OK;
}

static rw_status destroys(const rw_kernel *k)
{
    (void)k;
    rw_tape_destroy(&disturbed->t);
    return disturbed->t ? RW_OK : RW_ERR_DEVICE;
}

static rw_status runs(const rw_kernel *k)
{
    float x[6];
    (void)k;
    return rw_read(disturbed->t, disturbed->v, x, sizeof x) ? RW_OK : RW_ERR_DEVICE;
}

static rw_status resets_another(const rw_kernel *k)
{
    (void)k;
    rw_tape_reset(disturbed->alien_t);
    return rw_tanh(disturbed->alien_t, rw_zeros(disturbed->alien_t, RW_F32, RW_SHAPE(2))) ? RW_OK : RW_ERR_DEVICE;
}

#define CALLS(name_, kernel_)                                                                                          \
    static const rw_op_def name_ = { .name = #name_,                                                                   \
                                     .n_inputs = 1,                                                                    \
                                     .n_outputs = 1,                                                                   \
                                     .check = fine,                                                                    \
                                     .kernel = { [RW_DEVICE_CPU] = kernel_, [RW_DEVICE_CUDA] = kernel_ } }
CALLS(recorder, records);
CALLS(caller, records_an_op);
CALLS(beginner, begins);
CALLS(resetter, resets);
CALLS(destroyer, destroys);
CALLS(runner, runs);
CALLS(stranger, resets_another);

#define RECORD(name_, expected, op) TENSOR(name_, expected, rw_apply(t, &op, &in, 1, NULL, 0, outs))
#define BACKWARD(name_, expected, op)                                                                                  \
    STATUS_OF(name_, expected, y = rw_sum(t, rw_apply(t, &op, &p, 1, NULL, 0, NULL), RW_ALL_AXES, false),              \
              rw_backward(t, y))

/* Ops with invalid definitions. */
static void definitions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *const in = w->transposed, **const outs = (rw_tensor **)(void *)w->out;
    RECORD("rw_apply", RW_ERR_ARGUMENT, unnamed);
    RECORD("rw_apply", RW_ERR_ARGUMENT, blank);
    RECORD("Not A Name", RW_ERR_ARGUMENT, shouting);
    RECORD("linear", RW_ERR_ARGUMENT, imposter);
    RECORD("unchecked", RW_ERR_ARGUMENT, unchecked);
    RECORD("kernelless", RW_ERR_UNSUPPORTED, kernelless);
    RECORD("inputs_minus_7", RW_ERR_ARGUMENT, inputs_minus_7);
    RECORD("outputs_minus_7", RW_ERR_ARGUMENT, outputs_minus_7);
    RECORD("outputs_none", RW_ERR_ARGUMENT, outputs_none);
    RECORD("outputs_300", RW_ERR_ARGUMENT, outputs_300);
    RECORD("outputs_70000", RW_ERR_ARGUMENT, outputs_70000);
    RECORD("overwriter", RW_ERR_ARGUMENT, overwriter);
    RECORD("committer", RW_ERR_ARGUMENT, committer);
    RECORD("flag_16", RW_ERR_ARGUMENT, flag_16);
    RECORD("flag_20", RW_ERR_ARGUMENT, flag_20);
    RECORD("biased", RW_ERR_ARGUMENT, biased);
    RECORD("biased_minus", RW_ERR_ARGUMENT, biased_minus);
    RECORD("says_none", RW_ERR_ARGUMENT, says_none);
    RECORD("says_second", RW_ERR_ARGUMENT, says_second);
    RECORD("rank_100", RW_ERR_SHAPE, rank_100);
    RECORD("no_type", RW_ERR_DTYPE, no_type);
    RECORD("output_5", RW_ERR_ARGUMENT, output_5);
    RECORD("output_minus", RW_ERR_ARGUMENT, output_minus);
    RECORD("input_7", RW_ERR_ARGUMENT, input_7);
    RECORD("variadic_minus", RW_ERR_ARGUMENT, variadic_minus);
    RECORD("variadic_none", RW_ERR_ARGUMENT, variadic_none);
    RECORD("variadic_300", RW_ERR_ARGUMENT, variadic_300);
    RECORD("variadic_many", RW_ERR_ARGUMENT, variadic_many);
    RECORD("behind", RW_ERR_SHAPE, after);
    RECORD("in_front", RW_ERR_SHAPE, in_front);
    RECORD("far_away", RW_ERR_SHAPE, far_away);
    RECORD("backwards", RW_ERR_SHAPE, backwards);
    RECORD("view_100", RW_ERR_SHAPE, view_100);
    RECORD("no_view", RW_ERR_ARGUMENT, no_view);
    RECORD("silent_one", RW_ERR_UNSUPPORTED, silent_one);
    TENSOR("view_of_none", RW_ERR_ARGUMENT, rw_apply(t, &view_of_none, NULL, 0, NULL, 0, outs));
}

static rw_status run_of(struct world *w, const rw_op_def *op)
{
    rw_tensor *const y = rw_apply(w->t, op, &w->x, 1, NULL, 0, NULL);
    disturbed = w;
    return rw_eval(w->t, &y, 1);
}

/* Their op is recorded, so the tape does change. */
static void disturbances(struct trial *m, struct world *w)
{
#define DISTURBS(name_, op)                                                                                            \
    ALLOWED(name_, run_of(w, &op) == RW_ERR_ARGUMENT && w->t && strstr(rw_error_message(w->ctx), name_) &&             \
                       strstr(rw_error_message(w->ctx), "got one by a kernel"))
    DISTURBS("rw_input", recorder);
    DISTURBS("tanh", caller);
    DISTURBS("ckpt_begin", beginner);
    DISTURBS("rw_tape_reset", resetter);
    DISTURBS("rw_tape_destroy", destroyer);
    DISTURBS("rw_read", runner);
    ALLOWED("rw_apply", run_of(w, &stranger) == RW_OK);
}

/* ---- rw_kernel_parallel() ---- */

static int shares;

static void share(void *of, int thread, int threads)
{
    (void)of;
    if (thread >= 0 && thread < threads) __atomic_fetch_add(&shares, 1, __ATOMIC_RELAXED);
}

/* Number of times that a job ran. */
static int shares_of(const rw_kernel *k, rw_kernel_job job)
{
    shares = 0;
    rw_kernel_parallel(k, job, NULL);
    return shares;
}

static int shares_by(int32_t threads)
{
    const rw_kernel k = { .threads = threads };
    return shares_of(&k, share);
}

static void share_of_a_share(void *of, int thread, int threads)
{
    const rw_kernel k = { .threads = 4 };
    rw_kernel_parallel(&k, share, NULL);
}

static int shares_in_shares(void)
{
    const rw_kernel k = { .threads = 2 };
    return shares_of(&k, share_of_a_share);
}

/* The last of a kernel's threads makes a call that no kernel may make. */
static void record_share(void *of, int thread, int threads)
{
    if (thread == threads - 1) rw_tanh(disturbed->t, disturbed->x);
}

static rw_status records_in_a_job(const rw_kernel *k)
{
    rw_kernel_parallel(k, record_share, NULL);
    return RW_OK;
}

static rw_status has_no_job(const rw_kernel *k)
{
    rw_kernel_parallel(k, NULL, NULL);
    return shares_of(NULL, share) == 1 ? RW_OK : RW_ERR_DEVICE;
}

CALLS(parallel_recorder, records_in_a_job);
CALLS(jobless, has_no_job);

/* The function has no status: invalid arguments run nothing, or the job once in the calling thread. */
static void jobs(struct trial *m, struct world *w)
{
    ALLOWED("rw_kernel_parallel", shares_of(NULL, NULL) == 0);
    ALLOWED("rw_kernel_parallel", shares_of(NULL, share) == 1);
    ALLOWED("rw_kernel_parallel", shares_by(0) == 1);
    ALLOWED("rw_kernel_parallel", shares_by(-1) == 1);
    ALLOWED("rw_kernel_parallel", shares_by(INT32_MIN) == 1);
    ALLOWED("rw_kernel_parallel", shares_by(INT32_MAX) >= 1 && shares <= RW_MAX_THREADS);
    ALLOWED("rw_kernel_parallel", shares_in_shares() >= 1 && shares <= 2);
    ALLOWED("rw_kernel_parallel", run_of(w, &jobless) == RW_OK);
    DISTURBS("tanh", parallel_recorder);
}

static rw_status backward_of(struct world *w, const rw_op_def *op)
{
    rw_tensor *const y = rw_apply(w->t, op, &w->p, 1, NULL, 0, NULL);
    return rw_backward(w->t, rw_sum(w->t, y, RW_ALL_AXES, false));
}

/* Whether the error is set, and names the op and the number that it returned. */
static bool says(const struct world *w, const char *op, int number)
{
    char text[32];
    snprintf(text, sizeof text, " %d", number);
    const char *const m = rw_error_message(w->ctx);
    return rw_error_status(w->ctx) == RW_ERR_ARGUMENT && strstr(m, op) && strstr(m, text);
}

/* A number that a callback may not return becomes RW_ERR_ARGUMENT; an error of its own is passed on. */
static void numbers(struct trial *m, struct world *w)
{
    static const int odd[] = { -1, 99, 1000, RW_ERR_MISMATCH };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        returned = odd[i];
        ALLOWED("odd_kernel", run_of(w, &odd_kernel) == RW_ERR_ARGUMENT && says(w, "odd_kernel", returned));
        ALLOWED("odd_rule", backward_of(w, &odd_rule) == RW_ERR_ARGUMENT && says(w, "odd_rule", returned));
        if (returned != RW_ERR_MISMATCH)
            ALLOWED("odd_check",
                    !rw_apply(w->t, &odd_check, &w->x, 1, NULL, 0, NULL) && says(w, "odd_check", returned));
    }
    returned = RW_ERR_MEMORY;
    ALLOWED("odd_kernel", run_of(w, &odd_kernel) == RW_ERR_MEMORY);
    returned = RW_ERR_SHAPE;
    ALLOWED("odd_rule", backward_of(w, &odd_rule) == RW_ERR_SHAPE);
}

/* Valid ops with invalid operands, and rules that make invalid calls. */
static void calls(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    rw_tensor *p = w->p, *y = NULL, *const in = w->transposed, *const none = NULL, *const left_out = RW_NONE,
              *const dead = w->dead, *const gone = w->gone, **const outs = (rw_tensor **)(void *)w->out;
    TENSOR("rw_apply", RW_ERR_ARGUMENT, rw_apply(t, NULL, &in, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(NULL, &sound, &in, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, NULL, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &none, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &left_out, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &dead, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &gone, 1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &in, 0, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &in, -1, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &in, INT32_MAX, NULL, 0, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &in, 1, NULL, 8, outs));
    TENSOR("sound", RW_ERR_ARGUMENT, rw_apply(t, &sound, &in, 1, w, SIZE_MAX, outs));
    BACKWARD("rule_none", RW_ERR_ARGUMENT, rule_none);
    BACKWARD("rule_null", RW_ERR_ARGUMENT, rule_null);
    BACKWARD("rule_shape", RW_ERR_SHAPE, rule_shape);
    BACKWARD("rule_9", RW_ERR_ARGUMENT, rule_9);
    BACKWARD("rule_minus", RW_ERR_ARGUMENT, rule_minus);
    BACKWARD("rule_region", RW_ERR_REGION, rule_region);
    BACKWARD("rule_policy", RW_ERR_REGION, rule_policy);
    BACKWARD("rule_recipe", RW_ERR_REGION, rule_recipe);
    BACKWARD("sound", RW_ERR_NO_GRADIENT, sound);
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_at(RW_HERE, t, w->dead, "my_op"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_at(RW_HERE, t, NULL, "my_op"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_at(RW_HERE, t, RW_NONE, "my_op"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_at(RW_HERE, t, w->alien_p, "my_op"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_at(RW_HERE, t, w->v_grad, "my_op"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_check(RW_HERE, t, w->dead, "my_op", "x"));
    TENSOR("my_op", RW_ERR_ARGUMENT, rw_operand_check(RW_HERE, t, w->alien_p, "my_op", "x"));
    TENSOR("rw_operand_check", RW_ERR_ARGUMENT, rw_operand_check(RW_HERE, t, NULL, NULL, NULL));
    TENSOR("accumulate", RW_ERR_SHAPE, rw_accumulate(t, w->p, w->transposed));
    TENSOR("rw_recipe_quantize", RW_ERR_ARGUMENT,
           rw_recipe_quantize(t, w->p, NULL, w->p, RW_DELAYED_INPUT, (rw_tensor **)(void *)w->out));
    STATUS("my_op", RW_ERR_SHAPE, rw_refuse_at(RW_HERE, t, RW_ERR_SHAPE, "my_op: expected yes, got no"));
    SILENT("my_op", RW_ERR_SHAPE, rw_refuse_at(RW_HERE, NULL, RW_ERR_SHAPE, "my_op: expected yes, got no"));
    ALLOWED("rw_tensor_layout", !rw_tensor_layout(NULL) && !rw_tensor_layout(RW_NONE));
    ALLOWED("rw_tensor_base", !rw_tensor_base(NULL));
    ALLOWED("rw_tensor_base", rw_tensor_base(w->dead) == NULL);
    ALLOWED("rw_tensor_kind_of",
            rw_tensor_kind_of(NULL) == RW_TENSOR_NONE && rw_tensor_kind_of(w->dead_grad) == RW_TENSOR_NONE);
}

void mistakes_with_custom_ops(struct trial *m, struct world *w)
{
    definitions(m, w);
    disturbances(m, w);
    jobs(m, w);
    numbers(m, w);
    calls(m, w);
}
