/*
 * rw_call(): two nodes for a pair of hand-written kernels. Both are named after the caller's pair, so their definitions
 * are made at run time; what the call says otherwise is in the attributes.
 *
 *     forward   in[0] ... in[n-1]                              -> out[0] ... out[m-1]
 *     backward  d_out (with a gradient), in (read), out (read) -> d_in (wanted)
 *
 *     attributes   struct pair | values: the outputs of the node | the caller's data
 */
#include "ops/custom/kernel_pair.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/composite.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_LENGTH 48

/* Type and shape of an output, without padding. */
struct value {
    int32_t dtype, rank;
    int64_t dim[RW_MAX_RANK];
};

enum { FORWARD, BACKWARD, KINDS };

struct pair {
    rw_call_forward_fn forward; /* addresses first: see rw_op_def.address_bytes */
    rw_call_backward_fn backward;
    const rw_op_def *gradient; /* the op of backward */
    rw_op_cost cost[KINDS];
    int64_t draws;
    uint64_t workspace[KINDS];
    uint32_t unread_inputs, unread_outputs, overwritten_gradients;
    uint32_t no_gradient; /* outputs whose gradient backward does not read */
    uint32_t n_in, n_out; /* of forward */
    uint32_t n_values, data_size;
    uint64_t wanted, upstream; /* of backward: inputs with a gradient, outputs into which one flows; bits */
    uint32_t kind;
    uint16_t zeroed_outputs, mixed_dtypes;
};
#define ADDRESS_BYTES offsetof(struct pair, cost)

/* Attributes while a node is recorded; the node stores as many bytes as are used. */
struct attrs {
    struct pair pair;
    unsigned char rest[RW_CALL_MAX_INPUTS * sizeof(struct value) + RW_CALL_MAX_DATA];
};
_Static_assert(sizeof(struct pair) % 8 == 0 && sizeof(struct value) % 8 == 0, "data is aligned to 8 bytes");
_Static_assert(sizeof(struct attrs) <= UINT16_MAX && RW_CALL_MAX_OUTPUTS <= RW_CALL_MAX_INPUTS, "attributes fit");

static const struct value *values_of(const struct pair *p)
{
    return (const struct value *)(const void *)(p + 1);
}

static const void *data_of(const struct pair *p)
{
    return p->data_size ? values_of(p) + p->n_values : NULL;
}

static size_t set_rest(struct attrs *a, const struct value *values, const void *data)
{
    const size_t of_values = a->pair.n_values * sizeof *values;
    memcpy(a->rest, values, of_values);
    if (a->pair.data_size) memcpy(a->rest + of_values, data, a->pair.data_size);
    return sizeof a->pair + of_values + a->pair.data_size;
}

static struct value value_of(rw_dtype dtype, rw_shape shape)
{
    struct value v = { .dtype = (int32_t)dtype, .rank = shape.rank };
    for (int i = 0; i < shape.rank && i < RW_MAX_RANK; i++) v.dim[i] = shape.dim[i];
    return v;
}

static rw_shape shape_of(const struct value *v)
{
    rw_shape shape = { .rank = v->rank };
    memcpy(shape.dim, v->dim, sizeof shape.dim);
    return shape;
}

static bool has_bit(uint64_t set, uint32_t i)
{
    return set >> i & 1;
}

/* ---- the nodes ---- */

/* A kernel reads an input as it is: a precision recipe, for one, may have changed the type of a result. */
static rw_status check_dtypes(rw_op_call *call, rw_dtype expected)
{
    for (int i = 0; rw_dtype_is_float(expected) && i < call->n_inputs; i++) {
        const rw_dtype got = call->in[i].dtype;
        if (rw_dtype_is_float(got) && got != expected)
            return rw_op_error(call, RW_ERR_DTYPE, "input %d: expected %s as output 0, got %s; cast it, or set "
                               "mixed_dtypes", i, rw_dtype_name(expected), rw_dtype_name(got));
    }
    return RW_OK;
}

