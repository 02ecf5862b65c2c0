/* Invalid calls of rewind/tensor.h, rewind/optimizers.h and rewind/io.h: parameters, gradients, files. */
#include "api/mistakes/table.h"

#include <rewind/rewind.h>

#include <math.h>
#include <string.h>

/* Invalid parameters and buffers. */
static void creation(struct trial *m, struct world *w)
{
    rw_context *const ctx = w->ctx;
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    SILENT("rw_param", RW_ERR_ARGUMENT, rw_param(NULL, "q", RW_F32, RW_SHAPE(2)) ? RW_OK : RW_ERR_ARGUMENT);
    TENSOR("rw_param", RW_ERR_ARGUMENT, rw_param(ctx, NULL, RW_F32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_ARGUMENT, rw_param(ctx, "", RW_F32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_ARGUMENT, rw_param(ctx, name, RW_F32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_ARGUMENT, rw_param(ctx, "p", RW_F32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_ARGUMENT, rw_param(ctx, "buffer", RW_F32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_DTYPE, rw_param(ctx, "q", RW_I32, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_DTYPE, rw_param(ctx, "q", (rw_dtype)5, RW_SHAPE(2)));
    TENSOR("rw_param", RW_ERR_SHAPE, rw_param(ctx, "q", RW_F32, RW_SHAPE(-1)));
    TENSOR("rw_param", RW_ERR_SHAPE, rw_param(ctx, "q", RW_F32, RW_SHAPE(HUGE_EXTENT, HUGE_EXTENT)));
    TENSOR("rw_param", RW_ERR_SHAPE, rw_param(ctx, "q", RW_F32, ((rw_shape){ .rank = INT32_MAX })));
#ifndef __SANITIZE_ADDRESS__ /* which ends the process on so large an allocation */
    TENSOR("rw_param", RW_ERR_MEMORY, rw_param(ctx, "q", RW_F32, RW_SHAPE((int64_t)1 << 50)));
#endif
    TENSOR("rw_buffer", RW_ERR_ARGUMENT, rw_buffer(ctx, NULL, RW_F32, RW_SHAPE(2)));
    TENSOR("rw_buffer", RW_ERR_SHAPE, rw_buffer(ctx, "q", RW_I32, RW_SHAPE(INT64_MAX)));
    TENSOR("rw_buffer", RW_ERR_DTYPE, rw_buffer(ctx, "q", RW_DTYPE_COUNT, RW_SHAPE(2)));
    ALLOWED("rw_param_get", !rw_param_get(NULL, 0) && !rw_param_get(ctx, SIZE_MAX));
    ALLOWED("rw_param_find", !rw_param_find(NULL, "p") && !rw_param_find(ctx, NULL) && !rw_param_find(ctx, ""));
    ALLOWED("rw_tensor_name", !*rw_tensor_name(NULL) && !*rw_tensor_name(RW_NONE) && !*rw_tensor_name(w->gone));
    ALLOWED("rw_tensor_shape", rw_tensor_shape(NULL).rank == 0 && rw_tensor_shape(RW_NONE).rank == 0);
    ALLOWED("rw_tensor_shape", rw_tensor_shape(w->gone).rank == 0 && rw_tensor_shape(w->dead).rank == 0);
    ALLOWED("rw_tensor_dtype", rw_tensor_dtype(NULL) == RW_F32 && rw_tensor_dtype(w->dead_grad) == RW_F32);
    ALLOWED("rw_tensor_bytes", !rw_tensor_bytes(NULL) && !rw_tensor_bytes(RW_NONE));
    ALLOWED("rw_tensor_requires_grad", !rw_tensor_requires_grad(NULL) && !rw_tensor_requires_grad(RW_NONE));
}

/* Invalid reads and writes of contents. */
static void contents(struct trial *m, struct world *w)
{
    SILENT("rw_write", RW_ERR_ARGUMENT, rw_write(NULL, w->out, 24));
    SILENT("rw_write", RW_ERR_ARGUMENT, rw_write(RW_NONE, w->out, 24));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->p, NULL, 24));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->p, w->out, 25));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->x, w->out, 24));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->dead, w->out, 24));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->gone, w->out, 24));
    STATUS("rw_write", RW_ERR_ARGUMENT, rw_write(w->v_grad, w->out, 24));
    SILENT("rw_tensor_data", RW_ERR_ARGUMENT, rw_tensor_data(NULL) ? RW_OK : RW_ERR_ARGUMENT);
    SILENT("rw_tensor_data", RW_ERR_ARGUMENT, rw_tensor_data(RW_NONE) ? RW_OK : RW_ERR_ARGUMENT);
    TENSOR("rw_tensor_data", RW_ERR_ARGUMENT, rw_tensor_data(w->v));
    TENSOR("rw_tensor_data", RW_ERR_ARGUMENT, rw_tensor_data(w->dead_grad));
    SILENT("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(NULL, 0, 1));
    STATUS("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(w->x, 0, 1));
    STATUS("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(w->p_grad, 0, 1));
    STATUS("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(w->p, NAN, 1));
    STATUS("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(w->p, 0, INFINITY));
    STATUS("rw_init_normal", RW_ERR_ARGUMENT, rw_init_normal(w->p, 0, -1));
    STATUS("rw_init_uniform", RW_ERR_ARGUMENT, rw_init_uniform(w->dead, 0, 1));
    STATUS("rw_init_uniform", RW_ERR_ARGUMENT, rw_init_uniform(w->p, 0, NAN));
    STATUS("rw_init_uniform", RW_ERR_ARGUMENT, rw_init_uniform(w->p, 1, 0));
    STATUS("rw_init_constant", RW_ERR_ARGUMENT, rw_init_constant(w->gone, 1));
    SILENT("rw_init_constant", RW_ERR_ARGUMENT, rw_init_constant(RW_NONE, 1));
    ALLOWED("rw_gradient", !rw_gradient(NULL) && !rw_gradient(RW_NONE) && !rw_gradient(w->p_grad));
    ALLOWED("rw_gradient", !rw_gradient(w->dead) && !rw_gradient(w->gone) && !rw_gradient(w->buffer));
    ALLOWED("rw_zero_grad", (rw_zero_grad(NULL), true));
    double *const norm = (double *)(void *)w->out;
    SILENT("rw_clip_grad_norm", RW_ERR_ARGUMENT, rw_clip_grad_norm(NULL, 1, norm));
    STATUS("rw_clip_grad_norm", RW_ERR_ARGUMENT, rw_clip_grad_norm(w->ctx, 0, norm));
    STATUS("rw_clip_grad_norm", RW_ERR_ARGUMENT, rw_clip_grad_norm(w->ctx, -1, norm));
    STATUS("rw_clip_grad_norm", RW_ERR_ARGUMENT, rw_clip_grad_norm(w->ctx, NAN, norm));
    SILENT("rw_clip_grad_norm_with", RW_ERR_ARGUMENT, rw_clip_grad_norm_with(NULL, 1, NULL, norm));
    STATUS("rw_clip_grad_norm_with", RW_ERR_ARGUMENT, rw_clip_grad_norm_with(w->ctx, NAN, NULL, norm));
}

/* Invalid optimizers and files. */
static void files(struct trial *m, struct world *w)
{
    rw_optimizer **const out = (rw_optimizer **)(void *)w->out;
    rw_optimizer *none = NULL;
    SILENT("rw_adamw_create", RW_ERR_ARGUMENT, rw_adamw_create(out, NULL, NULL));
    STATUS("rw_adamw_create", RW_ERR_ARGUMENT, rw_adamw_create(NULL, w->ctx, NULL));
    ALLOWED("rw_optimizer_destroy", (rw_optimizer_destroy(NULL), rw_optimizer_destroy(&none), true));
    SILENT("rw_optimizer_step", RW_ERR_ARGUMENT, rw_optimizer_step(NULL));
    ALLOWED("rw_optimizer_set_lr", (rw_optimizer_set_lr(NULL, 1), true));
    SILENT("rw_save", RW_ERR_ARGUMENT, rw_save(NULL, w->path));
    STATUS("rw_save", RW_ERR_ARGUMENT, rw_save(w->ctx, NULL));
    STATUS("rw_save", RW_ERR_IO, rw_save(w->ctx, ""));
    STATUS("rw_save", RW_ERR_IO, rw_save(w->ctx, "/nonexistent/weights"));
    SILENT("rw_load", RW_ERR_ARGUMENT, rw_load(NULL, w->path));
    STATUS("rw_load", RW_ERR_ARGUMENT, rw_load(w->ctx, NULL));
    STATUS("rw_load", RW_ERR_IO, rw_load(w->ctx, ""));
    STATUS("rw_load", RW_ERR_IO, rw_load(w->ctx, "/nonexistent/weights"));
    STATUS("rw_load", RW_ERR_IO, rw_load(w->ctx, "/tmp"));
    STATUS("rw_load", RW_ERR_IO, rw_load(w->ctx, w->path));
}

void mistakes_with_parameters(struct trial *m, struct world *w)
{
    creation(m, w);
    contents(m, w);
    files(m, w);
}
