"""Options: their values, their parsers, and what may be refused.

    Refused, explained, nearest    what a user can mend, with its exit code and a hint
    exact_numbers, whole, from_0, token_ids, position, block_range    readers of values
    Parser                         argparse, without abbreviations, with did-you-mean
    common_options, model_options  what several commands take
    split_at_command               options may stand before the command, too

>>> parser = Parser("pyres toy", "[OPTIONS]", "three numbers", [])
>>> common_options(parser)
>>> parser.parse(["--precision", "2"]).precision
2
>>> parser.parse(["--precisoin", "2"])
Traceback (most recent call last):
pyres.commands.options.Refused: there is no option --precisoin here
"""
import argparse
import re
import sys
from contextlib import contextmanager

from ..view.terminal import columns_of

__all__ = ["DONE", "NO", "USAGE", "BAD_INPUT", "ENVIRONMENT", "Refused", "explained", "nearest",
           "exact_numbers", "whole", "from_0", "token_ids", "position", "block_range", "PROG",
           "Parser",
           "common_options", "MODEL_OPTIONS", "model_options", "split_at_command"]

# exit codes: done, a check answered no, usage, bad input, environment
DONE, NO, USAGE, BAD_INPUT, ENVIRONMENT = 0, 1, 2, 3, 4
PROG = "python3 -m pyres"


# ---- what a user can mend ----

class Refused(Exception):
    """What was asked for cannot be done: the exit code, the reason, a hint or None."""

    def __init__(self, code, message, hint=None):
        super().__init__(message)
        self.code, self.hint = code, hint


@contextmanager
def explained(hint=None, unread=None):
    """Inside, an error of pyres means that what the user gave is bad: Refused.  Outside, pyres is.

    hint says how to mend what was given, unread what to do where a file could not be read.
    """
    try:
        yield
    except OSError as error:
        # pyres's own message ends with what to do, which `unread` says for the command line
        named = error.filename is not None
        raise Refused(BAD_INPUT, f"{error.filename}: {error.strerror}" if named
                      else str(error).partition("; ")[0], unread)
    except ValueError as error:
        raise Refused(BAD_INPUT, str(error), hint)
    except ArithmeticError as error:
        raise Refused(BAD_INPUT, f"the numbers went wrong: {error}",
                      "a norm whose eps is 0 cannot take a stream whose entries are all equal")


def nearest(word, words, otherwise):
    """A hint at the word that was meant, or another hint.

    >>> nearest("coutn", ["toy", "count"], "see -h"), nearest("x", ["toy"], "see -h")
    ('did you mean count?', 'see -h')
    """
    import difflib
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else otherwise


# ---- values ----

# forty digits are enough for anybody, and int() is quick with them
EXACT = re.compile(r"""
    [-+]? ( [0-9]{1,40} (\.[0-9]{0,40})?  |  \.[0-9]{1,40}  |  [0-9]{1,40} / 0*[1-9][0-9]{0,39} )
""", re.VERBOSE)


def exact_numbers(given):
    """Numbers with commas between them, each read exactly.

    >>> exact_numbers("0.5,-1,1/3")
    [Fraction(1, 2), -1, Fraction(1, 3)]
    """
    from fractions import Fraction
    numbers = []
    for part in given.split(","):
        part = part.strip().replace("\u2212", "-")              # the typographic minus
        if not EXACT.fullmatch(part):
            raise argparse.ArgumentTypeError(f"{part!r} is no number such as 2, -0.5 or 1/3")
        number = Fraction(part)
        numbers.append(int(number) if number.denominator == 1 else number)
    return numbers


def whole(smallest=None, largest=None):
    """A reader of whole numbers, within limits where there are some.

    >>> whole()("-1"), whole(0, 17)("3")
    (-1, 3)
    """
    def read(given):
        if not re.fullmatch("-?[0-9]{1,18}", given):
            raise argparse.ArgumentTypeError(f"{given!r} is no whole number")
        if smallest is not None and not smallest <= int(given) <= largest:
            raise argparse.ArgumentTypeError(f"{given} is not between {smallest} and {largest}")
        return int(given)
    return read


def from_0(given):
    """A number of at least 0.

    >>> from_0("3e-3"), from_0("0")
    (0.003, 0.0)
    """
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{given!r} is no number of at least 0")
    return number


def named(given):
    """A name that is not empty, as it would be from an unset variable.

    >>> named("echo")
    'echo'
    """
    if not given:
        raise argparse.ArgumentTypeError("the name is empty")
    return given


def token_ids(given):
    """Token ids with commas between them.

    >>> token_ids("3,1,4")
    [3, 1, 4]
    """
    return [whole()(part.strip()) for part in given.split(",")]


def position(given):
    """A position, or "last".

    >>> position("3"), position("last")
    (3, 'last')
    """
    return given if given == "last" else whole()(given)


