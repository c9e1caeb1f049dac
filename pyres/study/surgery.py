"""Weight surgery: other weights, the same function.

A trained model has freedoms that no input shows: a gain may stand in a norm or in the matrices
that read it.  Each operation here moves a Model within one such freedom and gives a new Model; in
exact numbers the outputs are equal, with ==.  What an edit means may change: switching a head off
is another thing once its constant part stands in b_o.  Each docstring says so.

    untied                 w_unembed on its own
    fold_norms             gains and biases of norms into the matrices that read them
    centre_reading         takes from those matrices what LayerNorm never shows them
    centre_writing         takes from what is written what LayerNorm never shows anybody
    fold_value_bias        b_v into b_o
    centre_unembedding     logits less their mean; the one that shifts them
    expand_groups          a key/value head for every query head

An operation that would not be exact for a model raises ValueError and says why.  A tied table is
untied wherever only one of its two uses changes.  The new Model shares no list with the old one.
This module is part of the portable core.

A gain of 2 and a bias of 1 in front of a matrix [[3]]: 3 (2 n + 1) = 6 n + 3.

>>> from pyres.config import model_config, norm_config
>>> from pyres.model import make_model
>>> from pyres.weights import ModelWeights, NormWeights
>>> config = model_config(2, 1, 4, 0, None, final_norm=norm_config("layer", 0, scale=1))
>>> w = ModelWeights([[5, 7]], None, [], NormWeights([2, 2], [1, 1]), [[3, 0]], None)
>>> folded = fold_norms(make_model(config, w)).weights
>>> folded.w_unembed, folded.b_unembed, folded.final_norm
([[6, 0]], [3], NormWeights(gain=None, bias=None))
"""
from ..linalg import add, copied, matvec, multiply, scale, transpose
from ..model import make_model
from ..weights import NormWeights, map_leaves

__all__ = ["untied", "fold_norms", "centre_reading", "centre_writing", "fold_value_bias",
           "centre_unembedding", "expand_groups"]


# ---- records and matrices ----

def changed(record, **fields):
    """A record with other values in some fields.

    >>> from pyres.weights import NormWeights
    >>> changed(NormWeights([1, 2], None), bias=[3, 4])
    NormWeights(gain=[1, 2], bias=[3, 4])
    """
    return type(record)(*[fields[name] if name in fields else getattr(record, name)
                          for name in record.FIELDS])


def with_weights(model, config=None, **fields):
    """A Model with other weights in some fields, and perhaps another config; in fresh lists."""
    weights = map_leaves(lambda tensor: copied([tensor])[0], changed(model.weights, **fields))
    return make_model(config or model.config, weights, model.name, model.tokenizer)


def each_block(model, f):
    """Every block's weights through f(BlockConfig, BlockWeights)."""
    return [f(block, w) for block, w in zip(model.config.blocks, model.weights.blocks)]


def added(b, more):
    """b + more, where b may be None."""
    return more if b is None else add(b, more)


def less_row_means(w):
    """Every row less its mean: a matrix [n][d_model]; None for None.

    >>> less_row_means([[1.0, 3.0], [0.0, 0.5]])
    [[-1.0, 1.0], [-0.25, 0.25]]
    """
    return None if w is None else [_less_mean(row) for row in w]


def _less_mean(row):
    mean = sum(row) / len(row)
    return [a - mean for a in row]


def less_column_means(w):
    """Every column less its mean: a matrix [d_model][n], or a vector [d_model]; None for None."""
    if w is None or not isinstance(w[0], (list, tuple)):
        return None if w is None else _less_mean(w)
    return transpose(less_row_means(transpose(w)))


# ---- the unembedding ----

def unembedding(model):
    """w_unembed, or the table that it is tied to."""
    w = model.weights
    return w.w_embed if w.w_unembed is None else w.w_unembed


def untied(model):
    """The model with w_unembed on its own: a copy of w_embed where it was tied.

    A training step would now move the two apart.

    >>> from pyres.config import model_config
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(1, 2, 4, 0, None, final_norm=None)
    >>> untied(make_model(config, ModelWeights([[5], [7]], None, [], None, None, None))).weights
    ModelWeights(w_embed=[[5], [7]], w_pos=None, blocks=[], final_norm=None, \
w_unembed=[[5], [7]], b_unembed=None)
    """
    return with_weights(model, w_unembed=unembedding(model))


