// Text whose every character knows where it came from. Knows no Markdown.
//
// Marks: "d" an accepted draft, "t" a token of the target's own, "-" unknown.

const INDENTATION = /(\n[ \t]*)/;

const CLASSES = { d: "drafted", t: "own" };

// Characters that reorder the text around them, so that it reads as it is not.
const REORDERING = /([\u202a-\u202e\u2066-\u2069])/;

export class Marked {
  constructor(text = "", marks = "-".repeat(text.length)) {
    this.text = text;
    this.marks = marks;
  }

  /** The first of these, the separator, the second, ... */
  static join(parts, separator) {
    const gap = "-".repeat(separator.length);
    return new Marked(
      parts.map((part) => part.text).join(separator),
      parts.map((part) => part.marks).join(gap),
    );
  }

  /** This text and then another, all of one mark. */
  plus(text, mark) {
    return new Marked(this.text + text, this.marks + mark.repeat(text.length));
  }

  get length() {
    return this.text.length;
  }

  slice(start, end) {
    return new Marked(this.text.slice(start, end), this.marks.slice(start, end));
  }

  /** Its lines, without the characters that end them. */
  lines() {
    const lines = [];
    let start = 0;
    for (let end = this.text.indexOf("\n"); end >= 0; end = this.text.indexOf("\n", start)) {
      lines.push(this.slice(start, end));
      start = end + 1;
    }
    lines.push(this.slice(start));
    return lines;
  }
}

/** Append a text to an element, a span for each run of one origin; white space around has none. */
export function appendMarked(parent, marked) {
  const { text, marks } = marked;
  for (let start = 0; start < text.length; ) {
    let end = start + 1;
    while (end < text.length && marks[end] === marks[start]) end += 1;
    for (const part of text.slice(start, end).split(INDENTATION)) {
      appendRun(parent, part, CLASSES[marks[start]]);
    }
    start = end;
  }
}

function appendRun(parent, text, origin) {
  const words = text.trim();
  if (!origin || !words) {
    appendVisibly(parent, text);
    return;
  }
  const begin = text.indexOf(words[0]);
  const span = document.createElement("span");
  span.className = origin;
  appendVisibly(span, words);
  parent.append(text.slice(0, begin), span, text.slice(begin + words.length));
}

function appendVisibly(parent, text) {
  text.split(REORDERING).forEach((piece, index) => {
    if (index % 2 === 0) {
      if (piece) parent.append(piece);
      return;
    }
    const chip = document.createElement("span");
    chip.className = "control";
    chip.textContent = `U+${piece.codePointAt(0).toString(16).toUpperCase()}`;
    parent.append(chip);
  });
}
