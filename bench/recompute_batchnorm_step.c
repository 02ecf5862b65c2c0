/*
 * The cost of recomputing batch norm, and the relu after it: kept bytes and step time relative to `none`, for the
 * networks as published, eight images of 224 x 224. Policies are timed alternately, and each step is divided by the one
 * under `none` of its round, so that a change of the machine's speed affects both. Medians.
 *
 *   recompute_batchnorm_step [ROUNDS] [THREADS]
 */
#include "figure.h"
#include "models/convnets.h"
#include "models/model.h"

#include <string.h>

enum { BATCH = 8, SIDE = 224, MAX = 64, POLICIES_MAX = 3 };

static const struct {
    enum model_kind kind;
    const char *policies[POLICIES_MAX]; /* after `none` */
} subjects[] = {
    { MODEL_RESNET50, { "discard:bn,projection", "discard:bn" } }, /* see docs/figures.md */
    { MODEL_DENSENET121, { "discard:bn" } },
};

struct runner {
    rw_context *ctx;
    rw_tape *t;
    struct model m;
};

static char image[BATCH * SIDE * SIDE * 3 * sizeof(float)]; /* of either type */

struct step {
    double ms, kept;
};

static bool open_runner(struct runner *r, enum model_kind kind, rw_dtype dtype, int threads)
{
    struct model_config c = { .kind = kind, .dtype = dtype };
    return model_preset(&c, "published") &&
           !rw_context_create(&r->ctx, &(rw_context_params){ .seed = 1, .threads = threads }) &&
           !rw_tape_create(&r->t, r->ctx) && !model_create(&r->m, r->ctx, &c);
}

static void close_runner(struct runner *r)
{
    if (rw_error_status(r->ctx)) fprintf(stderr, "recompute_batchnorm_step: %s\n", rw_error_message(r->ctx));
    rw_tape_destroy(&r->t);
    rw_context_destroy(&r->ctx);
}

static rw_tensor *loss_of(struct runner *r)
{
    static const int32_t labels[BATCH];
    rw_tensor *const given = rw_input(r->t, r->m.config.dtype, RW_SHAPE(BATCH, SIDE, SIDE, 3), image,
                                      BATCH * SIDE * SIDE * 3 * rw_dtype_size(r->m.config.dtype));
    rw_tensor *const x = rw_permute(r->t, given, (const int[]){ 0, 3, 1, 2 });
    return images_loss(&r->m.config, r->ctx, r->t, x, rw_input(r->t, RW_I32, RW_SHAPE(BATCH), labels, sizeof labels));
}

static bool run(struct runner *r, const char *policy, struct step *ret)
{
    rw_memory memory;
    rw_zero_grad(r->ctx);
    ckpt_set_policy(r->t, policy);
    const double begin = now_s();
    const bool good = !rw_backward(r->t, loss_of(r)) && !rw_memory_stats(r->ctx, &memory);
    ret->ms = 1e3 * (now_s() - begin);
    if (good) ret->kept = (double)memory.kept;
    rw_tape_reset(r->t);
    return good;
}

/* The first policy recomputes all norms and relus: it is compared with the bounds. */
static void print(const char *model, const char *dtype, const char *policy, bool held, double kept, double times)
{
    char what[160];
    if (!held) {
        printf("# for comparison, %s, %s, %s: kept bytes %.4f of none's, step time %.3f\n", model, policy, dtype, kept,
               times);
        return;
    }
    snprintf(what, sizeof what, "kept bytes over none's, %s, %s, %s", model, policy, dtype);
    figure(what, kept, "times", 0.5);
    snprintf(what, sizeof what, "step time over none's, %s, %s, %s", model, policy, dtype);
    figure(what, times, "times", 1.04);
}

/* Measures one network in one type under all of its policies. */
static bool measure(size_t subject, rw_dtype dtype, int rounds, int threads)
{
    const char *const *const policies = subjects[subject].policies;
    double times[POLICIES_MAX][MAX], kept[POLICIES_MAX] = { 0 };
    struct runner r = { 0 };
    bool good = open_runner(&r, subjects[subject].kind, dtype, threads);
    for (int i = -1; good && i < rounds; i++) { /* the first round is for pages and plans */
        struct step none, s;
        good = run(&r, "none", &none);
        for (int p = 0; good && p < POLICIES_MAX && policies[p]; p++) {
            good = run(&r, policies[p], &s);
            times[p][i < 0 ? 0 : i] = s.ms / none.ms;
            kept[p] = s.kept / none.kept;
        }
    }
    for (int p = 0; good && p < POLICIES_MAX && policies[p]; p++)
        print(model_name(subjects[subject].kind), rw_dtype_name(dtype), policies[p], !p, kept[p],
              median_of(times[p], rounds));
    close_runner(&r);
    return good;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? figure_integer(argv[1], 1, MAX) : 9;
    const int threads = argc > 2 ? figure_integer(argv[2], 0, 1024) : 0;
    bool good = true;
    if (rounds < 1 || rounds > MAX || threads < 0) {
        fprintf(stderr, "usage: recompute_batchnorm_step [ROUNDS (1 to %d)] [THREADS]\n", MAX);
        return 2;
    }
    memset(image, 0x3e, sizeof image); /* 0.19 as either */
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        good = measure(i, RW_F32, rounds, threads) && measure(i, RW_BF16, rounds, threads) && good;
    return answer_end("recompute_batchnorm_step", good ? 0 : 1);
}
