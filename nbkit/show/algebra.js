// Additive marks M = shift + sum_i c_i B_i from cross spectra: spectra, Fisher forecasts, and the gradient of the errors.
//
// A table holds rows x bins x pairs of whole numbers q. Of one bin, with the mean cross spectra P = L L^T, those of a
// row are L Q L^T, and Q of a pair of fields is mean + step q: of unit size, whatever the mark.
// The rows are first the fiducial boxes, then, for each parameter in turn, derivatives: half of what the two boxes of a
// seed differ by. Spectra (rows, 3 bins) are P_dd, P_dm, P_mm of each.

const PARAMETERS = 5;

const zeros = (n) => new Float64Array(n);
const pairsOf = (F) => (F * (F + 1)) / 2;

// A B of row-major matrices (n, m) and (m, p); with a flag, A^T B of (m, n) and (m, p).
function times(A, B, n, m, p, transposed = false) {
  const out = zeros(n * p);
  for (let i = 0; i < n; i++)
    for (let k = 0; k < m; k++) {
      const a = transposed ? A[k * n + i] : A[i * m + k];
      if (a) for (let j = 0; j < p; j++) out[i * p + j] += a * B[k * p + j];
    }
  return out;
}

const transpose = (A, n, m) => Float64Array.from({ length: n * m }, (_, t) => A[(t % n) * m + Math.floor(t / n)]);

// C^-1 of a symmetric positive matrix (d, d), in units in which its diagonal is one; null if it has none to ten digits.
function inverse(C, d) {
  const scale = Float64Array.from({ length: d }, (_, i) => Math.sqrt(C[i * d + i]));
  const L = zeros(d * d);
  const inv = zeros(d * d);
  for (let i = 0; i < d; i++)
    for (let j = 0; j <= i; j++) {
      let sum = C[i * d + j] / (scale[i] * scale[j]);
      for (let k = 0; k < j; k++) sum -= L[i * d + k] * L[j * d + k];
      if (i === j && !(sum > 1e-10)) return null;
      L[i * d + j] = i === j ? Math.sqrt(sum) : sum / L[j * d + j];
    }
  for (let column = 0; column < d; column++)
    for (let i = column; i < d; i++) {
      let sum = i === column ? 1 : 0;
      for (let k = column; k < i; k++) sum -= L[i * d + k] * inv[k * d + column];
      inv[i * d + column] = sum / L[i * d + i];
    }
  const out = times(inv, inv, d, d, d, true);
  return out.map((x, t) => x / (scale[Math.floor(t / d)] * scale[t % d]));
}

// L^T a of bin k, for the coefficients a of (delta, B_1 (1 + delta), ...).
function whitened({ root, fields: F }, a, k) {
  return Float64Array.from({ length: F }, (_, j) => {
    let sum = 0;
    for (let i = j; i < F; i++) sum += root[(k * F + i) * F + j] * a[i];
    return sum;
  });
}

// First row, number of rows, and place of step and mean of each of the six groups of rows.
function groups({ sizes: [fiducial, pairs], step, fields }, k) {
  const all = step.length / 6;
  const at = (g) => g * all + k * pairsOf(fields);
  const rest = range(PARAMETERS).map((p) => [fiducial + p * pairs, pairs, at(p + 1)]);
  return [[0, fiducial, at(0)], ...rest];
}

// (rows, 3 bins) spectra of the mark with coefficients a = (shift, c), from the first bins.
function spectraOf(table, a, bins) {
  const { q, step, mean, fields: F, root, sizes } = table;
  const [pairs, rows] = [pairsOf(F), sizes[0] + PARAMETERS * sizes[1]];
  const all = q.length / rows;
  const out = zeros(rows * 3 * bins);
  for (let k = 0; k < bins; k++) {
    const [v, u] = [whitened(table, a, k), root[k * F * F]];
    for (const [first, count, at] of groups(table, k)) {
      const weights = new Float64Array(pairs);
      let [constant, cross] = [0, 0];
      for (let i = 0, p = 0; i < F; i++)
        for (let j = i; j < F; j++, p++) {
          const w = (i === j ? 1 : 2) * v[i] * v[j];
          weights[p] = w * step[at + p];
          constant += w * mean[at + p];
          if (!i) cross += u * v[j] * mean[at + p];
        }
      for (let row = first; row < first + count; row++) {
        const own = row * all + k * pairs;
        let [mm, dm] = [0, 0];
        for (let p = 0; p < pairs; p++) mm += weights[p] * q[own + p];
        for (let p = 0; p < F; p++) dm += u * v[p] * step[at + p] * q[own + p];
        out[row * 3 * bins + k] = u * u * (mean[at] + step[at] * q[own]);
        out[row * 3 * bins + bins + k] = cross + dm;
        out[row * 3 * bins + 2 * bins + k] = constant + mm;
      }
    }
  }
  return out;
}

