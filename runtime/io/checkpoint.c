/* rw_checkpoint_create(), _save(), _wait() and _destroy(): a save copies the run (snapshot.h), a thread writes the
   copy (checkpoint_writer.c), and old files are removed (checkpoint_retention.h). */
#include "io/checkpoint.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define KEEP 3

static rw_status check_params(rw_context *ctx, const rw_checkpoint_params *p)
{
    if (!p->folder || !*p->folder) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_checkpoint_create(folder): expected the "
                                                            "name of a folder, got none");
    if (p->keep < 0) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_checkpoint_create(keep): expected 0 (the default) or "
                                        "more, got %d", p->keep);
    if (p->optimizer && rw_optimizer_context(p->optimizer) != ctx)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_checkpoint_create(optimizer): expected an optimizer of ctx, got an "
                       "optimizer of another context");
    if (p->average && rw_average_context(p->average) != ctx)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_checkpoint_create(average): expected a weight average of ctx, got a "
                       "weight average of another context");
    return RW_OK;
}

static void lose(rw_checkpoint *c, const char *what)
{
    if (!c->lost) c->lost = what;
}

static void optimizer_gone(struct rw_dependent *d)
{
    rw_checkpoint *const c = (rw_checkpoint *)(void *)((char *)d - offsetof(rw_checkpoint, on_optimizer));
    c->optimizer = NULL;
    lose(c, "optimizer");
}

static void average_gone(struct rw_dependent *d)
{
    rw_checkpoint *const c = (rw_checkpoint *)(void *)((char *)d - offsetof(rw_checkpoint, on_average));
    c->average = NULL;
    lose(c, "average");
}

rw_status rw_checkpoint_check(const rw_checkpoint *c, const char *call)
{
    if (!c->lost) return RW_OK;
    return rw_fail(c->ctx, RW_ERR_ARGUMENT,
                   "%s: expected params.%s, got one that was destroyed; create a checkpoint anew, after "
                   "rw_checkpoint_destroy()", call, c->lost);
}

rw_status rw_checkpoint_create(rw_checkpoint **ret, rw_context *ctx, const rw_checkpoint_params *params)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ret || !ctx || !params)
        return rw_fail_null(ctx, "rw_checkpoint_create", !ctx ? "ctx" : !ret ? "ret_checkpoint" : "params");
    if (ctx->status) return ctx->status;
    const rw_status status = check_params(ctx, params);
    if (status) return status;
    rw_checkpoint *const c = rw_calloc(1, sizeof *c);
    const rw_status found = c ? rw_retention_init(&c->rotation, params->folder) : RW_ERR_MEMORY;
    if (found) {
        const int reason = c ? errno : ENOMEM;
        rw_free(c);
        return rw_fail(ctx, found, "rw_checkpoint_create: %s: %s", params->folder, strerror(reason));
    }
    rw_snapshot_init(&c->snapshot);
    c->ctx = ctx;
    c->keep = params->keep ? params->keep : KEEP;
    c->optimizer = params->optimizer;
    c->average = params->average;
    c->schedule = params->schedule;
    if (c->optimizer) rw_optimizer_depend(c->optimizer, &c->on_optimizer, optimizer_gone);
    if (c->average) rw_average_depend(c->average, &c->on_average, average_gone);
    ctx->n_users++;
    *ret = c;
    return RW_OK;
}

void rw_checkpoint_destroy(rw_checkpoint **pc)
{
    RW_ENTER(pc && *pc ? (*pc)->ctx : NULL, );
    if (!pc || !*pc) return;
    rw_checkpoint *const c = *pc;
    rw_context *const ctx = c->ctx;
    *pc = NULL;
    rw_checkpoint_join(c);
    rw_snapshot_finish(&c->snapshot);
    rw_retention_finish(&c->rotation);
    rw_depend_end(&c->on_optimizer);
    rw_depend_end(&c->on_average);
    rw_free(c->path);
    rw_free(c->extra);
    rw_free(c);
    rw_context_release(ctx);
}

/* ---- the thread ---- */

static void *write_beside(void *argument)
{
    rw_checkpoint *const c = argument;
    c->status = rw_snapshot_write(&c->snapshot, c->path, c->why, sizeof c->why);
    if (c->status || rw_retention_settle(&c->rotation, c->keep, c->left, sizeof c->left)) c->left[0] = '\0';
    return NULL;
}

/* In a child of fork(): the thread does not exist there, and may have held the snapshot's lock. */
static void in_child(struct rw_forked *f)
{
    rw_checkpoint *const c = (rw_checkpoint *)(void *)((char *)f - offsetof(rw_checkpoint, forked));
    rw_snapshot_forget_writer(&c->snapshot);
    c->status = RW_OK;
    c->left[0] = '\0';
    c->writes = false;
}

/* Blocks signals in the thread: the program's signals are for its own threads. */
static void start(rw_checkpoint *c)
{
    sigset_t all, before;
    sigfillset(&all);
    rw_forked_add(&c->forked, in_child);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->writes = !pthread_create(&c->thread, NULL, write_beside, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!c->writes) rw_forked_remove(&c->forked);
}

/* A file that can never be removed is reported once, not with each save. */
static void take_warning(rw_checkpoint *c)
{
    if (!*c->left || !strcmp(c->left, c->warning)) return;
    snprintf(c->warning, sizeof c->warning, "%s", c->left);
    c->warned = false;
}

