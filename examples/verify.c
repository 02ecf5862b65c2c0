/* Verifies on a model that recompute changes no bit, and prints which values a plan keeps and replays. */
#include <rewind/rewind.h>

#include <stdio.h>

int main(void)
{
    rw_context *ctx = NULL;
    rw_tape *t = NULL;
    if (rw_context_create(&ctx, &(rw_context_params){ .seed = 1 }) || rw_tape_create(&t, ctx)) {
        fprintf(stderr, "verify: %s\n", rw_error_message(ctx));
        rw_context_destroy(&ctx);
        return 1;
    }
    rw_tensor *const w = rw_param(ctx, "w", RW_F32, RW_SHAPE(256, 256));
    rw_init_normal(w, 0, 0.06);
    ckpt_set_policy(t, "full");

    rw_tensor *x = rw_randn(t, RW_F32, RW_SHAPE(64, 256));
    for (int l = 0; l < 3; l++) {
        ckpt_begin(t, "block");
        x = rw_add(t, x, rw_dropout(t, rw_gelu(t, rw_linear(t, x, w, RW_NONE)), 0.1f));
        ckpt_end(t);
    }
    rw_tensor *const loss = rw_mean_all(t, rw_mul(t, x, x));

    ckpt_explain(t, stdout);
    ckpt_report report;
    const rw_status status = ckpt_verify(t, loss, &report);
    if (status == RW_OK || status == RW_ERR_MISMATCH) ckpt_report_print(&report, stdout);
    else fprintf(stderr, "%s\n", rw_error_message(ctx));

    rw_tape_destroy(&t);
    rw_context_destroy(&ctx);
    return status != RW_OK || fflush(stdout) || ferror(stdout);
}
