/*
 * The list of all built-in ops with the names of their inputs, from the lines RW_BUILTIN_OP and RW_INTERNAL_OP of their
 * sources (ops/builtin_ops.py). Policies use it to tell a misspelt op from one that this tape does not use, and error
 * messages use it to name arguments.
 */
#include "ops/common/pass_ops.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *inputs;
    bool builtin;
} ops[] = {
#define BUILTIN_OP(name, inputs, torch) { name, inputs, true },
#define INTERNAL_OP(name, inputs) { name, inputs, false },
#include "ops/builtin_ops.h"
};
#define OPS (sizeof ops / sizeof *ops)

/* OPS if it is not listed. An op that is not names its inputs in its check. */
static size_t place_of(const char *name)
{
    size_t i = 0;
    while (i < OPS && strcmp(ops[i].name, name)) i++;
    return i;
}

/* Built-in ops are listed first. */
const char *rw_builtin_name(size_t i)
{
    return i < OPS && ops[i].builtin ? ops[i].name : NULL;
}

bool rw_op_is_builtin(const char *name)
{
    return rw_builtin_name(place_of(name)) != NULL;
}

const char *rw_op_input_name(const rw_op_def *op, int i, char *text, size_t size)
{
    const size_t place = op->kernel[RW_DEVICE_AUTO] == rw_op_is_own ? place_of(op->name) : OPS;
    const char *at = place < OPS ? ops[place].inputs : NULL;
    int k = 0;
    for (const char *next; at && k < i && (next = strchr(at, ' ')); k++) at = next + 1;
    const size_t n = at ? strcspn(at, " [") : 0;
    if (n && at[n] == '[') snprintf(text, size, "%.*s[%d]", (int)n, at, i - k);
    else if (n && k == i) snprintf(text, size, "%.*s", (int)n, at);
    else snprintf(text, size, "input %d", i);
    return text;
}

rw_status rw_op_is_own(const rw_kernel *k)
{
    return RW_ERR_UNSUPPORTED;
}
