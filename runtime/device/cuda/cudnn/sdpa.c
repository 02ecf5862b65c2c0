/* cuDNN's attention: which operands it takes, pinning, and execution. */
#include "device/cuda/cudnn/sdpa.h"

#include "device/cuda/cudnn/int32_batch_split.h"
#include "device/cuda/cudnn/execution_plan_cache.h"
#include "device/cuda/cudnn/sdpa_graph.h"

#include "base/alloc.h"

#include <float.h>
#include <string.h>

#define DETERMINISTIC_CAPABILITY 90
#define PACK 8 /* elements of 16 bytes: what addresses and strides are multiples of */
#define MAX_PIECES 1024

struct rw_sdpa {
    struct rw_dnn_pins pins;
};

/* ---- operands ---- */

static bool take_layout(int64_t *stride, const rw_layout *l)
{
    if (l->rank != 4 || l->stride[3] != 1) return false;
    for (int i = 0; i < 3; i++) {
        stride[i] = l->dim[i] == 1 ? l->dim[3] : l->stride[i]; /* the stride of a single element has no meaning */
        if (stride[i] <= 0 || stride[i] % PACK) return false;
    }
    return true;
}

/* Which operands the library is used for, apart from layouts. Each line has its reason. */
static bool takes(const struct rw_sdpa_signature *s, double dropout)
{
    return (s->dtype == RW_BF16 || s->dtype == RW_F16)      /* its fused engines have no other types */
           && !(dropout > 0)                                /* its masks differ from the CPU's (law 3) */
           && s->d % PACK == 0 && s->d <= RW_SDPA_HEAD_MAX /* its limits on compute capability 9.0 */
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

/* Fills in a signature if the library takes the operands. */
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

/* ---- pinning ---- */

/* Bytes of the sums of rows in backward, which follow the plan's own workspace. */
static size_t bytes_of_sums(const struct rw_sdpa_signature *s)
{
    return s->backward ? rw_dnn_aligned((size_t)(s->batch * s->heads * s->seq) * sizeof(float)) : 0;
}

/* The smallest number of equal pieces that fit into the library's types; 0 when there is none. */
static int64_t least_pieces(const struct rw_sdpa_signature *s, int64_t max_count)
{
    for (int64_t n = 1; n <= s->batch && n <= MAX_PIECES; n++)
        if (s->batch % n == 0 && rw_sdpa_fits(s, s->batch / n, max_count)) return n;
    return 0;
}

/* The next number of pieces, equal ones, of which each should need at most `limit` bytes; 0 when there is none. */
static int64_t more_pieces(const struct rw_sdpa_signature *s, int64_t pieces, size_t needed, size_t limit)
{
    const size_t all = needed * (size_t)pieces;
    for (int64_t n = pieces + 1; n <= s->batch && n <= MAX_PIECES; n++)
        if (s->batch % n == 0 && all / (size_t)n <= limit) return n;
    return 0;
}

/* The stride of an axis with one element has no effect: one that does not fit is not passed to the library. */
static struct rw_sdpa_signature piece_of(const struct rw_sdpa_signature *s, int64_t pieces, int64_t max_count)
{
    struct rw_sdpa_signature r = *s;
    int64_t *const of_batch[] = { r.q, r.k, r.v, r.o, r.dy, r.dq, r.dk };
    r.batch /= pieces;
    for (size_t i = 0; i < sizeof of_batch / sizeof *of_batch && r.batch == 1; i++)
        if (*of_batch[i] > max_count) *of_batch[i] = r.d;
    return r;
}

/* Of a part of the batch, as large as the limit on workspace and the library's types allow. */
static cudnnStatus_t build(const struct rw_dnn_pins *p, const void *signature, struct rw_dnn_pin *pin)
{
    const struct rw_sdpa_signature *const s = signature;
    const size_t sums = bytes_of_sums(s);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (s->backward && p->cuda->capability != DETERMINISTIC_CAPABILITY) return status;
    if (sums >= RW_SDPA_WORKSPACE_LIMIT) return status;
    const size_t limit = RW_SDPA_WORKSPACE_LIMIT - sums;
    for (int64_t n = least_pieces(s, p->cuda->max_count); n && !pin->plan.plan && !status;) {
        const struct rw_sdpa_signature piece = piece_of(s, n, p->cuda->max_count);
        rw_dnn_free_plan(&p->dnn, &pin->plan);
        status = rw_sdpa_build(&p->dnn, &piece, limit, &pin->plan);
        pin->pieces = n;
        n = pin->plan.least_refused ? more_pieces(s, n, pin->plan.least_refused, limit) : 0;
    }
    return status;
}

rw_status rw_sdpa_create(struct rw_sdpa **ret, struct rw_cuda *cuda)
{
    struct rw_sdpa *const sdpa = rw_calloc(1, sizeof *sdpa);
    if (!sdpa) return RW_ERR_MEMORY;
    rw_dnn_pins_init(&sdpa->pins, cuda, "REWIND_SDPA", sizeof(struct rw_sdpa_signature), build);
    *ret = sdpa;
    return RW_OK;
}

void rw_sdpa_destroy(struct rw_sdpa **sdpa)
{
    if (!*sdpa) return;
    rw_dnn_pins_finish(&(*sdpa)->pins);
    rw_free(*sdpa);
    *sdpa = NULL;
}

bool rw_sdpa_has(const struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, size_t *ret_workspace)
{
    const struct rw_dnn_pin *const pin = rw_dnn_pinned(&sdpa->pins, s);
    if (pin) *ret_workspace = rw_dnn_aligned(pin->plan.workspace) + bytes_of_sums(s);
    return pin != NULL;
}

rw_status rw_sdpa_query(struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, bool *ret_has, size_t *ret_workspace)
{
    const rw_status status = rw_dnn_pin(&sdpa->pins, s,
                                        s->backward ? "the plan of attention's backward" : "the plan of attention");
    if (status) return status;
    *ret_has = rw_sdpa_has(sdpa, s, ret_workspace);
    return RW_OK;
}

/* ---- execution ---- */

/* Executes the plan with operands by number; NULL if the plan has none. */
static cudnnStatus_t execute(const struct rw_sdpa *sdpa, const struct rw_dnn_pin *pin, void *const *operands,
                             void *workspace)
{
    int64_t ids[RW_SDPA_OPERANDS];
    void *addresses[RW_SDPA_OPERANDS];
    int64_t n = 0;
    for (int i = 1; i < RW_SDPA_OPERANDS; i++) {
        if (!operands[i]) continue;
        ids[n] = i;
        addresses[n++] = operands[i];
    }
    return rw_dnn_execute(&sdpa->pins.dnn, &pin->plan, n, ids, addresses, workspace);
}

/* Advances the operands from one of that many pieces of the batch to the next. */
static void step_on(const struct rw_sdpa_signature *s, int64_t pieces, void **operands)
{
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
        if (operands[i]) operands[i] = (char *)operands[i] + bytes[i] * (s->batch / pieces);
}

/* Adds the constants to the operands, and runs the pieces of the batch one after the other. */
static rw_status run(const struct rw_sdpa *sdpa, const struct rw_sdpa_signature *s, void **operands, char *workspace,
                     size_t workspace_bytes)
{
    static const float lowest = -FLT_MAX, one = 1;
    const char *const name = s->backward ? "attention's backward" : "attention";
    const struct rw_dnn_pin *const pin = rw_dnn_pinned(&sdpa->pins, s);
    size_t wanted = 0;
    if (!rw_sdpa_has(sdpa, s, &wanted) || workspace_bytes < wanted)
        return rw_cuda_fail(sdpa->pins.cuda, RW_ERR_DEVICE, "cuDNN: %s: the plan gave too little workspace", name);
    const struct rw_sdpa_signature *const kept = (const void *)pin->signature; /* valid as long as a graph */
    operands[RW_SDPA_SCALE] = (void *)&kept->scale;
    if (s->causal) operands[RW_SDPA_LOWEST] = (void *)&lowest;
    if (s->backward) {
        operands[RW_SDPA_ONE] = (void *)&one;
        operands[RW_SDPA_DOT] = workspace + rw_dnn_aligned(pin->plan.workspace);
    }
    rw_status status = RW_OK;
    for (int64_t i = 0; i < pin->pieces && !status; i++) {
        if (i) step_on(s, pin->pieces, operands);
        status = rw_cudnn_status(&sdpa->pins.dnn, sdpa->pins.cuda, execute(sdpa, pin, operands, workspace), name);
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
