/* Text or tokens, and which of them a step sees: a function of the seed and the step's number. */
#ifndef REWIND_EXAMPLES_DATA_H
#define REWIND_EXAMPLES_DATA_H

#include "options.h"

#include <stddef.h>

struct tokens {
    uint16_t *t;
    size_t n;
    bool bytes; /* each is one */
};

/* Of a file; tokens are to be freed. Ends the program when there are none. */
struct tokens read_tokens(const char *path);

/* Ends the program when they are too few for a sequence, or one is beyond the vocabulary. */
void check_tokens(const struct tokens *d, const char *path);

/* The n-th number of a seed. */
uint64_t number_of(uint64_t seed, uint64_t n);

/* Windows of the data; each token's target is the one after it. */
void fill_batch(const struct tokens *d, uint64_t seed, uint64_t n, int32_t *in, int32_t *out);

#endif
