"""`python -m benchmarks [--quick]`."""

import sys

from benchmarks import derivation

derivation.main(quick="--quick" in sys.argv)
