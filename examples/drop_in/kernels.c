/* The formulas of kernels.h, as loops. */
#include "kernels.h"

#include <math.h>
#include <stddef.h>

void embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe, int B, int T, int C)
{
    for (int i = 0; i < B * T; i++)
        for (int c = 0; c < C; c++) out[i * C + c] = wte[tokens[i] * C + c] + wpe[i % T * C + c];
}

void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens, int B, int T, int C)
{
    for (int i = 0; i < B * T; i++)
        for (int c = 0; c < C; c++) {
            if (dwte) dwte[tokens[i] * C + c] += dout[i * C + c];
            if (dwpe) dwpe[i % T * C + c] += dout[i * C + c];
        }
}

void layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                       int rows, int C)
{
    for (int r = 0; r < rows; r++, x += C, out += C) {
        float sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += x[c];
        mean[r] = sum / (float)C;
        for (int c = 0; c < C; c++) squares += (x[c] - mean[r]) * (x[c] - mean[r]);
        rstd[r] = 1 / sqrtf(squares / (float)C + 1e-5f);
        for (int c = 0; c < C; c++) out[c] = (x[c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
}

void layernorm_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                        const float *weight, const float *mean, const float *rstd, int rows, int C)
{
    for (int r = 0; r < rows; r++, x += C, dout += C) {
        float d = 0, d_normed = 0;
        for (int c = 0; c < C; c++) {
            d += dout[c] * weight[c];
            d_normed += dout[c] * weight[c] * (x[c] - mean[r]) * rstd[r];
        }
        for (int c = 0; c < C; c++) {
            const float normed = (x[c] - mean[r]) * rstd[r];
            if (dweight) dweight[c] += dout[c] * normed;
            if (dbias) dbias[c] += dout[c];
            if (dx) dx[r * C + c] += (dout[c] * weight[c] - d / (float)C - normed * d_normed / (float)C) * rstd[r];
        }
    }
}

void matmul_forward(float *out, const float *x, const float *weight, const float *bias, int rows, int C, int OC)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < OC; o++) {
            float sum = bias ? bias[o] : 0;
            for (int c = 0; c < C; c++) sum += x[r * C + c] * weight[o * C + c];
            out[r * OC + o] = sum;
        }
}

void matmul_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x, const float *weight,
                     int rows, int C, int OC)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < OC; o++) {
            const float d = dout[r * OC + o];
            for (int c = 0; dx && c < C; c++) dx[r * C + c] += d * weight[o * C + c];
            for (int c = 0; dweight && c < C; c++) dweight[o * C + c] += d * x[r * C + c];
            if (dbias) dbias[o] += d;
        }
}

static float dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

void attention_forward(float *out, float *att, const float *qkv, int B, int T, int C, int NH)
{
    const int D = C / NH;
    const float scale = 1 / sqrtf((float)D);
    for (int i = 0; i < B * NH * T; i++, att += T) {
        const int b = i / (NH * T), h = i / T % NH, t = i % T;
        const float *const q = qkv + (b * T + t) * 3 * C + h * D, *const k = qkv + b * T * 3 * C + C + h * D;
        const float *const v = k + C;
        float *const y = out + (b * T + t) * C + h * D;
        float largest = -INFINITY, sum = 0;
        for (int s = 0; s <= t; s++) largest = fmaxf(largest, att[s] = dot(q, k + s * 3 * C, D) * scale);
        for (int s = 0; s <= t; s++) sum += att[s] = expf(att[s] - largest);
        for (int s = 0; s < T; s++) att[s] = s <= t ? att[s] / sum : 0;
        for (int d = 0; d < D; d++) y[d] = 0;
        for (int s = 0; s <= t; s++)
            for (int d = 0; d < D; d++) y[d] += att[s] * v[s * 3 * C + d];
    }
}

void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *att, int B, int T, int C,
                        int NH)
{
    const int D = C / NH;
    const float scale = 1 / sqrtf((float)D);
    for (int i = 0; i < B * NH * T; i++, att += T) {
        const int b = i / (NH * T), h = i / T % NH, t = i % T;
        const int at_q = (b * T + t) * 3 * C + h * D, at_k = b * T * 3 * C + C + h * D, at_v = at_k + C;
        const float *const dy = dout + (b * T + t) * C + h * D;
        float mean = 0;
        for (int s = 0; s <= t; s++) mean += att[s] * dot(dy, qkv + at_v + s * 3 * C, D);
        for (int s = 0; s <= t; s++) {
            const int row = s * 3 * C;
            const float d = att[s] * (dot(dy, qkv + at_v + row, D) - mean) * scale;
            for (int c = 0; c < D; c++) {
                dqkv[at_v + row + c] += att[s] * dy[c];
                dqkv[at_q + c] += d * qkv[at_k + row + c];
                dqkv[at_k + row + c] += d * qkv[at_q + c];
            }
        }
    }
}

#define ROOT 0.7978845608f /* sqrt(2 / pi) */

void gelu_forward(float *out, const float *x, int n)
{
    for (int i = 0; i < n; i++) out[i] = 0.5f * x[i] * (1 + tanhf(ROOT * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

void gelu_backward(float *dx, const float *dout, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        const float t = tanhf(ROOT * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
        const float slope = ROOT * (1 + 3 * 0.044715f * x[i] * x[i]);
        dx[i] += dout[i] * (0.5f * (1 + t) + 0.5f * x[i] * (1 - t * t) * slope);
    }
}

void residual_forward(float *out, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) out[i] = a[i] + b[i];
}

void residual_backward(float *da, float *db, const float *dout, int n)
{
    for (int i = 0; da && i < n; i++) da[i] += dout[i];
    for (int i = 0; db && i < n; i++) db[i] += dout[i];
}

void crossentropy_forward(float *losses, float *probs, const float *logits, const int32_t *targets, int rows, int V)
{
    for (int r = 0; r < rows; r++, logits += V, probs += V) {
        float largest = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) largest = fmaxf(largest, logits[v]);
        for (int v = 0; v < V; v++) sum += probs[v] = expf(logits[v] - largest);
        for (int v = 0; v < V; v++) probs[v] /= sum;
        losses[r] = -logf(probs[targets[r]]);
    }
}

void crossentropy_backward(float *dlogits, const float *dlosses, const float *probs, const int32_t *targets, int rows,
                           int V)
{
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < V; v++)
            dlogits[r * V + v] += (probs[r * V + v] - (v == targets[r] ? 1.0f : 0.0f)) * dlosses[r];
}
