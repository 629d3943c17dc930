"""fastembed's own library, with an ONNX model made here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ProviderError, ProviderLost, ProviderMisconfigured
from pgembed_django.providers.fastembed import FastEmbedProvider

fastembed = pytest.importorskip("fastembed")
onnx = pytest.importorskip("onnx")
tokenizers = pytest.importorskip("tokenizers")

from fastembed.common.model_description import ModelSource, PoolingType  # noqa: E402

WORDS = ("[PAD]", "[UNK]", "a", "cat", "dog", "ran", "sat", "the")
WIDTH = 8
CONTEXT = 600
TEXTS = [
    "the cat sat",
    "a dog",
    "the dog ran the dog",
    "cat",
    *("dog cat " * n for n in range(50, 250, 10)),
]
IN_PROCESS = {"BACKEND": "pgembed_django.executors.InProcess"}
OWN_PROCESS = {"BACKEND": "pgembed_django.executors.OwnProcess"}


def write(folder: Path, *, seed: int = 1, file_name: str = "onnx/model.onnx") -> Path:
    """Write a model that looks up a vector for each token, and scales it by its position."""
    helper, kinds = onnx.helper, onnx.TensorProto
    table = np.random.default_rng(seed).standard_normal((len(WORDS), WIDTH)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=kinds.FLOAT),
            helper.make_node("CumSum", ["mask", "one"], ["places"]),
            helper.make_node("Unsqueeze", ["places", "two"], ["scales"]),
            helper.make_node("Mul", ["vectors", "scales"], ["last_hidden_state"]),
        ],
        "lookup",
        [
            helper.make_tensor_value_info(name, kinds.INT64, ["texts", "tokens"])
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info(
                "last_hidden_state", kinds.FLOAT, ["texts", "tokens", WIDTH]
            )
        ],
        [
            onnx.numpy_helper.from_array(table, "table"),
            onnx.numpy_helper.from_array(np.array(1), "one"),
            onnx.numpy_helper.from_array(np.array([2]), "two"),
        ],
    )
    path = folder / file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": CONTEXT, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def make_provider(tmp_path: Path) -> Iterator[object]:
    made = []

    def make(executor: dict[str, object] = IN_PROCESS, **options: object) -> FastEmbedProvider:
        options = {"pooling": "mean", **options}
        provider = FastEmbedProvider(alias="fast", model=str(tmp_path), dimensions=WIDTH, **options)
        provider.run_by(executor)
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


@pytest.mark.parametrize("executor", [IN_PROCESS, OWN_PROCESS], ids=["here", "own process"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last_token"])
def test_vectors_are_the_librarys_own(tmp_path: Path, make_provider, pooling, executor) -> None:
    write(tmp_path)
    name = f"{tmp_path} alone"
    fastembed.TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType[pooling.upper()],
        normalization=True,
        sources=ModelSource(hf=name),
        dim=WIDTH,
    )
    library = fastembed.TextEmbedding(name, specific_model_path=str(tmp_path))
    own = np.stack([vector for text in TEXTS for vector in library.embed([text])])

    vectors = make_provider(executor, pooling=pooling).embed_documents(TEXTS)

    np.testing.assert_allclose(vectors, own, atol=1e-5)


def test_a_text_over_the_context_is_cut_at_a_word_and_that_is_told(
    tmp_path: Path, make_provider
) -> None:
    write(tmp_path)
    provider = make_provider()
    text = "the dog ran " * CONTEXT

    outcomes = provider.embed_each(["the cat sat", text])

    assert [outcome.was_cut for outcome in outcomes] == [False, True]
    assert provider.max_input_tokens == CONTEXT
    assert provider.count_tokens(text) == 3 * CONTEXT


def test_a_text_over_the_context_is_refused_where_that_is_asked_for(
    tmp_path: Path, make_provider
) -> None:
    write(tmp_path)
    [outcome] = make_provider(too_long="refuse").embed_each(["dog " * (CONTEXT + 1)])
    assert "has 601 tokens" in str(outcome)


def test_a_text_that_fits_the_context_exactly_is_whole(tmp_path: Path, make_provider) -> None:
    write(tmp_path)
    [outcome] = make_provider().embed_each(["dog " * CONTEXT])
    assert not outcome.was_cut


def test_a_folder_does_not_say_how_to_pool(tmp_path: Path, make_provider) -> None:
    with pytest.raises(ImproperlyConfigured, match="Set it to what the model was trained with"):
        make_provider(pooling=None)


def test_pooling_and_file_are_parts_of_the_space(tmp_path: Path, make_provider) -> None:
    write(tmp_path)
    plain = make_provider().identity()
    assert make_provider(threads=1).identity() == plain
    assert make_provider(pooling="cls").identity() != plain
    assert make_provider(file_name="onnx/model.onnx").identity() != plain


def test_the_file_that_an_option_names_is_used(tmp_path: Path, make_provider) -> None:
    write(tmp_path)
    write(tmp_path, seed=2, file_name="small.onnx")
    plain, small = make_provider(), make_provider(file_name="small.onnx")
    assert abs(plain.embed_query("dog") - small.embed_query("dog")).max() > 0.01


def test_a_file_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, make_provider
) -> None:
    write(tmp_path)
    with pytest.raises(
        ProviderMisconfigured, match=r"no file b.onnx. Set file_name to one of onnx/"
    ):
        make_provider(file_name="b.onnx").warm_up()


def test_a_pooling_that_does_not_suit_the_model_is_told_by_the_library(
    tmp_path: Path, make_provider
) -> None:
    write(tmp_path)
    with pytest.raises(ProviderMisconfigured, match="expects the model to output sentence"):
        make_provider(pooling="disabled").warm_up()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    provider = FastEmbedProvider(alias="fast", model=missing, dimensions=WIDTH, pooling="mean")
    provider.run_by(IN_PROCESS)
    with pytest.raises(ProviderMisconfigured, match="is no folder here"):
        provider.warm_up()


def test_threads_are_those_of_the_option(tmp_path: Path, make_provider) -> None:
    write(tmp_path)
    provider = make_provider(threads=3)
    assert provider.facts.threads == 3
    session = provider.executor._model._model.model.model
    assert session.get_session_options().intra_op_num_threads == 3


def test_a_folder_with_other_weights_is_another_space(tmp_path: Path, make_provider) -> None:
    write(tmp_path)
    first = make_provider().identity()
    assert make_provider().identity() == first
    write(tmp_path, seed=2)
    assert make_provider().identity() != first


def test_a_process_that_died_does_not_load_other_files_than_before(
    tmp_path: Path, make_provider
) -> None:
    write(tmp_path)
    provider = make_provider(OWN_PROCESS)
    provider.warm_up()
    write(tmp_path, seed=2)
    provider.embed_query("dog")  # what is loaded stays

    [member] = provider.executor._crew._members
    member.kill()

    with pytest.raises(ProviderMisconfigured, match="have changed since this process began"):
        embed_once_noticed(provider)


def embed_once_noticed(provider: FastEmbedProvider) -> None:
    """Embed until the death of its process is known."""
    while True:
        try:
            provider.embed_query("dog")
        except ProviderLost:
            continue
        except ProviderError:
            raise