void rw_checkpoint_join(rw_checkpoint *c)
{
    if (!c->writes) return;
    pthread_join(c->thread, NULL);
    rw_forked_remove(&c->forked);
    c->writes = false;
}

rw_status rw_checkpoint_wait(rw_checkpoint *c)
{
    RW_ENTER(RW_CONTEXT_OF(c), RW_ERR_ARGUMENT);
    if (!c) return rw_fail_null(NULL, "rw_checkpoint_wait", "checkpoint");
    rw_checkpoint_join(c);
    const rw_status status = c->status;
    c->status = RW_OK;
    take_warning(c);
    return status ? rw_fail(c->ctx, status, "rw_checkpoint_save: %s", c->why) : RW_OK;
}

const char *rw_checkpoint_warning(rw_checkpoint *c)
{
    RW_ENTER(RW_CONTEXT_OF(c), NULL);
    if (!c) return NULL;
    rw_checkpoint_join(c);
    take_warning(c);
    const bool told = c->warned || !*c->warning;
    c->warned = true;
    return told ? NULL : c->warning;
}

/* ---- a save ---- */

static rw_status check_names(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_params; i++) {
        const char *const name = ctx->params[i]->name;
        if (!strcmp(name, RW_FORMAT_METADATA) || !strncmp(name, RW_SNAPSHOT_PREFIX, strlen(RW_SNAPSHOT_PREFIX)))
            return rw_fail(ctx, RW_ERR_ARGUMENT,
                           "rw_checkpoint_save: expected no parameter of the reserved name \"%s\", got one: give it "
                           "another one",
                           name);
        if (!rw_utf8_is_text(name))
            return rw_fail(ctx, RW_ERR_ARGUMENT,
                           "rw_checkpoint_save: expected names in UTF-8, got \"%s\"", name);
    }
    return RW_OK;
}

/* rw_checkpoint_load() would refuse it. */
static rw_status check_schedule(rw_context *ctx, const rw_lr_schedule *s)
{
    if (!s || isfinite(rw_lr_schedule_rate(s, 0))) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "rw_checkpoint_save: the schedule gives no learning rate; expected what rw_lr_schedule_rate() "
                   "takes, got kind %d, lr %g, min_lr %g",
                   (int)s->kind, s->lr, s->min_lr);
}

/* The path of the next file; its number is used only once the copy is taken. */
static rw_status next_path(rw_checkpoint *c, uint64_t step, char **ret)
{
    char why[RW_MESSAGE_MAX / 2];
    const rw_status status = rw_retention_lock(&c->rotation, why, sizeof why);
    if (status) return rw_fail(c->ctx, status, "rw_checkpoint_save: %s: %s", c->rotation.folder, why);
    *ret = rw_retention_path(&c->rotation, &(struct rw_rotated){ c->rotation.number + 1, step });
    return *ret ? RW_OK : rw_fail(c->ctx, RW_ERR_MEMORY, "rw_checkpoint_save: out of memory");
}

/* The thread starts writing what is already copied. If no thread can be started, the call itself writes. */
static rw_status copy_and_write(rw_checkpoint *c, const struct rw_snapshot_of *what)
{
    c->rotation.number++;
    start(c);
    const rw_status status = rw_snapshot_copy(&c->snapshot, what);
    if (status) {
        rw_checkpoint_join(c);
        c->rotation.number--;
        c->status = RW_OK; /* the thread's error is that of the copy */
        c->left[0] = '\0';
        return status;
    }
    if (!c->writes) write_beside(c);
    return RW_OK;
}

#define EXTRA_MAX ((size_t)1 << 53) /* the file's header stores offsets as doubles */

/* Everything that can be refused is refused before the writing thread starts. A file's number counts only once the
   copy is taken, so a failed call leaves no gap. */
rw_status rw_checkpoint_save(rw_checkpoint *c, uint64_t step, const void *extra, size_t extra_bytes)
{
    RW_ENTER(RW_CONTEXT_OF(c), RW_ERR_ARGUMENT);
    if (!c) return rw_fail_null(NULL, "rw_checkpoint_save", "checkpoint");
    rw_context *const ctx = c->ctx;
    if (ctx->status) return ctx->status;
    if (!extra && extra_bytes) return rw_fail_null(ctx, "rw_checkpoint_save", "extra");
    if (extra_bytes > EXTRA_MAX)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_checkpoint_save(extra_bytes): expected at most 2^53, got %zu",
                       extra_bytes);
    rw_status status = rw_check_runs(ctx, "rw_checkpoint_save");
    if (!status) status = rw_checkpoint_check(c, "rw_checkpoint_save");
    if (!status) status = rw_checkpoint_wait(c);
    if (!status) status = check_names(ctx);
    if (!status) status = check_schedule(ctx, c->schedule);
    if (status) return status;
    char *path = NULL;
    const struct rw_snapshot_of what = { .ctx = ctx, .optimizer = c->optimizer, .average = c->average,
                                         .schedule = c->schedule, .step = step, .extra = extra,
                                         .extra_bytes = extra_bytes };
    status = next_path(c, step, &path);
    if (!status) status = rw_snapshot_begin(&c->snapshot, &what);
    if (status) {
        rw_free(path);
        return status;
    }
    rw_free(c->path);
    c->path = path;
    return copy_and_write(c, &what);
}
