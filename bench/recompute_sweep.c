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

/* What a run leaves, to be compared byte for byte. */
struct outcome {
    unsigned char *gradients, *parameters;
    size_t bytes;
    rw_generator_state generator;
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

/* All gradients, or all parameters, in one piece. */
static rw_status collect(rw_context *ctx, bool gradients, unsigned char **ret, size_t *ret_bytes)
{
    size_t bytes = 0, at = 0;
    for (size_t i = 0; rw_param_get(ctx, i); i++) bytes += rw_tensor_bytes(rw_param_get(ctx, i));
    rw_status status = (*ret = malloc(bytes)) ? RW_OK : RW_ERR_MEMORY;
    for (size_t i = 0; !status && rw_param_get(ctx, i); i++) {
        rw_tensor *const p = rw_param_get(ctx, i);
        status = rw_read(NULL, gradients ? rw_gradient(p) : p, *ret + at, rw_tensor_bytes(p));
        at += rw_tensor_bytes(p);
    }
    *ret_bytes = bytes;
    return status;
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

/* One step; its time without the optimizer's. */
static rw_status one_step(const struct sweep_options *o, const struct model *m, rw_tape *t, rw_adamw *opt, const struct text *text, int seq,
                          int step, double *ret_ms, struct sweep_row *row)
{
    int32_t *const tokens = malloc(2 * sizeof *tokens * (size_t)(o->batch * seq)), *const targets = tokens + o->batch * seq;
    fill_batch(text, o->batch, seq, step, tokens, targets);
    rw_zero_grad(m->ctx);
    const double begin = now_ms();
    rw_tensor *const loss = model_loss(m, t, o->batch, seq, tokens, targets);
    rw_status status = rw_backward(t, loss);
    *ret_ms = now_ms() - begin;
    free(tokens);
    if (status) return status;
    row->losses[step] = rw_item(t, loss);
    rw_cost cost;
    if (!rw_tape_cost(t, loss, &cost)) row->replayed = cost.replayed_nodes;
    if (step == o->steps) return RW_OK; /* the last step's gradients are compared before they are used */
    status = rw_adamw_step(opt);
    rw_tape_reset(t);
    return status;
}

static rw_status train(const struct sweep_options *o, const struct model *m, const struct text *text, struct sweep_row *row,
                       struct outcome *ret)
{
    rw_context *const ctx = m->ctx;
    rw_generator_set(ctx, (rw_generator_state){ .seed = o->seed });
    rw_tape *t = NULL;
    rw_adamw *opt = NULL;
    double *const times = malloc(sizeof *times * (size_t)(o->steps + 1));
    rw_status status = model_init(m);
    if (!status) status = rw_tape_create(&t, ctx);
    if (!status) status = ckpt_set_policy(t, row->policy);
    if (!status) status = rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 3e-4, .weight_decay = 0.1 });
    for (int s = 0; !status && s <= o->steps; s++) {
        progress(row->policy, s, o->steps);
        status = one_step(o, m, t, opt, text, row->seq, s, &times[s], row);
    }
    if (!status) {
        rw_memory memory;
        rw_memory_stats(ctx, &memory);
        row->kept = memory.kept;
        row->peak = memory.measured_peak;
        row->predicted = memory.predicted_peak;
        row->loss = row->losses[o->steps];
        row->step_ms = median(times + 1, o->steps);
        status = collect(ctx, true, &ret->gradients, &ret->bytes);
        if (!status) status = rw_adamw_step(opt);
        if (!status) status = collect(ctx, false, &ret->parameters, &ret->bytes);
        ret->generator = rw_generator_get(ctx);
    }
    rw_adamw_destroy(&opt);
    rw_tape_destroy(&t);
    free(times);
    return status;
}

static bool same(const struct outcome *a, const struct outcome *b, const struct sweep_row *x, const struct sweep_row *y, int steps)
{
    return a->bytes == b->bytes && a->generator.offset == b->generator.offset && !memcmp(a->gradients, b->gradients, a->bytes) &&
           !memcmp(a->parameters, b->parameters, a->bytes) && !memcmp(x->losses, y->losses, sizeof *x->losses * (size_t)(steps + 1));
}

static void release(struct outcome *o)
{
    free(o->gradients);
    free(o->parameters);
}

static void print_row(const struct sweep_row *r)
{
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    printf("%5d  %-38s %9.1f %6.3f %12zu %12zu %12zu %8zu %9.5f  %s\n", r->seq, r->policy, r->step_ms, r->ratio, r->kept, r->peak,
           r->predicted, r->replayed, r->loss, r->identical ? "yes" : "NO");
    fflush(stdout);
}

