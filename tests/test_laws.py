"""One law of its own for each function, and a second formula where there is one.

What all pairs of forward and backward have in common is test_contract's.  Here stands what is true
of one function only: what it does not change under, what its parts sum to, what a plain loop says
it is.  The loops in `naive_...` are written from the formulas alone and share no code with the
package.
"""
import functools
import math
import unittest
from decimal import Decimal
from fractions import Fraction

import pyres
from pyres import blocks, edits, linalg, loss, model, nonlinear, norms, rotary, stream, sums
from pyres.attention import (attend, attend_steps, attention, attention_steps, head_update,
                             join_heads, project_heads, split_heads)
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.mlp import mlp, mlp_steps
from pyres.study.references import branch_of, raw_write
from pyres.weights import leaves, map_leaves
from tests.laws import (TIGHT, TINY, Draw, assert_close, attention_weights, block_weights,
                        causal_pattern, copied, difference, flat, inner, lists_in, mlp_weights,
                        model_weights, walk, zeros)

SEEDS = (1, 2, 3)


def seeded(kind=float, size=1, seeds=SEEDS):
    """A test of (seed, draw), for each seed a subtest."""
    def every_seed(test):
        @functools.wraps(test)
        def run(self):
            for seed in seeds:
                with self.subTest(seed=seed):
                    test(self, seed, Draw(seed, kind, size))

        return run

    return every_seed


class Laws(unittest.TestCase):
    """With assertClose."""

    def assertClose(self, got, want, seed, what="", tolerance=TIGHT):
        assert_close(self, got, want, seed, what or self.id().rpartition(".")[2], tolerance)


# ---- linalg ----

class LinalgLaws(Laws):

    @seeded(Fraction)
    def test_a_product_is_linear_in_each_factor(self, seed, draw):
        w, v, x, y = draw.tensor(3, 4), draw.tensor(3, 4), draw.tensor(2, 4), draw.tensor(2, 4)
        self.assertEqual(linalg.linear(linalg.add(x, y), w),
                         linalg.add(linalg.linear(x, w), linalg.linear(y, w)))
        self.assertEqual(linalg.linear(x, linalg.subtract(w, v)),
                         linalg.subtract(linalg.linear(x, w), linalg.linear(x, v)))

    @seeded(Fraction)
    def test_products_associate_and_transpose_turns_them_round(self, seed, draw):
        a, b, c = draw.tensor(2, 3), draw.tensor(3, 4), draw.tensor(4, 2)
        self.assertEqual(linalg.matmul(linalg.matmul(a, b), c),
                         linalg.matmul(a, linalg.matmul(b, c)))
        self.assertEqual(linalg.transpose(linalg.matmul(a, b)),
                         linalg.matmul(linalg.transpose(b), linalg.transpose(a)))
        self.assertEqual(linalg.transpose(linalg.transpose(a)), a)

    @seeded(Fraction)
    def test_every_product_is_the_sum_of_products_of_entries(self, seed, draw):
        x, w, b = draw.tensor(3, 4), draw.tensor(2, 4), draw.tensor(2)
        loop = [[sum(w[i][j] * x[t][j] for j in range(4)) for i in range(2)] for t in range(3)]
        self.assertEqual(linalg.linear(x, w), loop)
        self.assertEqual([linalg.matvec(w, row) for row in x], loop)
        self.assertEqual([[linalg.dot(row, w_i) for w_i in w] for row in x], loop)
        self.assertEqual(linalg.linear(x, w, b),
                         [[a + b[i] for i, a in enumerate(row)] for row in loop])
        self.assertEqual(linalg.outer(b, x[0]),
                         [[b[0] * a for a in x[0]], [b[1] * a for a in x[0]]])

    def test_zeros_like_has_no_row_twice(self):
        rows = linalg.zeros_like([[1, 2], [3, 4], [5, 6]])
        rows[0][0] = 1
        self.assertEqual(rows, [[1, 0], [0, 0], [0, 0]])


# ---- the stream ----

def mixing_sublayers(draw, n, width):
    """n linear sublayers with their backwards: x W and d Wᵀ."""
    maps = [draw.tensor(width, width) for _ in range(n)]

    def forward(w):
        return lambda x: linalg.linear(x, w)

    def backward(w):
        return lambda d, x: linalg.linear(d, linalg.transpose(w))

    return maps, [forward(w) for w in maps], [backward(w) for w in maps]


class StreamLaws(Laws):

    @seeded(Fraction)
    def test_the_final_stream_is_the_first_plus_every_update(self, seed, draw):
        x = draw.tensor(2, 3)
        _, fns, _ = mixing_sublayers(draw, 3, 3)
        states = stream.trace(x, fns)
        updates = [fn(state) for fn, state in zip(fns, states)]
        self.assertEqual(len(states), 4)
        for k in range(3):
            self.assertEqual(linalg.subtract(states[k + 1], states[k]), updates[k])
        total = linalg.add(linalg.add(updates[0], updates[1]), updates[2])
        self.assertEqual(stream.total_update(x, fns), total)
        self.assertEqual(stream.run_sublayers(x, fns), linalg.add(x, total))

    @seeded(Fraction)
    def test_sublayers_run_one_after_the_other_are_sublayers_run_together(self, seed, draw):
        x = draw.tensor(2, 3)
        _, fns, _ = mixing_sublayers(draw, 4, 3)
        self.assertEqual(stream.run_sublayers(stream.run_sublayers(x, fns[:1]), fns[1:]),
                         stream.run_sublayers(x, fns))

    @seeded(int)
    def test_each_sublayer_is_called_once_with_the_stream_so_far(self, seed, draw):
        x, seen = draw.tensor(2, 3), []

        def watching(state):
            seen.append(copied(state))
            return state

        states = stream.trace(x, [watching] * 3)
        self.assertEqual(seen, states[:3])
        self.assertEqual(states, [x, linalg.scale(2, x), linalg.scale(4, x), linalg.scale(8, x)])

    def test_a_sublayer_that_writes_into_what_it_reads_changes_nothing(self):
        def vandal(state):
            state[0][0] = 1000
            return [[1, 1], [1, 1]]

        x = [[1, 2], [3, 4]]
        self.assertEqual(stream.trace(x, [vandal, vandal]),
                         [[[1, 2], [3, 4]], [[2, 3], [4, 5]], [[3, 4], [5, 6]]])
        self.assertEqual(x, [[1, 2], [3, 4]])

    def test_states_share_no_list(self):
        kept = [[1, 2], [3, 4]]                 # a sublayer that hands out the same list each time
        x = [[5, 6], [7, 8]]
        states = stream.trace(x, [lambda state: kept, lambda state: kept])
        for i, state in enumerate(states):
            for other in states[i + 1:] + [x, kept]:
                self.assertFalse(lists_in(state) & lists_in(other))
        self.assertFalse(lists_in(stream.run_sublayers(x, [])) & lists_in(x))

    @seeded(Fraction)
    def test_the_gradient_is_a_product_of_identity_plus_jacobian(self, seed, draw):
        """State k's gradient is (I + W_k)ᵀ ... (I + W_n)ᵀ d, here multiplied out by hand."""
        x, d = draw.tensor(1, 3), draw.tensor(1, 3)
        maps, fns, backwards = mixing_sublayers(draw, 3, 3)
        want = [d]
        for w in reversed(maps):
            step = [[w[i][j] + (1 if i == j else 0) for j in range(3)] for i in range(3)]
            want = [[[sum(step[i][j] * want[0][0][i] for i in range(3)) for j in range(3)]]] + want
        self.assertEqual(stream.run_sublayers_backward(d, x, fns, backwards), want)

    @seeded(Fraction)
    def test_the_gradient_is_the_sum_over_all_paths(self, seed, draw):
        """n sublayers make 2**n paths: each skips a sublayer or goes through it."""
        x, d = draw.tensor(1, 2), draw.tensor(1, 2)
        _, fns, backwards = mixing_sublayers(draw, 3, 2)
        total = [[0, 0]]
        for path in range(2 ** 3):
            along = d
            for k in reversed(range(3)):
                if path >> k & 1:
                    along = backwards[k](along, None)
            total = linalg.add(total, along)
        self.assertEqual(stream.run_sublayers_backward(d, x, fns, backwards)[0], total)

    @seeded()
    def test_without_branches_the_gradient_arrives_whole(self, seed, draw):
        x, d = draw.tensor(2, 3), draw.tensor(2, 3)
        gradients = stream.run_sublayers_backward(d, x, [zeros] * 4, [lambda d, x: zeros(x)] * 4)
        self.assertEqual(gradients, [d] * 5)


# ---- softmax and activations ----

class SoftmaxLaws(Laws):

    @seeded(size=3)
    def test_rows_are_positive_and_sum_to_1(self, seed, draw):
        for row in nonlinear.softmax(draw.tensor(3, 5)):
            self.assertTrue(all(p > 0 for p in row))
            self.assertClose(sum(row), 1, seed)

    @seeded()
    def test_a_shift_changes_nothing(self, seed, draw):
        x, shift = draw.tensor(5), draw.number()
        shifted = [a + shift for a in x]
        self.assertClose(nonlinear.softmax(shifted), nonlinear.softmax(x), seed)
        self.assertClose(nonlinear.log_softmax(shifted), nonlinear.log_softmax(x), seed)

    @seeded()
    def test_the_gradient_has_no_part_along_a_shift(self, seed, draw):
        x, d = draw.tensor(5), draw.tensor(5)
        for backward in (nonlinear.softmax_backward, nonlinear.log_softmax_backward):
            d_x = backward(d, x)
            self.assertClose(sum(a for a in d_x if a > 0), -sum(a for a in d_x if a < 0), seed)

    @seeded()
    def test_the_quotient_of_two_is_the_exponential_of_their_difference(self, seed, draw):
        x = draw.tensor(4)
        p = nonlinear.softmax(x)
        self.assertClose(p[0] / p[3], math.exp(x[0] - x[3]), seed)

    @seeded()
    def test_log_softmax_is_its_logarithm(self, seed, draw):
        x = draw.tensor(2, 4)
        self.assertClose(nonlinear.log_softmax(x), walk(math.log, nonlinear.softmax(x)), seed)

    def test_far_apart_scores_neither_overflow_nor_vanish(self):
        for far in (1e4, -1e4, 1e300):
            self.assertEqual(nonlinear.softmax([far, far]), [0.5, 0.5])
            self.assertEqual(nonlinear.log_softmax([0.0, -abs(far)]), [0.0, -abs(far)])
            self.assertEqual(nonlinear.softmax([0.0, -abs(far)]), [1.0, 0.0])


