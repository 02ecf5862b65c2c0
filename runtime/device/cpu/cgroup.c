/*
 * Reads the limits of control groups. proc(5) documents /proc/self/cgroup and mountinfo, Linux' admin-guide/cgroup-v2
 * the files of a group.
 */
#include "device/cpu/cgroup.h"

#include <ctype.h>
#include <linux/limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define UNBOUNDED ((struct rw_cgroup_bound){ UINT64_MAX, NULL })

/* The controller to read, and the groups of the process: "" if there is none of that version. */
struct reader {
    rw_open_file open;
    void *self;
    const char *controller; /* its name in version 1 */
    void (*bound)(struct reader *r, const char *group, bool unified);
    char unified[PATH_MAX], own[PATH_MAX]; /* of version 2; of version 1, for the controller */
    struct rw_cgroup_memory found;
    double cores;
};

/* Parses digits with an optional newline. "max", "" and anything else is refused; above 64 bits it is the maximum. */
static bool parse_bytes(const char *text, uint64_t *ret)
{
    uint64_t n = 0;
    if (!isdigit((unsigned char)*text)) return false;
    for (; isdigit((unsigned char)*text); text++) {
        const uint64_t digit = (uint64_t)(*text - '0');
        n = n > (UINT64_MAX - digit) / 10 ? UINT64_MAX : 10 * n + digit;
    }
    if (*text && strcmp(text, "\n")) return false;
    *ret = n;
    return true;
}

/* Reads the first line of a file of a group; false if there is none. */
static bool read_line(const struct reader *r, const char *group, const char *name, char *text, int size)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", group, name) >= sizeof path) return false;
    FILE *const f = r->open(r->self, path);
    if (!f) return false;
    const bool read = fgets(text, size, f) != NULL;
    fclose(f);
    return read;
}

/* Reads the number in a file. */
static bool read_bytes(const struct reader *r, const char *group, const char *name, uint64_t *ret)
{
    char text[64];
    return read_line(r, group, name, text, sizeof text) && parse_bytes(text, ret);
}

static void bound(const struct reader *r, const char *group, const char *name, struct rw_cgroup_bound *least)
{
    uint64_t bytes;
    if (read_bytes(r, group, name, &bytes) && bytes < least->bytes) *least = (struct rw_cgroup_bound){ bytes, name };
}

static void bound_memory(struct reader *r, const char *group, bool unified)
{
    if (unified) {
        bound(r, group, "memory.max", &r->found.memory);
        bound(r, group, "memory.swap.max", &r->found.swap);
    } else {
        bound(r, group, "memory.limit_in_bytes", &r->found.memory);
        bound(r, group, "memory.memsw.limit_in_bytes", &r->found.both);
    }
}

/*
 * Reads the quota of cores. Version 2: "quota period" in microseconds, or "max period". Version 1 has one file for
 * each, and -1 for no quota.
 */
static void bound_cores(struct reader *r, const char *group, bool unified)
{
    char text[64];
    uint64_t quota, period;
    if (unified) {
        char *const second = read_line(r, group, "cpu.max", text, sizeof text) ? strchr(text, ' ') : NULL;
        if (!second) return;
        *second = '\0';
        if (!parse_bytes(text, &quota) || !parse_bytes(second + 1, &period)) return;
    } else if (!read_bytes(r, group, "cpu.cfs_quota_us", &quota) || !read_bytes(r, group, "cpu.cfs_period_us", &period))
        return;
    if (quota && period) r->cores = fmin(r->cores, (double)quota / (double)period);
}

/* ---- groups ---- */

static bool is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return true;
    return false;
}

/* Parses "number:controllers:path", where the path may contain anything. Version 2 has number 0 and no controllers. */
static void take_group(struct reader *r, char *line)
{
    char *const controllers = strchr(line, ':'), *const path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/' || strlen(path + 1) >= PATH_MAX) return;
    *controllers = *path = '\0';
    if (!strcmp(line, "0") && !controllers[1]) strcpy(r->unified, path + 1);
    else if (is_listed(controllers + 1, r->controller)) strcpy(r->own, path + 1);
}

/* ---- mounts ---- */

