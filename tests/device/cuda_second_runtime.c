/*
 * An op from a shared object with a CUDA runtime of its own, such as examples/custom_op_cuda.cu linked with a static
 * libcudart. The library clears the last error of its own runtime; an op that leaves an error in its own runtime finds
 * it at its next launch.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <cuda_runtime.h>
#include <cudasim.h>
#include <dlfcn.h>
#include <string.h>

enum { N = 4 };

static const rw_op_def *op_of(const char *path)
{
    void *const object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(object, "%s", dlerror());
    const rw_op_def *(*example_op)(void);
    *(void **)&example_op = dlsym(object, "example_op");
    cr_assert(example_op, "%s", dlerror());
    return example_op();
}

/* The cubes of four numbers; the launch is refused, or not. */
static rw_status cube(struct fixture *b, const rw_op_def *op, bool refused)
{
    const float numbers[N] = { 1, 2, 3, -4 };
    float y[N] = { 0 };
    rw_tape_reset(b->t);
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(N), numbers, sizeof numbers);
    rw_tensor *const cubes = rw_apply(b->t, op, (rw_tensor *[]){ x }, 1, NULL, 0, NULL);
    if (refused) cudasim_fail_call("launch", 1, cudaErrorLaunchOutOfResources);
    const rw_status status = rw_read(b->t, cubes, y, sizeof y);
    cudasim_clear_faults();
    for (int i = 0; !status && i < N; i++) cr_assert_eq(y[i], numbers[i] * numbers[i] * numbers[i]);
    rw_error_clear(b->ctx);
    return status;
}

/* A step that works, one whose launch is refused, and two without refusal. `later`: the status of these. */
static void check(const char *path, rw_status later)
{
    struct fixture b = fixture_open(1, 1);
    const rw_op_def *const op = op_of(path);
    const rw_status expected[] = { RW_OK, RW_ERR_DEVICE, later, later };
    for (int step = 0; step < 4; step++)
        cr_expect_eq(cube(&b, op, step == 1), expected[step], "step %d", step);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "of the program's runtime");
    fixture_close(&b);
}

/* The unmodified op clears its error. */
Test(cuda_second_runtime, an_op_that_clears_its_error_goes_on)
{
    check(REWIND_EXAMPLE_OP, RW_OK);
}

/* With cudaPeekAtLastError() instead: no other code can clear that error. */
Test(cuda_second_runtime, an_error_left_in_a_runtime_of_its_own_fails_each_later_step)
{
    check(REWIND_OP_THAT_PEEKS, RW_ERR_DEVICE);
}

/* The same mistake in the library's runtime, whose last error is cleared when a step begins. */
Test(cuda_second_runtime, in_the_librarys_runtime_it_is_cleared_when_a_step_begins)
{
    check(REWIND_SHARED_OP_THAT_PEEKS, RW_OK);
}
