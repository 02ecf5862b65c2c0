/* Vector types with the device's alignments, and dim3. C and C++. */
#ifndef CUDASIM_VECTOR_TYPES_H
#define CUDASIM_VECTOR_TYPES_H

#define CUDASIM_ALIGNED(n) __attribute__((aligned(n)))

#define CUDASIM_VECTORS(base, type, align2, align4)                       \
    struct base##1 { type x; };                                           \
    struct CUDASIM_ALIGNED(align2) base##2 { type x, y; };                \
    struct base##3 { type x, y, z; };                                     \
    struct CUDASIM_ALIGNED(align4) base##4 { type x, y, z, w; };          \
    typedef struct base##1 base##1;                                       \
    typedef struct base##2 base##2;                                       \
    typedef struct base##3 base##3;                                       \
    typedef struct base##4 base##4;

CUDASIM_VECTORS(char, signed char, 2, 4)
CUDASIM_VECTORS(uchar, unsigned char, 2, 4)
CUDASIM_VECTORS(short, short, 4, 8)
CUDASIM_VECTORS(ushort, unsigned short, 4, 8)
CUDASIM_VECTORS(int, int, 8, 16)
CUDASIM_VECTORS(uint, unsigned, 8, 16)
CUDASIM_VECTORS(long, long, 16, 16)
CUDASIM_VECTORS(ulong, unsigned long, 16, 16)
CUDASIM_VECTORS(longlong, long long, 16, 16)
CUDASIM_VECTORS(ulonglong, unsigned long long, 16, 16)
CUDASIM_VECTORS(float, float, 8, 16)
CUDASIM_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{ x, y, z }; }
#endif
};
typedef struct dim3 dim3;

#endif
