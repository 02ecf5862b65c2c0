/*
 * Reads and writes numbers of every element type as doubles, and bounds how far a result may be from a reference.
 *
 * The bound of an element is G(n, u) M. G(n, u) = n u / (1 - n u) bounds the relative error of n successive roundings
 * (Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1), u is the unit roundoff of the arithmetic type,
 * and M is the sum of the magnitudes of the terms of the element. A sum or a product of k terms, in any order, is k
 * roundings. A type of 16 bits is computed in float32 and stored in 16 bits: s intermediates that are stored on the way
 * add G(s, v) M, where v is the unit roundoff of the 16-bit type, and the element itself is rounded once more.
 */
#ifndef RW_TESTS_COMPARE_H
#define RW_TESTS_COMPARE_H

#include <rewind/tensor.h>

/* Element i of an array of that floating-point type. */
double number_get(const void *p, rw_dtype dtype, int64_t i);

/* Returns false when the type does not hold x exactly. */
bool number_put(void *p, rw_dtype dtype, int64_t i, double x);

/* Writes value(i) to each element of a parameter or a gradient. Returns false if its type does not hold a value
   exactly. */
bool tensor_fill(rw_tensor *x, double (*value)(int64_t i));

/* 2^-p for p significant bits: half the distance from 1 to the next larger number. */
double unit_roundoff(rw_dtype dtype);

/* The unit roundoff of the type in which arithmetic on dtype is done. */
double arithmetic_roundoff(rw_dtype dtype);

/* G(n, u). */
double roundings(int n, double u);

struct roundings {
    int n; /* of arithmetic; 0: exact except for being stored */
    int s; /* intermediates stored in the type of the case */
};

/*
 * Below 2^-14 the numbers of float16 are 2^-24 apart: a value that is stored there is off by half of that, whatever its
 * own magnitude. A result computed from it is its product with at most three operands, whose elements are at most 2.
 */
double underflow(rw_dtype dtype, rw_dtype stored, struct roundings r);

/*
 * Maximum distance of an element from its value in double. dtype is the type of the case. stored is the type of the
 * element, which differs for casts and losses. size is M.
 */
double tolerance(rw_dtype dtype, rw_dtype stored, struct roundings r, double want, double size);

#endif