def centre_unembedding(model):
    """The model whose logits are less their mean over the vocabulary, at every position.

    w_unembed and b_unembed lose their mean over the tokens.  Probabilities, loss and differences
    of logits stay; a single logit is now that logit less the mean.  Raises ValueError for a soft
    cap, which does not pass a shift on.

    >>> from pyres.config import model_config
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(1, 2, 4, 0, None, final_norm=None)
    >>> w = ModelWeights([[1.0], [2.0]], None, [], None, [[5.0], [7.0]], [0.0, 1.0])
    >>> centred = centre_unembedding(make_model(config, w)).weights
    >>> centred.w_unembed, centred.b_unembed
    ([[-1.0], [1.0]], [-0.5, 0.5])
    """
    if model.config.logit_soft_cap is not None:
        raise ValueError("centre_unembedding: a soft cap bends the logits, so shifting what goes "
                         "in is no shift of what comes out, and the loss would change")
    return with_weights(model, w_unembed=less_column_means(unembedding(model)),
                        b_unembed=less_column_means(model.weights.b_unembed))


# ---- reading: norms and the matrices behind them ----

# Which fields of BlockWeights read the stream, with their matrices and biases.
READING = (("attn", (("w_q", "b_q"), ("w_k", "b_k"), ("w_v", "b_v"))),
           ("mlp", (("w_up", "b_up"), ("w_gate", "b_gate"))))


def norm_read_by(block, branch):
    """The place of the norm that a sublayer reads through, or None: in a parallel block with one
    norm the MLP reads attention's."""
    place = f"{branch}_norm"
    if getattr(block, place) is None and block.placement == "parallel":
        place = "attn_norm"
    return place if getattr(block, place) is not None else None


def fold_norms(model):
    """The model whose norms have no gain and no bias where a matrix reads them.

        w (gain * n + bias) + b  =  (w diag(gain)) n + (w bias + b)

    goes for w_q, w_k, w_v, w_up and w_gate behind a block's reading norms, and for w_unembed
    behind the final one.  What the matrices read is then `normalized`, and what a neuron's row or
    a head's QK says, it says about that.  States, updates and logits stay as they are, under every
    edit.

    A norm behind a sublayer (sandwich, output_norm) is read by a sum, and post_norm's by the next
    sum as well as by matrices: these keep what they have.  Raises ValueError where no norm has a
    gain or a bias that can be folded.

    >>> from pyres.model import small_model
    >>> model = small_model()
    >>> block = changed(model.weights.blocks[0], attn_norm=NormWeights([5.0], None))
    >>> folded = fold_norms(with_weights(model, blocks=[block])).weights.blocks[0]
    >>> folded.attn.w_v, folded.attn_norm
    ([[5.0]], NormWeights(gain=None, bias=None))
    """
    w, multiplier = model.weights, model.config.logit_multiplier
    blocks, final = each_block(model, _block_with_norms_folded), w.final_norm
    w_unembed, b_unembed = w.w_unembed, w.b_unembed
    if _has_affine(final):
        # logits = multiplier * w_unembed normed + b_unembed: the multiplier does not reach b
        w_unembed, constant = _folded(unembedding(model), None, final)
        if constant is not None:
            b_unembed = added(b_unembed, constant if multiplier is None
                              else scale(multiplier, constant))
        final = NormWeights(None, None)
    elif blocks == w.blocks:
        raise ValueError("fold_norms: no norm that a matrix reads has a gain or a bias here; "
                         "norms behind a sublayer, and post_norm's on the stream, are read by a "
                         "sum and cannot be folded")
    return with_weights(model, blocks=blocks, final_norm=final, w_unembed=w_unembed,
                        b_unembed=b_unembed)


def _has_affine(norm):
    return norm is not None and (norm.gain is not None or norm.bias is not None)


def _folded(w, b, norm):
    """Return (w diag(gain), b + w bias) of a matrix that reads a norm; a bias may be None."""
    columns = w if norm.gain is None else [multiply(norm.gain, row) for row in w]
    return columns, b if norm.bias is None else added(b, matvec(w, norm.bias))


