"""Mistakes that other implementations have made in public, as tests with the right values.

Each test says in its docstring what goes wrong elsewhere, and how it hides.  Where the wrong
number is known, it stands beside the right one, so that the test would tell them apart.
"""
import math
import unittest
from fractions import Fraction

import pyres
from pyres import blocks, edits, linalg, model, nonlinear, norms, rotary, stream
from pyres.attention import attend, attend_steps, attention, attention_steps
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.files.families import ACTIVATION_NAMES
from pyres.mlp import mlp_steps
from pyres.study import counting
from pyres.weights import AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights
from tests.laws import assert_close, copied, difference

F = Fraction
PRINTED = 1e-8          # the right values are given to nine decimals


class Mistakes(unittest.TestCase):

    def assertClose(self, got, want, tolerance=PRINTED):
        assert_close(self, got, want, "none", self.id().rpartition(".")[2], tolerance)

    def assertTold(self, right, wrong):
        """The wrong value is far enough away for the tests here to see it."""
        self.assertTrue(difference(right, wrong) > 100 * PRINTED,
                        f"{right!r} and {wrong!r} are too close")


# ---- shapes ----

class Shapes(Mistakes):

    def test_shapes_that_differ_do_not_add(self):
        """zip stops at the shorter list, and (n, 1) against (n,) is stretched to (n, n)."""
        for x, y, shapes in (([1, 2, 3], [10, 20], ("(3,)", "(2,)")),
                             ([[1], [2]], [1, 2], ("(2, 1)", "(2,)")),
                             ([[1, 2], [3, 4]], [[10, 20]], ("(2, 2)", "(1, 2)")),
                             ([[1, 2], [3, 4]], [[10], [20]], ("(2,)", "(1,)"))):
            for f in (linalg.add, linalg.subtract, linalg.multiply, stream.add_residual):
                with self.subTest(f.__name__, x=x, y=y):
                    with self.assertRaises(ValueError) as caught:
                        f(x, y)
                    for shape in shapes:
                        self.assertIn(shape, str(caught.exception))

    def test_one_row_is_not_stretched_over_all(self):
        x = [[1, 2], [3, 4]]
        with self.assertRaises(ValueError):
            stream.add_residual(x, [[10, 20]])
        self.assertEqual(stream.add_residual(x, [[10, 20], [30, 40]]), [[11, 22], [33, 44]])

    def test_ragged_rows_are_no_matrix(self):
        ragged = [[1, 2, 3], [4, 5]]
        for call in (lambda: linalg.shape(ragged), lambda: linalg.transpose(ragged),
                     lambda: linalg.matvec(ragged, [1, 2, 3]),
                     lambda: linalg.linear(ragged, [[1, 2, 3]]),
                     lambda: linalg.linear([[1, 2, 3]], ragged),
                     lambda: stream.add_residual(ragged, [[1, 2, 3], [4, 5, 6]])):
            with self.assertRaises(ValueError):
                call()

    def test_a_sublayers_update_of_another_shape_is_refused_wherever_it_stands(self):
        for fns in ([lambda x: [1, 2]], [lambda x: x, lambda x: [[1, 2, 3]]],
                    [lambda x: [1, 2, 3, 4]]):
            for run in (stream.run_sublayers, stream.trace, stream.total_update):
                with self.assertRaises(ValueError):
                    run([1, 2, 3], fns)


# ---- norms ----

