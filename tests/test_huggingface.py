"""Hugging Face folders: what is read, and what is refused by name, not filled in or ignored.

Each test takes a folder that is right, from tests/data, and changes one thing.
"""
import contextlib
import json
import os
import tempfile
import unittest

import pyres
from pyres.files import huggingface, safetensors

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "models")


@contextlib.contextmanager
def changed(name, config=(), tensors=(), dtypes=(), without=(), rename=lambda name: name):
    """A copy of a folder in which config keys and tensors are set, left out or renamed."""
    with open(os.path.join(MODELS, name, "config.json"), encoding="utf-8") as file:
        values = dict(json.load(file), **dict(config))
    stored = safetensors.read(os.path.join(MODELS, name, "model.safetensors"))
    kept = {rename(key): stored[key] for key in stored if key not in without}
    kept.update(tensors)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in values.items() if key not in without}, file)
        path = os.path.join(folder, "model.safetensors")
        safetensors.write(path, kept, dtype=dict(dtypes) or "F32")
        yield folder


def logits(folder, tokens=(5, 6, 5)):
    return pyres.run(pyres.load(folder), list(tokens)).logits


class Reading(unittest.TestCase):
    def test_names_with_and_without_prefix(self):
        for name, prefix in (("gpt2", "transformer."), ("llama", "model.")):
            with self.subTest(name):
                with changed(name, rename=lambda key: key.replace(prefix, "", 1)) as folder:
                    self.assertEqual(logits(folder), logits(os.path.join(MODELS, name)))

    def test_conv1d_is_turned_over_and_linear_is_not(self):
        # the square c_proj [d][d] would fit either way round
        stored = safetensors.read(os.path.join(MODELS, "gpt2", "model.safetensors"))
        w_o = pyres.load(os.path.join(MODELS, "gpt2")).weights.blocks[0].attn.w_o
        self.assertEqual(pyres.transpose(w_o), stored["transformer.h.0.attn.c_proj.weight"])
        stored = safetensors.read(os.path.join(MODELS, "llama", "model.safetensors"))
        w_o = pyres.load(os.path.join(MODELS, "llama")).weights.blocks[0].attn.w_o
        self.assertEqual(w_o, stored["model.layers.0.self_attn.o_proj.weight"])

    def test_file_tensors_is_the_way_back(self):
        for name in ("gpt2", "llama", "llama_tied"):
            with self.subTest(name):
                info = huggingface.inspect(os.path.join(MODELS, name))
                weights = pyres.load(os.path.join(MODELS, name)).weights
                self.assertEqual(huggingface.file_tensors(info.rows, weights), dict(info.tensors))

    def test_buffers_are_skipped_and_listed(self):
        buffers = {"transformer.h.0.attn.bias": [[[[1.0, 0.0], [1.0, 1.0]]]],
                   "transformer.h.1.attn.masked_bias": -1e4, "counter": 7}
        with changed("gpt2", tensors=buffers, dtypes={"counter": "I64"}) as folder:
            self.assertEqual(logits(folder), logits(os.path.join(MODELS, "gpt2")))
            self.assertEqual(sorted(huggingface.inspect(folder).buffers), sorted(buffers))

    def test_values_of_the_config_are_used(self):
        plain = logits(os.path.join(MODELS, "llama"))
        for change in ({"rms_norm_eps": 0.5}, {"rope_parameters": {"rope_theta": 7.0}},
                       {"hidden_act": "gelu"}):
            with self.subTest(change):
                with changed("llama", config=change) as folder:
                    self.assertNotEqual(logits(folder), plain)

    def test_absent_values_follow_from_others(self):
        # head width 4 is hidden_size / num_attention_heads, and null key/value heads are all heads
        with changed("llama", without=("head_dim",)) as folder:
            self.assertEqual(logits(folder), logits(os.path.join(MODELS, "llama")))
        heads = {"num_key_value_heads": None}
        with changed("llama", config=heads) as folder:
            both_shapes = r"k_proj.weight has shape \(8, 16\), .* \(16, 16\)"
            with self.assertRaisesRegex(ValueError, both_shapes):
                pyres.load(folder)

    def test_unknown_options_are_listed(self):
        with changed("llama", config={"some_future_option": {"a": [1]}}) as folder:
            self.assertIn("some_future_option", huggingface.inspect(folder).keys_not_read)


