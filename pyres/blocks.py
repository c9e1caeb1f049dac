"""Blocks: where the two sublayers stand, and where their norms.

N is a norm, attn and mlp are the sublayers.  Every placement adds two updates, a and m:

    pre_norm       u = x + attn(N(x))       y = u + mlp(N(u))       most models since GPT-2
    parallel       y = x + attn(N(x)) + mlp(N(x))                   GPT-J, NeoX, Cohere, Falcon
    sandwich       u = x + N(attn(N(x)))    y = u + N(mlp(N(u)))    Gemma 2
    output_norm    u = x + N(attn(x))       y = u + N(mlp(u))       OLMo 2
    post_norm      u = N(x + attn(x))       y = N(u + mlp(u))       the first Transformer

The update is the vector that is added: after a norm behind the sublayer, after a residual
multiplier, and after edits.  In post_norm alone the stream is changed by more than an update, by
the norm of the sum.

    NormSteps, norm_steps, norm_backward         a norm by its config
    multiply_branch, multiply_branch_backward    ReZero's number, LayerScale's vector
    small_block                                  one that fits in the head, for the examples
    BlockSteps                                   what a block did, step by step
    pre_norm_block, parallel_block, sandwich_block, output_norm_block, post_norm_block
                                                 (x, w, config, edits) -> BlockSteps
    block_steps, block_backward                  by the config's placement
    StateGradient, BlockGradients                the identity part and the branch part, apart

>>> from pyres.config import attention_config, block_config
>>> from pyres.edits import edits_of_block, set_pattern
>>> from pyres.weights import AttentionWeights, BlockWeights, MLPWeights
>>> config = block_config(1, attention_config(n_heads=1, d_head=1), norm=None, activation="relu")
>>> w = BlockWeights(None, AttentionWeights([[0]], [[0]], [[2]], [[1]], *[None] * 6), None, None,
...                  None, MLPWeights(None, [[3]], [[1]], None, None, None), None, None)
>>> given = edits_of_block([set_pattern("L0.attn.H0", [[1]])], 0)
>>> steps = pre_norm_block([[1]], w, config, given)
>>> steps.resid_pre, steps.attn_out, steps.resid_mid, steps.mlp_out, steps.resid_post
([[1]], [[2]], [[3]], [[9]], [[12]])
"""
from collections import namedtuple

from .attention import attention_backward, attention_steps
from .config import attention_config, block_config, norm_config, norms_of
from .edits import (NO_EDITS, edit_state, edit_state_backward, edit_update,
                    edit_update_backward)
from .linalg import add, check_length, check_like, multiply, scale, sum_rows, zeros_like
from .mlp import mlp_backward, mlp_steps
from .norms import (affine, frozen_layer_norm, frozen_layer_norm_backward, frozen_rms_norm,
                    frozen_rms_norm_backward, layer_norm_backward_from, layer_norm_parts,
                    rms_norm_backward_from, rms_norm_parts)
from .scalar import check_constant
from .stream import add_residual
from .weights import AttentionWeights, BlockWeights, MLPWeights, NormWeights

__all__ = ["NormSteps", "norm_steps", "norm_backward", "multiply_branch",
           "multiply_branch_backward", "BlockSteps", "pre_norm_block", "parallel_block",
           "sandwich_block", "output_norm_block", "post_norm_block", "block_steps",
           "StateGradient", "BlockGradients", "block_backward"]


# ---- a norm by its config ----

class NormSteps(namedtuple("NormSteps", ("x", "mean", "scale", "normalized", "out"))):
    """What a norm did.

    x, normalized, out    [n_tokens][d_model]; normalized is before gain and bias
    mean, scale           [n_tokens]; RMSNorm has no mean

    Where there is no norm, mean and scale are None, and normalized and out are x.
    """


