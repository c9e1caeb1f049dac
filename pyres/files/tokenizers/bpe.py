"""Byte-pair encoding: a piece of text is cut into characters, and known pairs are joined again.

Of all pairs that stand side by side, the one of lowest rank is joined first, the leftmost of
equals, until no known pair is left (Sennrich, Haddow and Birch 2016, who took it from Gage 1994).

    merge    ids, and which pairs of them are known -> fewer ids
    BPE      a vocabulary, its pairs, and what becomes of a character that it does not have

>>> vocabulary = {"a": 0, "b": 1, "c": 2, "bc": 3, "abc": 4}
>>> model = BPE(vocabulary, merges={(1, 2): (0, 3), (0, 3): (1, 4)})
>>> model.encode("abcba")
[4, 1, 0]
"""
from heapq import heapify, heappop, heappush

__all__ = ["merge", "BPE"]


def merge(ids, merges):
    """The ids after every merge that applies; merges is a dict (left, right) -> (rank, joined).

    Time is n log n for n ids: pairs wait in a heap, and what a join leaves behind is a linked
    list.  A pair whose parts were joined to others while it waited is passed over.

    >>> merge([0, 1, 2, 0, 1], {(0, 1): (0, 3), (3, 2): (1, 4)})
    [4, 3]
    >>> merge([7, 7, 7], {(7, 7): (0, 8)})              # the leftmost of equals
    [8, 7]
    """
    n = len(ids)
    # None, which no pair has, stands behind the last id: tokens[n], and tokens[-1] as well.
    tokens = list(ids) + [None]
    before, after = list(range(-1, n)), list(range(1, n + 1)) + [n]
    waiting = [(merges[pair][0], at, pair) for at, pair in enumerate(zip(ids, ids[1:]))
               if pair in merges]
    heapify(waiting)
    while waiting:
        _, at, pair = heappop(waiting)
        other = after[at]
        if (tokens[at], tokens[other]) != pair:
            continue
        tokens[at], tokens[other] = merges[pair][1], None
        after[at] = after[other]
        before[after[at]] = at
        for first in (before[at], at):
            pair = tokens[first], tokens[after[first]]
            if pair in merges:
                heappush(waiting, (merges[pair][0], first, pair))
    return [token for token in tokens if token is not None]


class BPE:
    """vocabulary, a dict from text to id, and merges, a dict (left, right) -> (rank, joined).

    special          ids that no text becomes here: neither a character nor a merge makes one
    byte_tokens      the ids of the 256 bytes, for the UTF-8 of what is not in the vocabulary
    unknown          without byte_tokens the id for that; where both are None, encode raises
    fuse_unknown     unknown characters side by side become one such id
    whole_first      a piece that is in the vocabulary is that token, whatever the merges say

    Equal pieces are encoded once and remembered, up to a bound.

    >>> BPE({"a": 0, "<unk>": 1}, {}, special={1}, unknown=1, fuse_unknown=True).encode("a??a")
    [0, 1, 0]
    """

    # English has some ten thousand words; a longer piece is hardly met again.
    REMEMBERED, LONGEST = 20_000, 256

    def __init__(self, vocabulary, merges, special=(), byte_tokens=None, unknown=None,
                 fuse_unknown=False, whole_first=False):
        # "<s>" in a text may look like the token; it is one only where the tokenizer says so.
        self.known = {text: token for text, token in vocabulary.items() if token not in special}
        self.merges = {pair: joined for pair, joined in merges.items()
                       if joined[1] not in special}
        self.byte_tokens, self.unknown = byte_tokens, unknown
        self.fuse_unknown, self.whole_first = fuse_unknown, whole_first
        self._remembered = {}

    def encode(self, piece):
        """The ids of a piece, which no merge reaches beyond.

        Raises ValueError for a character that has neither an id nor bytes, where there is no id
        for unknown ones.

        >>> model = BPE({"a": 0, "b": 1, "ab": 2}, {})
        >>> model.encode("abba")
        [0, 1, 1, 0]
        >>> BPE({"a": 0, "b": 1, "ab": 2}, {}, whole_first=True).encode("ab")
        [2]
        >>> model.encode("abc")
        Traceback (most recent call last):
        ValueError: encode: 'c' is not in the vocabulary, which has no token for what is unknown
        """
        ids = self._remembered.get(piece)
        if ids is None:
            ids = self._encode(piece)
            if len(piece) <= self.LONGEST:
                if len(self._remembered) >= self.REMEMBERED:
                    self._remembered.clear()
                self._remembered[piece] = ids
        return list(ids)

    def _encode(self, piece):
        if self.whole_first and piece in self.known:
            return [self.known[piece]]
        ids, fusing = [], False
        for character in piece:
            found = self._of_character(character)
            if found:
                ids.extend(found)
            elif not fusing:
                ids.append(self.unknown)
            fusing = self.fuse_unknown and not found
        return merge(ids, self.merges)

    def _of_character(self, character):
        """The ids of a character, none for an unknown one."""
        if character in self.known:
            return [self.known[character]]
        if self.byte_tokens is not None:
            return [self.byte_tokens[byte] for byte in character.encode("utf-8")]
        if self.unknown is None:
            raise ValueError(f"encode: {character!r} is not in the vocabulary, "
                             "which has no token for what is unknown")
        return []
