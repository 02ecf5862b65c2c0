/*
 * A table of invalid calls. Each line is a call; the runner (mistakes.c) runs each in a process of its own and checks
 * the state that it leaves. A line whose arguments have to be created first names them in `made`.
 */
#ifndef RW_TESTS_MISTAKES_TABLE_H
#define RW_TESTS_MISTAKES_TABLE_H

#include "record/tape.h"
#include "support/support.h"

#define HUGE_EXTENT ((int64_t)1 << 40)
#define UNTOUCHED 0xa5

/* Objects available to a call: one of each kind of tensor, and of each kind of invalid one. */
struct world {
    rw_context *ctx, *alien_ctx;
    rw_tape *t, *other, *alien_t; /* other: of the same context */
    rw_tensor *x, *y;             /* inputs f32 [2, 3] */
    rw_tensor *v, *transposed;        /* outputs of ops: f32 [2, 3], and a view [3, 2] that is not dense */
    rw_tensor *image;             /* f32 [1, 3, 2, 2], channels last */
    rw_tensor *four, *matrix, *cube, *heads; /* f32 [4], [3, 5], [2, 3, 4], [1, 2, 3, 4] */
    rw_tensor *wide, *half, *index, *scalar; /* f64 [2, 3], bf16 [2, 3], i32 [2], f32 [] */
    rw_tensor *vast;              /* f32 [2^29, 2^29] that takes four bytes */
    rw_tensor *empty;             /* f32 [0, 3] */
    rw_tensor *loss;              /* depends on p */
    rw_tensor *p, *w, *vector, *table, *buffer, *bias; /* [2, 3], [5, 3], [3], [7, 3], a buffer [2, 3], [5] */
    rw_tensor *dead, *dead_input; /* of t, before its reset */
    rw_tensor *gone;              /* of a destroyed tape */
    rw_tensor *foreign, *alien, *alien_p; /* of other; of another context */
    rw_tensor *p_grad, *v_grad, *dead_grad; /* of p; of a value of other; of one of other before its reset */
    rw_optimizer *opt;
    unsigned char out[256];       /* destinations of calls: UNTOUCHED before and after */
    rw_tensor *parts[8];          /* rw_split() sets them to NULL */
    const char *path;             /* a file that exists and has no weights */
};

/* The call under trial. */
struct trial {
    int wanted, at;               /* number of the line to run, and of the one being read */
    bool chosen;
    const char *function, *call;
    rw_status expected, got;
    bool silent;                  /* the call has no context: its message is that of NULL */
    /* Whether the line is the wanted one, whose text is then stored. */
    bool (*is_at)(struct trial *m, const char *function, const char *call, rw_status expected, bool silent);
    void (*begin)(struct trial *m); /* records the state of the world before the call */
    struct world *world;
};

#define TRIAL(function, call, expected, silent, made, got_)                       \
    do {                                                                          \
        if (m->is_at(m, function, call, expected, silent)) {                   \
            made;                                                                 \
            m->begin(m);                                                          \
            m->got = (got_);                                                      \
        }                                                                         \
    } while (0)

/* A call that returns a status; or one that returns a tensor: NULL, and the sticky status. */
#define STATUS(function, expected, call) TRIAL(function, #call, expected, false, (void)0, call)
#define STATUS_OF(function, expected, made, call) TRIAL(function, #call, expected, false, made, call)
#define TENSOR(function, expected, call) \
    TRIAL(function, #call, expected, false, (void)0, (call) ? RW_OK : rw_error_status(m->world->ctx))
#define TENSOR_OF(function, expected, made, call) \
    TRIAL(function, #call, expected, false, made, (call) ? RW_OK : rw_error_status(m->world->ctx))
/* A call without a context: a status, and the message of no context. */
#define SILENT(function, expected, call) TRIAL(function, #call, expected, true, (void)0, call)
/* A call that the headers allow: the condition on its result must hold. */
#define ALLOWED(function, what_must_be) \
    TRIAL(function, #what_must_be, RW_OK, true, (void)0, (what_must_be) ? RW_OK : RW_ERR_MISMATCH)
#define ALLOWED_OF(function, made, what_must_be) \
    TRIAL(function, #what_must_be, RW_OK, true, made, (what_must_be) ? RW_OK : RW_ERR_MISMATCH)

/* One function for each header, or for a part of one; an op may have its own beside its cases. */
#define MISTAKES(table) void table(struct trial *m, struct world *w);
#include "test_tables.h"

#endif
