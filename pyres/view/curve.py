"""A curve as lines of text: the loss of a training run, falling.

    curve_lines    values by step -> lines that fit
    averaged       a curve's values in fewer columns, the mean of each

>>> from .text import Look
>>> print("\\n".join(curve_lines([4.0, 3.0, 2.0, 1.0], Look(columns=20, ascii=True), n_rows=4)))
4.000 |*
      | *
      |  *
1.000 |   *
"""
from ..show import number

__all__ = ["curve_lines", "averaged"]


def averaged(values, n_columns):
    """At most n_columns values, each the mean of the ones that fall into its column.

    >>> averaged([1.0, 3.0, 5.0, 7.0], 2), averaged([1.0, 2.0], 5)
    ([2.0, 6.0], [1.0, 2.0])
    """
    n = min(len(values), n_columns)
    cuts = [i * len(values) // n for i in range(n + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in zip(cuts, cuts[1:])]


def curve_lines(values, look, n_rows=8):
    """The values from left to right, the largest at the top; what is not finite is left out."""
    finite = [value for value in values if value - value == 0]
    if not finite:
        return []
    edge = max(len(number(value, look.precision)) for value in (min(finite), max(finite)))
    columns = averaged(finite, look.columns - edge - 2)
    low, high = min(columns), max(columns)
    mark = "*" if look.ascii else "•"
    rows = [[" "] * len(columns) for _ in range(n_rows)]
    for i, value in enumerate(columns):
        height = (high - value) / (high - low) if high > low else 1.0
        rows[round(height * (n_rows - 1))][i] = mark
    labels = [number(high, look.precision)] + [""] * (n_rows - 2) + [number(low, look.precision)]
    return [f"{label:>{edge}} |{''.join(row).rstrip()}" for label, row in zip(labels, rows)]
