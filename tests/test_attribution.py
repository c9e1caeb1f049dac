"""Laws of pyres.study.attribution: rows and constant sum to the number, on every kind of model."""
import math
import unittest
from fractions import Fraction

import pyres
from pyres import edits, linalg
from pyres.model import run, small_model
from pyres.study import metrics
from pyres.study.attribution import contributions, log_probability, score_contributions
from pyres.study.writers import partition
from tests.laws import Draw, assert_close, model_weights
from tests.placements import EXACT_NORMS, TOKENS, edits_of_all, exact_models, float_models

FINEST = {"attn": "source", "mlp": "neuron", "embed": "parts"}


def metrics_of(model, position, draw):
    """A Metric of every kind."""
    direction = draw.tensor(model.config.d_model)
    return [metrics.logit(model, position, 3), metrics.logit(model, position, 3, foil=1),
            metrics.centred_logit(model, position, 3), metrics.along(model, position, direction),
            metrics.along(model, position, direction, normed=False)]


class AttributionLaws(unittest.TestCase):
    def close(self, got, want, seed, what):
        assert_close(self, got, want, seed, what)


class FrozenScale(AttributionLaws):

    def test_in_floats_rows_and_constant_sum_to_the_logit_before_the_cap(self):
        for seed in (1, 2):
            for label, model in float_models(seed):
                r = run(model, TOKENS)
                for t in (0, 2):
                    for split in (None, partition(r, position=t, **FINEST)):
                        found = contributions(r, metrics.logit(model, t, 3), split)
                        with self.subTest(label, seed=seed, position=t):
                            total = sum(value for _, value in found.rows) + found.constant
                            self.close(total, r.steps.raw_logits[t][3], seed, label)
                            self.assertTrue(found.check.ok, str(found.check))
                            self.assertLess(found.check.tolerance, 1e-10)
                        difference = contributions(r, metrics.logit(model, t, 3, 1), split)
                        raw = r.steps.raw_logits[t]
                        self.close(difference.total, raw[3] - raw[1], seed, label)

    def test_in_fractions_with_equality(self):
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns)
            for t in (0, 2):
                for split in (None, partition(r, "head", "neuron", "parts")):
                    with self.subTest(label, position=t):
                        found = contributions(r, metrics.logit(model, t, 4), split)
                        total = sum(value for _, value in found.rows) + found.constant
                        self.assertEqual(total, r.logits[t][4])
                        self.assertEqual((found.check.error, found.check.tolerance,
                                          found.check.exact), (0, 0, True))
                        for metric in metrics_of(model, t, Draw(5, Fraction)):
                            found = contributions(r, metric, split)
                            self.assertEqual(found.total, metrics.value(r, metric), metric.name)

    def test_any_direction(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            for metric in metrics_of(model, 1, Draw(6)):
                with self.subTest(label, metric=metric.name):
                    found = contributions(r, metric, partition(r, "head", position=1))
                    self.close(found.total, metrics.value(r, metric), 1, label)
                    self.assertTrue(found.check.ok)

    def test_centred_logits_sum_to_0_over_the_vocabulary(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            every = [contributions(r, metrics.centred_logit(model, 2, v)) for v in range(5)]
            for k, (name, _) in enumerate(every[0].rows):
                values = [found.rows[k][1] for found in every]
                with self.subTest(label, name=name):
                    self.assertLess(abs(sum(values)), 1e-12 * sum(map(abs, values)))

    def test_edited_runs(self):
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns + edits_of_all(Draw(7, Fraction), 2))
            for split in (None, partition(r, "head", "branch", "parts", position=2)):
                with self.subTest(label):
                    found = contributions(r, metrics.logit(model, 2, 4), split)
                    self.assertEqual(found.total, r.logits[2][4])
            given = Draw(8, Fraction).tensor(3, 2)
            r = run(model, TOKENS, patterns + [edits.set_state("L0.mlp", given)])
            found = contributions(r, metrics.logit(model, 2, 4))
            self.assertEqual((found.rows[0][0], found.total), ("L0.mlp", r.logits[2][4]))

    def test_an_ablations_direct_effect_is_minus_the_contribution(self):
        """With everything later kept as it was and the divisor held, by hand."""
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns)
            metric = metrics.logit(model, 2, 4)
            value = dict(contributions(r, metric).rows)["L1.mlp"]
            kept = [edits.replace(name, update) for name, update in r.writers[:-1]]
            off = run(model, TOKENS, patterns + kept + [edits.scale("L1.mlp", 0)])
            if label.startswith("post_norm"):           # its norm moves, and with it every write
                continue
            change = linalg.dot(linalg.subtract(off.states[-1][1][2], r.states[-1][1][2]),
                                metric.direction) / metrics.final_scale(r, metric)
            with self.subTest(label):
                self.assertEqual(change, -value)

    def test_no_weight_needs_folding(self):
        """Folded by hand: the gain into the unembedding, centred; the same rows."""
        for label, model in float_models(1):
            norm, w = model.config.final_norm, model.weights
            if norm is None:
                continue
            r = run(model, TOKENS)
            times = model.config.logit_multiplier or 1
            row = (w.w_unembed or w.w_embed)[3]
            folded = [times * g * a for g, a in zip(w.final_norm.gain, row)]
            if norm.kind == "layer":
                folded = [a - sum(folded) / 6 for a in folded]
            split = partition(r, "head")
            scale = r.steps.final_norm.scale[1]
            want = [linalg.dot(rows[1], folded) / scale for _, rows in split.rows]
            found = contributions(r, metrics.logit(model, 1, 3), split)
            with self.subTest(label):
                self.close([value for _, value in found.rows], want, 1, label)

    def test_a_check_that_fails(self):
        label, model = float_models(1)[0]
        r = run(model, TOKENS)
        split = partition(r, "head")
        wrong = split._replace(rows=split.rows[:-1])
        self.assertFalse(contributions(r, metrics.logit(model, 1, 3), wrong).check.ok)
        self.assertFalse(contributions(r, metrics.logit(model, 1, 3), wrong, "gradient").check.ok)


