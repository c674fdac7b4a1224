// What maps and curves have in common: numbers, elements, and the frame around a picture.

const clamp = (a, low, high) => Math.min(Math.max(a, low), high);

// Three digits, and a minus that is one.
function three(v) {
  const size = Math.abs(v);
  if (!Number.isFinite(v)) return "–";
  if (size === 0) return "0";
  const text = size >= 1e5 || size < 1e-3 ? v.toExponential(2) : size >= 99.95 ? v.toFixed(0) : v.toPrecision(3);
  return text.replaceAll("-", "−");
}

const short = (v) =>
  three(v)
    .replace(/(\.\d*?)0+(?=e|$)/, "$1")
    .replace(/\.(?=e|$)/, "");

// The smallest of 1, 2, 5, 10, ... that divides a width into at most `count` parts.
function step(width, count) {
  const power = 10 ** Math.floor(Math.log10(width / count));
  return power * [1, 2, 5, 10].find((m) => width / (m * power) <= count * 1.0001);
}

function node(parent, tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  parent.append(made);
  return made;
}

// Something to drag that a keyboard moves as well: `move` is told the way (dx, dy) in pixels, or in keys.
function grip(parent, label, dragged, pressed) {
  const it = node(parent, "div", { class: "nbkit-grip", role: "slider", tabindex: "0", "aria-label": label });
  it.onpointerdown = (e) => {
    it.setPointerCapture(e.pointerId);
    it.focus();
    e.preventDefault();
  };
  it.onpointermove = (e) => it.hasPointerCapture(e.pointerId) && dragged(e);
  it.onkeydown = (e) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[e.key];
    if (!way) return;
    e.preventDefault();
    e.stopPropagation();
    pressed(...way.map((x) => x * (e.shiftKey ? 5 : 1)));
  };
  return it;
}

// A picture that redraws itself: its canvas, what lies over it, a line of text, buttons, a hint.
//   arrange(width, height)  gives the height of the picture [pixels]; height is that of a full screen, or null
//   prepare()               is called before a picture whenever more than the cursor has changed
//   draw(paint)             draws it; paint is { ctx, width, height, style, text, saved }
//   kernel                  anywidget's way to ask the kernel for a picture made by matplotlib
function frame(el, { hint, name, arrange, prepare, draw, reset, kernel }) {
  const root = node(el, "div", { class: `nbkit nbkit-${name}`, "data-lm-suppress-shortcuts": "true" });
  const bar = node(root, "div", { class: "nbkit-bar" });
  const place = node(bar, "span", { class: "nbkit-place" });
  const buttons = node(bar, "span", { class: "nbkit-buttons" });
  const stage = node(root, "div", { class: "nbkit-stage" });
  const canvas = node(stage, "canvas", { tabindex: "0", role: "application" });
  const over = node(stage, "div");
  node(root, "div", { class: "nbkit-hint" }, hint);
  const said = node(root, "div", { class: "nbkit-hidden", role: "status" });
  let [width, height, stale, queued, talk, frames] = [0, 0, true, false, null, 0];

  function picture(ctx, saved = false) {
    const style = getComputedStyle(root);
    const text = (words, x, y, align = "left", font = "11px") => {
      [ctx.textAlign, ctx.textBaseline, ctx.font] = [align, "middle", `${font} ${style.fontFamily}`];
      ctx.fillText(words, x, y);
    };
    ctx.fillStyle = style.backgroundColor;
    ctx.fillRect(0, 0, width, height);
    [ctx.fillStyle, ctx.strokeStyle] = [style.color, style.color];
    draw({ ctx, width, height, style, text, saved });
  }

  function show() {
    queued = false;
    if (!root.clientWidth) return;
    try {
      if (stale) {
        const whole = document.fullscreenElement?.contains(root);
        width = root.clientWidth;
        height = arrange(width, whole ? innerHeight - 150 : null);
        const sharp = devicePixelRatio || 1;
        const size = [Math.round(width * sharp), Math.round(height * sharp)];
        if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
        canvas.style.height = stage.style.height = `${height}px`;
        prepare();
      }
      stale = false;
      const ctx = canvas.getContext("2d");
      ctx.setTransform(canvas.width / width, 0, 0, canvas.height / height, 0, 0);
      picture(ctx);
      root.dataset.frames = ++frames;
    } catch (problem) {
      place.textContent = `This picture cannot be drawn: ${problem.message}`;
      throw problem;
    }
  }

  function redraw(everything = true) {
    stale ||= everything;
    if (!queued) requestAnimationFrame(show);
    queued = true;
  }

  // What a screen reader says, once the cursor rests.
  function say(words) {
    clearTimeout(talk);
    talk = setTimeout(() => (said.textContent = words), 150);
  }

  function download(kind, href) {
    const link = node(root, "a", { download: `${name}.${kind}`, href });
    link.click();
    link.remove();
  }

  // What is on the screen, where no kernel answers.
  function copied() {
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [2 * width, 2 * height + 48];
    const ctx = copy.getContext("2d");
    const style = getComputedStyle(root);
    ctx.fillStyle = style.backgroundColor;
    ctx.fillRect(0, 0, copy.width, copy.height);
    [ctx.fillStyle, ctx.font] = [style.color, `26px ${style.fontFamily}`];
    ctx.fillText(place.textContent, 16, 34);
    ctx.setTransform(2, 0, 0, 2, 0, 48);
    picture(ctx, true);
    return copy.toDataURL("image/png");
  }

  let answers = false;
  const patience = (seconds) => ({ signal: AbortSignal.timeout(1000 * seconds) });
  const ask = async (kind, seconds) => (await kernel.invoke("_save", kind, patience(seconds)))[1];
  ask("", 3600).then(
    () => (answers = true),
    () => (answers = false),
  );

  async function save(kind) {
    if (!answers && kind === "png") return download(kind, copied());
    place.textContent = answers ? `making a ${kind} …` : "a PDF is made by the kernel, and none is connected";
    if (!answers) return;
    const type = { png: "image/png", pdf: "application/pdf" }[kind];
    const [bytes] = await ask(kind, 60);
    const url = URL.createObjectURL(new Blob([bytes], { type }));
    download(kind, url);
    URL.revokeObjectURL(url);
    redraw(false);
  }

  function full() {
    const whole = root.closest(".nbkit-explorer") ?? root;
    document.fullscreenElement ? document.exitFullscreen() : whole.requestFullscreen();
  }

  const acts = {
    Reset: [reset, "M3 8a5 5 0 1 0 2-4M5 1v3h3"],
    "Save picture (PNG)": [() => save("png"), "M8 2v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11"],
    "Save picture (PDF)": [() => save("pdf"), "M4 14V2h5l3 3v9ZM9 2v3h3M6 8h4M6 11h4"],
    "Full screen": [full, "M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4"],
  };
  for (const [title, [act, path]] of Object.entries(acts)) {
    const button = node(buttons, "button", { type: "button", title, "aria-label": title });
    button.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${path}" /></svg>`;
    button.onclick = act;
  }
  const sizes = new ResizeObserver(() => redraw());
  sizes.observe(root);
  // JupyterLab changes its theme by an attribute of the page.
  const theme = new MutationObserver(() => redraw());
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  const close = () => {
    sizes.disconnect();
    theme.disconnect();
  };
  return { root, canvas, over, place, redraw, say, close };
}
