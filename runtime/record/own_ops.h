/*
 * The few ops that the library itself records or runs, and what else it asks of the ops that come with it. ops/ fills
 * all of this in; nothing here includes anything of ops/.
 */
#ifndef RW_RECORD_OWN_OPS_H
#define RW_RECORD_OWN_OPS_H

#include "record/mark.h"

#include <rewind/op.h>
#include <rewind/precision.h>

/* A dense copy: what recording puts before an op that cannot take a strided input. */
extern const rw_op_def rw_op_contiguous;

/* A tensor of one value: what differentiation begins with. */
rw_tensor *rw_fill_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);

/* sum + term, over either when it dies: how differentiation adds contributions. */
rw_tensor *rw_accumulate_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term);

/*
 * The bias of a layer gets the sums of the columns, over all axes but the last, of what flows into the layer's result.
 * The rule that makes the last part of that gradient may take them while it makes it: rw_grad_wants_columns() says
 * whether input i is such a result, of two axes at least, with a bias that has no other use; *ret_sum is what the sums
 * may be added to, or NULL. It hands them over as rw_grad_set_columns(); added: they contain *ret_sum. The layer's own
 * rule then gets them for its input `bias`, ready for rw_grad_set_sum(), and NULL where there are none.
 *
 * rw_grad_is_whole(): whether what the rule makes for input i is not only the last part but all of it. A rule that does
 * not add to what others have contributed asks for that, too: sums of its part would be of no use.
 *
 * rw_grad_pieces_want_columns(): the same of a rule whose inputs 0 to n - 1 are views that fill such a result, of so
 * many columns, where nobody else reads that, nor a view of it. Their gradients lie in one buffer as the views do in
 * the result, and that buffer's sums of columns are handed over as rw_grad_set_columns_of_pieces().
 */
bool rw_grad_wants_columns(const rw_grad_call *g, int i, rw_tensor **ret_sum);
bool rw_grad_is_whole(const rw_grad_call *g, int i);
void rw_grad_set_columns(rw_grad_call *g, int i, rw_tensor *columns, bool added);
bool rw_grad_pieces_want_columns(const rw_grad_call *g, int n, int64_t columns, rw_tensor **ret_sum);
void rw_grad_set_columns_of_pieces(rw_grad_call *g, int n, rw_tensor *columns, bool added);
rw_tensor *rw_grad_columns(rw_grad_call *g, int bias);

/* The input that is such a bias, where the node has so many; -1: the op is no such layer. */
int rw_bias_of(const rw_op_def *op);

/* n elements of a float type into host memory: what rw_init_normal() and rw_init_uniform() upload. Element i comes from
   word i of the ticket, pairs (2i, 2i + 1) share Box-Muller. */
void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads);
void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads);

/*
 * Updates of parameters, commits: (rows, gradients, parameters, first states, second states, masters) -> (parameters,
 * first states, second states, masters). n rows for n of each; as many kinds of states as the attributes say; there are
 * masters of the parameters of 16 bits alone, in their order, or of those of float16: those of bfloat16 are then
 * rounded by chance, by the noise that their rows name. States and masters are float32, of a float64 parameter float64;
 * moments may be bfloat16 by the attributes: the first is rounded to nearest, the second by chance, as beta2 changes it
 * by less than nearest would see. A gradient is of the parameter's type or float32. A parameter whose gradient is
 * absent stays as it is, and so do its states. The op `average` averages what stands in the place of gradients into
 * what stands in that of parameters, float32 or float64. Where the attributes ask for sums, the last input and output
 * are those, [n, RW_UPDATE_SUMS] of RW_F64, of what the update itself has met: enum rw_update_sum. No other byte
 * depends on them.
 *
 * In windows states and masters are of rank 1 and hold as many of the parameter's elements as they have, from the one
 * that the row names: these are updated, to the same bytes as when all are. Without states and master: all of them.
 */
extern const rw_op_def rw_op_adamw, rw_op_adam, rw_op_sgd, rw_op_lion, rw_op_average;

enum rw_update_rule {
    RW_UPDATE_ADAM, /* decoupled or not: by the row. States: the two moments */
    RW_UPDATE_LION, /* the moment */
    RW_UPDATE_SGD,  /* the momentum buffer, or none */
    RW_UPDATE_AVERAGE
};
#define RW_UPDATE_STATES 2 /* at most */

struct rw_update_attrs {
    int32_t rule, states;
    int32_t sums;    /* 1: asked for */
    int32_t windows; /* 1: states and masters are those of a part of the parameter */
    int32_t moments; /* of RW_UPDATE_ADAM, of parameters that are not float64: RW_F32, or RW_BF16 */
};

/* Of a parameter, over its elements; all zero where it was not updated. Squares are those of the gradient as the update
   took it, of the weight behind it, and of what it added to the weight: of the master copy where there is one. */