static rw_status check(rw_op_call *call)
{
    const struct pair *const p = call->attrs;
    call->n_outputs = (int)p->n_values;
    if (p->kind == FORWARD && !p->mixed_dtypes) RW_CHECK(check_dtypes(call, (rw_dtype)values_of(p)->dtype));
    for (uint32_t i = 0; i < p->n_values; i++)
        RW_CHECK(rw_op_output(call, (int)i, (rw_dtype)values_of(p)[i].dtype, shape_of(&values_of(p)[i])));
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    const struct pair *const p = call->attrs;
    rw_op_cost c = p->cost[p->kind];
    if (c.bytes <= 0) c.bytes = rw_op_operand_bytes(call);
    return c;
}

static int64_t draws(const rw_op_call *call)
{
    return ((const struct pair *)call->attrs)->draws;
}

static size_t workspace(const rw_op_call *call)
{
    const struct pair *const p = call->attrs;
    return p->workspace[p->kind];
}

/* The operands of backward, in their order. */
static size_t list_operands(rw_grad_call *g, const struct pair *p, rw_tensor **in)
{
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_out; i++)
        if (has_bit(p->upstream, i)) in[n++] = rw_grad_upstream(g, (int)i);
    for (uint32_t i = 0; i < p->n_in; i++)
        if (!rw_op_set_has(p->unread_inputs, (int)i)) in[n++] = rw_grad_input(g, (int)i);
    for (uint32_t i = 0; i < p->n_out; i++)
        if (!rw_op_set_has(p->unread_outputs, (int)i)) in[n++] = rw_grad_output(g, (int)i);
    return n;
}

static rw_status refuse_gradient(const rw_grad_call *g, uint32_t output)
{
    return rw_refuse_at(RW_HERE, rw_grad_tape(g), RW_ERR_NO_GRADIENT, "rw_call(outputs[%u]): expected no gradient to "
                        "flow into an output with no_gradient, got one; detach what reads the output", output);
}

static rw_status grad(rw_grad_call *g)
{
    const struct pair *const forward = rw_grad_attrs(g);
    struct attrs a = { .pair = *forward };
    struct value values[RW_CALL_MAX_INPUTS];
    rw_tensor *in[2 * RW_CALL_MAX_OUTPUTS + RW_CALL_MAX_INPUTS], *out[RW_CALL_MAX_INPUTS] = { 0 };
    a.pair.kind = BACKWARD;
    a.pair.n_values = 0;
    for (uint32_t i = 0; i < forward->n_out; i++) {
        if (!rw_grad_upstream(g, (int)i)) continue;
        if (has_bit(forward->no_gradient, i)) return refuse_gradient(g, i);
        a.pair.upstream |= (uint64_t)1 << i;
    }
    for (uint32_t i = 0; i < forward->n_in; i++) {
        if (!rw_grad_wanted(g, (int)i)) continue;
        const rw_tensor *const x = rw_grad_input(g, (int)i);
        a.pair.wanted |= (uint64_t)1 << i;
        values[a.pair.n_values++] = value_of(rw_tensor_dtype(x), rw_tensor_shape(x));
    }
    const size_t n = list_operands(g, &a.pair, in), size = set_rest(&a, values, data_of(forward));
    rw_apply(rw_grad_tape(g), forward->gradient, in, n, &a, size, out);
    for (uint32_t i = 0, k = 0; i < forward->n_in; i++)
        if (has_bit(a.pair.wanted, i)) RW_CHECK(rw_grad_set(g, (int)i, out[k++]));
    return RW_OK;
}

/* ---- kernels ---- */

rw_status rw_pair_forward(const rw_kernel *k, rw_pair_clear_fn clear)
{
    const struct pair *const p = k->attrs;
    void *in[RW_CALL_MAX_INPUTS] = { 0 }, *out[RW_CALL_MAX_OUTPUTS] = { 0 };
    for (int i = 0; i < k->n_inputs; i++) in[i] = k->in[i].data;
    for (int i = 0; i < k->n_outputs; i++) {
        out[i] = k->out[i].data;
        if (p->zeroed_outputs) RW_CHECK(clear(k, i));
    }
    return p->forward(out, in, data_of(p), k);
}

