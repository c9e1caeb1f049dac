"""From tokens back to a text: all at once, or as they come.

    BytesDecoder     tokens are bytes, each written as a character: GPT-2, Llama 3, Qwen
    PiecesDecoder    tokens are texts with a mark for the space, or bytes: Llama 2, Gemma
    byte_of          the byte that a token like <0x0A> is

Both have three methods, and take tokens as the vocabulary writes them:

    token_bytes(token)           the bytes of a token in the midst of a text
    text(tokens, continues)      the text of tokens
    stream(tokens, continues)    the same in pieces, each as soon as it is known

Bytes that are no UTF-8 become U+FFFD.  Where the beginning of a text has a space put before it,
decoding takes it away; continues says that the tokens go on a text, and keeps their first space.

>>> decoder = PiecesDecoder([("_", " ")], byte_tokens=True, strip=(" ", 1))
>>> decoder.text(["_two", "_bits", "<0xC3>", "<0xA9>"], continues=False)
'two bitsé'
>>> list(decoder.stream(["_two", "_bits", "<0xC3>", "<0xA9>"], continues=True))
[' two', ' bits', '', 'é', '']
"""
import re
from codecs import utf_8_decode
from itertools import groupby

from .splitting import BYTE_CHARACTERS

__all__ = ["byte_of", "BytesDecoder", "PiecesDecoder"]

UNKNOWN = "\ufffd"
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def byte_of(token):
    """The byte that a token like <0x0A> is, None for any other.

    >>> byte_of("<0x0A>"), byte_of("<0x0A"), byte_of("x")
    (10, None, None)
    """
    found = BYTE_TOKEN.fullmatch(token)
    return int(found.group(1), 16) if found else None


class BytesDecoder:
    """A token is the bytes that its characters stand for; one with any other character, as an
    added token may have, is its UTF-8.

    >>> BytesDecoder().text(["Ġna", "Ã", "¯", "ve"], continues=False)
    ' naïve'
    """

    def token_bytes(self, token):
        r"""The bytes of a token.

        >>> BytesDecoder().token_bytes("ĠÃ"), BytesDecoder().token_bytes("<｜eos｜>")[:4]
        (b' \xc3', b'<\xef\xbd\x9c')
        """
        if all([character in BYTES for character in token]):
            return bytes([BYTES[character] for character in token])
        return token.encode("utf-8")

    def text(self, tokens, continues):
        """The text of tokens.  continues changes nothing: no space was put before the text.

        >>> BytesDecoder().text(["Ġa", "Ã"], continues=False)
        ' a�'
        """
        return b"".join([self.token_bytes(token) for token in tokens]).decode("utf-8", "replace")

    def stream(self, tokens, continues):
        """Yield what each token completes, and what is left at last.

        >>> list(BytesDecoder().stream(["Ġa", "Ã", "¯"], continues=False))
        [' a', '', 'ï', '']
        """
        held = b""
        for token in tokens:
            held += self.token_bytes(token)
            text, used = utf_8_decode(held, "replace", False)
            held = held[used:]
            yield text
        yield held.decode("utf-8", "replace")


class PiecesDecoder:
    """replacements, pairs (old, new) made in every token.

    byte_tokens    whether tokens like <0x0A> are bytes
    strip          (character, n): at most n of this character go from the beginning of a text
    first_mark     a character that goes from the first token, as often as it is there, or ""
    """

    def __init__(self, replacements=(), byte_tokens=False, strip=("", 0), first_mark=""):
        self.replacements, self.byte_tokens = list(replacements), byte_tokens
        self.strip, self.first_mark = strip, first_mark

    def token_bytes(self, token):
        """The bytes of a token in the midst of a text.

        >>> decoder = PiecesDecoder([("_", " ")], byte_tokens=True, strip=(" ", 1))
        >>> decoder.token_bytes("_a"), decoder.token_bytes("<0x0A>")
        (b' a', b'\\n')
        """
        text, byte = self._read(token)
        return text.encode("utf-8") if byte is None else bytes([byte])

    def text(self, tokens, continues):
        """The text of tokens.  Where bytes side by side are no UTF-8, each of them is U+FFFD.

        >>> decoder = PiecesDecoder([("_", " ")], byte_tokens=True, strip=(" ", 1))
        >>> decoder.text(["_a", "_b"], continues=False), decoder.text(["_b"], continues=True)
        ('a b', ' b')
        >>> decoder.text(["<0xC3>", "a", "<0xC3>", "<0xA9>"], continues=False)
        '�aé'
        """
        found = []
        for is_text, group in groupby(self._all(tokens, continues), lambda pair: pair[1] is None):
            if is_text:
                found += [text for text, _ in group]
            else:
                found.append(_decoded(bytes([byte for _, byte in group])))
        return self._stripped("".join(found), 0 if continues else self.strip[1])[0]

    def stream(self, tokens, continues):
        """Yield what each token completes, and what is left at last.

        The pieces make up what text gives, but for one case: of bytes side by side that are no
        UTF-8, a stream has shown whole characters before it meets the broken one.

        >>> decoder = PiecesDecoder([], byte_tokens=True)
        >>> list(decoder.stream(["<0xC3>", "<0xA9>", "<0xA9>", "a"], continues=False))
        ['', 'é', '�', 'a', '']
        >>> decoder.text(["<0xC3>", "<0xA9>", "<0xA9>", "a"], continues=False)
        '���a'
        """
        left = 0 if continues else self.strip[1]
        held, broken = b"", False
        for text, byte in self._all(tokens, continues):
            if byte is None:
                text, held, broken = _decoded(held) + text, b"", False
            else:
                text, held, broken = _next_byte(held, byte, broken)
            text, left = self._stripped(text, left)
            yield text
        yield self._stripped(_decoded(held), left)[0]

    def _all(self, tokens, continues):
        """The pairs (text, byte) of tokens in their order, the first mark gone from the first."""
        for i, token in enumerate(tokens):
            at_first = i == 0 and not continues and self.first_mark
            yield self._read(token.replace(self.first_mark, "") if at_first else token)

    def _read(self, token):
        """(text, None) of a token, or ("", byte)."""
        for old, new in self.replacements:
            token = token.replace(old, new)
        byte = byte_of(token) if self.byte_tokens else None
        return (token, None) if byte is None else ("", byte)

    def _stripped(self, text, left):
        """A text without at most `left` of what is to go, and how many may go from the next."""
        gone = 0
        while gone < left and text[gone:gone + 1] == self.strip[0]:
            gone += 1
        return text[gone:], left - gone if gone == len(text) else 0


def _decoded(data):
    """Bytes as a text, or as many U+FFFD where they are no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return UNKNOWN * len(data)


def _next_byte(held, byte, broken):
    """(text, held, broken) after one more byte of those side by side; held are the bytes of a
    character that is not complete.  After a broken one there is no telling where any begins."""
    if broken:
        return UNKNOWN, b"", True
    held += bytes([byte])
    try:
        text, used = utf_8_decode(held, "strict", False)
    except UnicodeDecodeError:
        return UNKNOWN * len(held), b"", True
    return text, held[used:], False
