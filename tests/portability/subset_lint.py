"""Refuses what the portable core may not use, before a small interpreter does.

    python subset_lint.py            the whole project, from its root
    python subset_lint.py FILE...    these files, as the core

The core is every module directly in pyres/ except __main__, cli and training, every module in
pyres/study/ whose docstring says "part of the portable core", and the core laws.  Where no reason
stands beside a rule it is this: MicroPython lacks the thing or does it differently (measured on
1.27), or CPython 3.9 does.  What one line cannot tell is left to the runs themselves: a step in a
slice of a tuple, deep recursion, the order of a dict, quotes of one kind nested in an f-string.

>>> core_faults("from typing import List")
['1: from typing import']
>>> core_faults("def f(x):\\n    return math.hypot(*x)")
['2: math.hypot']
>>> core_faults('''
... try:
...     from math import sumprod
... except ImportError:
...     sumprod = None
... ''')
[]
>>> core_faults("from math import sumprod")
['1: from math import sumprod, outside try/except ImportError']
>>> package_faults("from pyres.linalg import dot")
['1: imports pyres by name; write it relative, so that a vendored copy works']
"""
import ast
import io
import os
import sys
import tokenize

OUTSIDE_CORE = ("__main__.py", "cli.py", "training.py")
CORE_MARK = "part of the portable core"

# what may be imported anywhere, and what only inside try/except ImportError
FREE = {"math", "collections"}
GUARDED = {"cmath", "operator"}
# what the laws may use besides: unittest, or its stand-in
LAWS = {"unittest", "pyres"}

# what MicroPython's math has and CPython 3.9's too
MATH = set("""acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees e erf erfc exp
    expm1 fabs factorial floor fmod frexp gamma inf isclose isfinite isinf isnan ldexp lgamma log
    log10 log2 modf nan pi pow radians sin sinh sqrt tan tanh tau trunc""".split())

# built-in functions that are absent there or, like round, differ
BUILTINS = set("""format vars ascii breakpoint memoryview slice round open input exec eval compile
    globals locals exit quit aiter anext __import__""".split())

# methods and attributes likewise; of strings, numbers, named tuples, functions, exceptions
ATTRIBUTES = set("""ljust rjust zfill title capitalize swapcase casefold expandtabs translate
    maketrans removeprefix removesuffix format_map isnumeric isidentifier isprintable isalnum
    isdecimal istitle bit_length bit_count is_integer as_integer_ratio fromhex conjugate
    _fields _replace _asdict _make __doc__ __annotations__ __wrapped__ __qualname__ __cause__
    __context__ __traceback__ with_traceback add_note""".split())

# special methods that are never called there
METHODS = set("""__init_subclass__ __class_getitem__ __set_name__ __format__ __missing__
    __prepare__ __new__ __index__ __round__""".split())

# names that are absent there
NAMES = set("""ModuleNotFoundError RecursionError FloatingPointError Warning UserWarning
    DeprecationWarning ExceptionGroup __doc__ __file__""".split())


