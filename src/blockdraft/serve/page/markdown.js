// A text in Markdown that grows: only its last blocks are made anew when more of it comes.

import { parseBlocks } from "./blocks.js";

export class MarkdownView {
  #root;
  #start = 0; // where the blocks begin that may still change
  #open = []; // their elements

  /** A view that fills an element. */
  constructor(root) {
    this.#root = root;
  }

  /** Show a text that begins with the one shown before. */
  show(marked) {
    const rest = marked.slice(this.#start);
    const lines = rest.lines();
    const blocks = parseBlocks(lines);
    for (const element of this.#open) element.remove();
    this.#root.append(...blocks.map((block) => block.element));

    // A block is final when the next one has begun, and with lines that are complete.
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].lastLine >= lines.length - 1) last -= 1;
    if (last <= 0) {
      this.#open = blocks.map((block) => block.element);
      return;
    }
    this.#open = blocks.slice(last).map((block) => block.element);
    for (const line of lines.slice(0, blocks[last].line)) this.#start += line.length + 1;
  }

  /** Show nothing. */
  clear() {
    this.#root.replaceChildren();
    this.#start = 0;
    this.#open = [];
  }
}
