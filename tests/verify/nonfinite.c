/* The origin of a NaN or an infinity: op, region, line, element, and the op's inputs; the search has no other
   effect. */
#include "base/alloc.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct fixture b;

static int64_t live;

static void open_all(void)
{
    live = rw_alloc_live();
    b = fixture_open(5, 2);
}

static void close_all(void)
{
    fixture_close(&b);
    cr_expect_eq(rw_alloc_live(), live, "%d allocations were lost", (int)(rw_alloc_live() - live));
}

TestSuite(nonfinite, .init = open_all, .fini = close_all);

static rw_nonfinite find(rw_tensor *loss, unsigned flags)
{
    rw_nonfinite where;
    memset(&where, 0x55, sizeof where);
    cr_assert_eq(rw_find_nonfinite(b.t, loss, flags, &where), RW_OK, "%s", rw_error_message(b.ctx));
    return where;
}

static rw_tensor *param(const char *name, const float *x, int n)
{
    rw_tensor *const p = rw_param(b.ctx, name, RW_F32, RW_SHAPE(n));
    cr_assert_eq(rw_write(p, x, sizeof *x * (size_t)n), RW_OK);
    return p;
}

static rw_tensor *sum(rw_tensor *x)
{
    return rw_sum(b.t, x, RW_ALL_AXES, false);
}

static void expect_place(const rw_nonfinite *w, const char *op, const char *region, int line)
{
    char site[32];
    snprintf(site, sizeof site, "nonfinite.c:%d", line);
    cr_expect(w->found);
    cr_expect_str_eq(w->op, op);
    cr_expect_str_eq(w->region, region);
    cr_expect(strstr(w->site, site), "%s, not %s", w->site, site);
}

/* In forward, with and without recompute, before and after the loss was read. */
Test(nonfinite, a_division_by_zero_is_named)
{
    static const char *const policies[] = { "none", "full" };
    rw_tensor *const x = param("x", (float[]){ 1, -2, 0, 4 }, 4), *const y = param("y", (float[]){ 1, 2, 0, 0 }, 4);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(ckpt_set_policy(b.t, policies[i % 2]), RW_OK);
        ckpt_begin(b.t, "outer");
        ckpt_begin(b.t, "inner");
        rw_tensor *q = rw_div(b.t, rw_dropout(b.t, x, 0.0), y);
        const int line = __LINE__ - 1;
        ckpt_end(b.t);
        ckpt_end(b.t);
        rw_tensor *const loss = sum(rw_mul(b.t, q, q));
        if (i > 1) cr_assert(!isfinite(rw_item(b.t, loss)) && !rw_eval(b.t, &q, 1));
        const rw_nonfinite w = find(loss, 0);
        expect_place(&w, "div", "outer/inner", line);
        cr_expect(!w.leaf && !w.backward);
        cr_expect(isnan(w.got) && w.element == 2 && w.count == 2 && w.elements == 4);
        cr_expect(w.least == -2 && w.greatest == 4, "%g to %g", w.least, w.greatest);
        rw_tape_reset(b.t);
    }
}

Test(nonfinite, an_overflow_of_16_bits_is_named)
{
    static const rw_dtype dtypes[] = { RW_F16, RW_BF16 };
    rw_tensor *const x = param("x", (float[]){ 1, 80, 2 }, 3);
    for (int i = 0; i < 2; i++) {
        rw_tensor *const h = rw_scale(b.t, rw_exp(b.t, rw_scale(b.t, rw_cast(b.t, x, dtypes[i]), i ? 2 : 1)), 0.5);
        const rw_nonfinite w = find(sum(rw_cast(b.t, h, RW_F32)), 0);
        expect_place(&w, "exp", "", __LINE__ - 2);
        cr_expect(w.got == INFINITY && w.element == 1 && w.count == 1);
        cr_expect_eq(w.greatest, i ? 160 : 80);
        rw_tape_reset(b.t);
    }
}

