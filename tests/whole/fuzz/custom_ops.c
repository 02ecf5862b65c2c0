/* See custom_ops.h. */
#include "whole/fuzz/custom_ops.h"

#include "support/support.h"

#include <rewind/ops.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

int fuzz_noise_runs[FUZZ_COUNTERS], fuzz_tally_runs[FUZZ_COUNTERS], fuzz_pair_runs[FUZZ_COUNTERS];
enum fuzz_plant fuzz_plant;
const rw_op_def *fuzz_plant_op;
static struct {
    uint64_t variant;
    int runs;
    double last;
} plant;

void fuzz_plant_begin(enum fuzz_plant kind, const rw_op_def *op, uint64_t variant)
{
    fuzz_plant = kind;
    fuzz_plant_op = op;
    plant.variant = variant;
    plant.runs = 0;
    plant.last = 0;
}

void fuzz_clear_runs(void)
{
    memset(fuzz_noise_runs, 0, sizeof fuzz_noise_runs);
    memset(fuzz_tally_runs, 0, sizeof fuzz_tally_runs);
    memset(fuzz_pair_runs, 0, sizeof fuzz_pair_runs);
}

static double load(const rw_view *v, int64_t i)
{
    if (v->dtype == RW_F64) return ((const double *)v->data)[i];
    if (v->dtype == RW_F32) return (double)((const float *)v->data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)v->data)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void store(const rw_view *v, int64_t i, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (v->dtype == RW_F64) ((double *)v->data)[i] = x;
    else if (v->dtype == RW_F32) ((float *)v->data)[i] = f;
    else ((uint16_t *)v->data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The last element of output 0 before the op ran, for the plant that leaves it unwritten. */
struct before {
    unsigned char last[8];
};

static void *element(const rw_view *v, int64_t i)
{
    return (char *)v->data + i * (int64_t)rw_dtype_size(v->dtype);
}

static struct before before_kernel(const rw_kernel *k)
{
    struct before b = { { 0 } };
    const int64_t n = k->out[0].layout->numel;
    if (n) memcpy(b.last, element(&k->out[0], n - 1), rw_dtype_size(k->out[0].dtype));
    return b;
}

/* The fault of the planted op, executed after its correct kernel. */
static void misbehave(const rw_kernel *k, const struct before *b)
{
    const rw_view *const x = &k->in[0], *const y = &k->out[0];
    const int64_t n = y->layout->numel, n_in = x->layout->numel, size = (int64_t)rw_dtype_size(y->dtype);
    if (k->op != fuzz_plant_op || !n || !n_in) return;
    const double first = load(y, 0), input = load(x, 0);
    const int run = ++plant.runs;
    switch (fuzz_plant) {
    case FUZZ_LEAVES_LAST: memcpy(element(y, n - 1), b->last, (size_t)size); break;
    case FUZZ_ADDRESS: store(y, 0, first + 0.125 * (double)((uintptr_t)y->data >> (8 + plant.variant % 6) & 1)); break;
    case FUZZ_SERIAL: store(y, 0, first + 0.03125 * (k->serial % 8)); break;
    case FUZZ_NEXT_BUFFER: store(y, (n * size + 255) / 256 * 256 / size, 0.75); break;
    case FUZZ_ONE_PAST: store(y, n, 0.75); break;
    case FUZZ_READS_PAST: store(y, 0, first + 0.25 * load(x, n_in)); break;
    case FUZZ_MUTATES:
        if (x->data != y->data) store(x, 0, 0.5 * input + 0.25);
        break;
    case FUZZ_REMEMBERS:
        store(y, 0, first + 0.25 * plant.last);
        plant.last = input;
        break;
    case FUZZ_BEFORE: store(y, -1, 0.75); break;
    case FUZZ_ONCE:
        if (run == 1 + (int)(plant.variant % 7)) store(y, 0, first + 0.25);
        break;
    case FUZZ_THREADS: store(y, 0, first + 0.03125 * k->threads); break;
    default: break;
    }
}

static int64_t id_of(const rw_kernel *k)
{
    int64_t id;
    memcpy(&id, k->attrs, sizeof id);
    return id % FUZZ_COUNTERS;
}

static rw_status check_like(rw_op_call *call)
{
    for (int i = 0; i < call->n_outputs; i++)
        if (rw_op_output_like(call, i, 0)) return RW_ERR_MEMORY;
    return rw_dtype_is_float(call->in[0].dtype) ? RW_OK : rw_op_error(call, RW_ERR_DTYPE, "a float is needed");
}

static rw_status pass_on(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

/* pair */

static rw_status pair_cpu(const rw_kernel *k)
{
    const int runs = fuzz_pair_runs[id_of(k)]++;
    const struct before b = before_kernel(k);
    if (runs && fuzz_plant == FUZZ_CRASHES) raise(SIGKILL); /* a signal that no tool reports as a bug of the program */
    const double lie = runs && fuzz_plant == FUZZ_LIES ? 0.25 : 0;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) {
        const double x = load(&k->in[0], i);
        store(&k->out[0], i, x * x + lie);
        store(&k->out[1], i, 0.5 * x);
    }
    misbehave(k, &b);
    return RW_OK;
}

static rw_status pair_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const dz = rw_grad_upstream(g, 1);
    rw_tensor *const first = dy ? rw_mul(t, rw_scale(t, rw_grad_input(g, 0), 2), dy) : NULL;
    rw_tensor *const second = dz ? rw_scale(t, dz, 0.5) : NULL;
    return rw_grad_set(g, 0, first && second ? rw_add(t, first, second) : first ? first : second);
}

HOST_KERNEL_OF(pair_cpu)
const rw_op_def fuzz_pair = { .name = "fuzz_pair", .n_inputs = 1, .n_outputs = 2, .check = check_like,
                              .kernel = HOST_KERNEL(pair_cpu), .grad = pair_grad };

/* top */

static rw_status top_check(rw_op_call *call)
{
    rw_shape rows = rw_layout_shape(call->in[0].layout);
    if (!rows.rank || !rows.dim[rows.rank - 1]) return rw_op_error(call, RW_ERR_SHAPE, "rows with elements are needed");
    rows.rank--;
    if (rw_op_output(call, 0, call->in[0].dtype, rows)) return RW_ERR_MEMORY;
    return rw_op_output(call, 1, RW_I32, rows);
}

/* Each row's sum and the index of its largest element. */
static rw_status top_cpu(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t width = l->dim[l->rank - 1];
    const struct before b = before_kernel(k);
    for (int64_t row = 0; row < k->out[0].layout->numel; row++) {
        double sum = 0;
        int32_t best = 0;
        for (int64_t i = 0; i < width; i++) {
            sum += load(&k->in[0], row * width + i);
            if (load(&k->in[0], row * width + i) > load(&k->in[0], row * width + best)) best = (int32_t)i;
        }
        store(&k->out[0], row, sum);
        ((int32_t *)k->out[1].data)[row] = best;
    }
    misbehave(k, &b);
    return RW_OK;
}

static rw_status top_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_shape x = rw_tensor_shape(rw_grad_input(g, 0));
    rw_shape column = x;
    column.dim[x.rank - 1] = 1;
    return rw_grad_set(g, 0, rw_contiguous(t, rw_broadcast_to(t, rw_reshape(t, rw_grad_upstream(g, 0), column), x)));
}