class Gradient(AttributionLaws):

    def test_each_row_is_the_slope_in_the_write(self):
        """By a complex step: the metric of the stream with a little more of one write."""
        tiny = 1e-30
        for label, model in float_models(1):
            if model.config.blocks[0].placement == "post_norm":
                continue
            r = run(model, TOKENS)
            metric = metrics.logit(model, 1, 3)
            found = contributions(r, metric, partition(r, "head"), "gradient")
            for (name, rows), (_, value) in zip(partition(r, "head").rows, found.rows):
                moved = [complex(a, tiny * b) for a, b in zip(r.states[-1][1][1], rows[1])]
                w, norm = model.weights, model.config.final_norm
                normed = pyres.norm_steps([moved], w.final_norm, norm).out
                logit = linalg.dot(normed[0], (w.w_unembed or w.w_embed)[3])
                with self.subTest(label, name=name):
                    times = model.config.logit_multiplier or 1
                    self.assertLess(abs(value - times * logit.imag / tiny),
                                    1e-12 * max(abs(v) for _, v in found.rows))

    def test_the_rows_sum_to_almost_0_which_is_eps(self):
        for seed in (1, 2):
            for label, model in float_models(seed):
                norm, r = model.config.final_norm, run(model, TOKENS)
                for metric in metrics_of(model, 2, Draw(9))[:4]:
                    found = contributions(r, metric, method="gradient")
                    want = metrics.value(r, metric) - metric.constant
                    if norm is not None:
                        want *= norm.eps / r.steps.final_norm.scale[2] ** 2
                    size = sum(abs(value) for _, value in found.rows)
                    with self.subTest(label, metric=metric.name, seed=seed):
                        self.assertLess(abs(found.total - want), 1e-12 * size)
                        self.assertTrue(found.check.ok)
                        self.assertEqual(found.constant, 0)

    def test_with_a_given_divisor_both_methods_are_one(self):
        for label, model, patterns in exact_models(3):
            if model.config.final_norm == EXACT_NORMS[-1][1]:
                continue
            r = run(model, TOKENS, patterns)
            metric = metrics.logit(model, 2, 4)
            with self.subTest(label):
                self.assertEqual(contributions(r, metric, method="gradient").rows,
                                 contributions(r, metric).rows)

    def test_refusals(self):
        model = small_model()
        r = run(model, [0, 1])
        for call, message in (
                (lambda: contributions(r, metrics.logit(model, 0, 0), method="integrated"),
                 "no method 'integrated'; there are frozen_scale, gradient"),
                (lambda: contributions(r, metrics.logit(model, 2, 0)), "no position 2"),
                (lambda: contributions(r, metrics.logit(model, 0, 0), partition(r, position=1)),
                 "position 0 is not in it")):
            with self.assertRaisesRegex(ValueError, message):
                call()


