/*
 * Rows for files of golden values: what tests/ops/golden.c records and its number of roundings, where no case of
 * support/op_cases.h has both. A case of a file is OP or OP.VARIANT, where a variant has other shapes or values. OP is
 * the name of a row; or the first words of the name of a case, "cumsum along -1".
 */
#ifndef RW_TESTS_GOLDEN_OP_TABLE_H
#define RW_TESTS_GOLDEN_OP_TABLE_H

#include "support/op_builds.h"
#include "support/op_roundings.h"

struct golden_row {
    const char *name;
    struct op_case c;
    op_count count; /* if the roundings depend on the shapes */
};

struct golden_set {
    const char *file; /* in golden/ */
    const struct golden_row *rows;
    size_t n_rows;
};

#define ROW(name, builder, ...)                                                                                        \
    {                                                                                                                  \
#name, { .build = op_build_##builder, __VA_ARGS__ }, NULL                                                      \
    }
#define COUNTED(name, builder, count, ...)                                                                             \
    {                                                                                                                  \
#name, { .build = op_build_##builder, __VA_ARGS__ }, op_count_##count                                          \
    }
#define SHAPE(...) .shape = RW_SHAPE(__VA_ARGS__)

/*
 * A bound assumes that hundreds of roundings all have the same sign, and that terms do not cancel: of the largest
 * bounds a hundredth is used and less. The errors of n roundings of either sign sum to the root of n times one (Higham
 * and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4), and M of a gradient through a softmax or a gate assumes
 * terms as large as the gradient. So a case must stay within this measured share of its bound (measured_tolerances.c):
 * at most ten times the share that it uses.
 */
double golden_share(const char *name, rw_dtype dtype);

/* One in each file NAME_op_table.c. */
#define GOLDEN_ROWS(set) extern const struct golden_set set;
#include "test_tables.h"

#endif
