/* Runs sessions in child processes and compares their logs. */
#ifndef METAMORPHIC_JUDGE_H
#define METAMORPHIC_JUDGE_H

#include "whole/metamorphic/run.h"

#include <stdio.h>

enum mm_failure {
    MM_EQUAL,
    MM_ALLOWED,  /* a call was refused where this is documented: the rest was not compared */
    MM_INVALID,  /* a statement of the plain session is refused: the session is invalid */
    MM_BYTES,    /* bytes differ */
    MM_STATUS,   /* a plain call has another status */
    MM_SCRIPT,   /* other plain calls were made */
    MM_CLASHES,  /* random numbers were drawn twice */
    MM_CRASH,    /* the process ended, or did not end */
    MM_FAILURES
};

extern const char *const mm_failures[MM_FAILURES];

struct mm_verdict {
    enum mm_failure failure;
    int event;  /* kind of the first event that differs */
    int detail; /* status, or signal */
    char text[700];
};

/* The features that runs covered. */
struct mm_coverage {
    uint64_t runs, sessions, invalid, allowed, eager_goes_on, nodes;
    uint64_t extras[MM_KINDS], refused[MM_KINDS];
};

/* Two logs in shared memory, and a folder for checkpoint files. */
struct mm_court {
    struct mm_log *plain, *other;
    char folder[64];
};

void mm_court_open(struct mm_court *c);
void mm_court_close(struct mm_court *c);

/* Runs the plain session, which must succeed before variants are judged. */
struct mm_verdict mm_judge_plain(struct mm_court *c, const struct mm_session *s, struct mm_coverage *coverage);
/* Runs a variant and compares it with the plain run. */
struct mm_verdict mm_judge_variant(struct mm_court *c, const struct mm_session *s, struct mm_coverage *coverage);
/* Both. */
struct mm_verdict mm_judge(struct mm_court *c, const struct mm_session *variant);

/* Removes the session's extra events and mode. */
void mm_make_plain(struct mm_session *s);

static inline bool mm_is_failure(const struct mm_verdict *v)
{
    return v->failure > MM_INVALID;
}

static inline bool mm_same_failure(const struct mm_verdict *a, const struct mm_verdict *b)
{
    return a->failure == b->failure && a->event == b->event && a->detail == b->detail;
}

/* Makes a failing session as small as possible while it still fails in the same way: its events and settings, and with
   `statements` the programs of its tapes. */
struct mm_verdict mm_shrink(struct mm_court *c, struct mm_session *s, bool statements);
/* Prints the session as a list of calls. */
void mm_print(FILE *out, const struct mm_session *s, const struct mm_verdict *v);

#endif
