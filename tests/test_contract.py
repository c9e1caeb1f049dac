"""One contract for every pair of a forward and a backward, applied through one table.

For a forward f at a point, and a direction v in which its arguments move:

    form        gradients have the form of the arguments
    adjoint     <d_out, J v> = <Jᵀ d_out, v>, for all arguments together and for each tensor alone
    linear      backward of a d_1 + d_2 is a times that of d_1 plus that of d_2
    zero        no gradient at the output, no gradient anywhere
    pure        nothing that was passed in is changed, and a second call gives the same
    fresh       no list of an argument is handed out again: writing into a result changes none

J v comes from the forward alone: by a complex step where the functions are smooth and complex
numbers reach them, by dual numbers for gelu, whose erf has no complex form, and by dual numbers
over ints or Fractions for what is made of + - * / and comparisons; there it holds with ==.

A public function `..._backward` of any module that is missing from the table fails.
"""
import importlib
import inspect
import pkgutil
import re
import unittest
from collections import namedtuple
from fractions import Fraction

import pyres
from pyres import (blocks, edits, hyper_connections, linalg, loss, model, nonlinear, norms, rotary,
                   stream)
from pyres.attention import (attend, attend_backward, attend_steps, attention_backward,
                             attention_steps, project_heads, project_heads_backward)
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.mlp import mlp, mlp_backward, mlp_steps
from pyres.readout import readout, readout_backward
from pyres.weights import ModelWeights
from tests.laws import (TIGHT, Draw, assert_close, attention_weights, block_weights,
                        causal_pattern, copied, flat, form, inner, is_exact, lists_in, mlp_weights,
                        model_weights, norm_weights, slope_along, tensor, tensors, walk)

SEEDS = (1, 2)

# backward   its name, as in the module
# case       which of its cases
# numbers    how J v is found: "complex", "dual" (both on floats), "int" or "fraction" (dual again)
# point      draw -> the arguments that have gradients, a tuple
# forward    (*point) -> what comes out
# gradients  (d_out, *point) -> a tuple like the point
Row = namedtuple("Row", ("backward", "case", "numbers", "point", "forward", "gradients"))

KINDS = {"complex": float, "dual": float, "int": int, "fraction": Fraction}
EXACT = ("int", "fraction")


# ---- linalg, nonlinear ----

def linear_rows():
    yield Row("linear_backward", "with a bias", "int",
              lambda draw: (draw.tensor(3, 2), draw.tensor(4, 2), draw.tensor(4)),
              linalg.linear, linalg.linear_backward)
    yield Row("linear_backward", "without", "int",
              lambda draw: (draw.tensor(3, 2), draw.tensor(4, 2), None),
              linalg.linear, linalg.linear_backward)


def entrywise_row(name, numbers, depth, point):
    forward, backward = getattr(nonlinear, name), getattr(nonlinear, name + "_backward")
    return Row(name + "_backward", depth, numbers, point, forward, lambda d, x: (backward(d, x),))


def entrywise_rows():
    for name, numbers in (("softmax", "complex"), ("log_softmax", "complex"), ("relu", "int"),
                          ("gelu", "dual"), ("gelu_tanh", "complex"), ("silu", "complex")):
        yield entrywise_row(name, numbers, "a vector", lambda draw: (draw.tensor(5),))
        yield entrywise_row(name, numbers, "a matrix", lambda draw: (draw.tensor(3, 4),))
        yield entrywise_row(name, numbers, "a batch of unequal lengths",
                            lambda draw: (draw.ragged((2, 3), 4),))
    yield Row("softmax_backward_from", "a matrix", "complex", lambda draw: (draw.tensor(3, 4),),
              nonlinear.softmax,
              lambda d, x: (nonlinear.softmax_backward_from(d, nonlinear.softmax(x)),))


# ---- norms ----

DEPTHS = (("a vector", (4,)), ("a matrix", (3, 4)), ("a batch", (2, 2, 4)))


def layer_norm_row(depth, sizes, gain, bias, eps):
    return Row("layer_norm_backward", f"{depth}, gain {gain}, bias {bias}, eps {eps}", "complex",
               lambda draw: (draw.tensor(*sizes), draw.tensor(4) if gain else None,
                             draw.tensor(4) if bias else None),
               lambda x, g, b: norms.layer_norm(x, g, b, eps),
               lambda d, x, g, b: norms.layer_norm_backward(d, x, g, b, eps))


def rms_norm_row(depth, sizes, gain, eps):
    return Row("rms_norm_backward", f"{depth}, gain {gain}, eps {eps}", "complex",
               lambda draw: (draw.tensor(*sizes), draw.tensor(4) if gain else None),
               lambda x, g: norms.rms_norm(x, g, eps),
               lambda d, x, g: norms.rms_norm_backward(d, x, g, eps))


