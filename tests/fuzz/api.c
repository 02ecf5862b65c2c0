/*
 * Fuzzes the public API: an input is a series of calls, most of them valid and some not, on one or two contexts with
 * two tapes each. For any calls: nothing crashes, a failed call has a status and a message and leaves no node and no
 * ticket, afterwards the context still computes correct results, and nothing is leaked.
 */
#include "fuzz/api_common.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define FAMILIES 198 /* bytes from here on select calls of families with their own headers */

/* ---- calls ---- */

static void one_input(struct state *s)
{
    static rw_tensor *(*const ops[])(rw_site, rw_tape *, rw_tensor *) = {
        rw_neg_at,     rw_abs_at,  rw_exp_at,  rw_log_at,  rw_sqrt_at,      rw_tanh_at,
        rw_sigmoid_at, rw_relu_at, rw_silu_at, rw_gelu_at, rw_gelu_tanh_at, rw_contiguous_at,
    };
    const uint8_t op = fz_byte(s) % (sizeof ops / sizeof *ops);
    RECORDED(ops[op], RW_HERE, T, fz_operand(s));
}

static void two_inputs(struct state *s)
{
    static rw_tensor *(*const ops[])(rw_site, rw_tape *, rw_tensor *, rw_tensor *) = {
        rw_add_at,    rw_sub_at,      rw_mul_at,       rw_div_at,           rw_maximum_at,
        rw_swiglu_at, rw_mse_loss_at, rw_embedding_at, rw_cross_entropy_at, rw_matmul_at,
    };
    const uint8_t op = fz_byte(s) % (sizeof ops / sizeof *ops);
    rw_tensor *const a = fz_operand(s), *const b = fz_operand(s);
    RECORDED(ops[op], RW_HERE, T, a, b);
}

static void layers(struct state *s)
{
    const uint8_t op = fz_byte(s) % 6;
    rw_tensor *const x = fz_operand(s), *const w = fz_operand(s), *const b = fz_ask(s, 2) ? rw_none() : fz_operand(s);
    switch (op) {
    case 0: RECORDED(rw_linear, T, x, w, b); break;
    case 1: RECORDED(rw_linear_gelu, T, x, w, b); break;
    case 2: RECORDED(rw_linear_add, T, x, w, b, fz_operand(s)); break;
    case 3: RECORDED(rw_layernorm, T, x, w, b, (float)fz_number(s)); break;
    case 4: RECORDED(rw_rmsnorm, T, x, w, (float)fz_number(s)); break;
    default: RECORDED(rw_rope, T, x, b, (float)fz_number(s) * 100); break;
    }
}

static void attention(struct state *s)
{
    const rw_attention_params params = { .dropout = (float)fz_number(s),
                                         .causal = fz_ask(s, 2),
                                         .scale = (float)fz_number(s) };
    rw_tensor *const q = fz_operand(s), *const k = fz_operand(s), *const v = fz_ask(s, 2) ? k : fz_operand(s);
    RECORDED(rw_attention, T, q, k, v, fz_ask(s, 2) ? &params : NULL);
}

/* An op with an arbitrary number as argument, or a random leaf. */
static void numbers(struct state *s)
{
    const uint8_t op = fz_byte(s) % 8;
    rw_tensor *const x = fz_operand(s);
    const double a = fz_number(s);
    switch (op) {
    case 0: RECORDED(rw_scale, T, x, a); break;
    case 1: RECORDED(rw_add_scalar, T, x, a); break;
    case 2: RECORDED(rw_pow_scalar, T, x, a); break;
    case 3: RECORDED(rw_dropout, T, x, (float)a); break;
    case 4: RECORDED(rw_dropout_add, T, x, fz_operand(s), (float)a); break;
    case 5: RECORDED(rw_causal_softmax, T, x, (float)a); break;
    case 6: RECORDED(rw_randn, T, fz_dtype(s), fz_shape(s)); break;
    default: RECORDED(rw_rand, T, fz_dtype(s), fz_shape(s)); break;
    }
}

