"""Numbers and texts in a grid, one row a state and one column a position; heat maps.

    grid_lines     texts under the tokens, in panels as wide as the columns allow
    position_heads the heads of the columns: positions, and the tokens there
    level, SHADES  how large a number is among others, as a character
    Heat, heat_of  numbers by state and position, and the scale that they are shaded on
    heat_lines     the heat map

The number stands beside its shade, so nothing is said by the shade alone.

>>> heat = heat_of([("embed", [1.0, 2.0]), ("L0.attn", [4.0, 8.0])], "log")
>>> for line in heat_lines(heat, position_heads(["'a'", "'b'"]), text.Look(precision=1)):
...     print(line)
             0     1
           'a'   'b'
embed    1.0   2.0 -
L0.attn  4.0 * 8.0 @
"""
from collections import namedtuple
from math import log

from . import text

__all__ = ["grid_lines", "position_heads", "SHADES", "level", "Heat", "heat_of", "heat_lines"]


# ---- a grid ----

LONGEST_TEXT = 12


def position_heads(labels, positions=None):
    """Two rows of heads: positions, and the tokens there as text, long ones cut short.

    >>> position_heads(["'a'", "'internationalisation'"])
    [['0', '1'], ["'a'", "'internatio~"]]
    """
    positions = range(len(labels)) if positions is None else positions
    return [[str(t) for t in positions], [cut_short(label) for label in labels]]


def cut_short(label):
    """A text of at most LONGEST_TEXT characters.

    >>> cut_short("'internationalisation'")
    "'internatio~"
    """
    return label if len(label) <= LONGEST_TEXT else label[:LONGEST_TEXT - 1] + "~"


def grid_lines(rows, heads, look):
    """Rows of texts under their heads: pairs (label, texts), heads a list of rows of texts.  The
    columns that fit stand side by side, the others in panels below.

    >>> rows = [("embed", ["1.0", "2.0", "3.0"])]
    >>> for line in grid_lines(rows, [["0", "1", "2"]], text.Look(columns=15)):
    ...     print(line)
             0   1
    embed  1.0 2.0
    <BLANKLINE>
             2
    embed  3.0
    """
    labels = [text.shown(label, look) for label, _ in rows]
    columns = [[text.shown(cell, look) for cell in column]
               for column in zip(*heads, *[cells for _, cells in rows])]
    widths = [max([len(cell) for cell in column]) for column in columns]
    left, lines = max([len(label) for label in labels]) + 1, []
    for begin, end in text.chunked([width + 1 for width in widths], look.columns - left):
        lines += [""] * (begin > 0)
        for k, label in enumerate([""] * len(heads) + labels):
            cells = [f" {columns[i][k]:>{widths[i]}}" for i in range(begin, end)]
            line = f"{label:<{left}}{''.join(cells)}".rstrip()
            lines += text.painted("heading", [line], look) if k < len(heads) else [line]
    return lines


# ---- heat ----

SHADES = " .:-=+*#%@"


class Heat(namedtuple("Heat", ("rows", "scale", "low", "high", "first_left_out"))):
    """Numbers to be shaded.

    rows              pairs (name, a number or None for each position)
    scale             "linear", from 0, or "log", from the smallest
    low, high         the ends of the scale
    first_left_out    whether position 0 is so large that the scale is made without it
    """


# position 0 is left out where it is so many times as large as all else
OUTLYING = 3


def heat_of(rows, scale):
    """A Heat of pairs (name, a number or None for each position).

    >>> heat_of([("embed", [90.0, 2.0, 4.0])], "linear")[1:]
    ('linear', 0, 4.0, True)
    """
    def sizes(cells):
        return [abs(a) for a in cells if a is not None and a - a == 0]

    first = [a for _, cells in rows for a in sizes(cells[:1])]
    rest = [a for _, cells in rows for a in sizes(cells[1:])]
    left_out = max(rest + [0]) > 0 and max(first + [0]) > OUTLYING * max(rest)
    counted = rest if left_out else first + rest
    above_0 = [a for a in counted if a > 0]
    low = min(above_0) if scale == "log" and above_0 else 0
    return Heat(rows, scale, low, max(counted + [0]), left_out)


def level(x, heat):
    """Where a number stands on a Heat's scale: the shade at 0 to 9; "?" where it is none.

    >>> heat = Heat([], "linear", 0, 4.0, False)
    >>> level(0.0, heat), level(2.0, heat), level(-4.0, heat), level(99.0, heat)
    (' ', '+', '@', '@')
    """
    if x is None or x - x != 0:
        return "?"
    x, low, high = abs(x), heat.low, heat.high
    if x <= low or high <= low:
        return SHADES[0] if x <= low else SHADES[-1]
    share = log(x / low) / log(high / low) if heat.scale == "log" else (x - low) / (high - low)
    return SHADES[min(len(SHADES) - 1, int(share * (len(SHADES) - 1) + 0.5))]


def heat_lines(heat, heads, look):
    """A heat map: every number with its shade behind it."""
    rows = [(name, [f"{text.figure(a, look)} {level(a, heat)}" for a in cells])
            for name, cells in heat.rows]
    return grid_lines(rows, heads, look)
