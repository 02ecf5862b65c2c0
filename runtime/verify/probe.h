/*
 * What watches a run looks at memory with: digests of bytes where they are, and patterns that nothing a model computes
 * looks like. A value is never read from memory that a pattern was put in, unless somebody reads what nobody wrote.
 */
#ifndef RW_VERIFY_PROBE_H
#define RW_VERIFY_PROBE_H

#include "record/context.h"

/* Large and positive, NaN, large and negative in every floating-point type: one of them shows in a sum, in a product
   and in either comparison. */
enum rw_pattern { RW_PATTERN_HIGH, RW_PATTERN_NAN, RW_PATTERN_LOW, RW_PATTERNS };
extern const unsigned char rw_pattern_byte[RW_PATTERNS];

#define RW_MARGIN ((size_t)4096) /* bytes of pattern before and behind what is guarded */

struct rw_probe {
    rw_context *ctx;
    struct rw_digest *digest;              /* in the device's memory */
    /* Of a device that is not the host: */
    char *block[RW_PATTERNS];              /* in its memory: bytes of one pattern each */
    struct rw_digest margin[RW_PATTERNS]; /* of RW_MARGIN bytes */
};

/* Errors are recorded. What a failed call leaves is closed like any other. */
rw_status rw_probe_open(struct rw_probe *p, rw_context *ctx);
void rw_probe_close(struct rw_probe *p);

rw_status rw_probe_digest(const struct rw_probe *p, const void *data, size_t bytes, struct rw_digest *ret);
rw_status rw_probe_fill(const struct rw_probe *p, void *data, size_t bytes, enum rw_pattern pattern);

/* Does a margin still hold its pattern? *ret_first, *ret_last: the first and last byte that does not. */
rw_status rw_probe_margin(const struct rw_probe *p, const void *data, enum rw_pattern pattern, bool *ret_whole,
                          size_t *ret_first, size_t *ret_last);

#endif
