"""What stands in place of a writer's update: a mean over other runs, another run's, a redirection.

Switching a writer off asks what happens without its update.  A reference asks what happens with a
usual one.  It is an update like any other, and the edit is edits.replace:

    mean        of the writer's updates over reference runs, at each position or over all
    resample    another run's update, drawn so that no run gets its own
    redirect    a head that attends to the first token only

A mean is one of updates.  It is not the update at the mean of what the writer reads: a writer f is
not linear, and the mean of f(x) is not f of the mean x.

References are taken from runs on the same weights; others raise.  This module is part of the
portable core.

    check_same_weights, check_writers, branch_of    what runs and names are refused; `L0.attn` of
                                                    `L0.attn.H1`
    raw_write                                       what a writer adds, as edits mean it
    Mean, positional_mean, global_mean, mean_edit   means, and the edit that puts one in place
    derangement, resample                           other runs' updates
    redirected                                      an attention pattern

>>> from pyres.model import run, small_model
>>> model = small_model()
>>> runs = [run(model, [0, 1]), run(model, [1])]
>>> dict(runs[0].writers)["L0.mlp"], dict(runs[1].writers)["L0.mlp"]
([[42.0], [27.0]], [[24.0]])
>>> positional_mean(runs, "L0.mlp").rows, global_mean(runs, "L0.mlp").rows
([[33.0], [27.0]], [[31.0]])
"""
from collections import namedtuple

from ..attention import given_writes, head_update, source_update
from ..edits import (check_edits, checked_positions, edit_update, replace, scale,
                     set_pattern)
from ..linalg import copied, sum_rows, zeros_like
from ..model import block_edits, head_names, part_names, state_names, writer_names
from ..readout import part_update
from ..rng import Generator

__all__ = ["check_same_weights", "check_writers", "branch_of", "raw_write", "Mean",
           "positional_mean", "global_mean", "mean_edit", "derangement", "resample", "redirected"]


# ---- what is refused, and names ----

def check_same_weights(name, runs):
    """Raise ValueError unless all Runs are on the same weights: their `model.weights` is the same
    object, as compare.compare has it.

    >>> from pyres.model import run, small_model
    >>> check_same_weights("ranked", [run(small_model(), [0]), run(small_model(), [0])])
    Traceback (most recent call last):
    ValueError: ranked: the runs are on different weights, and no edit's effect in one model is \
told from another; take all runs from one model
    """
    if any([r.model.weights is not runs[0].model.weights for r in runs]):
        raise ValueError(f"{name}: the runs are on different weights, and no edit's effect in one "
                         "model is told from another; take all runs from one model")


def check_writers(run_record, edits):
    """Raise as model.run does for an edit of a writer that the model of a Run has not.

    >>> from pyres.model import run, small_model
    >>> check_writers(run(small_model(), [0]), [scale("L1.mlp", 0)])
    Traceback (most recent call last):
    ValueError: no writer 'L1.mlp' to scale; there are embed, L0.attn, L0.mlp, and heads \
L0.attn.H0, L0.attn.G0 to L0.attn.G0, L0.mlp.N0 to L0.mlp.N0, L0.attn.H0.S0 to L0.attn.H0.S0
    """
    config = run_record.model.config
    check_edits(edits, writer_names(config), head_names(config), state_names(config),
                part_names(config, len(run_record.tokens)))


def branch_of(writer):
    """The writer of which a finer one is a part: a branch, or the embedding.

    >>> branch_of("L0.attn.H1.S3"), branch_of("L0.mlp"), branch_of("embed")
    ('L0.attn', 'L0.mlp', 'embed')
    """
    return ".".join(writer.split(".")[:2])


# ---- what a writer adds ----

