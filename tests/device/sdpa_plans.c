/*
 * The real cuDNN accepts attention's graphs, forward and backward, for compute capability 9.0: it finds an engine,
 * compiles its kernels and reports their workspace. No device is needed, because one is described; nothing is executed.
 * Skipped if cuDNN is not installed.
 *
 * Also tests which operands are passed to it: the rule of sdpa.h, operand by operand.
 */
#include "device/cudnn_without_gpu.h"

#include "device/cuda/cudnn/sdpa.h"
#include "device/cuda/cudnn/sdpa_graph.h"

struct extents {
    int64_t batch, heads, kv_heads, seq, kv_seq, d;
    bool causal;
};

/* [batch, heads, rows, d], in memory as [batch, rows, parts, heads, d]. */
static rw_layout layout_of(int64_t batch, int64_t heads, int64_t rows, int64_t d, int64_t parts)
{
    return (rw_layout){ .numel = batch * heads * rows * d,
                        .span = batch * heads * rows * d * parts,
                        .rank = 4,
                        .dim = { batch, heads, rows, d },
                        .stride = { rows * parts * heads * d, d, parts * heads * d, 1 } };
}

static bool describe(struct rw_sdpa_signature *s, const struct extents *e, rw_dtype dtype, bool backward,
                     bool packed, double dropout)
{
    const int64_t parts = e->heads == e->kv_heads ? 3 : 1; /* slices of one product for q, k and v */
    const rw_layout q = layout_of(e->batch, e->heads, e->seq, e->d, parts);
    const rw_layout k = layout_of(e->batch, e->kv_heads, e->kv_seq, e->d, parts);
    const rw_layout o = layout_of(e->batch, e->heads, e->seq, e->d, 1);
    const rw_layout *const dy = backward ? &o : NULL;
    return rw_sdpa_describe(s, dtype, &q, &k, &k, dy, dy, packed, 0.125, e->causal, dropout);
}

/*
 * Workspace of the deterministic backward: a 16-bit number for each score, with rows and keys padded to at most 128;
 * and dk and dv of each head, if heads share keys. Forward needs nothing similar.
 */
static size_t kept(const struct extents *e)
{
    const size_t rows = (size_t)(e->seq + 127) / 128 * 128, keys = (size_t)(e->kv_seq + 127) / 128 * 128;
    const size_t shared = e->heads == e->kv_heads ? 0 : 2 * (size_t)(e->kv_seq * e->d);
    return (size_t)(e->batch * e->heads) * (rows * keys + shared) * 2;
}

static const char *const form_names[] = { "forward", "backward", "backward, packed" };

/* Makes a plan for each shape in each form, and checks its workspace. */
static void makes_plans(const struct extents *all, size_t n, rw_dtype dtype)
{
    struct rw_cudnn dnn;
    library_open(&dnn);
    for (size_t i = 0; i < n; i++)
        for (int form = 0; form < 3; form++) { /* forward, backward, backward into one buffer */
            struct rw_sdpa_signature s;
            struct rw_dnn_plan plan = { .n = 0 };
            const bool backward = form > 0, packed = form == 2;
            if (packed && all[i].seq != all[i].kv_seq) continue;
            cr_assert(describe(&s, &all[i], dtype, backward, packed, 0), "case %zu is not given to cuDNN", i);
            const cudnnStatus_t status = rw_sdpa_build(&dnn, &s, RW_SDPA_WORKSPACE_LIMIT, &plan);
            cr_expect(status == CUDNN_STATUS_SUCCESS && plan.plan, "case %zu, %s: %s", i, form_names[form],
                      dnn.GetErrorString(status));
            cr_expect(plan.workspace <= (backward ? kept(&all[i]) : 0) + 4096, "case %zu, %s: %zu bytes of workspace",
                      i, form_names[form], plan.workspace);
            rw_dnn_free_plan(&dnn, &plan);
        }
    dnn.BackendDestroyDescriptor(dnn.described);
}

/* One of every kind; each plan takes the library about a second. */
static const struct extents usual[] = {
    { 4, 12, 12, 512, 512, 64, true },
    { 2, 16, 4, 256, 256, 128, true }, /* heads that share keys */
    { 1, 4, 4, 100, 300, 80, false },
    { 1, 2, 2, 64, 64, 256, true },
};

Test(sdpa_plans, bf16)
{
    makes_plans(usual, sizeof usual / sizeof *usual, RW_BF16);
}

Test(sdpa_plans, f16)
{
    makes_plans(usual, 2, RW_F16);
}

