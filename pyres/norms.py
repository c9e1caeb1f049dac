"""LayerNorm and RMSNorm, forward and backward.

What a sublayer reads is not the stream but its norm: the same direction at a standard length.

    layer_norm   out = gain * (x - mean) / scale + bias      scale = sqrt(mean((x - mean)²) + eps)
    rms_norm     out = gain * x / scale                      scale = sqrt(mean(x²) + eps)

mean(.) is over the d_model entries of one vector and divides by d_model, not by d_model - 1; eps
stands inside the root.  `normalized` is what is there before gain and bias.  Both norms work at
any depth, on the last axis.

    layer_norm_parts, rms_norm_parts      mean, scale, normalized: the one place these come from
    layer_norm, rms_norm                  and their backwards, also from parts that are kept
    frozen_layer_norm, frozen_rms_norm    the same with a scale that is given: linear in x, so
                                          exact numbers stay exact, and every writer's share of
                                          the output can be told

>>> from fractions import Fraction
>>> [str(a) for a in layer_norm([Fraction(3), Fraction(4)], eps=0)]
['-1', '1']
>>> rms_norm([Fraction(3), Fraction(4)], eps=0)
Traceback (most recent call last):
TypeError: sqrt: 25/2 has no rational root; use floats, or numbers whose roots are rational
"""
from .linalg import (add, check_length, check_numbers, check_rows, dot, is_nested, multiply,
                     sum_rows)
from .scalar import check_constant, sqrt

__all__ = ["layer_norm_parts", "layer_norm", "layer_norm_backward", "layer_norm_backward_from",
           "rms_norm_parts", "rms_norm", "rms_norm_backward", "rms_norm_backward_from",
           "frozen_layer_norm", "frozen_layer_norm_backward",
           "frozen_rms_norm", "frozen_rms_norm_backward"]


# ---- shared by all ----

def affine(normalized, gain, bias):
    """gain * normalized + bias along the last axis; gain and bias [d_model], or None.

    >>> affine([[1, 2], [3, 4]], [10, 10], [1, 2])
    [[11, 22], [31, 42]]
    """
    if is_nested(normalized):
        return [affine(part, gain, bias) for part in normalized]
    if gain is None or bias is None:
        out = list(normalized) if gain is None else multiply(gain, normalized)
        return out if bias is None else add(out, bias)
    check_rows("norm: gain and bias", [gain, bias], len(normalized))
    return [g * n + b for g, n, b in zip(gain, normalized, bias)]


def affine_backward(d_out, normalized, gain, bias):
    """Return (d_normalized, d_gain, d_bias) for one vector; None for what is absent."""
    # forward: out[i] = gain[i] * normalized[i] + bias[i]
    check_length("norm backward", "d_out", d_out, len(normalized))
    if bias is not None:
        check_length("norm backward", "the bias", bias, len(normalized))
    d_bias = None if bias is None else list(d_out)
    if gain is None:
        return d_out, None, d_bias
    return multiply(d_out, gain), multiply(d_out, normalized), d_bias


def every_vector(backward, d_out, scale, normalized, *rest):
    """backward of every vector: the gradients at x as a list, those at gain and bias added up."""
    check_length("norm backward", "d_out", d_out, len(normalized))
    check_length("norm backward", "the scale", scale, len(normalized))
    results = [backward(d, s, n, *rest) for d, s, n in zip(d_out, scale, normalized)]
    return tuple([[result[0] for result in results]] + added_up(results, 1))


def added_up(results, first):
    """The gradients of many vectors added up, from place `first` of each on; None stays None."""
    columns = list(zip(*results))[first:]
    return [None if column[0] is None else sum_rows(column) for column in columns]


# ---- LayerNorm ----

def layer_norm_parts(x, eps=1e-5):
    """Return (mean, scale, normalized): x [...][d_model] -> [...], [...], [...][d_model].

    The variance is taken in two passes, from the distances to the mean: mean(x²) - mean(x)² would
    lose all digits where the mean is large.

    >>> layer_norm_parts([3, 5], eps=0)
    (4.0, 1.0, [-1.0, 1.0])
    """
    if is_nested(x):
        parts = [layer_norm_parts(part, eps) for part in x]
        return [p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts]
    check_numbers("layer_norm", x)
    mean = sum(x) / len(x)
    centred = [a - mean for a in x]
    variance = dot(centred, centred) / len(x)
    check_constant("layer_norm: eps", eps, variance)
    scale = sqrt(variance + eps)
    return mean, scale, [a / scale for a in centred]


