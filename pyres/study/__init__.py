"""Questions about the stream.

    counting    how many weights, writers, multiply-adds
    compare     two runs, and what their difference answers
    gradients   the gradient at every state: its two parts, Jacobians, with and without skips
    paths       the gradient by the branches that it passed
    slopes      a gradient against a run whose stream is moved
    circuits    heads as maps, and which reads which
    surgery     other weights, the same function
    metrics     the numbers that are asked about: a logit, a difference, any direction
    parts       what a head, a source token, a neuron, a bias wrote
    writers     who writes to the stream, as finely as one asks, and the proof
    attribution how much each writer gives a metric, or an attention score
    lens        what the model would guess if it stopped at a state
    references  what stands in place of an update: means, other runs' updates
    sensitivity a metric's gradient at every update, and its slope in alpha
    effects     what an edit does to a metric: directly, downstream, by rescaling
    patching    one run's update in another run, and along one path
    subsets     all subsets of some writers: Shapley values, interactions
    sweeps      many questions, here or by an executor's workers
    rounding    what a narrow float format takes from the stream
    audit       which contract a trace from anywhere keeps, and where it breaks; beneath it
                verdicts, contracts, recorded, fits
"""
from . import (attribution, audit, circuits, compare, counting, effects, gradients, lens, metrics,
               parts, patching, paths, references, rounding, sensitivity, slopes, subsets, surgery,
               sweeps, writers)

__all__ = ["attribution", "audit", "circuits", "compare", "counting", "effects", "gradients",
           "lens", "metrics", "parts", "patching", "paths", "references", "rounding",
           "sensitivity", "slopes", "subsets", "surgery", "sweeps", "writers"]
