/* Cases of pooling: overlapping windows, windows with gaps, padding, one element, and more channels than a vector. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Dilation, a partial last window, a custom divisor, and all three with extents that do not divide the image. */
static void add_options(void)
{
    static const struct {
        struct op_operand x;
        rw_shape how; /* extents of the kernel, stride, padding, dilation, up, divisor */
    } all[] = {
        { { S(2, 3, 7, 8), 0, 0 }, { 7, { 2, 3, 1, 1, 2, 0, 0 } } },
        { { S(2, 17, 7, 6), OP_TURNED, 0 }, { 7, { 2, 2, 2, 1, 0, 1, 0 } } },
        { { S(1, 5, 9, 8), OP_MIDDLE, 0 }, { 7, { 3, 2, 3, 1, 3, 1, 0 } } },
        { { S(2, 4, 5, 9), OP_SLICED, 0 }, { 7, { 2, 2, 3, 0, 0, 1, 3 } } },
        { { S(2, 66, 5, 5), OP_CUT, 0 }, { 7, { 3, 3, 2, 1, 2, 1, -4 } } },
        { { S(0, 3, 4, 4), 0, 0 }, { 7, { 2, 2, 2, 0, 2, 1, 2 } } },
        { { S(4, 130, 21, 20), 0, 0 }, { 7, { 3, 3, 2, 1, 2, 1, 2 } } },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int form = 0; form < 3; form++) {
            struct op_case *const c = op_case_next(OP_REDUCTIONS, form ? op_build_avg_pool2d : op_build_max_pool2d,
                                                   form ? OP_TERMS : op_values, 1);
            c->in[0] = all[i].x;
            c->shape = all[i].how;
            c->shape.dim[form ? 4 : 6] = 0; /* of the other operand */
            c->keep = form == 2;
            op_case_count(c, op_count_pool);
            c->large = rw_shape_numel(all[i].x.shape) > 4096;
            op_case_describe(c, "%s option %d", form == 2 ? "avg_pool2d inside" : form ? "avg_pool2d" : "max_pool2d",
                             (int)i);
        }
}

/* Extents that divide and that do not, equal and larger ones, all of an image, more than 255. */
static void add_adaptive(void)
{
    static const struct {
        struct op_operand x;
        int64_t height, width;
    } all[] = {
        { { S(1, 1, 1, 1), 0, 0 }, 1, 1 },           { { S(2, 3, 6, 7), 0, 0 }, 3, 4 },
        { { S(2, 17, 7, 6), OP_TURNED, 0 }, 5, 0 },  { { S(1, 5, 4, 3), OP_MIDDLE, 0 }, 7, 7 },
        { { S(3, 4, 8, 9), OP_SLICED, 0 }, 1, 1 },   { { S(2, 66, 5, 5), OP_CUT, 0 }, 2, 1 },
        { { S(3, 4, 6, 6), OP_EXPANDED, 0 }, 4, 2 }, { { S(0, 3, 4, 4), 0, 0 }, 2, 3 },
        { { S(2, 0, 4, 4), 0, 0 }, 2, 3 },           { { S(1, 2, 40, 33), 0, 0 }, 2, 2 },
        { { S(4, 130, 20, 20), 0, 0 }, 7, 7 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int most = 0; most < 2; most++) {
            struct op_case *const c = op_case_next(OP_REDUCTIONS, most ? op_build_adaptive_max_pool2d
                                                                       : op_build_adaptive_avg_pool2d,
                                                   most ? op_values : OP_TERMS, 1);
            c->in[0] = all[i].x;
            c->shape = S(all[i].height, all[i].width);
            op_case_count(c, op_count_adaptive_pool);
            c->large = rw_shape_numel(all[i].x.shape) > 4096;
            op_case_describe(c, "adaptive_%s_pool2d to %lldx%lld", most ? "max" : "avg", (long long)all[i].height,
                             (long long)all[i].width);
        }
}

/* Appends the cases of pooling. */
void op_cases_pool(void)
{
    add_options();
    add_adaptive();
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
        for (int form = 0; form < 4; form++) { /* maximum; average, counting padding and not; over all */
            static const op_build builds[] = { op_build_max_pool2d, op_build_avg_pool2d, op_build_avg_pool2d,
                                               op_build_global_avg_pool2d };
            static const char *const names[] = { "max_pool2d", "avg_pool2d", "avg_pool2d inside",
                                                 "global_avg_pool2d" };
            struct op_case *const c = op_case_next(OP_REDUCTIONS, builds[form], form ? OP_TERMS : op_values, 1);
            c->in[0] = all[i].x;
            c->in[0].range = OP_SIGNED;
            c->keep = form == 2;
            if (form < 3) c->shape = S(all[i].kernel[0], all[i].kernel[1], all[i].stride, all[i].padding);
            op_case_count(c, op_count_pool);
            c->large = rw_shape_numel(all[i].x.shape) > 4096;
            op_case_describe(c, "%s %lldx%lld %lld %lld", names[form], (long long)all[i].kernel[0],
                             (long long)all[i].kernel[1], (long long)all[i].stride, (long long)all[i].padding);
        }
}
