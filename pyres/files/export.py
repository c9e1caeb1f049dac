"""A model as a Hugging Face folder, which transformers loads with the same logits.

    config.json              what the model is
    model.safetensors        its weights, by the names and in the layouts of the files
    tokenizer.json           its tokenizer, if it has one, and tokenizer_config.json beside it
    README.md                how to load it

Two classes of transformers are written: GPT2LMHeadModel and LlamaForCausalLM.  A model is one of
them where the config that pyres would read from the folder is the model's own and every weight has
a place; if not, the error says what differs.  Rotary channels that are interleaved are written by
halves, as Llama's are: the rows of w_q and w_k change places and the function stays the same.

    Shape, SHAPES     the two classes
    hugging_face      config.json and the tensors of a model
    check_place       whether a folder may be written
    export_folder     writes it, whole or not at all

>>> from pyres.config import attention_config, block_config, model_config
>>> from pyres.model import make_model
>>> from pyres.weights import random_weights
>>> config = model_config(4, 3, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
>>> values, tensors = hugging_face(make_model(config, random_weights(config)))
>>> values["architectures"], values["n_embd"], list(tensors)[:2]
(['GPT2LMHeadModel'], 4, ['transformer.wte.weight', 'transformer.wpe.weight'])
"""
import json
import os
import tempfile
from collections import namedtuple

from .characters import Characters
from .families import FAMILIES
from .fields import Fields, read_object
from .fitting import filled, misfits, theta_of, with_pairing
from .huggingface import MAX_CONFIG_BYTES, file_tensors
from .opening import read_bytes
from .safetensors import write, write_whole

__all__ = ["DTYPE_NAMES", "Shape", "SHAPES", "hugging_face", "check_place", "export_folder"]

DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


# ---- the two classes ----

class Shape(namedtuple("Shape", ("class_name", "model_type", "values", "says"))):
    """A class of transformers.

    class_name, model_type    its names in config.json
    values(model, block)      the sizes and numbers of config.json, block being the first one's
                              config
    says                      sentences on what it is not, see fitting.misfits
    """


# transformers' names of the activations; of the two for gelu_tanh, the older
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def gpt2_values(model, block):
    """The sizes of a GPT-2."""
    config = model.config
    return {"n_layer": len(config.blocks), "n_embd": config.d_model,
            "n_head": block.attention.n_heads, "n_inner": block.d_mlp,
            "n_positions": config.n_ctx, "activation_function": ACTIVATIONS[block.activation],
            "layer_norm_epsilon": eps_of(config)}


def llama_values(model, block):
    """The sizes of a Llama."""
    config, attention = model.config, block.attention
    rates = None if attention.rotary is None else attention.rotary.frequencies
    return {"num_hidden_layers": len(config.blocks), "hidden_size": config.d_model,
            "num_attention_heads": attention.n_heads, "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.d_head, "intermediate_size": block.d_mlp,
            "max_position_embeddings": config.n_ctx, "hidden_act": ACTIVATIONS[block.activation],
            "rms_norm_eps": eps_of(config), "rope_theta": rates and theta_of(rates) or 10000.0,
            "attention_bias": has_any(model, "attn", ("b_q", "b_k", "b_v", "b_o")),
            "mlp_bias": has_any(model, "mlp", ("b_gate", "b_up", "b_down"))}


def eps_of(config):
    """The final norm's eps; all others are compared with it."""
    return 1e-5 if config.final_norm is None else float(config.final_norm.eps)


def has_any(model, branch, names):
    """Whether any block has one of these weights."""
    return any([getattr(getattr(w, branch), name) is not None
                for w in model.weights.blocks for name in names])


SHAPES = (
    Shape("GPT2LMHeadModel", "gpt2", gpt2_values, {
        "norm": "not every norm is a LayerNorm (train with --norm layer)",
        "positions": "positions are not learned ones (train with --positions learned)",
        "gate": "the MLP is gated (train without --gated)"}),
    Shape("LlamaForCausalLM", "llama", llama_values, {
        "norm": "not every norm is an RMSNorm (train with --norm rms)",
        "positions": "positions are not rotary ones (train with --positions rotary)",
        "gate": "the MLP is not gated (train with --gated)",
        "frequencies": "rotary frequencies are not theta ** (-2j / head_dim) for any theta"}),
)


# ---- config and tensors ----

