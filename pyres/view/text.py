"""Results as lines of text: pure functions from data to lines that fit a terminal's columns.

    Look            columns, ascii, color, precision, quiet: how a result is to look
    shown, wrapped, painted, figure, exact, small    texts and numbers
    stream_table, item_table, pair_table             tables
    toy_lines, trace_lines, count_lines, info_lines, check_lines    what the commands print

A line that begins with + is an update, one with = the stream after it.  Colour repeats what such a
sign, a word or a number says, and is there only where it is asked for.  With ascii, every character
is one of ASCII's; what others wrote (names in files, tokens) is escaped where it would not show.

>>> look = Look(columns=40)
>>> for line in toy_lines([1, 2, 3], [("attention", [0.5, -1, 0]), ("MLP", None)],
...                       [[1, 2, 3], [1.5, 1, 3]], [0.5, -1, 0], look._replace(quiet=True)):
...     print(line)
stream       1     2  3
+ attention  0.5  -1  0
= stream     1.5   1  3
+ MLP        off
"""
import textwrap
from collections import namedtuple

from ..show import number, quoted
from . import trace_rows

__all__ = ["Look", "shown", "wrapped", "painted", "figure", "exact", "small", "stream_table",
           "item_table", "pair_table", "toy_lines", "trace_lines", "count_lines", "info_lines",
           "check_lines"]


class Look(namedtuple("Look", ("columns", "ascii", "color", "precision", "quiet"),
                      defaults=(80, False, False, 3, False))):
    """How a result is to look: columns of the terminal; ascii and color, whether only ASCII may be used
    and whether colour; precision, decimals of a number; quiet, whether explanations are left out.
    """


# ---- texts and numbers ----

def shown(text, look):
    r"""The text with everything escaped that would not show, or that moves the cursor.

    >>> print(shown("2·d\n", Look()), shown("2·d é", Look(ascii=True)))
    2·d\n 2*d \xe9
    """
    text = "".join([c if c.isprintable() else quoted(c)[1:-1] for c in text])
    if look.ascii:
        text = text.replace("·", "*").encode("ascii", "backslashreplace").decode("ascii")
    return text


def wrapped(text, look, indent=""):
    """The text as lines of at most look.columns, those after the first behind `indent`.

    >>> wrapped("a stream is a sum", Look(columns=12), indent="  ")
    ['a stream is', '  a sum']
    """
    return textwrap.wrap(shown(text, look), look.columns, subsequent_indent=indent)


PAINTS = {"heading": "\x1b[1m", "update": "\x1b[36m", "fault": "\x1b[1;33m"}


def painted(kind, line, look):
    r"""A whole line in the colour of its kind: heading, update, fault.

    >>> painted("heading", "weights", Look()), painted("heading", "weights", Look(color=True))
    ('weights', '\x1b[1mweights\x1b[0m')
    """
    return f"{PAINTS[kind]}{line}\x1b[0m" if look.color and line else line


def figure(x, look):
    """A length or an angle as text; with an exponent where decimals would show nothing, or too much;
    a point for None.

    >>> [figure(x, Look()) for x in (1.5, 0.0, 0.00001, 1e30, float("nan"), None)]
    ['1.500', '0.000', '1e-05', '1e+30', 'nan', '.']
    """
    if x is None:
        return "."
    plain = number(x, look.precision)
    is_finite = x - x == 0
    if is_finite and (abs(x) >= 1e7 or x != 0 and float(plain) == 0):
        return "%.0e" % x
    return plain