Test(nonfinite, what_was_there_from_the_beginning_is_named)
{
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3, 4 }, 4);
    rw_tensor *const bad = param("bad", (float[]){ 1, 1, 1, NAN }, 4);
    rw_tensor *const loss = sum(rw_add(b.t, rw_exp(b.t, x), bad));
    const rw_nonfinite w = find(loss, 0);
    expect_place(&w, "add", "", __LINE__ - 2);
    cr_expect(w.leaf && w.element == 3);
    cr_expect_str_eq(w.value, "bad");
    rw_tape_reset(b.t);
    const float in[2] = { 0, INFINITY };
    const rw_nonfinite v = find(
        sum(rw_mul(b.t, rw_slice(b.t, x, 0, 0, 2), rw_input(b.t, RW_F32, RW_SHAPE(2), in, sizeof in))), 0);
    cr_expect(v.found && v.leaf && v.element == 1 && v.got == INFINITY);
}

/* The name is that of the buffer. Elements are counted in the view. */
Test(nonfinite, what_is_read_through_a_view_is_named)
{
    rw_tensor *const p = rw_param(b.ctx, "weight", RW_F32, RW_SHAPE(3, 2));
    const float bad[6] = { 1, 2, 3, NAN, 5, 6 }, good[6] = { 1, 2, 3, 4, 5, 6 };
    static const char *const names[] = { "weight", "weight", "x", "gradient of weight" };
    static const int64_t elements[] = { 4, 6, 6, 2 }, at[] = { 1, 4, 3, 1 };
    for (int i = 0; i < 4; i++) {
        rw_tensor *view;
        cr_assert_eq(rw_write(p, i < 2 ? bad : good, sizeof bad), RW_OK);
        if (i == 0) view = rw_slice(b.t, p, 0, 1, 3);
        else if (i == 1) view = rw_transpose(b.t, p, 0, 1);
        else if (i == 2)
            view = rw_reshape(b.t, ckpt_name(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3, 2), bad, sizeof bad), "x"),
                              RW_SHAPE(6));
        else {
            cr_assert_eq(rw_write(rw_gradient(p), bad, sizeof bad), RW_OK);
            view = rw_slice(b.t, rw_gradient(p), 0, 1, 2);
        }
        rw_tensor *const first = sum(rw_exp(b.t, view));
        const rw_nonfinite w = find(rw_mul(b.t, first, sum(p)), 0);
        cr_expect(w.found && w.leaf && w.elements == elements[i] && w.element == at[i], "%d: %ld of %ld", i,
                  (long)w.element, (long)w.elements);
        cr_expect_str_eq(w.value, names[i]);
        rw_tape_reset(b.t);
    }
}

/* Nothing was read: there is no range. */
Test(nonfinite, an_op_without_operands_prints_no_range)
{
    char text[256] = { 0 };
    rw_tensor *const x = param("x", (float[]){ 1, 2 }, 2);
    const rw_nonfinite w = find(sum(rw_mul(b.t, x, rw_full(b.t, RW_F32, RW_SHAPE(2), INFINITY))), 0);
    cr_expect(w.found && !w.leaf && w.least == INFINITY && w.greatest == -INFINITY, "%g %g", w.least, w.greatest);
    FILE *const f = tmpfile();
    rw_nonfinite_print(&w, f);
    rewind(f);
    cr_assert_neq(fread(text, 1, sizeof text - 1, f), 0);
    fclose(f);
    cr_expect(strstr(text, "fill") && strstr(text, "which reads nothing\n") && !strstr(text, "to -inf"), "%s", text);
}

/* Only the visible elements of a view are checked. */
Test(nonfinite, unread_values_do_not_matter)
{
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(2, 3));
    const float values[6] = { 1, NAN, 3, NAN, NAN, 6 };
    cr_assert_eq(rw_write(x, values, sizeof values), RW_OK);
    const rw_nonfinite w = find(sum(rw_exp(b.t, rw_slice(b.t, x, 1, 2, 3))), 0);
    cr_expect(!w.found, "%s", w.op);
}

Test(nonfinite, a_gradient_that_is_infinite_is_named)
{
    rw_tensor *const x = param("x", (float[]){ 4, 0, 9 }, 3);
    rw_tensor *const loss = sum(rw_sqrt(b.t, x));
    const int line = __LINE__ - 1;
    cr_assert_eq(rw_item(b.t, loss), 5);
    const rw_nonfinite w = find(loss, 0);
    cr_expect(w.found && w.backward && !w.leaf && w.element == 1);
    expect_place(&w, "sqrt", "", line);
    cr_expect_str_eq(w.rule_op, "sqrt_backward");
}

