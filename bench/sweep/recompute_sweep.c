/*
 * recompute_sweep: trains a model under several policies; prints step time, memory, and whether every byte is the same
 * as without recompute. Exits with 1 when a row is not identical, 2 on bad options or data.
 */
#include "figure.h"
#include "limits.h"
#include "sweep/sweep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct text {
    unsigned char *bytes;
    size_t n;
};

static bool read_text(const char *path, struct text *ret)
{
    FILE *const f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "recompute_sweep: %s: %s\n", path, strerror(errno));
        return false;
    }
    size_t n = 0, room = 1 << 20;
    unsigned char *bytes = malloc(room);
    for (size_t got; bytes && (got = fread(bytes + n, 1, room - n, f)) > 0;) {
        n += got;
        if (n == room) bytes = realloc(bytes, room *= 2);
    }
    const bool ok = bytes && !ferror(f);
    fclose(f);
    if (!ok) fprintf(stderr, "recompute_sweep: %s: cannot be read\n", path);
    *ret = (struct text){ bytes, n };
    return ok;
}

/* Batch of step s: windows that start at places given by a fixed hash, so that every run sees the same bytes. */
static void fill_batch(const struct text *text, int batch, int seq, int step, int32_t *tokens, int32_t *targets)
{
    for (int b = 0; b < batch; b++) {
        const uint64_t h = ((uint64_t)step * 1000003u + (uint64_t)b) * 0x9e3779b97f4a7c15u;
        const size_t at = (size_t)((h >> 20) % (text->n - (size_t)seq));
        for (int i = 0; i < seq; i++) {
            tokens[b * seq + i] = text->bytes[at + (size_t)i];
            targets[b * seq + i] = text->bytes[at + (size_t)i + 1];
        }
    }
}

static void progress(const char *policy, int step, int steps)
{
    if (isatty(2)) fprintf(stderr, "\r%-40.40s step %d of %d \033[K", policy, step, steps);
}

/* What must not outlive a row: its context, so that the device holds nothing of the rows before it. */
struct run {
    const struct sweep_options *o;
    const struct text *text;
    struct model m;
    rw_tape *t;
    rw_adamw *opt;
};

static rw_status print_error(rw_context *ctx, rw_status status)
{
    const char *const message = rw_error_message(ctx);
    fprintf(stderr, "recompute_sweep: %s\n", *message ? message : rw_status_name(status));
    return status;
}

static rw_context_params context_params(const struct sweep_options *o)
{
    rw_context_params params = { .device = RW_DEVICE_AUTO, .seed = o->seed, .threads = o->threads };
    for (rw_device d = 0; d < RW_DEVICE_COUNT; d++)
        if (!strcmp(o->device, rw_device_name(d))) params.device = d;
    return params;
}

static rw_status open_run(struct run *r, const struct sweep_options *o, const struct text *text)
{
    const rw_context_params params = context_params(o);
    rw_context *ctx = NULL;
    *r = (struct run){ .o = o, .text = text };
    rw_status status = rw_context_create(&ctx, &params);
    if (status) return print_error(NULL, status);
    status = model_create(&r->m, ctx, &o->model);
    if (!status) status = rw_tape_create(&r->t, ctx);
    r->m.ctx = ctx;
    return status;
}

/* Says what went wrong, when something did. */
static rw_status close_run(struct run *r, rw_status status)
{
    if (r->m.ctx && status) print_error(r->m.ctx, status);
    rw_adamw_destroy(&r->opt);
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->m.ctx);
    return status;
}

/* One step; its time is that of forward and backward, without the optimizer. */
static rw_status one_step(struct run *r, const int32_t *tokens, const int32_t *targets, int step, double *ret_ms,
                          struct sweep_row *row)
{
    rw_context *const ctx = r->m.ctx;
    rw_cost cost;
    rw_zero_grad(ctx);
    rw_status status = rw_timer_begin(ctx);
    if (status) return status;
    rw_tensor *const loss = model_loss(&r->m, r->t, r->o->batch, row->seq, tokens, targets);
    status = rw_backward(r->t, loss);
    if (!status) status = rw_timer_end(ctx, ret_ms);
    if (!status) status = rw_tape_cost(r->t, loss, &cost);
    if (status) return status;
    row->replayed = cost.replayed_nodes;
    row->tflops = (cost.forward_flops + cost.backward_flops) * 1e-9; /* of one step; divided by its time later */
    outcome_loss(&row->outcome, step, rw_item(r->t, loss));
    return outcome_gradients(&row->outcome, ctx, step);
}

