/*
 * Trains GPT-2 or a Llama on text or on tokens: the whole of a training run - accumulation, clipping, a schedule,
 * evaluation, checkpoints that a later run goes on from to the last bit, sampling. --help lists what can be chosen.
 *
 * Which batch a step sees is a function of the seed and the step's number, so a run that goes on sees what it would
 * have seen.
 */
#include "hugging_face.h"
#include "model.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    r->schedule = (rw_schedule){ .kind = RW_SCHEDULE_COSINE, .lr = o.lr, .min_lr = o.min_lr < 0 ? o.lr / 10 : o.min_lr,
                                 .warmup = (uint64_t)warmup, .total = (uint64_t)(total > warmup ? total : warmup + 1) };
    if (!strcmp(o.schedule, "linear")) r->schedule.kind = RW_SCHEDULE_LINEAR;
    if (!strcmp(o.schedule, "constant")) r->schedule.kind = RW_SCHEDULE_CONSTANT;
}

static rw_status open_checkpoint(struct run *r, const char *folder, rw_checkpoint **ret)
{
    const rw_checkpoint_params params = { .folder = folder, .optimizer = r->opt, .schedule = &r->schedule,
                                          .keep = o.keep };
    return rw_checkpoint_create(ret, r->ctx, &params);
}

/* Buffers of the context, so they are in every checkpoint. */
static rw_status make_scales(struct run *r)
{
    rw_status status = o.dtype == RW_F16 ? rw_scaler_create(&r->scaler, r->ctx, NULL) : RW_OK;
    if (!status && o.delayed) status = rw_delayed_create(&r->delayed, r->ctx, NULL);
    set_delayed(r->delayed);
    return status;
}

/* Where the newest whole checkpoint stands, or at the beginning. */
static rw_status resume(struct run *r, int *first)
{
    const struct identity id = identity_of(r);
    const rw_schedule asked = r->schedule;
    rw_checkpoint *from = NULL;
    rw_checkpoint_found found = { 0 };
    rw_status status = open_checkpoint(r, o.resume, &from);
    if (!status) status = rw_checkpoint_load(from, &found);
    if (found.skipped) printf("passed over %zu that are not whole: %s\n", found.skipped, found.why);
    if (found.found) printf("going on from step %d of %s\n", (int)found.step, found.path);
    if (*found.missing) printf("that file does not have %s\n", found.missing);
    else if (!status) printf("no checkpoint in %s: from the beginning\n", o.resume);
    if (found.found && (found.extra_bytes != sizeof id || memcmp(found.extra, &id, sizeof id)))
        printf("that run had other data, another seed, batch, accumulation, number of layers or heads, dropout, "
               "clipping, decay or codes: these are other bytes\n");
    const rw_schedule *const now = &r->schedule;
    if (found.found && (now->kind != asked.kind || now->lr != asked.lr || now->min_lr != asked.min_lr ||
                        now->warmup != asked.warmup || now->total != asked.total))
        printf("its schedule goes on, not the one asked for now: a rate of %g to %g over %d steps\n", now->lr,
               now->min_lr, (int)now->total);
    *first = (int)found.step;
    rw_checkpoint_destroy(&from);
    return status;
}

