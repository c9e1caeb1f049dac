"""The command line: python3 -m pyres [COMMAND] [OPTIONS].

No mathematics: a command reads its options, calls what anybody could call, and says what came back,
as text (`view.text`) or, with --json, as one object.  The result goes to stdout, everything else to
stderr.

    exit code    0 done  1 a check answered no  2 usage  3 bad input  4 environment
                 70 a fault of pyres  130 Ctrl-C  141 closed pipe

    Refused, explained            what a user can mend, with its exit code and a hint
    exact_numbers and so on       values of options
    Parser, common_options, model_options    argparse, strict, with did-you-mean
    Answer                        what a command found
    toy, trace, count, model      the commands, options -> Answer
    COMMANDS                      their names, options and examples
    main, main_from_console       everything together

>>> main(["count", "--layers", "32", "--quiet"])
writers
writers  1 + 2·L = 1 + 2·32  65
0
"""
import argparse
import json
import os
import re
import sys
from collections import namedtuple
from contextlib import contextmanager

from . import stream
from .model import run
from .view import between, record, terminal, text
from .view.terminal import announced, write

__all__ = ["main", "main_from_console"]

DONE, NO, USAGE, BAD_INPUT, ENVIRONMENT = 0, 1, 2, 3, 4
FAULT, INTERRUPTED, CLOSED_PIPE = 70, 130, 141
PROG = "python3 -m pyres"


# ---- what a user can mend ----

class Refused(Exception):
    """What was asked for cannot be done: the exit code, the reason, a hint or None."""

    def __init__(self, code, message, hint=None):
        super().__init__(message)
        self.code, self.hint = code, hint


@contextmanager
def explained(hint=None, unread=None):
    """Where pyres refuses what a user gave it, the input is bad; elsewhere, pyres is.  `hint` says
    how to mend it, `unread` where a file could not be read."""
    try:
        yield
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise Refused(BAD_INPUT, message, unread)
    except ValueError as error:
        raise Refused(BAD_INPUT, str(error), hint)


def nearest(word, words, otherwise):
    """A hint at the word that was meant, or another hint.

    >>> nearest("coutn", ["toy", "count"], "-h lists them"), nearest("x", ["toy"], "-h lists them")
    ('did you mean count?', '-h lists them')
    """
    import difflib
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else otherwise


# ---- values of options ----

EXACT = re.compile(r"[-+]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40}|[0-9]{1,40}/0*[1-9][0-9]{0,40})")


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


def token_ids(given):
    """Token ids with commas between them.

    >>> token_ids("3,1,4")
    [3, 1, 4]
    """
    return [whole()(part.strip()) for part in given.split(",")]


def position(given):
    """A position, a whole number, or "last", which is None.

    >>> position("3"), position("last")
    (3, None)
    """
    return None if given == "last" else whole()(given)


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


# ---- options ----

class Parser(argparse.ArgumentParser):
    """ArgumentParser that takes no abbreviation, raises Refused, and ends its help with examples."""

    def __init__(self, prog, usage, description, examples):
        super().__init__(
            prog=prog, usage=f"{prog} {usage}", description=description, add_help=False,
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="\n".join(["examples:"] + [f"  {PROG} {example}" for example in examples]))
        self.flags, self.takes_value = [], set()

    def option(self, *flags, **settings):
        action = self.add_argument(*flags, **settings)
        self.flags += flags
        self.takes_value.update(flags if action.nargs != 0 else ())

    def error(self, message):
        raise Refused(USAGE, message, f"{self.prog} -h lists the options")

    def parse(self, argv, options=None):
        """Read argv into options; Refused for a word that has no place."""
        options, unknown = self.parse_known_args(values_joined(argv, self.takes_value), options)
        if unknown and not options.help:
            flag = [word.split("=")[0] for word in unknown if word.startswith("-")]
            if not flag:
                self.error(f"there is no place for {unknown[0]!r}")
            raise Refused(USAGE, f"there is no option {flag[0]} here",
                          nearest(flag[0], self.flags, f"{self.prog} -h lists the options"))
        return options


