// Surfaces of equal value in three dimensions, by surface nets; they and the slice in their box, by WebGL.

// Triangles [voxels] of the surface where values (n, n, n) pass a level: a point in every cell that it crosses, joined
// over every edge of the grid that it crosses; normals point to lower values.
function surface(values, n, level) {
  const step = [n * n, n, 1];
  const above = new Uint8Array(n ** 3);
  for (let i = 0; i < above.length; i++) above[i] = values[i] > level;
  const offset = Array.from({ length: 8 }, (_, c) => (c >> 2) * step[0] + ((c >> 1) & 1) * step[1] + (c & 1));
  // Each edge of a cell as two corners, one bit of x, y or z apart.
  const edges = offset.flatMap((_, c) => [4, 2, 1].filter((bit) => !(c & bit)).map((bit) => [c, c | bit]));
  const number = new Int32Array(n ** 3).fill(-1);
  const [points, faces, sum] = [[], [], new Float64Array(3)];
  for (let cell = 0; cell < (n - 1) * step[0]; cell++) {
    let inside = 0;
    for (let c = 0; c < 8; c++) inside += above[cell + offset[c]];
    if (inside === 0 || inside === 8) continue;
    const at = [Math.floor(cell / step[0]), Math.floor(cell / n) % n, cell % n];
    if (at[1] === n - 1 || at[2] === n - 1) continue;
    let count = 0;
    sum.fill(0);
    for (const [a, b] of edges) {
      if (above[cell + offset[a]] === above[cell + offset[b]]) continue;
      const share = (level - values[cell + offset[a]]) / (values[cell + offset[b]] - values[cell + offset[a]]);
      for (let i = 0, bit = 4; i < 3; i++, bit >>= 1) sum[i] += a & bit ? 1 : b & bit ? share : 0;
      count++;
    }
    number[cell] = points.length / 3;
    for (let i = 0; i < 3; i++) points.push(at[i] + sum[i] / count);
    for (let i = 0; i < 3; i++) {
      const [j, k] = [(i + 1) % 3, (i + 2) % 3];
      if (!at[j] || !at[k] || above[cell] === above[cell + step[i]]) continue;
      const corners = [number[cell - step[j]], number[cell - step[k]]];
      const [b, d] = above[cell] ? corners : corners.reverse();
      const [a, c] = [number[cell], number[cell - step[j] - step[k]]];
      faces.push(a, b, c, a, c, d);
    }
  }
  return { points, normals: normals(points, faces), faces };
}

// At each point the sum of its faces' normals, longer for larger faces.
function normals(points, faces) {
  const found = new Float32Array(points.length);
  for (let f = 0; f < faces.length; f += 3) {
    const [a, b, c] = [3 * faces[f], 3 * faces[f + 1], 3 * faces[f + 2]];
    for (let i = 0, j = 1, k = 2; i < 3; i++, j = (j + 1) % 3, k = (k + 1) % 3) {
      const across =
        (points[b + j] - points[a + j]) * (points[c + k] - points[a + k]) -
        (points[b + k] - points[a + k]) * (points[c + j] - points[a + j]);
      found[a + i] += across;
      found[b + i] += across;
      found[c + i] += across;
    }
  }
  return found;
}

// The cell of a voxel's value as a square of the slice: four corners of one colour.
function sliceSquares(cut, n, axis, index, colour) {
  const [right, up] = [0, 1, 2].filter((a) => a !== axis);
  const [points, tints, faces] = [new Float32Array(12 * n * n), new Uint32Array(4 * n * n), new Uint32Array(6 * n * n)];
  for (let cell = 0; cell < n * n; cell++) {
    tints.fill(colour(cut[cell]), 4 * cell, 4 * cell + 4);
    faces.set(
      [0, 1, 2, 0, 2, 3].map((p) => 4 * cell + p),
      6 * cell,
    );
    for (let p = 0; p < 4; p++) {
      const at = 3 * (4 * cell + p);
      points[at + axis] = index;
      points[at + right] = (cell % n) + (p === 1 || p === 2) - 0.5;
      points[at + up] = Math.floor(cell / n) + (p > 1) - 0.5;
    }
  }
  return { points, normals: new Float32Array(points.length), faces, tints };
}

// Right, up and towards the eye, as matplotlib turns its axes; degrees.
function directions([azimuth, elevation]) {
  const [a, e] = [azimuth, elevation].map((x) => (x * Math.PI) / 180);
  const [ca, sa, ce, se] = [Math.cos(a), Math.sin(a), Math.cos(e), Math.sin(e)];
  return [
    [-sa, ca, 0],
    [-se * ca, -se * sa, ce],
    [ce * ca, ce * sa, se],
  ];
}

const VERTEX = `#version 300 es
uniform mat3 turn; uniform float n; in vec3 point, normal; in vec4 tint; out vec4 shade;
void main() {
  vec3 at = turn * ((point + 0.5) / n - 0.5);
  float steep = length(normal) > 0.0 ? abs(dot(normalize(turn * normal), normalize(vec3(-0.3, 0.5, 1.0)))) : 1.0;
  shade = vec4(tint.rgb * (0.35 + 0.65 * steep), 1.0);
  gl_Position = vec4(at.xy / 0.95, -at.z, 1.0);
}`;
const FRAGMENT = `#version 300 es
precision mediump float; in vec4 shade; out vec4 colour;
void main() { colour = shade; }`;

