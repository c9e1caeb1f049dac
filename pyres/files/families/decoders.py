"""Llama and the families that write their files as Llama does: one scheme of names.

    embed_tokens   layers.0.self_attn.q_proj (k, v, o)   layers.0.mlp.gate_proj (up, down)   norm

and norms in each block, whose names say where they stand in one family and mislead in another.
MLPs are gated, key/value heads may be fewer, positions are rotary.

    decoder_config, decoder_rows    what they share
    DECODERS                        llama, mistral, qwen2, qwen3, granite, gemma, gemma2, olmo2,
                                    cohere

>>> from ..fields import Fields
>>> fields = Fields({"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12,
...                  "num_hidden_layers": 1, "vocab_size": 5, "hidden_act": "silu"}, "config.json")
>>> config = olmo2_config(fields)
>>> config.blocks[0].placement, [row.tensor for row in olmo2_rows(fields, config)][1:3]
('output_norm', ['layers.0.post_attention_layernorm.weight', \
'layers.0.post_feedforward_layernorm.weight'])
"""
import math
import re

from ...config import attention_config, block_config, model_config
from ..fields import REQUIRED
from .rows import Family, Row, head_rows, linear_rows, norm_rows
from .values import ACTIVATION_NAMES, cap, eps_norm, heads, rotary_config, sliding_window, windows

__all__ = ["decoder_config", "decoder_rows", "DECODERS"]


# ---- what they share ----

NOTHING_MORE = {}


def decoder_config(fields, norm, placement="pre_norm", activation=None, d_head=None,
                   attention=NOTHING_MORE, rotary=NOTHING_MORE, window=None, slides=None,
                   residual_multiplier=None, **of_model):
    """The ModelConfig of a Llama, but for what is given.

    activation, d_head            what its key says; what an absent head_dim means
    attention, rotary             more for attention_config; more for rotary_config
    window, slides                as in values.windows
    residual_multiplier           a BlockConfig's
    of_model                      more for model_config
    """
    d_model, n_layers = fields.size("hidden_size"), fields.layers("num_hidden_layers")
    n_heads, n_kv_heads, d_head = heads(fields, d_model, d_head)
    if activation is None:
        activation = fields.one_of("hidden_act", ACTIVATION_NAMES, "silu")
    turns, d_mlp = rotary_config(fields, d_head, **rotary), fields.size("intermediate_size")
    blocks = [block_config(d_mlp, attention_config(n_heads, d_head, n_kv_heads, window=size,
                                                   rotary=turns, **attention),
                           placement, norm, activation, residual_multiplier)
              for size in windows(fields, n_layers, window, slides)]
    config = model_config(d_model, fields.size("vocab_size"),
                          fields.size("max_position_embeddings", 2048, bounded=False), 0, None,
                          final_norm=norm, **of_model)
    return config._replace(blocks=blocks)


PRE_NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "mlp_norm"))


def decoder_rows(fields, config, norms=PRE_NORMS, biased="", mlp_bias=False, q_norm=None, added=0,
                 tied=False):
    """The rows of a Llama file, but for what is given.

    norms       pairs (name, place) of a block's norms
    biased      of which of "qkvo" there is a bias
    mlp_bias    whether the MLP's matrices have biases
    q_norm      None; or which shape the gains of q_norm and k_norm have, see Row.fit
    added       what the loader adds to gains
    tied        what an absent tie_word_embeddings means
    """
    rows = [Row("embed_tokens.weight", "rows", ["w_embed"])]
    for i in range(len(config.blocks)):
        layer, b = f"layers.{i}.", f"blocks.{i}."
        for name, place in norms:
            rows += norm_rows(layer + name, b + place, has_bias=False, added=added)
        for letter in "qkvo":
            rows += linear_rows(layer + f"self_attn.{letter}_proj", b + "attn", [letter],
                                letter in biased)
        if q_norm is not None:
            rows += [Row(layer + f"self_attn.{letter}_norm.weight", "rows",
                         [b + f"attn.{letter}_gain"], fit=q_norm) for letter in "qk"]
        for part in ("gate", "up", "down"):
            rows += linear_rows(layer + f"mlp.{part}_proj", b + "mlp", [part], mlp_bias)
    return rows + norm_rows("norm", "final_norm", has_bias=False, added=added) + head_rows(
        fields, tied)


def with_bias(fields):
    """Which of "qkvo" have a bias: all where attention_bias is true, else none."""
    return "qkvo" if fields.flag("attention_bias", False) else ""


# ---- llama, mistral, qwen2, qwen3, granite: RMSNorm before each sublayer ----

def llama_config(fields):
    """The plain one."""
    return decoder_config(fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6))


def llama_rows(fields, config):
    """Biases everywhere, or nowhere."""
    return decoder_rows(fields, config, biased=with_bias(fields),
                        mlp_bias=fields.flag("mlp_bias", False))


def mistral_config(fields):
    """Every block has a window, unless sliding_window is null."""
    fields.must_be("layer_types", None)
    size = sliding_window(fields, 4096)
    return decoder_config(fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6),
                          window=size, slides=lambda i: size is not None)


def mistral_rows(fields, config):
    """No bias anywhere."""
    return decoder_rows(fields, config)


def qwen_windows(fields):
    """Blocks from max_window_layers on have a window, if use_sliding_window is true."""
    size, first = sliding_window(fields, 4096), fields.number("max_window_layers", 28.0)
    if not fields.flag("use_sliding_window", False):
        size = None
    return {"window": size, "slides": lambda i: size is not None and i >= first}


def qwen2_config(fields):
    """As Llama, with windows that are seldom used."""
    return decoder_config(fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6),
                          **qwen_windows(fields))


