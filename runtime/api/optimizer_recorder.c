/* An optimizer in a list of recorders: rw_record_update() and rw_record_update_inside(). */
#include "api/optimizer.h"
#include "api/optimizer_coverage.h"
#include "api/optimizer_nodes.h"
#include "api/recorder_list.h"
#include "base/alloc.h"
#include "record/gradient_state.h"
#include "ops/common/pass_ops.h"

struct recorder {
    struct rw_step_recorder recorder; /* must be first */
    rw_optimizer *opt;
    bool follows;     /* the optimizer did so when it was recorded */
    bool made_follow; /* since this recorder was opened */
    uint8_t sums;     /* enum rw_optimizer_sums, that its update computes */
    bool is_graph;    /* it is one of the optimizer's users, and part of a captured step */
};

/* ---- recording ---- */

static rw_status record_after(struct rw_step_recorder *r, struct rw_recording *now)
{
    return rw_optimizer_record_after(((struct recorder *)r)->opt, now);
}

static rw_status record_inside(struct rw_step_recorder *r, struct rw_recording *now)
{
    return rw_optimizer_record_inside(((struct recorder *)r)->opt, now);
}

static void consume(const struct rw_step_recorder *r, bool *used_up)
{
    const rw_optimizer *const opt = ((const struct recorder *)r)->opt;
    for (size_t i = 0; i < opt->n; i++) used_up[opt->members[i].param->tensor.id] = true;
}

/* ---- checks of a list ---- */

static bool is_in_file(const rw_optimizer *opt)
{
    return opt->offload && rw_optimizer_offload_is_in_file(opt->offload);
}

/* The host computes the numbers of all updates before the first one, so it could not see that an earlier one has
   changed a parameter. */
static rw_status check_members(const rw_optimizer *opt, const struct rw_recorder_check *at)
{
    for (size_t i = 0; i < at->index; i++) {
        const rw_recorder *const x = &at->list[i];
        if (!x->kind_ || x->kind_->stage != RW_STAGE_UPDATE) continue;
        const rw_optimizer *const other = x->of_;
        if (x->kind_ != at->list[at->index].kind_)
            return rw_recorder_refuse(at, RW_ERR_UNSUPPORTED, "opt", "expected updates that are all inside backward or "
                                      "all after it, got recorders[%zu]: %s()", i, x->kind_->name);
        for (size_t k = 0; k < opt->n; k++)
            if (rw_optimizer_holds(other, opt->members[k].param))
                return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "opt", "expected an optimizer without the parameters of "
                                          "recorders[%zu], got one that has \"%s\", too", i,
                                          opt->members[k].param->name);
    }
    return RW_OK;
}

static rw_status check_given(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_optimizer *const opt = given->of_;
    if (!opt) return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "opt", "expected an optimizer, got NULL");
    if (opt->ctx != at->t->ctx)
        return rw_recorder_refuse(at, RW_ERR_ARGUMENT, "opt", "expected an optimizer of the tape's context, got an "
                                  "optimizer of another context");
    return check_members(opt, at);
}

static rw_status check_after(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_status status = check_given(given, at);
    if (status || !at->is_graph || !is_in_file(given->of_)) return status;
    return rw_recorder_refuse(at, RW_ERR_UNSUPPORTED, "opt", "expected optimizer states in memory, because a captured "
                              "step cannot read files, got offloaded ones; leave the update out, and call "
                              "rw_optimizer_step() after each launch");
}

/*
 * Refuses commits of the program with updates inside backward: one that fails after parameters were updated could not
 * leave the step unchanged.
 */
