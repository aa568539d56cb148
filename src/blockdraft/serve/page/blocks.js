// Markdown's blocks: where each begins and ends among lines, and its nodes.
//
// Knows nothing of streams. Every kind of block is a rule: ``starts`` says whether one begins at a
// line, ``take`` gives the line after it and its element. What no rule knows is a paragraph; HTML
// is text.

import { make } from "./dom.js";
import { appendInline } from "./inline.js";
import { appendMarked, Marked } from "./marked.js";

const MOST_NESTED = 8; // lists and quotes; deeper ones are paragraphs
const MOST_COLUMNS = 64;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]{0,40})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]{1,4}|$)/;

const isBlank = (line) => line.text.trim() === "";
const indentOf = (line) => /^[ \t]*/.exec(line.text)[0].length;

/**
 * Blocks of some lines: for each the number of its first line, of the last line that made it
 * begin there, and its element.
 */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const rule = ruleAt(lines, at, depth) ?? paragraph;
    const { end, element } = rule.take(lines, at, depth);
    blocks.push({ line: at, lastLine: at + (rule.lookahead ?? 0), element });
    at = end;
  }
  return blocks;
}

function ruleAt(lines, at, depth) {
  return RULES.find((rule) => (depth < MOST_NESTED || !rule.nests) && rule.starts(lines, at));
}

function elementsOf(lines, depth) {
  return parseBlocks(lines, depth).map((block) => block.element);
}

const fence = {
  starts: (lines, at) => FENCE.test(lines[at].text),
  take(lines, at) {
    const [, mark, language] = FENCE.exec(lines[at].text);
    const indent = indentOf(lines[at]);
    const closes = (text) => {
      const line = text.trim();
      return line.length >= mark.length && line === mark[0].repeat(line.length);
    };
    let end = at + 1;
    while (end < lines.length && !closes(lines[end].text)) end += 1;
    const unindented = (line) => line.slice(Math.min(indent, indentOf(line)));
    const inside = Marked.join(lines.slice(at + 1, end).map(unindented), "\n");
    return { end: end + 1, element: codeBlock(inside, language) };
  },
};

function codeBlock(marked, language) {
  const element = make("figure", "code");
  const code = make("code");
  code.dir = "ltr";
  appendMarked(code, marked);
  const pre = make("pre");
  pre.append(code);
  element.append(make("figcaption", "", language), pre);
  return element;
}

const heading = {
  starts: (lines, at) => HEADING.test(lines[at].text),
  take(lines, at) {
    const match = HEADING.exec(lines[at].text);
    // The page's own headings are the first two levels.
    const element = make(`h${Math.min(match[1].length + 2, 6)}`);
    appendInline(element, lines[at].slice(match[0].length));
    return { end: at + 1, element };
  },
};

const rule = {
  starts: (lines, at) => RULE.test(lines[at].text),
  take: (lines, at) => ({ end: at + 1, element: make("hr") }),
};

const quote = {
  nests: true,
  starts: (lines, at) => QUOTE.test(lines[at].text),
  take(lines, at, depth) {
    const inside = [];
    let end = at;
    for (; end < lines.length; end += 1) {
      const match = QUOTE.exec(lines[end].text);
      if (!match) break;
      inside.push(lines[end].slice(match[0].length));
    }
    const element = make("blockquote");
    element.append(...elementsOf(inside, depth + 1));
    return { end, element };
  },
};

