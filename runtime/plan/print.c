/*
 * Prints a plan in four parts: totals, one line per action, one line per buffer of the arena with its lifetime, and the
 * operands outside the arena. Only ids that are the same in every run are printed: no addresses, serials or folders.
 */
#include "plan/print.h"

#include "plan/arena_buffers.h"
#include "record/param.h"

#include <inttypes.h>
#include <string.h>

struct printer {
    const struct rw_planning *g;
    const rw_plan *plan;
    const rw_tape *t;
    struct rw_arena_buffers buffers;
    FILE *out;
};

static const char *const source_names[] = {
    [RW_SOURCE_PARAM] = "param",   [RW_SOURCE_GRADIENT] = "grad", [RW_SOURCE_OLD] = "grad_before",
    [RW_SOURCE_ADDEND] = "addend", [RW_SOURCE_SEED] = "seed",     [RW_SOURCE_INPUT] = "input",
    [RW_SOURCE_HELD] = "held",     [RW_SOURCE_RESULT] = "result", [RW_SOURCE_STORE] = "store",
    [RW_SOURCE_NOWHERE] = "empty",
};

static const char *const lane_names[RW_LANES] = {
    [RW_LANE_COMPUTE] = "compute", [RW_LANE_OUT] = "out", [RW_LANE_IN] = "in",
};

static void print_totals(const struct printer *p)
{
    const rw_plan *const plan = p->plan;
    fprintf(p->out, "plan: policy %s; %s; %d thread%s\n", p->g->policy->spec,
            rw_device_name(p->t->ctx->kind), plan->threads, plan->threads == 1 ? "" : "s");
    fprintf(p->out, "bytes: arena %" PRIu64 " in units of %" PRIu32 ", largest live %" PRIu64 ", kept %" PRIu64
            ", recomputed %" PRIu64 ", workspaces %" PRIu64 ", results %" PRIu64 ", offload store %" PRIu64 "\n",
            plan->arena_bytes, plan->unit, plan->largest_live, plan->kept_bytes, plan->replayed_bytes,
            plan->workspace_bytes, plan->results_bytes, plan->store_bytes);
    fprintf(p->out, "nodes: %zu forward, %zu recomputed, %zu backward; predicted %.4g us\n", plan->cost.forward_nodes,
            plan->cost.replayed_nodes, plan->cost.backward_nodes, p->g->cost.seconds * 1e6);
}

/* "b3@1024+256": buffer 3, at byte 1024 of the arena, 256 bytes. "param2", "store0+4096": outside the arena. */
static void print_operand(const struct printer *p, size_t i)
{
    const uint32_t word = p->plan->words[i];
    if (rw_word_is_source(word)) {
        const struct rw_source *const s = &p->plan->sources[rw_word_source(word)];
        fprintf(p->out, " %s%" PRIu32, source_names[s->kind], s->kind == RW_SOURCE_NOWHERE ? 0 : s->index);
        return;
    }
    const uint32_t b = p->buffers.of_word[i];
    const struct rw_arena_buffer *const x = &p->buffers.buffer[b];
    fprintf(p->out, " b%" PRIu32 "@%" PRIu64 "+%" PRIu64, b, x->offset, x->bytes);
}

/* Inputs, an arrow, outputs, and the workspace after a bar. */
static void print_operands(const struct printer *p, const struct rw_action *a, const struct rw_node *node)
{
    const uint32_t n_in = rw_action_is_move(a->kind) ? 1 : node->n_inputs;
    const uint32_t n_out = rw_action_is_move(a->kind) ? 1 : node->n_outputs;
    for (uint32_t i = 0; i < n_in; i++) print_operand(p, a->word + i);
    fprintf(p->out, " ->");
    for (uint32_t i = n_in; i < n_in + n_out; i++) print_operand(p, a->word + i);
    if (a->n_words > n_in + n_out) {
        fprintf(p->out, " | workspace");
        print_operand(p, a->word + n_in + n_out);
    }
}

static double seconds_of(const struct printer *p, const struct rw_action *a)
{
    if (!rw_action_is_move(a->kind)) return rw_problem_seconds(&p->g->problem, a->node);
    const uint32_t word = p->plan->words[a->word + (a->kind == RW_ACTION_OUT)];
    return rw_move_seconds(&p->g->problem, a->lane, p->plan->slots[p->plan->sources[rw_word_source(word)].index].bytes);
}

static const char *region_of(const struct printer *p, const struct rw_node *node, char *text, size_t size)
{
    rw_region_path(p->t, rw_node_region(p->t, node), text, size);
    return *text ? text : "-";
}

/* The action that one kernel computes together with this one, RW_NONE_ID if there is none. */
static uint32_t fused_with(const rw_plan *plan, uint32_t index)
{
    for (size_t i = 0; i < plan->n_fused; i++)
        if (plan->fused[i].first == index) return plan->fused[i].last;
    return RW_NONE_ID;
}

