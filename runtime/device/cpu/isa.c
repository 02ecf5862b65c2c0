/* Selects the instruction set once per process, and requests the matrix unit. */
#include "device/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#ifdef RW_FAULTS
bool rw_cpu_emulates_amx;
#else
enum { rw_cpu_emulates_amx = false };
#endif

/* The best instruction set of build and processor. */
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

static int choose(void)
{
    const char *const requested = secure_getenv("REWIND_ISA");
    const enum rw_isa most = best();
    enum rw_isa isa = most;
    if (requested && !strcmp(requested, "base")) isa = RW_ISA_BASE;
    if (requested && !strcmp(requested, "v3")) isa = RW_ISA_V3;
    if (isa > most) isa = most;
#ifdef RW_NO_ISA_BASE
    if (isa < RW_ISA_V3) isa = RW_ISA_V3;
#endif
    return (int)isa;
}

/*
 * Evaluates choose_it() once. The race is benign: every thread computes the same value. The value is stored + 1, so 0
 * means "not yet".
 */
static int once(int *chosen, int (*choose_it)(void))
{
    int value = __atomic_load_n(chosen, __ATOMIC_RELAXED);
    if (!value) {
        value = choose_it() + 1;
        __atomic_store_n(chosen, value, __ATOMIC_RELAXED);
    }
    return value - 1;
}

enum rw_isa rw_cpu_isa(void)
{
    static int chosen;
    return (enum rw_isa)once(&chosen, choose);
}

#if defined(RW_HAVE_ISA_V4)

#include <cpuid.h>

static bool has_tiles_of_bf16(void)
{
    unsigned a, b, c, d;
    if (rw_cpu_emulates_amx) return true;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMX_TILE) && (d & bit_AMX_BF16);
}

static int multiplies_bf16(void)
{
    if (rw_cpu_isa() != RW_ISA_V4 || !__builtin_cpu_supports("avx512bf16")) return 0;
    /* Among Intel processors without the matrix unit, Cooper Lake is fast by its documentation; the others were
       measured. */
    return has_tiles_of_bf16() || !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake");
}

#else

static int multiplies_bf16(void)
{
    return 0;
}

#endif

bool rw_cpu_multiplies_bf16(void)
{
    static int chosen;
    return once(&chosen, multiplies_bf16);
}

#if defined(RW_HAVE_AMX) && defined(RW_HAVE_ISA_V4) && defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_PERMISSION 0x1023 /* of arch_prctl(), for the whole process */
#define TILE_DATA 18

/* Requests the unit from Linux, which requires that: its registers add 8 KiB to the saved state of each thread. */
static int amx(void)
{
    const char *const requested = secure_getenv("REWIND_ISA");
    if (rw_cpu_isa() != RW_ISA_V4 || (requested && !strcmp(requested, "v4")) ||
        !__builtin_cpu_supports("avx512bf16"))
        return 0;
    if (rw_cpu_emulates_amx) return true; /* no permission is needed */
    return has_tiles_of_bf16() && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

#else

static int amx(void)
{
    return 0;
}

#endif

bool rw_cpu_has_amx(void)
{
    static int chosen;
    return once(&chosen, amx);
}
