/* A pull parser of JSON. Skipping a value recurses, to a depth that the caller limits, so hostile input cannot
   exhaust the stack. */
#include "io/json.h"

#include "base/utf8.h"

#include <string.h>

static bool fail(struct rw_json *j, const char *fault)
{
    if (!j->fault) j->fault = fault;
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(const struct rw_json *j)
{
    return j->i < j->length && j->text[j->i] >= '0' && j->text[j->i] <= '9';
}

char rw_json_next(struct rw_json *j)
{
    while (j->i < j->length && is_blank(j->text[j->i])) j->i++;
    return j->i < j->length ? j->text[j->i] : '\0';
}

bool rw_json_take(struct rw_json *j, char c)
{
    if (j->fault) return false;
    if (rw_json_next(j) != c || j->i >= j->length) return fail(j, "is not valid JSON");
    j->i++;
    return true;
}

bool rw_json_more(struct rw_json *j, char end)
{
    if (j->fault) return false;
    const char c = rw_json_next(j);
    if (c != ',' && c != end) return fail(j, "is not valid JSON");
    j->i++;
    return c == ',';
}

/* ---- texts ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads four hexadecimal digits; -1 if they are not. */
static long unit(struct rw_json *j)
{
    long x = 0;
    if (j->length - j->i < 4) return -1;
    for (int k = 0; k < 4; k++) {
        const int digit = hex(j->text[j->i + (size_t)k]);
        if (digit < 0) return -1;
        x = x * 16 + digit;
    }
    j->i += 4;
    return x;
}

static void put_letter(struct rw_json *j, long c)
{
    unsigned char *const to = (unsigned char *)j->out;
    const int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (int k = n - 1; k > 0; k--, c >>= 6) to[k] = (unsigned char)(0x80 | (c & 0x3f));
    to[0] = (unsigned char)(first[n] | c);
    j->out += n;
}

/* \uXXXX; of a pair both halves. */
static bool take_unit(struct rw_json *j)
{
    long c = unit(j);
    if (c >= 0xd800 && c < 0xdc00 && j->length - j->i > 1 && j->text[j->i] == '\\' && j->text[j->i + 1] == 'u') {
        j->i += 2;
        const long low = unit(j);
        c = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) : -1;
    }
    if (c <= 0 || (c >= 0xd800 && c < 0xe000)) return fail(j, "is not valid JSON");
    put_letter(j, c);
    return true;
}

/* After a backslash. */
static bool take_escape(struct rw_json *j)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = j->i < j->length ? j->text[j->i++] : '\0';
    const char *const found = c ? strchr(names, c) : NULL;
    if (c == 'u') return take_unit(j);
    if (!found) return fail(j, "is not valid JSON");
    *j->out++ = values[found - names];
    return true;
}

const char *rw_json_text(struct rw_json *j)
{
    if (!rw_json_take(j, '"')) return NULL;
    const size_t begin = j->i;
    char *const text = j->out;
    while (j->i < j->length && j->text[j->i] != '"') {
        const unsigned char c = (unsigned char)j->text[j->i++];
        if (c < 0x20) fail(j, "is not valid JSON");
        else if (c == '\\') take_escape(j);
        else *j->out++ = (char)c;
        if (j->fault) return NULL;
    }
    if (!rw_json_take(j, '"')) return NULL;
    *j->out++ = '\0';
    if (rw_utf8_is_text(text)) return text;
    j->i = begin;
    fail(j, "is not UTF-8");
    return NULL;
}

/* ---- numbers ---- */

static bool take_digits(struct rw_json *j)
{
    const size_t begin = j->i;
    while (is_digit(j)) j->i++;
    return j->i > begin;
}

static bool take_any(struct rw_json *j, const char *these)
{
    if (j->i >= j->length || !strchr(these, j->text[j->i])) return false;
    j->i++;
    return true;
}

bool rw_json_number(struct rw_json *j, int64_t *ret)
{
    if (j->fault) return false;
    rw_json_next(j);
    const bool negative = take_any(j, "-");
    const size_t begin = j->i;
    if (!take_any(j, "0") && !take_digits(j)) return fail(j, "is not valid JSON");
    const size_t end = j->i;
    if (take_any(j, ".") && !take_digits(j)) return fail(j, "is not valid JSON");
    if (take_any(j, "eE")) {
        take_any(j, "+-");
        if (!take_digits(j)) return fail(j, "is not valid JSON");
    }
    *ret = -1;
    if (negative || j->i > end || end - begin > 18) return true;
    *ret = 0;
    for (size_t k = begin; k < end; k++) *ret = *ret * 10 + (j->text[k] - '0');
    return true;
}

/* ---- anything ---- */

static bool skip_word(struct rw_json *j, const char *word)
{
    const size_t n = strlen(word);
    if (j->length - j->i < n || memcmp(j->text + j->i, word, n) != 0) return fail(j, "is not valid JSON");
    j->i += n;
    return true;
}

/* Skips a string without storing it. */
static bool skip_text(struct rw_json *j)
{
    char *const out = j->out;
    const bool ok = rw_json_text(j);
    j->out = out;
    return ok;
}

static bool skip_members(struct rw_json *j, int depth, char begin, char end)
{
    if (!depth) return fail(j, "is nested too deep");
    if (!rw_json_take(j, begin)) return false;
    if (rw_json_next(j) == end) return rw_json_take(j, end);
    do {
        if (begin == '{' && (!skip_text(j) || !rw_json_take(j, ':'))) return false;
        if (!rw_json_skip(j, depth - 1)) return false;
    } while (rw_json_more(j, end));
    return !j->fault;
}

bool rw_json_skip(struct rw_json *j, int depth)
{
    int64_t number;
    switch (rw_json_next(j)) {
    case '{': return skip_members(j, depth, '{', '}');
    case '[': return skip_members(j, depth, '[', ']');
    case '"': return skip_text(j);
    case 't': return skip_word(j, "true");
    case 'f': return skip_word(j, "false");
    case 'n': return skip_word(j, "null");
    default: return rw_json_number(j, &number);
    }
}

static size_t end_of_text(const struct rw_json *j, size_t i)
{
    for (i++; i < j->length && j->text[i] != '"'; i++) i += j->text[i] == '\\';
    return i;
}

size_t rw_json_count(const struct rw_json *j, size_t most)
{
    size_t n = 1;
    int depth = 1;
    for (size_t i = j->i; i < j->length && depth && n < most; i++) {
        const char c = j->text[i];
        if (c == '"') i = end_of_text(j, i);
        else if (c == '{' || c == '[') depth++;
        else if (c == '}' || c == ']') depth--;
        else if (c == ',' && depth == 1) n++;
    }
    return n;
}
