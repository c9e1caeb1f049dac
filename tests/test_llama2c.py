"""llama2.c's files: PyTorch's numbers, files that lie, the way back, and what is refused.

tests/data/llama2c has two files, the logits and losses of the models in them, and 25 files of
which most are broken in one way each; its README says where they come from.
"""
import base64
import os
import shutil
import struct
import tempfile
import time
import unittest
from math import prod
from unittest import mock

import pyres
from pyres.config import RotaryConfig, norm_config
from pyres.files import llama2c
from pyres.files.llama2c import HEADER_BYTES, TABLES, Header, config_of, layout, parse_header
from pyres.model import make_model
from pyres.rng import Generator
from pyres.rotary import frequencies
from pyres.weights import leaves, random_weights
from tests.laws import assert_close, difference
from tests.test_export import changed_block, in_float32
from tests.test_goldens import Comparison, read_json

try:
    import tracemalloc
except ImportError:                                     # PyPy
    tracemalloc = None

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "llama2c")
MODELS = ("tied.bin", "untied.bin")


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Folder(unittest.TestCase):
    """A folder for files that a test makes."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, data, name="model.bin"):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path


def random_llama(seed, pairing="interleaved"):
    """A Llama of random sizes, float32 weights and eps 1e-5."""
    draw = Generator(seed)
    n_kv_heads, group, d_head = 1 + draw.below(2), 1 + draw.below(2), (2, 4, 6)[seed % 3]
    header = Header(n_kv_heads * group * d_head, 1 + draw.below(9), 1 + draw.below(3),
                    n_kv_heads * group, n_kv_heads, 2 + draw.below(9), 8)
    config = changed_block(config_of(header, 1e-5, 1e4), rotary=RotaryConfig(
        pairing, frequencies(d_head)))
    weights = random_weights(config, seed, 0.5, biases=False, gated=True,
                             tied=draw.below(2) == 0, positions=False)
    return make_model(config, in_float32(weights), "llama")


def logits(model, seed):
    draw = Generator(seed)
    n_tokens = min(6, model.config.n_ctx)
    return pyres.run(model, [draw.below(model.config.d_vocab) for _ in range(n_tokens)]).logits


# ---- reading ----

class Numbers(Comparison):
    """Logits and losses of PyTorch in float64, with llama2.c's constants and with another eps."""

    def test_logits_and_loss(self):
        goldens = read_json(DATA, "golden.json")
        for name in MODELS:
            golden = goldens[name]
            for runs, eps in (("runs", golden["norm_eps"]),
                              ("runs_with_eps_of_models_llama",
                               golden["norm_eps_of_models_llama"])):
                model = llama2c.load(os.path.join(DATA, name), eps, golden["rope_theta"])
                for i, want in enumerate(golden[runs]):
                    with self.subTest(name, eps=eps, sequence=i):
                        run = pyres.run(model, want["input_ids"])
                        loss, _, _ = pyres.loss_and_gradients(model, want["input_ids"])
                        self.assert_close("logits", run.logits, want["logits"], 1e-12)
                        self.assert_close("loss", loss, want["loss"], 1e-12)

    def test_constants_are_llama2cs_unless_told_otherwise(self):
        path = os.path.join(DATA, "tied.bin")
        model = llama2c.load(path)
        self.assertEqual(model, llama2c.load(path, 1e-5, 10000.0))
        self.assertEqual(model, pyres.load(path))
        self.assertNotEqual(logits(model, 0), logits(llama2c.load(path, theta=500.0), 0))
        self.assertEqual((model.name, model.tokenizer), ("tied", None))


