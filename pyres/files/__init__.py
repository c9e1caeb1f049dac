"""Models and tensors in files.

    load                    a Model from a folder
    safetensors             tensors by name
    huggingface, families   config.json and model.safetensors of published models
    strict_json             JSON from a file that is not trusted
"""
import os

from . import families, huggingface, safetensors, strict_json

__all__ = ["load", "safetensors", "huggingface", "families", "strict_json"]

HOW_TO_NAME_ONE = "name a Hugging Face folder that holds config.json and model.safetensors"


def load(source="echo"):
    """A Model from `source`, the path of a Hugging Face folder.

    Raises FileNotFoundError where there is nothing of that name, and ValueError where the folder's files are
    not understood, with the file and the rule.

    >>> load()
    Traceback (most recent call last):
    FileNotFoundError: load: no model 'echo' is embedded in this version; name a Hugging Face folder that \
holds config.json and model.safetensors
    """
    if os.path.isdir(source):
        return huggingface.load(source)
    if os.path.exists(source):
        raise ValueError(f"load: {source!r} is a file; {HOW_TO_NAME_ONE}")
    if source == "echo":
        raise FileNotFoundError(f"load: no model 'echo' is embedded in this version; {HOW_TO_NAME_ONE}")
    raise FileNotFoundError(f"load: there is no folder {source!r}; {HOW_TO_NAME_ONE}")
