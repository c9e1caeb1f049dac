"""Hugging Face folders: config.json and safetensors files, read into a Model.

Nothing is filled in and nothing is ignored that could change a number:

    a weight that is missing, or of another shape          refused by name
    a tensor that is no known weight                       refused by name, unless it is a buffer
    a config value that is not understood                  refused, where it would change numbers
    a buffer: integers, BOOL, rotary frequencies, masks    skipped, and listed by inspect

    inspect         what a folder holds -> FolderInfo
    load            a folder -> Model
    file_tensors    weights under the names and in the layouts of the files
    file_gradients  and gradients

A folder read into a Model, and its weights again as the file has them:

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as parent:
...     folder = os.path.join(parent, "small")
...     write_small_folder(folder)
...     model, info = load(folder), inspect(folder)
...     written = file_tensors(info.rows, model.weights)
...     all(info.tensors[name] == written[name] for name in written)
True
>>> model.name, model.config.d_model, written["ln_f.weight"]
('small', 2, [1.0, 1.0])
"""
import json
import os
import re
from collections import namedtuple

from ..model import make_model
from ..weights import leaf_shapes, leaves, random_weights, weights_from_leaves
from .dtypes import FLOATS
from .families import FAMILIES
from .families.rows import leaves_of, n_numbers, row_shape, tensor_of
from .fields import Fields, read_object
from .safetensors import read, write
from .shards import INDEX, ShardedTensors
from .strict_json import brief

__all__ = ["Fields", "FolderInfo", "inspect", "load", "file_tensors", "file_gradients"]


# ---- the folder ----

class FolderInfo(namedtuple("FolderInfo", (
        "family", "config", "rows", "buffers", "keys_not_read", "files", "tensors", "prefix"))):
    """What a folder holds.

    family, config     Family, ModelConfig
    rows               a Row for every tensor that holds weights
    buffers            the names of the tensors that are skipped
    keys_not_read      the config's keys that nothing read
    files              the weight files' paths
    tensors, prefix    Tensors or ShardedTensors, and the prefix of their names
    """

    @property
    def walked(self):
        """Pairs (leaf names, how many weights they hold together), one a row: what
        counting.count_leaves takes."""
        return [(row.leaves, n_numbers(row, self.tensors.shape(row.tensor))) for row in self.rows]


def inspect(folder):
    """Read a folder's config and the headers of its tensors -> FolderInfo.

    Each is checked against the other; no weight is decoded.  Raises ValueError with the file's
    name and the rule, FileNotFoundError where a file is missing.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_small_folder(os.path.join(parent, "small"))
    ...     info = inspect(os.path.join(parent, "small"))
    >>> info.family.model_type, info.config.n_ctx, info.walked[1]
    ('gpt2', 4, (['w_pos'], 8))
    >>> info.buffers, info.keys_not_read                    # a causal mask, and no mathematics
    (['h.0.attn.bias'], ['use_cache'])
    """
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        raise _missing(folder, "config.json", INSTEAD)
    values = read_object(path, MAX_CONFIG_BYTES)
    family = _family(values, path)
    tensors, files = _tensors(folder)
    prefix = family.prefix if any(name.startswith(family.prefix) for name in tensors) else ""

    # a tensor without a number may claim any size for nothing
    sizes = [max(tensors.shape(name)) for name in tensors
             if tensors.shape(name) and 0 not in tensors.shape(name)]
    fields = Fields(values, path, max(sizes, default=0), len(tensors))
    config = _config(family, fields, path)
    rows = [row._replace(tensor=_file_name(row.tensor, family, prefix))
            for row in family.tensors(fields, config)]
    keys_not_read = fields.not_read()
    _check_tensors(tensors, rows, config)
    buffers = _buffers(tensors, rows, family, prefix)
    return FolderInfo(family, config, rows, buffers, keys_not_read, files, tensors, prefix)


MAX_CONFIG_BYTES = 1_000_000

