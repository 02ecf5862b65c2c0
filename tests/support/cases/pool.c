/* Pooling: windows that overlap, that leave gaps, with padding, of one element; more channels than a vector has. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

void op_cases_pool(void)
{
    static const struct {
        struct op_operand x;
        int64_t kernel[2], stride, padding;
    } all[] = {
        { { S(1, 1, 1, 1), 0, 0 }, { 1, 1 }, 1, 0 },
        { { S(2, 3, 6, 7), 0, 0 }, { 2, 2 }, 2, 0 },
        { { S(2, 17, 7, 6), OP_TURNED, 0 }, { 3, 3 }, 2, 1 },
        { { S(1, 5, 9, 8), OP_MIDDLE, 0 }, { 3, 2 }, 1, 1 },
        { { S(3, 4, 8, 9), OP_SLICED, 0 }, { 2, 3 }, 4, 0 },
        { { S(2, 66, 5, 5), OP_CUT, 0 }, { 5, 5 }, 1, 2 },
        { { S(3, 4, 6, 6), OP_EXPANDED, 0 }, { 2, 2 }, 2, 0 },
        { { S(0, 3, 4, 4), 0, 0 }, { 2, 2 }, 2, 0 },
        { { S(2, 0, 4, 4), 0, 0 }, { 2, 2 }, 2, 0 },
        { { S(4, 130, 20, 20), 0, 0 }, { 3, 3 }, 2, 1 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int form = 0; form < 4; form++) { /* maximum; average, with padding and without; of all */
            static const op_build builds[] = { op_build_max_pool2d, op_build_avg_pool2d, op_build_avg_pool2d,
                                               op_build_global_avg_pool2d };
            static const char *const names[] = { "max_pool2d", "avg_pool2d", "avg_pool2d inside",
                                                 "global_avg_pool2d" };
            struct op_case *const c = op_case_next(OP_REDUCTIONS, builds[form], form ? OP_TERMS : op_values, 1);
            c->in[0] = all[i].x;
            c->in[0].range = OP_SIGNED;
            c->keep = form == 2;
            if (form < 3) c->shape = S(all[i].kernel[0], all[i].kernel[1], all[i].stride, all[i].padding);
            op_count_pool(c);
            c->large = rw_shape_numel(all[i].x.shape) > 4096;
            op_case_describe(c, "%s %lldx%lld %lld %lld", names[form], (long long)all[i].kernel[0],
                             (long long)all[i].kernel[1], (long long)all[i].stride, (long long)all[i].padding);
        }
}
