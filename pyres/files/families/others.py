"""Families with names and layouts of their own.

    gpt2, opt                       learned positions
    gptj, gpt_neox, falcon, phi     rotary positions; both sublayers read the stream at once
    OTHERS                          the six

A fused tensor holds queries, keys and values: one after the other (gpt2, falcon), or head by head
(gpt_neox).
"""
import re

from ...config import RotaryConfig, attention_config, block_config, model_config
from ...rotary import frequencies
from .rows import Family, Row, head_rows, linear_rows, norm_rows
from .values import ACTIVATION_NAMES, eps_norm, equal_heads, heads, rotary_config

__all__ = ["OTHERS"]

QKV = ["q", "k", "v"]


def gpt_sizes(fields):
    """(d_model, n_heads, n_layers) by the names of the first GPTs."""
    d_model, n_heads = fields.size("n_embd"), fields.size("n_head")
    fields.divides("n_head", n_heads, "n_embd", d_model)
    return d_model, n_heads, fields.layers("n_layer")


def sharing_a_norm(block):
    """A parallel block whose MLP reads what attention reads."""
    return block._replace(mlp_norm=None)


def rotary_model(fields, d_model, block, norm):
    """The ModelConfig of a family without a table of positions."""
    return model_config(d_model, fields.size("vocab_size"),
                        fields.size("max_position_embeddings", 2048, bounded=False),
                        fields.layers("num_hidden_layers"), block, final_norm=norm)


# ---- gpt2 ----

