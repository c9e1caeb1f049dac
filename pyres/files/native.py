"""pyres's own files: a model as one safetensors file, and a training run that is not done.

    model     float32 weights unless told otherwise, and in the metadata config, vocabulary, name
    resume    float64 weights and moments, and in the metadata all else that a Training holds

Tensors have the names of their leaves.  Neither file holds anything that varies between runs,
such as a date.  Both are written whole or not at all.

    config_to_json, config_from_json    a ModelConfig as text, and back, checked
    save, load, load_bytes              a model
    save_training, load_training        a Training

>>> import os, tempfile
>>> from pyres.config import attention_config, block_config, model_config
>>> from pyres.model import make_model
>>> from pyres.weights import random_weights
>>> config = model_config(4, 3, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "tiny.safetensors")
...     save(make_model(config, random_weights(config), name="tiny"), path)
...     loaded = load(path)
>>> loaded.name, loaded.config == config, loaded.weights.final_norm.gain
('tiny', True, [1.0, 1.0, 1.0, 1.0])
"""
import json
import os
from math import prod

from ..config import (AttentionConfig, BlockConfig, ModelConfig, NormConfig, RotaryConfig,
                      check_config)
from ..model import make_model
from ..training import SETTINGS_FIELDS, Moments, Training, settings
from ..weights import leaf_shapes, leaves, weights_from_leaves
from .characters import Characters
from .safetensors import read, read_bytes, write
from .strict_json import brief, brief_key, parse

__all__ = ["config_to_json", "config_from_json", "save", "load", "load_bytes", "save_training",
           "load_training"]

FORMAT, RESUME_FORMAT = "pyres/1 model", "pyres/1 training"


# ---- configs ----

INSIDE = {"attn_norm": NormConfig, "attn_post_norm": NormConfig, "mlp_norm": NormConfig,
          "mlp_post_norm": NormConfig, "final_norm": NormConfig, "qk_norm": NormConfig,
          "rotary": RotaryConfig, "attention": AttentionConfig}


def config_to_json(config):
    """A config as JSON text: an object for each record, in the order of its fields.

    >>> from pyres.config import norm_config
    >>> config_to_json(norm_config("rms", 0.5))
    '{"kind":"rms","eps":0.5,"scale":null}'
    """
    return json.dumps(_plain(config), separators=(",", ":"))


