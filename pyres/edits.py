"""Edits: what may be done to an update before it is added, while the weights stay as they are.

There is one seam: the moment at which an update is about to be added to the stream.  An edit names
a writer and says what is added instead.  Everything later is computed from the edited stream.

    scale(writer, alpha)           alpha times the update; 0 switches the branch or head off
    replace(writer, update)        another update, for instance another run's
    set_pattern(head, pattern)     an attention pattern that is given instead of computed
    set_state(state, stream)       another thing, of another type: it overwrites the stream, with
                                   all that was written so far, and not one update only

scale and replace take positions, a list of token positions; without it they hold everywhere.
Writers are named as in a run: `embed`, `L0.attn`, `L0.mlp`, and heads `L0.attn.H1`.  A head's
update is what it adds to the attention output, before a multiplier or a norm behind it.

A model whose branch is switched off is still the trained model, edited.  It is not a model that
was trained without the branch.

    edit_update, edit_update_backward    a list of edits applied to one update, and the way back
    BlockEdits, edits_of_block           what one block is to do, chosen by name from all edits

>>> edit_update([[1, 2], [3, 4]], [scale("L0.mlp", 10, positions=[1])])
[[1, 2], [30, 40]]
"""
from collections import namedtuple

from .linalg import (check_like, check_numbers, checked_copy, copied, same_shape, shape_text,
                     zeros_like)
from .scalar import check_constant

__all__ = ["Edit", "StateEdit", "scale", "replace", "set_pattern", "set_state",
           "edit_update", "edit_update_backward", "edit_state", "BlockEdits", "NO_EDITS",
           "edits_of_block", "check_edits"]


class Edit(namedtuple("Edit", ("writer", "kind", "value", "positions"))):
    """One intervention on an update, or on a head's pattern.

    writer       whose update
    kind         "scale", "replace" or "pattern"
    value        alpha, an update [n_tokens][d_model], or a pattern [n_tokens][n_tokens]
    positions    the token positions it holds at, or None for all
    """


class StateEdit(namedtuple("StateEdit", ("state", "stream"))):
    """A state that is overwritten: `stream` [n_tokens][d_model] stands in place of that state."""


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


def set_pattern(head, pattern):
    """Give a head its attention pattern [n_tokens][n_tokens]; row t says how much position t takes
    from each position.  Its scores are then not computed.

    >>> set_pattern("L0.attn.H0", [[1, 0], [0.5, 0.5]]).kind
    'pattern'
    """
    return Edit(head, "pattern", checked_copy("set_pattern", pattern), None)


def set_state(state, stream):
    """Overwrite a state, named by its writer, with a stream [n_tokens][d_model].

    Erasing a state is not removing an update: the embedding and every earlier write go with it.

    >>> set_state("L0.mlp", [[0, 0]])
    StateEdit(state='L0.mlp', stream=[[0, 0]])
    """
    return StateEdit(state, checked_copy("set_state", stream))


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
        raise ValueError(f"replace: the update for {edit.writer} has shape "
                         f"{shape_text(edit.value)}, the writer's {shape_text(update)}")
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

    What was scaled by alpha passes alpha times its gradient; what was replaced passes none.

    >>> edit_update_backward([[1, 2], [3, 4]], [scale("L0.mlp", 10, positions=[1])])
    [[1, 2], [30, 40]]
    >>> edit_update_backward([[1, 2]], [replace("L0.mlp", [[5, 5]])])
    [[0, 0]]
    """
    for edit in reversed(edits):
        if edit.kind == "replace":
            check_like("edit_update_backward", "d_update", d_update, edit.value)
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
    if not same_shape(edit.stream, stream):
        raise ValueError(f"set_state: the stream given for {edit.state} has shape "
                         f"{shape_text(edit.stream)}, the state {shape_text(stream)}")
    return copied(edit.stream)


# ---- by name ----

class BlockEdits(namedtuple("BlockEdits", (
        "attn", "mlp", "heads", "patterns", "resid_mid", "resid_post"))):
    """What one block is to do.

    attn, mlp                lists of Edit on the branch's update
    heads, patterns          lists of (head, Edit)
    resid_mid, resid_post    StateEdit, or None
    """


NO_EDITS = BlockEdits([], [], [], [], None, None)


def edits_of_block(edits, i):
    """The BlockEdits that concern block i.

    >>> edits_of_block([scale("L1.mlp", 0), scale("L1.attn.H2", 3), scale("L2.mlp", 5)], 1).heads
    [(2, Edit(writer='L1.attn.H2', kind='scale', value=3, positions=None))]
    """
    updates = [edit for edit in edits if isinstance(edit, Edit)]
    attn, mlp, head = f"L{i}.attn", f"L{i}.mlp", f"L{i}.attn.H"
    of_heads = [(int(edit.writer[len(head):]), edit)
                for edit in updates if edit.writer.startswith(head)]
    return BlockEdits(
        edits_of_writer(edits, attn), edits_of_writer(edits, mlp),
        [(h, edit) for h, edit in of_heads if edit.kind != "pattern"],
        [(h, edit) for h, edit in of_heads if edit.kind == "pattern"],
        edit_of_state(edits, attn), edit_of_state(edits, mlp))


def edits_of_writer(edits, writer):
    """The edits of one writer's update, in order."""
    return [edit for edit in edits if isinstance(edit, Edit) and edit.writer == writer]


def edit_of_state(edits, state):
    """The last StateEdit of one state, or None."""
    found = [edit for edit in edits if isinstance(edit, StateEdit) and edit.state == state]
    return found[-1] if found else None


def check_edits(edits, writers, heads, states):
    """Raise unless every edit names something that is there: ValueError for a name, TypeError for
    a thing that is no edit.

    >>> writers, heads = ["embed", "L0.attn", "L0.mlp"], ["L0.attn.H0"]
    >>> check_edits([scale("L9.mlp", 0)], writers, heads, states=["embed"])
    Traceback (most recent call last):
    ValueError: no writer 'L9.mlp' to scale; there are embed, L0.attn, L0.mlp, and heads L0.attn.H0
    """
    for edit in edits:
        if isinstance(edit, StateEdit):
            _check_name("state", edit.state, "set", states, "")
        elif not isinstance(edit, Edit):
            raise TypeError(f"expected edits made by scale, replace, set_pattern or set_state, "
                            f"got {type(edit).__name__}")
        elif edit.kind == "pattern":
            _check_name("head", edit.writer, "give a pattern", heads, "")
        elif edit.writer not in heads:
            rest = f", and heads {few(heads)}" if heads else ""
            _check_name("writer", edit.writer, edit.kind, writers, rest)


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
