/*
 * Rounding a float32 to bfloat16 by chance: up with the share of the step between its neighbours that it has gone, so
 * that the mean is the number itself. C11 and C++17.
 *
 * The word of element i is word i mod 4 of the Philox block whose counter is i div 4, the stream, which is one for each
 * parameter, and the number of the update. Its upper half is the noise of the parameter, its lower half that of the
 * second moment. Tickets have zero where the stream stands, so no op draws these words; and no bit depends on threads,
 * launches, or what was drawn before.
 */
#ifndef RW_OPS_OPTIM_NOISE_H
#define RW_OPS_OPTIM_NOISE_H

#include "base/philox.h"
#include "record/own_ops.h"

/* The four words of the elements from 4 * block on. */
RW_HOST_DEVICE void rw_noise_of(const struct rw_update_row *r, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = r->stream;
    words[3] = r->step;
    rw_philox_rounds(words, (uint32_t)r->seed, (uint32_t)(r->seed >> 32));
}

/* Sign, exponent and upper fraction of a float32, which are a bfloat16's. */
#define RW_NOISE_KEPT 0xffff0000u
/* Of a word, the second moment's noise. */
#define RW_NOISE_OF_MOMENT 0xffffu
/* All of it set: no number, or no finite one. */
#define RW_NOISE_EXPONENT 0x7f800000u

#endif
