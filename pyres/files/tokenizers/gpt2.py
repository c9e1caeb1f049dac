"""vocab.json and merges.txt, which say how pieces are encoded but not how a text is split.

They are read as GPT-2's, unless a file beside them says that they are another's.

    tokenizer_from_folder    the two files in a folder -> Tokenizer
    gpt2_json                what they hold -> the values of a tokenizer.json

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     for name, text in (("vocab.json", '{"a": 0, "b": 1, "ab": 2}'), ("merges.txt", "a b")):
...         with open(os.path.join(folder, name), "w") as file:
...             _ = file.write(text)
...     tokenizer_from_folder(folder).encode("abba")
[2, 1, 0]
"""
import os

from ..opening import read_bytes, read_json
from .parts import Part
from .reading import tokenizer_from_json

__all__ = ["gpt2_json", "tokenizer_from_folder"]

END_OF_TEXT = "<|endoftext|>"
REMEDY = ("vocab.json and merges.txt are read as GPT-2's alone; for others, save_pretrained of "
          "transformers writes a tokenizer.json")


def gpt2_json(vocabulary, merges):
    r"""The values of a tokenizer.json that does what GPT-2 does with the values of a vocab.json,
    a dict, and the text of a merges.txt.  <|endoftext|> is special, and comes behind the others
    where the vocabulary does not have it.

    >>> from pyres.files.tokenizers.reading import tokenizer_from_json
    >>> values = gpt2_json({"a": 0, "b": 1, "ab": 2}, "#version: 0.2\na b\n")
    >>> tokenizer_from_json(values, "GPT-2's").encode("ab<|endoftext|>", parse_special=True)
    [2, 3]
    """
    lines = [line.rstrip("\r") for line in merges.split("\n")]
    if lines[0].startswith("#version"):
        lines = lines[1:]
    after_all = max([token for token in vocabulary.values() if type(token) is int], default=-1) + 1
    added = {"id": vocabulary.get(END_OF_TEXT, after_all), "content": END_OF_TEXT,
             "special": True, "normalized": False}
    return {"added_tokens": [added], "decoder": {"type": "ByteLevel"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "model": {"vocab": vocabulary, "merges": [line for line in lines if line]}}


def tokenizer_from_folder(folder):
    """The Tokenizer of vocab.json and merges.txt in a folder.

    Raises ValueError where they are not understood, and where tokenizer_config.json or
    added_tokens.json says that there is more to it than GPT-2 has.
    """
    vocab, merges, added, config = [os.path.join(folder, name) for name in (
        "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json")]
    if os.path.exists(added):
        raise ValueError(f"{added}: not read; {REMEDY}")
    if os.path.exists(config):
        _check_gpt2(config)
    vocabulary = Part(read_json(vocab), vocab).values
    try:
        text = read_bytes(merges).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{merges}: {error}") from None
    values = gpt2_json(vocabulary, text)
    return tokenizer_from_json(values, f"{vocab} with merges.txt")


def _check_gpt2(path):
    """Refuse a tokenizer_config.json of a tokenizer that is not as GPT-2's."""
    config = Part(read_json(path), path)
    try:
        config.must_be("tokenizer_class", None, "GPT2Tokenizer", "GPT2TokenizerFast")
        config.must_be("add_prefix_space", None, False)
        config.must_be("add_bos_token", None, False)
        if "added_tokens_decoder" in config.values:
            tokens = config.inner("added_tokens_decoder")
            for key in tokens.values:
                tokens.inner(key).one_of("content", (END_OF_TEXT,))
    except ValueError as error:
        raise ValueError(f"{error}; {REMEDY}") from None
