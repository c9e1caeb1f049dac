"""tokenizer.json, read into a Tokenizer.

Nothing is filled in and nothing is ignored that could change an id: what is not understood is
refused, with ValueError naming the file, the key and the rule.

    tokenizer_from_json    the values of a tokenizer.json -> Tokenizer

>>> values = {"version": "1.0", "decoder": {"type": "Fuse"},
...           "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}
>>> tokenizer_from_json(values, "tokenizer.json").encode("abba")
[2, 1, 0]
>>> tokenizer_from_json(dict(values, normalizer={"type": "Lowercase"}), "tokenizer.json")
Traceback (most recent call last):
ValueError: tokenizer.json: normalizer.type is 'Lowercase'; expected one of Sequence, Prepend, \
Replace, NFC, NFD, NFKC, NFKD
"""
from collections import Counter

from ..strict_json import brief
from .bpe import BPE
from .decoding import BytesDecoder, PiecesDecoder
from .parts import Part
from .splitting import (PATTERNS, AtMark, ByteLevel, Digits, Form, Metaspace, Pattern, Prepend,
                        Replace, normalized)
from .tokenizer import AddedToken, Tokenizer

__all__ = ["tokenizer_from_json"]


# ---- parts of one kind ----

MAX_STEPS = 64


def _steps(part, readers, key):
    """What the readers make of a part by its type, in a list: a Sequence has several parts, in
    a list under the key."""
    kind = part.one_of("type", ["Sequence", *readers])
    if kind == "Sequence":
        found = [step for inner in part.inners(key) for step in _steps(inner, readers, key)]
    else:
        found = [readers[kind](part)]
    if len(found) > MAX_STEPS:
        part.refuse(key, f"at most {MAX_STEPS} parts")
    part.finish()
    return found


def _optional_steps(root, name, readers, key):
    """The steps of a part of the whole file; null or absent has none."""
    return [] if root.take(name, None) is None else _steps(root.inner(name), readers, key)


# ---- normalizer ----

def _string(part):
    """The text that a part looks for; a regular expression is refused."""
    pattern = part.inner("pattern")
    if "Regex" in pattern.values:
        pattern.refuse("Regex", "a String: regular expressions are read in Split alone, and those "
                       "alone that were published with " + ", ".join(PATTERNS))
    text = pattern.some_text("String")
    pattern.finish()
    return text


def _replacement(part):
    """(old, new).  A text that grew with every Replace of a Sequence would have no bounds."""
    old, new = _string(part), part.typed("content", str)
    if len(new) > len(old):
        part.refuse("content", f"a text no longer than {brief(old)}, which it replaces")
    return old, new


NORMALIZERS = {
    "Prepend": lambda part: Prepend(part.typed("prepend", str)),
    "Replace": lambda part: Replace(*_replacement(part)),
    "NFC": lambda part: Form("NFC"),
    "NFD": lambda part: Form("NFD"),
    "NFKC": lambda part: Form("NFKC"),
    "NFKD": lambda part: Form("NFKD")}


# ---- pre_tokenizer ----

def _byte_level(part):
    part.take("trim_offsets", None)             # about places in the text, which are not kept
    return ByteLevel(part.typed("add_prefix_space", bool), part.typed("use_regex", bool, True))


SIDES = {"MergedWithPrevious": "before", "MergedWithNext": "behind", "Isolated": "alone"}


def _split(part):
    pattern, behavior = part.inner("pattern"), part.typed("behavior", str)
    if "Regex" not in pattern.values:
        part.must_be("invert", False)
        return AtMark(_string(part), SIDES[part.one_of("behavior", SIDES)])
    if pattern.typed("Regex", str) not in PATTERNS.values():
        pattern.refuse("Regex", "one that was published with " + ", ".join(PATTERNS))
    pattern.finish()
    # These patterns leave nothing out.  So to keep what they match and to remove what lies
    # between are the same.
    inverted = part.typed("invert", bool)
    if (behavior, inverted) not in (("Isolated", False), ("Isolated", True), ("Removed", True)):
        part.refuse("behavior", "Isolated, or Removed and invert")
    return Pattern(pattern.values["Regex"])


def _metaspace_rule(part):
    """(mark, prepend); in older files add_prefix_space says always or never."""
    mark = part.character("replacement")
    part.must_be("str_rep", None, mark)
    space = part.typed("add_prefix_space", bool, None)
    prepend = part.one_of("prepend_scheme", ("always", "first", "never"),
                          "never" if space is False else "always")
    if space is not None and space != (prepend != "never"):
        part.refuse("add_prefix_space", f"what prepend_scheme says, which is {prepend}")
    return mark, prepend


def _metaspace(part):
    mark, prepend = _metaspace_rule(part)
    return Metaspace(mark, prepend, part.typed("split", bool, True))


SPLITTERS = {
    "ByteLevel": _byte_level,
    "Split": _split,
    "Digits": lambda part: Digits(part.typed("individual_digits", bool)),
    "Metaspace": _metaspace}


