"""Numbers as bytes: the types that tensors in files have, little-endian.

    F64 F32 F16 BF16                 float, exact when read, rounded to the nearest when written
    I64 I32 I16 I8 U64 U32 U16 U8    int
    BOOL                             int, 0 or 1: a bool is refused where pyres wants numbers

    DTYPES            width, letter and range of each
    decode, encode    bytes to a flat list of numbers, and back

>>> encode([1.0, -2.0], "BF16").hex(), decode(bytes.fromhex("803f 00c0"), "BF16")
('803f00c0', [1.0, -2.0])
"""
import struct
import sys
from array import array
from collections import namedtuple
from math import isinf

from ..floats import round_to

__all__ = ["DTYPES", "FLOATS", "decode", "encode"]

# width: bytes of one number. code: its letter in struct and array; BF16 has that of the F32 whose
# upper half it is.
Dtype = namedtuple("Dtype", "width code smallest largest")
DTYPES = {
    "F64": Dtype(8, "d", -sys.float_info.max, sys.float_info.max),
    "F32": Dtype(4, "f", -(2 - 2.0 ** -23) * 2.0 ** 127, (2 - 2.0 ** -23) * 2.0 ** 127),
    "F16": Dtype(2, "e", -65504.0, 65504.0),
    "BF16": Dtype(2, "f", -(2 - 2.0 ** -7) * 2.0 ** 127, (2 - 2.0 ** -7) * 2.0 ** 127),
    "I64": Dtype(8, "q", -2 ** 63, 2 ** 63 - 1),
    "I32": Dtype(4, "i", -2 ** 31, 2 ** 31 - 1),
    "I16": Dtype(2, "h", -2 ** 15, 2 ** 15 - 1),
    "I8": Dtype(1, "b", -2 ** 7, 2 ** 7 - 1),
    "U64": Dtype(8, "Q", 0, 2 ** 64 - 1),
    "U32": Dtype(4, "I", 0, 2 ** 32 - 1),
    "U16": Dtype(2, "H", 0, 2 ** 16 - 1),
    "U8": Dtype(1, "B", 0, 2 ** 8 - 1),
    "BOOL": Dtype(1, "B", 0, 1),
}
FLOATS = ("F64", "F32", "F16", "BF16")


def _widen(halves):
    """Return the F32 of which the BF16 in `halves` are the upper halves; the lower are zero."""
    wide = bytearray(2 * len(halves))
    wide[2::4] = halves[0::2]
    wide[3::4] = halves[1::2]
    return bytes(wide)


def decode(data, dtype):
    """Return the numbers in `data`, bytes, as a flat list; every one exactly.

    ValueError where a BOOL is neither 0 nor 1.

    >>> decode(bytes.fromhex("c03f 807f c347"), "BF16")
    [1.5, inf, 99840.0]
    >>> decode(b"\\x00\\x3e", "F16"), decode(b"\\xfe\\xff", "I16")
    ([1.5], [-2])
    """
    if dtype == "F16":
        # array knows no F16.
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    numbers = array(DTYPES[dtype].code)
    numbers.frombytes(_widen(data) if dtype == "BF16" else data)
    if sys.byteorder == "big":
        numbers.byteswap()
    if dtype == "BOOL" and max(numbers, default=0) > 1:
        raise ValueError(f"a BOOL is 0 or 1, here is a byte {max(numbers)}")
    return numbers.tolist()


def _upper_halves(wide):
    halves = bytearray(len(wide) // 2)
    halves[0::2] = wide[2::4]
    halves[1::2] = wide[3::4]
    return bytes(halves)


def encode(numbers, dtype):
    """Return the bytes of a flat list of numbers; OverflowError where one does not fit.

    Floats are rounded to the nearest number of the dtype, of two to the even one. Infinity and
    NaN stay what they are; a NaN loses its sign and payload, which in BF16 could make it infinity.

    >>> encode([1.5, 1.00390625], "BF16").hex()
    'c03f803f'
    >>> decode(encode([1.0 / 3.0], "F16"), "F16")
    [0.333251953125]
    """
    width, code, smallest, largest = DTYPES[dtype]
    if dtype in FLOATS:
        nan = float("nan")
        numbers = [x if x == x else nan for x in map(float, numbers)]
        if dtype == "BF16":
            rounded = round_to(numbers, "bfloat16")
            if sum(map(isinf, rounded)) > sum(map(isinf, numbers)):
                raise OverflowError(f"{dtype} holds numbers from {smallest} to {largest}")
            return _upper_halves(struct.pack(f"<{len(numbers)}f", *rounded))
    elif numbers and (min(numbers) < smallest or max(numbers) > largest):
        raise OverflowError(f"{dtype} holds numbers from {smallest} to {largest}")
    return struct.pack(f"<{len(numbers)}{code}", *numbers)
