/* See run.h. */
#include "run.h"

#include "alert_actions.h"
#include "finite_weights.h"
#include "model.h"
#include "saves.h"
#include "signals.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a step ---- */

static rw_tensor *record_loss(struct run *r, int batch, double dropout)
{
    const rw_shape shape = RW_SHAPE(batch, o.m.seq);
    r->x = rw_input(r->t, RW_I32, shape, r->in, (size_t)rw_shape_numel(shape) * sizeof *r->in);
    r->y = rw_input(r->t, RW_I32, shape, r->out, (size_t)rw_shape_numel(shape) * sizeof *r->out);
    rw_tensor *const z = logits(r->t, r->x, batch, o.m.seq, dropout);
    return rw_cross_entropy(r->t, r->scaler ? rw_cast(r->t, z, RW_F32) : z, r->y); /* scaled losses are float32 */
}

/* One step as a launch of the run's graph, which the first call creates. */
static rw_status launch(struct run *r, uint64_t step, double *loss)
{
    const size_t bytes = sizeof *r->in * (size_t)o.batch * (size_t)o.m.seq;
    fill_batch(&r->train, o.seed, step, r->in, r->out);
    rw_status status = RW_OK;
    if (!r->graph) {
        r->loss_of_graph = record_loss(r, o.batch, o.dropout);
        const rw_graph_params params = {
            { r->scaler ? rw_record_scaler(r->scaler) : rw_record_nothing(),
              o.clip > 0 ? rw_record_clip(o.clip) : rw_record_nothing(),
              o.inside ? rw_record_update_inside(r->opt) : rw_record_update(r->opt),
              r->delayed ? rw_record_delayed_scaling(r->delayed) : rw_record_nothing() }
        };
        status = rw_graph_create(&r->graph, r->t, r->loss_of_graph, &params);
    }
    if (!status) status = rw_input_write(r->x, r->in, bytes);
    if (!status) status = rw_input_write(r->y, r->out, bytes);
    if (!status) status = rw_graph_launch(r->graph);
    if (!status) *loss = rw_item(r->t, r->loss_of_graph);
    return status ? status : rw_error_status(r->ctx);
}

static void tell(const rw_nonfinite *where)
{
    if (where->found || where->differs) rw_nonfinite_print(where, stderr);
    else fprintf(stderr, "the same step repeated is finite: a hardware fault\n");
}

/* Runs the same step again and checks every value: op, region, line, element. */
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
    return rw_scale(r->t, record_loss(r, o.batch, o.dropout), 1.0 / o.accum);
}

/* The loss is finite, but gradients, or numbers that were quantized to FP8, are not: records the micro-batches once
   more, with the same random numbers, and reports the first in which it happens. Their total loss must equal the
   observed one, to the last bit. */
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
    if (!status && again != loss) fprintf(stderr, "the same step repeated has another loss: a hardware fault\n");
    if (!status && !where.found && o.accum > 1)
        fprintf(stderr, "the gradients of each micro-batch are finite: their sum is not, or there is a hardware "
                        "fault\n");
    else if (!status) tell(&where);
    return status;
}

double rate_of(const struct run *r, uint64_t step)
{
    return rw_lr_schedule_rate(&r->schedule, step > r->left_out ? step - r->left_out : 0);
}

/* The loss of the step before was read: this does not wait. */
static rw_status set_rate(struct run *r, uint64_t step)
{
    rw_scaler_state state = { 0 };
    const rw_status status = r->scaler ? rw_scaler_get(r->scaler, &state) : RW_OK;
    r->scale = state.scale;
    r->left_out = (uint64_t)state.skipped;
    r->rate = rate_of(r, step);
    rw_optimizer_set_lr(r->opt, r->rate);
    return status;
}

/* One step up to its update: micro-batches and clipping; with a graph also the update. */
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
    return status; /* a scaler that finds a value that is not finite skips the update, and continues */
}

