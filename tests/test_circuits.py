"""Weights as maps: QK and OV, their freedom, composition scores.

Second opinions: plain products of d by d matrices, the attention sublayer itself, and, where
PYRES_GOLDENS names the folder with the whole set, TransformerLens's numbers.
"""
import json
import math
import os
import unittest
from fractions import Fraction

from pyres.attention import attention_steps
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.edits import set_pattern
from pyres.files import safetensors
from pyres.linalg import dot, matvec
from pyres.model import make_model
from pyres.rng import Generator, normal_tensor
from pyres.rotary import frequencies
from pyres.study import circuits
from pyres.study.circuits import (Map, change_gauge, composition_score, compositions, inverse,
                                  map_norm, matrix_of, ov_map, qk_map, random_score)
from tests.laws import (Draw, assert_close, attention_weights, causal_pattern, is_exact,
                        model_weights)

SEEDS = (1, 2, 3)
D = 5
GROUPED = attention_config(n_heads=4, d_head=2, n_kv_heads=2)


def loops(a, b):
    """a b, entry by entry."""
    return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
            for i in range(len(a))]


def turned_over(a):
    return [[a[i][j] for i in range(len(a))] for j in range(len(a[0]))]


def frobenius(a):
    return math.sqrt(math.fsum(x * x for row in a for x in row))


class Maps(unittest.TestCase):

    def test_they_are_the_products_of_a_heads_rows_and_columns(self):
        for seed in SEEDS:
            w = attention_weights(Draw(seed, Fraction), D, GROUPED)
            for head in range(4):
                group = (0, 0, 1, 1)[head]
                w_q, w_k, w_v = (rows[2 * i:2 * i + 2] for rows, i in (
                    (w.w_q, head), (w.w_k, group), (w.w_v, group)))
                w_o = [row[2 * head:2 * head + 2] for row in w.w_o]
                self.assertEqual(matrix_of(qk_map(w, GROUPED, head)),
                                 loops(turned_over(w_q), w_k))
                self.assertEqual(matrix_of(ov_map(w, GROUPED, head)), loops(w_o, w_v))

    def test_qk_gives_the_scores_at_every_distance(self):
        """score = multiplier * x_t . QK x_s, with rotary positions at the offset t - s."""
        for seed in SEEDS:
            for pairing in ("half", "interleaved"):
                draw = Draw(seed)
                rotary = RotaryConfig(pairing, frequencies(2, 3.0))
                config = attention_config(2, 4, 1, multiplier=0.5, rotary=rotary)
                w = attention_weights(draw, D, config, biases=False)
                x = draw.tensor(4, D)
                steps = attention_steps(x, w, config)
                for head in (0, 1):
                    for t in range(4):
                        for s in range(t + 1):
                            qk = matrix_of(qk_map(w, config, head, offset=t - s))
                            assert_close(self, 0.5 * dot(x[t], matvec(qk, x[s])),
                                         steps.scores[head][t][s], seed, f"{pairing} {t} {s}")

    def test_the_offset_matters_with_rotary_positions_alone(self):
        w = attention_weights(Draw(1), D, GROUPED)
        self.assertEqual(qk_map(w, GROUPED, 1, offset=7), qk_map(w, GROUPED, 1))
        turning = attention_config(4, 2, 2, rotary=RotaryConfig("half", [1.0]))
        self.assertNotEqual(qk_map(w, turning, 1, offset=7), qk_map(w, turning, 1))
        self.assertEqual(qk_map(w, turning, 1, offset=0), qk_map(w, GROUPED, 1))

    def test_ov_gives_what_a_head_writes_for_a_token_that_it_takes_whole(self):
        for seed in SEEDS:
            draw = Draw(seed, Fraction)
            w = attention_weights(draw, D, GROUPED, biases=False)
            x = draw.tensor(1, D)
            given = [(h, set_pattern("", [[1]])) for h in range(4)]
            out = attention_steps(x, w, GROUPED, pattern_edits=given).out[0]
            writes = [matvec(matrix_of(ov_map(w, GROUPED, h)), x[0]) for h in range(4)]
            self.assertEqual([sum(entries) for entries in zip(*writes)], out)

    def test_norms_of_queries_or_keys_leave_no_qk(self):
        config = attention_config(4, 2, 2, qk_norm=norm_config("rms"))
        for gains in ("head", "whole"):
            w = attention_weights(Draw(1), D, config, gains=gains)
            for refused in (lambda: qk_map(w, config, 0),
                            lambda: change_gauge(w, config, 0, qk=[[1.0, 0.0], [0.0, 1.0]])):
                with self.assertRaises(ValueError) as caught:
                    refused()
                self.assertIn("norm of their own", str(caught.exception))
            ov_map(w, config, 0)

    def test_heads_that_are_not_there(self):
        w = attention_weights(Draw(1), D, GROUPED)
        for wrong in (4, -1, True, "0"):
            for name in (qk_map, ov_map):
                with self.assertRaises(ValueError):
                    name(w, GROUPED, wrong)
        for wrong in (2, -1):
            with self.assertRaises(ValueError):
                change_gauge(w, GROUPED, wrong)


