/* Decodes UTF-8, and replaces invalid bytes. */
#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* By its first byte; 0: no character starts with it. */
static int bytes_of(unsigned char first)
{
    if (first < 0x80) return first != 0;
    if (first < 0xc2 || first > 0xf4) return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Not overlong, not a surrogate (U+D800 to U+DFFF), not above U+10FFFF. */
static bool is_letter(const unsigned char *s, int n)
{
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return false;
    if (s[0] == 0xe0 || s[0] == 0xf0) return s[1] >= (s[0] == 0xe0 ? 0xa0 : 0x90);
    if (s[0] == 0xed || s[0] == 0xf4) return s[1] < (s[0] == 0xed ? 0xa0 : 0x90);
    return n > 0;
}

int rw_utf8_letter(const char *text)
{
    const unsigned char *const s = (const unsigned char *)text;
    const int n = bytes_of(*s);
    return is_letter(s, n) ? n : 0;
}

bool rw_utf8_is_text(const char *text)
{
    while (*text) {
        const int n = rw_utf8_letter(text);
        if (!n) return false;
        text += n;
    }
    return true;
}

char *rw_utf8_copy(char *to, size_t size, const char *text)
{
    size_t end = 0;
    while (*text) {
        const int letter = rw_utf8_letter(text);
        const char *const from = letter ? text : REPLACEMENT;
        const size_t n = letter ? (size_t)letter : sizeof REPLACEMENT - 1;
        if (end + n >= size) break;
        memcpy(to + end, from, n);
        end += n;
        text += letter ? letter : 1;
    }
    to[end] = '\0';
    return to;
}
