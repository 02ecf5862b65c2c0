/*
 * The families of the table of op_cases.h. Each has shapes that are tiny, odd, close to the widths of vectors and
 * blocks, empty, views with strides, broadcast operands, long rows, and many rows.
 */
#ifndef RW_TESTS_CASES_H
#define RW_TESTS_CASES_H

#include "support/op_cases.h"

#define S(...) RW_SHAPE(__VA_ARGS__)

/* Sets c->r from the operands and the parameters of c: op_roundings.h. */
typedef void (*op_count)(struct op_case *c);

/* Adds a case of n operands; all other members are zero. Aborts if the table is full. */
struct op_case *op_case_next(enum op_group group, op_build build, op_sizes sizes, int n);

/* Names a case by a text and the operands' shapes and layouts. */
void op_case_describe(struct op_case *c, const char *text, ...);

void op_cases_attention(void);
void op_cases_attention_options(void);
void op_cases_compare(void);
void op_cases_conv(void);
void op_cases_einsum(void);
void op_cases_functions(void);
void op_cases_gather(void);
void op_cases_groups(void);
void op_cases_losses(void);
void op_cases_moe(void);
void op_cases_more_reductions(void);
void op_cases_norms(void);
void op_cases_pointwise(void);
void op_cases_pool(void);
void op_cases_products(void);
void op_cases_quantized(void);
void op_cases_random(void);
void op_cases_recurrent(void);
void op_cases_reductions(void);
void op_cases_select(void);
void op_cases_shapes(void);
void op_cases_tables(void);

#endif
