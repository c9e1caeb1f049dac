"""Tensors in a file: a header that says what lies where, then the numbers, and nothing to run.

The safetensors format (https://github.com/huggingface/safetensors), all of it little-endian:

    8 bytes     the length of the header, at most 100,000,000
    header      {"__metadata__": {"key": "text"},                      may be absent
                 "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    data        the numbers of every tensor, row by row; offsets count from here

The ranges follow one another without hole or overlap and end with the file. A header is believed
only where everything it says agrees with the size of the file, and it is checked in full before
memory is taken for what it claims. Where the reference implementation is laxer than the text of
the format (a name given twice, spaces before the header), the text counts.

In pyres a tensor is a nested list, or one number where the shape is []. The types of numbers are
those of `dtypes`; others of the format (F8_E4M3, C64 and so on) are refused by name.

In reading order: the header (`Entry`, `parse_header`); from bytes to nested lists (`nest`,
`tensor_at`, `Tensors`, `read`); from nested lists to bytes (`flatten`, `write_whole`, `write`).

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "tiny.safetensors")
...     write(path, {"w": [[0.5, -1.5], [2.0, 0.25]], "step": 3}, {"by": "me"}, {"step": "I64"})
...     tensors = read(path)
...     list(tensors), tensors.shape("w"), tensors["w"], tensors["step"], tensors.metadata
(['w', 'step'], (2, 2), [[0.5, -1.5], [2.0, 0.25]], 3, {'by': 'me'})
"""
import json
import os
import tempfile
from collections import namedtuple
from collections.abc import Mapping
from contextlib import contextmanager
from itertools import chain, takewhile
from math import prod

from .dtypes import DTYPES, FLOATS, decode, encode
from .opening import opened, refuse_strangers
from .strict_json import brief, parse

try:
    import mmap
except ImportError:     # not every platform has it; files are read all the same
    mmap = None

__all__ = ["DTYPES", "Entry", "parse_header", "decode", "nest", "tensor_at", "Tensors", "read",
           "read_bytes", "flatten", "encode", "write_whole", "write"]

MAX_HEADER = 100_000_000     # the format's own limit
MAX_DIMENSIONS = 64          # PyTorch and numpy have no more
MAX_EMPTY_ROWS = 1_000_000   # [10**12, 0] takes no byte in the file and 10**12 lists in memory


# The header

class Entry(namedtuple("Entry", "dtype shape begin end")):
    """What the header says of one tensor.

    dtype       a key of DTYPES
    shape       tuple of int, () for a single number
    begin, end  its bytes, counted from the end of the header
    """


def _is_list_of_sizes(value):
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2 ** 64 for n in value)


def _check_dtype(dtype, where):
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{where} has the dtype {brief(dtype)}; pyres reads and writes "
                         f"{' '.join(DTYPES)}, so convert it to one of them first")


def _check_shape(shape, where):
    if not _is_list_of_sizes(shape):
        raise ValueError(f"{where} has the shape {brief(shape)}, which is no list of sizes")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{where} has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are read")
    rows = prod(takewhile(bool, shape))
    if 0 in shape and rows > MAX_EMPTY_ROWS:
        raise ValueError(f"{where} of shape {brief(shape)} is {brief(rows)} empty lists; "
                         f"at most {MAX_EMPTY_ROWS} are read")


def _parse_entry(fields, where):
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where} is described by {brief(fields)}, where an object of dtype, "
                         "shape and data_offsets is due")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    _check_dtype(dtype, where)
    _check_shape(shape, where)
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{where} has data_offsets {brief(offsets)}, where [begin, end] is due")
    begin, end = offsets
    needed = prod(shape) * DTYPES[dtype].width
    if needed != end - begin:
        raise ValueError(f"{where} of dtype {dtype} and shape {brief(shape)} needs "
                         f"{brief(needed)} bytes, its data_offsets give {end - begin}")
    return Entry(dtype, tuple(shape), begin, end)


def _check_metadata(metadata, where):
    if not isinstance(metadata, dict):
        raise ValueError(f"{where}: __metadata__ is {brief(metadata)}, not an object of strings")
    for key, text in metadata.items():
        if not isinstance(text, str):
            raise ValueError(f"{where}: __metadata__ has {brief(text)} at {brief(key)}, "
                             "where only strings may stand")


