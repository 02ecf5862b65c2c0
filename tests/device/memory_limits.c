/*
 * The memory limits of a process: control groups as files, invented ones for the parser and, if one can be created, a
 * real one; the process's own limits; and the error of a step beyond them.
 */
#include "device/cpu/memory_limits.h"
#include "record/context.h"
#include "run/run_state.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define NONE UINT64_MAX
#define MIB ((uint64_t)1 << 20)

/* ---- invented files ---- */

#define FILES_MAX 12

/* The files of a process, the first two by their own names; others [path, text]. */
struct files {
    const char *cgroup, *mountinfo;
    const char *other[FILES_MAX][2];
};

static FILE *opened(const char *text)
{
    return *text ? fmemopen((void *)(uintptr_t)text, strlen(text), "r") : fopen("/dev/null", "re");
}

static FILE *open_made_up(void *self, const char *path)
{
    const struct files *const f = self;
    if (!strcmp(path, "/proc/self/cgroup")) return f->cgroup ? opened(f->cgroup) : NULL;
    if (!strcmp(path, "/proc/self/mountinfo")) return f->mountinfo ? opened(f->mountinfo) : NULL;
    for (int i = 0; i < FILES_MAX && f->other[i][0]; i++)
        if (!strcmp(path, f->other[i][0])) return opened(f->other[i][1]);
    return NULL;
}

static void expect(struct files f, uint64_t memory, uint64_t swap, uint64_t both, const char *what)
{
    const struct rw_cgroup_memory got = rw_cgroup_memory(open_made_up, &f);
    cr_expect(got.memory.bytes == memory && got.swap.bytes == swap && got.both.bytes == both,
              "%s: %llu, %llu, %llu", what, (unsigned long long)got.memory.bytes, (unsigned long long)got.swap.bytes,
              (unsigned long long)got.both.bytes);
    cr_expect(!got.memory.file == (memory == NONE) && !got.swap.file == (swap == NONE), "%s: files", what);
}

#define SYSTEM "25 30 0:23 / /proc rw,nosuid shared:14 - proc proc rw\n"
#define UNIFIED SYSTEM "35 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define AT "/sys/fs/cgroup"

Test(memory_limits, the_least_of_a_group_and_those_above_it)
{
    expect((struct files){ "0::/a/b\n", UNIFIED,
                           { { AT "/a/b/memory.max", "3000\n" }, { AT "/a/memory.max", "2000\n" },
                             { AT "/memory.max", "4000\n" }, { AT "/a/b/memory.swap.max", "5\n" },
                             { AT "/a/memory.swap.max", "max\n" } } }, 2000, 5, NONE, "above");
    expect((struct files){ "0::/a/b\n", UNIFIED,
                           { { AT "/a/b/memory.max", "1000\n" }, { AT "/a/memory.max", "max\n" },
                             { AT "/other/memory.max", "1\n" }, { AT "/a/bc/memory.max", "1\n" },
                             { "/sys/fs/memory.max", "1\n" }, { "/memory.max", "1\n" } } },
           1000, NONE, NONE, "its own");
    expect((struct files){ "0::/\n", UNIFIED, { { AT "/memory.max", "7\n" }, { "/sys/fs/memory.max", "1\n" } } }, 7,
           NONE, NONE, "the root");
    expect((struct files){ "0::/a (deleted)\n", UNIFIED, { { AT "/memory.max", "7\n" } } }, 7, NONE, NONE, "deleted");
}

Test(memory_limits, what_makes_no_sense_bounds_nothing)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } numbers[] = { { "max", NONE },   { "max\n", NONE },  { "", NONE },        { "\n", NONE },     { "-1\n", NONE },
                    { "12x\n", NONE }, { " 12\n", NONE },  { "12 13\n", NONE }, { "0x10\n", NONE }, { "12", 12 },
                    { "12\n", 12 },    { "0\n", 0 },       { "18446744073709551614\n", NONE - 1 },
                    { "18446744073709551615\n", NONE },    { "18446744073709551616\n", NONE },
                    { "99999999999999999999999999999999999999999999999999999999999999999999999999\n", NONE } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        expect((struct files){ "0::/a\n", UNIFIED, { { AT "/a/memory.max", numbers[i].text } } }, numbers[i].bytes,
               NONE, NONE, numbers[i].text);
    static const char *const groups[] = { NULL, "", "\n", "0\n", "0:\n", "0::\n", "0::a\n", ":::\n", "1:cpu:/a\n" };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        expect((struct files){ groups[i], UNIFIED, { { AT "/a/memory.max", "1" }, { AT "a/memory.max", "1" } } }, NONE,
               NONE, NONE, groups[i] ? groups[i] : "no groups");
    static const char *const mounts[] = { NULL, "", "\n", "35\n", "35 25 0:26 / " AT " rw -\n",
                                          "35 25 0:26 / " AT " rw - cgroup2\n", "35 25 0:26 / " AT " rw - cgroup2 c\n",
                                          "35 25 0:26 / " AT " rw cgroup2 cgroup2 rw\n", SYSTEM,
                                          "35 25 0:26 / " AT " rw - tmpfs cgroup2 rw\n" };
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
        expect((struct files){ "0::/a\n", mounts[i], { { AT "/a/memory.max", "1" } } }, NONE, NONE, NONE,
               mounts[i] ? mounts[i] : "no mounts");
}

