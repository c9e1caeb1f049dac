"""Laws of pyres.study.lens: the last state is the model, the frozen lens adds up, J is a slope."""
import math
import unittest
from fractions import Fraction

import pyres
from pyres import edits, linalg
from pyres.model import run
from pyres.rng import Generator
from pyres.study import metrics
from pyres.study.attribution import contributions
from pyres.study.lens import (best, jacobians, lens, lens_logits, rank, raw_lens_logits, reading,
                              streams)
from pyres.study.writers import partition
from tests.laws import Draw, assert_close
from tests.placements import TOKENS, exact_models, float_models

NAN, INFINITY = float("nan"), float("inf")


class LensLaws(unittest.TestCase):
    def close(self, got, want, seed, what):
        assert_close(self, got, want, seed, what)


class Logits(LensLaws):

    def test_at_the_last_state_every_method_gives_the_runs_logits(self):
        for seed in (1, 2):
            for label, model in float_models(seed):
                r = run(model, TOKENS)
                with self.subTest(label, seed=seed):
                    self.assertEqual(lens_logits(r, "L1.mlp"), r.logits)
                    self.assertEqual(lens_logits(r, "L1.mlp", "jacobian", [2]), r.logits[2:])
                    self.close(lens_logits(r, "L1.mlp", "frozen"), r.logits, seed, label)

    def test_own_statistics_by_loops(self):
        for label, model in float_models(1):
            norm, w, config = model.config.final_norm, model.weights, model.config
            if norm is None:
                continue
            r = run(model, TOKENS)
            for name, state in r.states:
                for x, got in zip(state, raw_lens_logits(r, name)):
                    mean = sum(x) / 6 if norm.kind == "layer" else 0
                    spread = math.sqrt(sum((a - mean) ** 2 for a in x) / 6 + norm.eps)
                    normed = [g * (a - mean) / spread + b for a, g, b in zip(
                        x, w.final_norm.gain, w.final_norm.bias or [0] * 6)]
                    want = [(config.logit_multiplier or 1) * sum(
                        a * b for a, b in zip(row, normed)) for row in w.w_unembed or w.w_embed]
                    want = linalg.add(want, w.b_unembed or [0] * 5)
                    self.close(got, want, 1, f"{label} {name}")

    def test_the_public_example_of_the_last_layer(self):
        """A gain, a shift and an unembedding bias, none of them left out; one norm, not two."""
        block = pyres.block_config(1, pyres.attention_config(1, 1), norm=None)
        config = pyres.model_config(3, 3, 1, 0, block, final_norm=pyres.norm_config("layer", 0))
        table = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        model = pyres.make_model(config, pyres.ModelWeights(
            [[0.0, 3.0, 6.0]] * 3, None, [], pyres.NormWeights([2.0, 1.0, 1.0], [0.0, 0.0, 1.0]),
            table, [0.0, 0.0, 0.5]))
        r = run(model, [0])
        want = [-2.449489743, 0.0, 2.724744871]
        for logits in (r.logits, lens_logits(r, "embed"), lens_logits(r, "embed", "frozen"),
                       lens_logits(r, "embed", "jacobian")):
            for a, b in zip(logits[0], want):
                self.assertAlmostEqual(a, b, delta=1e-9)

    def test_the_frozen_lens_is_the_sum_of_the_writers_so_far(self):
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns)
            for name, _ in r.states:
                split = partition(r, state=name)
                got = raw_lens_logits(r, name, "frozen")
                with self.subTest(label, state=name):
                    for t in range(3):
                        for v in range(5):
                            found = contributions(r, metrics.logit(model, t, v), split)
                            self.assertEqual(got[t][v], found.total)
                            self.assertTrue(found.check.ok)

    def test_the_frozen_lens_in_floats(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            for name, _ in r.states:
                got = raw_lens_logits(r, name, "frozen", [1])[0]
                found = contributions(r, metrics.logit(model, 1, 3),
                                      partition(r, "head", state=name))
                self.close(got[3], found.total, 1, f"{label} {name}")

    def test_only_the_frozen_lens_adds_up(self):
        """The step from a state to the next by own statistics is not what the writer gives."""
        label, model = float_models(1)[0]
        r = run(model, TOKENS)
        value = dict(contributions(r, metrics.logit(model, 2, 3)).rows)["L1.attn"]
        steps = [raw_lens_logits(r, "L1.attn", method)[2][3]
                 - raw_lens_logits(r, "L0.mlp", method)[2][3] for method in ("frozen", "own")]
        self.close(steps[0], value, 1, label)
        self.assertGreater(abs(steps[1] - value), 1e-3)

    def test_positions_are_rows(self):
        for label, model in float_models(1)[::3]:
            r = run(model, TOKENS)
            for method in ("own", "frozen", "jacobian"):
                whole = raw_lens_logits(r, "embed", method)
                with self.subTest(label, method=method):
                    self.assertEqual(raw_lens_logits(r, "embed", method, [2, 0]),
                                     [whole[2], whole[0]])

    def test_a_given_divisor_a_token(self):
        """exact_models has such norms: own and frozen are then one."""
        for label, model, patterns in exact_models(3):
            if "layer of two" in label:
                continue
            r = run(model, TOKENS, patterns)
            with self.subTest(label):
                for name, _ in r.states:
                    self.assertEqual(raw_lens_logits(r, name, "own", [1, 2]),
                                     raw_lens_logits(r, name, "frozen", [1, 2]))

    def test_nothing_is_changed(self):
        label, model = float_models(1)[0]
        r = run(model, TOKENS)
        before = [[list(row) for row in state] for _, state in r.states]
        for _, rows in streams(r):
            for row in rows:
                row[0] = 1e9
        self.assertEqual([state for _, state in r.states], before)


class Jacobians(LensLaws):

    def test_against_a_complex_step(self):
        tiny, t = 1e-30, 1
        for label, model in float_models(1):
            r = run(model, TOKENS)
            found = dict(jacobians(r, t))
            for name, state in r.states:
                for j in (0, 4):
                    moved = [[complex(a, tiny if (s, i) == (t, j) else 0)
                              for i, a in enumerate(row)] for s, row in enumerate(state)]
                    final = run(model, TOKENS, [edits.set_state(name, moved)]).states[-1][1][t]
                    want = [a.imag / tiny for a in final]
                    got = [row[j] for row in found[name]]
                    with self.subTest(label, state=name, channel=j):
                        self.close(got, want, 1, f"{label} {name} {j}")

    def test_in_fractions_it_is_the_difference_where_all_is_linear(self):
        """relu is linear where no sign changes, and a given divisor and pattern are constants."""
        for label, model, patterns in exact_models(3):
            if "given layer" not in label:
                continue
            r, small = run(model, TOKENS, patterns), Fraction(1, 10 ** 9)
            for name, state in r.states[:2]:
                for j in (0, 1):
                    moved = [list(row) for row in state]
                    moved[2][j] += small
                    after = run(model, TOKENS, patterns + [edits.set_state(name, moved)])
                    want = [(a - b) / small for a, b in zip(after.states[-1][1][2],
                                                            r.states[-1][1][2])]
                    with self.subTest(label, state=name):
                        self.assertEqual([row[j] for row in dict(jacobians(r, 2))[name]], want)

    def test_the_lens_reads_the_product(self):
        """Of a model without a final norm, by loops."""
        label, model = float_models(1)[2]
        r, w = run(model, TOKENS), model.weights
        for name, j in jacobians(r, 1):
            x = dict(r.states)[name][1]
            product = [sum(row[c] * x[c] for c in range(6)) for row in j]
            want = [sum(a * b for a, b in zip(row, product)) + b_v
                    for row, b_v in zip(w.w_unembed, w.b_unembed)]
            self.close(raw_lens_logits(r, name, "jacobian", [1]), [want], 1, name)

    def test_at_the_last_state_it_is_the_identity(self):
        label, model = float_models(1)[0]
        name, j = jacobians(run(model, TOKENS), 0)[-1]
        self.assertEqual((name, j), ("L1.mlp", [[float(a == b) for b in range(6)]
                                               for a in range(6)]))

    def test_without_branches_it_is_the_identity_everywhere(self):
        label, model = float_models(1)[0]
        off = [edits.scale(f"L{i}.{branch}", 0) for i in (0, 1) for branch in ("attn", "mlp")]
        r = run(model, TOKENS, off)
        for name, j in jacobians(r, 1):
            self.assertEqual(j, [[float(a == b) for b in range(6)] for a in range(6)], name)
        for name, rows in streams(r, "jacobian"):
            self.assertEqual(rows, dict(r.states)[name])


class Readings(LensLaws):

    def test_by_definition(self):
        for seed in (1, 2, 3):
            draw = Draw(seed, size=3)
            logits, final = draw.tensor(7), draw.tensor(7)
            said = reading(logits, final, target=4, top=3)
            total = sum(math.exp(a) for a in logits)
            p = [math.exp(a) / total for a in logits]
            q = [math.exp(a) / sum(math.exp(b) for b in final) for a in final]
            order = sorted(range(7), key=lambda v: -logits[v])
            with self.subTest(seed=seed):
                self.assertEqual([token for token, _ in said.guesses], order[:3])
                self.close([share for _, share in said.guesses], [p[v] for v in order[:3]], seed,
                           "probabilities")
                self.assertEqual(said.rank, order.index(4) + 1)
                self.close(said.probability, p[4], seed, "probability")
                self.close(said.entropy, -sum(a * math.log(a) for a in p), seed, "entropy")
                self.close(said.kl, sum(b * math.log(b / a) for a, b in zip(p, q)), seed, "kl")

    def test_knowing_nothing_and_all(self):
        even = reading([1.5] * 8, [1.5] * 8, 7)
        self.assertAlmostEqual(even.entropy, math.log(8), delta=1e-15)
        self.assertEqual((even.kl, even.rank), (0.0, 8))
        sure = reading([0.0, 1e4], [0.0, 1e4], 1)
        self.assertEqual((sure.entropy, sure.kl, sure.rank, sure.probability), (0.0, 0.0, 1, 1.0))
        self.assertEqual(str(sure.entropy), "0.0")
        wrong = reading([1e4, 0.0], [0.0, 1e4], 1)
        self.assertEqual((wrong.kl, wrong.rank), (1e4, 2))

    def test_equal_logits_stand_in_the_order_of_their_ids(self):
        generator = Generator(4)
        for _ in range(20):
            logits = [float(generator.below(3)) for _ in range(6)]
            order = best(logits, 6)
            self.assertEqual(order, [v for a in (2.0, 1.0, 0.0) for v in range(6)
                                     if logits[v] == a])
            self.assertEqual([rank(logits, v) for v in order], [1, 2, 3, 4, 5, 6])
            self.assertEqual(best(logits), order[:1])

    def test_what_is_not_finite_is_not_ranked(self):
        for bad in (NAN, INFINITY, -INFINITY):
            for call in (lambda: best([0.0, bad]), lambda: rank([0.0, bad], 0)):
                with self.assertRaisesRegex(ValueError, "the logit of token 1 is"):
                    call()
            self.assertEqual(list(reading([0.0, bad], [0.0, 1.0], 0)), [None] * 5)
            self.assertEqual(list(reading([0.0, 1.0], [bad, 1.0], 0)), [None] * 5)

    def test_a_nan_in_the_model_is_said_and_other_positions_are_read(self):
        label, model = float_models(1)[0]
        w = model.weights
        spoilt = [list(row) for row in w.w_embed]
        spoilt[4][0] = NAN
        model = pyres.make_model(model.config, w._replace(w_embed=spoilt))
        for one in lens(run(model, TOKENS)):
            self.assertIsNotNone(one.readings[0].guesses)
            self.assertEqual(list(one.readings[1]), [None] * 5)

    def test_lens_reads_every_state(self):
        label, model = float_models(1)[4]                   # its logits are soft-capped
        r = run(model, TOKENS)
        for method in ("own", "frozen", "jacobian"):
            found = lens(r, method, targets=[3, 1], top=2, positions=[0, 2])
            self.assertEqual([one.name for one in found], [name for name, _ in r.states])
            for one in found:
                logits = lens_logits(r, one.name, method, [0, 2])
                self.assertEqual(one.readings, [
                    reading(row, r.logits[t], target, 2)
                    for row, t, target in zip(logits, (0, 2), (3, 1))])
        [one] = lens(r, states=["L0.mlp"])
        self.assertEqual((one.name, len(one.readings)), ("L0.mlp", 3))
        last = lens(r)[-1]
        self.assertEqual([(said.rank, said.kl) for said in last.readings], [(1, 0.0)] * 3)

    def test_refusals(self):
        label, model = float_models(1)[0]
        r = run(model, TOKENS)
        for call, message in (
                (lambda: lens(r, "tuned"), "no method 'tuned'; there are own, frozen, jacobian"),
                (lambda: lens(r, positions=[3]), "no position 3"),
                (lambda: lens(r, positions=[]), "positions is empty"),
                (lambda: rank([0.0, 1.0], -1), "no token -1; there are 2 logits"),
                (lambda: reading([0.0, 1.0], [0.0, 1.0], 2), "no token 2"),
                (lambda: lens(r, states=["L2.mlp"]), "no state 'L2.mlp'"),
                (lambda: lens(r, targets=[1]), "1 targets for 3 positions"),
                (lambda: lens(r, targets=[1, 1, 5]), "the target 5 is no token"),
                (lambda: lens_logits(r, "L0"), "no state 'L0'"),
                (lambda: jacobians(r, -1), "no position -1")):
            with self.assertRaisesRegex(ValueError, message):
                call()


if __name__ == "__main__":
    unittest.main()
