"""Models of another library as pyres models, for the tests that compare with its numbers.

    from_transformer_lens    the tensors of a HookedTransformer, by its names

There every matrix multiplies a row vector from the right, `[in][out]`, and heads have an axis of
their own; here outputs are rows, and heads stand side by side.
"""
from pyres.config import (RotaryConfig, attention_config, block_config, model_config, norm_config)
from pyres.linalg import transpose
from pyres.model import make_model
from pyres.rotary import frequencies
from pyres.weights import AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu": "gelu", "silu": "silu", "relu": "relu"}


def heads_as_rows(w):
    """W_Q, W_K or W_V [head][d_model][d_head] as w [n_heads * d_head][d_model]."""
    return [row for head in w for row in transpose(head)]


def heads_as_columns(w):
    """W_O [head][d_head][d_model] as w_o [d_model][n_heads * d_head]."""
    return transpose([row for head in w for row in head])


def from_transformer_lens(config, tensors):
    """A Model from a config and a mapping from names to nested lists.

    Copies whose norms were folded into the weights have norms without gain and bias.
    """
    def norm(name):
        return NormWeights(tensors.get(f"{name}.w"), tensors.get(f"{name}.b"))

    def attention(at):
        w_q, w_k, w_v, w_o = [tensors[f"{at}.W_{letter}"] for letter in "QKVO"]
        biases = [[a for head in tensors[f"{at}.b_{letter}"] for a in head] for letter in "QKV"]
        return AttentionWeights(heads_as_rows(w_q), heads_as_rows(w_k), heads_as_rows(w_v),
                                heads_as_columns(w_o), *biases, tensors[f"{at}.b_O"], None, None)

    def mlp(at):
        gate = tensors.get(f"{at}.W_gate")
        b_in = tensors[f"{at}.b_in"]
        if gate is not None:        # there b_in stands behind the product, here before it
            if any(b_in):
                raise ValueError("a gated MLP whose b_in is not 0 has no counterpart here")
            b_in = None
        return MLPWeights(gate and transpose(gate), transpose(tensors[f"{at}.W_in"]),
                          transpose(tensors[f"{at}.W_out"]), None, b_in, tensors[f"{at}.b_out"])

    blocks = [BlockWeights(norm(f"blocks.{i}.ln1"), attention(f"blocks.{i}.attn"), None, None,
                           norm(f"blocks.{i}.ln2"), mlp(f"blocks.{i}.mlp"), None, None)
              for i in range(config["n_layers"])]
    weights = ModelWeights(tensors["embed.W_E"], tensors.get("pos_embed.W_pos"), blocks,
                           norm("ln_final"), transpose(tensors["unembed.W_U"]),
                           tensors["unembed.b_U"])
    return make_model(model_config_of(config), weights, "hooked")


def model_config_of(config):
    """The ModelConfig of a HookedTransformerConfig's entries."""
    turns = None
    if config["positional_embedding_type"] == "rotary":
        pairing = "interleaved" if config["rotary_adjacent_pairs"] else "half"
        turns = RotaryConfig(pairing, frequencies(config["rotary_dim"],
                                                  float(config["rotary_base"])))
    norm = norm_config({"LN": "layer", "RMS": "rms"}[config["normalization_type"]], config["eps"])
    block = block_config(config["d_mlp"], attention_config(config["n_heads"], config["d_head"],
                                                           rotary=turns),
                         norm=norm, activation=ACTIVATIONS[config["act_fn"]])
    return model_config(config["d_model"], config["d_vocab"], config["n_ctx"], config["n_layers"],
                        block, final_norm=norm)
