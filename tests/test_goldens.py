"""PyTorch's numbers: every operation, and whole models read from their files.

The numbers are in tests/data.  Where PYRES_GOLDENS names a folder with the whole set, the models
of every family in it and its checkpoints in other layouts are compared as well.
"""
import os
import shutil
import tempfile
import unittest

import pyres
from pyres.files import huggingface
from pyres.linalg import transpose
from pyres.rotary import rescaled_frequencies
from pyres.weights import MLPWeights
from tests.goldens import (DATA, WHOLE_SET, Comparison, ModelComparison, flat, needs_whole_set,
                           read_json)

ACTIVATIONS = {"gelu": (pyres.gelu, pyres.gelu_backward),
               "silu": (pyres.silu, pyres.silu_backward),
               "gelu_tanh": (pyres.gelu_tanh, pyres.gelu_tanh_backward),
               "relu": (pyres.relu, pyres.relu_backward),
               "softmax": (pyres.softmax, pyres.softmax_backward)}


# ---- operations: (y, gradients by input) for a case's inputs, attributes and cotangent ----

def norm(inputs, attrs, d_y, forward, backward, offset=0):
    x = inputs["x"]
    weights = [inputs.get("weight"), inputs.get("bias")][:2 if forward is pyres.layer_norm else 1]
    weights[0] = [w + offset for w in weights[0]] if weights[0] else None
    gradients = backward(d_y, x, *weights, eps=attrs["eps"])
    return forward(x, *weights, eps=attrs["eps"]), dict(zip(("x", "weight", "bias"), gradients))


def elementwise(inputs, attrs, d_y, name):
    forward, backward = ACTIVATIONS[name]
    return forward(inputs["x"]), {"x": backward(d_y, inputs["x"])}


def cross_entropy(inputs, attrs, d_y):
    targets = [None if t == attrs["ignore_index"] else t for t in attrs["targets"]]
    return (pyres.cross_entropy(inputs["logits"], targets),
            {"logits": pyres.cross_entropy_backward(d_y, inputs["logits"], targets)})


def linear(inputs, attrs, d_y, turn=lambda w: w):
    x, w, b = inputs["x"], turn(inputs["weight"]), inputs.get("bias")
    d_x, d_w, d_b = pyres.linear_backward(d_y, x, w, b)
    return pyres.linear(x, w, b), {"x": d_x, "weight": turn(d_w), "bias": d_b}


def attention(inputs, attrs, d_y):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    options = [attrs[key] for key in ("scale", "causal", "window", "softcap")]
    steps = pyres.attend_steps(q, k, v, *options)
    gradients = pyres.attend_backward(d_y, steps, *options)
    return ({"y": steps.mixed, "scores": steps.scores, "pattern": steps.pattern},
            dict(zip("qkv", gradients)))


def rotary(inputs, attrs, d_y, pairing):
    rates = pyres.frequencies(attrs["rotary_dim"], attrs["theta"])
    table = pyres.angles(attrs["positions"], rates)
    return ({"y": [pyres.rotate(head, table, pairing) for head in inputs["x"]], "inv_freq": rates},
            {"x": [pyres.rotate_backward(head, table, pairing) for head in d_y]})


def llama3_rates(inputs, attrs, d_y):
    rates = pyres.frequencies(attrs["rotary_dim"], attrs["theta"])
    return rescaled_frequencies(rates, attrs["factor"], attrs["low_freq_factor"],
                                attrs["high_freq_factor"],
                                attrs["original_max_position_embeddings"]), {}


def mlp(inputs, attrs, d_y):
    names = {"w_up": "w_in", "w_down": "w_out", "b_up": "b_in", "b_down": "b_out"}
    if "w_gate" in inputs:
        names = {}
    fields = [names.get(field, field) for field in MLPWeights.FIELDS]
    w = MLPWeights(*[inputs.get(field) for field in fields])
    steps = pyres.mlp_steps(inputs["x"], w, attrs["activation"])
    d_x, d_w = pyres.mlp_backward(d_y, steps, w, attrs["activation"])
    return steps.out, dict(zip(fields, d_w), x=d_x)


OPERATIONS = {
    "layer_norm": lambda *c: norm(*c, pyres.layer_norm, pyres.layer_norm_backward),
    "rms_norm": lambda *c: norm(*c, pyres.rms_norm, pyres.rms_norm_backward),
    "rms_norm_plus_one": lambda *c: norm(*c, pyres.rms_norm, pyres.rms_norm_backward, offset=1),
    "cross_entropy": cross_entropy,
    "linear": linear,
    "conv1d": lambda *c: linear(*c, turn=transpose),
    "attention": attention,
    "rope_interleaved": lambda *c: rotary(*c, pairing="interleaved"),
    "rope_rotate_half": lambda *c: rotary(*c, pairing="half"),
    "rope_inv_freq_llama3": llama3_rates,
    "swiglu_mlp": mlp, "geglu_mlp": mlp, "geglu_tanh_mlp": mlp, "mlp": mlp,
}
for _name in ACTIVATIONS:
    OPERATIONS[_name] = lambda *c, name=_name: elementwise(*c, name=name)


