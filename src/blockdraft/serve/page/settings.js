// The form of settings: what it asks of the server, and that it is kept by this browser.

const KEPT = "blockdraft-settings"; // other servers may have had this address

export class Settings {
  #form;
  #drafter = null;

  constructor(form) {
    this.#form = form;
    this.#restore();
    form.addEventListener("input", () => this.#keep());
    form.addEventListener("reset", () => setTimeout(() => this.#keep()));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  /** Say what an empty field means, and what the server drafts with; null where it does not. */
  setServer({ defaults, drafter }) {
    for (const [name, value] of Object.entries(defaults)) {
      const input = this.#form.querySelector(`input[data-field][name=${CSS.escape(name)}]`);
      if (input) input.placeholder = value;
    }
    this.#drafter = drafter;
    const { drafting, n_max: most } = this.#form.elements;
    drafting.options[0].textContent = drafter ? `on (${drafter})` : "not on this server";
    drafting.disabled = most.disabled = drafter === null;
  }

  /** Whether every value is one that it may be; shows the first that is not. */
  check() {
    return this.#form.reportValidity();
  }

  /** The turn that comes before all others, or none. */
  get system() {
    const content = this.#form.elements.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  /** Fields of a request, without its messages; those left empty are the server's to choose. */
  get fields() {
    const fields = {};
    for (const input of this.#form.querySelectorAll("input[data-field]")) {
      if (input.value !== "") fields[input.name] = input.valueAsNumber;
    }
    const speculative = this.#speculative;
    return speculative ? { ...fields, speculative } : fields;
  }

  /** How to draft in a race: as asked, but never not at all. */
  get drafted() {
    const most = this.#form.elements.n_max;
    return most.value === "" ? true : { n_max: most.valueAsNumber };
  }

  get #speculative() {
    if (this.#drafter === null) return null;
    return this.#form.elements.drafting.value === "none" ? { type: "none" } : this.drafted;
  }

  #keep() {
    const values = Object.fromEntries(new FormData(this.#form));
    localStorage.setItem(KEPT, JSON.stringify(values));
  }

  #restore() {
    const kept = localStorage.getItem(KEPT);
    if (kept === null) return;
    const values = JSON.parse(kept);
    for (const input of this.#form.elements) {
      if (input.type === "checkbox") input.checked = input.name in values;
      else if (input.name in values) input.value = values[input.name];
    }
  }
}