class ActivationLaws(Laws):

    @seeded(size=2)
    def test_each_takes_its_mirror_image_to_the_same_less_x(self, seed, draw):
        """x g(x) with g(x) + g(-x) = 1: f(x) - f(-x) = x, for every activation here; relu too."""
        for name, forward, _ in nonlinear.ACTIVATIONS:
            x = draw.tensor(6)
            mirrored = forward([-a for a in x])
            self.assertClose(linalg.subtract(forward(x), mirrored), x, seed, name)

    @seeded(size=2)
    def test_slopes_at_x_and_at_minus_x_sum_to_1(self, seed, draw):
        for name, _, backward in nonlinear.ACTIVATIONS:
            x = draw.tensor(6)
            ones = [1.0] * 6
            got = linalg.add(backward(ones, x), backward(ones, [-a for a in x]))
            self.assertClose(got, ones, seed, name)

    def test_far_out_they_are_x_and_0(self):
        for name, forward, backward in nonlinear.ACTIVATIONS:
            with self.subTest(name):
                self.assertEqual(forward([1e4, -1e4]), [1e4, 0.0])
                self.assertEqual(backward([3.0, 3.0], [1e4, -1e4]), [3.0, 0.0])

    @seeded(size=1.5)
    def test_gelu_is_the_integral_of_the_normal_density(self, seed, draw):
        """Φ by its power series, summed in Fractions: nothing cancels, and no erf is called."""
        x = draw.tensor(5)
        self.assertClose(nonlinear.gelu(x), [float(a * normal_below(Fraction(a))) for a in x],
                         seed)

    @seeded(size=1.5)
    def test_gelus_slope_is_the_limit_of_differences(self, seed, draw):
        """Central differences in Fractions, where a step of 1e-9 cancels no digits."""
        step = Fraction(1, 10 ** 9)
        x = [Fraction(a) for a in draw.tensor(5)]
        ends = [[b * normal_below(b) for b in (a - step, a + step)] for a in x]
        slopes = [(ahead - behind) / (2 * step) for behind, ahead in ends]
        got = nonlinear.gelu_backward([1.0] * 5, walk(float, x))
        self.assertClose(got, walk(float, slopes), seed)

    def test_the_two_gelus_are_close_and_not_the_same(self):
        """The gap is largest near x = -2.3 and -2.7 and is 4.73e-4 there."""
        grid = [i / 100 for i in range(-600, 601)]
        gaps = [abs(a - b) for a, b in zip(nonlinear.gelu(grid), nonlinear.gelu_tanh(grid))]
        self.assertTrue(4.7e-4 < max(gaps) < 4.8e-4, f"largest gap {max(gaps)!r}")

    @seeded()
    def test_gelu_tanh_by_exponentials(self, seed, draw):
        x = draw.tensor(5)
        inside = [math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3) for a in x]
        want = [a / (1 + math.exp(-2 * c)) for a, c in zip(x, inside)]
        self.assertClose(nonlinear.gelu_tanh(x), want, seed)

    @seeded()
    def test_silu_by_tanh(self, seed, draw):
        x = draw.tensor(5)
        self.assertClose(nonlinear.silu(x), [a * (1 + math.tanh(a / 2)) / 2 for a in x], seed)

    @seeded(Fraction)
    def test_relu_keeps_the_positive_and_is_flat_at_0(self, seed, draw):
        x = draw.tensor(6)
        self.assertEqual(nonlinear.relu(x), [max(a, 0) for a in x])
        self.assertEqual(nonlinear.relu_backward([1] * 6, x), [int(a > 0) for a in x])
        self.assertEqual(nonlinear.relu_backward([5], [0]), [0])


ROOT_2_PI = Fraction(math.sqrt(2 * math.pi))


def normal_below(x):
    """Φ(x) = 1/2 + φ-integral from 0 to x, the density's power series integrated term by term."""
    term, total, k = x, x, 0
    while abs(term) > Fraction(1, 10 ** 25):
        k += 1
        term = term * -x * x / (2 * k)
        # short numbers: what is cut off is 1e-40 of 1
        term = Fraction(round(term * 10 ** 40), 10 ** 40)
        total += term / (2 * k + 1)
    return Fraction(1, 2) + total / ROOT_2_PI


# ---- norms ----

def naive_norm(x, w, config):
    """One vector through LayerNorm or RMSNorm, from the formula."""
    n = len(x)
    mean = sum(x) / n if config.kind == "layer" else 0
    centred = [a - mean for a in x]
    divisor = math.sqrt(sum(a * a for a in centred) / n + config.eps)
    out = [a / divisor for a in centred]
    if w.gain is not None:
        out = [g * a for g, a in zip(w.gain, out)]
    if w.bias is not None:
        out = [a + b for a, b in zip(out, w.bias)]
    return out


class NormLaws(Laws):

    @seeded()
    def test_against_the_formula(self, seed, draw):
        x, gain, bias = draw.tensor(3, 5), draw.tensor(5), draw.tensor(5)
        w = pyres.NormWeights(gain, bias)
        for eps in (0.0, 1e-5, 0.5):
            self.assertClose(norms.layer_norm(x, gain, bias, eps),
                             [naive_norm(row, w, norm_config("layer", eps)) for row in x], seed)
            self.assertClose(norms.rms_norm(x, gain, eps),
                             [naive_norm(row, w._replace(bias=None), norm_config("rms", eps))
                              for row in x],
                             seed)

    @seeded()
    def test_what_is_normalized_has_mean_0_and_mean_square_1(self, seed, draw):
        for row in norms.layer_norm(draw.tensor(3, 5), eps=0.0):
            self.assertClose([1 + sum(row), sum(a * a for a in row)], [1, 5], seed)
        for row in norms.rms_norm(draw.tensor(3, 5), eps=0.0):
            self.assertClose(sum(a * a for a in row), 5, seed)

    @seeded()
    def test_scale_does_not_matter_and_for_layer_norm_no_shift(self, seed, draw):
        x, factor, shift = draw.tensor(4), abs(draw.number()) + 0.1, draw.number()
        scaled, shifted = [factor * a for a in x], [a + shift for a in x]
        self.assertClose(norms.layer_norm(scaled, eps=0.0), norms.layer_norm(x, eps=0.0), seed)
        self.assertClose(norms.rms_norm(scaled, eps=0.0), norms.rms_norm(x, eps=0.0), seed)
        self.assertClose(norms.layer_norm(shifted), norms.layer_norm(x), seed)

    @seeded()
    def test_layer_norm_is_rms_norm_of_what_is_centred(self, seed, draw):
        x = draw.tensor(4)
        mean = sum(x) / 4
        self.assertClose(norms.layer_norm(x), norms.rms_norm([a - mean for a in x]), seed)

    @seeded()
    def test_a_gradient_has_no_part_along_what_does_not_matter(self, seed, draw):
        x, d, gain = draw.tensor(4), draw.tensor(4), draw.tensor(4)
        _, _, normalized = norms.layer_norm_parts(x, 0.0)
        d_x, _, d_bias = norms.layer_norm_backward(d, x, gain, gain, 0.0)
        size = sum(abs(a) for a in d_x)
        self.assertClose([size + sum(d_x), size + linalg.dot(d_x, normalized)], [size, size], seed)
        self.assertEqual(d_bias, d)
        _, normalized = norms.rms_norm_parts(x, 0.0)
        d_x, _ = norms.rms_norm_backward(d, x, gain, 0.0)
        size = sum(abs(a) for a in d_x)
        self.assertClose(size + linalg.dot(d_x, normalized), size, seed)

    @seeded()
    def test_along_x_itself_only_eps_is_felt(self, seed, draw):
        """J x = normalized * eps / scale²; J is symmetric, so the backward gives J x."""
        eps = 0.3
        x = draw.tensor(4)
        mean, scale, normalized = norms.layer_norm_parts(x, eps)
        d_x = norms.layer_norm_backward([a - mean for a in x], x, eps=eps)[0]
        self.assertClose(d_x, [n * eps / scale ** 2 for n in normalized], seed)
        scale, normalized = norms.rms_norm_parts(x, eps)
        d_x = norms.rms_norm_backward(x, x, eps=eps)[0]
        self.assertClose(d_x, [n * eps / scale ** 2 for n in normalized], seed)

    def test_a_far_mean_loses_no_digits(self):
        """Two passes: mean(x²) - mean(x)² would keep none of the sixteen."""
        x = [1e8 + 1, 1e8 + 2, 1e8 + 6]
        near = norms.layer_norm([1.0, 2.0, 6.0], eps=0.0)
        self.assertClose(norms.layer_norm(x, eps=0.0), near, "none")

    @seeded()
    def test_depth_is_only_repetition(self, seed, draw):
        x, gain = draw.ragged((2, 3), 4), draw.tensor(4)
        self.assertEqual(norms.layer_norm(x, gain),
                         [[norms.layer_norm(row, gain) for row in rows] for rows in x])
        self.assertEqual(norms.rms_norm(x, gain),
                         [[norms.rms_norm(row, gain) for row in rows] for rows in x])

    @seeded()
    def test_a_frozen_norm_with_its_own_scale_is_the_norm(self, seed, draw):
        x, gain, bias = draw.tensor(3, 4), draw.tensor(4), draw.tensor(4)
        _, scale, _ = norms.layer_norm_parts(x)
        self.assertClose(norms.frozen_layer_norm(x, scale, gain, bias),
                         norms.layer_norm(x, gain, bias), seed)
        scale, _ = norms.rms_norm_parts(x)
        self.assertClose(norms.frozen_rms_norm(x, scale, gain), norms.rms_norm(x, gain), seed)

    @seeded(Fraction)
    def test_frozen_norms_take_sums_to_sums(self, seed, draw):
        x, y, scale, gain = draw.tensor(2, 3), draw.tensor(2, 3), draw.tensor(2), draw.tensor(3)
        for frozen in (norms.frozen_layer_norm, norms.frozen_rms_norm):
            self.assertEqual(frozen(linalg.add(x, y), scale, gain),
                             linalg.add(frozen(x, scale, gain), frozen(y, scale, gain)))

    @seeded()
    def test_the_steps_of_a_norm_keep_its_parts(self, seed, draw):
        x, w = draw.tensor(2, 4), pyres.NormWeights(draw.tensor(4), draw.tensor(4))
        steps = blocks.norm_steps(x, w, norm_config("layer", 0.1))
        self.assertEqual((steps.mean, steps.scale, steps.normalized),
                         norms.layer_norm_parts(x, 0.1))
        rebuilt = [[w.gain[i] * (row[i] - steps.mean[t]) / steps.scale[t] + w.bias[i]
                    for i in range(4)]
                   for t, row in enumerate(x)]
        self.assertClose(steps.out, rebuilt, seed)


