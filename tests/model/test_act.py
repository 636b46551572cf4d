import torch

from trm.model.act import Rows, empty_carry, halt, refill


def rows(first, batch=3, cells=2):
    grid = torch.arange(first, first + batch * cells, dtype=torch.uint8).view(batch, cells)
    return Rows(grid, grid + 100, torch.arange(first, first + batch, dtype=torch.int32))


def test_halted_slots_take_their_row_and_the_others_keep_theirs():
    h_init, l_init = torch.full((4,), 7.0), torch.full((4,), 8.0)
    first = refill(empty_carry(5, 4, 2, 3, torch.float32), rows(0), h_init, l_init)
    assert torch.equal(first.rows.inputs, rows(0).inputs)
    assert (first.z_H == 7).all()
    assert (first.z_L == 8).all()
    later = first._replace(
        halted=torch.tensor([True, False, True]),
        steps=torch.tensor([3, 2, 1], dtype=torch.int32),
        z_H=first.z_H * 0,
    )
    second = refill(later, rows(50), h_init, l_init)
    assert second.steps.tolist() == [0, 2, 0]
    for field, fresh, old in zip(second.rows, rows(50), rows(0)):
        assert torch.equal(field[[0, 2]], fresh[[0, 2]])
        assert torch.equal(field[1], old[1])
    assert (second.z_H[:, [0, 2]] == 7).all()
    assert (second.z_H[:, 1] == 0).all()


def test_halting_rule():
    steps = torch.tensor([16, 3, 3, 3, 16], dtype=torch.int32)
    logit = torch.tensor([-1.0, 1.0, 1.0, 0.0, 1.0])
    minimum = torch.tensor([0, 0, 4, 0, 16], dtype=torch.int32)
    assert halt(steps, logit, minimum, 16).tolist() == [True, True, False, False, True]
