"""Generation: a kept past against the whole forward, what is picked, where it stops; the tokenizer
of characters; and a model as one file.
"""
import errno
import itertools
import json
import math
import os
import struct
import tempfile
import unittest
from unittest import mock

import pyres
from pyres.config import (RotaryConfig, attention_config, block_config, check_config,
                          model_config, norm_config, norms_of)
from pyres.files import native, safetensors
from pyres.files.characters import Characters, vocabulary_of
from pyres.generation import generate, pick, tail_logits
from pyres.linalg import shape
from pyres.model import make_model, run
from pyres.nonlinear import softmax
from pyres.rng import Generator
from pyres.weights import ModelWeights, leaves, random_weights
from tests.laws import (Draw, assert_close, block_weights, copied, difference, model_weights,
                        walk)

try:
    import tracemalloc
except ImportError:                                     # PyPy
    tracemalloc = None

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")
POSITIONS = ("learned", "rotary, half", "rotary, interleaved", "none")
KEPT = 1e-9                 # what the order of sums may change


# ---- random models ----

def rotary_of(positions):
    kind, _, pairing = positions.partition(", ")
    return RotaryConfig(pairing, [0.7, 0.2]) if kind == "rotary" else None


def random_model(seed):
    """A model with a random choice of everything that a config or a record of weights can hold,
    and blocks that differ."""
    draw = Draw(seed, size=0.5)
    g = draw.generator

    def one_of(*choices):
        return choices[g.below(len(choices))]

    def random_norm():
        return one_of(None, norm_config("layer", 0.1), norm_config("rms", 1e-3),
                      norm_config("layer", 0.1, 1.5))

    rotary = rotary_of(one_of(*POSITIONS))
    gains = one_of(None, "head", "whole")

    def random_block():
        attention = attention_config(
            2, 4, one_of(1, 2), window=one_of(None, 2, 3), multiplier=one_of(None, 0.3),
            soft_cap=one_of(None, 1.5), rotary=rotary,
            qk_norm=norm_config(one_of("rms", "layer"), 0.1) if gains else None)
        placement = one_of(*PLACEMENTS)
        block = block_config(3, attention, placement, None,
                             one_of("relu", "gelu", "gelu_tanh", "silu"), one_of(None, 0.7))
        return block._replace(**{place: random_norm() for place in norms_of(placement)})

    blocks = [random_block() for _ in range(g.below(3))]
    config = model_config(4, 5, 9, 0, None, one_of(None, 2.0), random_norm(),
                          one_of(None, 0.5), one_of(None, 3.0))._replace(blocks=blocks)
    weights = model_weights(draw, config, *[one_of(False, True) for _ in range(3)],
                            biases=one_of(False, True), gated=one_of(False, True), gains=gains,
                            multipliers=one_of(False, True))
    tokenizer = one_of(None, Characters(["a", "b", '"', "\n", "\u00e9"]),
                       Characters(["<s>", "\u0394", "\\", " ", "\U0001f600"], bos=0))
    return make_model(config, weights, one_of("unnamed", "Gr\u00f6\u00dfe \"5\""), tokenizer)


# ---- a kept past ----

