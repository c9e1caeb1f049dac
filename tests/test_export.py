"""Models as Hugging Face folders: the way there and back, what is refused, and nothing half done.

transformers itself wrote the folders in tests/data/models; exporting a model that was read from
one must give its tensors back bit for bit, and its config's values.
"""
import errno
import json
import os
import shutil
import struct
import tempfile
import unittest
from fractions import Fraction
from functools import lru_cache
from unittest import mock

import pyres
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.files import export, fitting, native, safetensors, tokenizers
from pyres.files.characters import Characters
from pyres.model import make_model
from pyres.rng import Generator
from pyres.rotary import frequencies
from pyres.weights import map_leaves, random_weights
from tests.laws import Draw, assert_close, difference, model_weights
from tests.test_cli import here

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "models")
NAMES = ("gpt2", "llama", "llama_tied")


# ---- random models ----

def in_dtype(weights, dtype):
    """The weights as a file of that dtype gives them back."""
    def stored(tensor):
        shape, numbers = safetensors.flatten(tensor)
        return safetensors.nest(safetensors.decode(safetensors.encode(numbers, dtype), dtype),
                                shape)
    return map_leaves(stored, weights)


def in_float32(weights):
    return in_dtype(weights, "F32")


def changed_block(config, **fields):
    """A config with fields of every block, or of its attention, set."""
    def changed(block):
        inside = {name: fields[name] for name in fields if name in block.attention.FIELDS}
        own = {name: fields[name] for name in fields if name in block.FIELDS}
        return block._replace(attention=block.attention._replace(**inside), **own)
    return config._replace(blocks=[changed(block) for block in config.blocks])


def pick(draw, options):
    return options[draw.below(len(options))]


@lru_cache(maxsize=None)
def random_model(seed, kind, pairing="half"):
    """A GPT-2 or a Llama of random sizes, with every weight drawn, in float32."""
    draw, d_head = Generator(seed), (2, 4, 6)[seed % 3]
    n_kv_heads, group = 1 + draw.below(2), 1 + draw.below(2) if kind == "llama" else 1
    n_heads = n_kv_heads * group
    eps, tied, biases = pick(draw, (1e-5, 1e-6, 0.125)), draw.below(2) == 0, draw.below(2) == 0
    activation = pick(draw, ("relu", "gelu", "gelu_tanh", "silu"))
    if kind == "llama":
        rates = frequencies(d_head, pick(draw, (10000.0, 500000.0, 1e6, 7.25)))
        norm, attention = norm_config("rms", eps), attention_config(
            n_heads, d_head, n_kv_heads, rotary=RotaryConfig(pairing, rates))
        d_model = pick(draw, (n_heads * d_head, 2 * n_heads))   # a head's width is its own
    else:
        norm, attention = norm_config("layer", eps), attention_config(n_heads, d_head)
        d_model, biases = n_heads * d_head, True
    config = model_config(d_model, 2 + draw.below(9), 8, 1 + draw.below(3),
                          block_config(1 + draw.below(9), attention, norm=norm,
                                       activation=activation), final_norm=norm)
    weights = model_weights(Draw(seed, size=0.5), config, tied, kind == "gpt2",
                            unembed_bias=False, biases=biases, gated=kind == "llama")
    return make_model(config, in_float32(weights), kind)


def logits(model, seed):
    draw = Generator(seed)
    return pyres.run(model, [draw.below(model.config.d_vocab) for _ in range(6)]).logits


