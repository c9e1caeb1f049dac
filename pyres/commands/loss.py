"""loss: how surprised a model is by a text, every token scored once.

    scored    options -> Answer

>>> perplexity(0.0), perplexity(1e4)
(1.0, inf)
"""
import math
import os

from ..data import text_loss
from ..view import record, text
from ..view.terminal import announced
from . import Answer, Command
from .inputs import read_subject
from .options import explained, whole
from .tokens import encoded
from .train import read_text

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of loss."""
    parser.add_argument("text", nargs="?", metavar="TEXT|FILE",
                        help="what is scored, or a file that holds it; - is stdin")
    parser.option("--stride", type=whole(1, 10 ** 9), metavar="N",
                  help="new tokens a window, the others are context (half the context)")


def scored(options):
    """Score a text -> Answer."""
    model, source, given = read_subject(options)
    file = given if type(given) is str and os.path.isfile(given) else None
    ids = encoded(model, given if file is None else read_text(file), options)
    with explained("a longer text, or --stride N with a smaller N"):
        with announced(f"scoring {len(ids)} tokens", options.verbose, options.quiet):
            loss, n_scored = text_loss(model, ids, options.stride)
    result = {"loss": loss, "perplexity": perplexity(loss), "n_scored": n_scored,
              "n_tokens": len(ids)}
    notes = notes_on(model, ids, file)
    asked = {"text": given if type(given) is str and file is None else None, "file": file,
             "tokens": ids if file is None else None, "stride": options.stride}
    described = record.model_record(source) if options.json else None
    return Answer(described, asked, result, [], notes,
                  lambda look: loss_lines(result, notes, look))


def perplexity(loss):
    """exp(loss): of how many equally likely tokens the model was as unsure; inf where it is more
    than a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def notes_on(model, ids, file):
    """Sentences on what was scored, and from how much context."""
    notes = [] if file is None else [f"the text is that of the file {file}"]
    notes.append("the first token is not scored: nothing stands before it")
    if len(ids) > model.config.n_ctx:
        notes.append(f"the text is longer than the context of {model.config.n_ctx}, so it is read "
                     "in windows that overlap; every token is scored in one of them")
    return notes


def loss_lines(result, notes, look):
    """Loss and perplexity, and over how many tokens."""
    pairs = [("loss", f"{text.figure(result['loss'], look)} nats a token"),
             ("perplexity", text.figure(result["perplexity"], look)),
             ("tokens", f"{result['n_tokens']:,}, of which {result['n_scored']:,} are scored")]
    said = [] if look.quiet else notes
    return text.pair_table(pairs, look) + [
        line for note in said for line in [""] + text.wrapped(note, look)]


COMMAND = Command("loss", "TEXT|FILE [OPTIONS]", "loss and perplexity of a text",
                  ("model", "ids"), add_options, scored,
                  ("loss mqzkbmqzkbmqzkb", "loss --ids 0,13,17,13"))
