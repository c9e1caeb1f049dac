"""What Hugging Face checkpoints mean: one description for each family of models.

A description says how to read config.json (`config`), and which file tensor holds which weights
(`tensors`).  It is data for the loader; nothing here is asked by the mathematics.

    Row        one tensor of a file: its name, its layout, the leaves it holds
    Family     model_type, config, tensors, the prefix its names may have, the names of its buffers
    FAMILIES   gpt2, llama

Layouts: "rows" has outputs as rows, `[d_out][d_in]`, as pyres has; "columns" is GPT-2's Conv1D,
`[d_in][d_out]`, and is turned over.  Several leaves in one tensor stand one after the other along
the outputs.

>>> for row in norm_rows("ln_f", "final_norm"):
...     print(*row)
ln_f.weight rows ['final_norm.gain']
ln_f.bias rows ['final_norm.bias']
"""
import re
from collections import namedtuple

from ..config import RotaryConfig, attention_config, block_config, model_config, norm_config
from ..rotary import frequencies

__all__ = ["Row", "Family", "FAMILIES", "ACTIVATION_NAMES"]

Row = namedtuple("Row", ("tensor", "layout", "leaves"))
Family = namedtuple("Family", ("model_type", "config", "tensors", "prefix", "buffers"))

# "gelu" is the erf form; the other names for gelu all mean the tanh form.
ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh",
                    "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "swish": "silu"}


# ---- gpt2 ----

