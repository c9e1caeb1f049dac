"""pyres: the residual stream of a transformer, in plain Python.

A transformer carries one vector for each token, and every sublayer adds an update to it.  This
package is that sum: its mathematics with every derivative worked out by hand, over nested lists,
with no dependency.

Read it from the bottom up:

    linalg, scalar, rng                    numbers: shapes and inner products, roots, random bits
    stream                                 the subject: add_residual, run_sublayers, trace
    edits, nonlinear, norms, rotary        what happens to an update; softmax, norms, positions
    config, weights, attention, mlp, loss  the sublayers
    blocks                                 where the sublayers and their norms stand
    hyper_connections                      several streams, and sublayers that write to all of them
    model                                  embed, blocks, unembed; the run record; gradients
    sums                                   the proof that the writes sum to the final stream
    generation, data, training             one token at a time; what a model is trained on, and how

>>> import pyres
>>> pyres.trace([1, 2, 3], [lambda x: [0.5, -1, 0], lambda x: [0, 1, 1]])
[[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]]
"""
from . import show
from .linalg import (dot, linear, linear_backward, matmul, matvec, outer, shape, transpose)
from .stream import (add_residual, run_sublayers, run_sublayers_backward, total_update, trace)
from .nonlinear import (gelu, gelu_backward, gelu_tanh, gelu_tanh_backward, log_softmax,
                        log_softmax_backward, relu, relu_backward, silu, silu_backward, softmax,
                        softmax_backward)
from .norms import (frozen_layer_norm, frozen_layer_norm_backward, frozen_rms_norm,
                    frozen_rms_norm_backward, layer_norm, layer_norm_backward, layer_norm_parts,
                    rms_norm, rms_norm_backward, rms_norm_parts)
from .rotary import angles, frequencies, rotate, rotate_backward

__version__ = "0.1.0"

LATER = ("edits", "config", "weights", "readout", "attention", "mlp", "loss", "blocks",
         "hyper_connections", "model", "sums", "generation", "data", "rng")


def __getattr__(name):
    """The modules of LATER and the public names of theirs that are no module's (mlp and attention
    are modules); files, load and save; study; training.

    They are imported when first asked for, so that `import pyres` stays small: modules with
    records take longer to set up than all that is imported above.
    """
    # An import of a name from a module makes the module an attribute of the package, and so the
    # next line finds it there.
    if name in ("files", "load", "save"):
        from .files import load, save
        from . import files
        return {"load": load, "save": save, "files": files}[name]
    if name == "study":
        from .study import counting
        from . import study
        return study
    if name == "training":
        from .training import step
        from . import training
        return training
    for known, module in _later():
        if name == known:
            return module
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module 'pyres' has no attribute {name!r}")


def _later():
    from .generation import generate    # imports all of them but the next three
    from .data import text_loss
    from .hyper_connections import mix_streams
    from .sums import sum_check
    from . import (attention, blocks, config, data, edits, generation, hyper_connections, loss,
                   mlp, model, readout, rng, sums, weights)
    modules = (edits, config, weights, readout, attention, mlp, loss, blocks, hyper_connections,
               model, sums, generation, data, rng)
    return list(zip(LATER, modules))


def __dir__():
    """What tab completion shows: everything that can be asked for."""
    from . import linalg, nonlinear, norms, rotary, stream
    later = [name for known, module in _later() for name in [known] + module.__all__]
    eager = [name for module in (stream, linalg, nonlinear, norms, rotary)
             for name in module.__all__]
    return sorted(set(later + eager + ["files", "load", "save", "study", "training", "show"]))
