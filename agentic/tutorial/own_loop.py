"""Step 9, a loop of your own: sampling, training and new weights are verbs, and what happens between them is your script.

python -m agentic.tutorial.own_loop
"""

import asyncio
from pathlib import Path

from agentic.database.task import generate_rows
from agentic.tutorial.one_call import SYSTEM
from vime.model.load_tokenizer import load_tokenizer
from vime.service.configuration import compose_service
from vime.service.datum import Datum
from vime.service.training_service import ModelSpec, open_service


async def main(*words: str) -> None:
    """Trains first queries about the right table, with eight replies to each of eight questions in a step."""
    config = compose_service(["model=tiny", "model.checkpoint=agentic/database/tiny/actor", *words]).config
    tokenizer, folder = load_tokenizer(config.model.checkpoint), Path(str(config.output_dir))
    async with open_service(config, folder, say=print) as service:
        model = await service.create_model("mine", ModelSpec(rank=16))
        for step in range(4):
            await model.save_sampler(saved := folder / f"step_{step}")
            data = list[Datum]()
            async with service.sampler(saved.name, saved) as sampler:
                for row in generate_rows(split="train", num_items=8, seed=step):
                    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
                    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
                    turns = await asyncio.gather(*(sampler.sample(prompt, {"max_tokens": 64}) for _ in range(8)))
                    right = f"FROM {'owners' if row['question'].startswith('What') else 'prices'} WHERE"
                    rewards = [float(right in tokenizer.decode(turn.output_ids)) for turn in turns]
                    data += [Datum.sampled(prompt, turn, reward - sum(rewards) / 8) for turn, reward in zip(turns, rewards)]
            await model.forward_backward(data, "importance_sampling")
            print(f"step {step}, last rewards {rewards}: {await model.step({'lr': 1e-3})}")


if __name__ == "__main__":
    asyncio.run(main())
