/* Takes snapshots: lays out the tensors, copies them from the device, and signals progress to the writer. */
#include "io/snapshot.h"

#include "base/alloc.h"
#include "base/c_locale.h"
#include "run/run_advance.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PIECE ((size_t)16 << 20)

void rw_digest_print(struct rw_digest d, char text[RW_DIGEST_TEXT])
{
    snprintf(text, RW_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, d.hi, d.lo);
}

void rw_snapshot_name(char name[RW_SNAPSHOT_NAME_MAX], const char *state, const char *param)
{
    snprintf(name, RW_SNAPSHOT_NAME_MAX, RW_SNAPSHOT_PREFIX "%s:%s", state, param);
}

static void empty(struct rw_snapshot *s)
{
    cJSON_Delete(s->header);
    s->header = s->metadata = NULL;
    s->n = s->bytes = s->copied = 0;
    s->given_up = false;
}

void rw_snapshot_init(struct rw_snapshot *s)
{
    *s = (struct rw_snapshot){ 0 };
    rw_snapshot_forget_writer(s);
}

void rw_snapshot_forget_writer(struct rw_snapshot *s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
}

void rw_snapshot_finish(struct rw_snapshot *s)
{
    empty(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->moved);
    rw_free_aligned(s->data);
    rw_free(s->tensor);
    *s = (struct rw_snapshot){ 0 };
}

/* ---- layout ---- */

/* Appends a tensor; only the header's own digest has none itself. */
static bool add(struct rw_snapshot *s, const char *name, const char *dtype, rw_shape shape, size_t bytes)
{
    static const char room[RW_DIGEST_TEXT] = "00000000000000000000000000000000";
    char key[sizeof RW_SNAPSHOT_DIGEST + RW_SNAPSHOT_NAME_MAX];
    if (!rw_grow(&s->tensor, &s->cap, s->n, 1, sizeof *s->tensor)) return false;
    if (!rw_format_add(s->header, name, dtype, shape, s->bytes, s->bytes + bytes)) return false;
    cJSON *digest = NULL;
    if (strcmp(name, RW_SNAPSHOT_HEADER)) {
        snprintf(key, sizeof key, RW_SNAPSHOT_DIGEST "%s", name);
        digest = cJSON_AddStringToObject(s->metadata, key, room);
        if (!digest) return false;
    }
    s->tensor[s->n++] = (struct rw_snapshot_tensor){ s->bytes, bytes, digest };
    s->bytes += bytes;
    return true;
}

static bool add_like(struct rw_snapshot *s, const rw_context *ctx, const char *name, const struct rw_param *p)
{
    return add(s, name, rw_format_dtype((rw_dtype)p->tensor.dtype), rw_layout_shape(rw_layout_of(ctx, &p->tensor)),
               p->bytes);
}

static bool add_optimizer(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    char name[RW_SNAPSHOT_NAME_MAX];
    bool ok = true;
    for (size_t i = 0; ok && i < rw_optimizer_members(what->optimizer); i++) {
        const struct rw_kept k = rw_optimizer_kept(what->optimizer, i);
        for (int j = 0; ok && j < k.n; j++) {
            rw_snapshot_name(name, k.name[j], k.param->name);
            ok = add(s, name, rw_format_dtype(k.dtype[j]), rw_layout_shape(rw_layout_of(what->ctx, &k.param->tensor)),
                     k.bytes[j]);
        }
        rw_snapshot_name(name, "step", k.param->name);
        ok = ok && add(s, name, "I64", RW_SHAPE(2), 2 * sizeof(int64_t));
        rw_snapshot_name(name, "settings", k.param->name);
        ok = ok && add(s, name, "F64", RW_SHAPE(2), 2 * sizeof(double));
    }
    return ok;
}

static bool add_average(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    char name[RW_SNAPSHOT_NAME_MAX];
    bool ok = true;
    for (size_t i = 0; ok && i < rw_average_members(what->average); i++) {
        rw_snapshot_name(name, "average", rw_average_param(what->average, i)->name);
        ok = add_like(s, what->ctx, name, rw_average_state(what->average, i));
    }
    return ok;
}

static bool add_tensors(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    const rw_context *const ctx = what->ctx;
    bool ok = true;
    for (size_t i = 0; ok && i < ctx->n_params; i++) ok = add_like(s, ctx, ctx->params[i]->name, ctx->params[i]);
    if (ok && what->optimizer) ok = add_optimizer(s, what);
    if (ok && what->average) ok = add_average(s, what);
    ok = ok && add(s, RW_SNAPSHOT_EXTRA, "U8", RW_SHAPE((int64_t)what->extra_bytes), what->extra_bytes);
    return ok && add(s, RW_SNAPSHOT_HEADER, "U8", RW_SHAPE((int64_t)sizeof(struct rw_digest)),
                     sizeof(struct rw_digest));
}

static bool add_schedule(struct rw_snapshot *s, const rw_lr_schedule *h)
{
    char text[256];
    snprintf(text, sizeof text, "%d %a %a %" PRIu64 " %" PRIu64 " %" PRIu64 " %a", (int)h->kind, h->lr, h->min_lr,
             h->warmup, h->total, h->every, h->factor);
    return cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_SCHEDULE, text);
}

