/*
 * Resident memory of a training loop with ever new shapes. After the first quarter every table is full, and memory
 * stays constant.
 *
 *   dynamic_shapes_memory [STEPS [SHAPES]]     [100,000 steps of 10,000 distinct shapes]
 */
#include "figure.h"

#include <rewind/rewind.h>

#include <math.h>
#include <unistd.h>

static double resident_mb(void)
{
    long all = 0, pages = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return 1e-6 * (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* One product and its backward: two products more. Every shape has primitives of its own. */
static rw_status step(rw_tape *t, int64_t shape)
{
    rw_tensor *const x = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(17 + shape % 100, 33 + shape / 100), NULL, 0));
    rw_tensor *const w = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(33 + shape / 100, 64), NULL, 0));
    const rw_status status = rw_backward(t, rw_sum(t, rw_matmul(t, x, w), RW_ALL_AXES, false));
    rw_tape_reset(t);
    return status;
}

int main(int argc, char **argv)
{
    const long steps = argc > 1 ? figure_integer(argv[1], 8, 1 << 30) : 100000;
    const long shapes = argc > 2 ? figure_integer(argv[2], 1, 1 << 30) : 10000;
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .threads = 1 }) ||
        rw_tape_create(&t, ctx)) {
        fprintf(stderr, "dynamic_shapes_memory: %s\n", rw_error_message(ctx));
        return 1;
    }
    double filled = 0, most = 0;
    for (long i = 0; i < steps; i++) {
        if (step(t, i * 7919 % shapes)) { /* a prime: consecutive shapes are far from each other */
            fprintf(stderr, "%s\n", rw_error_message(ctx));
            return 1;
        }
        if (i == steps / 4) filled = resident_mb();
        if (i > steps / 4 && (i % 256 == 0 || i == steps - 1) && resident_mb() > most) most = resident_mb();
        if (i % (steps / 8) == 0) fprintf(stderr, "step %ld: %.1f MB\n", i, resident_mb());
    }
    rw_memory m;
    rw_memory_stats(ctx, &m);
    fprintf(stderr, "library %.1f MB, tables %.1f MB, plans %.1f MB\n", 1e-6 * (double)m.library,
            1e-6 * (double)m.tables, 1e-6 * (double)m.plans);
    char name[128];
    snprintf(name, sizeof name, "resident memory over %ld steps of %ld shapes (%.1f MB), most over that of a quarter",
             steps, shapes, most);
    figure(name, most > 0 ? most / filled : INFINITY, "times", 1.02);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return answer_end("dynamic_shapes_memory", 0);
}
