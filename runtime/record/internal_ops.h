/*
 * Ops that the library itself records or runs, and other functions that it needs of the built-in ops. ops/ implements
 * all of this; nothing here includes anything of ops/.
 */
#ifndef RW_RECORD_INTERNAL_OPS_H
#define RW_RECORD_INTERNAL_OPS_H

#include "record/tape_mark.h"

#include <rewind/op.h>
#include <rewind/precision.h>

/* Flags of built-in ops alone, beside rw_op_flags: what passes need to know of an op, without its name. */
enum {
    /* A commit that no recorder counts: the run itself increments the versions of the buffers that it writes. */
    RW_OP_OWN_COUNTED = 1 << 16,
    /* Adds a contribution to a gradient: if its bytes differ, contributions were added in another order. */
    RW_OP_OWN_ADDS = 1 << 17
};

/* A dense copy, which recording inserts before an op that does not accept a strided input. */
extern const rw_op_def rw_op_contiguous;

/* A tensor of one value, with which differentiation starts. */
rw_tensor *rw_fill_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);

/* sum + term, in place of either at its last use: how differentiation adds contributions. */
rw_tensor *rw_accumulate_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term);

/*
 * Fused bias gradients. The gradient of a layer's bias is the sum of the columns (over all axes but the last) of the
 * gradient of the layer's result. The rule that computes the last part of that gradient may compute these sums in the
 * same pass.
 *
 * rw_grad_wants_columns(): is input i such a result, of at least two axes, with a bias that has no other use? *ret_sum
 * is what the sums may be added to, or NULL. The rule sets the sums by rw_grad_set_columns(); added: they include
 * *ret_sum. The layer's own rule then gets them for its input `bias`, ready for rw_grad_set_sum(), or NULL if there are
 * none.
 *
 * rw_grad_is_whole(): is what the rule computes for input i the whole gradient, and not only its last part? A rule that
 * does not add to other contributions must also check this, because sums of a part are of no use.
 *
 * rw_grad_pieces_want_columns(): the same for a rule whose inputs 0 to n - 1 are views that fill such a result of so
 * many columns, if no other op reads the result or a view of it. Their gradients are in one buffer in the same
 * arrangement, and the sums of that buffer's columns are set by rw_grad_set_columns_of_pieces().
 */
bool rw_grad_wants_columns(const rw_grad_call *g, int i, rw_tensor **ret_sum);
bool rw_grad_is_whole(const rw_grad_call *g, int i);
void rw_grad_set_columns(rw_grad_call *g, int i, rw_tensor *columns, bool added);
bool rw_grad_pieces_want_columns(const rw_grad_call *g, int n, int64_t columns, rw_tensor **ret_sum);
void rw_grad_set_columns_of_pieces(rw_grad_call *g, int n, rw_tensor *columns, bool added);
rw_tensor *rw_grad_columns(rw_grad_call *g, int bias);

/* The input that is such a bias, if the node has that many inputs; -1: the op is not such a layer. */
static inline int rw_bias_of(const rw_op_def *op)
{
    return op->bias ? op->bias : -1;
}

/* Generates n elements of a floating-point type in host memory, which rw_init_normal() and rw_init_uniform() upload.
   Element i uses word i of the ticket; pairs (2i, 2i + 1) share Box-Muller. */
void rw_random_fill_normal(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double mean, double std,
                           int threads);
void rw_random_fill_uniform(void *data, rw_dtype dtype, int64_t n, rw_ticket ticket, double lo, double hi, int threads);

/*
 * Updates of parameters, which are commits: (rows, gradients, parameters, first states, second states, masters) ->
 * (parameters, first states, second states, masters).
 *
 * n rows for n parameters, and as many kinds of states as the attributes say. Master copies exist only for 16-bit
 * parameters, in their order, or only for float16 ones; bfloat16 ones are then stochastically rounded, with the noise
 * that their rows name. States and masters are float32 (float64 for float64 parameters). Moments may be bfloat16: the
 * first is rounded to nearest, the second stochastically, because the change by beta2 is below what nearest rounding
 * represents. A gradient has the parameter's type or float32. A parameter whose gradient is absent is unchanged, and so
 * are its states. The op `average` averages the operands in the place of gradients into those in the place of
 * parameters, float32 or float64. If requested by the attributes, the last input and output are sums of what the update
 * computes, [n, RW_UPDATE_SUMS] of RW_F64: enum rw_update_sum. No other byte depends on them.
 *
 * With windows, states and masters have rank 1 and hold a part of the parameter's elements, starting at the one that
 * the row names. Only these are updated, to the same bytes as otherwise. Without states and master: all elements.
 */
