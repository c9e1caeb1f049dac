"""Results as lines of text: pure functions from data to lines that fit a terminal's columns.

    Look                                      how a result is to look
    shown, wrapped, listed, painted           texts
    figure, exact, small, counted             numbers
    stream_table, number_table, item_table, pair_table    tables
    check_lines                               what was checked
    toy_lines, trace_lines, count_lines, info_lines, verdict_lines    what the commands print

A line that begins with + is an update, one with = the stream after it.  Colour repeats what such
a sign or a word says, and is there only where it is asked for.  With ascii, every character is one
of ASCII's.  What others wrote (names in files, tokens) is escaped where it would not show.

>>> updates = [("attention", [0.5, -1, 0]), ("MLP", None)]
>>> for line in toy_lines(updates, [[1, 2, 3], [1.5, 1, 3]], [0.5, -1, 0], Look(quiet=True)):
...     print(line)
stream       1     2  3
+ attention  0.5  -1  0
= stream     1.5   1  3
+ MLP        off
"""
import re
import textwrap
from collections import namedtuple

from ..show import number, quoted
from ..study.counting import Item
from . import trace_rows
from .tokens import token_text

__all__ = ["Look", "SPECIAL", "shown", "wrapped", "listed", "painted", "figure", "exact", "small",
           "counted", "stream_table", "number_table", "item_table", "pair_table", "check_lines",
           "toy_lines", "trace_lines", "count_lines", "info_lines", "verdict_lines"]


class Look(namedtuple("Look", ("columns", "ascii", "color", "precision", "quiet"),
                      defaults=(80, False, False, 3, False))):
    """How a result is to look.

    columns      the longest line
    ascii        whether only ASCII characters are used
    color        whether there is colour
    precision    decimals of a number
    quiet        whether explanations are left out
    """


# ---- texts ----

# the only character beyond ASCII that is used, and what stands for it
SPECIAL, PLAIN = "·", "*"


def shown(text, look):
    r"""The text with everything escaped that would not show, or that moves the cursor.

    >>> print(shown("2·d\n", Look()), shown("2·d é", Look(ascii=True)))
    2·d\n 2*d \xe9
    """
    text = "".join([c if c.isprintable() else quoted(c)[1:-1] for c in text])
    if look.ascii:
        text = text.replace(SPECIAL, PLAIN).encode("ascii", "backslashreplace").decode("ascii")
    return text


# the spaces at the beginning and at the end of a token in quotes
OF_TOKENS = re.compile(r"""(?<!\S)['"] +| +(?=['"](\W|\Z))""")


def wrapped(text, look, indent=""):
    """The text as lines of at most look.columns, those after the first behind `indent`.  No line
    is broken at a space that a token begins or ends with, for there it would be lost.

    >>> wrapped("a stream is a sum", Look(columns=12), indent="  ")
    ['a stream is', '  a sum']
    >>> wrapped("what comes after ' the'?", Look(columns=18))
    ['what comes', "after ' the'?"]
    """
    # no-break spaces: of those in the text itself, shown leaves none
    text = OF_TOKENS.sub(lambda found: found.group().replace(" ", "\xa0"), shown(text, look))
    lines = textwrap.wrap(text, look.columns, subsequent_indent=indent)
    return [line.replace("\xa0", " ") for line in lines]


def listed(items, look):
    """Short texts with commas between them, none broken in two.

    >>> listed(["d = d_model 4", "f = d_mlp 8"], Look(columns=20))
    ['d = d_model 4,', 'f = d_mlp 8']
    """
    lines = []
    for text in [shown(item, look) for item in items]:
        if lines and len(lines[-1]) + len(text) + 3 <= look.columns:
            lines[-1] += ", " + text
        else:
            lines = lines[:-1] + [line + "," for line in lines[-1:]] + [text]
    return lines


PAINTS = {"heading": "\x1b[1m", "update": "\x1b[36m", "fault": "\x1b[1;33m"}


def painted(kind, lines, look):
    r"""Whole lines in the colour of their kind: heading, update, fault.

    >>> painted("heading", ["cache"], Look()), painted("heading", ["cache"], Look(color=True))
    (['cache'], ['\x1b[1mcache\x1b[0m'])
    """
    return [f"{PAINTS[kind]}{line}\x1b[0m" if look.color else line for line in lines]


