/* recompute_sweep: what memory costs in time. Options, one row per (sequence length, policy), and the files written. */
#ifndef REWIND_BENCH_SWEEP_H
#define REWIND_BENCH_SWEEP_H

#include "models/model.h"

#include <stdio.h>
#include <xxhash.h>

#define SWEEP_MOST 64   /* entries of a list */
#define SWEEP_PATH 4096 /* a file's name; sweep_options_read() sees to it that those in `out` fit */

struct sweep_options {
    struct model_config model;
    const char *preset; /* as reported: "custom" when a size was given */
    const char *device, *data, *out;
    char *policies[SWEEP_MOST];
    int n_policies;
    int seqs[SWEEP_MOST], n_seqs;
    int batch, steps, threads;
    uint64_t seed;
    char command[1024];
};

/* Reads the command line. 0: go on; otherwise the exit status plus one (1 after --help). Messages go to stderr. */
int sweep_options_read(struct sweep_options *o, int argc, char **argv);
void sweep_options_finish(struct sweep_options *o);

/* Losses and digests of gradients at every step; parameters and generator after the last. */
struct sweep_outcome {
    int steps;
    double *losses;
    XXH128_hash_t *gradients, parameters;
    rw_generator_state generator;
};

/* Room for `steps` steps and the one before them. False without memory. */
bool sweep_outcome_open(struct sweep_outcome *o, int steps);
void sweep_outcome_close(struct sweep_outcome *o);

/* Notes a loss and the gradients as they are after backward; the state that the last optimizer step left. */
rw_status sweep_outcome_step(struct sweep_outcome *o, rw_context *ctx, int step, double loss);
rw_status sweep_outcome_end(struct sweep_outcome *o, rw_context *ctx);

/* Whether two runs are the same to the last bit; if not, ret_where says what differs first. */
bool sweep_outcome_same(const struct sweep_outcome *a, const struct sweep_outcome *b, char *ret_where, size_t size);

struct sweep_row {
    const char *policy;
    int seq;
    double step_ms, ratio;
    size_t kept, peak, predicted, replayed;
    double loss;
    struct sweep_outcome outcome;
    bool identical;
};

/* A file in o->out; sweep_close() returns false, with errno set, when anything could not be written. */
FILE *sweep_open(const struct sweep_options *o, const char *name);
bool sweep_close(FILE *f);

/* Each returns false, with errno set, when the file cannot be written. rows has o->n_policies rows for each length. */
bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_svg(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_html(const struct sweep_options *o, const struct sweep_row *rows, int n);

/* SVG of the rows of one sequence length. style goes into the element as it stands. */
void sweep_chart_memory(FILE *f, const struct sweep_row *rows, int n, const char *style);
void sweep_chart_loss(FILE *f, const struct sweep_row *rows, int n);

/* Text as HTML and SVG take it. */
void sweep_escape(FILE *f, const char *s);

#endif
