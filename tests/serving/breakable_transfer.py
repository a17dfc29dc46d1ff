"""A worker extension that tests use to break the weight transfer of a running server on purpose, through `/collective_rpc`."""

from vime.serving import transfer


class BreakableReport(transfer.WeightReport):
    """`WeightReport` with a switch."""

    def skip_repack(self) -> None:
        """From now on, embedding and head are not packed again after an update."""
        transfer.repack_embeddings = lambda model: None

    def mend_repack(self) -> None:
        """Undoes `skip_repack`."""
        transfer.repack_embeddings = _REPACK


_REPACK = transfer.repack_embeddings
