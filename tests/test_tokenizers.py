"""Tokenizers: the tokenizers library's and llama2.c's ids, laws, and files that are refused.

Ids and texts of other libraries are in tests/data/tokenizers, with their origin in its README.
Where PYRES_GOLDENS names a folder with the whole set, all of it is compared.
"""
import copy
import json
import os
import pickle
import random
import shutil
import struct
import tempfile
import unicodedata
import unittest

from pyres.files import strict_json, tokenizers
from pyres.files.characters import Characters
from pyres.files.tokenizers import bpe, splitting
from pyres.files.tokenizers.llama2c import tokenizer_from_bin
from pyres.files.tokenizers.reading import tokenizer_from_json
from pyres.files.tokenizers.splitting import PATTERNS

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tokenizers")
WHOLE_SET = os.environ.get("PYRES_GOLDENS")
NAMES = ("gpt2_bpe", "llama_bpe", "llama_bpe_metaspace")


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


def values_of(name):
    """The values of a tokenizer.json in the data, to be changed at will."""
    return read_json(DATA, name, "tokenizer.json")


def with_pattern(pattern, **model):
    """The GPT-2 tokenizer of the data with another pattern, as files say it."""
    values = values_of("gpt2_bpe")
    values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
         "use_regex": False}]}
    values["model"].update(model)
    return values


def small():
    """The values of a tokenizer that is read."""
    return {"version": "1.0", "decoder": {"type": "Fuse"}, "added_tokens": [], "model": {
        "type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}


def changed(**changes):
    """small(), with values put in: model__vocab is the vocabulary of the model."""
    values = small()
    for key, value in changes.items():
        *outer, last = key.split("__")
        inner = values
        for name in outer:
            inner = inner[name]
        inner[last] = value
    return values


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}

CHARACTERS = list("abcdehilnorstuvxyzSTRVEMLD   \n\n\r\t0123½²Ⅷ四éïßſǅ日本한😀🚀<>|.,!?_-'▁/") + [
    "\u0301", "\u3000", "\u2028", "\x85", "\x1c", "\x1f", "\xa0", "\ufeff", "\ufffd", "\u0663",
    "'s", "'ll", "'VE", " the", "  ", "<s>", "</s>", "<|endoftext|>", "<0x41>"]


def random_text(draw, longest=40):
    """A text of what is special to tokenizers, or of any characters at all."""
    if draw.random() < 0.7:
        return "".join([draw.choice(CHARACTERS) for _ in range(draw.randrange(longest))])
    codes = [draw.randrange(draw.choice((128, 0x800, 0x10000, 0x110000)))
             for _ in range(draw.randrange(longest))]
    return "".join([chr(code) for code in codes if not 0xD800 <= code < 0xE000])


# ---- what other libraries give ----

class Goldens(unittest.TestCase):
    def check(self, folder, tokenizer):
        """ids and texts of every case, and of ids that are the encoding of no text."""
        for case in read_json(folder, "cases.json"):
            with self.subTest(folder=folder, text=case["text"]):
                ids = tokenizer.encode(case["text"], special=False, parse_special=True)
                self.assertEqual(ids, case["ids"])
                self.assertEqual(tokenizer.decode(ids), case["decoded"])
                self.assertEqual("".join(tokenizer.decode_stream(ids)), case["decoded"])
                ids = tokenizer.encode(case["text"], parse_special=True)
                self.assertEqual(ids, case["ids_with_special"])
                self.assertEqual(tokenizer.decode(ids, skip_special=True),
                                 case["decoded_skip_special"])
        for case in read_json(folder, "decode_cases.json"):
            with self.subTest(folder=folder, ids=case["ids"]):
                self.assertEqual(tokenizer.decode(case["ids"]), case["decoded"])
                self.assertEqual(tokenizer.decode(case["ids"], skip_special=True),
                                 case["decoded_skip_special"])

    def check_llama2c(self, folder):
        tokenizer = tokenizers.load(os.path.join(folder, "tokenizer.bin"))
        cases = [case for case in read_json(folder, "cases.json") if "llama2c_ids" in case]
        self.assertTrue(cases)
        for case in cases:
            with self.subTest(text=case["text"]):
                ids = tokenizer.encode(case["text"], special=False)
                self.assertEqual(ids, case["llama2c_ids"])
                self.assertEqual(tokenizer.encode(case["text"]), [1] + ids)
                self.assertEqual(tokenizer.decode(ids), case["text"])

    def test_tokenizer_json(self):
        for name in NAMES:
            folder = os.path.join(DATA, name)
            self.check(folder, tokenizers.load(os.path.join(folder, "tokenizer.json")))

    def test_merges_as_texts(self):
        for name in NAMES:
            values = values_of(name)
            values["model"]["merges"] = [" ".join(pair) for pair in values["model"]["merges"]]
            self.check(os.path.join(DATA, name), tokenizer_from_json(values, name))

    def test_vocab_and_merges(self):
        folder = os.path.join(DATA, "gpt2_bpe")
        self.check(folder, tokenizers.load(os.path.join(folder, "vocab.json")))

    def test_llama2c(self):
        self.check_llama2c(os.path.join(DATA, "llama_bpe"))

    @unittest.skipUnless(WHOLE_SET, "PYRES_GOLDENS is not set: "
                                    "the whole set of tokenizers' ids is not here")
    def test_whole_set(self):
        for name in NAMES:
            folder = os.path.join(WHOLE_SET, "tokenizers", name)
            for file in ("tokenizer.json", "tokenizer_string_merges.json", "vocab.json"):
                if os.path.exists(os.path.join(folder, file)):
                    self.check(folder, tokenizers.load(os.path.join(folder, file)))
        self.check_llama2c(os.path.join(WHOLE_SET, "tokenizers", "llama_bpe"))


# ---- what goes wrong elsewhere ----

def llama_values(words=(), ids=()):
    """The values of a tokenizer like Llama 2's: <unk> <s> </s>, 256 bytes, then the words, each
    made of two tokens at a time from its left; ids are theirs where they matter."""
    vocab = {text: token for token, text in enumerate(
        ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)])}
    merges, ids, free = [], dict(zip(words, ids)), iter(range(1000, 2000))
    for word in words:
        for text in list(word) + [word[:n] for n in range(2, len(word) + 1)]:
            if text not in vocab:
                vocab[text] = ids.get(text) or next(free)
                if len(text) > 1:
                    merges.append([text[:-1], text[-1]])
    values = values_of("llama_bpe")
    values["model"].update(vocab=vocab, merges=merges)
    return values