def layer_norm(x, gain=None, bias=None, eps=1e-5):
    """gain * (x - mean) / sqrt(variance + eps) + bias, along the last axis.

    x [...][d_model], gain and bias [d_model] or None -> [...][d_model].  After Ba, Kiros and
    Hinton, 2016.  Raises ValueError on a wrong length, ZeroDivisionError where all entries are
    equal and eps is 0, TypeError where exact numbers meet a float eps or an irrational root.

    >>> layer_norm([3, 4], eps=0)
    [-1.0, 1.0]
    >>> layer_norm([[3, 4], [10, 0]], [2, 2], [0, 1], eps=0)
    [[-2.0, 3.0], [2.0, -1.0]]
    """
    return affine(layer_norm_parts(x, eps)[2], gain, bias)


def layer_norm_backward(d_out, x, gain=None, bias=None, eps=1e-5):
    """Return (d_x, d_gain, d_bias), given d_out, the gradient at layer_norm's output.

    Two ways of moving x leave `normalized` as it is: adding a constant, and (up to eps) growing
    along itself.  So d_x loses what lies along them, its mean and its part along normalized:

        d_normalized[i] = gain[i] * d_out[i]
        d_x[i] = (d_normalized[i] - mean(d_normalized)
                  - normalized[i] * mean(d_normalized[j] * normalized[j])) / scale

    >>> layer_norm_backward([4.0, 0.0, 0.0, 0.0], [1.0, 1.0, -1.0, -1.0], eps=0.0)[0]
    [2.0, -2.0, 0.0, 0.0]
    """
    _, scale, normalized = layer_norm_parts(x, eps)
    return layer_norm_backward_from(d_out, scale, normalized, gain, bias)


def layer_norm_backward_from(d_out, scale, normalized, gain=None, bias=None):
    """As layer_norm_backward, from the forward's scale [...] and normalized [...][d_model].

    >>> layer_norm_backward_from([4.0, 0.0], 0.5, [-1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    ([0.0, 0.0], [-4.0, 0.0], [4.0, 0.0])
    """
    if is_nested(normalized):
        return every_vector(layer_norm_backward_from, d_out, scale, normalized, gain, bias)
    d_normalized, d_gain, d_bias = affine_backward(d_out, normalized, gain, bias)
    # forward: normalized[i] = (x[i] - mean) / scale, and every x[j] moves mean and scale.  Each
    # term is divided by itself: whole numbers divided by their count alone would become floats.
    level = sum(d_normalized) / (len(normalized) * scale)
    along = dot(d_normalized, normalized) / (len(normalized) * scale)
    d_x = [d / scale - level - n * along for d, n in zip(d_normalized, normalized)]
    return d_x, d_gain, d_bias


# ---- RMSNorm ----

def rms_norm_parts(x, eps=1e-5):
    """Return (scale, normalized): x [...][d_model] -> [...], [...][d_model].

    >>> rms_norm_parts([1, 7], eps=0)
    (5.0, [0.2, 1.4])
    """
    if is_nested(x):
        parts = [rms_norm_parts(part, eps) for part in x]
        return [p[0] for p in parts], [p[1] for p in parts]
    check_numbers("rms_norm", x)
    mean_square = dot(x, x) / len(x)
    check_constant("rms_norm: eps", eps, mean_square)
    scale = sqrt(mean_square + eps)
    return scale, [a / scale for a in x]


def rms_norm(x, gain=None, eps=1e-5):
    """gain * x / sqrt(mean(x²) + eps), along the last axis (Zhang and Sennrich, 2019).

    x [...][d_model], gain [d_model] or None -> [...][d_model].  A checkpoint that stores gain - 1
    is read as gain; nothing is added here.  Raises as layer_norm does.

    >>> from pyres.show import rounded
    >>> rounded(rms_norm([3, 4], eps=0), 9)                       # both divided by sqrt(12.5)
    [0.848528137, 1.13137085]
    """
    return affine(rms_norm_parts(x, eps)[1], gain, None)


def rms_norm_backward(d_out, x, gain=None, eps=1e-5):
    """Return (d_x, d_gain), given d_out, the gradient at rms_norm's output.

    Growing x along itself leaves `normalized` almost unchanged, so d_x loses the part along it:

        d_normalized[i] = gain[i] * d_out[i]
        d_x[i] = (d_normalized[i] - normalized[i] * mean(d_normalized[j] * normalized[j])) / scale

    >>> d_x, d_gain = rms_norm_backward([1.0, 1.0, 1.0, 1.0],
    ...                                 [2.0, -2.0, 2.0, -2.0], [1.0, 1.0, 1.0, 0.5], eps=0.0)
    >>> d_x
    [0.4375, 0.5625, 0.4375, 0.3125]
    """
    return rms_norm_backward_from(d_out, *rms_norm_parts(x, eps), gain)


