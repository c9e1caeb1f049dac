"""All subsets of some writers: what each is worth, alone and together.

With n writers there are 2^n subsets.  v(S) is the metric where the writers of S write and the
others of the n are switched off, by edits.scale to 0; all other writers work on.  Two accounts of
the same 2^n numbers, and what both sum to:

    Shapley value        phi(i) = sum over S without i of
                                  |S|! (n - |S| - 1)! / n! * (v(S and i) - v(S))
    Harsanyi dividend    d(S) = v(S) - sum over smaller T in S of d(T)
    sum check            sum of phi(i) = sum of d(S), S not empty = v(all) - v(none)

phi(i) is what i adds when the writers are switched on in random order, on average over all n!
orders (Shapley, "A value for n-person games", 1953).  d(S) of two or more writers is their
interaction: what they do together that no smaller group of them does (Harsanyi, 1963).  A dividend
is shared equally: phi(i) is the sum of d(S) / |S| over the S with i.

A writer that is off in a trained model is not one that the model was trained without.  This module
is part of the portable core.

    Subsets, subsets    the values, and both accounts
    shapley_values      from the values alone
    dividends           likewise
    interactions        the dividends of two writers or more, the largest first
    subset_names        which writers a place in the lists stands for

A subset is numbered by its writers: writer k counts 2^k, so that 0 is none and 2^n - 1 all.

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> clean = run(small_model(), [0])                  # 16 is embedded; the MLP adds 3/2 of the rest
>>> found = subsets(clean, ["L0.attn", "L0.mlp"], logit(clean.model, 0, 0))
>>> found.values                                     # none, attention, MLP, both
[16.0, 28.0, 40.0, 70.0]
>>> found.dividends, found.shapley
([16.0, 12.0, 24.0, 18.0], [21.0, 33.0])
"""
from collections import namedtuple

from ..edits import scale
from ..model import run
from ..scalar import is_exact
from ..sums import checked, rounding_unit
from .metrics import value
from .references import check_writers
from .sensitivity import check_updates_only
from .sweeps import largest_first, mapped

__all__ = ["Subsets", "subsets", "shapley_values", "dividends", "interactions", "subset_names"]

MOST_WRITERS = 12


class Subsets(namedtuple("Subsets", ("writers", "values", "shapley", "dividends", "checks",
                                     "clean_run"))):
    """What every subset of some writers is worth.

    writers              [n] names
    values, dividends    [2^n], by the subset's number
    shapley              [n]
    checks               two SumChecks: the Shapley values, and the dividends, sum to what all
                         writers give more than none
    clean_run            the Run with all of them, on whose weights all this was found
    """


def subsets(clean_run, writers, metric, executor=None, progress=None):
    """The Subsets of up to 12 writers of a Run, of any kind: 2^n runs.  See sweeps.mapped.

    Raises ValueError for more writers, for one that is named twice or not there.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> subsets(clean, ["L0.mlp.N0"] * 20, logit(clean.model, 0, 0))
    Traceback (most recent call last):
    ValueError: subsets: 20 writers have 2^20 subsets, a run each; name at most 12, or ask \
effects_of for each writer by itself
    """
    writers = list(writers)
    n = len(writers)
    if n > MOST_WRITERS:
        raise ValueError(f"subsets: {n} writers have 2^{n} subsets, a run each; name at most "
                         f"{MOST_WRITERS}, or ask effects_of for each writer by itself")
    if len(set(writers)) < n:
        raise ValueError(f"subsets: a writer is named twice in {', '.join(writers)}")
    check_updates_only("subsets", clean_run.edits)
    check_writers(clean_run, [scale(writer, 0) for writer in writers])
    values = mapped(_value_of, [(clean_run.model, clean_run.tokens,
                                 clean_run.edits + _off(writers, subset), metric)
                                for subset in range(2 ** n)], executor, progress)
    shapley, found = shapley_values(values), dividends(values)
    checks = [_check("Shapley values", shapley, values), _check("dividends", found[1:], values)]
    return Subsets(writers, values, shapley, found, checks, clean_run)


def _off(writers, subset):
    return [scale(writer, 0) for k, writer in enumerate(writers) if not subset >> k & 1]


def _value_of(task):
    model, tokens, edits, metric = task
    return value(run(model, tokens, edits), metric)


def _check(what, terms, values):
    """Every value was subtracted and added up to len(values) times: rounding explains as many
    units in its last place."""
    error, exact = abs(sum(terms) - (values[-1] - values[0])), is_exact(sum(values))
    tolerance = 0
    if not exact:
        sizes = float(sum([abs(a) for a in list(terms) + values]))
        tolerance = len(values) * rounding_unit(values[0]) * sizes
    return checked(f"{what} sum to all - none", error, tolerance, exact)


# ---- from the values of all subsets ----

def shapley_values(values):
    """The Shapley value of each of n writers, from the values [2^n] of all subsets.

    In whole numbers over n!, so that exact values stay exact.  Raises ValueError for a list whose
    length is no power of 2.

    >>> shapley_values([0, 0, 0, 6])                  # neither does anything without the other
    [3.0, 3.0]
    """
    n = _n_writers(values)
    orders = _factorials(n)
    shapley = []
    for i in range(n):
        added = [0] * n                               # by how many writers are on already
        for subset in range(len(values)):
            if not subset >> i & 1:
                size = _size(subset)
                added[size] = added[size] + (values[subset | 1 << i] - values[subset])
        shapley.append(sum([orders[size] * orders[n - size - 1] * added[size]
                            for size in range(n)]) / orders[n])
    return shapley


def _n_writers(values):
    n = 0
    while 2 ** n < len(values):
        n += 1
    if 2 ** n != len(values):
        raise ValueError(f"subsets: {len(values)} values were given; n writers have 2^n subsets")
    return n


def _factorials(n):
    found = [1]
    for k in range(1, n + 1):
        found.append(found[-1] * k)
    return found


def _size(subset):
    size = 0
    while subset:
        size, subset = size + (subset & 1), subset >> 1
    return size


def dividends(values):
    """The Harsanyi dividend of every subset, from the values [2^n] of all subsets; that of none is
    its value.  Raises as shapley_values does.

    One writer after the other is taken out: what a subset with it is worth loses what the subset
    without it is worth.

    >>> dividends([0, 1, 2, 6])                       # together they are worth 3 more than 1 + 2
    [0, 1, 2, 3]
    """
    found = list(values)
    for i in range(_n_writers(values)):
        for subset in range(len(found)):
            if subset >> i & 1:
                found[subset] = found[subset] - found[subset ^ 1 << i]
    return found


def interactions(found):
    """The dividends of two writers or more of Subsets, the largest in size first: pairs (names,
    dividend).  Raises ValueError where one is no finite number.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> clean = run(small_model(), [0])
    >>> interactions(subsets(clean, ["L0.attn", "L0.mlp"], logit(clean.model, 0, 0)))
    [(['L0.attn', 'L0.mlp'], 18.0)]
    """
    together = [(subset_names(found.writers, subset), dividend)
                for subset, dividend in enumerate(found.dividends) if _size(subset) > 1]
    return [together[i] for i in
            largest_first("interactions", [dividend for _, dividend in together])]


def subset_names(writers, subset):
    """The names of the writers in a subset, by its number.

    >>> subset_names(["L0.attn", "L0.mlp", "L1.attn"], 5)
    ['L0.attn', 'L1.attn']
    """
    return [writer for k, writer in enumerate(writers) if subset >> k & 1]
