"""audit: which contract a trace from anywhere keeps, and where it breaks.

    audited    options -> Answer

>>> COMMAND.examples[0]
'audit trace.json'
"""
from ..view import audit as view
from ..view.terminal import announced
from . import Answer, Command
from .options import USAGE, Refused, explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of audit."""
    parser.add_argument("file", nargs="?", metavar="FILE",
                        help="JSON or safetensors with states and updates")
    parser.option("--to", choices=("float64", "float32", "float16", "bfloat16"),
                  help="what the numbers were rounded to (seen in them)")


FORM = 'docs/audit.md says how to write one: {"states": [...], "updates": [...]}'


def audited(options):
    """Read a trace and audit it -> Answer."""
    from ..files import traces
    from ..study.audit import audit
    if options.file is None:
        raise Refused(USAGE, "there is nothing to audit", FORM)
    with explained(FORM, FORM), announced(f"reading {options.file}", options.verbose,
                                          options.quiet):
        recorded = traces.read(options.file)
    with explained(FORM), announced("auditing it", options.verbose, options.quiet):
        found = audit(recorded.states, recorded.updates, recorded.normed, options.to)
    return Answer(None, {"file": options.file, "to": options.to}, view.audit_record(found),
                  view.check_records(found), found.notes,
                  lambda look: view.audit_lines(found, options.file, look))


COMMAND = Command("audit", "FILE [OPTIONS]",
                  "which contract a trace from anywhere keeps, and where it breaks", (),
                  add_options, audited,
                  ("audit trace.json", "audit trace.safetensors --to float16"))
