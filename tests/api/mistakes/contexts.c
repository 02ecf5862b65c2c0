/* Invalid calls of rewind/context.h, rewind/status.h, rewind/types.h and rewind/memory.h. */
#include "api/mistakes/table.h"

#include <rewind/rewind.h>

#include <math.h>
#include <string.h>

/* Destroyed through two pointers, as by a caller who got the context from a tape: the rest belongs to the tapes. */
static bool outlives_two_calls(struct world *w)
{
    rw_context *one = w->ctx, *two = rw_tape_context(w->t);
    float x[6];
    rw_context_destroy(&one);
    rw_context_destroy(&two);
    if (one || two || rw_read(w->t, w->v, x, sizeof x)) return false;
    rw_optimizer_destroy(&w->opt);
    rw_tape_destroy(&w->other);
    const bool reads = !rw_read(w->t, w->v, x, sizeof x);
    rw_tape_destroy(&w->t);
    w->ctx = NULL;
    return reads;
}

/* Whether `why` has the reason for which a device is not usable, and the message has it too, without `why` as well. */
static bool says_why_not(rw_device device)
{
    char why[RW_MESSAGE_MAX] = "x", little[2] = { 'x', 'x' };
    const rw_status status = rw_device_check(device, why, sizeof why);
    if (!status || !*why || !strcmp(why, rw_status_name(status)) || !strstr(rw_error_message(NULL), why)) return false;
    rw_error_clear(NULL);
    if (rw_device_check(device, NULL, 0) != status || !strstr(rw_error_message(NULL), why)) return false;
    rw_error_clear(NULL);
    if (rw_device_check(device, little, 1) != status || *little || little[1] != 'x') return false;
    return strstr(rw_error_message(NULL), why);
}

/* A device of this build is usable, or a reason is given. */
static bool is_usable_or_says_why_not(rw_device device)
{
    char why[8] = "x";
    return rw_device_check(device, why, sizeof why) ? says_why_not(device) : !*why;
}

/* Invalid calls on contexts, errors and the generator. */
static void contexts(struct trial *m, struct world *w)
{
    rw_context *const ctx = w->ctx, **const out = (rw_context **)(void *)w->out;
    rw_context *none = NULL;
    char *const text = (char *)w->out, why[8];
    SILENT("rw_context_create", RW_ERR_ARGUMENT, rw_context_create(NULL, NULL));
    SILENT("rw_context_create", RW_ERR_ARGUMENT,
           rw_context_create(out, &(rw_context_params){ .device = RW_DEVICE_COUNT }));
    SILENT("rw_context_create", RW_ERR_ARGUMENT,
           rw_context_create(out, &(rw_context_params){ .device = (rw_device)-1 }));
    SILENT("rw_context_create", RW_ERR_ARGUMENT, rw_context_create(out, &(rw_context_params){ .threads = -1 }));
    SILENT("rw_device_check", RW_ERR_ARGUMENT, rw_device_check(RW_DEVICE_CPU, NULL, 100));
    SILENT("rw_device_check", RW_ERR_ARGUMENT, rw_device_check(RW_DEVICE_CUDA, NULL, 100));
    SILENT("rw_device_check", RW_ERR_ARGUMENT, rw_device_check((rw_device)44, text, 0));
    SILENT("rw_device_check", RW_ERR_ARGUMENT, rw_device_check(RW_DEVICE_COUNT, why, sizeof why));
    ALLOWED("rw_device_check", rw_device_check(RW_DEVICE_CPU, NULL, 0) == RW_OK);
    ALLOWED("rw_device_check", says_why_not(RW_DEVICE_COUNT) && says_why_not((rw_device)-1));
    ALLOWED("rw_device_check", is_usable_or_says_why_not(RW_DEVICE_CUDA) && is_usable_or_says_why_not(RW_DEVICE_CPU));
    ALLOWED("rw_context_destroy", (rw_context_destroy(NULL), rw_context_destroy(&none), none == NULL));
    ALLOWED("rw_context_destroy", outlives_two_calls(w));
    ALLOWED("rw_context_device", rw_context_device(NULL) == RW_DEVICE_AUTO);
    ALLOWED("rw_context_stream", rw_context_stream(NULL) == NULL);
    ALLOWED("rw_context_threads", rw_context_threads(NULL) == 0);
    SILENT("rw_context_set_offload", RW_ERR_ARGUMENT, rw_context_set_offload(NULL, NULL));
    STATUS("rw_context_set_offload", RW_ERR_ARGUMENT,
           rw_context_set_offload(ctx, &(rw_offload){ .in_bytes_per_s = -1 }));
    STATUS("rw_context_set_offload", RW_ERR_ARGUMENT,
           rw_context_set_offload(ctx, &(rw_offload){ .out_bytes_per_s = 1e-300 }));
    STATUS("rw_context_set_offload", RW_ERR_ARGUMENT,
           rw_context_set_offload(ctx, &(rw_offload){ .out_bytes_per_s = INFINITY }));
    STATUS("rw_context_set_offload", RW_ERR_ARGUMENT,
           rw_context_set_offload(ctx, &(rw_offload){ .in_bytes_per_s = NAN }));
    STATUS("rw_context_set_offload", RW_ERR_IO,
           rw_context_set_offload(ctx, &(rw_offload){ .path = "/no/such/folder" }));
    SILENT("rw_context_set_threads", RW_ERR_ARGUMENT, rw_context_set_threads(NULL, 1));
    STATUS("rw_context_set_threads", RW_ERR_ARGUMENT, rw_context_set_threads(ctx, 0));
    STATUS("rw_context_set_threads", RW_ERR_ARGUMENT, rw_context_set_threads(ctx, INT32_MIN));
    ALLOWED("rw_generator_get", rw_generator_get(NULL).seed == 0 && rw_generator_get(NULL).offset == 0);
    ALLOWED("rw_generator_set", (rw_generator_set(NULL, (rw_generator_state){ 1, 1 }), true));
    ALLOWED("rw_error_message", !*rw_error_message(NULL) && rw_error_status(NULL) == RW_OK);
    ALLOWED("rw_error_clear", (rw_error_clear(NULL), true));
    ALLOWED("rw_status_name",
            !strcmp(rw_status_name((rw_status)99), "unknown status") && rw_status_name((rw_status)-1));
    ALLOWED("rw_dtype_size", !rw_dtype_size((rw_dtype)99) && !rw_dtype_size((rw_dtype)-1));
    ALLOWED("rw_dtype_name", !strcmp(rw_dtype_name((rw_dtype)99), "?") && !strcmp(rw_device_name((rw_device)9), "?"));
    ALLOWED("rw_dtype_is_float", !rw_dtype_is_float((rw_dtype)99) && !rw_dtype_is_float((rw_dtype)-1));
    ALLOWED("rw_shape_numel", rw_shape_numel((rw_shape){ .rank = -5 }) == 1);
    ALLOWED("rw_shape_numel", rw_shape_numel((rw_shape){ .rank = 100 }) == 0);
    ALLOWED("rw_shape_equal", !rw_shape_equal((rw_shape){ .rank = 100 }, (rw_shape){ .rank = 0 }));
    ALLOWED("rw_shape_equal", rw_shape_equal((rw_shape){ .rank = 100 }, (rw_shape){ .rank = 100 }));
    ALLOWED("rw_shape_numel", rw_shape_numel(RW_SHAPE(INT64_MAX, INT64_MAX)) == INT64_MAX);
}