def gpt2_config(fields):
    """LayerNorm before each sublayer, learned positions, biases everywhere."""
    (d_model, n_heads, n_layers), n_ctx = gpt_sizes(fields), fields.size("n_positions")
    for key, meant, value in (("hidden_size", "n_embd", d_model),
                              ("num_attention_heads", "n_head", n_heads),
                              ("num_hidden_layers", "n_layer", n_layers),
                              ("n_ctx", "n_positions", n_ctx),
                              ("max_position_embeddings", "n_positions", n_ctx)):
        fields.alias(key, meant, value)
    norm = eps_norm(fields, "layer", "layer_norm_epsilon", 1e-5)
    block = block_config(
        fields.size("n_inner", 4 * d_model), attention_config(n_heads, d_model // n_heads),
        norm=norm, activation=fields.one_of("activation_function", ACTIVATION_NAMES, "gelu_new"))
    return model_config(d_model, fields.size("vocab_size"), n_ctx,
                        n_layers, block, final_norm=norm)


def gpt2_rows(fields, config):
    """Every matrix is a Conv1D, and turned over."""
    rows = [Row("wte.weight", "rows", ["w_embed"]), Row("wpe.weight", "rows", ["w_pos"])]
    for i in range(len(config.blocks)):
        h, b = f"h.{i}.", f"blocks.{i}."
        rows += norm_rows(h + "ln_1", b + "attn_norm")
        rows += linear_rows(h + "attn.c_attn", b + "attn", QKV, True, "columns")
        rows += linear_rows(h + "attn.c_proj", b + "attn", ["o"], True, "columns")
        rows += norm_rows(h + "ln_2", b + "mlp_norm")
        rows += linear_rows(h + "mlp.c_fc", b + "mlp", ["up"], True, "columns")
        rows += linear_rows(h + "mlp.c_proj", b + "mlp", ["down"], True, "columns")
    return rows + norm_rows("ln_f", "final_norm") + head_rows(fields, tied=True)


# ---- opt ----

def opt_config(fields):
    """As GPT-2, with relu.  Its eps is nowhere in the config."""
    d_model = fields.size("hidden_size")
    fields.alias("word_embed_proj_dim", "hidden_size", d_model)
    block = block_config(
        fields.size("ffn_dim"), attention_config(*equal_heads(fields, d_model)),
        activation=fields.one_of("activation_function", ACTIVATION_NAMES, "relu"))
    return model_config(d_model, fields.size("vocab_size"), fields.size("max_position_embeddings"),
                        fields.layers("num_hidden_layers"), block)


def opt_rows(fields, config):
    """Position 0 is row 2 of its table."""
    rows = [Row("decoder.embed_tokens.weight", "rows", ["w_embed"]),
            Row("decoder.embed_positions.weight", "rows", ["w_pos"], unused=2)]
    has_bias = fields.flag("enable_bias", True)
    for i in range(len(config.blocks)):
        layer, b = f"decoder.layers.{i}.", f"blocks.{i}."
        rows += norm_rows(layer + "self_attn_layer_norm", b + "attn_norm")
        for letter, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
            rows += linear_rows(layer + "self_attn." + name, b + "attn", [letter], has_bias)
        rows += norm_rows(layer + "final_layer_norm", b + "mlp_norm")
        rows += linear_rows(layer + "fc1", b + "mlp", ["up"], has_bias)
        rows += linear_rows(layer + "fc2", b + "mlp", ["down"], has_bias)
    return rows + norm_rows("decoder.final_layer_norm", "final_norm") + head_rows(fields, True)


# ---- gptj ----

def gptj_config(fields):
    """Parallel with one LayerNorm; a part of each head turns, by neighbours."""
    d_model, n_heads, n_layers = gpt_sizes(fields)
    if fields.is_null("rotary_dim"):
        fields.refuse("rotary_dim", None, "a size")
    rotary = RotaryConfig("interleaved", frequencies(fields.size("rotary_dim", 64), 10000.0))
    norm = eps_norm(fields, "layer", "layer_norm_epsilon", 1e-5)
    block = block_config(
        fields.size("n_inner", 4 * d_model),
        attention_config(n_heads, d_model // n_heads, rotary=rotary), "parallel", norm,
        fields.one_of("activation_function", ACTIVATION_NAMES, "gelu_new"))
    return model_config(d_model, fields.size("vocab_size"),
                        fields.size("n_positions", 2048, bounded=False), n_layers,
                        sharing_a_norm(block), final_norm=norm)


def gptj_rows(fields, config):
    """The MLP and the unembedding have biases, attention has none."""
    rows = [Row("wte.weight", "rows", ["w_embed"])]
    for i in range(len(config.blocks)):
        h, b = f"h.{i}.", f"blocks.{i}."
        rows += norm_rows(h + "ln_1", b + "attn_norm")
        for letter, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
            rows += linear_rows(h + "attn." + name, b + "attn", [letter], has_bias=False)
        rows += linear_rows(h + "mlp.fc_in", b + "mlp", ["up"], has_bias=True)
        rows += linear_rows(h + "mlp.fc_out", b + "mlp", ["down"], has_bias=True)
    return rows + norm_rows("ln_f", "final_norm") + head_rows(fields, False, has_bias=True)


# ---- gpt_neox ----

def gpt_neox_config(fields):
    """Parallel, each sublayer with a LayerNorm of its own; or before each, one after the other."""
    d_model = fields.size("hidden_size")
    n_heads, d_head = equal_heads(fields, d_model)
    rotary = rotary_config(fields, d_head, share=0.25, older=("rotary_emb_base", "rotary_pct"))
    norm = eps_norm(fields, "layer", "layer_norm_eps", 1e-5)
    parallel = fields.flag("use_parallel_residual", True)
    block = block_config(
        fields.size("intermediate_size"), attention_config(n_heads, d_head, rotary=rotary),
        "parallel" if parallel else "pre_norm", norm,
        fields.one_of("hidden_act", ACTIVATION_NAMES, "gelu"))
    return rotary_model(fields, d_model, block, norm)


def gpt_neox_rows(fields, config):
    """Queries, keys and values take turns, a head at a time."""
    rows = [Row("embed_in.weight", "rows", ["w_embed"])]
    has_bias = fields.flag("attention_bias", True)
    for i, block in enumerate(config.blocks):
        layer, b = f"layers.{i}.", f"blocks.{i}."
        rows += norm_rows(layer + "input_layernorm", b + "attn_norm")
        rows += norm_rows(layer + "post_attention_layernorm", b + "mlp_norm")
        rows += linear_rows(layer + "attention.query_key_value", b + "attn", QKV, has_bias,
                            group=block.attention.d_head)
        rows += linear_rows(layer + "attention.dense", b + "attn", ["o"], has_bias)
        rows += linear_rows(layer + "mlp.dense_h_to_4h", b + "mlp", ["up"], has_bias=True)
        rows += linear_rows(layer + "mlp.dense_4h_to_h", b + "mlp", ["down"], has_bias=True)
    return rows + norm_rows("final_layer_norm", "final_norm") + head_rows(
        fields, False, "embed_out")


# ---- falcon ----

def falcon_config(fields):
    """Parallel with one LayerNorm; all query heads share one key and one value head.  What older
    and newer Falcons do instead is refused."""
    d_model = fields.size("hidden_size")
    n_heads, d_head = equal_heads(fields, d_model)
    fields.must_be("multi_query", True)
    fields.must_be("parallel_attn", True)
    norm = eps_norm(fields, "layer", "layer_norm_epsilon", 1e-5)
    block = block_config(
        fields.size("ffn_hidden_size", 4 * d_model),
        attention_config(n_heads, d_head, 1, rotary=rotary_config(fields, d_head)), "parallel",
        norm, fields.one_of("activation", ACTIVATION_NAMES, "gelu"))
    return rotary_model(fields, d_model, sharing_a_norm(block), norm)


def falcon_rows(fields, config):
    """All query heads, then the key head, then the value head."""
    rows = [Row("word_embeddings.weight", "rows", ["w_embed"])]
    has_bias = fields.flag("bias", False)
    for i in range(len(config.blocks)):
        h, b = f"h.{i}.", f"blocks.{i}."
        rows += norm_rows(h + "input_layernorm", b + "attn_norm")
        rows += linear_rows(h + "self_attention.query_key_value", b + "attn", QKV, has_bias)
        rows += linear_rows(h + "self_attention.dense", b + "attn", ["o"], has_bias)
        rows += linear_rows(h + "mlp.dense_h_to_4h", b + "mlp", ["up"], has_bias)
        rows += linear_rows(h + "mlp.dense_4h_to_h", b + "mlp", ["down"], has_bias)
    return rows + norm_rows("ln_f", "final_norm") + head_rows(fields, tied=True)


# ---- phi ----

def phi_config(fields):
    """Parallel with one LayerNorm; a part of each head turns, by halves."""
    d_model = fields.size("hidden_size")
    n_heads, n_kv_heads, d_head = heads(fields, d_model)
    rotary = rotary_config(fields, d_head, share=0.5)
    norm = eps_norm(fields, "layer", "layer_norm_eps", 1e-5)
    block = block_config(
        fields.size("intermediate_size"),
        attention_config(n_heads, d_head, n_kv_heads, rotary=rotary), "parallel", norm,
        fields.one_of("hidden_act", ACTIVATION_NAMES, "gelu_new"))
    return rotary_model(fields, d_model, sharing_a_norm(block), norm)


def phi_rows(fields, config):
    """Biases everywhere, the unembedding's among them."""
    rows = [Row("embed_tokens.weight", "rows", ["w_embed"])]
    for i in range(len(config.blocks)):
        layer, b = f"layers.{i}.", f"blocks.{i}."
        rows += norm_rows(layer + "input_layernorm", b + "attn_norm")
        for letter, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "dense")):
            rows += linear_rows(layer + "self_attn." + name, b + "attn", [letter], has_bias=True)
        rows += linear_rows(layer + "mlp.fc1", b + "mlp", ["up"], has_bias=True)
        rows += linear_rows(layer + "mlp.fc2", b + "mlp", ["down"], has_bias=True)
    return rows + norm_rows("final_layernorm", "final_norm") + head_rows(fields, False,
                                                                        has_bias=True)


# ---- the table ----

# GPT-2's h.0.attn.bias is its causal mask; h.0.attn.c_attn.bias is a weight.
OTHERS = (
    Family("gpt2", gpt2_config, gpt2_rows, "transformer.",
           re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")),
    Family("opt", opt_config, opt_rows, "model.", re.compile(r"(?!)")),
    Family("gptj", gptj_config, gptj_rows, "transformer.",
           re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")),
    Family("gpt_neox", gpt_neox_config, gpt_neox_rows, "gpt_neox.",
           re.compile(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"),
           head="embed_out"),
    Family("falcon", falcon_config, falcon_rows, "transformer.",
           re.compile(r"h\.\d+\.self_attention\.(maybe_rotary|rotary|rotary_emb)\.inv_freq")),
    Family("phi", phi_config, phi_rows, "model.",
           re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")),
)
