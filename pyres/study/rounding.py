"""What rounding takes from the stream: the same run with every state in a narrow float format.

A format keeps so many binary digits.  The larger a number, the further apart its neighbours, and
what is added to it must reach half way to the next one or it is gone: a stream that has grown
swallows small updates.

    s[k + 1] = round(s[k] + u[k])                 every addition, rounded
    lost[k]  = s[k] + u[k] - s[k + 1]             what it lost
    final    = sum of u[k] - sum of lost[k]       hence the sum

Only the stream is rounded.  Sublayers, norms and logits reckon in float64, as always, so that
nothing but the additions is to blame; where everything is narrow, more is lost than is told here.
There is one rounding for each state: one for each writer, and one for both of a parallel block.
Under post-norm the state is a norm's output and no sum, and the ledger refuses it.

    Format, FORMATS, step_at, round_to    float32, float16, bfloat16, as `floats` has them
    two_sum, lost_in                      additions without error
    rounding_edits                        the edits under which a run is rounded
    LedgerRow, Ledger, rounding_ledger    what each addition lost, and what came of it
    largest_loss, ledger_check            the worst entry; the proof of the last line above

An addition is done in float64 and its result rounded once more.  That differs from one rounding of
the exact sum only where float64 gives the very middle between two neighbours and the exact sum is
beside it: once in some 2**29 additions for float32, and less often for the others.  This module is
part of the portable core.

>>> round_to([2048.0 + 1.0, 2048.0 + 3.0], "float16")   # float16 has 2046, 2047, 2048, 2050, 2052
[2048.0, 2052.0]
>>> step_at(2048.0, "float32"), step_at(2048.0, "float16"), step_at(2048.0, "bfloat16")
(0.000244140625, 2.0, 16.0)
"""
import math
from collections import namedtuple

from ..edits import StateEdit, set_state
from ..floats import FORMATS, Format, format_named, round_to, step_at
from ..linalg import add, dot, scale, subtract, zeros_like
from ..model import run, state_names
from ..nonlinear import log_softmax
from ..scalar import sqrt
from ..sums import check_sum, largest

__all__ = ["Format", "FORMATS", "step_at", "round_to", "two_sum", "lost_in", "rounding_edits",
           "LedgerRow", "Ledger", "rounding_ledger", "top_guess", "largest_loss", "ledger_check"]


# ---- additions without error ----

def two_sum(a, b):
    """Return (total, error): a + b as float64 has it, and what is missing, so that a + b is
    total + error exactly (Møller; Knuth, The Art of Computer Programming, volume 2, 4.2.2).

    >>> two_sum(1.0, 2.0 ** -60) == (1.0, 2.0 ** -60)
    True
    """
    total = a + b
    of_b = total - a
    of_a = total - of_b
    return total, (a - of_a) + (b - of_b)


def lost_in(terms, total):
    """The sum of a list of floats less the total they were given: what the addition lost.

    For two terms and a total that was rounded from their sum this is exact, unless one term is
    some 2**53 times the other: then it is the nearest float64.

    >>> lost_in([2048.0, 1.0], 2048.0), lost_in([2048.0, 3.0], 2052.0)
    (1.0, -1.0)
    """
    so_far, errors = 0.0, 0.0
    for term in list(terms) + [-total]:
        so_far, error = two_sum(so_far, term)
        errors += error
    # past infinity there are no errors to tell
    return so_far + errors if so_far - so_far == 0 else so_far


# ---- a run that is rounded ----

def rounding_edits(model, to):
    """The edits that round every state of a model's run to a format.

    >>> from pyres.model import small_model
    >>> [edit.state for edit in rounding_edits(small_model(), "float16")]
    ['embed', 'L0.attn', 'L0.mlp']
    >>> rounding_edits(small_model(), "float8")
    Traceback (most recent call last):
    ValueError: floats: there is no format 'float8'; there are float32, float16, bfloat16
    """
    format_named(to)
    return [set_state(name, lambda stream: round_to(stream, to))
            for name in state_names(model.config)]


class LedgerRow(namedtuple("LedgerRow", (
        "name", "writers", "update", "lost", "added", "lost_length", "share", "swallowed",
        "drift"))):
    """What one rounding took.

    name           of the state that was rounded
    writers        the names of those who had added to it: one, or both of a parallel block
    update         [n_tokens][d_model], what they added
    lost           [n_tokens][d_model], what rounding took from the sum
    added          [n_tokens], length of the update
    lost_length    [n_tokens], length of what was lost
    share          [n_tokens], the second over the first; None where nothing was added
    swallowed      [n_tokens], how many channels were added to and stayed what they were
    drift          [n_tokens], distance of the state from that of the run that is not rounded
    """


class Ledger(namedtuple("Ledger", ("to", "plain", "rounded", "rows", "logit_difference",
                                   "divergence", "changed"))):
    """Everything that rounding took from a run, and what came of it.

    to                  the format's name
    plain, rounded      Run without and with rounding
    rows                LedgerRow of each rounding, in order
    logit_difference    [n_tokens], the largest difference between logits of the two
    divergence          [n_tokens], KL(plain || rounded) of the next token, in nats
    changed             [n_tokens], whether the top guess is another; None where a logit is NaN
    """


