"""Diagnosis: what is wrong with a port, by name.

From question to report: `port_diagnosis` takes component by component. `questions` asks the port, and makes evidence of its answers.
`cause_search` searches their cause, the cheapest kind of explanation first: the hypotheses, the failing parts of a traced model, symptoms.
`conclusions` turns what was found into findings, whose words are in `sentences`. `mesh_diagnosis` does all this for a port on meshes.

hypotheses/: what a port may have done otherwise. evidence/: whether it did. symptoms/: what an output is, where no hypothesis gives it.
divergence/: where a traced model first differs. sharding/: the faults of a mesh's devices.
"""

from .findings import Diagnosis, Finding
from .port_diagnosis import diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
