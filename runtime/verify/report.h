/* Fills in and prints a ckpt_report. */
#ifndef RW_VERIFY_REPORT_H
#define RW_VERIFY_REPORT_H

#include "plan/plan.h"
#include "record/tape.h"

#include <rewind/verify.h>

/* Of a node of the plan; plan: NULL for a recorded node. */
void rw_report_place(const rw_tape *t, const rw_plan *plan, const struct rw_node *node, bool replay,
                     ckpt_report *report);

/* Element i of an array as a number, and its bits. */
double rw_report_number(const void *data, size_t i, rw_dtype dtype, uint64_t *ret_bits);

/* The first differing element of two dense arrays. */
void rw_report_element(const void *expected, const void *got, size_t bytes, rw_dtype dtype, ckpt_report *report);

void rw_report_text(const ckpt_report *report, char *text, size_t size);

#endif
