/* See cgroup.h. proc(5) has the lines of /proc/self/cgroup and mountinfo, Linux' admin-guide/cgroup-v2 the files. */
#include "device/cpu/cgroup.h"

#include <ctype.h>
#include <linux/limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define UNBOUNDED ((struct rw_cgroup_bound){ UINT64_MAX, NULL })

/* What is read, and the process' groups: "" where there is none of that version. */
struct reader {
    rw_open_file open;
    void *self;
    char unified[PATH_MAX], memory[PATH_MAX]; /* version 2; version 1, that of memory */
    struct rw_cgroup_memory found;
};

/* Digits, and perhaps a newline. "max", "" and all else are no number; one that 64 bits do not hold is the largest. */
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

/* The number in a file of a group; false where there is none. */
static bool read_bytes(const struct reader *r, const char *group, const char *name, uint64_t *ret)
{
    char path[PATH_MAX], text[64];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", group, name) >= sizeof path) return false;
    FILE *const f = r->open(r->self, path);
    if (!f) return false;
    const bool read = fgets(text, sizeof text, f) && parse_bytes(text, ret);
    fclose(f);
    return read;
}

static void bound(const struct reader *r, const char *group, const char *name, struct rw_cgroup_bound *least)
{
    uint64_t bytes;
    if (read_bytes(r, group, name, &bytes) && bytes < least->bytes) *least = (struct rw_cgroup_bound){ bytes, name };
}

/* ---- groups ---- */

static bool is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return true;
    return false;
}

/* "number:controllers:path", where the path may be anything; that of version 2 has number 0 and no controllers. */
static void take_group(struct reader *r, char *line)
{
    char *const controllers = strchr(line, ':'), *const path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/' || strlen(path + 1) >= PATH_MAX) return;
    *controllers = *path = '\0';
    if (!strcmp(line, "0") && !controllers[1]) strcpy(r->unified, path + 1);
    else if (is_listed(controllers + 1, "memory")) strcpy(r->memory, path + 1);
}

/* ---- mounts ---- */

/* The next field of a line, cut off; NULL at its end. */
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

/* \040 is a space: in place, what is written is not longer. */
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

/* How many times a path goes up, from its beginning; *ret_rest: what follows. */
static int ups_of(const char *path, const char **ret_rest)
{
    int n = 0;
    for (; !strncmp(path, "/..", 3) && (!path[3] || path[3] == '/'); path += 3) n++;
    *ret_rest = path;
    return n;
}

/* What of the process' path lies below a mount's root: "" for the root itself; NULL: the mount does not show it. */
static const char *below(const char *path, const char *root)
{
    const char *rest, *end;
    const size_t n = strcmp(root, "/") ? strlen(root) : 0;
    if (!strncmp(path, root, n) && (!path[n] || path[n] == '/') && !ups_of(path + n, &rest))
        return strcmp(path + n, "/") ? path + n : "";
    const int from = ups_of(root, &rest);
    return from && !*rest && ups_of(path, &end) <= from ? "" : NULL;
}

/* Of version 1 a group is counted to the one above only where that says so: below, nothing of it holds. */
static bool is_counted_above(const struct reader *r, const char *above)
{
    uint64_t counts;
    return !read_bytes(r, above, "memory.use_hierarchy", &counts) || counts;
}

/* From the group up to where the mount begins, `top` characters. */
static void bound_all(struct reader *r, char *group, size_t top, bool unified)
{
    for (;;) {
        if (unified) {
            bound(r, group, "memory.max", &r->found.memory);
            bound(r, group, "memory.swap.max", &r->found.swap);
        } else {
            bound(r, group, "memory.limit_in_bytes", &r->found.memory);
            bound(r, group, "memory.memsw.limit_in_bytes", &r->found.both);
        }
        char *const last = strlen(group) > top ? strrchr(group, '/') : NULL;
        if (!last) return;
        *last = '\0';
        if (!unified && !is_counted_above(r, group)) return;
    }
}

/* "number number device root point options [more ...] - type source options". */
static void take_mount(struct reader *r, char *line)
{
    char *field[6], *more, *type, *source, *options, group[PATH_MAX];
    for (int i = 0; i < 6; i++)
        if (!(field[i] = next_field(&line))) return;
    while ((more = next_field(&line)) && strcmp(more, "-")) {}
    if (!more || !(type = next_field(&line)) || !(source = next_field(&line)) || !(options = next_field(&line))) return;
    const bool unified = !strcmp(type, "cgroup2");
    if (!unified && (strcmp(type, "cgroup") || !is_listed(options, "memory"))) return;
    const char *const path = unified ? r->unified : r->memory;
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

struct rw_cgroup_memory rw_cgroup_memory(rw_open_file open, void *self)
{
    struct reader r = { .open = open, .self = self, .found = { UNBOUNDED, UNBOUNDED, UNBOUNDED } };
    each_line(&r, "/proc/self/cgroup", take_group);
    if (*r.unified || *r.memory) each_line(&r, "/proc/self/mountinfo", take_mount);
    return r.found;
}
