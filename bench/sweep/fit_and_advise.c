/* --fit and --advise: which steps of this model would fit on a machine, from plans only. */
#include "sweep/fit_and_advise.h"

#include "sweep/model_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the largest that fits ---- */

/* TOO_SMALL: no step of this size exists, but a larger one may: the model refuses it, or a share of it is no valid
   budget. */
enum fit { FITS, TOO_SMALL, TOO_LARGE };

struct search {
    const struct sweep_options *o;
    const char *policy;
    struct sweep_run run;
    int open_for; /* length for which the run's model has positions, which are parameters */
    int most;     /* largest size known to fit, 0 for none */
    rw_prediction at_most, above;
    int step;     /* sizes are multiples of it */
    int tried;    /* the size to which `above` and `refused` refer */
    char refused[512]; /* the reason that it is not a step at all; "" if it takes too much memory */
};

static void sizes_of(const struct sweep_options *o, int x, int *ret_batch, int *ret_seq)
{
    *ret_batch = o->fit_seq ? o->batch : x;
    *ret_seq = o->fit_seq ? x : o->seqs[0];
}

/* If smaller sizes are steps, this one has more elements than a tensor may have, or a plan larger than the host's
   memory. If none has been one yet, the model needs a larger size: a side that it can halve often enough, two elements
   in a channel. */
static rw_status refuse(struct search *s, int x, enum fit *ret)
{
    *ret = s->most ? TOO_LARGE : TOO_SMALL;
    if (*ret == TOO_LARGE || (!s->above.total_bytes && !s->above.least_bytes)) {
        snprintf(s->refused, sizeof s->refused, "%s", rw_error_message(s->run.m.ctx));
        s->above = (rw_prediction){ 0 };
        s->tried = x;
    }
    rw_error_clear(s->run.m.ctx);
    return RW_OK;
}

/* A budget below the minimum means that the size does not fit; a share of the size may fit at another size. */
static rw_status try_size(struct search *s, int x, enum fit *ret)
{
    int batch, seq;
    rw_prediction p = { 0 };
    sizes_of(s->o, x, &batch, &seq);
    rw_status status = RW_OK;
    if (seq != s->open_for) {
        sweep_run_close(&s->run, RW_OK);
        status = sweep_plan_open(&s->run, s->o, seq);
        s->open_for = seq;
    }
    const bool opened = !status;
    if (opened) status = sweep_predict(&s->run, batch, seq, s->policy, &p);
    if (opened && status && status != RW_ERR_BUDGET && (s->most || status == RW_ERR_SHAPE)) return refuse(s, x, ret);
    if (status == RW_ERR_BUDGET) {
        rw_error_clear(s->run.m.ctx);
        *ret = strchr(s->policy, '%') && p.least_bytes <= s->o->fit ? TOO_SMALL : TOO_LARGE;
        const bool known = s->above.total_bytes || s->above.least_bytes > s->o->fit;
        if (*ret == TOO_SMALL && known) return RW_OK; /* "too large" is the better answer */
        s->above = (rw_prediction){ .least_bytes = p.least_bytes };
        s->tried = x, s->refused[0] = '\0';
        return RW_OK;
    }
    *ret = !status && p.total_bytes <= s->o->fit ? FITS : TOO_LARGE;
    if (*ret == FITS) s->most = x, s->at_most = p;
    else s->above = p, s->tried = x, s->refused[0] = '\0';
    return status;
}

/* Searches in steps of s->step. */
static rw_status search(struct search *s)
{
    const int limit = (s->o->fit_seq ? (1 << 30) / s->o->batch : (1 << 30) / s->o->seqs[0]) / s->step;
    enum fit fit = FITS;
    int low = 0, high = 1;
    rw_status status = RW_OK;
    while (!status && (fit == FITS || (fit == TOO_SMALL && !s->most)) && high <= limit) {
        status = try_size(s, high * s->step, &fit);
        if (fit == FITS) low = high;
        if (fit != TOO_LARGE) high *= 2;
    }
    if (!status && fit == FITS) {
        snprintf(s->refused, sizeof s->refused, "the search ends at %d tokens", 1 << 30);
        return RW_OK;
    }
    while (!status && high - low > 1) {
        const int middle = low + (high - low) / 2;
        status = try_size(s, middle * s->step, &fit);
        if (fit == FITS || (fit == TOO_SMALL && !s->most)) low = middle;
        else high = middle;
    }
    return status;
}

