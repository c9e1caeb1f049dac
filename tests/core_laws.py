"""The core's laws in the part of unittest that every interpreter has.

They run where little else does: from a zip without the standard library's site, under -OO,
vendored under another name, in a subinterpreter, in MicroPython.  The same laws and many more, on
many seeds, are in the other test modules; these are one of each kind.
"""
import unittest

import pyres
from pyres.attention import attention_backward, attention_steps
from pyres.blocks import block_backward, block_steps
from pyres.config import (RotaryConfig, attention_config, block_config, model_config, norm_config)
from pyres.edits import scale, set_pattern, set_state
from pyres.hyper_connections import plain_hyper_weights, run_hyper_sublayers
from pyres.model import loss_and_gradients, make_model, run
from pyres.rng import Generator, normal_tensor
from pyres.rotary import angles, frequencies, rotate, rotate_backward
from pyres.show import rounded
from pyres.study.attribution import contributions
from pyres.study.audit import audit
from pyres.study.effects import effect
from pyres.study.gradients import state_gradients
from pyres.study.lens import lens_logits
from pyres.study.metrics import logit, value
from pyres.study.paths import path_length_gradients
from pyres.study.rounding import ledger_check, rounding_ledger
from pyres.study.subsets import subsets
from pyres.study.writers import partition
from pyres.sums import sum_check
from pyres.weights import leaves, map_leaves, random_weights


def flat(x):
    if isinstance(x, (list, tuple)):
        return [a for part in x for a in flat(part)]
    return [x]


def inner(x, y):
    return sum([a * b for a, b in zip(flat(x), flat(y))])


def tensor(seed, *shape):
    return normal_tensor(Generator(seed), shape)


PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")


def small_model(placement="pre_norm", norm="layer", n_layers=2, rotary=False, gated=False,
                tied=True):
    turns = RotaryConfig("half", frequencies(2)) if rotary else None
    attention = attention_config(n_heads=2, d_head=2, n_kv_heads=1, rotary=turns)
    block = block_config(6, attention, placement=placement, norm=norm_config(norm))
    config = model_config(4, 7, 8, n_layers, block)
    return make_model(config, random_weights(config, seed=5, std=0.6, gated=gated, tied=tied))


class StreamLaws(unittest.TestCase):
    FNS = (lambda x: [0.5, -1, 0], lambda x: [0, 1, 1])

    def test_lesson(self):
        x = [1, 2, 3]
        self.assertEqual(pyres.trace(x, self.FNS), [[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]])
        self.assertEqual(pyres.run_sublayers(x, self.FNS[1:]), [1, 3, 4])
        self.assertEqual(pyres.total_update(x, self.FNS), [0.5, 0, 1])
        self.assertEqual(x, [1, 2, 3])

    def test_states_are_no_aliases(self):
        states = pyres.trace([1, 2], [lambda x: [0, 0]] * 3)
        states[0][0] = 9
        self.assertEqual(states[1:], [[1, 2]] * 3)

    def test_shapes_are_never_stretched(self):
        for x, update, shapes in (([1, 2, 3], [1, 1, 1, 1], ("(4,)", "(3,)")),
                                  ([[1, 2], [3, 4]], [[10, 20]], ("(1, 2)", "(2, 2)")),
                                  ([[1], [2]], [1, 2], ("(2,)", "(2, 1)"))):
            with self.assertRaises(ValueError) as caught:
                pyres.add_residual(x, update)
            for shape in shapes:
                self.assertTrue(shape in str(caught.exception), str(caught.exception))

    def test_sequences_of_a_batch_may_differ_in_length(self):
        batch = [[[1, 2]], [[3, 4], [5, 6]]]
        self.assertEqual(pyres.add_residual(batch, batch), [[[2, 4]], [[6, 8], [10, 12]]])

    def test_bools_and_strings_are_refused(self):
        for wrong in (True, "a"):
            with self.assertRaises(TypeError):
                pyres.add_residual([1], [wrong])

    def test_gradient_passes_whole(self):
        half = [lambda x: [a * 0.5 for a in x]] * 3
        half_backward = [lambda d, x: [a * 0.5 for a in d]] * 3
        d_states = pyres.run_sublayers_backward([1.0], [5.0], half, half_backward)
        self.assertEqual(d_states, [[3.375], [2.25], [1.5], [1.0]])

    def test_five_thousand_sublayers(self):
        fns = [lambda x: [1]] * 5000
        self.assertEqual(pyres.run_sublayers([0], fns), [5000])


