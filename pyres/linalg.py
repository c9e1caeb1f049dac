"""Nested lists as tensors: shapes, and the only inner product in the package.

A tensor is a number, or a list of tensors of one shape.  A vector is `[n]`, a matrix
`[rows][columns]`, and a weight has its outputs as rows, `w[d_out][d_in]`, so that
`out[i] = dot(w[i], x)`.

    all_floats                                    the usual case
    check_numbers, check_length, check_rows       refusals: wrong type, wrong length, ragged
    shape, shape_text                             a tensor's size, and how a message writes it
    is_nested, map_vectors, copied, zeros_like    any depth, always by the last axis
    add, subtract, multiply, scale                entry by entry; shapes must be equal
    dot, matvec, linear, matmul                   inner products
    transpose, outer, sum_rows                    the rest of what a backward pass needs

Lengths are checked here, once per vector and never per entry; a shape that does not fit raises
ValueError and never becomes a number.  Nothing is broadcast.

>>> linear([[1, 2], [3, 4]], [[1, 0], [1, 1], [0, 2]])
[[1, 3, 4], [3, 7, 8]]
"""
try:
    from math import sumprod            # CPython 3.12 and newer
except ImportError:
    sumprod = None
try:
    from operator import add as plus, mul as times, sub as minus
except ImportError:                     # MicroPython

    def plus(a, b):
        return a + b

    def minus(a, b):
        return a - b

    def times(a, b):
        return a * b

__all__ = ["all_floats", "check_numbers", "check_length", "check_rows", "shape", "shape_text",
           "is_nested", "map_vectors", "copied", "checked_copy", "zeros_like",
           "add", "subtract", "multiply", "scale",
           "dot", "matvec", "linear", "linear_backward", "matmul",
           "transpose", "outer", "sum_rows"]


# ---- refusals ----

NOT_NUMBERS = (bool, str, bytes, dict, type(None))


def all_floats(vector):
    """Whether every entry of a vector is a float.

    >>> all_floats([1.0, 2.5]), all_floats([1.0, True])
    (True, False)
    """
    for a in vector:                    # a loop is faster here than any way to do without
        if type(a) is not float:
            return False
    return True


def check_numbers(name, vector):
    """Raise unless every entry of `vector` [n] is a number.

    A bool or a string is a TypeError, because `True + True` and `"a" + "b"` would go through; a
    list among numbers is a ValueError, because the tensor is ragged.

    >>> check_numbers("add", [1, True])
    Traceback (most recent call last):
    TypeError: add: a bool stands where a number belongs
    """
    if all_floats(vector):
        return
    for kind in set(map(type, vector)):
        if issubclass(kind, NOT_NUMBERS):
            raise TypeError(f"{name}: a {kind.__name__} stands where a number belongs")
        if issubclass(kind, (list, tuple)):
            raise ValueError(f"{name}: ragged: numbers and lists stand side by side")


def check_length(name, what, vector, n):
    """Raise ValueError unless `vector` has n entries; `what` is its name in the message.

    >>> check_length("linear", "the bias", [1, 2], 3)
    Traceback (most recent call last):
    ValueError: linear: the bias has length 2, expected 3
    """
    if len(vector) != n:
        raise ValueError(f"{name}: {what} has length {len(vector)}, expected {n}")


def check_rows(name, rows, n):
    """Raise ValueError unless every row of `rows` [m][n] has n entries.

    >>> check_rows("matvec", [[1, 2], [3]], 2)
    Traceback (most recent call last):
    ValueError: matvec: row 1 has length 1, expected 2
    """
    if list(map(len, rows)).count(n) != len(rows):
        for i, row in enumerate(rows):
            check_length(name, f"row {i}", row, n)


def check_like(name, what, x, like):
    """Raise ValueError unless x has the shape of `like`, level by level; sequences may be ragged.

    >>> check_like("attend_backward", "d_mixed", [[1, 2]], [[3, 4], [5, 6]])
    Traceback (most recent call last):
    ValueError: attend_backward: d_mixed has shape (1, 2), expected (2, 2)
    """
    if not same_shape(x, like):
        raise ValueError(f"{name}: {what} has shape {shape_text(x)}, expected {shape_text(like)}")


# ---- shapes ----

def is_nested(x):
    """Whether x is a list of lists; else it is a vector.  A number raises TypeError.

    >>> is_nested([[1, 2]]), is_nested([1, 2])
    (True, False)
    """
    if type(x) is not list and not isinstance(x, (list, tuple)):
        raise TypeError(f"expected a list of numbers, got {type(x).__name__}")
    # the usual case, a vector of floats, is asked for first: it is asked a thousand times a step
    return len(x) > 0 and type(x[0]) is not float and isinstance(x[0], (list, tuple))


