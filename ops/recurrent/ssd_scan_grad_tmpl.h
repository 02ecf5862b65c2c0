/*
 * Backward of ssd_scan for one type of arithmetic; included after ssd_scan_tmpl.h. First the states before all chunks
 * are recomputed, then the chunks are processed from the last to the first. Tiles of pairs are stored transposed,
 * [j][i], with the later place i in a lane. So are the sums of dc, and of the part of db that comes from outside of the
 * chunk, as [n][places].
 */

/* The data of a chunk that backward has in addition to struct chunk, for all heads of a part. */
struct F(transposed) {
    T *c;                    /* [n][places] */
    T *dscores;              /* [j][i] */
    T *dc, *db;              /* [n][places] */
};

/* For one head: rows [places][p], and transposed data [p][places]. */
struct F(head) {
    int64_t b, h, part_h;    /* part_h: its index within its part */
    T *x, *dy, *dx;
    T *x_transposed, *dy_transposed; /* x times dt */
    T *m, *dc, *ds;                  /* [j][i]; [n][places]; [places] */
    T *state, *dstate;               /* before the chunk; and the gradient of the one after it */
    bool is_last;                    /* the last chunk, whose final state has no gradient */
    bool is_first;                   /* the first chunk, before which the state is 0 */
};

/* A V that is accumulated in a loop, in parts that stay in registers (see vec_native_array.h). */
#define PARTS (LANES / N_LANES)

VEC_INLINE T F(sum_parts)(const N *part)
{
    V whole;
    memcpy(&whole, part, sizeof whole);
    return F(sum)(whole);
}

VEC_INLINE T F(dot)(const T *a, const T *b, int64_t n)
{
    N sum[PARTS] = { 0 };
    for (int64_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l += N_LANES)
            sum[l / N_LANES] = F(mul_add)(*(const N *)(a + i + l), *(const N *)(b + i + l), sum[l / N_LANES]);
    return F(sum_parts)(sum);
}

/* The dot product of factor * a and b. The factor is applied first: a product of small numbers would be flushed to
   zero. */
VEC_INLINE T F(dot_times)(T factor, const T *a, const T *b, int64_t n)
{
    N sum[PARTS] = { 0 };
    for (int64_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l += N_LANES)
            sum[l / N_LANES] = F(mul_add)(*(const N *)(a + i + l) * factor, *(const N *)(b + i + l), sum[l / N_LANES]);
    return F(sum_parts)(sum);
}

/* The states before all chunks of a head, [chunk][n][p]. */
static void F(states)(const struct ssd *a, T *state, struct F(chunk) *c, struct F(places) *x, const struct ssd_unit *u,
                      T *rows)
{
    const int64_t each = a->n * a->p, all = (a->s.chunks + 1) * each;
    for (int64_t h = u->first; h < u->end; h++) F(read_state)(a, a->s.state, state + (h - u->first) * all, u->b, h);
    for (int64_t i = 0; i + 1 < a->s.chunks; i++) {
        F(open_chunk)(a, c, u, i);
        for (int64_t h = u->first; h < u->end; h++) {
            T *const to = state + (h - u->first) * all + (i + 1) * each;
            F(head_places)(a, x, u->b, h, c);
            F(head_rows)(a, SSD_X, rows, u->b, h, c);
            for (int64_t k = 0; k < c->places; k++) F(scale)(rows + k * a->p, x->dt[k], a->p);
            memcpy(to, to - each, (size_t)each * sizeof *to);
            F(advance)(a, to, c, x, rows);
        }
    }
}

static void F(open_head)(const struct ssd *a, struct F(head) *d, const struct F(chunk) *c, const struct F(places) *x)
{
    F(head_rows)(a, SSD_X, d->x, d->b, d->h, c);
    if (a->s.dy >= 0) F(head_rows)(a, a->s.dy, d->dy, d->b, d->h, c);
    else memset(d->dy, 0, (size_t)(c->lanes * a->p) * sizeof *d->dy);
    F(transpose_block)(d->x_transposed, a->q, d->x, a->p, c->lanes, a->p);
    F(transpose_block)(d->dy_transposed, a->q, d->dy, a->p, c->lanes, a->p);
    F(scale_columns)(d->x_transposed, a->q, x->dt, a->p, c->lanes);
    memset(d->ds, 0, (size_t)a->q * sizeof *d->ds);
}

