"""The cases of `support/exchange_cases.py` on the GPU: blocks and answers in pinned memory that its kernels reach."""

import pytest
import torch
from support.exchange_cases import *  # noqa: F403 (the tests)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