rw_status rw_pair_backward(const rw_kernel *k, rw_pair_clear_fn clear)
{
    const struct pair *const p = k->attrs;
    void *in[RW_CALL_MAX_INPUTS] = { 0 }, *out[RW_CALL_MAX_OUTPUTS] = { 0 };
    void *d_in[RW_CALL_MAX_INPUTS] = { 0 }, *d_out[RW_CALL_MAX_OUTPUTS] = { 0 };
    int operand = 0, result = 0;
    for (uint32_t i = 0; i < p->n_out; i++)
        if (has_bit(p->upstream, i)) d_out[i] = k->in[operand++].data;
    for (uint32_t i = 0; i < p->n_in; i++)
        if (!rw_op_set_has(p->unread_inputs, (int)i)) in[i] = k->in[operand++].data;
    for (uint32_t i = 0; i < p->n_out; i++)
        if (!rw_op_set_has(p->unread_outputs, (int)i)) out[i] = k->in[operand++].data;
    for (uint32_t i = 0; i < p->n_in; i++) {
        if (!has_bit(p->wanted, i)) continue;
        if (!rw_op_set_has(p->overwritten_gradients, (int)i)) RW_CHECK(clear(k, result));
        d_in[i] = k->out[result++].data;
    }
    return p->backward(d_in, d_out, in, out, data_of(p), k);
}

struct clearing {
    char *data;
    size_t bytes;
};

static void clear_share(void *of, int thread, int threads)
{
    const struct clearing *const c = of;
    const size_t share = (c->bytes / (size_t)threads + 64) & ~(size_t)63, from = share * (size_t)thread;
    if (from < c->bytes) memset(c->data + from, 0, c->bytes - from < share ? c->bytes - from : share);
}

static rw_status clear_on_host(const rw_kernel *k, int i)
{
    const rw_view *const v = &k->out[i];
    struct clearing c = { v->data, (size_t)v->layout->numel * rw_dtype_size(v->dtype) };
    if (rw_threads_for(k, v->layout->numel) > 1) rw_kernel_parallel(k, clear_share, &c);
    else clear_share(&c, 0, 1);
    return RW_OK;
}

static rw_status rw_call_forward_cpu(const rw_kernel *k)
{
    return rw_pair_forward(k, clear_on_host);
}

static rw_status rw_call_backward_cpu(const rw_kernel *k)
{
    return rw_pair_backward(k, clear_on_host);
}

/* The caller's functions serve any device; so the ops are a caller's, and not the library's own. */
#ifdef RW_HAVE_CUDA
RW_DECLARE_CUDA_KERNEL(rw_call_forward)
RW_DECLARE_CUDA_KERNEL(rw_call_backward)
#define BOTH(name) { [RW_DEVICE_CPU] = name##_cpu, [RW_DEVICE_CUDA] = name##_cuda }
#else
#define BOTH(name) { [RW_DEVICE_CPU] = name##_cpu }
#endif

static const rw_op_def forward_op = { .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC, .flags = RW_OP_CODES,
                                      .check = check, .kernel = BOTH(rw_call_forward), .cost = cost, .draws = draws,
                                      .address_bytes = ADDRESS_BYTES,
                                      .workspace = { [RW_DEVICE_CPU] = workspace, [RW_DEVICE_CUDA] = workspace } };
static const rw_op_def backward_op = { .n_inputs = RW_OP_VARIADIC, .n_outputs = RW_OP_VARIADIC, .flags = RW_OP_CODES,
                                       .check = check, .kernel = BOTH(rw_call_backward), .cost = cost, .draws = draws,
                                       .address_bytes = ADDRESS_BYTES,
                                       .workspace = { [RW_DEVICE_CPU] = workspace, [RW_DEVICE_CUDA] = workspace } };

/* ---- recording ---- */

