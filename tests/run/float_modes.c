/*
 * A caller's thread may round as it likes, and change that between forward and backward: bytes are those of a thread
 * that rounds as C begins, with replays and without, for every number of threads. The caller's mode is its own
 * afterwards.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLUSH 0x8040u /* to zero, what is read and what is made */
#else
#define FLUSH 0u
#endif

enum { ROWS = 33, WIDTH = 128, LAYERS = 3, MODES = 4 };

/* 0: as C begins. */
static void set_mode(int mode)
{
    static const int rounding[MODES] = { FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST };
    fesetenv(FE_DFL_ENV);
    fesetround(rounding[mode]);
#if defined(__x86_64__)
    if (mode == 3) _mm_setcsr(_mm_getcsr() | FLUSH);
#endif
}

static bool is_mode(int mode)
{
    static const int rounding[MODES] = { FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST };
#if defined(__x86_64__)
    if ((_mm_getcsr() & FLUSH) != (mode == 3 ? FLUSH : 0)) return false;
#endif
    return fegetround() == rounding[mode];
}

/* Its numbers pass through 2^-140, which is zero where small numbers are. */
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

/* They have the mode of the thread that started them. */
Test(float_modes, of_threads_that_began_in_another)
{
    set_mode(3);
    const double got = run("full", 3, 3, 3);
    memcpy(wanted, gradients, sizeof wanted);
    cr_expect_eq(got, run("none", 1, 0, 0));
    cr_expect(!memcmp(gradients, wanted, sizeof wanted));
}
