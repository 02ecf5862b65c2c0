/* Headers of untrusted files: one pass with a pull parser (json.h), entries in an array, checks for duplicates and
   overlaps by sorting. */
#include "io/safetensors_header.h"

#include "base/alloc.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
/* The shortest possible entries: "":{"dtype":"","shape":[],"data_offsets":[0,0]}, and "":"", */
#define ENTRY_MIN 40
#define PAIR_MIN 5

struct reading {
    struct rw_json json;
    size_t at;
    uint64_t n_elements;
    struct rw_header *h;
    size_t room, room_pairs;
    bool has_metadata;
    const char **keys; /* of one object */
    size_t n_keys, cap_keys;
    char *why;
    size_t size;
};

static rw_status out_of_memory(const struct reading *r)
{
    snprintf(r->why, r->size, "out of memory");
    return RW_ERR_MEMORY;
}

static rw_status refuse(const struct reading *r, const char *name, size_t key, const char *what)
{
    snprintf(r->why, r->size, "\"%.200s\" at byte %zu: %s", name, r->at + key, what);
    return RW_ERR_IO;
}

/* A syntax error takes precedence in the message. */
static rw_status not_an_object(struct reading *r, const char *name, size_t key)
{
    return rw_json_skip(&r->json, RW_HEADER_DEPTH - 1) ? refuse(r, name, key, "expected an object") : RW_OK;
}

static rw_status no_json(const struct reading *r)
{
    snprintf(r->why, r->size, "invalid JSON header: it %s at byte %zu", r->json.fault, r->at + r->json.i);
    return RW_ERR_IO;
}

/* ---- keys ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool note_key(struct reading *r, const char *key)
{
    if (!rw_grow(&r->keys, &r->cap_keys, r->n_keys, 1, sizeof *r->keys)) return false;
    r->keys[r->n_keys++] = key;
    return true;
}

/* Are the keys of the object that was read last unique? Forgets them. */
static bool keys_are_unique(struct reading *r)
{
    bool unique = true;
    if (r->n_keys) qsort(r->keys, r->n_keys, sizeof *r->keys, by_text);
    for (size_t i = 1; i < r->n_keys; i++) unique &= strcmp(r->keys[i - 1], r->keys[i]) != 0;
    r->n_keys = 0;
    return unique;
}

/* Reads the next key of an object, and its colon. */
static const char *take_key(struct reading *r)
{
    const char *const key = rw_json_text(&r->json);
    return key && rw_json_take(&r->json, ':') ? key : NULL;
}

/* ---- one entry ---- */

/* Reads a list of numbers, -1 for one that is not an integer from 0 on, and their count. False: it is not a list. */
static bool take_numbers(struct reading *r, int64_t *numbers, uint32_t room, uint32_t *ret_n)
{
    struct rw_json *const j = &r->json;
    *ret_n = 0;
    if (rw_json_next(j) != '[') return rw_json_skip(j, RW_HEADER_DEPTH - 2), false;
    rw_json_take(j, '[');
    if (rw_json_next(j) == ']') return rw_json_take(j, ']');
    do {
        int64_t x = -1;
        const char c = rw_json_next(j);
        if (c == '-' || (c >= '0' && c <= '9')) rw_json_number(j, &x);
        else rw_json_skip(j, RW_HEADER_DEPTH - 3);
        if (*ret_n < room) numbers[*ret_n] = x;
        ++*ret_n;
    } while (rw_json_more(j, ']'));
    return true;
}

struct found {
    bool shape, offsets;
    int64_t offset[2];
    uint32_t n_offsets;
};

/* The value of one key. */
static void take_member(struct reading *r, const char *key, struct rw_header_entry *e, struct found *f)
{
    if (!strcmp(key, "shape")) f->shape = take_numbers(r, e->dim, RW_MAX_RANK, &e->rank);
    else if (!strcmp(key, "data_offsets")) f->offsets = take_numbers(r, f->offset, 2, &f->n_offsets);
    else if (!strcmp(key, "dtype") && rw_json_next(&r->json) == '"') e->dtype = rw_json_text(&r->json);
    else rw_json_skip(&r->json, RW_HEADER_DEPTH - 2);
}

