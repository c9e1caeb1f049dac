"""trace: the stream of a model, writer by writer.

How long the stream was after every writer, at one position; how long what it added, and at which
angle; then the proof that the writers sum to the final stream.

    checked_layers    which blocks are shown
    trace             options -> Answer

>>> checked_layers((1, None), n_layers=4)
(1, 4)
"""
from ..view import between, record, text
from . import Answer, Command
from .inputs import Subject, checked_position, input_record, read_subject, run_of
from .options import BAD_INPUT, Refused, block_range

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of trace."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is traced; - is stdin")
    parser.option("--layers", type=block_range, metavar="A:B", help="only blocks A to B - 1")
    parser.option("--vectors", action="store_true", help="print the numbers")


def trace(options):
    """Run a model on what was given -> Answer."""
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    at = checked_position(options.position, len(r.tokens))
    begin, end = checked_layers(options.layers, len(r.steps.blocks))
    selection, checks = between(r, begin, end), [record.check_record(r)]
    result = {name: [record.stream_record(*pair, options.vectors) for pair in pairs]
              for name, pairs in (("states", selection.states), ("writers", selection.writers))}
    if options.vectors:
        result["logits"] = r.logits[at]
    notes = [f"only blocks {begin} to {end - 1} are shown"] if options.layers else []
    described = record.model_record(source) if options.json else None
    of = Subject(model, source, given, r, at, None, None, None)
    return Answer(described, input_record(of), result, checks, notes,
                  lambda look: text.trace_lines(r, selection, at, checks, look, options.vectors))


def checked_layers(layers, n_layers):
    """The blocks asked for, as a pair (begin, end); Refused where there are none.

    >>> checked_layers(None, 4), checked_layers((1, None), 4)
    ((0, 4), (1, 4))
    """
    if layers is None:
        return 0, n_layers
    begin, end = layers
    begin, end = begin or 0, n_layers if end is None else end
    if not begin < end <= n_layers:
        raise Refused(BAD_INPUT, f"--layers {begin}:{end} names no blocks; there are {n_layers}",
                      "A:B is block A to block B - 1, counted from 0")
    return begin, end


COMMAND = Command("trace", "[TEXT] [--model FOLDER] [OPTIONS]",
                  "the stream of a model, writer by writer", ("model", "ids", "position"),
                  add_options, trace,
                  ("trace --model FOLDER --ids 3,1,4",
                   "trace --model FOLDER --ids 3,1,4 --layers 0:1 --vectors"))