class KeptPastTest(unittest.TestCase):
    TOKENS = [3, 1, 4, 1, 0, 2]

    def logits_in_parts(self, model, parts):
        """The logits of TOKENS, run in parts of the given lengths, each behind those before it."""
        past, at, logits = None, 0, []
        for n in parts:
            kept = copied(past)
            part, longer = tail_logits(model, self.TOKENS[at:at + n], past)
            self.assertEqual(copied(past), kept, "the past that was given stays as it was")
            logits, past, at = logits + part, longer, at + n
            self.assertEqual(past[0], at)
        self.assertEqual(at, len(self.TOKENS))
        return logits

    def assertKept(self, model, seed, *ways):
        whole = run(model, self.TOKENS).logits
        for parts in ways:
            got = self.logits_in_parts(model, parts)
            for t in range(len(self.TOKENS)):
                assert_close(self, got[t], whole[t], seed, f"parts {parts}, position {t}", KEPT)

    def test_every_kind_of_block(self):
        """All kinds with all kinds of positions, two blocks to a model."""
        kinds = []
        for seed, kind in enumerate(itertools.product(
                PLACEMENTS, (None, 2), (2, 1), (None, "head", "whole"), (None, 1.5))):
            placement, window, n_kv_heads, gains, soft_cap = kind
            attention = attention_config(2, 4, n_kv_heads, window=window, soft_cap=soft_cap,
                                         qk_norm=norm_config("rms", 0.1) if gains else None)
            block = block_config(3, attention, placement, norm_config("layer", 0.1))
            kinds.append((kind, block, block_weights(Draw(seed), 4, block, gains=gains)))
        for positions in POSITIONS:
            shuffled = Generator(1).shuffled(kinds)
            for seed, pair in enumerate(zip(shuffled[0::2], shuffled[1::2])):
                with self.subTest(seed=seed, positions=positions, kinds=[one[0] for one in pair]):
                    blocks = [block._replace(attention=block.attention._replace(
                        rotary=rotary_of(positions))) for _, block, _ in pair]
                    config = model_config(4, 5, 8, 0, None)
                    w = model_weights(Draw(seed), config, positions=positions == "learned")
                    model = make_model(config._replace(blocks=blocks),
                                       w._replace(blocks=[weights for _, _, weights in pair]))
                    self.assertKept(model, seed, ([2, 1, 1, 1, 1], [2, 2, 2])[seed % 2])

    def test_random_models_cut_anywhere(self):
        for seed in range(30):
            with self.subTest(seed=seed):
                g, left, parts = Generator(seed), len(self.TOKENS), []
                while left:
                    parts.append(1 + g.below(left))
                    left -= parts[-1]
                self.assertKept(random_model(seed), seed, parts, [1] * 6, [6])

    def test_one_past_goes_on_in_two_ways(self):
        model = random_model(4)
        _, past = tail_logits(model, self.TOKENS[:3])
        for more in (self.TOKENS[3:5], [0, 0]):
            got, _ = tail_logits(model, more, past)
            want = run(model, self.TOKENS[:3] + more).logits[3:]
            assert_close(self, got, want, 4, f"then {more}", KEPT)

    def test_what_would_be_wrong_is_far_from_the_tolerance(self):
        """A token told that it stands at 0, or that forgets its past, has other logits."""
        attention = attention_config(2, 4, rotary=rotary_of("rotary, half"))
        config = model_config(4, 5, 8, 2, block_config(3, attention))
        model = make_model(config, model_weights(Draw(1), config, positions=False))
        whole = run(model, self.TOKENS).logits[-1]
        _, past = tail_logits(model, self.TOKENS[:-1])
        n, pairs = past
        for wrong in (None, (n, [([head[1:] for head in k], [head[1:] for head in v])
                                 for k, v in pairs])):
            got, _ = tail_logits(model, self.TOKENS[-1:], wrong)
            self.assertGreater(difference(got[-1], whole), 1000 * KEPT)


# ---- one token from logits ----

    def test_attention_that_sees_later_tokens_is_refused(self):
        block = block_config(2, attention_config(1, 2, causal=False))
        config = model_config(2, 3, 4, 1, block)
        model = make_model(config, random_weights(config, positions=False))
        with self.assertRaisesRegex(ValueError, "block 0 sees later tokens.*the whole sequence"):
            generate(model, [0], 2)


class Undivided(float):
    """A float that must not be divided, nor divide."""

    def refuse(self, other):
        raise AssertionError("divided")

    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = refuse