# ---- rotary ----

class RotaryLaws(Laws):

    def table(self, positions, n_pairs=2):
        return rotary.angles(positions, [1.0, 0.3, 0.07][:n_pairs])

    @seeded()
    def test_lengths_stay(self, seed, draw):
        x = draw.tensor(2, 6)
        for pairing in ("half", "interleaved"):
            turned = rotary.rotate(x, self.table([3, 11], 3), pairing)
            self.assertClose([sum(a * a for a in row) for row in turned],
                             [sum(a * a for a in row) for row in x], seed, pairing)

    @seeded()
    def test_an_inner_product_knows_the_distance_only(self, seed, draw):
        q, k = draw.tensor(1, 4), draw.tensor(1, 4)
        for pairing in ("half", "interleaved"):
            def product(at, back):
                return linalg.dot(rotary.rotate(q, self.table([at]), pairing)[0],
                                  rotary.rotate(k, self.table([at - back]), pairing)[0])

            # twice the largest that the product can be, so that its own size does not matter
            size = 2 * math.sqrt(linalg.dot(q[0], q[0]) * linalg.dot(k[0], k[0]))
            for back in (0, 2, 5):
                self.assertClose(size + product(7, back), size + product(40, back), seed, pairing)

    @seeded()
    def test_turning_back_and_turning_twice(self, seed, draw):
        x = draw.tensor(1, 4)
        for pairing in ("half", "interleaved"):
            once = rotary.rotate(x, self.table([3]), pairing)
            self.assertClose(rotary.rotate(once, self.table([5]), pairing),
                             rotary.rotate(x, self.table([8]), pairing), seed, pairing)
            self.assertClose(rotary.rotate_backward(once, self.table([3]), pairing), x, seed,
                             pairing)

    @seeded()
    def test_position_0_is_the_identity_and_others_are_not(self, seed, draw):
        x = draw.tensor(1, 4)
        for pairing in ("half", "interleaved"):
            self.assertEqual(rotary.rotate(x, self.table([0]), pairing), x)
            self.assertNotEqual(rotary.rotate(x, self.table([1]), pairing), x)

    @seeded()
    def test_the_two_pairings_differ_by_a_permutation_of_channels(self, seed, draw):
        """Channel 2j of the interleaved is channel j of the halves, 2j + 1 is j + n."""
        order = [0, 3, 1, 4, 2, 5]
        x = draw.tensor(2, 6)
        table = self.table([4, 9], 3)
        interleaved = [[row[c] for c in order] for row in x]
        want = [[row[c] for c in order] for row in rotary.rotate(x, table, "half")]
        self.assertEqual(rotary.rotate(interleaved, table, "interleaved"), want)
        self.assertNotEqual(rotary.rotate(x, table, "interleaved"),
                            rotary.rotate(x, table, "half"))

    @seeded()
    def test_pairs_turn_as_complex_numbers_do(self, seed, draw):
        """A pair (a, b) is a + ib, times exp(i t rate); rates fall from 1 by the rotated width."""
        rates = rotary.frequencies(4, 100.0)
        self.assertClose(rates, [1.0, 0.1], 0)
        x = draw.tensor(6)
        got = rotary.rotate([x], rotary.angles([7], rates), "half")[0]
        for j in range(2):
            angle = 7 * rates[j]
            turned = complex(x[j], x[j + 2]) * complex(math.cos(angle), math.sin(angle))
            self.assertClose([got[j], got[j + 2]], [turned.real, turned.imag], seed)
        self.assertEqual(got[4:], x[4:], "channels beyond the rotated width pass through")


# ---- attention ----

def naive_attention(x, w, config):
    """The output of an attention sublayer by loops over heads, positions and channels."""
    n, h, d_model = len(x), config.d_head, len(x[0])
    group = config.n_heads // config.n_kv_heads

    def project(matrix, bias, t, channel):
        return (sum(matrix[channel][j] * x[t][j] for j in range(d_model))
                + (0 if bias is None else bias[channel]))

    def turned(vector, t):
        if config.rotary is None:
            return vector
        out, n_pairs = list(vector), len(config.rotary.frequencies)
        for j, rate in enumerate(config.rotary.frequencies):
            half = config.rotary.pairing == "half"
            first, second = (j, j + n_pairs) if half else (2 * j, 2 * j + 1)
            turn = complex(math.cos(t * rate), math.sin(t * rate))
            z = complex(vector[first], vector[second]) * turn
            out[first], out[second] = z.real, z.imag
        return out

    out = [[0 if w.b_o is None else w.b_o[i] for i in range(d_model)] for _ in range(n)]
    for head in range(config.n_heads):
        kv = head // group
        q = [turned([project(w.w_q, w.b_q, t, head * h + c) for c in range(h)], t)
             for t in range(n)]
        k = [turned([project(w.w_k, w.b_k, t, kv * h + c) for c in range(h)], t) for t in range(n)]
        v = [[project(w.w_v, w.b_v, t, kv * h + c) for c in range(h)] for t in range(n)]
        for t in range(n):
            visible = [s for s in range(n)
                       if (s <= t or not config.causal)
                       and (config.window is None or t - s < config.window)]
            scores = {s: sum(q[t][c] * k[s][c] for c in range(h)) / math.sqrt(h) for s in visible}
            if config.soft_cap is not None:
                scores = {s: config.soft_cap * math.tanh(a / config.soft_cap)
                          for s, a in scores.items()}
            total = sum(math.exp(a) for a in scores.values())
            for s, a in scores.items():
                for i in range(d_model):
                    for c in range(h):
                        out[t][i] += w.w_o[i][head * h + c] * math.exp(a) / total * v[s][c]
    return out


NAIVE_CONFIGS = (
    ("plain", attention_config(2, 3)),
    ("one head", attention_config(1, 4)),
    ("not causal", attention_config(2, 2, causal=False)),
    ("window", attention_config(2, 2, window=2)),
    ("grouped", attention_config(4, 2, 2)),
    ("multi-query, half rotary",
     attention_config(3, 4, 1, rotary=RotaryConfig("half", [1.0, 0.2]))),
    ("interleaved rotary of a part, soft cap",
     attention_config(2, 4, rotary=RotaryConfig("interleaved", [0.8]), soft_cap=1.0)),
)


