/*
 * Plans as text: rw_plan_print() of small models with nominal costs and two threads, compared with the files in
 * tests/plan/text/, so that a review shows the effect of any change on plans. To write the files again:
 *
 *     REWIND_WRITE_PLANS=1 build/tests/print
 */
#include "support/support.h"

#include <rewind/rewind.h>

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 16, WIDTH = 64, EXPERTS = 4 };

/* ---- models ---- */

/* Element-wise weights: products would have workspaces, whose sizes depend on the processor. */
static rw_tensor *weight(struct fixture *b, const char *name, rw_shape shape)
{
    rw_tensor *const old = rw_param_find(b->ctx, name), *const w = old ? old : rw_param(b->ctx, name, RW_F32, shape);
    cr_assert_not_null(w, "%s", rw_error_message(b->ctx));
    return w;
}

static rw_tensor *input(struct fixture *b)
{
    static const float zeros[BATCH * WIDTH];
    return rw_input(b->t, RW_F32, RW_SHAPE(BATCH, WIDTH), zeros, sizeof zeros);
}

/* x + dropout(gelu(x w)) v, with w and v for each layer; the hidden value is called "hidden". */
static rw_tensor *layer(struct fixture *b, rw_tensor *x, int i)
{
    char name[16];
    snprintf(name, sizeof name, "w%d", i);
    rw_tensor *const w = weight(b, name, RW_SHAPE(BATCH, WIDTH));
    snprintf(name, sizeof name, "v%d", i);
    rw_tensor *const v = weight(b, name, RW_SHAPE(BATCH, WIDTH));
    rw_tensor *const h = ckpt_name(b->t, rw_gelu(b->t, rw_mul(b->t, x, w)), "hidden");
    return rw_add(b->t, x, rw_mul(b->t, rw_dropout(b->t, h, 0.1f), v));
}

