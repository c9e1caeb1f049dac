"""Families of models: what each description says, against PyTorch's numbers and by laws.

The numbers here are a part of the whole set that test_goldens compares: of each tensor that is
not logits one probe, the sum of cos(k) times its k-th entry.
"""
import ast
import glob
import math
import os
import random
import re
import shutil
import tempfile
import unittest

import pyres
from pyres.config import RotaryConfig
from pyres.files import huggingface, safetensors
from pyres.files.families import FAMILIES, Row
from pyres.files.families.rows import leaves_of, row_shape, tensor_of
from pyres.files.fields import Fields
from pyres.rotary import frequencies, rescaled_frequencies
from pyres.weights import leaf_shapes, leaves
from tests.family_folders import (FULL, SMALL, config_of, family_of, random_tensors, rows_of,
                                  write_folder)
from tests.goldens import DATA, Comparison, flat, read_json

FOLDERS = os.path.join(DATA, "families")
NAMES = [family.model_type for family in FAMILIES]


# ---- PyTorch's numbers ----

def probe(x):
    return math.fsum(math.cos(k) * a for k, a in enumerate(flat(x)))


class GoldenTest(Comparison):
    """Probes to 1e-11, of gradients to 1e-10, both times the size of what was added up."""

    def assert_probe(self, name, x, want, tolerance):
        size = max(1.0, math.fsum(abs(a) for a in flat(x)))
        self.assertTrue(abs(probe(x) - want) <= tolerance * size,
                        f"{name}: got {probe(x)!r}, PyTorch has {want!r}")

    def test_models(self):
        for name in sorted(os.listdir(FOLDERS)):
            with self.subTest(name):
                self.check(os.path.join(FOLDERS, name))

    def check(self, folder):
        golden = read_json(folder, "golden.json")
        model, probes = pyres.load(folder), golden["probes"]
        run = pyres.run(model, golden["input_ids"])
        self.assert_close("logits", run.logits, golden["logits"], 1e-11)
        updates, states, before = dict(run.writers), dict(run.states), "embed"
        self.assert_probe("embed", updates["embed"], probes["embed"], 1e-11)
        self.assert_probe("final_norm", run.normed, probes["final_norm"], 1e-11)
        for i, want in enumerate(probes["blocks"]):
            found = {"resid_pre": states[before], "attn_added": updates[f"L{i}.attn"],
                     "resid_mid": states.get(f"L{i}.attn"), "mlp_added": updates[f"L{i}.mlp"],
                     "resid_post": states[f"L{i}.mlp"]}
            self.assertEqual({key for key in found if found[key] is not None}, set(want))
            for key in want:
                self.assert_probe(f"block {i} {key}", found[key], want[key], 1e-11)
            before = f"L{i}.mlp"
        loss, gradients, stream = pyres.loss_and_gradients(model, golden["input_ids"])
        self.assert_close("loss", loss, golden["loss"], 1e-11)
        by_name = huggingface.file_gradients(huggingface.inspect(folder).rows, gradients)
        self.assertEqual(set(by_name), set(probes["grad_params"]))
        for name, want in probes["grad_params"].items():
            self.assert_probe(name, by_name[name], want, 1e-10)
        ends = ["embed"] + [f"L{i}.mlp" for i in range(len(probes["blocks"]))]
        for state, want in zip(ends, probes["grad_resid_pre"]):
            self.assert_probe(f"gradient at {state}", dict(stream)[state].total, want, 1e-10)

    def test_older_spelling_of_the_config(self):
        for name in sorted(os.listdir(FOLDERS)):
            with self.subTest(name), tempfile.TemporaryDirectory() as copy:
                folder = os.path.join(FOLDERS, name)
                shutil.copy(os.path.join(folder, "config_v4.json"),
                            os.path.join(copy, "config.json"))
                shutil.copy(os.path.join(folder, "model.safetensors"), copy)
                self.assertEqual(pyres.load(copy).config, pyres.load(folder).config)


# ---- layouts ----

