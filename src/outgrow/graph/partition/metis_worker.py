"""Script of the process that METIS runs in; `outgrow.graph.partition.metis` starts it, nothing imports it.

METIS runs in a process of its own because it holds the interpreter's lock while it runs, writes to standard
output, and may abort its process. The arrays are shared with the parent through an open file.
"""

from __future__ import annotations

import json
import mmap
import sys
from typing import Any, cast

from outgrow.core.process import end_with_parent


def main() -> None:
    """Partition the graph in the shared arrays, and write the part of each node to the last of them."""
    given = json.loads(sys.argv[1])
    end_with_parent(given["parent"])
    # After the tie to the parent: a parent that dies during the imports must not leave this process behind.
    import numpy as np
    import pymetis

    shared: Any = np.frombuffer(mmap.mmap(given["file"], 0), dtype=pymetis.zero_copy_dtype())
    indptr, neighbours, multiplicity, weight, part = np.split(shared, np.cumsum(given["lengths"])[:-1])
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


if __name__ == "__main__":
    main()
