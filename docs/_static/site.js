// The explorers in frames follow the site's theme, which may differ from the system's.
function theme() {
  const chosen = document.body.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
function apply() {
  for (const frame of document.querySelectorAll("figure.explorer iframe")) {
    frame.style.colorScheme = theme();
    const page = frame.contentDocument?.documentElement; // missing if the page is opened as a file, or not loaded yet
    if (page) page.style.colorScheme = theme();
  }
}
// The animation on the front page plays automatically, unless the reader prefers reduced motion. Its button, and Space, pause it.
function play(frame, tries = 50) {
  const button = frame.contentDocument?.querySelector("[data-testid=motion-play]");
  if (button) button.click();
  else if (tries > 0) setTimeout(play, 200, frame, tries - 1); // that part is loaded last
}
addEventListener("DOMContentLoaded", () => {
  apply();
  const played = document.querySelector(".tag_plays iframe");
  if (played && matchMedia("(prefers-reduced-motion: no-preference)").matches)
    played.addEventListener("load", () => play(played), { once: true });
  for (const frame of document.querySelectorAll("figure.explorer iframe")) frame.addEventListener("load", apply);
  new MutationObserver(apply).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
});
