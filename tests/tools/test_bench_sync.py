"""The table of a weight sync: medians in milliseconds, beside those of a copy."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import bench_sync
from bench_rows import Result


def sync(pause: float, *, products: float = 0.0) -> bench_sync.Sync:
    parts = {"pause": pause, "products": products, "export": 0.05}
    metrics = {"sync/bytes": 2e6, "probe/seconds": 0.2} | {f"sync/{part}_seconds": value for part, value in parts.items()}
    return bench_sync.Sync(whole=10 * pause, copy=0.01, metrics=metrics, free=3e9)


def test_pause_and_whole_stand_beside_a_copy_of_the_same_bytes():
    result = Result(title="A weight sync")
    bench_sync.report(result, "1M bfloat16, 1 server", [sync(0.02), sync(0.9), sync(0.03)], 1)
    assert [(row.case, row.ours, row.reference, row.ratio) for row in result.rows] == [
        ("1M bfloat16, 1 server: pause", 30.0, 10.0, 3.0),
        ("1M bfloat16, 1 server: whole sync, with its probe", 300.0, 10.0, 30.0),
    ]
    (note,) = result.notes
    assert "2 MB: export 50 ms" in note and "probe 200 ms" in note


def test_a_pause_that_misses_its_goal_is_explained():
    result = Result(title="A weight sync")
    bench_sync.report(result, "small", [sync(0.1, products=0.04)], 1)
    assert "10.0 copies" in result.notes[-1] and "take 40.00 ms" in result.notes[-1] and "60.00 ms" in result.notes[-1]
    bench_sync.report(result, "large", [sync(0.1)], 2)
    assert "no room for a second set of weights in 2 servers (3.0 GB available" in result.notes[-1]
