"""Which contract one step of a recorded stream keeps: the sum, or something near it.

    state after = state before + updates

Where that fails, these are tried, on one update of the step, the others being taken as they are,
or on all of them.  `needed` is what the updates in question must sum to.

    not_added            0           = needed
    contains_stream      update      = needed + stream
    before_multiplier    c * update  = needed              one c, or one for every channel
    before_bias          update + b  = needed              b [d_model], the same for every token
    before_norm          N(update)   = needed              N(x) = gain * normalized(x) + bias
    post_norm            N(stream + update)  = state after
    stream_scaled        c * stream + update = state after
    state_normed         r * state after - q * state before + m = update    r, q, m of every token
    rounding             the sum, in a coarser format

A claim holds where rounding explains the rest (see `fits`).  This module is part of the portable
core.

    KINDS, words_of              all that an audit may find, in words, and what to do about it
    Part, total, breaks          one step at some positions; where it does not add up
    Question, Reason             which updates are in question, and what holds of them
    TESTS, explained             all that is tried

>>> before, after, attn = [[1.0, 2.0, 3.0]], [[1.5, 1.0, 3.0]], [[0.25, -0.5, 0.0]]
>>> step = part_from(before, after, [("attn", attn)], [0], [2.0 ** -53, 2.0 ** -53])
>>> breaks(step)[0].error
0.5
>>> reason = explained(step, step)
>>> reason.kind, reason.found
('before_multiplier', '2 * attn')
"""
from collections import namedtuple

from ..linalg import dot
from ..scalar import sqrt
from .fits import (EPS, FORMATS, SLACK, Rounded, channel_factors, columns_of, factors, flat,
                   format_of, gaps, minus, normalized, ones, plus, rounded, unit_of, worst_of)

__all__ = ["number_text", "KINDS", "words_of", "Part", "part_from", "total", "breaks", "Question",
           "question", "Reason", "post_norm", "TESTS", "CHANNEL_TESTS", "explained"]


# ---- texts ----

def short(x):
    """A number in three digits.

    >>> short(0.25), short(1 / 3)
    ('0.25', '0.333')
    """
    return "%.3g" % x


def between(numbers):
    """The range of some numbers.

    >>> between([1.0, 0.5, 2.0]), between([1.0, 1.0])
    ('0.5 to 2', '1')
    """
    low, high = short(min(numbers)), short(max(numbers))
    return low if low == high else f"{low} to {high}"


def number_text(x):
    """The size of a number in one digit, or 0.

    >>> number_text(0.0), number_text(2.22e-16)
    ('0', '2e-16')
    """
    return "0" if x == 0 else "%.0e" % x


# ---- what may be found ----

# kind, what holds in words, what to do
KINDS = (
    ("adds_up", "state + update = next state", ""),
    ("not_added", "the update is not in the next state",
     "take the state after the addition; or leave out the update, if it was switched off"),
    ("contains_stream", "the update already contains the stream",
     "hook what the sublayer returns, not the block or the sum; or subtract the state before it"),
    ("before_multiplier", "the update was taken before a multiplier",
     "multiply it, or record it after the multiplier (residual multiplier, LayerScale, gate)"),
    ("before_bias", "the update lacks a vector, the same at every position",
     "take the sublayer's output with its bias; an output bias belongs to no head"),
    ("before_norm", "the update was taken before a norm",
     "hook the norm that follows the sublayer: what it returns is what is added"),
    ("post_norm", "the next state is the norm of state + update",
     "in a post-norm model the plain sum does not hold; the writes carried through its norms do, "
     "see pyres.carried_writers"),
    ("stream_scaled", "the stream was multiplied before the update was added",
     "record the state after its multiplier, as an embedding's"),
    ("state_normed", "the state is normed already",
     "record what goes into the norm; to norm this state again would norm it twice"),
    ("normed_twice", "the final norm was applied to a state that is normed already",
     "unembed the last state as it is"),
    ("overwritten", "it holds the numbers of another one",
     "it was kept without a copy, and then changed in place: keep tensor.detach().clone()"),
    ("missing", "nothing was recorded of what the stream gains here",
     "a hook is missing, or was never called"),
    ("swapped", "two updates stand in each other's place", "exchange them"),
    ("shifted", "the states are one step off",
     "a state is what is there after its writer; give it the name of that one"),
    ("rounding", "it adds up, but only to the rounding of a coarser format",
     "a part of the model computes in that format: audit with its precision, or run in float32"),
    ("not_finite", "it holds NaN, infinity, or numbers beyond 1e150",
     "see what is computed first there; a float16 overflows beyond 65504"),
    ("unexplained", "the sum does not hold, and nothing that was tried does",
     "either something that was not recorded writes to the stream (dropout, an adapter, an edit), "
     "or these are numbers of two runs"),
)