class Norms(Mistakes):

    def test_the_spread_is_divided_by_n(self):
        """Dividing by n - 1 cannot be seen at width 768 and is 22 % off at width 4."""
        self.assertEqual(norms.layer_norm([3, 4], eps=0), [-1, 1])
        right = [1.732050808] + [-0.577350269] * 3
        self.assertClose(norms.layer_norm([1, 0, 0, 0], eps=0), right)
        self.assertTold(right, [1.5, -0.5, -0.5, -0.5])

    def test_eps_stands_inside_the_root(self):
        """Beside the root it is a thousand times too weak for small inputs."""
        self.assertClose(norms.layer_norm([0, 0.002], eps=1e-5), [-0.301511345, 0.301511345])
        self.assertClose(norms.rms_norm([0.001, 0.001], eps=1e-5), [0.301511345, 0.301511345])
        self.assertTold([0.301511345], [0.99009901])
        parts = norms.layer_norm_parts([0, 0.002], eps=1e-5)
        self.assertClose(parts[1], math.sqrt(1e-6 + 1e-5))

    def test_a_gain_is_what_multiplies(self):
        """Some files store the gain less 1.  Whoever reads such a file adds the 1, for each norm
        by itself; a norm that added it too would double what others stored whole."""
        right = [0.848528137, 1.13137085]
        stored_less_1, stored_whole = [0, 0], [1, 1]
        self.assertClose(norms.rms_norm([3, 4], [1 + g for g in stored_less_1], eps=0), right)
        self.assertClose(norms.rms_norm([3, 4], stored_whole, eps=0), right)
        self.assertClose(norms.rms_norm([3, 4], eps=0), right)
        self.assertEqual(norms.rms_norm([3, 4], stored_less_1, eps=0), [0, 0])
        self.assertClose(norms.rms_norm([3, 4], [1 + g for g in stored_whole], eps=0),
                         [1.697056275, 2.2627417])

    def test_two_norms_of_one_model_each_have_their_own_gain(self):
        """One model stores both ways: the stream's norms less 1, its q/k norms whole."""
        config = attention_config(1, 2, qk_norm=norm_config("rms", 0))
        one = [[1, 0], [0, 1]]
        w = AttentionWeights(one, one, one, one, *[None] * 4, [1, 1], [1, 1])
        normed = norms.rms_norm([[3, 4]], [1 + g for g in [0, 0]], eps=0)
        steps = attention_steps(normed, w, config)
        self.assertClose(steps.q[0][0], [0.848528137, 1.13137085])


# ---- blocks ----

DOUBLE_FIRST = AttentionWeights([[0, 0]], [[0, 0]], [[2, 0], [0, 1]], [[1, 0], [0, 1]],
                                *[None] * 6)
NOTHING = MLPWeights(None, [[0, 0]], [[0], [0]], None, None, None)


def block_that_doubles_the_first(placement, norm_places):
    """attn(z) = (2 z0, z1) on one token, no MLP, LayerNorm with eps 0 in the places named."""
    norm = norm_config("layer", 0)
    config = block_config(1, attention_config(1, 2), placement, None, "relu")
    config = config._replace(**{place: norm for place in norm_places})
    w = BlockWeights(*[NormWeights(None, None) if field in norm_places else None
                       for field in BlockWeights.FIELDS])
    attn = DOUBLE_FIRST._replace(w_q=[[0, 0], [0, 0]], w_k=[[0, 0], [0, 0]])
    return config, w._replace(attn=attn, mlp=NOTHING)


