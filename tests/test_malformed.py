"""Files that lie, are damaged, or point elsewhere: refused in one line, at once, in no memory.

Where PYRES_GOLDENS names a folder with the whole set, every malformed file and folder of it gets
its verdict here.  long_fuzz has ten thousand cases more, and limits the memory from outside.
"""
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import pyres
from pyres.files import safetensors
from tests import fuzz
from tests.goldens import WHOLE_SET, needs_whole_set, read_json
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