class PickTest(unittest.TestCase):
    def test_temperature_0_takes_the_largest_and_never_divides(self):
        for logits, want in (([1, 2], 1), ([2, 1], 0), ([-5, -3, -4], 1), ([0, 7, 7], 1),
                             ([3, 3, 3], 0), ([-1e308, 1e308], 1), ([math.inf, 1], 0)):
            for zero in (0, 0.0, -0.0):
                with self.subTest(logits=logits, zero=zero):
                    undivided = [Undivided(a) for a in logits]
                    self.assertEqual(pick(undivided, Undivided(zero), None), want)

    def test_nan_is_an_error_wherever_it_stands(self):
        """Every comparison with NaN is false, so token 0 would be elected in silence."""
        for at in range(3):
            logits = [1.0, 2.0, 3.0]
            logits[at] = math.nan
            for temperature in (0, 1.0):
                with self.subTest(at=at, temperature=temperature):
                    with self.assertRaisesRegex(ValueError, f"logit {at} is nan"):
                        pick(logits, temperature, Generator(0))

    def test_a_temperature_that_is_none_is_refused(self):
        model = random_model(1)
        for wrong in (-1, -1e-300, math.nan, math.inf, -math.inf):
            with self.subTest(temperature=wrong):
                with self.assertRaisesRegex(ValueError, "temperature"):
                    pick([1.0, 2.0], wrong, Generator(0))
                for n in (0, 1):        # though nothing may be drawn at all
                    with self.assertRaisesRegex(ValueError, "temperature"):
                        generate(model, [0], n, wrong)

    def test_nearly_0_and_very_hot(self):
        for logits, top in (([1.0, 2.0, 1.5], 1), ([-1e308, 0.0, 1e308], 2), ([-4.0], 0)):
            for seed in range(20):
                for cold in (5e-324, 1e-300, 1e-6):
                    self.assertEqual(pick(logits, cold, Generator(seed)), top, f"seed {seed}")
        drawn = {pick([1.0, 900.0, -900.0], 1e300, Generator(seed)) for seed in range(30)}
        self.assertEqual(drawn, {0, 1, 2})

    def assertFrequencies(self, draws, chances, what):
        """Pearson's sum over tokens of (seen - expected)² / expected.  It is about the number of
        tokens less one; beyond 30, with 5 tokens, once in 200,000 times."""
        expected = [len(draws) * chance for chance in chances]
        seen = [draws.count(token) for token in range(len(chances))]
        chi2 = sum((a - b) ** 2 / b for a, b in zip(seen, expected))
        self.assertLess(chi2, 30, f"{what}: seen {seen}, expected {expected}")

    def test_frequencies_are_softmax(self):
        logits = [0.5, -1.0, 2.0, 0.0, 1.0]
        for seed, temperature in enumerate((1.0, 1, 0.5, 3.0)):
            with self.subTest(seed=seed, temperature=temperature):
                g = Generator(seed)
                weights = [math.exp(a / temperature) for a in logits]
                draws = [pick(logits, temperature, g) for _ in range(2500)]
                self.assertFrequencies(draws, [a / sum(weights) for a in weights],
                                       f"seed {seed}, temperature {temperature}")

    def test_frequencies_over_seeds(self):
        model = small_counter([0.5, -1.0, 2.0, 0.0, 1.0])
        draws = [generate(model, [0], 1, 1.0, seed)[0] for seed in range(1500)]
        self.assertFrequencies(draws, softmax(run(model, [0]).logits[0]), "seeds 0 to 1499")


# ---- many tokens ----

def small_counter(logits, n_ctx=4):
    """A model without blocks whose logits are always the same."""
    config = model_config(1, len(logits), n_ctx, 0, None, final_norm=None)
    weights = ModelWeights([[1.0]] * len(logits), None, [], None, [[a] for a in logits], None)
    return make_model(config, weights)


def by_whole_runs(model, tokens, n, temperature, seed):
    """What generate gives, from a run of the whole sequence for every token."""
    tokens, generator = list(tokens), Generator(seed)
    begin = len(tokens)
    while len(tokens) < min(begin + n, model.config.n_ctx):
        tokens.append(pick(run(model, tokens).logits[-1], temperature, generator))
    return tokens[begin:]