class OperationTest(Comparison):
    """157 cases in value and gradient, to 1e-12 and a hundred times what float64 itself misses."""

    def test_every_case(self):
        for case in read_json(DATA, "ops.json"):
            with self.subTest(case["name"]):
                self.check(case)

    def check(self, case):
        y, gradients = OPERATIONS[case["op"]](case["inputs"], case["attrs"], case["cotangent"])
        outputs = y if isinstance(y, dict) else {"y": y}
        self.assertEqual(set(outputs), set(case["outputs"]))
        missed = case["float64_abs_err"]
        for name, want in case["outputs"].items():
            self.assert_close(name, outputs[name], want, 1e-12,
                              100 * missed.get(name, missed.get("y", 0)))
        for name, want in case["grads"].items():
            self.assert_close("grad " + name, gradients[name], want, 1e-12,
                              100 * missed.get("grad_" + name, 0))


def shipped():
    """The folders of tests/data that have PyTorch's numbers in full."""
    root = os.path.join(DATA, "models")
    return [os.path.join(root, name) for name in sorted(os.listdir(root))]


class ModelTest(ModelComparison):
    def test_models(self):
        for folder in shipped():
            self.check_folder(folder, os.path.join(folder, "golden.json"))

    def test_older_spelling_of_the_config(self):
        for folder in shipped():
            self.check_older_spelling(folder)

    def check_older_spelling(self, folder):
        with self.subTest(folder), tempfile.TemporaryDirectory() as copy:
            shutil.copy(os.path.join(folder, "config_v4.json"), os.path.join(copy, "config.json"))
            shutil.copy(os.path.join(folder, "model.safetensors"), copy)
            self.assertEqual(pyres.load(copy).config, pyres.load(folder).config)


@needs_whole_set
class WholeSetTest(ModelTest):
    """Every family of the set, its whole numbers, both spellings of its config."""

    def setUp(self):
        root = os.path.join(WHOLE_SET, "models")
        self.folders = [os.path.join(root, name) for name in sorted(os.listdir(root))]

    def test_models(self):
        for folder in self.folders:
            self.check_folder(folder, os.path.join(folder, "golden.json"))

    def test_older_spelling_of_the_config(self):
        for folder in self.folders:
            self.check_older_spelling(folder)

    def test_every_family_is_there(self):
        found = {huggingface.inspect(folder).family.model_type for folder in self.folders}
        self.assertEqual(found, {family.model_type for family in huggingface.FAMILIES})


@needs_whole_set
class CheckpointTest(Comparison):
    """The other layouts and float widths of the same models."""

    def setUp(self):
        self.root = os.path.join(WHOLE_SET, "checkpoints")
        self.goldens = read_json(self.root, "golden.json")

    def test_folders(self):
        names = [name for name in self.goldens if os.path.isdir(os.path.join(self.root, name))]
        self.assertEqual(len(names), 8)
        for name in names:
            model = pyres.load(os.path.join(self.root, name))
            for i, golden in enumerate(self.goldens[name]["runs"]):
                with self.subTest(name, sequence=i):
                    run = pyres.run(model, golden["input_ids"])
                    self.assert_close("logits", run.logits, golden["logits"], 1e-11)
                    loss = pyres.loss_and_gradients(model, golden["input_ids"])[0]
                    self.assert_close("loss", loss, golden["loss"], 1e-11)

    def test_buffers_are_listed(self):
        extra = self.goldens["llama_int64_buffer"]["extra_tensors"]
        info = huggingface.inspect(os.path.join(self.root, "llama_int64_buffer"))
        self.assertEqual(sorted(info.buffers), sorted(extra))
        for name, want in extra.items():
            self.assertEqual((info.tensors.dtype(name), info.tensors.shape(name)),
                             (want["dtype"], tuple(want["shape"])))
            self.assertEqual(list(flat(info.tensors[name])), list(flat(want["values"])))
        info = huggingface.inspect(os.path.join(self.root, "gpt_neox_hub_layout"))
        self.assertEqual(len(info.buffers), 6)

    def test_shards_are_one_model(self):
        one, several = [pyres.load(os.path.join(WHOLE_SET, name))
                        for name in ("models/llama", "checkpoints/llama_sharded")]
        self.assertEqual(one.weights, several.weights)


if __name__ == "__main__":
    unittest.main()
