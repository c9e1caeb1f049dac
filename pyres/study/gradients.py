"""How a gradient comes down the stream: its two parts, its Jacobians, with and without skips.

A step of the stream is x' = x + f(x).  Its Jacobian is I + J, with J that of the branch f, and so
the gradient at x has two parts:

    d_x = d_x'  +  Jᵀ d_x'
          identity part, branch part

A step is named by the state that it makes.  A parallel block is one step, I + J_attn + J_mlp.  In
post_norm, x' = N(x + f(x)), both parts pass N first, and the step is N' (I + J).  All J are those
of the run, with its edits.  This module is part of the portable core.

    step_names                        the steps of a run
    branch_pullback, step_pullback    Jᵀ d, and both parts, of one step
    StepJacobian, step_jacobian       I + J, I and J as matrices
    state_gradients                   a metric's gradient at every state
    StateLengths, state_lengths       its length there, and the length of each part
    branch_gradients                  through the branches alone
    rerun, rerun_gradients            a run without the skips, and the gradient through that
    Curves, curves                    the lengths of all three

Nothing here says that a gradient cannot vanish: a branch that takes away what it reads has
I + J = 0.  Nor that it must without skips: `paths` has what passed how many branches.

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> r = run(small_model(), [0])                         # branches of slope 1/2 and 3/2
>>> state_gradients(r, logit(r.model, 0, target=0))[0]
('embed', StateGradient(total=[[3.75]], identity=[[2.5]], branch=[[1.25]]))
"""
from collections import namedtuple

from ..blocks import block_backward, fork, norm_backward, norm_steps
from ..config import BlockConfig
from ..edits import BlockEdits, edit_of_state, edit_state_backward, scale, set_state
from ..linalg import add, copied, dot, zeros_like
from ..model import block_edits, run, stream_backward
from ..scalar import sqrt
from .metrics import final_gradient
from .parts import checked_positions

__all__ = ["step_names", "branch_pullback", "step_pullback", "StepJacobian", "step_jacobian",
           "state_gradients", "gradient_length", "StateLengths", "state_lengths",
           "branch_gradients", "rerun", "rerun_gradients", "Curves", "curves"]


# ---- one step ----

def step_names(run_record):
    """The steps of a run, in order, by the states that they make: all but the first.

    >>> from pyres.model import run, small_model
    >>> step_names(run(small_model(), [0])), step_names(run(small_model("parallel"), [0]))
    (['L0.attn', 'L0.mlp'], ['L0.mlp'])
    """
    return [name for name, _ in run_record.states[1:]]


def step_place(run_record, step):
    """Return (number of the block, "attn" or "mlp"); ValueError for a step that is not there."""
    if step not in step_names(run_record):
        raise ValueError(f"gradients: no step {step!r}; there are "
                         + ", ".join(step_names(run_record)))
    layer, _, branch = step.partition(".")
    return int(layer[1:]), branch


def branch_pullback(d_update, run_record, step):
    """Jᵀ d_update: what a step's branch sends back to the state that it read, [n_tokens][d_model],
    given the gradient at what it added, [n_tokens][d_model].

    The branch is all between the two: the norm it reads through, the sublayer, a norm behind it
    that is not the stream's own, multipliers, the run's edits.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0])
    >>> branch_pullback([[1.0]], r, "L0.attn"), branch_pullback([[1.0]], r, "L0.mlp")
    ([[0.5]], [[1.5]])
    """
    i, branch = step_place(run_record, step)
    config = without_stream_norms(run_record.model.config.blocks[i])
    edits = block_edits(run_record.edits, i, config)
    # With the MLP switched off, the gradient at attention's update is the one at the block's end.
    of_mlp = edits.mlp if branch == "mlp" else [scale("mlp", 0)]
    edits = BlockEdits(edits.attn, of_mlp, edits.heads, edits.patterns, None, None,
                       edits.sources, edits.neurons)
    of_block = block_backward(d_update, run_record.steps.blocks[i],
                              run_record.model.weights.blocks[i], config, edits)
    reads_mid = branch == "mlp" and of_block.resid_mid is not None
    return (of_block.resid_mid if reads_mid else of_block.resid_pre).branch


