"""One contract for every pair of a forward and a backward, applied through one table.

For a forward f at a point, and a direction v in which all its arguments move:

    shapes      gradients have the form of the arguments
    adjoint     <d_out, J v> = <Jᵀ d_out, v>, for all arguments together and for each tensor alone
    linear      backward of a d_1 + d_2 is a times that of d_1 plus that of d_2
    zero        no gradient at the output, no gradient anywhere
    pure        nothing that was passed in is changed, and a second call gives the same
    fresh       no list of an argument is handed out again, so writing into a result changes no argument

J v comes from the forward alone: by a complex step where the functions are smooth and complex numbers
reach them, by dual numbers for gelu, whose erf has no complex form, and by dual numbers over ints or
Fractions for what is made of + - * / and comparisons; there the identity holds with ==.

The table must have every public function `..._backward` of every module; one that is missing fails.
"""
import importlib
import inspect
import pkgutil
import re
import unittest
from collections import namedtuple
from fractions import Fraction

import pyres
from pyres import blocks, edits, linalg, loss, model, nonlinear, norms, rotary, stream
from pyres.attention import (attend, attend_backward, attend_steps, attention_backward, attention_steps,
                             project_heads, project_heads_backward)
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.mlp import mlp, mlp_backward, mlp_steps
from pyres.weights import ModelWeights
from tests.laws import (TIGHT, Draw, assert_close, attention_weights, block_weights, causal_pattern, copied,
                        flat, form, inner, is_exact, lists_in, mlp_weights, model_weights, norm_weights,
                        slope_along, tensor, tensors, walk)

SEEDS = (1, 2)

# backward   its name, as in the module
# case       which of its cases
# numbers    how J v is found: "complex", "dual" (both on floats), "int" or "fraction" (dual numbers again)
# point      draw -> the arguments that have gradients, a tuple
# forward    (*point) -> what comes out
# gradients  (d_out, *point) -> a tuple like the point
Row = namedtuple("Row", ("backward", "case", "numbers", "point", "forward", "gradients"))

KINDS = {"complex": float, "dual": float, "int": int, "fraction": Fraction}
EXACT = ("int", "fraction")


# ---- linalg, nonlinear ----

def linear_rows():
    for case, bias in (("with a bias", True), ("without", False)):
        yield Row("linear_backward", case, "int",
                  lambda draw, bias=bias: (draw.tensor(3, 2), draw.tensor(4, 2),
                                           draw.tensor(4) if bias else None),
                  linalg.linear, linalg.linear_backward)


def entrywise_rows():
    """Functions of x alone, on a vector, a matrix and a batch whose sequences differ in length."""
    for name, numbers in (("softmax", "complex"), ("log_softmax", "complex"), ("relu", "int"),
                       ("gelu", "dual"), ("gelu_tanh", "complex"), ("silu", "complex")):
        forward, backward = getattr(nonlinear, name), getattr(nonlinear, name + "_backward")
        for case, point in (("a vector", lambda draw: (draw.tensor(5),)),
                            ("a matrix", lambda draw: (draw.tensor(3, 4),)),
                            ("a batch", lambda draw: (draw.ragged((2, 3), 4),))):
            yield Row(name + "_backward", case, step, point, forward,
                      lambda d, x, backward=backward: (backward(d, x),))
    yield Row("softmax_backward_from", "a matrix", "complex", lambda draw: (draw.tensor(3, 4),),
              nonlinear.softmax,
              lambda d, x: (nonlinear.softmax_backward_from(d, nonlinear.softmax(x)),))


# ---- norms ----

# A large eps too, since the usual one is too small for its place in the formulas to show.
EPS = (1e-5, 0.7)


