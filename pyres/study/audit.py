"""Which contract a recorded trace keeps, and where it breaks.

A trace is a list of states and a list of updates, from pyres or from hooks in any framework.  Its
contract should be the stream's:

    state[k + 1] = state[k] + update[k]

Often what was written down is something near it: a block's output in place of its update, a vector
before the multiplier or the norm that it passes, a state that was normed, a tensor that was
overwritten after it was kept.  Where the sum fails, `audit` says which of them it is, at which
steps and positions, and what to do.  Equal is what rounding explains, and how the numbers were
rounded is seen in the numbers.  This module is part of the portable core.  Beneath it, `recorded`
reads a trace, `contracts` has what a step may keep in place of the sum, and `verdicts` goes from
step to step.

    Finding, Range, Check, Audit    what was found
    audit                           everything together

>>> states = [[[1.0, 2.0, 3.0]], [[1.5, 1.0, 3.0]], [[1.5, 2.0, 4.0]]]
>>> audit(states, [[[0.5, -1.0, 0.0]], [[0.0, 1.0, 1.0]]]).contract
'adds_up'
>>> found = audit(states, [[[0.5, -1.0, 0.0]], [[1.5, 2.0, 4.0]]]).findings[0]
>>> found.kind, found.where, found.error
('contains_stream', 'update 1', 1.5)
"""
from collections import namedtuple

from .contracts import KINDS, post_norm, question, total, words_of
from .fits import SLACK, flat, gaps, minus, worst_of
from .recorded import aligned, finite_part, is_finite, read_trace, shifted, state_label
from .verdicts import Verdict, at_positions, found_text, judged, walk_of

__all__ = ["KINDS", "Finding", "Range", "Check", "Audit", "audit"]


# ---- what was found ----

class Finding(namedtuple("Finding", ("kind", "where", "names", "positions", "position", "channel",
                                     "error", "tolerance", "evidence", "remedy"))):
    """One thing that is not as it should be.

    kind                one of KINDS
    where               at which updates or states, in words
    names               of these updates or states
    positions           at which positions it shows
    position, channel   the first of these, and the channel at which it is worst there
    error, tolerance    how far the sum is off there, and what rounding explains
    evidence            what holds in place of the sum, in words
    remedy              what to do
    """


class Range(namedtuple("Range", ("kind", "first", "last", "n_steps"))):
    """Steps one after another of one kind: the kind, their first update and their last, how many.
    """


class Check(namedtuple("Check", ("rule", "error", "tolerance", "ok"))):
    """What was asked, and whether it holds; error and tolerance are those of the worst place."""


class Audit(namedtuple("Audit", ("contract", "ranges", "findings", "checks", "formats", "notes"))):
    """What an audit found.

    contract    the kind that all steps are of, or "mixed"
    ranges      Ranges, in order
    findings    Findings, in order; [] where everything adds up
    checks      Checks
    formats     the formats of states and of updates, names of fits.FORMATS
    notes       sentences: how the trace was read, what could not be told
    """


def findings_of(verdicts, all_names):
    """Findings, of Verdicts; those of one kind at the same positions share one."""
    groups = []
    for verdict in verdicts:
        key = verdict.kind, [gap.row for gap in verdict.gaps]
        same = [group for known, group in groups if known == key]
        if same:
            same[0].append(verdict)
        elif verdict.gaps:
            groups.append((key, [verdict]))
    return [finding(kind, positions, group, all_names) for (kind, positions), group in groups]


def finding(kind, positions, group, all_names):
    """The Finding of Verdicts of one kind at the same positions."""
    names, first = [], group[0].gaps[0]
    for verdict in group:
        names += [name for name in verdict.names if name not in names]
    return Finding(kind, span(names, all_names), names, positions, first.row, first.channel,
                   first.error, first.tolerance, evidence_of(group), words_of(kind)[1])


def evidence_of(group):
    """What was found of some Verdicts, in words: of the first two, if there are more."""
    texts = [(", ".join(verdict.names), verdict.found) for verdict in group if verdict.found]
    if len(texts) < 2:
        return "".join([text for _, text in texts])
    said = [f"{names}: {text}" for names, text in texts[:2]]
    return "; ".join(said + ([f"and {len(texts) - 2} more"] if len(texts) > 2 else []))