def _plain(value):
    if hasattr(value, "FIELDS"):
        return {field: _plain(getattr(value, field)) for field in value.FIELDS}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def config_from_json(text, what):
    """The ModelConfig of a JSON text; ValueError where it is none, with `what` before the rule.

    >>> from pyres.config import model_config
    >>> config = model_config(d_model=2, d_vocab=3, n_ctx=4, n_layers=0, block=None)
    >>> config_from_json(config_to_json(config), "small") == config
    True
    >>> config_from_json(config_to_json(config).replace("3", "-3"), "small")
    Traceback (most recent call last):
    ValueError: small: model_config: d_vocab is -3, expected a whole number of at least 1
    """
    values = parse(text.encode("utf-8"), what)
    try:
        config = _record(ModelConfig, values)
        check_config(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None
    return config


def _record(kind, values):
    """A record of a kind from an object that has its fields, all and no others."""
    if type(values) is not dict or set(values) != set(kind.FIELDS):
        raise ValueError(f"a {kind.__name__} is an object with {', '.join(kind.FIELDS)}")
    found = []
    for field in kind.FIELDS:
        value = values[field]
        if field == "blocks":
            value = [_record(BlockConfig, block) for block in value]
        elif field in INSIDE and value is not None:
            value = _record(INSIDE[field], value)
        found.append(value)
    return kind(*found)


# ---- a model ----

def _metadata(model):
    """What a file says of a model beside its tensors."""
    tokenizer = model.tokenizer
    known = None if tokenizer is None else {"tokens": tokenizer.tokens, "bos": tokenizer.bos}
    return {"name": model.name, "config": config_to_json(model.config),
            "characters": json.dumps(known, separators=(",", ":"))}


def save(model, path, dtype="F32"):
    """Write a model to one safetensors file: its weights as floats of that dtype, rounded to the
    nearest.

    Raises TypeError for a tokenizer that is not of characters, and whatever safetensors.write
    raises; the file is then what it was.

    >>> import os, tempfile
    >>> from pyres.files.safetensors import read
    >>> from pyres.model import small_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.safetensors")
    ...     save(small_model(), path)
    ...     tensors = read(path)
    ...     list(tensors)[:4], tensors["w_embed"]
    (['w_embed', 'blocks.0.attn_norm.gain', 'blocks.0.attn.w_q', 'blocks.0.attn.w_k'], \
[[16.0], [8.0]])
    """
    if not isinstance(model.tokenizer, (Characters, type(None))):
        raise TypeError(f"save: the tokenizer is a {type(model.tokenizer).__name__}; "
                        "only one of characters is written into the file")
    write(path, leaves(model.weights), dict(_metadata(model), format=FORMAT), dtype)


def load(path):
    """Read a model that save wrote; ValueError where the file is none, or its parts do not fit.

    >>> import os, tempfile
    >>> from pyres.model import run, small_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.safetensors")
    ...     save(small_model()._replace(tokenizer=Characters(["a", "b"])), path)
    ...     model = load(path)
    >>> model.name, run(model, "a").logits
    ('small', [[70.0, 0.0]])
    """
    return _whole_model(read(path))


def load_bytes(data, what):
    """As load, from the bytes of the whole file; `what` names it in messages.

    >>> import os, tempfile
    >>> from pyres.model import small_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.safetensors")
    ...     save(small_model(), path)
    ...     with open(path, "rb") as file:
    ...         data = file.read()
    >>> load_bytes(data, "small").weights == small_model().weights
    True
    >>> load_bytes(data[:-1], "small")
    Traceback (most recent call last):
    ValueError: small: the tensors need 52 bytes of data, the file has 51; it is cut short, so \
fetch it again
    """
    return _whole_model(read_bytes(data, what))


def _whole_model(tensors):
    """The Model in the Tensors of a model file."""
    shapes = {name: tensors.shape(name) for name in tensors}
    return _model(tensors.metadata, tensors, shapes, tensors.path, FORMAT)


def _model(metadata, tensors, shapes, what, expected):
    """The Model that metadata and tensors describe.  No tensor is asked for before all shapes are
    known to fit the config."""
    found = metadata.get("format")
    if found != expected:
        of_hub = ("; a file of the Hugging Face hub is read with its folder's config.json, so "
                  "name the folder" if found in (None, "pt", "tf", "flax", "mlx") else "")
        raise ValueError(f"{what}: not a {expected.split()[1]} of pyres: its format is "
                         f"{brief(found)}, expected {expected!r}{of_hub}")
    for key in ("name", "config", "characters"):
        if key not in metadata:
            raise ValueError(f"{what}: the metadata lacks {key!r}")
    config = config_from_json(metadata["config"], f"{what}: config")
    known = parse(metadata["characters"].encode("utf-8"), f"{what}: characters")
    try:
        tokenizer = _characters(known, config.d_vocab)
        _check_shapes(config, shapes)
        weights = weights_from_leaves(config, tensors)
        return make_model(config, weights, metadata["name"], tokenizer)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None


def _characters(known, d_vocab):
    """The tokenizer that metadata describes, or None."""
    if known is None:
        return None
    if (type(known) is not dict or set(known) != {"tokens", "bos"}
            or type(known["tokens"]) is not list):
        raise ValueError("characters are null, or an object of a list, tokens, and bos")
    if len(known["tokens"]) != d_vocab:
        raise ValueError(f"{len(known['tokens'])} characters for a vocabulary of {d_vocab}")
    return Characters(known["tokens"], known["bos"])


def _check_shapes(config, shapes):
    """Raise ValueError for a tensor, by name, that is no weight of the config or of another
    shape."""
    fits = dict(leaf_shapes(config))
    for name in shapes:
        if name not in fits:
            raise ValueError(f"the tensor {brief_key(name)} is no weight of this config")
        if shapes[name] not in fits[name]:
            raise ValueError(f"{name} has shape {shapes[name]}, the config asks for "
                             + " or ".join([str(fit) for fit in fits[name]]))


# ---- a run that is not done ----

PARTS = ("weights", "first", "second")


def save_training(training, path, about):
    """Write a Training as it is, in float64; `about` is a dict of str that comes back with it.

    Raises what safetensors.write raises; the file is then what it was.

    >>> import os, tempfile
    >>> from pyres.files.safetensors import read
    >>> from pyres.model import small_model
    >>> from pyres.training import settings, start
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.resume")
    ...     save_training(start(small_model(), settings(seed=7)), path, {"task": "echo"})
    ...     stored = read(path)
    ...     stored["weights.w_embed"], stored["second.w_embed"]
    ([[16.0], [8.0]], [0.0, 0.0])
    >>> stored.metadata["step"], stored.metadata["random_state"], stored.metadata["about"]
    ('0', '7', '{"task": "echo"}')
    """
    moments = training.moments
    records = training.model.weights, moments.first, moments.second
    tensors = [(f"{part}.{name}", tensor)
               for part, record in zip(PARTS, records) for name, tensor in leaves(record)]
    metadata = dict(_metadata(training.model), format=RESUME_FORMAT, about=json.dumps(about),
                    settings=json.dumps(list(training.settings)),
                    step=str(moments.step), random_state=str(training.random_state))
    write(path, tensors, metadata, dtype="F64")


def load_training(path):
    """Return (training, about) as save_training wrote them; ValueError where the file is no
    training run, or its parts do not fit.

    >>> import os, tempfile
    >>> from pyres.model import small_model
    >>> from pyres.training import settings, start
    >>> training = start(small_model(), settings(seed=7))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "small.resume")
    ...     save_training(training, path, {"task": "echo"})
    ...     again, about = load_training(path)
    >>> again == training, about
    (True, {'task': 'echo'})
    """
    stored, what = read(path), os.fsdecode(path)
    shapes = {part: {} for part in PARTS}
    for name in stored:
        part, _, leaf = name.partition(".")
        if part not in shapes:
            raise ValueError(f"{what}: the tensor {brief(name)} is no part of a training run")
        shapes[part][leaf] = stored.shape(name)
    metadata, weights = stored.metadata, Part(stored, "weights")
    model = _model(metadata, weights, shapes["weights"], what, RESUME_FORMAT)
    try:
        for part in PARTS[1:]:
            sizes = {name: (prod(shape),) for name, shape in shapes["weights"].items()}
            if shapes[part] != sizes:
                raise ValueError(f"the rows of {part} are not as long as the weights")
        told = parse(metadata["settings"].encode("utf-8"), "settings")
        if type(told) is not list or len(told) != len(SETTINGS_FIELDS):
            raise ValueError(f"settings are a list of {', '.join(SETTINGS_FIELDS)}")
        rule = settings(*told)
        first, second = [weights_from_leaves(model.config, Part(stored, part))
                         for part in PARTS[1:]]
        moments = Moments(whole_number(metadata, "step"), first, second)
        about = parse(metadata["about"].encode("utf-8"), "about")
        if type(about) is not dict:
            raise ValueError("about is no object")
        return Training(model, moments, rule, whole_number(metadata, "random_state")), about
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None


class Part:
    """The tensors of one part of a training file, by the names of their leaves."""

    def __init__(self, stored, part):
        self.stored, self.part = stored, part

    def get(self, name):
        """The tensor of that name, or None."""
        return self.stored.get(f"{self.part}.{name}")


def whole_number(metadata, key):
    """The whole number that the metadata's text of a key says.

    >>> whole_number({"step": "17"}, "step")
    17
    """
    text = metadata[key]
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{key} is {brief(text)}, expected a whole number")
    return int(text)
