"""All subsets: the laws of Shapley values and dividends, on games and on models."""
import concurrent.futures
import itertools
import math
import unittest
from fractions import Fraction

from pyres.edits import scale, set_state
from pyres.model import run, small_model
from pyres.study import subsets
from pyres.study.metrics import logit, value
from tests.laws import Draw
from tests.models import PLACEMENTS, TOKENS, Laws, exact_run, float_model, metric_of

NAMES = ["L0.attn", "L0.mlp", "L1.attn.H0", "L1.mlp.N3"]


def game(seed, n, kind=Fraction):
    return Draw(seed, kind).tensor(2 ** n)


def by_permutations(values, n):
    """The Shapley values from their first definition: the mean over all orders."""
    totals = [0] * n
    for order in itertools.permutations(range(n)):
        subset = 0
        for i in order:
            totals[i] += values[subset | 1 << i] - values[subset]
            subset |= 1 << i
    return [total / Fraction(math.factorial(n)) for total in totals]


def within(subset):
    """The numbers of all subsets of a subset."""
    return [other for other in range(subset + 1) if other & subset == other]


class Games(unittest.TestCase):

    def test_shapley_values_are_the_mean_over_all_orders(self):
        for seed, n in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5)):
            values = game(seed, n)
            self.assertEqual(subsets.shapley_values(values), by_permutations(values, n))

    def test_dividends_add_up_to_every_value(self):
        for seed in range(3):
            values = game(seed, 5)
            found = subsets.dividends(values)
            for subset in range(32):
                self.assertEqual(sum(found[other] for other in within(subset)), values[subset])

    def test_a_shapley_value_is_an_equal_share_of_every_dividend(self):
        for seed in range(3):
            values = game(seed, 5)
            found = subsets.dividends(values)
            self.assertEqual(subsets.shapley_values(values), [
                sum(found[subset] / bin(subset).count("1") for subset in range(32)
                    if subset >> i & 1) for i in range(5)])

    def test_they_sum_to_all_less_none(self):
        values = game(7, 6)
        self.assertEqual(sum(subsets.shapley_values(values)), values[-1] - values[0])
        self.assertEqual(sum(subsets.dividends(values)[1:]), values[-1] - values[0])

    def test_who_changes_nothing_is_worth_nothing(self):
        values = game(1, 4)
        without_2 = [values[subset & ~4] for subset in range(16)]
        self.assertEqual(subsets.shapley_values(without_2)[2], 0)
        found = subsets.dividends(without_2)
        self.assertEqual([found[subset] for subset in range(16) if subset & 4], [0] * 8)

    def test_who_is_alike_is_worth_alike_and_names_do_not_matter(self):
        values = game(2, 3)

        def swapped(subset):                        # writers 0 and 2 change places
            return subset & 2 | subset >> 2 & 1 | (subset & 1) << 2

        other = [values[swapped(subset)] for subset in range(8)]
        a, b, c = subsets.shapley_values(values)
        self.assertEqual(subsets.shapley_values(other), [c, b, a])
        alike = [x + y for x, y in zip(values, other)]
        self.assertEqual(subsets.shapley_values(alike)[0], subsets.shapley_values(alike)[2])

    def test_a_sum_of_games_is_worth_the_sum(self):
        u, v = game(3, 4), game(4, 4)
        both = subsets.shapley_values([a + b for a, b in zip(u, v)])
        self.assertEqual(both, [a + b for a, b in zip(subsets.shapley_values(u),
                                                      subsets.shapley_values(v))])

    def test_twelve_writers_in_floats(self):
        """A game that is a sum has no interactions; one more term together has one."""
        values = [sum(0.1 * (i + 1) for i in range(12) if subset >> i & 1)
                  + (6.0 if subset & 5 == 5 else 0.0) for subset in range(4096)]
        shapley, found = subsets.shapley_values(values), subsets.dividends(values)
        for i in range(12):
            self.assertAlmostEqual(shapley[i], 0.1 * (i + 1) + (3.0 if i in (0, 2) else 0.0), 12)
        self.assertAlmostEqual(found[5], 6.0, 12)
        self.assertLess(max(abs(d) for s, d in enumerate(found)
                            if bin(s).count("1") > 1 and s != 5), 1e-11)

    def test_a_list_that_is_no_game(self):
        for values in ([], [1, 2, 3], [0] * 12):
            for ask in (subsets.shapley_values, subsets.dividends):
                with self.assertRaisesRegex(ValueError, f"subsets: {len(values)} values"):
                    ask(values)


