/*
 * The table of op_cases.h: ops times shapes, one file of cases/ per family. The recorded ops are in op_builds.c; the
 * roundings are derived in op_roundings.h and .c.
 */
#include "support/cases/cases.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_MAX 4096

static struct op_case table[CASES_MAX];
static size_t n_table;

const struct op_axis_case op_axis_cases[OP_AXIS_CASES] = { { { S(1), 0, 0 }, 0 },
                                                           { { S(257), 0, 0 }, -1 },
                                                           { { S(3, 5, 7), 0, 0 }, 1 },
                                                           { { S(2, 1025), 0, 0 }, -1 },
                                                           { { S(33, 130), 0, 0 }, 0 },
                                                           { { S(9, 6), OP_TURNED, 0 }, 1 },
                                                           { { S(4, 8), OP_SLICED, 0 }, 0 },
                                                           { { S(3, 5), OP_EXPANDED, 0 }, -1 },
                                                           { { S(0, 3), 0, 0 }, 1 },
                                                           { { S(3, 70001), 0, 0 }, 1 } };

void op_case_describe(struct op_case *c, const char *text, ...)
{
    static const char *const layouts[OP_LAYOUTS] = { "", " turned", " middle", " sliced", " cut", " expanded" };
    va_list args;
    va_start(args, text);
    int at = vsnprintf(c->name, sizeof c->name, text, args);
    va_end(args);
    for (int i = 0; i < c->n && at < (int)sizeof c->name; i++) {
        const rw_shape s = c->in[i].shape;
        at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s", i ? ", " : " ");
        for (int k = 0; k < s.rank && at < (int)sizeof c->name; k++)
            at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s%lld", k ? "x" : "", (long long)s.dim[k]);
        if (at < (int)sizeof c->name)
            at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s", layouts[c->in[i].layout]);
    }
}

struct op_case *op_case_next(enum op_group group, op_build build, op_sizes sizes, int n)
{
    if (n_table == CASES_MAX) abort();
    struct op_case *const c = &table[n_table++];
    *c = (struct op_case){ .group = group, .build = build, .sizes = sizes, .n = n, .value = 1 };
    return c;
}

void op_case_count(struct op_case *c, op_count count)
{
    c->count = count;
    count(c);
}

/* A name that matches no case must not pass as a success. */
static void keep_wanted(void)
{
    const char *const text = getenv("REWIND_TEST_OPS");
    const size_t all = n_table;
    if (!text) return;
    n_table = 0;
    for (size_t i = 0; i < all; i++)
        if (strstr(table[i].name, text)) table[n_table++] = table[i];
    if (n_table) return;
    fprintf(stderr, "REWIND_TEST_OPS=%s: no case of that name\n", text);
    abort();
}

/* Makes all cases at the first call. */
const struct op_case *op_cases(size_t *ret_n)
{
    static void (*const families[])(void) = {
#define OP_CASES(family) family,
#include "test_tables.h"
    };
    if (!n_table) {
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) families[i]();
        keep_wanted();
    }
    *ret_n = n_table;
    return table;
}

const struct op_case *op_case_named(const char *name, size_t length)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    for (size_t i = 0; i < n; i++)
        if (!all[i].large && !strncmp(all[i].name, name, length) && strchr(" ,", all[i].name[length])) return &all[i];
    return NULL;
}
