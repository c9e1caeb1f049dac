"""heads: where attention looks, what its heads carry, which head reads which.

    heads    options -> Answer

>>> COMMAND.examples[0]
'heads mqzkbmqz --draws 20'
"""
from ..view import heads as view
from ..view import record
from ..view.terminal import announced
from ..view.tokens import token_labels
from . import Answer, Command
from .inputs import Subject, checked_position, input_record, read_subject, run_of
from .options import BAD_INPUT, Refused, block_range, whole
from .trace import checked_layers

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of heads."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is run; - is stdin")
    parser.option("--layers", type=block_range, metavar="A:B",
                  help="only heads of blocks A to B - 1, and what they read")
    parser.option("--draws", type=whole(1, 10 ** 6), default=100, metavar="N",
                  help="random heads that the baseline is the mean of (100)")


def heads(options):
    """Run a model on what was given, and look at its heads -> Answer."""
    from ..study import circuits
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    at = checked_position(options.position, len(r.tokens))
    if not r.steps.blocks:
        raise Refused(BAD_INPUT, "this model has no blocks, and so no heads")
    begin, end = checked_layers(options.layers, len(r.steps.blocks))
    found = view.heads_of(r, at, begin, end)
    with announced("drawing random heads", options.verbose, options.quiet):
        compositions = circuits.compositions(model, options.draws, layers=range(begin, end))
    notes = notes_on(model, found, compositions)
    described = record.model_record(source) if options.json else None
    of = Subject(model, source, given, r, at, None, None, None)
    labels = token_labels(model, r.tokens)
    return Answer(described, input_record(of), view.heads_record(found, compositions), [], notes,
                  lambda look: view.heads_lines(r, at, labels, found, compositions, notes, look))


def notes_on(model, found, compositions):
    """What must be known to read the figures."""
    notes = []
    if any([head.qk_norm is None for head in found]):
        notes.append("Queries or keys are normed here, so there is no QK map.")
    elif any([block.attention.rotary is not None for block in model.config.blocks]):
        notes.append("Rotary positions turn queries and keys: QK is that of two tokens at the "
                     "same place.")
    if not compositions:
        notes.append("No head here reads what another one wrote: heads of one block, and of the "
                     "first, compose with none.")
    return notes


COMMAND = Command("heads", "[TEXT] [--layers A:B] [--draws N] [OPTIONS]",
                  "where heads look, their maps, and which reads which",
                  ("model", "ids", "position"), add_options, heads,
                  ("heads mqzkbmqz --draws 20", "heads --model FOLDER --ids 3,1,4 --layers 0:1"))