/* The fault of an entry, or NULL. The caller checks whether type and shape fit a parameter. */
static const char *fault_of(const struct reading *r, const struct rw_header_entry *e, const struct found *f)
{
    if (!e->dtype) return "dtype: expected a string";
    if (!f->shape) return "shape: expected a list";
    if (!f->offsets || f->n_offsets != 2) return "data_offsets: expected a list of two numbers";
    if (f->offset[0] < 0 || f->offset[1] < 0) return "data_offsets: expected integers of 0 or more";
    if (f->offset[0] > f->offset[1]) return "data_offsets: expected an end at or after the begin";
    return (uint64_t)f->offset[1] > r->n_elements ? "data_offsets: expected an end within the file" : NULL;
}

static rw_status take_entry(struct reading *r, const char *name, size_t key)
{
    struct rw_json *const j = &r->json;
    struct rw_header_entry e = { .name = name, .key = (uint32_t)key };
    struct found f = { 0 };
    if (rw_json_next(j) != '{') return not_an_object(r, name, key);
    if (r->h->n == r->room) return refuse(r, name, key, "the header has too many entries");
    rw_json_take(j, '{');
    if (rw_json_next(j) == '}') rw_json_take(j, '}');
    else do {
            const char *const member = take_key(r);
            if (!member) return RW_OK;
            if (!note_key(r, member)) return out_of_memory(r);
            take_member(r, member, &e, &f);
        } while (rw_json_more(j, '}'));
    if (j->fault) return RW_OK;
    const char *const fault = keys_are_unique(r) ? fault_of(r, &e, &f) : "a key occurs twice";
    if (fault) return refuse(r, name, key, fault);
    e.from = (uint64_t)f.offset[0];
    e.to = (uint64_t)f.offset[1];
    r->h->entry[r->h->n++] = e;
    return RW_OK;
}

/* ---- the metadata ---- */

static rw_status take_pairs(struct reading *r)
{
    struct rw_json *const j = &r->json;
    do {
        const char *const key = take_key(r), *value = NULL;
        if (!key) return RW_OK;
        if (!note_key(r, key)) return out_of_memory(r);
        if (rw_json_next(j) == '"') value = rw_json_text(j);
        else rw_json_skip(j, RW_HEADER_DEPTH - 2);
        if (r->h->n_pairs < r->room_pairs) r->h->pair[r->h->n_pairs++] = (struct rw_header_pair){ key, value };
    } while (rw_json_more(j, '}'));
    return RW_OK;
}

static rw_status take_metadata(struct reading *r, size_t key)
{
    struct rw_json *const j = &r->json;
    if (r->has_metadata) return refuse(r, METADATA, key, "the key occurs twice");
    r->has_metadata = true;
    if (rw_json_next(j) != '{') return not_an_object(r, METADATA, key);
    rw_json_take(j, '{');
    if (rw_json_next(j) == '}') return rw_json_take(j, '}'), RW_OK;
    r->room_pairs = rw_json_count(j, (j->length - j->i) / PAIR_MIN + 1);
    r->cap_keys = r->room_pairs;
    rw_free(r->keys);
    r->keys = rw_malloc(r->cap_keys * sizeof *r->keys);
    r->h->pair = rw_malloc(r->room_pairs * sizeof *r->h->pair);
    if (!r->keys || !r->h->pair) return out_of_memory(r);
    const rw_status status = take_pairs(r);
    if (status || j->fault) return status;
    return keys_are_unique(r) ? RW_OK : refuse(r, METADATA, key, "a key occurs twice");
}

/* ---- duplicates and overlaps ---- */

static int by_name(const void *a, const void *b)
{
    const struct rw_header_entry *const x = *(const struct rw_header_entry *const *)a;
    const struct rw_header_entry *const y = *(const struct rw_header_entry *const *)b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x->key > y->key) - (x->key < y->key);
}

