/* The results of a run of training steps, as digests: enough to compare two runs at every step without keeping
   either. */
#ifndef REWIND_BENCH_STEP_DIGESTS_H
#define REWIND_BENCH_STEP_DIGESTS_H

#include <rewind/rewind.h>

#include <xxhash.h>

/* Losses of every step; digests of the recorded gradients, parameters and buffers, and the generator, which shows how
   many random blocks were drawn; parameters and generator after the last step. */
struct outcome {
    int steps;
    double *losses;
    struct outcome_step {
        XXH128_hash_t gradients, parameters, buffers;
        rw_generator_state generator;
    } *step;
    XXH128_hash_t parameters;
    rw_generator_state generator;
};

/* Allocates `steps` steps and the one before them. False without memory. */
bool outcome_open(struct outcome *o, int steps);
void outcome_close(struct outcome *o);

/* Records a loss; the gradients as they are after backward; parameters, buffers and generator as they are now. Anything
   not recorded is zero. */
void outcome_loss(struct outcome *o, int step, double loss);
rw_status outcome_gradients(struct outcome *o, rw_context *ctx, int step);
rw_status outcome_state(struct outcome *o, rw_context *ctx, int step);

/* Records the state after the last optimizer step. */
rw_status outcome_end(struct outcome *o, rw_context *ctx);

/* Whether two runs are bit-identical; if not, ret_where is the first difference. */
bool outcome_same(const struct outcome *a, const struct outcome *b, char *ret_where, size_t size);

#endif
