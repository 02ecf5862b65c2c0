/* Examples of the headers of training: optimizers, precision, graphs, checkpoints, logs. */
#include "by_header.h"

#include <math.h>

static rw_tensor *model(rw_tape *t, rw_tensor *w)
{
    rw_tensor *x = rw_ones(t, RW_F32, RW_SHAPE(4, 8));
    return rw_mean_all(t, rw_pow_scalar(t, rw_linear(t, x, w, RW_NONE), 2));
}

static rw_tensor *parameter(rw_context *ctx)
{
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(8, 8));
    rw_init_normal(w, 0, 0.1);
    return w;
}

bool example_optimizers(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    double loss = 0;
    //! [optimizers]
    rw_optimizer *opt = NULL;
    rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 1e-2, .weight_decay = RW_ZERO }); // after all parameters
    for (int step = 0; step < 100; step++) {
        rw_zero_grad(ctx);
        rw_tensor *error = model(t, w);
        rw_backward(t, error);
        rw_clip_grad_norm(ctx, 1.0, NULL);
        rw_optimizer_step(opt);
        loss = rw_item(t, error);
        rw_tape_reset(t);
    }
    rw_optimizer_destroy(&opt);
    //! [optimizers]
    return loss < 0.01;
}

bool example_lr_schedule(rw_context *ctx, rw_tape *t)
{
    double last = 0;
    parameter(ctx);
    rw_optimizer *opt = NULL;
    rw_sgd_create(&opt, ctx, NULL);
    //! [lr_schedule]
    const rw_lr_schedule schedule = { .kind = RW_LR_COSINE, .lr = 6e-4, .min_lr = 6e-5, .warmup = 10, .total = 100 };
    for (uint64_t step = 0; step < schedule.total; step++) {
        last = rw_lr_schedule_rate(&schedule, step);
        rw_optimizer_set_lr(opt, last);
        // forward, backward, rw_optimizer_step(opt)
    }
    //! [lr_schedule]
    rw_optimizer_destroy(&opt);
    return last < 7e-5;
}

bool example_weight_average(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [weight_average]
    rw_weight_average *average = NULL;
    rw_weight_average_create(&average, ctx, 0.9); // a copy of the parameters
    rw_init_constant(w, 1);                       // in place of rw_optimizer_step()
    rw_weight_average_step(average);
    rw_tensor *loss = model(t, rw_weight_average_of(average, w)); // evaluates the averages
    const double value = rw_item(t, loss);
    rw_tape_reset(t);
    rw_weight_average_destroy(&average);
    //! [weight_average]
    return isfinite(value);
}

bool example_precision(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    //! [precision]
    rw_optimizer *opt = NULL;
    rw_scaler *scaler = NULL;
    rw_adamw_create(&opt, ctx, NULL);
    rw_scaler_create(&scaler, ctx, NULL);
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(ctx);
        rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F16 }); // products in float16
        rw_tensor *loss = model(t, w);
        rw_recipe_end(t);
        rw_scaler_backward(scaler, t, loss); // gradients times the scale
        rw_scaler_step(scaler, opt);         // unscaled; skipped if one is not finite
        rw_scaler_update(scaler);
        rw_tape_reset(t);
    }
    rw_scaler_state state;
    rw_scaler_get(scaler, &state);
    printf("scale %g, %lld steps skipped\n", state.scale, (long long)state.skipped);
    rw_scaler_destroy(&scaler);
    rw_optimizer_destroy(&opt);
    //! [precision]
    return state.scale == 65536;
}

static rw_tensor *halve(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return rw_scale(t, gradient, 0.5);
}
static const rw_recorder_def half = { .name = "half", .gradient = halve };

bool example_recorders(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    rw_optimizer *opt = NULL;
    rw_graph *graph = NULL;
    rw_sgd_create(&opt, ctx, &(rw_sgd_params){ .lr = 0.1 });
    rw_tensor *loss = model(t, w);
    //! [recorders]
    rw_graph_create(&graph, t, loss,
                    &(rw_graph_params){ { rw_record_custom(&half, NULL), // a recorder of this program
                                          rw_record_clip(1.0), rw_record_update(opt) } });
    //! [recorders]
    rw_status status = rw_graph_launch(graph);
    rw_graph_destroy(&graph);
    rw_optimizer_destroy(&opt);
    return status == RW_OK;
}

bool example_graph(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    const float batch[2] = { 1, 2 };
    double first = 0, last = 0;
    //! [graph]
    rw_optimizer *opt = NULL;
    rw_graph *graph = NULL;
    rw_sgd_create(&opt, ctx, &(rw_sgd_params){ .lr = 0.1 });
    rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(2, 1), NULL, 0);
    rw_tensor *loss = rw_mul(t, model(t, w), rw_mean_all(t, x)); // recorded once
    rw_graph_create(&graph, t, loss, &(rw_graph_params){ { rw_record_clip(1.0), rw_record_update(opt) } });
    for (int step = 0; step < 20; step++) {
        rw_input_write(x, batch, sizeof batch); // the next batch
        rw_graph_launch(graph);                 // forward, backward, clipping, update
        last = rw_item(t, loss);
        if (step == 0) first = last;
    }
    rw_graph_destroy(&graph);
    rw_optimizer_destroy(&opt);
    //! [graph]
    return last < first;
}

bool example_checkpoint(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    rw_optimizer *opt = NULL;
    rw_adamw_create(&opt, ctx, NULL);
    //! [checkpoint]
    rw_checkpoint *checkpoint = NULL;
    rw_checkpoint_found found;
    rw_checkpoint_create(&checkpoint, ctx, &(rw_checkpoint_params){ .folder = "run", .optimizer = opt });
    rw_checkpoint_load(checkpoint, &found); // the newest valid file, if there is one
    for (uint64_t step = found.step; step < 6; step++) {
        rw_zero_grad(ctx);
        rw_backward(t, model(t, w));
        rw_optimizer_step(opt);
        rw_tape_reset(t);
        if ((step + 1) % 3 == 0) rw_checkpoint_save(checkpoint, step + 1, NULL, 0); // a thread writes the file
    }
    const rw_status written = rw_checkpoint_wait(checkpoint);
    //! [checkpoint]
    rw_checkpoint_load(checkpoint, &found);
    rw_checkpoint_destroy(&checkpoint);
    rw_optimizer_destroy(&opt);
    return !written && found.step == 6;
}

bool example_monitor(rw_context *ctx, rw_tape *t)
{
    rw_tensor *w = parameter(ctx);
    unsigned any = 0;
    //! [monitor]
    rw_monitor *monitor = NULL;
    rw_monitor_create(&monitor, ctx, "log.jsonl");
    for (uint64_t step = 0; step < 4; step++) {
        rw_zero_grad(ctx);
        rw_tensor *loss = model(t, w);
        rw_backward(t, loss);
        unsigned alerts;
        rw_monitor_step(monitor, &(rw_monitor_values){ .step = step, .loss = rw_item(t, loss), .tokens = 4 }, &alerts);
        if (alerts & RW_ALERT_LOSS_NONFINITE) break;
        any |= alerts;
        rw_tape_reset(t);
    }
    rw_monitor_destroy(&monitor);
    //! [monitor]
    return !(any & RW_ALERT_LOSS_NONFINITE);
}
