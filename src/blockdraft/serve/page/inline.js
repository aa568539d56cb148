// Markdown inside a paragraph: emphasis, code, links. Knows no blocks.
//
// Three passes, each linear in the text, whatever the text: pieces; pairs of delimiters; nodes.
// Images are never loaded, and a link leads to http or https or is plain text.

import { make } from "./dom.js";
import { appendMarked } from "./marked.js";

const MOST_NESTED = 12; // elements; a browser's layout recurses over them

const SPECIAL = /[\\`*_~[!<h\n]/g;
const ESCAPE = /\\[!-/:-@[-`{-~]/y;
const TICKS = /`+/y;
const DELIMITER = /\*+|_+|~~/y;
const URL_TEXT = /https?:\/\/[^\s<>()[\]"'`*]{1,2000}/y;
const URL_IN_ANGLES = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const LABEL = /!?\[([^[\]\n]{0,500})\]/;
const TARGET = /\( {0,3}((?:[^()\s]|\([^()\s]{0,200}\)){1,2000})/;
const TITLE = /(?: {1,3}"[^"\n]{0,300}")? {0,3}\)/;
const LINK = new RegExp(LABEL.source + TARGET.source + TITLE.source, "y");

const TAGS = { "*": ["em"], "**": ["strong"], "***": ["strong", "em"], "~~": ["s"] };
Object.assign(TAGS, { _: TAGS["*"], __: TAGS["**"], ___: TAGS["***"] });

/** Append a text's nodes to an element. */
export function appendInline(parent, marked, { withLinks = true } = {}) {
  const pieces = cut(marked, withLinks);
  pair(pieces);
  build(parent, pieces);
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function cut(marked, withLinks) {
  const pieces = [];
  const unclosed = new Set();
  const { text } = marked;
  let start = 0; // of the plain text that is not a piece yet
  let at = 0;
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    at = next.index;
    const found = pieceAt(marked, at, withLinks, unclosed);
    if (!found) {
      at += 1;
      continue;
    }
    if (at > start) pieces.push({ kind: "text", marked: marked.slice(start, at) });
    pieces.push(found);
    at = start = found.end;
  }
  if (start < text.length) pieces.push({ kind: "text", marked: marked.slice(start) });
  return pieces;
}

function pieceAt(marked, at, withLinks, unclosed) {
  const { text } = marked;
  switch (text[at]) {
    case "\n":
      return { kind: "break", end: at + 1 };
    case "\\":
      return matchAt(ESCAPE, text, at) && plain(marked, at + 1, at + 2);
    case "`":
      return codeAt(marked, at, unclosed);
    case "h":
    case "<":
      return withLinks ? urlAt(marked, at) : null;
    case "[":
    case "!":
      return linkAt(marked, at, withLinks);
    default:
      return delimiterAt(marked, at);
  }
}

function plain(marked, start, end) {
  return { kind: "text", marked: marked.slice(start, end), end };
}

function codeAt(marked, at, unclosed) {
  const { text } = marked;
  const size = matchAt(TICKS, text, at)[0].length;
  const from = at + size;
  const runs = /`+/g;
  runs.lastIndex = from;
  let run = unclosed.has(size) ? null : runs.exec(text);
  while (run && run[0].length !== size) run = runs.exec(text);
  if (!run) {
    unclosed.add(size); // nor will a later run find one
    return plain(marked, at, from);
  }
  // A space on both sides keeps ticks inside apart from those around.
  const isPadded = run.index - from > 2 && text[from] === " " && text[run.index - 1] === " ";
  const inside = marked.slice(from + isPadded, run.index - isPadded);
  return { kind: "code", marked: inside, end: runs.lastIndex };
}

function urlAt(marked, at) {
  const { text } = marked;
  if (text[at] === "<") {
    const match = matchAt(URL_IN_ANGLES, text, at);
    if (!match) return null;
    const label = marked.slice(at + 1, at + 1 + match[1].length);
    return link(label, match[1], at + match[0].length);
  }
  const match = /\w/.test(text[at - 1] ?? "") ? null : matchAt(URL_TEXT, text, at);
  if (!match) return null;
  let size = match[0].length;
  while (/[.,:;!?]/.test(text[at + size - 1])) size -= 1; // they end the sentence
  return link(marked.slice(at, at + size), match[0].slice(0, size), at + size);
}

function linkAt(marked, at, withLinks) {
  const match = matchAt(LINK, marked.text, at);
  if (!match) return null;
  const end = at + match[0].length;
  const isImage = match[0][0] === "!";
  const start = at + (isImage ? 2 : 1);
  const label = marked.slice(start, start + match[1].length);
  if (isImage) return { kind: "image", marked: label, end };
  return withLinks ? link(label, match[2], end) : plain(marked, at, end);
}

/** A link where its address is one that may be followed, its text where not. */
function link(label, address, end) {
  const href = safeAddress(address);
  return { kind: href ? "link" : "label", marked: label, href, address, end };
}

function safeAddress(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:"].includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

function delimiterAt(marked, at) {
  const { text } = marked;
  const match = matchAt(DELIMITER, text, at);
  if (!match) return null;
  const mark = match[0];
  const end = at + mark.length;
  if (!TAGS[mark]) return plain(marked, at, end);
  const before = text[at - 1] ?? " ";
  const after = text[end] ?? " ";
  const isWord = mark[0] === "_" ? (letter) => /[\p{L}\p{N}_]/u.test(letter) : () => false;
  return {
    kind: "delimiter",
    mark,
    marked: marked.slice(at, end),
    opens: /\S/.test(after) && !isWord(before),
    closes: /\S/.test(before) && !isWord(after),
    end,
  };
}

/** Give delimiters that enclose something a ``role``; the others stay text. */
function pair(pieces) {
  const open = [];
  const counts = {};
  for (const piece of pieces) {
    if (piece.kind !== "delimiter") continue;
    const { mark } = piece;
    if (piece.closes && counts[mark]) {
      let opener;
      do {
        opener = open.pop();
        counts[opener.mark] -= 1;
      } while (opener.mark !== mark);
      opener.role = "begin";
      piece.role = "end";
    } else if (piece.opens) {
      open.push(piece);
      counts[mark] = (counts[mark] ?? 0) + 1;
    }
  }
}

function build(parent, pieces) {
  const stack = [parent];
  for (const piece of pieces) {
    const top = stack.at(-1);
    const isDeep = stack.length >= MOST_NESTED;
    if (piece.role === "begin") stack.push(isDeep ? top : nest(top, piece.mark));
    else if (piece.role === "end") stack.pop();
    else appendPiece(top, piece);
  }
}

function nest(parent, mark) {
  for (const tag of TAGS[mark]) {
    const element = make(tag);
    parent.append(element);
    parent = element;
  }
  return parent;
}

function appendPiece(parent, piece) {
  switch (piece.kind) {
    case "break":
      parent.append(make("br"));
      return;
    case "code":
      parent.append(holding(make("code"), piece.marked));
      return;
    case "image":
      parent.append(holding(make("span", "image"), piece.marked));
      return;
    case "label":
      appendInline(parent, piece.marked, { withLinks: false });
      parent.append(make("span", "address", ` (${piece.address.slice(0, 200)})`));
      return;
    case "link":
      appendLink(parent, piece);
      return;
    default:
      appendMarked(parent, piece.marked);
  }
}

function holding(element, marked) {
  appendMarked(element, marked);
  return element;
}

function appendLink(parent, { marked, href, address }) {
  const element = make("a");
  element.href = href.href;
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
  element.title = href.href;
  appendInline(element, marked, { withLinks: false });
  parent.append(element);
  // Where it leads is said by us, not by its text.
  if (marked.text !== address) parent.append(make("span", "address", ` (${href.host})`));
}
