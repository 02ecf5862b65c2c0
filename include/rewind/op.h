/**
 * rewind/op.h - what an op is.
 *
 * An op is one rw_op_def: a shape check, a kernel per device, a gradient rule, a cost, and what hidden state it may
 * depend on. Built-in ops use this structure and nothing else, so a caller's op takes part in regions, planning,
 * placement and verification like any other.
 *
 * The one law a kernel must keep: the bytes it writes depend only on its inputs' bytes, its attributes and its ticket;
 * not on addresses, thread count, or what ran before. An op that cannot keep it says RW_OP_NONDETERMINISTIC, and its
 * outputs are then kept, never replayed.
 */
#ifndef REWIND_OP_H
#define REWIND_OP_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_op_def rw_op_def;

/** Most operands of one node, inputs and outputs together. */
#define RW_OP_MAX_OPERANDS 65534

/**
 * How a value lies in its buffer. Interned: two equal layouts of a context are the same pointer. Immutable, lives as
 * long as the context. Element (i0, i1, ...) is at data + sum(i * stride), in elements.
 */
typedef struct rw_layout {
    int64_t numel;              ///< product of dim
    int64_t offset;             ///< of the first element in the buffer that a view looks into; data is moved by it
    int64_t span;               ///< 1 + index of the last element reached, counted from the first; 0 when numel is 0
    int32_t rank;
    uint32_t id;                ///< place in the context's table
    bool dense;                 ///< row-major without gaps
    int64_t dim[RW_MAX_RANK];
    int64_t stride[RW_MAX_RANK]; ///< 0 along a broadcast axis
} rw_layout;

/** Type and layout of one operand. */
typedef struct rw_desc {
    rw_dtype dtype;
    const rw_layout *layout;
} rw_desc;

/** What the shape check, cost, draw and workspace functions see. */
typedef struct rw_op_call {
    const rw_op_def *op;
    const void *attrs; ///< the op's attributes, attrs_size bytes
    int n_inputs;
    int n_outputs; ///< the check may lower or raise it when op->n_outputs is RW_OP_VARIADIC
    const rw_desc *in;
    rw_desc *out; ///< filled by the check through rw_op_output*()
    rw_device kind; ///< of the context: what the kernel will run on
    int threads;    ///< CPU threads that the kernel may use
    void *device;   ///< the device's private state, as in rw_kernel
    rw_context *ctx;
    void *state_; ///< private
} rw_op_call;

/** Sets the type and shape of output i: a fresh dense buffer. */
RW_API rw_status rw_op_output(rw_op_call *call, int i, rw_dtype dtype, rw_shape shape);

/** Output i gets the type of input j and its shape, dense. The cheapest of the three. */
RW_API rw_status rw_op_output_like(rw_op_call *call, int i, int j);

/**
 * Output i of an RW_OP_VIEW looks into input 0's buffer.
 * @param shape, stride, offset in elements, relative to the buffer (add input 0's own layout->offset). Strides are 0 or
 *        more; a view that reaches outside of the buffer is RW_ERR_SHAPE.
 */
RW_API rw_status rw_op_output_view(rw_op_call *call, int i, rw_shape shape, const int64_t *stride, int64_t offset);

/** The shape of a layout. */
RW_API rw_shape rw_layout_shape(const rw_layout *layout);

/**
 * Refuses the call. The library puts the op's name, the inputs' types and shapes and the caller's file and line around
 * the text. Returns status, so that a check can end with `return rw_op_error(...)`.
 */
RW_API rw_status rw_op_error(rw_op_call *call, rw_status status, const char *fmt, ...) RW_PRINTF(3, 4);

/**
 * The hidden state of a random node, taken when it was recorded. A replay carries the ticket of what it repeats. The
 * four words of block b are Philox4x32-10 of the counter { b, b >> 32, 0, 0 } under the key { seed, seed >> 32 }, each
 * of 32 bits.
 */
typedef struct rw_ticket {
    uint64_t seed;   ///< Philox key
    uint64_t offset; ///< first block; element i of the op draws word i % 4 of block offset + i / 4
} rw_ticket;

/** One operand of a running kernel. data points at the first element (the layout's offset is already added). */
typedef struct rw_view {
    void *data;
    const rw_layout *layout;
    rw_dtype dtype;
} rw_view;

/** A running node. Everything a kernel may read. Its threads round to nearest, with subnormal numbers, whatever the
    caller's do. */
