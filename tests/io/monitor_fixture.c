/* Creates and trains the parameters of monitor_fixture.h, and parses the lines of the monitor. */
#include "io/monitor_fixture.h"

#include "support/compare.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const rw_dtype zoo_dtypes[N] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32 };
char zoo_path[128];

struct zoo zoo_empty(int threads)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(zoo_path, sizeof zoo_path, "%.60s/rewind-watched-%ld.jsonl", tmp ? tmp : P_tmpdir, (long)getpid());
    remove(zoo_path);
    return (struct zoo){ .b = fixture_open(3, threads) };
}

struct zoo zoo_open(int threads)
{
    struct zoo z = zoo_empty(threads);
    for (int k = 0; k < N; k++) {
        char name[16];
        snprintf(name, sizeof name, "w.%d", k);
        z.w[k] = rw_param(z.b.ctx, name, zoo_dtypes[k], k < 4 ? RW_SHAPE(7, 5 + k) : RW_SHAPE(LONG));
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    return z;
}

void zoo_close(struct zoo *z)
{
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
    remove(zoo_path);
}

rw_tensor *zoo_loss(struct zoo *z)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        const int64_t n = (int64_t)(rw_tensor_bytes(z->w[k]) / rw_dtype_size(zoo_dtypes[k]));
        float *const mask = malloc((size_t)n * sizeof *mask);
        for (int64_t i = 0; i < n; i++) mask[i] = i % 5 != 2;
        rw_tensor *x = rw_reshape(z->b.t, rw_cast(z->b.t, z->w[k], RW_F32), RW_SHAPE(n));
        x = rw_mul(z->b.t, x, rw_input(z->b.t, RW_F32, RW_SHAPE(n), mask, (size_t)n * sizeof *mask));
        rw_tensor *const y = rw_sum(z->b.t, rw_mul(z->b.t, x, rw_mul(z->b.t, x, x)), RW_ALL_AXES, false);
        sum = sum ? rw_add(z->b.t, sum, y) : y;
        free(mask);
    }
    return sum;
}

void zoo_backward(struct zoo *z)
{
    rw_zero_grad(z->b.ctx);
    cr_assert_eq(rw_backward(z->b.t, zoo_loss(z)), RW_OK, "%s", rw_error_message(z->b.ctx));
    rw_tape_reset(z->b.t);
}

rw_monitor *zoo_watch(struct zoo *z, const rw_monitor_group *groups, size_t n)
{
    rw_monitor *m = NULL;
    const rw_monitor_sources s = { .optimizer = z->opt, .groups = groups, .n_groups = n, .peak_flops = 1e9 };
    cr_assert_eq(rw_monitor_create(&m, z->b.ctx, zoo_path), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, &s), RW_OK, "%s", rw_error_message(z->b.ctx));
    return m;
}

unsigned monitor_step(rw_monitor *m, double norm)
{
    unsigned alerts = 77;
    cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .loss = 1, .grad_norm = norm, .seconds = 2 }, &alerts),
                 RW_OK);
    return alerts;
}

cJSON *line_last(void)
{
    static char text[1 << 14], line[1 << 14];
    FILE *const f = fopen(zoo_path, "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) memcpy(text, line, sizeof text);
    fclose(f);
    cJSON *const j = cJSON_ParseWithOpts(text, NULL, true);
    cr_assert_not_null(j, "%s", text);
    return j;
}

double line_number(const cJSON *j, const char *name)
{
    const cJSON *const x = cJSON_GetObjectItemCaseSensitive(j, name);
    cr_assert(cJSON_IsNumber(x), "%s", name);
    return x->valuedouble;
}

double *tensor_numbers(rw_tensor *x, int64_t n)
{
    void *const data = malloc(rw_tensor_bytes(x));
    double *const d = malloc((size_t)n * sizeof *d);
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    for (int64_t i = 0; i < n; i++) d[i] = number_get(data, rw_tensor_dtype(x), i);
    free(data);
    return d;
}

int64_t zoo_size(const struct zoo *z, int k)
{
    return (int64_t)(rw_tensor_bytes(z->w[k]) / rw_dtype_size(zoo_dtypes[k]));
}
void line_expect(const cJSON *j, const char *name, double want)
{
    const double got = line_number(j, name);
    cr_expect(fabs(got - want) <= 1e-8 * fabs(want), "%s: %.12g, not %.12g", name, got, want); /* nine digits */
}

const cJSON *line_group(const cJSON *line, const char *name)
{
    const cJSON *const g = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(line, "groups"), name);
    cr_assert_not_null(g, "%s", name);
    return g;
}

void zoo_optimizer(struct zoo *z, int rule, bool by_chance)
{
    rw_context *const ctx = z->b.ctx;
    const rw_status status =
        rule == 0 ? rw_adamw_create(&z->opt, ctx, &(rw_adamw_params){ .lr = 0.03, .stochastic_rounding = by_chance })
        : rule == 1 ? rw_lion_create(&z->opt, ctx, &(rw_lion_params){ .lr = 0.01, .stochastic_rounding = by_chance })
                    : rw_sgd_create(&z->opt, ctx, &(rw_sgd_params){ .lr = 0.001, .momentum = 0.5 });
    cr_assert_eq(status, RW_OK);
}
