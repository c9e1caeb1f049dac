"""Views of a run: the numbers that a picture shows, here; the pictures, in the modules.

Everything drawn was computed by the package.  This page picks it out of the records, once for
every kind of picture, and takes lengths and angles.

    Selection, between the states and writers of some of a run's blocks
    Row, trace_rows    what each writer did to the stream at one position

    text, terminal     results as lines, and where they are written
    record             results as JSON has them
    files              what was written into files

>>> states = [("embed", [[3.0, 4.0]]), ("L0.attn", [[3.0, 0.0]])]
>>> writers = [("embed", [[3.0, 4.0]]), ("L0.attn", [[0.0, -4.0]])]
>>> for row in trace_rows(Selection(states, writers), position=0):
...     print(row.name, row.state_length, row.update_length, row.cosine)
embed 5.0 5.0 None
L0.attn 3.0 4.0 -0.8
"""
from collections import namedtuple

from ..study.writers import cosine, length

__all__ = ["Selection", "between", "Row", "trace_rows"]


class Selection(namedtuple("Selection", ("states", "writers"))):
    """Some of a run: pairs (name, stream) and pairs (name, update), each [n_tokens][d_model].  The
    first state is what the writers begin from, or the embedding, which is a writer itself.
    """


def between(run, begin, end):
    """The Selection of blocks begin to end - 1 of a Run, and of the state before them.

    >>> from collections import namedtuple
    >>> writers = [(name, None) for name in ("embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp")]
    >>> selection = between(namedtuple("Run", "states writers")(writers, writers), 1, 2)
    >>> [name for name, _ in selection.states], [name for name, _ in selection.writers]
    (['L0.mlp', 'L1.attn', 'L1.mlp'], ['L1.attn', 'L1.mlp'])
    """
    wanted = {f"L{i}.{branch}" for i in range(begin, end) for branch in ("attn", "mlp")}
    start = "embed" if begin == 0 else f"L{begin - 1}.mlp"
    return Selection([pair for pair in run.states if pair[0] in wanted or pair[0] == start],
                     [pair for pair in run.writers if pair[0] in wanted
                      or pair[0] == start == "embed"])


class Row(namedtuple("Row", ("name", "update", "state", "update_length", "state_length",
                             "cosine"))):
    """One writer at one position.

    update, state    what it added, and the stream after it [d_model].  A state is None where there
                     is none before the next writer (parallel blocks); an update, in a row that
                     only says where the others begin.
    lengths          of the two, or None
    cosine           of the update with the stream before it, or None
    """


def trace_rows(selection, position):
    """The Rows of a Selection at one position."""
    states, rows, before = dict(selection.states), [], None
    start, stream = selection.states[0]
    if start not in dict(selection.writers):
        before = stream[position]
        rows.append(Row(start, None, before, None, length(before), None))
    for name, update in selection.writers:
        u, x = update[position], states[name][position] if name in states else None
        rows.append(Row(name, u, x, length(u), None if x is None else length(x),
                        None if before is None else cosine(u, before)))
        before = before if x is None else x
    return rows
