/*
 * The values that a plan keeps, moves or replays, as lines; which regions side by side have the same ones, so that
 * twelve equal blocks are shown once, whatever lies around them; and which lines of one region are the same.
 */
#ifndef RW_PLAN_LINES_H
#define RW_PLAN_LINES_H

#include "plan/build.h"

enum rw_line_what { RW_LINE_KEPT, RW_LINE_REPLAYED, RW_LINE_MOVED };

struct rw_line {
    uint32_t buffer;
    uint8_t what;   /* enum rw_line_what */
    uint32_t next;  /* line of the same block, RW_NONE_ID for the last */
    uint32_t block; /* the outermost region around it of which there are several, RW_NONE_ID for none */
    uint32_t like;  /* the first line of its region, or outside any, that says the same */
    uint32_t count; /* of that one: how many there are */
};

/* Of a region. first, last and kept: of one of which there are several, and that lies in no other such one. */
struct rw_block {
    uint32_t first, last; /* lines; RW_NONE_ID for none */
    uint32_t block;       /* as of a line in it */
    uint32_t like;        /* the first region in the same one that has the same lines under the same name */
    uint32_t count;       /* of that one: how many there are */
    uint64_t hash;        /* of all lines in it, 0 for none */
    uint64_t kept; /* bytes */
};

struct rw_lines {
    struct rw_line *line; /* in the order in which the values are made */
    size_t n, cap;
    bool replays; /* some line is of a value that is replayed */
    struct rw_block *block; /* by region */
};

/* RW_ERR_MEMORY leaves *l empty; it is not recorded. */
rw_status rw_lines_init(struct rw_lines *l, const struct rw_planning *g);
void rw_lines_finish(struct rw_lines *l);

#endif