/* A plan is made for the first tape of a structure, and kept: the line is that of the tape that runs. */
Test(nonfinite, the_line_of_a_gradient_is_that_of_the_present_step)
{
    rw_tensor *const x = param("x", (float[]){ 4, 0, 9 }, 3);
    for (int i = 0; i < 2; i++) {
        const int line = __LINE__;
        rw_tensor *const y = i ? rw_sqrt(b.t, x)
                               : rw_sqrt_at((rw_site){ "an_earlier_file.c", 7 }, b.t, x);
        rw_tensor *const loss = sum(y);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        const rw_nonfinite w = find(loss, 0);
        cr_expect(w.found && w.backward);
        if (i) cr_expect(strstr(w.site, "nonfinite.c:"), "%s, not line %d or the next", w.site, line + 1);
        else cr_expect_str_eq(w.site, "an_earlier_file.c:7");
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
}

/* Gradient rules record ops that the program never called: the message names the op being differentiated, for second
   derivatives too. */
Test(nonfinite, the_op_of_the_program_is_named)
{
    rw_tensor *const x = param("x", (float[]){ 1, 1, 0 }, 3);
    rw_tensor *const tiny = rw_add_scalar(b.t, rw_scale(b.t, x, 1e-42), 1e-42);
    rw_tensor *const logarithm = rw_log(b.t, tiny);
    const int line = __LINE__ - 1;
    const rw_nonfinite w = find(sum(rw_scale(b.t, logarithm, 0.01)), 0);
    expect_place(&w, "log", "", line);
    cr_expect(w.backward && *w.rule_op);
    rw_tape_reset(b.t);
    rw_tensor *const power = rw_pow_scalar(b.t, x, 1.5), *dx;
    const int power_line = __LINE__ - 1;
    cr_assert_eq(rw_grad(b.t, sum(power), (rw_tensor *[]){ x }, 1, &dx), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_nonfinite v = find(sum(rw_mul(b.t, dx, dx)), 0);
    expect_place(&v, "pow_scalar", "", power_line);
    cr_expect(v.backward);
}

/* Clipping by a norm that is NaN makes all gradients NaN: ops that would add to them are not the cause. */
Test(nonfinite, the_op_is_named_after_the_gradients_were_clipped)
{
    rw_tensor *const x = param("x", (float[]){ 4, 0, 9 }, 3), *const w = param("w", (float[]){ 1, 2, 3 }, 3);
    double norm;
    float dw[3];
    rw_tensor *const root = rw_sqrt(b.t, x);
    const int line = __LINE__ - 1;
    rw_tensor *const loss = sum(rw_mul(b.t, root, w));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, &norm), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(norm, INFINITY);
    const rw_nonfinite where = find(loss, 0);
    expect_place(&where, "sqrt", "", line);
    cr_expect(where.backward && where.element == 1 && where.count == 1);
    cr_assert_eq(rw_read(NULL, rw_gradient(w), dw, sizeof dw), RW_OK);
    cr_expect(isnan(dw[0]), "the search leaves the gradients as they are");
}

Test(nonfinite, infinities_may_be_meant)
{
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3 }, 3);
    const float mask[3] = { 0, -INFINITY, 0 };
    rw_tensor *const masked = rw_add(b.t, x, rw_input(b.t, RW_F32, RW_SHAPE(3), mask, sizeof mask));
    rw_tensor *const p = rw_softmax(b.t, masked, 0), *const loss = sum(rw_mul(b.t, p, p));
    cr_expect(find(loss, 0).found);
    cr_expect(!find(loss, RW_NONFINITE_NAN).found);
}

