/* Reads the sums of an optimizer, and saves and restores its states. */
#include "api/optimizer_kept.h"

#include "api/optimizer_struct.h"
#include "base/alloc.h"
#include "run/run_advance.h"

/* ---- sums ---- */

/* Adds the sums of a group's pieces to those of their parameters. */
static rw_status read_group_sums(rw_optimizer *opt, size_t group, double (*room)[RW_UPDATE_SUMS],
                                 double (*ret)[RW_UPDATE_SUMS])
{
    rw_context *const ctx = opt->ctx;
    const struct rw_param *const from = opt->sums[group];
    const rw_status status = ctx->device->download(ctx->device_state, room, from->data, from->bytes);
    for (size_t i = 0; !status && i < rw_group_size(opt, group); i++)
        for (int j = 0; j < RW_UPDATE_SUMS; j++)
            ret[opt->pieces.piece[opt->pieces.first[group] + i].member][j] += room[i][j];
    return status;
}

/* Those of a parameter that the last update left out are of an earlier one: no op has written them since. */
static rw_status read_sums_apart(const rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS])
{
    const rw_context *const ctx = opt->ctx;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < opt->n; i++)
        if (opt->members[i].updated)
            status = ctx->device->download(ctx->device_state, ret[i], opt->members[i].sums->data, sizeof *ret);
    return status;
}

/* Reads the sums per parameter, or per piece of a group. */
static rw_status read_all_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS])
{
    rw_status status = RW_OK;
    for (size_t i = 0; i < opt->n; i++)
        for (int j = 0; j < RW_UPDATE_SUMS; j++) ret[i][j] = 0;
    if (opt->last_sums == RW_SUMS_APART) return read_sums_apart(opt, ret);
    double(*const room)[RW_UPDATE_SUMS] = rw_malloc(RW_GROUP_MAX * sizeof *room);
    if (!room) return RW_ERR_MEMORY;
    for (size_t g = 0; !status && g < opt->pieces.n_groups; g++) status = read_group_sums(opt, g, room, ret);
    rw_free(room);
    return status;
}

uint64_t rw_optimizer_updates(const rw_optimizer *opt)
{
    return opt->n_updates;
}

rw_status rw_optimizer_read_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS], uint64_t *seen, bool *ret_known)
{
    rw_context *const ctx = opt->ctx;
    *ret_known = opt->last_sums != RW_NO_SUMS && opt->n_updates != *seen;
    *seen = opt->n_updates;
    if (!*ret_known) return RW_OK;
    rw_status status = rw_runs_wait(ctx);
    if (status) return status;
    status = read_all_sums(opt, ret);
    return status ? rw_fail(ctx, status, "an optimizer's sums could not be read: %s", rw_status_name(status)) : RW_OK;
}

/* ---- over a restart ---- */

static void settle_group(rw_optimizer *opt, size_t group, const int32_t (*pending)[2])
{
    for (size_t i = 0; i < rw_group_size(opt, group); i++) {
        const struct rw_piece *const p = &opt->pieces.piece[opt->pieces.first[group] + i];
        struct rw_member *const x = &opt->members[p->member];
        if (p->from) continue; /* its first piece has counted */
        x->step -= (uint64_t)pending[i][0];
        if (pending[i][1]) x->version = x->param->version - 1;
    }
}

/* Moves the counts of skipped updates from the device to the members. */
rw_status rw_optimizer_settle(rw_optimizer *opt)
{
    rw_context *const ctx = opt->ctx;
    if (!opt->pending) return RW_OK;
    int32_t(*const pending)[2] = rw_malloc(RW_GROUP_MAX * sizeof *pending);
    if (!pending) return rw_fail(ctx, RW_ERR_MEMORY, "an optimizer's update counts could not be read: out of memory");
    rw_status status = rw_runs_wait(ctx);
    for (size_t g = 0; !status && g < opt->pieces.n_groups; g++) {
        struct rw_param *const p = opt->pending[g];
        rw_status moved = ctx->device->download(ctx->device_state, pending, p->data, p->bytes);
        if (!moved) moved = ctx->device->clear(ctx->device_state, p->data, p->bytes);
        if (moved) status = rw_fail(ctx, moved, "an optimizer's update counts could not be read: the device failed");
        else settle_group(opt, g, pending);
    }
    rw_free(pending);
    return status;
}

