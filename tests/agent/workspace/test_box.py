"""A workspace as an agent uses it: commands, files, changes, and nothing left of it afterwards."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from vime.agent.workspace import Prepared, Workspace, starter
from vime.config import WorkspaceConfig

CONFIG = WorkspaceConfig(command_seconds=30.0, memory_bytes=2**28, disk_bytes=2**24, num_processes=64)


async def test_a_command_sees_the_repository_and_what_earlier_ones_changed(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        end = await box.run("echo new > made.txt; cat docs/read.txt; exit 3")
        assert (end.stdout, end.exit_code, end.reason) == ("text\n", 3, "finished")
        assert (await box.run("cat made.txt", environment={"A": "b"})).stdout == "new\n"
        assert (await box.run(["printenv", "A"], environment={"A": "b"})).stdout == "b\n"
        assert (await box.run("cat; pwd", stdin=b"given\n", folder="/tmp")).stdout == "given\n/tmp\n"
        assert (await box.run("python -c 'from add import add; print(add(3, 1))'")).stdout == "2\n"
        assert (await box.run("git log --format=%s | wc -l")).stdout.strip() == "1"


async def test_files_are_written_and_read_as_they_are(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.write("deep/er/file.bin", bytes(range(256)))
        assert await box.read("deep/er/file.bin") == bytes(range(256))
        await box.write("add.py", "shorter")
        assert await box.read("/testbed/add.py") == b"shorter"
        with pytest.raises(FileNotFoundError, match="missing"):
            await box.read("missing")
        with pytest.raises(ValueError, match="larger than 3 bytes"):
            await box.read("add.py", most_bytes=3)


async def test_a_patch_of_all_changes_gives_the_same_tree_elsewhere(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box, Workspace.open(prepared, CONFIG) as other:
        await box.run("sed -i s/-/+/ add.py; rm docs/read.txt; printf '\\0\\1' > bin; chmod +x .gitignore; echo l > a.log")
        await box.run("git add bin; git commit -qam committed; echo more > later")
        changes = await box.diff()
        assert changes.reason == "finished"
        assert (await other.diff()).patch == b""
        assert (await other.apply(changes.patch)).step == "apply"
        assert (await other.diff()).patch == changes.patch
        assert sorted((await other.run("ls -A")).stdout.split()) == [".git", ".gitignore", "add.py", "bin", "later", "other.txt"]


async def test_programs_reach_the_served_application_and_nothing_else(prepared: Prepared):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.path} {await request.text()}")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with Workspace.open(prepared, CONFIG) as box, Workspace.open(prepared, CONFIG) as other:
        async with box.serve(app) as url:
            ask = f"curl --silent --max-time 5 --data hello {url}/s/secret"
            assert (await box.run(ask)).stdout == "/s/secret hello"
            assert (await other.run(ask)).exit_code == 7  # curl could not connect
        assert (await box.run(ask)).exit_code == 7


async def test_what_a_command_leaves_ends_with_it_unless_it_is_kept(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("(setsid sleep 1001 &) ; sleep 1002 & disown")
        assert (await box.run("pgrep sleep")).stdout == ""
        wait = "until pgrep -x sleep > /dev/null; do :; done"  # a shell's child is a shell at first
        assert (await box.run(f"sleep 1003 & {wait}; echo started", keep=True)).stdout == "started\n"
        assert (await box.run("pgrep -c sleep; sleep 1004 & disown")).stdout == "1\n"
        assert (await box.run("pgrep -xa sleep")).stdout.split()[1:] == ["sleep", "1003"]


async def test_commands_run_beside_each_other_and_end_only_their_own(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        server = asyncio.create_task(box.run("python -m http.server --bind 127.0.0.1 8000", queues=False))
        ask = "for try in $(seq 50); do curl -s http://127.0.0.1:8000/other.txt && break; sleep 0.1; done"
        assert (await box.run(ask)).stdout == "1\n2\n3\n"
        assert (await box.run(ask)).stdout == "1\n2\n3\n"
        server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server
        assert (await box.run("pgrep -f '[h]ttp.server'")).stdout == ""


async def test_no_command_runs_when_the_time_of_a_workspace_is_over_but_its_changes_can_be_read(prepared: Prepared):
    async with Workspace.open(prepared, replace(CONFIG, life_seconds=6.0)) as box:
        await box.write("made", "made\n")
        assert (await box.run("sleep 100")).reason in ("time_limit", "life_limit")  # both are over at the same time
        end = await box.run("true")
        assert (end.reason, end.exit_code) == ("life_limit", 137) and "workspace.life_seconds=6" in end.stderr
        assert b"+made" in (await box.diff()).patch and await box.read("made") == b"made\n"


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        end = await box.run("seq 1000", output_bytes=100)
        assert end.stdout.startswith("1\n2\n") and end.stdout.endswith("\n999\n1000\n") and "3793 bytes left out" in end.stdout
        assert end.reason == "finished" and len(end.stdout) < 150


async def test_all_descriptors_are_closed_afterwards(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("true")
    before = set(os.listdir("/proc/self/fd"))
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("cat", stdin=b"text")
        await box.read("add.py")
        await box.write("made", "text")
        async with box.serve(web.Application()):
            await box.diff()
        assert Path(f"/proc/{box.first_process}").exists()
    assert not Path(f"/proc/{box.first_process}").exists()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_where_there_is_no_overlay_the_tree_is_copied(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    starter.stop()
    code = starter.stage_code().replace('_TREE, "overlay"', '_TREE, "missing"')
    monkeypatch.setattr(starter, "stage_code", lambda: code)
    try:
        async with Workspace.open(prepared, CONFIG) as box:
            assert "overlay" not in (await box.run("grep /testbed /proc/self/mountinfo")).stdout
            await box.run("mv docs moved; echo more >> add.py")
            assert (await box.run("git status --porcelain; touch x")).exit_code == 0
            patch = (await box.diff()).patch
            assert b"b/moved/read.txt" in patch and b"+more" in patch
        assert b"more" not in (prepared.tree / "add.py").read_bytes()
    finally:
        starter.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
async def test_a_browser_runs_the_scripts_of_a_page_that_a_server_inside_serves(prepared: Prepared):
    page = "<p id=p>before</p><script>document.getElementById('p').textContent = 'after ' + 6 * 7</script>"
    async with Workspace.open(prepared, replace(CONFIG, memory_bytes=2**30, disk_bytes=2**28, num_processes=256)) as box:
        await box.write("page.html", page)
        server = asyncio.create_task(box.run("python -m http.server --bind 127.0.0.1 8000", queues=False))
        await box.run("until curl -s http://127.0.0.1:8000/; do sleep 0.1; done")
        browse = "chromium --headless --no-sandbox --dump-dom http://127.0.0.1:8000/page.html"
        assert "after 42" in (await box.run(browse)).stdout
        server.cancel()


async def test_folders_of_the_tree_have_further_places_and_what_is_written_there_is_a_change_of_the_tree(prepared: Prepared):
    places = {"/app": "docs", "/out/put": "made/here"}
    async with Workspace.open(prepared, CONFIG, places=places, folder="/app") as box, Workspace.open(prepared, CONFIG) as plain:
        assert (await box.run("pwd; cat read.txt; ls -A /out/put")).stdout == "/app\ntext\n"
        await box.write("added.txt", "new\n")
        assert await box.read("/testbed/docs/added.txt") == b"new\n" == await box.read("added.txt")
        assert (await box.run("echo more > /out/put/file; mv read.txt moved.txt; touch /other")).exit_code == 1
        patch = (await box.diff()).patch
        assert all(path in patch for path in (b"b/docs/added.txt", b"b/docs/moved.txt", b"b/made/here/file"))
        assert (await plain.apply(patch)).step == "apply" and (await plain.diff()).patch == patch
        assert (await plain.run("ls /app")).exit_code == 2