def norm_rows():
    for depth, sizes in (("a vector", (4,)), ("a matrix", (3, 4)), ("a batch", (2, 2, 4))):
        for gain, bias in ((True, True), (True, False), (False, True), (False, False)):
            for eps in EPS:
                case = f"{depth}, gain {gain}, bias {bias}, eps {eps}"

                def point(draw, sizes=sizes, gain=gain, bias=bias):
                    return (draw.tensor(*sizes), draw.tensor(4) if gain else None,
                            draw.tensor(4) if bias else None)

                yield Row("layer_norm_backward", case, "complex", point,
                          lambda x, g, b, eps=eps: norms.layer_norm(x, g, b, eps),
                          lambda d, x, g, b, eps=eps: norms.layer_norm_backward(d, x, g, b, eps))
                if not bias:
                    yield Row("rms_norm_backward", case, "complex",
                              lambda draw, point=point: point(draw)[:2],
                              lambda x, g, eps=eps: norms.rms_norm(x, g, eps),
                              lambda d, x, g, eps=eps: norms.rms_norm_backward(d, x, g, eps))


def frozen_rows():
    for depth, sizes in (("a vector", (4,)), ("a matrix", (3, 4)), ("a batch", (2, 2, 4))):
        for gain in (True, False):
            def point(draw, sizes=sizes, gain=gain):
                return (draw.tensor(*sizes), draw.tensor(*sizes[:-1]), draw.tensor(4) if gain else None,
                        draw.tensor(4) if gain else None)

            case = f"{depth}, gain and bias {gain}"
            yield Row("frozen_layer_norm_backward", case, "exact", point,
                      norms.frozen_layer_norm, norms.frozen_layer_norm_backward)
            yield Row("frozen_rms_norm_backward", case, "exact", lambda draw, point=point: point(draw)[:3],
                      norms.frozen_rms_norm, norms.frozen_rms_norm_backward)
    yield Row("affine_backward", "gain and bias", "exact",
              lambda draw: (draw.tensor(4), draw.tensor(4), draw.tensor(4)),
              norms.affine, norms.affine_backward)


# ---- rotary ----

THREE_FOUR_FIVE = [[(Fraction(3, 5), Fraction(4, 5)), (Fraction(5, 13), Fraction(-12, 13))],
                   [(Fraction(-4, 5), Fraction(3, 5)), (Fraction(8, 17), Fraction(15, 17))]]


def rotary_rows():
    for pairing in ("half", "interleaved"):
        for case, d_head in (("all channels", 4), ("four of six", 6)):
            yield Row("rotate_backward", f"{pairing}, {case}, exact", "exact",
                      lambda draw, d_head=d_head: (draw.tensor(2, d_head),),
                      lambda x, pairing=pairing: rotary.rotate(x, THREE_FOUR_FIVE, pairing),
                      lambda d, x, pairing=pairing: (rotary.rotate_backward(d, THREE_FOUR_FIVE, pairing),))
        table = rotary.angles([3, 7, 8], [1.0, 0.3])
        yield Row("rotate_backward", pairing, "complex", lambda draw: (draw.tensor(3, 4),),
                  lambda x, pairing=pairing, table=table: rotary.rotate(x, table, pairing),
                  lambda d, x, pairing=pairing, table=table:
                  (rotary.rotate_backward(d, table, pairing),))


# ---- attention ----

PATTERN, OTHER_PATTERN = causal_pattern(Draw(7, int), 3), causal_pattern(Draw(8, int), 3)
FLOAT_PATTERN = causal_pattern(Draw(7), 3)

ATTEND_CASES = (
    # case, query heads, key/value heads, queries, keys, options, patterns
    ("causal", 2, 2, 3, 3, {}, None),
    ("not causal", 2, 2, 3, 3, {"causal": False}, None),
    ("window", 2, 2, 4, 4, {"window": 2}, None),
    ("grouped", 4, 2, 3, 3, {}, None),
    ("all share one", 3, 1, 3, 3, {}, None),
    ("soft cap", 2, 1, 3, 3, {"soft_cap": 1.5}, None),
    ("a multiplier", 2, 2, 3, 3, {"multiplier": 0.3}, None),
    ("tail queries", 2, 2, 2, 5, {}, None),
    ("tail queries, window, grouped, soft cap", 4, 2, 2, 5, {"window": 3, "soft_cap": 2.0}, None),
    ("one head's pattern given", 2, 1, 3, 3, {}, [FLOAT_PATTERN, None]),
    ("all patterns given", 4, 2, 3, 3, {}, [PATTERN, OTHER_PATTERN] * 2),
)