static bool is_name(const char *name)
{
    const size_t length = strlen(name);
    return length && length <= NAME_MAX_LENGTH && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

/* True after an error. */
static bool refuses(rw_site at, rw_tape *t, const rw_call_params *p, rw_tensor *const *in, size_t n)
{
    const rw_status wrong = RW_ERR_ARGUMENT;
    if (!p) rw_refuse_at(at, t, wrong, "rw_call(p): expected params, got NULL");
    else if (!p->name || !is_name(p->name))
        rw_refuse_at(at, t, wrong, "rw_call(name): expected 1 to %d characters of a-z, 0-9 and _, got %.60s",
                     NAME_MAX_LENGTH, !p->name ? "NULL" : *p->name ? p->name : "none");
    else if (!p->forward) rw_refuse_at(at, t, wrong, "rw_call(forward): expected a function, got NULL");
    else if (p->n_outputs < 1 || p->n_outputs > RW_CALL_MAX_OUTPUTS)
        rw_refuse_at(at, t, wrong, "rw_call(n_outputs): expected 1 to %d, got %zu", RW_CALL_MAX_OUTPUTS, p->n_outputs);
    else if (n > RW_CALL_MAX_INPUTS)
        rw_refuse_at(at, t, wrong, "rw_call(n): expected at most %d inputs, got %zu", RW_CALL_MAX_INPUTS, n);
    else if (n && !in) rw_refuse_at(at, t, wrong, "rw_call(in): expected an array of %zu tensors, got NULL", n);
    else if (p->data_size > RW_CALL_MAX_DATA)
        rw_refuse_at(at, t, wrong, "rw_call(data_size): expected at most %d bytes, got %zu", RW_CALL_MAX_DATA,
                     p->data_size);
    else if (p->data_size && !p->data)
        rw_refuse_at(at, t, wrong, "rw_call(data): expected %zu bytes, got NULL", p->data_size);
    else if (p->draws < 0 || p->draws > (int64_t)1 << 60)
        rw_refuse_at(at, t, wrong, "rw_call(draws): expected 0 to 2^60 words, got %lld", (long long)p->draws);
    else return false;
    return true;
}

/* The definition with this name and what else the library must know before it has the attributes. */
static const rw_op_def *define(rw_tape *t, const rw_call_params *p, const rw_op_def *kind, const char *ending)
{
    char name[NAME_MAX_LENGTH + sizeof "call__backward"];
    rw_op_def def = *kind;
    snprintf(name, sizeof name, "call_%s%s", p->name, ending); /* so that it is no built-in op's name */
    def.name = name;
    if (p->draws) def.flags |= RW_OP_RANDOM;
    if (p->nondeterministic) def.flags |= RW_OP_NONDETERMINISTIC;
    if (kind == &forward_op && p->backward) def.grad = grad;
    return rw_op_define(t, &def);
}

static size_t describe(const rw_call_params *p, size_t n, const rw_op_def *gradient, struct attrs *a)
{
    struct value values[RW_CALL_MAX_OUTPUTS];
    a->pair = (struct pair){
        .forward = p->forward, .backward = p->backward, .gradient = gradient,
        .cost = { [FORWARD] = p->cost, [BACKWARD] = p->backward_cost }, .draws = p->draws,
        .workspace = { [FORWARD] = p->workspace, [BACKWARD] = p->backward_workspace },
        .unread_inputs = p->unread_inputs, .unread_outputs = p->unread_outputs,
        .overwritten_gradients = p->overwritten_gradients, .n_in = (uint32_t)n, .n_out = (uint32_t)p->n_outputs,
        .n_values = (uint32_t)p->n_outputs, .data_size = (uint32_t)p->data_size, .kind = FORWARD,
        .zeroed_outputs = p->zeroed_outputs, .mixed_dtypes = p->mixed_dtypes
    };
    for (size_t i = 0; i < p->n_outputs; i++) {
        values[i] = value_of(p->outputs[i].dtype, p->outputs[i].shape);
        if (p->outputs[i].no_gradient) a->pair.no_gradient |= 1u << i;
    }
    return set_rest(a, values, p->data);
}

rw_tensor *rw_call_at(rw_site at, rw_tape *t, const rw_call_params *p, rw_tensor *const *in, size_t n)
{
    RW_ENTER_OP(t);
    struct attrs a;
    if (p && p->ret_outputs)
        for (size_t i = 0; i < p->n_outputs && i < RW_CALL_MAX_OUTPUTS; i++) p->ret_outputs[i] = NULL;
    if (!t) rw_operand_check(at, t, in && n ? in[0] : NULL, "rw_call", "in[0]");
    if (!t || refuses(at, t, p, in, n)) return NULL;
    const rw_op_def *const forward = define(t, p, &forward_op, "");
    const rw_op_def *const gradient = forward && p->backward ? define(t, p, &backward_op, "_backward") : NULL;
    if (!forward || (p->backward && !gradient)) return NULL;
    const size_t size = describe(p, n, gradient, &a);
    return rw_apply_at(at, t, forward, in, n, &a, size, p->ret_outputs);
}
