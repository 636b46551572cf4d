"""Compiled augmentation of ARC grids."""

from trm.compiled import njit


@njit
def move_grids(canvases, shapes, turns, colours, shift, out, side):
    """Turn, recolour and shift the grid of each canvas (uint8 [n, side * side]) into out[i].

    shapes (rows, columns), shift (down, right): int64 [n, 2]; turns: int64 [n], see `arc.turn`; colours: uint8 [n, 10].
    """
    for i in range(len(canvases)):
        canvas, target = canvases[i], out[i]
        height, width, number = shapes[i, 0], shapes[i, 1], turns[i]
        swapped = number == 1 or number == 3 or number >= 6
        new_height, new_width = (width, height) if swapped else (height, width)
        top, left = shift[i, 0], shift[i, 1]
        target[:] = 0
        for row in range(new_height):
            for column in range(new_width):
                across, down = (row, column) if swapped else (column, row)
                if number == 2 or number == 3 or number == 5 or number == 7:
                    down = height - 1 - down
                if number == 1 or number == 2 or number == 4 or number == 7:
                    across = width - 1 - across
                target[(top + row) * side + left + column] = colours[i, canvas[down * side + across] - 2] + 2
        if top + new_height < side:
            for column in range(new_width):
                target[(top + new_height) * side + left + column] = 1
        if left + new_width < side:
            for row in range(new_height):
                target[(top + row) * side + left + new_width] = 1
