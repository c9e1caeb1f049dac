"""The proof that what was written sums to the final stream, for any run.

    final = embed + sum of updates

holds for every placement but post-norm, where a norm takes in the stream itself.  With the
divisors that the run had, that norm is affine, and every write can be carried through the norms
after it; then the carried writes sum to the final stream.

    SumCheck, sum_check      the proof, for one run
    check_sum, checked, largest
                             the same for any terms; the verdict; the largest, or NaN
    carried_writers          what each update has become in the final stream
    carried                  the same for one write that a run did not make

>>> from pyres.model import run, small_model
>>> check = sum_check(run(small_model(), [0]))
>>> check.rule, check.ok
('embed + sum of updates = final', True)
"""
from collections import namedtuple

from .edits import edit_of_state
from .norms import affine
from .scalar import is_exact

__all__ = ["SumCheck", "sum_check", "check_sum", "checked", "largest",
           "carried_writers", "carried"]


class SumCheck(namedtuple("SumCheck", ("rule", "error", "tolerance", "ok", "exact"))):
    """Whether the writes sum to the final stream.

    rule         what was added up, in words
    error        the largest difference from the final stream
    tolerance    what rounding can explain, 0 in exact numbers
    ok           error <= tolerance, which is finite
    exact        whether every number was an int or a rational, so that the sum holds with ==
    """


ROUNDING = 2.0 ** -52


def sum_check(run_record):
    """Add up what a run's writers wrote and compare it with the final stream -> SumCheck.

    After set_state the sum begins at the state that was set.  Under post-norm the updates do not
    sum to the final stream; what does is carried_writers, and the rule says so.

    The sum is taken from the last writer to the first, the other way round than the run added, so
    the check can fail.  Rounding explains one unit in the last place of every partial sum: with n
    terms, n * 2**-52 times the sum of their sizes.

    >>> from pyres.model import run, small_model
    >>> check = sum_check(run(small_model(), [0]))                    # 16 + 12 + 42 = 70
    >>> check.error, check.ok, check.tolerance == 3 * 2.0 ** -52 * 70
    (0.0, True, True)
    >>> from pyres.edits import set_state
    >>> sum_check(run(small_model(), [0], [set_state("L0.attn", [[2.0]])])).rule
    'the state set at L0.attn + later updates = final'
    """
    rule, terms = sum_terms(run_record)
    return check_sum(rule, [term for _, term in reversed(terms)], run_record.states[-1][1])


def check_sum(rule, terms, want, n_behind=0):
    """Add up terms, [n_tokens][d_model] each, in their order, and compare with `want` -> SumCheck.

    Rounding explains one unit in the last place of every partial sum; n_behind is how many more
    there were where a term itself is a sum.

    >>> check_sum("1 + 2 = 4", [[[1]], [[2]]], [[4]])
    SumCheck(rule='1 + 2 = 4', error=1, tolerance=0, ok=False, exact=True)
    """
    gaps, tolerance = [], 0
    for t, row in enumerate(want):
        for i, a in enumerate(row):
            entries = [term[t][i] for term in terms]
            gaps.append(abs(sum(entries) - a))
            if not is_exact(a):
                size = float(sum([abs(entry) for entry in entries]))
                tolerance = max(tolerance, (len(terms) + n_behind) * rounding_unit(a) * size)
    return checked(rule, largest(gaps), tolerance, all([is_exact(a) for row in want for a in row]))


def checked(rule, error, tolerance, exact):
    """A SumCheck that holds where the error is at most the tolerance, and that is finite: numbers
    that overflowed prove nothing.

    >>> checked("a + b = c", float("inf"), float("inf"), exact=False).ok
    False
    """
    return SumCheck(rule, error, tolerance, error <= tolerance < float("inf"), exact)


def largest(numbers):
    """The largest of some numbers, NaN where one is: max alone would depend on their order.

    >>> largest([1.0, float("nan"), 2.0])
    nan
    """
    not_numbers = [a for a in numbers if a != a]
    return not_numbers[0] if not_numbers else max(numbers)


