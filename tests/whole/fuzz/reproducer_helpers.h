/* Functions that printed programs call: a run without recompute is recorded, and one with recompute is compared with
   it. */
#ifndef FUZZ_REPRODUCER_HELPERS_H
#define FUZZ_REPRODUCER_HELPERS_H

#include "whole/fuzz/custom_ops.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define FOUND_MAX 256

struct found {
    int policy; /* 0: records; 1: compares */
    int n[2];
    size_t bytes[FOUND_MAX];
    void *data[FOUND_MAX];
};

static inline void found_bytes(struct found *f, const void *data, size_t bytes)
{
    const int i = f->n[f->policy]++;
    cr_assert_lt(i, FOUND_MAX);
    if (!f->policy) {
        f->data[i] = malloc(bytes + 1);
        memcpy(f->data[i], data, f->bytes[i] = bytes);
        return;
    }
    cr_assert_lt(i, f->n[0]);
    cr_assert_eq(f->bytes[i], bytes);
    cr_assert_eq(first_difference(f->data[i], data, bytes), -1, "number %d of what is compared", i);
}

static inline void found_item(struct found *f, double item)
{
    found_bytes(f, &item, sizeof item);
}

static inline void found_read(struct found *f, rw_tape *t, rw_tensor *x)
{
    void *const data = malloc(rw_tensor_bytes(x) + 1);
    cr_assert_eq(rw_read(t, x, data, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    found_bytes(f, data, rw_tensor_bytes(x));
    free(data);
}

static inline void found_parameters(struct found *f, rw_context *ctx)
{
    size_t bytes;
    unsigned char *const all = all_parameters(ctx, &bytes);
    found_bytes(f, all, bytes);
    free(all);
}

static inline void found_backward(struct found *f, rw_tape *t, rw_tensor *loss)
{
    rw_context *const ctx = rw_tape_context(t);
    rw_memory m;
    size_t bytes;
    cr_assert_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(ctx));
    rw_memory_stats(ctx, &m);
    cr_assert_eq(m.predicted_peak, m.measured_peak);
    unsigned char *const all = all_gradients(ctx, &bytes);
    found_bytes(f, all, bytes);
    free(all);
    const rw_generator_state state = rw_generator_get(ctx);
    found_bytes(f, &state, sizeof state);
}

static inline void found_finish(struct found *f)
{
    cr_assert_eq(f->n[0], f->n[1]);
    for (int i = 0; i < f->n[0]; i++) free(f->data[i]);
}

#endif