def _splitters(root):
    found = _optional_steps(root, "pre_tokenizer", SPLITTERS, "pretokenizers")
    if [type(splitter) for splitter in found].count(ByteLevel) > 1:
        raise ValueError(f"{root.file}: pre_tokenizer writes bytes as characters twice; expected "
                         "one ByteLevel at most")
    return found


# ---- decoder ----

def _metaspace_decoder(part):
    mark, prepend = _metaspace_rule(part)
    part.take("split", None)                    # says nothing about decoding
    return PiecesDecoder([(mark, " ")], first_mark="" if prepend == "never" else mark)


def _only_named(part):
    """Take what a ByteLevel has besides its type, and what means nothing but before the model."""
    for key in ("add_prefix_space", "trim_offsets", "use_regex"):
        part.take(key, None)


def _strip(part):
    if part.typed("start", int) < 0:
        part.refuse("start", "a whole number of at least 0")
    if part.typed("stop", int) != 0:
        part.refuse("stop", "0")
    return part.character("content"), part.values["start"]


def _named(name, reader):
    return lambda part: (name, reader(part))


DECODERS = {name: _named(name, reader) for name, reader in (
    ("ByteLevel", _only_named), ("Metaspace", _metaspace_decoder), ("Replace", _replacement),
    ("ByteFallback", _only_named), ("Fuse", _only_named), ("Strip", _strip))}


def _decoder(root):
    """The decoder of bytes, or one of pieces.  The steps of the latter have one order in which
    they mean the text as a whole; any other is refused."""
    if root.take("decoder", None) is None:
        root.refuse("decoder", "an object: without a decoder, a space would go between all tokens")
    steps = _steps(root.inner("decoder"), DECODERS, "decoders")
    names = [name for name, _ in steps]
    if names == ["ByteLevel"]:
        return BytesDecoder()
    if names == ["Metaspace"]:
        return steps[0][1]
    replacements = [value for name, value in steps if name == "Replace"]
    rest = [name for name in ("ByteFallback", "Fuse", "Strip") if name in names]
    if names != ["Replace"] * len(replacements) + rest or rest[-2:] == ["ByteFallback", "Strip"] \
            or rest == ["Strip"]:
        raise ValueError(f"{root.file}: decoder has the steps {', '.join(names)}; expected "
                         "ByteLevel, or Metaspace, or Replace, ByteFallback, Fuse and Strip in "
                         "this order, Strip with Fuse only")
    return PiecesDecoder(replacements, "ByteFallback" in names, dict(steps).get("Strip", ("", 0)))


# ---- model ----

def _vocabulary(part):
    """The dict from text to id, no id twice."""
    texts = part.inner("vocab")
    for text in texts.values:
        texts.token(text)
    for token, times in Counter(texts.values.values()).most_common(1):
        if times > 1:
            raise ValueError(f"{part.file}: {texts.place} has the id {token} {times} times")
    return texts.values


def _merges(part, vocabulary):
    """The dict (left, right) -> (rank, joined), in ids; the earlier a merge, the lower its rank.
    A merge is a list of two texts, or one text with a space between the two."""
    merges = {}
    for rank, merge in enumerate(part.typed("merges", list)):
        pair = merge.split(" ") if type(merge) is str else merge
        if type(pair) is not list or [type(text) for text in pair] != [str, str]:
            _refuse_merge(part, rank, "two texts")
        for text in pair + ["".join(pair)]:
            if text not in vocabulary:
                _refuse_merge(part, rank, f"tokens of the vocabulary, and {brief(text)} is none")
        ids = vocabulary[pair[0]], vocabulary[pair[1]]
        if ids in merges:
            _refuse_merge(part, rank, f"each pair once, and merge {merges[ids][0]} is the same")
        merges[ids] = rank, vocabulary["".join(pair)]
    return merges


def _refuse_merge(part, rank, wanted):
    raise ValueError(f"{part.file}: {part.name('merges')}[{rank}] is "
                     f"{brief(part.values['merges'][rank])}; expected {wanted}")


def _bpe(part, vocabulary, special):
    """The model, given its vocabulary and the ids of special tokens."""
    part.must_be("dropout", None)
    part.must_be("continuing_subword_prefix", None, "")
    part.must_be("end_of_word_suffix", None, "")
    unknown = part.typed("unk_token", str, None)
    if unknown is not None and unknown not in vocabulary:
        part.refuse("unk_token", "a token of the vocabulary")
    fallback = part.typed("byte_fallback", bool, False)
    model = BPE(vocabulary, _merges(part, vocabulary), special,
                _byte_tokens(part, vocabulary) if fallback else None, vocabulary.get(unknown),
                part.typed("fuse_unk", bool, False), part.typed("ignore_merges", bool, False))
    part.finish()
    return model


