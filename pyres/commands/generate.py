"""generate: a model goes on with a text.

    generated    options -> Answer

>>> COMMAND.name, COMMAND.takes
('generate', ('model', 'ids'))
"""
import textwrap

from ..generation import check_temperature, generate, token_ids
from ..show import quoted
from ..view import record, text
from ..view.terminal import announced
from ..view.tokens import text_runs
from . import Answer, Command
from .inputs import read_subject, without_tokenizer
from .options import explained, from_0, whole

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of generate."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is gone on with; - is stdin")
    parser.option("-n", type=whole(0, 10 ** 9), default=40, metavar="N", help="new tokens (40)")
    parser.option("--temperature", type=from_0, default=0.0, metavar="X",
                  help="0 takes the likeliest token, more is more random (0)")
    parser.option("--seed", type=whole(), default=0, metavar="N", help="of the random draws (0)")


def generated(options):
    """Go on with what was given -> Answer."""
    model, source, given = read_subject(options)
    with explained(without_tokenizer(model, given, options)):
        check_temperature(options.temperature)
        tokens = token_ids(model, given)
        with announced("running the model", options.verbose, options.quiet):
            new = generate(model, tokens, options.n, options.temperature, options.seed)
    notes = []
    if len(new) < options.n:
        notes.append(f"stopped after {len(new)} new tokens: "
                     f"the context of {model.config.n_ctx} is full")
    runs = None if model.tokenizer is None else text_runs(model, new)
    texts = [] if runs is None else [run for run in runs if type(run) is str]
    if runs is not None and len(texts) < len(runs):
        notes.append(f"# and a number is a token without a text: {model.name} has "
                     f"{model.config.d_vocab} tokens, its tokenizer {len(model.tokenizer.tokens)}")
    result = {"tokens": new, "text": None if runs is None else "".join(texts)}
    asked = {"text": given if type(given) is str else None, "tokens": tokens, "n": options.n,
             "temperature": options.temperature, "seed": options.seed}
    described = record.model_record(source) if options.json else None
    return Answer(described, asked, result, [], notes,
                  lambda look: generate_lines(given, new, runs, notes, look))


def gone_on(given, runs):
    """A text and the runs that go on with it, in quotes; # and the id of a token without a text.

    >>> print(gone_on("to ", ["be", 511, " or"]), gone_on("", [511]))
    'to be' #511 ' or' #511
    """
    if runs and type(runs[0]) is str:
        given, runs = given + runs[0], runs[1:]
    parts = [given] * bool(given or not runs) + runs
    return " ".join([quoted(part) if type(part) is str else f"#{part}" for part in parts])


def generate_lines(given, new, runs, notes, look):
    """The text with what was added, or the new ids; then what stopped it."""
    if runs is None:
        lines = text.listed([str(token) for token in new], look)
    else:
        whole = gone_on(given if type(given) is str else "", runs)
        # spaces are part of a text: the lines, one after the other, are the whole
        lines = textwrap.wrap(text.shown(whole, look), look.columns, drop_whitespace=False)
    said = [] if look.quiet else notes
    return lines + [line for note in said for line in text.wrapped(note, look)]


COMMAND = Command("generate", "[TEXT] --model MODEL [OPTIONS]", "a model goes on with a text",
                  ("model", "ids"), add_options, generated,
                  ("generate --model FOLDER --ids 3,1,4 -n 5",
                   "generate --model FOLDER --ids 3,1,4 --temperature 0.8 --seed 7"))
