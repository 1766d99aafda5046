"""The traced models of a port: which of their parts fail on the reference's inputs, and where their gradients first go wrong."""

from collections.abc import Callable, Iterable, Sequence

from ..reference.components import DIFFERENTIABLE, FORWARD
from .divergence import Backward, Divergence, Failure, backward, divergence
from .examined_port import Subject
from .search import Search

Progress = Callable[[str, float], None]
TRACEABLE = [component for component in FORWARD if component in DIFFERENTIABLE]  # what has one output, which its parts lead to


class Tracing:
    """What the parts of a port's models do. divergences, gradients: what was seen so far, as of `Diagnosis`.

    progress is called with what is being traced and the share of it that is done.
    """

    def __init__(self, subject: Subject, progress: Progress) -> None:
        self.divergences: list[Divergence] = []
        self.gradients: list[Backward] = []
        self._subject, self._progress = subject, progress

    def failures(self, dtype: str, search: Search, count: int) -> list[Failure]:
        """The parts that fail on the reference's inputs, in the count-th case that fails; none where the port shows no parts."""
        if len(search.failing) < count:
            return []
        case, subject = search.hypotheses.probes[search.failing[count - 1]], self._subject
        if case.component not in TRACEABLE:
            return []
        found = divergence(subject.worker, case, dtype, limit=subject.limit, progress=self._part(f"{case.id}, its parts"))
        if len(found.rows) < 2:
            return []
        if count == 1:
            self.divergences.append(found)
        return _parts(found.failures)

    def backward(self, components: Iterable[str]) -> Backward | None:
        """The gradients of the largest of these components, walked back from its output; None where it shows no parts."""
        cases = self._subject.undeclared(set(components) & set(self._subject.covered) & set(TRACEABLE))
        if not cases or not self._subject.dtypes:
            return None
        dtype, worker, limit = self._subject.dtypes[0], self._subject.worker, self._subject.limit
        case = max(cases, key=lambda case: (list(FORWARD).index(case.component), case.core))
        forward = divergence(worker, case, dtype, limit=limit)
        if not forward.rows:
            return None
        self.gradients.append(backward(worker, forward, case, limit=limit, progress=self._part(f"{case.id}, gradients")))
        return self.gradients[-1]

    def _part(self, what: str) -> Callable[[float], None]:
        return lambda share: self._progress(what, share)


def _parts(failures: Sequence[Failure]) -> list[Failure]:
    """The parts of the model within which no other fails: what contains them fails because of them."""
    paths = [failure.path for failure in failures]
    return [failure for failure in failures if failure.path and not any(path.startswith(f"{failure.path}.") for path in paths)]
