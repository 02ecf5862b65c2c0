/*
 * Features for users of CUDA: their own kernels on the library's stream, and data in pinned or in device memory. The
 * simulated device executes queued work as late and in as unusual an order as the promises allow.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef RW_CUDASIM
#include <cudasim.h>
static void be_late(uint64_t seed)
{
    cudasim_set_lazy(true);
    cudasim_set_seed(seed);
}
static size_t queued(void) { return cudasim_live().queued; }
#define SEEDS 8
#else
static void be_late(uint64_t seed) { (void)seed; }
#define SEEDS 1
#endif

#define N 3000

static struct fixture open_cuda(void)
{
    struct fixture b = { NULL, NULL };
    const rw_context_params params = { .device = RW_DEVICE_CUDA, .seed = 11, .threads = 2 };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

static void count_up(float *x, size_t n, float from)
{
    for (size_t i = 0; i < n; i++) x[i] = from + (float)i;
}

/* ---- an op of the caller's: y = 2 x, by two copies and no kernel; its bytes are those of x, twice ---- */

static rw_status twice_check(rw_op_call *call)
{
    rw_shape s = rw_layout_shape(call->in[0].layout);
    s.dim[0] *= 2;
    return rw_op_output(call, 0, call->in[0].dtype, s);
}

static rw_status twice_cuda(const rw_kernel *k)
{
    const size_t bytes = (size_t)k->in[0].layout->numel * rw_dtype_size(k->in[0].dtype);
    for (int i = 0; i < 2; i++)
        if (cudaMemcpyAsync((char *)k->out[0].data + (size_t)i * bytes, k->in[0].data, bytes, cudaMemcpyDeviceToDevice,
                            k->stream))
            return RW_ERR_DEVICE;
    return k->ticket_base ? RW_OK : RW_ERR_DEVICE;
}

static rw_status twice_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    const int64_t half = rw_tensor_shape(dy).dim[0] / 2;
    return rw_grad_set(g, 0, rw_add(t, rw_slice(t, dy, 0, 0, half), rw_slice(t, dy, 0, half, 2 * half)));
}

static const rw_op_def twice = { .name = "twice", .n_inputs = 1, .n_outputs = 1, .check = twice_check,
                                 .kernel = { [RW_DEVICE_CUDA] = twice_cuda }, .grad = twice_grad };

/* A step with the caller's own op in a region, compared with numbers computed by hand. */
static void own_op(uint64_t seed, const char *policy)
{
    be_late(seed);
    struct fixture b = open_cuda();
    float x[N], g[N];
    count_up(x, N, 1);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N));
    cr_assert_eq(rw_write(p, x, sizeof x), RW_OK);
    ckpt_begin(b.t, "own");
    rw_tensor *const y = rw_apply(b.t, &twice, (rw_tensor *[]){ rw_mul(b.t, p, p) }, 1, NULL, 0, NULL);
    rw_tensor *const z = rw_mul(b.t, y, y);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, z, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, rw_gradient(p), g, sizeof g), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(g[i], 4 * (x[i] * x[i]) * x[i] * 2, "%d", i);
    fixture_close(&b);
}

Test(cuda_interop, an_own_op_on_the_stream)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        own_op(seed, "none");
        own_op(seed, "full");
    }
}

/* ---- an op that breaks the law: it reads memory that the library does not know ---- */

static float *hidden[2]; /* pinned; read by the first execution, and by its replay */
static int asked;

static rw_status hidden_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status hidden_cuda(const rw_kernel *k)
{
    return cudaMemcpyAsync(k->out[0].data, hidden[asked++ % 2], N * sizeof(float), cudaMemcpyHostToDevice, k->stream)
               ? RW_ERR_DEVICE
               : RW_OK;
}

static rw_status hidden_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def hidden_op = { .name = "hidden", .n_inputs = 1, .n_outputs = 1, .check = hidden_check,
                                     .kernel = { [RW_DEVICE_CUDA] = hidden_cuda }, .grad = hidden_grad };

static rw_tensor *hidden_loss(struct fixture *b, rw_tensor *w)
{
    ckpt_set_policy(b->t, "full");
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_apply(b->t, &hidden_op, &w, 1, NULL, 0, NULL);
    rw_tensor *const z = rw_mul(b->t, y, y);
    ckpt_end(b->t);
    return rw_sum(b->t, z, RW_AXES(0), false);
}

