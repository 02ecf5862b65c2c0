/* Texts of messages about NULL arguments, by the names that public headers give them. */
#include "base/null_argument_text.h"

#include <stddef.h>
#include <string.h>

const char *rw_expected_of_null(const char *argument)
{
    static const struct {
        const char *argument, *expected;
    } known[] = {
        { "t", "a tape" },
        { "ctx", "a context" },
        { "x", "a tensor, or an array of n tensors" },
        { "loss", "a tensor" },
        { "param", "a parameter" },
        { "opt", "an optimizer" },
        { "optimizer", "an optimizer" },
        { "average", "an average of weights" },
        { "s", "a loss scaler" },
        { "d", "a delayed scaling" },
        { "g", "a graph; in a gradient rule, the call that it was given" },
        { "monitor", "a monitor" },
        { "checkpoint", "a checkpoint" },
        { "params", "its parameters" },
        { "recipe", "a precision recipe" },
        { "values", "the values of the step" },
        { "groups", "an array of n_groups groups" },
        { "grown", "an array of n scaled steps" },
        { "choice", "an rw_moe_choice with k, the experts per token" },
        { "why", "the memory for the reason" },
        { "slot", "a slot of rw_recipe_gradient_slot()" },
        { "routes", "the routes of rw_moe_route()" },
        { "data", "the memory to read or write" },
        { "extra", "extra_bytes bytes" },
        { "path", "the name of a file" },
        { "name", "a name" },
        { "spec", "a policy" },
        { "out", "the stream or memory to write to" },
        { "points", "an array of n points" },
        { "n", "the length of the array" },
        { "parts", "an array of n parts" },
    };
    if (!strncmp(argument, "ret", 3)) return "where the result is stored";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].argument, argument)) return known[i].expected;
    return "a valid pointer";
}