const list = {
  nests: true,
  starts: (lines, at) => ITEM.test(lines[at].text),
  take(lines, at, depth) {
    const first = ITEM.exec(lines[at].text)[2];
    const kind = first.at(-1);
    const items = [];
    let isTight = true;
    let end = at;
    while (end < lines.length) {
      const match = RULE.test(lines[end].text) ? null : ITEM.exec(lines[end].text);
      if (!match || match[2].at(-1) !== kind) break;
      const item = itemAt(lines, end, match[0].length);
      const gap = blanksFrom(lines, item.end);
      isTight &&= item.isTight && (gap === 0 || !ITEM.test(lines[item.end + gap]?.text ?? ""));
      items.push(item.lines);
      end = item.end + gap;
    }
    const element = make(first.length > 1 ? "ol" : "ul", isTight ? "tight" : "");
    if (first.length > 1) element.start = Number.parseInt(first, 10);
    for (const inside of items) {
      const child = make("li");
      child.append(...elementsOf(inside, depth + 1));
      element.append(child);
    }
    return { end, element };
  },
};

function blanksFrom(lines, at) {
  let count = 0;
  while (at + count < lines.length && isBlank(lines[at + count])) count += 1;
  return count;
}

/** Lines of an item whose text begins ``width`` characters into its first line. */
function itemAt(lines, at, width) {
  const inside = [lines[at].slice(width)];
  let isTight = true;
  let end = at + 1;
  while (end < lines.length) {
    const gap = blanksFrom(lines, end);
    const line = lines[end + gap];
    const indent = line ? indentOf(line) : 0;
    const isInside = indent >= 2 || (indent === 1 && line.text[0] === "\t");
    const isLazy = gap === 0 && line && !ruleAt(lines, end, 0);
    if (!line || !(isInside || isLazy)) break;
    if (gap) isTight = false;
    inside.push(...lines.slice(end, end + gap), line.slice(Math.min(indent, width)));
    end += gap + 1;
  }
  return { lines: inside, end, isTight };
}

const table = {
  lookahead: 1,
  starts(lines, at) {
    if (!lines[at].text.includes("|") || !lines[at + 1]?.text.includes("-")) return false;
    const columns = alignments(lines[at + 1]);
    return columns !== null && cellsOf(lines[at]).length === columns.length;
  },
  take(lines, at) {
    const columns = alignments(lines[at + 1]);
    const element = make("table");
    const head = make("thead");
    head.append(rowOf(cellsOf(lines[at]), columns, "th"));
    const body = make("tbody");
    let end = at + 2;
    for (; end < lines.length && lines[end].text.includes("|"); end += 1) {
      body.append(rowOf(cellsOf(lines[end]), columns, "td"));
    }
    element.append(head, body);
    const holder = make("div", "table");
    holder.append(element);
    return { end, element: holder };
  },
};

/** A class for each column; null where the line is not the one below a table's head. */
function alignments(line) {
  const cells = cellsOf(line).map((cell) => cell.text);
  if (cells.length > MOST_COLUMNS || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => (cell.endsWith(":") ? (cell[0] === ":" ? "center" : "right") : ""));
}

function cellsOf(line) {
  const { text } = line;
  const cells = [];
  let start = 0;
  for (let at = 0; at <= text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (at === text.length || text[at] === "|") {
      cells.push(trimmed(line.slice(start, at)));
      start = at + 1;
    }
  }
  if (cells[0]?.length === 0) cells.shift();
  if (cells.at(-1)?.length === 0) cells.pop();
  return cells;
}

function trimmed(marked) {
  const start = marked.length - marked.text.trimStart().length;
  return marked.slice(start, Math.max(start, marked.text.trimEnd().length));
}

function rowOf(cells, columns, tag) {
  const row = make("tr");
  columns.forEach((alignment, index) => {
    const cell = make(tag, alignment);
    if (cells[index]) appendInline(cell, cells[index]);
    row.append(cell);
  });
  return row;
}

const paragraph = {
  take(lines, at, depth) {
    let end = at + 1;
    while (end < lines.length && !isBlank(lines[end]) && !ruleAt(lines, end, depth)) end += 1;
    const element = make("p");
    appendInline(element, Marked.join(lines.slice(at, end).map(trimmed), "\n"));
    return { end, element };
  },
};

const RULES = [fence, heading, rule, quote, list, table];
