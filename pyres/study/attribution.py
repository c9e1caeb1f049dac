"""How much each writer gives a logit, a difference of logits, any direction, an attention score.

A metric is linear in the final stream once the final norm's divisor is held at what it was in this
run (see `metrics`), and the stream is a sum of writes u_k (see `writers`).  So with t the metric's
position and s the divisor there:

    metric = sum over writers k of dot(u_k[t], direction) / s  +  constant

That is `frozen_scale`: it is exact, it folds no weight, and its rows and the constant sum to the
metric.  The constant is what no writer gives: the final norm's bias and the unembedding's.

The other method, `gradient`, lets the divisor move with what is written:

    row k = dot(u_k[t], gradient of the metric at the final stream)

A norm does not care how long the stream is, so growing all writes together changes nothing, but
for eps: these rows sum to (metric - constant) * eps / s², almost 0.  Neither method is an
approximation of the other.  After a soft cap a logit is no sum any more, and metrics are taken
before it; a log-probability never is one.  This module is part of the portable core.

    Contributions, contributions    a metric's rows, with the constant and the sum check
    log_probability                 refuses, or takes a linearisation that is named
    ScoreTable, score_contributions an attention score as a table, query's writers by key's

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> model = small_model()                                   # token 0's logit is the final stream
>>> found = contributions(run(model, [0]), logit(model, 0, target=0))
>>> found.rows, found.constant, found.total, found.check.ok
([('embed', 16.0), ('L0.attn', 12.0), ('L0.mlp', 42.0)], 0, 70.0, True)
"""
from collections import namedtuple

from ..attention import score_factor
from ..edits import few
from ..linalg import add, dot, linear, matvec, scale, transpose, zeros_like
from ..model import head_names
from ..nonlinear import softmax
from ..norms import frozen_layer_norm, frozen_rms_norm, layer_norm_parts, rms_norm_parts
from ..rotary import angles, rotate
from ..scalar import is_exact
from ..sums import checked, rounding_unit
from .metrics import Metric, along, final_gradient, final_scale, logit
from .writers import at, partition

__all__ = ["Contributions", "contributions", "log_probability", "ScoreTable",
           "score_contributions"]


# ---- a metric ----

METHODS = ("frozen_scale", "gradient")


class Contributions(namedtuple("Contributions", ("metric", "method", "rows", "constant", "total",
                                                 "check"))):
    """A metric, taken apart.

    metric      the Metric
    method      "frozen_scale" or "gradient"
    rows        pairs (name, value), in the order of the run
    constant    what no writer gives; 0 for gradient, which a constant has none of
    total       the sum of the rows and the constant
    check       SumCheck of the total against what it must be
    """


def contributions(run_record, metric, split=None, method="frozen_scale"):
    """What each writer gives to a Metric in a run -> Contributions.

    split is a Partition that has the metric's position, by default of branches.  One that ends at
    an earlier state gives what that state gives to the metric, with the final norm's divisor of
    this run.  Through the norms of post_norm and behind a sublayer, too, divisors are frozen.

    Raises ValueError for a method or a position that is not there.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> model = small_model()
    >>> r = run(model, [0, 1])
    >>> contributions(r, logit(model, 1, 0), partition(r, attn="head", mlp="neuron")).rows
    [('embed', 8.0), ('L0.attn.H0', 6.0), ('L0.attn.bias', 4.0), ('L0.mlp.N0', 27.0)]
    """
    t = metric.position
    divisor = final_scale(run_record, metric)           # raises for a position that is not there
    split = partition(run_record, position=t) if split is None else split
    writes, stream = at(split, t), dict(run_record.states)[split.state][t]
    of = metric.name if split.state == run_record.states[-1][0] else (
        f"{metric.name} as {split.state} gives it")
    if method == "frozen_scale":
        direction, constant = [a / divisor for a in metric.direction], metric.constant
        rule, want = f"rows + constant = {of}", dot(stream, metric.direction) / divisor
    elif method == "gradient":
        direction, constant = final_gradient(run_record, metric)[t], 0 * metric.constant
        rule = f"sum of rows = slope of {of} in the stream's length"
        want = dot(stream, direction)
    else:
        raise ValueError(f"contributions: no method {method!r}; there are {', '.join(METHODS)}")
    rows = [(name, dot(write, direction)) for name, write in writes]
    total = sum([value for _, value in rows]) + constant
    return Contributions(metric, method, rows, constant, total, total_check(
        rule, total, want + constant, split.checks[-1].tolerance,
        [row for _, row in writes], direction, constant))


