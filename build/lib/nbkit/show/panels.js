// One panel of the maps: its numbers, its histogram and colour bar, its map and its ticks.

const AXES = "xyz";
const modulo = (a, n) => ((a % n) + n) % n;
const [LEFT, FOOT, GAP, HEAD, COUNTS, STRIP, NUMBERS] = [50, 40, 18, 20, 18, 7, 17];
const ABOVE = HEAD + COUNTS + STRIP + NUMBERS;
const BINS = 64;

// Numbers of 16 bits as they come, floats once they are asked for; a field that was replaced is a new key.
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [power, part] = [(bits >> 10) & 31, (bits & 1023) / 1024];
  return (bits >> 15 ? -1 : 1) * (power ? 2 ** (power - 15) * (1 + part) : 2 ** -14 * part);
});
const decoded = new WeakMap();

function floats(bytes, scale) {
  if (!decoded.has(bytes)) {
    const codes = new Uint16Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
    const values = new Float32Array(codes.length);
    for (let i = 0; i < codes.length; i++) values[i] = HALVES[codes[i]] * scale;
    decoded.set(bytes, values);
  }
  return decoded.get(bytes);
}

function colours(hex) {
  const byte = (i) => parseInt(hex.slice(2 * i, 2 * i + 2), 16);
  return Uint32Array.from(
    { length: 256 },
    (_, i) => 0xff000000 | (byte(3 * i + 2) << 16) | (byte(3 * i + 1) << 8) | byte(3 * i),
  );
}

// Mean over a slab, (n, n): the first remaining axis runs right, the second up.
function cut(values, { n, axis, index, slab }) {
  const stride = [n * n, n, 1];
  const [right, up] = [0, 1, 2].filter((a) => a !== axis).map((a) => stride[a]);
  const mean = new Float32Array(n * n);
  for (let s = 0; s < slab; s++) {
    const start = modulo(index - ((slab - 1) >> 1) + s, n) * stride[axis];
    for (let v = 0; v < n; v++)
      for (let h = 0; h < n; h++) mean[v * n + h] += values[start + v * up + h * right] / slab;
  }
  return mean;
}

function softplusOfSum(about, on, field) {
  const eta = new Float32Array(about.n ** 3).fill(about.bias);
  for (const { name, mean } of about.panels.filter((p) => p.term)) {
    const values = on.includes(name) ? field(name) : null;
    for (let i = 0; i < eta.length; i++) eta[i] += values ? values[i] : mean;
  }
  return eta.map((x) => (x > 20 ? x : Math.log1p(Math.exp(x))));
}

// How often each value occurs, over a little more than the range that the colours start with.
function histogram(values, shown, [low, high]) {
  const every = Math.max(1, values.length >> 17);
  let [least, most] = [Infinity, -Infinity];
  for (let i = 0; i < values.length; i++) {
    if (values[i] < least) least = values[i];
    if (values[i] > most) most = values[i];
  }
  const room = 0.5 * (high - low);
  const span = [Math.max(shown(least), low - room), Math.min(shown(most), high + room)].map(
    (x, i) => x + (i ? 1 : -1) * 0.02 * room,
  );
  const counts = new Float32Array(BINS);
  for (let i = 0; i < values.length; i += every) {
    counts[clamp(Math.floor(((shown(values[i]) - span[0]) / (span[1] - span[0])) * BINS), 0, BINS - 1)]++;
  }
  return { counts: counts.map((c) => c / Math.max(...counts)), span, constant: least === most ? least : null };
}

