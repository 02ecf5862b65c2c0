/*
 * Shared code of the conformance suites: runs a step of a program under several policies and compares the results byte
 * for byte. Numbers in the suites' comments refer to this list of behaviors, which test suites and bug reports of other
 * checkpointing runtimes require:
 *
 *    1 replayed nodes run twice, others once        15 a value computed in a region and used after it
 *    2 equal outputs and gradients                  16 dropout under every choice of kept values
 *    3 dropout before, in and after a region        17 an auxiliary output of a region's last op
 *    4 bytes held drop all through backward         18 state changes once per step
 *    5 the peak is lower, and as predicted          19 a change between record and replay is named
 *    6 a parameter used in several places           20 ties in routing
 *    7 replayed once, dropped after the last use    22 precision belongs to the recorded op
 *    8 a backward that fails                        23 no random word twice
 *    9 nested regions, gradients of gradients       25 no dependence on threads, alignment or history
 *   10 nothing is replayed needlessly               26 no growth, no leak
 *   11 selective saving of products                 27 cost of a region
 *   12 several outputs, integer outputs             28 misuse of regions and tapes
 *   13 uniform: and block: that do not divide evenly
 *   14 views across a region's edge
 */
#ifndef RW_TESTS_CONFORMANCE_COMMON_H
#define RW_TESTS_CONFORMANCE_COMMON_H

#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Records one step and returns its loss. Parameters are created by the first call. */
typedef rw_tensor *(*program)(struct fixture *b);

/* Values that the program wants compared, with their gradients if it requested them. */
#define WATCHED 8
static rw_tensor *watched[WATCHED];
static int n_watched;

static inline rw_tensor *watch(rw_tensor *x)
{
    return watched[n_watched++] = x;
}

/* Gradients of all parameters, the loss, the generator, compared values and their gradients, concatenated. */
struct answer {
    unsigned char *bytes;
    size_t n;
    size_t replayed; /* nodes */
    rw_memory memory;
};

static inline void append(struct answer *a, const void *data, size_t bytes)
{
    a->bytes = realloc(a->bytes, a->n + bytes + 1);
    memcpy(a->bytes + a->n, data, bytes);
    a->n += bytes;
}

static inline void append_tensor(struct answer *a, rw_tape *t, rw_tensor *x)
{
    const size_t bytes = rw_tensor_bytes(x);
    void *const data = malloc(bytes + 1);
    cr_assert_eq(rw_read(t, x, data, bytes), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    append(a, data, bytes);
    free(data);
}

/* One step on an existing fixture. The tape is reset afterwards; the gradients stay. */
static inline struct answer step_of(struct fixture *b, program p)
{
    struct answer a = { 0 };
    n_watched = 0;
    rw_zero_grad(b->ctx);
    rw_tensor *const loss = p(b);
    rw_cost cost;
    cr_assert_eq(rw_tape_cost(b->t, loss, &cost), RW_OK, "%s", rw_error_message(b->ctx));
    a.replayed = cost.replayed_nodes;
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_memory_stats(b->ctx, &a.memory), RW_OK);
    a.bytes = all_gradients(b->ctx, &a.n);
    append_tensor(&a, b->t, loss);
    const rw_generator_state g = rw_generator_get(b->ctx);
    append(&a, &g, sizeof g);
    for (int i = 0; i < n_watched; i++) {
        append_tensor(&a, b->t, watched[i]);
        if (rw_gradient(watched[i])) append_tensor(&a, b->t, rw_gradient(watched[i]));
    }
    rw_tape_reset(b->t);
    return a;
}

static inline struct answer answer_of(program p, const char *policy, int threads)
{
    struct fixture b = fixture_open(21, threads);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    const struct answer a = step_of(&b, p);
    fixture_close(&b);
    return a;
}

static inline void expect_same(const struct answer *a, const struct answer *b, const char *what)
{
    cr_assert_eq(a->n, b->n, "%s: %zu bytes and %zu", what, a->n, b->n);
    cr_assert_eq(first_difference(a->bytes, b->bytes, a->n), -1, "%s: byte %ld of %zu differs", what,
                 first_difference(a->bytes, b->bytes, a->n), a->n);
}

static inline void answer_free(struct answer *a)
{
    free(a->bytes);
    a->bytes = NULL;
}

/* Checks that the program gives the same bytes under each policy as under none, and that some policy has replayed
   something. */
static inline void expect_same_under(program p, const char *const *policies, size_t n)
{
    struct answer none = answer_of(p, "none", 2);
    size_t replayed = 0;
    for (size_t i = 0; i < n; i++) {
        struct answer a = answer_of(p, policies[i], 2);
        expect_same(&none, &a, policies[i]);
        replayed += a.replayed;
        answer_free(&a);
    }
    cr_assert_gt(replayed, 0, "nothing was replayed: the comparison proves nothing");
    answer_free(&none);
}
#define NAMES(...) (const char *const[]){ __VA_ARGS__ }
#define SAME_UNDER(p, ...) expect_same_under(p, NAMES(__VA_ARGS__), sizeof(NAMES(__VA_ARGS__)) / sizeof(char *))

/* A parameter of normal deviates, created by the first call. */
static inline rw_tensor *normal(struct fixture *b, const char *name, rw_dtype dtype, rw_shape shape, double std)
{
    rw_tensor *p = rw_param_find(b->ctx, name);
    if (p) return p;
    p = rw_param(b->ctx, name, dtype, shape);
    cr_assert_eq(rw_init_normal(p, 0, std), RW_OK, "%s", rw_error_message(b->ctx));
    return p;
}

/* scale * (1, 2, ..., n) / n; at most 64 elements. */
static inline rw_tensor *ramp(struct fixture *b, const char *name, int n, float scale)
{
    rw_tensor *p = rw_param_find(b->ctx, name);
    if (p) return p;
    p = rw_param(b->ctx, name, RW_F32, RW_SHAPE(n));
    float v[64];
    for (int i = 0; i < n; i++) v[i] = scale * (float)(i + 1) / (float)n;
    cr_assert_eq(rw_write(p, v, (size_t)n * sizeof *v), RW_OK);
    return p;
}

static inline rw_tensor *total(struct fixture *b, rw_tensor *x)
{
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

#endif
