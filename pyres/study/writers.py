"""Who writes to the stream, as finely as one asks, and the proof that nobody is missing.

A partition is a list of rows, writers and what they wrote, that sum to a state of the stream.  It
is as fine as one asks: branches, heads, source tokens, neurons (see `parts`).  It knows that every
writer is there once, as a row or in all its parts, and that the rows sum to the stream, and proves
it.  The rows are what was really added, so an edited run has a partition too, and after set_state
it begins with the state that was set.  This module is part of the portable core.

    Partition, partition      rows that sum to a state of the stream, with the proof
    prove                     the proof, for any list of rows
    at                        a partition's rows at one position
    shares                    each row's signed share of the sum
    Measure, measures         lengths and cosines
    Cancellation, cancellation, opposed
                              how much of what was written cancels, and which rows do
    write                     what one writer wrote, from `parts`

>>> from pyres.model import run, small_model
>>> split = partition(run(small_model(), [0]), attn="head", mlp="neuron")
>>> split.rows
[('embed', [[16.0]]), ('L0.attn.H0', [[8.0]]), ('L0.attn.bias', [[4.0]]), ('L0.mlp.N0', [[42.0]])]
>>> [(check.error, check.ok) for check in split.checks]
[(0, True), (0.0, True)]
"""
from collections import namedtuple

from ..edits import few
from ..linalg import add, check_like, dot, sum_rows
from ..scalar import sqrt
from ..sums import check_sum, checked, sum_terms
from .parts import cut, finer_write, parts_of, place, taken_apart, write

__all__ = ["Partition", "partition", "prove", "at", "shares", "Measure", "measures",
           "Cancellation", "cancellation", "opposed", "write"]


# ---- partitions ----

GRAINS = {"attn": ("branch", "group", "head", "source"), "mlp": ("branch", "neuron"),
          "embed": ("whole", "parts")}


class Partition(namedtuple("Partition", ("rows", "state", "positions", "checks"))):
    """Who wrote a state of the stream.

    rows         pairs (name, write [n_positions][d_model]), in the order of the run
    state        the name of the state that they sum to
    positions    the positions that the writes are of
    checks       what `prove` found, two SumChecks
    """


def partition(run_record, attn="branch", mlp="branch", embed="whole", only=None, state=None,
              position=None):
    """Take a run's stream apart -> Partition.

    attn        "branch", "group", "head" or "source": how fine every attention branch is
    mlp         "branch" or "neuron"
    embed       "whole" or "parts", token and position
    only        names of the branches that this holds for, ["L1.attn"]; the others stay whole
    state       which state the rows sum to, by name; the last, which is the final stream
    position    one position; every row then has one vector

    The rows of all neurons at all positions are many numbers: d_mlp * d_model for each block and
    position.  `only` and `position` are for that.

    Raises ValueError for a grain, a branch, a state or a position that is not there; where an edit
    replaced or shifted what is to be taken apart; see `write`.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0, 1])
    >>> partition(r, attn="source", position=1).rows[1:3]
    [('L0.attn.H0.S0', [[4.0]]), ('L0.attn.H0.S1', [[2.0]])]
    >>> partition(r, "source", "neuron", only=["L0.mlp"], position=1).rows[1:]
    [('L0.attn', [[10.0]]), ('L0.mlp.N0', [[27.0]])]
    >>> partition(r, state="L0.attn", position=0).rows
    [('embed', [[16.0]]), ('L0.attn', [[12.0]])]
    """
    r = cut(run_record, state, None if position is None else [position])
    wholes, rows = sum_terms(r)[1], []
    n_steps = {kind: n_steps_to(kind, grain)
               for kind, grain in (("attn", attn), ("mlp", mlp), ("embed", embed))}
    for name in only or []:
        if name not in dict(wholes) or not parts_of(r, name):
            raise ValueError(f"partition: only has {name!r}, which has no parts here; there are "
                             f"{few([whole for whole, _ in wholes if parts_of(r, whole)])}")
    for whole, update in wholes:
        n = n_steps[place(whole)[1]] if only is None or whole in only else 0
        names = taken_apart(r, whole, n)
        rows += [(whole, update)] if names == [whole] else [
            (name, finer_write(r, name)) for name in names]
    return Partition(rows, r.states[-1][0], r.positions, proof(r, rows))


