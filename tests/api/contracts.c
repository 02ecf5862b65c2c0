/*
 * Promises of the headers that programs meet rarely: files that changed a parameter, failed saves, failed launches,
 * seeds of another type, the counts of reports and statistics, environment variables.
 */
#include "support/support.h"

#include "verify/report.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const float numbers[4] = { 1, 2, 3, 4 };

static rw_tensor *input(struct fixture *b)
{
    return rw_input(b->t, RW_F32, RW_SHAPE(4), numbers, sizeof numbers);
}

static rw_tensor *sum(struct fixture *b, rw_tensor *y)
{
    return rw_sum(b->t, y, RW_ALL_AXES, false);
}

static void expect(struct fixture *b, rw_tensor *x, float factor, const char *what)
{
    float got[4];
    cr_assert_eq(rw_read(b->t, x, got, sizeof got), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(got[i], factor * numbers[i], "%s, element %d: %g", what, i, (double)got[i]);
}

static void expect_error(struct fixture *b, rw_status got, rw_status want, const char *word)
{
    cr_assert_eq(got, want, "%d: %s", (int)got, rw_error_message(b->ctx));
    cr_assert(strstr(rw_error_message(b->ctx), word), "no \"%s\" in: %s", word, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

/* ---- files ---- */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[128];
    if (!*folder) {
        strcpy(folder, "/tmp/rewind_XXXXXX");
        cr_assert_not_null(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *const d = opendir(folder);
    cr_assert_not_null(d);
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void write_file(const char *path, uint64_t length, const char *header, size_t elements)
{
    FILE *const f = fopen(path, "wb");
    fwrite(&length, 8, 1, f);
    fputs(header, f);
    for (size_t i = 0; i < elements; i++) fputc(0, f);
    fclose(f);
}

Test(contracts, a_loaded_parameter_has_changed)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    float y[4];
    cr_assert_eq(rw_save(b.ctx, in_folder("w")), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const x = rw_mul(b.t, w, input(&b));
    cr_assert_eq(rw_load(b.ctx, in_folder("w")), RW_OK, "%s", rw_error_message(b.ctx));
    expect_error(&b, rw_read(b.t, x, y, sizeof y), RW_ERR_MODIFIED, "\"w\"");
    remove(in_folder("w")), rmdir(folder);
    fixture_close(&b);
}

Test(contracts, files_that_claim_too_much)
{
    struct fixture b = fixture_open(1, 1);
    const char *const path = in_folder("w");
    static const char *const among =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}";
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    write_file(path, 1000, "{}", 0);
    expect_error(&b, rw_load(b.ctx, path), RW_ERR_IO, "length");
    write_file(path, strlen(among), among, 24);
    expect_error(&b, rw_load(b.ctx, path), RW_ERR_IO, "overlap");
    remove(path), rmdir(folder);
    fixture_close(&b);
}

/* For this process the disk is full. */
Test(contracts, a_save_that_fails_leaves_no_file)
{
    struct fixture b = fixture_open(1, 1);
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1 << 18));
    const char *const path = in_folder("w");
    const struct rlimit little = { 4096, RLIM_INFINITY }, much = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_FSIZE, &little);
    const rw_status status = rw_save(b.ctx, path);
    setrlimit(RLIMIT_FSIZE, &much);
    expect_error(&b, status, RW_ERR_IO, path);
    cr_assert_eq(files_in_folder(), 0);
    rmdir(folder);
    fixture_close(&b);
}

/* ---- launches ---- */

/* A failed launch has started a new step: gradients are clear, and usable. */
Test(contracts, a_launch_that_fails_leaves_clear_gradients)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    const int32_t good = 1, bad = 7;
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(1), &good, sizeof good);
    rw_tensor *const loss = rw_add(b.t, sum(&b, rw_embedding(b.t, w, index)), sum(&b, rw_mul(b.t, v, input(&b))));
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_graph_launch(g), RW_OK);
    expect(&b, rw_gradient(v), 1, "a launch");
    cr_assert_eq(rw_input_write(index, &bad, sizeof bad), RW_OK);
    rw_status status = rw_graph_launch(g);
    if (!status) status = rw_read(NULL, v, (float[4]){ 0 }, 16);
    expect_error(&b, status, RW_ERR_ARGUMENT, "out of range");
    expect(&b, rw_gradient(v), 0, "after one that failed");
    rw_graph_destroy(&g);
    fixture_close(&b);
}

