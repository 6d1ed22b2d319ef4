// The status page: shows what /stream sends. Text of the job gets into the page as text only
// (textContent), never as HTML.
"use strict";

const ROW_PX = 32, LANE_PX = 30, MOST_EVENTS = 1000, SHOWN_EVENTS = 300;
const MARKS = {
  failure: "failure", arrival: "node came", departure: "node left", checkpoint: "checkpoint", end: "end",
};
const STATE = 3, LINE = 10, LAST_KNOWN = 11, REPORTED = 14;
const COLUMNS = [
  { name: "Rank", at: 0, number: true },
  { name: "Host", at: 2, wide: true },
  { name: "State", at: 3 },
  { name: "Step", at: 6, number: true, optional: true, wide: true },
  { name: "Steps/s", at: 7, number: true, optional: true, wide: true, text: (v) => v.toPrecision(3) },
  { name: "CPU", at: 8, number: true, optional: true, wide: true, text: (v) => `${Math.round(v * 100)} %` },
  { name: "Memory", at: 9, number: true, optional: true, wide: true, text: bytes },
  { name: "GPU", at: 12, number: true, optional: true, wide: true, text: (v) => `${Math.round(v * 100)} %` },
  { name: "GPU mem", at: 13, number: true, optional: true, wide: true, text: bytes },
  { name: "PID", at: 5, number: true, wide: true },
  { name: "Reported", at: REPORTED, optional: true, wide: true },
  { name: "Last line", at: LINE, last: true },
];
const USED = new Set([6, 7, 8, 9]);

const page = {
  look: { job: null, lanes: [], generations: [], failures: [], goodput: null,
    phases: {}, charts: [], actions: [] },
  ranks: new Map(), events: [], rows: [], drawn: new Map(), current: null,
  sort: { at: 0, down: false }, received: 0, seen: false, locked: false,
  token: takeToken(),
};
const el = (id) => document.getElementById(id);

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return given || sessionStorage.getItem("token") || "";
}

// Elements and texts.

