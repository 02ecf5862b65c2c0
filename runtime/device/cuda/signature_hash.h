/* A hash of a signature, all of whose bytes count, for tables of pinned algorithms. */
#ifndef RW_DEVICE_CUDA_SIGNATURE_HASH_H
#define RW_DEVICE_CUDA_SIGNATURE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t rw_cuda_hash(const void *bytes, size_t n)
{
    uint64_t h = 0, word = 0;
    for (size_t i = 0; i < n; i += sizeof word, word = 0) {
        memcpy(&word, (const char *)bytes + i, n - i < sizeof word ? n - i : sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    }
    return h;
}

#endif
