/*
 * The real cuDNN accepts the three products of convolutions for compute capability 9.0, in every type, and the notes of
 * the chosen engine are allowed ones. No device is needed, because one is described; nothing is executed. Skipped if
 * cuDNN is not installed.
 */
#include "device/conv_layer_fixture.h"
#include "device/cudnn_without_gpu.h"

#include "device/cuda/cudnn/conv.h"
#include "device/cuda/cudnn/conv_graph.h"

/* The first layer of a ResNet, a usual one, 1 x 1, groups and dilation, depthwise, odd numbers. */
static const struct layer layers[] = {
    { 8, 3, 224, 224, 64, 7, 2, 3, 1, 1 },    { 8, 64, 56, 56, 64, 3, 1, 1, 1, 1 },
    { 8, 256, 56, 56, 512, 1, 2, 0, 1, 1 },   { 8, 64, 28, 28, 128, 3, 1, 2, 2, 4 },
    { 8, 64, 28, 28, 64, 3, 1, 1, 1, 64 },    { 3, 7, 11, 13, 5, 3, 1, 2, 1, 1 },
};

static const char *const kinds[] = { "forward", "data", "weight", "forward with a bias" };

/* The notes of a plan's engine; its configuration precedes the plan. */
static uint32_t notes_of(const struct rw_cudnn *dnn, const struct rw_dnn_plan *plan)
{
    cudnnBackendNumericalNote_t notes[32];
    cudnnBackendDescriptor_t engine;
    int64_t n = 0;
    uint32_t all = 0;
    cr_assert_eq(dnn->BackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine), CUDNN_STATUS_SUCCESS);
    cr_assert_eq(dnn->BackendGetAttribute(plan->all[plan->n - 2], CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine),
                 CUDNN_STATUS_SUCCESS);
    cr_assert_eq(dnn->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 32, &n,
                                          notes),
                 CUDNN_STATUS_SUCCESS);
    for (int64_t i = 0; i < n; i++) all |= 1u << notes[i];
    dnn->BackendDestroyDescriptor(engine);
    return all;
}

/* The only notes that do not exclude an engine are tensor cores and strict propagation of NaN; tensor cores do in
   float32. */
static void makes_plans(rw_dtype dtype, bool tf32)
{
    const uint32_t harmless = 1u << CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP,
                   cores = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                   down = 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    const uint32_t may = harmless | (dtype == RW_F32 && !tf32 ? 0 : cores) | (dtype == RW_F32 && tf32 ? down : 0);
    struct rw_cudnn dnn;
    library_open(&dnn);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int kind = 0; kind < 4; kind++) {
            const bool bias = kind == 3;
            const struct rw_dnn_conv_signature s = signature_of(
                &layers[i], dtype, bias ? RW_DNN_CONV_FORWARD : (enum rw_dnn_conv_kind)kind, bias);
            struct rw_dnn_plan plan = { .n = 0 };
            const cudnnStatus_t status = rw_dnn_conv_build(&dnn, &s, tf32, RW_DNN_CONV_WORKSPACE_LIMIT, &plan);
            cr_expect(status == CUDNN_STATUS_SUCCESS && plan.plan, "layer %zu, %s: %s", i, kinds[kind],
                      dnn.GetErrorString(status));
            if (plan.plan) {
                const uint32_t notes = notes_of(&dnn, &plan);
                cr_expect_eq(notes & ~may, 0, "layer %zu, %s: an engine with the notes %x", i, kinds[kind], notes);
                cr_expect_leq(plan.workspace, RW_DNN_CONV_WORKSPACE_LIMIT);
            }
            rw_dnn_free_plan(&dnn, &plan);
            cr_expect(!plan.plan && !plan.workspace);
        }
    dnn.BackendDestroyDescriptor(dnn.described);
}

Test(conv_plans, bf16)
{
    makes_plans(RW_BF16, false);
}

Test(conv_plans, f16)
{
    makes_plans(RW_F16, false);
}

Test(conv_plans, f32)
{
    makes_plans(RW_F32, false);
}

Test(conv_plans, f32_where_tf32_is_allowed)
{
    makes_plans(RW_F32, true);
}

Test(conv_plans, f64)
{
    makes_plans(RW_F64, false);
}

/* A graph that the library does not accept is not a failure: inconsistent extents, and no workspace at all. */
Test(conv_plans, what_is_refused_has_no_plan)
{
    struct rw_dnn_conv_signature s = signature_of(&layers[1], RW_F32, RW_DNN_CONV_FORWARD, false);
    struct rw_dnn_plan plan = { .n = 0 };
    struct rw_cudnn dnn;
    library_open(&dnn);
    s.oh++;
    const cudnnStatus_t status = rw_dnn_conv_build(&dnn, &s, false, RW_DNN_CONV_WORKSPACE_LIMIT, &plan);
    cr_expect(status != CUDNN_STATUS_SUCCESS && rw_dnn_is_refusal(status), "%s", dnn.GetErrorString(status));
    cr_expect_null(plan.plan);
    rw_dnn_free_plan(&dnn, &plan);
    dnn.BackendDestroyDescriptor(dnn.described);
}