def attend_rows():
    for case, heads, kv_heads, n_queries, n_keys, options, patterns in ATTEND_CASES:
        def point(draw, heads=heads, kv_heads=kv_heads, n_queries=n_queries, n_keys=n_keys):
            # values of another width than keys
            return (draw.tensor(heads, n_queries, 3), draw.tensor(kv_heads, n_keys, 3),
                    draw.tensor(kv_heads, n_keys, 2))

        yield Row("attend_backward", case, "int" if case.startswith("all patterns") else "complex", point,
                  lambda q, k, v, options=options, patterns=patterns:
                  attend(q, k, v, patterns=patterns, **options),
                  lambda d, q, k, v, options=options, patterns=patterns: attend_backward(
                      d, attend_steps(q, k, v, patterns=patterns, **options), **options))


HALF = RotaryConfig("half", [1.0, 0.1])
INTERLEAVED = RotaryConfig("interleaved", [0.7])


def project_rows():
    for case, gain, options, first in (
            ("bare", None, {}, 0),
            ("rms norm of each head", 4, {"qk_norm": norm_config("rms", 0.1)}, 0),
            ("layer norm of each head", 4, {"qk_norm": norm_config("layer", 0.1)}, 0),
            ("rms norm of the whole", 8, {"qk_norm": norm_config("rms", 0.1)}, 0),
            ("layer norm of the whole", 8, {"qk_norm": norm_config("layer", 0.1)}, 0),
            ("rotary", None, {"rotary": HALF}, 0),
            ("rotary of a part, from position 5", None, {"rotary": INTERLEAVED}, 5),
            ("norm, then rotary", 4, {"qk_norm": norm_config("rms", 0.1), "rotary": HALF}, 2)):
        config = attention_config(2, 4, **options)
        yield Row("project_heads_backward", case, "complex",
                  lambda draw, gain=gain: (draw.tensor(3, 8), draw.tensor(gain) if gain else None),
                  lambda flat_q, g, config=config, first=first:
                  project_heads(flat_q, g, 2, config, first),
                  lambda d, flat_q, g, config=config, first=first:
                  project_heads_backward(d, flat_q, g, 2, config, first))


def all_patterns(n_heads, layer=0):
    """Edits that give every head of a layer a pattern of exact numbers."""
    return [edits.set_pattern(f"L{layer}.attn.H{i}", causal_pattern(Draw(20 + i + 10 * layer), 3))
            for i in range(n_heads)]


def head_edits(draw, d_model):
    """Edits of heads 0 and 1, two of them of one head."""
    return [edits.scale("L0.attn.H0", draw.number(), positions=[0, 2]),
            edits.scale("L0.attn.H0", draw.number()),
            edits.replace("L0.attn.H1", draw.tensor(3, d_model), positions=[1])]


ATTENTION_CASES = (
    # case, step, config, options of the weights, edits
    ("biases", "complex", attention_config(2, 2), {}, []),
    ("no biases, heads wider than the stream", "complex", attention_config(2, 5), {"biases": False}, []),
    ("grouped, rotary", "complex", attention_config(4, 4, 2, rotary=HALF), {"biases": False}, []),
    ("grouped, q/k norms of a head, rotary", "complex",
     attention_config(4, 2, 2, rotary=INTERLEAVED, qk_norm=norm_config("rms", 0.1)), {"gains": "head"}, []),
    ("q/k norms of the whole", "complex",
     attention_config(2, 3, 1, qk_norm=norm_config("layer", 0.1)), {"gains": "whole"}, []),
    ("window, soft cap, multiplier", "complex",
     attention_config(2, 2, window=2, soft_cap=2.0, multiplier=0.9), {}, []),
    ("heads edited", "complex", attention_config(3, 2), {}, head_edits(Draw(5), 4)),
    ("one pattern given", "complex", attention_config(2, 2), {},
     [edits.set_pattern("L0.attn.H1", FLOAT_PATTERN)]),
    ("all patterns given, exact", "exact", attention_config(4, 2, 2), {}, all_patterns(4)),
    ("all patterns given, heads edited, exact", "exact", attention_config(2, 2), {},
     all_patterns(2) + head_edits(Draw(6, Fraction), 4)),
)


