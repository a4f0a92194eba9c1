// The explorers in frames follow the site's theme, which the reader may have set to another one than the system's.
function theme() {
  const chosen = document.body.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
function apply() {
  for (const frame of document.querySelectorAll("figure.explorer iframe")) {
    frame.style.colorScheme = theme();
    const page = frame.contentDocument?.documentElement; // there is none of a page that is opened as a file, or not loaded yet
    if (page) page.style.colorScheme = theme();
  }
}
addEventListener("DOMContentLoaded", () => {
  apply();
  for (const frame of document.querySelectorAll("figure.explorer iframe")) frame.addEventListener("load", apply);
  new MutationObserver(apply).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
});
