"""Tensors in several safetensors files, by the index that says which is where.

    model.safetensors.index.json    {"metadata": {...}, "weight_map": {"lm_head.weight": "model-
                                    00002-of-00002.safetensors", ...}}

The index is believed only where it and the files say the same: every tensor it names is in the
file it names, and no file holds another.  A file is named, never a path, so that nothing outside
the folder is read; a name in the folder may be a link, which is for the folder's owner to decide.

    read_index       the index, as a dict from a file's name to the names of its tensors
    ShardedTensors   a mapping over all of them, as Tensors is over one file

>>> import os, tempfile
>>> from pyres.files.safetensors import write
>>> with tempfile.TemporaryDirectory() as folder:
...     write(os.path.join(folder, "1.safetensors"), {"w": [1.0, 2.0]})
...     write(os.path.join(folder, "2.safetensors"), {"v": [3.0]})
...     with open(os.path.join(folder, INDEX), "w") as file:
...         json.dump({"weight_map": {"v": "2.safetensors", "w": "1.safetensors"}}, file)
...     tensors = ShardedTensors(folder)
...     list(tensors), tensors["w"], tensors.shape("v"), len(tensors.paths)
(['v', 'w'], [1.0, 2.0], (1,), 2)
"""
import json
import os
from collections.abc import Mapping

from .fields import read_object
from .safetensors import read
from .strict_json import brief

__all__ = ["INDEX", "read_index", "ShardedTensors"]

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 20_000_000            # of a model of a trillion weights it has 10 MB


def read_index(path):
    """A dict from a file's name to the list of its tensors, both in the order of the index.

    ValueError where the index is none, or names what is no plain file name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, INDEX)
    ...     with open(path, "w") as file:
    ...         json.dump({"weight_map": {"w": "../w.safetensors"}}, file)
    ...     try:
    ...         read_index(path)
    ...     except ValueError as error:
    ...         print(str(error).replace(path, INDEX))
    model.safetensors.index.json: weight_map names the file '../w.safetensors' for 'w'; expected \
the name of a .safetensors file in the same folder
    """
    weight_map = read_object(path, MAX_INDEX_BYTES).get("weight_map")
    if type(weight_map) is not dict or not weight_map:
        raise ValueError(f"{path}: weight_map is {brief(weight_map)}; expected an object that has "
                         "a file's name for every tensor")
    files = {}
    for name, file_name in weight_map.items():
        if not _is_plain(file_name):
            raise ValueError(f"{path}: weight_map names the file {brief(file_name)} for "
                             f"{brief(name)}; expected the name of a .safetensors file in the "
                             "same folder")
        files.setdefault(file_name, []).append(name)
    return files


def _is_plain(file_name):
    """Whether a file name is a name everywhere: no path, no drive, no stream, no NUL."""
    return (type(file_name) is str and file_name.endswith(".safetensors")
            and not any(character in file_name for character in '/\\:\0'))


class ShardedTensors(Mapping):
    """A read-only mapping from name to tensor over the files of a folder's index.

    path     the index
    paths    the files, in the order of the index

    Names come in the order of the index.  ValueError where the index and the files disagree,
    FileNotFoundError where a file is missing; all are checked before any tensor is read.
    """

    def __init__(self, folder):
        self.path, self.paths, self._of = os.path.join(folder, INDEX), [], {}
        of_file = read_index(self.path)
        for file_name, names in of_file.items():
            path = os.path.join(folder, file_name)
            if not os.path.exists(path):
                raise FileNotFoundError(f"{self.path}: the file {brief(file_name)} is not there, "
                                        "so fetch it too")
            tensors, listed = read(path), set(names)
            for name in names:
                if name not in tensors:
                    raise ValueError(f"{self.path}: {brief(name)} is not in {brief(file_name)}, "
                                     "where weight_map has it")
            for name in tensors:
                if name not in listed:
                    raise ValueError(f"{path}: the tensor {brief(name)} is in the file, and "
                                     "weight_map does not have it there")
            self.paths.append(path)
            self._of.update(dict.fromkeys(names, tensors))

    def __repr__(self):
        return f"<{len(self)} tensors by {self.path}>"

    def __len__(self):
        return len(self._of)

    def __iter__(self):
        return iter(self._of)

    def __contains__(self, name):
        return name in self._of

    def __getitem__(self, name):
        return self._file_of(name)[name]

    def dtype(self, name):
        """A tensor's dtype, without reading the tensor."""
        return self._file_of(name).dtype(name)

    def shape(self, name):
        """A tensor's shape, without reading the tensor."""
        return self._file_of(name).shape(name)

    def entry(self, name):
        """A tensor's Entry in its own file."""
        return self._file_of(name).entry(name)

    def _file_of(self, name):
        if name not in self._of:
            raise KeyError(f"{self.path} has no tensor {brief(name)}")
        return self._of[name]