def block_range(given):
    """Blocks A:B as a pair (A, B): from A up to but not including B.  Either may be left out.

    >>> block_range("1:3"), block_range(":2"), block_range("4:")
    ((1, 3), (None, 2), (4, None))
    """
    found = re.fullmatch("([0-9]{0,9}):([0-9]{0,9})", given)
    if not found:
        raise argparse.ArgumentTypeError(f"{given!r} is no range of blocks such as 0:2, 1: or :3")
    begin, end = [int(part) if part else None for part in found.groups()]
    return begin, end


# ---- parsers ----

def help_formatter(prog):
    """argparse's formatter with a width, which it would else import a module to find."""
    return argparse.RawDescriptionHelpFormatter(prog, width=columns_of(sys.stdout))


class Parser(argparse.ArgumentParser):
    """ArgumentParser without abbreviations; it raises Refused, and its help ends with examples."""

    def __init__(self, prog, usage, description, examples):
        super().__init__(
            prog=prog, usage=f"{prog} {usage}", description=description, add_help=False,
            allow_abbrev=False, formatter_class=help_formatter,
            epilog="\n".join(["examples:"] + [f"  {PROG} {example}" for example in examples]))
        self.flags, self.takes_value = [], set()

    def option(self, *flags, **settings):
        """Add an option, and remember whether it takes a value."""
        action = self.add_argument(*flags, **settings)
        self.flags += flags
        self.takes_value.update(flags if action.nargs != 0 else ())

    def error(self, message):
        raise Refused(USAGE, message, f"{self.prog} -h lists the options")

    def parse(self, argv, options=None):
        """Read argv into options, beside what they have already, which no default undoes; Refused
        for a word that has no place."""
        options, unknown = self.parse_known_args(values_joined(argv, self.takes_value), options)
        if unknown and not options.help:
            flags = [word.split("=")[0] for word in unknown if word.startswith("-")]
            if not flags:
                self.error(f"there is no place for {unknown[0]!r}")
            raise Refused(USAGE, f"there is no option {flags[0]} here",
                          nearest(flags[0], self.flags, f"{self.prog} -h lists the options"))
        return options


def values_joined(argv, takes_value):
    """argv with a value that begins with a minus joined to its option: argparse would take the
    value for an option.

    >>> values_joined(["--attn", "-0.5,-1,0", "--no-mlp"], {"--attn"})
    ['--attn=-0.5,-1,0', '--no-mlp']
    """
    joined = []
    for word in argv:
        if joined and joined[-1] in takes_value and re.match("-[.0-9]", word):
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return joined


def common_options(parser):
    """What every command takes, before its name or after it."""
    def switch(*flags, what):
        parser.option(*flags, action="store_true", help=what)

    switch("--json", what="one JSON object in place of text")
    parser.option("--color", choices=("auto", "always", "never"), default="auto",
                  help="colour (auto)")
    switch("--ascii", what="only ASCII characters")
    parser.option("--columns", type=whole(20, 1000), metavar="N", help="the longest line")
    parser.option("--precision", type=whole(0, 17), default=3, metavar="N",
                  help="decimals in text (3)")
    switch("-q", "--quiet", what="the result without explanations")
    switch("-v", "--verbose", what="say on stderr what is being done")
    switch("-h", "--help", what="this text")
    switch("--version", what="the version of pyres")


MODEL_OPTIONS = (
    ("model", ("--model",), {"type": named, "metavar": "FOLDER",
                             "help": "a Hugging Face folder, or a file that pyres wrote"}),
    ("ids", ("--ids",), {"type": token_ids, "metavar": "N,N,...",
                         "help": "token ids in place of TEXT"}),
    ("position", ("-p", "--position"), {"type": position, "metavar": "N", "help":
                                        "the position asked about, from 0 on, or last (last)"}),
    ("target", ("--target",), {"type": named, "metavar": "TOK",
                               "help": "the token asked about: its text, or #id (the top guess)"}),
    ("against", ("--against",), {"type": named, "metavar": "TOK",
                                 "help": "a token it is compared with: its text, or #id"}),
)


def model_options(parser, takes):
    """What a command takes that looks at a model, by name."""
    for name, flags, settings in MODEL_OPTIONS:
        if name in takes:
            parser.option(*flags, **settings)


def split_at_command(argv, takes_value):
    """Return (what stands before the command, the command or None, what stands after it).

    >>> split_at_command(["--columns", "40", "toy", "--no-attn"], {"--columns"})
    (['--columns', '40'], 'toy', ['--no-attn'])
    """
    i = 0
    while i < len(argv) and argv[i].startswith("-"):
        i += 2 if argv[i] in takes_value else 1
    return argv[:i], argv[i] if i < len(argv) else None, argv[i + 1:]