def shape(x):
    """The shape of a tensor; ragged lists raise ValueError.

    >>> shape([[1, 2, 3], [4, 5, 6]]), shape([1, 2]), shape(7)
    ((2, 3), (2,), ())
    >>> shape([[1, 2, 3], [4, 5]])
    Traceback (most recent call last):
    ValueError: shape: ragged: [0] has shape (3,), [1] has shape (2,)
    """
    if not isinstance(x, (list, tuple)):
        check_numbers("shape", [x])
        return ()
    if all_floats(x):                   # one look at a row, not one at every number
        return (len(x),)
    shapes = [shape(part) for part in x]
    for i, other in enumerate(shapes):
        if other != shapes[0]:
            raise ValueError(f"shape: ragged: [0] has shape {shapes[0]}, [{i}] has shape {other}")
    return (len(x),) + (shapes[0] if shapes else ())


def shape_text(x):
    """The shape as a message writes it; it never raises, and says where a tensor is ragged.

    >>> shape_text([[1, 2], [3, 4]]), shape_text([[1, 2], [3]])
    ('(2, 2)', '(2, ragged)')
    """
    try:
        return str(shape(x))
    except (TypeError, ValueError):
        return f"({len(x)}, ragged)"


def same_shape(x, y):
    """Whether two nested lists have the same lists in the same places.

    >>> same_shape([[1], [2, 3]], [[4], [5, 6]]), same_shape([[1], [2, 3]], [[4, 5], [6]])
    (True, False)
    """
    nested = is_nested(x)
    if nested != is_nested(y) or len(x) != len(y):
        return False
    return not nested or all([same_shape(a, b) for a, b in zip(x, y)])


# ---- any depth ----

def map_vectors(f, x):
    """f of every vector of x, at any depth: the last axis is the vector's.

    >>> map_vectors(lambda v: v[::-1], [[1, 2], [3, 4, 5]])
    [[2, 1], [5, 4, 3]]
    """
    if is_nested(x):
        return [map_vectors(f, part) for part in x]
    return f(x)


def copied(x):
    """x again, in fresh lists.

    >>> x = [[1, 2], [3, 4]]
    >>> y = copied(x)
    >>> y[0][0] = 9
    >>> x
    [[1, 2], [3, 4]]
    """
    return [copied(part) if isinstance(part, (list, tuple)) else part for part in x]


def checked_copy(name, x):
    """x again, in fresh lists, if it holds numbers alone; else check_numbers raises for `name`.

    >>> checked_copy("trace", [[1, 2], [3, "4"]])
    Traceback (most recent call last):
    TypeError: trace: a str stands where a number belongs
    """
    if is_nested(x):
        return [checked_copy(name, part) for part in x]
    check_numbers(name, x)
    return list(x)


def zeros_like(x):
    """Zeros of x's shape and of its entries' types, in fresh lists.

    >>> zeros_like([[1.5, 2.5], [3, -4]])
    [[0.0, 0.0], [0, 0]]
    """
    if not isinstance(x, (list, tuple)):
        return 0.0 if type(x) is float else 0 * x       # 0 * inf would be nan
    return [0.0] * len(x) if all_floats(x) else [zeros_like(part) for part in x]


# ---- entry by entry ----

def add(x, y):
    """x + y, entry by entry, at any depth.

    >>> add([[1, 2], [3, 4]], [[10, 20], [30, 40]])
    [[11, 22], [33, 44]]
    >>> add([1, 2, 3], [10, 20])
    Traceback (most recent call last):
    ValueError: add: shapes (3,) and (2,) differ
    """
    if pairs_are_nested("add", x, y):
        return [add(a, b) for a, b in zip(x, y)]
    return list(map(plus, x, y))


def subtract(x, y):
    """x - y, entry by entry, at any depth.

    >>> subtract([5, 7], [1, 2])
    [4, 5]
    """
    if pairs_are_nested("subtract", x, y):
        return [subtract(a, b) for a, b in zip(x, y)]
    return list(map(minus, x, y))


def multiply(x, y):
    """x * y, entry by entry, at any depth.

    >>> multiply([[1, 2]], [[3, 4]])
    [[3, 8]]
    """
    if pairs_are_nested("multiply", x, y):
        return [multiply(a, b) for a, b in zip(x, y)]
    return list(map(times, x, y))


def pairs_are_nested(name, x, y):
    """Whether x and y, of equal length, are both lists of lists; ValueError where they differ.

    >>> pairs_are_nested("add", [[1]], [[2]])
    True
    """
    nested = is_nested(x)
    if nested != is_nested(y) or len(x) != len(y):
        raise ValueError(f"{name}: shapes {shape_text(x)} and {shape_text(y)} differ")
    return nested


def scale(factor, x):
    """factor * x, entry by entry, at any depth.

    >>> scale(3, [[1, 2], [3, 4]])
    [[3, 6], [9, 12]]
    """
    if is_nested(x):
        return [scale(factor, part) for part in x]
    return [factor * a for a in x]


# ---- inner products ----

# Everything below is made of `inner` and `products`, which take equal lengths for granted:
# sum(map()) stops at the shorter one.  The check stands outside their loop, because a checked
# Python call per row would cost up to a tenth of a whole matrix product.

