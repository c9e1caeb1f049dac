"""What writers write, what stands in its place, and how a metric moves with it."""
import math
import unittest
from fractions import Fraction

from pyres.config import attention_config, block_config, model_config
from pyres.edits import replace, scale, set_pattern, shift
from pyres.model import make_model, run, small_model
from pyres.study import effects, references, sensitivity
from pyres.study.metrics import value
from tests.laws import TINY, Draw, flat, inner, model_weights, walk
from tests.models import (FINER, PLACEMENTS, TOKENS, WRITERS, Laws, exact_model, exact_run,
                          float_model, metric_of)


class RawWrites(Laws):

    def test_replacing_a_writer_by_its_own_write_changes_nothing(self):
        own = [scale("L0.attn.H1", 2), scale("L0.attn.H2.S0", 3), scale("L1.mlp", 2),
               replace("L0.attn.H2.S1", [[3, 4]] * 3),
               shift("L1.mlp.N3", [[1, 2]] * 3), replace("L1.attn.H0", [[1, 2]] * 3),
               scale("L0.attn", 3)]
        for placement, given in zip(PLACEMENTS + PLACEMENTS[::4], ([], own) * 4):
            clean = exact_run(1, placement)
            clean = run(clean.model, TOKENS, clean.edits + given)
            for writer in WRITERS + FINER + ("L1.attn.H0", "L0.attn.H2", "L0.attn.H1.S1"):
                again = run(clean.model, TOKENS, clean.edits
                            + [replace(writer, references.raw_write(clean, writer))])
                self.assertEqual(again.logits, clean.logits, f"{placement}, {writer}")

    def test_parts_and_biases_sum_to_the_branchs_output(self):
        clean = exact_run(2, "sandwich")
        steps, w = clean.steps.blocks[1], clean.model.weights.blocks[1]

        def total(names, bias):
            rows = [references.raw_write(clean, name) for name in names]
            return walk(lambda *parts: sum(parts), [bias] * 3, *rows)

        self.assertEqual(total([f"L1.attn.H{h}" for h in range(4)], w.attn.b_o), steps.attn.out)
        self.assertEqual(total(["L1.attn.G0", "L1.attn.G1"], w.attn.b_o), steps.attn.out)
        self.assertEqual(total([f"L1.mlp.N{n}" for n in range(4)], w.mlp.b_down), steps.mlp.out)
        self.assertEqual(total([f"L1.attn.H3.S{s}" for s in range(3)], [0, 0]),
                         references.raw_write(clean, "L1.attn.H3"))

    def test_a_writer_that_is_not_there(self):
        clean = run(small_model(), [0])
        for writer in ("L1.attn", "L0.attn.H1", "L0.mlp.N1", "L0.attn.H0.S1", "final",
                       "L0.attn.bias", "L0.mlp.N²", "L0.mlp.N٠", "L0.mlp.N", "L0.mlp.N0\n"):
            with self.assertRaisesRegex(ValueError, "no writer"):
                references.raw_write(clean, writer)
        for writer in (3, None, ["L0.attn"]):
            with self.assertRaisesRegex(TypeError, "scale: a writer is a name such as 'L0.attn'"):
                run(clean.model, [0], [scale(writer, 0)])

    def test_what_is_off_adds_nothing_whatever_its_weights_are(self):
        """A neuron and a head that write inf or nan, switched off, are as ones that write 0."""
        model, off = float_model(1, "sandwich"), [scale("L1.mlp.N3", 0), scale("L1.attn.H2", 0)]
        block = model.weights.blocks[1]
        want = run(model, TOKENS, off).logits
        for bad in (math.nan, math.inf):
            w_down = [row[:3] + [bad] for row in block.mlp.w_down]
            w_o = [row[:4] + [bad] * 2 + row[6:] for row in block.attn.w_o]
            broken = block._replace(mlp=block.mlp._replace(w_down=w_down),
                                    attn=block.attn._replace(w_o=w_o))
            broken = model._replace(weights=model.weights._replace(
                blocks=[model.weights.blocks[0], broken]))
            self.assertTrue(math.isnan(run(broken, TOKENS).logits[2][0]))
            self.assertEqual(run(broken, TOKENS, off).logits, want)


