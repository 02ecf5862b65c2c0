/*
 * attention on CUDA: selects the implementation of a call (cuDNN, tensor cores or portable), computes its workspace,
 * and runs it.
 *
 * Law 1 (docs/laws.md) is ensured here: the choice depends on the device, types, shapes, strides and attributes, so it
 * is the same for forward and replay. It does not depend on operand addresses: operands that a fast kernel cannot load
 * are copied first.
 */
/* machine_code.py: pack_kernel: operands that begin off an aligned address */
/* machine_code.py: span_kernel: eight bytes for each row */
#include "device/cuda/cudnn/sdpa.h"
#include "ops/attention/attention_cuda.cuh"
#include "ops/common/partial_sums.cuh"

extern "C" {
#include "ops/reduce/reduce.h"
}

extern "C" rw_status rw_reduce_cuda(const rw_kernel *k);

namespace {

constexpr int INPUTS = 6; /* q, k, v, and backward's o, log-sum-exp and dy; extras follow them */
constexpr int O = 3, LSE = 4, DY = 5;
constexpr int64_t WORKSPACE_ALIGN = 256;

/* ---- selection ---- */

enum class way { PORTABLE, TENSOR_CORES, CUDNN };

struct choice {
    way by;
    bool copied[INPUTS]; /* copied into the workspace */
    size_t at[INPUTS];   /* offset of the copy */
    size_t spans;        /* offset of the table of spans */
    size_t columns;      /* offset of the partial column sums of the tensor-core kernels */
    size_t workspace;    /* the implementation's own workspace comes first */
    rw_sdpa *sdpa;
    rw_sdpa_signature signature;
};

/* The properties of a call that planning and execution both know. */
struct subject {
    const rw_cuda *cuda;
    rw_dtype dtype;
    const rw_attention_attrs *attrs;
    const rw_layout *in[INPUTS]; /* NULL from O on in the forward */
    const rw_layout *documents; /* NULL: none */
    bool packed, columns;       /* outputs of a backward */

