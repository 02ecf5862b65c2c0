/*
 * Sums of tensor cores. The hardware's algorithm is not documented; it was measured (Fasi, Higham, Mikaitis, Pranesh,
 * "Numerical behavior of NVIDIA tensor cores", 2021): products are exact, the terms of a sum are shifted to the largest
 * one's exponent, truncated there and added, and the result is truncated to float32. The A100 adds eight products at a
 * time and keeps two bits or more below the largest term's last; here it is one, so the errors are twice the device's.
 */
#include "cudasim_device.h"

#include <stdlib.h>

namespace cudasim {

static bool truncates()
{
    static const char *const how = getenv("CUDASIM_TENSOR");
    return how && strcmp(how, "truncate") == 0;
}

/* Rounds toward zero, to `bits` bits. */
static double cut(double x, int bits)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(trunc(ldexp(x, bits - exponent)), exponent - bits);
}

static float cut_sum(double c, const double *products, int n)
{
    double most = fabs(c), sum = 0;
    for (int k = 0; k < n; k++) most = fmax(most, fabs(products[k]));
    int exponent;
    frexp(most, &exponent);
    const double unit = ldexp(1, exponent - 25);
    for (int k = 0; k < n; k++) sum += trunc(products[k] / unit);
    sum = (sum + trunc(c / unit)) * unit;
    return sum != 0 ? static_cast<float>(cut(sum, 24)) : 0;
}

float tensor_sum(float c, const double (&products)[16])
{
    double sum = static_cast<double>(c);
    for (const double p : products) sum += p;
    if (!truncates() || !isfinite(sum) || !isfinite(static_cast<float>(sum))) return static_cast<float>(sum);
    return cut_sum(static_cast<double>(cut_sum(static_cast<double>(c), products, 8)), products + 8, 8);
}

} // namespace cudasim
