"""Hurwitz's zeta function, by terms and Euler and Maclaurin's formula, as in Cephes.

Of a negative `q` the terms are not added one by one, for there may be millions: those below 0 are, but for
their sign, two zeta functions of positive numbers.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from torch_pjrt.lowering.pointwise.rows import constant, in_float64, select
from torch_pjrt.lowering.promote import Array

_N_TERMS = 9
# (2 k)! / B_2k, of the Bernoulli numbers B.
_DIVISORS = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1.8924375803183791606e9,
    7.47242496e10,
    -2.950130727918164224e12,
    1.1646782814350067249e14,
    -4.5979787224074726105e15,
    1.8152105401943546773e17,
    -7.1661652561756670113e18,
)


@in_float64
def zeta(x: Array, q: Array) -> Array:
    """The sum of (q + k)**-x over k from 0 up.

    As in PyTorch, the result is infinite for x = 1 and at the poles, and nan for x < 1 and where a term
    would be complex.
    """
    zero, one, two, nan, inf = (constant(v, x) for v in (0, 1, 2, np.nan, np.inf))
    below = lax.le(q, zero)
    pole = lax.bitwise_and(below, lax.eq(q, lax.floor(q)))
    inside = lax.bitwise_and(below, lax.bitwise_not(pole))
    # Below 0: what the first positive number gives, and amounts of negative ones, from the last to the first.
    start = select(inside, lax.sub(q, lax.floor(q)), select(pole, one, q))
    result = _of_positive(x, start)
    nearest = select(inside, lax.sub(lax.ceil(q), q), one)
    beyond = select(inside, lax.sub(one, q), one)
    is_odd = lax.eq(lax.rem(x, two), one)
    # Where they cancel, they cancel before anything else is added.
    amounts = _of_positive(x, nearest)
    together = select(is_odd, lax.sub(result, amounts), lax.add(result, amounts))
    rest = _of_positive(x, beyond)
    all_of_them = select(is_odd, lax.add(together, rest), lax.sub(together, rest))
    together = select(lax.eq(lax.abs(together), inf), together, all_of_them)
    result = select(inside, together, result)
    complex_term = lax.bitwise_and(below, lax.ne(x, lax.floor(x)))
    result = select(complex_term, nan, result)
    result = select(pole, inf, result)
    result = select(lax.lt(x, one), nan, result)
    return select(lax.eq(x, one), inf, result)


def _of_positive(x: Array, q: Array) -> Array:
    """What comes after a term that changes nothing is left out, also what would be infinite."""
    eps = constant(np.finfo(x.dtype).eps / 2, x)
    one, half = constant(1, x), constant(0.5, x)
    power = lax.neg(x)
    total, base = lax.pow(q, power), q
    ended = lax.full_like(q, False, dtype=np.dtype(bool))
    term = total
    for _ in range(_N_TERMS):
        base = lax.add(base, one)
        term = lax.pow(base, power)
        total = select(ended, total, lax.add(total, term))
        ended = lax.bitwise_or(ended, lax.lt(term, lax.mul(eps, total)))
    tail = lax.add(total, lax.div(lax.mul(term, base), lax.sub(x, one)))
    tail = lax.sub(tail, lax.mul(half, term))
    total = select(ended, total, tail)
    factor = lax.full_like(q, 1)
    for i, divisor in enumerate(_DIVISORS):
        factor = lax.mul(factor, lax.add(x, constant(2 * i, x)))
        term = lax.div(term, base)
        added = lax.div(lax.mul(factor, term), constant(divisor, x))
        total = select(ended, total, lax.add(total, added))
        ended = lax.bitwise_or(ended, lax.lt(lax.abs(lax.div(added, total)), eps))
        factor = lax.mul(factor, lax.add(x, constant(2 * i + 1, x)))
        term = lax.div(term, base)
    return total
