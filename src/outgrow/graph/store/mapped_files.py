"""Detection of mapped files that changed their size."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outgrow.core.errors import StoreError


class MappedFiles:
    """Files of a store that are mapped into memory. Final.

    If a mapped file is truncated, the system kills a process that reads beyond the end (SIGBUS), except
    within the last remaining page: the rest of that page reads as zeros. A file that is renamed, replaced or
    removed remains readable through its mapping.

    Args:
        files: The mapping of each whole file, by path.
    """

    def __init__(self, files: Mapping[Path, mmap.mmap]) -> None:
        self._files = dict(files)

    def require_same_sizes(self) -> None:
        """Check that no file has changed its size since it was mapped.

        Raises:
            StoreError: A file is shorter or longer than its mapping.
        """
        for path, pages in self._files.items():
            if pages.size() != len(pages):
                raise StoreError(
                    f"{path} has another size than when it was opened",
                    needed=f"{len(pages):,} bytes, and files of the graph that stay as they are while they are in use",
                    got=f"{pages.size():,} bytes",
                    repair="bring the file back; --resume then goes on from the last checkpoint",
                )

    @contextmanager
    def check_sizes_on_exit(self) -> Iterator[None]:
        """Check sizes when the context ends, also after an error, since a truncated file may be its cause.

        Raises:
            StoreError: A file has changed its size.
        """
        try:
            yield
        except Exception:
            self.require_same_sizes()
            raise
        self.require_same_sizes()

    def __reduce__(self) -> tuple[object, ...]:
        # A pickled copy of a graph contains the values themselves and maps no file.
        return MappedFiles, ({},)
