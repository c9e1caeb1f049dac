"""What a description is made of: which tensor of a file holds which weights, and in which layout.

    Family                    one description of a family
    Row                       one tensor of a file
    row_shape, n_numbers      its shape by the config, and how many weights it holds
    leaves_of, tensor_of      from the file's tensor to the leaves, and back
    norm_rows, linear_rows, head_rows
                              rows as most families have them

Gradients come back by the same way, but for what the loader added: see tensor_of.

>>> for row in linear_rows("mlp.fc1", "blocks.0.mlp", ["up"], has_bias=True):
...     print(row.tensor, row.layout, row.leaves)
mlp.fc1.weight rows ['blocks.0.mlp.w_up']
mlp.fc1.bias rows ['blocks.0.mlp.b_up']
"""
from collections import namedtuple
from math import prod

from ...linalg import transpose

__all__ = ["Family", "Row", "row_shape", "n_numbers", "leaves_of", "tensor_of", "norm_rows",
           "linear_rows", "head_rows"]


class Family(namedtuple("Family", ("model_type", "config", "tensors", "prefix", "buffers", "head"),
                        defaults=("lm_head",))):
    """A family of models, all that the loader knows of it.

    model_type    what config.json calls it
    config        Fields -> ModelConfig
    tensors       (Fields, ModelConfig) -> the Rows of its files
    prefix        what stands before the names of tensors in some files, and not in others
    buffers       a pattern of names, without the prefix, of tensors that no training changes: a
                  causal mask, rotary frequencies, which follow from the config
    head          the name of the unembedding, which never has the prefix
    """


class Row(namedtuple("Row", ("tensor", "layout", "leaves", "group", "added", "unused", "fit"),
                     defaults=(None, 0, 0, 0))):
    """One tensor of a file.

    tensor    its name, without the prefix that the family's names may have
    layout    "rows" with outputs as rows, `[d_out][d_in]`, as pyres has; "columns" is GPT-2's
              Conv1D, `[d_in][d_out]`, and is turned over
    leaves    the weights in it, one after the other along the outputs
    group     None; or they take turns, each with so many outputs at a time (NeoX: a head of
              queries, a head of keys, a head of values, the next head of queries ...)
    added     what the loader adds to every number: 1 where a gain is stored less 1
    unused    how many outputs at the beginning are none of the leaves' (OPT's position table)
    fit       which of its shapes in weights.leaf_shapes a leaf has: 1 for a q/k gain of all heads
    """


# ---- shapes ----

def row_shape(row, fits):
    """The shape of the row's tensor; fits is a dict of weights.leaf_shapes.

    >>> fits = {"w_q": ((4, 3),), "w_k": ((2, 3),)}
    >>> row_shape(Row("qk.weight", "columns", ["w_q", "w_k"]), fits)
    (3, 6)
    """
    shapes = [fits[leaf][row.fit] for leaf in row.leaves]
    stacked = (row.unused + sum([shape[0] for shape in shapes]),) + shapes[0][1:]
    return stacked[::-1] if row.layout == "columns" else stacked


def n_numbers(row, shape):
    """How many weights a tensor of that shape holds.

    >>> n_numbers(Row("embed_positions.weight", "rows", ["w_pos"], unused=2), (18, 8))
    128
    """
    return prod(shape) - row.unused * prod(shape[1:])


# ---- numbers ----

def leaves_of(row, tensor, fits):
    """The weights in a row's tensor, as pairs (leaf, weight); fits as in row_shape.

    >>> fits = {"w_q": ((2, 1),), "w_k": ((2, 1),)}
    >>> tensor = [[1], [2], [3], [4]]
    >>> leaves_of(Row("qk.weight", "rows", ["w_q", "w_k"]), tensor, fits)
    [('w_q', [[1], [2]]), ('w_k', [[3], [4]])]
    >>> leaves_of(Row("qk.weight", "rows", ["w_q", "w_k"], group=1), tensor, fits)
    [('w_q', [[1], [3]]), ('w_k', [[2], [4]])]
    """
    if row.layout == "columns":
        tensor = transpose(tensor)
    if row.added:
        tensor = _plus(tensor, row.added)
    pairs, begin = [], row.unused
    for i, leaf in enumerate(row.leaves):
        if row.group is None:
            end = begin + fits[leaf][row.fit][0]
            pairs.append((leaf, tensor[begin:end]))
            begin = end
        else:
            firsts = range(i * row.group, len(tensor), len(row.leaves) * row.group)
            pairs.append((leaf, [tensor[k + j] for k in firsts for j in range(row.group)]))
    return pairs


def tensor_of(row, found, gradients=False):
    """The row's tensor, from a dict of weights by leaf: the way back of leaves_of.

    Of gradients nothing is subtracted: the slope of a stored gain is that of the gain itself.
    Outputs that are unused come back as zeros.

    >>> row = Row("norm.weight", "rows", ["final_norm.gain"], added=1)
    >>> tensor_of(row, {"final_norm.gain": [1.5, 1.0]})
    [0.5, 0.0]
    >>> tensor_of(row, {"final_norm.gain": [1.5, 1.0]}, gradients=True)
    [1.5, 1.0]
    """
    parts = [found[leaf] for leaf in row.leaves]
    if row.group is None:
        stacked = [output for part in parts for output in part]
    else:
        stacked = [part[k + j] for k in range(0, len(parts[0]), row.group)
                   for part in parts for j in range(row.group)]
    if row.unused:
        stacked = [_zeros(stacked[0]) for _ in range(row.unused)] + stacked
    if row.added and not gradients:
        stacked = _plus(stacked, -row.added)
    return transpose(stacked) if row.layout == "columns" else stacked


def _plus(tensor, number):
    if isinstance(tensor, list):
        return [_plus(part, number) for part in tensor]
    return tensor + number


def _zeros(output):
    return [0.0] * len(output) if isinstance(output, list) else 0.0


# ---- rows as most families have them ----

def norm_rows(tensor, norm, has_bias=True, added=0):
    """A norm's gain and perhaps its bias, which files call weight and bias.

    >>> [row.tensor for row in norm_rows("ln_f", "final_norm")]
    ['ln_f.weight', 'ln_f.bias']
    """
    rows = [Row(tensor + ".weight", "rows", [norm + ".gain"], added=added)]
    return rows + ([Row(tensor + ".bias", "rows", [norm + ".bias"])] if has_bias else [])


def linear_rows(tensor, record, names, has_bias, layout="rows", group=None):
    """A matrix and perhaps its bias: w_NAME and b_NAME of a record, for each of the names.

    >>> linear_rows("c_attn", "attn", ["q", "k", "v"], False, "columns")[0].leaves
    ['attn.w_q', 'attn.w_k', 'attn.w_v']
    """
    rows = [Row(tensor + ".weight", layout, [f"{record}.w_{name}" for name in names], group)]
    if has_bias:
        rows.append(Row(tensor + ".bias", "rows", [f"{record}.b_{name}" for name in names], group))
    return rows


def head_rows(fields, tied, tensor="lm_head", has_bias=False):
    """The unembedding, where it is not the embedding again; `tied` is what an absent key means.  A
    bias is there even then.

    >>> from ..fields import Fields
    >>> head_rows(Fields({}, "config.json"), tied=True)
    []
    """
    rows = [] if fields.flag("tie_word_embeddings", tied) else [
        Row(tensor + ".weight", "rows", ["w_unembed"])]
    return rows + ([Row(tensor + ".bias", "rows", ["b_unembed"])] if has_bias else [])
