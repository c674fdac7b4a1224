// Maps of a periodic cube: every field is here, so slices, colours, read-outs and M are made without a kernel.

const AXES = "xyz";
const [LEFT, FOOT, GAP, HEAD, COUNTS, STRIP, NUMBERS] = [50, 40, 18, 20, 18, 7, 17];
const ABOVE = HEAD + COUNTS + STRIP + NUMBERS;
const BINS = 64;
const HINT =
  "arrows: cursor · , . slice · x y z axis · + − zoom · 1–9 terms · click or Enter: pin · drag: move · Ctrl + wheel or pinch: zoom";

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

function initialize({ model }) {
  let timer = null;
  const move = () => {
    model.set("index", modulo(model.get("index") + 1, model.get("about").n));
    model.save_changes();
  };
  const play = () => {
    clearInterval(timer);
    if (model.get("playing")) timer = setInterval(move, 120);
  };
  model.on("change:playing", play);
  play();
  return () => clearInterval(timer);
}

function render({ model, el }) {
  const state = (name) => model.get(name);
  const set = (changes) => {
    model.set(changes);
    model.save_changes();
  };
  const reset = () => set({ ...about.start, pinned: [], cursor: [], playing: false });
  const { canvas, over, place, redraw, say, close } = frame(el, {
    hint: HINT,
    name: "maps",
    arrange,
    prepare,
    draw,
    reset,
  });
  let [about, panels, lay, mark] = [null, [], null, {}];

  function field(name) {
    const panel = about.panels.find((p) => p.name === name);
    if (name !== "M" || !about.terms.length) return floats(state("voxels")[name], panel.scale);
    const key = [state("voxels"), state("on").join()];
    if (mark.key?.[0] !== key[0] || mark.key[1] !== key[1])
      mark = { key, values: softplusOfSum(about, state("on"), field) };
    return mark.values;
  }

  // The parts of a panel that are not drawn: ends of the colours to drag, switches of terms.
  function build() {
    about = state("about");
    over.replaceChildren();
    panels = about.panels.map((p, i) => {
      const tile = document.createElement("canvas");
      tile.width = tile.height = about.n;
      const shown = p.log ? (v) => Math.log10(Math.max(1 + v, 0.01)) : (v) => v;
      const panel = { ...p, tile, shown, lut: colours(about.palettes[p.palette]) };
      panel.ends = ["low", "high"].map((end, side) => handle(panel, end, side));
      if (p.term) {
        panel.box = node(over, "input", {
          type: "checkbox",
          "aria-label": `term ${p.label}`,
          title: `term ${p.label} on or off (key ${i + 1})`,
        });
        panel.box.onchange = () => toggle(p.name);
      }
      return panel;
    });
    canvas.setAttribute("aria-label", `Maps of ${panels.map((p) => p.label).join(", ")}. ${HINT}`);
    redraw();
  }

  function toggle(name) {
    const on = state("on");
    set({ on: about.terms.filter((t) => (t === name ? !on.includes(t) : on.includes(t))) });
  }

  function handle(panel, end, side) {
    const move = (value) => {
      const [range, [a, b]] = [[...state("ranges")[panel.name]], panel.histogram.span];
      const least = 1e-3 * (b - a);
      range[side] = side
        ? Math.max(clamp(value, a, b), range[0] + least)
        : Math.min(clamp(value, a, b), range[1] - least);
      set({ ranges: { ...state("ranges"), [panel.name]: range } });
    };
    const width = () => panel.histogram.span[1] - panel.histogram.span[0];
    const dragged = (e) => {
      const x = e.clientX - canvas.getBoundingClientRect().x - panel.x;
      move(panel.histogram.span[0] + (x / lay.side) * width());
    };
    const pressed = (dx, dy) => move(state("ranges")[panel.name][side] + 0.02 * (dx + dy) * width());
    return grip(over, `${panel.label}, ${end} end of the colours`, dragged, pressed);
  }

  // The fewest rows of maps of at least 200 pixels, and then the fewest columns; in a full screen, the largest maps.
  function arrange(width, whole) {
    const room = width - LEFT - 14;
    const most = Math.max(1, Math.floor((room + GAP) / (200 + GAP)));
    const options = Array.from({ length: Math.min(most, panels.length) }, (_, i) => i + 1);
    const rows = (columns) => Math.ceil(panels.length / columns);
    const sides = options.map((columns) => {
      const tall = whole ? (whole - FOOT) / rows(columns) - ABOVE - GAP : panels.length > 4 ? 300 : 380;
      return Math.floor(Math.max(Math.min((room + GAP) / columns - GAP, tall), 120));
    });
    const best = whole ? sides.indexOf(Math.max(...sides)) : options.findIndex((c) => rows(c) === rows(most));
    const [columns, side] = [options[best], sides[best]];
    lay = { side };
    panels.forEach((panel, i) => {
      panel.x = LEFT + (i % columns) * (side + GAP);
      panel.y = ABOVE + Math.floor(i / columns) * (side + ABOVE + GAP);
      panel.outer = [i + columns >= panels.length, i % columns === 0];
    });
    return rows(columns) * (side + ABOVE + GAP) - GAP + FOOT;
  }

  // What depends on slice, terms, colours and fields; the cursor and the view need none of it.
  function prepare() {
    const { n } = about;
    const where = { n, axis: state("axis"), index: modulo(state("index"), n), slab: clamp(state("slab"), 1, n) };
    for (const panel of panels) {
      const values = field(panel.name);
      if (panel.values !== values)
        panel.histogram = histogram(
          values,
          panel.shown,
          about.start?.ranges[panel.name] ?? state("ranges")[panel.name],
        );
      panel.values = values;
      panel.cut = cut(values, where);
      const [low, high] = state("ranges")[panel.name];
      const image = new ImageData(n, n);
      const pixels = new Uint32Array(image.data.buffer);
      for (let v = 0; v < n; v++) {
        for (let h = 0; h < n; h++) {
          const share = (panel.shown(panel.cut[v * n + h]) - low) / (high - low);
          pixels[(n - 1 - v) * n + h] = panel.lut[clamp(Math.floor(255 * share), 0, 255)];
        }
      }
      panel.tile.getContext("2d").putImageData(image, 0, 0);
    }
    position();
  }

  function across() {
    return [0, 1, 2].filter((a) => a !== state("axis"));
  }

  function voxel() {
    const at = [...state("cursor")];
    if (at.length) at[state("axis")] = state("index");
    return at.map((i) => clamp(i, 0, about.n - 1));
  }

  const length = (i) => about.origin + (i + 0.5) * about.cell;

  // Grips and switches, over what is drawn.
  function position() {
    for (const panel of panels) {
      const { span } = panel.histogram;
      panel.ends.forEach((end, side) => {
        const value = state("ranges")[panel.name][side];
        const share = clamp((value - span[0]) / (span[1] - span[0]), 0, 1);
        end.style.transform = `translate(${panel.x + share * lay.side}px, ${panel.y - ABOVE + HEAD}px)`;
        const say = { valuenow: value, valuemin: span[0], valuemax: span[1], valuetext: three(value) };
        for (const [name, v] of Object.entries(say)) end.setAttribute(`aria-${name}`, v);
      });
      if (!panel.box) continue;
      panel.box.checked = state("on").includes(panel.name);
      panel.box.style.transform = `translate(${panel.x}px, ${panel.y - ABOVE + 2}px)`;
    }
  }

  function drawBar(panel, { ctx, style, text }) {
    const { x, y } = panel;
    const { counts, span } = panel.histogram;
    const [low, high] = state("ranges")[panel.name];
    const top = y - ABOVE + HEAD;
    const place = (v) => x + clamp((v - span[0]) / (span[1] - span[0]), 0, 1) * lay.side;
    ctx.globalAlpha = 0.4;
    counts.forEach((c, i) => {
      const tall = COUNTS * Math.sqrt(c);
      ctx.fillRect(x + (i / BINS) * lay.side, top + COUNTS - tall, lay.side / BINS - 0.5, tall);
    });
    ctx.globalAlpha = 1;
    for (let i = 0; i < lay.side; i++) {
      const v = span[0] + (i / lay.side) * (span[1] - span[0]);
      const rgb = panel.lut[clamp(Math.floor((255 * (v - low)) / (high - low)), 0, 255)];
      ctx.fillStyle = `rgb(${rgb & 255} ${(rgb >> 8) & 255} ${(rgb >> 16) & 255})`;
      ctx.fillRect(x + i, top + COUNTS, Math.min(1.5, lay.side - i), STRIP);
    }
    ctx.fillStyle = style.color;
    for (const v of [low, high]) ctx.fillRect(place(v) - 1, top + 3, 2, COUNTS + STRIP - 1);
    const name = panel.log ? `log₁₀(1 + ${panel.label})` : panel.unit;
    const room = name ? ctx.measureText(name).width / 2 + 22 : 20;
    text(three(low), clamp(place(low), x + 16, x + lay.side / 2 - room), y - NUMBERS / 2, "center");
    text(three(high), clamp(place(high), x + lay.side / 2 + room, x + lay.side - 16), y - NUMBERS / 2, "center");
    text(name, x + lay.side / 2, y - NUMBERS / 2, "center");
  }

  // The map, as often as the view holds the periodic box, and the cursor and the pin on it.
  function drawMap(panel, { ctx }, at, corner, zoom) {
    const { x, y } = panel;
    const { side } = lay;
    const size = zoom * side;
    ctx.save();
    ctx.beginPath();
    ctx.rect(x, y, side, side);
    ctx.clip();
    ctx.imageSmoothingEnabled = false;
    if (panel.term && !state("on").includes(panel.name)) ctx.globalAlpha = 0.25;
    for (let h = Math.floor(corner[0]); h < corner[0] + 1 / zoom; h++) {
      for (let v = Math.floor(corner[1]); v < corner[1] + 1 / zoom; v++) {
        ctx.drawImage(panel.tile, x + (h - corner[0]) * size, y + side - (v + 1 - corner[1]) * size, size, size);
      }
    }
    ctx.globalAlpha = 1;
    const half = 0.5 / about.n;
    const pixel = (i, first) => (modulo(i / about.n + half - first + half, 1) - half) * size;
    const point = (i) => [x + pixel(i[across()[0]], corner[0]), y + side - pixel(i[across()[1]], corner[1])];
    const outlined = (path, wide) => {
      for (const [colour, width] of [
        ["#000a", wide + 2],
        ["#fff", wide],
      ]) {
        [ctx.strokeStyle, ctx.lineWidth] = [colour, width];
        ctx.stroke(path);
      }
    };
    if (at.length) {
      const [h, v] = point(at);
      const gap = Math.max(6, (0.7 * size) / about.n);
      const lines = `M${x} ${v}H${h - gap}M${h + gap} ${v}H${x + side}M${h} ${y}V${v - gap}M${h} ${v + gap}V${y + side}`;
      outlined(new Path2D(lines), 0.7);
    }
    if (state("pinned").length) {
      const ring = new Path2D();
      ring.arc(...point(state("pinned")), Math.max(6, (0.7 * size) / about.n), 0, 7);
      ctx.setLineDash(state("pinned")[state("axis")] === state("index") ? [] : [2, 3]);
      outlined(ring, 2);
    }
    ctx.restore();
  }

  function drawTicks(panel, { ctx, text }, corner, zoom) {
    const { x, y, outer } = panel;
    const { side } = lay;
    const box = about.n * about.cell;
    const every = step(box / zoom, side > 260 ? 5 : 4);
    for (const way of [0, 1].filter((w) => outer[w])) {
      const first = Math.ceil((corner[way] * box + about.origin) / every - 1e-6) * every - about.origin;
      for (let p = first; p <= (corner[way] + 1 / zoom) * box + 1e-6; p += every) {
        const along = (p / box - corner[way]) * size(zoom);
        const label = short(about.origin + (p < 0 || p > box + 1e-6 ? modulo(p, box) : p));
        way ? ctx.fillRect(x, y + side - along - 0.5, -4, 1) : ctx.fillRect(x + along - 0.5, y + side, 1, 4);
        way ? text(label, x - 6, y + side - along, "right") : text(label, x + along, y + side + 12, "center");
      }
      ctx.save();
      way ? ctx.translate(x - LEFT + 8, y + side / 2) : ctx.translate(x + side / 2, y + side + 30);
      if (way) ctx.rotate(-Math.PI / 2);
      text(`${AXES[across()[way]]} [Mpc/h]`, 0, 0, "center", "12px");
      ctx.restore();
    }
  }

  const size = (zoom) => zoom * lay.side;

  function draw(paint) {
    const { ctx, style, text } = paint;
    const [cx, cy, zoom] = state("view");
    const corner = [cx - 0.5 / zoom, cy - 0.5 / zoom];
    const at = voxel();
    const values = [];
    for (const panel of panels) {
      const { x, y, label, unit, histogram: { constant } } = panel; // prettier-ignore
      text(label, x + (panel.term ? 20 : 0), y - ABOVE + HEAD / 2, "left", "600 13px");
      if (at.length) {
        const value = `${three(panel.cut[at[across()[1]] * about.n + at[across()[0]]])} ${unit}`.trim();
        text(value, x + lay.side, y - ABOVE + HEAD / 2, "right", "13px");
        values.push(`${label} ${value}`);
      }
      drawBar(panel, paint);
      drawMap(panel, paint, at, corner, zoom);
      drawTicks(panel, paint, corner, zoom);
      if (constant === null) continue;
      ctx.fillStyle = style.backgroundColor;
      ctx.fillRect(x + 4, y + lay.side / 2 - 12, lay.side - 8, 24);
      ctx.fillStyle = style.color;
      text(`${label} is ${three(constant)} everywhere`, x + lay.side / 2, y + lay.side / 2, "center", "12px");
    }
    const [axis, index, slab] = ["axis", "index", "slab"].map(state);
    const first = index - ((slab - 1) >> 1);
    const depth =
      slab > 1 ? `${short(length(first - 0.5))} … ${short(length(first + slab - 0.5))}` : three(length(index));
    const words = [...AXES].map((a, i) => `${a} = ${i === axis ? depth : at.length ? three(length(at[i])) : "…"}`);
    place.textContent = `${words.join(", ")} Mpc/h`;
    if (at.length) say(`${place.textContent}: ${values.join(", ")}`);
  }

  // What is under the pointer: coordinates in a map [shares of it], and the voxel.
  function under(e) {
    const { side } = lay;
    const panel = panels.find((p) => modulo(e.offsetX - p.x, 1e6) < side && modulo(e.offsetY - p.y, 1e6) < side);
    if (!panel) return null;
    const [cx, cy, zoom] = state("view");
    const share = [(e.offsetX - panel.x) / side - 0.5, 0.5 - (e.offsetY - panel.y) / side];
    const voxel = [0, 0, 0].fill(state("index"));
    [cx, cy].forEach((c, i) => (voxel[across()[i]] = modulo(Math.floor((c + share[i] / zoom) * about.n), about.n)));
    return { share, voxel };
  }

  // Larger by a factor about a point that stays where it is.
  function zoom(factor, [h, v] = [0, 0]) {
    const [cx, cy, was] = state("view");
    const now = clamp(was * factor, 1, about.n / 4);
    const view = [cx + h / was - h / now, cy + v / was - v / now].map((c) => modulo(c, 1));
    set({ view: now === 1 ? [0.5, 0.5, 1] : [...view, now] });
  }

  const fingers = new Map();
  let moved = 0;
  canvas.onpointerdown = (e) => {
    if (!under(e)) return;
    canvas.setPointerCapture(e.pointerId);
    if (!fingers.size) moved = 0;
    fingers.set(e.pointerId, [e.offsetX, e.offsetY]);
  };
  canvas.onpointermove = (e) => {
    const [was, now] = [fingers.get(e.pointerId), [e.offsetX, e.offsetY]];
    if (!was) {
      const found = under(e);
      if (found && found.voxel.join() !== state("cursor").join()) set({ cursor: found.voxel });
      return;
    }
    moved += Math.hypot(now[0] - was[0], now[1] - was[1]);
    const others = [...fingers].filter(([id]) => id !== e.pointerId).map(([, at]) => at);
    fingers.set(e.pointerId, now);
    const apart = (at) => Math.hypot(at[0] - others[0][0], at[1] - others[0][1]);
    if (others.length) return zoom(apart(now) / apart(was));
    if (moved < 5) return;
    const [cx, cy, scale] = state("view");
    const far = [(was[0] - now[0]) / size(scale), (now[1] - was[1]) / size(scale)];
    set({ view: [modulo(cx + far[0], 1), modulo(cy + far[1], 1), scale] });
  };
  canvas.onpointerup = canvas.onpointercancel = (e) => {
    const found = fingers.delete(e.pointerId) && e.type === "pointerup" && moved < 5 && under(e);
    if (found) set({ cursor: found.voxel, pinned: found.voxel });
  };
  canvas.addEventListener("wheel", (e) => {
    const found = (e.ctrlKey || e.metaKey) && under(e);
    if (!found) return;
    e.preventDefault();
    zoom(Math.exp(-0.01 * clamp(e.deltaY, -30, 30)), found.share);
  });

  canvas.onkeydown = (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const { n } = about;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[e.key];
    const along = { ",": -1, PageDown: -1, ".": 1, PageUp: 1 }[e.key];
    const digit = about.terms[Number(e.key) - 1];
    if (steps) {
      const at = state("cursor").length ? voxel() : [0, 0, 0].fill(n >> 1);
      steps.forEach((by, i) => (at[across()[i]] = modulo(at[across()[i]] + by * (e.shiftKey ? 5 : 1), n)));
      set({ cursor: at });
    } else if (along) set({ index: modulo(state("index") + along, n) });
    else if (e.key.length === 1 && AXES.includes(e.key)) set({ axis: AXES.indexOf(e.key) });
    else if (e.key === "+" || e.key === "=") zoom(1.4);
    else if (e.key === "-") zoom(1 / 1.4);
    else if (e.key === "Enter" && state("cursor").length) set({ pinned: voxel() });
    else if (e.key === " ") set({ playing: !state("playing") });
    else if (digit) toggle(digit);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };

  const light = () => redraw(false);
  const events = { about: build, cursor: light, pinned: light, view: light };
  for (const name of ["voxels", "axis", "index", "slab", "on", "ranges"]) events[name] = () => redraw();
  for (const [name, act] of Object.entries(events)) model.on(`change:${name}`, act);
  build();
  return () => {
    close();
    for (const [name, act] of Object.entries(events)) model.off(`change:${name}`, act);
  };
}

export default { initialize, render };
