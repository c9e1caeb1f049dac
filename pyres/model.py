"""A whole model: embed, blocks, final norm, unembed; its run record; its backward.

    x[0]    = embed_multiplier * w_embed[token] + w_pos[position]
    x[k+1]  = the blocks, in order
    normed  = N(x[last])
    logits  = logit_multiplier * w_unembed normed + b_unembed        then perhaps a soft cap

Writers are `embed`, `L0.attn`, `L0.mlp`, `L1.attn`, ... : 1 + 2 * n_layers of them.  A state has
the name of the writer before it.  A parallel block has no state between its two writers.

    Model, make_model          name, config, weights, tokenizer
    small_model                one that fits in the head, for the examples
    writer_names, head_names, state_names
                               what an edit may name
    Run, run                   what happened: every update that was added, every state
    run_backward               gradients from any gradient at the logits
    stream_backward            the same from the final stream
    loss_and_gradients         from the cross entropy of the next tokens

>>> from pyres.config import attention_config, block_config, model_config
>>> from pyres.weights import random_weights
>>> config = model_config(d_model=4, d_vocab=5, n_ctx=8, n_layers=2,
...                       block=block_config(8, attention_config(n_heads=2, d_head=2)))
>>> r = run(make_model(config, random_weights(config, std=0.5)), [3, 1, 4])
>>> [name for name, update in r.writers]
['embed', 'L0.attn', 'L0.mlp', 'L1.attn', 'L1.mlp']
"""
from collections import namedtuple

from .blocks import (StateGradient, block_backward, block_steps, norm_backward, norm_steps,
                     small_block)
from .config import check_config, model_config
from .edits import (NO_EDITS, check_edits, edit_of_state, edit_state, edit_state_backward,
                    edit_update, edit_update_backward, edits_of_block, edits_of_writer)
from .linalg import (add, check_length, check_like, check_rows, linear, linear_backward, scale,
                     sum_rows, zeros_like)
from .loss import cross_entropy, cross_entropy_backward, next_token_targets
from .scalar import check_constant, tanh
from .stream import add_residual
from .weights import ModelWeights, check_weights

__all__ = ["Model", "make_model", "writer_names", "head_names", "state_names", "Run", "run",
           "run_backward", "stream_backward", "loss_and_gradients"]


# ---- the model ----

class Model(namedtuple("Model", ("name", "config", "weights", "tokenizer"))):
    """What there is to run.

    name         a str
    config       ModelConfig
    weights      ModelWeights
    tokenizer    what has encode, decode, token_bytes and tokens (see files.tokenizers), or None
    """


def make_model(config, weights, name="unnamed", tokenizer=None):
    """A Model whose weights fit its config; raises by name where they do not (see
    config.check_config and weights.check_weights).

    >>> from pyres.config import model_config
    >>> config = model_config(d_model=2, d_vocab=2, n_ctx=4, n_layers=0, block=None,
    ...                       final_norm=None)
    >>> make_model(config, ModelWeights([[1, 0]], None, [], None, None, None))
    Traceback (most recent call last):
    ValueError: check_weights: w_embed has shape (1, 2), the config asks for (2, 2)
    """
    check_config(config)
    check_weights(config, weights)
    return Model(name, config, weights, tokenizer)


def small_model(placement="pre_norm"):
    """A Model that fits in the head, for the examples: two tokens, of which token 0 is embedded as
    16 and token 1 as 8, one block (see blocks.small_block), no final norm.  Token 0's logit is the
    final stream itself, token 1's is 0.

    >>> small_model().config.n_ctx, small_model().weights.w_embed
    (4, [[16.0], [8.0]])
    """
    block, w = small_block(placement)
    config = model_config(d_model=1, d_vocab=2, n_ctx=4, n_layers=1, block=block,
                          final_norm=None)
    weights = ModelWeights([[16.0], [8.0]], None, [w], None, [[1.0], [0.0]], None)
    return make_model(config, weights, "small")


def writer_names(config):
    """Everything that adds to the stream, in order: 1 + 2 * n_layers names.

    >>> from pyres.config import model_config
    >>> len(writer_names(model_config(4, 10, 8, n_layers=32, block=None)))
    65
    """
    return ["embed"] + [f"L{i}.{branch}" for i in range(len(config.blocks))
                        for branch in ("attn", "mlp")]


def head_names(config):
    """Every attention head: `L0.attn.H0` and so on.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> block = block_config(d_mlp=8, attention=attention_config(n_heads=2, d_head=2))
    >>> head_names(model_config(d_model=4, d_vocab=5, n_ctx=8, n_layers=2, block=block))
    ['L0.attn.H0', 'L0.attn.H1', 'L1.attn.H0', 'L1.attn.H1']
    """
    return [f"L{i}.attn.H{h}" for i, block in enumerate(config.blocks)
            for h in range(block.attention.n_heads)]