enum rw_update_sum {
    RW_SUM_GRADIENT, /* of squares */
    RW_SUM_WEIGHT,   /* of squares */
    RW_SUM_CHANGE,   /* of squares */
    RW_SUM_ZEROS,    /* how many gradients are zero */
    RW_SUM_ELEMENTS,
    RW_UPDATE_SUMS
};

/* What an update of one parameter goes by: in double, and the same in float32 for parameters that are not float64. */
struct rw_update_row {
    double lr;
    /* A state times b plus the gradient times c; of averages and Adam's first moment c is 1 - b. Of SGD b2 is
       Nesterov's momentum. */
    double b1, c1, b2, c2;
    double eps;
    double decay, l2;                /* the parameter times decay; the gradient plus l2 times the parameter */
    double correction1, correction2; /* of Adam: 1 - beta^step; else 1 */
    struct {
        float b1, c1, b2, c2, eps, decay, l2;
        float rate, root; /* lr / correction1, 1 / sqrt(correction2) */
    } f;
    uint32_t fresh; /* the parameter was written since the last update: the master copy begins with what it is now */
    uint32_t nesterov;
    uint32_t step;   /* the update's number, by the host's count; 0: the parameter is not due */
    uint32_t skips;  /* the update is left out */
    uint32_t stream; /* of the noise by which a parameter or a moment is rounded, above zero; see noise.h */
    uint64_t seed;   /* likewise */
    uint64_t from;   /* in windows, the parameter's first element that is updated: a multiple of 4; else 0 */
};
/* Rows are a tensor of RW_I32. */
#define RW_UPDATE_ROW_WORDS ((int64_t)(sizeof(struct rw_update_row) / sizeof(int32_t)))

/* Fills in f. */
void rw_update_row_finish(struct rw_update_row *row);

/*
 * What updates go by where some may be left out, a commit: ([found,] rows, pending, due) -> (pending, due). found is
 * one RW_I32, above zero where the update is left out; pending [n, 2] of RW_I32 says how many a parameter has left out,
 * and whether its master copy still is to begin anew; due are the rows, of the updates that were really made.
 * Attributes: those of the update.
 */
extern const rw_op_def rw_op_update_rows;

/* Loss scaling, commits: (scaler, found, gradients) -> (found, gradients), and (found, scaler) -> (scaler). A scaler is
   four RW_F32, of which the first is the scale, found one RW_I32; attributes of the second: the rule. */
extern const rw_op_def rw_op_unscale_grads;
extern const rw_op_def rw_op_scaler_update;

/* The first for gradients that are made one after the other, and made again: (scaler, gradient) -> (gradient, found),
   no commit, and of all of them (founds ..., found) -> (found), one. The bytes are those of unscale_grads. */
extern const rw_op_def rw_op_unscale_grad, rw_op_any_found;

struct rw_scaler_rule {
    double growth, backoff, least, most;
    int64_t interval;
    int32_t hysteresis, refill_at_growth;
};
#define RW_SCALER_NUMBERS 4

/*
 * Delayed scaling, commits. (amaxes, noted) -> (noted): each into its row, where it is larger than what that holds;
 * attributes: the rows, one uint32_t for each. ([found,] amax, scale, history) -> (amax, scale, history): the scales of
 * the next step, by rewind/precision.h.
 */
extern const rw_op_def rw_op_note_amax;
extern const rw_op_def rw_op_delayed_update;

/* Of a weight: what has a history. */
enum rw_delayed_operand { RW_DELAYED_INPUT, RW_DELAYED_WEIGHT, RW_DELAYED_GRADIENT, RW_DELAYED_OPERANDS };

struct rw_delayed_attrs {
    int32_t gradient_dtype, most_recent, margin;
};

/*
 * What quantising has met, for whoever watches: RW_CODES_WORDS of RW_I32, which are RW_CODES_NUMBERS of uint64_t, in
 * that order. Zero is nothing; those of several add up, or the larger one counts, so no order shows in them.
 * rw_quantize() that counts has them as its fourth output; ret_counts NULL: it does not. No other byte depends on them.
 * A commit: (counts ..., noted) -> (noted): each into its row; attributes: the rows, one uint32_t for each.
 */
enum rw_codes_number {
    RW_CODES_AMAX,      /* bits of a float32 without its sign: the larger counts */
    RW_CODES_LEAST,     /* UINT32_MAX minus the bits of the least scale, by which numbers are multiplied; likewise */
    RW_CODES_MOST,      /* bits of the largest one; likewise. Of blocks whose amax is finite and above zero */
    RW_CODES_SATURATED, /* numbers that are finite and, times the scale, above the largest code; these add up */
    RW_CODES_FLUSHED,   /* numbers that are not zero, and whose codes are */
    RW_CODES_ELEMENTS,
    RW_CODES_NUMBERS
};
#define RW_CODES_WORDS ((int64_t)(RW_CODES_NUMBERS * sizeof(uint64_t) / sizeof(int32_t)))

rw_tensor *rw_quantize_counted_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale, const rw_quantize_params *p,
                                  rw_tensor **ret_scale, rw_tensor **ret_amax, rw_tensor **ret_counts);