class LogProbability(AttributionLaws):

    def test_refused_unless_a_linearisation_is_named(self):
        label, model = float_models(1)[0]
        r = run(model, TOKENS)
        for name in (None, "gradient"):
            with self.assertRaisesRegex(ValueError, "ask for a logit less a foil's"):
                log_probability(r, 1, 3, name)
        with self.assertRaisesRegex(ValueError, "there is no token 9"):
            log_probability(r, 1, 9, "probabilities")
        with self.assertRaisesRegex(ValueError, "no position 3"):
            log_probability(r, 3, 1, "probabilities")

    def test_without_a_cap_its_value_is_the_log_probability_and_the_entropy(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            metric = log_probability(r, 1, 3, "probabilities")
            found = contributions(r, metric)
            self.assertTrue(found.check.ok)
            if model.config.logit_soft_cap is None:
                log_p = pyres.log_softmax(r.logits[1])
                entropy = -sum(math.exp(a) * a for a in log_p)
                with self.subTest(label):
                    self.close(found.total, log_p[3] + entropy, 1, label)

    def test_it_is_the_slope_of_the_log_probability(self):
        """The final stream moved along a write, at a frozen divisor: by a complex step."""
        tiny = 1e-30
        for label, model in float_models(1):
            r = run(model, TOKENS)
            metric = log_probability(r, 1, 3, "probabilities")
            divisor, w, config = metrics.final_scale(r, metric), model.weights, model.config
            stream = r.states[-1][1][1]
            for name, value in contributions(r, metric).rows[:3]:
                write = dict(partition(r).rows)[name][1]
                moved = [complex(a, tiny * b) for a, b in zip(stream, write)]
                if config.final_norm is not None:
                    mean = sum(moved) / 6 if config.final_norm.kind == "layer" else 0
                    moved = [g * (a - mean) / divisor for g, a in zip(w.final_norm.gain, moved)]
                    if w.final_norm.bias is not None:
                        moved = linalg.add(moved, w.final_norm.bias)
                raw = pyres.model.unembed(config, w, [moved])
                logits = pyres.model.soft_capped(raw, config.logit_soft_cap)[0]
                slope = pyres.log_softmax(logits)[3].imag / tiny
                with self.subTest(label, name=name):
                    self.assertLess(abs(slope - value), 1e-12 * max(1, abs(value)))


class Scores(AttributionLaws):

    def test_the_table_sums_to_the_recorded_score(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            for head, t, s in (("L0.attn.H1", 2, 2), ("L1.attn.H0", 2, 1), ("L1.attn.H3", 1, 0)):
                i, h = int(head[1]), int(head[-1])
                cap = model.config.blocks[i].attention.soft_cap
                for grain in ({}, {"attn": "head", "mlp": "neuron", "embed": "parts"}):
                    found = score_contributions(r, head, t, s, **grain)
                    total = sum(sum(row) for row in found.table)
                    got = total if cap is None else cap * math.tanh(total / cap)
                    with self.subTest(label, head=head, **grain):
                        self.close(got, r.steps.blocks[i].attn.scores[h][t][s], 1, label)
                        self.assertTrue(found.check.ok, str(found.check))
                        self.assertEqual((len(found.table), len(found.table[0])),
                                         (len(found.queries), len(found.keys)))
                        self.assertEqual((found.queries[-1], found.keys[-1]), ("bias", "bias"))

    def test_a_row_is_what_the_writers_query_scores(self):
        """Without norms every entry is multiplier * (W_q u_j) . (W_k u_k), by loops; the biases
        are a row of their own."""
        block = pyres.block_config(4, pyres.attention_config(2, 3), norm=None)
        config = pyres.model_config(5, 6, 4, 2, block)
        model = pyres.make_model(config, model_weights(Draw(3), config))
        r = run(model, TOKENS)
        w = model.weights.blocks[1].attn
        writers = dict(r.writers)
        found = score_contributions(r, "L1.attn.H1", 2, 1)
        self.assertEqual(found.queries, ["embed", "L0.attn", "L0.mlp", "bias"])

        def channel(matrix, bias, name, t, c):
            if name == "bias":
                return bias[c]
            return sum(matrix[c][i] * writers[name][t][i] for i in range(5))

        for j, of_query in enumerate(found.queries):
            for k, of_key in enumerate(found.keys):
                want = sum(channel(w.w_q, w.b_q, of_query, 2, c)
                           * channel(w.w_k, w.b_k, of_key, 1, c) for c in (3, 4, 5))
                self.close(found.table[j][k], want / math.sqrt(3), 3, f"{of_query} {of_key}")

    def test_after_a_state_was_set_and_with_edits(self):
        for label, model in float_models(1):
            given = [edits.set_state("embed", Draw(3).tensor(3, 6)), edits.scale("L0.mlp", 2.0)]
            r = run(model, TOKENS, given)
            found = score_contributions(r, "L1.attn.H2", 2, 1)
            with self.subTest(label):
                self.assertTrue(found.check.ok)
                self.assertEqual(found.queries[0], "embed")

    def test_refusals(self):
        label, model = float_models(1)[0]
        pattern = [[1.0, 0.0, 0.0]] * 3
        clean, given = run(model, TOKENS), run(model, TOKENS, [
            edits.set_pattern("L0.attn.H1", pattern)])
        for call, message in (
                (lambda: score_contributions(clean, "L0.attn", 1, 0), "no head 'L0.attn'"),
                (lambda: score_contributions(clean, "L0.attn.H9", 1, 0), "no head"),
                (lambda: score_contributions(clean, "L0.attn.H1", 0, 1), "does not see"),
                (lambda: score_contributions(clean, "L0.attn.H1", 3, 1), "no position 3"),
                (lambda: score_contributions(given, "L0.attn.H1", 1, 0),
                 "pattern of L0.attn.H1 was given")):
            with self.assertRaisesRegex(ValueError, message):
                call()
        self.assertTrue(score_contributions(given, "L0.attn.H0", 1, 0).check.ok)


if __name__ == "__main__":
    unittest.main()
