"""Compiled mazes: breadth-first distances, number of shortest paths, random and perfect mazes with a long path.

A maze is a square of tokens (WALL, ...), uint8 [side * side]; moves go up, left, right, down.
"""

import numpy as np

from trm.compiled import njit
from trm.data.rng_kernels import bounded, child_key
from trm.tasks.maze.spec import GOAL, OPEN, PATH, START, WALL


@njit
def neighbours(cell, side, out):
    """Write the neighbours of `cell` to out[:4]; returns their number."""
    row, column = cell // side, cell % side
    count = 0
    if row > 0:
        out[count] = cell - side
        count += 1
    if column > 0:
        out[count] = cell - 1
        count += 1
    if column < side - 1:
        out[count] = cell + 1
        count += 1
    if row < side - 1:
        out[count] = cell + side
        count += 1
    return count


@njit
def distances(maze, side, start, distance, queue, near):
    """Write the steps from `start` to each open cell (-1: unreachable) to `distance`; returns the number of reached
    cells, which are in `queue` in order."""
    distance[:] = -1
    distance[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for k in range(neighbours(cell, side, near)):
            other = near[k]
            if maze[other] != WALL and distance[other] < 0:
                distance[other] = distance[cell] + 1
                queue[tail] = other
                tail += 1
    return tail


@njit
def count_paths(side, distance, queue, reached, goal, ways, near):
    """Number of shortest paths to `goal`, at most 2, from the results of `distances`."""
    for k in range(reached):
        cell = queue[k]
        total = 1 if k == 0 else 0
        for j in range(neighbours(cell, side, near)):
            other = near[j]
            if distance[other] >= 0 and distance[other] == distance[cell] - 1:
                total += ways[other]
        ways[cell] = min(total, 2)
    return ways[goal]


@njit
def draw_path(answer, side, distance, goal, key, near):
    """Mark one random shortest path to `goal` in `answer`."""
    cell = goal
    position = 0
    while distance[cell] > 1:
        before = 0
        count = neighbours(cell, side, near)
        for k in range(count):
            if distance[near[k]] == distance[cell] - 1:
                near[before] = near[k]
                before += 1
        cell = near[bounded(key, position, before)]
        position += 1
        answer[cell] = PATH


@njit
def block_detour(maze, answer, side, goal, distance, queue, back, near, key, position):
    """Put a wall on a random cell of a shortest path other than the one marked in `answer`."""
    reached = distances(maze, side, goal, back, queue, near)
    length = distance[goal]
    count = 0
    for k in range(reached):
        cell = queue[k]
        if answer[cell] == OPEN and distance[cell] + back[cell] == length:
            queue[count] = cell  # never ahead of k
            count += 1
    cell = queue[bounded(key, position, count)]
    maze[cell] = answer[cell] = WALL


@njit
def open_between(maze, side, rooms, one, other):
    """Open two neighbouring rooms and the cell between them."""
    for room in (one, other):
        maze[2 * (room // rooms) * side + 2 * (room % rooms)] = OPEN
    row, column = one // rooms + other // rooms, one % rooms + other % rooms
    maze[row * side + column] = OPEN


@njit
def depth_first_tree(maze, side, key, stack, seen, near):
    """A perfect maze by a random depth-first search: long corridors, few branches. Rooms are every second cell."""
    rooms = (side + 1) // 2
    maze[:] = WALL
    seen[: rooms * rooms] = False
    stack[0] = bounded(key, 0, rooms * rooms)
    seen[stack[0]] = True
    depth = position = 1
    while depth:
        room = stack[depth - 1]
        count = 0
        for k in range(neighbours(room, rooms, near)):
            if not seen[near[k]]:
                near[count] = near[k]
                count += 1
        if not count:
            depth -= 1
            continue
        other = near[bounded(key, position, count)]
        position += 1
        open_between(maze, side, rooms, room, other)
        seen[other] = True
        stack[depth] = other
        depth += 1


@njit
def uniform_tree(maze, side, key, after, seen, near):
    """A perfect maze by loop-erased random walks: every spanning tree of the rooms is equally likely (Wilson, 1996)."""
    rooms = (side + 1) // 2
    maze[:] = WALL
    seen[: rooms * rooms] = False
    seen[bounded(key, 0, rooms * rooms)] = True
    position = 1
    for start in range(rooms * rooms):
        room = start
        while not seen[room]:  # a later departure from the same room overwrites the loop
            after[room] = near[bounded(key, position, neighbours(room, rooms, near))]
            position += 1
            room = after[room]
        room = start
        while not seen[room]:
            seen[room] = True
            open_between(maze, side, rooms, room, after[room])
            room = after[room]


@njit
def generate_batch(root, first, side, min_path, unique, walls, tries, questions, answers, lengths, single):
    """Mazes first, first+1, ...: each a pure function of (root, its number).

    Walls (0) are random with a density of 30-50 %, or those of a depth-first (1) or uniform (2) tree. The start is a
    cell farthest from a random one, and the goal a random cell whose shortest path has at least `min_path` cells, both
    included. With `unique`, other paths of that length are walled up. If no such maze is found in `tries`, lengths[i]
    is 0.
    """
    cells = side * side
    distance, queue = np.empty(cells, np.int64), np.empty(cells, np.int64)
    ways, near = np.empty(cells, np.int64), np.empty(5, np.int64)
    seen = np.empty(cells, np.bool_)
    for row in range(len(questions)):
        maze = questions[row]
        lengths[row] = 0
        for attempt in range(tries):
            key = child_key(child_key(root, first + row), attempt)
            if walls == 1:
                depth_first_tree(maze, side, child_key(key, 2), queue, seen, near)
            elif walls == 2:
                uniform_tree(maze, side, child_key(key, 2), queue, seen, near)
            else:
                density = 300 + bounded(key, 0, 200)
                for cell in range(cells):
                    maze[cell] = WALL if bounded(key, 1 + cell, 1000) < density else OPEN
            start = bounded(key, cells + 1, cells)
            if maze[start] == WALL:
                continue
            reached = distances(maze, side, start, distance, queue, near)
            if reached < min_path:
                continue
            start = queue[reached - 1]  # a farthest cell: its distances reach about the region's diameter
            reached = distances(maze, side, start, distance, queue, near)
            if distance[queue[reached - 1]] + 1 < min_path:
                continue
            begin = reached
            while begin > 0 and distance[queue[begin - 1]] + 1 >= min_path:
                begin -= 1
            goal = queue[begin + bounded(key, cells + 2, reached - begin)]
            maze[start], maze[goal] = START, GOAL
            answers[row] = maze
            draw_path(answers[row], side, distance, goal, child_key(key, 1), near)
            paths = count_paths(side, distance, queue, reached, goal, ways, near)
            blocked = 0
            while unique and paths > 1:
                place = cells + 3 + blocked
                block_detour(maze, answers[row], side, goal, distance, queue, ways, near, key, place)
                blocked += 1
                reached = distances(maze, side, start, distance, queue, near)
                paths = count_paths(side, distance, queue, reached, goal, ways, near)
            lengths[row] = distance[goal] + 1
            single[row] = paths == 1
            break


@njit
def check_batch(side, questions, answers, faults, lengths, single):
    """Check mazes with one start and one goal; faults: 0 none, 1 goal cut off, 2 path not shortest, 3 path broken."""
    cells = side * side
    distance, queue = np.empty(cells, np.int64), np.empty(cells, np.int64)
    ways, near = np.empty(cells, np.int64), np.empty(5, np.int64)
    at = np.empty(cells + 1, np.int64)
    for row in range(len(questions)):
        maze, answer = questions[row], answers[row]
        start = goal = 0
        marked = 0
        for cell in range(cells):
            if maze[cell] == START:
                start = cell
            elif maze[cell] == GOAL:
                goal = cell
            marked += answer[cell] == PATH
        reached = distances(maze, side, start, distance, queue, near)
        length = distance[goal]
        faults[row] = 0
        lengths[row] = length + 1
        if length < 0:
            faults[row] = 1
            continue
        single[row] = count_paths(side, distance, queue, reached, goal, ways, near) == 1
        if marked != length - 1:
            faults[row] = 2
            continue
        at[:] = -1
        at[0], at[length] = start, goal
        for cell in range(cells):
            if answer[cell] == PATH and 0 < distance[cell] < length:
                at[distance[cell]] = cell
        for step in range(length):
            linked = False
            if at[step] >= 0:
                for k in range(neighbours(at[step], side, near)):
                    linked |= near[k] == at[step + 1]
            if not linked:
                faults[row] = 3
                break