def n_steps_to(kind, grain):
    """How many steps finer than a branch a grain is.

    >>> n_steps_to("attn", "head"), n_steps_to("embed", "whole")
    (2, 0)
    >>> n_steps_to("mlp", "head")
    Traceback (most recent call last):
    ValueError: partition: no mlp='head'; there are branch, neuron
    """
    if grain not in GRAINS[kind]:
        raise ValueError(f"partition: no {kind}={grain!r}; there are {', '.join(GRAINS[kind])}")
    return GRAINS[kind].index(grain)


def prove(run_record, split):
    """Prove that a Partition's rows are all of a run's state and nothing twice -> two SumChecks.

        every writer = one row, or all its parts    error: how many are missing, or too many
        sum of rows = stream after the state        error: the largest difference

    A finer row is a matrix product of its own, so it is rounded differently than the branch was.
    With n the number of rows and of terms behind one, rounding explains n * 2**-52 times the sum
    of the rows' sizes where it is largest.  `partition` has done this; call it on rows that were
    changed, or put together by hand.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0])
    >>> split = partition(r, attn="head")
    >>> [check.rule for check in prove(r, split)]
    ['every writer = one row, or all its parts', 'sum of rows = stream after L0.mlp']
    >>> twice = split.rows + [("L0.attn", [[12.0]])]
    >>> [check.error for check in prove(r, Partition(twice, "L0.mlp", [0], None))]
    [2, 12.0]
    """
    return proof(cut(run_record, split.state, split.positions), split.rows)


def proof(r, rows):
    """The checks of `prove`, of a Cut."""
    names, wholes = [name for name, _ in rows], [name for name, _ in sum_terms(r)[1]]
    found = set(names)
    covers = [cover(r, whole, found) for whole in wholes]
    reached = set([name for names_in in covers for name in names_in or []])
    wrong = covers.count(None) + len(names) - len(reached)
    state, want = r.states[-1]
    for name, row in rows:
        check_like("prove", f"the row {name}", row, want)
    return [checked("every writer = one row, or all its parts", wrong, 0, exact=True),
            check_sum(f"sum of rows = stream after {state}", [row for _, row in rows], want,
                      0 if found == set(wholes) else terms_behind(r))]


def cover(r, name, found):
    """The names among those found that make up a writer; None where a part of it is missing."""
    if name in found:
        return [name]
    covers = [cover(r, part, found) for part in parts_of(r, name)]
    return None if not covers or None in covers else [name for names in covers for name in names]


def terms_behind(r):
    """How many terms the longest inner product behind a finer row has, and its norms' means."""
    blocks = r.model.config.blocks
    return r.model.config.d_model + max(
        [0] + [max(block.d_mlp, block.attention.n_heads * block.attention.d_head)
               for block in blocks])


def at(split, position):
    """A Partition's rows at one position, as pairs (name, [d_model]).

    >>> from pyres.model import run, small_model
    >>> at(partition(run(small_model(), [0, 1])), 1)
    [('embed', [8.0]), ('L0.attn', [10.0]), ('L0.mlp', [27.0])]
    """
    if position not in split.positions:
        raise ValueError(f"partition: position {position} is not in it; it has "
                         f"{few([str(t) for t in split.positions])}")
    t = split.positions.index(position)
    return [(name, rows[t]) for name, rows in split.rows]


# ---- how much of the stream is whose ----

