/* UTF-8 (RFC 3629), which JSON and protocol buffers require of strings. */
#ifndef RW_BASE_UTF8_H
#define RW_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Number of bytes of the first character of a string; 0: it does not start with one, or is empty. */
int rw_utf8_letter(const char *text);

bool rw_utf8_is_text(const char *text);

/* Copies a string with U+FFFD in place of each invalid byte, truncated at a character boundary. Returns `to`. */
char *rw_utf8_copy(char *to, size_t size, const char *text);

#endif
