/* The elements of inputs: small multiples of 1/8, which are exact in every type and short when printed. */
#ifndef FUZZ_INPUT_VALUES_H
#define FUZZ_INPUT_VALUES_H

#include "whole/fuzz/program.h"

double fz_element(const struct fz_program *p, const struct fz_statement *s, int step, int64_t i);
/* The ignored target: 1 if the leaf contains it, else -100. */
int32_t fz_ignored(const struct fz_program *p, int value);
void fz_elements(const struct fz_program *p, const struct fz_statement *s, int step, void *out);

#endif
