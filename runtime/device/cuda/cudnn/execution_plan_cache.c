/* A hash table of pinned plans, and the library that makes them. */
#include "device/cuda/cudnn/execution_plan_cache.h"

#include "device/cuda/current_device.h"
#include "device/cuda/signature_hash.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

void rw_dnn_pins_init(struct rw_dnn_pins *p, struct rw_cuda *cuda, const char *variable, size_t size,
                      rw_dnn_build_fn build)
{
    const char *const choice = secure_getenv(variable);
    *p = (struct rw_dnn_pins){ .cuda = cuda, .build = build, .size = size };
    p->wanted = choice && !strcmp(choice, "cudnn");
}

static void free_pin(struct rw_dnn_pins *p, struct rw_dnn_pin *pin)
{
    rw_dnn_free_plan(&p->dnn, &pin->plan);
    rw_free(pin);
}

void rw_dnn_pins_finish(struct rw_dnn_pins *p)
{
    for (size_t i = 0; i < sizeof p->bucket / sizeof *p->bucket; i++)
        while (p->bucket[i]) {
            struct rw_dnn_pin *const pin = p->bucket[i];
            p->bucket[i] = pin->next;
            free_pin(p, pin);
        }
    rw_cudnn_close(&p->dnn);
}

/*
 * Opens the library once. That it does not exist is not a failure. A failure that may not occur next time is one, and
 * decides nothing.
 */
static rw_status open_once(struct rw_dnn_pins *p)
{
    if (p->opened || !p->wanted) return RW_OK;
    const bool had_message = p->cuda->message[0];
    const rw_status status = rw_cudnn_open(&p->dnn, p->cuda);
    if (status && status != RW_ERR_UNSUPPORTED) return status;
    if (status && !had_message) p->cuda->message[0] = '\0';
    p->opened = true;
    p->has = !status;
    return RW_OK;
}

static size_t bucket_of(const struct rw_dnn_pins *p, const void *signature)
{
    return rw_cuda_hash(signature, p->size) % (sizeof p->bucket / sizeof *p->bucket);
}

static const struct rw_dnn_pin *find(const struct rw_dnn_pins *p, const void *signature)
{
    const struct rw_dnn_pin *pin = p->bucket[bucket_of(p, signature)];
    while (pin && memcmp(pin->signature, signature, p->size)) pin = pin->next;
    return pin;
}

const struct rw_dnn_pin *rw_dnn_pinned(const struct rw_dnn_pins *p, const void *signature)
{
    const struct rw_dnn_pin *const pin = find(p, signature);
    return pin && pin->plan.plan ? pin : NULL;
}

/* Makes a plan and pins it, or pins that there is none. */
static rw_status add(struct rw_dnn_pins *p, const void *signature, const char *plan)
{
    struct rw_dnn_pin *const pin = rw_calloc(1, sizeof *pin + p->size);
    if (!pin) return RW_ERR_MEMORY;
    pin->pieces = 1;
    memcpy(pin->signature, signature, p->size);
    const cudnnStatus_t built = p->build(p, signature, pin);
    if (built && !rw_dnn_is_refusal(built)) {
        free_pin(p, pin);
        return rw_cudnn_status(&p->dnn, p->cuda, built, plan);
    }
    if (!pin->plan.plan) rw_dnn_free_plan(&p->dnn, &pin->plan);
    struct rw_dnn_pin **const bucket = &p->bucket[bucket_of(p, signature)];
    pin->next = *bucket;
    *bucket = pin;
    p->n++;
    return RW_OK;
}

rw_status rw_dnn_pin(struct rw_dnn_pins *p, const void *signature, const char *plan)
{
    RW_ON_DEVICE(p->cuda);
    const rw_status status = open_once(p);
    if (status || !p->has || find(p, signature) || p->n == RW_DNN_PINS_MAX) return status;
    return add(p, signature, plan);
}