def exact(x):
    """An exact number as text, as a decimal where it is one.

    >>> from fractions import Fraction
    >>> exact(Fraction(-3, 2)), exact(Fraction(1, 3)), exact(7)
    ('-1.5', '1/3', '7')
    """
    if isinstance(x, float):
        return repr(x)
    digits = 0
    while 10 ** digits % x.denominator and digits < 12:
        digits += 1
    if digits == 0 or 10 ** digits % x.denominator:
        return str(x)
    shifted = str(abs(x.numerator) * 10 ** digits // x.denominator).zfill(digits + 1)
    return ("-" if x < 0 else "") + shifted[:-digits] + "." + shifted[-digits:]


def small(x):
    """An error as text: its size in one digit, or 0.

    >>> small(0), small(2.22e-16), small(float("nan"))
    ('0', '2e-16', 'nan')
    """
    return "0" if x == 0 else "%.0e" % x


def counted(n, one, many=None):
    """How many there are, in words.

    >>> counted(1, "block"), counted(3, "block")
    ('1 block', '3 blocks')
    """
    return f"{n} {one if n == 1 else many or one + 's'}"


# ---- tables ----

def stream_table(rows, look):
    """Vectors under one another, from pairs (label, numbers as texts): as many channels beside one
    another as fit, then the next ones.  Where there are no numbers a text stands in their place.

    >>> for line in stream_table([("stream", ["1", "-0.5"]), ("= stream", ["10.25", "2"])], Look()):
    ...     print(line)
    stream     1     -0.5
    = stream  10.25   2
    """
    vectors = [cells for _, cells in rows if not isinstance(cells, str)]
    columns = [aligned(column) for column in zip(*vectors)]
    left = max(len(label) for label, _ in rows)
    chunks = list(chunked([len(column[0]) + 2 for column in columns], look.columns - left))
    lines = []
    for begin, end in chunks:
        if len(chunks) > 1:
            lines += [""] if lines else []
            lines.append(painted("heading", f"channels {begin} to {end - 1}", look))
        numbers = zip(*[columns[i] for i in range(begin, end)])
        for label, cells in rows:
            beside = cells if isinstance(cells, str) else "  ".join(next(numbers))
            line = f"{label:<{left}}  {beside}".rstrip()
            lines.append(painted("update", line, look) if label.startswith("+") else line)
    return lines


def aligned(texts):
    """Numbers as texts of one length, point under point.

    >>> aligned(["1", "-0.5", "10.25"])
    [' 1   ', '-0.5 ', '10.25']
    """
    parts = [text.partition(".") for text in texts]
    before = max(len(whole) for whole, _, _ in parts)
    after = max(len(point + decimals) for _, point, decimals in parts)
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
    if widths:
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
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows)]
    if sum(widths) + 2 * len(widths) - 2 > look.columns:
        return [line for name, *cells in rows
                for line in [name] + [f"  {what} {cell}" for what, cell in zip(header[1:], cells)]]
    lines = [row[0].ljust(widths[0]) + "".join(
        [cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:])])
        for row in [header] + rows]
    return [painted("heading", lines[0], look)] + [
        painted("update", line, look) if line.startswith("+") else line for line in lines[1:]]


def item_table(sections, look):
    """Counts under headings, from pairs (heading, items).  A formula stands beside its name, or below
    where there is no room.

    >>> from pyres.study.counting import Item
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
    items = [one for _, of_section in sections for one in of_section]
    names = max([len(one.name) for one in items])
    values = max([len(f"{one.value:,}") for one in items])
    room = look.columns - names - values - 4
    formulas = max([len(one.formula) for one in items if len(one.formula) <= room] + [0])
    gap = 2 * (formulas > 0)
    lines = []
    for heading, of_section in sections:
        lines += ([""] if lines else []) + wrapped_heading(heading, look)
        for one in of_section:
            beside = one.formula if len(one.formula) <= room else ""
            lines.append(shown(f"{one.name:<{names}}  {beside:<{formulas + gap}}"
                               f"{one.value:>{values},}", look))
            if beside != one.formula:
                lines += wrapped("  " + one.formula, look, "    ")
    return lines


def wrapped_heading(heading, look):
    return [painted("heading", line, look) for line in wrapped(heading, look)]


def pair_table(pairs, look):
    """Names and what they are, as text, wrapped beside its name.

    >>> pair_table([("family", "gpt2"), ("n_layers", "2")], Look())
    ['family    gpt2', 'n_layers  2']
    """
    left = max(len(name) for name, _ in pairs) + 2
    return [line for name, value in pairs
            for line in wrapped(f"{name:<{left}}{value}", look, " " * left)]


# ---- toy ----

def toy_lines(x, updates, states, total, look):
    """The table of three numbers: x, updates as pairs (name, update or None where it is switched off),
    the states of the stream, and what was added in all.
    """
    rows, later = [("stream", [exact(a) for a in x])], iter(states[1:])
    for name, update in updates:
        if update is None:
            rows.append((f"+ {name}", "off"))
            continue
        rows += [(f"+ {name}", [exact(a) for a in update]),
                 ("= stream", [exact(a) for a in next(later)])]
    if look.quiet:
        return stream_table(rows, look)
    return (wrapped("One stream, and what each sublayer adds to it:", look) + [""]
            + stream_table(rows, look) + [""]
            + wrapped("Added in all (the last stream minus the first): "
                      + ", ".join([exact(a) for a in total]), look))


# ---- trace ----

LEGEND = ("|x| is the stream's length, |add| that of what was added, and cos the cosine between what "
          "was added and the stream before: 1 is the same direction, 0 a right angle, -1 opposite.")


def trace_lines(run, selection, position, checks, look, vectors=False):
    """What each writer did to the stream of a Run at one position; selection as view.between gives it."""
    rows = trace_rows(selection, position)
    cells = [("+ " * (row.name != "embed" and row.update is not None) + row.name,
              figure(row.state_length, look), figure(row.update_length, look),
              figure(row.cosine, look)) for row in rows]
    lines = wrapped(trace_title(run, position), look) + [""]
    lines += number_table(("state", "|x|", "|add|", "cos"), cells, look)
    if vectors:
        lines += [""] + stream_table(vector_rows(run, rows, look), look)
    explained = [] if look.quiet else [""] + wrapped(LEGEND, look)
    return lines + explained + [""] + check_lines(checks, look)


def trace_title(run, position):
    config, token = run.model.config, run.tokens[position]
    tokenizer = run.model.tokenizer
    text = "" if tokenizer is None else " " + quoted(tokenizer.decode([token]))
    return (f"{run.model.name}: {counted(len(config.blocks), 'block')}, d_model {config.d_model}, "
            f"{counted(len(run.writers), 'writer')}.  Token {token}{text} at position {position} of "
            f"0 to {len(run.tokens) - 1}.")


def vector_rows(run, rows, look):
    """The vectors of trace_rows, labelled; post-norm's state is no sum, and says so."""
    normed = {f"L{i}.{branch}" for i, block in enumerate(run.model.config.blocks)
              for branch in ("attn", "mlp") if block.placement == "post_norm"}

    def texts(v):
        return [number(a, look.precision) for a in v]

    labelled = []
    for row in rows:
        if row.update is None or row.name == "embed":
            labelled.append((row.name, texts(row.state)))
            continue
        labelled.append((f"+ {row.name}", texts(row.update)))
        if row.state is not None:
            labelled.append(("= norm(stream)" if row.name in normed else "= stream",
                             texts(row.state)))
    return labelled