// Gradient with respect to a of sum(G spectra), for G like the spectra.
function backToCoefficients(table, a, G, bins) {
  const { q, step, mean, fields: F, root, sizes } = table;
  const [pairs, gradient] = [pairsOf(F), zeros(F)];
  const all = q.length / (sizes[0] + PARAMETERS * sizes[1]);
  for (let k = 0; k < bins; k++) {
    const [v, u, dv] = [whitened(table, a, k), root[k * F * F], zeros(F)];
    for (const [first, count, at] of groups(table, k)) {
      const [mm, dm] = [zeros(pairs), zeros(F)];
      let [sumM, sumD] = [0, 0];
      for (let row = first; row < first + count; row++) {
        const own = row * all + k * pairs;
        const [d, m] = [G[row * 3 * bins + bins + k], G[row * 3 * bins + 2 * bins + k]];
        [sumM, sumD] = [sumM + m, sumD + d];
        for (let p = 0; p < pairs; p++) mm[p] += m * q[own + p];
        for (let p = 0; p < F; p++) dm[p] += d * q[own + p];
      }
      for (let i = 0, p = 0; i < F; i++)
        for (let j = i; j < F; j++, p++) {
          const S = step[at + p] * mm[p] + mean[at + p] * sumM;
          dv[i] += 2 * S * v[j];
          if (j > i) dv[j] += 2 * S * v[i];
          if (!i) dv[j] += u * (step[at + p] * dm[p] + mean[at + p] * sumD);
        }
    }
    for (let i = 0; i < F; i++) for (let j = 0; j <= i; j++) gradient[i] += root[(k * F + i) * F + j] * dv[j];
  }
  return gradient;
}

// Rows of x (n, d) less their mean, the mean, and the covariance.
function moments(x, rows, d) {
  const [mean, away, C] = [zeros(d), zeros(rows.length * d), zeros(d * d)];
  for (const r of rows) for (let i = 0; i < d; i++) mean[i] += x[r * d + i] / rows.length;
  rows.forEach((r, n) => {
    for (let i = 0; i < d; i++) away[n * d + i] = x[r * d + i] - mean[i];
  });
  for (let n = 0; n < rows.length; n++)
    for (let i = 0; i < d; i++)
      for (let j = 0; j <= i; j++) C[i * d + j] += (away[n * d + i] * away[n * d + j]) / (rows.length - 1);
  for (let i = 0; i < d; i++) for (let j = 0; j < i; j++) C[j * d + i] = C[i * d + j];
  return { mean, away, C };
}

// Derivatives of the pairs in `rows`, (n, 5, d), in units of one step of each parameter.
function derivatives(x, [fiducial, pairs], rows, d) {
  const D = zeros(rows.length * PARAMETERS * d);
  rows.forEach((r, n) => {
    for (let p = 0; p < PARAMETERS; p++) {
      const own = (fiducial + p * pairs + r) * d;
      D.set(x.subarray(own, own + d), (n * PARAMETERS + p) * d);
    }
  });
  return D;
}

const hartlap = (n, d) => (n - d - 2) / (n - 1);

// F (5, 5) of t = W^T s from the boxes of one half, less the bias of noisy derivatives; and what its gradient needs.
function information(x, sizes, half, W, d, corrected = true) {
  const w = W.length / d;
  const { away, C } = moments(x, half[0], d);
  const D = derivatives(x, sizes, half[1], d);
  const [N, dmu] = [half[1].length, zeros(PARAMETERS * d)];
  for (let n = 0; n < N; n++) for (let t = 0; t < PARAMETERS * d; t++) dmu[t] += D[n * PARAMETERS * d + t] / N;
  const CW = times(C, W, d, d, w);
  const precision = inverse(times(W, CW, w, d, w, true), w);
  const h = hartlap(half[0].length, w);
  if (!precision || h < 0.2) return null;
  const apart = D.map((v, t) => v - dmu[t % (PARAMETERS * d)]);
  const [m, A] = [times(dmu, W, PARAMETERS, d, w), times(apart, W, N * PARAMETERS, d, w)];
  const [F, noise] = [times(times(m, precision, PARAMETERS, w, w), transpose(m, PARAMETERS, w), 5, w, 5), zeros(25)];
  const share = corrected ? 1 / (N * (N - 1)) : 0;
  for (let n = 0; n < N && share; n++) {
    const one = A.subarray(n * PARAMETERS * w, (n + 1) * PARAMETERS * w);
    const P = times(times(one, precision, PARAMETERS, w, w), transpose(one, PARAMETERS, w), 5, w, 5);
    P.forEach((v, t) => (noise[t] += v * share));
  }
  return { F: F.map((v, t) => h * (v - noise[t])), h, w, W, half, away, C, CW, dmu, apart, precision, m, A, share };
}

