"""The same prompts for the tiny models: one word says what is wanted, all else is the question and what was found.

Experts in the shop get its policy as it is; the orchestrator learns it, like prices and strengths, from its rewards.
"""

SYSTEM = "Solve"
QUESTION = "{question}"
QUERY = "{context}Search: {question}"
PROGRAM = "{context}Program: {question}"
ANSWER = "{context}Answer: {question}"
ADVICE = "{context}Advise: {question} {query}"
CUSTOMER_SERVICE = "Serve"
