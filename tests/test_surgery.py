"""Weight surgery: the same function from other weights, and refusals where it would be another.

The proof is on random rationals: with scales of norms and patterns given, a model of relu is made
of + - * / and comparisons, so two that are the same function give equal Fractions.  In floats,
with norms' own scales and patterns, they agree to rounding.  Where PYRES_GOLDENS names the folder
with the whole set, TransformerLens's processed models are met, too.
"""
import json
import os
import unittest
from fractions import Fraction

from pyres import edits
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.files import safetensors
from pyres.linalg import subtract
from pyres.loss import cross_entropy
from pyres.model import make_model, run
from pyres.rotary import frequencies
from pyres.study import surgery
from pyres.weights import (AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights,
                           leaves)
from tests.laws import (Draw, assert_close, causal_pattern, flat, is_exact, lists_in,
                        model_weights, walk)
from tests.placements import float_models

SEEDS = (1, 2)
PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")
F = Fraction


def models(placement, kind="layer", exact=True, seed=1, tied=False, final="layer",
           multipliers=False, **options):
    """A random Model of two blocks with grouped heads, in Fractions or floats, and the edits that
    give its patterns (none in floats)."""
    draw = Draw(seed, F if exact else float)
    norm = norm_config(kind, 0, F(3, 2)) if exact else norm_config(kind, 0.1)
    last = norm_config(final, 0, F(5, 4)) if exact else norm_config(final, 0.1)
    attention = attention_config(n_heads=4, d_head=1, n_kv_heads=2, **options)
    block = block_config(3, attention, placement, norm, "relu" if exact else "gelu_tanh",
                         residual_multiplier=F(2, 3) if exact else 0.75)
    if placement == "parallel":                 # one norm for both branches
        block = block._replace(mlp_norm=None)
    config = model_config(3, 4, 4, 2, block, final_norm=last,
                          embed_multiplier=F(3, 4) if exact else 1.5,
                          logit_multiplier=F(1, 5) if exact else 0.3)
    w = model_weights(draw, config, tied=tied, gated=True, multipliers=multipliers)
    given = [edits.set_pattern(f"L{i}.attn.H{h}", causal_pattern(draw, 3))
             for i in range(2) for h in range(4)] if exact else []
    return make_model(config, w, "some", "no tokenizer"), given


TOKENS = [2, 0, 2]


def logits(model, given=()):
    return run(model, TOKENS, given).logits


