"""The tokenizer: a text to ids and back, by the parts that a file names.

    AddedToken           a text that is a token wherever it stands
    Finder               where such texts stand in a text
    Tokenizer            encode, decode, decode_stream, token_bytes; tokens, n_tokens
    example_tokenizer    one of bytes, for examples

From a text to ids: added tokens are found, what lies between is normalized and split, each piece
is encoded by the model, and the tokens that the model expects around a text are put there.

>>> from pyres.files.tokenizers.decoding import PiecesDecoder
>>> texts = dict(enumerate(["<s>", "a", "b", "ab", "<", "s", ">"]))
>>> vocabulary = {text: token for token, text in texts.items()}
>>> model = BPE(vocabulary, merges={(1, 2): (0, 3)}, special={0})
>>> tokenizer = Tokenizer(texts, model, [AddedToken("<s>", 0, special=True)], PiecesDecoder(),
...                       before=[0])
>>> tokenizer.encode("aba"), tokenizer.encode("aba", special=False)
([0, 3, 1], [3, 1])
>>> tokenizer.encode("<s>", special=False), tokenizer.encode("<s>", False, parse_special=True)
([4, 5, 6], [0])
"""
import re
from collections import namedtuple

from .bpe import BPE
from .decoding import BytesDecoder
from .splitting import BYTE_CHARACTERS, ByteLevel, is_white, normalized, pieces

__all__ = ["AddedToken", "Finder", "Tokenizer", "example_tokenizer"]


class AddedToken(namedtuple("AddedToken",
                            ("text", "id", "special", "normalized", "lstrip", "rstrip"),
                            defaults=(False, False, False))):
    """text, id; special: only found where that is asked for, and left out where that is.

    normalized        found in the normalized text; then so is its own text
    lstrip, rstrip    white space on the left or right of it goes with it
    """


class Finder:
    """Finds added tokens in a text: the leftmost, of those that begin together the longest.

    >>> Finder([AddedToken("<a>", 7, True), AddedToken("<a><a>", 8, True)]).split("x<a><a><a>y")
    [('x', None), ('', 8), ('', 7), ('y', None)]
    """

    def __init__(self, added):
        self._added = {token.text: token for token in added}
        lengths = {}
        for text in self._added:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(some, reverse=True) for first, some in lengths.items()}
        first = "".join([re.escape(character) for character in self._lengths])
        self._first = re.compile(f"[{first}]") if first else None

    def split(self, text):
        """A text in parts: pairs (text, None), none of them empty, and ("", id).

        >>> Finder([AddedToken("<a>", 7, True, rstrip=True)]).split("<a>  b c")
        [('', 7), ('b c', None)]
        """
        parts, begin, at = [], 0, 0
        while self._first:
            candidate = self._first.search(text, at)
            if candidate is None:
                break
            at = candidate.start()
            token = self._token_at(text, at)
            if token is None:
                at += 1
                continue
            end, at = at, at + len(token.text)
            while token.lstrip and end > begin and is_white(text[end - 1]):
                end -= 1
            while token.rstrip and at < len(text) and is_white(text[at]):
                at += 1
            if begin < end:
                parts.append((text[begin:end], None))
            parts.append(("", token.id))
            begin = at
        return parts + [(text[begin:], None)] if begin < len(text) else parts

    def _token_at(self, text, at):
        for length in self._lengths[text[at]]:
            if text[at:at + length] in self._added:
                return self._added[text[at:at + length]]
        return None