/* All policies at one sequence length; `none` first, listed or not. */
static bool sweep_seq(const struct sweep_options *o, const struct model *m, const struct text *text, int seq, struct sweep_row *rows, int *n)
{
    struct sweep_row none = { .policy = "none", .seq = seq, .losses = calloc((size_t)o->steps + 1, sizeof(double)) };
    struct outcome reference = { 0 };
    bool ok = train(o, m, text, &none, &reference) == RW_OK;
    none.ratio = 1;
    none.identical = true;
    for (int p = 0; ok && p < o->n_policies; p++) {
        struct sweep_row *const r = &rows[*n];
        if (!strcmp(o->policies[p], "none")) {
            *r = none;
            r->losses = malloc(sizeof *r->losses * (size_t)(o->steps + 1));
            memcpy(r->losses, none.losses, sizeof *r->losses * (size_t)(o->steps + 1));
        } else {
            struct outcome outcome = { 0 };
            *r = (struct sweep_row){ .policy = o->policies[p], .seq = seq, .losses = calloc((size_t)o->steps + 1, sizeof(double)) };
            ok = train(o, m, text, r, &outcome) == RW_OK;
            r->ratio = r->step_ms / none.step_ms;
            r->identical = ok && same(&reference, &outcome, &none, r, o->steps) && r->peak == r->predicted;
            release(&outcome);
        }
        ++*n;
        if (ok) print_row(r);
    }
    if (!ok) fprintf(stderr, "recompute_sweep: %s\n", rw_error_message(m->ctx));
    release(&reference);
    free(none.losses);
    return ok;
}

static bool write_files(const struct sweep_options *o, const struct sweep_row *rows, int n)
{
    if (mkdir(o->out, 0777) && errno != EEXIST) {
        fprintf(stderr, "recompute_sweep: %s: %s\n", o->out, strerror(errno));
        return false;
    }
    if (!sweep_write_csv(o, rows, n) || !sweep_write_json(o, rows, n) || !sweep_write_html(o, rows, n) ||
        !sweep_write_svg(o, rows, n)) {
        fprintf(stderr, "recompute_sweep: %s: %s\n", o->out, strerror(errno));
        return false;
    }
    printf("wrote %s/sweep.csv, sweep.json, sweep.html, sweep.svg\n", o->out);
    return true;
}

static int run(struct sweep_options *o, const struct text *text)
{
    const rw_device device = !strcmp(o->device, "cuda") ? RW_DEVICE_CUDA : !strcmp(o->device, "cpu") ? RW_DEVICE_CPU : RW_DEVICE_AUTO;
    rw_context *ctx = NULL;
    const rw_status opened = rw_context_create(&ctx, &(rw_context_params){ .device = device, .seed = o->seed, .threads = o->threads });
    if (opened) {
        fprintf(stderr, "recompute_sweep: device %s: %s\n", o->device, rw_status_name(opened));
        return 2;
    }
    o->threads = rw_context_threads(ctx);
    o->device = rw_device_name(rw_context_device(ctx));
    static struct sweep_row rows[SWEEP_MOST * SWEEP_MOST];
    struct model m;
    int n = 0;
    bool ok = model_create(&m, ctx, &o->model) == RW_OK;
    if (!ok) fprintf(stderr, "recompute_sweep: %s\n", rw_error_message(ctx));
    printf("%s, %d layers of width %d, %s, batch %d, %d threads on %s, %d steps\n", model_name(o->model.kind), o->model.layers, o->model.width,
           rw_dtype_name(o->model.dtype), o->batch, o->threads, o->device, o->steps);
    printf("%5s  %-38s %9s %6s %12s %12s %12s %8s %9s  %s\n", "seq", "policy", "step ms", "ratio", "kept bytes", "peak bytes", "predicted",
           "replayed", "loss", "identical");
    for (int i = 0; ok && i < o->n_seqs; i++) ok = sweep_seq(o, &m, text, o->seqs[i], rows, &n);
    bool identical = true;
    for (int i = 0; i < n; i++) identical &= rows[i].identical;
    const bool written = ok && write_files(o, rows, n);
    for (int i = 0; i < n; i++) free(rows[i].losses);
    rw_context_destroy(&ctx);
    return !ok || !written ? 2 : identical ? 0 : 1;
}

int main(int argc, char **argv)
{
    unsetenv("REWIND_POLICY"); /* it would win over every row's own */
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