/* Invalid calls of memory statistics and costs. */
static void memory(struct trial *m, struct world *w)
{
    rw_memory *const stats = (rw_memory *)(void *)w->out;
    rw_float8_products *const products = (rw_float8_products *)(void *)w->out;
    rw_cost *const cost = (rw_cost *)(void *)w->out;
    double *const ms = (double *)(void *)w->out;
    SILENT("rw_memory_stats", RW_ERR_ARGUMENT, rw_memory_stats(NULL, stats));
    STATUS("rw_memory_stats", RW_ERR_ARGUMENT, rw_memory_stats(w->ctx, NULL));
    SILENT("rw_float8_product_stats", RW_ERR_ARGUMENT, rw_float8_product_stats(NULL, products));
    STATUS("rw_float8_product_stats", RW_ERR_ARGUMENT, rw_float8_product_stats(w->ctx, NULL));
    SILENT("rw_tape_cost", RW_ERR_ARGUMENT, rw_tape_cost(NULL, w->loss, cost));
    STATUS("rw_tape_cost", RW_ERR_ARGUMENT, rw_tape_cost(w->t, w->loss, NULL));
    STATUS("rw_tape_cost", RW_ERR_ARGUMENT, rw_tape_cost(w->t, NULL, cost));
    STATUS("rw_tape_cost", RW_ERR_ARGUMENT, rw_tape_cost(w->t, w->dead, cost));
    STATUS("rw_tape_cost", RW_ERR_SHAPE, rw_tape_cost(w->t, w->v, cost));
    SILENT("rw_timer_begin", RW_ERR_ARGUMENT, rw_timer_begin(NULL));
    SILENT("rw_timer_end", RW_ERR_ARGUMENT, rw_timer_end(NULL, ms));
    STATUS("rw_timer_end", RW_ERR_ARGUMENT, rw_timer_end(w->ctx, ms));
    STATUS("rw_timer_end", RW_ERR_ARGUMENT, rw_timer_end(w->ctx, NULL));
    STATUS_OF("rw_timer_end", RW_ERR_ARGUMENT, rw_timer_begin(w->ctx), rw_timer_end(w->ctx, NULL));
}

void mistakes_with_contexts(struct trial *m, struct world *w)
{
    contexts(m, w);
    memory(m, w);
}
