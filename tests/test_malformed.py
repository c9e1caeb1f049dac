"""Files that lie, are damaged, or point elsewhere: refused in one line, at once, in no memory.

Where PYRES_GOLDENS names a folder with the whole set, every malformed file and folder of it gets
its verdict here.  long_fuzz has ten thousand cases more, and limits the memory from outside.
"""
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import pyres
from pyres.files import llama2c, native, opening, safetensors, shards, tokenizers
from pyres.model import small_model
from tests import fuzz
from tests.goldens import DATA, WHOLE_SET, needs_whole_set, read_json
from tests.test_safetensors import MEBIBYTE, flat_bits, peak_memory

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class FuzzTest(unittest.TestCase):
    def test_damage_is_refused_or_does_no_harm(self):
        for seed in range(20 * len(fuzz.KINDS)):
            with self.subTest(seed=seed):
                fuzz.run(seed)

    def test_a_reader_that_goes_elsewhere_is_caught(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(AssertionError, "was opened"):
                fuzz.answer(lambda: open(__file__, "rb").close(), folder)

    def test_a_wrong_answer_is_caught(self):
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        data = struct.pack("<Q", len(header)) + header + bytes(4)
        with tempfile.TemporaryDirectory() as folder:
            fuzz.check_file(data, folder)
            other = {"w": ("F32", (1,), [1.0])}
            with mock.patch.object(fuzz, "believed", lambda data: other):
                with self.assertRaisesRegex(AssertionError, "w: "):
                    fuzz.check_file(data, folder)


LISTENING = """
import sys
import pyres
from pyres.files import huggingface
opened = []
sys.addaudithook(lambda event, arguments: event == "open" and opened.append(arguments[0]))
try:
    pyres.load(sys.argv[1])
except ValueError as error:
    print("refused")
print([path for path in opened if "outside" in str(path) or "passwd" in str(path)])
"""


class OutsideTest(unittest.TestCase):
    """What the interpreter itself says of the files that are opened."""

    def test_nothing_outside_the_folder_is_opened(self):
        if not hasattr(sys, "addaudithook"):
            self.skipTest("no audit hooks here")
        from tests.test_huggingface import Sharded, sharded
        for name in ("../outside.safetensors", "./../outside.safetensors", "/etc/passwd"):
            with self.subTest(name), sharded(Sharded().moved(name)) as folder:
                done = subprocess.run([sys.executable, "-c", LISTENING, folder], cwd=ROOT,
                                      capture_output=True, text=True)
                self.assertEqual(done.stdout.split("\n")[:2], ["refused", "[]"], done.stderr)


POINTER = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16
           + b"\nsize 548105171\n")
INSTEAD = ((POINTER, "is a pointer of Git LFS"), (b"<!DOCTYPE html><html>", "is a web page"),
           (b"\n<html>", "is a web page"), (b"GGUF\3\0\0\0", "is a GGUF file"),
           (b"PK\3\4" + bytes(60), "is a PyTorch archive"), (b"\x80\x02}q\0.", "is a pickle"))


class AnotherKindOfFile(unittest.TestCase):
    """What was fetched, or what a name leads to, is something else."""

    def refused(self, words, read, *arguments):
        with self.assertRaisesRegex(ValueError, words) as caught:
            read(*arguments)
        self.assertNotIn("\n", str(caught.exception))

    def test_it_is_known_by_its_beginning(self):
        from tests.test_huggingface import Sharded, changed, sharded
        gpt2_bpe = os.path.join(DATA, "tokenizers", "gpt2_bpe")
        for data, words in INSTEAD:
            with changed("gpt2") as folder:
                for name in ("vocab.json", "merges.txt"):
                    shutil.copy(os.path.join(gpt2_bpe, name), folder)
                for name in ("merges.txt", "vocab.json", "tokenizer.json", "model.safetensors",
                             "config.json"):                # each is read before those before it
                    put(data, folder, name)
                    self.refused(f"{name} {words}", pyres.load, folder)
                for name in ("w.safetensors", "w.bin", "w"):
                    put(data, folder, name)
                    self.refused(f"{name} {words}", pyres.load, os.path.join(folder, name))
                put(data, folder, "tokenizer.bin")
                self.refused(words, tokenizers.load, os.path.join(folder, "tokenizer.bin"))
            with sharded() as folder:
                for name in (Sharded.SECOND, shards.INDEX):
                    put(data, folder, name)
                    self.refused(f"{name} {words}", pyres.load, folder)

    def test_a_pipe_a_device_or_a_folder_is_none(self):
        if not hasattr(os, "mkfifo"):
            self.skipTest("no pipes with names here")

        def device(path):
            os.symlink("/dev/zero", path)

        # the pipe at last: to open it would never end
        for make in (os.mkdir, device, os.mkfifo):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "some")
                make(path)
                for read in (opening.read_json, safetensors.read, llama2c.load):
                    self.refused("some is no file, but a folder, a pipe or a device", read, path)


