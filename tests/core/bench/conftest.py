"""``ninfer bench`` on a family of small sizes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tiny_sizes`
