// One answer on the page: its text as it comes, its figures, its end.

import { streamChat } from "./api.js";
import { make, makeCopyButton } from "./dom.js";
import { Figures } from "./figures.js";
import { MarkdownView } from "./markdown.js";
import { Marked } from "./marked.js";
import { Tally } from "./tally.js";

const MOST_BUSY = 0.25; // of the time, for showing; a huge answer is shown less often

export class Answer {
  #view;
  #figures = new Figures();
  #pieces = [];
  #shown = new Marked();
  #tally = new Tally();
  #body = make("div", "prose");
  #isLive = false;
  #isDue = false; // to be shown
  #notBefore = 0;
  #onShow;
  #last = null; // the event that ended it

  /** Tokens of prompt and answer; null until it has ended. */
  usage = null;

  /** An answer with a heading; ``onShow`` is called when it has grown on the page. */
  constructor(heading, onShow) {
    this.#onShow = onShow;
    this.#view = new MarkdownView(this.#body);
    this.#body.dir = "auto";
    this.heading = make("h2", "", heading);
    this.element = make("article", "answer");
    this.element.append(this.heading, this.#body, this.#figures.element);
  }

  get text() {
    return this.#pieces.map((piece) => piece.text).join("");
  }

  /** Tokens a second: the server's figure, or while it is written our own. */
  get rate() {
    return this.#isLive ? this.#tally.rate : (this.timings?.predicted_per_second ?? null);
  }

  get timings() {
    return this.#last?.timings ?? null;
  }

  get reason() {
    return this.#last?.choices[0].finish_reason ?? null;
  }

  /**
   * Ask the server and show its answer.
   *
   * Resolves to "done", "stopped" once ``signal`` was aborted, or the error.
   */
  async write(fields, signal) {
    this.#begin();
    let outcome = "done";
    try {
      for await (const event of streamChat({ ...fields, mark_drafts: true }, signal)) {
        this.#take(event);
      }
    } catch (error) {
      outcome = signal.aborted ? "stopped" : error;
    }
    this.#end(outcome);
    return outcome;
  }

  /** Show the answer once more, at the speed it had. */
  async replay() {
    const pieces = this.#pieces;
    const begun = performance.now() - pieces[0].ms;
    this.#begin();
    let now = 0;
    for (const piece of pieces) {
      while (now < begun + piece.ms) now = await new Promise(requestAnimationFrame);
      this.#grow(piece);
    }
    this.#end("done");
  }

  #begin() {
    this.element.setAttribute("aria-busy", "true");
    this.#isLive = true;
    this.#shown = new Marked();
    this.#tally = new Tally();
    this.#view.clear();
  }

  #take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) return;
    if (choice.finish_reason) this.#last = event;
    const { num_tokens: tokens = 0, is_drafted: isDrafted = false } = choice;
    const text = choice.delta.content ?? "";
    if (!text && !tokens) return;
    const piece = { text, tokens, isDrafted, ms: performance.now() };
    this.#pieces.push(piece);
    this.#grow(piece);
  }

  #grow(piece) {
    const mark = piece.isDrafted ? "d" : "t";
    if (piece.isDrafted) this.element.classList.add("with-drafts");
    this.#shown = this.#shown.plus(piece.text, mark);
    this.#tally.add(piece);
    if (this.#isDue) return;
    this.#isDue = true;
    const wait = Math.max(0, this.#notBefore - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.#isDue && this.#show()), wait);
  }

  #show() {
    this.#isDue = false;
    const begun = performance.now();
    this.#view.show(this.#shown);
    if (this.#isLive) this.#figures.showTally(this.#tally);
    const now = performance.now();
    this.#notBefore = now + (now - begun) / MOST_BUSY;
    this.#onShow();
  }

  #end(outcome) {
    this.#show();
    this.#isLive = false;
    this.element.removeAttribute("aria-busy");
    if (this.#last) {
      const { timings, seed } = this.#last;
      const { share } = this.#tally;
      this.#figures.showTimings(timings, { reason: this.reason, seed, share });
    } else {
      this.#figures.showEnd(outcome === "stopped" ? "stopped" : "failed");
    }
    if (outcome instanceof Error) this.#body.append(make("p", "error", outcome.message));
    this.#addCopyButtons();
    this.#onShow();
  }

  #addCopyButtons() {
    for (const block of this.#body.querySelectorAll("figure.code")) {
      const caption = block.querySelector("figcaption");
      if (caption.querySelector("button")) continue;
      const code = block.querySelector("code");
      caption.append(makeCopyButton(() => code.textContent));
    }
    if (this.text) this.#figures.element.append(makeCopyButton(() => this.text));
  }
}
