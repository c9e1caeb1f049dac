"""The gradient by the branches that it passed.

Through n steps the gradient is a product of (I + J_k), which multiplied out is a sum over 2^n
paths: at each step a path goes through the branch or around it.  Under post_norm both ways pass
the step's norm first.  Few paths can be taken one by one; for any number of steps their sums by
length, that is by how many branches they go through, cost n (n + 1) / 2 pullbacks.  After Veit,
Wilber and Belongie, "Residual networks behave like ensembles of relatively shallow networks",
2016.  This module is part of the portable core.

    path_length_gradients    the gradient by path length
    Path, paths              the paths themselves, where there are few
    Mass, masses             how much each of these is of the whole
    PathCheck, path_check    whether they sum to the whole

The gradient of token 0's logit, with branches of slope 1/2 and 3/2:

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> r = run(small_model(), [0])
>>> for path in paths(r, logit(r.model, 0, target=0)):
...     print(path.through, path.gradient)
() [[1.0]]
('L0.attn',) [[0.5]]
('L0.mlp',) [[1.5]]
('L0.attn', 'L0.mlp') [[0.75]]
"""
import math
from collections import namedtuple

from ..linalg import add, copied, dot, subtract
from ..sums import rounding_unit
from .gradients import gradient_length, step_names, step_pullback
from .metrics import final_gradient

__all__ = ["path_length_gradients", "Path", "MOST_STEPS", "paths", "Mass", "masses", "PathCheck",
           "path_check"]


def path_length_gradients(run_record, metric):
    """The gradient at the first state by path length: [g_0, ..., g_n], [n_tokens][d_model] each.
    g_l is the sum over all paths that go through l branches and around the others; together they
    are the whole gradient.

    Step by step, from the last to the first,

        g_l becomes g_l + Jᵀ g_(l-1)

    so that 2^n paths through n steps cost n (n + 1) / 2 pullbacks.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> path_length_gradients(r, logit(r.model, 0, 0))                # 1, 1/2 + 3/2, 1/2 * 3/2
    [[[1.0]], [[2.0]], [[0.75]]]
    """
    gradients = [final_gradient(run_record, metric)]
    for step in reversed(step_names(run_record)):
        parts = [step_pullback(g, run_record, step) for g in gradients]
        around, through = [p.identity for p in parts], [p.branch for p in parts]
        gradients = ([around[0]] + [add(a, b) for a, b in zip(around[1:], through)]
                     + [through[-1]])
    return gradients


class Path(namedtuple("Path", ("through", "gradient"))):
    """One path: the names of the steps through whose branches it goes, in the stream's order, and
    what arrives along it at the first state [n_tokens][d_model]."""


MOST_STEPS = 10


def paths(run_record, metric):
    """Every Path, the shortest first; together they are the whole gradient.  n steps have 2^n
    paths, and ValueError is raised for more than MOST_STEPS steps.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> r = run(small_model(), [0])
    >>> [path.through for path in paths(r, logit(r.model, 0, 0))]
    [(), ('L0.attn',), ('L0.mlp',), ('L0.attn', 'L0.mlp')]
    """
    steps = step_names(run_record)
    if len(steps) > MOST_STEPS:
        raise ValueError(f"paths: {len(steps)} steps have 2**{len(steps)} paths, and at most "
                         f"{MOST_STEPS} steps are taken apart; path_length_gradients adds up the "
                         "paths of each length, for any number of steps")
    found = [Path((), final_gradient(run_record, metric))]
    for step in reversed(steps):
        forks = [(path, step_pullback(path.gradient, run_record, step)) for path in found]
        found = ([Path(path.through, parts.identity) for path, parts in forks]
                 + [Path((step,) + path.through, parts.branch) for path, parts in forks])
    return sorted(found, key=lambda path: (len(path.through),
                                           [steps.index(step) for step in path.through]))


# ---- how much of the whole ----

class Mass(namedtuple("Mass", ("length", "share"))):
    """How much a part of the gradient is of the whole.

    length    the part's own length, over all positions
    share     its inner product with the whole, over the whole's with itself: shares sum to 1, and
              one below 0 takes away from the others; None where the whole is 0
    """


def masses(parts):
    """The Mass of every part of a gradient, from the parts [n][n_tokens][d_model].

    >>> masses([[[3.0, 0.0]], [[0.0, 4.0]]])
    [Mass(length=3.0, share=0.36), Mass(length=4.0, share=0.64)]
    """
    whole = sum_of(parts)
    size = _inner(whole, whole)
    return [Mass(gradient_length(part), _inner(part, whole) / size if size else None)
            for part in parts]


def _inner(x, y):
    return sum([dot(a, b) for a, b in zip(x, y)])


def sum_of(parts):
    """The sum of gradients of one shape."""
    whole = copied(parts[0])
    for part in parts[1:]:
        whole = add(whole, part)
    return whole


class PathCheck(namedtuple("PathCheck", ("error", "tolerance", "ok"))):
    """Whether parts sum to a gradient: the largest difference, what rounding explains (0 in exact
    numbers), and whether it does."""


# Each part went through all the layers, and may have lost three or four digits there.
LOST = 2.0 ** 12


def path_check(parts, gradient):
    """Whether parts [n][n_tokens][d_model] sum to a gradient [n_tokens][d_model] -> PathCheck.

    >>> path_check([[[1.0]], [[2.75]]], [[3.75]])
    PathCheck(error=0.0, tolerance=3.410605131648481e-12, ok=True)
    """
    gaps = [abs(a) for row in subtract(sum_of(parts), gradient) for a in row]
    # the maximum of numbers among which there is a NaN depends on their order; their sum is NaN
    error = max(gaps) if all([gap == gap for gap in gaps]) else sum(gaps)
    size = float(sum([max([abs(a) for row in part for a in row]) for part in parts]))
    unit = max([rounding_unit(a) for row in gradient for a in row])
    tolerance = LOST * unit * size
    return PathCheck(error, tolerance, error <= tolerance < math.inf)
