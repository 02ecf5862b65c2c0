/*
 * What the optimizer and the clipping of gradients ask of a device: called by runtime/api, not recorded. C11, C++17.
 *
 * An update comes in two: prepare() is called by the host at every step, update() may be captured once and repeated. On
 * a device that captures, update() therefore finds all that changes from step to step in the device's memory.
 */
#ifndef RW_OPS_OPTIM_H
#define RW_OPS_OPTIM_H

#include <rewind/context.h>

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter: what stays. */
struct rw_optim_tensor {
    void *param;
    const void *grad;
    void *m, *v;
    void *master; /* float32 copy of a 16-bit parameter, or NULL */
    int64_t n;
    rw_dtype dtype;
};

/* What changes from step to step. */
struct rw_optim_step {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2; /* 1 - beta^step */
    bool due;                        /* there is a gradient */
};

/* A step's constants in float32, for parameters that are not float64. */
struct rw_adamw_floats {
    float b1, b2, c1, c2, decay, rate, root, eps;
};

static inline struct rw_adamw_floats rw_adamw_floats_of(const struct rw_optim_step *s)
{
    struct rw_adamw_floats f;
    f.b1 = (float)s->beta1, f.b2 = (float)s->beta2, f.c1 = (float)(1 - s->beta1), f.c2 = (float)(1 - s->beta2);
    f.decay = (float)(1 - s->lr * s->weight_decay), f.rate = (float)(s->lr / s->correction1);
    f.root = (float)(1 / sqrt(s->correction2)), f.eps = (float)s->eps;
    return f;
}

/* A gradient that is clipped. */
struct rw_clip_tensor {
    void *data;
    int64_t n;
    rw_dtype dtype;
};

struct rw_optim_fns {
    /*
     * The device's own memory for updates of n tensors; *ret_bytes of it are the device's. NULL: it needs none.
     * Nothing is left behind on failure.
     */
    rw_status (*open)(void **ret_state, void *device, const struct rw_optim_tensor *tensors, size_t n,
                      size_t *ret_bytes);
    void (*close)(void *state);
    /* Puts the steps of all tensors where update() finds them. NULL: update() reads them as they are. */
    rw_status (*prepare)(void *state, const struct rw_optim_step *steps);
    /* Queues the update of all tensors that are due. */
    rw_status (*update)(void *state, const struct rw_optim_tensor *tensors, const struct rw_optim_step *steps, size_t n,
                        int threads);
    /* Elements of a type of 16 bits to float32. */
    rw_status (*widen)(void *device, float *to, const void *from, rw_dtype dtype, int64_t n);
    /*
     * Scales the gradients so that the norm of all of them is max_norm, if it is larger. Waits, and reads, only for
     * ret_norm, which may be NULL.
     */
    rw_status (*clip)(void *device, const struct rw_clip_tensor *gradients, size_t n, double max_norm, double *ret_norm,
                      int threads);
};

/* By kind of device. */
const struct rw_optim_fns *rw_optim_of(rw_device kind);

/* The kernels of the CPU, as their attributes. */
struct rw_adamw_update {
    const struct rw_optim_tensor *t;
    const struct rw_optim_step *s;
};

struct rw_scale_buffer {
    void *data;
    rw_dtype dtype;
    int64_t n;
    double factor;
};

#ifdef __cplusplus
}
#endif

#endif
