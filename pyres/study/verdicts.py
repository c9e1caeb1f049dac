"""The steps of a recorded trace, one after another: the sum, or what holds in its place.

A step that breaks may be wrong by itself, and then `contracts` says how.  It may also be half of
something: two updates that were exchanged, or a state that is none of this stream while both
updates around it are right.  So its neighbours are looked at first.  This module is part of the
portable core.

    Verdict, Walk, walk_of    what is said of steps, and what it is said from
    swapped                   two updates in each other's place
    of_states                 states that the updates pass over: overwritten, normed, altered
    alone                     a step by itself
    judged                    all of them

>>> from .recorded import aligned, read_trace
>>> states = [[[1.0, 2.0]], [[1.0, 3.0]], [[4.0, 3.0]]]
>>> trace, _, _ = read_trace(states, [[[3.0, 0.0]], [[0.0, 1.0]]])
>>> [(verdict.kind, verdict.names) for verdict in judged(walk_of(trace, aligned(trace)[0]))]
[('swapped', ['update 0', 'update 1'])]
"""
from collections import namedtuple

from ..linalg import add
from .contracts import Part, at_rows, explained, number_text, post_norm, question, summed, total
from .fits import Gap, Rounded, gaps, rounded
from .recorded import Step, adds_up, part_of, state_label

__all__ = ["Verdict", "Walk", "walk_of", "judged"]


# ---- small things ----

def found_text(reason):
    """A Reason in words."""
    return (f"{reason.found}: the error is {number_text(reason.error)}, "
            f"rounding explains {number_text(reason.tolerance)}")


def at_positions(found, part):
    """The Gaps of a Part that rounding does not explain, with positions of the trace as rows."""
    return [Gap(gap.error, gap.tolerance, part.positions[gap.row], gap.channel)
            for gap in found if not gap.ok]


def copied_from(rows, positions, pairs):
    """The name of the first of some pairs (name, tensor) that holds these rows at these positions;
    None where there is none, or where all is 0.

    >>> copied_from([[3.0]], [1], [("embed", [[3.0], [4.0]]), ("L0.attn", [[1.0], [3.0]])])
    'L0.attn'
    """
    if any([a != 0 for row in rows for a in row]):
        for name, x in pairs:
            if [x[t] for t in positions] == rows:
                return name
    return None


# ---- step after step ----

class Verdict(namedtuple("Verdict", ("kind", "first", "last", "names", "gaps", "found"))):
    """What one step, or some that hang together, do in place of the sum.

    kind           one of contracts.KINDS
    first, last    which steps
    names          the updates or states that it is about
    gaps           the Gaps of what fails, one a position, rows being positions
    found          what holds instead, in words, or ""
    """


class Walk(namedtuple("Walk", ("trace", "steps", "parts", "gaps", "broken"))):
    """Everything a verdict looks at: a Trace and its Steps; of each step the Part, the Gap of
    every row of its sum, and those of them that rounding does not explain, rows being positions.
    """


def walk_of(trace, steps):
    """The Walk over some Steps of a Trace."""
    parts = [part_of(trace, step) for step in steps]
    found = [gaps(total(part), part.after) for part in parts]
    return Walk(trace, steps, parts, found,
                [at_positions(rows, part) for rows, part in zip(found, parts)])


def label_after(walk, k):
    """What the state after a step is called."""
    return state_label(walk.trace.states[walk.steps[k].after][0])


def holding(walk, k):
    """The Verdict, in a list, of a step that adds up; [] where it does not."""
    if walk.broken[k]:
        return []
    kind = "adds_up" if walk.parts[k].positions else "not_finite"
    return [Verdict(kind, k, k, [walk.steps[k].name], [], "")]


def swapped(walk, k):
    """The Verdict, in a list, of two steps that add up with each other's update; else []."""
    pair = walk.steps[k:k + 2]
    if len(pair) < 2 or not walk.broken[k + 1] or any([len(step.updates) != 1 for step in pair]):
        return []
    for step, other in ((pair[0], pair[1]), (pair[1], pair[0])):
        if not adds_up(walk.trace, Step(step.name, step.before, step.after, other.updates)):
            return []
    return [Verdict("swapped", k, k + 1, [step.name for step in pair], walk.broken[k], "")]


# ---- states that are not of this stream ----

def carried(parts):
    """The state after each of some Parts that follow one another, Rounded, as their updates make
    it from the first one's state before."""
    x, found = parts[0].before, []
    for part in parts:
        x = summed([x] + part.updates)
        # the framework rounded it once more before it went on
        x = Rounded(x.numbers, add(x.noise, rounded(x.numbers, part.units[0]).noise))
        found.append(x)
    return found


def state_part(part, expected):
    """A Part from the expected state to the recorded one, with nothing added: what was done to the
    state."""
    return Part(expected, part.after, [], [], part.positions, part.units)


def at_common(parts):
    """Parts at the positions that all of them have."""
    common = [t for t in parts[0].positions if all([t in part.positions for part in parts])]
    return [at_rows(part, [part.positions.index(t) for t in common]) for part in parts]


def agree(x, y):
    """Whether rounding explains the difference of two Rounded."""
    return all([gap.ok for gap in gaps(x, y)])