class Core(ast.NodeVisitor):
    """Collects the faults of one module as (line, message)."""

    def __init__(self, may_import):
        self.may_import = may_import
        self.faults = []
        self.caught = frozenset()       # what the try statements around this place catch
        self.annotation = False

    def refuse(self, node, what):
        self.faults.append((node.lineno, what))

    def visit_Try(self, node):
        names = [n.id for h in node.handlers if h.type for n in ast.walk(h.type)
                 if isinstance(n, ast.Name)]
        before = self.caught
        self.caught = before.union(names)
        for child in node.body:
            self.visit(child)
        self.caught = before
        if "OverflowError" in names:
            self.refuse(node, "except OverflowError, which exp does not raise there")
        for child in node.handlers + node.orelse + node.finalbody:
            self.visit(child)

    def visit_TryStar(self, node):
        self.refuse(node, "except*")

    def module(self, node, name, text):
        top = name.split(".")[0]
        if top in self.may_import:
            return
        if top not in GUARDED:
            self.refuse(node, text)
        elif "ImportError" not in self.caught:
            self.refuse(node, text + ", outside try/except ImportError")

    def visit_Import(self, node):
        for alias in node.names:
            self.module(node, alias.name, "import " + alias.name)

    def visit_ImportFrom(self, node):
        if node.level:
            return
        self.module(node, node.module, f"from {node.module} import")
        for alias in node.names:
            text = f"from {node.module} import {alias.name}"
            if node.module == "collections" and alias.name != "namedtuple":
                self.refuse(node, text)
            if (node.module == "math" and alias.name not in MATH
                    and "ImportError" not in self.caught):
                self.refuse(node, text + ", outside try/except ImportError")

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "math":
            if node.attr not in MATH and "AttributeError" not in self.caught:
                self.refuse(node, "math." + node.attr)
        elif node.attr in ATTRIBUTES:
            self.refuse(node, "." + node.attr)
        self.generic_visit(node)

    def visit_Name(self, node):
        if node.id in NAMES:
            self.refuse(node, node.id)

    def visit_Call(self, node):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in BUILTINS:
            self.refuse(node, name + "()")
        if name in ("zip", "sum", "namedtuple", "int", "pow") and node.keywords:
            self.refuse(node, name + "() takes no keywords there")
        if name == "iter" and len(node.args) > 1:
            self.refuse(node, "iter() with a sentinel")
        self.generic_visit(node)

    def visit_Subscript(self, node):
        if (isinstance(node.value, ast.Name) and not self.annotation
                and node.value.id in ("list", "dict", "tuple", "set", "frozenset", "type")):
            self.refuse(node, f"{node.value.id}[...] as a value")
        self.generic_visit(node)

    def visit_literal(self, node):
        loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if loaded and any(isinstance(item, ast.Starred) for item in node.elts):
            self.refuse(node, "a star inside a literal")
        self.generic_visit(node)

    visit_List = visit_Tuple = visit_Set = visit_literal

    def visit_Dict(self, node):
        if None in node.keys:
            self.refuse(node, "** inside a literal")
        self.generic_visit(node)

    def annotated(self, annotation):
        if annotation is None:
            return
        if any(isinstance(n, ast.BinOp) for n in ast.walk(annotation)):
            self.refuse(annotation, "| in an annotation without quotes")
        self.annotation = True
        self.visit(annotation)
        self.annotation = False

    def visit_arg(self, node):
        self.annotated(node.annotation)

    def visit_AnnAssign(self, node):
        self.annotated(node.annotation)
        for child in (node.target, node.value):
            if child is not None:
                self.visit(child)

    def visit_arguments(self, node):
        if node.posonlyargs:
            self.refuse(node.posonlyargs[0], "positional-only parameters")
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        if node.name in METHODS:
            self.refuse(node, node.name)
        self.annotated(node.returns)
        for child in node.decorator_list + [node.args] + node.body:
            self.visit(child)

    def visit_ClassDef(self, node):
        if node.keywords or len(node.bases) > 1:
            self.refuse(node, "class keywords or several bases")
        self.generic_visit(node)

    def visit_Assert(self, node):
        self.refuse(node, "assert, which -O removes: raise")

    def visit_AsyncFunctionDef(self, node):
        self.refuse(node, "async")

    def visit_Match(self, node):
        self.refuse(node, "match")

    def visit_FormattedValue(self, node):
        inside = list(ast.walk(node.value))
        if node.conversion == ord("a"):
            self.refuse(node, "!a in an f-string")
        if any(isinstance(n, ast.JoinedStr) for n in inside):
            self.refuse(node, "an f-string inside an f-string")
        # there a field ends at the first colon outside brackets, quoted or not
        if any(isinstance(n, (ast.Lambda, ast.NamedExpr)) for n in inside):
            self.refuse(node, "lambda or := inside an f-string")
        texts = [n.value for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if set("".join(texts)) & set("{}[]:"):
            self.refuse(node, "one of { } [ ] : in a string inside an f-string")
        self.generic_visit(node)


def string_faults(source):
    r"""Faults that only the tokens show: what MicroPython's f-strings and escapes cannot do.

    >>> string_faults('x = f"{a}" "{b}"')
    [(1, 'an f-string beside a string with braces')]
    >>> string_faults(r'x = "\N{BULLET}"')
    [(1, '\\N{...} in a string: write the character or \\u')]
    """
    faults, line, formatted, braces, depth = [], 0, False, False, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, text = tokenize.tok_name[token.type], token.string
        prefix = text.split(text[-1])[0].lower() if kind == "STRING" else ""
        if kind in ("STRING", "FSTRING_MIDDLE") and "r" not in prefix and "\\N{" in text:
            faults.append((token.start[0], "\\N{...} in a string: write the character or \\u"))
        if kind == "FSTRING_START":             # from CPython 3.12 on; before, it is a STRING
            line, formatted, depth = token.start[0], True, depth + 1
        elif kind == "FSTRING_END":
            depth -= 1
        elif kind == "STRING" and not depth:
            line = token.start[0]
            formatted = formatted or "f" in prefix
            braces = braces or "f" not in prefix and "{" in text
        elif not depth and kind not in ("NL", "COMMENT"):
            if formatted and braces:
                faults.append((line, "an f-string beside a string with braces"))
            formatted = braces = False
    return faults


def in_order(faults):
    return [f"{line}: {what}" for line, what in sorted(set(faults))]


def core_faults(source, laws=False):
    """Return what the source, a core module's, may not use, as "line: what"."""
    try:
        tree = ast.parse(source, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    core = Core(FREE | LAWS if laws else FREE)
    core.visit(tree)
    return in_order(core.faults + string_faults(source))


def package_faults(source, package="pyres"):
    """Return what the source, any module's of the package, may not use, as "line: what"."""
    faults = []
    standard = getattr(sys, "stdlib_module_names", None)        # from CPython 3.10 on
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "get_data", "__import__", "files"):
                names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        elif isinstance(node, ast.Assert):
            faults.append((node.lineno, "assert, which -O removes: raise"))
        for name in names:
            top = str(name).split(".")[0]
            if top == package:
                faults.append((node.lineno, f"imports {package} by name; write it relative, "
                                            "so that a vendored copy works"))
            elif standard and top and top not in standard:
                faults.append((node.lineno, f"{name} is not in the standard library"))
    return in_order(faults)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def package_files(root):
    """Return the paths of all modules of the package, sorted."""
    found = []
    for folder, _, names in os.walk(os.path.join(root, "pyres")):
        found.extend(os.path.join(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


def core_files(root):
    """Return the paths of the core's modules, sorted."""
    top, study = os.path.join(root, "pyres"), os.path.join(root, "pyres", "study")
    return [path for path in package_files(root)
            if os.path.dirname(path) == top and os.path.basename(path) not in OUTSIDE_CORE
            or os.path.dirname(path) == study
            and CORE_MARK in " ".join((ast.get_docstring(ast.parse(read(path))) or "").split())]


def main(paths):
    """Print the faults and a closing line; return 1 if there are any."""
    root = os.path.relpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    faults = {}                         # in order, each once

    def add(path, found):
        faults.update((f"{os.path.normpath(path)}:{fault}", None) for fault in found)

    for path in paths or core_files(root):
        add(path, core_faults(read(path)))
    if not paths:
        laws = [os.path.join(root, "tests", "core_laws.py"),
                os.path.join(root, "tests", "portability", "miniunit.py")]
        for path in laws:
            add(path, core_faults(read(path), laws=True))
        for path in package_files(root):
            add(path, package_faults(read(path)))
    count = len(paths or package_files(root))
    print("\n".join([*faults, f"lint: {count} modules, {len(faults)} faults"]))
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
