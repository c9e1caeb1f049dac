"""Runs everything everywhere, two rows at a time, and ends with a table.

    python -m tests.portability.matrix            from the project's root; `make matrix`

The rows: the lint; the whole tests on every CPython from 3.9 to 3.13, on PyPy, and on the Python
that runs this; the core laws on each CPython from a zip with little memory and stack, the same
under -OO, vendored under another name, and in a subinterpreter; the core laws in MicroPython.

A row whose interpreter is not found is skipped by name, or fails if PYRES_REQUIRE_MATRIX is 1.
PYRES_MICROPYTHON names the entry, micropython.mjs, of the npm package
@micropython/micropython-webassembly-pyscript; `.ci/run` installs it.  Exit 1 where a row failed.
"""
import collections
import concurrent.futures
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from tests.portability import subset_lint

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
HERE = os.path.join(ROOT, "tests", "portability")
WANTED = ["CPython 3.9", "CPython 3.10", "CPython 3.11", "CPython 3.12", "CPython 3.13", "PyPy"]
VENDORED = "host.vendored"
SKIPPED = 77                            # the exit code by which a row says that it cannot run here
SECONDS = 1800                          # a row that takes longer has failed

# no site, no environment, nothing written, warnings are errors
ALONE = ["-I", "-S", "-E", "-B", "-W", "error"]
# 64 MiB of address space and 512 KiB of stack; sh sets them, then becomes the interpreter
SMALL = ["sh", "-c", 'ulimit -v 65536 && ulimit -s 512 && exec "$@"', "sh"]

# what: "tests on CPython 3.9"; command: a list, or None where missing says why there is none
Row = collections.namedtuple("Row", "what command missing")
Outcome = collections.namedtuple("Outcome", "what verdict why seconds output")


# -- interpreters ---------------------------------------------------------------------------------

