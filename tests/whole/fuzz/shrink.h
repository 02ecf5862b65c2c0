/* Makes a failing program as small as possible while it still fails in the same way. */
#ifndef FUZZ_SHRINK_H
#define FUZZ_SHRINK_H

#include "whole/fuzz/judge.h"

#include <stdio.h>

/* Returns the verdict on the shrunk program in *p. */
struct fz_verdict fz_shrink(struct fz_program *p, const struct fz_sabotage *sabotage);

/* Candidate k of a pass over the statements of a program, for a shrinker of larger structures that contain programs. */
#define FZ_REDUCTIONS 13
enum fz_candidate fz_reduce(const struct fz_program *from, struct fz_program *to, int pass, int k);

/* Number of statements, region boundaries and marks included. */
int fz_size(const struct fz_program *p);

/* The program as C for a test, with the failure as its comment. The caller frees. */
char *fz_print(const struct fz_program *p, const struct fz_verdict *v);

/* One statement, as C. */
void fz_print_statement(FILE *out, const struct fz_program *p, int statement);

#endif
