"""What a model would guess if it stopped at a state: the lens.

A lens sends a state of the stream through the final norm and the unembedding, as if nothing came
after it.  What differs is what stands before the norm, and which divisor the norm uses:

    own         N(x), with the statistics of the state itself: the logit lens (nostalgebraist,
                "interpreting GPT: the logit lens", 2020)
    frozen      the divisor that the final norm had in this run.  The only additive one: its logits
                before a soft cap are the sum of what the writers so far give, and the constant
    jacobian    N(J x), with J the exact derivative of the final stream by the state, both at one
                position, in this run: the identity with all that later sublayers add to it

At the last state all three give the run's own logits.  The last state is not normed yet: a "last
hidden state" that some libraries return is, and must not be normed again.

    streams                         what each method sends through the final norm
    raw_lens_logits, lens_logits    the logits at a state, before and after a soft cap
    jacobians                       J at every state
    best, rank                      the likeliest tokens; where one stands among all
    Reading, reading                what a row of logits says
    StateReadings, lens             readings at every state

A rank counts from 1, which is the top guess; of equal logits the smaller id comes first.  Entropy
and KL divergence are in nats.  What is not finite is not ranked.  This module is part of the
portable core.

>>> from pyres.model import run, small_model
>>> r = run(small_model(), [0])                             # token 1's logit is 0
>>> [(name, lens_logits(r, name)) for name, _ in r.states]
[('embed', [[16.0, 0.0]]), ('L0.attn', [[28.0, 0.0]]), ('L0.mlp', [[70.0, 0.0]])]
>>> r.logits
[[70.0, 0.0]]
"""
from collections import namedtuple

from ..blocks import norm_steps
from ..config import NormConfig
from ..edits import few
from ..linalg import dot, matvec, zeros_like
from ..model import soft_capped, stream_backward, unembed
from ..nonlinear import log_softmax, softmax
from .parts import checked_positions

__all__ = ["streams", "raw_lens_logits", "lens_logits", "jacobians", "best", "rank", "Reading",
           "reading", "StateReadings", "lens"]


# ---- from a state to logits ----

METHODS = ("own", "frozen", "jacobian")


def streams(run_record, method="own", positions=None):
    """What a method sends through the final norm: pairs (state, [n_positions][d_model]).

    That is the state itself, for the jacobian method J times it, see `jacobians`.  positions is a
    list, by default of all.  Raises ValueError for a method or a position that is not there.

    >>> from pyres.model import run, small_model
    >>> streams(run(small_model(), [0]), "jacobian")            # slopes 15/4, 5/2 and 1
    [('embed', [[60.0]]), ('L0.attn', [[70.0]]), ('L0.mlp', [[70.0]])]
    """
    if method not in METHODS:
        raise ValueError(f"lens: no method {method!r}; there are {', '.join(METHODS)}")
    positions = checked_positions(run_record, positions)
    found = [(name, [list(state[t]) for t in positions]) for name, state in run_record.states]
    if method != "jacobian":
        return found
    at_positions = [[j for _, j in jacobians(run_record, t)] for t in positions]
    return [(name, [matvec(js[k], row) for js, row in zip(at_positions, rows)])
            for k, (name, rows) in enumerate(found)]


def through_the_end(run_record, rows, method, positions):
    """Rows [n_positions][d_model] through the final norm and the unembedding: [n_positions]
    [d_vocab], before a soft cap."""
    config, w = run_record.model.config, run_record.model.weights
    norm = config.final_norm
    if norm is not None:
        divisors = run_record.steps.final_norm.scale
        given = method == "frozen" or norm.scale is not None
        norm = NormConfig(norm.kind, norm.eps, [divisors[t] for t in positions] if given else None)
    return unembed(config, w, norm_steps(rows, w.final_norm, norm).out)


def raw_lens_logits(run_record, state, method="own", positions=None):
    """The logits at a state before a soft cap: [n_positions][d_vocab].  By the frozen method they
    are sums, see attribution.contributions.  Raises as `streams`, and for a state that is not
    there.

    >>> from pyres.model import run, small_model
    >>> raw_lens_logits(run(small_model(), [0, 1]), "L0.attn", positions=[1])
    [[18.0, 0.0]]
    """
    positions = checked_positions(run_record, positions)
    for name, rows in streams(run_record, method, positions):
        if name == state:
            return through_the_end(run_record, rows, method, positions)
    raise ValueError(f"lens: there is no state {state!r}; there are "
                     f"{few([name for name, _ in run_record.states])}")


def lens_logits(run_record, state, method="own", positions=None):
    """The logits at a state: [n_positions][d_vocab].  At the last state they are the run's logits.
    Raises as raw_lens_logits.

    >>> from pyres.model import run, small_model
    >>> lens_logits(run(small_model(), [0, 1]), "embed")
    [[16.0, 0.0], [8.0, 0.0]]
    """
    return soft_capped(raw_lens_logits(run_record, state, method, positions),
                       run_record.model.config.logit_soft_cap)


def jacobians(run_record, position):
    """The derivative of the final stream by every state, both at one position: pairs (state, J).

        J[i][j] = d final_stream[position][i] / d state[position][j]

    It holds everything that later sublayers add because of the state, at this position, in this
    run; what reaches the position through other tokens is in their states.  Row i is the gradient
    of final_stream[position][i], so this costs d_model backward passes.

    Raises ValueError for a position that is not there.

    >>> from pyres.model import run, small_model
    >>> jacobians(run(small_model(), [0]), 0)
    [('embed', [[3.75]]), ('L0.attn', [[2.5]]), ('L0.mlp', [[1.0]])]
    """
    checked_positions(run_record, [position])
    final, rows = run_record.states[-1][1], [[] for _ in run_record.states]
    for i in range(run_record.model.config.d_model):
        d_final = zeros_like(final)
        d_final[position][i] += 1
        for of_state, (_, gradient) in zip(rows, stream_backward(d_final, run_record)[3]):
            of_state.append(gradient.total[position])
    return [(name, j) for (name, _), j in zip(run_record.states, rows)]


