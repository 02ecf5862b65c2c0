/*
 * What watches a run looks at memory with: digests of bytes where they are, and patterns that nothing a model computes
 * looks like. A value is never read from memory that a pattern was put in, unless somebody reads what nobody wrote.
 */
#ifndef RW_VERIFY_PROBE_H
#define RW_VERIFY_PROBE_H

#include "record/context.h"

/*
 * Of one byte each, and every floating-point type sees the same kind of number in it:
 *
 *     HIGH      large and positive: shows in a sum and in a maximum
 *     NAN       NaN: shows even in what is multiplied by 0
 *     LOW       large and negative: shows in a minimum
 *     ORDINARY  between 4e-4 and 2: shows where large numbers and NaN are passed over
 *     ZERO      0, false: whatever is added to it shows; the ordinary number of integers and bools, to which NAN is -1
 *               and true
 *     SOME      between 2 and 3e6: shows in the maximum of most of what a model computes, and what is added to it shows
 */
enum rw_pattern {
    RW_PATTERN_HIGH, RW_PATTERN_NAN, RW_PATTERN_LOW, RW_PATTERN_ORDINARY, RW_PATTERN_ZERO, RW_PATTERN_SOME,
    RW_PATTERNS
};
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