def without_stream_norms(block):
    """A BlockConfig less the norms on the stream itself, which only post_norm has."""
    if block.placement != "post_norm":
        return block
    return BlockConfig(block.placement, block.attn_norm, block.attention, None, block.mlp_norm,
                       block.d_mlp, block.activation, None, block.residual_multiplier)


def stream_norm(run_record, step):
    """The norm that a step ends with, on the stream itself, as (NormSteps, NormWeights,
    NormConfig); all None where there is none, as in every placement but post_norm."""
    i, branch = step_place(run_record, step)
    if run_record.model.config.blocks[i].placement != "post_norm":
        return None, None, None
    of_block = (run_record.steps, run_record.model.weights, run_record.model.config)
    return tuple([getattr(part.blocks[i], f"{branch}_post_norm") for part in of_block])


def step_pullback(d_state, run_record, step):
    """The StateGradient at the state that a step starts from, given d_state [n_tokens][d_model],
    the gradient at the state that it makes.

    >>> from pyres.model import run, small_model
    >>> step_pullback([[1.0]], run(small_model(), [0]), "L0.mlp")
    StateGradient(total=[[2.5]], identity=[[1.0]], branch=[[1.5]])

    Under post_norm the norm, which halves here, stands before both:

    >>> step_pullback([[1.0]], run(small_model("post_norm"), [0]), "L0.mlp")
    StateGradient(total=[[2.0]], identity=[[0.5]], branch=[[1.5]])
    """
    d_sum = edit_state_backward(copied(d_state), edit_of_state(run_record.edits, step))
    # forward: x' = N(x + f(x)), with no N but in post_norm
    d_sum, _ = norm_backward(d_sum, *stream_norm(run_record, step))
    return fork(d_sum, branch_pullback(d_sum, run_record, step))


class StepJacobian(namedtuple("StepJacobian", ("total", "identity", "branch"))):
    """I + J, I and J of one step, matrices of one size whose rows are outputs.  I is the identity
    but for post_norm, where it is N', and J is N' J."""


def step_jacobian(run_record, step, at, of):
    """The StepJacobian [d_model][d_model] of a step: how its output at position `at` moves with
    its input at position `of`.

    at and of may be lists of positions; the matrices are then [len(at) * d_model][len(of) *
    d_model], position by position.  Each row takes one pullback.  Raises ValueError for a position
    that is not there.

    >>> from pyres.model import run, small_model
    >>> step_jacobian(run(small_model(), [0]), "L0.attn", at=0, of=0)
    StepJacobian(total=[[1.5]], identity=[[1.0]], branch=[[0.5]])
    """
    at, of = [checked_positions(run_record, t if isinstance(t, (list, tuple)) else [t])
              for t in (at, of)]
    rows = []
    for t in at:
        for i in range(run_record.model.config.d_model):
            d_state = zeros_like(run_record.states[-1][1])
            d_state[t][i] += 1
            parts = step_pullback(d_state, run_record, step)
            rows.append([[a for s in of for a in part[s]] for part in parts])
    return StepJacobian(*[[row[part] for row in rows] for part in range(3)])


# ---- at every state ----

def state_gradients(run_record, metric):
    """A metric's gradient at every state: pairs (state, StateGradient), as model.stream_backward
    gives them.  The last state has no parts.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> [(name, gradient.total) for name, gradient in state_gradients(r, logit(r.model, 0, 0))]
    [('embed', [[3.75]]), ('L0.attn', [[2.5]]), ('L0.mlp', [[1.0]])]
    """
    return stream_backward(final_gradient(run_record, metric), run_record)[3]


def gradient_length(rows):
    """The length of a gradient at a state, over all its positions: the root of the sum of the
    squares of [n_tokens][d_model]; None for None.

    >>> gradient_length([[3.0], [4.0]])
    5.0
    """
    return None if rows is None else sqrt(sum([dot(row, row) for row in rows]))


class StateLengths(namedtuple("StateLengths", ("name", "total", "identity", "branch"))):
    """The length of the gradient at a state and of its two parts; the last state has no parts.
    Lengths do not add up, the parts do."""


