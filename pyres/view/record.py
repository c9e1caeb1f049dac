"""What the JSON of a result says: dicts and lists, with the documented names.

    plain            numbers as JSON can hold them
    stream_record    a state or a writer
    check_record     whether a run's writers sum to its final stream
    count_record     a Count
    model_record, file_records    where a model comes from

>>> stream_record("embed", [[3.0, 4.0], [0.0, 2.0]])
{'name': 'embed', 'norm': [5.0, 2.0]}
"""
import math
import os

from ..study.writers import length
from ..sums import sum_check

__all__ = ["plain", "stream_record", "check_record", "count_record", "model_record",
           "file_records"]


def plain(x):
    """A result as JSON can hold it: tuples as lists; an exact number as an int or a float; a float
    that is no number, or infinite, as "nan", "inf" or "-inf".

    >>> from fractions import Fraction
    >>> plain({"x": (Fraction(3, 2), Fraction(4)), "error": -math.inf})
    {'x': [1.5, 4], 'error': '-inf'}
    """
    if isinstance(x, dict):
        return {key: plain(part) for key, part in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(part) for part in x]
    if isinstance(x, float):
        return x if math.isfinite(x) else str(x)
    if x is None or isinstance(x, (bool, int, str)):
        return x
    return int(x) if x == int(x) else float(x)


# ---- a run ----

def stream_record(name, rows, vectors=False):
    """A state or a writer: rows [n_tokens][d_model], their lengths, and the rows if asked for."""
    record = {"name": name, "norm": [length(row) for row in rows]}
    if vectors:
        record["vectors"] = rows
    return record


def check_record(run_record, before=""):
    """The sum_check of a Run; `before` is put before the rule."""
    check = sum_check(run_record)
    return {"name": before + check.rule, "error": check.error, "tolerance": check.tolerance,
            "ok": check.ok}


# ---- a count ----

def count_record(count):
    """A Count: n_writers, weights and total are what most ask for."""
    def items(found):
        return [{"name": one.name, "formula": one.formula, "value": one.value} for one in found]

    return {"n_writers": count.writers.value, "writers": items([count.writers])[0],
            "weights": items(count.weights), "total": count.total, "n_seen": count.n_seen,
            "multiply_adds": items(count.multiply_adds), "cache": items(count.cache)}


# ---- a model ----

def model_record(source):
    """The `model` of the JSON, from a commands.Source; a size that differs in blocks is a list."""
    config = source.config

    def in_blocks(read):
        found = [read(block) for block in config.blocks]
        return found[0] if found and found.count(found[0]) == len(found) else found

    return {"name": source.name, "sha256": digest_of(source),
            "family": source.family, "n_layers": len(config.blocks), "d_model": config.d_model,
            "d_mlp": in_blocks(lambda block: block.d_mlp),
            "n_heads": in_blocks(lambda block: block.attention.n_heads),
            "n_kv_heads": in_blocks(lambda block: block.attention.n_kv_heads),
            "d_head": in_blocks(lambda block: block.attention.d_head),
            "d_vocab": config.d_vocab, "n_ctx": config.n_ctx,
            "placement": in_blocks(lambda block: block.placement)}


def file_records(source):
    """The files of a commands.Source."""
    return [{"name": os.path.basename(path), "bytes": os.path.getsize(path), "dtypes": dtypes,
             "sha256": digest(path)} for path, dtypes in source.files]


def digest_of(source):
    """The SHA-256 of a commands.Source's weights: of its files, or of the embedded one."""
    if source.files:
        return digest(*[path for path, dtypes in source.files if dtypes])
    import hashlib
    from ..files import EMBEDDED, embedded_bytes
    if source.name not in EMBEDDED:
        return None
    return hashlib.sha256(embedded_bytes(source.name)).hexdigest()


def digest(*paths):
    """The SHA-256 of files, one after the other, in hexadecimal."""
    import hashlib
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                found.update(piece)
    return found.hexdigest()
