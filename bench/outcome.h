/* What a run of training steps leaves behind, as digests: enough to compare two runs at every step without keeping
 * either. */
#ifndef REWIND_BENCH_OUTCOME_H
#define REWIND_BENCH_OUTCOME_H

#include <rewind/rewind.h>

#include <xxhash.h>

/* Losses of every step, digests of the gradients of those that were noted; parameters and generator after the last. */
struct outcome {
    int steps;
    double *losses;
    XXH128_hash_t *gradients, parameters;
    rw_generator_state generator;
};

/* Room for `steps` steps and the one before them. False without memory. */
bool outcome_open(struct outcome *o, int steps);
void outcome_close(struct outcome *o);

/* Notes a loss, and the gradients as they are after backward (zeros stand for those that are never noted). */
void outcome_loss(struct outcome *o, int step, double loss);
rw_status outcome_gradients(struct outcome *o, rw_context *ctx, int step);

/* Notes the state that the last optimizer step left. */
rw_status outcome_end(struct outcome *o, rw_context *ctx);

/* Whether two runs are the same to the last bit; if not, ret_where says what differs first. */
bool outcome_same(const struct outcome *a, const struct outcome *b, char *ret_where, size_t size);

#endif
