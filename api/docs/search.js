// Filters the index while a person types; without it the form does the same on the server.
"use strict";
const q = document.getElementById("q"), sections = [...document.querySelectorAll("section")];
const entry = (li) => [li, (li.id + " " + li.textContent).toLowerCase()];
const entries = sections.map((s) => [...s.querySelectorAll("li")].map(entry));
q.addEventListener("input", () => {
  const words = q.value.toLowerCase().split(/\s+/).filter(Boolean);
  let any = false;
  sections.forEach((s, i) => {
    let shown = 0;
    for (const [li, text] of entries[i]) {
      li.hidden = !words.every((w) => text.includes(w));
      if (!li.hidden) shown++;
    }
    s.hidden = shown === 0;
    any = any || shown > 0;
  });
  document.getElementById("none").hidden = any;
});
