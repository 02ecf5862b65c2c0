/* Picks the instruction set once per process. See isa.h. */
#include "device/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

static enum rw_isa best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
#ifdef RW_HAVE_ISA_V4
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        return RW_ISA_V4;
#endif
#ifdef RW_HAVE_ISA_V3
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return RW_ISA_V3;
#endif
#endif
    return RW_ISA_BASE;
}

static enum rw_isa choose(void)
{
    const char *const asked = getenv("REWIND_ISA");
    const enum rw_isa most = best();
    enum rw_isa isa = most;
    if (asked && !strcmp(asked, "base")) isa = RW_ISA_BASE;
    if (asked && !strcmp(asked, "v3")) isa = RW_ISA_V3;
    return isa < most ? isa : most;
}

enum rw_isa rw_cpu_isa(void)
{
    /* Benign race: every thread computes the same value. Kept as value + 1 so that 0 means "not yet". */
    static int chosen;
    int isa = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (!isa) {
        isa = (int)choose() + 1;
        __atomic_store_n(&chosen, isa, __ATOMIC_RELAXED);
    }
    return (enum rw_isa)(isa - 1);
}
