/**
 * rewind/op.h - defines ops: the interface of custom and built-in ops.
 *
 * An op is one rw_op_def: a shape check, a kernel per device, a gradient rule, a cost function, and flags for hidden
 * state. Built-in ops use the same structure, so custom ops take part in regions, planning, placement and verification
 * like any other.
 *
 * The law of kernels: the bytes that a kernel writes depend only on the bytes of its inputs, its attributes and its
 * ticket; not on addresses, the number of threads, or earlier work. An op that cannot guarantee this has the flag
 * RW_OP_NONDETERMINISTIC; its outputs are kept and never replayed.
 *
 * @param call the argument of the op's function
 * @param k the kernel's argument
 * @param fmt text, as for printf()
 * Thread-safety: as for the context. The end of this header lists the calls that an op's functions may make.
 */
#ifndef REWIND_OP_H
#define REWIND_OP_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_op_def rw_op_def;

/** Maximum number of operands of one node, inputs and outputs together. */
#define RW_OP_MAX_OPERANDS 65534

/**
 * The layout of a value in its buffer: shape, strides and offset. Element (i0, i1, ...) is at data + sum(i * stride),
 * in elements. Layouts are immutable and valid as long as the context. They are interned: two equal layouts of a
 * context are the same pointer.
 */
typedef struct rw_layout {
    int64_t numel;              ///< product of dim
    int64_t offset;             ///< index in the buffer of the first element; rw_view.data already includes it
    int64_t span;               ///< 1 + the largest index relative to the first element; 0 if numel is 0
    int32_t rank;               ///< number of axes
    uint32_t id;                ///< index in the context's table
    bool dense;                 ///< row-major without gaps
    int64_t dim[RW_MAX_RANK];   ///< extents, outermost axis first
    int64_t stride[RW_MAX_RANK]; ///< in elements; 0 along a broadcast axis
} rw_layout;

/** Element type and layout of one operand. */
typedef struct rw_operand_desc {
    rw_dtype dtype;          ///< element type
    const rw_layout *layout; ///< shape and strides
} rw_operand_desc;

/** One call of an op, as its check, cost, draws and workspace functions see it. */
typedef struct rw_op_call {
    const rw_op_def *op; ///< the op
    const void *attrs; ///< the op's attributes, attrs_size bytes
    int n_inputs;  ///< number of inputs
    int n_outputs; ///< number of outputs; the check may change it if op->n_outputs is RW_OP_VARIADIC
    const rw_operand_desc *in; ///< the inputs
    rw_operand_desc *out; ///< set by the check through rw_op_output...()
    rw_device kind; ///< the context's device
    int threads;    ///< CPU threads that the kernel may use
    void *device;   ///< private state of the device, as in rw_kernel
    rw_context *ctx; ///< the context of the tape
    void *state_; ///< private
} rw_op_call;

/** Sets output i to this type (dtype) and shape, in a new dense buffer. @return RW_OK, or the error of the call. */
RW_API rw_status rw_op_output(rw_op_call *call, int i, rw_dtype dtype, rw_shape shape);

/** Gives output i the type and shape of input j, in a new dense buffer. The fastest of the three. @return RW_OK, or the
    error of the call. */
RW_API rw_status rw_op_output_like(rw_op_call *call, int i, int j);

/**
 * Makes output i of an RW_OP_VIEW op a view of input 0's buffer.
 * @param shape, stride, offset in elements, relative to the buffer: add input 0's own layout->offset. Strides are 0 or
 *        more. A view that extends outside of the buffer is RW_ERR_SHAPE. stride may be NULL if the rank is 0.
 * @return RW_OK, or the error of the call
 */
RW_API rw_status rw_op_output_view(rw_op_call *call, int i, rw_shape shape, const int64_t *stride, int64_t offset);

/** Refuses, by rw_op_error(), a shape among an op's attributes that no tensor can have. @return RW_OK, or the error of
    the call. */
