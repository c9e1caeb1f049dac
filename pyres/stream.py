"""The residual stream: one vector a token, and sublayers that each add to it.

A transformer carries one vector `x` for every token from its embedding to its output.  No sublayer
replaces it.  Each reads the stream and adds an update of the same shape, so what comes out is what
went in plus everything that was added:

    x[k + 1] = x[k] + f[k](x[k])                          every sublayer, in order
    x[n]     = x[0] + f[0](x[0]) + ... + f[n-1](x[n-1])   hence the sum

Both lines are this module.  Nothing else in the package adds to a stream.

    add_residual              x + update, or an error that names both shapes
    run_sublayers             the final stream
    trace                     every state on the way
    total_update              the final stream minus x
    run_sublayers_backward    the gradient at every state

A stream may be a vector [d_model], a sequence [n_tokens][d_model], or a batch
[n_batch][n_tokens][d_model] whose sequences may differ in length.  A sublayer is any function from
a stream to an update.  Numbers may be of any type that has + and -; with Fractions every line is
exact.

One block of a transformer is two sublayers.  Here they add fixed vectors, so that the arithmetic
shows:

>>> attention = lambda x: [0.5, -1, 0]
>>> mlp = lambda x: [0, 1, 1]
>>> trace([1, 2, 3], [attention, mlp])
[[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]]
>>> run_sublayers([1, 2, 3], [mlp])                # attention switched off
[1, 3, 4]
>>> run_sublayers([1, 2, 3], [lambda x: [0, 1, 1, 0]])
Traceback (most recent call last):
ValueError: add_residual: the update has shape (4,), the stream (3,); a sublayer must project \
back to d_model
"""
from .linalg import (add, check_numbers, check_rows, checked_copy, copied, is_nested, shape_text,
                     subtract)

__all__ = ["add_residual", "run_sublayers", "trace", "total_update", "run_sublayers_backward"]


def add_residual(x, update):
    """x + update, in fresh lists.

    The shapes must be equal: nothing is stretched and nothing cut off.  Raises ValueError with
    both shapes, and the place where they part; TypeError for a bool or a string.

    >>> add_residual([[1, 2], [3, 4]], [[10, 20], [30, 40]])
    [[11, 22], [33, 44]]
    >>> add_residual([[1, 2, 3], [4, 5, 6]], [[1, 1, 1], [1, 1, 1, 1]])
    Traceback (most recent call last):
    ValueError: add_residual: at [1]: the update has shape (4,), the stream (3,); a sublayer must \
project back to d_model
    """
    return _add_at((), x, update)


def _add_at(place, x, update):
    nested = is_nested(x)
    if nested != is_nested(update) or len(x) != len(update):
        at = f"{_at(place)[1:]}: " if place else ""
        raise ValueError(f"add_residual: {at}the update has shape {shape_text(update)}, "
                         f"the stream {shape_text(x)}; a sublayer must project back to d_model")
    if nested:
        check_even(place, x)
        return [_add_at(place + (i,), a, b) for i, (a, b) in enumerate(zip(x, update))]
    check_numbers("add_residual", x)
    check_numbers("add_residual", update)
    return [a + b for a, b in zip(x, update)]


def check_even(place, x):
    """Raise ValueError where lists and vectors are mixed, or vectors side by side differ in
    length."""
    if len({is_nested(part) for part in x}) > 1:
        raise ValueError("add_residual: ragged: vectors and sequences stand side by side"
                         + _at(place))
    if not is_nested(x[0]):
        check_rows("add_residual: a sequence is ragged" + _at(place), x, len(x[0]))


def _at(place):
    return " at " + "".join([f"[{i}]" for i in place]) if place else ""


def run_sublayers(x, fns):
    """The stream after x = x + fn(x) for each fn in order.  Each fn is called once, with a copy
    that is its own; x itself is not changed.

    The order matters, because each sublayer reads what those before it wrote:

    >>> double = lambda x: x                        # adds the stream to itself
    >>> one = lambda x: [1 for _ in x]
    >>> run_sublayers([3, 5], [double, one]), run_sublayers([3, 5], [one, double])
    ([7, 11], [8, 12])
    """
    x = checked_copy("run_sublayers", x)
    for fn in fns:
        x = add_residual(x, fn(copied(x)))
    return x


def trace(x, fns):
    """The len(fns) + 1 states of the stream: [x, after the first fn, after the second, ...].

    No state shares a list with another, nor with x: changing one leaves the others as they were.

    >>> trace([[1, 2], [3, 4]], [lambda x: [[1, 0], [0, 1]], lambda x: x])
    [[[1, 2], [3, 4]], [[2, 2], [3, 5]], [[4, 4], [6, 10]]]
    """
    states = [checked_copy("trace", x)]
    for fn in fns:
        states.append(add_residual(states[-1], fn(copied(states[-1]))))
    return states


def total_update(x, fns):
    """What all sublayers together added: the final stream minus x.

    >>> total_update([1, 2, 3], [lambda x: [0.5, -1, 0], lambda x: [0, 1, 1]])
    [0.5, 0, 1]
    """
    return subtract(run_sublayers(x, fns), x)


def run_sublayers_backward(d_out, x, fns, fn_backwards):
    """Return the gradient at every state of trace(x, fns), given d_out, the gradient at the last.

    fn_backwards[k](d_update, x_k) is the gradient that fns[k] sends back from its update to what
    it read.  A state has two readers, the sum and the sublayer, so its gradient is a sum of two
    parts:

        x[k + 1] = x[k] + f(x[k])
        d_x[k]   = d_x[k + 1]  +  Jᵀ d_x[k + 1]
                   identity part  branch part

    The identity part arrives whole however many sublayers stand above.  With f(x) = x / 2 each
    state's gradient is 3/2 of the next one's:

    >>> from fractions import Fraction
    >>> halve = lambda x: [a / 2 for a in x]
    >>> halve_backward = lambda d_update, x: [d / 2 for d in d_update]
    >>> d_states = run_sublayers_backward(
    ...     [Fraction(1)], [Fraction(5)], [halve] * 3, [halve_backward] * 3)
    >>> [str(d[0]) for d in d_states]
    ['27/8', '9/4', '3/2', '1']

    Raises ValueError where fns and fn_backwards differ in number, or a shape does not fit.
    """
    if len(fns) != len(fn_backwards):
        raise ValueError(f"run_sublayers_backward: {len(fns)} sublayers, "
                         f"but {len(fn_backwards)} backwards")
    states = trace(x, fns)
    d_states = [checked_copy("run_sublayers_backward", d_out)]
    subtract(d_out, x)                              # raises unless d_out has the stream's shape
    for x_k, fn_backward in reversed(list(zip(states[:-1], fn_backwards))):
        d_update = d_states[0]
        # forward: x[k + 1] = x[k] + f(x[k])
        branch = checked_copy("run_sublayers_backward", fn_backward(copied(d_update), x_k))
        d_states = [add(d_update, branch)] + d_states
    return d_states
