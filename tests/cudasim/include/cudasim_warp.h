/* Warp-level operations: each waits until every lane in the mask has arrived. */
#ifndef CUDASIM_WARP_H
#define CUDASIM_WARP_H

#include "cudasim_device.h"

#include <type_traits>

namespace cudasim {

enum class warp_op {
    sync, shfl, shfl_up, shfl_down, shfl_xor, ballot, any, all, match_any, match_all,
    add, min, max, uadd, umin, umax, band, bor, bxor
};

struct warp_result {
    uint64_t value;
    int predicate;
};

/* `operand` and `width` are those of shuffles. Returns each lane's own result. */
warp_result warp(warp_op op, unsigned mask, uint64_t value, unsigned operand, int width, const char *file, int line);
unsigned active_mask();

template <typename T>
inline T shuffle(warp_op op, unsigned mask, T value, unsigned operand, int width, const char *file, int line)
{
    static_assert(std::is_trivially_copyable<T>::value && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8),
                  "shuffles take values of 2, 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = warp(op, mask, bits, operand, width, file, line).value;
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}

} // namespace cudasim

template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDASIM_PLACE)
{
    return cudasim::shuffle(cudasim::warp_op::shfl, mask, value, static_cast<unsigned>(source), width, file, line);
}

template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_PLACE)
{
    return cudasim::shuffle(cudasim::warp_op::shfl_up, mask, value, delta, width, file, line);
}

template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_PLACE)
{
    return cudasim::shuffle(cudasim::warp_op::shfl_down, mask, value, delta, width, file, line);
}

template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDASIM_PLACE)
{
    return cudasim::shuffle(cudasim::warp_op::shfl_xor, mask, value, static_cast<unsigned>(lanes), width, file, line);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_PLACE)
{
    cudasim::warp(cudasim::warp_op::sync, mask, 0, 0, 32, file, line);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_PLACE)
{
    return static_cast<unsigned>(
        cudasim::warp(cudasim::warp_op::ballot, mask, predicate != 0, 0, 32, file, line).value);
}

static inline int __any_sync(unsigned mask, int predicate, CUDASIM_PLACE)
{
    return static_cast<int>(cudasim::warp(cudasim::warp_op::any, mask, predicate != 0, 0, 32, file, line).value);
}

static inline int __all_sync(unsigned mask, int predicate, CUDASIM_PLACE)
{
    return static_cast<int>(cudasim::warp(cudasim::warp_op::all, mask, predicate != 0, 0, 32, file, line).value);
}

template <typename T> inline unsigned __match_any_sync(unsigned mask, T value, CUDASIM_PLACE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "matches take values of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return static_cast<unsigned>(cudasim::warp(cudasim::warp_op::match_any, mask, bits, 0, 32, file, line).value);
}

template <typename T> inline unsigned __match_all_sync(unsigned mask, T value, int *predicate, CUDASIM_PLACE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "matches take values of 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const cudasim::warp_result r = cudasim::warp(cudasim::warp_op::match_all, mask, bits, 0, 32, file, line);
    *predicate = r.predicate;
    return static_cast<unsigned>(r.value);
}

/* Integers only, as on the device. */
#define CUDASIM_WARP_REDUCE(name, type, op)                                                                       \
    static inline type name(unsigned mask, type value, CUDASIM_PLACE)                                             \
    {                                                                                                             \
        const uint64_t bits = static_cast<unsigned>(value);                                                       \
        return static_cast<type>(cudasim::warp(cudasim::warp_op::op, mask, bits, 0, 32, file, line).value);       \
    }
CUDASIM_WARP_REDUCE(__reduce_add_sync, int, add)
CUDASIM_WARP_REDUCE(__reduce_min_sync, int, min)
CUDASIM_WARP_REDUCE(__reduce_max_sync, int, max)
CUDASIM_WARP_REDUCE(__reduce_add_sync, unsigned, uadd)
CUDASIM_WARP_REDUCE(__reduce_min_sync, unsigned, umin)
CUDASIM_WARP_REDUCE(__reduce_max_sync, unsigned, umax)
CUDASIM_WARP_REDUCE(__reduce_and_sync, unsigned, band)
CUDASIM_WARP_REDUCE(__reduce_or_sync, unsigned, bor)
CUDASIM_WARP_REDUCE(__reduce_xor_sync, unsigned, bxor)
#undef CUDASIM_WARP_REDUCE

/* One of the sets that the device may return: the lanes are not known to be converged. */
static inline unsigned __activemask() { return cudasim::active_mask(); }

#endif
