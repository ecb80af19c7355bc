"""All products in eight bits as modes of torch know them: what recomputation by operator keeps."""

from __future__ import annotations

from executor.model.products.block_group_operators import MULTIPLY_BLOCK_GROUPS, SUM_BLOCK_GROUPS
from executor.model.products.block_operators import MULTIPLY_BLOCKS
from executor.model.products.row_operators import MULTIPLY_GROUPS, SUM_GROUPS

OPERATORS = (MULTIPLY_BLOCKS, MULTIPLY_GROUPS, SUM_GROUPS, MULTIPLY_BLOCK_GROUPS, SUM_BLOCK_GROUPS)