def attention_rows():
    for case, step, config, options, given in ATTENTION_CASES:
        of_block = edits.edits_of_block(given, 0)

        def steps(x, w, config=config, of_block=of_block):
            return attention_steps(x, w, config, of_block.heads, of_block.patterns)

        yield Row("attention_backward", case, step,
                  lambda draw, config=config, options=options:
                  (draw.tensor(3, 4), attention_weights(draw, 4, config, **options)),
                  lambda x, w, steps=steps: steps(x, w).out,
                  lambda d, x, w, steps=steps, config=config, of_block=of_block:
                  attention_backward(d, steps(x, w), w, config, of_block.heads))


# ---- mlp, loss ----

def mlp_rows():
    for name, numbers in (("relu", "int"), ("gelu", "dual"), ("gelu_tanh", "complex"), ("silu", "complex")):
        for gated in (False, True):
            for biases in (False, True):
                yield Row("mlp_backward", f"{name}, gated {gated}, biases {biases}", step,
                          lambda draw, gated=gated, biases=biases:
                          (draw.tensor(2, 3), mlp_weights(draw, 3, 5, biases, gated)),
                          lambda x, w, name=name: mlp(x, w, name),
                          lambda d, x, w, name=name: mlp_backward(d, mlp_steps(x, w, name), w, name))


def loss_rows():
    for case, targets in (("all count", [2, 0, 2]), ("one does not", [4, None, 1])):
        yield Row("cross_entropy_backward", case, "complex", lambda draw: (draw.tensor(3, 5),),
                  lambda logits, targets=targets: loss.cross_entropy(logits, targets),
                  lambda d, logits, targets=targets:
                  (loss.cross_entropy_backward(d, logits, targets),))


# ---- edits, the parts of blocks ----

def edit_rows():
    given = [edits.scale("embed", Fraction(3, 7)), edits.scale("embed", Fraction(-2), positions=[0, 2]),
             edits.replace("embed", [[1, 2], [3, 4], [5, 6]], positions=[1])]
    yield Row("edit_update_backward", "scaled, scaled in places, replaced in places", "exact",
              lambda draw: (draw.tensor(3, 2),),
              lambda x: edits.edit_update(x, given), lambda d, x: (edits.edit_update_backward(d, given),))


def branch_rows():
    for case, sizes in (("a number", ()), ("a vector", (4,))):
        def point(draw, sizes=sizes):
            return draw.tensor(3, 4), draw.tensor(*sizes)

        yield Row("multiply_branch_backward", case, "exact", point,
                  blocks.multiply_branch, blocks.multiply_branch_backward)
        config = block_config(1, attention_config(1, 1), residual_multiplier=Fraction(2, 3))
        given = [edits.scale("L0.mlp", Fraction(5, 3), positions=[1])]
        yield Row("branch_update_backward", case, "exact", point,
                  lambda x, multiplier, config=config:
                  blocks.branch_update(x, multiplier, config, given),
                  lambda d, x, multiplier, config=config:
                  blocks.branch_update_backward(d, x, multiplier, config, given))


def norm_step_rows():
    for kind in ("layer", "rms"):
        for case, step, scale in (("its own scale", "complex", None), ("a given number", "exact", 3),
                                  ("given scales", "exact", [2, Fraction(1, 3), 5])):
            config = norm_config(kind, 0.2, scale)
            yield Row("norm_backward", f"{kind}, {case}", step,
                      lambda draw, config=config: (draw.tensor(3, 4), norm_weights(draw, 4, config)),
                      lambda x, w, config=config: blocks.norm_steps(x, w, config).out,
                      lambda d, x, w, config=config:
                      blocks.norm_backward(d, blocks.norm_steps(x, w, config), w, config))