static void reductions(struct state *s)
{
    const uint8_t op = fz_byte(s) % 7;
    rw_tensor *const x = fz_operand(s);
    const bool keep = fz_ask(s, 2);
    switch (op) {
    case 0: RECORDED(rw_sum, T, x, fz_axes(s), keep); break;
    case 1: RECORDED(rw_mean, T, x, fz_axes(s), keep); break;
    case 2: RECORDED(rw_max, T, x, fz_axes(s), keep); break;
    case 3: RECORDED(rw_logsumexp, T, x, fz_axes(s), keep); break;
    case 4: RECORDED(rw_softmax, T, x, fz_axis(s)); break;
    case 5: RECORDED(rw_log_softmax, T, x, fz_axis(s)); break;
    default: RECORDED(rw_sum_to, T, x, fz_shape(s)); break;
    }
}

static void pieces(struct state *s, rw_tensor *x)
{
    rw_tensor *part[3] = { NULL };
    const int64_t sizes[3] = { fz_extent(s), fz_extent(s), fz_extent(s) };
    const int n = fz_byte(s) % 4, along = fz_axis(s);
    const struct before b = fz_note(X);
    const rw_status status = rw_split(T, x, along, sizes, n, part);
    fz_returned(s, status, &b, "rw_split");
    for (int i = 0; !status && i < n; i++) X->value[X->n_values++ % VALUES] = part[i];
}

/* An op that changes the shape, with arbitrary axes and extents. */
static void shapes(struct state *s)
{
    const uint8_t op = fz_byte(s) % 8;
    rw_tensor *const x = fz_operand(s);
    const int a = fz_axis(s), b = fz_axis(s);
    rw_tensor *const several[] = { x, fz_operand(s), fz_operand(s) };
    const int order[RW_MAX_RANK] = { a, b, fz_axis(s), 3, 4, 5, 6, 7 };
    switch (op) {
    case 0: RECORDED(rw_reshape, T, x, fz_shape(s)); break;
    case 1: RECORDED(rw_permute, T, x, fz_ask(s, 8) ? NULL : order); break;
    case 2: RECORDED(rw_transpose, T, x, a, b); break;
    case 3: RECORDED(rw_slice, T, x, a, fz_extent(s) - 1, fz_extent(s)); break;
    case 4: RECORDED(rw_broadcast_to, T, x, fz_shape(s)); break;
    case 5: RECORDED(rw_cast, T, x, fz_dtype(s)); break;
    case 6: RECORDED(rw_concat, T, several, fz_byte(s) % 4, a); break;
    default: pieces(s, x);
    }
}

static void leaves(struct state *s)
{
    static const uint8_t data[LARGEST * 8] = { 0, 0, 0x80, 0x3f, 1, 0, 0, 0, 0, 0, 0, 0x40, 2 };
    static char name[16];
    const uint8_t op = fz_byte(s) % 8;
    const rw_dtype type = fz_dtype(s);
    const rw_shape of = fz_shape(s);
    snprintf(name, sizeof name, "%.*s%d", fz_byte(s) < 250, "p", fz_byte(s) % 8);
    const bool given = rw_shape_numel(of) <= LARGEST && op;
    const size_t bytes = given ? (size_t)rw_shape_numel(of) * rw_dtype_size(type) : 0;
    if (op < 5) RECORDED(rw_input, T, type, of, given ? data : NULL, bytes + (fz_ask(s, 8) ? 1 : 0));
    else if (op < 7) RECORDED(rw_param, X->ctx, name, type, of);
    else RECORDED(rw_buffer, X->ctx, name, type, of);
}

