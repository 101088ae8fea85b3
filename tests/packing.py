"""Where weights can be packed, which is on x86."""

from __future__ import annotations

import pytest
import torch

from playground.models.cpu.packed import can_pack

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not can_pack(CPU), reason="torch packs float16 on x86 alone")