def raw_write(run_record, writer):
    """What a writer added in a Run, [n_tokens][d_model]: of a branch its update, of a finer writer
    what it added to the branch's output, before a multiplier or a norm behind it.

    It is what edits.replace takes: to replace a writer by its own write changes nothing.  What the
    run's edits did to the writer is done; an edit of a head comes after what its sources write.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0])                          # attn(x) = x + 4, and the 4 is b_o's
    >>> raw_write(r, "L0.attn"), raw_write(r, "L0.attn.H0")
    ([[12.0]], [[8.0]])
    """
    check_writers(run_record, [scale(writer, 1)])
    branch, parts = branch_of(writer), writer.split(".")
    if writer == branch:
        return copied(dict(run_record.writers)[writer])
    i, index = int(parts[0][1:]), int(parts[2][1:])
    steps, w = run_record.steps.blocks[i], run_record.model.weights.blocks[i]
    block = run_record.model.config.blocks[i]
    given = block_edits(run_record.edits, i, block)
    if parts[1] == "mlp":
        return edit_update(part_update(steps.mlp.hidden, w.mlp.w_down, index, 1),
                           edits_of_part(given.neurons, index))
    group = block.attention.n_heads // block.attention.n_kv_heads
    if len(parts) == 4:
        return _source_write(steps.attn, w.attn, given, index, index // group, int(parts[3][1:]))
    if parts[2][0] == "H":
        return _head_write(steps.attn, w.attn, given, index)
    writes = [_head_write(steps.attn, w.attn, given, h)
              for h in range(index * group, (index + 1) * group)]
    return [sum_rows(rows) for rows in zip(*writes)]


def _head_write(steps, w, given, head):
    edits = given_writes(given.sources, steps.x) + given.heads
    return edit_update(head_update(steps.mixed[head], w.w_o, head), edits_of_part(edits, head))


def _source_write(steps, w, given, head, kv_head, source):
    write = source_update(steps.pattern[head], steps.v[kv_head], w.w_o, head, source)
    return edit_update(write, edits_of_part(given.sources, (head, source)))


def edits_of_part(part_edits, part):
    """The edits of one part, from pairs (part, Edit) as in edits.BlockEdits.

    >>> [edit.value for edit in edits_of_part([(0, scale("L0.mlp.N0", 5))], 0)]
    [5]
    """
    return [edit for other, edit in part_edits if other == part]


# ---- means ----

class Mean(namedtuple("Mean", ("writer", "by_position", "rows", "counts", "weights"))):
    """A mean of a writer's updates over runs.

    writer         whose
    by_position    whether there is one row a position, or one for all
    rows           [n_positions][d_model], or [1][d_model]
    counts         how many rows of the runs each is the mean of
    weights        the weights that all runs were on
    """


def positional_mean(runs, writer):
    """The Mean of a writer's updates at each position, over the Runs that have the position.

    Raises ValueError for fewer than two runs, for different weights, for a writer that is not
    there.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> positional_mean([run(model, [0, 1]), run(model, [1])], "embed").counts
    [2, 1]
    """
    writes = _writes("positional_mean", runs, writer)
    longest = max([len(write) for write in writes])
    at = [[write[t] for write in writes if t < len(write)] for t in range(longest)]
    return Mean(writer, True, [_mean(rows) for rows in at], [len(rows) for rows in at],
                runs[0].model.weights)


def global_mean(runs, writer):
    """The Mean of a writer's updates over every token of the Runs, each counted once: no mean of
    the runs' means.  Raises as positional_mean does.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> mean = global_mean([run(model, [0, 0]), run(model, [1])], "embed")
    >>> mean.rows == [[(16 + 16 + 8) / 3]], mean.counts
    (True, [3])
    """
    rows = [row for write in _writes("global_mean", runs, writer) for row in write]
    return Mean(writer, False, [_mean(rows)], [len(rows)], runs[0].model.weights)


def _writes(name, runs, writer):
    if len(runs) < 2:
        raise ValueError(f"{name}: {len(runs)} runs were given, a reference needs two or more; "
                         "of one run it would be its own update")
    check_same_weights(name, runs)
    return [raw_write(r, writer) for r in runs]


def _mean(rows):
    return [a / len(rows) for a in sum_rows(rows)]


def mean_edit(clean_run, mean, positions=None):
    """The edit that puts a Mean in place of the writer's update in a Run, at the positions or
    everywhere.

    Raises ValueError for another model's mean, and where fewer than two runs had a position.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> runs = [run(model, [0, 1]), run(model, [1])]
    >>> mean_edit(runs[0], positional_mean(runs, "L0.mlp"), positions=[0]).value
    [[33.0], [27.0]]
    >>> mean_edit(runs[0], positional_mean(runs, "L0.mlp"))
    Traceback (most recent call last):
    ValueError: mean_edit: the mean of L0.mlp at position 1 is of 1 runs, and needs two; give \
longer runs, fewer positions, or a global_mean
    """
    if mean.weights is not clean_run.model.weights:
        raise ValueError("mean_edit: the mean is of runs on other weights; take one of this model")
    n_tokens, positions = len(clean_run.tokens), checked_positions("mean_edit", positions)
    if not mean.by_position:
        return replace(mean.writer, [mean.rows[0]] * n_tokens, positions)
    for t in range(n_tokens) if positions is None else positions:
        count = mean.counts[t] if t < len(mean.counts) else 0
        if t < n_tokens and count < 2:
            raise ValueError(f"mean_edit: the mean of {mean.writer} at position {t} is of {count} "
                             "runs, and needs two; give longer runs, fewer positions, or a "
                             "global_mean")
    # rows beyond the mean's are not asked for
    missing = [zeros_like(mean.rows[0])] * (n_tokens - len(mean.rows))
    return replace(mean.writer, mean.rows[:n_tokens] + missing, positions)


# ---- other runs' updates ----

def derangement(n, seed=0):
    """The numbers 0 to n - 1 in random order, none in its own place, each such order equally
    likely.  Raises ValueError for fewer than two: the one would get itself.

    Orders are drawn until one has nobody in its place; that is one of e on average.

    >>> derangement(2), derangement(5, seed=1)
    ([1, 0], [2, 4, 3, 0, 1])
    """
    if n < 2:
        raise ValueError(f"derangement: {n} runs were given, expected two or more; one alone "
                         "would get its own update")
    generator = Generator(seed)
    order = list(range(n))
    while any([i == j for i, j in enumerate(order)]):
        order = generator.shuffled(range(n))
    return order


def resample(runs, writer, seed=0):
    """For every Run the edit that gives its writer another run's update; no run gets its own.

    Raises ValueError for fewer than two runs, for runs of different lengths or weights.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> [edit.value for edit in resample([run(model, [0]), run(model, [1])], "L0.mlp")]
    [[[24.0]], [[42.0]]]
    """
    order = derangement(len(runs), seed)
    lengths = [len(r.tokens) for r in runs]
    if min(lengths) != max(lengths):
        raise ValueError(f"resample: the runs have {min(lengths)} to {max(lengths)} tokens; an "
                         "update fits a sequence of its own length only")
    writes = _writes("resample", runs, writer)
    return [replace(writer, writes[j]) for j in order]


# ---- a redirection ----

def redirected(head, n_tokens):
    """The edit that makes a head attend to the first token only, whatever it reads.

    >>> redirected("L0.attn.H0", 2).value
    [[1, 0], [1, 0]]
    """
    return set_pattern(head, [[1] + [0] * (n_tokens - 1)] * n_tokens)