def values_joined(argv, takes_value):
    """argv with a value that begins with a minus joined to its option: argparse would take the value
    for an option.

    >>> values_joined(["--attn", "-0.5,-1,0", "--no-mlp"], {"--attn"})
    ['--attn=-0.5,-1,0', '--no-mlp']
    """
    joined = []
    for word in argv:
        if joined and joined[-1] in takes_value and re.match(r"-[.0-9]", word):
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return joined


def common_options(parser, first):
    """What every command takes, before or after its name.  Only the `first` parser, of what stands
    before, sets defaults: a command's would undo what was given before it."""
    def option(*flags, default=False, **settings):
        parser.option(*flags, default=default if first else argparse.SUPPRESS, **settings)

    def switch(*flags, what):
        option(*flags, action="store_true", help=what)

    switch("--json", what="one JSON object in place of text")
    option("--color", choices=("auto", "always", "never"), default="auto", help="colour (auto)")
    switch("--ascii", what="only ASCII characters")
    option("--columns", type=whole(20, 1000), default=None, metavar="N", help="the longest line")
    option("--precision", type=whole(0, 17), default=3, metavar="N", help="decimals in text (3)")
    switch("-q", "--quiet", what="the result without explanations")
    switch("-v", "--verbose", what="say on stderr what is being done")
    switch("-h", "--help", what="this text")
    switch("--version", what="the version of pyres")


MODEL_OPTIONS = (
    ("model", ("--model",), {"metavar": "FOLDER", "help": "a Hugging Face folder"}),
    ("ids", ("--ids",), {"type": token_ids, "metavar": "N,N,...",
                         "help": "token ids in place of TEXT"}),
    ("position", ("-p", "--position"), {"type": position, "metavar": "N",
                                        "help": "the position shown, from 0 on, or last (last)"}),
)


def model_options(parser, first, takes):
    """What a command takes that looks at a model; before the command, all of it."""
    for name, flags, settings in MODEL_OPTIONS:
        if first or name in takes:
            parser.option(*flags, default=None if first else argparse.SUPPRESS, **settings)


# ---- commands ----

class Answer(namedtuple("Answer", ("model", "input", "result", "checks", "notes", "draw"))):
    """What a command found: the fields of the JSON, and draw(look) -> lines of text."""


NO_MODEL = "a model is a folder with config.json and model.safetensors; --model FOLDER names it"


def read_model(source, options):
    """Return (a Model, what its folder holds)."""
    from . import files
    with explained(unread=NO_MODEL), announced(f"reading {source}", options.verbose, options.quiet):
        return files.load(source), inspected(source)


def read_headers(source, options):
    """Return what a folder holds, without reading a weight."""
    with explained(unread=NO_MODEL), announced(f"reading {source}", options.verbose, options.quiet):
        return inspected(source)


def inspected(source):
    from . import files
    if not os.path.isdir(source):
        files.load(source)                      # raises, and says what may be named
    return files.huggingface.inspect(source)


# toy

def toy_options(parser):
    def vector(flag, default, what):
        parser.option(flag, type=exact_numbers, metavar="N,N,...", default=exact_numbers(default),
                      help=f"{what} ({default})")

    vector("--x", "1,2,3", "the stream")
    vector("--attn", "0.5,-1,0", "what attention adds")
    vector("--mlp", "0,1,1", "what the MLP adds")
    parser.option("--no-attn", action="store_true", help="switch attention off")
    parser.option("--no-mlp", action="store_true", help="switch the MLP off")
    parser.option("--mlp-width", type=whole(1, 1000), metavar="N",
                  help="cut or fill what the MLP adds to N numbers; a wrong width is an error")


