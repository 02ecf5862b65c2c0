/*
 * Tools of observers for memory: digests, computed where the bytes are, and patterns that no computed value resembles.
 * Memory with a pattern is read only by a kernel that reads what no kernel has written.
 */
#ifndef RW_VERIFY_FILL_PATTERNS_H
#define RW_VERIFY_FILL_PATTERNS_H

#include "record/context.h"

/*
 * Patterns of one repeated byte, which every floating-point type reads as the same kind of number:
 *
 *     HIGH      large and positive: changes a sum and a maximum
 *     NAN       NaN: changes even a product with 0
 *     LOW       large and negative: changes a minimum
 *     ORDINARY  between 4e-4 and 2: has an effect where large numbers and NaN are skipped
 *     ZERO      0, false: shows what is added to it; the ordinary number of integers and bools, for which NAN is -1
 *               and true
 *     SOME      between 2 and 3e6: changes the maximum of most model values, and shows what is added to it
 */
enum rw_pattern {
    RW_PATTERN_HIGH, RW_PATTERN_NAN, RW_PATTERN_LOW, RW_PATTERN_ORDINARY, RW_PATTERN_ZERO, RW_PATTERN_SOME,
    RW_PATTERNS
};
extern const unsigned char rw_pattern_byte[RW_PATTERNS];

#define RW_MARGIN ((size_t)4096) /* bytes of pattern before and after guarded memory */

struct rw_patterns {
    rw_context *ctx;
    struct rw_digest *digest;              /* in the device's memory */
    /* For a device other than the host: */
    char *block[RW_PATTERNS];              /* device memory, filled with one pattern each */
    struct rw_digest margin[RW_PATTERNS]; /* of RW_MARGIN bytes */
};

/* Errors are recorded. Close the probe also after a failure. */
rw_status rw_patterns_open(struct rw_patterns *p, rw_context *ctx);
void rw_patterns_close(struct rw_patterns *p);

rw_status rw_patterns_digest(const struct rw_patterns *p, const void *data, size_t bytes, struct rw_digest *ret);
rw_status rw_patterns_fill(const struct rw_patterns *p, void *data, size_t bytes, enum rw_pattern pattern);

/* Is a margin still filled with its pattern? *ret_first, *ret_last: the first and last byte that differ. */
rw_status rw_patterns_margin(const struct rw_patterns *p, const void *data, enum rw_pattern pattern, bool *ret_whole,
                             size_t *ret_first, size_t *ret_last);

#endif
