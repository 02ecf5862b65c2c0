/* See header.h. */
#include "io/header.h"

#include "base/alloc.h"
#include "base/c_locale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

struct reading {
    const char *text;
    size_t length, at, n_elements;
    char *why;
    size_t size;
};

/* ---- where something stands ---- */

static size_t end_of_string(const char *text, size_t length, size_t i)
{
    for (i++; i < length && text[i] != '"'; i++) i += text[i] == '\\';
    return i;
}

/* Where key number `index` of the outermost object stands; the text is known to be JSON. */
static size_t position_of_key(const struct reading *r, size_t index)
{
    int depth = 0;
    bool key = false;
    for (size_t i = 0; i < r->length; i++) {
        const char c = r->text[i];
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (depth == 1 && (c == '{' || c == ',')) key = true;
        if (c != '"') continue;
        if (key && !index--) return i;
        key = false;
        i = end_of_string(r->text, r->length, i);
    }
    return 0;
}

/* About the entry of that number. */
static rw_status refuse(const struct reading *r, size_t index, const char *name, const char *what)
{
    snprintf(r->why, r->size, "\"%.200s\" at byte %zu: %s", name, r->at + position_of_key(r, index), what);
    return RW_ERR_IO;
}

/* ---- one entry ---- */

static bool is_whole(const cJSON *x)
{
    const double most = 9007199254740992.0; /* 2^53: up to there doubles are exact */
    if (!cJSON_IsNumber(x) || !(x->valuedouble >= 0 && x->valuedouble <= most)) return false;
    return x->valuedouble == (double)(uint64_t)x->valuedouble;
}

#define FEW 16

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Of the few keys of a tensor each is looked up; metadata may have one for every tensor. Without memory all pass. */
static bool keys_stand_once(const cJSON *entry)
{
    const size_t n = (size_t)cJSON_GetArraySize(entry);
    bool once = true;
    size_t i = 0;
    const char **const keys = n > FEW ? rw_calloc(n, sizeof *keys) : NULL;
    for (const cJSON *a = entry->child; a; a = a->next, i++) {
        if (n <= FEW) once &= cJSON_GetObjectItemCaseSensitive(entry, a->string) == a;
        if (keys) keys[i] = a->string;
    }
    if (keys) qsort(keys, n, sizeof *keys, by_text);
    for (i = 1; keys && i < n; i++) once &= strcmp(keys[i - 1], keys[i]) != 0;
    rw_free(keys);
    return once;
}

/* NULL, or what is wrong. Whether type and shape are those of a parameter is asked by who has one. */
static const char *fault_of(const struct reading *r, const cJSON *entry)
{
    const cJSON *const offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsObject(entry)) return "not an object";
    if (!keys_stand_once(entry)) return "a key stands twice in its entry";
    if (!strcmp(entry->string, METADATA)) return NULL;
    if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(entry, "dtype"))) return "no type, or not a text";
    if (!cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(entry, "shape"))) return "no shape, or not a list";
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2) return "data_offsets is not a list of two numbers";
    const cJSON *const from = offsets->child, *const to = from->next;
    if (!is_whole(from) || !is_whole(to)) return "data_offsets are not whole numbers from 0 on";
    if (from->valuedouble > to->valuedouble) return "data_offsets end before they begin";
    if (to->valuedouble > (double)r->n_elements) return "its elements lie outside the file";
    return NULL;
}

/* ---- entries beside each other ---- */

struct entry {
    const char *name;
    size_t index;
    double from, to;
};

static int by_name(const void *a, const void *b)
{
    const struct entry *const x = a, *const y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Empty ones first where they begin alike: they overlap with nobody. */
static int by_place(const void *a, const void *b)
{
    const struct entry *const x = a, *const y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static rw_status check_together(const struct reading *r, struct entry *e, size_t n)
{
    qsort(e, n, sizeof *e, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(e[i - 1].name, e[i].name)) return refuse(r, e[i].index, e[i].name, "the key stands there twice");
    qsort(e, n, sizeof *e, by_place);
    size_t last = 0;
    for (size_t i = 1; i < n; i++) {
        if (e[i].from < e[last].to && e[i].to > e[i].from)
            return refuse(r, e[i].index, e[i].name, "its elements overlap another entry's");
        if (e[i].to > e[last].to) last = i;
    }
    return RW_OK;
}

static rw_status check(const struct reading *r, const cJSON *header)
{
    const size_t n = (size_t)cJSON_GetArraySize(header);
    struct entry *const entries = rw_calloc(n, sizeof *entries);
    size_t i = 0;
    rw_status status = RW_OK;
    if (!entries) {
        snprintf(r->why, r->size, "out of memory");
        return RW_ERR_MEMORY;
    }
    for (const cJSON *x = header->child; !status && x; x = x->next, i++) {
        const char *const fault = fault_of(r, x);
        if (fault) status = refuse(r, i, x->string, fault);
        const cJSON *const offsets = cJSON_GetObjectItemCaseSensitive(x, "data_offsets");
        entries[i] = (struct entry){ .name = x->string, .index = i };
        if (status || !strcmp(x->string, METADATA)) continue;
        entries[i].from = offsets->child->valuedouble;
        entries[i].to = offsets->child->next->valuedouble;
    }
    if (!status) status = check_together(r, entries, n);
    rw_free(entries);
    return status;
}

/* The format fills the header up with blanks. */
static size_t end_of_blanks(const char *text, size_t length, size_t i)
{
    while (i < length && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r')) i++;
    return i;
}

rw_status rw_header_read(const char *text, size_t length, size_t at, size_t n_elements, cJSON **ret, char *why,
                         size_t size)
{
    const struct reading r = { text, length, at, n_elements, why, size };
    const char *end = text;
    const locale_t before = rw_c_locale_begin();
    cJSON *const header = cJSON_ParseWithLengthOpts(text, length, &end, false);
    rw_c_locale_end(before);
    const size_t parsed = end ? (size_t)(end - text) : 0, rest = end_of_blanks(text, length, parsed);
    rw_status status = RW_ERR_IO;
    if (!header) snprintf(why, size, "no JSON header: it cannot be read at byte %zu", at + parsed);
    else if (!cJSON_IsObject(header)) snprintf(why, size, "no JSON header: byte %zu does not begin an object", at);
    else if (rest < length) snprintf(why, size, "something follows the JSON header at byte %zu", at + rest);
    else status = check(&r, header);
    if (status) cJSON_Delete(header);
    else *ret = header;
    return status;
}
