"""LangGraph: `langgraph_graph.py invoke|stream`. A graph of two nodes: a model, and its tools."""

import sys
from typing import Any

import task
from langchain_core.messages import HumanMessage, SystemMessage  # pyright: ignore[reportMissingImports]
from langchain_core.tools import tool  # pyright: ignore[reportMissingImports]
from langchain_openai import ChatOpenAI  # pyright: ignore[reportMissingImports]
from langgraph.graph import START, MessagesState, StateGraph  # pyright: ignore[reportMissingImports]
from langgraph.prebuilt import ToolNode, tools_condition  # pyright: ignore[reportMissingImports]

TOOLS = [tool(task.owner_of), tool(task.price_of)]
model = ChatOpenAI(model="policy", streaming=sys.argv[1] == "stream").bind_tools(TOOLS)


def ask(state: MessagesState) -> dict[str, Any]:
    """The model's next message."""
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("agent", ask)
graph.add_node("tools", ToolNode(TOOLS))
graph.add_edge(START, "agent")
graph.add_conditional_edges("agent", tools_condition)
graph.add_edge("tools", "agent")
agent = graph.compile()


def main() -> list[str]:
    """The answers; the second question continues the conversation."""
    messages: list[Any] = [SystemMessage(task.SYSTEM)]
    answers: list[str] = []
    for question in task.QUESTIONS:
        messages = agent.invoke({"messages": [*messages, HumanMessage(question)]})["messages"]
        answers.append(messages[-1].text)
    return answers


task.finish(main())
