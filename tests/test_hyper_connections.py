"""Laws of hyper-connections, in Fractions and so with == where nothing but + and * is done.

What every backward has in common (adjoint, linear, pure, fresh) is test_contract's.  Here stands
the sum rule, what one stream comes to, what a mixing matrix moves, and that it is applied at all.
The loop in `naive_step` is written from the formula alone.
"""
import unittest
from fractions import Fraction

from pyres import hyper_connections, stream
from pyres.attention import attention_steps
from pyres.blocks import norm_steps, pre_norm_block
from pyres.config import attention_config, block_config, norm_config
from pyres.hyper_connections import (HyperWeights, combine_streams, expand_streams,
                                     hyper_sublayer_steps, mix_streams, plain_hyper_weights,
                                     run_hyper_sublayers, run_hyper_sublayers_backward, sinkhorn,
                                     write_coefficients)
from pyres.linalg import add, linear, matvec, scale, transpose
from pyres.mlp import mlp
from pyres.weights import leaves, map_leaves
from tests.laws import TIGHT, Draw, assert_close, block_weights, copied, flat, lists_in

SEEDS = (1, 2, 3)


def permutations(n):
    """Every order of the numbers below n."""
    if n == 0:
        return [[]]
    return [order[:i] + [n - 1] + order[i:] for order in permutations(n - 1) for i in range(n)]


def moving(order):
    """The matrix whose row i takes stream order[i]."""
    return [[int(j == source) for j in range(len(order))] for source in order]


def doubly_stochastic(draw, n):
    """Exactly: a mixture of permutations, in sixteenths."""
    total = [[Fraction(0)] * n for _ in range(n)]
    for _ in range(16):
        orders = permutations(n)
        order = orders[draw.generator.below(len(orders))]
        total = add(total, scale(Fraction(1, 16), moving(order)))
    return total


def hyper_weights(draw, n, h_res=None):
    return HyperWeights(draw.tensor(n, n) if h_res is None else h_res,
                        draw.tensor(n), draw.tensor(n))


def linear_sublayers(draw, n_sublayers, width):
    """x W, and d Wᵀ."""
    maps = [draw.tensor(width, width) for _ in range(n_sublayers)]
    return ([lambda x, w=w: linear(x, w) for w in maps],
            [lambda d, x, w=w: linear(d, transpose(w)) for w in maps])


def naive_step(X, f, w):
    """The formula by loops: X [n][T][d]."""
    n, T, d = len(X), len(X[0]), len(X[0][0])
    read = [[sum(w.h_pre[j] * X[j][t][c] for j in range(n)) for c in range(d)] for t in range(T)]
    update = f(read)
    return [[[sum(w.h_res[i][j] * X[j][t][c] for j in range(n)) + w.h_post[i] * update[t][c]
              for c in range(d)] for t in range(T)] for i in range(n)]


