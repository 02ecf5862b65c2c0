/*
 * docs/ops.md: every op with PyTorch's name, its types, what backward reads of it and what it may write over. All but
 * PyTorch's names comes from the definitions and from what the cases record, and the page is held to it.
 *
 * REWIND_OPS_TABLE=docs/ops.md build/tests/table writes the page anew.
 */
#include "autodiff/problem.h"
#include "record/own_ops.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MOST 65536

#define MOST_OPS 256

static const struct {
    const char *op, *torch;
} torch[] = {
#include "ops/torch_names.h"
};

/* What is known of the op rw_builtin_name(i). */
static struct {
    uint32_t types; /* of its first operand, or of its result: bits by rw_dtype */
    const struct op_case *c; /* the one that records least beside it */
    uint32_t nodes;          /* that c records */
    rw_dtype dtype;          /* that c was recorded in */
} known[MOST_OPS];

struct text {
    char at[TEXT_MOST];
    size_t n;
};

static void print(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text->n += (size_t)vsnprintf(text->at + text->n, sizeof text->at - text->n, format, args);
    va_end(args);
    cr_assert_lt(text->n, sizeof text->at);
}

static const char *torch_name(const char *op)
{
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++)
        if (!strcmp(torch[i].op, op)) return torch[i].torch;
    cr_assert_fail("%s is not in torch_names.h", op);
    return "";
}

/* ---- what the cases record ---- */

static bool is_plain(const struct op_case *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->in[i].layout != OP_DENSE || !rw_shape_numel(c->in[i].shape)) return false;
    return !c->large;
}

static uint32_t node_of(const rw_tape *t, const char *op)
{
    uint32_t n = 0;
    while (n < t->n_nodes && strcmp(t->ctx->ops[t->nodes[n].op]->name, op)) n++;
    return n;
}

static void learn(const rw_tape *t, const struct op_case *c, rw_dtype dtype)
{
    for (size_t i = 0; rw_builtin_name(i); i++) {
        cr_assert_lt(i, MOST_OPS);
        if (node_of(t, rw_builtin_name(i)) == t->n_nodes) continue;
        known[i].types |= 1u << dtype;
        if (known[i].c && known[i].nodes <= t->n_nodes) continue;
        known[i].c = c;
        known[i].nodes = t->n_nodes;
        known[i].dtype = dtype;
    }
}

static void learn_all(struct fixture *b)
{
    static const rw_dtype dtypes[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };
    static const struct op_data none;
    size_t n;
    const struct op_case *const all = op_cases(&n);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < n; i++) {
            struct recording r;
            if (!is_plain(&all[i]) || (!all[i].n && all[i].dtype != dtypes[d])) continue;
            rw_tape_reset(b->t);
            if (op_record(&r, b->t, &all[i], dtypes[d], &none, OP_PLAIN)) learn(b->t, &all[i], dtypes[d]);
            rw_error_clear(b->ctx);
        }
    rw_tape_reset(b->t);
}

/* ---- what backward reads ---- */

static bool is_read(const rw_tape *t, uint32_t base)
{
    for (uint32_t n = 0; n < t->n_nodes; n++)
        for (uint32_t i = 0; t->nodes[n].adjoint && i < t->nodes[n].n_inputs; i++)
            if (rw_tape_base(t, t->operands[t->nodes[n].first_input + i]) == base) return true;
    return false;
}

static void print_operand(struct text *text, const rw_op_def *op, bool input, uint32_t i)
{
    char name[32];
    if (input) print(text, "%s", rw_op_input_name(op, (int)i, name, sizeof name));
    else if (op->n_outputs == 1) print(text, "result");
    else print(text, "result %u", i);
}

static void print_reads(struct text *text, const rw_tape *t, const struct rw_node *node)
{
    const rw_op_def *const op = t->ctx->ops[node->op];
    const size_t before = text->n;
    for (uint32_t i = 0; i < (uint32_t)node->n_inputs + node->n_outputs; i++) {
        const bool input = i < node->n_inputs;
        const uint32_t k = input ? i : i - node->n_inputs;
        const uint32_t base = input ? rw_tape_base(t, t->operands[node->first_input + k]) : node->first_output + k;
        if (!is_read(t, base)) continue;
        if (text->n > before) print(text, ", ");
        print_operand(text, op, input, k);
    }
    if (text->n == before) print(text, "nothing");
}

static void print_kept(struct text *text, struct fixture *b, size_t which)
{
    static const struct op_data none;
    struct recording r;
    struct rw_problem problem;
    const struct op_case *const c = known[which].c;
    rw_tape_reset(b->t);
    cr_assert(op_record(&r, b->t, c, known[which].dtype, &none, OP_PLAIN));
    const uint32_t node = node_of(b->t, rw_builtin_name(which));
    if (!b->t->ctx->ops[b->t->nodes[node].op]->grad || !rw_dtype_is_float(rw_tensor_dtype(r.y)) || !c->n) {
        print(text, "no gradient");
        return;
    }
    const uint32_t loss = op_record_loss(&r, b->t, c, &none, OP_PLAIN)->id;
    const struct rw_request request = {
        .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b->t->policy
    };
    cr_assert_eq(rw_problem_open(&problem, b->t, &request), RW_OK, "%s: %s", rw_builtin_name(which),
                 rw_error_message(b->ctx));
    print_reads(text, b->t, &b->t->nodes[node]);
    rw_problem_close(&problem);
}

