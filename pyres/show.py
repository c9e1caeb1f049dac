"""Numbers as documentation prints them: alike on every Python, and never -0.0.

The last digits of a float may differ between Python versions and machines.  What a page prints is
therefore rounded, or exact and written as a fraction.

    rounded      a tensor with every number rounded to a few decimals
    fractions    a tensor of exact numbers as text, 3/2 for Fraction(3, 2)
    number       one number as text, with as many decimals as asked for; "nan", "inf", "-inf"
    quoted       a token's text, quoted and escaped, so that spaces and newlines show

>>> rounded([0.1 + 0.2, -1e-17, 2 / 3])
[0.3, 0.0, 0.667]
"""
import math

__all__ = ["rounded", "fractions", "number", "quoted"]


def rounded(x, digits=3):
    """x, a number or a tensor of any depth, rounded to so many decimals.

    >>> rounded([[1 / 3, -0.00001], [2.0, 5]], 2)
    [[0.33, 0.0], [2.0, 5]]
    """
    if isinstance(x, (list, tuple)):
        return [rounded(part, digits) for part in x]
    if isinstance(x, complex):
        return rounded(x.real, digits) + rounded(x.imag, digits) * 1j
    return float("%.*f" % (digits, x)) + 0.0 if type(x) is float else x     # -0.0 + 0.0 is 0.0


def fractions(x):
    """x, a number or a tensor of exact numbers, as text.

    >>> from fractions import Fraction
    >>> fractions([[Fraction(3, 2), Fraction(4)], [-1, 0]])
    '[[3/2, 4], [-1, 0]]'
    """
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join([fractions(part) for part in x]) + "]"
    return str(x)


def number(x, digits=3):
    """One number as text with so many decimals, a minus only where a digit is left of it.

    >>> number(1.5), number(-0.0001), number(2, 1), number(float("-inf"))
    ('1.500', '0.000', '2.0', '-inf')
    """
    if x != x:
        return "nan"
    if x in (math.inf, -math.inf):
        return "inf" if x > 0 else "-inf"
    return "%.*f" % (digits, rounded(float(x), digits))


def quoted(text):
    r"""A token's text in single quotes, with everything that would not show escaped.

    >>> print(quoted("a b"), quoted("\n"), quoted("it's"))
    'a b' '\n' "it's"
    """
    return repr(text)
