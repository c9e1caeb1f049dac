"""trace: the stream of a model, writer by writer.

How long the stream was after every writer, at one position; how long what it added, and at which
angle; then the proof that the writers sum to the final stream.

    what_to_trace                       a text or ids
    checked_position, checked_layers    which part of the run is shown
    trace                               options -> Answer

>>> checked_position("last", n_tokens=8), checked_layers((1, None), n_layers=4)
(7, (1, 4))
"""
import re
import sys

from ..model import run
from ..view import between, record, text
from ..view.terminal import announced
from . import Answer, Command, read_model
from .options import BAD_INPUT, USAGE, Refused, block_range, explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of trace."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is traced; - is stdin")
    parser.option("--layers", type=block_range, metavar="A:B", help="only blocks A to B - 1")
    parser.option("--vectors", action="store_true", help="print the numbers")


def trace(options):
    """Run a model on what was given -> Answer."""
    given = what_to_trace(options)
    model, source = read_model(options.model or "echo", options)
    no_tokenizer = type(given) is str and model.tokenizer is None
    with explained("give token ids in place of TEXT: --ids 3,1,4" if no_tokenizer else None):
        with announced("running the model", options.verbose, options.quiet):
            r = run(model, given)
    at = checked_position(options.position, len(r.tokens))
    begin, end = checked_layers(options.layers, len(r.steps.blocks))
    selection, checks = between(r, begin, end), [record.check_record(r)]
    result = {name: [record.stream_record(*pair, options.vectors) for pair in pairs]
              for name, pairs in (("states", selection.states), ("writers", selection.writers))}
    if options.vectors:
        result["logits"] = r.logits[at]
    notes = [f"only blocks {begin} to {end - 1} are shown"] if options.layers else []
    described = record.model_record(source) if options.json else None
    return Answer(described, input_record(r, given, at), result, checks, notes,
                  lambda look: text.trace_lines(r, selection, at, checks, look, options.vectors))


def what_to_trace(options):
    """The text, or the ids in its place."""
    if options.ids is not None and options.text is not None:
        raise Refused(USAGE, "both TEXT and --ids were given", "leave one out")
    if options.ids is not None:
        return options.ids
    if options.text == "-":
        with explained():
            return re.sub(r"\r?\n\Z", "", sys.stdin.read())
    if options.text is None and options.model is not None:
        raise Refused(USAGE, "there is nothing to trace", "give a TEXT, or token ids: --ids 3,1,4")
    return "mqzkbmqz" if options.text is None else options.text


def input_record(r, given, at):
    """The `input` of the JSON."""
    tokenizer = r.model.tokenizer
    texts = None if tokenizer is None else [tokenizer.decode([token]) for token in r.tokens]
    return {"text": given if type(given) is str else None, "tokens": r.tokens,
            "token_texts": texts, "position": at, "target": None, "against": None}


def checked_position(at, n_tokens):
    """The position asked for, as a number; Refused where there is none.

    >>> checked_position("last", 3), checked_position(None, 3), checked_position(1, 3)
    (2, 2, 1)
    """
    at = n_tokens - 1 if at in (None, "last") else at
    if not 0 <= at < n_tokens:
        raise Refused(BAD_INPUT, f"there is no position {at}; the last is {n_tokens - 1}",
                      f"-p takes 0 to {n_tokens - 1}, or last")
    return at


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
