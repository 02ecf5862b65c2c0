/*
 * The table of element-wise functions of one operand: all that the suites need to know of such an op. The cases of
 * accuracy.c and others are made from it, and definitions.c, pointwise.c, edge_values.c, mistakes and caller_modes.c
 * read it.
 */
#ifndef RW_TESTS_FUNCTIONS_H
#define RW_TESTS_FUNCTIONS_H

#include "support/op_cases.h"

struct op_function {
    const char *name; /* of its cases: the op's name, and what distinguishes the row from others of the op */
    op_build build;   /* reads c->value */
    /* The definition, in wider arithmetic; a is the constant. NULL: definitions.c has it elsewhere. */
    long double (*of)(long double x, long double a);
    double (*number)(int64_t i); /* inputs at which it is compared: away from kinks, and from 0 if terms cancel there */
    op_sizes sizes;
    enum op_range range;
    double value; /* the constant; 0 if the op has none */
    struct roundings y, g; /* of the result, and of the gradient */
};

/* Values and slopes that a header states: at kinks, of NaN, of infinity. */
struct op_corner {
    const char *name; /* of the row */
    double x, y, slope;
};

/* At least the number of rows of either table. */
enum { OP_FUNCTIONS_MAX = 64, OP_CORNERS_MAX = 64 };

const struct op_function *op_functions(size_t *ret_n);
const struct op_corner *op_corners(size_t *ret_n);
const struct op_function *op_function_named(const char *name); /* ends the program if there is none */

/* The constant, rounded to eighths, which every type holds; corners are of this one. */
double op_function_constant(const struct op_function *f);

/* Records the function of x with that constant. */
rw_tensor *op_function_record(rw_tape *t, const struct op_function *f, rw_tensor *x);

/* Whether the op has a row with a definition. */
bool op_function_defines(const char *op);

#endif
