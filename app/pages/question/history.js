// Undo, redo, what was asked before and named questions. All of it stays in the browser: the steps of a tab in its
// sessionStorage, which a reload keeps, the others in localStorage. The server is told only what to ask again.
const STEPS = "meshplan.steps", RECENT = "meshplan.recent", NAMED = "meshplan.named";
const MOST_STEPS = 100, MOST_RECENT = 30, MOST_NAMED = 50, PATIENCE_MS = 15000;
let sent = 0, sentAt = 0;
// The browser's own Back and Forward: Streamlit writes a changed choice over the address of the entry that stands.
// The old address is put back there, and the new one gets an entry of its own, which Streamlit asks when it is gone to.
let travelled = false, entry = null, address = null;
const entryNow = () => window.navigation?.currentEntry?.key ?? history.length;
const noteEntry = () => { entry = entryNow(); address = location.href; };
const enterChange = () => {
  if (entry === entryNow() && address !== location.href && new URL(address).pathname === location.pathname) {
    const now = location.href;
    history.replaceState(history.state, "", address);
    history.pushState({}, "", now);
  }
  noteEntry();
};
window.addEventListener("popstate", () => { travelled = true; });

const read = (store, key, empty) => {
  try { return JSON.parse(store.getItem(key)) ?? empty; } catch { return empty; }
};
const write = (store, key, value) => {
  try { store.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
};
const same = (a, b) => {
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...keys].every(key => (a[key] ?? "") === (b[key] ?? ""));
};
const changed = (before, now, labels) => [...new Set([...Object.keys(before), ...Object.keys(now)])]
  .filter(key => (before[key] ?? "") !== (now[key] ?? ""))
  .map(key => key.endsWith("_spec") ? "another file" : `${labels[key] ?? key} ${now[key] || "as usual"}`);

export default function ({ data, parentElement, setTriggerValue }) {
  const at = id => parentElement.querySelector(`#${id}`);
  const say = text => { at("said").textContent = text; };
  const tab = read(sessionStorage, STEPS, { steps: [], at: -1 });
  const waiting = data.serial !== sent && Date.now() - sentAt < PATIENCE_MS;

  if (data.question && !waiting) {
    const now = tab.steps[tab.at];
    const fresh = !now || !same(now.question, data.question);
    const gone = travelled ? [tab.at - 1, tab.at + 1, ...tab.steps.keys()]
      .find(at => tab.steps[at] && same(tab.steps[at].question, data.question)) : undefined;
    if (fresh && gone !== undefined) {
      tab.at = gone;
      write(sessionStorage, STEPS, tab);
    } else if (fresh) {
      if (now && address) enterChange();
      const what = now ? changed(now.question, data.question, data.labels).join(", ") : "";
      const step = { question: data.question, title: data.title, what };
      tab.steps = [...tab.steps.slice(0, tab.at + 1), step].slice(-MOST_STEPS);
      tab.at = tab.steps.length - 1;
      write(sessionStorage, STEPS, tab);
      const recent = read(localStorage, RECENT, []).filter(old => !same(old.question, step.question));
      write(localStorage, RECENT, [step, ...recent].slice(0, MOST_RECENT));
    }
    travelled = false;
    noteEntry();
  }

  const ask = (question, words) => {
    sent = Date.now();
    sentAt = sent;
    say(words);
    setTriggerValue("recalled", { serial: sent, question });
  };
  const step = by => {
    const steps = read(sessionStorage, STEPS, { steps: [], at: -1 });
    const to = steps.at + by;
    if (to < 0 || to >= steps.steps.length) return;
    steps.at = to;
    write(sessionStorage, STEPS, steps);
    draw(steps);
    const { question, title, what } = steps.steps[to];
    ask(question, `${by < 0 ? "Back to" : "Again"}: ${by > 0 && what ? what : title}`);
  };
  const fill = (select, first, words) => {
    const options = [first, ...words].map((text, number) => new Option(text, number ? number - 1 : ""));
    select.replaceChildren(...options);
    select.disabled = !words.length;
  };
  const draw = steps => {
    at("undo").disabled = steps.at <= 0;
    at("redo").disabled = steps.at >= steps.steps.length - 1;
    const recent = read(localStorage, RECENT, []), named = Object.keys(read(localStorage, NAMED, {})).sort();
    fill(at("recent"), recent.length ? "choose one to ask it again" : "nothing yet",
      recent.map(old => [old.title, old.what].filter(Boolean).join(" · ")));
    const chosen = at("named").selectedOptions[0]?.text;
    fill(at("named"), named.length ? "choose one to ask it" : "nothing yet", named);
    const kept = named.indexOf(chosen);
    if (kept >= 0) at("named").value = kept;
    at("drop").disabled = at("named").value === "";
  };

  at("undo").onclick = () => step(-1);
  at("redo").onclick = () => step(1);
  at("recent").onchange = event => {
    const old = read(localStorage, RECENT, [])[event.target.value];
    if (old) ask(old.question, `Asked again: ${old.title}`);
  };
  at("named").onchange = event => {
    const name = event.target.selectedOptions[0].text;
    const question = read(localStorage, NAMED, {})[name];
    at("drop").disabled = !question;
    if (question) ask(question, `Asked: ${name}`);
  };
  at("save").onclick = () => {
    const name = at("name").value.trim(), named = read(localStorage, NAMED, {});
    if (!name) { say("Type a name first."); at("name").focus(); return; }
    if (!(name in named) && Object.keys(named).length >= MOST_NAMED) { say(`At most ${MOST_NAMED} names: drop one first.`); return; }
    if (!data.question) { say("A question that is refused is not kept."); return; }
    const held = write(localStorage, NAMED, { ...named, [name]: data.question });
    at("name").value = held ? "" : name;
    draw(read(sessionStorage, STEPS, tab));
    say(held ? `Kept as ${name}, in this browser.` : "This browser keeps nothing: its storage is full or off.");
  };
  at("name").onkeydown = event => { if (event.key === "Enter") at("save").click(); };
  at("drop").onclick = () => {
    const named = read(localStorage, NAMED, {}), name = at("named").selectedOptions[0].text;
    delete named[name];
    write(localStorage, NAMED, named);
    at("named").value = "";
    draw(read(sessionStorage, STEPS, tab));
    say(`${name} is no longer kept.`);
  };
  at("forget").onclick = () => {
    for (const [store, key] of [[sessionStorage, STEPS], [localStorage, RECENT], [localStorage, NAMED]]) store.removeItem(key);
    draw({ steps: [], at: -1 });
    say("Nothing is kept any more.");
  };

  const undoing = event => {
    const path = event.composedPath();
    const typing = path.some(e => e.matches?.("input, textarea, select, [contenteditable=true]"));
    if (typing || event.key.toLowerCase() !== "z" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    step(event.shiftKey ? 1 : -1);
  };
  document.addEventListener("keydown", undoing);
  draw(tab);
  return () => document.removeEventListener("keydown", undoing);
}