RW_API rw_status rw_op_check_shape(rw_op_call *call, rw_shape shape);

/** Returns the bytes of all operands, each read or written once: rw_op_cost.bytes of most ops, and of one without a
    cost function. */
RW_API double rw_op_operand_bytes(const rw_op_call *call);

/** Returns the shape of a layout. */
RW_API rw_shape rw_layout_shape(const rw_layout *layout);

/**
 * Refuses the call. The library adds the op's name, the types and shapes of the inputs and the caller's file and line
 * to the text, which should read `argument: expected X, got Y`. Returns status, so a check can end with
 * `return rw_op_error(...)`.
 */
RW_API rw_status rw_op_error(rw_op_call *call, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/**
 * The random state of a node, fixed when it is recorded. A replay has the ticket of the node that it repeats. The four
 * words of block b are Philox4x32-10 of the counter { b, b >> 32, 0, 0 } with the key { seed, seed >> 32 }, each of 32
 * bits.
 */
typedef struct rw_ticket {
    uint64_t seed;   ///< Philox key
    uint64_t offset; ///< first block; element i of the op draws word i % 4 of block offset + i / 4
} rw_ticket;

/** One operand of a running kernel. data is the address of the first element, with the layout's offset added. */
typedef struct rw_view {
    void *data;              ///< first element
    const rw_layout *layout; ///< shape and strides
    rw_dtype dtype;          ///< element type
} rw_view;

/** Arguments of a running kernel: everything that it may read. Its threads round to nearest and keep subnormal numbers,
    whatever the mode of the calling thread. */
typedef struct rw_kernel {
    const rw_op_def *op; ///< the op
    const void *attrs;   ///< the op's attributes
    const rw_view *in;   ///< the inputs
    const rw_view *out; ///< new outputs are dense and 256-byte aligned; their contents are undefined
    int n_inputs;    ///< number of inputs
    int n_outputs;   ///< number of outputs
    int threads;     ///< CPU threads to use; 1 if the op's cost is small; no bit may depend on it
    uint32_t serial; ///< index of this action in the plan; for messages
    rw_ticket ticket; ///< random ops only
    void *workspace; ///< workspace_bytes as returned by op->workspace, 256-byte aligned; NULL if 0
    size_t workspace_bytes; ///< size of the workspace
    void *stream; ///< on CUDA the cudaStream_t on which all work must be queued; NULL on a CPU
    /** CUDA: a number in device memory that the kernel adds to ticket.offset. CPU: NULL, it is already added. */
    const uint64_t *ticket_base;
    void *device; ///< private state of the device
    void *words_; ///< private
} rw_kernel;

/** True if input i exists. False if the call has fewer inputs, or if it is an optional one that is absent. */
static inline bool rw_kernel_has(const rw_kernel *k, int i)
{
    return i < k->n_inputs && k->in[i].data != NULL;
}

/** Work of thread `thread` of `threads` in a parallel kernel; `of` is the argument of rw_kernel_parallel(). */
typedef void (*rw_kernel_job)(void *of, int thread, int threads);

/**
 * Runs a job in the threads of a running CPU kernel, k->threads of them, and returns when all have finished. The
 * calling thread is thread 0. All threads start in the default floating-point mode, as the kernel does, and see what
 * the kernel wrote before the call.
 *
 * The job gets fewer threads inside another job, or in a thread that the kernel started itself, so it must divide its
 * work by the number that it is given. No bit of an output may depend on that number. A job must not wait for another
 * thread of the same job.
 *
 * The call costs about 1 us if the threads have just computed, and some tens of us if they sleep. A kernel may also use
 * OpenMP or threads of its own; their floating-point mode is not set by the library.
 *
 * @param k    the kernel's argument. In a CUDA kernel the job runs on the host, in the calling thread only.
 * @param of   passed to the job; owned by the caller.
 */
RW_API void rw_kernel_parallel(const rw_kernel *k, rw_kernel_job job, void *of);

/**
 * A kernel: computes all elements of all outputs. On CUDA it queues the work on k->stream and neither allocates nor
 * waits, so that the step can be captured as a graph.
 *
 * It must not change or execute anything in its own context: such a call is refused, and the step fails with
 * RW_ERR_ARGUMENT. The end of this header lists legal calls and the floating-point mode.
 * @return RW_OK; RW_ERR_MEMORY; RW_ERR_DEVICE; RW_ERR_UNSUPPORTED; RW_ERR_ARGUMENT for an input value out of range. Any
 *         other number is reported as RW_ERR_ARGUMENT, with the number in the message. After a failure the whole step
 *         fails.
 */
typedef rw_status (*rw_kernel_fn)(const rw_kernel *k);

/** Arguments of a gradient rule. */
typedef struct rw_grad_call rw_grad_call;

/** Properties of an op. */
typedef enum rw_op_flags {
    RW_OP_VIEW = 1 << 0,             ///< has no kernel: outputs are views of input 0's buffer
    RW_OP_RANDOM = 1 << 1,           ///< draws random numbers: gets a ticket
    RW_OP_STATEFUL = 1 << 2,         ///< has an effect outside of its outputs: runs once per step, is never replayed
    RW_OP_NONDETERMINISTIC = 1 << 3, ///< may give different bytes from the same inputs: outputs are kept
    RW_OP_NO_GRADIENT = 1 << 4,      ///< outputs have no gradient, by definition (argmax, comparison)
    /** Writes parameters or buffers, which are its last n_outputs inputs. Output i has the memory, type and shape of
        input n_inputs - n_outputs + i. It runs once, at the end of the step, so all other ops read the old contents.
        Everything it writes counts as changed. If a custom commit fails, all buffers are restored to their contents
        before the step, from copies of what it and earlier commits write. Its outputs cannot be read or used as
        operands: read the buffers. A graph with rw_record_update_inside() refuses custom commits. Requires
        RW_OP_STATEFUL and RW_OP_NO_GRADIENT. */
    RW_OP_COMMIT = 1 << 5,
    RW_OP_CODES = 1 << 6 ///< operands may have storage types, rw_dtype_is_code(); views do not need this flag
} rw_op_flags;

#define RW_OP_VARIADIC (-1) ///< n_inputs or n_outputs of an op that takes any number
/** Sets of inputs, such as `strided` and `optional`: bit i is input i; bit 31 is input 31 and all later ones. */
#define RW_OP_INPUT(i) (1u << ((i) < 31 ? (i) : 31))
#define RW_OP_ALL_INPUTS 0xffffffffu ///< the set of all inputs

/** True if input i is in such a set. */
static inline bool rw_op_set_has(uint32_t set, int i)
{
    return set & RW_OP_INPUT(i);
}

/**
 * Allows in-place execution: `output` may use the memory of `input` if no other op needs the input's contents any more.
 * The kernel then gets one address for both. A list ends with RW_INPLACE_END; in C:
 *
 *     .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 })    output 0 over input 0 or over input 1
 *
 * Both must be dense and have the same number of elements of the same size. An output takes at most one input. If one
 * value is passed as several inputs, they count as one.
 */
typedef struct rw_inplace {
    uint16_t output, input; ///< indexes
} rw_inplace;
/** The last element of a list of rw_inplace. */
#define RW_INPLACE_END { UINT16_MAX, UINT16_MAX }
/** A list of rw_inplace with its end. */
#define RW_INPLACE(...) ((const rw_inplace[]){ __VA_ARGS__, RW_INPLACE_END })

/** Arithmetic and memory traffic of one node. */
typedef struct rw_op_cost {
    double flops; ///< floating-point operations
    double bytes; ///< bytes read and written
    /** The part of flops that every method needs for matrix products, convolutions and attention: the model FLOPs of
        rw_cost and rw_monitor. 0 for other ops. */
    double model_flops;
} rw_op_cost;

/** The definition of an op: static data that outlives every context in which it is used. Unset members mean "none". */
struct rw_op_def {
    /** [a-z0-9_], not that of a built-in op. Used by ops: policies and in messages, which do not tell two ops of one
        name apart. */
    const char *name;
    int n_inputs;     ///< or RW_OP_VARIADIC
    int n_outputs;    ///< at least 1, or RW_OP_VARIADIC
    uint32_t flags;   ///< rw_op_flags
    uint32_t strided; ///< inputs that the kernel accepts in any layout; others are first copied to a dense buffer
    const rw_inplace *inplace; ///< outputs that may be computed in place; NULL: none

    /** Inputs that may be absent when the node runs: k->in[i].data is then NULL, and the kernel computes the op without
        them. A set as `strided`. For addends of gradients, see rw_grad_accumulator(). */
    uint32_t optional;

    /** Checks types, shapes and attributes and sets each output. Required. Must not keep pointers. */
    rw_status (*check)(rw_op_call *call);
    /** Kernels by device. NULL: recording the op on that device is RW_ERR_UNSUPPORTED. Not used for views. The entry of
        RW_DEVICE_AUTO is private. */
    rw_kernel_fn kernel[RW_DEVICE_COUNT];
    /** Gradient rule: records the ops that compute gradients of the inputs, and sets at least one gradient.
        NULL: backward through the op is RW_ERR_NO_GRADIENT. */
    rw_status (*grad)(rw_grad_call *g);
    /** Cost of a call. NULL: no arithmetic, every operand read or written once. */
    rw_op_cost (*cost)(const rw_op_call *call);
    /** Number of random elements drawn, 0 to 2^60. NULL: the number of elements of output 0. */
    int64_t (*draws)(const rw_op_call *call);
    /** Bytes of workspace by device, a function of the call only. NULL: 0. SIZE_MAX: a library is out of memory; the
        step is planned again next time. A step with more than 2^61 bytes of values and workspaces is RW_ERR_MEMORY. */
    size_t (*workspace[RW_DEVICE_COUNT])(const rw_op_call *call);
    /**
     * Recomputes one output from the others, for an op whose last part is cheap. It records one op that computes
     * exactly the bytes of output i from inputs and other outputs of this op, and returns the result. Backward then
     * executes that op instead of this one if everything it reads is available. It returns NULL, with nothing recorded,
     * if output i can only be recomputed by the op itself. A NULL callback means this holds for all outputs.
     *
     * The recorded op has one output of output i's type and shape, and can be executed any number of times; otherwise
     * planning a step is RW_ERR_ARGUMENT. A random one draws the same numbers as this op. If one of its inputs would
     * need a dense copy first, it is not used.
     *
     * @param call  as in the check: types, layouts, attributes, device. Valid until something is recorded.
     * @param in    call->n_inputs tensors; the outputs are out[0] to out[call->n_outputs - 1].
     */
    rw_tensor *(*recompute_output)(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in,
                                   rw_tensor *const *out);

    /** Casts inside a precision recipe (rewind/precision.h): sets of inputs, as `strided`. Floating-point inputs in a
        set are cast, except float64; other inputs are not. cast_low: to the recipe's type, for factors of products.
        cast_f32: to float32, for values that are summed. cast_widest: to the widest type among them. */
    uint32_t cast_low, cast_f32, cast_widest;

    /** The number of leading inputs that are the parts of a value which the op reads in its place, 0 for none. The
        gradient rule sends the gradient to that value (rw_grad_set_whole()), and not to the parts. *ret_whole is its
        rw_tensor_number(), which the attributes hold; it was recorded before the op. Depends on the attributes alone.
        NULL: 0. See rewind/fusion.h. */
    int (*parts)(const void *attrs, int64_t *ret_whole);

    /** The number of the input, not 0, that is the bias of a linear layer: output 0 is a matrix product plus it, and
        its gradient the sum of the columns of output 0's. 0: none. See rewind/fusion.h. */
    int bias;

    /** Bytes at the beginning of the attributes that hold addresses. They differ from process to process, so that
        measured costs are found without them. A multiple of 8; 0: none. */
    size_t address_bytes;

    /** Private: a kernel that computes this op together with one that follows it. NULL: none. */
    const struct rw_fused_pair *fused;
};

/** True if the op may write an output over an input. */
static inline bool rw_op_writes_over(const rw_op_def *op, int output, int input)
{
    for (const rw_inplace *p = op->inplace; p && p->output != UINT16_MAX; p++)
        if (p->output == output && p->input == input) return true;
    return false;
}

/**
 * Records a node.
 * @param op         validated when the context first uses it: name, numbers of operands, flags, lists, check, and a
 *                   kernel for the context's device. A message names the field that is invalid.
 * @param in         n inputs, as many as op->n_inputs; 0 to RW_OP_MAX_OPERANDS for RW_OP_VARIADIC. If one is NULL, the
 *                   result is NULL, and this is an error unless there already is one. In a gradient rule it is not an
 *                   error, so a rule need not check the results of its ops.
 * @param attrs      attrs_size bytes, copied. Pointers in it must stay valid until the tape is reset.
 *                   Use structs without padding, because plans are cached by these bytes.
 * @param ret_outs   receives the outputs, as many as op->n_outputs or, for RW_OP_VARIADIC, as the check set; may be
 *                   NULL.
 * @return output 0, owned by the tape; NULL on an error, which is sticky.
 */
RW_API rw_tensor *rw_apply_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, size_t n,
                              const void *attrs, size_t attrs_size, rw_tensor **ret_outs);