/* Gradients, buffers, the generator, and values already read are unchanged; then the step continues. */
Test(nonfinite, nothing_else_changes)
{
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3, 4 }, 4);
    rw_tensor *const mean = rw_buffer(b.ctx, "mean", RW_F32, RW_SHAPE(4));
    for (int searched = 0; searched < 2; searched++) {
        static float gradient[2][4], kept[2][4], losses[2];
        rw_generator_set(b.ctx, (rw_generator_state){ 5, 0 });
        rw_init_constant(mean, 7);
        rw_zero_grad(b.ctx);
        rw_assign(b.t, mean, rw_scale(b.t, mean, 0.5));
        rw_tensor *const loss = sum(rw_mul(b.t, rw_dropout(b.t, rw_mul(b.t, x, mean), 0.5), x));
        losses[searched] = (float)rw_item(b.t, loss);
        const rw_generator_state g = rw_generator_get(b.ctx);
        for (int i = 0; searched && i < 2; i++) cr_assert(!find(loss, 0).found);
        cr_expect_eq(rw_generator_get(b.ctx).offset, g.offset);
        cr_expect_eq(losses[searched], (float)rw_item(b.t, loss));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_read(NULL, rw_gradient(x), gradient[searched], sizeof gradient[0]);
        rw_read(NULL, mean, kept[searched], sizeof kept[0]);
        rw_tape_reset(b.t);
        if (!searched) continue;
        cr_expect_eq(memcmp(gradient[0], gradient[1], sizeof gradient[0]), 0);
        cr_expect_eq(memcmp(kept[0], kept[1], sizeof kept[0]), 0);
        cr_expect(kept[0][0] == 3.5f && losses[0] == losses[1]);
    }
}

static rw_status run_nothing(const rw_kernel *k) { return RW_OK; }
static rw_status check_like(rw_op_call *call) { return rw_op_output_like(call, 0, 0); }
static const rw_op_def counter = { .name = "counter", .n_inputs = 1, .n_outputs = 1,
                                   .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT, .check = check_like,
                                   .kernel = { [RW_DEVICE_CPU] = run_nothing, [RW_DEVICE_CUDA] = run_nothing } };

Test(nonfinite, an_op_with_an_effect_is_not_run_twice)
{
    rw_nonfinite where;
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3 }, 3);
    rw_apply(b.t, &counter, (rw_tensor *const[]){ x }, 1, NULL, 0, NULL);
    cr_expect_eq(rw_find_nonfinite(b.t, sum(rw_mul(b.t, x, x)), 0, &where), RW_ERR_UNSUPPORTED);
    cr_expect(strstr(rw_error_message(b.ctx), "one with counter and its effect"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
}

/* Later writes are reported, because the step would not be the same one. */
Test(nonfinite, after_the_update_it_is_too_late)
{
    rw_nonfinite where;
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3 }, 3), *const loss = sum(rw_mul(b.t, x, x));
    rw_item(b.t, loss);
    rw_init_constant(x, 2);
    cr_expect_eq(rw_find_nonfinite(b.t, loss, 0, &where), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
}

/* A hardware error that occurs once: the first execution adds this to its first element. */
static float mistake;

static rw_status copy_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    *(float *)k->out[0].data += mistake;
    mistake = 0;
    return RW_OK;
}

static rw_status copy_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(copy_kernel)
static const rw_op_def copy_op = { .name = "copy_op", .n_inputs = 1, .n_outputs = 1, .check = check_like,
                                   .kernel = HOST_KERNEL(copy_kernel), .grad = copy_grad };

Test(nonfinite, a_rerun_that_comes_out_different_is_a_fault_of_the_machine)
{
    const float mistakes[] = { NAN, 0x1p-20f, 0 };
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3 }, 3);
    for (int i = 0; i < 3; i++) {
        mistake = mistakes[i];
        rw_tensor *const loss = sum(rw_apply(b.t, &copy_op, (rw_tensor *const[]){ x }, 1, NULL, 0, NULL));
        const double before = rw_item(b.t, loss);
        cr_expect_eq(isnan(before), i == 0);
        const rw_nonfinite where = find(loss, 0);
        cr_expect(!where.found && where.differs == (i < 2));
        cr_expect_str_eq(where.op, i < 2 ? "sum" : "");
        char text[512] = "";
        FILE *const f = fmemopen(text, sizeof text, "w");
        rw_nonfinite_print(&where, f);
        fclose(f);
        cr_expect_eq(strstr(text, "different bytes than were read before: a hardware fault") != NULL, i < 2);
        const double after = rw_item(b.t, loss); /* the value that was read stays the same */
        cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
        rw_tape_reset(b.t);
    }
}

Test(nonfinite, a_whole_net_is_finite)
{
    struct net net;
    net_init(&net, b.ctx, 2, 16, RW_BF16, 2);
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    cr_expect(!find(net_loss(&net, b.t, 8, 1), 0).found);
}

