"""tokens: a text as ids, and each id as text.

    tokens     options -> Answer
    encoded    the ids of what was given

>>> COMMAND.takes
('model', 'ids')
"""
from ..view import record, text
from ..view.tokens import bare_text, token_text
from . import Answer, Command
from .inputs import read_subject, without_tokenizer
from .options import BAD_INPUT, Refused, explained

__all__ = ["COMMAND", "encoded"]


def add_options(parser):
    """The options of tokens."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is cut up; - is stdin")


def tokens(options):
    """Cut a text into tokens -> Answer."""
    model, source, given = read_subject(options)
    ids = encoded(model, given, options)
    texts = None if model.tokenizer is None else [bare_text(model, token) for token in ids]
    result = {"tokens": ids, "n_tokens": len(ids), "token_texts": texts}
    notes = notes_on(model, given, ids)
    described = record.model_record(source) if options.json else None
    asked = {"text": given if type(given) is str else None, "tokens": ids}

    def draw(look):
        rows = [(str(t), str(token), text.shown(token_text(model, token), look))
                for t, token in enumerate(ids)]
        lines = text.number_table(("position", "id", "text"), rows, look)
        said = [] if look.quiet else notes
        return lines + [line for note in said for line in [""] + text.wrapped(note, look)]

    return Answer(described, asked, result, [], notes, draw)


def encoded(model, given, options):
    """The ids of a text, or given ids, each in the vocabulary; of any number."""
    if type(given) is str and model.tokenizer is None:
        raise Refused(BAD_INPUT, f"the model {model.name!r} has no tokenizer",
                      without_tokenizer(model, given, options))
    if type(given) is str:
        with explained():
            return model.tokenizer.encode(given)
    for token in given:
        if not 0 <= token < model.config.d_vocab:
            raise Refused(BAD_INPUT, f"there is no token {token}",
                          f"the vocabulary is 0 to {model.config.d_vocab - 1}")
    return given


def notes_on(model, given, ids):
    """Sentences on what is not plain to see."""
    notes = [f"{text.counted(len(ids), 'token')}; the context of {model.name} is "
             f"{model.config.n_ctx}"]
    if type(given) is str:
        bare = model.tokenizer.encode(given, special=False)
        if bare != ids:
            notes.append("special tokens that the model expects around a text are among them")
        if model.tokenizer.decode(bare) != given:
            notes.append("the tokens do not give back the text to the letter")
    return notes


COMMAND = Command("tokens", "TEXT [OPTIONS]", "a text as token ids, and their texts",
                  ("model", "ids"), add_options, tokens,
                  ("tokens mqzkbmqz", "tokens --ids 0,13,17"))