Test(contracts, a_graph_takes_the_numbers_of_one_generator)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *const x = rw_dropout(b.t, w, 0.5f);
    rw_generator_set(b.ctx, (rw_generator_state){ 99, 1000 });
    rw_tensor *const loss = sum(&b, rw_dropout(b.t, x, 0.5f));
    expect_error(&b, rw_graph_create(&g, b.t, loss, NULL), RW_ERR_ARGUMENT, "generator");
    cr_assert_null(g);
    fixture_close(&b);
}

/* ---- seeds ---- */

Test(contracts, gradients_of_another_tape)
{
    struct fixture b = fixture_open(1, 1);
    const double twos[4] = { 2, 2, 2, 2 };
    const float two = 2;
    rw_tensor *const x = rw_require_grad(b.t, input(&b)), *y = rw_mul(b.t, x, x);
    rw_tensor *dy = rw_input(b.t, RW_F64, RW_SHAPE(4), twos, sizeof twos);
    expect_error(&b, rw_backward_from(b.t, &y, &dy, 1), RW_ERR_SHAPE, "expected f32[4], as y[0] has, got f64[4]");
    rw_tensor *loss = rw_scale(b.t, sum(&b, y), 0.5);
    cr_assert_eq(rw_item(b.t, loss), 15);
    dy = rw_input(b.t, RW_F32, RW_SCALAR, &two, sizeof two);
    cr_assert_eq(rw_backward_from(b.t, &loss, &dy, 1), RW_OK, "%s", rw_error_message(b.ctx));
    expect(&b, rw_gradient(x), 2, "twice, after the loss was read");
    fixture_close(&b);
}

/* ---- the environment ---- */

static struct fixture open_with(const char *name, const char *value)
{
    setenv(name, value, 1);
    const struct fixture b = fixture_open(1, 1);
    unsetenv(name);
    return b;
}

Test(contracts, zero_means_no)
{
    struct fixture b = open_with("REWIND_EAGER", "0");
    counted_clear();
    counted_square(b.t, input(&b), 0);
    cr_assert_eq(counted_runs[0], 0);
    fixture_close(&b);
}

/* A verified step writes gradients only after all comparisons were equal: one that fails has not touched them. */
Test(contracts, a_verified_step_that_fails_leaves_gradients_as_they_were)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = open_with("REWIND_VERIFY", "1");
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    for (int32_t index = 1; index < 8; index += 6) {
        rw_tensor *const at = rw_input(b.t, RW_I32, RW_SHAPE(1), &index, sizeof index);
        rw_tensor *const loss = rw_add(b.t, sum(&b, rw_mul(b.t, v, input(&b))), sum(&b, rw_embedding(b.t, w, at)));
        const rw_status status = rw_backward(b.t, loss);
        if (index == 1) cr_assert_eq(status, RW_OK, "%s", rw_error_message(b.ctx));
        else expect_error(&b, status, RW_ERR_ARGUMENT, "out of range");
        expect(&b, rw_gradient(v), 1, index == 1 ? "a step" : "after one that failed");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(contracts, so_many_threads_at_most)
{
    struct fixture b = fixture_open(1, 1);
    expect_error(&b, rw_context_set_threads(b.ctx, RW_MAX_THREADS + 1), RW_ERR_ARGUMENT, "threads");
    cr_assert_eq(rw_context_threads(b.ctx), 1);
    fixture_close(&b);
}

/* ---- what is counted ---- */

Test(contracts, statistics)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *other = NULL;
    rw_memory one, two, stopped, after;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *const loss = sum(&b, rw_exp(b.t, w));
    cr_assert_eq(rw_memory_stats(b.ctx, &one), RW_OK);
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_sum(other, rw_exp(other, w), RW_ALL_AXES, false);
    cr_assert_eq(rw_memory_stats(b.ctx, &two), RW_OK);
    cr_assert_eq(two.tape, 2 * one.tape, "%zu bytes, of one tape %zu", two.tape, one.tape);
    rw_item(b.t, loss);
    cr_assert_eq(rw_memory_stats(b.ctx, &stopped), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
    cr_assert(one.runs == 0 && stopped.runs == 1 && after.runs == 0, "%zu, %zu, %zu", one.runs, stopped.runs,
              after.runs);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* Workspace of column sums over these numbers of columns. */
static size_t workspace_of(const int64_t *columns, int n)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    rw_tensor *x[2];
    for (int i = 0; i < n; i++) {
        rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(1 << 14, columns[i]), NULL, 0);
        x[i] = rw_exp(b.t, rw_sum(b.t, rw_exp(b.t, in), RW_AXES(0), false));
    }
    cr_assert_eq(rw_eval(b.t, x, (size_t)n), RW_OK);
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    fixture_close(&b);
    return memory.workspace;
}