/* A call that writes or initializes a tensor, sometimes with a wrong byte count. */
static void contents(struct state *s)
{
    static const uint8_t data[LARGEST * 16] = { 1, 2, 3 };
    const uint8_t op = fz_byte(s) % 8;
    rw_tensor *const x = fz_operand(s);
    const size_t bytes = rw_tensor_bytes(x) + (fz_ask(s, 8) ? 1 : 0);
    if (bytes > sizeof data) return;
    s->nobody = op < 5 && (!x || x == rw_none());
    switch (op) {
    case 0: RETURNED(rw_write, x, data, bytes); break;
    case 1: RETURNED(rw_input_write, x, data, bytes); break;
    case 2: RETURNED(rw_init_normal, x, fz_number(s), fz_number(s)); break;
    case 3: RETURNED(rw_init_uniform, x, fz_number(s), fz_number(s)); break;
    case 4: RETURNED(rw_init_constant, x, fz_number(s)); break;
    case 5: RETURNED(rw_assign, T, x, fz_operand(s)); break;
    case 6: rw_tensor_data(x), fz_look(s, "rw_tensor_data"); break;
    default: rw_require_grad(T, x), fz_look(s, "rw_require_grad");
    }
}

/* A call of the checkpoint regions or policies, with valid and invalid names. */
static void regions(struct state *s)
{
    static const char *const names[] = { "a", "b", "mlp", "", "x:y", NULL };
    static const char *const policies[] = { "full", "none", "selective:a", "uniform:2", "block:1", "ops:mul,linear",
                                            "names:keep=mlp", "full+", "budget:3GiB", "selective:a,mlp", NULL };
    const uint8_t op = fz_byte(s) % 8;
    const char *const name = names[fz_byte(s) % (fz_ask(s, 8) ? 6 : 3)];
    switch (op) {
    case 0:
    case 1: RETURNED(ckpt_begin, T, name); break;
    case 2:
    case 3: RETURNED(ckpt_end, T); break;
    case 4: ckpt_name(T, fz_operand(s), name), fz_look(s, "ckpt_name"); break;
    case 5: ckpt_keep(T, fz_operand(s)), fz_look(s, "ckpt_keep"); break;
    case 6: ckpt_recompute(T, fz_operand(s)), fz_look(s, "ckpt_recompute"); break;
    default: RETURNED(ckpt_set_policy, T, policies[fz_byte(s) % 11]);
    }
}

/* A call that runs the tape: read, forward, backward or gradients. */
static void results(struct state *s)
{
    rw_tensor *const x = fz_operand(s);
    rw_tensor *const several[] = { x, fz_operand(s) };
    const uint8_t op = fz_byte(s) % 6;
    const size_t bytes = rw_tensor_bytes(x) + (fz_ask(s, 8) ? 1 : 0);
    uint8_t *const out = malloc(bytes); /* of exactly that length */
    rw_tensor *grads[2] = { NULL };
    switch (op) {
    case 0: RETURNED(rw_read, T, x, out, bytes); break;
    case 1: rw_item(T, x), fz_look(s, "rw_item"); break;
    case 2: RETURNED(rw_eval, T, several, fz_byte(s) % 3); break;
    case 3: RETURNED(rw_forward, T, several, fz_byte(s) % 3); break;
    case 4: RETURNED(rw_backward_from, T, several, fz_ask(s, 2) ? several + 1 : NULL, 1); break;
    default: if (rw_tape_nodes(T) < NODES / 4) RETURNED(rw_grad, T, fz_operand(s), several, fz_byte(s) % 3, grads);
    }
    for (int i = 0; i < 2; i++)
        if (grads[i]) X->value[X->n_values++ % VALUES] = grads[i];
    free(out);
}

