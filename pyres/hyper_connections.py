"""Hyper-connections: several streams for each token, and sublayers that read and write them all.

    read       = sum over j of h_pre[j] * X[j]
    update     = f(read)
    mixed[i]   = sum over j of h_res[i][j] * X[j]
    X'[i]      = mixed[i] + h_post[i] * update

X [n_streams][n_tokens][d_model] is n_streams streams of one shape, and each may be what a stream
may be in `stream`: a vector, a sequence, a batch.  f is any sublayer.  It reads one stream and
writes one update, however many streams there are.

This is the one placement in which a stream is changed by more than an update: h_res mixes the
streams, and mix_streams is where it does.  The sum rule says what is left of the plain one.  Where
the columns of h_res sum to 1, mixing moves numbers from stream to stream and keeps their sum:

    sum of X'  = sum of X + sum(h_post) * update

Where they do not, each write still reaches the end with one coefficient, see write_coefficients.
With one stream and h_res, h_pre, h_post all 1, X' is X + f(X).

    HyperWeights, plain_hyper_weights       h_res, h_pre, h_post; those that training begins from
    expand_streams, combine_streams         from one stream to several, and back to one
    mix_streams                             h_res X
    HyperSteps, hyper_sublayer_steps        one sublayer
    run_hyper_sublayers                     several; the backward gives every state's gradient
    write_coefficients                      what each write comes to at the end
    sinkhorn                                an h_res whose columns sum to 1, and nearly its rows

All but the last two have their backward beneath them.  The weights are given, and the same for
every token; the papers also compute them from the streams, token by token, which is not attempted
here.  Zhu et al., "Hyper-Connections", 2024, write A_r for h_res transposed, A_m for h_pre and B
for h_post.  Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025, have the names used
here and make h_res doubly stochastic: no entry is negative, and every row and column sums to 1.

>>> w = HyperWeights(h_res=[[0, 1], [1, 0]], h_pre=[1, 1], h_post=[1, 2])   # the streams swap
>>> steps = hyper_sublayer_steps([[1, 2], [30, 40]], lambda x: [100 * a for a in x], w)
>>> steps.read, steps.mixed, steps.out
([31, 42], [[30, 40], [1, 2]], [[3130, 4240], [6201, 8402]])
"""
from collections import namedtuple

from .linalg import (add, check_length, check_like, check_numbers, checked_copy, copied, dot,
                     is_nested, matvec, scale, transpose)
from .stream import add_residual

__all__ = ["HyperWeights", "plain_hyper_weights", "expand_streams", "expand_streams_backward",
           "combine_streams", "combine_streams_backward", "mix_streams", "mix_streams_backward",
           "HyperSteps", "hyper_sublayer_steps", "hyper_sublayer_backward",
           "run_hyper_sublayers", "run_hyper_sublayers_backward", "write_coefficients",
           "sinkhorn"]


# ---- weights ----

HYPER_FIELDS = ("h_res", "h_pre", "h_post")


class HyperWeights(namedtuple("HyperWeights", HYPER_FIELDS)):
    """How one sublayer is connected.

    h_res     [n_streams][n_streams], rows are outputs: h_res[i][j] is how much of stream j goes on
              in stream i
    h_pre     [n_streams], how much of each stream is read
    h_post    [n_streams], how much of the update each stream gets
    """

    FIELDS = HYPER_FIELDS


def plain_hyper_weights(n_streams, k=0):
    """The HyperWeights of the plain rule, where training begins (Zhu et al., 2024): sublayer k
    reads stream k mod n_streams alone, nothing is mixed, and every stream gets the whole update.

    Streams that begin alike then stay alike, and each is the stream of a model that has only one.

    >>> plain_hyper_weights(2, k=3)
    HyperWeights(h_res=[[1, 0], [0, 1]], h_pre=[0, 1], h_post=[1, 1])
    >>> plain_hyper_weights(1)
    HyperWeights(h_res=[[1]], h_pre=[1], h_post=[1])
    """
    check_count("plain_hyper_weights", n_streams)
    identity = [[int(i == j) for j in range(n_streams)] for i in range(n_streams)]
    return HyperWeights(identity, list(identity[k % n_streams]), [1] * n_streams)


def check_count(name, n_streams):
    """Raise ValueError unless there is a stream."""
    if n_streams < 1:
        raise ValueError(f"{name}: n_streams is {n_streams}, and must be 1 or more")


# ---- from one stream to several, and back ----

def expand_streams(x, n_streams):
    """n_streams copies of x, an embedding of any depth.

    >>> expand_streams([[1, 2]], 3)
    [[[1, 2]], [[1, 2]], [[1, 2]]]
    """
    check_count("expand_streams", n_streams)
    return [checked_copy("expand_streams", x) for _ in range(n_streams)]


