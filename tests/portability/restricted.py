"""What runs inside a zip where little else is: imports the package, then runs the core laws.

    python -I -S -E -B -W error core.zip [PACKAGE]

PACKAGE is the name under which the package was put into the zip, pyres or, vendored, another one.
The zip also holds `core_laws.py` and `miniunit.py`, there named `unittest.py`.
"""
import sys

# what `import pyres` must not pull in, so that it stays small; with a dot in front, its own
HEAVY = ("json", "argparse", "typing", "dataclasses", ".files", ".view")


def load(name):
    """Import a module; one that would end the program, perhaps with 0, has failed."""
    try:
        __import__(name)
    except SystemExit:
        raise ImportError(f"import {name} ends the program")


def import_alone(package):
    """Import the package and return the heavy modules that came with it."""
    heavy = [package + name if name[0] == "." else name for name in HEAVY]
    for name in heavy:
        sys.modules.pop(name, None)     # the interpreter's own start may have imported some
    load(package)
    return [name for name in heavy if name in sys.modules]


def import_all(package):
    """Import every module of the package and return their names; `__main__` is a command."""
    import pkgutil

    def fail(name):
        raise                           # walk_packages else passes over what it cannot import

    found = []
    path = sys.modules[package].__path__
    for _, name, _ in pkgutil.walk_packages(path, package + ".", fail):
        if not name.endswith(".__main__"):
            load(name)
            found.append(name)
    return found


def run_laws():
    """Run the core laws; return how many passed and how many failed."""
    import traceback
    import unittest

    import core_laws
    names, failed = unittest.names_of_tests(core_laws), 0
    for name in names:
        try:
            unittest.run_test(core_laws, name)
        except Exception:
            failed += 1
            print("FAIL", name)
            traceback.print_exc(file=sys.stdout)
    return len(names) - failed, failed


def main(package="pyres"):
    """Return 0 if all is well, else 1; what is wrong is printed."""
    heavy = import_alone(package)
    if heavy:
        print(f"import {package} pulled in {', '.join(heavy)}")
    modules = import_all(package)
    passed, failed = run_laws()
    print(f"{len(modules)} modules imported; laws: {passed} passed, {failed} failed")
    return 1 if heavy or failed or not passed else 0