// A canvas of a few pixels, stretched when it is drawn: `colour(i, j)` counts j from the top.
function tile(width, height, colour, old) {
  const canvas = old ?? document.createElement("canvas");
  if (!old) [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let j = 0; j < height; j++) for (let i = 0; i < width; i++) pixels[j * width + i] = colour(i, j);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// All of a panel that follows slice, terms, colours and fields.
function fillPanel(panel, values, where, [low, high], start) {
  if (panel.values !== values) panel.histogram = histogram(values, panel.shown, start);
  panel.values = values;
  panel.cut = cut(values, where);
  const { n } = where;
  const { span } = panel.histogram;
  const colour = (v) => panel.lut[clamp(Math.floor((255 * (v - low)) / (high - low)), 0, 255)];
  panel.map = tile(n, n, (i, j) => colour(panel.shown(panel.cut[(n - 1 - j) * n + i])), panel.map);
  panel.strip = tile(256, 1, (i) => colour(span[0] + ((i + 0.5) / 256) * (span[1] - span[0])), panel.strip);
}

// In what follows a scene is { side, n, cell, origin, across, at, pinned, inside, corner, zoom, ranges, on }.

function drawBar({ x, y, name, log, label, unit, strip, histogram }, { ctx, text }, { side, ranges, solidLevel }) {
  const { counts, span } = histogram;
  const top = y - ABOVE + HEAD;
  const place = (v) => x + clamp((v - span[0]) / (span[1] - span[0]), 0, 1) * side;
  ctx.globalAlpha = 0.4;
  ctx.beginPath();
  counts.forEach((c, i) => {
    const tall = COUNTS * Math.sqrt(c);
    ctx.rect(x + (i / BINS) * side, top + COUNTS - tall, side / BINS - 0.5, tall);
  });
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.drawImage(strip, x, top + COUNTS, side, STRIP);
  const ends = ranges[name];
  for (const v of ends) ctx.fillRect(place(v) - 1, top + 3, 2, COUNTS + STRIP - 1);
  if (solidLevel?.name === name) {
    const at = place(solidLevel.value);
    ctx.fill(new Path2D(`M${at} ${top + COUNTS - 9}l5 5l-5 5l-5 -5Z`));
  }
  const words = log ? `log₁₀(1 + ${label})` : unit;
  text(words, x + side / 2, y - NUMBERS / 2, "center");
  const room = (words ? ctx.measureText(words).width / 2 : 0) + 22;
  const half = ends.map((v) => ctx.measureText(three(v)).width / 2);
  text(three(ends[0]), clamp(place(ends[0]), x + half[0], x + side / 2 - room), y - NUMBERS / 2, "center");
  text(three(ends[1]), clamp(place(ends[1]), x + side / 2 + room, x + side - half[1]), y - NUMBERS / 2, "center");
}

// The map, as often as the view holds the periodic box, and the cursor and the pin on it.
function drawMap({ x, y, map, term, name }, { ctx }, { side, n, across, at, pinned, inside, corner, zoom, on }) {
  const size = zoom * side;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, side, side);
  ctx.clip();
  ctx.imageSmoothingEnabled = false;
  if (term && !on.includes(name)) ctx.globalAlpha = 0.25;
  for (let h = Math.floor(corner[0]); h < corner[0] + 1 / zoom; h++) {
    for (let v = Math.floor(corner[1]); v < corner[1] + 1 / zoom; v++) {
      ctx.drawImage(map, x + (h - corner[0]) * size, y + side - (v + 1 - corner[1]) * size, size, size);
    }
  }
  ctx.globalAlpha = 1;
  const pixel = (i, first) => (modulo((i + 1) / n - first, 1) - 0.5 / n) * size;
  const point = (voxel) => [x + pixel(voxel[across[0]], corner[0]), y + side - pixel(voxel[across[1]], corner[1])];
  const outlined = (path, wide) => {
    [ctx.strokeStyle, ctx.lineWidth] = ["#000a", wide + 2];
    ctx.stroke(path);
    [ctx.strokeStyle, ctx.lineWidth] = ["#fff", wide];
    ctx.stroke(path);
  };
  const gap = Math.max(6, (0.7 * size) / n);
  if (at.length) {
    const [h, v] = point(at);
    const lines = `M${x} ${v}H${h - gap}M${h + gap} ${v}H${x + side}M${h} ${y}V${v - gap}M${h} ${v + gap}V${y + side}`;
    outlined(new Path2D(lines), 0.7);
  }
  if (pinned.length) {
    const ring = new Path2D();
    ring.arc(...point(pinned), gap, 0, 7);
    ctx.setLineDash(inside ? [] : [2, 3]);
    outlined(ring, 2);
  }
  ctx.restore();
}

function drawTicks({ x, y, outer }, { ctx, text }, { side, n, cell, origin, across, corner, zoom }) {
  const box = n * cell;
  const every = step(box / zoom, side > 260 ? 5 : 4);
  for (const way of [0, 1].filter((w) => outer[w])) {
    const first = Math.ceil((corner[way] * box + origin) / every - 1e-6) * every - origin;
    for (let p = first; p <= (corner[way] + 1 / zoom) * box + 1e-6; p += every) {
      const along = (p / box - corner[way]) * zoom * side;
      const label = short(origin + (p < 0 || p > box + 1e-6 ? modulo(p, box) : p));
      way ? ctx.fillRect(x, y + side - along - 0.5, -4, 1) : ctx.fillRect(x + along - 0.5, y + side, 1, 4);
      way ? text(label, x - 6, y + side - along, "right") : text(label, x + along, y + side + 12, "center");
    }
    ctx.save();
    way ? ctx.translate(x - LEFT + 8, y + side / 2) : ctx.translate(x + side / 2, y + side + 30);
    if (way) ctx.rotate(-Math.PI / 2);
    text(`${AXES[across[way]]} [Mpc/h]`, 0, 0, "center", "12px");
    ctx.restore();
  }
}

function drawPanel(panel, paint, scene) {
  const { x, y, label, term, words, histogram } = panel;
  const { ctx, style, text } = paint;
  const { side } = scene;
  if (paint.saved && term) text(scene.on.includes(panel.name) ? "☑" : "☐", x, y - ABOVE + HEAD / 2, "left", "16px");
  text(label, x + (term ? 20 : 0), y - ABOVE + HEAD / 2, "left", "600 13px");
  text(words, x + side, y - ABOVE + HEAD / 2, "right", "13px");
  drawBar(panel, paint, scene);
  drawMap(panel, paint, scene);
  drawTicks(panel, paint, scene);
  if (histogram.constant === null) return;
  ctx.fillStyle = style.backgroundColor;
  ctx.fillRect(x + 4, y + side / 2 - 12, side - 8, 24);
  ctx.fillStyle = style.color;
  text(`${label} is ${three(histogram.constant)} everywhere`, x + side / 2, y + side / 2, "center", "12px");
}
