"""Rotary positions: pairs of a head's channels turn by angles that grow with the position.

Queries and keys turned so have inner products that depend on how far apart they stand, not on
where (Su et al., "RoFormer", 2021).  Pair j of a vector at position t turns by t * frequency[j]:

    out_first  = first * cos - second * sin
    out_second = second * cos + first * sin

Which two channels make pair j is a convention, and checkpoints differ in it:

    "interleaved"   channels 2j and 2j + 1: the original, GPT-J, llama2.c
    "half"          channels j and j + d_rotary / 2: Hugging Face Llama, NeoX

Both are the identity at position 0, so a mix-up shows only further on.  d_rotary, the number of
channels that turn, is twice the number of frequencies; channels from d_rotary on pass through.

    frequencies                    theta ** (-2j / d_rotary)
    rescaled_frequencies           the slow ones divided by a factor, for a longer context
    angles                         cos and sin for a list of positions
    rotate, rotate_backward        turn, and turn back: the transpose of a rotation is its inverse

>>> from pyres.show import rounded
>>> table = angles([1], frequencies(4, 10000.0))
>>> rounded(rotate([[1.0, 2.0, 3.0, 4.0]], table, "half"), 9)
[[-1.984110649, 1.959900667, 2.462377902, 4.019799668]]
>>> rounded(rotate([[1.0, 2.0, 3.0, 4.0]], table, "interleaved"), 9)
[[-1.142639664, 1.922075597, 2.959850668, 4.029799502]]
"""
import math

from .linalg import all_floats, check_length, check_numbers, check_rows
from .scalar import check_constant

__all__ = ["frequencies", "rescaled_frequencies", "angles", "rotate", "rotate_backward"]


def frequencies(d_rotary, theta=10000.0):
    """Radians a position, one for each of the d_rotary / 2 pairs: theta ** (-2j / d_rotary).

    They count by the rotated width, not by the head's.  Raises ValueError where d_rotary is odd.

    >>> frequencies(4, 10000.0)
    [1.0, 0.01]
    """
    if not theta > 0:
        raise ValueError(f"frequencies: theta is {theta}, expected a number above 0")
    if d_rotary % 2 or d_rotary < 0:
        raise ValueError(f"frequencies: d_rotary is {d_rotary}; "
                         "channels turn in pairs, so it must be even")
    return [theta ** (-2 * j / d_rotary) for j in range(d_rotary // 2)]


def rescaled_frequencies(frequencies, factor, low, high, n_ctx):
    """Frequencies for a context about `factor` times as long as n_ctx, that of the training.

    A pair makes turns = n_ctx * frequency / (2 * pi) full turns over that context:

        turns >= high      frequency             it saw every angle, and tells near tokens apart
        turns <= low       frequency / factor    it never turned so far as a longer context asks
        in between         share * frequency + (1 - share) * frequency / factor,
                           share = (turns - low) / (high - low)

    That is Llama 3.1's rule, with factor 8, low 1, high 4, n_ctx 8192 (`apply_scaling` in the
    model code that Meta released with it, 2024).  Raises ValueError where low is not below high,
    or factor is not above 0.

    >>> turns = [5, 4, 2.5, 1, 0.5]
    >>> rescaled = rescaled_frequencies([2 * math.pi * a / 8 for a in turns], 2, 1, 4, 8)
    >>> [round(frequency * 8 / (2 * math.pi), 9) for frequency in rescaled]
    [5.0, 4.0, 1.875, 0.5, 0.25]
    """
    if not 0 <= low < high:
        raise ValueError(f"rescaled_frequencies: low is {low} and high is {high}, "
                         "expected 0 <= low < high")
    if not factor > 0:
        raise ValueError(f"rescaled_frequencies: factor is {factor}, expected a number above 0")
    shares = [min(1, max(0, (n_ctx * f / (2 * math.pi) - low) / (high - low)))
              for f in frequencies]
    return [share * f + (1 - share) * f / factor for share, f in zip(shares, frequencies)]


def angles(positions, frequencies):
    """The table of rotations: positions [n_tokens], frequencies [d_rotary / 2] ->
    [n_tokens][d_rotary / 2] pairs (cos, sin).

    >>> angles([0], [1.0, 0.01])
    [[(1.0, 0.0), (1.0, 0.0)]]
    """
    return [[(math.cos(t * frequency), math.sin(t * frequency)) for frequency in frequencies]
            for t in positions]


def rotate(x, table, pairing):
    """Turn each row's pairs: x [n_tokens][d_head], a table of angles -> [n_tokens][d_head].

    The table is [n_tokens][d_rotary / 2] pairs (cos, sin).  Raises ValueError where its length is
    not x's, or the pairing is unknown.  Exact pairs, such as (3/5, 4/5), turn exact numbers
    exactly:

    >>> from fractions import Fraction
    >>> table = [[(Fraction(3, 5), Fraction(4, 5))]]
    >>> [[str(a) for a in row] for row in rotate([[5, 10, 7]], table, "half")]
    [['-5', '10', '7']]
    """
    check_length("rotate", "the table of angles", table, len(x))
    if table:
        check_rows("rotate", x, len(x[0]))
        if 2 * len(table[0]) > len(x[0]):
            raise ValueError(f"rotate: {len(table[0])} pairs of channels, a row has {len(x[0])}")
        check_rows("rotate: the table of angles", table, len(table[0]))
    pairs = [pair(j, len(turns), pairing) for turns in table[:1] for j in range(len(turns))]
    return [_turned(row, pairs, turns) for row, turns in zip(x, table)]


def _turned(row, pairs, turns):
    out = list(row)
    if turns and not all_floats(row):
        check_numbers("rotate", row)
        for a in row:
            check_constant("rotate: a cosine", turns[0][0], a)
    for (i, k), (cos, sin) in zip(pairs, turns):
        out[i] = row[i] * cos - row[k] * sin
        out[k] = row[k] * cos + row[i] * sin
    return out


def pair(j, n_pairs, pairing):
    """The two channels of pair j.

    >>> pair(1, 4, "interleaved"), pair(1, 4, "half")
    ((2, 3), (1, 5))
    """
    if pairing == "interleaved":
        return 2 * j, 2 * j + 1
    if pairing == "half":
        return j, j + n_pairs
    raise ValueError(f"rotate: no pairing {pairing!r}; there are 'half' and 'interleaved'")


def rotate_backward(d_out, table, pairing):
    """The gradient at x, given d_out, the gradient at rotate's output: every pair turned back.

    >>> from pyres.show import rounded
    >>> table = angles([2], [0.5])
    >>> rounded(rotate_backward(rotate([[1.0, 2.0]], table, "half"), table, "half"))
    [[1.0, 2.0]]
    """
    # forward: (cos -sin; sin cos), whose transpose has the sign of the sine changed
    return rotate(d_out, [[(cos, -sin) for cos, sin in turns] for turns in table], pairing)