def norm_rows():
    for depth, sizes in DEPTHS:
        for eps in (1e-5, 0.7):     # the usual one is too small for its place to show
            for gain in (True, False):
                yield layer_norm_row(depth, sizes, gain, gain, eps)
                yield rms_norm_row(depth, sizes, gain, eps)
    yield layer_norm_row("a matrix", (3, 4), True, False, 1e-5)
    yield layer_norm_row("a matrix", (3, 4), False, True, 1e-5)
    yield Row("layer_norm_backward_from", "a batch of unequal lengths", "complex",
              lambda draw: (draw.ragged((1, 2), 4), draw.tensor(4), draw.tensor(4)),
              lambda x, g, b: norms.layer_norm(x, g, b, 0.7),
              lambda d, x, g, b: norms.layer_norm_backward_from(
                  d, *norms.layer_norm_parts(x, 0.7)[1:], g, b))
    yield Row("rms_norm_backward_from", "a batch of unequal lengths", "complex",
              lambda draw: (draw.ragged((1, 2), 4), draw.tensor(4)),
              lambda x, g: norms.rms_norm(x, g, 0.7),
              lambda d, x, g: norms.rms_norm_backward_from(d, *norms.rms_norm_parts(x, 0.7), g))


def frozen_rows():
    for depth, sizes in DEPTHS:
        yield Row("frozen_layer_norm_backward", depth + ", gain and bias", "fraction",
                  lambda draw, sizes=sizes: (draw.tensor(*sizes), draw.tensor(*sizes[:-1]),
                                             draw.tensor(4), draw.tensor(4)),
                  norms.frozen_layer_norm, norms.frozen_layer_norm_backward)
        yield Row("frozen_rms_norm_backward", depth + ", gain", "fraction",
                  lambda draw, sizes=sizes: (draw.tensor(*sizes), draw.tensor(*sizes[:-1]),
                                             draw.tensor(4)),
                  norms.frozen_rms_norm, norms.frozen_rms_norm_backward)
    yield Row("frozen_layer_norm_backward", "neither gain nor bias", "fraction",
              lambda draw: (draw.tensor(3, 4), draw.tensor(3), None, None),
              norms.frozen_layer_norm, norms.frozen_layer_norm_backward)
    yield Row("frozen_rms_norm_backward", "no gain", "fraction",
              lambda draw: (draw.tensor(3, 4), draw.tensor(3), None),
              norms.frozen_rms_norm, norms.frozen_rms_norm_backward)
    yield Row("affine_backward", "gain and bias", "int",
              lambda draw: (draw.tensor(4), draw.tensor(4), draw.tensor(4)),
              norms.affine, norms.affine_backward)


# ---- rotary ----

def triple(a, b, c):
    """An exact cosine and sine."""
    return Fraction(a, c), Fraction(b, c)


TRIPLES = [[triple(3, 4, 5), triple(5, -12, 13)], [triple(-4, 3, 5), triple(8, 15, 17)]]


def rotate_row(case, numbers, sizes, table, pairing):
    return Row("rotate_backward", f"{pairing}, {case}", numbers,
               lambda draw: (draw.tensor(*sizes),), lambda x: rotary.rotate(x, table, pairing),
               lambda d, x: (rotary.rotate_backward(d, table, pairing),))


def rotary_rows():
    for pairing in ("half", "interleaved"):
        yield rotate_row("all channels", "fraction", (2, 4), TRIPLES, pairing)
        yield rotate_row("four of six channels", "fraction", (2, 6), TRIPLES, pairing)
        yield rotate_row("angles", "complex", (3, 4), rotary.angles([3, 7, 8], [1.0, 0.3]),
                         pairing)


# ---- attention ----

WHOLE_PATTERNS = [causal_pattern(Draw(seed, int), 3) for seed in (7, 8)]
FLOAT_PATTERN = causal_pattern(Draw(7), 3)


def attend_row(case, heads, queries_and_keys, patterns=None, numbers="complex", **options):
    (n_heads, n_kv_heads), (n_queries, n_keys) = heads, queries_and_keys

    def forward(q, k, v):
        return attend(q, k, v, patterns=patterns, **options)

    def gradients(d, q, k, v):
        return attend_backward(d, attend_steps(q, k, v, patterns=patterns, **options), **options)

    return Row("attend_backward", case, numbers,
               lambda draw: (draw.tensor(n_heads, n_queries, 3),
                             draw.tensor(n_kv_heads, n_keys, 3),
                             draw.tensor(n_kv_heads, n_keys, 2)),
               # values are less wide than keys
               forward, gradients)


def attend_rows():
    yield attend_row("causal", (2, 2), (3, 3))
    yield attend_row("not causal", (2, 2), (3, 3), causal=False)
    yield attend_row("window", (2, 2), (4, 4), window=2)
    yield attend_row("grouped", (4, 2), (3, 3))
    yield attend_row("all heads share one", (3, 1), (3, 3))
    yield attend_row("soft cap", (2, 1), (3, 3), soft_cap=1.5)
    yield attend_row("a multiplier", (2, 2), (3, 3), multiplier=0.3)
    yield attend_row("tail queries", (2, 2), (2, 5))
    yield attend_row("tail queries, window, grouped, soft cap", (4, 2), (2, 5), window=3,
                     soft_cap=2.0)
    yield attend_row("one head's pattern given", (2, 1), (3, 3), patterns=[FLOAT_PATTERN, None])
    yield attend_row("all patterns given", (4, 2), (3, 3), patterns=WHOLE_PATTERNS * 2,
                     numbers="int")