typedef struct rw_kernel {
    const rw_op_def *op;
    const void *attrs;
    const rw_view *in;
    const rw_view *out; ///< fresh outputs are dense and 256-byte aligned; their bytes are undefined before
    int n_inputs;
    int n_outputs;
    int threads;     ///< CPU threads to use, 1 where the op's cost function says little; no bit may depend on it
    uint32_t serial; ///< which step of the plan this is; for messages
    rw_ticket ticket; ///< of a random op
    void *workspace; ///< what op->workspace asked for, 256-byte aligned; NULL when 0
    size_t workspace_bytes;
    void *stream; ///< on CUDA the cudaStream_t that everything has to be queued on; NULL on a CPU
    /** On CUDA, in device memory: to be added to ticket.offset when the kernel runs. NULL on a CPU: it has been. */
    const uint64_t *ticket_base;
    void *device; ///< the device's private state
    void *words_; ///< private
} rw_kernel;

/** Is input i there? False for one that the op has fewer than, and for an optional one that is absent. */
static inline bool rw_kernel_has(const rw_kernel *k, int i)
{
    return i < k->n_inputs && k->in[i].data != NULL;
}

/**
 * Computes all elements of all outputs. On CUDA it queues that on k->stream and neither allocates nor waits, so that
 * the step can be captured as a graph. A failure is RW_ERR_MEMORY, RW_ERR_DEVICE, RW_ERR_UNSUPPORTED, or, for a value
 * in its inputs that is out of range, RW_ERR_ARGUMENT; anything else becomes that too, with a message that says which
 * number it returned. The step then fails whole.
 * It calls nothing of its own context: what records, runs, resets or destroys there is refused, and the step is
 * RW_ERR_ARGUMENT. Other contexts are as free as ever.
 */
typedef rw_status (*rw_kernel_fn)(const rw_kernel *k);

/** A gradient rule at work. */
typedef struct rw_grad_call rw_grad_call;

typedef enum rw_op_flags {
    RW_OP_VIEW = 1 << 0,             ///< no kernel: outputs look into input 0's buffer
    RW_OP_RANDOM = 1 << 1,           ///< draws numbers: gets a ticket
    RW_OP_STATEFUL = 1 << 2,         ///< has an effect outside its outputs: runs once a step, is never replayed
    RW_OP_NONDETERMINISTIC = 1 << 3, ///< may give other bytes from the same inputs: outputs are kept
    RW_OP_NO_GRADIENT = 1 << 4,      ///< outputs carry no gradient, on purpose (argmax, comparison)
    /** Writes parameters or buffers: its last n_outputs inputs. Output i is the memory of input n_inputs - n_outputs +
        i and has its type and shape. It runs once, when the step ends: everybody else reads what was there before. All
        that it writes counts as changed. Where a caller's commit fails, all buffers are as they were before the step:
        what it and the commits recorded before it write is copied first. A graph that updates
        parameters inside backward takes no caller's commit. Its outputs are no values to read or to compute from: read
        the buffers. Goes with RW_OP_STATEFUL and RW_OP_NO_GRADIENT. */
    RW_OP_COMMIT = 1 << 5,
    RW_OP_CODES = 1 << 6 ///< operands may be of types for storage alone, rw_dtype_is_code(); views need not say so
} rw_op_flags;

#define RW_OP_VARIADIC (-1)
/** For strided and optional: bit i stands for input i, bit 31 for input 31 and all behind it. */
#define RW_OP_INPUT(i) (1u << ((i) < 31 ? (i) : 31))
#define RW_OP_ALL_INPUTS 0xffffffffu

/** Is input i in such a set? */
static inline bool rw_op_set_has(uint32_t set, int i)
{
    return set & RW_OP_INPUT(i);
}

/**
 * One output that may take the memory of one input when nobody else needs what that holds: the kernel then finds both
 * at one address. A list of them ends with RW_INPLACE_END; in C:
 *
 *     .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 })    output 0 over input 0 or over input 1
 *
 * It is done where both have as many elements of as many bytes each, and are dense; an output takes one input at most,
 * and several inputs that are one value count as one.
 */
typedef struct rw_inplace {
    uint16_t output, input;
} rw_inplace;
#define RW_INPLACE_END { UINT16_MAX, UINT16_MAX }
#define RW_INPLACE(...) ((const rw_inplace[]){ __VA_ARGS__, RW_INPLACE_END })

/** Arithmetic and traffic of one node. */
typedef struct rw_op_cost {
    double flops;
    double bytes; ///< read and written
} rw_op_cost;

/** The definition of an op: static data that outlives every context it is used in. Unset members mean "none". */
struct rw_op_def {
    const char *name; ///< unique, [a-z0-9_], not a built-in op's; what ops: policies and messages call it
    int n_inputs;     ///< or RW_OP_VARIADIC
    int n_outputs;    ///< 1 at least, or RW_OP_VARIADIC
    uint32_t flags;   ///< rw_op_flags
    uint32_t strided; ///< inputs that the kernel takes with any layout; the others are made dense before
    const rw_inplace *inplace; ///< which outputs may take the memory of which inputs; NULL: none