/* The largest workspace counts, whichever node has it. */
Test(contracts, workspaces)
{
    const size_t large = workspace_of((const int64_t[]){ 48 }, 1), small = workspace_of((const int64_t[]){ 16 }, 1);
    cr_assert(small > 0 && large > small, "%zu and %zu bytes", large, small);
    cr_expect_eq(workspace_of((const int64_t[]){ 16, 48 }, 2), large);
    cr_expect_eq(workspace_of((const int64_t[]){ 48, 16 }, 2), large);
}

static rw_memory after_a_sum(int64_t elements)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(elements), NULL, 0);
    rw_tensor *const x = rw_exp(b.t, rw_sum(b.t, rw_tanh(b.t, rw_exp(b.t, in)), RW_ALL_AXES, false));
    cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK);
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    fixture_close(&b);
    return memory;
}

/* An arena that grows is one arena. */
Test(contracts, arenas)
{
    const int64_t sizes[] = { 1000, 5000, 70000 };
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    for (int i = 0; i < 3; i++) {
        rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(sizes[i]), NULL, 0);
        rw_tensor *const x = rw_exp(b.t, rw_sum(b.t, rw_tanh(b.t, rw_exp(b.t, in)), RW_ALL_AXES, false));
        cr_assert_eq(rw_eval(b.t, &x, 1), RW_OK);
        cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
        const rw_memory alone = after_a_sum(sizes[i]);
        cr_assert_eq(memory.arenas, alone.arenas, "step %d: %zu bytes, alone %zu", i, memory.arenas, alone.arenas);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

static rw_tensor *loss_of(rw_tape *t, int64_t elements)
{
    rw_tensor *const x = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(elements), NULL, 0));
    return rw_sum(t, rw_tanh(t, rw_exp(t, x)), RW_ALL_AXES, false);
}

/* Suspended steps have an arena each: the small one leaves the large arena for the large one. */
Test(contracts, arenas_of_two_tapes)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *t[2] = { b.t, NULL };
    rw_memory memory[2];
    cr_assert_eq(rw_tape_create(&t[1], b.ctx), RW_OK);
    for (int round = 0; round < 2; round++) {
        rw_tensor *loss[2];
        for (int i = 0; i < 2; i++) loss[i] = loss_of(t[i], i ? 100 : 70000);
        for (int i = 0; i < 2; i++) rw_item(t[round ? 1 - i : i], loss[round ? 1 - i : i]);
        cr_assert_eq(rw_memory_stats(b.ctx, &memory[round]), RW_OK);
        for (int i = 0; i < 2; i++) cr_assert_eq(rw_backward(t[i], loss[i]), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 2; i++) rw_tape_reset(t[i]);
    }
    cr_assert_eq(memory[1].arenas, memory[0].arenas, "%zu, then %zu bytes", memory[0].arenas, memory[1].arenas);
    rw_tape_destroy(&t[1]);
    fixture_close(&b);
}

/* The report of a step with two parameters and a marked value. A verification does not write buffers. */
Test(contracts, a_report)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_report r;
    float n = 5;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    rw_tensor *const counter = rw_buffer(b.ctx, "n", RW_F32, RW_SCALAR);
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "a");
    rw_tensor *const y = rw_require_grad(b.t, rw_exp(b.t, rw_mul(b.t, w, v)));
    rw_tensor *const loss = sum(&b, rw_tanh(b.t, y));
    ckpt_end(b.t);
    rw_assign(b.t, counter, rw_add_scalar(b.t, counter, 1));
    cr_assert_eq(ckpt_verify(b.t, loss, &r), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(r.identical && r.gradients == 3, "%zu gradients", r.gradients);
    cr_assert_eq(rw_read(NULL, counter, &n, sizeof n), RW_OK);
    cr_assert_eq(n, 0);
    fixture_close(&b);
}

