"""count: writers, weights, multiply-adds and cache, with their formulas.

What is not asked for is not counted.

>>> from pyres.cli import main
>>> main(["count", "--width", "4", "--hidden", "8", "--heads", "4", "--quiet"])
weights
attn w_q          d·H·h = 4·4·1       16
attn w_k, w_v     2·d·K·h = 2·4·4·1   32
attn w_o          H·h·d = 4·1·4       16
mlp w_up, w_down  2·d·f = 2·4·8       64
total                                128
<BLANKLINE>
writers
writers           1 + 2·L = 1 + 2·1    3
0
"""
from ..study import counting
from ..view import record, text
from . import Answer, Command, read_source
from .options import PROG, USAGE, Refused, explained, whole

__all__ = ["COMMAND"]

# an option, its name in count_sizes, and the options of which one must stand beside it
SIZES = (
    ("--layers", "n_layers", ()), ("--width", "d_model", ()),
    ("--hidden", "d_mlp", ("--width",)), ("--heads", "n_heads", ("--width",)),
    ("--kv-heads", "n_kv_heads", ("--heads",)), ("--head-width", "d_head", ("--heads",)),
    ("--gated", "gated", ("--hidden",)), ("--bias", "bias", ("--hidden", "--heads")),
    ("--norm", "norm", ("--hidden", "--heads", "--vocab")), ("--vocab", "d_vocab", ("--width",)),
    ("--positions", "n_positions", ("--width",)), ("--tied", "tied", ("--vocab",)),
)


def add_options(parser):
    """The options of count."""
    def size(flag, dest, what, smallest=1):
        parser.option(flag, dest=dest, type=whole(smallest, 10 ** 12), metavar="N", help=what)

    size("--layers", "n_layers", "blocks (1)", smallest=0)
    size("--width", "d_model", "d_model, the numbers in the stream")
    size("--hidden", "d_mlp", "an MLP, and its d_mlp")
    size("--heads", "n_heads", "attention, and its query heads")
    size("--kv-heads", "n_kv_heads", "key/value heads (as many as heads)")
    size("--head-width", "d_head", "d_head (width / heads)")
    parser.option("--gated", action="store_true", help="the MLP has a gate")
    parser.option("--bias", action="store_true", help="attention and MLP have biases")
    parser.option("--norm", choices=("none", "layer", "rms"), default="none",
                  help="a norm before each sublayer and the unembedding (none)")
    size("--vocab", "d_vocab", "a token table and an unembedding, and their tokens")
    size("--positions", "n_positions", "a position table; a token then sees so many tokens")
    parser.option("--tied", action="store_true", help="the unembedding is the token table again")


def count(options):
    """Count what was asked for, or a model -> Answer."""
    asked = {name: getattr(options, name) for _, name, _ in SIZES}
    asked["norm"] = None if options.norm == "none" else options.norm
    check_given([flag for flag, name, _ in SIZES if asked[name] not in (None, False)],
                options.model)
    described = None
    if options.model is not None:
        source, asked = read_source(options.model, options), {"source": options.model}
        counts = counting.count_leaves(source.config, source.walked)
        described = record.model_record(source) if options.json else None
    else:
        asked["n_layers"] = 1 if options.n_layers is None else options.n_layers
        with explained(f"{PROG} count -h says what each size is"):
            counts = counting.count_sizes(**asked)
    notes = notes_on(counts, options)
    return Answer(described, asked, record.count_record(counts), [], notes,
                  lambda look: text.count_lines(counts, notes, look))


def check_given(given, model):
    """Refused where sizes mean nothing together, or beside a model.

    >>> check_given(["--width", "--hidden"], None)
    >>> check_given(["--width", "--kv-heads"], None)
    Traceback (most recent call last):
    pyres.commands.options.Refused: --kv-heads means nothing without --heads
    """
    if given and model is not None:
        raise Refused(USAGE, f"--model has its own sizes, and {given[0]} was given too",
                      "leave one out")
    for flag, _, needed in SIZES:
        if flag in given and needed and not set(needed) & set(given):
            raise Refused(USAGE, f"{flag} means nothing without {' or '.join(needed)}",
                          f"add {needed[0]} N")


def notes_on(counts, options):
    """Sentences on a Count, for who sees one for the first time."""
    notes = ["The embedding writes to the stream once, every block twice: attention and MLP."]
    if options.tied:
        notes.append("The unembedding is w_embed again and is counted once.")
    if not counts.weights:
        notes.append("Give sizes to count weights: --width 4 --hidden 8 --heads 4")
    return notes


COMMAND = Command("count", "[OPTIONS]",
                  "writers, weights, multiply-adds and cache, with their formulas", ("model",),
                  add_options, count, ("count --layers 32",
                                       "count --width 4 --hidden 8 --heads 4"))
