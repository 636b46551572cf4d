"use strict";
(function () {
  const puzzles = JSON.parse(document.getElementById("puzzle-data").textContent);
  const root = document.getElementById("viewer");
  const make = (tag, parent, text) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  };
  const strip = make("div", root);
  strip.className = "strip";
  const play = make("button", strip, "play");
  const stage = make("div", root);
  stage.hidden = true;
  const controls = make("div", stage);
  controls.className = "controls";
  const choice = make("select", controls);
  choice.setAttribute("aria-label", "puzzle");
  puzzles.forEach((puzzle, index) => {
    const solved = puzzle.wrong[puzzle.wrong.length - 1].length === 0;
    const option = make("option", choice, `Puzzle ${index + 1}${solved ? "" : " (not solved)"}`);
    option.value = index;
  });
  const back = make("button", controls, "◀");
  const slider = make("input", controls);
  const forth = make("button", controls, "▶");
  back.setAttribute("aria-label", "previous step");
  forth.setAttribute("aria-label", "next step");
  slider.type = "range";
  slider.setAttribute("aria-label", "supervision step");
  const frame = make("div", stage);
  frame.className = "scroll";
  const board = make("table", frame);
  board.className = "board";
  const status = make("div", stage);
  status.className = "status";
  let cells = [];

  function grid(board, puzzle) {
    const [height, width] = puzzle.box;
    board.textContent = "";
    board.classList.toggle("large", puzzle.columns > 12);
    const made = [];
    for (let row = 0; row < puzzle.rows; row++) {
      const line = make("tr", board);
      for (let column = 0; column < puzzle.columns; column++) {
        const cell = make("td", line);
        if (height && row % height === 0) cell.classList.add("top");
        if (width && column % width === 0) cell.classList.add("left");
        if (row === puzzle.rows - 1) cell.classList.add("bottom");
        if (column === puzzle.columns - 1) cell.classList.add("right");
        if (puzzle.given[made.length]) cell.classList.add("given");
        made.push(cell);
      }
    }
    return made;
  }

  function fill(made, puzzle, step) {
    const wrong = new Set(step < 0 ? [] : puzzle.wrong[step]);
    made.forEach((cell, index) => {
      cell.textContent = step < 0 ? puzzle.question[index] : puzzle.steps[step][index];
      cell.classList.toggle("wrong", wrong.has(index));
    });
    return wrong.size;
  }

  function show() {  // the question and three steps of the first puzzle
    const puzzle = puzzles[0];
    const last = puzzle.steps.length - 1;
    [...new Set([-1, 0, Math.min(1, last), Math.min(3, last)])].forEach((step) => {
      const part = make("figure", strip);
      const board = make("table", part);
      board.className = "board";
      const lost = fill(grid(board, puzzle), puzzle, step);
      make("figcaption", part, step < 0 ? "question" : `step ${step + 1}: ${lost ? `${lost} wrong` : "solved"}`);
    });
    strip.appendChild(play);
  }

  function build() {
    const puzzle = puzzles[choice.value];
    cells = grid(board, puzzle);
    slider.min = 1;
    slider.max = puzzle.steps.length;
    slider.value = 1;
    draw();
  }

  function draw() {
    const puzzle = puzzles[choice.value];
    const step = Number(slider.value) - 1;
    const lost = fill(cells, puzzle, step);
    const halt = puzzle.halt.length ? `, trust in the answer (halt logit) ${puzzle.halt[step].toFixed(2)}` : "";
    const state = lost ? `${lost} wrong cell${lost === 1 ? "" : "s"}` : "solved";
    status.textContent = `supervision step ${step + 1} of ${puzzle.steps.length}: ${state}${halt}`;
  }

  let playing = 0;
  let rest = 0;
  play.addEventListener("click", () => {
    stage.hidden = !stage.hidden;
    clearInterval(playing);
    if (stage.hidden) return;
    playing = setInterval(() => {
      const end = Number(slider.value) === Number(slider.max);
      if (end && rest++ < 3) return;
      rest = 0;
      slider.value = end ? 1 : Number(slider.value) + 1;
      draw();
    }, 700);
  });
  const on = (element, event, act) => element.addEventListener(event, () => { clearInterval(playing); act(); });
  on(choice, "change", build);
  on(slider, "input", draw);
  on(back, "click", () => { slider.value = Number(slider.value) - 1; draw(); });
  on(forth, "click", () => { slider.value = Number(slider.value) + 1; draw(); });
  show();
  build();
})();
