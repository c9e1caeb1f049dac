"""pyres: the residual stream of a transformer, in plain Python.

A transformer carries one vector for each token, and every sublayer adds an update to it.  This package is
that sum: its mathematics with every derivative worked out by hand, over nested lists, with no dependency.

Read it from the bottom up:

    linalg, scalar, rng                    numbers: shapes and inner products, roots, random bits
    stream                                 the subject: add_residual, run_sublayers, trace
    edits, nonlinear, norms, rotary        what happens to an update; softmax, norms, positions
    config, weights, attention, mlp, loss  the sublayers
    blocks                                 where the sublayers and their norms stand
    model                                  embed, blocks, unembed; the run record; gradients

>>> import pyres
>>> pyres.trace([1, 2, 3], [lambda x: [0.5, -1, 0], lambda x: [0, 1, 1]])
[[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]]
"""
from .linalg import (dot, linear, linear_backward, matmul, matvec, outer, shape, transpose)
from .stream import (add_residual, run_sublayers, run_sublayers_backward, total_update, trace)
from .edits import Edit, StateEdit, replace, scale, set_pattern, set_state
from .nonlinear import (gelu, gelu_backward, gelu_tanh, gelu_tanh_backward, log_softmax,
                        log_softmax_backward, relu, relu_backward, silu, silu_backward, softmax,
                        softmax_backward)
from .norms import (frozen_layer_norm, frozen_layer_norm_backward, frozen_rms_norm,
                    frozen_rms_norm_backward, layer_norm, layer_norm_backward, layer_norm_parts,
                    rms_norm, rms_norm_backward, rms_norm_parts)
from .rotary import angles, frequencies, rotate, rotate_backward
from .config import (AttentionConfig, BlockConfig, ModelConfig, NormConfig, RotaryConfig,
                     attention_config, block_config, model_config, norm_config)
from .weights import (AttentionWeights, BlockWeights, MLPWeights, ModelWeights, NormWeights,
                      leaves, map_leaves, random_weights)
from .attention import (attend, attend_backward, attend_steps, attention, attention_backward,
                        attention_steps, head_update)
from .mlp import mlp_backward, mlp_steps
from .loss import cross_entropy, cross_entropy_backward, next_token_targets
from .blocks import (block_backward, block_steps, output_norm_block, parallel_block, post_norm_block,
                     pre_norm_block, sandwich_block)
from .model import (Model, Run, carried_writers, loss_and_gradients, make_model, run, run_backward,
                    sum_check, writer_names)

__version__ = "0.1.0"


def __getattr__(name):
    """What opens files is imported on first use, so that `import pyres` stays small."""
    if name in ("files", "study"):
        import importlib
        return importlib.import_module("." + name, __name__)
    if name == "load":
        from .files import load
        return load
    raise AttributeError(f"module 'pyres' has no attribute {name!r}")