class PublicMistakes(unittest.TestCase):
    def test_bytes_of_characters_that_are_not_in_the_vocabulary(self):
        """Dropped, printed as <0xF0>, or lost for good where they come one by one."""
        values = llama_values()
        values["normalizer"] = None
        tokenizer = tokenizer_from_json(values, "bytes")
        for text, ids in (("🚀", [243, 162, 157, 131]), ("é", [198, 172]), ("\n", [13])):
            self.assertEqual(tokenizer.encode(text, special=False), ids)
            self.assertEqual(tokenizer.decode(ids), text)
        self.assertEqual(tokenizer.decode([243]), "\ufffd")
        self.assertEqual([tokenizer.token_bytes(token) for token in (243, 162)],
                         [b"\xf0", b"\x9f"])
        shown = []
        for token, text in self.as_they_come(tokenizer, [243, 162, 157, 131, 13]):
            shown.append((token, text))
        self.assertEqual(shown, [(131, "🚀"), (13, "\n")])

    def as_they_come(self, tokenizer, ids):
        """Pairs of a text and the last id that had been asked for when it came."""
        asked = []

        def coming():
            for token in ids:
                asked.append(token)
                yield token

        for text in tokenizer.decode_stream(coming()):
            yield asked[-1], text

    def test_the_beginning_of_a_text(self):
        """BOS twice, or as the letters "<s>"; a space that appears, or is lost in the midst; an
        empty prompt that gains a token."""
        tokenizer = tokenizer_from_json(llama_values(["▁Once", "▁upon"], [300, 301]), "pieces")
        self.assertEqual(tokenizer.decode([1, 300, 301], skip_special=True), "Once upon")
        self.assertEqual(tokenizer.decode([300, 301]), "Once upon")
        self.assertEqual(tokenizer.decode([301], continues=True), " upon")
        self.assertEqual("".join(tokenizer.decode_stream([301], continues=True)), " upon")
        self.assertEqual(list(tokenizer.decode_stream([300, 301])), ["Once", " upon"])
        self.assertEqual(tokenizer.encode(""), [1])
        self.assertEqual(tokenizer.encode("Once"), [1, 300])
        self.assertEqual(tokenizer.encode("Once upon"), [1, 300, 301])
        self.assertNotIn(1, tokenizer.encode("<s>", special=False))
        self.assertEqual(tokenizer.encode("<s>", special=False, parse_special=True), [1])

    def test_no_text_becomes_a_special_token(self):
        """Not by a merge, not as a whole piece, and not where it is one character."""
        values = llama_values(["<s", ">", "^"])
        values["model"]["merges"].append(["<s", ">"])
        values["normalizer"] = None
        for whole_first in (False, True):
            values["model"]["ignore_merges"] = whole_first
            with self.subTest(whole_first=whole_first):
                tokenizer = tokenizer_from_json(values, "marks")
                self.assertEqual(tokenizer.decode(tokenizer.encode("<s>")), "<s><s>")
                self.assertEqual(tokenizer.encode("<s>").count(1), 1)
        mark = values["added_tokens"][0]
        values["added_tokens"].append(dict(mark, content="^", id=values["model"]["vocab"]["^"]))
        tokenizer = tokenizer_from_json(values, "marks")
        self.assertEqual(tokenizer.encode("^", special=False), [3 + ord("^")])

    def test_added_tokens_that_are_not_special_are_always_found(self):
        values = values_of("gpt2_bpe")
        mark = dict(values["added_tokens"][0], special=False)
        values["added_tokens"] += [dict(mark, id=400, content="<a>"),
                                   dict(mark, id=401, content="<a><a>"),
                                   dict(mark, id=402, content="<b>", lstrip=True, rstrip=True)]
        tokenizer = tokenizer_from_json(values, "added")
        self.assertEqual(tokenizer.encode("<a><a><a>"), [401, 400])
        self.assertEqual(tokenizer.encode("a \u3000<b>\n\x1c"), [64, 402, 216])
        self.assertNotIn(399, tokenizer.encode("<|endoftext|>"))
        self.assertEqual(tokenizer.decode([64, 400, 399], skip_special=True), "a<a>")

    def test_a_name_in_normalized_text(self):
        """A token that is found in the normalized text is found, and decoded, as it is there."""
        values = values_of("llama_bpe")
        mark = dict(values["added_tokens"][0], special=False, normalized=True)
        values["added_tokens"].append(dict(mark, id=480, content="<a>"))
        tokenizer = tokenizer_from_json(values, "added")
        self.assertEqual(tokenizer.encode("<a>", special=False), [480])
        ids = tokenizer.encode("the <a>", special=False)
        self.assertEqual(ids[-1], 480)
        self.assertEqual(tokenizer.decode(ids), "the <a>")


