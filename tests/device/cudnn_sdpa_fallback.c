/*
 * Attention with REWIND_SDPA=cudnn when the library has no engine, like the simulated one: the library's own kernels
 * compute the same bytes, and each signature is queried once. A library that cannot be loaded for lack of memory is not
 * treated as missing: the step reports it, and the next one tries again.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <cudasim.h>
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

struct world {
    struct fixture b;
    rw_tensor *qkv[3];
};

static double number(int64_t i)
{
    return (double)(i * 7919 % 1009 % 127 - 63) / 64;
}

static void open_context(struct world *o, const char *choice)
{
    static const char *const names[] = { "q", "k", "v" };
    if (choice) setenv("REWIND_SDPA", choice, 1);
    else unsetenv("REWIND_SDPA");
    *o = (struct world){ 0 };
    cr_assert_eq(rw_context_create(&o->b.ctx, &(rw_context_params){ .device = RW_DEVICE_CUDA, .seed = 3 }), RW_OK);
    cr_assert_eq(rw_tape_create(&o->b.t, o->b.ctx), RW_OK);
    unsetenv("REWIND_SDPA"); /* it is read when the context is created */
    for (int i = 0; i < 3; i++) {
        o->qkv[i] = rw_param(o->b.ctx, names[i], RW_BF16, RW_SHAPE(2, 2, 24, 64));
        cr_assert(tensor_fill(o->qkv[i], number));
    }
}

static rw_status try_step(struct world *o)
{
    rw_error_clear(o->b.ctx);
    rw_tape_reset(o->b.t);
    rw_zero_grad(o->b.ctx);
    const rw_attention_params params = { .scale = 0.125, .causal = true };
    ckpt_begin(o->b.t, "core_attn");
    rw_tensor *const y = rw_attention(o->b.t, o->qkv[0], o->qkv[1], o->qkv[2], &params);
    ckpt_end(o->b.t);
    return rw_backward(o->b.t, rw_sum(o->b.t, rw_mul(o->b.t, y, y), RW_ALL_AXES, false));
}

/* All gradients. The caller frees. */
static unsigned char *step(struct world *o, size_t *ret_bytes)
{
    cr_assert_eq(try_step(o), RW_OK, "%s", rw_error_message(o->b.ctx));
    return all_gradients(o->b.ctx, ret_bytes);
}

static unsigned char *of_our_kernels(size_t *ret_bytes)
{
    struct world o;
    open_context(&o, NULL);
    unsigned char *const all = step(&o, ret_bytes);
    fixture_close(&o.b);
    return all;
}

Test(cudnn_sdpa_fallback, without_an_engine_is_by_kernels_of_our_own)
{
    struct world o;
    size_t bytes;
    unsigned char *const expected = of_our_kernels(&bytes);
    const long opened = cudasim_calls("cudnnCreate");
    open_context(&o, "cudnn");
    for (int i = 0; i < 3; i++) {
        static const char *const policies[] = { "none", "full", "uniform:2" }; /* a plan of its own for each */
        const long asked = cudasim_calls("cudnnBackendCreateDescriptor");
        cr_assert_eq(ckpt_set_policy(o.b.t, policies[i]), RW_OK);
        unsigned char *const got = step(&o, &bytes);
        cr_expect_eq(first_difference(expected, got, bytes), -1);
        cr_expect_str_eq(rw_error_message(o.b.ctx), "");
        cr_expect(i ? cudasim_calls("cudnnBackendCreateDescriptor") == asked
                    : cudasim_calls("cudnnBackendCreateDescriptor") > asked, "step %d", i);
        free(got);
    }
    cr_expect_eq(cudasim_calls("cudnnCreate"), opened + 1);
    fixture_close(&o.b);
    cr_expect_eq(cudasim_live_allocations(), 0);
    free(expected);
}

Test(cudnn_sdpa_fallback, is_opened_when_the_context_is_created)
{
    struct world o;
    size_t bytes;
    const long opened = cudasim_calls("cudnnCreate");
    open_context(&o, NULL);
    setenv("REWIND_SDPA", "cudnn", 1);
    free(step(&o, &bytes));
    cr_expect_eq(cudasim_calls("cudnnCreate"), opened);
    fixture_close(&o.b);
}

Test(cudnn_sdpa_fallback, a_lack_of_memory_decides_nothing)
{
    static const char *const functions[] = { "cudnnCreate", "cudnnBackendCreateDescriptor",
                                             "cudnnBackendSetAttribute" };
    size_t bytes;
    unsigned char *const expected = of_our_kernels(&bytes);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        struct world o;
        open_context(&o, "cudnn");
        cudasim_fail_call(functions[i], 1, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
        cr_expect_eq(try_step(&o), RW_ERR_MEMORY, "%s", functions[i]);
        cr_expect_gt(strlen(rw_error_message(o.b.ctx)), 0, "%s: no message", functions[i]);
        cudasim_clear_faults();
        const long asked = cudasim_calls("cudnnBackendCreateDescriptor");
        unsigned char *const got = step(&o, &bytes);
        cr_expect_gt(cudasim_calls("cudnnBackendCreateDescriptor"), asked, "%s: not queried again", functions[i]);
        cr_expect_eq(first_difference(expected, got, bytes), -1, "%s", functions[i]);
        free(got);
        fixture_close(&o.b);
        cr_expect_eq(cudasim_live_allocations(), 0, "%s: leaked", functions[i]);
    }
    free(expected);
}
