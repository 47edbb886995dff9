"""Files that a graph is mapped from: whether they are still as long as they were."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outgrow.core.errors import StoreError


class MappedFiles:
    """Files of a store that are mapped into memory. Final.

    Where a file becomes shorter, the system ends whoever reads behind its end, but not in the last page that is left:
    the rest of that reads as zeros. A file that is renamed, replaced or removed stays for those who have mapped it.

    Args:
        files: The mapping of all of each file, by its path.
    """

    def __init__(self, files: Mapping[Path, mmap.mmap]) -> None:
        self._files = dict(files)

    def require_same_sizes(self) -> None:
        """Check that no file has become shorter or longer since it was mapped.

        Raises:
            StoreError: One has.
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
        """Check at the end of the context, also after an error: this may be its cause.

        Raises:
            StoreError: See `require_whole`.
        """
        try:
            yield
        except Exception:
            self.require_same_sizes()
            raise
        self.require_same_sizes()

    def __reduce__(self) -> tuple[object, ...]:
        return MappedFiles, ({},)  # a copy holds the numbers themselves
