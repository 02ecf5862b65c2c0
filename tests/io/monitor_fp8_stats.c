/*
 * A monitor's statistics of FP8 data: amax, scale and shares are those of the quantized numbers, the same under every
 * policy, in graphs and for every number of threads, and no byte of a training depends on the monitor.
 */
#include "base/alloc.h"
#include "support/compare.h"
#include "support/support.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 4, IN = 256, OUT = 32 };
static char path[128];

struct world {
    struct fixture b;
    rw_tensor *w;
    rw_monitor *m;
};

static struct world world_open(int threads)
{
    const char *const tmp = getenv("TMPDIR");
    struct world x = { .b = fixture_open(3, threads) };
    float ones[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) ones[i] = i ? 1 : 2;
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(OUT, IN));
    cr_assert_eq(rw_write(x.w, ones, sizeof ones), RW_OK);
    snprintf(path, sizeof path, "%.60s/rewind-sites-%ld.jsonl", tmp ? tmp : P_tmpdir, (long)getpid());
    remove(path);
    return x;
}

static void watch(struct world *x)
{
    cr_assert_eq(rw_monitor_create(&x->m, x->b.ctx, path), RW_OK);
    const rw_status status = rw_monitor_watch(x->m, &(rw_monitor_sources){ .sites = true });
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static void world_close(struct world *x)
{
    rw_monitor_destroy(&x->m);
    fixture_close(&x->b);
    remove(path);
}

/* Each row: `first` at the start, a number that is flushed if `first` is 8, a zero; ones from the middle on. */
static void fill(float *data, float first)
{
    for (int i = 0; i < ROWS * IN; i++) data[i] = 1;
    for (int r = 0; r < ROWS; r++) {
        data[r * IN] = first;
        data[r * IN + 1] = 0x1p-16f;
        data[r * IN + 2] = 0;
    }
}

/* One product; the gradient of its output is `dy` in one place and 1 in all others. */
static rw_tensor *loss_of(struct world *x, const rw_recipe *recipe, float first, float dy)
{
    float data[ROWS * IN], weights[ROWS * OUT];
    fill(data, first);
    for (int i = 0; i < ROWS * OUT; i++) weights[i] = i == 5 ? dy : 1;
    rw_tensor *const in = rw_input(x->b.t, RW_F32, RW_SHAPE(ROWS, IN), data, sizeof data);
    rw_tensor *const by = rw_input(x->b.t, RW_F32, RW_SHAPE(ROWS, OUT), weights, sizeof weights);
    cr_assert_eq(rw_recipe_begin(x->b.t, recipe), RW_OK);
    ckpt_begin(x->b.t, "layer");
    rw_tensor *const y = rw_linear(x->b.t, in, x->w, RW_NONE);
    ckpt_end(x->b.t);
    cr_assert_eq(rw_recipe_end(x->b.t), RW_OK);
    return rw_sum(x->b.t, rw_mul(x->b.t, rw_cast(x->b.t, y, RW_F32), by), RW_ALL_AXES, false);
}

static void backward(struct world *x, const rw_recipe *recipe, float first, float dy)
{
    const rw_status status = rw_backward(x->b.t, loss_of(x, recipe, first, dy));
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tape_reset(x->b.t);
}

static unsigned told(struct world *x)
{
    unsigned alerts = 77;
    const rw_status status = rw_monitor_step(x->m, &(rw_monitor_values){ .loss = 1, .seconds = 1 }, &alerts);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
    return alerts & (unsigned)(RW_ALERT_SITE_SCALE_DROP | RW_ALERT_SITE_SCALE_RISE | RW_ALERT_SATURATED |
                               RW_ALERT_FLUSHED | RW_ALERT_AMAX_NONFINITE);
}

/* The sites of the last line, NULL for none. */
static cJSON *sites(void)
{
    static char text[1 << 18], line[1 << 18];
    FILE *const f = fopen(path, "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) memcpy(text, line, sizeof text);
    fclose(f);
    cJSON *const j = cJSON_ParseWithOpts(text, NULL, true);
    cr_assert_not_null(j, "%s", text);
    cJSON *const s = cJSON_DetachItemFromObjectCaseSensitive(j, "sites");
    cJSON_Delete(j);
    return s;
}

/* negative: absent */
static void expect_site(const cJSON *all, const char *name, const double want[5])
{
    static const char *const what[] = { "elements", "amax", "scale", "scale_most", "flushed" };
    const cJSON *const s = cJSON_GetObjectItemCaseSensitive(all, name);
    cr_assert_not_null(s, "%s", name);
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(s, "op")), "linear");
    cr_expect(strstr(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(s, "at")), "monitor_fp8_stats.c:"));
    for (int i = 0; i < 5; i++) {
        const cJSON *const x = cJSON_GetObjectItemCaseSensitive(s, what[i]);
        const double got = x ? x->valuedouble : -1;
        cr_expect(fabs(got - want[i]) <= 1e-8 * fabs(want[i]), "%s of %s: %.12g, not %.12g", what[i], name, got,
                  want[i]);
    }
}

