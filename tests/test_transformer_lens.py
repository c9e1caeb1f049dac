"""TransformerLens's numbers: what it calls a decomposition, a head's result, an attribution.

Where its conventions are ours, numbers are equal; where they are not, the difference is the one
that docs/coming-from-transformer-lens.md documents.  The numbers are in tests/data, with their
origin in its README; where PYRES_GOLDENS names a folder with the whole set, all of it is compared.
"""
import os
import unittest

import pyres
from pyres.files import safetensors
from pyres.linalg import add, dot, matvec
from pyres.study import metrics
from pyres.study.attribution import contributions
from pyres.study.lens import raw_lens_logits
from pyres.study.writers import partition, write
from tests.foreign import from_transformer_lens
from tests.goldens import DATA, WHOLE_SET, Comparison, needs_whole_set, read_json

FOLDER = os.path.join(DATA, "transformer_lens")
TOLERANCE = 1e-9
WRITERS = {"embed": "embed.token", "pos_embed": "embed.position"}
FINAL = "final_post"


def our_name(label):
    """0_attn_out is L0.attn, L1H0 is L1.attn.H0."""
    if label in WRITERS:
        return WRITERS[label]
    if label[0] == "L":
        layer, _, head = label[1:].partition("H")
        return f"L{layer}.attn.H{head}"
    layer, branch, _ = label.split("_")
    return f"L{layer}.{branch}"


def our_state(label):
    """0_pre is embed, 0_mid is L0.attn, 1_pre is L0.mlp."""
    layer, _, place = label.partition("_")
    if place == "mid":
        return f"L{layer}.attn"
    return "embed" if layer == "0" else f"L{int(layer) - 1}.mlp"


def less_mean(row):
    return [a - sum(row) / len(row) for a in row]


