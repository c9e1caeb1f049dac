"""Functions of one number that keep its type, or raise: never a float behind the reader's back.

    sqrt, exp, log, tanh, erf    math for float and int, cmath for complex, else the number's own
                                 method (Decimal, dual numbers), else an exact root of a rational,
                                 else TypeError
    for_row                      the fastest of these for a row of numbers
    real                         what maximum and relu compare by
    is_exact, check_constant     a Fraction must not meet a float constant
    root_of_count                the root of a size, in the type of the numbers it will divide

>>> from fractions import Fraction
>>> sqrt(Fraction(9, 4)), sqrt(2.25), sqrt(-4 + 0j)
(Fraction(3, 2), 1.5, 2j)
>>> sqrt(Fraction(25, 2))
Traceback (most recent call last):
TypeError: sqrt: 25/2 has no rational root; use floats, or numbers whose roots are rational
"""
import math

from .linalg import all_floats, check_numbers

try:
    import cmath
except ImportError:                     # a build without complex functions
    cmath = None

__all__ = ["sqrt", "exp", "log", "tanh", "erf", "for_row", "real", "is_exact", "check_constant",
           "root_of_count"]


def sqrt(x):
    """The square root of x.

    >>> from decimal import Decimal
    >>> sqrt(9), sqrt(Decimal("0.25"))
    (3.0, Decimal('0.5'))
    """
    return math.sqrt(x) if type(x) is float else _other("sqrt", x)


def exp(x):
    """e to the power x.

    >>> exp(0.0), exp(0j)
    (1.0, (1+0j))
    """
    return math.exp(x) if type(x) is float else _other("exp", x)


def log(x):
    """The natural logarithm of x.

    >>> log(1.0)
    0.0
    """
    return math.log(x) if type(x) is float else _other("log", x)


def erf(x):
    """The error function of x: real numbers only, or a type with its own.

    >>> erf(0.0)
    0.0
    >>> erf(1j)
    Traceback (most recent call last):
    TypeError: erf: not defined for complex numbers
    """
    return math.erf(x) if type(x) is float else _other("erf", x)


def tanh(x):
    """The hyperbolic tangent of x; where a type has exp only, from exp of a number that is not
    positive, which cannot overflow:

        tanh(x) = (1 - exp(-2x)) / (1 + exp(-2x)) = -tanh(-x)

    >>> tanh(0.0), tanh(0j)
    (0.0, 0j)
    """
    if type(x) is float:
        return math.tanh(x)
    if type(x) is int or hasattr(x, "tanh"):
        return _other("tanh", x)
    e = exp(-2 * x if real(x) > 0 else 2 * x)
    return (1 - e) / (1 + e) if real(x) > 0 else (e - 1) / (1 + e)


FLOAT_FUNCTIONS = {sqrt: math.sqrt, exp: math.exp, log: math.log, erf: math.erf, tanh: math.tanh}


def for_row(function, row, name, constant=0):
    """One of the functions above, to be called on every entry of a row: math's own where all are
    floats, which saves a Python call an entry, a third of an activation's time.

    Otherwise the entries are checked, on behalf of the function called `name`: that they are
    numbers, and that a float constant may meet them.

    >>> for_row(exp, [0.5, 1.5], "softmax") is math.exp, for_row(exp, [0.5, 1], "softmax") is exp
    (True, True)
    """
    if all_floats(row):
        return FLOAT_FUNCTIONS[function]
    check_numbers(name, row)
    for x in row:
        check_constant(f"{name}: a constant", constant, x)
    return function


def _other(name, x):
    """The function `name` of an x that is not a float."""
    if isinstance(x, (int, float)):
        return getattr(math, name)(x)
    if isinstance(x, complex) and hasattr(cmath, name):
        return getattr(cmath, name)(x)
    for method in (name, {"log": "ln"}.get(name, name)):        # Decimal says ln
        if hasattr(x, method):
            return getattr(x, method)()
    if name == "sqrt" and hasattr(x, "denominator"):
        return _rational_root(x)
    raise TypeError(f"{name}: not defined for {type(x).__name__} numbers")


def _rational_root(x):
    top, bottom = getattr(x, "numerator"), x.denominator
    root, root_below = _integer_root(top), _integer_root(bottom)
    if root * root != top or root_below * root_below != bottom:
        raise TypeError(f"sqrt: {x} has no rational root; "
                        "use floats, or numbers whose roots are rational")
    return type(x)(root, root_below)


def _integer_root(n):
    """The largest whole number whose square is at most n, by Newton's method from above."""
    if n < 0:
        raise ValueError(f"sqrt: {n} is negative")
    root = n
    while root * root > n:
        root = (root + n // root) // 2
    return root


def real(x):
    """The part of x that maximum and relu compare by: x itself unless it is complex.

    >>> real(2.5), real(3 - 4j)
    (2.5, 3.0)
    """
    return x.real if isinstance(x, complex) else x


def is_exact(x):
    """Whether + - * of x are exact: an int or a rational.

    >>> from fractions import Fraction
    >>> is_exact(2), is_exact(Fraction(1, 3)), is_exact(0.5)
    (True, True, False)
    """
    return type(x) is int or hasattr(x, "denominator")


def check_constant(what, constant, x):
    """Raise TypeError where a float constant would turn x, or what is made of it, into a float.

    A Fraction times a float is a float, silently; a Decimal times a float raises, but without the
    remedy.  int is let through, because its divisions give floats everywhere in Python.

    >>> from fractions import Fraction
    >>> check_constant("layer_norm: eps", 1e-05, Fraction(1, 4))
    Traceback (most recent call last):
    TypeError: layer_norm: eps is the float 1e-05, the numbers are Fraction; give it as \
a Fraction, or use floats
    """
    if type(constant) is not float or type(x) in (float, int, complex):
        return
    try:
        kept = type(x * constant) is type(x)
    except TypeError:
        kept = False
    if not kept:
        kind = type(x).__name__
        raise TypeError(f"{what} is the float {constant!r}, the numbers are {kind}; "
                        f"give it as a {kind}, or use floats")


def root_of_count(n, like):
    """The square root of the whole number n, fit to divide numbers of the type of `like`.

    >>> from fractions import Fraction
    >>> root_of_count(4, 1.0), root_of_count(4, Fraction(1))
    (2.0, Fraction(2, 1))
    """
    if type(like) in (float, int, complex):
        return math.sqrt(n)
    root = _integer_root(n)
    return 0 * like + root if root * root == n else sqrt(0 * like + n)