# names of what a folder may hold instead, and what to do then
INSTEAD = (
    (r"snapshots", "this is a cache of the hub, so name the folder that is in there"),
    (r"adapter_config\.json", "an adapter changes another model, so merge it into that and save "
                              "the whole"),
    (r".*\.gguf", "it is not read, so name the Hugging Face folder that it was made of"),
    (r".*\.(bin|pt|pth|ckpt|h5|msgpack)", "it is of another kind, which may run code when it is "
                                          "read, so save it as safetensors"),
    (r".*\.(incomplete|part|crdownload)", "it was not fetched to its end, so fetch it again"),
)
INSTEAD_OF_WEIGHTS = (
    (r".*-of-.*\.safetensors", f"the index of several files is missing, so fetch {INDEX}, too"),
    (r".*\.safetensors", "weights are found by that name alone, so rename it"),
)


def _missing(folder, what, instead):
    """The FileNotFoundError for a folder without one of its files; it says what to do where the
    folder holds something else."""
    names = sorted(os.listdir(folder))
    for pattern, remedy in instead:
        for name in names:
            if re.fullmatch(pattern, name):
                return FileNotFoundError(f"{folder} has no {what}, but {brief(name)}: {remedy}")
    return FileNotFoundError(f"{folder} has no {what}; a model's folder has config.json, and "
                             "model.safetensors or several files with their index")


def _family(values, path):
    for family in FAMILIES:
        if family.model_type == values.get("model_type"):
            return family
    raise ValueError(f"{path}: model_type is {brief(values.get('model_type'))}; pyres reads "
                     + ", ".join(family.model_type for family in FAMILIES))


def _tensors(folder):
    """The folder's tensors and the paths of their files.  A whole file goes before an index."""
    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path):
        if os.path.exists(os.path.join(folder, INDEX)):
            tensors = ShardedTensors(folder)
            return tensors, tensors.paths
        raise _missing(folder, "model.safetensors", INSTEAD + INSTEAD_OF_WEIGHTS)
    return read(path), [path]


def _config(family, fields, path):
    """The family's config, with the file's name before any rule that the config breaks."""
    try:
        return family.config(fields)
    except (OverflowError, ValueError) as error:    # 1e-320 to the power of -0.99 is an overflow
        if str(error).startswith(path):
            raise
        raise ValueError(f"{path}: {error}") from None


def _file_name(tensor, family, prefix):
    return tensor if tensor.startswith(family.head + ".") else prefix + tensor


def _check_tensors(tensors, rows, config):
    """Raise ValueError unless every row's tensor is there, holds floats and has its shape."""
    fits = dict(leaf_shapes(config))
    for row in rows:
        if row.tensor not in tensors:
            raise ValueError(f"{tensors.path}: the weight {row.tensor} is missing")
        wanted = row_shape(row, fits)
        if tensors.shape(row.tensor) != wanted:
            raise ValueError(f"{tensors.path}: {row.tensor} has shape "
                             f"{tensors.shape(row.tensor)}, the config asks for {wanted}")
        if tensors.dtype(row.tensor) not in FLOATS:
            raise ValueError(f"{tensors.path}: {row.tensor} holds {tensors.dtype(row.tensor)}; "
                             "weights must be one of " + ", ".join(FLOATS))


def _buffers(tensors, rows, family, prefix):
    """The names of tensors that are no weights; raises ValueError for one that could be one."""
    known, buffers = {row.tensor for row in rows}, []
    known.add(family.head + ".weight")      # where no row has it, a copy of the table: see load
    for name in tensors:
        bare = name[len(prefix):] if name.startswith(prefix) else name
        if name in known:
            continue
        if tensors.dtype(name) in FLOATS and not family.buffers.fullmatch(bare):
            raise ValueError(f"{tensors.path}: {brief(name)} is not a weight of "
                             f"{family.model_type}, and could be one; a folder with other weights "
                             "is another model")
        buffers.append(name)
    return buffers


