/*
 * Counts how much work the planner does, instead of timing it: the count is the same on a busy machine and on an idle
 * one. The suites listed in `counted_suites` of tests/meson.build use a second compilation of everything that records,
 * plans and explains, with a call in each basic block (-fsanitize-coverage=trace-pc). Functions of libc count by their
 * bytes.
 */
#ifndef SUPPORT_WORK_COUNTER_H
#define SUPPORT_WORK_COUNTER_H

#include <stdint.h>

/* Number of basic blocks executed so far, plus one for every 16 bytes set, copied, compared or zero-allocated. */
uint64_t work_done(void);

#endif