def toy(options):
    x, mlp, n = options.x, options.mlp, options.mlp_width
    if n is not None:
        mlp = (mlp + [0] * n)[:n]
    updates = [("attn", "attention", None if options.no_attn else options.attn),
               ("mlp", "MLP", None if options.no_mlp else mlp)]
    on = [(name, update) for name, _, update in updates if update is not None]
    fns = [lambda _, update=update: update for _, update in on]
    with explained(f"the stream has {len(x)} numbers, so must everything that is added to it"):
        states, total = stream.trace(x, fns), stream.total_update(x, fns)
    names = ["x"] + [name for name, _ in on]
    result = {"states": [{"name": name, "vector": x} for name, x in zip(names, states)],
              "writers": [{"name": name, "vector": update} for name, update in on],
              "total_update": total}
    notes = [f"{title} is switched off" for _, title, update in updates if update is None]
    titled = [(title, update) for _, title, update in updates]
    return Answer(None, {"x": x, "attn": updates[0][2], "mlp": updates[1][2]}, result, [], notes,
                  lambda look: text.toy_lines(titled, states, total, look))


# trace

def trace_options(parser):
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is traced; - is stdin")
    parser.option("--layers", type=block_range, metavar="A:B", help="only blocks A to B - 1")
    parser.option("--vectors", action="store_true", help="print the numbers")


def trace(options):
    source, given = options.model or "echo", what_to_trace(options)
    model, info = read_model(source, options)
    hint = "the model has no tokenizer: give token ids, --ids 3,1,4, in place of TEXT"
    with explained(hint if type(given) is str and model.tokenizer is None else None):
        with announced("running the model", options.verbose, options.quiet):
            r = run(model, given)
    at, (begin, end) = checked_position(options, r), checked_layers(options, r)
    selection, checks = between(r, begin, end), [record.check_record(r)]
    result = {name: [record.stream_record(*pair, options.vectors) for pair in pairs]
              for name, pairs in (("states", selection.states), ("writers", selection.writers))}
    if options.vectors:
        result["logits"] = r.logits[at]
    notes = [f"only blocks {begin} to {end - 1} are shown"] if options.layers else []
    described = record.model_record(source, info) if options.json else None
    return Answer(described, trace_input(r, given, at), result, checks, notes,
                  lambda look: text.trace_lines(r, selection, at, checks, look, options.vectors))


def what_to_trace(options):
    """The text, or the ids in its place."""
    if options.ids is not None and options.text is not None:
        raise Refused(USAGE, "both TEXT and --ids were given", "leave one out")
    if options.ids is not None:
        return options.ids
    if options.text == "-":
        with explained():
            return re.sub(r"\r?\n\Z", "", sys.stdin.read())
    if options.text is None and options.model is not None:
        raise Refused(USAGE, "there is nothing to trace", "give a TEXT, or token ids: --ids 3,1,4")
    return "mqzkbmqz" if options.text is None else options.text


def trace_input(r, given, at):
    tokenizer = r.model.tokenizer
    return {"text": given if type(given) is str else None, "tokens": r.tokens,
            "token_texts": tokenizer and [tokenizer.decode([token]) for token in r.tokens],
            "position": at, "target": None, "against": None}


def checked_position(options, r):
    last = len(r.tokens) - 1
    at = last if options.position is None else options.position
    if not 0 <= at <= last:
        raise Refused(BAD_INPUT, f"there is no position {at}; the last is {last}",
                      f"-p takes 0 to {last}, or last")
    return at


def checked_layers(options, r):
    n_layers = len(r.steps.blocks)
    if options.layers is None:
        return 0, n_layers
    begin, end = options.layers
    begin, end = begin or 0, n_layers if end is None else end
    if not begin < end <= n_layers:
        raise Refused(BAD_INPUT, f"--layers {begin}:{end} names no blocks; there are {n_layers}",
                      "A:B is block A to block B - 1, counted from 0")
    return begin, end


# count

