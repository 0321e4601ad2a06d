"""The host and disk tiers on a GPU: what comes back from below is what was computed, whole or in groups of layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiers import PAGE, check_all_tiers_agree, split_loads
from support.tiny import tiny_model

from tsd.engine.config import EngineConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("groups", [1, 3], ids=["whole", "by layers"])
def test_cold_device_host_and_disk_runs_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool, groups: int
) -> None:
    if groups > 1:
        split_loads(monkeypatch)
    config = EngineConfig(
        model=tiny_model(
            tmp_path / "m",
            hidden_size=256,
            intermediate_size=384,
            num_hidden_layers=6,
            head_dim=64,
            torch_dtype="bfloat16",
        ),
        load_format="dummy",
        device="cuda:0",
        deterministic=True,
        page_size=PAGE,
        max_num_seqs=8,
        max_total_tokens=320,
        max_model_len=256,
        chunked_prefill_size=64,
        cuda_graphs=graphs,
        host_cache_gb=0.05,
    )
    waits = check_all_tiers_agree(config, tmp_path)
    assert groups > 1 or not waits  # a card has copied such small pages before the next plan
