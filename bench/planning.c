/*
 * What the planner finds, without running: for models of the benchmarks, predicted step time over that of `none` at
 * shares of the peak of `none`, the gap to the lower bound, the least budget, and how long planning takes.
 *
 *   planning [KIND LAYERS WIDTH BATCH SEQ]...    KIND gpt or llama
 */
#include "figure.h"

#include "models/model.h"
#include "plan/build.h"
#include "remat/frontier.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct step {
    rw_context *ctx;
    rw_tape *t;
    struct model model;
    uint32_t loss;
};

static void open_step(struct step *s, enum model_kind kind, int layers, int width, int batch, int seq)
{
    struct model_config config = { 0 };
    model_preset(&config, "tiny");
    config.kind = kind;
    config.layers = layers;
    config.width = width;
    config.hidden = 0;
    config.dropout = kind == MODEL_GPT ? 0.1f : 0;
    config.max_seq = seq;
    int32_t *const tokens = calloc((size_t)batch * (size_t)seq, sizeof *tokens);
    rw_context_create(&s->ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 2 });
    rw_tape_create(&s->t, s->ctx);
    rw_tensor *loss = NULL;
    if (model_create(&s->model, s->ctx, &config) == RW_OK)
        loss = model_loss(&s->model, s->t, batch, seq, tokens, tokens);
    if (!loss) {
        fprintf(stderr, "planning: %s\n", rw_error_message(s->ctx));
        exit(1);
    }
    s->loss = loss->id;
    free(tokens);
}

static void close_step(struct step *s)
{
    rw_tape_destroy(&s->t);
    rw_context_destroy(&s->ctx);
}

static const struct rw_frontier_point *fastest_within(const struct rw_frontier *f, double bytes)
{
    for (size_t i = 0; i < f->n_points; i++)
        if ((double)f->point[i].peak <= bytes) return &f->point[i];
    return NULL;
}

static void frontier_of(struct step *s, const char *name)
{
    static const double shares[] = { 1, .9, .75, .6, .5, .4, .3, .25, .2, .15, .1, .08, .06, .05, .04 };
    const struct rw_request request = {
        .kind = RW_PLAN_STEP, .values = &s->loss, .n_values = 1, .policy = &s->t->policy
    };
    struct rw_problem p;
    struct rw_frontier f;
    if (rw_problem_open(&p, s->t, &request)) exit(1);
    const double begin = now_s();
    if (rw_frontier_init(&f, &p)) exit(1);
    const double seconds = now_s() - begin, none = rw_frontier_none_seconds(&f);
    printf("%s: %zu nodes, %zu simulated, %zu points, %.1f ms; none %.1f MiB %.3f s\n", name,
           f.candidates.graph.n_nodes, f.candidates.n_simulations, f.n_points, 1e3 * seconds,
           (double)rw_frontier_none_peak(&f) / 1048576, none);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const struct rw_frontier_point *const point = fastest_within(&f, shares[i] * (double)rw_frontier_none_peak(&f));
        double bound = 0;
        if (rw_frontier_bound(&f, (uint64_t)(shares[i] * (double)rw_frontier_none_peak(&f)), &bound)) exit(1);
        if (point)
            printf("  %5.1f %%  peak %5.1f %%  time %.4f  bound %.4f  gap %.2f %%\n", 100 * shares[i],
                   100 * (double)point->peak / (double)rw_frontier_none_peak(&f), point->seconds / none, bound / none,
                   100 * (point->seconds / bound - 1));
        else
            printf("  %5.1f %%  -\n", 100 * shares[i]);
    }
    for (size_t i = 0; i < f.n_points; i++)
        if (rw_frontier_policy(&f, i))
            printf("  named %d %lld: peak %.2f %% time %.4f\n", rw_frontier_policy(&f, i)->kind,
                   (long long)rw_frontier_policy(&f, i)->n,
                   100 * (double)f.point[i].peak / (double)rw_frontier_none_peak(&f), f.point[i].seconds / none);
    rw_frontier_finish(&f);
    rw_problem_close(&p);
}

static void planning_time(struct step *s)
{
    static const char *const policies[] = { "none", "full", "budget:75%", "budget:50%", "budget:25%", "budget:10%" };
    const struct rw_request request = {
        .kind = RW_PLAN_STEP, .values = &s->loss, .n_values = 1, .policy = &s->t->policy
    };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        ckpt_set_policy(s->t, policies[i]);
        double best = INFINITY;
        rw_plan *plan = NULL;
        rw_status status = RW_OK;
        for (int round = 0; !status && round < 3; round++) {
            const double begin = now_s();
            status = rw_plan_build(s->t, &request, &plan);
            best = fmin(best, now_s() - begin);
            if (!status && round < 2) rw_plan_release(plan);
        }
        if (status) {
            printf("  %s: %s\n", policies[i], rw_error_message(s->ctx));
            rw_error_clear(s->ctx);
            continue;
        }
        printf("  %-11s planned in %6.2f ms, arena %llu, live %llu\n", policies[i], 1e3 * best,
               (unsigned long long)plan->arena_bytes, (unsigned long long)plan->largest_live);
        rw_plan_release(plan);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 5 <= argc; i += 5) {
        struct step s;
        char name[64];
        open_step(&s, strcmp(argv[i], "llama") ? MODEL_GPT : MODEL_LLAMA, atoi(argv[i + 1]), atoi(argv[i + 2]),
                  atoi(argv[i + 3]), atoi(argv[i + 4]));
        snprintf(name, sizeof name, "%s of %s layers, width %s", argv[i], argv[i + 1], argv[i + 2]);
        frontier_of(&s, name);
        planning_time(&s);
        close_step(&s);
    }
    return 0;
}
