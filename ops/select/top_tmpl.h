/*
 * topk of rows with elements as wide as E, unsigned. Included by top_cpu.c once per width, with R, which has enough
 * bits for an E and a 32-bit place; F builds the names of these functions. Keeps a heap of the best elements so far,
 * whose root is the last of them, and sorts it in place. Elements are ranked by keys, which are stored in the row of
 * values until these are written.
 *
 * No include guard: the includer sets E, R, F and OF_TYPE(function, arguments), which adds the type and the bits of its
 * infinity.
 */

struct F(heap) {
    E *key;
    int32_t *place;
};

/* The order of rw_comes_before() on numbers: the smaller key precedes. Every NaN has key 0; -0 has the key of 0. */
VEC_INLINE E F(key)(E bits, E infinity)
{
    const E sign = (E)((E)1 << (8 * sizeof(E) - 1)), size = (E)(bits & (sign - 1));
    return size > infinity ? 0 : bits > sign ? bits : (E)(sign - 1 - size);
}

/* Key and place in one number, so that two can be compared and selected without an unpredictable branch. */
VEC_INLINE R F(rank)(const struct F(heap) *h, int64_t i)
{
    return (R)h->key[i] << 32 | (uint32_t)h->place[i];
}

VEC_INLINE void F(put)(const struct F(heap) *h, int64_t i, R rank)
{
    h->key[i] = (E)(rank >> 32);
    h->place[i] = (int32_t)(uint32_t)rank;
}

/* Inserts into a heap of n from `at` on, moving down to its position. */
VEC_INLINE void F(sink)(const struct F(heap) *h, int64_t n, int64_t at, R moved)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        R last = F(rank)(h, child);
        if (child + 1 < n) {
            const R next = F(rank)(h, child + 1);
            child += next > last;
            last = next > last ? next : last;
        }
        if (last <= moved) break;
        F(put)(h, at, last);
    }
    F(put)(h, at, moved);
}

/* The k best elements of one row, in order. */
VEC_INLINE void F(top)(const E *x, int64_t n, const struct F(heap) *h, int64_t k, rw_dtype dtype, E infinity)
{
    for (int64_t i = 0; i < k; i++) {
        h->key[i] = F(key)(x[i], infinity);
        h->place[i] = (int32_t)i;
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) F(sink)(h, k, i, F(rank)(h, i));
    for (int64_t i = k; i < n;) {
        i = pass_over(x, dtype, i, n, h->place[0]);
        for (const int64_t end = i + NF_LANES < n ? i + NF_LANES : n; i < end; i++) {
            const E key = F(key)(x[i], infinity);
            if (key < h->key[0]) F(sink)(h, k, 0, (R)key << 32 | (uint32_t)i);
        }
    }
    for (int64_t left = k - 1; left > 0; left--) {
        const R moved = F(rank)(h, left);
        F(put)(h, left, F(rank)(h, 0));
        F(sink)(h, left, 0, moved);
    }
    for (int64_t i = 0; i < k; i++) h->key[i] = x[h->place[i]];
}

static void F(top_row)(const rw_kernel *k, int64_t row, int64_t n, int64_t most)
{
    const E *const x = (const E *)k->in[0].data + row * n;
    const struct F(heap) heap = { (E *)k->out[0].data + row * most, (int32_t *)k->out[1].data + row * most };
    OF_TYPE(F(top), x, n, &heap, most)
}

#undef E
#undef R
#undef F
#undef OF_TYPE
