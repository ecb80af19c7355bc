// Every plotly picture of the page as a file, drawn from what stands: as wide as it is, in the theme that is on.
const SVG = "http://www.w3.org/2000/svg", SHARPER = 2;
const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "display"];
const charts = () => [...document.querySelectorAll("[data-testid=stPlotlyChart]")].filter(chart => chart.querySelector(".main-svg"));
const reading = chart => chart.getAttribute("aria-label") ?? chart.querySelector("[aria-label]")?.getAttribute("aria-label") ?? "picture";
const named = chart => reading(chart).toLowerCase().replace(/[^a-z0-9]+/g, "-").split("-").slice(0, 8).join("-").replace(/^-|-$/g, "") || "picture";

const drawn = chart => {
  const layers = [...chart.querySelectorAll(".main-svg")], box = layers[0].getBoundingClientRect();
  const whole = document.createElementNS(SVG, "svg");
  for (const [name, value] of [["xmlns", SVG], ["width", box.width], ["height", box.height], ["viewBox", `0 0 ${box.width} ${box.height}`]])
    whole.setAttribute(name, value);
  const title = whole.appendChild(document.createElementNS(SVG, "title"));
  title.textContent = reading(chart);
  const paper = whole.appendChild(document.createElementNS(SVG, "rect"));
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.querySelector("[data-testid=stApp]")).backgroundColor);
  for (const layer of layers) {
    const copy = layer.cloneNode(true), from = [...layer.querySelectorAll("*")], to = [...copy.querySelectorAll("*")];
    from.forEach((element, number) => {
      const style = getComputedStyle(element);
      for (const property of STYLED) to[number].style.setProperty(property, style.getPropertyValue(property));
    });
    for (const attribute of ["class", "style"]) copy.removeAttribute(attribute);
    whole.appendChild(copy);
  }
  return [new XMLSerializer().serializeToString(whole), box];
};

const save = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

export default function ({ parentElement }) {
  const at = id => parentElement.querySelector(`#${id}`);
  const details = parentElement.querySelector("details");
  const list = () => {
    const chosen = at("which").value, found = charts();
    at("which").replaceChildren(...found.map((chart, number) => new Option(`${number + 1}. ${reading(chart)}`, number)));
    if (chosen && chosen < found.length) at("which").value = chosen;
    at("said").textContent = found.length ? "" : "There is no picture on this page now.";
  };
  const take = png => {
    const chart = charts()[at("which").value];
    if (!chart) { list(); return; }
    const [text, box] = drawn(chart), file = new Blob([text], { type: "image/svg+xml" });
    if (!png) { save(file, `${named(chart)}.svg`); return; }
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [box.width * SHARPER, box.height * SHARPER];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => save(blob, `${named(chart)}.png`), "image/png");
    };
    image.onerror = () => { at("said").textContent = "This browser cannot draw it: take the SVG."; };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };
  details.ontoggle = list;
  if (details.open) list();
  at("which").onfocus = list;
  at("svg").onclick = () => take(false);
  at("png").onclick = () => take(true);
}
