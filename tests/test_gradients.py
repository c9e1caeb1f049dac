"""How the gradient flows: pullbacks, Jacobians, curves, paths, and the check against a moved run.

Second opinions: exact differences of the run itself, products of explicit matrices, every path
written out, a forward pass without skips that is composed here.
"""
import functools
import math
import unittest
from decimal import Decimal
from fractions import Fraction
from unittest import mock

from pyres import blocks, edits, linalg, model
from pyres.attention import attention
from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.mlp import mlp
from pyres.study import gradients, metrics, paths, slopes
from pyres.weights import AttentionWeights, BlockWeights, MLPWeights, ModelWeights
from tests.laws import (TIGHT, TINY, Draw, assert_close, causal_pattern, flat, is_exact,
                        model_weights, walk)
from tests.placements import TOKENS, edits_of_all, float_models

SEEDS = (1, 2)
PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")


def any_model(draw, placement, activation="gelu_tanh", n_layers=2, norm="layer", **options):
    """A model with grouped heads, multipliers, a gate and biases; T = 3 and d_model = 4."""
    attention_of = attention_config(n_heads=2, d_head=2, n_kv_heads=1)
    block = block_config(5, attention_of, placement, norm_config(norm, 0.1), activation,
                         residual_multiplier=0.75)
    config = model_config(4, 5, 6, n_layers, block, final_norm=norm_config(norm, 0.1))
    return model.make_model(config, model_weights(draw, config, gated=True, multipliers=True))


def exact_run(draw, placement, n_layers=2, norm="layer"):
    """A Run in Fractions: scales and patterns are given, so that every step is a polynomial of
    second order, apart from the kinks of relu."""
    given = norm_config(norm, 0, Fraction(3, 2))
    block = block_config(2, attention_config(n_heads=2, d_head=1), placement, given, "relu",
                         residual_multiplier=Fraction(2, 3))
    config = model_config(2, 5, 4, n_layers, block, final_norm=given)
    m = model.make_model(config, model_weights(draw, config, gated=True, multipliers=True))
    patterns = [edits.set_pattern(f"L{i}.attn.H{h}", causal_pattern(draw, 2))
                for i in range(n_layers) for h in range(2)]
    return model.run(m, [2, 4], patterns + [edits.scale("L0.mlp", Fraction(1, 3), [1])])


def metric_of(r, draw):
    """A metric along a random direction of the normed stream."""
    direction = [draw.number() for _ in range(r.model.config.d_model)]
    return metrics.along(r.model, len(r.tokens) - 1, direction)


def every_model(seeds=SEEDS):
    """A test of (model, seed, draw), a subtest for each model of tests.placements."""
    def wrapped(test):
        @functools.wraps(test)
        def run(self):
            for seed in seeds:
                for label, m in float_models(seed):
                    with self.subTest(label, seed=seed):
                        test(self, m, seed, Draw(seed))

        return run

    return wrapped


def every_placement(kind=float, seeds=SEEDS):
    """A test of (placement, seed, draw), a subtest each."""
    def wrapped(test):
        @functools.wraps(test)
        def run(self):
            for placement in PLACEMENTS:
                for seed in seeds:
                    with self.subTest(placement=placement, seed=seed):
                        test(self, placement, seed, Draw(seed, kind))

        return run

    return wrapped