def _check_ranges(entries, n_bytes, what):
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != reached:
            raise ValueError(f"{what}: tensor {brief(name)} begins at byte {entry.begin} of the "
                             f"data, where {reached} is due; ranges have no holes or overlaps")
        reached = entry.end
    if reached > n_bytes:
        raise ValueError(f"{what}: the tensors need {reached} bytes of data, the file has "
                         f"{n_bytes}; it is cut short, so fetch it again")
    if reached < n_bytes:
        raise ValueError(f"{what}: the tensors need {reached} bytes of data, the file has "
                         f"{n_bytes}; nothing may follow the last tensor")


def parse_header(header, n_bytes, what):
    """Return (metadata, entries), given the header's bytes and how many bytes of data follow it.

    metadata is a dict of str, entries a dict from name to Entry in the order of the header. `what`
    names the file in messages. ValueError where the header is not to be believed.

    >>> header = b'{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}'
    >>> parse_header(header, 4, "tiny.safetensors")
    ({}, {'w': Entry(dtype='F16', shape=(2,), begin=0, end=4)})
    >>> parse_header(header, 6, "tiny.safetensors")
    Traceback (most recent call last):
    ValueError: tiny.safetensors: the tensors need 4 bytes of data, the file has 6; \
nothing may follow the last tensor
    """
    if not header.startswith(b"{"):
        raise ValueError(f"{what}: the header begins with {header[:1]!r}, where b'{{' is due")
    fields = parse(header, f"{what}: header")
    metadata = fields.pop("__metadata__", {})
    _check_metadata(metadata, what)
    entries = {name: _parse_entry(entry, f"{what}: tensor {brief(name)}")
               for name, entry in fields.items()}
    _check_ranges(entries, n_bytes, what)
    return metadata, entries


# From bytes to nested lists

def nest(numbers, shape):
    """Return the flat list `numbers`, as many as prod(shape), as a nested list of that shape.

    >>> nest([1, 2, 3, 4, 5, 6], (3, 2)), nest([7], ()), nest([], (2, 0))
    ([[1, 2], [3, 4], [5, 6]], 7, [[], []])
    """
    if not shape:
        return numbers[0]
    for axis in range(len(shape) - 1, 0, -1):
        size, n_rows = shape[axis], prod(shape[:axis])
        numbers = [numbers[row * size:(row + 1) * size] for row in range(n_rows)]
    return numbers


def tensor_at(data, begin, dtype, shape):
    """Return the tensor that begins at byte `begin` of data, as a nested list.

    data is anything that can be cut into bytes: bytes, or a map of a file. A matrix is decoded a
    row at a time, so that it is not in memory as bytes and as numbers at once.

    >>> tensor_at(bytes.fromhex("ffff 0000 0100 0200 0300"), 2, "I16", (2, 2))
    [[0, 1], [2, 3]]
    """
    width = DTYPES[dtype].width
    if not shape:
        return decode(data[begin:begin + width], dtype)[0]
    row, size = shape[1:], prod(shape[1:]) * width
    if not row:
        return decode(data[begin:begin + shape[0] * width], dtype)
    return [nest(decode(data[begin + k * size:begin + (k + 1) * size], dtype), row)
            for k in range(shape[0])]


def _map(file, begin, length):
    """Return a map of the pages of a file that hold these bytes; None where there can be none."""
    if mmap is None or length == 0:
        return None
    offset = begin % mmap.ALLOCATIONGRANULARITY
    try:
        return mmap.mmap(file.fileno(), offset + length, access=mmap.ACCESS_READ,
                         offset=begin - offset)
    except (OSError, ValueError):       # some file systems have no maps
        return None


@contextmanager
def _bytes_of(file, begin, length):
    """Give (data, offset): `length` bytes of a file from `begin` on are data[offset:]. They are
    mapped where that can be done, and read where not."""
    mapped = _map(file, begin, length)
    if mapped is None:
        file.seek(begin)
        yield file.read(length), 0
    else:
        with mapped:
            yield mapped, begin % mmap.ALLOCATIONGRANULARITY


