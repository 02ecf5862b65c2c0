/*
 * The CPU time that control groups allow a process, in cores: rw_cgroup_cores() reads folders that the test creates in
 * the layout of version 1, of version 2 and of a machine that has both mounted.
 */
#include "device/cpu/cgroup.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* /proc/self/cgroup and mountinfo are replaced by files with that name in it; mounts are folders of it. */
static char root[128];

static void make_root(void)
{
    const char *const tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.60s/rewind-cgroup-XXXXXX", tmp ? tmp : P_tmpdir);
    cr_assert(mkdtemp(root));
}

static void remove_root(void)
{
    char command[192];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}

/* Writes a file below the root, and creates its folders. %s in the text is the root. */
static void put(const char *name, const char *text)
{
    char path[512];
    const int n = snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert(n < (int)sizeof path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0777);
    }
    FILE *const f = fopen(path, "w");
    cr_assert(f, "%s", path);
    for (const char *c = text; *c; c++)
        if (!strncmp(c, "%s", 2)) fputs(root, f), c++;
        else fputc(*c, f);
    cr_assert_eq(fclose(f), 0);
}

static void take_away(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert_eq(remove(path), 0, "%s", path);
}

static FILE *open_below(void *self, const char *path)
{
    char name[512];
    if (strncmp(path, "/proc/self/", 11)) return fopen(path, "re");
    snprintf(name, sizeof name, "%s/%s", root, path + 11);
    return fopen(name, "re");
}

static double cores(void)
{
    return rw_cgroup_cores(open_below, NULL);
}

/* a: an expression; both may be infinite */
#define SAME(a, b, ...) cr_expect((a) >= (b) && (a) <= (b), __VA_ARGS__)

#define UNIFIED "25 30 0:23 / /proc rw - proc proc rw\n35 25 0:26 / %s/v2 rw shared:9 - cgroup2 cgroup2 rw\n"
#define FIRST "33 31 0:30 / %s/v1/memory rw - cgroup cgroup rw,memory\n" \
              "34 31 0:31 / %s/v1/cpuset rw - cgroup cgroup rw,cpuset\n" \
              "35 31 0:32 / %s/v1/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"

TestSuite(cgroup_cores, .init = make_root, .fini = remove_root);

Test(cgroup_cores, version_2_has_a_quota_and_a_period)
{
    static const struct {
        const char *text;
        double cores;
    } files[] = { { "max 100000\n", INFINITY },  { "150000 100000\n", 1.5 }, { "200000 100000", 2 },
                  { "10000 100000\n", 0.1 },     { "1000 1000000\n", 0.001 }, { "3200000 50000\n", 64 },
                  { "max\n", INFINITY },         { "max", INFINITY },        { "", INFINITY },
                  { "\n", INFINITY },            { "100000\n", INFINITY },   { "100000 \n", INFINITY },
                  { " 100000\n", INFINITY },     { "100000 max\n", INFINITY }, { "100000 0\n", INFINITY },
                  { "0 100000\n", INFINITY },    { "-1 100000\n", INFINITY }, { "100000 -1\n", INFINITY },
                  { "1e5 100000\n", INFINITY },  { "100000x 100000\n", INFINITY },
                  { "100000 100000 7\n", INFINITY }, { "100000\t100000\n", INFINITY },
                  { "garbage that is longer than any line of the kernel's, with a blank 100000 100000\n", INFINITY } };
    put("cgroup", "0::/job\n");
    put("mountinfo", UNIFIED);
    SAME(cores(), INFINITY, "no file");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put("v2/job/cpu.max", files[i].text);
        SAME(cores(), files[i].cores, "\"%s\": %g, not %g", files[i].text, cores(), files[i].cores);
    }
}

Test(cgroup_cores, the_least_of_a_group_and_those_above_it)
{
    put("cgroup", "0::/a/b/c\n");
    put("mountinfo", UNIFIED);
    put("v2/a/b/c/cpu.max", "400000 100000\n");
    SAME(cores(), 4, "its own");
    put("v2/a/cpu.max", "50000 100000\n");
    SAME(cores(), 0.5, "that of a group above");
    put("v2/a/b/cpu.max", "max 100000\n");
    SAME(cores(), 0.5, "max bounds nothing");
    put("v2/cpu.max", "25000 100000\n");
    SAME(cores(), 0.25, "that of the mount's own group");
    put("v2/a/b/c/cpu.max", "10000 100000\n");
    SAME(cores(), 0.1, "its own is the minimum");
    put("v2/a/b/c/d/cpu.max", "1 100000\n");
    put("v2/a/b2/cpu.max", "1 100000\n");
    put("cpu.max", "1 100000\n");
    SAME(cores(), 0.1, "groups below, beside, and above the mount");
    take_away("v2/a/b/c/cpu.max");
    SAME(cores(), 0.25, "its own has gone");
}

