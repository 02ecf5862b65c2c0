/* Records and runs a case of op_cases.h, and the magnitudes of its terms. */
#include "support/op_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* NULL where the type does not hold a number. */
static rw_tensor *numbers(rw_tape *t, rw_dtype dtype, rw_shape shape, const double *given, enum op_range range,
                          int salt, bool absolute)
{
    const int64_t n = rw_shape_numel(shape);
    char *const data = malloc((size_t)n * 8 + 8);
    bool held = true;
    for (int64_t i = 0; i < n; i++) {
        const double x = given ? given[i] : op_number(range, i, salt);
        held &= number_put(data, dtype, i, absolute ? fabs(x) : x);
    }
    rw_tensor *const x = held ? rw_input(t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype))
                              : NULL;
    free(data);
    return x;
}

rw_tensor *op_input(rw_tape *t, const struct op_case *c, rw_dtype dtype, const struct op_data *data, int i,
                    enum op_mode mode)
{
    return numbers(t, dtype, op_base_shape(&c->in[i]), data->x[i], c->in[i].range, i, mode == OP_ABSOLUTE);
}

rw_tensor *op_record(struct recording *r, rw_tape *t, const struct op_case *c, rw_dtype dtype,
                     const struct op_data *data, enum op_mode mode)
{
    rw_tensor *x[OP_INPUTS];
    rw_generator_set(rw_tape_context(t), (rw_generator_state){ 5, 11 }); /* the same words each time, on every device */
    memset(r, 0, sizeof *r);
    for (int i = 0; i < c->n; i++) {
        r->base[i] = op_input(t, c, dtype, data, i, mode);
        rw_require_grad(t, r->base[i]);
        x[i] = r->x[i] = op_operand_of(t, &c->in[i], r->base[i]);
        if (!x[i]) return NULL;
    }
    return r->y = c->build(t, x, c);
}

rw_tensor *op_record_loss(struct recording *r, rw_tape *t, const struct op_case *c, const struct op_data *data,
                          enum op_mode mode)
{
    if (!r->y || (c->no_sum && !data->w)) return r->y;
    r->w = numbers(t, rw_tensor_dtype(r->y), rw_tensor_shape(r->y), data->w, OP_SIGNED, 9, mode != OP_PLAIN);
    return rw_sum(t, rw_mul(t, r->y, r->w), RW_ALL_AXES, false);
}

static rw_status keep(struct outcome *o, rw_tape *t, rw_tensor *x, int i)
{
    o->dtype[i] = rw_tensor_dtype(x);
    o->numel[i] = rw_shape_numel(rw_tensor_shape(x));
    o->bytes[i] = rw_tensor_bytes(x);
    o->raw[i] = malloc(o->bytes[i] + 8);
    return rw_read(t, x, o->raw[i], o->bytes[i]);
}

static rw_status failed(rw_tape *t)
{
    const rw_status status = rw_error_status(rw_tape_context(t));
    return status ? status : RW_ERR_ARGUMENT;
}

/* composed: gradients by rw_grad(). */
static rw_status run(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype, const struct op_data *data,
                     enum op_mode mode, bool composed)
{
    struct recording r;
    rw_tensor *g[OP_INPUTS] = { NULL };
    memset(o, 0, sizeof *o);
    op_record(&r, t, c, dtype, data, mode);
    rw_tensor *const loss = op_record_loss(&r, t, c, data, mode);
    if (!loss) return failed(t);
    rw_require_grad(t, r.y); /* keeps y readable */
    rw_status status = RW_OK;
    if (c->n) status = composed ? rw_grad(t, loss, r.base, (size_t)c->n, g) : rw_backward(t, loss);
    if (!status) status = keep(o, t, r.y, 0);
    for (int i = 0; i < c->n && !status; i++) status = keep(o, t, composed ? g[i] : rw_gradient(r.base[i]), 1 + i);
    o->n = 1 + c->n;
    return status;
}

rw_status op_run(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype, const struct op_data *data,
                 enum op_mode mode)
{
    return run(o, t, c, dtype, data, mode, false);
}

rw_status op_run_composed(struct outcome *o, rw_tape *t, const struct op_case *c, rw_dtype dtype,
                          const struct op_data *data)
{
    return run(o, t, c, dtype, data, OP_PLAIN, true);
}

void op_forget(struct outcome *o)
{
    for (int i = 0; i < OP_TENSORS; i++) free(o->raw[i]);
    memset(o, 0, sizeof *o);
}

/* ---- magnitudes ---- */

/* |m| as an input of that shape, which does not depend on anything. */
static rw_tensor *detached(rw_tape *t, rw_tensor *m, rw_shape shape)
{
    rw_tensor *const all = rw_contiguous(t, rw_broadcast_to(t, rw_abs(t, m), shape));
    void *const data = malloc(rw_tensor_bytes(all) + 8);
    rw_tensor *const x = rw_read(t, all, data, rw_tensor_bytes(all))
                             ? NULL
                             : rw_input(t, RW_F64, shape, data, (size_t)rw_shape_numel(shape) * sizeof(double));
    free(data);
    return x;
}

/* The magnitudes of the value and of each gradient, which bound the error of a case. */
static rw_status derived(struct outcome *o, rw_tape *t, const struct op_case *c, const struct op_data *data)
{
    struct recording r;
    rw_tensor *m[OP_TENSORS] = { NULL }, *base;
    if (!op_record(&r, t, c, RW_F64, data, OP_PLAIN) || !op_record_loss(&r, t, c, data, OP_PLAIN)) return failed(t);
    c->sizes(t, c, r.x, r.w, r.y, m);
    rw_status status = keep(o, t, detached(t, m[0], rw_tensor_shape(r.y)), 0);
    for (int i = 0; i < c->n && !status; i++) {
        /* the magnitudes of a view's gradient are summed to those of its base */
        rw_tensor *const looked = rw_mul(t, r.x[i], detached(t, m[1 + i], c->in[i].shape));
        status = rw_grad(t, looked, &r.base[i], 1, &base);
        if (!status) status = keep(o, t, base, 1 + i);
    }
    o->n = 1 + c->n;
    return status;
}

/* Takes the result from one run and the gradients from another. */
static rw_status upward(struct outcome *o, rw_tape *t, const struct op_case *c, const struct op_data *data)
{
    struct outcome plain;
    rw_status status = op_run(&plain, t, c, RW_F64, data, OP_PLAIN);
    rw_tape_reset(t);
    if (!status) status = op_run(o, t, c, RW_F64, data, OP_UPWARD);
    unsigned char *const y = o->raw[0];
    o->raw[0] = plain.raw[0];
    plain.raw[0] = y;
    op_forget(&plain);
    return status;
}

rw_status op_run_sizes(struct outcome *o, rw_tape *t, const struct op_case *c, const struct op_data *data)
{
    memset(o, 0, sizeof *o);
    rw_tape_reset(t);
    const rw_status status = c->sizes == OP_TERMS    ? op_run(o, t, c, RW_F64, data, OP_ABSOLUTE)
                             : c->sizes == op_values ? upward(o, t, c, data)
                                                     : derived(o, t, c, data);
    rw_tape_reset(t);
    return status;
}

struct roundings op_allowed(const struct op_case *c, int i)
{
    struct roundings r = c->r[i];
    const int64_t times = i ? op_expansion(&c->in[i - 1]) : 1;
    if (times > 1) r.n += (int)times, r.s++;
    return r;
}
