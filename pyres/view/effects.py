"""What an edit did, as JSON and as lines of text: effects, patches, subsets.

    signed, bar_table                   numbers with their sign, and bars on both sides of 0
    check_record, outcome_record        a SumCheck; what a run gives for a metric, and guesses
    effect_record, effect_lines         an Effect
    subsets_record, subsets_lines       Subsets

Bars say again what the numbers beside them say: to the left of the axis is below 0.

>>> for line in bar_table([("direct", 0.5), ("downstream", -2.0)], text.Look(columns=30)):
...     print(line)
direct      +0.500      |=
downstream  -2.000 =====|
"""
import math

from ..study.subsets import interactions, subset_names
from . import text
from .rounding import guesses

__all__ = ["signed", "bar_table", "few_rows", "check_record", "outcome_record", "effect_record",
           "effect_lines", "subsets_record", "subsets_lines"]


# ---- numbers and bars ----

def signed(x, look):
    """A number as text with its sign; 0 has none.

    >>> signed(1.5, text.Look()), signed(-1.5, text.Look()), signed(0.0, text.Look())
    ('+1.500', '-1.500', '0.000')
    """
    return ("+" if x > 0 else "") + text.figure(x, look)


FEWEST_BARS, MOST_BARS = 4, 20


def bar_table(rows, look):
    """Pairs (name, value) under one another, each with a bar as long as the value is large beside
    the largest; no bars where there is no room, or a value is not finite.  A name that leaves no
    room for its number stands above it.

    >>> bar_table([("L0.attn L0.mlp", 18.0)], text.Look(columns=20))
    ['L0.attn L0.mlp', '  +18.000']
    """
    names = [text.shown(name, look) for name, _ in rows]
    values = [value for _, value in rows]
    numbers = [signed(value, look) for value in values]
    left, right = max(map(len, names)), max(map(len, numbers))
    if left + right + 2 > look.columns:
        return [line for name, number in zip(names, numbers)
                for line in text.wrapped(name, look, "  ") + ["  " + number]]
    lines = [f"{name:<{left}}  {number:>{right}}" for name, number in zip(names, numbers)]
    room = min((look.columns - left - right - 4) // 2, MOST_BARS)
    if room < FEWEST_BARS or not all([value - value == 0 for value in values]):
        return lines
    longest = max([abs(value) for value in values]) or 1
    return [f"{line} {bar_text(value / longest, room)}" for line, value in zip(lines, values)]


def bar_text(share, room):
    """A bar of -room to room marks, below 0 to the left of the axis.

    >>> bar_text(-0.5, 4), bar_text(1, 4)
    ('  ==|', '    |====')
    """
    bar = "=" * round(abs(share) * room)
    return f"{bar:>{room}}|" if share < 0 else f"{'':>{room}}|{bar}"


def few_rows(rows, n):
    """At most n rows of pairs (name, value), the largest in their order and what is not finite
    before all, and one that sums up the others.

    >>> few_rows([("a", 1.0), ("b", -9.0), ("c", 2.0), ("d", 5.0)], 3)
    [('b', -9.0), ('d', 5.0), ('2 others', 3.0)]
    """
    if len(rows) <= n:
        return rows
    sizes = [abs(value) if value - value == 0 else math.inf for _, value in rows]
    kept = sorted(sorted(range(len(rows)), key=lambda i: -sizes[i])[:n - 1])
    others = [value for i, (_, value) in enumerate(rows) if i not in kept]
    return [rows[i] for i in kept] + [(f"{len(others)} others", sum(others))]


# ---- JSON ----

def check_record(check):
    """A sums.SumCheck as one of the `checks`."""
    return {"name": check.rule, "error": check.error, "tolerance": check.tolerance,
            "ok": check.ok}


def outcome_record(run, position, value, n=3):
    """What a Run gives: a metric's value, named logit, and the likeliest tokens at a position."""
    return {"logit": value, "guesses": guesses(run.logits[position], n)}


def effect_record(found):
    """An effects.Effect, as `result.effect`."""
    return {"direct": found.direct, "downstream": found.downstream, "rescale": found.rescale,
            "total": found.total, "first_order": found.first_order,
            "ledger": [{"name": name, "value": value} for name, value in found.ledger]}


def subsets_record(found):
    """subsets.Subsets: Shapley values, interactions with the largest first, and every value."""
    return {"writers": found.writers, "none": found.values[0], "all": found.values[-1],
            "shapley": [{"name": name, "value": value}
                        for name, value in zip(found.writers, found.shapley)],
            "interactions": [{"writers": names, "value": value}
                             for names, value in interactions(found)],
            "values": [{"writers": subset_names(found.writers, subset), "value": value}
                       for subset, value in enumerate(found.values)]}


# ---- text ----

SPLIT = ("direct is the edited update alone, everything else as it was; downstream, what later "
         "writers make of it; rescale, the final norm's divisor. total is their sum. first order "
         "is the estimate from the gradient: its product with the change of the update.")
KEPT = "Later writers keep their updates, so nothing is downstream."
MOST_ROWS = 12


def outcome_table(of, outcomes, token_text, look):
    """Outcomes side by side, as pairs (heading, outcome_record): the metric, whose name is `of`,
    and guess after guess.
    """
    def guess(outcome, k):
        if k >= len(outcome["guesses"]):
            return "."
        found = outcome["guesses"][k]
        return text.shown(f"{token_text(found['token'])} {100 * found['probability']:.0f}%", look)

    n = max([len(outcome["guesses"]) for _, outcome in outcomes])
    rows = [[text.shown(of, look)] + [text.figure(outcome["logit"], look)
                                      for _, outcome in outcomes]]
    rows += [[f"guess {k + 1}"] + [guess(outcome, k) for _, outcome in outcomes] for k in range(n)]
    return text.number_table([""] + [heading for heading, _ in outcomes], rows, look)


def closing_lines(checks, notes, look):
    """What was checked, and notes, each a paragraph, unless explanations are left out."""
    lines = [""] + text.check_lines(checks, look)
    return lines if look.quiet else lines + [
        line for note in notes for line in [""] + text.wrapped(note, look)]


def effect_lines(title, of, outcomes, found, frozen, token_text, checks, notes, look):
    """An Effect: what was done, as a title; outcomes as in outcome_table; the parts and the ledger
    with bars; the checks that were made, and notes.
    """
    lines = text.wrapped(title, look) + [""] + outcome_table(of, outcomes, token_text, look) + [""]
    lines += bar_table([("direct", found.direct), ("downstream", found.downstream),
                        ("rescale", found.rescale), ("total", found.total),
                        ("first order", found.first_order)], look)
    if not look.quiet:
        lines += [""] + text.wrapped(SPLIT, look)
    later = [(name, value) for name, value in found.ledger if value != 0]
    if later:
        lines += [""] + text.painted("heading", text.wrapped("downstream, by writer", look), look)
        lines += bar_table(few_rows(later, MOST_ROWS), look)
    elif frozen:
        lines += [""] + text.wrapped(KEPT, look)
    return lines + closing_lines(checks, notes, look)


ACCOUNTS = ("A Shapley value is what a writer adds when the writers are switched on one after the "
            "other, on average over all orders. An interaction is what some writers do together "
            "that no fewer of them do.")


def subsets_lines(title, of, found, checks, notes, look):
    """Subsets: the Shapley values and the largest interactions with bars, the checks, notes."""
    lines = text.wrapped(title, look) + [""] + text.pair_table(
        [(of, ""), ("none of them", text.figure(found.values[0], look)),
         ("all of them", text.figure(found.values[-1], look))], look)
    if found.writers:
        lines += [""] + text.painted("heading", ["Shapley values"], look)
        lines += bar_table(list(zip(found.writers, found.shapley))
                           + [("sum", sum(found.shapley))], look)
    together = interactions(found)
    if together:
        n = min(len(together), MOST_ROWS)
        heading = f"interactions, the largest {n} of {len(together)}"
        lines += [""] + text.painted("heading", text.wrapped(heading, look), look)
        lines += bar_table([(" ".join(names), value) for names, value in together[:n]], look)
    if not look.quiet:
        lines += [""] + text.wrapped(ACCOUNTS, look)
    return lines + closing_lines(checks, notes, look)
