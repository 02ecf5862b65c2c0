/* Checkpoints of a run: which run they belong to, resuming from them, rolling back to them. */
#ifndef REWIND_EXAMPLES_SAVES_H
#define REWIND_EXAMPLES_SAVES_H

#include "run.h"

/* Opens --checkpoint and continues from --resume. *first: the next step. */
rw_status saves_open(struct run *r, int *first);

/* Saves the first checkpoint of a run that may be rolled back before its first regular save. */
rw_status saves_begin(struct run *r, int first);

/* Saves, if there is a folder and the weights are finite. steps: number of steps made. */
rw_status save(struct run *r, int steps);

/* Waits until the last checkpoint is complete. */
rw_status saves_wait(struct run *r);

/* Reports once, to stderr, secondary failures of the last save, such as an old file that could not be removed. Waits
   for that save. */
void saves_warn(struct run *r);

/*
 * Loads the newest complete checkpoint that this run saved or resumed from. If `step` is the first one after the last
 * load, that file's weights have failed twice: it is renamed to *.failed, and the one before it is used. ret_step
 * receives the step to continue from, -1 if no checkpoint is left.
 */
rw_status saves_go_back(struct run *r, int step, int *ret_step);

#endif