function make(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function duration(s) {
  if (!(s >= 0)) return "–";
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit += 1; }
  return `${n < 10 && unit ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

function clock(at, withDay) {
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  if (withDay) Object.assign(options, { month: "short", day: "numeric" });
  return new Date(at * 1000).toLocaleString(undefined, options);
}

function time(at) {
  const made = make("time", clock(at));
  made.dateTime = new Date(at * 1000).toISOString();
  made.title = clock(at, true);
  return made;
}

const phaseName = (phase) => page.look.phases[phase] || phase;

function slug(phase) {
  return `p-${phase in page.look.phases ? phase.replace("_", "-") : "unknown"}`;
}

const known = (value) => value !== null && value !== undefined;
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// The clock of the server, which the job's times are of.
function now() {
  const job = page.look.job;
  if (!job) return 0;
  return job.over ? job.taken : job.taken + (performance.now() - page.received) / 1000;
}

// What comes in.

// An EventSource can't send the token, and an address is no place for it.
function ask(what, options) {
  const headers = page.token ? { Authorization: `Bearer ${page.token}` } : {};
  return fetch(what, { ...options, headers });
}

async function connect() {
  for await (const message of messages()) {
    try {
      take(message);
    } catch (error) {
      reportError(error);
    }
  }
  const job = page.look.job;
  if (page.locked) {
    link("off", "no access");
  } else if (job && job.over) {
    link("", "the job is over");
  } else {
    link("off", page.seen ? "no connection; trying again" : "can't connect; trying again");
    setTimeout(connect, 2000);
  }
}

// The messages of /stream, until the connection breaks.
async function* messages() {
  try {
    const answer = await ask("stream");
    lock(answer.status === 401);
    if (!answer.ok) return;
    link("live", "live");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
      }
    }
  } catch {
    // No connection.
  }
}

function lock(locked) {
  page.locked = locked;
  document.body.classList.toggle("locked", locked);
  el("unlock").hidden = !locked;
  if (!locked) return;
  document.title = "relight";
  set(el("state"), "locked");
  set(el("unlock-why"), page.token ? "This is not the token of this page." : "");
  el("token").focus();
}

function unlock(event) {
  event.preventDefault();
  page.token = el("token").value.trim();
  sessionStorage.setItem("token", page.token);
  connect();
}

function link(name, text) {
  el("link").className = `link ${name}`;
  set(el("link"), text);
}

function take(news) {
  if (news.full) {
    page.ranks.clear();
    page.events = [];
  }
  if (news.job) page.received = performance.now();
  for (const name of Object.keys(page.look)) {
    if (name in news) page.look[name] = news[name];
  }
  for (const row of news.ranks || []) page.ranks.set(row[0], row);
  for (const rank of news.gone || []) page.ranks.delete(rank);
  if (news.events) page.events = page.events.concat(news.events).slice(-MOST_EVENTS);
  page.seen = true;
  showJob();
  if (news.full || news.lanes || news.generations) showGenerations();
  if (news.full || news.charts) showCharts();
  showTimeline();
  if (news.full || news.failures) showFailures();
  if (news.full || news.ranks || news.gone) chooseRows();
  if (news.full || news.goodput) showGoodput();
  if (news.full || news.events) showEvents();
}

// The head.

function showJob() {
  const job = page.look.job;
  document.title = `${job.shown_state} · ${job.name} · relight`;
  set(el("name"), job.name);
  set(el("state"), job.shown_state);
  el("state").dataset.state = job.shown_state;
  set(el("command"), job.command);
  set(el("place"), `${job.id} on ${job.host}${job.directory ? `, in ${job.directory}` : ""}`);
  const notice = el("notice");
  notice.hidden = !job.notice;
  notice.className = `notice ${job.mood}`;
  set(notice, job.notice);
  const may = Boolean(page.token) && page.look.actions.length > 0;
  el("actions").hidden = !may || job.over;
  el("read-only").hidden = may;
  showTiles();
}

function showTiles() {
  const job = page.look.job, put = page.look.goodput;
  const tiles = [
    [job.over ? "Ran for" : "Running for", duration(now() - job.started), ""],
    ["Generation", job.generation < 0 ? "none yet" : String(job.generation), ""],
    ["Restarts", String(job.restart), job.max_restarts ? `of ${job.max_restarts}` : ""],
    ["Ranks", String(job.world_size), `on ${many(job.nodes, "node")}`],
  ];
  if (put && put.share !== null) tiles.push(["Goodput", `${(put.share * 100).toFixed(1)} %`, put.is_most ? "at most" : ""]);
  if (known(job.step)) tiles.push(["Step", String(job.step), stepNote(job)]);
  if (known(job.remaining_s)) tiles.push(["Time left", about(job.remaining_s), `until ${moment(now() + job.remaining_s)}`]);
  const list = el("tiles");
  while (list.children.length > tiles.length) list.lastChild.remove();
  tiles.forEach(([name, value, more], n) => {
    let tile = list.children[n];
    if (!tile) {
      tile = make("div");
      const dd = make("dd");
      dd.append(make("span"), " ", make("small"));
      tile.append(make("dt"), dd);
      list.append(tile);
    }
    set(tile.firstChild, name);
    set(tile.querySelector("span"), value);
    set(tile.querySelector("small"), more);
  });
}

function stepNote(job) {
  if (known(job.total)) return `of ${job.total}`;
  if (job.over) return "last known";
  return job.rate ? `${job.rate.toPrecision(3)} /s` : "";
}

// A moment to come, to the minute.
function moment(at) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (at - now() > 43200) Object.assign(options, { month: "short", day: "numeric" });
  return new Date(at * 1000).toLocaleString(undefined, options);
}

// Numbers over time: a line for each, with gaps where nothing is known.

function showCharts() {
  const charts = page.look.charts.filter(([, , , values]) => values.some((value) => value !== null));
  el("chart-part").hidden = !charts.length;
  el("charts").replaceChildren(...charts.map(([name, , every, values]) => {
    const made = make("div"), shown = values.filter((value) => value !== null);
    const low = Math.min(...shown), high = Math.max(...shown);
    const range = `${short(low)} to ${short(high)} in ${about(values.length * every)}`;
    const dd = make("dd", short(shown.at(-1)));
    const line = sparkline(values, low, high);
    line.setAttribute("aria-label", `${name} over time, from ${range}`);
    made.append(make("dt", name), dd, line, make("small", range));
    return made;
  }));
}

// A duration without seconds that do not matter.
function about(s) {
  return s < 600 ? duration(Math.round(s)) : duration(60 * Math.round(s / 60)).replace(/ 0 (s|min|h)$/, "");
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

const CHART_WIDTH = 240, CHART_HEIGHT = 44;  // as in index.html

function sparkline(values, low, high) {
  const svg = el("sparkline").content.firstChild.cloneNode(true);
  const x = (n) => (values.length < 2 ? CHART_WIDTH : (n / (values.length - 1)) * CHART_WIDTH).toFixed(1);
  const y = (value) => (high === low ? CHART_HEIGHT / 2 : CHART_HEIGHT - 3 - ((value - low) / (high - low)) * (CHART_HEIGHT - 6)).toFixed(1);
  for (const part of parts(values)) {
    const points = part.map(([n, value]) => `${x(n)},${y(value)}`);
    const ends = [part[0][0], part.at(-1)[0]].map(x);
    const area = `${ends[0]},${CHART_HEIGHT} ${points.join(" ")} ${ends[1]},${CHART_HEIGHT}`;
    if (part.length === 1) points.push(`${Number(ends[0]) + 0.1},${y(part[0][1])}`);
    const [polygon, polyline] = el("stretch").content.firstChild.cloneNode(true).children;
    polygon.setAttribute("points", area);
    polyline.setAttribute("points", points.join(" "));
    svg.append(polygon, polyline);
  }
  return svg;
}

// The stretches of known values, as pairs of place and value.
function parts(values) {
  const found = [];
  values.forEach((value, n) => {
    if (value === null) return;
    if (n === 0 || values[n - 1] === null) found.push([]);
    found.at(-1).push([n, value]);
  });
  return found;
}

// The timeline: a lane a node, of which only those in view are in the document.

function showTimeline() {
  const job = page.look.job, lanes = page.look.lanes;
  if (!job) return;
  const until = now(), wanted = Number(el("range").value);
  const from = wanted ? Math.max(job.started, until - wanted) : job.started;
  const span = Math.max(until - from, 1);
  const box = el("lanes");
  box.setAttribute("aria-label", summary(lanes));
  set(el("lane-count"), many(lanes.length, "node"));
  const height = lanes.length * LANE_PX;
  const first = Math.max(0, Math.floor(box.scrollTop / LANE_PX) - 2);
  const last = Math.min(lanes.length, first + Math.ceil(300 / LANE_PX) + 4);
  const space = (px) => { const made = make("div"); made.style.height = `${px}px`; return made; };
  const shown = [space(first * LANE_PX)];
  for (let n = first; n < last; n += 1) shown.push(lane(lanes[n], from, span, until));
  shown.push(space(height - last * LANE_PX));
  box.replaceChildren(...shown);
  showAxis(from, span);
  showLegend(lanes);
}

function lane(each, from, span, until) {
  const made = make("div", undefined, "lane"), track = make("div", undefined, "track");
  const name = make("span", each.name);
  name.title = each.name;
  const place = (at) => Math.min(100, Math.max(0, ((at - from) / span) * 100));
  let before = null;
  for (const [generation, phase, begin, end] of each.bars) {
    const to = end === null ? until : end;
    if (to < from) continue;
    const bar = make("i", undefined, slug(phase));
    if (before !== null && before !== generation) bar.classList.add("edge");
    before = generation;
    bar.style.left = `${place(begin)}%`;
    bar.style.width = `${place(to) - place(begin)}%`;
    bar.title = `generation ${generation}: ${phaseName(phase)}, ${duration(to - begin)}`;
    track.append(bar);
  }
  for (const [at, kind, text] of each.marks) {
    if (at < from) continue;
    const mark = make("b", undefined, `m-${kind}`);
    mark.style.left = `${place(at)}%`;
    mark.title = `${clock(at)}: ${text}`;
    track.append(mark);
  }
  made.append(name, track);
  return made;
}

function summary(lanes) {
  const marks = lanes.flatMap((each) => each.marks.map((mark) => mark[1]));
  const failures = marks.filter((kind) => kind === "failure").length;
  return `Timeline of ${many(lanes.length, "node")}: ${many(page.look.generations.length, "generation")}, `
    + `${many(failures, "failure")}. The table of generations below says the same.`;
}

function showAxis(from, span) {
  const width = el("axis").clientWidth || 600, most = Math.max(2, Math.floor(width / 110));
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const step = steps.find((each) => span / each <= most) || 2592000;
  const ticks = [];
  const room = (70 / width) * span;  // for the text of the last one
  for (let at = Math.ceil(from / step) * step; at <= from + span - room; at += step) {
    const tick = make("span", span > 86400 ? clock(at, true) : clock(at));
    tick.style.left = `${((at - from) / span) * 100}%`;
    ticks.push(tick);
  }
  el("axis").replaceChildren(...ticks);
}

function showLegend(lanes) {
  const phases = new Set(lanes.flatMap((each) => each.bars.map((bar) => bar[1])));
  const kinds = new Set(lanes.flatMap((each) => each.marks.map((mark) => mark[1])));
  const key = [...phases, "|", ...kinds].join();
  if (el("legend").dataset.key === key) return;
  el("legend").dataset.key = key;
  const items = Object.keys(page.look.phases).filter((each) => phases.has(each)).map((phase) => {
    const item = make("li");
    item.append(make("i", undefined, slug(phase)), phaseName(phase));
    return item;
  });
  for (const kind of Object.keys(MARKS).filter((each) => kinds.has(each))) {
    const item = make("li");
    item.append(make("b", undefined, `m-${kind}`), MARKS[kind]);
    items.push(item);
  }
  el("legend").replaceChildren(...items);
}

function showGenerations() {
  const rows = page.look.generations.slice().reverse().map((each) => {
    const row = make("tr"), began = make("td");
    began.append(time(each.began));
    row.append(make("td", String(each.number), "number"), began,
      make("td", duration((each.ended === null ? now() : each.ended) - each.began), "number"),
      make("td", String(each.nodes), "number"), make("td", String(each.ranks), "number"),
      make("td", each.cause));
    return row;
  });
  el("generations").replaceChildren(...rows);
}

function showFailures() {
  const items = page.look.failures.slice().reverse().map((each) => {
    const item = make("li");
    const [first, ...rest] = each.text.split("\n");
    item.append(time(each.at), first);
    if (rest.length) item.append(make("pre", rest.join("\n")));
    return item;
  });
  el("failure-part").hidden = !items.length;
  el("failures").replaceChildren(...items);
}

// The table of ranks: sorted, filtered, and only the rows in view are in the document.

function columns() {
  return COLUMNS.filter((column) => !column.optional
    || [...page.ranks.values()].some((row) => known(row[column.at])));
}

function chooseRows() {
  const words = el("find").value.toLowerCase().split(/\s+/).filter(Boolean), state = el("states").value;
  const states = new Set();
  page.rows = [...page.ranks.values()].filter((row) => {
    const kind = row[STATE].split(" ")[0];
    states.add(kind);
    if (state && kind !== state) return false;
    const text = `rank:${row[0]} ${row[2]} ${row[STATE]} ${row[REPORTED] || ""} ${row[LINE]}`.toLowerCase();
    return words.every((word) => (/^rank:\d+$/.test(word) ? text.startsWith(`${word} `) : text.includes(word)));
  });
  const { at, down } = page.sort, sign = down ? -1 : 1;
  page.rows.sort((a, b) => sign * compare(a[at], b[at]) || a[0] - b[0]);
  showStates(states);
  const all = page.ranks.size, found = page.rows.length;
  el("old-values").hidden = ![...page.ranks.values()].some((row) => row[LAST_KNOWN]);
  set(el("count"), found === all ? many(all, "rank") : `${found} of ${many(all, "rank")}`);
  showHeads();
  showRows();
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
}

function showStates(states) {
  const select = el("states"), chosen = select.value;
  const names = ["", ...[...states, ...(chosen ? [chosen] : [])].sort()].filter((each, n, all) => all.indexOf(each) === n);
  if (select.dataset.key === names.join()) return;
  select.dataset.key = names.join();
  select.replaceChildren(...names.map((name) => new Option(name || "all", name)));
  select.value = chosen;
}

function showHeads() {
  const shown = columns(), key = shown.map((column) => column.name).join() + JSON.stringify(page.sort);
  const heads = el("rank-heads");
  if (heads.dataset.key === key) return;
  heads.dataset.key = key;
  const focused = document.activeElement && document.activeElement.dataset.column;
  heads.replaceChildren(...shown.map((column) => {
    const head = make("th", undefined, `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`);
    head.scope = "col";
    const button = make("button", column.name);
    button.type = "button";
    button.dataset.column = column.name;
    button.addEventListener("click", () => {
      page.sort = { at: column.at, down: page.sort.at === column.at && !page.sort.down };
      chooseRows();
    });
    if (page.sort.at === column.at) head.setAttribute("aria-sort", page.sort.down ? "descending" : "ascending");
    head.append(button);
    return head;
  }));
  if (focused) heads.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
}

function showRows() {
  const box = el("rank-scroll"), shown = columns(), count = page.rows.length;
  const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW_PX) - 8, count - 1));
  const last = Math.min(count, first + Math.ceil((box.clientHeight || 560) / ROW_PX) + 16);
  el("rank-table").setAttribute("aria-rowcount", String(count + 1));
  const body = el("rank-rows"), focused = document.activeElement?.dataset?.rank;
  const inView = page.rows.slice(Math.max(0, first), last);
  const entry = inView.some((row) => row[0] === page.current)
    ? page.current : inView[Math.max(0, Math.floor(box.scrollTop / ROW_PX) - first)]?.[0];
  const drawn = new Map();
  inView.forEach((row, n) => {
    const made = rankRow(row, first + n, shown, page.drawn.get(row[0]));
    made.row.querySelector("button").tabIndex = row[0] === entry ? 0 : -1;
    drawn.set(row[0], made);
  });
  const same = drawn.size === page.drawn.size && [...drawn.keys()].join() === [...page.drawn.keys()].join();
  page.drawn = drawn;
  const rows = [...drawn.values()].map((made) => made.row);
  if (!same || rows.some((row) => !row.isConnected) || !body.firstChild) {
    body.replaceChildren(space(first, shown.length), ...rows, space(count - last, shown.length));
    if (focused !== undefined) body.querySelector(`[data-rank="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  } else {
    body.firstChild.replaceWith(space(first, shown.length));
    body.lastChild.replaceWith(space(count - last, shown.length));
  }
}

