"""What an edit does to a metric: directly, through the writers after it, and through the norm.

The metric is dot(x, w) / s + constant, with x the final stream at the metric's position and s the
final norm's divisor.  u_k is what writer k wrote in the clean run, u'_k in the edited one, and e_k
the edit applied to the clean write: u_k itself for a writer that is not edited.  Then

    direct     = sum over edited writers c of dot(e_c - u_c, w) / s   the edited writes alone
    downstream = sum over writers k of dot(u'_k - e_k, w) / s         what later writers make of it
    rescale    = dot(x', w) / s' - dot(x', w) / s                     the final norm's divisor
    total      = direct + downstream + rescale  =  metric(edited run) - metric(clean run)

The last line is an identity, and every Effect carries the check of it.  The terms of downstream
are the ledger, one row a writer: 0 for what stands before the edit, and for an edited writer
itself where nothing before it is edited.  An update that is taken away has for its direct effect
the contribution that it made, with the other sign.

With frozen=True the later writers keep their clean updates: u'_k is e_k, downstream is 0, and the
final norm takes another stream, so that rescale is another number.

Under post-norm a write reaches the final stream through the norms after it.  There u_k and e_k
stand for the carried ones, by the divisors of the clean run, and u'_k for those carried by the
edited run's; see sums.carried.  The identity holds as it is.  But a norm on the stream that
divides by another number changes what was written before it, so rows of the ledger before the edit
need not be 0, and neither is downstream when frozen.

An effect is that of an edit of one trained model.  It says nothing about a model that was trained
without the branch; effects on different weights are not ranked.  This module is part of the
portable core.

    edited_updates               e_k
    Effect, effect               the split, its ledger, its first-order estimate, its check
    effects_of, effects_over     many edits of one run; edits of many runs
    ranked                       the largest first
    effect_by_restoring          what others call direct

>>> from pyres.edits import scale
>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> clean = run(small_model(), [0])                             # writes 16, 12 and 42
>>> found = effect(clean, [scale("L0.attn", 0)], logit(clean.model, 0, 0))
>>> found.direct, found.downstream, found.rescale, found.total
(-12.0, -18.0, 0.0, -30.0)
>>> found.ledger
[('embed', 0.0), ('L0.attn', 0.0), ('L0.mlp', -18.0)]
"""
from collections import namedtuple

from ..blocks import block_steps
from ..edits import edit_update, replace, shift
from ..linalg import add, dot, subtract, zeros_like
from ..model import Run, block_edits, run
from ..scalar import is_exact
from ..sums import carried, carried_writers, checked, rounding_unit
from .metrics import final_scale, value
from .references import branch_of, check_same_weights, check_writers
from .sensitivity import check_updates_only, update_gradients
from .sweeps import largest_first, mapped

__all__ = ["edited_updates", "Effect", "effect", "effects_of", "effects_over", "ranked",
           "effect_by_restoring"]


# ---- the edits, applied to clean writes ----

def edited_updates(clean_run, edits):
    """Every writer's update with the edits applied to what the clean run wrote: pairs (writer,
    [n_tokens][d_model]), as in Run.writers.

    A branch's edits are applied to its update.  Where a part of it is edited (a head, a neuron, a
    pattern), the branch is run on what it read in the clean run, and a norm behind it takes in the
    edited sum.  So each branch is edited by itself, and none of them sees what another's edit
    would make of its input.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> clean = run(small_model(), [0])
    >>> edited_updates(clean, [scale("L0.attn.H0", 0), scale("L0.mlp", 2)])
    [('embed', [[16.0]]), ('L0.attn', [[4.0]]), ('L0.mlp', [[84.0]])]
    """
    check_writers(clean_run, edits)
    check_updates_only("edited_updates", clean_run.edits + list(edits))
    written = []
    for name, update in clean_run.writers:
        own = [edit for edit in edits if branch_of(edit.writer) == name]
        if all([edit.writer == name for edit in own]):
            written.append((name, edit_update(update, own)))
        else:
            written.append((name, _branch_again(clean_run, name, own)))
    return written


def _branch_again(clean_run, name, own):
    """A branch's update with the edits of it and of its parts, on what it read in the run."""
    i, config = int(name.split(".")[0][1:]), clean_run.model.config
    steps = block_steps(clean_run.steps.blocks[i].resid_pre, clean_run.model.weights.blocks[i],
                        config.blocks[i], block_edits(clean_run.edits + own, i, config.blocks[i]))
    return steps.attn_out if name.endswith(".attn") else steps.mlp_out