/* Row j: dm becomes m; adds to ds and to the scores' gradient. */
static void F(pair_row)(const struct ssd *a, struct F(head) *d, const struct F(chunk) *c, const struct F(places) *x,
                        T *dscores, int64_t j)
{
    const int64_t from = j / RW_SSD_SIDE * RW_SSD_SIDE;
    T *const m = d->m + j * a->q, share[RW_SSD_SIDE], ds[LANES];
    const T *const scores = c->scores + j * a->q;
    const struct F(place) down = F(place)(x, j);
    N left[PARTS] = { 0 };
    for (int64_t i = from; i < c->lanes; i += LANES) {
        for (int64_t l = 0; l < LANES; l += N_LANES)
            *(N *)(share + l) = G(exp)(-F(between)(x->sum + i + l, x->low + i + l, &down));
        for (int64_t l = i; l < j && l < i + LANES; l++) share[l - i] = 0;
        for (int64_t l = 0; l < LANES; l += N_LANES) {
            const N score = *(const N *)(scores + i + l), dscore = *(const N *)(m + i + l) * *(const N *)(share + l);
            *(N *)(m + i + l) = score * *(const N *)(share + l);
            *(N *)(dscores + j * a->q + i + l) += dscore;
            *(N *)(ds + l) = dscore * score;
        }
        if (j >= i && j < i + LANES) ds[j - i] = 0;
        for (int64_t l = 0; l < LANES; l += N_LANES) {
            *(N *)(d->ds + i + l) += *(const N *)(ds + l);
            left[l / N_LANES] += *(const N *)(ds + l);
        }
    }
    d->ds[j] -= F(sum_parts)(left);
}

/* dm, m and all terms within the chunk, except dx. */
static void F(inside)(const struct ssd *a, struct F(head) *d, const struct F(chunk) *c, const struct F(places) *x,
                      T *dscores)
{
    for (int64_t j = 0; j < c->lanes; j += RW_SSD_SIDE)
        F(multiply)(d->m + j * a->q + j, a->q, d->x_transposed + j, 1, a->q, d->dy_transposed + j, a->q, RW_SSD_SIDE,
                    c->lanes - j, a->s.p, false);
    for (int64_t j = 0; j < c->places; j++) F(pair_row)(a, d, c, x, dscores, j);
}

/* The gradient of dt x, and of x. to_dt: the sum of x times it for each place. Returns the gradient of the decay of
   each place's contribution to the state after the chunk. */
static T F(inputs)(const struct ssd *a, struct F(head) *d, const struct F(chunk) *c, const struct F(places) *x,
                   T *to_dt)
{
    const rw_view *const out = &a->k->out[SSD_X];
    T all = 0;
    if (d->is_last) memset(d->dx, 0, (size_t)(c->places * a->p) * sizeof *d->dx);
    else F(multiply)(d->dx, a->p, c->b, a->n, 1, d->dstate, a->p, c->places, a->p, a->s.n, false);
    for (int64_t j = 0; j < c->places && !d->is_last; j++) {
        T *const row = d->dx + j * a->p;
        F(scale)(row, x->rest[j], a->p);
        const T of_rest = F(dot_times)(x->dt[j], d->x + j * a->p, row, a->p);
        d->ds[j] -= of_rest;
        all += of_rest;
    }
    for (int64_t j = 0; j < c->places; j += RW_SSD_SIDE) {
        const int64_t rows = c->places - j < RW_SSD_SIDE ? c->places - j : RW_SSD_SIDE;
        F(multiply)(d->dx + j * a->p, a->p, d->m + j * a->q + j, a->q, 1, d->dy + j * a->p, a->p, rows, a->p,
                    c->places - j, true);
    }
    for (int64_t j = 0; j < c->places; j++) {
        const T *const row = d->dx + j * a->p;
        to_dt[j] = F(dot)(d->x + j * a->p, row, a->p);
        F(give)(out->data, out->dtype, ((d->b * a->s.l + c->at + j) * a->s.h + d->h) * a->s.p, row, x->dt[j], a->s.p);
    }
    return all;
}

/* The terms that pass through the states: dc, db, and the gradient of the state before the chunk. Returns the gradient
   of the factor exp(s[last]) of that state. */
static T F(outside)(const struct ssd *a, struct F(head) *d, const struct F(chunk) *c, const struct F(transposed) *t,
                    const struct F(places) *x)
{
    const int64_t each = a->n * a->p;
    T all = 0;
    for (int64_t i = 0; i < c->places; i++) F(scale)(d->dy + i * a->p, x->share[i], a->p);
    if (!d->is_first) {
        F(scale_columns)(d->dy_transposed, a->q, x->share, a->p, c->lanes);
        F(multiply)(d->dc, a->q, d->state, a->p, 1, d->dy_transposed, a->q, a->s.n, c->lanes, a->s.p, false);
        for (int64_t n = 0; n < a->s.n; n++)
            for (int64_t i = 0; i < c->lanes; i += N_LANES) {
                const N dc = *(const N *)(d->dc + n * a->q + i);
                *(N *)(t->dc + n * a->q + i) += dc;
                *(N *)(d->ds + i) = G(mul_add)(dc, *(const N *)(t->c + n * a->q + i), *(const N *)(d->ds + i));
            }
    }
    if (!d->is_last) {
        F(scale_columns)(d->x_transposed, a->q, x->rest, a->p, c->lanes);
        F(multiply)(t->db, a->q, d->dstate, a->p, 1, d->x_transposed, a->q, a->s.n, c->lanes, a->s.p, true);
        F(scale)(d->dstate, x->whole, each); /* first: a product with a state that decays to 0 may overflow */
        if (!d->is_first) all = F(dot)(d->state, d->dstate, each);
    }
    F(multiply)(d->dstate, a->p, c->c, 1, a->n, d->dy, a->p, a->s.n, a->p, c->places, !d->is_last);
    return all;
}

