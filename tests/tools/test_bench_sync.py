"""The table of a weight sync: medians in milliseconds, beside those of a copy."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import bench_sync
from bench_rows import Result


def test_pause_and_whole_stand_beside_a_copy_of_the_same_bytes():
    def sync(pause: float) -> bench_sync.Sync:
        metrics = {"sync/bytes": 2e6, "sync/pause_seconds": pause, "sync/export_seconds": 0.05, "probe/seconds": 0.2}
        return bench_sync.Sync(whole=10 * pause, copy=0.01, metrics=metrics)

    result = Result(title="A weight sync")
    bench_sync.report(result, "1M bfloat16, 1 server", [sync(0.02), sync(0.9), sync(0.04)])
    assert [(row.case, row.ours, row.reference, row.ratio) for row in result.rows] == [
        ("1M bfloat16, 1 server: pause", 40.0, 10.0, 4.0),
        ("1M bfloat16, 1 server: whole sync, with its probe", 400.0, 10.0, 40.0),
    ]
    assert "2 MB: export 50 ms" in result.notes[0] and "probe 200 ms" in result.notes[0]