/* By tensor 448 / 8 gives 32, 448 / 2 gives 128, and 57344 / 4 gives 8192; a block of ones has 256, in E5M2 32768. */
Test(monitor_fp8_stats, tells_of_what_was_quantised)
{
    static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128, RW_SCALING_MX };
    for (int k = 0; k < 3; k++) {
        struct world x = world_open(2);
        const rw_recipe recipe = { .kind = RW_RECIPE_F8, .scaling = scalings[k] };
        const double most = k ? 1 : -1;
        watch(&x);
        for (int step = 0; step < 2; step++) {
            backward(&x, &recipe, 1, 1);
            backward(&x, &recipe, 8, 4); /* a micro-batch */
            cr_expect_eq(told(&x), 0);
            cJSON *const s = sites();
            const double in[] = { 2.0 * ROWS * IN, 8, 32, 256, 1.0 / IN / 2 };
            expect_site(s, "w/x", in);
            expect_site(s, "w/w", (double[]){ 2.0 * OUT * IN, 2, 128, k ? 256 * most : -1, 0 });
            expect_site(s, "w/dy", (double[]){ 2.0 * ROWS * OUT, 4, 8192, 32768, 0 });
            cJSON_Delete(s);
        }
        rw_monitor_site site = { 0 };
        cr_expect(rw_monitor_get_site(x.m, 2, &site) && !strcmp(site.name, "w/dy") && site.scale_most == 32768);
        cr_expect(!rw_monitor_get_site(x.m, 3, &site) && !rw_monitor_get_site(NULL, 0, &site));
        told(&x);
        cr_expect_null(sites(), "of steps that were told of");
        cr_expect(rw_monitor_get_site(x.m, 0, &site) && site.elements == 0);
        world_close(&x);
    }
}

/* ---- alerts ---- */

/* A binding of another language may have no source file, or a name whose memory is freed with its tape. */
static rw_tensor *site_of_binding(struct world *x, rw_tape *t, rw_site at)
{
    float data[ROWS * IN];
    fill(data, 8);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    rw_tensor *const in = rw_input_at(at, t, RW_F32, RW_SHAPE(ROWS, IN), data, sizeof data);
    cr_assert_eq(rw_recipe_begin_at(at, t, &recipe), RW_OK);
    ckpt_begin_at(at, t, "layer");
    rw_tensor *const y = ckpt_name_at(at, t, rw_linear_at(at, t, in, x->w, RW_NONE), "y");
    ckpt_end_at(at, t);
    cr_assert_eq(rw_recipe_end_at(at, t), RW_OK);
    return rw_sum_at(at, t, rw_cast_at(at, t, y, RW_F32), RW_ALL_AXES, false);
}

static void expect_at(const char *want)
{
    cJSON *const all = sites();
    const cJSON *const at = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(all, "w/x"), "at");
    cr_assert(at && at->valuestring);
    cr_expect_str_eq(at->valuestring, want);
    cJSON_Delete(all);
}