/* From ds to the gradients of dt and a. of_dt: the gradient of dt as a factor of x. Returns the chunk's contribution to
   da. */
static double F(steps)(const struct ssd *a, const struct F(head) *d, const struct F(chunk) *c,
                       const struct F(places) *x, const T *of_dt, T last)
{
    const rw_view *const out = &a->k->out[SSD_DT], *const rates = &a->k->in[SSD_A];
    const double rate = (double)F(element)(rates, d->h * rates->layout->stride[0]);
    const double most = rw_ssd_most(a->s.q);
    double sum = (double)last, da = 0;
    for (int64_t i = c->places - 1; i >= 0; i--) {
        sum += (double)d->ds[i];
        if (rw_ssd_forgets((double)x->dt[i] * rate, most)) sum *= 0;
        da += (double)x->dt[i] * sum;
        const T ddt = (T)(rate * sum + (double)of_dt[i]);
        F(give)(out->data, out->dtype, (d->b * a->s.l + c->at + i) * a->s.h + d->h, &ddt, 1, 1);
    }
    return da;
}

/* Rows of a part's sums of db and dc: [batch, group, part, place, n] for each, db first. */
static T *F(part_rows)(const struct ssd *a, bool of_c, int64_t b, int64_t g, int64_t part)
{
    const int64_t parts = rw_ssd_parts(&a->s), each = a->s.l * a->s.n;
    T *const all = (T *)a->shared + a->s.b * a->s.h + (of_c ? a->s.b * a->s.g * parts * each : 0);
    return all + ((b * a->s.g + g) * parts + part) * each;
}

/* The products with the scores' gradient, and the part's sums as rows. room: rows [places][n]. */
static void F(close_chunk)(const struct ssd *a, const struct F(chunk) *c, const struct F(transposed) *t,
                           const struct ssd_unit *u, T *rows)
{
    T *const db = F(part_rows)(a, false, u->b, u->g, u->part) + c->at * a->s.n;
    T *const dc = F(part_rows)(a, true, u->b, u->g, u->part) + c->at * a->s.n;
    for (int64_t i = 0; i < c->lanes; i += RW_SSD_SIDE) {
        const int64_t end = i + RW_SSD_SIDE < c->places ? i + RW_SSD_SIDE : c->places;
        F(multiply)(t->dc + i, a->q, c->transposed, a->q, 1, t->dscores + i, a->q, a->s.n, RW_SSD_SIDE, end, true);
    }
    F(transpose_block)(rows, a->n, t->dc, a->q, a->n, c->lanes);
    for (int64_t i = 0; i < c->places; i++) memcpy(dc + i * a->s.n, rows + i * a->n, (size_t)a->s.n * sizeof *dc);
    F(transpose_block)(rows, a->n, t->db, a->q, a->n, c->lanes);
    for (int64_t j = 0; j < c->places; j += RW_SSD_SIDE) {
        const int64_t some = c->places - j < RW_SSD_SIDE ? c->places - j : RW_SSD_SIDE;
        F(multiply)(rows + j * a->n, a->n, t->dscores + j * a->q + j, a->q, 1, c->c + j * a->n, a->n, some, a->n,
                    c->places - j, true);
    }
    for (int64_t i = 0; i < c->places; i++) memcpy(db + i * a->s.n, rows + i * a->n, (size_t)a->s.n * sizeof *db);
}

static void F(backward_chunk)(const struct ssd *a, struct F(chunk) *c, const struct F(transposed) *t,
                              const struct ssd_unit *u, int64_t i)
{
    F(open_chunk)(a, c, u, i);
    F(group_rows)(a, SSD_C, c->c, u, c);
    F(transpose_block)(c->transposed, a->q, c->b, a->n, c->lanes, a->n);
    F(transpose_block)(t->c, a->q, c->c, a->n, c->lanes, a->n);
    for (int64_t j = 0; j < c->lanes; j += RW_SSD_SIDE)
        F(multiply)(c->scores + j * a->q + j, a->q, c->b + j * a->n, a->n, 1, t->c + j, a->q, RW_SSD_SIDE,
                    c->lanes - j, a->s.n, false);
    memset(t->dscores, 0, (size_t)(a->q * a->q) * sizeof *t->dscores);
    memset(t->dc, 0, (size_t)(a->n * a->q) * sizeof *t->dc);
    memset(t->db, 0, (size_t)(a->n * a->q) * sizeof *t->db);
}