class LayoutTest(unittest.TestCase):
    def test_what_is_read_is_written_back(self):
        """OPT's two unused rows come back as zeros."""
        for seed, name in enumerate(NAMES):
            tensors = random_tensors(name, SMALL[name], seed)
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                write_folder(folder, name, SMALL[name], tensors)
                info, weights = huggingface.inspect(folder), pyres.load(folder).weights
                written = huggingface.file_tensors(info.rows, weights)
                for row in info.rows:
                    want = tensors[row.tensor]
                    if row.unused:
                        want = [[0.0] * 8] * row.unused + want[row.unused:]
                    self.assertEqual(written[row.tensor], want, row.tensor)
                self.assertEqual(sum(n for _, n in info.walked),
                                 sum(len(list(flat(tensor))) for _, tensor in leaves(weights)))

    def test_every_weight_is_read_from_one_place(self):
        for name in NAMES:
            with self.subTest(name):
                rows = rows_of(name, SMALL[name])
                read = [leaf for row in rows for leaf in row.leaves]
                self.assertEqual(len(read), len(set(read)))
                self.assertEqual(len(rows), len({row.tensor for row in rows}))

    def test_names_with_and_without_prefix(self):
        for name in NAMES:
            tensors, prefix = random_tensors(name, SMALL[name]), family_of(name).prefix
            bare = {key[len(prefix):] if key.startswith(prefix) else key: tensor
                    for key, tensor in tensors.items()}
            self.assertNotEqual(set(bare), set(tensors))
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                write_folder(folder, name, SMALL[name], tensors)
                weights = pyres.load(folder).weights
                write_folder(folder, name, SMALL[name], bare)
                self.assertEqual(pyres.load(folder).weights, weights)

    def test_the_two_layouts_of_a_square_matrix(self):
        """It would fit either way round."""
        stored, fits, x = [[1, 2], [3, 4]], {"w": ((2, 2),)}, [1, 0]
        for layout, want in (("columns", [1, 2]), ("rows", [1, 3])):
            (_, w), = leaves_of(Row("w", layout, ["w"]), stored, fits)
            self.assertEqual(pyres.matvec(w, x), want)

    def test_rows_there_and_back(self):
        for seed in range(60):
            rng = random.Random(seed)
            group, n_heads = rng.randint(1, 3), rng.randint(1, 3)
            sizes = [group * n_heads] * 3 if seed % 2 else [rng.randint(1, 4) for _ in range(3)]
            fits = {name: ((size, 2),) for name, size in zip("qkv", sizes)}
            row = Row("w", rng.choice(["rows", "columns"]), list("qkv"),
                      group if seed % 2 else None, rng.choice([0, 1]))
            shape = row_shape(row, fits)
            tensor = [[rng.randint(-9, 9) for _ in range(shape[1])] for _ in range(shape[0])]
            with self.subTest(seed=seed):
                found = dict(leaves_of(row, tensor, fits))
                self.assertEqual([len(found[name]) for name in "qkv"], sizes)
                self.assertEqual(tensor_of(row, found), tensor)

    def test_neox_takes_turns_and_falcon_does_not(self):
        """Two heads of width 1: q0 k0 v0 q1 k1 v1, and q0 q1 k v."""
        fits = {"q": ((2,),), "k": ((2,),), "v": ((2,),)}
        row = Row("qkv", "rows", list("qkv"), group=1)
        self.assertEqual(dict(leaves_of(row, [1, 10, 100, 2, 20, 200], fits)),
                         {"q": [1, 2], "k": [10, 20], "v": [100, 200]})
        row, fits = Row("qkv", "rows", list("qkv")), {"q": ((2,),), "k": ((1,),), "v": ((1,),)}
        self.assertEqual(dict(leaves_of(row, [1, 2, 10, 100], fits)),
                         {"q": [1, 2], "k": [10], "v": [100]})
        groups = {name: row.group for name in NAMES for row in rows_of(name, SMALL[name])
                  if len(row.leaves) == 3}
        self.assertEqual(groups, {"gpt2": None, "falcon": None, "gpt_neox": 16})

    def test_the_1_belongs_to_gains_and_not_to_gradients(self):
        stored = random_tensors("gemma", SMALL["gemma"])
        with tempfile.TemporaryDirectory() as folder:
            write_folder(folder, "gemma", SMALL["gemma"], stored)
            model, rows = pyres.load(folder), huggingface.inspect(folder).rows
        gain = model.weights.final_norm.gain
        self.assertEqual(gain, [1 + a for a in stored["model.norm.weight"]])
        self.assertEqual(model.weights.w_embed, stored["model.embed_tokens.weight"])
        loss, gradients, _ = pyres.loss_and_gradients(model, [1, 2, 3])
        self.assertEqual(huggingface.file_gradients(rows, gradients)["model.norm.weight"],
                         gradients.final_norm.gain)

    def test_gains_of_each_head_and_of_all_heads(self):
        for name, sizes in (("qwen3", (6, 6)), ("olmo2", (8, 4))):
            tensors = random_tensors(name, SMALL[name])
            found = [len(tensors[f"model.layers.0.self_attn.{letter}_norm.weight"])
                     for letter in "qk"]
            self.assertEqual(tuple(found), sizes)

    def test_opt_counts_positions_from_row_2(self):
        tensors = random_tensors("opt", SMALL["opt"])
        with tempfile.TemporaryDirectory() as folder:
            write_folder(folder, "opt", SMALL["opt"], tensors)
            table = tensors["model.decoder.embed_positions.weight"]
            self.assertEqual(len(table), 8)
            self.assertEqual(pyres.load(folder).weights.w_pos, table[2:])


