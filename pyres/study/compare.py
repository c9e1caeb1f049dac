"""Two runs side by side, and what their difference answers.

Switching a branch of a trained model off asks what that branch does in that model.  Training a
model without the branch asks what can be learned without it.  The two are easily taken for one
another, so runs on different weights are compared only where that is said.  This module is part of
the portable core.

    Comparison, compare

>>> from pyres.config import attention_config, block_config, model_config
>>> from pyres.edits import scale
>>> from pyres.model import make_model, run
>>> from pyres.weights import random_weights
>>> config = model_config(d_model=4, d_vocab=5, n_ctx=8, n_layers=1,
...                       block=block_config(8, attention_config(n_heads=2, d_head=2)))
>>> model = make_model(config, random_weights(config, std=0.5))
>>> whole, off = run(model, [3, 1, 4]), run(model, [3, 1, 4], [scale("L0.attn", 0)])
>>> found = compare(whole, off, lambda r: r.logits[-1][0])
>>> found.same_weights, found.question
(True, 'what the edit does in this model')
>>> other = run(make_model(config, random_weights(config, seed=1, std=0.5)), [3, 1, 4])
>>> compare(whole, other, lambda r: r.logits[-1][0])
Traceback (most recent call last):
ValueError: compare: the runs are on different weights, which is no edit's effect; \
different_weights=True if two trainings are meant
"""
from collections import namedtuple

__all__ = ["Comparison", "compare"]


class Comparison(namedtuple("Comparison", ("base", "other", "difference", "same_weights",
                                           "question"))):
    """What two runs give for one metric.

    base, other     the metric of each
    difference      other - base
    same_weights    whether both ran on the same weights
    question        what the difference answers, in words
    """


def compare(base, other, metric, different_weights=False):
    """Compare two Runs by a metric, a function from a Run to a number -> Comparison.

    Runs are on the same weights when their `model.weights` is the same object.  Raises ValueError
    where it is not, unless different_weights says that this is what is meant.
    """
    same = base.model.weights is other.model.weights
    if not same and not different_weights:
        raise ValueError("compare: the runs are on different weights, which is no edit's effect; "
                         "different_weights=True if two trainings are meant")
    question = ("what the edit does in this model" if same else
                "what another training came to, not what an edit does")
    before, after = metric(base), metric(other)
    return Comparison(before, after, after - before, same, question)
