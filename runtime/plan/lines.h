/*
 * The values that a plan keeps, moves or replays, as lines; and which outermost regions have the same ones, so that
 * twelve equal blocks are shown once.
 */
#ifndef RW_PLAN_LINES_H
#define RW_PLAN_LINES_H

#include "plan/build.h"

enum rw_line_what { RW_LINE_KEPT, RW_LINE_REPLAYED, RW_LINE_MOVED };

struct rw_line {
    uint32_t buffer;
    uint8_t what;   /* enum rw_line_what */
    uint32_t next;  /* line of the same outermost region, RW_NONE_ID for the last */
    uint32_t block; /* the outermost region that it stands in, RW_NONE_ID outside any */
};

/* Of an outermost region. */
struct rw_block {
    uint32_t first, last; /* lines; RW_NONE_ID for none */
    uint32_t like;        /* the first region that has the same lines under the same name */
    uint32_t count;       /* of that one: how many there are */
    uint64_t hash;
    uint64_t kept; /* bytes */
};

struct rw_lines {
    struct rw_line *line; /* in the order in which the values are made */
    size_t n, cap;
    bool replays; /* some line is of a value that is replayed */
    struct rw_block *block; /* by region; only outermost ones are used */
};

/* RW_ERR_MEMORY leaves *l empty; it is not recorded. */
rw_status rw_lines_init(struct rw_lines *l, const struct rw_planning *g);
void rw_lines_finish(struct rw_lines *l);

#endif
