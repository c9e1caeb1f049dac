"""What an audit found, as JSON and as lines of text.

    audit_record, check_records    the `result` of the JSON, and its `checks`
    audit_lines                    the same as text

>>> from pyres.study.audit import audit
>>> states = [[[1.0, 2.0, 3.0]], [[1.5, 1.0, 3.0]], [[1.5, 2.0, 4.0]]]
>>> found = audit(states, [[[0.5, -1.0, 0.0]], [[1.5, 2.0, 4.0]]])
>>> for line in audit_lines(found, "trace.json", text.Look(columns=60, quiet=True)):
...     print(line)
trace.json: it is not one contract throughout.
<BLANKLINE>
update 0  state + update = next state
update 1  the update already contains the stream
<BLANKLINE>
1. update 1: the update already contains the stream
first   position 0, channel 0: off by 1.500
fits    update 1 less the stream before it: the error is 0,
        rounding explains 3e-15
remedy  hook what the sublayer returns, not the block or the
        sum; or subtract the state before it
"""
from ..study.contracts import words_of
from . import text

__all__ = ["audit_record", "check_records", "audit_lines"]


# ---- JSON ----

def audit_record(found):
    """An Audit; position and channel are where a finding shows first."""
    ranges = [{"kind": one.kind, "first": one.first, "last": one.last, "n_steps": one.n_steps}
              for one in found.ranges]
    findings = [{"kind": one.kind, "words": words_of(one.kind)[0], "where": one.where,
                 "names": one.names, "positions": one.positions, "position": one.position,
                 "channel": one.channel, "error": one.error, "tolerance": one.tolerance,
                 "evidence": one.evidence, "remedy": one.remedy} for one in found.findings]
    states, updates = found.formats
    return {"contract": found.contract, "ranges": ranges, "findings": findings,
            "formats": {"states": states, "updates": updates}}


def check_records(found):
    """The Checks of an Audit."""
    return [{"name": check.rule, "error": check.error, "tolerance": check.tolerance,
             "ok": check.ok} for check in found.checks]


# ---- text ----

def audit_lines(found, title, look):
    """An Audit of what is called title."""
    kind = "heading" if not found.findings else "fault"
    lines = text.painted(kind, text.wrapped(f"{title}: {contract_text(found)}", look), look)
    if not look.quiet:
        lines += text.wrapped(formats_text(*found.formats), look)
    if len(found.ranges) > 1:
        lines += [""] + text.pair_table([(range_text(one), words_of(one.kind)[0])
                                         for one in found.ranges], look)
    for number, one in enumerate(found.findings, 1):
        heading = f"{number}. {one.where}: {words_of(one.kind)[0]}"
        lines += [""] + text.painted("fault", text.wrapped(heading, look, "   "), look)
        lines += text.pair_table(finding_pairs(one, look), look)
    for note in [] if look.quiet else found.notes:
        lines += [""] + text.wrapped(note, look)
    return lines + ([] if look.quiet else [""] + text.check_lines(check_records(found), look))


def contract_text(found):
    """What all steps have in common, in words."""
    if found.contract == "adds_up" and not found.findings:
        return "everything adds up."
    if found.contract == "mixed":
        return "it is not one contract throughout."
    return f"{words_of(found.contract)[0]}, at every step."


def formats_text(states, updates):
    """How the numbers were rounded, in words.

    >>> formats_text("float32", "float32"), formats_text("bfloat16", "float32")
    ('The numbers are of float32.', 'The states are of bfloat16, the updates of float32.')
    """
    if states == updates:
        return f"The numbers are of {states}."
    return f"The states are of {states}, the updates of {updates}."


def range_text(one):
    """Which updates a Range is about."""
    return one.first if one.first == one.last else f"{one.first} to {one.last}"


def finding_pairs(one, look):
    """A Finding as pairs of a word and a text."""
    n = len(one.positions)
    rest = f", and {text.counted(n - 1, 'position')} more" if n > 1 else ""
    pairs = [("first", f"position {one.position}, channel {one.channel}: off by "
                       f"{text.figure(one.error, look)}{rest}")]
    pairs += [("fits", one.evidence)] if one.evidence else []
    return pairs + ([("remedy", one.remedy)] if one.remedy else [])