extern const rw_op_def rw_op_adamw, rw_op_adam, rw_op_sgd, rw_op_lion, rw_op_average;

enum rw_update_rule {
    RW_UPDATE_ADAM, /* decoupled or not, as the row says. States: the two moments */
    RW_UPDATE_LION, /* the moment */
    RW_UPDATE_SGD,  /* the momentum buffer, or none */
    RW_UPDATE_AVERAGE
};
#define RW_UPDATE_STATES 2 /* at most */

struct rw_update_attrs {
    int32_t rule, states;
    int32_t sums;    /* 1: requested */
    int32_t windows; /* 1: states and masters hold a part of the parameter */
    int32_t moments; /* of RW_UPDATE_ADAM, of parameters that are not float64: RW_F32, or RW_BF16 */
};

/* Sums over the elements of a parameter; all zero if it was not updated. Squares of the gradient as the update used
   it, of the weight after it, and of the change of the weight; of the master copy if there is one. */
enum rw_update_sum {
    RW_SUM_GRADIENT, /* of squares */
    RW_SUM_WEIGHT,   /* of squares */
    RW_SUM_CHANGE,   /* of squares */
    RW_SUM_ZEROS,    /* how many gradients are zero */
    RW_SUM_ELEMENTS,
    RW_UPDATE_SUMS
};

/* Coefficients of an update of one parameter: in double, and in float32 for parameters that are not float64. */
struct rw_update_row {
    double lr;
    /* A state times b plus the gradient times c; for averages and Adam's first moment c is 1 - b. For SGD b2 is
       Nesterov's momentum. */
    double b1, c1, b2, c2;
    double eps;
    double decay, l2;                /* the parameter times decay; the gradient plus l2 times the parameter */
    double correction1, correction2; /* of Adam: 1 - beta^step; else 1 */
    struct {
        float b1, c1, b2, c2, eps, decay, l2;
        float rate, root; /* lr / correction1, 1 / sqrt(correction2) */
    } f;
    uint32_t fresh; /* the parameter was written since the last update: the master copy starts from its present value */
    uint32_t nesterov;
    uint32_t step;   /* number of the update, counted by the host; 0: the parameter is not updated */
    uint32_t skips;  /* the update is left out */
    uint32_t stream; /* seed of stochastic rounding, above zero; see stochastic_rounding.h */
    uint64_t seed;   /* likewise */
    uint64_t from;   /* in windows, the first element to update: a multiple of 4; else 0 */
};
/* Rows are a tensor of RW_I32. */
#define RW_UPDATE_ROW_WORDS ((int64_t)(sizeof(struct rw_update_row) / sizeof(int32_t)))

/* Fills in f. */
void rw_update_row_finish(struct rw_update_row *row);

/*
 * Rows of updates that may be skipped, a commit: ([found,] rows, pending, due) -> (pending, due). found is one RW_I32,
 * above zero if the update is skipped. pending, [n, 2] of RW_I32, has the number of skipped updates per parameter, and
 * whether its master copy must still be reset. due are the rows for the updates that were really applied. Attributes:
 * those of the update.
 */
extern const rw_op_def rw_op_update_rows;

/* Loss scaling, commits: (scaler, found, gradients) -> (found, gradients), and (found, scaler) -> (scaler). A scaler
   is four RW_F32, the first of which is the scale; found is one RW_I32. Attributes of the second: the rule. */
extern const rw_op_def rw_op_unscale_grads;
extern const rw_op_def rw_op_scaler_update;

/* The first of these for gradients that are computed one after the other, and recomputed: (scaler, gradient) ->
   (gradient, found), not a commit, and for all of them (founds ..., found) -> (found), one. Bit-identical to
   unscale_grads. */
extern const rw_op_def rw_op_unscale_grad, rw_op_any_found;