#define rw_apply(...) rw_apply_at(RW_HERE, __VA_ARGS__)

/**
 * Returns a definition that is valid as long as the tape's context, for one that is made at run time: a copy of *def
 * with a copy of its name. Equal definitions get the same copy, so that steps find their plans. What def points to
 * beside the name is not copied, and must outlive the context.
 * @param t   a tape of the context in which the op is recorded
 * @param def copied; validated when the op is first recorded
 * @return owned by the context; NULL on an error, which is sticky
 */
RW_API const rw_op_def *rw_op_define(rw_tape *t, const rw_op_def *def);

/** Returns the layout of x in its buffer; NULL for rw_none(). */
RW_API const rw_layout *rw_tensor_layout(const rw_tensor *x);

/** Returns the tensor that owns the buffer of a view; x itself if it is not a view, and for any parameter, buffer or
    gradient. NULL for NULL and for a stale tensor. */
RW_API rw_tensor *rw_tensor_base(rw_tensor *x);

/** Kind of a tensor, which tells who owns its memory. */
typedef enum rw_tensor_kind {
    RW_TENSOR_VALUE,    ///< value of a tape: an input or the result of an op
    RW_TENSOR_PARAM,    ///< rw_param()
    RW_TENSOR_BUFFER,   ///< rw_buffer(), rw_weight_average_of()
    RW_TENSOR_GRADIENT, ///< rw_gradient()
    RW_TENSOR_NONE      ///< rw_none(), NULL, or a stale tensor
} rw_tensor_kind;