/* Of equal starts, empty entries first: they overlap with none. */
static int by_place(const void *a, const void *b)
{
    const struct rw_header_entry *const x = *(const struct rw_header_entry *const *)a;
    const struct rw_header_entry *const y = *(const struct rw_header_entry *const *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Checks what concerns several entries: a sweep over the entries by their start finds overlaps (`last` is the entry
   that ends furthest), and a sort by name finds duplicates. A duplicate is reported before an overlap. */
static rw_status check_together(const struct reading *r)
{
    const struct rw_header *const h = r->h;
    const struct rw_header_entry **const e = h->by_name;
    if (!h->n) return RW_OK;
    qsort(e, h->n, sizeof *e, by_place);
    size_t last = 0;
    rw_status overlaps = RW_OK;
    for (size_t i = 1; i < h->n && !overlaps; i++) {
        if (e[i]->from < e[last]->to && e[i]->to > e[i]->from)
            overlaps = refuse(r, e[i]->name, e[i]->key, "its elements overlap another entry's");
        if (e[i]->to > e[last]->to) last = i;
    }
    qsort(e, h->n, sizeof *e, by_name);
    for (size_t i = 1; i < h->n; i++)
        if (!strcmp(e[i - 1]->name, e[i]->name)) return refuse(r, e[i]->name, e[i]->key, "the key occurs twice");
    return overlaps;
}

/* ---- all of it ---- */

static rw_status take_entries(struct reading *r)
{
    struct rw_json *const j = &r->json;
    if (rw_json_next(j) == '}') return rw_json_take(j, '}'), RW_OK;
    rw_status status = RW_OK;
    do {
        rw_json_next(j);
        const size_t key = j->i;
        const char *const name = take_key(r);
        if (name) status = !strcmp(name, METADATA) ? take_metadata(r, key) : take_entry(r, name, key);
    } while (!status && rw_json_more(j, '}'));
    return status;
}

static rw_status make_room(struct reading *r)
{
    struct rw_header *const h = r->h;
    r->room = rw_json_count(&r->json, r->json.length / ENTRY_MIN + 2);
    h->text = rw_malloc(r->json.length + 1);
    h->entry = rw_malloc(r->room * sizeof *h->entry);
    r->json.out = h->text;
    return h->text && h->entry ? RW_OK : out_of_memory(r);
}

static rw_status read_all(struct reading *r)
{
    struct rw_json *const j = &r->json;
    if (rw_json_next(j) != '{') {
        snprintf(r->why, r->size, "invalid JSON header: expected an object at byte %zu", r->at + j->i);
        return RW_ERR_IO;
    }
    rw_json_take(j, '{');
    rw_status status = make_room(r);
    if (!status) status = take_entries(r);
    if (!status && j->fault) status = no_json(r);
    if (status) return status;
    if (rw_json_next(j) || j->i < j->length) {
        snprintf(r->why, r->size, "unexpected bytes after the JSON header, at byte %zu", r->at + j->i);
        return RW_ERR_IO;
    }
    r->h->by_name = rw_malloc((r->h->n + 1) * sizeof *r->h->by_name);
    if (!r->h->by_name) return out_of_memory(r);
    for (size_t i = 0; i < r->h->n; i++) r->h->by_name[i] = &r->h->entry[i];
    return check_together(r);
}

rw_status rw_header_read(const char *text, size_t length, size_t at, uint64_t n_elements, struct rw_header *ret,
                         char *why, size_t size)
{
    struct rw_header h = { 0 };
    struct reading r = { .json = { .text = text, .length = length }, .at = at, .n_elements = n_elements, .h = &h,
                         .why = why, .size = size };
    const rw_status status = read_all(&r);
    rw_free(r.keys);
    if (status) rw_header_finish(&h);
    else *ret = h;
    return status;
}

void rw_header_finish(struct rw_header *h)
{
    rw_free(h->text);
    rw_free(h->entry);
    rw_free(h->by_name);
    rw_free(h->pair);
    *h = (struct rw_header){ 0 };
}

static int name_of(const void *name, const void *entry)
{
    return strcmp(name, (*(const struct rw_header_entry *const *)entry)->name);
}

const struct rw_header_entry *rw_header_find(const struct rw_header *h, const char *name)
{
    if (!h->n) return NULL;
    const struct rw_header_entry *const *const found = bsearch(name, h->by_name, h->n, sizeof *h->by_name, name_of);
    return found ? *found : NULL;
}

const char *rw_header_metadata(const struct rw_header *h, const char *key)
{
    for (size_t i = 0; i < h->n_pairs; i++)
        if (!strcmp(h->pair[i].key, key)) return h->pair[i].value;
    return NULL;
}
