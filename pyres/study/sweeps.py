"""Many questions asked one after the other, or by the workers of an executor.

An executor is any concurrent.futures.Executor, of processes or machines; without one the questions
are asked here.  The answers are the same, and in the same order.  This module is part of the
portable core.

    mapped           a function of many items
    largest_first    the order of numbers by their size
"""
__all__ = ["mapped", "largest_first"]


def mapped(function, items, executor=None, progress=None):
    """[function(item) for item in items].  progress(done, total) is called after every one.

    A process pool sends the function by its name, so it stands in a module.

    >>> mapped(abs, [3, -4], progress=lambda done, total: print(f"{done} of {total}"))
    1 of 2
    2 of 2
    [3, 4]
    """
    results = []
    for result in (map if executor is None else executor.map)(function, items):
        results.append(result)
        if progress is not None:
            progress(len(results), len(items))
    return results


def largest_first(name, numbers):
    """The places of the numbers, the largest in size first; of equal ones the earlier.

    Raises ValueError where one of them is no finite number: it would have some place, and none of
    its own.

    >>> largest_first("ranked", [1, -3, 2])
    [1, 2, 0]
    >>> largest_first("ranked", [1.0, float("nan")])
    Traceback (most recent call last):
    ValueError: ranked: number 1 is nan, which has no place among the others
    """
    for i, number in enumerate(numbers):
        if not number - number == 0:
            raise ValueError(f"{name}: number {i} is {number}, "
                             "which has no place among the others")
    return [i for _, i in sorted([(-abs(number), i) for i, number in enumerate(numbers)])]