class Hooked(Comparison):
    """What every model and every processed copy of it is compared in."""

    def model(self, root, config, weights):
        tensors = safetensors.read(os.path.join(root, weights))
        return from_transformer_lens(config, {name: tensors[name] for name in tensors})

    def check_run(self, r, golden):
        self.assert_close("logits", r.logits, golden["logits"], TOLERANCE)
        loss = pyres.cross_entropy(r.logits, pyres.next_token_targets(r.tokens))
        self.assert_close("loss", loss, golden["mean_loss"], TOLERANCE)
        self.assert_close("ln_final_scale", r.steps.final_norm.scale, golden["ln_final_scale"],
                          TOLERANCE)
        if "patterns" in golden:
            self.assert_close("patterns", [block.attn.pattern for block in r.steps.blocks],
                              golden["patterns"], TOLERANCE)

    def check_streams(self, r, golden):
        """decompose_resid, accumulated_resid, stack_head_results."""
        embed = "parts" if "pos_embed" in golden["decompose_resid"]["labels"] else "whole"
        found = partition(r, embed=embed)
        labels = [our_name(label) if embed == "parts" else our_name(label).replace(".token", "")
                  for label in golden["decompose_resid"]["labels"]]
        self.assertEqual([name for name, _ in found.rows], labels)
        self.assert_close("decompose_resid", [rows for _, rows in found.rows],
                          golden["decompose_resid"]["values"], TOLERANCE)
        if "accumulated_resid_incl_mid" in golden:
            states, accumulated = dict(r.states), golden["accumulated_resid_incl_mid"]
            got = [r.states[-1][1] if label == FINAL else states[our_state(label)]
                   for label in accumulated["labels"]]
            self.assert_close("accumulated_resid", got, accumulated["values"], TOLERANCE)
        if "stack_head_results" in golden:
            results = golden["stack_head_results"]
            got = [write(r, our_name(label)) for label in results["labels"]]
            self.assert_close("stack_head_results", got, results["values"], TOLERANCE)
            for i, block in enumerate(r.model.weights.blocks):
                of_layer = [rows for label, rows in zip(results["labels"], results["values"])
                            if label.startswith(f"L{i}H")]
                total = [add(row, block.attn.b_o) for row in of_layer[0]]
                for rows in of_layer[1:]:
                    total = add(total, rows)
                self.assert_close("heads and b_O", dict(r.writers)[f"L{i}.attn"], total, TOLERANCE)

    def check_ablations(self, model, tokens, golden):
        for one in golden:
            r = pyres.run(model, tokens, [pyres.scale(our_name(one["component"]), 0)])
            self.assert_close(one["component"], r.logits, one["logits"], TOLERANCE)
            loss = pyres.cross_entropy(r.logits, pyres.next_token_targets(r.tokens))
            self.assert_close(one["component"], loss, one["loss"], TOLERANCE)

    # ---- attributions, on the processed copy and on the model as it is ----

    def rows(self, r, position, token, foil, split, centred=False):
        """Contributions to a logit, less a foil's, or less the mean of all."""
        metric = metrics.logit(r.model, position, token, foil)
        if centred:
            metric = metrics.centred_logit(r.model, position, token)
        found = contributions(r, metric, split)
        self.assertTrue(found.check.ok, str(found.check))
        return found

    def cases(self, r, attrs):
        for attr in attrs:
            for t in range(len(attr["decompose_resid"][0])):
                token = r.tokens[t + 1] if attr["token"] == "next" else attr["token"]
                yield attr, t, token, attr["incorrect_token"]

    def check_attributions_of_the_copy(self, r, golden):
        """logit_attrs of the processed copy are its contributions; b_U is our constant."""
        embed = "parts" if r.model.weights.w_pos else "whole"
        for attr, t, token, foil in self.cases(r, golden["logit_attrs"]):
            branches = self.rows(r, t, token, foil, partition(r, embed=embed, position=t))
            want = [row[t] for row in attr["decompose_resid"]]
            self.assert_close("logit_attrs", [v for _, v in branches.rows], want, TOLERANCE)
            b = r.model.weights.b_unembed
            self.assertEqual(branches.constant, b[token] - (0 if foil is None else b[foil]))
            if "heads" in attr:
                heads = self.rows(r, t, token, foil, partition(r, attn="head", position=t))
                got = [v for name, v in heads.rows if ".H" in name]
                self.assert_close("heads", got, [row[t] for row in attr["heads"]], TOLERANCE)

    def check_apply_ln(self, r, golden):
        """Centred for LayerNorm alone, and divided by the final norm's scale."""
        is_layer = r.model.config.final_norm.kind == "layer"
        scales = r.steps.final_norm.scale
        got = [[[(a - (sum(row) / len(row) if is_layer else 0)) / scale for a in row]
                for row, scale in zip(rows, scales)]
               for rows in golden["decompose_resid"]["values"]]
        self.assert_close("apply_ln", got, golden["apply_ln_to_stack_of_decompose_resid"],
                          TOLERANCE)

    def check_attributions_without_folding(self, r, golden):
        """The same numbers from the weights as they are, and what differs.

        A single logit of a copy whose unembedding was centred is our logit less the mean.  A head
        of ours also writes what the values' bias gives, which the copy has moved into b_O.
        """
        embed = "parts" if r.model.weights.w_pos else "whole"
        for attr, t, token, foil in self.cases(r, golden["logit_attrs"]):
            centred = golden["processing"]["center_unembed"] and foil is None
            branches = self.rows(r, t, token, foil, partition(r, embed=embed, position=t), centred)
            want = [row[t] for row in attr["decompose_resid"]]
            self.assert_close("without folding", [v for _, v in branches.rows], want, TOLERANCE)
            found = self.rows(r, t, token, foil, partition(r, attn="head", position=t), centred)
            heads = [pair for pair in found.rows if ".H" in pair[0]]
            for (name, value), row in zip(heads, attr.get("heads", [])):
                direction = [a / r.steps.final_norm.scale[t] for a in found.metric.direction]
                moved = dot(self.value_bias_write(r.model, name), direction)
                self.assert_close(name, value - moved, row[t], TOLERANCE)

    def value_bias_write(self, model, head):
        """W_O^h (b_V^h + W_V^h b), with b the norm's bias: what a head always writes, because its
        pattern's rows sum to 1."""
        i, h = int(head[1]), int(head.rpartition("H")[2])
        block, d_head = model.weights.blocks[i], model.config.blocks[i].attention.d_head
        of_head = slice(h * d_head, (h + 1) * d_head)
        bias = block.attn.b_v[of_head]
        if block.attn_norm.bias is not None:
            bias = add(bias, matvec(block.attn.w_v[of_head], block.attn_norm.bias))
        return [dot(row[of_head], bias) for row in block.attn.w_o]

    def check_folded_copy_is_the_same_model(self, plain, copy, processing):
        """Logits are the same, less a constant a position where the unembedding was centred."""
        for got, want in zip(plain.logits, copy.logits):
            mean = sum(got) / len(got) if processing["center_unembed"] else 0
            self.assert_close("folded", [a - mean for a in got], want, TOLERANCE)

    def check_zeroed_heads_differ_by_the_value_bias(self, plain, copy):
        """Zeroing a head of the copy leaves what its values' bias gave, which is in b_O there;
        zeroing ours does not.  So the copy's zeroed head is our head replaced by that.
        """
        for label in ("L0.attn.H0", "L1.attn.H1"):
            zeroed = pyres.run(copy.model, copy.tokens, [pyres.scale(label, 0)])
            kept = [self.value_bias_write(plain.model, label)] * len(plain.tokens)
            ours = pyres.run(plain.model, plain.tokens, [pyres.replace(label, kept)])
            plainly = pyres.run(plain.model, plain.tokens, [pyres.scale(label, 0)])
            got = [less_mean(row) for row in ours.logits]
            want = [less_mean(row) for row in zeroed.logits]
            self.assert_close(label, got, want, TOLERANCE)
            if any(self.value_bias_write(plain.model, label)):
                gap = max(abs(a - b) for a, b in zip(less_mean(plainly.logits[-1]), want[-1]))
                self.assertGreater(gap, 1e-3, f"{label}: zeroing is the same with b_V folded")

    def check_lens(self, r):
        """accumulated_resid with the final norm applied by ln_final_scale is the frozen lens."""
        for name, state in r.states:
            for t, got in enumerate(raw_lens_logits(r, name, "frozen")):
                metric = metrics.logit(r.model, t, 5)
                want = (dot(state[t], metric.direction) / r.steps.final_norm.scale[t]
                        + metric.constant)
                self.assert_close(name, got[5], want, TOLERANCE)

    def check(self, root, golden):
        tokens, model = golden["tokens"], self.model(root, golden["config"], golden["weights"])
        plain = pyres.run(model, tokens)
        self.check_run(plain, golden["unprocessed"])
        self.check_streams(plain, golden["unprocessed"])
        self.check_ablations(model, tokens, golden["zero_ablation"])
        self.check_lens(plain)
        for processed in golden["processed"]:
            with self.subTest(**processed["processing"]):
                copy = pyres.run(self.model(root, golden["config"], processed["weights"]), tokens)
                self.check_run(copy, processed)
                self.check_streams(copy, processed)
                self.check_apply_ln(copy, processed)
                self.check_attributions_of_the_copy(copy, processed)
                self.check_attributions_without_folding(plain, processed)
                self.check_folded_copy_is_the_same_model(plain, copy, processed["processing"])
                self.check_zeroed_heads_differ_by_the_value_bias(plain, copy)


class Standing(Hooked):
    def test_gpt2_style(self):
        self.check(FOLDER, read_json(FOLDER, "transformer_lens.json")["gpt2_style"])


@needs_whole_set
class WholeSet(Hooked):
    def test_every_model(self):
        goldens = read_json(WHOLE_SET or "", "transformer_lens.json")
        for name in ("gpt2_style", "rms_gated"):
            with self.subTest(name):
                self.check(WHOLE_SET, goldens[name])


if __name__ == "__main__":
    unittest.main()
