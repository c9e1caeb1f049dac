"""The objects in a file that is not trusted: every value is checked as it is taken.

    MAX_IDS    how many ids a vocabulary may have
    Part       an object of a JSON file

>>> part = Part({"type": "Split", "invert": 1}, "tokenizer.json", "pre_tokenizer")
>>> part.typed("type", str)
'Split'
>>> part.typed("invert", bool)
Traceback (most recent call last):
ValueError: tokenizer.json: pre_tokenizer.invert is 1; expected true or false
"""
from ..strict_json import brief, brief_key

__all__ = ["MAX_IDS", "Part"]

MAX_IDS = 1 << 21           # eight times the largest vocabulary that is published

REQUIRED = object()


class Part:
    """An object of a file, and where it stands there.  Every value is checked as it is taken;
    finish refuses what has not been taken.

    >>> part = Part({"type": "Split", "invert": 1, "colour": 2}, "tokenizer.json", "pre_tokenizer")
    >>> part.typed("type", str)
    'Split'
    >>> part.typed("invert", bool)
    Traceback (most recent call last):
    ValueError: tokenizer.json: pre_tokenizer.invert is 1; expected true or false
    >>> part.finish()
    Traceback (most recent call last):
    ValueError: tokenizer.json: pre_tokenizer.colour is 2; expected no such key
    """

    KINDS = {bool: "true or false", str: "a text", list: "a list", dict: "an object",
             int: "a whole number"}

    def __init__(self, values, file, place=""):
        if type(values) is not dict:
            raise ValueError(f"{file}: {place or 'all of it'} is {brief(values)}; "
                             "expected an object")
        self.values, self.file, self.place, self._taken = values, file, place, set()

    def name(self, key):
        """Where the value of a key stands, in one short line whatever the key is."""
        return f"{self.place}.{brief_key(key)}" if self.place else brief_key(key)

    def refuse(self, key, wanted):
        """Raise ValueError: the file, where, the value and what was wanted."""
        raise ValueError(f"{self.file}: {self.name(key)} is {brief(self.values.get(key))}; "
                         f"expected {wanted}")

    def take(self, key, default=REQUIRED):
        """The value of a key, or the default where it is absent."""
        self._taken.add(key)
        if key not in self.values and default is REQUIRED:
            raise ValueError(f"{self.file}: {self.name(key)} is missing")
        return self.values.get(key, default)

    def typed(self, key, kind, default=REQUIRED):
        """A value of a type, bool, str, list, dict or int, or the default where it is absent."""
        value = self.take(key, default)
        if type(value) is not kind and value is not default:
            self.refuse(key, self.KINDS[kind])
        return value

    def some_text(self, key):
        """A text that is not empty."""
        if self.typed(key, str) == "":
            self.refuse(key, "a text that is not empty")
        return self.values[key]

    def character(self, key):
        """A text of one character."""
        if len(self.typed(key, str)) != 1:
            self.refuse(key, "one character")
        return self.values[key]

    def token(self, key):
        """A whole number that may be the id of a token."""
        if not 0 <= self.typed(key, int) < MAX_IDS:
            self.refuse(key, f"an id from 0 to {MAX_IDS - 1}")
        return self.values[key]

    def one_of(self, key, names, default=REQUIRED):
        """A text that is one of the names."""
        value = self.take(key, default)
        if type(value) is not str or value not in names:
            self.refuse(key, "one of " + ", ".join(names))
        return value

    def must_be(self, key, neutral, *others):
        """Refuse any value but those given, each None, a bool or a text; absent is neutral."""
        value, allowed = self.take(key, neutral), (neutral,) + others
        if not any([type(value) is type(some) and value == some for some in allowed]):
            self.refuse(key, " or ".join([brief(some) for some in allowed]))

    def inner(self, key):
        """The Part that stands under a key."""
        return Part(self.take(key), self.file, self.name(key))

    def inners(self, key):
        """The Parts of the list that stands under a key."""
        return [Part(values, self.file, f"{self.name(key)}[{i}]")
                for i, values in enumerate(self.typed(key, list))]

    def finish(self):
        """Refuse a key that has not been taken: it may say something that changes an id."""
        for key in self.values:
            if key not in self._taken:
                self.refuse(key, "no such key")
