/*
 * Trains GPT-2 or a Llama on text or on tokens, with everything that a training run needs: accumulation, clipping, a
 * schedule, evaluation, checkpoints from which a later run resumes bit-identically, sampling. --help lists the options.
 *
 * The batch of a step is a function of the seed and the step's number, so a resumed run sees the same batches.
 */
#include "hugging_face.h"
#include "model.h"
#include "paths.h"
#include "run.h"
#include "saves.h"
#include "signals.h"
#include "unknown_entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_WINDOWS = 64 }; /* of an evaluation, unless --eval-tokens is given */

static rw_status make_optimizer(struct run *r)
{
    const double decay = o.decay > 0 ? o.decay : -1;
    if (!strcmp(o.optimizer, "adam"))
        return rw_adam_create(&r->opt, r->ctx, &(rw_adam_params){ .lr = o.lr, .beta2 = 0.95, .weight_decay = decay,
                                                                  .moments = o.moments });
    if (!strcmp(o.optimizer, "sgd"))
        return rw_sgd_create(&r->opt, r->ctx, &(rw_sgd_params){ .lr = o.lr, .momentum = 0.9, .weight_decay = decay });
    if (!strcmp(o.optimizer, "lion"))
        return rw_lion_create(&r->opt, r->ctx, &(rw_lion_params){ .lr = o.lr, .weight_decay = decay });
    return rw_adamw_create(&r->opt, r->ctx, &(rw_adamw_params){ .lr = o.lr, .beta2 = 0.95, .weight_decay = decay,
                                                                .moments = o.moments });
}

static void make_schedule(struct run *r)
{
    const int total = o.total ? o.total : o.steps;
    const int warmup = o.warmup < 0 ? total / 20 : o.warmup;
    r->schedule = (rw_lr_schedule){ .kind = RW_LR_COSINE, .lr = o.lr, .min_lr = o.min_lr < 0 ? o.lr / 10 : o.min_lr,
                                    .warmup = (uint64_t)warmup, .total = (uint64_t)(total > warmup ?
                                                                                    total : warmup + 1) };
    if (!strcmp(o.schedule, "linear")) r->schedule.kind = RW_LR_LINEAR;
    if (!strcmp(o.schedule, "constant")) r->schedule.kind = RW_LR_CONSTANT;
}

/* Scales are buffers of the context, so they are in every checkpoint. */
static rw_status make_scales(struct run *r)
{
    rw_status status = o.dtype == RW_F16 ? rw_scaler_create(&r->scaler, r->ctx, NULL) : RW_OK;
    if (!status && o.delayed) status = rw_delayed_scaling_create(&r->delayed, r->ctx, NULL);
    set_delayed(r->delayed);
    return status;
}

/* Draws one token at a time from the model's distribution; a temperature below 1 sharpens it. */
static rw_status sample(struct run *r)
{
    int32_t *const context = calloc((size_t)o.m.seq, sizeof *context);
    float *const p = malloc((size_t)o.vocab * sizeof *p);
    rw_tape *t = NULL;
    const int n_known = 1 + top_token(&r->train); /* the rest of --vocab is padding, which was never seen */
    int n = 1;
    rw_status status = context && p ? rw_tape_create(&t, r->ctx) : RW_ERR_MEMORY;
    if (!status) context[0] = r->train.bytes ? '\n' : r->train.t[0];
    for (int k = 0; !status && k < o.sample && !caught_signal(); k++) {
        rw_tensor *y = logits(t, rw_input(t, RW_I32, RW_SHAPE(1, n), context, (size_t)n * sizeof *context), 1, n, 0);
        y = rw_cast(t, rw_slice(t, y, 1, n - 1, n), RW_F32);
        status = rw_read(t, rw_softmax(t, rw_scale(t, y, 1 / o.temperature), -1), p, (size_t)o.vocab * sizeof *p);
        rw_tape_reset(t);
        if (status) break;
        double all = 0;
        int c = 0;
        for (int i = 0; i < n_known; i++) all += (double)p[i];
        double x = (double)(number_of(o.seed + 2, (uint64_t)k) >> 11) * 0x1p-53 * all;
        while (c < n_known - 1 && (x -= (double)p[c]) >= 0) c++;
        if (r->train.bytes) putchar(c);
        else printf("%d ", c);
        if (n == o.m.seq) memmove(context, context + 1, (size_t)--n * sizeof *context);
        context[n++] = c;
    }
    if (o.sample) putchar('\n');
    rw_tape_destroy(&t);
    free(context);
    free(p);
    return status;
}

