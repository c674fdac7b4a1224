// The mark studio: what the hand does to the curves goes through the algebra, and pictures and numbers follow.

const UNDOES = 100;

// Floats as the 16 bits of halves, for the maps.
function halves(values) {
  const floats = new Uint32Array(Float32Array.from(values).buffer);
  return Uint16Array.from(floats, (bits) => {
    const [sign, power] = [(bits >> 16) & 0x8000, ((bits >> 23) & 255) - 112];
    return power > 0 ? sign | Math.min((power << 10) + (((bits & 0x7fffff) + 0x1000) >> 13), 0x7bff) : sign;
  });
}

// B_j(t) of one channel, as in nbkit.mark.additive.
function bumpsAt(t, [low, high], count) {
  const width = (high - low) / (count - 1);
  const edge = (x) => 1 / (1 + Math.exp(-x / (width / 4)));
  return range(count).map((j) => {
    if (j === 0) return edge(low + width / 2 - t);
    return j === count - 1 ? edge(t - high + width / 2) : Math.exp(-0.75 * ((t - low) / width - j) ** 2);
  });
}

// What the worker does, in a scope of its own that has the algebra.
function search() {
  onmessage = ({ data: { table, c, bins, how } }) => {
    for (const now of finish(table, c, bins, how)) postMessage(now);
  };
}

