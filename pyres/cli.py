"""The command line: python3 -m pyres [COMMAND] [OPTIONS].

Which command, and what becomes of its answer; the commands themselves are in `commands`.  The
result goes to stdout, everything else to stderr.  With --json the result is one object, and so is
an error.

    exit code    0 done  1 a check answered no  2 usage  3 bad input  4 environment
                 70 a fault of pyres  130 Ctrl-C  141 closed pipe

    COMMANDS                           all commands
    first_parser, command_parser       the options before a command, and after
    put, put_answer, report            the result, and what went wrong
    main, main_from_console            everything together

>>> main(["toy", "--quiet"])
stream       1     2  3
+ attention  0.5  -1  0
= stream     1.5   1  3
+ MLP        0     1  1
= stream     1.5   2  4
0
"""
import os
import sys
from importlib import import_module

from .commands.options import (DONE, ENVIRONMENT, MODEL_OPTIONS, NO, PROG, USAGE, Parser, Refused,
                               common_options, model_options, nearest, split_at_command)
from .view import record, terminal, text

__all__ = ["main", "main_from_console"]

FAULT, INTERRUPTED, CLOSED_PIPE = 70, 130, 141

# Each is a module of `commands`, imported when it is asked for; the first runs where none is
# named.
COMMANDS = ("look", "toy", "trace", "norms", "lens", "writers", "tokens", "loss",
            "ablate", "patch", "subsets", "grad", "heads", "rounding", "audit",
            "count", "model", "generate", "train", "export", "convert")

# ---- which command ----

def command_of(name):
    """The Command of one of COMMANDS."""
    return import_module(f"{__package__}.commands.{name}").COMMAND


def first_parser():
    """The parser of what stands before the command."""
    parser = Parser(PROG, "[COMMAND] [OPTIONS]", "", ("toy --no-attn", "count --layers 32"))
    model_options(parser, [name for name, _, _ in MODEL_OPTIONS])
    common_options(parser)
    return parser


def overview():
    """What there is, for the help: every command is imported."""
    return "\n".join(
        ["The residual stream of a transformer.", "", "commands, the first if none is named:"]
        + [f"  {name:<10}{command_of(name).summary}" for name in COMMANDS]
        + ["", f"{PROG} COMMAND -h says more."])


def command_parser(command):
    """The parser of what stands after a command."""
    parser = Parser(f"{PROG} {command.name}", command.usage, command.summary, command.examples)
    command.options(parser)
    model_options(parser, command.takes)
    common_options(parser)
    return parser


def command_named(name):
    """The Command of that name; Refused where there is none."""
    if name not in COMMANDS:
        raise Refused(USAGE, f"there is no command {name!r}",
                      nearest(name, COMMANDS, f"{PROG} -h lists the commands"))
    return command_of(name)


def check_means_something(command, options):
    """Refused for an option before the command that the command does not take."""
    for what, flags, _ in MODEL_OPTIONS:
        if what not in command.takes and getattr(options, what) is not None:
            raise Refused(USAGE, f"{flags[-1]} means nothing to {command.name}", "leave it out")


# ---- what becomes of its answer ----

def check_stdout():
    """Refused where there is no stdout, as with `>&-` in a shell."""
    if sys.stdout is None:
        raise Refused(ENVIRONMENT, "there is no standard output")


def put(result):
    """Write the result to stdout; Refused where that cannot be done."""
    check_stdout()
    try:
        terminal.write(sys.stdout, result)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Refused(ENVIRONMENT, f"the result cannot be written: {error.strerror}")


def put_answer(command, answer, options):
    """Put an answer on stdout, as JSON or as text; return the exit code."""
    if options.json:
        import json
        fields = {"schema": "pyres/1", "command": command.name}
        fields.update(answer._asdict())
        del fields["draw"]
        put(json.dumps(record.plain(fields), allow_nan=False) + "\n")
    else:
        check_stdout()
        look = terminal.look_for(sys.stdout, options.columns, options.ascii, options.color,
                                 options.precision, options.quiet)
        put("\n".join(answer.draw(look)) + "\n")
    return DONE if all([check["ok"] for check in answer.checks]) else NO


def report(error, code, hint, as_json):
    """Say on stderr what went wrong."""
    if sys.stderr is None:
        return
    if os.environ.get("PYRES_TRACEBACK") == "1":
        import traceback
        terminal.write(sys.stderr, "".join(
            traceback.format_exception(type(error), error, error.__traceback__)))
    message = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    if as_json:
        import json
        fields = {"code": code, "message": message, "hint": hint}
        terminal.write(sys.stderr, json.dumps({"schema": "pyres/1", "error": fields}) + "\n")
        return
    for line in [f"pyres: error: {message}"] + ([f"hint: {hint}"] if hint else []):
        terminal.write(sys.stderr, text.shown(line, text.Look()) + "\n")


# ---- everything together ----

def answered(argv):
    """Run the command that argv names, put its answer on stdout, and return the exit code."""
    parser = first_parser()
    before, name, after = split_at_command(argv, parser.takes_value)
    options = parser.parse(before)
    command = command_named(COMMANDS[0] if name is None else name)
    check_means_something(command, options)
    of_command = command_parser(command)
    options = of_command.parse(after, options)
    if options.version:
        # by the package's name, which is another where it was copied into a program
        put(f"pyres {sys.modules[__package__].__version__}\n")
        return DONE
    if options.help:
        parser.description = overview() if name is None else ""
        put((parser if name is None else of_command).format_help())
        return DONE
    return put_answer(command, command.run(options), options)


def main(argv=None):
    """Run one command, sys.argv's unless given, and return its exit code.

    >>> main(["count", "--layers", "32", "--quiet"])
    writers
    writers  1 + 2·L = 1 + 2·32  65
    0
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in argv
    try:
        return answered(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return CLOSED_PIPE
    except Refused as error:
        report(error, error.code, error.hint, as_json)
        return error.code
    except MemoryError as error:
        report(error, ENVIRONMENT, "there is not enough memory for this", as_json)
        return ENVIRONMENT
    except Exception as error:
        report(error, FAULT, "a fault of pyres; PYRES_TRACEBACK=1 shows where", as_json)
        return FAULT


def main_from_console():
    """What the console script runs."""
    code = main()
    if code in (ENVIRONMENT, CLOSED_PIPE) and sys.stdout is not None:
        # what is left in the buffer cannot be written, and Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
