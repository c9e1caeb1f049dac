"""Seeded damage to files, and what must come of it: the right answer, or a refusal.

A refusal is a ValueError of one line, or an OSError for a file that is not there.  What is read
from a damaged file is compared with what a reader of a few lines, which believes everything,
makes of it.  No file outside of the folder is opened.

    KINDS    by name, a function of (random numbers, folder): it writes, reads, and raises
             AssertionError where neither came of it
    run      one case: KINDS in turn, by the seed
"""
import builtins
import contextlib
import json
import math
import os
import random
import struct
import tempfile
from unittest import mock

import pyres
from pyres.files import huggingface, safetensors, shards
from tests.family_folders import FULL, SMALL, random_tensors, write_folder

# ---- what may come of it ----


@contextlib.contextmanager
def only_within(folder):
    """AssertionError where a file outside of a folder is opened."""
    opened, plain_open = [], builtins.open

    def recording(path, *args, **options):
        opened.append(path)
        return plain_open(path, *args, **options)

    with mock.patch.object(builtins, "open", recording):
        yield
    inside = os.path.realpath(folder) + os.sep
    for path in opened:
        assert os.path.realpath(path).startswith(inside), f"{path!r} was opened"


def answer(read, folder):
    """What read() gives, or None where it refuses as it should."""
    try:
        with only_within(folder):
            return read()
    except (ValueError, OSError) as error:
        assert "\n" not in str(error), f"more than one line: {error}"
        assert len(str(error)) < 2000, f"{len(str(error))} characters"
        return None


# ---- values ----

TEXTS = ["", "w", "F32", "BOOL", "gelu", "yarn", "llama3", "..", "/etc/passwd", "\0", "é", "\n"]
NUMBERS = [0, 1, -1, 2, 3, 7, 8, 2 ** 31, 2 ** 64 - 1, 2 ** 64, 10 ** 200, -0.0, 0.5, 1e308,
           5e-324]


def value(rng, depth=0):
    """A value of JSON, seldom the one that is due."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    if kind == 5:
        return rng.choice([None, True, False])
    values = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if kind == 6 else {rng.choice(TEXTS): each for each in values}


def damaged(rng, data):
    """Bytes with one to three of them changed, left out, put in, or cut off."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at:at + rng.randint(1, 9)]
        elif kind == 2:
            data[at:at] = data[at:at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = rng.choice([b"0", b"9" * 9, b"-", b"[", b'"', b"{}", b",", b"\0", b" "])
        elif data:
            data[at] = rng.choice([0, 255, 34, 44, 48, 91, 93, 125, data[at] ^ 4])
    return bytes(data)


# ---- safetensors ----

def believed(data):
    """What a file says, by a reader that checks nothing: a dict of (dtype, shape, numbers)."""
    length, = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = entry["dtype"]
        letter = {"BF16": "H"}.get(dtype, safetensors.DTYPES[dtype].code)
        numbers = [number for number, in struct.iter_unpack("<" + letter, rest[begin:end])]
        if dtype == "BF16":
            numbers = [struct.unpack("<f", struct.pack("<I", n << 16))[0] for n in numbers]
        found[name] = (dtype, tuple(entry["shape"]), numbers)
    return found


def exact(number):
    return "nan" if number != number else repr(number)


def check_file(data, folder):
    """Read bytes as a safetensors file, and compare."""
    path = os.path.join(folder, "some.safetensors")
    with open(path, "wb") as file:
        file.write(data)

    def read():
        tensors = safetensors.read(path)
        return {name: (tensors.dtype(name), tensors.shape(name), tensors[name])
                for name in tensors}

    got = answer(read, folder)
    if got is None:
        return
    want = believed(data)
    assert set(got) == set(want), f"{set(got)} for {set(want)}"
    for name, (dtype, shape, numbers) in want.items():
        assert got[name][:2] == (dtype, shape), f"{name}: {got[name][:2]} for {(dtype, shape)}"
        flat = safetensors.flatten(got[name][2])[1]
        assert list(map(exact, flat)) == list(map(exact, numbers)), f"{name}: {flat}"
        assert len(numbers) == math.prod(shape)


def sound_file(rng):
    """The bytes of a small safetensors file of several dtypes."""
    header, data = {}, b""
    if rng.randrange(3) == 0:
        header["__metadata__"] = {"format": "pt"}
    for name in rng.sample(["w", "b", "é", "", "model.norm.weight"], rng.randint(1, 3)):
        dtype = rng.choice(list(safetensors.DTYPES))
        shape = [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
        size = math.prod(shape) * safetensors.DTYPES[dtype].width
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + size]}
        data += bytes(rng.randrange(2) for _ in range(size))
    text = json.dumps(header).encode("utf-8")
    return struct.pack("<Q", len(text)) + text + data


def damaged_file(rng, folder):
    check_file(damaged(rng, sound_file(rng)), folder)


def damaged_header(rng, folder):
    """A header in which one value is another, of a length that is right."""
    data = sound_file(rng)
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    entry = rng.choice([header] + [part for part in header.values()])
    if entry is header and rng.randrange(2):
        header[rng.choice(TEXTS)] = value(rng)
    else:
        entry[rng.choice(list(entry))] = value(rng)
    text = json.dumps(header).encode("utf-8")
    check_file(struct.pack("<Q", len(text)) + text + data[8 + length:], folder)


