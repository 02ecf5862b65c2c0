/*
 * The key of a tape: everything on which its plans depend, as words, in the order of recording. Two steps with equal
 * words share a plan, which the plan cache finds by a 128-bit hash. Tickets, contents and versions differ from step to
 * step; a run reads them from the tape, so they are not part of the key.
 *
 * Each struct has one function that writes its words (record/tape_key_words.h); tests/plan/cache_key_fields.c changes
 * each field of each of them.
 *
 * The first word of a node has its number of outputs in bits 32 to 47, which is not 0. Every other record begins with
 * an enum rw_key_record, and has 0 there. The number of words that follow is known from those before, so different
 * recordings never have the same words.
 */
#ifndef RW_RECORD_TAPE_KEY_H
#define RW_RECORD_TAPE_KEY_H

#include "base/hash.h"
#include "record/node.h"
#include "record/policy.h"

struct rw_key {
    struct rw_hash hash; /* of the words */
    size_t n;            /* words */
    uint64_t *words;     /* NULL if they are not kept */
    size_t cap;
};

/* The length of a tape, by the words that it has recorded. Two tapes with equal points have recorded the same. Words
   name layouts by index, so points from before and after a sweep of the layouts are never the same. */
struct rw_tape_point {
    struct rw_hash hash;
    size_t n;            /* words */
    uint64_t generation; /* of the context's layouts */
};

static inline bool rw_point_is_same(const struct rw_tape_point *a, const struct rw_tape_point *b)
{
    return a->n == b->n && a->hash.a == b->hash.a && a->hash.b == b->hash.b && a->generation == b->generation;
}

enum rw_key_record {
    RW_KEY_LEAF = 1,
    RW_KEY_REGION,
    RW_KEY_REGION_END,
    RW_KEY_PART,
    RW_KEY_PART_END,
    RW_KEY_MARK,
    RW_KEY_NAME,
    RW_KEY_AMAX,
    RW_KEY_REQUEST
};

#endif
