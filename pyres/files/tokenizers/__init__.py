"""Tokenizers from the files of published models, and one for other libraries to read.

    load, load_folder               a file, or what a folder holds -> Tokenizer
    tokenizer_json_of_characters    pyres's own tokenizer of characters as a tokenizer.json

    tokenizer      Tokenizer: encode, decode, decode_stream, token_bytes
    bpe            byte-pair encoding
    splitting      normalizers, and how a text is cut into pieces first
    decoding       from tokens back to a text
    parts          the objects in a file that is not trusted
    reading        tokenizer.json
    gpt2           vocab.json and merges.txt
    llama2c        tokenizer.bin
    writing        the tokenizer.json of characters

What is read: BPE, of bytes (GPT-2, Llama 3, Qwen) or of characters with bytes for the others
(Llama 2, Mistral, Gemma).  Anything else in a file is refused by name.

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "tokenizer.json")
...     with open(path, "w") as file:
...         _ = file.write('{"version": "1.0", "decoder": {"type": "Fuse"}, "model": {"type": '
...                        '"BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}')
...     tokenizer = load(path)
>>> tokenizer.encode("abba"), tokenizer.decode([2, 1, 0])
([2, 1, 0], 'abba')
"""
import os

from ..opening import read_bytes, read_json
from .writing import tokenizer_json_of_characters

__all__ = ["load", "load_folder", "tokenizer_json_of_characters"]


def load(path):
    """The Tokenizer in a tokenizer.json, in a vocab.json and the merges.txt beside it, in a
    llama2.c tokenizer.bin, or in a folder that has one of the first two.

    FileNotFoundError where there is none.  ValueError where a file is not understood or not
    whole, with the file, the key and the rule.

    >>> load("no/such/tokenizer.json")
    Traceback (most recent call last):
    FileNotFoundError: load: there is no file 'no/such/tokenizer.json'
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    if os.path.isdir(path):
        tokenizer = load_folder(path)
        if tokenizer is None:
            raise FileNotFoundError(f"load: the folder {path!r} has neither a tokenizer.json "
                                    "nor a vocab.json with merges.txt")
        return tokenizer
    if not os.path.exists(path):
        raise FileNotFoundError(f"load: there is no file {path!r}")
    from . import gpt2, llama2c, reading        # not before a text is to be read
    if name in ("vocab.json", "merges.txt"):
        return gpt2.tokenizer_from_folder(folder)
    if name.endswith(".bin"):
        return llama2c.tokenizer_from_bin(read_bytes(path), path)
    return reading.tokenizer_from_json(read_json(path), path)


def load_folder(folder):
    """The Tokenizer of a Hugging Face folder: its tokenizer.json, else its vocab.json and
    merges.txt, else None.  Raises as load does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(load_folder(folder))
    None
    """
    paths = [os.path.join(folder, name) for name in ("tokenizer.json", "vocab.json", "merges.txt")]
    there = [os.path.exists(path) for path in paths]
    if there[0]:
        return load(paths[0])
    return load(paths[1]) if there[1] and there[2] else None
