/* May a node write an output over an input? The one answer for differentiation, scheduling and placement. */
#ifndef RW_RECORD_OVERWRITE_H
#define RW_RECORD_OVERWRITE_H

#include "record/tape.h"

/*
 * As far as the op, the layouts and the node's own inputs determine it: output and input fill their buffers, with the
 * same number of elements of one size, and every input that is a view of that buffer fills it and may also be
 * overwritten. The caller must know whether another node still needs the input's contents.
 */
bool rw_may_overwrite(const rw_tape *t, const struct rw_node *node, uint32_t output, uint32_t input);

/* The same for the pairs in the op's inplace list: bit k for pair k, the last bit for all later ones together. */
#define RW_OVERWRITES_LAST 63
uint64_t rw_overwrites(const rw_tape *t, const struct rw_node *node);

#endif