// One rank is reached by Tab, the others from it by the arrow keys: 1,000 are no way to what follows.
function moveFocus(event) {
  const at = page.rows.findIndex((row) => String(row[0]) === event.target.dataset?.rank);
  const box = el("rank-scroll"), inView = Math.max(1, Math.floor(box.clientHeight / ROW_PX) - 2);
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + inView, PageUp: at - inView, Home: 0, End: Infinity };
  if (at < 0 || !(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const next = Math.max(0, Math.min(page.rows.length - 1, moves[event.key]));
  const rank = page.rows[next][0];
  page.current = rank;
  const top = next * ROW_PX, room = box.clientHeight - el("rank-heads").offsetHeight - ROW_PX;
  box.scrollTop = Math.min(top, Math.max(box.scrollTop, top - room));
  showRows();
  page.drawn.get(rank)?.row.querySelector("button").focus({ preventScroll: true });
}

function space(rows, span) {
  const row = make("tr", undefined, "space"), cell = make("td");
  row.setAttribute("aria-hidden", "true");
  cell.colSpan = span;
  cell.style.height = `${Math.max(0, rows) * ROW_PX}px`;
  row.append(cell);
  return row;
}

// Makes the row of a rank, or changes the one that is there: it keeps the focus, and is not read again.
function rankRow(row, n, shown, before) {
  const names = shown.map((column) => column.name).join(), same = before?.names === names ? before : null;
  const made = same ? same.row : make("tr");
  made.setAttribute("aria-rowindex", String(n + 2));
  shown.forEach((column, at) => {
    if (same && [column.at, LAST_KNOWN].every((each) => same.values[each] === row[each])) return;
    let cell = made.children[at];
    if (!cell) {
      cell = make(column.at === 0 ? "th" : "td", undefined, `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`);
      made.append(cell);
    }
    fill(cell, column, row);
  });
  return { row: made, values: row, names };
}

function fill(cell, column, row) {
  const value = row[column.at];
  if (column.at === 0) {
    if (cell.firstChild) return;
    cell.scope = "row";
    const button = make("button", String(value));
    button.type = "button";
    button.dataset.rank = String(value);
    button.setAttribute("aria-label", `Output of rank ${value}`);
    button.addEventListener("click", () => openOutput(value));
    button.addEventListener("focus", () => { page.current = value; });
    cell.append(button);
  } else if (column.at === STATE) {
    const badge = make("span", value, "badge");
    badge.dataset.state = value.split(" ")[0];
    cell.replaceChildren(badge);
  } else {
    const isOld = Boolean(row[LAST_KNOWN]) && USED.has(column.at) && known(value);
    cell.textContent = !known(value) ? "" : column.text ? column.text(value) : String(value);
    cell.classList.toggle("old", isOld);
    cell.title = isOld ? `last known, at ${clock(row[LAST_KNOWN])}` : "";
    if (isOld) cell.append(make("span", " (last known)", "unseen"));
  }
  if (column.last) {
    cell.classList.add("last");
    cell.title = value;
  }
}

// Goodput and events.

function showGoodput() {
  const put = page.look.goodput;
  el("goodput-part").hidden = !put;
  if (!put) return;
  const parts = Object.entries(put.phases).filter(([, s]) => s > 0);
  const total = parts.reduce((sum, [, s]) => sum + s, 0) || 1;
  el("goodput-bar").replaceChildren(...parts.map(([phase, s]) => {
    const part = make("i", undefined, slug(phase));
    part.style.width = `${(s / total) * 100}%`;
    part.title = `${phaseName(phase)}: ${duration(s)}`;
    return part;
  }));
  const term = (name, text, phase) => {
    const made = make("div"), dt = make("dt");
    if (phase) dt.append(make("i", undefined, slug(phase)));
    dt.append(name);
    made.append(dt, make("dd", text));
    return made;
  };
  const list = parts.map(([phase, s]) => term(phaseName(phase), `${duration(s)} · ${((s / total) * 100).toFixed(1)} %`, phase));
  if (put.mttr !== null) list.push(term("mean time to recovery", duration(put.mttr)));
  if (put.mtbf !== null) list.push(term("mean time between failures", duration(put.mtbf)));
  el("goodput-parts").replaceChildren(...list);
}

function showEvents() {
  const box = el("event-scroll");
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  const words = el("event-find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = el("event-internal").checked;
  const found = page.events.filter((each) => all || !each.internal).filter((each) => {
    const text = `${each.event} ${each.text}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  el("events").replaceChildren(...found.slice(-SHOWN_EVENTS).map((each) => {
    const item = make("li");
    item.append(time(each.at), make("strong", each.event), page.look.lanes.length > 1 ? `${each.node}: ` : "", each.text);
    return item;
  }));
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// Sheets: the output of a rank, and stacks. What acts on the job.

let again = () => {};

function openSheet(title, choice, load) {
  set(el("sheet-title"), title);
  el("sheet-choice").hidden = !choice;
  again = async () => {
    set(el("sheet-text"), "loading …");
    el("sheet-text").setAttribute("aria-busy", "true");
    try {
      set(el("sheet-text"), (await load()) || "nothing");
    } catch {
      set(el("sheet-text"), "no connection to this page's server");
    }
    el("sheet-text").setAttribute("aria-busy", "false");
    el("sheet-text").scrollTop = choice ? el("sheet-text").scrollHeight : 0;
  };
  again();
  if (!el("sheet").open) el("sheet").showModal();
}

function openOutput(rank) {
  openSheet(`Output of rank ${rank}`, true, async () => {
    const stream = el("sheet-stream").value;
    return (await ask(`output?rank=${rank}&stream=${stream}`)).text();
  });
}

async function act(name) {
  return (await ask(name, { method: "POST" })).text();
}

function redraw() {
  showTimeline();
  showRows();
}

el("unlock").addEventListener("submit", unlock);
el("take-stacks").addEventListener("click", () => openSheet("Stacks", false, () => act("stacks")));
el("cancel").addEventListener("click", () => el("ask").showModal());
el("ask-no").addEventListener("click", () => el("ask").close());
el("ask-yes").addEventListener("click", () => {
  el("ask").close();
  openSheet("Cancel", false, () => act("cancel"));
});
el("sheet-close").addEventListener("click", () => el("sheet").close());
el("sheet-again").addEventListener("click", () => again());
el("sheet-stream").addEventListener("change", () => again());
el("find").addEventListener("input", chooseRows);
el("states").addEventListener("change", chooseRows);
el("event-find").addEventListener("input", showEvents);
el("event-internal").addEventListener("change", showEvents);
el("range").addEventListener("change", showTimeline);
el("rank-scroll").addEventListener("scroll", showRows, { passive: true });
el("rank-scroll").addEventListener("keydown", moveFocus);
el("lanes").addEventListener("scroll", showTimeline, { passive: true });
addEventListener("resize", redraw);
addEventListener("hashchange", () => {
  page.token = takeToken();
  if (page.locked) connect();
});
connect();