    /** Inputs (as for strided) that may be absent when the node runs: k->in[i].data is then NULL, and the kernel
        computes what the op computes without them. For what a gradient adds to: see rw_grad_addend(). */
    uint32_t optional;

    /** Checks types, shapes and attributes; names each output. Required. May not keep pointers. */
    rw_status (*check)(rw_op_call *call);
    /** Kernels by device; NULL where the op cannot run: recording it there is RW_ERR_UNSUPPORTED. Not used for views.
        That of RW_DEVICE_AUTO is private. */
    rw_kernel_fn kernel[RW_DEVICE_COUNT];
    /** Emits the ops that compute the inputs' gradients, and sets one at least.
        NULL: backward through the op is RW_ERR_NO_GRADIENT. */
    rw_status (*grad)(rw_grad_call *g);
    /** NULL: no arithmetic, every operand read or written once. */
    rw_op_cost (*cost)(const rw_op_call *call);
    /** Random elements drawn; NULL: the elements of output 0. */
    int64_t (*draws)(const rw_op_call *call);
    /** Bytes of workspace by device, a function of the call alone. NULL: 0. SIZE_MAX: out of memory while asking a
        library; the plan is then not made, and asked for again the next time. */
    size_t (*workspace[RW_DEVICE_COUNT])(const rw_op_call *call);
    /**
     * For an op whose last part is cheap: records one op that makes output i anew, the very same bytes, from inputs of
     * this one and from its other outputs, and returns what that makes. Backward then runs it in place of this op
     * wherever what it reads is there. NULL, with nothing recorded: this op alone makes the output. NULL: so it is of
     * all outputs.
     *
     * @param call  what the check has seen: types, layouts, attributes, device. Good until something is recorded.
     * @param in    call->n_inputs tensors; the other outputs are out[0] to out[call->n_outputs - 1].
     *
     * An op that draws makes the same numbers as this one did. What is recorded has one output, of output i's type and
     * shape, and runs as often as it is asked to; anything else is RW_ERR_ARGUMENT when a step is planned. Where an
     * input would have to be made dense before, there is no such op.
     */
    rw_tensor *(*remake)(rw_tape *t, const rw_op_call *call, int i, rw_tensor *const *in, rw_tensor *const *out);

    /** What a recipe (rewind/precision.h) does, while one is open, with the floating-point inputs of these sets (as for
        strided), but those of float64; an input that is in none is taken as it is. lowered: cast to the recipe's type,
        the factors of products. raised: cast to float32, what is summed. alike: cast to the widest type among them. */
    uint32_t lowered, raised, alike;

    /** Private, for the library's own ops: how many of the first inputs are the parts of a value that the op reads in
        that value's place, 0 for none. The rule sends the gradient to that value, *ret_whole by its number, not to the
        parts. NULL: 0. */
    int (*parts)(const void *attrs, int64_t *ret_whole);
};

/** May an op write an output over an input? */
static inline bool rw_op_writes_over(const rw_op_def *op, int output, int input)
{
    for (const rw_inplace *p = op->inplace; p && p->output != UINT16_MAX; p++)
        if (p->output == output && p->input == input) return true;
    return false;
}

/**
 * Records a node.
 * @param op         looked at when the context first meets it: without a sound name, numbers of operands, flags, lists,
 *                   a check, and a kernel for the context's device it is refused. A message names the field.
 * @param in         n inputs; if any is NULL the result is NULL, an error unless one sticks already. In a gradient rule
 *                   it is none: a rule may go on with what another op did not give it.
 * @param attrs      copied bytewise; may not hold pointers to what dies before the tape is reset. Give structs without
 *                   padding: plans are cached by these bytes.
 * @param ret_outs   receives the outputs (op->n_outputs of them; for RW_OP_VARIADIC what the check set); may be NULL.
 * @return output 0, owned by the tape; NULL on an error, which sticks.
 */
RW_API rw_tensor *rw_apply_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n,
                              const void *attrs, size_t attrs_size, rw_tensor **ret_outs);
#define rw_apply(...) rw_apply_at(RW_HERE, __VA_ARGS__)

/** How a tensor lies in the buffer that it looks into; NULL for rw_none(). */
RW_API const rw_layout *rw_tensor_layout(const rw_tensor *x);

/** The tensor that owns the buffer: x itself unless x is a view, and for a parameter, buffer or gradient always x. NULL
    for NULL, and for a tensor that no longer is. */
RW_API rw_tensor *rw_tensor_base(rw_tensor *x);

/** Whose memory a tensor is. */
typedef enum rw_tensor_kind {
    RW_TENSOR_VALUE,    ///< of a tape: an input or the result of an op
    RW_TENSOR_PARAM,    ///< rw_param()
    RW_TENSOR_BUFFER,   ///< rw_buffer(), rw_average_of()
    RW_TENSOR_GRADIENT, ///< rw_gradient()
    RW_TENSOR_NONE      ///< rw_none(), NULL, or a tensor that no longer is
} rw_tensor_kind;
RW_API rw_tensor_kind rw_tensor_kind_of(const rw_tensor *x);