class TiedHead(unittest.TestCase):
    """A head may be absent because it is tied, present although it is, or wrongly absent."""

    def test_absent_and_tied(self):
        self.assertIsNone(pyres.load(os.path.join(MODELS, "llama_tied")).weights.w_unembed)

    def test_absent_and_untied(self):
        with changed("llama", without=("lm_head.weight",)) as folder:
            with self.assertRaisesRegex(ValueError, "lm_head.weight is missing"):
                pyres.load(folder)

    def test_present_and_equal(self):
        table = safetensors.read(os.path.join(MODELS, "llama_tied", "model.safetensors"))
        copy = {"lm_head.weight": table["model.embed_tokens.weight"]}
        with changed("llama_tied", tensors=copy) as folder:
            self.assertEqual(logits(folder), logits(os.path.join(MODELS, "llama_tied")))

    def test_present_and_different(self):
        table = safetensors.read(os.path.join(MODELS, "llama_tied", "model.safetensors"))
        other = [[a + 1 for a in row] for row in table["model.embed_tokens.weight"]]
        with changed("llama_tied", tensors={"lm_head.weight": other}) as folder:
            with self.assertRaisesRegex(ValueError, "differs from the embedding"):
                pyres.load(folder)

    def test_present_and_untied(self):
        self.assertIsNotNone(pyres.load(os.path.join(MODELS, "llama")).weights.w_unembed)


class Refusals(unittest.TestCase):
    """Every refusal names the tensor or the key."""

    def refused(self, word, name="llama", **change):
        with self.subTest(word):
            with changed(name, **change) as folder:
                with self.assertRaises(ValueError) as caught:
                    pyres.load(folder)
                self.assertIn(word, str(caught.exception))
                self.assertNotIn("\n", str(caught.exception))

    def test_tensors(self):
        norm = "model.norm.weight"
        self.refused(norm + " is missing", without=(norm,))
        self.refused(norm + " has shape (1, 16)", tensors={norm: [[1.0] * 16]})
        self.refused("model.layers.0.mlp.up_proj.weight has shape (16, 24)",
                     tensors={"model.layers.0.mlp.up_proj.weight": [[0.5] * 24] * 16})
        self.refused("model.layers.0.self_attn.q_norm.weight is not a weight of llama",
                     tensors={"model.layers.0.self_attn.q_norm.weight": [1.0] * 4})
        self.refused("h.0.attn.c_attn.extra is not a weight of gpt2", name="gpt2",
                     tensors={"transformer.h.0.attn.c_attn.extra": [1.0]})
        self.refused(norm + " holds I8", tensors={norm: [1] * 16}, dtypes={norm: "I8"})

    def test_config_values_that_would_change_numbers(self):
        for change in ({"quantization_config": {"bits": 4}}, {"sliding_window": 4},
                       {"attn_logit_softcapping": 50.0}, {"residual_multiplier": 0.5},
                       {"partial_rotary_factor": 0.5}, {"use_qk_norm": True}, {"num_experts": 8},
                       {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
                       {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "odd": 1}},
                       {"hidden_act": "quick_gelu"}, {"model_type": "bert"}):
            self.refused(list(change)[0], config=change)
        for change in ({"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True},
                       {"add_cross_attention": True}):
            self.refused(list(change)[0], name="gpt2", config=change)

    def test_config_values_of_the_wrong_kind(self):
        for change in ({"hidden_size": "16"}, {"num_hidden_layers": True},
                       {"num_hidden_layers": 10 ** 9}, {"hidden_size": 2 ** 40},
                       {"num_attention_heads": 0}, {"rms_norm_eps": -1.0},
                       {"rms_norm_eps": "1e-6"}, {"attention_bias": 1}, {"rope_theta": 0}):
            self.refused(list(change)[0], config=change)
        self.refused("hidden_size is missing", without=("hidden_size",))
        self.refused("does not divide", config={"num_attention_heads": 3}, without=("head_dim",))
        self.refused("4 query heads cannot share 3", config={"num_key_value_heads": 3})

    def test_what_is_no_folder(self):
        with self.assertRaisesRegex(FileNotFoundError, "name a Hugging Face folder"):
            pyres.load("no/such/folder")
        with self.assertRaisesRegex(ValueError, "name the folder"):
            pyres.load(os.path.join(MODELS, "gpt2", "config.json"))

    def test_weights_in_several_files(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(MODELS, "llama", "config.json"), "rb") as file:
                config = file.read()
            for name, data in (("config.json", config), ("model.safetensors.index.json", b"{}")):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            with self.assertRaisesRegex(ValueError, "several files"):
                pyres.load(folder)


if __name__ == "__main__":
    unittest.main()
