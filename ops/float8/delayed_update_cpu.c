/* CPU kernels of delayed scaling: they process a few numbers per weight. */
#include "ops/float8/delayed_update.h"

#include "device/cpu/isa.h"

rw_status RW_ISA_NAME(rw_note_amax_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_note_amax_cpu)(const rw_kernel *k)
{
    const uint32_t *const row = k->attrs;
    float *const noted = k->out[0].data;
    for (int i = 0; i < k->n_inputs - 1; i++) {
        const float amax = *(const float *)k->in[i].data;
        if (rw_f8_magnitude(amax) > rw_f8_magnitude(noted[row[i]])) noted[row[i]] = amax;
    }
    return RW_OK;
}

/* Inserts amax at the front of the history, and returns the largest of the history. */
static uint32_t move_on(float *history, int64_t n, float amax)
{
    uint32_t m = rw_f8_magnitude(amax);
    for (int64_t i = n - 1; i > 0; i--) {
        const uint32_t own = rw_f8_magnitude(history[i] = history[i - 1]);
        m = own > m ? own : m;
    }
    history[0] = amax;
    return m;
}

rw_status RW_ISA_NAME(rw_delayed_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_delayed_update_cpu)(const rw_kernel *k)
{
    const struct rw_delayed_attrs *const a = k->attrs;
    const bool left_out = k->n_inputs == 4 && *(const int32_t *)k->in[0].data;
    float *const amax = k->out[0].data, *const scale = k->out[1].data, *const history = k->out[2].data;
    const int64_t length = k->out[2].layout->dim[1];
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        if (rw_delayed_takes(amax[i], left_out)) {
            const uint32_t most = move_on(history + i * length, length, amax[i]);
            scale[i] = rw_delayed_scale(a, i, a->most_recent ? rw_f8_magnitude(amax[i]) : most);
        }
        amax[i] = 0;
    }
    return RW_OK;
}
