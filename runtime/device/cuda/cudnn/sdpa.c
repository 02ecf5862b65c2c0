/* cuDNN's attention: which operands it takes, the table of pinned plans, and runs. See sdpa.h. */
#include "device/cuda/cudnn/sdpa.h"

#include "device/cuda/cudnn/sdpa_graph.h"

#include "base/alloc.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define DETERMINISTIC_CAPABILITY 90
#define WORKSPACE_ALIGN 256
#define PACK 8 /* elements of 16 bytes: what addresses and strides are multiples of */

struct entry {
    struct rw_sdpa_signature signature;
    struct rw_dnn_plan plan;
    int64_t calls;            /* the batch is cut into this many equal pieces, each a run of the plan */
    size_t dot_at, workspace; /* where the rows' sums lie behind the plan's own workspace, and all of it */
    struct entry *next;
};

struct rw_sdpa {
    struct rw_cuda *cuda;
    struct rw_cudnn dnn;
    bool opened; /* looked for, once */
    bool has;    /* else it was not asked for, or is not there */
    struct entry *entries;
};

static rw_status failed(struct rw_sdpa *sdpa, cudnnStatus_t status, const char *call)
{
    return rw_cudnn_status(&sdpa->dnn, sdpa->cuda, status, call);
}

/* ---- which operands ---- */

static bool take_layout(int64_t *stride, const rw_layout *l)
{
    if (l->rank != 4 || l->stride[3] != 1) return false;
    for (int i = 0; i < 3; i++) {
        stride[i] = l->dim[i] == 1 ? l->dim[3] : l->stride[i]; /* that of a single element means nothing */
        if (stride[i] <= 0 || stride[i] % PACK) return false;
    }
    return true;
}

/* The rule: what the library is given, but for the layouts. Each line says why. */
static bool takes(const struct rw_sdpa_signature *s, double dropout)
{
    return (s->dtype == RW_BF16 || s->dtype == RW_F16)      /* its fused engines know no other types */
           && !(dropout > 0)                                /* its masks are not the CPU's (law 3) */
           && s->d % PACK == 0 && s->d <= RW_SDPA_HEAD_MOST /* its limits on compute capability 9.0 */
           && (!s->causal || s->seq == s->kv_seq)           /* our mask ends at the last key, its at the diagonal */
           && !(s->seq == 1 && s->kv_seq == 1);             /* not supported */
}

static void set_gradients(struct rw_sdpa_signature *s, bool packed)
{
    const int64_t d = s->d, all = (s->heads + 2 * s->kv_heads) * d;
    const int64_t side_by_side[] = { s->seq * all, d, all };
    const int64_t dq[] = { s->heads * s->seq * d, s->seq * d, d };
    const int64_t dk[] = { s->kv_heads * s->kv_seq * d, s->kv_seq * d, d };
    memcpy(s->dq, packed ? side_by_side : dq, sizeof s->dq);
    memcpy(s->dk, packed ? side_by_side : dk, sizeof s->dk);
}

bool rw_sdpa_describe(struct rw_sdpa_signature *ret, rw_dtype dtype, const rw_layout *q, const rw_layout *k,
                      const rw_layout *v, const rw_layout *o, const rw_layout *dy, bool packed, double scale,
                      bool causal, double dropout)
{
    struct rw_sdpa_signature s = { .batch = q->dim[0],
                                   .heads = q->dim[1],
                                   .kv_heads = k->dim[1],
                                   .seq = q->dim[2],
                                   .kv_seq = k->dim[2],
                                   .d = q->dim[3],
                                   .scale = (float)scale,
                                   .causal = causal,
                                   .dtype = (int32_t)dtype,
                                   .backward = dy != NULL };
    if (!q->numel || !k->numel || !takes(&s, dropout)) return false;
    if (!take_layout(s.q, q) || !take_layout(s.k, k) || !take_layout(s.v, v)) return false;
    if (s.backward) {
        if (!take_layout(s.o, o) || !take_layout(s.dy, dy)) return false;
        set_gradients(&s, packed);
    } else {
        s.o[0] = s.seq * s.heads * s.d, s.o[1] = s.d, s.o[2] = s.heads * s.d;
    }
    *ret = s;
    return true;
}

/* ---- the library ---- */

static bool is_wanted(void)
{
    const char *const choice = getenv("REWIND_SDPA");
    return choice && !strcmp(choice, "cudnn");
}