class FilesThatLie(Folder):
    """Verdicts as they must be; quick, and without memory for what a header merely claims."""

    def test_verdicts(self):
        cases = read_json(DATA, "malformed.json")
        self.assertEqual(len(cases), 25)
        for case in cases:
            with self.subTest(case["name"], what=case["what"]):
                path = self.file(base64.b64decode(case["base64"]), case["name"])
                if case["verdict"] == "accept":
                    self.assertEqual(logits(llama2c.load(path), 0), logits(pyres.load(path), 0))
                else:
                    self.check_refused(path)

    def check_refused(self, path):
        begin = time.perf_counter()
        if tracemalloc:
            tracemalloc.start()
            self.addCleanup(tracemalloc.stop)
        with self.assertRaises(ValueError) as caught:
            llama2c.load(path)
        if tracemalloc:
            self.assertLess(tracemalloc.get_traced_memory()[1], 1_000_000)
            tracemalloc.stop()
        self.assertLess(time.perf_counter() - begin, 1.0)
        self.assertTrue(str(caught.exception).startswith(path))
        self.assertNotIn("\n", str(caught.exception))

    def test_any_header_over_the_same_weights(self):
        """A size changed at random is refused, unless the file has the size that it asks for."""
        data = content(os.path.join(DATA, "untied.bin"))
        for seed in range(150):
            draw = Generator(seed)
            sizes = list(struct.unpack("<7i", data[:HEADER_BYTES]))
            wild = (0, 1, -1, 2, 3, 31, 2 ** 31 - 1, -2 ** 31, draw.below(2 ** 31))
            sizes[draw.below(7)] = wild[draw.below(len(wild))]
            path = self.file(struct.pack("<7i", *sizes) + data[HEADER_BYTES:])
            with self.subTest(seed=seed, sizes=sizes):
                try:
                    model = llama2c.load(path)
                except ValueError as error:
                    self.assertTrue(str(error).startswith(path), error)
                else:
                    self.assertEqual(struct.pack("<7i", *sizes), data[:HEADER_BYTES])
                    self.assertEqual(model, llama2c.load(os.path.join(DATA, "untied.bin"))
                                     ._replace(name="model"))

    def test_any_length_but_the_right_one(self):
        data = content(os.path.join(DATA, "tied.bin"))
        for length in list(range(40)) + [len(data) - 4, len(data) - 1]:
            with self.subTest(length=length), self.assertRaises(ValueError):
                llama2c.load(self.file(data[:length]))
        for more in (1, 4, 31 * 16 * 4):                # the last is a table of its own
            with self.subTest(more=more), self.assertRaises(ValueError):
                llama2c.load(self.file(data + b"\0" * more))

    def test_other_files_are_refused_by_name(self):
        for begin, kind in ((b"24ka\1\0\0\0", "later version"), (b"PK\x03\x04", "PyTorch archive"),
                            (b"\x80\x02}q", "pickle"), (b"GGUF\3\0\0\0", "GGUF")):
            with self.subTest(kind), self.assertRaisesRegex(ValueError, kind):
                pyres.load(self.file(begin + b"\0" * 100))

    def test_no_width_is_taken_for_another_kind_of_file(self):
        """A pickle begins with 80 02, and so do files of width 640."""
        for dim in range(2, 1 << 16, 2):
            sizes, _ = parse_header(struct.pack("<7i", dim, 8, 1, 1, 1, 3, 16), "wide.bin")
            self.assertEqual(sizes.dim, dim)

    def test_weights_that_are_no_numbers_are_carried(self):
        data = bytearray(content(os.path.join(DATA, "tied.bin")))
        data[HEADER_BYTES:HEADER_BYTES + 8] = struct.pack("<2f", float("nan"), float("inf"))
        first = llama2c.load(self.file(data)).weights.w_embed[0]
        self.assertNotEqual(first[0], first[0])
        self.assertEqual(first[1], float("inf"))


class PublicMistake(Folder):
    def test_a_negative_vocabulary(self):
        """PYB-44: a vocabulary of -3 is read as a size, or the token table is used twice anyway;
        a zero, one float less or more, or a newer file's magic is read as something."""
        sizes = (4, 8, 1, 2, 2)
        # every number is its own place
        untied = struct.pack("<7i200f", *sizes, -3, 2, *range(200))
        tied = struct.pack("<7i188f", *sizes, 3, 2, *range(188))
        self.assertEqual((len(untied), len(tied)), (828, 780))

        model = llama2c.load(self.file(untied))
        self.assertEqual(model.config.d_vocab, 3)
        self.assertEqual(model.weights.w_unembed, [[188.0, 189.0, 190.0, 191.0],
                                                   [192.0, 193.0, 194.0, 195.0],
                                                   [196.0, 197.0, 198.0, 199.0]])
        self.assertEqual(model.weights.w_embed[0], [0.0, 1.0, 2.0, 3.0])
        self.assertEqual(model.weights.final_norm.gain, [180.0, 181.0, 182.0, 183.0])
        model = llama2c.load(self.file(tied))
        self.assertEqual((model.config.d_vocab, model.weights.w_unembed), (3, None))

        for data, why in ((struct.pack("<7i188f", *sizes, 0, 2, *range(188)), "vocab_size is 0"),
                          (tied[:-4], "776 bytes, its header asks for 780"),
                          (untied[:-4], "824 bytes, its header asks for 828"),
                          (tied + b"\0" * 4, "784 bytes"), (untied + b"\0" * 4, "832 bytes"),
                          (struct.pack("<I", 0x616B3432) + untied[4:], "0x616b3432")):
            with self.subTest(why), self.assertRaisesRegex(ValueError, why):
                llama2c.load(self.file(data))


# ---- writing ----

