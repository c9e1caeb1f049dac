"""What a part of a branch wrote: a head, a source token of a head, a neuron, a bias, a position.

A run records one update for each branch.  A branch's update is itself a sum, because its last
matrix takes in its parts side by side, so the stream can be told apart further:

    L0.attn = L0.attn.G0 + L0.attn.G1 + ... + L0.attn.bias      key/value groups
    L0.attn.G0 = L0.attn.H0 + L0.attn.H1 + ...                  heads
    L0.attn.H0 = L0.attn.H0.S0 + L0.attn.H0.S1 + ...            source tokens
    L0.mlp = L0.mlp.N0 + L0.mlp.N1 + ... + L0.mlp.bias          neurons
    embed = embed.token + embed.position

A finer writer's write is what reaches the stream: after the residual multipliers, and where a norm
follows the sublayer (sandwich, output_norm) centred (LayerNorm only), divided by the divisor that
the norm had in this run, times its gain.  The norm's bias joins the `bias` row.  Under post_norm
every write is carried through the norms on the stream after it, their divisors frozen too (see
`sums`).  Edits are followed: what was written is what was really added.  This module is part of
the portable core.

    Cut, cut                    a run up to one of its states, at some of its positions
    parts_of, taken_apart       which parts a writer has
    write                       what a writer of any grain wrote

>>> from pyres.model import run, small_model
>>> r = run(small_model(), [0])
>>> write(r, "L0.attn"), write(r, "L0.attn.H0"), write(r, "L0.attn.bias")
([[12.0]], [[8.0]], [[4.0]])
"""
from collections import namedtuple

from ..attention import AttentionSteps, given_writes, head_update, source_factors, source_update
from ..blocks import BlockSteps, NormSteps, branch_update
from ..edits import Edit, StateEdit, edit_of_state, edit_update, edits_of_writer, few
from ..linalg import add, copied, multiply, scale, sum_rows, zeros_like
from ..mlp import MLPSteps
from ..model import ModelSteps, block_edits
from ..norms import frozen_layer_norm, frozen_rms_norm
from ..readout import part_update
from ..sums import carried, sum_terms

__all__ = ["Cut", "cut", "parts_of", "taken_apart", "write"]


# ---- what of a run is needed ----

class Cut(namedtuple("Cut", ("model", "edits", "tokens", "positions", "writers", "states",
                             "steps"))):
    """A Run up to one of its states, at some of its positions: all that this state's writers are
    found from, and the positions.  `sums` takes it for a Run.
    """


def cut(run_record, state=None, positions=None):
    """The Cut up to a state, the last unless named, at a list of positions, or at all for None.
    Raises ValueError for a state or a position that is not there.

    >>> from pyres.model import run, small_model
    >>> r = cut(run(small_model(), [0, 1]), "L0.attn", positions=[1])
    >>> r.writers, r.tokens, r.positions
    ([('embed', [[8.0]]), ('L0.attn', [[10.0]])], [1], [1])
    """
    names = [name for name, _ in run_record.states]
    state = names[-1] if state is None else state
    if state not in names:
        raise ValueError(f"there is no state {state!r}; there are {few(names)}")
    positions = checked_positions(run_record, positions)

    def rows(x):
        return None if x is None else [x[t] for t in positions]

    def until(pairs):
        end = [name for name, _ in pairs].index(state) + 1
        return [(name, copied(rows(x))) for name, x in pairs[:end]]

    edits = [cut_edit(edit, positions) for edit in run_record.edits]
    blocks = [cut_block(block, rows) for block in run_record.steps.blocks]
    return Cut(run_record.model, [edit for edit in edits if edit is not None],
               rows(run_record.tokens), positions, until(run_record.writers),
               until(run_record.states), ModelSteps(blocks, None, None))


def checked_positions(run_record, positions):
    """The positions asked for, all for None; ValueError where one is not there, or none is asked
    for."""
    n_tokens = len(run_record.tokens)
    positions = list(range(n_tokens) if positions is None else positions)
    if not positions:
        raise ValueError("positions is empty; give at least one, or None for all")
    for t in positions:
        if type(t) is not int or not 0 <= t < n_tokens:
            raise ValueError(f"there is no position {t!r}; "
                             f"the run has {n_tokens} tokens, 0 to {n_tokens - 1}")
    return positions


def cut_edit(edit, positions):
    """An edit as it is at the positions; None where it holds at none of them."""
    if isinstance(edit, StateEdit) or edit.kind == "pattern":
        return edit
    held = [j for j, t in enumerate(positions) if edit.positions is None or t in edit.positions]
    value = edit.value if edit.kind == "scale" else [edit.value[t] for t in positions]
    return Edit(edit.writer, edit.kind, value, held) if held else None