def state_lengths(run_record, metric):
    """The StateLengths of a metric's gradient, state by state.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> state_lengths(r, logit(r.model, 0, 0))[1:]
    [StateLengths(name='L0.attn', total=2.5, identity=1.0, branch=1.5), \
StateLengths(name='L0.mlp', total=1.0, identity=None, branch=None)]
    """
    return [StateLengths(name, *[gradient_length(part) for part in gradient])
            for name, gradient in state_gradients(run_record, metric)]


# ---- without the skips ----

def branch_gradients(run_record, metric):
    """The product of the J_k alone, without the I: at every state, what of a metric's gradient
    passed every branch above.  [n_states][n_tokens][d_model].

    The J_k are those of the run, whose stream has the skips.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> branch_gradients(r, logit(r.model, 0, 0))                     # 1/2 * 3/2, 3/2, 1
    [[[0.75]], [[1.5]], [[1.0]]]
    """
    gradients = [final_gradient(run_record, metric)]
    for step in reversed(step_names(run_record)):
        gradients = [step_pullback(gradients[0], run_record, step).branch] + gradients
    return gradients


def rerun(run_record):
    """The Run without the skips: x = f(x) in place of x + f(x), N(f(x)) under post_norm, with the
    same edits.  Each step reads what the one before it gave and nothing else.

    It is a run of the model in which set_state puts the update in the place of every state, so its
    writers are the f(x).

    >>> from pyres.model import run, small_model
    >>> rerun(run(small_model(), [0])).states                         # 16 / 2 + 4, 12 / 2 * 3
    [('embed', [[16.0]]), ('L0.attn', [[12.0]]), ('L0.mlp', [[18.0]])]
    """
    edits, again = list(run_record.edits), run_record
    for step in step_names(run_record):
        if edit_of_state(run_record.edits, step) is None:
            norm = skipless_norm(again, step)
            edits.append(set_state(step, norm[0].out))
            again = run(run_record.model, run_record.tokens, edits)
    return again


def skipless_norm(again, step):
    """(NormSteps, NormWeights, NormConfig) of N(f(x)), with f(x) a step's update in a Run."""
    i, branch = step_place(again, step)
    update = dict(again.writers)[step]
    if again.model.config.blocks[i].placement == "parallel":
        update = add(dict(again.writers)[f"L{i}.attn"], update)
    _, w, config = stream_norm(again, step)
    return norm_steps(update, w, config), w, config


def rerun_gradients(run_record, metric):
    """The gradient of a metric of rerun(run_record) at each of its states,
    [n_states][n_tokens][d_model].

    These J_k are others than branch_gradients': the branches read other states.  Nor must the
    gradient become smaller with every step: a norm brings what a branch reads to one length again.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> rerun_gradients(r, logit(r.model, 0, 0))
    [[[0.75]], [[1.5]], [[1.0]]]
    """
    again = rerun(run_record)
    gradients = [final_gradient(again, metric)]
    for step in reversed(step_names(again)):
        d_state = edit_state_backward(gradients[0], edit_of_state(run_record.edits, step))
        # forward: x' = N(f(x))
        d_update, _ = norm_backward(d_state, *skipless_norm(again, step))
        gradients = [branch_pullback(d_update, again, step)] + gradients
    return gradients


class Curves(namedtuple("Curves", ("states", "whole", "branches", "rerun"))):
    """The length of a metric's gradient at every state, three times.

    states      names
    whole       of the gradient as it is
    branches    of branch_gradients: the same run, the skips left out of the product
    rerun       of rerun_gradients: the skips left out of the run
    """


def curves(run_record, metric):
    """The Curves of a metric.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> curves(r, logit(r.model, 0, 0)).whole
    [3.75, 2.5, 1.0]
    """
    whole = [gradient.total for _, gradient in state_gradients(run_record, metric)]
    return Curves([name for name, _ in run_record.states], *[
        [gradient_length(rows) for rows in gradients] for gradients in (
            whole, branch_gradients(run_record, metric), rerun_gradients(run_record, metric))])
