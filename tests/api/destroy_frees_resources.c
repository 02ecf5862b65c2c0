/*
 * Objects that caches refer to - planned updates of scalers and of delayed scaling, monitors, checkpoints - are freed
 * when they are destroyed: their memory, files and descriptors are released, and each cache continues without them.
 */
#include "record/context.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[128];

static void folder_make(void)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.60s/rewind-destroyed-XXXXXX", tmp ? tmp : P_tmpdir);
    cr_assert(mkdtemp(folder));
}

static void folder_remove(void)
{
    char command[192];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

static int descriptors(void)
{
    int n = 0;
    DIR *const d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void add_gradient(struct fixture *b, rw_tensor *p, float value)
{
    const size_t n = rw_tensor_bytes(p) / sizeof(float);
    float *const g = malloc(n * sizeof *g);
    cr_assert(g);
    for (size_t i = 0; i < n; i++) g[i] = value;
    cr_assert_eq(rw_write(rw_gradient(p), g, n * sizeof *g), RW_OK, "%s", rw_error_message(b->ctx));
    free(g);
}

static rw_tensor *one_parameter(struct fixture *b, int64_t side)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(side, side));
    cr_assert_eq(rw_init_constant(p, 1), RW_OK);
    return p;
}

static void nothing_of_an_optimizer_stays(struct fixture *b)
{
    rw_memory m;
    cr_assert_eq(rw_memory_stats(b->ctx, &m), RW_OK);
    cr_assert(!m.optimizer && !m.files && !m.host, "%zu bytes of optimizers, %zu in files, %zu on the host",
              m.optimizer, m.files, m.host);
}

/* Optimizers with their states in each location, stepped by two scalers and without one. */
Test(destroy_frees_resources, an_optimizer_that_scalers_stepped)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = one_parameter(&b, 64);
    rw_scaler *s[2] = { NULL };
    folder_make();
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_scaler_create(&s[i], b.ctx, NULL), RW_OK);
    const rw_state_offload places[] = { { 0 }, { RW_STATE_HOST, NULL, 1 << 16 }, { RW_STATE_FILE, folder, 1 << 16 } };
    int before = 0;
    for (int turn = 0; turn < 9; turn++) {
        rw_optimizer *opt = NULL;
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .states = places[turn % 3] }), RW_OK, "%s",
                     rw_error_message(b.ctx));
        for (int i = 0; i < 4; i++) {
            add_gradient(&b, p, 1);
            cr_assert_eq(rw_scaler_step(s[i % 2], opt), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_scaler_update(s[i % 2]), RW_OK);
        }
        rw_optimizer_destroy(&opt);
        nothing_of_an_optimizer_stays(&b);
        if (turn == 2) before = descriptors();
        cr_assert(turn < 3 || descriptors() == before, "turn %d: %d descriptors, %d before", turn, descriptors(),
                  before);
    }
    for (int i = 0; i < 2; i++) rw_scaler_destroy(&s[i]);
    fixture_close(&b);
    folder_remove();
}

/* A total budget that holds one optimizer suffices for several in succession. */
Test(destroy_frees_resources, frees_memory_under_a_total)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = one_parameter(&b, 256);
    rw_scaler *s = NULL;
    cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 2 }), RW_OK);
    for (int phase = 0; phase < 3; phase++) {
        rw_optimizer *opt = NULL;
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false);
        if (!phase) {
            rw_prediction r;
            char policy[64];
            cr_assert_eq(rw_tape_plan(b.t, loss, "none", &r), RW_OK);
            snprintf(policy, sizeof policy, "total:%zuB", r.total_bytes + 65536);
            cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        }
        cr_assert_eq(rw_scaler_backward(s, b.t, loss), RW_OK, "phase %d: %s", phase, rw_error_message(b.ctx));
        cr_assert_eq(rw_scaler_step(s, opt), RW_OK);
        cr_assert_eq(rw_scaler_update(s), RW_OK);
        rw_optimizer_destroy(&opt);
    }
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* In each order of destruction: scaler or optimizer first, with the work of both still queued. */
Test(destroy_frees_resources, in_any_order)
{
    for (int order = 0; order < 6; order++) {
        struct fixture b = fixture_open(1, 2);
        rw_tensor *const p = one_parameter(&b, 32);
        rw_scaler *s = NULL;
        rw_optimizer *opt[2] = { NULL };
        cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
        for (int i = 0; i < 2; i++) cr_assert_eq(rw_adamw_create(&opt[i], b.ctx, NULL), RW_OK);
        add_gradient(&b, p, 1);
        for (int i = 0; i < 2; i++) cr_assert_eq(rw_scaler_step(s, opt[i]), RW_OK);
        if (order / 2 == 0) rw_scaler_destroy(&s);
        rw_optimizer_destroy(&opt[order % 2]);
        if (order / 2 == 1) rw_scaler_destroy(&s);
        if (s) {
            cr_assert_eq(rw_scaler_update(s), RW_OK, "%s", rw_error_message(b.ctx));
            rw_zero_grad(b.ctx);
            add_gradient(&b, p, 1);
            cr_assert_eq(rw_scaler_step(s, opt[!(order % 2)]), RW_OK, "%s", rw_error_message(b.ctx));
        }
        rw_optimizer_destroy(&opt[!(order % 2)]);
        nothing_of_an_optimizer_stays(&b);
        rw_scaler_destroy(&s);
        fixture_close(&b);
    }
}