# ---- blocks ----

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")


def block_edits(draw, d_model):
    """An edit of every kind: of both branches, of heads, of a pattern."""
    return head_edits(draw, d_model) + [
        edits.scale("L0.attn", draw.number(), positions=[1, 2]),
        edits.replace("L0.mlp", draw.tensor(3, d_model), positions=[0])]


def block_cases(placement):
    """(case, step, config, options of the weights, edits) for one placement."""
    plain, grouped = attention_config(2, 2), attention_config(4, 4, 2, rotary=HALF,
                                                              qk_norm=norm_config("rms", 0.1))
    layer, rms = norm_config("layer", 0.1), norm_config("rms", 0.1)
    yield ("layer norms", "complex",
           block_config(5, plain, placement, layer, "gelu_tanh"), {}, [])
    yield ("rms norms, gated, grouped, rotary, q/k norms", "complex",
           block_config(5, grouped, placement, rms, "silu"),
           {"biases": False, "gated": True, "gains": "head"}, [])
    yield ("gelu", "dual", block_config(5, plain, placement, layer, "gelu"), {}, [])
    yield ("multipliers", "complex",
           block_config(5, plain, placement, layer, "gelu_tanh", residual_multiplier=0.7),
           {"multipliers": True}, [])
    yield ("edited", "complex", block_config(5, plain, placement, layer, "silu"),
           {"multipliers": True}, block_edits(Draw(5), 4) + [edits.set_pattern("L0.attn.H1", FLOAT_PATTERN)])
    yield ("no norms", "exact", block_config(5, plain, placement, False, "relu"), {}, all_patterns(2))
    for kind in ("layer", "rms"):
        yield (f"{kind} norms with given scales", "exact",
               block_config(5, plain, placement, norm_config(kind, 0, [2, 3, Fraction(5, 2)]), "relu"),
               {"multipliers": True}, all_patterns(2) + block_edits(Draw(6, Fraction), 4))
    if placement == "parallel":
        shared = block_config(5, plain, placement, layer, "gelu_tanh")
        yield ("one norm for both", "complex", shared._replace(mlp_norm=None), {}, [])
        yield ("one norm for both, edited", "complex", shared._replace(mlp_norm=None),
               {"multipliers": True}, block_edits(Draw(5), 4))
    else:
        yield ("the middle state set", "complex", block_config(5, plain, placement, layer, "silu"), {},
               [edits.set_state("L0.attn", Draw(9).tensor(3, 4))])
    yield ("the last state set", "complex", block_config(5, plain, placement, layer, "silu"), {},
           [edits.set_state("L0.mlp", Draw(9).tensor(3, 4))])


def block_rows():
    for placement in PLACEMENTS:
        for case, step, config, options, given in block_cases(placement):
            of_block = edits.edits_of_block(given, 0)

            def gradients(d, x, w, config=config, of_block=of_block):
                steps = blocks.block_steps(x, w, config, of_block)
                result = blocks.block_backward(d, steps, w, config, of_block)
                return result.resid_pre.total, result.weights

            yield Row("block_backward", f"{placement}, {case}", step,
                      lambda draw, config=config, options=options:
                      (draw.tensor(3, 4), block_weights(draw, 4, config, **options)),
                      lambda x, w, config=config, of_block=of_block:
                      blocks.block_steps(x, w, config, of_block).resid_post, gradients)


# ---- models ----

TOKENS = [2, 4, 2]                  # one of them twice


