"""Laws of pyres.files.safetensors and of the strict JSON under it.

A file is either read exactly or refused with a ValueError of one line that names it, before memory
is taken; what is written reads back as it was; what fails leaves the old file alone.
"""
import base64
import json
import math
import os
import random
import struct
import sys
import tempfile
import unittest
import zlib
from fractions import Fraction
from unittest import mock

from pyres.files import safetensors, strict_json

try:
    import tracemalloc
except ImportError:     # PyPy has none: there refusals are checked, their memory is not
    tracemalloc = None

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
MEBIBYTE = 2 ** 20


def peak_memory(function):
    """The most memory, in bytes, that function() held at once; 0 where nothing can tell."""
    if tracemalloc is None:
        function()
        return 0
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def data_json(name):
    with open(os.path.join(DATA, name), encoding="ascii") as file:
        return json.load(file)


def bits(number):
    """A number as bytes of its own, so that -0.0 differs from 0.0; all NaN are one."""
    if isinstance(number, str):
        number = float(number)
    if isinstance(number, float):
        return "nan" if number != number else struct.pack("<d", number)
    return number


def flat_bits(tensor):
    return [bits(number) for number in safetensors.flatten(tensor)[1]]


def entry(begin, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def file_bytes(header, data=b""):
    """A safetensors file from data and its header: a dict, or bytes for what no dict can hold."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8")
    return struct.pack("<Q", len(text)) + text + data


class FileCase(unittest.TestCase):
    """A folder for each test, and what it means to refuse a file."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(folder.name, "some.safetensors")

    def put(self, content):
        with open(self.path, "wb") as file:
            file.write(content)

    def get(self):
        with open(self.path, "rb") as file:
            return file.read()

    def read_all(self):
        return dict(safetensors.read(self.path))

    def assertRefused(self, *words):
        """Reading raises ValueError in one line, with the file's name and words, in no memory."""
        caught = []

        def attempt():
            with self.assertRaises(ValueError) as context:
                self.read_all()
            caught.append(context.exception)

        self.assertLess(peak_memory(attempt), MEBIBYTE)
        message = str(caught[0])
        self.assertTrue(message.startswith(self.path), message)
        self.assertNotIn("\n", message)
        self.assertLess(len(message) - len(self.path), 400)
        for word in words:
            self.assertIn(word, message)


class ReadTest(FileCase):
    def test_every_file_of_the_collection_gets_its_verdict(self):
        for case in data_json("malformed_safetensors.json"):
            packed = base64.b64decode(case.get("base64") or case.get("zlib_base64") or "")
            self.put(zlib.decompress(packed) if "zlib_base64" in case else packed)
            with self.subTest(case["name"], what=case["what"]):
                if case["verdict"] == "reject":
                    self.assertRefused()
                else:
                    self.assertHolds(safetensors.read(self.path), case["tensors"])

    def assertHolds(self, tensors, expected):
        self.assertEqual(set(tensors), set(expected))
        for name, want in expected.items():
            self.assertEqual(tensors.dtype(name), want["dtype"])
            self.assertEqual(tensors.shape(name), tuple(want["shape"]))
            self.assertEqual(flat_bits(tensors[name]), list(map(bits, want["values"])))
            if math.prod(want["shape"]):
                self.assertEqual(safetensors.flatten(tensors[name])[0], tuple(want["shape"]))

    def test_extreme_values_of_every_dtype_are_exact(self):
        tensors = safetensors.read(os.path.join(DATA, "dtypes.safetensors"))
        self.assertHolds(tensors, data_json("dtypes.json"))
        for name in tensors:
            kind = float if tensors.dtype(name) in safetensors.FLOATS else int
            numbers = safetensors.flatten(tensors[name])[1]
            self.assertEqual({type(number) for number in numbers} | {kind}, {kind}, name)

    def test_a_name_given_twice_is_named(self):
        one = json.dumps(entry(0, 4)).encode()
        self.put(file_bytes(b'{"w":' + one + b',"w":' + one + b"}", bytes(4)))
        self.assertRefused("'w'", "twice")

    def test_ranges_must_be_tight(self):
        for why, header, n_bytes, words in [
                ("overlap", {"x": entry(0, 4), "y": entry(0, 4)}, 4, ["'y'", "byte 0", "4 is"]),
                ("hole", {"x": entry(0, 4), "y": entry(8, 12)}, 12, ["'y'", "byte 8", "4 is"]),
                ("trailing", {"x": entry(0, 4)}, 8, ["need 4", "has 8"]),
                ("cut short", {"x": entry(0, 4)}, 3, ["need 4", "has 3"]),
                ("reversed", {"x": entry(4, 0)}, 4, ["'x'", "[4, 0]"]),
                ("too small", {"x": entry(0, 4, (1000, 1000))}, 4, ["4000000", "give 4"])]:
            with self.subTest(why):
                self.put(file_bytes(header, bytes(n_bytes)))
                self.assertRefused(*words)

    def test_the_header_may_list_tensors_in_any_order(self):
        self.put(file_bytes({"y": entry(4, 8), "x": entry(0, 4)}, struct.pack("<2f", 1.5, -2.0)))
        self.assertEqual(list(self.read_all().items()), [("y", [-2.0]), ("x", [1.5])])

    def test_a_hostile_beginning_is_refused(self):
        for why, content in [
                ("a length of 2^63 - 1", struct.pack("<Q", 2 ** 63 - 1) + bytes(8)),
                ("seven bytes", bytes(7)),
                ("a hundred thousand brackets", file_bytes(b"[" * 100_000)),
                ("brackets inside an object", file_bytes(b'{"w":' + b"[" * 100_000)),
                ("no UTF-8", file_bytes(b"\xff\xfe")),
                ("a list", file_bytes(b"[1,2]"))]:
            with self.subTest(why):
                self.put(content)
                self.assertRefused()

    def test_a_header_above_the_cap_is_refused_though_the_file_is_as_long(self):
        with open(self.path, "wb") as file:
            file.write(struct.pack("<Q", 132_095_296) + b"{")
            # Without the bytes in between, the file takes no room on the disk.
            file.truncate(2 ** 28)
        self.assertRefused("132095296", "100000000")

    def test_a_header_below_the_cap_but_beyond_the_file_is_refused(self):
        self.put(struct.pack("<Q", 90_000_000) + b'{"w":')
        self.assertRefused("90000000", "has 5")

    def test_a_length_is_not_taken_for_another_kind_of_file(self):
        """This header's length is written 80 02 01, as pickles begin."""
        header = b'{"w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}'
        self.put(file_bytes(header.ljust(0x010280), b"\x07"))
        self.assertEqual(self.read_all(), {"w": [7]})

    def test_shapes_that_take_no_bytes_take_no_memory_either(self):
        self.put(file_bytes({"w": entry(0, 0, (10 ** 12, 0))}))
        self.assertRefused("'w'", "empty lists")
        self.put(file_bytes({"w": entry(0, 0, (10 ** 6, 10 ** 6, 0, 3))}))
        self.assertRefused("'w'", "empty lists")
        self.put(file_bytes({"w": entry(0, 0, (0, 10 ** 12)), "v": entry(0, 0, (2, 0, 10 ** 12))}))
        self.assertEqual(self.read_all(), {"w": [], "v": [[], []]})

    def test_sizes_are_bounded_before_they_are_multiplied(self):
        self.put(file_bytes({"w": entry(0, 4, [1] * 65)}, bytes(4)))
        self.assertRefused("65 dimensions")
        self.put(file_bytes({"w": entry(0, 4, [10 ** 250] * 64)}, bytes(4)))
        self.assertRefused("'w'", "shape")
        self.put(file_bytes({"w": entry(0, 4, [2 ** 64 - 1] * 64)}, bytes(4)))
        self.assertRefused("'w'", "bits", "give 4")

    def test_half_precision(self):
        wide = bytes.fromhex("c03f 807f c07f c347 0100")
        narrow = bytes.fromhex("003e 007c")
        self.put(file_bytes({"b": entry(0, 10, (5,), "BF16"), "h": entry(10, 14, (2,), "F16")},
                            wide + narrow))
        tensors = self.read_all()
        expected = [1.5, math.inf, math.nan, 99840.0, 9.183549615799121e-41]
        self.assertEqual(flat_bits(tensors["b"]), flat_bits(expected))
        self.assertEqual(tensors["h"], [1.5, math.inf])

    def test_a_bool_byte_is_0_or_1(self):
        self.put(file_bytes({"w": entry(0, 3, (3,), "BOOL")}, b"\0\1\2"))
        self.assertRefused("'w'", "BOOL", "2")

    def test_other_dtypes_are_refused_by_name(self):
        for dtype in ["F8_E4M3", "C64", "f32", 32, None, ["F32"]]:
            with self.subTest(dtype=dtype):
                self.put(file_bytes({"w": entry(0, 4, (4,), dtype)}, bytes(4)))
                self.assertRefused("'w'", repr(dtype), "BF16")

    def test_an_entry_has_its_three_fields_and_no_others(self):
        self.put(file_bytes({"w": dict(entry(0, 4), extra=1)}, bytes(4)))
        self.assertRefused("'w'", "data_offsets")
        self.put(file_bytes({"w": entry(0, 4), "__metadata__": None}, bytes(4)))
        self.assertRefused("__metadata__")

    def test_a_machine_of_the_other_byte_order_swaps(self):
        other = "big" if sys.byteorder == "little" else "little"
        for dtype in safetensors.DTYPES:
            if dtype in ("F16", "BF16"):
                continue
            with self.subTest(dtype=dtype):
                data = safetensors.encode([1, 0], dtype)
                width = safetensors.DTYPES[dtype].width
                swapped = b"".join(data[k:k + width][::-1] for k in range(0, len(data), width))
                with mock.patch.object(sys, "byteorder", other):
                    self.assertEqual(safetensors.decode(swapped, dtype), [1, 0])

    def test_the_mapping_reads_only_what_is_asked_for(self):
        safetensors.write(self.path, {"w": [[1.0, 2.0]], "v": [3.0]}, {"by": "me"})
        tensors = safetensors.read(self.path)
        with mock.patch("builtins.open", side_effect=AssertionError("a tensor was read")):
            self.assertIn("w", tensors)
            self.assertNotIn("u", tensors)
            self.assertEqual((list(tensors), len(tensors)), (["w", "v"], 2))
            self.assertEqual((tensors.shape("w"), tensors.dtype("w")), ((1, 2), "F32"))
            self.assertEqual((tensors.metadata, tensors.path), ({"by": "me"}, self.path))
            self.assertIn(self.path, repr(tensors))
            for ask in (tensors.__getitem__, tensors.shape, tensors.dtype):
                with self.assertRaisesRegex(KeyError, "no tensor 'u'"):
                    ask("u")
            self.assertIsNone(tensors.get("u"))
        with self.assertRaises(TypeError):
            tensors["w"] = [[0.0, 0.0]]

    def test_each_reading_is_a_fresh_list(self):
        safetensors.write(self.path, {"w": [[1.0, 2.0]]})
        tensors = safetensors.read(self.path)
        tensors["w"][0][0] = 9.0
        self.assertEqual(tensors["w"], [[1.0, 2.0]])

    def test_a_file_replaced_in_between_is_noticed(self):
        safetensors.write(self.path, {"w": [1.0, 2.0]})
        tensors, old_time = safetensors.read(self.path), os.stat(self.path).st_mtime_ns
        safetensors.write(self.path, {"w": [3.0, 4.0]})
        # Even where the new file has the size and the time of the old one.
        os.utime(self.path, ns=(old_time, old_time))
        with self.assertRaisesRegex(ValueError, "changed"):
            tensors["w"]
        os.truncate(self.path, 20)
        with self.assertRaisesRegex(ValueError, "changed"):
            tensors["w"]

    def test_a_missing_file_is_an_oserror(self):
        with self.assertRaises(FileNotFoundError):
            safetensors.read(self.path)
        with self.assertRaisesRegex(ValueError, "is no file, but a folder"):
            safetensors.read(self.folder)


def draw(rng, dtype, shape):
    """Random numbers of a dtype, with its extremes among them, as a nested list."""
    width, _, smallest, largest = safetensors.DTYPES[dtype]
    if dtype in safetensors.FLOATS:
        def number():
            special = [0.0, -0.0, math.inf, -math.inf, math.nan, smallest, largest]
            return rng.choice(special) if rng.random() < 0.2 else random_float(rng, dtype)
    else:
        def number():
            return rng.choice([smallest, largest, rng.randint(smallest, largest)])
    return safetensors.nest([number() for _ in range(math.prod(shape))], shape)


def random_float(rng, dtype):
    """A number of a float dtype, from random bits, so that subnormal ones come too."""
    width = safetensors.DTYPES[dtype].width
    return safetensors.decode(bytes(rng.randrange(256) for _ in range(width)), dtype)[0]


class RoundTripTest(FileCase):
    def test_write_then_read_is_the_identity(self):
        for seed in range(20):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                order = rng.sample(sorted(safetensors.DTYPES), len(safetensors.DTYPES))
                dtypes = {f"{dtype}.é\n": dtype for dtype in order}
                given = {}
                for name, dtype in dtypes.items():
                    shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 4))]
                    given[name] = draw(rng, dtype, shape)
                metadata = {"seed": str(seed), "": "\"\\\n😀"}
                safetensors.write(self.path, given, metadata, dtypes)
                tensors = safetensors.read(self.path)
                self.assertEqual(list(tensors), list(given))
                self.assertEqual(tensors.metadata, metadata)
                for name, tensor in given.items():
                    self.assertEqual(tensors.dtype(name), dtypes[name])
                    self.assertEqual(tensors.shape(name), safetensors.flatten(tensor)[0])
                    self.assertEqual(flat_bits(tensors[name]), flat_bits(tensor), name)

    def test_a_file_read_and_written_again_is_the_same_file(self):
        for seed in range(5):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                dtypes = {dtype.lower(): dtype for dtype in safetensors.DTYPES}
                safetensors.write(self.path, {name: draw(rng, dtype, (3, 2))
                                              for name, dtype in dtypes.items()}, dtype=dtypes)
                before = self.get()
                safetensors.write(self.path, safetensors.read(self.path), dtype=dtypes)
                self.assertEqual(self.get(), before)

    def test_the_bytes_are_those_of_the_format(self):
        safetensors.write(self.path, [("b", [[1.0, -2.0]]), ("a", 7)], {"k": "v"}, {"a": "U8"})
        header = (b'{"__metadata__":{"k":"v"},'
                  b'"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
                  b'"a":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}')
        header += b" " * (-len(header) % 8)
        self.assertEqual(self.get(), file_bytes(header, struct.pack("<2fB", 1.0, -2.0, 7)))

    def test_the_data_begin_at_a_multiple_of_8_bytes(self):
        for n in range(20):
            safetensors.write(self.path, {"n" * n: 1.0})
            length, = struct.unpack("<Q", self.get()[:8])
            self.assertEqual(length % 8, 0)

    def test_no_tensors_and_empty_tensors(self):
        for tensors in [{}, {"w": []}, {"w": [[], []], "v": [1.0], "u": [[[]]]}]:
            with self.subTest(tensors=tensors):
                safetensors.write(self.path, tensors)
                self.assertEqual(self.read_all(), tensors)
                self.assertEqual(safetensors.read(self.path).metadata, {})

    def test_tuples_and_ints_are_written_as_lists_and_floats(self):
        safetensors.write(self.path, {"w": ((1, 2), (3, 4))})
        self.assertEqual(repr(self.read_all()["w"]), "[[1.0, 2.0], [3.0, 4.0]]")


