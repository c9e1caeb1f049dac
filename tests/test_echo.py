"""The embedded model: what its card says of it, on fewer strings than the card's."""
import hashlib
import os
import re
import unittest

import pyres
from pyres.data import echo_sequence
from pyres.rng import Generator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "pyres", "models", "echo.safetensors")
SEED_OF_FRESH_STRINGS = 20261                       # not the training's, which is 3


def accuracy(model, edits, n_strings):
    """The share of counted targets at which the top guess is right, on fresh strings."""
    generator, n_right, n = Generator(SEED_OF_FRESH_STRINGS), 0, 0
    for _ in range(n_strings):
        tokens, targets = echo_sequence(generator, model.config.n_ctx)
        for logits, target in zip(pyres.run(model, tokens, edits).logits, targets):
            if target is not None:
                n_right, n = n_right + (logits.index(max(logits)) == target), n + 1
    return n_right / n


class EchoTest(unittest.TestCase):
    N_STRINGS = 40

    def setUp(self):
        self.model = pyres.load()

    def test_it_repeats_what_it_was_told(self):
        self.assertGreaterEqual(accuracy(self.model, (), self.N_STRINGS), 0.99)

    def test_switched_off_branches(self):
        for writer, least, most in (("L0.attn", 0.0, 0.5), ("L1.attn", 0.0, 0.2),
                                    ("L1.mlp", 0.9, 1.0)):
            with self.subTest(writer):
                found = accuracy(self.model, [pyres.scale(writer, 0)], self.N_STRINGS)
                self.assertGreaterEqual(found, least)
                self.assertLessEqual(found, most)

    def test_it_goes_on_with_a_text(self):
        new = pyres.generate(self.model, "mqzkbmqz", 7)
        self.assertEqual(self.model.tokenizer.decode(new), "kbmqzkb")

    def test_its_updates_sum_to_its_final_stream(self):
        check = pyres.sum_check(pyres.run(self.model, "mqzkbmqz"))
        self.assertTrue(check.ok, check)

    def test_the_card_describes_the_file(self):
        with open(FILE, "rb") as file:
            data = file.read()
        with open(os.path.join(ROOT, "docs", "echo.md"), encoding="utf-8") as file:
            card = file.read()
        self.assertIn(hashlib.sha256(data).hexdigest(), card)
        self.assertEqual(re.search(r"([\d,]+) bytes", card).group(1), f"{len(data):,}")
        self.assertLessEqual(len(data), 200_000)


if __name__ == "__main__":
    unittest.main()