class Writing(Folder):
    def written(self, model, **constants):
        path = os.path.join(self.folder, "llama.bin")
        llama2c.save(model, path, **constants)
        return path

    def test_the_bytes_are_those_of_llama2cs_own_writer(self):
        """But for the tables, which it computes in float32."""
        for name in MODELS:
            with self.subTest(name):
                want = content(os.path.join(DATA, name))
                got = content(self.written(llama2c.load(os.path.join(DATA, name))))
                header, tied = llama2c.parse_header(want, name)
                at = HEADER_BYTES
                for leaf, n, shape in layout(header, tied):
                    size = 4 * n * prod(shape)
                    old, new = want[at:at + size], got[at:at + size]
                    if leaf in TABLES:
                        old, new = [list(struct.unpack(f"<{size // 4}f", data))
                                    for data in (old, new)]
                        self.assertLess(difference(new, old), 1e-5)
                    else:
                        self.assertEqual(new, old, leaf)
                    at += size
                self.assertEqual((len(got), len(want)), (at, at))

    def test_there_and_back(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                model = random_llama(seed)
                again = llama2c.load(self.written(model))
                self.assertEqual(again, model)
                self.assertEqual(content(self.written(again)), content(self.written(model)))

    def test_channels_by_halves_are_written_interleaved(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                model = random_llama(seed, "half")
                again = llama2c.load(self.written(model))
                self.assertEqual(again.config.blocks[0].attention.rotary.pairing, "interleaved")
                # the same products, added up in another order
                assert_close(self, logits(again, seed), logits(model, seed), seed, "logits")

    def test_a_hugging_face_llama(self):
        folder = os.path.join(os.path.dirname(DATA), "models", "llama")
        model = pyres.load(folder)
        with self.assertRaisesRegex(ValueError, "eps is 1e-06 where 1e-05 is due"):
            self.written(model)
        again = llama2c.load(self.written(model, eps=1e-6), eps=1e-6)
        untied = llama2c.load(os.path.join(DATA, "untied.bin"), eps=1e-6)
        self.assertEqual(again.weights, untied.weights)

    def test_an_absent_gain_is_written_as_ones(self):
        model = random_llama(1)
        weights = model.weights
        without = model._replace(weights=weights._replace(
            final_norm=weights.final_norm._replace(gain=None)))
        self.assertEqual(logits(llama2c.load(self.written(without)), 1), logits(without, 1))

    def test_what_has_no_place_is_refused_by_name(self):
        model = random_llama(1)
        config, w = model.config, model.weights
        d, attention = config.d_model, config.blocks[0].attention

        def first(**attn):
            block = w.blocks[0]
            blocks = [block._replace(attn=block.attn._replace(**attn))] + w.blocks[1:]
            return model._replace(weights=w._replace(blocks=blocks))

        def blocks(**fields):
            return model._replace(config=changed_block(config, **fields))

        ungated = w._replace(blocks=[block._replace(mlp=block.mlp._replace(w_gate=None))
                                     for block in w.blocks])
        cases = [
            ("there are biases", first(b_o=[0.0] * d)),
            ("attn.q_gain has no place", first(q_gain=[1.0] * attention.d_head)),
            ("the MLP is not gated", model._replace(weights=ungated)),
            ("positions are not rotary", blocks(rotary=None)),
            ("frequencies are not those of theta 10000.0",
             blocks(rotary=RotaryConfig("half", frequencies(attention.d_head, 7.0)))),
            ("window is 3", blocks(window=3)),
            ("multiplier is 0.5", blocks(multiplier=0.5)),
            ("not every norm is an RMSNorm",
             model._replace(config=config._replace(final_norm=norm_config()))),
            ("final_norm.eps is 0.5",
             model._replace(config=config._replace(final_norm=norm_config("rms", 0.5)))),
            ("logit_soft_cap is 30.0", model._replace(config=config._replace(
                logit_soft_cap=30.0))),
            ("b_unembed has no place", model._replace(weights=w._replace(
                b_unembed=[0.0] * config.d_vocab))),
            ("it has no block", model._replace(config=config._replace(blocks=[]))),
            ("seq_len is 2147483648", model._replace(config=config._replace(n_ctx=2 ** 31))),
        ]
        for word, other in cases:
            with self.subTest(word):
                with self.assertRaises(ValueError) as caught:
                    self.written(other)
                self.assertIn(word, str(caught.exception))
                self.assertEqual(os.listdir(self.folder), [])       # and nothing was written

    def test_a_save_that_fails_leaves_the_file(self):
        model = random_llama(3)
        before = content(self.written(model))
        w = model.weights
        large = model._replace(weights=w._replace(
            w_embed=[[1e39] * len(row) for row in w.w_embed]))
        with self.assertRaisesRegex(ValueError, "w_embed has a number beyond the largest float32"):
            self.written(large)
        with mock.patch.object(os, "replace", side_effect=OSError("full")):
            with self.assertRaises(OSError):
                self.written(random_llama(4))
        self.assertEqual(os.listdir(self.folder), ["llama.bin"])
        self.assertEqual(content(os.path.join(self.folder, "llama.bin")), before)

    def test_no_argument_is_changed(self):
        model = random_llama(5, "half")
        before = repr(model)
        self.written(model)
        self.assertEqual(repr(model), before)
        self.assertEqual(len(leaves(model.weights)), len(leaves(llama2c.load(
            self.written(model)).weights)))


if __name__ == "__main__":
    unittest.main()