/* room: tiles of pairs, of x, dy and dx and of two transposed ones, of dc, and two rows. */
static void F(backward)(const struct ssd *a, T *room, struct ssd_unit u)
{
    const int64_t each = a->n * a->p, all = (a->s.chunks + 1) * each, q = a->q;
    struct F(chunk) c = { .b = F(cut)(&room, q * a->n), .c = F(cut)(&room, q * a->n),
                          .transposed = F(cut)(&room, q * a->n), .scores = F(cut)(&room, q * q) };
    struct F(transposed) t = { .c = F(cut)(&room, q * a->n), .dscores = F(cut)(&room, q * q),
                               .dc = F(cut)(&room, q * a->n), .db = F(cut)(&room, q * a->n) };
    struct F(places) x = { .dt = F(cut)(&room, q), .sum = F(cut)(&room, q), .low = F(cut)(&room, q),
                           .share = F(cut)(&room, q), .rest = F(cut)(&room, q) };
    struct F(head) d = { .b = u.b, .x = F(cut)(&room, q * a->p), .dy = F(cut)(&room, q * a->p),
                         .dx = F(cut)(&room, q * a->p), .x_transposed = F(cut)(&room, q * a->p),
                         .dy_transposed = F(cut)(&room, q * a->p), .m = F(cut)(&room, q * q),
                         .dc = F(cut)(&room, q * a->n), .ds = F(cut)(&room, q) };
    T *const of_dt = F(cut)(&room, q), *const states = F(cut)(&room, RW_SSD_HEADS * all), *const rows = room;
    double da[RW_SSD_HEADS] = { 0 };
    F(states)(a, states, &c, &x, &u, d.x);
    for (int64_t h = u.first; h < u.end; h++)
        F(read_state)(a, a->s.dstate, states + (h - u.first) * all + a->s.chunks * each, u.b, h);
    for (int64_t i = a->s.chunks - 1; i >= 0; i--) {
        F(backward_chunk)(a, &c, &t, &u, i);
        d.is_last = i == a->s.chunks - 1 && a->s.dstate < 0, d.is_first = !i && a->s.state < 0;
        for (d.h = u.first; d.h < u.end; d.h++) {
            d.part_h = d.h - u.first;
            d.state = states + d.part_h * all + i * each, d.dstate = states + d.part_h * all + a->s.chunks * each;
            F(head_places)(a, &x, u.b, d.h, &c);
            F(open_head)(a, &d, &c, &x);
            F(inside)(a, &d, &c, &x, t.dscores);
            T last = F(inputs)(a, &d, &c, &x, of_dt);
            last += F(outside)(a, &d, &c, &t, &x);
            da[d.part_h] += F(steps)(a, &d, &c, &x, of_dt, last);
        }
        F(close_chunk)(a, &c, &t, &u, rows);
    }
    for (int64_t h = u.first; h < u.end; h++) {
        const T *const dstate = states + (h - u.first) * all + a->s.chunks * each;
        ((T *)a->shared)[u.b * a->s.h + h] = (T)da[h - u.first];
        if (a->s.state >= 0) F(write_state)(a, &a->k->out[SSD_OPERANDS], dstate, u.b, h, rows);
    }
}

/* db and dc of row i of [batch, length, groups]: adds the parts in order. */
static void F(add_parts)(const struct ssd *a, T *sum, int64_t i)
{
    const int64_t g = i % a->s.g, place = i / a->s.g % a->s.l, b = i / a->s.g / a->s.l, n = a->s.n;
    for (int of_c = 0; of_c < 2; of_c++) {
        const rw_view *const out = &a->k->out[of_c ? SSD_C : SSD_B];
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t part = 0; part < rw_ssd_parts(&a->s); part++) {
            const T *const from = F(part_rows)(a, of_c, b, g, part) + place * n;
            for (int64_t k = 0; k < n; k++) sum[k] += from[k];
        }
        F(give)(out->data, out->dtype, i * n, sum, 1, n);
    }
}

/* da: adds the batches in order, in double. */
static void F(add_batches)(const struct ssd *a)
{
    const rw_view *const out = &a->k->out[SSD_A];
    for (int64_t h = 0; h < a->s.h; h++) {
        double sum = 0;
        for (int64_t b = 0; b < a->s.b; b++) sum += (double)((const T *)a->shared)[b * a->s.h + h];
        const T da = (T)sum;
        F(give)(out->data, out->dtype, h, &da, 1, 1);
    }
}

#undef PARTS
