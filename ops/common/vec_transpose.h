/* Transposes square matrices held in vectors of fixed width (vec.h), in registers if the instruction set allows it. */
#ifndef RW_OPS_COMMON_VEC_TRANSPOSE_H
#define RW_OPS_COMMON_VEC_TRANSPOSE_H

#include "ops/common/register_transpose.h"

#if defined(RW_ISA_IS_V4)
/* In each square block of 2 s by 2 s elements, exchanges the two s by s blocks off the diagonal. */
VEC_INLINE void vf_exchange(vf r[VF_LANES], int s, vi lower, vi upper)
{
    for (int i = 0; i < VF_LANES; i++) {
        if (i & s) continue;
        const __m512 x = (__m512)r[i], y = (__m512)r[i + s];
        r[i] = (vf)_mm512_permutex2var_ps(x, (__m512i)lower, y);
        r[i + s] = (vf)_mm512_permutex2var_ps(x, (__m512i)upper, y);
    }
}

/* Transposes 16 vectors as a matrix. */
VEC_INLINE void vf_transpose(vf r[VF_LANES])
{
    vf_exchange(r, 1, (vi){ 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30 },
                (vi){ 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31 });
    vf_exchange(r, 2, (vi){ 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29 },
                (vi){ 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31 });
    vf_exchange(r, 4, (vi){ 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27 },
                (vi){ 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31 });
    vf_exchange(r, 8, (vi){ 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23 },
                (vi){ 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31 });
}
#else
/* Transposes in four blocks of 8 by 8. */
VEC_INLINE void vf_transpose(vf r[VF_LANES])
{
    union { vf v; square_4 half[2]; } u[VF_LANES];
    square_4 part[2][2][8]; /* [column of the block][row of the block] */
    for (int i = 0; i < VF_LANES; i++) {
        u[i].v = r[i];
        for (int k = 0; k < 2; k++) part[k][i / 8][i % 8] = u[i].half[k];
    }
    for (int i = 0; i < 4; i++) transpose_square_4(part[i / 2][i % 2]);
    for (int i = 0; i < VF_LANES; i++) {
        for (int k = 0; k < 2; k++) u[i].half[k] = part[i / 8][k][i % 8];
        r[i] = u[i].v;
    }
}
#endif

/* Transposes in four blocks of 4 by 4. */
VEC_INLINE void vd_transpose(vd r[VD_LANES])
{
    union { vd v; square_8 half[2]; } u[VD_LANES];
    square_8 part[2][2][4];
    for (int i = 0; i < VD_LANES; i++) {
        u[i].v = r[i];
        for (int k = 0; k < 2; k++) part[k][i / 4][i % 4] = u[i].half[k];
    }
    for (int i = 0; i < 4; i++) transpose_square_8(part[i / 2][i % 2]);
    for (int i = 0; i < VD_LANES; i++) {
        for (int k = 0; k < 2; k++) u[i].half[k] = part[i / 4][k][i % 4];
        r[i] = u[i].v;
    }
}

#endif
