"""Softmax and the activations, each with its derivative beneath it.

All work at any depth: softmax along the last axis, activations entry by entry.  A backward takes
the gradient at the output first, then the forward's arguments, and recomputes the few values it
needs.

    softmax, log_softmax           p[i] = exp(x[i]) / sum exp(x[j]), and its logarithm
    relu                           max(x, 0), derivative 0 at 0
    gelu                           x Φ(x), Φ the normal distribution: the erf form
    gelu_tanh                      the tanh form, which is close to it and not the same
    silu                           x / (1 + exp(-x))
    ACTIVATIONS                    from an activation's name to the pair (forward, backward)

Nothing overflows: softmax takes the maximum away first, silu uses the exponential of a number that
is not positive.  Maximum and relu compare complex numbers by the real part, so that a complex step
passes.

>>> relu([[-1, 2], [3, -4]])
[[0, 2], [3, 0]]
"""
import math

from .linalg import (all_floats, check_length, check_numbers, dot, is_nested, map_vectors,
                     multiply, zeros_like)
from .scalar import erf, exp, for_row, log, real, tanh

__all__ = ["softmax", "softmax_vector", "softmax_backward", "softmax_backward_from", "log_softmax",
           "log_softmax_backward", "relu", "relu_backward", "gelu", "gelu_backward",
           "gelu_tanh", "gelu_tanh_backward", "silu", "silu_backward", "ACTIVATIONS", "activation"]


# ---- softmax ----

def softmax(x):
    """Positive numbers that sum to 1, of x's shape: p[i] = exp(x[i]) / sum over j of exp(x[j]).

    The largest x is subtracted first.  That cancels in the quotient, and no exponential overflows.

    >>> softmax([[0.0, 0.0], [7.0, 7.0]])
    [[0.5, 0.5], [0.5, 0.5]]
    >>> softmax([0.0, 10000.0])
    [0.0, 1.0]
    """
    return map_vectors(softmax_vector, x)


def softmax_vector(x):
    """softmax of one vector of numbers that is not empty.

    >>> softmax_vector([5.0, 5.0])
    [0.5, 0.5]
    """
    power = for_row(exp, x, "softmax")
    top = max(x, key=real) if power is exp else max(x)
    weights = [power(a - top) for a in x]
    total = sum(weights)
    return [w / total for w in weights]


def softmax_backward(d_out, x):
    """The gradient at x, given d_out, the gradient at softmax(x).

    >>> softmax_backward([1.0, 0.0], [0.0, 0.0])
    [0.25, -0.25]
    """
    return softmax_backward_from(d_out, softmax(x))


def softmax_backward_from(d_out, p):
    """The gradient at softmax's input, given the gradient d_out at its output, and that output p.

    Raising x[j] raises p[j] and lowers every p[i] in proportion:

        ∂p[i]/∂x[j] = p[i] * (δ[i][j] - p[j])
        d_x[j]      = p[j] * (d_out[j] - sum over i of d_out[i] * p[i])

    >>> softmax_backward_from([4, 0], [0.25, 0.75])
    [0.75, -0.75]
    """
    check_length("softmax_backward", "d_out", d_out, len(p))
    if is_nested(p):
        return [softmax_backward_from(d, q) for d, q in zip(d_out, p)]
    mean = dot(d_out, p)
    return [q * (d - mean) for d, q in zip(d_out, p)]


def log_softmax(x):
    """The logarithm of softmax, without ever taking the logarithm of 0:

        out[i] = x[i] - top - log(sum over j of exp(x[j] - top))

    >>> log_softmax([0.0, -10000.0])
    [0.0, -10000.0]
    """
    return map_vectors(_log_softmax, x)


def _log_softmax(x):
    power = for_row(exp, x, "log_softmax")
    top = max(x, key=real)
    log_total = log(sum([power(a - top) for a in x]))
    return [a - top - log_total for a in x]


def log_softmax_backward(d_out, x):
    """The gradient at x, given d_out, the gradient at log_softmax(x):

        d_x[j] = d_out[j] - softmax(x)[j] * sum over i of d_out[i]

    >>> log_softmax_backward([1.0, 0.0], [0.0, 0.0])
    [0.5, -0.5]
    """
    check_length("log_softmax_backward", "d_out", d_out, len(x))
    if is_nested(x):
        return [log_softmax_backward(d, part) for d, part in zip(d_out, x)]
    total = sum(d_out)
    return [d - p * total for d, p in zip(d_out, softmax(x))]


# ---- activations ----

def _chain(name, slopes, d_out, x):
    """d_out * slope(x), entry by entry, at any depth: the chain rule of every activation.

    slopes of a vector is the list of its entries' slopes.
    """
    check_length(name, "d_out", d_out, len(x))
    if is_nested(x):
        return [_chain(name, slopes, d, part) for d, part in zip(d_out, x)]
    check_numbers(name, d_out)
    check_numbers(name, x)
    return multiply(d_out, slopes(x))


def relu(x):
    """max(x, 0), entry by entry.

    >>> relu([-1.5, 0.0, 2.5])
    [0.0, 0.0, 2.5]
    """
    return map_vectors(_relu_vector, x)


def _relu_vector(x):
    if all_floats(x):
        return [0.0 if a < 0.0 else a for a in x]       # written so that nan stays nan
    check_numbers("relu", x)
    return [zeros_like(a) if real(a) < 0 else a for a in x]