# an option, its name in count_sizes, and the options of which one must stand beside it
SIZES = (
    ("--layers", "n_layers", ()), ("--width", "d_model", ()),
    ("--hidden", "d_mlp", ("--width",)), ("--heads", "n_heads", ("--width",)),
    ("--kv-heads", "n_kv_heads", ("--heads",)), ("--head-width", "d_head", ("--heads",)),
    ("--gated", "gated", ("--hidden",)), ("--bias", "bias", ("--hidden", "--heads")),
    ("--norm", "norm", ("--hidden", "--heads", "--vocab")), ("--vocab", "d_vocab", ("--width",)),
    ("--positions", "n_positions", ("--width",)), ("--tied", "tied", ("--vocab",)),
)


def count_options(parser):
    def size(flag, dest, what, smallest=1):
        parser.option(flag, dest=dest, type=whole(smallest, 10 ** 12), metavar="N", help=what)

    size("--layers", "n_layers", "blocks (1)", smallest=0)
    size("--width", "d_model", "d_model, the numbers in the stream")
    size("--hidden", "d_mlp", "an MLP, and its d_mlp")
    size("--heads", "n_heads", "attention, and its query heads")
    size("--kv-heads", "n_kv_heads", "key/value heads (as many as heads)")
    size("--head-width", "d_head", "d_head (width / heads)")
    parser.option("--gated", action="store_true", help="the MLP has a gate")
    parser.option("--bias", action="store_true", help="attention and MLP have biases")
    parser.option("--norm", choices=("none", "layer", "rms"), default="none",
                  help="a norm before each sublayer and the unembedding (none)")
    size("--vocab", "d_vocab", "a token table and an unembedding, and their tokens")
    size("--positions", "n_positions", "a position table; a token then sees so many tokens")
    parser.option("--tied", action="store_true", help="the unembedding is the token table again")


def count(options):
    from .study import counting
    asked = {name: getattr(options, name) for _, name, _ in SIZES}
    asked["norm"] = None if options.norm == "none" else options.norm
    given = [flag for flag, name, _ in SIZES if asked[name] not in (None, False)]
    check_given(given, options)
    if options.model is not None:
        info = read_headers(options.model, options)
        counts, asked = counted(info), {"model": options.model}
        described = record.model_record(options.model, info) if options.json else None
    else:
        asked["n_layers"] = 1 if options.n_layers is None else options.n_layers
        with explained(f"{PROG} count -h says what each size is"):
            counts, described = counting.count_sizes(**asked), None
    notes = ["The embedding writes to the stream once, every block twice: attention and MLP."]
    if options.tied:
        notes.append("The unembedding is w_embed again and is counted once.")
    if not counts.weights:
        notes.append("Give sizes to count weights: --width 4 --hidden 8 --heads 4")
    return Answer(described, asked, record.count_record(counts), [], notes,
                  lambda look: text.count_lines(counts, notes, look))


def check_given(given, options):
    """Refuse sizes that mean nothing together."""
    if given and options.model is not None:
        raise Refused(USAGE, f"--model has its own sizes, and {given[0]} was given too",
                      "leave one out")
    for flag, _, needed in SIZES:
        if flag in given and needed and not set(needed) & set(given):
            raise Refused(USAGE, f"{flag} means nothing without {' or '.join(needed)}",
                          f"add {needed[0]} N")


def counted(info):
    """The Count of a folder: sizes from its config, numbers from its tensors' headers."""
    from .study import counting
    return counting.count_leaves(info.config, [
        (row.leaves, counting.size_of(info.tensors.shape(row.tensor))) for row in info.rows])


# model

def model_command_options(parser):
    parser.add_argument("words", nargs="*", metavar="[info|check] FOLDER",
                        help="info: what it holds; check: whether its writers add up")


def model(options):
    action, words = "info", list(options.words)
    if words and words[0] in ("info", "check"):
        action = words.pop(0)
    if len(words) > 1:
        raise Refused(USAGE, f"model does not know {words[0]!r}",
                      nearest(words[0], ["info", "check"], "name one folder"))
    if words and options.model is not None:
        raise Refused(USAGE, "both FOLDER and --model were given", "leave one out")
    source = words[0] if words else options.model or "echo"
    return (model_info if action == "info" else model_check)(source, options)


