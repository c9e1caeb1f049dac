"""generate: a model goes on with a text.

    generated    options -> Answer

>>> COMMAND.name, COMMAND.takes
('generate', ('model', 'ids'))
"""
from ..generation import check_temperature, generate, token_ids
from ..show import quoted
from ..view import record, text
from ..view.terminal import announced
from . import Answer, Command
from .inputs import read_subject
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
    no_tokenizer = type(given) is str and model.tokenizer is None
    with explained("give token ids in place of TEXT: --ids 3,1,4" if no_tokenizer else None):
        check_temperature(options.temperature)
        tokens = token_ids(model, given)
        with announced("running the model", options.verbose, options.quiet):
            new = generate(model, tokens, options.n, options.temperature, options.seed)
    notes = []
    if len(new) < options.n:
        notes.append(f"stopped after {len(new)} new tokens: "
                     f"the context of {model.config.n_ctx} is full")
    written = None if model.tokenizer is None else model.tokenizer.decode(new, continues=True)
    result = {"tokens": new, "text": written}
    asked = {"text": given if type(given) is str else None, "tokens": tokens, "n": options.n,
             "temperature": options.temperature, "seed": options.seed}
    described = record.model_record(source) if options.json else None
    return Answer(described, asked, result, [], notes,
                  lambda look: generate_lines(given, new, written, notes, look))


def generate_lines(given, new, written, notes, look):
    """The text with what was added, or the new ids; then what stopped it."""
    if written is None:
        lines = text.listed([str(token) for token in new], look)
    else:
        lines = text.wrapped(quoted((given if type(given) is str else "") + written), look)
    said = [] if look.quiet else notes
    return lines + [line for note in said for line in text.wrapped(note, look)]


COMMAND = Command("generate", "[TEXT] --model MODEL [OPTIONS]", "a model goes on with a text",
                  ("model", "ids"), add_options, generated,
                  ("generate --model FOLDER --ids 3,1,4 -n 5",
                   "generate --model FOLDER --ids 3,1,4 --temperature 0.8 --seed 7"))