def _block_with_norms_folded(block, w):
    fields = {}
    for branch, matrices in READING:
        place, of_branch = norm_read_by(block, branch), getattr(w, branch)
        if place is None or not _has_affine(getattr(w, place)):
            continue
        folded = {}
        for matrix, bias in matrices:
            if getattr(of_branch, matrix) is not None:
                folded[matrix], folded[bias] = _folded(
                    getattr(of_branch, matrix), getattr(of_branch, bias), getattr(w, place))
        fields[branch] = changed(of_branch, **folded)
        fields[place] = NormWeights(None, None)
    return changed(w, **fields)


def check_layer_norms_read(name, model):
    """Raise ValueError unless everything that reads the stream reads it through a LayerNorm."""
    norms = [(f"blocks.{i}.{branch}", block, norm_read_by(block, branch))
             for i, block in enumerate(model.config.blocks) for branch, _ in READING]
    norms = [(what, None if place is None else getattr(block, place))
             for what, block, place in norms] + [("the unembedding", model.config.final_norm)]
    for what, norm in norms:
        if norm is None:
            raise ValueError(f"{name}: {what} reads the bare stream, its mean included; only "
                             "LayerNorm takes that away")
        if norm.kind != "layer":
            raise ValueError(f"{name}: {what} reads an RMSNorm, which leaves the mean in; only "
                             "LayerNorm takes that away")


def centre_reading(model):
    """The model whose reading matrices have rows of mean 0 over d_model.

    What LayerNorm gives before its gain has mean 0, so a constant in a row meets nothing.  States,
    updates and logits stay.  Raises ValueError where something does not read a LayerNorm, or one
    that has its gain or bias still: fold_norms takes them away.

    >>> from pyres.config import model_config
    >>> from pyres.weights import ModelWeights
    >>> w = ModelWeights([[5, 7]], None, [], NormWeights(None, None), [[3.0, 1.0]], None)
    >>> centre_reading(make_model(model_config(2, 1, 4, 0, None), w)).weights.w_unembed
    [[1.0, -1.0]]
    """
    check_layer_norms_read("centre_reading", model)
    w = model.weights
    if _has_affine(w.final_norm) or any([
            _has_affine(getattr(of_block, norm_read_by(block, branch)))
            for block, of_block in zip(model.config.blocks, w.blocks) for branch, _ in READING]):
        raise ValueError("centre_reading: a norm has its gain or bias still, behind which the "
                         "mean is not 0; fold_norms first")

    def centred(block, of_block):
        return changed(of_block, **{branch: changed(getattr(of_block, branch), **{
            matrix: less_row_means(getattr(getattr(of_block, branch), matrix))
            for matrix, _ in matrices}) for branch, matrices in READING})

    return with_weights(model, blocks=each_block(model, centred),
                        w_unembed=less_row_means(unembedding(model)))


# ---- writing ----

def centre_writing(model):
    """The model in which nobody writes a mean over d_model to the stream.

    w_embed, w_pos, w_o, b_o, w_down and b_down lose it.  Every LayerNorm takes the stream's mean
    away before anybody reads it, so the logits stay; states and updates lose their means, and with
    them lengths and cosines change.  Raises ValueError where something reads the stream through no
    LayerNorm, where a norm stands behind a sublayer (what is written is that norm's, with its gain
    and bias), or where a learned vector multiplies what is written.

    >>> from pyres.config import model_config
    >>> from pyres.weights import ModelWeights
    >>> w = ModelWeights([[5.0, 7.0]], None, [], NormWeights(None, None), None, None)
    >>> centred = centre_writing(make_model(model_config(2, 1, 4, 0, None), w)).weights
    >>> centred.w_embed, centred.w_unembed
    ([[-1.0, 1.0]], [[5.0, 7.0]])
    """
    for i, block in enumerate(model.config.blocks):
        if block.placement not in ("pre_norm", "parallel"):
            raise ValueError(f"centre_writing: blocks.{i} is {block.placement}: what it writes "
                             "comes out of a norm, or goes into one with the stream, and no "
                             "matrix alone sets its mean")
    check_layer_norms_read("centre_writing", model)
    w = model.weights
    for i, of_block in enumerate(w.blocks):
        for multiplier in (of_block.attn_multiplier, of_block.mlp_multiplier):
            if isinstance(multiplier, (list, tuple)):
                raise ValueError(f"centre_writing: blocks.{i} has a learned vector of multipliers "
                                 "behind its sublayers, after which the mean is another; multiply "
                                 "w_o, b_o, w_down and b_down by it first")

    def centred(block, of_block):
        attn, mlp = of_block.attn, of_block.mlp
        return changed(of_block,
                       attn=changed(attn, w_o=less_column_means(attn.w_o),
                                    b_o=less_column_means(attn.b_o)),
                       mlp=changed(mlp, w_down=less_column_means(mlp.w_down),
                                   b_down=less_column_means(mlp.b_down)))

    return with_weights(model, blocks=each_block(model, centred),
                        w_embed=less_row_means(w.w_embed), w_pos=less_row_means(w.w_pos),
                        w_unembed=unembedding(model))