/* A graph keeps its optimizer until it is destroyed, whatever else referred to it. */
Test(destroy_frees_resources, a_graph_keeps_its_optimizer)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = one_parameter(&b, 16);
    rw_optimizer *opt = NULL;
    rw_scaler *s = NULL;
    rw_graph *g = NULL;
    rw_memory m;
    float x[256];
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
    add_gradient(&b, p, 1);
    cr_assert_eq(rw_scaler_step(s, opt), RW_OK);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss,
                                 &(rw_graph_params){ { rw_record_scaler(s), rw_record_update(opt) } }), RW_OK);
    rw_optimizer_destroy(&opt);
    rw_scaler_destroy(&s);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, p, x, sizeof x), RW_OK);
    cr_assert_lt(x[0], 1);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_assert_gt(m.optimizer, 0);
    rw_graph_destroy(&g);
    nothing_of_an_optimizer_stays(&b);
    fixture_close(&b);
}

Test(destroy_frees_resources, an_optimizer_that_a_monitor_watches)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = one_parameter(&b, 16);
    rw_optimizer *opt = NULL;
    rw_monitor *m = NULL;
    const rw_monitor_values v = { .loss = 1, .step = 1 };
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_monitor_create(&m, b.ctx, NULL), RW_OK);
    const rw_monitor_group groups[] = { { "all", "*" } };
    cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = opt, .groups = groups, .n_groups = 1 }),
                 RW_OK);
    add_gradient(&b, p, 1);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    cr_assert_eq(rw_monitor_step(m, &v, NULL), RW_OK);
    cr_assert(rw_monitor_get_numbers(m).param_norm > 0);
    rw_optimizer_destroy(&opt);
    nothing_of_an_optimizer_stays(&b);
    cr_assert_eq(rw_monitor_step(m, &v, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(isnan(rw_monitor_get_numbers(m).param_norm));
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .optimizer = opt }), RW_OK);
    rw_monitor_destroy(&m);
    add_gradient(&b, p, 1);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

static void is_refused(struct fixture *b, rw_status status, const char *what)
{
    cr_assert_eq(status, RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(b->ctx), what), "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

/* Earlier saves stay complete. Saving and loading after an object of the checkpoint is destroyed is refused. */
Test(destroy_frees_resources, what_a_checkpoint_saves)
{
    for (int which = 0; which < 2; which++) {
        struct fixture b = fixture_open(1, 1);
        one_parameter(&b, 16);
        rw_optimizer *opt = NULL;
        rw_weight_average *average = NULL;
        rw_checkpoint *c = NULL;
        folder_make();
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
        cr_assert_eq(rw_checkpoint_create(&c, b.ctx, &(rw_checkpoint_params){ .folder = folder, .optimizer = opt,
                                                                             .average = average }), RW_OK);
        cr_assert_eq(rw_checkpoint_save(c, 1, NULL, 0), RW_OK);
        if (which) rw_weight_average_destroy(&average);
        else rw_optimizer_destroy(&opt);
        is_refused(&b, rw_checkpoint_save(c, 2, NULL, 0), which ? "average" : "optimizer");
        is_refused(&b, rw_checkpoint_load(c, NULL), which ? "average" : "optimizer");
        cr_assert_eq(rw_checkpoint_wait(c), RW_OK);
        rw_optimizer_destroy(&opt);
        rw_weight_average_destroy(&average);
        nothing_of_an_optimizer_stays(&b);
        rw_checkpoint_destroy(&c);
        fixture_close(&b);
        folder_remove();
    }
}

static size_t states_of(const rw_context *ctx)
{
    size_t n = 0;
    for (size_t i = 0; i < ctx->n_ids; i++) n += ctx->by_id[i] != NULL;
    return n;
}

/* Delayed scaling does not keep the scaler that its last update used, nor that scaler's plans. */
Test(destroy_frees_resources, a_scaler_that_delayed_scaling_went_by)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = one_parameter(&b, 16);
    rw_delayed_scaling *d = NULL;
    cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, NULL), RW_OK);
    const float four[4] = { 65536, 0, 1, 0 };
    rw_tensor *const numbers = rw_buffer(b.ctx, "scaler", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_write(numbers, four, sizeof four), RW_OK);
    const size_t states = states_of(b.ctx);
    for (int turn = 0; turn < 3; turn++) {
        rw_scaler *s = NULL;
        cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
        add_gradient(&b, p, 1);
        cr_assert_eq(rw_scaler_unscale(s), RW_OK);
        cr_assert_eq(rw_delayed_scaling_update(d, s), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_scaler_update(s), RW_OK);
        rw_scaler_destroy(&s);
        const size_t left = states_of(b.ctx);
        cr_assert_eq(left, states, "%zu tensors of the context, %zu before the scaler", left, states);
        cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    }
    rw_delayed_scaling_destroy(&d);
    fixture_close(&b);
}
