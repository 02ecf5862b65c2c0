/* Cases of normalizations of the last axis. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Without weight and bias. */
static void add_plain(const struct op_operand *shapes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int rms = 0; rms < 2; rms++) {
            struct op_case *const c = op_case_next(OP_NORMS, rms ? op_build_rmsnorm : op_build_layernorm, op_sizes_norm,
                                                   1);
            c->rms = rms;
            c->value = 1e-3;
            c->in[0] = shapes[i];
            op_case_count(c, op_count_norm);
            op_case_describe(c, "plain %s", rms ? "rmsnorm" : "layernorm");
        }
}

/* Appends the cases of norms of the last axis. */
void op_cases_norms(void)
{
    const struct op_operand shapes[] = {
        { S(1, 1), 0, 0 },           { S(3, 2), 0, 0 },    { S(2, 3, 37), 0, 0 },       { S(5, 64), OP_TURNED, 0 },
        { S(2, 257), OP_SLICED, 0 }, { S(130, 5), 0, 0 },  { S(4, 8), OP_EXPANDED, 0 }, { S(0, 6), 0, 0 },
        { S(3, 1024), 0, 0 },        { S(9), 0, 0 },       { S(1500, 33), 0, 0 },       { S(17, 4099), 0, 0 },
        { S(2, 400), 0, 0 },         { S(2, 2048), 0, 0 }, { S(1, 4096), 0, 0 },        { S(400, 64), 0, 0 },
        { S(70, 1600), 0, 0 },       { S(3, 8192), 0, 0 }, { S(2, 8200), 0, 0 },
        { S(70, 744), 0, 0 },        { S(17, 520), 0, 0 }, { S(2, 3, 0), 0, 0 },       { S(0), 0, 0 }
    };
    add_plain(shapes, 10);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 0; form < 6; form++) { /* layernorm, without bias, rmsnorm; each also added to its input */
            const int kind = form % 3;
            const rw_shape s = shapes[i].shape;
            const int64_t width = s.dim[s.rank - 1];
            struct op_case *const c = op_case_next(OP_NORMS, kind == 2 ? op_build_rmsnorm : op_build_layernorm,
                                                   op_sizes_norm, kind ? 2 : 3);
            c->rms = kind == 2;
            c->keep = form > 2;
            c->value = 1e-3;
            c->in[0] = shapes[i];
            c->in[1].shape = c->in[2].shape = S(width);
            op_case_count(c, op_count_norm);
            c->large = rw_shape_numel(s) > 10000;
            op_case_describe(c, "%s%s", kind == 2 ? "rmsnorm" : "layernorm", c->keep ? " beside" : "");
        }
}