# ---- what logits say ----

def is_finite(logits):
    """Whether every logit is finite: only then can they be ranked."""
    return all([a - a == 0 for a in logits])


def check_finite(name, logits):
    """Raise ValueError where a logit is not finite."""
    for token, a in enumerate(logits):
        if a - a != 0:
            raise ValueError(f"{name}: the logit of token {token} is {a}; "
                             "what is not finite is not ranked")


def best(logits, n=1):
    """The n likeliest tokens of a row of logits [d_vocab], the likeliest first; of equal ones the
    smaller id.  Raises ValueError where a logit is not finite.

    >>> best([0.5, 2.0, 0.5], 2)
    [1, 0]
    >>> best([0.5, float("nan")])
    Traceback (most recent call last):
    ValueError: best: the logit of token 1 is nan; what is not finite is not ranked
    """
    check_finite("best", logits)
    if n == 1:
        return [min(range(len(logits)), key=lambda token: (-logits[token], token))]
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:n]


def rank(logits, token):
    """Where a token stands among all, 1 for the top guess; see best.  Raises ValueError for one
    that is not there, too.

    >>> rank([0.5, 2.0, 0.5], 1), rank([0.5, 2.0, 0.5], 2)
    (1, 3)
    >>> rank([0.5, 2.0, 0.5], -1)
    Traceback (most recent call last):
    ValueError: rank: there is no token -1; there are 3 logits, 0 to 2
    """
    check_finite("rank", logits)
    if not 0 <= token < len(logits):
        raise ValueError(f"rank: there is no token {token}; there are {len(logits)} logits, "
                         f"0 to {len(logits) - 1}")
    return 1 + len([v for v, a in enumerate(logits)
                    if a > logits[token] or a == logits[token] and v < token])


class Reading(namedtuple("Reading", ("guesses", "probability", "rank", "entropy", "kl"))):
    """What a row of logits says.

    guesses        pairs (token, probability), the likeliest first
    probability    of the target, and its rank; None without a target
    entropy        -sum of p * log p, in nats
    kl             KL(final || this) = sum of p_final * (log p_final - log p), in nats

    All are None where a logit is not finite.
    """


def reading(logits, final_logits, target=None, top=1):
    """What a row of logits [d_vocab] says, beside the run's own at that position -> Reading.

    >>> from pyres.show import rounded
    >>> said = reading([0.0, 0.0], [0.0, 0.0], target=1)
    >>> said.guesses, said.probability, said.rank, rounded(said.entropy), said.kl
    ([(0, 0.5)], 0.5, 2, 0.693, 0.0)
    >>> reading([0.0, float("nan")], [0.0, 0.0], target=1).guesses is None
    True
    """
    if not is_finite(logits) or not is_finite(final_logits):
        return Reading(None, None, None, None, None)
    p, log_p, log_final = softmax(logits), log_softmax(logits), log_softmax(final_logits)
    gaps = [a - b for a, b in zip(log_final, log_p)]
    place = None if target is None else rank(logits, target)        # raises for no token
    return Reading([(token, p[token]) for token in best(logits, top)],
                   None if target is None else p[target], place,
                   0 - dot(p, log_p), dot(softmax(final_logits), gaps))


class StateReadings(namedtuple("StateReadings", ("name", "readings"))):
    """A state: its name, and a Reading for each position asked for."""


def lens(run_record, method="own", targets=None, top=1, states=None, positions=None):
    """Read every state of a run -> a list of StateReadings.

    method       "own", "frozen" or "jacobian"
    targets      a token for each position; by default the run's own top guess there
    top          how many guesses
    states       names, by default of all states
    positions    a list, by default of all

    Raises as raw_lens_logits; ValueError for a target that is no token.

    >>> from pyres.model import run, small_model
    >>> r = run(small_model(), [0, 1])
    >>> for name, readings in lens(r, targets=[1, 1]):
    ...     print(name, [(said.guesses[0][0], said.rank) for said in readings])
    embed [(0, 2), (0, 2)]
    L0.attn [(0, 2), (0, 2)]
    L0.mlp [(0, 2), (0, 2)]
    """
    positions = checked_positions(run_record, positions)
    finals = [run_record.logits[t] for t in positions]
    if targets is None:
        targets = [best(row)[0] if is_finite(row) else None for row in finals]
    check_targets(targets, positions, run_record.model.config.d_vocab)
    known = [name for name, _ in run_record.states]
    for name in states or []:
        if name not in known:
            raise ValueError(f"lens: there is no state {name!r}; there are {few(known)}")
    found = []
    for name, rows in streams(run_record, method, positions):
        if states is None or name in states:
            logits = soft_capped(through_the_end(run_record, rows, method, positions),
                                 run_record.model.config.logit_soft_cap)
            found.append(StateReadings(name, [
                reading(row, final, target, top)
                for row, final, target in zip(logits, finals, targets)]))
    return found


def check_targets(targets, positions, d_vocab):
    """Raise ValueError unless there is a token or None for every position."""
    if len(targets) != len(positions):
        raise ValueError(f"lens: there are {len(targets)} targets for {len(positions)} positions")
    for target in targets:
        if target is not None and (type(target) is not int or not 0 <= target < d_vocab):
            raise ValueError(f"lens: the target {target!r} is no token; the vocabulary has "
                             f"{d_vocab}, 0 to {d_vocab - 1}")