class HyperConnectionLaws(unittest.TestCase):
    def every_seed(self, check, kind=Fraction):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                check(seed, Draw(seed, kind))

    def test_a_step_is_the_formula_by_loops(self):
        def check(seed, draw):
            X, w, (fns, _) = draw.tensor(3, 2, 4), hyper_weights(draw, 3), linear_sublayers(
                draw, 1, 4)
            self.assertEqual(hyper_sublayer_steps(X, fns[0], w).out, naive_step(X, fns[0], w))

        self.every_seed(check)

    def test_with_columns_that_sum_to_1_the_sum_of_streams_obeys_the_plain_rule(self):
        def check(seed, draw):
            X, (fns, _) = draw.tensor(3, 2, 4), linear_sublayers(draw, 3, 4)
            weights = [hyper_weights(draw, 3, doubly_stochastic(draw, 3)) for _ in fns]
            want = combine_streams(X)
            for steps, w in zip(run_hyper_sublayers(X, fns, weights), weights):
                want = add(want, scale(sum(w.h_post), steps.update))
                self.assertEqual(combine_streams(steps.out), want)

        self.every_seed(check)

    def test_with_other_columns_it_does_not(self):
        """Rows alone are not enough: this h_res has rows that sum to 1, and columns 2 and 0."""
        w = HyperWeights([[1, 0], [1, 0]], [0, 0], [0, 0])
        out = hyper_sublayer_steps([[3], [5]], lambda x: x, w).out
        self.assertEqual((combine_streams(out), out), ([6], [[3], [3]]))

    def test_with_rows_that_sum_to_1_mixing_keeps_streams_that_are_alike(self):
        def check(seed, draw):
            X = expand_streams(draw.tensor(2, 4), 3)
            self.assertEqual(mix_streams(X, doubly_stochastic(draw, 3)), X)
            d = draw.tensor(3, 2, 4)
            back, _ = hyper_connections.mix_streams_backward(d, X, doubly_stochastic(draw, 3))
            self.assertEqual(combine_streams(back), combine_streams(d))

        self.every_seed(check)

    def test_every_write_reaches_the_end_with_its_coefficient(self):
        """For any h_res, and any read-out."""
        def check(seed, draw):
            X, (fns, _) = draw.tensor(3, 2, 4), linear_sublayers(draw, 3, 4)
            weights, h_out = [hyper_weights(draw, 3) for _ in fns], draw.tensor(3)
            of_streams, of_updates = write_coefficients(weights, h_out)
            done = run_hyper_sublayers(X, fns, weights)
            want = combine_streams(X, of_streams)
            for coefficient, steps in zip(of_updates, done):
                want = add(want, scale(coefficient, steps.update))
            self.assertEqual(combine_streams(done[-1].out, h_out), want)

        self.every_seed(check)

    def test_one_stream_is_the_plain_stream(self):
        """With == for floats too: a product by 1 rounds nothing."""
        for kind in (Fraction, float, int):
            draw = Draw(4, kind)
            x, (fns, backwards) = draw.tensor(2, 3), linear_sublayers(draw, 3, 3)
            weights = [plain_hyper_weights(1, k) for k in range(3)]
            done = run_hyper_sublayers([x], fns, weights)
            self.assertEqual([[x]] + [steps.out for steps in done],
                             [[state] for state in stream.trace(x, fns)])
            d_out = draw.tensor(2, 3)
            d_states, _ = run_hyper_sublayers_backward([d_out], done, backwards, weights)
            want = stream.run_sublayers_backward(d_out, x, fns, backwards)
            for (got,), d in zip(d_states, want):
                assert_close(self, got, d, 4, "the gradient at a state")

    def test_at_the_start_of_training_each_of_several_streams_is_the_plain_one(self):
        def check(seed, draw):
            x, (fns, _) = draw.tensor(2, 3), linear_sublayers(draw, 4, 3)
            weights = [plain_hyper_weights(3, k) for k in range(4)]
            done = run_hyper_sublayers(expand_streams(x, 3), fns, weights)
            for steps, state in zip(done, stream.trace(x, fns)[1:]):
                self.assertEqual(steps.out, [state] * 3)

        self.every_seed(check)

    def test_attention_and_mlp_with_one_stream_are_the_pre_norm_block(self):
        draw = Draw(6)
        config = block_config(3, attention_config(2, 2), "pre_norm", norm_config("layer"), "silu")
        w, x = block_weights(draw, 4, config), draw.tensor(3, 4)
        fns = [lambda x: attention_steps(norm_steps(x, w.attn_norm, config.attn_norm).out,
                                         w.attn, config.attention).out,
               lambda x: mlp(norm_steps(x, w.mlp_norm, config.mlp_norm).out, w.mlp, "silu")]
        attn, mlp_ = run_hyper_sublayers([x], fns, [plain_hyper_weights(1)] * 2)
        block = pre_norm_block(x, w, config)
        self.assertEqual(attn.out, [block.resid_mid])
        self.assertEqual(mlp_.out, [block.resid_post])

    def test_a_permutation_moves_streams(self):
        def check(seed, draw):
            X = draw.tensor(3, 2, 4)
            for order in permutations(3):
                self.assertEqual(mix_streams(X, moving(order)), [X[i] for i in order])

        self.every_seed(check, int)

    def test_the_mixing_is_applied(self):
        """Known ports computed it and returned the streams unmixed."""
        def check(seed, draw):
            X, (fns, _) = draw.tensor(2, 2, 4), linear_sublayers(draw, 1, 4)
            h_pre, h_post = draw.tensor(2), draw.tensor(2)
            left, swapped = [hyper_sublayer_steps(X, fns[0], HyperWeights(h_res, h_pre, h_post))
                             for h_res in ([[1, 0], [0, 1]], [[0, 1], [1, 0]])]
            self.assertEqual(left.update, swapped.update)
            written = [scale(h, left.update) for h in h_post]
            self.assertEqual(left.out, add(X, written))
            self.assertEqual(swapped.out, add(X[::-1], written))
            self.assertNotEqual(left.out, swapped.out)

        self.every_seed(check)

    def test_rows_of_the_mixing_are_outputs(self):
        """A matrix transposed by mistake keeps a sum as well, if it is doubly stochastic."""
        out = mix_streams([[1], [10], [100]], [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
        self.assertEqual(out, [[10], [100], [1]])

    def test_renaming_the_streams_changes_nothing_else(self):
        def check(seed, draw):
            X, (fns, _) = draw.tensor(3, 2, 4), linear_sublayers(draw, 2, 4)
            weights = [hyper_weights(draw, 3) for _ in fns]
            for order in permutations(3):
                def renamed(list_of_three):
                    return [list_of_three[i] for i in order]

                moved = [HyperWeights(renamed([renamed(row) for row in w.h_res]),
                                      renamed(w.h_pre), renamed(w.h_post)) for w in weights]
                got = run_hyper_sublayers(renamed(X), fns, moved)[-1].out
                self.assertEqual(got, renamed(run_hyper_sublayers(X, fns, weights)[-1].out))

        self.every_seed(check)

    def test_each_sublayer_is_called_once_with_a_copy_of_its_own(self):
        calls = []

        def vandal(x):
            calls.append(copied(x))
            x[0] = 1000
            return [1, 1]

        w = HyperWeights([[1, 0], [0, 1]], [1, 1], [1, 2])
        X = [[1, 2], [3, 4]]
        first, second = run_hyper_sublayers(X, [vandal, vandal], [w, w])
        self.assertEqual(calls, [[4, 6], [7, 9]])
        self.assertEqual((first.read, second.read), ([4, 6], [7, 9]))
        self.assertEqual((X, second.out), ([[1, 2], [3, 4]], [[3, 4], [7, 8]]))
        self.assertFalse(lists_in(list(first)) & lists_in(X))

    def test_a_batch_of_sequences_of_unequal_lengths(self):
        def check(seed, draw):
            X = [draw.ragged((1, 3), 4) for _ in range(2)]
            w = hyper_weights(draw, 2)
            together = hyper_sublayer_steps(X, lambda x: x, w).out
            for b in range(2):
                alone = hyper_sublayer_steps([batch[b] for batch in X], lambda x: x, w).out
                self.assertEqual([batch[b] for batch in together], alone)

        self.every_seed(check)

    def test_gradients_are_walked_like_weights(self):
        w = plain_hyper_weights(2)
        self.assertEqual([name for name, _ in leaves([w])],
                         [".0.h_res", ".0.h_pre", ".0.h_post"])
        self.assertEqual(map_leaves(lambda a, b: a, w, w), w)

    def test_what_does_not_fit_is_refused(self):
        w, X = plain_hyper_weights(2), [[1, 2], [3, 4]]
        for wrong, message in (
                (w._replace(h_res=[[1, 0]]), "h_res has length 1, expected 2"),
                (w._replace(h_res=[[1, 0], [1]]), "row 1 of h_res has length 1, expected 2"),
                (w._replace(h_pre=[1, 0, 0]), "h has length 3, expected 2"),
                (w._replace(h_post=[1]), "h_post has length 1, expected 2")):
            with self.assertRaisesRegex(ValueError, message):
                hyper_sublayer_steps(X, lambda x: x, wrong)
        with self.assertRaisesRegex(TypeError, "a bool stands where a number belongs"):
            hyper_sublayer_steps(X, lambda x: x, w._replace(h_post=[True, 1]))
        with self.assertRaisesRegex(ValueError, "stream 1 has shape .1,., expected .2,."):
            hyper_sublayer_steps([[1, 2], [3]], lambda x: x, w)
        with self.assertRaisesRegex(ValueError, "expected a list of streams"):
            hyper_sublayer_steps([1, 2], lambda x: x, w)
        with self.assertRaisesRegex(ValueError, "what fn_backward gave has shape .1,."):
            hyper_connections.hyper_sublayer_backward(
                X, hyper_sublayer_steps(X, lambda x: x, w), lambda d, x: [1], w)
        with self.assertRaisesRegex(ValueError, "the list of weights has length 1, expected 2"):
            run_hyper_sublayers(X, [copied, copied], [w])
        for refused in (lambda: expand_streams([1], 0), lambda: plain_hyper_weights(0)):
            with self.assertRaisesRegex(ValueError, "n_streams is 0"):
                refused()


class SinkhornLaws(unittest.TestCase):
    def sums(self, matrix):
        ones = [1] * len(matrix)
        return matvec(matrix, ones), matvec(transpose(matrix), ones)

    def positive(self, seed, n):
        draw = Draw(seed)
        return [[Fraction(1 + draw.generator.below(9)) for _ in range(n)] for _ in range(n)]

    def test_columns_sum_to_1_after_any_step_and_rows_ever_more_nearly(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                matrix, misses = self.positive(seed, 3), []
                for _ in range(4):
                    matrix = sinkhorn(matrix, 1)
                    rows, columns = self.sums(matrix)
                    self.assertEqual(columns, [1, 1, 1])
                    self.assertTrue(all([a > 0 for a in flat(matrix)]))
                    misses.append(max(abs(a - 1) for a in rows))
                self.assertEqual(misses, sorted(misses, reverse=True))
                self.assertTrue(misses[-1] < misses[0])
                floats = [[float(a) for a in row] for row in self.positive(seed, 3)]
                rows, _ = self.sums(sinkhorn(floats, 60))
                assert_close(self, rows, [1.0] * 3, seed, "sums of rows", TIGHT)

    def test_a_doubly_stochastic_matrix_is_left(self):
        for seed in SEEDS:
            third = [[Fraction(1, 3)] * 3] * 3
            mixed = scale(Fraction(1, 2), add(doubly_stochastic(Draw(seed), 3), third))
            self.assertEqual(sinkhorn(mixed, 2), mixed)

    def test_factors_on_rows_are_forgotten(self):
        matrix = self.positive(5, 3)
        scaled = [[factor * a for a in row] for factor, row in zip((2, 7, 5), matrix)]
        self.assertEqual(sinkhorn(scaled, 1), sinkhorn(matrix, 1))

    def test_it_hands_out_no_list_of_its_argument(self):
        matrix = [[1, 1], [1, 1]]
        for n_steps in (0, 1):
            self.assertFalse(lists_in(sinkhorn(matrix, n_steps)) & lists_in(matrix))

    def test_what_is_no_positive_square_is_refused(self):
        for matrix, message in (([[1, 2]], "row 0 has length 2, expected 1"),
                                ([[1, -1], [1, 1]], "row 0 has the entry -1"),
                                ([[1, 1], [1, float("nan")]], "row 1 has the entry nan"),
                                ([[1, float("inf")], [1, 1]], "row 0 has the entry inf")):
            with self.assertRaisesRegex(ValueError, message):
                sinkhorn(matrix)


if __name__ == "__main__":
    unittest.main()
