"""A tokenizer of single characters: what a small model trained on any text reads.

Every token is a text, most of them one character long.  One of them may be a mark that stands
before every text, BOS; its own text is never read as the mark unless that is asked for.

    Characters             encode, decode
    vocabulary_of          the characters of a text, sorted

>>> tokenizer = Characters(["<bos>", "a", "b"], bos=0)
>>> tokenizer.encode("abba"), tokenizer.encode("ab", special=False)
([0, 1, 2, 2, 1], [1, 2])
>>> tokenizer.decode([0, 1, 2])
'<bos>ab'
>>> tokenizer.encode("abc")
Traceback (most recent call last):
ValueError: encode: the character 'c' at 2 is not in the vocabulary, which has 'a', 'b'
"""
__all__ = ["Characters", "vocabulary_of"]


class Characters:
    """tokens, the texts by id; bos, the id of the mark that stands before a text, or None.

    Raises ValueError where a token is no text, is empty or stands twice, or bos is no id.

    >>> Characters(["a", "a"])
    Traceback (most recent call last):
    ValueError: Characters: tokens are texts, none empty and no two alike
    """

    def __init__(self, tokens, bos=None):
        if (not all([type(text) is str and text for text in tokens])
                or len(set(tokens)) < len(tokens)):
            raise ValueError("Characters: tokens are texts, none empty and no two alike")
        if bos is not None and not (type(bos) is int and 0 <= bos < len(tokens)):
            raise ValueError(f"Characters: bos is {bos!r}, "
                             f"expected one of the {len(tokens)} ids or None")
        self.tokens, self.bos = list(tokens), bos
        self._ids = {text: token for token, text in enumerate(tokens) if token != bos}

    def encode(self, text, special=True, parse_special=False):
        """The ids of a text.

        special puts the mark before it; parse_special lets the mark's own text in the text be the
        mark.  Raises ValueError for a character that is not in the vocabulary.

        >>> tokenizer = Characters(["<bos>", "a", "<", "b", "o", "s", ">"], bos=0)
        >>> tokenizer.encode("a<bos>")
        [0, 1, 2, 3, 4, 5, 6]
        >>> tokenizer.encode("a<bos>", parse_special=True)
        [0, 1, 0]
        """
        ids = [self.bos] if special and self.bos is not None else []
        mark = self.tokens[self.bos] if parse_special and self.bos is not None else None
        at = 0
        while at < len(text):
            if mark is not None and text.startswith(mark, at):
                ids.append(self.bos)
                at += len(mark)
            elif text[at] in self._ids:
                ids.append(self._ids[text[at]])
                at += 1
            else:
                known = ", ".join([repr(text) for text in list(self._ids)[:30]])
                more = ", ..." if len(self._ids) > 30 else ""
                raise ValueError(f"encode: the character {text[at]!r} at {at} is not in the "
                                 f"vocabulary, which has {known}{more}")
        return ids

    def decode(self, ids, skip_special=False, continues=False):
        """The texts of the ids, one after the other; skip_special leaves the mark out.  continues,
        which says that the ids go on a text, changes nothing here.

        >>> tokenizer = Characters(["<bos>", "a", "b"], bos=0)
        >>> tokenizer.decode([0, 2, 1, 2]), tokenizer.decode([0, 2], skip_special=True)
        ('<bos>bab', 'b')
        """
        texts = [self._text_of("decode", token) for token in ids]
        return "".join([text for token, text in zip(ids, texts)
                        if not (skip_special and token == self.bos)])

    def token_bytes(self, token):
        r"""The bytes of one token; ValueError where it is none.

        >>> Characters(["a", "\u00e9"]).token_bytes(1)
        b'\xc3\xa9'
        """
        return self._text_of("token_bytes", token).encode("utf-8", "surrogatepass")

    def _text_of(self, function, token):
        if type(token) is not int or not 0 <= token < len(self.tokens):
            raise ValueError(f"{function}: {token!r} is none of the {len(self.tokens)} ids")
        return self.tokens[token]


def vocabulary_of(text):
    """The characters of a text, sorted.

    >>> vocabulary_of("hello")
    ['e', 'h', 'l', 'o']
    """
    return sorted(set(text))
