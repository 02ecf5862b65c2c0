/*
 * A caller's thread may use any rounding mode, and change it between forward and backward: the bytes are those of a
 * thread with C's default mode, with replays and without, for every number of threads. The caller's mode is unchanged
 * afterwards.
 */
#include "support/mode_register.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 33, WIDTH = 128, LAYERS = 3, MODES = 4 };

/* 0: the default of C. */
static void set_mode(int mode)
{
    static const int rounding[MODES] = { FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST };
    mode_reset();
    fesetround(rounding[mode]);
    if (mode == 3) mode_register_add(MODE_REGISTER_FLUSH);
}

static bool is_mode(int mode)
{
    static const int rounding[MODES] = { FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST };
    if ((mode_register() & MODE_REGISTER_FLUSH) != (mode == 3 ? MODE_REGISTER_FLUSH : 0)) return false;
    return fegetround() == rounding[mode];
}

/* Its values pass through 2^-140, which is zero if subnormal numbers are flushed. */
static rw_tensor *record(struct fixture *b)
{
    rw_tensor *x = rw_randn(b->t, RW_F32, RW_SHAPE(ROWS, WIDTH));
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_tensor *const w = rw_param_find(b->ctx, name);
        ckpt_begin(b->t, "layer");
        rw_tensor *y = rw_gelu(b->t, rw_linear(b->t, x, w, RW_NONE));
        for (int k = 0; k < 4; k++) y = rw_scale(b->t, y, k < 2 ? 0x1p-70 : 0x1p+70);
        x = rw_add(b->t, x, rw_dropout(b->t, rw_softmax(b->t, y, -1), 0.1));
        ckpt_end(b->t);
    }
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

static float gradients[LAYERS][WIDTH * WIDTH], wanted[LAYERS][WIDTH * WIDTH];

/* A step whose forward and backward run in two modes: stores the gradients and returns the loss. */
static double run(const char *policy, int threads, int forward, int backward)
{
    struct fixture b = fixture_open(7, threads);
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_init_normal(rw_param(b.ctx, name, RW_F32, RW_SHAPE(WIDTH, WIDTH)), 0, 0.2);
    }
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const loss = record(&b);
    set_mode(forward);
    const double value = rw_item(b.t, loss);
    cr_expect(is_mode(forward), "mode %d is not the caller's any more", forward);
    set_mode(backward);
    const rw_status status = rw_backward(b.t, loss);
    cr_expect(is_mode(backward), "mode %d is not the caller's any more", backward);
    set_mode(0);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_read(b.t, rw_gradient(rw_param_find(b.ctx, name)), gradients[i], sizeof gradients[i]);
    }
    fixture_close(&b);
    return value;
}

Test(float_modes, of_a_caller_change_no_byte)
{
    static const char *const policies[] = { "none", "full", "uniform:2" };
    const double want = run("none", 1, 0, 0);
    cr_assert(isfinite(want));
    memcpy(wanted, gradients, sizeof wanted);
    for (int p = 0; p < 3; p++)
        for (int threads = 1; threads <= 3; threads += 2)
            for (int mode = 0; mode < MODES * MODES; mode++) {
                cr_expect_eq(run(policies[p], threads, mode % MODES, mode / MODES), want);
                cr_expect(!memcmp(gradients, wanted, sizeof wanted), "%s, %d threads, modes %d and %d", policies[p],
                          threads, mode % MODES, mode / MODES);
            }
}

/* Threads inherit the mode of the thread that starts them. */
Test(float_modes, of_threads_that_began_in_another)
{
    set_mode(3);
    const double got = run("full", 3, 3, 3);
    memcpy(wanted, gradients, sizeof wanted);
    cr_expect_eq(got, run("none", 1, 0, 0));
    cr_expect(!memcmp(gradients, wanted, sizeof wanted));
}

/* ---- workers ---- */

/* A step of two threads in a context whose workers were started while the caller had that mode, optionally with
   unmasked exceptions. */
static double step_after_start_in(int mode, bool unmasked, float *gradient)
{
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(256, 256));
    cr_assert_eq(rw_init_normal(w, 0, 0.1), RW_OK);
    set_mode(mode);
    if (unmasked) feenableexcept(FE_ALL_EXCEPT);
    const rw_status status = rw_context_set_threads(b.ctx, 4);
    fedisableexcept(FE_ALL_EXCEPT);
    set_mode(0);
    cr_assert_eq(status, RW_OK);
    rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(256, 256));
    for (int i = 0; i < 3; i++) x = rw_gelu(b.t, rw_linear(b.t, x, w, RW_NONE));
    rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    const double value = rw_item(b.t, loss);
    cr_assert_eq(rw_read(b.t, rw_gradient(w), gradient, 256 * 256 * sizeof *gradient), RW_OK);
    fixture_close(&b);
    return value;
}

Test(float_modes, workers_forget_the_mode_that_they_were_started_in, .timeout = 60)
{
    static float want[256 * 256], got[256 * 256];
    const double loss = step_after_start_in(0, false, want);
    for (int i = 1; i < 2 * MODES; i++) {
        const pid_t child = fork(); /* whose workers are started again */
        if (!child) {
            const double other = step_after_start_in(i % MODES, i >= MODES, got);
            _exit(other == loss && !memcmp(got, want, sizeof got) ? 0 : 1);
        }
        int how = 1;
        cr_assert_eq(waitpid(child, &how, 0), child);
        cr_expect_eq(how, 0, "mode %d, exceptions %smasked: %d", i % MODES, i < MODES ? "" : "not ", how);
    }
}

/* Products of bfloat16 by code for AVX2 have fewer tiles than threads first, then enough for all, in a caller that
   flushes to zero. If a worker's exceptions were not masked, the process would end. */
Test(float_modes, a_step_of_fewer_threads_masks_no_less, .timeout = 60)
{
    setenv("REWIND_ISA", "v3", 1);
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    set_mode(3);
    struct fixture b = fixture_open(1, 4);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(64, 256)), *const v = rw_param(b.ctx, "v", RW_BF16,
                                                                                               RW_SHAPE(256, 128));
    cr_assert_eq(rw_init_normal(w, 0, 0.1), RW_OK);
    cr_assert_eq(rw_init_normal(v, 0, 0.1), RW_OK);
    for (int i = 0; i < 3; i++) {
        rw_tensor *const y = rw_gelu(b.t, rw_matmul(b.t, w, v));
        cr_assert_eq(rw_backward(b.t, rw_mean(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
    cr_expect_eq(rw_init_normal(rw_param(b.ctx, "big", RW_F32, RW_SHAPE(1 << 20)), 0, 0.1), RW_OK);
    cr_expect(is_mode(3));
    set_mode(0);
    fixture_close(&b);
}
