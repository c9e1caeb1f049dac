"""Hugging Face folders: config.json and model.safetensors, read into a Model.

Nothing is filled in and nothing is ignored that could change a number:

    a weight that is missing, or of another shape          refused by name
    a tensor that is no known weight                       refused by name, unless it is a buffer
    a config value that is not understood                  refused, where it would change numbers
    a buffer: integers, BOOL, rotary frequencies, masks    skipped, and listed by inspect

    Fields          a config's values, each checked as it is read
    inspect         what a folder holds -> FolderInfo
    load            a folder -> Model
    file_tensors    weights or gradients back under the names and in the layouts of the files

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
from collections import namedtuple

from ..linalg import transpose
from ..model import make_model
from ..weights import leaf_shapes, leaves, random_weights, weights_from_leaves
from .families import FAMILIES
from .safetensors import read, write
from .strict_json import brief, parse

__all__ = ["Fields", "FolderInfo", "inspect", "load", "file_tensors"]


# ---- config.json ----

REQUIRED = object()

# Values that change what some family computes.  A family that does not read such a key takes the
# neutral values only; every other unknown key is no option of the mathematics, and is listed as
# not read.
NEUTRAL = {
    "quantization_config": (None,), "compression_config": (None,), "pruned_heads": (None, {}),
    "rope_scaling": (None,), "rope_theta": (None, 10000, 10000.0), "rope_parameters": (None,),
    "partial_rotary_factor": (None, 1, 1.0), "rotary_pct": (None, 1, 1.0), "rotary_dim": (None,),
    "alibi": (None, False), "is_causal": (None, True),
    "position_embedding_type": (None, "absolute", "rope", "rotary"),
    "sliding_window": (None,), "use_sliding_window": (None, False),
    "attention_chunk_size": (None,),
    "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,), "attention_multiplier": (None,),
    "embedding_multiplier": (None, 1, 1.0), "residual_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0), "logit_scale": (None, 1, 1.0),
    "scale_embedding": (None, False),
    "scale_attn_by_inverse_layer_idx": (None, False), "scale_attn_weights": (None, True),
    "add_cross_attention": (None, False), "is_encoder_decoder": (None, False),
    "use_qk_norm": (None, False), "qk_layernorm": (None, False), "clip_qkv": (None,),
    "parallel_attn": (None, False), "use_parallel_residual": (None, False),
    "attention_bias": (None, False), "mlp_bias": (None, False), "qkv_bias": (None, False),
    "num_experts": (None, 0, 1), "num_local_experts": (None, 0, 1), "n_inner": (None,),
    "num_key_value_heads": (None,), "head_dim": (None,), "chunk_size_feed_forward": (None, 0),
}


class Fields:
    """A config's values by key; each reading checks the type and says the file and the key.

    largest is the largest size of any tensor in the files.  A size beyond it cannot be right, and
    is refused before anything of that size is made.  Every method but not_read takes a key; what
    is refused raises ValueError.

    >>> fields = Fields({"n_embd": 4, "n_head": "2", "use_cache": True}, "config.json")
    >>> fields.size("n_embd"), fields.number("layer_norm_epsilon", 0.5), fields.not_read()
    (4, 0.5, ['n_head', 'use_cache'])
    >>> fields.size("n_head")
    Traceback (most recent call last):
    ValueError: config.json: n_head is '2'; expected a whole number of at least 1
    """

    def __init__(self, values, what, largest=None, n_tensors=None):
        self.values, self.what, self.largest, self.n_tensors = values, what, largest, n_tensors
        self.read = {"model_type"}
        self.groups = []

    def get(self, key, default):
        """The value of a key, or the default where it is absent or null."""
        self.read.add(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ValueError(f"{self.what}: {key} is missing")
        return default

    def refuse(self, key, value, wanted):
        """Raise ValueError: the file, the key, its value and what was wanted."""
        raise ValueError(f"{self.what}: {key} is {brief(value)}; expected {wanted}")

    def size(self, key, default=REQUIRED, bounded=True):
        """A whole number of at least 1."""
        value = self.get(key, default)
        if value is default:
            return value
        if type(value) is not int or value < 1:
            self.refuse(key, value, "a whole number of at least 1")
        if bounded and self.largest is not None and value > self.largest:
            raise ValueError(f"{self.what}: {key} is {value}, but no tensor in the files is "
                             f"larger than {self.largest}")
        return value

    def layers(self, key):
        """How many blocks there are; each has a tensor of its own at least."""
        value = self.size(key, bounded=False)
        if self.n_tensors is not None and value > self.n_tensors:
            raise ValueError(f"{self.what}: {key} is {value}, "
                             f"the files hold {self.n_tensors} tensors")
        return value

    def alias(self, key, meant, value):
        """Raise where a second key for one value says something else."""
        if self.get(key, value) != value:
            self.refuse(key, self.values[key], f"{value!r}, which {meant} says")

    def number(self, key, default, positive=False):
        """A finite number that is not negative."""
        value = self.get(key, default)
        in_range = type(value) in (int, float) and 0 <= value < float("inf")
        if not in_range or positive and value == 0:
            self.refuse(key, value, "a number above 0" if positive else "a number of at least 0")
        return float(value)

    def flag(self, key, default):
        """True or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            self.refuse(key, value, "true or false")
        return value

    def text(self, key, default):
        """A str."""
        value = self.get(key, default)
        if type(value) is not str:
            self.refuse(key, value, "a text")
        return value

    def one_of(self, key, names, default):
        """A text that is one of the names, as what it is called here."""
        value = self.text(key, default)
        if value not in names:
            self.refuse(key, value, "one of " + ", ".join(names))
        return names[value]

    def must_be(self, key, wanted):
        """Raise unless the value is the one that is understood, or absent."""
        value = self.get(key, wanted)
        if value != wanted or type(value) is bool and type(wanted) is not bool:
            self.refuse(key, value, repr(wanted))

    def divides(self, key, part, whole_key, whole):
        """Raise unless one size, `part`, divides another, `whole`."""
        if whole % part:
            raise ValueError(f"{self.what}: {key} is {part}, "
                             f"which does not divide {whole_key} {whole}")

    def group(self, key):
        """The Fields of a value that is an object; absent or null is an empty one."""
        value = self.get(key, {})
        if type(value) is not dict:
            self.refuse(key, value, "an object")
        group = Fields(value, f"{self.what}: {key}", self.largest)
        group.read = {"rope_type", "type"}
        self.groups.append(group)
        return group

    def not_read(self):
        """The keys that nothing read, sorted; raises for one that would change the numbers."""
        for fields in [self] + self.groups:
            for key in sorted(set(fields.values) - fields.read):
                if fields is not self and fields.values[key] is not None:
                    fields.refuse(key, fields.values[key], "no such key")
                if key in NEUTRAL and fields.values[key] not in NEUTRAL[key]:
                    fields.refuse(key, fields.values[key], repr(NEUTRAL[key][-1]))
        return sorted(set(self.values) - self.read)