def files_in(folder):
    """A dict of every file's bytes, by its path in the folder."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


class Folder(unittest.TestCase):
    """A folder for what a test writes: self.parent, and in it self.out."""

    def setUp(self):
        self.parent = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.parent)
        self.out = os.path.join(self.parent, "out")
        forced = mock.patch.object(os, "fsync")         # half of the time, for nothing asked here
        forced.start()
        self.addCleanup(forced.stop)

    def exported(self, model, dtype="F32", **named):
        """The model in self.out, written anew."""
        shutil.rmtree(self.out, ignore_errors=True)
        export.export_folder(model, self.out, dtype, **named)
        self.assertEqual(os.listdir(self.parent), ["out"])
        return pyres.load(self.out)


# ---- there and back ----

class ThereAndBack(Folder):
    def test_the_same_model_comes_back(self):
        for kind in ("gpt2", "llama"):
            for seed in range(6):
                with self.subTest(kind, seed=seed):
                    model = random_model(seed, kind)
                    again = self.exported(model)
                    self.assertEqual(again.config, model.config)
                    self.assertEqual(again.weights, model.weights)
                    self.assertEqual(logits(again, seed), logits(model, seed))

    def test_absent_gains_and_biases_change_no_number(self):
        """Some of the biases, where the class has all of them or none; norms without gains."""
        for kind, attn, mlp in (("gpt2", ("b_q", "b_o"), ("b_up",)),
                                ("llama", ("b_o",), ("b_gate", "b_up"))):
            for seed in range(6):
                with self.subTest(kind, seed=seed):
                    model = random_model(seed, kind)
                    w = model.weights
                    blocks = [block._replace(
                        attn=block.attn._replace(**dict.fromkeys(attn)),
                        mlp=block.mlp._replace(**dict.fromkeys(mlp)),
                        mlp_norm=block.mlp_norm._replace(gain=None, bias=None))
                        for block in w.blocks]
                    without = model._replace(weights=w._replace(blocks=blocks))
                    self.assertEqual(logits(self.exported(without), seed), logits(without, seed))

    def test_interleaved_channels(self):
        """The rows of queries and keys change places; without that the logits are others."""
        for seed in range(6):
            with self.subTest(seed=seed):
                model = random_model(seed, "llama", "interleaved")
                again, want = self.exported(model), logits(model, seed)
                self.assertEqual(again.config.blocks[0].attention.rotary.pairing, "half")
                # the same products, added up in another order
                assert_close(self, logits(again, seed), want, seed, "logits")
                if model.config.blocks[0].attention.d_head > 2:
                    half = RotaryConfig("half", model.config.blocks[0].attention.rotary[1])
                    unmoved = model._replace(config=changed_block(model.config, rotary=half))
                    self.assertGreater(difference(logits(unmoved, seed), want), 1e-6)

    def test_other_dtypes(self):
        for dtype in ("F64", "F16", "BF16"):
            for kind in ("gpt2", "llama"):
                with self.subTest(dtype=dtype, kind=kind):
                    model = random_model(3, kind)
                    again = self.exported(model, dtype)
                    self.assertEqual(again.weights, in_dtype(model.weights, dtype))
                    stored = safetensors.read(os.path.join(self.out, "model.safetensors"))
                    self.assertEqual({stored.dtype(name) for name in stored}, {dtype})
                    changed = fitting.n_rounded(model.weights, dtype)
                    self.assertEqual(changed == 0, again.weights == model.weights)

    def test_no_argument_is_changed(self):
        model = random_model(5, "llama", "interleaved")
        before = repr(model)
        self.exported(model)
        self.assertEqual(repr(model), before)


class AgainstTransformers(Folder):
    """What transformers wrote comes back as it was."""

    def test_tensors_and_config(self):
        for name in NAMES:
            with self.subTest(name):
                folder = os.path.join(MODELS, name)
                self.exported(pyres.load(folder), source=folder)
                got, want = [safetensors.read(os.path.join(path, "model.safetensors"))
                             for path in (self.out, folder)]
                self.assertEqual(set(got), set(want))
                for tensor in want:
                    self.assertEqual((got.dtype(tensor), got[tensor]),
                                     (want.dtype(tensor), want[tensor]), tensor)
                self.check_config(*[self.config_in(path) for path in (self.out, folder)])

    def config_in(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return json.load(file)

    def check_config(self, got, want):
        """Every size and number that transformers wrote, in its spelling or in the older one."""
        want["torch_dtype"] = want.pop("dtype")
        if "rope_parameters" in want:
            want["rope_theta"] = want.pop("rope_parameters")["rope_theta"]
        if "n_inner" in want:                       # null is four times n_embd
            want["n_inner"] = 4 * want["n_embd"]
        self.assertEqual({key: want[key] for key in got}, got)
        # what is left out has the value that transformers takes for granted, or is no mathematics
        left_out = {"attention_dropout", "initializer_range", "pretraining_tp", "use_cache",
                    "transformers_version", "add_cross_attention", "attn_pdrop", "embd_pdrop",
                    "resid_pdrop", "reorder_and_upcast_attn", "scale_attn_weights",
                    "scale_attn_by_inverse_layer_idx"}
        rest = {key for key in want if key not in got and not key.startswith("summary_")}
        self.assertLessEqual(rest, left_out)

    def test_alignment_and_format(self):
        for kind in ("gpt2", "llama"):
            self.exported(random_model(2, kind))
            data = files_in(self.out)["model.safetensors"]
            length, = struct.unpack("<Q", data[:8])
            self.assertEqual((8 + length) % 8, 0)
            self.assertEqual(json.loads(data[8:8 + length])["__metadata__"], {"format": "pt"})

    def test_token_ids_and_tokenizer_of_the_folder_it_came_from(self):
        folder = os.path.join(self.parent, "from")
        shutil.copytree(os.path.join(MODELS, "llama"), folder)
        copied = ("tokenizer.json", "special_tokens_map.json", "tokenizer.model")
        for name in copied + ("generation_config.json", "optimizer.pt"):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(f'"{name}"')
        model = random_model(1, "llama")
        values = export.export_folder(model, self.out, source=folder)
        self.assertEqual((values["bos_token_id"], values["eos_token_id"]), (1, 2))
        written = files_in(self.out)
        self.assertEqual({name: data.decode() for name, data in written.items()
                          if name not in ("README.md", "config.json", "model.safetensors")},
                         {name: f'"{name}"' for name in copied})
        self.assertIn(b"AutoTokenizer.from_pretrained", written["README.md"])
        values = export.export_folder(model, self.out, force=True)
        self.assertEqual((values["bos_token_id"], values["eos_token_id"]), (None, None))
        self.assertNotIn("tokenizer.json", files_in(self.out))
        self.assertIn(b"No tokenizer", files_in(self.out)["README.md"])

    def test_a_tokenizer_of_characters(self):
        model = random_model(1, "gpt2")
        tokens = ["<bos>", "a", "é", "\n", " ", '"', "b", "c", "d", "e", "f", "g"]
        model = model._replace(tokenizer=Characters(tokens[:model.config.d_vocab], bos=0))
        values = export.export_folder(model, self.out)
        self.assertEqual(values["bos_token_id"], 0)
        files = files_in(self.out)
        self.assertEqual(sorted(files), ["README.md", "config.json", "model.safetensors",
                                         "tokenizer.json", "tokenizer_config.json"])
        told = json.loads(files["tokenizer_config.json"])
        self.assertEqual((told["bos_token"], told["tokenizer_class"]),
                         ("<bos>", "PreTrainedTokenizerFast"))
        tokenizer = tokenizers.load(self.out)
        for text in ("aé\n a", "", '"', "<bos>a"):
            if set(text) <= set(model.tokenizer.tokens):
                ids = model.tokenizer.encode(text)
                self.assertEqual((tokenizer.encode(text), tokenizer.decode(ids)),
                                 (ids, model.tokenizer.decode(ids)))


# ---- fitting ----

class Theta(unittest.TestCase):
    def test_theta_comes_back(self):
        thetas = [10000.0, 500000.0, 1e6, 5e6, 8e6, 160000.0, 1.0, 7.25, 0.5, 10000.7, 1234567.0]
        for theta in thetas:
            for d_rotary in (4, 6, 16, 64, 96, 128, 256):
                with self.subTest(theta=theta, d_rotary=d_rotary):
                    self.assertEqual(fitting.theta_of(frequencies(d_rotary, theta)), theta)

    def test_what_is_no_theta(self):
        rates = frequencies(8, 10000.0)
        for i in range(4):
            for factor in (0.5, 1 + 2.0 ** -52, 0.0, -1.0, float("nan"), float("inf"), 1e-200):
                bent = rates[:i] + [rates[i] * factor] + rates[i + 1:]
                with self.subTest(i=i, factor=factor):
                    theta = fitting.theta_of(bent)
                    self.assertTrue(theta is None or frequencies(8, theta) == bent)
        self.assertIsNone(fitting.theta_of([1.0, 0.05, 0.01, 0.001]))


class Pairing(unittest.TestCase):
    def test_there_and_back_is_the_same(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                model = random_model(seed, "llama")
                turned = fitting.with_pairing(model, "interleaved")
                self.assertEqual(fitting.with_pairing(turned, "half"), model)
                self.assertIs(type(turned.weights), type(model.weights))
                assert_close(self, logits(turned, seed), logits(model, seed), seed, "logits")

    def test_a_part_of_the_channels_and_norms_on_queries_and_keys(self):
        """Channels beyond d_rotary stay; gains go with their channels, of a head or of all."""
        for gains in ("head", "whole"):
            for seed in range(6):
                with self.subTest(gains=gains, seed=seed):
                    attention = attention_config(4, 6, 2, qk_norm=norm_config("rms"),
                                                 rotary=RotaryConfig("half", [1.0, 0.25]))
                    config = model_config(5, 7, 8, 2, block_config(3, attention))
                    model = make_model(config, model_weights(Draw(seed), config, gains=gains))
                    turned = fitting.with_pairing(model, "interleaved")
                    rotary = turned.config.blocks[1].attention.rotary
                    self.assertEqual(rotary, RotaryConfig("interleaved", [1.0, 0.25]))
                    assert_close(self, logits(turned, seed), logits(model, seed), seed, "logits")

    def test_a_model_without_rotary_stays_as_it_is(self):
        model = random_model(1, "gpt2")
        self.assertEqual(fitting.with_pairing(model, "interleaved"), model)


def shaped(norm, gated, positions):
    """A model as `train` makes one from --norm, --gated and --positions."""
    rotary = RotaryConfig("half", frequencies(2)) if positions == "rotary" else None
    norm = norm_config(norm)
    config = model_config(4, 3, 8, 2, block_config(4, attention_config(2, 2, rotary=rotary),
                                                   norm=norm), final_norm=norm)
    return make_model(config, random_weights(config, gated=gated, tied=False,
                                             positions=positions == "learned"), "trained")


class Refusals(Folder):
    def test_whoever_follows_the_hints_gets_there(self):
        """Every combination of train's options is exported, or says which to change; that done,
        it is exported."""
        n_exported = 0
        for norm in ("layer", "rms"):
            for gated in (False, True):
                for positions in ("learned", "rotary", "none"):
                    asked = {"norm": norm, "gated": gated, "positions": positions}
                    with self.subTest(asked):
                        try:
                            export.hugging_face(shaped(**asked))
                            n_exported += 1
                        except ValueError as error:
                            self.assertIn("export: 'trained' is none of", str(error))
                            export.hugging_face(shaped(**followed(str(error), asked)))
        self.assertEqual(n_exported, 2)

    def test_the_nearest_class_is_named(self):
        for asked, nearest, hint in (
                (("layer", True, "learned"), "GPT2LMHeadModel", "(train without --gated)"),
                (("layer", True, "rotary"), "LlamaForCausalLM", "(train with --norm rms)"),
                (("rms", False, "rotary"), "LlamaForCausalLM", "(train with --gated)"),
                (("rms", False, "learned"), "GPT2LMHeadModel", "(train with --norm layer)")):
            with self.subTest(asked):
                with self.assertRaises(ValueError) as caught:
                    export.hugging_face(shaped(*asked))
                self.assertIn(f"nearest is {nearest}, but ", str(caught.exception))
                self.assertTrue(str(caught.exception).endswith(hint))
                self.assertEqual(str(caught.exception).count("(train "), 1)

    def test_everything_else_is_refused_by_name(self):
        gpt2, llama = random_model(0, "gpt2"), random_model(1, "llama")
        rates = llama.config.blocks[0].attention.rotary.frequencies

        def configured(model, **fields):
            return model._replace(config=model.config._replace(**fields))

        def blocks(model, **fields):
            return model._replace(config=changed_block(model.config, **fields))

        def first(model, branch, **fields):
            w = model.weights
            block = w.blocks[0]
            part = getattr(block, branch)
            part = part._replace(**fields) if fields else 0.5
            return model._replace(weights=w._replace(
                blocks=[block._replace(**{branch: part})] + w.blocks[1:]))

        *same, last = gpt2.config.blocks
        wide = model_config(5, 3, 8, 1, llama.config.blocks[0], final_norm=llama.config.final_norm)
        uneven = same + [last._replace(d_mlp=99)]
        cases = [
            ("placement is 'parallel'", blocks(gpt2, placement="parallel")),
            ("window is 2", blocks(gpt2, window=2)), ("window is 2", blocks(llama, window=2)),
            ("causal is False", blocks(llama, causal=False)),
            ("multiplier is 0.5", blocks(llama, multiplier=0.5)),
            ("soft_cap is 50.0", blocks(llama, soft_cap=50.0)),
            ("residual_multiplier is 0.5", blocks(llama, residual_multiplier=0.5)),
            ("embed_multiplier is 2.0", configured(llama, embed_multiplier=2.0)),
            ("logit_multiplier is 2.0", configured(gpt2, logit_multiplier=2.0)),
            ("logit_soft_cap is 30.0", configured(llama, logit_soft_cap=30.0)),
            ("blocks.0.attn_norm.eps is", configured(gpt2, final_norm=norm_config("layer", 0.25))),
            ("scale is 3.0", configured(gpt2, final_norm=norm_config("layer", 1e-5, 3.0))),
            ("not every norm is a LayerNorm", configured(gpt2, final_norm=None)),
            ("blocks.2.d_mlp is 99", configured(gpt2, blocks=uneven)),
            ("has no block", configured(gpt2, blocks=[])),
            ("d_model 5 is no multiple of its 4 heads", make_model(wide, model_weights(
                Draw(1), wide, tied=True, positions=False, unembed_bias=False, gated=True))),
            ("rotary frequencies are not theta", blocks(llama, rotary=RotaryConfig(
                "half", [rate * 0.75 for rate in rates]))),
            ("b_unembed has no place", gpt2._replace(weights=gpt2.weights._replace(
                b_unembed=[0.0] * gpt2.config.d_vocab))),
            ("attn.q_gain has no place", first(llama, "attn", q_gain=[1.0] * 2 * len(rates))),
            ("attn_multiplier has no place", first(gpt2, "attn_multiplier")),
            ("positions are not learned", gpt2._replace(weights=gpt2.weights._replace(
                w_pos=None))),
            ("w_pos|positions are not rotary", llama._replace(weights=llama.weights._replace(
                w_pos=[[0.0] * llama.config.d_model] * 8))),
        ]
        for words, model in cases:
            with self.subTest(words):
                with self.assertRaises(ValueError) as caught:
                    export.export_folder(model, self.out)
                message = str(caught.exception)
                self.assertTrue(any(word in message for word in words.split("|")), message)
                self.assertNotIn("\n", message)
                self.assertEqual(os.listdir(self.parent), [])

    def test_numbers_that_do_not_fit(self):
        model = random_model(1, "gpt2")
        w = model.weights
        for dtype, number in (("F16", 65520.0), ("BF16", 3.4e38), ("F32", 3.5e38)):
            with self.subTest(dtype):
                large = model._replace(weights=w._replace(
                    w_embed=[[number] + row[1:] for row in w.w_embed]))
                with self.assertRaises(ValueError) as caught:
                    export.export_folder(large, self.out, dtype)
                self.assertTrue(str(caught.exception).startswith(
                    f"{self.out}/model.safetensors: tensor 'transformer.wte.weight'[0][0] is "))
                self.assertEqual(os.listdir(self.parent), [])
        exact = model._replace(weights=map_leaves(
            lambda tensor: [Fraction(1, 3)] * len(tensor) if type(tensor[0]) is float else tensor,
            w))
        with self.assertRaisesRegex(TypeError, "Fraction"):
            export.export_folder(exact, self.out)
        self.assertEqual(os.listdir(self.parent), [])


def followed(message, asked):
    """train's options after following every hint of a message."""
    words, asked = message.replace(")", " ").replace(";", " ").split(), dict(asked)
    for i, word in enumerate(words):
        if word in ("--norm", "--positions"):
            asked[word[2:]] = words[i + 1]
        if word == "--gated":
            asked["gated"] = words[i - 1] == "with"
    return asked