def norm_steps(x, w, config):
    """The steps of one norm: x [n_tokens][d_model], w NormWeights, config NormConfig.

    Without a norm, w and config are None.  Raises ValueError where a shape does not fit.

    >>> from pyres.config import norm_config
    >>> norm_steps([[3, 5]], NormWeights([2, 2], None), norm_config("layer", 0))
    NormSteps(x=[[3, 5]], mean=[4.0], scale=[1.0], normalized=[[-1.0, 1.0]], out=[[-2.0, 2.0]])
    """
    if config is None:
        return NormSteps(x, None, None, x, x)
    mean = None
    if config.scale is not None:
        divisors = given_scale(config.scale, x)
        frozen = frozen_layer_norm if config.kind == "layer" else frozen_rms_norm
        normalized = frozen(x, divisors)
        mean = [sum(row) / len(row) for row in x] if config.kind == "layer" else None
    elif config.kind == "layer":
        mean, divisors, normalized = layer_norm_parts(x, config.eps)
    else:
        divisors, normalized = rms_norm_parts(x, config.eps)
    return NormSteps(x, mean, divisors, normalized, affine(normalized, w.gain, w.bias))


def given_scale(given, x):
    """A given scale as one divisor a token, [n_tokens]: a number serves all, a list is left."""
    if not isinstance(given, (list, tuple)):
        given = [given] * len(x)
    check_length("norm", "the given scale", given, len(x))
    for divisor, row in zip(given, x):
        check_constant("norm: the given scale", divisor, row[0])
    return list(given)


def norm_backward(d_out, steps, w, config):
    """Return (d_x, d_w), given d_out, the gradient at the norm's output.

    d_w is NormWeights, or None where there is no norm.

    >>> from pyres.config import norm_config
    >>> config, w = norm_config("rms", 0, scale=2), NormWeights([4, 6], None)
    >>> norm_backward([[1, 1]], norm_steps([[2, 8]], w, config), w, config)
    ([[2.0, 3.0]], NormWeights(gain=[1.0, 4.0], bias=None))
    """
    if config is None:
        return d_out, None
    if config.kind == "layer":
        if config.scale is not None:
            d_x, _, *d_w = frozen_layer_norm_backward(d_out, steps.x, steps.scale, w.gain, w.bias)
        else:
            d_x, *d_w = layer_norm_backward_from(
                d_out, steps.scale, steps.normalized, w.gain, w.bias)
        return d_x, NormWeights(*d_w)
    if config.scale is not None:
        d_x, _, d_gain = frozen_rms_norm_backward(d_out, steps.x, steps.scale, w.gain)
    else:
        d_x, d_gain = rms_norm_backward_from(d_out, steps.scale, steps.normalized, w.gain)
    return d_x, NormWeights(d_gain, None)


# ---- from a sublayer's output to the update ----

def multiply_branch(x, multiplier):
    """x [n_tokens][d_model] times a residual multiplier: a number, a vector [d_model], None for 1.

    >>> multiply_branch([[1, 2], [3, 4]], 10), multiply_branch([[1, 2], [3, 4]], [1, 100])
    ([[10, 20], [30, 40]], [[1, 200], [3, 400]])
    """
    if multiplier is None:
        return x
    if isinstance(multiplier, (list, tuple)):
        return [multiply(multiplier, row) for row in x]
    check_constant("multiply_branch: the residual multiplier", multiplier, x[0][0])
    return scale(multiplier, x)


def multiply_branch_backward(d_out, x, multiplier):
    """Return (d_x, d_multiplier), given d_out [n_tokens][d_model]; d_multiplier is a number, a
    vector or None, as the multiplier is.

    >>> multiply_branch_backward([[1, 1], [1, 1]], [[1, 2], [3, 4]], 10)
    ([[10, 10], [10, 10]], 10)
    >>> multiply_branch_backward([[1, 1], [1, 1]], [[1, 2], [3, 4]], [1, 100])[1]
    [4, 6]
    """
    check_like("multiply_branch_backward", "d_out", d_out, x)
    return _multiplied_backward(d_out, x, multiplier)


def _multiplied_backward(d_out, x, multiplier):
    if multiplier is None:
        return d_out, None
    by_channel = sum_rows([multiply(d, row) for d, row in zip(d_out, x)])
    if isinstance(multiplier, (list, tuple)):
        return [multiply(multiplier, d) for d in d_out], by_channel
    return scale(multiplier, d_out), sum(by_channel)


def branch_update(x, multiplier, config, edits):
    """The update that x [n_tokens][d_model], a sublayer's finished output, becomes: times the
    learned and the fixed residual multiplier, and edited."""
    multiplied = multiply_branch(x, multiplier)
    return edit_update(multiply_branch(multiplied, config.residual_multiplier), edits)


