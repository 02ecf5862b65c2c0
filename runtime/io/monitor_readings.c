/* Collects the numbers of a step for TensorBoard and Prometheus. */
#include "io/monitor_readings.h"

#include "base/explicit_zero_param.h"

#include <errno.h>

void rw_readings_put(struct rw_readings *r, const char *name, const char *help, double value)
{
    rw_readings_add(r, (struct rw_reading){ .name = name, .help = help, .value = value });
}

static void read_memory(struct rw_readings *r, const rw_context *ctx)
{
    rw_memory m;
    if (rw_memory_stats(ctx, &m)) return;
    const struct {
        const char *name;
        size_t bytes;
    } kinds[] = { { "parameters", m.parameters }, { "gradients", m.gradients }, { "optimizer", m.optimizer },
                  { "kept", m.kept },             { "replayed", m.replayed },   { "peak", m.measured_peak },
                  { "host", m.host },             { "files", m.files },         { "device", m.device } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        rw_readings_add(r, (struct rw_reading){ .name = "memory_bytes", .label = "kind", .help = "Memory by category",
                                                .value_of_label = kinds[i].name, .value = (double)kinds[i].bytes });
}

static void read_work(const rw_monitor *m, const struct rw_shown_step *s, struct rw_readings *r)
{
    if (!(s->hardware_flops > 0)) return;
    rw_readings_put(r, "model_flops_per_second", "FLOP/s of the products of forward and backward", s->model_flops);
    rw_readings_put(r, "hardware_flops_per_second", "FLOP/s of forward, replays and backward", s->hardware_flops);
    if (!(m->peak_flops > 0)) return;
    rw_readings_put(r, "mfu", "Model FLOP/s over the stated peak", s->model_flops / m->peak_flops);
    rw_readings_put(r, "hfu", "Hardware FLOP/s over the stated peak", s->hardware_flops / m->peak_flops);
}

static double health_number(const struct rw_health *h, int i)
{
    const double numbers[] = { h->grad_norm, h->param_norm, h->update_ratio, h->zeros, h->unclipped_norm };
    return numbers[i];
}

static void read_health(const rw_monitor *m, const struct rw_shown_step *s, struct rw_readings *r)
{
    static const char *const names[][2] = { { "group_grad_norm", "Norm of a group's gradients in its update" },
                                            { "group_param_norm", "Norm of a group's weights" },
                                            { "group_update_ratio", "A group's update over its weights" },
                                            { "group_zeros", "Share of a group's gradients that are zero" },
                                            { "group_unclipped_norm", "Norm of a group's gradients before clipping" } };
    if (s->all.elements > 0) {
        rw_readings_put(r, "param_norm", "Norm of the weights", s->all.param_norm);
        rw_readings_put(r, "update_ratio", "Norm of the update over that of the weights", s->all.update_ratio);
        rw_readings_put(r, "zeros", "Share of the gradients that are zero", s->all.zeros);
    }
    for (int i = 0; i < 5; i++)
        for (size_t g = 0; g < m->watched.n_groups; g++)
            if (i < 4 ? s->group[g].elements > 0 : s->group[g].clipped)
                rw_readings_add(r, (struct rw_reading){ .name = names[i][0], .help = names[i][1], .label = "group",
                                                 .value_of_label = m->watched.name[g],
                                                 .value = health_number(&s->group[g], i) });
}

rw_status rw_monitor_readings(rw_monitor *m, const struct rw_shown_step *s)
{
    const rw_monitor_values *const v = s->v;
    const double seconds = s->seconds;
    struct rw_readings *const r = &m->readings;
    r->n = 0;
    r->is_cut = false;
    rw_readings_put(r, "step", "Step", (double)v->step);
    rw_readings_put(r, "loss", "Loss", v->loss);
    if (s->has_norm) rw_readings_put(r, "grad_norm", "Norm of the gradients before clipping", s->norm);
    if (v->lr != 0) rw_readings_put(r, "learning_rate", "Learning rate", rw_or_default(v->lr, 0));
    if (v->tokens > 0 && seconds > 0)
        rw_readings_put(r, "tokens_per_second", "Tokens per second", rw_or_default(v->tokens, 0) / seconds);
    if (seconds > 0) rw_readings_put(r, "step_seconds", "Time of the step", seconds);
    if (v->loss_scale > 0) rw_readings_put(r, "loss_scale", "Loss scale", v->loss_scale);
    rw_readings_add(r, (struct rw_reading){ .name = "skipped_total", .help = "Updates that were left out",
                                            .value = (double)m->judge.n_skipped, .counts = true });
    read_work(m, s, r);
    read_health(m, s, r);
    rw_sites_readings(&m->sites, r);
    read_memory(r, m->ctx);
    for (size_t i = 0; i < RW_ALERTS; i++)
        rw_readings_add(r, (struct rw_reading){ .name = "alerts_total", .label = "alert", .help = "Alerts",
                                                .value_of_label = rw_alert_names[i], .value = (double)m->n_alerts[i],
                                                .counts = true });
    errno = EOVERFLOW;
    return r->is_cut ? RW_ERR_IO : RW_OK;
}
