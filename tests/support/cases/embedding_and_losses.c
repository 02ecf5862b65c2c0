/* Cases of embedding tables, and of losses. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Appends the cases of embedding tables and losses. */
void op_cases_tables(void)
{
    const rw_shape tables[][2] = { { S(1, 1), S(1) },        { S(7, 19), S(2, 3) }, { S(5, 64), S(33) },
                                   { S(3, 5), S(200) },      { S(4, 8), S(0) },     { S(11, 257), S(4) },
                                   { S(250, 96), S(3, 700) } };
    for (size_t form = 0; form < 2 * (sizeof tables / sizeof *tables); form++) { /* each also with a second reader */
        const size_t i = form / 2;
        struct op_case *const c = op_case_next(OP_TABLES, op_build_embedding, OP_TERMS, 1);
        c->in[0].shape = tables[i][0];
        c->shape = tables[i][1];
        c->keep = form % 2;
        op_case_count(c, op_count_embedding);
        c->large = i == 6;
        op_case_describe(c, c->keep ? "embedding beside a sum, of %lld" : "embedding of %lld",
                         (long long)rw_shape_numel(c->shape));
    }
    for (size_t i = 0; i < 6; i++) {
        struct op_case *const c = op_case_next(OP_TABLES, op_build_embedding_with, OP_TERMS, 1);
        c->in[0].shape = tables[i][0];
        c->shape = tables[i][1];
        c->axis = i % 2 ? -1 : 0;
        op_case_count(c, op_count_embedding);
        op_case_describe(c, "embedding_with a padding row of %lld", (long long)rw_shape_numel(c->shape));
    }
    const struct {
        struct op_operand x;
        bool ignoring;
        int ignored;
        double offset; /* a common offset of all logits: 16ths of it are exact in float32 */
    } losses[] = { { { S(1, 1), 0, 0 }, false, -100 },
                   { { S(2, 3, 37), 0, 0 }, true, -100 },
                   { { S(5, 11), 0, 0 }, true, 1 },
                   { { S(33, 257), 0, 0 }, false, -100 },
                   { { S(4, 16), OP_SLICED, 0 }, true, -100 },
                   { { S(3, 1025), 0, 0 }, true, -100 },
                   { { S(0, 5), 0, 0 }, false, -100 },
                   { { S(11), 0, 0 }, false, -100 },
                   { { S(70, 5003), 0, 0 }, true, -100 },
                   { { S(2, 3, 37), 0, 0 }, true, -100, 1e4 },
                   { { S(4, 257), OP_SLICED, 0 }, false, -100, -3e5 } };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        struct op_case *const c = op_case_next(OP_TABLES, op_build_cross_entropy, op_sizes_cross_entropy, 1);
        const rw_shape s = losses[i].x.shape;
        c->in[0] = losses[i].x;
        c->in[0].range = OP_SCORES;
        c->shape = s;
        c->shape.rank--;
        c->ignoring = losses[i].ignoring;
        c->axis = losses[i].ignored;
        c->value = losses[i].offset;
        c->no_sum = true;
        op_case_count(c, op_count_cross_entropy);
        c->large = i == 8;
        op_case_describe(c, "cross_entropy%s%s", c->ignoring ? " ignoring" : "", c->value ? " far from 0" : "");
    }
    const rw_shape pairs[][2] = {
        { S(1), S(1) }, { S(5, 37), S(5, 37) }, { S(1025), S(1025) }, { S(5, 37), S(37) }, { S(400, 201), S(400, 201) }
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct op_case *const c = op_case_next(OP_TABLES, op_build_mse_loss, op_sizes_mse, 2);
        for (int k = 0; k < 2; k++) c->in[k].shape = pairs[i][k];
        c->no_sum = true;
        op_case_count(c, op_count_mse);
        c->large = i == 4;
        op_case_describe(c, "mse_loss");
    }
}