async function render({ model, el }) {
  const about = model.get("about");
  const { ends, nodes: count, k, steps, parameters, labels, classical } = about;
  const bytes = (name, Kind) => {
    const view = model.get("data")[name];
    return new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  };
  const root = bytes("root", Float64Array);
  const fields = 1 + ends.length * count;
  const [judging, training] = ["judging", "training"].map((name) => {
    const [step, mean] = ["step", "mean"].map((what) => bytes(`${name}_${what}`, Float32Array));
    const q = bytes(`${name}_q`, name === "judging" ? Int16Array : Int8Array);
    return { q, step, mean, root, fields, sizes: about.sizes[name] };
  });
  const rivals = bytes("rivals", Float64Array);
  const box = bytes("box", Float32Array);
  const voxels = box.length / (1 + ends.length);
  const parts = {};
  for (const [name, id] of Object.entries(model.get("parts")))
    parts[name] = await model.widget_manager.get_model(id.replace("IPY_MODEL_", ""));
  const curves = ends.map((_, i) => parts[`h${i}`]);

  // What is to be seen and pressed.
  const page = node(el, "div", { class: "nbkit nbkit-studio", "data-lm-suppress-shortcuts": "true" });
  const number = node(page, "div", { class: "nbkit-number", role: "status" });
  const said = node(page, "div", { class: "nbkit-said" });
  const row = () => node(page, "div", { class: "nbkit-row" });
  const labelled = (parent, text, tag, attributes) => {
    const label = node(parent, "label", {}, `${text} `);
    return node(label, tag, { "aria-label": text, ...attributes });
  };
  const button = (parent, text, act) => {
    const it = node(parent, "button", { type: "button" }, text);
    it.onclick = act;
    return it;
  };
  const choices = (select, options) => options.forEach((x) => node(select, "option", {}, String(x)));
  const first = row();
  const start = labelled(first, "start from", "select");
  choices(start, ["yours", ...Object.keys(about.starts)]);
  const sliders = ["p", "δs", "R"].map((name, i) => {
    const it = labelled(first, `classical ${name}`, "select");
    choices(it, about.sliders[i]);
    it.selectedIndex = [6, 0, 2][i];
    return it;
  });
  const second = row();
  const most = labelled(second, "kmax", "input", { type: "range", min: 5, max: k.length - 1 });
  const kmax = node(second, "span");
  const free = parameters.map((name) => labelled(second, `${name} free`, "input", { type: "checkbox" }));
  const third = row();
  const finishing = button(third, "Finish it for me", () => (worker ? stop("stopped") : begin()));
  const naive = labelled(third, "naive objective", "input", { type: "checkbox" });
  button(third, "Undo", undo);
  button(third, "Export", save);
  const name = labelled(third, "name", "input", { value: "my_mark", size: 12 });
  button(third, "Keep", () => {
    tell("Keeping a mark needs a kernel; Export works without.");
    model.send({ keep: name.value, c: [...coefficients()] });
  });
  const table = node(page, "table");
  let [worker, past, fresh, queued, last, busy] = [null, [], true, false, null, false];

  const tell = (words) => (said.textContent = words);
  const values = () => curves.map((curve) => curve.get("nodes").map((p) => p[1]));
  const bins = () => Number(most.value) + 1;
  const freed = () => range(PARAMETERS).filter((i) => free[i].checked);
  const wanted = () => {
    const first = freed().filter((i) => about.wanted.includes(i));
    return [...new Set([...first, ...freed()])].slice(0, 2);
  };
  // Coefficients of curves with these values at the nodes, and the values of coefficients.
  const through = (matrices, x) =>
    matrices.flatMap((A, a) => A.map((line) => line.reduce((sum, v, j) => sum + v * x[a * count + j], 0)));
  const coefficients = () => through(about.inverse, values().flat());

  function put(x) {
    curves.forEach((curve, a) => {
      const [low, high] = curve.get("about").bounds;
      const place = curve.get("nodes").map((p, j) => [p[0], clamp(x[a * count + j], low, high)]);
      curve.set("nodes", place);
      curve.save_changes();
    });
  }

  // Coefficients as curves that fill the plots: what scale and shift M has tells nothing.
  function putCoefficients(c) {
    const x = through(about.forward, c);
    const middle = x.reduce((sum, v) => sum + v, 0) / x.length;
    const largest = Math.max(...x.map((v) => Math.abs(v - middle)), 1e-9);
    const shifts = range(curves.length).map((a) => {
      const own = x.slice(a * count, (a + 1) * count);
      return own.reduce((sum, v) => sum + v, 0) / count;
    });
    busy = true;
    put(x.map((v, t) => (0.8 * about.reach * (v - shifts[Math.floor(t / count)])) / largest));
    busy = false;
    follow();
  }

  function undo() {
    const before = past.pop();
    if (!before) return tell("There is nothing to undo.");
    busy = true;
    put(before);
    busy = false;
    last = before;
    follow();
  }

  // Covariance of a rival, from the first n bins and with what is free now.
  const known = new Map();
  function rival(i, n) {
    const key = [i, n, ...freed()].join();
    const F = () => rivals.subarray((i * k.length + n - 1) * 25, (i * k.length + n) * 25);
    if (!known.has(key)) known.set(key, parameterCovariance(F(), freed()));
    return known.get(key);
  }

  const sigmas = (C) => range(PARAMETERS).map((i) => (C ? Math.sqrt(C[6 * i]) : NaN));
  const rows = (C) => range(PARAMETERS).map((i) => [...C.subarray(5 * i, 5 * i + 5)]);

  // For each parameter the smallest error of the classical marks, and the mark with the smallest of the wanted ones.
  function best(n) {
    const all = classical.map((i) => rival(i, n));
    const few = range(PARAMETERS).map((i) => Math.min(...all.filter(Boolean).map((C) => Math.sqrt(C[6 * i]))));
    const score = (C) => (C ? wanted().reduce((sum, i) => sum + Math.log(C[6 * i]), 0) : Infinity);
    return { few, C: all.reduce((a, b) => (score(b) < score(a) ? b : a)) };
  }

  function follow() {
    if (!queued) requestAnimationFrame(show);
    queued = true;
  }

  function show() {
    queued = false;
    const began = performance.now();
    const n = bins();
    kmax.textContent = `${k[n - 1].toFixed(3)} h/Mpc`;
    sliders.forEach((it) => (it.parentNode.hidden = start.value !== "classical"));
    if (!freed().length)
      return tell("All parameters are held fixed: nothing is left to forecast. The last forecast stays.");
    const c = coefficients();
    drawFields(c);
    const found = forecastOf(judging, [1, ...c], n, steps);
    const C = found && parameterCovariance(found.F, freed());
    if (!C) {
      const same = Math.max(...c.map(Math.abs)) < 1e-6;
      tell(
        `${same ? "M is 1 everywhere and tells what P(k) tells" : "This mark's covariance cannot be inverted"}: the last forecast stays.`,
      );
      return;
    }
    const { few, C: ghost } = best(n);
    const errors = sigmas(C);
    const shown = wanted().map((i) => `${(few[i] / errors[i]).toFixed(2)} × (${parameters[i]})`);
    number.textContent = `${shown.join(", ")} tighter than the best of 48`;
    const list = { yours: errors, P_dd: sigmas(rival(0, n)), "best of 48": few };
    const clouds = { yours: C, P_dd: rival(0, n), "best of 48": ghost };
    about.learned.forEach((i) => {
      list[labels[i]] = sigmas(rival(i, n));
      clouds[labels[i]] = rival(i, n);
    });
    const ellipses = parts.ellipses.get("about");
    const colour = (label) => ellipses.covariances.find((x) => x.label === label);
    const covariances = Object.entries(clouds).filter(([label, C]) => C && colour(label));
    parts.ellipses.set("about", {
      ...ellipses,
      covariances: covariances.map(([label, C]) => ({ ...colour(label), covariance: rows(C) })),
    });
    drawTable(list);
    drawSpectra(found.spectra, n);
    if (!worker) tell("");
    page.dataset.ms = (performance.now() - began).toFixed(1);
    page.dataset.frames = Number(page.dataset.frames ?? 0) + 1;
    page.dataset.sigma = errors.join(" ");
  }

  function drawTable(list) {
    const cell = (value) => `<td>${Number.isFinite(value) && value ? three(value) : "fixed"}</td>`;
    const lines = Object.entries(list).map(([label, x]) => `<tr><th>${label}</th>${x.map(cell).join("")}</tr>`);
    const head = parameters.map((x) => `<th>σ(${x})</th>`).join("");
    table.innerHTML = `<tr><th></th>${head}</tr>${lines.join("")}`;
  }

  function drawSpectra(x, n) {
    const [d, boxes] = [3 * n, judging.sizes[0]];
    const sum = zeros(d);
    for (let t = 0; t < boxes * d; t++) sum[t % d] += x[t];
    const old = parts.spectra.get("curves");
    const ratio = (which) => range(n).map((i) => sum[which * n + i] / sum[i]);
    parts.spectra.set(
      "curves",
      old.map((line, i) => ({ ...line, x: k.slice(0, n), y: ratio(i + 1) })),
    );
  }

  // The curves as they are between the nodes, M and the marked field of the box.
  function drawFields(c) {
    const M = new Float32Array(voxels).fill(1);
    ends.forEach((pair, a) => {
      const own = c.slice(a * count, (a + 1) * count);
      const at = (t) => bumpsAt(t, pair, count).reduce((sum, B, j) => sum + B * own[j], 0);
      const x = range(121).map((i) => pair[0] + (i / 120) * (pair[1] - pair[0]));
      const [line, ...others] = curves[a].get("curves");
      curves[a].set("curves", [{ ...line, x, y: x.map(at) }, ...others]);
      const known = range(513).map((i) => at(pair[0] - 0.2 + (i / 512) * (pair[1] - pair[0] + 0.4)));
      for (let i = 0; i < voxels; i++) {
        const t = clamp((box[(a + 1) * voxels + i] - pair[0] + 0.2) / (pair[1] - pair[0] + 0.4), 0, 1) * 512;
        M[i] += known[Math.round(t)];
      }
    });
    const Delta = M.map((v, i) => v * (1 + box[i]));
    const middle = Delta.reduce((sum, v) => sum + v, 0) / voxels;
    const made = { M, Delta: Delta.map((v) => v - middle) };
    const frame = parts.maps.get("about");
    const [codes, ranges] = [{ ...parts.maps.get("voxels") }, { ...parts.maps.get("ranges") }];
    const panels = frame.panels.map((panel) => {
      const x = made[panel.name];
      if (!x) return panel;
      const sorted = x.filter((_, i) => i % 7 === 0).sort();
      const [low, high] = [0.005, 0.995].map((share) => sorted[Math.floor(share * (sorted.length - 1))]);
      const largest = Math.max(Math.abs(low), Math.abs(high));
      ranges[panel.name] = panel.name === "Delta" ? [-largest, largest + 1e-6] : [low, high + 1e-6];
      const most = x.reduce((a, v) => Math.max(a, Math.abs(v)), 1e-30);
      const scale = 2 ** Math.floor(Math.log2(32768 / most));
      codes[panel.name] = new DataView(halves(x.map((v) => v * scale)).buffer);
      return { ...panel, scale: 1 / scale };
    });
    parts.maps.set({ about: { ...frame, panels, start: { ...frame.start, ranges } }, voxels: codes, ranges });
  }

  function begin() {
    const source = new Blob([`${ALGEBRA}\n(${search})()`], { type: "text/javascript" });
    worker = new Worker(URL.createObjectURL(source));
    finishing.textContent = "Stop";
    remember();
    const how = { wanted: wanted(), free: freed(), steps: about.search, naive: naive.checked };
    worker.onmessage = ({ data: { step, c, loss } }) => {
      if (!c) return stop("this mark says no more than P(k): give it a shape first");
      putCoefficients(c);
      tell(`step ${step} of ${how.steps}: log σ = ${loss.toFixed(3)}`);
      if (step === how.steps) stop("done");
    };
    worker.onerror = (problem) => stop(`the search failed (${problem.message})`);
    worker.postMessage({ table: training, c: coefficients(), bins: bins(), how });
  }

  function stop(why) {
    worker.terminate();
    worker = null;
    finishing.textContent = "Finish it for me";
    requestAnimationFrame(() => requestAnimationFrame(() => judge(why)));
  }

  // The same mark on the boxes it was made for and on others: what an optimiser gains on its own boxes alone is noise.
  function judge(why) {
    const n = bins();
    const gain = (sigma) => Math.exp(wanted().reduce((s, i) => s + Math.log(few[i] / sigma[i]), 0) / wanted().length);
    const { few } = best(n);
    const a = [1, ...coefficients()];
    const on = (table, corrected) => {
      const found = forecastOf(table, a, n, steps, corrected);
      return found ? `${gain(sigmas(parameterCovariance(found.F, freed()))).toFixed(2)} ×` : "nothing";
    };
    const unseen = on(judging, true);
    tell(
      `${why}: ${unseen} tighter on boxes it has not seen; ${on(training, true)} on those it was made for, and a naive forecast of them claims ${on(training, false)}`,
    );
    page.dataset.done = unseen;
  }

  function save() {
    const c = coefficients();
    const own = ends.map((_, a) => [...c.slice(a * count, (a + 1) * count)]);
    const mark = { kind: "AdditiveMark", coefficients: own, ends, channels: about.channels, shift: 1 };
    const href = URL.createObjectURL(new Blob([JSON.stringify(mark)], { type: "application/json" }));
    const link = node(page, "a", { href, download: `${name.value || "mark"}.json` });
    link.click();
    link.remove();
  }

  function remember() {
    past.push(last ?? values().flat());
    if (past.length > UNDOES) past.shift();
  }

  function changed() {
    if (busy) return;
    if (fresh) remember();
    [fresh, last] = [false, values().flat()];
    start.value = "yours";
    follow();
  }

  function begun() {
    const [i, j, m] = sliders.map((it) => it.selectedIndex);
    const each = start.value === "classical" ? (m * about.sliders[0].length + i) * about.sliders[1].length + j : null;
    const [c, error] = each === null ? (about.starts[start.value] ?? []) : [about.fits[each], about.errors[each]];
    if (!c) return;
    remember();
    putCoefficients(c);
    last = values().flat();
    if (error)
      requestAnimationFrame(() => tell(`fitted with an error of ${(100 * error).toFixed(0)} % of the scatter of M`));
  }

  start.onchange = begun;
  sliders.forEach((it) => (it.onchange = begun));
  most.value = about.bins - 1;
  free.forEach((it) => (it.checked = true));
  [most, ...free].forEach((it) => (it.oninput = follow));
  curves.forEach((curve) => curve.on("change:nodes", changed));
  // All that one hold of the mouse, or of a key, does is undone at once.
  const pressed = (e) => (fresh ||= !e.repeat);
  const presses = ["pointerdown", "keydown"];
  presses.forEach((name) => document.addEventListener(name, pressed, true));
  model.on("msg:custom", (message) => tell(message.said));
  last = values().flat();
  follow();
  return () => {
    worker?.terminate();
    presses.forEach((name) => document.removeEventListener(name, pressed, true));
    curves.forEach((curve) => curve.off("change:nodes", changed));
  };
}

export default { render };