static rw_status check_commits(const struct rw_recorder_check *at)
{
    const rw_tape *const t = at->t;
    for (size_t i = 0; i < t->n_effects; i++) {
        const struct rw_node *const node = &t->nodes[t->effects[i].node];
        const rw_op_def *const op = t->ctx->ops[node->op];
        if (!(op->flags & RW_OP_COMMIT) || op->kernel[RW_DEVICE_AUTO] == rw_op_is_own) continue;
        const rw_site site = t->ctx->sites[node->site];
        return rw_recorder_refuse(at, RW_ERR_UNSUPPORTED, "opt", "%s, recorded at %s:%d, writes buffers (RW_OP_COMMIT) "
                                  "and may fail after parameters were updated; update after backward", op->name,
                                  rw_file_of(site), site.line);
    }
    return RW_OK;
}

static rw_status check_inside(const rw_recorder *given, const struct rw_recorder_check *at)
{
    const rw_optimizer *const opt = given->of_;
    const rw_status status = check_given(given, at);
    if (status) return status;
    if (opt->offload)
        return rw_recorder_refuse(at, RW_ERR_UNSUPPORTED, "opt", "expected optimizer states in the device's memory, "
                                  "got offloaded ones; leave the update out, and call rw_optimizer_step() after each "
                                  "launch");
    return check_commits(at);
}

/* ---- in a list ---- */

static rw_status open_recorder(const rw_recorder *given, const struct rw_recorder_use *use,
                               struct rw_step_recorder **ret)
{
    rw_optimizer *const opt = given->of_;
    struct recorder *const x = rw_calloc(1, sizeof *x);
    if (!x) return rw_fail(use->ctx, RW_ERR_MEMORY, "%s: out of memory", use->call);
    const bool followed = rw_optimizer_follows(opt);
    const rw_status status = use->skips ? rw_optimizer_follow(opt, use->call) : RW_OK;
    if (status) {
        rw_free(x);
        return status;
    }
    *x = (struct recorder){ .opt = opt, .follows = rw_optimizer_follows(opt) };
    x->made_follow = x->follows && !followed;
    if (rw_optimizer_is_watched(opt))
        x->sums = given->kind_->updates_inside ? RW_SUMS_APART : RW_SUMS_TOGETHER;
    x->is_graph = use->is_graph;
    if (x->is_graph) rw_optimizer_share(opt);
    *ret = &x->recorder;
    return RW_OK;
}

/* An optimizer that would count on the device without need would invalidate other graphs. */
static void close_recorder(struct rw_step_recorder *r, bool never_ran)
{
    struct recorder *const x = (struct recorder *)r;
    if (never_ran && x->made_follow) rw_optimizer_unfollow(x->opt);
    if (x->is_graph) rw_optimizer_release(x->opt);
    rw_free(x);
}

static void depend(struct rw_step_recorder *r, struct rw_dependent *d, void (*gone)(struct rw_dependent *d))
{
    rw_optimizer_depend(((struct recorder *)r)->opt, d, gone);
}

/* Its plan has neither been made for an optimizer that counted elsewhere, nor for other observers. */
static bool is_current(const struct rw_step_recorder *r)
{
    const struct recorder *const x = (const struct recorder *)r;
    return x->follows == rw_optimizer_follows(x->opt) && (x->sums != RW_NO_SUMS) == rw_optimizer_is_watched(x->opt);
}

static rw_status attend(struct rw_step_recorder *r, struct rw_run *run)
{
    return rw_optimizer_attend(((struct recorder *)r)->opt, run);
}

static rw_status check_launch(const struct rw_step_recorder *r, const struct rw_run *run, const char *call)
{
    const struct recorder *const x = (const struct recorder *)r;
    if (x->follows != rw_optimizer_follows(x->opt))
        return rw_fail(x->opt->ctx, RW_ERR_MODIFIED,
                       "%s: the optimizer counts its steps on the device since a later rw_scaler_step() or "
                       "rw_graph_create() with a scaler; create the graph again", call);
    return rw_optimizer_coverage_check_ids(x->opt->ctx, run->plan->gradients, run->plan->n_gradients, call);
}

/* A gradient whose address the caller has is never clear, so its parameter is updated in every step. But inside
   backward a parameter that the step does not reach has no update. */
