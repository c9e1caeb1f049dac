"""What the tests against PyTorch's numbers share: reading them, and comparing with them.

Numbers come from tests/data, with their origin in its README, and from the folder that
PYRES_GOLDENS names, which holds the whole set.

    read_json, flat, outline    files and nested lists
    Comparison                  two tensors, entry by entry
    ModelComparison             a model's states, updates, logits, loss, and every gradient
"""
import json
import os
import unittest

import pyres
from pyres.files import huggingface

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
WHOLE_SET = os.environ.get("PYRES_GOLDENS")

needs_whole_set = unittest.skipUnless(
    WHOLE_SET, "PYRES_GOLDENS is not set: the whole set of PyTorch numbers is not here")


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


def flat(x):
    if isinstance(x, list):
        for part in x:
            yield from flat(part)
    else:
        yield x


def outline(x):
    """The nesting of x with its numbers left out: what two tensors of one shape share."""
    return [outline(part) for part in x] if isinstance(x, list) else x is None


class Comparison(unittest.TestCase):
    def assert_close(self, name, got, want, tolerance, absolute=0.0):
        """|got - want| <= tolerance * max(1, max|want|) + absolute, entry by entry."""
        self.assertEqual(outline(got), outline(want), name)
        pairs = [(g, w) for g, w in zip(flat(got), flat(want)) if w is not None]
        bound = tolerance * max([1.0] + [abs(w) for _, w in pairs]) + absolute
        for g, w in pairs:
            if not abs(g - w) <= bound:
                self.fail(f"{name}: got {g!r}, PyTorch has {w!r}, tolerance {bound:.1e}")


class ModelComparison(Comparison):
    """States, updates, logits and loss to 1e-11, the gradient of every parameter to 1e-10."""

    def check_folder(self, folder, golden_path):
        model, rows = pyres.load(folder), huggingface.inspect(folder).rows
        for i, golden in enumerate(read_json(golden_path)["runs"]):
            with self.subTest(folder, sequence=i):
                self.check_forward(model, golden)
                self.check_backward(model, rows, golden)

    def check_forward(self, model, golden):
        run = pyres.run(model, golden["input_ids"])
        updates, states = dict(run.writers), dict(run.states)
        self.assert_close("embed", updates["embed"], golden["embed"], 1e-11)
        before = "embed"
        for i, block in enumerate(golden["blocks"]):
            found = {"resid_pre": states[before], "attn_added": updates[f"L{i}.attn"],
                     "mlp_added": updates[f"L{i}.mlp"], "resid_post": states[f"L{i}.mlp"]}
            if f"L{i}.attn" in states:              # a parallel block has no state between
                found["resid_mid"] = states[f"L{i}.attn"]
            self.assertEqual(set(found), set(block))
            for name, got in found.items():
                self.assert_close(f"block {i} {name}", got, block[name], 1e-11)
            before = f"L{i}.mlp"
        self.assert_close("final_norm", run.normed, golden["final_norm"], 1e-11)
        self.assert_close("logits", run.logits, golden["logits"], 1e-11)
        self.assertTrue(pyres.sum_check(run).ok)

    def check_backward(self, model, rows, golden):
        loss, gradients, stream = pyres.loss_and_gradients(model, golden["input_ids"])
        self.assert_close("loss", loss, golden["loss"], 1e-11)
        by_file_name = huggingface.file_gradients(rows, gradients)
        self.assertEqual(set(by_file_name), set(golden["grad_params"]))
        for name, want in golden["grad_params"].items():
            self.assert_close(name, by_file_name[name], want, 1e-10)
        of_state = dict(stream)
        before = ["embed"] + [f"L{i}.mlp" for i in range(len(golden["grad_resid_pre"]) - 1)]
        for state, want in zip(before, golden["grad_resid_pre"]):
            self.assert_close(f"gradient at {state}", of_state[state].total, want, 1e-10)