/**
 * For functions that record an op, like those in rewind/ops.h: x as the tape's ops see it. A value of the tape is
 * itself, a parameter, buffer or its gradient the value that stands for it. NULL for another tape's or context's, with
 * an error that names `what` and the caller's line.
 */
RW_API rw_tensor *rw_operand_at(rw_site at, rw_tape *t, rw_tensor *x, const char *what);

/** Refuses a call before anything is recorded: the error sticks as the library's own do. Returns status. */
RW_API rw_status rw_refuse_at(rw_site at, rw_tape *t, rw_status status, const char *fmt, ...) RW_PRINTF(4, 5);

/**
 * Inside a gradient rule. A rule records ordinary ops on rw_grad_tape(g), with rw_apply() or the functions that wrap
 * it. They carry the call site and region of the op they differentiate, and a random one its ticket: the same mask is
 * drawn again. Where that op draws nothing, neither may its rule, which is RW_ERR_ARGUMENT: what a rule has recorded is
 * kept with the plan, and its numbers would be the same in every step. For the same reason it may look only at what it
 * is given. What no recorded op reads is not kept for backward. A rule may not reset or destroy that tape, which is
 * RW_ERR_ARGUMENT, nor may rules whose rw_grad() calls further rules go more than nine deep.
 * Regions, policies and recipes that it begins it ends: else backward is RW_ERR_REGION, which names the op.
 */
RW_API rw_tape *rw_grad_tape(const rw_grad_call *g);
RW_API const void *rw_grad_attrs(const rw_grad_call *g);
RW_API int rw_grad_n_inputs(const rw_grad_call *g);
RW_API int rw_grad_n_outputs(const rw_grad_call *g);
/**
 * Forward values. What the rule's ops read of them is what backward needs; asking for a shape or type costs nothing.
 */
RW_API rw_tensor *rw_grad_input(const rw_grad_call *g, int i);
RW_API rw_tensor *rw_grad_output(const rw_grad_call *g, int i);
/** The gradient of output i; NULL when nothing flows into it. At least one is not NULL. */
RW_API rw_tensor *rw_grad_upstream(const rw_grad_call *g, int i);
/** True when somebody wants the gradient of input i, in rw_grad() that of what it is asked for. Rules skip what nobody
    wants. */
RW_API bool rw_grad_wanted(const rw_grad_call *g, int i);
/** The type in which the gradient of input i is summed: the input's, or float32 for a parameter of 16 bits. */
RW_API rw_dtype rw_grad_dtype(const rw_grad_call *g, int i);
/** Hands over the gradient of input i: its shape, and its type or rw_grad_dtype(). dx is NULL after a failed op: the
    rule may just go on. */
RW_API rw_status rw_grad_set(rw_grad_call *g, int i, rw_tensor *dx);
/**
 * The sum so far, for a rule whose op can add to it at no cost:
 *
 *     rw_tensor *const sum = rw_grad_addend(g, 0);
 *     return rw_grad_set_sum(g, 0, sum ? multiply_add(t, sum, dy, x) : multiply(t, dy, x));
 *
 * It holds what others have contributed to the gradient of input i. A parameter's sum begins with what its gradient
 * holds; an op that names that input in `optional` finds it absent while the gradient is clear, any other finds zeros.
 * What another input contributed in the same rule is part of the sum once it was handed over. An op that writes over
 * the sum (`inplace`) spares a parameter's gradient a second buffer. A rule that never asks loses nothing: the library
 * adds.
 * @return of the input's shape and type, in any layout; NULL when there is nothing to add to, when the sum is of a
 *         wider type, when nobody wants the gradient, and while another input that is the same value has been given the
 *         sum.
 */
RW_API rw_tensor *rw_grad_addend(rw_grad_call *g, int i);
/** The same for an op that adds what is of 16 bits to a float32 sum too: of rw_grad_dtype(g, i). Where that is wider
    than the input there always is a sum. */
RW_API rw_tensor *rw_grad_wide_addend(rw_grad_call *g, int i);
/** Hands over rw_grad_addend(g, i), or rw_grad_wide_addend(g, i), plus the gradient of input i; the gradient alone
    where that was NULL. */
RW_API rw_status rw_grad_set_sum(rw_grad_call *g, int i, rw_tensor *sum);
/**
 * True under rw_grad(), whose result may be differentiated again: a rule with a fused backward op that has no gradient
 * of its own should then emit ops that have one. Of 16 bits a fused op computes in float32 between its operands and its
 * result; so should these, between rw_cast()s at the head and at the end.
 */
RW_API bool rw_grad_again(const rw_grad_call *g);
#ifdef __cplusplus
}
#endif

#endif
