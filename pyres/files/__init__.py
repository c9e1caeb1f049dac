"""Models and tensors in files.

    load, save              a Model from a folder or a file, and into a file
    safetensors             tensors by name
    native, characters      pyres's own files, and the tokenizer that goes with them
    huggingface, families   config.json and model.safetensors of published models
    strict_json             JSON from a file that is not trusted
"""
import os
import pkgutil

from . import characters, families, huggingface, native, safetensors, strict_json
from .native import save

__all__ = ["load", "save", "safetensors", "native", "characters", "huggingface", "families",
           "strict_json"]

EMBEDDED = ("echo",)
HOW_TO_NAME_ONE = ("name a Hugging Face folder that holds config.json and model.safetensors, "
                   "or a model file of pyres")


def load(source="echo"):
    """A Model from `source`: an embedded model's name, a Hugging Face folder, or what save wrote.

    Raises FileNotFoundError where there is nothing of that name, and ValueError where the files
    are not understood, with the file and the rule.

    >>> load("no/such/model")
    Traceback (most recent call last):
    FileNotFoundError: load: there is no folder or file 'no/such/model'; name a Hugging Face \
folder that holds config.json and model.safetensors, or a model file of pyres
    """
    if os.path.isdir(source):
        return huggingface.load(source)
    if os.path.exists(source):
        beside = os.path.join(os.path.dirname(source), "config.json")
        of_folder = os.path.basename(source) in ("config.json", "model.safetensors")
        if of_folder and os.path.exists(beside):
            raise ValueError(f"load: {source!r} is part of a Hugging Face folder; name the folder")
        return native.load(source)
    if source in EMBEDDED:
        return _embedded(source)
    raise FileNotFoundError(f"load: there is no folder or file {source!r}; {HOW_TO_NAME_ONE}")


def _embedded(name):
    """A model that ships with the package, read by its loader, so that it works from a zip."""
    package = __package__.rpartition(".")[0]
    try:
        data = pkgutil.get_data(package, f"models/{name}.safetensors")
    except OSError:
        raise FileNotFoundError(f"load: no model {name!r} is embedded in this version; "
                                f"{HOW_TO_NAME_ONE}") from None
    return native.load_bytes(data, f"{name}.safetensors")
