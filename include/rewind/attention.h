/**
 * rewind/attention.h - attention beyond rw_attention() of rewind/ops.h, and what goes with it.
 *
 * Conventions are those of rewind/ops.h: results belong to the tape, are NULL on an error, and the error sticks.
 * Thread-safety: one tape, one thread at a time.
 */
#ifndef REWIND_ATTENTION_H
#define REWIND_ATTENTION_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * rw_rope() over the pairs (2i, 2i + 1), as DeepSeek's and GPT-J's weights have them, instead of (i, i + d/2).
 * x [batch, heads, seq, d], d even; positions [seq] of RW_I32, or RW_NONE for 0, 1, 2, ...; pair i turns by
 * position / base^(2i / d). Types, gradients and errors as for rw_rope().
 */
RW_API rw_tensor *rw_rope_interleaved_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *positions, double base);
#define rw_rope_interleaved(...) rw_rope_interleaved_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
