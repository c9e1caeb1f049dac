"""The one-screen answer as lines of text: at most 24 lines of 80 columns.

    look_lines    what look found -> lines

Where a model has many writers, those in the middle share one row, so that the column of
contributions still sums to the logit.
"""
from ..show import quoted
from .text import (check_lines, figure, number_table, painted, shown, small, updates_painted,
                   wrapped)

__all__ = ["look_lines"]

MOST_ROWS, MOST_TEXT, PROG = 10, 40, "python3 -m pyres"


def look_lines(result, checks, words, label, look):
    """The lines of what look found: result and checks of the JSON, words about the subject, and
    label(token), a token as text."""
    lines = painted("heading", wrapped(words["model"], look), look)
    lines += wrapped(f"{said(words['text'])}what comes after {words['last']}?", look)
    lines += table(result, words, label, look)
    lines += summed(result, checks, words, look)
    for note in [] if look.quiet else words["notes"]:
        lines += wrapped(note, look)
    lines += [""]
    lines += effect_lines(result["effect"], words, look)
    gradient = result["gradient"]
    lines += wrapped(f"Gradient reaching the embedding: {figure(gradient['whole'], look)}; "
                     f"through branches alone: {figure(gradient['branches'], look)}.", look)
    following = f"Next: {PROG} ablate {result['effect']['writer']} | writers | lens | grad | -h"
    return lines + ([] if look.quiet else wrapped(following, look))


def said(text):
    """The text that was given, or its end where it is long; nothing where ids were.

    >>> said("to be"), said("a" + "b" * 40) == "... '" + "b" * 40 + "': "
    ("'to be': ", True)
    """
    if text is None:
        return ""
    return "... " * (len(text) > MOST_TEXT) + f"{quoted(text[-MOST_TEXT:])}: "


def table(result, words, label, look):
    """The states, a row each."""
    rows = shortened(result["states"])
    head = ["state", "|x|", "|add|", "cos", "best guesses if it stopped here", toward(words)]
    cells = [["embed" if row["name"] == "embed" else f"+ {row['name']}"]
             + [two(row[key], look) for key in ("length", "added", "cosine")]
             + ["  ".join([f"{label(guess['token'])} {percent(guess['probability'])}"
                           for guess in row["guesses"]]), signed(row["contribution"], look)]
             for row in rows]
    return fitted(head, cells, [abs(row["contribution"]) for row in rows], look)


def toward(words):
    """The heading of the contributions."""
    against = "" if words["against"] is None else f"-{words['against']}"
    return f"to {words['target']}{against}"


def shortened(rows):
    """At most MOST_ROWS rows: those between the first and the last ones become one."""
    if len(rows) <= MOST_ROWS:
        return rows
    first, last = rows[:4], rows[5 - MOST_ROWS:]
    between = rows[4:5 - MOST_ROWS]
    middle = dict(between[-1], name=f"{len(between)} writers", added=None, cosine=None,
                  contribution=sum([row["contribution"] for row in between]))
    return first + [middle] + last


def fitted(head, cells, sizes, look):
    """The table's lines: numbers to the right, guesses to the left, and as many of them as fit;
    behind each contribution a bar where there is room.  Where the numbers alone do not fit, each
    row is a small table of its own."""
    widths = [max([len(row[k]) for row in [head] + cells]) for k in range(len(head))]
    room = look.columns - sum(widths[:4]) - widths[5] - 10
    if room < 0:
        numbers = [[shown(cell, look) for cell in row[:4] + row[5:]] for row in [head] + cells]
        return number_table(numbers[0], numbers[1:], look)
    widths[4] = max(0, min(widths[4], room))
    # a size that is not finite makes the sum so, and then there are no bars
    bar = min(8, room - widths[4] - 2) if sum(sizes) - sum(sizes) == 0 else 0
    most = max(sizes + [0])
    lines = []
    for row, size in zip([head] + cells, [0] + sizes):
        guess = row[4] if len(row[4]) <= widths[4] else cut(row[4], widths[4])
        line = (f"{row[0]:<{widths[0]}}  " + "  ".join(
            [f"{row[k]:>{widths[k]}}" for k in (1, 2, 3)])
            + f"  {guess:<{widths[4]}}  {row[5]:>{widths[5]}}")
        if bar > 0 and most > 0:
            line += "  " + "=" * round(bar * size / most)
        lines.append(shown(line.rstrip(), look))
    return painted("heading", lines[:1], look) + updates_painted(lines[1:], look)


def cut(text, width):
    """The guesses that fit whole, or nothing of a text that does not."""
    while "  " in text and len(text) > width:
        text = text.rpartition("  ")[0]
    return text if len(text) <= width else ""


def summed(result, checks, words, look):
    """What the contributions sum to, and whether everything adds up."""
    lines = wrapped(f"With the constant {signed(result['constant'], look)} they sum to the logit "
                    f"{signed(result['logit'], look)}.", look)
    if all([check["ok"] for check in checks]):
        worst = max([check["error"] for check in checks])
        return lines + wrapped(f"check: updates sum to the stream, contributions to the logit, "
                               f"parts to the effect (error {small(worst)})", look)
    return lines + check_lines(checks, look)


def effect_lines(effect, words, look):
    """What one writer did."""
    before, after = effect["before"], effect["after"]
    verb = "falls" if after < before else "rises" if after > before else "goes"
    parts = ", ".join([f"{name} {signed(effect[name], look)}"
                       for name in ("direct", "downstream", "rescale")])
    return (wrapped(f"Without {effect['writer']}, {words['target']} {verb} from "
                    f"{percent(before)} to {percent(after)}:", look)
            + wrapped(f"  {parts} = total {signed(effect['total'], look)}", look, "  "))


def two(x, look):
    """A length or an angle in few characters.

    >>> from .text import Look
    >>> two(1.0234, Look()), two(None, Look()), two(-0.5, Look())
    ('1.02', '.', '-0.50')
    """
    return figure(x, look._replace(precision=min(2, look.precision)))


def signed(x, look):
    """The same with its sign; 0 has none.

    >>> from .text import Look
    >>> signed(9.313, Look()), signed(-0.0, Look()), signed(-0.0004, Look())
    ('+9.31', '0.00', '-4e-04')
    """
    return ("+" if x > 0 else "") + two(x, look)


def percent(chance):
    """A chance in percent, in few characters.

    >>> percent(0.997), percent(0.00004), percent(1.0), percent(float("nan"))
    ('99.7%', '<0.1%', '100%', 'nan')
    """
    if 0 < chance < 0.0005:
        return "<0.1%"
    text = "%.1f" % (100 * chance)
    return text if text == "nan" else ("100" if text == "100.0" else text) + "%"
