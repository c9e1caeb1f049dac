"""A gradient held against what it claims: how fast a metric moves when a state of the stream does.

A gradient g at a state says that a small move v of the state moves the metric by the inner product
of g and v.  Here the state is moved and the rest of the model is run.  No backward is used for
that, so the check can fail.  The model's numbers are floats.  This module is part of the portable
core.

    SlopeCheck, slope_checks

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> r = run(small_model(), [0])
>>> [check.ok for check in slope_checks(r, logit(r.model, 0, 0))]
[True, True, True]
"""
import math
from collections import namedtuple

from ..edits import set_state
from ..model import run
from ..rng import Generator, normal_tensor
from .gradients import gradient_length, state_gradients
from .metrics import value

__all__ = ["SlopeCheck", "slope_checks"]


class SlopeCheck(namedtuple("SlopeCheck", ("state", "method", "by_gradient", "by_step", "error",
                                           "tolerance", "ok"))):
    """A gradient at a state against how fast the metric really moves.

    state          where the stream is moved
    method         "complex step" or "differences"
    by_gradient    the inner product of gradient and direction
    by_step        the metric's slope along the direction, found by running the model
    error          how far they are apart
    tolerance      what the method and rounding explain
    ok             error <= tolerance, which is finite
    """


# The square of a complex step is below every rounding, and nothing is subtracted.  A float of size
# 1 is known to 2**-52; sums of thousands of terms through some layers lose three or four of its
# sixteen digits, a wrong formula leaves two or three.
TINY, FINE = 1e-30, 2.0 ** -40
# Differences subtract nearly equal numbers: half of the digits are left at best.
WIDE, COARSE = 2.0 ** -10, 2.0 ** -26


def slope_checks(run_record, metric, seed=0):
    """Move each state in turn in a random direction and run the rest of the model -> a SlopeCheck
    of the metric's gradient at every state, in order.

    A complex step where complex numbers reach: f(x + ih) = f(x) + ih f'(x) + ..., so the slope is
    the imaginary part over h.  Where they do not (the erf of gelu), differences over h and h / 2:
    the error of each grows with h², a third of their distance is taken off the finer one, and the
    distance itself is allowed for.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> [(check.state, check.method) for check in slope_checks(r, logit(r.model, 0, 0))]
    [('embed', 'complex step'), ('L0.attn', 'complex step'), ('L0.mlp', 'complex step')]
    """
    generator, gradients = Generator(seed), dict(state_gradients(run_record, metric))
    return [_check(run_record, metric, name, gradients[name].total, generator)
            for name, _ in run_record.states]


def _check(run_record, metric, state, gradient, generator):
    """The SlopeCheck of one state, whose gradient is [n_tokens][d_model]."""
    stream = dict(run_record.states)[state]
    direction = normal_tensor(generator, (len(stream), len(stream[0])))
    terms = [g * v for g_row, v_row in zip(gradient, direction) for g, v in zip(g_row, v_row)]
    size = sum([abs(term) for term in terms])

    def moved(step):
        """The metric where the state is moved by step * direction."""
        there = [[x + v * step for x, v in zip(*rows)] for rows in zip(stream, direction)]
        edits = list(run_record.edits) + [set_state(state, there)]
        return value(run(run_record.model, run_record.tokens, edits), metric)

    try:
        method, slope, tolerance = "complex step", moved(TINY * 1j).imag / TINY, FINE * size
    except TypeError:
        h = WIDE * (gradient_length(stream) / gradient_length(direction) or 1)
        wide, narrow = [(moved(h) - moved(-h)) / (2 * h) for h in (h, h / 2)]
        method, slope = "differences", narrow + (narrow - wide) / 3
        tolerance = abs(narrow - wide) + COARSE * (size + abs(value(run_record, metric)))
    error = abs(sum(terms) - slope)
    return SlopeCheck(state, method, sum(terms), slope, error, tolerance,
                      error <= tolerance < math.inf)
