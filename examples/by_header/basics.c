/* Examples of the headers of contexts, tensors and tapes. */
#include "by_header.h"

bool example_rewind(rw_context *unused_ctx, rw_tape *unused_t)
{
    //! [rewind]
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    rw_optimizer *opt = NULL;
    rw_context_create(&ctx, NULL);                             // the fastest device
    rw_tape_create(&t, ctx);
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(1, 2)); // [out, in]
    rw_adamw_create(&opt, ctx, &(rw_adamw_params){ .lr = 0.1 });

    const float x[] = { 1, 0, 0, 1, 1, 1 }, y[] = { 2, 3, 5 };
    double loss = 0;
    for (int step = 0; step < 200; step++) {
        rw_zero_grad(ctx);
        rw_tensor *of_x = rw_linear(t, rw_input(t, RW_F32, RW_SHAPE(3, 2), x, sizeof x), w, RW_NONE);
        rw_tensor *error = rw_mse_loss(t, of_x, rw_input(t, RW_F32, RW_SHAPE(3, 1), y, sizeof y));
        rw_backward(t, error);
        rw_optimizer_step(opt);
        loss = rw_item(t, error);
        rw_tape_reset(t);
    }
    printf("loss %g\n", loss);
    if (rw_error_status(ctx)) printf("%s\n", rw_error_message(ctx)); // the first error of all these calls

    rw_optimizer_destroy(&opt);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    //! [rewind]
    return loss < 0.1;
}

bool example_context(rw_context *unused_ctx, rw_tape *unused_t)
{
    //! [context]
    rw_context *ctx = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 7, .threads = 2 })) {
        printf("%s\n", rw_error_message(NULL)); // there is no context that could keep the message
        return false;
    }
    const rw_generator_state state = rw_generator_get(ctx);
    printf("%s, %d threads, seed %llu\n", rw_device_name(rw_context_device(ctx)), rw_context_threads(ctx),
           (unsigned long long)state.seed);
    rw_context_destroy(&ctx);
    //! [context]
    return state.seed == 7 && !ctx;
}

bool example_tensor(rw_context *ctx, rw_tape *t)
{
    //! [tensor]
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(16, 8)); // trained
    rw_tensor *table = rw_buffer(ctx, "table", RW_F32, RW_SHAPE(8));
    const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    rw_init_normal(w, 0, 0.02);
    rw_write(table, ones, sizeof ones);

    rw_backward(t, rw_sum_all(t, rw_mul(t, w, table)));
    double norm;
    rw_clip_grad_norm(ctx, 1.0, &norm); // the norm before clipping: the square root of 128 ones
    float gradient[16 * 8];
    rw_read(t, rw_gradient(w), gradient, sizeof gradient);
    rw_zero_grad(ctx);
    //! [tensor]
    return norm > 11.3 && norm < 11.4 && gradient[0] < 0.09f;
}

bool example_tape(rw_context *ctx, rw_tape *t)
{
    double last = 0;
    //! [tape]
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(1, 2));
    rw_init_constant(w, 0.5);
    const float batch[] = { 1, 2, 3, 4 };
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_input(t, RW_F32, RW_SHAPE(2, 2), batch, sizeof batch);
        rw_tensor *loss = rw_mean_all(t, rw_linear(t, x, w, RW_NONE)); // recorded, not computed
        rw_backward(t, loss);                                          // computed; adds to the gradients
        last = rw_item(t, loss);                                       // a copy
        rw_tape_reset(t);                                              // the next step begins
    }
    //! [tape]
    return last == 2.5;
}

bool example_status(rw_context *ctx, rw_tape *t)
{
    //! [status]
    rw_tensor *a = rw_param(ctx, "a", RW_F32, RW_SHAPE(2, 3));
    rw_tensor *b = rw_param(ctx, "b", RW_F32, RW_SHAPE(4, 3));
    rw_tensor *y = rw_sum_all(t, rw_add(t, a, b)); // shapes do not fit: both ops return NULL
    const rw_status status = rw_error_status(ctx);
    if (status) printf("%s: %s\n", rw_status_name(status), rw_error_message(ctx));
    rw_error_clear(ctx);
    rw_tape_reset(t);
    //! [status]
    return !y && status == RW_ERR_SHAPE;
}

bool example_types(rw_context *ctx, rw_tape *t)
{
    //! [types]
    const rw_shape shape = RW_SHAPE(8, 128, 64); // batch, sequence, width
    const size_t bytes = (size_t)rw_shape_numel(shape) * rw_dtype_size(RW_BF16);
    printf("%zu bytes of %s\n", bytes, rw_dtype_name(RW_BF16));
    //! [types]
    return bytes == 131072;
}

bool example_version(rw_context *ctx, rw_tape *t)
{
    //! [version]
#if RW_VERSION < RW_VERSION_OF(0, 1, 0)
#error "this program needs the headers of 0.1.0 or later"
#endif
    printf("headers %d.%d.%d, library %s\n", RW_VERSION_MAJOR, RW_VERSION_MINOR, RW_VERSION_PATCH, rw_version());
    //! [version]
    return rw_version() != NULL;
}

bool example_io(rw_context *ctx, rw_tape *t)
{
    //! [io]
    rw_tensor *w = rw_param(ctx, "w", RW_F32, RW_SHAPE(2, 3));
    rw_init_constant(w, 4);
    if (rw_save(ctx, "weights.safetensors")) return false;
    rw_init_constant(w, 0);
    if (rw_load(ctx, "weights.safetensors")) return false; // by names; types and shapes must be equal
    //! [io]
    return rw_item(t, rw_sum_all(t, w)) == 24;
}
