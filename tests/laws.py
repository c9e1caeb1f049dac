"""What the tests of laws share: seeded draws, walking over records, comparing numbers.

    Draw                               seeded tensors of floats, Fractions, complex, ints, Decimals
    walk, flat, copied, zeros, form    any structure of lists, tuples, records, numbers and None
    lists_in                           which lists a structure is made of
    tensors, tensor, replaced          its tensors by name, and another one in a name's place
    inner, difference, assert_close    comparing; a failure prints seed, both numbers, tolerance
    Dual                               a number and its slope, by the rules of sum and product
    slope_along                        J v, by a complex step or by dual numbers
    attention_weights, ...             random records of weights
    causal_pattern                     a random attention pattern

Nothing here uses a backward of the package: what it says about derivatives is a second opinion.
"""
import math

from pyres import scalar
from pyres.rng import Generator
from pyres.weights import AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights

# A float of size 1 is known to 2**-52.  Sums of some hundred such terms, through a few layers,
# lose two or three digits of the sixteen; a wrong formula is off in the second or third.
TIGHT = 1e-12


# ---- draws ----

class Draw:
    """Seeded draws of one kind of number, about `size` large and never 0.

    kind    float, Fraction, complex, int or Decimal
    """

    def __init__(self, seed, kind=float, size=1):
        self.generator, self.kind, self.size = Generator(seed), kind, size

    def number(self):
        if self.kind is float:
            return self.generator.normal() * self.size
        if self.kind is complex:
            return complex(self.generator.normal(), self.generator.normal()) * self.size
        if self.kind is int:
            return self.generator.below(199) - 99 or 7
        # odd, so that sums seldom cancel to 0, where relu has a kink; eighths, so that sums stay
        # short
        return self.kind(2 * self.generator.below(32) - 31) / 8 * self.size

    def tensor(self, *sizes):
        """A tensor of the given sizes; without any, a number."""
        if not sizes:
            return self.number()
        return [self.tensor(*sizes[1:]) for _ in range(sizes[0])]

    def like(self, structure):
        """A draw for every number of a structure."""
        return walk(lambda a: self.number(), structure)

    def ragged(self, lengths, *sizes):
        """A list of tensors [length][sizes...], one for each length."""
        return [self.tensor(n, *sizes) for n in lengths]


# ---- walking ----

def is_record(x):
    """Whether x is a namedtuple, to be rebuilt by position."""
    return isinstance(x, tuple) and hasattr(x, "_fields")


def walk(f, x, *others):
    """The structure of x, in fresh lists, with f(number, numbers of others at the same place)."""
    if x is None:
        return None
    if isinstance(x, (list, tuple)):
        for other in others:
            if len(other) != len(x):
                raise AssertionError(f"structures differ: {len(x)} parts and {len(other)}")
        parts = [walk(f, *part) for part in zip(x, *others)]
        return type(x)(*parts) if is_record(x) else parts
    return f(x, *others)


def flat(x):
    """Every number of a structure, in order."""
    numbers = []
    walk(numbers.append, x)
    return numbers


def copied(x):
    """The same numbers in fresh lists."""
    return walk(lambda a: a, x)


def zeros(x):
    """A structure of the same form that holds 0 everywhere."""
    return walk(lambda a: 0, x)


def lists_in(x):
    """The identities of all lists in a structure."""
    if not isinstance(x, (list, tuple)):
        return set()
    own = {id(x)} if isinstance(x, list) else set()
    return own.union(*[lists_in(part) for part in x])


def form(x):
    """The shape of a structure: records by name, lists, None as None, a number as a point."""
    if x is None:
        return None
    if is_record(x):
        return (type(x).__name__,) + tuple(form(part) for part in x)
    if isinstance(x, (list, tuple)):
        return [form(part) for part in x]
    return "."


def is_tensor(x):
    """Whether x is a number, or nested lists of numbers; tuples and lists of records are not."""
    while isinstance(x, list) and x:
        x = x[0]
    return x is not None and not isinstance(x, (list, tuple))


def parts_of(x):
    """The parts of a tuple, a record or a list of records, as pairs (name, part)."""
    return list(zip(x._fields if is_record(x) else map(str, range(len(x))), x))


