"""Hugging Face folders: what is read, and what is refused by name, not filled in or ignored.

Each test takes a folder that is right, from tests/data, and changes one thing.
"""
import contextlib
import json
import os
import shutil
import tempfile
import unittest
from unittest import mock

import pyres
from pyres.files import huggingface, safetensors, shards
from tests.family_folders import quick_write

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
        quick_write(path, kept, dict(dtypes) or "F32")
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
        self.refused("model.layers.0.self_attn.q_norm.weight' is not a weight of llama",
                     tensors={"model.layers.0.self_attn.q_norm.weight": [1.0] * 4})
        self.refused("h.0.attn.c_attn.extra' is not a weight of gpt2", name="gpt2",
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
        with tempfile.TemporaryDirectory() as folder:
            alone = os.path.join(folder, "gpt2.safetensors")
            shutil.copy(os.path.join(MODELS, "gpt2", "model.safetensors"), alone)
            with self.assertRaisesRegex(ValueError, "not a model of pyres.*, so name the folder"):
                pyres.load(alone)

    def test_what_is_no_weight_may_not_go_unseen(self):
        # gpt2's tied table may be there twice; another family's head may not
        self.refused("embed_out.weight' is not a weight", name="llama",
                     tensors={"embed_out.weight": [[0.5] * 16] * 31})

    def test_what_a_folder_holds_instead(self):
        """Each folder lacks its weights, or all it needs, and has another file."""
        for name, remedy in (
                ("pytorch_model.bin", "save it as safetensors"),
                ("consolidated.00.pth", "save it as safetensors"),
                ("tiny.Q4_K_M.gguf", "name the Hugging Face folder"),
                ("adapter_config.json", "merge it"), ("snapshots", "name the folder that is in"),
                ("model.safetensors.incomplete", "fetch it again")):
            for config in (True, False):
                with self.subTest(name, config=config), changed("llama") as folder:
                    os.remove(os.path.join(folder, "model.safetensors"))
                    if not config:
                        os.remove(os.path.join(folder, "config.json"))
                    open(os.path.join(folder, name), "wb").close()
                    lacks = "model.safetensors" if config else "config.json"
                    with self.assertRaisesRegex(FileNotFoundError,
                                                f"has no {lacks}, but '{name}': .*{remedy}"):
                        pyres.load(folder)

    def test_weights_by_another_name(self):
        for name, remedy in (("model-00001-of-00002.safetensors", "fetch model.*index.json, too"),
                             ("weights.safetensors", "rename it")):
            with self.subTest(name), changed("llama") as folder:
                os.rename(os.path.join(folder, "model.safetensors"), os.path.join(folder, name))
                with self.assertRaisesRegex(FileNotFoundError, f"but '{name}': .*{remedy}"):
                    pyres.load(folder)
                os.remove(os.path.join(folder, "config.json"))
                with self.assertRaisesRegex(FileNotFoundError, "has no config.json; a model's"):
                    pyres.load(folder)

    def test_a_key_draws_nothing_on_a_terminal(self):
        for key in ("a\nb\x1b[31m", "a" * 5000, "\u202e"):
            rope = {"rope_type": "default", "rope_theta": 1e4, key: 1}
            with changed("llama", config={"rope_parameters": rope}) as folder:
                with self.assertRaisesRegex(ValueError, "expected no such key") as caught:
                    pyres.load(folder)
            self.assertTrue(str(caught.exception).isprintable())
            self.assertLess(len(str(caught.exception)), 400)


@contextlib.contextmanager
def sharded(change=lambda weight_map: weight_map, extra=()):
    """The llama of tests/data in two files, with a change to its weight_map; `extra` are further
    tensors in the second file."""
    stored = safetensors.read(os.path.join(MODELS, "llama", "model.safetensors"))
    names = list(stored)
    halves = {"model-00001-of-00002.safetensors": names[:9],
              "model-00002-of-00002.safetensors": names[9:]}
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "llama")
        os.mkdir(folder)
        shutil.copy(os.path.join(MODELS, "llama", "config.json"), folder)
        for file_name, part in halves.items():
            tensors = {name: stored[name] for name in part}
            if file_name == max(halves):
                tensors.update(extra)
                # what a path that leaves the folder would find
                quick_write(os.path.join(parent, "outside.safetensors"), tensors)
            quick_write(os.path.join(folder, file_name), tensors)
        weight_map = {name: file_name for file_name, part in halves.items() for name in part}
        with open(os.path.join(folder, shards.INDEX), "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": -1}, "weight_map": change(weight_map)}, file)
        yield folder


