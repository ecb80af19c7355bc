// What is wrong with the page that stands: pairs of what and where. Run in the page by look_dashboard.py.
() => {
  const found = new Map();
  const find = (what, where) => found.set(`${what}: ${where}`, [what, String(where)]);
  const main = document.querySelector("[data-testid=stMain]");
  const wide = document.documentElement.clientWidth;
  const words = e => e.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
  const seen = e => {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    return e.checkVisibility() && box.width > 1 && box.height > 1 && style.visibility !== "hidden" && +style.opacity > 0.05;
  };
  const scrolls = e => {
    for (let p = e.parentElement; p && p !== main; p = p.parentElement)
      if (/auto|scroll/.test(getComputedStyle(p).overflowX)) return true;
    return false;
  };
  const onEachOther = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const collide = (boxes, what, apart) => {
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length; j++) {
        const [e, a] = boxes[i], [f, b] = boxes[j];
        if (onEachOther(a, b) && !apart(e, f)) find(what, `${words(e)} / ${words(f)}`);
      }
  };

  for (const e of [document.documentElement, main])
    if (e.scrollWidth > e.clientWidth) find("page scrolls sideways", `${e.scrollWidth} of ${e.clientWidth} px`);
  for (const text of ["Something broke here", "Traceback"])
    if (document.body.innerText.includes(text)) find("broken", text);

  for (const tab of main.querySelectorAll("[role=tab]")) {
    const list = tab.closest("[role=tablist]").getBoundingClientRect(), box = tab.getBoundingClientRect();
    if (box.right > Math.min(list.right, wide) + 1 || box.left < list.left - 1) find("tab out of sight", words(tab));
  }

  // Text of the page: elements with words of their own. Tables scroll and draw themselves, icons are no words.
  const elsewhere = "svg, [data-testid=stIconMaterial], [data-testid=stDataFrame], [data-testid=stFileUploaderDropzone]";
  const texts = [...main.querySelectorAll("p, span, div, h1, h2, h3, h4, label, button, li, code, a, td, th")].filter(
    e => seen(e) && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && !e.closest(elsewhere)
  );
  for (const e of texts) {
    const right = e.getBoundingClientRect().right;
    if (getComputedStyle(e).textOverflow === "ellipsis" && e.scrollWidth > e.clientWidth + 1) find("text cut off", words(e));
    for (let p = e, depth = 0; p && p !== main && depth < 4; p = p.parentElement, depth++)
      if (getComputedStyle(p).overflowX === "hidden" && right > p.getBoundingClientRect().right + 1) find("text cut off", words(e));
    if (right > wide + 1 && !scrolls(e)) find("text leaves the page", words(e));
  }
  const lines = texts.filter(e => !scrolls(e)).map(e => {
    const range = document.createRange();
    range.selectNodeContents(e);
    return [e, range.getBoundingClientRect()];
  });
  collide(lines, "text on text", (e, f) => e.contains(f) || f.contains(e));

  for (const chart of main.querySelectorAll("[data-testid=stPlotlyChart]")) {
    const frame = chart.querySelector(".svg-container")?.getBoundingClientRect();
    if (!frame?.width) continue;
    if (frame.right > wide + 1) find("chart leaves the page", `${frame.right} of ${wide} px`);
    const labels = [...chart.querySelectorAll(".main-svg text")]
      .filter(e => seen(e) && words(e) && getComputedStyle(e).display !== "none" && !e.closest(".hoverlayer"))
      .map(e => [e, e.getBoundingClientRect()]);
    for (const [e, box] of labels)
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        find("label leaves its chart", words(e));
    collide(labels, "label on label", () => false);
  }
  return [...found.values()];
}