# ---- the split ----

class Effect(namedtuple("Effect", ("before", "after", "direct", "downstream", "rescale", "total",
                                   "ledger", "first_order", "check", "edits", "edited_run"))):
    """What edits did to a metric.

    before, after                  the metric of the clean run, and of the edited one
    direct, downstream, rescale    the parts, total their sum
    ledger                         pairs (writer, its part of downstream)
    first_order                    the gradient at every edited update times the update's change:
                                   of one writer, what total would be if everything after were
                                   linear; of several, the sum of their estimates
    check                          SumCheck: direct + downstream + rescale = after - before
    edits, edited_run              what was done, and the Run; its model has the weights
    """


def effect(clean_run, edits, metric, frozen=False):
    """The Effect of edits on a metric, see metrics: a Run without them, edits of updates or
    patterns, a Metric.

    The run may have edits of its own, which then hold in both runs.  frozen keeps the updates of
    all writers that are not edited.

    Raises as model.run does, and ValueError where a state is set, which erases all earlier writes
    and has no direct part.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> metric = logit(clean.model, 0, 0)
    >>> off = [scale("L0.attn.H0", 0)]                              # b_o's 4 are left of the 12
    >>> found = effect(clean, off, metric)
    >>> found.direct, found.downstream, found.total, found.first_order
    (-8.0, -12.0, -20.0, -20.0)
    >>> found = effect(clean, off, metric, frozen=True)
    >>> found.direct, found.downstream, found.total, found.first_order
    (-8.0, 0.0, -8.0, -8.0)
    """
    return _effect((clean_run, list(edits), metric, frozen, None))


def _keeping(clean_run, updates):
    """The run in which every writer writes the given update, whatever it reads."""
    return run(clean_run.model, clean_run.tokens,
               clean_run.edits + [replace(name, update) for name, update in updates])


def _gradients(clean_run, metric, frozen):
    """The metric's gradients at the updates, where later ones react or where they are kept."""
    reacting = _keeping(clean_run, clean_run.writers) if frozen else clean_run
    return update_gradients(reacting, metric)


def _effect(task):
    clean_run, edits, metric, frozen, gradients = task
    check_updates_only("effect", clean_run.edits + edits)
    written = edited_updates(clean_run, edits)
    edited_run = (_keeping(clean_run, written) if frozen else
                  run(clean_run.model, clean_run.tokens, clean_run.edits + edits))
    if gradients is None:
        gradients = _gradients(clean_run, metric, frozen)

    # u, e and u' at the metric's position; norms' biases are writers, too, of which e is u
    position, w = metric.position, metric.direction
    clean = _rows_at(position, carried_writers(clean_run))
    edited = _rows_at(position, _carried_by_clean_norms(clean_run, written))
    final = _rows_at(position, carried_writers(edited_run))
    s, edited_s = final_scale(clean_run, metric), final_scale(edited_run, metric)

    direct = sum([dot(subtract(e, u), w) / s for (_, e), (_, u) in zip(edited, clean)])
    ledger = [(name, dot(subtract(u, e), w) / s) for (name, u), (_, e) in zip(final, edited)]
    downstream = sum([part for _, part in ledger])
    along = dot(edited_run.states[-1][1][position], w)
    rescale = along / edited_s - along / s
    total = direct + downstream + rescale

    before, after = value(clean_run, metric), value(edited_run, metric)
    added = _products(clean + edited + final, w, s) + _products(final, w, edited_s)
    check = _check(total, after - before, len(final) + len(w), added + [before, after])
    return Effect(before, after, direct, downstream, rescale, total, ledger,
                  _first_order(gradients, written, clean_run.writers), check, edits, edited_run)


def _rows_at(position, writers):
    return [(name, rows[position]) for name, rows in writers]


def _carried_by_clean_norms(clean_run, written):
    """As sums.carried_writers of the clean run, had it written other updates."""
    written = dict(written)
    return [(name, carried(clean_run, name, written[name]) if name in written else rows)
            for name, rows in carried_writers(clean_run)]