static bool put_metadata(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    const rw_generator_state g = what->ctx->generator;
    char step[32], generator[64], lr[64];
    snprintf(step, sizeof step, "%" PRIu64, what->step);
    snprintf(generator, sizeof generator, "%" PRIu64 " %" PRIu64, g.seed, g.offset);
    s->metadata = cJSON_AddObjectToObject(s->header, RW_FORMAT_METADATA);
    if (!s->metadata || !cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_VERSION, "1") ||
        !cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_STEP, step) ||
        !cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_GENERATOR, generator))
        return false;
    if (what->schedule && !add_schedule(s, what->schedule)) return false;
    if (!what->optimizer) return true;
    snprintf(lr, sizeof lr, "%a", rw_optimizer_lr(what->optimizer));
    return cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_OPTIMIZER, rw_optimizer_kind_name(what->optimizer)) &&
           cJSON_AddStringToObject(s->metadata, RW_SNAPSHOT_LR, lr);
}

static bool add_metadata(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    const locale_t before = rw_c_locale_begin();
    const bool ok = put_metadata(s, what);
    rw_c_locale_end(before);
    return ok;
}

static bool reserve(struct rw_snapshot *s)
{
    if (s->bytes <= s->cap_bytes && s->data) return true;
    unsigned char *const data = rw_malloc_aligned(s->bytes, RW_SNAPSHOT_BLOCK);
    if (!data) return false;
    rw_free_aligned(s->data);
    s->data = data;
    s->cap_bytes = s->bytes;
    return true;
}

/* ---- copying ---- */

static void tell(struct rw_snapshot *s, size_t more, bool given_up)
{
    pthread_mutex_lock(&s->lock);
    s->copied += more;
    s->given_up = given_up;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

bool rw_snapshot_await(struct rw_snapshot *s, size_t bytes)
{
    pthread_mutex_lock(&s->lock);
    while (s->copied < bytes && !s->given_up) pthread_cond_wait(&s->moved, &s->lock);
    const bool there = s->copied >= bytes;
    pthread_mutex_unlock(&s->lock);
    return there;
}

/* In pieces, so that the disk can start early. */
static rw_status copy(struct rw_snapshot *s, const rw_context *ctx, const struct rw_param *p)
{
    rw_status status = RW_OK;
    for (size_t at = 0; !status && at < p->bytes; at += PIECE) {
        const size_t rest = p->bytes - at, n = rest < PIECE ? rest : PIECE;
        status = ctx->device->download(ctx->device_state, s->data + s->copied, (const char *)p->data + at, n);
        if (!status) tell(s, n, false);
    }
    return status;
}

static rw_status copy_state(struct rw_snapshot *s, rw_optimizer *opt, size_t i, int j, size_t bytes)
{
    rw_status status = RW_OK;
    for (size_t at = 0, n; !status && at < bytes; at += n) {
        const size_t rest = bytes - at;
        status = rw_optimizer_read(opt, i, j, at, s->data + s->copied, rest < PIECE ? rest : PIECE, &n);
        if (!status) tell(s, n, false);
    }
    return status;
}

static void copy_bytes(struct rw_snapshot *s, const void *from, size_t n)
{
    if (n) memcpy(s->data + s->copied, from, n);
    tell(s, n, false);
}

/* In the order in which they were added. */
static rw_status copy_all(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    const rw_context *const ctx = what->ctx;
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) status = copy(s, ctx, ctx->params[i]);
    for (size_t i = 0; !status && what->optimizer && i < rw_optimizer_members(what->optimizer); i++) {
        const struct rw_kept k = rw_optimizer_kept(what->optimizer, i);
        const int64_t count[2] = { (int64_t)k.step, k.current };
        const double settings[2] = { k.lr_factor, k.weight_decay };
        for (int j = 0; !status && j < k.n; j++) status = copy_state(s, what->optimizer, i, j, k.bytes[j]);
        if (!status) copy_bytes(s, count, sizeof count);
        if (!status) copy_bytes(s, settings, sizeof settings);
    }
    for (size_t i = 0; !status && what->average && i < rw_average_members(what->average); i++)
        status = copy(s, ctx, rw_average_state(what->average, i));
    if (!status) copy_bytes(s, what->extra, what->extra_bytes);
    return status;
}

rw_status rw_snapshot_copy(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    const rw_status status = copy_all(s, what);
    if (status) tell(s, 0, true);
    return status ? rw_fail(what->ctx, status, "rw_checkpoint_save: the copy from the device failed") : RW_OK;
}

rw_status rw_snapshot_begin(struct rw_snapshot *s, const struct rw_snapshot_of *what)
{
    rw_context *const ctx = what->ctx;
    empty(s);
    rw_status status = rw_runs_wait(ctx);
    if (!status && what->optimizer) status = rw_optimizer_check(what->optimizer, "rw_checkpoint_save");
    if (!status && what->optimizer) status = rw_optimizer_settle(what->optimizer);
    if (status) return status;
    s->header = cJSON_CreateObject();
    const bool ok = s->header && add_metadata(s, what) && add_tensors(s, what) && reserve(s);
    if (!ok)
        status = rw_fail(ctx, RW_ERR_MEMORY, "rw_checkpoint_save: out of memory for a copy of %zu bytes", s->bytes);
    if (status) empty(s);
    return status;
}