# ---- whole or not at all ----

def failing(name, nth):
    """A context in which the nth call of a function of os fails."""
    real, count = getattr(os, name), []

    def maybe(*given, **named):
        count.append(name)
        if len(count) == nth:
            raise OSError(errno.ENOSPC, "no space")
        return real(*given, **named)

    return mock.patch.object(os, name, maybe)


class Whole(Folder):
    def setUp(self):
        super().setUp()
        self.model, self.other = random_model(1, "gpt2"), random_model(2, "llama")

    def test_what_exists_is_not_overwritten(self):
        export.export_folder(self.model, self.out)
        before = files_in(self.parent)
        with self.assertRaisesRegex(FileExistsError, "out exists; force=True"):
            export.export_folder(self.other, self.out)
        self.assertEqual(files_in(self.parent), before)
        export.export_folder(self.other, self.out, force=True)
        self.assertEqual(pyres.load(self.out).weights, self.other.weights)
        self.assertEqual(os.listdir(self.parent), ["out"])

    def test_an_empty_folder_is_nothing_to_lose(self):
        os.mkdir(self.out)
        export.export_folder(self.model, self.out)
        self.assertEqual(pyres.load(self.out).weights, self.model.weights)

    def test_a_folder_with_other_things_is_never_replaced(self):
        for name in ("thesis.tex", "model-00001-of-00002.safetensors", ".git"):
            with self.subTest(name):
                export.export_folder(self.model, self.out, force=True)
                os.mkdir(os.path.join(self.out, name))
                with self.assertRaisesRegex(FileExistsError, f"holds '{name}'"):
                    export.export_folder(self.other, self.out, force=True)
                self.assertEqual(pyres.load(self.out).weights, self.model.weights)
                os.rmdir(os.path.join(self.out, name))

    def test_a_file_in_its_place(self):
        with open(self.out, "w", encoding="utf-8") as file:
            file.write("kept")
        for force in (False, True):
            with self.assertRaisesRegex(FileExistsError, "is no folder"):
                export.export_folder(self.model, self.out, force=force)
        self.assertEqual(files_in(self.parent), {"out": b"kept"})

    def test_a_link_stays_a_link(self):
        real = os.path.join(self.parent, "real")
        export.export_folder(self.model, real)
        os.symlink(real, self.out)
        export.export_folder(self.other, self.out, force=True)
        self.assertTrue(os.path.islink(self.out))
        self.assertEqual(pyres.load(real).weights, self.other.weights)

    def test_whatever_fails_the_folder_is_what_it_was(self):
        export.export_folder(self.model, self.out)
        before, n_failed = files_in(self.parent), 0
        for name in ("mkdir", "fsync", "replace", "rename"):
            for nth in range(1, 6):
                with self.subTest(name, nth=nth):
                    with failing(name, nth):
                        try:
                            export.export_folder(self.other, self.out, force=True)
                        except OSError:
                            n_failed += 1
                            self.assertTrue(files_in(self.parent) == before)
                            continue
                    export.export_folder(self.model, self.out, force=True)
        self.assertGreater(n_failed, 10)

    def test_a_folder_that_appears_meanwhile_is_kept(self):
        real = os.rename

        def overtaken(complete, target):
            os.mkdir(target)
            with open(os.path.join(target, "first"), "w", encoding="utf-8") as file:
                file.write("kept")
            return real(complete, target)

        with mock.patch.object(os, "rename", overtaken):
            with self.assertRaises(OSError):
                export.export_folder(self.model, self.out)
        self.assertEqual(files_in(self.parent), {os.path.join("out", "first"): b"kept"})


