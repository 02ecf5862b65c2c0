/* recompute_sweep: what memory costs in time. Options, one row per (sequence length, policy), and the files written. */
#ifndef REWIND_BENCH_SWEEP_H
#define REWIND_BENCH_SWEEP_H

#include "models/model.h"

#define SWEEP_MOST 64

struct sweep_options {
    struct model_config model;
    const char *preset, *device, *data, *out;
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

struct sweep_row {
    const char *policy;
    int seq;
    double step_ms, ratio;
    size_t kept, peak, predicted, replayed;
    double loss;
    double *losses; /* one per step */
    bool identical;
};

/* Each returns false, with errno set, when the file cannot be written. */
bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_svg(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_html(const struct sweep_options *o, const struct sweep_row *rows, int n);

#endif
