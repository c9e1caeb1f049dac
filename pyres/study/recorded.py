"""A recorded trace: its tensors, checked, and which updates stand between which states.

States and updates come as lists, from pyres or from elsewhere, with names or without.  Names tell
what stands where: a state has the name of the writer before it.  Without names it is told by how
many there are of each, and where that can be read in two ways, by which of them adds up.  This
module is part of the portable core.

    Trace, read_trace    the tensors as floats, of one shape; how they are rounded
    Step, part_of        from one state to the next, and its numbers
    aligned, shifted     the steps of a trace

>>> states, updates = [[[1.0, 2.0]], [[3.0, 3.0]]], [[[2.0, 1.0]]]
>>> trace, formats, notes = read_trace(states, updates)
>>> aligned(trace)[0]
[Step(name='update 0', before=0, after=1, updates=[0])]
"""
from collections import namedtuple

from ..linalg import check_numbers, shape, shape_text
from .contracts import breaks, part_from
from .fits import format_of, unit_of

__all__ = ["Trace", "state_label", "is_finite", "read_trace", "Step", "finite_part", "part_of",
           "adds_up", "aligned", "shifted"]


# ---- a trace ----

class Trace(namedtuple("Trace", ("states", "updates", "normed", "units"))):
    """What is audited.

    states, updates    pairs (name, [n_tokens][d_model]) of floats
    normed             the final norm's output, or None
    units              the unit roundoffs of states and of updates
    """


def named(tensors, what):
    """Tensors, or pairs (name, tensor), as pairs; what has no name gets one.

    >>> named([[[1.0]], [[2.0]]], "state"), named([("embed", [[1.0]])], "state")
    ([('state 0', [[1.0]]), ('state 1', [[2.0]])], [('embed', [[1.0]])])
    """
    pairs = []
    for k, x in enumerate(tensors):
        is_pair = isinstance(x, (list, tuple)) and len(x) == 2 and isinstance(x[0], str)
        pairs.append((x[0], x[1]) if is_pair else (f"{what} {k}", x))
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"audit: two {what}s are called {name}; number them apart")
    return pairs


def state_label(name):
    """A state's name in a text, where an update may have the same one.

    >>> state_label("L0.attn"), state_label("state 3")
    ('state L0.attn', 'state 3')
    """
    return name if name.startswith("state ") else f"state {name}"


def sequence(name, x):
    """x as [n_tokens][d_model] of floats: a batch of one is that one, a vector is one token.

    >>> sequence("x", [[[1, 2]]]), sequence("x", [1, 2])
    ([[1.0, 2.0]], [[1.0, 2.0]])
    >>> sequence("x", [[[1, 2]], [[3, 4]]])
    Traceback (most recent call last):
    ValueError: audit: x is a batch of 2 sequences; give one at a time
    """
    try:
        sizes = shape(x)
    except (TypeError, ValueError) as error:
        raise type(error)(f"audit: {name} is no [n_tokens][d_model]: {error}")
    if len(sizes) == 3 and sizes[0] != 1:
        raise ValueError(f"audit: {name} is a batch of {sizes[0]} sequences; give one at a time")
    if len(sizes) not in (1, 2, 3) or 0 in sizes:
        raise ValueError(f"audit: {name} has shape {shape_text(x)}, expected [n_tokens][d_model]")
    rows = [x] if len(sizes) == 1 else x[0] if len(sizes) == 3 else x
    for row in rows:
        check_numbers(f"audit: {name}", row)
    return [[float(a) for a in row] for row in rows]


def check_shapes(pairs):
    """ValueError unless all of some named tensors are as long and as wide as the first."""
    first, like = pairs[0]
    for name, x in pairs:
        if len(x) != len(like):
            raise ValueError(f"audit: {name} has n_tokens {len(x)}, {first} has {len(like)}; "
                             "record both in one forward pass, without a cache")
        if len(x[0]) != len(like[0]):
            raise ValueError(f"audit: {name} has d_model {len(x[0])}, {first} has {len(like[0])}; "
                             "an update is as wide as the stream it is added to")


LARGEST = 1e150                         # beyond it a square overflows


def is_finite(a):
    """Whether a number is neither NaN nor infinite, and small enough to be reckoned with.

    >>> is_finite(-2.0), is_finite(float("nan")), is_finite(1e200)
    (True, False, False)
    """
    return -LARGEST < a < LARGEST


def finite_numbers(pairs):
    """Every finite number of some named tensors."""
    return [a for _, x in pairs for row in x for a in row if is_finite(a)]


def read_trace(states, updates, normed=None, precision=None):
    """Return (Trace, names of the formats of states and updates, notes), for audit's arguments."""
    states, updates = named(states, "state"), named(updates, "update")
    if not states or not updates:
        raise ValueError(f"audit: {len(states)} states and {len(updates)} updates; "
                         "give the states, and what was added between them")
    given = states + updates + ([] if normed is None else [("normed", normed)])
    tensors = [(name, sequence(name, x)) for name, x in given]
    check_shapes(tensors)
    n = len(states)
    states, updates = tensors[:n], tensors[n:n + len(updates)]
    normed = None if normed is None else tensors[-1][1]
    formats = [format_of(finite_numbers(pairs)) if precision is None else precision
               for pairs in (states, updates)]
    batched = [name for name, x in given if len(shape(x)) == 3]
    notes = ["a batch of one sequence was taken as that sequence"] if batched else []
    return Trace(states, updates, normed, [unit_of(name) for name in formats]), formats, notes


# ---- steps ----

class Step(namedtuple("Step", ("name", "before", "after", "updates"))):
    """From one state to the next.

    name             of its last update, or of the state after it where it has none
    before, after    which states; before is None where the stream begins with this step's update
    updates          which updates stand between the two
    """


