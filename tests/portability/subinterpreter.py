"""Runs what `restricted.py` runs, in a subinterpreter.

    python -I -S -E -B -W error subinterpreter.py core.zip

Exit 0: passed; 1: failed; 77: this Python has no subinterpreters.
"""
import importlib
import sys

CODE = """
import sys
sys.path.insert(0, {path!r})
import restricted
if restricted.main():
    raise RuntimeError("restricted.main failed in the subinterpreter")
sys.stdout.flush()
"""


def find(name):
    """Return a module that not every Python has, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def runner():
    """Return a function that runs code in a new subinterpreter and raises if the code does."""
    inner = find("_interpreters")               # CPython 3.13 and later
    if inner:
        def run(code):
            failure = inner.exec(inner.create(), code)
            if failure is not None:
                raise RuntimeError(failure.errdisplay)
        return run

    older = find("_xxsubinterpreters")          # CPython 3.8 to 3.12
    if older:
        # 3.12 crashes where ssl, which http.server imports, meets an interpreter with its own lock
        number = older.create(isolated=sys.version_info[:2] != (3, 12))
        return lambda code: older.run_string(number, code)

    support = find("test.support")
    if support:
        def run(code):
            if support.run_in_subinterp(code):
                raise RuntimeError("the code in the subinterpreter failed")
        return run
    return None


def main(path):
    run = runner()
    if run is None:
        print("no _interpreters, _xxsubinterpreters or test.support here")
        return 77
    try:
        run(CODE.format(path=path))
    except Exception as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