def normed_to_the_end(walk, k, parts):
    """The Verdicts of states that are norms of the expected ones, more than half of them surely;
    else []."""
    verdicts, n_sure = [], 0
    for j, part in enumerate(parts):
        expected = carried(parts[:j + 1])[-1]
        reason = post_norm(question(state_part(part, expected), ()))
        if reason is None:
            return []
        n_sure += reason.sure
        found = at_positions(gaps(expected, part.after), part)
        verdicts.append(Verdict("state_normed", k + j, k + j, [label_after(walk, k + j)], found,
                                found_text(reason)))
    return verdicts if 2 * n_sure > len(verdicts) else []


def about_state(walk, k, last, part, expected):
    """The Verdict of the state after step k, which is not the expected one."""
    found = at_positions(gaps(expected, part.after), part)
    whole = state_part(part, expected)
    bad = at_rows(whole, [part.positions.index(gap.row) for gap in found])
    states, after = walk.trace.states, walk.steps[k].after
    copied = copied_from(bad.after.numbers, bad.positions, states[after + 1:] + states[:after])
    reason = explained(whole, bad)
    if copied is not None:
        kind, text = "overwritten", f"the numbers are those of {state_label(copied)}"
    elif reason is None:
        kind, text = "unexplained", "the states around it and the updates agree without it"
    else:
        kind = "state_normed" if reason.kind == "post_norm" else reason.kind
        text = found_text(reason)
    return Verdict(kind, k, last, [label_after(walk, k)], found, text)


def of_states(walk, k):
    """The Verdicts of states that are not of this stream, given that step k breaks; else [].

    From the state before step k the updates are added up, past the next steps that break too.
    Where that leads to a recorded state again, those in between are wrong and no update is.  Where
    it leads to none, but all of them are norms of what was expected, they were normed.
    """
    end = k
    while end < len(walk.steps) and walk.broken[end]:
        end += 1
    parts = at_common(walk.parts[k:end])
    if len(parts) < 2 or not parts[0].positions:
        return []
    # one position tells most of it, and is quickly looked at
    one = [at_rows(part, [0]) for part in parts]
    for m, (expected, part) in enumerate(zip(carried(one), one)):
        if agree(expected, part.after):
            states = carried(parts[:m + 1])
            if agree(states[m], parts[m].after):
                # the very next state may agree: what is expected is rounded once more
                lasts = [k + j for j in range(m - 1)] + [k + m]
                return [about_state(walk, k + j, lasts[j], parts[j], states[j]) for j in range(m)]
    unchanged = [part for part in one if part.before.numbers == part.after.numbers]
    return [] if end < len(walk.steps) or unchanged else normed_to_the_end(walk, k, parts)


# ---- a step by itself ----

def in_its_place(walk, k, reason):
    """Return (kind, names) of what a Reason says of step k, seen with the steps around it."""
    step, kind = walk.steps[k], reason.kind
    around = [walk.broken[j] for j in (k - 1, k + 1) if 0 <= j < len(walk.steps)]
    states = [] if step.before is None else [state_label(walk.trace.states[step.before][0])]
    states.append(label_after(walk, k))
    if kind == "not_added" and len(states) == 2 and len(reason.names) == len(step.updates):
        # between steps that add up it is the update that is wrong; else one of the two states
        if len(around) < 2 or around[0] or around[1]:
            return "overwritten", states
    if kind == "post_norm":
        # the last state alone, or a state for which there is no update
        is_last = k == len(walk.steps) - 1 and around != [] and not around[0]
        return "state_normed" if is_last or not step.updates else kind, states[-1:]
    if kind == "state_normed":
        return kind, states
    if kind == "stream_scaled":
        return kind, states[:1]
    return kind, reason.names or [step.name]


def alone(walk, k, usual=None):
    """The Verdict of a step that breaks, by itself; usual: see explained."""
    step, part, broken = walk.steps[k], walk.parts[k], walk.broken[k]
    bad = at_rows(part, [part.positions.index(gap.row) for gap in broken])
    for update, name in zip(bad.updates, bad.names):
        others = [pair for pair in walk.trace.updates if pair[0] != name]
        copied = copied_from(update.numbers, bad.positions, others)
        if copied is not None:
            return Verdict("overwritten", k, k, [name], broken,
                           f"the numbers are those of {copied}")
    reason = explained(part, bad, usual)
    if reason is None:
        # a step that has fewer updates than others, or none
        fewer = len(step.updates) < max([len(other.updates) for other in walk.steps])
        return Verdict("missing" if fewer else "unexplained", k, k, [step.name], broken, "")
    kind, names = in_its_place(walk, k, reason)
    return Verdict(kind, k, k, names, broken, found_text(reason))


# ---- all steps ----

def is_open(verdict, usual):
    """Whether a step by itself might as well be what most others are."""
    return (usual is not None and verdict.kind != usual and verdict.gaps != []
            and verdict.first == verdict.last)


def usual_kind(verdicts):
    """The kind of most of some Verdicts, less those that add up or are not explained; None where
    no kind is there twice."""
    kinds = [verdict.kind for verdict in verdicts
             if verdict.kind not in ("adds_up", "unexplained", "missing", "not_finite")]
    counts = [kinds.count(kind) for kind in kinds]
    return kinds[counts.index(max(counts))] if counts and max(counts) > 1 else None


def judged(walk):
    """The Verdicts of all steps of a Walk, in order."""
    verdicts, k = [], 0
    while k < len(walk.steps):
        verdicts += (holding(walk, k) or swapped(walk, k) or of_states(walk, k)
                     or [alone(walk, k)])
        k = verdicts[-1].last + 1
    usual = usual_kind(verdicts)
    return [alone(walk, verdict.first, usual) if is_open(verdict, usual) else verdict
            for verdict in verdicts]
