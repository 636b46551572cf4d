"use strict";
/* The Tiny Recursive Model (arXiv 2510.04871, sections 2-4) for one Sudoku, and the rules that judge its answers.

States are [L, D], row by row: L tokens (P puzzle tokens, then S cells) of width D. Weights are [out, in]. One function
without references to its surroundings, so that its text is also the program of a worker. */
function trmEngine(scope) {
  const EPS = 1e-5; // of RMSNorm

  /** Weights by name, {rows, columns, values}; 2D matrices of the channels are transposed for `product`. */
  function decode(source) {
    const bytes = Uint8Array.from(atob(source.data), (c) => c.charCodeAt(0));
    const wide = new Uint32Array(source.shapes.reduce((count, [, rows, columns]) => count + rows * columns, 0));
    let bit = 8 * wide.length; // after the bytes of sign and mantissa, the exponents in unary
    wide.forEach((_, i) => {
      let rank = 0;
      for (; !(bytes[bit >> 3] & (128 >> (bit & 7))); bit++) rank++;
      bit++;
      const [sign, mantissa] = [bytes[i] & 128, bytes[i] & 127];
      wide[i] = (sign << 24) | (source.exponents[rank] << 23) | (mantissa << 16); // bfloat16 to float32
    });
    const all = new Float32Array(wide.buffer), weights = {};
    let at = 0;
    for (const [name, rows, columns] of source.shapes) {
      const values = all.subarray(at, (at += rows * columns));
      weights[name] = /channel|head/.test(name) ? transposed(values, rows, columns) : { rows, columns, values };
    }
    return weights;
  }

  function transposed(values, rows, columns) {
    const turned = new Float32Array(values.length);
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) turned[c * rows + r] = values[r * columns + c];
    return { rows: columns, columns: rows, values: turned };
  }

  /** [m, k] times [k, n], four rows of the second factor at a time. */
  function product(a, b, m, k, n) {
    const out = new Float32Array(m * n);
    for (let i = 0; i < m; i++) {
      const to = i * n;
      let j = 0;
      for (; j + 3 < k; j += 4) {
        const p = a[i * k + j], q = a[i * k + j + 1], r = a[i * k + j + 2], s = a[i * k + j + 3];
        const first = j * n, second = first + n, third = second + n, fourth = third + n;
        for (let c = 0; c < n; c++) {
          out[to + c] += p * b[first + c] + q * b[second + c] + r * b[third + c] + s * b[fourth + c];
        }
      }
      for (; j < k; j++) {
        const p = a[i * k + j];
        for (let c = 0; c < n; c++) out[to + c] += p * b[j * n + c];
      }
    }
    return out;
  }

  /** silu(gate) * up, for `rows` rows of gate | up with `inner` values each. */
  function gated(both, rows, inner) {
    const out = new Float32Array(rows * inner);
    for (let r = 0; r < rows; r++) {
      for (let i = 0; i < inner; i++) {
        const gate = both[2 * r * inner + i];
        out[r * inner + i] = (gate / (1 + Math.exp(-gate))) * both[(2 * r + 1) * inner + i];
      }
    }
    return out;
  }

  /** RMSNorm in place of `lanes` vectors, `apart` from one another, each of `length` values that are `stride` apart. */
  function normalise(x, lanes, apart, length, stride) {
    for (let lane = 0; lane < lanes; lane++) {
      let sum = 0;
      for (let i = 0, at = lane * apart; i < length; i++, at += stride) sum += x[at] * x[at];
      const scale = 1 / Math.sqrt(sum / length + EPS);
      for (let i = 0, at = lane * apart; i < length; i++, at += stride) x[at] *= scale;
    }
  }

  const sum = (a, b) => a.map((value, i) => value + b[i]);

  /** The block stack, shared by all updates: token mixing, then channel mixing, each a SwiGLU with a norm after it. */
  function stack(x, w, layers, length, width) {
    for (let layer = 0; layer < layers; layer++) {
      const part = (name) => w[`blocks.${layer}.${name}`];
      const up = part("token_mlp.gate_up"), down = part("token_mlp.down"), inner = down.columns;
      const tokens = gated(product(up.values, x, 2 * inner, length, width), 1, inner * width);
      x = sum(x, product(down.values, tokens, length, inner, width));
      normalise(x, width, 1, length, width);
      const wide = part("channel_mlp.gate_up"), narrow = part("channel_mlp.down");
      const channels = gated(product(x, wide.values, length, width, wide.columns), length, narrow.rows);
      x = sum(x, product(channels, narrow.values, length, narrow.rows, width));
      normalise(x, length, width, width, 1);
    }
    return x;
  }

  /** Cells of each row, column and box. */
  function units([height, width]) {
    const side = height * width, groups = Array.from({ length: 3 * side }, () => []);
    for (let cell = 0; cell < side * side; cell++) {
      const row = Math.floor(cell / side), column = cell % side;
      const box = Math.floor(row / height) * height + Math.floor(column / width);
      for (const group of [row, side + column, 2 * side + box]) groups[group].push(cell);
    }
    return groups;
  }

  /** What breaks the rules in an answer: the cells, and a sentence (empty: nothing; blanks are allowed). */
  function judge(box, question, answer) {
    const side = box[0] * box[1], wrong = new Set();
    let text = "";
    question.forEach((clue, cell) => {
      if (!clue || clue === answer[cell]) return;
      wrong.add(cell);
      text = text || `the clue in row ${Math.floor(cell / side) + 1}, column ${(cell % side) + 1} is changed`;
    });
    units(box).forEach((unit, number) => {
      for (let value = 1; value <= side; value++) {
        const holders = unit.filter((cell) => answer[cell] === value);
        if (holders.length < 2) continue;
        holders.forEach((cell) => wrong.add(cell));
        const kind = ["row", "column", "box"][Math.floor(number / side)];
        text = text || `${value} is repeated in ${kind} ${(number % side) + 1}`;
      }
    });
    return { wrong: [...wrong], text };
  }

  /** Answer, share of each cell's best symbol in its scores, and halt logit of a state. */
  function read(z, w, source, width) {
    const { cells, puzzleTokens } = source, head = w["head.weight"], vocab = head.columns;
    const logits = product(z.subarray(puzzleTokens * width), head.values, cells, width, vocab);
    const answer = [], sure = [];
    for (let cell = 0; cell < cells; cell++) {
      const row = logits.subarray(cell * vocab, (cell + 1) * vocab);
      const best = row.indexOf(Math.max(...row));
      const scores = row.map((x) => (x < 0 ? 1 / (1 - x) : 1 + x)); // stablemax, as in the loss
      answer.push(Math.max(best, 1) - 1);
      sure.push(scores[best] / scores.reduce((a, b) => a + b));
    }
    const halt = source.halt.weight.reduce((total, weight, i) => total + weight * z[i], source.halt.bias);
    return { answer, sure, halt };
  }

  /** The input of the network, [L, D]; the puzzle embedding may be left out. */
  function embed(question, w, source, width, showPuzzle) {
    const x = new Float32Array((source.puzzleTokens + source.cells) * width);
    if (source.puzzleTokens && showPuzzle) x.set(w["puzzle.weight"].values);
    question.forEach((value, cell) => {
      const row = w["embed.weight"].values.subarray((value + 1) * width, (value + 2) * width);
      x.set(row, (source.puzzleTokens + cell) * width);
    });
    const position = w["position.weight"];
    return x.map((value, i) => Math.sqrt(width) * (position ? (value + position.values[i]) * Math.sqrt(0.5) : value));
  }

  /** The tokens of a state with its cells in another order: `order` has the old place of each. */
  function moved(z, order, tokens, width) {
    const out = z.slice();
    order.forEach((from, to) => {
      out.set(z.subarray((tokens + from) * width, (tokens + from + 1) * width), (tokens + to) * width);
    });
    return out;
  }

  /** Every supervision step of every restart, until an answer keeps the rules. Each restart sees the puzzle under a
   * symmetry, and its cells in another order every few steps, of which every second one shows guesses; its frames are
   * as if it had not. */
  function* frames({ source, question, steps, restarts }) {
    const w = decode(source), width = w["embed.weight"].columns, length = source.puzzleTokens + source.cells;
    const update = (z) => stack(z, w, source.layers, length, width);
    for (let start = 0; start < restarts; start++) {
      const { values, cells } = source.symmetries[start];
      let seen = cells; // the puzzle's cell in each place
      const place = (shown) => shown.reduce((all, value, i) => ((all[seen[i]] = value), all), []);
      let answer = question;
      const see = (showPuzzle, guesses) => {
        let left = guesses;
        const shown = seen.map((cell) => (question[cell] || left-- <= 0 ? question[cell] : answer[cell]));
        return embed(shown.map((value) => values[value]), w, source, width, showPuzzle);
      };
      let x = see(true, 0), showsPuzzle = true, halt;
      let [zH, zL] = ["h_init", "l_init"].map((name) => x.map((_, i) => w[name].values[i % width]));
      for (let step = 1; step <= steps; step++) {
        if (step > 1 && (step - 1) % source.viewSteps === 0) {
          const turn = (step - 1) / source.viewSteps, view = source.views[(turn - 1) % source.views.length];
          const next = view.map((cell) => cells[cell]), order = next.map((cell) => seen.indexOf(cell));
          [zH, zL] = [zH, zL].map((z) => moved(z, order, source.puzzleTokens, width));
          seen = next;
          const guesses = step > source.guessFrom ? source.viewGuesses * (turn % 2) : 0;
          showsPuzzle = turn % source.viewPuzzleEvery === 0;
          x = see(showsPuzzle, guesses);
        }
        for (let round = 0; round < source.hCycles; round++) {
          const inject = sum(zH, x);
          for (let cycle = 0; cycle < source.lCycles; cycle++) zL = update(sum(zL, inject));
          zH = update(sum(zH, zL));
        }
        const frame = { start, step, ...read(zH, w, source, width) };
        // the halt head reads the token of the puzzle embedding
        frame.halt = halt = showsPuzzle ? frame.halt : halt;
        answer = frame.answer = place(frame.answer.map((value) => values.indexOf(value)));
        frame.sure = place(frame.sure);
        const found = judge(source.box, question, frame.answer);
        const blanks = frame.answer.filter((value) => !value).length;
        const right = !found.text && !blanks;
        yield { ...frame, ...found, blanks, right };
        if (right) return;
      }
    }
  }

  scope.onmessage = ({ data }) => {
    for (const frame of frames(data)) scope.postMessage(frame);
    scope.postMessage(null);
  };
  return { frames, judge };
}
