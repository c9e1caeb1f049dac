"""Weights as records: what a model has learned, and nothing else.

A record's leaves are tensors: a matrix `w[d_out][d_in]` with its outputs as rows, a vector, or (a
learned residual multiplier) a number.  An absent weight is None, and that is the only switch: no
bias, no gate, no q/k norm, a tied unembedding are a None.  Gradients come back in the same
records.

    NormWeights, AttentionWeights, MLPWeights, BlockWeights, ModelWeights
                           the records
    leaves                 every tensor with its name
    map_leaves             the same structure with a function of every tensor
    weights_from_leaves    the way back, to the records
    leaf_shapes            the shape that a config asks of every leaf
    check_weights          refuses weights that do not fit a config, by name
    random_weights         seeded, the same bits everywhere

>>> w = NormWeights(gain=[1, 2], bias=None)
>>> leaves(w)
[('gain', [1, 2])]
>>> map_leaves(lambda t: [10 * a for a in t], w)
NormWeights(gain=[10, 20], bias=None)
"""
from collections import namedtuple

from .config import norms_of
from .linalg import shape
from .rng import Generator, normal_tensor
from .scalar import sqrt

__all__ = ["NormWeights", "AttentionWeights", "MLPWeights", "BlockWeights", "ModelWeights",
           "leaves", "map_leaves", "weights_from_leaves", "leaf_shapes", "check_weights",
           "random_weights"]


NORM_FIELDS = ("gain", "bias")
ATTENTION_FIELDS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "q_gain", "k_gain")
MLP_FIELDS = ("w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")
BLOCK_FIELDS = ("attn_norm", "attn", "attn_post_norm", "attn_multiplier",
                "mlp_norm", "mlp", "mlp_post_norm", "mlp_multiplier")
MODEL_FIELDS = ("w_embed", "w_pos", "blocks", "final_norm", "w_unembed", "b_unembed")


class NormWeights(namedtuple("NormWeights", NORM_FIELDS)):
    """gain [d_model] and bias [d_model], either or both None.  The gain is what multiplies: a
    checkpoint that stores gain - 1 is read with the 1 added.
    """

    FIELDS = NORM_FIELDS


class AttentionWeights(namedtuple("AttentionWeights", ATTENTION_FIELDS)):
    """One attention sublayer, H = n_heads, K = n_kv_heads, h = d_head:

    w_q [H*h][d_model], w_k and w_v [K*h][d_model], w_o [d_model][H*h]
    b_q [H*h], b_k and b_v [K*h], b_o [d_model]; None for none
    q_gain, k_gain    gains of the norms on queries and keys, before rotary: [h] norms every head
                      by itself, [H*h] and [K*h] the whole vector; None for none
    """

    FIELDS = ATTENTION_FIELDS


class MLPWeights(namedtuple("MLPWeights", MLP_FIELDS)):
    """One MLP: w_up [d_mlp][d_model], w_down [d_model][d_mlp], and w_gate [d_mlp][d_model] where
    it is gated; b_gate, b_up [d_mlp], b_down [d_model] or None.
    """

    FIELDS = MLP_FIELDS


class BlockWeights(namedtuple("BlockWeights", BLOCK_FIELDS)):
    """One block: attn AttentionWeights, mlp MLPWeights, four norms NormWeights or None (see
    `config`), and attn_multiplier, mlp_multiplier: a learned number (ReZero), a vector [d_model]
    (LayerScale), or None.
    """

    FIELDS = BLOCK_FIELDS


class ModelWeights(namedtuple("ModelWeights", MODEL_FIELDS)):
    """w_embed [d_vocab][d_model]; w_pos [n_ctx][d_model] or None; blocks, a list of BlockWeights;
    final_norm NormWeights or None; w_unembed [d_vocab][d_model], None where it is tied to w_embed;
    b_unembed [d_vocab] or None.
    """

    FIELDS = MODEL_FIELDS


# ---- walking ----

def is_record(w):
    """Whether w is one of the records, and not a tensor."""
    return hasattr(w, "FIELDS")


def leaves(w, name=""):
    """The tensors that a record has, as pairs (name, tensor), in the order of its fields.

    >>> w = BlockWeights(NormWeights([1], None), None, None, 0.5, None, None, None, None)
    >>> leaves(w)
    [('attn_norm.gain', [1]), ('attn_multiplier', 0.5)]
    """
    if w is None:
        return []
    if is_record(w):
        return [leaf for field in w.FIELDS
                for leaf in leaves(getattr(w, field), f"{name}.{field}" if name else field)]
    if type(w) is list and w and is_record(w[0]):
        return [leaf for i, part in enumerate(w) for leaf in leaves(part, f"{name}.{i}")]
    return [] if w == [] and name == "blocks" else [(name, w)]