def cut_block(steps, rows):
    """The BlockSteps that parts are found from: what w_o and w_down read, and the norms behind."""
    def norm(steps):
        return None if steps is None else NormSteps(*[rows(field) for field in steps])

    attn = AttentionSteps(rows(steps.attn.x), None, None, None, None, steps.attn.v, None,
                          [rows(head) for head in steps.attn.pattern],
                          [rows(head) for head in steps.attn.mixed], None)
    mlp = MLPSteps(None, None, None, rows(steps.mlp.hidden), None)
    return BlockSteps(None, None, attn, norm(steps.attn_post_norm), None,
                      None, None, mlp, norm(steps.mlp_post_norm), None, None)


# ---- which writers there are; r is a Cut ----

def place(name):
    """A writer's name as (block or None, "embed", "attn" or "mlp", the parts behind).

    >>> place("L3.attn.H1.S5"), place("L0.mlp"), place("embed.token")
    ((3, 'attn', ['H1', 'S5']), (0, 'mlp', []), (None, 'embed', ['token']))
    """
    first, *rest = name.split(".")
    if first == "embed":
        return None, "embed", rest
    return int(first[1:]), rest[0], rest[1:]


def parts_of(r, name):
    """The names of a writer's parts, one step finer; [] where it has none.

    >>> from pyres.model import run, small_model
    >>> r = cut(run(small_model(), [0, 1]))
    >>> parts_of(r, "L0.attn"), parts_of(r, "L0.attn.G0"), parts_of(r, "L0.attn.H0")
    (['L0.attn.G0', 'L0.attn.bias'], ['L0.attn.H0'], ['L0.attn.H0.S0', 'L0.attn.H0.S1'])
    """
    i, branch, parts = place(name)
    if edit_of_state(r.edits, name) is not None or len(parts) > 1:
        return []                           # a state that was set is nobody's write
    if branch == "embed":
        return [] if parts else ["embed.token"] + (
            ["embed.position"] if r.model.weights.w_pos is not None else [])
    block = r.model.config.blocks[i]
    if not parts:
        finer = (f"{name}.G", block.attention.n_kv_heads) if branch == "attn" else (
            f"{name}.N", block.d_mlp)
        return numbered(*finer) + ([f"{name}.bias"] if has_bias(r, i, branch) else [])
    if parts[0][0] == "G":
        return [f"L{i}.attn.H{h}" for h in range(block.attention.n_heads)
                if group_of(block.attention, h) == int(parts[0][1:])]
    if parts[0][0] == "H":
        return numbered(f"{name}.S", len(r.steps.blocks[i].attn.v[0]))
    return []


def numbered(beginning, n):
    """n names that begin alike."""
    return [f"{beginning}{i}" for i in range(n)]


def group_of(attention, h):
    """The key/value head that query head h reads."""
    return h // (attention.n_heads // attention.n_kv_heads)


def has_bias(r, i, branch):
    """Whether a branch of block i writes anything that belongs to no part of it."""
    w = r.model.weights.blocks[i]
    own = w.attn.b_o if branch == "attn" else w.mlp.b_down
    _, norm = norm_behind(r, i, branch)
    return own is not None or norm is not None and norm.bias is not None


def norm_behind(r, i, branch):
    """The norm between a sublayer and the stream as a pair (NormSteps, NormWeights), or Nones.
    post_norm's is none: it takes in the stream itself."""
    steps = getattr(r.steps.blocks[i], f"{branch}_post_norm")
    if r.model.config.blocks[i].placement == "post_norm" or steps is None or steps.scale is None:
        return None, None
    return steps, getattr(r.model.weights.blocks[i], f"{branch}_post_norm")


def taken_apart(r, name, n_steps):
    """The names of what a writer is made of, n_steps finer, or less where it has no such parts.

    >>> from pyres.model import run, small_model
    >>> r = cut(run(small_model(), [0]))
    >>> taken_apart(r, "L0.attn", 0), taken_apart(r, "L0.attn", 2)
    (['L0.attn'], ['L0.attn.H0', 'L0.attn.bias'])
    """
    parts = parts_of(r, name) if n_steps else []
    return [finer for part in parts for finer in taken_apart(r, part, n_steps - 1)] or [name]


def wholes_above(r, name):
    """The writers that a finer one is a part of.

    >>> from pyres.model import run, small_model
    >>> wholes_above(cut(run(small_model(), [0])), "L0.attn.H0.S0")
    ['L0.attn', 'L0.attn.G0', 'L0.attn.H0']
    """
    i, branch, parts = place(name)
    if branch == "embed":
        return ["embed"] if parts else []
    above = [f"L{i}.{branch}"] if parts else []
    if parts and parts[0][0] == "H":
        group = group_of(r.model.config.blocks[i].attention, int(parts[0][1:]))
        above.append(f"L{i}.attn.G{group}")
    return above + [f"L{i}.attn.{parts[0]}"] * (len(parts) > 1)


# ---- what one of them wrote ----