Test(monitor_fp8_stats, are_told_without_a_file)
{
    struct world x = world_open(1);
    rw_monitor_site site;
    watch(&x);
    cr_expect_eq(rw_backward(x.b.t, site_of_binding(&x, x.b.t, (rw_site){ NULL, 7 })), RW_OK, "%s",
                 rw_error_message(x.b.ctx));
    told(&x);
    expect_at("(unknown file):7");
    cr_expect(rw_monitor_get_site(x.m, 0, &site));
    cr_expect_str_eq(site.at.file, "(unknown file)");
    ckpt_explain(x.b.t, stderr);
    world_close(&x);
}

Test(monitor_fp8_stats, are_told_when_their_text_is_gone)
{
    struct world x = world_open(1);
    rw_monitor_site site;
    watch(&x);
    char *const text = malloc(32);
    for (int i = 0; i < 3; i++) { /* the same address, another text */
        rw_tape *t = NULL;
        char want[32];
        cr_assert_eq(rw_tape_create(&t, x.b.ctx), RW_OK);
        snprintf(text, 32, "model%d.py", i);
        cr_expect_eq(rw_backward(t, site_of_binding(&x, t, (rw_site){ text, 7 })), RW_OK);
        rw_tape_destroy(&t);
        memset(text, '#', 31);
        told(&x);
        snprintf(want, sizeof want, "model%d.py:7", i);
        expect_at(want);
        cr_expect(rw_monitor_get_site(x.m, 0, &site));
        cr_expect_eq(strncmp(site.at.file, want, strlen(want) - 2), 0, "%s", site.at.file);
    }
    free(text);
    world_close(&x);
}

Test(monitor_fp8_stats, warns_of_scales_and_shares_when_they_begin)
{
    static const float first[] = { 1, 2, 8, 8, 1, 64, 64 };
    static const unsigned want[] = { 0, 0, RW_ALERT_SITE_SCALE_DROP, 0, 0, RW_ALERT_SITE_SCALE_DROP, 0 };
    struct world x = world_open(1);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    watch(&x);
    for (int i = 0; i < 20; i++) {
        backward(&x, &recipe, i < 19 ? 1 : 16, 0.5f); /* nineteen have no median yet */
        cr_expect_eq(told(&x), 0, "step %d", i);
    }
    for (int i = 0; i < 7; i++) {
        backward(&x, &recipe, first[i], 0.5f);
        cr_expect_eq(told(&x), want[i], "step %d", i);
    }
    float small[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) small[i] = 0.25f;
    cr_assert_eq(rw_write(x.w, small, sizeof small), RW_OK);
    backward(&x, &recipe, 1, 0.5f);
    cr_expect_eq(told(&x), RW_ALERT_SITE_SCALE_RISE);
    for (int i = 0; i < OUT * IN; i++) small[i] = i % 50 ? 1 : 0x1p-20f; /* 2 % */
    cr_assert_eq(rw_write(x.w, small, sizeof small), RW_OK);
    for (int i = 0; i < 2; i++) {
        backward(&x, &recipe, 1, 0.5f);
        cr_expect_eq(told(&x), i ? 0 : RW_ALERT_FLUSHED);
    }
    world_close(&x);
}

/* With delayed scaling the first step's scale is 1, so numbers above 448 are saturated. */
Test(monitor_fp8_stats, counts_what_delayed_scaling_saturates)
{
    struct world x = world_open(1);
    rw_delayed_scaling *d = NULL;
    cr_assert_eq(rw_delayed_scaling_create(&d, x.b.ctx, NULL), RW_OK);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8, .delayed = d };
    static const float first[] = { 448, 1000, INFINITY };
    static const unsigned want[] = { 0, RW_ALERT_SATURATED, RW_ALERT_AMAX_NONFINITE };
    watch(&x);
    for (int i = 0; i < 3; i++) {
        backward(&x, &recipe, first[i], 1);
        cr_expect_eq(told(&x), want[i], "%g", (double)first[i]);
        cJSON *const all = sites(), *const s = cJSON_GetObjectItemCaseSensitive(all, "w/x");
        const double share = cJSON_GetObjectItemCaseSensitive(s, "saturated")->valuedouble;
        const cJSON *const amax = cJSON_GetObjectItemCaseSensitive(s, "amax");
        cr_expect(fabs(share - (i == 1 ? 1.0 / IN : 0)) < 1e-10, "%g: %g", (double)first[i], share);
        cr_expect(i == 2 ? cJSON_IsNull(amax) : amax->valuedouble == (double)first[i]);
        cJSON_Delete(all);
    }
    rw_delayed_scaling_destroy(&d);
    world_close(&x);
}

