// Keys, times that grow old, and the menu of small screens. Pages work without it.
(() => {
  "use strict";
  const typing = (e) => e.target.closest("input, textarea, select, [contenteditable]");
  const find = document.getElementById("q");
  const seek = () => { find.focus(); find.select(); };

  // The first link of each row, card or answer. Rows are links with the focus, so that Enter opens them.
  const firsts = (rows) => [...document.querySelectorAll(rows)].map((r) => r.querySelector("a[href]")).filter((a) => a?.checkVisibility());
  const answers = () => firsts("#found li");
  const rows = () => firsts("main tbody tr, main .attention > li, main .results li, main .bars > li");
  const step = (links, by) => {
    const at = links.findIndex((a) => a.closest("tr, li").contains(document.activeElement));
    const to = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
    to?.focus();
    to?.scrollIntoView({ block: "nearest" });
    return !!to;
  };
  const moves = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 };

  let waits = 0;
  document.addEventListener("keydown", (e) => {
    if (e.key === "k" && (e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && find) {
      e.preventDefault();
      seek();
      return;
    }
    if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
    const found = e.target.closest(".find");
    if (e.key === "Escape" && find) {
      document.getElementById("found").replaceChildren();
      if (found) find.blur(), document.activeElement.blur();
      return;
    }
    if (found) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (by) {
        e.preventDefault();
        if (!step(answers(), e.target === find && by < 0 ? 0 : by)) find.focus();
      } else if (e.key === "Enter" && e.target === find && answers().length && find.value.trim() === document.querySelector("#found [data-q]")?.dataset.q) {
        e.preventDefault();
        answers()[0].click();
      } else if (e.key.length === 1 && e.target !== find) {
        find.focus(); // what is typed goes into the search
      }
      return;
    }
    if (typing(e)) return;
    if (waits) {
      clearTimeout(waits);
      waits = 0;
      document.querySelector('nav a[data-key="' + CSS.escape(e.key) + '"]')?.click();
    } else if (e.key === "/" && find) {
      e.preventDefault();
      seek();
    } else if (e.key === "?") {
      document.getElementById("keys")?.showModal();
    } else if (e.key === "g") {
      waits = setTimeout(() => { waits = 0; }, 1500);
      e.preventDefault();
    } else if (moves[e.key] && (e.key.length === 1 || rows().includes(document.activeElement)) && step(rows(), moves[e.key])) {
      e.preventDefault();
    }
  });
  // The buttons of the page that is open are answers also.
  document.addEventListener("htmx:afterSwap", (e) => {
    const q = find?.value.trim() ?? "", found = e.detail.target;
    if (found?.id !== "found" || q.length < 2) return;
    const here = [...document.querySelectorAll("main .do a, main .tabs a")].filter((a) => a.textContent.toLowerCase().includes(q.toLowerCase()));
    if (!here.length) return;
    let list = found.querySelector("ul");
    if (!list) found.replaceChildren(list = document.createElement("ul"));
    list.dataset.q = q;
    list.prepend(...here.map((a) => {
      const li = document.createElement("li"), kind = document.createElement("span"), to = document.createElement("a");
      kind.className = "kind";
      kind.textContent = "here";
      to.href = a.href;
      to.textContent = a.textContent;
      li.append(kind, " ", to);
      return li;
    }));
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
  const small = matchMedia("(max-width: 800px)"), fold = () => { if (menu) menu.open = !small.matches; };
  small.addEventListener("change", fold);
  fold();

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

  // A form waits in this tab while its user proves at the issuer who they are.
  document.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-again]");
    if (!button) return;
    const fields = [...new FormData(button.form)].filter(([, value]) => typeof value === "string");
    sessionStorage.setItem("prego.form", JSON.stringify({ path: new URL(button.form.action).pathname, fields }));
    location.assign(button.dataset.again);
  });
  const kept = location.pathname.startsWith("/console/do/") && sessionStorage.getItem("prego.form");
  if (kept) {
    sessionStorage.removeItem("prego.form");
    const { path, fields } = JSON.parse(kept);
    if (path === location.pathname && new URLSearchParams(location.search).has("again")) {
      const form = document.createElement("form");
      form.method = "post";
      form.action = path + "/begin";
      for (const [name, value] of [...fields, ["again", "1"]]) {
        const input = document.createElement("input");
        Object.assign(input, { type: "hidden", name, value });
        form.append(input);
      }
      document.body.append(form);
      form.submit();
    }
  }

  document.addEventListener("click", async (e) => {
    const button = e.target.closest("button[data-copy]"), from = button && document.getElementById(button.dataset.copy);
    if (!from) return;
    from.select(); // browsers copy for pages over TLS only
    await navigator.clipboard?.writeText(from.value);
    button.textContent = navigator.clipboard ? "Copied" : "Selected";
  });

  document.addEventListener("htmx:sseError", () => document.body.classList.add("is-stale"));
  document.addEventListener("htmx:sseOpen", (e) => {
    document.body.classList.remove("is-stale");
    for (const log of e.target.querySelectorAll(".log")) log.replaceChildren();
  });
})();
