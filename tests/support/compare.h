/*
 * Numbers of every element type as doubles, and how far a result may lie from a reference.
 *
 * The bound of an element is G(n, u) M, with G(n, u) = n u / (1 - n u) for n roundings after each other (Higham,
 * Accuracy and Stability of Numerical Algorithms, lemma 3.1), u the unit roundoff of the type that is computed in and M
 * the sum of the magnitudes of the terms that the element is made of. A sum or a product of k terms, in any order, is k
 * roundings. A type of 16 bits is computed in float32 and stored narrow: s intermediates that are stored on the way add
 * G(s, v) M, v being its own unit roundoff, and the element itself is rounded once more.
 */
#ifndef RW_TESTS_COMPARE_H
#define RW_TESTS_COMPARE_H

#include <rewind/tensor.h>

/* Element i of an array of that floating-point type. */
double number_get(const void *p, rw_dtype dtype, int64_t i);

/* Returns false when the type does not hold x exactly. */
bool number_put(void *p, rw_dtype dtype, int64_t i, double x);

/* Writes value(i) to each element of a parameter or a gradient; false when its type does not hold one exactly. */
bool tensor_fill(rw_tensor *x, double (*value)(int64_t i));

/* 2^-p for p significant bits: half the distance from 1 to the number after it. */
double unit_roundoff(rw_dtype dtype);

/* Of the type that dtype's arithmetic is done in. */
double arithmetic_roundoff(rw_dtype dtype);

/* G(n, u). */
double roundings(int n, double u);

struct roundings {
    int n; /* of arithmetic; 0: the result is exact but for being stored */
    int s; /* intermediates stored in the type of the case */
};

/*
 * Below 2^-14 the numbers of float16 are 2^-24 apart: a value that is stored there is off by half of that, whatever its
 * own magnitude. What is computed from it on the way is it times at most three operands, whose numbers are 2 at most.
 */
double underflow(rw_dtype dtype, rw_dtype stored, struct roundings r);

/*
 * How far an element may lie from its value in double. dtype: of the case; stored: of the element, which casts and
 * losses store as another; size: M.
 */
double tolerance(rw_dtype dtype, rw_dtype stored, struct roundings r, double want, double size);

#endif