def _check_header_length(length, what):
    if length > MAX_HEADER:
        raise ValueError(f"{what}: a header of {length} bytes; the format allows {MAX_HEADER}, so "
                         "this may be another kind of file")


def _read_header(file, size, what):
    """Return the header's bytes and how many bytes of data follow; the length is checked first."""
    begin = file.read(64)
    if begin[8:9] != b"{":
        refuse_strangers(begin, what)
    if size < 8:
        raise ValueError(f"{what} has {size} bytes; a safetensors file begins with 8 that give "
                         "the length of its header")
    length, left = int.from_bytes(begin[:8], "little"), size - 8
    _check_header_length(length, what)
    if length > left:
        raise ValueError(f"{what}: the header is said to have {length} bytes, the file has {left} "
                         "after its length; it is cut short, so fetch it again")
    file.seek(8)
    return file.read(length), left - length


def _stamp(file):
    """Return what differs once a file was written again or another took its name."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


class Tensors(Mapping):
    """A read-only mapping from name to tensor, read and decoded each time it is asked for.

    path      the file's name
    metadata  dict of str

    Names come in the order of the header. No file stays open; where the file was changed or
    replaced since its header was read, asking for a tensor raises ValueError. A file that another
    program cuts short in the moment of reading is beyond that: the system may end the process.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "one.safetensors")
    ...     write(path, {"gain": [1.0, 0.5]})
    ...     tensors = Tensors(path)
    ...     len(tensors), "gain" in tensors, dict(tensors)
    (1, True, {'gain': [1.0, 0.5]})
    >>> tensors.dtype("gain"), tensors.shape("gain"), tensors.entry("gain")    # from the header
    ('F32', (2,), Entry(dtype='F32', shape=(2,), begin=0, end=8))
    """

    def __init__(self, path):
        self.path = os.fsdecode(path)
        with opened(self.path) as (file, size):
            self._stamp = _stamp(file)
            header, n_bytes = _read_header(file, size, self.path)
        self.metadata, self._entries = parse_header(header, n_bytes, self.path)
        self._begin_of_data = 8 + len(header)

    def __repr__(self):
        return f"<{len(self)} tensors in {self.path}>"

    def __len__(self):
        return len(self._entries)

    def __iter__(self):
        return iter(self._entries)

    def __contains__(self, name):
        # Mapping would decode the tensor to find out.
        return name in self._entries

    def entry(self, name):
        """Return the Entry of a tensor; KeyError where the file has none of that name."""
        if name not in self._entries:
            raise KeyError(f"{self.path} has no tensor {brief(name)}")
        return self._entries[name]

    def dtype(self, name):
        """Return a tensor's dtype, a key of DTYPES, without reading the tensor."""
        return self.entry(name).dtype

    def shape(self, name):
        """Return a tensor's shape, a tuple of int, without reading the tensor."""
        return self.entry(name).shape

    def __getitem__(self, name):
        entry = self.entry(name)
        try:
            return self._decoded(entry)
        except ValueError as error:
            raise ValueError(f"{self.path}: tensor {brief(name)}: {error}") from None

    def _decoded(self, entry):
        with opened(self.path) as (file, _):
            self._check_unchanged(file)
            begin, length = self._begin_of_data + entry.begin, entry.end - entry.begin
            with _bytes_of(file, begin, length) as (data, offset):
                tensor = tensor_at(data, offset, entry.dtype, entry.shape)
            self._check_unchanged(file)
        return tensor

    def _check_unchanged(self, file):
        if _stamp(file) != self._stamp:
            raise ValueError("the file changed since its header was read; read it again")


class TensorsInBytes(Tensors):
    """As Tensors, from the bytes of a whole file that are there already; path is their name."""

    def __init__(self, data, what):
        self.path, self._data = what, data
        length = int.from_bytes(data[:8], "little")
        _check_header_length(length, what)
        if len(data) < 8 + length:
            raise ValueError(f"{what}: {len(data)} bytes, too few for its header")
        self._begin_of_data = 8 + length
        self.metadata, self._entries = parse_header(
            data[8:self._begin_of_data], len(data) - self._begin_of_data, what)

    def _decoded(self, entry):
        return tensor_at(self._data, self._begin_of_data + entry.begin, entry.dtype, entry.shape)