rw_status rw_sdpa_create(struct rw_sdpa **ret, struct rw_cuda *cuda)
{
    struct rw_sdpa *const sdpa = rw_calloc(1, sizeof *sdpa);
    if (!sdpa) return RW_ERR_MEMORY;
    sdpa->cuda = cuda;
    *ret = sdpa;
    return RW_OK;
}

struct rw_sdpa *rw_sdpa_of(struct rw_cuda *cuda)
{
    struct rw_sdpa *const sdpa = cuda->sdpa;
    if (!sdpa->opened) {
        const bool had_message = cuda->message[0];
        sdpa->opened = true;
        sdpa->has = is_wanted() && rw_cudnn_open(&sdpa->dnn, sdpa->cuda) == RW_OK;
        if (!had_message) cuda->message[0] = '\0'; /* that it is not there is no failure */
    }
    return sdpa->has ? sdpa : NULL;
}

static void free_entry(struct rw_sdpa *sdpa, struct entry *e)
{
    rw_dnn_free_plan(&sdpa->dnn, &e->plan);
    rw_free(e);
}

void rw_sdpa_destroy(struct rw_sdpa **psdpa)
{
    struct rw_sdpa *const sdpa = *psdpa;
    if (!sdpa) return;
    while (sdpa->entries) {
        struct entry *const e = sdpa->entries;
        sdpa->entries = e->next;
        free_entry(sdpa, e);
    }
    rw_cudnn_close(&sdpa->dnn);
    rw_free(sdpa);
    *psdpa = NULL;
}

/* ---- the table: a step has few signatures ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
}

/* The next number of pieces, equal ones, of which each should need at most `limit` bytes; 0 when there is none. */
static int64_t more_calls(const struct rw_sdpa_signature *s, int64_t calls, size_t needed, size_t limit)
{
    const size_t all = needed * (size_t)calls;
    for (int64_t n = calls + 1; n <= s->batch; n++)
        if (s->batch % n == 0 && all / (size_t)n <= limit) return n;
    return 0;
}

/* Plans for a part of the batch, as large as the limit on workspace allows. */
static cudnnStatus_t build(struct rw_sdpa *sdpa, struct entry *e, size_t limit)
{
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int64_t calls = 1; calls && !e->plan.plan && !status;) {
        struct rw_sdpa_signature piece = e->signature;
        piece.batch /= calls;
        rw_dnn_free_plan(&sdpa->dnn, &e->plan);
        status = rw_sdpa_build(&sdpa->dnn, &piece, limit, &e->plan);
        e->calls = calls;
        calls = e->plan.least_refused ? more_calls(&e->signature, calls, e->plan.least_refused, limit) : 0;
    }
    return status;
}

static rw_status pin(struct rw_sdpa *sdpa, struct entry *e)
{
    const struct rw_sdpa_signature *const s = &e->signature;
    const size_t dot = s->backward ? aligned((size_t)(s->batch * s->heads * s->seq) * sizeof(float)) : 0;
    if (s->backward && sdpa->cuda->capability != DETERMINISTIC_CAPABILITY) return RW_OK;
    if (dot >= RW_SDPA_WORKSPACE_LIMIT) return RW_OK;
    const cudnnStatus_t built = build(sdpa, e, RW_SDPA_WORKSPACE_LIMIT - dot);
    if (built && CUDNN_STATUS_CATEGORY(built) != CUDNN_STATUS_NOT_SUPPORTED)
        return failed(sdpa, built, s->backward ? "the plan of attention's backward" : "the plan of attention");
    e->dot_at = aligned(e->plan.workspace);
    e->workspace = e->dot_at + dot;
    if (!e->plan.plan) rw_dnn_free_plan(&sdpa->dnn, &e->plan);
    return RW_OK;
}

static rw_status find(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, struct entry **ret)
{
    for (struct entry *e = sdpa->entries; e; e = e->next) {
        if (memcmp(&e->signature, s, sizeof *s)) continue;
        *ret = e;
        return RW_OK;
    }
    struct entry *const e = rw_calloc(1, sizeof *e);
    if (!e) return RW_ERR_MEMORY;
    e->signature = *s;
    const rw_status status = pin(sdpa, e);
    if (status) {
        free_entry(sdpa, e);
        return status;
    }
    e->next = sdpa->entries;
    sdpa->entries = e;
    *ret = e;
    return RW_OK;
}