/* The loss is a scalar: the last value, summed. */
static void backward(struct state *s)
{
    rw_tensor *const x = X->value[(X->n_values + VALUES - 1) % VALUES];
    rw_tensor *const loss = fz_ask(s, 4) ? fz_operand(s) : rw_sum(T, x, RW_ALL_AXES, false);
    ckpt_report report;
    rw_cost cost;
    double norm;
    fz_look(s, "rw_sum");
    switch (fz_byte(s) % 6) {
    case 0: rw_item(T, loss), fz_look(s, "rw_item"); /* fall through */
    case 1:
    case 2: RETURNED(rw_backward, T, loss); break;
    case 3: RETURNED(ckpt_verify, T, loss, fz_ask(s, 2) ? &report : NULL); break;
    case 4: RETURNED(rw_tape_cost, T, loss, &cost); break;
    default: RETURNED(rw_clip_grad_norm, X->ctx, fz_number(s), &norm);
    }
}

/* A call between steps: reset, switch of tape or context, update, statistics. */
static void steps(struct state *s)
{
    rw_memory memory;
    rw_adamw_params params = { .lr = fz_number(s), .beta1 = fz_number(s) / 2, .eps = fabs(fz_number(s)) };
    uint8_t how;
    switch (fz_byte(s) % 8) {
    case 0: rw_tape_reset(T); break;
    case 1: X->now = 1 - X->now; break;
    case 2: s->now = s->n_sides > 1 ? 1 - s->now : 0; break;
    case 3: rw_zero_grad(X->ctx); break;
    case 4:
        if (X->optimizer) break;
        how = fz_byte(s);
        params.moments = how & 2 ? RW_BF16 : how & 4 ? (rw_dtype)(how / 8) : RW_F32;
        RETURNED(rw_adamw_create, &X->optimizer, X->ctx, how & 1 ? &params : NULL);
        break;
    case 5: if (X->optimizer) RETURNED(rw_optimizer_step, X->optimizer); break;
    case 6: RETURNED(rw_memory_stats, X->ctx, &memory); break;
    default: s->sticks = fz_ask(s, 4);
    }
    fz_look(s, "a step");
}

/* A call that creates, launches or destroys a graph and what it uses. */
static void graphs(struct state *s)
{
    rw_graph_params params = { { rw_record_nothing() } };
    if (fz_ask(s, 3)) params.recorders[1] = rw_record_clip(fz_number(s));
    const unsigned how = fz_byte(s);
    if (X->optimizer || (how & 8))
        params.recorders[2] = how & 8 ? rw_record_update_inside(X->optimizer) : rw_record_update(X->optimizer);
    if (how & 16) params.recorders[how & 64 ? 0 : 4] = rw_record_scaler(X->scaler);
    if (how & 32) params.recorders[3] = rw_record_delayed_scaling(X->delayed);
    switch (how % 8) {
    case 0: if (!X->graph) RETURNED(rw_graph_create, &X->graph, T, fz_operand(s), fz_ask(s, 2) ? &params : NULL); break;
    case 1:
    case 2: if (X->graph) RETURNED(rw_graph_launch, X->graph); break;
    case 3: rw_graph_destroy(&X->graph); break;
    case 4: rw_optimizer_destroy(&X->optimizer); break;
    case 5: rw_scaler_destroy(&X->scaler); break;
    case 6: rw_delayed_scaling_destroy(&X->delayed); break;
    default: {
        rw_tape_destroy(&T);
        HOLDS(!rw_tape_create(&T, X->ctx) || rw_error_status(X->ctx), "no tape");
    }
    }
    fz_look(s, "a graph");
}

/* ---- an input ---- */

static void open_side(struct side *x, const rw_context_params *params)
{
    HOLDS(!rw_context_create(&x->ctx, params), "no context");
    for (int i = 0; i < 2; i++) HOLDS(!rw_tape_create(&x->tape[i], x->ctx), "no tape");
    rw_init_constant(rw_param(x->ctx, "w", RW_F32, RW_SHAPE(3, 3)), 0.5);
    rw_init_constant(rw_param(x->ctx, "b", RW_F32, RW_SHAPE(3)), 0.25);
    rw_buffer(x->ctx, "n", RW_F32, RW_SHAPE(3));
    x->value[0] = rw_input(x->tape[0], RW_F32, RW_SHAPE(2, 3), NULL, 0);
    x->value[1] = rw_linear(x->tape[0], x->value[0], rw_param_get(x->ctx, 0), rw_param_get(x->ctx, 1));
    x->n_values = 2;
    HOLDS(x->value[1] && !rw_error_status(x->ctx), "%s", rw_error_message(x->ctx));
}

