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
  const controls = make("div", root);
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
  const frame = make("div", root);
  frame.className = "scroll";
  const board = make("table", frame);
  board.className = "board";
  const status = make("div", root);
  status.className = "status";
  let cells = [];

  function build() {
    const puzzle = puzzles[choice.value];
    const [height, width] = puzzle.box;
    board.textContent = "";
    board.classList.toggle("large", puzzle.columns > 12);
    cells = [];
    for (let row = 0; row < puzzle.rows; row++) {
      const line = make("tr", board);
      for (let column = 0; column < puzzle.columns; column++) {
        const cell = make("td", line);
        if (height && row % height === 0) cell.classList.add("top");
        if (width && column % width === 0) cell.classList.add("left");
        if (row === puzzle.rows - 1) cell.classList.add("bottom");
        if (column === puzzle.columns - 1) cell.classList.add("right");
        if (puzzle.given[cells.length] !== "") cell.classList.add("given");
        cells.push(cell);
      }
    }
    slider.min = 1;
    slider.max = puzzle.steps.length;
    slider.value = 1;
    draw();
  }

  function draw() {
    const puzzle = puzzles[choice.value];
    const step = Number(slider.value) - 1;
    const wrong = new Set(puzzle.wrong[step]);
    cells.forEach((cell, index) => {
      cell.textContent = puzzle.steps[step][index];
      cell.classList.toggle("wrong", wrong.has(index));
    });
    const halt = puzzle.halt.length ? `, halt logit ${puzzle.halt[step].toFixed(2)}` : "";
    const state = wrong.size ? `${wrong.size} wrong cell${wrong.size === 1 ? "" : "s"}` : "solved";
    status.textContent = `supervision step ${step + 1} of ${puzzle.steps.length}: ${state}${halt}`;
  }

  // It plays by itself until the reader takes over, or wants less motion.
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let last = 0;
  const playing = still ? 0 : setInterval(() => {
    const end = Number(slider.value) === Number(slider.max);
    if (end && last++ < 3) return;
    last = 0;
    slider.value = end ? 1 : Number(slider.value) + 1;
    draw();
  }, 700);
  const on = (element, event, act) => element.addEventListener(event, () => { clearInterval(playing); act(); });
  on(choice, "change", build);
  on(slider, "input", draw);
  on(back, "click", () => { slider.value = Number(slider.value) - 1; draw(); });
  on(forth, "click", () => { slider.value = Number(slider.value) + 1; draw(); });
  build();
})();
