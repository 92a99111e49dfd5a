// Passkeys: a button with data-passkey fills in its form's answer to the challenge of data-begin, and sends the form.
(() => {
  "use strict";
  const old = "This browser is too old for passkeys.";
  const ask = async (button) => {
    const form = button.form, body = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (typeof value === "string") body.append(name, value);
    const begun = await fetch(button.dataset.begin, { method: "POST", body, headers: { Accept: "application/json" } });
    if (!begun.ok) throw new Error(await begun.text());
    const options = await begun.json(), make = button.dataset.passkey === "create";
    const parse = make ? "parseCreationOptionsFromJSON" : "parseRequestOptionsFromJSON";
    if (!window.PublicKeyCredential?.[parse]) throw new Error(old);
    const publicKey = PublicKeyCredential[parse](options);
    const made = await (make ? navigator.credentials.create({ publicKey }) : navigator.credentials.get({ publicKey }));
    let answer = form.querySelector("input[name='" + button.dataset.into + "']");
    if (!answer) {
      answer = document.createElement("input");
      answer.type = "hidden";
      answer.name = button.dataset.into;
      form.append(answer);
    }
    answer.value = JSON.stringify(made);
    form.submit();
  };
  document.addEventListener("click", async (e) => {
    const button = e.target.closest("button[data-passkey]");
    if (!button) return;
    e.preventDefault();
    const origin = button.dataset.origin;
    if (location.origin !== origin && button.dataset.move !== undefined) { // reached by another name of the host
      location.assign(origin + location.pathname + location.search);
      return;
    }
    if (!button.form.reportValidity()) return;
    const wrong = button.form.querySelector("[data-wrong]");
    button.disabled = true;
    try {
      if (location.origin !== origin) throw new Error("Passkeys work at " + origin + "/console");
      await ask(button);
    } catch (err) {
      wrong.textContent = err.name === "NotAllowedError" ? "No passkey was used. Try again, or use another way." :
        err.name === "InvalidStateError" ? "This device has a passkey for you already." : err.message;
      wrong.hidden = false;
      button.disabled = false;
    }
  });
})();