/* Runs one step, with its update. */
static rw_status prove(struct search *s, const struct sweep_text *text, rw_memory *ret, size_t *ret_resident)
{
    int batch, seq;
    struct sweep_resident resident;
    struct sweep_run r;
    sizes_of(s->o, s->most, &batch, &seq);
    const size_t n = (size_t)batch * (size_t)seq;
    int32_t *const tokens = calloc(2 * n, sizeof *tokens);
    sweep_resident_begin(&resident);
    rw_status status = sweep_run_open(&r, s->o, seq);
    if (!tokens) status = RW_ERR_MEMORY;
    if (!status && text->n > (size_t)seq + 1) sweep_fill_batch(text, batch, seq, 0, tokens, tokens + n);
    if (!status) status = ckpt_set_policy(r.t, s->policy);
    if (!status) status = rw_backward(r.t, model_loss(&r.m, r.t, batch, seq, tokens, tokens + n));
    if (!status) status = rw_memory_stats(r.m.ctx, ret);
    if (!status) status = rw_optimizer_step(r.opt);
    *ret_resident = sweep_resident_end(&resident);
    free(tokens);
    return sweep_run_close(&r, status);
}

static size_t total_of(const rw_memory *m)
{
    return m->parameters + m->gradients + m->optimizer + m->inputs + m->results + m->measured_peak;
}

/* The largest that has fitted so far; of equal sizes the fastest. */
struct largest {
    const char *policy;
    int size;
    double ms;
};

static void note_largest(struct largest *x, const struct search *s)
{
    if (s->most > x->size || (s->most == x->size && s->at_most.ms < x->ms))
        *x = (struct largest){ s->policy, s->most, s->at_most.ms };
}

/* " of length 256", for a batch: there is an answer for each length. */
static void name_other_size(const struct sweep_options *o, char *text, size_t size)
{
    *text = '\0';
    if (!o->fit_seq) snprintf(text, size, " of %s %d", sweep_seq_name(o), o->seqs[0]);
}

/* Searches the largest size under one policy and proves it with a step. */
static bool fit_policy(const struct sweep_options *o, const struct sweep_text *text, const char *policy,
                       struct largest *largest)
{
    const char *const what = o->fit_seq ? sweep_seq_name(o) : "batch";
    char of[64];
    struct search s = { .o = o, .policy = policy, .open_for = o->seqs[0],
                        .step = o->fit_seq ? model_side_step(o->model.kind) : 1 };
    rw_memory m;
    size_t resident = 0;
    name_other_size(o, of, sizeof of);
    rw_status status = sweep_plan_open(&s.run, o, o->seqs[0]);
    if (!status) status = search(&s);
    if (sweep_run_close(&s.run, status)) return false;
    if (!s.most && s.refused[0]) {
        printf("%-32s nothing fits: %s %d%s is refused: %s\n", policy, what, s.tried, of, s.refused);
        return true;
    }
    if (!s.most) {
        const size_t takes = s.above.total_bytes ? s.above.total_bytes : s.above.least_bytes;
        printf("%-32s nothing fits: %s %d%s takes %s%zu of %zu bytes\n", policy, what, s.tried, of,
               s.above.total_bytes ? "" : "at least ", takes, o->fit);
        return true;
    }
    note_largest(largest, &s);
    printf("%-32s %s %d%s takes %zu of %zu bytes (arena %zu), ", policy, what, s.most, of, s.at_most.total_bytes,
           o->fit, s.at_most.peak_bytes);
    if (s.refused[0]) printf("%d is refused: %s; ", s.most + s.step, s.refused);
    else if (s.above.total_bytes) printf("%d takes %zu; ", s.most + s.step, s.above.total_bytes);
    else printf("%d is beyond the budget; ", s.most + s.step);
    printf("%.1f ms predicted%s\n", s.at_most.ms, o->has_ceilings ? " by the machine's ceilings" : "");
    fflush(stdout);
    if (!strcmp(o->device, "cpu") && s.at_most.total_bytes > sweep_machine_bytes()) {
        printf("%-32s not run: the process may hold %zu bytes\n", "", sweep_machine_bytes());
        return true;
    }
    if (prove(&s, text, &m, &resident)) return false;
    const bool good = m.measured_peak == s.at_most.peak_bytes && total_of(&m) == s.at_most.total_bytes;
    printf("%-32s ran once: %zu bytes in all, arena %zu: %s", "", total_of(&m), m.measured_peak,
           good ? "as predicted" : "NOT as predicted");
    if (m.device) printf("; %zu in use on the device", m.device);
    else if (resident) printf("; the process touched %zu more", resident);
    printf("\n");
    fflush(stdout);
    return good;
}

