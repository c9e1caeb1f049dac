"""Speed as ratios: what pyres takes, over what the bare inner products alone would take.

    python3 tests/bench.py

The yardstick is the best plain inner product of a width on this Python: math.sumprod from 3.12 on,
and sum(map(mul, u, v)) before.  A ratio of 1.2 says that shape checks, norms, activations and
lists cost a fifth on top of the arithmetic.  Yardstick and work take turns within one run, and the
best of many rounds counts for each, so that a busy machine disturbs both alike.  Multiply-adds are
counted, not estimated: every matrix weight once a token, and 2 * n_heads * d_head for each
position that a token sees.
"""
import os
import subprocess
import sys
import time
from operator import mul

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from pyres.blocks import block_backward, block_steps                                  # noqa: E402
from pyres.config import attention_config, block_config, model_config, norm_config    # noqa: E402
from pyres.edits import scale                                                         # noqa: E402
from pyres.files import load                                                          # noqa: E402
from pyres.generation import tail_logits                                              # noqa: E402
from pyres.linalg import matvec                                                       # noqa: E402
from pyres.model import loss_and_gradients, make_model, run                           # noqa: E402
from pyres.rng import Generator, normal_tensor                                        # noqa: E402
from pyres.study.effects import effects_of                                            # noqa: E402
from pyres.study.metrics import logit                                                 # noqa: E402
from pyres.training import settings, start, step                                      # noqa: E402
from pyres.weights import leaves, random_weights                                      # noqa: E402

OLD = sys.version_info < (3, 12)
if not OLD:
    from math import sumprod


def seconds(work, repeats):
    """The time of one call of work, over so many repeats."""
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) / repeats


def yardstick(width):
    """Return (work, multiply_adds): bare inner products of a width, as many as a matrix has."""
    rows = normal_tensor(Generator(width), (64, width))
    x = rows[0]
    if OLD:
        return (lambda: [sum(map(mul, row, x)) for row in rows]), 64 * width
    return (lambda: [sumprod(row, x) for row in rows]), 64 * width


def ratio(work, multiply_adds, width, rounds=40):
    """Return (ratio, seconds) of the work at its best, to as many bare multiply-adds at theirs."""
    bare, bare_multiply_adds = yardstick(width)
    repeats = max(1, round(0.004 / seconds(work, 2)))
    bare_repeats = max(1, round(0.004 / seconds(bare, 2)))
    best = best_bare = float("inf")
    for _ in range(rounds):
        best = min(best, seconds(work, repeats))
        best_bare = min(best_bare, seconds(bare, bare_repeats))
    return best / multiply_adds / (best_bare / bare_multiply_adds), best


def model_of(d_model, n_heads, d_mlp, norm="layer", activation="gelu_tanh", d_vocab=27, n_ctx=24,
             n_layers=1, **options):
    """A config and random weights."""
    block = block_config(d_mlp, attention_config(n_heads, d_model // n_heads),
                         norm=norm_config(norm), activation=activation)
    config = model_config(d_model, d_vocab, n_ctx, n_layers, block, final_norm=norm_config(norm))
    return config, random_weights(config, seed=1, std=0.1, **options)


def matrix_weights(w):
    """How many weights stand in matrices: each is one multiply-add a token."""
    return sum(len(tensor) * len(tensor[0]) for name, tensor in leaves(w)
               if ".w_" in name or name.startswith("w_un"))


def block_multiply_adds(w, n_tokens, n_heads, d_head):
    seen = n_tokens * (n_tokens + 1) // 2
    return n_tokens * matrix_weights(w) + 2 * n_heads * d_head * seen


def bench_matvec(width):
    w, x = normal_tensor(Generator(1), (width, width)), normal_tensor(Generator(2), (width,))
    return ratio(lambda: matvec(w, x), width * width, width)


def bench_block():
    config, weights = model_of(64, 4, 256)
    x, w = normal_tensor(Generator(3), (1, 64)), weights.blocks[0]
    return ratio(lambda: block_steps(x, w, config.blocks[0]),
                 block_multiply_adds([w], 1, 4, 16), 64)


def bench_backward():
    config, weights = model_of(32, 2, 128)
    x, w = normal_tensor(Generator(3), (24, 32)), weights.blocks[0]
    d_out = normal_tensor(Generator(4), (24, 32))

    def work():
        block_backward(d_out, block_steps(x, w, config.blocks[0]), w, config.blocks[0])

    return ratio(work, block_multiply_adds([w], 24, 2, 16), 32)


def bench_echo():
    config, weights = model_of(24, 2, 48, n_layers=2, tied=False)
    model = make_model(config, weights)
    tokens = [0] + [1 + i % 7 for i in range(23)]
    multiply_adds = (sum(block_multiply_adds([w], 24, 2, 12) for w in weights.blocks)
                     + 24 * 27 * 24)
    return ratio(lambda: loss_and_gradients(model, tokens), multiply_adds, 24)


def bench_step():
    """Forward, backward and AdamW on one word of 8 letters, over three times the forward."""
    config, weights = model_of(16, 4, 64, norm="rms", activation="relu", n_ctx=16, biases=False,
                               tied=False)
    training = start(make_model(config, weights), settings())
    word = [0, 5, 13, 13, 1, 7, 9, 3, 2]
    batch = [(word, word[1:] + [0])]
    multiply_adds = block_multiply_adds([weights.blocks[0]], 9, 4, 4) + 9 * 27 * 16
    return ratio(lambda: step(training, lambda generator, n: batch), 3 * multiply_adds, 16)


def import_milliseconds(statement, rounds=25):
    """The shortest of many starts of a bare interpreter that runs a statement, in milliseconds."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.insert(0, {root!r}); {statement}"
    command = [sys.executable, "-I", "-S", "-c", code]
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        best = min(best, time.perf_counter() - begin)
    return best * 1000


def look_seconds(rounds=7):
    """The shortest of several starts of `python -m pyres`, in seconds."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pyres"], check=True, cwd=root,
                       stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
    return best


