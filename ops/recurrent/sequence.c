/*
 * LSTM and GRU composed of linear layers and cells: a single step, and a sequence whose input product is computed once
 * for all of its steps.
 */
#include "base/public_entry.h"
#include "ops/recurrent/cells.h"

#include "ops/common/util.h"

#include <rewind/composite.h>
#include <rewind/create.h>
#include <rewind/recurrent.h>
#include <rewind/select.h>

#define STEPS_MAX 8189 /* maximum number of parts of rw_split() */

/* The arguments of a call, for messages and for recording. */
struct recurrence {
    rw_site at;
    rw_tape *t;
    const char *name;
    const rw_recurrent_weights *w;
    int gates;
};

/* ---- checks before anything is recorded ---- */

static bool is_operand(const struct recurrence *r, rw_tensor *x, const char *argument)
{
    return x == rw_none() || rw_operand_check(r->at, r->t, x, r->name, argument);
}

static bool has_shape(const struct recurrence *r, const rw_tensor *x, rw_shape shape, const char *argument)
{
    return x == rw_none() || rw_operand_has_shape_at(r->at, r->t, r->name, argument, x, shape);
}

/* The width of a state, from the weights; 0 after an error. in: features of x. */
static int64_t width_of(const struct recurrence *r, int64_t in)
{
    const rw_recurrent_weights *const w = r->w;
    if (!w) {
        rw_refuse_at(r->at, r->t, RW_ERR_ARGUMENT, "%s: weights is NULL; expected rw_recurrent_weights", r->name);
        return 0;
    }
    if (!rw_operand_check(r->at, r->t, w->ih, r->name, "weights->ih") ||
        !rw_operand_check(r->at, r->t, w->hh, r->name, "weights->hh") ||
        !is_operand(r, w->bias_ih, "weights->bias_ih") || !is_operand(r, w->bias_hh, "weights->bias_hh"))
        return 0;
    const rw_shape hh = rw_tensor_shape(w->hh);
    const int64_t h = hh.rank == 2 ? hh.dim[1] : 0;
    if (h < 1 || h > INT64_MAX / r->gates) {
        rw_refuse_operand_at(r->at, r->t, RW_ERR_SHAPE, r->name, "weights->hh", w->hh, "[%d h, h]", r->gates);
        return 0;
    }
    const int64_t all = h * r->gates;
    const bool fits = has_shape(r, w->hh, RW_SHAPE(all, h), "weights->hh") &&
                      has_shape(r, w->ih, RW_SHAPE(all, in), "weights->ih") &&
                      has_shape(r, w->bias_ih, RW_SHAPE(all), "weights->bias_ih") &&
                      has_shape(r, w->bias_hh, RW_SHAPE(all), "weights->bias_hh");
    return fits ? h : 0;
}

/* Checks that x has this number of axes, the last two of which are rows and features. Returns the width of a state. */
static int64_t check_input(const struct recurrence *r, rw_tensor *x, int rank, const char *axes)
{
    if (!rw_operand_check(r->at, r->t, x, r->name, "x")) return 0;
    const rw_shape s = rw_tensor_shape(x);
    if (s.rank == rank) return width_of(r, s.dim[rank - 1]);
    rw_refuse_operand_at(r->at, r->t, RW_ERR_SHAPE, r->name, "x", x, "%s", axes);
    return 0;
}

static bool check_state(const struct recurrence *r, rw_tensor *state, rw_tensor *x, int64_t h, const char *argument)
{
    const rw_shape s = rw_tensor_shape(x);
    return is_operand(r, state, argument) && has_shape(r, state, RW_SHAPE(s.dim[s.rank - 2], h), argument);
}

/* A sequence's state is optional, a step's is not. */
static bool is_there(const struct recurrence *r, rw_tensor *state, const char *argument)
{
    return rw_operand_check(r->at, r->t, state, r->name, argument);
}

/* ---- steps: `in` is the product of the input ---- */

static rw_tensor *lstm_step(const struct recurrence *r, rw_tensor *in, rw_tensor *h, rw_tensor *c, rw_tensor **ret_c)
{
    rw_tensor *const gates = rw_linear_add_at(r->at, r->t, h, r->w->hh, r->w->bias_hh, in), *out[2] = { NULL, NULL };
    rw_tensor *const y = rw_apply_at(r->at, r->t, &rw_op_lstm_cell, (rw_tensor *const[]){ gates, c }, 2, NULL, 0, out);
    *ret_c = out[1];
    return y;
}

static rw_tensor *gru_step(const struct recurrence *r, rw_tensor *in, rw_tensor *h)
{
    rw_tensor *const of_h = rw_linear_at(r->at, r->t, h, r->w->hh, r->w->bias_hh);
    return rw_apply_at(r->at, r->t, &rw_op_gru_cell, (rw_tensor *const[]){ in, of_h, h }, 3, NULL, 0, NULL);
}