# ---- parts of a file ----

class Parts(unittest.TestCase):
    """What each part does that the three tokenizers of the data do not have."""

    def encoded(self, text, **changes):
        return tokenizer_from_json(changed(**changes), "small.json").encode(text)

    def test_unknown_characters(self):
        vocab = {"a": 0, "b": 1, "?": 2}
        for fuse, ids in ((False, [0, 2, 2, 1, 2]), (True, [0, 2, 1, 2])):
            self.assertEqual(ids, self.encoded("axybz", model__vocab=vocab, model__merges=[],
                                               model__unk_token="?", model__fuse_unk=fuse))

    def test_tokens_around_a_text(self):
        special = {"A": {"ids": [0], "tokens": ["a"]}, "B": {"ids": [1], "tokens": ["b"]}}
        a, text, b = {"SpecialToken": {"id": "A"}}, {"Sequence": {"id": "A"}}, {
            "SpecialToken": {"id": "B"}}
        for single, ids in (([text], [2]), ([a, text], [0, 2]), ([text, b], [2, 1]),
                            ([a, b, text, b, a], [0, 1, 2, 1, 0])):
            template = {"type": "TemplateProcessing", "single": single, "special_tokens": special}
            both = {"type": "Sequence", "processors": [BYTE_LEVEL, template]}
            for processor in (template, both):
                self.assertEqual(self.encoded("ab", post_processor=processor), ids)

    def test_whole_pieces_first(self):
        for first, ids in ((False, [0, 1]), (True, [2])):
            self.assertEqual(ids, self.encoded("ab", model__merges=[], model__ignore_merges=first))

    def test_normal_form(self):
        values = with_pattern(PATTERNS["Qwen2"])
        composed = tokenizer_from_json(values, "GPT-2").encode("caf\u00e9")
        values["normalizer"] = {"type": "NFC"}
        self.assertEqual(tokenizer_from_json(values, "Qwen2").encode("cafe\u0301"), composed)

    def test_a_space_before_a_text(self):
        values = values_of("gpt2_bpe")
        with_space = tokenizer_from_json(values, "GPT-2").encode(" the")
        values["pre_tokenizer"]["add_prefix_space"] = True
        for text in ("the", " the"):
            self.assertEqual(tokenizer_from_json(values, "GPT-2").encode(text), with_space)

    def test_the_first_piece_of_several(self):
        splitters = [splitting.Digits(True), splitting.Metaspace("_", "first", False)]
        self.assertEqual(splitting.pieces("a1 b", splitters, first=True), ["_a", "1", "_b"])
        self.assertEqual(splitting.pieces("1a", splitters, first=True), ["_1", "a"])
        self.assertEqual(splitting.pieces("1a", splitters, first=False), ["1", "a"])

    def test_metaspace_as_it_was_written_before(self):
        """add_prefix_space true is always, false is never."""
        values = values_of("llama_bpe_metaspace")
        for old, new in ((True, "always"), (False, "never")):
            values["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁",
                                       "add_prefix_space": old}
            was = tokenizer_from_json(values, "old")
            values["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁",
                                       "prepend_scheme": new, "split": True}
            now = tokenizer_from_json(values, "new")
            for text in ("the  the", " the", "<s>the"):
                self.assertEqual(was.encode(text, parse_special=True),
                                 now.encode(text, parse_special=True))

    def test_metaspace_decodes_what_it_encodes(self):
        """All marks go from the first token, so a text that begins with spaces loses them."""
        for prepend in ("always", "first", "never"):
            values = values_of("llama_bpe_metaspace")
            values["model"].update(llama_values([c for c in "▁abc"])["model"])
            part = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend}
            values.update(pre_tokenizer=dict(part, split=True), decoder=part)
            tokenizer = tokenizer_from_json(values, prepend)
            for text in ("a b", "ab  c", "b "):
                with self.subTest(prepend, text=text):
                    ids = tokenizer.encode(text, special=False)
                    self.assertEqual(tokenizer.decode(ids), text)
                    self.assertEqual("".join(tokenizer.decode_stream(ids)), text)
            space = "" if prepend == "never" else " "
            self.assertEqual(tokenizer.decode(tokenizer.encode("a", special=False),
                                              continues=True), space + "a")