struct rw_scaler_rule {
    double growth, backoff, least, most;
    int64_t interval;
    int32_t hysteresis, refill_at_growth;
};
#define RW_SCALER_NUMBERS 4

/*
 * Delayed scaling, commits. (amaxes, noted) -> (noted): each into its row, if it is larger than the row's value;
 * attributes: the rows, one uint32_t each. ([found,] amax, scale, history) -> (amax, scale, history): the scales of the
 * next step, see rewind/precision.h.
 */
extern const rw_op_def rw_op_note_amax;
extern const rw_op_def rw_op_delayed_update;

/* Operands of a weight's products that have a history. */
enum rw_delayed_operand { RW_DELAYED_INPUT, RW_DELAYED_WEIGHT, RW_DELAYED_GRADIENT, RW_DELAYED_OPERANDS };

struct rw_delayed_attrs {
    int32_t gradient_dtype, most_recent, margin;
};

/*
 * Counts of quantization: RW_CODES_WORDS of RW_I32, which are RW_CODES_NUMBERS of uint64_t, in that order. Zero means
 * nothing; counts of several ops are added, or the larger one is taken, so their order has no effect. rw_quantize() has
 * them as its fourth output if it counts; ret_counts NULL: it does not. No other byte depends on them. A commit:
 * (counts ..., noted) -> (noted): each into its row; attributes: the rows, one uint32_t each.
 */
enum rw_codes_number {
    RW_CODES_AMAX,      /* bits of a float32 magnitude: the larger one counts */
    RW_CODES_MIN,     /* UINT32_MAX minus the bits of the smallest factor; likewise */
    RW_CODES_MAX,      /* bits of the largest factor; likewise. For blocks whose amax is finite and above zero */
    RW_CODES_SATURATED, /* finite elements that, times the factor, exceed the largest FP8 number; added up */
    RW_CODES_FLUSHED,   /* non-zero elements that became zero */
    RW_CODES_ELEMENTS,
    RW_CODES_NUMBERS
};
#define RW_CODES_WORDS ((int64_t)(RW_CODES_NUMBERS * sizeof(uint64_t) / sizeof(int32_t)))

rw_tensor *rw_quantize_counted_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale, const rw_quantize_params *p,
                                  rw_tensor **ret_scale, rw_tensor **ret_amax, rw_tensor **ret_counts);
extern const rw_op_def rw_op_note_counts;

/* The row for counts of an operand of a product with the weight, a value of the tape; the buffer by its ID. False if
   no monitor counts, or if the weight is not a parameter or buffer that existed when counting began. */
struct rw_counts_slot {
    uint32_t buffer, row;
};
bool rw_counts_slot_at(rw_site at, const rw_tape *t, const rw_tensor *weight, enum rw_delayed_operand which,
                       struct rw_counts_slot *ret);

/* Records the counts when backward ends, if backward depends on their node. RW_ERR_MEMORY, recorded. */
rw_status rw_counts_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *counts);

/*
 * Clipping, a commit: (limit, norm, sums, gradients) -> (norm, sums, gradients). Limit and norm are float64, of one
 * element. The sums, as many as there is room for, become the sums of squares of each gradient before clipping. An
 * absent gradient is zero, and not written.
 */
struct rw_clip_attrs {
    int32_t keeps_nonfinite; /* not 0: gradients whose norm is not finite are unchanged */
};
extern const rw_op_def rw_op_clip_grad_norm;

/*
 * Clipping in four ops, for gradients that are computed one after the other, and recomputed: (gradient) -> its sum of
 * squares, one RW_F64; (limit, sums ...) -> the factor and the norm, one RW_F64 each; (factor, gradient) -> gradient;
 * and, a commit, (the norm's value, sums ..., norm, sums) -> (norm, sums). Bit-identical to clip_grad_norm if the sums
 * are in the order of its gradients.
 */
extern const rw_op_def rw_op_grad_squares, rw_op_clip_factor, rw_op_clip_scale, rw_op_clip_note;

/* Bytes of all operands, each read or written once: the default cost of an op. */
double rw_cost_bytes(const rw_op_call *call);

/* Refuses a shape among an op's attributes that no tensor can have. */
rw_status rw_op_shape(rw_op_call *call, rw_shape shape);