class Blocks(Mistakes):

    def test_the_stream_itself_is_not_normed(self):
        """x = norm(x); x = x + f(x) throws the stream away at every step."""
        config, w = block_that_doubles_the_first("pre_norm", ("attn_norm",))
        w = w._replace(attn=w.attn._replace(w_o=[[0, 0], [0, 0]]))
        self.assertEqual(blocks.block_steps([[3, 1]], w, config).resid_post, [[3, 1]])

    def test_the_three_places_of_a_norm(self):
        """f(z) = (2 z0, z1) at (1, 3): before f, behind the sum, and on what f gives."""
        layer = [-1, 1]
        self.assertEqual(norms.layer_norm([1, 3], eps=0), layer)
        for placement, place, want in (("pre_norm", "attn_norm", [-1, 4]),
                                       ("post_norm", "attn_post_norm", [-1, 1]),
                                       ("output_norm", "attn_post_norm", [0, 4])):
            config, w = block_that_doubles_the_first(placement, (place,))
            steps = blocks.block_steps([[1, 3]], w, config)
            self.assertEqual(steps.resid_mid, [want], placement)

        def branch(x):
            first, second = norms.layer_norm(x, eps=0)
            return [2 * first, second]

        # with the normed stream as the base of the sum it would be (-3, 2)
        self.assertEqual(stream.run_sublayers([1, 3], [branch]), [-1, 4])

    def test_parallel_and_sequential_are_told_apart(self):
        """All shapes fit.  attn(z) = 2 z and mlp(z) = z² at 1: 3 then 12, or 4 at once."""
        w = BlockWeights(None, AttentionWeights([[0]], [[0]], [[2]], [[1]], *[None] * 6), None,
                         None, None, MLPWeights([[1]], [[1]], [[1]], None, None, None), None, None)
        sequential, parallel = [block_config(1, attention_config(1, 1), placement, None, "relu")
                                for placement in ("pre_norm", "parallel")]
        steps = blocks.block_steps([[1]], w, sequential)
        self.assertEqual([steps.resid_pre, steps.resid_mid, steps.resid_post],
                         [[[1]], [[3]], [[12]]])
        steps = blocks.block_steps([[1]], w, parallel)
        self.assertEqual([steps.resid_pre, steps.resid_mid, steps.resid_post],
                         [[[1]], None, [[4]]])
        self.assertEqual([steps.attn_out, steps.mlp_out], [[[2]], [[1]]])

    def test_a_parallel_model_has_no_state_between_its_branches(self):
        for placement, states in (("parallel", ["embed", "L0.mlp", "L1.mlp"]),
                                  ("pre_norm",
                                   ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"])):
            block = block_config(1, attention_config(1, 1), placement, None, "relu")
            config = model_config(1, 2, 4, 2, block)
            self.assertEqual(model.state_names(config), states)

    def test_an_update_is_what_is_added_and_not_the_sum(self):
        """Some modules add inside themselves and return x + delta; taking that for the update
        counts the stream again with every sublayer."""
        deltas = [[0.5, -1], [0, 1]]
        modules = [lambda x: linalg.add(x, deltas[0]), lambda x: linalg.add(x, deltas[1])]
        fns = [lambda x: linalg.subtract(modules[0](x), x),
               lambda x: linalg.subtract(modules[1](x), x)]
        states = stream.trace([1, 2], fns)
        self.assertEqual(states, [[1, 2], [1.5, 1], [1.5, 2]])
        self.assertEqual([linalg.subtract(b, a) for a, b in zip(states, states[1:])], deltas)
        self.assertEqual(stream.total_update([1, 2], fns), [0.5, 0])
        self.assertNotEqual(stream.total_update([1, 2], modules), [0.5, 0])


# ---- attention ----

class Attention(Mistakes):

    def test_key_and_value_heads_are_repeated_in_place(self):
        """0, 0, 1, 1 and not 0, 1, 0, 1, which looks the same with as many heads, or with one."""
        q, k, v = [[[1.0]]] * 4, [[[1.0]]] * 2, [[[10.0]], [[20.0]]]
        self.assertEqual([head[0][0] for head in attend(q, k, v)], [10, 10, 20, 20])

    def test_heads_that_do_not_divide_are_refused(self):
        for call in (lambda: attention_config(3, 1, 2),
                     lambda: attend([[[1.0]]] * 3, [[[1.0]]] * 2, [[[1.0]]] * 2),
                     lambda: attend([[[1.0]]] * 2, [[[1.0]]] * 2, [[[1.0]]])):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertIn("evenly", str(caught.exception))

    def test_scores_are_divided_by_the_root_of_the_heads_width(self):
        """By the root of the model's width they are too flat, with more than one head."""
        identity = [[1.0 if i == j else 0.0 for j in range(4)] for i in range(4)]
        # Two heads of width 2 in a stream of width 4.  Raw scores of the last token: 0 and 2.
        w = AttentionWeights(identity, identity, identity, identity, *[None] * 6)
        steps = attention_steps([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], w,
                                attention_config(2, 2))
        right = [0.195570317, 0.804429683]
        for pattern in steps.pattern:
            self.assertClose(pattern[1], right)
        self.assertTold(right, [0.268941421, 0.731058579])

    def test_a_token_sees_itself_and_nothing_after(self):
        """Off by one either way: the first token sees nothing and is NaN, or sees the next."""
        flat = [[[0.0], [0.0], [0.0]]]
        self.assertEqual(attend(flat, flat, [[[1.0], [2.0], [6.0]]]), [[[1.0], [1.5], [3.0]]])
        self.assertEqual(attend([[[0.0]]], [[[0.0]]], [[[5.0]]]), [[[5.0]]])

    def test_queries_are_the_tail_of_a_longer_sequence_of_keys(self):
        """Anchored at 0, a cached prompt disappears."""
        out = attend([[[0.0]] * 2], [[[0.0]] * 4], [[[1.0], [2.0], [6.0], [7.0]]])
        self.assertEqual(out, [[[3.0], [4.0]]])
        with self.assertRaises(ValueError):
            attend([[[0.0]] * 3], [[[0.0]] * 2], [[[1.0]] * 2])

    def test_the_mask_is_the_same_whether_or_not_the_pattern_is_asked_for(self):
        q, v = [[[0.3], [-0.2], [0.9]]], [[[1.0], [2.0], [6.0]]]
        steps = attend_steps(q, q, v)
        self.assertEqual(steps.mixed, attend(q, q, v))
        self.assertEqual([[p > 0 for p in row] for row in steps.pattern[0]],
                         [[True, False, False], [True, True, False], [True, True, True]])

    def test_changing_a_token_does_not_change_earlier_rows(self):
        identity = [[1.0, 0.0], [0.0, 1.0]]
        w = AttentionWeights(identity, identity, identity, identity, *[None] * 6)
        config = attention_config(1, 2)
        x = [[0.5, 1.0], [-1.0, 0.25], [2.0, 0.5]]
        before = attention(x, w, config)
        after = attention(x[:1] + [[9.0, 9.0]] + x[2:], w, config)
        self.assertEqual(after[0], before[0])
        self.assertNotEqual(after[1], before[1])


# ---- rotary ----

class Rotary(Mistakes):

    def test_the_two_pairings(self):
        """At position 0 both are the identity, so a swap shows a few tokens later only."""
        rates = rotary.frequencies(4, 10000.0)
        x = [1.0, 2.0, 3.0, 4.0]
        for pairing, want in (("half", [-1.984110649, 1.959900667, 2.462377902, 4.019799668]),
                              ("interleaved",
                               [-1.142639664, 1.922075597, 2.959850668, 4.029799502])):
            got = rotary.rotate([x, x], rotary.angles([0, 1], rates), pairing)
            self.assertEqual(got[0], x)
            self.assertClose(got[1], want)
            # positions count, not places in the list
            self.assertEqual(rotary.rotate([x], rotary.angles([1], rates), pairing), got[1:])

    def test_an_unknown_pairing_is_refused(self):
        with self.assertRaises(ValueError) as caught:
            rotary.rotate([[1.0, 2.0]], rotary.angles([1], [1.0]), "neox")
        self.assertIn("half", str(caught.exception))

    def test_only_a_part_of_each_head_turns(self):
        """Turning all channels is right at position 0 and worse with every token."""
        rates = rotary.frequencies(2)
        for pairing in ("half", "interleaved"):
            got = rotary.rotate([[1.0, 0.0, 5.0, 7.0]], rotary.angles([1], rates), pairing)
            self.assertClose(got, [[0.540302306, 0.841470985, 5.0, 7.0]])

    def test_frequencies_and_pairs_count_by_the_rotated_width(self):
        """4 channels of 8 turn: rates 1 and 1/100, not 1 and 1/10, partners 2 apart, not 4."""
        rates = rotary.frequencies(4, 10000.0)
        self.assertClose(rates, [1.0, 0.01])
        got = rotary.rotate([[1.0] + [0.0] * 7], rotary.angles([1], rates), "half")[0]
        self.assertClose(got, [math.cos(1), 0, math.sin(1), 0, 0, 0, 0, 0])
        config = attention_config(1, 8, rotary=RotaryConfig("half", rates))
        self.assertEqual(2 * len(config.rotary.frequencies), 4)


# ---- mlp ----

class MLP(Mistakes):

    def test_the_two_gelus(self):
        """They differ by 5e-4 at most: a tolerance of 1e-3 cannot tell them apart."""
        x = [1.0, -2.3, -2.699]
        by_erf = [0.841344746, -0.024665453, -0.009385526]
        by_tanh = [0.841191991, -0.02432703, -0.008912291]
        self.assertClose(nonlinear.gelu(x), by_erf)
        self.assertClose(nonlinear.gelu_tanh(x), by_tanh)
        self.assertTold(by_erf, by_tanh)

    def test_which_gelu_a_name_means(self):
        """In configs "gelu" is the erf form; the names that say more are the tanh form."""
        for name, want in (("gelu", "gelu"), ("gelu_new", "gelu_tanh"),
                           ("gelu_pytorch_tanh", "gelu_tanh")):
            self.assertEqual(ACTIVATION_NAMES[name], want)
        # the mathematics knows its own names and guesses no other
        with self.assertRaises(ValueError):
            nonlinear.activation("gelu_new")

    def test_the_activation_is_on_the_gate(self):
        """silu(2) * 3; not silu(3) * 2, not silu(2 * 3), not silu without a gate."""
        w = MLPWeights([[2.0]], [[3.0]], [[1.0]], None, None, None)
        steps = mlp_steps([[1.0]], w, "silu")
        self.assertClose(steps.hidden, [[5.284782468]])
        for wrong in (5.715444761, 5.985164261, 1.761594156):
            self.assertTold([5.284782468], [wrong])
        self.assertEqual((steps.gate, steps.up), ([[2.0]], [[3.0]]))


# ---- interventions ----

def doubling_model(embedding=3):
    """logit = 2 * (embed + what the MLP writes); the attention writes nothing, the MLP 0."""
    block = block_config(1, attention_config(1, 1), "pre_norm", None, "relu")
    config = model_config(1, 1, 4, 1, block, final_norm=None)
    w = ModelWeights([[embedding]], None, [BlockWeights(
        None, AttentionWeights([[0]], [[0]], [[0]], [[0]], *[None] * 6), None, None,
        None, MLPWeights(None, [[0]], [[0]], None, None, [0]), None, None)], None, [[2]], None)
    return model.make_model(config, w)


def doubling_mlp_of_5():
    """As doubling_model, with an embedding of 0 and an MLP that always writes 5."""
    m = doubling_model(0)
    block = m.weights.blocks[0]
    block = block._replace(mlp=block.mlp._replace(b_down=[5]))
    return m._replace(weights=m.weights._replace(blocks=[block]))


def logit(m, given=()):
    return model.run(m, [0], given).logits[0][0]


class Interventions(Mistakes):

    def test_one_that_raises_is_gone_afterwards(self):
        """Attached to the model it would stay, and change the next run, thought clean."""
        m = doubling_model()
        with self.assertRaises(ValueError):
            model.run(m, [0], [edits.scale("embed", 0), edits.replace("L0.mlp", [[1, 2, 3]])])
        self.assertEqual(logit(m), 6)

    def test_leaving_an_inner_one_keeps_the_outer(self):
        m = doubling_model()
        outer, inner = [edits.replace("embed", [[4]])], [edits.scale("embed", 0)]
        self.assertEqual(logit(m, outer + inner), 0)
        self.assertEqual(logit(m, outer), 8)
        self.assertEqual(logit(m), 6)

    def test_a_mean_is_over_all_that_was_seen_and_is_not_zero(self):
        """Not over the last batch (8), nor a mean of means (5), nor 0 under the mean's name."""
        batches = [[1, 3], [8]]
        seen = [a for batch in batches for a in batch]
        mean = F(sum(seen), len(seen))
        m = doubling_mlp_of_5()
        self.assertEqual(mean, 4)
        self.assertEqual(logit(m), 10)
        self.assertEqual(logit(m, [edits.replace("L0.mlp", [[mean]])]), 8)
        self.assertEqual(logit(m, [edits.scale("L0.mlp", 0)]), 0)

    def test_states_that_were_kept_do_not_change_with_the_stream(self):
        """A reference kept while += goes on shows the last value everywhere."""
        x, updates = [1, 2, 3], [[0.5, -1, 0], [0, 1, 1]]

        def fn(update):
            return lambda state: update

        states = stream.trace(x, [fn(update) for update in updates])
        self.assertEqual(states, [[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]])
        self.assertEqual(x, [1, 2, 3])
        self.assertEqual(stream.total_update(x, [fn(update) for update in updates]), [0.5, 0, 1])
        self.assertEqual(updates, [[0.5, -1, 0], [0, 1, 1]])

    def test_rows_of_zeros_are_not_one_row(self):
        """[[0] * d] * n has one row under n names."""
        zeros = linalg.zeros_like([[5, 6], [7, 8], [9, 10]])
        zeros[0][0] = 1
        self.assertEqual(zeros, [[1, 0], [0, 0], [0, 0]])

    def test_writing_into_a_record_does_not_change_the_next_run(self):
        m = doubling_mlp_of_5()
        run = model.run(m, [0, 0])
        before = copied(run.logits)
        for _, rows in run.writers + run.states:
            for row in rows:
                row[0] = 1000
        for row in run.normed + run.logits:
            row[0] = 1000
        self.assertEqual(model.run(m, [0, 0]).logits, before)


# ---- backward ----

class Backward(Mistakes):

    def test_what_is_used_twice_gets_both_gradients(self):
        """a = 1, b = a + a, c = b + b: 4, where overwriting gives 1 and the wrong order 8."""
        same, back = (lambda x: x), (lambda d, x: d)
        gradients = stream.run_sublayers_backward([1], [1], [same] * 2, [back] * 2)
        self.assertEqual(gradients, [[4], [2], [1]])

    def test_a_weight_that_is_used_twice_gets_both_gradients(self):
        """y = w (w x) at w = 3, x = 2: 12, where the last use alone gives 6.  The tied table is
        read by the embedding, times x, and by the unembedding."""
        config = model_config(1, 1, 1, 0, None, embed_multiplier=2, final_norm=None)
        m = model.make_model(config, ModelWeights([[3]], None, [], None, None, None))
        run = model.run(m, [0])
        self.assertEqual(run.logits, [[18]])
        self.assertEqual(model.run_backward([[1]], run)[0].w_embed, [[12]])

    def test_a_tied_table_is_one_tensor_with_the_sum_of_two_gradients(self):
        """(1/10, 0) from the embedding and (2/10, 3/10) from the unembedding: (3/10, 3/10)."""
        config = model_config(2, 2, 1, 0, None, final_norm=None)
        w = ModelWeights([[F(2), F(3)], [F(-1, 10), F(-3, 10)]], None, [], None, None, None)
        d_logits = [[F(1, 10), F(1)]]
        tied, untied = [
            model.run_backward(d_logits, model.run(model.make_model(config, each), [0]))[0]
            for each in (w, w._replace(w_unembed=w.w_embed))]
        self.assertEqual(untied.w_embed[0], [F(1, 10), 0])
        self.assertEqual(untied.w_unembed[0], [F(2, 10), F(3, 10)])
        self.assertEqual(tied.w_embed[0], [F(3, 10), F(3, 10)])
        self.assertIsNone(tied.w_unembed)

    def test_a_second_backward_gives_the_same(self):
        """Gradients that are added into what is kept grow with every call."""
        m = doubling_mlp_of_5()
        run = model.run(m, [0, 0])
        first = model.run_backward([[1], [1]], run)
        self.assertEqual(model.run_backward([[1], [1]], run), first)

    def test_five_thousand_sublayers_are_no_recursion(self):
        one, nothing = (lambda x: [1]), (lambda d, x: [0])
        gradients = stream.run_sublayers_backward([1], [0], [one] * 5000, [nothing] * 5000)
        self.assertEqual(gradients, [[1]] * 5001)
        self.assertEqual(stream.run_sublayers([0], [one] * 5000), [5000])

    def test_layer_norms_two_mean_terms(self):
        """Without them d_x is (0.8, 0, 0).  A check that feeds a constant gradient, or looks at
        what stands behind the norm only, passes all the same."""
        x, ones = [1, 2, 4], [1, 1, 1]
        d_x, d_gain, d_bias = norms.layer_norm_backward([1, 0, 0], x, ones, ones, eps=0)
        self.assertClose(d_x, [0.229081064, -0.343621597, 0.114540532])
        self.assertClose(d_gain, [-1.069044968, 0, 0])
        self.assertEqual(d_bias, [1, 0, 0])
        for wrong in ([0.801783726, 0, 0], [0.534522484, -0.267261242, -0.267261242]):
            self.assertTold(d_x, wrong)
        constant = norms.layer_norm_backward([1, 1, 1], x, ones, ones, eps=0)[0]
        self.assertTrue(max(abs(a) for a in constant) < 1e-15, f"{constant!r} is 0 to rounding")
        self.assertClose(norms.layer_norm_backward([1, 0, 0], x, [2, 1, 1], ones, eps=0)[0],
                         [0.458162129, -0.687243193, 0.229081064])
        _, _, normalized = norms.layer_norm_parts(x, eps=0)
        for total in (sum(d_x), linalg.dot(d_x, normalized)):
            self.assertTrue(abs(total) < 1e-15, f"{total!r} is 0 to rounding")

    def test_a_sum_hands_its_whole_gradient_to_each_term(self):
        """Not half of it: the token's row and the position's row get the same."""
        config = model_config(2, 1, 1, 0, None, final_norm=None)
        w = ModelWeights([[5, 6]], [[7, 8]], [], None, [[1, 0]], None)
        d_token, d_position = model.embed_backward([[1, 2]], config, w, [0])
        self.assertEqual((d_token, d_position), ([[1, 2]], [[1, 2]]))

    def test_the_skip_path_is_not_left_out(self):
        """x + x/2, three times: 27/8, where the branches alone give 1/8."""
        halve, back = (lambda x: [a / 2 for a in x]), (lambda d, x: [a / 2 for a in d])
        got = stream.run_sublayers_backward([F(1)], [F(5)], [halve] * 3, [back] * 3)[0]
        self.assertEqual(got, [F(27, 8)])

    def test_a_branch_that_is_0_leaves_the_gradient_as_it_is(self):
        nothing, back = (lambda x: [0 * a for a in x]), (lambda d, x: [0 * a for a in d])
        self.assertEqual(stream.run_sublayers_backward([7], [3], [nothing], [back]), [[7], [7]])


# ---- counting ----

class Counting(Mistakes):

    def test_a_tied_table_counts_once_and_norms_are_not_forgotten(self):
        for shape, right, wrong in (((32000, 288, 6, 6, 768), 15191712, 24407712),
                                    ((32000, 512, 8, 8, 1376), 41689600, 58073600),
                                    ((32000, 768, 12, 12, 2048), 109529856, 134105856)):
            d_vocab, d_model, n_layers, n_heads, d_mlp = shape
            sizes = {"n_layers": n_layers, "d_model": d_model, "d_mlp": d_mlp, "n_heads": n_heads,
                     "gated": True, "norm": "rms", "d_vocab": d_vocab}
            tied, untied = counting.count_sizes(tied=True, **sizes), counting.count_sizes(**sizes)
            self.assertEqual((tied.total, untied.total), (right, wrong))
            self.assertEqual(untied.total - tied.total, d_vocab * d_model)

    def test_gpt2_small(self):
        sizes = {"n_layers": 12, "d_model": 768, "d_mlp": 3072, "n_heads": 12, "bias": True,
                 "norm": "layer", "d_vocab": 50257, "tied": True}
        self.assertEqual(counting.count_sizes(n_positions=1024, **sizes).total, 124439808)
        self.assertEqual(counting.count_sizes(**sizes).total, 123653376)

    def test_heads_do_not_divide_the_weights(self):
        """Queries, keys and values of a stream of 4: three matrices of 16, whatever the heads."""
        for n_heads in (1, 2, 4):
            block = block_config(8, attention_config(n_heads, 4 // n_heads))
            config = model_config(4, 3, 4, 1, block)
            w = pyres.random_weights(config)
            attn = w.blocks[0].attn
            self.assertEqual(sum(len(matrix) * len(matrix[0])
                                 for matrix in (attn.w_q, attn.w_k, attn.w_v)), 48)
            # asserted inside: the closed form equals the walk
            self.assertEqual(counting.count_model(config, w).total, counting.count_walk(w))


if __name__ == "__main__":
    unittest.main()
