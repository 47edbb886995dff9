"""The scripts of this folder also run without pytest: they find one another by path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
