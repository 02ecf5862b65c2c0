/*
 * Stochastic rounding of float32 to bfloat16: rounds up with a probability equal to the fraction of the step between
 * the two neighbors, so the expected value is the number itself. C11 and C++17.
 *
 * The random word of element i is word i mod 4 of a Philox block. The block's counter consists of i div 4, the stream,
 * which identifies the parameter, and the number of the update. The upper half of the word is the noise of the
 * parameter, the lower half that of the second moment. Tickets have a stream of zero, so no op draws these words. The
 * noise does not depend on threads, launches, or earlier draws.
 */
#ifndef RW_OPS_OPTIM_STOCHASTIC_ROUNDING_H
#define RW_OPS_OPTIM_STOCHASTIC_ROUNDING_H

#include "base/philox.h"
#include "ops/optim/update_ops.h"

/* The random words of the four elements from 4 * block on. */
RW_HOST_DEVICE void rw_noise_of(const struct rw_update_row *r, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = r->stream;
    words[3] = r->step;
    rw_philox_rounds(words, (uint32_t)r->seed, (uint32_t)(r->seed >> 32));
}

/* Sign, exponent and upper fraction of a float32, which are those of a bfloat16. */
#define RW_NOISE_KEPT 0xffff0000u
/* The second moment's part of a word. */
#define RW_NOISE_OF_MOMENT 0xffffu
/* All bits set: NaN or infinity. */
#define RW_NOISE_EXPONENT 0x7f800000u

#endif
