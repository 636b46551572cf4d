"use strict";
(function () {
  const root = document.querySelector(".trm-play");
  const find = (selector) => root.querySelector(selector);
  const { models, examples } = JSON.parse(find(".data").textContent);
  const { judge } = trmEngine({});
  const field = (name) => find(`[name=${name}]`);
  const board = find(".board"), keys = find(".keys"), chart = find("svg"), verdict = find(".verdict");
  const PAUSE = matchMedia("(prefers-reduced-motion: reduce)").matches ? 600 : 240; // ms that a step is shown
  const UNHURRIED = 16; // steps that are shown as long; later ones change less
  let question = [], cells = [], frames = [], worker = null, timer = 0, done = false;

  const make = (tag, parent, attributes = {}, text = "") => {
    const space = parent.namespaceURI;
    const element = space.endsWith("svg") ? document.createElementNS(space, tag) : document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.textContent = text;
    return parent.appendChild(element);
  };
  const model = () => models[field("model").value];
  const toText = (values) => values.map((value) => value || ".").join("");
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

  /* The puzzle */

  /** A random one of the symmetries: digits, bands, rows in a band, the same of columns, and a square's reflection. */
  function shuffled(text, [height, width]) {
    const side = height * width, random = (n) => {
      const order = Array.from({ length: n }, (_, i) => i);
      for (let i = n - 1; i > 0; i--) {
        const j = Math.floor(Math.random() * (i + 1));
        [order[i], order[j]] = [order[j], order[i]];
      }
      return order;
    };
    const lines = (size) => random(side / size).flatMap((block) => random(size).map((line) => block * size + line));
    const digits = random(side), rows = lines(height), columns = lines(width);
    const turn = height === width && Math.random() < 0.5;
    return Array.from({ length: side * side }, (_, cell) => {
      const row = rows[Math.floor(cell / side)], column = columns[cell % side];
      const char = text[turn ? column * side + row : row * side + column];
      return char === "." ? 0 : digits[char - 1] + 1;
    });
  }

  /** Shows a puzzle; models are those for its size, the largest chosen. */
  function setQuestion(values) {
    stop();
    const fitting = models.map((item, index) => [item, index]).filter(([item]) => item.cells === values.length);
    if (values.length !== question.length) {
      field("model").textContent = "";
      fitting.forEach(([item, index]) => {
        make("option", field("model"), { value: index }, item.name);
      });
      field("model").value = fitting[fitting.length - 1][1];
      question = values;
      build();
    }
    question = values;
    find(".size").textContent = model().parameters.toLocaleString("en");
    field("text").value = toText(values);
    draw();
    const { text } = judge(model().box, question, question);
    tell(text ? `The clues contradict one another: ${text}.` : "", text && "bad");
    field("run").disabled = Boolean(text);
  }

  function build() {
    const side = Math.sqrt(question.length), [height, width] = model().box;
    board.textContent = keys.textContent = "";
    board.style.setProperty("--side", side);
    cells = [];
    for (let row = 0; row < side; row++) {
      const line = make("div", board, { role: "row", class: "row" });
      for (let column = 0; column < side; column++) {
        const cell = make("div", line, { role: "gridcell", class: "cell", tabindex: cells.length ? -1 : 0 });
        cell.classList.toggle("last", column === side - 1);
        cell.classList.toggle("foot", row === side - 1);
        cell.classList.toggle("right", (column + 1) % width === 0);
        cell.classList.toggle("bottom", (row + 1) % height === 0);
        cells.push(cell);
      }
    }
    for (let value = 1; value <= side; value++) make("button", keys, { type: "button", value }, value);
    make("button", keys, { type: "button", value: 0, "aria-label": "erase" }, "⌫");
  }

  const chosen = () => cells.findIndex((cell) => cell.tabIndex === 0);
  const choose = (at) => {
    cells[chosen()].tabIndex = -1;
    cells[at].tabIndex = 0;
    cells[at].focus();
  };
  const write = (value) => setQuestion(question.map((old, at) => (at === chosen() ? value : old)));

  board.addEventListener("click", (event) => cells.includes(event.target) && choose(cells.indexOf(event.target)));
  board.addEventListener("keydown", (event) => {
    const side = Math.sqrt(cells.length), at = chosen(), column = at % side;
    const moves = { ArrowUp: -side, ArrowDown: side, ArrowLeft: column ? -1 : 0, ArrowRight: column < side - 1 ? 1 : 0 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) choose(cells[at + moves[event.key]] ? at + moves[event.key] : at);
    else if (/^[0-9]$/.test(event.key) && event.key <= side) write(Number(event.key));
    else if (["Backspace", "Delete", " ", "."].includes(event.key)) write(0);
    else return;
    event.preventDefault();
  });
  keys.addEventListener("click", (event) => event.target.value && write(Number(event.target.value)));

  field("text").addEventListener("change", () => {
    const text = field("text").value.replace(/\s/g, ""), side = Math.sqrt(text.length);
    const sizes = [...new Set(models.map((item) => item.cells))];
    const bad = [...text].findIndex((char) => !/[.0-9]/.test(char) || char > side);
    if (!sizes.includes(text.length)) {
      tell(`The puzzle has ${plural(text.length, "character")}: write ${sizes.join(" or ")}, one for each cell.`, "bad");
    } else if (bad >= 0) {
      tell(`The puzzle has “${text[bad]}” at character ${bad + 1}: write 1-${side} for clues and . for blanks.`, "bad");
    } else setQuestion([...text].map((char) => Number(char.replace(".", 0))));
  });

  /* The search */

  /** Forgets a search. */
  function stop() {
    clearTimeout(timer);
    if (worker) worker.terminate();
    worker = null;
    timer = 0;
    done = false;
    frames = [];
    field("step").value = 0;
  }

  function solve() {
    stop();
    tell("");
    const program = new Blob([`${trmEngine}; trmEngine(self)`], { type: "text/javascript" });
    worker = new Worker(URL.createObjectURL(program));
    worker.onmessage = ({ data }) => {
      if (data) frames.push(data);
      else done = true;
      draw();
    };
    const restarts = Number(field("starts").value);
    worker.postMessage({ source: model(), question, steps: model().steps, restarts });
    play();
  }

  /** Shows the next step, and the others after it, none before it is computed. */
  function play() {
    const at = Number(field("step").value);
    timer = setTimeout(play, at < UNHURRIED ? PAUSE : PAUSE / 3);
    if (at < frames.length) show(at + 1);
    else if (done) conclude();
    else draw();
  }

  function pause() {
    clearTimeout(timer);
    timer = 0;
    draw();
  }

  /** The search has ended: its answer, and what the rules and the model say of it. */
  function conclude() {
    const last = frames[frames.length - 1], { steps } = model();
    const ends = frames.filter((frame) => frame.right || frame.step === steps);
    const best = last.right ? last : ends.reduce((a, b) => (b.halt > a.halt ? b : a));
    show(frames.indexOf(best) + 1);
    pause();
    const percent = `${Math.round(100 / (1 + Math.exp(-best.halt)))} %`, sure = best.halt >= 0;
    if (best.right) {
      tell(`Solved at ${named(best)}: the answer keeps every rule and clue.`, "good");
    } else {
      const belief = sure ? "The model believes this answer" : "The model is not sure of this answer";
      tell(`Not solved. ${belief} (${percent}), and it breaks the rules: ${best.text || "cells are left blank"}.`, "bad");
    }
  }

  const named = ({ start, step }) => `step ${step}` + (start ? ` of restart ${start}` : "");

  /* What is seen */

  function tell(text, state = "") {
    verdict.textContent = text;
    verdict.className = `verdict ${state}`;
  }

  function show(at) {
    field("step").max = Math.max(frames.length, 1);
    field("step").value = at;
    draw();
  }

  /** The board, the curve and the words for the step that the slider is at; step 0 is the puzzle. */
  function draw() {
    field("step").max = Math.max(frames.length, 1);
    field("step").disabled = !frames.length;
    const at = Number(field("step").value), frame = frames[at - 1], before = frames[at - 2];
    const values = frame ? frame.answer : question, side = Math.sqrt(values.length);
    const wrong = new Set(frame ? frame.wrong : judge(model().box, question, question).wrong);
    board.classList.toggle("solved", Boolean(frame && frame.right));
    cells.forEach((cell, index) => {
      const value = values[index], given = question[index] > 0;
      const changed = before && before.start === frame.start && before.answer[index] !== value;
      cell.textContent = value || "";
      const faint = frame && !given && !frame.right;
      cell.style.setProperty("--sure", `${faint ? 50 + 50 * frame.sure[index] : 100}%`);
      cell.classList.toggle("given", given);
      cell.classList.toggle("wrong", wrong.has(index));
      cell.classList.toggle("changed", Boolean(changed));
      const place = `row ${Math.floor(index / side) + 1}, column ${(index % side) + 1}`;
      const state = (given ? ", given" : "") + (wrong.has(index) ? ", breaks a rule" : "");
      cell.setAttribute("aria-label", `${place}: ${value || "blank"}${state}`);
    });
    const facts = frame && [
      `halt logit ${frame.halt.toFixed(1)}`.replace("-", "−"),
      frame.right ? "keeps the rules" : plural(frame.wrong.length, "cell") + " against the rules",
      ...(frame.blanks ? [plural(frame.blanks, "blank")] : []),
    ];
    find(".step").textContent = frame ? `Supervision ${named(frame)}: ${facts.join(", ")}` : "Supervision steps";
    const running = worker && (at < frames.length || !done);
    field("run").textContent = timer ? "Pause" : running ? "Continue" : frames.length ? "Again" : "Solve";
    plot(at);
  }

  function plot(at) {
    chart.textContent = "";
    const most = Math.max(4, ...frames.map((frame) => Math.abs(frame.halt)));
    const x = (index) => 4 + (312 * index) / Math.max(23, frames.length - 1), y = (logit) => 48 - (44 * logit) / most;
    make("line", chart, { class: "zero", x1: 0, x2: 320, y1: 48, y2: 48 });
    frames.forEach((frame, index) => {
      if (!frame.start || frame.step > 1) return;
      make("line", chart, { class: "bound", x1: x(index - 0.5), x2: x(index - 0.5), y1: 2, y2: 94 });
      make("text", chart, { x: x(index - 0.5) + 3, y: 10 }, `restart ${frame.start}`);
    });
    for (let start = 0; start <= (frames.length ? frames[frames.length - 1].start : 0); start++) {
      const points = frames.flatMap((frame, index) => (frame.start === start ? [`${x(index)},${y(frame.halt)}`] : []));
      make("polyline", chart, { class: "curve", points: points.join(" ") });
    }
    if (frames[at - 1]) make("circle", chart, { class: "dot", cx: x(at - 1), cy: y(frames[at - 1].halt), r: 4 });
  }

  /* Controls */

  field("run").addEventListener("click", () => {
    if (timer) pause();
    else if (field("run").textContent === "Continue") play();
    else solve();
  });
  field("step").addEventListener("input", pause);
  ["model", "starts"].forEach((name) => field(name).addEventListener("change", () => setQuestion(question)));
  const pick = () => {
    const text = examples[field("example").value];
    setQuestion(shuffled(text, models.find((item) => item.cells === text.length).box));
  };
  field("example").addEventListener("change", pick);
  field("another").addEventListener("click", pick);
  field("clear").addEventListener("click", () => setQuestion(question.map(() => 0)));
  examples.forEach((text, index) => {
    const side = Math.sqrt(text.length), clues = text.replace(/\./g, "").length;
    if (!models.some((item) => item.cells === text.length)) return;
    make("option", field("example"), { value: index }, `${side}x${side}, ${clues} clues`);
  });
  field("example").selectedIndex = Math.min(3, field("example").length - 1); // one that takes some steps
  pick();
})();
