"""The layout that docs/layout.md draws is the one that the imports make."""
import ast
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join(ROOT, "pyres")


def levels():
    """The level of every module and small package that the page's table names."""
    with open(os.path.join(ROOT, "docs", "layout.md"), encoding="utf-8") as page:
        rows = re.findall(r"^\| (\d) \| (.*?) \|", page.read(), re.M)
    return {name.strip("/"): int(number) for number, names in rows
            for name in re.findall(r"`(\S+?)`", names)}


def python_files():
    """Every module's path in parts, ("files", "hub.py"), but the package's own __init__."""
    for folder, _, names in os.walk(PACKAGE):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), PACKAGE)
            if name.endswith(".py") and path != "__init__.py":
                yield tuple(path.split(os.sep))


def imported(parts):
    """The modules and small packages that a module imports from elsewhere in the package."""
    with open(os.path.join(PACKAGE, *parts), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == len(parts):
            if node.module:
                yield node.module.split(".")[0]
            else:
                yield from [alias.name for alias in node.names]


def unit(parts):
    """What the table calls a file: a module's name, or the small package it is in."""
    return parts[0].replace(".py", "")


class LayoutTest(unittest.TestCase):
    def test_every_module_is_named(self):
        self.assertEqual({unit(parts) for parts in python_files()}, set(levels()))

    def test_no_module_imports_from_a_level_above(self):
        level = levels()
        for parts in python_files():
            for other in imported(parts):
                with self.subTest(os.path.join(*parts), imports=other):
                    self.assertLessEqual(level[other], level[unit(parts)])

    def test_the_table_is_in_reading_order(self):
        numbers = list(levels().values())
        self.assertEqual(numbers, sorted(numbers))


if __name__ == "__main__":
    unittest.main()
