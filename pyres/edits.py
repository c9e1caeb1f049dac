"""Edits: what may be done to an update before it is added, while the weights stay as they are.

There is one seam: the moment at which an update is about to be added to the stream.  An edit names
a writer and says what is added instead.  Everything later is computed from the edited stream.

    scale(writer, alpha)           alpha times the update; 0 switches the branch or head off
    replace(writer, update)        another update, for instance another run's
    shift(writer, update)          the update and another one besides
    set_pattern(head, pattern)     an attention pattern that is given instead of computed
    set_state(state, stream)       another thing, of another type: it overwrites the stream, with
                                   all that was written so far, and not one update only

scale, replace and shift take positions, a list of token positions; without it they hold
everywhere.  Writers are named as in a run: `embed`, `L0.attn`, `L0.mlp`, and finer ones:

    L0.attn.H3       a head                         L0.attn.H3.S5    the same, from source token 5
    L0.attn.G1       the heads of a key/value group
    L0.mlp.N17       a neuron

The update of a finer writer is what it adds to the branch's output, before a multiplier or a norm
behind it.  Edits of the same head hold in their order; what is done to a source token is done
before.

A model whose branch is switched off is still the trained model, edited.  It is not a model that
was trained without the branch.

    edit_update, edit_update_backward    a list of edits applied to one update, and the way back
    BlockEdits, edits_of_block           what one block is to do, chosen by name from all edits
    check_edits                          refuses a writer that is not there

>>> edit_update([[1, 2], [3, 4]], [scale("L0.mlp", 10, positions=[1])])
[[1, 2], [30, 40]]
"""
from collections import namedtuple

from .linalg import (add, check_like, check_numbers, checked_copy, copied, same_shape, shape_text,
                     zeros_like)
from .scalar import check_constant

__all__ = ["Edit", "StateEdit", "scale", "replace", "shift", "set_pattern",
           "set_state", "edit_update", "edit_update_backward", "edit_state",
           "edit_state_backward", "BlockEdits", "NO_EDITS",
           "edits_of_block", "check_edits"]


class Edit(namedtuple("Edit", ("writer", "kind", "value", "positions"))):
    """One intervention on an update, or on a head's pattern.

    writer       whose update
    kind         "scale", "replace", "shift" or "pattern"
    value        alpha, an update [n_tokens][d_model], or a pattern [n_tokens][n_tokens]
    positions    the token positions it holds at, or None for all
    """


class StateEdit(namedtuple("StateEdit", ("state", "stream"))):
    """A state that is overwritten: `stream` [n_tokens][d_model] stands in place of that state.

    A stream that depends on the state is a function of it.
    """


def scale(writer, alpha, positions=None):
    """Add alpha times the writer's update: 0 switches it off, 1 changes nothing.

    >>> scale("L0.attn", 0)
    Edit(writer='L0.attn', kind='scale', value=0, positions=None)
    """
    check_numbers("scale", [alpha])
    return Edit(writer, "scale", alpha, checked_positions("scale", positions))


def replace(writer, update, positions=None):
    """Add this update [n_tokens][d_model] in place of the writer's.  With positions, the rows at
    those positions are taken from it and the others are left.

    >>> edit_update([[1, 2], [3, 4]], [replace("L0.attn", [[0, 0], [9, 9]], positions=[1])])
    [[1, 2], [9, 9]]
    """
    return Edit(writer, "replace", checked_copy("replace", update),
                checked_positions("replace", positions))


def shift(writer, update, positions=None):
    """Add this update [n_tokens][d_model] besides the writer's, at the positions or at all.

    >>> edit_update([[1, 2], [3, 4]], [shift("L0.mlp", [[0, 0], [10, 10]])])
    [[1, 2], [13, 14]]
    """
    return Edit(writer, "shift", checked_copy("shift", update),
                checked_positions("shift", positions))


