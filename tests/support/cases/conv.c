/* Cases of convolutions: strides, padding, dilation, groups, depthwise, one pixel, and sums of every length. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Appends the cases of convolutions. */
void op_cases_conv(void)
{
    static const struct {
        int64_t n, c, h, w, oc, kh, kw, stride, padding, dilation, groups;
        enum op_layout layout;
        bool large;
    } all[] = {
        { 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, OP_DENSE, false },
        { 2, 3, 7, 6, 5, 3, 3, 1, 1, 1, 1, OP_DENSE, false },
        { 2, 3, 8, 7, 4, 3, 2, 2, 1, 1, 1, OP_TURNED, false },
        { 1, 4, 9, 9, 6, 3, 3, 1, 2, 2, 2, OP_MIDDLE, false },
        { 3, 5, 4, 4, 7, 1, 1, 1, 0, 1, 1, OP_SLICED, false },
        { 2, 4, 5, 5, 6, 1, 1, 2, 0, 1, 1, OP_CUT, false },
        { 2, 17, 5, 4, 17, 3, 3, 1, 1, 1, 17, OP_DENSE, false },
        { 2, 6, 6, 7, 6, 3, 3, 2, 1, 1, 6, OP_SLICED, false },
        { 1, 4, 5, 5, 8, 3, 3, 1, 1, 1, 4, OP_DENSE, false },
        { 3, 2, 5, 6, 3, 5, 4, 3, 2, 1, 1, OP_EXPANDED, false },
        { 0, 3, 5, 5, 4, 3, 3, 1, 1, 1, 1, OP_DENSE, false },
        { 2, 0, 3, 3, 4, 3, 3, 1, 1, 1, 1, OP_DENSE, false },
        { 9, 16, 6, 6, 33, 3, 3, 1, 1, 1, 1, OP_DENSE, true },
        { 3, 32, 14, 14, 64, 3, 3, 2, 1, 1, 1, OP_DENSE, true },
        { 2, 130, 5, 5, 96, 1, 1, 1, 0, 1, 1, OP_DENSE, true },
        { 10, 64, 12, 12, 64, 3, 3, 1, 1, 1, 64, OP_DENSE, true },
        { 2, 3, 33, 40, 64, 7, 7, 2, 3, 1, 1, OP_DENSE, true },
        { 1, 8, 37, 9, 24, 3, 3, 1, 1, 1, 1, OP_DENSE, true }, /* bands of rows */
        { 2, 6, 42, 11, 20, 3, 3, 2, 1, 2, 2, OP_DENSE, true },
        { 1, 20, 29, 20, 36, 1, 1, 3, 0, 1, 1, OP_DENSE, true },
        { 3, 130, 17, 17, 136, 1, 1, 1, 0, 1, 1, OP_DENSE, true }, /* as matrix products, contiguous rows and not */
        { 4, 48, 9, 10, 40, 1, 1, 2, 0, 1, 1, OP_DENSE, true },
        { 2, 5, 9, 8, 258, 3, 3, 1, 1, 1, 1, OP_DENSE, true }, /* gathers the elements under the kernel */
        { 1, 6, 12, 11, 256, 3, 2, 2, 1, 2, 1, OP_DENSE, true },
        { 4, 3, 50, 48, 256, 4, 4, 4, 0, 1, 1, OP_DENSE, true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int form = 0; form < 4; form++) { /* with a bias and without, each and its transpose */
            const bool bias = form & 1, transposed = form & 2;
            struct op_case *const c = op_case_next(OP_PRODUCTS, transposed ? op_build_conv_transpose2d
                                                                           : op_build_conv2d,
                                                   OP_TERMS, 2 + bias);
            if (transposed && !(all[i].c && all[i].n)) c->axis = 0;
            else c->axis = transposed && all[i].stride > 1;
            c->in[0] = (struct op_operand){ S(all[i].n, all[i].c, all[i].h, all[i].w), all[i].layout, OP_SIGNED };
            const int64_t out = transposed ? all[i].oc / all[i].groups * all[i].groups : all[i].oc;
            c->in[1].shape = transposed ? S(all[i].c, out / all[i].groups, all[i].kh, all[i].kw)
                                        : S(out, all[i].c / all[i].groups, all[i].kh, all[i].kw);
            c->in[2].shape = S(out);
            c->shape = S(all[i].stride, all[i].padding, all[i].dilation, all[i].groups);
            op_case_count(c, op_count_conv);
            c->large = all[i].large;
            op_case_describe(c, "%s %lld %lld %lld %lld", transposed ? "conv_transpose2d" : "conv2d",
                             (long long)all[i].stride, (long long)all[i].padding, (long long)all[i].dilation,
                             (long long)all[i].groups);
        }
}