HOST_KERNEL_OF(top_cpu)
const rw_op_def fuzz_top = { .name = "fuzz_top", .n_inputs = 1, .n_outputs = 2, .check = top_check,
                             .kernel = HOST_KERNEL(top_cpu), .grad = top_grad };

/* jitter */

static bool coin(rw_ticket ticket, int64_t i)
{
    uint64_t x = (ticket.seed ^ (ticket.offset + (uint64_t)i / 4) * 0x9e3779b97f4a7c15u) + (uint64_t)i % 4;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return (x ^ x >> 29) & 1;
}

static rw_status jitter_cpu(const rw_kernel *k)
{
    const struct before b = before_kernel(k);
    for (int64_t i = 0; i < k->in[0].layout->numel; i++)
        store(&k->out[0], i, load(&k->in[0], i) * (coin(k->ticket, i) ? 1 : 0.5));
    misbehave(k, &b);
    return RW_OK;
}

static rw_status jitter_grad(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &fuzz_jitter, &dy, 1, NULL, 0, NULL));
}

HOST_KERNEL_OF(jitter_cpu)
const rw_op_def fuzz_jitter = { .name = "fuzz_jitter",
                                .n_inputs = 1,
                                .n_outputs = 1,
                                .flags = RW_OP_RANDOM,
                                .inplace = RW_INPLACE({ 0, 0 }),
                                .check = check_like,
                                .kernel = HOST_KERNEL(jitter_cpu),
                                .grad = jitter_grad };

