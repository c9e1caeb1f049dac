"""toy: three numbers, and what attention and MLP add to them.

The two sublayers add fixed vectors here, so that the arithmetic of the stream shows.  Numbers are
read exactly: 0.1 + 0.2 is 0.3.

>>> from pyres.cli import main
>>> main(["toy", "--no-attn", "--quiet"])
stream       1  2  3
+ attention  off
+ MLP        0  1  1
= stream     1  3  4
0
"""
from .. import stream
from ..view import text
from . import Answer, Command
from .options import exact_numbers, explained, whole

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of toy."""
    def vector(flag, default, what):
        parser.option(flag, type=exact_numbers, metavar="N,N,...", default=exact_numbers(default),
                      help=f"{what} ({default})")

    vector("--x", "1,2,3", "the stream")
    vector("--attn", "0.5,-1,0", "what attention adds")
    vector("--mlp", "0,1,1", "what the MLP adds")
    parser.option("--no-attn", action="store_true", help="switch attention off")
    parser.option("--no-mlp", action="store_true", help="switch the MLP off")
    parser.option("--mlp-width", type=whole(1, 1000), metavar="N",
                  help="cut or fill what the MLP adds to N numbers; a wrong width is an error")


def toy(options):
    """Add fixed vectors to a stream -> Answer."""
    x, mlp, n = options.x, options.mlp, options.mlp_width
    if n is not None:
        mlp = (mlp + [0] * n)[:n]
    updates = [("attn", "attention", None if options.no_attn else options.attn),
               ("mlp", "MLP", None if options.no_mlp else mlp)]
    on = [(name, update) for name, _, update in updates if update is not None]
    fns = [lambda _, update=update: update for _, update in on]
    with explained(f"the stream has {len(x)} numbers, and so must all that is added to it"):
        states, total = stream.trace(x, fns), stream.total_update(x, fns)
    names = ["x"] + [name for name, _ in on]
    result = {"states": [{"name": name, "vector": x} for name, x in zip(names, states)],
              "writers": [{"name": name, "vector": update} for name, update in on],
              "total_update": total}
    notes = [f"{title} is switched off" for _, title, update in updates if update is None]
    titled = [(title, update) for _, title, update in updates]
    return Answer(None, {"x": x, "attn": updates[0][2], "mlp": updates[1][2]}, result, [], notes,
                  lambda look: text.toy_lines(titled, states, total, look))


COMMAND = Command("toy", "[OPTIONS]", "three numbers, and what attention and MLP add to them", (),
                  add_options, toy, ("toy", "toy --x 1,2,3 --attn -0.5,-1,0 --no-mlp"))
