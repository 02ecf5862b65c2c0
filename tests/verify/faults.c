/* The verifier with planted faults: it must detect each one, and name the node, the element and the cause. */
#include "support/support.h"

#include "verify/faults.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world {
    struct fixture b;
    rw_tensor *w, *v, *loss;
};

static void build(struct world *x, uint64_t seed)
{
    x->b = fixture_open(seed, 2);
    ckpt_set_policy(x->b.t, "full");
    x->w = rw_param(x->b.ctx, "w", RW_F32, RW_SHAPE(32, 32));
    x->v = rw_param(x->b.ctx, "v", RW_F32, RW_SHAPE(32));
    rw_init_normal(x->w, 0, 0.2);
    rw_init_normal(x->v, 0, 1);
}

/* Three terms contribute to the gradient of each g, of the last h, and of the value before it: their sums have an
   order. */
static void record(struct world *x)
{
    rw_tape *const t = x->b.t;
    rw_tensor *h = rw_mul(t, rw_randn(t, RW_F32, RW_SHAPE(8, 32)), x->v);
    for (int l = 0; l < 2; l++) {
        ckpt_begin(t, l ? "second" : "first");
        rw_tensor *const g = rw_gelu(t, rw_linear(t, h, x->w, RW_NONE));
        h = rw_add(t, h, rw_mul(t, rw_dropout(t, g, 0.3f), rw_mul(t, g, g)));
        ckpt_end(t);
    }
    x->loss = rw_mean(t, rw_mul(t, h, rw_mul(t, h, rw_tanh(t, h))), RW_ALL_AXES, false);
}

static struct rw_fault struck; /* the last fault, with its location */

/* Plants the fault and verifies. False if it found no target. */
static bool verify_with_any(struct rw_fault fault, ckpt_report *ret)
{
    struct world x;
    char at[sizeof ret->site];
    build(&x, 3);
    record(&x);
    cr_assert_eq(ckpt_verify(x.b.t, x.loss, NULL), RW_OK, "without a fault all is equal: %s",
                 rw_error_message(x.b.ctx));
    rw_fault = fault;
    const rw_status status = ckpt_verify(x.b.t, x.loss, ret);
    struck = rw_fault;
    rw_fault = (struct rw_fault){ 0 };
    if (struck.struck) {
        cr_assert_eq(status, RW_ERR_MISMATCH, "%s", rw_error_message(x.b.ctx));
        cr_assert_not(ret->identical);
        cr_assert_gt(ret->mismatches, 0);
        snprintf(at, sizeof at, "%s:%d", struck.at.file, (int)struck.at.line);
        cr_assert_str_eq(ret->site, at, "another node is named");
        cr_assert(strstr(ret->site, "faults.c:"), "%s", ret->site);
        cr_assert_str_eq(ret->op, fault.op);
    }
    fixture_close(&x.b);
    return struck.struck;
}

static ckpt_report verify_with(struct rw_fault fault)
{
    ckpt_report r = { 0 };
    cr_assert(verify_with_any(fault, &r), "the fault was never planted");
    return r;
}