/* The queued work does not change later, but its results do: the captured graph itself detects that. */
Test(cuda_interop, a_captured_graph_digests_its_replays)
{
    setenv("REWIND_VERIFY", "digest", 1);
    struct fixture b = open_cuda();
    unsetenv("REWIND_VERIFY");
    rw_graph *g = NULL;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(cudaMallocHost((void **)&hidden[i], N * sizeof(float)), cudaSuccess);
        count_up(hidden[i], N, 1);
    }
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_tensor *const loss = hidden_loss(&b, w);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_gt(rw_item(b.t, loss), 0, "launch %d: %s", i, rw_error_message(b.ctx));
    }
    cr_assert_eq(asked, 4, "the graph was not captured");
    hidden[1][N - 1] += 1;
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_item(b.t, loss);
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_MISMATCH, "%s", rw_error_message(b.ctx));
    cr_assert(strstr(rw_error_message(b.ctx), "replay of hidden at"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    hidden[1][N - 1] -= 1;
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_gt(rw_item(b.t, loss), 0, "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&g);
    fixture_close(&b);
    for (int i = 0; i < 2; i++) cudaFreeHost(hidden[i]);
}

Test(cuda_interop, the_stream_of_a_context)
{
    struct fixture b = open_cuda();
    rw_context *cpu = NULL;
    cr_assert_not_null(rw_context_stream(b.ctx));
    cr_assert_eq(cudaStreamSynchronize(rw_context_stream(b.ctx)), cudaSuccess);
    cr_assert_eq(rw_context_create(&cpu, &(rw_context_params){ .device = RW_DEVICE_CPU }), RW_OK);
    cr_assert_null(rw_context_stream(cpu));
    cr_assert_null(rw_context_stream(NULL));
    rw_context_destroy(&cpu);
    fixture_close(&b);
}

/* ---- several devices, several threads ---- */

/* Steps, a graph, clipping, AdamW, a file: every entry point, after which the caller's current device is unchanged. */
static unsigned char *train(struct fixture *b, int caller, size_t *ret_bytes)
{
#define CALLER_IS_UNTOUCHED()                                      \
    do {                                                           \
        int now_ = -1;                                             \
        cr_assert_eq(cudaGetDevice(&now_), cudaSuccess);           \
        cr_assert_eq(now_, caller, "line %d left device %d", __LINE__, now_); \
    } while (0)
    struct net n = { .dropout = 0.1f };
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    net_init(&n, b->ctx, 2, 16, RW_BF16, 1);
    cr_assert_eq(ckpt_set_policy(b->t, "full"), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b->ctx, NULL), RW_OK, "%s", rw_error_message(b->ctx));
    CALLER_IS_UNTOUCHED();
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(b->ctx);
        cr_assert_eq(rw_backward(b->t, net_loss(&n, b->t, 9, step)), RW_OK, "%s", rw_error_message(b->ctx));
        CALLER_IS_UNTOUCHED();
        cr_assert_eq(rw_clip_grad_norm(b->ctx, 0.5, NULL), RW_OK);
        if (step == 1) cr_assert_eq(rw_init_constant(n.up[0], 0.25), RW_OK); /* outdates the optimizer's master copy */
        cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b->ctx));
        CALLER_IS_UNTOUCHED();
        rw_tape_reset(b->t);
    }
    cr_assert_eq(rw_graph_create(&g, b->t, net_loss(&n, b->t, 9, 3),
                                 &(rw_graph_params){ { rw_record_update(opt) } }), RW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b->ctx));
    CALLER_IS_UNTOUCHED();
    unsigned char *const bytes = all_parameters(b->ctx, ret_bytes);
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    CALLER_IS_UNTOUCHED();
    return bytes;
}

struct elsewhere {
    struct fixture *b;
    unsigned char *bytes;
    size_t n;
};

/* A new thread's current device is the first one. */
static void *train_in_a_thread(void *arg)
{
    struct elsewhere *const e = arg;
    e->bytes = train(e->b, 0, &e->n);
    return NULL;
}

