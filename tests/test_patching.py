"""Patching and paths: what is moved, what is kept, and who reads whom."""
import concurrent.futures
import itertools
import unittest
from fractions import Fraction

from pyres import linalg
from pyres.edits import replace, scale, set_state
from pyres.model import run
from pyres.study import effects, patching
from pyres.study.metrics import value
from pyres.study.references import branch_of, raw_write
from tests.models import (FINER, PLACEMENTS, SUMMED, TOKENS, WRITERS, Laws, exact_run, float_model,
                          metric_of)

OTHER = [1, 3, 0]
RECEIVERS = WRITERS + FINER


def pair(seed, placement):
    """A base and a source of one model."""
    model = float_model(seed, placement)
    return run(model, TOKENS), run(model, OTHER)


def exact_pair(seed, placement):
    base = exact_run(seed, placement)
    return base, run(base.model, OTHER, base.edits)


def state_before(base, receiver):
    """The name of the state that a receiver reads."""
    names = [name for name, _ in base.states]
    branch = branch_of(receiver)
    if branch.endswith(".mlp") and branch.replace("mlp", "attn") in names:
        return branch.replace("mlp", "attn")
    i = int(branch[1])
    return f"L{i - 1}.mlp" if i else "embed"


class Patches(Laws):

    def test_the_whole_embedding_of_the_source_makes_the_source(self):
        for placement in PLACEMENTS:
            base, source = pair(1, placement)
            patched = run(base.model, TOKENS, [patching.patch(base, source, "embed")])
            self.assertEqual(patched.logits, source.logits)
            self.assertNotEqual(base.logits, source.logits)

    def test_a_writer_of_any_kind_writes_what_it_wrote_in_the_source(self):
        for placement, writer in zip(PLACEMENTS * 2, RECEIVERS):
            base, source = exact_pair(1, placement)
            edits = [patching.patch(base, source, writer, [0, 2])]
            patched = run(base.model, TOKENS, base.edits + edits)
            got, was, put = [raw_write(r, writer) for r in (patched, base, source)]
            self.assertEqual(got, [put[0], was[1], put[2]], f"{placement}, {writer}")
            self.assertNotEqual(was, put)
            self.assertTrue(effects.effect(base, edits, metric_of(base)).check.exact)

    def test_which_is_base_and_which_is_source(self):
        base, source = pair(1, "pre_norm")
        edit = patching.patch(base, source, "L0.mlp")
        self.assertEqual(edit.value, dict(source.writers)["L0.mlp"])
        back = patching.patch(source, base, "L0.mlp")
        self.assertEqual(back.value, dict(base.writers)["L0.mlp"])

    def test_what_does_not_fit_is_refused(self):
        base, source = pair(1, "pre_norm")
        longer = run(base.model, TOKENS + [1])
        other = run(float_model(2, "pre_norm"), OTHER)
        metric = metric_of(base)
        for ask in (lambda r: patching.patch(base, r, "L0.mlp"),
                    lambda r: patching.path_run(base, r, "embed", "L0.mlp"),
                    lambda r: patching.path_table(base, r, ["embed"], ["L0.mlp"], metric)):
            with self.assertRaisesRegex(ValueError, "the base has 3 tokens, the source 4"):
                ask(longer)
            with self.assertRaisesRegex(ValueError, "the runs are on different weights"):
                ask(other)
        with self.assertRaisesRegex(ValueError, "L1.attn does not come before L0.mlp"):
            patching.path_run(base, source, "L1.attn", "L0.mlp")
        for sender, receiver in (("L9.attn", "L0.mlp"), ("embed", "logits"), ("final", "final")):
            with self.assertRaisesRegex(ValueError, "no writer"):
                patching.path_run(base, source, sender, receiver)
        with self.assertRaisesRegex(ValueError, "no writer"):
            patching.path_table(base, source, ["L1.mlp"], ["L0.attn.H9"], metric)
        for sender, receiver in (("final", "L0.mlp"), ("embed", "L7.attn"), ("bogus", "final")):
            with self.assertRaisesRegex(ValueError, "comes_before: there is no writer"):
                patching.comes_before(base.model.config, sender, receiver)


