/* See model_session.h. */
#include "sweep/model_session.h"

#include "device/cpu/memory_limits.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rw_context_params sweep_context_params(const struct sweep_options *o)
{
    rw_context_params params = { .device = RW_DEVICE_AUTO, .seed = o->seed, .threads = o->threads,
                                 .strict_policy = true };
    for (rw_device d = 0; d < RW_DEVICE_COUNT; d++)
        if (!strcmp(o->device, rw_device_name(d))) params.device = d;
    return params;
}

rw_status sweep_print_error(rw_context *ctx, rw_status status)
{
    const char *const message = rw_error_message(ctx);
    fprintf(stderr, "recompute_sweep: %s\n", *message ? message : rw_status_name(status));
    return status;
}

/* Opens a context, the model and the optimizer. */
static rw_status open_run(struct sweep_run *r, const struct sweep_options *o, int seq, bool plan_only)
{
    rw_context_params params = sweep_context_params(o);
    struct model_config config = o->model;
    rw_context *ctx = NULL;
    params.plan_only = plan_only;
    *r = (struct sweep_run){ 0 };
    rw_status status = rw_context_create(&ctx, &params);
    if (status) return sweep_print_error(NULL, status);
    if (seq > config.max_seq) config.max_seq = seq;
    status = plan_only ? model_declare(&r->m, ctx, &config) : model_create(&r->m, ctx, &config);
    r->m.ctx = ctx;
    if (!status) status = rw_tape_create(&r->t, ctx);
    if (!status) status = rw_adamw_create(&r->opt, ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 });
    if (!status && o->has_costs) status = rw_costs_load(ctx, o->costs);
    return status;
}

rw_status sweep_run_open(struct sweep_run *r, const struct sweep_options *o, int seq)
{
    return open_run(r, o, seq, false);
}

rw_status sweep_plan_open(struct sweep_run *r, const struct sweep_options *o, int seq)
{
    return open_run(r, o, seq, true);
}

size_t sweep_machine_bytes(void)
{
    return (size_t)rw_memory_limits().resident;
}

size_t sweep_process_bytes(void)
{
    return (size_t)rw_memory_limits().all.bytes;
}

rw_status sweep_run_close(struct sweep_run *r, rw_status status)
{
    if (r->m.ctx && status) sweep_print_error(r->m.ctx, status);
    rw_optimizer_destroy(&r->opt);
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->m.ctx);
    return status;
}

rw_status sweep_predict(struct sweep_run *r, int batch, int seq, const char *policy, rw_prediction *ret)
{
    const rw_shape shape = RW_SHAPE(batch, seq);
    rw_tensor *const tokens = rw_input(r->t, RW_I32, shape, NULL, 0), *const targets = rw_input(r->t, RW_I32, shape,
                                                                                                NULL, 0);
    rw_tensor *const loss = tokens && targets ? model_loss_of(&r->m, r->t, tokens, targets) : NULL;
    rw_status status = loss ? rw_tape_plan(r->t, loss, policy, ret) : rw_error_status(r->m.ctx);
    if (!loss && !status) status = RW_ERR_MEMORY; /* a model fails for no other reason */
    rw_tape_reset(r->t);
    return status;
}

rw_status sweep_moved_points(struct sweep_run *r, rw_tensor *loss, rw_frontier_point *points, size_t *n)
{
    char *const policy = strdup(ckpt_policy(r->t));
    if (!policy) return RW_ERR_MEMORY;
    rw_status status = ckpt_set_policy(r->t, "budget:100%+offload"); /* of any size */
    if (!status) status = rw_tape_frontier(r->t, loss, points, n);
    if (status == RW_ERR_IO) {
        fprintf(stderr, "recompute_sweep: budgets with +offload are left out: %s\n", rw_error_message(r->m.ctx));
        rw_error_clear(r->m.ctx);
        *n = 0, status = RW_OK;
    }
    const rw_status back = ckpt_set_policy(r->t, policy);
    free(policy);
    return status ? status : back;
}

bool sweep_has_store(const struct sweep_options *o)
{
    const char *const folder = getenv("REWIND_OFFLOAD");
    bool named = (folder && *folder) || strcmp(o->device, rw_device_name(RW_DEVICE_CPU));
    for (int i = 0; i < o->n_policies; i++) named |= strstr(o->policies[i], "offload") != NULL;
    return named;
}

void sweep_fill_batch(const struct sweep_text *text, int batch, int seq, int step, int32_t *tokens, int32_t *targets)
{
    for (int b = 0; b < batch; b++) {
        const uint64_t h = ((uint64_t)step * 1000003u + (uint64_t)b) * 0x9e3779b97f4a7c15u;
        const size_t at = (size_t)((h >> 20) % (text->n - (size_t)seq));
        for (int i = 0; i < seq; i++) {
            tokens[(size_t)b * (size_t)seq + (size_t)i] = text->bytes[at + (size_t)i];
            targets[(size_t)b * (size_t)seq + (size_t)i] = text->bytes[at + (size_t)i + 1];
        }
    }
}

/* ---- resident memory ---- */

/* A line of /proc/self/status, in bytes; 0 if there is none. */
static size_t read_status(const char *name)
{
    char line[256];
    size_t kib = 0;
    FILE *const f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) sscanf(line + strlen(name), ": %zu", &kib);
    if (f) fclose(f);
    return 1024 * kib;
}

void sweep_resident_begin(struct sweep_resident *r)
{
    malloc_trim(0);
    FILE *const f = fopen("/proc/self/clear_refs", "w");
    r->counts = f && fputs("5", f) >= 0; /* resets the peak to the current value */
    if (f) r->counts &= !fclose(f);
    r->before = read_status("VmRSS");
}

size_t sweep_resident_end(const struct sweep_resident *r)
{
    const size_t most = r->counts ? read_status("VmHWM") : 0;
    return most > r->before ? most - r->before : 0;
}