Test(cuda_interop, contexts_of_two_devices_and_another_thread)
{
    int devices = 0;
#ifdef RW_CUDASIM
    cudasim_set_devices(2);
#endif
    cr_assert_eq(cudaGetDeviceCount(&devices), cudaSuccess);
    if (devices < 2) cr_skip_test("one device");
    struct fixture first = open_cuda();
    cr_assert_eq(cudaSetDevice(1), cudaSuccess);
    struct fixture second = open_cuda(), third = open_cuda();
#ifdef RW_CUDASIM
    const size_t before = cudasim_bytes_on(0);
#endif
    size_t n[2];
    struct elsewhere e = { &third, NULL, 0 };
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, train_in_a_thread, &e), 0);
    pthread_join(thread, NULL);
    unsigned char *const b = train(&second, 1, &n[1]);
#ifdef RW_CUDASIM
    cr_assert_eq(cudasim_bytes_on(0), before, "memory was taken from the other device");
#endif
    unsigned char *const a = train(&first, 1, &n[0]);
    cr_assert_eq(n[0], n[1]);
    cr_assert_eq(first_difference(a, b, n[0]), -1);
    cr_assert_eq(first_difference(a, e.bytes, n[0]), -1);
    fixture_close(&third);
    fixture_close(&second);
    fixture_close(&first);
    free(a), free(b), free(e.bytes);
}

/* ---- two contexts whose kernels need different amounts of shared memory ---- */

enum { FEW = 13000, MANY = 25000, TOKENS = 2, WIDTH = 4, VOCABULARY_STEPS = 4 };

struct vocabulary {
    int64_t classes;
    float loss;
};

/* Cross-entropy whose rows, of 52 or 100 kB, are in shared memory between forward and backward. */
static void *train_vocabulary(void *arg)
{
    struct vocabulary *const v = arg;
    static const int32_t targets[TOKENS] = { 3, 12999 };
    static const float x[TOKENS * WIDTH] = { 1, -1, 2, 0.5f, -2, 1, 0.25f, 3 };
    struct fixture b = open_cuda();
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(v->classes, WIDTH));
    rw_init_normal(w, 0, 0.5);
    for (int step = 0; step < VOCABULARY_STEPS; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const logits = rw_linear(b.t, rw_input(b.t, RW_F32, RW_SHAPE(TOKENS, WIDTH), x, sizeof x), w,
                                            RW_NONE);
        rw_tensor *const loss =
            rw_cross_entropy(b.t, logits, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS), targets, sizeof targets));
        cr_expect_eq(rw_backward(b.t, loss), RW_OK, "%lld classes: %s", (long long)v->classes,
                     rw_error_message(b.ctx));
        cr_expect_eq(rw_read(b.t, loss, &v->loss, sizeof v->loss), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
    return NULL;
}

/* The limit of shared memory belongs to the kernel on the device, and is common to both contexts. */
Test(cuda_interop, vocabularies_of_two_contexts)
{
    struct vocabulary alone[] = { { FEW, 0 }, { MANY, 0 } }, beside[] = { { FEW, 0 }, { MANY, 0 } };
    pthread_t thread[2];
    for (int i = 1; i >= 0; i--) train_vocabulary(&alone[i]);
    for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&thread[i], NULL, train_vocabulary, &beside[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) cr_expect_eq(beside[i].loss, alone[i].loss);
#ifdef RW_CUDASIM
    cr_expect_eq(cudasim_limit_changes(), 0);
#endif
}

#ifdef RW_CUDASIM
static void *train_beside(void *arg)
{
    int before = -1, after = -1;
    cr_assert_eq(cudaGetDevice(&before), cudaSuccess);
    train_in_a_thread(arg);
    cr_assert_eq(cudaGetDevice(&after), cudaSuccess);
    cr_assert_eq(before, 0);
    cr_assert_eq(after, 0);
    return NULL;
}

/* A new thread's device is the first one: restoring it must not create a context there, which takes 500 MB. */
Test(cuda_interop, an_unused_device_gets_no_context)
{
    cudasim_set_devices(2);
    cr_assert_eq(cudaSetDevice(1), cudaSuccess);
    struct fixture b = open_cuda();
    struct elsewhere e = { &b, NULL, 0 };
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, train_beside, &e), 0);
    pthread_join(thread, NULL);
    cr_assert_not(cudasim_has_context(0));
    cr_assert(cudasim_has_context(1));
    fixture_close(&b);
    free(e.bytes);
}

