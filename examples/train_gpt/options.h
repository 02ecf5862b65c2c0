/* What can be chosen on the command line: --help lists it. */
#ifndef REWIND_EXAMPLES_OPTIONS_H
#define REWIND_EXAMPLES_OPTIONS_H

#include <rewind/rewind.h>

enum { MAX_LAYERS = 96, ALERTS = 16 };

struct size {
    const char *preset;
    bool llama;
    int layers, heads, kv_heads, width, hidden, seq;
};

extern struct options {
    struct size m;
    const char *data, *val, *policy, *optimizer, *schedule, *checkpoint, *resume, *load, *save, *log, *tensorboard,
        *prometheus, *dashboard, *good, *load_hf;
    int vocab, batch, accum, steps, total, warmup, eval_every, eval_batches, save_every, keep, sample, threads;
    double lr, min_lr, decay, clip, dropout, temperature, peak;
    uint64_t seed;
    rw_dtype dtype, moments;
    rw_scaling scaling;
    bool fp8, delayed, graph, inside;
    rw_recovery on[ALERTS]; /* alert 1 << i */
} o;

/* Ends the program with a message, which has one %s. */
void die(const char *format, const char *what);

/* Fills in o, or ends the program. */
void read_options(int argc, char **argv);

#endif