def model_info(source, options):
    info = read_headers(source, options)
    counts = counted(info)                      # raises where sizes and tensors disagree
    with explained(), announced("reading the files", options.verbose, options.quiet):
        sizes, files = record.model_record(source, info), record.file_records(source, info)
    leaves = [leaf for row in info.rows for leaf in row.leaves]
    result = {"weights": record.count_record(counts)["weights"], "total": counts.total,
              "tied": "w_unembed" not in leaves, "files": files, "buffers": info.buffers,
              "config_keys_not_read": info.keys_not_read}
    checks = [{"name": "weights counted from the sizes = numbers in the file", "error": 0,
               "tolerance": 0, "ok": True}]
    return Answer(sizes, {"action": "info", "folder": source}, result, checks, [],
                  lambda look: text.info_lines(sizes, result, checks, look))


N_RUNS, N_TOKENS = 3, 8


def model_check(source, options):
    """Run a model on random ids, the same each time, and add up what its writers wrote."""
    from .rng import Generator
    loaded, info = read_model(source, options)
    config, generator = loaded.config, Generator(0)
    sequences = [[generator.below(config.d_vocab) for _ in range(min(N_TOKENS, config.n_ctx))]
                 for _ in range(N_RUNS)]
    with announced("running the model", options.verbose, options.quiet):
        checks = [record.check_record(run(loaded, ids), f"run {i}: ")
                  for i, ids in enumerate(sequences, 1)]
    described = record.model_record(source, info) if options.json else None
    title = f"{loaded.name}, {N_RUNS} runs on random tokens, {len(sequences[0])} each"
    return Answer(described, {"action": "check", "folder": source}, {"sequences": sequences},
                  checks, [], lambda look: text.verdict_lines(title, checks, look))


# ---- the table of commands ----

class Command(namedtuple("Command", ("name", "usage", "summary", "takes", "options", "run",
                                     "examples"))):
    """takes: which MODEL_OPTIONS; options(parser) adds its own; run(options) -> Answer."""


COMMANDS = (
    Command("toy", "[OPTIONS]", "three numbers, and what attention and MLP add to them", (),
            toy_options, toy, ("toy", "toy --x 1,2,3 --attn -0.5,-1,0 --no-mlp")),
    Command("trace", "[TEXT] --model FOLDER [OPTIONS]", "the stream of a model, writer by writer",
            ("model", "ids", "position"), trace_options, trace,
            ("trace --model FOLDER --ids 3,1,4",
             "trace --model FOLDER --ids 3,1,4 -p 0 --layers 0:1 --vectors")),
    Command("count", "[OPTIONS]", "writers, weights, multiply-adds and cache, with their formulas",
            ("model",), count_options, count,
            ("count --layers 32", "count --width 4 --hidden 8 --heads 4")),
    Command("model", "[info|check] FOLDER [OPTIONS]",
            "what a folder holds, and whether its writers add up",
            ("model",), model_command_options, model,
            ("model info FOLDER", "model check FOLDER")),
)

NEXT = f"""
Next, the stream of a real model:
  {PROG} trace --model FOLDER
and how many write to it:
  {PROG} count --layers 32
"""


def first_parser():
    """The parser of what stands before the command."""
    listing = [f"  {command.name:<7}{command.summary}" for command in COMMANDS]
    parser = Parser(PROG, "[COMMAND] [OPTIONS]", "\n".join(
        ["The residual stream of a transformer.", "", "commands, toy if none is named:", *listing,
         "", f"{PROG} COMMAND -h says more."]), ("toy --no-attn", "count --layers 32"))
    model_options(parser, True, ())
    common_options(parser, True)
    return parser


def command_parser(command):
    parser = Parser(f"{PROG} {command.name}", command.usage, command.summary, command.examples)
    command.options(parser)
    model_options(parser, False, command.takes)
    common_options(parser, False)
    return parser


