"""Which layers sit where: the arithmetic is that of the cost model's even split."""

from costmodel.chunks import V_SHAPED, chunks_of_rank, layers_of_chunks, ranks_of_chunks, runs_of_ranks

__all__ = ["V_SHAPED", "chunks_of_rank", "layers_of_chunks", "ranks_of_chunks", "runs_of_ranks"]
