"""Random models of every placement, for laws that must hold on all of them.

    float_models     pairs (label, Model): every placement, and every switch of a config somewhere
    exact_models     the same in Fractions, as triples (label, Model, edits that give the patterns)
    edits_of_all     an edit of every kind, for any of them
"""
import functools
from fractions import Fraction

from pyres import edits
from pyres.config import (RotaryConfig, attention_config, block_config, model_config, norm_config)
from pyres.model import make_model
from tests.laws import Draw, causal_pattern, model_weights

TOKENS = [2, 4, 2]
LAYER, RMS = norm_config("layer", 0.1), norm_config("rms", 0.01)
TURNS = RotaryConfig("half", [1.0])


def attention(**options):
    """Four query heads of width 2 that share two key/value heads."""
    return attention_config(4, 2, 2, **options)


# label, attention, the block's and the model's options, the weights' options
FLOAT = (
    ("pre_norm", attention(), {"norm": LAYER}, {"embed_multiplier": 1.5}, {}),
    ("pre_norm", attention(rotary=TURNS, qk_norm=RMS), {"norm": RMS, "activation": "silu"},
     {"final_norm": RMS, "logit_multiplier": 0.5}, {"gated": True, "gains": "head", "tied": True}),
    ("pre_norm", attention(qk_norm=LAYER, multiplier=0.3), {"norm": LAYER}, {"final_norm": None},
     {"gains": "whole", "biases": False, "positions": False}),
    ("parallel", attention(rotary=RotaryConfig("interleaved", [0.7])), {"norm": LAYER},
     {"logit_soft_cap": 3.0}, {"multipliers": True}),
    ("sandwich", attention(soft_cap=2.0, window=2), {"norm": RMS, "residual_multiplier": 0.4},
     {"final_norm": RMS, "logit_soft_cap": 5.0}, {"gated": True}),
    ("sandwich", attention(), {"norm": LAYER}, {}, {"multipliers": True}),
    ("output_norm", attention(qk_norm=RMS), {"norm": RMS}, {"final_norm": RMS},
     {"gains": "whole", "biases": False}),
    ("output_norm", attention(), {"norm": LAYER}, {}, {}),
    ("post_norm", attention(), {"norm": LAYER}, {"final_norm": None}, {"multipliers": True}),
    ("post_norm", attention(rotary=TURNS), {"norm": RMS, "residual_multiplier": 0.7}, {},
     {"gated": True}),
)


@functools.lru_cache(maxsize=None)
def float_models(seed):
    """Pairs (label, Model), d_model 6, two blocks."""
    return list(every_float_model(seed))


def every_float_model(seed):
    for i, (placement, attn, of_block, of_model, of_weights) in enumerate(FLOAT):
        block = block_config(5, attn, placement, **of_block)
        config = model_config(6, 5, 4, 2, block, **dict({"final_norm": LAYER}, **of_model))
        weights = model_weights(Draw(100 * seed + i), config, **of_weights)
        yield f"{i} {placement}", make_model(config, weights)


# norms that keep Fractions exact: none, given scales, and LayerNorm of two numbers, which are
# always one distance from their mean, so that no root is left
EXACT_NORMS = (("no norm", None), ("given layer", norm_config("layer", 0, 3)),
               ("given rms", norm_config("rms", 0, [2, 5, Fraction(1, 2)])),
               ("layer of two", norm_config("layer", 0)))


@functools.lru_cache(maxsize=None)
def exact_models(seed):
    """Triples (label, Model, edits), d_model 2, two blocks, two heads that share keys and values,
    relu."""
    return list(every_exact_model(seed))


def every_exact_model(seed):
    for placement in ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm"):
        for j, (label, norm) in enumerate(EXACT_NORMS):
            block = block_config(3, attention_config(2, 1, 1), placement, norm, "relu")
            config = model_config(2, 5, 4, 2, block, final_norm=norm, embed_multiplier=3,
                                  logit_multiplier=2)
            weights = model_weights(Draw(seed + j, Fraction), config, multipliers=True)
            patterns = [edits.set_pattern(f"L{i}.attn.H{h}", causal_pattern(
                Draw(10 * i + h, Fraction), 3)) for i in (0, 1) for h in (0, 1)]
            yield f"{placement}, {label}", make_model(config, weights), patterns


def edits_of_all(draw, d_model):
    """An edit of every kind, so that every writer of L1 can still be taken apart but L1.attn.H1,
    which has no source tokens at position 1."""
    return [edits.scale("embed", draw.number()), edits.scale("L0.attn.G0", draw.number()),
            edits.replace("L0.mlp", draw.tensor(3, d_model), positions=[2]),
            edits.shift("L1.attn.H1", draw.tensor(3, d_model), positions=[1]),
            edits.replace("L1.attn.H0.S0", draw.tensor(3, d_model), positions=[0, 2]),
            edits.scale("L1.attn.H0.S1", draw.number()), edits.scale("L1.attn.H0", draw.number()),
            edits.shift("L1.mlp.N1", draw.tensor(3, d_model)), edits.scale("L1.mlp.N2", 0),
            edits.scale("L1.attn", draw.number(), positions=[0, 1])]
