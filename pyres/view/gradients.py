"""How a gradient flows, as JSON and as lines of text: at every state, and by path length.

    grad_record, check_records    the `result` of the JSON, and its `checks`
    log_axis, curve_picture       three curves over the states, by the logarithm of the length
    bar                           a share as a row of marks
    grad_lines                    everything as text

A picture has one line a state and a letter where a curve is, so that it says the same in any
colour; what it shows stands in a table as numbers.

>>> for line in curve_picture(["embed", "L0.attn"], [("w", [4.0, 1.0]), ("b", [0.01, 1.0])],
...                           text.Look(columns=30)):
...     print(line)
         1e-2  1e-1   1e0 1e1
embed   |b               w   |
L0.attn |             *      |
"""
from math import ceil, comb, floor, log10

from . import text

__all__ = ["grad_record", "check_records", "log_axis", "curve_picture", "bar", "grad_lines"]


# ---- JSON ----

def grad_record(lengths, curves, by_length, by_path=()):
    """What `grad` found: StateLengths, Curves, the Mass of each path length, and pairs (Path,
    Mass) where the paths were asked for."""
    def mass_record(mass):
        return {"norm": mass.length, "share": mass.share}

    n = len(by_length) - 1
    record = {"states": curves.states,
              "curves": {"whole": curves.whole, "branches": curves.branches,
                         "rerun": curves.rerun},
              "identity": [one.identity for one in lengths],
              "branch": [one.branch for one in lengths],
              "by_path_length": [{"branches": l, "paths": comb(n, l), **mass_record(mass)}
                                 for l, mass in enumerate(by_length)]}
    if by_path:
        record["paths"] = [{"through": list(path.through), **mass_record(mass)}
                           for path, mass in by_path]
    return record


def check_records(path_check, slope_checks=()):
    """The PathCheck, and SlopeChecks where they were asked for."""
    def record(name, check):
        return {"name": name, "error": check.error, "tolerance": check.tolerance, "ok": check.ok}

    against = {"complex step": "a complex step", "differences": "differences"}
    return [record("the paths of all lengths sum to the gradient", path_check)] + [
        record(f"the gradient at {check.state} against {against[check.method]}", check)
        for check in slope_checks]


# ---- pictures ----

def log_axis(values, width):
    """Where powers of ten stand in so many columns: return (column, labels), with column(value)
    the place of a value above 0, and the powers named on one line, the ends first.

    >>> column, labels = log_axis([0.02, 5.0], 21)
    >>> column(0.01), column(1.0), column(10.0), labels
    (0, 13, 20, '1e-2   1e-1  1e0  1e1')
    """
    shown = [value for value in values if has_place(value)] or [1.0]
    low = floor(log10(min(shown)))
    high = max(low + 1, ceil(log10(max(shown))))

    def place(power):
        return round((power - low) / (high - low) * (width - 1))

    line = [" "] * width
    for power in [high, low] + list(range(low + 1, high)):
        label = f"1e{power}"
        start = max(0, min(place(power), width - len(label)))
        if not "".join(line[max(0, start - 1):start + len(label) + 1]).strip():
            line[start:start + len(label)] = label
    return lambda value: place(log10(value)), "".join(line).rstrip()


def has_place(value):
    """Whether a length has a logarithm to be drawn: above 0, and finite."""
    return value > 0 and value - value == 0


def curve_picture(names, curves, look):
    """Curves over states, from the top down: names of states, curves as pairs (letter, lengths).
    * stands where several meet.  A length of 0 has no logarithm, and is left out."""
    left = max([len(name) for name in names]) + 1
    width = look.columns - left - 2
    column, labels = log_axis([value for _, values in curves for value in values], width)
    lines = [f"{'':<{left + 1}}{labels}"]
    for i, name in enumerate(names):
        row = [" "] * width
        for letter, values in curves:
            if has_place(values[i]):
                at = column(values[i])
                row[at] = letter if row[at] == " " else "*"
        lines.append(f"{name:<{left}}|{''.join(row)}|")
    return lines


