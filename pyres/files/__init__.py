"""Models and tensors in files.

    load, save              a Model from a folder or a file, and into a file
    safetensors, dtypes     tensors by name, numbers as bytes
    native, characters      pyres's own files, and the tokenizer that goes with them
    huggingface, families   config.json and safetensors of published models; beneath them fields
                            reads a config's values, shards an index of several files
    export, fitting         the way back: a folder for transformers
    llama2c                 .bin files of llama2.c
    tokenizers              the tokenizers of published models
    traces                  states and updates that were recorded elsewhere, see study.audit
    opening, strict_json    files that are not trusted, and JSON in them
"""
import os
import pkgutil
import re

from . import characters, families, huggingface, native, safetensors, strict_json, tokenizers
from .native import save

__all__ = ["load", "save", "safetensors", "native", "characters", "huggingface", "families",
           "export", "fitting", "llama2c", "tokenizers", "traces", "strict_json"]

EMBEDDED = ("echo",)
OF_A_FOLDER = re.compile(r"config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
HOW_TO_NAME_ONE = ("name a Hugging Face folder that holds config.json and model.safetensors, "
                   "a model file of pyres, or a .bin of llama2.c")


def load(source="echo", progress=None):
    """A Model from `source`: an embedded model's name, a Hugging Face folder, what save wrote, or
    a llama2.c file, whose name ends in .bin.  A folder or file of an embedded model's name is
    `./echo`.

    progress, where given, is called with (bytes read, bytes in all) after each of a folder's
    tensors, which may take minutes.  Raises FileNotFoundError where there is nothing of that name,
    and ValueError where the files are not understood, with the file and the rule.

    >>> load("no/such/model")
    Traceback (most recent call last):
    FileNotFoundError: load: there is no folder or file 'no/such/model', and pyres downloads \
nothing; name a Hugging Face folder that holds config.json and model.safetensors, a model file of \
pyres, or a .bin of llama2.c
    """
    if source in EMBEDDED:
        return native.load_bytes(embedded_bytes(source), f"{source}.safetensors")
    if os.path.isdir(source):
        return huggingface.load(source, progress)
    if os.path.exists(source):
        beside = os.path.join(os.path.dirname(source), "config.json")
        if OF_A_FOLDER.fullmatch(os.path.basename(source)) and os.path.exists(beside):
            raise ValueError(f"load: {source!r} is part of a Hugging Face folder; name the folder")
        if os.fsdecode(source).endswith(".bin"):
            from . import llama2c               # it and export are rare, and slow to set up
            return llama2c.load(source)
        return native.load(source)
    raise FileNotFoundError(f"load: there is no folder or file {source!r}, and pyres downloads "
                            f"nothing; {HOW_TO_NAME_ONE}")


def embedded_bytes(name):
    """The file of a model that ships with the package, read by its loader, so that it works from a
    zip."""
    package = __package__.rpartition(".")[0]
    try:
        return pkgutil.get_data(package, f"models/{name}.safetensors")
    except OSError:
        raise FileNotFoundError(f"load: no model {name!r} is embedded in this version; "
                                f"{HOW_TO_NAME_ONE}") from None
