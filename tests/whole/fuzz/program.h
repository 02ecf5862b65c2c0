/*
 * A random program as data: statements in recording order, each with its operands and a few random words.
 *
 * Everything else follows from leaves and words: fz_resolve() computes attributes, types and shapes of all statements,
 * and refuses an invalid program. So a program stays valid when a statement is replaced by a leaf or an extent is
 * reduced, and the shrinker needs no knowledge of ops.
 */
#ifndef FUZZ_PROGRAM_H
#define FUZZ_PROGRAM_H

#include <rewind/rewind.h>

#define FZ_STATEMENTS 240
#define FZ_INS 6
#define FZ_OUTS 3
#define FZ_ACTIONS 20
#define FZ_LOSSES 3
#define FZ_STEPS 2
#define FZ_POLICY 64

struct fz_type {
    rw_dtype dtype;
    rw_shape shape;
    double bound; /* about the largest magnitude; of an index: one more than the largest. Keeps values finite. */
    double slope; /* approximately the largest derivative by a parameter. Keeps gradients finite. */
    bool trains;  /* a parameter's gradient flows through it */
};

struct fz_statement {
    uint8_t op; /* index in the table of fz_op() */
    uint8_t n_in, n_out;
    bool dropped;
    int16_t in[FZ_INS];   /* values: statement * FZ_OUTS + output */
    uint32_t word[3];     /* the choices */
    int64_t k[4];         /* derived attributes */
    double f;
    struct fz_type out[FZ_OUTS];
};

/* The actions on the recorded tape, in this order. */
enum fz_action_kind { FZ_ITEM, FZ_BACKWARD, FZ_READ, FZ_EVAL, FZ_VERIFY, FZ_COST, FZ_EXPLAIN, FZ_ACTION_KINDS };

struct fz_action {
    uint8_t kind, loss;
    bool dropped;
    int16_t value; /* of FZ_READ and FZ_EVAL */
};

/* How the library itself checks the run under the policy. */
enum fz_mode { FZ_PLAIN, FZ_VERIFIED, FZ_DIGESTED, FZ_EAGER, FZ_ASKED /* ckpt_verify() before each backward */ };

struct fz_program {
    uint64_t seed;
    uint64_t numbers; /* seed of the context's generator */
    int part;         /* index of one of several programs that share a context: names of parameters differ */
    bool evaluates;   /* nothing is trained: there is no loss */
    int n, n_actions, n_losses;
    int16_t loss[FZ_LOSSES]; /* values */
    struct fz_action action[FZ_ACTIONS];
    int steps;
    char policy[FZ_STEPS][FZ_POLICY];
    int threads[FZ_STEPS];
    enum fz_mode mode;
    bool two_tapes;   /* the same program on a second tape of the context, with alternating actions */
    bool accumulates; /* gradients are not cleared between the steps */
    bool clips;
    struct fz_statement s[FZ_STATEMENTS];
};

enum fz_flag {
    FZ_LEAF = 1,   /* has no operands and a shape of its own */
    FZ_MARK = 2,   /* has no result: a region boundary, a decision, an effect */
    FZ_HOST = 4,   /* its kernel runs only on the CPU */
    FZ_CONTEXT = 8, /* belongs to the context, not to a tape */
    FZ_SESSION = 16 /* only in metamorphic programs */
};

/* A statement during recording. */
struct fz_call {
    rw_context *ctx;
    rw_tape *t;
    rw_site at; /* its number is used as the line, so that messages name the statement */
    const struct fz_program *p;
    const struct fz_statement *s;
    int step;
    rw_tensor *in[FZ_INS];
    rw_tensor *out[FZ_OUTS];
};

struct fz_generator;

struct fz_op {
    const char *name;
    int weight;     /* how often it is chosen; 0: only by other rows */
    unsigned flags; /* enum fz_flag */
    unsigned flows; /* inputs that gradients flow to, a bit each */
    /* Creates the statement and its operands. Value number or -1. */
    int (*choose)(struct fz_generator *g, int op);
    /* Computes k, f and out from the operands' types and the words. */
    bool (*resolve)(const struct fz_program *p, struct fz_statement *s);
    void (*record)(struct fz_call *c);
    /* $i operand, RW_NONE if there is none, %i integer attribute k[i], ~ the attribute f, @i shape, ^i type and
       !i bytes of output i, # axes in k[0]. */
    const char *text;
    const void *function; /* for rows that share record: a pointer to the library's function pointer */
};

int fz_ops(void);
const struct fz_op *fz_op(int op);
int fz_op_named(const char *name);

/* The tables by family that fz_op() concatenates, each terminated by a row without a name. */
extern const struct fz_op fz_leaf_ops[], fz_mark_ops[], fz_pointwise_ops[], fz_reduce_ops[], fz_shape_ops[],
    fz_model_ops[], fz_custom_ops[], fz_select_ops[], fz_loss_ops[], fz_table_ops[], fz_image_ops[], fz_einsum_ops[],
    fz_scan_ops[], fz_session_ops[];

/* The value's type. */
const struct fz_type *fz_type_of(const struct fz_program *p, int value);
static inline const struct fz_type *fz_in(const struct fz_program *p, const struct fz_statement *s, int i)
{
    return fz_type_of(p, s->in[i]);
}

/* Sets output 0; false if the value would be too large in number of elements, magnitude or slope. */
bool fz_out(struct fz_statement *s, int i, rw_dtype dtype, rw_shape shape, double bound, double slope);

/* Resolves all statements anew. False if the program is invalid: *ret_why, which may be NULL, is the reason. */
bool fz_resolve(struct fz_program *p, const char **ret_why);
bool fz_resolve_statement(struct fz_program *p, int at);

/* Whether gradients flow from y back to x. */
bool fz_depends(const struct fz_program *p, int y, int x);

/* Whether the value is a parameter, buffer or input: not the result of an op, which some calls require. */
bool fz_is_leaf(const struct fz_program *p, int value);

/* Whether an output of the statement is read. */
bool fz_is_used(const struct fz_program *p, int statement);

bool fz_equal(const struct fz_program *a, const struct fz_program *b);

bool fz_broadcast(rw_shape a, rw_shape b, rw_shape *ret);
static inline bool fz_same(const struct fz_type *a, const struct fz_type *b)
{
    return a->dtype == b->dtype && rw_shape_equal(a->shape, b->shape);
}

#endif
