"""Numbers keep their type: exact ones stay exact, and what is no number is refused.

The worked examples of the project stand here as equations between Fractions.
"""
import cmath
import math
import unittest
from decimal import Decimal
from fractions import Fraction

import pyres
from pyres import (blocks, edits, linalg, loss, model, nonlinear, norms, rotary, scalar, stream,
                   sums)
from pyres.attention import attend, attend_backward, attend_steps, attention_steps
from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.mlp import mlp_steps
from pyres.weights import AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights
from tests.laws import (Draw, Dual, assert_close, attention_weights, block_weights, causal_pattern,
                        copied, flat, form, is_exact, kinds, mlp_weights, model_weights, walk)

SEEDS = (1, 2, 3)
F = Fraction
NAN, INFINITY = float("nan"), float("inf")


def fractions(x):
    """The same numbers as Fractions."""
    return walk(Fraction, x)


class WorkedExamples(unittest.TestCase):
    """Each in Fractions, with ==."""

    def attention(self, x):
        return fractions([0.5, -1, 0])

    def mlp(self, x):
        return fractions([0, 1, 1])

    def test_a_stream_of_three_numbers_through_one_block(self):
        x = fractions([1, 2, 3])
        states = stream.trace(x, [self.attention, self.mlp])
        self.assertEqual(states, [[1, 2, 3], [F(3, 2), 1, 3], [F(3, 2), 2, 4]])
        self.assertTrue(is_exact(states))
        self.assertEqual(stream.total_update(x, [self.attention, self.mlp]), [F(1, 2), 0, 1])
        self.assertEqual(stream.run_sublayers(x, [self.attention, self.mlp]), [F(3, 2), 2, 4])

    def test_one_number_that_forgets_neither_update(self):
        x, a, m = F(-1), F(1, 2), F(1, 4)
        y = stream.run_sublayers([x], [lambda s: [a], lambda s: [m]])
        self.assertEqual(y, [F(-1, 4)])                     # -1/2 without m, -3/4 without a
        self.assertEqual(stream.run_sublayers([x], [lambda s: [a]]), [F(-1, 2)])
        self.assertEqual(stream.run_sublayers([x], [lambda s: [m]]), [F(-3, 4)])

    def test_two_positions_and_what_attention_takes_from_the_first(self):
        x = [fractions([1, 2]), fractions([3, -2])]
        pattern = [[1, 0], [F(1, 2), F(1, 2)]]
        unused = [[[0, 0], [0, 0]]]

        def attention(state):
            return attend(unused, unused, [state], patterns=[pattern])[0]

        def mlp(state):
            return [[-entry / 4 for entry in row] for row in state]

        _, u, y = stream.trace(x, [attention, mlp])
        self.assertEqual(u, [[2, 4], [5, -2]])
        self.assertEqual(y, [[F(3, 2), 3], [F(15, 4), F(-3, 2)]])
        self.assertTrue(is_exact([u[1], y]))

    def test_with_attention_switched_off(self):
        x, off = fractions([1, 2, 3]), edits.scale("L0.attn", 0)

        def silent(state):
            return edits.edit_update([self.attention(state)], [off])[0]

        self.assertEqual(stream.run_sublayers(x, [silent, self.mlp]), [1, 3, 4])
        self.assertEqual(stream.run_sublayers(x, [self.mlp]), [1, 3, 4])

    def test_an_update_of_four_numbers_is_refused_with_both_shapes(self):
        with self.assertRaises(ValueError) as caught:
            stream.run_sublayers(fractions([1, 2, 3]),
                                 [self.attention, lambda x: fractions([0, 1, 1, 0])])
        for part in ("(4,)", "(3,)", "d_model"):
            self.assertIn(part, str(caught.exception))

    def test_layer_norm_of_3_and_4(self):
        out = norms.layer_norm([F(3), F(4)], eps=0)
        self.assertEqual(out, [-1, 1])
        self.assertTrue(is_exact(out))
        self.assertEqual(norms.layer_norm_parts([F(3), F(4)], eps=0), (F(7, 2), F(1, 2), [-1, 1]))

    def test_rms_norm_of_3_and_4_divides_by_an_irrational_root(self):
        with self.assertRaises(TypeError) as caught:
            norms.rms_norm([F(3), F(4)], eps=0)
        self.assertIn("25/2", str(caught.exception))
        got = norms.rms_norm([3, 4], eps=0)
        assert_close(self, got, [3 / math.sqrt(12.5), 4 / math.sqrt(12.5)], 0, "rms_norm of ints")

    def test_ints_give_floats(self):
        for out in (norms.layer_norm([3, 4], eps=0), norms.rms_norm([1, 7], eps=0),
                    norms.layer_norm([3, 4])):
            self.assertEqual(kinds(out), ["float"])
        self.assertEqual(norms.layer_norm([3, 4], eps=0), [-1.0, 1.0])
        self.assertEqual(norms.rms_norm([1, 7], eps=0), [0.2, 1.4])

    def test_layer_norm_of_1_0_0_0(self):
        """mean 1/4, variance 3/16, so sqrt(3) and -1/sqrt(3): divided by n, not by n - 1."""
        got = norms.layer_norm([1, 0, 0, 0], eps=0)
        assert_close(self, got, [math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, 0, "layer_norm")
        with self.assertRaises(TypeError):
            norms.layer_norm(fractions([1, 0, 0, 0]), eps=0)

    def test_the_jacobian_of_a_sublayer_is_the_identity_plus_the_branchs(self):
        """x + f(x) with f(x) = (x0 x1, x0 - 3 x1) at (2, 5): I + [[5, 2], [1, -3]]."""
        x = fractions([2, 5])

        def f(state):
            return [state[0] * state[1], state[0] - 3 * state[1]]

        def f_backward(d, state):
            return [d[0] * state[1] + d[1], d[0] * state[0] - 3 * d[1]]

        rows = [stream.run_sublayers_backward(d, x, [f], [f_backward])[0]
                for d in fractions([[1, 0], [0, 1]])]
        self.assertEqual(rows, [[1 + 5, 0 + 2], [0 + 1, 1 - 3]])
        columns = []
        for v in ([1, 0], [0, 1]):
            moved = stream.run_sublayers([Dual(a, b) for a, b in zip(x, fractions(v))], [f])
            columns.append([a.slope for a in moved])
        self.assertEqual(linalg.transpose(columns), rows)

    def test_three_sublayers_make_eight_paths(self):
        """f(x) = x/2: each of the eight paths through three sublayers has 1/2 to the number of
        branches it takes, and 1 + 3/2 + 3/4 + 1/8 = 27/8."""
        halve, back = (lambda x: [a / 2 for a in x]), (lambda d, x: [a / 2 for a in d])
        got = stream.run_sublayers_backward([F(1)], [F(5)], [halve] * 3, [back] * 3)
        paths = [F(1, 2) ** bin(path).count("1") for path in range(8)]
        self.assertEqual(got, [[F(27, 8)], [F(9, 4)], [F(3, 2)], [1]])
        self.assertEqual(sum(paths), F(27, 8))

    def test_a_block_of_one_number(self):
        """attn(z) = 2z on one token, mlp(z) = relu(3z): 1, then 1 + 2 = 3, then 3 + 9 = 12."""
        config = block_config(1, attention_config(1, 1), norm=None, activation="relu")
        w = BlockWeights(None, AttentionWeights([[0]], [[0]], [[2]], [[1]], *[None] * 6), None,
                         None, None, MLPWeights(None, [[3]], [[1]], None, None, None), None, None)
        given = edits.edits_of_block([edits.set_pattern("L0.attn.H0", [[1]])], 0)
        steps = blocks.block_steps([[1]], fractions(w), config, given)
        self.assertEqual((steps.resid_pre, steps.attn_out, steps.resid_mid, steps.mlp_out,
                          steps.resid_post),
                         ([[1]], [[2]], [[3]], [[9]], [[12]]))


class ExactNumbers(unittest.TestCase):
    """A Fraction never becomes a float: it stays, or it is refused."""

    def test_every_record_of_a_block_in_fractions_holds_fractions_alone(self):
        for placement in ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm"):
            for seed in SEEDS:
                with self.subTest(placement=placement, seed=seed):
                    draw = Draw(seed, F)
                    config = block_config(3, attention_config(2, 1), placement,
                                          norm_config("layer", 0), "relu",
                                          residual_multiplier=F(1, 3))
                    given = edits.edits_of_block(
                        [edits.set_pattern(f"L0.attn.H{i}", causal_pattern(draw, 3))
                         for i in range(2)], 0)
                    x, w = draw.tensor(3, 2), block_weights(draw, 2, config, multipliers=True)
                    steps = blocks.block_steps(x, w, config, given)
                    result = blocks.block_backward(draw.tensor(3, 2), steps, w, config, given)
                    self.assertTrue(is_exact(steps), kinds(steps))
                    self.assertTrue(is_exact(result), kinds(result))

    def test_every_record_of_a_run_in_fractions_holds_fractions_alone(self):
        for norm in (None, norm_config("rms", 0, F(3, 2)), norm_config("layer", 0)):
            for seed in SEEDS:
                with self.subTest(norm=norm, seed=seed):
                    draw = Draw(seed, F)
                    block = block_config(3, attention_config(2, 1), "sandwich", norm, "relu")
                    config = model_config(2, 5, 4, 2, block, embed_multiplier=F(5, 3),
                                          final_norm=norm, logit_multiplier=F(1, 7))
                    m = model.make_model(config,
                                         model_weights(draw, config, tied=True, multipliers=True))
                    given = [edits.set_pattern(f"L{i}.attn.H{h}", causal_pattern(draw, 3))
                             for i in range(2) for h in range(2)]
                    given += [edits.scale("L0.mlp", F(2, 3)),
                              edits.scale("L1.attn.H0", F(1, 3), positions=[1])]
                    run = model.run(m, [2, 4, 2], given)
                    gradients, stream_of = model.run_backward(draw.tensor(3, 5), run)
                    for what, numbers in (("writers", [u for _, u in run.writers]),
                                          ("logits", run.logits),
                                          ("states", [s for _, s in run.states]),
                                          ("normed", run.normed),
                                          ("steps", run.steps), ("gradients", gradients),
                                          ("stream", [g for _, g in stream_of]),
                                          ("carried", [u for _, u in sums.carried_writers(run)])):
                        self.assertTrue(is_exact(numbers), f"{what}: {kinds(numbers)}")
                    self.assertTrue(sums.sum_check(run).exact)

    def test_what_needs_an_exponential_is_refused(self):
        x = fractions([1, 2])
        for f in (nonlinear.softmax, nonlinear.log_softmax, nonlinear.silu, nonlinear.gelu,
                  nonlinear.gelu_tanh):
            with self.subTest(f.__name__):
                with self.assertRaises(TypeError):
                    f(x)
                with self.assertRaises(TypeError):
                    getattr(nonlinear, f.__name__ + "_backward")(x, x)
        with self.assertRaises(TypeError):
            loss.cross_entropy([x], [1])

    def test_attention_is_refused_unless_its_pattern_is_given(self):
        """Whatever the head's width: sqrt(4) is rational, and the softmax still is not."""
        for d_head in (1, 2, 3, 4):
            with self.subTest(d_head=d_head):
                q = Draw(1, F).tensor(1, 2, d_head)
                with self.assertRaises(TypeError):
                    attend(q, q, q)
                out = attend(q, q, q, patterns=[causal_pattern(Draw(2, F), 2)])
                self.assertTrue(is_exact(out))
        with self.assertRaises(TypeError):
            attend(q, q, q, multiplier=F(1, 2))

    def test_soft_caps_are_refused(self):
        for cap in (F(3), 3, 3.0):
            with self.subTest(cap=cap):
                with self.assertRaises(TypeError):
                    model.soft_capped([fractions([1, 2])], cap)

    def test_angles_are_refused_and_exact_cosines_are_not(self):
        x = fractions([[5, 10]])
        with self.assertRaises(TypeError) as caught:
            rotary.rotate(x, rotary.angles([1], [1.0]), "half")
        self.assertIn("Fraction", str(caught.exception))
        self.assertEqual(rotary.rotate(x, [[(F(3, 5), F(4, 5))]], "half"), [[-5, 10]])

    def test_a_float_constant_is_refused_by_name(self):
        x, w = fractions([[3, 5]]), NormWeights(None, None)
        for number in (F, Decimal):
            row = [number(3), number(5)]
            for name, call in (
                    ("eps", lambda: norms.layer_norm(row)),
                    ("eps", lambda: norms.rms_norm(row, eps=0.5)),
                    ("eps", lambda: norms.layer_norm_backward(row, row)),
                    ("eps", lambda: norms.rms_norm_backward(row, row)),
                    ("eps", lambda: blocks.norm_steps([row], w, norm_config("layer", 1e-5)))):
                with self.subTest(number=number.__name__, name=name):
                    with self.assertRaises(TypeError) as caught:
                        call()
                    self.assertIn(name, str(caught.exception))
                    self.assertIn(number.__name__, str(caught.exception))
        for what, call in (
                ("multiplier", lambda: blocks.multiply_branch(x, 0.5)),
                ("scale", lambda: blocks.norm_steps(x, w, norm_config("rms", 0, 2.0))),
                ("multiplier", lambda: model.embed(
                    model_config(2, 1, 1, 0, None, embed_multiplier=0.5),
                    ModelWeights(x, None, [], None, None, None), [0]))):
            with self.subTest(what):
                with self.assertRaises(TypeError) as caught:
                    call()
                self.assertIn(what, str(caught.exception))

    def test_roots_of_rationals(self):
        for seed in SEEDS:
            root = abs(Draw(seed, F).number())
            self.assertEqual(scalar.sqrt(root * root), root)
            self.assertTrue(is_exact(scalar.sqrt(root * root)))
        for irrational in (F(2), F(1, 3), F(25, 2), F(10 ** 40 + 1)):
            with self.assertRaises(TypeError):
                scalar.sqrt(irrational)
        self.assertEqual(scalar.sqrt(F(10 ** 40)), 10 ** 20)
        with self.assertRaises(ValueError):
            scalar.sqrt(F(-4))

    def test_ints_stay_ints_under_plus_minus_and_times(self):
        draw = Draw(1, int)
        x, w = draw.tensor(3, 4), draw.tensor(2, 4)
        config = attention_config(2, 2)
        given = [(h, edits.set_pattern(f"L0.attn.H{h}", causal_pattern(draw, 3)))
                 for h in range(2)]
        for out in (stream.trace(x, [lambda s: s]), linalg.linear(x, w), nonlinear.relu(x),
                    linalg.linear_backward(x, x, draw.tensor(4, 4)),
                    mlp_steps(x, mlp_weights(draw, 4, 3, gated=True), "relu"),
                    attention_steps(x, attention_weights(draw, 4, config), config,
                                    pattern_edits=given),
                    edits.edit_update(x, [edits.scale("embed", 3)]), blocks.multiply_branch(x, 2)):
            self.assertEqual(kinds(out), ["int"])


# ---- other numbers ----

class OtherNumbers(unittest.TestCase):
    """The same in another type of number: the float's result, to the float's rounding."""

    def check(self, f, *arguments, types=(Decimal,), tolerance=1e-12):
        """f of floats against f of the same numbers in other types."""
        want = f(*arguments)
        for number in types:
            with self.subTest(number=number.__name__):
                got = f(*walk(number, arguments))
                self.assertEqual(kinds(got), [number.__name__])
                self.assertEqual(form(got), form(want))
                assert_close(self, walk(value_of, got), want, "fixed", number.__name__, tolerance)

    def test_decimal_complex_and_dual_through_norms_softmax_and_silu(self):
        for seed in SEEDS:
            draw = Draw(seed)
            x, d, gain = draw.tensor(3, 4), draw.tensor(3, 4), draw.tensor(4)
            types = (Decimal, complex, Dual)
            self.check(lambda x, g: norms.layer_norm(x, g, g, eps=0), x, gain, types=types)
            self.check(lambda x, g: norms.rms_norm(x, g, eps=0), x, gain, types=types)
            self.check(lambda d, x, g: norms.layer_norm_backward(d, x, g, g, eps=0), d, x, gain,
                       types=types)
            self.check(lambda d, x, g: norms.rms_norm_backward(d, x, g, eps=0), d, x, gain,
                       types=types)
            for f, backward in ((nonlinear.softmax, nonlinear.softmax_backward),
                                (nonlinear.log_softmax, nonlinear.log_softmax_backward),
                                (nonlinear.silu, nonlinear.silu_backward),
                                (nonlinear.relu, nonlinear.relu_backward)):
                self.check(f, x, types=types)
                self.check(backward, d, x, types=types)

    def test_gelus(self):
        """erf has no complex form, and a Decimal must not meet the constant sqrt(1/2)."""
        draw = Draw(1)
        x = draw.tensor(5)
        self.check(nonlinear.gelu, x, types=(Dual,))
        self.check(nonlinear.gelu_tanh, x, types=(complex, Dual))
        with self.assertRaises(TypeError):
            nonlinear.gelu([1j])
        for f in (nonlinear.gelu, nonlinear.gelu_tanh):
            with self.assertRaises(TypeError):
                f([Decimal(1)])

    def test_an_eps_of_the_numbers_own_type(self):
        want = norms.layer_norm([3.0, 4.0, 8.0], eps=0.5)
        got = norms.layer_norm([Decimal(3), Decimal(4), Decimal(8)], eps=Decimal("0.5"))
        assert_close(self, walk(float, got), want, "fixed", "Decimal")
        self.assertEqual(norms.layer_norm(fractions([3, 5]), eps=F(9, 16)), [F(-4, 5), F(4, 5)])
        self.assertEqual(norms.rms_norm(fractions([1, 7]), eps=0), [F(1, 5), F(7, 5)])

    def test_attention_in_decimals_and_complex_numbers_whatever_the_heads_width(self):
        """sqrt(1) and sqrt(4) are whole, sqrt(2) and sqrt(3) are not."""
        for d_head in (1, 2, 3, 4):
            draw = Draw(d_head)
            q, k = draw.tensor(4, 3, d_head), draw.tensor(2, 3, d_head)
            d = draw.like(q)
            with self.subTest(d_head=d_head):
                self.check(lambda q, k: attend(q, k, k), q, k, types=(Decimal, complex, Dual))
                self.check(lambda d, q, k: attend_backward(d, attend_steps(q, k, k)), d, q, k,
                           types=(Decimal, complex, Dual))

    def test_whole_blocks(self):
        for placement in ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm"):
            config = block_config(3, attention_config(2, 2), placement, norm_config("rms", 0),
                                  "silu")
            draw = Draw(2)
            x, w, d = draw.tensor(3, 4), block_weights(draw, 4, config), draw.tensor(3, 4)

            def both(x, w, d, config=config):
                steps = blocks.block_steps(x, w, config)
                result = blocks.block_backward(d, steps, w, config)
                return steps.resid_post, result.resid_pre.total, result.weights

            with self.subTest(placement=placement):
                self.check(both, x, w, d, types=(Decimal, complex, Dual))

    def test_a_whole_model_and_its_loss(self):
        block = block_config(3, attention_config(2, 2), "pre_norm", norm_config("layer", 0),
                             "silu")
        config = model_config(4, 5, 4, 1, block, final_norm=norm_config("layer", 0))
        w = model_weights(Draw(3), config)

        def both(w):
            m = model.make_model(config, w)
            value, gradients, stream_of = model.loss_and_gradients(m, [3, 1, 4])
            return value, gradients, [g.total for _, g in stream_of]

        self.check(both, w, types=(Decimal, complex, Dual))

    def test_a_number_class_with_the_operators_alone(self):
        """Intervals have + - * / and a root; stream and norms ask for no more."""
        for seed in SEEDS:
            draw = Draw(seed)
            x, w = draw.tensor(2, 3), draw.tensor(3, 3)
            around = walk(Interval, x)
            for f in (lambda x: stream.run_sublayers(x, [lambda s: linalg.linear(s, w)] * 2),
                      lambda x: norms.layer_norm(x, eps=0),
                      lambda x: norms.rms_norm(x, [2, 3, 4])):
                for inside, want in zip(flat(f(around)), flat(f(x))):
                    self.assertTrue(inside.low <= want <= inside.high,
                                    f"seed {seed}: {inside}, {want!r}")

    def test_complex_numbers_compare_by_the_real_part(self):
        self.assertEqual(nonlinear.relu([3 - 4j, -3 + 4j]), [3 - 4j, 0])
        self.assertEqual(nonlinear.relu_backward([1 + 1j, 1 + 1j], [3 - 4j, -3 + 4j]), [1 + 1j, 0])
        got = nonlinear.softmax([1 + 1j, 2 - 5j])
        want = [cmath.exp(1 + 1j), cmath.exp(2 - 5j)]
        assert_close(self, got, [a / sum(want) for a in want], "fixed", "complex softmax")


def value_of(a):
    """The real number in a Decimal, a complex number or a dual number."""
    return float(a.value if isinstance(a, Dual) else a.real)


class Interval:
    """Two ends between which a number lies; each operation widens by its own rounding."""

    def __init__(self, low, high=None):
        self.low, self.high = low, low if high is None else high

    def __repr__(self):
        return f"[{self.low!r}, {self.high!r}]"

    @staticmethod
    def of(ends):
        low, high = min(ends), max(ends)
        return Interval(low - 1e-15 * (1 + abs(low)), high + 1e-15 * (1 + abs(high)))

    def __add__(self, other):
        other = interval(other)
        return self.of([self.low + other.low, self.high + other.high])

    __radd__ = __add__

    def __neg__(self):
        return Interval(-self.high, -self.low)

    def __sub__(self, other):
        return self + -interval(other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        other = interval(other)
        return self.of([a * b for a in (self.low, self.high) for b in (other.low, other.high)])

    __rmul__ = __mul__

    def __truediv__(self, other):
        other = interval(other)
        return self.of([a / b for a in (self.low, self.high) for b in (other.low, other.high)])

    def sqrt(self):
        return self.of([math.sqrt(max(self.low, 0)), math.sqrt(self.high)])


def interval(x):
    return x if isinstance(x, Interval) else Interval(x)


# ---- what is no number ----

def small_weights(**changed):
    w = ModelWeights([[1.0, 2.0], [3.0, 4.0]], None, [], None, None, None)
    return w._replace(**changed)


SMALL = model_config(2, 2, 4, 0, None, final_norm=None)
SMALL_MODEL = model.make_model(SMALL, small_weights())
TABLE = rotary.angles([1], [1.0])
ATTENTION = AttentionWeights(*[[[1.0, 0.0], [0.0, 1.0]]] * 4, *[None] * 6)
MLP = MLPWeights(None, [[1.0, 1.0]], [[1.0], [1.0]], None, None, None)
BLOCK = BlockWeights(None, ATTENTION, None, None, None, MLP, None, None)
BARE = block_config(1, attention_config(1, 2), norm=None, activation="relu")


# Public functions, with a place where a number belongs.
REFUSING = (
    ("add_residual, the stream", lambda bad: pyres.add_residual([1.0, bad], [1.0, 2.0])),
    ("add_residual, the update", lambda bad: pyres.add_residual([1.0, 2.0], [1.0, bad])),
    ("add_residual, deeper", lambda bad: pyres.add_residual([[1.0], [bad]], [[1.0], [2.0]])),
    ("run_sublayers", lambda bad: pyres.run_sublayers([1.0, 2.0], [lambda x: [1.0, bad]])),
    ("trace", lambda bad: pyres.trace([1.0, bad], [lambda x: [1.0, 2.0]])),
    ("total_update", lambda bad: pyres.total_update([1.0, bad], [lambda x: [1.0, 2.0]])),
    ("softmax", lambda bad: pyres.softmax([1.0, bad])),
    ("log_softmax", lambda bad: pyres.log_softmax([1.0, bad])),
    ("relu", lambda bad: pyres.relu([1.0, bad])),
    ("gelu", lambda bad: pyres.gelu([[1.0, bad]])),
    ("gelu_tanh", lambda bad: pyres.gelu_tanh([1.0, bad])),
    ("silu", lambda bad: pyres.silu([1.0, bad])),
    ("layer_norm", lambda bad: pyres.layer_norm([1.0, bad])),
    ("rms_norm", lambda bad: pyres.rms_norm([[1.0, bad]])),
    ("frozen_layer_norm", lambda bad: pyres.frozen_layer_norm([1.0, bad], 2.0)),
    ("frozen_rms_norm", lambda bad: pyres.frozen_rms_norm([1.0, bad], 2.0)),
    ("shape", lambda bad: pyres.shape([1.0, bad])),
    ("cross_entropy, a logit", lambda bad: pyres.cross_entropy([[1.0, bad]], [0])),
    ("cross_entropy, a target", lambda bad: pyres.cross_entropy([[1.0, 2.0]], [bad])),
    ("scale, alpha", lambda bad: pyres.scale("L0.attn", bad)),
    ("scale, a position", lambda bad: pyres.scale("L0.attn", 1.0, [bad])),
    ("replace, a position", lambda bad: pyres.replace("L0.attn", [[1.0]], [bad])),
    ("make_model, a weight",
     lambda bad: pyres.make_model(SMALL, small_weights(w_embed=[[1.0, 2.0], [3.0, bad]]))),
    ("make_model, a bias",
     lambda bad: pyres.make_model(SMALL, small_weights(b_unembed=[bad, 1.0]))),
    ("run, a token", lambda bad: pyres.run(SMALL_MODEL, [0, bad])),
    ("run, a replacement", lambda bad: pyres.run(SMALL_MODEL, [0],
                                                 [pyres.replace("embed", [[1.0, bad]])])),
    ("loss_and_gradients, a target",
     lambda bad: pyres.loss_and_gradients(SMALL_MODEL, [0, 1], [bad, None])),
    ("attend, a given pattern",
     lambda bad: pyres.attend([[[1.0]]], [[[1.0]]], [[[1.0]]], patterns=[[[bad]]])),
    ("random_weights, the seed", lambda bad: pyres.random_weights(SMALL, seed=bad)),
    ("model_config, a size", lambda bad: pyres.model_config(bad, 2, 4, 0, None)),
    ("attention_config, a size", lambda bad: pyres.attention_config(bad, 2)),
    ("block_steps", lambda bad: pyres.block_steps([[1.0, bad]], BLOCK, BARE)),
)

# The same, in places that are easily forgotten.
REFUSING_TOO = (
    ("trace without sublayers", lambda bad: pyres.trace([1.0, bad], [])),
    ("run_sublayers without sublayers", lambda bad: pyres.run_sublayers([1.0, bad], [])),
    ("run_sublayers_backward, the gradient",
     lambda bad: pyres.run_sublayers_backward([1.0, bad], [1.0, 2.0], [], [])),
    ("rotate", lambda bad: pyres.rotate([[1.0, bad]], TABLE, "half")),
    ("attend, queries", lambda bad: pyres.attend([[[1.0, bad]]], [[[1.0, 2.0]]], [[[1.0, 2.0]]])),
    ("attend, keys", lambda bad: pyres.attend([[[1.0, 2.0]]], [[[1.0, bad]]], [[[1.0, 2.0]]])),
    ("attend, values", lambda bad: pyres.attend([[[1.0, 2.0]]], [[[1.0, 2.0]]], [[[1.0, bad]]])),
    ("replace", lambda bad: pyres.replace("L0.attn", [[1.0, bad]])),
    ("set_pattern", lambda bad: pyres.set_pattern("L0.attn.H0", [[bad]])),
    ("set_state", lambda bad: pyres.set_state("L0.attn", [[1.0, bad]])),
)


class NotNumbers(unittest.TestCase):

    def refused(self, table):
        for name, call in table:
            # a target of None does not count, and may stand there
            wrong = (True, False, "1") if "target" in name else (True, False, "1", None)
            with self.subTest(name):
                accepted = []
                for bad in wrong:
                    try:
                        call(bad)
                    except (TypeError, ValueError):     # where a size belongs, either is right
                        continue
                    accepted.append(bad)
                self.assertEqual(accepted, [], f"{name} takes these for numbers")

    def test_bools_strings_and_none_are_refused(self):
        self.refused(REFUSING)

    def test_bools_strings_and_none_are_refused_in_every_argument(self):
        self.refused(REFUSING_TOO)

    def test_the_same_calls_accept_numbers(self):
        """Else the tests above would pass whatever was wrong with the call."""
        for name, call in REFUSING + REFUSING_TOO:
            with self.subTest(name):
                call(1)

    def test_the_error_says_what_it_found(self):
        for bad in (True, "1"):
            for call in (lambda: stream.add_residual([1.0, bad], [1.0, 2.0]),
                         lambda: nonlinear.relu([bad])):
                with self.assertRaises(TypeError) as caught:
                    call()
                self.assertIn(type(bad).__name__, str(caught.exception))


# ---- not a number, infinity ----

class NanAndInfinity(unittest.TestCase):

    def test_they_are_carried(self):
        x = [1.0, NAN, INFINITY, -INFINITY]
        carried = stream.run_sublayers(x, [lambda s: [1.0] * 4])
        self.assertEqual([carried[0], carried[2], carried[3]], [2.0, INFINITY, -INFINITY])
        self.assertNotEqual(carried[1], carried[1])
        relu = nonlinear.relu(x)
        self.assertEqual([relu[0], relu[2], relu[3]], [1.0, INFINITY, 0.0])
        self.assertNotEqual(relu[1], relu[1])
        for out in (norms.layer_norm([1.0, NAN]), norms.rms_norm([1.0, NAN]),
                    nonlinear.softmax([1.0, NAN]), nonlinear.softmax([NAN, 1.0])):
            self.assertTrue(all(a != a for a in out), f"{out}: NaN is not hidden")

    def test_a_branch_that_is_switched_off_adds_nothing_even_if_it_is_infinite(self):
        off = edits.scale("L0.mlp", 0)
        out = edits.edit_update([[INFINITY, NAN]], [off])
        self.assertEqual(out, [[0.0, 0.0]])
        self.assertEqual(edits.edit_update_backward([[INFINITY, NAN]], [off]), [[0.0, 0.0]])

    def test_the_check_of_the_sum_does_not_call_nan_right(self):
        config = model_config(2, 2, 4, 0, None, final_norm=None)
        for bad in (NAN, INFINITY):
            m = model.make_model(config, small_weights(w_embed=[[1.0, bad], [3.0, 4.0]]))
            self.assertFalse(sums.sum_check(model.run(m, [0])).ok)
            self.assertTrue(sums.sum_check(model.run(m, [1])).ok)

    def test_in_one_token_they_reach_no_earlier_one(self):
        for bad in (NAN, INFINITY, -INFINITY):
            for options in ({}, {"window": 2}, {"soft_cap": 2.0}):
                draw = Draw(1)
                q, k, v = draw.tensor(4, 4, 2), draw.tensor(2, 4, 2), draw.tensor(2, 4, 2)
                clean = attend(q, k, v, **options)
                k[1][2][0] = v[1][2][0] = bad
                spoilt = attend(q, k, v, **options)
                with self.subTest(bad=bad, **options):
                    self.assertEqual(spoilt[:2], clean[:2], "heads that read other keys")
                    for head, before in zip(spoilt[2:], clean[2:]):
                        self.assertEqual(head[:2], before[:2], "tokens before it")
                        self.assertTrue(all(not is_finite(row) for row in head[2:4]), f"{head}")

    def test_through_a_whole_model(self):
        block = block_config(3, attention_config(2, 2), activation="silu")
        config = model_config(4, 5, 4, 2, block)
        w = model_weights(Draw(1), config)
        clean = model.run(model.make_model(config, w), [0, 1, 2, 3])
        w = copied(w)
        w.w_embed[2][0] = NAN
        spoilt = model.run(model.make_model(config, w._replace(blocks=w.blocks)), [0, 1, 2, 3])
        self.assertEqual(spoilt.logits[:2], clean.logits[:2])
        for (name, state), (_, before) in zip(spoilt.states, clean.states):
            self.assertEqual(state[:2], before[:2], name)
        self.assertTrue(all(a != a for row in spoilt.logits[2:] for a in row))

    def test_backward_a_gradient_of_one_token_reaches_no_later_one(self):
        """What a query does not see has no part in its gradient, not even 0 times it."""
        draw = Draw(1)
        q, k, v, d = [draw.tensor(2, 4, 2) for _ in range(4)]
        steps = attend_steps(q, k, v)
        clean = attend_backward(d, steps)
        d[0][1] = [NAN, NAN]
        d_q, d_k, d_v = attend_backward(d, steps)
        self.assertFalse(is_finite(d_v[0][1]), "it does reach its own value")
        for name, got, want in (("d_k", d_k, clean[1]), ("d_v", d_v, clean[2])):
            self.assertEqual(got[0][2:], want[0][2:], f"{name} of later tokens")
            self.assertEqual(got[1], want[1], f"{name} of the other head")

    def test_backward_a_key_reaches_no_earlier_querys_gradient(self):
        draw = Draw(1)
        q, k, v, d = [draw.tensor(1, 4, 2) for _ in range(4)]
        clean = attend_backward(d, attend_steps(q, k, v))[0]
        k[0][2] = [NAN, NAN]
        d_q = attend_backward(d, attend_steps(q, k, v))[0]
        self.assertFalse(is_finite(d_q[0][2]))
        self.assertEqual(d_q[0][:2], clean[0][:2], "queries before it do not see it")


def is_finite(row):
    return all(a - a == 0 for a in row)


if __name__ == "__main__":
    unittest.main()
