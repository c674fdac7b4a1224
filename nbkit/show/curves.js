// Curves with bands, ghosts, nodes that can be moved, and error ellipses of two parameters.

const HINTS = {
  curves: "move over the plot or press ← →: values · legend: curves on and off",
  nodes: "drag a node, or ↑ ↓ (Shift: faster) and ← → to the next · legend: curves on and off",
  ellipses: "inner line 68 %, outer 95 % · legend: summaries on and off",
};
// Radii, in sigma, that hold 68 and 95 % of a Gaussian in two dimensions.
const RADII = [1.515, 2.486];
const EDGE = { left: 64, right: 16, foot: 44, row: 20 };

// Slopes at the nodes of the monotone cubic through them, those of scipy's PchipInterpolator.
function slopes(x, y) {
  const h = x.slice(1).map((v, i) => v - x[i]);
  const d = h.map((w, i) => (y[i + 1] - y[i]) / w);
  if (d.length === 1) return [d[0], d[0]];
  const end = (h0, h1, d0, d1) => {
    const m = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1);
    if (m * d0 <= 0) return 0;
    return d0 * d1 <= 0 && Math.abs(m) > 3 * Math.abs(d0) ? 3 * d0 : m;
  };
  const inner = d.slice(1).map((b, i) => {
    const [a, w, v] = [d[i], 2 * h[i + 1] + h[i], h[i + 1] + 2 * h[i]];
    return a * b <= 0 ? 0 : (w + v) / (w / a + v / b);
  });
  const last = d.length - 1;
  return [end(h[0], h[1], d[0], d[1]), ...inner, end(h[last], h[last - 1], d[last], d[last - 1])];
}

function throughNodes(nodes, count = 160) {
  const [x, y] = [nodes.map((p) => p[0]), nodes.map((p) => p[1])];
  const m = slopes(x, y);
  const at = Array.from({ length: count + 1 }, (_, i) => x[0] + (i / count) * (x.at(-1) - x[0]));
  return at.map((v) => {
    const i = clamp(
      x.findLastIndex((a) => a <= v),
      0,
      x.length - 2,
    );
    const h = x[i + 1] - x[i];
    const t = (v - x[i]) / h;
    const [a, b] = [(1 + 2 * t) * (1 - t) ** 2 * y[i] + t ** 2 * (3 - 2 * t) * y[i + 1], t * (1 - t) * h];
    return [v, a + b * ((1 - t) * m[i] - t * m[i + 1])];
  });
}

function ellipse(covariance, centre, [i, j], radius) {
  const [a, b, c] = [covariance[i][i], covariance[i][j], covariance[j][j]];
  const points = Array.from({ length: 97 }, (_, t) => (2 * Math.PI * t) / 96);
  // The Cholesky factor of the 2 x 2 block turns a circle into the ellipse.
  const lower = [Math.sqrt(a), a && b / Math.sqrt(a), Math.sqrt(Math.max(c - (a && (b * b) / a), 0))];
  return points.map((t) => {
    const [u, v] = [radius * Math.cos(t), radius * Math.sin(t)];
    return [centre[i] + lower[0] * u, centre[j] + lower[1] * u + lower[2] * v];
  });
}

function value(points, x) {
  const i = points.findIndex((p, k) => k && (points[k - 1][0] - x) * (p[0] - x) <= 0);
  if (i < 1) return null;
  const [[a, ya], [b, yb]] = [points[i - 1], points[i]];
  return a === b ? ya : ya + ((x - a) / (b - a)) * (yb - ya);
}

// Pixels of values on a linear or logarithmic axis, and back, and where its ticks are.
function axis(low, high, first, last, log) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const pixel = (v) => first + ((f(v) - a) / (b - a)) * (last - first);
  const back = (p) => (log ? (v) => 10 ** v : (v) => v)(a + ((p - first) / (last - first)) * (b - a));
  const most = Math.max(2, Math.abs(last - first) / (first > last ? 45 : 70));
  let ticks = [];
  if (log) {
    const wanted = b - a > most ? [1] : b - a > 0.5 * most ? [1, 3] : [1, 2, 5];
    for (let k = Math.floor(a); k <= b; k++) ticks.push(...wanted.map((m) => m * 10 ** k));
  }
  if (ticks.filter((v) => v >= low && v <= high).length < 2) {
    const every = step(high - low, most);
    ticks = Array.from({ length: 12 }, (_, i) => (Math.ceil(low / every) + i) * every);
  }
  const slack = 1e-9 * (high - low);
  return { low, high, pixel, back, ticks: ticks.filter((v) => v >= low - slack && v <= high + slack) };
}