def rounding_ledger(plain, to):
    """The run of a Run again, every state rounded to a format -> Ledger.

    Raises ValueError for a format that is not there, under post-norm, and where the run's edits
    set a state: such a state is no sum.

    The model adds 12 and 42 to 16, which no format minds.  Attention times 1.05 is 12.6:

    >>> from pyres.edits import scale
    >>> from pyres.model import small_model
    >>> small = small_model()
    >>> [row.lost for row in rounding_ledger(run(small, [0]), "bfloat16").rows]
    [[[0.0]], [[0.0]], [[0.0]]]
    >>> ledger = rounding_ledger(run(small, [0], [scale("L0.attn", 1.05)]), "bfloat16")
    >>> ledger.plain.states[1], ledger.rounded.states[1]
    (('L0.attn', [[28.6]]), ('L0.attn', [[28.625]]))
    """
    model = plain.model
    if any([block.placement == "post_norm" for block in model.config.blocks]):
        raise ValueError("rounding_ledger: under post-norm a state is what a norm made of a sum; "
                         "there is no addition whose result it is")
    if any([isinstance(edit, StateEdit) for edit in plain.edits]):
        raise ValueError("rounding_ledger: the run's edits set a state, which is then no sum; "
                         "edit updates instead")
    rounded = run(model, plain.tokens, plain.edits + rounding_edits(model, to))
    divergence = [_divergence(a, b) for a, b in zip(plain.logits, rounded.logits)]
    difference = [largest([abs(gap) for gap in subtract(a, b)])
                  for a, b in zip(plain.logits, rounded.logits)]
    changed = [_changed(top_guess(a), top_guess(b)) for a, b in zip(plain.logits, rounded.logits)]
    return Ledger(to, plain, rounded, _rows(plain, rounded), difference, divergence, changed)


def _rows(plain, rounded):
    states, unrounded = dict(rounded.states), dict(plain.states)
    rows, writes, before = [], [], zeros_like(rounded.states[0][1])
    for name, update in rounded.writers:
        writes.append((name, update))
        if name in states:                          # no state stands within a parallel block
            rows.append(_row(writes, before, states[name], unrounded[name]))
            writes, before = [], states[name]
    return rows


def _row(writes, before, after, unrounded):
    """The LedgerRow of what was written, pairs (name, update), between two states."""
    names, updates = [name for name, _ in writes], [update for _, update in writes]
    update = updates[0] if len(updates) == 1 else add(*updates)
    lost = [[lost_in(channel[:-1], channel[-1]) for channel in zip(*rows)]
            for rows in zip(before, *(updates + [after]))]
    swallowed = [sum([int(u != 0 and a == b) for u, a, b in zip(*rows)])
                 for rows in zip(update, before, after)]
    added, lost_length = _lengths(update), _lengths(lost)
    share = [b / a if a else None for a, b in zip(added, lost_length)]
    return LedgerRow(names[-1], names, update, lost, added, lost_length, share, swallowed,
                     _lengths(subtract(after, unrounded)))


def _lengths(rows):
    return [sqrt(dot(row, row)) for row in rows]


def _divergence(logits, other):
    """KL of the distribution p of some logits from q of others: sum of p (log p - log q).

    To every term q - p is added, which sums to 0.  Then no term is below 0, none cancels another,
    and a divergence far below 2**-52 keeps its digits.
    """
    total = 0.0
    for log_p, log_q in zip(log_softmax(logits), log_softmax(other)):
        p, q, r = math.exp(log_p), math.exp(log_q), log_p - log_q
        # q - p is p (exp(-r) - 1), which expm1 gives to the last digit where r is small
        total += p * (r + math.expm1(-r)) if abs(r) < 1 else p * r + (q - p)
    return total


def top_guess(logits):
    """The token with the largest logit [d_vocab], the first of several; None where one is NaN.

    >>> top_guess([0.5, 2.0, 2.0]), top_guess([0.5, float("nan")])
    (1, None)
    """
    top = largest(logits)
    return logits.index(top) if top == top else None


def _changed(guess, other):
    return None if guess is None or other is None else guess != other


# ---- what the ledger says ----

def largest_loss(ledger):
    """Return (row, position, channel) of the entry that lost most; the first that is not finite,
    where one is not.

    >>> from pyres.model import small_model
    >>> row, position, channel = largest_loss(rounding_ledger(run(small_model(), [0]), "float16"))
    >>> row.name, position, channel
    ('embed', 0, 0)
    """
    entries = [(row, t, i, abs(a)) for row in ledger.rows
               for t, lost in enumerate(row.lost) for i, a in enumerate(lost)]
    worst = entries[0]
    for entry in entries:
        if entry[-1] - entry[-1] != 0:
            return entry[:-1]
        if entry[-1] > worst[-1]:
            worst = entry
    return worst[:-1]


def ledger_check(ledger):
    """Add up what was written and what was lost, and compare with the final stream -> SumCheck.

    The tolerance is what the additions of the check itself can lose: with n terms, n * 2**-52
    times the sum of their sizes.

    >>> from pyres.model import small_model
    >>> check = ledger_check(rounding_ledger(run(small_model(), [0]), "float16"))
    >>> check.rule, check.error, check.ok
    ('embed + sum of updates - sum of what was lost = final', 0.0, True)
    """
    updates = [update for _, update in ledger.rounded.writers]
    lost = [scale(-1.0, row.lost) for row in ledger.rows]
    return check_sum("embed + sum of updates - sum of what was lost = final", updates + lost,
                     ledger.rounded.states[-1][1])