def write(run_record, name, position=None):
    """What a writer of any grain wrote, as it reached the final stream: [n_tokens][d_model]; with
    a position, [1][d_model].

    Raises ValueError for a writer that is not there, and for a part of a writer that an edit
    replaced or shifted, because what was given has no parts.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model("sandwich"), [0])
    >>> write(r, "L0.attn"), write(r, "L0.attn.H0"), write(r, "L0.attn.bias")
    ([[6.0]], [[4.0]], [[2.0]])
    >>> from pyres.edits import replace
    >>> write(run(small_model(), [0], [replace("L0.attn", [[5.0]])]), "L0.attn.H0")
    Traceback (most recent call last):
    ValueError: write: an edit (replace) gave L0.attn what is none of its parts'; ask for L0.attn \
as a whole, not for L0.attn.H0
    """
    r = cut(run_record, None, None if position is None else [position])
    wholes = sum_terms(r)[1]
    for whole, update in wholes:
        if name == whole:
            return update
        if name.startswith(whole + ".") and any(
                [name in taken_apart(r, whole, n_steps) for n_steps in (1, 2, 3)]):
            return finer_write(r, name)
    raise ValueError(f"write: there is no writer {name!r}; there are "
                     f"{few([whole for whole, _ in wholes])}, and parts such as L0.attn.H0, "
                     "L0.attn.H0.S0, L0.mlp.N0, L0.attn.bias, embed.token")


def finer_write(r, name):
    """What a part of a branch wrote."""
    for whole in wholes_above(r, name):
        for edit in edits_of_writer(r.edits, whole):
            if edit.kind in ("replace", "shift"):
                raise ValueError(
                    f"write: an edit ({edit.kind}) gave {whole} what is none of its parts'; "
                    f"ask for {whole} as a whole, not for {name}")
    i, branch, parts = place(name)
    if branch == "embed":
        rows = edit_update(embedding_part(r, name), edits_of_writer(r.edits, "embed"))
        return carried(r, "embed", rows)
    config, w = r.model.config.blocks[i], r.model.weights.blocks[i]
    edits = block_edits(r.edits, i, config)
    rows = attn_part(r, name, edits) if branch == "attn" else mlp_part(r, name, edits)
    norm, w_norm = norm_behind(r, i, branch)
    if norm is not None:
        rows = (frozen_rms_norm(rows, norm.scale, w_norm.gain) if norm.mean is None else
                frozen_layer_norm(rows, norm.scale, w_norm.gain))
        if parts == ["bias"] and w_norm.bias is not None:
            rows = [add(row, w_norm.bias) for row in rows]
    rows = branch_update(rows, getattr(w, f"{branch}_multiplier"), config, getattr(edits, branch))
    return carried(r, f"L{i}.{branch}", rows)


def embedding_part(r, name):
    """The tokens' rows of w_embed, times their multiplier, or the positions' rows of w_pos."""
    w, multiplier = r.model.weights, r.model.config.embed_multiplier
    if name == "embed.position":
        return [list(w.w_pos[t]) for t in r.positions]
    rows = [list(w.w_embed[token]) for token in r.tokens]
    return rows if multiplier is None else scale(multiplier, rows)


def mlp_part(r, name, edits):
    """What a neuron adds to an MLP's output, or b_down."""
    i, _, (part,) = place(name)
    w, hidden = r.model.weights.blocks[i].mlp, r.steps.blocks[i].mlp.hidden
    if part == "bias":
        return bias_rows(w.b_down, r)
    n = int(part[1:])
    return edit_update(part_update(hidden, w.w_down, n, 1),
                       [edit for neuron, edit in edits.neurons if neuron == n])


def attn_part(r, name, edits):
    """What a group, a head or a head's source token adds to attention's output, or b_o."""
    i, _, parts = place(name)
    w, steps = r.model.weights.blocks[i].attn, r.steps.blocks[i].attn
    if parts[0] == "bias":
        return bias_rows(w.b_o, r)
    if parts[0][0] == "G":
        heads = [attn_part(r, head, edits) for head in parts_of(r, name)]
        return [sum_rows(rows) for rows in zip(*heads)]
    h = int(parts[0][1:])
    given = [edit for head, edit in given_writes(edits.sources, steps.x) if head == h]
    of_head = [edit for head, edit in edits.heads if head == h]
    if len(parts) == 1:
        return edit_update(head_update(steps.mixed[h], w.w_o, h), given + of_head)
    attention, pattern = r.model.config.blocks[i].attention, steps.pattern[h]
    v_head = steps.v[group_of(attention, h)]
    factors = source_factors(edits.sources, attention.n_heads, steps.x, len(v_head))
    if factors is not None and factors[h] is not None:
        pattern = multiply(pattern, factors[h])
    rows = source_update(pattern, v_head, w.w_o, h, int(parts[1][1:]))
    return edit_update(rows, [edit for edit in given if edit.writer == name] + of_head)


def bias_rows(bias, r):
    """A bias at every position; zeros where there is none."""
    return zeros_like(r.states[0][1]) if bias is None else [list(bias) for _ in r.positions]