/* Neither a search for values that are not finite, nor a verification of the step, counts a second time. */
/* A file name may have any bytes, and each of those that are not UTF-8 takes more than one in a line. */
Test(monitor_fp8_stats, of_a_file_whose_name_is_no_text_are_in_the_line)
{
    enum { WEIGHTS = 24 };
    static char file[500], name[8];
    struct world x = world_open(1);
    float data[ROWS * IN];
    rw_tensor *w[WEIGHTS], *sum = NULL;
    memset(file, 0xe4, sizeof file - 1);
    fill(data, 8);
    for (int i = 0; i < WEIGHTS; i++) {
        snprintf(name, sizeof name, "w%d", i);
        w[i] = rw_param(x.b.ctx, name, RW_F32, RW_SHAPE(OUT, IN));
        cr_assert_eq(rw_init_constant(w[i], 1), RW_OK);
    }
    watch(&x);
    rw_tensor *const in = rw_input(x.b.t, RW_F32, RW_SHAPE(ROWS, IN), data, sizeof data);
    cr_assert_eq(rw_recipe_begin(x.b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 }), RW_OK);
    for (int i = 0; i < WEIGHTS; i++) {
        rw_tensor *const y = rw_linear_at((rw_site){ file, 7 }, x.b.t, in, w[i], RW_NONE);
        sum = sum ? rw_add(x.b.t, sum, y) : y;
    }
    cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
    cr_assert_eq(rw_backward(x.b.t, rw_sum(x.b.t, rw_cast(x.b.t, sum, RW_F32), RW_ALL_AXES, false)), RW_OK);
    told(&x);
    cJSON *const all = sites();
    cr_expect_eq(cJSON_GetArraySize(all), 2 * WEIGHTS + 1, "%d", cJSON_GetArraySize(all));
    const cJSON *const at = cJSON_GetObjectItem(cJSON_GetObjectItem(all, "w5/w"), "at");
    cr_assert(cJSON_IsString(at));
    cr_expect_eq(strncmp(at->valuestring, "\xef\xbf\xbd\xef\xbf\xbd", 6), 0, "%s", at->valuestring);
    cr_expect_eq(strlen(at->valuestring), 3 * (sizeof file - 1) + 2);
    cJSON_Delete(all);
    world_close(&x);
}

