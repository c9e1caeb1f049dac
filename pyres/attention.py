"""Attention: each token takes a weighted mean of what earlier tokens offer.

    score[t][s]   = multiplier * dot(q[t], k[s])            multiplier 1 / sqrt(d_head)
    pattern[t]    = softmax(score[t])                       over the positions that t sees
    mixed[t]      = sum over s of pattern[t][s] * v[s]

That is `attend`, for every head.  Around it, x is projected to queries, keys and values, queries
and keys may be normed and turned by rotary positions, and w_o projects the heads' results back to
d_model:

    q, k, v = w_q x + b_q, w_k x + b_k, w_v x + b_v
    out     = w_o mixed + b_o = sum over heads i of w_o^i mixed^i + b_o

Head i's term is what it writes; b_o belongs to no head (see `readout`).  Query head i reads
key/value head i // (n_heads / n_kv_heads), so with four query and two key/value heads: 0, 0, 1, 1.
In what follows w is AttentionWeights and config an AttentionConfig.

    seen                                     the positions that a query sees
    attend_steps, attend, attend_backward    the formula alone
    split_heads, join_heads                  a token's channels cut into heads, and back
    project_heads                            heads, norm and rotary of queries or of keys
    head_weights, head_update, source_update
                                             one head's part of w_o, what the head writes, and what
                                             it writes from one token
    attention_steps, attention, attention_backward
                                             the sublayer

>>> attend([[[0.0], [0.0], [0.0]]], [[[1.0], [2.0], [3.0]]], [[[1.0], [2.0], [6.0]]])
[[[1.0], [1.5], [3.0]]]
"""
from collections import namedtuple

from .edits import Edit, edit_update, shift
from .linalg import (add, check_length, check_numbers, check_rows, checked_copy, copied, linear,
                     linear_backward, multiply, products, scale, shape_text, sum_rows, transpose,
                     zeros_like)
from .norms import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from .nonlinear import softmax_backward_from, softmax_vector
from .readout import part_weights, readout, readout_backward
from .rotary import angles, rotate, rotate_backward
from .scalar import check_constant, root_of_count, tanh
from .weights import AttentionWeights

__all__ = ["seen", "AttendSteps", "attend_steps", "attend", "attend_backward", "split_heads",
           "join_heads", "project_heads", "project_heads_backward", "head_weights", "head_update",
           "source_update", "AttentionSteps", "attention_steps", "attention", "attention_backward"]


# ---- the formula ----

def seen(t, n_queries, n_keys, causal=True, window=None):
    """The positions that query t sees, as (first, last + 1).

    Queries are the tail of the keys' sequence: query t stands at position n_keys - n_queries + t.
    A causal query sees itself and what stands before it; a window of w leaves the last w of these.
    Raises ValueError where it sees nothing.

    >>> seen(1, n_queries=3, n_keys=3), seen(0, n_queries=2, n_keys=6), seen(3, 4, 4, window=2)
    ((0, 2), (0, 5), (2, 4))
    """
    if window is not None and not causal:
        raise ValueError("attend: a window counts back from a query, so it needs causal=True")
    position = n_keys - n_queries + t
    first = 0 if window is None else max(0, position - window + 1)
    end = position + 1 if causal else n_keys
    if first >= end:
        raise ValueError(f"attend: query {t} of {n_queries} sees none of the {n_keys} keys; "
                         "queries are the tail of the keys' sequence")
    return first, end


class AttendSteps(namedtuple("AttendSteps", ("q", "k", "v", "scores", "pattern", "mixed"))):
    """Every step of attend.

    q, mixed           [n_heads][n_queries][d_head]
    k, v               [n_kv_heads][n_keys][d_head]
    scores, pattern    [n_heads][n_queries][n_keys]

    Scores are after a soft cap and None where a query does not see a key, where the pattern is 0.
    A head whose pattern was given has None for its scores.
    """