# ---- configs ----

class ConfigTest(unittest.TestCase):
    def same(self, name, *changes):
        configs = [config_of(name, dict(SMALL[name], **change)) for change in changes]
        for change, config in zip(changes, configs):
            with self.subTest(name, change=change):
                self.assertEqual(config, configs[0])

    def test_absent_keys_mean_the_familys_defaults(self):
        self.assertEqual(set(SMALL), set(NAMES))
        for name in NAMES:
            self.same(name, {}, FULL[name])

    def test_each_default_counts(self):
        """Another number than the default's makes another config, or is refused."""
        for name in NAMES:
            for key, value in FULL[name].items():
                if type(value) is not float:
                    continue
                with self.subTest(name, key=key):
                    try:
                        other = config_of(name, dict(SMALL[name], **{key: value / 2}))
                    except ValueError as error:
                        self.assertIn(key, str(error))
                    else:
                        self.assertNotEqual(other, config_of(name, SMALL[name]))

    def test_the_spellings_of_rotary_positions(self):
        for name in ("llama", "mistral", "qwen2", "qwen3", "granite", "gemma", "gemma2", "olmo2",
                     "falcon"):
            self.same(name, {"rope_theta": 500.0}, {"rope_theta": 500, "rope_scaling": None},
                      {"rope_parameters": {"rope_theta": 500.0}},
                      {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
                      {"rope_theta": 500.0, "rope_scaling": {"type": "default"}},
                      {"rope_theta": 500.0, "rope_scaling": {"rope_type": "default"}},
                      {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 500.0}})
        self.same("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 500},
                  {"partial_rotary_factor": 0.5, "rope_theta": 500.0},
                  {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 500}})
        self.same("phi", {"partial_rotary_factor": 0.5},
                  {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0}})

    def test_llama3s_rescaling(self):
        numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}
        self.same("llama", {"rope_theta": 500.0, "rope_scaling": dict(numbers, type="llama3")},
                  {"rope_theta": 500.0, "rope_scaling": dict(numbers, rope_type="llama3")},
                  {"rope_parameters": dict(numbers, rope_type="llama3", rope_theta=500.0)})
        rescaled = {"rope_scaling": dict(numbers, type="llama3")}
        config = config_of("llama", dict(SMALL["llama"], **rescaled))
        self.assertEqual(config.blocks[0].attention.rotary, RotaryConfig(
            "half", rescaled_frequencies(frequencies(4), 8.0, 1.0, 4.0, 64)))

    def test_rescaled_frequencies(self):
        """Slow pairs turn factor times slower, fast ones as before, no pair outside of that, and
        the order stays."""
        for seed in range(20):
            rng = random.Random(seed)
            rates = frequencies(2 * rng.randint(1, 40), 10 ** rng.uniform(1, 7))
            factor, n_ctx = rng.uniform(1, 40), rng.choice([16, 1024, 8192])
            low = rng.uniform(0.1, 2)
            high = low + rng.uniform(0.1, 4)
            got = rescaled_frequencies(rates, factor, low, high, n_ctx)
            with self.subTest(seed=seed):
                for rate, new in zip(rates, got):
                    turns = n_ctx * rate / (2 * math.pi)
                    if turns >= high * (1 + 1e-9):
                        self.assertEqual(new, rate)
                    elif turns <= low:
                        self.assertEqual(new, rate / factor)
                    self.assertTrue(rate / factor * (1 - 1e-15) <= new <= rate * (1 + 1e-15))
                self.assertEqual(got, sorted(got, reverse=True))
        for wrong in ((8, 4, 1, 64), (8, 1, 1, 64), (0, 1, 4, 64)):
            with self.assertRaisesRegex(ValueError, "rescaled_frequencies"):
                rescaled_frequencies([1.0], *wrong)

    def test_windows(self):
        def found(name, **change):
            config = config_of(name, dict(SMALL[name], num_hidden_layers=4, **change))
            return [block.attention.window for block in config.blocks]

        full, sliding = "full_attention", "sliding_attention"
        self.assertEqual(found("mistral", sliding_window=3), [3] * 4)
        self.assertEqual(found("mistral", sliding_window=None), [None] * 4)
        self.assertEqual(found("mistral"), [4096] * 4)
        self.assertEqual(found("gemma2", sliding_window=3), [3, None, 3, None])
        self.assertEqual(found("gemma2", sliding_window=3, layer_types=[full] * 3 + [sliding]),
                         [None, None, None, 3])
        for name in ("qwen2", "qwen3"):
            self.assertEqual(found(name, sliding_window=3), [None] * 4)
            self.assertEqual(found(name, sliding_window=3, use_sliding_window=True,
                                   max_window_layers=1), [None, 3, 3, 3])
            self.assertEqual(found(name, sliding_window=3, use_sliding_window=True,
                                   layer_types=[sliding] + [full] * 3), [3, None, None, None])
        self.assertEqual(found("llama", layer_types=[full] * 4), [None] * 4)

    def test_null_is_not_absent(self):
        config = config_of("gemma2", dict(SMALL["gemma2"], attn_logit_softcapping=None,
                                          final_logit_softcapping=None))
        self.assertIsNone(config.logit_soft_cap)
        self.assertIsNone(config.blocks[0].attention.soft_cap)

    def test_gemmas_activation(self):
        def found(name="gemma", **change):
            return config_of(name, dict(SMALL[name], **change)).blocks[0].activation

        says_which = "gelu_pytorch_tanh"
        self.assertEqual(found(), "gelu_tanh")
        self.assertEqual(found(hidden_activation=None, hidden_act=says_which), "gelu_tanh")
        self.assertEqual(found(hidden_activation=says_which, hidden_act="gelu"), "gelu_tanh")
        self.assertEqual(found(hidden_activation="gelu"), "gelu")
        self.assertEqual(found("gemma2", hidden_activation="silu", hidden_act="gelu"), "silu")
        with self.assertRaisesRegex(ValueError, "hidden_act is 'gelu'.*hidden_activation"):
            found(hidden_activation=None, hidden_act="gelu")

    def test_multipliers(self):
        config = config_of("granite", dict(
            SMALL["granite"], embedding_multiplier=12, residual_multiplier=0.25,
            attention_multiplier=0.5, logits_scaling=8))
        self.assertEqual((config.embed_multiplier, config.blocks[0].residual_multiplier,
                          config.blocks[0].attention.multiplier, config.logit_multiplier),
                         (12.0, 0.25, 0.5, 0.125))
        change = {"query_pre_attn_scalar": 16, "hidden_size": 64}
        config = config_of("gemma2", dict(SMALL["gemma2"], **change))
        self.assertEqual((config.embed_multiplier, config.blocks[0].attention.multiplier),
                         (8.0, 0.25))

    def test_values_are_read_and_not_assumed(self):
        def attention(name, **change):
            return config_of(name, dict(SMALL[name], **change)).blocks[0].attention

        def q_proj(**change):
            values = dict(SMALL["llama"], **change)
            row = rows_of("llama", values)[3]
            self.assertEqual(row.tensor, "model.layers.0.self_attn.q_proj.weight")
            return row_shape(row, dict(leaf_shapes(config_of("llama", values))))

        self.assertEqual(q_proj(hidden_size=640, num_attention_heads=4, head_dim=256), (1024, 640))
        self.assertEqual(q_proj(hidden_size=1792, num_attention_heads=24, head_dim=128),
                         (3072, 1792))
        self.assertEqual(attention("llama", hidden_size=640, num_attention_heads=4).d_head, 160)
        norm = config_of("llama", dict(SMALL["llama"], rms_norm_eps=1e-5)).final_norm
        for got in pyres.rms_norm([1e-3, 1e-3], [1, 1], norm.eps):
            self.assertAlmostEqual(got, 0.301511345, delta=1e-9)
        rates = attention("llama", rope_theta=1000000, head_dim=4).rotary.frequencies
        self.assertAlmostEqual(rates[1], 0.001, delta=1e-18)
        self.assertEqual(attention("llama", num_attention_heads=4,
                                   num_key_value_heads=None).n_kv_heads, 4)
        with self.assertRaisesRegex(ValueError, "3, which does not divide hidden_size 8"):
            attention("llama", num_attention_heads=3)

    def test_what_is_refused_by_name(self):
        yarn = {"rope_type": "yarn", "factor": 2.0}
        for names, change in (
                (NAMES, {"quantization_config": {"bits": 4}}),
                (("llama", "mistral", "qwen2", "gemma2", "cohere", "falcon", "phi", "gpt_neox"),
                 {"rope_scaling": yarn}),
                (("llama",), {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}),
                (("llama",), {"rope_scaling": {"type": "linear", "factor": 2.0}}),
                (("llama",), {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
                (("phi",), {"rope_scaling": {"type": "longrope", "factor": 2.0}}),
                (("llama",), {"rope_scaling": {"type": "llama3", "factor": 8.0}}),
                (("gpt2", "opt", "gptj"), {"rope_theta": 500.0}),
                (("llama", "mistral", "gemma"), {"partial_rotary_factor": 0.5}),
                (("phi", "gpt_neox"), {"partial_rotary_factor": 1.5}),
                (("llama", "granite", "gemma", "cohere", "phi", "opt"), {"sliding_window": 4}),
                (("mistral",), {"layer_types": ["full_attention"] * 2}),
                (("qwen2", "gemma2"), {"layer_types": ["chunked_attention"] * 2}),
                (("llama", "qwen2"), {"layer_types": ["sliding_attention"] * 2}),
                (("gemma", "gemma2"), {"use_bidirectional_attention": True}),
                (("llama", "olmo2", "gemma"), {"attn_logit_softcapping": 50.0}),
                (("gemma2",), {"attn_logit_softcapping": 0}),
                (("llama", "qwen2"), {"residual_multiplier": 0.5}),
                (("llama",), {"logit_scale": 0.5}),
                (("granite",), {"logits_scaling": 0}),
                (("cohere",), {"use_qk_norm": True}),
                (("phi",), {"qk_layernorm": True}),
                (("olmo2",), {"clip_qkv": 8.0}),
                (("qwen2", "mistral"), {"attention_bias": True}),
                (("qwen3",), {"mlp_bias": True}),
                (("gpt_neox",), {"use_parallel_residual": 1}),
                (("gpt_neox", "falcon", "opt"), {"num_key_value_heads": 1}),
                (("gpt_neox", "falcon", "gpt2", "gptj"), {"head_dim": 2}),
                (("gpt_neox",), {"rotary_pct": 0.5, "rope_parameters": {
                    "partial_rotary_factor": 0.25}}),
                (("gpt_neox",), {"rotary_emb_base": 500.0, "rope_theta": 10000.0}),
                (("falcon",), {"alibi": True}), (("falcon",), {"multi_query": False}),
                (("falcon",), {"parallel_attn": False}),
                (("falcon",), {"new_decoder_architecture": True}),
                (("falcon",), {"num_ln_in_parallel_attn": 2}),
                (("falcon",), {"apply_residual_connection_post_layernorm": True}),
                (("opt",), {"do_layer_norm_before": False}),
                (("opt",), {"word_embed_proj_dim": 4}),
                (("opt",), {"_remove_final_layer_norm": True}),
                (("opt",), {"layer_norm_elementwise_affine": False}),
                (("gptj",), {"rotary_dim": None}), (("gptj",), {"scale_attn_weights": False}),
                (("gpt2",), {"scale_attn_by_inverse_layer_idx": True}),
                (("gpt2", "opt"), {"activation_function": "quick_gelu"}),
                (NAMES, {"tie_word_embeddings": 1})):
            key = list(change)[0]
            for name in names:
                with self.subTest(name, change=change):
                    with self.assertRaisesRegex(ValueError, "rope_type|" + key):
                        config_of(name, dict(SMALL[name], **change))
        with self.assertRaisesRegex(ValueError, "rope_theta is missing"):
            config_of("cohere", dict(SMALL["cohere"], rope_theta=None))

    def test_true_is_not_1(self):
        for key, value in (("embedding_multiplier", True), ("num_experts", True),
                           ("scale_attn_weights", 1), ("alibi", 0)):
            with self.assertRaisesRegex(ValueError, key):
                Fields({key: value}, "config.json").not_read()


# ---- the page, and the mathematics ----

class PageTest(unittest.TestCase):
    """docs/families.md has a row for every family, and what it says is so."""

    def rows(self):
        page = os.path.join(os.path.dirname(DATA), "..", "docs", "families.md")
        with open(page, encoding="utf-8") as file:
            found = re.findall(r"^\| `(\w+)` \| ([\w ,]+) \| ([\w ,]+) \| ([\w ,]+) \|",
                               file.read(), re.M)
        return {name: rest for name, *rest in found}

    def test_every_family_has_its_row(self):
        self.assertEqual(list(self.rows()), NAMES)

    def test_placement_norm_and_positions(self):
        for name, (placement, norm, positions) in self.rows().items():
            with self.subTest(name):
                config = config_of(name, SMALL[name])
                block, attention = config.blocks[0], config.blocks[0].attention
                self.assertEqual(placement.split(",")[0], block.placement)
                self.assertEqual("one norm" in placement,
                                 block.placement == "parallel" and block.mlp_norm is None)
                self.assertEqual(norm.split(",")[0],
                                 {"layer": "LayerNorm", "rms": "RMSNorm"}[config.final_norm.kind])
                if attention.rotary is None:
                    self.assertEqual(positions, "learned")
                else:
                    part = 2 * len(attention.rotary.frequencies) < attention.d_head
                    self.assertEqual(positions, "rotary, " + attention.rotary.pairing
                                     + (", partial" if part else ""))


class MathematicsTest(unittest.TestCase):
    def test_no_module_of_the_core_knows_a_familys_name(self):
        for path in glob.glob(os.path.join(os.path.dirname(pyres.__file__), "*.py")):
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
            texts = {node.value for node in ast.walk(tree)
                     if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            with self.subTest(os.path.basename(path)):
                self.assertEqual(texts & set(NAMES), set())


if __name__ == "__main__":
    unittest.main()
