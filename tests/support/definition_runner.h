/*
 * Tests ops against their definitions: loops written from the public headers, which share no code with the library.
 *
 * A definition names its ops and its factors: rank, axis, layout of each operand, which operands are absent or have a
 * gradient, the values of each attribute. The driver covers all pairs of values of two factors (pairwise testing). It
 * runs each trial in float64 and float32, the first ones in 16 bits as well, with one and three threads, and compares
 * results and gradients with the reference. Gradients of the reference are central differences of its loops.
 */
#ifndef RW_TESTS_DEFINITION_RUNNER_H
#define RW_TESTS_DEFINITION_RUNNER_H

#include "support/support.h"

#define DEF_FACTORS 14
#define DEF_OPERANDS 10
#define DEF_RESULTS 5
#define DEF_NUMBERS 16

typedef long double real; /* type of the references; the same as double if the compiler has no wider type */

/* How an operand is stored in the input that it is a view of. */
enum def_layout {
    DEF_DENSE,
    DEF_TRANSPOSED, /* the last two axes swapped; with one axis: every other element */
    DEF_SLICED,     /* from element 2 on of a longer last axis */
    DEF_EXPANDED,   /* the first axis with a stride of 0 */
    DEF_LAYOUTS
};

enum def_range {
    DEF_SIGNED,   /* -2 to 2, by 32nds, not 0 */
    DEF_POSITIVE, /* 1/4 to 3, by 32nds */
    DEF_UNIT,     /* -1 to 1, by 64ths, not 0 */
    DEF_DISTINCT, /* no two equal, by 16ths; at most 255 elements */
    DEF_TIES,     /* -1, 0 or 1 */
    DEF_INDEX,    /* 0 to limit - 1 */
    DEF_TRUTH,
    DEF_RANGES
};

struct def_trial;

struct def_operand {
    rw_shape shape;
    enum def_layout layout;
    enum def_range range;
    int64_t limit; /* of DEF_INDEX */
    bool is_absent, is_frozen /* no gradient wanted */, is_wide /* float32 where the trial's type has 16 bits */;
    double (*value)(const struct def_trial *c, int64_t i); /* element i of the input; replaces the range */
    bool is_exact;                                         /* value() is of the operand, not the input */
    /* Set by the driver: */
    rw_dtype dtype;
    rw_shape base;
    int64_t numel, base_numel;
    int64_t *map; /* index of the input element that each element reads */
    real *x, *base_x;
};

struct def_trial {
    const struct definition *def;
    int v[DEF_FACTORS]; /* the value of each factor */
    rw_dtype dtype;
    int n, n_out;
    struct def_operand in[DEF_OPERANDS];
    rw_shape out[DEF_RESULTS];
    int64_t a[DEF_NUMBERS]; /* attributes, in the form that `make` chooses */
    double d[4];
};

struct definition {
    const char *name;
    const char *ops; /* built-in ops that its trials record, separated by spaces */
    struct {
        const char *name;
        int n;
    } factor[DEF_FACTORS];
    /* Sets operands, results and attributes from the factors; false: no such combination. */
    bool (*make)(struct def_trial *c);
    /* Records the trial on the tape and sets y. Returns false on an error. */
    bool (*record)(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y);
    /* y[k]: result k. An absent operand is NULL. */
    void (*reference)(const struct def_trial *c, real *const *x, real *const *y);
    /* Computes gradients dx[i], zero-filled by the caller, from dy: for ops whose gradient central differences do not
       define (ties). NULL: central differences. */
    void (*gradient)(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx);
    int roundings;      /* of a result; 0: exact */
    int back_roundings; /* of a gradient; 0: exact */
    int stored;         /* intermediates that a 16-bit type rounds */
    bool any_type;      /* i32 and bool are tested, too */
    bool only_wide;     /* only float32 and float64 */
    bool no_double;     /* only float32 and the 16-bit types */
    bool no_gradient;
    bool no_second; /* its gradient has no gradient */
};

/* Runs all trials, fails the test if one differs, and prints how many of the possible pairs it ran. */
void definition_run(const struct definition *d);

/* ---- for references ---- */

/* Advances to the next index in row-major order. Returns false after the last. Start with zeros. */
bool def_next(rw_shape s, int64_t *index);
/* Row-major position of an index of that rank. Broadcasts: axes of extent 1 are read at 0, missing axes are the
   first. */
int64_t def_at(rw_shape s, const int64_t *index, int rank);
/* A shape of a rank whose extents are 3, 4, 2, 5: all different. */
rw_shape def_shape(int rank);
rw_shape def_without(rw_shape s, int axis, bool keep);
rw_shape def_with(rw_shape s, int axis, int64_t extent);
rw_shape def_broadcast(rw_shape a, rw_shape b);
/* The number of shapes that broadcast with each other, and one of them. */
#define DEF_SHAPES 8
const rw_shape *def_broadcastable(int which);
/* Sets a floating-point operand. */
struct def_operand *def_operand(struct def_trial *c, int i, rw_shape s, enum def_range range, int layout);
/* [outer, extent, inner] of an axis. */
void def_split(rw_shape s, int axis, int64_t *outer, int64_t *extent, int64_t *inner);

/* The tables, each terminated by an entry without a name. */
#define DEFINITIONS(table) extern const struct definition table[];
#include "test_tables.h"

#endif