def nearest(number, dtype):
    """The number of the dtype nearest to a float, by exact fractions over its two neighbours.

    The bits of positive floats, read as integers, count upwards as the floats do: bisection finds
    the largest pattern that is no greater; of it and the next, the nearer, or the even one.
    """
    width = safetensors.DTYPES[dtype].width

    def value(pattern):
        return Fraction(safetensors.decode(pattern.to_bytes(width, "little"), dtype)[0])

    low, high = 0, {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000}[dtype]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) <= abs(number) else (low, middle)
    below, above = abs(number) - value(low), value(low + 1) - abs(number)
    pattern = low if below < above or (below == above and low % 2 == 0) else low + 1
    return math.copysign(float(value(pattern)), number)


class RoundingTest(unittest.TestCase):
    def test_floats_are_rounded_to_the_nearest(self):
        for dtype, exponent in [("F16", 14), ("BF16", 126), ("F32", 126)]:
            for seed in range(200):
                rng = random.Random(seed)
                number = rng.uniform(-1, 1) * 2.0 ** rng.randint(-exponent - 30, exponent)
                with self.subTest(dtype=dtype, seed=seed, number=number):
                    got, = safetensors.decode(safetensors.encode([number], dtype), dtype)
                    self.assertEqual(bits(got), bits(nearest(number, dtype)))

    def test_halfway_goes_to_the_even_neighbour(self):
        for dtype, low in [("F16", -10), ("BF16", -7), ("F32", -23)]:
            step = 2.0 ** low
            got = safetensors.decode(safetensors.encode(
                [1 + step / 2, 1 + 3 * step / 2, -1 - step / 2], dtype), dtype)
            self.assertEqual(got, [1.0, 1 + 2 * step, -1.0], dtype)

    def test_bf16_is_rounded_once(self):
        # By way of F32 this would first become 1 + 2^-8, halfway, and then the even 1.
        data = safetensors.encode([1 + 2.0 ** -8 + 2.0 ** -40], "BF16")
        self.assertEqual(safetensors.decode(data, "BF16"), [1 + 2.0 ** -7])

    def test_bf16_by_the_integer_formula(self):
        """On F32 values, rounding is adding 0x7fff and the last bit kept, then cutting."""
        for seed in range(500):
            rng = random.Random(seed)
            pattern = rng.getrandbits(31)
            number, = struct.unpack("<f", struct.pack("<I", pattern))
            if not math.isfinite(number) or number > safetensors.DTYPES["BF16"].largest:
                continue
            rounded = (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16
            with self.subTest(seed=seed, number=number):
                self.assertEqual(safetensors.encode([number], "BF16"), struct.pack("<H", rounded))

    def test_bf16_is_the_upper_half_of_an_f32(self):
        for upper in range(0, 2 ** 16, 7):
            number, = struct.unpack("<f", struct.pack("<HH", 0, upper))
            got, = safetensors.decode(struct.pack("<H", upper), "BF16")
            self.assertEqual(bits(got), bits(number))
            if number == number:
                self.assertEqual(safetensors.encode([number], "BF16"), struct.pack("<H", upper))

    def test_nan_stays_nan_whatever_its_payload(self):
        for pattern in [0x7FF0000000000001, 0x7FF8000000000000,
                        0xFFF0000020000000, 0xFFFFFFFFFFFFFFFF]:
            number, = struct.unpack("<d", struct.pack("<Q", pattern))
            for dtype in safetensors.FLOATS:
                got, = safetensors.decode(safetensors.encode([number], dtype), dtype)
                self.assertTrue(math.isnan(got), (hex(pattern), dtype))

    def test_the_largest_fits_and_what_rounds_beyond_does_not(self):
        for dtype, digits in [("F16", 11), ("BF16", 8), ("F32", 24)]:
            largest = safetensors.DTYPES[dtype].largest
            half_step = largest / (2 ** digits - 1) / 2
            for number, fits in [(largest, True), (largest + half_step * 0.999, True),
                                 (largest + half_step, False), (sys.float_info.max, False)]:
                with self.subTest(dtype=dtype, number=number):
                    if fits:
                        data = safetensors.encode([number, -number], dtype)
                        self.assertEqual(safetensors.decode(data, dtype), [largest, -largest])
                    else:
                        self.assertRaises(OverflowError, safetensors.encode, [-number], dtype)


class WriteTest(FileCase):
    def setUp(self):
        super().setUp()
        safetensors.write(self.path, {"old": [1.0]})
        self.old = self.get()

    def assertNotWritten(self, error, words, *arguments, **options):
        """write raises `error` with `words`, the old file is as it was and nothing lies about."""
        with self.assertRaises(error) as caught:
            safetensors.write(self.path, *arguments, **options)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(self.get(), self.old)
        self.assertEqual(os.listdir(self.folder), ["some.safetensors"])

    def test_what_is_no_tensor_is_refused(self):
        w = "tensor 'w'"
        for error, tensor, dtype, words in [
                (ValueError, [[1.0, 2.0], [3.0]], "F32", [w, "[1] has length 1", "length 2"]),
                (ValueError, [[[1.0]], [[1.0, 2.0]]], "F32", [w, "[1][0]", "[0][0]"]),
                (ValueError, [[1.0], 2.0], "F32", [w, "[1] is 2.0"]),
                (ValueError, [1.0, [2.0]], "F32", [w, "[0] is 1.0"]),
                (ValueError, [[], [1.0]], "F32", [w, "length 1", "length 0"]),
                (TypeError, [[0.5, True]], "F32", [w, "[0][1] is True", "bool"]),
                (TypeError, [True], "BOOL", [w, "[0] is True"]),
                (TypeError, "weights", "F32", [w, "'weights'", "str"]),
                (TypeError, [None], "F32", [w, "[0] is None"]),
                (TypeError, [1j], "F64", [w, "[0] is 1j"]),
                (TypeError, [Fraction(1, 2)], "F64", [w, "Fraction"]),
                (TypeError, [1.0], "I32", [w, "[0] is 1.0", "I32 takes int"]),
                (ValueError, [0.0, 65520.0], "F16", [w, "[1] is 65520.0", "65504.0"]),
                (ValueError, [1e39], "BF16", [w, "[0] is 1e+39"]),
                (ValueError, [1e39], "F32", [w, "[0] is 1e+39"]),
                (ValueError, [10 ** 400], "F64", [w, "[0] is an integer of 1329 bits"]),
                (ValueError, [10 ** 5000], "I64", [w, "[0] is an integer of"]),
                (ValueError, [0, -129], "I8", [w, "[1] is -129", "-128 to 127"]),
                (ValueError, [-1], "U64", [w, "[0] is -1", "from 0"]),
                (ValueError, [2], "BOOL", [w, "[0] is 2", "from 0 to 1"]),
                (ValueError, [[]] * 1_000_001, "F32", [w, "empty lists"]),
                (ValueError, [1.0], "F33", [w, "'F33'"])]:
            with self.subTest(tensor=strict_json.brief(tensor), dtype=dtype):
                # The tensor that fails comes late, behind one that is well.
                self.assertNotWritten(error, words, {"v": [1], "w": tensor}, dtype={"w": dtype})

    def test_lists_that_hold_themselves_end(self):
        endless = []
        endless.append(endless)
        self.assertNotWritten(ValueError, ["64"], {"w": endless})

    def test_what_is_no_name_or_metadata_is_refused(self):
        w = [1.0]
        for error, words, tensors, options in [
                (TypeError, ["string", "7"], {7: w}, {}),
                (ValueError, ["'w'", "two"], [("w", w), ("w", w)], {}),
                (ValueError, ["__metadata__"], {"__metadata__": w}, {}),
                (ValueError, ["surrogate"], {"\ud800": w}, {}),
                (TypeError, ["metadata", "3"], {"w": w}, {"metadata": {"step": 3}}),
                (ValueError, ["surrogate"], {"w": w}, {"metadata": {"k": "\udc80"}}),
                (ValueError, ["'w'", "None"], {"w": w}, {"dtype": None}),
                (ValueError, ["'v'", "no tensors"], {"w": w}, {"dtype": {"v": "F16"}})]:
            with self.subTest(words=words):
                self.assertNotWritten(error, words, tensors, **options)

    def test_a_header_that_grows_too_long_is_refused(self):
        with mock.patch.object(safetensors, "MAX_HEADER", 100):
            self.assertNotWritten(ValueError, ["header", "100"], {"n" * 100: [1.0]})

    def test_a_disk_that_fails_keeps_the_old_file(self):
        full = OSError(28, "No space left on device")
        for name in ["os.fsync", "os.replace"]:
            with self.subTest(name), mock.patch(name, side_effect=full):
                self.assertNotWritten(OSError, ["No space left"], {"w": [2.0]})

    def test_an_interrupted_write_keeps_the_old_file(self):
        def pieces():
            yield b"half of"
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            safetensors.write_whole(self.path, pieces())
        self.assertEqual(self.get(), self.old)
        self.assertEqual(os.listdir(self.folder), ["some.safetensors"])

    def test_the_new_file_may_be_read_by_whom_any_new_file_may(self):
        plain = os.path.join(self.folder, "plain")
        with open(plain, "wb"):
            pass
        self.assertEqual(os.stat(self.path).st_mode, os.stat(plain).st_mode)

    def test_what_is_no_file_is_not_replaced(self):
        os.remove(self.path)
        kinds = [(os.mkdir, os.rmdir)]
        if hasattr(os, "mkfifo"):
            kinds.append((os.mkfifo, os.remove))
        for make, unmake in kinds:
            make(self.path)
            kind = os.stat(self.path).st_mode
            with self.assertRaisesRegex(FileExistsError, "exists, and is no file"):
                safetensors.write(self.path, {"w": [1.0]})
            self.assertEqual(os.stat(self.path).st_mode, kind)
            self.assertEqual(os.listdir(self.folder), ["some.safetensors"])
            unmake(self.path)

    def test_a_link_stays_a_link(self):
        link = os.path.join(self.folder, "link")
        try:
            os.symlink(self.path, link)
        except (OSError, NotImplementedError):
            self.skipTest("no symbolic links here")
        safetensors.write(link, {"new": [2.0]})
        self.assertTrue(os.path.islink(link))
        self.assertEqual(self.read_all(), {"new": [2.0]})

    def test_arguments_are_left_alone(self):
        tensors, metadata, dtype = {"w": [[1, 2]]}, {"k": "v"}, {"w": "F16"}
        safetensors.write(self.path, tensors, metadata, dtype)
        self.assertEqual((tensors, metadata, dtype), ({"w": [[1, 2]]}, {"k": "v"}, {"w": "F16"}))


def random_json(rng, depth=0):
    """A value that JSON can hold, with strings that look like structure."""
    kind = rng.randrange(6 if depth < 4 else 4)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([rng.randint(-10 ** 30, 10 ** 30), rng.uniform(-1, 1)])
    if kind < 4:
        return "".join(rng.choice('\\"[]{}u/d8\n é😀') for _ in range(rng.randrange(8)))
    values = [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if kind == 4 else {f'{k}"[\\': value for k, value in enumerate(values)}


class StrictJsonTest(unittest.TestCase):
    def refusal(self, data):
        with self.assertRaises(ValueError) as caught:
            strict_json.parse(data, "some.json")
        message = str(caught.exception)
        self.assertTrue(message.startswith("some.json: "), message)
        self.assertNotIn("\n", message)
        self.assertLess(len(message), 300)
        return message

    def test_what_json_writes_is_read(self):
        for seed in range(300):
            value = random_json(random.Random(seed))
            for ascii_only in (True, False):
                with self.subTest(seed=seed, ascii_only=ascii_only):
                    text = json.dumps(value, ensure_ascii=ascii_only, indent=seed % 3)
                    self.assertEqual(strict_json.parse(text.encode("utf-8"), "some.json"), value)

    def test_what_is_refused(self):
        for data, word in [
                (b"", ""), (b"{", ""), (b"{} {}", ""), (b"[1,]", ""), (b"{} \0", ""),
                (b"\xff", "utf-8"), (b'"\xed\xa0\x80"', ""), (b"\xef\xbb\xbf{}", "not ASCII"),
                ("[1\u0662]".encode(), "not ASCII"), ("{}\u00a0".encode(), "not ASCII"),
                (b"NaN", "NaN"), (b"[-Infinity]", "-Infinity"), (b"1e999", "largest"),
                (b'{"a":{"b":1,"b":1}}', "'b'"), (b'{"\\u0061":1,"a":2}', "'a'"),
                (b'{"' + b"k" * 10 ** 5 + b'":1,"' + b"k" * 10 ** 5 + b'":2}', "kkk"),
                (b'"\\ud800"', "surrogate"), (b'"\\udc00\\ud800"', "surrogate"),
                (b'["\\\\\\ud83d\\u0020"]', "surrogate"), (b'"\\u 1_2"', "hexadecimal"),
                (b'"\\u12"', "hexadecimal"), (b'"a\nb"', "control"), (b'"\\', ""), (b"01", ""),
                (b"1" * 301, "301"), (b"1." + b"0" * 5000, "5002"),
                (b"-" + b"9" * 10 ** 6, "1000001"),
                (b"[" * 65 + b"]" * 65, "64"), (b'{"a":' * 65, "64"), (b"[" * 10 ** 6, "64"),
                (b'"\\"",' + b"[" * 10 ** 6, "64")]:
            with self.subTest(data=data[:40]):
                self.assertIn(word, self.refusal(data))

    def test_what_lies_at_the_border_is_read(self):
        for data, value in [
                (b'"\\\\ud800"', "\\ud800"), (b'"\\ud83d\\ude00"', "\U0001f600"),
                (b'"[[[[\\"{{{{"', '[[[["{{{{'), ('"é\u00a0"'.encode(), "é\u00a0"),
                (b"9" * 300, int("9" * 300)), (b"-0.5e-3", -0.0005), (b"1e-999", 0.0),
                (b' {"a" : [ ] }\n', {"a": []})]:
            with self.subTest(data=data[:40]):
                self.assertEqual(strict_json.parse(data, "some.json"), value)
        deep = strict_json.parse(b"[" * 64 + b"]" * 64, "some.json")
        for _ in range(63):
            deep, = deep
        self.assertEqual(deep, [])

    def test_many_keys_of_which_the_last_is_double_take_linear_time(self):
        keys = [f'"{k}":0' for k in range(100_000)] + ['"99999":0']
        self.assertIn("'99999'", self.refusal(("{" + ",".join(keys) + "}").encode()))

    def test_quotes_are_short_and_of_one_line(self):
        class Tall:
            def __repr__(self):
                return "first\nsecond"

        for value in ["x" * 10 ** 6, 10 ** 5000, [[["x" * 500] * 500] * 500] * 500, Tall()]:
            quote = strict_json.brief(value)
            self.assertNotIn("\n", quote)
            self.assertLessEqual(len(quote), 160)


if __name__ == "__main__":
    unittest.main()
