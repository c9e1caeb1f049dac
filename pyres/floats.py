"""Float formats narrower than float64: how far apart their numbers are, and the nearest one.

A format keeps so many binary digits.  The larger a number, the further apart its neighbours.
Every number of these formats is a float64 as well, so what is rounded to one is a float still.

    Format, FORMATS, format_named    float32, float16, bfloat16
    step_at                          the distance between neighbours
    round_to                         the nearest number of a format

>>> round_to([2048.0 + 1.0, 2048.0 + 3.0], "float16")   # float16 has 2046, 2047, 2048, 2050, 2052
[2048.0, 2052.0]
>>> step_at(2048.0, "float32"), step_at(2048.0, "float16"), step_at(2048.0, "bfloat16")
(0.000244140625, 2.0, 16.0)
"""
import math
from collections import namedtuple

__all__ = ["Format", "FORMATS", "format_named", "step_at", "round_to"]


class Format(namedtuple("Format", ("name", "digits", "smallest", "limit"))):
    """A float format.

    digits      binary digits of a number, the leading one included
    smallest    2**smallest is the smallest number above 0, and a step for all small ones
    limit       every number is below 2**limit; what rounds to that or more is infinite
    """


FORMATS = (Format("float32", 24, -149, 128),
           Format("float16", 11, -24, 16),
           Format("bfloat16", 8, -133, 128))


def format_named(to):
    """The Format of a name; ValueError where there is none.

    >>> format_named("float8")
    Traceback (most recent call last):
    ValueError: floats: there is no format 'float8'; there are float32, float16, bfloat16
    """
    for form in FORMATS:
        if form.name == to:
            return form
    names = ", ".join([form.name for form in FORMATS])
    raise ValueError(f"floats: there is no format {to!r}; there are {names}")


def step_at(x, to):
    """The distance between neighbours of a format, from the size of x on to the next power of two.
    Raises ValueError for an x that is not finite.

    >>> step_at(1.0, "bfloat16"), step_at(-300.0, "bfloat16"), step_at(0.0, "float16")
    (0.0078125, 2.0, 5.960464477539063e-08)
    """
    if x - x != 0:                                  # inf - inf is nan
        raise ValueError(f"step_at: {x!r} has no neighbours; give a finite number")
    return math.ldexp(1.0, _step_exponent(x, format_named(to)))


def _step_exponent(x, form):
    if x == 0:
        return form.smallest
    _, exponent = math.frexp(x)                     # 2**(exponent - 1) <= |x| < 2**exponent
    return max(exponent - form.digits, form.smallest)


def round_to(x, to):
    """The number of a format that is nearest to x, of two the even one; of a tensor, each.

    Infinity where x is too large, as in hardware; NaN stays NaN, and -0.0 keeps its sign.  Raises
    TypeError for what is no float, ValueError for another format.

    A bfloat16 is found from the float itself.  By way of float32 it would be rounded twice, and
    the first rounding can make a tie of what is none:

    >>> round_to(1 + 2.0 ** -8 + 2.0 ** -40, "bfloat16")
    1.0078125
    >>> round_to(round_to(1 + 2.0 ** -8 + 2.0 ** -40, "float32"), "bfloat16")
    1.0
    >>> round_to([[1e-8, -65520.0]], "float16")
    [[0.0, -inf]]
    """
    return _rounded(x, format_named(to))


def _rounded(x, form):
    if isinstance(x, (list, tuple)):
        return [_rounded(part, form) for part in x]
    if not isinstance(x, float):
        raise TypeError(f"round_to: only floats are rounded, got {type(x).__name__}")
    size, limit = abs(x), math.ldexp(1.0, form.limit)
    if size < limit:
        # A float64 has 53 digits, so from `large` on its step is the one wanted here: the addition
        # itself rounds to the nearest, of two the even one, and the subtraction is exact.
        large = math.ldexp(1.0, _step_exponent(x, form) + 52)
        size = size + large - large
    # a NaN is neither below the limit nor from it on
    return math.copysign(math.inf if size >= limit else size, x)