/* Answers for the first length of the list. */
static bool fit_length(const struct sweep_options *o, const struct sweep_text *text)
{
    char of[64];
    bool good = true;
    struct largest largest = { .size = 0 };
    for (int i = 0; i < o->n_policies; i++) good &= fit_policy(o, text, o->policies[i], &largest);
    name_other_size(o, of, sizeof of);
    if (largest.size)
        printf("the largest %s%s that fits is %d, under %s\n", o->fit_seq ? sweep_seq_name(o) : "batch", of,
               largest.size, largest.policy);
    return good && largest.size;
}

bool sweep_fit(const struct sweep_options *o, const struct sweep_text *text)
{
    bool good = true;
    for (int i = 0; i < (o->fit_seq ? 1 : o->n_seqs); i++) {
        struct sweep_options one = *o;
        one.seqs[0] = o->seqs[i], one.n_seqs = 1;
        good &= fit_length(&one, text);
    }
    return good;
}

/* ---- advice ---- */

/* The fastest steps that a planner finds within shares of the arena. `behind` is the text after a budget. */
static void print_budgets(const rw_frontier_point *point, size_t n, const char *suffix, const rw_prediction *now)
{
    static const int percent[] = { 90, 75, 50, 25, 10 };
    printf("the fastest steps that the planner finds%s:\n", *suffix ? " with offload" : "");
    for (size_t k = 0; k < sizeof percent / sizeof *percent; k++) {
        size_t i = n;
        while (i > 0 && point[i - 1].peak_bytes > now->peak_bytes / 100 * (size_t)percent[k]) i--;
        if (!i) break;
        const rw_frontier_point *const p = &point[i - 1];
        printf("  budget:%zuB%s%*s %14zu bytes less (%4.1f %% of the arena), %+5.1f %% time", p->peak_bytes, suffix,
               *suffix ? 4 : 12, "", now->peak_bytes - p->peak_bytes,
               100 - 100 * (double)p->peak_bytes / (double)now->peak_bytes, 100 * (p->ms / now->ms - 1));
        if (p->bound_ms > 0) printf(", at most %.1f %% above the best there is", 100 * (p->ms / p->bound_ms - 1));
        printf("\n");
    }
    if (n) printf("  budget:%zuB%s is the minimum\n", point[0].peak_bytes, suffix);
}

static rw_tensor *record(struct sweep_run *r, rw_tape *t, int batch, int seq)
{
    rw_tensor *const tokens = rw_input(t, RW_I32, RW_SHAPE(batch, seq), NULL, 0);
    rw_tensor *const targets = rw_input(t, RW_I32, RW_SHAPE(batch, seq), NULL, 0);
    return tokens && targets ? model_loss_of(&r->m, t, tokens, targets) : NULL;
}

static rw_status advise_budgets(const struct sweep_options *o, struct sweep_run *r, rw_tensor *loss,
                                const rw_prediction *now)
{
    rw_frontier_point points[SWEEP_POINTS];
    size_t n = SWEEP_POINTS;
    rw_status status = rw_tape_frontier(r->t, loss, points, &n);
    if (!status) print_budgets(points, n, "", now);
    if (status || !sweep_has_store(o)) return status;
    n = SWEEP_POINTS;
    status = sweep_moved_points(r, loss, points, &n);
    if (!status && n) print_budgets(points, n, "+offload", now);
    return status;
}

/* The compared steps: twice the batch; each length after the first in the list, or twice the length. A length has a
   model of its own, because learned positions are parameters. */
struct larger {
    int n, seq[CKPT_SCALED_STEPS_MAX]; /* the first one has the larger batch, in the step's own model */
    struct sweep_run run[CKPT_SCALED_STEPS_MAX];
    rw_tape *batch; /* of the first */
};

static struct larger larger_of(const struct sweep_options *o)
{
    struct larger x = { .n = 1, .seq = { o->seqs[0] } };
    for (int i = 1; i < o->n_seqs && x.n < CKPT_SCALED_STEPS_MAX; i++)
        if (o->seqs[i] > o->seqs[0]) x.seq[x.n++] = o->seqs[i];
    if (x.n == 1) x.seq[x.n++] = 2 * o->seqs[0];
    return x;
}

