/*
 * How much the planner does, counted and not timed: the same on a busy machine and on an idle one. A suite that
 * `counted_suites` of tests/meson.build names has a second compilation of everything that records, plans and explains,
 * with a call for each basic block that runs (-fsanitize-coverage=trace-pc). What runs inside of libc counts by its
 * bytes.
 */
#ifndef SUPPORT_WORK_H
#define SUPPORT_WORK_H

#include <stdint.h>

/* Blocks so far, and 16 bytes each of what was set, copied, compared or taken as zeros. */
uint64_t work_done(void);

#endif
