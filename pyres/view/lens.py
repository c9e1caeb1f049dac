"""What a model would guess at every state, as JSON and as lines of text.

    lens_record    the `result` of the JSON
    lens_lines     a grid of guesses, states by positions; one position's readings

>>> from pyres.model import run, small_model
>>> from pyres.study.lens import lens
>>> found = lens(run(small_model(), [0, 1]))
>>> for line in guess_lines(found, [0, 1], ["a", "b"], str, text.Look()):
...     print(line)
              0      1
              a      b
embed    0 >99% 0 >99%
L0.attn  0 >99% 0 >99%
L0.mlp   0 100% 0 100%
"""
from . import text
from .heat import cut_short, grid_lines, position_heads

__all__ = ["lens_record", "guess_lines", "lens_lines"]


def lens_record(found, method, positions, targets, token_text):
    """StateReadings at some positions; token_text(token) is a token's text, or None."""
    def guesses(said):
        return None if said.guesses is None else [
            {"token": token, "text": token_text(token), "probability": p}
            for token, p in said.guesses]

    return {"method": method, "positions": positions, "targets": targets, "grid": [
        {"name": one.name, "guesses": [guesses(said) for said in one.readings],
         "probability": [said.probability for said in one.readings],
         "rank": [said.rank for said in one.readings],
         "entropy": [said.entropy for said in one.readings],
         "kl": [said.kl for said in one.readings]} for one in found]}


# ---- text ----

EXPLAINED = {
    "own": "Each state goes through the final norm, with its own statistics, and the unembedding: "
           "what the model would guess if it stopped there (the logit lens).",
    "frozen": "Each state goes through the final norm, with the divisor of the last state, and "
              "the unembedding. This lens alone adds up writer by writer.",
    "jacobian": "Each state is multiplied by the derivative of the final stream by it, then goes "
                "through the final norm and the unembedding."}
READ = ("chance and rank are the target's, rank 1 the top guess; entropy is of all guesses, and "
        "KL, KL(final || lens), how far they are from the last ones, both in nats.")


def guess_lines(found, positions, labels, token_text, look):
    """The grid: the guesses of StateReadings under the tokens that were read, a line for each."""
    def cell(said, k):
        if said.guesses is None:
            return "nan" if k == 0 else ""
        token, p = said.guesses[k]
        return f"{cut_short(token_text(token))} {percent(p)}"

    n_lines = max([len(said.guesses) for one in found for said in one.readings
                   if said.guesses is not None] + [1])
    rows = [(one.name if k == 0 else "", [cell(said, k) for said in one.readings])
            for one in found for k in range(n_lines)]
    return grid_lines(rows, position_heads(labels, positions), look)


def percent(p):
    """A probability in whole percents; none is called 0 or all that is not.

    >>> percent(0.994), percent(0.9999), percent(1.0), percent(0.0001), percent(0.0)
    ('99%', '>99%', '100%', '<1%', '0%')
    """
    if p != 0 and round(100 * p) == 0:
        return "<1%"
    if p != 1 and round(100 * p) == 100:
        return ">99%"
    return f"{100 * p:.0f}%"


def reading_lines(found, k, token_text, look):
    """The readings of one position, the k-th of those asked for, state by state."""
    rows = []
    for one in found:
        said = one.readings[k]
        if said.guesses is None:
            rows.append([one.name] + ["nan"] * 5)
            continue
        rows.append([one.name, cut_short(token_text(said.guesses[0][0])),
                     percent(said.probability), str(said.rank), text.figure(said.entropy, look),
                     text.figure(said.kl, look)])
    return text.number_table(["state", "guess", "chance", "rank", "entropy", "KL"], rows, look)


def lens_lines(title, found, positions, labels, k, method, target, token_text, look):
    """A title, the grid, the readings of the k-th position asked for with its target's text."""
    lines = text.wrapped(title, look) + [""]
    lines += guess_lines(found, positions, labels, token_text, look)
    said = f"Position {positions[k]}, after {labels[k]}, and the target {target}:"
    lines += [""] + text.wrapped(said, look) + reading_lines(found, k, token_text, look)
    if look.quiet:
        return lines
    return lines + [""] + text.wrapped(EXPLAINED[method], look) + text.wrapped(READ, look)