def span(names, all_names):
    """Some of all names, in words.

    >>> span(["b", "c", "d"], ["a", "b", "c", "d"]), span(["a", "c", "e"], list("abcde"))
    ('b to d', 'a, c, e')
    >>> span(list("acegi"), list("abcdefghi"))
    'a, c to i, every second'
    """
    places = [all_names.index(name) if name in all_names else -1 for name in names]
    strides = set([b - a for a, b in zip(places, places[1:])])
    if len(names) > 2 and strides == set([1]):
        return f"{names[0]} to {names[-1]}"
    if len(names) > 3 and strides == set([2]):
        return f"{names[0]}, {names[1]} to {names[-1]}, every second"
    if len(names) > 8:
        return ", ".join(names[:8]) + f" and {len(names) - 8} more"
    return ", ".join(names)


def ranges_of(verdicts, walk, holding_kind):
    """Ranges, of the Verdicts of all steps; steps that add up are called holding_kind."""
    found = []
    for verdict in verdicts:
        first, last = walk.steps[verdict.first], walk.steps[verdict.last].name
        n = verdict.last - verdict.first + 1
        kind = holding_kind if verdict.kind == "adds_up" else verdict.kind
        if found and found[-1].kind == kind:
            before = found.pop()
            found.append(Range(kind, before.first, last, before.n_steps + n))
        else:
            updates = [walk.trace.updates[k][0] for k in first.updates]
            found.append(Range(kind, (updates + [first.name])[0], last, n))
    return found


def contract_of(ranges, steps):
    """The kind of all Ranges, or "mixed".  The embedding, which the stream begins with, is what it
    is under every contract."""
    begins = steps[0].before is None and len(ranges) > 1 and ranges[0].n_steps == 1
    kinds = [one.kind for one in ranges[begins:]]
    return kinds[0] if kinds.count(kinds[0]) == len(kinds) else "mixed"


# ---- what is not about one step ----

def shift_of(walk, by):
    """The Finding that states stand one step off, given by how much."""
    names = [state_label(name) for name, _ in walk.trace.states]
    broken = [found for found in walk.broken if found][0]
    other = "k + 1" if by > 0 else "k - 1"
    return Finding("shifted", span(names, names), names, [gap.row for gap in broken],
                   broken[0].row, broken[0].channel, broken[0].error, broken[0].tolerance,
                   f"the stream changes at step k by update {other}, not by update k",
                   words_of("shifted")[1])


def not_finite(walk):
    """The Finding, in a list, that there are numbers which are not finite; else []."""
    states = [(state_label(name), x) for name, x in walk.trace.states]
    order = states[:1] if walk.steps[0].before == 0 else []
    for step in walk.steps:
        order += [walk.trace.updates[j] for j in step.updates] + [states[step.after]]
    order += [] if walk.trace.normed is None else [("normed", walk.trace.normed)]
    places = [(name, t, i) for name, x in order for t, row in enumerate(x)
              for i, a in enumerate(row) if not is_finite(a)]
    if not places:
        return []
    name, position, channel = places[0]
    found_in = set([place[0] for place in places])
    names = [other for other, _ in order if other in found_in]
    return [Finding("not_finite", span(names, [other for other, _ in order]), names,
                    sorted(set([place[1] for place in places])), position, channel, float("inf"),
                    0.0, f"{len(places)} of them, the first in {name}", words_of("not_finite")[1])]


def of_final_norm(trace, findings):
    """Return (Findings, Checks, notes) of the final norm's output: it should be a norm of the last
    state, or that state itself where there is no final norm."""
    if trace.normed is None:
        return [], [], []
    (name, last), rule = trace.states[-1], "normed = N(last state)"
    part = finite_part(last, trace.normed, [], trace.units)
    if len(part.positions) < 3:
        return [], [], [f"{rule} can be told of 3 tokens or more"]
    found = gaps(part.before, part.after)
    worst, reason = worst_of(found), post_norm(question(part, ()))
    normed_already = any([one.kind == "state_normed" and state_label(name) in one.names
                          for one in findings])
    if worst.ok:
        return [], [Check(rule, worst.error, worst.tolerance, True)], []
    if reason is not None and not normed_already:
        return [], [Check(rule, reason.error, reason.tolerance, True)], []
    kind, text = ("unexplained", "") if reason is None else ("normed_twice", found_text(reason))
    about = Verdict(kind, None, None, ["normed"], at_positions(found, part), text)
    return (findings_of([about], ["normed"]), [Check(rule, worst.error, worst.tolerance, False)],
            [])


