/* Records random tapes of an op of any size and cost. */
#include "remat/random_tape.h"

/* Each tail is one more value with its own fate. */
#define WITH_TAILS_MAX 6

int64_t below(struct dice *d, int64_t n)
{
    uint64_t x = d->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((x ^ x >> 31) % (uint64_t)n);
}

rw_tensor *random_tape(rw_tape *t, rw_tensor *p, int nodes, uint64_t seed)
{
    return random_tape_of(t, p, nodes, seed, 1);
}

rw_tensor *random_tape_of(rw_tape *t, rw_tensor *p, int nodes, uint64_t seed, int64_t times)
{
    struct dice d = { seed }, tails = { seed + 1000000 };
    rw_tensor *value[64] = { p };
    for (int i = 1; i <= nodes; i++) {
        rw_tensor *in[2] = { value[i - 1], value[i - 1 - (i > 1 ? below(&d, i < 4 ? i - 1 : 3) : 0)] };
        const int n = in[0] != in[1] && below(&d, 2) ? 2 : 1;
        const struct synth a = { .units = times * (1 + below(&d, 8)), .us = (double)(1 + below(&d, 50)),
                                .reads = (int32_t)below(&d, n == 2 ? 8 : 2) | (int32_t)below(&d, 2) * 4,
                                .tail = nodes <= WITH_TAILS_MAX && !below(&tails, 4) };
        value[i] = synth_apply(t, in, n, a);
    }
    return rw_sum(t, value[nodes], RW_ALL_AXES, false);
}