/* noise and tally */

static rw_status noise_cpu(const rw_kernel *k)
{
    const int runs = ++fuzz_noise_runs[id_of(k)];
    for (int64_t i = 0; i < k->in[0].layout->numel; i++)
        store(&k->out[0], i, load(&k->in[0], i) * (1 + (double)runs / 64));
    return RW_OK;
}

HOST_KERNEL_OF(noise_cpu)
const rw_op_def fuzz_noise = { .name = "fuzz_noise", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NONDETERMINISTIC,
                               .check = check_like, .kernel = HOST_KERNEL(noise_cpu), .grad = pass_on };

static rw_status tally_cpu(const rw_kernel *k)
{
    fuzz_tally_runs[id_of(k)]++;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) store(&k->out[0], i, load(&k->in[0], i));
    return RW_OK;
}

HOST_KERNEL_OF(tally_cpu)
const rw_op_def fuzz_tally = { .name = "fuzz_tally",
                               .n_inputs = 1,
                               .n_outputs = 1,
                               .flags = RW_OP_STATEFUL,
                               .check = check_like,
                               .kernel = HOST_KERNEL(tally_cpu),
                               .grad = pass_on };

/* breaks and store */

int fuzz_fail_in;

static bool fails_now(void)
{
    return fuzz_fail_in > 0 && --fuzz_fail_in == 0;
}

static rw_status breaks_cpu(const rw_kernel *k)
{
    if (fails_now()) return RW_ERR_DEVICE;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) store(&k->out[0], i, load(&k->in[0], i));
    return RW_OK;
}

HOST_KERNEL_OF(breaks_cpu)
const rw_op_def fuzz_breaks = { .name = "fuzz_breaks", .n_inputs = 1, .n_outputs = 1, .check = check_like,
                                .kernel = HOST_KERNEL(breaks_cpu), .grad = pass_on };
const rw_op_def fuzz_store = { .name = "fuzz_store",
                               .n_inputs = 2,
                               .n_outputs = 1,
                               .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                               .check = check_like,
                               .kernel = HOST_KERNEL(breaks_cpu) };

/* draw */

struct fuzz_ledger fuzz_ledger;

/* Records drawn blocks, and counts overlaps with other draws. */
static void enter(rw_ticket ticket, uint64_t blocks, int64_t id)
{
    struct fuzz_ledger *const l = &fuzz_ledger;
    const int epoch = l->epoch[id / 1000 % 4];
    bool known = false;
    for (int i = 0; i < l->n; i++) {
        const rw_ticket other = l->entry[i].ticket;
        const bool overlaps = other.seed == ticket.seed && other.offset < ticket.offset + blocks &&
                              ticket.offset < other.offset + l->entry[i].blocks;
        const bool same = l->entry[i].id == id && l->entry[i].epoch == epoch;
        if (overlaps && !same) l->clashes++;
        known |= same && other.seed == ticket.seed && other.offset == ticket.offset;
    }
    if (known || l->n == (int)(sizeof l->entry / sizeof *l->entry)) return;
    l->entry[l->n].ticket = ticket;
    l->entry[l->n].blocks = blocks;
    l->entry[l->n].id = id;
    l->entry[l->n++].epoch = epoch;
}

static rw_status draw_cpu(const rw_kernel *k)
{
    int64_t id;
    memcpy(&id, k->attrs, sizeof id);
    const uint64_t blocks = ((uint64_t)k->in[0].layout->numel + 3) / 4;
    if (!fuzz_ledger.closed && blocks) enter(k->ticket, blocks, id);
    return jitter_cpu(k);
}

static rw_status draw_grad(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &fuzz_draw, &dy, 1, rw_grad_attrs(g), sizeof(int64_t), NULL));
}

HOST_KERNEL_OF(draw_cpu)
const rw_op_def fuzz_draw = { .name = "fuzz_draw", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_RANDOM,
                              .check = check_like, .kernel = HOST_KERNEL(draw_cpu), .grad = draw_grad };
