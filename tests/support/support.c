/* The fixture, the counted op, the small model and the comparisons that the suites share. */
#include "support/support.h"

#include "device/device.h"
#include "record/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int counted_runs[COUNTERS];

rw_device test_device(void)
{
    const char *const name = getenv("REWIND_TEST_DEVICE");
    if (!name || !*name || !strcmp(name, "cpu")) return RW_DEVICE_CPU;
    if (!strcmp(name, "cuda")) return RW_DEVICE_CUDA;
    fprintf(stderr, "REWIND_TEST_DEVICE=%s: cpu or cuda is expected\n", name);
    abort();
}

extern const struct rw_device_fns rw_device_cuda __attribute__((weak)); /* defined only in a build with CUDA */

static size_t span_of(const rw_view *v)
{
    return (size_t)v->layout->span * rw_dtype_size(v->dtype);
}

rw_status run_on_copies(const rw_kernel *k, rw_kernel_fn kernel)
{
    rw_view in[k->n_inputs + 1], out[k->n_outputs + 1];
    rw_kernel host = *k;
    rw_status status = RW_OK;
    for (int i = 0; i < k->n_inputs; i++) {
        in[i] = k->in[i];
        in[i].data = NULL;
        if (!rw_kernel_has(k, i)) continue;
        in[i].data = malloc(span_of(&in[i]) + 1);
        if (!status) status = rw_device_cuda.download(k->device, in[i].data, k->in[i].data, span_of(&in[i]));
    }
    for (int i = 0; i < k->n_outputs; i++) {
        out[i] = k->out[i];
        out[i].data = malloc(span_of(&out[i]) + 1);
    }
    host.in = in;
    host.out = out;
    if (!status) status = kernel(&host);
    for (int i = 0; i < k->n_outputs; i++) {
        if (!status) status = rw_device_cuda.upload(k->device, k->out[i].data, out[i].data, span_of(&out[i]));
        free(out[i].data);
    }
    for (int i = 0; i < k->n_inputs; i++) free(in[i].data);
    return status;
}

struct fixture fixture_open(uint64_t seed, int threads)
{
    struct fixture b = { 0 };
    const rw_context_params params = { .device = test_device(), .seed = seed, .threads = threads };
    const rw_status status = rw_context_create(&b.ctx, &params);
    if (status) {
        fprintf(stderr, "no context on the device %s: %s\n", rw_device_name(params.device), rw_status_name(status));
        abort();
    }
    rw_tape_create(&b.t, b.ctx);
    return b;
}

void fixture_close(struct fixture *b)
{
    rw_tape_destroy(&b->t);
    rw_context_destroy(&b->ctx);
}

rw_status identity_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

rw_status identity_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->out[0].layout->numel * 4);
    return RW_OK;
}

struct counted_attrs {
    int64_t id;
};

static rw_status counted_check(rw_op_call *call)
{
    if (call->in[0].dtype != RW_F32) return rw_op_error(call, RW_ERR_DTYPE, "f32 only");
    return rw_op_output_like(call, 0, 0);
}

static rw_status counted_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    counted_runs[((const struct counted_attrs *)k->attrs)->id]++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] * x[i];
    return RW_OK;
}

static rw_status counted_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    return rw_grad_set(g, 0, rw_scale(t, rw_mul(t, rw_grad_upstream(g, 0), rw_grad_input(g, 0)), 2));
}

HOST_KERNEL_OF(counted_kernel)
static const rw_op_def counted_op = { .name = "counted_square", .n_inputs = 1, .n_outputs = 1, .check = counted_check,
                                      .kernel = HOST_KERNEL(counted_kernel), .grad = counted_grad };

rw_tensor *counted_square(rw_tape *t, rw_tensor *x, int id)
{
    const struct counted_attrs a = { id };
    return rw_apply(t, &counted_op, &x, 1, &a, sizeof a, NULL);
}

void counted_clear(void)
{
    memset(counted_runs, 0, sizeof counted_runs);
}

size_t resident_bytes(void)
{
    size_t pages = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %zu", &pages) != 1) abort();
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

rw_status run_products(rw_context *ctx, rw_tape *t, int64_t least)
{
    rw_tensor *sum = NULL;
    for (int64_t n = least; n < least + 4; n++) {
        const rw_dtype dtype = n % 2 ? RW_F32 : RW_BF16;
        rw_tensor *const x = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(96 + n % 64, 64), NULL, 0));
        rw_tensor *const w = rw_require_grad(t, rw_input(t, dtype, RW_SHAPE(64, 160 + n / 64), NULL, 0));
        rw_tensor *const y = rw_cast(t, rw_sum(t, rw_matmul(t, x, w), RW_ALL_AXES, false), RW_F32);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    const rw_status status = rw_backward(t, sum);
    return status ? status : rw_error_status(ctx);
}

