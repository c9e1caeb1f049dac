"""Rounded tensors, and how one of them follows from others: times what, through which norm.

Numbers that a framework wrote down are rounded, so nothing is equal and everything nearly is.
Here each tensor carries its noise, how far rounding may have moved every entry, and two of them
agree where the noise of both explains their difference.  A number that was rounded to a format is
off by at most u * |number|, with u = 2**-digits.  Tensors are [n_tokens][n], of floats.  This
module is part of the portable core.

    FORMATS, unit_of, format_of    the formats, and the coarsest that holds all of some numbers
    Rounded, rounded, plus, minus  numbers and their noise
    Gap, gaps, worst_of            where two tensors are furthest from what rounding explains
    least_squares                  the factors that bring some columns closest to another one
    Fit, factors, channel_factors  target = c * x, with one number c, or one for every channel
    EPS, normalized                what a norm does before its gain

>>> x = rounded([[1.1, 2.1], [3.1, -1.1], [0.7, 4.1]], 2.0 ** -53)
>>> y = rounded([[2.2, -2.1], [6.2, 1.1], [1.4, -4.1]], 2.0 ** -53)     # twice, and minus once
>>> factors([x], y) is None
True
>>> [["%.3f" % c for c in of_x] for of_x in channel_factors([columns_of(x)], y).factors]
[['2.000', '-1.000']]
"""
from collections import namedtuple
from math import frexp, inf, ldexp

from ..floats import FORMATS as NARROW
from ..floats import Format
from ..linalg import add, dot, multiply, scale, subtract, transpose
from ..norms import layer_norm_parts, rms_norm_parts
from ..scalar import sqrt

__all__ = ["FORMATS", "unit_of", "format_of", "Rounded", "rounded", "ones", "plus", "minus",
           "SLACK", "Gap", "worst_of", "gaps", "gap_of", "least_squares", "Fit",
           "factors", "flat", "columns_of", "channel_factors", "EPS", "normalized"]


# ---- formats ----

# the coarsest first
FORMATS = sorted(NARROW, key=lambda form: form.digits) + [Format("float64", 53, -1074, 1024)]


def unit_of(name):
    """The unit roundoff of a format, how much of itself a number may lose.

    >>> unit_of("bfloat16"), unit_of("float64") == 2.0 ** -53
    (0.00390625, True)
    """
    for form in FORMATS:
        if form.name == name:
            return 2.0 ** -form.digits
    raise ValueError(f"unit_of: no format {name!r}; there are "
                     + ", ".join([form.name for form in FORMATS]))


def format_of(numbers):
    """The name of the coarsest format that holds all of a list of finite floats.

    Short numbers such as 0.5 fit everywhere and say nothing.  Numbers that were rounded to a
    format use its last place in half of all cases, so a format of which not one number in sixteen
    does is not meant.

    >>> format_of([0.10009765625, 0.69921875]), format_of([0.1, 0.7]), format_of([0.5, 1.5])
    ('bfloat16', 'float64', 'float64')
    """
    numbers = [x for x in numbers if x != 0]
    for form in FORMATS[:-1]:
        n_last = 0
        for x in numbers:
            n_steps = ldexp(x, -max(frexp(x)[1] - form.digits, form.smallest))
            if n_steps % 1 != 0 or abs(x) >= 2.0 ** form.limit:
                break
            n_last += n_steps % 2 == 1
        else:
            if 16 * n_last > len(numbers):
                return form.name
    return FORMATS[-1].name


# ---- tensors and their noise ----

class Rounded(namedtuple("Rounded", ("numbers", "noise"))):
    """A tensor [n_tokens][n], and how far rounding may have moved each of its entries."""


def rounded(x, unit):
    """A tensor that was rounded to a format with this unit roundoff.

    >>> rounded([[4.0, -2.0]], 0.25)
    Rounded(numbers=[[4.0, -2.0]], noise=[[1.0, 0.5]])
    """
    return Rounded(x, [[unit * abs(a) for a in row] for row in x])


def ones(x):
    """1 without noise in place of every entry of a Rounded.

    >>> ones(rounded([[4.0, -2.0]], 0.25))
    Rounded(numbers=[[1.0, 1.0]], noise=[[0.0, 0.0]])
    """
    return rounded([[1.0] * len(row) for row in x.numbers], 0.0)


def plus(x, y):
    """The sum of two Rounded.

    >>> plus(rounded([[4.0, -2.0]], 0.25), rounded([[2.0, 1.0]], 0.5))
    Rounded(numbers=[[6.0, -1.0]], noise=[[2.0, 1.0]])
    """
    return Rounded(add(x.numbers, y.numbers), add(x.noise, y.noise))