def shares(split, position):
    """Each row's share of the sum of all, as pairs (name, share); the shares sum to 1.

        share = dot(write, stream) / dot(stream, stream)

    It is signed: what points against the stream has a negative share, and then others have more
    than all.  Raises ValueError where the stream is zero, of which there are no shares.

    >>> from pyres.model import run, small_model
    >>> from pyres.edits import scale
    >>> r = run(small_model(), [0], [scale("L0.mlp", -0.5)])             # 16 + 12 - 21 = 7
    >>> [(name, round(share, 3)) for name, share in shares(partition(r), 0)]
    [('embed', 2.286), ('L0.attn', 1.714), ('L0.mlp', -3.0)]
    """
    rows = at(split, position)
    stream = sum_rows([row for _, row in rows])
    size = dot(stream, stream)
    if size == 0:
        raise ValueError(f"shares: the stream is zero at position {position}, "
                         "so nothing has a share of it; measures gives the lengths")
    return [(name, dot(row, stream) / size) for name, row in rows]


def length(v):
    """The length of a vector [n], the root of the sum of its squares.

    >>> length([3.0, 4.0])
    5.0
    """
    return sqrt(dot(v, v))


def cosine(u, v):
    """The cosine of the angle between two vectors [n]; None where one is zero: there is no angle.

    >>> cosine([1.0, 0.0], [-2.0, 0.0]), cosine([1.0, 0.0], [0.0, 0.0])
    (-1.0, None)
    """
    lengths = length(u) * length(v)
    return dot(u, v) / lengths if lengths else None


class Measure(namedtuple("Measure", ("name", "length", "cosine", "after"))):
    """A writer at one position.

    name      its name
    length    of its write
    cosine    of its write with the stream before it; None where one of them is zero
    after     the length of the stream with it

    With x the stream before and u the write, after² = |x|² + 2 * |x| * |u| * cosine + |u|².
    """


def measures(split, position):
    """Lengths and cosines of a Partition's rows at one position -> Measures.  The stream before a
    row is the sum of the rows before it.

    >>> from pyres.model import run, small_model
    >>> measures(partition(run(small_model(), [0])), 0)[1]
    Measure(name='L0.attn', length=12.0, cosine=1.0, after=28.0)
    """
    found, before = [], None
    for name, row in at(split, position):
        after = row if before is None else add(before, row)
        angle = None if before is None else cosine(row, before)
        found.append(Measure(name, length(row), angle, length(after)))
        before = after
    return found


class Cancellation(namedtuple("Cancellation", ("written", "left", "factor", "against"))):
    """How much of what was written is left.

    written    the sum of the writes' lengths
    left       the length of their sum
    factor     written / left: 1 where all point one way
    against    the sum of the negative shares: how much of the stream's length was written against
               it, and made good by others
    """


def cancellation(split, position):
    """How much a Partition's rows cancel at one position -> Cancellation.  Raises ValueError where
    nothing is left.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0], [scale("L0.mlp", -0.5)])             # 16 + 12 - 21
    >>> cancellation(partition(r), 0)
    Cancellation(written=49.0, left=7.0, factor=7.0, against=-3.0)
    """
    found = shares(split, position)
    rows = [row for _, row in at(split, position)]
    written, left = sum([length(row) for row in rows]), length(sum_rows(rows))
    return Cancellation(written, left, written / left, sum([share for _, share in found
                                                            if share < 0]))


def opposed(split, position, n=3):
    """The n pairs of rows that cancel most, as triples (name, name, inner product), the most
    negative first; all pairs are looked at.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> opposed(partition(run(small_model(), [0], [scale("L0.mlp", -0.5)])), 0)
    [('embed', 'L0.mlp', -336.0), ('L0.attn', 'L0.mlp', -252.0)]
    """
    rows = at(split, position)
    pairs = [(dot(u, v), i, j) for i, (_, u) in enumerate(rows)
             for j, (_, v) in enumerate(rows) if i < j]
    return [(rows[i][0], rows[j][0], product) for product, i, j in sorted(pairs)[:n]
            if product < 0]
