"""The MLP: each token by itself, through more channels and back.

    plain    out = w_down act(w_up x + b_up) + b_down
    gated    out = w_down (act(w_gate x + b_gate) * (w_up x + b_up)) + b_down

It is gated where w_gate is there.  The activation is on the gate, and `up` passes as it is
(Shazeer, "GLU variants improve transformer", 2020).  w_up's rows read the stream, w_down's
columns write to it: neuron n writes hidden[t][n] times column n.

    mlp_steps, mlp, mlp_backward

>>> from pyres.weights import MLPWeights
>>> plain = MLPWeights(w_gate=None, w_up=[[1, 0], [0, 1], [1, 1]], w_down=[[1, 0, 1], [0, 1, 1]],
...                    b_gate=None, b_up=None, b_down=None)
>>> mlp([[2, -3]], plain, "relu")
[[2, 0]]
"""
from collections import namedtuple

from .linalg import add, linear, linear_backward, multiply
from .nonlinear import activation
from .readout import readout, readout_backward
from .weights import MLPWeights

__all__ = ["MLPSteps", "mlp_steps", "mlp", "mlp_backward"]


class MLPSteps(namedtuple("MLPSteps", ("x", "gate", "up", "hidden", "out"))):
    """What an MLP did.

    x, out      [n_tokens][d_model]
    gate, up    [n_tokens][d_mlp], before the activation; gate is None where w_gate is
    hidden      [n_tokens][d_mlp], what w_down reads
    """


def mlp_steps(x, w, activation_name, neuron_edits=()):
    """Every step of an MLP: x [n_tokens][d_model], w MLPWeights -> MLPSteps.

    neuron_edits is a list of pairs (neuron, Edit), as in edits.BlockEdits.

    Raises ValueError for an activation that is not there, or where a shape does not fit.

    >>> from pyres.weights import MLPWeights
    >>> gated = MLPWeights([[1]], [[10]], [[1]], None, None, None)
    >>> mlp_steps([[3]], gated, "relu")
    MLPSteps(x=[[3]], gate=[[3]], up=[[30]], hidden=[[90]], out=[[90]])
    """
    act, _ = activation(activation_name)
    up = linear(x, w.w_up, w.b_up)
    if w.w_gate is None:
        gate, hidden = None, act(up)
    else:
        gate = linear(x, w.w_gate, w.b_gate)
        hidden = multiply(act(gate), up)
    return MLPSteps(x, gate, up, hidden, readout(hidden, w.w_down, w.b_down, 1, neuron_edits))


def mlp(x, w, activation_name):
    """The output of an MLP: x [n_tokens][d_model] -> [n_tokens][d_model].  Raises as mlp_steps.

    The second token's gate is shut, so it writes nothing:

    >>> from pyres.weights import MLPWeights
    >>> gated = MLPWeights([[1]], [[10]], [[1]], None, None, None)
    >>> mlp([[3], [-3]], gated, "relu")
    [[90], [0]]
    """
    return mlp_steps(x, w, activation_name).out


def mlp_backward(d_out, steps, w, activation_name, neuron_edits=()):
    """Return (d_x, d_w), given d_out [n_tokens][d_model], the gradient at the output.

    d_w is MLPWeights; neuron_edits are the forward's.

    >>> from pyres.weights import MLPWeights
    >>> gated = MLPWeights([[1]], [[10]], [[1]], None, None, None)
    >>> d_x, d_w = mlp_backward([[1]], mlp_steps([[3]], gated, "relu"), gated, "relu")
    >>> d_x, d_w.w_gate, d_w.w_up, d_w.w_down
    ([[60]], [[90]], [[9]], [[90]])
    """
    act, act_backward = activation(activation_name)
    # forward: out = readout(hidden, w_down, b_down)
    d_hidden, d_w_down, d_b_down = readout_backward(
        d_out, steps.hidden, w.w_down, w.b_down, 1, neuron_edits)
    if w.w_gate is None:
        # forward: hidden = act(up)
        d_up = act_backward(d_hidden, steps.up)
        d_x_gate, d_w_gate, d_b_gate = None, None, None
    else:
        # forward: hidden = act(gate) * up
        d_up = multiply(d_hidden, act(steps.gate))
        d_gate = act_backward(multiply(d_hidden, steps.up), steps.gate)
        # forward: gate = linear(x, w_gate, b_gate)
        d_x_gate, d_w_gate, d_b_gate = linear_backward(d_gate, steps.x, w.w_gate, w.b_gate)
    # forward: up = linear(x, w_up, b_up)
    d_x, d_w_up, d_b_up = linear_backward(d_up, steps.x, w.w_up, w.b_up)
    if d_x_gate is not None:
        d_x = add(d_x, d_x_gate)                    # gate and up both read x
    return d_x, MLPWeights(d_w_gate, d_w_up, d_w_down, d_b_gate, d_b_up, d_b_down)
