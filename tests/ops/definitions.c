/*
 * Every op compared with its definition, and a check that every built-in op has a definition: see
 * support/definition_runner.h.
 *
 * REWIND_TEST_SHOW=1 build/tests/definitions prints the trials and the share of the bound that each uses.
 */
#include "ops/common/pass_ops.h"
#include "support/cases/functions.h"
#include "support/definition_runner.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* REWIND_TEST_OPS=text: only those whose name contains the text. */
static void run_all(const struct definition *table)
{
    const char *const only = getenv("REWIND_TEST_OPS");
    for (const struct definition *d = table; d->name; d++)
        if (!only || strstr(d->name, only)) definition_run(d);
}

#define DEFINITIONS(table)   \
    Test(definitions, table) \
    {                        \
        run_all(table);      \
    }
#include "test_tables.h"

/* ---- every op has a definition ---- */

static const struct definition *const tables[] = {
#define DEFINITIONS(table) table,
#include "test_tables.h"
};

/* Ops without a definition here, and the reason. */
static const char *const elsewhere[][2] = {
    { "assign", "an effect: run/effects, run/pipeline_split_steps" },
    { "batchnorm_average", "an effect: ops/batchnorm, ops/norm_statistics_accuracy" },
    { "batchnorm_update", "an effect: ops/batchnorm, ops/norm_statistics_accuracy" },
    { "custom_grad", "the caller's rule: autodiff/custom_grad" },
    { "dropout", "its mask is the generator's: ops/philox" },
    { "dropout_add", "its mask is the generator's: ops/philox" },
    { "moe_balance", "an effect: ops/moe" },
    { "moe_count", "an effect: ops/moe" },
    { "rand", "the generator: ops/philox" },
    { "randn", "the generator: ops/philox" },
};

static bool is_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

Test(definitions, no_op_is_left_out)
{
    for (size_t i = 0; rw_builtin_name(i); i++) {
        const char *const name = rw_builtin_name(i), *reason = NULL;
        bool has = op_function_defines(name);
        for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
            for (const struct definition *d = tables[k]; d->name; d++) has |= is_word(d->ops, name);
        for (size_t k = 0; k < sizeof elsewhere / sizeof *elsewhere; k++)
            if (!strcmp(elsewhere[k][0], name)) reason = elsewhere[k][1];
        cr_expect(has != (reason != NULL), "%s: %s", name,
                  has ? "has a definition and is excused" : "needs a definition in tests/ops/definitions, or a reason");
    }
    for (size_t k = 0; k < sizeof elsewhere / sizeof *elsewhere; k++)
        cr_expect(rw_op_is_builtin(elsewhere[k][0]), "%s is no op", elsewhere[k][0]);
}
