/* Cases of products with quantized weights. c->axis is the kind, c->shape [out, in] of the weight, operand 1 the bias.
   Weights are positive, because a case's magnitudes are its own result at |x|; ops/quantized.c tests weights of any
   sign. */
#include "base/quantized_formats.h"
#include "support/cases/cases.h"
#include "support/op_builds.h"

#include <stdlib.h>
#include <string.h>

/* The quantized words as an input of the tape. */
rw_tensor *op_build_linear_quantized(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    const rw_quantized_kind kind = (rw_quantized_kind)c->axis;
    const int64_t n = rw_shape_numel(c->shape), bytes = (int64_t)rw_quantized_bytes(kind, c->shape);
    const struct rw_quantized_parts p = kind == RW_NF4 ? rw_parts_of_nf4(n) : rw_parts_of_int8(n, c->shape.dim[0]);
    uint8_t *const words = calloc((size_t)bytes + 1, 1);
    for (int64_t i = 0; i < n; i++) {
        const int64_t high = 8 + (i * 7 + i / 3) % 8, low = 8 + (i * 5 + i / 7) % 8;
        if (kind == RW_INT8) words[i] = (uint8_t)(1 + (i * 11 + i / 5) % 127);
        else words[i / 2] = (uint8_t)(high << 4 | low);
    }
    for (int64_t i = 0; i < n / 64 && kind == RW_NF4; i++) words[p.scales + i] = (uint8_t)(130 + i * 13 % 120);
    for (int64_t at = kind == RW_NF4 ? p.mean : p.largest; at < bytes; at += 4) {
        const float scale = 0.25f + (float)(at / 4 % 5) / 8;
        memcpy(words + at, &scale, 4);
    }
    const rw_quantized w = { kind, c->shape.dim[0], c->shape.dim[1],
                             rw_input(t, RW_I32, RW_SHAPE(bytes / 4), words, (size_t)(bytes / 4) * sizeof(int32_t)) };
    free(words);
    return rw_linear_quantized(t, x[0], &w, c->n > 1 ? x[1] : RW_NONE);
}

/* Each kind of quantization, with and without bias. */
void op_cases_quantized(void)
{
    const struct {
        struct op_operand x;
        int64_t out;
        rw_quantized_kind kind;
    } all[] = {
        { { S(1, 64), 0, 0 }, 1, RW_NF4 },        { { S(2, 5, 128), 0, 0 }, 7, RW_NF4 },
        { { S(9, 64), OP_TURNED, 0 }, 70, RW_NF4 }, { { S(64), 0, 0 }, 5, RW_NF4 },
        { { S(0, 64), 0, 0 }, 3, RW_NF4 },        { { S(3, 0), 0, 0 }, 4, RW_NF4 },
        { { S(40, 192), 0, 0 }, 130, RW_NF4 },    { { S(1, 1), 0, 0 }, 1, RW_INT8 },
        { { S(2, 5, 33), 0, 0 }, 7, RW_INT8 },    { { S(3, 8), OP_SLICED, 0 }, 65, RW_INT8 },
        { { S(7), 0, 0 }, 5, RW_INT8 },           { { S(4, 3), 0, 0 }, 0, RW_INT8 },
        { { S(2, 0), 0, 0 }, 3, RW_INT8 },        { { S(40, 96), 0, 0 }, 130, RW_INT8 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int bias = 0; bias < 2; bias++) {
            struct op_case *const c = op_case_next(OP_PRODUCTS, op_build_linear_quantized, OP_TERMS, 1 + bias);
            const rw_shape x = all[i].x.shape;
            int64_t rows = 1;
            for (int d = 0; d + 1 < x.rank; d++) rows *= x.dim[d];
            c->in[0] = all[i].x;
            c->in[1].shape = S(all[i].out);
            c->axis = all[i].kind;
            c->shape = S(all[i].out, x.dim[x.rank - 1]);
            /* s: the weight is rounded to the type */
            c->r[0] = (struct roundings){ (int)x.dim[x.rank - 1] + bias, 1 };
            c->r[1] = (struct roundings){ (int)all[i].out, 1 };
            c->r[2].n = (int)rows;
            c->large = rows * all[i].out > 4096;
            op_case_describe(c, "linear_quantized to %s of %lld", c->axis == RW_NF4 ? "nf4" : "int8",
                             (long long)all[i].out);
        }
}
