"""Random numbers with the same bits on every Python: splitmix64, and draws that use no libm.

splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) adds a
fixed odd number to a 64-bit state and scrambles a copy.  Its whole state is one integer, so a
training run can write it down and go on from it.

    Generator(seed)       .next() 64 bits, .below(n), .uniform(), .normal(), .shuffled(items)
    normal_tensor         a tensor of independent draws

>>> g = Generator(0)
>>> [hex(g.next()) for _ in range(2)]
['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
"""
__all__ = ["Generator", "normal_tensor"]

MASK = (1 << 64) - 1
STEP, MIX, MIX_AGAIN = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# `normal` has twelve lanes of 128 bits in one integer.  In each lane: 1; the mask of its lower
# half; how far its state is ahead.
ONES = sum([1 << 128 * i for i in range(12)])
LOW = ONES * MASK
AHEAD = sum([((i + 1) * STEP & MASK) << 128 * i for i in range(12)])


class Generator:
    """A stream of draws; `state` is all of it, and Generator(state) goes on from there.

    >>> a = Generator(7)
    >>> first = a.next()
    >>> b = Generator(a.state)
    >>> a.next() == b.next()
    True
    """

    def __init__(self, seed):
        if type(seed) is not int:
            raise TypeError(f"Generator: the seed is a whole number, got {type(seed).__name__}")
        self.state = seed & MASK

    def next(self):
        """64 random bits, as an int.

        >>> Generator(1234567).next()
        6457827717110365317
        """
        self.state = z = (self.state + STEP) & MASK
        z = ((z ^ (z >> 30)) * MIX) & MASK
        z = ((z ^ (z >> 27)) * MIX_AGAIN) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        """A whole number from 0 to n - 1, each equally likely.  Raises ValueError for n below 1.

        Draws from the uneven end of the 64 bits' range are thrown away.

        >>> g = Generator(1)
        >>> [g.below(6) for _ in range(8)]
        [5, 1, 0, 5, 3, 2, 3, 3]
        """
        if not 1 <= n <= MASK + 1:
            raise ValueError(f"below: n is {n}, expected 1 to 2**64")
        even_end = (MASK + 1) // n * n
        draw = self.next()
        while draw >= even_end:
            draw = self.next()
        return draw % n

    def uniform(self):
        """A float in [0, 1): 53 random bits over 2**53.

        >>> from pyres.show import rounded
        >>> g = Generator(0)
        >>> rounded([g.uniform() for _ in range(4)])
        [0.883, 0.432, 0.026, 0.971]
        """
        return (self.next() >> 11) / 9007199254740992.0

    def normal(self):
        """A float of mean 0 and variance 1, nearly Gaussian, never beyond 6 in size.

        The sum of twelve uniforms less six.  The twelve are added as integers of 48 bits, whose
        sum a float holds exactly, and divided once by a power of two: nothing rounds differently
        anywhere.

        >>> from pyres.show import rounded
        >>> g = Generator(0)
        >>> rounded([g.normal() for _ in range(4)])
        [0.046, 1.383, 0.137, -1.692]
        """
        # `next` twelve times at once, each in a lane of its own.  A product of 64 bits by 64 bits
        # stays in its lane; what a shift takes over from the lane above stands in the upper half.
        z = (self.state * ONES + AHEAD) & LOW
        self.state = z >> 11 * 128
        z = ((z ^ ((z >> 30) & LOW)) * MIX) & LOW
        z = ((z ^ ((z >> 27) & LOW)) * MIX_AGAIN) & LOW
        z = ((z ^ (z >> 31)) >> 16) & LOW
        # 2**128 is 1 more than the divisor, so what remains is the sum of the lanes
        return z % ((1 << 128) - 1) / 281474976710656.0 - 6.0

    def shuffled(self, items):
        """The items in random order, each order equally likely (Fisher and Yates).

        >>> Generator(3).shuffled("abcd")
        ['c', 'd', 'a', 'b']
        """
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


def normal_tensor(generator, shape, std=1.0):
    """A tensor of the given shape (a tuple of sizes) of normal draws times std.

    >>> x = normal_tensor(Generator(0), (2, 3))
    >>> [len(row) for row in x], -6 <= x[0][0] <= 6
    ([3, 3], True)
    """
    if not shape:
        return generator.normal() * std
    return [normal_tensor(generator, shape[1:], std) for _ in range(shape[0])]