/* Updates the scales for the next step. */
static rw_status move_on(struct run *r)
{
    const rw_status status = r->delayed ? rw_delayed_scaling_update(r->delayed, r->scaler) : RW_OK;
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

/* ---- between steps ---- */

/* On a separate tape, because a graph's tape must not be reset. Without dropout nothing is drawn from the generator,
   and without gradients no activation is kept. */
static rw_status evaluate(struct run *r, double *loss)
{
    struct run own = *r;
    double sum = 0;
    rw_status status = rw_tape_create(&own.t, r->ctx);
    for (size_t first = 0, n; !status && first < r->windows; first += n) {
        n = r->windows - first < (size_t)o.batch ? r->windows - first : (size_t)o.batch;
        fill_windows(&r->val, r->windows, first, (int)n, r->in, r->out);
        rw_no_grad_begin(own.t);
        sum += rw_item(own.t, record_loss(&own, (int)n, 0)) * (double)n;
        status = rw_error_status(r->ctx);
        rw_tape_reset(own.t);
    }
    rw_tape_destroy(&own.t);
    *loss = sum / (double)r->windows;
    return status;
}

static double tokens_of_a_step(void)
{
    return (double)o.batch * o.accum * o.m.seq;
}

/* per_s: tokens per second of steps alone; step_s: seconds per step with evaluating, saving and all else. */
static void print_step(const struct run *r, int step, double size, double per_s, double step_s)
{
    rw_memory m;
    rw_memory_stats(r->ctx, &m);
    const double left = (o.steps - step - 1) * step_s;
    printf("step %6d  loss %.4f  norm %.3f  lr %.2e  %7.0f tokens/s  kept %.1f MiB  peak %.1f MiB  %.0f:%02.0f left\n",
           step, r->loss, size, r->rate, per_s, (double)m.kept / 1048576, (double)m.measured_peak / 1048576,
           floor(left / 60), floor(fmod(left, 60)));
}

void show(struct run *r, bool last)
{
    if (o.dashboard && !dashboard_write(&r->page, r->monitor, last))
        fprintf(stderr, "train_gpt: %s: %s\n", o.dashboard, strerror(errno));
}

rw_status logged(struct run *r, rw_status status)
{
    if (status != RW_ERR_IO) return status;
    if (!r->lost_lines++)
        fprintf(stderr, "train_gpt: %s: training goes on, and what cannot be written is counted\n",
                rw_error_message(r->ctx));
    rw_error_clear(r->ctx);
    return RW_OK;
}

/* " of attention, norm 0.61, median 0.05": the groups of an alert; the norm of all may be ordinary. */
static void name_groups(const struct run *r, unsigned alert, char *text, size_t size)
{
    rw_monitor_group_numbers g;
    size_t n = 0;
    *text = '\0';
    for (size_t i = 0; rw_monitor_get_group(r->monitor, i, &g) && n < size; i++)
        if (g.alerts & alert)
            n += (size_t)snprintf(text + n, size - n, "%s %s, norm %.3g, median %.3g", n ? " and" : " of", g.name,
                                  isnan(g.unclipped_norm) ? g.grad_norm : g.unclipped_norm, g.usual_norm);
}

/* Prints an alert with its groups and its numbers, and adds it to the page; for FP8 data also the first operand. */
static void report_alert(struct run *r, int step, unsigned alert, double size)
{
    char groups[320], numbers[120] = "";
    rw_monitor_alert a = { (double)NAN, (double)NAN };
    rw_monitor_site s = { 0 };
    size_t i = 0;
    name_groups(r, alert, groups, sizeof groups);
    rw_monitor_get_alert(r->monitor, alert, &a);
    if (!*groups) dashboard_describe(numbers, sizeof numbers, rw_alert_name(alert), a.value, a.usual);
    fprintf(stderr, "step %6d  %s%s: loss %.4f, norm %.3f%s%s\n", step, rw_alert_name(alert), groups, r->loss, size,
            *numbers ? "; " : "", numbers);
    while (rw_monitor_get_site(r->monitor, i, &s) && !(s.alerts & alert)) i++;
    dashboard_alert(&r->page, step, rw_alert_name(alert), groups, s.alerts & alert ? s.name : "", numbers);
}

/* Evaluates the step before its update. The norm of a graph's gradients is the monitor's. */
static rw_status check(struct run *r, int step, double *size, rw_monitor_values *v, unsigned *ret_alerts)
{
    rw_scaler_state scaler = { 0 };
    const rw_status known = r->scaler ? rw_scaler_get(r->scaler, &scaler) : RW_OK;
    if (known) return known;
    *v = (rw_monitor_values){ .step = (uint64_t)step, .loss = r->loss, .grad_norm = o.graph ? 0 : *size, .lr = r->rate,
                              .tokens = tokens_of_a_step(), .loss_scale = r->scale, .skipped = scaler.found_inf };
    const rw_status status = rw_monitor_check(r->monitor, v, ret_alerts);
    *size = rw_monitor_get_numbers(r->monitor).grad_norm;
    return status;
}

/* After the update: writes the step's line, and prints its alerts. */
static rw_status watch(struct run *r, int step, double *size, rw_monitor_values v, unsigned *ret_alerts)
{
    const double began = r->seen, now = r->seen = seconds();
    unsigned alerts = 0;
    v.seconds = began > 0 ? now - began : 0;
    const rw_status status = logged(r, rw_monitor_step(r->monitor, &v, &alerts));
    const rw_monitor_numbers n = rw_monitor_get_numbers(r->monitor);
    rw_memory_stats(r->ctx, &r->page.memory);
    *size = n.grad_norm;
    const double no_norm = isfinite(r->loss) && o.graph ? (double)NAN : (double)INFINITY; /* unknown if graph */
    dashboard_add(&r->page.run, (struct dashboard_point){ .step = step, .loss = isfinite(r->loss) ? r->loss : INFINITY,
                                                          .norm = isfinite(n.grad_norm) ? n.grad_norm : no_norm,
                                                          .lr = v.lr,
                                                          .tokens_per_s = began > 0 ? v.tokens / (now - began) : NAN,
                                                          .weights = n.param_norm, .change = n.update_ratio,
                                                          .scale = r->scale > 0 ? r->scale : NAN });
    for (unsigned a = 1; a <= alerts; a <<= 1)
        if (alerts & a) report_alert(r, step, a, *size);
    *ret_alerts = alerts;
    return status;
}

static rw_status validate(struct run *r, int step)
{
    double loss;
    rw_status status = evaluate(r, &loss);
    if (status) return status;
    printf("step %6d  validation loss %.4f\n", step, loss);
    dashboard_add(&r->page.validation,
                  (struct dashboard_point){ .step = step, .loss = isfinite(loss) ? loss : INFINITY });
    return logged(r, rw_monitor_validation(r->monitor, (uint64_t)step, loss));
}

/* A step with its update, its line, and the actions for its alerts. *next: the step that follows. */
static rw_status make_step(struct run *r, int step, int *next, double *size)
{
    unsigned alerts = 0;
    bool skipped = false;
    rw_monitor_values v;
    rw_status status = step_of(r, (uint64_t)step, &r->loss, size);
    if (!status) status = check(r, step, size, &v, &alerts);
    const bool hidden = (alerts & RW_ALERT_AMAX_NONFINITE) && isfinite(r->loss) && isfinite(*size);
    if (!status && hidden && !o.graph) status = find_again(r, (uint64_t)step, r->loss);
    *next = step;
    if (!status) status = update_or_skip(r, alerts, &skipped);
    if (!status) status = watch(r, step, size, v, &alerts);
    return status ? status : recover(r, next, alerts, skipped, r->loss);
}

/* Work after step `step`, for some steps only: not part of the step's own time. */
static rw_status pause_after(struct run *r, int step, bool last)
{
    rw_status status = RW_OK;
    if (r->windows && (last || (step + 1) % o.eval_every == 0) && !caught_signal()) status = validate(r, step);
    if (!status && (last || (step + 1) % o.save_every == 0)) status = save(r, step + 1);
    show(r, last);
    return status;
}

/* A run whose last loss, or whose weights, are not finite is not a success, whatever --on sets. */
static rw_status judge_end(struct run *r, int steps)
{
    bool finite = true;
    const rw_status status = weights_are_finite(r->ctx, &finite);
    if (!status && r->ended != ENDED_WRONG && (!finite || !isfinite(r->loss))) {
        r->ended = ENDED_WRONG;
        fprintf(stderr, "train_gpt: after %d steps the %s not finite\n", steps, finite ? "loss is" : "weights are");
    }
    return status;
}

/* A signal, or an alert that stops a finite run: the steps that were made are saved. */
static rw_status save_early(struct run *r, int first, int step)
{
    const rw_status status = step > first && r->saved_step != step ? save(r, step) : RW_OK;
    show(r, true);
    return status;
}

/* A checkpoint that cannot be written ends the run. If there is another file for the weights, they are saved. */
static rw_status end_without_checkpoint(struct run *r, rw_status status)
{
    if (!status || !r->lost_checkpoint || !o.save) return status;
    fprintf(stderr, "train_gpt: %s\n", rw_error_message(r->ctx));
    rw_error_clear(r->ctx);
    if (r->ended != ENDED_WRONG) r->ended = ENDED_BY_ERROR;
    return RW_OK;
}

rw_status train(struct run *r, int first)
{
    int since = 0, made = 0, step = first;
    rw_status status = saves_begin(r, first);
    const double start = seconds();
    double began = start;
    dashboard_cut(&r->page, first); /* --log may have steps after the one from which the run resumes */
    dashboard_cut_events(&r->page, first);
    if (!status && first >= o.steps) {
        if (first) printf("already at step %d of %d\n", first, o.steps);
        show(r, true);
    }
    while (!status && !r->ended && step < o.steps && !caught_signal()) {
        const double at = seconds();
        double size;
        int next;
        status = make_step(r, step, &next, &size);
        if (r->ended) show(r, true);
        if (!status && next <= step) { /* the time of a roll-back is not part of the step that follows */
            r->seen = seconds();
            began += r->seen - at;
        }
        if (status || r->ended || next <= step) {
            step = next;
            continue;
        }
        since++, made++;
        const bool last = step + 1 == o.steps;
        if (step % 10 == 0 || last || caught_signal()) {
            const double now = seconds();
            print_step(r, step, size, since * tokens_of_a_step() / (now - began), (now - start) / made);
            began = now;
            since = 0;
        }
        const double from = seconds();
        status = pause_after(r, step, last);
        began += seconds() - from;
        r->seen += seconds() - from;
        step = next;
    }
    if (!status && (r->ended == ENDED_EARLY || (caught_signal() && !r->ended))) status = save_early(r, first, step);
    if (!status) status = saves_wait(r);
    saves_warn(r);
    if (status) show(r, true);
    status = end_without_checkpoint(r, status);
    if (!status) status = judge_end(r, step);
    if (caught_signal() && !r->ended) r->ended = ENDED_BY_SIGNAL + caught_signal();
    return status;
}
