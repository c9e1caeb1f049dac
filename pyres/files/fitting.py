"""Whether a format can hold a model, and the model as that format wants it.

A format has one config that its reader would make of the file, and places for some leaves.  A
model fits where its own config is that one and every leaf has a place; all else is a misfit, and
is named.  What an absent weight means may be written instead of it: ones for a gain, zeros for a
bias, which change no number.

    theta_of                the base of rotary frequencies
    with_pairing            the same model, its rotary channels paired the other way
    differences, misfits    what does not fit, field by field and in words
    filled                  absent gains and biases written out
    n_rounded               how many weights a narrower float changes

>>> from pyres.config import model_config, norm_config
>>> here = model_config(4, 10, 8, 0, None)
>>> differences(here, here._replace(n_ctx=16, final_norm=norm_config("rms")))
[('n_ctx', 8, 16), ('final_norm.kind', 'layer', 'rms')]
"""
import re

from ..rotary import frequencies, pair
from ..weights import leaf_shapes, leaves, weights_from_leaves
from .dtypes import decode, encode
from .safetensors import flatten
from .strict_json import brief

__all__ = ["theta_of", "with_pairing", "differences", "misfits", "filled", "n_rounded"]


# ---- rotary positions ----

def theta_of(rates):
    """The theta whose frequencies these are, to the bit: rates [d_rotary / 2] -> float; None where
    there is none, as for frequencies that were rescaled.

    The last rate is theta ** (-(n - 1) / n), n of them in all, and says most about theta; of the
    numbers near to it the one with the fewest digits is taken.

    >>> theta_of(frequencies(8, 500000.0)), theta_of([1.0]), theta_of([1.0, 0.1, 0.02])
    (500000.0, 10000.0, None)
    """
    n = len(rates)
    near = 10000.0                              # one pair turns by 1, whatever theta is
    if n > 1 and 1e-100 < rates[-1] < 1e100:
        near = rates[-1] ** (-n / (n - 1))
    for digits in range(1, 18):
        theta = float("%.*g" % (digits, near))
        if frequencies(2 * n, theta) == rates:
            return theta
    return None


def with_pairing(model, pairing):
    """The same function of a model with its rotary channels paired as asked: the rows of w_q, w_k,
    b_q, b_k and the q/k gains change places within each head, as channels of `pair` do.

    >>> from pyres.config import RotaryConfig, attention_config, block_config, model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import random_weights
    >>> attention = attention_config(1, 4, rotary=RotaryConfig("interleaved", [1.0, 0.01]))
    >>> config = model_config(4, 3, 8, 1, block_config(4, attention))
    >>> w = random_weights(config)
    >>> w.blocks[0].attn.b_q[:] = [10, 11, 20, 21]              # two pairs
    >>> with_pairing(make_model(config, w), "half").weights.blocks[0].attn.b_q
    [10, 20, 11, 21]
    """
    pairs = list(zip(model.config.blocks, model.weights.blocks))
    paired = [_paired(block, w, pairing) for block, w in pairs]
    return model._replace(config=model.config._replace(blocks=[block for block, _ in paired]),
                          weights=model.weights._replace(blocks=[w for _, w in paired]))


PAIRED = ("w_q", "w_k", "b_q", "b_k", "q_gain", "k_gain")


def _paired(block, w, pairing):
    """As with_pairing, for one block: (BlockConfig, BlockWeights)."""
    attention = block.attention
    rotary = attention.rotary
    if rotary is None or rotary.pairing == pairing:
        return block, w
    n_pairs, order = len(rotary.frequencies), list(range(attention.d_head))
    for j in range(n_pairs):
        for here, there in zip(pair(j, n_pairs, rotary.pairing), pair(j, n_pairs, pairing)):
            order[there] = here
    attention = attention._replace(rotary=rotary._replace(pairing=pairing))
    changed = {name: [rows[begin + i] for begin in range(0, len(rows), len(order)) for i in order]
               for name, rows in leaves(w.attn) if name in PAIRED}
    return block._replace(attention=attention), w._replace(attn=w.attn._replace(**changed))