/* One step to warm up and o->steps that count; all are compared. */
static rw_status steps(struct run *r, struct sweep_row *row)
{
    const struct sweep_options *const o = r->o;
    const size_t n = (size_t)o->batch * (size_t)row->seq;
    int32_t *const tokens = malloc(2 * sizeof *tokens * n);
    double *const times = malloc(sizeof *times * (size_t)(o->steps + 1));
    rw_status status = tokens && times ? RW_OK : RW_ERR_MEMORY;
    for (int s = 0; !status && s <= o->steps; s++) {
        progress(row->policy, s, o->steps);
        fill_batch(r->text, o->batch, row->seq, s, tokens, tokens + n);
        status = one_step(r, tokens, tokens + n, s, &times[s], row);
        if (!status) status = rw_adamw_step(r->opt);
        rw_tape_reset(r->t);
    }
    if (!status) row->step_ms = median_of(times + 1, o->steps);
    if (!status) row->tflops /= row->step_ms;
    free(times);
    free(tokens);
    return status;
}

static void note_memory(const struct run *r, struct sweep_row *row)
{
    rw_memory memory;
    rw_memory_stats(r->m.ctx, &memory);
    row->kept = memory.kept;
    row->peak = memory.measured_peak;
    row->predicted = memory.predicted_peak;
    row->device = memory.device;
    row->loss = row->outcome.losses[r->o->steps];
}

static rw_status train(const struct sweep_options *o, const struct text *text, struct sweep_row *row)
{
    struct run r;
    rw_status status = open_run(&r, o, text);
    if (!status && !outcome_open(&row->outcome, o->steps)) status = RW_ERR_MEMORY;
    if (!status) status = ckpt_set_policy(r.t, row->policy);
    if (!status) status = rw_adamw_create(&r.opt, r.m.ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 });
    if (!status) status = steps(&r, row);
    if (!status) status = outcome_end(&row->outcome, r.m.ctx);
    if (!status) note_memory(&r, row);
    return close_run(&r, status);
}

static void print_header(const struct sweep_options *o)
{
    printf("%s, %d layers of width %d, %s, batch %d, %d threads on %s, %d steps; a plain matrix product reaches %.4g "
           "TFLOP/s\n",
           model_name(o->model.kind), o->model.layers, o->model.width, rw_dtype_name(o->model.dtype), o->batch,
           o->threads, o->device, o->steps, o->ceiling);
    printf("%5s  %-32s %9s %6s %8s %6s %12s %12s %12s %12s %8s %9s  %s\n", "seq", "policy", "step ms", "ratio",
           "TFLOP/s", "of it", "kept bytes", "peak bytes", "predicted", "in use", "replayed", "loss", "identical");
    fflush(stdout);
}

static void print_row(const struct sweep_options *o, const struct sweep_row *r)
{
    char device[24] = "-";
    if (r->device) snprintf(device, sizeof device, "%zu", r->device);
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    printf("%5d  %-32s %9.1f %6.3f %8.4g %5.1f%% %12zu %12zu %12zu %12s %8zu %9.5f  %s\n", r->seq, r->policy,
           r->step_ms, r->ratio, r->tflops, sweep_utilisation(o, r), r->kept, r->peak, r->predicted, device,
           r->replayed, r->loss, r->identical ? "yes" : "NO");
    fflush(stdout);
}

/* Says what is wrong with a row, or odd about it. False when it is wrong. */
static bool judge(struct sweep_row *r, const struct sweep_row *none)
{
    char where[64];
    r->identical = outcome_same(&none->outcome, &r->outcome, where, sizeof where);
    if (!r->identical) fprintf(stderr, "recompute_sweep: %s: not the bytes of none: %s\n", r->policy, where);
    if (r->peak != r->predicted) fprintf(stderr, "recompute_sweep: %s: the peak is not the predicted one\n", r->policy);
    if (!r->replayed && strcmp(r->policy, "none"))
        fprintf(stderr, "recompute_sweep: %s: replays nothing; the model's regions are block, core_attn and mlp\n",
                r->policy);
    return r->identical && r->peak == r->predicted;
}