Test(faults, a_skewed_ticket)
{
    const ckpt_report r = verify_with((struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" });
    cr_assert_str_eq(r.op, "dropout");
    cr_assert_eq(r.cause, CKPT_CAUSE_TICKET, "%s", ckpt_cause_name(r.cause));
    cr_assert_str_eq(r.region, "second", "backward meets the second region first");
}

Test(faults, one_corrupted_element_of_a_replay)
{
    const ckpt_report r = verify_with((struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "linear", .element = 77 });
    cr_assert_str_eq(r.op, "linear");
    cr_assert_eq(r.cause, CKPT_CAUSE_CORRUPTION, "%s", ckpt_cause_name(r.cause));
    cr_assert_eq(r.element, 77);
    cr_assert_eq(r.ulp, 1);
    cr_assert_neq(r.expected, r.got);
}

Test(faults, the_second_region_is_told_from_the_first)
{
    const ckpt_report r = verify_with(
        (struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "gelu", .element = 5, .skip = 1 });
    cr_assert_str_eq(r.region, "first");
    cr_assert_str_eq(r.op, "gelu");
}

Test(faults, a_reordered_accumulation)
{
    const ckpt_report r = verify_with((struct rw_fault){ .kind = RW_FAULT_REORDER, .op = "accumulate" });
    cr_assert_str_eq(r.op, "accumulate");
    cr_assert_eq(r.cause, CKPT_CAUSE_ORDER, "%s", ckpt_cause_name(r.cause));
    cr_assert_not(r.replay);
    cr_assert_neq(r.expected, r.got);
    cr_assert(fabs(r.expected - r.got) < 1e-5 * fmax(fabs(r.expected), 1), "%g, %g: more than a rounding", r.expected,
              r.got);
}

Test(faults, a_parameter_that_changes_before_its_replay)
{
    const ckpt_report r = verify_with((struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "linear" });
    cr_assert_str_eq(r.op, "linear");
    cr_assert_eq(r.cause, CKPT_CAUSE_INPUT_CHANGED, "%s", ckpt_cause_name(r.cause));
}

/* A caller's op with a wrong declaration: its result depends on its number of executions. */
static rw_status fickle_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status fickle_kernel(const rw_kernel *k)
{
    static int runs;
    runs++;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++)
        ((float *)k->out[0].data)[i] = ((const float *)k->in[0].data)[i] + (i == 4 ? (float)runs * 0.125f : 0);
    return RW_OK;
}

static rw_status fickle_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(fickle_kernel)
static rw_op_def fickle = { .name = "fickle", .n_inputs = 1, .n_outputs = 1, .check = fickle_check,
                            .kernel = HOST_KERNEL(fickle_kernel), .grad = fickle_grad };

static rw_tensor *fickle_loss(struct fixture *b)
{
    rw_tensor *p = rw_param_find(b->ctx, "p");
    if (!p) {
        p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(8));
        rw_init_normal(p, 0, 1);
    }
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_apply(b->t, &fickle, &p, 1, NULL, 0, NULL);
    rw_tensor *const z = rw_mul(b->t, y, y);
    ckpt_end(b->t);
    return rw_sum(b->t, z, RW_ALL_AXES, false);
}

Test(faults, a_nondeterministic_op_of_the_caller)
{
    struct fixture b = fixture_open(3, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const loss = fickle_loss(&b);
    ckpt_report r;
    cr_assert_eq(ckpt_verify(b.t, loss, &r), RW_ERR_MISMATCH);
    cr_assert_str_eq(r.op, "fickle");
    cr_assert_eq(r.cause, CKPT_CAUSE_NONDETERMINISTIC, "%s", ckpt_cause_name(r.cause));
    cr_assert_eq(r.element, 4);
    fixture_close(&b);
}

/* Two results, x and 2 x; one element of the second depends on the number of executions. */
static rw_status pair_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output_like(call, 1, 0);
}

static rw_status pair_kernel(const rw_kernel *k)
{
    static int runs;
    const float *const x = k->in[0].data;
    float *const once = k->out[0].data, *const twice = k->out[1].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) once[i] = x[i], twice[i] = 2 * x[i];
    twice[5] += 0.125f * (float)runs++;
    return RW_OK;
}

static rw_status pair_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    return rw_grad_set(g, 0, rw_add(t, rw_grad_upstream(g, 0), rw_scale(t, rw_grad_upstream(g, 1), 2)));
}

HOST_KERNEL_OF(pair_kernel)
static const rw_op_def pair = { .name = "pair", .n_inputs = 1, .n_outputs = 2, .check = pair_check,
                                .kernel = HOST_KERNEL(pair_kernel), .grad = pair_grad };