class Exact(unittest.TestCase):
    """Each operation on every model it takes, tied and untied."""

    def same(self, operation, placements, check=None, kind="layer", states=True, **options):
        """In Fractions the logits, and all states unless told otherwise, are equal with ==; in
        floats they agree."""
        for placement in placements:
            for seed, tied in zip(SEEDS, (False, True)):
                with self.subTest(placement=placement, tied=tied, seed=seed):
                    before, given = models(placement, kind, seed=seed, tied=tied, **options)
                    kept = walk(lambda a: a, before.weights)
                    after = operation(before)
                    a, b = run(before, TOKENS, given), run(after, TOKENS, given)
                    self.assertEqual(a.logits, b.logits)
                    self.assertTrue(is_exact(b.logits))
                    if states:
                        self.assertEqual(a.states, b.states)
                        self.assertEqual(a.writers, b.writers)
                    self.assertEqual(before.weights, kept, "the argument was changed")
                    self.assertEqual(lists_in(before.weights) & lists_in(after.weights), set())
                    self.assertEqual((after.name, after.tokenizer), ("some", "no tokenizer"))
                    if check is not None:
                        check(before, after, given)
                    before, _ = models(placement, kind, False, seed, tied, **options)
                    assert_close(self, logits(operation(before)), logits(before), seed,
                                 "in floats")

    def test_untied(self):
        def check(before, after, given):
            self.assertEqual(after.weights.w_unembed,
                             before.weights.w_unembed or before.weights.w_embed)

        self.same(surgery.untied, PLACEMENTS, check)

    def test_fold_norms(self):
        def check(before, after, given):
            for block, w in zip(after.config.blocks, after.weights.blocks):
                for place in ("attn_norm", "mlp_norm"):
                    if getattr(block, place) is not None:
                        self.assertEqual(getattr(w, place), NormWeights(None, None))
                for place in ("attn_post_norm", "mlp_post_norm"):
                    if getattr(block, place) is not None:
                        self.assertNotEqual(getattr(w, place).gain, None)
            self.assertEqual(after.weights.final_norm, NormWeights(None, None))

        for kind in ("layer", "rms"):
            self.same(surgery.fold_norms, PLACEMENTS, check, kind, final=kind, multipliers=True)

    def test_what_a_folded_matrix_reads_is_normalized(self):
        before, given = models("pre_norm")
        a, b = [run(m, TOKENS, given).steps.blocks[1] for m in (before,
                                                                surgery.fold_norms(before))]
        self.assertEqual(b.mlp.x, a.mlp_norm.normalized)
        self.assertEqual((b.mlp.up, b.mlp.gate, b.attn.q, b.attn.k, b.attn.v),
                         (a.mlp.up, a.mlp.gate, a.attn.q, a.attn.k, a.attn.v))

    def test_centre_reading(self):
        def operation(model):
            return surgery.centre_reading(surgery.fold_norms(model))

        def check(before, after, given):
            w = after.weights.blocks[1]
            for matrix in (w.attn.w_q, w.attn.w_k, w.attn.w_v, w.mlp.w_up, w.mlp.w_gate,
                           after.weights.w_unembed):
                self.assertEqual([sum(row) for row in matrix], [0] * len(matrix))
            self.assertNotEqual(sum(w.mlp.w_down[0]), 0)

        self.same(operation, ("pre_norm", "parallel", "sandwich"), check, multipliers=True)

    def test_centre_writing(self):
        def check(before, after, given):
            for (name, state), (_, other) in zip(run(before, TOKENS, given).states,
                                                 run(after, TOKENS, given).states):
                means = [sum(row) / 3 for row in state]
                self.assertEqual([[a - mean for a in row] for row, mean in zip(state, means)],
                                 other, name)
                self.assertNotEqual(means, [0] * 3)

        self.same(surgery.centre_writing, ("pre_norm", "parallel"), check, states=False)

    def test_centre_writing_passes_learned_numbers(self):
        before, given = models("pre_norm", multipliers=True)
        blocks = [w._replace(mlp_multiplier=F(7, 3)) for w in before.weights.blocks]
        before = before._replace(weights=before.weights._replace(blocks=blocks))
        self.assertEqual(logits(before, given), logits(surgery.centre_writing(before), given))

    def test_fold_value_bias(self):
        def check(before, after, given):
            self.assertEqual([w.attn.b_v for w in after.weights.blocks], [None, None])
            off = [edits.scale("L0.attn.H3", 0)]
            without_head = [run(m, TOKENS, given + off) for m in (before, after)]
            difference = subtract(*[r.steps.blocks[0].attn.out for r in without_head])
            w, b_v = before.weights.blocks[0].attn, before.weights.blocks[0].attn.b_v[1]
            self.assertEqual(difference, [[-row[3] * b_v for row in w.w_o]] * 3)

        self.same(surgery.fold_value_bias, PLACEMENTS, check, multipliers=True)
        self.same(surgery.fold_value_bias, ("pre_norm",), kind="rms", final="rms")

    def test_fold_value_bias_needs_rows_that_sum_to_1(self):
        before, given = models("pre_norm")
        after = surgery.fold_value_bias(before)
        given[0] = edits.set_pattern("L0.attn.H0", [[F(1, 2), 0, 0]] * 3)
        self.assertNotEqual(logits(before, given), logits(after, given))

    def test_fold_value_bias_where_there_is_none(self):
        before, given = models("pre_norm")
        once = surgery.fold_value_bias(before)
        self.assertEqual(surgery.fold_value_bias(once).weights, once.weights)

    def test_centre_unembedding(self):
        for tied in (False, True):
            for seed in SEEDS:
                before, given = models("post_norm", seed=seed, tied=tied)
                after = surgery.centre_unembedding(before)
                for row, other in zip(logits(before, given), logits(after, given)):
                    mean = sum(row) / len(row)
                    self.assertEqual([a - mean for a in row], other)
                before, _ = models("post_norm", exact=False, seed=seed, tied=tied)
                after = surgery.centre_unembedding(before)
                targets = [1, 2, None]
                assert_close(self, cross_entropy(logits(after), targets),
                             cross_entropy(logits(before), targets), seed, "loss")

    def test_expand_groups(self):
        def check(before, after, given):
            w = after.weights.blocks[0].attn
            was = before.weights.blocks[0].attn
            self.assertEqual(w.w_v, [was.w_v[i] for i in (0, 0, 1, 1)])     # not 0, 1, 0, 1
            self.assertEqual(w.b_k, [was.b_k[i] for i in (0, 0, 1, 1)])
            self.assertEqual(lists_in(w.w_v[0]) & lists_in(w.w_v[1]), set())
            self.assertEqual(after.config.blocks[1].attention.n_kv_heads, 4)

        self.same(surgery.expand_groups, PLACEMENTS, check, multipliers=True)

    def test_expand_groups_with_rotary_positions_and_norms_of_keys(self):
        for kind in ("layer", "rms"):
            for gains in ("head", "whole"):
                for seed in SEEDS:
                    draw = Draw(seed)
                    attention = attention_config(
                        n_heads=4, d_head=2, n_kv_heads=2, qk_norm=norm_config(kind, 0.1),
                        rotary=RotaryConfig("half", frequencies(2)))
                    config = model_config(3, 4, 4, 1, block_config(3, attention))
                    before = make_model(config, model_weights(draw, config, gains=gains))
                    assert_close(self, logits(surgery.expand_groups(before)), logits(before),
                                 seed, f"{kind} {gains}")

    def test_on_models_with_every_switch(self):
        """Windows, caps, rotary positions, norms of keys, no biases, no norms: in floats."""
        for label, before in float_models(1):
            for operation in (surgery.untied, surgery.fold_norms, surgery.fold_value_bias,
                              surgery.expand_groups):
                with self.subTest(label, operation=operation.__name__):
                    if operation is surgery.fold_norms and label == "8 post_norm":
                        continue                # there is nothing to fold
                    assert_close(self, logits(operation(before)), logits(before), 1, label)

    def test_one_after_the_other(self):
        for placement in ("pre_norm", "parallel"):
            before, given = models(placement, tied=True)
            after = before
            for operation in (surgery.expand_groups, surgery.fold_norms, surgery.centre_reading,
                              surgery.fold_value_bias, surgery.centre_writing):
                after = operation(after)
            self.assertEqual(logits(before, given), logits(after, given))
            again = surgery.centre_writing(surgery.centre_reading(after))
            self.assertEqual(again.weights, after.weights)


