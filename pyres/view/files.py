"""What was written into files, as lines of text.

    written_record    the `result` of the JSON
    written_lines     the same as text

>>> result = {"out": "small", "form": "GPT2LMHeadModel", "dtype": "float16", "total": 2000,
...           "rounded": 3, "files": [{"name": "config.json", "bytes": 512, "sha256": "..."}]}
>>> for line in written_lines(result, [], "python3 -m pyres model info small", text.Look()):
...     print(line)
written  small
as       GPT2LMHeadModel, float16
weights  2,000, 3 of them rounded to the nearest float16
<BLANKLINE>
file         bytes
config.json    512
<BLANKLINE>
Next: python3 -m pyres model info small
"""
import os

from . import record, text

__all__ = ["written_record", "written_lines"]


def written_record(out, form, dtype, total, rounded):
    """A model in files: the file or the folder, the form it has there, the float type, how many
    weights there are, how many of them rounding changed; and every file.
    """
    paths = [os.path.join(out, name) for name in sorted(os.listdir(out))] if os.path.isdir(out) \
        else [out]
    return {"out": out, "form": form, "dtype": dtype, "total": total, "rounded": rounded,
            "files": [{"name": os.path.basename(path), "bytes": os.path.getsize(path),
                       "sha256": record.digest(path)} for path in paths]}


def written_lines(result, notes, following, look):
    """A written_record, notes, each a paragraph, and a command to go on with."""
    changed = (f"{result['rounded']:,} of them rounded to the nearest {result['dtype']}"
               if result["rounded"] else "every one exactly as it was")
    lines = text.pair_table([("written", result["out"]),
                             ("as", f"{result['form']}, {result['dtype']}"),
                             ("weights", f"{result['total']:,}, {changed}")], look)
    rows = [(text.shown(file["name"], look), f"{file['bytes']:,}") for file in result["files"]]
    lines += [""] + text.number_table(("file", "bytes"), rows, look)
    if look.quiet:
        return lines
    for note in notes:
        lines += [""] + text.wrapped(note, look)
    return lines + [""] + text.wrapped(f"Next: {following}", look)
