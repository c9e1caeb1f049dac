"""Attention heads, as JSON and as lines of text: where they look, how large their maps are, which
one reads which.

    Head, heads_of             what is shown of a head
    heads_record               the `result` of the JSON
    pattern_map, map_lines     a pattern as characters; several side by side
    most_composed              the pairs of heads that compose most
    heads_lines                everything as text

A cell of a pattern is its weight in tenths, rounded: `.` is none of them, `#` all ten.  What is 0,
as all that a token does not see, is blank.

>>> pattern_map([[1.0, 0.0, 0.0], [0.94, 0.04, 0.0], [0.2, 0.3, 0.5]])
['#  ', '9. ', '235']
"""
from collections import namedtuple

from ..study import circuits
from . import text

__all__ = ["Head", "heads_of", "heads_record", "pattern_map", "map_lines", "most_composed",
           "heads_lines"]


class Head(namedtuple("Head", ("name", "pattern", "looks_at", "qk_norm", "ov_norm"))):
    """What is shown of a head.

    name        `L0.attn.H1`
    pattern     [n_tokens][n_tokens]
    looks_at    the positions that the one asked about takes most from, as pairs (position, weight)
    qk_norm     the Frobenius norm of its QK map, None where queries or keys are normed
    ov_norm     of its OV map
    """


def heads_of(run, position, begin, end, n=3):
    """The Heads of blocks begin to end - 1 of a Run."""
    found = []
    for layer, name, config, w, head in circuits.all_heads(run.model):
        if begin <= layer < end:
            pattern = run.steps.blocks[layer].attn.pattern[head]
            qk_norm = (None if circuits.is_normed(w)
                       else circuits.map_norm(circuits.qk_map(w, config, head)))
            found.append(Head(name, pattern, strongest(pattern[position], n), qk_norm,
                              circuits.map_norm(circuits.ov_map(w, config, head))))
    return found


def strongest(row, n):
    """The n largest weights of a pattern's row, as pairs (position, weight); none that is 0.

    >>> strongest([0.25, 0.5, 0.25, 0.0], 2)
    [(1, 0.5), (0, 0.25)]
    """
    seen = [(s, weight) for s, weight in enumerate(row) if weight > 0]
    return sorted(seen, key=lambda pair: (-pair[1], pair[0]))[:n]


# ---- JSON ----

def heads_record(heads, compositions):
    """Heads, and study.circuits.Compositions."""
    return {"heads": [{"name": head.name, "qk_norm": head.qk_norm, "ov_norm": head.ov_norm,
                       "looks_at": [{"position": s, "weight": weight}
                                    for s, weight in head.looks_at],
                       "pattern": head.pattern} for head in heads],
            "compositions": [c._asdict() for c in compositions]}


# ---- patterns ----

def pattern_map(pattern):
    """A pattern [n_tokens][n_tokens] as a text of one character a token for every row."""
    return ["".join([cell(weight) for weight in row]) for row in pattern]


def cell(weight):
    """A weight as one character.

    >>> [cell(weight) for weight in (0.0, 0.01, 0.5, 1.0, float("nan"))]
    [' ', '.', '5', '#', '?']
    """
    if weight != weight:
        return "?"
    tenths = int(10 * weight + 0.5)
    return " " if weight == 0 else "." if tenths == 0 else "#" if tenths >= 10 else str(tenths)


LONGEST_LABEL = 10


def map_lines(heads, labels, look):
    """The patterns of Heads side by side, as many as fit, under their names and beside the tokens'
    labels.  Where not even one fits, the last tokens are shown."""
    longest = min(LONGEST_LABEL, look.columns - 2 - max([len(head.name) for head in heads]))
    labels = [label if len(label) <= longest else label[:longest - 1] + "~" for label in labels]
    left = max([len(label) for label in labels]) + 2
    first = max(0, len(labels) - (look.columns - left))
    width = max([len(labels) - first] + [len(head.name) for head in heads])
    n_beside = max(1, (look.columns - left + 2) // (width + 2))
    lines = [] if first == 0 else text.wrapped(
        f"the last {len(labels) - first} of {text.counted(len(labels), 'token')}:", look) + [""]
    for begin in range(0, len(heads), n_beside):
        chunk = heads[begin:begin + n_beside]
        rows = [(label, [row[first:] for row in cells]) for label, cells
                in zip(labels, zip(*[pattern_map(head.pattern) for head in chunk]))]
        for label, cells in [("", [head.name for head in chunk])] + rows[first:]:
            beside = "  ".join([f"{one:<{width}}" for one in cells])
            lines.append(f"{label:<{left}}{beside}".rstrip())
        lines.append("")
    return lines[:-1]


# ---- text ----

LEGEND = ("A row is what a token takes from each of these tokens, in their order, in tenths: . is "
          "less than half of one, # is all ten.")
NORMS = ("|QK| and |OV| are the sizes of what a head compares and of what it carries, w_q "
         "transposed times w_k and w_o times w_v: the root of the sum of squares, of the weights "
         "as they are.")
COMPOSED = ("How much a later head's query, key or value reads of what an earlier head writes, "
            "less what random heads of the same shapes score, which stands last.")


def most_composed(compositions, n=10):
    """The n pairs of heads that compose most in one of the three ways, beyond chance; first those
    that have a score which is no number."""
    def key(c):
        scores = [score - c.baseline for score in (c.query, c.key, c.value) if score is not None]
        unknown = any([score != score for score in scores])
        return not unknown, 0 if unknown else -max(scores), c.earlier, c.later

    return sorted(compositions, key=key)[:n]


def heads_lines(run, position, labels, heads, compositions, notes, look):
    """The heads of a Run, with the labels of its tokens."""
    def paragraph(words):
        return [] if look.quiet else text.wrapped(words, look) + [""]

    labels = [text.shown(label, look) for label in labels]
    lines = text.wrapped(text.trace_title(run, position), look) + [""]
    lines += text.number_table(["head", "|QK|", "|OV|"], [
        [head.name, text.figure(head.qk_norm, look), text.figure(head.ov_norm, look)]
        for head in heads], look) + [""] + paragraph(NORMS)
    lines += text.painted("heading", text.wrapped(f"{labels[position]} looks at", look), look)
    lines += text.pair_table([(head.name, ", ".join(
        [f"{labels[s]} {text.figure(weight, look)}" for s, weight in head.looks_at]) or "?")
        for head in heads], look) + [""]
    lines += map_lines(heads, labels, look) + [""] + paragraph(LEGEND)
    if compositions:
        most = most_composed(compositions)
        if len(most) < len(compositions):
            lines += text.painted("heading", text.wrapped(
                f"the {len(most)} of {len(compositions)} pairs that compose most", look), look)
        lines += composition_table(most, look) + [""] + paragraph(COMPOSED)
    for note in notes:
        lines += text.wrapped(note, look) + [""]
    return lines[:-1]


def composition_table(compositions, look):
    """Compositions, less what random heads score."""
    return text.number_table(["earlier", "later", "query", "key", "value", "random"], [
        [c.earlier, c.later]
        + [text.figure(None if score is None else score - c.baseline, look)
           for score in (c.query, c.key, c.value)] + [text.figure(c.baseline, look)]
        for c in compositions], look)
