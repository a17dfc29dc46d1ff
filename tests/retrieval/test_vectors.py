"""FAISS's index types: the memory that is planned for one is what it takes, and what cannot be trained is refused."""

import faiss
import numpy as np
import pytest

from vime.config import VectorSearch
from vime.errors import ConfigError
from vime.retrieval.vectors import MIN_PASSAGES_OF_PQ, factory_string, index_bytes, make_index

DIMENSIONS = 64


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((MIN_PASSAGES_OF_PQ, DIMENSIONS), dtype=np.float32)


@pytest.mark.parametrize("search", VectorSearch)
def test_the_planned_memory_of_an_index_is_that_of_its_file(search: VectorSearch, vectors: np.ndarray):
    index = make_index(search, num_passages=len(vectors), dimensions=DIMENSIONS)
    index.train(vectors)
    index.add(vectors)
    planned = index_bytes(search, num_passages=len(vectors), dimensions=DIMENSIONS)
    assert planned == pytest.approx(faiss.serialize_index(index).nbytes, rel=0.01)


@pytest.mark.parametrize(("num_passages", "dimensions"), [(MIN_PASSAGES_OF_PQ - 1, 64), (MIN_PASSAGES_OF_PQ, 60)])
def test_product_quantization_of_too_few_passages_or_odd_dimensions_is_refused(num_passages: int, dimensions: int):
    with pytest.raises(ConfigError, match="use flat or ivf"):
        factory_string(VectorSearch.ivf_pq, num_passages=num_passages, dimensions=dimensions)
