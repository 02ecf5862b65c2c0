/* Runs a program once, and logs everything observable: two runs must log the same. */
#ifndef FUZZ_RUN_H
#define FUZZ_RUN_H

#include "whole/fuzz/program.h"

/* In the order of precedence: the first one is reported if several things differ. */
enum fz_failure {
    FZ_FINE,
    FZ_REFUSED,    /* a call fails that should succeed */
    FZ_STATUS,     /* a call's status differs */
    FZ_LOSS,       /* the bytes of a loss */
    FZ_VALUE,      /* of a value that was read */
    FZ_GRADIENT,   /* of a gradient */
    FZ_PARAMETER,  /* of a parameter or buffer after the step */
    FZ_GENERATOR,  /* the generator's state */
    FZ_EFFECT,     /* an effect happened another number of times */
    FZ_PEAK,       /* the predicted peak is not the measured one */
    FZ_REPORT,     /* ckpt_verify() disagrees */
    FZ_CRASH,      /* the process ended */
    FZ_FAILURES
};

extern const char *const fz_failure_names[FZ_FAILURES];

struct fz_log {
    unsigned char *data;
    size_t bytes, room;
};

struct fz_run {
    const struct fz_program *p;
    struct fz_log log;
    enum fz_failure failure; /* detected within the run */
    rw_status status;
    char text[400];
    size_t nodes, replayed; /* recorded, and re-executed by backward */
    bool finite;            /* every loss */
};

/* Runs with the program's policy, threads and mode, or with `none` and one thread if plain. */
void fz_run(struct fz_run *r, const struct fz_program *p, bool plain);
void fz_run_finish(struct fz_run *r);

/* The first difference between two runs of a program; FZ_FINE if there is none. */
enum fz_failure fz_compare(const struct fz_run *plain, const struct fz_run *other, char *text, size_t size);

/* Whether gradients of the first step differ. */
bool fz_gradients_differ(const struct fz_run *plain, const struct fz_run *other);

#endif