def embed_rows():
    for case, positions, multiplier in (("positions", True, None), ("a multiplier", False, 3),
                                        ("both", True, Fraction(2, 3))):
        config = model_config(3, 5, 4, 0, None, embed_multiplier=multiplier, final_norm=False)

        def forward(w_embed, w_pos, config=config):
            return model.embed(config, ModelWeights(w_embed, w_pos, [], None, None, None), TOKENS)

        def gradients(d, w_embed, w_pos, config=config):
            return model.embed_backward(d, config, ModelWeights(w_embed, w_pos, [], None, None, None),
                                        TOKENS)

        yield Row("embed_backward", case, "exact",
                  lambda draw, positions=positions: (draw.tensor(5, 3),
                                                     draw.tensor(4, 3) if positions else None),
                  forward, gradients)


def unembed_rows():
    for case, step, multiplier, cap, bias in (
            ("plain", "exact", None, None, False), ("a bias and a multiplier", "exact", 3, None, True),
            ("a soft cap", "complex", None, 1.5, False), ("all of them", "complex", 0.7, 1.5, True)):
        config = model_config(3, 5, 3, 0, None, final_norm=False, logit_multiplier=multiplier,
                              logit_soft_cap=cap)

        def run_of(normed, w_unembed, b_unembed, config=config):
            # The rows of a table with as many tokens as positions, in order, are the stream itself.
            w = ModelWeights(normed + [[0] * 3] * 2, None, [], None, w_unembed, b_unembed)
            return model.run(model.make_model(config, w), [0, 1, 2])

        yield Row("unembed_backward", case, step,
                  lambda draw, bias=bias: (draw.tensor(3, 3), draw.tensor(5, 3),
                                           draw.tensor(5) if bias else None),
                  lambda *point, run_of=run_of: run_of(*point).logits,
                  lambda d, *point, run_of=run_of: model.unembed_backward(d, run_of(*point)))


def model_edits(draw):
    """An edit of the embedding, of a branch, of heads, in two layers."""
    return block_edits(draw, 4) + [
        edits.scale("embed", draw.number(), positions=[2]), edits.scale("L1.mlp", draw.number()),
        edits.replace("L1.attn.H0", draw.tensor(3, 4)), edits.scale("L1.attn", draw.number())]


def model_cases():
    """(case, step, config, options of the weights, edits)."""
    plain, rotating = attention_config(2, 2), attention_config(2, 4, 1, rotary=HALF)
    layer, rms = norm_config("layer", 0.1), norm_config("rms", 0.1)
    gpt = block_config(5, plain, "pre_norm", layer, "gelu_tanh")
    llama = block_config(5, rotating, "pre_norm", rms, "silu")
    llama_weights = {"positions": False, "biases": False, "gated": True, "unembed_bias": False}
    exact = block_config(4, plain, "pre_norm", norm_config("layer", 0, 3), "relu")
    yield "untied, positions", "complex", model_config(4, 5, 4, 2, gpt, final_norm=layer), {}, []
    yield ("tied, positions", "complex", model_config(4, 5, 4, 2, gpt, final_norm=layer), {"tied": True}, [])
    yield ("rotary, tied, multipliers", "complex",
           model_config(4, 5, 4, 1, llama, embed_multiplier=2.0, final_norm=rms, logit_multiplier=0.3),
           dict(llama_weights, tied=True), [])
    yield ("soft caps", "complex",
           model_config(4, 5, 4, 1, block_config(5, attention_config(2, 2, soft_cap=1.5), "sandwich", rms,
                                                 "gelu_tanh"),
                        final_norm=rms, logit_multiplier=0.5, logit_soft_cap=2.0), {"tied": True}, [])
    yield ("post-norm, no final norm, learned multipliers", "complex",
           model_config(4, 5, 4, 2, block_config(5, plain, "post_norm", layer, "silu"), final_norm=False),
           {"multipliers": True}, [])
    yield ("edited", "complex", model_config(4, 5, 4, 2, gpt, final_norm=layer), {"tied": True},
           model_edits(Draw(5)))
    yield ("a state set", "complex", model_config(4, 5, 4, 2, gpt, final_norm=layer), {},
           [edits.set_state("L0.mlp", Draw(9).tensor(3, 4))])
    yield ("the embedding's state set", "complex", model_config(4, 5, 4, 1, gpt, final_norm=layer), {},
           [edits.set_state("embed", Draw(9).tensor(3, 4))])
    yield ("exact", "exact",
           model_config(4, 5, 4, 2, exact, embed_multiplier=2, final_norm=norm_config("rms", 0, 2),
                        logit_multiplier=3),
           {"tied": True}, all_patterns(2) + all_patterns(2, layer=1))
    yield ("exact, edited", "exact",
           model_config(4, 5, 4, 2, block_config(4, plain, "parallel", False, "relu"), final_norm=False), {},
           all_patterns(2) + all_patterns(2, layer=1) + model_edits(Draw(6, Fraction)))