function render({ model, el, experimental }) {
  const state = (name) => model.get(name);
  const set = (changes) => {
    model.set(changes);
    model.save_changes();
  };
  const about = () => state("about");
  const pair = () => [state("across"), state("up")];
  const kind = about().parameters ? "ellipses" : state("nodes").length ? "nodes" : "curves";
  const reset = () => set({ ...about().start, cursor: null });
  const parts = { hint: HINTS[kind], name: kind, arrange, prepare, draw, reset, kernel: experimental };
  const { canvas, over, place, redraw, say, close } = frame(el, parts);
  let [shown, box, axes, grips, buttons] = [[], null, null, [], []];

  // Every line to draw: { label, colour, points, band, ... }.
  function lines() {
    if (kind === "ellipses") {
      const { covariances, centre } = about();
      return covariances.flatMap(({ covariance, ...look }) =>
        RADII.map((r, k) => ({ ...look, more: k > 0, points: ellipse(covariance, centre, pair(), r) })),
      );
    }
    const found = state("curves").map(({ x, y, low, high, ...look }) => {
      const band = low ? [...x.map((v, i) => [v, high[i]]), ...x.map((v, i) => [v, low[i]]).reverse()] : null;
      return { ...look, points: x.map((v, i) => [v, y[i]]), band };
    });
    const { label, colour } = about().moving;
    const drawn = found.some((line) => line.label === label); // by whoever knows a better curve of these nodes
    if (kind === "nodes" && !drawn) found.push({ label, colour, points: throughNodes(state("nodes")) });
    return found;
  }

  function bounds(way, log) {
    const fixed = about().limits[way] ?? about().reach?.[pair()[way]];
    if (fixed) return fixed;
    const values = shown.flatMap((line) => [...line.points, ...(line.band ?? [])].map((p) => p[way]));
    const usable = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
    if (!usable.length) throw new Error(`there is nothing ${log ? "positive " : ""}to draw`);
    const [low, high] = [Math.min(...usable), Math.max(...usable)];
    if (log) return way ? [low / 1.3, high * 1.3] : [low, high === low ? 2 * low : high];
    const room = (high - low || Math.abs(low) || 1) * (way || kind === "ellipses" ? 0.06 : 0);
    return [low - room, high === low ? high + (room || 1) : high + room];
  }

  function labels() {
    return [...new Map(shown.map((line) => [line.label, line])).values()];
  }

  function arrange(width, whole) {
    shown = lines();
    const ctx = canvas.getContext("2d");
    ctx.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    let [x, row] = [EDGE.left, 0];
    for (const line of labels()) {
      const room = ctx.measureText(line.label).width + 40;
      if (x + room > width && x > EDGE.left) [x, row] = [EDGE.left, row + 1];
      line.spot = [x, row * EDGE.row, room];
      x += room;
    }
    const top = (row + 1) * EDGE.row + 8;
    const height = whole ?? Math.round(clamp(0.62 * width, 240, kind === "ellipses" ? 460 : 340)) + top;
    const log = about().log;
    box = { left: EDGE.left, right: width - EDGE.right, top, foot: height - EDGE.foot };
    axes = [
      axis(...bounds(0, log[0]), box.left, box.right, log[0]),
      axis(...bounds(1, log[1]), box.foot, box.top, log[1]),
    ];
    return height;
  }

  // Buttons over the legend, grips over the nodes; both stay while they are used.
  function prepare() {
    const names = labels();
    if (buttons.length !== names.length) {
      buttons.forEach((b) => b.remove());
      buttons = names.map(() => node(over, "button", { type: "button", class: "nbkit-legend" }));
    }
    names.forEach(({ label, spot }, i) => {
      const hidden = state("hidden");
      const off = hidden.includes(label);
      buttons[i].setAttribute("aria-label", label);
      buttons[i].setAttribute("aria-pressed", !off);
      buttons[i].style = `left: ${spot[0]}px; top: ${spot[1]}px; width: ${spot[2] - 8}px`;
      buttons[i].onclick = () => set({ hidden: off ? hidden.filter((h) => h !== label) : [...hidden, label] });
    });
    state("nodes").forEach((_, i) => (grips[i] ??= nodeGrip(i)));
    state("nodes").forEach(([x, y], i) => {
      grips[i].style.transform = `translate(${axes[0].pixel(x)}px, ${axes[1].pixel(y)}px)`;
      grips[i].setAttribute("aria-valuenow", y);
      grips[i].setAttribute("aria-valuetext", `${three(y)} at ${three(x)}`);
    });
    canvas.setAttribute("aria-label", `${about().labels.join(" against ")}: ${names.map((n) => n.label).join(", ")}.`);
  }

  function nodeGrip(i) {
    const move = (y) => {
      const [low, high] = about().bounds ?? [axes[1].low, axes[1].high];
      set({ nodes: state("nodes").map((p, k) => (k === i ? [p[0], clamp(y, low, high)] : p)) });
      say(`${three(state("nodes")[i][1])} at ${three(state("nodes")[i][0])}`);
    };
    const dragged = (e) => move(axes[1].back(e.clientY - canvas.getBoundingClientRect().y));
    const pressed = (dx, dy) => {
      if (dx) grips[clamp(i + Math.sign(dx), 0, grips.length - 1)].focus();
      else move(state("nodes")[i][1] + 0.01 * dy * (axes[1].high - axes[1].low));
    };
    const it = grip(over, `node ${i + 1}`, dragged, pressed);
    it.classList.add("nbkit-node");
    return it;
  }

  function drawFrame({ ctx, text }) {
    const [h, v] = axes;
    const names = kind === "ellipses" ? pair().map((i) => about().parameters[i]) : about().labels;
    ctx.lineWidth = 1;
    ctx.strokeRect(box.left, box.top, box.right - box.left, box.foot - box.top);
    for (const x of h.ticks) {
      ctx.fillRect(h.pixel(x) - 0.5, box.foot, 1, -5);
      text(short(x), h.pixel(x), box.foot + 11, "center");
    }
    for (const y of v.ticks) {
      ctx.fillRect(box.left, v.pixel(y) - 0.5, 5, 1);
      text(short(y), box.left - 6, v.pixel(y), "right");
    }
    text(names[0], (box.left + box.right) / 2, box.foot + 31, "center", "13px");
    ctx.save();
    ctx.translate(12, (box.top + box.foot) / 2);
    ctx.rotate(-Math.PI / 2);
    text(names[1], 0, 0, "center", "13px");
    ctx.restore();
  }

  function drawLine({ ctx, style }, { points, band, colour, dash, ghost, dots, more }) {
    const [h, v] = axes;
    const path = new Path2D();
    const ends = (p) => [h.pixel(p[0]), clamp(v.pixel(Math.max(p[1], v.low > 0 ? 1e-30 : -Infinity)), -1e4, 1e4)];
    points.filter((p) => Number.isFinite(p[1])).forEach((p) => path.lineTo(...ends(p)));
    [ctx.strokeStyle, ctx.lineWidth, ctx.globalAlpha] = [colour ?? style.color, ghost ? 1.2 : 2, ghost ? 0.5 : 1];
    ctx.fillStyle = ctx.strokeStyle;
    ctx.setLineDash({ "--": [7, 4], ":": [2, 3] }[dash] ?? []);
    if (more) [ctx.lineWidth, ctx.globalAlpha] = [1.2, 0.9];
    if (dots) points.forEach((p) => ctx.fillRect(ends(p)[0] - 2.5, ends(p)[1] - 2.5, 5, 5));
    ctx.stroke(path);
    ctx.setLineDash([]);
    ctx.globalAlpha = kind === "ellipses" ? 0.08 : 0.2;
    const area = new Path2D();
    (band ?? (kind === "ellipses" ? points : [])).forEach((p) => area.lineTo(...ends(p)));
    ctx.fill(area);
    ctx.globalAlpha = 1;
  }

  function drawLegend({ ctx, style, text }) {
    for (const { label, colour, dash, ghost, spot } of labels()) {
      const [x, y] = [spot[0], spot[1] + EDGE.row / 2];
      ctx.globalAlpha = state("hidden").includes(label) ? 0.3 : 1;
      [ctx.strokeStyle, ctx.lineWidth] = [colour ?? style.color, ghost ? 1.2 : 2.5];
      ctx.setLineDash({ "--": [5, 3], ":": [2, 2] }[dash] ?? []);
      ctx.stroke(new Path2D(`M${x} ${y}h20`));
      ctx.setLineDash([]);
      ctx.fillStyle = style.color;
      text(label, x + 25, y, "left", "12px");
    }
    ctx.globalAlpha = 1;
  }

  function drawHistogram({ ctx }) {
    const { edges, counts } = about().histogram;
    const tall = (0.4 * (box.foot - box.top)) / Math.max(...counts);
    ctx.globalAlpha = 0.15;
    counts.forEach((c, i) => {
      const [a, b] = [edges[i], edges[i + 1]].map((x) => clamp(axes[0].pixel(x), box.left, box.right));
      ctx.fillRect(a, box.foot - c * tall, b - a - 0.5, c * tall);
    });
    ctx.globalAlpha = 1;
  }

  // Lines of words in a box beside a place; those of curves begin with their colour.
  function drawBox({ ctx, style, text }, at, words, colours = []) {
    ctx.font = `12px ${style.fontFamily}`;
    const width = Math.max(40, ...words.map((w) => ctx.measureText(w).width)) + 24;
    const left = at + width + 12 < box.right ? at + 8 : at - width - 8;
    ctx.globalAlpha = 0.9;
    ctx.fillStyle = style.backgroundColor;
    ctx.fillRect(left, box.top + 4, width, 17 * words.length + 6);
    ctx.globalAlpha = 1;
    [ctx.lineWidth, ctx.strokeStyle] = [0.5, style.color];
    ctx.strokeRect(left, box.top + 4, width, 17 * words.length + 6);
    words.forEach((w, i) => {
      ctx.fillStyle = colours[i] ?? style.color;
      if (colours[i]) ctx.fillRect(left + 7, box.top + 13 + 17 * i - 1, 8, 4);
      ctx.fillStyle = style.color;
      text(w, left + (colours[i] ? 19 : 7), box.top + 15 + 17 * i, "left", "12px");
    });
  }

  // The values of all curves at the cursor.
  function drawCursor(paint, x, visible) {
    const { ctx, style } = paint;
    const at = axes[0].pixel(x);
    const rows = visible.map((line) => [line, value(line.points, x)]).filter(([, y]) => y !== null);
    ctx.fillRect(at, box.top, 1, box.foot - box.top);
    const words = rows.map(([line, y]) => `${line.label}: ${three(y)}`);
    const colours = rows.map(([line]) => line.colour ?? style.color);
    drawBox(paint, at, [three(x), ...words], [null, ...colours]);
    place.textContent = `${about().labels[0]} = ${three(x)}`;
    say([place.textContent, ...words].join(", "));
  }

  function draw(paint) {
    const { ctx, style } = paint;
    const visible = shown.filter((line) => !state("hidden").includes(line.label));
    ctx.save();
    ctx.beginPath();
    ctx.rect(box.left, box.top, box.right - box.left, box.foot - box.top);
    ctx.clip();
    if (about().histogram) drawHistogram(paint);
    for (const line of [...visible].sort((a, b) => Boolean(b.ghost) - Boolean(a.ghost))) drawLine(paint, line);
    for (const y of about().rules.filter((r) => r >= axes[1].low && r <= axes[1].high)) {
      ctx.fillStyle = style.color;
      ctx.fillRect(box.left, axes[1].pixel(y), box.right - box.left, 0.5);
    }
    ctx.restore();
    [ctx.fillStyle, ctx.strokeStyle] = [style.color, style.color];
    drawFrame(paint);
    drawLegend(paint);
    for (const [x, y] of state("nodes")) {
      const dot = new Path2D();
      dot.arc(axes[0].pixel(x), axes[1].pixel(y), 6, 0, 7);
      [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth] = [style.backgroundColor, about().moving.colour, 2.5];
      ctx.fill(dot);
      ctx.stroke(dot);
    }
    ctx.fillStyle = style.color;
    place.textContent =
      kind === "ellipses"
        ? pair()
            .map((i) => about().parameters[i])
            .join(", ")
        : "";
    if (state("cursor") !== null && kind !== "ellipses") drawCursor(paint, state("cursor"), visible);
  }

  canvas.onpointermove = (e) => {
    const inside = axes && e.offsetX >= box.left && e.offsetX <= box.right && e.offsetY >= box.top;
    if (inside) set({ cursor: axes[0].back(e.offsetX) });
  };
  canvas.onpointerleave = () => set({ cursor: null });
  canvas.onkeydown = (e) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!way || kind === "ellipses") return;
    e.preventDefault();
    const now = state("cursor") ?? axes[0].back((box.left + box.right) / 2);
    set({ cursor: axes[0].back(clamp(axes[0].pixel(now) + way * (e.shiftKey ? 25 : 5), box.left, box.right)) });
  };

  const events = { cursor: () => redraw(false) };
  for (const name of ["about", "curves", "nodes", "hidden", "across", "up"]) events[name] = () => redraw();
  for (const [name, act] of Object.entries(events)) model.on(`change:${name}`, act);
  return () => {
    close();
    for (const [name, act] of Object.entries(events)) model.off(`change:${name}`, act);
  };
}

export default { render };
