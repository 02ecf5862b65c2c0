/* Text or tokens, and the windows that a step reads: a function of the seed and the step's number. */
#ifndef REWIND_EXAMPLES_DATA_H
#define REWIND_EXAMPLES_DATA_H

#include "options.h"

#include <stddef.h>

struct tokens {
    uint16_t *t;
    size_t n;
    bool bytes; /* each is one */
};

/* Reads a file; the caller frees the tokens. Ends the program if there are none. */
struct tokens read_tokens(const char *path);

/* Ends the program if they are too few for a sequence, or one exceeds the vocabulary. */
void check_tokens(const struct tokens *d, const char *path);

/* The largest token. */
int top_token(const struct tokens *d);

/* A digest of all tokens, to detect changed data. */
uint64_t digest_tokens(const struct tokens *d);

/* The number of windows of an evaluation with so many tokens: overlapping windows would count text twice. */
size_t count_windows(const struct tokens *d, size_t tokens);

/* Windows `first` to `first + n - 1` of `of` evenly spaced ones: the same text for any seed and batch size. */
void fill_windows(const struct tokens *d, size_t of, size_t first, int n, int32_t *in, int32_t *out);

/* The n-th number of a seed. */
uint64_t number_of(uint64_t seed, uint64_t n);

/* o.batch random windows of the data; each token's target is the next one. */
void fill_batch(const struct tokens *d, uint64_t seed, uint64_t n, int32_t *in, int32_t *out);

#endif