/* Whether an action is set for alerts of FP8 data. */
static bool heeds_codes(void)
{
    const unsigned codes = RW_ALERT_SITE_SCALE_DROP | RW_ALERT_SITE_SCALE_RISE | RW_ALERT_SATURATED |
                           RW_ALERT_FLUSHED | RW_ALERT_AMAX_NONFINITE;
    bool any = false;
    for (int i = 0; i < ALERTS; i++) any |= o.on[i] && (codes >> i & 1);
    return any;
}

/* Sets the parts for which the monitor computes separate sums: see model.c for the names. Alerts need the sums even if
   they are not written; FP8 data are only counted if requested. */
static rw_status watch_optimizer(struct run *r)
{
    const bool read = o.log || o.tensorboard || o.prometheus || o.dashboard;
    static const rw_monitor_group groups[] = { { "embeddings", "table" },      { "embeddings_of_places", "positions" },
                                               { "norms", "*norm*" },          { "biases", "*.bias" },
                                               { "attention", "layer.*.qkv" }, { "attention_out", "layer.*.proj" },
                                               { "mlp", "layer.*" },           { "head", "head" } };
    const rw_monitor_sources sources = { .optimizer = r->opt, .groups = groups,
                                         .n_groups = sizeof groups / sizeof *groups, .peak_flops = o.peak,
                                         .sites = o.fp8 && (read || heeds_codes()) };
    return rw_monitor_watch(r->monitor, &sources);
}

/* The page names the command, the model and the device. */
static void open_page(struct run *r)
{
    static char model[200], device[80];
    snprintf(model, sizeof model, "%d layers of width %d, %d heads, %d tokens, %s; %s, %s", o.m.layers, o.m.width,
             o.m.heads, o.m.seq, o.fp8 ? "fp8" : rw_dtype_name(o.dtype), o.optimizer, ckpt_policy(r->t));
    const int threads = rw_context_threads(r->ctx);
    snprintf(device, sizeof device, "%s, %d thread%s", rw_device_name(rw_context_device(r->ctx)), threads,
             threads > 1 ? "s" : "");
    r->page = (struct dashboard){ .path = o.dashboard, .title = o.m.preset, .steps = o.steps, .command = r->command,
                                  .model = model, .device = device,
                                  .loss_unit = r->train.bytes ? "nats per byte" : "nats per token" };
}

/* Lines of two runs in one file could not be told apart. The lock ends with the process. */
static void lock_log(void)
{
    bool taken;
    path_lock_file(o.log, &taken);
    if (taken) die("--log %.200s: another run writes to this file", o.log);
}

static rw_status open_monitor(struct run *r)
{
    open_page(r);
    if (o.dashboard && o.resume && o.log) dashboard_read(&r->page, &r->page.run, o.log);
    if (o.good && !dashboard_read(&r->page, &r->page.good, o.good)) die("%s: cannot be read", o.good);
    rw_status status = rw_monitor_create(&r->monitor, r->ctx, o.log);
    if (!status && o.log) lock_log();
    for (int i = 0; !status && i < ALERTS; i++) status = rw_monitor_set_policy(r->monitor, 1u << i, o.on[i]);
    if (!status && o.tensorboard) status = rw_monitor_add(r->monitor, RW_MONITOR_TENSORBOARD, o.tensorboard);
    if (!status && o.prometheus) status = rw_monitor_add(r->monitor, RW_MONITOR_PROMETHEUS, o.prometheus);
    return status ? status : watch_optimizer(r);
}

/* A smaller model than the file's would train, and --save would replace the file by it. */
static rw_status load_weights(rw_context *ctx)
{
    char first[100], text[400];
    const rw_status status = rw_load(ctx, o.load);
    const size_t n = status ? 0 : unknown_entries(ctx, o.load, first, sizeof first);
    if (n) snprintf(text, sizeof text, "--load %.150s: the model lacks %zu entries of the file, the first is \"%s\"; "
                    "expected the --preset and --layers that it was saved with", o.load, n, first);
    if (n) die("%s", text);
    return status;
}