def expand_streams_backward(d_streams, x, n_streams):
    """Return d_x, given the gradient at every copy: x was read n_streams times, and they add.

    >>> expand_streams_backward([[1, 2], [30, 40]], [5, 6], 2)
    [31, 42]
    """
    check_like("expand_streams_backward", "d_streams", d_streams, [x] * n_streams)
    return combine_streams(d_streams)


def combine_streams(streams, h=None):
    """One stream from several, sum over j of h[j] * streams[j]; None adds them as they are.

    With h_pre it is what a sublayer reads.  A model is read out from the plain sum (Zhu et al.,
    2024).  Raises ValueError where the streams differ in shape, or h and they in number.

    >>> combine_streams([[1, 2], [3, 4]]), combine_streams([[1, 2], [3, 4]], [10, 100])
    ([4, 6], [310, 420])
    >>> combine_streams([[1, 2], [3, 4]], [1])
    Traceback (most recent call last):
    ValueError: combine_streams: h has length 1, expected 2
    """
    check_streams("combine_streams", streams)
    if h is None:
        h = [1] * len(streams)
    check_weights_of_streams("combine_streams", "h", h, len(streams))
    parts = [scale(factor, stream) for factor, stream in zip(h, streams)]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return total


def check_streams(name, streams):
    """Raise ValueError unless there is a stream, and all are of one shape.

    >>> check_streams("mix_streams", [[1, 2], [3, 4, 5]])
    Traceback (most recent call last):
    ValueError: mix_streams: stream 1 has shape (3,), expected (2,)
    """
    if not is_nested(streams):
        raise ValueError(f"{name}: expected a list of streams, at least one")
    for i, stream in enumerate(streams):
        check_like(name, f"stream {i}", stream, streams[0])


def check_weights_of_streams(name, what, h, n_streams):
    """Raise unless h holds one number for each stream."""
    check_length(name, what, h, n_streams)
    check_numbers(f"{name}: {what}", h)


def combine_streams_backward(d_out, streams, h=None):
    """Return (d_streams, d_h), given d_out, the gradient at combine_streams' output:

        d_streams[j] = h[j] * d_out
        d_h[j]       = sum over all entries of d_out * streams[j]

    >>> combine_streams_backward([1, 1], [[1, 2], [3, 4]], [10, 100])
    ([[10, 10], [100, 100]], [3, 7])
    """
    check_streams("combine_streams_backward", streams)
    check_like("combine_streams_backward", "d_out", d_out, streams[0])
    if h is None:
        return [copied(d_out) for _ in streams], None
    check_weights_of_streams("combine_streams_backward", "h", h, len(streams))
    return [scale(factor, d_out) for factor in h], [inner(d_out, stream) for stream in streams]


def inner(x, y):
    """The inner product of all entries of two tensors of one shape.

    >>> inner([[1, 2], [3]], [[10, 20], [30]])
    140
    """
    return sum([inner(a, b) for a, b in zip(x, y)]) if is_nested(x) else dot(x, y)


# ---- mixing ----

def mix_streams(streams, h_res):
    """h_res X: stream i of what comes out is sum over j of h_res[i][j] * streams[j].

    A permutation moves streams, the identity leaves them.  Raises ValueError unless h_res is
    [n_streams][n_streams].

    >>> mix_streams([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    [[3, 4], [1, 2]]
    >>> mix_streams([[1, 2], [3, 4]], [[0.5, 0.5], [0.5, 0.5]])
    [[2.0, 3.0], [2.0, 3.0]]
    """
    check_mixing("mix_streams", streams, h_res)
    return [combine_streams(streams, row) for row in h_res]


def check_mixing(name, streams, h_res):
    """Raise ValueError unless h_res is square, with a row for each stream."""
    check_streams(name, streams)
    check_length(name, "h_res", h_res, len(streams))
    for i, row in enumerate(h_res):
        check_weights_of_streams(name, f"row {i} of h_res", row, len(streams))


def mix_streams_backward(d_out, streams, h_res):
    """Return (d_streams, d_h_res), given d_out, the gradient at every mixed stream.  The way back
    is mixing again, with h_res transposed:

        d_streams[j] = sum over i of h_res[i][j] * d_out[i]
        d_h_res[i][j] = sum over all entries of d_out[i] * streams[j]

    >>> mix_streams_backward([[1, 1], [2, 0]], [[1, 2], [3, 4]], [[0, 1], [10, 0]])
    ([[20, 0], [1, 1]], [[3, 7], [2, 6]])
    """
    check_mixing("mix_streams_backward", streams, h_res)
    check_like("mix_streams_backward", "d_out", d_out, streams)
    d_h_res = [[inner(d, stream) for stream in streams] for d in d_out]
    return mix_streams(d_out, transpose(h_res)), d_h_res


