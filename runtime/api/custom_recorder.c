/*
 * A caller's own recorder: calls its functions while a plan is made, as gradient rules are called, and checks what they
 * have recorded. Their ops are nodes of the plan like any other; commits are those of rw_assign(), which the run
 * counts.
 */
#include "api/recorder_list.h"

#include "base/alloc.h"
#include "record/handle_check.h"
#include "record/param.h"
#include "ops/common/pass_ops.h"

struct custom {
    struct rw_step_recorder recorder; /* must be first */
    const rw_recorder_def *def;
    void *user;
};

/* ---- around a call ---- */

/* The state of a tape before a call. */
struct before {
    struct rw_origin origin;
    size_t nodes;
    uint32_t region, part, recipe;
    unsigned no_grads;
    enum rw_callback callback;
};

/* What it records belongs to the node that is differentiated, if there is one, but has no random numbers: those of the
   node are its own. */
static struct before enter(rw_tape *t)
{
    const struct before b = { t->origin,           t->n_nodes,      t->open_region,
                              t->open_part,        t->open_recipe,  t->open_no_grads,
                              rw_callback_enter(t->ctx, RW_CALLBACK_RULE) };
    if (!t->origin.adjoint) t->origin = rw_origin_of(t, RW_NONE_ID);
    t->origin.ticket = RW_NONE_ID;
    t->open_no_grads = 0;
    t->n_rules++;
    return b;
}

/* A commit is one of rw_assign(): the run counts it, and it cannot fail. gradient() may run twice in a step, so it has
   no effects. */
static rw_status check_nodes(const struct custom *c, const rw_tape *t, size_t first, bool assigns)
{
    for (size_t n = first; n < t->n_nodes; n++) {
        const rw_op_def *const op = t->ctx->ops[t->nodes[n].op];
        if (!(op->flags & RW_OP_STATEFUL) || (assigns && (op->flags & RW_OP_OWN_COUNTED))) continue;
        return rw_fail(t->ctx, RW_ERR_UNSUPPORTED, "rw_record_custom(%s): %s() expected ops without an effect "
                       "(RW_OP_STATEFUL)%s, got %s", c->def->name, assigns ? "record" : "gradient",
                       assigns ? " other than rw_assign()" : "; record() may assign", op->name);
    }
    return RW_OK;
}

static rw_status check_scopes(const struct custom *c, rw_tape *t, const struct before *b)
{
    const bool is_open = t->open_region != b->region || t->open_part != b->part || t->open_recipe != b->recipe ||
                         t->open_no_grads;
    t->open_region = b->region;
    t->open_part = b->part;
    t->open_recipe = b->recipe;
    t->open_no_grads = b->no_grads;
    if (!is_open || t->ctx->status) return t->ctx->status;
    return rw_fail(t->ctx, RW_ERR_REGION, "rw_record_custom(%s): expected regions, policies, recipes and no-grad "
                   "scopes that it begins to be ended by it, and no others, got another order", c->def->name);
}

/* An error that an op has recorded comes first. */
static rw_status leave(const struct custom *c, rw_tape *t, const struct before *b, bool assigns)
{
    t->n_rules--;
    rw_callback_leave(t->ctx, b->callback); /* a refused call has recorded an error */
    t->origin = b->origin;
    const rw_status status = check_scopes(c, t, b);
    return status ? status : check_nodes(c, t, b->nodes, assigns);
}

/* ---- recording ---- */

static rw_status begin(struct rw_step_recorder *r, const struct rw_recording *now)
{
    const struct custom *const c = (struct custom *)r;
    if (!c->def->begin) return RW_OK;
    const struct before b = enter(now->t);
    c->def->begin(c->user);
    return leave(c, now->t, &b, false);
}

static rw_status begin_again(struct rw_step_recorder *r, struct rw_recording *now)
{
    return begin(r, now);
}

/* The result takes the gradient's place, and its memory. */
static rw_tensor *checked(const struct custom *c, const rw_tape *t, const struct rw_param *p, const rw_tensor *g,
                          rw_tensor *y)
{
    char text[RW_FAULT_TEXT];
    const char *const fault = rw_value_fault(t, y);
    if (fault)
        rw_fail(t->ctx, RW_ERR_ARGUMENT, "rw_record_custom(%s): gradient of \"%s\": %s", c->def->name, p->name,
                rw_fault_text(text, y, "the result", "a value of the tape", fault));
    else if (y->dtype != g->dtype || !rw_shape_equal(rw_tensor_shape(y), rw_tensor_shape(g)))
        rw_fail(t->ctx, RW_ERR_SHAPE, "rw_record_custom(%s): gradient of \"%s\": expected a result of the gradient's "
                "shape and type, %s, got another", c->def->name, p->name, rw_dtype_name((rw_dtype)g->dtype));
    return t->ctx->status ? NULL : y;
}

static rw_tensor *pass(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param, rw_tensor *gradient)
{
    const struct custom *const c = (struct custom *)r;
    rw_tape *const t = now->t;
    struct rw_param *const p = t->ctx->by_id[param];
    if (!c->def->gradient) return gradient;
    const struct before b = enter(t);
    rw_tensor *const y = c->def->gradient(c->user, t, &p->tensor, gradient);
    return leave(c, t, &b, false) ? NULL : checked(c, t, p, gradient, y);
}

static rw_status record(struct rw_step_recorder *r, struct rw_recording *now)
{
    const struct custom *const c = (struct custom *)r;
    rw_tape *const t = now->t;
    if (!c->def->record) return RW_OK;
    const struct before b = enter(t);
    const rw_status returned = c->def->record(c->user, t);
    const rw_status status = leave(c, t, &b, true);
    if (status || !returned) return status;
    const bool known = rw_is_status((int)returned);
    return rw_fail(t->ctx, known ? returned : RW_ERR_ARGUMENT, "rw_record_custom(%s): record() failed: %s",
                   c->def->name, known ? rw_status_name(returned) : "expected an rw_status, got another number");
}

/* ---- in a list ---- */

static rw_status check_given(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_recorder_def *const def = given->def_;
    if (!def) return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "def", "expected a definition, got NULL");
    if (!def->name) return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "def->name", "expected a name, got NULL");
    if (def->gradient || def->record) return RW_OK;
    return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "def", "expected a gradient or a record function, got neither");
}

static rw_status open_recorder(const rw_recorder *given, const struct rw_recorder_use *use,
                               struct rw_step_recorder **ret)
{
    struct custom *const c = rw_calloc(1, sizeof *c);
    if (!c) return rw_fail(use->ctx, RW_ERR_MEMORY, "%s: out of memory", use->call);
    *c = (struct custom){ .def = given->def_, .user = given->of_ };
    *ret = &c->recorder;
    return RW_OK;
}

static void close_recorder(struct rw_step_recorder *r, bool never_ran)
{
    rw_free(r);
}

static const struct rw_recorder_kind kind = { .name = "rw_record_custom",
                                              .stage = RW_STAGE_GRADIENT,
                                              .needs_graph = true,
                                              .check = check_given,
                                              .open = open_recorder,
                                              .close = close_recorder,
                                              .begin = begin,
                                              .gradient = pass,
                                              .end_of_pass = begin_again,
                                              .record = record };

rw_recorder rw_record_custom(const rw_recorder_def *def, void *user)
{
    RW_LOOKS_ONLY;
    return (rw_recorder){ .kind_ = &kind, .of_ = user, .def_ = def };
}
