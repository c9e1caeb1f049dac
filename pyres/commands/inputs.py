"""What a command looks at: a model, a text or ids, a position, a target and perhaps a foil.

    what_to_read        the text, or the ids in its place
    Subject, subject    everything together, and the run of it
    token_named         the id that a text or #id stands for
    input_record        the `input` of the JSON
    checked_position    the position asked for

>>> checked_position("last", n_tokens=8), checked_position(3, n_tokens=8)
(7, 3)
"""
import os
import re
import sys
from collections import namedtuple

from ..model import run
from ..study.lens import best, is_finite
from ..study.metrics import logit
from ..view.terminal import announced
from ..view.text import counted
from ..view.tokens import bare_text, token_text, tokens_named
from . import read_model
from .options import BAD_INPUT, ENVIRONMENT, USAGE, Refused, explained

__all__ = ["what_to_read", "Subject", "subject", "token_named", "input_record", "checked_position"]


class Subject(namedtuple("Subject", ("model", "source", "given", "run", "position", "target",
                                     "against", "metric"))):
    """What a command looks at.

    model, source      a Model, and its Source
    given              the text, or the list of ids, that was given
    run                the Run of it
    position           of the token that is asked about
    target, against    ids; the target is the top guess there unless one was named, and against is
                       None unless one was
    metric             the target's logit there, less that of against
    """


EXAMPLE = "mqzkbmqz"


def what_to_read(options):
    """The text, or the ids in its place."""
    if options.ids is not None and options.text is not None:
        raise Refused(USAGE, "both TEXT and --ids were given", "leave one out")
    if options.ids is not None:
        return options.ids
    if options.text == "-":
        if sys.stdin is None:
            raise Refused(ENVIRONMENT, "there is no standard input", "give a TEXT")
        with explained():
            return re.sub(r"\r?\n\Z", "", sys.stdin.read())
    if options.text is None and options.model not in (None, "echo"):
        raise Refused(USAGE, "there is nothing to run", "give a TEXT, or token ids: --ids 3,1,4")
    return EXAMPLE if options.text is None else options.text


def read_subject(options):
    """Return (model, source, what was given)."""
    given = what_to_read(options)
    model, source = read_model(options.model or "echo", options)
    return model, source, given


def without_tokenizer(model, given, options):
    """A hint for who gave a text to a model that has no tokenizer; None where that is not so."""
    if type(given) is not str or model.tokenizer is not None:
        return None
    if os.path.exists(os.path.join(options.model or "", "tokenizer.model")):
        return ("tokenizer.model is not read; give token ids (--ids 3,1,4), or let AutoTokenizer "
                "of transformers write a tokenizer.json")
    return "give token ids in place of TEXT: --ids 3,1,4"


def run_of(model, given, options, edits=()):
    """The Run of what was given; Refused where it cannot be."""
    with explained(without_tokenizer(model, given, options)):
        with announced("running the model", options.verbose, options.quiet):
            return run(model, given, edits)


def subject(options):
    """The Subject of a command's options: text, model, ids, position, target, against."""
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    at = checked_position(options.position, len(r.tokens))
    if options.target is not None:
        target = token_named(model, options.target)
    elif is_finite(r.logits[at]):
        target = best(r.logits[at])[0]
    else:
        raise Refused(BAD_INPUT, f"the logits at position {at} are not finite, so none is the top",
                      "name the token that is asked about: --target #0")
    against = None if options.against is None else token_named(model, options.against)
    name = f"logit of {token_text(model, target)}" + (
        "" if against is None else f" less that of {token_text(model, against)}")
    metric = logit(model, at, target, against)._replace(name=name)
    return Subject(model, source, given, r, at, target, against, metric)


def token_named(model, text):
    """The id that a text stands for, or `#id`; Refused where it is no one token.

    >>> from pyres.files.characters import Characters
    >>> from pyres.model import small_model
    >>> model = small_model()._replace(tokenizer=Characters(["a", "b"]))
    >>> token_named(model, "b"), token_named(model, "#0")
    (1, 0)
    """
    hint = ("a token is its text with its spaces, or # and its id: #0 to "
            f"#{model.config.d_vocab - 1}")
    if re.fullmatch("#[0-9]{1,9}", text):
        if int(text[1:]) >= model.config.d_vocab:
            raise Refused(BAD_INPUT, f"there is no token {text}", hint)
        return int(text[1:])
    if model.tokenizer is None:
        raise Refused(BAD_INPUT, f"{text!r} is no token: this model has no tokenizer", hint)
    found = tokens_named(model, text)
    if len(found) == 1:
        return found[0]
    if found:
        raise Refused(BAD_INPUT, f"{text!r} is the text of several tokens: "
                      + ", ".join([f"#{token}" for token in found]), "name one by its id")
    with explained(hint):
        ids = model.tokenizer.encode(text, special=False, parse_special=True)
    parts = [f"{token_text(model, token)} #{token}" for token in ids[:8]]
    many = counted(len(ids), "token")
    raise Refused(BAD_INPUT, f"{text!r} is no token; as a text it is {many}: "
                  + ", ".join(parts + ["..."] * (len(ids) > 8)), hint)


def input_record(of):
    """The `input` of the JSON, of a Subject."""
    model, tokens = of.model, of.run.tokens
    texts = [bare_text(model, token) for token in tokens]
    return {"text": of.given if type(of.given) is str else None, "tokens": tokens,
            "token_texts": None if model.tokenizer is None else texts, "position": of.position,
            "target": of.target, "against": of.against}


def checked_position(at, n_tokens):
    """The position asked for, as a number; Refused where there is none.

    >>> checked_position(None, 3), checked_position(1, 3)
    (2, 1)
    """
    at = n_tokens - 1 if at in (None, "last") else at
    if not 0 <= at < n_tokens:
        raise Refused(BAD_INPUT, f"there is no position {at}; the last is {n_tokens - 1}",
                      f"-p takes 0 to {n_tokens - 1}, or last")
    return at