def total_check(rule, total, want, slack, rows, direction, constant):
    """The SumCheck of a total of inner products of rows with a direction.

    slack is what rounding may have done to an entry of the rows' sum.  An inner product of length
    d loses at most d units in the last place of the sum of its terms' sizes, and so does a sum of
    as many rows.
    """
    error, exact, tolerance = abs(total - want), is_exact(want), 0
    if not exact:
        sizes = [abs(a) for a in direction]
        size = sum([dot([abs(a) for a in row], sizes) for row in rows]) + abs(constant)
        units = (len(rows) + len(direction)) * rounding_unit(want)
        tolerance = units * float(size) + slack * float(sum(sizes))
    return checked(rule, error, tolerance, exact)


LINEARISATIONS = ("probabilities",)


def log_probability(run_record, position, target, linearisation=None):
    """A log-probability as a Metric: refused, unless a linearisation is named.

    The log-probability is the target's logit less the logarithm of a sum of exponentials, which no
    writer has a share of.  linearisation="probabilities" gives its first-order change at this run:

        the target's logit less the mean of all logits, weighted by this run's probabilities

    whose value is not the log-probability: without a soft cap it is that plus the entropy.  A soft
    cap's slopes are part of it.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0])
    >>> log_probability(r, 0, target=1)
    Traceback (most recent call last):
    ValueError: log_probability: a log-probability is no sum over writers; ask for a logit less a \
foil's (metrics.logit), for one less the mean of all (metrics.centred_logit), or name a \
linearisation: 'probabilities'
    >>> log_probability(r, 0, 1, "probabilities").direction
    [-1.0]
    """
    if linearisation not in LINEARISATIONS:
        raise ValueError(
            "log_probability: a log-probability is no sum over writers; ask for a logit less a "
            "foil's (metrics.logit), for one less the mean of all (metrics.centred_logit), or "
            "name a linearisation: 'probabilities'")
    model, w = run_record.model, run_record.model.weights
    base = logit(model, position, target)               # checks position and target
    if position >= len(run_record.tokens):
        raise ValueError(f"log_probability: there is no position {position}; the run has "
                         f"{len(run_record.tokens)} tokens")
    slopes = log_probability_slopes(run_record.logits[position], target,
                                    model.config.logit_soft_cap)
    table = w.w_embed if w.w_unembed is None else w.w_unembed
    direction = matvec(transpose(table), slopes)
    if model.config.logit_multiplier is not None:
        direction = scale(model.config.logit_multiplier, direction)
    metric = along(model, position, direction)
    constant = metric.constant + (0 if w.b_unembed is None else dot(w.b_unembed, slopes))
    return Metric(base.position, metric.direction, constant, True,
                  f"logit of {target} less the mean by this run's probabilities")


def log_probability_slopes(logits, target, cap):
    """The gradient of a log-probability at the logits before a soft cap: [d_vocab].

    >>> log_probability_slopes([0.0, 0.0], 0, None)
    [0.5, -0.5]
    """
    slopes = [(1 if v == target else 0) - p for v, p in enumerate(softmax(logits))]
    if cap is None:
        return slopes
    # forward: logit = cap * tanh(raw / cap), and tanh' = 1 - tanh²
    return [d * (1 - (a / cap) * (a / cap)) for d, a in zip(slopes, logits)]


# ---- an attention score ----

class ScoreTable(namedtuple("ScoreTable", ("head", "queries", "keys", "table", "total", "check"))):
    """An attention score, before a soft cap, taken apart on both sides.

    head       its name
    queries    the names of what the query is made of; the last is "bias"
    keys       the same of the key
    table      [n_queries][n_keys], what each pair gives
    total      the sum of the table
    check      SumCheck of the total against the score
    """


def score_contributions(run_record, head, query_position, key_position, attn="branch",
                        mlp="branch", embed="whole"):
    """A head's score of one key for one query as a table, writers of the one by writers of the
    other -> ScoreTable.

        score = multiplier * dot(q, k)      q = sum over writers j of q_j      k likewise

    q_j is what writer j gives to the query: its write so far, through the norm that the sublayer
    reads through and the norm on queries, both with their divisors frozen, and turned as the query
    is.  The norm's bias and b_q are the row "bias".  attn, mlp and embed are partition's.

    Raises ValueError for a head that is not there, one whose pattern was given, a position that is
    not there, a key that the query does not see.

    >>> from pyres.model import run, small_model
    >>> model = small_model()                   # the norm halves the embeddings, 16 and 8
    >>> [block] = model.weights.blocks
    >>> attn = block.attn._replace(w_q=[[1.0]], b_q=[2.0], w_k=[[0.5]])
    >>> weights = model.weights._replace(blocks=[block._replace(attn=attn)])
    >>> r = run(model._replace(weights=weights), [0, 1])
    >>> found = score_contributions(r, "L0.attn.H0", query_position=1, key_position=0)
    >>> found.queries, found.keys, found.table                  # (4 + 2) * (4 + 0)
    (['embed', 'bias'], ['embed', 'bias'], [[16.0, 0.0], [8.0, 0.0]])
    >>> found.total, r.steps.blocks[0].attn.scores[0][1][0]
    (24.0, 24.0)
    """
    i, h = checked_head(run_record, head, query_position, key_position)
    attention, steps = run_record.model.config.blocks[i].attention, run_record.steps.blocks[i].attn
    before = "embed" if i == 0 else f"L{i - 1}.mlp"
    writes = [at(partition(run_record, attn, mlp, embed, state=before, position=t), t)
              for t in (query_position, key_position)]
    queries = through_projection(run_record, i, "q", h, query_position, writes[0])
    group = h // (attention.n_heads // attention.n_kv_heads)
    keys = through_projection(run_record, i, "k", group, key_position, writes[1])
    factor = score_factor(steps.q[h], attention.multiplier)
    table = [[factor * dot(q, k) for _, k in keys] for _, q in queries]
    total = sum([sum(row) for row in table])
    want = factor * dot(steps.q[h][query_position], steps.k[group][key_position])
    error, tolerance = abs(total - want), 0
    if not is_exact(want):
        # lengths bound every inner product; a row is a product of d_model terms itself
        sizes = [sum([sum([abs(a) for a in row]) for _, row in rows]) for rows in (queries, keys)]
        n = len(queries) + len(keys) + attention.d_head + 2 * run_record.model.config.d_model
        tolerance = n * rounding_unit(want) * float(abs(factor) * sizes[0] * sizes[1])
    check = checked(f"sum of the table = score of {head}", error, tolerance, is_exact(want))
    return ScoreTable(head, [name for name, _ in queries], [name for name, _ in keys], table,
                      total, check)