/** Returns the kind of x; RW_TENSOR_NONE for NULL. */
RW_API rw_tensor_kind rw_tensor_kind_of(const rw_tensor *x);

/**
 * Returns x as an operand on the tape, for functions that record ops, such as those in rewind/ops.h. A value of the
 * tape is returned itself; for a parameter, buffer or gradient of the context, its value on this tape. NULL for a
 * tensor of another tape or context, with an error that names `what` and the caller's line.
 * @param at the caller's line: RW_HERE in the macro by which the function is called
 */
RW_API rw_tensor *rw_operand_at(rw_site at, rw_tape *t, rw_tensor *x, const char *what);

/**
 * Reports an error before anything is recorded; it is sticky like the library's own errors. Returns status.
 * @param at as for rw_operand_at()
 */
RW_API rw_status rw_refuse_at(rw_site at, rw_tape *t, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Functions for gradient rules. A rule records ordinary ops on rw_grad_tape(g), with rw_apply() or functions that call
 * it. These ops have the call site and region of the op that is differentiated. A random one has its ticket, so it
 * draws the same numbers.
 *
 * Restrictions:
 *   - The recorded ops are kept with the plan and reused in later steps. So a rule may depend only on what the
 *     functions below return, and it may draw numbers only if its op does; otherwise RW_ERR_ARGUMENT.
 *   - It may not reset or destroy the tape (RW_ERR_ARGUMENT), nor nest rules through rw_grad() more than nine deep.
 *   - It ends the regions, policies and recipes that it begins; otherwise backward is RW_ERR_REGION and names the op.
 */

/** Returns the tape on which the rule records. */
RW_API rw_tape *rw_grad_tape(const rw_grad_call *g);
/** Returns the op's attributes. */
RW_API const void *rw_grad_attrs(const rw_grad_call *g);
/** Returns the number of inputs. */
RW_API int rw_grad_n_inputs(const rw_grad_call *g);
/** Returns the number of outputs. */
RW_API int rw_grad_n_outputs(const rw_grad_call *g);
/**
 * Returns input i, a forward value. Only values that the recorded ops read are kept for backward; querying a shape or
 * type costs nothing.
 */
RW_API rw_tensor *rw_grad_input(const rw_grad_call *g, int i);
/** Returns output i, otherwise as rw_grad_input(). */
RW_API rw_tensor *rw_grad_output(const rw_grad_call *g, int i);
/** Returns the gradient of output i; NULL if no gradient flows into it. At least one output has a gradient. */
RW_API rw_tensor *rw_grad_upstream(const rw_grad_call *g, int i);
/** True if the gradient of input i is needed; in rw_grad(), for one of the requested gradients. Rules skip the rest. */
RW_API bool rw_grad_wanted(const rw_grad_call *g, int i);
/** Returns the type in which the gradient of input i is summed: the input's, or float32 for a 16-bit parameter. */
RW_API rw_dtype rw_grad_dtype(const rw_grad_call *g, int i);
/** Sets the gradient of input i, which has the input's shape and the type of the input or rw_grad_dtype(). dx may be
    NULL after a failed op, so a rule need not check. @return RW_OK or the error, which is sticky. */
RW_API rw_status rw_grad_set(rw_grad_call *g, int i, rw_tensor *dx);
/**
 * Returns the addend: the sum so far of the gradient of input i, for a rule whose op can add to it at no cost:
 *
 *     rw_tensor *const sum = rw_grad_accumulator(g, 0);
 *     return rw_grad_set_sum(g, 0, sum ? multiply_add(t, sum, dy, x) : multiply(t, dy, x));
 *
 * The sum of a parameter starts with the contents of its gradient. While the gradient is clear, an op with that input
 * in `optional` gets it as absent, any other op gets zeros. If one value is passed as several inputs, contributions of
 * the others are part of the sum once they are set. An op that writes over the sum (`inplace`) saves a second buffer
 * for a parameter's gradient. A rule need not use addends: the library then adds.
 * @return a tensor of the input's shape and type, in any layout. NULL if there is no sum yet, if the sum has a wider
 *         type, if the gradient is not needed, or while the sum has been returned for another input with the same
 *         value.
 */
RW_API rw_tensor *rw_grad_accumulator(rw_grad_call *g, int i);
/** Returns the addend as rw_grad_accumulator(), for an op that can also add 16-bit values to a float32 sum: the result
    has rw_grad_dtype(g, i). It is never NULL if that type is wider than the input's. */
RW_API rw_tensor *rw_grad_wide_addend(rw_grad_call *g, int i);
/** Sets `sum`, the result of adding the gradient of input i to rw_grad_accumulator(g, i) or rw_grad_wide_addend(g, i);
    the gradient alone if that was NULL. @return RW_OK or the error, which is sticky. */
RW_API rw_status rw_grad_set_sum(rw_grad_call *g, int i, rw_tensor *sum);
/**
 * Records sum + term, in the memory of either at its last use: how the library adds contributions to a gradient.
 * @param sum  of any floating-point type
 * @param term of the same shape, and of the same type or, for a float32 sum, of a 16-bit type
 * @return the sum, of the type of `sum`, owned by the tape; NULL on an error, which is sticky
 */
RW_API rw_tensor *rw_accumulate_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term);
#define rw_accumulate(...) rw_accumulate_at(RW_HERE, __VA_ARGS__)
/**
 * True inside rw_grad(), whose result may be differentiated again. A rule with a fused backward op that has no gradient
 * rule should then record ops that have one. A fused op computes 16-bit operands in float32; the other ops should do
 * so, too, with rw_cast() before the first and after the last.
 */