static rw_tensor *mlp(struct fixture *b)
{
    rw_tensor *x = input(b);
    for (int i = 0; i < 3; i++) {
        ckpt_begin(b->t, "layer");
        x = layer(b, x, i);
        ckpt_end(b->t);
    }
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

static rw_tensor *nested(struct fixture *b)
{
    rw_tensor *x = input(b);
    for (int i = 0; i < 2; i++) {
        ckpt_begin(b->t, "outer");
        for (int k = 0; k < 2; k++) {
            ckpt_begin(b->t, "inner");
            x = layer(b, x, 2 * i + k);
            ckpt_end(b->t);
        }
        ckpt_end(b->t);
    }
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

static rw_tensor *experts(struct fixture *b)
{
    rw_moe_routes routes;
    rw_tensor *const rows = weight(b, "rows", RW_SHAPE(2 * BATCH, WIDTH));
    ckpt_begin(b->t, "moe");
    rw_tensor *const scores = rw_softmax(b->t, weight(b, "router", RW_SHAPE(BATCH, EXPERTS)), -1);
    rw_tensor *const index = rw_moe_topk(b->t, scores, RW_NONE, &(rw_moe_choice){ .k = 2 });
    rw_tensor *const chosen = rw_moe_select(b->t, scores, index);
    cr_assert_eq(rw_moe_route(b->t, index, EXPERTS, &routes), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tensor *const y = rw_moe_combine(b->t, rw_moe_weigh(b->t, rw_gelu(b->t, rows), chosen, &routes), &routes);
    ckpt_end(b->t);
    return rw_mean(b->t, rw_mul(b->t, y, y), RW_ALL_AXES, false);
}

/* ---- texts ---- */

static const struct {
    const char *name;
    rw_tensor *(*model)(struct fixture *b);
    const char *policy;
} plans[] = {
    { "mlp_none", mlp, "none" },
    { "mlp_full", mlp, "full" },
    { "mlp_selective", mlp, "selective:layer" },
    { "mlp_uniform", mlp, "uniform:2" },
    { "mlp_block", mlp, "block:2" },
    { "mlp_ops", mlp, "ops:mul" },
    { "mlp_names", mlp, "names:keep=hidden" },
    { "mlp_budget", mlp, "budget:70%" },
    { "mlp_offload", mlp, "offload:layer" },
    { "nested_full", nested, "full" },
    { "nested_budget", nested, "budget:50%" },
    { "moe_full", experts, "full" },
};
#define PLANS (sizeof plans / sizeof *plans)

/* Rates are given, so nothing is measured. */
static struct fixture open_planning(void)
{
    struct fixture b = { 0 };
    const rw_context_params p = { .device = test_device(), .threads = 2, .seed = 1, .plan_only = true };
    const rw_offload rates = { .out_bytes_per_s = 1e10, .in_bytes_per_s = 1e10 };
    cr_assert_eq(rw_context_create(&b.ctx, &p), RW_OK, "%s", rw_error_message(NULL));
    cr_assert_eq(rw_context_set_offload(b.ctx, &rates), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

static char *text_of(size_t i, const char *policy)
{
    struct fixture b = open_planning();
    char *text = NULL;
    size_t size = 0;
    FILE *const out = open_memstream(&text, &size);
    rw_tensor *const loss = plans[i].model(&b);
    cr_assert_not_null(loss, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_plan_print(b.t, loss, policy, out), RW_OK, "%s: %s", plans[i].name, rw_error_message(b.ctx));
    fclose(out);
    fixture_close(&b);
    return text;
}

static char *read_file(const char *path)
{
    FILE *const f = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    if (f && getdelim(&text, &size, '\0', f) < 0 && text) text[0] = '\0';
    if (f) fclose(f);
    return text;
}

static void expect_text(size_t i)
{
    char path[512];
    char *const now = text_of(i, plans[i].policy);
    snprintf(path, sizeof path, "%s/%s.txt", REWIND_PLANS, plans[i].name);
    if (getenv("REWIND_WRITE_PLANS")) {
        FILE *const f = fopen(path, "w");
        cr_assert(f && fputs(now, f) >= 0 && !fclose(f), "%s", path);
    }
    char *const then = read_file(path);
    cr_expect(then && !strcmp(then, now), "%s: the plan is another one:\n%s", path, now);
    free(then), free(now);
}

/* With the kernels of that instruction set, or of the best available one. */
static void expect_texts(const char *isa)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("texts are those of the CPU");
    if (isa) setenv("REWIND_ISA", isa, 1);
    for (size_t i = 0; i < PLANS; i++) expect_text(i);
}

Test(print, plans_are_those_of_the_files) { expect_texts(NULL); }
Test(print, plans_are_those_of_the_files_with_avx2) { expect_texts("v3"); }
Test(print, plans_are_those_of_the_files_without_avx) { expect_texts("base"); }

Test(print, a_plan_has_the_same_text_in_every_context)
{
    for (size_t i = 0; i < PLANS; i++) {
        char *const a = text_of(i, plans[i].policy), *const b = text_of(i, plans[i].policy);
        cr_expect_str_eq(a, b, "%s", plans[i].name);
        free(a), free(b);
    }
}

/* ---- contents of the text ---- */

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) n++;
    return n;
}

/* Each buffer line's lifetime and offset: two buffers that are live at one action share no byte. */
static void expect_apart(const char *text)
{
    unsigned long offset[256], bytes[256], first[256], last[256];
    int n = 0;
    for (const char *at = strstr(text, "\nb"); at; at = strstr(at + 1, "\nb"), n += n < 255)
        if (sscanf(at, "\nb%*u @%lu +%lu a%lu..a%lu", &offset[n], &bytes[n], &first[n], &last[n]) != 4) n--;
    cr_assert_gt(n, 5, "%s", text);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            cr_expect(last[i] < first[k] || last[k] < first[i] || offset[i] + bytes[i] <= offset[k] ||
                          offset[k] + bytes[k] <= offset[i],
                      "buffers at %lu and %lu", offset[i], offset[k]);
}

Test(print, buffers_that_are_alive_together_share_no_byte)
{
    for (size_t i = 0; i < PLANS; i++) {
        char *const text = text_of(i, plans[i].policy);
        if (strcmp(plans[i].name, "mlp_offload")) expect_apart(text);
        free(text);
    }
}

/* Gradients of rw_grad() belong to forward: the step's backward begins after them. */
Test(print, counts_the_actions_before_backward)
{
    struct fixture b = fixture_open(1, 1);
    char *text = NULL, kind[16] = "";
    size_t size = 0, before = 0, action = 0;
    rw_tensor *const w = weight(&b, "w", RW_SHAPE(BATCH, WIDTH)), *g = NULL;
    rw_tensor *const y = rw_sum(b.t, rw_tanh(b.t, rw_exp(b.t, w)), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, y, &w, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = rw_add(b.t, y, rw_sum(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false));
    FILE *const f = open_memstream(&text, &size);
    cr_assert_eq(rw_plan_print(b.t, loss, "none", f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    cr_assert_eq(sscanf(strstr(text, "actions:"), "actions: %*u, of which %zu before", &before), 1, "%s", text);
    size_t last_forward = 0;
    for (const char *at = strstr(text, "\na0"); at && sscanf(at, "\na%zu compute %15s", &action, kind) == 2;
         at = strchr(at + 1, '\n'))
        if (!strcmp(kind, "forward")) last_forward = action;
    cr_expect_eq(before, last_forward + 1, "%zu, the last of forward is a%zu: %s", before, last_forward, text);
    free(text);
    fixture_close(&b);
}

Test(print, shows_what_a_policy_recomputes_and_offloads)
{
    char *const none = text_of(0, "none"), *const full = text_of(0, "full"), *const away = text_of(0, "offload:layer");
    cr_expect_eq(count(none, " recompute "), 0);
    cr_expect_gt(count(full, " recompute "), 5);
    cr_expect_eq(count(full, "dropout "), count(none, "dropout ") + 3, "the mask of each layer is drawn again");
    cr_expect_gt(count(away, " copy_out "), 0);
    cr_expect_eq(count(away, " copy_out "), count(away, " copy_in "));
    cr_expect_gt(count(away, " after a"), 0);
    free(none), free(full), free(away);
}

/* A parameter's ID is not its number: states of an optimizer and buffers have IDs, too. */
Test(print, names_the_parameters_that_a_plan_reads_and_those_whose_gradients_it_writes)
{
    struct fixture b = fixture_open(1, 1);
    char *text = NULL;
    size_t size = 0;
    FILE *const out = open_memstream(&text, &size);
    rw_tensor *const first = rw_param(b.ctx, "first", RW_F32, RW_SHAPE(8));
    rw_optimizer *opt = NULL;
    cr_assert(!rw_init_constant(first, 1) && !rw_adamw_create(&opt, b.ctx, NULL));
    rw_tensor *const second = rw_param(b.ctx, "second", RW_F32, RW_SHAPE(8));
    cr_assert_eq(rw_init_constant(second, 1), RW_OK);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, first, second), RW_ALL_AXES, false);
    cr_assert_eq(rw_plan_print(b.t, loss, "none", out), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(out);
    cr_expect_eq(count(text, " first\n"), 3, "%s", text);
    cr_expect_eq(count(text, " second\n"), 3, "%s", text);
    free(text);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- REWIND_DUMP ---- */

static char folder[] = "/tmp/rewind-plans-XXXXXX";

static int entries(bool remove_them)
{
    char path[512];
    int n = 0;
    DIR *const d = opendir(folder);
    cr_assert_not_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (remove_them) unlink(path);
    }
    closedir(d);
    return n;
}

static rw_status one_step(struct fixture *b)
{
    rw_tensor *const loss = mlp(b);
    cr_assert_eq(ckpt_set_policy(b->t, "full"), RW_OK);
    return rw_backward(b->t, loss);
}

Test(print, a_folder_gets_a_file_of_each_pass)
{
    cr_assert_not_null(mkdtemp(folder));
    setenv("REWIND_DUMP", folder, 1);
    struct fixture b = fixture_open(1, 2);
    char path[512];
    char *none = NULL;
    size_t size = 0;
    FILE *const out = open_memstream(&none, &size);
    cr_assert_eq(one_step(&b), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(entries(false), 5);
    rw_tape_reset(b.t);
    rw_tensor *const loss = mlp(&b);
    cr_assert_eq(rw_plan_print(b.t, loss, NULL, out), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(out);
    cr_expect_eq(entries(false), 10);
    for (int pass = 0; pass < 5; pass++) {
        static const char *const names[] = { "tape", "problem", "choice", "schedule", "plan" };
        snprintf(path, sizeof path, "%s/0001.%s", folder, names[pass]);
        char *const text = read_file(path);
        cr_assert_not_null(text, "%s", path);
        cr_expect_eq(strncmp(text, names[pass], strlen(names[pass])), 0, "%s", path);
        if (pass == 4) cr_expect_str_eq(text, none, "the step ran the plan that is printed");
        free(text);
    }
    free(none);
    fixture_close(&b);
    entries(true);
    cr_expect_eq(rmdir(folder), 0);
}

/* Plans of updates between steps are dumped, too: they read and write states, which have no names. */
Test(print, a_folder_gets_the_plans_of_updates)
{
    cr_assert_not_null(mkdtemp(folder));
    setenv("REWIND_DUMP", folder, 1);
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
    rw_optimizer *opt = NULL;
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(entries(false) % 5, 0);
    cr_expect_geq(entries(false), 5);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    entries(true);
    cr_expect_eq(rmdir(folder), 0);
}

/* Parent and child of fork(), and other processes, have one folder: no file replaces another one. */
Test(print, a_folder_of_several_processes_has_the_plans_of_each)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("CUDA does not work in a child");
    cr_assert_not_null(mkdtemp(folder));
    setenv("REWIND_DUMP", folder, 1);
    for (int turn = 0; turn < 2; turn++) {
        int how;
        const pid_t child = fork();
        if (!child) {
            struct fixture b = fixture_open(1, 1);
            if (one_step(&b)) _exit(1);
            const pid_t grandchild = fork();
            rw_tape_reset(b.t);
            rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(3 + (grandchild > 0)), NULL, 0);
            if (rw_eval(b.t, (rw_tensor *[]){ rw_tanh(b.t, x) }, 1)) _exit(2);
            if (!grandchild) _exit(0);
            _exit(waitpid(grandchild, &how, 0) == grandchild ? how : 3);
        }
        cr_assert_eq(waitpid(child, &how, 0), child);
        cr_assert_eq(how, 0);
        cr_expect_eq(entries(false), 15 * (turn + 1), "%d", entries(false));
    }
    entries(true);
    cr_expect_eq(rmdir(folder), 0);
}

Test(print, a_folder_that_is_none_is_refused_by_name)
{
    rw_context *ctx = NULL;
    setenv("REWIND_DUMP", "/dev/null/plans", 1);
    cr_expect_eq(rw_context_create(&ctx, &(rw_context_params){ .device = test_device() }), RW_ERR_IO);
    cr_expect_null(ctx);
    cr_expect(strstr(rw_error_message(NULL), "REWIND_DUMP=/dev/null/plans"), "%s", rw_error_message(NULL));
}

Test(print, a_folder_that_goes_fails_the_step_by_name)
{
    cr_assert_not_null(mkdtemp(folder));
    setenv("REWIND_DUMP", folder, 1);
    struct fixture b = fixture_open(1, 2);
    cr_expect_eq(rmdir(folder), 0);
    cr_expect_eq(one_step(&b), RW_ERR_IO);
    cr_expect(strstr(rw_error_message(b.ctx), folder), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(print, a_stream_that_is_full_is_an_error)
{
    struct fixture b = open_planning();
    FILE *const full = fopen("/dev/full", "w");
    if (!full) cr_skip_test("there is no /dev/full");
    cr_expect_eq(rw_plan_print(b.t, mlp(&b), "full", full), RW_ERR_IO);
    fclose(full);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_plan_print(b.t, NULL, "full", stdout), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_plan_print(b.t, mlp(&b), "ful", stdout), RW_ERR_POLICY);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_plan_print(b.t, mlp(&b), "full", NULL), RW_ERR_ARGUMENT);
    fixture_close(&b);
}