def state_names(config):
    """Every state: the writers' names, less `attn` of a parallel block.

    >>> state_names(small_model("pre_norm").config), state_names(small_model("parallel").config)
    (['embed', 'L0.attn', 'L0.mlp'], ['embed', 'L0.mlp'])
    """
    return [name for name in writer_names(config) if not _is_inside_parallel(config, name)]


def part_names(config, n_tokens):
    """The finer writers that an edit may name besides heads: key/value groups, neurons, a head's
    source tokens; as pairs (beginning, how many), see edits.check_edits.

    >>> part_names(small_model().config, n_tokens=2)
    [('L0.attn.G', 1), ('L0.mlp.N', 1), ('L0.attn.H0.S', 2)]
    """
    return [part for i, block in enumerate(config.blocks)
            for part in ((f"L{i}.attn.G", block.attention.n_kv_heads),
                         (f"L{i}.mlp.N", block.d_mlp))] + [
        (f"{head}.S", n_tokens) for head in head_names(config)]


def block_edits(edits, i, block):
    """The BlockEdits of block i, whose config is `block`."""
    if not edits:
        return NO_EDITS
    return edits_of_block(edits, i, block.attention.n_heads // block.attention.n_kv_heads)


def _is_inside_parallel(config, name):
    layer, _, branch = name.partition(".")
    return branch == "attn" and config.blocks[int(layer[1:])].placement == "parallel"


# ---- forward ----

class Run(namedtuple("Run", (
        "model", "edits", "tokens", "writers", "states", "normed", "logits", "steps"))):
    """One run of a model.

    model, edits    what was run, and what was done to it
    tokens          [n_tokens] ids
    writers         pairs (name, update [n_tokens][d_model]): what was added, after norms,
                    multipliers and edits
    states          pairs (name, stream [n_tokens][d_model])
    normed          [n_tokens][d_model], the final norm's output
    logits          [n_tokens][d_vocab]
    steps           ModelSteps
    """


class ModelSteps(namedtuple("ModelSteps", ("blocks", "final_norm", "raw_logits"))):
    """What the parts of a model did.

    blocks        BlockSteps of every block, in order
    final_norm    NormSteps
    raw_logits    [n_tokens][d_vocab], before a soft cap
    """


def run(model, tokens_or_text, edits=()):
    """Run a model over one sequence -> Run.

    tokens_or_text is a list of ids, or a text where the model has a tokenizer.  edits are made by
    scale, replace, set_pattern and set_state; they change neither the model nor the next run.

    Raises ValueError for an id outside the vocabulary, an empty or too long sequence, an edit of a
    writer that is not there; TypeError for an id that is no int.

    >>> model = small_model()
    >>> r = run(model, [0])
    >>> r.writers, r.logits
    ([('embed', [[16.0]]), ('L0.attn', [[12.0]]), ('L0.mlp', [[42.0]])], [[70.0, 0.0]])

    Attention adds 12, and yet without it the final stream is 30 less, because the MLP reads what
    attention wrote:

    >>> from pyres.edits import scale
    >>> without = run(model, [0], [scale("L0.attn", 0)])
    >>> without.writers, without.logits
    ([('embed', [[16.0]]), ('L0.attn', [[0.0]]), ('L0.mlp', [[24.0]])], [[40.0, 0.0]])
    """
    config, w = model.config, model.weights
    tokens = token_ids(model, tokens_or_text)
    edits = list(edits)
    if edits:
        check_edits(edits, writer_names(config), head_names(config), state_names(config),
                    part_names(config, len(tokens)))

    update = edit_update(embed(config, w, tokens), edits_of_writer(edits, "embed"))
    x = edit_state(add_residual(zeros_like(update), update), edit_of_state(edits, "embed"))
    writers, states, blocks = [("embed", update)], [("embed", x)], []
    for i, block in enumerate(config.blocks):
        steps = block_steps(x, w.blocks[i], block, block_edits(edits, i, block))
        x = steps.resid_post
        blocks.append(steps)
        writers += [(f"L{i}.attn", steps.attn_out), (f"L{i}.mlp", steps.mlp_out)]
        states += [(f"L{i}.attn", steps.resid_mid)] if steps.resid_mid is not None else []
        states += [(f"L{i}.mlp", x)]

    final_norm = norm_steps(x, w.final_norm, config.final_norm)
    raw_logits = unembed(config, w, final_norm.out)
    logits = soft_capped(raw_logits, config.logit_soft_cap)
    return Run(model, edits, tokens, writers, states, final_norm.out, logits,
               ModelSteps(blocks, final_norm, raw_logits))


def token_ids(model, tokens_or_text):
    """The ids of a sequence, checked against the model's vocabulary and context."""
    tokens = tokens_or_text
    if isinstance(tokens, str):
        if model.tokenizer is None:
            raise ValueError(f"run: the model {model.name!r} has no tokenizer; "
                             "give a list of token ids")
        tokens = model.tokenizer.encode(tokens)
    if not isinstance(tokens, (list, tuple)):
        raise TypeError(f"run: tokens are a list of ids, got {type(tokens).__name__}")
    for t, token in enumerate(tokens):
        if type(token) is not int:
            raise TypeError(f"run: token {t} is {token!r}; a token is an int")
        if not 0 <= token < model.config.d_vocab:
            raise ValueError(f"run: token {t} is {token}, the vocabulary has "
                             f"{model.config.d_vocab} (0 to {model.config.d_vocab - 1})")
    if not 1 <= len(tokens) <= model.config.n_ctx:
        raise ValueError(f"run: the sequence has {len(tokens)} tokens, the model takes 1 to "
                         f"{model.config.n_ctx}")
    return list(tokens)


def embed(config, w, tokens, first_position=0):
    """The first update: each token's row of w_embed, times a multiplier, plus its position's row
    of w_pos: tokens [n_tokens], which stand from first_position on -> [n_tokens][d_model].

    >>> from pyres.config import model_config
    >>> config = model_config(2, 3, 4, 0, None, embed_multiplier=10)
    >>> w = ModelWeights([[0, 1], [2, 3], [4, 5]], [[7, 7], [8, 8]], [], None, None, None)
    >>> embed(config, w, [2, 0])
    [[47, 57], [8, 18]]
    """
    rows = [list(w.w_embed[token]) for token in tokens]
    if config.embed_multiplier is not None:
        check_constant("embed: the embedding multiplier", config.embed_multiplier, rows[0][0])
        rows = scale(config.embed_multiplier, rows)
    if w.w_pos is None:
        return rows
    return add(rows, w.w_pos[first_position:first_position + len(tokens)])


def unembed(config, w, normed):
    """logit_multiplier * w_unembed normed + b_unembed: normed [n_tokens][d_model] ->
    [n_tokens][d_vocab].  Where w_unembed is None, it is tied to w_embed.

    >>> from pyres.config import model_config
    >>> config = model_config(2, 3, 4, 0, None, logit_multiplier=10)
    >>> w = ModelWeights([[0, 1], [2, 3], [4, 5]], None, [], None, None, None)
    >>> unembed(config, w, [[1, 1]])
    [[10, 50, 90]]
    """
    logits = linear(normed, w.w_embed if w.w_unembed is None else w.w_unembed)
    if config.logit_multiplier is not None:
        check_constant("unembed: the logit multiplier", config.logit_multiplier, logits[0][0])
        logits = scale(config.logit_multiplier, logits)
    return logits if w.b_unembed is None else [add(row, w.b_unembed) for row in logits]


def soft_capped(logits, cap):
    """cap * tanh(logit / cap), which is nearly the logit where it is small and never beyond cap.

    >>> soft_capped([[0.0, 1e9]], 30.0)
    [[0.0, 30.0]]
    """
    if cap is None:
        return logits
    check_constant("soft_capped: the cap", cap, logits[0][0])
    return [[cap * tanh(a / cap) for a in row] for row in logits]


# ---- backward ----

def run_backward(d_logits, run_record):
    """Return (gradients, stream), given d_logits [n_tokens][d_vocab], the gradient of anything at
    a run's logits.

    gradients is a ModelWeights; stream is a list of pairs (state's name, StateGradient), one for
    each state of the run, in order.  At an edited run these are the edited run's.

    The gradient of token 0's logit is 1 at the last state and grows with each branch on the way
    down, by half of itself at attention's, by 3/2 at the MLP's:

    >>> gradients, stream = run_backward([[1.0, 0.0]], run(small_model(), [0]))
    >>> [(name, gradient.total) for name, gradient in stream]
    [('embed', [[3.75]]), ('L0.attn', [[2.5]]), ('L0.mlp', [[1.0]])]
    >>> gradients.w_embed                                             # token 1 was not read
    [[3.75], [0.0]]
    """
    config, w = run_record.model.config, run_record.model.weights
    d_normed, d_w_unembed, d_b_unembed = unembed_backward(d_logits, run_record)
    # forward: normed = N(x[last])
    d_x, d_final_norm = norm_backward(
        d_normed, run_record.steps.final_norm, w.final_norm, config.final_norm)
    d_w_embed, d_w_pos, d_blocks, stream = stream_backward(d_x, run_record)
    if w.w_unembed is None:
        # forward: the table is read twice, by embed and by unembed
        d_w_embed, d_w_unembed = add(d_w_embed, d_w_unembed), None
    return ModelWeights(d_w_embed, d_w_pos, d_blocks,
                        d_final_norm, d_w_unembed, d_b_unembed), stream


def stream_backward(d_x, run_record):
    """Return (d_w_embed, d_w_pos, d_blocks, stream), given d_x [n_tokens][d_model], the gradient
    of anything at a run's last state: run_backward's, from the final stream down.

    >>> stream_backward([[1.0]], run(small_model(), [0]))[0]
    [[3.75], [0.0]]
    """
    model, edits, steps = run_record.model, run_record.edits, run_record.steps
    config, w = model.config, model.weights
    check_like("stream_backward", "d_x", d_x, run_record.states[-1][1])
    names = [name for name, _ in run_record.states]
    stream, d_blocks = [StateGradient(d_x, None, None)], []
    for i in reversed(range(len(config.blocks))):
        of_block = block_backward(stream[0].total, steps.blocks[i], w.blocks[i], config.blocks[i],
                                  block_edits(edits, i, config.blocks[i]))
        d_blocks = [of_block.weights] + d_blocks
        between = [of_block.resid_mid] if of_block.resid_mid else []
        stream = [of_block.resid_pre] + between + stream

    d_embed = edit_state_backward(stream[0].total, edit_of_state(edits, "embed"))
    d_embed = edit_update_backward(d_embed, edits_of_writer(edits, "embed"))
    d_w_embed, d_w_pos = embed_backward(d_embed, config, w, run_record.tokens)
    return d_w_embed, d_w_pos, d_blocks, list(zip(names, stream))


def unembed_backward(d_logits, run_record):
    """Return (d_normed, d_w_unembed, d_b_unembed), given the gradient at a run's logits."""
    config, w = run_record.model.config, run_record.model.weights
    check_length("run_backward", "d_logits", d_logits, len(run_record.logits))
    check_rows("run_backward: d_logits", d_logits, config.d_vocab)
    # forward: logits = soft_capped(raw_logits), and tanh' = 1 - tanh²
    cap = config.logit_soft_cap
    if cap is not None:
        d_logits = [[d * (1 - (a / cap) * (a / cap)) for d, a in zip(d_row, row)]
                    for d_row, row in zip(d_logits, run_record.logits)]
    # forward: raw_logits = logit_multiplier * w_unembed normed + b_unembed
    d_b_unembed = None if w.b_unembed is None else sum_rows(d_logits)
    if config.logit_multiplier is not None:
        d_logits = scale(config.logit_multiplier, d_logits)
    table = w.w_embed if w.w_unembed is None else w.w_unembed
    d_normed, d_table, _ = linear_backward(d_logits, run_record.normed, table)
    return d_normed, d_table, d_b_unembed


def embed_backward(d_out, config, w, tokens):
    """Return (d_w_embed, d_w_pos), given d_out [n_tokens][d_model], the gradient at the output.

    A token that occurs twice was read twice, so its row's gradients add.

    >>> from pyres.config import model_config
    >>> w = ModelWeights([[0, 0], [0, 0]], None, [], None, None, None)
    >>> embed_backward([[1, 2], [10, 20]], model_config(2, 2, 4, 0, None), w, [1, 1])
    ([[0, 0], [11, 22]], None)
    """
    check_length("embed_backward", "d_out", d_out, len(tokens))
    d_w_embed = zeros_like(w.w_embed)
    # forward: rows = embed_multiplier * w_embed[token]
    d_rows = d_out if config.embed_multiplier is None else scale(config.embed_multiplier, d_out)
    for token, d_row in zip(tokens, d_rows):
        d_w_embed[token] = add(d_w_embed[token], d_row)
    if w.w_pos is None:
        return d_w_embed, None
    # forward: + w_pos[position]
    return d_w_embed, [list(row) for row in d_out] + zeros_like(w.w_pos[len(tokens):])


def loss_and_gradients(model, tokens, targets=None, edits=()):
    """Return (loss, gradients, stream) of the cross entropy of a run.

    tokens [n_tokens] ids; targets [n_tokens] of ids or None, by default the next tokens.  loss is
    the mean over the targets that count, in nats; gradients a ModelWeights; stream pairs
    (state's name, StateGradient).

    >>> from pyres.config import model_config
    >>> config = model_config(d_model=2, d_vocab=2, n_ctx=4, n_layers=0, block=None,
    ...                       final_norm=None)
    >>> w = ModelWeights([[1.0, 0.0], [0.0, 0.0]], None, [], None, None, None)
    >>> loss, gradients, stream = loss_and_gradients(make_model(config, w), [1, 0])
    >>> stream[0][0], gradients.w_embed    # the logits at 0 are equal, and token 0 comes next
    ('embed', [[0.0, 0.0], [-0.5, 0.0]])
    """
    r = run(model, tokens, edits)
    targets = next_token_targets(r.tokens) if targets is None else targets
    loss = cross_entropy(r.logits, targets)
    gradients, stream = run_backward(cross_entropy_backward(1, r.logits, targets), r)
    return loss, gradients, stream
