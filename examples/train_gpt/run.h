/* A training run: its steps, and the work between them. */
#ifndef REWIND_EXAMPLES_RUN_H
#define REWIND_EXAMPLES_RUN_H

#include "dashboard.h"
#include "data.h"

/* Exit statuses besides 0 and 2 (the command line). ENDED_WRONG: a loss, gradients or weights are not finite, and no
   weights are saved. ENDED_EARLY: another alert has stopped the run, and they are. */
enum { ENDED_BY_ERROR = 1, ENDED_WRONG = 3, ENDED_EARLY = 4, ENDED_BY_SIGNAL = 128 };

struct run {
    rw_context *ctx;
    rw_tape *t;
    rw_optimizer *opt;
    rw_scaler *scaler;   /* for f16; NULL: none */
    uint64_t left_out;   /* number of skipped updates: the schedule counts updates that were made */
    rw_delayed_scaling *delayed; /* NULL: none */
    rw_lr_schedule schedule;
    double rate; /* of this step */
    rw_monitor *monitor;
    uint64_t lost_lines; /* of the log, or of the files next to it */
    struct dashboard page;
    char command[1024]; /* the command line */
    rw_generator_state drawn; /* before this step */
    double scale; /* scale of the loss in this step; 0: none */
    double seen; /* time of the step before; 0: there was none */
    int roll_backs;
    int ended; /* the exit status if training ended before its last step, or diverged; 0: it did not */
    double loss; /* of the last step */
    struct tokens train, val;
    uint64_t train_digest, val_digest;
    size_t windows; /* of an evaluation */
    int32_t *in, *out;
    /* --checkpoint */
    rw_checkpoint *ck;
    uint64_t id;       /* identifies the run in its checkpoints */
    bool has_saved;    /* the folder has a checkpoint of this run */
    bool lost_checkpoint; /* one could not be written */
    int saved_step;    /* of the last checkpoint that was saved */
    int loaded_step;   /* of the checkpoint that was loaded last; -1: none was */
    char loaded[256];  /* that file */
    /* --graph */
    rw_graph *graph;
    rw_tensor *x, *y, *loss_of_graph;
};

/* Trains from step `first` to the last one, or to a signal (signals.h): the step is finished and saved, and
   r->ended set. */
rw_status train(struct run *r, int first);

/* Handles the monitor's status: a line that could not be written is reported once and counted, and is not an error. */
rw_status logged(struct run *r, rw_status status);

/* The learning rate of a step. */
double rate_of(const struct run *r, uint64_t step);

/* The optimizer's step; a graph has made its own. */
rw_status update(struct run *r);

/* Discards a step. */
rw_status leave_out(struct run *r);

/* Writes the page, if requested. */
void show(struct run *r, bool last);

#endif
