"""The embedded model on as many strings as its card says, and its training again, to the same
bytes."""
import os
import subprocess
import sys
import tempfile
import unittest

from tests import test_echo


class EchoOnManyStrings(test_echo.EchoTest):
    N_STRINGS = 2000


class EchoAgain(unittest.TestCase):
    @unittest.skipUnless(sys.version_info[:2] == (3, 11) and sys.implementation.name == "cpython",
                         "echo was trained with CPython 3.11; elsewhere last digits differ")
    def test_the_recipe_gives_the_shipped_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "echo.safetensors")
            command = [sys.executable, "-m", "pyres", "train", "--task", "echo", "--out", out]
            subprocess.run(command + ["-q"],
                           cwd=test_echo.ROOT, check=True, stdout=subprocess.DEVNULL)
            with open(out, "rb") as made, open(test_echo.FILE, "rb") as shipped:
                self.assertEqual(made.read(), shipped.read())


if __name__ == "__main__":
    unittest.main()
