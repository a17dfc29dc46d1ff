"""`Supervised` (`algorithm=sft`): negative log-likelihood of demonstrations, as PyTorch's cross-entropy with weights."""

from vime.algorithm.algorithm import Algorithm, Loss, Tokens


class Supervised(Algorithm):
    """The negative log-likelihood of every trained token."""

    is_supervised = True

    def loss(self, tokens: Tokens) -> Loss:
        """-log p of each token."""
        return Loss(terms={"policy": -tokens.logprobs})
