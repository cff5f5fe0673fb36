"use strict";
// The concept graph: pan, zoom, search, colours. Plain canvas; the data lies in the page as JSON; text goes in as text only.
(function () {
  const source = document.getElementById("graph-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const canvas = document.getElementById("graph-canvas"), info = document.getElementById("graph-info");
  const search = document.getElementById("graph-search"), colour = document.getElementById("graph-colour"), legend = document.getElementById("graph-legend");
  const pen = canvas.getContext("2d");
  const nodes = data.nodes, style = getComputedStyle(document.documentElement);
  const domainColour = (d) => style.getPropertyValue("--" + d).trim() || "#59636e";
  const children = nodes.map(() => []), parents = nodes.map(() => []);
  for (const [a, b] of data.edges) { children[a].push(b); parents[b].push(a); }
  const branches = [...new Set(nodes.map((n) => n.b))];
  // Neighbouring branches get distant hues: the golden angle.
  const branchColour = new Map(branches.map((b, i) => [b, `hsl(${(i * 137.508) % 360} 45% 42%)`]));
  // Light to dark in one hue, readable without telling hues apart; nothing to show is grey.
  const NOTHING = "#b9c0c7", ramp = (share) => `hsl(213 ${35 + 45 * share}% ${74 - 50 * share}%)`;
  const deepest = Math.max(1, ...nodes.map((n) => n.l)), most = Math.max(1, ...nodes.map((n) => n.c));
  const shares = {
    level: (n) => n.l / deepest,
    coverage: (n) => (n.c ? Math.log1p(n.c) / Math.log1p(most) : null),
    yield: (n) => (n.c ? n.p / n.c : null),
  };
  const paint = (n) => {
    if (colour.value === "branch") return branchColour.get(n.b);
    if (!(colour.value in shares)) return domainColour(n.d);
    const share = shares[colour.value](n);
    return share === null ? NOTHING : ramp(share);
  };
  let scale = 1, dx = 0, dy = 0, chosen = -1, over = -1, matches = new Set(), frame = 0;

  const size = () => ({ w: canvas.clientWidth, h: canvas.clientHeight });
  // A wide box is filled with an ellipse, but never one so flat that rings are hard to see.
  const units = () => { const { w, h } = size(), y = h / 2 - 14, x = w / 2 - 14; return { x: Math.min(x, y * 1.5), y: Math.min(y, x * 1.5) }; };
  const place = (n) => { const u = units(); return { x: size().w / 2 + dx + n.x * u.x * scale, y: size().h / 2 + dy + n.y * u.y * scale }; };
  const radius = (n) => (n.s ? 6 : 2.6) + Math.min(5, Math.sqrt(n.p) * 1.1) + Math.min(2, scale / 4);

  function draw() {
    frame = 0;
    const { w, h } = size(), ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio); }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, w, h);
    const at = nodes.map(place), near = new Set();
    const focus = over >= 0 ? over : chosen;
    if (focus >= 0) { near.add(focus); for (const i of children[focus]) near.add(i); for (const i of parents[focus]) near.add(i); }
    for (const strong of [false, true]) {
      pen.beginPath();
      for (const [a, b] of data.edges) {
        if ((a === focus || b === focus) !== strong) continue;
        pen.moveTo(at[a].x, at[a].y); pen.lineTo(at[b].x, at[b].y);
      }
      pen.strokeStyle = strong ? "#1d2329" : "rgba(89,99,110,.22)"; pen.lineWidth = strong ? 1.4 : 1; pen.stroke();
    }
    const faded = matches.size > 0;
    nodes.forEach((n, i) => {
      const p = at[i];
      if (p.x < -20 || p.y < -20 || p.x > w + 20 || p.y > h + 20) return;
      pen.globalAlpha = faded && !matches.has(i) && !near.has(i) ? 0.18 : 1;
      pen.beginPath(); pen.arc(p.x, p.y, radius(n), 0, 7);
      pen.fillStyle = n.t ? "#ffffff" : paint(n); pen.fill();
      pen.strokeStyle = n.t ? paint(n) : "#ffffff"; pen.lineWidth = n.t ? 1.6 : 1; pen.stroke();
      if (i === chosen) { pen.beginPath(); pen.arc(p.x, p.y, radius(n) + 3.5, 0, 7); pen.strokeStyle = "#1d2329"; pen.lineWidth = 2; pen.stroke(); }
    });
    pen.globalAlpha = 1;
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.lineJoin = "round";
    const taken = [];
    const order = nodes.map((_, i) => i).sort((a, b) => (near.has(b) - near.has(a)) || (matches.has(b) - matches.has(a)) || (nodes[a].l - nodes[b].l) || (nodes[b].p - nodes[a].p));
    for (const i of order) {
      const n = nodes[i], p = at[i];
      if (!(n.s || near.has(i) || (faded && matches.has(i)) || scale > 1.2 + n.l * 0.6)) continue;
      if (p.x < 0 || p.y < 0 || p.x > w || p.y > h) continue;
      const text = n.n.length > 30 ? n.n.slice(0, 29) + "…" : n.n, width = pen.measureText(text).width;
      const gap = radius(n) + 4, x = p.x + gap + width > w - 2 ? Math.max(2, p.x - gap - width) : p.x + gap;
      const box = [x, p.y - 8, x + width, p.y + 8];
      if (i !== focus && taken.some((t) => box[0] < t[2] && box[2] > t[0] && box[1] < t[3] && box[3] > t[1])) continue;
      taken.push(box);
      pen.strokeStyle = "rgba(255,255,255,.92)"; pen.lineWidth = 4; pen.strokeText(text, x, p.y);
      pen.fillStyle = "#1d2329"; pen.fillText(text, x, p.y);
    }
  }
  const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };

  function element(name, text) { const e = document.createElement(name); if (text !== undefined) e.textContent = text; return e; }
  function list(title, ids) {
    const box = document.createDocumentFragment();
    if (!ids.length) return box;
    box.append(element("p", title + " (" + ids.length + ")"));
    const ul = element("ul");
    for (const i of ids.slice(0, 12)) { const li = element("li"), b = element("button", nodes[i].n); b.type = "button"; b.addEventListener("click", () => choose(i, true)); li.append(b); ul.append(li); }
    if (ids.length > 12) ul.append(element("li", "and " + (ids.length - 12) + " more"));
    box.append(ul);
    return box;
  }
  function choose(i, centre) {
    chosen = i;
    const n = nodes[i];
    if (centre) { scale = Math.max(scale, 2.2); dx = -n.x * units().x * scale; dy = -n.y * units().y * scale; }
    info.replaceChildren(element("h3", n.n));
    if (n.a) info.append(element("p", "also: " + n.a));
    const names = { node: nodes.find((m) => m.b === n.b && m.l <= 1) };
    info.append(element("p", `${n.d}, level ${n.l}${n.s ? ", a seed" : ""}${n.t ? ", an atom" : ""}; branch ${names.node ? names.node.n : n.b}`));
    info.append(element("p", `${n.p} published of ${n.c} candidate tasks`));
    if (n.r) info.append(element("p", n.r));
    info.append(list("Broader", parents[i]), list("Narrower", children[i]));
    redraw();
  }
  function showMatches() {
    const words = search.value.trim().toLowerCase();
    matches = new Set();
    if (words) nodes.forEach((n, i) => { if ((n.n + " " + n.a).toLowerCase().includes(words)) matches.add(i); });
    if (words) { info.replaceChildren(list("Found", [...matches])); if (!matches.size) info.replaceChildren(element("p", "No concept of that name.")); }
    redraw();
  }
  function showLegend() {
    legend.replaceChildren();
    const scales = {
      level: () => [...Array(deepest + 1).keys()].map((l) => ["level " + l, ramp(l / deepest)]),
      coverage: () => [["no candidate task", NOTHING], ["1", ramp(Math.log1p(1) / Math.log1p(most))], [most + " candidates", ramp(1)]],
      yield: () => [["no candidate task", NOTHING], ...[0, 0.5, 1].map((y) => [y * 100 + " % published", ramp(y)])],
    };
    const entries = colour.value in scales ? scales[colour.value]() : colour.value === "domain" ? [...new Set(nodes.map((n) => n.d))].map((d) => [d, domainColour(d)])
      : branches.length > 12 ? [] : branches.map((b) => { const top = nodes.find((n) => n.b === b); return [top ? top.n.slice(0, 40) : b, branchColour.get(b)]; });
    for (const [name, c] of entries) { const s = element("span"), dot = element("i"); dot.style.background = c; s.append(dot, name); legend.append(s); }
    if (!entries.length) legend.textContent = branches.length + " branches, neighbours in different hues.";
  }
  function hit(x, y) {
    let best = -1, least = 14;
    nodes.forEach((n, i) => { const p = place(n), d = Math.hypot(p.x - x, p.y - y) - radius(n); if (d < least) { least = d; best = i; } });
    return best;
  }
  function zoom(by, x, y) {
    const { w, h } = size(), next = Math.min(40, Math.max(0.6, scale * by)), k = next / scale;
    const cx = (x ?? w / 2) - w / 2, cy = (y ?? h / 2) - h / 2;
    dx = cx - (cx - dx) * k; dy = cy - (cy - dy) * k; scale = next; redraw();
  }
  const reset = () => { scale = 1; dx = dy = 0; chosen = over = -1; search.value = ""; matches = new Set(); info.replaceChildren(element("p", "Point at or tap a concept to read about it.")); redraw(); };

  const fingers = new Map();
  let moved = 0, apart = 0;
  const local = (e) => { const r = canvas.getBoundingClientRect(); return { x: e.clientX - r.left, y: e.clientY - r.top }; };
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, local(e)); moved = 0; apart = 0; });
  canvas.addEventListener("pointermove", (e) => {
    const p = local(e), was = fingers.get(e.pointerId);
    if (!was) { const i = e.pointerType === "mouse" ? hit(p.x, p.y) : -1; if (i !== over) { over = i; canvas.style.cursor = i >= 0 ? "pointer" : "grab"; redraw(); } return; }
    fingers.set(e.pointerId, p);
    moved += Math.hypot(p.x - was.x, p.y - was.y);
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()], d = Math.hypot(a.x - b.x, a.y - b.y);
      if (apart > 0) zoom(d / apart, (a.x + b.x) / 2, (a.y + b.y) / 2);
      apart = d;
    } else { dx += p.x - was.x; dy += p.y - was.y; redraw(); }
  });
  const lift = (e) => {
    const p = fingers.get(e.pointerId);
    fingers.delete(e.pointerId);
    if (e.type === "pointerup" && p && moved < 6) { const i = hit(p.x, p.y); if (i >= 0) choose(i, false); }
  };
  canvas.addEventListener("pointerup", lift); canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => { over = -1; redraw(); });
  // A bare wheel scrolls the page, as a reader expects; with Ctrl (or a pinch on a touchpad) it zooms.
  canvas.addEventListener("wheel", (e) => { if (!e.ctrlKey && !e.metaKey) return; e.preventDefault(); const p = local(e); zoom(Math.exp(-e.deltaY * 0.003), p.x, p.y); }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const step = 40, keys = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (keys[e.key]) { dx += keys[e.key][0]; dy += keys[e.key][1]; redraw(); } else if (e.key === "+" || e.key === "=") zoom(1.3); else if (e.key === "-") zoom(1 / 1.3); else return;
    e.preventDefault();
  });
  document.getElementById("graph-in").addEventListener("click", () => zoom(1.4));
  document.getElementById("graph-out").addEventListener("click", () => zoom(1 / 1.4));
  document.getElementById("graph-reset").addEventListener("click", reset);
  search.addEventListener("input", showMatches);
  search.addEventListener("keydown", (e) => { if (e.key === "Enter" && matches.size) choose([...matches][0], true); });
  colour.addEventListener("change", () => { showLegend(); redraw(); });
  new ResizeObserver(redraw).observe(canvas);
  showLegend();
  redraw();
})();
