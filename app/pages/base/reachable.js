// What Streamlit's own widgets leave out for the keyboard and for screen readers.
// The first stop of the Tab key leads past the navigation and the boxes to the answer. Icons are ligatures of a font:
// their names ("keyboard_arrow_right") are no words of a label.
const ICONS = "[data-testid=stIconMaterial], [data-testid=stIconEmoji]";
const SKIP = "meshplan-skip";

const hide = root => {
  if (root.matches?.(ICONS)) root.setAttribute("aria-hidden", "true");
  root.querySelectorAll?.(ICONS).forEach(icon => icon.setAttribute("aria-hidden", "true"));
};

const answer = () => document.querySelector(".st-key-answer :is(h1, h2, h3)")
  ?? document.querySelector("[data-testid=stMain] :is(h1, h2, h3, [role=alert])")
  ?? document.querySelector("[data-testid=stMain]");

export default function () {
  hide(document.body);
  const watching = new MutationObserver(changes => changes.forEach(({ addedNodes }) => addedNodes.forEach(hide)));
  watching.observe(document.body, { childList: true, subtree: true });
  if (!document.getElementById(SKIP)) {
    const link = document.createElement("a");
    link.id = SKIP;
    link.href = "#answer";
    link.textContent = "Skip to the answer";
    link.onclick = event => {
      event.preventDefault();
      const place = answer();
      place.tabIndex = -1;
      place.focus();
      place.scrollIntoView({ block: "center" });
    };
    document.body.prepend(link);
  }
  return () => watching.disconnect();
}