/* A whole run: creates everything, trains, samples and saves. */
static rw_status run(struct run *r)
{
    int first = 0;
    const rw_context_params params = { .seed = o.seed, .threads = o.threads, .strict_policy = true };
    rw_status status = rw_context_create(&r->ctx, &params);
    if (status) return status;
    make_model(r->ctx);
    status = rw_tape_create(&r->t, r->ctx);
    if (!status) status = ckpt_set_policy(r->t, o.policy);
    if (!status && o.load) status = load_weights(r->ctx);
    if (!status && o.load_hf) status = load_hf(r->ctx, o.load_hf);
    if (!status) status = make_optimizer(r);
    if (!status) status = make_scales(r);
    make_schedule(r);
    if (!status) status = open_monitor(r);
    if (!status) status = saves_open(r, &first);
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    if (!status)
        printf("%s: %.1f million parameters, %zu training tokens, %s\n", o.m.preset,
               (double)m.parameters / (double)rw_dtype_size(o.dtype) / 1e6, r->train.n, ckpt_policy(r->t));
    if (!status) status = train(r, first);
    const bool untrained = r->ended > ENDED_BY_SIGNAL && !(r->seen > 0); /* the signal came before the first step */
    const bool good = r->ended != ENDED_WRONG && !untrained;
    if (!status && !r->ended) status = sample(r);
    if (!r->ended && caught_signal()) r->ended = ENDED_BY_SIGNAL + caught_signal();
    if (!status && o.save && good) status = rw_save(r->ctx, o.save);
    else if (!status && o.save) fprintf(stderr, "train_gpt: --save %s: not saved\n", o.save);
    if (r->lost_lines)
        fprintf(stderr, "train_gpt: %llu lines or files of the log could not be written\n",
                (unsigned long long)r->lost_lines);
    return status;
}

/* Reads the training and validation data; without --val the last tenth is held out. */
static void read_data(struct run *r)
{
    r->train = read_tokens(o.data);
    if (!o.vocab) o.vocab = r->train.bytes ? 256 : 50304;
    if (o.val) {
        r->val = read_tokens(o.val);
    } else {
        const size_t held = r->train.n / 10;
        r->val = (struct tokens){ r->train.t + (r->train.n - held), held, r->train.bytes };
        r->train.n -= held;
    }
    if (r->val.bytes != r->train.bytes)
        die(r->val.bytes ? "--val %s: expected tokens, as --data has, got text"
                         : "--val %s: expected text, as --data is, got tokens", o.val);
    check_tokens(&r->train, o.data);
    check_tokens(&r->val, o.val ? o.val : o.data);
    const size_t asked = o.eval_tokens < 0 ? EVAL_WINDOWS * (size_t)o.m.seq : (size_t)o.eval_tokens;
    r->windows = count_windows(&r->val, asked);
    if (r->windows && o.val && path_is_same(o.data, o.val))
        fprintf(stderr, "train_gpt: --val is the same file as --data: its losses are not those of unseen data\n");
    r->train_digest = digest_tokens(&r->train);
    r->val_digest = digest_tokens(&r->val);
}

/* Detects an invalid policy before a large model is created. */
static void check_policy(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_status status = rw_context_create(&ctx, &(rw_context_params){ .threads = 1, .plan_only = true });
    if (!status) status = rw_tape_create(&t, ctx);
    if (!status && ckpt_set_policy(t, o.policy)) die("--policy: %s", rw_error_message(ctx));
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    struct run r = { 0 };
    dashboard_command(r.command, sizeof r.command, argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a step's line is printed at its end, also to a pipe */
    read_options(argc, argv);
    read_data(&r);
    if (o.load_hf) read_hf_config(o.load_hf);
    check_policy();
    catch_signals();
    r.in = malloc(sizeof *r.in * (size_t)o.batch * (size_t)o.m.seq);
    r.out = malloc(sizeof *r.out * (size_t)o.batch * (size_t)o.m.seq);
    const rw_status status = r.in && r.out ? run(&r) : RW_ERR_MEMORY;
    const char *const message = rw_error_message(r.ctx);
    if (status) fprintf(stderr, "train_gpt: %s\n", *message ? message : rw_status_name(status));
    rw_graph_destroy(&r.graph);
    rw_monitor_destroy(&r.monitor);
    rw_checkpoint_destroy(&r.ck);
    rw_delayed_scaling_destroy(&r.delayed);
    rw_scaler_destroy(&r.scaler);
    rw_optimizer_destroy(&r.opt);
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    dashboard_finish(&r.page);
    free(r.in);
    free(r.out);
    if (o.val) free(r.val.t);
    free(r.train.t);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "train_gpt: the standard output could not be written\n");
        if (!r.ended) r.ended = 1;
    }
    return status ? 1 : r.ended;
}
