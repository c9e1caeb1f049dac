"""Files that are not trusted, as they are opened: plain, of bounded size, of a kind that is read.

A name may lead to a pipe or a device, where reading does not end.  And what was fetched may be
something else than was meant: a pointer to it, a web page that says why it is not there.

    opened              a file and its size
    read_bytes          all of it, where it is not too large
    read_json           the values in it, by the rules of strict_json
    refuse_strangers    what is known by its first bytes, and not read

>>> refuse_strangers(b"GGUF", "model.safetensors")
Traceback (most recent call last):
ValueError: model.safetensors is a GGUF file, which is not read; name the Hugging Face folder \
that it was made of
"""
import os
import re
from contextlib import contextmanager

from .strict_json import parse

__all__ = ["MAX_BYTES", "opened", "read_bytes", "read_json", "refuse_strangers"]

MAX_BYTES = 100_000_000         # three times the largest tokenizer.json that is published

# First bytes, and what begins so.  A llama2.c file of d_model 640 begins with 80 02 00 00.
STRANGERS = (
    (rb"version https://git-lfs", "a pointer of Git LFS in place of the file; fetch the file "
                                  "itself, as git lfs pull does"),
    (rb"(?i)\s*<(!doctype|html)", "a web page in place of the file; fetch the file itself"),
    (rb"PK\x03\x04", "a PyTorch archive, which can run code when it is read and so is not; save "
                     "the model as safetensors"),
    (rb"\x80[\x02-\x05][^\0]", "a pickle, which can run code when it is read and so is not; save "
                               "the model as safetensors"),
    (rb"GGUF", "a GGUF file, which is not read; name the Hugging Face folder that it was made of"),
    (rb"24ka", "a llama2.c file of a later version (it begins with the magic 0x616b3432); only "
               "version 0 is read, so export it again with --version 0"),
)


@contextmanager
def opened(path):
    """Give (file, size), the file open for reading; ValueError for a folder, a pipe or a device,
    OSError where there is nothing.

    >>> with opened(os.curdir):
    ...     pass
    Traceback (most recent call last):
    ValueError: . is no file, but a folder, a pipe or a device
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is no file, but a folder, a pipe or a device")
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def read_bytes(path, max_bytes=MAX_BYTES):
    """The bytes of a file; ValueError where there are too many, or it is a stranger.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "merges.txt")
    ...     with open(path, "w") as file:
    ...         _ = file.write("a b")
    ...     read_bytes(path)
    b'a b'
    """
    with opened(path) as (file, size):
        if size > max_bytes:
            raise ValueError(f"{path}: {size} bytes, where at most {max_bytes} are read")
        data = file.read(size)
    refuse_strangers(data, path)
    return data


def read_json(path, max_bytes=MAX_BYTES):
    """The values in a JSON file, by the rules of strict_json."""
    return parse(read_bytes(path, max_bytes), path)


def refuse_strangers(data, what):
    """Raise ValueError where a file with these first bytes is one of STRANGERS."""
    for begin, kind in STRANGERS:
        if re.match(begin, data):
            raise ValueError(f"{what} is {kind}")
