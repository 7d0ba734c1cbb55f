"""The few lines of JavaScript of a page: words where a reader points, buttons that copy and hide.

Nothing of it is needed to read the page.
"""

from __future__ import annotations

import base64
import hashlib

SCRIPT = """
document.documentElement.classList.add("scripted");

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.copies);
    let done = false;
    try {
      await navigator.clipboard.writeText(code.textContent);
      done = true;
    } catch {
      // A page from a disk may not use the clipboard directly in some browsers; a selection it may copy.
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      done = document.execCommand("copy");
    }
    const said = button.querySelector("[aria-live]");
    said.textContent = done ? "copied" : "selected; press Ctrl+C";
    setTimeout(() => { said.textContent = "copy"; }, 2500);
  });
}

for (const item of document.querySelectorAll(".key [data-shows]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.title = "show or hide it in all charts";
  button.append(...item.childNodes);
  item.append(button);
  button.addEventListener("click", () => {
    const run = item.dataset.shows;
    const shown = button.getAttribute("aria-pressed") !== "true";
    for (const other of document.querySelectorAll(`.key [data-shows="${run}"] button`))
      other.setAttribute("aria-pressed", String(shown));
    for (const part of document.querySelectorAll(`.chart [data-run="${run}"]`))
      part.classList.toggle("off", !shown);
  });
}

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);
for (const title of document.querySelectorAll(".chart :not(svg) > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
const show = (event) => {
  const at = event.target.closest?.("[data-tip]");
  tip.hidden = !at;
  if (!at) return;
  tip.textContent = at.dataset.tip;
  const edge = document.documentElement.clientWidth - tip.offsetWidth - 6;
  const above = event.pageY - tip.offsetHeight - 14;
  tip.style.left = `${Math.max(6, Math.min(event.pageX + 12, edge))}px`;
  tip.style.top = `${above < scrollY ? event.pageY + 18 : above}px`;
};
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
"""


def fingerprint() -> str:
    """Tells by which hash a page's policy lets this script run, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