/* Cuts off the next field of a line; NULL at its end. */
static char *next_field(char **line)
{
    char *const field = *line + strspn(*line, " ");
    if (!*field) return NULL;
    *line = field + strcspn(field, " ");
    if (**line) *(*line)++ = '\0';
    return field;
}

static bool is_octal(char c)
{
    return c >= '0' && c <= '7';
}

/* Replaces escapes such as \040, a space, in place: the result is never longer. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && is_octal(from[1]) && is_octal(from[2]) && is_octal(from[3])) {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else *to = *from++;
    }
    *to = '\0';
}

/* Counts the leading "/.." of a path; *ret_rest: the rest of it. */
static int ups_of(const char *path, const char **ret_rest)
{
    int n = 0;
    for (; !strncmp(path, "/..", 3) && (!path[3] || path[3] == '/'); path += 3) n++;
    *ret_rest = path;
    return n;
}

/* The part of the process's path below a mount's root: "" for the root itself; NULL: the mount does not show it. */
static const char *below(const char *path, const char *root)
{
    const char *rest, *end;
    const size_t n = strcmp(root, "/") ? strlen(root) : 0;
    if (!strncmp(path, root, n) && (!path[n] || path[n] == '/') && !ups_of(path + n, &rest))
        return strcmp(path + n, "/") ? path + n : "";
    const int from = ups_of(root, &rest);
    return from && !*rest && ups_of(path, &end) <= from ? "" : NULL;
}

/*
 * In version 1 a group counts towards its parent only if the parent says so. Otherwise the parent's limits do not
 * apply.
 */
static bool is_counted_above(const struct reader *r, const char *above)
{
    uint64_t counts;
    return !read_bytes(r, above, "memory.use_hierarchy", &counts) || counts;
}

/* Applies the limits from the group up to the beginning of the mount, which is the first `top` characters. */
static void bound_all(struct reader *r, char *group, size_t top, bool unified)
{
    for (;;) {
        r->bound(r, group, unified);
        char *const last = strlen(group) > top ? strrchr(group, '/') : NULL;
        if (!last) return;
        *last = '\0';
        if (!unified && !is_counted_above(r, group)) return;
    }
}

/*
 * Parses "number number device root point options [more ...] - type source options", and applies the limits of its
 * groups.
 */
static void take_mount(struct reader *r, char *line)
{
    char *field[6], *more, *type, *source, *options, group[PATH_MAX];
    for (int i = 0; i < 6; i++)
        if (!(field[i] = next_field(&line))) return;
    while ((more = next_field(&line)) && strcmp(more, "-")) {}
    if (!more || !(type = next_field(&line)) || !(source = next_field(&line)) || !(options = next_field(&line))) return;
    const bool unified = !strcmp(type, "cgroup2");
    if (!unified && (strcmp(type, "cgroup") || !is_listed(options, r->controller))) return;
    const char *const path = unified ? r->unified : r->own;
    char *const root = field[3], *const point = field[4];
    unescape(root);
    unescape(point);
    const char *const rest = *path ? below(path, root) : NULL;
    if (!rest || (size_t)snprintf(group, sizeof group, "%s%s", point, rest) >= sizeof group) return;
    bound_all(r, group, strlen(point), unified);
}

static void each_line(struct reader *r, const char *path, void (*take)(struct reader *r, char *line))
{
    FILE *const f = r->open(r->self, path);
    char *line = NULL;
    size_t size = 0;
    while (f && getline(&line, &size, f) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        take(r, line);
    }
    free(line);
    if (f) fclose(f);
}

static void read_groups(struct reader *r)
{
    each_line(r, "/proc/self/cgroup", take_group);
    if (*r->unified || *r->own) each_line(r, "/proc/self/mountinfo", take_mount);
}

struct rw_cgroup_memory rw_cgroup_memory(rw_open_file open, void *self)
{
    struct reader r = { .open = open, .self = self, .controller = "memory", .bound = bound_memory,
                        .found = { UNBOUNDED, UNBOUNDED, UNBOUNDED } };
    read_groups(&r);
    return r.found;
}

double rw_cgroup_cores(rw_open_file open, void *self)
{
    struct reader r = { .open = open, .self = self, .controller = "cpu", .bound = bound_cores, .cores = INFINITY };
    read_groups(&r);
    return r.cores;
}
