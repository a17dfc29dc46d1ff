"""ToolOrchestra's prompts for the tiny models: one word names the task, followed by the question and the findings.

Experts see the shop's policy unchanged; the orchestrator learns it, like prices and strengths, from its rewards.
"""

SYSTEM = "Solve"
QUESTION = "{question}"
QUERY = "{context}Search: {question}"
PROGRAM = "{context}Program: {question}"
ANSWER = "{context}Answer: {question}"
ADVICE = "{context}Advise: {question} {query}"
CUSTOMER_SERVICE = "Serve"
