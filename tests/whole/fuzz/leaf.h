/* The elements of inputs: small multiples of 1/8, so that they are exact in every type and short to print. */
#ifndef FUZZ_LEAF_H
#define FUZZ_LEAF_H

#include "whole/fuzz/program.h"

double fz_element(const struct fz_program *p, const struct fz_statement *s, int step, int64_t i);
/* What a target counts nothing for: 1 where that stands in the leaf for it, else -100. */
int32_t fz_ignored(const struct fz_program *p, int value);
void fz_elements(const struct fz_program *p, const struct fz_statement *s, int step, void *out);

#endif
