"""Attention with windows, soft caps, sinks and documents is its definition, to every gradient, on both paths.

The definition holds all scores under a mask, with the sink as one more column of the softmax. Plain products
are what a CPU trains with; FlexAttention is what a GPU runs, here by torch's own plain definition of the
operators that its kernels are made from.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import checkpoint

from executor.model.attention import flex, kernels, plain
from executor.model.attention.documents import Documents
from executor.model.attention.kernels import attend_masked, flex_on_cpu
from executor.model.attention.masks import BLOCK, Mask, keys_of_rows, mask_blocks, mask_of, query_reach
from executor.torch_internals.fakes import fake_tensors
from executor.torch_internals.recomputation import selective_checkpoint_contexts

HEADS, SCALE, CAP = 4, 0.4, 0.7
CPU = torch.device("cpu")
PACKED: Documents = ((5, 1, 14), (20,))
LAYERS: dict[str, tuple[Mask, float | None, bool]] = {
    "window": (Mask(length=20, window=6), None, False),
    "window of one token": (Mask(length=20, window=1), None, False),
    "soft cap": (Mask(length=20), CAP, False),
    "sinks": (Mask(length=20), None, True),
    "window and sinks": (Mask(length=20, window=6), None, True),
    "window and soft cap": (Mask(length=20, window=6), CAP, False),
    "all three": (Mask(length=20, window=6), CAP, True),
    "documents": (Mask(length=20, documents=PACKED), None, False),
    "documents, window and sinks": (Mask(length=20, window=4, documents=PACKED), None, True),
    "documents and soft cap": (Mask(length=20, documents=PACKED), CAP, False),
    "second rank of two": (Mask(length=20, ranks=2, rank=1), None, False),
    "first rank of two, all": (Mask(length=20, window=4, ranks=2, documents=PACKED), CAP, True),
    "several blocks": (Mask(length=300, window=150), CAP, True),
}


@pytest.fixture(params=["plain", "plain, few rows", "flex"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every way to compute it; rows at a time that do not divide the sequence."""
    if request.param == "plain, few rows":
        monkeypatch.setattr(plain, "ROWS", 7)
    with flex_on_cpu() if request.param == "flex" else contextlib.nullcontext():
        yield


def visible(mask: Mask) -> torch.Tensor:
    """Which key each query sees, (B', q, k), told token by token."""
    chunk = mask.length // (2 * mask.ranks)
    order = [
        position
        for rank in range(mask.ranks)
        for half in (rank, 2 * mask.ranks - 1 - rank)
        for position in range(half * chunk, (half + 1) * chunk)
    ]
    mine = order[2 * chunk * mask.rank : 2 * chunk * (mask.rank + 1)] if mask.ranks > 1 else order
    rows = []
    for lengths in mask.documents or ((mask.length,),):
        document = [number for number, length in enumerate(lengths) for _ in range(length)]
        rows.append(
            [
                [
                    k <= q and document[k] == document[q] and (mask.window is None or q - k < mask.window)
                    for k in order
                ]
                for q in mine
            ]
        )
    return torch.tensor(rows)


def defined(
    inputs: list[torch.Tensor], sinks: torch.Tensor | None, mask: Mask, cap: float | None
) -> torch.Tensor:
    """The definition, written down."""
    q, k, v = inputs
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * SCALE
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible(mask).unsqueeze(1), float("-inf"))
    if sinks is None:
        return scores.softmax(-1) @ v
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v


def drawn(mask: Mask, *, sinks: bool) -> tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor]:
    """Queries, keys and values of two sequences, two query heads a key head; sinks; a gradient to come."""
    torch.manual_seed(0)
    queries = mask.length // mask.ranks
    shapes = ((2, queries, HEADS, 8), (2, mask.length, 2, 8), (2, mask.length, 2, 8))
    inputs = [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]
    column = torch.randn(HEADS, requires_grad=True) if sinks else None
    return inputs, column, torch.randn(2, queries, HEADS, 8).transpose(1, 2)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", LAYERS)