# ---- the commands ----

class Commands(Folder):
    def setUp(self):
        super().setUp()
        self.before = os.getcwd()
        os.chdir(self.parent)
        self.addCleanup(os.chdir, self.before)
        self.gpt2, self.llama = [os.path.join(MODELS, name) for name in ("gpt2", "llama")]

    def good(self, *argv):
        done = here(*argv)
        self.assertEqual((done.code, done.err), (0, ""), argv)
        return done.out

    def refused(self, code, message, *argv):
        before = files_in(self.parent)
        done = here(*argv)
        self.assertEqual((done.code, done.out), (code, ""), argv)
        self.assertIn(message, done.err)
        self.assertEqual(files_in(self.parent), before)
        return done.err

    def test_export(self):
        answer = json.loads(self.good("export", "copy", "--model", self.gpt2, "--json"))
        self.assertEqual(list(answer), ["schema", "command", "model", "input", "result", "checks",
                                        "notes"])
        result = answer["result"]
        self.assertEqual((result["out"], result["form"], result["dtype"], result["rounded"]),
                         ("copy", "GPT2LMHeadModel", "float32", 0))
        self.assertEqual([file["name"] for file in result["files"]],
                         ["README.md", "config.json", "model.safetensors"])
        self.assertEqual(pyres.load("copy").weights, pyres.load(self.gpt2).weights)
        self.refused(4, "copy exists\nhint: --force overwrites it\n", "export", "copy", "--model",
                     self.llama)
        out = self.good("export", "copy", "--model", self.llama, "--force", "--dtype", "bfloat16")
        self.assertIn("LlamaForCausalLM, bfloat16", out)
        self.assertIn("rounded to the nearest bfloat16", out)
        self.assertEqual(pyres.load("copy").weights,
                         in_dtype(pyres.load(self.llama).weights, "BF16"))

    def test_export_is_refused(self):
        self.refused(2, "export takes the folder to write", "export")
        for name in ("x.html", "x.svg", "x.safetensors", "x.bin"):
            self.refused(2, f"{name} is the name of a file", "export", name, "--model", self.gpt2)
        self.refused(3, "there is no folder or file 'none'", "export", "x", "--model", "none")
        self.refused(4, "cannot be written: No such file", "export", "no/such/folder", "--model",
                     self.gpt2)
        native.save(shaped("layer", True, "learned"), "gated.safetensors")
        self.refused(3, "train without --gated", "export", "x", "--model", "gated.safetensors")

    def test_convert(self):
        """Between all kinds of files, and the weights are the same."""
        want = in_float32(fitting.with_pairing(pyres.load(self.llama), "half").weights)
        llama2c_file = os.path.join(os.path.dirname(MODELS), "llama2c", "untied.bin")
        self.good("convert", llama2c_file, "a.safetensors")
        self.good("convert", "a.safetensors", "b")
        self.good("convert", "b", "c.bin")
        self.good("convert", "c.bin", "d.safetensors")
        self.assertEqual(pyres.load("b").weights, want)
        files = files_in(".")
        with open(llama2c_file, "rb") as file:
            self.assertEqual(len(files["c.bin"]), len(file.read()))
        self.assertEqual(pyres.load("d.safetensors").weights, pyres.load(llama2c_file).weights)
        answer = json.loads(self.good("convert", "b", "half.safetensors", "--dtype", "float16",
                                      "--json"))
        self.assertEqual(answer["result"]["form"], "a model of pyres")
        self.assertGreater(answer["result"]["rounded"], 0)
        self.assertEqual(pyres.load("half.safetensors").weights, in_dtype(want, "F16"))
        self.assertEqual(pyres.load("half.safetensors").config, pyres.load("b").config)
        self.good("convert", "half.safetensors", "e", "--dtype", "float64")
        self.assertEqual(pyres.load("e").weights, in_dtype(want, "F16"))

    def test_convert_is_refused(self):
        self.refused(2, "convert takes two names", "convert", self.gpt2)
        self.refused(2, "there is no place for 'c'", "convert", self.gpt2, "b", "c")
        self.refused(2, "--model means nothing to convert", "--model", "echo", "convert")
        self.refused(3, "there is no folder or file 'none'", "convert", "none", "x.safetensors")
        self.refused(3, "not every norm is an RMSNorm", "convert", self.gpt2, "x.bin")
        self.refused(3, "eps is 1e-06 where 1e-05 is due", "convert", self.llama, "x.bin")
        self.refused(3, "float32 only", "convert", self.llama, "x.bin", "--dtype", "float16")
        self.good("convert", self.gpt2, "there.safetensors")
        self.refused(4, "there.safetensors exists", "convert", self.llama, "there.safetensors")
        self.good("convert", self.llama, "there.safetensors", "--force")
        os.mkdir("folder.bin")
        self.refused(4, "folder.bin exists, and is a folder", "convert", self.llama, "folder.bin",
                     "--force")
        self.refused(4, "cannot be written", "convert", self.gpt2, "no/such/x.safetensors")
        model = random_model(1, "gpt2")
        w = model.weights
        large = model._replace(weights=w._replace(w_embed=[[7e4] * len(row) for row in w.w_embed]))
        native.save(large, "large.safetensors")
        self.refused(3, "'w_embed'[0][0] is 70000.0; F16 holds numbers from", "convert",
                     "large.safetensors", "small.safetensors", "--dtype", "float16")

    def test_a_file_may_be_converted_onto_itself(self):
        self.good("convert", self.gpt2, "one.safetensors", "--dtype", "float64")
        self.good("convert", "one.safetensors", "one.safetensors", "--force")
        self.assertEqual(pyres.load("one.safetensors").weights, pyres.load(self.gpt2).weights)

    def test_a_tokenizer_that_the_file_cannot_hold(self):
        class Other:
            """A tokenizer of another kind."""
        with mock.patch.object(pyres.files, "load", lambda *_: random_model(1, "gpt2")
                               ._replace(tokenizer=Other())):
            self.refused(3, "only one of characters is written", "convert", "any", "x.safetensors")

    def test_help_ends_with_two_examples_that_run(self):
        for command in ("export", "convert"):
            examples = self.good(command, "-h").split("\nexamples:\n")[1].rstrip("\n").split("\n")
            self.assertEqual(len(examples), 2)
            for example in examples:
                with self.subTest(example):
                    shutil.rmtree("echo-folder", ignore_errors=True)
                    self.assertLessEqual(len(example), 80)
                    words = example.replace("FOLDER", self.gpt2.replace(os.sep, "/")).split()
                    self.assertEqual(words[:3], ["python3", "-m", "pyres"])
                    self.good(*words[3:])
        self.assertEqual(logits(pyres.load("echo-folder"), 1), logits(pyres.load(), 1))

    def test_every_line_fits(self):
        for i, columns in enumerate((30, 80)):
            lines = self.good("export", f"copy{i}", "--model", self.gpt2, "--columns",
                              str(columns)).splitlines()
            self.assertLessEqual(max(map(len, lines)), columns)


if __name__ == "__main__":
    unittest.main()