def _first_order(gradients, written, clean_writers):
    return sum([dot(gradient, subtract(now, was))
                for (_, gradients_at), (_, rows), (_, clean_rows)
                in zip(gradients, written, clean_writers)
                for gradient, now, was in zip(gradients_at, rows, clean_rows)])


def _products(writers, w, divisor):
    return [a * b / divisor for _, row in writers for a, b in zip(row, w)]


def _check(total, difference, n_terms, added):
    """Whether the parts sum to what the runs say.  Rounding explains one unit in the last place
    of every partial sum, at most n_terms times those of all that was added."""
    error, exact = abs(total - difference), is_exact(total)
    tolerance = 0
    if not exact:
        tolerance = n_terms * rounding_unit(total) * float(sum([abs(a) for a in added]))
    return checked("direct + downstream + rescale = after - before", error, tolerance, exact)


def effects_of(clean_run, edit_lists, metric, frozen=False, executor=None, progress=None):
    """The Effect of every list of edits on one metric of one Run, in order; see sweeps.mapped for
    executor and progress.  The clean run's gradients are worked out once.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> off = [[scale(name, 0)] for name, update in clean.writers]
    >>> [found.total for found in effects_of(clean, off, logit(clean.model, 0, 0))]
    [-60.0, -30.0, -42.0]
    """
    gradients = _gradients(clean_run, metric, frozen)
    return _all([(clean_run, list(edits), metric, frozen, gradients) for edits in edit_lists],
                executor, progress)


def effects_over(cases, frozen=False, executor=None, progress=None):
    """The Effects of cases (Run, edits, Metric), for instance of one edit over many prompts.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> model = small_model()
    >>> cases = [(run(model, [token]), [scale("L0.attn", 0)], logit(model, 0, 0))
    ...          for token in (0, 1)]
    >>> [found.total for found in effects_over(cases)]
    [-30.0, -20.0]
    """
    return _all([(clean_run, list(edits), metric, frozen, None)
                 for clean_run, edits, metric in cases], executor, progress)


def _all(tasks, executor, progress):
    """What other processes send back is on copies of the weights; it is put on the weights that
    were sent, so that results may be compared."""
    found = mapped(_effect, tasks, executor, progress)
    return [_on_model(one, task[0].model) for one, task in zip(found, tasks)]


def _on_model(found, model):
    fields = list(found)
    edited_run = fields.pop()
    return Effect(*fields, Run(model, *list(edited_run)[1:]))


def ranked(effects):
    """Effects by the size of their total, the largest first.  Raises ValueError where they are of
    different weights, or a total is no finite number.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> found = effects_of(clean, [[scale("L0.attn", 0)], [scale("L0.mlp", 0)]],
    ...                    logit(clean.model, 0, 0))
    >>> [one.edits[0].writer for one in ranked(found)]
    ['L0.mlp', 'L0.attn']
    """
    effects = list(effects)
    check_same_weights("ranked", [found.edited_run for found in effects])
    return [effects[i] for i in largest_first("ranked", [found.total for found in effects])]


# ---- the other convention ----

def effect_by_restoring(clean_run, edits, metric):
    """What the edited writes do besides what later writers and the norm make of them, by another
    convention: everything reacts, then the writers' own clean writes are put back into the final
    stream, and what that changes is their effect.

    It equals Effect.direct where the metric is linear in the final stream, that is where the final
    norm's divisor is given or there is no final norm.  Raises ValueError under post-norm, where a
    write does not reach the final stream as it is.

    >>> from pyres.edits import scale
    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> effect_by_restoring(clean, [scale("L0.attn", 0)], logit(clean.model, 0, 0))
    -12.0
    """
    if any([block.placement == "post_norm" for block in clean_run.model.config.blocks]):
        raise ValueError("effect_by_restoring: under post_norm no write reaches the final stream "
                         "as it is; ask effect")
    edits = list(edits)
    taken = zeros_like(clean_run.states[-1][1])
    for (_, was), (_, now) in zip(clean_run.writers, edited_updates(clean_run, edits)):
        taken = add(taken, subtract(was, now))
    # nobody reads what the last writer adds, but for the final norm
    last = clean_run.writers[-1][0]
    edited = run(clean_run.model, clean_run.tokens, clean_run.edits + edits)
    restored = run(clean_run.model, clean_run.tokens,
                   clean_run.edits + edits + [shift(last, taken)])
    return value(edited, metric) - value(restored, metric)