class GenerateTest(unittest.TestCase):
    def test_it_is_what_whole_runs_give(self):
        for seed in range(12):
            for temperature in (0, 0.7, 2.0):
                with self.subTest(seed=seed, temperature=temperature):
                    model = random_model(seed)
                    got = generate(model, [1, 2, 0], 4, temperature, seed)
                    self.assertEqual(got, by_whole_runs(model, [1, 2, 0], 4, temperature, seed))

    def test_it_stops_where_the_context_is_full(self):
        for seed in range(8):
            model, g = random_model(seed), Generator(seed)
            n_ctx = model.config.n_ctx
            for _ in range(3):
                tokens, n = [g.below(5) for _ in range(1 + g.below(n_ctx))], g.below(2 * n_ctx)
                with self.subTest(seed=seed, n_tokens=len(tokens), n=n):
                    new = generate(model, tokens, n, 1.0, seed)
                    self.assertEqual(len(new), min(n, n_ctx - len(tokens)))
        model = small_counter([0.0, 1.0])
        self.assertEqual(generate(model, [0, 0, 0], 10), [1])
        self.assertEqual(generate(model, [0, 0, 0, 0], 10), [])
        for wrong in ([0] * 5, []):
            with self.assertRaisesRegex(ValueError, "the model takes 1 to 4"):
                generate(model, wrong, 1)

    def test_a_token_that_is_none_is_refused(self):
        model = random_model(1)
        for wrong, kind in ((5, ValueError), (-1, ValueError), (True, TypeError),
                            (1.0, TypeError)):
            with self.assertRaises(kind):
                generate(model, [0, wrong], 1)

    def test_a_seed_is_all_there_is_to_chance(self):
        model = random_model(3)
        by_seed = [generate(model, [1], 8, 1.5, seed) for seed in range(10)]
        self.assertEqual(by_seed, [generate(model, [1], 8, 1.5, seed) for seed in range(10)])
        self.assertGreater(len(set(map(tuple, by_seed))), 5)
        self.assertEqual(len({tuple(generate(model, [1], 8, 0, seed)) for seed in range(10)}), 1)

    def test_numbers_that_have_gone_wrong_end_it(self):
        for temperature in (0, 1.0):
            with self.assertRaisesRegex(ValueError, "logit 1 is nan"):
                generate(small_counter([0.0, math.nan]), [0], 1, temperature)

    def test_the_prompt_stays_as_it_was_and_may_be_a_text(self):
        model = small_counter([0.0, 1.0, 0.5])._replace(tokenizer=Characters(["a", "b", "c"]))
        prompt = [0, 2]
        self.assertEqual(generate(model, prompt, 2), [1, 1])
        self.assertEqual(prompt, [0, 2])
        self.assertEqual(pyres.generate(model, "ac", 2), [1, 1])


# ---- the tokenizer ----

class CharactersTest(unittest.TestCase):
    LETTERS = "ab <>/sbo\n\t\"'\\\u00e9\u0394\u4e2d\U0001f600\x00"

    def text(self, g, letters, longest=30):
        return "".join(letters[g.below(len(letters))] for _ in range(g.below(longest)))

    def test_encode_and_decode_undo_each_other(self):
        for seed in range(30):
            with self.subTest(seed=seed):
                g = Generator(seed)
                text = self.text(g, self.LETTERS)
                vocabulary = vocabulary_of(text)
                self.assertEqual(vocabulary, sorted(set(text)))
                tokenizer = Characters(vocabulary)
                ids = tokenizer.encode(text)
                self.assertEqual(tokenizer.decode(ids), text)
                self.assertEqual([vocabulary[token] for token in ids], list(text))
                random_ids = [g.below(len(vocabulary)) for _ in text]
                self.assertEqual(tokenizer.encode(tokenizer.decode(random_ids)), random_ids)

    def test_the_mark_stands_before_every_text_and_is_never_read_by_chance(self):
        letters = "<bos>a"
        tokenizer = Characters(["a", "<", "b", "<bos>", "o", "s", ">"], bos=3)
        for seed in range(30):
            with self.subTest(seed=seed):
                g = Generator(seed)
                text = "".join(["<bos>" if g.below(3) == 0 else self.text(g, letters, 4)
                                for _ in range(6)])
                plain = tokenizer.encode(text, special=False)
                self.assertNotIn(3, plain)
                self.assertEqual(tokenizer.decode(plain), text)
                self.assertEqual(tokenizer.encode(text), [3] + plain)
                read = tokenizer.encode(text, special=False, parse_special=True)
                self.assertEqual(tokenizer.decode(read), text)
                self.assertEqual(read.count(3), text.count("<bos>"))
                self.assertEqual(tokenizer.encode(text, parse_special=True), [3] + read)

    def test_without_a_mark_both_switches_do_nothing(self):
        tokenizer = Characters(["a", "b"])
        for special, parse_special in itertools.product((False, True), repeat=2):
            self.assertEqual(tokenizer.encode("abba", special, parse_special), [0, 1, 1, 0])

    def test_an_unknown_character_is_named_with_its_place(self):
        with self.assertRaisesRegex(ValueError, r"'c' at 2 .* which has 'a', 'b'$"):
            Characters(["a", "b"]).encode("abc")
        many = Characters([chr(0x4e00 + i) for i in range(99)])
        with self.assertRaisesRegex(ValueError, r"'\\n' at 0 .*, \.\.\.$") as caught:
            many.encode("\n")
        self.assertLess(len(str(caught.exception)), 300)
        with self.assertRaises(ValueError):             # a mark is no character of a text
            Characters(["m", "a"], bos=0).encode("m")

    def test_what_is_no_vocabulary_is_refused(self):
        for tokens, bos in ((["a", "a"], None), (["a", ""], None), (["a", 1], None),
                            (["a"], 1), (["a"], -1), (["a"], True), (["a"], "a")):
            with self.subTest(tokens=tokens, bos=bos):
                with self.assertRaises(ValueError):
                    Characters(tokens, bos)