class AttentionLaws(Laws):

    @seeded(seeds=SEEDS[:2])
    def test_against_loops(self, seed, draw):
        for case, config in NAIVE_CONFIGS:
            x, w = draw.tensor(4, 4), attention_weights(draw, 4, config)
            self.assertClose(attention(x, w, config), naive_attention(x, w, config), seed, case)

    @seeded()
    def test_scores_are_divided_by_the_root_of_the_heads_width(self, seed, draw):
        q, k = draw.tensor(2, 1, 3), draw.tensor(2, 1, 3)
        steps = attend_steps(q, k, k)
        self.assertClose([head[0][0] for head in steps.scores],
                         [sum(a * b for a, b in zip(q[i][0], k[i][0])) / math.sqrt(3)
                          for i in range(2)], seed)

    @seeded()
    def test_rows_of_a_pattern_sum_to_1_and_are_0_where_nothing_is_seen(self, seed, draw):
        q, k = draw.tensor(2, 4, 2), draw.tensor(2, 6, 2)
        steps = attend_steps(q, k, k, window=3)
        for scores, pattern in zip(steps.scores, steps.pattern):
            for t in range(4):
                visible = [t + 2 - 2 <= s <= t + 2 for s in range(6)]
                self.assertClose(sum(pattern[t]), 1, seed)
                self.assertEqual([p > 0 for p in pattern[t]], visible)
                self.assertEqual([s is not None for s in scores[t]], visible)

    @seeded()
    def test_changing_a_token_leaves_every_earlier_row_as_it_is_to_the_last_bit(self, seed, draw):
        config = attention_config(4, 2, 2, rotary=RotaryConfig("half", [1.0]))
        x, w = draw.tensor(5, 4), attention_weights(draw, 4, config)
        before = attention(x, w, config)
        for t in range(5):
            other = x[:t] + [draw.tensor(4)] + x[t + 1:]
            after = attention(other, w, config)
            self.assertEqual(after[:t], before[:t])
            self.assertTrue(all(a != b for a, b in zip(after[t:], before[t:])),
                            "later rows do change")

    @seeded()
    def test_with_a_window_what_is_out_of_it_does_not_matter(self, seed, draw):
        q, k, v = draw.tensor(1, 5, 2), draw.tensor(1, 5, 2), draw.tensor(1, 5, 2)
        before = attend(q, k, v, window=2)[0]
        k[0][1], v[0][1] = draw.tensor(2), draw.tensor(2)
        after = attend(q, k, v, window=2)[0]
        self.assertEqual([a == b for a, b in zip(after, before)], [True, False, False, True, True])

    @seeded()
    def test_a_window_as_long_as_the_sequence_is_none_and_one_of_1_sees_itself(self, seed, draw):
        q, k, v = draw.tensor(2, 3, 2), draw.tensor(2, 3, 2), draw.tensor(2, 3, 2)
        self.assertEqual(attend(q, k, v, window=3), attend(q, k, v))
        self.assertEqual(attend(q, k, v, window=1), v)

    @seeded()
    def test_queries_of_the_tail_give_the_last_rows_of_the_full_run(self, seed, draw):
        q, k, v = draw.tensor(4, 5, 2), draw.tensor(2, 5, 2), draw.tensor(2, 5, 2)
        for options in ({}, {"window": 2}, {"soft_cap": 1.0}):
            full = attend(q, k, v, **options)
            for n in range(1, 6):
                tail = attend([head[5 - n:] for head in q], k, v, **options)
                self.assertEqual(tail, [head[5 - n:] for head in full])

    @seeded()
    def test_rotary_positions_of_the_tail_begin_where_it_stands(self, seed, draw):
        config = attention_config(2, 4, rotary=RotaryConfig("interleaved", [1.0, 0.2]))
        flat_q = draw.tensor(5, 8)
        full = project_heads(flat_q, None, 2, config)
        self.assertEqual(project_heads(flat_q[3:], None, 2, config, first_position=3),
                         [head[3:] for head in full])

    @seeded()
    def test_grouped_heads_are_full_heads_with_keys_and_values_repeated_in_place(self, seed, draw):
        grouped, full = attention_config(6, 2, 2), attention_config(6, 2)
        x, w = draw.tensor(3, 4), attention_weights(draw, 4, grouped)

        def repeated(rows):
            heads = [rows[0:2], rows[2:4]]
            return [row for head in heads for row in head * 3]

        w_full = w._replace(w_k=repeated(w.w_k), w_v=repeated(w.w_v), b_k=repeated(w.b_k),
                            b_v=repeated(w.b_v))
        self.assertEqual(attention(x, w, grouped), attention(x, w_full, full))

    @seeded()
    def test_heads_may_stand_in_any_order(self, seed, draw):
        config = attention_config(3, 2)
        order = [2, 0, 1]
        x, w = draw.tensor(3, 4), attention_weights(draw, 4, config)

        def moved(rows):
            return [row for i in order for row in rows[2 * i:2 * i + 2]]

        other = w._replace(w_q=moved(w.w_q), w_k=moved(w.w_k), w_v=moved(w.w_v), b_q=moved(w.b_q),
                           b_k=moved(w.b_k), b_v=moved(w.b_v),
                           w_o=linalg.transpose(moved(linalg.transpose(w.w_o))))
        self.assertClose(attention(x, other, config), attention(x, w, config), seed)

    @seeded()
    def test_a_bias_on_the_keys_changes_nothing(self, seed, draw):
        """It adds the same to every score of a row.  Without rotary, and without q/k norms."""
        config = attention_config(2, 3)
        x, w = draw.tensor(4, 4), attention_weights(draw, 4, config)
        self.assertClose(attention(x, w._replace(b_k=draw.tensor(6)), config),
                         attention(x, w, config), seed)

    @seeded()
    def test_a_bias_on_the_values_is_a_constant_that_each_head_writes(self, seed, draw):
        config = attention_config(2, 3)
        x, w = draw.tensor(4, 4), attention_weights(draw, 4, config)
        without = w._replace(b_v=None)
        constant = linalg.matvec(w.w_o, w.b_v)
        want = [linalg.add(row, constant) for row in attention(x, without, config)]
        self.assertClose(attention(x, w, config), want, seed)

    @seeded()
    def test_the_heads_writes_and_the_output_bias_sum_to_the_output(self, seed, draw):
        config = attention_config(4, 3, 2)
        x, w = draw.tensor(3, 4), attention_weights(draw, 4, config)
        steps = attention_steps(x, w, config)
        total = [list(w.b_o) for _ in x]
        for i in range(4):
            total = linalg.add(total, head_update(steps.mixed[i], w.w_o, i))
        self.assertClose(total, steps.out, seed)

    @seeded()
    def test_a_heads_writes_from_each_source_sum_to_its_write(self, seed, draw):
        config = attention_config(2, 3)
        x, w = draw.tensor(3, 4), attention_weights(draw, 4, config)
        steps = attention_steps(x, w, config)
        for i in range(2):
            total = [[0.0] * 4 for _ in x]
            for s in range(3):
                written = head_update([steps.v[i][s]], w.w_o, i)[0]
                total = [linalg.add(row, linalg.scale(steps.pattern[i][t][s], written))
                         for t, row in enumerate(total)]
            self.assertClose(total, head_update(steps.mixed[i], w.w_o, i), seed)

    @seeded()
    def test_a_soft_cap_far_above_the_scores_is_none_and_a_small_one_flattens(self, seed, draw):
        q, k, v = draw.tensor(1, 3, 2), draw.tensor(1, 3, 2), draw.tensor(1, 3, 2)
        self.assertClose(attend(q, k, v, soft_cap=1e9), attend(q, k, v), seed)
        capped = attend_steps(q, k, v, soft_cap=0.25).scores[0]
        self.assertTrue(all(abs(s) < 0.25 for row in capped for s in row if s is not None))

    @seeded()
    def test_a_given_pattern_that_was_computed_changes_nothing(self, seed, draw):
        q, k, v = draw.tensor(4, 3, 2), draw.tensor(2, 3, 2), draw.tensor(2, 3, 2)
        steps = attend_steps(q, k, v)
        again = attend(q, k, v, patterns=[None, steps.pattern[1], None, steps.pattern[3]])
        self.assertClose(again, steps.mixed, seed)

    @seeded(int)
    def test_splitting_heads_and_joining_them(self, seed, draw):
        x = draw.tensor(3, 6)
        heads = split_heads(x, 3)
        self.assertEqual(heads[1], [row[2:4] for row in x])
        self.assertEqual(join_heads(heads), x)

    @seeded()
    def test_a_norm_of_each_head_is_not_one_of_the_whole(self, seed, draw):
        """A gain of d_head norms each head by itself, however long the other heads are."""
        config = attention_config(2, 2, qk_norm=norm_config("rms", 0.0))
        x, gain = draw.tensor(3, 4), draw.tensor(2)
        longer = [[10 * a for a in row[:2]] + row[2:] for row in x]
        by_head = project_heads(x, gain, 2, config)
        self.assertClose(project_heads(longer, gain, 2, config), by_head, seed)
        self.assertClose(by_head, [[norms.rms_norm(row, gain, 0.0) for row in head]
                                   for head in split_heads(x, 2)], seed)
        whole = project_heads(x, gain + gain, 2, config)
        self.assertClose(join_heads(whole), norms.rms_norm(x, gain + gain, 0.0), seed)


# ---- mlp, loss ----

def naive_mlp(x, w, activation):
    """The output of an MLP by loops."""
    act = {"relu": lambda a: max(a, 0.0), "silu": lambda a: a / (1 + math.exp(-a)),
           "gelu": lambda a: a * (1 + math.erf(a / math.sqrt(2))) / 2,
           "gelu_tanh": lambda a: a * (1 + math.tanh(math.sqrt(2 / math.pi)
                                                     * (a + 0.044715 * a ** 3))) / 2}[activation]
    out = []
    for row in x:
        total = [0.0 if w.b_down is None else b for b in w.b_down or row]
        for n in range(len(w.w_up)):
            up = sum(a * b for a, b in zip(w.w_up[n], row)) + (0 if w.b_up is None else w.b_up[n])
            hidden = act(up)
            if w.w_gate is not None:
                gate = (sum(a * b for a, b in zip(w.w_gate[n], row))
                        + (0 if w.b_gate is None else w.b_gate[n]))
                hidden = act(gate) * up
            total = [a + hidden * w.w_down[i][n] for i, a in enumerate(total)]
        out.append(total)
    return out


class MLPLaws(Laws):

    @seeded(seeds=SEEDS[:2])
    def test_against_loops(self, seed, draw):
        for activation, _, _ in nonlinear.ACTIVATIONS:
            for gated in (False, True):
                for biases in (False, True):
                    x, w = draw.tensor(2, 3), mlp_weights(draw, 3, 5, biases, gated)
                    self.assertClose(mlp(x, w, activation), naive_mlp(x, w, activation), seed,
                                     f"{activation}, gated {gated}, biases {biases}")

    @seeded(Fraction)
    def test_the_neurons_writes_and_the_bias_sum_to_the_output(self, seed, draw):
        for gated in (False, True):
            x, w = draw.tensor(2, 3), mlp_weights(draw, 3, 4, True, gated)
            steps = mlp_steps(x, w, "relu")
            total = [list(w.b_down) for _ in x]
            for n in range(4):
                column = [row[n] for row in w.w_down]
                total = [linalg.add(row, linalg.scale(hidden[n], column))
                         for row, hidden in zip(total, steps.hidden)]
            self.assertEqual(total, steps.out)

    @seeded(Fraction)
    def test_neurons_may_stand_in_any_order(self, seed, draw):
        order = [3, 1, 0, 2]
        x, w = draw.tensor(2, 3), mlp_weights(draw, 3, 4, True, True)
        other = w._replace(w_up=[w.w_up[n] for n in order], b_up=[w.b_up[n] for n in order],
                           w_gate=[w.w_gate[n] for n in order],
                           b_gate=[w.b_gate[n] for n in order],
                           w_down=[[row[n] for n in order] for row in w.w_down])
        self.assertEqual(mlp(x, other, "relu"), mlp(x, w, "relu"))

    @seeded(Fraction)
    def test_a_gate_that_passes_everything_leaves_a_linear_map(self, seed, draw):
        """relu of a gate that is 1 is 1, so out = w_down w_up x: the activation is not on up."""
        x, w = draw.tensor(2, 3), mlp_weights(draw, 3, 4, False, True)
        w = w._replace(w_gate=zeros(w.w_gate), b_gate=[1] * 4)
        self.assertEqual(mlp(x, w, "relu"), linalg.linear(linalg.linear(x, w.w_up), w.w_down))

    @seeded()
    def test_tokens_do_not_see_each_other(self, seed, draw):
        x, w = draw.tensor(3, 3), mlp_weights(draw, 3, 4)
        self.assertEqual(mlp(x, w, "silu"), [mlp([row], w, "silu")[0] for row in x])


class LossLaws(Laws):

    @seeded()
    def test_a_shift_of_a_rows_logits_changes_nothing(self, seed, draw):
        logits, targets = draw.tensor(3, 4), [1, 3, 0]
        shifted = [[a + shift for a in row] for row, shift in zip(logits, draw.tensor(3))]
        self.assertClose(loss.cross_entropy(shifted, targets), loss.cross_entropy(logits, targets),
                         seed)

    @seeded()
    def test_each_row_of_the_gradient_sums_to_0_and_pushes_up_the_target_alone(self, seed, draw):
        logits, targets = draw.tensor(3, 4), [1, None, 0]
        d_logits = loss.cross_entropy_backward(1, logits, targets)
        for row, target in zip(d_logits, targets):
            self.assertClose(1 + sum(row), 1, seed)
            self.assertEqual([a < 0 for a in row], [v == target for v in range(4)])

    @seeded()
    def test_it_is_the_mean_over_the_targets_that_count(self, seed, draw):
        logits = draw.tensor(4, 3)
        rows = [-math.log(math.exp(row[t]) / sum(map(math.exp, row)))
                for row, t in ((logits[0], 2), (logits[2], 0), (logits[3], 1))]
        self.assertClose(loss.cross_entropy(logits, [2, None, 0, 1]), sum(rows) / 3, seed)

    def test_knowing_nothing_costs_the_logarithm_of_the_vocabulary(self):
        self.assertClose(loss.cross_entropy([[2.0] * 7, [-1.0] * 7], [3, 6]), math.log(7), 0)

    def test_a_sure_right_guess_costs_nothing_and_a_sure_wrong_one_its_distance(self):
        self.assertEqual(loss.cross_entropy([[0.0, 1e4]], [1]), 0.0)
        self.assertEqual(loss.cross_entropy([[0.0, 1e4]], [0]), 1e4)


