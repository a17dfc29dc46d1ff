"""An agent in LangGraph that is trained: a graph of a model and two tools, `search` and `answer`, each with a choice of expert.

It knows nothing of training. The row of its question has the result of each tool; the graph ends with the tool `answer`, and the
chosen expert's reply is printed.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import HumanMessage, SystemMessage  # pyright: ignore[reportMissingImports]
from langchain_core.tools import tool  # pyright: ignore[reportMissingImports]
from langchain_openai import ChatOpenAI  # pyright: ignore[reportMissingImports]
from langgraph.errors import GraphRecursionError  # pyright: ignore[reportMissingImports]
from langgraph.graph import END, START, MessagesState, StateGraph  # pyright: ignore[reportMissingImports]
from langgraph.prebuilt import ToolNode, tools_condition  # pyright: ignore[reportMissingImports]

Expert = Literal["junior", "senior"]
MOST_STEPS, MOST_TOKENS = 12, 48
ROW = json.loads(Path(os.environ["VIME_SAMPLE"]).read_text(encoding="utf-8"))
searches: list[str] = []


@tool
def search(model: Expert) -> str:
    """Looks for a passage about the question, with a query that this expert writes."""
    searches.append(model)
    return ROW["world"]["passage"]


@tool
def answer(model: Expert) -> str:
    """Lets this expert answer the question, which ends the work."""
    return ROW["world"][f"{model} after a search" if searches else model]


tools = [search, answer]
model = ChatOpenAI(model="policy", max_tokens=MOST_TOKENS, max_retries=0).bind_tools(tools)


def ask(state: MessagesState) -> dict[str, Any]:
    """The model's next message."""
    return {"messages": [model.invoke(state["messages"])]}


def after_tools(state: MessagesState) -> str:
    """Goes on after a search, and ends after an answer."""
    last = state["messages"][-1]
    return END if last.name == "answer" and last.status == "success" else "agent"


graph = StateGraph(MessagesState)
graph.add_node("agent", ask)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "agent")
graph.add_conditional_edges("agent", tools_condition)
graph.add_conditional_edges("tools", after_tools, ["agent", END])
agent = graph.compile()

question = [SystemMessage("Solve"), HumanMessage(ROW["question"])]
try:
    state = agent.invoke({"messages": question}, {"recursion_limit": MOST_STEPS})
    sys.stdout.write(state["messages"][-1].text)
except GraphRecursionError:  # it has searched too often, and answers nothing
    pass