def minus(x, y):
    """The difference of two Rounded; their noise adds up.

    >>> minus(rounded([[4.0, -2.0]], 0.25), rounded([[2.0, 1.0]], 0.5))
    Rounded(numbers=[[2.0, -3.0]], noise=[[2.0, 1.0]])
    """
    return Rounded(subtract(x.numbers, y.numbers), add(x.noise, y.noise))


# ---- gaps ----

# Noise is that of the numbers as they were written down.  The additions before that round as well,
# a norm rounds in each of its few operations, and a fit moves with all of it.
SLACK = 4


class Gap(namedtuple("Gap", ("error", "tolerance", "row", "channel"))):
    """The difference of two tensors at one entry: the error, what rounding explains, the place."""

    @property
    def multiple(self):
        """How many times what rounding explains the error is."""
        if self.tolerance > 0:
            return self.error / self.tolerance
        return inf if self.error > 0 else 0.0

    @property
    def ok(self):
        """Whether rounding explains the error."""
        return self.error <= self.tolerance


def worst_of(found):
    """The Gap of some that is the largest multiple of its tolerance.

    >>> worst_of([Gap(1.0, 2.0, 0, 0), Gap(0.5, 0.25, 1, 0)])
    Gap(error=0.5, tolerance=0.25, row=1, channel=0)
    """
    multiples = [gap.multiple for gap in found]
    return found[multiples.index(max(multiples))]


def gap_of(differences, noise, t=0):
    """The worst Gap of one row, from differences [n] and their noise [n].

    >>> gap_of([0.0, -3.0, 1.0], [0.25, 1.0, 0.25])
    Gap(error=1.0, tolerance=1.0, row=0, channel=2)
    """
    multiples = [abs(a) / b if b > 0 else inf * abs(a) if a != 0 else 0.0
                 for a, b in zip(differences, noise)]
    i = multiples.index(max(multiples))
    return Gap(abs(differences[i]), SLACK * noise[i], t, i)


def gaps(x, y):
    """The worst Gap of every row of two Rounded [n_tokens][n] -> [n_tokens].

    >>> gaps(rounded([[1.0, 2.0]], 0.125), rounded([[1.0, 4.0]], 0.125))
    [Gap(error=2.0, tolerance=3.0, row=0, channel=1)]
    """
    difference = minus(x, y)
    return [gap_of(row, noise, t)
            for t, (row, noise) in enumerate(zip(difference.numbers, difference.noise))]


# ---- factors ----

def least_squares(columns, y):
    """Return (factors, rest): the factors [p] with which columns [p][n] come closest to y [n], and
    what they leave of it [n].

    Gram and Schmidt: every column is freed of those before it, and y of all.  Each is done twice,
    which leaves nothing to be seen of the first round's rounding.  A column that those before it
    make up has the factor 0.

    >>> columns = [[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    >>> least_squares(columns, [1.0, 3.0, 1.0, 5.0])
    ([1.0, 3.0], [0.0, -1.0, 0.0, 1.0])
    """
    directions, made_of = [], []
    for column in columns:
        along, rest = freed(column, directions)
        length = sqrt(dot(rest, rest))
        if length <= 1e-10 * sqrt(dot(column, column)):
            length, rest = inf, [0.0] * len(rest)
        directions.append([a / length for a in rest])
        made_of.append(along + [length])
    along, rest = freed(y, directions)
    found = [0.0] * len(columns)
    for j in reversed(range(len(columns))):
        others = sum([made_of[k][j] * found[k] for k in range(j + 1, len(columns))])
        found[j] = (along[j] - others) / made_of[j][j]
    return found, rest


def freed(v, directions):
    """Return (along, rest): how far v [n] reaches along each of some perpendicular unit vectors,
    and what is left of it.

    >>> freed([3.0, 4.0], [[1.0, 0.0]])
    ([3.0], [0.0, 4.0])
    """
    along, rest = [0.0] * len(directions), list(v)
    for _ in range(2):
        for k, direction in enumerate(directions):
            step = dot(direction, rest)
            along[k] += step
            rest = [a - step * b for a, b in zip(rest, direction)]
    return along, rest


class Fit(namedtuple("Fit", ("factors", "gap"))):
    """Factors that bring features to a target: for each feature a number, or a list of them, one
    for every channel; and the Gap where they do so least well.
    """