static rw_tensor *product_of(const struct recurrence *r, rw_tensor *x)
{
    return rw_linear_at(r->at, r->t, x, r->w->ih, r->w->bias_ih);
}

rw_tensor *rw_lstm_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                           const rw_recurrent_weights *weights, rw_tensor **ret_c)
{
    RW_ENTER_OP(t);
    const struct recurrence r = { at, t, "lstm_cell", weights, RW_LSTM_GATES };
    rw_tensor *next = NULL;
    if (ret_c) *ret_c = NULL;
    const int64_t width = check_input(&r, x, 2, "[n, in]");
    if (!width || !is_there(&r, h, "h") || !is_there(&r, c, "c") || !check_state(&r, h, x, width, "h") ||
        !check_state(&r, c, x, width, "c"))
        return NULL;
    const rw_composite composite = rw_composite_begin(t, r.name);
    rw_tensor *const y = rw_composite_end(&composite, lstm_step(&r, product_of(&r, x), h, c, &next));
    if (y && ret_c) *ret_c = next;
    return y;
}

rw_tensor *rw_gru_cell_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, const rw_recurrent_weights *weights)
{
    RW_ENTER_OP(t);
    const struct recurrence r = { at, t, "gru_cell", weights, RW_GRU_GATES };
    const int64_t width = check_input(&r, x, 2, "[n, in]");
    if (!width || !is_there(&r, h, "h") || !check_state(&r, h, x, width, "h")) return NULL;
    const rw_composite composite = rw_composite_begin(t, r.name);
    return rw_composite_end(&composite, gru_step(&r, product_of(&r, x), h));
}

/* ---- sequences ---- */

/* Returns the width of a state, or 0 after an error. */
static int64_t check_sequence(const struct recurrence *r, rw_tensor *x)
{
    const int64_t width = check_input(r, x, 3, "[length, n, in]"), length = rw_tensor_shape(x).dim[0];
    if (!width || (length >= 1 && length <= STEPS_MAX)) return width;
    rw_refuse_operand_at(r->at, r->t, RW_ERR_SHAPE, r->name, "x", x, "a length of 1 to %d", STEPS_MAX);
    return 0;
}

static rw_tensor *state_of(const struct recurrence *r, rw_tensor *state, rw_tensor *x, int64_t width)
{
    if (state != rw_none()) return state;
    return rw_zeros_at(r->at, r->t, rw_tensor_dtype(x), RW_SHAPE(rw_tensor_shape(x).dim[1], width));
}

/* Records all steps; h and c: the states before, replaced by those after. c: NULL for a GRU. */
static rw_tensor *record_steps(const struct recurrence *r, rw_tensor *x, rw_tensor **h, rw_tensor **c)
{
    const int n = (int)rw_tensor_shape(x).dim[0];
    rw_tensor *const product = product_of(r, x), *y = NULL;
    rw_tensor **const step = product ? rw_scratch_at(r->at, r->t, r->name, (size_t)n, sizeof *step) : NULL;
    int n_done = 0;
    if (step && !rw_unbind_at(r->at, r->t, product, 0, step, n)) {
        while (n_done < n &&
               (*h = step[n_done] = c ? lstm_step(r, step[n_done], *h, *c, c) : gru_step(r, step[n_done], *h)))
            n_done++;
        if (n_done == n) y = rw_stack_at(r->at, r->t, step, n, 0);
    }
    rw_free(step);
    return y;
}

rw_tensor *rw_lstm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, rw_tensor *c,
                      const rw_recurrent_weights *weights, rw_tensor **ret_h, rw_tensor **ret_c)
{
    RW_ENTER_OP(t);
    const struct recurrence r = { at, t, "lstm", weights, RW_LSTM_GATES };
    if (ret_h) *ret_h = NULL;
    if (ret_c) *ret_c = NULL;
    const int64_t width = check_sequence(&r, x);
    if (!width || !check_state(&r, h, x, width, "h") || !check_state(&r, c, x, width, "c")) return NULL;
    const rw_composite composite = rw_composite_begin(t, r.name);
    h = state_of(&r, h, x, width), c = state_of(&r, c, x, width);
    rw_tensor *const y = rw_composite_end(&composite, record_steps(&r, x, &h, &c));
    if (y && ret_h) *ret_h = h;
    if (y && ret_c) *ret_c = c;
    return y;
}

rw_tensor *rw_gru_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *h, const rw_recurrent_weights *weights,
                     rw_tensor **ret_h)
{
    RW_ENTER_OP(t);
    const struct recurrence r = { at, t, "gru", weights, RW_GRU_GATES };
    if (ret_h) *ret_h = NULL;
    const int64_t width = check_sequence(&r, x);
    if (!width || !check_state(&r, h, x, width, "h")) return NULL;
    const rw_composite composite = rw_composite_begin(t, r.name);
    h = state_of(&r, h, x, width);
    rw_tensor *const y = rw_composite_end(&composite, record_steps(&r, x, &h, NULL));
    if (y && ret_h) *ret_h = h;
    return y;
}
