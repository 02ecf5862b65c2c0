/* May a node write an output over an input? One answer for differentiation, scheduling and placement. */
#ifndef RW_RECORD_OVERWRITE_H
#define RW_RECORD_OVERWRITE_H

#include "record/tape.h"

/*
 * As far as the op, the layouts and what the node's own inputs share say: output and input are all of their buffers, as
 * many elements of one size, and every input that looks into that buffer is all of it and may be written over too.
 * Whether anybody else still needs the input's contents is for the caller to know.
 */
bool rw_may_overwrite(const rw_tape *t, const struct rw_node *node, uint32_t output, uint32_t input);

/* The same of the pairs that the node's op lists: bit k for pair k, the last bit for all from there on, if for any. */
#define RW_OVERWRITES_LAST 63
uint64_t rw_overwrites(const rw_tape *t, const struct rw_node *node);

#endif
