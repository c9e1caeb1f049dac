"""Metrics: the numbers that studies ask about, each linear in the normed final stream.

A logit is an inner product with the final norm's output, plus constants.  With n the normed stream
before gain and bias, at the metric's position, W_U[v] the target's row of the unembedding, g and
bias the final norm's, and c the logit multiplier (1 where there is none):

    logit_v = dot(n, direction) + constant
    direction = c * g * W_U[v]              constant = c * dot(bias, W_U[v]) + b_U[v]

LayerNorm takes the mean away before it divides, so the direction is centred along d_model, which
changes no inner product with n.  Then, with s the final norm's divisor,

    metric = dot(x_final, direction) / s + constant

and every writer of the stream has its share of it.  No weight is folded.  A soft cap comes after:
metrics are taken before it.  This module is part of the portable core.

    Metric                       position, direction, constant, normed, name
    logit, centred_logit         a target's logit, less a foil's, or less the mean of all
    along                        the normed or the bare final stream along any direction
    value                        what a run gives for a metric
    final_gradient               its gradient at the final stream
    final_scale                  s

>>> from pyres.model import run, small_model
>>> model = small_model()                               # token 0's logit is the final stream
>>> value(run(model, [0]), logit(model, 0, target=0))
70.0
"""
from collections import namedtuple

from ..linalg import add, check_length, check_numbers, dot, multiply, scale, subtract, zeros_like
from ..norms import layer_norm_backward_from, rms_norm_backward_from
from ..scalar import check_constant

__all__ = ["Metric", "logit", "centred_logit", "along", "value", "final_gradient", "final_scale"]


class Metric(namedtuple("Metric", ("position", "direction", "constant", "normed", "name"))):
    """A number that is linear in the final stream at one position.

    position     of the token
    direction    [d_model]
    constant     what no writer of the stream gives
    normed       whether the final norm stands before the direction
    name         in words
    """


def logit(model, position, target, foil=None):
    """The Metric of a target's logit at a position, less a foil's where there is one.

    Raises ValueError for a token outside the vocabulary, TypeError for one that is no int.

    >>> from pyres.model import small_model
    >>> logit(small_model(), 0, 0, foil=1)
    Metric(position=0, direction=[1.0], constant=0, normed=True, name='logit of 0 less that of 1')
    """
    row, bias, name = _row(model, target), _bias(model, target), f"logit of {target}"
    if foil is not None:
        row, bias = subtract(row, _row(model, foil)), bias - _bias(model, foil)
        name += f" less that of {foil}"
    return _of_rows(model, position, row, bias, name)


def centred_logit(model, position, target):
    """The Metric of a target's logit less the mean of all logits.

    >>> from pyres.model import small_model
    >>> centred_logit(small_model(), 0, 0).direction
    [0.5]
    """
    w = model.weights
    table = w.w_embed if w.w_unembed is None else w.w_unembed
    means = [sum(column) / len(table) for column in zip(*table)]
    mean_bias = 0 if w.b_unembed is None else sum(w.b_unembed) / len(table)
    return _of_rows(model, position, subtract(_row(model, target), means),
                    _bias(model, target) - mean_bias, f"logit of {target} less the mean")


def along(model, position, direction, normed=True, name="direction"):
    """The Metric dot(direction, final stream) at a position: [d_model].  normed takes the final
    norm's output, gain and bias included, in place of the stream itself.

    >>> from pyres.model import small_model
    >>> along(small_model(), 0, [3.0], normed=False).direction
    [3.0]
    """
    check_numbers("along", direction)
    check_length("along", "the direction", direction, model.config.d_model)
    if not normed:
        return Metric(_checked_position(position), list(direction), 0, False, name)
    return _through_final_norm(model, position, direction, 0, name)


def _checked_position(position):
    if type(position) is not int or position < 0:
        raise ValueError(f"metric: position is {position!r}, expected a whole number from 0 on")
    return position


def _row(model, token):
    """A token's row of the unembedding."""
    if type(token) is not int:
        raise TypeError(f"logit: the token is {token!r}; a token is an int")
    if not 0 <= token < model.config.d_vocab:
        raise ValueError(f"logit: there is no token {token}; the vocabulary has "
                         f"{model.config.d_vocab} (0 to {model.config.d_vocab - 1})")
    w = model.weights
    return (w.w_embed if w.w_unembed is None else w.w_unembed)[token]


def _bias(model, token):
    b = model.weights.b_unembed
    return 0 if b is None else b[token]


def _of_rows(model, position, row, bias, name):
    """The Metric of a row of the unembedding and its bias."""
    multiplier = model.config.logit_multiplier
    if multiplier is not None:
        check_constant("logit: the logit multiplier", multiplier, row[0])
        row = scale(multiplier, row)
    return _through_final_norm(model, position, row, bias, name)


def _through_final_norm(model, position, row, constant, name):
    """dot(row, the final norm's output) + constant, as a Metric."""
    norm, w = model.config.final_norm, model.weights.final_norm
    if norm is None:
        return Metric(_checked_position(position), list(row), constant, True, name)
    if w.bias is not None:
        constant = dot(w.bias, row) + constant
    direction = list(row) if w.gain is None else multiply(w.gain, row)
    if norm.kind == "layer":
        mean = sum(direction) / len(direction)
        direction = [a - mean for a in direction]
    return Metric(_checked_position(position), direction, constant, True, name)


def value(run_record, metric):
    """What a Run gives for a metric.  Raises ValueError for a position that is not there.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> value(run(model, [0, 1]), centred_logit(model, 0, 0))
    35.0
    """
    _, final = run_record.states[-1]
    return (dot(final[_position_in(run_record, metric)], metric.direction)
            / final_scale(run_record, metric) + metric.constant)


def _position_in(run_record, metric):
    n_tokens = len(run_record.tokens)
    if metric.position >= n_tokens:
        raise ValueError(f"metric: there is no position {metric.position}; "
                         f"the run has {n_tokens} tokens, 0 to {n_tokens - 1}")
    return metric.position


def final_scale(run_record, metric):
    """The divisor that stands between the final stream and a metric: the final norm's at the
    metric's position, 1 where there is no norm.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> final_scale(run(model, [0]), logit(model, 0, 0))
    1
    """
    position, scales = _position_in(run_record, metric), run_record.steps.final_norm.scale
    return scales[position] if metric.normed and scales is not None else 1


def final_gradient(run_record, metric, frozen=False):
    """The gradient of a metric at the final stream, [n_tokens][d_model].

    Only the metric's position has one.  Through the norm as it is, a change of the stream moves
    the divisor, too; frozen keeps the divisor that the run had.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> final_gradient(run(model, [0, 1]), logit(model, 1, 0))
    [[0.0], [1.0]]
    """
    position, divisor = _position_in(run_record, metric), final_scale(run_record, metric)
    norm, steps = run_record.model.config.final_norm, run_record.steps.final_norm
    if not metric.normed or norm is None or frozen or norm.scale is not None:
        gradient = [a / divisor for a in metric.direction]
    elif norm.kind == "layer":
        gradient, _, _ = layer_norm_backward_from(
            metric.direction, divisor, steps.normalized[position])
    else:
        gradient, _ = rms_norm_backward_from(
            metric.direction, divisor, steps.normalized[position])
    rows = zeros_like(run_record.states[-1][1])
    return rows[:position] + [add(rows[position], gradient)] + rows[position + 1:]
