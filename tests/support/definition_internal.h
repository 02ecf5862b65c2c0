/* Declarations that the files of definition_runner.h share. */
#ifndef RW_TESTS_DEFINITION_INTERNAL_H
#define RW_TESTS_DEFINITION_INTERNAL_H

#include "support/definition_runner.h"

struct values {
    int64_t n, first[DEF_RESULTS + 1]; /* all results, one after the other */
    real *all;
};

struct expected {
    struct values y, size, w;                   /* results, magnitudes of their terms, upstream gradients */
    real *g[DEF_OPERANDS], scale[DEF_OPERANDS]; /* gradients of inputs, largest magnitude of their terms */
    real total, largest; /* of |w y|: the sum, by which differences of the reference round; the maximum */
};

/* Sets the operands' values as their types hold them, and frees them. */
void def_trial_open(struct def_trial *c);
void def_trial_close(struct def_trial *c);

/* Returns false if the combination does not exist. */
bool def_trial_make(struct def_trial *c, const struct definition *d, const int *v, rw_dtype dtype);

bool def_wants_gradient(const struct def_trial *c, int i);

/* Element i of an array of any type. */
void def_put(unsigned char *p, rw_dtype dtype, int64_t i, real x);
real def_get(const unsigned char *p, rw_dtype dtype, int64_t i);

/* Records the operand as a view of its input. */
rw_tensor *def_operand_view(rw_tape *t, const struct def_operand *o, rw_tensor *base);

struct expected def_expected_open(struct def_trial *c);
void def_expected_close(struct expected *e);

/* The sampling step of operand i: one of so many elements has a known gradient; those of the others are NaN. */
int64_t def_sample_step(const struct def_trial *c, int i);

/* Bound on the error of a gradient of operand i, from differences and roundings. */
real def_difference_bound(const struct def_trial *c, const struct expected *e, int i);

/* A direction v of element k of operand i's input, and the gradient of the sum of v times all gradients, by mixed
   differences. It has as many elements as the input. *ret_size: the largest magnitude of its terms. The caller
   frees. */
real def_direction(int i, int64_t k);
real *def_second(struct def_trial *c, const struct expected *e, int i, real *ret_size);

/* Finds combinations that cover all pairs of values that a combination can have, and `more` random ones. Returns their
   number. */
int def_pairs(const struct definition *d, int (*trials)[DEF_FACTORS], int max, int more, int *ret_covered,
              int *ret_possible);

#endif