# ---- the folder ----

class FolderInfo(namedtuple("FolderInfo", (
        "family", "config", "rows", "buffers", "keys_not_read", "files", "tensors", "prefix"))):
    """What a folder holds.

    family, config     Family, ModelConfig
    rows               a Row for every tensor that holds weights
    buffers            the names of the tensors that are skipped
    keys_not_read      the config's keys that nothing read
    files              the weight files' paths
    tensors, prefix    Tensors, and the prefix of their names
    """


def inspect(folder):
    """Read a folder's config and the headers of its tensors -> FolderInfo.

    Each is checked against the other; no weight is decoded.  Raises ValueError with the file's
    name and the rule, FileNotFoundError where a file is missing.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_small_folder(os.path.join(parent, "small"))
    ...     info = inspect(os.path.join(parent, "small"))
    >>> info.family.model_type, info.config.n_ctx, len(info.rows)
    ('gpt2', 4, 16)
    >>> info.buffers, info.keys_not_read                    # a causal mask, and no mathematics
    (['h.0.attn.bias'], ['use_cache'])
    """
    path = os.path.join(folder, "config.json")
    values = _read_config(path)
    weights_path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(weights_path) and os.path.exists(weights_path + ".index.json"):
        raise ValueError(f"{folder}: the weights are in several files; "
                         "only one model.safetensors is read")
    tensors = read(weights_path)
    family = _family(values, path)
    prefix = family.prefix if any(name.startswith(family.prefix) for name in tensors) else ""

    # a tensor without a number may claim any size for nothing
    sizes = [max(tensors.shape(name)) for name in tensors
             if tensors.shape(name) and 0 not in tensors.shape(name)]
    fields = Fields(values, path, max(sizes, default=0), len(tensors))
    config = _config(family, fields, path)
    rows = [row._replace(tensor=_file_name(row.tensor, prefix))
            for row in family.tensors(fields, config)]
    keys_not_read = fields.not_read()
    _check_tensors(tensors, rows, config, weights_path)
    buffers = _buffers(tensors, rows, family, prefix, weights_path)
    return FolderInfo(family, config, rows, buffers, keys_not_read,
                      [weights_path], tensors, prefix)


MAX_CONFIG_BYTES = 1_000_000


def _read_config(path):
    with open(path, "rb") as file:
        data = file.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise ValueError(f"{path}: larger than {MAX_CONFIG_BYTES} bytes, which no config is")
    values = parse(data, path)
    if type(values) is not dict:
        raise ValueError(f"{path}: expected a JSON object")
    return values


