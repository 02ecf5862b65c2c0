/* In the test build a device's memory is protected from its exact end on: the arena of a step, to the unit. */
#include "support/support.h"

#include "base/alloc.h"
#include "run/run_state.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* AddressSanitizer guards allocations itself, and would report the accesses that these tests make on purpose. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define NEEDS_PAGES() cr_skip_test("AddressSanitizer guards allocations by itself")
#define HIDE_REPORTS() __sanitizer_set_report_fd((void *)(intptr_t)open("/dev/null", O_WRONLY))
#else
#define NEEDS_PAGES() (void)0
#define HIDE_REPORTS() (void)0
#endif

/* Runs it in a process of its own. True if that completed. */
static bool survives(void (*act)(char *p), char *p)
{
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        HIDE_REPORTS();
        act(p);
        _exit(0);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void write_here(char *p)
{
    *(volatile char *)p = 1;
}

static void read_here(char *p)
{
    (void)*(volatile char *)p;
}

Test(guarded, memory_ends_at_a_protected_page)
{
    NEEDS_PAGES();
    static const size_t sizes[] = { 256, 1024, 4096, 12288 + 256, 1 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *const p = rw_malloc_aligned(sizes[i], 256);
        cr_assert_eq((uintptr_t)p % 256, 0);
        cr_assert(survives(write_here, p) && survives(write_here, p + sizes[i] - 1));
        cr_assert_not(survives(write_here, p + sizes[i]), "%zu bytes", sizes[i]);
        cr_assert_not(survives(read_here, p + sizes[i]), "%zu bytes", sizes[i]);
        rw_free_aligned(p);
    }
}

/* An op that touches the byte after the arena of its step, or the last one in it. */
static size_t after;
static char *arena;

static rw_status reach_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status reach_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = x[i];
    if (arena) write_here(arena + after);
    return RW_OK;
}

static const rw_op_def reach = { .name = "reach", .n_inputs = 1, .n_outputs = 1, .check = reach_check,
                                 .kernel = { [RW_DEVICE_CPU] = reach_kernel } };

/* Runs two steps, whose op then touches the byte after the arena, or with `ignored` the last one in it. */
static void run_step(char *ignored)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_tanh(b.t, rw_randn(b.t, RW_F32, RW_SHAPE(300)));
    rw_tensor *const y = rw_tanh(b.t, rw_apply(b.t, &reach, (rw_tensor *[]){ x }, 1, NULL, 0, NULL));
    float got[300];
    rw_memory m;
    cr_assert_eq(rw_read(b.t, y, got, sizeof got), RW_OK);
    rw_memory_stats(b.ctx, &m);
    arena = (char *)rw_pool_of(b.ctx)->arenas.first->data;
    cr_assert_eq(m.measured_peak, m.predicted_peak);
    after = m.predicted_peak - !!ignored;
    rw_tape_reset(b.t);
    rw_tensor *const z = rw_tanh(b.t, rw_randn(b.t, RW_F32, RW_SHAPE(300)));
    rw_tensor *const u = rw_tanh(b.t, rw_apply(b.t, &reach, (rw_tensor *[]){ z }, 1, NULL, 0, NULL));
    rw_read(b.t, u, got, sizeof got);
    fixture_close(&b);
}

Test(guarded, a_step_that_used_a_byte_more_than_its_peak_would_not_end)
{
    NEEDS_PAGES();
    char inside;
    cr_assert(survives(run_step, &inside));
    cr_assert_not(survives(run_step, NULL));
}

/* ---- with AddressSanitizer, inside the arena ---- */

#ifdef __SANITIZE_ADDRESS__
static const float *left;

static rw_status trespass_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    const int64_t n = k->out[0].layout->numel;
    for (int64_t i = 0; i < n; i++) ((float *)k->out[0].data)[i] = x[i];
    if (after == 1) write_here((char *)k->out[0].data + n * (int64_t)sizeof(float));
    if (after == 2 && n == 1) read_here((char *)(uintptr_t)left);
    if (after == 3) read_here((char *)(uintptr_t)(x + n));
    if (n > 1) left = x + n / 2; /* where no small buffer is placed later */
    return RW_OK;
}

static const rw_op_def trespass = { .name = "trespass", .n_inputs = 1, .n_outputs = 1, .check = reach_check,
                                    .kernel = { [RW_DEVICE_CPU] = trespass_kernel } };

static void run_trespass(char *what)
{
    struct fixture b = fixture_open(1, 1);
    after = (size_t)(what - (char *)NULL);
    for (int step = 0; step < 2; step++) {
        rw_tensor *x = rw_scale(b.t, rw_randn(b.t, RW_F32, RW_SHAPE(4001)), 2);
        x = rw_sum(b.t, rw_apply(b.t, &trespass, &x, 1, NULL, 0, NULL), RW_ALL_AXES, false);
        for (int i = 0; i < 3; i++) x = rw_scale(b.t, rw_apply(b.t, &trespass, &x, 1, NULL, 0, NULL), 3);
        cr_assert(isfinite(rw_item(b.t, x)));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* 4001 floats end in the middle of a unit of the arena: the bytes after them belong to no buffer. */
Test(guarded, a_byte_after_an_output_and_released_memory_are_poisoned)
{
    cr_assert(survives(run_trespass, NULL), "nothing is wrong");
    cr_assert_not(survives(run_trespass, (char *)NULL + 1), "a byte after the output");
    cr_assert_not(survives(run_trespass, (char *)NULL + 2), "a byte of a dead buffer");
    cr_assert_not(survives(run_trespass, (char *)NULL + 3), "a byte after the input");
}
#endif
