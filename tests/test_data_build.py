"""From a config to a rank's data."""

from __future__ import annotations

import pytest

from configs.load import parse_text
from tests.support.data import write_corpus
from trainer.data import registry
from trainer.data.build import build
from trainer.data.errors import DataError


def config_of(tmp_path, extra=""):
    corpus = write_corpus(tmp_path / "corpus")
    return parse_text(
        f"""
        [job]
        cache_folder = "{tmp_path / "cache"}"
        [training]
        dataset = "text"
        dataset_path = "{corpus}"
        vocab_size = 300
        seq_len = 16
        local_batch_size = 2
        workers = 0
        epochs = 3
        [parallelism]
        data_parallel_shard_degree = 2
        [launch]
        groups = 2
        ranks_per_group = 2
        [debug]
        seed = 9
        {extra}
        """
    )


def test_config_keys_reach_the_data(tmp_path):
    config = config_of(tmp_path)
    data = [build(config, dp_rank=rank, log=lambda _: None) for rank in range(2)]
    batches = data[1].loader.batches
    assert batches.layout.positions(3) == range(14, 16)
    assert (batches.order.seed, batches.order.shuffle, batches.sequences.seq_len) == (9, True, 16)
    assert data[0].total == batches.total == 3 * data[0].samples == 3 * len(batches.sequences)
    assert data[0].store.vocab_size <= 300
    assert data[0].loader.get(0).tokens.shape == (2, 16)


def test_custom_import_registers_a_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    (tmp_path / "my_shouting_data.py").write_text(
        "from trainer.data.registry import register\n"
        "from trainer.data.sources import text\n"
        "register('shouting', text)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of(tmp_path, "[experimental]\ncustom_import = 'my_shouting_data'")
    assert build(config, dp_rank=0, log=lambda _: None).samples > 0
    assert "shouting" in registry.known()
    with pytest.raises(DataError, match=r"experimental\.custom_import: 'my_missing_data'"):
        build(config_of(tmp_path, "[experimental]\ncustom_import = 'my_missing_data'"), dp_rank=0, log=print)