class Steps(unittest.TestCase):

    @every_model(seeds=(1,))
    def test_step_by_step_they_give_the_whole_gradient_to_the_last_bit(self, m, seed, draw):
        for given in ([], edits_of_all(draw, m.config.d_model)):
            r = model.run(m, TOKENS, given)
            metric = metric_of(r, draw)
            below, d_state = [], metrics.final_gradient(r, metric)
            for step in reversed(gradients.step_names(r)):
                below = [gradients.step_pullback(d_state, r, step)] + below
                d_state = below[0].total
            self.assertEqual(below, [g for _, g in gradients.state_gradients(r, metric)][:-1])

    @every_placement(seeds=(1,))
    def test_a_state_that_is_set_sends_nothing_further_back(self, placement, seed, draw):
        m = any_model(draw, placement)
        for name in ("L0.mlp", "L1.mlp") if placement == "parallel" else ("L1.attn", "L0.mlp"):
            stream = draw.tensor(3, 4)
            r = model.run(m, TOKENS, [edits.set_state(name, stream)])
            self.assertEqual(dict(gradients.rerun(r).states)[name], stream)
            parts = gradients.step_pullback(draw.tensor(3, 4), r, name)
            self.assertEqual(set(flat(parts)), {0})
            at = [state for state, _ in r.states].index(name)
            for rows in (gradients.branch_gradients, gradients.rerun_gradients):
                found = rows(r, metric_of(r, draw))
                self.assertEqual(set(flat(found[:at])), {0})
                self.assertNotIn(0, [gradients.gradient_length(g) for g in found[at:]])

    @every_placement()
    def test_the_pullback_is_the_adjoint_of_the_branch(self, placement, seed, draw):
        """<d, J v> = <Jᵀ d, v>, with J v a complex step of what the branch adds."""
        r = model.run(any_model(draw, placement), TOKENS)
        names = [name for name, _ in r.states]
        for before, step in zip(names, names[1:]):
            state, v, d = dict(r.states)[before], draw.tensor(3, 4), draw.tensor(3, 4)
            moved = walk(lambda a, b: complex(a, b * TINY), state, v)
            updates = dict(model.run(r.model, TOKENS, [edits.set_state(before, moved)]).writers)
            added = [updates[step]]
            if placement == "parallel":
                added.append(updates[step.replace("mlp", "attn")])
            want = sum(g * u.imag / TINY for update in added
                       for g, u in zip(flat(d), flat(update)))
            terms = [g * b for g, b in zip(flat(gradients.branch_pullback(d, r, step)), flat(v))]
            size = sum(abs(term) for term in terms)
            self.assertTrue(abs(sum(terms) - want) <= TIGHT * size,
                            f"{step}, seed {seed}: {sum(terms)!r}, {want!r}")

    def test_a_step_that_is_not_there(self):
        for placement, wrong in (("pre_norm", "embed"), ("parallel", "L0.attn")):
            r = model.run(model.small_model(placement), [0])
            with self.assertRaises(ValueError) as caught:
                gradients.step_pullback([[1.0]], r, wrong)
            self.assertIn(wrong, str(caught.exception))
            self.assertIn("L0.mlp", str(caught.exception))


def state_after(r, before, stream, step):
    """The state that a step makes from another stream."""
    moved = model.run(r.model, r.tokens, r.edits + [edits.set_state(before, stream)])
    return dict(moved.states)[step]


class Jacobians(unittest.TestCase):

    @every_placement(Fraction)
    def test_in_fractions_they_are_the_difference_quotient(self, placement, seed, draw):
        """Each step is of second order in the stream, so a central difference is exact; it is
        small, to stay on one side of relu's kinks."""
        h = Fraction(1, 2 ** 60)
        r = exact_run(draw, placement, n_layers=1, norm=("layer", "rms")[seed % 2])
        names = [name for name, _ in r.states]
        for before, step in zip(names, names[1:]):
            columns = []
            for s in range(2):
                for j in range(2):
                    ends = []
                    for sign in (1, -1):
                        stream = linalg.copied(dict(r.states)[before])
                        stream[s][j] += sign * h
                        ends.append(flat(state_after(r, before, stream, step)))
                    columns.append([(a - b) / (2 * h) for a, b in zip(*ends)])
            found = gradients.step_jacobian(r, step, at=[0, 1], of=[0, 1])
            self.assertEqual(found.total, linalg.transpose(columns), step)
            self.assertEqual(found.total, linalg.add(found.identity, found.branch))
            self.assertTrue(is_exact(found))
            if placement != "post_norm":
                self.assertEqual(found.identity, [[int(i == j) for j in range(4)]
                                                  for i in range(4)])

    @every_placement(Fraction, seeds=(1,))
    def test_one_pair_of_positions_is_a_part_of_the_whole(self, placement, seed, draw):
        r = exact_run(draw, placement)
        whole = gradients.step_jacobian(r, "L1.mlp", [0, 1], [0, 1])
        for at in (0, 1):
            for of in (0, 1):
                part = gradients.step_jacobian(r, "L1.mlp", at, of)
                for matrix, of_whole in zip(part, whole):
                    self.assertEqual(matrix, [row[2 * of:2 * of + 2]
                                              for row in of_whole[2 * at:2 * at + 2]])
        later = gradients.step_jacobian(r, "L1.mlp", 0, 1)
        self.assertEqual(set(flat(later)), {0}, "a token does not see the next one")

    def test_a_position_that_is_not_there(self):
        r = model.run(model.small_model(), [0])
        for wrong in (1, -1, True, [0, 1]):
            with self.assertRaises(ValueError):
                gradients.step_jacobian(r, "L0.attn", wrong, 0)