/* All policies at one sequence length, against `none`, listed or not. */
static rw_status sweep_seq(const struct sweep_options *o, const struct text *text, int seq, struct sweep_row *rows,
                           int *n, bool *all_good)
{
    struct sweep_row none = { .policy = "none", .seq = seq, .ratio = 1 };
    rw_status status = train(o, text, &none);
    bool taken = false;
    for (int p = 0; !status && p < o->n_policies; p++) {
        struct sweep_row *const r = &rows[(*n)++];
        if (!taken && !strcmp(o->policies[p], "none")) {
            *r = none;
            taken = true;
        } else {
            *r = (struct sweep_row){ .policy = o->policies[p], .seq = seq };
            status = train(o, text, r);
            r->ratio = r->step_ms / none.step_ms;
        }
        if (status) break;
        *all_good &= judge(r, &none);
        print_row(o, r);
    }
    if (!taken) outcome_close(&none.outcome);
    return status;
}

/* Creates o->out and a file in it: a run of minutes must not end in a place that cannot be written. */
static bool prepare_out(const struct sweep_options *o)
{
    char path[SWEEP_PATH];
    snprintf(path, sizeof path, "%s/.sweep-XXXXXX", o->out);
    const int f = mkdir(o->out, 0777) && errno != EEXIST ? -1 : mkstemp(path);
    if (f < 0) {
        fprintf(stderr, "recompute_sweep: --out %s: %s\n", o->out, strerror(errno));
        return false;
    }
    close(f);
    unlink(path);
    return true;
}

static bool write_files(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    if (!sweep_write_csv(o, rows, n) || !sweep_write_json(o, rows, n) || !sweep_write_html(o, rows, n) ||
        !sweep_write_svg(o, rows, n)) {
        fprintf(stderr, "recompute_sweep: %s: %s\n", o->out, strerror(errno));
        return false;
    }
    printf("wrote %s/sweep.csv, sweep.json, sweep.html, sweep.svg\n", o->out);
    return true;
}

/* A step of one byte is planned, not run, under every policy of the list: a mistake in the last one must not come to
   light after the others have trained. Notes what the device turned out to be. */
static rw_status try_policies(struct sweep_options *o)
{
    const int32_t token = 0;
    struct run r;
    rw_cost cost;
    rw_status status = open_run(&r, o, NULL);
    for (int i = 0; !status && i < o->n_policies; i++) {
        status = ckpt_set_policy(r.t, o->policies[i]);
        if (!status) status = rw_tape_cost(r.t, model_loss(&r.m, r.t, 1, 1, &token, &token), &cost);
        rw_tape_reset(r.t);
    }
    if (!status) o->threads = rw_context_threads(r.m.ctx);
    if (!status) o->device = rw_device_name(rw_context_device(r.m.ctx));
    return close_run(&r, status);
}

static int sweep(struct sweep_options *o, const struct text *text)
{
    static struct sweep_row rows[SWEEP_MOST * SWEEP_MOST];
    int n = 0;
    bool good = true;
    rw_status status = try_policies(o);
    const rw_context_params params = context_params(o);
    if (!status && (status = limit_matmul(&params, o->model.dtype, &o->ceiling))) print_error(NULL, status);
    if (!status) print_header(o);
    for (int i = 0; !status && i < o->n_seqs; i++) status = sweep_seq(o, text, o->seqs[i], rows, &n, &good);
    const bool written = !status && write_files(o, rows, n);
    for (int i = 0; i < n; i++) outcome_close(&rows[i].outcome);
    return !written ? 2 : good ? 0 : 1;
}

static int run(struct sweep_options *o, const struct text *text)
{
    char why[512];
    const rw_context_params params = context_params(o);
    if (rw_device_check(params.device, why, sizeof why)) {
        fprintf(stderr, "recompute_sweep: device %s: %s\n", o->device, why);
        return 2;
    }
    return prepare_out(o) ? sweep(o, text) : 2;
}

int main(int argc, char **argv)
{
    if (getenv("REWIND_POLICY"))
        fprintf(stderr, "recompute_sweep: REWIND_POLICY is left aside: each row has its own policy\n");
    unsetenv("REWIND_POLICY");
    struct sweep_options o;
    const int read = sweep_options_read(&o, argc, argv);
    if (read) {
        sweep_options_finish(&o);
        return read - 1;
    }
    struct text text = { 0 };
    int status = 2;
    if (read_text(o.data, &text)) {
        int longest = 0;
        for (int i = 0; i < o.n_seqs; i++) longest = o.seqs[i] > longest ? o.seqs[i] : longest;
        if (text.n <= (size_t)longest + 1)
            fprintf(stderr, "recompute_sweep: %s: %zu bytes, more than %d are needed\n", o.data, text.n, longest + 1);
        else status = run(&o, &text);
    }
    free(text.bytes);
    sweep_options_finish(&o);
    return status;
}