Test(sdpa_plans, too_much_workspace)
{
    const struct extents e = { 8, 12, 12, 512, 512, 64, true };
    struct rw_sdpa_signature s;
    struct rw_dnn_plan plan = { .n = 0 };
    struct rw_cudnn dnn;
    library_open(&dnn);
    cr_assert(describe(&s, &e, RW_BF16, true, false, 0));
    cr_expect_eq(rw_sdpa_build(&dnn, &s, (size_t)1 << 20, &plan), CUDNN_STATUS_SUCCESS);
    cr_expect(!plan.plan && plan.least_refused > (size_t)1 << 20, "%zu bytes", plan.least_refused);
    rw_dnn_free_plan(&dnn, &plan);
    dnn.BackendDestroyDescriptor(dnn.described);
}

Test(sdpa_plans, what_is_given_to_the_library)
{
    const struct extents e = { 2, 4, 4, 32, 32, 64, true };
    struct extents other = e;
    struct rw_sdpa_signature s;
    for (int backward = 0; backward < 2; backward++) {
        cr_expect(describe(&s, &e, RW_BF16, backward, false, 0) && describe(&s, &e, RW_F16, backward, false, 0));
        cr_expect(!describe(&s, &e, RW_F32, backward, false, 0), "32 bits");
        cr_expect(!describe(&s, &e, RW_F64, backward, false, 0), "64 bits");
        cr_expect(!describe(&s, &e, RW_BF16, backward, false, 0.1), "dropout");
    }
    other.kv_seq = 48;
    cr_expect(!describe(&s, &other, RW_BF16, false, false, 0), "a causal mask off the diagonal");
    other.causal = false;
    cr_expect(describe(&s, &other, RW_BF16, false, false, 0));
    other.d = 60;
    cr_expect(!describe(&s, &other, RW_BF16, false, false, 0), "a head of 60");
    other.d = 264;
    cr_expect(!describe(&s, &other, RW_BF16, false, false, 0), "a head of 264");
    other = (struct extents){ 2, 4, 4, 1, 1, 64, false };
    cr_expect(!describe(&s, &other, RW_BF16, false, false, 0), "one query and one key");
    other = (struct extents){ 0, 4, 4, 32, 32, 64, false };
    cr_expect(!describe(&s, &other, RW_BF16, false, false, 0), "nothing");
}

/* Rows that are not contiguous are refused; the offset of the operand does not matter. */
Test(sdpa_plans, layouts)
{
    rw_layout q = layout_of(2, 4, 32, 64, 1);
    const rw_layout k = q;
    struct rw_sdpa_signature s, t;
    cr_assert(rw_sdpa_describe(&s, RW_BF16, &q, &k, &k, NULL, NULL, false, 1, false, 0));
    q.offset = 3;
    cr_expect(rw_sdpa_describe(&t, RW_BF16, &q, &k, &k, NULL, NULL, false, 1, false, 0) && !memcmp(&s, &t, sizeof s));
    q.stride[2] += 4;
    cr_expect(!rw_sdpa_describe(&t, RW_BF16, &q, &k, &k, NULL, NULL, false, 1, false, 0), "rows off 16 bytes");
    q = k, q.stride[0] = 0;
    cr_expect(!rw_sdpa_describe(&t, RW_BF16, &q, &k, &k, NULL, NULL, false, 1, false, 0), "a stretched axis");
    q = k, q.stride[3] = 8;
    cr_expect(!rw_sdpa_describe(&t, RW_BF16, &q, &k, &k, NULL, NULL, false, 1, false, 0), "columns with a stride");
}

/* Gradients in separate tensors, or concatenated in one, row by row. */
Test(sdpa_plans, strides_of_the_gradients)
{
    const struct extents e = { 2, 6, 3, 32, 32, 64, true };
    const int64_t of_q[] = { 6 * 32 * 64, 32 * 64, 64 }, of_k[] = { 3 * 32 * 64, 32 * 64, 64 },
                  in_one[] = { 32 * 12 * 64, 64, 12 * 64 };
    struct rw_sdpa_signature s;
    cr_assert(describe(&s, &e, RW_BF16, true, false, 0));
    cr_expect(!memcmp(s.dq, of_q, sizeof of_q) && !memcmp(s.dk, of_k, sizeof of_k));
    cr_assert(describe(&s, &e, RW_BF16, true, true, 0));
    cr_expect(!memcmp(s.dq, in_one, sizeof in_one) && !memcmp(s.dk, in_one, sizeof in_one));
}