class Refused(unittest.TestCase):

    def refused(self, operation, model, *words):
        with self.assertRaises(ValueError) as caught:
            operation(model)
        for word in (operation.__name__,) + words:
            self.assertIn(word, str(caught.exception))

    def test_fold_norms_where_there_is_nothing_to_fold(self):
        model, _ = models("post_norm")
        self.refused(surgery.fold_norms, surgery.fold_norms(model), "read by a sum")
        once = surgery.fold_norms(models("pre_norm")[0])
        self.refused(surgery.fold_norms, once)

    def test_centring_needs_layer_norm_before_every_reader(self):
        for operation in (surgery.centre_reading, surgery.centre_writing):
            self.refused(operation, models("pre_norm", kind="rms")[0], "blocks.0.attn", "RMSNorm")
            self.refused(operation, models("pre_norm", final="rms")[0], "unembedding", "RMSNorm")
            bare, _ = models("pre_norm")
            blocks = [bare.config.blocks[0], bare.config.blocks[1]._replace(mlp_norm=None)]
            weights = [bare.weights.blocks[0], bare.weights.blocks[1]._replace(mlp_norm=None)]
            bare = make_model(bare.config._replace(blocks=blocks),
                              bare.weights._replace(blocks=weights))
            self.refused(operation, bare, "blocks.1.mlp", "bare stream")
        for placement in ("output_norm", "post_norm"):
            self.refused(surgery.centre_reading, models(placement)[0], "bare stream")
        for placement in ("sandwich", "output_norm", "post_norm"):
            self.refused(surgery.centre_writing, models(placement)[0], placement)

    def test_centre_reading_needs_norms_that_are_folded(self):
        self.refused(surgery.centre_reading, models("pre_norm")[0], "fold_norms first")
        model = surgery.fold_norms(models("pre_norm")[0])
        final = NormWeights(None, [F(1), F(2), F(4)])
        self.refused(surgery.centre_reading,
                     model._replace(weights=model.weights._replace(final_norm=final)))

    def test_centre_writing_with_a_vector_of_multipliers(self):
        self.refused(surgery.centre_writing, models("pre_norm", multipliers=True)[0], "blocks.0",
                     "vector")

    def test_centre_unembedding_under_a_soft_cap(self):
        model, _ = models("pre_norm")
        self.refused(surgery.centre_unembedding,
                     model._replace(config=model.config._replace(logit_soft_cap=30)), "soft cap")

    def test_what_is_refused_would_have_been_another_function(self):
        """The same changes of weights, done where they are refused."""
        def with_w_o(w):
            return w._replace(blocks=[of_block._replace(attn=of_block.attn._replace(
                w_o=surgery.less_column_means(of_block.attn.w_o))) for of_block in w.blocks])

        def with_w_embed(w):
            return w._replace(w_embed=surgery.less_row_means(w.w_embed))

        def with_w_down(w):
            return w._replace(blocks=[of_block._replace(mlp=of_block.mlp._replace(
                w_down=surgery.less_column_means(of_block.mlp.w_down))) for of_block in w.blocks])

        for operation, placement, options in (
                (with_w_o, "pre_norm", {"kind": "rms"}),
                (with_w_embed, "pre_norm", {"kind": "rms"}),
                (with_w_down, "pre_norm", {"multipliers": True}),       # a vector of them
                (with_w_embed, "output_norm", {}), (with_w_embed, "post_norm", {})):
            model, given = models(placement, **options)
            other = model._replace(weights=operation(model.weights))
            self.assertNotEqual(logits(model, given), logits(other, given), placement)

    def test_behind_a_norm_centring_would_not_centre(self):
        """LayerNorm takes the mean away and its gain and bias bring another one."""
        model, given = models("sandwich")
        blocks = [w._replace(attn=w.attn._replace(w_o=surgery.less_column_means(w.attn.w_o),
                                                  b_o=None)) for w in model.weights.blocks]
        model = model._replace(weights=model.weights._replace(blocks=blocks))
        for row in dict(run(model, TOKENS, given).writers)["L0.attn"]:
            self.assertNotEqual(sum(row), 0)


