/*
 * Linked into each program amx_NAME besides suite NAME: it enables the emulated unit before any code is selected. If
 * neither the processor nor amx_emulator.h has the unit, all tests are skipped. If amx_emulator.h emulates it and no
 * test has reached it, the program fails, because it would prove nothing. REWIND_TEST_SHOW=1 prints the number of
 * emulated instructions.
 *
 * Each test is a process of its own. They count in shared memory that the program creates and names in its environment.
 */
#include "support/amx_emulator.h"

#include "device/cpu/isa.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <criterion/internal/ordered-set.h>
#include <criterion/stats.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNTS "REWIND_TEST_AMX_COUNTS"

#ifdef __linux__

static void share_counts(void)
{
    char name[64];
    const int made = memfd_create("amx", 0);
    if (made < 0 || ftruncate(made, AMX_KINDS * sizeof *amx_counts)) return;
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), made);
    setenv(COUNTS, name, 1);
}

static void map_counts(void)
{
    FILE *const f = getenv(COUNTS) ? fopen(getenv(COUNTS), "r+") : NULL;
    if (!f) return;
    void *const at = mmap(NULL, AMX_KINDS * sizeof *amx_counts, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    fclose(f);
    if (at != MAP_FAILED) amx_counts = at;
}

#else

static void share_counts(void)
{
}

static void map_counts(void)
{
}

#endif

static __attribute__((constructor)) void begin(void)
{
    map_counts();
    rw_cpu_emulates_amx = amx_emulate();
}

ReportHook(PRE_ALL)(struct criterion_test_set *all)
{
    share_counts();
    map_counts();
    if (rw_cpu_has_amx()) return;
    FOREACH_SET(struct criterion_suite_set *suite, all->suites) {
        if (!suite->tests) continue;
        FOREACH_SET(struct criterion_test *test, suite->tests) test->data->disabled = true;
    }
}

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    static const char *const names[AMX_KINDS] = { "ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored",
                                                  "tdpbf16ps" };
    for (int i = 0; i < AMX_KINDS && getenv("REWIND_TEST_SHOW"); i++)
        fprintf(stderr, "# %-12s %" PRIu64 "\n", names[i], amx_counts[i]);
    if (!rw_cpu_emulates_amx || !rw_cpu_has_amx() || amx_counts[AMX_MULTIPLY] || !stats->tests_passed) return;
    fprintf(stderr, "no test has reached the matrix unit\n");
    exit(1);
}