def random_header(rng, folder):
    text = json.dumps(value(rng)).encode("utf-8")
    check_file(struct.pack("<Q", len(text)) + text + bytes(rng.randrange(9)), folder)


# ---- folders ----

# by key, what it is in some family
USUAL = {"model_type": list(SMALL), "rope_scaling": [None], "rope_parameters": [None]}
for _values in list(SMALL.values()) + list(FULL.values()):
    for _key, _value in _values.items():
        USUAL.setdefault(_key, []).append(_value)
ROPE = ["type", "rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings", "partial_rotary_factor"]


def changed_config(rng, folder):
    """One to three keys of a config have other values.  What is read all the same runs, and has
    the weights of the file."""
    name = rng.choice(sorted(SMALL))
    tensors, values = random_tensors(name, SMALL[name]), dict(SMALL[name])
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(sorted(USUAL))
        values[key] = rng.choice(USUAL[key]) if rng.randrange(2) else value(rng)
    if rng.randrange(4) == 0:
        key = rng.choice(["rope_scaling", "rope_parameters"])
        values[key] = {rng.choice(ROPE): value(rng) for _ in range(rng.randint(1, 5))}
    write_folder(folder, name, values, tensors)
    check_folder(folder, tensors)


def check_folder(folder, tensors):
    model = answer(lambda: pyres.load(folder), folder)
    if model is None:
        return
    rows = huggingface.inspect(folder).rows
    written = huggingface.file_tensors(rows, model.weights)
    for row in rows:
        unused = [0.0] * len(tensors[row.tensor][0]) if row.unused else None
        want = [unused] * row.unused + tensors[row.tensor][row.unused:]
        assert written[row.tensor] == want, f"{row.tensor} is not what the file has"
    try:
        run = pyres.run(model, [1, 0][:model.config.n_ctx])
    except (OverflowError, ValueError):         # a multiplier of 1e308, rotary at 1e300 radians
        return
    assert len(run.logits[0]) == len(tensors[rows[0].tensor])


def damaged_config(rng, folder):
    name = rng.choice(sorted(SMALL))
    tensors = random_tensors(name, SMALL[name])
    write_folder(folder, name, SMALL[name], tensors)
    path = os.path.join(folder, "config.json")
    with open(path, "rb") as file:
        data = damaged(rng, file.read())
    with open(path, "wb") as file:
        file.write(data)
    check_folder(folder, tensors)


def changed_index(rng, folder):
    """A folder of two shards, of whose index something is changed, or bytes of which are."""
    tensors = random_tensors("llama", SMALL["llama"])
    write_folder(folder, "llama", SMALL["llama"], tensors)
    os.remove(os.path.join(folder, "model.safetensors"))
    names, files = sorted(tensors), ["a.safetensors", "b.safetensors"]
    where = {name: rng.choice(files) for name in names}
    with mock.patch("os.fsync"):
        for file_name in files:
            safetensors.write(os.path.join(folder, file_name), {
                name: tensors[name] for name in names if where[name] == file_name})
        # what a path that leaves the folder would find
        safetensors.write(os.path.join(folder, "..", "outside.safetensors"), tensors)
    index = {"metadata": {}, "weight_map": where}
    for _ in range(rng.randrange(3)):
        part = rng.choice([index, where, where, where])
        hostile = rng.choice(TEXTS + ["../outside.safetensors", "c.safetensors"] + files)
        part[rng.choice(list(part) + TEXTS)] = rng.choice([hostile, hostile, value(rng)])
    data = json.dumps(index).encode("utf-8")
    if rng.randrange(3) == 0:
        data = damaged(rng, data)
    with open(os.path.join(folder, shards.INDEX), "wb") as file:
        file.write(data)
    check_folder(folder, tensors)


def changed_tensors(rng, folder):
    """A family's file without a tensor, with another, or with one of another shape or name."""
    name = rng.choice(sorted(SMALL))
    tensors = random_tensors(name, SMALL[name])
    names, kind = list(tensors), rng.randrange(4)
    some = rng.choice(names)
    if kind == 0:
        del tensors[some]
    elif kind == 1:
        tensors[rng.choice(TEXTS + ["lm_head.weight", "embed_out.weight"])] = tensors[some]
    elif kind == 2:
        tensors[some] = tensors[rng.choice(names)]
    else:
        tensors[some + rng.choice(TEXTS)] = tensors.pop(some)
    write_folder(folder, name, SMALL[name], tensors)
    check_folder(folder, tensors)


KINDS = (damaged_file, damaged_header, random_header, changed_config, damaged_config,
         changed_index, changed_tensors)


def run(seed):
    """One case in a folder of its own; AssertionError with the seed where it goes wrong."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "folder")
        os.mkdir(folder)
        try:
            kind(rng, folder)
        except Exception as error:
            raise AssertionError(f"{kind.__name__}, seed {seed}: "
                                 f"{type(error).__name__}: {error}") from error