def checks_of(walk, findings):
    """Checks that every step adds up, if anything there can be added, and that numbers are finite
    where some are not."""
    found, checks = [gap for rows in walk.gaps for gap in rows], []
    if found:
        worst = worst_of(found)
        checks.append(Check("state + updates = next state", worst.error, worst.tolerance,
                            worst.ok))
    if any([one.kind == "not_finite" for one in findings]):
        checks.append(Check("every number is finite", float("inf"), 0.0, False))
    return checks


def too_small(walk):
    """The names of updates that rounding alone could hide, so that nothing can be told of them."""
    names = []
    for part in walk.parts:
        _, noise = flat(minus(total(part), part.after))
        for name, update in zip(part.names, part.updates):
            numbers, _ = flat(update)
            if any(numbers) and all([abs(u) <= SLACK * a for u, a in zip(numbers, noise)]):
                names.append(name)
    return names


def limits(walk, findings):
    """Notes on what could not be told."""
    notes, small = [], too_small(walk)
    if small:
        notes.append(f"{', '.join(small)}: no larger than the rounding of the stream, so nothing "
                     "can be told of it")
    few = len(walk.trace.states[0][1]) < 4
    if few and any([found.kind == "unexplained" for found in findings]):
        notes.append("a factor for each channel, and a norm with gain and bias, can be told of 4 "
                     "tokens or more")
    return notes


# ---- everything together ----

def audit(states, updates, normed=None, precision=None):
    """Which contract a trace keeps -> Audit.

    states, updates    lists of tensors [n_tokens][d_model], or of pairs (name, tensor) as a Run
                       has them.  One update stands between two states, or two (attention's and the
                       MLP's); the first may be the embedding.  Of pairs the names say what stands
                       where.  [1][n_tokens][d_model] and [d_model] are taken as well.
    normed             the final norm's output, if it is to be held against the last state
    precision          "float64", "float32", "float16" or "bfloat16", what the numbers were rounded
                       to; None to see it in them

    Numbers are taken as floats.  ValueError, with the tensor's name, where shapes or counts do not
    fit; TypeError where a number is none.  NaN and infinity are findings.

    >>> embed, attn, mlp = [[1.0, 2.0]], [[0.5, 0.5]], [[4.0, 1.0]]
    >>> found = audit([("embed", embed), ("L0.mlp", [[5.5, 3.5]])],
    ...               [("embed", embed), ("L0.attn", attn), ("L0.mlp", mlp)])
    >>> found.contract, found.ranges
    ('adds_up', [Range(kind='adds_up', first='embed', last='L0.mlp', n_steps=2)])
    >>> audit([embed, [[1.5, 2.5]]], [[[0.5, 0.5], [0.0, 0.0]]])
    Traceback (most recent call last):
    ValueError: audit: update 0 has n_tokens 2, state 0 has 1; record both in one forward pass, \
without a cache
    """
    trace, formats, notes = read_trace(states, updates, normed, precision)
    steps, how = aligned(trace)
    walk = walk_of(trace, steps)
    moved, by = shifted(trace, steps, len([found for found in walk.broken if not found]))
    moved_walk = walk_of(trace, moved) if by else walk
    verdicts = judged(moved_walk)
    names = ([trace.updates[k][0] for step in steps for k in step.updates]
             + [state_label(name) for name, _ in trace.states])
    findings = (not_finite(walk) + ([shift_of(walk, by)] if by else [])
                + findings_of(verdicts, names))
    of_normed, checked, more = of_final_norm(trace, findings)
    ranges = ranges_of(verdicts, moved_walk, "shifted" if by else "adds_up")
    return Audit(contract_of(ranges, moved), ranges, findings + of_normed,
                 checks_of(walk, findings) + checked, formats,
                 notes + how + more + limits(moved_walk, findings))