# ---- laws ----

def slow_bpe(symbols, merges):
    """Byte-pair encoding as its definition says it, on texts: again and again the best pair."""
    ranks, symbols = {tuple(pair): rank for rank, pair in enumerate(merges)}, list(symbols)
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:]))
                 if pair in ranks]
        if not found:
            return symbols
        at = min(found)[1]
        symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]


def category(character):
    """L, N, \\s or other, by the definition of each."""
    if character in "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" \
            or "\u2000" <= character <= "\u200a":
        return "s"
    first = unicodedata.category(character)[0]
    return first if first in "LN" else "other"


def slow_split(text, name):
    """The pieces of a text by the published pattern, each alternative written out by hand."""
    found, at = [], 0
    while at < len(text):
        end = at + piece_length(text[at:], name)
        found.append(text[at:end])
        at = end
    return found


def run(text, wanted, most=None):
    """How many characters at the beginning are of a category, or satisfy a function."""
    n = 0
    while n < len(text) and n != most and (wanted(text[n]) if callable(wanted)
                                           else category(text[n]) == wanted):
        n += 1
    return n


def piece_length(text, name):
    if text[0] == "'":
        rest = text[1:3] if name == "GPT-2" else text[1:3].lower().replace("ſ", "s")
        for ending in ("s", "t", "re", "ve", "m", "ll", "d"):
            if rest.startswith(ending):
                return 1 + len(ending)
    space = 1 if text[0] == " " else 0
    newline = lambda character: character in "\r\n"                     # noqa: E731
    if name == "GPT-2":
        for kind in ("L", "N", "other"):
            if run(text[space:], kind):
                return space + run(text[space:], kind)
    else:
        before = 0 if category(text[0]) in "LN" or newline(text[0]) else 1
        if run(text[before:], "L"):
            return before + run(text[before:], "L")
        if category(text[0]) == "N":
            return run(text, "N", 3 if name == "Llama 3" else 1)
        if run(text[space:], "other"):
            end = space + run(text[space:], "other")
            return end + run(text[end:], newline)
        white = run(text, "s")
        newlines = [at for at in range(white) if newline(text[at])]
        if newlines:
            return newlines[-1] + 1
    white = run(text, "s")
    return white - 1 if 1 < white < len(text) else white