class Gauge(unittest.TestCase):

    def test_the_maps_stay_with_equality_and_the_factors_do_not(self):
        for seed in SEEDS:
            draw = Draw(seed, Fraction)
            w = attention_weights(draw, D, GROUPED)
            for group in (0, 1):
                qk, ov = draw.tensor(2, 2), draw.tensor(2, 2)
                other = change_gauge(w, GROUPED, group, qk, ov)
                for head in range(4):
                    for of in (qk_map, ov_map):
                        before, after = of(w, GROUPED, head), of(other, GROUPED, head)
                        self.assertEqual(matrix_of(before), matrix_of(after), f"seed {seed}")
                        self.assertEqual(before == after, head // 2 != group)
                self.assertTrue(is_exact(other))

    def test_the_whole_sublayer_is_the_same_function(self):
        """Scores by their formula and the output by given patterns, with biases, in Fractions."""
        for seed in SEEDS:
            draw = Draw(seed, Fraction)
            w = attention_weights(draw, D, GROUPED)
            other = change_gauge(w, GROUPED, 1, draw.tensor(2, 2), draw.tensor(2, 2))
            x = draw.tensor(3, D)
            given = [(h, set_pattern("", causal_pattern(draw, 3))) for h in range(4)]
            before = attention_steps(x, w, GROUPED, pattern_edits=given)
            after = attention_steps(x, other, GROUPED, pattern_edits=given)
            self.assertEqual(before.out, after.out)
            self.assertNotEqual(before.v, after.v)
            for head in range(4):
                self.assertEqual(
                    loops(before.q[head], turned_over(before.k[head // 2])),
                    loops(after.q[head], turned_over(after.k[head // 2])))

    def test_rotary_positions_do_not_let_qk_pass(self):
        config = attention_config(4, 2, 2, rotary=RotaryConfig("half", [1.0]))
        w = attention_weights(Draw(1), D, config)
        with self.assertRaises(ValueError) as caught:
            change_gauge(w, config, 0, qk=[[2.0, 0.0], [0.0, 1.0]])
        self.assertIn("rotary", str(caught.exception))
        change_gauge(w, config, 0, ov=[[2.0, 0.0], [0.0, 1.0]])

    def test_what_is_no_gauge(self):
        w = attention_weights(Draw(1), D, GROUPED)
        for wrong in ([[1.0, 2.0], [2.0, 4.0]], [[1.0]], [[1.0, 2.0]]):
            for name in ("qk", "ov"):
                with self.assertRaises(ValueError):
                    change_gauge(w, GROUPED, 0, **{name: wrong})

    def test_inverses(self):
        for seed in SEEDS:
            for n in (1, 2, 4):
                m = Draw(seed, Fraction).tensor(n, n)
                one = [[int(i == j) for j in range(n)] for i in range(n)]
                self.assertEqual(loops(m, inverse(m)), one, f"seed {seed}")
                self.assertEqual(loops(inverse(m), m), one, f"seed {seed}")
                self.assertTrue(is_exact(inverse(m)))
        self.assertEqual(inverse([[0, 1.0], [2.0, 0]]), [[0, 0.5], [1.0, 0]])    # a pivot of 0
        for wrong in ([[1, 2], [2, 4]], [[0]], [[1, 2]]):
            with self.assertRaises(ValueError):
                inverse(wrong)


def plain_score(later, earlier):
    """By products of d by d matrices; later is one already."""
    product = loops(later, earlier)
    return frobenius(product) / (frobenius(later) * frobenius(earlier))


def two_layers(draw, **options):
    """A model of two blocks whose heads have different widths."""
    blocks = [block_config(3, attention_config(n_heads, d_head, n_kv_heads, **options))
              for n_heads, d_head, n_kv_heads in ((2, 3, 2), (4, 2, 2))]
    base = model_config(D, 4, 6, 0, None)
    config = type(base)(D, 4, 6, blocks, None, base.final_norm, None, None)
    gains = "head" if options else None
    return make_model(config, model_weights(draw, config, gains=gains))


class Scores(unittest.TestCase):

    def test_norms_and_scores_against_plain_products(self):
        for seed in SEEDS:
            draw = Draw(seed)
            maps = [Map(draw.tensor(D, h), draw.tensor(h, D)) for h in (2, 3)]
            plain = [loops(*of) for of in maps]
            for of, matrix in zip(maps, plain):
                assert_close(self, map_norm(of), frobenius(matrix), seed, "norm")
            for a in (0, 1):
                for b in (0, 1):
                    assert_close(self, composition_score(maps[a], maps[b]),
                                 plain_score(plain[a], plain[b]), seed, "score")

    def test_compositions_against_plain_products(self):
        for seed in SEEDS[:2]:
            m = two_layers(Draw(seed))
            found = {(c.earlier, c.later): c for c in compositions(m, n_draws=1)}
            first, second = m.weights.blocks
            config_a, config_b = [block.attention for block in m.config.blocks]
            self.assertEqual(len(found), 2 * 4)
            for a in range(2):
                for b in range(4):
                    c = found[f"L0.attn.H{a}", f"L1.attn.H{b}"]
                    ov_a = matrix_of(ov_map(first.attn, config_a, a))
                    qk_b = matrix_of(qk_map(second.attn, config_b, b))
                    ov_b = matrix_of(ov_map(second.attn, config_b, b))
                    for got, want in ((c.query, plain_score(turned_over(qk_b), ov_a)),
                                      (c.key, plain_score(qk_b, ov_a)),
                                      (c.value, plain_score(ov_b, ov_a))):
                        assert_close(self, got, want, seed, f"{c.earlier} {c.later}")

    def test_query_composition_is_what_the_query_reads(self):
        """A head whose queries read channel 0 and keys channel 1, after one that writes to one of
        the two: the full score by the one, 0 by the other."""
        config = attention_config(1, 1)

        def map_of(rows, **fields):
            w = {"w_q": [[0.0, 0.0]], "w_k": [[0.0, 0.0]], "w_v": [[0.0, 0.0]],
                 "w_o": [[0.0], [0.0]], **fields}
            return rows(circuits.AttentionWeights(*[w.get(name) for name in
                                                    circuits.AttentionWeights.FIELDS]), config, 0)

        qk = map_of(qk_map, w_q=[[1.0, 0.0]], w_k=[[0.0, 1.0]])
        for channel in (0, 1):
            ov = map_of(ov_map, w_v=[[2.0, 5.0]], w_o=[[3.0 - 3.0 * channel], [3.0 * channel]])
            assert_close(self, composition_score(circuits.transposed(qk), ov), 1.0 - channel, 0,
                         "query")
            assert_close(self, composition_score(qk, ov), float(channel), 0, "key")
        self.assertEqual(composition_score(qk, map_of(ov_map)), 0)        # a head that is silent

    def test_a_sum_of_squares_that_rounding_leaves_below_0(self):
        """Maps that are 0 because their factors cancel: the sum is 0 to rounding, of either sign.
        """
        for seed in SEEDS:
            generator = Generator(seed)
            for _ in range(50):
                a, b = generator.uniform(), generator.uniform()
                silent = Map([[a, b], [2 * a, 2 * b]], [[b, 3 * b], [-a, -3 * a]])
                self.assertLess(map_norm(silent), 1e-7 * (a * a + b * b))
                whole = Map([[1.0], [1.0]], [[1.0, 1.0]])
                self.assertGreaterEqual(composition_score(whole, silent), 0)

    def test_what_is_no_number_stays_so(self):
        nan = float("nan")
        self.assertTrue(math.isnan(map_norm(Map([[nan]], [[1.0]]))))
        self.assertTrue(math.isnan(composition_score(Map([[1.0]], [[1.0]]),
                                                     Map([[1.0]], [[nan]]))))

    def test_later_heads_of_some_layers(self):
        draw = Draw(1)
        block = block_config(3, attention_config(2, 2))
        config = model_config(D, 4, 6, 3, block)
        m = make_model(config, model_weights(draw, config))
        every = compositions(m, n_draws=2)
        self.assertEqual(len(every), 4 + 8)
        for layers in ([0], [1], [2], [1, 2], range(3)):
            self.assertEqual(compositions(m, n_draws=2, layers=layers),
                             [c for c in every if int(c.later[1]) in layers])

    def test_there_is_no_row_within_a_layer_or_backwards(self):
        for c in compositions(two_layers(Draw(1)), n_draws=1):
            self.assertEqual((c.earlier[:2], c.later[:2]), ("L0", "L1"))

    def test_normed_queries_leave_value_composition_alone(self):
        m = two_layers(Draw(1), qk_norm=norm_config("rms"))
        for c in compositions(m, n_draws=1):
            self.assertEqual((c.query, c.key), (None, None))
            self.assertGreater(c.value, 0)

    def test_random_heads_do_not_score_0(self):
        """The mean of |L E|² is the mean of |L|² times that of |E|² over d, since no direction is
        like another: the score is near 1 / sqrt(d)."""
        for d in (8, 24):
            self.assertAlmostEqual(random_score(d, 3, 2, n_draws=20) * math.sqrt(d), 1, delta=0.1)
        generator = Generator(5)
        want = [plain_score(*[loops(normal_tensor(generator, (8, h)),
                                    normal_tensor(generator, (h, 8))) for h in (3, 2)])
                for _ in range(3)]
        assert_close(self, random_score(8, 3, 2, n_draws=3, seed=5), sum(want) / 3, 5, "mean")
        self.assertNotEqual(random_score(8, 3, 2, n_draws=3, seed=5),
                            random_score(8, 3, 2, n_draws=3, seed=6))
        with self.assertRaisesRegex(ValueError, "n_draws is 0"):
            random_score(8, 3, 2, n_draws=0)
        baseline = compositions(two_layers(Draw(1)))[0].baseline
        self.assertEqual(baseline, random_score(D, 2, 3, n_draws=100, seed=0))


@unittest.skipUnless(os.environ.get("PYRES_GOLDENS"),
                     "PYRES_GOLDENS is not set: TransformerLens's numbers are not here")
class TransformerLens(unittest.TestCase):
    """Maps, norms and scores to 1e-9; its maps multiply a row vector from the right."""

    def test_circuits(self):
        root = os.environ.get("PYRES_GOLDENS", "")
        with open(os.path.join(root, "transformer_lens.json"), encoding="utf-8") as file:
            goldens = json.load(file)
        for name in ("gpt2_style", "rms_gated"):
            golden = goldens[name]
            tensors = safetensors.read(os.path.join(root, golden["weights"]))
            with self.subTest(name):
                self.check(golden, heads_of(golden["config"], tensors))

    def check(self, golden, heads):
        circuit, n = golden["circuits"], golden["config"]["n_heads"]
        config = attention_config(n, golden["config"]["d_head"])
        maps = {}
        for layer, w in enumerate(heads):
            for head in range(n):
                qk, ov = qk_map(w, config, head), ov_map(w, config, head)
                maps[layer, head] = qk, ov
                self.close(matrix_of(qk), circuit["QK"][layer][head])
                self.close(turned_over(matrix_of(ov)), circuit["OV"][layer][head])
                self.close(map_norm(qk), circuit["QK_frobenius_norm"][layer][head])
                self.close(map_norm(ov), circuit["OV_frobenius_norm"][layer][head])
        for (l1, h1), (_, ov_a) in maps.items():
            for (l2, h2), (qk_b, ov_b) in maps.items():
                for kind, reading in (("Q", circuits.transposed(qk_b)), ("K", qk_b), ("V", ov_b)):
                    want = circuit["composition_scores"][kind][l1][h1][l2][h2]
                    self.close(composition_score(reading, ov_a) if l1 < l2 else 0, want)

    def close(self, got, want):
        assert_close(self, got, want, "golden", "TransformerLens", 1e-9)


def heads_of(config, tensors):
    """AttentionWeights of each layer, from [head][d_model][d_head] and [head][d_head][d_model]."""
    layers = []
    for i in range(config["n_layers"]):
        q, k, v, o = [tensors[f"blocks.{i}.attn.W_{letter}"] for letter in "QKVO"]
        rows = [[row for head in w for row in turned_over(head)] for w in (q, k, v)]
        w_o = turned_over([row for head in o for row in head])
        layers.append(circuits.AttentionWeights(*rows, w_o, *[None] * 6))
    return layers


if __name__ == "__main__":
    unittest.main()