def set_pattern(head, pattern):
    """Give a head its attention pattern [n_tokens][n_tokens]; row t says how much position t takes
    from each position.  Its scores are then not computed.

    >>> set_pattern("L0.attn.H0", [[1, 0], [0.5, 0.5]]).kind
    'pattern'
    """
    return Edit(head, "pattern", checked_copy("set_pattern", pattern), None)


def set_state(state, stream):
    """Overwrite a state, named by its writer, with a stream [n_tokens][d_model].

    stream may be a function that gives the stream for the state it is called with, for instance
    one that rounds it.  Erasing a state is not removing an update: the embedding and every earlier
    write go with it.

    >>> set_state("L0.mlp", [[0, 0]])
    StateEdit(state='L0.mlp', stream=[[0, 0]])
    """
    return StateEdit(state, stream if callable(stream) else checked_copy("set_state", stream))


def checked_positions(name, positions):
    """The positions as a list, or None; TypeError and ValueError for what is no position.

    >>> checked_positions("scale", [-1])
    Traceback (most recent call last):
    ValueError: scale: position -1 is negative; positions count from 0
    """
    if positions is None:
        return None
    if isinstance(positions, (int, float, str)):
        raise TypeError(f"{name}: positions are a list of whole numbers, got {positions!r}")
    positions = list(positions)
    for t in positions:
        if type(t) is not int:
            raise TypeError(f"{name}: positions are whole numbers, got {t!r}")
        if t < 0:
            raise ValueError(f"{name}: position {t} is negative; positions count from 0")
    return positions


# ---- on one update ----

def edit_update(update, edits):
    """The update [n_tokens][d_model] after the edits, in order.  Raises ValueError where a
    replacement has another shape or a position is not there.

    >>> twice, other = scale("L0.mlp", 2), replace("L0.mlp", [[5, 5]])
    >>> edit_update([[1, 3]], [twice]), edit_update([[1, 3]], [other, twice])
    ([[2, 6]], [[10, 10]])
    >>> edit_update([[1, 3]], [scale("L0.mlp", 2, positions=[1])])
    Traceback (most recent call last):
    ValueError: scale: position 1 of L0.mlp is not there; the sequence has 1 tokens
    """
    for edit in edits:
        update = _edited(update, edit)
    return update


def _edited(update, edit):
    if edit.kind == "scale":
        return _at_positions(update, edit, [_scaled(row, edit.value) for row in update])
    if not same_shape(edit.value, update):
        raise ValueError(f"{edit.kind}: the update for {edit.writer} has shape "
                         f"{shape_text(edit.value)}, the writer's {shape_text(update)}")
    if edit.kind == "shift":
        return _at_positions(update, edit, add(update, edit.value))
    return _at_positions(update, edit, copied(edit.value))


def _scaled(row, alpha):
    # Off is off: 0 * inf would be nan, and a branch that is switched off adds nothing.
    if alpha == 0:
        return zeros_like(row)
    check_constant("scale: alpha", alpha, row[0])
    return [alpha * a for a in row]


def _at_positions(before, edit, after):
    """The rows of `after` where the edit holds, the rows of `before` elsewhere."""
    if edit.positions is None:
        return after
    for t in edit.positions:
        if t >= len(before):
            raise ValueError(f"{edit.kind}: position {t} of {edit.writer} is not there; "
                             f"the sequence has {len(before)} tokens")
    return [after[t] if t in edit.positions else row for t, row in enumerate(before)]


def edit_update_backward(d_update, edits):
    """The gradient at the update before the edits, given d_update, the gradient at the edited one.

    What was scaled by alpha passes alpha times its gradient, what was shifted all of it; what was
    replaced passes none.

    >>> edit_update_backward([[1, 2], [3, 4]], [scale("L0.mlp", 10, positions=[1])])
    [[1, 2], [30, 40]]
    >>> edit_update_backward([[1, 2]], [replace("L0.mlp", [[5, 5]])])
    [[0, 0]]
    """
    for edit in reversed(edits):
        if edit.kind != "scale":
            check_like("edit_update_backward", "d_update", d_update, edit.value)
        if edit.kind == "shift":
            continue
        alpha = edit.value if edit.kind == "scale" else 0
        d_update = _at_positions(d_update, edit, [_scaled(row, alpha) for row in d_update])
    return d_update


