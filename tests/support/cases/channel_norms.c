/* Cases of normalizations with channels in axis 1: by batch, with given statistics, by group, by channel. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Appends the cases of norms over channels. */
void op_cases_groups(void)
{
    static const struct {
        struct op_operand x;
        int groups;
    } all[] = {
        { { S(2, 1, 1, 2), 0, 0 }, 1 },         { { S(3, 6, 4, 5), 0, 0 }, 2 },
        { { S(2, 17, 3, 4), OP_TURNED, 0 }, 1 }, { { S(5, 4, 3, 3), OP_MIDDLE, 0 }, 4 },
        { { S(2, 8, 5, 3), OP_SLICED, 0 }, 4 },  { { S(4, 66, 2, 2), OP_CUT, 0 }, 3 },
        { { S(3, 6, 3, 4), OP_EXPANDED, 0 }, 2 }, { { S(9, 12), 0, 0 }, 3 },
        { { S(6, 5), OP_TURNED, 0 }, 1 },        { { S(4, 40, 30, 30), 0, 0 }, 8 },
        { { S(70, 3, 50, 2), 0, 0 }, 1 },        { { S(3, 8, 21), 0, 0 }, 2 },
        { { S(4, 5, 7), OP_TURNED, 0 }, 5 },     { { S(3, 6, 2, 3, 4), 0, 0 }, 3 },
        { { S(2, 3, 4, 2, 5), OP_MIDDLE, 0 }, 1 }, { { S(2, 4, 1, 3, 2, 2), OP_SLICED, 0 }, 2 },
        { { S(2, 20, 2, 1, 2, 1, 2, 3), 0, 0 }, 4 }, { { S(3, 4, 0), 0, 0 }, 2 },
        { { S(0, 4, 3, 2, 3), 0, 0 }, 4 },
        { { S(0, 4, 3, 3), 0, 0 }, 2 },          { { S(3, 0, 4, 5), 0, 0 }, 1 },
        { { S(3, 4, 0, 5), 0, 0 }, 2 },          { { S(0, 6), 0, 0 }, 3 },
    };
    static const op_build builds[] = { op_build_batchnorm, op_build_batchnorm_eval, op_build_group_norm,
                                       op_build_instance_norm };
    static const char *const names[] = { "batchnorm", "batchnorm_eval", "group_norm", "instance_norm" };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int kind = 0; kind < 8; kind++) { /* each also without weight and bias */
            const rw_shape s = all[i].x.shape;
            const int form = kind % 4;
            if (form == 3 && s.rank == 2) continue; /* one element has no variance */
            struct op_case *const c = op_case_next(OP_NORMS, builds[form], op_sizes_groups, kind > 3 ? 1 : 3);
            c->in[0] = all[i].x;
            c->in[1].shape = c->in[2].shape = S(s.dim[1]);
            c->axis = form == 2 ? all[i].groups : 0;
            c->value = 1e-3;
            op_case_count(c, op_count_groups);
            c->large = rw_shape_numel(s) > 4096;
            op_case_describe(c, "%s%s of %d", kind > 3 ? "plain " : "", names[form], c->axis);
        }
}
