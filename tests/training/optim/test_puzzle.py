import pytest
import torch

from trm.training.optim import puzzle

LR, DECAY = torch.tensor(0.1), 0.5


def by_the_book(table, ids, grads):
    """Sum per distinct id, then decay and sign step on touched rows."""
    table = table.clone()
    for i in ids.unique():
        summed = grads[ids == i].sum(0)
        table[i] = table[i] * (1 - LR * DECAY) - LR * torch.sign(summed)
    return table


@pytest.mark.parametrize("num_ids", [1, 5, 1000])
def test_both_forms_equal_the_definition(num_ids):
    generator = torch.Generator().manual_seed(num_ids)
    table = torch.randn(num_ids, 8, generator=generator)
    ids = torch.randint(0, num_ids, (24,), dtype=torch.int32, generator=generator)
    ids[3] = ids[7] = ids[0]
    grads = torch.randn(24, 8, generator=generator)
    grads[:, 0] = 0  # no gradient, no step: only decay
    expected = by_the_book(table, ids, grads)
    dense, rows, gradient = table.clone(), table.clone(), torch.zeros(num_ids, 8 + (num_ids > 1))
    for part in (slice(0, 10), slice(10, 24)):  # micro-batches
        puzzle.add_dense_gradient(gradient, ids[part], grads[part])
    puzzle.update_dense(dense, gradient, LR, DECAY)
    puzzle.update_rows(rows, ids, grads, LR, DECAY)
    torch.testing.assert_close(dense, expected)
    torch.testing.assert_close(rows, expected)
    untouched = ~torch.isin(torch.arange(num_ids), ids)
    assert torch.equal(dense[untouched], table[untouched])  # to the bit


def test_small_tables_are_dense():
    assert [puzzle.is_dense(ids, 768) for ids in (1, 800_000)] == [True, False]