def undoing_model(n_layers=1):
    """f(x) = -x for every attention, on one token; the MLPs are silent."""
    block = block_config(1, attention_config(1, 1), norm=None, activation="relu")
    w = BlockWeights(None, AttentionWeights([[0.0]], [[0.0]], [[1.0]], [[-1.0]], *[None] * 6),
                     None, None, None, MLPWeights(None, [[1.0]], [[0.0]], None, None, None),
                     None, None)
    config = model_config(1, 2, 4, n_layers, block, final_norm=None)
    return model.make_model(config, ModelWeights([[5.0], [3.0]], None, [w] * n_layers, None,
                                                 [[1.0], [0.0]], None))


class WholeBranchesRerun(unittest.TestCase):

    def test_a_branch_that_undoes_what_it_reads(self):
        """I + J = 0: skips promise nothing."""
        r = model.run(undoing_model(), [0])
        metric = metrics.logit(r.model, 0, 0)
        self.assertEqual(gradients.step_jacobian(r, "L0.attn", 0, 0),
                         ([[0.0]], [[1.0]], [[-1.0]]))
        found = gradients.curves(r, metric)
        self.assertEqual(found.whole, [0.0, 1.0, 1.0])
        self.assertEqual(found.branches, [0.0, 0.0, 1.0])     # the silent MLP stops it
        lengths = paths.path_length_gradients(r, metric)
        self.assertEqual(lengths, [[[1.0]], [[-1.0]], [[0.0]]])

    def test_branches_of_slope_one_half(self):
        """x + x/2 three times is 27/8, not 1/8 as without the skips, and not 1/2."""
        block = block_config(1, attention_config(1, 1), norm=None, activation="relu")
        w = BlockWeights(None, AttentionWeights([[0.0]], [[0.0]], [[0.5]], [[1.0]], *[None] * 6),
                         None, None, None, MLPWeights(None, [[0.5]], [[1.0]], None, None, None),
                         None, None)
        config = model_config(1, 1, 4, 2, block, final_norm=None)
        r = model.run(model.make_model(config, ModelWeights([[5.0]], None, [w] * 2, None,
                                                            [[1.0]], None)), [0])
        found = gradients.curves(r, metrics.logit(r.model, 0, 0))
        self.assertEqual(found.whole, [81 / 16, 27 / 8, 9 / 4, 3 / 2, 1.0])
        self.assertEqual(found.branches, [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
        self.assertEqual(found.rerun, found.branches)         # these branches are linear

    def test_without_branches_the_gradient_arrives_whole(self):
        for placement in ("pre_norm", "parallel", "sandwich", "output_norm"):
            m = any_model(Draw(1), placement)
            off = [edits.scale(f"L{i}.{branch}", 0) for i in (0, 1) for branch in ("attn", "mlp")]
            r = model.run(m, TOKENS, off)
            metric = metric_of(r, Draw(2))
            found = gradients.curves(r, metric)
            self.assertEqual(set(found.whole), {found.whole[-1]})
            self.assertEqual(set(found.branches[:-1]), {0})

    @every_placement(seeds=(1,))
    def test_lengths_are_roots_of_sums_of_squares_over_all_positions(self, placement, seed, draw):
        r = model.run(any_model(draw, placement), TOKENS)
        metric = metric_of(r, draw)
        found = gradients.state_lengths(r, metric)
        self.assertEqual([one.name for one in found], [name for name, _ in r.states])
        for one, (_, gradient) in zip(found, gradients.state_gradients(r, metric)):
            for got, rows in zip(one[1:], gradient):
                want = None if rows is None else math.sqrt(math.fsum(a * a for a in flat(rows)))
                if want is None:
                    self.assertIsNone(got)
                else:
                    assert_close(self, got, want, seed, one.name)
        self.assertEqual(found[-1][2:], (None, None))
        whole, branches, again = gradients.curves(r, metric)[1:]
        self.assertEqual(whole, [one.total for one in found])
        self.assertEqual(branches[-1], whole[-1])
        self.assertEqual((len(branches), len(again)), (len(found), len(found)))

    @every_placement()
    def test_a_rerun_is_the_forward_pass_without_skips(self, placement, seed, draw):
        m = any_model(draw, placement)
        want = skipless(m, embedded(m))
        again = gradients.rerun(model.run(m, TOKENS))
        assert_close(self, [state for _, state in again.states], want, seed, "states")
        self.assertEqual(again.tokens, TOKENS)

    @every_placement()
    def test_its_gradient_against_a_complex_step_through_it(self, placement, seed, draw):
        m = any_model(draw, placement)
        r = model.run(m, TOKENS)
        metric = metric_of(r, draw)
        direction = draw.tensor(3, 4)
        moved = walk(lambda a, v: complex(a, v * TINY), embedded(m), direction)
        final = skipless(m, moved)[-1]
        normed = blocks.norm_steps(final, m.weights.final_norm, m.config.final_norm).normalized
        want = linalg.dot(metric.direction, normed[-1]).imag / TINY
        terms = [g * v for g, v in zip(flat(gradients.rerun_gradients(r, metric)[0]),
                                       flat(direction))]
        size = sum(abs(term) for term in terms)
        self.assertTrue(abs(sum(terms) - want) <= TIGHT * size,
                        f"seed {seed}: {sum(terms)!r}, {want!r}")

    @every_placement()
    def test_a_rerun_keeps_the_edits(self, placement, seed, draw):
        m = any_model(draw, placement)
        other = draw.tensor(3, 4)
        again = gradients.rerun(model.run(m, TOKENS, [edits.replace("L1.mlp", other),
                                                      edits.scale("L1.attn", 0)]))
        self.assertEqual(dict(again.writers)["L1.mlp"], other)
        if placement != "post_norm":
            assert_close(self, again.states[-1][1], other, seed, "the last state")


def embedded(m):
    return model.run(m, TOKENS).states[0][1]


def skipless(m, x):
    """Every state of x = f(x), with f composed here, placement by placement."""
    states = [x]
    for w, c in zip(m.weights.blocks, m.config.blocks):

        def norm(x, name, w=w, c=c):
            return blocks.norm_steps(x, getattr(w, name), getattr(c, name)).out

        def times(x, learned, c=c):
            factors = learned if isinstance(learned, list) else [learned] * len(x[0])
            return [[c.residual_multiplier * f * a for f, a in zip(factors, row)] for row in x]

        def a(x, w=w, c=c):
            return attention(x, w.attn, c.attention)

        def m_of(x, w=w, c=c):
            return mlp(x, w.mlp, c.activation)

        f, g = w.attn_multiplier, w.mlp_multiplier
        if c.placement == "parallel":
            x = linalg.add(times(a(norm(x, "attn_norm")), f), times(m_of(norm(x, "mlp_norm")), g))
            states.append(x)
            continue
        if c.placement == "pre_norm":
            u = times(a(norm(x, "attn_norm")), f)
            x = times(m_of(norm(u, "mlp_norm")), g)
        elif c.placement == "sandwich":
            u = times(norm(a(norm(x, "attn_norm")), "attn_post_norm"), f)
            x = times(norm(m_of(norm(u, "mlp_norm")), "mlp_post_norm"), g)
        elif c.placement == "output_norm":
            u = times(norm(a(x), "attn_post_norm"), f)
            x = times(norm(m_of(u), "mlp_post_norm"), g)
        else:
            u = norm(times(a(x), f), "attn_post_norm")
            x = norm(times(m_of(u), g), "mlp_post_norm")
        states += [u, x]
    return states


class Paths(unittest.TestCase):

    @every_placement(Fraction, seeds=(2,))
    def test_they_sum_to_the_whole_gradient(self, placement, seed, draw):
        r = exact_run(draw, placement)
        metric = metric_of(r, draw)
        whole = gradients.state_gradients(r, metric)[0][1].total
        by_length = paths.path_length_gradients(r, metric)
        found = paths.paths(r, metric)
        n = len(r.states) - 1
        self.assertEqual((len(by_length), len(found)), (n + 1, 2 ** n))
        self.assertEqual(functools.reduce(linalg.add, by_length), whole)
        for length, g in enumerate(by_length):
            of_length = [path.gradient for path in found if len(path.through) == length]
            self.assertEqual(len(of_length), math.comb(n, length))
            self.assertEqual(functools.reduce(linalg.add, of_length), g)
        self.assertTrue(is_exact(by_length))
        self.assertEqual(found[-1].gradient, gradients.branch_gradients(r, metric)[0])

    @every_placement(Fraction, seeds=(1,))
    def test_each_is_a_product_of_matrices(self, placement, seed, draw):
        """d J_n ... J_1 with I in the place of J where the path goes around."""
        r = exact_run(draw, placement)
        metric = metric_of(r, draw)
        matrices = [(step, gradients.step_jacobian(r, step, [0, 1], [0, 1]))
                    for step in gradients.step_names(r)]
        for path in paths.paths(r, metric):
            d = [flat(metrics.final_gradient(r, metric))]
            for step, parts in reversed(matrices):
                d = linalg.matmul(d, parts.branch if step in path.through else parts.identity)
            self.assertEqual(flat(path.gradient), d[0], path.through)

    @every_model(seeds=(1,))
    def test_in_floats_too(self, m, seed, draw):
        r = model.run(m, TOKENS, edits_of_all(draw, m.config.d_model))
        metric = metric_of(r, draw)
        whole = gradients.state_gradients(r, metric)[0][1].total
        parts = paths.path_length_gradients(r, metric)
        assert_close(self, functools.reduce(linalg.add, parts), whole, seed, "sum")
        check = paths.path_check(parts, whole)
        self.assertTrue(check.ok, f"seed {seed}: {check}")
        for left_out in range(len(parts)):
            self.assertFalse(paths.path_check(parts[:left_out] + parts[left_out + 1:], whole).ok)

    @every_placement(seeds=(1,))
    def test_shares_of_the_whole(self, placement, seed, draw):
        r = model.run(any_model(draw, placement), TOKENS)
        metric = metric_of(r, draw)
        whole = flat(gradients.state_gradients(r, metric)[0][1].total)
        square = math.fsum(a * a for a in whole)
        parts = paths.path_length_gradients(r, metric)
        found = paths.masses(parts)
        for mass, part in zip(found, parts):
            assert_close(self, mass.length, math.sqrt(math.fsum(a * a for a in flat(part))), seed,
                         "length")
            along = math.fsum(a * b for a, b in zip(flat(part), whole))
            self.assertAlmostEqual(mass.share, along / square, delta=1e-12)
        self.assertAlmostEqual(math.fsum(mass.share for mass in found), 1, delta=1e-12)

    def test_shares_of_nothing(self):
        self.assertEqual(paths.masses([[[1.0]], [[-1.0]]]), [(1.0, None), (1.0, None)])

    def test_what_overflows_does_not_sum(self):
        """Neither error nor tolerance is a number to go by then."""
        self.assertFalse(paths.path_check([[[1e308]], [[1e308]]], [[1.0]]).ok)

    def test_the_tolerance_is_that_of_the_numbers(self):
        for number in (Fraction, int, Decimal):
            check = paths.path_check([[[number(1), number(2)]], [[number(3), number(4)]]],
                                     [[number(4), number(6)]])
            self.assertEqual((check.error, check.ok), (0, True))
            self.assertEqual(check.tolerance == 0, number is not Decimal)
            self.assertLess(check.tolerance, 1e-20)
            wrong = paths.path_check([[[number(1), number(2)]]], [[number(1), number(3)]])
            self.assertEqual((wrong.error, wrong.ok), (1, False))

    def test_nan_does_not_sum(self):
        nan = float("nan")
        for parts in ([[[nan, 1.0]]], [[[1.0, nan]]]):
            self.assertFalse(paths.path_check(parts, [[1.0, 1.0]]).ok)

    def test_path_lengths_take_n_times_n_plus_1_over_2_pullbacks(self):
        r = model.run(any_model(Draw(1), "pre_norm"), TOKENS)
        metric = metric_of(r, Draw(2))
        with mock.patch.object(paths, "step_pullback", wraps=gradients.step_pullback) as spy:
            paths.path_length_gradients(r, metric)
        self.assertEqual(spy.call_count, 4 * 5 // 2)

    def test_the_shortest_first_and_named_in_the_streams_order(self):
        r = model.run(undoing_model(2), [0])
        through = [path.through for path in paths.paths(r, metrics.logit(r.model, 0, 0))]
        self.assertEqual(through[:7], [(), ("L0.attn",), ("L0.mlp",), ("L1.attn",), ("L1.mlp",),
                                       ("L0.attn", "L0.mlp"), ("L0.attn", "L1.attn")])
        self.assertEqual(through[-1], ("L0.attn", "L0.mlp", "L1.attn", "L1.mlp"))

    def test_too_many_steps_are_refused_with_what_to_ask_for(self):
        metric_and_run = []
        for n_layers in (5, 6):
            r = model.run(undoing_model(n_layers), [0])
            metric_and_run.append((r, metrics.logit(r.model, 0, 0)))
        self.assertEqual(len(paths.paths(*metric_and_run[0])), 1024)
        with self.assertRaises(ValueError) as caught:
            paths.paths(*metric_and_run[1])
        for word in ("12 steps", "2**12", "at most 10", "path_length_gradients"):
            self.assertIn(word, str(caught.exception))


class Slopes(unittest.TestCase):

    @every_model(seeds=(2,))
    def test_a_complex_step_agrees_at_every_state(self, m, seed, draw):
        r = model.run(m, TOKENS, edits_of_all(draw, m.config.d_model))
        found = slopes.slope_checks(r, metric_of(r, draw), seed)
        self.assertEqual([check.state for check in found], [name for name, _ in r.states])
        for check in found:
            self.assertEqual(check.method, "complex step")
            self.assertTrue(check.ok, f"seed {seed}: {check}")

    def test_differences_where_complex_numbers_do_not_reach(self):
        for seed in SEEDS:
            draw = Draw(seed)
            r = model.run(any_model(draw, "pre_norm", "gelu"), TOKENS)
            found = slopes.slope_checks(r, metric_of(r, draw), seed)
            # only the last state is read by no gelu
            self.assertEqual([check.method for check in found],
                             ["differences"] * 4 + ["complex step"])
            for check in found:
                self.assertTrue(check.ok, f"seed {seed}: {check}")
                self.assertLess(check.tolerance, 1e-4 * max(1, abs(check.by_step)))

    def test_a_wrong_gradient_is_found(self):
        """One entry off by a thousandth part, or infinite; the sign; the branch part left out."""
        def bent(rows, factor=1.001):
            return rows[:-1] + [[rows[-1][0] * factor] + rows[-1][1:]]

        faults = (lambda g: g._replace(total=bent(g.total)),
                  lambda g: g._replace(total=bent(g.total, math.inf)),
                  lambda g: g._replace(total=linalg.scale(-1, g.total)),
                  lambda g: g._replace(total=g.identity or bent(g.total)))
        for activation in ("gelu_tanh", "gelu"):
            r = model.run(any_model(Draw(1), "pre_norm", activation), TOKENS)
            metric = metric_of(r, Draw(2))
            right = gradients.state_gradients(r, metric)
            for fault in faults:
                wrong = [(name, fault(g)) for name, g in right]
                with mock.patch.object(slopes, "state_gradients", return_value=wrong):
                    checks = slopes.slope_checks(r, metric)
                self.assertTrue(all(not check.ok for check in checks[:4]), checks)


if __name__ == "__main__":
    unittest.main()
