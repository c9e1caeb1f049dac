r"""What happens to a text before its pieces are encoded: it is normalized, then split.

    Prepend, Replace, Form           normalizers: normalize(text) -> text
    ByteLevel, Pattern, Digits,
    AtMark, Metaspace                splitters: split(text, first) -> pieces; first says whether
                                     the text is the beginning of the whole
    normalized, pieces               several in turn
    is_white, kinds                  White_Space, and a text with the kind of each character
    PATTERNS                         the published patterns that Pattern knows

The patterns are written for a regular expression engine that knows Unicode's categories, \p{L} for
letters and \p{N} for numbers, which Python's re does not.  Here re reads another text, as long as
the first, in which each character beyond ASCII is replaced by one of its kind: Z for a letter, 0
for a number, a tab for white space, ~ for what is none of them.

>>> kinds("naïve ½\u3000→")
'naZve 0\t~'
>>> Pattern(PATTERNS["GPT-2"]).split("naïve ½\u3000→", first=True)
['naïve', ' ½', '\u3000', '→']
"""
import re
import unicodedata
from collections import namedtuple

__all__ = ["is_white", "kinds", "PATTERNS", "BYTE_CHARACTERS", "Prepend", "Replace", "Form",
           "ByteLevel", "Pattern", "Digits", "AtMark", "Metaspace", "normalized", "pieces"]


# ---- kinds of characters ----

def is_white(character):
    r"""Whether a character is White_Space; of U+001C to U+001F only str.isspace says so.

    >>> is_white(" "), is_white("\u2029"), "\x1c".isspace(), is_white("\x1c")
    (True, True, True, False)
    """
    return character.isspace() and not "\x1c" <= character <= "\x1f"


class _Kinds(dict):
    """A table for str.translate that is filled as characters are met."""

    def __missing__(self, code):
        character = chr(code)
        if code < 128:
            kind = character
        elif character == "ſ":
            kind = "S"                  # (?i:'s) takes it for an s, which it is: a long one
        elif character.isalpha():
            kind = "Z"                  # no Z is in any of the patterns
        elif unicodedata.category(character).startswith("N"):
            kind = "0"
        else:
            kind = "\t" if is_white(character) else "~"
        self[code] = kind
        return kind


_KINDS = _Kinds()


def kinds(text):
    """A text as long as the given one, with a character of the same kind for each beyond ASCII.

    >>> kinds("x² + ß"), kinds("5 €")
    ('x0 + Z', '5 ~')
    """
    return text.translate(_KINDS)


# ---- normalizers ----

class Prepend(namedtuple("Prepend", ("prefix",))):
    """Put a prefix before a text that is not empty.

    >>> Prepend("_").normalize("a"), Prepend("_").normalize("")
    ('_a', '')
    """

    def normalize(self, text):
        return self.prefix + text if text else text


class Replace(namedtuple("Replace", ("old", "new"))):
    """Put `new` in every place of `old`.

    >>> Replace(" ", "_").normalize("a  b")
    'a__b'
    """

    def normalize(self, text):
        return text.replace(self.old, self.new)


class Form(namedtuple("Form", ("name",))):
    """One of Unicode's normal forms: NFC, NFD, NFKC, NFKD.

    >>> len("e\u0301"), len(Form("NFC").normalize("e\u0301"))
    (2, 1)
    """

    def normalize(self, text):
        return unicodedata.normalize(self.name, text)


def normalized(text, normalizers):
    """The text after each of the normalizers in turn.

    >>> normalized("a b", [Prepend(" "), Replace(" ", "_")])
    '_a_b'
    """
    for normalizer in normalizers:
        text = normalizer.normalize(text)
    return text


# ---- splitters ----

# Bytes that are no printing characters of Latin-1, 68 of them, are written as U+0100 and so on.
_PRINTING = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTING]
BYTE_CHARACTERS = "".join([chr(byte if byte in _PRINTING else 256 + _OTHERS.index(byte))
                           for byte in range(256)])