class Paths(Laws):

    def test_who_comes_before_whom(self):
        """By experiment: another write of the sender changes what the receiver writes, or not."""
        for placement in PLACEMENTS:
            base, source = pair(1, placement)
            for sender in RECEIVERS:
                edited = run(base.model, TOKENS, [patching.patch(base, source, sender)])
                for receiver in RECEIVERS:
                    if branch_of(receiver) == branch_of(sender):
                        continue
                    reads = raw_write(edited, receiver) != raw_write(base, receiver)
                    self.assertEqual(
                        patching.comes_before(base.model.config, sender, receiver), reads,
                        f"{placement}: {sender}, {receiver}")
            for writer in RECEIVERS:
                self.assertFalse(patching.comes_before(base.model.config, writer, writer))
                self.assertTrue(patching.comes_before(base.model.config, writer, "final"))
        self.assertFalse(patching.comes_before(base.model.config, "L0.attn.H0", "L0.attn.H1"))

    def test_the_receiver_reads_the_base_but_for_the_senders_change(self):
        """The state that it reads is set to just that, and what it then writes is put in place."""
        for k, placement in enumerate(SUMMED):
            base, source = exact_pair(1, placement)
            states, updates = dict(base.states), dict(base.writers)
            for sender, receiver in list(itertools.product(RECEIVERS, RECEIVERS))[k::4]:
                if not patching.comes_before(base.model.config, sender, receiver):
                    continue
                branch, before = branch_of(sender), state_before(base, receiver)
                changed = dict(effects.edited_updates(
                    base, [patching.patch(base, source, sender)]))[branch]
                x = linalg.add(states[before], linalg.subtract(changed, updates[branch]))
                reading = run(base.model, TOKENS, base.edits + [set_state(before, x)])
                want = run(base.model, TOKENS, base.edits
                           + [replace(receiver, raw_write(reading, receiver))])
                got = patching.path_run(base, source, sender, receiver)
                self.assertEqual(got.logits, want.logits, f"{placement}: {sender}, {receiver}")

    def test_everything_before_and_beside_the_receiver_is_the_bases(self):
        for placement in PLACEMENTS:
            base, source = pair(1, placement)
            got = patching.path_run(base, source, "embed", "L1.attn.H2")
            self.assertEqual(got.writers[:3], base.writers[:3])
            for head in ("L1.attn.H0", "L1.attn.H1", "L1.attn.H3"):
                self.assertEqual(raw_write(got, head), raw_write(base, head))
            self.assertNotEqual(raw_write(got, "L1.attn.H2"), raw_write(base, "L1.attn.H2"))
            self.assertEqual(got.writers[4] == base.writers[4], placement == "parallel")

    def test_mlps_between_may_react(self):
        for placement in PLACEMENTS:
            base, source = pair(1, placement)
            edit = patching.patch(base, source, "embed")
            first = run(base.model, TOKENS, [edit, replace("L0.attn", base.writers[1][1])])
            want = run(base.model, TOKENS, [replace("L1.attn", dict(first.writers)["L1.attn"])])
            free = patching.path_run(base, source, "embed", "L1.attn", free_mlps=True)
            kept = patching.path_run(base, source, "embed", "L1.attn")
            self.assertEqual(free.logits, want.logits, placement)
            self.assertNotEqual(free.logits, kept.logits, placement)
            last = patching.path_run(base, source, "L1.attn", "final", free_mlps=True)
            all_react = run(base.model, TOKENS, [patching.patch(base, source, "L1.attn")])
            self.assertEqual(last.logits, all_react.logits, "only an MLP comes after")

    def test_the_path_to_the_final_stream_is_the_frozen_effect(self):
        for placement in PLACEMENTS[::2]:
            base, source = exact_pair(2, placement)
            metric = metric_of(base)
            for sender in ("embed", "L0.attn.H1", "L0.mlp", "L1.mlp.N3"):
                frozen = effects.effect(base, [patching.patch(base, source, sender)], metric,
                                        frozen=True)
                last = patching.path_run(base, source, sender, "final")
                self.assertEqual(value(last, metric), frozen.after, f"{placement}, {sender}")

    def test_a_norm_at_the_receiver_is_worked_out_again(self):
        """A sender that makes the stream ten times longer: RMSNorm's receiver hardly sees it."""
        base, _ = pair(1, "pre_norm")
        louder = run(base.model, TOKENS, [scale("embed", 1e6)])
        got = patching.path_run(base, louder, "embed", "L0.attn")
        bare = run(base.model, TOKENS, [scale("embed", 1e12)])
        self.assertClose(got.writers[1][1], bare.writers[1][1], 1, tolerance=1e-9)


class Tables(Laws):

    def test_a_cell_is_its_path_and_a_forbidden_one_is_none(self):
        for placement in ("pre_norm", "parallel"):
            base, source = pair(1, placement)
            metric, seen = metric_of(base), []
            senders, receivers = list(RECEIVERS), list(RECEIVERS) + ["final"]
            table = patching.path_table(base, source, senders, receivers, metric,
                                        progress=lambda done, total: seen.append((done, total)))
            n_paths = 0
            for sender, row in zip(senders, table):
                for receiver, cell in zip(receivers, row):
                    if not patching.comes_before(base.model.config, sender, receiver):
                        self.assertIsNone(cell)
                        continue
                    n_paths += 1
                    got = patching.path_run(base, source, sender, receiver)
                    self.assertEqual(cell, value(got, metric) - value(base, metric))
            self.assertEqual(seen, [(i + 1, n_paths) for i in range(n_paths)])
            self.assertEqual(patching.path_table(base, source, iter(senders[:2]),
                                                 iter(receivers), metric), table[:2])
            self.assertTrue(0 < n_paths < len(senders) * len(receivers))

    def test_nothing_moved_is_0_and_not_none(self):
        base, _ = exact_pair(1, "pre_norm")
        self.assertEqual(patching.path_table(base, base, ["L0.attn", "L1.mlp"],
                                             ["L0.mlp", "final"], metric_of(base)),
                         [[Fraction(0), Fraction(0)], [None, Fraction(0)]])

    def test_with_an_executor(self):
        base, source = pair(1, "sandwich")
        arguments = (base, source, ["embed", "L0.mlp"], ["L1.attn.H0", "final"], metric_of(base))
        here = patching.path_table(*arguments, free_mlps=True)
        with concurrent.futures.ProcessPoolExecutor(1) as executor:
            self.assertEqual(patching.path_table(*arguments, free_mlps=True, executor=executor),
                             here)
        self.assertNotEqual(here, patching.path_table(*arguments))


if __name__ == "__main__":
    unittest.main()