class Tokenizer:
    """A tokenizer of the parts that `load` found; see docs/tokenizers.md for its use.

    texts           a dict from id to text, as the file writes it
    model           what has encode(piece) -> ids
    added           AddedTokens
    decoder         a BytesDecoder or PiecesDecoder
    normalizers, splitters    of .splitting, in their order
    before, after   ids that special puts around a text

    It has two fields: tokens, a list of the texts as the vocabulary writes them, None where there
    is no such id, and n_tokens, its length.  A model's d_vocab may be larger, not smaller.
    """

    def __init__(self, texts, model, added, decoder, normalizers=(), splitters=(),
                 before=(), after=()):
        self.n_tokens = max(texts) + 1 if texts else 0
        self.tokens = [texts.get(token) for token in range(self.n_tokens)]
        for token in added:
            self.tokens[token.id] = token.text
        self._special = {token.id for token in added if token.special}
        self._model, self._decoder = model, decoder
        self._normalizers, self._splitters = list(normalizers), list(splitters)
        self._before, self._after = list(before), list(after)
        # by parse_special, and by whether they are found in the normalized text
        self._finders = [[Finder([token for token in added if token.normalized == in_normalized
                                  and (parse_special or not token.special)])
                          for in_normalized in (False, True)] for parse_special in (False, True)]

    def encode(self, text, special=True, parse_special=False):
        """The ids of a text.

        special puts the tokens around it that the model expects, such as BOS; parse_special lets
        the text of a special token be that token.  Added tokens that are not special are found
        either way.  TypeError for what is no text, ValueError where a character cannot be encoded.

        >>> tokenizer = example_tokenizer()
        >>> tokenizer.encode("aé"), tokenizer.encode("")
        ([1, 97, 195, 169], [1])
        >>> tokenizer.encode("\\ud83d")
        Traceback (most recent call last):
        ValueError: encode: half of a surrogate pair at 0; it is no character
        """
        if not isinstance(text, str):
            raise TypeError(f"encode: expected a text, got {type(text).__name__}")
        half = re.search("[\ud800-\udfff]", text)
        if half:
            raise ValueError(f"encode: half of a surrogate pair at {half.start()}; "
                             "it is no character")
        ids = list(self._before) if special else []
        for i, (part, token) in enumerate(self._parts(text, parse_special)):
            if token is not None:
                ids.append(token)
                continue
            for piece in pieces(part, self._splitters, first=i == 0):
                ids += self._model.encode(piece)
        return ids + self._after if special else ids

    def _parts(self, text, parse_special):
        """The normalized text in parts: pairs (text, None), and ("", id) for added tokens."""
        as_it_is, in_normalized = self._finders[bool(parse_special)]
        for part, token in as_it_is.split(text):
            if token is None:
                yield from in_normalized.split(normalized(part, self._normalizers))
            else:
                yield part, token

    def decode(self, ids, skip_special=False, continues=False):
        """The text of ids.

        skip_special leaves special tokens out.  continues says that the ids go on a text: then a
        space before the first word stays, which is taken away at the beginning of a text where the
        tokenizer put one.  Bytes that are no UTF-8 become U+FFFD.  ValueError for an id that is
        none.

        >>> tokenizer = example_tokenizer()
        >>> tokenizer.decode([1, 97, 195, 169]), tokenizer.decode([1, 97], skip_special=True)
        ('<s>aé', 'a')
        """
        return self._decoder.text(list(self._texts(ids, skip_special)), continues)

    def decode_stream(self, ids, skip_special=False, continues=False):
        """Yield the text of ids in pieces, each as soon as it is known; ids may still be coming.

        A character of several tokens is held back until it is complete.  Joined, the pieces are
        decode's text, but for what PiecesDecoder.stream says of broken bytes.

        >>> list(example_tokenizer().decode_stream(iter([97, 195, 169, 98])))
        ['a', 'é', 'b']
        """
        for text in self._decoder.stream(self._texts(ids, skip_special), continues):
            if text:
                yield text

    def _texts(self, ids, skip_special):
        for token in ids:
            text = self._text_of("decode", token)
            if not (skip_special and token in self._special):
                yield text

    def token_bytes(self, token):
        """The bytes of one token in the midst of a text; ValueError where it is none.

        >>> example_tokenizer().token_bytes(195)
        b'\\xc3'
        """
        return self._decoder.token_bytes(self._text_of("token_bytes", token))

    def _text_of(self, function, token):
        known = type(token) is int and 0 <= token < self.n_tokens
        if not known or self.tokens[token] is None:
            raise ValueError(f"{function}: {token!r} is none of the {self.n_tokens} ids")
        return self.tokens[token]


def example_tokenizer():
    """A tokenizer whose ids are bytes; in place of byte 1 stands <s>, the beginning of a text.

    >>> example_tokenizer().encode("ab")
    [1, 97, 98]
    """
    texts = dict(enumerate(BYTE_CHARACTERS))
    texts[1] = "<s>"
    model = BPE({text: token for token, text in texts.items()}, {}, special={1})
    return Tokenizer(texts, model, [AddedToken("<s>", 1, special=True)], BytesDecoder(),
                     splitters=[ByteLevel(False, False)], before=[1])