/* Whatever happened before, this step gives its expected result. */
static void is_usable(struct side *x)
{
    const float data[2] = { 3, 5 };
    float read[2] = { 0 };
    rw_tape *t = NULL;
    rw_error_clear(x->ctx);
    HOLDS(!rw_tape_create(&t, x->ctx), "%s", rw_error_message(x->ctx));
    rw_tensor *const w = rw_param(x->ctx, "used after everything", RW_F32, RW_SHAPE(2));
    rw_zero_grad(x->ctx);
    HOLDS(w && !rw_init_constant(w, 2), "%s", rw_error_message(x->ctx));
    ckpt_begin(t, "a");
    rw_tensor *const y = rw_mul(t, rw_input(t, RW_F32, RW_SHAPE(2), data, sizeof data), w);
    ckpt_end(t);
    rw_tensor *const loss = rw_sum(t, y, RW_ALL_AXES, false);
    HOLDS(rw_item(t, loss) == 16 && !rw_backward(t, loss), "%s", rw_error_message(x->ctx));
    HOLDS(!rw_read(t, rw_gradient(w), read, sizeof read) && !memcmp(read, data, sizeof data), "gradients %g %g: %s",
          (double)read[0], (double)read[1], rw_error_message(x->ctx));
    rw_tape_destroy(&t);
}

/* In either order: the last user keeps the context. */
static void close_side(struct side *x, bool context_first)
{
    if (context_first) rw_context_destroy(&x->ctx);
    rw_graph_destroy(&x->graph);
    rw_scaler_destroy(&x->scaler);
    rw_optimizer_destroy(&x->optimizer);
    for (int i = 0; i < 2; i++) rw_tape_destroy(&x->tape[i]);
    rw_delayed_scaling_destroy(&x->delayed);
    rw_context_destroy(&x->ctx);
}

/* The environment that a context reads when it is created. */
static void set_environment(uint8_t b)
{
    setenv("REWIND_EAGER", b % 8 == 1 ? "1" : "0", 1);
    setenv("REWIND_VERIFY", b % 8 == 2 ? "1" : b % 8 == 3 ? "digest" : "0", 1);
}

/* Reads the input as a program of calls, and checks that nothing leaks and the contexts stay usable. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const calls[])(struct state *) = { one_input, two_inputs, layers,  attention, numbers,  reductions,
                                                     shapes,    leaves,     leaves,  contents,  regions,  regions,
                                                     results,   backward,   backward, steps,    graphs,   two_inputs };
    const int64_t live = rw_alloc_live();
    struct state s = { .at = data, .end = data + (size < BYTES ? size : BYTES) };
    const uint8_t mode = fz_byte(&s);
    const rw_context_params params = { .device = RW_DEVICE_CPU, .threads = 1 + mode % 2, .seed = 7 };
    set_environment(mode / 2);
    s.n_sides = 1 + (mode % 16 == 15);
    for (int i = 0; i < s.n_sides; i++) open_side(&s.side[i], &params);
    while (s.at < s.end) {
        const uint8_t b = fz_byte(&s);
        if (b < FAMILIES) calls[b % (sizeof calls / sizeof *calls)](&s);
        else fz_families(&s);
    }
    for (int i = 0; i < s.n_sides; i++) is_usable(&s.side[i]);
    for (int i = 0; i < s.n_sides; i++) close_side(&s.side[i], mode >= 128);
    HOLDS(rw_alloc_live() == live, "%lld allocations are left", (long long)(rw_alloc_live() - live));
    return 0;
}
