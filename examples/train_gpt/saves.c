/* Saves, resumes and rolls back a run. */
#include "saves.h"

#include "finite_weights.h"
#include "paths.h"
#include "unknown_entries.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- identity of a checkpoint ---- */

/* Properties that a run must share with the one that it resumes, to produce the same bytes, and the run's own number:
   checkpoints of another run may be in the same folder. */
struct identity {
    uint64_t run, seed, tokens, digest, val, windows;
    int32_t batch, accum, seq, vocab, layers, heads, kv_heads, codes;
    double dropout, clip, decay;
};

static struct identity identity_of(const struct run *r)
{
    return (struct identity){ r->id, o.seed, r->train.n, r->train_digest, r->val_digest, r->windows, o.batch,
                              o.accum, o.m.seq, o.vocab, o.m.layers, o.m.heads, o.m.kv_heads,
                              o.fp8 ? 1 + (int)o.scaling + 8 * o.delayed : 0, o.dropout, o.clip, o.decay };
}

static uint64_t new_run(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return number_of((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, (uint64_t)getpid());
}

static bool identity_found(const rw_checkpoint_found *found, struct identity *ret)
{
    if (!found->found || found->extra_bytes != sizeof *ret) return false;
    memcpy(ret, found->extra, sizeof *ret);
    return true;
}

/* A network of another size may still find all of its weights in the file: it would go on with a part of the model, and
   retention would remove the whole ones. */
static void refuse_other_network(const struct run *r, const struct identity *now, const rw_checkpoint_found *found)
{
    struct identity then;
    char file[PATH_SIZE + 256], first[100];
    const char *const slash = strrchr(found->path, '/');
    if (!found->found) return;
    if (identity_found(found, &then)) {
        const struct {
            const char *option;
            int now, then;
        } sizes[] = { { "layers", now->layers, then.layers }, { "heads", now->heads, then.heads },
                      { "kv-heads", now->kv_heads, then.kv_heads } };
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (sizes[i].now != sizes[i].then)
                die("--resume %.200s: expected --%s %d, as that run has, got %d", o.resume, sizes[i].option,
                    sizes[i].then, sizes[i].now);
    }
    snprintf(file, sizeof file, "%s/%s", o.resume, slash ? slash + 1 : found->path);
    const size_t n = unknown_entries(r->ctx, file, first, sizeof first);
    if (n)
        die("--resume %.200s: the model lacks %zu entries of the checkpoint, the first is \"%s\"; expected the "
            "--preset and --layers of that run", o.resume, n, first);
}

/* Reports, one by one, the numbers that differ from those of the resumed run. */
static void tell_differences(const struct identity *now, const rw_checkpoint_found *found)
{
    struct identity then;
    if (!found->found) return;
    if (!identity_found(found, &then)) {
        printf("that file is of another version of train_gpt: what differs from that run is not known\n");
        return;
    }
    const struct {
        const char *name;
        bool differs;
    } what[] = {
        { "data", now->tokens != then.tokens || now->digest != then.digest },
        { "--seed", now->seed != then.seed },         { "--batch", now->batch != then.batch },
        { "--accum", now->accum != then.accum },      { "--seq", now->seq != then.seq },
        { "--vocab", now->vocab != then.vocab },
        { "--dtype fp8 or --scaling", now->codes != then.codes },
        { "--dropout", now->dropout < then.dropout || now->dropout > then.dropout },
        { "--clip", now->clip < then.clip || now->clip > then.clip },
        { "--decay", now->decay < then.decay || now->decay > then.decay },
    };
    int n = 0;
    for (size_t i = 0; i < sizeof what / sizeof *what; i++)
        if (what[i].differs) printf("%s%s", n++ ? ", " : "that run had another ", what[i].name);
    if (n) printf(": these are other bytes\n");
    if (now->windows && (now->val != then.val || now->windows != then.windows))
        printf("that run had another --val or --eval-tokens: validation losses before and after are of other text\n");
}

/* ---- resuming ---- */

static rw_status open_checkpoint(struct run *r, const char *folder, rw_checkpoint **ret)
{
    const rw_checkpoint_params params = { .folder = folder, .optimizer = r->opt, .schedule = &r->schedule,
                                          .keep = o.keep };
    return rw_checkpoint_create(ret, r->ctx, &params);
}

static void tell_schedule(const rw_lr_schedule *asked, const rw_lr_schedule *now)
{
    if (now->kind != asked->kind || now->lr != asked->lr || now->min_lr != asked->min_lr ||
        now->warmup != asked->warmup || now->total != asked->total)
        printf("its schedule goes on, not the one asked for now: a rate of %g to %g over %d steps\n", now->lr,
               now->min_lr, (int)now->total);
}

/* Loads the newest complete checkpoint, or starts at the beginning. */
static rw_status resume(struct run *r, int *first)
{
    const struct identity id = identity_of(r);
    const rw_lr_schedule asked = r->schedule;
    struct identity then;
    rw_checkpoint *other = NULL;
    rw_checkpoint_found found = { 0 };
    const bool goes_on = o.checkpoint && path_is_same(o.resume, o.checkpoint);
    /* --keep does not count the damaged files that the same checkpoint has skipped */
    rw_status status = goes_on ? RW_OK : open_checkpoint(r, o.resume, &other);
    if (!status) status = rw_checkpoint_load(goes_on ? r->ck : other, &found);
    if (found.skipped) printf("passed over %zu that are not whole: %s\n", found.skipped, found.why);
    if (!status) refuse_other_network(r, &id, &found);
    if (found.found) printf("going on from step %d of %s\n", (int)found.step, found.path);
    if (*found.missing) printf("that file does not have %s\n", found.missing);
    else if (!status && !found.found && !o.resume_if_there) die("--resume %s: the checkpoint there has gone", o.resume);
    else if (!status && !found.found) printf("no checkpoint in %s: from the beginning\n", o.resume);
    tell_differences(&id, &found);
    if (found.found) tell_schedule(&asked, &r->schedule);
    *first = (int)found.step;
    if (identity_found(&found, &then)) {
        r->id = then.run;
        r->has_saved = goes_on;
        if (r->has_saved) r->loaded_step = *first, snprintf(r->loaded, sizeof r->loaded, "%s", found.path);
    }
    rw_checkpoint_destroy(&other);
    return status;
}

rw_status saves_open(struct run *r, int *first)
{
    *first = 0;
    r->id = new_run();
    r->loaded_step = -1;
    rw_status status = o.checkpoint ? open_checkpoint(r, o.checkpoint, &r->ck) : RW_OK;
    if (!status && o.resume) status = resume(r, first);
    return status;
}

/* ---- saving ---- */

void saves_warn(struct run *r)
{
    const char *const warning = r->ck ? rw_checkpoint_warning(r->ck) : NULL;
    if (warning) fprintf(stderr, "train_gpt: %s\n", warning);
}

/* The library locks the folder from its first save on, and does not share the lock. A run that begins between the two
   gets it: then it has an empty folder, and this save fails. */
static void release_lock(void)
{
    if (o.lock >= 0) close(o.lock);
    o.lock = -1;
}

rw_status save(struct run *r, int steps)
{
    bool finite = true;
    if (!r->ck) return RW_OK;
    saves_warn(r);
    const struct identity id = identity_of(r);
    rw_status status = weights_are_finite(r->ctx, &finite);
    if (!status && !finite) {
        fprintf(stderr, "step %6d  the weights are not finite: no checkpoint is saved\n", steps);
        return RW_OK;
    }
    if (!status) release_lock();
    if (!status && (status = rw_checkpoint_save(r->ck, (uint64_t)steps, &id, sizeof id))) r->lost_checkpoint = true;
    if (!status) r->has_saved = true, r->saved_step = steps;
    return status;
}

rw_status saves_wait(struct run *r)
{
    const rw_status status = r->ck ? rw_checkpoint_wait(r->ck) : RW_OK;
    r->lost_checkpoint |= status != RW_OK;
    return status;
}

rw_status saves_begin(struct run *r, int first)
{
    bool any = false;
    for (int i = 0; i < ALERTS; i++) any |= o.on[i] == RW_RECOVERY_ROLL_BACK;
    return any && !r->has_saved ? save(r, first) : RW_OK;
}

/* ---- rolling back ---- */

static void set_aside(const struct run *r)
{
    char from[PATH_SIZE + 256], to[PATH_SIZE + 264];
    const char *const slash = strrchr(r->loaded, '/');
    snprintf(from, sizeof from, "%s/%s", o.checkpoint, slash ? slash + 1 : r->loaded);
    snprintf(to, sizeof to, "%s.failed", from);
    if (rename(from, to)) perror(from);
    else fprintf(stderr, "step %6d  the step after this checkpoint fails again: %s\n", r->loaded_step, to);
}

rw_status saves_go_back(struct run *r, int step, int *ret_step)
{
    rw_checkpoint_found found = { 0 };
    struct identity then;
    *ret_step = -1;
    rw_status status = saves_wait(r);
    if (!status && step == r->loaded_step) set_aside(r);
    if (!status && !path_count_checkpoints(o.checkpoint)) return RW_OK;
    if (!status) status = rw_checkpoint_load(r->ck, &found);
    if (status || !found.found) return status;
    if (!identity_found(&found, &then) || then.run != r->id) {
        fprintf(stderr, "train_gpt: %s is another run's: this run has no checkpoint left\n", found.path);
        return RW_OK;
    }
    *ret_step = r->loaded_step = (int)found.step;
    snprintf(r->loaded, sizeof r->loaded, "%s", found.path);
    return RW_OK;
}