static rw_status check_launch_inside(const struct rw_step_recorder *r, const struct rw_run *run, const char *call)
{
    const rw_optimizer *const opt = ((const struct recorder *)r)->opt;
    const rw_plan *const p = run->plan;
    const rw_status status = check_launch(r, run, call);
    if (status) return status;
    for (size_t i = 0; i < opt->n; i++) {
        const struct rw_param *const x = opt->members[i].param;
        size_t k = 0;
        if (!x->gradient.shared) continue;
        while (k < p->n_used_up && p->used_up[k] != x->tensor.id) k++;
        if (k == p->n_used_up)
            return rw_fail(opt->ctx, RW_ERR_UNSUPPORTED,
                           "%s(rw_record_update_inside): rw_tensor_data() has returned the address of the gradient of "
                           "\"%s\", which the step does not reach; update after backward", call, x->name);
    }
    return RW_OK;
}

static rw_status check_update(const struct rw_step_recorder *r, const char *call)
{
    return rw_optimizer_coverage_check(((const struct recorder *)r)->opt->ctx, call);
}

static rw_status before(struct rw_step_recorder *r)
{
    const rw_optimizer *const opt = ((struct recorder *)r)->opt;
    return opt->offload ? rw_optimizer_offload_before_launch(opt->offload) : RW_OK;
}

static rw_status prepare(struct rw_step_recorder *r)
{
    const struct recorder *const x = (struct recorder *)r;
    return rw_optimizer_prepare(x->opt, (enum rw_optimizer_sums)x->sums);
}

static const void *address_of(const struct rw_step_recorder *r)
{
    return rw_optimizer_store(((const struct recorder *)r)->opt);
}

static void captured(struct rw_step_recorder *r)
{
    const rw_optimizer *const opt = ((struct recorder *)r)->opt;
    if (opt->offload) rw_optimizer_offload_launched(opt->offload, false);
}

static void failed(struct rw_step_recorder *r)
{
    rw_optimizer_failed(((struct recorder *)r)->opt);
}

static void launched(struct rw_step_recorder *r)
{
    const struct recorder *const x = (struct recorder *)r;
    if (x->is_graph && x->opt->offload) rw_optimizer_offload_launched(x->opt->offload, true);
    rw_optimizer_count(x->opt);
}

static const struct rw_recorder_kind kind_after = { .name = "rw_record_update",
                                                    .stage = RW_STAGE_UPDATE,
                                                    .check = check_after,
                                                    .open = open_recorder,
                                                    .close = close_recorder,
                                                    .depend = depend,
                                                    .is_current = is_current,
                                                    .record = record_after,
                                                    .attend = attend,
                                                    .check_launch = check_launch,
                                                    .check_update = check_update,
                                                    .before = before,
                                                    .prepare = prepare,
                                                    .address = address_of,
                                                    .captured = captured,
                                                    .failed = failed,
                                                    .launched = launched };

static const struct rw_recorder_kind kind_inside = { .name = "rw_record_update_inside",
                                                     .stage = RW_STAGE_UPDATE,
                                                     .updates_inside = true,
                                                     .needs_graph = true,
                                                     .check = check_inside,
                                                     .open = open_recorder,
                                                     .close = close_recorder,
                                                     .consume = consume,
                                                     .record = record_inside,
                                                     .check_launch = check_launch_inside,
                                                     .prepare = prepare,
                                                     .failed = failed,
                                                     .launched = launched };

rw_recorder rw_record_update(rw_optimizer *opt)
{
    RW_LOOKS_ONLY;
    return (rw_recorder){ .kind_ = &kind_after, .of_ = opt };
}

rw_recorder rw_record_update_inside(rw_optimizer *opt)
{
    RW_LOOKS_ONLY;
    return (rw_recorder){ .kind_ = &kind_inside, .of_ = opt };
}
