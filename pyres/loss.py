"""Cross entropy: how surprised the model is by the tokens that did follow.

    loss = mean over counted positions t of -log_softmax(logits[t])[targets[t]]

The mean is over the counted targets, whatever their number: an average of averages is another
thing.  A target of None does not count.

    next_token_targets                   position t predicts token t + 1; the last predicts nothing
    cross_entropy, cross_entropy_backward

>>> from pyres.show import rounded
>>> rounded(cross_entropy([[0.0, 0.0], [0.0, 0.0]], [None, 1]))          # log 2
0.693
"""
from .linalg import check_length, zeros_like
from .nonlinear import log_softmax, softmax

__all__ = ["next_token_targets", "cross_entropy", "cross_entropy_backward"]


def next_token_targets(tokens):
    """The targets of a sequence: the logits at t predict token t + 1, once.

    >>> next_token_targets([3, 1, 4])
    [1, 4, None]
    """
    return list(tokens[1:]) + [None]


def counted(name, logits, targets):
    """The positions whose target counts; raises where there is none, or one is no token id."""
    check_length(name, "the list of targets", targets, len(logits))
    for t, target in enumerate(targets):
        if target is None:
            continue
        if type(target) is not int:
            raise TypeError(f"{name}: the target at {t} is {target!r}; "
                            "a target is a token id or None")
        if not 0 <= target < len(logits[t]):
            raise ValueError(f"{name}: the target at {t} is {target}, "
                             f"the logits have {len(logits[t])} entries")
    positions = [t for t, target in enumerate(targets) if target is not None]
    if not positions:
        raise ValueError(f"{name}: none of the {len(targets)} targets counts, "
                         "so there is nothing to average")
    return positions


def cross_entropy(logits, targets):
    """The mean of -log_softmax(logits[t])[targets[t]], in nats, over the targets that count.

    logits [n_tokens][d_vocab], targets [n_tokens] of ids or None -> a number.  Raises ValueError
    where no target counts or one is out of range.

    >>> cross_entropy([[0.0, 0.0]], [None])
    Traceback (most recent call last):
    ValueError: cross_entropy: none of the 1 targets counts, so there is nothing to average
    """
    positions = counted("cross_entropy", logits, targets)
    return sum([-log_softmax(logits[t])[targets[t]] for t in positions]) / len(positions)


def cross_entropy_backward(d_loss, logits, targets):
    """The gradient at the logits, given d_loss, the gradient at the loss: 1 for the loss itself.

    logits [n_tokens][d_vocab] -> [n_tokens][d_vocab], raises as cross_entropy.  At each counted
    position it is what the model expected less what came, and 0 at the others:

        p = softmax(logits[t])
        d_logits[t][v] = d_loss / n_counted * (p[v] - (1 if v == targets[t] else 0))

    >>> cross_entropy_backward(1, [[0.0, 0.0], [0.0, 0.0]], [None, 1])
    [[0.0, 0.0], [0.5, -0.5]]
    """
    positions = counted("cross_entropy_backward", logits, targets)
    d_logits = zeros_like(logits)
    for t in positions:
        p = softmax(logits[t])
        p[targets[t]] -= 1
        d_logits[t] = [a * d_loss / len(positions) for a in p]
    return d_logits
