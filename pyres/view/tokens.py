r"""Tokens as text: what stands in a table, where spaces and newlines must be seen.

    bare_text       the text itself
    token_text      quoted and escaped, or # and its id
    token_labels    the tokens of a sequence, told apart where they repeat
    tokens_named    the tokens that have a text
    text_runs       tokens that go on a text, as texts and ids

>>> from pyres.files.characters import Characters
>>> from pyres.model import small_model
>>> model = small_model()._replace(tokenizer=Characters(["a", "\n"]))
>>> print(*token_labels(model, [0, 1, 0]))
'a' (1) '\n' 'a' (2)
"""
from itertools import groupby

from ..show import quoted

__all__ = ["bare_text", "token_text", "token_labels", "tokens_named", "text_runs"]


def bare_text(model, token):
    """The text of one token in the midst of others; None where the model has no tokenizer, or a
    vocabulary with more ids than that has tokens.

    >>> from pyres.model import small_model
    >>> bare_text(small_model(), 1) is None
    True
    """
    if not _has_text(model, token):
        return None
    return model.tokenizer.decode([token], continues=True)


def _has_text(model, token):
    tokenizer = model.tokenizer
    return (tokenizer is not None and token < len(tokenizer.tokens)
            and tokenizer.tokens[token] is not None)


def token_text(model, token):
    r"""A token as text: quoted and escaped, or # and its id where it has none.  What is no whole
    character is shown as bytes, b'...', and so is a vocabulary's token for a byte, <0x41>: there
    is another one for 'A'.

    >>> from pyres.files.tokenizers.tokenizer import example_tokenizer
    >>> from pyres.model import small_model
    >>> model = small_model()._replace(tokenizer=example_tokenizer())
    >>> token_text(model, 32), token_text(model, 195), token_text(small_model(), 1)
    ("' '", "b'\\xc3'", '#1')
    """
    if not _has_text(model, token):
        return f"#{token}"
    of_token = model.tokenizer.token_bytes(token)
    try:
        text = of_token.decode("utf-8")
    except UnicodeDecodeError:
        return repr(of_token)
    return repr(of_token) if _is_byte(model, token) else quoted(text)


def _is_byte(model, token):
    """Whether a token is one of the 256 that some vocabularies have for bytes."""
    of_token = model.tokenizer.token_bytes(token)
    return len(of_token) == 1 and model.tokenizer.tokens[token] == "<0x%02X>" % of_token[0]


def token_labels(model, tokens):
    """The tokens of a sequence as text, those that occur more than once numbered.

    >>> from pyres.model import small_model
    >>> token_labels(small_model(), [0, 1, 0])
    ['#0 (1)', '#1', '#0 (2)']
    """
    labels = []
    for t, token in enumerate(tokens):
        text = token_text(model, token)
        labels.append(f"{text} ({tokens[:t].count(token) + 1})" if tokens.count(token) > 1
                      else text)
    return labels


def tokens_named(model, text):
    """The ids of the tokens whose text in the midst of others is this one: seldom more than one.
    A token for a byte is among them only where there is none for the character.

    >>> from pyres.files.characters import Characters
    >>> from pyres.model import small_model
    >>> model = small_model()._replace(tokenizer=Characters(["a", "b"]))
    >>> tokens_named(model, "b"), tokens_named(model, "ab")
    ([1], [])
    """
    wanted = text.encode("utf-8", "surrogatepass")
    found = [token for token in range(len(model.tokenizer.tokens))
             if _has_text(model, token) and model.tokenizer.token_bytes(token) == wanted]
    return [token for token in found if not _is_byte(model, token)] or found


def text_runs(model, tokens):
    """What tokens go on a text with, in a list: texts, and the ids of tokens that have none.

    >>> from pyres.files.characters import Characters
    >>> from pyres.model import small_model
    >>> text_runs(small_model()._replace(tokenizer=Characters(["a", "b"])), [1, 0, 7, 1])
    ['ba', 7, 'b']
    """
    runs = []
    for has_text, group in groupby(tokens, lambda token: _has_text(model, token)):
        ids = list(group)
        runs += [model.tokenizer.decode(ids, continues=True)] if has_text else ids
    return runs
