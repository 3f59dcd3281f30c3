// The pages work without this: it keeps them fresh, tells of the cell under the mouse, and goes through a grid by keys.
"use strict";

const page = () => document.body.dataset.page;
const connection = document.getElementById("connection");
let events = null;

// What an element is known by in the next version of its part, which is made of other elements.
const nameOf = (one) => one.id || one.getAttribute("href") || one.textContent;

// The elements of the same kind and name as this one: a table may have several links to one page.
const alike = (part, tag, name) => [...part.getElementsByTagName(tag)].filter((one) => nameOf(one) === name);

// Which element of a part has the focus.
function focusIn(part) {
  const one = document.activeElement;
  if (one === part || !part.contains(one) || one.matches(".grid[data-host]")) return null;
  const name = nameOf(one);
  return { tag: one.tagName, name, at: alike(part, one.tagName, name).indexOf(one) };
}

// A part is replaced as it is; what a viewer has opened or is reading stays so.
function replace(id, html) {
  const part = document.getElementById(id);
  if (!part || part.innerHTML === html) return;
  const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  const grid = part.querySelector(".grid[data-host]");
  const had = grid && document.activeElement === grid ? grid.at : undefined;
  const focus = focusIn(part);
  part.innerHTML = html;
  for (const one of open) {
    const details = one && document.getElementById(one);
    if (details) details.open = true;
  }
  if (focus) {
    const same = alike(part, focus.tag, focus.name);
    (same[focus.at] || same[0])?.focus({ preventScroll: true });
  }
  const again = part.querySelector(".grid[data-host]");
  if (again && had !== undefined) {
    again.focus({ preventScroll: true });
    go(again, had);
  }
}

// Parts that are gone are taken away, new ones come where the page has them.
function arrange(order) {
  const parts = document.getElementById("parts");
  const wanted = order.split(" ").filter(Boolean);
  for (const one of [...parts.children]) if (!wanted.includes(one.id)) one.remove();
  wanted.forEach((id, at) => {
    let part = document.getElementById(id);
    if (!part) {
      part = document.createElement("section");
      part.id = id;
      part.className = "live";
    }
    if (parts.children[at] !== part) parts.insertBefore(part, parts.children[at] || null);
  });
}

function take(event) {
  const parts = JSON.parse(event.data);
  // What was loaded before there was anything to show has no search and no slider: they are no parts.
  if ("" in parts && document.getElementById("nothing") && parts[""] !== "nothing") {
    location.reload();
    return;
  }
  if ("" in parts) arrange(parts[""]);
  for (const [id, html] of Object.entries(parts)) if (id) replace(id, html);
  document.body.dataset.fresh = String(Number(document.body.dataset.fresh || 0) + 1);
}

function follow() {
  if (events) events.close();
  events = new EventSource("/events?page=" + encodeURIComponent(page()));
  events.addEventListener("parts", take);
  events.onopen = () => { connection.textContent = "Live."; document.body.classList.remove("stale"); };
  events.onerror = () => {
    connection.textContent = "The console does not answer: what you see may be old.";
    document.body.classList.add("stale");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}

// A browser has six connections to a server: a hidden page keeps none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { if (events) events.close(); events = null; } else follow();
});

// The shards of a grid, in the order of its cells, from "0-127, 130".
function shardsOf(grid) {
  if (!grid.shards) {
    grid.shards = grid.dataset.shards.split(",").flatMap((range) => {
      const [first, last = first] = range.trim().split("-").map(Number);
      return Array.from({ length: last - first + 1 }, (_, at) => first + at);
    });
  }
  return grid.shards;
}

function tell(grid, at) {
  const about = document.getElementById("pointed");
  const cell = grid.children[at];
  if (!about || !cell) return;
  const words = [...cell.classList].filter((name) => name !== "at")
    .map((name) => document.querySelector(`.legend [data-class="${name}"]`)?.parentElement.textContent.trim());
  const silent = grid.closest(".silent") ? "no answer from its host" : undefined;
  about.textContent = [`shard ${shardsOf(grid)[at]} on ${grid.dataset.host}`, silent, ...words].filter(Boolean).join(" · ");
}

function go(grid, at) {
  if (at < 0 || at >= grid.children.length) return;
  grid.querySelector(".at")?.classList.remove("at");
  grid.at = at;
  grid.children[at].classList.add("at");
  grid.children[at].scrollIntoView({ block: "nearest" });
  tell(grid, at);
}

const gridOf = (target) => (target instanceof Element ? target.closest(".grid[data-host]") : null);
const indexOf = (grid, cell) => Array.prototype.indexOf.call(grid.children, cell);

document.addEventListener("mouseover", (event) => {
  const grid = gridOf(event.target);
  if (grid && event.target !== grid) tell(grid, indexOf(grid, event.target));
});

document.addEventListener("click", (event) => {
  const grid = gridOf(event.target);
  if (grid && event.target !== grid) location.href = "/shards/" + shardsOf(grid)[indexOf(grid, event.target)];
});

document.addEventListener("focusin", (event) => {
  const grid = gridOf(event.target);
  if (grid && grid.at === undefined) go(grid, 0);
});

document.addEventListener("keydown", (event) => {
  const grid = gridOf(event.target);
  if (grid) {
    const row = [...grid.children].findIndex((cell) => cell.offsetTop !== grid.children[0].offsetTop);
    const wide = row < 0 ? grid.children.length : row;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide }[event.key];
    const at = grid.at || 0;
    if (step) go(grid, at + step);
    else if (event.key === "Home") go(grid, 0);
    else if (event.key === "End") go(grid, grid.children.length - 1);
    else if (event.key === "Enter") location.href = "/shards/" + shardsOf(grid)[at];
    else return;
    event.preventDefault();
  } else if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    const search = document.querySelector("form.search input[name=q]");
    if (search) { search.focus(); event.preventDefault(); }
  }
});

// The slider shows the map of another time without a click.
const slider = document.querySelector("form.slider");
if (slider) {
  const range = slider.querySelector("input[type=range]");
  range.addEventListener("input", () => {
    slider.querySelector("output").textContent = range.value;
    clearTimeout(slider.later);
    slider.later = setTimeout(() => {
      const words = new URLSearchParams(new FormData(slider));
      if (range.value === slider.dataset.newest) words.delete("version");
      const address = "/shards?" + words;
      history.replaceState(null, "", address);
      document.body.dataset.page = address;
      follow();
    }, 150);
  });
}

follow();
