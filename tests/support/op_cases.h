/*
 * One table of ops and shapes for every device and element type: what to record, on which inputs, and how many
 * roundings each result and each gradient may take. accuracy.c runs it; op_magnitudes.c has the magnitudes.
 *
 * Inputs have at most eight significant bits, so that every type holds them and one reference in float64 serves all. A
 * gradient is that of sum(w * y), where w is made like an input.
 */
#ifndef RW_TESTS_OP_CASES_H
#define RW_TESTS_OP_CASES_H

#include "support/compare.h"

#include <rewind/rewind.h>

#define OP_INPUTS 4

/* Layout of a case's operand in the input of which it is a view. */
enum op_layout {
    OP_DENSE,
    OP_TURNED,   /* the last two axes swapped */
    OP_MIDDLE,   /* axes 1 and 2 swapped: [batch, seq, heads, d] seen as [batch, heads, seq, d] */
    OP_SLICED,   /* a slice of a longer last axis, from element 1 on */
    OP_CUT,      /* a slice of a longer first axis */
    OP_EXPANDED, /* the first axis expanded from extent 1 */
    OP_LAYOUTS
};

enum op_range {
    OP_SIGNED,   /* -2 to 2, by 32nds */
    OP_POSITIVE, /* 0.25 to 4.25, by 32nds */
    OP_WIDE,     /* -8 to 8, by 16ths */
    OP_SCORES,   /* -4 to 4, by 16ths */
    OP_TIES      /* -2 to 2, by halves: many are equal */
};

enum op_group {
    OP_POINTWISE,
    OP_PRODUCTS,
    OP_NORMS,
    OP_REDUCTIONS,
    OP_ATTENTION,
    OP_TABLES,
    OP_SHAPES,
    OP_RANDOM,
    OP_GROUPS
};

struct op_operand {
    rw_shape shape; /* of the operand, as the op sees it */
    enum op_layout layout;
    enum op_range range;
};

struct op_case;

/* Records the case on its operands x. NULL on an error. */
typedef rw_tensor *(*op_build)(rw_tape *t, rw_tensor **x, const struct op_case *c);

/*
 * Records in float64 the magnitudes M of the terms: m[0] of the result y, m[1 + i] of the gradient of operand i. The
 * shape of each broadcasts to the operand's. w is the upstream gradient.
 */
typedef void (*op_sizes)(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);

/* M is the case's own result and gradient at |x| and |w|: sums and products whose terms may cancel. */
#define OP_TERMS ((op_sizes)0)
/* M is the case's own result, and its gradient at |w|: no terms cancel. */
void op_values(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);

/* Sets c->r from the operands and the parameters of c: op_roundings.h. */
typedef void (*op_count)(struct op_case *c);

struct op_case {
    char name[96];
    enum op_group group;
    op_build build;
    op_sizes sizes;
    int n; /* operands */
    struct op_operand in[OP_INPUTS];
    struct roundings r[1 + OP_INPUTS]; /* of the result, and of each gradient */
    op_count count;                    /* sets them, if they depend on the shapes */
    /* Read by build. */
    uint32_t axes;
    int axis;
    bool keep, causal, rms, ignoring;
    const char *equation;   /* of einsum */
    double value;           /* factor, exponent, scale, base, epsilon */
    double dropout;         /* probability */
    rw_shape shape;         /* of the result, or of the indexes */
    rw_dtype dtype;         /* of a cast */
    const int32_t *indexes; /* used instead of those of op_index() */
    struct op_loss {
        double smoothing, z;
        bool weighted; /* classes are weighted by op_class_weight() */
        rw_reduction reduction;
        int64_t chunk;
    } loss;
    /* How the case is compared. */
    bool large;  /* only with REWIND_TEST_LARGE=1 */
    bool tiled;  /* large enough for the tiles of kernels: gradient rules are checked on smaller ones */
    bool no_sum; /* the loss is the result itself */
    bool typed;  /* random deviates: compared with the same type */
};

/* Returns the table, made at the first call. With REWIND_TEST_OPS=text: the cases whose name contains the text. Ends
   the program if there is none. */
const struct op_case *op_cases(size_t *ret_n);

/* The first case whose name begins with these words, without large ones; NULL if there is none. */
const struct op_case *op_case_named(const char *name, size_t length);

/* The shape of the input that an operand is made from, and the operand made from it. */
rw_shape op_base_shape(const struct op_operand *o);
rw_tensor *op_operand_of(rw_tape *t, const struct op_operand *o, rw_tensor *base);

/* Number of operand elements that one element of its base is expanded to. */
int64_t op_expansion(const struct op_operand *o);

/* Element i of input number `salt`. */
double op_number(enum op_range range, int64_t i, int salt);

/* The weight of a class in a weighted loss. */
double op_class_weight(int64_t class);

/* Magnitudes: see op_magnitudes.c. */
void op_sizes_pow(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_tanh(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_sigmoid(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_silu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_gelu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_gelu_tanh(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_linear_gelu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                          rw_tensor **m);
void op_sizes_swiglu(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_norm(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_groups(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_softmax(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_log_softmax(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                          rw_tensor **m);
void op_sizes_logsumexp(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_attention(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_rope_interleaved(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                               rw_tensor **m);
void op_sizes_rope(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_rope_with(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_cross_entropy(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                            rw_tensor **m);
void op_sizes_row_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_soft_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_linear_loss(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y,
                          rw_tensor **m);
void op_sizes_bce(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_mse_with(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_huber(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_smooth_l1(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_kl(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_nll(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_var(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_normalize(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);
void op_sizes_mse(rw_tape *t, const struct op_case *c, rw_tensor **x, rw_tensor *w, rw_tensor *y, rw_tensor **m);

/* Index i of a case's c->shape of indexes, from 0 to `below` or OP_INDEXES. If c->ignoring, every third is c->axis. */
#define OP_INDEXES 300
int32_t op_index(const struct op_case *c, int64_t i, int64_t below);

#endif