if sumprod is None:

    def inner(u, v):
        return sum(map(times, u, v))

    def products(rows, x):
        return [sum(map(times, row, x)) for row in rows]

    def all_products(xs, rows):
        return [[sum(map(times, row, x)) for row in rows] for x in xs]

    def all_products_plus(xs, rows, b):
        return [[sum(map(times, row, x), start) for row, start in zip(rows, b)] for x in xs]

else:

    inner = sumprod

    def products(rows, x):
        return [sumprod(row, x) for row in rows]

    def all_products(xs, rows):
        return [[sumprod(row, x) for row in rows] for x in xs]

    def all_products_plus(xs, rows, b):
        return [[sumprod(row, x) + end for row, end in zip(rows, b)] for x in xs]


def dot(u, v):
    """The inner product of two vectors [n].

    >>> dot([1, 2, 3], [4, 5, 6])
    32
    >>> dot([1, 2, 3], [4, 5])
    Traceback (most recent call last):
    ValueError: dot: the second vector has length 2, expected 3
    """
    check_length("dot", "the second vector", v, len(u))
    return inner(u, v)


def matvec(w, x):
    """w x: w [d_out][d_in], x [d_in] -> [d_out].

    >>> matvec([[1, 2], [3, 4], [5, 6]], [1, 10])
    [21, 43, 65]
    """
    check_rows("matvec", w, len(x))
    return products(w, x)


def linear(x, w, b=None):
    """w x + b for every row of x: x [n][d_in], w [d_out][d_in], b [d_out] or None -> [n][d_out].

        out[t][i] = dot(w[i], x[t]) + b[i]

    >>> linear([[1, 2]], [[3, 4], [5, 6]], [10, 20])
    [[21, 37]]
    >>> linear([[1, 2, 3]], [[3, 4], [5, 6]])
    Traceback (most recent call last):
    ValueError: linear: the input: row 0 has length 3, expected 2
    """
    if b is not None:
        check_length("linear", "the bias", b, len(w))
    if sumprod is None:
        check_linear(x, w)
    try:
        return all_products(x, w) if b is None else all_products_plus(x, w, b)
    except ValueError:                  # sumprod refuses unequal lengths, but does not say which
        check_linear(x, w)
        raise


def check_linear(x, w):
    """Raise ValueError unless the rows of x and of w are of one length."""
    d_in = len(w[0]) if w else 0
    check_rows("linear: the weight", w, d_in)
    check_rows("linear: the input", x, d_in)


def linear_backward(d_out, x, w, b=None):
    """Return (d_x, d_w, d_b), given d_out [n][d_out], the gradient at linear's output.

    All are matrix products again, and so made of inner products alone; d_b is None where b is:

        d_x[t][j] = sum over i of d_out[t][i] * w[i][j]
        d_w[i][j] = sum over t of d_out[t][i] * x[t][j]
        d_b[i]    = sum over t of d_out[t][i]

    >>> linear_backward([[1, 10]], [[2, 3]], [[4, 5], [6, 7]], [0, 0])
    ([[64, 75]], [[2, 3], [20, 30]], [1, 10])
    """
    check_length("linear_backward", "d_out", d_out, len(x))
    check_rows("linear_backward: d_out", d_out, len(w))
    check_linear(x, w)
    if b is not None:
        check_length("linear_backward", "the bias", b, len(w))
    w_columns, x_columns, d_columns = [list(zip(*rows)) for rows in (w, x, d_out)]
    d_x, d_w = all_products(d_out, w_columns), all_products(d_columns, x_columns)
    return d_x, d_w, None if b is None else sum_rows(d_out)


def matmul(a, b):
    """a b: a [n][m], b [m][p] -> [n][p].

    >>> matmul([[1, 2], [3, 4]], [[5, 6], [7, 8]])
    [[19, 22], [43, 50]]
    """
    return linear(a, transpose(b))


def transpose(x):
    """Columns as rows: x [n][m] -> [m][n], fresh lists.

    >>> transpose([[1, 2, 3], [4, 5, 6]])
    [[1, 4], [2, 5], [3, 6]]
    """
    check_rows("transpose", x, len(x[0]) if x else 0)
    return [list(column) for column in zip(*x)]


def outer(u, v):
    """u vᵀ: u [n], v [m] -> [n][m].

    >>> outer([1, 2], [3, 4, 5])
    [[3, 4, 5], [6, 8, 10]]
    """
    check_numbers("outer", u)
    check_numbers("outer", v)
    return [[a * b for b in v] for a in u]


def sum_rows(rows):
    """The sum of equally long rows: rows [n][m], n >= 1 -> [m].

    >>> sum_rows([[1, 2], [3, 4], [5, 6]])
    [9, 12]
    """
    check_rows("sum_rows", rows, len(rows[0]))
    return [sum(column) for column in zip(*rows)]
