"""Laws of pyres.study.writers: whatever the model and the grain, the rows are all there is.

A branch's parts are held against plain loops that share no code with the package; partitions are
exact in Fractions, and in floats right to rounding.
"""
import unittest

import pyres
from pyres import edits, linalg
from pyres.model import run, small_model
from pyres.study.writers import (Partition, at, cancellation, measures, opposed, partition, prove,
                                 shares, write)
from tests.laws import Draw, assert_close, copied, flat
from tests.placements import TOKENS, edits_of_all, exact_models, float_models

FINEST = {"attn": "source", "mlp": "neuron", "embed": "parts"}
GRAINS = ({}, {"attn": "group"}, {"attn": "head", "mlp": "neuron"}, FINEST)


def sum_of(split):
    """The rows of a Partition added up."""
    total = split.rows[0][1]
    for _, rows in split.rows[1:]:
        total = linalg.add(total, rows)
    return total


class WriterLaws(unittest.TestCase):
    def close(self, got, want, seed, what):
        assert_close(self, got, want, seed, what)

    def proven(self, split, label):
        for check in split.checks:
            self.assertTrue(check.ok, f"{label}: {check}")


class EveryModel(WriterLaws):

    def test_in_floats_every_grain_sums_to_every_state(self):
        for seed in (1, 2):
            for label, model in float_models(seed):
                r = run(model, TOKENS)
                for grain in GRAINS:
                    with self.subTest(label, seed=seed, **grain):
                        split = partition(r, **grain)
                        self.proven(split, label)
                        self.close(sum_of(split), r.states[-1][1], seed, label)
                        self.assertLess(split.checks[1].tolerance, 1e-11)
                with self.subTest(label, seed=seed):
                    for name, state in r.states:
                        split = partition(r, state=name, **FINEST)
                        self.proven(split, f"{label} {name}")
                        self.close(sum_of(split), state, seed, name)

    def test_in_fractions_with_equality(self):
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns)
            for grain in GRAINS:
                with self.subTest(label, **grain):
                    split = partition(r, **grain)
                    self.assertEqual(sum_of(split), r.states[-1][1])
                    check = split.checks[1]
                    self.assertEqual((check.error, check.tolerance, check.ok, check.exact),
                                     (0, 0, True, True))

    def test_an_edited_run_is_what_was_really_added(self):
        for label, model, patterns in exact_models(3):
            draw = Draw(7, type(model.weights.w_embed[0][0]))
            r = run(model, TOKENS, patterns + edits_of_all(draw, 2))
            for position in (0, 2):
                with self.subTest(label, position=position):
                    mlp = "branch" if position == 2 else "neuron"       # L0.mlp was replaced at 2
                    split = partition(r, "source", mlp, "parts", position=position)
                    self.assertEqual(sum_of(split), [r.states[-1][1][position]])
                    self.assertEqual(split.checks[1].error, 0)
            with self.subTest(label, position=1):
                split = partition(r, "head", "neuron", "parts", position=1)
                self.assertEqual(sum_of(split), [r.states[-1][1][1]])

    def test_an_edited_run_in_floats(self):
        for label, model in float_models(1):
            r = run(model, TOKENS, edits_of_all(Draw(8), 6))
            with self.subTest(label):
                self.proven(partition(r, "head", "branch", "parts"), label)
                self.proven(partition(r, "source", "neuron", "parts", position=0), label)

    def test_a_states_partition_begins_at_the_state_that_was_set(self):
        for label, model, patterns in exact_models(3):
            given = Draw(9, type(model.weights.w_embed[0][0])).tensor(3, 2)
            r = run(model, TOKENS, patterns + [edits.set_state("L0.mlp", given)])
            with self.subTest(label):
                split = partition(r, **FINEST)
                self.assertEqual(split.rows[0][0], "L0.mlp")
                self.assertEqual(sum_of(split), r.states[-1][1])
                self.assertTrue(split.checks[0].ok)
                self.assertTrue(all(name[:2] == "L1" or name.endswith("norm_bias")
                                    for name, _ in split.rows[1:]))
                with self.assertRaisesRegex(ValueError, "no writer 'L0.mlp.N0'"):
                    write(r, "L0.mlp.N0")

    def test_one_position_is_the_row_of_all_positions(self):
        for label, model in float_models(1):
            r = run(model, TOKENS, edits_of_all(Draw(8), 6)[5:])
            whole = partition(r, **FINEST)
            for t in range(3):
                with self.subTest(label, position=t):
                    self.assertEqual(at(partition(r, position=t, **FINEST), t), at(whole, t))

    def test_a_writer_alone_is_its_row(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            for grain in ({"attn": "group"}, FINEST):
                for name, rows in partition(r, **grain).rows[3:17]:
                    with self.subTest(label, name=name):
                        self.assertEqual(write(r, name), rows)
                        self.assertEqual(write(r, name, position=1), rows[1:2])

    def test_parts_sum_to_the_next_coarser_writer(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            for name, finer in (("L1.attn.G1", ["L1.attn.H2", "L1.attn.H3"]),
                                ("L1.attn.H2", [f"L1.attn.H2.S{s}" for s in range(3)])):
                with self.subTest(label, name=name):
                    total = linalg.sum_rows([flat(write(r, part)) for part in finer])
                    self.close(total, flat(write(r, name)), 1, name)

    def test_nothing_that_was_given_is_changed(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            before = copied([rows for _, rows in r.writers + r.states])
            for split in (partition(r), partition(r, **FINEST)):
                for _, rows in split.rows + [("L1.mlp", write(r, "L1.mlp"))]:
                    for row in rows:
                        row[0] = 1e9
            with self.subTest(label):
                finer = partition(r, "head").checks[1]
                self.assertTrue(finer.ok)
                self.assertEqual([rows for _, rows in r.writers + r.states], before)


class Parts(WriterLaws):
    """Against loops."""

    def branches(self, placement):
        for label, model in float_models(1):
            if label.endswith(placement):
                yield label, model, run(model, TOKENS)

    def test_heads_and_sources_of_a_pre_norm_block(self):
        for label, model, r in self.branches("pre_norm"):
            w, steps = model.weights.blocks[1].attn, r.steps.blocks[1].attn
            for h in range(4):
                for s in range(3):
                    want = [[sum(w.w_o[i][2 * h + c] * steps.pattern[h][t][s]
                                 * steps.v[h // 2][s][c] for c in (0, 1)) for i in range(6)]
                            for t in range(3)]
                    self.close(write(r, f"L1.attn.H{h}.S{s}"), want, 1, f"{label} H{h}.S{s}")

    def test_neurons_of_a_pre_norm_block(self):
        for label, model, r in self.branches("pre_norm"):
            w, hidden = model.weights.blocks[0].mlp, r.steps.blocks[0].mlp.hidden
            for n in range(5):
                want = [[hidden[t][n] * w.w_down[i][n] for i in range(6)] for t in range(3)]
                self.close(write(r, f"L0.mlp.N{n}"), want, 1, f"{label} N{n}")

    def test_behind_a_norm_a_head_is_centred_divided_and_multiplied(self):
        for placement in ("sandwich", "output_norm"):
            for label, model, r in self.branches(placement):
                block, config = model.weights.blocks[0], model.config.blocks[0]
                steps, gain = r.steps.blocks[0], block.attn_post_norm.gain
                learned, fixed = block.attn_multiplier or 1, config.residual_multiplier or 1
                for h in range(4):
                    bare = [[sum(block.attn.w_o[i][2 * h + c] * steps.attn.mixed[h][t][c]
                                 for c in (0, 1)) for i in range(6)] for t in range(3)]
                    is_layer = config.attn_post_norm.kind == "layer"
                    means = [sum(row) / 6 if is_layer else 0 for row in bare]
                    want = [[gain[i] * (bare[t][i] - means[t]) / steps.attn_post_norm.scale[t]
                             * learned * fixed for i in range(6)] for t in range(3)]
                    self.close(write(r, f"L0.attn.H{h}"), want, 1, f"{label} H{h}")

    def test_the_bias_of_a_branch_has_a_row_of_its_own_and_b_v_has_none(self):
        """b_v is the heads': pattern rows sum to 1, so each of them always writes its part."""
        for label, model, r in self.branches("pre_norm"):
            w = model.weights.blocks[0].attn
            names = [name for name, _ in partition(r, attn="head").rows]
            self.assertEqual("L0.attn.bias" in names, w.b_o is not None, label)
            if w.b_o is None:
                continue
            self.close(write(r, "L0.attn.bias"), [w.b_o] * 3, 1, label)
            w = w._replace(b_v=[0.0] * 4)
            block = model.weights.blocks[0]._replace(attn=w)
            without = pyres.make_model(model.config, model.weights._replace(
                blocks=[block] + model.weights.blocks[1:]))
            b_v = model.weights.blocks[0].attn.b_v
            for h in range(4):
                fewer = linalg.subtract(write(r, f"L0.attn.H{h}"),
                                        write(run(without, TOKENS), f"L0.attn.H{h}"))
                want = [sum(w.w_o[i][2 * h + c] * b_v[2 * (h // 2) + c] for c in (0, 1))
                        for i in range(6)]
                self.close(fewer, [want] * 3, 1, f"{label} H{h}")

    def test_embedding(self):
        for label, model, r in self.branches("pre_norm"):
            w, times = model.weights, model.config.embed_multiplier or 1
            want = [[times * a for a in w.w_embed[token]] for token in TOKENS]
            self.close(write(r, "embed.token"), want, 1, label)
            if w.w_pos is not None:
                self.assertEqual(write(r, "embed.position"), w.w_pos[:3])
                self.assertEqual(write(r, "embed.position", position=2), [w.w_pos[2]])

    def test_head_results_and_the_output_bias(self):
        """A public mistake: heads that do not sum to the output, because its bias is no head's;
        or the value bias, which the values already hold, added again."""
        w = pyres.AttentionWeights(
            w_q=[[0.0, 0.0]] * 2, w_k=[[0.0, 0.0]] * 2, w_v=[[1.0, 0.0], [0.0, 1.0]],
            w_o=[[1.0, 0.0], [0.0, 2.0]], b_q=None, b_k=None, b_v=[0.5, 0.0], b_o=[0.5, 0.5],
            q_gain=None, k_gain=None)
        block = pyres.block_config(1, pyres.attention_config(2, 1), norm=None, activation="relu")
        config = pyres.model_config(2, 2, 2, 1, block, final_norm=None)
        mlp = pyres.MLPWeights(None, [[0.0, 0.0]], [[0.0], [0.0]], None, None, None)
        blocks = [pyres.BlockWeights(None, w, None, None, None, mlp, None, None)]
        model = pyres.make_model(config, pyres.ModelWeights(
            [[1.0, 4.0], [3.0, 0.0]], None, blocks, None, None, None))
        r = run(model, [0, 1], [edits.set_pattern("L0.attn.H0", [[1, 0], [0.25, 0.75]]),
                                edits.set_pattern("L0.attn.H1", [[1, 0], [0.25, 0.75]])])
        # the values are 1 and 3, and 0.5 more with b_v: 0.25 * 1.5 + 0.75 * 3.5
        self.assertEqual(r.steps.blocks[0].attn.mixed[0][1], [3.0])
        self.assertEqual(at(partition(r, attn="head", only=["L0.attn"]), 1)[1:4],
                         [("L0.attn.H0", [3.0, 0.0]), ("L0.attn.H1", [0.0, 2.0]),
                          ("L0.attn.bias", [0.5, 0.5])])
        self.assertEqual(dict(r.writers)["L0.attn"][1], [3.5, 2.5])


class Proofs(WriterLaws):

    def run_of(self, label="0 pre_norm", given=()):
        return run(dict(float_models(1))[label], TOKENS, given)

    def fails(self, r, rows, which):
        oks = [check.ok for check in prove(r, Partition(rows, "L1.mlp", [0, 1, 2], None))]
        self.assertEqual(oks, [which == "sum", which == "names"])

    def test_what_is_wrong_is_found(self):
        r = self.run_of()
        rows = partition(r, attn="head").rows
        nudged = [[a + 1e-9 for a in row] for row in rows[2][1]]
        zero = linalg.zeros_like(rows[0][1])
        self.assertTrue(all(check.ok for check in prove(r, partition(r, attn="head"))))
        self.fails(r, rows[:2] + [(rows[2][0], nudged)] + rows[3:], "sum")
        self.fails(r, rows[1:], "both")                                # the embedding is missing
        self.fails(r, rows + [rows[0]], "both")                        # or there twice
        self.fails(r, rows + [("L0.attn", zero)], "names")             # a whole beside its parts
        self.fails(r, rows + [("L0.attn.G0", zero)], "names")
        self.fails(r, rows + [("L0.attn.H0.S1", zero)], "names")
        self.fails(r, rows + [("L7.attn", zero)], "names")
        bias = dict(rows)["L0.attn.bias"]
        moved = [(name, linalg.add(row, bias) if name == "L0.attn.H0" else row)
                 for name, row in rows if name != "L0.attn.bias"]
        self.fails(r, moved, "names")                                  # a head that has b_o too
        with self.assertRaisesRegex(ValueError, "the row embed has shape .2, 6., expected .3, 6."):
            prove(r, Partition([("embed", zero[:2])] + rows[1:], "L1.mlp", [0, 1, 2], None))
        two = [(name, row[1:]) for name, row in rows]
        self.assertTrue(all(check.ok for check in prove(
            r, Partition(two, "L1.mlp", [1, 2], None))))
        for t, i in ((0, 0), (1, 3), (2, 5)):       # a maximum forgets a NaN that is not the first
            spoilt = copied(rows[0][1])
            spoilt[t][i] = float("nan")
            self.fails(r, [("embed", spoilt)] + rows[1:], "sum")

    def test_rows_of_several_grains_may_stand_together(self):
        r = self.run_of()
        rows = [row for row in partition(r, attn="head").rows if row[0] != "L0.attn.H1"]
        mixed = rows + [(f"L0.attn.H1.S{s}", write(r, f"L0.attn.H1.S{s}")) for s in range(3)]
        for check in prove(r, Partition(mixed, "L1.mlp", [0, 1, 2], None)):
            self.assertTrue(check.ok, check)

    def test_what_an_edit_gave_has_no_parts(self):
        draw = Draw(2)
        for edit, name in ((edits.replace("L0.attn", draw.tensor(3, 6)), "L0.attn.H1"),
                           (edits.shift("L0.attn.G1", draw.tensor(3, 6)), "L0.attn.H3"),
                           (edits.replace("L0.attn.H1", draw.tensor(3, 6)), "L0.attn.H1.S0"),
                           (edits.shift("L0.mlp", draw.tensor(3, 6)), "L0.mlp.bias"),
                           (edits.shift("embed", draw.tensor(3, 6)), "embed.position")):
            r = self.run_of(given=[edit])
            whole = edit.writer
            with self.subTest(name):
                with self.assertRaisesRegex(ValueError, f"ask for {whole} as a whole"):
                    write(r, name)
                with self.assertRaisesRegex(ValueError, f"ask for {whole} as a whole"):
                    partition(r, **FINEST)
                self.proven(partition(r, only=[]), name)

    def test_only(self):
        r = self.run_of()
        names = [name for name, _ in partition(r, "head", only=["L1.attn"]).rows]
        self.assertEqual(names, ["embed", "L0.attn", "L0.mlp"]
                         + [f"L1.attn.H{h}" for h in range(4)] + ["L1.attn.bias", "L1.mlp"])
        with self.assertRaisesRegex(ValueError, "only has 'L5.attn'"):
            partition(r, "head", only=["L5.attn"])

    def test_refusals(self):
        r = self.run_of()
        for call, message in (
                (lambda: partition(r, attn="heads"), "no attn='heads'; there are branch, group"),
                (lambda: partition(r, position=3), "no position 3; the run has 3 tokens"),
                (lambda: partition(r, position=-1), "no position -1"),
                (lambda: partition(r, state="L9.mlp"), "no state 'L9.mlp'"),
                (lambda: write(r, "L0.attn.H4"), "no writer 'L0.attn.H4'"),
                (lambda: write(r, "L0.attn.H0.S3"), "no writer"),
                (lambda: write(r, "L0.mlp.N05"), "no writer"),
                (lambda: write(r, "embed.nobody"), "no writer"),
                (lambda: at(partition(r, position=1), 0), "position 0 is not in it; it has 1")):
            with self.assertRaisesRegex(ValueError, message):
                call()


class Shares(WriterLaws):

    def test_shares_sum_to_1_exactly(self):
        for label, model, patterns in exact_models(3):
            r = run(model, TOKENS, patterns)
            with self.subTest(label):
                found = shares(partition(r, "head", "neuron", position=2), 2)
                self.assertEqual(sum(share for _, share in found), 1)

    def test_lengths_and_cosines_give_the_length_after(self):
        """|x + u|² = |x|² + 2 |x| |u| cos + |u|²."""
        for seed in (1, 2):
            for label, model in float_models(seed):
                r = run(model, TOKENS)
                found = measures(partition(r, "head"), 1)
                before = 0.0
                for one in found:
                    want = before ** 2 + one.length ** 2 + 2 * before * one.length * (
                        one.cosine or 0)
                    self.close(one.after ** 2, want, seed, f"{label} {one.name}")
                    before = one.after

    def test_cancellation(self):
        for label, model in float_models(1):
            r = run(model, TOKENS)
            split = partition(r, "head")
            found = cancellation(split, 2)
            with self.subTest(label):
                self.assertGreaterEqual(found.factor, 1 - 1e-12)
                self.assertClose(found.written, sum(one.length for one in measures(split, 2)))
                pairs = opposed(split, 2, n=1000)
                rows = at(split, 2)
                products = [linalg.dot(u, v) for i, (_, u) in enumerate(rows)
                            for _, v in rows[:i]]
                self.assertEqual([p for _, _, p in pairs], sorted(p for p in products if p < 0))
                # |sum|² = sum of |u|² + twice the products of all pairs
                self.close(found.left ** 2, sum(linalg.dot(u, u) for _, u in rows)
                           + 2 * sum(products), 1, label)

    def assertClose(self, got, want):
        self.close(got, want, 0, "")

    def test_a_writer_alone_cancels_nothing(self):
        r = run(small_model(), [0], [edits.scale("L0.attn", 0), edits.scale("L0.mlp", 0)])
        self.assertEqual(cancellation(partition(r), 0), (16.0, 16.0, 1.0, 0))
        off = run(small_model(), [0], [edits.set_state("L0.mlp", [[0.0]])])
        with self.assertRaisesRegex(ValueError, "shares: the stream is zero at position 0"):
            shares(partition(off), 0)


if __name__ == "__main__":
    unittest.main()