const char *rw_optimizer_kind_name(const rw_optimizer *opt)
{
    return opt->kind->name;
}

double rw_optimizer_lr(const rw_optimizer *opt)
{
    return opt->numbers.lr;
}

size_t rw_optimizer_members(const rw_optimizer *opt)
{
    return opt->n;
}

struct rw_kept rw_optimizer_kept(const rw_optimizer *opt, size_t i)
{
    const struct rw_member *const x = &opt->members[i];
    const struct rw_piece *const p = &opt->pieces.piece[x->piece];
    struct rw_kept k = { .param = x->param, .step = x->step, .n = p->n_states, .lr_factor = x->lr_factor,
                         .weight_decay = x->weight_decay };
    for (int j = 0; j < k.n; j++) {
        k.dtype[j] = p->dtype[j];
        k.bytes[j] = (size_t)x->param->numel * rw_dtype_size(k.dtype[j]);
    }
    k.current = x->version == x->param->version;
    for (int j = 0; j < opt->kind->attrs.states; j++) k.name[j] = opt->kind->state[j];
    if (x->has_master) k.name[k.n - 1] = "master";
    return k;
}

rw_status rw_optimizer_check(const rw_optimizer *opt, const char *call)
{
    if (!opt->offload || !rw_optimizer_offload_is_torn(opt->offload)) return RW_OK;
    return rw_fail(opt->ctx, RW_ERR_MODIFIED,
                   "%s: an update failed partway: some parameters are updated and others are not; load a checkpoint to "
                   "use the optimizer again",
                   call);
}

rw_status rw_optimizer_read(rw_optimizer *opt, size_t i, int j, size_t at, void *to, size_t most, size_t *ret_n)
{
    rw_context *const ctx = opt->ctx;
    const struct rw_piece *p = &opt->pieces.piece[opt->members[i].piece];
    const size_t size = rw_dtype_size(p->dtype[j]);
    while (at >= (size_t)(p->from + p->n) * size) p++;
    const size_t from = at - (size_t)p->from * size, rest = (size_t)p->n * size - from;
    *ret_n = rest < most ? rest : most;
    if (opt->offload) return rw_optimizer_offload_read(opt->offload, p, j, from, to, *ret_n);
    return ctx->device->download(ctx->device_state, to, (const char *)p->state[j]->data + from, *ret_n);
}

rw_status rw_optimizer_rewrite_begin(rw_optimizer *opt)
{
    return opt->offload ? rw_optimizer_offload_rewrite_begin(opt->offload) : RW_OK;
}

rw_status rw_optimizer_write(rw_optimizer *opt, size_t i, int j, const void *from)
{
    rw_context *const ctx = opt->ctx;
    rw_status status = RW_OK;
    for (size_t k = opt->members[i].piece; !status && k < opt->pieces.n && opt->pieces.piece[k].member == i; k++) {
        const struct rw_piece *const p = &opt->pieces.piece[k];
        const void *const data = (const char *)from + (size_t)p->from * rw_dtype_size(p->dtype[j]);
        status = opt->offload ? rw_optimizer_offload_write(opt->offload, p, j, data)
                              : ctx->device->upload(ctx->device_state, p->state[j]->data, data, p->state[j]->bytes);
    }
    return status;
}

void rw_optimizer_rewrite_end(rw_optimizer *opt)
{
    if (opt->offload) rw_optimizer_offload_rewrite_end(opt->offload);
}

void rw_optimizer_resume(rw_optimizer *opt, size_t i, uint64_t step, bool current)
{
    struct rw_member *const x = &opt->members[i];
    x->step = step;
    x->version = x->param->version - !current;
}

void rw_optimizer_resume_settings(rw_optimizer *opt, size_t i, double lr_factor, double weight_decay)
{
    opt->members[i].lr_factor = lr_factor;
    opt->members[i].weight_decay = weight_decay;
}