def read(path):
    """Return the Tensors of the safetensors file `path`: the header now, a tensor when asked for.

    A file that contradicts itself raises ValueError; a missing file, OSError. The header's shapes
    are true of the file, but they are the file's: compare shape(name) with what the model needs
    before asking for the tensor.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "two.safetensors")
    ...     write(path, {"gain": [1.0, 0.5], "eps": 0.125}, dtype="BF16")
    ...     tensors = read(path)
    ...     tensors["gain"], tensors["eps"], tensors.dtype("eps"), tensors.shape("eps")
    ([1.0, 0.5], 0.125, 'BF16', ())
    """
    return Tensors(path)


def read_bytes(data, what):
    """As read, from the bytes of a whole file; `what` names them in messages.

    >>> header = b'{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}'
    >>> file = len(header).to_bytes(8, "little") + header + bytes.fromhex("003e 00bc")
    >>> dict(read_bytes(file, "inner"))
    {'w': [1.5, -1.0]}
    """
    return TensorsInBytes(data, what)


# From nested lists to bytes

def _place(k, shape):
    """Return the index of the k-th of all entries of `shape` as it is written: "[0][2]"."""
    place = ""
    for size in reversed(shape):
        k, i = divmod(k, size)
        place = f"[{i}]{place}"
    return place


def _is_row(kind):
    return issubclass(kind, (list, tuple))


def _check_rows(level, shape, where):
    """Refuse `level`, all that stands len(shape) levels deep, unless it is rows of one length."""
    if len(shape) == MAX_DIMENSIONS:
        raise ValueError(f"{where} nests deeper than {MAX_DIMENSIONS} lists")
    for k, row in enumerate(level):
        if not _is_row(type(row)):
            raise ValueError(f"{where}{_place(k, shape)} is {brief(row)}, where others are lists")
        if len(row) != len(level[0]):
            raise ValueError(f"{where}{_place(k, shape)} has length {len(row)}, "
                             f"{_place(0, shape)} has length {len(level[0])}; "
                             "all rows must be of one length")


def flatten(tensor, where="tensor"):
    """Return (shape, numbers), given nested lists (or tuples): what `nest` undoes.

    An empty list ends the shape, for what could have stood in it is not to be known. Lists of
    unequal lengths raise ValueError, a message that begins with `where`.

    >>> flatten([[1, 2], [3, 4], [5, 6]])
    ((3, 2), [1, 2, 3, 4, 5, 6])
    >>> flatten(7), flatten([[], []])
    (((), [7]), ((2, 0), []))
    >>> flatten([[1, 2], [3]])
    Traceback (most recent call last):
    ValueError: tensor[1] has length 1, [0] has length 2; all rows must be of one length
    """
    shape, level = (), [tensor]
    while any(map(_is_row, set(map(type, level)))):
        _check_rows(level, shape, where)
        shape += (len(level[0]),)
        level = list(chain.from_iterable(level))
    return shape, level


def _check_types(numbers, dtype, shape, where):
    takes = (int, float) if dtype in FLOATS else (int,)
    wrong = {kind for kind in set(map(type, numbers))
             if issubclass(kind, bool) or not issubclass(kind, takes)}
    if wrong:
        k = next(k for k, number in enumerate(numbers) if type(number) in wrong)
        raise TypeError(f"{where}{_place(k, shape)} is {brief(numbers[k])}, a "
                        f"{type(numbers[k]).__name__}; {dtype} takes "
                        f"{' and '.join(kind.__name__ for kind in takes)}")


def _fits(number, dtype):
    try:
        encode([number], dtype)
    except OverflowError:
        return False
    return True