static void expect_ulps(float x, float y, uint64_t want)
{
    ckpt_report r = { 0 };
    const float a[2] = { 1, x }, c[2] = { 1, y };
    rw_report_element(a, c, sizeof a, RW_F32, &r);
    cr_assert(r.element == 1 && r.ulp == want && r.expected == (double)x && r.got == (double)y, "%g, %g: %llu at %lld",
              (double)x, (double)y, (unsigned long long)r.ulp, (long long)r.element);
}

Test(contracts, distances_in_the_last_place)
{
    expect_ulps(1, nextafterf(1, 2), 1);
    expect_ulps(-1, nextafterf(-1, -2), 1);
    expect_ulps(-1, 1, 2 * (uint64_t)0x3f800000);
    expect_ulps(0x1p-149f, -0x1p-149f, 2);
    expect_ulps(-2, -1, 1 << 23);
}

/* ---- policies ---- */

Test(contracts, a_policy_for_regions_that_do_not_exist)
{
    struct fixture b = fixture_open(1, 1);
    char text[4096] = "";
    FILE *const f = fmemopen(text, sizeof text, "w");
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    cr_assert_eq(ckpt_set_policy(b.t, "selective:here,nowhere"), RW_OK);
    ckpt_begin(b.t, "here");
    sum(&b, rw_exp(b.t, w));
    ckpt_end(b.t);
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    cr_assert(strstr(text, "\"nowhere\"") && !strstr(text, "\"here\""), "%s", text);
    fixture_close(&b);
}

/* ---- numbers ---- */

Test(contracts, a_shape_with_an_extent_of_zero_has_no_elements)
{
    cr_expect_eq(rw_shape_numel(RW_SHAPE(INT64_MAX, INT64_MAX, 0)), 0);
    cr_expect_eq(rw_shape_numel(RW_SHAPE(0, INT64_MAX, INT64_MAX)), 0);
    cr_expect_eq(rw_shape_numel(RW_SHAPE(INT64_MAX, 0, 2)), 0);
    cr_expect_eq(rw_shape_numel(RW_SHAPE(INT64_MAX, 2)), INT64_MAX);
    cr_expect_eq(rw_shape_numel(RW_SHAPE(INT64_MAX, 1)), INT64_MAX);
    cr_expect_eq(rw_shape_numel(RW_SHAPE(3, 4)), 12);
    cr_expect_eq(rw_shape_numel(RW_SCALAR), 1);
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const none = rw_input(b.t, RW_F32, RW_SHAPE(0), NULL, 0);
    cr_expect_null(rw_reshape(b.t, none, RW_SHAPE(0, INT64_MAX, INT64_MAX)), "no layout has such strides");
    fixture_close(&b);
}

Test(contracts, bounds_without_a_number_between_are_refused)
{
    static const struct {
        rw_dtype dtype;
        double lo, hi;
        bool allowed;
    } rows[] = { { RW_F64, -1e308, 1e308, false },   { RW_F64, -8e307, 8e307, true }, { RW_F64, -INFINITY, 0, false },
                 { RW_F64, 0, NAN, false },          { RW_F64, 1, 0, false },         { RW_F32, -1e39, 0, false },
                 { RW_F32, 0, 1e39, false },         { RW_F32, -3e38, 3e38, true },   { RW_F16, -7e4, 0, false },
                 { RW_F16, -60000, 60000, true },    { RW_BF16, 0, 3.4e38, false },   { RW_BF16, -3e38, 3e38, true } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", rows[i].dtype, RW_SHAPE(64));
        const rw_generator_state before = rw_generator_get(b.ctx);
        const rw_status s = rw_init_uniform(w, rows[i].lo, rows[i].hi);
        cr_expect_eq(s, rows[i].allowed ? RW_OK : RW_ERR_ARGUMENT, "row %zu: %s", i, rw_error_message(b.ctx));
        if (s) {
            cr_expect(strstr(rw_error_message(b.ctx), "rw_init_uniform: lo, hi of \"w\""),
                    "%s", rw_error_message(b.ctx));
            cr_expect_eq(rw_generator_get(b.ctx).offset, before.offset, "nothing was drawn");
            rw_error_clear(b.ctx);
        }
        double x[64];
        rw_tensor *const wide = rw_cast(b.t, w, RW_F64);
        cr_assert_eq(rw_read(b.t, wide, x, sizeof x), RW_OK, "%s", rw_error_message(b.ctx));
        for (int k = 0; k < 64; k++)
            cr_expect(rows[i].allowed ? x[k] >= rows[i].lo && x[k] < rows[i].hi : x[k] == 0, "row %zu: %g", i, x[k]);
        fixture_close(&b);
    }
}

