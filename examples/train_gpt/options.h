/* The command-line options: --help lists them. */
#ifndef REWIND_EXAMPLES_OPTIONS_H
#define REWIND_EXAMPLES_OPTIONS_H

#include <rewind/rewind.h>

enum { MAX_LAYERS = 96, ALERTS = 16, STEP_TOKENS = 1 << 30 /* maximum of tokens at a time */ };

struct size {
    const char *preset;
    bool llama;
    int layers, heads, kv_heads, width, hidden, seq; /* kv_heads of a preset: 0 for as many as heads */
    bool tied; /* for a Llama: the head is the table; a GPT's always is */
};

extern struct options {
    struct size m;
    const char *data, *val, *policy, *optimizer, *schedule, *checkpoint, *resume, *load, *save, *log, *tensorboard,
        *prometheus, *dashboard, *good, *load_hf;
    int vocab, batch, accum, steps, total, warmup, eval_every, eval_tokens, save_every, keep, sample, threads;
    double lr, min_lr, decay, clip, dropout, temperature, peak;
    uint64_t seed;
    rw_dtype dtype, moments;
    rw_scaling scaling;
    bool fp8, delayed, graph, inside, resume_if_there, replace;
    rw_recovery on[ALERTS]; /* alert 1 << i */
    int lock; /* descriptor with the lock of --checkpoint, until the first save takes it; -1: none */
} o;

/* Prints the message and ends the program with status 2. */
__attribute__((format(printf, 1, 2))) void die(const char *format, ...);

/* Sets o, or ends the program. */
void read_options(int argc, char **argv);

#endif