// A canvas on which meshes { points, normals, faces, tints } are drawn, or null where there is no WebGL.
function solidStage() {
  const canvas = document.createElement("canvas");
  // Smooth edges where a graphics card makes them; quick ones where the processor has to.
  const gl =
    canvas.getContext("webgl2", { antialias: true, failIfMajorPerformanceCaveat: true }) ??
    canvas.getContext("webgl2", { antialias: false });
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [kind, source] of Object.entries({ VERTEX_SHADER: VERTEX, FRAGMENT_SHADER: FRAGMENT })) {
    const shader = gl.createShader(gl[kind]);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  gl.useProgram(program);
  gl.enable(gl.DEPTH_TEST);
  const kept = new WeakMap();

  function buffers(mesh) {
    const array = gl.createVertexArray();
    gl.bindVertexArray(array);
    const made = [];
    const fill = (name, data, count, type, normalised) => {
      const place = gl.getAttribLocation(program, name);
      made.push(gl.createBuffer());
      gl.bindBuffer(gl.ARRAY_BUFFER, made.at(-1));
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, count, type, normalised, 0, 0);
    };
    fill("point", new Float32Array(mesh.points), 3, gl.FLOAT, false);
    fill("normal", mesh.normals, 3, gl.FLOAT, false);
    fill("tint", mesh.tints, 4, gl.UNSIGNED_BYTE, true);
    made.push(gl.createBuffer());
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, made.at(-1));
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, new Uint32Array(mesh.faces), gl.STATIC_DRAW);
    const free = () => {
      made.forEach((each) => gl.deleteBuffer(each));
      gl.deleteVertexArray(array);
    };
    return { array, free };
  }

  let shown = [];
  function draw(meshes, n, turn, side) {
    for (const mesh of shown.filter((m) => !meshes.includes(m))) kept.get(mesh).free();
    shown = meshes;
    if (canvas.width !== side) canvas.width = canvas.height = side;
    gl.viewport(0, 0, side, side);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const [right, up, near] = directions(turn);
    const columns = [0, 1, 2].flatMap((i) => [right[i], up[i], near[i]]);
    gl.uniformMatrix3fv(gl.getUniformLocation(program, "turn"), false, columns);
    gl.uniform1f(gl.getUniformLocation(program, "n"), n);
    for (const mesh of meshes) {
      if (!kept.has(mesh)) kept.set(mesh, buffers(mesh));
      gl.bindVertexArray(kept.get(mesh).array);
      gl.drawElements(gl.TRIANGLES, mesh.faces.length, gl.UNSIGNED_INT, 0);
    }
  }
  const lose = () => gl.getExtension("WEBGL_lose_context")?.loseContext();
  return { canvas, draw, lose };
}

// The edges of the box behind what is drawn, or before it, and names and ends of the axes outside of it.
function drawBox({ ctx, text }, { x, y, side, turn, box, origin }, before) {
  const [right, up, near] = directions(turn);
  const dot = (a, p) => a.reduce((sum, v, i) => sum + v * (p[i] - 0.5), 0);
  const place = (p) => [x + side * (0.5 + dot(right, p) / 1.9), y + side * (0.5 - dot(up, p) / 1.9)];
  const bits = [0, 1, 2, 3, 4, 5, 6, 7].map((c) => [c >> 2, (c >> 1) & 1, c & 1]);
  const hidden = bits.reduce((a, b) => (dot(near, a) < dot(near, b) ? a : b));
  ctx.lineWidth = 1;
  for (const a of bits) {
    for (const i of [0, 1, 2].filter((axis) => !a[axis])) {
      const b = a.with(i, 1);
      const behind = [a, b].some((p) => p.join() === hidden.join());
      if (behind === before) continue;
      ctx.globalAlpha = before ? 0.7 : 0.4;
      ctx.stroke(new Path2D(`M${place(a)}L${place(b)}`));
    }
  }
  ctx.globalAlpha = 1;
  if (!before) return;
  for (const i of [0, 1, 2]) {
    // The lowest edge along x and y, the one most to the left along z.
    const low = (p) => (i < 2 ? -place(p)[1] : place(p)[0]);
    const start = bits.filter((p) => !p[i]).reduce((a, b) => (low(a.with(i, 0.5)) < low(b.with(i, 0.5)) ? a : b));
    const put = (share, words, far) => {
      const [h, v] = place(start.with(i, share));
      const away = Math.hypot(h - x - side / 2, v - y - side / 2) || 1;
      const out = (c) => (far * c) / away;
      text(words, h + out(h - x - side / 2), v + out(v - y - side / 2), "center");
    };
    put(0.5, `${AXES[i]} [Mpc/h]`, 24);
    put(0.1, short(origin), 12);
    put(0.9, short(origin + box), 12);
  }
}