// Adds to G (boxes, d) the gradient of sum(S F) for a symmetric S (5, 5), and gives that with respect to W.
function backToSpectra(now, S, G, sizes, d) {
  const { h, w, W, half, away, CW, dmu, apart, precision, m, A, share } = now;
  const N = half[1].length;
  const onM = times(times(S, m, 5, 5, w), precision, 5, w, w).map((v) => 2 * h * v);
  // dL/dT of T = W^T C W, from the information and from its bias.
  const onT = times(times(precision, transpose(m, 5, w), w, w, 5), onM, w, 5, w).map((v) => -v / 2);
  const onA = zeros(N * 5 * w);
  for (let n = 0; n < N && share; n++) {
    const one = A.subarray(n * 5 * w, (n + 1) * 5 * w);
    const back = times(times(S, one, 5, 5, w), precision, 5, w, w).map((v) => -2 * h * share * v);
    onA.set(back, n * 5 * w);
    const T = times(times(precision, transpose(one, 5, w), w, w, 5), back, w, 5, w);
    T.forEach((v, t) => (onT[t] -= v / 2));
  }
  const onW = times(dmu, onM, d, 5, w, true);
  times(CW, onT, d, w, w).forEach((v, t) => (onW[t] += 2 * v));
  times(apart, onA, d, N * 5, w, true).forEach((v, t) => (onW[t] += v));
  const Wt = transpose(W, d, w);
  covarianceBack(times(times(W, onT, d, w, w), Wt, d, w, d), away, half[0], G, d);
  const [onDmu, onApart] = [times(onM, Wt, 5, w, d), times(onA, Wt, N * 5, w, d)];
  const middle = zeros(5 * d); // apart is D less its mean
  for (let t = 0; t < onApart.length; t++) middle[t % (5 * d)] += onApart[t] / N;
  derivativesBack((n, t) => onDmu[t] / N + onApart[n * 5 * d + t] - middle[t], half[1], G, sizes, d);
  return onW;
}

function covarianceBack(onC, away, rows, G, d) {
  const symmetric = onC.map((v, t) => v + onC[(t % d) * d + Math.floor(t / d)]);
  const back = times(away, symmetric, rows.length, d, d);
  rows.forEach((r, n) => {
    for (let i = 0; i < d; i++) G[r * d + i] += back[n * d + i] / (rows.length - 1);
  });
}

function derivativesBack(onD, rows, G, [fiducial, pairs], d) {
  rows.forEach((r, n) => {
    for (let p = 0; p < PARAMETERS; p++)
      for (let i = 0; i < d; i++) G[(fiducial + p * pairs + r) * d + i] += onD(n, p * d + i);
  });
}

// (5, 5) covariance of the parameters, zero for those held fixed; null where F is not positive.
function parameterCovariance(F, free) {
  const part = Float64Array.from(free.flatMap((i) => free.map((j) => F[i * PARAMETERS + j])));
  const [few, out] = [inverse(part, free.length), zeros(PARAMETERS ** 2)];
  if (!few) return null;
  free.forEach((i, a) => free.forEach((j, b) => (out[i * PARAMETERS + j] = few[a * free.length + b])));
  return out;
}

const identity = (d) => Float64Array.from({ length: d * d }, (_, t) => (t % (d + 1) ? 0 : 1));
const range = (n) => Array.from({ length: n }, (_, i) => i);

// Spectra in units of their scatter over the fiducial boxes, which change no F; and that scatter.
function inUnits(x, fiducial, d) {
  const C = moments(x, range(fiducial), d).C;
  const scale = Float64Array.from({ length: d }, (_, i) => Math.sqrt(C[i * d + i]));
  return [x.map((v, t) => v / scale[t % d]), scale];
}

// The standard forecast of the mark a: its spectra, and F (5, 5) in units of the parameters; null where there is none.
function forecastOf(table, a, bins, steps, corrected = true) {
  const d = 3 * bins;
  const spectra = spectraOf(table, a, bins);
  const [x, scale] = inUnits(spectra, table.sizes[0], d);
  if (!scale.every((s) => s > 0)) return null;
  const now = information(x, table.sizes, table.sizes.map(range), identity(d), d, corrected);
  return now && { spectra, F: now.F.map((v, t) => v / (steps[Math.floor(t / 5)] * steps[t % 5])) };
}