def edit_state(stream, edit):
    """The stream [n_tokens][d_model] after a StateEdit: the given one; as it was where edit is
    None.  Raises ValueError where the shapes differ.

    >>> edit_state([[1, 2]], set_state("L0.mlp", [[7, 7]])), edit_state([[1, 2]], None)
    ([[7, 7]], [[1, 2]])
    >>> edit_state([[1, 2]], set_state("L0.mlp", [[7]]))
    Traceback (most recent call last):
    ValueError: set_state: the stream given for L0.mlp has shape (1, 1), the state (1, 2)
    """
    if edit is None:
        return stream
    given = edit.stream(copied(stream)) if callable(edit.stream) else edit.stream
    if not same_shape(given, stream):
        raise ValueError(f"set_state: the stream given for {edit.state} has shape "
                         f"{shape_text(given)}, the state {shape_text(stream)}")
    return checked_copy("set_state", given)


def edit_state_backward(d_state, edit):
    """The gradient at a state before it was overwritten: none of it goes further back.  Raises
    ValueError where the stream is a function of the state, whose derivative nobody gave.

    >>> edit_state_backward([[1, 2]], set_state("L0.mlp", [[7, 7]]))
    [[0, 0]]
    """
    if edit is None:
        return d_state
    if callable(edit.stream):
        raise ValueError(f"set_state: no gradient goes through the function given for "
                         f"{edit.state}; give the stream itself")
    check_like("edit_state_backward", "d_state", d_state, edit.stream)
    return zeros_like(d_state)


# ---- by name ----

class BlockEdits(namedtuple("BlockEdits", (
        "attn", "mlp", "heads", "patterns", "resid_mid", "resid_post", "sources", "neurons"))):
    """What one block is to do.

    attn, mlp                lists of Edit on the branch's update
    heads, patterns          lists of (head, Edit)
    resid_mid, resid_post    StateEdit, or None
    sources                  list of ((head, source token), Edit)
    neurons                  list of (neuron, Edit)
    """


NO_EDITS = BlockEdits([], [], [], [], None, None, [], [])


def edits_of_block(edits, i, heads_per_group=1):
    """The BlockEdits that concern block i.  An edit of a group becomes edits of its heads.

    >>> edits_of_block([scale("L1.mlp", 0), scale("L1.attn.H2", 3), scale("L2.mlp", 5)], 1).heads
    [(2, Edit(writer='L1.attn.H2', kind='scale', value=3, positions=None))]
    >>> [head for head, edit in edits_of_block([scale("L1.attn.G1", 0)], 1, 2).heads]
    [2, 3]
    """
    attn, mlp = f"L{i}.attn", f"L{i}.mlp"
    heads, patterns, sources, neurons = [], [], [], []
    for edit in edits:
        if not isinstance(edit, Edit):
            continue
        parts = edit.writer.split(".")
        if len(parts) == 4 and f"{parts[0]}.{parts[1]}" == attn:
            sources.append(((int(parts[2][1:]), int(parts[3][1:])), edit))
        elif len(parts) == 3 and f"{parts[0]}.{parts[1]}" == mlp:
            neurons.append((int(parts[2][1:]), edit))
        elif len(parts) == 3 and f"{parts[0]}.{parts[1]}" == attn:
            index = int(parts[2][1:])
            if edit.kind == "pattern":
                patterns.append((index, edit))
            elif parts[2][0] == "H":
                heads.append((index, edit))
            else:
                heads += _of_group(index, edit, heads_per_group)
    return BlockEdits(
        edits_of_writer(edits, attn), edits_of_writer(edits, mlp), heads, patterns,
        edit_of_state(edits, attn), edit_of_state(edits, mlp), sources, neurons)


