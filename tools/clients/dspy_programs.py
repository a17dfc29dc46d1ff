"""Programs of dspy, which write their prompt anew with each call: `dspy_programs.py predict|react`."""

import os
import sys

import dspy  # pyright: ignore[reportMissingImports]
import task

dspy.configure(
    lm=dspy.LM(
        "openai/policy",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        cache=False,
        max_tokens=1000,
    )
)
FACTS = ("Ada has the mill for 40, Bea the barn.", "Ada has 40, Bea has 7.")
if sys.argv[1] == "predict":
    program = dspy.ChainOfThought("facts, question -> answer")
    task.finish([program(facts=fact, question=question).answer for fact, question in zip(FACTS, task.QUESTIONS, strict=True)])
react = dspy.ReAct("question -> answer", tools=[task.owner_of, task.price_of], max_iters=5)
task.finish([react(question=question).answer for question in task.QUESTIONS])
