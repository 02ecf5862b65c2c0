/*
 * The C locale for numbers in files, which this library or other programs read again: a decimal point, whatever locale
 * the caller has set. All code that prints or reads a number that is not an integer, for a file, does so between these
 * two calls.
 */
#ifndef RW_BASE_C_LOCALE_H
#define RW_BASE_C_LOCALE_H

#include <locale.h>

/* Sets the C locale for this thread; other threads, and setlocale(), are not affected. Pass the result, the thread's
   earlier locale, to rw_c_locale_end(). Pairs nest. errno is preserved. */
locale_t rw_c_locale_begin(void);
void rw_c_locale_end(locale_t before);

#endif