def tensors(x, name=""):
    """The tensors of a structure as pairs (name, tensor)."""
    if is_tensor(x):
        return [(name, x)]
    return [pair for part_name, part in parts_of(x or ())
            for pair in tensors(part, f"{name}.{part_name}")]


def tensor(x, name):
    """The tensor of that name."""
    for part_name in name.split(".")[1:]:
        x = dict(parts_of(x))[part_name]
    return x


def replaced(x, name, tensor):
    """The structure with another tensor in place of the one called `name`, else the same lists."""
    if name == "":
        return tensor
    first, dot, rest = name[1:].partition(".")
    parts = [replaced(part, dot + rest, tensor) if part_name == first else part
             for part_name, part in parts_of(x)]
    return type(x)(*parts) if is_record(x) else type(x)(parts)


# ---- comparing ----

def inner(x, y):
    """The inner product of two structures of one form, and the sum of its terms' sizes."""
    x, y = flat(x), flat(y)
    if len(x) != len(y):
        raise AssertionError(f"inner: {len(x)} numbers and {len(y)}")
    terms = [a * b for a, b in zip(x, y)]
    return sum(terms), sum(abs(a) for a in terms)


def difference(got, want):
    """The largest |got - want| over the largest size on either side; 0 where all is 0.

    NaN anywhere gives infinity.
    """
    got, want = flat(got), flat(want)
    if len(got) != len(want):
        raise AssertionError(f"difference: {len(got)} numbers and {len(want)}")
    gaps = [abs(a - b) for a, b in zip(got, want) if a != b]
    if not gaps:
        return 0
    if not all(gap == gap for gap in gaps):
        return math.inf
    size = max(abs(a) for a in got + want)
    return float(max(gaps) / size)


def assert_close(test, got, want, seed, what, tolerance=TIGHT):
    """Fail unless difference(got, want) <= tolerance, with seed, numbers and tolerance."""
    gap = difference(got, want)
    if not gap <= tolerance:
        pairs = [(a, b) for a, b in zip(flat(got), flat(want)) if a != b]
        a, b = max(pairs, key=lambda pair: _size_of_gap(*pair))
        test.fail(f"{what}, seed {seed}: got {a!r}, want {b!r}; relative difference {gap:.3g}, "
                  f"tolerance {tolerance:g}")


def _size_of_gap(a, b):
    gap = abs(a - b)
    return gap if gap == gap else math.inf


# ---- dual numbers ----