def _encode_tensor(tensor, dtype, where):
    """Return (shape, bytes) of a nested list; the errors say at which index."""
    shape, numbers = flatten(tensor, where)
    _check_types(numbers, dtype, shape, where)
    try:
        return shape, encode(numbers, dtype)
    except OverflowError:
        k = next(k for k, number in enumerate(numbers) if not _fits(number, dtype))
        _, _, smallest, largest = DTYPES[dtype]
        raise ValueError(f"{where}{_place(k, shape)} is {brief(numbers[k])}; {dtype} holds "
                         f"numbers from {smallest} to {largest}") from None


def write_whole(path, pieces):
    """Make the bytes of `pieces`, one after another, the content of `path`: all of it or nothing.

    They are written into a temporary folder next to path, forced to the disk, and take path's
    place in one step. Where anything fails, path is what it was and the temporary folder is gone.
    FileExistsError where path is a folder, or a device, whose place no file should take.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(os.path.join(folder, "two.bin"), [b"one ", b"two"])
    ...     with open(os.path.join(folder, "two.bin"), "rb") as file:
    ...         file.read(), os.listdir(folder)
    (b'one two', ['two.bin'])
    """
    # A link stays a link: what it points to is replaced.
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise FileExistsError(f"{os.fsdecode(path)} exists, and is no file; name another place")
    # A folder, because a file from tempfile could be read by its owner alone.
    with tempfile.TemporaryDirectory(prefix=".pyres-", dir=os.path.dirname(target)) as folder:
        complete = os.path.join(folder, "complete")
        with open(complete, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(complete, target)


def _check_name(name, fields, path):
    if not isinstance(name, str):
        raise TypeError(f"{path}: a tensor's name is a string, not {brief(name)}")
    if name == "__metadata__":
        raise ValueError(f"{path}: the name '__metadata__' is the format's own, not a tensor's")
    if name in fields:
        raise ValueError(f"{path}: the name {brief(name)} is given to two tensors")


def _check_all_named(dtypes, fields, path):
    strangers = [name for name in dtypes if name not in fields]
    if strangers:
        raise ValueError(f"{path}: dtype names {brief(strangers)}, which are no tensors here")


def _pack_header(fields, metadata, n_bytes, path):
    """Return length and header; spaces make both together a multiple of 8 bytes."""
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{path}: metadata holds strings, not {brief(key)}: {brief(text)}")
    if metadata:
        fields = {"__metadata__": dict(metadata), **fields}
    header = json.dumps(fields, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    # What read would refuse is not written: half a character in a name, a million empty rows.
    _check_header_length(len(header), path)
    parse_header(header, n_bytes, path)
    return len(header).to_bytes(8, "little") + header


def write(path, tensors, metadata=None, dtype="F32"):
    """Write tensors to the safetensors file `path`, in the order given; the same bytes every time.

    tensors   a mapping from name to nested list, or a sequence of (name, nested list)
    metadata  a dict of str, or None
    dtype     one of DTYPES for all, or a mapping from name to dtype; F32 for names not in it

    ValueError where lists are ragged or a number does not fit; TypeError where an entry is no
    number (a bool is none), or none of that dtype. Whatever fails, path is left as it was.

    >>> write("not-written.safetensors", {"w": [[0.5, 1e5]]}, dtype="F16")
    Traceback (most recent call last):
    ValueError: not-written.safetensors: tensor 'w'[0][1] is 100000.0; \
F16 holds numbers from -65504.0 to 65504.0
    >>> write("not-written.safetensors", {"w": [True]})
    Traceback (most recent call last):
    TypeError: not-written.safetensors: tensor 'w'[0] is True, a bool; F32 takes int and float
    """
    path = os.fsdecode(path)
    fields, pieces, end = {}, [], 0
    for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
        _check_name(name, fields, path)
        where = f"{path}: tensor {brief(name)}"
        its_dtype = dtype.get(name, "F32") if isinstance(dtype, Mapping) else dtype
        _check_dtype(its_dtype, where)
        shape, data = _encode_tensor(tensor, its_dtype, where)
        begin, end = end, end + len(data)
        fields[name] = {"dtype": its_dtype, "shape": shape, "data_offsets": [begin, end]}
        pieces.append(data)
    if isinstance(dtype, Mapping):
        _check_all_named(dtype, fields, path)
    write_whole(path, [_pack_header(fields, metadata, end, path)] + pieces)