# ---- one sublayer ----

class HyperSteps(namedtuple("HyperSteps", ("streams", "read", "update", "mixed", "out"))):
    """What one sublayer did among several streams.

    streams    X [n_streams][n_tokens][d_model], the state before
    read       [n_tokens][d_model], what the sublayer was given
    update     [n_tokens][d_model], what it gave; stream i gets h_post[i] times it
    mixed      [n_streams][n_tokens][d_model], h_res X
    out        [n_streams][n_tokens][d_model], the state after
    """


def hyper_sublayer_steps(streams, fn, w):
    """The steps of one sublayer: streams X [n_streams][n_tokens][d_model], fn from a stream to an
    update, w HyperWeights -> HyperSteps.  fn is called once, with a copy that is its own.

    Raises ValueError where a shape does not fit.

    >>> w = HyperWeights(h_res=[[1, 0], [0, 1]], h_pre=[1, 0], h_post=[1, 10])
    >>> steps = hyper_sublayer_steps([[1, 2], [3, 4]], lambda x: [a + 1 for a in x], w)
    >>> steps.read, steps.update, steps.out
    ([1, 2], [2, 3], [[3, 5], [23, 34]])
    >>> hyper_sublayer_steps([[1, 2], [3, 4]], lambda x: [1], w)
    Traceback (most recent call last):
    ValueError: add_residual: the update has shape (1,), the stream (2,); a sublayer must project \
back to d_model
    """
    streams = checked_copy("hyper_sublayer_steps", streams)
    check_weights_of_streams("hyper_sublayer_steps", "h_post", w.h_post, len(streams))
    read = combine_streams(streams, w.h_pre)
    update = checked_copy("hyper_sublayer_steps", fn(copied(read)))
    mixed = mix_streams(streams, w.h_res)
    out = [add_residual(stream, scale(factor, update))
           for factor, stream in zip(w.h_post, mixed)]
    return HyperSteps(streams, read, update, mixed, out)


def hyper_sublayer_backward(d_out, steps, fn_backward, w):
    """Return (d_streams, d_w), given d_out [n_streams][n_tokens][d_model], the gradient at the
    state after.  d_w is HyperWeights.

    fn_backward(d_update, read) is the gradient that the sublayer sends back from its update to
    what it read, as in stream.run_sublayers_backward.  A state has two readers again, the mixing
    and the sublayer, and their gradients add.

    >>> w = HyperWeights(h_res=[[1, 0], [0, 1]], h_pre=[1, 0], h_post=[1, 10])
    >>> twice = lambda x: [2 * a for a in x]
    >>> steps = hyper_sublayer_steps([[1, 2], [3, 4]], twice, w)
    >>> d_streams, d_w = hyper_sublayer_backward(
    ...     [[1, 0], [1, 0]], steps, lambda d_update, read: twice(d_update), w)
    >>> d_streams                                       # d_update is [1 + 10, 0]
    [[23, 0], [1, 0]]
    >>> d_w
    HyperWeights(h_res=[[1, 3], [1, 3]], h_pre=[22, 66], h_post=[2, 2])
    """
    check_like("hyper_sublayer_backward", "d_out", d_out, steps.out)
    # forward: out[i] = mixed[i] + h_post[i] * update
    d_mixed = d_out
    d_update = combine_streams(d_out, w.h_post)
    d_h_post = [inner(d, steps.update) for d in d_out]
    # forward: mixed = mix_streams(streams, h_res)
    d_streams_mixed, d_h_res = mix_streams_backward(d_mixed, steps.streams, w.h_res)
    # forward: update = fn(read)
    d_read = fn_backward(d_update, copied(steps.read))
    check_like("hyper_sublayer_backward", "what fn_backward gave", d_read, steps.read)
    # forward: read = combine_streams(streams, h_pre)
    d_streams_read, d_h_pre = combine_streams_backward(d_read, steps.streams, w.h_pre)
    return add(d_streams_mixed, d_streams_read), HyperWeights(d_h_res, d_h_pre, d_h_post)


# ---- several ----

