"""Who wrote how much towards a token, as JSON and as lines of text.

    contributions_record    the `result` of the JSON
    waterfall               rows that add up, each with a bar that begins where the last one ended
    writers_lines           everything as text

Bars say again what the numbers beside them say: = is added, - is taken away.

>>> for line in waterfall([("embed", 2.0), ("L0.attn", -3.0), ("L0.mlp", 5.0)], text.Look(30)):
...     print(line)
embed    +2.000    |=====
L0.attn  -3.000 ---|-----
L0.mlp   +5.000 ===|==========
"""
from ..study.writers import cancellation, measures, shares
from . import text
from .effects import bar_table, check_record, few_rows, signed

__all__ = ["contributions_record", "waterfall", "writers_lines"]


def contributions_record(found, split, logit):
    """A Contributions, and of the Partition behind it what its rows are at the position: lengths,
    cosines with the stream before, signed shares of the stream; how much of them cancels.

    logit is what the run gives for the metric.  measures and cancellation are null where the
    stream is zero.
    """
    position = found.metric.position
    try:
        share = dict(shares(split, position))
        measured = [{"name": one.name, "length": one.length, "cosine": one.cosine,
                     "share": share[one.name]} for one in measures(split, position)]
        left = cancellation(split, position)._asdict()
    except ValueError:
        measured = left = None
    return {"metric": found.metric.name, "method": found.method,
            "contributions": [{"name": name, "value": value} for name, value in rows_of(found)],
            "total": found.total, "logit": logit, "measures": measured, "cancellation": left}


def rows_of(found):
    """The rows of a Contributions, the constant among them."""
    return found.rows + [("constant", found.constant)]


# ---- text ----

FEWEST_BARS, MOST_BARS = 8, 40


def waterfall(rows, look):
    """Pairs (name, value) under one another, with bars from what the rows above came to, to what
    comes with this one; | is 0.  No bars where there is no room, or a value is not finite.
    """
    totals = [0]
    for _, value in rows:
        totals.append(totals[-1] + value)
    numbers = [signed(value, look) for _, value in rows]
    left = max([len(name) for name, _ in rows])
    right = max([len(number) for number in numbers])
    room = min(look.columns - left - right - 4, MOST_BARS)
    low, high = min(totals), max(totals)
    drawn = room >= FEWEST_BARS and all([a - a == 0 for a in totals]) and high > low
    zero = round((0 - low) / (high - low) * room) if drawn else 0
    lines = []
    for (name, value), number, *ends in zip(rows, numbers, totals, totals[1:]):
        line = f"{name:<{left}}  {number:>{right}}"
        if drawn:
            begin, end = sorted([round((a - low) / (high - low) * room) for a in ends])
            cells = [" "] * begin + ["=" if value > 0 else "-"] * (end - begin)
            cells += [" "] * (room - end)
            line = f"{line} {''.join(cells[:zero])}|{''.join(cells[zero:])}".rstrip()
        lines.append(text.shown(line, look))
    return lines


EXPLAINED = {
    "frozen_scale": "A row is what the writer gives to the logit, with the final norm's divisor "
                    "held at what it was in this run.",
    "gradient": "A row is the gradient of the logit at the final stream times what was written. "
                "The final norm hardly cares how long the stream is, so the rows nearly cancel."}
ORDERED = "A bar begins where the one above ended: = is added, - is taken away, | is 0."
MEASURED = ("cos is the cosine of the angle to the stream before. share is the part of the final "
            "stream that a row is, along it: all shares sum to 1, and what was written against "
            "the stream is below 0.")


def writers_lines(title, found, record, sort, most, checks, look, with_shares=False):
    """Contributions as a table: `record` is their contributions_record, sort is "order" or "size",
    most the number of rows or None; checks are those of the JSON.  Where a row is not finite, all
    stand in the order of the run, because there is no largest one."""
    rows = rows_of(found)
    if all([value - value == 0 for _, value in rows]):
        if most is not None:
            rows = few_rows(found.rows, most) + rows[-1:]
        if sort == "size":
            rows = sorted(rows, key=lambda pair: -abs(pair[1]))
    lines = text.wrapped(title, look) + [""]
    if sort == "order":
        lines += waterfall(rows, look)
    else:
        lines += bar_table(rows, look)
    lines += ["", f"sum {signed(found.total, look)}"]
    if with_shares:
        lines += [""] + share_lines(record, [name for name, _ in rows], look)
    if not look.quiet:
        lines += [""] + text.wrapped(EXPLAINED[found.method], look)
        lines += text.wrapped(ORDERED, look) if sort == "order" else []
    return lines + [""] + text.check_lines(checks, look)


def share_lines(record, names, look):
    """Lengths, cosines and shares of what writers with these names wrote, the share of the others
    together, and how much of all cancels."""
    if record["measures"] is None:
        return text.wrapped("The stream is zero or no number here; there are no shares.", look)
    rows = [[one["name"]] + [text.figure(one[key], look) for key in ("length", "cosine")]
            + [signed(one["share"], look)] for one in record["measures"] if one["name"] in names]
    others = [one["share"] for one in record["measures"] if one["name"] not in names]
    rows += [[f"{len(others)} others", ".", ".", signed(sum(others), look)]] if others else []
    lines = text.number_table(["writer", "length", "cos", "share"], rows, look)
    left = record["cancellation"]
    said = (f"The writes are {text.figure(left['written'], look)} long together and leave a "
            f"stream {text.figure(left['left'], look)} long: {left['factor']:.1f} times as much "
            "was written as is left.")
    return lines + [""] + text.wrapped(said, look) + (
        [] if look.quiet else text.wrapped(MEASURED, look))