class Models(Laws):

    def test_values_are_those_of_the_runs_without_the_others(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        metric = metric_of(clean)
        found = subsets.subsets(clean, NAMES, metric)
        for subset, got in enumerate(found.values):
            on = subsets.subset_names(NAMES, subset)
            off = [scale(name, 0) for name in NAMES if name not in on]
            self.assertEqual(got, value(run(clean.model, TOKENS, off), metric), on)
        self.assertEqual(found.values[-1], value(clean, metric))
        self.assertTrue(all(check.ok and check.tolerance < 1e-10 for check in found.checks),
                        found.checks)
        self.assertIs(found.clean_run, clean)

    def test_in_fractions_with_equality(self):
        for placement in PLACEMENTS:
            clean = exact_run(1, placement)
            found = subsets.subsets(clean, NAMES[:3], metric_of(clean))
            self.assertEqual(found.shapley, by_permutations(found.values, 3))
            for check in found.checks:
                self.assertEqual((check.ok, check.error, check.tolerance, check.exact),
                                 (True, 0, 0, True))

    def test_writers_that_do_not_meet_do_not_interact(self):
        """The last block is parallel and the norms' scales are given, so the metric is a sum."""
        clean = exact_run(2, "parallel")
        found = subsets.subsets(clean, ["L1.attn", "L1.mlp"], metric_of(clean))
        self.assertEqual(subsets.interactions(found), [(["L1.attn", "L1.mlp"], 0)])
        one_after_the_other = exact_run(2, "pre_norm")
        found = subsets.subsets(one_after_the_other, ["L1.attn", "L1.mlp"],
                                metric_of(one_after_the_other))
        self.assertNotEqual(found.dividends[3], 0)

    def test_interactions_are_the_largest_first(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        found = subsets.subsets(clean, NAMES, metric_of(clean))
        pairs = subsets.interactions(found)
        self.assertEqual(len(pairs), 16 - 5)
        sizes = [abs(dividend) for _, dividend in pairs]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual({tuple(names) for names, _ in pairs},
                         {names for n in (2, 3, 4)
                          for names in itertools.combinations(NAMES, n)})

    def test_a_run_with_edits_of_its_own_keeps_them(self):
        model = float_model(1, "sandwich")
        own = [scale("L0.attn.H1", 2.0), scale("L1.mlp", 0.5)]
        clean = run(model, TOKENS, own)
        found = subsets.subsets(clean, ["L0.mlp"], metric_of(clean))
        self.assertEqual(found.values[0],
                         value(run(model, TOKENS, own + [scale("L0.mlp", 0)]), metric_of(clean)))
        self.assertEqual(found.values[1], value(clean, metric_of(clean)))

    def test_with_an_executor_and_progress(self):
        clean = run(float_model(1, "pre_norm"), TOKENS)
        seen = []
        here = subsets.subsets(clean, NAMES[:3], metric_of(clean),
                               progress=lambda done, total: seen.append((done, total)))
        with concurrent.futures.ProcessPoolExecutor(1) as executor:
            there = subsets.subsets(clean, NAMES[:3], metric_of(clean), executor)
        self.assertEqual(there, here)
        self.assertIs(there.clean_run, clean)
        self.assertEqual(seen, [(i + 1, 8) for i in range(8)])

    def test_what_is_refused(self):
        model = small_model()
        clean, metric = run(model, [0]), logit(model, 0, 0)
        for n in (13, 20000):               # 2^20000 has more digits than Python writes out
            with self.assertRaisesRegex(ValueError, rf"{n} writers have 2\^{n} .* at most 12"):
                subsets.subsets(clean, [f"L{i}.mlp" for i in range(n)], metric)
        with self.assertRaisesRegex(ValueError, "named twice in L0.mlp, L0.mlp"):
            subsets.subsets(clean, ["L0.mlp", "L0.mlp"], metric)
        with self.assertRaisesRegex(ValueError, "no writer 'L1.mlp'"):
            subsets.subsets(clean, ["L1.mlp"], metric)
        with self.assertRaisesRegex(ValueError, "set_state at embed"):
            subsets.subsets(run(model, [0], [set_state("embed", [[1.0]])]), ["L0.mlp"], metric)

    def test_nan_has_no_rank_and_fails_the_check(self):
        model = small_model()
        broken = model._replace(weights=model.weights._replace(w_embed=[[math.nan], [8.0]]))
        found = subsets.subsets(run(broken, [0]), ["L0.attn", "L0.mlp"], logit(broken, 0, 0))
        self.assertEqual([check.ok for check in found.checks], [False, False])
        with self.assertRaisesRegex(ValueError, "interactions: number 0 is nan"):
            subsets.interactions(found)


if __name__ == "__main__":
    unittest.main()