def finite_part(before, after, updates, units):
    """The Part of two states and the updates between them, pairs (name, tensor), at every position
    where all numbers are finite."""
    tensors = [before, after] + [x for _, x in updates]
    rows = [t for t in range(len(after)) if all([is_finite(a) for x in tensors for a in x[t]])]
    return part_from([before[t] for t in rows], [after[t] for t in rows],
                     [(name, [x[t] for t in rows]) for name, x in updates], rows, units)


def part_of(trace, step):
    """The Part of a Step."""
    after = trace.states[step.after][1]
    before = ([[0.0] * len(row) for row in after] if step.before is None
              else trace.states[step.before][1])
    return finite_part(before, after, [trace.updates[k] for k in step.updates], trace.units)


def adds_up(trace, step):
    """Whether a Step adds up, wherever its numbers are finite.

    >>> trace, _, _ = read_trace([[[1.0, 2.0]], [[3.0, 3.0]]], [[[2.0, 1.0]]])
    >>> adds_up(trace, Step("update 0", 0, 1, [0])), adds_up(trace, Step("update 0", 1, 0, [0]))
    (True, False)
    """
    return not breaks(part_of(trace, step))


def n_holding(trace, steps):
    """How many Steps add up."""
    return len([step for step in steps if adds_up(trace, step)])


def aligned(trace):
    """Return (Steps, notes): by name where a state has the name of an update, else by how many
    there are.
    """
    names = [name for name, _ in trace.updates]
    if any([name in names for name, _ in trace.states]):
        return by_name(trace, names)
    ways = by_count(trace)
    if len(ways) == 1:
        return ways[0]
    scores = [n_holding(trace, steps) / len(steps) for steps, _ in ways]
    return ways[scores.index(max(scores))]


def by_name(trace, names):
    """(Steps, notes) of a trace whose states have the names of the updates before them."""
    steps, begin = [], 0
    for k, (name, _) in enumerate(trace.states):
        end = names.index(name) + 1 if name in names else begin
        if end < begin or name in names[:begin]:
            raise ValueError(f"audit: the state {name} stands after a later one; "
                             "give states in the order in which they were written")
        if k > 0 or end > begin:
            which = list(range(begin, end))
            steps.append(Step(name, k - 1 if k > 0 else None, k, which))
        begin = end
    notes = [f"{', '.join(names[begin:])}: no state stands after it, so it is not checked"]
    return steps, notes if begin < len(names) else []


def by_count(trace):
    """Pairs (Steps, notes): every way in which so many updates fit between so many states."""
    n_states, n_updates = len(trace.states), len(trace.updates)
    last = trace.updates[-1][0]

    def steps(before, first, each, n_steps):
        found = []
        for k in range(n_steps):
            which = list(range(first + k * each, first + (k + 1) * each))
            found.append(Step(trace.updates[which[-1]][0], None if before + k < 0 else before + k,
                              before + k + 1, which))
        return found

    ways, embedding = [], "update 0 was taken for the embedding"
    two = "two updates were taken to stand between two states"
    if n_updates == n_states - 1:
        ways.append((steps(0, 0, 1, n_updates), []))
    if n_updates == 2 * (n_states - 1):
        ways.append((steps(0, 0, 2, n_states - 1), [two]))
    if n_updates == 2 * n_states - 1 and n_states > 1:
        ways.append((steps(-1, 0, 1, 1) + steps(0, 1, 2, n_states - 1), [embedding, two]))
    if n_updates == n_states:
        ways.append((steps(-1, 0, 1, n_states), [embedding]))
    if n_updates == n_states > 1:
        ways.append((steps(0, 1, 1, n_states - 1), ["state 0 was taken to stand after update 0, "
                                                    "which is not checked"]))
        ways.append((steps(0, 0, 1, n_states - 1), ["state 0 was taken to stand before update 0; "
                                                    f"{last} is not checked"]))
    if n_updates < n_states - 1:
        ways += by_matching(trace)
    if not ways:
        raise ValueError(f"audit: {n_states} states and {n_updates} updates; expected one update, "
                         "or two, between two states, and perhaps the embedding before the first")
    return ways


def by_matching(trace):
    """As by_count, where there are fewer updates than steps: each stands where it first fits."""
    found, j = [], 0
    for k in range(len(trace.states) - 1):
        step = Step(trace.states[k + 1][0], k, k + 1, [])
        if j < len(trace.updates):
            with_update = Step(trace.updates[j][0], k, k + 1, [j])
            if adds_up(trace, with_update):
                step, j = with_update, j + 1
        found.append(step)
    return [(found, [])] if j == len(trace.updates) else []


def shifted(trace, steps, n_adding_up):
    """Return (Steps, by how much) if most of them add up with the update one further on, or one
    back, and not as they are, where n_adding_up do; else (steps, 0).

    Two of them at least must add up, and more than two thirds: where neighbours are exchanged, two
    thirds may.  Each step must have one update; the embedding's own step is left out.

    >>> states = [[[float(x)]] for x in (1, 3, 7, 15)]
    >>> trace, _, _ = read_trace(states, [[[5.0]], [[2.0]], [[4.0]]])
    >>> shifted(trace, aligned(trace)[0], 0)[1]                       # and 3 - 1 is update 1
    1
    """
    if any([len(step.updates) != 1 for step in steps]) or 2 * n_adding_up > len(steps):
        return steps, 0
    for by in (1, -1):
        moved = [Step(trace.updates[step.updates[0] + by][0], step.before, step.after,
                      [step.updates[0] + by]) for step in steps if step.before is not None
                 and 0 <= step.updates[0] + by < len(trace.updates)]
        n = n_holding(trace, moved)
        if n >= 2 and 3 * n > 2 * len(moved):
            return moved, by
    return steps, 0
