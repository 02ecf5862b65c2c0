/* The words of a policy in a tape's key. */
#include "record/tape_key_words.h"

static size_t words_of_texts(char *const *texts, size_t n)
{
    size_t words = 1;
    for (size_t i = 0; i < n; i++) words += RW_KEY_TEXT_WORDS(strlen(texts[i]));
    return words;
}

static void add_texts(struct rw_key *k, char *const *texts, size_t n)
{
    rw_key_add(k, n);
    for (size_t i = 0; i < n; i++) rw_key_add_text(k, texts[i], strlen(texts[i]));
}

size_t rw_key_policy_words(const struct rw_policy *p)
{
    return 4 + words_of_texts(p->names, p->n_names) + words_of_texts(p->discards, p->n_discards) +
           words_of_texts(p->moved_tags, p->n_moved_tags) + words_of_texts(p->moved_regions, p->n_moved_regions) +
           RW_KEY_TEXT_WORDS(strlen(p->spec));
}

void rw_key_add_policy(struct rw_key *k, const struct rw_policy *p)
{
    uint64_t percent;
    memcpy(&percent, &p->percent, sizeof percent);
    rw_key_add(k, (uint64_t)p->kind << 2 | (uint64_t)p->moves << 1 | p->total);
    rw_key_add(k, (uint64_t)p->n);
    rw_key_add(k, p->bytes);
    rw_key_add(k, percent);
    add_texts(k, p->names, p->n_names);
    add_texts(k, p->discards, p->n_discards);
    add_texts(k, p->moved_tags, p->n_moved_tags);
    add_texts(k, p->moved_regions, p->n_moved_regions);
    rw_key_add_text(k, p->spec, strlen(p->spec));
}
