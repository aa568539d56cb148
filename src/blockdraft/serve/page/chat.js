// A conversation: turns on the page, and the messages that the server is given.

import { Answer } from "./answer.js";
import { make } from "./dom.js";

export class Chat {
  #log;
  #messages = [];
  #isAtEnd = true;

  /** A conversation in an element that scrolls. */
  constructor(log) {
    this.#log = log;
    log.addEventListener("scroll", () => {
      this.#isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
    });
  }

  /** Ask, and show question and answer; gives the answer and its outcome. */
  async ask(text, { model, system, fields, signal }) {
    const question = make("article", "question");
    const body = make("div", "words", text);
    body.dir = "auto";
    question.append(make("h2", "", "You"), body);
    const answer = new Answer(model, () => this.#follow());
    this.#log.append(question, answer.element);
    this.#isAtEnd = true;
    this.#follow();

    const turn = { role: "user", content: text };
    const messages = [...system, ...this.#messages, turn];
    const outcome = await answer.write({ ...fields, messages }, signal);
    // A turn without an answer would stand before the next one.
    const isAnswered = answer.text && !(outcome instanceof Error);
    if (isAnswered) this.#messages.push(turn, { role: "assistant", content: answer.text });
    return { answer, outcome };
  }

  /** Forget everything. */
  clear() {
    this.#messages = [];
    for (const turn of this.#log.querySelectorAll("article")) turn.remove();
  }

  #follow() {
    if (this.#isAtEnd) this.#log.scrollTop = this.#log.scrollHeight;
  }
}