class Laws(unittest.TestCase):
    def test_merge_is_the_slow_one(self):
        for seed in range(150):
            draw = random.Random(seed)
            known, merges = list("abc"), []
            for _ in range(draw.randrange(12)):
                pair = [draw.choice(known), draw.choice(known)]
                if pair not in merges:
                    merges.append(pair)
                    known += [text for text in ["".join(pair)] if text not in known]
            text = "".join([draw.choice("abc") for _ in range(draw.randrange(30))])
            ids = {text: token for token, text in enumerate(known)}
            pairs = {(ids[left], ids[right]): (rank, ids[left + right])
                     for rank, (left, right) in enumerate(merges)}
            with self.subTest(seed=seed, text=text, merges=merges):
                got = [known[token] for token in bpe.merge([ids[c] for c in text], pairs)]
                self.assertEqual(got, slow_bpe(text, merges))

    def test_encode_is_the_slow_one(self):
        values = values_of("llama_bpe")
        vocab, merges = values["model"]["vocab"], values["model"]["merges"]
        tokenizer = tokenizer_from_json(values, "llama")
        for seed in range(60):
            text = random_text(random.Random(seed))
            symbols = []
            for character in ("▁" + text if text else "").replace(" ", "▁"):
                symbols += [character] if character in vocab else [
                    f"<0x{byte:02X}>" for byte in character.encode("utf-8")]
            with self.subTest(seed=seed, text=text):
                want = [vocab[symbol] for symbol in slow_bpe(symbols, merges)]
                self.assertEqual(tokenizer.encode(text, special=False), want)

    def test_merge_looks_at_few_pairs(self):
        """A whole text may be one piece, so the time may not grow with its square."""
        class Counted(dict):
            looks = 0

            def __contains__(self, pair):
                Counted.looks += 1
                return super().__contains__(pair)

        merges = Counted({(0, 0): (0, 1), (1, 1): (1, 2), (2, 2): (2, 3)})
        bpe.merge([0] * 8000, merges)
        self.assertLessEqual(Counted.looks, 4 * 8000)

    def test_a_long_text_in_time(self):
        tokenizer = tokenizer_from_json(values_of("llama_bpe"), "llama")
        text = "The residual stream, 64 wide. " * 1000
        once = tokenizer.encode(text[:30], special=False)
        self.assertEqual(tokenizer.decode(tokenizer.encode(text, special=False)), text)
        self.assertEqual(tokenizer.encode(text, special=False)[:len(once) - 1], once[:-1])

    def test_patterns_are_the_slow_ones(self):
        for name, pattern in PATTERNS.items():
            for seed in range(150):
                text = random_text(random.Random(seed))
                with self.subTest(name, seed=seed, text=text):
                    got = splitting.Pattern(pattern).split(text, first=True)
                    self.assertEqual(got, slow_split(text, name))

    def test_a_character_is_of_its_kind(self):
        draw = random.Random(5)
        for character in [chr(draw.randrange(0xD800)) for _ in range(3000)]:
            kind = category(character)
            got = category(splitting.kinds(character)), splitting.is_white(character)
            self.assertEqual(got, (kind, kind == "s"), hex(ord(character)))

    def test_splitting_leaves_nothing_out(self):
        splitters = [splitting.Pattern(pattern) for pattern in PATTERNS.values()] + [
            splitting.Digits(False), splitting.Digits(True)] + [
            splitting.AtMark(mark, side) for mark in (" ", "▁", "'s")
            for side in ("before", "behind", "alone")]
        for seed in range(60):
            text = random_text(random.Random(seed))
            for splitter in splitters:
                with self.subTest(seed=seed, splitter=splitter):
                    found = splitting.pieces(text, [splitter], first=True) if text else []
                    self.assertEqual("".join(found), text)
                    self.assertNotIn("", found)

    def test_bytes_come_back(self):
        """Of byte-level tokenizers decode is the inverse of encode, whatever the text."""
        for name, pattern in PATTERNS.items():
            tokenizer = tokenizer_from_json(with_pattern(pattern, ignore_merges=True), name)
            for seed in range(60):
                text = random_text(random.Random(seed))
                with self.subTest(name, seed=seed, text=text):
                    self.check_both_ways(tokenizer, text, text)

    def check_both_ways(self, tokenizer, text, expected):
        for parse_special in (False, True):
            ids = tokenizer.encode(text, special=False, parse_special=parse_special)
            if not parse_special:
                self.assertEqual(tokenizer.decode(ids), expected)
                self.assertEqual(b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8"),
                                 tokenizer.decode(ids, continues=True))
            self.assertEqual("".join(tokenizer.decode_stream(ids)), tokenizer.decode(ids))

    def test_pieces_come_back(self):
        """U+2581 comes back as a space.  Where a prefix is put before the text unless it begins
        with a space, that space is gone."""
        llama, metaspace = [tokenizer_from_json(values_of(name), name) for name in NAMES[1:]]
        gemma_values = values_of("llama_bpe")
        gemma_values["normalizer"] = gemma_values["normalizer"]["normalizers"][1]
        gemma_values["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "},
                                         "behavior": "MergedWithPrevious", "invert": False}
        del gemma_values["decoder"]["decoders"][3]
        gemma = tokenizer_from_json(gemma_values, "gemma")
        for seed in range(60):
            text = random_text(random.Random(seed))
            spaced = text.replace("▁", " ")
            with self.subTest(seed=seed, text=text):
                self.check_both_ways(llama, text, spaced)
                self.check_both_ways(gemma, text, spaced)
                self.check_both_ways(metaspace, text,
                                     spaced[1:] if spaced.startswith(" ") else spaced)

    def test_a_stream_is_the_whole(self):
        """For any ids; but of bytes that are no UTF-8, a stream may have shown some already."""
        gpt2, llama = [tokenizer_from_json(values_of(name), name) for name in NAMES[:2]]
        for seed in range(300):
            draw = random.Random(seed)
            for tokenizer, highest in ((gpt2, 400), (llama, draw.choice((262, 480)))):
                ids = [draw.randrange(highest) for _ in range(draw.randrange(12))]
                whole, stream = tokenizer.decode(ids), "".join(tokenizer.decode_stream(ids))
                with self.subTest(seed=seed, ids=ids):
                    if tokenizer is gpt2:
                        self.assertEqual(stream, whole)
                    else:
                        self.assertEqual(stream, slow_stream(tokenizer, ids))
                    if "\ufffd" not in whole:
                        self.assertEqual(stream, whole)

    def test_what_is_remembered_changes_nothing(self):
        for name in NAMES[:2]:
            warm, bounded = [tokenizer_from_json(values_of(name), name) for _ in range(2)]
            bounded._model.REMEMBERED, bounded._model.LONGEST = 3, 5
            for seed in range(40):
                text = random_text(random.Random(seed))
                fresh = tokenizer_from_json(values_of(name), name) if seed < 5 else warm
                with self.subTest(name, seed=seed):
                    want = fresh.encode(text)
                    self.assertEqual(warm.encode(text), want)
                    self.assertEqual(bounded.encode(text), want)
            self.assertLessEqual(len(bounded._model._remembered), 3)
            ids = warm._model.encode("a")
            ids.append(0)
            self.assertEqual(warm._model.encode("a"), ids[:-1])

    def test_a_process_can_be_given_one(self):
        for name in NAMES:
            tokenizer = tokenizer_from_json(values_of(name), name)
            again = pickle.loads(pickle.dumps(tokenizer))
            self.assertEqual(again.encode("The same 1/2 🚀"), tokenizer.encode("The same 1/2 🚀"))

    def test_characters_written_and_read(self):
        for seed in range(60):
            draw = random.Random(seed)
            tokens = ["<s>"] + sorted({draw.choice("abc<s>/^ é\n🚀▁") for _ in range(8)})
            mine = Characters(tokens, bos=draw.choice((0, None, len(tokens) - 1)))
            values = json.loads(json.dumps(tokenizers.tokenizer_json_of_characters(mine)))
            read = tokenizer_from_json(values, "characters")
            self.assertEqual(read.tokens, mine.tokens)
            for _ in range(10):
                text = "".join([draw.choice(tokens) for _ in range(draw.randrange(8))])
                for flags in ((True, False), (False, False), (True, True), (False, True)):
                    with self.subTest(seed=seed, tokens=tokens, bos=mine.bos, text=text):
                        want = outcome(mine.encode, text, *flags)
                        self.assertEqual(outcome(read.encode, text, *flags), want)
                        if want is not ValueError:
                            self.assertEqual(read.decode(want), mine.decode(want))


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except ValueError:
        return ValueError


