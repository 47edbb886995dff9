"""The scripts of this folder also run without pytest: they find one another by path."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]