def identify(command):
    """Return (name, executable) of a Python, or None if it does not run: pyenv's shims may not."""
    code = ("import platform, sys; print(sys.executable); "
            "print(platform.python_implementation(), *sys.version_info[:2])")
    try:
        done = subprocess.run([command, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    executable, title = done.stdout.splitlines()
    kind, major, minor = title.split()
    return ("PyPy" if kind == "PyPy" else f"{kind} {major}.{minor}"), executable


def patch_level(path):
    """Return the version in a pyenv path, to sort by.

    >>> patch_level("/home/me/.pyenv/versions/3.9.18/bin/python3.9")
    (3, 9, 18)
    """
    found = re.search(r"versions/(\d+)\.(\d+)\.(\d+)/", path)
    return tuple(int(part) for part in found.groups()) if found else (0, 0, 0)


def candidates(name):
    """Return the commands that could be this Python: on PATH, then pyenv's, the newest first."""
    command = "pypy3" if name == "PyPy" else "python" + name.split()[1]
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    installed = glob.glob(os.path.join(pyenv, "versions", "*", "bin", command))
    on_path = shutil.which(command)
    return ([on_path] if on_path else []) + sorted(installed, key=patch_level, reverse=True)


def interpreters():
    """Return {name: executable}: the Python that runs this first, None for what was not found."""
    own, executable = identify(sys.executable)
    found = {own: executable}
    for name in WANTED:
        if name not in found:
            named = (identify(command) for command in candidates(name))
            found[name] = next((e for n, e in filter(None, named) if n == name), None)
    return found


# -- what the restricted rows run -----------------------------------------------------------------

def renamed(source, package=VENDORED):
    """Return the laws' source, importing the package by another name.

    >>> renamed("import pyres\\nfrom pyres.linalg import dot")
    'import host.vendored as pyres\\nfrom host.vendored.linalg import dot'
    """
    source = re.sub(r"^(\s*)import pyres$", rf"\1import {package} as pyres", source, flags=re.M)
    return re.sub(r"^(\s*)from pyres\b", rf"\1from {package}", source, flags=re.M)


def lay_out(folder, package="pyres"):
    """Fill a folder with the package under a name, the laws, and the stand-in for unittest."""
    shutil.copytree(os.path.join(ROOT, "pyres"), os.path.join(folder, *package.split(".")),
                    ignore=shutil.ignore_patterns("__pycache__"))
    for name in package.split(".")[:-1]:
        with open(os.path.join(folder, name, "__init__.py"), "w", encoding="utf-8") as file:
            file.write('"""A program that carries pyres within itself."""\n')
    laws = subset_lint.read(os.path.join(ROOT, "tests", "core_laws.py"))
    with open(os.path.join(folder, "core_laws.py"), "w", encoding="utf-8") as file:
        file.write(laws if package == "pyres" else renamed(laws, package))
    shutil.copy(os.path.join(HERE, "miniunit.py"), os.path.join(folder, "unittest.py"))


def pack(folder, path):
    """Store a folder, uncompressed, as a zip that Python can run and nobody can write."""
    with zipfile.ZipFile(path, "w") as archive:
        for base, _, names in os.walk(folder):
            for name in sorted(names):
                full = os.path.join(base, name)
                archive.write(full, os.path.relpath(full, folder))
        archive.write(os.path.join(HERE, "restricted.py"), "restricted.py")
        archive.writestr("__main__.py", "import sys, restricted\n"
                                        "sys.exit(restricted.main(*sys.argv[1:]))\n")
    os.chmod(path, 0o444)


# -- rows -----------------------------------------------------------------------------------------

def rows(scratch):
    """Return every row; the files they run are laid out in the scratch folder."""
    plain, vendored = os.path.join(scratch, "plain"), os.path.join(scratch, "vendored")
    lay_out(plain)
    lay_out(vendored, VENDORED)
    core, other = plain + ".zip", vendored + ".zip"
    pack(plain, core)
    pack(vendored, other)
    found = interpreters()

    def row(what, name, *command):
        missing = None if found[name] else f"{name} not found"
        return Row(f"{what:15} {name}", None if missing else list(command), missing)

    result = [Row("lint", [sys.executable, "-m", "tests.portability.subset_lint"], None)]
    for name, python in found.items():
        result.append(row("tests", name, "make", "--silent", "test", f"PYTHON={python}"))
    # elsewhere ulimit -v does nothing, or fails
    small = SMALL if platform.system() == "Linux" else []
    for name, python in found.items():
        if name != "PyPy":
            result.append(row("zip", name, *small, python, *ALONE, core))
            result.append(row("zip -OO", name, *small, python, *ALONE, "-OO", core))
            result.append(row("subinterpreter", name, python, *ALONE,
                              os.path.join(HERE, "subinterpreter.py"), core))
        result.append(row("vendored", name, python, *ALONE, other, VENDORED))
    return result + [micropython(plain)]


def micropython(folder):
    node, entry = shutil.which("node"), os.environ.get("PYRES_MICROPYTHON")
    modules = [os.path.relpath(path, ROOT)[:-len(".py")].replace(os.sep, ".")
               for path in subset_lint.core_files(ROOT)]
    modules = [re.sub(r"\.__init__$", "", name) for name in modules]
    missing = None if node and entry else "PYRES_MICROPYTHON not set" if node else "node not found"
    command = [node, os.path.join(HERE, "micropython.mjs"), entry, folder] + modules
    return Row("MicroPython", None if missing else command, missing)


def run(row):
    """Run one row to its end."""
    if row.command is None:
        required = os.environ.get("PYRES_REQUIRE_MATRIX") == "1"
        return Outcome(row.what, "failed" if required else "skipped", row.missing, 0.0, "")
    start = time.perf_counter()
    # two rows run at a time, so each has one process
    environment = dict(os.environ, PYRES_TEST_PROCESSES="1", MAKEFLAGS="")
    try:
        done = subprocess.run(row.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
        code, output = done.returncode, done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        code, output = -1, (error.stdout or b"").decode("utf-8", "replace")
    lines = output.splitlines()
    verdict = {0: "passed", SKIPPED: "skipped"}.get(code, "failed")
    why = f"exit code {code}" if verdict == "failed" else lines[-1] if lines else ""
    return Outcome(row.what, verdict, why, time.perf_counter() - start, output)


def main():
    """Run the rows; print the output of those that failed, the table, and the count."""
    start, outcomes = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            for outcome in executor.map(run, rows(scratch)):
                outcomes.append(outcome)
                print(f"{outcome.verdict:8} {outcome.what}", flush=True)
                if outcome.verdict == "failed":
                    print(outcome.output, flush=True)
    print()
    for outcome in outcomes:
        print(f"{outcome.what:28} {outcome.verdict:8} {outcome.seconds:6.1f} s  {outcome.why}")
    count = collections.Counter(outcome.verdict for outcome in outcomes)
    print(f"\n{len(outcomes)} rows in {time.perf_counter() - start:.1f} s")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