HALF = RotaryConfig("half", [1.0, 0.1])
INTERLEAVED = RotaryConfig("interleaved", [0.7])
RMS, LAYER = norm_config("rms", 0.1), norm_config("layer", 0.1)


def project_row(case, gain, first_position=0, **options):
    config = attention_config(2, 4, **options)
    return Row("project_heads_backward", case, "complex",
               lambda draw: (draw.tensor(3, 8), draw.tensor(gain) if gain else None),
               lambda x, g: project_heads(x, g, 2, config, first_position),
               lambda d, x, g: project_heads_backward(d, x, g, 2, config, first_position))


def project_rows():
    yield project_row("bare", None)
    yield project_row("rms norm of each head", 4, qk_norm=RMS)
    yield project_row("layer norm of each head", 4, qk_norm=LAYER)
    yield project_row("rms norm of the whole", 8, qk_norm=RMS)
    yield project_row("layer norm of the whole", 8, qk_norm=LAYER)
    yield project_row("rotary", None, rotary=HALF)
    yield project_row("rotary of a part, from position 5", None, 5, rotary=INTERLEAVED)
    yield project_row("norm, then rotary", 4, 2, qk_norm=RMS, rotary=HALF)


def all_patterns(kind, n_heads, n_tokens=3, layer=0):
    """Edits that give every head of a layer a pattern."""
    return [edits.set_pattern(f"L{layer}.attn.H{i}",
                              causal_pattern(Draw(20 + i + 10 * layer, kind), n_tokens))
            for i in range(n_heads)]


def head_edits(kind, n_tokens=3, d_model=4):
    """Edits of heads 0 and 1, two of them of one head."""
    draw = Draw(5, kind)
    return [edits.scale("L0.attn.H0", draw.number(), positions=[0, n_tokens - 1]),
            edits.scale("L0.attn.H0", draw.number()),
            edits.replace("L0.attn.H1", draw.tensor(n_tokens, d_model), positions=[1])]


def source_edits(kind, n_tokens=3, d_model=4):
    """Edits of what head 0 writes from source tokens, and of head 0 besides."""
    draw = Draw(8, kind)
    return [edits.scale("L0.attn.H0.S0", draw.number()),
            edits.replace("L0.attn.H0.S1", draw.tensor(n_tokens, d_model), positions=[1]),
            edits.shift("L0.attn.H0.S1", draw.tensor(n_tokens, d_model)),
            edits.scale("L0.attn.H0.S1", draw.number(), positions=[0, n_tokens - 1])]


def group_edits(kind, n_tokens=3, d_model=4):
    """Edits of the two heads of group 1."""
    draw = Draw(9, kind)
    return [edits.scale("L0.attn.G1", draw.number()),
            edits.shift("L0.attn.G1", draw.tensor(n_tokens, d_model)),
            edits.replace("L0.attn.G1", draw.tensor(n_tokens, d_model), positions=[0])]


def neuron_edits(kind, n_tokens, d_model):
    """Edits of neurons 0 and 2, two of them of one neuron."""
    draw = Draw(10, kind)
    return [edits.scale("L0.mlp.N2", draw.number()),
            edits.replace("L0.mlp.N0", draw.tensor(n_tokens, d_model), positions=[1]),
            edits.scale("L0.mlp.N0", draw.number(), positions=[0])]


