/*
 * The elements of a tape: nodes, values, regions, leaves, tickets.
 *
 *   value    one output or input of a node. rw_tensor IS the value; callers see only the name of the type.
 *   base     the value that owns the buffer. base(v) == v unless v is a view; a view's base is never a view.
 *   leaf     a value that no node computes: a parameter, a parameter's gradient, or an input.
 *   node     an op with its inputs, outputs, attributes and ticket. Only nodes are executed.
 *   adjoint  a node that differentiation recorded, also if rw_grad() put it on the tape. It belongs to the node that
 *            it differentiates (of), and has its region and call site.
 *   recompute node  a node that planning recorded: it recomputes an output of another node (of). Its output is the
 *            same value.
 *
 * Everything is an index into an array. So a node takes 32 bytes, a value 32, an operand 4, and a plan can be kept for
 * the next step by its indexes alone.
 *
 * Invariants, checked by rw_tape_is_valid():
 *   outputs of a node are consecutive values, and it is their producer unless it is a recompute node;
 *   inputs of node n are computed by nodes < n;
 *   value.producer == RW_NONE_ID  <=>  value.leaf != RW_NONE_ID;
 *   base(base(v)) == base(v);  region intervals nest;
 *   an adjoint node differentiates a node before it;  effects are in the order of their nodes.
 */
#ifndef RW_RECORD_NODE_H
#define RW_RECORD_NODE_H

#include <rewind/op.h>

#define RW_NONE_ID UINT32_MAX

enum rw_value_flag {
    RW_VALUE_CONTEXT = 1 << 0,  /* a parameter, buffer or state: id is its index in the context's by_id */
    RW_VALUE_GRADIENT = 1 << 1, /* the gradient of a parameter, or of a tape value */
    RW_VALUE_REQUIRES = 1 << 2, /* depends on a parameter or a marked input */
    RW_VALUE_RETAIN = 1 << 3,   /* rw_require_grad(): backward publishes its gradient */
    RW_VALUE_SAVE = 1 << 4,     /* ckpt_keep() */
    RW_VALUE_RECOMPUTE = 1 << 5, /* ckpt_recompute() */
    RW_VALUE_GONE = 1 << 6,     /* its tape was destroyed, or the state with id RW_NONE_ID: the owner is the context */
    RW_VALUE_OFFLOAD = 1 << 7   /* ckpt_offload() */
};

struct rw_tensor {
    union {
        rw_tape *tape;
        rw_context *ctx; /* with RW_VALUE_CONTEXT or RW_VALUE_GONE */
    } owner;
    uint32_t id;
    uint32_t layout;   /* in the context's layout table */
    uint32_t producer; /* node, or RW_NONE_ID */
    uint32_t base;
    uint8_t dtype;
    uint8_t flags;
    uint16_t tag;  /* ckpt_name(): index + 1 in the context's names, 0 for none */
    uint32_t leaf; /* index in the tape's leaves, or RW_NONE_ID */
};

struct rw_node {
    uint16_t op : 14; /* in the context's op table */
    uint16_t adjoint : 1;
    uint16_t no_grad : 1; /* recorded in a no-grad scope: outputs have no gradient */
    uint16_t n_inputs;
    uint16_t n_outputs;
    uint16_t attrs_size;
    uint32_t first_input;  /* in operands */
    uint32_t first_output; /* value id */
    uint32_t attrs;        /* offset in the attribute bytes, a multiple of 8 */
    union {
        uint32_t region; /* of a recorded node: RW_NONE_ID outside any. Read it with rw_node_region() */
        uint32_t of;     /* of an adjoint node: what it differentiates; RW_NONE_ID for a node of the whole step */
    };
    uint32_t site;   /* in the context's sites */
    uint32_t ticket; /* index in the tape's tickets, RW_NONE_ID if the op draws nothing */
};
_Static_assert(sizeof(struct rw_node) == 32, "the comment above says so");

#define RW_NODE_MAX_OPS (1 << 14) /* maximum number of ops of a context: node.op has 16 bits */

/* The origin of the nodes to come, which recording stores in each. */
struct rw_origin {
    bool adjoint;    /* false: the caller records; call site and region are the current ones, the rest is unused */
    uint32_t of;     /* as in rw_node */
    uint32_t site;   /* as in rw_node */
    uint32_t ticket; /* ticket that a random op repeats: differentiation draws the same mask; RW_NONE_ID: none */
};

/* A stateful node. Once done, it is not executed any more on this tape. */
struct rw_effect {
    uint32_t node;
    bool done;
};

struct rw_region {
    uint32_t name;   /* in the context's names */
    uint32_t parent; /* RW_NONE_ID for an outermost region */
    uint32_t first;  /* nodes [first, end) were recorded inside; end is RW_NONE_ID while open */
    uint32_t end;
    uint32_t site;
    uint32_t part; /* the innermost part of the tape that was open at its begin; RW_NONE_ID for none */
};

enum rw_leaf_kind {
    RW_LEAF_PARAM,
    RW_LEAF_GRADIENT, /* of a parameter */
    RW_LEAF_INPUT,
    RW_LEAF_SEED /* the gradient with which backward starts at a root, passed at run time */
};

struct rw_leaf {
    uint8_t kind;
    bool ran;         /* a run has read it: a later change is an error */
    bool is_requested; /* a value that the program requested depends on it, so a later write does not undo the read */
    uint8_t gradient_dtype; /* for a trained parameter; else 0 */
    uint32_t value;   /* its value on the tape */
    uint32_t param;   /* of a parameter or its gradient: the ID; of a seed: the root */
    uint32_t version; /* version of the contents on which the tape relies */
    uint32_t written; /* an input's present version */
    uint64_t serial;  /* of a parameter or its gradient; else 0 */
    uint32_t weight;  /* for kept FP8 data that is read: 1 + the leaf of the weight, whose version is checked, too;
                         else 0 */
    void *data;       /* an input's elements, owned by the tape */
    size_t bytes;
};

#endif
