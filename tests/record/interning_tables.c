/*
 * The tables of a context: names, call sites, layouts. A program that makes new entries in each step never runs out of
 * space, and an index that has been reused for another name or layout never finds the plan of the old one.
 */
#include "support/support.h"

#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t table_bytes(const struct fixture *b)
{
    rw_memory m;
    cr_assert_eq(rw_memory_stats(b->ctx, &m), RW_OK);
    return m.tables;
}

Test(interning_tables, names_created_in_every_step)
{
    struct fixture b = fixture_open(1, 1);
    char name[32];
    size_t filled = 0;
    for (int step = 0; step < 3000; step++) {
        for (int i = 0; i < 50; i++) {
            snprintf(name, sizeof name, "step%d.layer%d", step, i);
            cr_assert_eq(ckpt_begin(b.t, name), RW_OK, "%s: %s", name, rw_error_message(b.ctx));
            snprintf(name, sizeof name, "tag%d.%d", step, i);
            rw_tensor *const x = ckpt_name(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2), NULL, 0), name);
            cr_assert_not_null(x, "%s", rw_error_message(b.ctx));
            cr_assert_str_eq(rw_tensor_name(x), name);
            cr_assert_eq(ckpt_end(b.t), RW_OK);
        }
        rw_tape_reset(b.t);
        if (step == 1000) filled = table_bytes(&b);
    }
    cr_assert_leq(table_bytes(&b), filled + 32768); /* including entries of the last steps */
    cr_assert_lt(table_bytes(&b), (size_t)1 << 20);
    fixture_close(&b);
}

Test(interning_tables, a_tape_keeps_the_names_that_it_uses)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *other = NULL;
    char name[32], path[64];
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    ckpt_begin(other, "long");
    ckpt_begin(other, "lived");
    rw_tensor *const x = ckpt_name(other, rw_input(other, RW_F32, RW_SHAPE(2), NULL, 0), "tagged");
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "r%d", i);
        ckpt_begin(b.t, name);
        ckpt_end(b.t);
        rw_tape_reset(b.t);
    }
    rw_region_path(other, 1, path, sizeof path);
    cr_assert_str_eq(path, "long/lived");
    cr_assert_str_eq(rw_tensor_name(x), "tagged");
    rw_tape_destroy(&other);
    fixture_close(&b);
}

Test(interning_tables, names_that_are_all_in_use_end_with_a_message)
{
    struct fixture b = fixture_open(1, 1);
    char name[32];
    rw_status status = RW_OK;
    int i = 0;
    for (; !status && i < 70000; i++) {
        snprintf(name, sizeof name, "r%d", i);
        status = ckpt_begin(b.t, name);
        if (!status) ckpt_end(b.t);
    }
    cr_assert_eq(status, RW_ERR_MEMORY);
    cr_assert_eq(i - 1, RW_NAMES_MAX);
    cr_assert(strstr(rw_error_message(b.ctx), "65534 names"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(ckpt_begin(b.t, "another"), RW_OK, "a reset frees them");
    ckpt_end(b.t);
    fixture_close(&b);
}

/* A step whose region has that name: number of replayed nodes. */
static int replays_of(struct fixture *b, const char *name)
{
    counted_clear();
    rw_tensor *const x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(4), NULL, 0));
    ckpt_begin(b->t, name);
    rw_tensor *const y = counted_square(b->t, counted_square(b->t, x, 0), 1);
    ckpt_end(b->t);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return counted_runs[0] + counted_runs[1] - 2;
}

Test(interning_tables, an_index_that_has_another_name_finds_another_plan)
{
    struct fixture b = fixture_open(1, 1);
    char name[32];
    ckpt_set_policy(b.t, "selective:chosen");
    cr_assert_eq(replays_of(&b, "first"), 0); /* has index 0 and a cached plan */
    for (int i = 0; i < 1023; i++) {
        snprintf(name, sizeof name, "r%d", i);
        ckpt_begin(b.t, name);
        ckpt_end(b.t);
        rw_tape_reset(b.t);
    }
    ckpt_begin(b.t, "chosen");
    cr_assert_eq(b.t->regions[0].name, 0, "the index of the first");
    ckpt_end(b.t);
    rw_tape_reset(b.t);
    cr_assert_gt(replays_of(&b, "chosen"), 0);
    cr_assert_eq(replays_of(&b, "first"), 0);
    fixture_close(&b);
}

