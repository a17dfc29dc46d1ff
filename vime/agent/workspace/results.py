"""The results of a workspace's calls: the end of a command, a patch, and how a patch was applied."""

from dataclasses import dataclass

REASONS = (
    "finished",
    "killed",
    "time_limit",
    "life_limit",
    "memory_limit",
    "process_limit",
    "disk_limit",
    "output_limit",
)
"""Reasons why a command ended: by itself (see `exit_code`), by a signal, or at a limit of its own or of the whole workspace."""
LEFT_OUT = "\n[… {} bytes left out …]\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """The output and the end of a command.

    Example: `CommandResult(exit_code=1, stdout="1 failed", stderr="", reason="finished", seconds=0.8)`; an exit code of 128 + n
    means signal n. The beginning and the end of a long output are kept.
    """

    exit_code: int
    stdout: str
    stderr: str
    reason: str
    """One of `REASONS`, determined by the owner's own clock and measurements."""
    seconds: float

    @property
    def succeeded(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return self.reason == "finished" and self.exit_code == 0

    def text(self) -> str:
        """The output in the form shown to an agent, followed by the reason and exit code unless the command succeeded."""
        output = "\n".join(part for part in (self.stdout.rstrip(), self.stderr.rstrip()) if part)
        if self.succeeded:
            return output or "(the command printed nothing)"
        return f"{output}\n[{self.reason}, exit code {self.exit_code}]".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """All changes of a tree since it was prepared.

    Example: `Diff(patch=b"diff --git a/x b/x\\n…", reason="finished")`.
    """

    patch: bytes
    """A patch in the format of `git diff --binary --full-index`; empty if nothing has changed, or `reason` is not `finished`."""
    reason: str
    """`finished`, `output_limit` for a patch larger than `workspace.diff_bytes`, another reason of `REASONS`, or `failed`."""
    message: str = ""
    """The words of git, for example about files that it could not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """The way in which a patch was applied. Example: `Applied(step="3way", message="")`."""

    step: str
    """`apply` (git apply), `3way` (git apply --3way), `patch` (patch -p1), `empty` for a patch without changes, `refused` for one
    that would write outside of the tree, or `failed`; after the last two the tree is unchanged."""
    message: str = ""
    """The reason why it was refused, or the messages of the steps that failed."""

    @property
    def succeeded(self) -> bool:
        """True if the tree now has the patch's changes."""
        return self.step not in ("refused", "failed")
