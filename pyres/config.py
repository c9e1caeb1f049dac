"""What a model is, apart from its weights: sizes, placements, kinds of norm, fixed numbers.

Weights are trained and live in `weights`; a config is never trained.  Whether a weight is there at
all is not said here: an absent weight is None, and that is the only switch.

    NormConfig, norm_config              kind "layer" or "rms", eps, perhaps a given scale
    RotaryConfig                         how channels pair up, and the frequencies
    AttentionConfig, attention_config    heads, window, multiplier, soft cap, rotary
    BlockConfig, block_config            placement, norms, attention, MLP, residual multiplier
    ModelConfig, model_config            blocks, sizes, multipliers
    check_config                         the same rules, for a config from elsewhere

The function beside a record fills in what most models have, and checks it.  No norm is None.

>>> block = block_config(d_mlp=8, attention=attention_config(n_heads=2, d_head=2))
>>> config = model_config(d_model=4, d_vocab=10, n_ctx=8, n_layers=2, block=block)
>>> len(config.blocks), config.blocks[0].placement, config.blocks[0].attn_norm.kind
(2, 'pre_norm', 'layer')
"""
import math
from collections import namedtuple

from .linalg import check_numbers
from .nonlinear import activation as find_activation
from .rotary import pair

__all__ = ["NormConfig", "norm_config", "RotaryConfig", "AttentionConfig", "attention_config",
           "BlockConfig", "block_config", "ModelConfig", "model_config", "PLACEMENT_NORMS",
           "norms_of", "check_config"]


# ---- checks ----

def check_number(name, what, value):
    """Raise TypeError unless a value is a number or None.

    >>> check_number("attention_config", "soft_cap", "30")
    Traceback (most recent call last):
    TypeError: attention_config: soft_cap is '30', expected a number or None
    """
    if isinstance(value, (bool, str, bytes, list, tuple, dict)):
        raise TypeError(f"{name}: {what} is {value!r}, expected a number or None")


def check_size(name, what, size):
    """Raise unless size is a whole number of at least 1.

    >>> check_size("model_config", "d_model", 0)
    Traceback (most recent call last):
    ValueError: model_config: d_model is 0, expected a whole number of at least 1
    """
    if type(size) is not int or size < 1:
        raise ValueError(f"{name}: {what} is {size!r}, expected a whole number of at least 1")


def check_record(name, record, kind, make):
    """Raise unless a record is None, or of a kind and could have been made by `make`."""
    if record is None:
        return
    if type(record) is not kind:
        raise TypeError(f"{name} is a {type(record).__name__}, expected a {kind.__name__}")
    if kind is AttentionConfig:
        n_heads, n_kv_heads, d_head = record[:3]
        make(n_heads, d_head, n_kv_heads, *record[3:])
    else:
        make(*record)


# ---- records ----

NORM_FIELDS = ("kind", "eps", "scale")


class NormConfig(namedtuple("NormConfig", NORM_FIELDS)):
    """One norm.

    kind     "layer" or "rms"
    eps      what is added inside the root
    scale    None: the norm's own; else a given divisor, one number or one a token [n_tokens]
    """

    FIELDS = NORM_FIELDS


def norm_config(kind="layer", eps=1e-5, scale=None):
    """A NormConfig.

    >>> norm_config("rms", 1e-6)
    NormConfig(kind='rms', eps=1e-06, scale=None)
    """
    if kind not in ("layer", "rms"):
        raise ValueError(f"norm_config: no norm {kind!r}; "
                         "there are 'layer' and 'rms', and None for none")
    check_number("norm_config", "eps", eps)
    if eps is None or not 0 <= eps < math.inf:
        raise ValueError(f"norm_config: eps is {eps!r}, expected a number of at least 0")
    for divisor in scale if isinstance(scale, (list, tuple)) else [scale]:
        check_number("norm_config", "scale", divisor)
    return NormConfig(kind, eps, scale)


LAYER_NORM = norm_config()


ROTARY_FIELDS = ("pairing", "frequencies")


class RotaryConfig(namedtuple("RotaryConfig", ROTARY_FIELDS)):
    """Rotary positions.

    pairing        "half" or "interleaved", see `rotary`
    frequencies    radians a position, [d_rotary / 2]
    """

    FIELDS = ROTARY_FIELDS


