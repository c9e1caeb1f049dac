"""llama2.c's files: a Llama as a header and float32 numbers, nothing else.

The legacy layout, version 0 of https://github.com/karpathy/llama2.c, all of it little-endian:

    7 int32     dim  hidden_dim  n_layers  n_heads  n_kv_heads  vocab_size  seq_len
    float32     the tensors of `layout`, one after the other

A negative vocab_size means that the unembedding is a tensor of its own, at the end.  Rotary
channels are interleaved.  The file says neither the norms' eps nor rotary's theta: llama2.c
computes with 1e-5 and 10000, and so does load unless told otherwise.  The two tables of rotary
cosines and sines are skipped when read: they follow from theta.

A file is believed only where its size is what the header asks for, to the byte, and no memory is
taken before that is known.

    Header, parse_header    the seven sizes, checked
    layout                  which tensors follow, in which shapes
    load                    a file -> Model
    save                    a Model -> a file, where the format has a place for all of it

>>> parse_header(struct.pack("<7i", 4, 8, 1, 2, 2, -3, 16), "tiny.bin")
(Header(dim=4, hidden_dim=8, n_layers=1, n_heads=2, n_kv_heads=2, vocab_size=3, seq_len=16), False)
"""
import os
import struct
from collections import namedtuple
from math import prod

from ..config import RotaryConfig, attention_config, block_config, model_config, norm_config
from ..model import make_model
from ..rotary import angles, frequencies
from ..weights import leaves, weights_from_leaves
from .dtypes import DTYPES, decode, encode
from .fitting import filled, misfits, with_pairing
from .opening import opened, refuse_strangers
from .safetensors import flatten, nest, write_whole

__all__ = ["Header", "parse_header", "layout", "load", "save"]

EPS, THETA = 1e-5, 10000.0

HEADER_BYTES = 28


class Header(namedtuple("Header", ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads",
                                   "vocab_size", "seq_len"))):
    """The sizes, by llama2.c's names, vocab_size without its sign: d_model, d_mlp, n_layers,
    n_heads, n_kv_heads, d_vocab, n_ctx.
    """


def parse_header(data, what):
    """Return (Header, tied), given the file's first 28 bytes; `what` names the file in messages.

    ValueError where sizes are not positive or do not divide as they must, or where another kind of
    file begins with these bytes.

    >>> parse_header(struct.pack("<7i", 6, 8, 1, 2, 2, 3, 16), "odd.bin")
    Traceback (most recent call last):
    ValueError: odd.bin: dim 6 over n_heads 2 is 3 channels a head; rotary positions turn them \
in pairs, so it must be even
    """
    refuse_strangers(data, what)
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{what}: {len(data)} bytes, a llama2.c file begins with {HEADER_BYTES} "
                         "of header; it is cut short, so fetch it again")
    sizes = Header(*struct.unpack("<7i", data[:HEADER_BYTES]))
    tied, sizes = sizes.vocab_size > 0, sizes._replace(vocab_size=abs(sizes.vocab_size))
    for name, size in zip(Header._fields, sizes):
        if size < 1:
            raise ValueError(f"{what}: {name} is {size}; a size is at least 1, so this may be "
                             "another kind of file")
    for name, part, whole_name, whole in (("n_heads", sizes.n_heads, "dim", sizes.dim),
                                          ("n_kv_heads", sizes.n_kv_heads,
                                           "n_heads", sizes.n_heads)):
        if whole % part:
            raise ValueError(f"{what}: {name} is {part}, which does not divide {whole_name} "
                             f"{whole}; this may be another kind of file")
    d_head = sizes.dim // sizes.n_heads
    if d_head % 2:
        raise ValueError(f"{what}: dim {sizes.dim} over n_heads {sizes.n_heads} is {d_head} "
                         "channels a head; rotary positions turn them in pairs, so it must be "
                         "even")
    return sizes, tied


TABLES = ("freq_cis_real", "freq_cis_imag")         # cosines and sines, no leaves