def fold_value_bias(model):
    """The model without b_v; b_o has taken it in.

    A pattern's rows sum to 1, so a head always writes its w_o^i b_v, whatever it looks at:

        b_o  becomes  b_o + sum over heads i of w_o^i b_v of the value head that i reads

    Outputs and states stay.  What belongs to a head does not: switching it off used to take this
    constant away, and now leaves it, in `bias`.  Nor does the equality hold for an edited run that
    gives a pattern whose rows do not sum to 1, or scales what a head takes from one token.

    >>> from pyres.model import small_model
    >>> model = small_model()
    >>> attn = changed(model.weights.blocks[0].attn, b_v=[2.0])
    >>> block = changed(model.weights.blocks[0], attn=attn)
    >>> folded = fold_value_bias(with_weights(model, blocks=[block])).weights.blocks[0].attn
    >>> folded.b_v, folded.b_o                                        # 4 + 1 * 2
    (None, [6.0])
    """
    def folded(block, of_block):
        attn = of_block.attn
        if attn.b_v is None:
            return of_block
        constant = matvec(attn.w_o, repeated(attn.b_v, block.attention))
        return changed(of_block, attn=changed(attn, b_v=None, b_o=added(attn.b_o, constant)))

    return with_weights(model, blocks=each_block(model, folded))


# ---- groups ----

def repeated(rows, attention):
    """A key/value head's part for every query head that reads it: [n_kv_heads * d_head] of
    anything -> [n_heads * d_head].

    >>> from pyres.config import attention_config
    >>> repeated([1, 2, 3, 4], attention_config(n_heads=4, d_head=2, n_kv_heads=2))
    [1, 2, 1, 2, 3, 4, 3, 4]
    """
    h, size = attention.d_head, attention.n_heads // attention.n_kv_heads
    return [rows[i] for head in range(attention.n_heads)
            for i in range(head // size * h, (head // size + 1) * h)]


def expand_groups(model):
    """The model with a key/value head for every query head: w_k, w_v and their biases repeated.

    Query head i reads the copy of the head that it read.  Outputs and states stay.  An edit of a
    group is now one of a single head, and a training step would move the copies apart.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> from pyres.weights import random_weights
    >>> block = block_config(8, attention_config(n_heads=4, d_head=2, n_kv_heads=1))
    >>> config = model_config(4, 5, 8, 1, block)
    >>> wide = expand_groups(make_model(config, random_weights(config)))
    >>> wide.config.blocks[0].attention.n_kv_heads, len(wide.weights.blocks[0].attn.w_k)
    (4, 8)
    """
    def expanded(block, of_block):
        attention, attn = block.attention, of_block.attn
        fields = {name: repeated(getattr(attn, name), attention)
                  for name in ("w_k", "w_v", "b_k", "b_v") if getattr(attn, name) is not None}
        if attn.k_gain is not None and len(attn.k_gain) != attention.d_head:
            # one norm over all keys: each of them stands there equally often, so no mean changes
            fields["k_gain"] = repeated(attn.k_gain, attention)
        return changed(of_block, attn=changed(attn, **fields))

    blocks = [changed(block, attention=changed(
        block.attention, n_kv_heads=block.attention.n_heads)) for block in model.config.blocks]
    return with_weights(model, changed(model.config, blocks=blocks),
                        blocks=each_block(model, expanded))
