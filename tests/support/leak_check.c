/*
 * Says which processes LeakSanitizer examines at their end: those of tests. Criterion's own process runs none, and
 * version 2.4.1 loses 48 bytes there after some runs: always after the three tests of growth, two at a time.
 */
#include <stdlib.h>

int __lsan_is_turned_off(void);

/* Criterion starts each test in a process with this variable. */
int __lsan_is_turned_off(void)
{
    return !getenv("BXFI_MAP");
}