def words_of(kind):
    """Return (what holds, what to do) of a kind.

    >>> words_of("swapped")
    ("two updates stand in each other's place", 'exchange them')
    """
    for name, words, remedy in KINDS:
        if name == kind:
            return words, remedy
    raise ValueError(f"words_of: there is no kind {kind!r}")


# ---- one step ----

class Part(namedtuple("Part", ("before", "after", "updates", "names", "positions", "units"))):
    """One step at some positions.

    before, after    the states there, Rounded [n_tokens][d_model]
    updates          what is said to have been added between them, a list of the same
    names            of the updates
    positions        which positions of the trace these are [n_tokens]
    units            the unit roundoffs of states and of updates
    """


def part_from(before, after, updates, positions, units):
    """A Part from tensors [n_tokens][d_model]; updates are pairs (name, tensor).

    A stream of coarser numbers than the updates' rounds them too.

    >>> part_from([[2.0]], [[5.0]], [("attn", [[1.0]])], [0], [0.25, 0.125]).updates
    [Rounded(numbers=[[1.0]], noise=[[0.25]])]
    """
    return Part(rounded(before, units[0]), rounded(after, units[0]),
                [rounded(update, max(units)) for _, update in updates],
                [name for name, _ in updates], positions, units)


def picked(x, rows):
    """Some rows of a Rounded, as a Rounded.

    >>> picked(rounded([[1.0], [2.0], [4.0]], 0.5), [0, 2])
    Rounded(numbers=[[1.0], [4.0]], noise=[[0.5], [2.0]])
    """
    return Rounded([x.numbers[t] for t in rows], [x.noise[t] for t in rows])


def at_rows(part, rows):
    """A Part at some of its rows."""
    return Part(picked(part.before, rows), picked(part.after, rows),
                [picked(update, rows) for update in part.updates], part.names,
                [part.positions[t] for t in rows], part.units)


def summed(terms):
    """The sum of some Rounded."""
    found = terms[0]
    for x in terms[1:]:
        found = plus(found, x)
    return found


def total(part):
    """The state before a Part and all that was added to it, Rounded.

    >>> total(part_from([[2.0]], [[5.0]], [("attn", [[1.0]])], [0], [0.25, 0.125]))
    Rounded(numbers=[[3.0]], noise=[[0.75]])
    """
    return summed([part.before] + part.updates)


def breaks(part):
    """The Gaps of the rows at which a Part does not add up."""
    return [gap for gap in gaps(total(part), part.after) if not gap.ok]


# ---- what holds in place of the sum ----

class Question(namedtuple("Question", ("part", "which", "called", "recorded", "needed"))):
    """Whether some updates of a Part are what was added, the others being right.

    part        the Part
    which       places of the updates in question
    called      their names, with a + between them
    recorded    what was recorded of them, a list of Rounded
    needed      what they must sum to, Rounded
    """

    @property
    def of_all(self):
        """Whether no update of the step is taken as it is."""
        return len(self.which) == len(self.part.updates)


def question(part, which):
    """The Question about the updates at these places.

    >>> pairs = [("attn", [[1.0]]), ("mlp", [[4.0]])]
    >>> asked = question(part_from([[2.0]], [[5.0]], pairs, [0], [0.0, 0.0]), (1,))
    >>> asked.called, asked.needed.numbers                            # 5 - 2 - 1
    ('mlp', [[2.0]])
    """
    needed = minus(part.after, part.before)
    for j, update in enumerate(part.updates):
        if j not in which:
            needed = minus(needed, update)
    return Question(part, which, " + ".join([part.names[j] for j in which]),
                    [part.updates[j] for j in which], needed)


class Reason(namedtuple("Reason", ("kind", "names", "found", "error", "tolerance", "sure"))):
    """A claim that holds.

    kind                one of KINDS
    names               the updates that it is about
    found               what was found to be equal to what must have been added, in words
    error, tolerance    where the claim is furthest from what rounding explains
    sure                False where it may hold by chance, see `tells`
    """


def reason_of(kind, asked, found, gap, sure=True):
    """A Reason of a Question."""
    return Reason(kind, [asked.part.names[j] for j in asked.which], found, gap.error,
                  gap.tolerance, sure)


def if_equal(kind, asked, found, x, y):
    """The Reason that two Rounded are equal, or None."""
    worst = worst_of(gaps(x, y))
    return reason_of(kind, asked, found, worst) if worst.ok else None


# ---- claims with a free number or none ----

