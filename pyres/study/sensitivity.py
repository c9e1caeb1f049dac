"""How a metric moves when an update does: its gradient at every update, and its slope in alpha.

With u the update of a writer, g the metric's gradient at it, and alpha the factor of
edits.scale(writer, alpha), the update that is added is alpha * u, so

    d metric / d alpha = sum over tokens t of dot(g[t], u[t])

with g taken in the run with that alpha.  At alpha 1 nothing is edited, and it is the gradient at
the branch's output times the update.  At another alpha it is another number: the slope of a curve,
of which `sweep` gives points.  This module is part of the portable core.

    update_gradients                   at every update as it was added
    write_gradient                     at what a finer writer adds to its branch's output
    Sensitivity, sensitivity, sweep    value and slope at one alpha, at several

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> model = small_model()                    # the MLP adds 3/2 of what it finds, attention 12
>>> sensitivity(run(model, [0]), "L0.attn", 1, logit(model, 0, 0))
Sensitivity(alpha=1, value=70.0, slope=30.0)
"""
from collections import namedtuple

from ..blocks import branch_update_backward, norm_backward
from ..edits import StateEdit, checked_positions, edit_update_backward, scale
from ..linalg import dot
from ..model import block_edits, run, stream_backward
from .metrics import final_gradient, value
from .references import branch_of, edits_of_part, raw_write
from .sweeps import mapped

__all__ = ["check_updates_only", "update_gradients", "write_gradient", "Sensitivity",
           "sensitivity", "sweep"]


def check_updates_only(name, edits):
    """Raise ValueError where a state is set: that deletes every earlier update as well, and is no
    edit of one.

    >>> from pyres.edits import set_state
    >>> check_updates_only("effect", [set_state("L0.attn", [[0.0]])])
    Traceback (most recent call last):
    ValueError: effect: set_state at L0.attn erases every earlier write and is no edit of an \
update; compare.compare(clean, edited, metric) says what it changes
    """
    for edit in edits:
        if isinstance(edit, StateEdit):
            raise ValueError(f"{name}: set_state at {edit.state} erases every earlier write and "
                             "is no edit of an update; compare.compare(clean, edited, metric) "
                             "says what it changes")


# ---- gradients ----

def update_gradients(run_record, metric):
    """The gradient of a metric at every update of a Run as it was added, later sublayers and norms
    included: pairs (writer, [n_tokens][d_model]).

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> model = small_model()
    >>> update_gradients(run(model, [0]), logit(model, 0, 0))
    [('embed', [[3.75]]), ('L0.attn', [[2.5]]), ('L0.mlp', [[1.0]])]
    """
    check_updates_only("update_gradients", run_record.edits)
    _, _, _, stream = stream_backward(final_gradient(run_record, metric), run_record)
    at_states = {name: gradient.total for name, gradient in stream}
    return [(name, _at_update(run_record, name, at_states)) for name, _ in run_record.writers]


def _at_update(run_record, writer, at_states):
    """A sum hands its gradient to each term, so the update's is that of the state behind it."""
    if writer == "embed":
        return at_states[writer]
    i, branch = _block_and_branch(writer)
    # in a parallel block both updates go into one sum
    d_state = at_states[writer if writer in at_states else f"L{i}.mlp"]
    block, w = run_record.model.config.blocks[i], run_record.model.weights.blocks[i]
    if block.placement != "post_norm":
        return d_state
    # forward: state = N(x + update)
    return _norm_behind_backward(d_state, run_record.steps.blocks[i], w, block, branch)


def _block_and_branch(writer):
    parts = writer.split(".")
    return int(parts[0][1:]), parts[1]


def _norm_behind_backward(d_out, steps, w, block, branch):
    name = f"{branch}_post_norm"
    return norm_backward(d_out, getattr(steps, name), getattr(w, name), getattr(block, name))[0]


def write_gradient(run_record, writer, gradients):
    """The gradient [n_tokens][d_model] at what a writer of any kind adds, see
    references.raw_write; gradients are update_gradients' of the run.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model("sandwich"), [0])                 # a norm halves what the head adds
    >>> gradients = update_gradients(r, logit(r.model, 0, 0))
    >>> dict(gradients)["L0.attn"], write_gradient(r, "L0.attn.H0", gradients)
    ([[1.75]], [[0.875]])
    """
    d_update = dict(gradients)[branch_of(writer)]
    if writer == branch_of(writer):
        return d_update
    i, branch = _block_and_branch(writer)
    steps, w = run_record.steps.blocks[i], run_record.model.weights.blocks[i]
    block = run_record.model.config.blocks[i]
    given = block_edits(run_record.edits, i, block)
    # forward: update = branch_update(N(out)), where there is such a norm
    d_out, _ = branch_update_backward(d_update, getattr(steps, branch).out,
                                      getattr(w, f"{branch}_multiplier"), block,
                                      getattr(given, branch))
    if block.placement != "post_norm":
        d_out = _norm_behind_backward(d_out, steps, w, block, branch)
    parts = writer.split(".")
    if len(parts) < 4:
        return d_out
    # forward: what a head writes from its sources is edited as the head is
    return edit_update_backward(d_out, edits_of_part(given.heads, int(parts[2][1:])))


# ---- slopes in alpha ----

class Sensitivity(namedtuple("Sensitivity", ("alpha", "value", "slope"))):
    """A metric with a writer's update times alpha, and its derivative there with respect to alpha.
    """


def sensitivity(clean_run, writer, alpha, metric, positions=None):
    """The Sensitivity of a metric to alpha in scale(writer, alpha, positions): exact, by backward.

    The writer may be of any kind.  Raises as model.run does; ValueError where a state is set.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> sensitivity(r, "L0.attn.H0", 0, logit(r.model, 0, 0))
    Sensitivity(alpha=0, value=50.0, slope=20.0)
    """
    write, edit = raw_write(clean_run, writer), scale(writer, alpha, positions)
    edited = run(clean_run.model, clean_run.tokens, clean_run.edits + [edit])
    # nothing before the writer is edited, so what is scaled is what the clean run wrote
    gradient = write_gradient(edited, writer, update_gradients(edited, metric))
    slope = sum([dot(d, u) for t, (d, u) in enumerate(zip(gradient, write))
                 if edit.positions is None or t in edit.positions])
    return Sensitivity(alpha, value(edited, metric), slope)


def sweep(clean_run, writer, alphas, metric, positions=None, executor=None, progress=None):
    """The Sensitivity at every alpha, in order; see sweeps.mapped for executor and progress.

    In a model without a curve anywhere the slope is one and the same:

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> points = sweep(r, "L0.attn", [0, 0.5, 1], logit(r.model, 0, 0))
    >>> [(point.value, point.slope) for point in points]
    [(40.0, 30.0), (55.0, 30.0), (70.0, 30.0)]
    """
    positions = checked_positions("sweep", positions)
    return mapped(_point, [(clean_run, writer, alpha, metric, positions) for alpha in alphas],
                  executor, progress)


def _point(task):
    return sensitivity(*task)