def branch_update_backward(d_update, x, multiplier, config, edits):
    """Return (d_x, d_multiplier), given the gradient at the update; the fixed one has none."""
    check_like("branch_update_backward", "d_update", d_update, x)
    d_edited = edit_update_backward(d_update, edits)
    d_fixed, _ = _multiplied_backward(d_edited, x, config.residual_multiplier)
    return _multiplied_backward(d_fixed, x, multiplier)


# ---- a block for the examples ----

def small_block(placement):
    """Return (config, w) of a block that fits in the head: d_model 1, and a norm in every place
    that the placement has.  For a stream of one token, not negative, it has

        N(x) = x / 2        attn(x) = x + 4        mlp(x) = 3 * x

    N is an RMSNorm with a given scale of 2, attn a head that reads one token whole, mlp has one
    neuron.

    >>> config, w = small_block("post_norm")
    >>> config.attn_norm, config.attn_post_norm
    (None, NormConfig(kind='rms', eps=0, scale=2.0))
    >>> w.attn.w_v, w.attn.b_o, w.mlp.w_up
    ([[1.0]], [4.0], [[3.0]])
    """
    config = block_config(1, attention_config(n_heads=1, d_head=1), placement,
                          norm=norm_config("rms", 0, scale=2.0), activation="relu")
    gain = NormWeights([1.0], None)
    norms = [gain if place in norms_of(placement) else None for place in norms_of("sandwich")]
    attn = AttentionWeights([[0.0]], [[0.0]], [[1.0]], [[1.0]],
                            None, None, None, [4.0], None, None)
    mlp = MLPWeights(None, [[3.0]], [[1.0]], None, None, None)
    return config, BlockWeights(norms[0], attn, norms[1], None, norms[2], mlp, norms[3], None)


# ---- forward ----

class BlockSteps(namedtuple("BlockSteps", (
        "resid_pre", "attn_norm", "attn", "attn_post_norm", "attn_out",
        "resid_mid", "mlp_norm", "mlp", "mlp_post_norm", "mlp_out", "resid_post"))):
    """What a block did.

    resid_pre, resid_mid, resid_post    the states x, u, y [n_tokens][d_model]; in parallel there
                                        is no u, and resid_mid is None
    attn_out, mlp_out                   the updates a, m [n_tokens][d_model], as they were added
    attn_norm, mlp_norm                 NormSteps of what each sublayer read
    attn, mlp                           AttentionSteps, MLPSteps
    attn_post_norm, mlp_post_norm       NormSteps of what each gave; in post_norm, of the stream
                                        with the update added
    """


def pre_norm_block(x, w, config, edits=NO_EDITS, past=None):
    """u = x + attn(N(x)), y = u + mlp(N(u)): x [n_tokens][d_model], w BlockWeights, config
    BlockConfig, edits BlockEdits -> BlockSteps.

    past, the pair (k, v) of an earlier part of the sequence, is attention's.  Raises ValueError
    where a shape does not fit.

    >>> config, w = small_block("pre_norm")
    >>> steps = pre_norm_block([[16.0]], w, config)
    >>> steps.attn_norm.out, steps.attn_out, steps.resid_mid          # 16 / 2, 8 + 4, 16 + 12
    ([[8.0]], [[12.0]], [[28.0]])
    >>> steps.mlp_norm.out, steps.mlp_out, steps.resid_post           # 28 / 2, 3 * 14, 28 + 42
    ([[14.0]], [[42.0]], [[70.0]])
    """
    return _sequential(x, w, config, edits, past)


def sandwich_block(x, w, config, edits=NO_EDITS, past=None):
    """u = x + N(attn(N(x))), y = u + N(mlp(N(u))); also called peri-LN.  As pre_norm_block, with
    updates that go through a norm of their own, whose bias is part of the update.

    >>> config, w = small_block("sandwich")
    >>> steps = sandwich_block([[16.0]], w, config)
    >>> steps.attn_norm.out, steps.attn.out, steps.attn_out           # 16 / 2, 8 + 4, 12 / 2
    ([[8.0]], [[12.0]], [[6.0]])
    >>> steps.resid_mid, steps.mlp_out, steps.resid_post              # m = 3 * (22 / 2) / 2
    ([[22.0]], [[16.5]], [[38.5]])
    """
    return _sequential(x, w, config, edits, past)


