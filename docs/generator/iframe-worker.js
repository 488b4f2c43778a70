// Search without a server. A browser starts no worker from a file, so here a worker is a script in a hidden frame.
// The path of this file is in mkdocs.yml; from a server, the browser's own Worker is used.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = new URL(url, document.baseURI).href;
      this.loaded = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
      this.loaded.catch((error) => this.onerror?.(error));
      inner.document.body.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      const inner = this.frame.contentWindow;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
