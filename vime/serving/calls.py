"""Counts of the requests to a served model, kept by its clients."""

from dataclasses import asdict, dataclass, fields


@dataclass(kw_only=True, slots=True)
class Calls:
    """Counts of one client, or the sum of several.

    Example: two requests, the second answered at its second attempt: `Calls(num_requests=2, num_retries=1, input_tokens=300,
    output_tokens=80, seconds=1.7)`.
    """

    num_requests: int = 0
    """Requests that were answered."""
    num_failures: int = 0
    """Requests that were given up or refused."""
    num_retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    """Time from the first attempt to the answer, summed over the answered requests."""
    dollars: float = 0.0

    def add(self, other: "Calls") -> None:
        """Adds the counts of another client."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def take(self) -> "Calls":
        """The counts since the last call of `take`."""
        taken = Calls(**asdict(self))
        for field in fields(self):
            setattr(self, field.name, field.default)
        return taken

    def metrics(self, *, is_paid: bool) -> dict[str, float]:
        """The counts by the short names of their metrics."""
        metrics = {
            "requests": float(self.num_requests),
            "failures": float(self.num_failures),
            "retries": float(self.num_retries),
            "input_tokens": float(self.input_tokens),
            "output_tokens": float(self.output_tokens),
        }
        if self.num_requests:
            metrics["latency_seconds"] = self.seconds / self.num_requests
        return metrics | ({"dollars": self.dollars} if is_paid else {})
