"""Training: AdamW, a schedule, and a run that can stop at any moment and goes on as if it had not.

One step, on a batch of sequences:

    loss, gradients    the mean over all counted targets of the batch, and its derivative
    clip_factor        min(1, limit / the gradients' length), which they are multiplied by
    rate               warm-up, then half a cosine down to 0
    AdamW              each weight by its own moments; matrices decay, gains and biases do not

    Settings, settings                what a run is told
    Moments, no_moments, adamw        the optimiser (Loshchilov and Hutter, "Decoupled weight decay
                                      regularization", 2019)
    gradient_length, clip_factor      by the length of all gradients together
    rate_at                           the schedule
    batch_loss_and_gradients          the same bits with and without an executor
    Training, start, step             all that a run knows, and one step of it

Wherever `rule` stands, it is a Settings.

step returns a new Training: weights, moments, steps done, the state of the random numbers.
Written to a file and read again, it goes on to the same bits.

Three steps of AdamW on one weight in exact numbers, with gradients 5, 1 and 3.  The corrected
second moments are 25, 9 and 9, so every root is rational:

>>> from fractions import Fraction
>>> half = Fraction(1, 2)
>>> rule = settings(rate=Fraction(1), beta1=half, beta2=half, eps=0, decay=0)
>>> w, moments = [Fraction(0)], Moments(0, [Fraction(0)], [Fraction(0)])
>>> for gradient in (5, 1, 3):
...     w, moments = adamw(w, [Fraction(gradient)], moments, rule, rule.rate)
...     print(*w, *moments.first, *moments.second)
-1 5/2 25/2
-16/9 7/4 27/4
-169/63 19/8 63/8
"""
import math
from collections import namedtuple
from itertools import chain

from .config import check_number
from .linalg import add, dot, is_nested, zeros_like
from .loss import cross_entropy, cross_entropy_backward
from .model import Model, run, run_backward
from .rng import Generator
from .scalar import for_row, sqrt
from .weights import leaves, map_leaves

__all__ = ["Settings", "settings", "Moments", "no_moments", "adamw", "gradient_length",
           "clip_factor", "rate_at", "batch_loss_and_gradients", "Training", "start", "step"]


SETTINGS_FIELDS = ("n_steps", "batch", "rate", "warm_up", "beta1", "beta2", "eps", "decay",
                   "clip", "seed")


class Settings(namedtuple("Settings", SETTINGS_FIELDS)):
    """What a run is told.

    n_steps, batch         steps, and sequences a step
    rate, warm_up          the highest learning rate, and the steps it takes to get there
    beta1, beta2, eps      AdamW's
    decay                  what share of rate * weight every step takes off a matrix
    clip                   the longest that all gradients together may be; None for any
    seed                   of the batches
    """


def settings(n_steps=1000, batch=16, rate=3e-3, warm_up=50, beta1=0.9, beta2=0.98, eps=1e-8,
             decay=0.01, clip=1.0, seed=0):
    """Settings; raises ValueError for what cannot be.

    >>> settings(n_steps=0)
    Traceback (most recent call last):
    ValueError: settings: n_steps is 0, expected a whole number of at least 1
    """
    for name, value in (("rate", rate), ("warm_up", warm_up), ("beta1", beta1), ("beta2", beta2),
                        ("eps", eps), ("decay", decay), ("clip", clip)):
        check_number("settings", name, value)
    for name, value in (("n_steps", n_steps), ("batch", batch)):
        if type(value) is not int or value < 1:
            raise ValueError(f"settings: {name} is {value!r}, "
                             "expected a whole number of at least 1")
    for name, value in (("rate", rate), ("warm_up", warm_up), ("eps", eps), ("decay", decay)):
        if not 0 <= value < math.inf:
            raise ValueError(f"settings: {name} is {value!r}, expected a number of at least 0")
    if clip is not None and not clip > 0:
        raise ValueError(f"settings: clip is {clip!r}, expected a number above 0, or None")
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise ValueError(f"settings: {name} is {value!r}, "
                             "expected a number from 0 up to, not including, 1")
    return Settings(n_steps, batch, rate, warm_up, beta1, beta2, eps, decay, clip, seed)