Test(monitor_fp8_stats, do_not_count_what_is_run_again_to_be_looked_at)
{
    struct world x = world_open(1);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    watch(&x);
    for (int again = 0; again < 3; again++) {
        rw_tensor *const loss = loss_of(&x, &recipe, 8, 1);
        rw_nonfinite where;
        ckpt_report report;
        cr_assert_eq(rw_backward(x.b.t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        if (again == 1) cr_assert_eq(rw_find_nonfinite(x.b.t, loss, 0, &where), RW_OK);
        if (again == 2) cr_assert_eq(ckpt_verify(x.b.t, loss, &report), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        told(&x);
        cJSON *const all = sites(), *const s = cJSON_GetObjectItemCaseSensitive(all, "w/x");
        cr_expect_eq(cJSON_GetObjectItem(s, "elements")->valuedouble, ROWS * IN, "%d", again);
        cJSON_Delete(all);
    }
    world_close(&x);
}

/* ---- independence from the counting ---- */

static struct world random_world(const char *policy, int threads)
{
    struct world x = world_open(threads);
    cr_assert_eq(rw_init_normal(x.w, 0, 1), RW_OK);
    cr_assert_eq(ckpt_set_policy(x.b.t, policy), RW_OK);
    return x;
}

/* Products of one weight, larger than one thread handles alone. */
static rw_tensor *random_loss(struct world *x, rw_scaling scaling)
{
    const int rows = test_device() == RW_DEVICE_CPU ? 300 : 40;
    rw_tape *const t = x->b.t;
    float *const zeros = calloc((size_t)(rows * IN), sizeof *zeros);
    rw_tensor *const in = rw_input(t, RW_F32, RW_SHAPE(rows, IN), zeros, (size_t)(rows * IN) * sizeof *zeros),
                     *sum = NULL;
    rw_tensor *const h = rw_dropout(t, rw_add_scalar(t, in, 1), 0.3f);
    cr_assert_eq(rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .scaling = scaling }), RW_OK);
    for (int l = 0; l < 2; l++) {
        ckpt_begin(t, l ? "second" : "first");
        rw_tensor *const y = rw_linear(t, rw_gelu(t, rw_scale(t, h, l ? 0.01 : 3)), x->w, RW_NONE);
        ckpt_end(t);
        rw_tensor *const part = rw_sum(t, rw_gelu(t, rw_cast(t, y, RW_F32)), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, part) : part;
    }
    cr_assert_eq(rw_recipe_end(t), RW_OK);
    free(zeros);
    return sum;
}

/* The gradient and, with a monitor, the line's sites. */
static unsigned char *random_run(const char *policy, int threads, rw_scaling scaling, bool watched, bool graph,
                                 char **ret_sites)
{
    struct world x = random_world(policy, threads);
    rw_graph *g = NULL;
    size_t bytes;
    if (watched) watch(&x);
    if (graph) {
        cr_assert_eq(rw_graph_create(&g, x.b.t, random_loss(&x, scaling), NULL), RW_OK);
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    } else {
        cr_assert_eq(rw_backward(x.b.t, random_loss(&x, scaling)), RW_OK, "%s", rw_error_message(x.b.ctx));
    }
    if (watched) {
        told(&x);
        cJSON *const s = sites();
        cr_assert_not_null(s);
        *ret_sites = cJSON_PrintUnformatted(s);
        cJSON_Delete(s);
    }
    unsigned char *const gradients = all_gradients(x.b.ctx, &bytes);
    rw_graph_destroy(&g);
    world_close(&x);
    return gradients;
}

Test(monitor_fp8_stats, are_the_same_under_every_policy_and_change_no_byte)
{
    static const char *const policies[] = { "full", "uniform:2", "ops:quantize", "full", "none" };
    static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128, RW_SCALING_MX };
    const size_t bytes = (size_t)OUT * IN * sizeof(float);
    for (int k = 0; k < 3; k++) {
        char *want, *got;
        unsigned char *const off = random_run("none", 1, scalings[k], false, false, NULL);
        unsigned char *const none = random_run("none", 1, scalings[k], true, false, &want);
        cr_expect_eq(first_difference(off, none, bytes), -1);
        for (int i = 0; i < 5; i++) {
            unsigned char *const on = random_run(policies[i], 1 + i, scalings[k], true, i > 2, &got);
            cr_expect_str_eq(got, want, "%s, %d threads", policies[i], 1 + i);
            cr_expect_eq(first_difference(off, on, bytes), -1, "%s", policies[i]);
            free(on);
            free(got);
        }
        free(off), free(none), free(want);
    }
}

/* ---- other files, mistakes ---- */

static bool has(const char *name, const char *text)
{
    static char data[1 << 17];
    FILE *const f = fopen(name, "rb");
    cr_assert_not_null(f, "%s", name);
    const size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    return memmem(data, n, text, strlen(text));
}