def check_lines(checks, look):
    """What was checked, in words: dicts of name, error, tolerance, ok.

    >>> check_lines([{"name": "a + b = c", "error": 1e-16, "tolerance": 4e-16, "ok": True}], Look())
    ['check: a + b = c holds; the error is 1e-16, rounding explains 4e-16']
    >>> check_lines([{"name": "a + b = c", "error": 0, "tolerance": 0, "ok": True}], Look())
    ['check: a + b = c holds exactly']
    """
    lines = []
    for check in checks:
        if check["ok"] and check["error"] == 0 == check["tolerance"]:
            words = "holds exactly"
        else:
            words = (f"{'holds' if check['ok'] else 'DOES NOT HOLD'}; the error is "
                     f"{small(check['error'])}, rounding explains {small(check['tolerance'])}")
        found = wrapped(f"check: {check['name']} {words}", look, "  ")
        lines += found if check["ok"] else [painted("fault", line, look) for line in found]
    return lines


# ---- count ----

WORDS = {"d": "d_model", "f": "d_mlp", "H": "n_heads", "K": "n_kv_heads", "h": "d_head",
         "L": "n_layers", "V": "d_vocab", "T": "n_ctx"}


def count_lines(count, notes, look):
    """A Count, itemised."""
    sections = []
    if count.weights:
        total = count.writers._replace(name="total", formula="", value=count.total)
        sections.append(("weights", count.weights + [total]))
    sections.append(("writers", [count.writers]))
    if not look.quiet:
        seen = counted(count.n_seen, "token")
        sections += [(heading, items) for heading, items in (
            (f"multiply-adds for a token that sees n = {seen}", count.multiply_adds),
            (f"cache of n = {seen}", count.cache)) if items]
    lines = item_table(sections, look)
    if look.quiet:
        return lines
    letters = ", ".join([f"{letter} = {WORDS[letter]} {size}" for letter, size in count.sizes])
    lines += [""] + wrapped(letters, look)
    for note in notes:
        lines += [""] + wrapped(note, look)
    return lines


# ---- model ----

def info_lines(sizes, result, checks, look):
    """What a folder holds: sizes, a dict of the model's, and the result of `model info`, a dict."""
    pairs = [(name, str(value)) for name, value in sizes.items() if name != "sha256"]
    pairs += [("weights", f"{result['total']:,}"),
              ("unembedding", "tied to w_embed" if result["tied"] else "its own")]
    lines = pair_table(pairs, look)
    for file in result["files"]:
        kinds = "".join([", " + kind for kind in file["dtypes"]])
        lines += [""] + wrapped_heading(f"{file['name']}: {file['bytes']:,} bytes{kinds}", look)
        lines += wrapped("sha256 " + file["sha256"], look)
    for heading, names in (("skipped buffers (tensors that are no weights)", result["buffers"]),
                           ("config keys that are not read", result["config_keys_not_read"])):
        lines += [""] + wrapped_heading(heading, look) + wrapped(", ".join(names) or "none", look)
    return lines + [""] + check_lines(checks, look)