class NumberLaws(unittest.TestCase):
    def test_norms_of_three_and_four(self):
        self.assertEqual(pyres.layer_norm([3, 4], eps=0), [-1.0, 1.0])
        self.assertEqual(rounded(pyres.rms_norm([3, 4], eps=0), 9), [0.848528137, 1.13137085])

    def test_random_bits_are_the_same_everywhere(self):
        g = Generator(0)
        self.assertEqual([g.next(), g.next()], [0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4])
        a, b = Generator(1), Generator(1)
        self.assertEqual(a.normal(), sum([b.next() // 65536 for _ in range(12)]) / 2.0 ** 48 - 6)

    def test_complex_numbers_pass(self):
        w = tensor(1, 3)
        step = 1e-30
        for forward, backward in (
                (pyres.softmax, pyres.softmax_backward),
                (pyres.silu, pyres.silu_backward),
                (pyres.gelu_tanh, pyres.gelu_tanh_backward),
                (pyres.layer_norm, lambda d, x: pyres.layer_norm_backward(d, x)[0]),
                (pyres.rms_norm, lambda d, x: pyres.rms_norm_backward(d, x)[0])):
            x, direction = tensor(2, 3), tensor(3, 3)
            moved = forward([a + d * step * 1j for a, d in zip(x, direction)])
            by_step = sum([m.imag * a for m, a in zip(moved, w)]) / step
            self.assertAlmostEqual(by_step, inner(backward(w, x), direction), delta=1e-12)

    def test_rotations_turn_back(self):
        for pairing in ("half", "interleaved"):
            x, table = tensor(1, 3, 4), angles([0, 1, 7], frequencies(4))
            back = rotate_backward(rotate(x, table, pairing), table, pairing)
            for a, b in zip(flat(x), flat(back)):
                self.assertAlmostEqual(a, b, delta=1e-14)


class ModelLaws(unittest.TestCase):
    TOKENS = [3, 1, 4, 1]

    def test_updates_sum_to_the_final_stream(self):
        for placement in PLACEMENTS:
            for norm in ("layer", "rms"):
                check = sum_check(run(small_model(placement, norm), self.TOKENS))
                self.assertTrue(check.ok, f"{placement} {norm} {check}")

    def test_exact_model_sums_exactly(self):
        model = small_model()
        whole = map_leaves(lambda t: integers(t), model.weights)
        config = model.config
        block = config.blocks[0]
        block = type(block)(block.placement, None, block.attention, None,
                            None, block.d_mlp, "relu", None, None)
        config = type(config)(config.d_model, config.d_vocab, config.n_ctx, [block] * 2,
                              None, None, None, None)
        blocks = [type(b)(None, b.attn, None, None, None, b.mlp, None, None) for b in whole.blocks]
        weights = type(whole)(whole.w_embed, whole.w_pos, blocks, None, None, None)
        pattern = [[1, 0], [2, -1]]
        given = [set_pattern(f"L{i}.attn.H{h}", pattern) for i in range(2) for h in range(2)]
        check = sum_check(run(make_model(config, weights), [3, 1], given))
        self.assertEqual((check.error, check.tolerance, check.exact, check.ok), (0, 0, True, True))

    def test_gradients_agree_with_differences(self):
        for placement in PLACEMENTS:
            model = small_model(placement, rotary=True, gated=True, tied=False)
            loss, gradients, stream = loss_and_gradients(model, self.TOKENS)
            direction = map_leaves(lambda t: direction_like(t, Generator(9)), model.weights)
            ends = []
            for step in (1e-5, -1e-5):
                weights = map_leaves(lambda t, d: moved(t, d, step), model.weights, direction)
                ends.append(loss_and_gradients(make_model(model.config, weights), self.TOKENS)[0])
            slope = (ends[0] - ends[1]) / 2e-5
            along = sum([inner(g, d) for (_, g), (_, d)
                         in zip(leaves(gradients), leaves(direction))])
            self.assertAlmostEqual(slope, along, delta=1e-6 * max(1, abs(along)))

    def test_identity_and_branch_meet(self):
        _, _, stream = loss_and_gradients(small_model(), self.TOKENS)
        names = [name for name, _ in stream]
        self.assertEqual(names, ["embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"])
        for _, gradient in stream[:-1]:
            self.assertEqual(pyres.linalg.add(gradient.identity, gradient.branch), gradient.total)

    def test_causality(self):
        model = small_model(rotary=True)
        first, second = run(model, [3, 1, 4, 1]), run(model, [3, 1, 5, 2])
        self.assertEqual(first.logits[:2], second.logits[:2])

    def test_switching_off(self):
        model = small_model()
        off = run(model, self.TOKENS, [scale("L0.attn", 0)])
        self.assertTrue(all([a == 0 for a in flat(dict(off.writers)["L0.attn"])]))
        self.assertEqual(dict(off.states)["L0.attn"], dict(off.states)["embed"])
        left = run(model, self.TOKENS, [scale("L1.mlp", 1)])
        self.assertEqual(left.logits, run(model, self.TOKENS).logits)

    def test_setting_a_state_is_another_thing(self):
        model = small_model()
        zero = [[0.0] * 4 for _ in self.TOKENS]
        r = run(model, self.TOKENS, [set_state("L0.mlp", zero)])
        self.assertEqual(dict(r.states)["L0.mlp"], zero)
        self.assertEqual(sum_check(r).rule, "the state set at L0.mlp + later updates = final")
        self.assertTrue(sum_check(r).ok)

    def test_bad_input_says_what(self):
        model = small_model()
        for wrong, word in (([], "0 tokens"), ([7], "vocabulary"), ([0] * 9, "9 tokens")):
            with self.assertRaises(ValueError) as caught:
                run(model, wrong)
            self.assertTrue(word in str(caught.exception), str(caught.exception))
        with self.assertRaises(ValueError):
            run(model, self.TOKENS, [scale("L2.attn", 0)])


class StudyLaws(unittest.TestCase):
    TOKENS = [3, 1, 4, 1]

    def runs(self):
        """A run of every placement, and a metric."""
        for placement in PLACEMENTS:
            model = small_model(placement, rotary=True, gated=True)
            yield placement, run(model, self.TOKENS), logit(model, 3, 2, foil=0)

    def test_who_wrote_what(self):
        for placement, r, metric in self.runs():
            split = partition(r, attn="head", mlp="neuron", embed="parts")
            for check in split.checks:
                self.assertTrue(check.ok, f"{placement} {check}")
            found = contributions(r, metric, split)
            self.assertTrue(found.check.ok, f"{placement} {found.check}")
            self.assertAlmostEqual(found.total, value(r, metric), delta=1e-12)

    def test_what_an_edit_did(self):
        for placement, r, metric in self.runs():
            for edit in (scale("L0.attn", 0), scale("L0.attn.H1", 0.5), scale("L1.mlp.N2", 0)):
                found = effect(r, [edit], metric)
                self.assertTrue(found.check.ok, f"{placement} {edit} {found.check}")
                self.assertAlmostEqual(found.total, found.after - found.before, delta=1e-12)

    def test_shapley_values_sum_to_full_minus_none(self):
        for placement, r, metric in self.runs():
            found = subsets(r, ["L0.attn", "L0.mlp", "L1.attn"], metric)
            for check in found.checks:
                self.assertTrue(check.ok, f"{placement} {check}")

    def test_the_lens_ends_at_the_logits(self):
        for placement, r, _ in self.runs():
            self.assertEqual(lens_logits(r, r.states[-1][0]), r.logits)

    def test_a_trace_is_told_what_it_keeps(self):
        for placement, r, _ in self.runs():
            if placement in ("pre_norm", "sandwich", "output_norm"):
                self.assertEqual(audit(r.states, r.writers).contract, "adds_up", placement)
                wrong = [(name, state if name == "L0.mlp" else update)
                         for (name, update), (_, state) in zip(r.writers, r.states)]
                found = audit(r.states, wrong)
                self.assertEqual([one.kind for one in found.findings], ["contains_stream"])
                self.assertEqual(found.findings[0].names, ["L0.mlp"])

    def test_paths_of_every_length_sum_to_the_gradient(self):
        for placement, r, metric in self.runs():
            total = path_length_gradients(r, metric)
            whole = state_gradients(r, metric)[0][1].total
            for t, row in enumerate(whole):
                for i, want in enumerate(row):
                    got = sum([by_length[t][i] for by_length in total])
                    self.assertAlmostEqual(got, want, delta=1e-12 * max(1, abs(want)))

    def test_a_rounded_stream_says_what_it_lost(self):
        r = run(small_model(), self.TOKENS)
        for to in ("float16", "bfloat16", "float32"):
            check = ledger_check(rounding_ledger(r, to))
            self.assertTrue(check.ok, f"{to} {check}")

    def test_one_stream_of_many_is_the_plain_one(self):
        fns = [pyres.layer_norm, pyres.silu]
        steps = run_hyper_sublayers([[1.0, -2.0, 4.0]], fns, [plain_hyper_weights(1)] * 2)
        self.assertEqual([step.out[0] for step in steps], pyres.trace([1.0, -2.0, 4.0], fns)[1:])


class BackwardLaws(unittest.TestCase):
    def test_attention_adjoint(self):
        config = attention_config(n_heads=4, d_head=2, n_kv_heads=2, window=3, soft_cap=2.0,
                                  rotary=RotaryConfig("interleaved", frequencies(2)))
        model = model_config(5, 3, 8, 1, block_config(3, config))
        w = random_weights(model, seed=2, std=0.7).blocks[0].attn
        x, d_out, v = tensor(1, 4, 5), tensor(2, 4, 5), tensor(3, 4, 5)
        d_x, _ = attention_backward(d_out, attention_steps(x, w, config), w, config)
        step = 1e-30
        moved_x = [[a + b * step * 1j for a, b in zip(*rows)] for rows in zip(x, v)]
        moved_out = attention_steps(moved_x, w, config).out
        by_step = inner([[a.imag for a in row] for row in moved_out], d_out) / step
        self.assertAlmostEqual(by_step, inner(d_x, v), delta=1e-12)

    def test_block_gradient_of_zero_is_zero(self):
        for placement in PLACEMENTS:
            model = small_model(placement)
            w, config = model.weights.blocks[0], model.config.blocks[0]
            x = tensor(4, 3, 4)
            result = block_backward([[0.0] * 4] * 3, block_steps(x, w, config), w, config)
            self.assertTrue(all([a == 0 for a in flat(result.resid_pre.total)]))
            self.assertTrue(all([a == 0 for _, t in leaves(result.weights) for a in flat(t)]))


def integers(x):
    return [integers(part) for part in x] if isinstance(x, list) else int(x * 5)


def direction_like(x, generator):
    if isinstance(x, list):
        return [direction_like(part, generator) for part in x]
    return generator.normal()


def moved(x, direction, step):
    if isinstance(x, list):
        return [moved(a, d, step) for a, d in zip(x, direction)]
    return x + step * direction