def map_leaves(f, w, *others):
    """The structure of w with f(tensor, tensors of others at the same place) for every tensor.

    >>> plus = lambda a, b: [x + y for x, y in zip(a, b)]
    >>> map_leaves(plus, NormWeights([1], [2]), NormWeights([3], [4]))
    NormWeights(gain=[4], bias=[6])
    """
    if w is None:
        return None
    if is_record(w):
        return type(w)(*[map_leaves(f, *parts) for parts in zip(w, *others)])
    if type(w) is list and (not w or is_record(w[0])):
        return [map_leaves(f, part, *[o[i] for o in others]) for i, part in enumerate(w)]
    return f(w, *others)


def weights_from_leaves(config, found):
    """A ModelWeights from a dict of leaves by name; what is absent is None.

    >>> from pyres.config import model_config
    >>> config = model_config(2, 1, 4, 0, None)
    >>> weights_from_leaves(config, {"w_embed": [[1, 2]], "final_norm.gain": [1, 1]}).final_norm
    NormWeights(gain=[1, 1], bias=None)
    """
    def record(kind, name):
        return kind(*[found.get(f"{name}.{field}") for field in kind.FIELDS])

    def norm(norm_config, name):
        return None if norm_config is None else record(NormWeights, name)

    def block(i, c):
        at = f"blocks.{i}."
        return BlockWeights(
            norm(c.attn_norm, at + "attn_norm"), record(AttentionWeights, at + "attn"),
            norm(c.attn_post_norm, at + "attn_post_norm"), found.get(at + "attn_multiplier"),
            norm(c.mlp_norm, at + "mlp_norm"), record(MLPWeights, at + "mlp"),
            norm(c.mlp_post_norm, at + "mlp_post_norm"), found.get(at + "mlp_multiplier"))

    return ModelWeights(
        found.get("w_embed"), found.get("w_pos"),
        [block(i, c) for i, c in enumerate(config.blocks)], norm(config.final_norm, "final_norm"),
        found.get("w_unembed"), found.get("b_unembed"))


# ---- shapes ----

def leaf_shapes(config):
    """The shape that a ModelConfig asks of every leaf, as pairs (name, shapes): a tuple of the
    shapes that fit, whether or not the leaf is there.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> config = model_config(4, 10, 8, 1, block_config(6, attention_config(n_heads=2, d_head=3)))
    >>> dict(leaf_shapes(config))["blocks.0.attn.w_q"]
    ((6, 4),)
    """
    d, v = config.d_model, config.d_vocab
    shapes = [("w_embed", ((v, d),)), ("w_pos", ((config.n_ctx, d),)),
              ("final_norm.gain", ((d,),)), ("final_norm.bias", ((d,),)),
              ("w_unembed", ((v, d),)), ("b_unembed", ((v,),))]
    for i, block in enumerate(config.blocks):
        shapes += [(f"blocks.{i}.{name}", fits) for name, fits in block_shapes(d, block)]
    return shapes


def block_shapes(d_model, block):
    """As leaf_shapes, for one block."""
    a, d, f = block.attention, d_model, block.d_mlp
    q, k = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    shapes = [("attn.w_q", ((q, d),)), ("attn.w_k", ((k, d),)), ("attn.w_v", ((k, d),)),
              ("attn.w_o", ((d, q),)), ("attn.b_q", ((q,),)), ("attn.b_k", ((k,),)),
              ("attn.b_v", ((k,),)), ("attn.b_o", ((d,),)),
              ("attn.q_gain", ((a.d_head,), (q,))), ("attn.k_gain", ((a.d_head,), (k,))),
              ("attn_multiplier", ((), (d,))),
              ("mlp.w_gate", ((f, d),)), ("mlp.w_up", ((f, d),)), ("mlp.w_down", ((d, f),)),
              ("mlp.b_gate", ((f,),)), ("mlp.b_up", ((f,),)), ("mlp.b_down", ((d,),)),
              ("mlp_multiplier", ((), (d,)))]
    for norm in norms_of(block.placement):
        shapes += [(f"{norm}.gain", ((d,),)), (f"{norm}.bias", ((d,),))]
    return shapes


def check_weights(config, weights):
    """Raise unless the weights fit the config: ValueError for a missing tensor, one that does not
    belong, or a wrong shape, by name; TypeError for a bool or a string among the numbers.

    >>> from pyres.config import model_config
    >>> config = model_config(d_model=2, d_vocab=3, n_ctx=8, n_layers=0, block=None,
    ...                       final_norm=None)
    >>> check_weights(config, ModelWeights([[1, 2], [3, 4]], None, [], None, None, None))
    Traceback (most recent call last):
    ValueError: check_weights: w_embed has shape (2, 2), the config asks for (3, 2)
    """
    if len(weights.blocks) != len(config.blocks):
        raise ValueError(f"check_weights: {len(weights.blocks)} blocks of weights, the config has "
                         f"{len(config.blocks)}")
    check_norm("final_norm", config.final_norm, weights.final_norm)
    for i, (block, w) in enumerate(zip(config.blocks, weights.blocks)):
        check_block(f"blocks.{i}", block, w)
    if weights.w_embed is None:
        raise ValueError("check_weights: w_embed is missing")
    fits = dict(leaf_shapes(config))
    for name, tensor in leaves(weights):
        if name not in fits:
            raise ValueError(f"check_weights: {name} has no place in this config")
        check_leaf(name, tensor, fits[name])


