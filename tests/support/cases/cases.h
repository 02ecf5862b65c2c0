/*
 * The families of the table of op_cases.h. Each has shapes that are tiny, odd, close to the widths of vectors and
 * blocks, empty, views with strides, broadcast operands, long rows, and many rows.
 */
#ifndef RW_TESTS_CASES_H
#define RW_TESTS_CASES_H

#include "support/op_cases.h"

#define S(...) RW_SHAPE(__VA_ARGS__)

/* Operands of ops along one axis. */
#define OP_AXIS_CASES 10
extern const struct op_axis_case {
    struct op_operand x;
    int axis;
} op_axis_cases[OP_AXIS_CASES];

/* Adds a case of n operands; all other members are zero. Aborts if the table is full. */
struct op_case *op_case_next(enum op_group group, op_build build, op_sizes sizes, int n);

/* Sets c->r by the function, which golden values with other shapes call as well. */
void op_case_count(struct op_case *c, op_count count);

/* Names a case by a text and the operands' shapes and layouts. */
void op_case_describe(struct op_case *c, const char *text, ...);

/* One in each file: adds the cases of its ops. */
#define OP_CASES(family) void family(void);
#include "test_tables.h"

#endif