def qwen2_rows(fields, config):
    """Queries, keys and values have biases, the output has none."""
    return decoder_rows(fields, config, biased="qkv")


def qwen3_config(fields):
    """Queries and keys are normed, each head by itself."""
    norm = eps_norm(fields, "rms", "rms_norm_eps", 1e-6)
    return decoder_config(fields, norm, d_head=128, attention={"qk_norm": norm},
                          **qwen_windows(fields))


def qwen3_rows(fields, config):
    """With q_norm and k_norm of d_head."""
    return decoder_rows(fields, config, biased=with_bias(fields), q_norm=0)


def granite_config(fields):
    """Llama with a multiplier in four places; it replaces attention's 1 / sqrt(d_head)."""
    return decoder_config(
        fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6),
        attention={"multiplier": fields.number("attention_multiplier", 1.0)},
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        embed_multiplier=fields.number("embedding_multiplier", 1.0),
        logit_multiplier=1 / fields.number("logits_scaling", 1.0, positive=True))


granite_rows = llama_rows


# ---- gemma, gemma2: gains are stored less 1, embeddings grow by sqrt(d_model) ----

def gemma_activation(fields):
    """hidden_activation; where it is null or absent, hidden_act.  The first files say gelu there
    and mean the tanh form; versions of transformers read it either way, so it is refused.
    """
    older = fields.one_of("hidden_act", ACTIVATION_NAMES, "gelu_pytorch_tanh")
    if fields.get("hidden_activation", None) is not None:
        return fields.one_of("hidden_activation", ACTIVATION_NAMES, REQUIRED)
    if older == "gelu":
        fields.refuse("hidden_act", "gelu", "gelu_pytorch_tanh, or hidden_activation beside it, "
                      "for transformers has read this one either way")
    return older


def gemma_config(fields):
    """RMSNorm before each sublayer."""
    return decoder_config(fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6),
                          activation=gemma_activation(fields), d_head=256,
                          embed_multiplier=math.sqrt(fields.size("hidden_size")))


def gemma_rows(fields, config):
    """Gains less 1, a tied table."""
    return decoder_rows(fields, config, biased=with_bias(fields), added=1, tied=True)


def gemma2_config(fields):
    """Norms on both sides of each sublayer, soft caps, a window in every other block."""
    scalar = fields.number("query_pre_attn_scalar", 256.0, positive=True)
    return decoder_config(
        fields, eps_norm(fields, "rms", "rms_norm_eps", 1e-6), "sandwich",
        activation=fields.one_of("hidden_activation", ACTIVATION_NAMES, "gelu_pytorch_tanh"),
        d_head=256, window=sliding_window(fields, 4096), slides=lambda i: i % 2 == 0,
        attention={"multiplier": scalar ** -0.5,
                   "soft_cap": cap(fields, "attn_logit_softcapping", 50.0)},
        embed_multiplier=math.sqrt(fields.size("hidden_size")),
        logit_soft_cap=cap(fields, "final_logit_softcapping", 30.0))


GEMMA2_NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "attn_post_norm"),
                ("pre_feedforward_layernorm", "mlp_norm"),
                ("post_feedforward_layernorm", "mlp_post_norm"))


def gemma2_rows(fields, config):
    """post_attention_layernorm stands behind attention; in Llama it stands before the MLP."""
    return decoder_rows(fields, config, GEMMA2_NORMS, with_bias(fields), added=1, tied=True)


# ---- olmo2: RMSNorm behind each sublayer ----

def olmo2_config(fields):
    """Sublayers read the bare stream; queries and keys are normed, all heads together."""
    norm = eps_norm(fields, "rms", "rms_norm_eps", 1e-5)
    return decoder_config(fields, norm, "output_norm", attention={"qk_norm": norm})


OLMO2_NORMS = (("post_attention_layernorm", "attn_post_norm"),
               ("post_feedforward_layernorm", "mlp_post_norm"))


def olmo2_rows(fields, config):
    """With q_norm and k_norm of all heads."""
    return decoder_rows(fields, config, OLMO2_NORMS, with_bias(fields), q_norm=1)


# ---- cohere: LayerNorm without bias, both sublayers read it ----

def cohere_config(fields):
    """Parallel, rotary by neighbours.  What an absent rope_theta means changed with transformers
    5, so it must be there."""
    config = decoder_config(
        fields, eps_norm(fields, "layer", "layer_norm_eps", 1e-5), "parallel",
        rotary={"pairing": "interleaved", "theta": REQUIRED},
        logit_multiplier=fields.number("logit_scale", 0.0625))
    return config._replace(blocks=[block._replace(mlp_norm=None) for block in config.blocks])


COHERE_NORMS = (("input_layernorm", "attn_norm"),)


def cohere_rows(fields, config):
    """One norm a block, a tied table."""
    return decoder_rows(fields, config, COHERE_NORMS, with_bias(fields), tied=True)


# ---- the table ----

ROTARY_BUFFERS = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
DECODERS = tuple([Family(name, read, rows, "model.", ROTARY_BUFFERS) for name, read, rows in (
    ("llama", llama_config, llama_rows),
    ("mistral", mistral_config, mistral_rows),
    ("qwen2", qwen2_config, qwen2_rows),
    ("qwen3", qwen3_config, qwen3_rows),
    ("granite", granite_config, granite_rows),
    ("gemma", gemma_config, gemma_rows),
    ("gemma2", gemma2_config, gemma2_rows),
    ("olmo2", olmo2_config, olmo2_rows),
    ("cohere", cohere_config, cohere_rows),
)])
