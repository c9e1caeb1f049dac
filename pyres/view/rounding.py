"""What rounding took from a run, as JSON and as lines of text.

    guesses                        the likeliest next tokens
    ledger_record, check_record    the `result` of the JSON, and one of its `checks`
    ledger_lines                   the same as text, for one position

>>> from pyres.edits import scale
>>> from pyres.model import run, small_model
>>> from pyres.study.rounding import rounding_ledger
>>> found = rounding_ledger(run(small_model(), [0], [scale("L0.attn", 1.05)]), "bfloat16")
>>> for line in ledger_lines(found, 0, str, [], text.Look(quiet=True)):
...     print(line)
small: 1 block, d_model 1, 3 writers.  Token 0 at position 0 of 0 to 0.
Every state is rounded to bfloat16.
<BLANKLINE>
state         |x|   |add|  |lost|  share  swallowed  drift
embed      16.000  16.000   0.000  0.000     0 of 1  0.000
+ L0.attn  28.625  12.600   0.025  0.002     0 of 1  0.025
+ L0.mlp   71.500  42.938   0.062  0.001     0 of 1  0.000
<BLANKLINE>
top guess     0 100%, rounded 0 100%; another at 0 of 1 position
logits        differ by up to 0.000
divergence    0 nats
largest loss  0.062, channel 0 of L0.mlp at position 0
<BLANKLINE>
"""
from ..nonlinear import softmax
from ..study.rounding import largest_loss, ledger_check, top_guess
from ..study.writers import length
from . import text

__all__ = ["guesses", "ledger_record", "check_record", "ledger_lines"]


def guesses(logits, n=5):
    """The n likeliest next tokens, as dicts of token and probability; none where a logit is NaN.

    >>> guesses([0.0, 0.0, -1000.0], 2)
    [{'token': 0, 'probability': 0.5}, {'token': 1, 'probability': 0.5}]
    """
    if top_guess(logits) is None:
        return []
    likely = sorted([(-p, token) for token, p in enumerate(softmax(logits))])[:n]
    return [{"token": token, "probability": -p} for p, token in likely]


def ledger_record(ledger, position):
    """A study.rounding.Ledger; before and after are guesses at the position, without and with
    rounding, and everything else is a list over positions.
    """
    rows = [{"name": row.name, "writers": row.writers, "added": row.added,
             "lost": row.lost_length, "share": row.share, "swallowed": row.swallowed,
             "drift": row.drift} for row in ledger.rows]
    row, t, channel = largest_loss(ledger)
    worst = {"name": row.name, "position": t, "channel": channel, "lost": row.lost[t][channel]}
    return {"to": ledger.to, "rows": rows, "largest_loss": worst,
            "logit_difference": ledger.logit_difference, "divergence": ledger.divergence,
            "changed": ledger.changed,
            "before": {"guesses": guesses(ledger.plain.logits[position])},
            "after": {"guesses": guesses(ledger.rounded.logits[position])}}


def check_record(ledger):
    """The ledger_check of a Ledger."""
    check = ledger_check(ledger)
    return {"name": check.rule, "error": check.error, "tolerance": check.tolerance,
            "ok": check.ok}


LEGEND = ("|x| is the length of the rounded stream, |add| of what was added, |lost| of what "
          "rounding took from the sum, share the part of |add| that this is. A channel is "
          "swallowed where something was added and the stream stayed what it was. drift is the "
          "distance from the stream of a run that is not rounded.")
NOT_ROUNDED = ("Only the stream is rounded; sublayers, norms and logits are not, so in a model "
               "that is narrow everywhere more is lost.")


def ledger_lines(ledger, position, token_text, checks, look):
    """A Ledger at one position, and the checks that were made; token_text(token) is its text."""
    lines = text.wrapped(text.trace_title(ledger.rounded, position), look)
    lines += text.wrapped(f"Every state is rounded to {ledger.to}.", look) + [""]
    states = dict(ledger.rounded.states)
    d_model = ledger.rounded.model.config.d_model
    header = ["state", "|x|", "|add|", "|lost|", "share", "swallowed", "drift"]
    lines += text.number_table(header, [
        [label(row), *[text.figure(a, look) for a in (
            length(states[row.name][position]), row.added[position], row.lost_length[position],
            row.share[position])], f"{row.swallowed[position]} of {d_model}",
         text.figure(row.drift[position], look)] for row in ledger.rows], look)
    lines += [""] + text.pair_table(outcome(ledger, position, token_text, look), look)
    if not look.quiet:
        lines += [""] + text.wrapped(LEGEND, look) + [""] + text.wrapped(NOT_ROUNDED, look)
    return lines + [""] + text.check_lines(checks, look)


def label(row):
    """The name of a row's writer, of both in a parallel block."""
    return row.name if row.name == "embed" else "+ " + " + ".join(row.writers)


def outcome(ledger, position, token_text, look):
    """What came of it at a position, as pairs (what, text)."""
    def best(logits):
        found = guesses(logits, 1)
        return "no guess" if not found else (
            f"{token_text(found[0]['token'])} {100 * found[0]['probability']:.0f}%")

    row, t, channel = largest_loss(ledger)
    lost, where = row.lost[t][channel], f"channel {channel} of {row.name} at position {t}"
    n_changed, n_tokens = ledger.changed.count(True), len(ledger.changed)
    return [("top guess", f"{best(ledger.plain.logits[position])}, rounded "
                          f"{best(ledger.rounded.logits[position])}; another at {n_changed} of "
                          f"{text.counted(n_tokens, 'position')}"),
            ("logits", f"differ by up to {text.figure(ledger.logit_difference[position], look)}"),
            ("divergence", f"{text.small(ledger.divergence[position])} nats"),
            ("largest loss", f"{text.figure(lost, look)}, {where}") if lost - lost == 0 else
            ("overflow" if lost == lost else "no number", where)]