class MetadataTest(unittest.TestCase):
    """pyres's own files, with another's metadata or tensors."""

    def refused(self, words, characters=None, more=()):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "small.safetensors")
            native.save(small_model(), path)
            stored = safetensors.read(path)
            metadata = dict(stored.metadata)
            if characters is not None:
                metadata["characters"] = characters
            safetensors.write(path, dict(stored, **dict(more)), metadata)
            with self.assertRaises(ValueError) as caught:
                pyres.load(path)
            self.assertIn(words, str(caught.exception))
            self.assertTrue(str(caught.exception).isprintable())

    def test_characters(self):
        for wrong in ("3", "[]", "{}", '{"tokens": ["a", "b"]}', '{"tokens": 3, "bos": null}',
                      '{"tokens": "ab", "bos": null}', '{"tokens": [], "bos": 1, "eos": 2}'):
            self.refused("characters are null, or an object of a list, tokens, and bos", wrong)
        for wrong in ('["a", "a"]', '["a", ""]', "[1, 2]", '[["a"], ["b"]]', "[null, {}]"):
            self.refused("tokens are texts, none empty and no two alike",
                         '{"tokens": %s, "bos": null}' % wrong)
        self.refused("1 characters for a vocabulary of 2", '{"tokens": ["a"], "bos": null}')
        self.refused("no JSON, or cut short", '{"tokens": ["a"')

    def test_a_tensors_name_draws_nothing_on_a_terminal(self):
        self.refused("is no weight of this config", more={"a\nb\x1b[31m": [1.0]})


def put(data, folder, name):
    """Write bytes to a file of a folder."""
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def cases(*kinds):
    """The malformed cases of these kinds, with their paths."""
    root = os.path.join(WHOLE_SET, "malformed")
    return [dict(case, path=os.path.join(root, case["path"]))
            for case in read_json(root, "malformed.json")["cases"] if case["kind"] in kinds]


@needs_whole_set
class WholeSetTest(unittest.TestCase):
    def test_every_case_gets_its_verdict(self):
        found = cases("safetensors", "model_folder")
        self.assertEqual(len(found), 134)
        for case in found:
            with self.subTest(case["path"], what=case["what"]):
                self.check(case)

    def check(self, case):
        refusals, start = [], time.perf_counter()

        def read():
            try:
                if case["kind"] == "safetensors":
                    return dict(safetensors.read(case["path"]))
                return pyres.load(case["path"])
            except (ValueError, FileNotFoundError) as error:
                refusals.append(error)

        peak = peak_memory(read)
        self.assertLess(time.perf_counter() - start, 1.0)
        self.assertLess(peak, MEBIBYTE)
        if case["verdict"] == "reject":
            self.assertEqual(len(refusals), 1)
            self.assertNotIn("\n", str(refusals[0]))
            self.assertLess(len(str(refusals[0])) - len(case["path"]), 400)
        else:
            self.assertEqual(refusals, [])
            for name, want in case.get("tensors", {}).items():
                tensors = safetensors.read(case["path"])
                self.assertEqual(flat_bits(tensors[name]), flat_bits(want["values"]), name)


if __name__ == "__main__":
    unittest.main()