def cosine(u, v):
    """The cosine of the angle between two vectors [n], 0 where one is 0.

    >>> cosine([3.0, 4.0], [3.0, 4.0]), cosine([0.0], [1.0])
    (1.0, 0.0)
    """
    lengths = sqrt(dot(u, u)) * sqrt(dot(v, v))
    return dot(u, v) / lengths if lengths else 0.0


# Each takes a Question and returns a Reason, or None where the claim does not hold.  One that is
# about the step as a whole is asked only when all of its updates are in question.

def not_added(asked):
    """0 = needed."""
    if not asked.which:
        return None
    nothing = rounded([[0.0] * len(row) for row in asked.needed.numbers], 0.0)
    return if_equal("not_added", asked, f"0 * ({asked.called})", nothing, asked.needed)


def contains_stream(asked):
    """update = needed + stream: the state before the step, or with the updates before it."""
    if not asked.which:
        return None
    before, updates, first = asked.part.before, asked.part.updates, asked.which[0]
    called = asked.called
    if not asked.of_all:
        # which of two updates it is, their sum does not tell: the one more along the stream
        alike = [cosine(flat(update)[0], flat(before)[0]) for update in updates]
        others = [name for name in asked.part.names if name != called]
        called += f" (or {', '.join(others)})"
        if alike[first] < max(alike):
            return None
    for stream in ([before] * len(asked.which), [before] + updates[:first]):
        found = if_equal("contains_stream", asked, f"{called} less the stream before it",
                         summed(asked.recorded), summed([asked.needed] + stream))
        if found is not None:
            return found
    return None


def multiplier(asked):
    """c * update = needed, one number for each update."""
    fit = factors(asked.recorded, asked.needed) if asked.which else None
    if fit is None:
        return None
    found = " + ".join([f"{short(c)} * {asked.part.names[j]}"
                        for c, j in zip(fit.factors, asked.which)])
    return reason_of("before_multiplier", asked, found, fit.gap)


def stream_scaled(asked):
    """c * state before + updates = state after."""
    if not asked.of_all:
        return None
    rest = asked.part.after
    for update in asked.part.updates:
        rest = minus(rest, update)
    fit = factors([asked.part.before], rest)
    if fit is None or fit.factors[0] == 0:
        return None
    return reason_of("stream_scaled", asked, f"{short(fit.factors[0])} * the state before",
                     fit.gap)


def coarser(asked):
    """The sum, in a coarser format, where it is off in a quarter of all places, as rounding is."""
    if not asked.of_all:
        return None
    part = asked.part
    errors, noise = flat(minus(total(part), part.after))
    if 4 * len([a for a, b in zip(errors, noise) if abs(a) > SLACK * b]) < len(errors):
        return None
    names = [form.name for form in reversed(FORMATS) if unit_of(form.name) > max(part.units)]
    seen = format_of(flat(part.after)[0])
    for name in [seen] if seen in names else names:
        rough = part_from(part.before.numbers, part.after.numbers,
                          [(called, x.numbers) for called, x in zip(part.names, part.updates)],
                          part.positions, [unit_of(name)] * 2)
        found = if_equal("rounding", asked, f"the sum in {name}", total(rough), rough.after)
        if found is not None:
            return found
    return None


# ---- claims with free numbers for every channel, or every token ----

COARSE = 2.0 ** -20                     # between float32 and float16


def tells(part, fit, features, target):
    """Whether it means something that factors for every channel bring these features to a target.

    So many free numbers may fit by chance, where tokens are few, or much alike, or rounded to few
    digits.  So the sum must be off for most tokens, and the fit not nearly; of coarse numbers
    there must be two tokens a feature; and a claim without sense must not hold as well: each
    channel's feature in place of the one before it.
    """
    n_tokens = len(target.numbers)
    few = max(part.units) > COARSE and n_tokens < 2 * len(features)
    if few or 2 * len(breaks(part)) <= n_tokens or fit.gap.multiple > 0.5:
        return False
    n = len(target.numbers[0])
    turned = [lambda i, feature=feature: feature((i + 1) % n) for feature in features]
    return channel_factors(turned, target) is None


def missing_bias(asked):
    """update + b = needed, where b is the same for every token; of all updates together."""
    if not asked.which or not asked.of_all:
        return None
    part, same = asked.part, columns_of(ones(asked.needed))
    fit = channel_factors([same], minus(part.after, total(part)))
    if fit is None:
        return None
    length = sqrt(dot(fit.factors[0], fit.factors[0]))
    # where the states are the same for every token, what is missing is so whatever it may be
    return reason_of("before_bias", asked, f"{asked.called} + a vector of length {short(length)}",
                     fit.gap, channel_factors([same], part.after) is None)


