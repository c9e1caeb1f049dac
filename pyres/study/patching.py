"""Patching: one run's update in another run, and along one path only.

There are two runs of one model, on sequences of equal length.  The *base* is the run that is
edited, the *source* the run that an update is taken from:

    patch        the base, with one writer's update from the source

What follows is everything that the update does.  Path patching asks what it does through one
reader: a sender A, a receiver B that comes after it.

    first run     the base, with A's update from the source; every writer between A and B keeps its
                  base update.  B then reads the base's stream but for A's change, through its own
                  norm, which is worked out again.
    second run    the base, with the update that B wrote in the first run; all that follows reacts

So A changes only what B reads.  Wang and others ("Interpretability in the wild", 2022) let the
MLPs between react in the first run, as if they belonged to the path; here they are kept like all
others unless free_mlps says so.  A receiver "final" is the final stream itself: then the first run
is the answer, and the path that goes through no other writer.

A sender that does not come before the receiver has no path to it.  Its cell in a table is None,
which is not 0: 0 says that a path was tried and did nothing.  This module is part of the portable
core.

    patch           the edit that patches
    comes_before    whether one writer can read another
    path_run        the last of the runs above
    path_table      senders and receivers, and what each path does to a metric

>>> from pyres.model import run, small_model
>>> from pyres.study.metrics import logit
>>> model = small_model()                                    # attn(x) = x + 4, mlp(x) = 3 x / 2
>>> base, source = run(model, [0]), run(model, [1])
>>> base.writers, source.writers[0]
([('embed', [[16.0]]), ('L0.attn', [[12.0]]), ('L0.mlp', [[42.0]])], ('embed', [[8.0]]))
>>> path_table(base, source, ["embed", "L0.attn"], ["L0.attn", "L0.mlp", "final"],
...            logit(model, 0, 0))
[[-10.0, -12.0, -8.0], [None, -6.0, -4.0]]
"""
from ..edits import replace, scale
from ..model import run, writer_names
from .metrics import value
from .references import branch_of, check_same_weights, check_writers, raw_write
from .sweeps import mapped

__all__ = ["FINAL", "patch", "comes_before", "path_run", "path_table"]

FINAL = "final"


def patch(base_run, source_run, writer, positions=None):
    """The edit that gives a writer of the base the update that it had in the source, at the
    positions or everywhere.  The writer may be of any kind.

    Raises ValueError where the runs differ in length or in their weights.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.effects import effect
    >>> from pyres.study.metrics import logit
    >>> model = small_model()
    >>> base, source = run(model, [0]), run(model, [1])
    >>> edit = patch(base, source, "L0.attn")
    >>> edit.value, effect(base, [edit], logit(model, 0, 0)).total     # 8 in place of 12
    ([[8.0]], -10.0)
    """
    _check_pair("patch", base_run, source_run)
    return replace(writer, raw_write(source_run, writer), positions)


def _check_pair(name, base_run, source_run):
    check_same_weights(name, [base_run, source_run])
    base, source = len(base_run.tokens), len(source_run.tokens)
    if base != source:
        raise ValueError(f"{name}: the base has {base} tokens, the source {source}; an update "
                         "fits a sequence of its own length only")


# ---- paths ----

def comes_before(config, sender, receiver):
    """Whether what the sender writes is in the stream that the receiver reads.

    Heads of one sublayer do not read each other, nor do the two sublayers of a parallel block.
    "final" reads everything, the embedding nothing.  Raises ValueError for a branch that is not
    there.

    >>> from pyres.model import small_model
    >>> comes_before(small_model().config, "L0.attn.H0", "L0.mlp")
    True
    >>> comes_before(small_model("parallel").config, "L0.attn.H0", "L0.mlp")
    False
    """
    for name in [sender] if receiver == FINAL else [sender, receiver]:
        if branch_of(name) not in writer_names(config):
            raise ValueError(f"comes_before: there is no writer {name!r}")
    if receiver == FINAL:
        return True
    sends, reads = _place(sender), _place(receiver)
    in_one_block = sends // 2 == reads // 2 and sends >= 2
    if in_one_block and config.blocks[reads // 2 - 1].placement == "parallel":
        return False
    return sends < reads


def _place(writer):
    """1 for the embedding, then two numbers a block: 2 and 3, 4 and 5, ..."""
    parts = writer.split(".")
    return 1 if parts[0] == "embed" else 2 * int(parts[0][1:]) + (2 if parts[1] == "attn" else 3)


def path_run(base_run, source_run, sender, receiver, free_mlps=False):
    """The Run in which the sender's update in the source has changed only what the receiver reads.

    sender and receiver are writers of any kind; a receiver "final" is the final stream.  With
    free_mlps the MLPs between them react.  Raises ValueError where there is no path, or the runs
    differ in length or weights.

    >>> from pyres.model import run, small_model
    >>> model = small_model()
    >>> path_run(run(model, [0]), run(model, [1]), "embed", "L0.mlp").writers
    [('embed', [[16.0]]), ('L0.attn', [[12.0]]), ('L0.mlp', [[30.0]])]
    """
    _check_pair("path_run", base_run, source_run)
    model, tokens = base_run.model, base_run.tokens
    _check_ends(base_run, [sender, receiver])
    if not comes_before(model.config, sender, receiver):
        raise ValueError(f"path_run: {sender} does not come before {receiver}, so no path leads "
                         "from one to the other")
    first = run(model, tokens, base_run.edits + [patch(base_run, source_run, sender)]
                + _kept_between(base_run, sender, receiver, free_mlps))
    if receiver == FINAL:
        return first
    return run(model, tokens, base_run.edits + [replace(receiver, raw_write(first, receiver))])


def _check_ends(base_run, names):
    check_writers(base_run, [scale(name, 1) for name in names if name != FINAL])


def _kept_between(base_run, sender, receiver, free_mlps):
    """Edits that keep the base's updates of the writers between."""
    end = 2 * len(base_run.writers) if receiver == FINAL else _place(receiver)
    return [replace(name, update) for name, update in base_run.writers
            if _place(sender) < _place(name) < end and not (free_mlps and name.endswith(".mlp"))]


def path_table(base_run, source_run, senders, receivers, metric, free_mlps=False,
               executor=None, progress=None):
    """What each path changes of a metric: a row for every sender, in it a number for every
    receiver, None where there is no path.  See path_run, and sweeps.mapped.

    >>> from pyres.model import run, small_model
    >>> from pyres.study.metrics import logit
    >>> model = small_model()
    >>> path_table(run(model, [0]), run(model, [1]), ["L0.mlp"], ["L0.attn", "final"],
    ...            logit(model, 0, 0))
    [[None, -18.0]]
    """
    _check_pair("path_table", base_run, source_run)
    senders, receivers = list(senders), list(receivers)
    _check_ends(base_run, senders + receivers)
    paths = [(sender, receiver) for sender in senders for receiver in receivers
             if comes_before(base_run.model.config, sender, receiver)]
    found = mapped(_changed, [(base_run, source_run, path, metric, free_mlps) for path in paths],
                   executor, progress)
    changes = {path: change for path, change in zip(paths, found)}
    return [[changes.get((sender, receiver)) for receiver in receivers] for sender in senders]


def _changed(task):
    base_run, source_run, (sender, receiver), metric, free_mlps = task
    patched = path_run(base_run, source_run, sender, receiver, free_mlps)
    return value(patched, metric) - value(base_run, metric)