def layout(header, tied):
    """What follows the header: triples (leaf, how many, shape).  Where a leaf is a block's, {}
    stands for its number, and those of all blocks follow one another.

    >>> header = Header(4, 8, n_layers=6, n_heads=2, n_kv_heads=1, vocab_size=3, seq_len=16)
    >>> [(leaf, n, shape) for leaf, n, shape in layout(header, tied=True) if "w_k" in leaf]
    [('blocks.{}.attn.w_k', 6, (2, 4))]
    """
    d, f, n, n_heads, n_kv_heads, v, n_ctx = header
    d_head = d // n_heads
    k = n_kv_heads * d_head
    return [("w_embed", 1, (v, d)),
            ("blocks.{}.attn_norm.gain", n, (d,)),
            ("blocks.{}.attn.w_q", n, (d, d)),
            ("blocks.{}.attn.w_k", n, (k, d)),
            ("blocks.{}.attn.w_v", n, (k, d)),
            ("blocks.{}.attn.w_o", n, (d, d)),
            ("blocks.{}.mlp_norm.gain", n, (d,)),
            ("blocks.{}.mlp.w_gate", n, (f, d)),
            ("blocks.{}.mlp.w_down", n, (d, f)),
            ("blocks.{}.mlp.w_up", n, (f, d)),
            ("final_norm.gain", 1, (d,)),
            (TABLES[0], 1, (n_ctx, d_head // 2)),
            (TABLES[1], 1, (n_ctx, d_head // 2)),
            ("w_unembed", 0 if tied else 1, (v, d))]


def config_of(header, eps, theta):
    """The ModelConfig that a header describes."""
    d_head, norm = header.dim // header.n_heads, norm_config("rms", eps)
    attention = attention_config(header.n_heads, d_head, header.n_kv_heads,
                                 rotary=RotaryConfig("interleaved", frequencies(d_head, theta)))
    block = block_config(header.hidden_dim, attention, norm=norm, activation="silu")
    return model_config(header.dim, header.vocab_size, header.seq_len, header.n_layers, block,
                        final_norm=norm)


# ---- reading ----

def load(path, eps=EPS, theta=THETA):
    """Read a file into a Model; eps and theta are the constants that the file does not say.

    A tokenizer.bin beside the file is the model's tokenizer where it has as many tokens as the
    model.  ValueError where the header is no such file's, the file's size is not what it asks for,
    or the tokenizer.bin is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "stories.bin")
    ...     write_small_file(path)
    ...     model = load(path)
    >>> model.name, model.weights.final_norm.gain, model.weights.w_unembed
    ('stories', [1.0, 1.0], None)
    >>> model.config.final_norm.eps, model.config.blocks[0].attention.rotary.pairing
    (1e-05, 'interleaved')
    """
    path, found = os.fsdecode(path), {}
    with opened(path) as (file, size):
        header, tied = parse_header(file.read(HEADER_BYTES), path)
        parts = layout(header, tied)
        needed = HEADER_BYTES + 4 * sum([n * prod(shape) for _, n, shape in parts])
        if size != needed:
            raise ValueError(f"{path}: {size} bytes, its header asks for {needed}; it is cut "
                             "short, or another kind of file")
        config = config_of(header, eps, theta)
        for leaf, n, shape in parts:
            for i in range(n):
                data = file.read(4 * prod(shape))
                if leaf not in TABLES:
                    found[leaf.format(i)] = nest(decode(data, "F32"), shape)
    name = os.path.splitext(os.path.basename(path))[0]
    return make_model(config, weights_from_leaves(config, found), name,
                      _tokenizer_beside(path, header.vocab_size))


def _tokenizer_beside(path, vocab_size):
    """The Tokenizer in the folder's tokenizer.bin, which llama2.c reads with any of the folder's
    models; None where there is none of that size."""
    beside = os.path.join(os.path.dirname(path), "tokenizer.bin")
    if not os.path.exists(beside):
        return None
    from . import tokenizers                    # slow to set up
    tokenizer = tokenizers.load(beside)
    return tokenizer if tokenizer.n_tokens == vocab_size else None


# ---- writing ----

SAYS = {"norm": "not every norm is an RMSNorm", "positions": "positions are not rotary",
        "gate": "the MLP is not gated", "biases": "there are biases"}


def save(model, path, eps=EPS, theta=THETA):
    """Write a model to a file, its weights as float32, rounded to the nearest.

    The file says no eps and no theta: a model with others than these, which are llama2.c's own, is
    refused, as is whatever else the format has no place for (ValueError, by name).  Rotary
    channels by halves are written interleaved.  The tokenizer is not written.  Whatever fails,
    path is left as it was.

    >>> from pyres.model import small_model
    >>> save(small_model(), "not-written.bin")
    Traceback (most recent call last):
    ValueError: llama2c.save: the format has no place for this model: d_model 1 over 1 heads is \
no even number of channels a head
    """
    model = with_pairing(model, "interleaved")
    header, tied = _header_of(model), model.weights.w_unembed is None
    parts = layout(header, tied)
    names = [leaf.format(i) for leaf, n, _ in parts for i in range(n) if leaf not in TABLES]
    says = dict(SAYS, frequencies=f"rotary frequencies are not those of theta {theta}")
    found = misfits(model, config_of(header, eps, theta), names, says)
    if found:
        _refuse("; ".join(found))
    tensors = dict(leaves(filled(model, names).weights))
    write_whole(path, _pieces(header, tied, parts, tensors, theta))


def _refuse(why):
    raise ValueError(f"llama2c.save: the format has no place for this model: {why}")


def _header_of(model):
    """The sizes of a model; ValueError where there are none that the format can say."""
    config = model.config
    if not config.blocks:
        _refuse("it has no block")
    block = config.blocks[0]
    n_heads = block.attention.n_heads
    if config.d_model % (2 * n_heads):
        _refuse(f"d_model {config.d_model} over {n_heads} heads is no even number of channels a "
                "head")
    header = Header(config.d_model, block.d_mlp, len(config.blocks), n_heads,
                    block.attention.n_kv_heads, config.d_vocab, config.n_ctx)
    for name, size in zip(Header._fields, header):
        if size > DTYPES["I32"].largest:
            _refuse(f"{name} is {size}, larger than an int32")
    return header


def _pieces(header, tied, parts, tensors, theta):
    """The bytes of a file, tensor by tensor."""
    yield struct.pack("<7i", *header._replace(
        vocab_size=header.vocab_size if tied else -header.vocab_size))
    rates = frequencies(header.dim // header.n_heads, theta)
    for leaf, n, _ in parts:
        if leaf in TABLES:
            part = TABLES.index(leaf)
            for t in range(header.seq_len):
                yield encode([turn[part] for turn in angles([t], rates)[0]], "F32")
            continue
        for i in range(n):
            _, numbers = flatten(tensors[leaf.format(i)])
            try:
                yield encode(numbers, "F32")
            except OverflowError:
                raise ValueError(f"llama2c.save: {leaf.format(i)} has a number beyond the largest "
                                 f"float32, {DTYPES['F32'].largest}") from None


def write_small_file(path):
    """Write a Llama of one block, d_model 2 and three tokens, for the examples."""
    from ..weights import random_weights
    config = config_of(Header(2, 4, 1, 1, 1, 3, 8), EPS, THETA)
    save(make_model(config, random_weights(config, biases=False, gated=True, positions=False)),
         path)