def channel_multiplier(asked):
    """c[i] * update[t][i] = needed[t][i]."""
    if not asked.which:
        return None
    features = [columns_of(x) for x in asked.recorded]
    fit = channel_factors(features, asked.needed)
    if fit is None:
        return None
    found = " + ".join([f"{between(c)} * {asked.part.names[j]}"
                        for c, j in zip(fit.factors, asked.which)])
    return reason_of("before_multiplier", asked, f"{found}, a factor for each channel", fit.gap,
                     tells(asked.part, fit, features, asked.needed))


def normed_update(asked):
    """N(update) = needed."""
    if not asked.which:
        return None
    return if_normed("before_norm", asked, asked.called, asked.recorded, asked.needed)


def post_norm(asked):
    """N(state before + updates) = state after.

    >>> attn, units = [("attn", [[1.0, 3.0]])], [2.0 ** -53, 2.0 ** -53]
    >>> step = part_from([[1.0, 2.0]], [[-1.0, 1.0]], attn, [0], units)
    >>> post_norm(question(step, (0,))).found                         # of [2, 5]
    'LayerNorm of the sum, eps 0'
    """
    if not asked.of_all:
        return None
    return if_normed("post_norm", asked, "the sum", [total(asked.part)], asked.part.after)


NORMS = (("rms", False, "RMSNorm"), ("layer", False, "LayerNorm"), ("layer", True, "LayerNorm"))


def if_normed(kind, asked, called, inputs, target):
    """The Reason that norms of some Rounded sum to a target, or None."""
    for norm, with_bias, title in NORMS:
        for eps in EPS:
            text = f"{title} of {called}, eps {short(eps)}"
            try:
                features = [normalized(x, norm, eps) for x in inputs]
            except ZeroDivisionError:               # a row of zeros, and eps is 0
                continue
            if len(target.numbers) == 1:            # one token tells no gain
                found = if_equal(kind, asked, text, summed([whole(x, target) for x in features]),
                                 target)
                if found is not None:
                    return found
            features += [columns_of(ones(target))] if with_bias else []
            fit = channel_factors(features, target)
            if fit is not None:
                gains = " and ".join([between(gain) for gain in fit.factors[:len(inputs)]])
                bias = f", bias {between(fit.factors[-1])}" if with_bias else ""
                return reason_of(kind, asked, f"{text}, gain {gains}{bias}", fit.gap,
                                 tells(asked.part, fit, features, target))
    return None


def whole(feature, like):
    """All columns of a feature, as the Rounded that they make, of one token."""
    columns = [feature(i) for i in range(len(like.numbers[0]))]
    return Rounded([[numbers[0] for numbers, _ in columns]], [[noise[0] for _, noise in columns]])


def both_normed(asked):
    """r * state after - q * state before + m = updates, with three numbers for every token, of
    states whose rows have the root mean square 1, as a norm without a gain leaves them.

    Where q is 1 for every token this is post_norm, which is asked before.
    """
    before, after = asked.part.before, asked.part.after
    rms = [sqrt(dot(row, row) / len(row)) for row in before.numbers + after.numbers]
    if not asked.which or not asked.of_all or min(rms) < 0.5 or max(rms) > 1.01:
        return None
    added, found = summed(asked.recorded), []
    for t in range(len(rms) // 2):
        fit = factors([picked(x, [t]) for x in (before, after, ones(before))], picked(added, [t]))
        if fit is None:
            return None
        found.append(fit.gap)
    return reason_of("state_normed", asked, "the difference of the states, each times a number "
                     "for every position", worst_of(found))


# ---- all that is tried ----

TESTS = (not_added, contains_stream, multiplier, stream_scaled, coarser)
CHANNEL_TESTS = (missing_bias, channel_multiplier, normed_update, post_norm, both_normed)


def explained(whole, broken, usual=None):
    """The Reason that holds of a step at all positions, else at those where it breaks, which are
    two Parts of it; None where nothing holds.

    The first of TESTS that holds is meant.  Of CHANNEL_TESTS the first is that is sure, or one of
    the usual kind, that of other steps.
    """
    n, first = len(whole.updates), None
    asked = ([(j,) for j in range(n)] if n > 1 else []) + [tuple(range(n))]
    parts = (whole, broken) if len(broken.positions) < len(whole.positions) else (whole,)
    questions = [question(part, which) for part in parts for which in asked]
    for test in TESTS + CHANNEL_TESTS:
        for about in questions:
            reason = test(about)
            if reason is not None and (test in TESTS or reason.kind == usual):
                return reason
            if reason is not None and reason.sure and first is None:
                first = reason
    return first
