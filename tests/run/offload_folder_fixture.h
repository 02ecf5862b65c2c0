/*
 * A net whose values are offloaded to a folder, for the suites of stores in files. Calls of the file system are
 * redirected to this file's, which delay and fail as a test requires (suite_wraps in meson.build).
 */
#ifndef RW_TESTS_OFFLOAD_FOLDER_FIXTURE_H
#define RW_TESTS_OFFLOAD_FOLDER_FIXTURE_H

#include "support/support.h"

enum { LAYERS = 4, WIDTH = 64, TOKENS = 37, STALL_US = 150000 };

/* Faults of the calls. All zero: none. */
extern struct plant {
    int fail_write, fail_read; /* the n-th call from now on fails, 0: none */
    int error;                 /* with this; 0: nothing is transferred */
    unsigned delay;            /* maximum microseconds of a delay before each call */
    int stall_write;           /* the n-th call from now on takes STALL_US longer, 0: none */
    bool refuses_direct;       /* reads and writes with O_DIRECT fail */
    bool refuses_threads;
    int writes, reads, fallocate_error;
    int interrupted_fallocates; /* so many calls from now on end with EINTR */
    int files, direct;            /* files created; reads and writes that bypass the page cache */
    const char *lowest, *highest; /* range of memory that was written from and read to */
} plant;

/* Before and after each test. The folder must be empty afterwards. */
extern char folder[64];
void make_folder(void);
void remove_folder(void);

struct world {
    struct fixture b;
    struct net n;
};

/* Rates are given: nothing is measured, and plans are always the same. */
struct world open_world(const char *policy, const char *path, int threads);

struct outcome {
    unsigned char *gradients;
    size_t bytes;
    double loss;
    rw_memory memory;
};

struct outcome outcome_in(struct world *w, int micro, bool reads);
struct outcome outcome_of(const char *policy, const char *path, int threads, int micro, bool reads);
bool is_same(const struct outcome *a, const struct outcome *b);

/* Checks that the context's message contains both. */
void expect_message(const struct world *w, const char *a, const char *b);

/* Repeats the same step from the recorded tape. */
void expect_recovery(struct world *w, rw_tensor *loss, const struct outcome *none);

#endif
