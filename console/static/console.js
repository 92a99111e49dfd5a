// Keys, times that grow old, and the menu of small screens. Pages work without it.
(() => {
  "use strict";
  const typing = (e) => e.target.closest("input, textarea, select, [contenteditable]");
  let waits = 0;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const find = document.getElementById("q");
    if (e.key === "Escape" && find) {
      document.getElementById("found").replaceChildren();
      if (e.target === find) find.blur();
      return;
    }
    if (typing(e)) return;
    if (e.key === "/" && find) {
      e.preventDefault();
      find.focus();
      find.select();
    } else if (e.key === "?") {
      document.getElementById("keys")?.showModal();
    } else if (e.key === "g" && !waits) {
      waits = setTimeout(() => { waits = 0; }, 1500);
      e.preventDefault();
    } else if (waits) {
      clearTimeout(waits);
      waits = 0;
      const to = document.querySelector('nav a[data-key="' + CSS.escape(e.key) + '"]');
      if (to) to.click();
    }
  });
  document.addEventListener("click", (e) => {
    const found = document.getElementById("found");
    if (found && !e.target.closest(".find")) found.replaceChildren();
  });

  const about = (s) => s < 60 ? Math.floor(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
  const age = () => {
    for (const t of document.querySelectorAll("time[datetime]")) {
      const s = (Date.now() - Date.parse(t.dateTime)) / 1000;
      if (!Number.isFinite(s)) continue;
      const text = s >= -1 && t.classList.contains("left") ? "now" : s < -1 ? "in " + about(-s) : s < 1 ? "now" : about(s) + " ago";
      if (t.textContent !== text) t.textContent = text;
    }
  };
  setInterval(age, 10000);

  const menu = document.querySelector(".menu");
  if (menu && matchMedia("(max-width: 800px)").matches) menu.open = false;

  // What is open stays open when the page is brought up to date, and a link keeps the focus.
  let open = new Set(), focused = null;
  const name = (d) => d.closest("li, section, article")?.textContent.slice(0, 80);
  document.addEventListener("htmx:beforeSwap", (e) => {
    if (e.detail.target?.id !== "live") return;
    open = new Set([...document.querySelectorAll("#live details[open]")].map(name));
    focused = document.activeElement?.closest("#live a[href]")?.getAttribute("href");
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const d of document.querySelectorAll("#live details")) if (open.has(name(d))) d.open = true;
    if (focused) document.querySelector('#live a[href="' + CSS.escape(focused) + '"]')?.focus({ preventScroll: true });
    open = new Set();
    focused = null;
    document.body.classList.remove("is-late");
  });

  // The page waits while somebody fills in a filter, and comes again if it was refused.
  let behind = false;
  const chosen = (s) => Math.max(0, [...s.options].findIndex((o) => o.defaultSelected));
  const filling = (i) => i === document.activeElement || (i.options ? i.selectedIndex !== chosen(i) : i.value !== i.defaultValue);
  const busy = () => [...document.querySelectorAll("#live .filters input, #live .filters select")].some(filling);
  const again = () => {
    if (!behind || busy()) return;
    behind = false;
    htmx.trigger("#live", "sse:change");
  };
  document.addEventListener("htmx:beforeRequest", (e) => {
    if (e.detail.elt.id !== "live" || !busy()) return;
    e.preventDefault();
    behind = true;
  });
  document.addEventListener("focusout", () => setTimeout(again));
  for (const failed of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(failed, (e) => {
      if (e.detail.elt.id !== "live") return;
      document.body.classList.add("is-late");
      behind = true;
      setTimeout(again, 5000);
    });
  }

  // A log begins with its newest lines each time it is opened, and keeps the last of them.
  const most = 5000;
  document.addEventListener("htmx:sseMessage", (e) => {
    if (e.target.classList.contains("log")) while (e.target.childElementCount > most) e.target.firstElementChild.remove();
  });

  // A tab that nobody sees gives up its stream: over HTTP/1.1 a browser has six connections to one address, so
  // six open tabs would leave none for the seventh. It is brought up to date when it is seen again.
  const patience = 5000;
  const streams = new Set();
  let hides = 0;
  htmx.createEventSource = (url) => {
    const s = new EventSource(url, { withCredentials: true });
    streams.add(s);
    return s;
  };
  document.addEventListener("htmx:sseClose", (e) => streams.delete(e.detail.source));
  const rest = () => {
    clearTimeout(hides);
    if (document.hidden) {
      hides = setTimeout(() => { for (const s of streams) s.close(); }, patience);
      return;
    }
    for (const s of streams) {
      if (s.readyState !== EventSource.CLOSED) continue;
      streams.delete(s);
      s.onerror(new Event("error")); // the extension opens another one
    }
  };
  document.addEventListener("visibilitychange", rest);
  rest();

  document.addEventListener("htmx:sseError", () => document.body.classList.add("is-stale"));
  document.addEventListener("htmx:sseOpen", (e) => {
    document.body.classList.remove("is-stale");
    for (const log of e.target.querySelectorAll(".log")) log.replaceChildren();
  });
})();