/* *wait: the first of the plan's waits that no earlier action has. */
static void print_action(const struct printer *p, uint32_t index, size_t *wait)
{
    static const char *const kinds[] = { [RW_ACTION_FORWARD] = "forward",   [RW_ACTION_REPLAY] = "recompute",
                                         [RW_ACTION_BACKWARD] = "backward", [RW_ACTION_COMMIT] = "commit",
                                         [RW_ACTION_OUT] = "copy_out",      [RW_ACTION_IN] = "copy_in" };
    const struct rw_action *const a = &p->plan->actions[index];
    const struct rw_node *const node = rw_plan_node(p->t, p->plan, a->node);
    char region[128];
    fprintf(p->out, "a%-4" PRIu32 " %-7s %-9s %9.4g us  %-22s %-16s", index, lane_names[a->lane], kinds[a->kind],
            seconds_of(p, a) * 1e6, p->t->ctx->ops[node->op]->name, region_of(p, node, region, sizeof region));
    print_operands(p, a, node);
    if (node->ticket != RW_NONE_ID && !rw_action_is_move(a->kind)) fprintf(p->out, " ticket%" PRIu32, node->ticket);
    for (; *wait < p->plan->n_waits && p->plan->waits[*wait].action == index; ++*wait)
        fprintf(p->out, " after a%" PRIu32, p->plan->waits[*wait].on);
    if (fused_with(p->plan, index) != RW_NONE_ID) fprintf(p->out, " fused with a%" PRIu32, fused_with(p->plan, index));
    fprintf(p->out, "\n");
}

static void print_type(const struct printer *p, uint32_t v)
{
    const struct rw_tensor *const x = rw_tape_value(p->t, v);
    const rw_layout *const l = rw_layout_get(&p->t->ctx->layouts, x->layout);
    fprintf(p->out, "%s[", rw_dtype_name((rw_dtype)x->dtype));
    for (int i = 0; i < l->rank; i++) fprintf(p->out, "%s%" PRId64, i ? ", " : "", l->dim[i]);
    fprintf(p->out, "]%s%s", x->tag ? " " : "", x->tag ? p->t->ctx->names.text[x->tag - 1] : "");
}

static void print_buffer(const struct printer *p, uint32_t b)
{
    const struct rw_arena_buffer *const x = &p->buffers.buffer[b];
    const uint32_t end = (uint32_t)p->plan->n_actions - 1;
    fprintf(p->out, "b%-4" PRIu32 " @%-10" PRIu64 " +%-10" PRIu64 " a%" PRIu32 "..a%" PRIu32 "  ", b, x->offset,
            x->bytes, x->first, x->last < end ? x->last : end);
    if (x->value == RW_NONE_ID) fprintf(p->out, "workspace");
    else fprintf(p->out, "v%" PRIu32 " ", x->value), print_type(p, x->value);
    fprintf(p->out, "\n");
}

static void print_source(const struct printer *p, const struct rw_source *s)
{
    const rw_plan *const plan = p->plan;
    if (s->kind == RW_SOURCE_NOWHERE) return;
    fprintf(p->out, "%s%" PRIu32, source_names[s->kind], s->index);
    switch (s->kind) {
    case RW_SOURCE_PARAM:
    case RW_SOURCE_GRADIENT:
    case RW_SOURCE_OLD:
    case RW_SOURCE_ADDEND: fprintf(p->out, " %s", rw_param_name(p->t->ctx->by_id[s->index])); break;
    case RW_SOURCE_RESULT:
        fprintf(p->out, " @%" PRIu64 " +%" PRIu64, plan->results[s->index].offset, plan->results[s->index].bytes);
        break;
    case RW_SOURCE_STORE:
        fprintf(p->out, " @%" PRIu64 " +%" PRIu64 " v%" PRIu32, plan->slots[s->index].offset,
                plan->slots[s->index].bytes, plan->slots[s->index].value);
        break;
    default: break;
    }
    fprintf(p->out, "\n");
}

rw_status rw_plan_print_to(const struct rw_planning *g, const rw_plan *plan, FILE *out)
{
    struct printer p = { .g = g, .plan = plan, .t = g->problem.t, .out = out };
    size_t wait = 0;
    if (!rw_arena_buffers_find(&p.buffers, p.t, plan)) return RW_ERR_MEMORY;
    print_totals(&p);
    fprintf(out, "\nactions: %zu, of which %zu before backward\n", plan->n_actions, plan->n_before);
    for (uint32_t i = 0; i < plan->n_actions; i++) print_action(&p, i, &wait);
    fprintf(out, "\nbuffers in the arena: %zu\n", p.buffers.n);
    for (uint32_t b = 0; b < p.buffers.n; b++) print_buffer(&p, b);
    fprintf(out, "\noperands outside the arena: %zu\n", plan->n_sources);
    for (size_t i = 0; i < plan->n_sources; i++) print_source(&p, &plan->sources[i]);
    rw_arena_buffers_free(&p.buffers);
    return RW_OK;
}
