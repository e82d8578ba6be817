"use strict";
// The viewer: a filtered, virtual list of episodes beside the one that is read. Strings of episodes only ever become text
// nodes and attribute values, never markup. An episode's turns are unpacked when it is opened.
(() => {
  const ROW_HEIGHT = 56;
  const SPARE_ROWS = 8;
  const KEPT_CHUNKS = 24;
  const FACETS = [
    ["run", "run"],
    ["label", "policy"],
    ["kind", "kind"],
    ["split", "split"],
    ["type", "task type"],
    ["outcome", "outcome"],
    ["change", "change from SFT"],
    ["stop", "stop reason"],
  ];
  const NO_OUTCOME = ["env_error", "policy_error", "aborted"]; // such an episode is played again
  const DOUBT = [0.9, 0.7, 0.4, 0.15]; // a token less probable than these is shaded one degree darker

  const byId = (id) => document.getElementById(id);
  const [results, view, list, rows, detail] = ["results", "episodes", "list", "rows", "detail"].map(byId);
  const [search, facets, count, clear, help, theme] = ["search", "facets", "count", "clear", "help", "theme"].map(byId);

  let episodes = []; // one object per row of the index
  let perChunk = 1;
  let shown = []; // rows that pass the filters
  let open = null; // the row that is read
  let turnAt = -1; // and the turn
  let shading = "auto";
  let beside = null; // label and run of the policy whose episode of the same task is shown beside
  const sameTask = new Map(); // rows of evaluations by task, one of each policy
  const chunks = new Map(); // the newest last

  function el(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  async function turnsOf(row) {
    const at = Math.floor(row / perChunk);
    const chunk = chunks.get(at) ?? unpack(`chunk-${at}`);
    chunks.delete(at);
    chunks.set(at, chunk);
    if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
    return (await chunk)[row % perChunk];
  }

  const outcome = (episode) => (episode.won ? "won" : "not won");
  const probability = (p) => p.toFixed(3);
  const suite = (episode) => episode.log.replace(`${episode.label}-`, "");
  const taskKey = (episode) => [suite(episode), episode.task].join("\n");
  const policyName = (episode) => [episode.label, episode.run].join(" · ");

  /** Rows of other policies' evaluations of an episode's task, those of its own SFT policy first. */
  function others(row) {
    const episode = episodes[row];
    if (episode.kind !== "evaluation") return [];
    const rows = sameTask.get(taskKey(episode)).filter((other) => policyName(episodes[other]) !== policyName(episode));
    return rows.sort((a, b) => isStart(b, episode) - isStart(a, episode));
  }

  const isStart = (row, episode) =>
    episode.label !== "sft" && episodes[row].label === "sft" && episodes[row].run === episode.start;

  function changeFromSft(row) {
    const episode = episodes[row];
    if (episode.kind !== "evaluation") return "";
    const rows = sameTask.get(taskKey(episode));
    const start = rows.find((other) => isStart(other, episode));
    if (start === undefined || !rows.includes(row)) return "";
    if ([start, row].some((each) => NO_OUTCOME.includes(episodes[each].stop))) return "";
    const [before, after] = [episodes[start].won, episode.won];
    if (before === after) return after ? "still won" : "still not won";
    return after ? "newly won" : "won no more";
  }

  /** The row to show beside: the policy that was chosen last, with this episode's SFT policy if it has one like that. */
  function besideOf(row) {
    if (!beside) return null;
    const variant = (label, run) => [label, run.split("/").pop()].join("\n");
    const wanted = variant(beside.label, beside.run);
    const candidates = others(row).map((other) => [other, episodes[other]]);
    const found =
      candidates.find(([, { label, run, start }]) => variant(label, run) === wanted && start === episodes[row].start) ??
      candidates.find(([other]) => beside.label === "sft" && isStart(other, episodes[row])) ??
      candidates.find(([, { label, run }]) => label === beside.label && run === beside.run);
    return found ? found[0] : null;
  }

  // The list

  function fillFacets() {
    const candidates = episodes.filter((episode) => episode.side !== "chosen");
    for (const [name, label] of FACETS) {
      const counts = new Map();
      for (const episode of candidates) counts.set(episode[name], (counts.get(episode[name]) ?? 0) + 1);
      if (counts.size < 2) continue;
      const select = el("select", { "data-facet": name, "aria-label": label, onchange: filter });
      select.append(el("option", { value: "" }, `any ${label}`));
      [...counts].forEach(([value, n]) => select.append(el("option", { value }, `${value || "none"} (${n})`)));
      facets.append(select);
    }
  }

  function filter() {
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...facets.children].filter((select) => select.selectedIndex > 0);
    for (const select of facets.children) select.classList.toggle("set", select.selectedIndex > 0);
    shown = [];
    let all = 0;
    episodes.forEach((episode, row) => {
      if (episode.side === "chosen") return; // read beside its rejected one
      all += 1;
      const fits = chosen.every((select) => episode[select.dataset.facet] === select.value);
      if (fits && terms.every((term) => episode.haystack.includes(term))) shown.push(row);
    });
    const number = (n) => n.toLocaleString("en");
    count.textContent =
      shown.length === all ? `${number(all)} episodes` : `${number(shown.length)} of ${number(all)} episodes`;
    clear.hidden = shown.length === all && !terms.length && !chosen.length;
    rows.style.height = `${shown.length * ROW_HEIGHT}px`;
    list.scrollTop = 0;
    reveal();
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const last = Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + SPARE_ROWS;
    rows.replaceChildren(...shown.slice(first, last).map((row, i) => option(row, first + i)));
    const selected = byId(`row-${open}`);
    if (selected) list.setAttribute("aria-activedescendant", selected.id);
    else list.removeAttribute("aria-activedescendant");
  }

  function option(row, at) {
    const episode = episodes[row];
    const about = [
      episode.side ? `${episode.label} pair` : episode.label,
      episode.split,
      `${episode.turns} turns`,
      episode.type,
    ];
    const properties = {
      id: `row-${row}`,
      class: "row",
      role: "option",
      "aria-selected": String(row === open),
      "aria-setsize": shown.length,
      "aria-posinset": at + 1,
      onclick: () => go(row),
    };
    const node = el("div", properties, el("div", {}, episode.instruction || episode.task), el("div", { class: "about" },
      el("span", { class: episode.won ? "won" : "lost" }, episode.won ? "✓ won" : `✗ ${episode.stop}`),
      ` · ${about.filter(Boolean).join(" · ")}`));
    node.style.top = `${at * ROW_HEIGHT}px`;
    return node;
  }

  function reveal() {
    const at = shown.indexOf(open);
    if (at < 0) return;
    const top = at * ROW_HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
  }

  function move(steps) {
    if (!shown.length) return;
    const at = shown.indexOf(open);
    go(shown[at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + steps))]);
  }

  // The episode

  async function go(row) {
    if (open !== row) turnAt = -1;
    open = row;
    view.classList.add("reading");
    history.replaceState(null, "", `#/episodes/${row}`);
    reveal();
    paint();
    const episode = episodes[row];
    const partner = episode.partner ?? besideOf(row);
    const [own, other] = await Promise.all([turnsOf(row), partner === null ? null : turnsOf(partner)]);
    if (open !== row) return; // another was opened meanwhile
    render(row, own, other, partner);
    detail.scrollTop = 0;
  }

  function render(row, own, other, partner) {
    const [first, second] = episodes[row].side === "chosen" ? [own, other] : [other ?? own, other && own];
    const episode = episodes[row];
    const names = episode.side ? ["Chosen", "Rejected"] : other ? [partner, row].map((at) => policyName(episodes[at])) : [];
    const back = el("button", { type: "button", class: "back", onclick: close }, "← Episodes");
    const head = [
      back,
      el("h2", {}, episode.instruction || episode.task),
      facts([
        ["", el("span", { class: episode.won ? "won" : "lost" }, outcome(episode))],
        !episode.won && ["stopped by", episode.stop],
        ["policy", episode.label],
        episode.split && ["split", episode.split],
        episode.type && ["type", episode.type],
        ["score", String(episode.score)],
        ["return", String(own.return)],
        ["turns", String(episode.turns)],
        ["invalid", String(episode.invalid)],
      ]),
      el("p", { class: "task" }, [episode.run, episode.log, episode.task, own.policy].filter(Boolean).join(" · ")),
      besideChoice(row, partner),
      shadingChoice([first, second].filter(Boolean), () => render(row, own, other, partner)),
    ];
    const outcomes = second && !episode.side ? [episodes[partner], episode] : [];
    const keep = detail.scrollTop;
    detail.replaceChildren(...head.filter(Boolean),
      ...(second ? pair([first, second], names, outcomes) : single(own, episode)));
    detail.scrollTop = keep;
  }

  function facts(items) {
    const shownFacts = items.filter(Boolean).map(([name, value]) =>
      el("span", {}, name && `${name} `, typeof value === "string" ? el("b", {}, value) : value));
    return el("p", { class: "facts" }, ...shownFacts);
  }

  function shadingChoice(both, again) {
    const tokens = both.flatMap((one) => one.turns).flatMap((turn) => turn.tokens ?? []);
    const sampled = tokens.some((token) => token[1] !== null);
    const reference = tokens.some((token) => token[2] !== null);
    if (!sampled && !reference) return null;
    const options = [
      reference && ["reference", "the reference policy"],
      sampled && ["sampled", "the policy that sampled"],
      ["off", "nobody"],
    ].filter(Boolean);
    const value = options.some(([name]) => name === shading) ? shading : options[0][0];
    both.forEach((one) => (one.column = { reference: 2, sampled: 1 }[value] ?? 0));
    const change = (event) => {
      shading = event.target.value;
      again();
      byId("shading").focus();
    };
    const select = el("select", { id: "shading", "aria-label": "Whose probabilities shade the tokens", onchange: change });
    options.forEach(([name, label]) => select.append(el("option", { value: name, selected: name === value }, label)));
    const degrees = DOUBT.map((p, i) => el("span", { class: `s${i + 1}` }, `< ${p}`));
    return el("p", { class: "shading" }, "Tokens shaded by their probability under ", select,
      value !== "off" && el("span", { class: "keys" }, ...degrees),
      `Bars are the confidence of turns, orange up to ${both[0].pivot ?? DOUBT[0]}.`);
  }

  function strip(episode) {
    const values = episode.turns.map((turn) => turn.p ?? turn.own);
    if (values.every((value) => value === null)) return null;
    const pivot = episode.pivot ?? DOUBT[0];
    const bars = values.map((value, i) => {
      const label = value === null ? `turn ${i + 1}` : `turn ${i + 1}: p = ${probability(value)}`;
      const bar = el("button", { type: "button", tabindex: -1, title: label, "aria-label": label, onclick: () => focusTurn(i) });
      bar.className = value !== null && value <= pivot ? "low" : "";
      bar.style.height = `${Math.max(2, 32 * (value ?? 0))}px`;
      return bar;
    });
    return el("div", { class: "strip", role: "group", "aria-label": "Confidence by turn" }, ...bars);
  }

  function single(episode, facts) {
    const turns = episode.turns.map((turn, i) => turnNode(turn, i, episode));
    return [strip(episode), ...turns, ending(episode, facts)].filter(Boolean);
  }

  function besideChoice(row, partner) {
    const rows = others(row);
    if (!rows.length) return null;
    const change = (event) => {
      beside = event.target.value ? episodes[Number(event.target.value)] : null;
      open = null;
      go(row).then(() => byId("beside").focus());
    };
    const select = el("select", { id: "beside", "aria-label": "Policy whose episode of this task is shown beside", onchange: change });
    select.append(el("option", { value: "" }, "nobody"));
    for (const other of rows) {
      const name = policyName(episodes[other]);
      select.append(el("option", { value: other, selected: other === partner }, `${name} (${outcome(episodes[other])})`));
    }
    return el("p", { class: "shading" }, "The same task, beside: ", select);
  }

  function pair(both, names, outcomes) {
    const [left, right] = both.map((episode) => episode.turns);
    const length = Math.max(left.length, right.length);
    let split = 0;
    while (split < length && left[split]?.action === right[split]?.action) split += 1;
    const sides = both.map((episode, i) => el("div", {}, el("h3", {}, names[i]), strip(episode)));
    const nodes = [el("div", { class: "sides" }, ...sides)];
    for (let i = 0; i <= length; i += 1) {
      if (i === split && i < length) {
        nodes.push(el("p", { class: "split", id: "split" }, `The actions differ from turn ${i + 1} on`));
      }
      const cells = both.map((episode, at) => {
        if (i === episode.turns.length) return ending(episode, outcomes[at]);
        return i < episode.turns.length ? turnNode(episode.turns[i], i, episode, names[at]) : el("div", { class: "none" });
      });
      nodes.push(el("div", { class: i < split ? "pair-row alike" : "pair-row" }, ...cells));
    }
    if (split === length) nodes.splice(1, 0, el("p", { class: "split", id: "split" }, "All actions are the same"));
    return nodes;
  }

  function turnNode(turn, i, episode, side) {
    const body = el("div", {}, side && el("span", { class: "side-name" }, side),
      el("p", { class: "observation" }, turn.obs), commands(turn), response(turn, episode.column ?? 0));
    if (turn.action === null) body.append(el("p", { class: "observation" }, "No action could be read."));
    else if (!turn.parts.some(([kind]) => kind === "a")) {
      body.append(el("p", {}, el("span", { class: "dim" }, "read as "), el("span", { class: "a" }, turn.action)));
    }
    const label = `${side ? `${side}, turn` : "Turn"} ${i + 1}`;
    return el("section", { class: "turn", "data-turn": i, tabindex: -1, "aria-label": label },
      el("span", { class: "no" }, String(i + 1)), body, meta(turn));
  }

  function meta(turn) {
    const notes = [
      !turn.formed && ["malformed", "bad", "The response breaks the rules of the prompt format"],
      turn.formed && !turn.valid && ["invalid", "bad", "The environment refused the action"],
      turn.cut && ["cut off", "bad", "The response ran into the limit of its length"],
      !turn.trainable && ["not trained on", "", "An injected mistake, or context"],
      turn.reward !== 0 && turn.reward !== null && [`reward ${turn.reward}`, turn.reward > 0 ? "good" : "bad", ""],
      turn.p !== null && [`p ${probability(turn.p)}`, "", "Confidence of the reference policy: its mean token probability"],
      turn.p === null && turn.own !== null && [`p ${probability(turn.own)}`, "", "Mean token probability when sampled"],
      turn.omega !== null && [`ω ${turn.omega}`, turn.omega >= 1 ? "heavy" : "", "Weight of the turn in the loss of tlm-DRE"],
    ];
    return el("div", { class: "meta" },
      ...notes.filter(Boolean).map(([text, kind, title]) => el("span", { class: kind, title: title || null }, text)));
  }

  function commands(turn) {
    if (!turn.commands) return null;
    return el("details", {}, el("summary", {}, `${turn.commands.length} admissible commands`),
      el("ul", {}, ...turn.commands.map((command) => el("li", {}, command))));
  }

  /** The response: thought and action set off, its tokens shaded where there are any. */
  function response(turn, column) {
    const node = el("p", { class: "response" });
    const style = { t: "t", a: "a", "": "dim" };
    if (!turn.tokens || column === 0) {
      turn.parts.forEach(([kind, text]) => node.append(el("span", { class: style[kind] }, text)));
      return node;
    }
    let part = 0;
    let left = turn.parts.length ? turn.parts[0][1].length : 0;
    for (const token of turn.tokens) {
      let text = token[0];
      while (text) {
        while (left === 0 && part < turn.parts.length) left = turn.parts[++part]?.[1].length ?? 0;
        const size = part < turn.parts.length ? Math.min(left, text.length) : text.length;
        const kind = part < turn.parts.length ? turn.parts[part][0] : "";
        node.append(piece(text.slice(0, size), style[kind], token[column]));
        left -= Math.min(left, size);
        text = text.slice(size);
      }
    }
    return node;
  }

  function piece(text, kind, logprob) {
    if (logprob === null) return el("span", { class: kind }, text);
    const p = Math.exp(logprob);
    const degree = DOUBT.filter((bound) => p < bound).length;
    return el("span", { class: degree ? `${kind} s${degree}` : kind, title: `p = ${probability(p)}` }, text);
  }

  function ending(episode, about) {
    return el("div", { class: "ending" },
      episode.final && el("p", { class: "observation" }, episode.final),
      about && el("p", { class: about.won ? "won" : "lost" }, about.won ? "✓ Won." : `✗ Not won: ${about.stop}.`),
      episode.error && el("p", { class: "lost" }, episode.error));
  }

  function focusTurn(i) {
    const turn = detail.querySelector(`[data-turn="${i}"]`);
    if (!turn) return;
    turnAt = i;
    turn.focus({ preventScroll: true });
    (turn.closest(".pair-row") ?? turn).scrollIntoView({ block: "start" });
  }

  function close() {
    view.classList.remove("reading");
    list.focus();
    reveal();
    paint();
  }

  // The page

  function route() {
    const [, part, row] = location.hash.split("/");
    const reading = part === "episodes";
    results.hidden = reading;
    view.hidden = !reading;
    for (const [id, current] of [["to-results", !reading], ["to-episodes", reading]]) {
      if (current) byId(id).setAttribute("aria-current", "page");
      else byId(id).removeAttribute("aria-current");
    }
    if (!reading) return;
    paint();
    const wanted = Number(row);
    if (row && Number.isInteger(wanted) && wanted < episodes.length && wanted !== open) go(wanted);
  }

  function show(part) {
    location.hash = part === "episodes" && open !== null ? `#/episodes/${open}` : `#/${part}`;
  }

  function dark() {
    return getComputedStyle(document.documentElement).colorScheme === "light dark"
      ? matchMedia("(prefers-color-scheme: dark)").matches
      : document.documentElement.dataset.theme === "dark";
  }

  function showTheme() {
    theme.setAttribute("aria-pressed", String(dark()));
    theme.textContent = dark() ? "Light" : "Dark";
  }

  function toggleTheme() {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    showTheme();
  }

  const KEYS = {
    j: () => move(1),
    k: () => move(-1),
    n: () => focusTurn(turnAt + 1),
    p: () => focusTurn(turnAt - 1),
    g: () => byId("split")?.scrollIntoView({ block: "center" }),
    "/": () => {
      view.classList.remove("reading");
      search.focus();
      search.select();
    },
  };
  const LIST_KEYS = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    PageDown: () => move(10),
    PageUp: () => move(-10),
    Home: () => move(-Infinity),
    End: () => move(Infinity),
    Enter: () => detail.focus(),
  };

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const target = event.target;
    if (target.matches("input, select")) {
      const done = event.key === "Escape" || (target === search && ["Enter", "ArrowDown"].includes(event.key));
      if (!done) return;
      event.preventDefault();
      list.focus();
      if (event.key !== "Escape" && !shown.includes(open)) move(0);
      return;
    }
    const general = {
      "?": () => help.showModal(),
      d: toggleTheme,
      1: () => show("results"),
      2: () => show("episodes"),
    };
    let act = general[event.key];
    if (!view.hidden) {
      act ??= KEYS[event.key];
      if (target === list || target === document.body || target === view) act ??= LIST_KEYS[event.key];
      if (event.key === "Escape") act ??= close;
    }
    if (!act) return;
    event.preventDefault();
    act();
  }

  async function start() {
    const index = await unpack("index");
    perChunk = index.perChunk;
    episodes = index.rows.map((row) => Object.fromEntries(index.columns.map((name, i) => [name, row[i]])));
    for (const episode of episodes) {
      episode.outcome = outcome(episode);
      const words = ["run", "log", "label", "type", "instruction", "task", "actions"].map((name) => episode[name]);
      episode.haystack = words.join("\n").toLowerCase();
    }
    episodes.forEach((episode, row) => {
      if (episode.kind !== "evaluation") return;
      const key = taskKey(episode);
      const rows = sameTask.get(key) ?? [];
      const earlier = rows.findIndex((other) => policyName(episodes[other]) === policyName(episode));
      rows.splice(earlier < 0 ? rows.length : earlier, 1, row); // the newest episode counts
      sameTask.set(key, rows);
    });
    episodes.forEach((episode, row) => (episode.change = changeFromSft(row)));
    fillFacets();
    filter();
    route();
    document.documentElement.dataset.ready = "true";
  }

  let painting = false;
  list.addEventListener("scroll", () => {
    if (painting) return;
    painting = true;
    requestAnimationFrame(() => {
      painting = false;
      paint();
    });
  });
  addEventListener("resize", paint);
  addEventListener("hashchange", route);
  addEventListener("keydown", press);
  search.addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  clear.addEventListener("click", () => {
    byId("filters").reset();
    filter();
    search.focus();
  });
  theme.addEventListener("click", toggleTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  byId("help-button").addEventListener("click", () => help.showModal());
  showTheme();
  start().catch((error) => {
    count.textContent = `The episodes cannot be read by this browser: ${error.message}`;
  });
})();