def _byte_tokens(part, vocabulary):
    """The ids of <0x00> to <0xFF>, or None where there is none of them."""
    found = [vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
    missing = found.count(None)
    if 0 < missing < 256:
        part.refuse("byte_fallback", "false, or a vocabulary with all of <0x00> to <0xFF>; "
                    f"{missing} of them are missing")
    return None if missing else found


# ---- added tokens ----

def _added(root, vocabulary, normalizers):
    """(added, texts): the AddedTokens, none of which contradicts another or the vocabulary, and
    all texts by id."""
    added, found, ids = [], set(), dict(vocabulary)
    texts = {token: text for text, token in vocabulary.items()}
    for part in root.inners("added_tokens") if "added_tokens" in root.values else []:
        part.must_be("single_word", False)
        token = AddedToken(part.some_text("content"), part.token("id"),
                           part.typed("special", bool), part.typed("normalized", bool),
                           part.typed("lstrip", bool, False), part.typed("rstrip", bool, False))
        part.finish()
        if ids.setdefault(token.text, token.id) != token.id:
            part.refuse("id", f"{ids[token.text]}, the id that this text has elsewhere")
        if texts.setdefault(token.id, token.text) != token.text:
            part.refuse("id", f"no id of another text, and this is that of "
                        f"{brief(texts[token.id])}")
        if token.normalized:
            token = token._replace(text=normalized(token.text, normalizers))
        if not token.text or (token.text, token.normalized) in found:
            part.refuse("content", "a text that is not empty and not that of another, also once "
                        "it is normalized")
        found.add((token.text, token.normalized))
        added.append(token)
    return added, texts


# ---- post_processor ----

def _template(part):
    """(before, after): the Parts of the special tokens around a text."""
    part.take("pair", None)                     # pairs of texts are not encoded here
    special, around, n_texts = part.inner("special_tokens"), ([], []), 0
    for piece in part.inners("single"):
        if "Sequence" in piece.values:
            piece.inner("Sequence").one_of("id", ("A",))
            n_texts += 1
        else:
            name = piece.inner("SpecialToken").typed("id", str)
            around[min(n_texts, 1)].append(special.inner(name))
    if n_texts != 1:
        part.refuse("single", "the text, Sequence A, once")
    return around


POST_PROCESSORS = {"TemplateProcessing": _template, "ByteLevel": _only_named}


def _around(root, texts):
    """(before, after): the ids that special puts around a text.  texts: by id."""
    found = _optional_steps(root, "post_processor", POST_PROCESSORS, "processors")
    templates = [around for around in found if around is not None]
    if len(templates) > 1:
        raise ValueError(f"{root.file}: post_processor has {len(templates)} TemplateProcessing; "
                         "expected one at most")
    before, after = templates[0] if templates else ([], [])
    return [_template_id(part, texts) for part in before], [_template_id(part, texts)
                                                            for part in after]


def _template_id(part, texts):
    ids, tokens = part.typed("ids", list), part.typed("tokens", list)
    if [type(token) for token in ids] != [int] or [texts.get(ids[0])] != tokens:
        part.refuse("ids", f"the id of the one token of {brief(tokens)}, in a list")
    return ids[0]


# ---- the whole ----

def tokenizer_from_json(values, file):
    """The Tokenizer of a tokenizer.json's values; `file` names it in messages.

    Raises ValueError for what is not understood, or contradicts itself.

    >>> vocabulary = {"a": 0, "b": 1, "ab": 2, "<s>": 3}
    >>> mark = {"id": 3, "content": "<s>", "special": True, "normalized": False}
    >>> tokenizer = tokenizer_from_json(
    ...     {"added_tokens": [mark], "decoder": {"type": "Fuse"},
    ...      "model": {"vocab": vocabulary, "merges": ["a b"]}}, "small.json")
    >>> tokenizer.encode("ab<s>", parse_special=True), tokenizer.decode([2, 3])
    ([2, 3], 'ab<s>')
    >>> tokenizer_from_json({"model": {"vocab": vocabulary, "merges": ["a c"]}}, "small.json")
    Traceback (most recent call last):
    ValueError: small.json: model.merges[0] is 'a c'; expected tokens of the vocabulary, and 'c' \
is none
    """
    root = Part(values, file)
    root.must_be("version", "1.0")
    root.must_be("truncation", None)
    root.must_be("padding", None)
    normalizers = _optional_steps(root, "normalizer", NORMALIZERS, "normalizers")
    splitters = _splitters(root)
    model = root.inner("model")
    model.one_of("type", ("BPE",), "BPE")       # very old files do not say it
    vocabulary = _vocabulary(model)
    added, texts = _added(root, vocabulary, normalizers)
    bpe = _bpe(model, vocabulary, {token.id for token in added if token.special})
    before, after = _around(root, texts)
    tokenizer = Tokenizer(texts, bpe, added, _decoder(root), normalizers, splitters, before, after)
    root.finish()
    return tokenizer