def _of_group(group, edit, n_heads):
    """An edit of a group's write, as edits of its heads: each is scaled; the first one writes what
    replaces the whole, and the others nothing."""
    first = group * n_heads
    rest = edit if edit.kind == "scale" else scale(edit.writer, 0, edit.positions)
    others = [] if edit.kind == "shift" else [(h, rest) for h in range(first + 1, first + n_heads)]
    return [(first, edit)] + others


def edits_of_writer(edits, writer):
    """The edits of one writer's update, in order."""
    return [edit for edit in edits if isinstance(edit, Edit) and edit.writer == writer]


def edit_of_state(edits, state):
    """The last StateEdit of one state, or None."""
    found = [edit for edit in edits if isinstance(edit, StateEdit) and edit.state == state]
    return found[-1] if found else None


def check_edits(edits, writers, heads, states, parts=()):
    """Raise unless every edit names something that is there: ValueError for a name, TypeError for
    a thing that is no edit.

    writers, heads and states are names.  parts are finer writers, as pairs (beginning, how many):
    ("L0.mlp.N", 8) stands for L0.mlp.N0 to L0.mlp.N7.

    >>> writers, heads = ["embed", "L0.attn", "L0.mlp"], ["L0.attn.H0"]
    >>> check_edits([scale("L9.mlp", 0)], writers, heads, states=["embed"])
    Traceback (most recent call last):
    ValueError: no writer 'L9.mlp' to scale; there are embed, L0.attn, L0.mlp, and heads L0.attn.H0
    """
    for edit in edits:
        if isinstance(edit, StateEdit):
            _check_name("state", edit.state, "set", states, "")
        elif not isinstance(edit, Edit):
            raise TypeError(f"expected edits made by scale, replace, shift, set_pattern or "
                            f"set_state, got {type(edit).__name__}")
        elif not isinstance(edit.writer, str):
            raise TypeError(f"{edit.kind}: a writer is a name such as 'L0.attn', "
                            f"got {edit.writer!r}")
        elif edit.kind == "pattern":
            _check_name("head", edit.writer, "give a pattern", heads, "")
        elif edit.writer not in heads and not is_part(edit.writer, parts):
            rest = f", and heads {few(heads)}" if heads else ""
            _check_name("writer", edit.writer, edit.kind, writers, rest + _parts_text(parts))


def is_part(name, parts):
    """Whether a name is one of the finer writers.

    >>> parts = [("L0.mlp.N", 8)]
    >>> is_part("L0.mlp.N7", parts), is_part("L0.mlp.N8", parts), is_part("L0.mlp.N07", parts)
    (True, False, False)
    """
    # no number is longer than 9 digits, and int() is quick with them; isdigit() would take '²'
    for beginning, n in parts:
        if name.startswith(beginning):
            index = name[len(beginning):]
            if (0 < len(index) < 10 and all([c in "0123456789" for c in index])
                    and str(int(index)) == index):
                return int(index) < n
    return False


def _parts_text(parts):
    return "".join([f", {beginning}0 to {beginning}{n - 1}" for beginning, n in parts[:3]]) + (
        ", ..." if len(parts) > 3 else "")


def _check_name(what, name, action, known, rest):
    if name not in known:
        raise ValueError(f"no {what} {name!r} to {action}; there are {few(known)}{rest}")


def few(names):
    """A list of names as text, its middle left out where it is long.

    >>> few(["a", "b"]), few([str(i) for i in range(30)])
    ('a, b', '0, 1, 2, 3, ... 29')
    """
    names = list(names)
    if len(names) <= 6:
        return ", ".join(names)
    return ", ".join(names[:4]) + f", ... {names[-1]}"