/* Draws one token at a time from the model's own distribution; a temperature below 1 sharpens it. */
static rw_status sample(struct run *r)
{
    int32_t *const context = calloc((size_t)o.m.seq, sizeof *context);
    float *const p = malloc((size_t)o.vocab * sizeof *p);
    rw_tape *t = NULL;
    int n = 1;
    rw_status status = context && p ? rw_tape_create(&t, r->ctx) : RW_ERR_MEMORY;
    if (!status) context[0] = r->train.bytes ? '\n' : r->train.t[0];
    for (int k = 0; !status && k < o.sample; k++) {
        rw_tensor *y = logits(t, rw_input(t, RW_I32, RW_SHAPE(1, n), context), 1, n, 0);
        y = rw_cast(t, rw_slice(t, y, 1, n - 1, n), RW_F32);
        status = rw_read(t, rw_softmax(t, rw_scale(t, y, 1 / o.temperature), -1), p, (size_t)o.vocab * sizeof *p);
        rw_tape_reset(t);
        if (status) break;
        double x = (double)(number_of(o.seed + 2, (uint64_t)k) >> 11) * 0x1p-53;
        int c = 0;
        while (c < o.vocab - 1 && (x -= (double)p[c]) >= 0) c++;
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

/* Is anything to be done about alerts of 8-bit codes? */
static bool heeds_codes(void)
{
    const unsigned codes = RW_ALERT_SITE_SCALE_DROP | RW_ALERT_SITE_SCALE_RISE | RW_ALERT_SATURATED |
                           RW_ALERT_FLUSHED | RW_ALERT_AMAX_NONFINITE;
    bool any = false;
    for (int i = 0; i < ALERTS; i++) any |= o.on[i] && (codes >> i & 1);
    return any;
}

/* What the monitor sums up apart: see model.c for the names. Alerts need the sums even where nobody reads them; codes
   are counted only for those who do. */
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

static rw_status open_monitor(struct run *r)
{
    r->page = (struct dashboard){ .path = o.dashboard, .title = o.m.preset, .steps = o.steps };
    if (o.dashboard && o.resume && o.log) dashboard_read(&r->page, &r->page.run, o.log);
    if (o.good && !dashboard_read(&r->page, &r->page.good, o.good)) die("%s: cannot be read", o.good);
    rw_status status = rw_monitor_create(&r->monitor, r->ctx, o.log);
    for (int i = 0; !status && i < ALERTS; i++) status = rw_monitor_set_policy(r->monitor, 1u << i, o.on[i]);
    if (!status && o.tensorboard) status = rw_monitor_add(r->monitor, RW_MONITOR_TENSORBOARD, o.tensorboard);
    if (!status && o.prometheus) status = rw_monitor_add(r->monitor, RW_MONITOR_PROMETHEUS, o.prometheus);
    return status ? status : watch_optimizer(r);
}

static rw_status run(struct run *r)
{
    int first = 0;
    rw_status status = rw_context_create(&r->ctx, &(rw_context_params){ .seed = o.seed, .threads = o.threads });
    if (status) return status;
    make_model(r->ctx);
    status = rw_tape_create(&r->t, r->ctx);
    if (!status) status = ckpt_set_policy(r->t, o.policy);
    if (!status && o.load) status = rw_load(r->ctx, o.load);
    if (!status && o.load_hf) status = load_hf(r->ctx, o.load_hf);
    if (!status) status = make_optimizer(r);
    if (!status) status = make_scales(r);
    make_schedule(r);
    if (!status) status = open_monitor(r);
    if (!status && o.checkpoint) status = open_checkpoint(r, o.checkpoint, &r->ck);
    if (!status && o.resume) status = resume(r, &first);
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    printf("%s: %.1f million parameters, %zu training tokens, %s\n", o.m.preset,
           (double)m.parameters / (double)rw_dtype_size(o.dtype) / 1e6, r->train.n, o.policy);
    if (!status) status = train(r, first);
    if (!status) status = sample(r);
    if (!status && o.save) status = rw_save(r->ctx, o.save);
    return status;
}

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
    check_tokens(&r->train, o.data);
    check_tokens(&r->val, o.val ? o.val : o.data);
}

int main(int argc, char **argv)
{
    struct run r = { 0 };
    setvbuf(stdout, NULL, _IOLBF, 0); /* a step's line is there when the step is, in a pipe, too */
    read_options(argc, argv);
    read_data(&r);
    r.in = malloc(sizeof *r.in * (size_t)(o.batch * o.m.seq));
    r.out = malloc(sizeof *r.out * (size_t)(o.batch * o.m.seq));
    const rw_status status = r.in && r.out ? run(&r) : RW_ERR_MEMORY;
    const char *const message = rw_error_message(r.ctx);
    if (status) fprintf(stderr, "train_gpt: %s\n", *message ? message : rw_status_name(status));
    rw_graph_destroy(&r.graph);
    rw_monitor_destroy(&r.monitor);
    rw_checkpoint_destroy(&r.ck);
    rw_delayed_destroy(&r.delayed);
    rw_scaler_destroy(&r.scaler);
    rw_optimizer_destroy(&r.opt);
    rw_tape_destroy(&r.t);
    rw_context_destroy(&r.ctx);
    dashboard_finish(&r.page);
    free(r.in);
    free(r.out);
    if (o.val) free(r.val.t);
    free(r.train.t);
    return status ? 1 : 0;
}
