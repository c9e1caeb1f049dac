r"""Tokens as text: what stands in a table, where spaces and newlines must be seen.

    bare_text       the text itself
    token_text      quoted and escaped, or # and its id
    token_labels    the tokens of a sequence, told apart where they repeat

>>> from pyres.files.characters import Characters
>>> from pyres.model import small_model
>>> model = small_model()._replace(tokenizer=Characters(["a", "\n"]))
>>> print(*token_labels(model, [0, 1, 0]))
'a' (1) '\n' 'a' (2)
"""
from ..show import quoted

__all__ = ["bare_text", "token_text", "token_labels"]


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
    r"""A token as text: quoted and escaped, or # and its id where it has none.  Bytes that are a
    part of a character are shown as such, b'...'.

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
        return quoted(of_token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(of_token)


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