/* A container sees its group as the root of the mount, with its own name for it or the host's. */
Test(memory_limits, a_mount_may_begin_below_the_root_or_above_a_namespaces)
{
    static const struct {
        const char *path, *root, *group; /* below the mount; NULL: the mount does not contain it */
    } cases[] = { { "/", "/", "" },           { "/docker/x", "/docker/x", "" }, { "/docker/x/y", "/docker/x", "/y" },
                  { "/docker/xy", "/docker/x", NULL }, { "/docker", "/docker/x", NULL }, { "/", "/docker/x", NULL },
                  { "/../x", "/", NULL },     { "/x", "/..", "" },              { "/", "/../..", "" },
                  { "/../x", "/..", "/x" },   { "/../x", "/../..", "" },        { "/../../x", "/..", NULL },
                  { "/x", "/../y", NULL },    { "/..x", "/", "/..x" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char group[64], mount[256], own[256], above[256];
        const char *const below = cases[i].group;
        snprintf(group, sizeof group, "0::%s\n", cases[i].path);
        snprintf(mount, sizeof mount, "35 25 0:26 %s " AT " rw - cgroup2 cgroup2 rw\n", cases[i].root);
        snprintf(own, sizeof own, AT "%s/memory.max", below ? below : cases[i].path);
        snprintf(above, sizeof above, AT "%s/memory.swap.max", below && *below ? "" : "/none");
        struct files f = { group, mount, { { own, "9\n" }, { above, "3\n" } } };
        static const char *const beside[] = { AT "/memory.max", AT "y/memory.max", "/sys/fs/memory.max" };
        for (int k = 0; !below && k < 3; k++) f.other[2 + k][0] = beside[k], f.other[2 + k][1] = "1\n";
        expect(f, below ? 9 : NONE, below && *below ? 3 : NONE, NONE, mount);
    }
}

Test(memory_limits, names_may_hold_anything)
{
    expect((struct files){ "0::/a b:c,memory\\x/d\n",
                           "35 25 0:26 /a\\040b:c,memory\\134x /my\\040groups\\011\\012\\8 rw - cgroup2 none rw\n",
                           { { "/my groups\t\n\\8/d/memory.max", "11\n" } } }, 11, NONE, NONE, "escapes");
    expect((struct files){ "0::/a\n", "35 25 0:26 / " AT "\\04 rw - cgroup2 none rw",
                           { { AT "\\04/a/memory.max", "11" } } }, 11, NONE, NONE, "no escape, no newline");
    char *const path = malloc(2 * PATH_MAX), *const line = malloc(2 * PATH_MAX + 100);
    memset(path, 'p', 2 * PATH_MAX - 1);
    path[0] = '/';
    for (int n = 2 * PATH_MAX - 1; n >= PATH_MAX - 40; n = n > PATH_MAX ? PATH_MAX : n - 1) {
        path[n] = '\0';
        snprintf(line, 2 * PATH_MAX + 100, "0::%s\n", path);
        expect((struct files){ line, UNIFIED, { { AT "/memory.max", "1" } } },
               n < PATH_MAX - (int)strlen(AT) ? 1 : NONE, NONE, NONE, "a long name");
    }
    free(path), free(line);
}

#define FIRST "31 23 0:28 / /cg rw - tmpfs tmpfs rw\n33 31 0:30 / /cg/cpu rw - cgroup cgroup rw,cpu\n" \
              "35 31 0:32 /j /cg/mem rw - cgroup cgroup rw,memory\n"

Test(memory_limits, groups_of_the_first_version)
{
    const char *const groups = "9:name=memory:/no\n8:cpu:/no\n4:hugetlb,memory,misc:/j/k\n0::/u\n";
    expect((struct files){ groups, FIRST,
                           { { "/cg/mem/k/memory.limit_in_bytes", "9223372036854771712\n" },
                             { "/cg/mem/memory.limit_in_bytes", "500\n" },
                             { "/cg/mem/memory.use_hierarchy", "1\n" },
                             { "/cg/mem/k/memory.memsw.limit_in_bytes", "800\n" } } }, 500, NONE, 800, "above");
    expect((struct files){ groups, FIRST,
                           { { "/cg/mem/k/memory.limit_in_bytes", "700\n" },
                             { "/cg/mem/memory.limit_in_bytes", "500\n" },
                             { "/cg/mem/memory.use_hierarchy", "0\n" } } }, 700, NONE, NONE, "not counted above");
    expect((struct files){ groups, FIRST "36 31 0:40 / /cg/all rw - cgroup2 cgroup2 rw\n",
                           { { "/cg/mem/k/memory.limit_in_bytes", "700\n" }, { "/cg/all/u/memory.max", "600\n" },
                             { "/cg/all/u/memory.swap.max", "50\n" } } }, 600, 50, NONE, "both versions");
}

/* ---- several limits ---- */

Test(memory_limits, the_least_limit_counts_and_is_named)
{
    const struct rw_cgroup_bound no = { NONE, NULL };
    const struct {
        struct rw_memory_facts facts;
        uint64_t all, resident;
        const char *has, *note;
    } cases[] = {
        { { 100, 20, { no, no, no }, NONE, NONE }, 120, 100, "machine has", ", swap included" },
        { { 100, 20, { { 200, "memory.max" }, { 30, "memory.swap.max" }, no }, NONE, NONE }, 120, 100, "machine has",
          ", swap included" },
        { { 100, 20, { { 60, "memory.max" }, no, no }, NONE, NONE }, 80, 60, "process may take",
          ", swap included (cgroup memory.max)" },
        { { 100, 20, { { 60, "memory.max" }, { 0, "memory.swap.max" }, no }, NONE, NONE }, 60, 60, "process may take",
          ", swap included (cgroup memory.max)" },
        { { 100, 20, { no, { 5, "memory.swap.max" }, no }, NONE, NONE }, 105, 100, "process may take",
          ", memory included (cgroup memory.swap.max)" },
        { { 100, 20, { { 60, "memory.limit_in_bytes" }, no, { 70, "" } }, NONE, NONE }, 70, 60, "process may take",
          " (cgroup memory.memsw.limit_in_bytes)" },
        { { 100, 20, { { 60, "memory.limit_in_bytes" }, no, { 90, "" } }, NONE, NONE }, 80, 60, "process may take",
          ", swap included (cgroup memory.limit_in_bytes)" },
        { { 100, 20, { { 60, "memory.max" }, no, no }, 50, NONE }, 50, 50, "process may take", " (RLIMIT_AS)" },
        { { 100, 20, { no, no, no }, 110, 40 }, 40, 40, "process may take", " (RLIMIT_DATA)" },
        { { NONE, NONE, { no, no, no }, NONE, NONE }, NONE, NONE, "machine has", ", swap included" },
        { { NONE - 1, NONE - 1, { no, no, no }, NONE, NONE }, NONE, NONE - 1, "machine has", ", swap included" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rw_memory_limits l = rw_memory_limits_of(&cases[i].facts);
        cr_expect(l.all.bytes == cases[i].all && l.resident == cases[i].resident, "%zu: %llu, %llu", i,
                  (unsigned long long)l.all.bytes, (unsigned long long)l.resident);
        cr_expect(!strcmp(l.all.has, cases[i].has) && !strcmp(l.all.note, cases[i].note), "%zu: the %s ...%s", i,
                  l.all.has, l.all.note);
    }
}

/* ---- steps ---- */

/* Values of an eighth of that many bytes each, of which `none` keeps ten. */
static rw_tensor *beyond(struct fixture *b, rw_tensor *p, uint64_t bytes)
{
    rw_tensor *x = rw_broadcast_to(b->t, p, RW_SHAPE((int64_t)(bytes / 8 / sizeof(float))));
    for (int i = 0; i < 11; i++) x = rw_mul(b->t, x, x);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* A step's arena alone is larger than the limit: the error says so, and names a budget that fits. */
static void expect_refused(struct fixture *b, rw_tensor *loss, uint64_t limit, const char *note)
{
    char there[160];
    unsigned long long least = 0;
    cr_expect_eq(rw_backward(b->t, loss), RW_ERR_MEMORY);
    const char *const said = rw_error_message(b->ctx);
    snprintf(there, sizeof there, "the process may take %llu%s; ", (unsigned long long)limit, note);
    cr_expect(strstr(said, "the arena takes ") && strstr(said, there), "%s, not %s", said, there);
    const char *const advice = strstr(said, "the minimum is budget:");
    cr_expect(advice && sscanf(advice, "the minimum is budget:%lluB", &least) == 1 && least <= limit,
              "%s", said);
    rw_error_clear(b->ctx);
}

static size_t pages_of(int field)
{
    size_t n[7] = { 0 };
    FILE *const f = fopen("/proc/self/statm", "re");
    cr_assert(f && fscanf(f, "%zu %zu %zu %zu %zu %zu", n, n + 1, n + 2, n + 3, n + 4, n + 5) == 6);
    fclose(f);
    return n[field] * (size_t)sysconf(_SC_PAGESIZE);
}

/* Refused while the limit is set, and executed by the same call afterwards. */
static void check_limit(int resource, int field, const char *note)
{
    struct fixture b = fixture_open(5, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(1));
    cr_assert_eq(rw_init_constant(p, 1), RW_OK);
    cr_assert_eq(rw_backward(b.t, beyond(&b, p, 1024)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    const uint64_t limit = pages_of(field) + 64 * MIB;
    if (limit >= rw_memory_limits().all.bytes) cr_skip_test("there is a lower limit");
    cr_assert_eq(setrlimit(resource, &(struct rlimit){ limit, RLIM_INFINITY }), 0);
    rw_tensor *const loss = beyond(&b, p, limit);
    expect_refused(&b, loss, limit, note);
    cr_assert_eq(setrlimit(resource, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY }), 0);
    cr_expect_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(memory_limits, a_step_beyond_the_address_space_is_refused_before_it_runs)
{
    check_limit(RLIMIT_AS, 0, " (RLIMIT_AS)");
}

Test(memory_limits, a_step_beyond_the_limit_of_data_is_refused_before_it_runs)
{
    check_limit(RLIMIT_DATA, 5, " (RLIMIT_DATA)");
}

/* ---- a real group ---- */

struct group {
    char own[PATH_MAX], made[PATH_MAX];
    const char *file; /* file of the limit */
};

/* Records the first opened file of a limit: it is in the process's own group, or the nearest ancestor that has one. */
static FILE *open_and_note(void *self, const char *path)
{
    struct group *const g = self;
    FILE *const f = fopen(path, "re");
    const char *const name = strrchr(path, '/') + 1;
    if (!f || g->file || (strcmp(name, "memory.max") && strcmp(name, "memory.limit_in_bytes"))) return f;
    g->file = strcmp(name, "memory.max") ? "memory.limit_in_bytes" : "memory.max";
    snprintf(g->own, sizeof g->own, "%.*s", (int)(name - 1 - path), path);
    return f;
}

static bool write_to(const char *group, const char *name, uint64_t number)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", group, name) >= sizeof path) return false;
    FILE *const f = fopen(path, "we");
    const bool wrote = f && fprintf(f, "%llu\n", (unsigned long long)number) > 0;
    return f && !fclose(f) && wrote;
}

/* Creates a group of so many bytes below the process's own, with the process in it; false if the machine does not allow
   it. */
static bool enter_group(struct group *g, uint64_t bytes)
{
    *g = (struct group){ .file = NULL };
    rw_cgroup_memory(open_and_note, g);
    if (!g->file || (size_t)snprintf(g->made, sizeof g->made, "%s/rewind_%d", g->own, (int)getpid()) >= sizeof g->made)
        return false;
    if (mkdir(g->made, 0700)) return false;
    if (write_to(g->made, g->file, bytes) && write_to(g->made, "cgroup.procs", (uint64_t)getpid())) return true;
    rmdir(g->made);
    return false;
}

static bool leave_group(const struct group *g)
{
    return write_to(g->own, "cgroup.procs", (uint64_t)getpid()) && !rmdir(g->made);
}

Test(memory_limits, a_step_beyond_a_control_group_is_refused_before_it_runs)
{
    struct fixture b = fixture_open(5, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(1));
    cr_assert_eq(rw_init_constant(p, 1), RW_OK);
    struct group g;
    const struct rw_memory_limits before = rw_memory_limits();
    const uint64_t limit = 256 * MIB;
    if (before.resident <= limit || !enter_group(&g, limit)) cr_skip_test("no control group can be made here");
    const struct rw_memory_limits inside = rw_memory_limits();
    if (inside.all.bytes < before.all.bytes) expect_refused(&b, beyond(&b, p, inside.all.bytes), inside.all.bytes,
                                                            inside.all.note);
    rw_context *other = NULL;
    const rw_status status = rw_context_create(&other, NULL);
    const size_t waits = other ? rw_pool_of(other)->waiting_most : 0;
    rw_context_destroy(&other);
    cr_expect(leave_group(&g), "%s is left", g.made);
    cr_expect_eq(inside.resident, limit);
    cr_expect(strstr(inside.all.note, g.file), "%s", inside.all.note);
    cr_expect(status == RW_OK && waits == limit / 2, "%zu", waits);
    fixture_close(&b);
}