# ---- AdamW ----

class Moments(namedtuple("Moments", ("step", "first", "second"))):
    """step, how many there were; first and second, moving means of every gradient and of its
    square, in the structure of the weights, but each tensor as one row (see flat).
    """


def no_moments(weights):
    """The Moments before the first step.

    >>> no_moments([[1.0], [2.0]])
    Moments(step=0, first=[0.0, 0.0], second=[0.0, 0.0])
    """
    first, second = [map_leaves(lambda w: zeros_like(flat(w)), weights) for _ in range(2)]
    return Moments(0, first, second)


def adamw(weights, gradients, moments, rule, rate, factor=1):
    """Return (weights, moments) after one step.

    weights and gradients are records of one structure, or one tensor each.  With g a gradient
    times the factor, m and v the moving means of g and of g², and t the number of this step:

        m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g²
        w = w - rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay * w)

    The decay is of the weight as it was, apart from the gradient.  It is left out for vectors and
    numbers: gains, biases, multipliers.

    >>> w, _ = adamw([[1.0]], [[0.5]], no_moments([[1.0]]), settings(decay=0.1), rate=0.1)
    >>> ["%.9f" % row[0] for row in w]                    # 1 - 0.1 * (1 + 0.1 * 1)
    ['0.890000002']
    """
    t = moments.step + 1
    rest = 1 - rule.beta1 ** t, 1 - rule.beta2 ** t
    firsts, seconds = [], []

    def moved(w, g, m, v):
        row, m, v = adamw_row(flat(w), flat(g), m, v, rule, rate, rest, factor, is_matrix(w))
        firsts.append(m)
        seconds.append(v)
        return shaped_like(w, row)

    weights = map_leaves(moved, weights, gradients, moments.first, moments.second)
    first, second = [in_place_of(weights, rows) for rows in (firsts, seconds)]
    return weights, Moments(t, first, second)


def in_place_of(weights, rows):
    """The structure of the weights, with the rows in the tensors' places."""
    following = iter(rows)
    return map_leaves(lambda _: next(following), weights)


def is_matrix(tensor):
    """Whether a tensor has two axes or more."""
    return isinstance(tensor, (list, tuple)) and is_nested(tensor)


def flat(tensor):
    """A number, a vector or a matrix as one row: rows are short, and calls for each of them would
    cost as much as what they do.

    >>> flat(5), flat([5, 6]), flat([[1, 2], [3, 4]])
    ([5], [5, 6], [1, 2, 3, 4])
    """
    if not isinstance(tensor, (list, tuple)):
        return [tensor]
    return list(chain.from_iterable(tensor)) if is_nested(tensor) else tensor


def shaped_like(tensor, row):
    """A row as flat makes it, in the shape of a tensor.

    >>> shaped_like(0, [5]), shaped_like([[0, 0], [0, 0]], [1, 2, 3, 4])
    (5, [[1, 2], [3, 4]])
    """
    if not isinstance(tensor, (list, tuple)):
        return row[0]
    if not is_nested(tensor):
        return row
    width = len(tensor[0])
    return [row[k:k + width] for k in range(0, len(row), width)]