# ---- a model as one file ----

def to_float32(number):
    return struct.unpack("<f", struct.pack("<f", number))[0]


def known(tokenizer):
    return None if tokenizer is None else (tokenizer.tokens, tokenizer.bos)


def peak_memory(call):
    """The most bytes that a call had at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class FileCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.path = folder.name, os.path.join(folder.name, "model.safetensors")

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()


class NativeFileTest(FileCase):
    def test_what_was_saved_is_loaded(self):
        for seed in range(40):
            with self.subTest(seed=seed):
                model = random_model(seed)
                native.save(model, self.path)
                loaded = native.load(self.path)
                self.assertEqual(loaded.config, model.config)
                self.assertEqual(loaded.name, model.name)
                self.assertEqual(known(loaded.tokenizer), known(model.tokenizer))
                self.assertEqual(loaded.weights, walk(to_float32, model.weights))
                self.assertEqual([name for name, _ in leaves(loaded.weights)],
                                 [name for name, _ in leaves(model.weights)])
                of_bytes = native.load_bytes(self.content(), "inner")
                self.assertEqual((of_bytes.config, of_bytes.weights),
                                 (loaded.config, loaded.weights))

    def test_the_same_model_is_the_same_bytes(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                contents = []
                for source in (random_model(seed), random_model(seed)):
                    native.save(source, self.path)
                    contents.append(self.content())
                native.save(native.load(self.path), self.path)
                self.assertEqual([self.content()] * 2, contents)

    def test_it_is_float32_with_the_names_of_the_leaves(self):
        model = random_model(2)
        native.save(model, self.path)
        stored = safetensors.read(self.path)
        self.assertEqual({stored.dtype(name) for name in stored}, {"F32"})
        self.assertEqual([(name, stored.shape(name)) for name in stored],
                         [(name, shape(tensor)) for name, tensor in leaves(model.weights)])
        self.assertEqual(sorted(stored.metadata), ["characters", "config", "format", "name"])
        self.assertEqual(native.config_from_json(stored.metadata["config"], "it"), model.config)

    def test_the_package_loads_and_saves_the_same(self):
        model = random_model(7)
        pyres.save(model, self.path)
        self.assertEqual(pyres.load(self.path).weights, walk(to_float32, model.weights))

    def test_a_save_that_fails_leaves_what_was_there(self):
        native.save(random_model(1), self.path)
        before, model = self.content(), random_model(2)
        w = model.weights
        full = OSError(errno.ENOSPC, "No space left on device")
        for what, kind, changed, patched in (
                ("a tokenizer of another kind", TypeError, model._replace(tokenizer=object()), {}),
                ("a number beyond float32", ValueError, model._replace(
                    weights=w._replace(w_embed=[[1e39] * 4] * 5)), {}),
                ("a full disk", OSError, model, {"fsync": mock.Mock(side_effect=full)}),
                ("a name that cannot be taken", OSError, model,
                 {"replace": mock.Mock(side_effect=full)})):
            with self.subTest(what):
                with mock.patch.multiple(os, **patched) if patched else mock.patch("os.sep", "/"):
                    with self.assertRaises(kind):
                        native.save(changed, self.path)
                self.assertEqual(self.content(), before)
                self.assertEqual(os.listdir(self.folder), ["model.safetensors"])


class DamagedFileTest(FileCase):
    def setUp(self):
        super().setUp()
        attention = attention_config(2, 2, rotary=RotaryConfig("half", [1.0]))
        config = model_config(4, 3, 6, 2, block_config(3, attention))
        weights = model_weights(Draw(1), config, unembed_bias=False)
        native.save(make_model(config, weights, "whole", Characters(["a", "b", "c"])), self.path)
        stored = safetensors.read(self.path)
        self.metadata, self.tensors = dict(stored.metadata), dict(stored)
        native.load(self.path)

    def assertRefused(self, words, metadata=None, **tensors):
        """The file with other metadata, and tensors in the place of its own (None for none)."""
        metadata = self.metadata if metadata is None else metadata
        changed = {**self.tensors, **tensors}
        safetensors.write(self.path, {name: tensor for name, tensor in changed.items()
                                      if tensor is not None}, metadata)
        with self.subTest(words=words, tensors=sorted(tensors)):
            with self.assertRaisesRegex(ValueError, words) as caught:
                native.load(self.path)
            self.assertIn(self.path, str(caught.exception))
            with self.assertRaisesRegex(ValueError, words) as caught:
                native.load_bytes(self.content(), "inner")
            self.assertIn("inner", str(caught.exception))

    def config_with(self, *path, **fields):
        """The metadata with other fields in the part of the config that the path leads to; a
        field of None goes away."""
        config = part = json.loads(self.metadata["config"])
        for key in path:
            part = part[key]
        part.update(fields)
        for field in [field for field in fields if fields[field] is None]:
            del part[field]
        return dict(self.metadata, config=json.dumps(config))

    def test_metadata_that_is_not_a_models(self):
        self.assertRefused("format is None", {})
        self.assertRefused("format is None", {"format_": "pyres/1 model"})
        for other in ("pyres/2 model", "pt", "pyres/1 training", ""):
            self.assertRefused("not a model of pyres: its format is '" + other,
                               dict(self.metadata, format=other))
        for key in ("name", "config", "characters"):
            less = {name: text for name, text in self.metadata.items() if name != key}
            self.assertRefused(f"lacks '{key}'", less)

    def test_a_config_has_its_fields_and_no_others(self):
        for path, kind, a_field in (((), "ModelConfig", "d_model"),
                                    (("blocks", 1), "BlockConfig", "d_mlp"),
                                    (("blocks", 0, "attention"), "AttentionConfig", "n_heads"),
                                    (("blocks", 0, "attn_norm"), "NormConfig", "eps"),
                                    (("final_norm",), "NormConfig", "kind"),
                                    (("blocks", 0, "attention", "rotary"), "RotaryConfig",
                                     "pairing")):
            words = f"a {kind} is an object with .*{a_field}"
            self.assertRefused(words, self.config_with(*path, d_extra=1))
            self.assertRefused(words, self.config_with(*path, **{a_field: None}))

    def test_a_config_is_checked_like_any_other(self):
        for path, fields, words in (((), {"d_model": "4"}, "d_model"),
                                    ((), {"d_vocab": True}, "d_vocab"),
                                    ((), {"n_ctx": 0}, "n_ctx"), ((), {"n_ctx": 1.5}, "n_ctx"),
                                    ((), {"blocks": 7}, "config"), ((), {"blocks": [7]}, "Block"),
                                    (("blocks", 0), {"placement": "sideways"}, "sideways"),
                                    (("blocks", 0), {"activation": "swish"}, "swish"),
                                    (("blocks", 0), {"d_mlp": -3}, "d_mlp"),
                                    (("blocks", 0, "attn_norm"), {"kind": "batch"}, "batch"),
                                    (("blocks", 1, "attention"), {"n_kv_heads": 3}, "evenly")):
            self.assertRefused(words, self.config_with(*path, **fields))
        for text in ("", "null", "[]", "{", "{}", '{"d_model": NaN}', "7"):
            self.assertRefused("config", dict(self.metadata, config=text))

    def test_tensors_too_many_or_too_few(self):
        self.assertRefused("the tensor extra is no weight of this config", extra=[1.0])
        for name in ("blocks.2.attn.w_q", "blocks.0.attn.w_Q", "blocks.0.attn_post_norm.gain"):
            self.assertRefused(f"the tensor {name} is no weight", **{name: [1.0]})
        for name in ("w_embed", "blocks.0.attn.w_q", "blocks.1.attn.w_o", "blocks.1.mlp.w_up",
                     "blocks.0.mlp.w_down"):
            self.assertRefused(f"{name} is missing", **{name: None})

    def test_tensors_of_another_shape(self):
        for name, tensor in list(self.tensors.items()):
            self.assertRefused(f"{name} has shape", **{name: [[tensor]]})
            self.assertRefused(f"{name} has shape", **{name: [tensor, tensor]})

    def test_a_vocabulary_that_is_not_the_models(self):
        for tokens, bos, words in ((["a", "b"], None, "2 characters for a vocabulary of 3"),
                                   (["a", "b", "c", "d"], 0, "4 characters"),
                                   (["a", "b", "b"], None, "no two alike"),
                                   (["a", "b", ""], None, "none empty"),
                                   (["a", "b", 3], None, "texts"), (["a", "b", "c"], 3, "bos"),
                                   (3, None, "model.safetensors|inner")):
            text = json.dumps({"tokens": tokens, "bos": bos})
            self.assertRefused(words, dict(self.metadata, characters=text))
        for text in ("", "{}", "[]", "7", '"abc"', '{"tokens": ["a", "b", "c"]}'):
            self.assertRefused("", dict(self.metadata, characters=text))

    def test_a_file_that_is_cut_or_bent_gives_a_model_or_a_valueerror(self):
        data = self.content()
        n_header = 8 + int.from_bytes(data[:8], "little")
        for seed in range(150):
            g, bent = Generator(seed), bytearray(data)
            if seed % 5 == 0:
                del bent[g.below(len(bent)):]
            else:
                for _ in range(1 + seed % 2):
                    bent[g.below(n_header)] = g.below(256)
            with open(self.path, "wb") as file:
                file.write(bent)
            for read in (lambda: native.load(self.path),
                         lambda: native.load_bytes(bytes(bent), self.path)):
                with self.subTest(seed=seed):
                    try:
                        check_config(read().config)
                    except ValueError as error:
                        self.assertIn(self.path, str(error))

    @unittest.skipIf(tracemalloc is None, "this Python does not trace memory")
    def test_a_config_that_lies_about_sizes_takes_no_memory(self):
        huge = 10 ** 12
        for path, fields in (((), {"d_vocab": huge}), ((), {"d_model": huge}),
                             ((), {"n_ctx": huge}), (("blocks", 0), {"d_mlp": huge}),
                             (("blocks", 1, "attention"), {"d_head": huge}),
                             (("blocks", 1, "attention"), {"n_heads": huge, "n_kv_heads": huge})):
            def refused(path=path, fields=fields):
                self.assertRefused("", self.config_with(*path, **fields))

            peak = peak_memory(refused)
            self.assertLess(peak, 2 ** 20, f"{path} {fields}: {peak} bytes at once")

    @unittest.skipIf(tracemalloc is None, "this Python does not trace memory")
    def test_rows_that_take_no_byte_of_the_file_take_no_memory(self):
        """A shape is compared before the tensor is read: empty rows are a lie that costs the file
        nothing."""
        for name in ("extra", "w_pos"):
            header, at = {"__metadata__": self.metadata}, 0
            for other, sizes in [(other, shape(tensor)) for other, tensor in self.tensors.items()
                                 if other != name] + [(name, [30000, 0])]:
                begin, at = at, at + 4 * math.prod(sizes)
                header[other] = {"dtype": "F32", "shape": sizes, "data_offsets": [begin, at]}
            text = json.dumps(header).encode()
            with open(self.path, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text + bytes(at))
            for read in (lambda: native.load(self.path),
                         lambda: native.load_bytes(self.content(), "inner")):
                with self.subTest(name=name):
                    def refused(read=read):
                        with self.assertRaisesRegex(ValueError, name):
                            read()

                    peak = peak_memory(refused)
                    self.assertLess(peak, 2 ** 20, f"{peak} bytes at once")


if __name__ == "__main__":
    unittest.main()