def slow_stream(tokenizer, ids):
    """What a stream of llama's shows: of bytes side by side, whole characters up to the first
    byte that breaks one, and U+FFFD for every byte that is in none."""
    text, data = "", []
    for token in ids + [None]:
        if token is not None and 3 <= token < 259:
            data.append(token - 3)
            continue
        good = len(data)
        while True:
            try:
                text += bytes(data[:good]).decode("utf-8") + "\ufffd" * (len(data) - good)
                break
            except UnicodeDecodeError:
                good -= 1
        data = []
        if token is not None:
            text += tokenizer.tokens[token].replace("▁", " ")
    return text[1:] if text.startswith(" ") else text


# ---- files that are refused ----

REGEX = {"Regex": "\\p{Han}+"}
SPLIT = {"type": "Split", "pattern": REGEX, "behavior": "Isolated", "invert": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
MARK = {"id": 5, "content": "<a>", "special": True, "normalized": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"ids": [1], "tokens": ["</s>"]}}}


REFUSED = (
    (changed(version="2.0"), "version is '2.0'; expected '1.0'"),
    (changed(truncation={"max_length": 5}), "truncation is {'max_length': 5}; expected None"),
    (changed(padding={}), "padding is {}; expected None"),
    (changed(extra=1), "extra is 1; expected no such key"),
    (changed(decoder=None), "decoder is None"),
    (changed(decoder={"type": "CTC"}), "decoder.type is 'CTC'; expected one of Sequence, "),
    (changed(decoder={"type": "Strip", "content": " ", "start": 1, "stop": 0}), "steps Strip"),
    (changed(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Fuse"}]}),
     "steps Fuse, Fuse"),
    (changed(decoder={"type": "Strip", "content": " ", "start": 1, "stop": 1}),
     "decoder.stop is 1; expected 0"),
    (changed(normalizer={"type": "Lowercase"}), "normalizer.type is 'Lowercase'"),
    (changed(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, None]}),
     "normalizer.normalizers[1] is None; expected an object"),
    (changed(normalizer={"type": "NFC", "more": 1}), "normalizer.more is 1; expected no such key"),
    (changed(normalizer=REPLACE), "normalizer.content is 'aa'; expected a text no longer than"),
    (changed(normalizer=dict(REPLACE, pattern=REGEX)), "normalizer.pattern.Regex is"),
    (changed(normalizer=dict(REPLACE, pattern={"String": ""})), "normalizer.pattern.String is ''"),
    (changed(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}),
     "expected at most 64 parts"),
    (changed(pre_tokenizer={"type": "Punctuation"}), "pre_tokenizer.type is 'Punctuation'"),
    (changed(pre_tokenizer=SPLIT), "pre_tokenizer.pattern.Regex is '\\\\p{Han}+'; expected one "
                                   "that was published with GPT-2, Llama 3, Qwen2"),
    (changed(pre_tokenizer=dict(SPLIT, pattern={"Regex": PATTERNS["GPT-2"]}, behavior="Removed")),
     "pre_tokenizer.behavior is 'Removed'; expected Isolated, or Removed and invert"),
    (changed(pre_tokenizer=dict(SPLIT, pattern={"String": "a"}, behavior="Contiguous")),
     "pre_tokenizer.behavior is 'Contiguous'"),
    (changed(pre_tokenizer=dict(METASPACE, replacement="__")), "expected one character"),
    (changed(pre_tokenizer=dict(METASPACE, prepend_scheme="last")), "prepend_scheme is 'last'"),
    (changed(pre_tokenizer=dict(METASPACE, add_prefix_space=False)), "add_prefix_space is False"),
    (changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 2}), "twice"),
    (changed(post_processor={"type": "BertProcessing"}), "post_processor.type is 'BertProcessing"),
    (changed(post_processor=dict(TEMPLATE, single=[])), "the text, Sequence A, once"),
    (changed(post_processor=dict(TEMPLATE, single=[{"Sequence": {"id": "B"}}])), "id is 'B'"),
    (changed(post_processor=dict(TEMPLATE, single=[{"SpecialToken": {"id": "<s>"}}] +
                                 TEMPLATE["single"])), "ids is [1]; expected the id of the one"),
    (changed(post_processor={"type": "Sequence", "processors": [TEMPLATE] * 2}),
     "2 TemplateProcessing; expected one at most"),
    (changed(model__type="Unigram"), "model.type is 'Unigram'; expected one of BPE"),
    (changed(model__dropout=0.1), "model.dropout is 0.1; expected None"),
    (changed(model__continuing_subword_prefix="##"), "model.continuing_subword_prefix is '##'"),
    (changed(model__end_of_word_suffix="</w>"), "model.end_of_word_suffix is '</w>'"),
    (changed(model__unk_token="?"), "model.unk_token is '?'; expected a token of the vocabulary"),
    (changed(model__byte_fallback=True, model__vocab={"a": 0, "b": 1, "ab": 2, "<0x00>": 3}),
     "255 of them are missing"),
    (changed(model__fuse_unk=1), "model.fuse_unk is 1; expected true or false"),
    (changed(model__vocab=[]), "model.vocab is []; expected an object"),
    (changed(model__vocab={"a": 0, "b": 0, "ab": 1}), "model.vocab has the id 0 2 times"),
    (changed(model__vocab={"a": -1}), "model.vocab.a is -1; expected an id from 0 to"),
    (changed(model__vocab={"a": 1 << 40}), "model.vocab.a is 1099511627776"),
    (changed(model__vocab={"\n": -1}), "model.vocab.'\\n' is -1"),
    (changed(model__vocab={"a": True}), "model.vocab.a is True"),
    (changed(model__vocab={"a": 0.0}), "model.vocab.a is 0.0"),
    (changed(model__merges=["ab"]), "model.merges[0] is 'ab'; expected two texts"),
    (changed(model__merges=[["a", "b", "a"]]), "model.merges[0] is ['a', 'b', 'a']"),
    (changed(model__merges=[["a", 1]]), "model.merges[0] is ['a', 1]; expected two texts"),
    (changed(model__merges=["a b", "b a"]), "model.merges[1] is 'b a'; expected tokens of the "
                                            "vocabulary, and 'ba' is none"),
    (changed(model__merges=["a b", ["a", "b"]]), "model.merges[1] is ['a', 'b']; expected each "
                                                 "pair once, and merge 0 is the same"),
    (changed(added_tokens={}), "added_tokens is {}; expected a list"),
    (changed(added_tokens=[dict(MARK, single_word=True)]), "single_word is True; expected False"),
    (changed(added_tokens=[dict(MARK, content="")]), "added_tokens[0].content is ''"),
    (changed(added_tokens=[dict(MARK, content="a")]), "added_tokens[0].id is 5; expected 0"),
    (changed(added_tokens=[dict(MARK, id=1)]), "added_tokens[0].id is 1; expected no id of a"),
    (changed(added_tokens=[MARK, dict(MARK)]), "added_tokens[1].content is '<a>'"),
    (changed(added_tokens=[MARK, dict(MARK, id=6)]), "added_tokens[1].id is 6; expected 5"),
    ({}, "model is missing"),
    ([], "all of it is []; expected an object"))