def test_result_and_gradients_are_those_of_the_definition(name: str) -> None:
    """Grouped heads; queries, keys, values and sinks."""
    mask, cap, with_sinks = LAYERS[name]
    inputs, sinks, towards = drawn(mask, sinks=with_sinks)
    leaves = [*inputs, *([] if sinks is None else [sinks])]
    mine = attend_masked(*inputs, mask, scale=SCALE, cap=cap, sinks=sinks)
    true = defined(inputs, sinks, mask, cap)
    torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-6)
    found, expected = (torch.autograd.grad((x * towards).sum(), leaves) for x in (mine, true))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("path")
def test_a_hidden_score_far_above_the_visible_ones_changes_nothing() -> None:
    """Its exponential overflows fp32, the gradients stay finite."""
    q, k, v = (torch.ones(1, 1, 2, 1) for _ in range(3))
    k[0, 0] = torch.tensor([[-1.0], [1.0]])  # the first query must not see the second key
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attend_masked(*inputs, Mask(length=2), scale=1000.0, cap=50.0, sinks=None)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), inputs))


def test_no_tensor_grows_with_the_square_of_the_sequence() -> None:
    """What attention holds is linear in the sequence: twice the tokens, at most twice the bytes."""
    from executor.validation.peak_tracker import PeakTracker

    def peak(length: int) -> int:
        with fake_tensors():
            q = torch.randn(1, 2, length, 8, requires_grad=True)
            sinks = torch.randn(2, requires_grad=True)
            tracker = PeakTracker()
            with tracker:
                mask = Mask(length=length, window=64)
                attend_masked(q, q, q, mask, scale=1.0, cap=5.0, sinks=sinks).sum().backward()
        return int(sum(tracker.peak_by_purpose.values()))

    assert 0 < peak(4096) <= 2.1 * peak(2048)


@pytest.mark.parametrize("name", LAYERS)
def test_a_mask_comes_back_from_its_numbers(name: str) -> None:
    """An operator is told of it so."""
    mask = LAYERS[name][0]
    assert mask_of(mask.numbers) == mask


def test_a_mask_comes_back_in_one_pass() -> None:
    """Packed rows have thousands of documents, and every call of the operator tells them."""
    added = []

    class Counted(int):
        def __radd__(self, other: int) -> int:
            added.append(self)
            return int(self) + other

        __add__ = __radd__

    documents = 1000
    lengths = [Counted(2) for _ in range(documents)]
    assert mask_of([2 * documents, 0, 1, 0, *lengths]) == Mask(
        length=2 * documents, documents=((2,) * documents,)
    )
    assert 0 < len(added) <= documents


MASKS = {
    "causal": Mask(length=700),
    "window": Mask(length=700, window=200),
    "window of a block": Mask(length=640, window=128),
    "documents": Mask(length=700, documents=((300, 1, 399), (700,))),
    "documents and window": Mask(length=700, window=90, documents=((300, 1, 399), (100, 600))),
    "cut": Mask(length=1024, window=300, ranks=2, rank=1),
}


@pytest.mark.parametrize("name", MASKS)
def test_blocks_are_those_that_torch_finds_in_the_whole_mask(name: str) -> None:
    """`create_block_mask` looks at every pair; here bounds of a block's positions say as much."""
    mask = MASKS[name]
    dense = visible(mask)
    pairs = torch.nn.functional.pad(dense, (0, -dense.shape[2] % BLOCK, 0, -dense.shape[1] % BLOCK))
    seen = pairs.unflatten(1, (-1, BLOCK)).unflatten(3, (-1, BLOCK)).sum((2, 4))
    partial, whole = (torch.from_numpy(blocks) for blocks in mask_blocks(mask))
    assert torch.equal(whole, seen == BLOCK * BLOCK)
    assert torch.equal(partial, (seen > 0) & (seen < BLOCK * BLOCK))
    theirs = create_block_mask(
        lambda b, _h, q, k: dense[b if len(dense) > 1 else 0, q, k],
        len(dense), None, dense.shape[1], mask.length, device="cpu",
    )  # fmt: skip
    for mine, other in zip(flex.block_mask(mask, CPU).as_tuple(), theirs.as_tuple(), strict=True):
        if isinstance(other, torch.Tensor) and other.dim() == 3:  # indices behind a count have no meaning
            assert torch.equal(mine.int(), other.int())
        elif isinstance(other, (int, type(None))):
            assert mine == other