PATTERNS = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}


def _matches(pattern, text):
    """What a pattern, published or of Digits, matches; re reads it in a text of kinds."""
    of_kinds = pattern.replace(r"\p{L}\p{N}", "A-Za-z0-9")                 # within brackets
    of_kinds = of_kinds.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    return [text[match.start():match.end()]
            for match in re.finditer(of_kinds, kinds(text), re.ASCII)]


class Pattern(namedtuple("Pattern", ("published",))):
    """Every match of a published pattern is a piece.  Each of them matches some way at every
    character, so nothing is left out.

    >>> Pattern(PATTERNS["Llama 3"]).split("It's 12345!\\n\\n go", first=True)
    ['It', "'s", ' ', '123', '45', '!\\n\\n', ' go']
    """

    def split(self, text, first):
        return _matches(self.published, text)


class Digits(namedtuple("Digits", ("individually",))):
    """Numbers stand apart from all else, and each digit alone where that is asked for.

    >>> Digits(False).split("a12 b", first=True), Digits(True).split("a12 b", first=True)
    (['a', '12', ' b'], ['a', '1', '2', ' b'])
    """

    def split(self, text, first):
        return _matches("[0-9]|[^0-9]+" if self.individually else "[0-9]+|[^0-9]+", text)


class ByteLevel(namedtuple("ByteLevel", ("add_space", "use_pattern"))):
    """Pieces of GPT-2's pattern, or the text as it is, and each as its bytes: a character stands
    for a byte.  add_space puts a space before a text that has none.

    >>> ByteLevel(add_space=False, use_pattern=True).split("Où est-il?", first=True)
    ['OÃ¹', 'Ġest', '-', 'il', '?']
    """

    def split(self, text, first):
        if self.add_space and not text.startswith(" "):
            text = " " + text
        found = _matches(PATTERNS["GPT-2"], text) if self.use_pattern else [text]
        return [piece.encode("utf-8").decode("latin-1").translate(BYTE_CHARACTERS)
                for piece in found]


class AtMark(namedtuple("AtMark", ("mark", "side"))):
    """Split at every mark, which stays at the end of the piece before ("before"), at the
    beginning of the one behind ("behind"), or alone ("alone").

    >>> for side in ("before", "behind", "alone"):
    ...     AtMark("_", side).split("a__b", first=True)
    ['a_', '_', 'b']
    ['a', '_', '_b']
    ['a', '_', '_', 'b']
    """

    def split(self, text, first):
        parts, mark = text.split(self.mark), self.mark
        if self.side == "before":
            found = [part + mark for part in parts[:-1]] + parts[-1:]
        elif self.side == "behind":
            found = parts[:1] + [mark + part for part in parts[1:]]
        else:
            found = parts[:1]
            for part in parts[1:]:
                found += [mark, part]
        return [piece for piece in found if piece]


class Metaspace(namedtuple("Metaspace", ("mark", "prepend", "split_at_mark"))):
    """A mark in place of every space, and one before the text unless it begins so: before every
    text ("always"), the beginning of the whole ("first") or none ("never").

    >>> Metaspace("_", "first", split_at_mark=True).split("a b", first=True)
    ['_a', '_b']
    >>> Metaspace("_", "first", split_at_mark=False).split("a b", first=False)
    ['a_b']
    """

    def split(self, text, first):
        text = text.replace(" ", self.mark)
        wanted = self.prepend == "always" or self.prepend == "first" and first
        if wanted and not text.startswith(self.mark):
            text = self.mark + text
        return AtMark(self.mark, "behind").split(text, first) if self.split_at_mark else [text]


def pieces(text, splitters, first):
    """The pieces of a text after each of the splitters in turn.

    >>> pieces("a1 b", [Digits(True), ByteLevel(False, True)], first=True)
    ['a', '1', 'Ġb']
    """
    found = [text]
    for splitter in splitters:
        found = [part for i, piece in enumerate(found)
                 for part in splitter.split(piece, first and i == 0)]
    return found