def updates_painted(lines, look):
    """Lines of a table, those of updates in their colour."""
    return [painted("update", [line], look)[0] if line.startswith("+") else line for line in lines]


# ---- numbers ----

def figure(x, look):
    """A length or an angle as text; with an exponent where decimals would show nothing, or too
    much; a point for None.

    >>> [figure(x, Look()) for x in (1.5, 0.0, 0.00001, 1e30, float("nan"), None)]
    ['1.500', '0.000', '1e-05', '1e+30', 'nan', '.']
    """
    if x is None:
        return "."
    text = number(x, look.precision)
    shows_nothing = x != 0 and float(text) == 0
    shows_too_much = x - x == 0 and abs(x) >= 1e7               # inf - inf is nan
    return small(x) if shows_nothing or shows_too_much else text


def small(x):
    """The size of a number as text, in one digit, or 0.

    >>> small(0), small(2.22e-16), small(float("nan"))
    ('0', '2e-16', 'nan')
    """
    return "0" if x == 0 else "%.0e" % x


def exact(x):
    """An exact number as text: a decimal where it is one, else a fraction.

    >>> from fractions import Fraction
    >>> exact(Fraction(-3, 2)), exact(Fraction(1, 3)), exact(7), exact(0.5)
    ('-1.5', '1/3', '7', '0.5')
    """
    if isinstance(x, float):
        return repr(x)
    digits = 0
    while 10 ** digits % x.denominator and digits < 12:
        digits += 1
    if digits == 0 or 10 ** digits % x.denominator:
        return str(x)
    all_digits = str(abs(x.numerator) * 10 ** digits // x.denominator).zfill(digits + 1)
    return ("-" if x < 0 else "") + all_digits[:-digits] + "." + all_digits[-digits:]


def counted(n, thing):
    """How many there are, in words.

    >>> counted(1, "block"), counted(3, "block")
    ('1 block', '3 blocks')
    """
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


# ---- tables ----

def stream_table(rows, look):
    """Vectors under one another, from pairs (label, numbers as texts): as many channels as fit,
    then the next ones.  Where a row has no numbers, a text stands in their place.

    >>> rows = [("stream", ["1", "-0.5"]), ("= stream", ["10.25", "2"])]
    >>> for line in stream_table(rows, Look()):
    ...     print(line)
    stream     1     -0.5
    = stream  10.25   2
    """
    columns = [aligned(column) for column
               in zip(*[cells for _, cells in rows if not isinstance(cells, str)])]
    left = max([len(label) for label, _ in rows])
    lines = []
    chunks = list(chunked([len(column[0]) + 2 for column in columns], look.columns - left))
    for begin, end in chunks:
        if len(chunks) > 1:
            lines += [""] * (begin > 0)
            title = f"channels {begin} to {end - 1}" if end - begin > 1 else f"channel {begin}"
            lines += painted("heading", [title], look)
        numbers = zip(*columns[begin:end])
        for label, cells in rows:
            beside = cells if isinstance(cells, str) else "  ".join(next(numbers))
            lines += updates_painted([f"{label:<{left}}  {beside}".rstrip()], look)
    return lines


def aligned(texts):
    """Numbers as texts of one length, point under point.

    >>> aligned(["1", "-0.5", "10.25"])
    [' 1   ', '-0.5 ', '10.25']
    """
    parts = [text.partition(".") for text in texts]
    before = max([len(whole) for whole, _, _ in parts])
    after = max([len(point + decimals) for _, point, decimals in parts])
    return [f"{whole:>{before}}{point + decimals:<{after}}" for whole, point, decimals in parts]


def chunked(widths, room):
    """Pairs (begin, end) of neighbours whose widths fit into the room, at least one each time.

    >>> list(chunked([4, 4, 4, 9, 4], 10))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    begin, used = 0, 0
    for i, width in enumerate(widths):
        if used + width > room and i > begin:
            yield begin, i
            begin, used = i, 0
        used += width
    yield begin, len(widths)


def number_table(header, rows, look):
    """Rows of texts under a header, the first column on the left, the others on the right; where
    they do not fit beside one another, each row is a small table of its own.

    >>> rows = [("embed", "1.5", "."), ("+ L0.attn", "2.0", "0.75")]
    >>> for line in number_table(("state", "|x|", "|add|"), rows, Look()):
    ...     print(line)
    state      |x|  |add|
    embed      1.5      .
    + L0.attn  2.0   0.75
    """
    widths = [max([len(cell) for cell in column]) for column in zip(header, *rows)]
    if sum(widths) + 2 * len(widths) - 2 > look.columns:
        return updates_painted([line for name, *cells in rows for line in [name] + [
            f"  {what} {cell}" for what, cell in zip(header[1:], cells)]], look)
    lines = [f"{row[0]:<{widths[0]}}" + "".join(
        [f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:])])
        for row in [header] + rows]
    return painted("heading", lines[:1], look) + updates_painted(lines[1:], look)


def item_table(sections, look):
    """Counts under headings, from pairs (heading, Items).  A formula stands beside its name, or
    below where there is no room; a name that leaves none for its value stands above it.

    >>> items = [Item("mlp w_up, w_down", "2·d·f = 2·4·8", 64), Item("total", "", 64)]
    >>> for line in item_table([("weights", items)], Look()) + item_table([("", items)], Look(28)):
    ...     print(line)
    weights
    mlp w_up, w_down  2·d·f = 2·4·8  64
    total                            64
    mlp w_up, w_down  64
      2·d·f = 2·4·8
    total             64
    """
    items = [one for _, in_section in sections for one in in_section]
    values = max([len(f"{one.value:,}") for one in items])
    names = min(max([len(one.name) for one in items]) + 2, look.columns - values)
    room = look.columns - names - values - 2
    fitting = [len(one.formula) + 2 for one in items if 0 < len(one.formula) <= room]
    formulas = max(fitting + [0])
    lines = []
    for heading, in_section in sections:
        lines += [""] * bool(lines) + painted("heading", wrapped(heading, look), look)
        for one in in_section:
            name, formula = one.name, one.formula
            if len(name) > names - 2:
                lines, name = lines + wrapped(name, look, "  "), ""
            beside = formula if len(formula) <= room else ""
            lines.append(shown(f"{name:<{names}}{beside:<{formulas}}{one.value:>{values},}", look))
            if formula != beside:
                lines += wrapped("  " + formula, look, "    ")
    return lines


def pair_table(pairs, look):
    """Names and what they are, as text, wrapped beside its name.

    >>> pair_table([("family", "gpt2"), ("n_layers", "2")], Look())
    ['family    gpt2', 'n_layers  2']
    """
    left = max([len(name) for name, _ in pairs]) + 2
    return [line for name, value in pairs
            for line in wrapped(f"{name:<{left}}{value}", look, " " * left)]


# ---- checks ----

def check_lines(checks, look):
    """What was checked, in words: dicts of name, error, tolerance, ok.

    >>> check = {"name": "a + b = c", "error": 1e-16, "tolerance": 4e-16, "ok": True}
    >>> check_lines([check, dict(check, error=0, tolerance=0)], Look())
    ['check: a + b = c holds; the error is 1e-16, rounding explains 4e-16', \
'check: a + b = c holds exactly']
    """
    lines = []
    for check in checks:
        words = "holds" if check["ok"] else "DOES NOT HOLD"
        if check["ok"] and check["error"] == 0 == check["tolerance"]:
            words += " exactly"
        else:
            words += (f"; the error is {small(check['error'])}, "
                      f"rounding explains {small(check['tolerance'])}")
        found = wrapped(f"check: {check['name']} {words}", look, "  ")
        lines += found if check["ok"] else painted("fault", found, look)
    return lines


# ---- toy ----

def toy_lines(updates, states, total, look):
    """The table of three numbers: updates as pairs (name, update), None where one is switched off;
    the states of the stream; what was added in all.
    """
    rows, later = [("stream", [exact(a) for a in states[0]])], iter(states[1:])
    for name, update in updates:
        if update is None:
            rows.append((f"+ {name}", "off"))
        else:
            rows += [(f"+ {name}", [exact(a) for a in update]),
                     ("= stream", [exact(a) for a in next(later)])]
    table = stream_table(rows, look)
    if look.quiet:
        return table
    in_all = ("Added in all, which is the last stream minus the first: "
              + ", ".join([exact(a) for a in total]))
    return (wrapped("One stream, and what each sublayer adds to it:", look) + [""] + table + [""]
            + wrapped(in_all, look))


# ---- trace ----

LEGEND = ("|x| is the length of the stream, |add| of what was added, and cos is the cosine of the "
          "angle between what was added and the stream before: 1 is the same direction, 0 a right "
          "angle, -1 the opposite direction.")


def trace_lines(run, selection, position, checks, look, vectors=False):
    """What each writer did to the stream of a Run at one position: a Selection of the run's states
    and writers, the checks that were made; with vectors, the numbers too.
    """
    rows = trace_rows(selection, position)
    cells = [[row.name if row.update is None or row.name == "embed" else f"+ {row.name}"]
             + [figure(x, look) for x in (row.state_length, row.update_length, row.cosine)]
             for row in rows]
    lines = wrapped(trace_title(run, position), look) + [""]
    lines += number_table(["state", "|x|", "|add|", "cos"], cells, look)
    if vectors:
        lines += [""] + stream_table(vector_rows(run, rows, look), look)
    if not look.quiet:
        lines += [""] + wrapped(LEGEND, look)
    return lines + [""] + check_lines(checks, look)


def trace_title(run, position):
    """Which model was run, and which token the table is about."""
    token = run.tokens[position]
    text = "" if run.model.tokenizer is None else " " + token_text(run.model, token)
    return (f"{run.model.name}: {counted(len(run.steps.blocks), 'block')}, "
            f"d_model {run.model.config.d_model}, {counted(len(run.writers), 'writer')}.  "
            f"Token {token}{text} at position {position} of 0 to {len(run.tokens) - 1}.")


def vector_rows(run, rows, look):
    """The vectors of trace_rows as rows of a stream_table.  Post-norm's state is not the sum, and
    its label says so.
    """
    def row_of(label, v):
        return label, [number(a, look.precision) for a in v]

    normed = {f"L{i}.{branch}" for i, block in enumerate(run.model.config.blocks)
              for branch in ("attn", "mlp") if block.placement == "post_norm"}
    labelled = []
    for row in rows:
        if row.update is None or row.name == "embed":
            labelled.append(row_of(row.name, row.state))
            continue
        labelled.append(row_of(f"+ {row.name}", row.update))
        if row.state is not None:
            labelled.append(row_of("= norm(sum)" if row.name in normed else "= stream", row.state))
    return labelled


# ---- count ----

LETTERS = {"d": "d_model", "f": "d_mlp", "H": "n_heads", "K": "n_kv_heads", "h": "d_head",
           "L": "n_layers", "V": "d_vocab", "T": "n_ctx"}


def count_lines(count, notes, look):
    """A Count, itemised, and notes, each a paragraph."""
    seen = counted(count.n_seen, "token")
    sections = [("writers", [count.writers])]
    if count.weights:
        sections.insert(0, ("weights", count.weights + [Item("total", "", count.total)]))
    if look.quiet:
        return item_table(sections, look)
    if count.multiply_adds:
        sections.append((f"multiply-adds of a token that sees n = {seen}", count.multiply_adds))
    if count.cache:
        sections.append((f"cache of n = {seen}", count.cache))
    lines = item_table(sections, look) + [""]
    lines += listed([f"{letter} = {LETTERS[letter]} {size}" for letter, size in count.sizes], look)
    for note in notes:
        lines += [""] + wrapped(note, look)
    return lines


# ---- model ----

def info_lines(sizes, result, checks, look):
    """What a model is: sizes and result are `model` and `result` of the JSON."""
    pairs = [(name, str(size)) for name, size in sizes.items() if name != "sha256"]
    pairs += [("unembedding", "tied to w_embed" if result["tied"] else "its own"),
              ("weights", f"{result['total']:,}")]
    lines = pair_table(pairs, look)
    for file in result["files"]:
        title = ", ".join([f"{file['name']}: {file['bytes']:,} bytes"] + file["dtypes"])
        lines += [""] + painted("heading", wrapped(title, look), look)
        lines += wrapped("sha256 " + file["sha256"], look)
    for title, names in (("buffers, tensors that are no weights, skipped", result["buffers"]),
                         ("config keys that are not read", result["config_keys_not_read"])):
        lines += [""] + painted("heading", wrapped(title, look), look)
        lines += wrapped(", ".join(names) or "none", look)
    return lines + [""] + check_lines(checks, look)


def verdict_lines(title, checks, look):
    """Checks under a title that says whether all of them hold."""
    holds = all([check["ok"] for check in checks])
    verdict = "everything adds up." if holds else "NOT everything adds up."
    return (painted("heading" if holds else "fault", wrapped(f"{title}: {verdict}", look), look)
            + [""] + check_lines(checks, look))