def test_rows_meet_the_keys_they_see_and_no_others() -> None:
    """Plain products skip what no row of a block sees."""
    for mask in MASKS.values():
        seen = visible(mask)
        for start in range(0, mask.length // mask.ranks, 100):
            columns = seen[:, start : start + 100].any(1).any(0).nonzero().flatten()
            found = keys_of_rows(mask, slice(start, start + 100))
            assert found.start <= int(columns[0]) <= int(columns[-1]) < found.stop
            if mask.documents is None and mask.ranks == 1:
                assert (found.start, found.stop) == (int(columns[0]), int(columns[-1]) + 1)


def test_pairs_are_counted_with_half_of_the_edges() -> None:
    """Those of the mask, less half a diagonal; less half of the far edge too, which a window's rows reach."""
    for mask in (Mask(length=64), Mask(length=64, documents=((10, 54),))):
        diagonal = Fraction(64, 2)
        assert mask.pairs(1) == int(visible(mask).sum()) - diagonal
    for window in (1, 5, 63):
        mask = Mask(length=64, window=window)
        seen = int(visible(mask).sum())
        assert mask.pairs(1) == seen - Fraction(window, 2)  # Σ min(i + 1, w) = S·w − w²/2 + w/2
    halves = [Mask(length=64, ranks=2, rank=rank) for rank in range(2)]
    assert sum(mask.pairs(1) for mask in halves) == Mask(length=64).pairs(1)


def test_a_kernel_computes_whole_blocks_at_the_edges() -> None:
    """Pairs in its blocks over those counted: near one of a long causal row, twice of a window of a block."""

    def visited(mask: Mask) -> float:
        partial, whole = mask_blocks(mask)
        return float((partial.sum() + whole.sum()) * BLOCK * BLOCK / mask.pairs(1))

    assert visited(Mask(length=8192)) == pytest.approx(1 + BLOCK / 8192)
    assert visited(Mask(length=8192, window=4096)) == pytest.approx(1.03, abs=0.01)
    assert visited(Mask(length=8192, window=128)) == pytest.approx(2.0, abs=0.01)


def test_masks_are_made_once() -> None:
    """Layers, microbatches and both directions share the tensors of a mask."""
    one, other = (flex._tables(Mask(length=300, window=7), CPU) for _ in range(2))
    assert one is other
    assert query_reach(Mask(length=300, window=7)) is query_reach(Mask(length=300, window=7))


def test_tables_are_kept_of_masks_in_use() -> None:
    """Packed microbatches have masks of their own, and a run has many: a few masks' tables are held at a time.

    Twelve microbatches go forward, two layers each, one under a window; each comes back four later.
    """
    made: list[weakref.ref[torch.Tensor]] = []
    held = []

    def masks(microbatch: int) -> list[Mask]:
        documents = ((100 + microbatch, 412 - microbatch),)
        return [Mask(length=512, window=window, documents=documents) for window in (None, 128)]

    for step in range(12):
        for microbatch in (step, step - 4):
            for mask in [*masks(microbatch), *masks(microbatch)] if microbatch >= 0 else []:
                tensor = flex._tables(mask, CPU).tensors[0]
                if all(known() is not tensor for known in made):
                    made.append(weakref.ref(tensor))
        held.append(sum(known() is not None for known in made))
    assert max(held) <= 4
    assert len(made) <= 2 * 12 + 2 * 8  # once a pass, not once a layer


COMPILER = pytest.mark.filterwarnings("default")  # torch's compiler warns of its own code


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Graphs that reach torch's compiler, in the order in which they do; they run uncompiled."""
    from torch._inductor import compile_fx

    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: object, **_: object) -> object:
        found.append(graph)

        def run(arguments: list[torch.Tensor]) -> object:
            return graph(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    whole = functools.partial(compile_fx.compile_fx, inner_compile=keep)
    monkeypatch.setattr(torch._inductor, "compile", whole)
    monkeypatch.setattr(flex, "COMPILED_ON", ("cpu",))
    monkeypatch.setattr(flex, "_compiled", {})
    return found


def operator(graph: torch.fx.GraphModule) -> tuple[object, list[object]]:
    """The one higher-order operator of a graph and what it takes: shapes, numbers, and code of its parts."""
    (node,) = (n for n in graph.graph.nodes if n.target.__class__.__name__.startswith("FlexAttention"))

    def plainly(argument: object) -> object:
        if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
            part = getattr(graph, str(argument.target))
            return part.code if "joint" not in str(argument.target) else "gradient of the score"
        if isinstance(argument, torch.fx.Node):
            return tuple(argument.meta["val"].shape), argument.meta["val"].dtype
        return dict(argument) if isinstance(argument, dict) else argument

    return node.target, [plainly(leaf) for leaf in torch.utils._pytree.tree_leaves(node.args)]


@COMPILER
@pytest.mark.parametrize("cap", [None, CAP])
def test_what_is_compiled_is_what_torch_compiles_of_its_own_function(
    cap: float | None, compiled: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operators with the same operands reach the compiler, and the options are torch's defaults."""
    from torch.nn.attention import flex_attention as public

    mask = Mask(length=256, window=100)
    inputs, _, towards = drawn(mask, sinks=False)
    with flex_on_cpu():
        mine = attend_masked(*inputs, mask, scale=SCALE, cap=cap, sinks=None)
        found = torch.autograd.grad((mine * towards).sum(), inputs)
    ours = [operator(graph) for graph in compiled]
    compiled.clear()
    monkeypatch.setattr(
        public, "_validate_device", lambda *_: None
    )  # it has no kernel to train with on a CPU
    first = torch.from_numpy(query_reach(mask).first[0])
    blocks = flex.block_mask(mask, CPU)
    blocks.mask_mod = lambda b, h, q, k: flex._sees(b, h, q, k, first)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return public.flex_attention(
            q, k, v, score_mod=flex._score(cap), block_mask=blocks, scale=SCALE, enable_gqa=True,
            return_aux=public.AuxRequest(lse=True), kernel_options={"BACKEND": "TRITON"},
        )[0]  # fmt: skip

    theirs = torch.compile(attend, backend=torch._inductor.compile, fullgraph=True, dynamic=False)(*inputs)
    expected = torch.autograd.grad((theirs * towards).sum(), inputs)
    assert ours == [operator(graph) for graph in compiled]
    assert len(ours) == 2
    torch.testing.assert_close((mine, *found), (theirs, *expected), rtol=1e-6, atol=1e-6)


@COMPILER
def test_a_shape_is_compiled_once(compiled: list[torch.fx.GraphModule]) -> None:
    """Windows share what is compiled, as masks are data; another length is another shape."""
    with flex_on_cpu():
        for length, window in ((256, 100), (256, 30), (256, None), (128, 100)):
            mask = Mask(length=length, window=window)
            inputs, _, towards = drawn(mask, sinks=False)
            out = attend_masked(*inputs, mask, scale=SCALE, cap=None, sinks=None)
            torch.testing.assert_close(out, defined(inputs, None, mask, None), rtol=1e-5, atol=1e-6)
            (out * towards).sum().backward()
    assert len(compiled) == 2 * 2


def test_recomputation_by_operator_keeps_attention() -> None:
    """It runs once forward, and gradients are the same."""
    mask = Mask(length=20, window=6)
    inputs, sinks, towards = drawn(mask, sinks=True)
    attend = functools.partial(attend_masked, mask=mask, scale=SCALE, cap=CAP, sinks=sinks)
    expected = torch.autograd.grad((attend(*inputs) * towards).sum(), [*inputs, sinks])

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):
        forward = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.forward += function is kernels.FORWARD
            return function(*args, **(kwargs or {}))

    contexts = selective_checkpoint_contexts((kernels.FORWARD,))
    with Calls() as calls:
        out = checkpoint(attend, *inputs, use_reentrant=False, context_fn=contexts)
        found = torch.autograd.grad((out * towards).sum(), [*inputs, sinks])
    assert calls.forward == 1
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@COMPILER
def test_a_compiled_layer_holds_it_as_one_operator() -> None:
    """Forward and backward, whole graph, no break."""
    mask = Mask(length=20, window=6)
    inputs, sinks, towards = drawn(mask, sinks=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return attend_masked(q * 2, k, v, mask, scale=SCALE, cap=CAP, sinks=column)

    results = []
    for run in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=False)):
        out = run(*inputs, sinks)
        results.append((out, *torch.autograd.grad((out * towards).sum(), [*inputs, sinks])))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