Test(interning_tables, call_sites_without_end)
{
    struct fixture b = fixture_open(1, 1);
    static char files[8]; /* other addresses are other files */
    size_t filled = 0;
    for (int i = 0; i < 100000; i++) {
        const rw_site at = { &files[i % 8], i };
        rw_tensor *const x = rw_input_at(at, b.t, RW_F32, RW_SHAPE(2), NULL, 0);
        cr_assert_not_null(rw_tanh_at(at, b.t, x), "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
        if (i == 70000) filled = table_bytes(&b);
    }
    cr_assert_eq(b.ctx->n_sites, RW_SITES_MAX);
    cr_assert_eq(table_bytes(&b), filled);
    fixture_close(&b);
}

/* One op with a shape of its own: y = sum(x^2 + x), where x counts up. */
static double value_of(struct fixture *b, int64_t n)
{
    float *const data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = 1;
    rw_tensor *const x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(n), data, (size_t)n * sizeof *data));
    rw_tensor *const loss = rw_sum(b->t, rw_add(b->t, rw_mul(b->t, x, x), x), RW_ALL_AXES, false);
    free(data);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    const double value = rw_item(b->t, loss);
    cr_assert_eq(rw_tensor_shape(rw_gradient(x)).dim[0], n);
    rw_tape_reset(b->t);
    return value;
}

Test(interning_tables, shapes_without_end)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *other = NULL;
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const lasting = rw_input(other, RW_F32, RW_SHAPE(3, 5, 7), NULL, 0);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(11, 13));
    size_t filled = 0;
    for (int i = 0; i < 30000; i++) {
        cr_assert_eq(value_of(&b, 1 + i), 2.0 * (1 + i), "n = %d", 1 + i);
        if (i == 12000) filled = table_bytes(&b);
    }
    cr_assert_gt(b.ctx->layouts.generation, 1);
    cr_assert_eq(table_bytes(&b), filled);
    cr_assert_eq(rw_tensor_shape(lasting).dim[2], 7);
    cr_assert_eq(rw_tensor_shape(w).dim[1], 13);
    cr_assert_eq(rw_tensor_shape(rw_gradient(w)).dim[0], 11);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* The same structure with indexes that were reused for other layouts: the old plan must not be found. */
Test(interning_tables, an_index_that_has_another_layout_finds_another_plan)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1)); /* also the layout of a sum's result, so it stays */
    cr_assert_not_null(w);
    cr_assert_eq(value_of(&b, 2), 4);
    const uint64_t generation = b.ctx->layouts.generation;
    for (int64_t n = 1000; b.ctx->layouts.generation == generation; n++) {
        rw_input(b.t, RW_F32, RW_SHAPE(n), NULL, 0);
        if (n % 512 == 0) rw_tape_reset(b.t);
    }
    rw_tape_reset(b.t);
    cr_assert_eq(value_of(&b, 500), 1000);
    cr_assert_eq(value_of(&b, 2), 4);
    fixture_close(&b);
}

/* CPU seconds to find each of n parameters by its name. */
static double find_all(int n)
{
    struct fixture b = fixture_open(1, 1);
    struct timespec begin, end;
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "layer.%d.weight", i);
        cr_assert_not_null(rw_buffer(b.ctx, name, RW_I32, RW_SHAPE(1)), "%s", rw_error_message(b.ctx));
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "layer.%d.weight", i);
        cr_assert_eq(rw_param_find(b.ctx, name), rw_param_get(b.ctx, (size_t)i), "%s", name);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    cr_assert_null(rw_param_find(b.ctx, "layer.0.bias"));
    cr_assert_null(rw_param(b.ctx, "layer.7.weight", RW_F32, RW_SHAPE(1)), "the name is taken");
    fixture_close(&b);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* With linear search, four times as many would take sixteen times as long. */
Test(interning_tables, parameters_are_found_by_their_names)
{
    double few = 0, many = 1;
    for (int attempt = 0; attempt < 3 && many >= 11 * few; attempt++) {
        few = find_all(2000);
        many = find_all(8000);
    }
    cr_assert_lt(many, 11 * few, "%g s for 8000, %g s for 2000", many, few);
}