def hugging_face(model, dtype="F32", token_ids=()):
    """Return (what config.json says, tensors by the names of the files).

    dtype is what the weights will be written as, a key of DTYPE_NAMES, token_ids a dict of
    bos_token_id, eos_token_id, pad_token_id, or of some of them.  A gain or a bias that the model
    lacks and the class has is written as ones or zeros.  Raises ValueError where the model is
    neither of the two classes: which one it is nearest to, and all that differs.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import random_weights
    >>> config = model_config(4, 3, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
    >>> hugging_face(make_model(config, random_weights(config, gated=True), "gated"))
    Traceback (most recent call last):
    ValueError: export: 'gated' is none of GPT2LMHeadModel, LlamaForCausalLM; nearest is \
GPT2LMHeadModel, but the MLP is gated (train without --gated)
    """
    if dtype not in DTYPE_NAMES:
        raise ValueError(f"export: no float type {dtype!r}; there are {', '.join(DTYPE_NAMES)}")
    if not model.config.blocks:
        raise ValueError(f"export: {model.name!r} has no block, which no class of transformers "
                         "is without")
    model, tried = with_pairing(model, "half"), []
    for shape in SHAPES:
        values, rows, found = _as_shape(model, shape, dtype, token_ids)
        if not found:
            names = [leaf for row in rows for leaf in row.leaves]
            return values, file_tensors(rows, filled(model, names).weights)
        tried.append((not rows, len(found), shape.class_name, found))
    _, _, nearest, found = min(tried)
    raise ValueError(f"export: {model.name!r} is none of "
                     f"{', '.join([shape.class_name for shape in SHAPES])}; nearest is {nearest}, "
                     f"but {'; '.join(found)}")


TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _as_shape(model, shape, dtype, token_ids):
    """Return (values, rows, misfits) of a model written as a Shape."""
    family = [family for family in FAMILIES if family.model_type == shape.model_type][0]
    values = {"architectures": [shape.class_name], "model_type": shape.model_type,
              "vocab_size": model.config.d_vocab}
    try:
        values.update(shape.values(model, model.config.blocks[0]))
        # where they are absent, transformers takes those of the published models
        values.update(dict.fromkeys(TOKEN_IDS), **dict(token_ids))
        values.update(tie_word_embeddings=model.weights.w_unembed is None,
                      torch_dtype=DTYPE_NAMES[dtype])
        fields = Fields(values, "config.json")
        config = family.config(fields)
    except ValueError as error:
        return values, [], [str(error)]
    rows = [row._replace(tensor=("" if row.tensor.startswith("lm_head.") else family.prefix)
                         + row.tensor) for row in family.tensors(fields, config)]
    names = [leaf for row in rows for leaf in row.leaves]
    found, n_heads = misfits(model, config, names, shape.says), config.blocks[0].attention.n_heads
    if config.d_model % n_heads:                # transformers insists, whatever a head's width is
        found.append(f"d_model {config.d_model} is no multiple of its {n_heads} heads")
    return values, rows, found


# ---- the folder ----

README = """# {class_name}

Written by pyres, weights in {dtype}. With transformers, FOLDER being this one:

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("FOLDER")
{tokenizer}
With pyres:

    python3 -m pyres model check FOLDER
"""
WITH_TOKENIZER = '    tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
WITHOUT_TOKENIZER = "\nNo tokenizer was written; give token ids.\n"
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model",
                   "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                   "chat_template.jinja")
FILES = ("README.md", "config.json", "model.safetensors") + TOKENIZER_FILES


def tokenizer_files(model, source):
    """Return (files, token ids): a dict from name to bytes, and a dict as hugging_face takes it.

    A tokenizer of characters is written out; of any other, the files are those of the folder
    `source`, where they are.
    """
    if isinstance(model.tokenizer, Characters):
        from .tokenizers import tokenizer_json_of_characters        # slow to set up
        bos = model.tokenizer.bos
        mark = {} if bos is None else {"bos_token": model.tokenizer.tokens[bos]}
        told = dict(mark, tokenizer_class="PreTrainedTokenizerFast",
                    model_max_length=model.config.n_ctx, clean_up_tokenization_spaces=False)
        return {"tokenizer.json": as_json(tokenizer_json_of_characters(model.tokenizer)),
                "tokenizer_config.json": as_json(told)}, {"bos_token_id": bos}
    if source is None or not os.path.exists(os.path.join(source, "config.json")):
        return {}, {}
    values = read_object(os.path.join(source, "config.json"), MAX_CONFIG_BYTES)
    found = {}
    for name in TOKENIZER_FILES:
        if os.path.exists(os.path.join(source, name)):
            found[name] = read_bytes(os.path.join(source, name))
    return found, {key: values.get(key) for key in TOKEN_IDS}


