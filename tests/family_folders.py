"""Small Hugging Face folders of every family, for tests that need no PyTorch.

    SMALL            by model_type, the keys that a config cannot do without, and small sizes
    FULL             by model_type, what the absent keys mean: the family's defaults, spelt out
    config_of        the ModelConfig of a config
    rows_of          its rows
    random_tensors   a tensor for every row, of numbers that float32 has exactly
    quick_write      a safetensors file
    write_folder     config.json and model.safetensors
"""
import json
import os
from unittest import mock

from pyres.files import safetensors
from pyres.files.families import FAMILIES
from pyres.files.families.rows import row_shape
from pyres.files.fields import Fields
from pyres.rng import Generator
from pyres.weights import leaf_shapes

GPT = {"n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 5, "n_positions": 6}
PLAIN = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 5}
GATED = dict(PLAIN, intermediate_size=6)

SMALL = {
    "gpt2": GPT,
    "llama": GATED,
    "mistral": GATED,
    "qwen2": GATED,
    "qwen3": dict(GATED, head_dim=6),
    "granite": GATED,
    "gemma": dict(GATED, head_dim=6, num_key_value_heads=1),
    "gemma2": dict(GATED, head_dim=6, num_hidden_layers=3),
    "olmo2": dict(GATED, num_key_value_heads=1),
    "cohere": dict(GATED, rope_theta=10000.0),
    "opt": dict(PLAIN, ffn_dim=6, max_position_embeddings=6),
    "gptj": dict(GPT, rotary_dim=2),
    "gpt_neox": dict(GATED, hidden_size=32),
    "falcon": PLAIN,
    "phi": dict(GATED, hidden_size=16, num_key_value_heads=1),
}

THETA = {"rope_theta": 10000.0}
RMS = dict(THETA, rms_norm_eps=1e-6, hidden_act="silu", num_key_value_heads=2,
           tie_word_embeddings=False)
GELU_TANH = "gelu_pytorch_tanh"

FULL = {
    "gpt2": {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_inner": 32,
             "tie_word_embeddings": True, "scale_attn_weights": True},
    "llama": dict(RMS, head_dim=4, attention_bias=False, mlp_bias=False),
    "mistral": dict(RMS, sliding_window=4096),
    "qwen2": dict(RMS, use_sliding_window=False, sliding_window=4096, max_window_layers=28),
    "qwen3": dict(RMS, attention_bias=False, use_sliding_window=False),
    "granite": dict(RMS, attention_multiplier=1.0, embedding_multiplier=1.0,
                    residual_multiplier=1.0, logits_scaling=1.0, mlp_bias=False),
    "gemma": dict(THETA, rms_norm_eps=1e-6, hidden_activation=GELU_TANH, hidden_act=GELU_TANH,
                  tie_word_embeddings=True),
    "gemma2": dict(THETA, rms_norm_eps=1e-6, hidden_activation=GELU_TANH, sliding_window=4096,
                   query_pre_attn_scalar=256, attn_logit_softcapping=50.0,
                   final_logit_softcapping=30.0, tie_word_embeddings=True, layer_types=[
                       "sliding_attention", "full_attention", "sliding_attention"]),
    "olmo2": dict(RMS, rms_norm_eps=1e-5, num_key_value_heads=1),
    "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "use_qk_norm": False,
               "tie_word_embeddings": True},
    "opt": {"activation_function": "relu", "do_layer_norm_before": True, "enable_bias": True,
            "word_embed_proj_dim": 8, "tie_word_embeddings": True,
            "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
    "gptj": {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_inner": 32,
             "tie_word_embeddings": False},
    "gpt_neox": dict(THETA, rotary_emb_base=10000, rotary_pct=0.25, layer_norm_eps=1e-5,
                     hidden_act="gelu", use_parallel_residual=True, attention_bias=True,
                     tie_word_embeddings=False),
    "falcon": dict(THETA, layer_norm_epsilon=1e-5, activation="gelu", ffn_hidden_size=32,
                   bias=False, multi_query=True, parallel_attn=True, alibi=False,
                   new_decoder_architecture=False, tie_word_embeddings=True),
    "phi": dict(THETA, partial_rotary_factor=0.5, layer_norm_eps=1e-5, hidden_act="gelu_new",
                qk_layernorm=False, tie_word_embeddings=False),
}


def family_of(model_type):
    return next(family for family in FAMILIES if family.model_type == model_type)


def config_of(model_type, values):
    """The ModelConfig of a config, with no key of consequence unread."""
    fields = Fields(values, "config.json")
    config = family_of(model_type).config(fields)
    family_of(model_type).tensors(fields, config)
    fields.not_read()
    return config


def rows_of(model_type, values):
    """The family's rows, with the names that a file has."""
    family, fields = family_of(model_type), Fields(values, "config.json")
    return [row if row.tensor.startswith(family.head + ".")
            else row._replace(tensor=family.prefix + row.tensor)
            for row in family.tensors(fields, family.config(fields))]


def random_tensors(model_type, values, seed=0):
    """A dict of tensors by name, [d_out][d_in] or as the row has it; numbers are eighths."""
    generator, fits = Generator(seed), dict(leaf_shapes(config_of(model_type, values)))

    def tensor(shape):
        if not shape:
            return (generator.below(31) - 15) / 8
        return [tensor(shape[1:]) for _ in range(shape[0])]

    return {row.tensor: tensor(row_shape(row, fits)) for row in rows_of(model_type, values)}


def quick_write(path, tensors, dtype="F32"):
    """A safetensors file that no test waits for the disk to keep."""
    with mock.patch("os.fsync"):
        safetensors.write(path, tensors, dtype=dtype)


def write_folder(folder, model_type, values, tensors):
    """config.json and model.safetensors in a folder that is there."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(dict({"model_type": model_type}, **values), file)
    quick_write(os.path.join(folder, "model.safetensors"), tensors)