def attend_steps(q, k, v, multiplier=None, causal=True, window=None, soft_cap=None, patterns=None,
                 factors=None):
    """Every step of attention's formula -> AttendSteps.

    q [n_heads][n_queries][d_head]; k, v [n_kv_heads][n_keys][d_head].  multiplier None is
    1 / sqrt(d_head).  soft_cap c replaces a score s by c * tanh(s / c).  patterns, a list with a
    pattern or None for every head, gives patterns instead of computing them; they are taken as
    they are, and exact numbers then stay exact.  factors, a list with a factor for every entry of
    a head's pattern or None for every head, multiply what is taken from each token.

    Raises ValueError where heads do not divide evenly or a shape does not fit.

    >>> steps = attend_steps([[[0.0], [0.0]]], [[[1.0], [2.0]]], [[[1.0], [2.0]]])
    >>> steps.scores, steps.pattern
    ([[[0.0, None], [0.0, 0.0]]], [[[1.0, 0.0], [0.5, 0.5]]])
    """
    group = _group_size(q, k, v)
    # one tuple a channel, so that a mean is a product
    columns = [list(zip(*v_head)) for v_head in v]
    n_queries, n_keys = len(q[0]), len(k[0])
    if patterns is not None:
        check_length("attend", "the list of patterns", patterns, len(q))
    spans = [seen(t, n_queries, n_keys, causal, window) for t in range(n_queries)]
    everything = [(0, n_keys)] * n_queries
    all_scores, all_patterns, mixed = [], [], []
    for i, q_head in enumerate(q):
        if patterns is not None and patterns[i] is not None:
            scores, pattern = None, _checked_pattern(patterns[i], n_queries, n_keys)
            taken = everything
        else:
            scores, pattern = _scores_and_pattern(
                q_head, k[i // group], spans, multiplier, soft_cap)
            taken = spans
        all_scores.append(scores)
        all_patterns.append(pattern)
        v_columns = columns[i // group]
        mixed.append([_over_span(v_columns, row, span)
                      for row, span in zip(_times(pattern, factors, i), taken)])
    return AttendSteps(q, k, v, all_scores, all_patterns, mixed)


def _times(pattern, factors, i):
    """Head i's pattern, or its gradient, times the head's factors where it has some."""
    return pattern if not factors or factors[i] is None else multiply(pattern, factors[i])


def _group_size(q, k, v):
    """How many query heads share a key/value head; every shape of attend is checked here."""
    if not q or not k or len(k) != len(v) or len(q) % len(k):
        raise ValueError(f"attend: {len(q)} query heads cannot share {len(k)} key and "
                         f"{len(v)} value heads evenly")
    _check_heads("queries", q, len(q[0]), len(q[0][0]))
    _check_heads("keys", k, len(k[0]), len(q[0][0]))
    _check_heads("values", v, len(k[0]), len(v[0][0]))
    return len(q) // len(k)


def _check_heads(what, heads, n_rows, width):
    for head in heads:
        check_length(f"attend: the {what}", "a head", head, n_rows)
        check_rows("attend: a head's " + what, head, width)


def _checked_pattern(pattern, n_queries, n_keys):
    if shape_text(pattern) != f"({n_queries}, {n_keys})":
        raise ValueError(f"set_pattern: the pattern has shape {shape_text(pattern)}, "
                         f"attention here ({n_queries}, {n_keys})")
    for row in pattern:
        check_numbers("set_pattern", row)
    return copied(pattern)


def _scores_and_pattern(q_head, k_head, spans, multiplier, soft_cap):
    """One head's scores (None where unseen) and pattern (0 there), [n_queries][n_keys] each."""
    factor, nothing = score_factor(q_head, multiplier), None
    scores, pattern = [], []
    for q_t, (first, end) in zip(q_head, spans):
        row = [s * factor for s in products(k_head[first:end], q_t)]
        if soft_cap is not None:
            check_constant("attend: soft_cap", soft_cap, row[0])
            row = [soft_cap * tanh(s / soft_cap) for s in row]
        p = softmax_vector(row)
        scores.append(_padded(row, first, len(k_head), None))
        nothing = zeros_like(p[0]) if nothing is None else nothing
        pattern.append(_padded(p, first, len(k_head), nothing))
    return scores, pattern


def _padded(row, first, n_keys, filler):
    """The row as it stands among n_keys, with the filler where the query sees nothing."""
    if len(row) == n_keys:
        return row
    return [filler] * first + row + [filler] * (n_keys - first - len(row))


def score_factor(q_head, multiplier):
    """What dot(q, k) is multiplied by: 1 / sqrt(d_head) where no multiplier is given.

    >>> score_factor([[1.0, 1.0, 1.0, 1.0]], None)
    0.5
    """
    some = q_head[0][0]
    if multiplier is None:
        return 1 / root_of_count(len(q_head[0]), some)
    check_constant("attend: the multiplier", multiplier, some)
    return multiplier


def _over_span(columns, row, span):
    """sum over s in the span of row[s] * value[s]; what a query does not see is left out, so that
    an infinity there cannot reach it."""
    first, end = span
    if first == end:
        return [zeros_like(column[0]) for column in columns]
    if end - first < len(row):
        columns, row = [column[first:end] for column in columns], row[first:end]
    return products(columns, row)


def attend(q, k, v, multiplier=None, causal=True, window=None, soft_cap=None, patterns=None):
    """The result of attention's formula, [n_heads][n_queries][d_head]; see attend_steps.

    >>> attend([[[0.0]], [[0.0]]], [[[1.0]]], [[[5.0]]])    # two query heads share k and v
    [[[5.0]], [[5.0]]]
    """
    q, k, v = checked_copy("attend", q), checked_copy("attend", k), checked_copy("attend", v)
    return attend_steps(q, k, v, multiplier, causal, window, soft_cap, patterns).mixed


def attend_backward(d_mixed, steps, multiplier=None, causal=True, window=None, soft_cap=None,
                    factors=None):
    """Return (d_q, d_k, d_v), given d_mixed [n_heads][n_queries][d_head], the gradient at mixed.

    For one head, with p the pattern:

        d_p[t][s] = dot(d_mixed[t], v[s])              d_v[s] = sum over t of p[t][s] * d_mixed[t]
        d_score   = softmax backward of d_p, 0 where a query does not see a key
        d_q[t]    = multiplier * sum over s of d_score[t][s] * k[s]
        d_k[s]    = multiplier * sum over t of d_score[t][s] * q[t]

    The query heads of a group share keys and values, whose gradients add up.  A head whose pattern
    was given has gradients at its values only.

    >>> steps = attend_steps([[[1.0], [2.0]]], [[[1.0], [1.0]]], [[[1.0], [3.0]]])
    >>> d_q, d_k, d_v = attend_backward([[[0.0], [4.0]]], steps)
    >>> d_k, d_v
    ([[[-4.0], [4.0]]], [[[2.0], [2.0]]])
    """
    q, k, v = steps.q, steps.k, steps.v
    group, n_queries, n_keys = len(q) // len(k), len(q[0]), len(k[0])
    check_length("attend_backward", "d_mixed", d_mixed, len(q))
    _check_heads("gradients", d_mixed, n_queries, len(v[0][0]))
    spans = [seen(t, n_queries, n_keys, causal, window) for t in range(n_queries)]
    seers = [seen_by(s, spans) for s in range(n_keys)]
    d_q, d_k, d_v = [], [], []
    for i, d_mixed_head in enumerate(d_mixed):
        k_head, v_head, pattern = k[i // group], v[i // group], steps.pattern[i]
        if steps.scores[i] is None:                 # a given pattern may be anything
            of_q, of_k = zeros_like(q[i]), zeros_like(k_head)
            # forward: mixed[t] = sum over s of p[t][s] * v[s]
            of_v = linear(transpose(_times(pattern, factors, i)), transpose(d_mixed_head))
        else:
            of_v = _over_spans(transpose(_times(pattern, factors, i)), d_mixed_head, seers)
            d_scores = _scores_backward(d_mixed_head, steps.scores[i], pattern, v_head, spans,
                                        soft_cap, None if factors is None else factors[i])
            # forward: score[t][s] = factor * dot(q[t], k[s])
            factor = score_factor(q[i], multiplier)
            of_q = scale(factor, _over_spans(d_scores, k_head, spans))
            of_k = scale(factor, _over_spans(transpose(d_scores), q[i], seers))
        d_q.append(of_q)
        # forward: head i reads key/value head i // group, so a group's gradients meet
        first_of_group = i % group == 0
        d_k = d_k + [of_k] if first_of_group else d_k[:-1] + [add(d_k[-1], of_k)]
        d_v = d_v + [of_v] if first_of_group else d_v[:-1] + [add(d_v[-1], of_v)]
    return d_q, d_k, d_v


def seen_by(s, spans):
    """The queries that see key s, as (first, last + 1); (0, 0) for none.  They are neighbours.

    >>> seen_by(1, [(0, 1), (0, 2), (1, 3), (2, 4)])
    (1, 3)
    """
    queries = [t for t, (first, end) in enumerate(spans) if first <= s < end]
    return (queries[0], queries[-1] + 1) if queries else (0, 0)


def _over_spans(rows, vectors, spans):
    """For every row, the sum over its span of row[s] * vectors[s]."""
    columns = list(zip(*vectors))
    return [_over_span(columns, row, span) for row, span in zip(rows, spans)]


def _scores_backward(d_mixed, scores, pattern, v_head, spans, soft_cap, factors):
    """The gradient at one head's scores before a soft cap, [n_queries][n_keys], 0 where unseen."""
    d_scores, nothing = [], zeros_like(pattern[0][0])
    for t, (d_t, s_t, p_t, (first, end)) in enumerate(zip(d_mixed, scores, pattern, spans)):
        # forward: mixed[t] = sum over s of p[t][s] * v[s]; p[t] = softmax(score[t])
        d_p = products(v_head[first:end], d_t)
        if factors is not None:
            d_p = multiply(d_p, factors[t][first:end])
        d_row = softmax_backward_from(d_p, p_t[first:end])
        if soft_cap is not None:
            # forward: score = c * tanh(raw / c), and tanh' = 1 - tanh²
            capped = s_t[first:end]
            d_row = [d * (1 - (s / soft_cap) * (s / soft_cap)) for d, s in zip(d_row, capped)]
        d_scores.append(_padded(d_row, first, len(v_head), nothing))
    return d_scores


# ---- around it ----

def split_heads(x, n_heads):
    """[n_tokens][n_heads * d_head] -> [n_heads][n_tokens][d_head].  Raises ValueError where a row
    does not divide evenly.

    >>> split_heads([[1, 2, 3, 4], [5, 6, 7, 8]], 2)
    [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    """
    d_head = len(x[0]) // n_heads
    check_rows("split_heads", x, n_heads * d_head)
    return [[row[i * d_head:(i + 1) * d_head] for row in x] for i in range(n_heads)]


def join_heads(heads):
    """[n_heads][n_tokens][d_head] -> [n_tokens][n_heads * d_head].

    >>> join_heads([[[1, 2], [5, 6]], [[3, 4], [7, 8]]])
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    check_rows("join_heads", heads, len(heads[0]))
    return [[a for row in rows for a in row] for rows in zip(*heads)]


def project_heads(flat, gain, n_heads, config, first_position=0):
    """Queries or keys of attend: flat [n_tokens][n_heads * d_head] -> [n_heads][n_tokens][d_head].

    A gain of [d_head] norms every head by itself, a gain of [n_heads * d_head] the whole vector;
    None is no norm.  Then rotary positions, counted from first_position, turn the heads.

    >>> from pyres.config import attention_config
    >>> project_heads([[1, 2, 3, 4]], None, 2, attention_config(2, 2))
    [[[1, 2]], [[3, 4]]]
    """
    check_rows("attention: queries or keys", flat, n_heads * config.d_head)
    if gain is not None and len(gain) != config.d_head:
        flat = _qk_norm(flat, gain, config.qk_norm)
    heads = split_heads(flat, n_heads)
    if gain is not None and len(gain) == config.d_head:
        heads = _qk_norm(heads, gain, config.qk_norm)
    if config.rotary is None:
        return heads
    table = _table(config.rotary, len(flat), first_position)
    return [rotate(head, table, config.rotary.pairing) for head in heads]


def _table(rotary, n_tokens, first_position):
    return angles(range(first_position, first_position + n_tokens), rotary.frequencies)


def _qk_norm(x, gain, norm):
    if norm.kind == "layer":
        return layer_norm(x, gain, None, norm.eps)
    return rms_norm(x, gain, norm.eps)


def _qk_norm_backward(d_out, x, gain, norm):
    if norm.kind == "layer":
        return layer_norm_backward(d_out, x, gain, None, norm.eps)[:2]
    return rms_norm_backward(d_out, x, gain, norm.eps)


def project_heads_backward(d_heads, flat, gain, n_heads, config, first_position=0):
    """Return (d_flat, d_gain), given d_heads [n_heads][n_tokens][d_head].

    d_gain is None where gain is.

    >>> from pyres.config import attention_config
    >>> config = attention_config(n_heads=2, d_head=2)
    >>> project_heads_backward([[[1, 2]], [[3, 4]]], [[0, 0, 0, 0]], None, 2, config)
    ([[1, 2, 3, 4]], None)
    """
    check_length("project_heads_backward", "d_heads", d_heads, n_heads)
    _check_heads("gradients", d_heads, len(flat), config.d_head)
    if config.rotary is not None:
        # forward: heads = rotate(heads, table)
        table = _table(config.rotary, len(flat), first_position)
        d_heads = [rotate_backward(d_head, table, config.rotary.pairing) for d_head in d_heads]
    d_gain = None
    if gain is not None and len(gain) == config.d_head:
        # forward: heads = norm(heads), each head by itself
        heads = split_heads(flat, n_heads)
        d_heads, d_gain = _qk_norm_backward(d_heads, heads, gain, config.qk_norm)
    d_flat = join_heads(d_heads)
    if gain is not None and d_gain is None:
        # forward: flat = norm(flat), the whole vector
        d_flat, d_gain = _qk_norm_backward(d_flat, flat, gain, config.qk_norm)
    return d_flat, d_gain


def head_weights(w_o, i, d_head):
    """Head i's columns of w_o: [d_model][n_heads * d_head] -> [d_model][d_head].

    >>> head_weights([[1, 2, 3, 4], [5, 6, 7, 8]], 1, 2)
    [[3, 4], [7, 8]]
    """
    return part_weights(w_o, i, d_head)


def head_update(mixed_head, w_o, i):
    """What head i writes: mixed_head [n_tokens][d_head] -> [n_tokens][d_model].  The heads' writes
    and b_o sum to the attention output.

    >>> head_update([[1, 1]], [[1, 2, 3, 4], [5, 6, 7, 8]], 1)
    [[7, 15]]
    """
    return linear(mixed_head, head_weights(w_o, i, len(mixed_head[0])))


def source_update(pattern_head, v_head, w_o, i, source):
    """What head i writes from one source token: pattern_head [n_queries][n_keys], v_head
    [n_keys][d_head] -> [n_queries][d_model].  Over all sources it sums to the head's write.

    >>> source_update([[1, 0], [0.5, 0.5]], [[2], [4]], [[1, 10], [2, 20]], 1, source=0)
    [[20, 40], [10.0, 20.0]]
    """
    write = linear([v_head[source]], head_weights(w_o, i, len(v_head[0])))[0]
    return [scale(row[source], write) for row in pattern_head]


# ---- the sublayer ----

class AttentionSteps(namedtuple("AttentionSteps", (
        "x", "flat_q", "flat_k", "q", "k", "v", "scores", "pattern", "mixed", "out"))):
    """What an attention sublayer did.

    x, out                             [n_tokens][d_model]
    flat_q                             [n_tokens][n_heads * d_head], not yet normed or turned
    flat_k                             [n_tokens][n_kv_heads * d_head], likewise
    q, k, v, scores, pattern, mixed    as in AttendSteps
    """


def attention_steps(x, w, config, head_edits=(), pattern_edits=(), past=None, source_edits=()):
    """Every step of an attention sublayer: x [n_tokens][d_model] -> AttentionSteps.

    head_edits, pattern_edits, source_edits: lists of pairs, as in edits.BlockEdits.  past is the
    pair (k, v) of an earlier part of the sequence, from its own steps; x then stands behind it,
    and the steps' k and v are those of both.  The backward is of whole sequences only.

    Raises ValueError where a shape does not fit.

    >>> from pyres.config import attention_config
    >>> from pyres.weights import AttentionWeights
    >>> zero, one = [[0, 0], [0, 0]], [[1, 0], [0, 1]]
    >>> w = AttentionWeights(zero, zero, one, one, None, None, None, [10, 20], None, None)
    >>> attention_steps([[1.0, 2.0], [3.0, 6.0]], w, attention_config(n_heads=2, d_head=1)).out
    [[11.0, 22.0], [12.0, 24.0]]
    """
    flat_q, flat_k = linear(x, w.w_q, w.b_q), linear(x, w.w_k, w.b_k)
    patterns = [_last_pattern(pattern_edits, i) for i in range(config.n_heads)]
    n_past = 0 if past is None else len(past[0][0])
    if None in patterns:
        q = project_heads(flat_q, w.q_gain, config.n_heads, config, n_past)
        k = project_heads(flat_k, w.k_gain, config.n_kv_heads, config, n_past)
    else:       # no score is asked for: nothing is normed or turned, and exact numbers pass
        q, k = split_heads(flat_q, config.n_heads), split_heads(flat_k, config.n_kv_heads)
    v = split_heads(linear(x, w.w_v, w.b_v), config.n_kv_heads)
    if past is not None:
        k, v = [[old + new for old, new in zip(*heads)] for heads in ((past[0], k), (past[1], v))]
    factors = source_factors(source_edits, config.n_heads, x, len(k[0]))
    steps = attend_steps(q, k, v, config.multiplier, config.causal, config.window,
                         config.soft_cap, patterns, factors)
    out = readout(join_heads(steps.mixed), w.w_o, w.b_o, config.d_head,
                  given_writes(source_edits, x) + list(head_edits))
    return AttentionSteps(x, flat_q, flat_k, q, k, v,
                          steps.scores, steps.pattern, steps.mixed, out)


def _last_pattern(pattern_edits, i):
    given = [edit.value for head, edit in pattern_edits if head == i]
    return given[-1] if given else None


# An edit of what a head writes from one source token is affine in the write: something is passed
# on of what was there, and something is given.  What is passed on multiplies the pattern's entries
# of that source, and what is given is a shift of the head's write, before the head's own edits.

def source_factors(source_edits, n_heads, x, n_keys):
    """For every head its factors [n_queries][n_keys], of the type of x [n_queries][d_model], or
    None; None where there are no edits.

    >>> from pyres.edits import replace, scale
    >>> twice, other = scale("L0.attn.H0.S1", 2), replace("L0.attn.H0.S0", [[7], [7]], [1])
    >>> source_factors([((0, 1), twice), ((0, 0), other)], 2, [[5], [6]], 2)
    [[[1, 2], [0, 2]], None]
    """
    if not source_edits:
        return None
    one = zeros_like(x[0][0]) + 1
    factors = [None] * n_heads
    for (i, source), edit in source_edits:
        rows = factors[i] or [[one] * n_keys for _ in x]
        passed_on = edit.value if edit.kind == "scale" else 0 if edit.kind == "replace" else 1
        column = edit_update([[row[source]] for row in rows],
                             [Edit(edit.writer, "scale", passed_on, edit.positions)])
        factors[i] = [row[:source] + entry + row[source + 1:] for row, entry in zip(rows, column)]
    return factors


def given_writes(source_edits, x):
    """What source edits give besides, as edits (head, shift) of the heads' writes.

    >>> from pyres.edits import replace, scale
    >>> both = [((0, 1), replace("L0.attn.H0.S1", [[7]])), ((0, 1), scale("L0.attn.H0.S1", 2))]
    >>> [(i, edit.value) for i, edit in given_writes(both, [[0]])]
    [(0, [[14]])]
    """
    given = []
    for i, source in sorted({part for part, _ in source_edits}):
        edits = [edit for part, edit in source_edits if part == (i, source)]
        if any([edit.kind != "scale" for edit in edits]):
            nothing = zeros_like(x)
            given.append((i, shift(edits[0].writer, edit_update(nothing, edits))))
    return given


def attention(x, w, config):
    """The output of an attention sublayer: x [n_tokens][d_model] -> [n_tokens][d_model].

    Raises ValueError where a shape does not fit.  Queries of 0 score every key alike, so here each
    token takes the plain mean of those up to itself:

    >>> from pyres.config import attention_config
    >>> from pyres.weights import AttentionWeights
    >>> w = AttentionWeights([[0]], [[1]], [[1]], [[10]], *[None] * 6)     # w_q, w_k, w_v, w_o
    >>> attention([[1.0], [2.0], [6.0]], w, attention_config(n_heads=1, d_head=1))
    [[10.0], [15.0], [30.0]]
    """
    return attention_steps(x, w, config).out


def attention_backward(d_out, steps, w, config, head_edits=(), source_edits=()):
    """Return (d_x, d_w), given d_out [n_tokens][d_model], the gradient at the output.

    d_w is AttentionWeights; the edits are the forward's.  x is read three times, by w_q, w_k and
    w_v, and its gradient is the sum of the three.  Raises ValueError where a shape does not fit.

    The second token's output is the mean of both, so each token gets half of its gradient:

    >>> from pyres.config import attention_config
    >>> from pyres.weights import AttentionWeights
    >>> config = attention_config(n_heads=1, d_head=1)
    >>> w = AttentionWeights([[0]], [[0]], [[1]], [[1]], b_q=[1], b_k=None, b_v=None, b_o=None,
    ...                      q_gain=None, k_gain=None)
    >>> steps = attention_steps([[2.0], [4.0]], w, config)
    >>> d_x, d_w = attention_backward([[0.0], [4.0]], steps, w, config)
    >>> d_x, d_w.w_k, d_w.w_v, d_w.w_o
    ([[2.0], [2.0]], [[4.0]], [[12.0]], [[12.0]])
    """
    # forward: out = readout(join_heads(mixed), w_o, b_o)
    part_edits = given_writes(source_edits, d_out) + list(head_edits)
    d_joined, d_w_o, d_b_o = readout_backward(
        d_out, join_heads(steps.mixed), w.w_o, w.b_o, config.d_head, part_edits)
    d_mixed = split_heads(d_joined, config.n_heads)
    factors = source_factors(source_edits, config.n_heads, steps.x, len(steps.k[0]))
    # forward: mixed = attend(q, k, v)
    d_q, d_k, d_v = attend_backward(
        d_mixed, AttendSteps(steps.q, steps.k, steps.v, steps.scores, steps.pattern, steps.mixed),
        config.multiplier, config.causal, config.window, config.soft_cap, factors)
    # forward: q = project_heads(linear(x, w_q, b_q)), k likewise;
    #          v = split_heads(linear(x, w_v, b_v))
    if steps.scores == [None] * config.n_heads:     # every pattern was given
        d_flat_q, d_flat_k = join_heads(d_q), join_heads(d_k)
        d_q_gain, d_k_gain = [None if gain is None else zeros_like(gain)
                              for gain in (w.q_gain, w.k_gain)]
    else:
        d_flat_q, d_q_gain = project_heads_backward(
            d_q, steps.flat_q, w.q_gain, config.n_heads, config)
        d_flat_k, d_k_gain = project_heads_backward(
            d_k, steps.flat_k, w.k_gain, config.n_kv_heads, config)
    # w_q, w_k and w_v read the same x: as one matrix, x gets their three gradients in one sum
    parts = (d_flat_q, w.w_q, w.b_q), (d_flat_k, w.w_k, w.b_k), (join_heads(d_v), w.w_v, w.b_v)
    d_flat = [d_q_t + d_k_t + d_v_t for d_q_t, d_k_t, d_v_t in zip(*[d for d, _, _ in parts])]
    d_x, d_w, _ = linear_backward(d_flat, steps.x, w.w_q + w.w_k + w.w_v)
    n_q, n_k = len(w.w_q), len(w.w_k)
    d_w_q, d_w_k, d_w_v = d_w[:n_q], d_w[n_q:n_q + n_k], d_w[n_q + n_k:]
    d_b_q, d_b_k, d_b_v = [None if b is None else sum_rows(d) for d, _, b in parts]
    return d_x, AttentionWeights(d_w_q, d_w_k, d_w_v, d_w_o, d_b_q, d_b_k, d_b_v, d_b_o,
                                 d_q_gain, d_k_gain)
