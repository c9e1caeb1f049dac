"""The last matrix of a sublayer, as the sum of what its parts write.

Both sublayers end in a product w h + b.  Cut h into parts of one width, and w into the columns
that read them, and the product is a sum: of a head's values in attention (width d_head), of a
single neuron's in an MLP (width 1):

    out = w h + b = sum over parts i of w^i h^i  +  b

Part i's term is what it writes; b belongs to no part.  A part that is edited writes for itself:

    part_weights, part_update     one part's columns of w, and what the part writes
    readout, readout_backward     the product with some parts edited

>>> from pyres.edits import scale
>>> w = [[1, 2, 3, 4], [5, 6, 7, 8]]
>>> part_update([[1, 1, 1, 1]], w, 1, 2)
[[7, 15]]
>>> readout([[1, 1, 1, 1]], w, [10, 20], 2, [(1, scale("L0.attn.H1", 10))])
[[83, 181]]
"""
from .edits import edit_update, edit_update_backward
from .linalg import add, linear, linear_backward, zeros_like

__all__ = ["part_weights", "part_update", "readout", "readout_backward"]


def part_weights(w, i, width):
    """Part i's columns: w [d_out][n_parts * width] -> [d_out][width].  They are also part i's
    channels of h [n_tokens][n_parts * width].

    >>> part_weights([[1, 2, 3, 4], [5, 6, 7, 8]], 1, 2)
    [[3, 4], [7, 8]]
    """
    return [row[i * width:(i + 1) * width] for row in w]


def part_update(h, w, i, width):
    """What part i writes: h [n_tokens][n_parts * width], w [d_out][n_parts * width] ->
    [n_tokens][d_out].

    >>> part_update([[1, 1]], [[1, 2], [3, 4]], 0, 1)
    [[1, 3]]
    """
    return linear(part_weights(h, i, width), part_weights(w, i, width))


def readout(h, w, b, width, part_edits=()):
    """w h + b with parts edited: h [n_tokens][n_parts * width] -> [n_tokens][d_out].

    part_edits is a list of pairs (part, Edit); the edits of one part hold in their order.

    >>> from pyres.edits import replace
    >>> readout([[1, 1]], [[1, 2], [3, 4]], None, 1, [(0, replace("L0.mlp.N0", [[100, 100]]))])
    [[102, 104]]
    """
    out = linear(_without(h, width, part_edits), _without(w, width, part_edits), b)
    for i, edits in _by_part(part_edits):
        out = add(out, edit_update(part_update(h, w, i, width), edits))
    return out


def _by_part(part_edits):
    """Pairs (part, its edits in order)."""
    return [(i, [edit for part, edit in part_edits if part == i])
            for i in sorted({part for part, _ in part_edits})]


def _without(rows, width, part_edits):
    """What the one product takes: the edited parts are 0 there, in h and in w, for 0 * inf would
    be nan."""
    for i, _ in _by_part(part_edits):
        rows = _with_part(rows, zeros_like(part_weights(rows, i, width)), i, width)
    return rows


def _with_part(rows, parts, i, width):
    """The rows with part i's channels taken from `parts`."""
    return [row[:i * width] + part + row[(i + 1) * width:] for row, part in zip(rows, parts)]


def readout_backward(d_out, h, w, b, width, part_edits=()):
    """Return (d_h, d_w, d_b), given d_out [n_tokens][d_out], the gradient at readout's output;
    d_b is None where b is.

    >>> from pyres.edits import scale
    >>> readout_backward([[1]], [[2, 3]], [[4, 5]], None, 1, [(1, scale("L0.mlp.N1", 10))])
    ([[4, 50]], [[2, 30]], None)
    """
    d_h, d_w, d_b = linear_backward(d_out, h, w, b)
    for i, edits in _by_part(part_edits):
        # forward: out = out + edit_update(w^i h^i)
        h_i, w_i = part_weights(h, i, width), part_weights(w, i, width)
        d_part, d_columns, _ = linear_backward(edit_update_backward(d_out, edits), h_i, w_i)
        d_h, d_w = _with_part(d_h, d_part, i, width), _with_part(d_w, d_columns, i, width)
    return d_h, d_w, d_b
