/* The rows of one sequence length: measured, timed alternately, predicted. */
#ifndef REWIND_BENCH_SWEEP_MEASURE_POLICIES_H
#define REWIND_BENCH_SWEEP_MEASURE_POLICIES_H

#include "sweep/sweep_structs.h"

/* Measures costs in steps under `none` and saves them to o->costs. */
rw_status sweep_measure_costs(struct sweep_options *o, const struct sweep_text *text, int seq);

/* policy and seq of each are given. Prints errors. */
rw_status sweep_run_rows(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row **row, int n);

#endif