def has_tokenizer(names):
    """Whether a tokenizer is in files of those names.

    >>> has_tokenizer(["config.json", "vocab.json", "merges.txt"])
    True
    """
    return ("tokenizer.json" in names or "tokenizer.model" in names
            or "vocab.json" in names and "merges.txt" in names)


def as_json(values):
    """The bytes of a JSON file."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def check_place(folder, force=False):
    """Raise FileExistsError where writing a folder would lose something.

    An empty folder is nothing to lose.  With force, neither is one that holds only what an export
    writes.

    >>> check_place("no/such/folder")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_place(folder)
    ...     write_whole(os.path.join(folder, "thesis.tex"), [])
    ...     for force in (False, True):
    ...         try:
    ...             check_place(folder, force)
    ...         except FileExistsError as error:
    ...             print(str(error).replace(folder, "FOLDER"))
    FOLDER exists; force=True overwrites it
    FOLDER holds 'thesis.tex', which is nothing that an export writes; name another place
    """
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise FileExistsError(f"{folder} exists, and is no folder; name another place")
    there = os.listdir(folder)
    if there and not force:
        raise FileExistsError(f"{folder} exists; force=True overwrites it")
    strangers = sorted(set(there) - set(FILES))
    if strangers:
        raise FileExistsError(f"{folder} holds {strangers[0]!r}, which is nothing that an export "
                              "writes; name another place")


def export_folder(model, folder, dtype="F32", force=False, source=None):
    """Write a model as a Hugging Face folder, weights rounded to the nearest of a dtype, a key of
    DTYPE_NAMES; return what config.json says.

    source is the folder that the model came from, if it came from one: its tokenizer is copied.
    All is written into a temporary folder beside, which then takes the folder's name.  Raises
    ValueError as hugging_face does and where a number does not fit the dtype, FileExistsError as
    check_place does.  Whatever fails, the folder is what it was.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> from pyres.files import huggingface
    >>> from pyres.model import make_model, run
    >>> from pyres.weights import random_weights
    >>> config = model_config(4, 3, 8, 1, block_config(8, attention_config(n_heads=2, d_head=2)))
    >>> model = make_model(config, random_weights(config))
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = os.path.join(parent, "small")
    ...     values = export_folder(model, folder, "F64")
    ...     again = huggingface.load(folder)
    ...     sorted(os.listdir(folder)), run(again, [2, 1]).logits == run(model, [2, 1]).logits
    (['README.md', 'config.json', 'model.safetensors'], True)
    """
    check_place(folder, force)
    files, token_ids = tokenizer_files(model, source)
    values, tensors = hugging_face(model, dtype, token_ids)
    files["config.json"] = as_json(values)
    files["README.md"] = README.format(
        class_name=values["architectures"][0], dtype=DTYPE_NAMES[dtype],
        tokenizer=WITH_TOKENIZER if has_tokenizer(files) else WITHOUT_TOKENIZER).encode()
    target = os.path.realpath(folder)
    with tempfile.TemporaryDirectory(prefix=".pyres-", dir=os.path.dirname(target)) as temporary:
        complete, before = [os.path.join(temporary, name) for name in ("complete", "before")]
        os.mkdir(complete)
        for name, data in files.items():
            write_whole(os.path.join(complete, name), [data])
        try:
            write(os.path.join(complete, "model.safetensors"), tensors, {"format": "pt"}, dtype)
        except ValueError as error:             # it names the temporary file
            raise ValueError(str(error).replace(complete, os.fsdecode(folder))) from None
        _take_place(complete, target, before)
    return values


def _take_place(complete, target, before):
    """Give a folder the name of another, which is moved to `before`, or back where that fails."""
    if os.path.isdir(target):
        os.rename(target, before)
    try:
        os.rename(complete, target)
    except BaseException:
        if os.path.isdir(before):
            os.rename(before, target)
        raise
