/* The state of a session in progress. */
#ifndef METAMORPHIC_SESSION_STATE_H
#define METAMORPHIC_SESSION_STATE_H

#include "whole/metamorphic/run.h"

struct mm_stage {
    const struct mm_session *s;
    struct mm_log *log;
    const char *folder;
    rw_context *ctx;
    rw_tape *tape[MM_TAPES];
    rw_tensor *value[MM_TAPES][FZ_STATEMENTS * FZ_OUTS];
    rw_optimizer *opt;
    rw_scaler *scaler;
    rw_weight_average *average;
    rw_checkpoint *checkpoint;
    rw_graph *graph[2]; /* of tape 0, one for each loss */
    int launches;       /* of both, that did not fail */
    int step;
    bool over;  /* a statement was refused: the rest is not compared */
    bool clear; /* all gradients of parameters are clear */
    bool copies, views; /* copies the value of the next rw_assign(); reads the next gradients through views */
    uint32_t armed[MM_TAPES];
    bool excused[MM_TAPES]; /* something that the recorded step reads has changed: it may return RW_ERR_MODIFIED */
};

/* Records a statement of a tape's program on t. False: it was refused, and the error sticks. */
bool mm_record(struct mm_stage *g, int tape, int statement, rw_tape *t);

/* Makes an extra call, counts its result, and clears its error. */
void mm_extra(struct mm_stage *g, const struct mm_event *e);

#endif
