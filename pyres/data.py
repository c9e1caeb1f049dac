"""What a model is trained on: pairs (tokens, targets), drawn with a generator or cut from a text.

    echo_sequence, echo_batch    a random string again and again: what comes next was said before
    ECHO_TOKENS                  echo's vocabulary
    text_batch                   windows from random places of a text
    scoring_windows, text_loss   a text's loss, every token scored exactly once
    unigram_loss                 what counting tokens alone would reach

A target of None does not count.

>>> from pyres.rng import Generator
>>> tokens, targets = echo_sequence(Generator(2), 12)
>>> "".join(ECHO_TOKENS[token] for token in tokens[1:])
'dlegytudleg'
>>> [t is not None for t in targets].index(True)    # the first token of the second pass
8
"""
from .loss import cross_entropy
from .model import run
from .scalar import log

__all__ = ["ECHO_TOKENS", "echo_sequence", "echo_batch", "text_batch", "scoring_windows",
           "text_loss", "unigram_loss"]


# ---- echo ----

ECHO_TOKENS = ["<bos>"] + list("abcdefghijklmnopqrstuvwxyz")
SHORTEST, LONGEST = 3, 11


def echo_sequence(generator, n_ctx):
    """Return (tokens, targets), [n_ctx] each: BOS, then a string of 3 to 11 distinct letters
    repeated until the context is full.

    A target counts when the token it is predicted from lies in the second or a later pass: only
    then has what comes next been seen.

    >>> from pyres.rng import Generator
    >>> tokens, targets = echo_sequence(Generator(3), 9)
    >>> tokens                                              # three letters, again and again
    [0, 13, 26, 9, 13, 26, 9, 13, 26]
    >>> targets
    [None, None, None, None, 26, 9, 13, 26, None]
    """
    length = SHORTEST + generator.below(LONGEST - SHORTEST + 1)
    letters = generator.shuffled(range(1, len(ECHO_TOKENS)))[:length]
    tokens = [0] + [letters[i % length] for i in range(n_ctx - 1)]
    targets = [tokens[t + 1] if t > length and t + 1 < n_ctx else None for t in range(n_ctx)]
    return tokens, targets


def echo_batch(n_ctx):
    """A function (generator, n) -> n pairs (tokens, targets) of echo_sequence.

    >>> from pyres.rng import Generator
    >>> batch = echo_batch(9)(Generator(0), 2)
    >>> [len(tokens) for tokens, targets in batch]
    [9, 9]
    """
    return lambda generator, n: [echo_sequence(generator, n_ctx) for _ in range(n)]


# ---- text ----

def text_batch(tokens, n_ctx):
    """A function (generator, n) -> n windows of n_ctx tokens from random places, each with the
    tokens that follow as targets.  Raises ValueError where the text is too short for one.

    >>> from pyres.rng import Generator
    >>> text_batch([0, 1, 2, 3, 4], 3)(Generator(0), 2)
    [([1, 2, 3], [2, 3, 4]), ([0, 1, 2], [1, 2, 3])]
    """
    n_places = len(tokens) - n_ctx
    if n_places < 1:
        raise ValueError(f"text_batch: the text has {len(tokens)} tokens, a context of {n_ctx} "
                         f"needs at least {n_ctx + 1}; a shorter context or a longer text helps")

    def draw(generator, n):
        begins = [generator.below(n_places) for _ in range(n)]
        return [(tokens[b:b + n_ctx], tokens[b + 1:b + n_ctx + 1]) for b in begins]

    return draw


def scoring_windows(n_tokens, window, stride):
    """Windows over a text that score every token but the first exactly once: triples (begin, end,
    first scored), in token positions.  After the first, a window scores its last `stride` tokens
    only, and the others are context.  Raises ValueError unless 1 <= stride < window: a window
    has nothing to predict its first token from.

    >>> scoring_windows(20, window=10, stride=5)
    [(0, 10, 1), (5, 15, 10), (10, 20, 15)]
    """
    if not 1 <= stride < window:
        raise ValueError(f"scoring_windows: the stride is {stride}, expected 1 to {window - 1}, "
                         f"less than the window's {window}")
    windows, scored = [], 1
    while scored < n_tokens:
        end = min(n_tokens, window if not windows else scored + stride)
        windows.append((max(0, end - window), end, scored))
        scored = end
    return windows


def text_loss(model, tokens, stride=None):
    """Return (loss, n_scored): the mean loss in nats over every token of a text but the first,
    each scored once, from as much context as its window holds.  The stride is half the context
    unless given.  Raises ValueError for a text of fewer than two tokens.

    This model's logits are 70 for token 0 and 0 for token 1, as long as it reads token 0 alone.
    So the one token 1 costs 70 nats, and every other nearly nothing:

    >>> from pyres.model import small_model
    >>> from pyres.show import rounded
    >>> rounded(text_loss(small_model(), [0, 0, 1, 0, 0]))
    [17.5, 4]
    """
    n_ctx = model.config.n_ctx
    if len(tokens) < 2:
        raise ValueError(f"text_loss: the text has {len(tokens)} tokens; "
                         "at least 2 are needed to predict one")
    total = 0.0
    for begin, end, first in scoring_windows(len(tokens), n_ctx, stride or max(1, n_ctx // 2)):
        targets = [token if t >= first else None
                   for t, token in zip(range(begin + 1, end), tokens[begin + 1:end])] + [None]
        total += cross_entropy(run(model, tokens[begin:end]).logits, targets) * (end - first)
    return total / (len(tokens) - 1), len(tokens) - 1


def unigram_loss(train, held_out, d_vocab):
    """The loss in nats, on held-out tokens, of a model that knows only how often each token
    occurs in the training tokens (each counted once more, so that none is impossible).

    >>> from pyres.show import rounded
    >>> rounded(unigram_loss([0, 0, 1], [0, 1], 2))             # 3/5 and 2/5
    0.714
    """
    counts = [1] * d_vocab
    for token in train:
        counts[token] += 1
    n = len(train) + d_vocab
    return -sum([log(counts[token] / n) for token in held_out]) / len(held_out)
