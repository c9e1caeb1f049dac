"""Recorded traces in files, as study.audit takes them: JSON, or safetensors.

JSON, an object in one of these forms, where V is a tensor [n_tokens][d_model]:

    {"states": [V, ...], "updates": [V, ...], "normed": V}              without names
    {"states": [{"name": "embed", "vectors": V}, ...], "writers": [...]}    with them
    {"result": {...}}                           what `trace --json --vectors` prints

`normed`, the final norm's output, may be absent; NaN and infinity are "nan", "inf" and "-inf", for
JSON has no others.

Safetensors, tensors in one of these forms:

    states [n_states][n_tokens][d_model], updates likewise              without names
    state.0, state.1, ..., update.0, update.1, ...                      without names
    state.embed, state.L0.attn, ..., update.embed, ...                  with them

and perhaps `normed`.  A file from a stranger is not trusted: what is in it is refused, or it is
numbers.

    Recorded, read

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "trace.json")
...     with open(path, "w") as file:
...         n = file.write('{"states": [[[1, 2]], [[1.5, 1]]], "updates": [[[0.5, "nan"]]]}')
...     read(path)
Recorded(states=[[[1, 2]], [[1.5, 1]]], updates=[[[0.5, nan]]], normed=None)
"""
import re
from collections import namedtuple

from . import safetensors, strict_json
from .opening import opened, read_json

__all__ = ["Recorded", "read"]

HOW = "expected \"states\" and \"updates\", lists of tensors [n_tokens][d_model]"
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class Recorded(namedtuple("Recorded", ("states", "updates", "normed"))):
    """The arguments of study.audit.audit: lists of tensors, or of pairs (name, tensor); normed a
    tensor or None.
    """


def read(path):
    """The Recorded trace of a file; OSError where it cannot be read, ValueError where it is none.
    """
    with opened(path) as (file, size):
        head = file.read(9)
    # a safetensors file begins with the length of its header, as text never does
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") + 8 <= size:
        return from_tensors(safetensors.read(path), path)
    return from_json(read_json(path), path)


# ---- JSON ----

def from_json(found, path):
    """The Recorded trace in the value of a JSON text.

    >>> from_json({"states": [1]}, "some.json")
    Traceback (most recent call last):
    ValueError: some.json: no list "updates" or "writers"; expected "states" and "updates", lists \
of tensors [n_tokens][d_model]
    """
    if isinstance(found, dict) and isinstance(found.get("result"), dict):
        found = found["result"]
    if not isinstance(found, dict):
        raise ValueError(f"{path}: no object; {HOW}")
    lists = []
    for names in (("states",), ("updates", "writers")):
        given = [found[name] for name in names if isinstance(found.get(name), list)]
        if not given:
            called = " or ".join([f'"{name}"' for name in names])
            raise ValueError(f"{path}: no list {called}; {HOW}")
        lists.append([tensor_in_json(x, f"{path}: {names[0]}") for x in given[0]])
    normed = found.get("normed")
    return Recorded(lists[0], lists[1],
                    None if normed is None else numbers(normed, f"{path}: normed"))


def tensor_in_json(x, where):
    """A tensor, or the pair (name, tensor) of an object."""
    if not isinstance(x, dict):
        return numbers(x, where)
    name = x.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{where}: an object without a name; expected "
                         '{"name": ..., "vectors": [[...]]}')
    if "vectors" not in x:
        raise ValueError(f"{where}: {strict_json.brief(name)} has no vectors; "
                         "pyres writes them with trace --json --vectors")
    return name, numbers(x["vectors"], where)


def numbers(x, where):
    """Nested lists of numbers, of which "nan", "inf" and "-inf" are some.

    >>> numbers([[1, "-inf"]], "some.json")
    [[1, -inf]]
    >>> numbers([["1"]], "some.json")
    Traceback (most recent call last):
    ValueError: some.json: '1' stands where a number belongs
    """
    if isinstance(x, list):
        return [numbers(part, where) for part in x]
    if isinstance(x, str) and x in NOT_FINITE:
        return NOT_FINITE[x]
    if type(x) not in (int, float):
        raise ValueError(f"{where}: {strict_json.brief(x)} stands where a number belongs")
    return x


# ---- safetensors ----

def from_tensors(tensors, path):
    """The Recorded trace in a mapping from name to tensor.

    >>> from_tensors({"state.10": [[3]], "state.2": [[2]], "update.0": [[1]]}, "some.safetensors")
    Recorded(states=[[[2]], [[3]]], updates=[[[1]]], normed=None)
    >>> tensors = {"state.L0.mlp": [[2]], "state.embed": [[1]], "update.L0.mlp": [[1]]}
    >>> from_tensors(tensors, "some.safetensors").states
    [('embed', [[1]]), ('L0.mlp', [[2]])]
    """
    lists = []
    for whole, prefix in (("states", "state."), ("updates", "update.")):
        names = sorted([name for name in tensors if name.startswith(prefix)], key=natural)
        short = [name[len(prefix):] for name in names]
        if whole in tensors:
            lists.append(tensors[whole])
            if not isinstance(lists[-1], list):
                raise ValueError(f"{path}: the tensor {whole!r} is one number; "
                                 "expected [n][n_tokens][d_model]")
        elif not names:
            raise ValueError(f"{path}: no tensor {whole!r} and none that begins with {prefix!r}; "
                             "a trace in a safetensors file has both states and updates")
        elif all([part.isdigit() for part in short]):
            lists.append([tensors[name] for name in names])
        else:
            lists.append([(part, tensors[name]) for part, name in zip(short, names)])
    return Recorded(lists[0], lists[1], tensors["normed"] if "normed" in tensors else None)


def natural(name):
    """A key that puts the embedding first, and L2 before L10.

    >>> sorted(["state.L10.attn", "state.L2.mlp", "state.embed", "state.L2.attn"], key=natural)
    ['state.embed', 'state.L2.attn', 'state.L2.mlp', 'state.L10.attn']
    """
    parts = re.split("0*([0-9]+)", name)        # numbers stand at the odd places
    return "embed" not in name, [(len(part) * (k % 2), part) for k, part in enumerate(parts)]
