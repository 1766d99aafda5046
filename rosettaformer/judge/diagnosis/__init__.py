"""Diagnosis: names what is wrong with a port.

`port_diagnosis` goes through the components. For each, `questions` asks the port and turns its
answers into evidence; `cause_search` looks for their cause, cheapest kind of explanation first
(hypotheses, failing parts of a traced model, symptoms); `conclusions` makes findings of what it
finds. Their sentences are in `words`. `mesh_diagnosis` diagnoses a port on meshes.

hypotheses/: what the port may do differently. evidence/: whether it does. symptoms/: descriptions
of outputs that no hypothesis gives. divergence/: where a traced model first differs. sharding/:
known bugs of sharded ports.
"""

from .findings import Diagnosis, Finding
from .port_diagnosis import diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
