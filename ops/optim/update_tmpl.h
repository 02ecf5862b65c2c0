/*
 * The optimizer rules, element by element. V is float or a vector of floats, INLINE declares the functions, SQRT(x) is
 * the root, SIGN(x) the sign: -1, 0 or 1. In float64 moments are divided by their bias corrections; in float32 the
 * corrections are part of other factors.
 */

/*
 * x moved towards g by the fraction c; b is 1 - c. Since both products are rounded, b x + c g would not preserve x
 * where x and g are equal, and a long average would drift. Computed from the nearer end, as in PyTorch's lerp(): a
 * fraction of 1 gives exactly g.
 */
INLINE V rw_update_towards(V x, V g, float b, float c)
{
    if (b == 0) return g;
    return c < 0.5f ? x + c * (g - x) : g - b * (g - x);
}

/* Updates the element x of a parameter, or of its master copy, by its gradient; a and b are its states. */
INLINE V rw_update_floats(int rule, const struct rw_update_row *s, V x, V g, V *a, V *b, bool with_a)
{
    if (rule == RW_UPDATE_AVERAGE) return rw_update_towards(x, g, s->f.b1, s->f.c1);
    if (rule == RW_UPDATE_LION) {
        const V u = s->f.b1 * *a + s->f.c1 * g;
        *a = s->f.b2 * *a + s->f.c2 * g;
        return x * s->f.decay - s->f.rate * SIGN(u);
    }
    if (s->l2 != 0) g = g + s->f.l2 * x;
    if (rule == RW_UPDATE_ADAM) {
        *a = rw_update_towards(*a, g, s->f.b1, s->f.c1);
        *b = s->f.b2 * *b + s->f.c2 * g * g;
        return x * s->f.decay - s->f.rate * *a / (SQRT(*b) * s->f.root + s->f.eps);
    }
    if (with_a) {
        *a = s->f.b1 * *a + s->f.c1 * g;
        if (s->nesterov) g = g + s->f.b2 * *a;
        else g = *a;
    }
    return x - s->f.rate * g;
}
#undef V
#undef INLINE
#undef SQRT
#undef SIGN