def output_norm_block(x, w, config, edits=NO_EDITS, past=None):
    """u = x + N(attn(x)), y = u + N(mlp(u)): a sandwich whose sublayers read the bare stream.

    >>> config, w = small_block("output_norm")
    >>> steps = output_norm_block([[16.0]], w, config)
    >>> steps.attn_out, steps.resid_mid                               # (16 + 4) / 2, 16 + 10
    ([[10.0]], [[26.0]])
    >>> steps.mlp_out, steps.resid_post                               # 3 * 26 / 2, 26 + 39
    ([[39.0]], [[65.0]])
    """
    return _sequential(x, w, config, edits, past)


def _sequential(x, w, config, edits, past):
    """The placements that differ only in which norms are there: an absent one changes nothing."""
    attn_norm = norm_steps(x, w.attn_norm, config.attn_norm)
    attn = attention_steps(attn_norm.out, w.attn, config.attention,
                           edits.heads, edits.patterns, past, edits.sources)
    attn_post_norm = norm_steps(attn.out, w.attn_post_norm, config.attn_post_norm)
    a = branch_update(attn_post_norm.out, w.attn_multiplier, config, edits.attn)
    u = edit_state(add_residual(x, a), edits.resid_mid)

    mlp_norm = norm_steps(u, w.mlp_norm, config.mlp_norm)
    mlp = mlp_steps(mlp_norm.out, w.mlp, config.activation, edits.neurons)
    mlp_post_norm = norm_steps(mlp.out, w.mlp_post_norm, config.mlp_post_norm)
    m = branch_update(mlp_post_norm.out, w.mlp_multiplier, config, edits.mlp)
    y = edit_state(add_residual(u, m), edits.resid_post)
    return BlockSteps(x, attn_norm, attn, attn_post_norm, a, u, mlp_norm, mlp, mlp_post_norm, m, y)


def parallel_block(x, w, config, edits=NO_EDITS, past=None):
    """y = x + attn(N1(x)) + mlp(N2(x)), with N1 the attn_norm and N2 the mlp_norm.

    Without a norm of its own (mlp_norm None) the MLP reads N1(x).  Neither sublayer reads the
    other's update, so there is no state between them.

    >>> config, w = small_block("parallel")
    >>> steps = parallel_block([[16.0]], w, config)
    >>> steps.attn_out, steps.mlp_out                                 # 16 / 2 + 4, 3 * 16 / 2
    ([[12.0]], [[24.0]])
    >>> steps.resid_mid, steps.resid_post                             # 16 + 12 + 24
    (None, [[52.0]])
    """
    attn_norm = norm_steps(x, w.attn_norm, config.attn_norm)
    attn = attention_steps(attn_norm.out, w.attn, config.attention,
                           edits.heads, edits.patterns, past, edits.sources)
    a = branch_update(attn.out, w.attn_multiplier, config, edits.attn)

    mlp_norm = attn_norm if config.mlp_norm is None else norm_steps(x, w.mlp_norm, config.mlp_norm)
    mlp = mlp_steps(mlp_norm.out, w.mlp, config.activation, edits.neurons)
    m = branch_update(mlp.out, w.mlp_multiplier, config, edits.mlp)
    y = edit_state(add_residual(add_residual(x, a), m), edits.resid_post)
    return BlockSteps(x, attn_norm, attn, None, a, None, mlp_norm, mlp, None, m, y)


def post_norm_block(x, w, config, edits=NO_EDITS, past=None):
    """u = N(x + attn(x)), y = N(u + mlp(u)): the norm takes in the stream itself, so the final
    stream is not the sum of the updates.

    >>> config, w = small_block("post_norm")
    >>> steps = post_norm_block([[16.0]], w, config)
    >>> steps.attn_out, steps.resid_mid                               # 16 + 4, (16 + 20) / 2
    ([[20.0]], [[18.0]])
    >>> steps.mlp_out, steps.resid_post                               # 3 * 18, (18 + 54) / 2
    ([[54.0]], [[36.0]])
    """
    attn = attention_steps(x, w.attn, config.attention,
                           edits.heads, edits.patterns, past, edits.sources)
    a = branch_update(attn.out, w.attn_multiplier, config, edits.attn)
    attn_post_norm = norm_steps(add_residual(x, a), w.attn_post_norm, config.attn_post_norm)
    u = edit_state(attn_post_norm.out, edits.resid_mid)

    mlp = mlp_steps(u, w.mlp, config.activation, edits.neurons)
    m = branch_update(mlp.out, w.mlp_multiplier, config, edits.mlp)
    mlp_post_norm = norm_steps(add_residual(u, m), w.mlp_post_norm, config.mlp_post_norm)
    y = edit_state(mlp_post_norm.out, edits.resid_post)
    return BlockSteps(x, None, attn, attn_post_norm, a, u, None, mlp, mlp_post_norm, m, y)


