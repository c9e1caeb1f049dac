"""JSON that trusts nobody: a text has one meaning, the same on every Python, or it is refused.

Python's json takes more than JSON is, and a file from a stranger may use that. Here a text is
refused, always with a ValueError of one line that names the file, where it

    is not UTF-8                                  two readers might see two texts
    has a key twice in one object                 json keeps the last one and says nothing
    has NaN, Infinity, or a number beyond float   they are not JSON, or not numbers any more
    has half of a surrogate pair in a string      such a string cannot be encoded again
    has a number of more than 300 characters      a long one takes int() quadratic time
    nests deeper than 64                          json would end in RecursionError

In reading order: `brief` and `brief_key` quote in an error message, `check_strings` and
`check_nesting` look at the text before json does, the three hooks see what json found, and `parse`
is for users.

>>> parse(b'{"n_heads": 2, "eps": 0.5, "tags": ["a", null]}', "config.json")
{'n_heads': 2, 'eps': 0.5, 'tags': ['a', None]}
>>> parse(b'{"n_heads": 2, "n_heads": 4}', "config.json")
Traceback (most recent call last):
ValueError: config.json: the key 'n_heads' appears twice in one object
"""
import json
import math
import re
import reprlib
from collections import Counter

__all__ = ["brief", "brief_key", "parse"]

MAX_DEPTH = 64
# Every integer of so few characters can still become a float (below 1e308), and int() reads it
# at once. Hugging Face files hold integers of 31 digits.
MAX_NUMBER_LENGTH = 300

ESCAPE = re.compile(r"""
    \\u[dD][89abAB][0-9a-fA-F]{2} \\u[dD][c-fC-F][0-9a-fA-F]{2}   # a character as two halves
  | (?P<half> \\u[dD][89a-fA-F] )                                 # a half without the other
  | (?P<not_hexadecimal> \\u (?! [0-9a-fA-F]{4} ) )               # PyPy's json reads "\u 1_2"
  | \\.                                                           # any other escape
""", re.VERBOSE | re.DOTALL)
STRING = re.compile(r'"[^"]*"?')
BRACKET = re.compile(r"[][{}]")


class _Brief(reprlib.Repr):
    def repr_int(self, number, level):
        # repr() refuses integers of more than 4300 digits with a message about itself.
        bits = number.bit_length()
        return repr(number) if bits <= 128 else f"an integer of {bits} bits"


def brief(value):
    """Return repr(value), shortened so that it fits into an error message of one line.

    >>> brief("model.norm.weight"), brief(list(range(1000))), brief(1 << 20000)
    ("'model.norm.weight'", '[0, 1, 2, 3, 4, 5, ...]', 'an integer of 20001 bits')
    """
    quoting = _Brief()
    quoting.maxstring = quoting.maxother = 120
    quote = quoting.repr(value).replace("\n", " ")
    return quote if len(quote) <= 160 else quote[:157] + "..."


def brief_key(key):
    """A key as it stands where it is short, of letters, digits, _ and points; else quoted.

    >>> print(brief_key("n_embd"), brief_key("blocks.0.mlp"), brief_key("two words"))
    n_embd blocks.0.mlp 'two words'
    """
    return key if key.replace(".", "_").isidentifier() and len(key) < 60 else brief(key)


def check_strings(text):
    r"""Return text without its escapes; ValueError where one is no character.

    >>> check_strings(r'{"say \"hi\"": "\ud83d\ude00"}')
    '{"say hi": ""}'
    >>> check_strings(r'"\ud83d"')
    Traceback (most recent call last):
    ValueError: half of a surrogate pair at character 1; it is no character
    """
    def check(escape):
        if escape.group("half"):
            raise ValueError(f"half of a surrogate pair at character {escape.start()}; "
                             "it is no character")
        if escape.group("not_hexadecimal"):
            raise ValueError(f"the escape at character {escape.start()} lacks its four "
                             "hexadecimal digits")
        return ""

    return ESCAPE.sub(check, text)


def check_nesting(text):
    """Refuse a text, given without escapes, that nests too deep or is not ASCII outside strings.

    Up to the first mistake in text, json and this function agree on what is a string; behind it
    json reads no further. So no nesting escapes the count.

    >>> check_nesting('["[[[["]')
    >>> check_nesting("[" * 65)
    Traceback (most recent call last):
    ValueError: nested deeper than 64 levels
    """
    outside = STRING.sub("", text)
    if not outside.isascii():
        # PyPy's json takes every Unicode digit for a digit.
        raise ValueError("outside of strings there is a character that is not ASCII")
    depth = 0
    for bracket in BRACKET.finditer(outside):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _object(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {brief(twice)} appears twice in one object")
    return found


def _number(read):
    """Return the hook that reads a number with `read`, int or float, if it is short and finite."""
    def hook(digits):
        if len(digits) > MAX_NUMBER_LENGTH:
            raise ValueError(f"a number of {len(digits)} characters; "
                             f"at most {MAX_NUMBER_LENGTH} are read")
        number = read(digits)
        if math.isinf(number):
            raise ValueError(f"the number {brief(digits)} is beyond the largest float")
        return number

    return hook


def _no_number(word):
    raise ValueError(f"{word} is not JSON")


def parse(data, what):
    r"""Return the value of the JSON text `data`, bytes; `what` names its file in messages.

    Objects are dicts, numbers with a point or an exponent are floats, all as json.loads has them.
    ValueError where data breaks a rule of this module or is no JSON.

    >>> parse(b'[1, 1e3, "\xc3\xa9"]', "list.json")
    [1, 1000.0, 'é']
    >>> parse(b"[NaN]", "list.json")
    Traceback (most recent call last):
    ValueError: list.json: NaN is not JSON
    >>> parse(b"[1, 2", "a.json")
    Traceback (most recent call last):
    ValueError: a.json: no JSON, or cut short: Expecting ',' delimiter: line 1 column 6 (char 5)
    >>> parse(b"9" * 5000, "number.json")
    Traceback (most recent call last):
    ValueError: number.json: a number of 5000 characters; at most 300 are read
    """
    try:
        # Not str(data, "utf-8"): PyPy's lets half of a surrogate pair pass.
        text = data.decode("utf-8")
        check_nesting(check_strings(text))
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number,
                          parse_int=_number(int), parse_float=_number(float))
    except json.JSONDecodeError as error:
        raise ValueError(f"{what}: no JSON, or cut short: {error}") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