class Dual:
    """value + slope * e, with e * e = 0: arithmetic carries the derivative along, exactly.

    Value and slope may be of any type; over Fractions nothing is rounded.
    """

    def __init__(self, value, slope=0):
        self.value, self.slope = value, slope

    def __repr__(self):
        return f"Dual({self.value!r}, {self.slope!r})"

    def __add__(self, other):
        other = dual(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    __radd__ = __add__

    def __neg__(self):
        return Dual(-self.value, -self.slope)

    def __sub__(self, other):
        return self + -dual(other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        other = dual(other)
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    __rmul__ = __mul__

    def __truediv__(self, other):
        other = dual(other)
        quotient = self.value / other.value
        return Dual(quotient, (self.slope - quotient * other.slope) / other.value)

    def __rtruediv__(self, other):
        return dual(other) / self

    def __abs__(self):
        return -self if self.value < 0 else self

    def __lt__(self, other):
        return self.value < dual(other).value

    def __gt__(self, other):
        return self.value > dual(other).value

    def __le__(self, other):
        return self.value <= dual(other).value

    def __ge__(self, other):
        return self.value >= dual(other).value

    def __eq__(self, other):
        return self.value == dual(other).value and self.slope == dual(other).slope

    __hash__ = None

    def chain(self, value, derivative):
        return Dual(value, derivative * self.slope)

    def sqrt(self):
        root = scalar.sqrt(self.value)
        return self.chain(root, 1 / (2 * root))

    def exp(self):
        return self.chain(math.exp(self.value), math.exp(self.value))

    def log(self):
        return self.chain(math.log(self.value), 1 / self.value)

    def tanh(self):
        return self.chain(math.tanh(self.value), 1 / math.cosh(self.value) ** 2)

    def erf(self):
        return self.chain(math.erf(self.value),
                          2 / math.sqrt(math.pi) * math.exp(-self.value ** 2))


def dual(x):
    return x if isinstance(x, Dual) else Dual(x)


# ---- derivatives along a direction ----

TINY = 1e-30        # its square is below every rounding, and a complex step subtracts nothing


def slope_along(forward, point, direction, step, name=None):
    """J v: how fast forward(*point) changes when the point moves along the direction.

    step    "complex" takes the imaginary part of forward(point + i TINY direction) / TINY;
            "dual" runs forward on dual numbers
    name    the one tensor that moves, see tensors; None for all
    """
    move = (lambda a, v: complex(a, v * TINY)) if step == "complex" else Dual
    if name is None:
        moved = walk(move, point, direction)
    else:
        moved = replaced(point, name, walk(move, tensor(point, name), tensor(direction, name)))
    out = forward(*moved)
    return walk((lambda a: a.imag / TINY) if step == "complex" else (lambda a: dual(a).slope), out)


# ---- random weights ----

def norm_weights(draw, d_model, config):
    """Gain and bias for a NormConfig, or None for None."""
    if config is None:
        return None
    return NormWeights(draw.tensor(d_model),
                       draw.tensor(d_model) if config.kind == "layer" else None)


def attention_weights(draw, d_model, config, biases=True, gains=None):
    """gains: None, "head" or "whole", what the norms on queries and keys take in."""
    q, k = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    gain = {None: (0, 0), "head": (config.d_head, config.d_head), "whole": (q, k)}[gains]
    return AttentionWeights(
        draw.tensor(q, d_model), draw.tensor(k, d_model), draw.tensor(k, d_model),
        draw.tensor(d_model, q),
        *[draw.tensor(n) if biases else None for n in (q, k, k, d_model)],
        *[draw.tensor(n) if n else None for n in gain])


def mlp_weights(draw, d_model, d_mlp, biases=True, gated=False):
    return MLPWeights(
        draw.tensor(d_mlp, d_model) if gated else None,
        draw.tensor(d_mlp, d_model), draw.tensor(d_model, d_mlp),
        draw.tensor(d_mlp) if gated and biases else None,
        draw.tensor(d_mlp) if biases else None, draw.tensor(d_model) if biases else None)


def block_weights(draw, d_model, config, biases=True, gated=False, gains=None, multipliers=False):
    """multipliers: a learned number on attention and a learned vector on the MLP."""
    return BlockWeights(
        norm_weights(draw, d_model, config.attn_norm),
        attention_weights(draw, d_model, config.attention, biases, gains),
        norm_weights(draw, d_model, config.attn_post_norm), draw.tensor() if multipliers else None,
        norm_weights(draw, d_model, config.mlp_norm),
        mlp_weights(draw, d_model, config.d_mlp, biases, gated),
        norm_weights(draw, d_model, config.mlp_post_norm),
        draw.tensor(d_model) if multipliers else None)


def model_weights(draw, config, tied=False, positions=True, unembed_bias=True, **options):
    """options go to block_weights."""
    d, v = config.d_model, config.d_vocab
    return ModelWeights(
        draw.tensor(v, d), draw.tensor(config.n_ctx, d) if positions else None,
        [block_weights(draw, d, block, **options) for block in config.blocks],
        norm_weights(draw, d, config.final_norm),
        None if tied else draw.tensor(v, d), draw.tensor(v) if unembed_bias else None)


# ---- attention patterns ----

def causal_pattern(draw, n_tokens):
    """A random pattern [n_tokens][n_tokens] whose rows sum to 1 over what a token sees; of whole
    numbers, whose rows then have other sums, where the draw is of ints."""
    rows = []
    for t in range(n_tokens):
        parts = [1 + draw.generator.below(9) for _ in range(t)]
        parts += [64 - sum(parts)] + [0] * (n_tokens - t - 1)
        rows.append(parts if draw.kind is int else [draw.kind(part) / 64 for part in parts])
    return rows


# ---- which numbers ----

def kinds(x):
    """The names of the types of a structure's numbers, sorted."""
    return sorted({type(a).__name__ for a in flat(x)})


def is_exact(x):
    """Whether a structure holds ints and Fractions alone."""
    return set(kinds(x)) <= {"int", "Fraction"}