static void print_inplace(struct text *text, const rw_op_def *op, uint32_t n_inputs)
{
    const size_t before = text->n;
    for (const rw_inplace *p = op->inplace; p && p->output != UINT16_MAX; p++) {
        if (p->input >= n_inputs) continue;
        if (text->n > before) print(text, ", ");
        print_operand(text, op, true, p->input);
    }
    if (text->n == before) print(text, "-");
}

/* What a recipe makes of the inputs: the set's word, and their names where it is not all of them. */
static void print_recipe(struct text *text, const rw_op_def *op, uint32_t n_inputs)
{
    const struct {
        uint32_t inputs;
        const char *word;
    } sets[] = { { op->lowered, "16 bits" }, { op->raised, "f32" }, { op->alike, "alike" } };
    const size_t before = text->n;
    for (int s = 0; s < 3; s++) {
        uint32_t n = 0;
        if (!sets[s].inputs) continue;
        print(text, "%s", sets[s].word);
        for (uint32_t i = 0; i < n_inputs; i++) n += rw_op_set_has(sets[s].inputs, (int)i);
        for (uint32_t i = 0; n < n_inputs && i < n_inputs; i++) {
            if (!rw_op_set_has(sets[s].inputs, (int)i)) continue;
            print(text, i ? ", " : ": ");
            print_operand(text, op, true, i);
        }
    }
    if (text->n == before) print(text, "-");
}

static void print_types(struct text *text, uint32_t types)
{
    const uint32_t floats = 1u << RW_F32 | 1u << RW_F64 | 1u << RW_BF16 | 1u << RW_F16;
    const size_t before = text->n;
    if ((types & floats) == floats) print(text, "floats");
    for (int d = 0; d < RW_DTYPE_COUNT; d++) {
        if (!(types >> d & 1) || ((types & floats) == floats && floats >> d & 1)) continue;
        print(text, "%s%s", text->n > before ? ", " : "", rw_dtype_name((rw_dtype)d));
    }
}

static void print_row(struct text *text, struct fixture *b, size_t which)
{
    print(text, "| `%s` | %s | ", rw_builtin_name(which), torch_name(rw_builtin_name(which)));
    if (!known[which].c) { /* it has tests of its own, and its header says the rest */
        print(text, "| | | |\n");
        return;
    }
    print_types(text, known[which].types);
    print(text, " | ");
    print_kept(text, b, which);
    print(text, " | ");
    const struct rw_node *const node = &b->t->nodes[node_of(b->t, rw_builtin_name(which))];
    print_inplace(text, b->t->ctx->ops[node->op], node->n_inputs);
    print(text, " | ");
    print_recipe(text, b->t->ctx->ops[node->op], node->n_inputs);
    print(text, " |\n");
}

static struct text page;

static const char head[] =
    "# The ops\n\n"
    "What the definitions say: `tests/ops/table.c` writes this page and holds it to them. *Types* are those that\n"
    "the tests record of the first operand; *floats* are f32, f64, bf16 and f16. *Backward reads* is what\n"
    "recompute can save: under `none` it is kept from forward to backward. *May write over* is what an op's\n"
    "result may take the memory of. *Recipe* is what an open one ([precision.md](precision.md)) casts inputs to.\n"
    "Empty columns belong to ops with tests of their own, whose headers say the rest. What is missing:\n"
    "[adding_an_op.md](adding_an_op.md).\n\n"
    "| op | PyTorch | types | backward reads | may write over | recipe |\n|---|---|---|---|---|---|\n";

static void print_page(void)
{
    struct fixture b = fixture_open(1, 1);
    learn_all(&b);
    print(&page, "%s", head);
    for (size_t i = 0; rw_builtin_name(i); i++) print_row(&page, &b, i);
    fixture_close(&b);
}

Test(table, the_page_says_what_the_definitions_say)
{
    static char there[TEXT_MOST];
    const char *const to = getenv("REWIND_OPS_TABLE");
    print_page();
    if (to) {
        FILE *const f = fopen(to, "w");
        cr_assert(f && fwrite(page.at, 1, page.n, f) == page.n && !fclose(f), "%s", to);
    }
    FILE *const f = fopen(REWIND_OPS_PAGE, "r");
    cr_assert_not_null(f, "%s", REWIND_OPS_PAGE);
    there[fread(there, 1, sizeof there - 1, f)] = '\0';
    fclose(f);
    const char *a = page.at, *b = there;
    while (*a && *a == *b) a++, b++;
    while (a > page.at && a[-1] != '\n') a--;
    cr_assert(!strcmp(page.at, there), "docs/ops.md is not what the definitions say, from this line on: %.*s",
              (int)strcspn(a, "\n"), a);
}
