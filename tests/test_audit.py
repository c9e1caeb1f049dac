"""Laws of pyres.study.audit: what was done to a trace is what the audit finds, and where.

Traces come from random models of every placement.  Each is altered in one way, at a random writer
or state and mostly at a random position, and the audit has to name the alteration, the place, and
nothing else; of a trace that was not altered it has to say so.  The same in float32, float16 and
bfloat16, and from files.
"""
import contextlib
import io
import json
import math
import os
import tempfile
import unittest

import pyres
from pyres import cli
from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.files import safetensors, traces
from pyres.floats import round_to
from pyres.linalg import add, scale, subtract
from pyres.norms import layer_norm, rms_norm
from pyres.rng import Generator
from pyres.study.audit import audit
from pyres.study.contracts import KINDS, words_of
from pyres.study.fits import (FORMATS, channel_factors, columns_of, factors, format_of,
                              least_squares, rounded)
from tests.laws import Draw, copied, difference, model_weights

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")
PLAIN = PLACEMENTS[:-1]                 # those whose updates sum
D_MODEL, N_LAYERS, N_TOKENS = 8, 2, 6


RUNS = {}                               # they are made once


def run_of(placement, seed):
    """The run of a random model: with LayerNorm, or with RMSNorm and multipliers."""
    if (placement, seed) not in RUNS:
        draw, odd = Draw(seed), seed % 2 == 1
        block = block_config(D_MODEL, attention_config(2, 2, 1), placement,
                             norm_config("rms" if odd else "layer"),
                             residual_multiplier=0.75 if odd else None)
        config = model_config(D_MODEL, 7, N_TOKENS, N_LAYERS, block, final_norm=block.attn_norm
                              or block.attn_post_norm)
        weights = model_weights(draw, config, multipliers=odd)
        tokens = [draw.generator.below(7) for _ in range(N_TOKENS)]
        RUNS[placement, seed] = pyres.run(pyres.make_model(config, weights), tokens)
    return RUNS[placement, seed]


class Case:
    """A random run and random places in it.

    run                the run; states and writers are its own
    writer, before     a writer that is not the embedding, and the state that it adds to
    state              a state that is neither the first nor the last
    positions          everywhere, or one position
    """

    def __init__(self, placement, seed):
        self.label = f"{placement}, seed {seed}"
        self.draw, generator = Draw(seed + 1000), Generator(seed)
        self.run = run_of(placement, seed)
        self.states, self.writers = self.run.states, self.run.writers
        self.names = [name for name, _ in self.writers]
        self.state_names = [name for name, _ in self.states]
        self.writer = self.names[1 + generator.below(len(self.names) - 1)]
        at = self.names.index(self.writer)
        self.before = dict(self.states)[
            [name for name in self.names[:at] if name in self.state_names][-1]]
        self.update = dict(self.writers)[self.writer]
        self.state = self.state_names[1 + generator.below(len(self.state_names) - 2)]
        self.everywhere = list(range(N_TOKENS))
        self.position, self.channel = generator.below(N_TOKENS), generator.below(D_MODEL)
        self.positions = self.everywhere if generator.below(2) else [self.position]

    def norm(self):
        """A random norm."""
        gain, bias = self.draw.tensor(D_MODEL), self.draw.tensor(D_MODEL)
        if self.position % 2:
            return lambda x: layer_norm(x, gain, bias)
        return lambda x: rms_norm(x, gain)


def put(pairs, name, x, positions=None):
    """Pairs with another tensor under a name, at some positions or all."""
    old = dict(pairs)[name]
    rows = [x[t] if positions is None or t in positions else old[t] for t in range(len(old))]
    return [(other, rows if other == name else tensor) for other, tensor in pairs]


def narrowed(tensors, form):
    """Tensors, or pairs (name, tensor), with every number rounded to a format."""
    if form == "float64":
        return tensors
    return [(x[0], round_to(x[1], form)) for x in tensors]


def cases(placements=PLAIN, seeds=2):
    """Random cases of every placement."""
    return [Case(placement, seed)
            for placement in placements for seed in range(seeds)]