rw_status rw_sdpa_query(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, bool *ret_has, size_t *ret_workspace)
{
    struct entry *e;
    const rw_status status = find(sdpa, s, &e);
    if (status) return status;
    *ret_has = e->plan.plan != NULL;
    *ret_workspace = *ret_has ? e->workspace : 0;
    return RW_OK;
}

/* ---- runs ---- */

/* The operands of a run: addresses by number, NULL where the plan has none. */
static cudnnStatus_t execute(struct rw_sdpa *sdpa, const struct entry *e, void *const *operands, void *workspace)
{
    int64_t ids[RW_SDPA_OPERANDS];
    void *addresses[RW_SDPA_OPERANDS];
    int64_t n = 0;
    for (int i = 1; i < RW_SDPA_OPERANDS; i++) {
        if (!operands[i]) continue;
        ids[n] = i;
        addresses[n++] = operands[i];
    }
    return rw_dnn_execute(&sdpa->dnn, &e->plan, n, ids, addresses, workspace);
}

/* From one piece of the batch to the next. */
static void step_on(const struct entry *e, void **operands)
{
    const struct rw_sdpa_signature *const s = &e->signature;
    const int64_t size = 2, queries = s->heads * s->seq;
    const int64_t bytes[RW_SDPA_OPERANDS] = {
        [RW_SDPA_Q] = s->q[0] * size,
        [RW_SDPA_K] = s->k[0] * size,
        [RW_SDPA_V] = s->v[0] * size,
        [RW_SDPA_O] = s->o[0] * size,
        [RW_SDPA_DY] = s->dy[0] * size,
        [RW_SDPA_DQ] = s->dq[0] * size,
        [RW_SDPA_DK] = s->dk[0] * size,
        [RW_SDPA_DV] = s->dk[0] * size,
        [RW_SDPA_STATS] = queries * (int64_t)sizeof(float),
    };
    for (int i = 1; i < RW_SDPA_OPERANDS; i++)
        if (operands[i]) operands[i] = (char *)operands[i] + bytes[i] * (s->batch / e->calls);
}

static rw_status run(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, void **operands, char *workspace,
                     size_t workspace_bytes)
{
    static const float lowest = -FLT_MAX, one = 1;
    struct entry *e;
    rw_status status = find(sdpa, s, &e);
    if (status) return status;
    if (!e->plan.plan) return RW_ERR_UNSUPPORTED;
    if (workspace_bytes < e->workspace)
        return rw_cuda_fail(sdpa->cuda, RW_ERR_DEVICE, "cuDNN: the plan gave too little workspace");
    operands[RW_SDPA_SCALE] = &e->signature.scale;
    if (s->causal) operands[RW_SDPA_LOWEST] = (void *)&lowest;
    if (s->backward) {
        operands[RW_SDPA_ONE] = (void *)&one;
        operands[RW_SDPA_DOT] = workspace + e->dot_at;
    }
    for (int64_t i = 0; i < e->calls && !status; i++) {
        if (i) step_on(e, operands);
        status = failed(sdpa, execute(sdpa, e, operands, workspace),
                        s->backward ? "attention's backward" : "attention");
    }
    return status;
}

rw_status rw_sdpa_forward(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, const void *q, const void *k,
                          const void *v, void *o, void *stats, void *workspace, size_t workspace_bytes)
{
    void *operands[RW_SDPA_OPERANDS] = { [RW_SDPA_Q] = (void *)q,
                                         [RW_SDPA_K] = (void *)k,
                                         [RW_SDPA_V] = (void *)v,
                                         [RW_SDPA_O] = o,
                                         [RW_SDPA_STATS] = stats };
    return run(sdpa, s, operands, workspace, workspace_bytes);
}

rw_status rw_sdpa_backward(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, const void *q, const void *k,
                           const void *v, const void *o, const void *stats, const void *dy, void *dq, void *dk,
                           void *dv, void *workspace, size_t workspace_bytes)
{
    void *operands[RW_SDPA_OPERANDS] = { [RW_SDPA_Q] = (void *)q,
                                         [RW_SDPA_K] = (void *)k,
                                         [RW_SDPA_V] = (void *)v,
                                         [RW_SDPA_O] = (void *)o,
                                         [RW_SDPA_STATS] = (void *)stats,
                                         [RW_SDPA_DY] = (void *)dy,
                                         [RW_SDPA_DQ] = dq,
                                         [RW_SDPA_DK] = dk,
                                         [RW_SDPA_DV] = dv };
    return run(sdpa, s, operands, workspace, workspace_bytes);
}
