"""Laws of the generator: `normal` is twelve calls of `next`, and nearly Gaussian."""
import unittest

from pyres.rng import Generator, normal_tensor

SEEDS = (0, 1, -1, 2 ** 63, 2 ** 64 - 1, 0xFFFFFFFF00000000, 12345678901234567890)


class GeneratorLaws(unittest.TestCase):
    def test_a_normal_draw_is_the_sum_of_twelve_uniform_ones(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                a, b = Generator(seed), Generator(seed)
                for _ in range(100):
                    total = sum([b.next() >> 16 for _ in range(12)])
                    self.assertEqual(a.normal(), total / 2.0 ** 48 - 6)
                    self.assertEqual(a.state, b.state)

    def test_moments(self):
        """Of n draws the mean is within 5 / sqrt(n), the mean square within 5 sqrt(2 / n)."""
        draws = normal_tensor(Generator(3), (4000,))
        self.assertAlmostEqual(sum(draws) / 4000, 0, delta=0.08)
        self.assertAlmostEqual(sum([a * a for a in draws]) / 4000, 1, delta=0.12)


if __name__ == "__main__":
    unittest.main()
