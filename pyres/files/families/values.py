"""What several families read from a config in the same way, in both of its spellings.

transformers 5 writes `rope_parameters`, transformers 4 wrote `rope_theta` and `rope_scaling`, and
some families have names of their own for the same numbers.

    ACTIVATION_NAMES        what an activation's name means
    equal_heads, heads      query heads, key/value heads, d_head
    rotary_config           rotary positions
    cap, sliding_window     a number that null leaves out
    windows                 what each block sees
    eps_norm                a norm with the config's eps

>>> from ..fields import Fields
>>> newer, older = {"rope_parameters": {"rope_theta": 100.0}}, {"rope_theta": 100.0}
>>> rotary_config(Fields(newer, "config.json"), d_head=4)
RotaryConfig(pairing='half', frequencies=[1.0, 0.1])
>>> rotary_config(Fields(older, "config.json"), d_head=4).frequencies
[1.0, 0.1]
"""
from ...config import RotaryConfig, norm_config
from ...rotary import frequencies, rescaled_frequencies
from ..fields import REQUIRED

__all__ = ["ACTIVATION_NAMES", "equal_heads", "heads", "rotary_config", "cap", "sliding_window",
           "windows", "eps_norm"]

# "gelu" is the erf form; the other names for gelu all mean the tanh form.  gelu_fast is that with
# sqrt(2 / pi) cut to ten digits.
ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh",
                    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
                    "silu": "silu", "swish": "silu"}


def equal_heads(fields, d_model):
    """(n_heads, d_head) of a family whose heads share d_model out among them.

    >>> from ..fields import Fields
    >>> equal_heads(Fields({"num_attention_heads": 4}, "config.json"), 16)
    (4, 4)
    """
    n_heads = fields.size("num_attention_heads")
    fields.divides("num_attention_heads", n_heads, "hidden_size", d_model)
    return n_heads, d_model // n_heads


def heads(fields, d_model, d_head=None):
    """(n_heads, n_kv_heads, d_head); d_head is what an absent head_dim means, None for d_model /
    n_heads.  An absent number of key/value heads means all; where a family means another, the
    tensors' shapes show it.

    >>> from ..fields import Fields
    >>> heads(Fields({"num_attention_heads": 4, "num_key_value_heads": 2}, "config.json"), 16)
    (4, 2, 4)
    """
    n_heads = fields.size("num_attention_heads")
    n_kv_heads = fields.size("num_key_value_heads", n_heads)
    d_head = fields.size("head_dim", d_head)
    if d_head is None:
        n_heads, d_head = equal_heads(fields, d_model)
    return n_heads, n_kv_heads, d_head


# ---- rotary positions ----

def rotary_config(fields, d_head, pairing="half", share=None, theta=10000.0, older=()):
    """A RotaryConfig.

    share    how much of a head turns where the config does not say; None: all of it, always
    theta    what an absent rope_theta means
    older    the family's own names for rope_theta and partial_rotary_factor

    Raises ValueError where two names for one number disagree, and for a way to rescale that is not
    Llama 3's.

    >>> from ..fields import Fields
    >>> fields = Fields({"rotary_pct": 0.5, "rotary_emb_base": 100.0}, "config.json")
    >>> rotary_config(fields, 8, share=0.25, older=("rotary_emb_base", "rotary_pct")).frequencies
    [1.0, 0.1]
    >>> rotary_config(Fields({"rope_scaling": {"type": "yarn"}}, "config.json"), 8)
    Traceback (most recent call last):
    ValueError: config.json: rope_scaling: rope_type is 'yarn'; expected 'default' or 'llama3'
    """
    rope, older_rope = fields.group("rope_parameters"), fields.group("rope_scaling")
    if older_rope.values:
        if rope.values:
            fields.refuse("rope_scaling", older_rope.values, "null, as rope_parameters is there")
        rope = older_rope
    theta = _agreed(fields, rope, ("rope_theta",) + older[:1], theta)
    if share is None:
        rope.must_be("partial_rotary_factor", 1.0)
        d_rotary = d_head
    else:
        share = _agreed(fields, rope, ("partial_rotary_factor",) + older[1:], share)
        if share > 1:
            fields.refuse("partial_rotary_factor", share, "a number of at most 1")
        d_rotary = int(share * d_head)
    return RotaryConfig(pairing, _rescaled(rope, frequencies(d_rotary, theta)))


def _agreed(fields, rope, names, default):
    """The number above 0 that a config says under several names, and rope under the first of them;
    there must be but one."""
    places = [(fields, name) for name in names] + [(rope, names[0])]
    said = [(group, name) for group, name in places if group.get(name, None) is not None]
    if not said:
        return fields.number(names[0], default)
    numbers = [group.number(name, default, positive=True) for group, name in said]
    for (group, name), number in zip(said, numbers):
        if number != numbers[0]:
            group.refuse(name, number, f"{numbers[0]}, which {said[0][1]} says")
    return numbers[0]


def _rescaled(rope, rates):
    """The frequencies as the config's rope_type, which was type at first, rescales them."""
    older_kind = rope.text("type", "default")
    kind = rope.text("rope_type", older_kind)
    if kind == "llama3":
        numbers = [rope.number(key, REQUIRED, positive=True)
                   for key in ("factor", "low_freq_factor", "high_freq_factor",
                               "original_max_position_embeddings")]
        return rescaled_frequencies(rates, *numbers)
    if kind != "default":
        rope.refuse("rope_type", kind, "'default' or 'llama3'")
    return rates


# ---- numbers that null leaves out ----

def cap(fields, key, default):
    """A number above 0; None where it is null.  Absent is the default.

    >>> from ..fields import Fields
    >>> cap(Fields({}, "config.json"), "cap", 50.0), cap(Fields({"cap": None}, ""), "cap", 50.0)
    (50.0, None)
    """
    return None if fields.is_null(key) else fields.number(key, default, positive=True)


def sliding_window(fields, default):
    """sliding_window, how many tokens a token sees; None where it is null."""
    if fields.is_null("sliding_window"):
        return None
    return fields.size("sliding_window", default, bounded=False)


def windows(fields, n_layers, size, slides):
    """The window of every block, [n_layers]: block i has one of that size where layer_types says
    so, or, without layer_types, where slides(i) is true; no slides is none.  Raises ValueError
    where a block has one and size is None.

    >>> from ..fields import Fields
    >>> fields = Fields({"layer_types": ["full_attention", "sliding_attention"]}, "config.json")
    >>> windows(fields, 2, 4096, lambda i: True)
    [None, 4096]
    """
    kinds = fields.each_one_of("layer_types", ("full_attention", "sliding_attention"), n_layers)
    if kinds is not None:
        has_window = [kind == "sliding_attention" for kind in kinds]
    else:
        has_window = [slides is not None and slides(i) for i in range(n_layers)]
    if size is None and any(has_window):
        fields.refuse("sliding_window", None, "a size, as layer_types has sliding_attention")
    return [size if has else None for has in has_window]


def eps_norm(fields, kind, key, default):
    """A NormConfig whose eps a key says."""
    return norm_config(kind, fields.number(key, default))
