/* Switches the calling thread to the C locale and back. */
#include "base/c_locale.h"

#include <pthread.h>

/* One for the process, never freed. */
static locale_t plain;

static void make(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* glibc and musl have this locale built in, so creating it cannot fail; otherwise the thread's own would stay. */
locale_t rw_c_locale_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make);
    return uselocale(plain);
}

void rw_c_locale_end(locale_t before)
{
    uselocale(before);
}
