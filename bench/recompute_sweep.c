/*
 * recompute_sweep: trains a model under several policies; prints step time, memory, and whether every byte is the same
 * as without recompute. Exits with 1 when a row is not identical, 2 on bad options or data.
 */
#include "sweep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct text {
    unsigned char *bytes;
    size_t n;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

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

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void progress(const char *policy, int step, int steps)
{
    if (isatty(2)) fprintf(stderr, "\r%-40.40s step %d of %d \033[K", policy, step, steps);
}

/* One step; its time is that of forward and backward, without the optimizer. */
static rw_status one_step(const struct sweep_options *o, const struct model *m, rw_tape *t, const int32_t *tokens,
                          const int32_t *targets, int step, double *ret_ms, struct sweep_row *row)
{
    rw_zero_grad(m->ctx);
    const double begin = now_ms();
    rw_tensor *const loss = model_loss(m, t, o->batch, row->seq, tokens, targets);
    const rw_status status = rw_backward(t, loss);
    *ret_ms = now_ms() - begin;
    if (status) return status;
    rw_cost cost;
    if (!rw_tape_cost(t, loss, &cost)) row->replayed = cost.replayed_nodes;
    return sweep_outcome_step(&row->outcome, m->ctx, step, rw_item(t, loss));
}

/* One step to warm up and o->steps that count; all are compared. */
static rw_status steps(const struct sweep_options *o, const struct model *m, rw_tape *t, rw_adamw *opt,
                       const struct text *text, struct sweep_row *row)
{
    const size_t n = (size_t)o->batch * (size_t)row->seq;
    int32_t *const tokens = malloc(2 * sizeof *tokens * n);
    double *const times = malloc(sizeof *times * (size_t)(o->steps + 1));
    rw_status status = tokens && times ? RW_OK : RW_ERR_MEMORY;
    for (int s = 0; !status && s <= o->steps; s++) {
        progress(row->policy, s, o->steps);
        fill_batch(text, o->batch, row->seq, s, tokens, tokens + n);
        status = one_step(o, m, t, tokens, tokens + n, s, &times[s], row);
        if (!status) status = rw_adamw_step(opt);
        rw_tape_reset(t);
    }
    if (!status) row->step_ms = median(times + 1, o->steps);
    free(times);
    free(tokens);
    return status;
}

static rw_status train(const struct sweep_options *o, const struct model *m, const struct text *text,
                       struct sweep_row *row)
{
    rw_tape *t = NULL;
    rw_adamw *opt = NULL;
    rw_generator_set(m->ctx, (rw_generator_state){ .seed = o->seed });
    rw_status status = sweep_outcome_open(&row->outcome, o->steps) ? model_init(m) : RW_ERR_MEMORY;
    if (!status) status = rw_tape_create(&t, m->ctx);
    if (!status) status = ckpt_set_policy(t, row->policy);
    if (!status) status = rw_adamw_create(&opt, m->ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 });
    if (!status) status = steps(o, m, t, opt, text, row);
    if (!status) status = sweep_outcome_end(&row->outcome, m->ctx);
    if (!status) {
        rw_memory memory;
        rw_memory_stats(m->ctx, &memory);
        row->kept = memory.kept;
        row->peak = memory.measured_peak;
        row->predicted = memory.predicted_peak;
        row->loss = row->outcome.losses[o->steps];
    }
    rw_adamw_destroy(&opt);
    rw_tape_destroy(&t);
    return status;
}

static void print_header(const struct sweep_options *o)
{
    printf("%s, %d layers of width %d, %s, batch %d, %d threads on %s, %d steps\n", model_name(o->model.kind),
           o->model.layers, o->model.width, rw_dtype_name(o->model.dtype), o->batch, o->threads, o->device, o->steps);
    printf("%5s  %-38s %9s %6s %12s %12s %12s %8s %9s  %s\n", "seq", "policy", "step ms", "ratio", "kept bytes",
           "peak bytes", "predicted", "replayed", "loss", "identical");
    fflush(stdout);
}

static void print_row(const struct sweep_row *r)
{
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    printf("%5d  %-38s %9.1f %6.3f %12zu %12zu %12zu %8zu %9.5f  %s\n", r->seq, r->policy, r->step_ms, r->ratio,
           r->kept, r->peak, r->predicted, r->replayed, r->loss, r->identical ? "yes" : "NO");
    fflush(stdout);
}

