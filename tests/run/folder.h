/*
 * A net whose values wait in a folder, for the suites of stores in files. The file system's calls go through this
 * file's own, which delay and fail as a test says (suite_wraps in meson.build).
 */
#ifndef RW_TESTS_FOLDER_H
#define RW_TESTS_FOLDER_H

#include "support/support.h"

enum { LAYERS = 4, WIDTH = 64, TOKENS = 37, STALL_US = 150000 };

/* What the calls do. All zero: what they are asked to. */
extern struct plant {
    int fail_write, fail_read; /* the n-th from now on fails, 0: none */
    int error;                 /* with this; 0: nothing is transferred */
    unsigned delay;            /* at most so many microseconds before each */
    int stall_write;           /* the n-th from now on takes STALL_US more, 0: none */
    bool refuses_direct;       /* once a file is read or written past the cache */
    bool refuses_threads;
    int writes, reads, fallocate_error;
    int files, direct;            /* that were made; writes and reads past the page cache */
    const char *lowest, *highest; /* memory that was written from and read to */
} plant;

/* Before and behind each test. Nothing may lie in the folder then. */
extern char folder[64];
void make_folder(void);
void remove_folder(void);

struct world {
    struct fixture b;
    struct net n;
};

/* Given rates: nothing is measured, plans are the same each time. */
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

/* The context's message has both. */
void expect_message(const struct world *w, const char *a, const char *b);

/* The same step again, from what is recorded. */
void expect_recovery(struct world *w, rw_tensor *loss, const struct outcome *none);

#endif
