/* See run.h. */
#include "run.h"

#include "model.h"
#include "recover.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct identity identity_of(const struct run *r)
{
    return (struct identity){ o.seed, r->train.n, o.batch, o.accum, o.m.seq, o.vocab, o.m.layers, o.m.heads,
                              o.m.kv_heads, o.fp8 ? 1 + (int)o.scaling + 8 * o.delayed : 0, o.dropout, o.clip,
                              o.decay };
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static rw_tensor *record_loss(struct run *r, double dropout)
{
    const rw_shape shape = RW_SHAPE(o.batch, o.m.seq);
    r->x = rw_input(r->t, RW_I32, shape, r->in);
    r->y = rw_input(r->t, RW_I32, shape, r->out);
    rw_tensor *const z = logits(r->t, r->x, o.batch, o.m.seq, dropout);
    return rw_cross_entropy(r->t, r->scaler ? rw_cast(r->t, z, RW_F32) : z, r->y); /* a loss that is scaled: float32 */
}

static rw_status launch(struct run *r, uint64_t step, double *loss)
{
    const size_t bytes = sizeof *r->in * (size_t)(o.batch * o.m.seq);
    fill_batch(&r->train, o.seed, step, r->in, r->out);
    rw_status status = RW_OK;
    if (!r->graph) {
        r->loss = record_loss(r, o.dropout);
        const rw_graph_params params = { .optimizer = r->opt, .max_norm = o.clip, .update_inside = o.inside,
                                         .scaler = r->scaler, .delayed = r->delayed };
        status = rw_graph_create(&r->graph, r->t, r->loss, &params);
    }
    if (!status) status = rw_input_write(r->x, r->in, bytes);
    if (!status) status = rw_input_write(r->y, r->out, bytes);
    if (!status) status = rw_graph_launch(r->graph);
    if (!status) *loss = rw_item(r->t, r->loss);
    return status ? status : rw_error_status(r->ctx);
}

static void tell(const rw_nonfinite *where)
{
    if (where->found || where->differs) rw_nonfinite_print(where, stderr);
    else fprintf(stderr, "the same step again is finite: a fault of the machine\n");
}

/* The same step again, with a look at every value: op, region, line, element. */
static rw_status find_nonfinite(struct run *r, rw_tensor *loss)
{
    rw_nonfinite where;
    const rw_status status = rw_find_nonfinite(r->t, loss, 0, &where);
    if (!status) tell(&where);
    return status;
}

static rw_tensor *record_part(struct run *r, uint64_t step, int k)
{
    fill_batch(&r->train, o.seed, step * (uint64_t)o.accum + (uint64_t)k, r->in, r->out);
    return rw_scale(r->t, record_loss(r, o.dropout), 1.0 / o.accum);
}

/* A loss that is finite, and gradients that are not, or what became 8-bit codes: the micro-batches are recorded once
   more, with the random numbers that they drew, and the first in which it happens is told. The loss that they have
   together is the one that was seen, to the last bit. */
static rw_status find_again(struct run *r, uint64_t step, double loss)
{
    const rw_generator_state now = rw_generator_get(r->ctx);
    rw_nonfinite where = { 0 };
    rw_status status = RW_OK;
    double again = 0;
    rw_generator_set(r->ctx, r->drawn);
    for (int k = 0; !status && k < o.accum; k++) {
        rw_tensor *const mean = record_part(r, step, k);
        again += rw_item(r->t, mean);
        if (!where.found) status = rw_find_nonfinite(r->t, mean, 0, &where);
        rw_tape_reset(r->t);
    }
    rw_generator_set(r->ctx, now);
    if (!status && again != loss) fprintf(stderr, "the same step again has another loss: a fault of the machine\n");
    if (!status && !where.found && o.accum > 1)
        fprintf(stderr, "the gradients of each micro-batch are finite: their sum is not, or the machine is at fault\n");
    else if (!status) tell(&where);
    return status;
}

double rate_of(const struct run *r, uint64_t step)
{
    return rw_schedule_lr(&r->schedule, step > r->left_out ? step - r->left_out : 0);
}

/* The loss of the step before was read: this waits for nothing more. */
static rw_status set_rate(struct run *r, uint64_t step)
{
    rw_scaler_state state = { 0 };
    const rw_status status = r->scaler ? rw_scaler_get(r->scaler, &state) : RW_OK;
    r->scale = state.scale;
    r->left_out = (uint64_t)state.skipped;
    rw_optimizer_set_lr(r->opt, rate_of(r, step));
    return status;
}

static rw_status step_of(struct run *r, uint64_t step, double *loss, double *size)
{
    rw_status status = set_rate(r, step);
    *loss = *size = 0;
    if (status) return status;
    if (o.graph) return launch(r, step, loss);
    r->drawn = rw_generator_get(r->ctx);
    rw_zero_grad(r->ctx);
    for (int k = 0; !status && k < o.accum; k++) {
        rw_tensor *const mean = record_part(r, step, k);
        status = r->scaler ? rw_scaler_backward(r->scaler, r->t, mean) : rw_backward(r->t, mean);
        if (!status) *loss += rw_item(r->t, mean);
        if (!status && !isfinite(*loss)) status = find_nonfinite(r, mean);
        rw_tape_reset(r->t);
    }
    if (!status && r->scaler) status = rw_scaler_unscale(r->scaler);
    if (!status) status = rw_clip_grad_norm(r->ctx, o.clip, size);
    if (!status && !r->scaler && isfinite(*loss) && !isfinite(*size)) status = find_again(r, step, *loss);
    return status; /* where a scaler finds what is not finite it leaves the update out, and goes on */
}

/* The scales of the next step. */
static rw_status move_on(struct run *r)
{
    const rw_status status = r->delayed ? rw_delayed_update(r->delayed, r->scaler) : RW_OK;
    return status || !r->scaler ? status : rw_scaler_update(r->scaler);
}

rw_status update(struct run *r)
{
    if (o.graph) return RW_OK;
    const rw_status status = r->scaler ? rw_scaler_step(r->scaler, r->opt) : rw_optimizer_step(r->opt);
    return status ? status : move_on(r);
}

rw_status leave_out(struct run *r)
{
    return o.graph ? RW_OK : move_on(r);
}

/* On a tape of its own: the one of a graph is not to be reset. Without dropout nothing is drawn from the generator, and
   without gradients no activation is kept. */
static rw_status evaluate(struct run *r, double *loss)
{
    struct run own = *r;
    rw_status status = rw_tape_create(&own.t, r->ctx);
    *loss = 0;
    for (int k = 0; !status && k < o.eval_batches; k++) {
        fill_batch(&r->val, o.seed + 1, (uint64_t)k, r->in, r->out);
        rw_no_grad_begin(own.t);
        *loss += rw_item(own.t, record_loss(&own, 0)) / o.eval_batches;
        status = rw_error_status(r->ctx);
        rw_tape_reset(own.t);
    }
    rw_tape_destroy(&own.t);
    return status;
}

static void print_step(const struct run *r, int step, double loss, double size, double per_s)
{
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    const double left = (o.steps - step - 1) * (double)(o.batch * o.accum * o.m.seq) / per_s;
    printf("step %6d  loss %.4f  norm %.3f  lr %.2e  %7.0f tokens/s  kept %.1f MiB  peak %.1f MiB  %d:%02d left\n",
           step, loss, size, rate_of(r, (uint64_t)step), per_s, (double)m.kept / 1048576,
           (double)m.measured_peak / 1048576, (int)left / 60, (int)left % 60);
}

static rw_status save(struct run *r, int steps)
{
    const struct identity id = identity_of(r);
    return r->ck ? rw_checkpoint_save(r->ck, (uint64_t)steps, &id, sizeof id) : RW_OK;
}

void show(struct run *r, bool last)
{
    if (o.dashboard && !dashboard_write(&r->page, r->ctx, r->monitor, last))
        fprintf(stderr, "train_gpt: %s: %s\n", o.dashboard, strerror(errno));
}

/* Of 8-bit codes with the first operand that it is about. */
static void note_alert(struct run *r, int step, unsigned alert)
{
    char text[200];
    rw_monitor_site s = { 0 };
    size_t i = 0;
    while (rw_monitor_get_site(r->monitor, i, &s) && !(s.alerts & alert)) i++;
    const bool found = s.alerts & alert;
    snprintf(text, sizeof text, "%s%s%.100s", rw_alert_name(alert), found ? ": " : "", found ? s.name : "");
    dashboard_note(&r->page, step, text);
}

/* Writes the step down, and says what it is warned of. The norm of a graph's gradients is what the monitor found. */
static rw_status watch(struct run *r, int step, double loss, double *size, unsigned *ret_alerts)
{
    const double began = r->seen, now = r->seen = seconds();
    rw_scaler_state scaler = { 0 };
    const rw_status known = r->scaler ? rw_scaler_get(r->scaler, &scaler) : RW_OK;
    if (known) return known;
    const rw_monitor_values v = { .step = (uint64_t)step, .loss = loss, .grad_norm = o.graph ? 0 : *size,
                                  .lr = rate_of(r, (uint64_t)step),
                                  .tokens = (double)o.batch * o.accum * o.m.seq,
                                  .seconds = began > 0 ? now - began : 0, .loss_scale = r->scale,
                                  .skipped = scaler.found_inf };
    unsigned alerts = 0;
    const rw_status status = rw_monitor_step(r->monitor, &v, &alerts);
    const rw_monitor_numbers n = rw_monitor_get_numbers(r->monitor);
    *size = n.grad_norm;
    dashboard_add(&r->page.run, (struct dashboard_point){ .step = step, .loss = loss, .norm = n.grad_norm, .lr = v.lr,
                                                          .tokens_per_s = began > 0 ? v.tokens / (now - began) : NAN,
                                                          .weights = n.param_norm, .change = n.update_ratio,
                                                          .scale = r->scale > 0 ? r->scale : NAN });
    for (unsigned a = 1; a <= alerts; a <<= 1) {
        if (!(alerts & a)) continue;
        fprintf(stderr, "step %6d  %s: loss %.4f, norm %.3f\n", step, rw_alert_name(a), loss, *size);
        note_alert(r, step, a);
    }
    *ret_alerts = alerts;
    return status;
}

rw_status train(struct run *r, int first)
{
    const double tokens = (double)o.batch * o.accum * o.m.seq;
    double began = seconds();
    int since = 0;
    rw_status status = RW_OK;
    for (int step = first, next = first; !status && step < o.steps; step = next) {
        double loss, size;
        unsigned alerts = 0;
        status = step_of(r, (uint64_t)step, &loss, &size);
        if (!status) status = watch(r, step, loss, &size, &alerts);
        const bool hidden = (alerts & RW_ALERT_AMAX_NONFINITE) && isfinite(loss) && isfinite(size);
        if (!status && hidden && !o.graph) status = find_again(r, (uint64_t)step, loss);
        if (!status) status = recover(r, &next, alerts, loss);
        if (!status && next <= step) continue;
        since++;
        if (!status && (step % 10 == 0 || step + 1 == o.steps)) {
            print_step(r, step, loss, size, since * tokens / (seconds() - began));
            began = seconds();
            since = 0;
        }
        const bool last = step + 1 == o.steps;
        if (!status && o.eval_batches && (last || (step + 1) % o.eval_every == 0)) {
            const double from = seconds();
            status = evaluate(r, &loss);
            if (!status) printf("step %6d  validation loss %.4f\n", step, loss);
            dashboard_add(&r->page.validation, (struct dashboard_point){ .step = step, .loss = loss });
            began += seconds() - from;
            r->seen += seconds() - from; /* an evaluation is no part of a step */
        }
        if (!status && (last || (step + 1) % o.save_every == 0)) status = save(r, step + 1);
        show(r, last);
    }
    return !status && r->ck ? rw_checkpoint_wait(r->ck) : status;
}