class Refusals(unittest.TestCase):
    def assert_refused(self, message, function, *arguments):
        with self.assertRaises(ValueError) as caught:
            function(*arguments)
        self.assertIn(message, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_what_they_are_changes_of_is_read(self):
        tokenizer = tokenizer_from_json(small(), "small.json")
        self.assertEqual(tokenizer.encode("abab"), [2, 2])
        tokenizer = tokenizer_from_json(changed(added_tokens=[MARK]), "small.json")
        self.assertEqual((tokenizer.n_tokens, tokenizer.tokens[3:]), (6, [None, None, "<a>"]))

    def test_values(self):
        for values, message in REFUSED:
            with self.subTest(message):
                self.assert_refused(message, tokenizer_from_json, values, "small.json")
                self.assert_refused("small.json: ", tokenizer_from_json, values, "small.json")

    def test_calls(self):
        tokenizer = tokenizer_from_json(changed(added_tokens=[MARK]), "small.json")
        for bad in (-1, 6, 3, True, "a", 1.0, None):
            with self.subTest(bad):
                self.assert_refused("is none of the 6 ids", tokenizer.decode, [0, bad])
                self.assert_refused("is none of the 6 ids", tokenizer.token_bytes, bad)
        self.assert_refused("'c' is not in the vocabulary", tokenizer.encode, "abc")
        self.assert_refused("half of a surrogate pair at 1", tokenizer.encode, "a\ud83d")
        for bad in (b"ab", None, ["a"]):
            self.assertRaises(TypeError, tokenizer.encode, bad)

    def test_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(tokenizers.load_folder(folder))
            self.assertRaises(FileNotFoundError, tokenizers.load, folder)
            for name in ("vocab.json", "merges.txt"):
                shutil.copy(os.path.join(DATA, "gpt2_bpe", name), folder)
            config = os.path.join(folder, "tokenizer_config.json")
            like_gpt2 = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False,
                         "added_tokens_decoder": {"399": {"content": "<|endoftext|>"}}}
            for values, message in (
                    (dict(like_gpt2, tokenizer_class="Qwen2Tokenizer"), "tokenizer_class is 'Qwe"),
                    (dict(like_gpt2, add_bos_token=True), "add_bos_token is True"),
                    (dict(like_gpt2, add_prefix_space=True), "add_prefix_space is True"),
                    (dict(like_gpt2, added_tokens_decoder={"9": {"content": "<a>"}}), "'<a>'"),
                    (like_gpt2, None)):
                with open(config, "w") as file:
                    json.dump(values, file)
                if message:
                    self.assert_refused(message, tokenizers.load_folder, folder)
                    self.assert_refused("save_pretrained", tokenizers.load, folder)
            self.assertEqual(tokenizers.load(folder).encode("the"), [83, 256])
            shutil.copy(os.path.join(DATA, "llama_bpe", "tokenizer.json"), folder)
            self.assertEqual(tokenizers.load_folder(folder).encode("the"), [1, 266])

    def test_llama2c_files(self):
        with open(os.path.join(DATA, "llama_bpe", "tokenizer.bin"), "rb") as file:
            data = file.read()
        entries = struct.pack("<fI", float("nan"), 1) + b"a"
        for bad, message in ((data[:2], "2 bytes are no tokenizer.bin"),
                             (data[:-1], "and 0, the rest of the file"),
                             (data[:-12], "is cut short"),
                             (data[:4], "are not the bytes"),
                             (data + entries, "the score nan"),
                             (data + data[4:17], "stands twice"),
                             (b"\xff" * 8, "the longest text has 4294967295 bytes"),
                             (b"\x05" + data[1:], "at most 5, the longest text"),
                             (data[:12] + b"\xff" + data[13:], "which is no UTF-8")):
            with self.subTest(message):
                self.assert_refused(message, tokenizer_from_bin, bad, "tokenizer.bin")

    def test_mutations(self):
        """A file with something changed is read, and then it works, or is refused."""
        read = refused = 0
        for seed in range(150):
            draw = random.Random(seed)
            values = values_of(draw.choice(NAMES))
            cut_down(values["model"])
            for _ in range(draw.randrange(1, 4)):
                mutate(values, draw)
            data = json.dumps(values).encode("utf-8")
            if draw.random() < 0.2:
                at = draw.randrange(len(data))
                data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1:]
            with self.subTest(seed=seed):
                try:
                    tokenizer = tokenizer_from_json(strict_json.parse(data, "m.json"), "m.json")
                except ValueError as error:
                    self.assertIn("m.json: ", str(error))
                    refused += 1
                    continue
                read += 1
                ids = outcome(tokenizer.encode, random_text(draw), True, True)
                if ids is not ValueError:
                    self.assertEqual("".join(tokenizer.decode_stream(ids)), tokenizer.decode(ids))
        self.assertTrue(read > 10 and refused > 60, (read, refused))


def cut_down(model):
    """Leave few merges, so that a mutation seldom falls on one of them."""
    model["merges"] = model["merges"][:5]


OTHERS = (None, True, False, 0, 1, -1, 2.5, 1 << 70, "", "a", "▁", "<0x41>", "Sequence", "BPE",
          "ByteLevel", "Metaspace", "Fuse", [], {}, [[]], ["a", "b"], {"type": "NFC"})


def mutate(values, draw):
    """Change, remove, add or double one thing somewhere in values."""
    place, key = values, draw.choice(list(values))
    while isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.8:
        place = place[key]
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
    how = draw.randrange(4)
    if how == 0:
        place[key] = copy.deepcopy(draw.choice(OTHERS))
    elif how == 1:
        del place[key]
    elif isinstance(place, list):
        place.insert(key, copy.deepcopy(place[key] if how == 2 else draw.choice(OTHERS)))
    elif how == 2:
        place[draw.choice(list(place))] = copy.deepcopy(place[key])
    else:
        place["more"] = copy.deepcopy(draw.choice(OTHERS))


if __name__ == "__main__":
    unittest.main()