# ---- backward ----

class StateGradient(namedtuple("StateGradient", ("total", "identity", "branch"))):
    """The gradient at one state, [n_tokens][d_model] each: total = identity + branch.

    identity is what comes straight down the stream, branch what comes back through the sublayers
    that read the state.  Both are None at the last state, which no sublayer reads.
    """


def fork(identity, branch):
    """The gradient at a state that two read, the sum and a sublayer: their gradients add.

    >>> fork([[1]], [[10]])
    StateGradient(total=[[11]], identity=[[1]], branch=[[10]])
    """
    return StateGradient(add(identity, branch), identity, branch)


class BlockGradients(namedtuple("BlockGradients", ("resid_pre", "resid_mid", "weights"))):
    """The gradients of one block.

    resid_pre, resid_mid    StateGradient; resid_mid is None in parallel
    weights                 BlockWeights
    """


def _sequential_backward(d_y, steps, w, config, edits):
    d_y = edit_state_backward(d_y, edits.resid_post)
    # forward: y = u + m; m = branch_update(N(mlp(N(u))))
    d_m, d_mlp_multiplier = branch_update_backward(
        d_y, steps.mlp_post_norm.out, w.mlp_multiplier, config, edits.mlp)
    d_out, d_mlp_post_norm = norm_backward(
        d_m, steps.mlp_post_norm, w.mlp_post_norm, config.mlp_post_norm)
    d_read, d_mlp = mlp_backward(d_out, steps.mlp, w.mlp, config.activation, edits.neurons)
    d_branch, d_mlp_norm = norm_backward(d_read, steps.mlp_norm, w.mlp_norm, config.mlp_norm)
    resid_mid = fork(d_y, d_branch)

    d_u = edit_state_backward(resid_mid.total, edits.resid_mid)
    # forward: u = x + a; a = branch_update(N(attn(N(x))))
    d_a, d_attn_multiplier = branch_update_backward(
        d_u, steps.attn_post_norm.out, w.attn_multiplier, config, edits.attn)
    d_out, d_attn_post_norm = norm_backward(
        d_a, steps.attn_post_norm, w.attn_post_norm, config.attn_post_norm)
    d_read, d_attn = attention_backward(
        d_out, steps.attn, w.attn, config.attention, edits.heads, edits.sources)
    d_branch, d_attn_norm = norm_backward(d_read, steps.attn_norm, w.attn_norm, config.attn_norm)
    return BlockGradients(fork(d_u, d_branch), resid_mid, BlockWeights(
        d_attn_norm, d_attn, d_attn_post_norm, d_attn_multiplier,
        d_mlp_norm, d_mlp, d_mlp_post_norm, d_mlp_multiplier))


def _parallel_backward(d_y, steps, w, config, edits):
    d_y = edit_state_backward(d_y, edits.resid_post)
    # forward: y = x + a + m: the sum hands d_y to all three
    d_m, d_mlp_multiplier = branch_update_backward(
        d_y, steps.mlp.out, w.mlp_multiplier, config, edits.mlp)
    d_mlp_read, d_mlp = mlp_backward(d_m, steps.mlp, w.mlp, config.activation, edits.neurons)
    d_a, d_attn_multiplier = branch_update_backward(
        d_y, steps.attn.out, w.attn_multiplier, config, edits.attn)
    d_attn_read, d_attn = attention_backward(
        d_a, steps.attn, w.attn, config.attention, edits.heads, edits.sources)
    if config.mlp_norm is None:
        # forward: both read N1(x)
        d_read = add(d_attn_read, d_mlp_read)
        d_branch, d_attn_norm = norm_backward(
            d_read, steps.attn_norm, w.attn_norm, config.attn_norm)
        d_mlp_norm = None
    else:
        d_x_attn, d_attn_norm = norm_backward(
            d_attn_read, steps.attn_norm, w.attn_norm, config.attn_norm)
        d_x_mlp, d_mlp_norm = norm_backward(
            d_mlp_read, steps.mlp_norm, w.mlp_norm, config.mlp_norm)
        d_branch = add(d_x_attn, d_x_mlp)
    return BlockGradients(fork(d_y, d_branch), None, BlockWeights(
        d_attn_norm, d_attn, None, d_attn_multiplier, d_mlp_norm, d_mlp, None, d_mlp_multiplier))