def model_rows():
    for case, step, config, options, given in model_cases():
        def run_of(w, config=config, given=given):
            return model.run(model.make_model(config, w), TOKENS, given)

        yield Row("run_backward", case, step,
                  lambda draw, config=config, options=options: (model_weights(draw, config, **options),),
                  lambda w, run_of=run_of: run_of(w).logits,
                  lambda d, w, run_of=run_of: (model.run_backward(d, run_of(w))[0],))


def stream_rows():
    fns = [norms.layer_norm, nonlinear.silu, lambda x: norms.rms_norm(x, [2.0, -1.0, 0.5], 0.1)]
    backwards = [lambda d, x: norms.layer_norm_backward(d, x)[0], nonlinear.silu_backward,
                 lambda d, x: norms.rms_norm_backward(d, x, [2.0, -1.0, 0.5], 0.1)[0]]
    for case, point in (("a vector", lambda draw: (draw.tensor(3),)),
                        ("a batch", lambda draw: (draw.ragged((1, 3), 3),))):
        yield Row("run_sublayers_backward", case, "complex", point,
                  lambda x: stream.run_sublayers(x, fns),
                  lambda d, x: (stream.run_sublayers_backward(d, x, fns, backwards)[0],))


def table():
    """Every row; built anew for each test, so that none can leave anything for the next."""
    return [each for rows in (linear_rows, entrywise_rows, norm_rows, frozen_rows, rotary_rows, attend_rows,
                              project_rows, attention_rows, mlp_rows, loss_rows, edit_rows, branch_rows,
                              norm_step_rows, block_rows, embed_rows, unembed_rows, model_rows, stream_rows)
            for each in rows()]


# ---- the contract ----

