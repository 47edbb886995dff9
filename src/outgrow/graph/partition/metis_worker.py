"""Script of the process that METIS runs in; `outgrow.graph.partition.metis` starts it, nothing imports it.

METIS runs in a process of its own because it holds the interpreter's lock while it runs, writes to standard
output, and may abort its process. The arrays are shared with the parent through an open file.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from typing import Any, cast

from outgrow.core.process import end_with_parent

_NUM_OPTIONS, _METIS_OK = 40, 1
"""``METIS_NOPTIONS`` and ``METIS_OK``."""


def main() -> None:
    """Partition the graph in the shared arrays, and write the part of each node to the last of them."""
    given = json.loads(sys.argv[1])
    end_with_parent(given["parent"])
    # After the tie to the parent: a parent that dies during the imports must not leave this process behind.
    import numpy as np
    import pymetis

    shared: Any = np.frombuffer(mmap.mmap(given["file"], 0), dtype=pymetis.zero_copy_dtype())
    indptr, neighbours, multiplicity, weight, part = np.split(shared, np.cumsum(given["lengths"])[:-1])
    if len(weight) > len(part):
        _bisect(shared.dtype, given, [indptr, neighbours, weight, multiplicity, part])
        return
    options = pymetis.Options(seed=given["seed"], ufactor=given["ufactor"])
    found = pymetis.part_graph(
        given["parts"],
        pymetis.CSRAdjacency(indptr, neighbours),
        vweights=weight if len(weight) else None,
        eweights=multiplicity,
        recursive=False,
        options=options,
    )
    part[:] = cast(Any, found.vertex_part)


def _bisect(dtype: Any, given: dict[str, Any], arrays: list[Any]) -> None:
    """Partition with several weights of each node, which pymetis refuses: by METIS itself, which its library contains.

    Recursive bisection keeps to the balance of several weights, and cuts fewer edges than parts made at once.
    """
    import numpy as np
    from pymetis import _internal

    library: Any = _internal
    metis: Any = ctypes.CDLL(library.__file__)
    at = library.options_indices
    number = np.ctypeslib.as_ctypes_type(dtype)
    options = np.zeros(_NUM_OPTIONS, dtype=dtype)
    indptr, neighbours, weight, multiplicity, part, options_at = (
        ctypes.c_void_p(each.ctypes.data) for each in (*arrays, options)
    )
    metis.METIS_SetDefaultOptions(options_at)
    options[at.SEED] = given["seed"]
    options[at.UFACTOR] = given["ufactor"]
    # The better of two: the cut of one depends on luck, and two take as long as parts made at once.
    options[at.NCUTS] = 2
    nodes, weights, parts = len(arrays[4]), len(arrays[2]) // len(arrays[4]), given["parts"]
    counts = [ctypes.byref(number(each)) for each in (nodes, weights, parts, 0)]
    # No sizes of nodes, and the same share of the weights and the same imbalance for all.
    code = metis.METIS_PartGraphRecursive(
        *(counts[0], counts[1], indptr, neighbours, weight, None, multiplicity, counts[2], None, None),
        *(options_at, counts[3], part),
    )
    if code != _METIS_OK:
        raise RuntimeError(f"METIS gave code {code}")


if __name__ == "__main__":
    main()
