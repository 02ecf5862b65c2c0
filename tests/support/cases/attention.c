/* Cases of attention and of rotary position embeddings. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Causal and not, with dropout and without, shared key heads, and lengths close to the blocks of kernels. */
static void add_attention(void)
{
    static const struct {
        int64_t batch, heads, kv_heads, seq, kv_seq, d;
        bool causal;
        double scale, dropout;
        enum op_layout layout;
        bool large;
    } all[] = {
        { 1, 1, 1, 1, 1, 1, false, 0, 0, OP_DENSE, false },
        { 1, 2, 2, 5, 3, 16, false, 0.3, 0, OP_DENSE, false },
        { 2, 4, 2, 5, 7, 12, true, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 17, 17, 64, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 20, 128, true, 0, 0, OP_DENSE, false },
        { 1, 2, 2, 33, 33, 8, true, 0, 0, OP_MIDDLE, false },
        { 1, 4, 1, 6, 6, 5, true, 0.5, 0, OP_MIDDLE, false },
        { 1, 1, 1, 65, 70, 7, false, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 4, 9, 80, false, 0, 0, OP_SLICED, false },
        { 1, 1, 1, 3, 5, 256, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 5, 8, true, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 13, 18, 8, true, 0, 0.3, OP_DENSE, false },
        { 1, 1, 1, 19, 35, 64, false, 0, 0.1, OP_MIDDLE, false },
        { 1, 1, 1, 0, 4, 8, false, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 1, 66, 64, true, 0, 0, OP_DENSE, false },
        { 1, 4, 2, 40, 200, 64, true, 0, 0.2, OP_DENSE, false },
        { 1, 4, 2, 200, 12, 64, false, 0, 0.1, OP_DENSE, false },
        { 2, 2, 1, 5, 6, 4, true, 0, 0.2, OP_EXPANDED, false },
        { 1, 3, 3, 4, 129, 3, false, -0.5, 0, OP_DENSE, false },
        { 1, 4, 2, 130, 257, 64, true, 0, 0, OP_MIDDLE, true },
        { 2, 2, 2, 129, 129, 128, true, 0, 0, OP_DENSE, true },
        { 1, 2, 1, 200, 200, 64, true, 0, 0.1, OP_DENSE, true },
        { 1, 2, 2, 100, 300, 96, false, 0, 0, OP_DENSE, true },
        { 1, 4, 1, 70, 131, 128, true, 0, 0.2, OP_DENSE, true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = op_case_next(OP_ATTENTION, op_build_attention, op_sizes_attention, 3);
        c->in[0].shape = S(all[i].batch, all[i].heads, all[i].seq, all[i].d);
        c->in[1].shape = c->in[2].shape = S(all[i].batch, all[i].kv_heads, all[i].kv_seq, all[i].d);
        for (int k = 0; k < 3; k++) c->in[k].layout = all[i].layout;
        c->causal = all[i].causal;
        c->value = all[i].scale;
        c->dropout = all[i].dropout;
        op_case_count(c, op_count_attention);
        c->large = all[i].large;
        c->tiled = all[i].d == 64 && all[i].seq * all[i].kv_seq > 2000;
        op_case_describe(c, "attention%s%s%s", c->causal ? " causal" : "", c->value != 0 ? " scaled" : "",
                         c->dropout > 0 ? " dropout" : "");
    }
}

/* q and k wider than v, as in multi-head latent attention, and narrower. */
static void add_two_widths(void)
{
    static const struct {
        int64_t batch, heads, kv_heads, seq, kv_seq, d, dv;
        bool causal;
        double dropout;
        enum op_layout layout;
        bool large;
    } all[] = {
        { 1, 1, 1, 1, 1, 2, 1, false, 0, OP_DENSE, false },
        { 2, 4, 2, 5, 7, 24, 16, true, 0, OP_MIDDLE, false },
        { 1, 2, 2, 9, 9, 16, 33, true, 0.2, OP_DENSE, false },
        { 1, 2, 1, 6, 20, 192, 128, false, 0, OP_SLICED, false },
        { 1, 3, 3, 66, 70, 5, 12, true, 0, OP_DENSE, false },
        { 2, 2, 1, 4, 5, 6, 3, true, 0, OP_EXPANDED, false },
        { 4, 4, 2, 7, 7, 32, 16, true, 0.1, OP_DENSE, false },
        { 1, 1, 1, 3, 4, 8, 0, false, 0, OP_DENSE, false },
        { 1, 2, 1, 130, 150, 192, 128, true, 0, OP_MIDDLE, true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = op_case_next(OP_ATTENTION, op_build_attention, op_sizes_attention, 3);
        c->in[0].shape = S(all[i].batch, all[i].heads, all[i].seq, all[i].d);
        c->in[1].shape = S(all[i].batch, all[i].kv_heads, all[i].kv_seq, all[i].d);
        c->in[2].shape = S(all[i].batch, all[i].kv_heads, all[i].kv_seq, all[i].dv);
        for (int k = 0; k < 3; k++) c->in[k].layout = all[i].layout;
        c->causal = all[i].causal;
        c->value = 0;
        c->dropout = all[i].dropout;
        op_case_count(c, op_count_attention);
        c->large = all[i].large;
        op_case_describe(c, "attention of two widths%s%s", c->causal ? " causal" : "",
                         c->dropout > 0 ? " dropout" : "");
    }
}

/* Both pairings, given positions, and a table of frequencies. */
static void add_ropes(void)
{
    const struct op_operand shapes[] = { { S(1, 1, 3, 2), 0, 0 },           { S(2, 3, 5, 36), 0, 0 },
                                         { S(1, 2, 9, 64), OP_MIDDLE, 0 },  { S(1, 1, 2, 128), 0, 0 },
                                         { S(2, 2, 3, 6), OP_EXPANDED, 0 }, { S(1, 2, 0, 4), 0, 0 },
                                         { S(2, 4, 130, 64), OP_MIDDLE, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int given = 0; given < 2; given++) {
            struct op_case *const c = op_case_next(OP_ATTENTION, op_build_rope, op_sizes_rope, 1);
            c->in[0] = shapes[i];
            c->value = given ? 50 : 10000;
            if (given) c->shape = S(shapes[i].shape.dim[2]);
            op_case_count(c, op_count_rope);
            c->large = rw_shape_numel(shapes[i].shape) > 4096;
            op_case_describe(c, given ? "rope of positions" : "rope");
            struct op_case *const of_pairs = op_case_next(OP_ATTENTION, op_build_rope_interleaved,
                                                          op_sizes_rope_interleaved, 1);
            *of_pairs = *c;
            of_pairs->build = op_build_rope_interleaved;
            of_pairs->sizes = op_sizes_rope_interleaved;
            op_case_describe(of_pairs, given ? "rope_interleaved of positions" : "rope_interleaved");
            struct op_case *const own = op_case_next(OP_ATTENTION, op_build_rope_with, op_sizes_rope_with, 1);
            *own = *c;
            own->build = op_build_rope_with;
            own->sizes = op_sizes_rope_with;
            own->keep = i % 2;
            own->value = given ? 1.25 : 1;
            op_case_count(own, op_count_rope_with);
            op_case_describe(own, given ? "rope_with frequencies, of positions" : "rope_with frequencies");
        }
}

void op_cases_attention(void)
{
    add_attention();
    add_two_widths();
    add_ropes();
}
