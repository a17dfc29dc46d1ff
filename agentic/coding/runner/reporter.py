"""pytest's plugin of the trusted program: it runs the wanted tests, and says at once how each part of each test ended."""

import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from agentic.coding.runner.channel import Channel
from agentic.coding.runner.machinery import Machinery

OWN_PLUGINS = ("_pytest", "pytest", "agentic")


class Reporter:
    """Reports the tests with the ids `wanted`, and replacements in the machinery meanwhile."""

    def __init__(self, channel: Channel, machinery: Machinery, *, wanted: frozenset[str], sources: dict[str, str]) -> None:
        """`sources` are the hidden tests by path, `wanted` the ids among theirs; all are wanted if there are none."""
        self._channel, self._machinery = channel, machinery
        self._wanted, self._sources, self._modules = wanted, sources, frozenset(sources)
        self._found: set[str] = set()
        self._plugins: set[int] = set()

    @classmethod
    def speakers(cls) -> list[CodeType]:
        """The code of this plugin, for `Channel.admit`."""
        return [value.__code__ for value in vars(cls).values() if isinstance(value, FunctionType)]

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """The plug-ins that are there before a test is read are those of pytest and of the restored configuration."""
        self._plugins = set(map(id, session.config.pluginmanager.get_plugins()))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out the tests that were not requested."""
        left_out = [item for item in items if self._wanted and item.nodeid not in self._wanted]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The hidden tests have been read; from now on they belong to the machinery, and their sources are gone."""
        self.check()
        self._sources.clear()
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) in self._modules:
                self._machinery.add(name, module)
        self._check_plugins(session.config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Reports files that could not be collected."""
        if report.failed:
            self._channel.say("collect", report.nodeid, _last_line(report.longrepr))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Says how setup, call or teardown of a test ended."""
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if report.when == "call" or outcome != "passed":
            self._channel.say("test", report.nodeid, outcome)

    def pytest_runtest_logfinish(self) -> None:
        """Checks the machinery after each test."""
        self.check()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Checks the plug-ins once more."""
        self._check_plugins(session.config)

    def _check_plugins(self, config: pytest.Config) -> None:
        for plugin in config.pluginmanager.get_plugins():
            is_module = isinstance(plugin, ModuleType)
            origin = plugin.__name__ if is_module else type(plugin).__module__
            is_known = id(plugin) in self._plugins or origin.partition(".")[0] in OWN_PLUGINS
            if not is_known and not (is_module and origin.rpartition(".")[2] == "conftest"):
                self._channel.accuse(f"registers the plug-in {origin}")

    def check(self) -> None:
        """Reports replaced objects, each name once."""
        for name in self._machinery.changed():
            if name in self._found:
                continue
            self._found.add(name)
            self._channel.accuse(f"replaces {name}")


def _last_line(text: Any) -> str:
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