// Mean log sigma (in steps) of the wanted parameters, and its gradient with respect to a: halves [A, B], each
// [fiducial rows, pairs], by turns choose W = C_A^-1 dmu_A^T and tell what these five numbers are worth. Without halves
// it is what all boxes claim at once, noise included. Null where a matrix is singular.
function lossOf(table, a, bins, { halves, wanted, free }) {
  const [d, sizes] = [3 * bins, table.sizes];
  const [x, scale] = inUnits(spectraOf(table, a, bins), sizes[0], d);
  if (!scale.every((s) => s > 0)) return null;
  const ways = [];
  for (const [A, B] of halves ? [halves, [halves[1], halves[0]]] : [[null, sizes.map(range)]]) {
    const before = A && information(x, sizes, A, identity(d), d, false);
    if (A && !before) return null;
    const W = A ? times(before.precision, transpose(before.dmu, 5, d), d, d, 5) : identity(d);
    const now = information(x, sizes, B, W, d, Boolean(A));
    if (!now) return null;
    ways.push({ before, now });
  }
  const F = zeros(25);
  for (const { now } of ways) now.F.forEach((v, t) => (F[t] += v / ways.length));
  const covariance = parameterCovariance(F, free);
  if (!covariance) return null;
  const [S, G] = [zeros(25), zeros(x.length)];
  let loss = 0;
  for (const i of wanted) {
    loss += Math.log(covariance[6 * i]) / 2 / wanted.length;
    for (let t = 0; t < 25; t++) {
      const [j, k] = [Math.floor(t / 5), t % 5];
      S[t] -= (covariance[5 * i + j] * covariance[5 * i + k]) / covariance[6 * i] / (2 * wanted.length * ways.length);
    }
  }
  for (const { before, now } of ways) {
    const onW = backToSpectra(now, S, G, sizes, d);
    if (!before) continue;
    const X = times(before.precision, onW, d, d, 5);
    const Wt = transpose(now.W, d, 5);
    covarianceBack(
      times(X, Wt, d, 5, d).map((v) => -v),
      before.away,
      before.half[0],
      G,
      d,
    );
    const N = before.half[1].length;
    derivativesBack((n, t) => X[(t % d) * 5 + Math.floor(t / d)] / N, before.half[1], G, sizes, d);
  }
  G.forEach((v, t) => (G[t] = v / scale[t % d]));
  return { loss, gradient: backToCoefficients(table, a, G, bins) };
}

// Random numbers that are the same everywhere, and a division of boxes into halves by them.
function random(seed) {
  let s = seed >>> 0;
  return () => {
    s = (s + 0x6d2b79f5) >>> 0;
    let t = Math.imul(s ^ (s >>> 15), 1 | s);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function halvesOf(sizes, draw) {
  const parts = sizes.map((n) => {
    const order = range(n);
    for (let i = n - 1; i > 0; i--) {
      const j = Math.floor(draw() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return [order.slice(0, n >> 1), order.slice(n >> 1)];
  });
  return [0, 1].map((side) => parts.map((part) => part[side]));
}

// Steps of Adam on the errors, from coefficients c of unit scatter; yields { step, c, loss }, c null where it is lost.
function* finish(table, c, bins, { wanted, free, steps, naive = false, rate = 0.03, seed = 1 }) {
  let [x, m, v, draw] = [Float64Array.from(c), zeros(c.length), zeros(c.length), random(seed)];
  const scatter = () => {
    const mean = x.reduce((s, y) => s + y, 0) / x.length;
    return Math.sqrt(x.reduce((s, y) => s + (y - mean) ** 2, 0) / (x.length - 1));
  };
  for (let step = 0; step <= steps; step++) {
    const size = scatter();
    const now = x.map((y) => y / size);
    const halves = naive ? null : halvesOf(table.sizes, draw);
    const found = size > 0 ? lossOf(table, [0, ...now], bins, { halves, wanted, free }) : null;
    if (!found) return yield { step, c: null, loss: NaN };
    yield { step, c: now, loss: found.loss };
    const pace = (rate * (1 + Math.cos((Math.PI * step) / steps))) / 2;
    for (let i = 0; i < x.length; i++) {
      const g = found.gradient[i + 1] / size;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      x[i] -= (pace * (m[i] / (1 - 0.9 ** (step + 1)))) / (Math.sqrt(v[i] / (1 - 0.999 ** (step + 1))) + 1e-8);
    }
  }
}
