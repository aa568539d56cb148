// Small helpers over the DOM. Nothing here, or in any file beside it, parses text as HTML.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element with a class and text. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** A button that does something. */
export function makeButton(text, onClick) {
  const button = make("button", "quiet", text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

/** A button that copies a text and says for a moment that it did. */
export function makeCopyButton(textOf) {
  const button = makeButton("Copy", async () => {
    const isCopied = await copy(textOf());
    button.textContent = isCopied ? "Copied" : "Cannot copy";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // not allowed, or a page without https on another machine
  }
}

/** A new SVG element with attributes. */
export function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
