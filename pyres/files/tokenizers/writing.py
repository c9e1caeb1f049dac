"""A tokenizer of characters as a tokenizer.json, for other libraries.

    tokenizer_json_of_characters    Characters -> the values of a tokenizer.json

>>> from pyres.files.characters import Characters
>>> values = tokenizer_json_of_characters(Characters(["<bos>", "a", "b"], bos=0))
>>> values["model"]["vocab"], values["model"]["merges"]
({'<bos>': 0, 'a': 1, 'b': 2}, [])
>>> from pyres.files.tokenizers.reading import tokenizer_from_json
>>> tokenizer_from_json(values, "tokenizer.json").encode("abba")
[0, 1, 2, 2, 1]
"""
__all__ = ["tokenizer_json_of_characters"]


def tokenizer_json_of_characters(characters):
    """The values of a tokenizer.json with the same ids, to be written by json.dump.

    It is byte-pair encoding without pairs: every character is a token.  Where a character has
    none, pyres refuses the text, also after reading this file; the tokenizers library leaves the
    character out.

    >>> from pyres.files.characters import Characters
    >>> values = tokenizer_json_of_characters(Characters(["a", "b"]))
    >>> values["decoder"], values["added_tokens"], values["post_processor"]
    ({'type': 'Fuse'}, [], None)
    """
    added, around = [], None
    if characters.bos is not None:
        mark = characters.tokens[characters.bos]
        added = [{"id": characters.bos, "content": mark, "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False, "special": True}]
        around = _template(mark, characters.bos)
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False,
             "vocab": {text: token for token, text in enumerate(characters.tokens)}, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": None, "post_processor": around,
            "decoder": {"type": "Fuse"}, "model": model}


def _template(mark, token):
    """The mark once before a text, or before two."""
    first = {"SpecialToken": {"id": mark, "type_id": 0}}
    a, b = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, b],
            "special_tokens": {mark: {"id": mark, "ids": [token], "tokens": [mark]}}}