    bool backward() const { return in[DY]; }
};

/* layout(i): the layout of input i. */
template <typename F>
subject subject_of(const rw_op_def *op, const void *device, rw_dtype dtype, const void *attrs, int n_inputs, F layout)
{
    subject s = {};
    s.cuda = static_cast<const rw_cuda *>(device);
    s.dtype = dtype;
    s.attrs = static_cast<const rw_attention_attrs *>(attrs); /* backward's attributes begin with the forward's */
    const bool backward = op != &rw_op_attention;
    const int documents = rw_att_extra(s.attrs, ATT_DOCUMENTS, backward ? INPUTS : 3);
    for (int i = 0; i < n_inputs && i < (backward ? INPUTS : 3); i++) s.in[i] = layout(i);
    if (documents >= 0) s.documents = layout(documents);
    if (backward) s.packed = static_cast<const rw_attention_backward_attrs *>(attrs)->packed != 0;
    if (backward) s.columns = static_cast<const rw_attention_backward_attrs *>(attrs)->columns != 0;
    return s;
}

/*
 * The kernels take the maximum before they scale, so the scale must be positive. They count pairs of batch and head in
 * int.
 */
bool tensor_cores_take(const subject &s)
{
    const rw_layout *const q = s.in[0];
    const bool size = (q->dim[3] == 64 || q->dim[3] == 128) && s.in[2]->dim[3] == q->dim[3];
    return rw_att_is_plain(s.attrs) && s.cuda->capability >= 80 && (s.dtype == RW_BF16 || s.dtype == RW_F16) && size &&
           s.attrs->scale > 0 && q->dim[0] * q->dim[1] <= INT32_MAX;
}

/* Do all rows start at multiples of 16 bytes, if the buffers are aligned? For 16-bit elements. */
bool has_aligned_rows(const rw_layout *l)
{
    uint64_t bits = static_cast<uint64_t>(l->offset);
    for (int i = 0; i < 3; i++)
        if (l->dim[i] > 1) bits |= static_cast<uint64_t>(l->stride[i]);
    return l->stride[3] == 1 && bits % 8 == 0;
}

void copy_to_workspace(choice *c, int input, int64_t elements)
{
    const int64_t bytes = elements * 2;
    c->copied[input] = true;
    c->at[input] = c->workspace;
    c->workspace += static_cast<size_t>((bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN);
}

/* Queries cuDNN. It distinguishes operands by their strides and requires addresses aligned to 16 bytes. pins: planning,
   which selects and pins an algorithm; otherwise the pinned one is looked up for a run. */
rw_status query_library(choice *c, const subject &s, bool pins)
{
    rw_sdpa *const sdpa = s.cuda->sdpa;
    bool has = false;
    if (!rw_att_is_plain(s.attrs) || s.attrs->extras >> ATT_DLSE || s.in[0]->dim[3] != s.in[2]->dim[3] ||
        !rw_sdpa_describe(&c->signature, s.dtype, s.in[0], s.in[1], s.in[2], s.in[O], s.in[DY], s.packed,
                                   s.attrs->scale, s.attrs->causal != 0, s.attrs->dropout))
        return RW_OK;
    rw_status status = RW_OK;
    if (pins) status = rw_sdpa_query(sdpa, &c->signature, &has, &c->workspace);
    else has = rw_sdpa_has(sdpa, &c->signature, &c->workspace);
    if (status || !has) return status;
    c->by = way::CUDNN;
    c->sdpa = sdpa;
    for (int i = 0; i < INPUTS; i++)
        if (s.in[i] && i != LSE && s.in[i]->offset % 8) copy_to_workspace(c, i, s.in[i]->span);
    return RW_OK;
}

void choose_ours(choice *c, const subject &s)
{
    const att_extents e = rw_att_extents(s.in[0], s.in[1], s.in[2]);
    c->workspace = s.backward() ? rw_att_stat_bytes(&e, s.dtype) : 0;
    c->spans = c->workspace = (c->workspace + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    if (!rw_att_is_plain(s.attrs)) c->workspace += rw_att_span_bytes(s.documents, e.seq);
    if (!tensor_cores_take(s)) return;
    c->by = way::TENSOR_CORES;
    for (const int i : { 0, 1, 2, DY })
        if (s.in[i] && !has_aligned_rows(s.in[i])) copy_to_workspace(c, i, s.in[i]->numel);
}

/* Number of tiles of rows in all batches, each of which has partial column sums. */
int64_t parts_of(const att_extents &e)
{
    return e.batch * ((e.seq + ATT_PART_ROWS - 1) / ATT_PART_ROWS);
}

/* The tensor-core kernels store the column sums of each tile. With other implementations the stored gradients are
   summed afterwards. */
size_t columns_bytes(const choice &c, const subject &s)
{
    const att_extents e = rw_att_extents(s.in[0], s.in[1], s.in[2]);
    if (c.by == way::TENSOR_CORES) return static_cast<size_t>(parts_of(e) * rw_att_columns(&e)) * sizeof(float);
    rw_layout l = {};
    l.rank = 2, l.dim[0] = e.batch * e.seq, l.dim[1] = rw_att_columns(&e);
    const struct rw_reduce_plan plan = rw_reduce_plan(&l, rw_reduce_rows(l.rank));
    return rw_reduce_cuda_workspace(&plan, &l, s.dtype, RW_REDUCE_SUM);
}

rw_status choose(choice *c, const subject &s, bool pins)
{
    *c = {};
    const rw_status status = query_library(c, s, pins);
    if (status) return status;
    if (c->by != way::CUDNN) choose_ours(c, s);
    if (!s.columns) return RW_OK;
    const size_t bytes = columns_bytes(*c, s);
    if (c->by == way::TENSOR_CORES) {
        c->columns = c->workspace = (c->workspace + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
        c->workspace += bytes;
    } else if (c->workspace < bytes) c->workspace = bytes; /* the rest of the workspace is free by then */
    return RW_OK;
}

/* ---- operands ---- */

att_operand view_of(const rw_view &x)
{
    const int64_t *const s = x.layout->stride;
    return { x.data, s[0], s[1], s[2], s[3] };
}

/* One thread copies eight columns of a row to dense memory; 16-bit elements. */
__global__ void __launch_bounds__(256)
pack_kernel(const att_operand from, uint16_t *to, int heads, int rows, int chunks, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t row = i / chunks, pair = row / rows;
    const int64_t at = pair / heads * from.batch + pair % heads * from.head + row % rows * from.row;
    const uint16_t *const p = static_cast<const uint16_t *>(from.p) + at + i % chunks * 8 * from.col;
    pack<uint16_t> x;
    for (int c = 0; c < 8; c++) x.x[c] = p[c * from.col];
    store_pack(to + i * 8, x);
}

/* Input i as the tensor-core kernels load it, after its copy if there is one. */
att_operand loaded(const rw_kernel *k, const choice &c, int i)
{
    const rw_layout *const l = k->in[i].layout;
    if (!c.copied[i]) return view_of(k->in[i]);
    const int64_t heads = l->dim[1], rows = l->dim[2], d = l->dim[3], n = l->numel / 8;
    uint16_t *const to = reinterpret_cast<uint16_t *>(static_cast<char *>(k->workspace) + c.at[i]);
    if (n)
        RW_LAUNCH(pack_kernel, blocks_for(n, 256), 256, 0, k, view_of(k->in[i]), to, static_cast<int>(heads),
                  static_cast<int>(rows), static_cast<int>(d / 8), n);
    return { to, heads * rows * d, rows * d, d, 1 };
}

/* Input i at an address that the library can load, with its own layout. rw_cuda_launched() reports a failure. */
const void *aligned(const rw_kernel *k, const choice &c, int i)
{
    const rw_view &x = k->in[i];
    void *const to = static_cast<char *>(k->workspace) + c.at[i];
    if (!c.copied[i]) return x.data;
    if (x.layout->span)
        cudaMemcpyAsync(to, x.data, static_cast<size_t>(x.layout->span) * 2, cudaMemcpyDeviceToDevice, rw_stream(k));
    return to;
}

/* ---- options ---- */

constexpr int THREADS = 256;

/* One thread per span; and one per entry of documents, to check it. */
__global__ void __launch_bounds__(THREADS)
    span_kernel(const att_reach r, int64_t sets, int64_t set, att_span *to, index_guard guard)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    att_reach own = r;
    if (n < sets * r.entries) {
        own.documents = r.documents + n / r.entries * set;
        if (!rw_att_entry_holds(&own, n % r.entries)) guard.report();
    }
    if (n >= sets * r.seq) return;
    if (r.documents) own.documents = r.documents + n / r.seq * set;
    to[n] = rw_att_span(&own, n % r.seq);
}

void fill_spans(const rw_kernel *k, const rw_view *documents, const att_extents &e, att_call *c, att_span *to)
{
    const rw_layout *const l = documents ? documents->layout : nullptr;
    const att_reach r = rw_att_reach(static_cast<const rw_attention_attrs *>(k->attrs), &e, documents, 0);
    const int64_t sets = rw_att_span_sets(l), set = l && l->rank == 2 ? l->stride[0] : 0;
    const int64_t n = sets * (r.entries > r.seq ? r.entries : r.seq);
    c->options.spans = to;
    c->options.span_batch = sets > 1 ? r.seq : 0;
    if (n) RW_LAUNCH(span_kernel, blocks_for(n, THREADS), THREADS, 0, k, r, sets, set, to, guard_of(k));
}

/* first: inputs before the extras. */
void begin_options(const rw_kernel *k, const att_extents &e, att_call *c, const choice &ch, int first)
{
    const rw_attention_attrs *const attrs = static_cast<const rw_attention_attrs *>(k->attrs);
    const rw_view *x[ATT_EXTRAS];
    att_options &o = c->options;
    for (int i = 0; i < ATT_EXTRAS; i++) {
        const int at = rw_att_extra(attrs, i, first);
        x[i] = at < 0 ? nullptr : &k->in[at];
    }
    c->plain = rw_att_is_plain(attrs);
    o.soft_cap = attrs->soft_cap;
    if (x[ATT_MASK]) {
        const rw_layout *const l = x[ATT_MASK]->layout;
        o.mask = x[ATT_MASK]->data;
        o.mask_is_truth = x[ATT_MASK]->dtype == RW_BOOL;
        o.mask_is_wide = !o.mask_is_truth && x[ATT_MASK]->dtype != k->in[0].dtype;
        for (int i = 0; i < 4; i++) o.mask_stride[i] = l->dim[i] == 1 ? 0 : l->stride[i];
    }
    if (x[ATT_SLOPES]) o.slopes = x[ATT_SLOPES]->data, o.slope_stride = x[ATT_SLOPES]->layout->stride[0];
    if (x[ATT_SINKS]) o.sinks = x[ATT_SINKS]->data, o.sink_stride = x[ATT_SINKS]->layout->stride[0];
    if (x[ATT_DLSE]) {
        o.dlse = x[ATT_DLSE]->data;
        for (int i = 0; i < 3; i++) o.dlse_stride[i] = x[ATT_DLSE]->layout->stride[i];
    }
    if (c->plain) return;
    void *const table = static_cast<char *>(k->workspace) + ch.spans;
    fill_spans(k, x[ATT_DOCUMENTS], e, c, static_cast<att_span *>(table));
}

/* ---- execution ---- */

/* Fills in a call from the kernel's operands, and copies the operands that need it. */
rw_status begin(const rw_kernel *k, att_call *c, const choice &ch)
{
    const rw_attention_attrs *const attrs = static_cast<const rw_attention_attrs *>(k->attrs);
    const att_extents e = rw_att_extents(k->in[0].layout, k->in[1].layout, k->in[2].layout);
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    const bool fast = ch.by == way::TENSOR_CORES;
    *c = {};
    if (e.seq > ATT_ROWS_MAX || e.kv_seq > ATT_ROWS_MAX || e.d > ATT_ROWS_MAX || e.dv > ATT_ROWS_MAX ||
        e.heads > ATT_ROWS_MAX)
        return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "%s: more than 2^30 rows", k->op->name);
    c->heads = static_cast<int>(e.heads), c->kv_heads = static_cast<int>(e.kv_heads),
    c->group = static_cast<int>(e.group);
    c->seq = static_cast<int>(e.seq), c->kv_seq = static_cast<int>(e.kv_seq), c->d = static_cast<int>(e.d);
    c->dv = static_cast<int>(e.dv);
    c->reach = attrs->causal ? c->kv_seq - c->seq + 1 : c->kv_seq;
    c->stat_rows = static_cast<int>(rw_att_stat_rows(&e));
    c->pairs = e.batch * e.heads, c->kv_pairs = e.batch * e.kv_heads;
    c->scale = attrs->scale;
    c->threshold = philox_threshold(attrs->dropout);
    c->keep_factor = c->threshold ? 1 / (1 - attrs->dropout) : 1;
    c->ticket = ticket_of(k);
    att_operand *const to[INPUTS] = { &c->q, &c->k, &c->v, &c->o, nullptr, &c->dy };
    for (int i = 0; i < k->n_inputs && i < INPUTS; i++)
        if (to[i] && (i < 3 || k->op != &rw_op_attention)) *to[i] = fast ? loaded(k, ch, i) : view_of(k->in[i]);
    const bool backward = k->op != &rw_op_attention;
    begin_options(k, e, c, ch, backward ? INPUTS : 3);
    return RW_OK;
}

/* ---- column sums ---- */

const void *sum_before(const rw_kernel *k)
{
    const int at = rw_att_extra(static_cast<const rw_attention_attrs *>(k->attrs), ATT_SUM, INPUTS);
    return at >= 0 && rw_kernel_has(k, at) ? k->in[at].data : nullptr;
}

/* Merges the partial sums of the tensor-core kernels. */
void merge_columns(const rw_kernel *k, const att_call &c, const att_extents &e)
{
    const auto *const part = reinterpret_cast<const sum_state<float> *>(c.part);
    const int64_t n = rw_att_columns(&e), parts = parts_of(e);
    void *const to = k->out[1].data;
    const void *const sum = sum_before(k);
    if (k->out[1].dtype == RW_F32) merge_parts<summed, float>(k, part, parts, n, to, n, 1, sum);
    else if (k->out[1].dtype == RW_BF16) merge_parts<summed, bf16>(k, part, parts, n, to, n, 1, sum);
    else merge_parts<summed, f16>(k, part, parts, n, to, n, 1, sum);
}

/* Sums the columns of the stored gradients, with the reduction of sum_to. */
rw_status sum_stored_columns(const rw_kernel *k)
{
    const rw_layout *const l = k->out[0].layout;
    rw_reduce_attrs attrs = {};
    attrs.axes = rw_reduce_rows(l->rank - 1), attrs.kind = RW_REDUCE_SUM;
    const rw_view in[] = { k->out[0], { const_cast<void *>(sum_before(k)), k->out[1].layout, k->out[1].dtype } };
    rw_kernel sum = *k;
    sum.attrs = &attrs;
    sum.in = in, sum.n_inputs = 2;
    sum.out = &k->out[1], sum.n_outputs = 1;
    return rw_reduce_cuda(&sum);
}

/* The choice for a running kernel; an error if its workspace is smaller than the choice requires. */
rw_status choose_again(choice *c, const rw_kernel *k)
{
    const auto layout = [=](int i) { return k->in[i].layout; };
    const subject s = subject_of(k->op, k->device, k->in[0].dtype, k->attrs, k->n_inputs, layout);
    const rw_status status = choose(c, s, false);
    if (status) return status;
    return k->workspace_bytes < c->workspace ? RW_ERR_MEMORY : RW_OK;
}

} // namespace

extern "C" size_t rw_attention_workspace_cuda(const rw_op_call *call)
{
    const auto layout = [=](int i) { return call->in[i].layout; };
    const subject s = subject_of(call->op, call->device, call->in[0].dtype, call->attrs, call->n_inputs, layout);
    choice c;
    return choose(&c, s, true) ? SIZE_MAX : c.workspace;
}

/* Runs the forward with the selected implementation. */
extern "C" rw_status rw_attention_cuda(const rw_kernel *k)
{
    choice ch;
    att_call c;
    rw_status status = choose_again(&ch, k);
    if (status) return status;
    if (ch.by == way::CUDNN) {
        const void *const q = aligned(k, ch, 0), *const key = aligned(k, ch, 1), *const v = aligned(k, ch, 2);
        status = rw_sdpa_forward(ch.sdpa, &ch.signature, q, key, v, k->out[0].data, k->out[1].data, k->workspace,
                                 k->workspace_bytes);
        return status ? status : rw_cuda_launched(k);
    }
    status = begin(k, &c, ch);
    if (status) return status;
    c.out[0] = rw_att_output(k);
    c.lse = k->out[1].data;
    return ch.by == way::TENSOR_CORES ? rw_attention_mma_forward(k, c) : rw_attention_portable_forward(k, c);
}

/* Runs the portable or tensor-core backward, except for column sums and other reductions after it. */
static rw_status run_ours(const rw_kernel *k, const choice &ch, att_call *ret_c, bool columns)
{
    att_call &c = *ret_c;
    rw_status status = begin(k, &c, ch);
    if (status) return status;
    const bool fast = ch.by == way::TENSOR_CORES;
    for (int i = 0; i < 3; i++) c.out[i] = rw_att_gradient(k, i);
    c.lse = k->in[LSE].data;
    c.stat = k->workspace;
    if (columns && fast) c.part = reinterpret_cast<float *>(static_cast<char *>(k->workspace) + ch.columns);
    if (c.options.sinks) c.options.sink_rows = k->out[k->n_outputs - 1].data;
    status = rw_attention_prepare_rows(k, c, fast ? 1.4426950408889634 : 1,
                                       fast && k->out[0].dtype == RW_F16 ? ATT_LIFT_F16 : 0);
    if (status) return status;
    return fast ? rw_attention_mma_backward(k, c) : rw_attention_portable_backward(k, c);
}

/* Runs backward with the selected implementation, then the reductions of its results. */
extern "C" rw_status rw_attention_backward_cuda(const rw_kernel *k)
{
    const bool columns = static_cast<const rw_attention_backward_attrs *>(k->attrs)->columns != 0;
    choice ch;
    att_call c;
    rw_status status = choose_again(&ch, k);
    if (status) return status;
    if (ch.by == way::CUDNN) {
        const void *const q = aligned(k, ch, 0), *const key = aligned(k, ch, 1), *const v = aligned(k, ch, 2);
        const void *const o = aligned(k, ch, O), *const dy = aligned(k, ch, DY);
        status = rw_sdpa_backward(ch.sdpa, &ch.signature, q, key, v, o, k->in[LSE].data, dy, rw_att_gradient(k, 0).p,
                                  rw_att_gradient(k, 1).p, rw_att_gradient(k, 2).p, k->workspace, k->workspace_bytes);
        if (!status) status = rw_cuda_launched(k);
        return status || !columns ? status : sum_stored_columns(k);
    }
    status = run_ours(k, ch, &c, columns);
    if (status || !columns) return status;
    if (ch.by != way::TENSOR_CORES) return sum_stored_columns(k);
    merge_columns(k, c, rw_att_extents(k->in[0].layout, k->in[1].layout, k->in[2].layout));
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_attention_mask_backward_cuda(const rw_kernel *k)
{
    choice ch;
    att_call c;
    rw_status status = choose_again(&ch, k);
    if (!status) status = begin(k, &c, ch);
    if (status) return status;
    c.lse = k->in[LSE].data;
    c.stat = k->workspace;
    status = rw_attention_prepare_rows(k, c, 1, 0);
    return status ? status : rw_attention_portable_mask(k, c);
}