/* The driver's functions may fail: then the runtime's own function switches devices. */
Test(cuda_interop, without_a_stack_of_contexts)
{
    cudasim_set_devices(2);
    cr_assert_eq(cudaSetDevice(1), cudaSuccess);
    cudasim_fail_call("cuCtxGetCurrent", 1, 1);
    struct fixture b = open_cuda();
    struct elsewhere e = { &b, NULL, 0 };
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, train_beside, &e), 0);
    pthread_join(thread, NULL);
    cr_assert(cudasim_has_context(0));
    fixture_close(&b);
    free(e.bytes);
}

/* The old arena and the new one do not fit together: the contents of the old one are not needed. */
Test(cuda_interop, a_larger_plan_takes_the_memory_of_the_smaller)
{
    cudasim_set_memory((size_t)48 << 20);
    struct fixture b = open_cuda();
    for (int64_t n = 1 << 21; n <= 5 << 20; n += 3 << 20) {
        rw_tensor *const x = rw_exp(b.t, rw_rand(b.t, RW_F32, RW_SHAPE(n))), *const y = rw_exp(b.t, x);
        cr_assert_eq(rw_item(b.t, rw_max(b.t, rw_mul(b.t, x, y), RW_ALL_AXES, false)) > 0, true, "%s",
                     rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    rw_tensor *const x = rw_exp(b.t, rw_rand(b.t, RW_F32, RW_SHAPE(32 << 20)));
    cr_assert(isnan(rw_item(b.t, rw_sum(b.t, rw_mul(b.t, x, rw_exp(b.t, x)), RW_ALL_AXES, false))));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_MEMORY);
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_item(b.t, rw_scale(b.t, rw_rand(b.t, RW_F32, RW_SHAPE(1)), 0)), 0, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}
#endif

/* ---- the caller's bytes ---- */

/* A loader that refills its pinned buffer as soon as the call has returned. */
static void from_pinned(uint64_t seed)
{
    be_late(seed);
    struct fixture b = open_cuda();
    float *pinned, out[N];
    cr_assert_eq(cudaMallocHost((void **)&pinned, N * sizeof *pinned), cudaSuccess);
    rw_tensor *x[6];
    for (int i = 0; i < 6; i++) {
        count_up(pinned, N, (float)(i * N));
        x[i] = rw_input(b.t, RW_F32, RW_SHAPE(N), pinned, N * sizeof *pinned);
    }
    count_up(pinned, N, -1);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(rw_read(b.t, x[i], out, sizeof out), RW_OK);
        for (int k = 0; k < N; k++) cr_assert_eq(out[k], (float)(i * N + k), "input %d, element %d", i, k);
    }
    fixture_close(&b);
    cudaFreeHost(pinned);
}

Test(cuda_interop, pinned_memory_may_change_after_the_call)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) from_pinned(seed);
}

/* Input data in device memory, and results read to device memory. */
static void from_device(uint64_t seed)
{
    be_late(seed);
    struct fixture b = open_cuda();
    float *device, host[N], out[N];
    count_up(host, N, 5);
    cr_assert_eq(cudaMalloc((void **)&device, sizeof host), cudaSuccess);
    cr_assert_eq(cudaMemcpy(device, host, sizeof host, cudaMemcpyDefault), cudaSuccess);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N)), *const x = rw_input(b.t, RW_F32, RW_SHAPE(N),
                                                                                        device, N * sizeof *device);
    cr_assert_eq(rw_write(p, device, sizeof host), RW_OK);
    cr_assert_eq(cudaMemset(device, 0, sizeof host), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
    rw_tensor *const y = rw_add(b.t, p, x);
    cr_assert_eq(rw_read(b.t, y, device, sizeof host), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(cudaMemcpy(out, device, sizeof out, cudaMemcpyDefault), cudaSuccess);
    for (int i = 0; i < N; i++) cr_assert_eq(out[i], 2 * host[i], "%d", i);
    fixture_close(&b);
    cudaFree(device);
}

Test(cuda_interop, device_memory_in_and_out)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) from_device(seed);
}

