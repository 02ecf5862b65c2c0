/*
 * Numbers as text that is read again, by this library or by another program: with a point, whatever locale the caller
 * has set. Everything that prints or reads a number that is not whole, for a file, does so between these two.
 */
#ifndef RW_BASE_C_LOCALE_H
#define RW_BASE_C_LOCALE_H

#include <locale.h>

/* This thread goes by the C locale; the others, and setlocale(), are as they were. What is handed back is what the
   thread had, for rw_c_locale_end(). The pairs nest. errno stays. */
locale_t rw_c_locale_begin(void);
void rw_c_locale_end(locale_t before);

#endif