void net_init(struct net *n, rw_context *ctx, int layers, int width, rw_dtype dtype, int nesting)
{
    *n = (struct net){
        .ctx = ctx, .layers = layers, .width = width, .nesting = nesting, .dtype = dtype, .dropout = 0.1f
    };
    n->table = rw_param(ctx, "table", dtype, RW_SHAPE(97, width));
    rw_init_normal(n->table, 0, 0.5);
    for (int l = 0; l < layers; l++) {
        char name[32];
        snprintf(name, sizeof name, "gain%d", l);
        n->gain[l] = rw_param(ctx, name, dtype, RW_SHAPE(width));
        rw_init_constant(n->gain[l], 1);
        snprintf(name, sizeof name, "shift%d", l);
        n->shift[l] = rw_param(ctx, name, dtype, RW_SHAPE(width));
        snprintf(name, sizeof name, "up%d", l);
        n->up[l] = rw_param(ctx, name, dtype, RW_SHAPE(4 * width, width));
        rw_init_normal(n->up[l], 0, 0.1);
        snprintf(name, sizeof name, "down%d", l);
        n->down[l] = rw_param(ctx, name, dtype, RW_SHAPE(width, 4 * width));
        rw_init_normal(n->down[l], 0, 0.1);
    }
}

static rw_tensor *layer(const struct net *n, rw_tape *t, rw_tensor *x, int l)
{
    static const char *const names[] = { "outer", "middle", "inner" };
    for (int i = 0; i < n->nesting; i++) ckpt_begin(t, names[i]);
    rw_tensor *h = rw_layernorm(t, x, n->gain[l], n->shift[l], 1e-5f);
    h = ckpt_name(t, rw_linear(t, h, n->up[l], RW_NONE), "up");
    if (n->nesting > 2) ckpt_end(t);
    h = rw_dropout(t, rw_gelu(t, h), n->dropout);
    if (n->nesting > 1) ckpt_end(t);
    h = rw_dropout(t, rw_linear(t, h, n->down[l], RW_NONE), n->dropout);
    x = rw_add(t, x, h);
    if (n->nesting > 0) ckpt_end(t);
    return x;
}

rw_tensor *net_loss(const struct net *n, rw_tape *t, int tokens, int step)
{
    int32_t in[256], out[256];
    for (int i = 0; i < tokens; i++) {
        in[i] = (i * 31 + step * 7) % 97;
        out[i] = (i * 17 + step * 3 + 1) % 97;
    }
    rw_tensor *x = rw_embedding(t, n->table, rw_input(t, RW_I32, RW_SHAPE(tokens), in, (size_t)tokens * sizeof *in));
    x = rw_dropout(t, x, n->dropout);
    for (int l = 0; l < n->layers; l++) x = layer(n, t, x, l);
    return rw_cross_entropy(t, rw_linear(t, x, n->table, RW_NONE),
                            rw_input(t, RW_I32, RW_SHAPE(tokens), out, (size_t)tokens * sizeof *out));
}

/* The tensor to read for a parameter or buffer; NULL for the gradient of one that has none. */
static rw_tensor *part_of(rw_context *ctx, size_t i, bool gradients)
{
    rw_tensor *const p = rw_param_get(ctx, i);
    return gradients ? rw_gradient(p) : p;
}

static unsigned char *collect(rw_context *ctx, size_t *ret_bytes, bool gradients)
{
    size_t bytes = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) bytes += rw_tensor_bytes(part_of(ctx, i, gradients));
    unsigned char *const all = calloc(bytes ? bytes : 1, 1);
    size_t at = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) {
        rw_tensor *const x = part_of(ctx, i, gradients);
        if (x) rw_read(NULL, x, all + at, rw_tensor_bytes(x));
        at += rw_tensor_bytes(x);
    }
    *ret_bytes = bytes;
    return all;
}

unsigned char *all_gradients(rw_context *ctx, size_t *ret_bytes)
{
    return collect(ctx, ret_bytes, true);
}

unsigned char *all_parameters(rw_context *ctx, size_t *ret_bytes)
{
    return collect(ctx, ret_bytes, false);
}

long first_difference(const void *a, const void *b, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)a)[i] != ((const unsigned char *)b)[i]) return (long)i;
    return -1;
}

bool message_has(const char *message, const char *text)
{
    char without[1024];
    const char *const at = strstr(message, " at "), *const rest = at ? strstr(at, ": ") : NULL;
    if (strstr(message, text) || !rest) return strstr(message, text);
    snprintf(without, sizeof without, "%.*s%s", (int)(at - message), message, rest);
    return strstr(without, text);
}