/* Half of the batch on each of two contexts, summed in the gradients' memory: the bytes of one context with both
   halves. */
Test(cuda_interop, gradients_are_summed_in_place)
{
    be_late(3);
    struct fixture b[2] = { open_cuda(), open_cuda() };
    rw_tensor *p[2], *q;
    float x[N], sum[N], expected[N];
    for (int i = 0; i < 2; i++) {
        p[i] = rw_param(b[i].ctx, "p", RW_F32, RW_SHAPE(N));
        count_up(x, N, (float)i);
        cr_assert_eq(
            rw_backward(b[i].t, rw_sum(b[i].t, rw_mul(b[i].t, p[i], rw_input(b[i].t, RW_F32, RW_SHAPE(N), x, sizeof x)),
                                       RW_ALL_AXES, false)),
            RW_OK);
    }
    q = rw_gradient(p[0]);
    rw_tensor *const other = rw_input(b[0].t, RW_F32, RW_SHAPE(N), rw_tensor_data(rw_gradient(p[1])),
                                      N * sizeof(float));
    cr_assert_eq(rw_read(b[0].t, rw_add(b[0].t, q, other), rw_tensor_data(q), sizeof x), RW_OK, "%s",
                 rw_error_message(b[0].ctx));
    cr_assert_eq(rw_read(NULL, q, sum, sizeof sum), RW_OK);
    for (int i = 0; i < N; i++) expected[i] = (float)(2 * i + 1);
    cr_assert_eq(first_difference(sum, expected, sizeof sum), -1);
    fixture_close(&b[0]);
    fixture_close(&b[1]);
}

/* Many times the bytes that may be in flight, and not a multiple of the piece size. */
Test(cuda_interop, large_uploads)
{
    const size_t n = ((size_t)9 << 18) + 77;
    float *const data = malloc(n * sizeof *data), *const out = malloc(n * sizeof *out);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        be_late(seed);
        struct fixture b = open_cuda();
        count_up(data, n, (float)seed);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE((int64_t)n)), *const q = rw_param(
                                                                                     b.ctx, "q", RW_F32,
                                                                                     RW_SHAPE((int64_t)n));
        cr_assert_eq(rw_write(p, data, n * sizeof *data), RW_OK);
        memset(data, 0, n * sizeof *data);
        cr_assert_eq(rw_write(q, data, n * sizeof *data), RW_OK);
        count_up(data, n, (float)seed);
        cr_assert_eq(rw_read(NULL, p, out, n * sizeof *out), RW_OK);
        cr_assert_eq(first_difference(data, out, n * sizeof *out), -1);
        cr_assert_eq(rw_read(NULL, q, out, n * sizeof *out), RW_OK);
        for (size_t i = 0; i < n; i++) cr_assert_eq(out[i], 0);
        fixture_close(&b);
    }
    free(data);
    free(out);
}

/* The next step's input is copied while the graph runs, and replaces the old one after it has ended. */
static void input_of_a_running_graph(uint64_t seed)
{
    enum { STEPS = 7 };
    be_late(seed);
    struct fixture b = open_cuda();
    rw_graph *g = NULL;
    float x[N], sum = 0, out = 0;
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N)), *const total = rw_buffer(b.ctx, "total", RW_F32,
                                                                                             RW_SHAPE(1));
    cr_assert_eq(rw_init_constant(p, 1), RW_OK);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, p, in), RW_ALL_AXES, false);
    rw_assign(b.t, total, rw_add(b.t, total, rw_reshape(b.t, loss, RW_SHAPE(1))));
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < N; i++) x[i] = i < 16 ? (float)(s + i) : 0;
        for (int i = 0; i < 16; i++) sum += x[i];
#ifdef RW_CUDASIM
        const size_t before = queued();
#endif
        cr_assert_eq(rw_input_write(in, x, sizeof x), RW_OK, "%s", rw_error_message(b.ctx));
#ifdef RW_CUDASIM
        if (s == 3) cr_assert(before > 0 && queued() > before, "rw_input_write() waited for the launch");
#endif
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    }
    cr_assert_eq(rw_read(NULL, total, &out, sizeof out), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(out, sum);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

Test(cuda_interop, an_input_is_written_while_the_graph_runs)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) input_of_a_running_graph(seed);
}
