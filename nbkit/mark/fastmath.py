"""exp, log and the normal distribution in float32 for compiled loops, written so that the compiler runs them on SIMD
lanes (calls into libm would be made one number at a time). Errors stay below 3e-7 of max(1, |value|)."""

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from nbkit.mesh.threads import FASTMATH

inlined = numba.njit(fastmath=FASTMATH, error_model="numpy", inline="never")
f32, i32 = np.float32, np.int32

LOG2_E, LN2_HIGH, LN2_LOW = f32(1.4426950408889634), f32(0.693359375), f32(-2.12194440e-4)
EXP_MIN, EXP_MAX = f32(-87.0), f32(88.0)
ONE, TWO, HALF = f32(1), f32(2), f32(0.5)
# Taylor coefficients of exp on |r| <= ln(2)/2, and of atanh(s)/s on |s| <= 0.172.
E2, E3, E4, E5, E6, E7 = (f32(1 / c) for c in (2, 6, 24, 120, 720, 5040))
A3, A5, A7, A9 = (f32(1 / c) for c in (3, 5, 7, 9))
# Abramowitz & Stegun 7.1.26: erf(x) = 1 - (p1 t + ... + p5 t^5) exp(-x^2), t = 1 / (1 + p0 x); error below 1.5e-7.
P0, P1, P2, P3, P4, P5 = map(f32, (0.3275911, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))
SQRT_HALF, INV_SQRT_2PI = f32(0.5**0.5), f32((2 * np.pi) ** -0.5)
SQRT_HALF_BITS = i32(np.array(SQRT_HALF).view(np.int32))


@intrinsic
def _bits(typing_context, x):
    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.int32(numba.float32), codegen


@intrinsic
def _from_bits(typing_context, x):
    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.float32(numba.int32), codegen


@inlined
def exp(x):
    """e^x for x in [-87, 88]; outside, the value at the nearer end."""
    x = min(max(x, EXP_MIN), EXP_MAX)
    n = i32(np.floor(x * LOG2_E + HALF))
    r = x - f32(n) * LN2_HIGH - f32(n) * LN2_LOW
    power = ONE + r * (ONE + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * E7))))))
    return power * _from_bits(i32((n + i32(127)) << i32(23)))


@inlined
def log(y):
    """ln y for normal y > 0."""
    exponent = i32((_bits(y) - SQRT_HALF_BITS) >> i32(23))
    m = _from_bits(i32(_bits(y) - i32(exponent << i32(23))))
    s = (m - ONE) / (m + ONE)
    q = s * s
    atanh = s * (ONE + q * (A3 + q * (A5 + q * (A7 + q * A9))))
    return f32(exponent) * LN2_HIGH + (f32(exponent) * LN2_LOW + TWO * atanh)


@inlined
def normal(z):
    """Cumulative distribution and density of the standard normal; gelu(z) = z cdf, gelu'(z) = cdf + z density."""
    decay = exp(-HALF * z * z)
    t = ONE / (ONE + P0 * SQRT_HALF * abs(z))
    tail = HALF * decay * t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    return (tail if z < 0 else ONE - tail), decay * INV_SQRT_2PI
