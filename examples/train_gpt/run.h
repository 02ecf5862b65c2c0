/* A run: its steps, and what is done between them. */
#ifndef REWIND_EXAMPLES_RUN_H
#define REWIND_EXAMPLES_RUN_H

#include "dashboard.h"
#include "data.h"

struct run {
    rw_context *ctx;
    rw_tape *t;
    rw_optimizer *opt;
    rw_scaler *scaler;   /* of f16; NULL: none */
    uint64_t left_out;   /* updates that it has left out: the schedule is one of updates that were made */
    rw_delayed *delayed; /* NULL: none */
    rw_schedule schedule;
    rw_checkpoint *ck;
    rw_monitor *monitor;
    struct dashboard page;
    rw_generator_state drawn; /* before this step */
    double scale; /* of the loss in this step; 0: none */
    double seen; /* the clock at the step before; 0: there was none */
    int roll_backs;
    struct tokens train, val;
    int32_t *in, *out;
    /* --graph */
    rw_graph *graph;
    rw_tensor *x, *y, *loss;
};

/* What a run must have in common with the one that it goes on from, to make the same bytes. */
struct identity {
    uint64_t seed, tokens;
    int32_t batch, accum, seq, vocab, layers, heads, kv_heads, codes;
    double dropout, clip, decay;
};

struct identity identity_of(const struct run *r);

/* From step `first` to the last one. */
rw_status train(struct run *r, int first);

/* The learning rate of a step. */
double rate_of(const struct run *r, uint64_t step);

/* The optimizer's step; a graph has made its own. */
rw_status update(struct run *r);

/* No step: what was computed for one is left. */
rw_status leave_out(struct run *r);

/* Writes the page, if there is to be one. */
void show(struct run *r, bool last);

#endif
