"""Ten thousand damaged files, and the malformed ones in a process of 64 MiB.

The cases are those of tests.fuzz, by seed, so that one that fails can be run alone:

    python3 -c "from tests import fuzz; fuzz.run(1234)"
"""
import subprocess
import sys
import unittest

from tests import fuzz
from tests.goldens import needs_whole_set
from tests.test_malformed import ROOT, cases

SECONDS = 1.0           # for one case; most take a hundredth of that

READ = """
import sys, time
import pyres
from pyres.files import safetensors
kind, path = sys.argv[1:]
start = time.perf_counter()
try:
    dict(safetensors.read(path)) if kind == "safetensors" else pyres.load(path)
    print("accept")
except (ValueError, FileNotFoundError):
    print("reject")
print(time.perf_counter() - start < %r)
""" % SECONDS


class LongFuzz(unittest.TestCase):
    def test_ten_thousand_cases(self):
        for seed in range(1000, 11_000):
            with self.subTest(seed=seed):
                fuzz.run(seed)


@needs_whole_set
@unittest.skipUnless(sys.platform == "linux", "ulimit -v does nothing here")
class SmallMemory(unittest.TestCase):
    def test_every_malformed_case_in_64_mebibytes(self):
        small = ["sh", "-c", 'ulimit -v 65536 && exec "$@"', "sh"]
        for case in cases("safetensors", "model_folder"):
            with self.subTest(case["path"]):
                done = subprocess.run(
                    small + [sys.executable, "-S", "-c", READ, case["kind"], case["path"]],
                    cwd=ROOT, capture_output=True, text=True)
                self.assertEqual(done.stdout.split(), [case["verdict"], "True"], done.stderr)


if __name__ == "__main__":
    unittest.main()