def load(folder, progress=None):
    """Read a folder into a Model, one tensor after the other, with the tokenizer it holds.

    progress, where given, is called with (bytes read, bytes in all) after every tensor.  Raises
    ValueError as inspect does, and where the files hold an unembedding that differs from the
    embedding it is said to be tied to.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_small_folder(os.path.join(parent, "small"))
    ...     model = load(os.path.join(parent, "small"))
    >>> model.name, model.weights.final_norm
    ('small', NormWeights(gain=[1.0, 1.0], bias=[0.0, 0.0]))
    """
    info = inspect(folder)
    tokenizer = _tokenizer(folder, info.config)
    found, fits = {}, dict(leaf_shapes(info.config))
    sizes = {row.tensor: _n_bytes(info.tensors.entry(row.tensor)) for row in info.rows}
    done, total = 0, sum(sizes.values())
    for row in info.rows:
        found.update(leaves_of(row, info.tensors[row.tensor], fits))
        done += sizes[row.tensor]
        if progress is not None:
            progress(done, total)
    _check_copy(info, found)
    name = os.path.basename(os.path.normpath(os.path.abspath(folder)))
    return make_model(info.config, weights_from_leaves(info.config, found), name, tokenizer)


def _tokenizer(folder, config):
    """The folder's tokenizer, or None where it has none."""
    from . import tokenizers                # slow to set up, and echo needs none of it
    try:
        tokenizer = tokenizers.load_folder(folder)
        if tokenizer is not None and tokenizer.n_tokens > config.d_vocab:
            raise ValueError(f"{folder}: the tokenizer has {tokenizer.n_tokens} tokens, "
                             f"the config's vocab_size is {config.d_vocab}")
    except ValueError as error:
        raise ValueError(f"{error}; without the tokenizer's file the folder is read as a model "
                         "that takes token ids") from None
    return tokenizer


def _n_bytes(entry):
    return entry.end - entry.begin


def _check_copy(info, found):
    """Raise ValueError where a tied table's copy, which some files hold, is none."""
    copy = info.family.head + ".weight"
    if "w_unembed" in found or copy not in info.tensors:
        return
    if info.tensors[copy] != found["w_embed"]:
        raise ValueError(f"{info.tensors.path}: tie_word_embeddings is true, but {copy} differs "
                         f"from the embedding; set it to false to use {copy}")


def file_tensors(rows, weights):
    """A dict of weights by the files' names and in the files' layouts: the way back of load.

    Leaves that share a tensor are stacked, Conv1D's are turned over, and what the loader added is
    subtracted.  rows are a family's, as inspect gives them.

    >>> from pyres.files.families import Row
    >>> from pyres.weights import AttentionWeights
    >>> w = AttentionWeights([[1, 2]], [[3, 4]], [[5, 6]], None, *[None] * 6)
    >>> file_tensors([Row("c_attn.weight", "columns", ["w_q", "w_k", "w_v"])], w)
    {'c_attn.weight': [[1, 3, 5], [2, 4, 6]]}
    """
    found = dict(leaves(weights))
    return {row.tensor: tensor_of(row, found) for row in rows}


def file_gradients(rows, gradients):
    """As file_tensors, of gradients: nothing is subtracted from them.

    >>> from pyres.files.families import Row
    >>> from pyres.weights import NormWeights
    >>> rows, w = [Row("norm.weight", "rows", ["gain"], added=1)], NormWeights([3.0], None)
    >>> file_tensors(rows, w), file_gradients(rows, w)
    ({'norm.weight': [2.0]}, {'norm.weight': [3.0]})
    """
    found = dict(leaves(gradients))
    return {row.tensor: tensor_of(row, found, gradients=True) for row in rows}


# ---- a folder for the examples ----

def write_small_folder(folder):
    """Make a folder with a GPT-2 of one block, d_model 2 and three tokens, for the examples: its
    weights, and the causal mask that old files hold besides.
    """
    values = {"model_type": "gpt2", "vocab_size": 3, "n_positions": 4, "n_embd": 2, "n_head": 1,
              "n_layer": 1, "use_cache": True}
    fields, family = Fields(values, "config.json"), _family(values, "config.json")
    config = family.config(fields)
    tensors = file_tensors(family.tensors(fields, config), random_weights(config))
    tensors["h.0.attn.bias"] = [[[[float(s <= t) for s in range(4)] for t in range(4)]]]
    os.mkdir(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)
    write(os.path.join(folder, "model.safetensors"), tensors)