@unittest.skipUnless(os.environ.get("PYRES_GOLDENS"),
                     "PYRES_GOLDENS is not set: TransformerLens's numbers are not here")
class TransformerLens(unittest.TestCase):
    """Its processed models, from the unprocessed ones: every weight, the logits and the loss."""

    def test_processed(self):
        root = os.environ.get("PYRES_GOLDENS", "")
        with open(os.path.join(root, "transformer_lens.json"), encoding="utf-8") as file:
            goldens = json.load(file)
        for name in ("gpt2_style", "rms_gated"):
            golden = goldens[name]
            before = lens_model(golden["config"],
                                safetensors.read(os.path.join(root, golden["weights"])))
            assert_close(self, run(before, golden["tokens"]).logits,
                         golden["unprocessed"]["logits"], name, "logits", 1e-9)
            for processed in golden["processed"]:
                with self.subTest(name, **processed["processing"]):
                    tensors = safetensors.read(os.path.join(root, processed["weights"]))
                    self.check(before, golden, processed, lens_model(golden["config"], tensors))

    def check(self, before, golden, processed, want):
        after = surgery.fold_value_bias(surgery.fold_norms(before))
        if golden["config"]["normalization_type"] == "LN":
            after = surgery.centre_reading(after)
        if processed["processing"]["center_writing_weights"]:
            after = surgery.centre_writing(after)
        if processed["processing"]["center_unembed"]:
            after = surgery.centre_unembedding(after)
        found = run(after, golden["tokens"])
        assert_close(self, found.logits, processed["logits"], "golden", "logits", 1e-9)
        targets = golden["tokens"][1:] + [None]
        assert_close(self, cross_entropy(found.logits, targets), processed["mean_loss"], "golden",
                     "loss", 1e-9)
        got = dict(leaves(after.weights))
        for name, tensor in leaves(want.weights):
            if name in got:
                assert_close(self, got[name], tensor, "golden", name)
            else:                               # a bias or gain that the file has and does nothing
                self.assertIn(set(flat(tensor)), ({0.0}, {1.0}), name)


