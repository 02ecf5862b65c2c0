/* recompute_sweep: the time cost of saving memory. Options, one row per (sequence length, policy), and the files
   written. */
#ifndef REWIND_BENCH_SWEEP_STRUCTS_H
#define REWIND_BENCH_SWEEP_STRUCTS_H

#include "models/model.h"
#include "step_digests.h"

#include <stdio.h>

#define SWEEP_MAX 64   /* entries of a list */
#define SWEEP_POINTS 256 /* of a predicted curve */
#define SWEEP_PATH 4096 /* a file's name; sweep_options_read() checks that those in `out` fit */
#define SWEEP_COMMAND (8 * SWEEP_PATH) /* names three files, and each ' of a name takes four bytes */

struct sweep_text {
    unsigned char *bytes;
    size_t n;
};

struct sweep_options {
    struct model_config model;
    const char *preset; /* preset of the sizes */
    bool custom;        /* a size was given */
    const char *device, *data, *out;
    char *policies[SWEEP_MAX];
    int n_policies;
    bool names_policies; /* --policy was given */
    int seqs[SWEEP_MAX], n_seqs;
    bool names_seqs, names_batch; /* --seq, --batch were given */
    int batch, steps, threads;
    size_t fit;    /* --fit: bytes; 0: not given */
    bool fit_seq;  /* --grow seq: the length grows; false: the batch */
    bool advise, all; /* --advise; --all: with a line for every value */
    const char *costs; /* the cost file, read if it exists, else measured and written */
    bool has_costs, measures_costs, has_ceilings; /* has_ceilings: calibrated for the machine */
    double ceiling; /* 1e12 operations per second of a plain product on the device, measured before the first row */
    uint64_t seed;
    char command[1024];
};

/* The meaning of --seq for this model, for the output. */
static inline const char *sweep_seq_name(const struct sweep_options *o)
{
    return model_is_of_images(o->model.kind) ? "side" : "length";
}

/* Whether the model's layers, heads and attention are chosen: networks of convolutions have their own. */
static inline bool sweep_has_layers(const struct sweep_options *o)
{
    return o->model.kind < MODEL_RESNET50;
}

/* The dropout of the model: its own, or that of --dropout. */
static inline float sweep_dropout(const struct sweep_options *o)
{
    return o->model.kind == MODEL_VGG16 ? 0.5f : o->model.dropout;
}

/* Whether the model drops values, at any rate. */
static inline bool sweep_has_dropout(const struct sweep_options *o)
{
    return sweep_has_layers(o) || o->model.kind == MODEL_VGG16;
}

static inline bool sweep_has_attention(const struct sweep_options *o)
{
    return sweep_has_layers(o) && o->model.kind != MODEL_MAMBA2;
}

/* Appends a word, quoted if a shell would read it differently. *n: the length so far; size or more: it does not fit. */
void sweep_put_word(char *text, size_t size, size_t *n, const char *word);

/* Reads the command line. 0: go on; otherwise the exit status plus one (1 after --help). Messages go to stderr. */
int sweep_options_read(struct sweep_options *o, int argc, char **argv);
void sweep_options_finish(struct sweep_options *o);

struct sweep_row {
    const char *policy;
    int seq;
    double step_ms, ratio;
    double tflops; /* operations of forward and backward per second of a step, 1e12; replays do not count */
    size_t kept, peak, predicted, replayed;
    size_t device; /* in use on the device, as its driver counts; 0 if unknown */
    size_t resident; /* maximum resident bytes of the process during a step in a context of its own; 0: unknown */
    double predicted_ms;
    double loss;
    struct outcome outcome; /* of the rounds, in which the steps of all rows begin with the same state */
    struct outcome own;     /* of a run of its own, with its own updates */
    bool identical;
};

/* For one sequence length: the result of rw_tape_frontier(), with times relative to the prediction for none; with a
   store (sweep_has_store()) also for budgets with +offload. */
struct sweep_curve {
    rw_frontier_point point[SWEEP_POINTS], moved[SWEEP_POINTS];
    size_t n, n_moved;
    double none_ms;
    bool has_bound;
    const struct sweep_row *busy; /* a row whose time is far from its prediction by costs of this run; NULL: none */
};

/* A file in o->out, written under a name of its own, one at a time. sweep_close() renames it if all of it could be
   written. Else it returns false, with errno set, and the earlier file is unchanged. */
FILE *sweep_open(const struct sweep_options *o, const char *name);
bool sweep_close(FILE *f, const struct sweep_options *o, const char *name);

/* Each returns false, with errno set, if the file cannot be written. rows has o->n_policies rows for each length. */
bool sweep_write_csv(const struct sweep_options *o, const struct sweep_row *rows, int n);
bool sweep_write_json(const struct sweep_options *o, const struct sweep_row *rows, int n);
/* curves: one for each length. */
bool sweep_write_svg(const struct sweep_options *o, const struct sweep_row *rows, int n,
                     const struct sweep_curve *curves);
bool sweep_write_html(const struct sweep_options *o, const struct sweep_row *rows, int n,
                      const struct sweep_curve *curves);

/* The command that reproduces this row: everything on which its loss and its memory depend. */
void sweep_row_command(const struct sweep_options *o, const struct sweep_row *r, char *text, size_t size);

/* Per cent of the measured maximum rate. */
static inline double sweep_utilisation(const struct sweep_options *o, const struct sweep_row *r)
{
    return o->ceiling > 0 ? 100 * r->tflops / o->ceiling : 0;
}

/* SVG of the rows of one sequence length, and the predicted curve. narrow: for a phone. style is inserted into the
   element unescaped. */
void sweep_chart_memory(FILE *f, const struct sweep_row *rows, int n, const struct sweep_curve *c, bool narrow,
                        const char *class, const char *style);
void sweep_chart_loss(FILE *f, const struct sweep_options *o, const struct sweep_row *rows, int n, bool narrow,
                      const char *class);

/* Whether a loss of a row differs from that of another one. */
bool sweep_losses_differ(const struct sweep_row *rows, int n);

/* A unit, and its size in the unit of the argument, which is the largest number that is shown: so that a number has
   neither many digits nor many zeros. */
struct sweep_unit {
    double of;
    const char *name;
};
struct sweep_unit sweep_byte_unit(size_t most);
struct sweep_unit sweep_rate_unit(double tflops);
struct sweep_unit sweep_time_unit(double ms);

/* Escapes text for HTML and SVG. */
void sweep_escape(FILE *f, const char *s);

#endif
