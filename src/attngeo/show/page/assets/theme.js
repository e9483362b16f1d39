// Light and dark: the system's choice until the reader switches.

/** Return "light" or "dark". */
function currentTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Return the colours of the style sheet that drawings inside `root` need; `--ramp` overrides the theme of the page. */
function themeColours(root = document.documentElement) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return { ramp: colour("ramp") || currentTheme(), text: colour("text") || "#1a1a1a", faint: colour("faint") || "#555",
    line: colour("line") || "#999", grid: colour("grid") || "#ddd", accent: colour("accent") || "#d55e00",
    background: colour("background") || "#fff" };
}

/** Make `button` switch the theme; call `changed` after every change, also one of the system's. */
function themeSwitch(button, changed) {
  const show = () => {
    button.setAttribute("aria-pressed", currentTheme() === "dark");
    changed();
  };
  try {
    const kept = localStorage.getItem("attngeo-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch { /* a page from a file may have no storage */ }
  button.setAttribute("aria-pressed", currentTheme() === "dark");
  button.addEventListener("click", () => {
    const theme = currentTheme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("attngeo-theme", theme);
    } catch { /* the switch still holds for this visit */ }
    show();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}