class Contract(unittest.TestCase):

    def every_case(self, check):
        """check(case, point, out) for every row and seed, each a subtest."""
        for each in table():
            for seed in SEEDS:
                with self.subTest(each.backward, case=each.case, seed=seed):
                    draw = Draw(seed, Fraction if each.step == "exact" else float)
                    point = each.point(draw)
                    what = f"{each.backward} ({each.case}), seed {seed}"
                    check(Case(each, draw, seed, what), point, each.forward(*point))

    def agree(self, case, got, want, size, what):
        """== where numbers are exact, else equal to the rounding of terms that add up to `size`."""
        if case.row.step == "exact":
            self.assertTrue(is_exact([got, want]), f"{case.what}, {what}: got {got!r}, want {want!r}: floats")
            self.assertTrue(got == want, f"{case.what}, {what}: got {got!r}, want {want!r}, tolerance 0")
        elif not abs(got - want) <= TIGHT * size:
            self.fail(f"{case.what}, {what}: got {got!r}, want {want!r}, difference {abs(got - want):.3g}, "
                      f"tolerance {TIGHT * size:.3g}: {TIGHT:g} times the size of the terms")

    def test_gradients_have_the_form_of_the_arguments(self):
        def check(case, point, out):
            gradients = case.row.gradients(case.draw.like(out), *point)
            self.assertEqual(form(gradients), form(point), case.what)

        self.every_case(check)

    def test_adjoint_for_all_arguments_and_for_each_alone(self):
        def check(case, point, out):
            d_out = case.draw.like(out)
            gradients = case.row.gradients(d_out, *point)
            direction = tuple(case.draw.like(part) for part in point)
            names = [name for name, _ in tensors(point)]
            # The size that rounding goes by is that of all terms: a key bias has gradient 0, by
            # cancellation of numbers that are not small.
            size = 0
            for name in [""] + (names if len(names) > 1 else []):
                along_one = only(direction, name) if name else direction
                along = slope_along(case.row.forward, point, along_one, case.row.step)
                from_forward, size_of_one = inner(d_out, along)
                from_backward, size_of_other = inner(gradients, along_one)
                size = size or size_of_one + size_of_other
                self.agree(case, from_backward, from_forward, size,
                           f"<Jt d_out, v> against <d_out, J v>, v in {name or 'all arguments'}")

        self.every_case(check)

    def test_linear_in_the_gradient_at_the_output(self):
        def check(case, point, out):
            factor, one, other = case.draw.number(), case.draw.like(out), case.draw.like(out)

            def mixed(a, b):
                return factor * a + b

            got = case.row.gradients(walk(mixed, one, other), *point)
            want = walk(mixed, case.row.gradients(one, *point), case.row.gradients(other, *point))
            assert_close(self, got, want, case.seed, case.what, 0 if case.row.step == "exact" else TIGHT)

        self.every_case(check)

    def test_no_gradient_at_the_output_is_none_anywhere(self):
        def check(case, point, out):
            gradients = case.row.gradients(walk(lambda a: 0 * a, out), *point)
            self.assertEqual([a for a in flat(gradients) if a != 0], [], case.what)

        self.every_case(check)

    def test_nothing_passed_in_is_changed_and_a_second_call_gives_the_same(self):
        def check(case, point, out):
            d_out = case.draw.like(out)
            before, d_before, first_out = copied(point), copied(d_out), copied(out)
            gradients = case.row.gradients(d_out, *point)
            first = copied(gradients)
            self.assertTrue(copied(point) == before, case.what + ": an argument was changed")
            self.assertTrue(d_out == d_before, case.what + ": d_out was changed")
            self.assertTrue(case.row.forward(*point) == first_out, case.what + ": forward, a second time")
            again = copied(case.row.gradients(d_out, *point))
            self.assertTrue(again == first, case.what + ": backward, a second time")

        self.every_case(check)

    def test_no_list_of_an_argument_is_handed_out_again(self):
        def check(case, point, out):
            d_out = case.draw.like(out)
            given = lists_in(point)
            self.assertFalse(lists_in(out) & given, case.what + ": the output shares a list with an argument")
            gradients = case.row.gradients(d_out, *point)
            given |= lists_in(d_out)
            self.assertFalse(lists_in(gradients) & given,
                             case.what + ": a gradient shares a list with an argument")

        self.every_case(check)


class TableIsComplete(unittest.TestCase):

    def public_backwards(self):
        """The names of all public functions ..._backward, in every module of the package."""
        names = set()
        for module in pkgutil.walk_packages(pyres.__path__, "pyres."):
            if module.name.rpartition(".")[2] in ("__main__", "cli"):      # commands
                continue
            loaded = importlib.import_module(module.name)
            names |= {name for name, value in vars(loaded).items()
                      if inspect.isfunction(value) and value.__module__ == module.name
                      and re.search("_backward(_from)?$", name) and not name.startswith("_")}
        return names

    def test_every_pair_of_the_package_is_in_the_table(self):
        self.assertEqual(sorted(self.public_backwards() - {each.backward for each in table()}), [],
                         "these have no row in the table of the contract")

    def test_the_table_names_nothing_that_is_not_there(self):
        self.assertEqual(sorted({each.backward for each in table()} - self.public_backwards()), [])

    def test_exact_rows_are_exact(self):
        """Else == would be a comparison of floats, and pass or fail by luck."""
        for each in table():
            if each.step == "exact":
                with self.subTest(each.backward, case=each.case):
                    point = each.point(Draw(3, Fraction))
                    out = each.forward(*point)
                    gradients = each.gradients(Draw(4, Fraction).like(out), *point)
                    self.assertTrue(is_exact([out, gradients]))


if __name__ == "__main__":
    unittest.main()