# ---- blocks ----

def naive_block(x, w, config):
    """(resid_mid or None, resid_post) of a block, from the line of its placement, by loops."""
    def norm(rows, name):
        norm_of = getattr(config, name)
        if norm_of is None:
            return rows
        return [naive_norm(row, getattr(w, name), norm_of) for row in rows]

    def attn(rows):
        return naive_attention(rows, w.attn, config.attention)

    def mlp_of(rows):
        return naive_mlp(rows, w.mlp, config.activation)

    def times(rows, learned):
        fixed = 1 if config.residual_multiplier is None else config.residual_multiplier
        if learned is None:
            learned = 1
        factors = learned if isinstance(learned, list) else [learned] * len(x[0])
        return [[fixed * f * a for f, a in zip(factors, row)] for row in rows]

    def plus(*parts):
        return [[sum(entries) for entries in zip(*rows)] for rows in zip(*parts)]

    def a(rows):
        return times(rows, w.attn_multiplier)

    def m(rows):
        return times(rows, w.mlp_multiplier)

    if config.placement == "pre_norm":
        u = plus(x, a(attn(norm(x, "attn_norm"))))
        return u, plus(u, m(mlp_of(norm(u, "mlp_norm"))))
    if config.placement == "parallel":
        second = "attn_norm" if config.mlp_norm is None else "mlp_norm"
        return None, plus(x, a(attn(norm(x, "attn_norm"))), m(mlp_of(norm(x, second))))
    if config.placement == "sandwich":
        u = plus(x, a(norm(attn(norm(x, "attn_norm")), "attn_post_norm")))
        return u, plus(u, m(norm(mlp_of(norm(u, "mlp_norm")), "mlp_post_norm")))
    if config.placement == "output_norm":
        u = plus(x, a(norm(attn(x), "attn_post_norm")))
        return u, plus(u, m(norm(mlp_of(u), "mlp_post_norm")))
    u = norm(plus(x, a(attn(x))), "attn_post_norm")
    return u, norm(plus(u, m(mlp_of(u))), "mlp_post_norm")


PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")


def one_block(placement, kind="layer", activation="gelu_tanh", n_heads=2, d_head=2, **options):
    norm = norm_config(kind, 0.1) if kind else None
    return block_config(5, attention_config(n_heads, d_head), placement, norm, activation,
                        **options)


class BlockLaws(Laws):

    @seeded(seeds=SEEDS[:2])
    def test_every_placement_against_its_own_formula(self, seed, draw):
        for placement in PLACEMENTS:
            for kind, activation in (("layer", "gelu_tanh"), ("rms", "silu"), (None, "gelu")):
                config = one_block(placement, kind, activation, residual_multiplier=0.6)
                x, w = draw.tensor(3, 4), block_weights(draw, 4, config, gated=kind == "rms",
                                                        multipliers=kind == "layer")
                steps = blocks.block_steps(x, w, config)
                mid, post = naive_block(x, w, config)
                self.assertClose(steps.resid_post, post, seed, f"{placement}, {kind}")
                if mid is None:
                    self.assertIsNone(steps.resid_mid,
                                      "a parallel block has no state in the middle")
                else:
                    self.assertClose(steps.resid_mid, mid, seed,
                                     f"{placement}, {kind}, the middle")

    @seeded()
    def test_a_parallel_block_with_one_norm_for_both(self, seed, draw):
        config = one_block("parallel")._replace(mlp_norm=None)
        x, w = draw.tensor(3, 4), block_weights(draw, 4, config)
        self.assertClose(blocks.block_steps(x, w, config).resid_post, naive_block(x, w, config)[1],
                         seed)

    @seeded(seeds=SEEDS[:1])
    def test_each_placement_is_another_function(self, seed, draw):
        wide = block_weights(draw, 4, one_block("sandwich"))
        ends = []
        for placement in PLACEMENTS:
            config, x = one_block(placement), Draw(50).tensor(3, 4)
            w = wide._replace(**{name: None for name in ("attn_norm", "attn_post_norm", "mlp_norm",
                                                         "mlp_post_norm")
                                 if getattr(config, name) is None})
            ends.append(blocks.block_steps(x, w, config).resid_post)
        for i, end in enumerate(ends):
            for other in ends[:i]:
                self.assertNotEqual(end, other)

    @seeded()
    def test_a_sandwich_whose_outer_norms_do_nothing_is_pre_norm(self, seed, draw):
        """A given scale of 1 makes RMSNorm the identity."""
        sandwich = one_block("sandwich")
        identity = norm_config("rms", 0, 1)
        sandwich = sandwich._replace(attn_post_norm=identity, mlp_post_norm=identity)
        nothing = pyres.NormWeights(None, None)
        x, w = draw.tensor(3, 4), block_weights(draw, 4, one_block("pre_norm"))
        steps = blocks.block_steps(x, w, one_block("pre_norm"))
        inside = w._replace(attn_post_norm=nothing, mlp_post_norm=nothing)
        again = blocks.block_steps(x, inside, sandwich)
        for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
            self.assertEqual(getattr(again, name), getattr(steps, name))

    @seeded()
    def test_branches_that_write_nothing_leave_the_stream_as_it_is(self, seed, draw):
        for placement in ("pre_norm", "parallel"):
            config = one_block(placement)
            x, w = draw.tensor(3, 4), block_weights(draw, 4, config)
            w = w._replace(attn=w.attn._replace(w_o=zeros(w.attn.w_o), b_o=None),
                           mlp=w.mlp._replace(w_down=zeros(w.mlp.w_down), b_down=None))
            d = draw.tensor(3, 4)
            steps = blocks.block_steps(x, w, config)
            self.assertEqual(steps.resid_post, x)
            self.assertEqual(blocks.block_backward(d, steps, w, config).resid_pre.total, d)

    @seeded()
    def test_a_norm_behind_a_silent_branch_still_writes_its_bias(self, seed, draw):
        for placement in ("sandwich", "output_norm"):
            config = one_block(placement)
            x, w = draw.tensor(3, 4), block_weights(draw, 4, config)
            w = w._replace(attn=w.attn._replace(w_o=zeros(w.attn.w_o), b_o=None))
            self.assertEqual(blocks.block_steps(x, w, config).attn_out,
                             [w.attn_post_norm.bias] * 3)

    @seeded(Fraction, seeds=SEEDS[:2])
    def test_what_is_recorded_as_an_update_is_what_was_added(self, seed, draw):
        """After any norm behind the branch and any multiplier: states differ by it, exactly."""
        given = norm_config("layer", 0, [2, Fraction(1, 2), 4])
        for placement in ("pre_norm", "parallel", "sandwich", "output_norm"):
            config = block_config(3, attention_config(2, 1), placement, given, "relu",
                                  residual_multiplier=Fraction(2, 3))
            x, w = draw.tensor(3, 2), block_weights(draw, 2, config, multipliers=True)
            patterns = edits.edits_of_block(given_patterns(2, 3), 0)
            steps = blocks.block_steps(x, w, config, patterns)
            after_attn = linalg.add(x, steps.attn_out)
            if placement != "parallel":
                self.assertEqual(steps.resid_mid, after_attn)
            self.assertEqual(steps.resid_post, linalg.add(after_attn, steps.mlp_out))
            bare = steps.attn.out if steps.attn_post_norm is None else steps.attn_post_norm.out
            factor = Fraction(2, 3) * w.attn_multiplier
            self.assertEqual(steps.attn_out, linalg.scale(factor, bare))

    @seeded()
    def test_in_post_norm_the_update_is_what_goes_into_the_norm(self, seed, draw):
        config = one_block("post_norm")
        x, w = draw.tensor(3, 4), block_weights(draw, 4, config)
        steps = blocks.block_steps(x, w, config)
        self.assertEqual(steps.attn_post_norm.x, linalg.add(x, steps.attn_out))
        self.assertEqual(steps.mlp_post_norm.x, linalg.add(steps.resid_mid, steps.mlp_out))
        self.assertEqual(steps.attn_out, steps.attn.out)

    @seeded()
    def test_the_gradient_at_a_state_is_its_identity_part_plus_its_branch_part(self, seed, draw):
        """The identity part is the gradient above, the branch part a block's without its skip."""
        config = one_block("pre_norm")
        x, w, d = draw.tensor(3, 4), block_weights(draw, 4, config), draw.tensor(3, 4)
        steps = blocks.block_steps(x, w, config)
        result = blocks.block_backward(d, steps, w, config)
        for state in (result.resid_mid, result.resid_pre):
            self.assertEqual(state.total, linalg.add(state.identity, state.branch))
            self.assertTrue(any(flat(state.branch)))
        self.assertEqual(result.resid_mid.identity, d)
        self.assertEqual(result.resid_pre.identity, result.resid_mid.total)
        # the mlp branch alone, by the chain of its two parts
        d_read, _ = pyres.mlp_backward(d, steps.mlp, w.mlp, config.activation)
        d_u, *_ = norms.layer_norm_backward(d_read, steps.resid_mid, w.mlp_norm.gain,
                                            w.mlp_norm.bias, 0.1)
        self.assertClose(result.resid_mid.branch, d_u, seed)


# ---- models ----

def given_patterns(n_heads, n_tokens, n_layers=1, kind=Fraction):
    """Edits that give every head a pattern, so that no softmax is needed."""
    return [edits.set_pattern(f"L{i}.attn.H{h}", causal_pattern(Draw(10 * i + h, kind), n_tokens))
            for i in range(n_layers) for h in range(n_heads)]


def exact_config(placement, norm, d_model=2, n_layers=2, **options):
    block = block_config(3, attention_config(2, 1), placement, norm, "relu")
    return model_config(d_model, 5, 4, n_layers, block, **options)


# Norms that keep Fractions exact: none, a given scale, and LayerNorm of two numbers, which are
# always one distance from their mean, so that no root is left.
EXACT_NORMS = (("none", None), ("given layer scale", norm_config("layer", 0, 3)),
               ("given rms scales", norm_config("rms", 0, [2, 5, Fraction(1, 2)])),
               ("layer of two", norm_config("layer", 0)))