def _family(values, path):
    for family in FAMILIES:
        if family.model_type == values.get("model_type"):
            return family
    raise ValueError(f"{path}: model_type is {brief(values.get('model_type'))}; pyres reads "
                     + ", ".join(family.model_type for family in FAMILIES))


def _config(family, fields, path):
    """The family's config, with the file's name before any rule that the config breaks."""
    try:
        return family.config(fields)
    except ValueError as error:
        if str(error).startswith(path):
            raise
        raise ValueError(f"{path}: {error}") from None


def _file_name(tensor, prefix):
    return tensor if tensor.startswith("lm_head.") else prefix + tensor


def _row_shape(row, fits):
    """The shape of a file tensor that holds the row's leaves, stacked along the outputs."""
    shapes = [fits[leaf][0] for leaf in row.leaves]
    stacked = (sum(leaf_shape[0] for leaf_shape in shapes),) + shapes[0][1:]
    return stacked[::-1] if row.layout == "columns" else stacked


FLOATS = ("F64", "F32", "F16", "BF16")


def _check_tensors(tensors, rows, config, path):
    """Raise ValueError unless every row's tensor is there, holds floats and has its shape."""
    fits = dict(leaf_shapes(config))
    for row in rows:
        if row.tensor not in tensors:
            raise ValueError(f"{path}: the weight {row.tensor} is missing")
        wanted = _row_shape(row, fits)
        if tensors.shape(row.tensor) != wanted:
            raise ValueError(f"{path}: {row.tensor} has shape {tensors.shape(row.tensor)}, "
                             f"the config asks for {wanted}")
        if tensors.dtype(row.tensor) not in FLOATS:
            raise ValueError(f"{path}: {row.tensor} holds {tensors.dtype(row.tensor)}; "
                             "weights must be one of " + ", ".join(FLOATS))


def _buffers(tensors, rows, family, prefix, path):
    """The names of tensors that are no weights; raises ValueError for one that could be one."""
    known = {row.tensor for row in rows}
    buffers = []
    for name in tensors:
        bare = name[len(prefix):] if name.startswith(prefix) else name
        if name in known or bare == "lm_head.weight":   # a second copy of a tied table: see load
            continue
        if tensors.dtype(name) in FLOATS and not family.buffers.fullmatch(bare):
            raise ValueError(f"{path}: {name} is not a weight of {family.model_type}, "
                             "and could be one; a folder with other weights is another model")
        buffers.append(name)
    return buffers


def load(folder):
    """Read a folder into a Model.

    Raises ValueError as inspect does, and where the files hold an lm_head that differs from the
    embedding it is said to be tied to.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     write_small_folder(os.path.join(parent, "small"))
    ...     model = load(os.path.join(parent, "small"))
    >>> model.name, model.weights.final_norm
    ('small', NormWeights(gain=[1.0, 1.0], bias=[0.0, 0.0]))
    """
    info = inspect(folder)
    found, fits = {}, dict(leaf_shapes(info.config))
    for row in info.rows:
        found.update(_split(row, info.tensors[row.tensor], fits))
    if "lm_head.weight" in info.tensors and "w_unembed" not in found:
        if info.tensors["lm_head.weight"] != found["w_embed"]:
            raise ValueError(f"{info.files[0]}: tie_word_embeddings is true, but lm_head.weight "
                             "differs from the embedding; set it to false to use lm_head.weight")
    name = os.path.basename(os.path.normpath(os.path.abspath(folder)))
    return make_model(info.config, weights_from_leaves(info.config, found), name)


def _split(row, tensor, fits):
    """The leaves that a file tensor holds, as pairs (name, tensor)."""
    if row.layout == "columns":
        tensor = transpose(tensor)
    pairs, begin = [], 0
    for leaf in row.leaves:
        end = begin + fits[leaf][0][0]
        pairs.append((leaf, tensor[begin:end]))
        begin = end
    return pairs


def file_tensors(rows, weights):
    """A dict of weights, or of their gradients, by the files' names and in the files' layouts.

    The way back of load: leaves that share a tensor are stacked, and Conv1D's are turned over.
    rows are a family's, as inspect gives them.

    >>> from pyres.files.families import Row
    >>> from pyres.weights import AttentionWeights
    >>> w = AttentionWeights([[1, 2]], [[3, 4]], [[5, 6]], None, *[None] * 6)
    >>> file_tensors([Row("c_attn.weight", "columns", ["w_q", "w_k", "w_v"])], w)
    {'c_attn.weight': [[1, 3, 5], [2, 4, 6]]}
    """
    found = dict(leaves(weights))
    tensors = {}
    for row in rows:
        stacked = [entry for leaf in row.leaves for entry in found[leaf]]
        tensors[row.tensor] = transpose(stacked) if row.layout == "columns" else stacked
    return tensors


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
