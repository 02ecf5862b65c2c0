/*
 * Sums over segments of different lengths, as in graph networks and for sparse features: segment i is the rows
 * offset[i] .. offset[i+1] of x, and y[i] is the weighted sum of its rows. rw_embedding_bag_with() takes the segments
 * as offsets; gradients flow to x and the weights.
 *
 *   segment_sums [--quick]
 *
 * PyTorch: torch.segment_reduce(x, "sum", offsets=...), torch_scatter's segment_csr(), DGL's copy_u/sum.
 */
#include <rewind/rewind.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 7, WIDTH = 3, SEGMENTS = 4 };

/* Segments of 2, 0, 4 and 1 rows. */
static const int32_t offset[SEGMENTS + 1] = { 0, 2, 2, 6, 7 };
static const float weight[ROWS] = { 1, -1, 0.5f, 2, 1, 3, -2 };

static int fail(rw_context *ctx)
{
    fprintf(stderr, "segment_sums: %s\n", rw_error_message(ctx));
    return 1;
}

/* The same with loops: y, and the gradients of sum(y * y) / 2. */
static void by_loops(const float *x, double *y, double *dx, double *dw)
{
    memset(dw, 0, ROWS * sizeof *dw);
    for (int s = 0; s < SEGMENTS; s++)
        for (int c = 0; c < WIDTH; c++) {
            y[s * WIDTH + c] = 0;
            for (int r = offset[s]; r < offset[s + 1]; r++)
                y[s * WIDTH + c] += (double)weight[r] * (double)x[r * WIDTH + c];
            for (int r = offset[s]; r < offset[s + 1]; r++) {
                dx[r * WIDTH + c] = (double)weight[r] * y[s * WIDTH + c];
                dw[r] += (double)x[r * WIDTH + c] * y[s * WIDTH + c];
            }
        }
}

static bool close(const char *name, const float *got, const double *want, int n)
{
    for (int i = 0; i < n; i++)
        if (fabs((double)got[i] - want[i]) > 1e-5 * (1 + fabs(want[i]))) {
            fprintf(stderr, "segment_sums: %s[%d]: expected %g, got %g\n", name, i, want[i], (double)got[i]);
            return false;
        }
    return true;
}

int main(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    float x[ROWS * WIDTH], y[SEGMENTS * WIDTH], dx[ROWS * WIDTH], dw[ROWS];
    double want_y[SEGMENTS * WIDTH], want_dx[ROWS * WIDTH], want_dw[ROWS];
    int32_t rows[ROWS];
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)sin(i + 1.0);
    for (int i = 0; i < ROWS; i++) rows[i] = i; /* every row once, in order: any gather is possible, too */
    if (rw_context_create(&ctx, NULL) || rw_tape_create(&t, ctx)) return fail(ctx);

    rw_tensor *const table = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(ROWS, WIDTH), x, sizeof x));
    rw_tensor *const weights = rw_require_grad(t, rw_input(t, RW_F32, RW_SHAPE(ROWS), weight, sizeof weight));
    rw_tensor *const sums = rw_embedding_bag_with(t, table, rw_input(t, RW_I32, RW_SHAPE(ROWS), rows, sizeof rows),
        &(rw_embedding_bag_params){ .mode = RW_BAG_SUM, .weights = weights, .ends = true,
                                    .offsets = rw_input(t, RW_I32, RW_SHAPE(SEGMENTS + 1), offset, sizeof offset) });
    rw_tensor *const loss = rw_scale(t, rw_sum(t, rw_mul(t, sums, sums), RW_ALL_AXES, false), 0.5);
    if (rw_backward(t, loss) || rw_read(t, sums, y, sizeof y) || rw_read(t, rw_gradient(table), dx, sizeof dx) ||
        rw_read(t, rw_gradient(weights), dw, sizeof dw))
        return fail(ctx);

    by_loops(x, want_y, want_dx, want_dw);
    const bool ok = close("y", y, want_y, SEGMENTS * WIDTH) && close("dx", dx, want_dx, ROWS * WIDTH) &&
                    close("dw", dw, want_dw, ROWS);
    for (int s = 0; s < SEGMENTS; s++)
        printf("rows %d to %d: %8.4f %8.4f %8.4f\n", offset[s], offset[s + 1], (double)y[s * WIDTH],
               (double)y[s * WIDTH + 1], (double)y[s * WIDTH + 2]);
    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return ok ? 0 : 1;
}
