"""llama2.c's tokenizer.bin, read into a Tokenizer.

    uint32 the longest text in bytes, then for every id: float32 score, uint32 length, the text

All little-endian.  Ids 0, 1, 2 are the unknown token and the marks of a text's beginning and end,
3 to 258 the bytes.  Two tokens are joined where their texts make a third; the one with the highest
score is made first.  Every text that is not empty gets a space before it.

    tokenizer_from_bin    the bytes of a file -> Tokenizer

>>> texts = [b"<unk>", b"\\n<s>\\n", b"\\n</s>\\n"] + [b"<0x%02X>" % byte for byte in range(256)]
>>> texts += [b" ", b"h", b"i", b" h", b" hi"]
>>> data = pack("<I", 7) + b"".join([pack("<fI", -id, len(text)) + text
...                                  for id, text in enumerate(texts)])
>>> tokenizer = tokenizer_from_bin(data, "tokenizer.bin")
>>> tokenizer.encode("hi!"), tokenizer.decode([1, 263, 36], skip_special=True)
([1, 263, 36], 'hi!')
"""
from math import isfinite
from struct import pack, unpack_from

from ..strict_json import brief
from .bpe import BPE
from .decoding import PiecesDecoder, byte_of
from .parts import MAX_IDS
from .splitting import Prepend
from .tokenizer import AddedToken, Tokenizer

__all__ = ["tokenizer_from_bin"]

BOS, N_SPECIAL = 1, 3
MAX_LENGTH = 256            # of a text, in bytes; the longest of Llama 2's has 27


def tokenizer_from_bin(data, file):
    """The Tokenizer of a tokenizer.bin's bytes; `file` names it in messages.

    As in llama2.c, no text becomes a mark; with parse_special <s> and </s> do, which is how the
    marks are written in the file, between two newlines.  ValueError where data is no such file.

    >>> tokenizer_from_bin(b"\\x05", "tokenizer.bin")
    Traceback (most recent call last):
    ValueError: tokenizer.bin: 1 bytes are no tokenizer.bin: it ends within the header
    """
    texts, scores = _read(data, file)
    if [byte_of(text) for text in texts[N_SPECIAL:N_SPECIAL + 256]] != list(range(256)):
        raise ValueError(f"{file}: ids {N_SPECIAL} to {N_SPECIAL + 255} are not the bytes, "
                         "<0x00> to <0xFF>")
    special = [AddedToken(texts[token].strip("\n"), token, special=True)
               for token in range(N_SPECIAL)]
    for mark in special:
        texts[mark.id] = mark.text
    vocabulary = {text: token for token, text in enumerate(texts)}
    if len(vocabulary) < len(texts) or "" in vocabulary:
        raise ValueError(f"{file}: a text is empty, or stands twice")
    model = BPE(vocabulary, _merges(vocabulary, scores), set(range(N_SPECIAL)),
                {byte: N_SPECIAL + byte for byte in range(256)})
    return Tokenizer(dict(enumerate(texts)), model, special,
                     PiecesDecoder(byte_tokens=True, strip=(" ", 1)), [Prepend(" ")], before=[BOS])


def _read(data, file):
    """(texts, scores), lists by id."""
    if len(data) < 4:
        raise ValueError(f"{file}: {len(data)} bytes are no tokenizer.bin: "
                         "it ends within the header")
    longest, = unpack_from("<I", data)
    if longest > MAX_LENGTH:
        raise ValueError(f"{file}: the longest text has {longest} bytes; "
                         f"at most {MAX_LENGTH} are read")
    texts, scores, at = [], [], 4
    while at < len(data):
        where = f"{file}: id {len(texts)}, at byte {at},"
        if len(texts) == MAX_IDS:
            raise ValueError(f"{where} is one too many; at most {MAX_IDS} are read")
        if len(data) - at < 8:
            raise ValueError(f"{where} is cut short")
        score, length = unpack_from("<fI", data, at)
        if not isfinite(score) or length > longest or length > len(data) - at - 8:
            raise ValueError(f"{where} has the score {score} and a text of {length} bytes; "
                             f"expected a finite one and at most {longest}, the longest text, "
                             f"and {len(data) - at - 8}, the rest of the file")
        text, at = data[at + 8:at + 8 + length], at + 8 + length
        try:
            texts.append(text.decode("utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"{where} is {brief(text)}, which is no UTF-8") from None
        scores.append(score)
    return texts, scores


def _merges(vocabulary, scores):
    """The dict (left, right) -> (rank, joined): every way of making a text of two others."""
    merges = {}
    for text, token in vocabulary.items():
        for middle in range(1, len(text)):
            left, right = vocabulary.get(text[:middle]), vocabulary.get(text[middle:])
            if left is not None and right is not None:
                merges[left, right] = -scores[token], token
    return merges