def run_hyper_sublayers(streams, fns, weights):
    """What each sublayer did, in order: streams X [n_streams][n_tokens][d_model], a sublayer and
    its HyperWeights for each -> a list of HyperSteps.  The last one's `out` is the final state.

    Raises ValueError where there are not as many weights as sublayers.

    >>> double, one = lambda x: x, lambda x: [1 for _ in x]
    >>> swap = HyperWeights(h_res=[[0, 1], [1, 0]], h_pre=[1, 0], h_post=[1, 0])
    >>> [steps.out for steps in run_hyper_sublayers([[3], [5]], [double, one], [swap, swap])]
    [[[8], [3]], [[4], [8]]]
    """
    check_length("run_hyper_sublayers", "the list of weights", weights, len(fns))
    done = []
    for fn, w in zip(fns, weights):
        done.append(hyper_sublayer_steps(streams, fn, w))
        streams = done[-1].out
    return done


def run_hyper_sublayers_backward(d_out, all_steps, fn_backwards, weights):
    """Return (d_states, d_weights), given d_out, the gradient at the final state, and the list of
    HyperSteps.  d_states has the gradient at every state, d_out the last; d_weights is a list of
    HyperWeights.

    >>> half, half_backward = lambda x: [a / 2 for a in x], lambda d, x: [a / 2 for a in d]
    >>> weights = [plain_hyper_weights(1)] * 2
    >>> all_steps = run_hyper_sublayers([[4.0]], [half] * 2, weights)
    >>> d_states, d_weights = run_hyper_sublayers_backward(
    ...     [[1.0]], all_steps, [half_backward] * 2, weights)
    >>> d_states
    [[[2.25]], [[1.5]], [[1.0]]]
    >>> d_weights[1].h_post                             # the second update was (4 + 2) / 2
    [3.0]
    """
    name = "run_hyper_sublayers_backward"
    check_length(name, "the list of backwards", fn_backwards, len(all_steps))
    check_length(name, "the list of weights", weights, len(all_steps))
    d_states, d_weights = [checked_copy(name, d_out)], []
    for steps, fn_backward, w in reversed(list(zip(all_steps, fn_backwards, weights))):
        d_streams, d_w = hyper_sublayer_backward(d_states[0], steps, fn_backward, w)
        d_states, d_weights = [d_streams] + d_states, [d_w] + d_weights
    return d_states, d_weights


# ---- the sum rule ----

def write_coefficients(weights, h_out):
    """What everything that was written comes to when the final state is read out by h_out
    [n_streams], for any HyperWeights: a pair (of_streams [n_streams], of_updates [n_sublayers]).

        combine_streams(final, h_out)  =  sum over j of of_streams[j] * first[j]
                                          + sum over k of of_updates[k] * update[k]

    The read-out runs back through every mixing, row = row h_res, and meets update k as
    row · h_post.  Where all columns of h_res sum to 1 and h_out is 1, row stays 1: every first
    stream counts once and update k sum(h_post) times, which is the sum rule.

    >>> swap = HyperWeights(h_res=[[0, 1], [1, 0]], h_pre=[1, 0], h_post=[3, 4])
    >>> write_coefficients([swap, swap], [1, 1]), write_coefficients([swap, swap], [1, 0])
    (([1, 1], [7, 7]), ([1, 0], [4, 3]))
    """
    row, of_updates = list(h_out), []
    for w in reversed(weights):
        of_updates = [dot(row, w.h_post)] + of_updates
        row = matvec(transpose(w.h_res), row)
    return row, of_updates


# ---- an h_res that keeps the sum ----

def sinkhorn(matrix, n_steps=20):
    """A doubly stochastic matrix, nearly, from a square one of positive numbers: each step divides
    the rows by their sums, then the columns by theirs (Sinkhorn and Knopp, 1967).

    Columns come last: from the first step on they sum to 1, which is all that the sum rule needs.
    The rows come closer to it with every step.  (mHC takes 20 steps, of exp of its numbers, and
    has rows last.)  Raises ValueError for a matrix that is not square, or has an entry that is not
    above 0 and finite.

    >>> sinkhorn([[1, 3], [3, 1]], n_steps=1)
    [[0.25, 0.75], [0.75, 0.25]]
    >>> sinkhorn([[1, 0], [0, 1]])
    Traceback (most recent call last):
    ValueError: sinkhorn: row 0 has the entry 0; all must be above 0 and finite
    """
    for i, row in enumerate(matrix):
        check_weights_of_streams("sinkhorn", f"row {i}", row, len(matrix))
        for a in row:
            if not a > 0 or a - a != 0:             # inf - inf is nan
                raise ValueError(f"sinkhorn: row {i} has the entry {a!r}; "
                                 "all must be above 0 and finite")
    matrix = copied(matrix)
    for _ in range(n_steps):
        matrix = transpose(_rows_over_sums(transpose(_rows_over_sums(matrix))))
    return matrix


def _rows_over_sums(matrix):
    return [[a / sum(row) for a in row] for row in matrix]