def adamw_row(w, g, m, v, rule, rate, rest, factor, decays):
    """Return (w, m, v) after the step: rows of weights, of gradients, and of the moving means of
    these and of their squares.  rest is what the means are divided by, 1 - beta1^t and
    1 - beta2^t.

    >>> rule = settings(beta1=0.5, beta2=0.75, eps=0.0, decay=0.5)
    >>> adamw_row([1.0], [1.0], [0.0], [1.0], rule, rate=0.5, rest=(0.5, 0.25), factor=1,
    ...           decays=True)                    # 1 - 0.5 * (0.5 / 0.5 / sqrt(1 / 0.25) + 0.5)
    ([0.5], [0.5], [1.0])
    """
    # everything that is the same for all entries is worked out before the loops
    beta1, beta2 = rule.beta1, rule.beta2
    new1, new2 = (1 - beta1) * factor, (1 - beta2) * factor * factor
    pace, rest2, eps = rate / rest[0], rest[1], rule.eps
    keep = 1 - rate * rule.decay if decays else 1
    m = [beta1 * a + new1 * d for a, d in zip(m, g)]
    v = [beta2 * a + new2 * d * d for a, d in zip(v, g)]
    root = for_row(sqrt, v[:1], "adamw")            # beta2 has made all of them of one type
    return [keep * a - pace * b / (root(c / rest2) + eps) for a, b, c in zip(w, m, v)], m, v


# ---- clipping and the schedule ----

def gradient_length(gradients):
    """The root of the sum of squares over every entry of every tensor.

    >>> gradient_length([[3.0], [4.0]])
    5.0
    """
    rows = [flat(tensor) for _, tensor in leaves(gradients, "all")]
    return sqrt(sum([dot(row, row) for row in rows]))


def clip_factor(gradients, limit):
    """Return (factor, length): how long the gradients are, and what makes them no longer than the
    limit with their direction kept.  Raises ValueError where the length is not finite.

    >>> clip_factor([[3.0], [4.0]], 2.5), clip_factor([[3.0], [4.0]], None)
    ((0.5, 5.0), (1, 5.0))
    """
    length = gradient_length(gradients)
    if not length < math.inf:
        raise ValueError(f"clip: the gradients' length is {length}; "
                         "a smaller learning rate may help")
    return (1 if limit is None or length <= limit else limit / length), length


def rate_at(t, rule):
    """The learning rate of step t, counted from 0: up in a line, then down along half a cosine.

    >>> rule = settings(n_steps=110, warm_up=10, rate=1.0)
    >>> [round(rate_at(t, rule), 3) for t in (0, 4, 9, 10, 60, 109)]
    [0.1, 0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if t < rule.warm_up:
        return rule.rate * (t + 1) / rule.warm_up
    done = (t - rule.warm_up) / max(1, rule.n_steps - rule.warm_up)
    return rule.rate * 0.5 * (1 + math.cos(math.pi * min(1, done)))


# ---- one batch ----

GROUP = 2               # sequences a task; fixed, so that sums are formed in one order


def batch_loss_and_gradients(model, batch, executor=None):
    """Return (loss, gradients) of a batch: a mean of all its counted targets, not of means.

    batch is a list of pairs (tokens, targets) of sequences, which may differ in length; a target
    of None does not count.  executor is any concurrent.futures.Executor.  The batch is cut into
    groups of fixed size, whose shares are added in their order, so the result has the same bits
    with any number of workers, or none.

    Raises ValueError where no target counts.

    >>> from pyres.config import model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(d_model=2, d_vocab=2, n_ctx=4, n_layers=0, block=None,
    ...                       final_norm=None)
    >>> w = ModelWeights([[1.0, 0.0], [0.0, 0.0]], None, [], None, None, None)
    >>> model = make_model(config, w)
    >>> loss, gradients = batch_loss_and_gradients(model, [([1, 1], [0, 1]), ([1], [0])])
    >>> from pyres.show import rounded
    >>> rounded(loss), rounded(gradients.w_embed[1])      # log 2; two of three targets were 0
    (0.693, [-0.167, 0.0])
    """
    n_counted = sum([target is not None for _, targets in batch for target in targets])
    if not n_counted:
        raise ValueError("batch_loss_and_gradients: "
                         f"none of the targets of {len(batch)} sequences counts")
    bare = Model(model.name, model.config, model.weights, None)
    tasks = [(bare, batch[i:i + GROUP], n_counted) for i in range(0, len(batch), GROUP)]
    return total(list((executor.map if executor else map)(group_share, tasks)))


def group_share(task):
    """What a group of sequences adds to the batch's loss and gradients."""
    model, sequences, n_counted = task
    shares = [sequence_share(model, tokens, targets, n_counted) for tokens, targets in sequences
              if any([target is not None for target in targets])]
    return total(shares or [(0.0, None)])