# ---- what fits ----

def differences(here, there, name=""):
    """Where two configs differ: triples (name, value here, value there).

    >>> differences([1, 2], [1, 3], "rates")
    [('rates', [1, 2], [1, 3])]
    """
    if hasattr(here, "FIELDS") and type(here) is type(there):
        parts = [(field, getattr(here, field), getattr(there, field)) for field in here.FIELDS]
    elif name == "blocks" and len(here) == len(there):
        parts = [(str(i), a, b) for i, (a, b) in enumerate(zip(here, there))]
    else:
        return [] if here == there else [(name, here, there)]
    return [found for part, a, b in parts
            for found in differences(a, b, f"{name}.{part}" if name else part)]


# What a name among the fields of configs and the leaves of weights is about.
SUBJECTS = (("norm", re.compile(r".*_norm(\.kind|\.bias)?")),
            ("eps", re.compile(r".*_norm\.eps")),
            ("positions", re.compile(r"w_pos|.*\.rotary")),
            ("frequencies", re.compile(r".*\.rotary\.frequencies")),
            ("gate", re.compile(r".*\.mlp\.[wb]_gate")),
            ("biases", re.compile(r".*\.(attn|mlp)\.b_\w+")))
ABSENT_MEANS_NOTHING = re.compile(r".*\.(b_\w+|bias|gain)")


def misfits(model, config, names, says):
    """Sentences on what does not fit, [] where everything does.

    config is the ModelConfig that a reader would make of the file, names are the leaves that the
    file has places for.  says maps some of the SUBJECTS to the sentence for what is about them;
    each is said once, and what differs in every block is said of the first.

    >>> from pyres.model import small_model
    >>> model = small_model()
    >>> names = [name for name, _ in leaves(model.weights)] + ["w_pos"]
    >>> misfits(model, model.config._replace(n_ctx=8), names[1:], {"positions": "no table"})
    ['n_ctx is 4 where 8 is due', 'w_embed has no place', 'no table']
    """
    there, places = {name for name, _ in leaves(model.weights)}, set(names)
    found = [(name, f"is {brief(a)} where {brief(b)} is due")
             for name, a, b in differences(model.config, config)]
    found += [(name, "has no place") for name in sorted(there - places)]
    found += [(name, "is missing") for name in sorted(places - there)
              if not ABSENT_MEANS_NOTHING.fullmatch(name)]
    sentences, said = [], set()
    for name, rule in found:
        about = [subject for subject, pattern in SUBJECTS if pattern.fullmatch(name)]
        once = about[0] if about else re.sub(r"blocks\.\d+\.", "", name)
        if once not in said:
            said.add(once)
            sentences.append(says.get(once, f"{name} {rule}"))
    return sentences


def filled(model, names):
    """The model with every leaf of those names: absent gains as ones, absent biases as zeros.

    >>> from pyres.model import small_model
    >>> filled(small_model(), ["w_embed", "w_unembed", "b_unembed"]).weights.b_unembed
    [0.0, 0.0]
    """
    found, fits = dict(leaves(model.weights)), dict(leaf_shapes(model.config))
    for name in names:
        if name not in found:
            found[name] = [1.0 if name.endswith("gain") else 0.0] * fits[name][0][0]
    return model._replace(weights=weights_from_leaves(model.config, found))


def n_rounded(weights, dtype):
    """How many numbers of some weights are not what a file of that dtype gives back.

    OverflowError where one does not fit.

    >>> from pyres.weights import NormWeights
    >>> n_rounded(NormWeights([0.5, 0.1], [1.0, 65.03125]), "F16")
    2
    """
    changed = 0
    for _, tensor in leaves(weights):
        _, numbers = flatten(tensor)
        changed += sum([a != b and a == a
                        for a, b in zip(numbers, decode(encode(numbers, dtype), dtype))])
    return changed