def lens_model(config, tensors):
    """A Model from TransformerLens's names; its matrices multiply a row from the right."""
    def columns(name):
        return [list(row) for row in zip(*tensors[name])]

    def per_head(name):
        return [row for head in tensors[name] for row in map(list, zip(*head))]

    def bias(name):
        return flat(tensors[name]) if name in tensors else None

    def norm(name):
        return NormWeights(bias(name + ".w"), bias(name + ".b"))

    norm_of = norm_config("layer" if config["normalization_type"] == "LN" else "rms",
                          config["eps"])
    turns = (RotaryConfig("half", frequencies(config["rotary_dim"], config["rotary_base"]))
             if "rotary_dim" in config else None)
    block = block_config(config["d_mlp"], attention_config(config["n_heads"], config["d_head"],
                                                           rotary=turns), norm=norm_of,
                         activation={"gelu_new": "gelu_tanh"}.get(config["act_fn"],
                                                                  config["act_fn"]))
    blocks = []
    for i in range(config["n_layers"]):
        at = f"blocks.{i}."
        gated = at + "mlp.W_gate" in tensors
        w_o = [list(row) for row in zip(*[row for head in tensors[at + "attn.W_O"]
                                          for row in head])]
        blocks.append(BlockWeights(
            norm(at + "ln1"),
            AttentionWeights(*[per_head(f"{at}attn.W_{letter}") for letter in "QKV"], w_o,
                             *[bias(f"{at}attn.b_{letter}") for letter in "QKVO"], None, None),
            None, None, norm(at + "ln2"),
            # gated: (act(x W_gate) * (x W_in) + b_in) W_out, with b_in 0 in these models
            MLPWeights(columns(at + "mlp.W_gate") if gated else None, columns(at + "mlp.W_in"),
                       columns(at + "mlp.W_out"), None, bias(at + "mlp.b_in"),
                       bias(at + "mlp.b_out")), None, None))
    w = ModelWeights([list(row) for row in tensors["embed.W_E"]],
                     [list(row) for row in tensors["pos_embed.W_pos"]]
                     if "pos_embed.W_pos" in tensors else None,
                     blocks, norm("ln_final"), columns("unembed.W_U"), bias("unembed.b_U"))
    return make_model(model_config(config["d_model"], config["d_vocab"], config["n_ctx"],
                                   config["n_layers"], block, final_norm=norm_of), w)


if __name__ == "__main__":
    unittest.main()