RW_API bool rw_grad_is_differentiable(const rw_grad_call *g);

#ifdef __cplusplus
}
#endif

/*
 * Calls that an op's functions may make
 *
 * A kernel must not change its own context or execute anything in it. Such a call is refused: it returns
 * RW_ERR_ARGUMENT, NULL, NaN or nothing, an error names the call, and the step fails with RW_ERR_ARGUMENT whatever the
 * kernel returns. The same holds for check, cost, draws and workspace functions. A gradient rule and recompute_output
 * may also record ops. Calls in other contexts are unrestricted. Functions that are legal everywhere, in addition to
 * rw_op_...() in a check and rw_grad_...() in a rule:
 *
 *     any thread, no context   rw_status_name, rw_dtype_size, rw_dtype_name, rw_dtype_is_float, rw_dtype_is_code,
 *                              rw_device_name, rw_device_check, rw_shape_numel, rw_shape_equal, rw_layout_shape,
 *                              rw_recovery_name, rw_alert_name, ckpt_cause_name, rw_lr_schedule_rate, rw_moe_capacity,
 *                              rw_quantized_bytes, rw_context_create, rw_nonfinite_print, ckpt_report_print,
 *                              rw_version, rw_record_clip, rw_record_scaler, rw_record_update,
 *                              rw_record_update_inside, rw_record_delayed_scaling, rw_record_custom
 *     a context                rw_error_message, rw_error_status, rw_context_device, rw_context_stream,
 *                              rw_context_threads, rw_context_dropped_effects, rw_generator_get, rw_param_get,
 *                              rw_param_find, rw_costs_count
 *     a tape                   rw_tape_context, rw_tape_nodes, rw_tape_pending_effects, ckpt_policy,
 *                              ckpt_unmatched_names, rw_recipe_low_dtype, rw_recipe_fp8
 *     a tensor                 rw_tensor_name, rw_tensor_shape, rw_tensor_dtype, rw_tensor_bytes, rw_tensor_layout,
 *                              rw_tensor_base, rw_tensor_kind_of, rw_tensor_requires_grad, rw_tensor_producer,
 *                              rw_tensor_producer_input, rw_tensor_is_named_or_marked, rw_tensor_number
 *     other objects            rw_weight_average_of, rw_delayed_scaling_row, rw_monitor_policy, rw_monitor_get_numbers,
 *                              rw_monitor_get_site, rw_monitor_get_group, rw_monitor_get_alert
 *     a kernel                 rw_kernel_parallel
 *
 * Floating-point mode
 *
 * All functions of an op run in the default mode: rounding to nearest, subnormal numbers kept, all exceptions masked,
 * whatever the mode of the program's threads. A function may change the mode; it is reset when the function returns.
 */

#endif
