"""The one test command: every test, and every example in the modules and the pages.

    python -m tests             tests/test_*.py, the core laws, every module's doctests, the pages
    python -m tests --long      tests/long_*.py too
    python -m tests NAME...     only these: test_linalg, pyres.linalg, docs/design.md, README.md;
                                linalg alone is test_linalg, pyres.linalg and docs/linalg.md
    python -m tests -v          with the time of each

The pages are README.md and docs/*.md; one without an example fails.  Examples run under doctest's
defaults.  Two processes take module after module (PYRES_TEST_PROCESSES says how many).  Exit 1 on
any failure, and where nothing was run.
"""
import argparse
import collections
import concurrent.futures
import doctest
import glob
import importlib
import io
import os
import sys
import time
import traceback
import unittest

Result = collections.namedtuple("Result", "name tests examples failures text skipped seconds")


def module_name(path):
    """Return the name of the module in a file, and of the package for its __init__.

    >>> module_name(os.path.join("pyres", "study", "__init__.py"))
    'pyres.study'
    """
    parts = path[:-len(".py")].split(os.sep)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def units(long=False):
    """Return the names of all that can be run: a module's dotted name, a page's path."""
    tests = sorted(glob.glob("tests/test_*.py")) + glob.glob("tests/core_laws.py")
    if long:
        tests = sorted(glob.glob("tests/long_*.py")) + tests        # the longest first
    modules = sorted(glob.glob("pyres/**/*.py", recursive=True))
    modules = [path for path in modules if os.path.basename(path) != "__main__.py"]   # a command
    tools = ["tests/__main__.py"] + sorted(glob.glob("tests/portability/*.py"))
    pages = sorted(glob.glob("docs/**/*.md", recursive=True)) + glob.glob("README.md")
    return [module_name(os.path.normpath(path)) for path in tests + modules + tools] + pages


def chosen(names, among):
    """Return the units that a name stands for, in their order.

    >>> chosen(["linalg"], ["tests.test_linalg", "pyres.linalg", "docs/linalg.md", "pyres.norms"])
    ['tests.test_linalg', 'pyres.linalg', 'docs/linalg.md']
    >>> chosen(["pyres.linalg", "norm"], ["pyres.linalg", "pyres.norms"])
    Traceback (most recent call last):
    ...
    SystemExit: no tests are called norm
    """
    found = set()
    for name in names:
        short = {name, "test_" + name, "long_" + name}
        matching = {unit for unit in among if unit == name or unit.split(".")[-1] in short
                    or unit.endswith(".md") and os.path.basename(unit)[:-len(".md")] == name}
        if not matching:
            raise SystemExit(f"no tests are called {name}")
        found |= matching
    return [unit for unit in among if unit in found]


def run_tests(module):
    """Run a module's unittests; return tests, failures, text, reasons of the skipped ones."""
    out = io.StringIO()
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(out, verbosity=0, buffer=True).run(suite)
    failures = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = [reason for _, reason in result.skipped]
    if not result.testsRun and not skipped:
        return 0, 1, f"{module.__name__}: a test module without a test\n", []
    return result.testsRun, failures, out.getvalue(), skipped


def run_examples(examples):
    """Run doctest's DocTests; return examples, failures, and what doctest says of the failures."""
    out = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False)
    for example in examples:
        runner.run(example, out=out.write)
    return runner.tries, runner.failures, out.getvalue()


def run_page(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, path, path, 0)
    if not page.examples:
        return 0, 1, f"{path}: a page without an example\n"
    return run_examples([page])


def run_unit(name):
    """Run one unit; this is what the processes do."""
    start, tests, skipped = time.perf_counter(), 0, []
    try:
        if name.endswith(".md"):
            examples, failures, text = run_page(name)
        elif name.rpartition(".")[2].startswith(("test_", "long_", "core_laws")):
            tests, failures, text, skipped = run_tests(importlib.import_module(name))
            examples = 0
        else:
            module = importlib.import_module(name)
            examples, failures, text = run_examples(doctest.DocTestFinder().find(module))
    except unittest.SkipTest as reason:         # raised by the module itself
        examples, failures, text, skipped = 0, 0, "", [str(reason)]
    except (Exception, SystemExit):
        examples, failures, text = 0, 1, f"{name}:\n{traceback.format_exc()}"
    return Result(name, tests, examples, failures, text, skipped, time.perf_counter() - start)


def run_all(names, verbose=False):
    """Run the units, print what failed and one closing line; return 1 on any failure, else 0."""
    start, results = time.perf_counter(), []
    processes = int(os.environ.get("PYRES_TEST_PROCESSES", 2))
    with concurrent.futures.ProcessPoolExecutor(processes) as executor:
        for result in executor.map(run_unit, names):
            results.append(result)
            if result.failures:
                print(result.text, end="" if result.text.endswith("\n") else "\n", flush=True)
            if verbose:
                print(f"{result.seconds:7.2f} s  {result.name}", flush=True)
    reasons = collections.Counter(reason for result in results for reason in result.skipped)
    for reason, count in sorted(reasons.items()):
        print(f"skipped {count}: {reason}")
    tests = sum(result.tests for result in results)
    examples = sum(result.examples for result in results)
    failures = sum(result.failures for result in results)
    print(f"{tests} tests, {examples} examples, {failures} failures, "
          f"{sum(reasons.values())} skipped, {time.perf_counter() - start:.1f} s")
    return 1 if failures or not tests + examples else 0


def main():
    parser = argparse.ArgumentParser(prog="python -m tests", description="Run the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these modules or pages")
    parser.add_argument("--long", action="store_true", help="the tests that take minutes, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="with the time of each")
    options = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    # a name may ask for a long test without --long
    among = units(options.long or bool(options.names))
    return run_all(chosen(options.names, among) if options.names else among, options.verbose)


if __name__ == "__main__":
    sys.exit(main())
