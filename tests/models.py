"""Small random models of every placement, and edits of every kind, for the tests of studies.

Models have two blocks, grouped heads, multipliers and biases; the sequence has three tokens.
"""
import unittest
from fractions import Fraction

from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.edits import replace, scale, set_pattern, shift
from pyres.model import make_model, run
from pyres.study.metrics import logit
from pyres.study.references import redirected
from tests.laws import TIGHT, Draw, assert_close, causal_pattern, model_weights

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")
SUMMED = PLACEMENTS[:-1]                        # where the updates sum to the final stream
TOKENS = [2, 4, 2]
SEEDS = (1, 2)
WRITERS = ("embed", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp")
FINER = ("L0.attn.H1", "L1.attn.G0", "L0.attn.H2.S0", "L1.mlp.N3", "L0.mlp.N0")


def float_model(seed, placement, kind="layer"):
    norm = norm_config(kind, 0.1)
    block = block_config(4, attention_config(4, 2, n_kv_heads=2), placement, norm,
                         residual_multiplier=0.75)
    config = model_config(4, 5, 4, 2, block, final_norm=norm)
    return make_model(config, model_weights(Draw(seed), config, multipliers=True))


def exact_model(seed, placement, kind="layer"):
    """In Fractions: given scales, relu; patterns are exact_run's."""
    norm = norm_config(kind, 0, [2, 4, Fraction(1, 2)])
    block = block_config(4, attention_config(4, 1, n_kv_heads=2), placement, norm, "relu")
    config = model_config(2, 5, 4, 2, block, final_norm=norm)
    return make_model(config, model_weights(Draw(seed, Fraction), config, multipliers=True))


def exact_run(seed, placement, kind="layer"):
    patterns = [set_pattern(f"L{i}.attn.H{h}", causal_pattern(Draw(10 * i + h, Fraction), 3))
                for i in range(2) for h in range(4)]
    return run(exact_model(seed, placement, kind), TOKENS, patterns)


def edits_of_every_kind(draw, d_model):
    """Lists of edits: of every kind of writer, of several writers, and none."""
    def update():
        return draw.tensor(3, d_model)

    lists = [[scale(writer, draw.number())] for writer in WRITERS + FINER]
    lists += [[replace(writer, update(), [0, 2])] for writer in WRITERS[1:3] + FINER]
    return lists + [
        [shift("L0.mlp", update())],
        [set_pattern("L0.attn.H3", causal_pattern(draw, 3))],
        [redirected("L0.attn.H0", 3), scale("L0.attn.H0", 3)],
        [scale("L0.attn.H0", 0), scale("L0.attn", 2), scale("L0.attn.H1.S1", 0)],
        [scale("L0.mlp.N1", 0), scale("L0.attn", 0)],
        [scale("L1.mlp", 0), scale("embed", 2, [1]), replace("L1.attn.H2", update())],
        []]


def metric_of(r):
    """The logit of the clean run's metric, less another's."""
    return logit(r.model, 2, 1, foil=3)


class Laws(unittest.TestCase):

    def assertClose(self, got, want, seed, what="", tolerance=TIGHT, size=None):
        """Relative to the larger of the two, or to a size that is given."""
        if size is None:
            return assert_close(self, got, want, seed, what, tolerance)
        self.assertTrue(abs(got - want) <= tolerance * size,
                        f"{what}, seed {seed}: got {got!r}, want {want!r}, size {size:.3g}")