static rw_tensor *pair_loss(struct fixture *b)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(8));
    rw_init_normal(p, 0, 1);
    ckpt_begin(b->t, "r");
    rw_tensor *parts[2];
    rw_apply(b->t, &pair, (rw_tensor *[]){ p }, 1, NULL, 0, parts);
    rw_tensor *const z = rw_mul(b->t, rw_mul(b->t, parts[0], parts[1]), parts[1]);
    ckpt_end(b->t);
    return rw_sum(b->t, z, RW_ALL_AXES, false);
}

Test(faults, every_output_of_an_op_is_compared)
{
    struct fixture b = fixture_open(3, 1);
    ckpt_set_policy(b.t, "full");
    ckpt_report r;
    cr_assert_eq(ckpt_verify(b.t, pair_loss(&b), &r), RW_ERR_MISMATCH);
    cr_assert_str_eq(r.op, "pair");
    cr_assert_eq(r.element, 5);
    fixture_close(&b);
    setenv("REWIND_VERIFY", "digest", 1);
    b = fixture_open(3, 1);
    unsetenv("REWIND_VERIFY");
    ckpt_set_policy(b.t, "full");
    cr_assert_eq(rw_backward(b.t, pair_loss(&b)), RW_ERR_MISMATCH);
    cr_assert(strstr(rw_error_message(b.ctx), "pair"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(faults, an_op_that_says_so_is_kept_and_verified_around)
{
    struct fixture b = fixture_open(3, 1);
    ckpt_set_policy(b.t, "full");
    fickle.flags = RW_OP_NONDETERMINISTIC;
    rw_tensor *const loss = fickle_loss(&b);
    ckpt_report r;
    cr_assert_eq(ckpt_verify(b.t, loss, &r), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(r.kept_nondeterministic, 1);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    fixture_close(&b);
}

/* Each execution of that op in turn: exactly that node must be named. Returns their number. */
static int strike_each(struct rw_fault fault)
{
    ckpt_report r;
    int n = 0;
    for (fault.skip = 0; verify_with_any(fault, &r); fault.skip = ++n) {}
    return n;
}

Test(faults, whichever_node_is_struck_is_the_one_named)
{
    cr_assert_eq(strike_each((struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" }), 2);
    cr_assert_eq(strike_each((struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "linear", .element = 200 }), 2);
    cr_assert_eq(strike_each((struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "gelu", .element = 0 }), 2);
    cr_assert_gt(strike_each((struct rw_fault){ .kind = RW_FAULT_REORDER, .op = "accumulate" }), 2);
    cr_assert_geq(strike_each((struct rw_fault){ .kind = RW_FAULT_REORDER, .op = "matmul_add" }), 2);
}

/* The cause that the message must state. A digest cannot distinguish the others. */
static const char *cause_in(const char *mode, struct rw_fault fault)
{
    if (fault.kind == RW_FAULT_TICKET) return "drew different random numbers";
    if (fault.kind != RW_FAULT_PARAMETER) return "";
    return strcmp(mode, "digest") ? "a parameter, input or buffer that it reads changed" : "parameter \"w\" changed";
}

/* REWIND_VERIFY: only the environment changes; rw_backward() fails and its message names the node. */
static void by_environment(const char *mode, struct rw_fault fault, bool found)
{
    setenv("REWIND_VERIFY", mode, 1);
    struct world x;
    build(&x, 3);
    unsetenv("REWIND_VERIFY");
    record(&x);
    rw_fault = fault;
    const rw_status status = rw_backward(x.b.t, x.loss);
    const struct rw_fault after = rw_fault;
    rw_fault = (struct rw_fault){ 0 };
    const char *const m = rw_error_message(x.b.ctx);
    cr_assert(!fault.kind || after.struck, "%s: the fault was never planted", mode);
    cr_assert_eq(status, found ? RW_ERR_MISMATCH : RW_OK, "%s: %s", mode, m);
    if (found) {
        char at[256];
        snprintf(at, sizeof at, "%s:%d", after.at.file, (int)after.at.line);
        cr_assert(strstr(m, fault.op) && strstr(m, at), "%s at %s is not named: %s", fault.op, at, m);
        cr_assert(strstr(m, cause_in(mode, fault)), "\"%s\" is not said: %s", cause_in(mode, fault), m);
    }
    fixture_close(&x.b);
}

static void fickle_by_environment(const char *mode)
{
    setenv("REWIND_VERIFY", mode, 1);
    struct fixture b = fixture_open(3, 1);
    unsetenv("REWIND_VERIFY");
    ckpt_set_policy(b.t, "full");
    fickle.flags = 0;
    cr_assert_eq(rw_backward(b.t, fickle_loss(&b)), RW_ERR_MISMATCH, "%s", mode);
    const char *const m = rw_error_message(b.ctx);
    cr_assert(strstr(m, "fickle") && strstr(m, "faults.c:") && strstr(m, "\"r\""), "%s", m);
    fixture_close(&b);
}

Test(faults, rewind_verify_1_finds_every_kind)
{
    by_environment("1", (struct rw_fault){ 0 }, false);
    by_environment("1", (struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" }, true);
    by_environment("1", (struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "gelu", .element = 1 }, true);
    by_environment("1", (struct rw_fault){ .kind = RW_FAULT_REORDER, .op = "accumulate" }, true);
    by_environment("1", (struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "linear" }, true);
    fickle_by_environment("1");
}

Test(faults, rewind_verify_digest_finds_every_kind_that_a_replay_shows)
{
    by_environment("digest", (struct rw_fault){ 0 }, false);
    by_environment("digest", (struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" }, true);
    by_environment("digest", (struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "linear", .element = 9 }, true);
    by_environment("digest", (struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "linear" }, true);
    fickle_by_environment("digest");
}

/* It has nothing to compare an adjoint node with: its promise is that each replay equals its first execution. */
Test(faults, rewind_verify_digest_looks_at_replays_alone)
{
    by_environment("digest", (struct rw_fault){ .kind = RW_FAULT_REORDER, .op = "accumulate" }, false);
}

/* A fault at launch number `at`: for a captured graph the next call that reads reports it, otherwise the launch. */
static void launch_with(struct rw_fault fault, int at)
{
    setenv("REWIND_VERIFY", "digest", 1);
    struct world x;
    build(&x, 3);
    unsetenv("REWIND_VERIFY");
    record(&x);
    rw_graph *g = NULL;
    float gradient[32];
    cr_assert_eq(rw_graph_create(&g, x.b.t, x.loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    for (int i = 0; i < at; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_item(x.b.t, x.loss);
        cr_assert_eq(rw_error_status(x.b.ctx), RW_OK, "%s", rw_error_message(x.b.ctx));
    }
    rw_fault = fault;
    rw_graph_launch(g);
    rw_fault.kind = RW_FAULT_NONE;
    cr_assert_eq(rw_fault.struck, 1);
    rw_item(x.b.t, x.loss);
    const char *const m = rw_error_message(x.b.ctx);
    cr_assert_eq(rw_error_status(x.b.ctx), RW_ERR_MISMATCH, "launch %d: %s", at, m);
    cr_assert(strstr(m, fault.op) && strstr(m, "faults.c:") && strstr(m, cause_in("digest", fault)), "%s", m);
    rw_error_clear(x.b.ctx);
    cr_assert_eq(rw_read(NULL, rw_gradient(x.v), gradient, sizeof gradient), RW_OK);
    for (int i = 0; i < 32; i++) cr_assert_eq(gradient[i], 0, "the gradients of such a step are clear");
    rw_fault = (struct rw_fault){ 0 };
    rw_graph_destroy(&g);
    fixture_close(&x.b);
}

Test(faults, rewind_verify_digest_watches_graphs)
{
    launch_with((struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" }, 0);
    launch_with((struct rw_fault){ .kind = RW_FAULT_TICKET, .op = "dropout" }, 1); /* captured with it */
    launch_with((struct rw_fault){ .kind = RW_FAULT_CORRUPT, .op = "linear", .element = 9 }, 0);
    launch_with((struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "linear" }, 0);
}
