"""The part of unittest that the core laws use, for interpreters without it or with little memory.

It is copied beside the laws as `unittest.py`, where it is found before any other, so that
`tests/core_laws.py` says `import unittest` everywhere.  It has only what every runtime can offer:
a law that asks for more fails on every row, not on one.
"""


class Caught:
    """What `with self.assertRaises(kind) as caught` gives; its end sets `caught.exception`."""

    def __init__(self, kind):
        self.kind = kind
        self.exception = None

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, traceback):
        if kind is None:
            raise AssertionError(f"nothing raised, expected {self.kind}")
        self.exception = exception
        return issubclass(kind, self.kind)


class TestCase:
    def setUp(self):
        pass

    def tearDown(self):
        pass

    def fail(self, msg=None):
        raise AssertionError(msg or "fail")

    def assertTrue(self, value, msg=None):
        if not value:
            self.fail(msg or f"{value!r} is not true")

    def assertEqual(self, first, second, msg=None):
        if not first == second:
            self.fail(msg or f"{first!r} != {second!r}")

    def assertAlmostEqual(self, first, second, msg=None, *, delta):
        # written so that a NaN fails
        if not (first == second or abs(first - second) <= delta):
            self.fail(msg or f"{first!r} != {second!r} within {delta!r}")

    def assertRaises(self, kind, function=None, *args):
        caught = Caught(kind)
        if function is None:
            return caught
        with caught:
            function(*args)


def names_of_tests(module):
    """Return "Case.test_name" for every test in the module."""
    found = []
    for case in sorted(dir(module)):
        kind = getattr(module, case)
        if isinstance(kind, type) and issubclass(kind, TestCase):
            found.extend(f"{case}.{name}" for name in sorted(dir(kind)) if name[:5] == "test_")
    return found


def run_test(module, name):
    """Run one test of the module; whatever it raises is the caller's."""
    case, method = name.split(".")
    test = getattr(module, case)()
    test.setUp()
    try:
        getattr(test, method)()
    finally:
        test.tearDown()