def checked_head(run_record, head, query_position, key_position):
    """The block and number of a head that has a score there; raises where it has none."""
    names, n_tokens = head_names(run_record.model.config), len(run_record.tokens)
    if head not in names:
        raise ValueError(f"score_contributions: there is no head {head!r}; there are {few(names)}")
    for t in (query_position, key_position):
        if type(t) is not int or not 0 <= t < n_tokens:
            raise ValueError(f"score_contributions: there is no position {t!r}; the run has "
                             f"{n_tokens} tokens, 0 to {n_tokens - 1}")
    layer, _, number = head.split(".")
    i, h = int(layer[1:]), int(number[1:])
    scores = run_record.steps.blocks[i].attn.scores[h]
    if scores is None:
        raise ValueError(f"score_contributions: the pattern of {head} was given, so there are no "
                         "scores; run without set_pattern")
    if scores[query_position][key_position] is None:
        raise ValueError(f"score_contributions: {head} at position {query_position} does not see "
                         f"position {key_position}")
    return i, h


def through_projection(run_record, i, which, h, position, writes):
    """What each write, and the biases, gives to a query ("q") or a key ("k") of head h of block i:
    pairs (name, [d_head])."""
    config, w = run_record.model.config.blocks[i], run_record.model.weights.blocks[i]
    steps, attention = run_record.steps.blocks[i], config.attention
    rows, biases = [row for _, row in writes], zeros_like(writes[0][1])
    if config.attn_norm is not None:
        divisors = [steps.attn_norm.scale[position]] * len(rows)
        frozen = frozen_layer_norm if config.attn_norm.kind == "layer" else frozen_rms_norm
        rows = frozen(rows, divisors, w.attn_norm.gain)
        biases = biases if w.attn_norm.bias is None else w.attn_norm.bias
    matrix, b, gain, flat = ((w.attn.w_q, w.attn.b_q, w.attn.q_gain, steps.attn.flat_q)
                             if which == "q" else
                             (w.attn.w_k, w.attn.b_k, w.attn.k_gain, steps.attn.flat_k))
    projected = linear(rows + [biases], matrix)
    if b is not None:
        projected[-1] = add(projected[-1], b)
    projected = through_head(projected, flat[position], gain, h, attention)
    if attention.rotary is not None:
        table = angles([position], attention.rotary.frequencies) * len(projected)
        projected = rotate(projected, table, attention.rotary.pairing)
    return list(zip([name for name, _ in writes] + ["bias"], projected))


def through_head(rows, flat, gain, h, attention):
    """Head h's channels of rows [n][n_heads * d_head], through the norm on queries or keys with
    the divisor that it had on their sum `flat`."""
    def of_head(row):
        return row[h * attention.d_head:(h + 1) * attention.d_head]

    if gain is None:
        return [of_head(row) for row in rows]
    whole = len(gain) != attention.d_head
    if not whole:
        rows, flat = [of_head(row) for row in rows], of_head(flat)
    if attention.qk_norm.kind == "layer":
        divisor = layer_norm_parts(flat, attention.qk_norm.eps)[1]
        rows = frozen_layer_norm(rows, [divisor] * len(rows), gain)
    else:
        divisor = rms_norm_parts(flat, attention.qk_norm.eps)[0]
        rows = frozen_rms_norm(rows, [divisor] * len(rows), gain)
    return [of_head(row) for row in rows] if whole else rows