def _post_norm_backward(d_y, steps, w, config, edits):
    d_y = edit_state_backward(d_y, edits.resid_post)
    # forward: y = N(u + m); the norm stands on the stream, so the identity part passes it too
    d_sum, d_mlp_post_norm = norm_backward(
        d_y, steps.mlp_post_norm, w.mlp_post_norm, config.mlp_post_norm)
    d_m, d_mlp_multiplier = branch_update_backward(
        d_sum, steps.mlp.out, w.mlp_multiplier, config, edits.mlp)
    d_branch, d_mlp = mlp_backward(d_m, steps.mlp, w.mlp, config.activation, edits.neurons)
    resid_mid = fork(d_sum, d_branch)

    d_u = edit_state_backward(resid_mid.total, edits.resid_mid)
    # forward: u = N(x + a)
    d_sum, d_attn_post_norm = norm_backward(
        d_u, steps.attn_post_norm, w.attn_post_norm, config.attn_post_norm)
    d_a, d_attn_multiplier = branch_update_backward(
        d_sum, steps.attn.out, w.attn_multiplier, config, edits.attn)
    d_branch, d_attn = attention_backward(
        d_a, steps.attn, w.attn, config.attention, edits.heads, edits.sources)
    return BlockGradients(fork(d_sum, d_branch), resid_mid, BlockWeights(
        None, d_attn, d_attn_post_norm, d_attn_multiplier,
        None, d_mlp, d_mlp_post_norm, d_mlp_multiplier))


# ---- by the config's placement ----

PLACEMENTS = {
    "pre_norm": (pre_norm_block, _sequential_backward),
    "parallel": (parallel_block, _parallel_backward),
    "sandwich": (sandwich_block, _sequential_backward),
    "output_norm": (output_norm_block, _sequential_backward),
    "post_norm": (post_norm_block, _post_norm_backward),
}


def _placement(config):
    """The pair (forward, backward) of a config's placement."""
    if config.placement not in PLACEMENTS:
        norms_of(config.placement)                  # says which there are
    return PLACEMENTS[config.placement]


def block_steps(x, w, config, edits=NO_EDITS, past=None):
    """The steps of one block, by its config's placement: x [n_tokens][d_model] -> BlockSteps.

    The arguments are pre_norm_block's.  Raises ValueError for a placement that is not there.

    >>> def final_stream(placement):
    ...     config, w = small_block(placement)
    ...     return block_steps([[16.0]], w, config).resid_post
    >>> final_stream("pre_norm"), final_stream("parallel"), final_stream("post_norm")
    ([[70.0]], [[52.0]], [[36.0]])
    """
    return _placement(config)[0](x, w, config, edits, past)


def block_backward(d_resid_post, steps, w, config, edits=NO_EDITS):
    """Return BlockGradients, given d_resid_post [n_tokens][d_model], the last state's gradient.

    At each state the gradient that comes down the stream and the one that comes back through the
    sublayer add; they are kept apart as well.  Raises ValueError where a shape does not fit.

    The MLP's branch, 3 * u / 2, has slope 3/2; attention's, x / 2 + 4, has slope 1/2:

    >>> config, w = small_block("pre_norm")
    >>> d = block_backward([[1.0]], block_steps([[16.0]], w, config), w, config)
    >>> d.resid_mid
    StateGradient(total=[[2.5]], identity=[[1.0]], branch=[[1.5]])
    >>> d.resid_pre                                                   # half of 2.5
    StateGradient(total=[[3.75]], identity=[[2.5]], branch=[[1.25]])
    >>> d.weights.mlp.w_down                                          # the neuron held 3 * 14
    [[42.0]]
    """
    return _placement(config)[1](d_resid_post, steps, w, config, edits)