def sequence_share(model, tokens, targets, n_counted):
    """What one sequence adds: its part of the mean, and the gradients of that part."""
    r = run(model, tokens)
    share = sum([target is not None for target in targets]) / n_counted
    gradients, _ = run_backward(cross_entropy_backward(share, r.logits, targets), r)
    return share * cross_entropy(r.logits, targets), gradients


def total(shares):
    """The sum of pairs (loss, gradients); gradients of None are nothing."""
    loss, gradients = shares[0]
    for more_loss, more in shares[1:]:
        loss = loss + more_loss
        if more is not None:
            gradients = more if gradients is None else map_leaves(
                lambda a, b: shaped_like(a, add(flat(a), flat(b))), gradients, more)
    return loss, gradients


# ---- a run ----

class Training(namedtuple("Training", ("model", "moments", "settings", "random_state"))):
    """All that a run knows: the Model, the optimiser's Moments (whose step counts the steps done),
    the Settings, and the state of the generator that the batches are drawn with.
    """


def start(model, rule):
    """A Training before its first step.

    >>> from pyres.model import small_model
    >>> training = start(small_model(), settings(seed=7))
    >>> training.moments.step, training.random_state
    (0, 7)
    """
    return Training(model, no_moments(model.weights), rule, Generator(rule.seed).state)


class Report(namedtuple("Report", ("loss", "gradient_length", "rate", "n_targets"))):
    """What a step saw.

    loss               of its batch, in nats
    gradient_length    before clipping
    rate               the learning rate it took
    n_targets          how many targets counted
    """


def step(training, draw, executor=None):
    """Return (training, report) after one step: a new Training, and a Report.

    draw(generator, n) gives a batch of n pairs (tokens, targets), and takes every random number it
    needs from the generator.  Raises ValueError where no target counts, or the gradients are not
    finite.

    Token 1's embedding has no say yet, so the loss is log 2.  Token 0 comes next, and the step is
    towards token 0's embedding; the first step of Adam is as long as the rate:

    >>> from pyres.config import model_config
    >>> from pyres.model import make_model
    >>> from pyres.show import rounded
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(d_model=2, d_vocab=2, n_ctx=4, n_layers=0, block=None,
    ...                       final_norm=None)
    >>> w = ModelWeights([[1.0, 0.0], [0.0, 0.0]], None, [], None, None, None)
    >>> rule = settings(batch=2, rate=0.25, warm_up=0, decay=0)
    >>> training, report = step(start(make_model(config, w), rule),
    ...                         lambda generator, n: [([1], [0])] * n)
    >>> rounded(report)
    [0.693, 0.5, 0.25, 2]
    >>> rounded(training.model.weights.w_embed), training.moments.step
    ([[1.0, 0.0], [0.25, 0.0]], 1)
    """
    rule, moments = training.settings, training.moments
    generator = Generator(training.random_state)
    batch = draw(generator, rule.batch)
    loss, gradients = batch_loss_and_gradients(training.model, batch, executor)
    factor, length = clip_factor(gradients, rule.clip)
    rate = rate_at(moments.step, rule)
    weights, moments = adamw(training.model.weights, gradients, moments, rule, rate, factor)
    model = Model(training.model.name, training.model.config, weights, training.model.tokenizer)
    n_counted = sum([target is not None for _, targets in batch for target in targets])
    return Training(model, moments, rule, generator.state), Report(loss, length, rate, n_counted)