def fitted(columns, y):
    """Return (factors [p], the worst Gap), of a fit of columns to y, each a pair (numbers [n],
    noise [n]); the Gap's channel is a place in y.

    Entries count as much as they are exact.  That depends on the factors, so there are two rounds,
    the second of them with the noise that the first one's factors make:

        noise = noise of y + |factor| * noise of the column, added up
    """
    numbers, noise = y
    for _ in range(2):
        floor = max(max(noise) / 1024, 1e-150) if any(noise) else 1.0
        weights = [1 / max(a, floor) for a in noise]
        found, rest = least_squares([multiply(column, weights) for column, _ in columns],
                                    multiply(numbers, weights))
        noise = y[1]
        for c, (_, of_column) in zip(found, columns):
            noise = add(noise, scale(abs(c), of_column))
    return found, gap_of([a / w for a, w in zip(rest, weights)], noise)


def factors(features, target):
    """The Fit of target = c[0] * features[0] + ..., all of them Rounded; None where rounding does
    not explain what is left, or where there are too few numbers to tell.

    >>> x, y = rounded([[1.0, 2.0, 4.0]], 2.0 ** -53), rounded([[0.5, 1.0, 2.0]], 2.0 ** -53)
    >>> ["%.3f" % c for c in factors([x], y).factors]
    ['0.500']
    """
    n_tokens, n = len(target.numbers), len(target.numbers[0])
    # what does not hold of the first token does not hold of all, and is seen sooner
    for rows in (1, n_tokens):
        columns, y = [flat(x, rows) for x in features], flat(target, rows)
        if len(y[0]) >= len(columns) + 2:
            found, gap = fitted(columns, y)
            if not gap.ok:
                return None
    if len(y[0]) < len(columns) + 2:
        return None
    return Fit(found, Gap(gap.error, gap.tolerance, gap.channel // n, gap.channel % n))


def flat(x, n_rows=None):
    """The first rows of a Rounded, or all, as a pair of lists.

    >>> flat(rounded([[1.0, 2.0], [3.0, 4.0]], 0.5))
    ([1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 1.5, 2.0])
    """
    n_rows = len(x.numbers) if n_rows is None else n_rows
    return ([a for row in x.numbers[:n_rows] for a in row],
            [a for row in x.noise[:n_rows] for a in row])


def columns_of(x):
    """A Rounded as a feature of channel_factors: a function from a channel to the pair (numbers
    [n_tokens], noise [n_tokens]).

    >>> columns_of(rounded([[1.0, 2.0], [3.0, 4.0]], 0.5))(1)
    ([2.0, 4.0], [1.0, 2.0])
    """
    return lambda i: ([row[i] for row in x.numbers], [row[i] for row in x.noise])


def channel_factors(features, target):
    """As factors, with factors of its own for every channel: c[0][i] * features[0][t][i] + ...

    A feature is a function from a channel to its column, see columns_of: where the first channel
    says no, the others are not asked.  Tokens tell: there must be more of them than features.

    >>> tensors = [[1.0], [2.0]], [[3.0], [6.0]], [[3.0], [7.0]]
    >>> x, y, z = [rounded(tensor, 2.0 ** -53) for tensor in tensors]
    >>> ["%.3f" % c for c in channel_factors([columns_of(x)], y).factors[0]]
    ['3.000']
    >>> channel_factors([columns_of(x)], z) is None
    True
    """
    if len(target.numbers) <= len(features):
        return None
    found, worst, of_target = [], [], columns_of(target)
    for i in range(len(target.numbers[0])):
        of_channel, gap = fitted([feature(i) for feature in features], of_target(i))
        if not gap.ok:
            return None
        found.append(of_channel)
        worst.append(Gap(gap.error, gap.tolerance, gap.channel, i))
    return Fit(transpose(found), worst_of(worst))


# ---- norms ----

# what models add inside a norm's root, the most common first
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 0.0)


def normalized(x, kind, eps):
    """A Rounded as a norm leaves it before its gain, as a feature of channel_factors;
    ZeroDivisionError where a row cannot be divided.

    An entry that is off moves itself by 1 / scale, and the mean and the scale of its row by less:

        noise[i] / scale + mean(noise) / scale * (1 + |normalized[i]|)

    >>> normalized(Rounded([[3.0, 5.0]], [[0.5, 0.5]]), "layer", 0.0)(1)
    ([1.0], [1.5])
    """
    scales, rows = (layer_norm_parts(x.numbers, eps)[1:] if kind == "layer"
                    else rms_norm_parts(x.numbers, eps))
    levels = [sum(noise) / len(noise) for noise in x.noise]

    def column(i):
        return [row[i] for row in rows], [
            (noise[i] + level * (1 + abs(row[i]))) / divisor
            for noise, level, row, divisor in zip(x.noise, levels, rows, scales)]

    return column