class AuditTest(unittest.TestCase):
    def finds(self, what, found, kind, names, positions=None):
        """Fail unless an audit found this kind alone, at these names and positions."""
        said = [(one.kind, one.names, one.positions) for one in found.findings]
        self.assertEqual([one.kind for one in found.findings], [kind], f"{what}: {said}")
        self.assertEqual(found.findings[0].names, names, what)
        if positions is not None:
            self.assertEqual(found.findings[0].positions, positions, what)
            self.assertEqual(found.findings[0].position, positions[0], what)
        self.assertFalse(all(check.ok for check in found.checks), what)


class HonestTraces(AuditTest):
    def test_every_placement_keeps_its_contract_in_every_format(self):
        for case in cases(PLACEMENTS, seeds=1):
            with self.subTest(case.label):
                for form in [form.name for form in FORMATS]:
                    found = audit(narrowed(case.states, form), narrowed(case.writers, form))
                    self.assertEqual(found.formats, [form, form])
                    if case.run.model.config.blocks[0].placement == "post_norm":
                        self.assertEqual(found.contract, "post_norm")
                        names = [f"state {name}" for name in case.state_names[1:]]
                        self.finds(form, found, "post_norm", names, case.everywhere)
                    else:
                        self.assertEqual((found.contract, found.findings), ("adds_up", []))
                        self.assertTrue(all(check.ok for check in found.checks))

    def test_gains_of_1_are_no_sign_of_anything(self):
        for placement in PLACEMENTS:
            with self.subTest(placement):
                config = run_of(placement, 0).model.config
                model = pyres.make_model(config, pyres.random_weights(config, std=0.5))
                run = pyres.run(model, [0, 1, 2, 3, 4])
                found = audit(run.states, run.writers)
                self.assertEqual(found.contract,
                                 "post_norm" if placement == "post_norm" else "adds_up")

    def test_the_final_norm_is_held_against_the_last_state(self):
        for case in cases(PLACEMENTS):
            with self.subTest(case.label):
                found = audit(case.states, case.writers, case.run.normed)
                self.assertEqual(found.checks[-1].rule, "normed = N(last state)")
                self.assertTrue(found.checks[-1].ok)

    def test_a_trace_without_names(self):
        for case in cases():
            with self.subTest(case.label):
                states = [x for _, x in case.states]
                updates = [x for _, x in case.writers]
                self.assertEqual(audit(states, updates).contract, "adds_up")
                self.assertEqual(audit(states, updates[1:]).contract, "adds_up")
                # states of blocks alone, as a list of hidden states is
                of_blocks = [x for name, x in case.states if not name.endswith("attn")]
                self.assertEqual(audit(of_blocks, updates[1:]).contract, "adds_up")
                self.assertEqual(audit(of_blocks, updates).contract, "adds_up")
                # without the embedding's state, and without the last one
                if len(states) == len(updates):
                    for cut in (states[1:], states[:-1]):
                        found = audit(cut, updates[1:])
                        self.assertEqual(found.contract, "adds_up")
                        self.assertIn("not checked", found.notes[0])

    def test_coarse_numbers_in_one_of_the_lists(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                found = audit(narrowed(case.states, "bfloat16"), narrowed(case.writers, "float32"))
                self.assertEqual(found.contract, "adds_up")
                self.assertEqual(found.formats, ["bfloat16", "float32"])

    def test_a_precision_that_is_given_overrules_what_is_seen(self):
        case = Case("pre_norm", 3)
        states = narrowed(case.states, "float32")
        self.assertEqual(audit(states, case.writers).contract, "adds_up")
        self.assertNotEqual(audit(states, case.writers, precision="float64").findings, [])
        with self.assertRaisesRegex(ValueError, "no format 'half'"):
            audit(states, case.writers, precision="half")

    def test_a_batch_of_one_and_single_vectors(self):
        case = Case("pre_norm", 4)
        batched = [[(name, [x]) for name, x in pairs] for pairs in (case.states, case.writers)]
        found = audit(*batched)
        self.assertEqual(found.contract, "adds_up")
        self.assertIn("batch of one", found.notes[0])
        self.assertEqual(audit([[1, 2], [2, 4]], [[1, 2]]).contract, "adds_up")

    def test_arguments_stay_as_they_are(self):
        case = Case("sandwich", 5)
        before = copied([case.states, case.writers])
        audit(case.states, put(case.writers, case.writer, scale(2, case.update)))
        self.assertEqual(copied([case.states, case.writers]), before)


class AlteredUpdates(AuditTest):
    def altered(self, case, x, positions=None):
        return audit(case.states, put(case.writers, case.writer, x, positions))

    def test_contains_the_stream(self):
        for case in cases():
            with self.subTest(case.label):
                found = self.altered(case, add(case.update, case.before), case.positions)
                names = [case.writer]
                if len(case.states) == N_LAYERS + 1:        # in parallel only the sum tells
                    names = [name for name in found.findings[0].names
                             if name[:2] == case.writer[:2]]
                    self.assertIn(case.writer, found.findings[0].evidence)
                self.finds("update + state", found, "contains_stream", names, case.positions)

    def test_the_output_of_a_block_contains_what_attention_wrote_too(self):
        for case in cases(("parallel",), seeds=3):
            with self.subTest(case.label):
                after = dict(case.states)["L1.mlp"]
                found = audit(case.states, put(case.writers, "L1.mlp", after))
                self.finds("output", found, "contains_stream", ["L1.mlp"], case.everywhere)

    def test_before_a_multiplier(self):
        for case in cases():
            with self.subTest(case.label):
                c = 0.25 + abs(case.draw.number())
                found = self.altered(case, scale(1 / c, case.update), case.positions)
                self.finds(c, found, "before_multiplier", [case.writer], case.positions)
                self.assertIn("%.3g * %s" % (c, case.writer), found.findings[0].evidence)

    def test_before_a_multiplier_of_every_channel(self):
        for case in cases():
            with self.subTest(case.label):
                c = case.draw.tensor(D_MODEL)
                found = self.altered(
                    case, [[a / b for a, b in zip(row, c)] for row in case.update])
                self.finds(c, found, "before_multiplier", [case.writer], case.everywhere)
                self.assertIn("%.3g to %.3g" % (min(c), max(c)), found.findings[0].evidence)

    def test_without_a_bias(self):
        for case in cases():
            with self.subTest(case.label):
                bias = case.draw.tensor(D_MODEL)
                found = self.altered(case, [subtract(row, bias) for row in case.update])
                self.finds(bias, found, "before_bias", [case.writer] if len(case.states) > 3 else
                           [name for name in case.names if name[:2] == case.writer[:2]])

    def test_before_a_norm(self):
        for case in cases(("sandwich", "output_norm"), seeds=4):
            with self.subTest(case.label):
                steps = case.run.steps.blocks[int(case.writer[1])]
                raw = (steps.attn if "attn" in case.writer else steps.mlp).out
                found = self.altered(case, raw)
                self.finds("raw", found, "before_norm", [case.writer], case.everywhere)
                kind = case.run.model.config.blocks[0].attn_post_norm.kind
                self.assertIn({"rms": "RMSNorm", "layer": "LayerNorm"}[kind],
                              found.findings[0].evidence)

    def test_all_updates_before_a_multiplier_make_one_finding(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                writers = case.writers[:1] + [(name, scale(4, x)) for name, x in case.writers[1:]]
                found = audit(case.states, writers)
                self.assertEqual(found.contract, "before_multiplier")
                self.finds("all", found, "before_multiplier", case.names[1:], case.everywhere)
                self.assertEqual(found.findings[0].where, "L0.attn to L1.mlp")

    def test_exchanged_missing_and_doubled(self):
        for case in cases(("pre_norm", "sandwich", "output_norm")):
            with self.subTest(case.label):
                first = min(case.names.index(case.writer), len(case.names) - 2)
                (one, x), (other, y) = case.writers[first:first + 2]
                found = audit(case.states, put(put(case.writers, one, y), other, x))
                self.finds("exchanged", found, "swapped", [one, other], case.everywhere)
                found = audit(case.states, [pair for pair in case.writers if pair[0] != one])
                self.finds("left out", found, "missing", [one], case.everywhere)
                # without names: each of the others is found a place
                found = audit([x for _, x in case.states],
                              [x for name, x in case.writers[1:] if name != one])
                self.finds("left out", found, "missing", [f"state {first}"], case.everywhere)
                found = audit(case.states, put(case.writers, other, x))
                self.finds("twice", found, "overwritten", [other], case.everywhere)

    def test_one_update_of_a_parallel_block_is_missing(self):
        for case in cases(("parallel",)):
            with self.subTest(case.label):
                found = audit(case.states, [pair for pair in case.writers if pair[0] != "L1.attn"])
                self.finds("left out", found, "missing", ["L1.mlp"], case.everywhere)

    def test_recorded_and_not_added(self):
        for case in cases():
            with self.subTest(case.label):
                off = pyres.run(case.run.model, case.run.tokens, [pyres.scale(case.writer, 0)])
                found = audit(off.states, put(off.writers, case.writer, case.update))
                names = {"not_added": [case.writer]}
                if len(case.states) > 3 and case.writer in (case.names[-1],):
                    names = {"overwritten": [f"state {name}" for name in case.state_names[-2:]]}
                for kind, expected in names.items():
                    self.finds("switched off", found, kind, expected, case.everywhere)

    def test_one_number(self):
        for case in cases():
            with self.subTest(case.label):
                update = copied(case.update)
                row, i = update[case.position], case.channel
                row[i] += 0.5 + abs(row[i])
                found = self.altered(case, update)
                one = found.findings[0]
                self.finds("one number", found, "unexplained", [one.names[0]], [case.position])
                self.assertEqual(one.channel, case.channel)
                self.assertIn(case.writer[:2], one.names[0])

    def test_nan_and_infinity_have_a_place_and_hide_nothing_else(self):
        for case in cases():
            with self.subTest(case.label):
                for bad in (math.nan, math.inf):
                    update = copied(case.update)
                    update[case.position][case.channel] = bad
                    found = self.altered(case, update)
                    self.finds(bad, found, "not_finite", [case.writer], [case.position])
                    self.assertEqual(found.findings[0].channel, case.channel)
                    self.assertEqual(found.contract, "adds_up")

    def test_a_nan_in_the_final_norms_output_is_found(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                normed = copied(case.run.normed)
                normed[case.position][case.channel] = math.nan
                found = audit(case.states, case.writers, normed)
                self.finds("normed", found, "not_finite", ["normed"], [case.position])
                self.assertEqual([check.ok for check in found.checks], [True, False, True])

    def test_where_nothing_is_finite_nothing_is_said_to_add_up(self):
        nothing = [[math.nan]]
        self.assertEqual([check.rule for check in audit([nothing, nothing], [nothing]).checks],
                         ["every number is finite"])

    def test_a_nan_elsewhere_does_not_move_what_else_is_found(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                last, after = case.names[-1], dict(case.states)[case.state_names[-1]]
                writers = put(case.writers, last, after, [4])
                writers = put(writers, last, [[math.nan] * D_MODEL] * N_TOKENS, [1])
                found = audit(case.states, writers).findings
                self.assertEqual([(one.kind, one.positions) for one in found],
                                 [("not_finite", [1]), ("contains_stream", [4])])


class AlikeTokens(unittest.TestCase):
    """Where every token has the same numbers, factors for channels explain everything."""

    def test_nothing_is_claimed(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                x, y, u = Draw(seed).tensor(3, D_MODEL)
                found = audit([[x] * N_TOKENS, [y] * N_TOKENS], [[u] * N_TOKENS])
                self.assertEqual(found.contract, "unexplained", found.findings)

    def test_one_such_step_is_what_the_others_are(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                draw = Draw(seed)
                states, updates = [draw.tensor(N_TOKENS, D_MODEL)], []
                for _ in range(3):
                    gain, bias = draw.tensor(2, D_MODEL)
                    total = draw.tensor(N_TOKENS, D_MODEL)
                    if len(updates) == 2:
                        total = total[:1] * N_TOKENS
                    updates.append(subtract(total, states[-1]))
                    states.append(layer_norm(total, gain, bias))
                self.assertEqual(audit(states, updates).contract, "post_norm")


class AlteredStates(AuditTest):
    def test_the_last_state_is_normed_already(self):
        for case in cases():
            with self.subTest(case.label):
                last = case.state_names[-1]
                states = put(case.states, last, case.run.normed)
                found = audit(states, case.writers, case.run.normed)
                self.finds("normed", found, "state_normed", [f"state {last}"], case.everywhere)
                twice = case.norm()(case.run.normed)
                found = audit(states, case.writers, twice)
                self.assertEqual([one.kind for one in found.findings],
                                 ["state_normed", "normed_twice"])

    def test_a_state_and_all_states_are_normed(self):
        for case in cases():
            with self.subTest(case.label):
                norm, last = case.norm(), len(case.states)
                found = audit(put(case.states, case.state, norm(dict(case.states)[case.state])),
                              case.writers)
                self.finds("one", found, "state_normed", [f"state {case.state}"], case.everywhere)
                found = audit([(name, norm(x)) for name, x in case.states], case.writers)
                self.finds("all", found, "state_normed",
                           [f"state {name}" for name in case.state_names[:last]], case.everywhere)

    def test_states_normed_without_a_gain_need_no_embedding(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                for norm in (layer_norm, rms_norm):
                    found = audit([(name, norm(x)) for name, x in case.states], case.writers[1:])
                    self.finds(norm, found, "state_normed",
                               [f"state {name}" for name in case.state_names], case.everywhere)

    def test_the_embedding_before_its_multiplier(self):
        for case in cases():
            with self.subTest(case.label):
                found = audit(put(case.states, "embed", scale(0.125, case.states[0][1])),
                              case.writers[1:])
                self.finds("embed / 8", found, "stream_scaled", ["state embed"], case.everywhere)
                self.assertIn("8 * the state before", found.findings[0].evidence)

    def test_overwritten_by_a_later_state(self):
        for case in cases():
            with self.subTest(case.label):
                at = case.state_names.index(case.state)
                _, later = case.states[at + 1]
                found = audit(put(case.states, case.state, later, case.positions), case.writers)
                self.finds("by the next", found, "overwritten", [f"state {case.state}"],
                           case.positions)
                _, last = case.states[-1]
                states = case.states[:at] + [(name, last) for name in case.state_names[at:]]
                found = audit(states, case.writers)
                self.finds("by the last", found, "overwritten",
                           [f"state {name}" for name in case.state_names[at:-1]], case.everywhere)

    def test_one_tensor_kept_for_all_states(self):
        for case in cases():
            with self.subTest(case.label):
                _, last = case.states[-1]
                states = [(name, last) for name in case.state_names]
                self.finds("with the embedding", audit(states, case.writers), "overwritten",
                           [f"state {name}" for name in case.state_names[:-1]], case.everywhere)
                found = audit(states, case.writers[1:])
                self.finds("without", found, "overwritten",
                           [f"state {name}" for name in case.state_names], case.everywhere)
                self.assertEqual(found.contract, "overwritten")

    def test_one_tensor_kept_for_all_updates(self):
        for case in cases(("pre_norm", "output_norm")):
            with self.subTest(case.label):
                _, last = case.writers[-1]
                same = [(name, last) for name in case.names[1:]]
                found = audit(case.states, case.writers[:1] + same)
                self.finds("updates", found, "overwritten", case.names[1:-1], case.everywhere)

    def test_one_step_early_or_late(self):
        for case in cases(("pre_norm", "sandwich", "output_norm")):
            with self.subTest(case.label):
                tensors = [x for _, x in case.states]
                for by in (1, -1):
                    moved = tensors[1:] + tensors[-1:] if by > 0 else tensors[:1] + tensors[:-1]
                    found = audit(list(zip(case.state_names, moved)), case.writers)
                    self.assertEqual(found.findings[0].kind, "shifted")
                    self.assertIn("shifted", [one.kind for one in found.ranges])

    def test_one_number(self):
        for case in cases():
            with self.subTest(case.label):
                x = copied(dict(case.states)[case.state])
                row, i = x[case.position], case.channel
                row[i] += 0.5 + abs(row[i])
                found = audit(put(case.states, case.state, x), case.writers)
                self.finds("one number", found, "unexplained", [f"state {case.state}"],
                           [case.position])
                self.assertEqual(found.findings[0].channel, case.channel)

    def test_a_state_in_a_coarser_format_than_the_others(self):
        for case in cases():
            with self.subTest(case.label):
                rough = round_to(dict(case.states)[case.state], "bfloat16")
                for form in ("float64", "float32"):
                    found = audit(put(narrowed(case.states, form), case.state, rough),
                                  narrowed(case.writers, form))
                    self.finds(form, found, "rounding", [f"state {case.state}"])
                    self.assertIn("bfloat16", found.findings[0].evidence)

    def test_a_stream_that_lost_more_than_its_format_says(self):
        for case in cases(seeds=1):
            with self.subTest(case.label):
                noisy = [(name, [[a * (1 + case.draw.number() * 2e-4) for a in row] for row in x])
                         for name, x in case.states]
                found = audit(noisy, case.writers)
                self.assertEqual({one.kind for one in found.findings}, {"rounding"})


class CoarseFormats(AuditTest):
    def test_alterations_show_through_rounding(self):
        for case in cases():
            with self.subTest(case.label):
                for form in ("float32", "float16", "bfloat16"):
                    states, writers = narrowed(case.states, form), narrowed(case.writers, form)
                    for kind, x in (("contains_stream", add(case.update, case.before)),
                                    ("before_multiplier", scale(3.0, case.update))):
                        x = round_to(x, form)
                        found = audit(states, put(writers, case.writer, x))
                        self.assertEqual([(one.kind, one.names) for one in found.findings],
                                         [(kind, [case.writer])], (form, found.findings))

    def test_of_two_claims_that_nearly_hold_the_one_that_does_is_made(self):
        # an update much larger than the stream: N(update) is nearly N(stream + update)
        for seed in range(6):
            with self.subTest(seed=seed):
                draw = Draw(seed)
                stream, gain, bias = draw.tensor(3, D_MODEL)
                before = [add(stream, scale(0.02, draw.tensor(D_MODEL))) for _ in range(4)]
                update = scale(30.0, draw.tensor(4, D_MODEL))
                after = layer_norm(add(before, update), gain, bias)
                states, updates = [round_to(x, "bfloat16") for x in ([before, after], [update])]
                self.assertEqual(audit(states, updates).contract, "post_norm")

    def test_float32_tells_norms_too(self):
        for case in cases(("sandwich", "output_norm")):
            with self.subTest(case.label):
                steps = case.run.steps.blocks[int(case.writer[1])]
                raw = (steps.attn if "attn" in case.writer else steps.mlp).out
                writers = narrowed(put(case.writers, case.writer, raw), "float32")
                found = audit(narrowed(case.states, "float32"), writers)
                self.finds("raw", found, "before_norm", [case.writer], case.everywhere)

    def test_updates_below_the_rounding_of_the_stream_are_named(self):
        states = [[[1000.0, 333.0]], [[1000.0, 333.0]]]
        found = audit(states, [[[1e-20, 1e-20]]])
        self.assertIn("update 0: no larger than the rounding", found.notes[-1])


class BadShapes(unittest.TestCase):
    def test_each_is_refused_by_name(self):
        x, y = [[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]
        for states, updates, message in (
                ([x, x], [y], "update 0 has n_tokens 2, state 0 has 1"),
                ([x, [[1.0]]], [x], "state 1 has d_model 1, state 0 has 2"),
                ([x, [[1.0], [2.0, 3.0]]], [x], "state 1 is no .*ragged"),
                ([x, x, x, x], [x] * 5, "4 states and 5 updates; expected"),
                ([], [x], "0 states and 1 updates"),
                ([[x, x], x], [x], "state 0 is a batch of 2"),
                ([[], x], [x], "state 0 has shape"),
                ([("a", x), ("a", x)], [x], "two states are called a"),
                ([("b", x), ("a", x)], [("a", x), ("b", x)], "state a stands after a later")):
            with self.subTest(message):
                with self.assertRaisesRegex(ValueError, message):
                    audit(states, updates)
        with self.assertRaisesRegex(TypeError, "update 0 is no .* a str"):
            audit([x, x], [[["1", 2.0]]])
        with self.assertRaisesRegex(ValueError, "normed has d_model 1"):
            audit([x, x], [x], [[1.0]])

    def test_numbers_of_any_size_are_answered(self):
        sizes = (0.0, 1e308, -1e149, 5e-324, 1e-200, math.nan, -math.inf, 1.0, 3)
        for seed in range(60):
            with self.subTest(seed=seed):
                generator = Generator(seed)

                def tensor():
                    return [[sizes[generator.below(len(sizes))] for _ in range(3)]
                            for _ in range(4)]

                states, updates = [tensor() for _ in range(4)], [tensor() for _ in range(3)]
                found = audit(states, updates, tensor())
                self.assertEqual(found.findings[0].kind, "not_finite")

    def test_too_few_tokens_are_said_to_be_too_few(self):
        found = audit([[[1.0, 2.0, 3.0]], [[0.3, 0.1, 0.9]]], [[[5.0, 0.25, 1.0]]])
        self.assertEqual(found.contract, "unexplained")
        self.assertIn("4 tokens or more", found.notes[-1])

    def test_every_kind_has_words_and_a_remedy(self):
        for kind, words, remedy in KINDS:
            self.assertEqual(words_of(kind), (words, remedy))
            self.assertTrue(words and (remedy or kind == "adds_up"), kind)


class Fits(unittest.TestCase):
    def test_least_squares_leaves_what_is_perpendicular(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                draw = Draw(seed)
                columns, known = draw.tensor(3, 9), draw.tensor(3)
                y = [sum(c * a for c, a in zip(known, row)) for row in zip(*columns)]
                found, _ = least_squares(columns, y)
                self.assertLess(difference(found, known), 1e-12)
                y = draw.tensor(9)
                _, rest = least_squares(columns, y)
                for column in columns:
                    self.assertLess(abs(sum(a * b for a, b in zip(column, rest))), 1e-13)

    def test_factors_hold_for_their_own_rounding_and_not_for_more(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                draw, unit = Draw(seed), 2.0 ** -24
                x, c = draw.tensor(5, 4), draw.tensor(4)
                y = [[a * b for a, b in zip(row, c)] for row in x]
                near, far = round_to(y, "float32"), round_to(y, "bfloat16")
                features = [columns_of(rounded(round_to(x, "float32"), unit))]
                fit = channel_factors(features, rounded(near, unit))
                self.assertLess(difference(fit.factors[0], c), 1e-6)
                self.assertIsNone(channel_factors(features, rounded(far, unit)))
                self.assertIsNone(factors([rounded(x, unit)], rounded(near, unit)))

    def test_a_format_is_seen_in_the_numbers(self):
        for seed in range(5):
            numbers = Draw(seed).tensor(40)
            for form in FORMATS:
                with self.subTest(seed=seed, form=form.name):
                    got = numbers if form.name == "float64" else round_to(numbers, form.name)
                    self.assertEqual(format_of(got), form.name)
        self.assertEqual(format_of([]), "float64")
        large = [a * 2.0 ** 20 for a in round_to(numbers, "float16")]
        self.assertNotEqual(format_of(large), "float16")            # it ends at 65504


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.case = Case("pre_norm", 7)

    def path(self, name, value=None):
        """A path in a folder of this test, with JSON in it if there is a value."""
        path = os.path.join(self.folder, name)
        if value is not None:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)
        return path

    def command(self, *argv):
        """Run main -> (code, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["audit", *argv])
        return code, out.getvalue(), err.getvalue()

    def test_every_form_of_a_file_gives_the_same_trace(self):
        states, writers = self.case.states, self.case.writers
        objects = [[{"name": name, "vectors": x} for name, x in pairs]
                   for pairs in (states, writers)]
        bare = [[x for _, x in pairs] for pairs in (states, writers)]
        paths = [self.path("result.json", {"result": {"states": objects[0],
                                                      "writers": objects[1]}}),
                 self.path("named.json", {"states": objects[0], "updates": objects[1]}),
                 self.path("bare.json", {"states": bare[0], "updates": bare[1],
                                         "normed": self.case.run.normed})]
        for name, tensors in (
                ("stacked", {"states": bare[0], "updates": bare[1]}),
                ("numbered", {f"{what}.{k}": x for what, tensors in zip(("state", "update"), bare)
                              for k, x in enumerate(tensors)}),
                ("named", {f"{what}.{name}": x for what, pairs
                           in (("state", states), ("update", writers)) for name, x in pairs})):
            paths.append(self.path(name + ".safetensors"))
            safetensors.write(paths[-1], tensors, dtype="F64")
        for path in paths:
            with self.subTest(path):
                read = traces.read(path)
                named = isinstance(read.states[0], tuple)
                self.assertEqual(read.states, states if named else bare[0])
                self.assertEqual(read.updates, writers if named else bare[1])
                self.assertEqual(audit(*read).contract, "adds_up")
        self.assertEqual(traces.read(paths[2]).normed, self.case.run.normed)

    def test_what_trace_prints_is_taken_whole(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            cli.main(["trace", "mqzkbmqz", "--json", "--vectors"])
        path = self.path("trace.json", json.loads(out.getvalue()))
        code, out, _ = self.command(path)
        self.assertEqual(code, 0)
        self.assertIn("everything adds up", out)

    def test_the_examples_of_the_help_run(self):
        value = {"states": [x for _, x in self.case.states],
                 "updates": [x for _, x in self.case.writers]}
        self.path("trace.json", value)
        safetensors.write(self.path("trace.safetensors"), value, dtype="F16")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for example in cli.command_of("audit").examples:
            with self.subTest(example):
                self.assertEqual(self.command(*example.split()[1:])[0], 0)

    def test_the_answer_says_no_and_where(self):
        case = self.case
        writers = put(case.writers, case.writer, add(case.update, case.before), [case.position])
        value = {"states": [{"name": name, "vectors": x} for name, x in case.states],
                 "writers": [{"name": name, "vectors": x} for name, x in writers]}
        path = self.path("bad.json", value)
        code, out, _ = self.command(path, "--json")
        answer = json.loads(out)
        self.assertEqual(code, 1)
        self.assertEqual(answer["input"], {"file": path, "to": None})
        self.assertIs(answer["model"], None)
        found, = answer["result"]["findings"]
        self.assertEqual((found["kind"], found["names"], found["positions"], found["position"]),
                         ("contains_stream", [case.writer], [case.position], case.position))
        self.assertEqual([one["kind"] for one in answer["result"]["ranges"]].count("adds_up"),
                         1 if case.writer == case.names[-1] else 2)
        self.assertEqual([check["ok"] for check in answer["checks"]], [False])
        for columns in ("40", "80"):
            code, out, _ = self.command(path, "--columns", columns)
            self.assertEqual(code, 1)
            self.assertLessEqual(max(map(len, out.splitlines())), int(columns))
            self.assertIn(f"1. {case.writer}: ", out)
            self.assertIn(f"position {case.position}, channel", out)
            self.assertIn("remedy", out)

    def test_names_stand_by_their_numbers_of_any_length(self):
        names = ["embed", "L0.attn", "L02.mlp", "L10.attn", "L10²", "L9" + "0" * 5000, "x²", "x³"]
        self.assertEqual(sorted(reversed(names), key=traces.natural), names)

    def test_nan_in_a_file(self):
        value = {"states": [[[1.0, 2.0]], [[1.5, "nan"]]], "updates": [[[0.5, "-inf"]]]}
        code, out, _ = self.command(self.path("nan.json", value), "--json")
        self.assertEqual(code, 1)
        found = json.loads(out)["result"]["findings"][0]
        self.assertEqual((found["kind"], found["names"], found["error"]),
                         ("not_finite", ["update 0", "state 1"], "inf"))
        with open(self.path("token.json"), "w", encoding="utf-8") as file:
            file.write('{"states": [[[NaN]]], "updates": []}')
        code, _, err = self.command(self.path("token.json"))
        self.assertEqual(code, 3)
        self.assertIn("NaN is not JSON", err)

    def test_what_is_no_trace(self):
        for name, value, message in (
                ("list.json", [1], "no object"),
                ("empty.json", {"states": []}, "no list"),
                ("short.json", {"states": [{"name": "embed"}], "writers": []}, "no vectors"),
                ("nameless.json", {"states": [{"vectors": [[1.0]]}], "updates": []}, "name"),
                ("words.json", {"states": [[["a"]]], "updates": [[["c"]]]}, "'a' stands where"),
                ("deep.json", {"states": [[[[[1]]]]], "updates": [[[1]]]}, "has shape"),
                ("number.json", {"states": [1, 2], "updates": [1]}, "expected")):
            with self.subTest(name):
                code, out, err = self.command(self.path(name, value))
                self.assertEqual((code, out), (3, ""), err)
                self.assertIn(message, err)
                self.assertIn("hint: ", err)
        safetensors.write(self.path("scalar.safetensors"), {"states": 1.0, "updates": 1.0})
        code, _, err = self.command(self.path("scalar.safetensors"))
        self.assertEqual(code, 3)
        self.assertIn("'states' is one number", err)
        safetensors.write(self.path("other.safetensors"), {"w": [[1.0]]})
        code, _, err = self.command(self.path("other.safetensors"))
        self.assertEqual(code, 3)
        self.assertIn("no tensor 'states'", err)
        self.assertEqual(self.command(self.path("absent.json"))[0], 3)
        self.assertEqual(self.command()[0], 2)


if __name__ == "__main__":
    unittest.main()
