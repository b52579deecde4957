"""Linear maps of non-zero entries: the same numbers as full matrices, in every dtype, without their memory."""

import numpy as np
import pytest
import torch

from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import count_weights
from oplens.models.transformer_layers import SparseLinear
from recorders import LargestTensor


def random_matrix(seed, rows, columns, share=0.3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < share)


def layer_of(matrix, bias=None, dtype=torch.float64, shuffle=0):
    layer = SparseLinear(matrix.shape[1], matrix.shape[0], bias=bias is not None).to(dtype)
    rows, columns = np.nonzero(matrix)
    order = np.random.default_rng(shuffle).permutation(len(rows))
    rows, columns = rows[order], columns[order]
    layer.set_entries(*(torch.from_numpy(v) for v in (rows, columns, matrix[rows, columns])))
    if bias is not None:
        with torch.no_grad():
            layer.bias.copy_(torch.from_numpy(bias))
    return layer


@pytest.mark.parametrize("share", [0.0, 0.02, 0.4, 1.0])
@pytest.mark.parametrize("shape", [(5, 7), (1, 40), (40, 1), (31, 2)])
def test_products_are_those_of_the_matrix(shape, share):
    matrix = random_matrix(0, *shape, share)
    bias, x = np.arange(shape[0]) / 3, np.random.default_rng(1).normal(size=(2, 3, shape[1]))
    found = layer_of(matrix, bias)(torch.from_numpy(x))
    np.testing.assert_allclose(found.detach().numpy(), x @ matrix.T + bias, atol=1e-13)
    layer = layer_of(matrix)
    np.testing.assert_array_equal(layer.dense_weight().numpy(), matrix)
    assert layer.nonzeros == np.count_nonzero(matrix)
    np.testing.assert_allclose(layer(torch.from_numpy(x[0, 0])).detach().numpy(), matrix @ x[0, 0], atol=1e-13)


def test_gradients_are_those_of_the_matrix_at_its_entries():
    matrix, x = random_matrix(2, 6, 5, 0.5), torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    layer = layer_of(matrix, np.ones(6))
    dense = torch.from_numpy(matrix).requires_grad_()
    out = torch.randn(4, 6, dtype=torch.float64)
    (layer(x) * out).sum().backward()
    of_x, x.grad = x.grad, None
    ((x @ dense.T + 1) * out).sum().backward()
    np.testing.assert_allclose(of_x.numpy(), x.grad.numpy(), atol=1e-13)
    rows, columns = np.nonzero(matrix)
    np.testing.assert_allclose(layer.values.grad.numpy(), dense.grad.numpy()[rows, columns], atol=1e-13)
    np.testing.assert_allclose(layer.bias.grad.numpy(), out.sum(0).numpy(), atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_rounds_a_sum_once(dtype):
    """Ten thousand halves and one: rounding after each addition would stop at 2048 (float16) or 256 (bfloat16)."""
    n = 10_000
    layer = layer_of(np.full((1, n), 0.5), dtype=dtype)
    x = torch.ones(1, n, dtype=dtype)
    x[0, 0] = 3.0
    assert layer(x).item() == torch.tensor((n + 2) / 2).to(dtype).item()
    matrix = random_matrix(3, 20, 30)
    rounded = torch.from_numpy(matrix).to(dtype)
    x = torch.randn(8, 30).to(dtype)
    exact = x.double() @ rounded.double().T
    found = layer_of(matrix, dtype=dtype)(x)
    assert found.dtype == dtype
    # One rounding of the result, and float32's of the sum.
    assert ((found.double() - exact).abs() <= torch.finfo(dtype).eps / 2 * exact.abs() + 1e-5).all()


def test_nothing_of_the_matrix_size_or_of_entries_times_positions_is_formed():
    n, positions = 2000, 50
    layer = SparseLinear(n, n)
    index = torch.arange(n).repeat_interleave(4)
    layer.set_entries(index, (index * 7 + torch.arange(4 * n) % 4 * 11) % n, torch.ones(4 * n))
    with torch.no_grad(), LargestTensor() as found:
        layer(torch.ones(positions, n))
    assert found.elements <= n * positions
    assert layer.nonzeros * positions == 4 * n * positions


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_models_are_converted_there_and_back(dtype, tied):
    torch.manual_seed(0)
    config = TransformerConfig(
        5, vocabulary=5, d_model=12, n_heads=(2, 0), d_ffn=7, tied=tied, positions="none", readout="position"
    )
    dense = Transformer(config).to(dtype).train()
    with torch.no_grad():
        for block in dense.layers:
            block.feedforward.up.weight[::2] = 0
    sparse = dense.to_sparse()
    assert sparse.training
    assert sparse.config.weights == "sparse"
    x = torch.randint(0, 5, (3, 6))
    np.testing.assert_allclose(
        sparse(x).detach().numpy(), dense(x).detach().numpy(), atol=1e-12 if dtype == torch.float64 else 1e-5
    )
    back = sparse.to_dense()
    assert back.config == config
    for name, tensor in dense.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
        assert back.state_dict()[name].dtype == dtype
    stored = sum(module.nonzeros for module in sparse.modules() if isinstance(module, SparseLinear))
    full = sum(module.weight.numel() for module in dense.modules() if isinstance(module, torch.nn.Linear))
    assert stored == full - 2 * 4 * 12
    again = dense.to_dense()
    assert again is not dense
    assert torch.equal(again(x), dense(x))


def test_a_state_dictionary_brings_its_own_number_of_entries():
    torch.manual_seed(0)
    sparse = Transformer(TransformerConfig(3, d_input=2, d_model=12, n_heads=2, d_ffn=5)).to_sparse()
    new = Transformer(sparse.config)
    new.load_state_dict(sparse.state_dict())
    x = torch.randn(2, 4, 2)
    assert torch.equal(new(x), sparse(x))
    with pytest.raises(RuntimeError, match=r"size mismatch for embedding\.input\.col_indices"):
        new.load_state_dict({**sparse.state_dict(), "embedding.input.values": torch.zeros(1)})


def test_weights_are_counted_as_they_are():
    torch.manual_seed(0)
    dense = Transformer(TransformerConfig(3, d_input=2, d_model=12, n_heads=2, d_ffn=5))
    with torch.no_grad():
        dense.layers[0].feedforward.up.weight[:2] = 0
        dense.layers[1].attention.query.bias[:] = 0
    found = count_weights(dense)
    assert found.slots == sum(p.numel() for p in dense.parameters())
    # LayerNorm's biases start at 0: five norms.
    assert found.nonzeros == found.slots - 24 - 12 - 5 * 12
    assert count_weights(dense.to_sparse()) == found


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (([0, 1], [0], [1.0, 2.0]), "three vectors of one length"),
        (([[0]], [[0]], [[1.0]]), "three vectors of one length"),
        (([0, 2], [0, 1], [1.0, 2.0]), "row index is outside 0 to 1"),
        (([0, -1], [0, 1], [1.0, 2.0]), "row index is outside"),
        (([0, 1], [0, 3], [1.0, 2.0]), "column index is outside 0 to 2"),
        (([1, 0, 1], [2, 0, 2], [1.0, 2.0, 3.0]), "given twice"),
    ],
)
def test_entries_that_make_no_matrix_are_refused(entries, words):
    layer = layer_of(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
    with pytest.raises(ArgumentError, match=words):
        layer.set_entries(*(torch.tensor(v) for v in entries))
    assert layer.dense_weight().tolist() == [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
