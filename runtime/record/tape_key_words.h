/*
 * Writes the words of a tape's key (record/tape_key.h): one function for each struct.
 *
 * The tests' build keeps the words and compares them when a hash has found a plan. The library keeps only the hash:
 * storing and comparing 26 bytes of words per node costs 2 to 3 % of the host's time of a step. So files that include
 * this are compiled once for each of the two (variant_sources in runtime/meson.build).
 */
#ifndef RW_RECORD_TAPE_KEY_WORDS_H
#define RW_RECORD_TAPE_KEY_WORDS_H

#ifndef RW_VARIANT
#error "a source that includes this header belongs to variant_sources"
#endif

#include "base/alloc.h"
#include "record/tape.h"

#ifdef RW_FAULTS
#define RW_KEY_KEEPS_WORDS true
#else
#define RW_KEY_KEEPS_WORDS false
#endif

/* Room for n more words; false without memory, and nothing has changed. */
static inline bool rw_key_reserve(struct rw_key *k, size_t n)
{
    return !RW_KEY_KEEPS_WORDS || rw_grow(&k->words, &k->cap, k->n, n, sizeof *k->words);
}

/* Memory was reserved, as for all functions below. */
static inline void rw_key_add(struct rw_key *k, uint64_t word)
{
    if (RW_KEY_KEEPS_WORDS) k->words[k->n] = word;
    k->n++;
    rw_hash_mix(&k->hash, word);
}

static inline void rw_key_add_bytes(struct rw_key *k, const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t n; bytes; p += n, bytes -= n) {
        uint64_t word = 0;
        n = bytes < 8 ? bytes : 8;
        memcpy(&word, p, n);
        rw_key_add(k, word);
    }
}

/* By its text: the same name may have another index in the next step. */
#define RW_KEY_TEXT_WORDS(length) (1 + ((length) + 7) / 8)
static inline void rw_key_add_text(struct rw_key *k, const char *text, size_t length)
{
    rw_key_add(k, length);
    rw_key_add_bytes(k, text, length);
}

/* Decisions about a value after its recording have records of their own: its name and its marks. */
#define RW_KEY_VALUE_WORDS 2
static inline void rw_key_add_value(struct rw_key *k, const struct rw_tensor *v)
{
    const bool is_view = v->base != v->id;
    rw_key_add(k, (uint64_t)v->layout << 32 | (uint64_t)v->dtype << 24 | (uint64_t)v->flags << 16 | is_view);
    if (is_view) rw_key_add(k, v->base);
}

/* With its value. A parameter, buffer or state is identified by its serial, because its ID may have been another
   one's before. */
#define RW_KEY_LEAF_WORDS (2 + RW_KEY_VALUE_WORDS)
static inline void rw_key_add_leaf(struct rw_key *k, const struct rw_leaf *leaf, const struct rw_tensor *v)
{
    rw_key_add(k, RW_KEY_LEAF | (uint64_t)leaf->kind << 16 | (uint64_t)leaf->gradient_dtype << 24);
    rw_key_add(k, leaf->kind == RW_LEAF_SEED ? leaf->param : leaf->serial);
    rw_key_add_value(k, v);
}

/* Its outputs' values follow. Two operands are one word; the first of them is the region. Attributes end with zeros to
   a whole word. */
#define RW_KEY_NODE_WORDS(n_inputs, attrs_size) (1 + (1 + (size_t)(n_inputs) + 1) / 2 + ((attrs_size) + 7) / 8)
static inline void rw_key_add_node(struct rw_key *k, const struct rw_node *node, const uint32_t *operand,
                                   const void *attrs)
{
    rw_key_add(k, (uint64_t)node->attrs_size << 48 | (uint64_t)node->n_outputs << 32 | (uint64_t)node->n_inputs << 16 |
                      (uint64_t)node->adjoint << 15 | (uint64_t)node->no_grad << 14 | node->op);
    rw_key_add(k, (uint64_t)node->region << 32 | (node->n_inputs ? operand[0] : RW_NONE_ID));
    for (uint32_t i = 1; i < node->n_inputs; i += 2)
        rw_key_add(k, (uint64_t)operand[i] << 32 | (i + 1u < node->n_inputs ? operand[i + 1] : RW_NONE_ID));
    for (size_t i = 0; i < node->attrs_size; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)attrs + i, 8);
        rw_key_add(k, word);
    }
}

/* A decision about a value that was recorded before. */
#define RW_KEY_MARK_WORDS 2
static inline void rw_key_add_mark(struct rw_key *k, uint32_t value, enum rw_value_flag decision)
{
    rw_key_add(k, RW_KEY_MARK | (uint64_t)decision << 16);
    rw_key_add(k, value);
}

#define RW_KEY_AMAX_WORDS 3
static inline void rw_key_add_amax(struct rw_key *k, const struct rw_tape_amax *a, uint64_t buffer_serial)
{
    rw_key_add(k, RW_KEY_AMAX | (uint64_t)a->counts << 16);
    rw_key_add(k, buffer_serial);
    rw_key_add(k, (uint64_t)a->value << 32 | a->row);
}

/* All but policy.whole, which matters only if the tape has parts. */
size_t rw_key_policy_words(const struct rw_policy *policy);
void rw_key_add_policy(struct rw_key *k, const struct rw_policy *policy);

#endif
