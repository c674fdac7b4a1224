// Maps of a periodic cube: every field is here, so slices, colours, read-outs and M are made without a kernel.

const HINT = [
  "arrows: cursor · , . slice · x y z axis · + − zoom · space: play",
  " · click or Enter: pin · drag: move · Ctrl + wheel or pinch: zoom",
];

function initialize({ model }) {
  let timer = null;
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const play = () => {
    clearInterval(timer);
    const move = () => set("index", modulo(model.get("index") + 1, model.get("about").n));
    if (model.get("playing")) timer = setInterval(move, 120);
  };
  // The cursor stays in the slice, so that it is the same voxel when the axis changes.
  const follow = () => {
    const [cursor, axis, index] = ["cursor", "axis", "index"].map((name) => model.get(name));
    if (cursor.length && cursor[axis] !== index) set("cursor", cursor.with(axis, index));
  };
  // Another field, another level.
  const forget = () => {
    const { start } = model.get("about");
    if (model.get("level") !== null && model.get("solid") !== start?.solid) set("level", null);
  };
  model.on("change:solid", forget);
  model.on("change:playing", play);
  model.on("change:index", follow);
  play();
  return () => clearInterval(timer);
}

function render({ model, el, experimental }) {
  const state = (name) => model.get(name);
  const set = (changes) => {
    model.set(changes);
    model.save_changes();
  };
  const hint = HINT.join(state("about").terms.length ? " · 1–9 terms" : "");
  const reset = () => set({ ...about.start, pinned: [], cursor: [], playing: false });
  const { canvas, over, place, redraw, say, close } = frame(el, {
    hint,
    name: "maps",
    arrange,
    prepare,
    draw,
    reset,
    kernel: experimental,
  });
  let [about, panels, side, mark, stage, solid] = [null, [], 200, {}, undefined, null];

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
      const shown = p.log ? (v) => Math.log10(Math.max(1 + v, 0.01)) : (v) => v;
      const panel = { ...p, shown, lut: colours(about.palettes[p.palette]) };
      panel.ends = ["low", "high"].map((end, which) => handle(panel, `${end} end of the colours`, which));
      panel.level = handle(panel, "level of the surface", 2);
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
    const turn = (x, y) => set({ turn: [state("turn")[0] - x, clamp(state("turn")[1] + y, -90, 90)] });
    solid = grip(
      over,
      "view in three dimensions",
      (e) => turn(e.movementX / 2, e.movementY / 2),
      (x, y) => turn(-5 * x, 5 * y),
    );
    solid.classList.add("nbkit-solid");
    canvas.setAttribute("aria-label", `Maps of ${panels.map((p) => p.label).join(", ")}. ${hint}`);
    redraw();
  }

  function toggle(name) {
    const on = state("on");
    set({ on: about.terms.filter((t) => (t === name ? !on.includes(t) : on.includes(t))) });
  }

  // Something to drag along the histogram of a panel: either end of its colours, or the level of its surface.
  function handle(panel, label, which) {
    const width = () => panel.histogram.span[1] - panel.histogram.span[0];
    const now = () => (which < 2 ? state("ranges")[panel.name][which] : levelOf(panel));
    const move = (value) => {
      const v = clamp(value, ...panel.histogram.span);
      if (which === 2) return set({ level: v });
      const [low, high] = state("ranges")[panel.name];
      const least = 1e-3 * width();
      const range = which ? [low, Math.max(v, low + least)] : [Math.min(v, high - least), high];
      set({ ranges: { ...state("ranges"), [panel.name]: range } });
    };
    const dragged = (e) => {
      const x = e.clientX - canvas.getBoundingClientRect().x - panel.x;
      move(panel.histogram.span[0] + (x / side) * width());
    };
    return grip(over, `${panel.label}, ${label}`, dragged, (dx, dy) => move(now() + 0.02 * (dx + dy) * width()));
  }

  function levelOf(panel) {
    const [low, high] = state("ranges")[panel.name];
    return state("level") ?? low + 0.75 * (high - low);
  }

  // Meshes of the surface, of a signed field also of minus its level, and of the slice.
  function meshes() {
    const { n, skin } = about;
    const panel = panels[state("solid") - 1];
    const paint = panels.find((p) => p.name === skin) ?? panel;
    const [values, level] = [field(panel.name), levelOf(panel)];
    const of = (p) => {
      const [low, high] = state("ranges")[p.name];
      return (v) => p.lut[clamp(Math.floor((255 * (v - low)) / (high - low)), 0, 255)];
    };
    if (solid.values !== values || solid.level !== level) {
      const shown = panel.log ? values.map(panel.shown) : values;
      const levels = panel.signed ? [level, -level] : [level];
      Object.assign(solid, { values, level, skin: null });
      solid.parts = levels.map((v) => ({ level: v, ...surface(shown, n, v) }));
    }
    const [colour, skinValues] = [of(paint), field(paint.name)];
    const ends = state("ranges")[paint.name].join();
    if (solid.skin !== skinValues || solid.ends !== ends) {
      Object.assign(solid, { skin: skinValues, ends });
      solid.parts = solid.parts.map((part) => {
        const nearest = (i) => [0, 1, 2].reduce((at, a) => at * n + Math.round(part.points[3 * i + a]), 0);
        const value = paint === panel ? () => part.level : (i) => paint.shown(skinValues[nearest(i)]);
        const tints = Uint32Array.from({ length: part.points.length / 3 }, (_, i) => colour(value(i)));
        return { ...part, tints };
      });
    }
    const slice = sliceSquares(paint.cut.map(paint.shown), n, state("axis"), state("index"), colour);
    solid.words = `${panel.label} = ${panel.signed ? "±" : ""}${three(level)}`;
    solid.meshes = [...solid.parts, slice];
  }

  // The fewest rows of maps of at least 200 pixels, and then the fewest columns; in a full screen, the largest maps.
  function arrange(width, whole) {
    const room = width - LEFT - 14;
    const most = Math.max(1, Math.floor((room + GAP) / (200 + GAP)));
    const count = panels.length + Boolean(state("solid"));
    const options = Array.from({ length: Math.min(most, count) }, (_, i) => i + 1);
    const rows = (columns) => Math.ceil(count / columns);
    const sides = options.map((columns) => {
      const tall = whole ? (whole - FOOT) / rows(columns) - ABOVE - GAP : ({ 1: 460, 2: 420, 3: 400 }[count] ?? 320);
      return Math.floor(Math.max(Math.min((room + GAP) / columns - GAP, tall), 120));
    });
    const best = whole ? sides.indexOf(Math.max(...sides)) : options.findIndex((c) => rows(c) === rows(most));
    const columns = options[best];
    side = sides[best];
    [...panels, solid].slice(0, count).forEach((panel, i) => {
      panel.x = LEFT + (i % columns) * (side + GAP);
      panel.y = ABOVE + Math.floor(i / columns) * (side + ABOVE + GAP);
      panel.outer = [i + columns >= count, i % columns === 0];
    });
    return rows(columns) * (side + ABOVE + GAP) - GAP + FOOT;
  }

  function prepare() {
    const { n } = about;
    const where = { n, axis: state("axis"), index: modulo(state("index"), n), slab: clamp(state("slab"), 1, n) };
    for (const panel of panels) {
      const range = state("ranges")[panel.name];
      fillPanel(panel, field(panel.name), where, range, about.start?.ranges[panel.name] ?? range);
    }
    if (state("solid")) meshes();
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
    solid.hidden = !state("solid");
    const [top, tall] = [solid.y - ABOVE + HEAD, side + ABOVE - HEAD];
    solid.style = `left: ${solid.x}px; top: ${top}px; width: ${side}px; height: ${tall}px; margin: 0`;
    panels.forEach((panel, number) => {
      const { span } = panel.histogram;
      panel.level.hidden = state("solid") !== number + 1;
      [...panel.ends, panel.level].forEach((end, which) => {
        const value = which < 2 ? state("ranges")[panel.name][which] : levelOf(panel);
        const share = clamp((value - span[0]) / (span[1] - span[0]), 0, 1);
        end.style.transform = `translate(${panel.x + share * side}px, ${panel.y - ABOVE + HEAD}px)`;
        const say = { valuenow: value, valuemin: span[0], valuemax: span[1], valuetext: three(value) };
        for (const [name, v] of Object.entries(say)) end.setAttribute(`aria-${name}`, v);
      });
      if (!panel.box) return;
      panel.box.checked = state("on").includes(panel.name);
      panel.box.style.transform = `translate(${panel.x}px, ${panel.y - ABOVE + 2}px)`;
    });
  }

  function drawSolid(paint) {
    const { ctx, text } = paint;
    const size = side + ABOVE - HEAD;
    const scene = { x: solid.x, y: solid.y - ABOVE + HEAD, side, turn: state("turn") };
    Object.assign(scene, { box: about.n * about.cell, origin: about.origin, y: scene.y + (size - side) / 2 });
    text(solid.words, solid.x, solid.y - ABOVE + HEAD / 2, "left", "600 13px");
    if (stage === undefined) stage = solidStage();
    if (!stage) {
      solid.setAttribute("aria-label", "no view in three dimensions: this browser has no WebGL");
      text("no view in 3D: this browser has no WebGL", solid.x + side / 2, solid.y + side / 2, "center");
      return;
    }
    stage.draw(solid.meshes, about.n, scene.turn, Math.round(side * (devicePixelRatio || 1)));
    drawBox(paint, scene, false);
    ctx.drawImage(stage.canvas, scene.x, scene.y, side, side);
    drawBox(paint, scene, true);
  }

  function draw(paint) {
    const [cx, cy, zoom] = state("view");
    const at = voxel();
    const [axis, index, slab] = ["axis", "index", "slab"].map(state);
    const inside = state("pinned")[axis] === index;
    const corner = [cx - 0.5 / zoom, cy - 0.5 / zoom];
    const given = { pinned: state("pinned"), ranges: state("ranges"), on: state("on"), across: across() };
    const solidLevel = state("solid")
      ? { name: panels[state("solid") - 1].name, value: levelOf(panels[state("solid") - 1]) }
      : null;
    const scene = { ...about, side, at, inside, corner, zoom, solidLevel, ...given };
    for (const panel of panels) {
      const value = at.length ? panel.cut[at[scene.across[1]] * about.n + at[scene.across[0]]] : null;
      panel.words = at.length ? `${three(value)} ${panel.unit}`.trim() : "";
      drawPanel(panel, paint, scene);
    }
    if (state("solid")) drawSolid(paint);
    const first = index - ((slab - 1) >> 1);
    const depth = `${short(length(first - 0.5))} … ${short(length(first + slab - 0.5))}`;
    const here = (i) =>
      i !== axis ? (at.length ? three(length(at[i])) : "…") : slab > 1 ? depth : three(length(index));
    place.textContent = `${[...AXES].map((a, i) => `${a} = ${here(i)}`).join(", ")} Mpc/h`;
    if (at.length) say(`${place.textContent}: ${panels.map((p) => `${p.label} ${p.words}`).join(", ")}`);
  }

  // What is under the pointer: coordinates in a map [shares of it], and the voxel.
  function under(e) {
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
    if (others.length) {
      const [offsetX, offsetY] = now.map((c, i) => (c + others[0][i]) / 2);
      return zoom(apart(now) / apart(was), under({ offsetX, offsetY })?.share);
    }
    if (moved < 5) return;
    const [cx, cy, scale] = state("view");
    const far = [(was[0] - now[0]) / (side * scale), (now[1] - was[1]) / (side * scale)];
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
  const events = { about: build, cursor: light, pinned: light, view: light, turn: light };
  for (const name of ["voxels", "axis", "index", "slab", "on", "ranges", "level"]) events[name] = () => redraw();
  events.solid = () => redraw();
  for (const [name, act] of Object.entries(events)) model.on(`change:${name}`, act);
  build();
  return () => {
    close();
    stage?.lose();
    for (const [name, act] of Object.entries(events)) model.off(`change:${name}`, act);
  };
}

export default { initialize, render };
