/*
 * A pull parser of JSON (RFC 8259): value by value, without a tree. Strings are decoded into one buffer of the caller.
 * Independent of locales, without global state.
 */
#ifndef RW_IO_JSON_H
#define RW_IO_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_json {
    const char *text;
    size_t length, i;  /* i: the next byte; after an error, where it stopped */
    char *out;         /* destination of the next string, which is never longer than in the JSON */
    const char *fault; /* of the first error; NULL: none */
};

/* Skips blanks. Returns the first character of the next value; 0 at the end. */
char rw_json_next(struct rw_json *j);

/* Skips blanks and reads this character. False, with the fault, for any other. */
bool rw_json_take(struct rw_json *j, char c);

/* Reads a string: UTF-8 without zero bytes, terminated by one. NULL with the fault. */
const char *rw_json_text(struct rw_json *j);

/* Reads a number: *ret is its value if it is an integer from 0 on without fraction or exponent, else -1. */
bool rw_json_number(struct rw_json *j, int64_t *ret);

/* Skips any value with at most `depth` levels of nesting. */
bool rw_json_skip(struct rw_json *j, int depth);

/* After a value of a list or object that ends with `end`: true if a comma follows. False at the end, and after an
   error. */
bool rw_json_more(struct rw_json *j, char end);

/* Number of values of the list or object whose first value is next, at most `most`; any number for invalid JSON. */
size_t rw_json_count(const struct rw_json *j, size_t most);

#endif