Test(contracts, a_constant_or_mean_that_the_type_cannot_hold_is_refused)
{
    static const struct {
        rw_dtype dtype;
        double most, beyond;
    } rows[] = { { RW_F32, 0x1.fffffep127, 1e39 }, { RW_BF16, 0x1.fep127, 3.4e38 }, { RW_F16, 65504, 7e4 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", rows[i].dtype, RW_SHAPE(8));
        double x[8];
        cr_expect_eq(rw_init_constant(w, -rows[i].most), RW_OK, "%s", rw_error_message(b.ctx));
        for (int k = 0; k < 4; k++) {
            const double by = rows[i].beyond;
            const rw_status s = k == 0   ? rw_init_constant(w, by)
                                : k == 1 ? rw_init_uniform(w, -by, -by)
                                : k == 2 ? rw_init_normal(w, by, 1)
                                         : rw_init_normal(w, 0, by);
            cr_expect_eq(s, RW_ERR_ARGUMENT, "row %zu, call %d", i, k);
            rw_error_clear(b.ctx);
        }
        rw_tensor *const wide = rw_cast(b.t, w, RW_F64);
        cr_assert_eq(rw_read(b.t, wide, x, sizeof x), RW_OK, "%s", rw_error_message(b.ctx));
        for (int k = 0; k < 8; k++) cr_expect_eq(x[k], -rows[i].most, "row %zu: %g", i, x[k]);
        fixture_close(&b);
    }
}

/* Slices of a trace do not overlap, and each region has its own. */
Test(contracts, slices_of_a_trace_do_not_overlap)
{
    static char text[1 << 16];
    struct fixture b = open_with("REWIND_TRACE", in_folder("trace"));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *y = w;
    for (int i = 0; i < 2; i++) {
        ckpt_begin(b.t, i ? "second" : "first");
        for (int k = 0; k < 4; k++) y = rw_tanh(b.t, y);
        ckpt_end(b.t);
    }
    usleep(20000);
    cr_assert_eq(rw_backward(b.t, sum(&b, y)), RW_OK);
    fixture_close(&b);
    FILE *const f = fopen(in_folder("trace"), "r");
    cr_assert(f && fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    remove(in_folder("trace")), rmdir(folder);
    cr_assert(strstr(text, "\"name\":\"first\"") && strstr(text, "\"name\":\"second\""), "%s", text);
    double end = 0;
    int slices = 0;
    for (const char *at = text; (at = strstr(at, "\"ts\":")); at++) {
        double ts = 0, duration = 0;
        int track = 0;
        cr_assert_eq(sscanf(at, "\"ts\":%lf,\"dur\":%lf,\"pid\":1,\"tid\":%d", &ts, &duration, &track), 3, "%.80s", at);
        if (track != 1) continue;
        cr_assert(slices == 0 || ts >= end - 1e-3, "slice %d begins at %g, the one before ends at %g", slices, ts, end);
        end = ts + duration, slices++;
    }
    cr_assert_geq(slices, 16);
}

Test(contracts, the_library_has_the_version_of_the_headers)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", RW_VERSION_MAJOR, RW_VERSION_MINOR, RW_VERSION_PATCH);
    cr_assert_str_eq(rw_version(), text);
    cr_assert(RW_VERSION >= RW_VERSION_OF(0, 1, 0) && RW_VERSION < RW_VERSION_OF(1, 0, 0));
}

Test(contracts, a_clear_gradient_reads_as_zeros)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_write(rw_gradient(w), numbers, sizeof numbers), RW_OK);
    expect(&b, rw_gradient(w), 1, "what was written");
    rw_zero_grad(b.ctx);
    expect(&b, rw_gradient(w), 0, "cleared");
    fixture_close(&b);
}
