"""`python -m benchmarks [--quick]`."""

import sys

from benchmarks import (
    addresses,
    capture,
    compile_cost,
    compiled_memory,
    contracts,
    crossings,
    derivation,
    explorer,
    first_report,
    loops,
    memory,
    microbatches,
    nans,
    probes,
    records,
    remat,
    reports,
    watching,
)

quick = "--quick" in sys.argv
derivation.main(quick=quick)
first_report.main(quick=quick)
loops.main(quick=quick)
remat.main(quick=quick)
nans.main(quick=quick)
probes.main(quick=quick)
watching.main(quick=quick)
explorer.main(quick=quick)
crossings.main(quick=quick)
reports.main(quick=quick)
compiled_memory.main(quick=quick)
compile_cost.main(quick=quick)
memory.main(quick=quick)
microbatches.main(quick=quick)
addresses.main(quick=quick)
capture.main(quick=quick)
records.main(quick=quick)
contracts.main(quick=quick)