/* So many that several events are needed. */
Test(monitor_fp8_stats, go_to_tensorboard_and_prometheus)
{
    struct world x = world_open(1);
    rw_tensor *w[20], *sum = NULL;
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    char folder[160], text[160], name[512];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, i ? "a weight with a long name.%d" : "quoted\"\\", i);
        w[i] = rw_param(x.b.ctx, name, RW_F32, RW_SHAPE(2, 2));
        cr_assert_eq(rw_init_normal(w[i], 0, 1), RW_OK);
    }
    watch(&x);
    snprintf(folder, sizeof folder, "%s.events", path);
    snprintf(text, sizeof text, "%s.prom", path);
    cr_assert_eq(rw_monitor_add(x.m, RW_MONITOR_TENSORBOARD, folder), RW_OK);
    cr_assert_eq(rw_monitor_add(x.m, RW_MONITOR_PROMETHEUS, text), RW_OK);
    cr_assert_eq(rw_recipe_begin(x.b.t, &recipe), RW_OK);
    for (int i = 0; i < 20; i++) {
        rw_tensor *const in = rw_input(x.b.t, RW_F32, RW_SHAPE(1, 2), ((float[]){ 8, 1 }), 2 * sizeof(float));
        rw_tensor *const y = rw_sum(x.b.t, rw_linear(x.b.t, in, w[i], RW_NONE), RW_ALL_AXES, false);
        sum = sum ? rw_add(x.b.t, sum, y) : y;
    }
    cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
    cr_assert_eq(rw_backward(x.b.t, sum), RW_OK, "%s", rw_error_message(x.b.ctx));
    told(&x);
    cr_expect(has(text, "# TYPE rewind_site_amax gauge\nrewind_site_amax{site=\"quoted__/x\"} 8\n"));
    cr_expect(has(text, "\nrewind_site_scale{site=\"a weight with a long name.19/x\"} 32\n"));
    DIR *const d = opendir(folder);
    struct dirent *e;
    while ((e = readdir(d)) && e->d_name[0] == '.') {}
    cr_assert_not_null(e);
    snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
    closedir(d);
    cr_expect(has(name, "site_amax/quoted__/x"));
    cr_expect(has(name, "site_flushed/a weight with a long name.19/dy"));
    cr_expect(has(name, "alerts_total/flushed"));
    remove(name), remove(folder), remove(text);
    world_close(&x);
}

Test(monitor_fp8_stats, belong_to_one_monitor_and_end_with_it)
{
    struct world x = world_open(1);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    rw_monitor *other = NULL;
    watch(&x);
    cr_assert_eq(rw_monitor_create(&other, x.b.ctx, NULL), RW_OK);
    cr_expect_eq(rw_monitor_watch(other, &(rw_monitor_sources){ .sites = true }), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(x.b.ctx), "got a second"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    rw_tensor *const loss = loss_of(&x, &recipe, 8, 1);
    rw_monitor_destroy(&x.m); /* between record and backward */
    cr_assert_eq(rw_backward(x.b.t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_tape_reset(x.b.t);
    cr_assert_eq(rw_monitor_watch(other, &(rw_monitor_sources){ .sites = true }), RW_OK);
    rw_monitor_destroy(&other);
    watch(&x);
    told(&x);
    cr_expect_null(sites(), "counts of another monitor");
    backward(&x, &recipe, 8, 1);
    told(&x);
    cJSON *const s = sites();
    expect_site(s, "w/x", (double[]){ ROWS * IN, 8, 32, -1, 1.0 / IN });
    cJSON_Delete(s);
    world_close(&x);
}

/* Allocations of the call fail from the n-th on: what was monitored before still is. */
Test(monitor_fp8_stats, without_memory_go_on_as_before)
{
    struct world x = world_open(1);
    const rw_recipe recipe = { .kind = RW_RECIPE_F8 };
    watch(&x);
    rw_tensor *const more = rw_param(x.b.ctx, "more", RW_F32, RW_SHAPE(2, 2)); /* so that more has to be allocated */
    cr_assert_not_null(more);
    rw_status status = RW_ERR_MEMORY;
    uint64_t n = 0;
    while (status) {
        rw_alloc_fail_from(++n);
        status = rw_monitor_watch(x.m, &(rw_monitor_sources){ .sites = true });
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY);
        rw_error_clear(x.b.ctx);
        backward(&x, &recipe, 8, 1);
        told(&x);
        cJSON *const s = sites();
        cr_assert_not_null(s, "allocation %d", (int)n);
        cJSON_Delete(s);
    }
    cr_assert_gt(n, 6);
    world_close(&x);
}