def gpt2_config(fields):
    """LayerNorm before each sublayer, learned positions, biases everywhere."""
    d_model, n_heads = fields.size("n_embd"), fields.size("n_head")
    n_layers, n_ctx = fields.layers("n_layer"), fields.size("n_positions")
    for key, meant, value in (("hidden_size", "n_embd", d_model),
                              ("num_attention_heads", "n_head", n_heads),
                              ("num_hidden_layers", "n_layer", n_layers),
                              ("n_ctx", "n_positions", n_ctx),
                              ("max_position_embeddings", "n_positions", n_ctx)):
        fields.alias(key, meant, value)
    fields.divides("n_head", n_heads, "n_embd", d_model)
    fields.must_be("scale_attn_weights", True)
    fields.must_be("scale_attn_by_inverse_layer_idx", False)
    fields.must_be("add_cross_attention", False)
    norm = norm_config("layer", fields.number("layer_norm_epsilon", 1e-5))
    block = block_config(
        fields.size("n_inner", 4 * d_model), attention_config(n_heads, d_model // n_heads),
        norm=norm, activation=fields.one_of("activation_function", ACTIVATION_NAMES, "gelu_new"))
    return model_config(d_model, fields.size("vocab_size"), n_ctx,
                        n_layers, block, final_norm=norm)


def gpt2_tensors(fields, config):
    """The rows of a gpt2 file."""
    rows = [Row("wte.weight", "rows", ["w_embed"]), Row("wpe.weight", "rows", ["w_pos"])]
    for i in range(len(config.blocks)):
        h, b = f"h.{i}.", f"blocks.{i}."
        rows += norm_rows(h + "ln_1", b + "attn_norm")
        rows += [Row(h + "attn.c_attn.weight", "columns",
                     [b + "attn.w_q", b + "attn.w_k", b + "attn.w_v"]),
                 Row(h + "attn.c_attn.bias", "rows",
                     [b + "attn.b_q", b + "attn.b_k", b + "attn.b_v"]),
                 Row(h + "attn.c_proj.weight", "columns", [b + "attn.w_o"]),
                 Row(h + "attn.c_proj.bias", "rows", [b + "attn.b_o"])]
        rows += norm_rows(h + "ln_2", b + "mlp_norm")
        rows += [Row(h + "mlp.c_fc.weight", "columns", [b + "mlp.w_up"]),
                 Row(h + "mlp.c_fc.bias", "rows", [b + "mlp.b_up"]),
                 Row(h + "mlp.c_proj.weight", "columns", [b + "mlp.w_down"]),
                 Row(h + "mlp.c_proj.bias", "rows", [b + "mlp.b_down"])]
    return rows + norm_rows("ln_f", "final_norm") + head_rows(fields, tied=True)


def norm_rows(tensor, leaf):
    """A LayerNorm's gain and bias, which files call weight and bias."""
    return [Row(tensor + ".weight", "rows", [leaf + ".gain"]),
            Row(tensor + ".bias", "rows", [leaf + ".bias"])]


def head_rows(fields, tied):
    """The unembedding, where it is not the embedding again; `tied` is what an absent key means."""
    if fields.flag("tie_word_embeddings", tied):
        return []
    return [Row("lm_head.weight", "rows", ["w_unembed"])]


# ---- llama ----

def llama_config(fields):
    """RMSNorm before each sublayer, rotary positions by halves, gated MLP, grouped heads."""
    d_model, n_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    n_kv_heads = fields.size("num_key_value_heads", n_heads)
    d_head = fields.size("head_dim", None)
    if d_head is None:
        fields.divides("num_attention_heads", n_heads, "hidden_size", d_model)
        d_head = d_model // n_heads
    norm = norm_config("rms", fields.number("rms_norm_eps", 1e-6))
    rotary = RotaryConfig("half", frequencies(d_head, rope_theta(fields)))
    attention = attention_config(n_heads, d_head, n_kv_heads, rotary=rotary)
    block = block_config(fields.size("intermediate_size"), attention, norm=norm,
                         activation=fields.one_of("hidden_act", ACTIVATION_NAMES, "silu"))
    return model_config(d_model, fields.size("vocab_size"),
                        fields.size("max_position_embeddings", 2048, bounded=False),
                        fields.layers("num_hidden_layers"), block, final_norm=norm)


def rope_theta(fields):
    """The base of the rotary frequencies, in either spelling; an unknown rescaling is refused."""
    theta = fields.number("rope_theta", 10000.0, positive=True)
    for key in ("rope_parameters", "rope_scaling"):
        rope = fields.group(key)
        kind = rope.text("rope_type", rope.text("type", "default"))
        if kind != "default":
            rope.refuse("rope_type", kind, "'default'")
        if "rope_theta" in fields.values:
            rope.alias("rope_theta", "rope_theta", theta)
        theta = rope.number("rope_theta", theta, positive=True)
        rope.must_be("partial_rotary_factor", 1.0)
    return theta


def llama_tensors(fields, config):
    """The rows of a llama file."""
    rows = [Row("embed_tokens.weight", "rows", ["w_embed"])]
    attention_bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    for i in range(len(config.blocks)):
        layer, b = f"layers.{i}.", f"blocks.{i}."
        rows.append(Row(layer + "input_layernorm.weight", "rows", [b + "attn_norm.gain"]))
        for letter in "qkvo":
            tensor = layer + f"self_attn.{letter}_proj"
            rows += linear_rows(tensor, b + "attn", letter, attention_bias)
        rows.append(Row(layer + "post_attention_layernorm.weight", "rows", [b + "mlp_norm.gain"]))
        for part in ("gate", "up", "down"):
            rows += linear_rows(layer + f"mlp.{part}_proj", b + "mlp", part, mlp_bias)
    return rows + [Row("norm.weight", "rows", ["final_norm.gain"])] + head_rows(fields, tied=False)


def linear_rows(tensor, record, name, has_bias):
    """A matrix and perhaps its bias: w_NAME and b_NAME of a record."""
    rows = [Row(tensor + ".weight", "rows", [f"{record}.w_{name}"])]
    return rows + ([Row(tensor + ".bias", "rows", [f"{record}.b_{name}"])] if has_bias else [])


# ---- the table ----

# A buffer is a tensor that no training changes: a causal mask, or the rotary frequencies, which
# follow from the config.  GPT-2's h.0.attn.bias is its mask; h.0.attn.c_attn.bias is a weight.
FAMILIES = (
    Family("gpt2", gpt2_config, gpt2_tensors, "transformer.",
           re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")),
    Family("llama", llama_config, llama_tensors, "model.",
           re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")),
)
