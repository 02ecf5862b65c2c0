/*
 * A run that is saved: a folder of its own for each test, a small network that trains and is saved there, and a run
 * with one parameter for tests of files only. Criterion must be included.
 */
#ifndef RW_TESTS_SAVED_RUN_H
#define RW_TESTS_SAVED_RUN_H

#include "support/support.h"

/* ---- the folder ---- */

#define SAVED(number, step) number "-step" step ".safetensors"

extern char folder[96]; /* folder of checkpoints, in a new one; the first save creates it */

void folder_open(void);
void folder_close(void); /* no other file may be left */
void empty_folder(const char *where);

/* Sorted names of the files in an existing folder, separated by blanks. */
const char *names_in(const char *where);

/* The path of a checkpoint, valid until the call after the next one. */
const char *file_of(int number, int step);

unsigned char *file_get(const char *path, size_t *ret_bytes); /* the caller frees */
void file_put(const char *path, const void *data, size_t bytes);

/* ---- a run ---- */

struct way {
    const char *policy;
    bool graph;
    int threads;
    const char *verify;
};

struct world {
    struct fixture b;
    struct net net;
    rw_tensor *mean;
    rw_optimizer *opt;
    rw_weight_average *average;
    rw_checkpoint *ck;
    uint64_t step;
    bool written; /* the write before step 4 happened before the save */
};

extern const struct way alone; /* none, without a graph, one thread */

extern const rw_lr_schedule planned;
extern rw_lr_schedule schedule; /* the one that is saved */
extern int kind;             /* of the optimizer; how many states each has is all that differs */

struct world world_open(rw_dtype dtype, const struct way *how);
void world_close(struct world *w);
rw_checkpoint_found world_load(struct world *w);
void world_save(struct world *w);

/* The loop determines the current rate and policies, and writes a parameter before one of the steps. */
void world_step_begins(struct world *w);
void world_train(struct world *w, const struct way *how, uint64_t to);

/* A run with 2 MB to save, so that most kills happen while a file is being written. Loads the folder's newest file. */
struct world large_open(void);

/* One parameter x and its optimizer. */
struct world small_open(void);
rw_tensor *x_of(const struct world *w);
void put_two(struct world *w); /* writes two files, of x = 1 and of x = 2 */
void expect_x(const struct world *w, double want);

#endif