class References(Laws):

    def test_a_mean_is_weighted_by_count(self):
        """Of 1 and 3, and of 8 in a run by itself: 4, not the last run's 8, nor the mean 5 of the
        runs' means."""
        block = block_config(1, attention_config(1, 1), norm=None, activation="relu")
        config = model_config(1, 3, 4, 1, block, final_norm=None)
        w = model_weights(Draw(1), config, positions=False)
        model = make_model(config, w._replace(w_embed=[[1], [3], [8]]))
        runs = [run(model, [0, 1]), run(model, [2])]
        mean = references.global_mean(runs, "embed")
        self.assertEqual((mean.rows, mean.counts), ([[4.0]], [3]))
        self.assertEqual(references.positional_mean(runs, "embed").rows, [[4.5], [3.0]])
        edited = run(model, [0, 1], [references.mean_edit(runs[0], mean, [1])])
        self.assertEqual(dict(edited.writers)["embed"], [[1], [4.0]])
        off = run(model, [0, 1], [scale("embed", 0, [1])])
        self.assertNotEqual(edited.logits, off.logits, "a mean is not zero")

    def test_means_of_every_kind_of_writer_against_a_loop(self):
        model = exact_model(1, "pre_norm")
        given = [set_pattern(f"L{i}.attn.H{h}", [[1, 0], [Fraction(1, 4), Fraction(3, 4)]])
                 for i in range(2) for h in range(4)]
        norm_of_two = [block._replace(attn_norm=None, mlp_norm=None)
                       for block in model.config.blocks]
        model = model._replace(config=model.config._replace(blocks=norm_of_two, final_norm=None))
        runs = [run(model, tokens, given) for tokens in ([0, 1], [2, 3], [4, 4])]
        for writer in WRITERS + ("L0.attn.H1", "L1.attn.G0", "L0.attn.H2.S0", "L1.mlp.N3"):
            writes = [references.raw_write(r, writer) for r in runs]
            mean = references.positional_mean(runs, writer)
            self.assertEqual(mean.rows, [[sum(write[t][i] for write in writes) / Fraction(3)
                                          for i in range(2)] for t in range(2)], writer)
            self.assertEqual(mean.counts, [3, 3])
            self.assertEqual(references.global_mean(runs, writer).rows,
                             [[(mean.rows[0][i] + mean.rows[1][i]) / 2 for i in range(2)]])

    def test_the_mean_update_is_not_the_update_at_the_mean(self):
        """relu of 2 and of -2: the mean is 1, relu of the mean is 0."""
        block = block_config(1, attention_config(1, 1), norm=None, activation="relu")
        config = model_config(1, 3, 4, 1, block, final_norm=None)
        w = model_weights(Draw(1, int), config, positions=False, biases=False)
        parts = w.blocks[0]
        parts = parts._replace(attn=parts.attn._replace(w_o=[[0]]),
                               mlp=parts.mlp._replace(w_up=[[1]], w_down=[[1]]))
        model = make_model(config, w._replace(w_embed=[[2.0], [-2.0], [0.0]], blocks=[parts]))
        runs = [run(model, [0]), run(model, [1])]
        self.assertEqual(references.positional_mean(runs, "embed").rows, [[0.0]])
        self.assertEqual(dict(run(model, [2]).writers)["L0.mlp"], [[0.0]])
        self.assertEqual(references.positional_mean(runs, "L0.mlp").rows, [[1.0]])

    def test_what_is_refused(self):
        model, other = float_model(1, "pre_norm"), float_model(2, "pre_norm")
        short, long = run(model, [1]), run(model, TOKENS)
        for ask in (references.positional_mean, references.global_mean):
            with self.assertRaisesRegex(ValueError, "1 runs were given"):
                ask([long], "L0.mlp")
            with self.assertRaisesRegex(ValueError, "different weights"):
                ask([long, run(other, TOKENS)], "L0.mlp")
        with self.assertRaisesRegex(ValueError, "derangement: 1 runs"):
            references.resample([long], "L0.mlp")
        with self.assertRaisesRegex(ValueError, "1 to 3 tokens"):
            references.resample([short, long], "L0.mlp")
        with self.assertRaisesRegex(ValueError, "different weights"):
            references.resample([long, run(other, TOKENS)], "L0.mlp")
        mean = references.positional_mean([short, long], "L0.mlp")
        with self.assertRaisesRegex(ValueError, "at position 1 is of 1 runs"):
            references.mean_edit(long, mean)
        with self.assertRaisesRegex(ValueError, "at position 3 is of 0 runs"):
            references.mean_edit(run(model, TOKENS + [1]), mean, [3])
        with self.assertRaisesRegex(ValueError, "other weights"):
            references.mean_edit(run(other, TOKENS), mean)
        edit = references.mean_edit(run(model, TOKENS + [1]), mean, iter([0]))
        self.assertEqual((edit.value[0], edit.positions), (mean.rows[0], [0]))

    def test_derangements(self):
        """All nine of four, about equally often, and never one's own."""
        seen = {}
        for seed in range(900):
            order = tuple(references.derangement(4, seed))
            self.assertEqual(sorted(order), [0, 1, 2, 3])
            self.assertFalse(any(i == j for i, j in enumerate(order)), f"seed {seed}")
            seen[order] = seen.get(order, 0) + 1
        self.assertEqual(len(seen), 9)
        # 100 each are expected; five standard deviations are about 47
        self.assertTrue(all(53 < count < 147 for count in seen.values()), seen)

    def test_resampling_gives_every_run_another_ones_write(self):
        model = float_model(1, "pre_norm")
        runs = [run(model, tokens) for tokens in ([0, 1], [2, 3], [4, 4], [1, 2])]
        order = references.derangement(4, seed=5)
        for writer in ("L0.mlp", "L1.attn.H2"):
            for j, edit in zip(order, references.resample(runs, writer, seed=5)):
                self.assertEqual(edit, replace(writer, references.raw_write(runs[j], writer)))

    def test_a_redirected_head_writes_its_first_tokens_value_everywhere(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        edited = run(clean.model, TOKENS, [references.redirected("L1.attn.H2", 3)])
        write = references.raw_write(edited, "L1.attn.H2")
        self.assertEqual(write[0], write[1])
        self.assertEqual(write[0], write[2])
        self.assertClose(write[0], references.raw_write(clean, "L1.attn.H2")[0], 1)
        self.assertFalse(any(flat(references.raw_write(edited, "L1.attn.H2.S1"))))


class Sensitivities(Laws):

    ALPHAS = (1, 0.5, -2.0, 0)

    def test_the_slope_against_a_complex_alpha(self):
        for placement in PLACEMENTS:
            clean = run(float_model(1, placement), TOKENS)
            metric = metric_of(clean)
            for k, writer in enumerate(WRITERS + FINER):
                alpha = self.ALPHAS[k % 4]
                got = sensitivity.sensitivity(clean, writer, alpha, metric)
                edited = run(clean.model, TOKENS, [scale(writer, complex(alpha, TINY))])
                want = value(edited, metric)
                self.assertClose(got.slope, want.imag / TINY, 1, f"{placement}, {writer}",
                                 tolerance=1e-10, size=abs(got.slope) + 1e-3)
                self.assertClose(got.value, want.real, 1, f"{placement}, {writer}",
                                 size=1 + abs(want))

    def test_with_other_edits_of_the_same_branch_around_it(self):
        others = [scale("L0.attn.H2", 0.5), scale("L0.attn.H2.S0", 3.0), scale("L0.attn", -1.5),
                  scale("L1.mlp.N3", 2.0), shift("L1.attn.H1", [[0.5] * 4] * 3)]
        for placement in PLACEMENTS:
            clean = run(float_model(2, placement), TOKENS, others)
            for writer in FINER + ("L0.attn.G1", "L0.attn", "L1.attn.H1"):
                got = sensitivity.sensitivity(clean, writer, 0.5, metric_of(clean), [1, 2])
                edited = run(clean.model, TOKENS,
                             others + [scale(writer, complex(0.5, TINY), [1, 2])])
                want = value(edited, metric_of(clean)).imag / TINY
                self.assertClose(got.slope, want, 2, f"{placement}, {writer}", tolerance=1e-10,
                                 size=abs(want) + 1e-3)

    def test_at_1_it_is_the_gradient_at_the_output_times_the_update(self):
        for placement in PLACEMENTS:
            clean = exact_run(1, placement)
            gradients = dict(sensitivity.update_gradients(clean, metric_of(clean)))
            off = effects.effects_of(clean, [[scale(writer, 0)] for writer in WRITERS],
                                     metric_of(clean))
            for (writer, update), estimate in zip(clean.writers, off):
                found = sensitivity.sensitivity(clean, writer, 1, metric_of(clean))
                self.assertEqual(found.slope, inner(gradients[writer], update)[0])
                self.assertEqual(found.value, value(clean, metric_of(clean)))
                self.assertEqual(estimate.first_order, -found.slope)

    def test_a_branchs_slope_is_its_heads_and_its_bias_together(self):
        for placement in ("parallel", "sandwich", "post_norm"):
            clean = exact_run(2, placement)
            metric = metric_of(clean)
            gradients = sensitivity.update_gradients(clean, metric)
            d_out = sensitivity.write_gradient(clean, "L1.attn.H0", gradients)
            slopes = [sensitivity.sensitivity(clean, f"L1.attn.H{h}", 1, metric).slope
                      for h in range(4)]
            bias = [clean.model.weights.blocks[1].attn.b_o] * 3
            self.assertEqual(sum(slopes) + inner(d_out, bias)[0],
                             inner(d_out, clean.steps.blocks[1].attn.out)[0])
            groups = [sensitivity.sensitivity(clean, f"L1.attn.G{g}", 1, metric).slope
                      for g in range(2)]
            self.assertEqual(groups, [slopes[0] + slopes[1], slopes[2] + slopes[3]])

    def test_a_sweep_is_its_points(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        seen = []
        points = sensitivity.sweep(clean, "L0.attn.H1", self.ALPHAS, metric_of(clean), [2],
                                   progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(points, [sensitivity.sensitivity(clean, "L0.attn.H1", alpha,
                                                          metric_of(clean), [2])
                                  for alpha in self.ALPHAS])
        self.assertEqual(seen, [(1, 4), (2, 4), (3, 4), (4, 4)])
        once = sensitivity.sweep(clean, "L0.attn.H1", iter(self.ALPHAS), metric_of(clean),
                                 iter([2]))
        self.assertEqual(once, points)
        self.assertEqual(sensitivity.sensitivity(clean, "L0.attn.H1", 1, metric_of(clean),
                                                 iter([2])), points[0])


if __name__ == "__main__":
    unittest.main()