TOKENS = [2, 4, 2]


def sum_of(writers):
    total = zeros(writers[0][1])
    for _, update in writers:
        total = linalg.add(total, update)
    return total


class SumLaws(Laws):
    """embed + the sum of all updates = the final stream."""

    def final(self, run):
        return run.states[-1][1]

    @seeded(Fraction, seeds=SEEDS[:2])
    def test_in_fractions_it_holds_with_equality(self, seed, draw):
        for placement in ("pre_norm", "parallel", "sandwich", "output_norm"):
            for case, norm in EXACT_NORMS:
                config = exact_config(placement, norm, final_norm=norm, embed_multiplier=3)
                m = model.make_model(config, model_weights(draw, config, multipliers=True))
                run = model.run(m, TOKENS, given_patterns(2, 3, 2))
                self.assertEqual(sum_of(run.writers), self.final(run),
                                 f"{placement}, {case}, seed {seed}")
                check = sums.sum_check(run)
                self.assertEqual((check.ok, check.error, check.tolerance, check.exact),
                                 (True, 0, 0, True))
                self.assertEqual(len(run.writers), 5)

    def test_numbers_that_overflow_prove_nothing(self):
        terms = [[[1e308]], [[1e308]], [[-1e308]]]
        check = sums.check_sum("", terms, [[1e308]])
        self.assertEqual((check.error, check.tolerance, check.ok), (math.inf, math.inf, False))
        self.assertTrue(sums.check_sum("", [[[1e307]], [[-1e307]]], [[0.0]]).ok)

    @seeded(int)
    def test_in_ints_too(self, seed, draw):
        config = exact_config("pre_norm", None, d_model=4, final_norm=None)
        m = model.make_model(config, model_weights(draw, config))
        run = model.run(m, TOKENS, given_patterns(2, 3, 2, int))
        self.assertEqual(sum_of(run.writers), self.final(run))
        self.assertEqual({type(a) for a in flat([run.logits, run.states])
                          if not isinstance(a, str)}, {int})

    @seeded()
    def test_in_floats_to_rounding(self, seed, draw):
        config = model_config(4, 5, 4, 2, one_block("sandwich", "rms"), final_norm=None)
        run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS)
        self.assertClose(sum_of(run.writers), self.final(run), seed)
        check = sums.sum_check(run)
        self.assertTrue(check.ok and not check.exact and check.tolerance < 1e-11, str(check))

    @seeded(Decimal)
    def test_in_decimals_to_their_rounding(self, seed, draw):
        block = block_config(5, attention_config(2, 2), "sandwich",
                             norm_config("rms", Decimal("0.1")), "silu")
        config = model_config(4, 5, 4, 2, block, final_norm=None)
        run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS)
        self.assertEqual({type(a) for a in flat(run.logits)}, {Decimal})
        self.assertClose(sum_of(run.writers), self.final(run), seed, tolerance=1e-25)
        self.assertTrue(sums.sum_check(run).ok)

    @seeded()
    def test_the_check_fails_where_a_writer_is_wrong(self, seed, draw):
        config = model_config(4, 5, 4, 2, one_block("pre_norm"))
        run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS)
        name, update = run.writers[2]
        wrong = [[a + 1e-9 for a in row] for row in update]
        lied = run._replace(writers=run.writers[:2] + [(name, wrong)] + run.writers[3:])
        self.assertTrue(sums.sum_check(run).ok)
        self.assertFalse(sums.sum_check(lied).ok)

    @seeded()
    def test_under_post_norm_the_plain_sum_is_false_and_the_carried_one_is_right(self, seed, draw):
        for kind in ("layer", "rms"):
            config = model_config(4, 5, 4, 2, one_block("post_norm", kind), final_norm=None)
            m = model.make_model(config, model_weights(draw, config, multipliers=True))
            run = model.run(m, TOKENS)
            carried = sums.carried_writers(run)
            self.assertClose(sum_of(carried), self.final(run), seed, kind)
            check = sums.sum_check(run)
            self.assertTrue(check.ok and "carried" in check.rule, str(check))
            self.assertEqual([name for name, _ in carried if "norm_bias" in name],
                             ["L0.attn.norm_bias", "L0.mlp.norm_bias", "L1.attn.norm_bias",
                              "L1.mlp.norm_bias"] if kind == "layer" else [])
            plain = sum_of(run.writers)
            self.assertTrue(difference(plain, self.final(run)) > 1e-3)

    @seeded(Fraction)
    def test_under_post_norm_in_fractions_with_equality(self, seed, draw):
        for case, norm in EXACT_NORMS:
            config = exact_config("post_norm", norm, final_norm=None)
            run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS,
                            given_patterns(2, 3, 2))
            self.assertEqual(sum_of(sums.carried_writers(run)), self.final(run), case)
            self.assertTrue(sums.sum_check(run).exact)

    @seeded(Fraction)
    def test_states_follow_each_other_by_the_updates_between_them(self, seed, draw):
        for placement in ("pre_norm", "parallel"):
            config = exact_config(placement, None, final_norm=None)
            run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS,
                            given_patterns(2, 3, 2))
            names = [name for name, _ in run.states]
            self.assertEqual(names, ["embed", "L0.mlp", "L1.mlp"] if placement == "parallel" else
                             ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"])
            for name, state in run.states:
                position = [writer for writer, _ in run.writers].index(name)
                self.assertEqual(sum_of(run.writers[:position + 1]), state, name)

    def test_the_number_of_writers(self):
        for n in (0, 1, 2, 32):
            config = model_config(4, 5, 4, n, one_block("pre_norm"))
            self.assertEqual(len(model.writer_names(config)), 1 + 2 * n)


class ModelLaws(Laws):

    @seeded()
    def test_a_model_is_embed_blocks_norm_unembed(self, seed, draw):
        """The same again from its parts, by the loops of this file."""
        config = model_config(4, 5, 4, 2, one_block("pre_norm"), embed_multiplier=1.5,
                              final_norm=norm_config("rms", 0.1), logit_multiplier=0.7,
                              logit_soft_cap=2.0)
        w = model_weights(draw, config)
        run = model.run(model.make_model(config, w), TOKENS)
        x = [[1.5 * w.w_embed[token][i] + w.w_pos[t][i] for i in range(4)]
             for t, token in enumerate(TOKENS)]
        for block, block_w in zip(config.blocks, w.blocks):
            x = naive_block(x, block_w, block)[1]
        normed = [naive_norm(row, w.final_norm, config.final_norm) for row in x]
        logits = [[0.7 * sum(a * b for a, b in zip(w.w_unembed[v], row)) + w.b_unembed[v]
                   for v in range(5)] for row in normed]
        self.assertClose(run.states[-1][1], x, seed)
        self.assertClose(run.normed, normed, seed)
        self.assertClose(run.logits, [[2.0 * math.tanh(a / 2.0) for a in row] for row in logits],
                         seed)

    @seeded()
    def test_later_tokens_leave_earlier_rows_as_they_are_to_the_last_bit(self, seed, draw):
        config = model_config(4, 5, 6, 2, one_block("pre_norm"))
        m = model.make_model(config, model_weights(draw, config))
        short, long = model.run(m, [1, 3, 0]), model.run(m, [1, 3, 0, 4, 2])
        self.assertEqual(long.logits[:3], short.logits)
        for (name, state), (_, longer) in zip(short.states, long.states):
            self.assertEqual(longer[:3], state, name)

    @seeded()
    def test_tying_is_using_the_same_table(self, seed, draw):
        config = model_config(4, 5, 4, 1, one_block("pre_norm"))
        tied = model_weights(draw, config, tied=True)
        untied = tied._replace(w_unembed=copied(tied.w_embed))
        d = draw.tensor(3, 5)
        run, other = [model.run(model.make_model(config, w), TOKENS) for w in (tied, untied)]
        self.assertEqual(run.logits, other.logits)
        gradients, _ = model.run_backward(d, run)
        of_other, _ = model.run_backward(d, other)
        self.assertClose(gradients.w_embed, linalg.add(of_other.w_embed, of_other.w_unembed), seed)
        self.assertIsNone(gradients.w_unembed)
        self.assertTrue(any(flat(of_other.w_embed)) and any(flat(of_other.w_unembed)))

    @seeded()
    def test_a_tokens_row_collects_from_every_place_where_it_stands(self, seed, draw):
        """With positions, each place's gradient is a row of w_pos's: those of one token add."""
        config = model_config(4, 5, 4, 1, one_block("pre_norm"), embed_multiplier=2.0)
        run = model.run(model.make_model(config, model_weights(draw, config)), TOKENS)
        gradients, stream_of = model.run_backward(draw.tensor(3, 5), run)
        at = stream_of[0][1].total
        self.assertEqual(gradients.w_pos, at + [[0.0] * 4])
        self.assertClose(gradients.w_embed[2], [2.0 * (a + b) for a, b in zip(at[0], at[2])], seed)
        self.assertClose(gradients.w_embed[4], [2.0 * a for a in at[1]], seed)
        self.assertEqual(gradients.w_embed[0], [0.0] * 4)

    @seeded(seeds=SEEDS[:1])
    def test_gradients_of_the_loss_against_differences(self, seed, draw):
        """One number of every tensor, by central differences: two steps of 1e-4, whose errors,
        which go by the step's square, are taken out of each other (Richardson)."""
        config = model_config(4, 5, 4, 1, one_block("sandwich"))
        w = model_weights(draw, config, tied=True)
        _, gradients, _ = model.loss_and_gradients(model.make_model(config, w), TOKENS)
        for name, leaf in leaves(w):
            place = random_place(leaf, draw)

            def slope(step):
                ahead, behind = [model.loss_and_gradients(
                    model.make_model(config, moved_leaf(w, name, place, by)), TOKENS)[0]
                                 for by in (step, -step)]
                return (ahead - behind) / (2 * step)

            want = (4 * slope(1e-4) - slope(2e-4)) / 3
            got = at_place(tensor_named(gradients, name), place)
            # Rounding of the loss, 1e-16, over the step.
            self.assertTrue(abs(got - want) <= 1e-9,
                            f"{name} at {place}, seed {seed}: got {got!r}, "
                            f"want {want!r}, tolerance 1e-9")

    @seeded()
    def test_losses_default_to_the_next_tokens(self, seed, draw):
        config = model_config(4, 5, 4, 1, one_block("pre_norm"))
        m = model.make_model(config, model_weights(draw, config))
        loss_of, _, _ = model.loss_and_gradients(m, [3, 1, 4])
        run = model.run(m, [3, 1, 4])
        self.assertEqual(loss_of, loss.cross_entropy(run.logits, [1, 4, None]))
        self.assertEqual(model.loss_and_gradients(m, [3, 1, 4], [1, 4, None])[0], loss_of)

    @seeded(seeds=SEEDS[:2])
    def test_streams_gradient_at_every_state_against_a_state_that_is_moved(self, seed, draw):
        """set_state puts a stream in a state's place: the slope there is the state's gradient."""
        config = model_config(4, 5, 4, 2, one_block("sandwich"))
        m = model.make_model(config, model_weights(draw, config))
        run, d = model.run(m, TOKENS), draw.tensor(3, 5)
        _, stream_of = model.run_backward(d, run)
        self.assertEqual([name for name, _ in stream_of], [name for name, _ in run.states])
        for (name, state), (_, gradient) in zip(run.states, stream_of):
            direction = draw.tensor(3, 4)
            moved = walk(lambda a, v: complex(a, v * TINY), state, direction)
            logits = model.run(m, TOKENS, [edits.set_state(name, moved)]).logits
            want, size = inner(d, walk(lambda a: a.imag / TINY, logits))
            got, other = inner(gradient.total, direction)
            self.assertTrue(abs(got - want) <= TIGHT * (size + other),
                            f"{name}, seed {seed}: {got!r}, {want!r}")
        self.assertIsNone(stream_of[-1][1].branch)


def tensor_named(w, name):
    return dict(leaves(w))[name]


def random_place(leaf, draw):
    """The indices of one number of a tensor."""
    place, part = (), leaf
    while isinstance(part, list):
        place += (draw.generator.below(len(part)),)
        part = part[place[-1]]
    return place


def at_place(tensor_of, place):
    for i in place:
        tensor_of = tensor_of[i]
    return tensor_of


def moved_leaf(w, name, place, step):
    """The weights with one number of one tensor moved by step."""
    names = iter([leaf_name for leaf_name, _ in leaves(w)])

    def moved(leaf):
        if next(names) != name:
            return leaf
        if place == ():
            return leaf + step
        leaf = copied(leaf)
        row = at_place(leaf, place[:-1])
        row[place[-1]] += step
        return leaf

    return map_leaves(moved, w)


# ---- edits ----

def small_model(draw, placement="pre_norm", kind="layer", **options):
    config = model_config(4, 5, 4, 2, one_block(placement, kind), **options)
    return model.make_model(config, model_weights(draw, config))


def exact_model(draw, placement="pre_norm", norm=norm_config("layer", 0, 3)):
    """A model in Fractions, with the edits that give all its patterns."""
    config = exact_config(placement, norm, final_norm=norm)
    return model.make_model(config, model_weights(draw, config)), given_patterns(2, 3, 2)


class EditLaws(Laws):

    WRITERS = ("embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "L0.attn.H1", "L1.attn.H0")

    @seeded()
    def test_scaling_by_1_changes_nothing(self, seed, draw):
        m = small_model(draw)
        run = model.run(m, TOKENS)
        for writer in self.WRITERS:
            again = model.run(m, TOKENS, [edits.scale(writer, 1)])
            self.assertClose(again.logits, run.logits, seed, writer)
            if ".H" not in writer:          # an edited head writes by itself: another order
                self.assertEqual(again.logits, run.logits, writer)

    @seeded()
    def test_replacing_an_update_by_itself_changes_nothing(self, seed, draw):
        m = small_model(draw)
        run = model.run(m, TOKENS)
        for writer, update in run.writers:
            again = model.run(m, TOKENS, [edits.replace(writer, update)])
            self.assertEqual(again.logits, run.logits, writer)

    @seeded()
    def test_an_edited_part_changes_its_branch_by_what_the_part_wrote(self, seed, draw):
        config = model_config(4, 5, 4, 1, block_config(5, attention_config(4, 2, n_kv_heads=2)))
        m = model.make_model(config, model_weights(draw, config))
        clean, other = model.run(m, TOKENS), draw.tensor(3, 4)
        for part in ("L0.attn.H2", "L0.attn.G1", "L0.attn.H3.S0", "L0.mlp.N4"):
            branch, write = branch_of(part), raw_write(clean, part)
            for edit, change in (
                    (edits.scale(part, 3), linalg.scale(2, write)),
                    (edits.replace(part, other), linalg.subtract(other, write)),
                    (edits.shift(part, other), other)):
                edited = model.run(m, TOKENS, [edit])
                self.assertClose(dict(edited.writers)[branch],
                                 linalg.add(dict(clean.writers)[branch], change), seed, edit)

    @seeded()
    def test_scaling_by_0_is_replacing_by_0(self, seed, draw):
        m = small_model(draw)
        for writer in self.WRITERS:
            off = model.run(m, TOKENS, [edits.scale(writer, 0)])
            replaced = model.run(m, TOKENS, [edits.replace(writer, [[0.0] * 4] * 3)])
            self.assertEqual(off.logits, replaced.logits, writer)
            if ".H" not in writer:
                self.assertEqual(dict(off.writers)[writer], [[0.0] * 4] * 3)

    @seeded(Fraction)
    def test_the_edited_update_is_the_one_that_is_recorded_and_added(self, seed, draw):
        m, patterns = exact_model(draw)
        run = model.run(m, TOKENS, patterns)
        for writer, update in run.writers:
            alpha = draw.number()
            edited = model.run(m, TOKENS, patterns + [edits.scale(writer, alpha)])
            self.assertEqual(dict(edited.writers)[writer], linalg.scale(alpha, update))
            self.assertEqual(sum_of(edited.writers), edited.states[-1][1])

    @seeded()
    def test_what_stands_before_an_edit_does_not_know_of_it(self, seed, draw):
        m = small_model(draw)
        run, names = model.run(m, TOKENS), [name for name, _ in model.run(m, TOKENS).writers]
        for i, writer in enumerate(names):
            edited = model.run(m, TOKENS, [edits.scale(writer, -2.0)])
            self.assertEqual(edited.writers[:i], run.writers[:i])
            self.assertTrue(all(a != b for a, b in zip(edited.writers[i:], run.writers[i:])))

    @seeded(Fraction)
    def test_with_later_updates_frozen_an_edit_is_felt_as_it_is(self, seed, draw):
        """Everything after is replaced by what it was: the end moves by the edit alone."""
        m, patterns = exact_model(draw)
        run = model.run(m, TOKENS, patterns)
        for i, (writer, update) in enumerate(run.writers):
            frozen = [edits.replace(name, kept) for name, kept in run.writers[i + 1:]]
            for alpha in (0, 1, draw.number()):
                edited = model.run(m, TOKENS, patterns + [edits.scale(writer, alpha)] + frozen)
                self.assertEqual(edited.states[-1][1],
                                 linalg.add(run.states[-1][1], linalg.scale(alpha - 1, update)))

    @seeded(Fraction)
    def test_with_later_updates_frozen_every_logit_is_linear_in_alpha(self, seed, draw):
        m, patterns = exact_model(draw)
        run = model.run(m, TOKENS, patterns)
        frozen = [edits.replace(name, kept) for name, kept in run.writers[2:]]

        def logits(alpha):
            return model.run(m, TOKENS, patterns + [edits.scale("L0.attn", alpha)] + frozen).logits

        off, on, alpha = logits(0), logits(1), draw.number()
        self.assertEqual(on, run.logits)
        step = linalg.subtract(on, off)
        self.assertEqual(logits(alpha), linalg.add(off, linalg.scale(alpha, step)))

    @seeded()
    def test_positions(self, seed, draw):
        m = small_model(draw)
        run = model.run(m, TOKENS)
        other = draw.tensor(3, 4)
        for writer in ("embed", "L0.mlp", "L1.attn"):
            update = dict(run.writers)[writer]
            scaled = model.run(m, TOKENS, [edits.scale(writer, 3.0, positions=[1])])
            self.assertEqual(dict(scaled.writers)[writer],
                             [update[0], [3.0 * a for a in update[1]], update[2]])
            self.assertEqual(scaled.logits[0], run.logits[0], "token 0 sees nothing of position 1")
            self.assertNotEqual(scaled.logits[1:], run.logits[1:])
            replaced = model.run(m, TOKENS, [edits.replace(writer, other, positions=[0, 2])])
            self.assertEqual(dict(replaced.writers)[writer], [other[0], update[1], other[2]])
            none = model.run(m, TOKENS, [edits.scale(writer, 3.0, positions=[])])
            self.assertEqual(none.logits, run.logits, "no position is no edit")

    def test_edits_of_one_writer_are_done_in_order(self):
        update, other = [[1, 2], [3, 4]], [[10, 20], [30, 40]]
        double, put = edits.scale("embed", 2), edits.replace("embed", other)
        self.assertEqual(edits.edit_update(update, [double, put]), other)
        self.assertEqual(edits.edit_update(update, [put, double]), [[20, 40], [60, 80]])
        self.assertEqual(edits.edit_update(update, [double, double]), [[4, 8], [12, 16]])

    @seeded()
    def test_a_branch_is_off_where_all_heads_are_off_but_for_its_bias(self, seed, draw):
        m = small_model(draw)
        heads = [edits.scale("L0.attn.H0", 0), edits.scale("L0.attn.H1", 0)]
        run = model.run(m, TOKENS, heads)
        self.assertEqual(dict(run.writers)["L0.attn"], [m.weights.blocks[0].attn.b_o] * 3)
        run = model.run(m, TOKENS, [edits.scale("L0.attn", 0)])
        self.assertEqual(dict(run.writers)["L0.attn"], [[0.0] * 4] * 3)

    @seeded()
    def test_an_edited_heads_write_is_scaled_and_the_others_stay(self, seed, draw):
        m, alpha = small_model(draw), draw.number()
        steps = model.run(m, TOKENS).steps.blocks[0].attn
        write = head_update(steps.mixed[1], m.weights.blocks[0].attn.w_o, 1)
        edited = model.run(m, TOKENS, [edits.scale("L0.attn.H1", alpha)])
        want = linalg.add(steps.out, linalg.scale(alpha - 1, write))
        self.assertClose(dict(edited.writers)["L0.attn"], want, seed)

    @seeded()
    def test_behind_a_norm_an_edited_head_is_normed_anew(self, seed, draw):
        for placement in ("sandwich", "output_norm"):
            m = small_model(draw, placement)
            block, config = m.weights.blocks[0], m.config.blocks[0]
            run = model.run(m, TOKENS)
            steps = run.steps.blocks[0].attn
            write = head_update(steps.mixed[0], block.attn.w_o, 0)
            bare = linalg.subtract(steps.out, write)
            want = [naive_norm(row, block.attn_post_norm, config.attn_post_norm) for row in bare]
            edited = model.run(m, TOKENS, [edits.scale("L0.attn.H0", 0)])
            self.assertClose(dict(edited.writers)["L0.attn"], want, seed, placement)

    @seeded()
    def test_a_given_pattern_is_used_and_the_other_head_keeps_its_own(self, seed, draw):
        m, pattern = small_model(draw), causal_pattern(draw, 3)
        clean = model.run(m, TOKENS).steps.blocks[0].attn
        edited = model.run(m, TOKENS, [edits.set_pattern("L0.attn.H1", pattern)])
        steps = edited.steps.blocks[0].attn
        self.assertEqual(steps.pattern, [clean.pattern[0], pattern])
        self.assertEqual(steps.mixed[0], clean.mixed[0])
        want = [[sum(p * v[c] for p, v in zip(row, clean.v[1])) for c in range(2)]
                for row in pattern]
        self.assertClose(steps.mixed[1], want, seed)

    @seeded()
    def test_a_head_whose_pattern_is_the_identity_copies_its_values(self, seed, draw):
        m = small_model(draw)
        one = [[1.0 if s == t else 0.0 for s in range(3)] for t in range(3)]
        steps = model.run(m, TOKENS, [edits.set_pattern("L0.attn.H0", one)]).steps.blocks[0].attn
        self.assertEqual(steps.mixed[0], steps.v[0])

    @seeded()
    def test_the_embedding_can_be_edited(self, seed, draw):
        m, other = small_model(draw), draw.tensor(3, 4)
        run = model.run(m, TOKENS, [edits.replace("embed", other)])
        self.assertEqual(run.states[0], ("embed", other))
        self.assertEqual(run.writers[0], ("embed", other))
        doubled = model.run(m, TOKENS, [edits.scale("embed", 2)])
        clean = model.run(m, TOKENS)
        self.assertEqual(doubled.states[0][1], linalg.scale(2, clean.states[0][1]))

    @seeded()
    def test_setting_a_state_erases_all_that_was_written_and_goes_on_from_there(self, seed, draw):
        m, other = small_model(draw), draw.tensor(3, 4)
        clean = model.run(m, TOKENS)
        for i, (name, state) in enumerate(clean.states):
            run = model.run(m, TOKENS, [edits.set_state(name, other)])
            self.assertEqual(run.states[i], (name, other))
            self.assertEqual(run.states[:i], clean.states[:i])
            self.assertEqual(run.writers[:i + 1], clean.writers[:i + 1],
                             "updates up to it are as they were")
            elsewhere = model.run(m, [0, 1, 3], [edits.set_state(name, other)])
            self.assertEqual(elsewhere.logits, run.logits, "nothing of the tokens is left")
            self.assertEqual(model.run(m, TOKENS, [edits.set_state(name, state)]).logits,
                             clean.logits)
            check = sums.sum_check(run)
            self.assertTrue(check.ok and "set at " + name in check.rule, str(check))

    @seeded()
    def test_erasing_a_state_is_not_removing_an_update(self, seed, draw):
        m = small_model(draw)
        erased = model.run(m, TOKENS, [edits.set_state("L0.mlp", [[0.0] * 4] * 3)])
        removed = model.run(m, TOKENS, [edits.scale("L0.mlp", 0)])
        self.assertNotEqual(erased.logits, removed.logits)
        self.assertEqual(dict(removed.states)["L0.mlp"], dict(removed.states)["L0.attn"])

    @seeded()
    def test_no_gradient_goes_back_beyond_a_state_that_was_set(self, seed, draw):
        m = small_model(draw)
        run = model.run(m, TOKENS, [edits.set_state("L0.mlp", draw.tensor(3, 4))])
        gradients, stream_of = model.run_backward(draw.tensor(3, 5), run)
        self.assertFalse(any(flat([gradients.w_embed, gradients.w_pos, gradients.blocks[0]])))
        self.assertTrue(any(flat(gradients.blocks[1].attn.w_q)))
        self.assertTrue(any(flat(dict(stream_of)["L0.mlp"].total)),
                        "it does reach the state itself")
        self.assertFalse(any(flat(dict(stream_of)["L0.attn"].total)))

    @seeded()
    def test_the_slope_in_alpha_is_the_gradient_at_the_update_times_the_update(self, seed, draw):
        """dM/dalpha at 1, with M = <d, logits>, by a complex alpha and by differences."""
        for placement in ("pre_norm", "parallel"):
            m, d = small_model(draw, placement), draw.tensor(3, 5)
            run = model.run(m, TOKENS)
            stream_of = dict(model.run_backward(d, run)[1])
            for writer, update in run.writers:
                state = writer if writer in stream_of else writer.replace("attn", "mlp")
                want, size = inner(stream_of[state].total, update)

                def metric(alpha):
                    return inner(d, model.run(m, TOKENS, [edits.scale(writer, alpha)]).logits)[0]

                got = metric(complex(1, TINY)).imag / TINY
                self.assertTrue(abs(got - want) <= 1e-11 * size,
                                f"{writer}, seed {seed}: {got!r}, {want!r}, {1e-11 * size!r}")
                near = (metric(1 + 1e-5) - metric(1 - 1e-5)) / 2e-5
                self.assertTrue(abs(near - want) <= 1e-6 * size,
                                f"{writer}, seed {seed}: {near!r}, {want!r}, {1e-6 * size!r}")

    @seeded()
    def test_the_slope_in_a_heads_alpha(self, seed, draw):
        m, d = small_model(draw), draw.tensor(3, 5)
        run = model.run(m, TOKENS)
        stream_of = dict(model.run_backward(d, run)[1])
        for head in range(2):
            mixed, w_o = run.steps.blocks[1].attn.mixed[head], m.weights.blocks[1].attn.w_o
            write = head_update(mixed, w_o, head)
            want, size = inner(stream_of["L1.attn"].total, write)
            edited = model.run(m, TOKENS, [edits.scale(f"L1.attn.H{head}", complex(1, TINY))])
            got = inner(d, walk(lambda a: a.imag / TINY, edited.logits))[0]
            self.assertTrue(abs(got - want) <= 1e-11 * size,
                            f"H{head}, seed {seed}: {got!r}, {want!r}")

    @seeded()
    def test_a_replaced_update_sends_no_gradient_to_its_branch(self, seed, draw):
        m = small_model(draw)
        run = model.run(m, TOKENS, [edits.replace("L1.mlp", draw.tensor(3, 4))])
        gradients, stream_of = model.run_backward(draw.tensor(3, 5), run)
        self.assertFalse(any(flat(gradients.blocks[1].mlp)))
        self.assertFalse(any(flat(dict(stream_of)["L1.attn"].branch)))
        self.assertTrue(any(flat(gradients.blocks[1].attn)))

    @seeded()
    def test_a_run_that_fails_leaves_nothing_behind(self, seed, draw):
        m = small_model(draw)
        weights_before = copied(m.weights)
        before = model.run(m, TOKENS)
        good = edits.scale("L0.attn", 0)
        for bad, error in ((edits.replace("L1.mlp", [[0.0] * 5] * 3), ValueError),
                           (edits.scale("L1.mlp", 0, positions=[9]), ValueError),
                           (edits.scale("L7.mlp", 0), ValueError),
                           (edits.set_pattern("L1.attn.H0", [[1.0]]), ValueError),
                           (edits.set_state("L1.attn", [[0.0]]), ValueError),
                           ("L0.attn", TypeError)):
            with self.assertRaises(error):
                model.run(m, TOKENS, [good, bad])
            after = model.run(m, TOKENS)
            self.assertEqual((after.logits, after.writers, after.edits),
                             (before.logits, before.writers, []))
        self.assertTrue(m.weights == weights_before)

    @seeded()
    def test_edits_hold_their_own_copy(self, seed, draw):
        m, update = small_model(draw), draw.tensor(3, 4)
        edit = edits.replace("L0.mlp", update)
        first = model.run(m, TOKENS, [edit]).logits
        update[1][1] = 1000.0
        self.assertEqual(model.run(m, TOKENS, [edit]).logits, first)

    @seeded()
    def test_writing_into_a_record_changes_no_later_run(self, seed, draw):
        """No list of the model, its config or the edits is handed out in a record."""
        config = model_config(4, 5, 4, 1, one_block("sandwich", "layer"),
                              final_norm=norm_config("rms", 0, [2.0, 3.0, 4.0]))
        m = model.make_model(config, model_weights(draw, config))
        given = [edits.set_pattern("L0.attn.H0", causal_pattern(draw, 3)),
                 edits.replace("L0.mlp", draw.tensor(3, 4)),
                 edits.set_state("L0.attn", draw.tensor(3, 4))]
        run = model.run(m, TOKENS, given)
        before = copied(run.logits)
        record = [run.writers, run.states, run.normed, run.logits, run.steps]
        for what, lists in (("weights", m.weights), ("given scales", config.final_norm.scale),
                            ("given pattern", given[0].value), ("replacement", given[1].value),
                            ("given state", given[2].stream)):
            self.assertFalse(lists_in(record) & lists_in(lists),
                             f"the record has a list of the {what}")
        vandalize(record)
        self.assertEqual(model.run(m, TOKENS, given).logits, before)

    @seeded()
    def test_writing_into_gradients_changes_no_run(self, seed, draw):
        m, d = small_model(draw), draw.tensor(3, 5)
        run = model.run(m, TOKENS)
        before, d_before = copied(run.logits), copied(d)
        gradients, stream_of = model.run_backward(d, run)
        first = copied(gradients)
        vandalize([gradients, stream_of])
        self.assertEqual(d, d_before)
        self.assertEqual(model.run(m, TOKENS).logits, before)
        self.assertTrue(copied(model.run_backward(d, run)[0]) == first)


def vandalize(x):
    """Write into every list of numbers of a structure."""
    if isinstance(x, (list, tuple)):
        for part in x:
            vandalize(part)
        if isinstance(x, list) and x and isinstance(x[0], float):
            x[:] = [1e6] * len(x)


if __name__ == "__main__":
    unittest.main()
