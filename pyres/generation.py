"""Generation: one token at a time, each from the logits of those before it.

Keys and values of earlier tokens do not change when a token is added, so each block keeps them,
and a new token costs one row of every matrix.  What is kept is what a run's own steps hold:
`attn.k` and `attn.v`.

    tail_logits    the logits of new tokens behind a past, and the longer past
    pick           one token from logits
    generate       n tokens

>>> from pyres.config import attention_config, block_config, model_config
>>> from pyres.model import make_model, run
>>> from pyres.weights import random_weights
>>> config = model_config(d_model=4, d_vocab=5, n_ctx=8, n_layers=2,
...                       block=block_config(8, attention_config(n_heads=2, d_head=2)))
>>> model = make_model(config, random_weights(config, std=0.5))
>>> new = generate(model, [3, 1, 4], n=3)
>>> last_logits = run(model, [3, 1, 4] + new[:2]).logits[-1]        # all at once, without a past
>>> new[2] == last_logits.index(max(last_logits))
True
"""
from .blocks import block_steps, norm_steps
from .edits import NO_EDITS
from .linalg import zeros_like
from .model import embed, soft_capped, token_ids, unembed
from .nonlinear import softmax
from .rng import Generator
from .stream import add_residual

__all__ = ["tail_logits", "pick", "generate"]


def tail_logits(model, tokens, past=None):
    """Return (logits [n_tokens][d_vocab], past) of tokens [n_tokens] that stand behind a past,
    None for none.

    past is a pair: how many tokens it holds, and a list with (k, v) of every block.  It is not
    changed; the one returned is longer.  Raises ValueError for attention that is not causal.

    >>> from pyres.config import model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(2, 2, 4, n_layers=0, block=None, final_norm=None)
    >>> w = ModelWeights([[1, 0], [0, 1]], [[0, 3]] * 4, [], None, None, None)
    >>> model = make_model(config, w)
    >>> logits, past = tail_logits(model, [0, 1])
    >>> logits, past
    ([[1, 3], [0, 4]], (2, []))
    >>> tail_logits(model, [0], past)[1]
    (3, [])
    """
    config, w = model.config, model.weights
    for i, block in enumerate(config.blocks):
        if not block.attention.causal:
            raise ValueError(f"tail_logits: attention of block {i} sees later tokens, which "
                             "change what earlier ones were; run the whole sequence anew")
    n_past, pairs = (0, [None] * len(config.blocks)) if past is None else past
    update = embed(config, w, tokens, n_past)
    x, longer = add_residual(zeros_like(update), update), []
    for i, block in enumerate(config.blocks):
        steps = block_steps(x, w.blocks[i], block, NO_EDITS, pairs[i])
        x = steps.resid_post
        longer.append((steps.attn.k, steps.attn.v))
    normed = norm_steps(x, w.final_norm, config.final_norm).out
    logits = soft_capped(unembed(config, w, normed), config.logit_soft_cap)
    return logits, (n_past + len(tokens), longer)


def pick(logits, temperature, generator):
    """One token id from logits [d_vocab].

    Temperature 0 takes the largest, the first of equals; otherwise the chance of a token is
    softmax(logits / temperature).  Raises ValueError for a temperature below 0 or a NaN anywhere.

    >>> pick([1.0, 2.0], 0, None)
    1
    >>> pick([float("nan"), 1.0], 0, None)
    Traceback (most recent call last):
    ValueError: pick: logit 0 is nan; the model's numbers have gone wrong
    """
    check_temperature(temperature)
    for token, logit in enumerate(logits):
        if logit != logit:
            raise ValueError(f"pick: logit {token} is nan; the model's numbers have gone wrong")
    if temperature == 0:
        return logits.index(max(logits))
    top = max(logits)
    draw = generator.uniform()
    for token, chance in enumerate(softmax([(a - top) / temperature for a in logits])):
        draw -= chance
        if draw < 0:
            return token
    return logits.index(top)            # rounding may leave a last sliver of the draw


def check_temperature(temperature):
    """Raise ValueError unless the temperature is a finite number of at least 0."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"pick: the temperature is {temperature}, "
                         "expected a number of at least 0")


def generate(model, tokens_or_text, n, temperature=0, seed=0):
    """The ids of up to n new tokens behind a prompt.

    Stops where the model's context is full, so there are fewer than n where the prompt and n do
    not fit.  The same seed gives the same tokens.  Raises ValueError for a prompt that does not
    fit by itself, and for a temperature that is no finite number of at least 0.

    A model without blocks knows the last token only.  This one counts, 0, 1, 2, 0, ...:

    >>> from pyres.config import model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import ModelWeights
    >>> config = model_config(3, 3, n_ctx=6, n_layers=0, block=None, final_norm=None)
    >>> w_embed, w_unembed = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    >>> model = make_model(config, ModelWeights(w_embed, None, [], None, w_unembed, None))
    >>> generate(model, [0], n=2), generate(model, [0], n=100)        # the context holds 6
    ([1, 2], [1, 2, 0, 1, 2])
    """
    check_temperature(temperature)
    if n < 0:
        raise ValueError(f"generate: n is {n}, expected a whole number of at least 0")
    tokens = token_ids(model, tokens_or_text)
    generator = Generator(seed)
    new, past, unread = [], None, tokens
    for _ in range(min(n, model.config.n_ctx - len(tokens))):
        logits, past = tail_logits(model, unread, past)
        unread = [pick(logits[-1], temperature, generator)]
        new += unread
    return new