def effects_seconds(rounds=7):
    """The effects of switching off each of echo's branches, in seconds."""
    clean = run(load("echo"), "mqzkbmqz")
    metric = logit(clean.model, len(clean.tokens) - 1, 11)
    edits = [[scale(name, 0)] for name, _ in clean.writers]
    return min(seconds(lambda: effects_of(clean, edits, metric), 1) for _ in range(rounds))


def bench_generation():
    """A token behind sixteen others, d_model 64, 4 gated blocks, vocabulary 512."""
    config, weights = model_of(64, 4, 172, norm="rms", activation="silu", d_vocab=512, n_ctx=64,
                               n_layers=4, biases=False, gated=True, tied=True)
    model = make_model(config, weights)
    _, past = tail_logits(model, list(range(1, 17)))
    multiply_adds = matrix_weights(weights.blocks) + 512 * 64 + 2 * 64 * 17 * 4
    return ratio(lambda: tail_logits(model, [5], past), multiply_adds, 64)


def main():
    print(f"Python {sys.version.split()[0]}: bare inner product, ns a multiply-add")
    for width in (8, 16, 32, 64, 256):
        bare, multiply_adds = yardstick(width)
        best = min(seconds(bare, 50) for _ in range(40))
        print(f"  width {width:>3}  {best / multiply_adds * 1e9:6.1f}")
    aim_both_ways = 4.1 if OLD else 4.8
    print("ratio to the bare inner product of that width      measured   aim")
    for name, result, aim in (
            ("matvec, 64 x 64", bench_matvec(64), 1.15),
            ("matvec, 256 x 256", bench_matvec(256), 1.1),
            ("pre-norm block, one token, d_model 64", bench_block(), 1.25 if OLD else 1.4),
            ("block forward + backward, 24 tokens, d_model 32", bench_backward(), aim_both_ways),
            ("training step, 9 positions, d_model 16", bench_step(), 2.3 if OLD else 3.0),
            ("a generated token, d_model 64, 4 blocks", bench_generation(), 1.3 if OLD else 1.45),
            ("echo's loss + gradients, 24 tokens, d_model 24", bench_echo(), "-")):
        print(f"  {name:<48} {result[0]:6.2f}   {aim}   ({result[1] * 1000:.2f} ms)")
    bare = import_milliseconds("pass")
    added = import_milliseconds("import pyres") - bare
    print(f"import pyres adds {added:.1f} ms to a start of {bare:.1f} ms   (aim 10)")
    print(f"look on echo, from a cold start: {look_seconds():.2f} s   (aim 0.5)")
    print(f"the effects of all edits of echo's branches: {effects_seconds():.2f} s   (aim 0.3)")


if __name__ == "__main__":
    main()
