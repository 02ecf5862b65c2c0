/*
 * Rows of ckpt_explain(): one per value that a plan keeps, offloads, defers or replays. Finds regions in succession
 * with equal rows, so that twelve equal blocks are shown once, and equal rows of one region.
 */
#ifndef RW_PLAN_EXPLAIN_ROWS_H
#define RW_PLAN_EXPLAIN_ROWS_H

#include "plan/planning_state.h"

/* Why a value is kept, recomputed or offloaded: enum rw_why in words. */
const char *rw_why_text(unsigned why);

enum rw_line_what { RW_LINE_KEPT, RW_LINE_REPLAYED, RW_LINE_MOVED, RW_LINE_DEFERRED };

struct rw_line {
    uint32_t buffer;
    uint8_t what;   /* enum rw_line_what */
    uint32_t next;  /* next row of the same block, RW_NONE_ID for the last */
    uint32_t block; /* the outermost surrounding region that has equals, RW_NONE_ID for none */
    uint32_t like;  /* the first equal row of its region, or outside of any region */
    uint32_t count; /* of that row: number of equal ones */
};

/* By region. first, last and kept are set for a region that has equals and is not inside another one that has. */
struct rw_block {
    uint32_t first, last; /* lines; RW_NONE_ID for none */
    uint32_t block;       /* as of a line in it */
    uint32_t like;        /* the first region with the same parent, name and rows */
    uint32_t count;       /* of that region: number of equal ones */
    uint64_t hash;        /* hash of all rows in it, 0 for none */
    uint64_t kept; /* bytes */
};

struct rw_explain_rows {
    struct rw_line *line; /* in the order in which the values are computed */
    size_t n, cap;
    bool replays; /* a row is of a replayed value */
    struct rw_block *block; /* by region */
};

/* RW_ERR_MEMORY leaves *l empty; it is not recorded. */
rw_status rw_explain_rows_init(struct rw_explain_rows *l, const struct rw_planning *g);
void rw_explain_rows_finish(struct rw_explain_rows *l);

#endif