Test(nonfinite, mistakes_are_refused)
{
    rw_nonfinite where = { .element = 77 };
    rw_tensor *const x = param("x", (float[]){ 1, 2, 3 }, 3), *const loss = sum(rw_mul(b.t, x, x));
    cr_expect_eq(rw_find_nonfinite(NULL, loss, 0, &where), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_find_nonfinite(b.t, loss, 0, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_find_nonfinite(b.t, loss, 2, &where), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "rw_find_nonfinite(flags): expected 0 or RW_NONFINITE_NAN, got 0x2"));
    rw_error_clear(b.ctx);
    cr_expect_neq(rw_find_nonfinite(b.t, rw_mul(b.t, x, x), 0, &where), RW_OK);
    rw_error_clear(b.ctx);
    cr_expect_eq(where.element, 77);
    char text[512] = "";
    FILE *const f = fmemopen(text, sizeof text, "w");
    rw_nonfinite_print(NULL, f);
    rw_nonfinite_print(&(rw_nonfinite){ 0 }, f);
    where = (rw_nonfinite){ .found = true, .op = "div", .region = "mlp", .site = "a.c:7", .value = "h", .got = NAN,
                            .element = 2, .count = 3, .elements = 4, .least = -1, .greatest = 5 };
    rw_nonfinite_print(&where, f);
    where.backward = true;
    snprintf(where.rule_op, sizeof where.rule_op, "mul");
    rw_nonfinite_print(&where, f);
    fclose(f);
    cr_expect_str_eq(text, "every value of the step is finite\nforward value of \"h\": nan, the first of 3 of 4 "
                           "elements, at 2; by div in mlp at a.c:7, which reads -1 to 5\ngradient of \"h\": nan, the "
                           "first of 3 of 4 elements, at 2; of div in mlp at a.c:7, computed by mul, which reads -1 to "
                           "5\n");
}

Test(nonfinite, without_memory_nothing_changes)
{
    rw_nonfinite where = { .element = 77 };
    rw_tensor *const x = param("x", (float[]){ 1, 0, 3 }, 3), *const loss = sum(rw_log(b.t, x));
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        rw_alloc_fail_at(n);
        const rw_status status = rw_find_nonfinite(b.t, loss, 0, &where);
        rw_alloc_fail_at(0);
        if (!status) break;
        failures++;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_eq(where.element, 77);
    }
    cr_assert_gt(failures, 3);
    cr_assert(where.found && where.element == 1 && where.got == -INFINITY);
}

/* The search executes non-deterministic ops once more; values that the program has read stay the same. */
static int n_runs;

static rw_status count_kernel(const rw_kernel *k)
{
    n_runs++;
    for (int i = 0; i < 3; i++) ((float *)k->out[0].data)[i] = (float)n_runs;
    return RW_OK;
}

static rw_status like_input(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status pass_on(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(count_kernel)
static const rw_op_def counting = { .name = "counting", .n_inputs = 1, .n_outputs = 1, .check = like_input,
                                    .grad = pass_on, .flags = RW_OP_NONDETERMINISTIC,
                                    .kernel = HOST_KERNEL(count_kernel) };

Test(nonfinite, what_was_read_stays)
{
    rw_tensor *const x = param("x", (float[]){ -1, 2, 3 }, 3), *const in[] = { x };
    rw_tensor *const r = rw_apply(b.t, &counting, in, 1, NULL, 0, NULL);
    rw_tensor *z = rw_mul(b.t, r, x), *const y = rw_scale(b.t, x, 2);
    float before[3], after[3];
    cr_assert_eq(rw_read(b.t, r, before, sizeof before), RW_OK);
    cr_assert_eq(rw_read(b.t, y, after, sizeof after), RW_OK);
    for (int i = 0; i < 40; i++) rw_require_grad(b.t, z = rw_scale(b.t, z, 1));
    find(sum(rw_log(b.t, z)), 0); /* it ends at the op whose bytes differ from those that were read */
    cr_assert_eq(rw_read(b.t, r, after, sizeof after), RW_OK);
    cr_expect(!memcmp(before, after, sizeof after), "%g, then %g", (double)before[0], (double)after[0]);
    cr_assert_eq(rw_read(b.t, y, after, sizeof after), RW_OK);
    cr_expect_eq(after[2], 6);
}