def check_block(name, block, w):
    """Raise ValueError where a block lacks a matrix, or disagrees with its config on a norm."""
    for branch, required in (("attn", ("w_q", "w_k", "w_v", "w_o")), ("mlp", ("w_up", "w_down"))):
        for field in required:
            if getattr(w, branch) is None or getattr(getattr(w, branch), field) is None:
                raise ValueError(f"check_weights: {name}.{branch}.{field} is missing")
    if w.mlp.b_gate is not None and w.mlp.w_gate is None:
        raise ValueError(f"check_weights: {name}.mlp.b_gate is there without w_gate")
    gains = w.attn.q_gain is not None or w.attn.k_gain is not None
    if gains and block.attention.qk_norm is None:
        raise ValueError(f"check_weights: {name}.attn has q_gain or k_gain, its config no qk_norm")
    for place in norms_of("sandwich"):
        check_norm(f"{name}.{place}", getattr(block, place), getattr(w, place))


def check_norm(name, config, w):
    """Raise ValueError unless config and weights agree on a norm's presence and kind."""
    if (config is None) != (w is None):
        there, absent = ("weights", "config") if config is None else ("config", "weights")
        raise ValueError(f"check_weights: {name} is in the {there} and not in the {absent}")
    if w is not None and config.kind == "rms" and w.bias is not None:
        raise ValueError(f"check_weights: {name} is an RMSNorm, which has no bias")


def check_leaf(name, tensor, fits):
    """Raise unless the tensor holds numbers alone and has one of the shapes that fit."""
    try:
        found = shape(tensor)
    except (TypeError, ValueError) as error:
        raise type(error)(f"check_weights: {name}: {error}")
    if found not in fits:
        wanted = " or ".join([str(fit) for fit in fits])
        raise ValueError(f"check_weights: {name} has shape {found}, the config asks for {wanted}")


# ---- random ----

def random_weights(config, seed=0, std=0.02, biases=True, gated=False, tied=True, positions=True):
    """Weights to begin training from: matrices of normal draws times std, gains 1, biases 0.

    The two matrices that write to the stream (w_o, w_down) are drawn smaller by
    sqrt(2 * n_layers), so that the stream's length at the end does not grow with depth (Radford
    et al., "Language models are unsupervised multitask learners", 2019).  The bits are the same
    on every Python.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> config = model_config(4, 5, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
    >>> w = random_weights(config, seed=1)
    >>> len(w.w_embed), w.blocks[0].attn_norm.gain, w.blocks[0].mlp.b_down, w.w_unembed is None
    (5, [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], True)
    """
    generator = Generator(seed)
    fits = dict(leaf_shapes(config))
    writing = std / sqrt(2.0 * max(len(config.blocks), 1))

    def matrix(name, scale=std):
        return normal_tensor(generator, fits[name][0], scale)

    def bias(name):
        return [0.0] * fits[name][0][0] if biases else None

    def norm(norm_config):
        if norm_config is None:
            return None
        has_bias = biases and norm_config.kind == "layer"
        return NormWeights([1.0] * config.d_model, [0.0] * config.d_model if has_bias else None)

    def block(i, c):
        at = f"blocks.{i}."
        attn = AttentionWeights(
            matrix(at + "attn.w_q"), matrix(at + "attn.w_k"), matrix(at + "attn.w_v"),
            matrix(at + "attn.w_o", writing), bias(at + "attn.b_q"), bias(at + "attn.b_k"),
            bias(at + "attn.b_v"), bias(at + "attn.b_o"), None, None)
        mlp = MLPWeights(
            matrix(at + "mlp.w_gate") if gated else None, matrix(at + "mlp.w_up"),
            matrix(at + "mlp.w_down", writing), bias(at + "mlp.b_gate") if gated else None,
            bias(at + "mlp.b_up"), bias(at + "mlp.b_down"))
        return BlockWeights(norm(c.attn_norm), attn, norm(c.attn_post_norm), None,
                            norm(c.mlp_norm), mlp, norm(c.mlp_post_norm), None)

    return ModelWeights(
        matrix("w_embed"), matrix("w_pos") if positions else None,
        [block(i, c) for i, c in enumerate(config.blocks)], norm(config.final_norm),
        None if tied else matrix("w_unembed"), None)
