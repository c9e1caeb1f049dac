"""Effects of edits: identities on random models, each part with a second formula.

In floats the identities hold to rounding; with given norms and patterns, in Fractions, with ==.
"""
import concurrent.futures
import itertools
import unittest
from fractions import Fraction

from pyres import linalg
from pyres.edits import replace, scale, set_pattern, set_state, shift
from pyres.model import run, small_model
from pyres.study import effects, references, sensitivity
from pyres.study.metrics import along, final_scale, logit, value
from tests.laws import TINY, Draw, copied, walk
from tests.models import (FINER, PLACEMENTS, SEEDS, SUMMED, TOKENS, WRITERS, Laws,
                          edits_of_every_kind, exact_run, float_model, metric_of)


class Splits(Laws):

    def test_the_parts_sum_to_what_the_two_runs_say(self):
        for seed, placement in zip(SEEDS * 3, PLACEMENTS):
            clean = run(float_model(seed, placement, "rms" if seed == 2 else "layer"), TOKENS)
            metric = metric_of(clean)
            lists = edits_of_every_kind(Draw(seed), 4)
            for edits, found in zip(lists, effects.effects_of(clean, lists, metric)):
                what = f"{placement}, {edits}"
                edited = run(clean.model, TOKENS, edits)
                size = 1 + max(abs(part) for part in found[:6])
                self.assertClose(found.total, value(edited, metric) - value(clean, metric), seed,
                                 what, size=size)
                self.assertTrue(found.check.ok, f"{what}, seed {seed}: {found.check}")
                self.assertTrue(found.check.tolerance < 1e-11 * size, str(found.check))
                self.assertEqual(found.edited_run.logits, edited.logits, what)

    def test_in_fractions_with_equality(self):
        for placement, kind in zip(PLACEMENTS, ("layer", "rms") * 3):
            clean = exact_run(3, placement, kind)
            lists = [edits for edits in edits_of_every_kind(Draw(3, Fraction), 2)]
            for edits, found in zip(lists, effects.effects_of(clean, lists, metric_of(clean))):
                what = f"{placement}, {edits}"
                self.assertEqual(found.total, found.after - found.before, what)
                self.assertEqual((found.check.error, found.check.tolerance, found.check.exact),
                                 (0, 0, True), what)
                self.assertEqual(found.rescale, 0, "the norms' scales are given")
                self.assertIn(type(found.total), (int, Fraction))

    def test_each_part_by_its_own_formula(self):
        """e - u is read off runs with one branch's edits, where nothing before it differs."""
        for seed, placement in zip(SEEDS * 2, SUMMED):
            clean = run(float_model(seed, placement), TOKENS)
            metric = metric_of(clean)
            w, s = metric.direction, final_scale(clean, metric)

            def share(rows, others):
                return sum((a - b) * c for a, b, c in zip(rows[2], others[2], w)) / s

            lists = edits_of_every_kind(Draw(seed), 4)
            for edits, found in zip(lists, effects.effects_of(clean, lists, metric)):
                after = dict(found.edited_run.writers)
                alone = dict(clean.writers)
                for branch in {references.branch_of(edit.writer) for edit in edits}:
                    own = [edit for edit in edits if references.branch_of(edit.writer) == branch]
                    alone[branch] = dict(run(clean.model, TOKENS, own).writers)[branch]
                what, size = f"{placement}, {edits}", 1 + max(abs(part) for part in found[:6])
                self.assertClose(found.direct, sum(share(alone[name], update)
                                                   for name, update in clean.writers),
                                 seed, what, size=size)
                self.assertEqual([name for name, _ in found.ledger], list(WRITERS))
                for name, got in found.ledger:
                    self.assertClose(got, share(after[name], alone[name]), seed,
                                     f"{name}, {what}", size=size)

    def test_the_ledger_is_0_before_the_edit_and_at_it(self):
        for placement in SUMMED:
            clean = run(float_model(1, placement), TOKENS)
            for i, writer in enumerate(WRITERS + FINER):
                found = effects.effect(clean, [scale(writer, 0)], metric_of(clean))
                place = WRITERS.index(references.branch_of(writer))
                rows = [part for _, part in found.ledger]
                self.assertEqual(rows[:place + 1], [0.0] * (place + 1), f"{placement}, {writer}")
                blind = place + 1
                if placement == "parallel" and ".attn" in writer:
                    self.assertEqual(rows[blind], 0.0, "the MLP does not read its own attention")
                    blind += 1
                self.assertTrue(all(rows[blind:]), f"{placement}, {writer}: {found.ledger}")
                self.assertEqual(found.downstream == 0, place == 4 or blind == 5)

    def test_the_direct_effect_of_an_ablation_is_minus_the_contribution(self):
        for seed, placement in itertools.product(SEEDS, SUMMED):
            clean = run(float_model(seed, placement), TOKENS)
            metric = metric_of(clean)
            parts = [effects.effect(clean, [scale(writer, 0)], metric).direct
                     for writer in WRITERS]
            self.assertClose(-sum(parts) + metric.constant, value(clean, metric), seed, placement,
                             size=sum(map(abs, parts)))

    def test_under_post_norm_the_direct_effects_and_the_biases_sum_to_the_metric(self):
        for seed in SEEDS:
            clean = exact_run(seed, "post_norm", "rms")         # RMSNorm has no bias
            metric = metric_of(clean)
            parts = [effects.effect(clean, [scale(writer, 0)], metric).direct
                     for writer in WRITERS]
            self.assertEqual(metric.constant - sum(parts), value(clean, metric))

    def test_under_post_norm_inner_norms_rescale_what_stood_before(self):
        clean = run(float_model(1, "post_norm"), TOKENS)
        found = effects.effect(clean, [scale("L1.mlp", 0)], metric_of(clean))
        rows = dict(found.ledger)
        self.assertTrue(all(rows[name] for name in WRITERS[:4]), found.ledger)
        self.assertEqual(rows["L1.mlp"], 0.0, "nothing of it is left to rescale")
        self.assertEqual(rows["L1.mlp.norm_bias"], 0.0, "the last norm adds the same")
        self.assertTrue(rows["L0.attn.norm_bias"])

    def test_a_metric_without_the_final_norm_knows_no_rescaling(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        bare = along(clean.model, 2, [1.0, -2.0, 0.5, 3.0], normed=False)
        found = effects.effect(clean, [scale("L0.mlp", 0)], bare)
        self.assertEqual(found.rescale, 0.0)
        self.assertTrue(found.check.ok and found.downstream)

    def test_a_planted_lie_is_seen(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        name, rows = clean.writers[2]
        lied = clean._replace(writers=clean.writers[:2]
                              + [(name, [[row[0] + 1e-9] + row[1:] for row in rows])]
                              + clean.writers[3:])
        edits = [scale("L0.attn", 0)]
        self.assertTrue(effects.effect(clean, edits, metric_of(clean)).check.ok)
        self.assertFalse(effects.effect(lied, edits, metric_of(clean)).check.ok)


class Frozen(Laws):

    def test_later_updates_are_kept_and_the_norm_is_worked_out_again(self):
        """The other stream is set outright, in place of the last state."""
        for seed, placement in zip(SEEDS * 2, SUMMED):
            clean = run(float_model(seed, placement), TOKENS)
            metric, (last, final) = metric_of(clean), clean.states[-1]
            lists = edits_of_every_kind(Draw(seed), 4)[seed::2]
            for edits, found in zip(lists, effects.effects_of(clean, lists, metric, frozen=True)):
                x = final
                for (_, e), (_, u) in zip(effects.edited_updates(clean, edits), clean.writers):
                    x = linalg.add(x, linalg.subtract(e, u))
                want = value(run(clean.model, TOKENS, [set_state(last, x)]), metric)
                self.assertClose(found.after, want, seed, f"{placement}, {edits}",
                                 size=1 + abs(want))
                self.assertEqual(found.downstream, 0.0)
                self.assertEqual([part for _, part in found.ledger], [0.0] * 5)
                self.assertTrue(found.check.ok, str(found.check))

    def test_in_fractions_with_equality(self):
        for placement in ("parallel", "sandwich", "post_norm"):
            clean = exact_run(1, placement)
            metric, lists = metric_of(clean), [[scale(writer, 2)] for writer in WRITERS + FINER]
            for found in effects.effects_of(clean, lists, metric, frozen=True):
                self.assertEqual(found.total, found.after - found.before)
                self.assertEqual((found.total, found.downstream), (found.direct, 0))
                self.assertEqual(found.first_order, found.direct, "all that is left is linear")
            self.assertEqual(found.direct, effects.effect(clean, lists[-1], metric).direct)

    def test_post_norms_on_the_stream_rescale_even_then(self):
        clean = run(float_model(1, "post_norm"), TOKENS)
        found = effects.effect(clean, [scale("L0.mlp", 0)], metric_of(clean), frozen=True)
        self.assertTrue(found.downstream != 0 and found.check.ok)
        kept = dict(found.edited_run.writers)
        for name, update in clean.writers:
            self.assertEqual(kept[name] == update, name != "L0.mlp")


class FirstOrder(Laws):

    def test_against_a_complex_step_along_the_change(self):
        """The updates are moved by i TINY times their change; all that follows reacts, or is
        kept."""
        for placement, frozen in itertools.product(PLACEMENTS, (False, True)):
            clean = run(float_model(1, placement), TOKENS)
            metric = metric_of(clean)
            for edits in edits_of_every_kind(Draw(1), 4)[1::4]:
                found = effects.effect(clean, edits, metric, frozen)
                moved = [shift(name, walk(lambda a, b: complex(0, (a - b) * TINY), e, u))
                         for (name, e), (_, u) in zip(effects.edited_updates(clean, edits),
                                                      clean.writers) if e != u]
                kept = [replace(name, u) for name, u in clean.writers] if frozen else []
                want = value(run(clean.model, TOKENS, kept + moved), metric)
                want = want.imag / TINY if moved else 0.0
                self.assertClose(found.first_order, want, 1, f"{placement}, {frozen}, {edits}",
                                 tolerance=1e-11, size=1 + abs(want))

    def test_it_is_near_the_total_where_the_edit_is_small(self):
        clean = run(float_model(2, "sandwich"), TOKENS)
        for writer in WRITERS + FINER:
            gaps = []
            for step in (1e-2, 1e-3):
                found = effects.effect(clean, [scale(writer, 1 + step)], metric_of(clean))
                gaps.append(abs(found.total - found.first_order))
            self.assertTrue(gaps[1] < gaps[0] / 50, f"{writer}: {gaps}, a hundredth is expected")

    def test_of_several_writers_it_is_the_sum_of_their_estimates(self):
        for placement in PLACEMENTS:
            clean = exact_run(1, placement)
            edits = [scale("embed", 2), scale("L0.mlp", 0), scale("L1.attn", -3)]
            found = effects.effects_of(clean, [[edit] for edit in edits] + [edits],
                                       metric_of(clean))
            self.assertEqual(found[-1].first_order, sum(one.first_order for one in found[:-1]))
            self.assertNotEqual(found[-1].total, found[-1].first_order, placement)

    def test_the_last_writers_estimate_without_a_norm_is_its_effect(self):
        clean = exact_run(2, "pre_norm")
        found = effects.effect(clean, [scale("L1.mlp", 0)], metric_of(clean))
        self.assertEqual(found.first_order, found.total)


class Conventions(Laws):

    def test_restoring_the_own_write_is_direct_where_the_metric_is_linear(self):
        for placement in SUMMED[1:3]:
            clean = exact_run(1, placement)
            for edits in edits_of_every_kind(Draw(1, Fraction), 2)[2::5]:
                self.assertEqual(effects.effect_by_restoring(clean, edits, metric_of(clean)),
                                 effects.effect(clean, edits, metric_of(clean)).direct)

    def test_and_is_another_number_where_it_is_not(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        edits = [scale("L0.attn", 0)]
        by_restoring = effects.effect_by_restoring(clean, edits, metric_of(clean))
        direct = effects.effect(clean, edits, metric_of(clean)).direct
        self.assertGreater(abs(by_restoring - direct), 1e-3)

    def test_under_post_norm_it_is_refused(self):
        clean = run(float_model(1, "post_norm"), TOKENS)
        with self.assertRaisesRegex(ValueError, "effect_by_restoring: under post_norm"):
            effects.effect_by_restoring(clean, [scale("L0.attn", 0)], metric_of(clean))

    def test_erasing_a_state_is_no_edit_of_an_update(self):
        model = small_model()
        clean, erased = run(model, [0]), set_state("L0.attn", [[0.0]])
        metric = logit(model, 0, 0)
        for ask in (lambda: effects.effect(clean, [erased], metric),
                    lambda: effects.effect(run(model, [0], [erased]), [], metric),
                    lambda: effects.effects_of(clean, [[erased]], metric),
                    lambda: effects.edited_updates(clean, [erased]),
                    lambda: sensitivity.update_gradients(run(model, [0], [erased]), metric)):
            with self.assertRaisesRegex(ValueError, r"set_state at L0.attn .* compare.compare"):
                ask()

    def test_effects_on_different_weights_are_not_ranked(self):
        found = []
        for seed in SEEDS:
            clean = run(float_model(seed, "pre_norm"), TOKENS)
            found += effects.effects_of(clean, [[scale("L0.mlp", 0)], [scale("L0.attn", 0)]],
                                        metric_of(clean))
        self.assertEqual(len(effects.ranked(found[:2])), 2)
        with self.assertRaisesRegex(ValueError, "ranked: the runs are on different weights"):
            effects.ranked(found)


class Attached(Laws):
    """An edit is an argument of one run.  It is not there before, and not afterwards."""

    def test_an_edit_that_raises_half_way_is_in_no_later_run(self):
        model = float_model(1, "pre_norm")
        clean = run(model, TOKENS)
        good = [scale("L0.attn", 0)]
        before = effects.effect(clean, good, metric_of(clean))
        for bad in (replace("L1.mlp", [[0.0]]), scale("L9.mlp", 0), scale("L0.mlp", 0, [7]),
                    set_pattern("L1.attn.H0", [[1.0]])):
            with self.assertRaises(ValueError):
                effects.effect(clean, good + [bad], metric_of(clean))
            self.assertEqual(run(model, TOKENS).logits, clean.logits)
            self.assertEqual(effects.effect(clean, good, metric_of(clean)), before)

    def test_an_inner_edit_leaves_the_outer_one_where_it_is(self):
        """6 clean; with the outer edit 8, and with the inner one besides 0."""
        model = small_model()
        outer = run(model, [0], [shift("embed", [[16.0]])])
        metric = logit(model, 0, 0)
        inner_effect = effects.effect(outer, [scale("embed", 0)], metric)
        self.assertEqual((inner_effect.before, inner_effect.after), (130.0, 10.0))
        self.assertEqual(value(run(model, [0], outer.edits), metric), 130.0)
        self.assertEqual(value(run(model, [0]), metric), 70.0)

    def test_nothing_that_is_handed_out_is_part_of_the_clean_run(self):
        clean = run(float_model(1, "sandwich"), TOKENS)
        before = copied(clean.steps), copied(clean.logits), list(clean.edits)
        found = effects.effect(clean, [scale("L0.attn.H0", 0)], metric_of(clean))
        want = found.total
        for _, rows in found.edited_run.writers + found.edited_run.states:
            for row in rows:
                row[0] = 1000.0
        write = references.raw_write(clean, "L0.mlp")
        write[0][0] = 1000.0
        self.assertEqual((copied(clean.steps), copied(clean.logits), list(clean.edits)), before)
        self.assertEqual(effects.effect(clean, [scale("L0.attn.H0", 0)], metric_of(clean)).total,
                         want)


class Sweeps(Laws):

    def test_many_edits_are_each_edit_alone(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        metric, seen = metric_of(clean), []
        lists = edits_of_every_kind(Draw(1), 4)[:8]
        for frozen in (False, True):
            want = [effects.effect(clean, edits, metric, frozen) for edits in lists]
            self.assertEqual(effects.effects_of(clean, lists, metric, frozen), want)
            self.assertEqual(effects.effects_over([(clean, edits, metric) for edits in lists],
                                                  frozen), want)
            with concurrent.futures.ThreadPoolExecutor(2) as executor:
                got = effects.effects_of(clean, lists, metric, frozen, executor,
                                         lambda done, total: seen.append((done, total)))
            self.assertEqual(got, want)
        self.assertEqual(seen, [(i + 1, 8) for i in range(8)] * 2)

    def test_what_comes_from_another_process_is_on_the_same_weights(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        lists = [[scale("L0.attn", 0)], [scale("L1.mlp.N2", 0)]]
        here = effects.effects_of(clean, lists, metric_of(clean))
        with concurrent.futures.ProcessPoolExecutor(1) as executor:
            there = effects.effects_of(clean, lists, metric_of(clean), executor=executor)
        self.assertEqual(there, here)
        self.assertEqual(len(effects.ranked(here + there)), 4)


if __name__ == "__main__":
    unittest.main()