def split_at_command(argv, takes_value):
    """Return (what stands before the command, the command or None, what stands after it).

    >>> split_at_command(["--columns", "40", "toy", "--no-attn"], {"--columns"})
    (['--columns', '40'], 'toy', ['--no-attn'])
    """
    i = 0
    while i < len(argv) and argv[i].startswith("-"):
        i += 2 if argv[i] in takes_value else 1
    return argv[:i], argv[i] if i < len(argv) else None, argv[i + 1:]


def command_named(name):
    for command in COMMANDS:
        if command.name == name:
            return command
    raise Refused(USAGE, f"there is no command {name!r}", nearest(
        name, [command.name for command in COMMANDS], f"{PROG} -h lists the commands"))


# ---- everything together ----

def put(result):
    """Write the result to stdout; Refused where that cannot be done."""
    if sys.stdout is None:
        raise Refused(ENVIRONMENT, "there is no standard output")
    try:
        write(sys.stdout, result)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Refused(ENVIRONMENT, f"the result cannot be written: {error.strerror}")


def answered(argv):
    """Run the command that argv names, put its answer on stdout, and return the exit code."""
    parser = first_parser()
    before, name, after = split_at_command(argv, parser.takes_value)
    options = parser.parse(before)
    command = command_named(name or "toy")
    for what, flags, _ in MODEL_OPTIONS:
        if what not in command.takes and getattr(options, what) is not None:
            raise Refused(USAGE, f"{flags[-1]} means nothing to {command.name}", "leave it out")
    of_command = command_parser(command)
    options = of_command.parse(after, options)
    if options.version:
        # by the package's name, which is another where it was copied into a program
        put(f"pyres {sys.modules[__package__].__version__}\n")
    elif options.help:
        put((of_command if name else parser).format_help())
    else:
        return put_answer(command, command.run(options), options, NEXT if name is None else "")
    return DONE


def put_answer(command, answer, options, following):
    if options.json:
        fields = {"schema": "pyres/1", "command": command.name}
        fields.update(answer._asdict())
        del fields["draw"]
        put(json.dumps(record.plain(fields), allow_nan=False) + "\n")
    else:
        look = terminal.look_for(sys.stdout, options.columns, options.ascii, options.color,
                                 options.precision, options.quiet)
        put("\n".join(answer.draw(look)) + "\n" + ("" if options.quiet else following))
    return DONE if all([check["ok"] for check in answer.checks]) else NO


def report(error, code, hint, as_json):
    """Say on stderr what went wrong."""
    if sys.stderr is None:
        return
    if os.environ.get("PYRES_TRACEBACK") == "1":
        import traceback
        write(sys.stderr, "".join(traceback.format_exception(type(error), error,
                                                             error.__traceback__)))
    message = str(error) if code != FAULT else f"{type(error).__name__}: {error}"
    if as_json:
        fields = {"code": code, "message": message, "hint": hint}
        write(sys.stderr, json.dumps({"schema": "pyres/1", "error": fields}) + "\n")
        return
    lines = [f"pyres: error: {message}"] + ([f"hint: {hint}"] if hint else [])
    write(sys.stderr, "".join([text.shown(line, text.Look()) + "\n" for line in lines]))


def main(argv=None):
    """Run one command and return its exit code.

    >>> main(["toy", "--quiet"])
    stream       1     2  3
    + attention  0.5  -1  0
    = stream     1.5   1  3
    + MLP        0     1  1
    = stream     1.5   2  4
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
        code, hint, refused = error.code, error.hint, error
    except MemoryError as error:
        code, hint, refused = ENVIRONMENT, "there is not enough memory for this", error
    except Exception as error:
        code, hint, refused = FAULT, "a fault of pyres; PYRES_TRACEBACK=1 shows where", error
    report(refused, code, hint, as_json)
    return code


def main_from_console():
    """What the console script runs."""
    code = main()
    if code in (ENVIRONMENT, CLOSED_PIPE) and sys.stdout is not None:
        # what is left in the buffer cannot be written, and Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