def relu_backward(d_out, x):
    """d_out where x is positive, 0 elsewhere, at 0 too.

    >>> relu_backward([5, 5, 5], [-1, 0, 2])
    [0, 0, 5]
    """
    check_length("relu_backward", "d_out", d_out, len(x))
    if is_nested(x):
        return [relu_backward(d, part) for d, part in zip(d_out, x)]
    if all_floats(d_out) and all_floats(x):
        return [d if a > 0.0 else 0.0 for d, a in zip(d_out, x)]
    check_numbers("relu_backward", d_out)
    check_numbers("relu_backward", x)
    return [d if real(a) > 0 else zeros_like(d) for d, a in zip(d_out, x)]


ROOT_HALF = math.sqrt(0.5)
DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)           # of the normal distribution


def _below(x):
    """Φ(a), the chance that a normal draw is below a, for every a of a vector."""
    area = for_row(erf, x, "gelu", ROOT_HALF)
    return [0.5 * (1.0 + area(a * ROOT_HALF)) for a in x]


def gelu(x):
    """x Φ(x), the erf form (Hendrycks and Gimpel, 2016).  Checkpoints call it "gelu".

    >>> ["%.9f" % y for y in gelu([1.0, -2.3])]
    ['0.841344746', '-0.024665453']
    """
    return map_vectors(lambda v: multiply(v, _below(v)), x)


def gelu_backward(d_out, x):
    """The gradient at x, given d_out: d_out (Φ(x) + x φ(x)), with φ = Φ', the normal density.

    >>> gelu_backward([2.0], [0.0])
    [1.0]
    """
    return _chain("gelu_backward", _gelu_slopes, d_out, x)


def _gelu_slopes(x):
    return [below + a * DENSITY_AT_0 * exp(-0.5 * a * a) for a, below in zip(x, _below(x))]


RATE = math.sqrt(2 / math.pi)
CUBE = 0.044715 * RATE


def gelu_tanh(x):
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))) / 2: the tanh form.  Checkpoints call it
    "gelu_new" or "gelu_pytorch_tanh".  It differs from gelu by up to 5e-4.

    >>> ["%.9f" % y for y in gelu_tanh([1.0, -2.3])]
    ['0.841191991', '-0.024327030']
    """
    return map_vectors(_gelu_tanh, x)


def _gelu_tanh(x):
    bend = for_row(tanh, x, "gelu_tanh", RATE)
    return [0.5 * a * (1.0 + bend(a * (RATE + CUBE * a * a))) for a in x]


def gelu_tanh_backward(d_out, x):
    """The gradient at x, given d_out.

    With t = tanh(c), c = sqrt(2/pi) (x + 0.044715 x³) and t' = (1 - t²) c':

        d_x = d_out * ((1 + t) / 2 + x/2 * (1 - t²) * sqrt(2/pi) (1 + 3 * 0.044715 x²))

    >>> gelu_tanh_backward([2.0], [0.0])
    [1.0]
    """
    return _chain("gelu_tanh_backward", _gelu_tanh_slopes, d_out, x)


def _gelu_tanh_slopes(x):
    bend = for_row(tanh, x, "gelu_tanh", RATE)
    return [0.5 * (1.0 + t + a * (1.0 - t * t) * (RATE + 3.0 * CUBE * a * a))
            for a in x for t in [bend(a * (RATE + CUBE * a * a))]]


def _sigmoids(x):
    """1 / (1 + exp(-a)) for every a of a vector, by exponentials of numbers that are not positive:

        1 / (1 + e) where a >= 0, else e / (1 + e), with e = exp(-|a|)
    """
    power = for_row(exp, x, "silu")
    if power is not exp:                # floats
        return [(1.0 if a >= 0.0 else e) / (1.0 + e) for a in x for e in [power(-abs(a))]]
    return [(1 if real(a) >= 0 else e) / (1 + e)
            for a in x for e in [exp(-a if real(a) >= 0 else a)]]


def silu(x):
    """x / (1 + exp(-x)), entry by entry; also called swish.

    >>> ["%.9f" % y for y in silu([2.0, 10000.0])]
    ['1.761594156', '10000.000000000']
    """
    return map_vectors(lambda v: multiply(v, _sigmoids(v)), x)


def silu_backward(d_out, x):
    """The gradient at x, given d_out: d_out s (1 + x (1 - s)), with s = 1 / (1 + exp(-x)).

    >>> silu_backward([2.0], [0.0])
    [1.0]
    """
    return _chain("silu_backward", _silu_slopes, d_out, x)


def _silu_slopes(x):
    return [s * (1 + a * (1 - s)) for a, s in zip(x, _sigmoids(x))]


ACTIVATIONS = (
    ("relu", relu, relu_backward),
    ("gelu", gelu, gelu_backward),
    ("gelu_tanh", gelu_tanh, gelu_tanh_backward),
    ("silu", silu, silu_backward),
)


def activation(name):
    """The pair (forward, backward) of an activation, by its name.

    >>> activation("relu")[0]([-1, 2])
    [0, 2]
    >>> activation("gelu_new")
    Traceback (most recent call last):
    ValueError: activation: no activation 'gelu_new'; there are relu, gelu, gelu_tanh, silu
    """
    for known, forward, backward in ACTIVATIONS:
        if known == name:
            return forward, backward
    raise ValueError(f"activation: no activation {name!r}; there are "
                     + ", ".join([row[0] for row in ACTIVATIONS]))