def rounding_unit(x):
    """How much of itself a number of x's type may lose when it is rounded.

    >>> from decimal import Decimal
    >>> rounding_unit(0.5) == 2.0 ** -52, rounding_unit(Decimal(7))
    (True, 1e-28)
    """
    if isinstance(x, (float, complex)):
        return ROUNDING
    one = 0 * x + 1
    return float(abs(one / 3 * 3 - one))


def sum_terms(run_record):
    """Return (rule, terms): pairs (name, [n_tokens][d_model]) that sum to the final stream."""
    set_states = [name for name, _ in run_record.states
                  if edit_of_state(run_record.edits, name) is not None]
    if any(block.placement == "post_norm" for block in run_record.model.config.blocks):
        start = f"the state set at {set_states[-1]}" if set_states else "embed"
        return (f"{start} + updates, each carried through the norms after it, "
                "+ the norms' biases = final", carried_writers(run_record))
    if not set_states:
        return "embed + sum of updates = final", run_record.writers
    last = set_states[-1]
    names = [name for name, _ in run_record.writers]
    later = run_record.writers[names.index(last) + 1:]
    return (f"the state set at {last} + later updates = final",
            [(last, dict(run_record.states)[last])] + later)


def carried_writers(run_record):
    """What each update has become in the final stream, as pairs (name, [n_tokens][d_model]).

    With the divisors that the run had, a norm on the stream is affine.  So every write that passes
    it is centred (LayerNorm only), divided by the norm's scale and multiplied by its gain, and the
    norm's bias is a writer of its own, `L0.attn.norm_bias`.  These sum to the final stream.  Where
    no norm stands on the stream they are the updates themselves.

    The norms of this model halve what passes them, the embedding twice and the MLP's update once:

    >>> from pyres.model import run, small_model
    >>> r = run(small_model("post_norm"), [0])
    >>> r.writers
    [('embed', [[16.0]]), ('L0.attn', [[20.0]]), ('L0.mlp', [[54.0]])]
    >>> carried_writers(r)
    [('embed', [[4.0]]), ('L0.attn', [[5.0]]), ('L0.mlp', [[27.0]])]
    >>> r.states[-1]
    ('L0.mlp', [[36.0]])
    """
    writes = []
    for name, update in run_record.writers:
        writes = _past_norm(run_record, name, writes + [(name, update)])
        writes = _after_set_state(run_record, name, writes)
    return writes


def carried(run_record, writer, write):
    """What a write [n_tokens][d_model] would become in the final stream, if `writer` made it and
    every norm after it kept the divisors of the run: itself, where no norm stands on the stream.

    >>> from pyres.model import run, small_model
    >>> carried(run(small_model("post_norm"), [0]), "L0.attn", [[40.0]])
    [[10.0]]
    """
    names = [name for name, _ in run_record.writers]
    for name in names[names.index(writer):]:
        write = _past_norm(run_record, name, [(writer, write)])[0][1]
    return write


def _past_norm(run_record, name, writes):
    """The writes past the norm that takes in the stream after a writer, and the norm's bias; as
    they are where there is none."""
    layer, _, branch = name.partition(".")
    if not branch:
        return writes
    i = int(layer[1:])
    if run_record.model.config.blocks[i].placement != "post_norm":
        return writes
    norm = getattr(run_record.steps.blocks[i], f"{branch}_post_norm")
    w = getattr(run_record.model.weights.blocks[i], f"{branch}_post_norm")
    return _through_norm(writes, norm, w, f"{name}.norm_bias")


def _through_norm(writes, norm, w, bias_name):
    """Every write through one norm with its scales frozen, and the norm's bias."""
    if norm.scale is None:
        return writes
    through = [(name, [_frozen(row, norm.mean is not None, divisor, w.gain)
                       for row, divisor in zip(rows, norm.scale)]) for name, rows in writes]
    if w.bias is not None:
        through.append((bias_name, [list(w.bias) for _ in norm.x]))
    return through


def _frozen(row, centred, divisor, gain):
    mean = sum(row) / len(row) if centred else 0
    return affine([(a - mean) / divisor for a in row], gain, None)


def _after_set_state(run_record, name, writes):
    """The state itself where it was overwritten, else what was written so far."""
    overwritten = edit_of_state(run_record.edits, name) is not None
    return [(name, dict(run_record.states)[name])] if overwritten else writes