/* Says what is wrong with a row, or odd about it. False when it is wrong. */
static bool judge(struct sweep_row *r, const struct sweep_row *none)
{
    char where[64];
    r->identical = sweep_outcome_same(&none->outcome, &r->outcome, where, sizeof where);
    if (!r->identical) fprintf(stderr, "recompute_sweep: %s: not the bytes of none: %s\n", r->policy, where);
    if (r->peak != r->predicted) fprintf(stderr, "recompute_sweep: %s: the peak is not the predicted one\n", r->policy);
    if (!r->replayed && strcmp(r->policy, "none"))
        fprintf(stderr, "recompute_sweep: %s: replays nothing; the model's regions are block, core_attn and mlp\n",
                r->policy);
    return r->identical && r->peak == r->predicted;
}

/* All policies at one sequence length, against `none`, listed or not. */
static rw_status sweep_seq(const struct sweep_options *o, const struct model *m, const struct text *text, int seq,
                           struct sweep_row *rows, int *n, bool *all_good)
{
    struct sweep_row none = { .policy = "none", .seq = seq, .ratio = 1 };
    rw_status status = train(o, m, text, &none);
    bool taken = false;
    for (int p = 0; !status && p < o->n_policies; p++) {
        struct sweep_row *const r = &rows[(*n)++];
        if (!taken && !strcmp(o->policies[p], "none")) {
            *r = none;
            taken = true;
        } else {
            *r = (struct sweep_row){ .policy = o->policies[p], .seq = seq };
            status = train(o, m, text, r);
            r->ratio = r->step_ms / none.step_ms;
        }
        if (status) break;
        *all_good &= judge(r, &none);
        print_row(r);
    }
    if (!taken) sweep_outcome_close(&none.outcome);
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

static void print_error(rw_context *ctx, rw_status status)
{
    const char *const message = rw_error_message(ctx);
    fprintf(stderr, "recompute_sweep: %s\n", *message ? message : rw_status_name(status));
}

/* A step of one byte is planned, not run, under every policy of the list: a mistake in the last one must not come to
   light after the others have trained. */
static rw_status try_policies(const struct sweep_options *o, const struct model *m)
{
    const int32_t token = 0;
    rw_tape *t = NULL;
    rw_cost cost;
    rw_status status = rw_tape_create(&t, m->ctx);
    for (int i = 0; !status && i < o->n_policies; i++) {
        status = ckpt_set_policy(t, o->policies[i]);
        if (!status) status = rw_tape_cost(t, model_loss(m, t, 1, 1, &token, &token), &cost);
        rw_tape_reset(t);
    }
    rw_tape_destroy(&t);
    return status;
}

static int sweep(const struct sweep_options *o, rw_context *ctx, const struct text *text)
{
    static struct sweep_row rows[SWEEP_MOST * SWEEP_MOST];
    struct model m;
    int n = 0;
    bool good = true;
    rw_status status = model_create(&m, ctx, &o->model);
    if (!status) status = try_policies(o, &m);
    if (!status) print_header(o);
    for (int i = 0; !status && i < o->n_seqs; i++) status = sweep_seq(o, &m, text, o->seqs[i], rows, &n, &good);
    if (status) print_error(ctx, status);
    const bool written = !status && write_files(o, rows, n);
    for (int i = 0; i < n; i++) sweep_outcome_close(&rows[i].outcome);
    return !written ? 2 : good ? 0 : 1;
}

static int run(struct sweep_options *o, const struct text *text)
{
    rw_context_params params = { .device = RW_DEVICE_AUTO, .seed = o->seed, .threads = o->threads };
    for (rw_device d = 0; d < RW_DEVICE_COUNT; d++)
        if (!strcmp(o->device, rw_device_name(d))) params.device = d;
    rw_context *ctx = NULL;
    const rw_status opened = rw_context_create(&ctx, &params);
    if (opened) {
        fprintf(stderr, "recompute_sweep: device %s: %s\n", o->device, rw_status_name(opened));
        return 2;
    }
    o->threads = rw_context_threads(ctx);
    o->device = rw_device_name(rw_context_device(ctx));
    const int status = prepare_out(o) ? sweep(o, ctx, text) : 2;
    rw_context_destroy(&ctx);
    return status;
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
