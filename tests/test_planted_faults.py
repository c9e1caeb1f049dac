"""That every fault which the long tests plant can still be planted."""
import os
import unittest

from tests import long_planted_faults

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pyres")


class PlantedTexts(unittest.TestCase):
    def test_each_text_stands_in_its_file_once(self):
        for fault in long_planted_faults.FAULTS:
            for name, old, new in fault.patches:
                with self.subTest(fault.reason, file=name):
                    with open(os.path.join(PACKAGE, name), encoding="utf-8") as file:
                        self.assertEqual(file.read().count(old), 1, old)
                    self.assertNotEqual(old, new)


if __name__ == "__main__":
    unittest.main()