def rms_norm_backward_from(d_out, scale, normalized, gain=None):
    """As rms_norm_backward, from the forward's scale [...] and normalized [...][d_model].

    >>> rms_norm_backward_from([4.0, 0.0], 0.5, [1.0, 1.0], [1.0, 1.0])
    ([4.0, -4.0], [4.0, 0.0])
    """
    if is_nested(normalized):
        return every_vector(rms_norm_backward_from, d_out, scale, normalized, gain)
    d_normalized, d_gain, _ = affine_backward(d_out, normalized, gain, None)
    # forward: normalized[i] = x[i] / scale, and every x[j] moves scale
    along = dot(d_normalized, normalized) / (len(normalized) * scale)
    return [d / scale - n * along for d, n in zip(d_normalized, normalized)], d_gain


# ---- with a given scale ----

def frozen_layer_norm(x, scale, gain=None, bias=None):
    """gain * (x - mean) / scale + bias with a given scale: x [...][d_model], scale [...] (one
    number a vector) -> [...][d_model].

    >>> frozen_layer_norm([[1, 3], [2, 8]], [2, 3])
    [[-0.5, 0.5], [-1.0, 1.0]]
    """
    if is_nested(x):
        check_length("frozen_layer_norm", "the scale", scale, len(x))
        return [frozen_layer_norm(part, s, gain, bias) for part, s in zip(x, scale)]
    check_numbers("frozen_layer_norm", x)
    check_constant("frozen_layer_norm: the scale", scale, x[0])
    mean = sum(x) / len(x)
    return affine([(a - mean) / scale for a in x], gain, bias)


def frozen_layer_norm_backward(d_out, x, scale, gain=None, bias=None):
    """Return (d_x, d_scale, d_gain, d_bias), given d_out, the gradient at the output.

    The scale does not follow x, so only the mean is taken out; the scale has its own gradient:

        d_x[i]  = (d_normalized[i] - mean(d_normalized)) / scale
        d_scale = -sum over i of d_normalized[i] * normalized[i] / scale

    >>> frozen_layer_norm_backward([4, 0], [1, 3], 2)
    ([1.0, -1.0], 1.0, None, None)
    """
    if is_nested(x):
        return _every_frozen(frozen_layer_norm_backward, d_out, x, scale, gain, bias)
    normalized = frozen_layer_norm(x, scale)
    d_normalized, d_gain, d_bias = affine_backward(d_out, normalized, gain, bias)
    level = sum(d_normalized) / (len(x) * scale)
    d_x = [d / scale - level for d in d_normalized]
    return d_x, -dot(d_normalized, normalized) / scale, d_gain, d_bias


def frozen_rms_norm(x, scale, gain=None):
    """gain * x / scale with a given scale: x [...][d_model], scale [...] -> [...][d_model].

    >>> frozen_rms_norm([[1, 3], [2, 8]], [2, 4])
    [[0.5, 1.5], [0.5, 2.0]]
    """
    if is_nested(x):
        check_length("frozen_rms_norm", "the scale", scale, len(x))
        return [frozen_rms_norm(part, s, gain) for part, s in zip(x, scale)]
    check_numbers("frozen_rms_norm", x)
    check_constant("frozen_rms_norm: the scale", scale, x[0])
    return affine([a / scale for a in x], gain, None)


def frozen_rms_norm_backward(d_out, x, scale, gain=None):
    """Return (d_x, d_scale, d_gain), given d_out, the gradient at frozen_rms_norm's output:

        d_x[i]  = d_normalized[i] / scale
        d_scale = -sum over i of d_normalized[i] * normalized[i] / scale

    >>> frozen_rms_norm_backward([4, 0], [1, 3], 2)
    ([2.0, 0.0], -1.0, None)
    """
    if is_nested(x):
        return _every_frozen(frozen_rms_norm_backward, d_out, x, scale, gain)
    normalized = frozen_rms_norm(x, scale)
    d_normalized, d_gain, _ = affine_backward(d_out, normalized, gain, None)
    return [d / scale for d in d_normalized], -dot(d_normalized, normalized) / scale, d_gain


def _every_frozen(backward, d_out, x, scale, *rest):
    """A frozen norm's backward of every vector: d_x and d_scale as lists, the others added up."""
    check_length("frozen norm backward", "d_out", d_out, len(x))
    check_length("frozen norm backward", "the scale", scale, len(x))
    results = [backward(d, part, s, *rest) for d, part, s in zip(d_out, x, scale)]
    return tuple([[result[0] for result in results], [result[1] for result in results]]
                 + added_up(results, 2))