static rw_tape *tape_of(const struct larger *x, int i)
{
    return i ? x->run[i].t : x->batch;
}

static rw_status larger_open(struct larger *x, const struct sweep_options *o, const struct sweep_run *r)
{
    rw_status status = rw_tape_create(&x->batch, r->m.ctx);
    for (int i = 1; !status && i < x->n; i++) {
        status = sweep_plan_open(&x->run[i], o, x->seq[i]);
        if (status) sweep_print_error(x->run[i].m.ctx, status);
    }
    return status;
}

static void larger_close(struct larger *x)
{
    rw_tape_destroy(&x->batch);
    for (int i = 1; i < x->n; i++) sweep_run_close(&x->run[i], RW_OK);
}

static rw_status advise_growth(const struct sweep_options *o, struct sweep_run *r, rw_tensor *loss, struct larger *x)
{
    rw_scaled_step grown[CKPT_SCALED_STEPS_MAX] = { { x->batch, record(r, x->batch, 2 * o->batch, x->seq[0]), "batch",
                                                      2 } };
    rw_status status = rw_error_status(r->m.ctx);
    for (int i = 1; !status && i < x->n; i++) {
        grown[i] = (rw_scaled_step){ x->run[i].t, record(&x->run[i], x->run[i].t, o->batch, x->seq[i]),
                                     sweep_seq_name(o), (double)x->seq[i] / o->seqs[0] };
        status = rw_error_status(x->run[i].m.ctx);
        if (status) sweep_print_error(x->run[i].m.ctx, status);
    }
    return status ? status : ckpt_explain_scaling(r->t, loss, grown, (size_t)x->n, stdout);
}

/* The step does not fit into the budget of this policy: the rest of the advice is for the minimum budget. */
static rw_status fall_back(const struct sweep_options *o, struct sweep_run *r, const char *policy, rw_prediction *ret)
{
    char least[64];
    snprintf(least, sizeof least, "%s:%zuB%s", strncmp(policy, "total:", 6) ? "budget" : "total", ret->least_bytes,
             strstr(policy, "+offload") ? "+offload" : "");
    printf("it does not fit under %s: what follows is for the minimum, %s\n", policy, least);
    rw_error_clear(r->m.ctx);
    const rw_status status = ckpt_set_policy(r->t, least);
    return status ? status : sweep_predict(r, o->batch, o->seqs[0], NULL, ret);
}

/* Prints the advice for one policy. */
static rw_status advise(const struct sweep_options *o, struct sweep_run *r, const char *policy, struct larger *x)
{
    const int batch = o->batch, seq = o->seqs[0];
    rw_prediction now = { 0 };
    rw_status status = ckpt_set_policy(r->t, policy);
    for (int i = 0; !status && i < x->n; i++) status = ckpt_set_policy(tape_of(x, i), policy);
    if (status) return status;
    printf("batch %d, %s %d\n", batch, sweep_seq_name(o), seq);
    status = sweep_predict(r, batch, seq, NULL, &now);
    if (status == RW_ERR_BUDGET) status = fall_back(o, r, policy, &now);
    if (status) return status;
    rw_tensor *const loss = record(r, r->t, batch, seq);
    status = loss ? ckpt_explain_with(r->t, stdout, o->all ? CKPT_EXPLAIN_ALL : 0) : rw_error_status(r->m.ctx);
    if (!status) status = advise_budgets(o, r, loss, &now);
    if (!status) status = advise_growth(o, r, loss, x);
    rw_tape_reset(r->t);
    for (int i = 0; i < x->n; i++) rw_tape_reset(tape_of(x, i));
    return status;
}

bool sweep_advise(const struct sweep_options *o)
{
    struct sweep_run r;
    struct larger x = larger_of(o);
    rw_status status = sweep_plan_open(&r, o, o->seqs[0]);
    if (!status) status = larger_open(&x, o, &r);
    for (int i = 0; !status && i < o->n_policies; i++) status = advise(o, &r, o->policies[i], &x);
    larger_close(&x);
    if (!status && o->has_ceilings)
        printf("nothing of the model has run; times are by the machine's ceilings: --costs FILE measures its own and "
               "keeps them\n");
    return !sweep_run_close(&r, status);
}