def checked_rotary(pairing, frequencies):
    """Raise unless the two make a RotaryConfig."""
    pair(0, 1, pairing)                             # raises for a pairing that is none
    check_numbers("RotaryConfig: frequencies", frequencies)


ATTENTION_FIELDS = ("n_heads", "n_kv_heads", "d_head", "causal", "window",
                    "multiplier", "soft_cap", "rotary", "qk_norm")


class AttentionConfig(namedtuple("AttentionConfig", ATTENTION_FIELDS)):
    """One attention sublayer.

    n_heads       query heads
    n_kv_heads    key/value heads; query head i reads number i // (n_heads / n_kv_heads)
    d_head        channels of a head; n_heads * d_head need not be d_model
    causal        whether a token sees itself and what stands before it, and nothing after
    window        how many tokens it sees at most, itself among them; None for all
    multiplier    what q·k is multiplied by; None for 1 / sqrt(d_head)
    soft_cap      c in c * tanh(score / c); None for none
    rotary        RotaryConfig, or None
    qk_norm       NormConfig for queries and keys, read where the weights have their gains
    """

    FIELDS = ATTENTION_FIELDS


def attention_config(n_heads, d_head, n_kv_heads=None, causal=True, window=None, multiplier=None,
                     soft_cap=None, rotary=None, qk_norm=None):
    """An AttentionConfig; as many key/value heads as query heads unless told otherwise.

    >>> attention_config(n_heads=4, d_head=2, n_kv_heads=3)
    Traceback (most recent call last):
    ValueError: attention_config: 4 query heads cannot share 3 key/value heads evenly
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    for name, size in (("n_heads", n_heads), ("n_kv_heads", n_kv_heads), ("d_head", d_head)):
        check_size("attention_config", name, size)
    if n_heads % n_kv_heads:
        raise ValueError(f"attention_config: {n_heads} query heads cannot share {n_kv_heads} "
                         "key/value heads evenly")
    if window is not None:
        check_size("attention_config", "window", window)
    check_number("attention_config", "multiplier", multiplier)
    check_number("attention_config", "soft_cap", soft_cap)
    if type(causal) is not bool or window is not None and not causal:
        raise ValueError(f"attention_config: causal is {causal!r}, expected True or False, "
                         "and True where there is a window, which counts back from a query")
    check_record("attention_config: qk_norm", qk_norm, NormConfig, norm_config)
    check_record("attention_config: rotary", rotary, RotaryConfig, checked_rotary)
    if rotary is not None and 2 * len(rotary.frequencies) > d_head:
        raise ValueError(f"attention_config: {len(rotary.frequencies)} rotary pairs need "
                         f"{2 * len(rotary.frequencies)} channels, a head has {d_head}")
    return AttentionConfig(n_heads, n_kv_heads, d_head, causal, window,
                           multiplier, soft_cap, rotary, qk_norm)


BLOCK_FIELDS = ("placement", "attn_norm", "attention", "attn_post_norm",
                "mlp_norm", "d_mlp", "activation", "mlp_post_norm", "residual_multiplier")

# Where the norms of a block stand.  Any of them may be None, which is no norm.
PLACEMENT_NORMS = (
    ("pre_norm", ("attn_norm", "mlp_norm")),
    ("parallel", ("attn_norm", "mlp_norm")),
    ("sandwich", ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm")),
    ("output_norm", ("attn_post_norm", "mlp_post_norm")),
    ("post_norm", ("attn_post_norm", "mlp_post_norm")),
)


class BlockConfig(namedtuple("BlockConfig", BLOCK_FIELDS)):
    """One block: two sublayers and how they meet the stream.

    placement                        "pre_norm", "parallel", "sandwich", "output_norm" or
                                     "post_norm", see `blocks`
    attn_norm, mlp_norm              NormConfig of what a sublayer reads, or None
    attn_post_norm, mlp_post_norm    NormConfig of what it gives, or None
    attention                        AttentionConfig
    d_mlp                            channels between an MLP's matrices
    activation                       "relu", "gelu", "gelu_tanh" or "silu"
    residual_multiplier              a fixed number on both updates, or None; a learned one is
                                     a weight
    """

    FIELDS = BLOCK_FIELDS


def block_config(d_mlp, attention, placement="pre_norm", norm=LAYER_NORM,
                 activation="gelu_tanh", residual_multiplier=None):
    """A BlockConfig with one norm in every place that the placement has.

    norm is a NormConfig, LayerNorm with eps 1e-5 unless given, or None for no norm anywhere.

    >>> rms = norm_config("rms")
    >>> c = block_config(8, attention_config(2, 2), placement="output_norm", norm=rms)
    >>> c.attn_norm, c.attn_post_norm.kind
    (None, 'rms')
    """
    check_size("block_config", "d_mlp", d_mlp)
    check_number("block_config", "residual_multiplier", residual_multiplier)
    find_activation(activation)                     # raises for a name that is none
    check_record("block_config: attention", attention, AttentionConfig, attention_config)
    check_record("block_config: norm", norm, NormConfig, norm_config)
    if attention is None:
        raise TypeError("block_config: attention is None, expected an AttentionConfig")
    places = norms_of(placement)
    norms = [norm if place in places else None for place in norms_of("sandwich")]
    return BlockConfig(placement, norms[0], attention, norms[1],
                       norms[2], d_mlp, activation, norms[3], residual_multiplier)


def norms_of(placement):
    """The names of the norms that a placement has.

    >>> norms_of("post_norm")
    ('attn_post_norm', 'mlp_post_norm')
    """
    for name, places in PLACEMENT_NORMS:
        if name == placement:
            return places
    raise ValueError(f"no placement {placement!r}; there are "
                     + ", ".join([name for name, _ in PLACEMENT_NORMS]))


MODEL_FIELDS = ("d_model", "d_vocab", "n_ctx", "blocks", "embed_multiplier", "final_norm",
                "logit_multiplier", "logit_soft_cap")


class ModelConfig(namedtuple("ModelConfig", MODEL_FIELDS)):
    """A whole model.

    d_model, d_vocab    width of the stream, number of tokens
    n_ctx               the longest sequence
    blocks              BlockConfig of every block, in order
    embed_multiplier    a number on the token embedding, before a position is added; None for 1
    final_norm          NormConfig, or None
    logit_multiplier    a number on what the unembedding matrix gives, before its bias; None for 1
    logit_soft_cap      c in c * tanh(logit / c); None for none
    """

    FIELDS = MODEL_FIELDS


def model_config(d_model, d_vocab, n_ctx, n_layers, block, embed_multiplier=None,
                 final_norm=LAYER_NORM, logit_multiplier=None, logit_soft_cap=None):
    """A ModelConfig of n_layers equal blocks.  final_norm: as `norm` in block_config.

    >>> model_config(4, 10, 8, n_layers=0, block=None).final_norm.kind
    'layer'
    """
    for name, size in (("d_model", d_model), ("d_vocab", d_vocab), ("n_ctx", n_ctx)):
        check_size("model_config", name, size)
    for name, number in (("embed_multiplier", embed_multiplier),
                         ("logit_multiplier", logit_multiplier),
                         ("logit_soft_cap", logit_soft_cap)):
        check_number("model_config", name, number)
    if type(n_layers) is not int or n_layers < 0:
        raise ValueError(f"model_config: n_layers is {n_layers!r}, expected a whole number")
    check_record("model_config: final_norm", final_norm, NormConfig, norm_config)
    return ModelConfig(d_model, d_vocab, n_ctx, [block] * n_layers, embed_multiplier, final_norm,
                       logit_multiplier, logit_soft_cap)


def check_config(config):
    """Raise unless every part of a ModelConfig is what the functions here would make: for a config
    that was put together by hand, or read from a file.

    >>> config = model_config(4, 10, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
    >>> check_config(type(config)(4, 10, 8, ["no block"], None, None, None, None))
    Traceback (most recent call last):
    TypeError: check_config: blocks.0 is a str, expected a BlockConfig
    """
    model_config(config.d_model, config.d_vocab, config.n_ctx, 0, None, config.embed_multiplier,
                 config.final_norm, config.logit_multiplier, config.logit_soft_cap)
    for i, block in enumerate(config.blocks):
        if type(block) is not BlockConfig:
            raise TypeError(f"check_config: blocks.{i} is a {type(block).__name__}, "
                            "expected a BlockConfig")
        block_config(block.d_mlp, block.attention, block.placement, None, block.activation,
                     block.residual_multiplier)
        for place in norms_of("sandwich"):
            norm = getattr(block, place)
            check_record(f"check_config: blocks.{i}.{place}", norm, NormConfig, norm_config)
            if norm is not None and place not in norms_of(block.placement):
                raise ValueError(f"check_config: blocks.{i}: "
                                 f"a {block.placement} block has no {place}")