def bar(share, width):
    """A share from -1 to 1 as marks, + or -, to the nearest one of `width`; > where it is cut off.

    >>> bar(0.5, 8), bar(-0.25, 8), bar(3.0, 8), bar(None, 8)
    ('++++', '--', '+++++++>', '')
    """
    if share is None or share - share != 0:
        return ""
    n = round(abs(share) * width)
    mark = "+" if share > 0 else "-"
    return mark * n if n <= width else mark * (width - 1) + ">"


# ---- text ----

LEGEND = ("whole is the gradient's length over all positions. identity came straight down the "
          "stream, branch came back through the sublayer that reads the state; the two add as "
          "vectors, their lengths do not.")
WITHOUT = ("branches: the skips left out of the product, at this run's activations. rerun: a run "
           "of its own without skips. Neither is a model trained without them, and neither must "
           "shrink: where there are norms, each brings what a branch reads to one length again.")
PATHS = ("A path goes through a branch or around it at every step. Its share is how much of the "
         "whole gradient it is, along the whole: shares sum to 1, and one below 0 takes away from "
         "the others.")


def grad_lines(title, lengths, curves, by_length, by_path, checks, notes, look):
    """A gradient under a title: the arguments of grad_record, the checks made, and notes."""
    def paragraph(words):
        return [] if look.quiet else [""] + text.wrapped(words, look)

    lines = text.wrapped(title, look) + [""]
    header = ["state", "whole", "identity", "branch", "branches", "rerun"]
    lines += text.number_table(header, [
        [one.name] + [text.figure(a, look) for a in (one.total, one.identity, one.branch, alone,
                                                     again)]
        for one, alone, again in zip(lengths, curves.branches, curves.rerun)], look)
    lines += paragraph(LEGEND) + paragraph(WITHOUT) + [""]
    lines += text.painted("heading", text.wrapped(
        "w whole, b branches, r rerun, * where they meet", look), look)
    lines += curve_picture(curves.states, [("w", curves.whole), ("b", curves.branches),
                                           ("r", curves.rerun)], look)
    n = len(by_length) - 1
    lines += [""] + mass_table(["through", "paths"], [
        ([f"{l} {'branch' if l == 1 else 'branches'}", f"{comb(n, l):,}"], mass)
        for l, mass in enumerate(by_length)], look)
    if by_path:
        steps = curves.states[1:]
        lines += [""] + text.painted("heading", text.wrapped(
            "paths through (#) and around (.) " + ", ".join(steps), look), look)
        lines += mass_table(["path"], [
            (["".join(["#" if step in path.through else "." for step in steps])], mass)
            for path, mass in by_path], look)
    lines += paragraph(PATHS)
    for note in notes:
        lines += [""] + text.wrapped(note, look)
    return lines + [""] + text.check_lines(checks, look)


def mass_table(header, rows, look):
    """Parts of the gradient, from pairs (cells, Mass), with bars where they fit beside them.

    >>> from pyres.study.paths import Mass
    >>> rows = [(["0 branches"], Mass(3.0, 0.25)), (["1 branch"], Mass(4.0, 0.75))]
    >>> for line in mass_table(["through"], rows, text.Look(columns=38)):
    ...     print(line)
    through       |g|  share
    0 branches  3.000  0.250  +++
    1 branch    4.000  0.750  +++++++++
    """
    lines = text.number_table(header + ["|g|", "share"], [
        cells + [text.figure(mass.length, look), text.figure(mass.share, look)]
        for cells, mass in rows], look)
    room = look.columns - max([len(line) for line in lines[1:]]) - 2
    if len(lines) != len(rows) + 1 or room < 4:
        return lines
    bars = [""] + [bar(mass.share, min(room, 40)) for _, mass in rows]
    return [f"{line}  {marks}".rstrip() for line, marks in zip(lines, bars)]