/* As seen in a container: its group is the mount's root, with the host's name of it or without one. */
Test(cgroup_cores, a_mount_that_begins_at_the_group)
{
    put("v2/cpu.max", "150000 100000\n");
    put("cgroup", "0::/docker/x\n");
    put("mountinfo", "35 25 0:26 /docker/x %s/v2 rw - cgroup2 cgroup2 rw\n");
    SAME(cores(), 1.5, "the host's name");
    put("cgroup", "0::/\n");
    SAME(cores(), INFINITY, "a mount of another group");
    put("mountinfo", "35 25 0:26 / %s/v2 rw - cgroup2 cgroup2 rw\n");
    SAME(cores(), 1.5, "the root");
}

Test(cgroup_cores, version_1_has_two_files)
{
    static const struct {
        const char *quota, *period;
        double cores;
    } files[] = { { "-1\n", "100000\n", INFINITY }, { "250000\n", "100000\n", 2.5 }, { "5000\n", "100000\n", 0.05 },
                  { "250000", "100000", 2.5 },      { "max\n", "100000\n", INFINITY }, { "", "100000\n", INFINITY },
                  { "250000\n", "", INFINITY },     { "250000\n", "0\n", INFINITY }, { "0\n", "100000\n", INFINITY },
                  { "250000 100000\n", "100000\n", INFINITY }, { "250000\n", "x\n", INFINITY } };
    put("cgroup", "9:name=systemd:/no\n5:memory:/no\n4:cpuset:/no\n3:cpuacct,cpu:/j/k\n");
    put("mountinfo", FIRST);
    put("v1/cpu/j/k/cpu.cfs_quota_us", "250000\n");
    SAME(cores(), INFINITY, "no period");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put("v1/cpu/j/k/cpu.cfs_quota_us", files[i].quota);
        put("v1/cpu/j/k/cpu.cfs_period_us", files[i].period);
        SAME(cores(), files[i].cores, "\"%s\", \"%s\": %g", files[i].quota, files[i].period, cores());
    }
    take_away("v1/cpu/j/k/cpu.cfs_quota_us");
    SAME(cores(), INFINITY, "no quota");
}

Test(cgroup_cores, version_1_has_groups_in_groups)
{
    put("cgroup", "3:cpu:/j/k\n");
    put("mountinfo", FIRST);
    put("v1/cpu/j/k/cpu.cfs_quota_us", "-1\n");
    put("v1/cpu/j/k/cpu.cfs_period_us", "100000\n");
    put("v1/cpu/j/cpu.cfs_quota_us", "50000\n");
    put("v1/cpu/j/cpu.cfs_period_us", "100000\n");
    put("v1/cpuset/j/k/cpu.cfs_quota_us", "1\n"); /* a controller whose name has the same beginning */
    put("v1/cpuset/j/k/cpu.cfs_period_us", "100000\n");
    put("v1/cpu/j/k/cpu.max", "1 100000\n"); /* a file of the other version */
    SAME(cores(), 0.5, "the one above: %g", cores());
}

/* If versions 1 and 2 are both mounted, the controller belongs to one of the two. */
Test(cgroup_cores, both_versions_bound)
{
    put("cgroup", "3:cpu:/j\n0::/u\n");
    put("mountinfo", FIRST UNIFIED);
    put("v2/u/cpu.max", "200000 100000\n");
    SAME(cores(), 2, "version 2");
    put("v1/cpu/j/cpu.cfs_quota_us", "150000\n");
    put("v1/cpu/j/cpu.cfs_period_us", "100000\n");
    SAME(cores(), 1.5, "version 1");
}

Test(cgroup_cores, what_cannot_be_read_bounds_nothing)
{
    static const char *const groups[] = { "", "\n", "0\n", "0::\n", "0::job\n", "1:cpu\n", ":::\n" };
    static const char *const mounts[] = { "", "\n", "35\n", "35 25 0:26 / %s/v2 rw -\n",
                                          "35 25 0:26 / %s/v2 rw - cgroup2 c\n",
                                          "35 25 0:26 / %s/v2 rw - tmpfs cgroup2 rw\n" };
    put("v2/job/cpu.max", "100000 100000\n");
    put("v2/cpu.max", "100000 100000\n");
    SAME(cores(), INFINITY, "neither file");
    put("mountinfo", UNIFIED);
    SAME(cores(), INFINITY, "no groups");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        put("cgroup", groups[i]);
        SAME(cores(), INFINITY, "groups \"%s\": %g", groups[i], cores());
    }
    put("cgroup", "0::/job\n");
    SAME(cores(), 1, "both files are sound");
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        put("mountinfo", mounts[i]);
        SAME(cores(), INFINITY, "mounts \"%s\": %g", mounts[i], cores());
    }
    take_away("mountinfo");
    SAME(cores(), INFINITY, "no mounts");
}
