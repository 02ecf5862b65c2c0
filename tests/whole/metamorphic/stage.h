/* A session in progress. */
#ifndef METAMORPHIC_STAGE_H
#define METAMORPHIC_STAGE_H

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
    rw_average *average;
    rw_checkpoint *checkpoint;
    rw_graph *graph[2]; /* of tape 0, one for each loss */
    int step;
    bool over;  /* a statement was refused: what follows is not the session */
    bool clear; /* all gradients of parameters are */
    bool copies, views; /* of the next rw_assign() the value; of the next gradients */
    uint32_t armed[MM_TAPES];
    bool excused[MM_TAPES]; /* something that the recorded step reads has changed: it may be RW_ERR_CHANGED */
};

/* Records a statement of a tape's program on t. False: it was refused, and the error sticks. */
bool mm_record(struct mm_stage *g, int tape, int statement, rw_tape *t);

/* Makes an extra call. What it returns is counted, its error cleared. */
void mm_extra(struct mm_stage *g, const struct mm_event *e);

#endif
