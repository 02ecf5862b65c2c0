/*
 * Atomics on integers. Threads switch only where they wait, so plain reads and writes are atomic. For floating-point
 * numbers only the exchange exists: the order of others is not fixed, and so their bytes are not.
 */
#ifndef CUDASIM_ATOMIC_H
#define CUDASIM_ATOMIC_H

#include "cudasim_device.h"

#define CUDASIM_ATOMIC(name, type, expression)             \
    static inline type name(type *address, type value)     \
    {                                                      \
        const type old = *address;                         \
        *address = static_cast<type>(expression);          \
        return old;                                        \
    }
#define CUDASIM_ATOMICS(type)                                      \
    CUDASIM_ATOMIC(atomicExch, type, value)                        \
    CUDASIM_ATOMIC(atomicMin, type, value < old ? value : old)     \
    CUDASIM_ATOMIC(atomicMax, type, value > old ? value : old)     \
    CUDASIM_ATOMIC(atomicAnd, type, old & value)                   \
    CUDASIM_ATOMIC(atomicOr, type, old | value)                    \
    CUDASIM_ATOMIC(atomicXor, type, old ^ value)                   \
    static inline type atomicCAS(type *address, type compare, type value) \
    {                                                              \
        const type old = *address;                                 \
        if (old == compare) *address = value;                      \
        return old;                                                \
    }
CUDASIM_ATOMICS(int)
CUDASIM_ATOMICS(unsigned)
CUDASIM_ATOMICS(unsigned long long)
CUDASIM_ATOMIC(atomicExch, float, value)
/* Sums wrap, as on the device. */
CUDASIM_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
CUDASIM_ATOMIC(atomicAdd, unsigned, old + value)
CUDASIM_ATOMIC(atomicAdd, unsigned long long, old + value)
CUDASIM_ATOMIC(atomicSub, int, static_cast<unsigned>(old) - static_cast<unsigned>(value))
CUDASIM_ATOMIC(atomicSub, unsigned, old - value)
CUDASIM_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
CUDASIM_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef CUDASIM_ATOMICS
#undef CUDASIM_ATOMIC

template <typename T> T atomicAdd(T *address, T value) = delete;

#endif
