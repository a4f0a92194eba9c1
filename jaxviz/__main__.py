"""`python -m jaxviz` is `jaxviz` on the command line."""

import sys

from jaxviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