class Sharded(unittest.TestCase):
    SECOND = "model-00002-of-00002.safetensors"

    def test_several_files_are_one_model(self):
        with sharded() as folder:
            one = pyres.load(os.path.join(MODELS, "llama"))
            self.assertEqual(pyres.load(folder).weights, one.weights)
            info = huggingface.inspect(folder)
            self.assertEqual([os.path.basename(path) for path in info.files],
                             ["model-00001-of-00002.safetensors", self.SECOND])
            tensors = info.tensors
            self.assertEqual(len(tensors), len(info.rows))
            self.assertEqual(tensors.dtype("model.norm.weight"), "F32")
            self.assertIn(shards.INDEX, repr(tensors))
            with self.assertRaisesRegex(KeyError, "no tensor 'u'"):
                tensors["u"]

    def test_a_whole_file_goes_before_an_index(self):
        with sharded(lambda weight_map: {}) as folder:
            shutil.copy(os.path.join(MODELS, "llama", "model.safetensors"), folder)
            self.assertEqual(len(huggingface.inspect(folder).files), 1)

    def refused(self, error, words, change=lambda weight_map: weight_map, **more):
        with sharded(change, **more) as folder:
            with self.assertRaisesRegex(error, words) as caught:
                pyres.load(folder)
            self.assertNotIn("\n", str(caught.exception))
            return str(caught.exception)

    def moved(self, to):
        """The second file under another name."""
        return lambda weight_map: {name: to if file_name == self.SECOND else file_name
                                   for name, file_name in weight_map.items()}

    def test_a_file_is_named_and_never_a_path(self):
        for name in ("../outside.safetensors", "./../outside.safetensors", "/etc/passwd",
                     "/nowhere/w.safetensors", "./" + self.SECOND, "a/b.safetensors", "", ".",
                     "..", self.SECOND + "\0", self.SECOND + "\0.safetensors", "..\\w.safetensors",
                     "C:w.safetensors", "w.bin", "config.json", 1, None, True, ["w.safetensors"]):
            with self.subTest(name=name):
                self.refused(ValueError, "weight_map names the file", self.moved(name))

    def test_index_and_files_must_agree(self):
        self.refused(FileNotFoundError, "'no.safetensors' is not there",
                     self.moved("no.safetensors"))
        self.refused(ValueError, "'lm_head.weight' is not in 'model-00002",
                     lambda weight_map: dict(weight_map, **{"lm_head.weight": self.SECOND}))
        self.refused(ValueError, "'lm_head.weight' is in the file, and weight_map does not",
                     lambda weight_map: {name: file_name for name, file_name in weight_map.items()
                                         if name != "lm_head.weight"})
        self.refused(ValueError, "'more' is not in",
                     lambda weight_map: dict(weight_map, more=self.SECOND))
        self.refused(ValueError, "'more' is in the file", extra={"more": [1.0]})
        self.refused(ValueError, "'lm_head.weight' is in the file",
                     extra={"lm_head.weight": [[0.5] * 16] * 31})

    def test_what_is_no_weight_map(self):
        for wrong in ({}, [], "w", 1, None, [["w", self.SECOND]]):
            self.refused(ValueError, "weight_map is", lambda weight_map: wrong)

    def test_an_index_is_json_of_bounded_size(self):
        for data in (b"", b"weight_map:", b"[]", b'{"weight_map": {"w": "a", "w": "b"}}',
                     b"[" * 100_000, b" " * (shards.MAX_INDEX_BYTES + 1)):
            with self.subTest(data=data[:20]), sharded() as folder:
                with open(os.path.join(folder, shards.INDEX), "wb") as file:
                    file.write(data)
                with self.assertRaisesRegex(ValueError, "index.json"):
                    pyres.load(folder)

    def test_a_part_of_a_folder_is_no_model(self):
        with sharded() as folder:
            for name in (self.SECOND, shards.INDEX):
                with self.assertRaisesRegex(ValueError, "name the folder"):
                    pyres.load(os.path.join(folder, name))


class Progress(unittest.TestCase):
    def test_every_byte_is_counted_once(self):
        with sharded() as folder:
            for source in (folder, os.path.join(MODELS, "gpt2")):
                calls = []
                pyres.load(source, progress=lambda done, total: calls.append((done, total)))
                tensors = huggingface.inspect(source).tensors
                n_bytes = sum(tensors.entry(name).end - tensors.entry(name).begin
                              for name in tensors)
                self.assertEqual(calls[-1], (n_bytes, n_bytes))
                self.assertEqual(len(calls), len(tensors))
                self.assertEqual(calls, sorted(calls))


class Memory(unittest.TestCase):
    def test_no_tensor_is_held_twice(self):
        """The lists of a model take 32 bytes a number or more; beside them is one row at most."""
        try:
            import tracemalloc
        except ImportError:
            self.skipTest("tracemalloc is not here")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "big.safetensors")
            quick_write(path, {"w": [[0.5] * 100] * 300})
            tensors = safetensors.read(path)
            for mapped in (safetensors.mmap, None):
                with self.subTest(mapped=mapped is not None), \
                        mock.patch.object(safetensors, "mmap", mapped):
                    tracemalloc.start()
                    tensor = tensors["w"]
                    kept, peak = tracemalloc.get_traced_memory()
                    tracemalloc.stop()
                    self.assertEqual(len(tensor), 300)
                    beside = 12_000 if mapped else 132_000          # without a map, the bytes too
                    self.assertLess(peak - kept, beside)


if __name__ == "__main__":
    unittest.main()