def attention_row(case, config, given=(), numbers="complex", **options):
    of_block = edits.edits_of_block(given, 0, config.n_heads // config.n_kv_heads)

    def steps(x, w):
        return attention_steps(x, w, config, of_block.heads, of_block.patterns, None,
                               of_block.sources)

    return Row("attention_backward", case, numbers,
               lambda draw: (draw.tensor(3, 4), attention_weights(draw, 4, config, **options)),
               lambda x, w: steps(x, w).out,
               lambda d, x, w: attention_backward(d, steps(x, w), w, config, of_block.heads,
                                                  of_block.sources))


def attention_rows():
    plain = attention_config(2, 2)
    yield attention_row("biases", plain)
    yield attention_row("no biases, heads wider than the stream", attention_config(2, 5),
                        biases=False)
    yield attention_row("grouped, rotary", attention_config(4, 4, 2, rotary=HALF), biases=False)
    yield attention_row("grouped, q/k norms of a head, rotary",
                        attention_config(4, 2, 2, rotary=INTERLEAVED, qk_norm=RMS), gains="head")
    yield attention_row("q/k norms of the whole", attention_config(2, 3, 1, qk_norm=LAYER),
                        gains="whole")
    yield attention_row("window, soft cap, multiplier",
                        attention_config(2, 2, window=2, soft_cap=2.0, multiplier=0.9))
    yield attention_row("heads edited", attention_config(3, 2), head_edits(float))
    yield attention_row("sources edited, and their head", attention_config(3, 2),
                        source_edits(float) + head_edits(float))
    yield attention_row("a group edited", attention_config(4, 2, 2), group_edits(float))
    yield attention_row("one pattern given", plain,
                        [edits.set_pattern("L0.attn.H1", FLOAT_PATTERN)])
    yield attention_row("all patterns given", attention_config(4, 2, 2), all_patterns(int, 4),
                        "int")
    yield attention_row("all patterns given, heads edited", plain,
                        all_patterns(int, 2) + head_edits(int), "int")
    yield attention_row("all patterns given, sources edited", plain,
                        all_patterns(int, 2) + source_edits(int), "int")


# ---- the readout, mlp, loss ----

def readout_row(case, width, part_edits):
    return Row("readout_backward", case, "int",
               lambda draw: (draw.tensor(3, 6), draw.tensor(4, 6), draw.tensor(4)),
               lambda h, w, b: readout(h, w, b, width, part_edits),
               lambda d, h, w, b: readout_backward(d, h, w, b, width, part_edits))


def readout_rows():
    draw = Draw(11, int)
    given = [(1, edits.scale("part 1", draw.number())),
             (1, edits.shift("part 1", draw.tensor(3, 4), positions=[2])),
             (2, edits.replace("part 2", draw.tensor(3, 4), positions=[0]))]
    yield readout_row("no edits", 2, [])
    yield readout_row("parts of two channels edited", 2, given)
    yield readout_row("parts of one channel edited", 1, given)


def mlp_row(activation, numbers, gated, biases):
    return Row("mlp_backward", f"{activation}, gated {gated}, biases {biases}", numbers,
               lambda draw: (draw.tensor(2, 3), mlp_weights(draw, 3, 5, biases, gated)),
               lambda x, w: mlp(x, w, activation),
               lambda d, x, w: mlp_backward(d, mlp_steps(x, w, activation), w, activation))


def mlp_rows():
    for activation, numbers in (("relu", "int"), ("gelu", "dual"), ("gelu_tanh", "complex"),
                                ("silu", "complex")):
        for gated in (False, True):
            for biases in (False, True):
                yield mlp_row(activation, numbers, gated, biases)
    given = edits.edits_of_block(neuron_edits(int, 2, 3), 0).neurons
    yield Row("mlp_backward", "neurons edited", "int",
              lambda draw: (draw.tensor(2, 3), mlp_weights(draw, 3, 5, True, True)),
              lambda x, w: mlp_steps(x, w, "relu", given).out,
              lambda d, x, w: mlp_backward(d, mlp_steps(x, w, "relu", given), w, "relu", given))


def cross_entropy_row(case, targets):
    return Row("cross_entropy_backward", case, "complex", lambda draw: (draw.tensor(3, 5),),
               lambda logits: loss.cross_entropy(logits, targets),
               lambda d, logits: (loss.cross_entropy_backward(d, logits, targets),))


def loss_rows():
    yield cross_entropy_row("all count", [2, 0, 2])
    yield cross_entropy_row("one does not", [4, None, 1])


# ---- edits, the parts of blocks ----

def edit_rows():
    given = [edits.scale("embed", 3), edits.scale("embed", -2, positions=[0, 2]),
             edits.replace("embed", [[1, 2], [3, 4], [5, 6]], positions=[1])]
    yield Row("edit_update_backward", "scaled, scaled in places, replaced in places", "int",
              lambda draw: (draw.tensor(3, 2),),
              lambda x: edits.edit_update(x, given),
              lambda d, x: (edits.edit_update_backward(d, given),))
    of_state = edits.set_state("embed", [[1, 2], [3, 4]])
    yield Row("edit_state_backward", "set", "int", lambda draw: (draw.tensor(2, 2),),
              lambda x: edits.edit_state(x, of_state),
              lambda d, x: (edits.edit_state_backward(d, of_state),))


def branch_rows():
    config = block_config(1, attention_config(1, 1), residual_multiplier=7)
    given = [edits.scale("L0.mlp", 5, positions=[1])]
    for case, sizes in (("a number", ()), ("a vector", (4,))):
        def point(draw, sizes=sizes):
            return draw.tensor(3, 4), draw.tensor(*sizes)

        yield Row("multiply_branch_backward", case, "int", point,
                  blocks.multiply_branch, blocks.multiply_branch_backward)
        yield Row("branch_update_backward", case + ", a fixed one, edited", "int", point,
                  lambda x, multiplier: blocks.branch_update(x, multiplier, config, given),
                  lambda d, x, multiplier: blocks.branch_update_backward(
                      d, x, multiplier, config, given))


def norm_row(case, numbers, config):
    return Row("norm_backward", f"{config.kind}, {case}", numbers,
               lambda draw: (draw.tensor(3, 4), norm_weights(draw, 4, config)),
               lambda x, w: blocks.norm_steps(x, w, config).out,
               lambda d, x, w: blocks.norm_backward(d, blocks.norm_steps(x, w, config), w, config))


def norm_step_rows():
    for kind in ("layer", "rms"):
        yield norm_row("its own scale", "complex", norm_config(kind, 0.2))
        yield norm_row("a given number", "fraction", norm_config(kind, 0.2, 3))
        yield norm_row("given scales", "fraction", norm_config(kind, 0.2, [2, Fraction(1, 3), 5]))


# ---- blocks ----

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")


def block_edits(kind, n_tokens=3, d_model=4):
    """An edit of every kind: of both branches, of heads, sources, neurons, of places."""
    draw = Draw(6, kind)
    return head_edits(kind, n_tokens, d_model) + source_edits(kind, n_tokens, d_model) + [
        edits.scale("L0.mlp.N1", draw.number()),
        edits.scale("L0.attn", draw.number(), positions=[1]),
        edits.replace("L0.mlp", draw.tensor(n_tokens, d_model), positions=[0])]


def block_row(case, numbers, config, given=(), d_model=4, **options):
    of_block = edits.edits_of_block(given, 0)

    def steps(x, w):
        return blocks.block_steps(x, w, config, of_block)

    def gradients(d, x, w):
        result = blocks.block_backward(d, steps(x, w), w, config, of_block)
        return result.resid_pre.total, result.weights

    return Row("block_backward", f"{config.placement}, {case}", numbers,
               lambda draw: (draw.tensor(2, d_model),
                             block_weights(draw, d_model, config, **options)),
               lambda x, w: steps(x, w).resid_post, gradients)


def placement_rows(placement):
    plain, small = attention_config(2, 2), attention_config(2, 1)
    grouped = attention_config(4, 2, 2, rotary=INTERLEAVED, qk_norm=RMS)
    smooth = block_config(3, plain, placement, LAYER, "gelu_tanh")
    yield block_row("layer norms, multipliers", "complex",
                    smooth._replace(residual_multiplier=0.7), multipliers=True)
    yield block_row("rms norms, gated, grouped, rotary, q/k norms", "complex",
                    block_config(3, grouped, placement, RMS, "silu"), biases=False, gated=True,
                    gains="head")
    yield block_row("edited", "complex", smooth,
                    block_edits(float, 2)
                    + [edits.set_pattern("L0.attn.H1", causal_pattern(Draw(7), 2))])
    yield block_row("no norms", "int", block_config(3, plain, placement, None, "relu"),
                    all_patterns(int, 2, 2))
    for kind in ("layer", "rms"):
        given = norm_config(kind, 0, [4, Fraction(1, 2)])
        yield block_row(f"{kind} norms with given scales", "fraction",
                        block_config(2, small, placement, given, "relu"),
                        all_patterns(Fraction, 2, 2) + block_edits(Fraction, 2, 2), d_model=2,
                        multipliers=True)
    if placement == "parallel":
        yield block_row("one norm for both", "complex", smooth._replace(mlp_norm=None))
    else:
        yield block_row("the middle state set", "complex", smooth,
                        [edits.set_state("L0.attn", Draw(9).tensor(2, 4))])


def block_rows():
    for placement in PLACEMENTS:
        yield from placement_rows(placement)


# ---- models ----

TOKENS = [2, 4, 2]                  # one of them twice


def embed_row(case, positions, multiplier):
    config = model_config(3, 5, 4, 0, None, embed_multiplier=multiplier, final_norm=None)

    def weights(w_embed, w_pos):
        return ModelWeights(w_embed, w_pos, [], None, None, None)

    return Row("embed_backward", case, "int",
               lambda draw: (draw.tensor(5, 3), draw.tensor(4, 3) if positions else None),
               lambda *point: model.embed(config, weights(*point), TOKENS),
               lambda d, *point: model.embed_backward(d, config, weights(*point), TOKENS))


def embed_rows():
    yield embed_row("positions", True, None)
    yield embed_row("a multiplier", False, 3)
    yield embed_row("both", True, 3)


def unembed_row(case, numbers, multiplier=None, cap=None, bias=False):
    config = model_config(3, 5, 3, 0, None, final_norm=None, logit_multiplier=multiplier,
                          logit_soft_cap=cap)

    def run_of(normed, w_unembed, b_unembed):
        # Tokens 0, 1, 2 in order: the first three rows of the table are the stream itself.
        w = ModelWeights(normed + [[0] * 3] * 2, None, [], None, w_unembed, b_unembed)
        return model.run(model.make_model(config, w), [0, 1, 2])

    return Row("unembed_backward", case, numbers,
               lambda draw: (draw.tensor(3, 3), draw.tensor(5, 3),
                             draw.tensor(5) if bias else None),
               lambda *point: run_of(*point).logits,
               lambda d, *point: model.unembed_backward(d, run_of(*point)))


def unembed_rows():
    yield unembed_row("plain", "int")
    yield unembed_row("a bias and a multiplier", "int", multiplier=3, bias=True)
    yield unembed_row("a soft cap", "complex", cap=1.5)
    yield unembed_row("all of them", "complex", multiplier=0.7, cap=1.5, bias=True)


def model_edits(kind):
    """An edit of the embedding, of branches, of heads, in two layers."""
    draw = Draw(5, kind)
    return block_edits(kind) + [
        edits.scale("embed", draw.number(), positions=[2]), edits.scale("L1.mlp", draw.number()),
        edits.replace("L1.attn.H0", draw.tensor(3, 4)), edits.scale("L1.attn", draw.number())]


def model_row(case, numbers, config, given=(), **options):
    def run_of(w):
        return model.run(model.make_model(config, w), TOKENS, given)

    return Row("run_backward", case, numbers,
               lambda draw: (model_weights(draw, config, **options),),
               lambda w: run_of(w).logits, lambda d, w: (model.run_backward(d, run_of(w))[0],))


def model_rows():
    plain, rotating = attention_config(2, 2), attention_config(2, 4, 1, rotary=HALF)
    gpt = block_config(3, plain, "pre_norm", LAYER, "gelu_tanh")
    gemma = block_config(3, attention_config(2, 2, soft_cap=1.5), "sandwich", RMS, "gelu_tanh")
    whole = block_config(3, plain, "parallel", None, "relu")
    given = block_config(2, attention_config(2, 1), "pre_norm", norm_config("layer", 0, 3), "relu")
    yield model_row("untied, positions", "complex",
                    model_config(4, 5, 4, 1, gpt, final_norm=LAYER))
    yield model_row("rotary, tied, multipliers", "complex",
                    model_config(4, 5, 4, 1, block_config(3, rotating, "pre_norm", RMS, "silu"),
                                 embed_multiplier=2.0, final_norm=RMS, logit_multiplier=0.3),
                    tied=True, positions=False, biases=False, gated=True, unembed_bias=False)
    yield model_row("soft caps, tied, positions", "complex",
                    model_config(4, 5, 4, 1, gemma, final_norm=RMS, logit_multiplier=0.5,
                                 logit_soft_cap=2.0),
                    tied=True)
    yield model_row("post-norm, no final norm, learned multipliers", "complex",
                    model_config(4, 5, 4, 1, block_config(3, plain, "post_norm", LAYER, "silu"),
                                 final_norm=None), multipliers=True)
    yield model_row("two layers, edited", "complex",
                    model_config(4, 5, 4, 2, gpt, final_norm=LAYER), model_edits(float), tied=True)
    yield model_row("two layers, a state set between them", "complex",
                    model_config(4, 5, 4, 2, gpt, final_norm=LAYER),
                    [edits.set_state("L0.mlp", Draw(9).tensor(3, 4))])
    yield model_row("the embedding's state set", "complex",
                    model_config(4, 5, 4, 1, gpt, final_norm=LAYER),
                    [edits.set_state("embed", Draw(9).tensor(3, 4))])
    yield model_row("exact, tied, multipliers, given scales", "fraction",
                    model_config(2, 5, 4, 2, given, embed_multiplier=2,
                                 final_norm=norm_config("rms", 0, 2), logit_multiplier=3),
                    all_patterns(Fraction, 2) + all_patterns(Fraction, 2, 3, 1), tied=True)
    yield model_row("exact, edited, no norms", "int",
                    model_config(4, 5, 4, 2, whole, final_norm=None),
                    all_patterns(int, 2) + all_patterns(int, 2, 3, 1) + model_edits(int))


def final_stream_rows():
    """The final stream of a model as a function of all its weights but the last norm's and the
    unembedding's."""
    config = model_config(4, 5, 4, 1, block_config(3, attention_config(2, 2), "pre_norm", LAYER,
                                                   "gelu_tanh"), final_norm=None)

    def final(w):
        return model.run(model.Model("", config, w, None), TOKENS)

    def weights(draw):
        return (model_weights(draw, config)._replace(w_unembed=None, b_unembed=None),)

    def gradients(d, w):
        d_w_embed, d_w_pos, d_blocks, _ = model.stream_backward(d, final(w))
        return (ModelWeights(d_w_embed, d_w_pos, d_blocks, None, None, None),)

    yield Row("stream_backward", "a pre-norm model", "complex", weights,
              lambda w: final(w).states[-1][1], gradients)


# ---- the stream ----

def stream_row(case, point):
    gain = [2.0, -1.0, 0.5]
    fns = [norms.layer_norm, nonlinear.silu, lambda x: norms.rms_norm(x, gain, 0.1)]
    backwards = [lambda d, x: norms.layer_norm_backward(d, x)[0], nonlinear.silu_backward,
                 lambda d, x: norms.rms_norm_backward(d, x, gain, 0.1)[0]]
    return Row("run_sublayers_backward", case, "complex", point,
               lambda x: stream.run_sublayers(x, fns),
               lambda d, x: (stream.run_sublayers_backward(d, x, fns, backwards)[0],))


def stream_rows():
    yield stream_row("a vector", lambda draw: (draw.tensor(3),))
    yield stream_row("a batch of unequal lengths", lambda draw: (draw.ragged((1, 3), 3),))


# ---- several streams ----

def hyper_weights(draw, n):
    return hyper_connections.HyperWeights(draw.tensor(n, n), draw.tensor(n), draw.tensor(n))


def hyper_row(case, numbers, sizes, fns, backwards):
    """Sublayers in order over streams of these sizes."""
    def run(streams, weights):
        return hyper_connections.run_hyper_sublayers(streams, fns, weights)

    def gradients(d, streams, weights):
        d_states, d_weights = hyper_connections.run_hyper_sublayers_backward(
            d, run(streams, weights), backwards, weights)
        return d_states[0], d_weights

    return Row("run_hyper_sublayers_backward", case, numbers,
               lambda draw: (draw.tensor(*sizes), [hyper_weights(draw, sizes[0]) for _ in fns]),
               lambda streams, weights: run(streams, weights)[-1].out, gradients)


def hyper_rows():
    hyper, square = hyper_connections, lambda x: linalg.multiply(x, x)
    yield Row("expand_streams_backward", "three of a sequence", "int",
              lambda draw: (draw.tensor(2, 4),), lambda x: hyper.expand_streams(x, 3),
              lambda d, x: (hyper.expand_streams_backward(d, x, 3),))
    yield Row("combine_streams_backward", "vectors", "int",
              lambda draw: (draw.tensor(3, 4), draw.tensor(3)),
              hyper.combine_streams, hyper.combine_streams_backward)
    yield Row("combine_streams_backward", "a plain sum of sequences", "int",
              lambda draw: (draw.tensor(3, 2, 4), None),
              hyper.combine_streams, hyper.combine_streams_backward)
    yield Row("mix_streams_backward", "sequences", "int",
              lambda draw: (draw.tensor(3, 2, 4), draw.tensor(3, 3)),
              hyper.mix_streams, hyper.mix_streams_backward)
    yield Row("hyper_sublayer_backward", "sequences, a square", "int",
              lambda draw: (draw.tensor(3, 2, 4), hyper_weights(draw, 3)),
              lambda x, w: hyper.hyper_sublayer_steps(x, square, w).out,
              lambda d, x, w: hyper.hyper_sublayer_backward(
                  d, hyper.hyper_sublayer_steps(x, square, w),
                  lambda d, x: linalg.multiply(linalg.scale(2, x), d), w))
    yield hyper_row("vectors", "complex", (2, 4), [nonlinear.silu, norms.layer_norm],
                    [nonlinear.silu_backward, lambda d, x: norms.layer_norm_backward(d, x)[0]])
    draw, config = Draw(8), attention_config(2, 2)
    attn, w = attention_weights(draw, 4, config), mlp_weights(draw, 4, 3)
    yield hyper_row("attention and MLP, twice", "complex", (2, 3, 4), [
        lambda x: attention_steps(x, attn, config).out, lambda x: mlp(x, w, "silu")] * 2, [
        lambda d, x: attention_backward(d, attention_steps(x, attn, config), attn, config)[0],
        lambda d, x: mlp_backward(d, mlp_steps(x, w, "silu"), w, "silu")[0]] * 2)


TABLE = [row for rows in (
    linear_rows, entrywise_rows, norm_rows, frozen_rows, rotary_rows, attend_rows, project_rows,
    attention_rows, readout_rows, mlp_rows, loss_rows, edit_rows, branch_rows, norm_step_rows,
    block_rows, embed_rows, unembed_rows, model_rows, final_stream_rows, stream_rows,
    hyper_rows) for row in rows()]


# ---- the contract ----

class Case:
    """A row at a random point, with random gradients at its output."""

    def __init__(self, row, seed):
        self.row, self.seed, self.exact = row, seed, row.numbers in EXACT
        self.what = f"{row.backward} ({row.case}), seed {seed}"
        self.draw = Draw(seed, KINDS[row.numbers])
        self.point = row.point(self.draw)
        self.point_before = copied(self.point)
        self.out = row.forward(*self.point)
        self.d_out = self.draw.like(self.out)
        self.d_out_before = copied(self.d_out)
        self.gradients = row.gradients(self.d_out, *self.point)

    def backward(self, d_out):
        return self.row.gradients(d_out, *self.point)


def seeds_of(row):
    """Two for each function; blocks and models, which are slow and many, have one for each row."""
    if row.backward in ("block_backward", "run_backward"):
        return [100 + TABLE.index(row)]
    return SEEDS


def misshapen(d_out):
    """Gradients like d_out, but for one list that is shorter or longer; a number has none."""
    if isinstance(d_out, list):
        yield d_out[:-1]
        yield d_out + copied(d_out[-1:])
        for inner_list in misshapen(d_out[0]):
            yield [inner_list] + copied(d_out[1:])


class Contract(unittest.TestCase):
    made = {}           # the cases, by row and seed: made by the first test that needs them

    def every_case(self, check):
        """check(case) for every row and seed, each a subtest."""
        for i, row in enumerate(TABLE):
            for seed in seeds_of(row):
                with self.subTest(row.backward, case=row.case, seed=seed):
                    if (i, seed) not in self.made:
                        self.made[i, seed] = Case(row, seed)
                    check(self.made[i, seed])

    @classmethod
    def tearDownClass(cls):
        cls.made.clear()

    def test_gradients_have_the_form_of_the_arguments(self):
        def check(case):
            self.assertEqual(form(case.gradients), form(case.point), case.what)

        self.every_case(check)

    def test_adjoint_for_all_arguments_together(self):
        self.every_case(lambda case: self.check_adjoint(case, [None]))

    def test_adjoint_for_each_tensor_alone(self):
        self.every_case(lambda case: self.check_adjoint(case, [n for n, _ in tensors(case.point)]))

    def check_adjoint(self, case, names):
        """For the tensor of each name, None being all of them."""
        direction = tuple(case.draw.like(part) for part in case.point)
        # Rounding goes by the size of all terms together: a key bias has gradient 0, by
        # cancellation of numbers that are not small.
        _, size = inner(case.gradients, direction)
        for name in names:
            along = slope_along(case.row.forward, case.point, direction,
                                "complex" if case.row.numbers == "complex" else "dual", name)
            want, size_of_terms = inner(case.d_out, along)
            got, _ = (inner(case.gradients, direction) if name is None else
                      inner(tensor(case.gradients, name), tensor(direction, name)))
            tolerance = 0 if case.exact else TIGHT * (size + size_of_terms)
            if case.exact:
                self.assertTrue(is_exact([got, want]),
                                f"{case.what}: {got!r}, {want!r} are not exact")
            if not abs(got - want) <= tolerance:
                self.fail(f"{case.what}, v in {name or 'all arguments'}: <Jt d_out, v> is "
                          f"{got!r}, <d_out, J v> is {want!r}, difference {abs(got - want)!r}, "
                          f"tolerance {tolerance!r}")

    def test_linear_in_the_gradient_at_the_output(self):
        def check(case):
            factor, other = case.draw.number(), case.draw.like(case.out)

            def mixed(a, b):
                return factor * a + b

            got = case.backward(walk(mixed, case.d_out, other))
            want = walk(mixed, case.gradients, case.backward(other))
            assert_close(self, got, want, case.seed, case.what, 0 if case.exact else TIGHT)

        self.every_case(check)

    def test_no_gradient_at_the_output_is_none_anywhere(self):
        def check(case):
            gradients = case.backward(walk(lambda a: 0 * a, case.out))
            self.assertEqual([a for a in flat(gradients) if a != 0], [], case.what)

        self.every_case(check)

    def test_nothing_passed_in_is_changed_and_a_second_call_gives_the_same(self):
        def check(case):
            self.assertTrue(case.row.forward(*case.point) == case.out,
                            case.what + ": forward, a second time")
            again = case.backward(case.d_out)
            self.assertTrue(copied(again) == copied(case.gradients),
                            case.what + ": backward, a second time")
            self.assertTrue(copied(case.point) == case.point_before,
                            case.what + ": an argument was changed")
            self.assertTrue(copied(case.d_out) == case.d_out_before,
                            case.what + ": d_out was changed")

        self.every_case(check)

    def test_no_list_of_an_argument_is_handed_out_again(self):
        def check(case):
            arguments = lists_in(case.point)
            self.assertFalse(lists_in(case.out) & arguments,
                             case.what + ": the output shares a list")
            arguments |= lists_in(case.d_out)
            self.assertFalse(lists_in(case.gradients) & arguments,
                             case.what + ": a gradient shares a list")

        self.every_case(check)

    def test_a_gradient_of_another_shape_is_refused(self):
        """One row or entry less or more, at the top and at the bottom; never a number."""
        def check(case):
            for wrong in misshapen(case.d_out):
                with self.assertRaises(ValueError, msg=f"{case.what}: d_out {form(wrong)}"):
                    case.backward(wrong)

        self.every_case(check)

    def test_exact_rows_are_exact(self):
        """Else == would compare floats, and hold or fail by luck."""
        def check(case):
            if case.exact:
                self.assertTrue(is_exact([case.out, case.gradients]), case.what)

        self.every_case(check)


class TableIsComplete(unittest.TestCase):

    @staticmethod
    def public_backwards():
        """The names of all public functions ..._backward, in every module of the package."""
        names = set()
        for found in pkgutil.walk_packages(pyres.__path__, "pyres."):
            if found.name.rpartition(".")[2] in ("__main__", "cli"):        # commands
                continue
            module = importlib.import_module(found.name)
            names |= {name for name, value in vars(module).items()
                      if inspect.isfunction(value) and value.__module__ == found.name
                      and re.search("_backward(_from)?$", name) and not name.startswith("_")}
        return names

    def test_every_pair_of_the_package_is_in_the_table(self):
        self.assertEqual(sorted(self.public_backwards() - {row.backward for row in TABLE}), [],
                         "these have no row in the table of the contract")

    def test_the_table_names_nothing_that_is_not_there(self):
        self.assertEqual(sorted({row.backward for row in TABLE} - self.public_backwards()), [])


if __name__ == "__main__":
    unittest.main()
