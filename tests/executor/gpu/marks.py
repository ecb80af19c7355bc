"""What every test that needs a GPU is marked with."""

from __future__ import annotations

import pytest
import torch

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
    pytest.mark.filterwarnings("default"),  # another torch, driver or compiler warns of other things
]