/* The shape with zeros after its rank, so that equal attributes have equal bytes. */
static inline rw_shape rw_shape_clean(rw_shape shape)
{
    for (int i = shape.rank < 0 ? 0 : shape.rank; i < RW_MAX_RANK; i++) shape.dim[i] = 0;
    return shape;
}

/* False, with an error that names `what` and the argument, if x cannot be an operand on t. Records nothing. */
bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument);

/* NULL, with the error of a call without a tape: its inputs may lead to a context for it, if their number is valid. */
rw_tensor *rw_refuse_no_tape(rw_site at, const char *what, rw_tensor *const *in, size_t n);

/* What a message expects instead of a NULL argument of that name: "where the result is stored" for ret_*. */
const char *rw_expected_of_null(const char *argument);

/* x as the innermost recipe casts it for a product; x itself without a recipe. NULL, with an error if x is not a
   tensor of the tape. And the type to which it would be cast. */
rw_tensor *rw_lowered_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_tensor *rw_raised_at(rw_site at, rw_tape *t, rw_tensor *x);
rw_dtype rw_recipe_lowers(const rw_tape *t, const rw_tensor *x);

/* The innermost recipe if it is an FP8 one, valid until something is recorded; else NULL. And the E4M3 data of x, a
   value of the tape, with scales that are powers of two: recorded once per step for a parameter, once per region for
   anything else; for a parameter that the recipe keeps, perhaps the data of an earlier step. With delayed scaling,
   the scale is that of an operand of a product with the weight, a value of the tape. */
const rw_recipe *rw_recipe_of_codes(const rw_tape *t);
rw_tensor *rw_recipe_codes_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantize_params *params,
                              const rw_recipe *recipe, rw_tensor *weight, enum rw_delayed_operand which,
                              rw_tensor **ret_scale);

/* A scale of delayed scaling, and the row of its amax. False, with an error, if the weight has no histories. */
struct rw_delayed_slot {
    rw_tensor *scale;
    uint32_t buffer, row; /* the buffer by its id */
};
bool rw_delayed_slot_at(rw_site at, rw_tape *t, const rw_delayed_scaling *delayed, rw_tensor *weight,
                        enum rw_delayed_operand which, struct rw_delayed_slot *ret);

/* The value is the amax of this step: recorded when backward ends, if a loss or gradient depends on its node.
   RW_ERR_MEMORY, recorded. */
rw_status rw_delayed_note(rw_tape *t, uint32_t buffer, uint32_t row, const rw_tensor *amax);

/*
 * A kernel that computes two ops at once, bit-identical to running both: rw_op_def.fused of the first one. A loss is
 * the last op of forward, and its gradient the first of backward, so one pass over the logits serves both.
 *
 * Operands are numbered per op, inputs first, then outputs. Planning fuses two actions if the second one is the next
 * action, or the next but for one that only makes its operand `filled` (a seed gradient), and if their operands have
 * the memory that `same` requires. The kernel gets the operands in[0..n_in) and out[0..n_out), the attributes of the
 * first op and the workspace of the second.
 */
enum { RW_FUSED_OPERANDS = 5 }; /* maximum number of operands of either op, and of the kernel */
struct rw_fused_pair {
    const rw_op_def *second;
    rw_kernel_fn kernel[RW_DEVICE_COUNT];
    uint8_t n_same, filled, n_in, n_out;
    struct {
        uint8_t of_second, of_first;
    } same[RW_FUSED_OPERANDS];
    struct rw_fused_operand {
        bool of_second;
        uint8_t operand;
    } in[RW_FUSED_OPERANDS], out[RW_FUSED_OPERANDS];
};

/* Marks the library's own definitions, at kernel[RW_DEVICE_AUTO]; custom ops cannot name it. */
rw_status rw_op_is_own(const rw_kernel *k);

/* The name of input i of a built-in op in its public header, "x[3]" where one parameter holds any number of inputs; or
   its name in the op's definition where only the library records the op. "input 3" for any other. */
const char *rw_op_input_name(const rw_op_def *op, int i, char *text, size_t size);

/* True for an op that a function of rewind/ops.h records; false for one that only gradient rules record. */
bool rw_op_is_builtin(const char *name);
const char *rw_builtin_name(size_t i); /* in alphabetical order; NULL past the last */

#endif