extern const rw_op_def rw_op_note_counts;

/* Where what was counted goes, of an operand of a product with the weight, a value of the tape; the buffer by its id.
   False where nobody watches, or where the weight is no parameter or buffer that was there when watching began. */
struct rw_counts_slot {
    uint32_t buffer, row;
};
bool rw_counts_slot_at(rw_site at, const rw_tape *t, const rw_tensor *weight, enum rw_delayed_operand which,
                       struct rw_counts_slot *ret);

/* Noted when backward ends, where that depends on its node. RW_ERR_MEMORY, recorded. */
rw_status rw_counts_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *counts);

/*
 * Clipping, a commit: (limit, norm, sums, gradients) -> (norm, sums, gradients). Limit and norm are float64, of one
 * element; sums, of as many as there is room for, become those of the squares of each gradient as it came. A gradient
 * that is absent is zero, and not written.
 */
struct rw_clip_attrs {
    int32_t keeps_nonfinite; /* not 0: gradients whose norm is not finite stay as they are */
};
extern const rw_op_def rw_op_clip_grad_norm;

/*
 * The same in four, for gradients that are made one after the other, and made again: (gradient) -> the sum of its
 * squares, one RW_F64; (limit, sums ...) -> what they are multiplied by, and the norm, one RW_F64 each; (factor,
 * gradient) -> gradient; and, a commit, (the norm's value, sums ..., norm, sums) -> (norm, sums). The bytes are
 * clip_grad_norm's where the sums stand in the order of its gradients.
 */
extern const rw_op_def rw_op_grad_squares, rw_op_clip_factor, rw_op_clip_scale, rw_op_clip_note;

/* The bytes of all operands, each read or written once: what an op costs that does not say. */
double rw_cost_bytes(const rw_op_call *call);

/* Refuses a shape among an op's attributes that no tensor can have. */
rw_status rw_op_shape(rw_op_call *call, rw_shape shape);

/* The shape with zeros behind its rank: attributes that mean the same have the same bytes. */
static inline rw_shape rw_shape_clean(rw_shape shape)
{
    for (int i = shape.rank < 0 ? 0 : shape.rank; i < RW_MAX_RANK; i++) shape.dim[i] = 0;
    return shape;
}

/* False, with an error that names `what` and the argument, when x can be no operand on t. Records nothing. */
bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument);

/* What the innermost recipe makes of x where an op lowers or raises it: x itself without one. NULL, with an error where
   x is none of the tape's. The type that it would be lowered to. */
rw_tensor *rw_lowered_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_tensor *rw_raised_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_dtype rw_recipe_lowers(const rw_tape *t, const rw_tensor *x);

/* The innermost recipe where it is one of 8-bit codes, valid until something is recorded; else NULL. And codes of x, a
   value of the tape, of E4M3 with scales that are powers of two: of a parameter made once a step, of anything else once
   a region; of a parameter whose codes the recipe keeps perhaps those of an earlier step. With delayed scaling the
   scale is that of an operand of a product with the weight, a value of the tape. */
const rw_recipe *rw_recipe_of_codes(const rw_tape *t);
rw_tensor *rw_recipe_codes_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                              const rw_recipe *recipe, rw_tensor *weight, enum rw_delayed_operand which,
                              rw_tensor **ret_scale);

/* A scale of delayed scaling, and where its amax goes. False, with an error, where the weight has no histories. */
struct rw_delayed_slot {
    rw_tensor *scale;
    uint32_t buffer, row; /* the buffer by its id */
};
bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed *delayed, rw_tensor *weight,
                        enum rw_delayed_operand which, struct rw_delayed_slot *ret);

/* The value is the amax of this step: noted when backward ends, where that depends on it. RW_ERR_MEMORY, recorded. */
rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax);

/*
 * An op and its backward op in one kernel, where the second is the next action of a plan, but for what makes its input
 * 3 of nothing. It reads the first one's inputs 0 and 1 and its output 1, and writes over input 0: a loss is the last
 * op of forward, and what it has read is still in the cache. The kernel gets {first's inputs 0 and 1, second's input 3}
 * and {first's outputs 0 and 1, second's output 0}, the first one's attributes and the second one's workspace, and
 * gives the bytes that the two give.
 */
struct rw_joint {
    const rw_op_def *first, *second;
    rw_kernel_fn kernel[RW_DEVICE_COUNT];
};
extern const struct rw_joint rw_joint_cross_entropy;

/* The marker of the library's own definitions, at kernel[RW_DEVICE_AUTO]: nobody else can name it. */
rw_status rw_op_is_own(const rw_kernel *k);

/* What rewind/ops.h calls input i of a built-in op, "input 3" for any other. */
const char *rw_op_input_name(const rw_op_def *op, int i, char *text, size_t size);

/* True for an op that a function of rewind/ops.h records; not for what only gradient rules record. */
bool rw_op_is_builtin(const char *name);
const char *rw_builtin_name(size_t i); /* in the order of the alphabet; NULL behind the last */

#endif
